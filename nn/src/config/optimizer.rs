//! `optimizer`: the update rule.

use serde::Deserialize;
use trefoil::ops::OptimRule;

use super::check;
use crate::error::Result;
use crate::layer::Layer;
use crate::optim::Optimizer;

/// An optimizer, chosen by its `type`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
#[non_exhaustive]
pub enum OptimizerConfig {
    /// Gradient descent.
    Sgd {
        /// Learning rate.
        lr: f64,
        /// Coupled weight decay.
        #[serde(default)]
        weight_decay: f64,
    },
    /// Gradient descent with momentum.
    Momentum {
        /// Learning rate.
        lr: f64,
        /// Momentum.
        #[serde(default = "momentum")]
        momentum: f64,
        /// Nesterov's form.
        #[serde(default)]
        nesterov: bool,
        /// Coupled weight decay.
        #[serde(default)]
        weight_decay: f64,
    },
    /// Adam.
    Adam {
        /// Learning rate.
        #[serde(default = "milli")]
        lr: f64,
        /// Decay of the two moments.
        #[serde(default = "betas")]
        betas: [f64; 2],
        /// Added to the root.
        #[serde(default = "eps")]
        eps: f64,
        /// Coupled weight decay.
        #[serde(default)]
        weight_decay: f64,
    },
    /// AdamW.
    Adamw {
        /// Learning rate.
        #[serde(default = "milli")]
        lr: f64,
        /// Decay of the two moments.
        #[serde(default = "betas")]
        betas: [f64; 2],
        /// Added to the root.
        #[serde(default = "eps")]
        eps: f64,
        /// Decoupled weight decay.
        #[serde(default = "centi")]
        weight_decay: f64,
    },
}

fn momentum() -> f64 {
    0.9
}

fn milli() -> f64 {
    1e-3
}

fn centi() -> f64 {
    1e-2
}

fn betas() -> [f64; 2] {
    [0.9, 0.999]
}

fn eps() -> f64 {
    1e-8
}

impl Default for OptimizerConfig {
    fn default() -> Self {
        OptimizerConfig::Adamw { lr: milli(), betas: betas(), eps: eps(), weight_decay: centi() }
    }
}

impl OptimizerConfig {
    pub(super) fn check(&self) -> Result<()> {
        let (OptimizerConfig::Sgd { lr, weight_decay, .. }
        | OptimizerConfig::Momentum { lr, weight_decay, .. }
        | OptimizerConfig::Adam { lr, weight_decay, .. }
        | OptimizerConfig::Adamw { lr, weight_decay, .. }) = *self;
        check(lr.is_finite() && lr > 0.0, "optimizer.lr", "a value above 0", lr)?;
        check(weight_decay >= 0.0, "optimizer.weight_decay", "a value of at least 0", weight_decay)?;
        match *self {
            OptimizerConfig::Momentum { momentum: m, .. } => {
                check((0.0..1.0).contains(&m), "optimizer.momentum", "a value in [0, 1)", m)
            }
            OptimizerConfig::Adam { betas, eps, .. } | OptimizerConfig::Adamw { betas, eps, .. } => {
                for b in betas {
                    check((0.0..1.0).contains(&b), "optimizer.betas", "values in [0, 1)", b)?;
                }
                check(eps >= 0.0, "optimizer.eps", "a value of at least 0", eps)
            }
            _ => Ok(()),
        }
    }

    /// The optimizer of a model.
    pub fn build(&self, model: &dyn Layer) -> Result<Optimizer> {
        let (rule, lr) = match *self {
            OptimizerConfig::Sgd { lr, weight_decay: wd } => (OptimRule::Sgd { wd }, lr),
            OptimizerConfig::Momentum { lr, momentum: mu, nesterov, weight_decay: wd } => {
                (OptimRule::Momentum { mu, damp: 0.0, wd, nesterov }, lr)
            }
            OptimizerConfig::Adam { lr, betas: [b1, b2], eps, weight_decay: wd } => {
                (OptimRule::Adam { b1, b2, eps, wd }, lr)
            }
            OptimizerConfig::Adamw { lr, betas: [b1, b2], eps, weight_decay: wd } => {
                (OptimRule::AdamW { b1, b2, eps, wd }, lr)
            }
        };
        Optimizer::new(model, rule, lr)
    }
}
