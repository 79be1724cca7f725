//! `train`: length, batches, run folder.

use std::path::PathBuf;

use serde::Deserialize;

use super::check;
use crate::error::Result;

/// Length, batches, run folder.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TrainConfig {
    /// Epochs.
    pub epochs: u64,
    /// Items per batch.
    pub batch_size: usize,
    /// Seed of parameters, data order and dropout.
    pub seed: u64,
    /// New order in every epoch.
    pub shuffle: bool,
    /// Largest Euclidean norm of the gradients.
    pub clip_norm: Option<f64>,
    /// Largest absolute value of a gradient.
    pub clip_value: Option<f64>,
    /// Epochs without improvement after which training ends.
    pub patience: Option<u64>,
    /// Run folder.
    pub run: Option<PathBuf>,
}

impl Default for TrainConfig {
    fn default() -> Self {
        TrainConfig {
            epochs: 10,
            batch_size: 32,
            seed: 0,
            shuffle: true,
            clip_norm: None,
            clip_value: None,
            patience: None,
            run: None,
        }
    }
}

impl TrainConfig {
    pub(super) fn check(&self) -> Result<()> {
        check(self.epochs > 0, "train.epochs", "at least 1", self.epochs)?;
        check(self.batch_size > 0, "train.batch_size", "at least 1", self.batch_size)?;
        for (key, v) in [("train.clip_norm", self.clip_norm), ("train.clip_value", self.clip_value)] {
            check(v.is_none_or(|v| v > 0.0), key, "a value above 0", v.unwrap_or_default())?;
        }
        check(
            !(self.clip_norm.is_some() && self.clip_value.is_some()),
            "train.clip_value",
            "only one kind of clipping",
            "two",
        )
    }
}
