//! Low-rank adaptation.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::core::autograd::no_grad;
use crate::core::error::{Result, invalid};
use crate::core::glob::fits_within;
use crate::core::tensor::Tensor;
use crate::module::hooks;
use crate::module::{
    Init, InitContext, Layer, LayerExt, Param, StateDict, Visitor, check_fit, check_names, parametrized,
};

const OP: &str = "Lora";

/// What stands before names in the adapter files of `peft`.
const PEFT: &str = "base_model.model.";

/// Which weights of a model are adapted, and how.
#[derive(Debug, Clone, PartialEq)]
pub struct LoraConfig {
    /// Rank of the products, at least 1.
    pub rank: usize,
    /// The products are scaled by alpha / rank.
    pub alpha: f64,
    /// Names of layers or weights in which `*` stands for any characters and `?` for one, as [`LayerExt::freeze`] takes them: `*.q_proj`. Of
    /// what they fit, the matrices are adapted.
    pub targets: Vec<String>,
}

/// The adapter of one weight.
#[derive(Debug)]
struct Adapter {
    /// Name of the weight without `weight` at its end.
    name: String,
    weight: Param,
    /// `[rank, in]`.
    a: Param,
    /// `[out, rank]`.
    b: Param,
}

impl Adapter {
    /// A from U(-1/sqrt(in), 1/sqrt(in)), B of zeros, as `peft` has them. `None` for a weight that is no matrix.
    fn new(cx: &InitContext, name: &str, weight: Param, rank: usize) -> Result<Option<Self>> {
        let w = weight.get();
        let &[out, inputs] = w.shape() else { return Ok(None) };
        let cx = cx.clone().dtype(w.dtype());
        let a = Init::Lin.param(&cx, &[rank, inputs], inputs, rank)?;
        let b = Init::Zeros.param(&cx, &[out, rank], rank, out)?;
        let name = name.strip_suffix("weight").unwrap_or(name).trim_end_matches(['.', '_']).to_string();
        Ok(Some(Adapter { name, weight, a, b }))
    }

    /// W + scale B A.
    fn adapted(&self, scale: f64) -> Result<Tensor> {
        self.weight.get().add_scaled(&self.b.get().matmul(&self.a.get())?, scale)
    }

    /// The names of A and B, and they.
    fn state(&self) -> [(String, &Param); 2] {
        let name = |part: &str| match self.name.as_str() {
            "" => format!("{part}.weight"),
            layer => format!("{layer}.{part}.weight"),
        };
        [(name("lora_A"), &self.a), (name("lora_B"), &self.b)]
    }
}

/// The adapters of a model.
#[derive(Debug)]
pub(crate) struct Adapters {
    list: Vec<Adapter>,
    scale: f64,
    merged: AtomicBool,
}

impl Adapters {
    /// Freezes the parameters of a model and makes adapters for its matrices that the targets fit.
    pub(crate) fn new(cx: &InitContext, model: &dyn Layer, config: &LoraConfig) -> Result<Self> {
        if config.rank == 0 {
            return Err(invalid(OP, "rank", "at least 1", "0"));
        }
        if !config.alpha.is_finite() {
            return Err(invalid(OP, "alpha", "a finite number", format!("{}", config.alpha)));
        }
        let (all, mut list) = (model.named_parameters(), Vec::<Adapter>::new());
        let mut used = vec![false; config.targets.len()];
        for (name, weight) in &all {
            let fit = |target: &String| fits_within(target, name);
            if !config.targets.iter().any(fit) || list.iter().any(|a| a.weight.same(weight)) {
                continue;
            }
            if let Some(adapter) = Adapter::new(cx, name, weight.clone(), config.rank)? {
                used.iter_mut().zip(&config.targets).for_each(|(used, target)| *used |= fit(target));
                list.push(adapter);
            }
        }
        if let Some(at) = used.iter().position(|used| !used) {
            let expected = "names of layers with matrices";
            return Err(invalid(OP, "targets", expected, format!("`{}`", config.targets[at])));
        }
        if list.is_empty() {
            return Err(invalid(OP, "targets", "at least one name", "none"));
        }
        all.iter().for_each(|(_, p)| p.set_requires_grad(false));
        Ok(Adapters { list, scale: config.alpha / config.rank as f64, merged: AtomicBool::new(false) })
    }

    /// Runs the model with adapted weights.
    pub(crate) fn run<T>(&self, forward: impl FnOnce() -> Result<T>) -> Result<T> {
        if self.is_merged() {
            return forward();
        }
        let adapted = |a: &Adapter| Ok((a.weight.clone(), a.adapted(self.scale)?));
        parametrized(self.list.iter().map(adapted).collect::<Result<_>>()?, forward)
    }

    /// Shows the adapters.
    pub(crate) fn visit(&self, v: &mut Visitor<'_>) {
        for (name, p) in self.list.iter().flat_map(Adapter::state) {
            v.param(&name, p);
        }
    }

    fn is_merged(&self) -> bool {
        self.merged.load(Ordering::Relaxed)
    }

    /// Adds the products to the weights, or takes them away.
    pub(crate) fn merge(&self, merged: bool) -> Result<()> {
        if self.is_merged() == merged {
            return Ok(());
        }
        let scale = if merged { self.scale } else { -self.scale };
        no_grad(|| self.list.iter().try_for_each(|a| a.weight.get().detach().assign(&a.adapted(scale)?)))?;
        self.merged.store(merged, Ordering::Relaxed);
        Ok(())
    }

    /// The adapters under the names of `peft`.
    fn state(&self) -> StateDict {
        let named = self.list.iter().flat_map(Adapter::state);
        named.map(|(name, p)| (format!("{PEFT}{name}"), p.get().detach())).collect()
    }
}

/// A model whose weights are frozen and whose chosen matrices W read as W + alpha / rank B A while it runs (Hu et al., 2021): only A `[rank, in]`
/// and B `[out, rank]` are trained. B begins with zeros, so that the model begins as it is.
///
/// Any matrix of any layer can be adapted: dense layers, the projections of attention, those of recurrent layers. The sum is formed in each
/// forward, which takes memory for one more weight and its gradient; [`merge`](Lora::merge) before serving avoids it. `peft` applies a dropout
/// to the inputs of its adapters, which a sum of weights has no place for.
///
/// State: that of the model under its own names, and for each adapted layer `lora_A.weight` and `lora_B.weight` beside its weight.
#[derive(Debug)]
pub struct Lora<L> {
    model: L,
    adapters: Adapters,
}

impl<L: Layer> Lora<L> {
    /// Freezes the parameters of a model and adds adapters to its matrices that the targets fit. What is to be trained beside them can be
    /// [unfrozen](LayerExt::unfreeze). Optimizers have to be made afterwards. Errors: a rank of 0, an alpha that is not finite, a target that
    /// fits no matrix (lazy layers have theirs from their first forward on).
    pub fn new(cx: &InitContext, model: L, config: &LoraConfig) -> Result<Self> {
        let adapters = Adapters::new(cx, &model, config)?;
        Ok(Lora { model, adapters })
    }

    /// The model.
    pub fn model(&self) -> &L {
        &self.model
    }

    /// The model without its adapters; [`merge`](Lora::merge) before keeps what they learned.
    pub fn into_model(self) -> L {
        self.model
    }

    /// Whether the adapters are part of the weights.
    pub fn is_merged(&self) -> bool {
        self.adapters.is_merged()
    }

    /// Adds the products to the weights, in place. From then on the model costs what it did without adapters, and they get no gradient.
    /// Nothing where that has been done.
    pub fn merge(&self) -> Result<()> {
        self.adapters.merge(true)
    }

    /// Undoes [`merge`](Lora::merge), up to rounding.
    pub fn unmerge(&self) -> Result<()> {
        self.adapters.merge(false)
    }

    /// The adapters alone, under the names of `peft`'s adapter files; [`state_file::save`](crate::state_file::save) writes them.
    pub fn adapter_state(&self) -> StateDict {
        self.adapters.state()
    }

    /// Copies adapters under the names of [`adapter_state`](Lora::adapter_state) into these, from any device. Errors: other names, shapes or
    /// dtypes; merged adapters.
    pub fn load_adapter_state(&self, state: &StateDict) -> Result<()> {
        if self.is_merged() {
            let expected = "adapters that are not merged (`unmerge` them before)";
            return Err(invalid(OP, "self", expected, "merged ones"));
        }
        let own = self.adapter_state();
        check_names(own.keys(), state.keys())?;
        for (name, t) in &own {
            check_fit(name, t, state[name].dtype(), state[name].shape())?;
        }
        own.iter().try_for_each(|(name, t)| t.assign(&state[name].detach().to_device(t.device())?))
    }
}

impl<L: Layer> Layer for Lora<L> {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.adapters.run(|| hooks::layer("", &self.model, x))
    }

    fn forward_all(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        self.adapters.run(|| hooks::layers("", &self.model, inputs))
    }

    fn visit(&self, v: &mut Visitor<'_>) {
        v.flattened(&self.model);
        self.adapters.visit(v);
    }

    fn no_gradient(&self) -> Option<String> {
        self.model.no_gradient()
    }
}
