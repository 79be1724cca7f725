//! Constructors for every rule, with PyTorch's constants where PyTorch has the rule and the paper's otherwise.

use trefoil::ops::optimizer::{AdaptiveRule, OptimRule, Prox};

use super::{Group, Optimizer};
use crate::core::error::Result;
use crate::module::Layer;

/// Adds a constructor of all parameters of a model per rule.
macro_rules! constructors {
    ($($(#[$doc:meta])* $name:ident($($arg:ident),*) => $rule:expr;)*) => {
        impl Optimizer {$(
            $(#[$doc])*
            #[doc = "\n\nErrors: as [`Optimizer::new`]."]
            pub fn $name(model: &dyn Layer, lr: f64 $(, $arg: f64)*) -> Result<Self> {
                Optimizer::new(model, $rule, lr)
            }
        )*}
    };
}

constructors! {
    /// Gradient descent, `torch.optim.SGD`.
    sgd() => OptimRule::Sgd { wd: 0.0 };
    /// Gradient descent with momentum, `torch.optim.SGD(momentum=mu)`.
    momentum(mu) => OptimRule::Momentum { mu, damp: 0.0, wd: 0.0, nesterov: false };
    /// Nesterov's accelerated descent, `torch.optim.SGD(momentum=mu, nesterov=True)`.
    nesterov(mu) => OptimRule::Momentum { mu, damp: 0.0, wd: 0.0, nesterov: true };
    /// Adam (Kingma and Ba, 2015), `torch.optim.Adam`.
    adam() => OptimRule::Adam { b1: 0.9, b2: 0.999, eps: 1e-8, wd: 0.0 };
    /// AdamW (Loshchilov and Hutter, 2019), `torch.optim.AdamW` (whose decay is 0.01).
    adamw(wd) => OptimRule::AdamW { b1: 0.9, b2: 0.999, eps: 1e-8, wd };
    /// Adam whose second moment never falls (Reddi et al., 2018), `torch.optim.Adam(amsgrad=True)`.
    amsgrad() => OptimRule::AmsGrad { b1: 0.9, b2: 0.999, eps: 1e-8, wd: 0.0, decoupled: false };
    /// Running mean of squares, `torch.optim.RMSprop`.
    rmsprop() => OptimRule::RmsProp { a: 0.99, eps: 1e-8, wd: 0.0, mu: 0.0, centered: false };
    /// Adagrad (Duchi et al., 2011), `torch.optim.Adagrad`.
    adagrad() => OptimRule::Adagrad { lr_decay: 0.0, eps: 1e-10, wd: 0.0 };
    /// Adadelta (Zeiler, 2012), `torch.optim.Adadelta`.
    adadelta() => OptimRule::Adadelta { rho: 0.9, eps: 1e-6, wd: 0.0 };
    /// Adam with the infinity norm, `torch.optim.Adamax`.
    adamax() => OptimRule::AdaMax { b1: 0.9, b2: 0.999, eps: 1e-8, wd: 0.0 };
    /// Adam with Nesterov momentum (Dozat, 2016), `torch.optim.NAdam`.
    nadam() => OptimRule::Nadam { b1: 0.9, b2: 0.999, eps: 1e-8, wd: 0.0, psi: Some(0.004), decoupled: false };
    /// Adam with a rectified rate (Liu et al., 2020), `torch.optim.RAdam`.
    radam() => OptimRule::RAdam { b1: 0.9, b2: 0.999, eps: 1e-8, wd: 0.0, decoupled: false };
    /// Averaged descent, `torch.optim.ASGD`; the mean is the state `ax`.
    asgd() => OptimRule::Asgd { lambd: 1e-4, alpha: 0.75, t0: 1e6, wd: 0.0 };
    /// Resilient backpropagation for full batches (Riedmiller and Braun, 1993), `torch.optim.Rprop`; `lr` is the first step.
    rprop() => OptimRule::Rprop { up: 1.2, down: 0.5, least: 1e-6, most: 50.0 };
    /// Sign of a momentum (Chen et al., 2023) with decoupled weight decay.
    lion(wd) => OptimRule::Lion { b1: 0.9, b2: 0.99, wd };
    /// Follow the regularised leader (McMahan et al., 2013) with penalties; starts from the given weights.
    ftrl(l1, l2) => OptimRule::Ftrl { beta: 1.0, l1, l2, from_w: true };
    /// Layer-wise rates for large batches (You et al., 2017). See [`Group::layer_wise`] for biases and normalisations.
    lars(mu, wd) => OptimRule::Lars { mu, wd, eta: 1e-3, eps: 1e-8, nesterov: false, adapt: true };
    /// Layer-wise Adam for large batches (You et al., 2020). See [`Group::layer_wise`] for biases and normalisations.
    lamb(wd) => OptimRule::Lamb {
        b1: 0.9, b2: 0.999, eps: 1e-6, wd, bias_correction: true, max_norm: 10.0, adapt: true,
    };
    /// Adaptive Nesterov momentum (Xie et al., 2022) with proximal weight decay.
    adan(wd) => OptimRule::Adan { b1: 0.98, b2: 0.92, b3: 0.99, eps: 1e-8, wd };
    /// Clipped second-order steps (Liu et al., 2023); see [`Optimizer::renew_curvature`].
    sophia(wd) => OptimRule::Sophia { b1: 0.965, gamma: 0.01, eps: 1e-12, wd };
    /// Descent on the learning rate too (Baydin et al., 2018): `rate` is the rate of the rate, `lr` where it starts.
    hypergradient(rate) => OptimRule::Adaptive(AdaptiveRule::HypergradientSgd { rate });
    /// Descent without a schedule (Defazio et al., 2024); see [`Optimizer::swap_schedule_free`] for evaluation.
    schedule_free_sgd() => OptimRule::Adaptive(AdaptiveRule::ScheduleFreeSgd { b: 0.9, wd: 0.0 });
    /// AdamW without a schedule (Defazio et al., 2024); see [`Optimizer::swap_schedule_free`] for evaluation.
    schedule_free_adamw(wd) => OptimRule::Adaptive(AdaptiveRule::ScheduleFreeAdamW { b: 0.9, b2: 0.999, eps: 1e-8, wd });
    /// Descent that finds its rate (Defazio and Mishchenko, 2023); `lr` is a factor, usually 1. Each device and dtype finds its own.
    dadapt_sgd(mu) => OptimRule::Adaptive(AdaptiveRule::DAdaptSgd { d0: 1e-6, mu, wd: 0.0, growth: f64::INFINITY });
    /// Adam that finds its rate (Defazio and Mishchenko, 2023); `lr` is a factor, usually 1. Each device and dtype finds its own.
    dadapt_adam(wd) => OptimRule::Adaptive(AdaptiveRule::DAdaptAdam {
        b1: 0.9, b2: 0.999, eps: 1e-8, wd, d0: 1e-6, growth: f64::INFINITY,
    });
    /// Adam that finds its rate (Mishchenko and Defazio, 2023); `lr` is a factor, usually 1. Each device and dtype finds its own.
    prodigy(wd) => OptimRule::Adaptive(AdaptiveRule::Prodigy {
        b1: 0.9, b2: 0.999, eps: 1e-8, wd, d0: 1e-6, coef: 1.0, growth: f64::INFINITY,
    });
    /// Proximal gradient steps of an elastic net l1*|w| + l2/2*w^2 (soft thresholding for l2 = 0).
    proximal(l1, l2) => OptimRule::Proximal(Prox::ElasticNet { l1, l2 });
    /// Projected descent: weights stay within [lo, hi].
    projected(lo, hi) => OptimRule::Proximal(Prox::Box { lo, hi });
}

/// The rule with another weight decay; rules without decay stay as they are.
pub fn with_weight_decay(rule: OptimRule, decay: f64) -> OptimRule {
    let mut rule = rule;
    match &mut rule {
        OptimRule::Sgd { wd }
        | OptimRule::Momentum { wd, .. }
        | OptimRule::Adam { wd, .. }
        | OptimRule::AdamW { wd, .. }
        | OptimRule::RmsProp { wd, .. }
        | OptimRule::Adagrad { wd, .. }
        | OptimRule::Adadelta { wd, .. }
        | OptimRule::AdaMax { wd, .. }
        | OptimRule::AmsGrad { wd, .. }
        | OptimRule::Nadam { wd, .. }
        | OptimRule::RAdam { wd, .. }
        | OptimRule::Asgd { wd, .. }
        | OptimRule::Lion { wd, .. }
        | OptimRule::Lars { wd, .. }
        | OptimRule::Lamb { wd, .. }
        | OptimRule::Adan { wd, .. }
        | OptimRule::Sophia { wd, .. }
        | OptimRule::Adaptive(
            AdaptiveRule::ScheduleFreeSgd { wd, .. }
            | AdaptiveRule::ScheduleFreeAdamW { wd, .. }
            | AdaptiveRule::DAdaptSgd { wd, .. }
            | AdaptiveRule::DAdaptAdam { wd, .. }
            | AdaptiveRule::Prodigy { wd, .. },
        ) => *wd = decay,
        _ => {}
    }
    rule
}

impl Group {
    /// All parameters of a model under one rule.
    pub fn new(model: &dyn Layer, rule: OptimRule) -> Self {
        use crate::module::LayerExt;
        Group { params: model.named_parameters(), rule, lr_factor: 1.0 }
    }

    /// Sets the factor of the learning rate.
    pub fn lr_factor(mut self, factor: f64) -> Self {
        self.lr_factor = factor;
        self
    }

    /// Sets the weight decay of the group's rule.
    pub fn weight_decay(mut self, decay: f64) -> Self {
        self.rule = with_weight_decay(self.rule, decay);
        self
    }

    /// Two groups: parameters that `first` picks by name and value, and the others.
    pub fn split(self, first: impl Fn(&str, &crate::core::tensor::Tensor) -> bool) -> [Group; 2] {
        let Group { params, rule, lr_factor } = self;
        let (a, b) = params.into_iter().partition(|(name, p)| first(name, &p.get()));
        [Group { params: a, rule, lr_factor }, Group { params: b, rule, lr_factor }]
    }

    /// Two groups: matrices with the rule's decay; vectors and scalars (biases, parameters of normalisations) without.
    pub fn decay_matrices_only(self) -> [Group; 2] {
        let [matrices, others] = self.split(|_, t| t.rank() > 1);
        [matrices, others.weight_decay(0.0)]
    }

    /// Two groups for LARS and LAMB: matrices with layer-wise rates and decay; vectors and scalars without either.
    pub fn layer_wise(self) -> [Group; 2] {
        let [matrices, mut others] = self.decay_matrices_only();
        if let OptimRule::Lars { adapt, .. } | OptimRule::Lamb { adapt, .. } = &mut others.rule {
            *adapt = false;
        }
        [matrices, others]
    }
}
