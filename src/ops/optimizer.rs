//! Optimizer steps and gradient clipping over lists of tensors.

use crate::buffer::{View, ViewMut};
use crate::dtype::DType;
use crate::error::{GpuError, Result};
use crate::ops::check;

/// Update rules. State buffers are f32 and start at zero.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum OptimRule {
    /// g += wd*w; w -= lr*g. No state. `torch.optim.SGD`
    Sgd {
        /// coupled weight decay
        wd: f64,
    },
    /// g += wd*w; v = g at step 1, else mu*v + (1-damp)*g; w -= lr*(nesterov ? g + mu*v : v). State: v. `torch.optim.SGD`
    Momentum {
        /// momentum
        mu: f64,
        /// dampening
        damp: f64,
        /// coupled weight decay
        wd: f64,
        /// Nesterov's form
        nesterov: bool,
    },
    /// Kingma and Ba (2015), with coupled weight decay. State: m, v. `torch.optim.Adam`
    Adam {
        /// decay of the first moment
        b1: f64,
        /// decay of the second moment
        b2: f64,
        /// added to the root
        eps: f64,
        /// coupled weight decay
        wd: f64,
    },
    /// Loshchilov and Hutter (2019): w *= 1 - lr*wd, then Adam. State: m, v. `torch.optim.AdamW`
    AdamW {
        /// decay of the first moment
        b1: f64,
        /// decay of the second moment
        b2: f64,
        /// added to the root
        eps: f64,
        /// decoupled weight decay
        wd: f64,
    },
}

impl OptimRule {
    /// Names of the state buffers, in the order of [`ParamSlot::state`].
    pub const fn states(&self) -> &'static [&'static str] {
        match self {
            OptimRule::Sgd { .. } => &[],
            OptimRule::Momentum { .. } => &["v"],
            OptimRule::Adam { .. } | OptimRule::AdamW { .. } => &["m", "v"],
        }
    }
}

/// A number given by the host or read from device memory when the kernel runs.
#[derive(Debug, Clone, Copy)]
pub enum Scalar<'a> {
    /// Baked into the launch.
    Host(f64),
    /// One element: f32 for rates and factors, i64 for the step count.
    Device(View<'a>),
}

/// What all tensors of a step share.
#[derive(Debug, Clone, Copy)]
pub struct Step<'a> {
    /// Learning rate.
    pub lr: Scalar<'a>,
    /// Step count, 1 at the first step. 0 is `Invalid` (from the host).
    pub step: Scalar<'a>,
    /// Ascend instead of descend.
    pub maximize: bool,
    /// One f32 that multiplies every gradient first (1 / loss scale, or a clip coefficient).
    pub inv_scale: Option<View<'a>>,
    /// One f32; if it is not 0 nothing is changed.
    pub found_inf: Option<View<'a>>,
}

impl Step<'_> {
    /// Host learning rate and step count.
    pub const fn host(lr: f64, step: u64) -> Self {
        Step {
            lr: Scalar::Host(lr),
            step: Scalar::Host(step as f64),
            maximize: false,
            inv_scale: None,
            found_inf: None,
        }
    }
}

/// One parameter tensor of an optimizer step; all its views are contiguous and of one size.
#[derive(Debug)]
pub struct ParamSlot<'a> {
    /// Parameter, updated in place: f32 (the usual master copy), f16, bf16 or f64.
    pub w: ViewMut<'a>,
    /// Gradient: f32, f16, bf16 or f64. All slots of a call have the same two dtypes.
    pub g: View<'a>,
    /// State in the order of [`OptimRule::states`], f32 (f64 for f64 parameters).
    pub state: [Option<ViewMut<'a>>; 2],
    /// f16 or bf16 copy of the new parameter, written in the same pass.
    pub copy: Option<ViewMut<'a>>,
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

op_family! {
    /// Optimizer steps and clipping. One launch serves a whole list where the device has addresses or the tensors share buffers (an arena),
    /// otherwise one launch per tensor; the bits are the same. Bias corrections are computed in f64. Empty tensors are skipped.
    pub trait OptimizerOps : Optimizer => OPTIMIZER_OPS {
        /// One step of `rule` for every tensor of the list.
        fn optimizer_step(&self, rule: &OptimRule, step: &Step<'_>, params: &mut [ParamSlot<'_>]) -> Result<()>;
        /// Scales all gradients by min(1, max_norm / (total + 1e-6)); `total` (one f32) receives the norm over all of them before
        /// clipping. Does not overflow for large gradients. Without host round trip. Oracle `torch.nn.utils.clip_grad_norm_`.
        fn clip_grad_norm(&self, p: &ClipNorm, grads: &mut [ViewMut<'_>], total: ViewMut<'_>) -> Result<()>;
        /// Clamps every gradient to [-c, c], NaN stays. Oracle `torch.nn.utils.clip_grad_value_`.
        fn clip_grad_value(&self, c: f64, grads: &mut [ViewMut<'_>]) -> Result<()>;
    }
}

fn scalar(op: &'static str, arg: &'static str, s: &Scalar<'_>, dtype: DType) -> Result<()> {
    match s {
        Scalar::Host(_) => Ok(()),
        Scalar::Device(v) => one(op, arg, v, dtype),
    }
}

fn one(op: &'static str, arg: &'static str, v: &View<'_>, dtype: DType) -> Result<()> {
    check::dtype(op, arg, v, dtype)?;
    if v.numel() == 1 { Ok(()) } else { check::shape(op, arg, v, &[1]) }
}

/// Checks of [`OptimizerOps::optimizer_step`].
pub(crate) fn check_step(rule: &OptimRule, step: &Step<'_>, params: &[ParamSlot<'_>]) -> Result<()> {
    const OP: &str = "optimizer_step";
    scalar(OP, "lr", &step.lr, DType::F32)?;
    scalar(OP, "step", &step.step, DType::I64)?;
    if let Scalar::Host(t) = step.step
        && (t.is_nan() || t < 1.0)
    {
        return Err(GpuError::invalid(OP, "step", "a step count of at least 1", format!("{t}")));
    }
    for (arg, v) in [("inv_scale", &step.inv_scale), ("found_inf", &step.found_inf)] {
        if let Some(v) = v {
            one(OP, arg, v, DType::F32)?;
        }
    }
    let mut written: Vec<(&'static str, View<'_>)> = vec![];
    let first = params.first().map(|p| (p.w.dtype(), p.g.dtype(), p.copy.as_ref().map(ViewMut::dtype)));
    for p in params {
        let w = p.w.as_view();
        check::float(OP, "w", &w)?;
        let ok = p.g.dtype() == w.dtype() || (w.dtype() == DType::F32 && p.g.dtype().is_half());
        if !ok {
            let want = format!("dtype {} or, for f32 parameters, f16 or bf16", w.dtype());
            return Err(GpuError::invalid(OP, "g", want, p.g.dtype().name()));
        }
        if first != Some((w.dtype(), p.g.dtype(), p.copy.as_ref().map(ViewMut::dtype))) {
            return Err(GpuError::invalid(OP, "params", "the same dtypes in every slot", w.dtype().name()));
        }
        let mut vectors = vec![("w", w), ("g", p.g)];
        for (i, name) in rule.states().iter().enumerate() {
            let Some(s) = &p.state[i] else {
                return Err(GpuError::invalid(OP, "state", format!("state buffer `{name}`"), "nothing"));
            };
            let v = s.as_view();
            check::dtype(OP, "state", &v, w.dtype().accumulator())?;
            vectors.push(("state", v));
        }
        if let Some(c) = &p.copy {
            let v = c.as_view();
            check::one_of(OP, "copy", &v, &[DType::F16, DType::Bf16])?;
            vectors.push(("copy", v));
        }
        for (arg, v) in &vectors {
            check::contiguous(OP, arg, v)?;
            if v.numel() != w.numel() {
                return Err(GpuError::invalid(
                    OP,
                    arg,
                    format!("{} elements", w.numel()),
                    format!("{}", v.numel()),
                ));
            }
        }
        for (i, (arg, v)) in vectors.iter().enumerate() {
            if vectors[..i].iter().any(|(_, o)| check::overlap(v, o)) {
                return Err(GpuError::invalid(
                    OP,
                    arg,
                    "memory of its own",
                    "overlapping ranges of one buffer",
                ));
            }
        }
        written.push(("w", w));
    }
    distinct(OP, "w", written.iter().map(|(_, v)| v))
}

/// No two of the views share a byte.
fn distinct<'v, 'a: 'v>(
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

/// Checks of [`OptimizerOps::clip_grad_norm`].
pub(crate) fn check_clip_norm(p: &ClipNorm, grads: &[ViewMut<'_>], total: &ViewMut<'_>) -> Result<()> {
    const OP: &str = "clip_grad_norm";
    if p.max_norm.is_nan() || p.max_norm < 0.0 {
        return Err(GpuError::invalid(OP, "max_norm", "a norm not below 0", format!("{}", p.max_norm)));
    }
    if p.p.is_nan() || p.p <= 0.0 {
        return Err(GpuError::invalid(OP, "p", "a degree above 0", format!("{}", p.p)));
    }
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
