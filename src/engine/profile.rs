//! Times of launches: events of the driver before and after each, read when all is done.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use rustc_hash::FxHashSet;

use super::{Engine, lock};
use crate::buffer::View;
use crate::driver::RawEvent;
use crate::error::{GpuError, Result};
use crate::ops::core::{Profile, ProfiledLaunch, ProfiledOp, since};

/// Whether a handle takes times, and those that it has taken.
#[derive(Default)]
pub(crate) struct Profiler {
    /// Number of the thread whose calls are timed; 0 where none are.
    thread: AtomicU64,
    running: Mutex<Option<Running>>,
}

/// Times of calls that are under way.
struct Running {
    profile: Profile,
    /// Before and after each launch.
    events: Vec<[RawEvent; 2]>,
    /// Operands of the present operation that were counted: block, first and last element.
    seen: FxHashSet<(u64, usize, usize)>,
    /// Whether the present operation has launched something.
    launched: bool,
}

/// Times are taken while this lives.
struct Taking<'e>(&'e Engine);

impl Drop for Taking<'_> {
    fn drop(&mut self) {
        let profiler = &self.0.inner.profiler;
        profiler.thread.store(0, Ordering::Release);
        let left = lock(&profiler.running).take();
        for e in left.into_iter().flat_map(|r| r.events).flatten() {
            // SAFETY: the event is the driver's, and nobody else has it.
            unsafe { self.0.driver().destroy_event(e) };
        }
    }
}

impl Engine {
    /// Whether the calling thread's calls are timed.
    fn profiles(&self) -> bool {
        let timed = self.inner.profiler.thread.load(Ordering::Relaxed);
        timed != 0 && timed == super::capture::thread()
    }

    /// Notes an operand of an operation, should the calling thread's calls be timed.
    pub(super) fn profile_operand(&self, op: &'static str, v: &View<'_>) {
        if !self.profiles() {
            return;
        }
        let mut running = lock(&self.inner.profiler.running);
        let Some(r) = running.as_mut() else { return };
        if r.launched || r.profile.ops.last().is_none_or(|o| o.name != op) {
            r.profile.ops.push(ProfiledOp::new(op, Some(0)));
            (r.launched, r.seen) = (false, FxHashSet::default());
            if let Some(store) = self.inner.choices.store() {
                store.note_ops(r.profile.ops.len());
            }
        }
        let span = v.layout().span();
        if !r.seen.insert((v.block().id(), span.start, span.end)) {
            return;
        }
        // A broadcast view has more elements than memory.
        let bytes = v.numel().min(span.len()) * v.dtype().size();
        if let Some(own) = r.profile.ops.last_mut().and_then(|o| o.bytes.as_mut()) {
            *own += bytes as u64;
        }
    }

    /// Queues something, and takes its time should the calling thread's calls be timed.
    pub(super) fn timed(&self, name: &str, queue: impl FnOnce() -> Result<()>) -> Result<()> {
        if !self.profiles() {
            return queue();
        }
        // SAFETY: the stream is the driver's and lives as long as the pool.
        let record = || unsafe { self.driver().record(self.inner.stream) };
        let before = record()?;
        let done = queue().and_then(|()| record());
        let mut running = lock(&self.inner.profiler.running);
        match (done, running.as_mut()) {
            (Ok(after), Some(r)) => {
                let op = r.profile.ops.len().checked_sub(1);
                r.profile.launches.push(ProfiledLaunch::new(name, op, since(r.profile.began)));
                r.events.push([before, after]);
                r.launched = true;
                Ok(())
            }
            (done, _) => {
                for e in [Ok(before), done.clone()].into_iter().flatten() {
                    // SAFETY: the event is the driver's, and nobody else has it.
                    unsafe { self.driver().destroy_event(e) };
                }
                done.map(drop)
            }
        }
    }

    /// Runs calls of this thread, and gives what they did.
    pub(super) fn profile(&self, calls: &mut dyn FnMut() -> Result<()>) -> Result<Profile> {
        const OP: &str = "profile_calls";
        self.recorded(OP, "times are not part of a recording")?;
        self.wait_idle()?;
        let profiler = &self.inner.profiler;
        let own = super::capture::thread();
        if profiler.thread.compare_exchange(0, own, Ordering::AcqRel, Ordering::Acquire).is_err() {
            return Err(GpuError::invalid(OP, "calls", "one profile of a handle at a time", "another"));
        }
        let taking = Taking(self);
        let began = Instant::now();
        *lock(&profiler.running) = Some(Running {
            profile: Profile::new(began),
            events: vec![],
            seen: FxHashSet::default(),
            launched: false,
        });
        calls()?;
        let host_ns = since(began);
        self.wait_idle()?;
        let mut running = lock(&profiler.running);
        let Some(r) = running.as_mut() else { return Ok(Profile::new(began)) };
        r.profile.host_ns = host_ns;
        let Some(&[first, _]) = r.events.first() else { return Ok(r.profile.clone()) };
        for (l, &[before, after]) in r.profile.launches.iter_mut().zip(&r.events) {
            // SAFETY: the events are the driver's, alive, and were passed: the stream was waited for.
            unsafe {
                l.start_ns = self.driver().elapsed_ns(first, before)?;
                l.ns = self.driver().elapsed_ns(before, after)?;
            }
            r.profile.device_ns = r.profile.device_ns.max(l.start_ns + l.ns);
        }
        let profile = r.profile.clone();
        drop(running);
        drop(taking);
        Ok(profile)
    }
}
