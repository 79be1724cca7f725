//! Constructors of the rules, with PyTorch's constants where PyTorch has the rule and the paper's otherwise. Numbers are checked by the step.

use super::{AdaptiveRule, OptimRule, Prox};

impl OptimRule {
    /// Gradient descent, `torch.optim.SGD`.
    pub const fn sgd() -> Self {
        OptimRule::Sgd { wd: 0.0 }
    }

    /// Gradient descent with momentum, `torch.optim.SGD(momentum=mu)`.
    pub const fn momentum(mu: f64) -> Self {
        OptimRule::Momentum { mu, damp: 0.0, wd: 0.0, nesterov: false }
    }

    /// Nesterov's accelerated descent, `torch.optim.SGD(momentum=mu, nesterov=True)`.
    pub const fn nesterov(mu: f64) -> Self {
        OptimRule::Momentum { mu, damp: 0.0, wd: 0.0, nesterov: true }
    }

    /// Adam (Kingma and Ba, 2015), `torch.optim.Adam`.
    pub const fn adam() -> Self {
        OptimRule::Adam { b1: 0.9, b2: 0.999, eps: 1e-8, wd: 0.0 }
    }

    /// AdamW (Loshchilov and Hutter, 2019), `torch.optim.AdamW` (whose decay is 0.01).
    pub const fn adamw(wd: f64) -> Self {
        OptimRule::AdamW { b1: 0.9, b2: 0.999, eps: 1e-8, wd }
    }

    /// Adam whose second moment never falls (Reddi et al., 2018), `torch.optim.Adam(amsgrad=True)`.
    pub const fn amsgrad() -> Self {
        OptimRule::AmsGrad { b1: 0.9, b2: 0.999, eps: 1e-8, wd: 0.0, decoupled: false }
    }

    /// Running mean of squares, `torch.optim.RMSprop`.
    pub const fn rmsprop() -> Self {
        OptimRule::RmsProp { a: 0.99, eps: 1e-8, wd: 0.0, mu: 0.0, centered: false }
    }

    /// Adagrad (Duchi et al., 2011), `torch.optim.Adagrad`.
    pub const fn adagrad() -> Self {
        OptimRule::Adagrad { lr_decay: 0.0, eps: 1e-10, wd: 0.0 }
    }

    /// Adadelta (Zeiler, 2012), `torch.optim.Adadelta`.
    pub const fn adadelta() -> Self {
        OptimRule::Adadelta { rho: 0.9, eps: 1e-6, wd: 0.0 }
    }

    /// Adam with the infinity norm, `torch.optim.Adamax`.
    pub const fn adamax() -> Self {
        OptimRule::AdaMax { b1: 0.9, b2: 0.999, eps: 1e-8, wd: 0.0 }
    }

    /// Adam with Nesterov momentum (Dozat, 2016), `torch.optim.NAdam`.
    pub const fn nadam() -> Self {
        OptimRule::Nadam { b1: 0.9, b2: 0.999, eps: 1e-8, wd: 0.0, psi: Some(0.004), decoupled: false }
    }

    /// Adam with a rectified rate (Liu et al., 2020), `torch.optim.RAdam`.
    pub const fn radam() -> Self {
        OptimRule::RAdam { b1: 0.9, b2: 0.999, eps: 1e-8, wd: 0.0, decoupled: false }
    }

    /// Averaged descent, `torch.optim.ASGD`; the mean is the state `ax`.
    pub const fn asgd() -> Self {
        OptimRule::Asgd { lambd: 1e-4, alpha: 0.75, t0: 1e6, wd: 0.0 }
    }

    /// Resilient backpropagation for full batches (Riedmiller and Braun, 1993), `torch.optim.Rprop`; `lr` is the first step.
    pub const fn rprop() -> Self {
        OptimRule::Rprop { up: 1.2, down: 0.5, least: 1e-6, most: 50.0 }
    }

    /// Sign of a momentum (Chen et al., 2023) with decoupled weight decay.
    pub const fn lion(wd: f64) -> Self {
        OptimRule::Lion { b1: 0.9, b2: 0.99, wd }
    }

    /// Follow the regularised leader (McMahan et al., 2013) with penalties; starts from the given weights.
    pub const fn ftrl(l1: f64, l2: f64) -> Self {
        OptimRule::Ftrl { beta: 1.0, l1, l2, from_w: true }
    }

    /// Layer-wise rates for large batches (You et al., 2017).
    pub const fn lars(mu: f64, wd: f64) -> Self {
        OptimRule::Lars { mu, wd, eta: 1e-3, eps: 1e-8, nesterov: false, adapt: true }
    }

    /// Layer-wise Adam for large batches (You et al., 2020).
    pub const fn lamb(wd: f64) -> Self {
        OptimRule::Lamb { b1: 0.9, b2: 0.999, eps: 1e-6, wd, bias_correction: true, max_norm: 10.0, adapt: true, }
    }

    /// Adaptive Nesterov momentum (Xie et al., 2022) with proximal weight decay.
    pub const fn adan(wd: f64) -> Self {
        OptimRule::Adan { b1: 0.98, b2: 0.92, b3: 0.99, eps: 1e-8, wd }
    }

    /// Clipped second-order steps (Liu et al., 2023).
    pub const fn sophia(wd: f64) -> Self {
        OptimRule::Sophia { b1: 0.965, gamma: 0.01, eps: 1e-12, wd }
    }

    /// Descent on the learning rate too (Baydin et al., 2018): `rate` is the rate of the rate, `lr` where it starts.
    pub const fn hypergradient(rate: f64) -> Self {
        OptimRule::Adaptive(AdaptiveRule::HypergradientSgd { rate })
    }

    /// Descent without a schedule (Defazio et al., 2024).
    pub const fn schedule_free_sgd() -> Self {
        OptimRule::Adaptive(AdaptiveRule::ScheduleFreeSgd { b: 0.9, wd: 0.0 })
    }

    /// AdamW without a schedule (Defazio et al., 2024).
    pub const fn schedule_free_adamw(wd: f64) -> Self {
        OptimRule::Adaptive(AdaptiveRule::ScheduleFreeAdamW { b: 0.9, b2: 0.999, eps: 1e-8, wd })
    }

    /// Descent that finds its rate (Defazio and Mishchenko, 2023); `lr` is a factor, usually 1. Each device and dtype finds its own.
    pub const fn dadapt_sgd(mu: f64) -> Self {
        OptimRule::Adaptive(AdaptiveRule::DAdaptSgd { d0: 1e-6, mu, wd: 0.0, growth: f64::INFINITY })
    }

    /// Adam that finds its rate (Defazio and Mishchenko, 2023); `lr` is a factor, usually 1. Each device and dtype finds its own.
    pub const fn dadapt_adam(wd: f64) -> Self {
        OptimRule::Adaptive(AdaptiveRule::DAdaptAdam { b1: 0.9, b2: 0.999, eps: 1e-8, wd, d0: 1e-6, growth: f64::INFINITY, })
    }

    /// Adam that finds its rate (Mishchenko and Defazio, 2023); `lr` is a factor, usually 1. Each device and dtype finds its own.
    pub const fn prodigy(wd: f64) -> Self {
        OptimRule::Adaptive(AdaptiveRule::Prodigy { b1: 0.9, b2: 0.999, eps: 1e-8, wd, d0: 1e-6, coef: 1.0, growth: f64::INFINITY, })
    }

    /// Proximal gradient steps of an elastic net l1*|w| + l2/2*w^2 (soft thresholding for l2 = 0).
    pub const fn proximal(l1: f64, l2: f64) -> Self {
        OptimRule::Proximal(Prox::ElasticNet { l1, l2 })
    }

    /// Projected descent: weights stay within [lo, hi].
    pub const fn projected(lo: f64, hi: f64) -> Self {
        OptimRule::Proximal(Prox::Box { lo, hi })
    }
}
