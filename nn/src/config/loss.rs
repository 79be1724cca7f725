//! `loss`: what a run minimises.

use serde::Deserialize;
use trefoil::ops::CrossEntropy;

use super::check;
use crate::error::Result;
use crate::losses::{CrossEntropyLoss, MseLoss};
use crate::trainer::Objective;

/// A loss, chosen by its `type`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
#[non_exhaustive]
pub enum LossConfig {
    /// Cross entropy of logits.
    CrossEntropy {
        /// In [0, 1).
        #[serde(default)]
        label_smoothing: f64,
    },
    /// Mean squared error.
    Mse,
}

impl LossConfig {
    pub(super) fn check(&self) -> Result<()> {
        if let LossConfig::CrossEntropy { label_smoothing: s } = self {
            check((0.0..1.0).contains(s), "loss.label_smoothing", "a value in [0, 1)", s)?;
        }
        Ok(())
    }

    pub(super) fn objective(&self) -> Objective {
        match self {
            LossConfig::CrossEntropy { label_smoothing } => Objective::Classify(CrossEntropyLoss {
                options: CrossEntropy::new().label_smoothing(*label_smoothing),
                weight: None,
            }),
            LossConfig::Mse => Objective::Regress(MseLoss::default()),
        }
    }
}
