//! Plans: in which of several ways an operation runs.
//!
//! An operation with several ways to run has a [`Problem`]: the sizes, storage type and alignment that decide, and nothing else. Its
//! [`Problem::plan`] is a pure function of the problem and the device's capabilities, so it is tested without a device. The engine takes the pinned
//! variant, else the one that was measured to be the fastest ([`tune`](super::tune)), else the first that applies, and carries its plan out.
//! `TREFOIL_VARIANT` pins: `portable` takes the portable text everywhere, `gemm:cublaslt` one variant of one operation;
//! [`InteropOps::pin_variant`](crate::ops::core::InteropOps::pin_variant) does so at run time.

use std::borrow::Cow;
use std::cell::Cell;
use std::collections::HashMap;
use std::fmt::Debug;
use std::hash::Hash;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, RwLock};

use super::tune::{ProblemKey, Store};
use super::{Engine, lock};
use crate::device::Caps;
use crate::error::{GpuError, Result};
use crate::ops::OpInfo;
use crate::ops::core::{Choice, ChosenBy};

/// Name of the variant that the portable text serves, where a vendor library is another.
pub(crate) const PORTABLE: &str = "portable";

/// Why a variant does not apply to a problem.
pub(crate) type Reason = Cow<'static, str>;

/// One way to run an operation.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Variant {
    /// Name, for pins and `explain`.
    pub(crate) name: &'static str,
    /// File under `kernels/`, or the vendor library.
    pub(crate) source: &'static str,
}

/// What decides in which way an operation runs.
pub(crate) trait Problem: Copy {
    /// The geometry of a launch (or of several), for one variant.
    type Plan: Copy;

    /// The variants, best first.
    const VARIANTS: &'static [Variant];

    /// The plan of the variant of this number, or why it does not apply.
    fn plan(&self, variant: usize, caps: &Caps) -> std::result::Result<Self::Plan, Reason>;

    /// Whether a variant that applies is worth taking where none is pinned.
    fn prefers(&self, _variant: usize, _caps: &Caps) -> bool {
        true
    }

    /// The problem as the key of a measured choice. `None` where its time depends on more than the problem says: what was measured of one call would
    /// be taken for others. [`Engine::plan_with`] says the rest.
    fn key(&self) -> Option<&dyn ProblemKey> {
        None
    }
}

/// The variants of a problem without the type of its plans: a choice among them is compiled once, not for every problem.
pub(crate) trait Candidates {
    fn variants(&self) -> &'static [Variant];

    /// Why a variant does not apply.
    fn check(&self, variant: usize, caps: &Caps) -> std::result::Result<(), Reason>;

    fn prefers(&self, variant: usize, caps: &Caps) -> bool;
}

/// A problem, with the plan of the variant that was the last found to apply.
struct Planned<'p, P: Problem> {
    problem: &'p P,
    plan: Cell<Option<P::Plan>>,
}

impl<'p, P: Problem> Planned<'p, P> {
    fn new(problem: &'p P) -> Self {
        Planned { problem, plan: Cell::new(None) }
    }
}

impl<P: Problem> Candidates for Planned<'_, P> {
    fn variants(&self) -> &'static [Variant] {
        P::VARIANTS
    }

    fn check(&self, variant: usize, caps: &Caps) -> std::result::Result<(), Reason> {
        self.plan.set(Some(self.problem.plan(variant, caps)?));
        Ok(())
    }

    fn prefers(&self, variant: usize, caps: &Caps) -> bool {
        self.problem.prefers(variant, caps)
    }
}

/// The first variant that is worth taking and applies.
pub(crate) fn first(of: &dyn Candidates, caps: &Caps) -> Option<usize> {
    (0..of.variants().len()).find(|&v| of.prefers(v, caps) && of.check(v, caps).is_ok())
}

/// The first variant that is worth taking and applies, and its plan.
pub(crate) fn best<P: Problem>(problem: &P, caps: &Caps) -> Option<(usize, P::Plan)> {
    let of = Planned::new(problem);
    Some((first(&of, caps)?, of.plan.get()?))
}

/// Pinned variants of a handle, measured ones of its device, and the choices that are being recorded.
#[derive(Debug, Default)]
pub(crate) struct Choices {
    /// `None` where measured choices are left out.
    measured: Option<Arc<Store>>,
    any_pin: AtomicBool,
    pins: RwLock<HashMap<String, String>>,
    recording: AtomicBool,
    made: Mutex<Vec<Choice>>,
}

impl Choices {
    /// With the pins of `TREFOIL_VARIANT`. `Config` for a malformed one.
    pub(crate) fn from_env() -> Result<Self> {
        let choices = Choices::default();
        for part in std::env::var("TREFOIL_VARIANT").unwrap_or_default().split(',').filter(|p| !p.is_empty())
        {
            match part.split_once(':') {
                Some((op, name)) if crate::ops::all_ops().any(|o| o.name == op) => {
                    choices.pin(op, Some(name))
                }
                None if part == PORTABLE => choices.pin("*", Some(PORTABLE)),
                _ => {
                    let what =
                        format!("TREFOIL_VARIANT: `{part}` is neither `{PORTABLE}` nor `OPERATION:VARIANT`");
                    return Err(GpuError::Config(what.into()));
                }
            }
        }
        if std::env::var("TREFOIL_FUSION").is_ok_and(|v| v == "off" || v == "0") {
            choices.pin("capture_calls", Some("plain"));
        }
        Ok(choices)
    }

    /// The same pins, and what was measured of a device.
    pub(crate) fn measured(self, measured: Option<Arc<Store>>) -> Self {
        Choices { measured, ..self }
    }

    /// What was measured of the device.
    pub(crate) fn store(&self) -> Option<&Arc<Store>> {
        self.measured.as_ref()
    }

    /// The same choices for another handle.
    pub(crate) fn fork(&self) -> Self {
        let pins = self.pins.read().unwrap_or_else(|p| p.into_inner()).clone();
        let any_pin = AtomicBool::new(!pins.is_empty());
        Choices { any_pin, pins: RwLock::new(pins), measured: self.measured.clone(), ..Choices::default() }
    }

    /// Pins `op` to a variant, or frees it.
    pub(crate) fn pin(&self, op: &str, variant: Option<&str>) {
        let mut pins = self.pins.write().unwrap_or_else(|p| p.into_inner());
        match variant {
            Some(v) => drop(pins.insert(op.into(), v.into())),
            None => drop(pins.remove(op)),
        }
        self.any_pin.store(!pins.is_empty(), Ordering::Release);
    }

    /// Pins the operation that `known` explains to one of its variants, or frees it. `Config` for a variant that it does not have.
    pub(crate) fn pin_known(&self, known: &Choice, variant: Option<&str>) -> Result<()> {
        let names = || std::iter::once(&known.chosen).chain(known.rejected.iter().map(|(name, _)| name));
        if let Some(v) = variant.filter(|v| names().all(|name| name != v)) {
            let names: Vec<_> = names().map(String::as_str).collect();
            let what = format!("`{}` has no variant `{v}`; known: {}", known.op, names.join(", "));
            return Err(GpuError::Config(what.into()));
        }
        self.pin(known.op, variant);
        Ok(())
    }

    /// The choices that `calls` make.
    pub(crate) fn made_by(&self, calls: &mut dyn FnMut() -> Result<()>) -> Result<Vec<Choice>> {
        self.record(true);
        let result = calls();
        let made = self.record(false);
        result.map(|()| made)
    }

    /// Frees the operations whose variant `keep` does not know.
    pub(crate) fn retain(&self, keep: impl Fn(&str) -> bool) {
        let mut pins = self.pins.write().unwrap_or_else(|p| p.into_inner());
        pins.retain(|_, variant| keep(variant));
        self.any_pin.store(!pins.is_empty(), Ordering::Release);
    }

    /// The number of the variant to which `op` is pinned. A pin of all operations to `portable` means those that have one of that name.
    fn pinned(&self, op: &str, variants: &[Variant]) -> Option<std::result::Result<usize, String>> {
        if !self.any_pin.load(Ordering::Acquire) {
            return None;
        }
        let pins = self.pins.read().unwrap_or_else(|p| p.into_inner());
        let at = |pin: &String| variants.iter().position(|v| v.name == pin);
        let names = || variants.iter().map(|v| v.name).collect::<Vec<_>>();
        match (pins.get(op), pins.get("*")) {
            (Some(pin), _) => Some(
                at(pin).ok_or_else(|| format!("it has no variant `{pin}`; known: {}", names().join(", "))),
            ),
            (None, Some(all)) => at(all).map(Ok),
            (None, None) => None,
        }
    }

    /// Starts to record the choices that are made; those made until then.
    fn record(&self, on: bool) -> Vec<Choice> {
        self.recording.store(on, Ordering::Release);
        std::mem::take(&mut *lock(&self.made))
    }
}

/// A decision among variants in words.
fn choice(
    op: &'static str,
    (chosen, by): (usize, ChosenBy),
    variants: &[Variant],
    why_not: &dyn Fn(usize) -> Option<Reason>,
    measured: Vec<(String, u64)>,
) -> Choice {
    let others = variants.iter().enumerate().filter(|(i, _)| *i != chosen);
    let rejected = others.map(|(i, v)| {
        let why = why_not(i).unwrap_or_else(|| Choice::PREFERRED.into());
        (v.name.to_string(), why.into_owned())
    });
    Choice {
        op,
        chosen: variants[chosen].name.into(),
        source: variants[chosen].source.into(),
        rejected: rejected.collect(),
        by,
        measured,
    }
}

/// That no variant of `op` serves a call.
fn no_variant(op: &'static str, caps: &Caps, why: String) -> GpuError {
    GpuError::Unsupported { op, device: caps.id, why: why.into() }
}

/// That no variant applies, with the reason of the last.
fn none_applies(op: &'static str, caps: &Caps, of: &dyn Candidates) -> GpuError {
    let last = of.variants().len().saturating_sub(1);
    let why = of.check(last, caps).err().unwrap_or_default();
    no_variant(op, caps, format!("no variant applies: {why}"))
}

impl Choices {
    /// The plan for a problem of `op`: that of the pinned variant, else of the one that was fastest when it was measured, else of the first that
    /// applies. `Unsupported` where a pinned variant does not.
    pub(crate) fn plan<P: Problem>(&self, op: &'static str, caps: &Caps, problem: &P) -> Result<P::Plan> {
        self.plan_as(op, caps, problem, problem.key())
    }

    /// The same for a problem that is measured as `key`.
    fn plan_as<P: Problem>(
        &self,
        op: &'static str,
        caps: &Caps,
        problem: &P,
        key: Option<&dyn ProblemKey>,
    ) -> Result<P::Plan> {
        let of = Planned::new(problem);
        let chosen = self.choose(op, caps, &of, key)?;
        // What describes the choice looks at other variants, too.
        let plan = of.plan.get().ok_or_else(|| none_applies(op, caps, &of))?;
        if self.recording.load(Ordering::Acquire) {
            lock(&self.made).push(self.in_words(op, chosen, caps, &of, key));
        }
        Ok(plan)
    }

    /// The variant to take. It is the last that was found to apply.
    fn choose(
        &self,
        op: &'static str,
        caps: &Caps,
        of: &dyn Candidates,
        key: Option<&dyn ProblemKey>,
    ) -> Result<(usize, ChosenBy)> {
        let Some(at) = self.pinned(op, of.variants()) else { return self.free(op, caps, of, key) };
        let at = at.map_err(|why| no_variant(op, caps, why))?;
        let pinned = |why| format!("the pinned variant `{}` does not apply: {why}", of.variants()[at].name);
        of.check(at, caps).map_err(|why| no_variant(op, caps, pinned(why)))?;
        Ok((at, ChosenBy::Pin))
    }

    /// The choice where nothing is pinned. A measured variant that does not apply any more is passed over.
    fn free(
        &self,
        op: &'static str,
        caps: &Caps,
        of: &dyn Candidates,
        key: Option<&dyn ProblemKey>,
    ) -> Result<(usize, ChosenBy)> {
        if let (Some(store), Some(key)) = (self.measured.as_deref().filter(|m| m.is_active()), key)
            && let Some(at) = store.variant(op, caps, of, key)
            && of.check(at, caps).is_ok()
        {
            return Ok((at, ChosenBy::Measurement));
        }
        let at = first(of, caps).ok_or_else(|| none_applies(op, caps, of))?;
        Ok((at, ChosenBy::Rule))
    }

    /// Whether the choice for a problem names a variant that no rule takes: it was measured to be the fastest, or choices are measured or put in words.
    fn names<P: Problem>(&self, op: &'static str, problem: &P, variant: &str) -> bool {
        if self.recording.load(Ordering::Acquire) {
            return true;
        }
        let Some(store) = self.measured.as_deref().filter(|m| m.is_active()) else { return false };
        let measured = || problem.key().and_then(|key| store.record(op, key));
        store.tries() || measured().is_some_and(|r| r.chosen == variant)
    }

    fn in_words(
        &self,
        op: &'static str,
        chosen: (usize, ChosenBy),
        caps: &Caps,
        of: &dyn Candidates,
        key: Option<&dyn ProblemKey>,
    ) -> Choice {
        let store = self.measured.as_deref().filter(|m| m.is_active());
        let record = store.zip(key).and_then(|(store, key)| store.record(op, key));
        let times = record.map(|r| r.times.clone()).unwrap_or_default();
        choice(op, chosen, of.variants(), &|v| of.check(v, caps).err(), times)
    }

    /// What [`Choices::plan`] would choose, in words.
    pub(crate) fn explain<P: Problem>(&self, op: &'static str, caps: &Caps, problem: &P) -> Result<Choice> {
        self.explain_as(op, caps, &Planned::new(problem), problem.key())
    }

    fn explain_as(
        &self,
        op: &'static str,
        caps: &Caps,
        of: &dyn Candidates,
        key: Option<&dyn ProblemKey>,
    ) -> Result<Choice> {
        let chosen = match self.pinned(op, of.variants()) {
            Some(at) => (at.map_err(|why| no_variant(op, caps, why))?, ChosenBy::Pin),
            None => self.free(op, caps, of, key)?,
        };
        Ok(self.in_words(op, chosen, caps, of, key))
    }
}

impl Engine {
    /// The plan for a problem of `op`, as [`Choices::plan`] has it.
    pub(crate) fn plan<P: Problem>(&self, op: &'static str, problem: &P) -> Result<P::Plan> {
        self.inner.choices.plan(op, self.device_caps(), problem)
    }

    /// The same; `rest` is what the time depends on beside the problem.
    pub(crate) fn plan_with<P: Problem + Debug + Hash>(
        &self,
        op: &'static str,
        problem: &P,
        rest: impl Debug + Hash,
    ) -> Result<P::Plan> {
        self.inner.choices.plan_as(op, self.device_caps(), problem, Some(&(problem, rest)))
    }

    /// What [`Engine::plan`] would choose, in words.
    pub(crate) fn explain_problem<P: Problem>(&self, op: &'static str, problem: &P) -> Result<Choice> {
        self.inner.choices.explain(op, self.device_caps(), problem)
    }

    /// Whether the choice for a problem may fall on a variant that no rule takes, or names it.
    pub(crate) fn considers<P: Problem>(&self, op: &'static str, problem: &P, variant: usize) -> bool {
        self.must_take::<P>(op, variant) || self.inner.choices.names(op, problem, P::VARIANTS[variant].name)
    }

    pub(crate) fn no_variant(&self, op: &'static str, why: String) -> GpuError {
        no_variant(op, self.device_caps(), why)
    }

    /// Whether no pin keeps `op` from the variant of this number.
    pub(crate) fn may_take<P: Problem>(&self, op: &'static str, variant: usize) -> bool {
        self.inner.choices.pinned(op, P::VARIANTS).is_none_or(|at| at == Ok(variant))
    }

    /// Whether a pin sets `op` to the variant of this number.
    pub(crate) fn must_take<P: Problem>(&self, op: &'static str, variant: usize) -> bool {
        self.inner.choices.pinned(op, P::VARIANTS) == Some(Ok(variant))
    }

    /// What [`CoreOps::explain`](crate::ops::core::CoreOps::explain) answers: the decision for a typical problem of an operation with variants, else
    /// the portable text.
    pub(crate) fn explain_op(&self, info: &'static OpInfo) -> Result<Choice> {
        match info.name {
            "capture_calls" => return self.explain_capture(info.name),
            "gemm" | "gemm_bwd" | "gemm_grouped" => return self.explain_gemm(info.name),
            "gemm_ragged" | "gemm_ragged_bwd" => return self.explain_ragged(info.name),
            "bilinear_ragged_bwd" => return self.explain_bilinear(info.name),
            "rnn" | "rnn_bwd" => return self.explain_rnn(info.name),
            "conv" | "conv_bwd" | "conv_transpose" | "conv_transpose_bwd" => {
                return self.explain_conv(info.name);
            }
            "causal_conv1d" | "causal_conv1d_bwd" => return self.explain_causal(info.name),
            "softmax" | "softmax_bwd" => return self.explain_softmax(info.name),
            "row_norm" | "group_norm" | "instance_norm" | "batch_norm" | "row_norm_bwd"
            | "group_norm_bwd" | "batch_norm_bwd" => return self.explain_norm(info.name),
            "l2_normalize" | "l2_normalize_bwd" => return self.explain_l2(info.name),
            "cross_entropy" | "cross_entropy_bwd" | "row_loss" | "row_loss_bwd" => {
                return self.explain_loss(info.name);
            }
            "cumsum" | "segment_reduce" | "segment_reduce_bwd" => return self.explain_scan(info.name),
            "cholesky" | "triangular_solve" => return self.explain_linalg(info.name),
            "sort" | "topk" => return self.explain_sort(info.name),
            "reduce" | "reduce_bwd" | "arg_reduce" | "mean_var" | "min_max" | "dot" | "sum_to_shape" => {
                return self.explain_reduce(info.name);
            }
            "max_pool" | "max_pool_bwd" | "avg_pool" | "avg_pool_bwd" => return self.explain_pool(info.name),
            "unary" | "unary_bwd" | "activation" | "activation_bwd" | "binary" | "binary_bwd" => {
                return self.explain_elementwise(info.name);
            }
            "index_add" | "index_put" | "scatter_reduce" | "scatter_reduce_bwd" => {
                return self.explain_reduction(info.name);
            }
            "activation_bias_bwd" => return self.explain_bias_gradient(info.name),
            "prelu_bwd" => return self.explain_prelu(info.name),
            "attention" | "attention_bwd" => return self.explain_attention(info.name),
            "flash_decode" | "paged_attention" => return self.explain_decode(info.name),
            "logit_processors" | "sample_tokens" => return self.explain_sampling(info.name),
            "strided_copy" | "concat" | "fill" => return self.explain_shape(info.name),
            "embedding" | "embedding_bwd" => return self.explain_embedding(info.name),
            "sym_normalize"
            | "spmm"
            | "spmm_bwd"
            | "message_passing"
            | "message_passing_bwd"
            | "sddmm_bwd"
            | "group_reduce"
            | "group_reduce_bwd"
            | "edge_softmax"
            | "edge_softmax_bwd"
            | "gat"
            | "gat_bwd"
            | "mesh_conv_bwd" => return self.explain_graph(info.name),
            "hash_grid_encode_bwd" | "trilinear_interpolate_bwd" | "volume_render" | "volume_render_bwd" => {
                return self.explain_field(info.name);
            }
            "fft" | "rfft" | "irfft" => return self.explain_fourier(info.name),
            "gemm_quantized" | "quantize" => return self.explain_quantized(info.name),
            "optimizer_step"
            | "optimizer_step_packed"
            | "adaptive_step"
            | "clip_grad_norm"
            | "grad_factor"
            | "clip_grad_value"
            | "unscale_grads" => return self.explain_optimizer(info.name),
            "associative_scan"
            | "associative_scan_bwd"
            | "gla_scan"
            | "gla_scan_bwd"
            | "gated_delta_scan"
            | "gated_delta_scan_bwd"
            | "selective_scan"
            | "selective_scan_bwd"
            | "ssd_scan"
            | "ssd_scan_bwd" => return self.explain_state_space(info.name),
            "interpolate" | "interpolate_bwd" => return self.explain_interpolate(info.name),
            _ => {}
        }
        let files: std::collections::BTreeSet<_> =
            crate::spec::all_kernels().filter(|k| k.family == info.family).map(|k| k.file).collect();
        let source = files.into_iter().map(|f| format!("kernels/common/{f}")).collect::<Vec<_>>().join(", ");
        Ok(Choice::new(info.name, PORTABLE.into(), source))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pins_name_one_operation_or_all_that_have_the_variant() {
        let c = Choices::default();
        let variants = ["fast", PORTABLE].map(|name| Variant { name, source: "" });
        assert_eq!(c.pinned("gemm", &variants), None);
        c.pin("*", Some(PORTABLE));
        assert_eq!(c.pinned("gemm", &variants), Some(Ok(1)));
        assert_eq!(c.pinned("softmax", &[Variant { name: "registers", source: "" }]), None);
        c.pin("gemm", Some("fast"));
        assert_eq!(c.pinned("gemm", &variants), Some(Ok(0)));
        c.pin("gemm", Some("slow"));
        assert!(
            c.pinned("gemm", &variants).is_some_and(|at| at.is_err_and(|e| e.contains("fast, portable")))
        );
        c.pin("gemm", None);
        c.pin("*", None);
        assert_eq!(c.pinned("gemm", &variants), None);
    }
}
