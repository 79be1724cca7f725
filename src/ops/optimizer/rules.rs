//! Update rules of optimizers, their state, and the ranges of their numbers.

use crate::error::{GpuError, Result};

/// State buffers that a rule can have.
pub const STATES: usize = 4;

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
    /// Adaptive Nesterov momentum (Xie et al., 2022): d = g - prev (0 at step 1); m, v, n = means of g, d and (g + b2*d)^2, divided by 1 - b^t;
    /// w = (w - lr*(m + b2*v) / (sqrt(n) + eps)) / (1 + lr*wd). State: m, v, n, prev. Defaults of the paper: 0.98, 0.92, 0.99, 1e-8.
    Adan {
        /// decay of the mean of g
        b1: f64,
        /// decay of the mean of differences
        b2: f64,
        /// decay of the mean of squares
        b3: f64,
        /// added to the root
        eps: f64,
        /// proximal weight decay
        wd: f64,
    },
    /// Clipped second-order steps (Liu et al., 2023): m = b1*m + (1-b1)*g; w = w*(1 - lr*wd) - lr*clamp(m / max(gamma*h, eps), -1, 1).
    /// [`OptimRule::SophiaCurvature`] renews h every few steps. State: m, h.
    Sophia {
        /// decay of the momentum
        b1: f64,
        /// factor of the curvature
        gamma: f64,
        /// smallest denominator
        eps: f64,
        /// decoupled weight decay
        wd: f64,
    },
    /// The other half of [`OptimRule::Sophia`]: h = b2*h + (1-b2)*batch*g^2, where g is the gradient of the mean loss against labels that were
    /// drawn from the model (Gauss-Newton-Bartlett). w and m stay. State: m, h.
    SophiaCurvature {
        /// decay of the curvature
        b2: f64,
        /// number of samples in the mean
        batch: f64,
    },
    /// A rule that keeps numbers about all tensors between steps; for [`adaptive_step`](super::AdaptiveOptimizerOps::adaptive_step).
    Adaptive(AdaptiveRule),
}

/// Rules that keep numbers between steps, in device memory: rates that they find themselves, sums of weights. That memory holds f32 (f64 for f64
/// parameters) and counts for nothing at step 1.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum AdaptiveRule {
    /// Descent on the rate too (Baydin et al., 2018): lr += rate * <g, prev>, the product over all tensors; w -= lr*g. The step's learning rate
    /// is where it starts; later ones are not read. Memory: lr. State: prev.
    HypergradientSgd {
        /// rate of the learning rate
        rate: f64,
    },
    /// Descent without a schedule (Defazio et al., 2024): w is y = (1-b)*z + b*x, where gradients are taken. z -= lr*(g + wd*y);
    /// x += c*(z - x) with c = lr^2 / (sum of lr^2 so far). z starts at w; x = (y - (1-b)*z) / b is the point to evaluate.
    /// Memory: sum. State: z.
    ScheduleFreeSgd {
        /// share of x in y, in (0, 1]
        b: f64,
        /// weight decay at y
        wd: f64,
    },
    /// The same with steps of Adam: g / (sqrt(v / (1 - b2^t)) + eps) in place of g. Memory: sum. State: z, v.
    ScheduleFreeAdamW {
        /// share of x in y, in (0, 1]
        b: f64,
        /// decay of the second moment
        b2: f64,
        /// added to the root
        eps: f64,
        /// weight decay at y
        wd: f64,
    },
    /// D-Adaptation (Defazio and Mishchenko, 2023) of descent: e = lr*d / |g at step 1|; r += e*<g, s>; s += e*g;
    /// w = mu*w + (1-mu)*(w0 - s); then d = max(d, min(2*r / |s|, growth*d)). Norms and products over all tensors; lr is a factor, usually 1.
    /// Memory: d, r, norm. State: s, start (w0).
    DAdaptSgd {
        /// where d starts
        d0: f64,
        /// momentum
        mu: f64,
        /// coupled weight decay
        wd: f64,
        /// largest factor of d in a step; may be infinite
        growth: f64,
    },
    /// D-Adaptation of Adam: e = lr*d; a = <g, s / (sqrt(v) + eps)>; m = b1*m + (1-b1)*e*g; v = b2*v + (1-b2)*g^2;
    /// s = q*s + (1-q)*e*g with q = sqrt(b2); w = w*(1 - e*wd) - m / (sqrt(v) + eps); then r = q*r + (1-q)*e*a and
    /// d = max(d, min(r / ((1-q)*|s|_1), growth*d)). Memory: d, r. State: m, v, s.
    DAdaptAdam {
        /// decay of the first moment
        b1: f64,
        /// decay of the second moment
        b2: f64,
        /// added to the root
        eps: f64,
        /// decoupled weight decay
        wd: f64,
        /// where d starts
        d0: f64,
        /// largest factor of d in a step; may be infinite
        growth: f64,
    },
    /// Prodigy (Mishchenko and Defazio, 2023), Adam's form: m = b1*m + (1-b1)*d*g; v = b2*v + (1-b2)*d^2*g^2; r = q*r + (1-q)*lr*d^2*<g, w0 - w>;
    /// s = q*s + (1-q)*lr*d^2*g with q = sqrt(b2); w = w*(1 - lr*d*wd) - lr*d*m / (sqrt(v) + d*eps), all with the d of the step before; then
    /// d = max(d, min(coef*r / |s|_1, growth*d)). lr is a factor, usually 1. Memory: d, r. State: m, v, s, start (w0).
    Prodigy {
        /// decay of the first moment
        b1: f64,
        /// decay of the second moment
        b2: f64,
        /// added to the root
        eps: f64,
        /// decoupled weight decay
        wd: f64,
        /// where d starts
        d0: f64,
        /// factor of the estimate
        coef: f64,
        /// largest factor of d in a step; may be infinite
        growth: f64,
    },
}

impl AdaptiveRule {
    /// Names of the state buffers, in the order of [`ParamSlot::state`](super::ParamSlot::state).
    pub const fn states(&self) -> &'static [&'static str] {
        match self {
            AdaptiveRule::HypergradientSgd { .. } => &["prev"],
            AdaptiveRule::ScheduleFreeSgd { .. } => &["z"],
            AdaptiveRule::ScheduleFreeAdamW { .. } => &["z", "v"],
            AdaptiveRule::DAdaptSgd { .. } => &["s", "start"],
            AdaptiveRule::DAdaptAdam { .. } => &["m", "v", "s"],
            AdaptiveRule::Prodigy { .. } => &["m", "v", "s", "start"],
        }
    }

    /// Names of the numbers that are kept between steps.
    pub const fn memory(&self) -> &'static [&'static str] {
        match self {
            AdaptiveRule::HypergradientSgd { .. } => &["lr"],
            AdaptiveRule::ScheduleFreeSgd { .. } | AdaptiveRule::ScheduleFreeAdamW { .. } => &["sum"],
            AdaptiveRule::DAdaptSgd { .. } => &["d", "r", "norm"],
            AdaptiveRule::DAdaptAdam { .. } | AdaptiveRule::Prodigy { .. } => &["d", "r"],
        }
    }
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
    /// Names of the state buffers, in the order of [`ParamSlot::state`](super::ParamSlot::state).
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
            OptimRule::Adan { .. } => &["m", "v", "n", "prev"],
            OptimRule::Sophia { .. } | OptimRule::SophiaCurvature { .. } => &["m", "h"],
            OptimRule::Adaptive(rule) => rule.states(),
        }
    }
}

/// Numbers of a rule that no step can use. PyTorch's ranges.
pub(crate) fn check_rule(op: &'static str, rule: &OptimRule) -> Result<()> {
    let decay = |arg: &'static str, x: f64| match (0.0..1.0).contains(&x) {
        true => Ok(()),
        false => Err(GpuError::invalid(op, arg, "a decay in [0, 1)", format!("{x}"))),
    };
    let least = |arg: &'static str, x: f64| match x >= 0.0 {
        true => Ok(()),
        false => Err(GpuError::invalid(op, arg, "a number not below 0", format!("{x}"))),
    };
    let adaptive = |rule: AdaptiveRule| {
        let start = |d0: f64, growth: f64| {
            let ok = d0 > 0.0 && d0.is_finite() && growth > 1.0;
            let got = || format!("{d0}, {growth}");
            if ok { Ok(()) } else { Err(GpuError::invalid(op, "d0", "d0 > 0, growth > 1", got())) }
        };
        let share = |b: f64| match b > 0.0 && b <= 1.0 {
            true => Ok(()),
            false => Err(GpuError::invalid(op, "b", "a share in (0, 1]", format!("{b}"))),
        };
        match rule {
            AdaptiveRule::HypergradientSgd { rate } => least("rate", rate),
            AdaptiveRule::ScheduleFreeSgd { b, .. } => share(b),
            AdaptiveRule::ScheduleFreeAdamW { b, b2, eps, .. } => {
                share(b).and(decay("b2", b2)).and(least("eps", eps))
            }
            AdaptiveRule::DAdaptSgd { d0, mu, growth, .. } => decay("mu", mu).and(start(d0, growth)),
            AdaptiveRule::DAdaptAdam { b1, b2, eps, d0, growth, .. } => {
                decay("b1", b1).and(decay("b2", b2)).and(least("eps", eps)).and(start(d0, growth))
            }
            AdaptiveRule::Prodigy { b1, b2, eps, d0, coef, growth, .. } => decay("b1", b1)
                .and(decay("b2", b2))
                .and(least("eps", eps))
                .and(least("coef", coef))
                .and(start(d0, growth)),
        }
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
        OptimRule::Adan { b1, b2, b3, eps, .. } => {
            decay("b1", b1).and(decay("b2", b2)).and(decay("b3", b3)).and(least("eps", eps))
        }
        OptimRule::Sophia { b1, gamma, eps, .. } => {
            decay("b1", b1).and(least("gamma", gamma)).and(least("eps", eps))
        }
        OptimRule::SophiaCurvature { b2, batch } => decay("b2", b2).and(least("batch", batch)),
        OptimRule::Adaptive(rule) => adaptive(rule),
        OptimRule::Proximal(Prox::ElasticNet { l1, l2 }) => least("l1", l1).and(least("l2", l2)),
        OptimRule::Proximal(Prox::Box { lo, hi }) => match lo <= hi {
            true => Ok(()),
            false => Err(GpuError::invalid(op, "box", "lo <= hi", format!("[{lo}, {hi}]"))),
        },
    }
}

impl OptimRule {
    /// What a step of this rate and count (from 1) works with, for [`Step::numbers`](super::Step::numbers): rate, count, three bias corrections, two
    /// factors of the rule and a 0; what a rule has not is 0 or 1. Written to device memory in the type of the states, they give the bits of a step that
    /// is given rate and count by value.
    pub fn step_numbers(&self, lr: f64, step: u64) -> [f64; super::STEP_NUMBERS] {
        crate::engine::step_numbers(self, lr, step as f64)
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
