//! Optimizer steps and gradient clipping over lists of tensors.

mod adaptive;
mod constructors;
mod packed;
mod rules;
mod sparse;

pub use self::adaptive::*;
pub use self::packed::*;
pub use self::rules::*;
pub use self::sparse::*;

use crate::buffer::{View, ViewMut};
use crate::dtype::DType;
use crate::error::{GpuError, Result};
use crate::ops::check;

/// A number given by the host or read from device memory when the kernel runs.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum Scalar<'a> {
    /// Baked into the launch.
    Host(f64),
    /// One element: f32 for rates and factors, i64 for the step count.
    Device(View<'a>),
}

io_struct! {
    /// What all tensors of a step share.
    #[derive(Debug, Clone, Copy)]
    pub struct Step<'a> {
        /// Learning rate.
        pub lr: Scalar<'a>,
        /// Step count, 1 at the first step. 0 is `Invalid` (from the host).
        pub step: Scalar<'a>,
        /// Ascend instead of descend.
        pub maximize: bool = false,
        /// One f32 that multiplies every gradient first (1 / loss scale, or a clip coefficient).
        pub inv_scale: Option<View<'a>>,
        /// One f32; if it is not 0 nothing is changed.
        pub found_inf: Option<View<'a>>,
        /// The numbers of [`OptimRule::step_numbers`], f32 (f64 for f64 parameters), in place of a rate and a count of the host: they are read when the
        /// step runs, so that a recorded step can be replayed as another. A step count on the device stays.
        pub numbers: Option<View<'a>>,
    }
}

/// How many numbers [`OptimRule::step_numbers`] gives.
pub const STEP_NUMBERS: usize = 8;

impl Step<'_> {
    /// Host learning rate and step count.
    pub const fn host(lr: f64, step: u64) -> Self {
        Step {
            lr: Scalar::Host(lr),
            step: Scalar::Host(step as f64),
            maximize: false,
            inv_scale: None,
            found_inf: None,
            numbers: None,
        }
    }
}

io_struct! {
    /// One parameter tensor of an optimizer step; all its views are contiguous and of one size.
    #[derive(Debug)]
    pub struct ParamSlot<'a> {
        /// Parameter, updated in place: f32 (the usual master copy), f16, bf16 or f64.
        pub w: ViewMut<'a>,
        /// Gradient: f32, f16, bf16 or f64. All slots of a call have the same two dtypes.
        pub g: View<'a>,
        /// State in the order of [`OptimRule::states`], f32 (f64 for f64 parameters).
        pub state: [Option<ViewMut<'a>>; STATES] = [const { None }; STATES],
        /// f16 or bf16 copy of the new parameter, written in the same pass.
        pub copy: Option<ViewMut<'a>>,
    }
}

/// Operands of [`OptimizerOps::clip_grad_norm`].
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct ClipNorm {
    /// Largest allowed norm.
    pub max_norm: f64,
    /// Degree; may be infinite.
    pub p: f64,
}

impl ClipNorm {
    /// Euclidean norm.
    pub const fn new(max_norm: f64) -> Self {
        ClipNorm { max_norm, p: 2.0 }
    }

    /// Norm of degree `p`.
    pub const fn degree(mut self, p: f64) -> Self {
        self.p = p;
        self
    }
}

/// Operands of [`OptimizerOps::clip_grad_adaptive`].
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct ClipAdaptive {
    /// Largest allowed ratio of a gradient's norm to its weights'.
    pub k: f64,
    /// Norm of weights that are smaller.
    pub least: f64,
}

impl ClipAdaptive {
    /// Weights' norms of at least 1e-3.
    pub const fn new(k: f64) -> Self {
        ClipAdaptive { k, least: 1e-3 }
    }

    /// Another least norm.
    pub const fn least(mut self, norm: f64) -> Self {
        self.least = norm;
        self
    }
}

/// Dynamic loss scaling (Micikevicius et al., 2018), as `torch.amp.GradScaler` does it.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct LossScale {
    /// Factor after `interval` steps without an infinity or NaN in the gradients.
    pub growth: f64,
    /// Factor after a step with one.
    pub backoff: f64,
    /// Good steps between growths.
    pub interval: u32,
    /// Smallest scale.
    pub least: f64,
}

impl LossScale {
    /// Doubles after 2000 good steps, halves after a bad one, stays at 1 or above.
    pub const fn new() -> Self {
        LossScale { growth: 2.0, backoff: 0.5, interval: 2000, least: 1.0 }
    }

    /// Other factors.
    pub const fn factors(mut self, growth: f64, backoff: f64) -> Self {
        (self.growth, self.backoff) = (growth, backoff);
        self
    }

    /// Another number of good steps between growths.
    pub const fn interval(mut self, steps: u32) -> Self {
        self.interval = steps;
        self
    }

    /// Another smallest scale.
    pub const fn least(mut self, scale: f64) -> Self {
        self.least = scale;
        self
    }
}

impl Default for LossScale {
    fn default() -> Self {
        LossScale::new()
    }
}

io_struct! {
    /// Operands of [`OptimizerOps::update_loss_scale`]; one element each.
    #[derive(Debug)]
    pub struct LossScaleState<'a> {
        /// The scale (f32).
        pub scale: ViewMut<'a>,
        /// Good steps since the last change (i64).
        pub good: ViewMut<'a>,
        /// What [`OptimizerOps::unscale_grads`] found (f32); becomes 0 again.
        pub found_inf: ViewMut<'a>,
        /// Receives 1 / scale (f32), for [`Step::inv_scale`].
        pub inv_scale: Option<ViewMut<'a>>,
        /// Step count (i64); goes up by one unless the step was skipped, so that [`Step::step`] can read it.
        pub step: Option<ViewMut<'a>>,
    }
}

io_struct! {
    /// Operands of [`OptimizerOps::grad_factor`]; one element each, in memory of its own.
    #[derive(Debug)]
    pub struct GradFactor<'a> {
        /// Receives the factor (f32), for [`Step::inv_scale`].
        pub factor: ViewMut<'a>,
        /// Receives the norm of the gradients, divided by the loss scale, before clipping (f32).
        pub total: Option<ViewMut<'a>>,
        /// The loss scale by which the gradients were multiplied. It adapts to them, as by [`OptimizerOps::update_loss_scale`].
        pub scaling: Option<Scaling<'a>>,
    }
}

io_struct! {
    /// Loss scaling in [`GradFactor`].
    #[derive(Debug)]
    pub struct Scaling<'a> {
        /// How the scale adapts.
        pub p: LossScale,
        /// State of the scale, with its inverse and the step count. A `found_inf` that is not 0 skips the step as a gradient does that is not finite.
        pub state: LossScaleState<'a>,
        /// Receives 1 if the step is to be skipped, else 0 (f32), for [`Step::found_inf`].
        pub skip: ViewMut<'a>,
        /// Receives the step count before it went up (i64), for [`Step::step`].
        pub count: ViewMut<'a>,
    }
}

op_family! {
    /// Optimizer steps and clipping. One launch serves a whole list where the device has addresses or the tensors share buffers (an arena),
    /// otherwise one launch per tensor; the bits are the same. Bias corrections are computed in f64. Empty tensors are skipped.
    pub trait OptimizerOps : Optimizer => OPTIMIZER_OPS {
        /// One step of `rule` for every tensor of the list.
        fn optimizer_step(&self, rule: &OptimRule, step: &Step<'_>, params: &mut [ParamSlot<'_>]) -> Result<()>;
        /// Scales all gradients by min(1, max_norm / (total + 1e-6)); `total` (one f32) receives the norm over all of them before
        /// clipping. Does not overflow for large gradients. Without host round trip. Oracle `torch.nn.utils.clip_grad_norm_`.
        fn clip_grad_norm(&self, p: &ClipNorm, grads: &mut [ViewMut<'_>], total: ViewMut<'_>) -> Result<()>;
        /// What a step multiplies its gradients by so that their norm is at most `max_norm`: min(1, max_norm / (total + 1e-6)) / scale, with the
        /// norm `total` of the gradients / scale. The gradients stay as they are, and 16-bit ones lose no digits in between. Under loss scaling
        /// the scale adapts in the same launch, before [`OptimizerOps::optimizer_step`]. Two launches for a list. Gradients are f32, f16 or bf16.
        /// Without host round trip. Source `torch.nn.utils.get_total_norm`, `torch.amp.GradScaler`.
        fn grad_factor(&self, p: &ClipNorm, grads: &[View<'_>], io: GradFactor<'_>) -> Result<()>;
        /// Clamps every gradient to [-c, c], NaN stays. Oracle `torch.nn.utils.clip_grad_value_`.
        fn clip_grad_value(&self, c: f64, grads: &mut [ViewMut<'_>]) -> Result<()>;
        /// Adaptive clipping (Brock et al., 2021): scales the gradient of every output unit by min(1, k*max(|w|, least) / |g|), Euclidean norms
        /// of the unit's weights and gradient. Units run along the first axis; a tensor of one axis is one unit. The gradients have the
        /// shapes of the weights, and their dtype or, for f32 weights, f16 or bf16.
        fn clip_grad_adaptive(&self, p: &ClipAdaptive, weights: &[View<'_>], grads: &mut [ViewMut<'_>]) -> Result<()>;
        /// Divides all gradients by `scale` (one f32) and sets `found_inf` (one f32) to 1 if one of them is not finite; otherwise
        /// `found_inf` stays, so that several lists can share it. Without `scale` they are only examined: [`Step::inv_scale`] can do the
        /// division, which spares 16-bit gradients from vanishing. Without host round trip.
        fn unscale_grads(&self, scale: Option<View<'_>>, grads: &mut [ViewMut<'_>], found_inf: ViewMut<'_>) -> Result<()>;
        /// Adapts a loss scale to what the last step found, on the device; call it after [`OptimizerOps::optimizer_step`]. A growth beyond
        /// the largest f32 does not happen. Oracle `torch.amp.GradScaler.update`.
        fn update_loss_scale(&self, p: &LossScale, io: LossScaleState<'_>) -> Result<()>;
    }
}

fn scalar(op: &'static str, arg: &'static str, s: &Scalar<'_>, dtype: DType) -> Result<()> {
    match s {
        Scalar::Host(_) => Ok(()),
        Scalar::Device(v) => one(op, arg, v, dtype),
    }
}

pub(crate) fn one(op: &'static str, arg: &'static str, v: &View<'_>, dtype: DType) -> Result<()> {
    check::dtype(op, arg, v, dtype)?;
    if v.numel() == 1 { Ok(()) } else { check::shape(op, arg, v, &[1]) }
}

/// Checks of [`OptimizerOps::optimizer_step`].
pub(crate) fn check_step(rule: &OptimRule, step: &Step<'_>, params: &[ParamSlot<'_>]) -> Result<()> {
    const OP: &str = "optimizer_step";
    if let OptimRule::Adaptive(rule) = rule {
        return Err(GpuError::invalid(
            OP,
            "rule",
            "a rule without memory (adaptive_step serves the others)",
            format!("{rule:?}"),
        ));
    }
    check_shared(OP, rule, step)?;
    check_numbers(OP, step, params.first().map(|p| p.w.dtype()))?;
    check_slots(OP, rule.states(), params).map(drop)
}

/// Checks of [`Step::numbers`] for parameters of dtype `w`.
pub(crate) fn check_numbers(op: &'static str, step: &Step<'_>, w: Option<DType>) -> Result<()> {
    let (Some(v), Some(w)) = (&step.numbers, w) else { return Ok(()) };
    check::dtype(op, "numbers", v, w.accumulator())?;
    check::shape(op, "numbers", v, &[STEP_NUMBERS])?;
    check::contiguous(op, "numbers", v)
}

/// Checks of what all tensors of a step share.
pub(crate) fn check_shared(op: &'static str, rule: &OptimRule, step: &Step<'_>) -> Result<()> {
    check_rule(op, rule)?;
    scalar(op, "lr", &step.lr, DType::F32)?;
    scalar(op, "step", &step.step, DType::I64)?;
    if let Scalar::Host(t) = step.step
        && (t.is_nan() || t < 1.0)
    {
        return Err(GpuError::invalid(op, "step", "a step count of at least 1", format!("{t}")));
    }
    for (arg, v) in [("inv_scale", &step.inv_scale), ("found_inf", &step.found_inf)] {
        if let Some(v) = v {
            one(op, arg, v, DType::F32)?;
        }
    }
    Ok(())
}

/// Whether a gradient's dtype goes with a parameter's.
pub(crate) fn check_grad_type(op: &'static str, arg: &'static str, w: &View<'_>, g: &View<'_>) -> Result<()> {
    check::float(op, "w", w)?;
    if g.dtype() == w.dtype() || (w.dtype() == DType::F32 && g.dtype().is_half()) {
        return Ok(());
    }
    let want = format!("dtype {} or, for f32 parameters, f16 or bf16", w.dtype());
    Err(GpuError::invalid(op, arg, want, g.dtype().name()))
}

/// Operands of one parameter: contiguous, each with memory of its own.
pub(crate) fn check_apart(op: &'static str, vectors: &[(&'static str, View<'_>)]) -> Result<()> {
    for (i, (arg, v)) in vectors.iter().enumerate() {
        check::contiguous(op, arg, v)?;
        if vectors[..i].iter().any(|(_, o)| check::overlap(v, o)) {
            return Err(GpuError::invalid(op, arg, "memory of its own", "overlapping ranges of one buffer"));
        }
    }
    Ok(())
}

/// The states that a rule asks for, of the size and arithmetic type of `w`.
pub(crate) fn check_states<'a>(
    op: &'static str,
    names: &[&'static str],
    state: &'a [Option<ViewMut<'_>>; STATES],
    w: &View<'_>,
) -> Result<Vec<(&'static str, View<'a>)>> {
    let mut views = vec![];
    for (name, s) in names.iter().zip(state) {
        let Some(s) = s else {
            return Err(GpuError::invalid(op, "state", format!("state buffer `{name}`"), "nothing"));
        };
        let v = s.as_view();
        check::dtype(op, "state", &v, w.dtype().accumulator())?;
        views.push(("state", v));
    }
    Ok(views)
}

/// Every operand of a list of parameters.
pub(crate) fn check_slots<'a>(
    op: &'static str,
    states: &[&'static str],
    params: &'a [ParamSlot<'_>],
) -> Result<Vec<(&'static str, View<'a>)>> {
    let mut all = vec![];
    let mut written = vec![];
    let first = params.first().map(|p| (p.w.dtype(), p.g.dtype(), p.copy.as_ref().map(ViewMut::dtype)));
    for p in params {
        let w = p.w.as_view();
        check_grad_type(op, "g", &w, &p.g)?;
        if first != Some((w.dtype(), p.g.dtype(), p.copy.as_ref().map(ViewMut::dtype))) {
            return Err(GpuError::invalid(op, "params", "the same dtypes in every slot", w.dtype().name()));
        }
        let mut vectors = vec![("w", w), ("g", p.g)];
        vectors.extend(check_states(op, states, &p.state, &w)?);
        if let Some(c) = &p.copy {
            let v = c.as_view();
            check::one_of(op, "copy", &v, &[DType::F16, DType::Bf16])?;
            vectors.push(("copy", v));
        }
        for (arg, v) in &vectors {
            if v.numel() != w.numel() {
                let (want, got) = (format!("{} elements", w.numel()), format!("{}", v.numel()));
                return Err(GpuError::invalid(op, arg, want, got));
            }
        }
        check_apart(op, &vectors)?;
        written.push(w);
        all.extend(vectors);
    }
    distinct(op, "w", written.iter())?;
    Ok(all)
}

/// No two of the views share a byte.
pub(crate) fn distinct<'v, 'a: 'v>(
    op: &'static str,
    arg: &'static str,
    views: impl Iterator<Item = &'v View<'a>>,
) -> Result<()> {
    let mut spans: Vec<_> = views
        .filter(|v| v.numel() > 0)
        .map(|v| {
            let r = v.layout().span();
            (v.block().id(), r.start * v.dtype().size(), r.end * v.dtype().size())
        })
        .collect();
    spans.sort_unstable();
    if spans.windows(2).any(|w| w[0].0 == w[1].0 && w[1].1 < w[0].2) {
        return Err(GpuError::invalid(
            op,
            arg,
            "tensors that do not overlap",
            "overlapping ranges of one buffer",
        ));
    }
    Ok(())
}

/// Checks of a list of gradients that are scaled in place.
pub(crate) fn check_grads(op: &'static str, grads: &[ViewMut<'_>]) -> Result<()> {
    let views: Vec<_> = grads.iter().map(ViewMut::as_view).collect();
    for v in &views {
        check::float(op, "grads", v)?;
        check::dtype(op, "grads", v, views[0].dtype())?;
        check::contiguous(op, "grads", v)?;
    }
    distinct(op, "grads", views.iter())
}

fn check_norm(op: &'static str, p: &ClipNorm) -> Result<()> {
    if p.max_norm.is_nan() || p.max_norm < 0.0 {
        return Err(GpuError::invalid(op, "max_norm", "a norm not below 0", format!("{}", p.max_norm)));
    }
    if p.p.is_nan() || p.p <= 0.0 {
        return Err(GpuError::invalid(op, "p", "a degree above 0", format!("{}", p.p)));
    }
    Ok(())
}

/// Checks of [`OptimizerOps::grad_factor`].
pub(crate) fn check_factor(p: &ClipNorm, grads: &[View<'_>], io: &GradFactor<'_>) -> Result<()> {
    const OP: &str = "grad_factor";
    check_norm(OP, p)?;
    for v in grads {
        check::one_of(OP, "grads", v, &[DType::F32, DType::F16, DType::Bf16])?;
        check::dtype(OP, "grads", v, grads[0].dtype())?;
        check::contiguous(OP, "grads", v)?;
    }
    let mut written = vec![("factor", &io.factor, DType::F32)];
    written.extend(io.total.as_ref().map(|v| ("total", v, DType::F32)));
    if let Some(s) = &io.scaling {
        check_scaling(OP, &s.p, &s.state)?;
        if s.state.inv_scale.is_none() || s.state.step.is_none() {
            return Err(GpuError::invalid(OP, "state", "a scale with its inverse and a step count", "one without"));
        }
        written.extend([("skip", &s.skip, DType::F32), ("count", &s.count, DType::I64)]);
    }
    let mut outputs = vec![];
    for (arg, v, dtype) in written {
        one(OP, arg, &v.as_view(), dtype)?;
        outputs.push(v.as_view());
    }
    outputs.extend(io.scaling.iter().flat_map(|s| s.state.views()).map(|(_, v, _)| v.as_view()));
    for v in &outputs {
        if grads.iter().any(|g| check::overlap(v, g)) {
            return Err(GpuError::invalid(OP, "grads", "memory apart from the outputs", "overlapping ranges of one buffer"));
        }
    }
    distinct(OP, "factor", outputs.iter())
}

/// Checks of [`OptimizerOps::clip_grad_norm`].
pub(crate) fn check_clip_norm(p: &ClipNorm, grads: &[ViewMut<'_>], total: &ViewMut<'_>) -> Result<()> {
    const OP: &str = "clip_grad_norm";
    check_norm(OP, p)?;
    check_grads(OP, grads)?;
    one(OP, "total", &total.as_view(), DType::F32)?;
    let inputs: Vec<_> = grads.iter().map(|g| ("grads", g.as_view())).collect();
    check::separate_output(OP, "total", total, &inputs)
}

/// Checks of [`OptimizerOps::clip_grad_value`].
pub(crate) fn check_clip_value(c: f64, grads: &[ViewMut<'_>]) -> Result<()> {
    const OP: &str = "clip_grad_value";
    if c.is_nan() || c < 0.0 {
        return Err(GpuError::invalid(OP, "c", "a bound not below 0", format!("{c}")));
    }
    check_grads(OP, grads)
}

/// Checks of [`OptimizerOps::clip_grad_adaptive`].
pub(crate) fn check_clip_adaptive(
    p: &ClipAdaptive,
    weights: &[View<'_>],
    grads: &[ViewMut<'_>],
) -> Result<()> {
    const OP: &str = "clip_grad_adaptive";
    for (arg, x) in [("k", p.k), ("least", p.least)] {
        if x.is_nan() || x < 0.0 {
            return Err(GpuError::invalid(OP, arg, "a number not below 0", format!("{x}")));
        }
    }
    check_grads(OP, grads)?;
    if weights.len() != grads.len() {
        let (want, got) = (format!("{} tensors", grads.len()), format!("{}", weights.len()));
        return Err(GpuError::invalid(OP, "weights", want, got));
    }
    for (w, g) in weights.iter().zip(grads) {
        if !(w.dtype() == DType::F32 && g.dtype().is_half()) {
            check::dtype(OP, "weights", w, g.dtype())?;
        }
        check::shape(OP, "weights", w, g.as_view().shape())?;
        check::contiguous(OP, "weights", w)?;
        check::separate_output(OP, "grads", g, &[("weights", *w)])?;
    }
    Ok(())
}

/// Output units of a tensor and their size.
pub(crate) fn output_units(shape: &[usize]) -> [usize; 2] {
    match shape {
        [units, rest @ ..] if !rest.is_empty() => [*units, rest.iter().product()],
        _ => [1, shape.iter().product()],
    }
}

/// Checks of [`OptimizerOps::unscale_grads`].
pub(crate) fn check_unscale(
    scale: Option<&View<'_>>,
    grads: &[ViewMut<'_>],
    found: &ViewMut<'_>,
) -> Result<()> {
    const OP: &str = "unscale_grads";
    check_grads(OP, grads)?;
    one(OP, "found_inf", &found.as_view(), DType::F32)?;
    let mut inputs: Vec<_> = grads.iter().map(|g| ("grads", g.as_view())).collect();
    if let Some(v) = scale {
        one(OP, "scale", v, DType::F32)?;
        for g in grads {
            check::separate_output(OP, "grads", g, &[("scale", *v)])?;
        }
        inputs.push(("scale", *v));
    }
    check::separate_output(OP, "found_inf", found, &inputs)
}

impl<'a> LossScaleState<'a> {
    /// What is there, with names and dtypes.
    pub(crate) fn views(&self) -> impl Iterator<Item = (&'static str, &ViewMut<'a>, DType)> {
        let all = [
            ("scale", Some(&self.scale), DType::F32),
            ("good", Some(&self.good), DType::I64),
            ("found_inf", Some(&self.found_inf), DType::F32),
            ("inv_scale", self.inv_scale.as_ref(), DType::F32),
            ("step", self.step.as_ref(), DType::I64),
        ];
        all.into_iter().filter_map(|(arg, v, dtype)| Some((arg, v?, dtype)))
    }
}

/// Checks of [`OptimizerOps::update_loss_scale`].
pub(crate) fn check_loss_scale(p: &LossScale, io: &LossScaleState<'_>) -> Result<()> {
    const OP: &str = "update_loss_scale";
    check_scaling(OP, p, io)?;
    let views: Vec<_> = io.views().map(|(_, v, _)| v.as_view()).collect();
    distinct(OP, "scale", views.iter())
}

/// Checks of a loss scale, without overlap.
fn check_scaling(op: &'static str, p: &LossScale, io: &LossScaleState<'_>) -> Result<()> {
    let bad =
        |arg: &'static str, want: &'static str, x: f64| Err(GpuError::invalid(op, arg, want, format!("{x}")));
    if !(p.growth >= 1.0 && p.growth.is_finite()) {
        return bad("growth", "a finite factor of at least 1", p.growth);
    }
    if !(p.backoff > 0.0 && p.backoff <= 1.0) {
        return bad("backoff", "a factor in (0, 1]", p.backoff);
    }
    if !(p.least > 0.0 && p.least.is_finite()) {
        return bad("least", "a finite scale above 0", p.least);
    }
    if p.interval == 0 {
        return bad("interval", "at least 1 step", 0.0);
    }
    io.views().try_for_each(|(arg, v, dtype)| one(op, arg, &v.as_view(), dtype))
}
