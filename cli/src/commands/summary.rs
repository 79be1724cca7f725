//! `trefoil summary`: the layers of a network with shapes, parameters, memory and arithmetic.

use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;

use serde_json::json;
use trefoil::Engine;
use trefoil_nn::summary::summary;
use trefoil_nn::{Device, LayerExt, Tensor};

use crate::error::{CliError, Result};
use crate::network::{ModelArgs, ModelFile};

/// Arguments of `summary`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  trefoil summary examples/digits.json             layers, shapes, parameters, memory, arithmetic
  trefoil summary network.json --batch 64          a network alone; its `inputs` say the shapes
  trefoil summary network.json --input 3,32,32     the same for inputs of this shape
  trefoil summary loom.json                        a network of Loom
  trefoil summary examples/digits.json --json      the same as JSON
  trefoil summary examples/digits.json --svg net.svg   a picture of the layers with their shapes

MACs are the multiply-accumulates of products (matrices, convolutions, attention, recurrences); FLOPs are two per MAC and one per element
that any other operation computes. Nothing is computed for them: the backend serves a run's data alone. Numbers of a layer contain those of
its parts. Sizes that a network alone leaves free (-1) count as 8. The inputs that a network declares stand for data that cannot be read.")]
pub(crate) struct Args {
    #[command(flatten)]
    model: ModelArgs,
    /// Items in the forward that is looked at
    #[arg(long, value_name = "N", default_value_t = 1)]
    batch: usize,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Draw the layers with their shapes into this SVG file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

pub(crate) fn run(a: &Args, out: &mut dyn Write) -> Result<()> {
    if a.batch == 0 {
        return Err(CliError::Input("--batch: expected at least 1, got 0".into()));
    }
    let file = a.model.load()?;
    // What there is to say depends on shapes alone: nothing is allocated or computed, whatever the sizes.
    let shapes: Device = Arc::new(Engine::shapes());
    let inputs = match &file {
        ModelFile::Network(_) | ModelFile::Loom(..) => file.inputs(&shapes, a.batch)?,
        ModelFile::Run(..) => file
            .inputs(&a.model.backend.open()?, a.batch)?
            .iter()
            .map(|x| Tensor::empty(&shapes, x.dtype(), x.shape()))
            .collect::<trefoil_nn::Result<_>>()?,
    };
    let model = file.network(&shapes, file.dtype(), &inputs)?;
    // Statistics of batches need several items; those that were saved do not.
    model.eval();
    let s = summary(&*model, &inputs)?;
    if let Some(path) = &a.svg {
        std::fs::write(path, s.picture()).map_err(CliError::file("write", path))?;
    }
    // What an optimizer keeps besides the parameters: gradients, states in f32, and f32 originals of 16-bit parameters.
    let training = match &file {
        ModelFile::Run(run) => {
            let config = &run.config;
            let (t, half) = (&config.train, file.dtype().size() < 4);
            let copies = config.optimizer.rule().states().len()
                + usize::from(half && t.master_weights)
                + usize::from(t.ema.is_some());
            let trained = model.parameters().into_iter().filter(|p| p.requires_grad());
            let trained: usize = trained.map(|p| p.get().numel()).sum();
            let gradients = trained * file.dtype().size();
            Some((config.optimizer.name(), gradients, copies * trained * 4))
        }
        ModelFile::Network(_) | ModelFile::Loom(..) => None,
    };
    if a.json {
        let rows: Vec<_> = s
            .rows
            .iter()
            .map(|r| {
                json!({ "name": r.name, "type": r.kind, "depth": r.depth, "outputs": r.outputs,
                        "parameters": r.parameters, "output_bytes": r.output_bytes, "macs": r.macs, "flops": r.flops })
            })
            .collect();
        let mut all = json!({ "layers": rows, "parameters": s.parameters, "parameter_bytes": s.parameter_bytes,
            "buffer_bytes": s.buffer_bytes, "input_bytes": s.input_bytes, "activation_bytes": s.activation_bytes,
            "macs": s.macs, "flops": s.flops, "batch": a.batch });
        if let Some((_, gradients, states)) = training {
            all["gradient_bytes"] = gradients.into();
            all["optimizer_bytes"] = states.into();
        }
        writeln!(out, "{all:#}")?;
        return Ok(());
    }
    writeln!(out, "{s}")?;
    if let Some((name, gradients, states)) = training {
        let mib = |n: usize| n as f64 / f64::from(1 << 20);
        writeln!(
            out,
            "training with {name} keeps {:.2} MiB of gradients and {:.2} MiB of states",
            mib(gradients),
            mib(states)
        )?;
    }
    Ok(())
}
