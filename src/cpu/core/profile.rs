//! Times of operations, by the clock.

use std::cell::RefCell;
use std::time::Instant;

use crate::cpu::CpuBackend;
use crate::error::{GpuError, Result};
use crate::ops::core::{Profile, ProfiledLaunch, ProfiledOp, since};

/// Times that are being taken on a thread.
struct Taking {
    stream: u64,
    profile: Profile,
    /// Operations that an operation itself calls are part of it.
    within: bool,
}

thread_local! {
    static TAKING: RefCell<Option<Taking>> = const { RefCell::new(None) };
}

/// An operation; it takes until this is dropped.
#[must_use]
pub(in crate::cpu) struct Timed(Option<(&'static str, Instant)>);

impl Timed {
    /// The operation begins, on a handle of this stream.
    pub(in crate::cpu) fn begin(op: &'static str, stream: u64) -> Self {
        Timed(TAKING.with_borrow_mut(|t| {
            let t = t.as_mut().filter(|t| t.stream == stream && !t.within)?;
            t.within = true;
            Some((op, Instant::now()))
        }))
    }
}

impl Drop for Timed {
    fn drop(&mut self) {
        let Some((op, began)) = self.0 else { return };
        TAKING.with_borrow_mut(|t| {
            let Some(t) = t.as_mut() else { return };
            let start = began.saturating_duration_since(t.profile.began).as_nanos() as u64;
            let mut launch = ProfiledLaunch::new(op, Some(t.profile.ops.len()), start);
            (launch.start_ns, launch.ns) = (start, began.elapsed().as_nanos() as u64);
            t.profile.ops.push(ProfiledOp::new(op, None));
            t.profile.launches.push(launch);
            t.within = false;
        });
    }
}

/// Times are taken while this lives.
struct Ends;

impl Drop for Ends {
    fn drop(&mut self) {
        TAKING.set(None);
    }
}

impl CpuBackend {
    /// Runs calls of this thread, and gives what they did.
    pub(super) fn profile(&self, calls: &mut dyn FnMut() -> Result<()>) -> Result<Profile> {
        if TAKING.with_borrow(Option::is_some) {
            return Err(GpuError::invalid(
                "profile_calls",
                "calls",
                "one profile of a thread at a time",
                "another",
            ));
        }
        let began = Instant::now();
        TAKING.set(Some(Taking { stream: self.kernels.stream, profile: Profile::new(began), within: false }));
        let ends = Ends;
        calls()?;
        let host_ns = since(began);
        let taken = TAKING.take();
        drop(ends);
        let mut profile = taken.map_or_else(|| Profile::new(began), |t| t.profile);
        profile.host_ns = host_ns;
        // Times of the device begin with its first work.
        let first = profile.launches.first().map_or(0, |l| l.start_ns);
        profile.launches.iter_mut().for_each(|l| l.start_ns -= first);
        profile.device_ns = profile.launches.last().map_or(0, |l| l.start_ns + l.ns);
        Ok(profile)
    }
}
