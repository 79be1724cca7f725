//! `schedule`: the learning rate over time.

use serde::Deserialize;

use super::{check, one};
use crate::error::Result;
use crate::optim::{Plateau, Schedule};

/// Learning rate over time, chosen by its `type`. Lengths are in epochs; they need not be whole.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
#[non_exhaustive]
pub enum ScheduleConfig {
    /// The base rate throughout.
    #[default]
    Constant,
    /// Multiplied every few epochs.
    Step {
        /// Epochs between changes.
        every: f64,
        /// Factor.
        gamma: f64,
    },
    /// Multiplied once per epoch, smoothly.
    Exponential {
        /// Factor per epoch.
        gamma: f64,
    },
    /// Half a cosine over the whole run, after a linear rise.
    Cosine {
        /// Epochs of linear rise.
        #[serde(default)]
        warmup: f64,
        /// Last rate.
        #[serde(default)]
        min_lr: f64,
    },
    /// A power of the remaining share of the run, after a linear rise.
    Polynomial {
        /// Epochs of linear rise.
        #[serde(default)]
        warmup: f64,
        /// Exponent.
        #[serde(default = "one")]
        power: f64,
        /// Last rate.
        #[serde(default)]
        min_lr: f64,
    },
    /// Linear rise, then constant.
    Warmup {
        /// Epochs of linear rise.
        epochs: f64,
    },
    /// Up and down once over the whole run.
    OneCycle {
        /// Share that rises.
        #[serde(default = "rise")]
        rise: f64,
    },
    /// Multiplied when the test loss stalls.
    Plateau {
        /// Factor.
        #[serde(default = "tenth")]
        factor: f64,
        /// Epochs without improvement that are tolerated.
        #[serde(default = "ten")]
        patience: u64,
    },
}

fn rise() -> f64 {
    0.3
}

fn tenth() -> f64 {
    0.1
}

fn ten() -> u64 {
    10
}

impl ScheduleConfig {
    pub(super) fn check(&self) -> Result<()> {
        use ScheduleConfig::*;
        match *self {
            Step { every, gamma } => check(every > 0.0, "schedule.every", "a value above 0", every)
                .and(check(gamma > 0.0, "schedule.gamma", "a value above 0", gamma)),
            Exponential { gamma } => check(gamma > 0.0, "schedule.gamma", "a value above 0", gamma),
            Cosine { warmup, min_lr } | Polynomial { warmup, min_lr, .. } => check(
                warmup >= 0.0,
                "schedule.warmup",
                "a value of at least 0",
                warmup,
            )
            .and(check(min_lr >= 0.0, "schedule.min_lr", "a value of at least 0", min_lr)),
            Warmup { epochs } => check(epochs >= 0.0, "schedule.epochs", "a value of at least 0", epochs),
            OneCycle { rise } => {
                check(rise > 0.0 && rise < 1.0, "schedule.rise", "a share between 0 and 1", rise)
            }
            Plateau { factor, .. } => {
                check(factor > 0.0 && factor < 1.0, "schedule.factor", "a value between 0 and 1", factor)
            }
            Constant => Ok(()),
        }
    }

    /// The schedule over `epochs` epochs of `per_epoch` steps, and the reduction that watches the test loss.
    pub(super) fn build(&self, epochs: u64, per_epoch: u64) -> (Schedule, Option<Plateau>) {
        let steps = |epochs: f64| (epochs * per_epoch as f64).round() as u64;
        let total = per_epoch * epochs;
        let warm = |epochs: f64, make: &dyn Fn(u64) -> Schedule| {
            let n = steps(epochs).min(total);
            let then = make(total - n);
            if n == 0 {
                then
            } else {
                Schedule::Warmup { steps: n, start: 1.0 / n as f64, then: Box::new(then) }
            }
        };
        let mut plateau = None;
        let schedule = match *self {
            ScheduleConfig::Constant => Schedule::Constant,
            ScheduleConfig::Step { every, gamma } => Schedule::Step { every: steps(every).max(1), gamma },
            ScheduleConfig::Exponential { gamma } => {
                Schedule::Exponential { gamma: gamma.powf(1.0 / per_epoch.max(1) as f64) }
            }
            ScheduleConfig::Cosine { warmup, min_lr } => {
                warm(warmup, &|total| Schedule::Cosine { total, min: min_lr })
            }
            ScheduleConfig::Polynomial { warmup, power, min_lr } => {
                warm(warmup, &|total| Schedule::Polynomial { total, power, end: min_lr })
            }
            ScheduleConfig::Warmup { epochs } => warm(epochs, &|_| Schedule::Constant),
            ScheduleConfig::OneCycle { rise } => {
                Schedule::OneCycle { total, rise, div: 25.0, final_div: 1e4 }
            }
            ScheduleConfig::Plateau { factor, patience } => {
                plateau = Some(Plateau::new(factor, patience));
                Schedule::Constant
            }
        };
        (schedule, plateau)
    }
}
