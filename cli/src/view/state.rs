//! What the live view shows: made of the trainer's events and of the seconds at which they came, so that it is the same for the same events.

use std::collections::VecDeque;

use trefoil_nn::trainer::EpochStats;

/// Points of the curve of single batches; with more of them every second one is left out.
const POINTS: usize = 1024;
/// Seconds over which the throughput is measured.
const WINDOW: f64 = 5.0;

/// A finished step.
#[derive(Debug, Clone, Copy)]
pub(super) struct Step {
    /// Epoch, from 1.
    pub(super) epoch: u64,
    /// Steps of the whole training, those before a resumption included.
    pub(super) number: u64,
    /// Learning rate.
    pub(super) lr: f64,
    /// Loss of the last batch, where it was read.
    pub(super) loss: Option<f64>,
}

/// Bytes of device memory.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Memory {
    pub(super) in_use: u64,
    pub(super) peak: u64,
    /// What the device has; 0 where that is unknown.
    pub(super) total: u64,
}

/// What is trained.
#[derive(Debug, Clone, Default)]
pub(crate) struct Plan {
    /// Device, model and data.
    pub(crate) title: String,
    /// Epochs of the whole training.
    pub(crate) epochs: u64,
    /// Steps of an epoch, and its items.
    pub(crate) steps: u64,
    pub(crate) items: u64,
}

/// The state of a training.
#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) plan: Plan,
    /// The present epoch, from 1, and how many of its steps are done.
    pub(super) epoch: u64,
    pub(super) step: u64,
    pub(super) lr: f64,
    pub(super) loss: Option<f64>,
    pub(super) memory: Memory,
    /// Loss of single batches over epochs.
    pub(super) batches: Vec<(f64, f64)>,
    pub(super) history: Vec<EpochStats>,
    /// Seconds from the start to the last event.
    pub(super) seconds: f64,
    /// Steps since the start.
    done: u64,
    /// When how many were done, over the last seconds.
    recent: VecDeque<(f64, u64)>,
}

impl State {
    pub(super) fn new(plan: Plan) -> Self {
        State { plan, epoch: 1, recent: VecDeque::from([(0.0, 0)]), ..State::default() }
    }

    /// An epoch begins.
    pub(super) fn begin(&mut self, epoch: u64) {
        (self.epoch, self.step) = (epoch, 0);
    }

    /// A step is done.
    pub(super) fn step(&mut self, seconds: f64, step: Step) {
        let before = step.epoch.saturating_sub(1).saturating_mul(self.plan.steps);
        self.epoch = step.epoch;
        self.step = step.number.saturating_sub(before).min(self.plan.steps);
        (self.lr, self.seconds, self.done) = (step.lr, seconds, self.done + 1);
        if let Some(loss) = step.loss {
            self.loss = Some(loss);
            let share = self.step as f64 / self.plan.steps.max(1) as f64;
            self.batches.push((step.epoch as f64 - 1.0 + share, loss));
            if self.batches.len() > POINTS {
                // The first and the last stay.
                let mut keep = false;
                self.batches.retain(|_| {
                    keep = !keep;
                    keep
                });
            }
        }
        self.recent.push_back((seconds, self.done));
        // The first one is the last before the window.
        while self.recent.get(1).is_some_and(|(at, _)| *at < seconds - WINDOW) {
            self.recent.pop_front();
        }
    }

    /// An epoch is done.
    pub(super) fn end(&mut self, seconds: f64, stats: EpochStats) {
        (self.epoch, self.step, self.seconds) = (stats.epoch, self.plan.steps, seconds);
        self.history.push(stats);
    }

    /// Share of the present epoch's steps that are done.
    pub(super) fn of_epoch(&self) -> f64 {
        (self.step as f64 / self.plan.steps.max(1) as f64).min(1.0)
    }

    /// Share of the whole training that is done.
    pub(super) fn of_all(&self) -> f64 {
        let epochs = self.epoch.saturating_sub(1) as f64 + self.of_epoch();
        (epochs / self.plan.epochs.max(1) as f64).min(1.0)
    }

    /// Items that the training takes in a second, over the last few.
    pub(super) fn throughput(&self) -> Option<f64> {
        let (&(from, first), &(to, last)) = (self.recent.front()?, self.recent.back()?);
        let items = self.plan.items as f64 / self.plan.steps.max(1) as f64;
        (to > from).then(|| (last - first) as f64 * items / (to - from))
    }

    /// Seconds to the last epoch's end, if all goes on as it went since the start.
    pub(super) fn remaining(&self) -> Option<f64> {
        let epochs = self.plan.epochs as f64 - self.epoch.saturating_sub(1) as f64;
        let steps = epochs * self.plan.steps as f64 - self.step as f64;
        (self.done > 0).then(|| steps.max(0.0) * self.seconds / self.done as f64)
    }
}
