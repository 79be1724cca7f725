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
    /// Hinton's running mean of squares: s = a*s + (1-a)*g^2; w -= lr*g / (sqrt(s - centre^2) + eps), the quotient through a velocity where
    /// mu > 0. State: s, then ga (running mean of g) if centered, then b (velocity) if mu > 0. `torch.optim.RMSprop`
    RmsProp {
        /// decay of the running means
        a: f64,
        /// added to the root
        eps: f64,
        /// coupled weight decay
        wd: f64,
        /// momentum; 0 for none
        mu: f64,
        /// subtract the square of the running mean
        centered: bool,
    },
    /// Duchi et al. (2011): s += g^2; w -= lr / (1 + (t-1)*lr_decay) * g / (sqrt(s) + eps). State: s. `torch.optim.Adagrad`
    Adagrad {
        /// decay of the learning rate
        lr_decay: f64,
        /// added to the root
        eps: f64,
        /// coupled weight decay
        wd: f64,
    },
    /// Zeiler (2012). State: s (mean of g^2), x (mean of squared steps). `torch.optim.Adadelta`
    Adadelta {
        /// decay of both means
        rho: f64,
        /// added under both roots
        eps: f64,
        /// coupled weight decay
        wd: f64,
    },
    /// Adam with the infinity norm: u = max(b2*u, |g| + eps). State: m, u. `torch.optim.Adamax`
    AdaMax {
        /// decay of the first moment
        b1: f64,
        /// decay of the norm
        b2: f64,
        /// added to |g|
        eps: f64,
        /// coupled weight decay
        wd: f64,
    },
    /// Adam whose second moment never falls (Reddi et al., 2018). State: m, v, x (largest v). `torch.optim.Adam(amsgrad=True)`
    AmsGrad {
        /// decay of the first moment
        b1: f64,
        /// decay of the second moment
        b2: f64,
        /// added to the root
        eps: f64,
        /// weight decay
        wd: f64,
        /// decay the weights instead of the gradient (`AdamW(amsgrad=True)`)
        decoupled: bool,
    },
    /// Adam with Nesterov momentum (Dozat, 2016), mu_t = b1*(1 - 0.96^(t*psi)/2); the product of the mu is a function of the step count.
    /// State: m, v. `torch.optim.NAdam`
    Nadam {
        /// decay of the first moment
        b1: f64,
        /// decay of the second moment
        b2: f64,
        /// added to the root
        eps: f64,
        /// weight decay
        wd: f64,
        /// momentum decay (PyTorch: 0.004); `None` keeps mu_t = b1
        psi: Option<f64>,
        /// decay the weights instead of the gradient
        decoupled: bool,
    },
    /// Adam with a rectified rate (Liu et al., 2020): r = r_inf - 2t*b2^t/(1 - b2^t), r_inf = 2/(1-b2) - 1; where r > 5 the step of Adam times
    /// sqrt((r-4)(r-2)r_inf / ((r_inf-4)(r_inf-2)r)), else lr*mhat. State: m, v. `torch.optim.RAdam`
    RAdam {
        /// decay of the first moment
        b1: f64,
        /// decay of the second moment
        b2: f64,
        /// added to the root
        eps: f64,
        /// weight decay
        wd: f64,
        /// decay the weights instead of the gradient
        decoupled: bool,
    },
    /// Averaged descent (Polyak and Juditsky, 1992): eta = lr / (1 + lambd*lr*(t-1))^alpha; w = w*(1 - lambd*eta) - eta*g; from step t0 + 1 on the
    /// mean of the parameters since then. State: ax (the mean; the last parameter before). `torch.optim.ASGD`
    Asgd {
        /// decay of the parameters
        lambd: f64,
        /// exponent of the rate
        alpha: f64,
        /// steps before the mean
        t0: f64,
        /// coupled weight decay
        wd: f64,
    },
    /// Resilient backpropagation for full batches (Riedmiller and Braun, 1993): each element has a step of its own, times `up` while the sign of
    /// g stays, times `down` and g = 0 where it changes; w -= sign(g)*step. The learning rate is the first step. State: prev, size.
    /// `torch.optim.Rprop`
    Rprop {
        /// factor while the sign stays, above 1
        up: f64,
        /// factor where it changes, in (0, 1)
        down: f64,
        /// smallest step
        least: f64,
        /// largest step
        most: f64,
    },
    /// Chen et al. (2023): w = w*(1 - lr*wd) - lr*sign(b1*m + (1-b1)*g), m = b2*m + (1-b2)*g. sign(0) = sign(NaN) = 0. State: m.
    Lion {
        /// weight of the momentum in the step
        b1: f64,
        /// decay of the momentum
        b2: f64,
        /// decoupled weight decay
        wd: f64,
    },
    /// Follow the regularised leader (McMahan et al., 2013), per coordinate; the learning rate of the step is its alpha. State: z, n.
    Ftrl {
        /// added to the root of n
        beta: f64,
        /// L1 penalty
        l1: f64,
        /// L2 penalty
        l2: f64,
        /// at step 1, start from the given w instead of from w = 0
        from_w: bool,
    },
    /// Layer-wise rates (You et al., 2017): q = eta*|w| / (|g| + wd*|w| + eps) per tensor (1 if a norm is 0); v = mu*v + lr*q*(g + wd*w);
    /// w -= v. State: v.
    Lars {
        /// momentum
        mu: f64,
        /// weight decay
        wd: f64,
        /// trust coefficient
        eta: f64,
        /// added to the denominator
        eps: f64,
        /// Nesterov's form
        nesterov: bool,
        /// false for biases and parameters of normalisations: q = 1 and no decay
        adapt: bool,
    },
    /// Layer-wise Adam (You et al., 2020): u = mhat / (sqrt(vhat) + eps) + wd*w; r = min(|w|, max_norm) / |u| per tensor (1 if a norm is 0);
    /// w -= lr*r*u. State: m, v.
    Lamb {
        /// decay of the first moment
        b1: f64,
        /// decay of the second moment
        b2: f64,
        /// added to the root
        eps: f64,
        /// weight decay
        wd: f64,
        /// divide the moments by 1 - b^t
        bias_correction: bool,
        /// bound of |w| in the ratio; infinite for none
        max_norm: f64,
        /// false for biases and parameters of normalisations: r = 1 and no decay
        adapt: bool,
    },
    /// Proximal gradient step: w = prox(w - lr*g) of lr times a penalty. No state.
    Proximal(Prox),
}

/// Penalties with a proximal operator per element. NaN stays NaN.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum Prox {
    /// l1*|w| + l2/2*w^2 (elastic net; either may be 0): sign(v)*max(|v| - lr*l1, 0) / (1 + lr*l2)
    ElasticNet {
        /// weight of |w|
        l1: f64,
        /// weight of w^2 / 2
        l2: f64,
    },
    /// lo <= w <= hi (non-negative: 0 and infinity)
    Box {
        /// lower bound
        lo: f64,
        /// upper bound
        hi: f64,
    },
}

impl Prox {
    /// l*|w|
    pub const fn l1(l: f64) -> Self {
        Prox::ElasticNet { l1: l, l2: 0.0 }
    }

    /// l/2*w^2
    pub const fn l2(l: f64) -> Self {
        Prox::ElasticNet { l1: 0.0, l2: l }
    }

    /// w >= 0
    pub const fn non_negative() -> Self {
        Prox::Box { lo: 0.0, hi: f64::INFINITY }
    }
}

impl OptimRule {
    /// Names of the state buffers, in the order of [`ParamSlot::state`].
    pub const fn states(&self) -> &'static [&'static str] {
        match self {
            OptimRule::Sgd { .. } | OptimRule::Proximal(_) => &[],
            OptimRule::Momentum { .. } | OptimRule::Lars { .. } => &["v"],
            OptimRule::Adam { .. }
            | OptimRule::AdamW { .. }
            | OptimRule::Nadam { .. }
            | OptimRule::RAdam { .. }
            | OptimRule::Lamb { .. } => &["m", "v"],
            OptimRule::Asgd { .. } => &["ax"],
            OptimRule::Rprop { .. } => &["prev", "size"],
            OptimRule::RmsProp { mu, centered, .. } => match (*centered, *mu > 0.0) {
                (false, false) => &["s"],
                (false, true) => &["s", "b"],
                (true, false) => &["s", "ga"],
                (true, true) => &["s", "ga", "b"],
            },
            OptimRule::Adagrad { .. } => &["s"],
            OptimRule::Adadelta { .. } => &["s", "x"],
            OptimRule::AdaMax { .. } => &["m", "u"],
            OptimRule::AmsGrad { .. } => &["m", "v", "x"],
            OptimRule::Lion { .. } => &["m"],
            OptimRule::Ftrl { .. } => &["z", "n"],
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
    pub state: [Option<ViewMut<'a>>; 3],
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

fn one(op: &'static str, arg: &'static str, v: &View<'_>, dtype: DType) -> Result<()> {
    check::dtype(op, arg, v, dtype)?;
    if v.numel() == 1 { Ok(()) } else { check::shape(op, arg, v, &[1]) }
}

/// Numbers of a rule that no step can use. PyTorch's ranges.
fn check_rule(op: &'static str, rule: &OptimRule) -> Result<()> {
    let decay = |arg: &'static str, x: f64| match (0.0..1.0).contains(&x) {
        true => Ok(()),
        false => Err(GpuError::invalid(op, arg, "a decay in [0, 1)", format!("{x}"))),
    };
    let least = |arg: &'static str, x: f64| match x >= 0.0 {
        true => Ok(()),
        false => Err(GpuError::invalid(op, arg, "a number not below 0", format!("{x}"))),
    };
    match *rule {
        OptimRule::Sgd { .. } | OptimRule::Momentum { .. } => Ok(()),
        OptimRule::Adam { b1, b2, eps, .. }
        | OptimRule::AdamW { b1, b2, eps, .. }
        | OptimRule::AdaMax { b1, b2, eps, .. }
        | OptimRule::RAdam { b1, b2, eps, .. }
        | OptimRule::AmsGrad { b1, b2, eps, .. } => {
            decay("b1", b1).and(decay("b2", b2)).and(least("eps", eps))
        }
        OptimRule::Nadam { b1, b2, eps, psi, .. } => {
            decay("b1", b1).and(decay("b2", b2)).and(least("eps", eps)).and(least("psi", psi.unwrap_or(0.0)))
        }
        OptimRule::RmsProp { a, eps, mu, .. } => decay("a", a).and(least("eps", eps)).and(least("mu", mu)),
        OptimRule::Adagrad { lr_decay, eps, .. } => least("lr_decay", lr_decay).and(least("eps", eps)),
        OptimRule::Adadelta { rho, eps, .. } => decay("rho", rho).and(least("eps", eps)),
        OptimRule::Asgd { lambd, alpha, t0, .. } => {
            least("lambd", lambd).and(least("alpha", alpha)).and(least("t0", t0))
        }
        OptimRule::Rprop { up, down, least, most } => {
            let ok = up > 1.0 && (0.0..1.0).contains(&down) && down > 0.0 && least >= 0.0 && least <= most;
            let got = || format!("{up}, {down}, [{least}, {most}]");
            let want = "up > 1, down in (0, 1), 0 <= least <= most";
            if ok { Ok(()) } else { Err(GpuError::invalid(op, "rule", want, got())) }
        }
        OptimRule::Lion { b1, b2, .. } => decay("b1", b1).and(decay("b2", b2)),
        OptimRule::Ftrl { beta, l1, l2, .. } => least("beta", beta).and(least("l1", l1)).and(least("l2", l2)),
        OptimRule::Lars { mu, eta, eps, .. } => least("mu", mu).and(least("eta", eta)).and(least("eps", eps)),
        OptimRule::Lamb { b1, b2, eps, max_norm, .. } => {
            decay("b1", b1).and(decay("b2", b2)).and(least("eps", eps)).and(least("max_norm", max_norm))
        }
        OptimRule::Proximal(Prox::ElasticNet { l1, l2 }) => least("l1", l1).and(least("l2", l2)),
        OptimRule::Proximal(Prox::Box { lo, hi }) => match lo <= hi {
            true => Ok(()),
            false => Err(GpuError::invalid(op, "box", "lo <= hi", format!("[{lo}, {hi}]"))),
        },
    }
}

/// Factor of Adam's step in RAdam at step t; `None` where the variance is not tractable yet.
pub(crate) fn radam_factor(b2: f64, t: f64) -> Option<f64> {
    let most = 2.0 / (1.0 - b2) - 1.0;
    let x = b2.powf(t);
    let r = most - 2.0 * t * x / (1.0 - x);
    (r > 5.0).then(|| ((r - 4.0) * (r - 2.0) * most / ((most - 4.0) * (most - 2.0) * r)).sqrt())
}

/// Factors of g and m in a step of NAdam: (1 - mu_t) / (1 - P_t) and mu_{t+1} / (1 - P_t mu_{t+1}), P_t the product of mu_1 to mu_t.
pub(crate) fn nadam_factors(b1: f64, psi: Option<f64>, t: f64) -> (f64, f64) {
    let mu = |i: f64| psi.map_or(b1, |psi| b1 * (1.0 - 0.5 * 0.96f64.powf(i * psi)));
    let (mut product, mut i) = (1.0, 1.0);
    // Below 1e-20 the product no longer shows beside 1.
    while i <= t && product > 1e-20 {
        product *= mu(i);
        i += 1.0;
    }
    ((1.0 - mu(t)) / (1.0 - product), mu(t + 1.0) / (1.0 - product * mu(t + 1.0)))
}

/// Checks of [`OptimizerOps::optimizer_step`].
pub(crate) fn check_step(rule: &OptimRule, step: &Step<'_>, params: &[ParamSlot<'_>]) -> Result<()> {
    const OP: &str = "optimizer_step";
    check_rule(OP, rule)?;
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

/// Checks of [`OptimizerOps::update_loss_scale`].
pub(crate) fn check_loss_scale(p: &LossScale, io: &LossScaleState<'_>) -> Result<()> {
    const OP: &str = "update_loss_scale";
    let bad =
        |arg: &'static str, want: &'static str, x: f64| Err(GpuError::invalid(OP, arg, want, format!("{x}")));
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
    let all = [
        ("scale", Some(&io.scale), DType::F32),
        ("good", Some(&io.good), DType::I64),
        ("found_inf", Some(&io.found_inf), DType::F32),
        ("inv_scale", io.inv_scale.as_ref(), DType::F32),
        ("step", io.step.as_ref(), DType::I64),
    ];
    let mut views = vec![];
    for (arg, v, dtype) in all {
        let Some(v) = v else { continue };
        one(OP, arg, &v.as_view(), dtype)?;
        views.push(v.as_view());
    }
    distinct(OP, "scale", views.iter())
}
