//! Steps that are part of a recording. What they take from the host lies in device memory, for some steps ahead: a replay moves nothing, until the rate is
//! not what was foreseen or all of it is used up.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use trefoil::ops::optimizer::{OptimRule, STEP_NUMBERS};
use trefoil::{DType, GpuError};

use super::numbers::{AVERAGE_SHARE, CALLS, STEPS_AHEAD};
use super::schedule::{Plateau, Schedule};
use crate::core::capture::Hook;
use crate::core::error::Result;
use crate::core::limits;
use crate::core::tensor::Tensor;

/// Learning rates that are to come.
#[derive(Debug, Clone)]
pub(crate) struct Forecast {
    pub(crate) schedule: Schedule,
    pub(crate) base: f64,
    pub(crate) plateau: Option<Plateau>,
}

impl Forecast {
    /// The rate of step `t`, from 1.
    fn lr(&self, t: u64) -> f64 {
        let lr = self.schedule.lr(self.base, t.saturating_sub(1));
        self.plateau.as_ref().map_or(lr, |p| p.lr(lr))
    }
}

/// Learning rate and number of steps done, which recorded steps share with their optimizer.
#[derive(Debug, Default)]
pub(crate) struct Clock {
    /// Bits of the rate.
    lr: AtomicU64,
    steps: AtomicU64,
    forecast: Mutex<Option<Forecast>>,
    /// Row of the next recorded step among the numbers ahead.
    row: Arc<AtomicU64>,
    ahead: Mutex<Ahead>,
}

/// What lies in device memory.
#[derive(Debug, Default)]
struct Ahead {
    /// Rate (its bits) and number of each step.
    steps: Vec<(u64, u64)>,
    /// Calls that it is for: memory, place in it, steps that their parameters missed.
    calls: Vec<(usize, usize, u64)>,
}

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(|p| p.into_inner())
}

impl Clock {
    pub(crate) fn new(lr: f64) -> Arc<Self> {
        Arc::new(Clock { lr: lr.to_bits().into(), ..Clock::default() })
    }

    pub(crate) fn lr(&self) -> f64 {
        f64::from_bits(self.lr.load(Ordering::Relaxed))
    }

    pub(crate) fn set_lr(&self, lr: f64) {
        self.lr.store(lr.to_bits(), Ordering::Relaxed);
    }

    pub(crate) fn steps(&self) -> u64 {
        self.steps.load(Ordering::Relaxed)
    }

    pub(crate) fn set_steps(&self, steps: u64) {
        self.steps.store(steps, Ordering::Relaxed);
    }

    pub(crate) fn set_forecast(&self, forecast: Forecast) {
        *lock(&self.forecast) = Some(forecast);
    }

    /// The count of rows, from 0 again: the numbers ahead are written before the recorded step first runs.
    pub(crate) fn first_row(&self) -> &Arc<AtomicU64> {
        self.row.store(0, Ordering::Relaxed);
        &self.row
    }

    /// Moves on to the next row.
    pub(crate) fn next_row(&self) {
        self.row.fetch_add(1, Ordering::Relaxed);
    }

    /// Rates of the steps from `t` on, the present rate first. `used_up`: so many were foreseen rightly.
    fn rates(&self, t: u64, used_up: Option<usize>) -> Vec<(u64, u64)> {
        let (lr, forecast) = (self.lr(), lock(&self.forecast));
        let (known, next): (bool, Box<dyn Fn(u64) -> f64 + '_>) = match &*forecast {
            Some(f) if f.lr(t) == lr => (true, Box::new(|t| f.lr(t))),
            _ => (false, Box::new(|_| lr)),
        };
        // A rate that someone else sets may change with every step.
        let n = match used_up {
            _ if known => STEPS_AHEAD,
            Some(n) => (2 * n).clamp(1, STEPS_AHEAD),
            None => 1,
        };
        (t..).take(n).map(|t| (next(t).to_bits(), t)).collect()
    }
}

/// Steps that a parameter missed.
pub(crate) type Missed = Arc<AtomicU64>;

/// The numbers of one call of a step.
pub(crate) struct Numbers {
    pub(crate) rule: OptimRule,
    pub(crate) lr_factor: f64,
    /// Which of [`RecordedStep::memory`] they lie in, and where.
    pub(crate) place: (usize, usize),
    /// The present ones in device memory.
    pub(crate) now: Tensor,
    /// Steps that its parameters had missed when it was recorded.
    pub(crate) missed: u64,
    pub(crate) params: Vec<Missed>,
}

/// A step of an optimizer within a recording.
pub(crate) struct RecordedStep {
    pub(crate) clock: Arc<Clock>,
    pub(crate) calls: Vec<Numbers>,
    /// Numbers of the steps ahead, for each list of parameters: `[STEPS_AHEAD, CALLS * STEP_NUMBERS]`.
    pub(crate) memory: Vec<Tensor>,
    /// Decay of the moving average.
    pub(crate) average: Option<f64>,
    /// Parameters that took no part in it.
    pub(crate) absent: Vec<Missed>,
}

/// The part of the present weights in a moving average after step `t`.
pub(crate) fn average_share(decay: f64, t: u64) -> f64 {
    let t = t as f64;
    1.0 - decay.min((1.0 + t) / (10.0 + t))
}

impl RecordedStep {
    /// Writes the numbers of these steps.
    fn write(&self, steps: &[(u64, u64)]) -> Result<()> {
        const WIDTH: usize = CALLS * STEP_NUMBERS;
        for (i, memory) in self.memory.iter().enumerate() {
            let mut rows = limits::collect((0..steps.len() * WIDTH).map(|_| 0.0))?;
            for (row, &(lr, t)) in rows.chunks_exact_mut(WIDTH).zip(steps) {
                for n in self.calls.iter().filter(|n| n.place.0 == i) {
                    let (lr, own) = (f64::from_bits(lr) * n.lr_factor, t - n.missed.min(t.saturating_sub(1)));
                    let at = n.place.1 * STEP_NUMBERS;
                    row[at..at + STEP_NUMBERS].copy_from_slice(&n.rule.step_numbers(lr, own));
                }
                if let Some(decay) = self.average {
                    row[AVERAGE_SHARE] = average_share(decay, t);
                }
            }
            write(&memory.narrow(0, 0, steps.len())?, &rows)?;
        }
        Ok(())
    }
}

impl Hook for RecordedStep {
    fn before(&self, first: bool) -> Result<()> {
        let t = self.clock.steps() + u64::from(!first);
        for n in &self.calls {
            if n.params.iter().any(|m| m.load(Ordering::Relaxed) != n.missed) {
                let why = "parameters have missed other numbers of steps since the recording; record anew";
                return Err(GpuError::Capture { op: "Optimizer::step", why }.into());
            }
        }
        let calls: Vec<_> = self.calls.iter().map(|n| (n.place.0, n.place.1, n.missed)).collect();
        let mut ahead = lock(&self.clock.ahead);
        let row = if first { 0 } else { self.clock.row.load(Ordering::Relaxed) as usize };
        let present = (self.clock.lr().to_bits(), t);
        if !first && ahead.calls == calls && ahead.steps.get(row) == Some(&present) {
            return Ok(());
        }
        let used_up = (first || row == ahead.steps.len()).then_some(if first { STEPS_AHEAD } else { row });
        // Where it fails, nothing lies there.
        ahead.steps.clear();
        let steps = self.clock.rates(t, used_up);
        self.write(&steps)?;
        *ahead = Ahead { steps, calls };
        if !first {
            self.clock.row.store(0, Ordering::Relaxed);
        }
        Ok(())
    }

    fn after(&self) {
        self.clock.set_steps(self.clock.steps() + 1);
        for m in &self.absent {
            m.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn undo(&self) {
        self.clock.set_steps(self.clock.steps().saturating_sub(1));
        for m in &self.absent {
            m.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Writes numbers in the type of the memory, rounded as arguments of kernels are.
fn write(memory: &Tensor, numbers: &[f64]) -> Result<()> {
    match memory.dtype() {
        DType::F64 => memory.write_bytes(bytemuck::cast_slice(numbers)),
        _ => memory.write_bytes(bytemuck::cast_slice(&limits::collect(numbers.iter().map(|&x| x as f32))?)),
    }
}
