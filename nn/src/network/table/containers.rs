//! Layers made of layers.

use serde::Deserialize;
use serde_json::Value;

use crate::layers::{CheckpointPlan, Checkpointed, Parallel, ParallelMerge, Residual};
use crate::network::MANY;
use crate::network::options::{Act, layer_type};

/// Segments whose activations are computed again: `"sqrt"`, or their number.
#[derive(Debug, Deserialize)]
#[serde(try_from = "Value")]
struct Segments(CheckpointPlan);

impl TryFrom<Value> for Segments {
    type Error = String;

    fn try_from(v: Value) -> Result<Self, String> {
        match (v.as_str(), v.as_u64().and_then(|n| usize::try_from(n).ok())) {
            (Some("sqrt"), _) => Ok(Segments(CheckpointPlan::Sqrt)),
            (_, Some(n)) => Ok(Segments(CheckpointPlan::Segments(n))),
            _ => Err(format!("expected \"sqrt\" or a number of segments, got {v}")),
        }
    }
}

layer_type! {
    SEQUENTIAL: 0, "Sequential", "sequential", Container, "nn.Sequential", (1, 1);
    {
        layers: Vec<Value>;
        checkpoint: Option<Segments> = null;
    }
    |o, site| {
        let layers = site.list("layers", &o.layers)?;
        match o.checkpoint {
            Some(Segments(plan)) => layers.checkpointed(&plan)?,
            None => layers,
        }
    }
}

layer_type! {
    RESIDUAL: 77, "Residual", "residual", Container, "x + nn.Sequential(..)", (1, 1);
    {
        layers: Vec<Value>;
        shortcut: Vec<Value> = [];
        activation: Act = "identity";
    }
    |o, site| {
        let body = site.list("layers", &o.layers)?;
        if body.by_name("shortcut").is_some() {
            return Err(site.wrong("layers", "`shortcut` is the name of the other branch"));
        }
        let l = Residual::new(body).activation(o.activation.0);
        if o.shortcut.is_empty() { l } else { l.shortcut(site.list("shortcut", &o.shortcut)?) }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum MergeName {
    Concat,
    Add,
    Multiply,
    Average,
    Maximum,
}

layer_type! {
    PARALLEL: 0, "Parallel", "parallel", Container, "torch.cat of nn.Sequential(..)", (1, 1);
    {
        branches: Vec<Vec<Value>>;
        merge: MergeName = "concat";
        dim: Option<isize> = null;
        activation: Act = "identity";
    }
    |o, site| {
        if o.dim.is_some() && o.merge != MergeName::Concat {
            return Err(site.wrong("dim", "only the merge `concat` has an axis"));
        }
        let merge = match o.merge {
            MergeName::Concat => ParallelMerge::Concat(o.dim.unwrap_or(1)),
            MergeName::Add => ParallelMerge::Add,
            MergeName::Multiply => ParallelMerge::Multiply,
            MergeName::Average => ParallelMerge::Average,
            MergeName::Maximum => ParallelMerge::Maximum,
        };
        let mut all = vec![];
        for (i, branch) in o.branches.iter().enumerate() {
            all.push(site.list(&format!("branches[{i}]"), branch)?);
        }
        Parallel::new(all, merge)?.activation(o.activation.0)
    }
}

layer_type! {
    CHECKPOINTED: 0, "Checkpointed", "checkpointed", Container, "torch.utils.checkpoint", (1, MANY);
    { inner: Value; }
    |o, site| Checkpointed::new(site.layer("inner", &o.inner)?)
}
