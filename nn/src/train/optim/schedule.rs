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
    /// Multiplied by `gamma` at each of the given steps.
    MultiStep {
        /// steps of the changes
        milestones: Vec<u64>,
        /// factor
        gamma: f64,
    },
    /// Linear between two factors of the base rate over `total` steps, then constant (`LinearLR`).
    Linear {
        /// steps
        total: u64,
        /// first factor
        start: f64,
        /// last factor
        end: f64,
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
    /// Half cosines from the base rate to `min` that start again, each `factor` times as long as the one before (Loshchilov and Hutter, 2017).
    CosineRestarts {
        /// steps of the first
        first: u64,
        /// growth, at least 1
        factor: u64,
        /// last rate of each
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
            Schedule::MultiStep { ref milestones, gamma } => {
                base * gamma.powi(milestones.iter().filter(|&&m| m <= t).count() as i32)
            }
            Schedule::Linear { total, start, end } => base * (start + (end - start) * share(t, total)),
            Schedule::Exponential { gamma } => base * gamma.powf(t as f64),
            Schedule::Cosine { total, min } => cosine(base, min, share(t, total)),
            Schedule::CosineRestarts { first, factor, min } => {
                let (done, length) = restarts(t, first.max(1), factor.max(1));
                cosine(base, min, done as f64 / length as f64)
            }
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

/// Steps since the last restart, and the steps of the present period.
fn restarts(t: u64, first: u64, factor: u64) -> (u64, u64) {
    if factor == 1 {
        return (t % first, first);
    }
    let (mut t, mut length) = (t, first);
    while t >= length {
        t -= length;
        length = length.saturating_mul(factor);
    }
    (t, length)
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
    /// observations after a reduction that do not count
    pub cooldown: u64,
    /// product of the reductions so far
    pub scale: f64,
    /// best value so far
    pub best: f64,
    /// observations since it
    pub waited: u64,
    /// observations that do not count yet
    pub cooling: u64,
}

impl Plateau {
    /// Reduces by `factor` after more than `patience` observations without improvement.
    pub fn new(factor: f64, patience: u64) -> Self {
        Plateau {
            factor,
            patience,
            threshold: 1e-4,
            min_lr: 0.0,
            cooldown: 0,
            scale: 1.0,
            best: f64::INFINITY,
            waited: 0,
            cooling: 0,
        }
    }

    /// Takes an observation (lower is better; NaN is no improvement).
    pub fn observe(&mut self, value: f64) {
        if value < self.best * (1.0 - self.threshold) {
            (self.best, self.waited) = (value, 0);
        } else {
            self.waited += 1;
        }
        if self.cooling > 0 {
            (self.cooling, self.waited) = (self.cooling - 1, 0);
        }
        if self.waited > self.patience {
            self.scale *= self.factor;
            (self.cooling, self.waited) = (self.cooldown, 0);
        }
    }

    /// A rate with the reductions so far.
    pub fn lr(&self, lr: f64) -> f64 {
        if self.scale == 1.0 { lr } else { (lr * self.scale).max(self.min_lr) }
    }
}
