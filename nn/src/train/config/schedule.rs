//! `schedule`: the learning rate over time.

use std::fmt;
use std::sync::Arc;

use serde_json::Value;

use super::kind::{Row, kind, names, row};
use crate::core::error::Result;
use crate::core::options::{BETWEEN, COUNT, FINITE, NOT_NEGATIVE, POSITIVE, SHARE, join, read, within};
use crate::train::optim::{Plateau, Schedule};

/// Learning rate over time, chosen by its `type` (see [`ScheduleConfig::names`]). Lengths are in epochs; they need not be whole. The default
/// is a constant rate.
///
/// Every schedule takes `warmup` (epochs of linear rise before it) and `warmup_start` (factor of the first step; by default the share of one
/// step).
#[derive(Clone)]
pub struct ScheduleConfig {
    name: &'static str,
    make: Make,
    warmup: f64,
    start: Option<f64>,
}

impl fmt::Debug for ScheduleConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ScheduleConfig({})", self.name)
    }
}

/// Length of what is scheduled.
#[derive(Debug, Clone, Copy)]
pub(super) struct Span {
    /// Steps in all.
    total: u64,
    /// Steps per epoch.
    epoch: u64,
}

impl Span {
    fn steps(&self, epochs: f64) -> u64 {
        (epochs * self.epoch as f64).round() as u64
    }
}

type Make = Arc<dyn Fn(Span) -> (Schedule, Option<Plateau>) + Send + Sync>;

fn make(f: impl Fn(Span) -> Schedule + Send + Sync + 'static) -> Make {
    Arc::new(move |span| (f(span), None))
}

pub(super) static SCHEDULES: &[Row<Make>] = &[
    row!("constant" {} |_path| make(|_| Schedule::Constant)),
    row!("step" { every: f64, POSITIVE; gamma: f64, POSITIVE; } |_path| {
        make(move |s| Schedule::Step { every: s.steps(every).max(1), gamma })
    }),
    row!("multi_step" { milestones: Vec<f64>, NOT_NEGATIVE; gamma: f64 = 0.1, POSITIVE; } |_path| {
        make(move |s| Schedule::MultiStep { milestones: milestones.iter().map(|&e| s.steps(e)).collect(), gamma })
    }),
    row!("linear" {
        start: f64 = 0.3333333333333333, NOT_NEGATIVE;
        end: f64 = 1.0, NOT_NEGATIVE;
        epochs: Option<f64> = null, POSITIVE;
    } |_path| make(move |s| {
        let total = epochs.map_or(s.total, |e| s.steps(e));
        Schedule::Linear { total, start, end }
    })),
    row!("exponential" { gamma: f64, POSITIVE; } |_path| {
        make(move |s| Schedule::Exponential { gamma: gamma.powf(1.0 / s.epoch.max(1) as f64) })
    }),
    row!("cosine" { min_lr: f64 = 0.0, NOT_NEGATIVE; } |_path| {
        make(move |s| Schedule::Cosine { total: s.total, min: min_lr })
    }),
    row!("cosine_restarts" {
        epochs: f64, POSITIVE;
        factor: u64 = 1, COUNT;
        min_lr: f64 = 0.0, NOT_NEGATIVE;
    } |_path| make(move |s| {
        Schedule::CosineRestarts { first: s.steps(epochs).max(1), factor, min: min_lr }
    })),
    row!("polynomial" { power: f64 = 1.0, FINITE; min_lr: f64 = 0.0, NOT_NEGATIVE; } |_path| {
        make(move |s| Schedule::Polynomial { total: s.total, power, end: min_lr })
    }),
    // Only the rise that all schedules can have.
    row!("warmup" { epochs: f64, NOT_NEGATIVE; } |_path| {
        make(move |s| match s.steps(epochs).min(s.total) {
            0 => Schedule::Constant,
            n => Schedule::Warmup { steps: n, start: 1.0 / n as f64, then: Box::new(Schedule::Constant) },
        })
    }),
    row!("one_cycle" {
        rise: f64 = 0.3, BETWEEN;
        div: f64 = 25.0, POSITIVE;
        final_div: f64 = 1e4, POSITIVE;
    } |_path| make(move |s| Schedule::OneCycle { total: s.total, rise, div, final_div })),
    row!("plateau" {
        factor: f64 = 0.1, BETWEEN;
        patience: u64 = 10;
        threshold: f64 = 1e-4, NOT_NEGATIVE;
        min_lr: f64 = 0.0, NOT_NEGATIVE;
        cooldown: u64 = 0;
    } |_path| Arc::new(move |_| {
        let plateau = Plateau { threshold, min_lr, cooldown, ..Plateau::new(factor, patience) };
        (Schedule::Constant, Some(plateau))
    })),
];

impl Default for ScheduleConfig {
    fn default() -> Self {
        ScheduleConfig { name: "constant", make: make(|_| Schedule::Constant), warmup: 0.0, start: None }
    }
}

impl ScheduleConfig {
    pub(super) fn read(path: &str, json: Value) -> Result<Self> {
        let (mut warmup, mut start) = (0.0, None);
        let json = match json {
            Value::Object(mut keys) => {
                if let Some(v) = keys.remove("warmup") {
                    warmup = read(&join(path, "warmup"), v)?;
                }
                if let Some(v) = keys.remove("warmup_start") {
                    start = Some(read(&join(path, "warmup_start"), v)?);
                }
                Value::Object(keys)
            }
            json => json,
        };
        within(path, "warmup", &warmup, &NOT_NEGATIVE)?;
        within(path, "warmup_start", &start, &SHARE)?;
        let (name, make) = kind(path, "a schedule", json, SCHEDULES)?;
        Ok(ScheduleConfig { name, make, warmup, start })
    }

    /// Names of all schedules.
    pub fn names() -> Vec<&'static str> {
        names(SCHEDULES)
    }

    /// The `type`.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// The schedule over `epochs` epochs of `per_epoch` steps, and the reduction that watches the test loss.
    pub(super) fn build(&self, epochs: u64, per_epoch: u64) -> (Schedule, Option<Plateau>) {
        let all = Span { total: per_epoch * epochs, epoch: per_epoch };
        let steps = all.steps(self.warmup).min(all.total);
        let (then, plateau) = (self.make)(Span { total: all.total - steps, epoch: per_epoch });
        if steps == 0 {
            return (then, plateau);
        }
        let start = self.start.unwrap_or(1.0 / steps as f64);
        (Schedule::Warmup { steps, start, then: Box::new(then) }, plateau)
    }
}
