//! Optimizer steps and gradient clipping over lists of tensors.

use crate::buffer::{View, ViewMut};
use crate::error::Result;

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
