//! Device time of queued work.

use std::time::{Duration, Instant};

use trefoil::ops::core::Profile;
use trefoil_bench::Prepared;
use trefoil_nn::Device;

use crate::error::Result;

/// How long a device works before times count. On one that idled, while kernels were compiled or inputs made, short kernels may take several times as
/// long at first.
const WARM_UP: Duration = Duration::from_millis(300);

/// Something to time.
pub(in crate::commands) struct Work {
    /// Bytes that must be moved at least.
    pub(super) bytes: f64,
    /// Arithmetic operations of matrix products, 0 for other work.
    pub(super) flops: f64,
    /// Queues run number `i` and returns without waiting.
    queue: Box<dyn FnMut(usize) -> Result<()>>,
}

impl Work {
    pub(super) fn new(bytes: f64, flops: f64, queue: impl FnMut(usize) -> Result<()> + 'static) -> Self {
        Work { bytes, flops, queue: Box::new(queue) }
    }

    /// A problem that was prepared on this device.
    pub(super) fn of(mut problem: Prepared, d: &Device) -> Self {
        let d = d.clone();
        Work::new(problem.bytes as f64, problem.flops as f64, move |i| Ok(problem.run(&*d, i)?))
    }

    /// Queues run number `i`.
    pub(in crate::commands) fn run(&mut self, i: usize) -> Result<()> {
        (self.queue)(i)
    }

    /// Median device time in microseconds, by events around each run after a warm-up.
    pub(super) fn device_time(&mut self, d: &Device, budget_s: f64) -> Result<f64> {
        let mut timed = |i: usize| -> Result<f64> {
            let from = Instant::now();
            (self.queue)(i)?;
            d.synchronize()?;
            Ok(from.elapsed().as_secs_f64().max(1e-6))
        };
        // The first run compiles.
        timed(0)?;
        let (start, mut i, mut once) = (Instant::now(), 0, 0.0);
        while i < 3 || start.elapsed() < WARM_UP {
            i += 1;
            once = timed(i)?;
        }
        let runs = ((budget_s / once) as usize).clamp(5, 200);
        let mut events = Vec::with_capacity(runs);
        for i in 0..runs {
            let before = d.record()?;
            (self.queue)(i)?;
            events.push((before, d.record()?));
        }
        d.synchronize()?;
        let mut ns = events.iter().map(|(a, b)| a.elapsed_ns(b)).collect::<trefoil::Result<Vec<u64>>>()?;
        ns.sort_unstable();
        let mid = ns.len() / 2;
        let median = if ns.len() % 2 == 0 { (ns[mid - 1] + ns[mid]) as f64 / 2.0 } else { ns[mid] as f64 };
        // A clock too coarse for the work must not lead to a division by zero.
        Ok((median / 1e3).max(1e-3))
    }

    /// What `runs` of it do on the device, after two more.
    pub(super) fn profile(&mut self, d: &Device, runs: usize) -> Result<Profile> {
        (0..2).try_for_each(|i| (self.queue)(i))?;
        let mut failed = None;
        let profile = d.profile_calls(&mut || {
            failed = (2..2 + runs).try_for_each(|i| (self.queue)(i)).err();
            Ok(())
        })?;
        failed.map_or(Ok(profile), Err)
    }

    /// Wall-clock times of runs in steady state.
    pub(super) fn host_times(&mut self, d: &Device, budget_s: f64) -> Result<HostTimes> {
        let start = Instant::now();
        let mut queued = vec![];
        let mut launches = 0;
        while queued.len() < 3 || (start.elapsed().as_secs_f64() < budget_s / 2.0 && queued.len() < 50) {
            d.synchronize()?;
            let (before, from) = (d.counters().launches, Instant::now());
            (self.queue)(queued.len())?;
            queued.push(from.elapsed().as_secs_f64() * 1e6);
            launches = d.counters().launches - before;
        }
        d.synchronize()?;
        let once = start.elapsed().as_secs_f64() / queued.len() as f64;
        let steps = ((budget_s / once) as usize).clamp(2, 500);
        let from = Instant::now();
        for i in 0..steps {
            (self.queue)(i)?;
        }
        d.synchronize()?;
        let step_us = from.elapsed().as_secs_f64() * 1e6 / steps as f64;
        queued.sort_by(f64::total_cmp);
        Ok(HostTimes { step_us, queue_us: queued[queued.len() / 2], launches })
    }
}

/// What a whole training step costs the host.
pub(super) struct HostTimes {
    /// Microseconds per step of many steps in a row, the last one finished: what a training loop sees.
    pub(super) step_us: f64,
    /// Microseconds to queue a step while the device has nothing else to do, median.
    pub(super) queue_us: f64,
    /// Kernels per step.
    pub(super) launches: u64,
}
