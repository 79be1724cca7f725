//! Times of calls, as [`CaptureOps::profile_calls`](super::CaptureOps::profile_calls) takes them.

use std::time::Instant;

/// An operation that was called.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ProfiledOp {
    /// Name, as in [`OpInfo`](crate::ops::OpInfo).
    pub name: &'static str,
    /// Bytes of its operands, each counted once: what has to be read and written at least where nothing is read twice. `None` on the CPU backend.
    pub bytes: Option<u64>,
}

impl ProfiledOp {
    pub(crate) fn new(name: &'static str, bytes: Option<u64>) -> Self {
        ProfiledOp { name, bytes }
    }
}

/// A kernel, a copy on the device or a call of a vendor's library; on the CPU backend an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ProfiledLaunch {
    /// Name of the kernel.
    pub name: String,
    /// Place in [`Profile::ops`] of the operation whose operands were last checked before it. Where an operation calls another within (the gradient of a
    /// product that of its activation), the kernels behind that count as the latter's.
    pub op: Option<usize>,
    /// When the host queued it, in nanoseconds since [`Profile::began`].
    pub queued_ns: u64,
    /// When it began on the device, in nanoseconds since the first began.
    pub start_ns: u64,
    /// How long it took, in nanoseconds.
    pub ns: u64,
}

impl ProfiledLaunch {
    pub(crate) fn new(name: &str, op: Option<usize>, queued_ns: u64) -> Self {
        ProfiledLaunch { name: name.into(), op, queued_ns, start_ns: 0, ns: 0 }
    }
}

/// What calls did on a device, and when.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Profile {
    /// When the calls began, by the host's clock.
    pub began: Instant,
    /// Operations in the order of their calls.
    pub ops: Vec<ProfiledOp>,
    /// What ran, in the order in which it was queued.
    pub launches: Vec<ProfiledLaunch>,
    /// Host time of the calls, the wait for the device at their end left out, in nanoseconds.
    pub host_ns: u64,
    /// Device time from the beginning of the first launch to the end of the last, in nanoseconds.
    pub device_ns: u64,
}

impl Profile {
    pub(crate) fn new(began: Instant) -> Self {
        Profile { began, ops: vec![], launches: vec![], host_ns: 0, device_ns: 0 }
    }
}

/// Nanoseconds since `began`.
pub(crate) fn since(began: Instant) -> u64 {
    u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX)
}
