//! An optimizer's constructor for every rule, with the constants of the rule's own constructor.

use trefoil::ops::optimizer::{AdaptiveRule, OptimRule};

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
    sgd() => OptimRule::sgd();
    /// Gradient descent with momentum, `torch.optim.SGD(momentum=mu)`.
    momentum(mu) => OptimRule::momentum(mu);
    /// Nesterov's accelerated descent, `torch.optim.SGD(momentum=mu, nesterov=True)`.
    nesterov(mu) => OptimRule::nesterov(mu);
    /// Adam (Kingma and Ba, 2015), `torch.optim.Adam`.
    adam() => OptimRule::adam();
    /// AdamW (Loshchilov and Hutter, 2019), `torch.optim.AdamW` (whose decay is 0.01).
    adamw(wd) => OptimRule::adamw(wd);
    /// Adam whose second moment never falls (Reddi et al., 2018), `torch.optim.Adam(amsgrad=True)`.
    amsgrad() => OptimRule::amsgrad();
    /// Running mean of squares, `torch.optim.RMSprop`.
    rmsprop() => OptimRule::rmsprop();
    /// Adagrad (Duchi et al., 2011), `torch.optim.Adagrad`.
    adagrad() => OptimRule::adagrad();
    /// Adadelta (Zeiler, 2012), `torch.optim.Adadelta`.
    adadelta() => OptimRule::adadelta();
    /// Adam with the infinity norm, `torch.optim.Adamax`.
    adamax() => OptimRule::adamax();
    /// Adam with Nesterov momentum (Dozat, 2016), `torch.optim.NAdam`.
    nadam() => OptimRule::nadam();
    /// Adam with a rectified rate (Liu et al., 2020), `torch.optim.RAdam`.
    radam() => OptimRule::radam();
    /// Averaged descent, `torch.optim.ASGD`; the mean is the state `ax`.
    asgd() => OptimRule::asgd();
    /// Resilient backpropagation for full batches (Riedmiller and Braun, 1993), `torch.optim.Rprop`; `lr` is the first step.
    rprop() => OptimRule::rprop();
    /// Sign of a momentum (Chen et al., 2023) with decoupled weight decay.
    lion(wd) => OptimRule::lion(wd);
    /// Follow the regularised leader (McMahan et al., 2013) with penalties; starts from the given weights.
    ftrl(l1, l2) => OptimRule::ftrl(l1, l2);
    /// Layer-wise rates for large batches (You et al., 2017). See [`Group::layer_wise`] for biases and normalisations.
    lars(mu, wd) => OptimRule::lars(mu, wd);
    /// Layer-wise Adam for large batches (You et al., 2020). See [`Group::layer_wise`] for biases and normalisations.
    lamb(wd) => OptimRule::lamb(wd);
    /// Adaptive Nesterov momentum (Xie et al., 2022) with proximal weight decay.
    adan(wd) => OptimRule::adan(wd);
    /// Clipped second-order steps (Liu et al., 2023); see [`Optimizer::renew_curvature`].
    sophia(wd) => OptimRule::sophia(wd);
    /// Descent on the learning rate too (Baydin et al., 2018): `rate` is the rate of the rate, `lr` where it starts.
    hypergradient(rate) => OptimRule::hypergradient(rate);
    /// Descent without a schedule (Defazio et al., 2024); see [`Optimizer::swap_schedule_free`] for evaluation.
    schedule_free_sgd() => OptimRule::schedule_free_sgd();
    /// AdamW without a schedule (Defazio et al., 2024); see [`Optimizer::swap_schedule_free`] for evaluation.
    schedule_free_adamw(wd) => OptimRule::schedule_free_adamw(wd);
    /// Descent that finds its rate (Defazio and Mishchenko, 2023); `lr` is a factor, usually 1. Each device and dtype finds its own.
    dadapt_sgd(mu) => OptimRule::dadapt_sgd(mu);
    /// Adam that finds its rate (Defazio and Mishchenko, 2023); `lr` is a factor, usually 1. Each device and dtype finds its own.
    dadapt_adam(wd) => OptimRule::dadapt_adam(wd);
    /// Adam that finds its rate (Mishchenko and Defazio, 2023); `lr` is a factor, usually 1. Each device and dtype finds its own.
    prodigy(wd) => OptimRule::prodigy(wd);
    /// Proximal gradient steps of an elastic net l1*|w| + l2/2*w^2 (soft thresholding for l2 = 0).
    proximal(l1, l2) => OptimRule::proximal(l1, l2);
    /// Projected descent: weights stay within [lo, hi].
    projected(lo, hi) => OptimRule::projected(lo, hi);
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
