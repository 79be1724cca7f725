//! Learning-rate schedules.

use std::f64::consts::PI;

/// Learning rate as a function of the number of steps done. Formulas are those of `torch.optim.lr_scheduler`.
#[derive(Debug, Clone, PartialEq, Default)]
#[non_exhaustive]
pub enum Schedule {
    /// The base rate throughout.
    #[default]
    Constant,
    /// Multiplied by `gamma` every `every` steps.
    Step {
        /// steps between changes
        every: u64,
        /// factor
        gamma: f64,
    },
    /// Multiplied by `gamma` at every step.
    Exponential {
        /// factor
        gamma: f64,
    },
    /// Half a cosine from the base rate to `min` over `total` steps (Loshchilov and Hutter, 2017), then constant.
    Cosine {
        /// steps
        total: u64,
        /// last rate
        min: f64,
    },
    /// (1 - t/total)^power between the base rate and `end`, then constant.
    Polynomial {
        /// steps
        total: u64,
        /// exponent
        power: f64,
        /// last rate
        end: f64,
    },
    /// Up to the base rate over the first `rise` of the steps, down again over the others, both along cosines (Smith and Topin, 2018).
    OneCycle {
        /// steps
        total: u64,
        /// share of the steps that rises, in (0, 1)
        rise: f64,
        /// base rate / first rate
        div: f64,
        /// first rate / last rate
        final_div: f64,
    },
    /// Linear from `start` times the base rate over `steps` steps, then another schedule that starts at 0.
    Warmup {
        /// steps
        steps: u64,
        /// factor of the first step
        start: f64,
        /// what follows
        then: Box<Schedule>,
    },
}

/// From `a` to `b` along half a cosine.
fn cosine(a: f64, b: f64, t: f64) -> f64 {
    b + (a - b) * (1.0 + (PI * t).cos()) / 2.0
}

impl Schedule {
    /// The rate of the step after `t` steps.
    pub fn lr(&self, base: f64, t: u64) -> f64 {
        match *self {
            Schedule::Constant => base,
            Schedule::Step { every, gamma } => base * gamma.powf((t / every.max(1)) as f64),
            Schedule::Exponential { gamma } => base * gamma.powf(t as f64),
            Schedule::Cosine { total, min } => cosine(base, min, share(t, total)),
            Schedule::Polynomial { total, power, end } => {
                end + (base - end) * (1.0 - share(t, total)).powf(power)
            }
            Schedule::OneCycle { total, rise, div, final_div } => {
                let first = base / div;
                let peak = rise * total as f64 - 1.0;
                let t = (t.min(total.saturating_sub(1))) as f64;
                if t <= peak {
                    return cosine(first, base, if peak > 0.0 { t / peak } else { 1.0 });
                }
                cosine(base, first / final_div, (t - peak) / (total as f64 - 1.0 - peak).max(1.0))
            }
            Schedule::Warmup { steps, start, ref then } => {
                if t < steps {
                    return base * (start + (1.0 - start) * t as f64 / steps as f64);
                }
                then.lr(base, t - steps)
            }
        }
    }
}

fn share(t: u64, total: u64) -> f64 {
    if total == 0 { 1.0 } else { t.min(total) as f64 / total as f64 }
}

/// Lowers the rate when a metric has stopped falling, `ReduceLROnPlateau` with a relative threshold.
#[derive(Debug, Clone, PartialEq)]
pub struct Plateau {
    /// factor of each reduction
    pub factor: f64,
    /// observations without improvement that are tolerated
    pub patience: u64,
    /// relative improvement that counts
    pub threshold: f64,
    /// lowest rate
    pub min_lr: f64,
    /// product of the reductions so far
    pub scale: f64,
    /// best value so far
    pub best: f64,
    /// observations since it
    pub waited: u64,
}

impl Plateau {
    /// Reduces by `factor` after more than `patience` observations without improvement.
    pub fn new(factor: f64, patience: u64) -> Self {
        Plateau { factor, patience, threshold: 1e-4, min_lr: 0.0, scale: 1.0, best: f64::INFINITY, waited: 0 }
    }

    /// Takes an observation (lower is better; NaN is no improvement).
    pub fn observe(&mut self, value: f64) {
        if value < self.best * (1.0 - self.threshold) {
            (self.best, self.waited) = (value, 0);
            return;
        }
        self.waited += 1;
        if self.waited > self.patience {
            (self.scale, self.waited) = (self.scale * self.factor, 0);
        }
    }

    /// A rate with the reductions so far.
    pub fn lr(&self, lr: f64) -> f64 {
        if self.scale == 1.0 { lr } else { (lr * self.scale).max(self.min_lr) }
    }
}
