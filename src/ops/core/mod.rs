//! Memory, copies, streams, events and introspection.

mod capture;
mod edges;
mod graph;
mod interop;
mod profile;
mod tuned;

pub use self::capture::*;
pub(crate) use self::edges::{Touch, edges};
pub use self::graph::*;
pub use self::interop::*;
pub use self::profile::*;
pub use self::tuned::*;

use std::any::Any;
use std::sync::Arc;

use crate::ops::IGpuBackend;
use crate::buffer::{Buffer, View, ViewMut};
use crate::device::{Caps, DeviceId};
use crate::dtype::DType;
use crate::error::Result;

/// Bytes held by a handle's memory pool.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryStats {
    /// Bytes in live buffers (after rounding to size classes).
    pub in_use: usize,
    /// Bytes kept for reuse.
    pub cached: usize,
    /// Highest `in_use` so far, or since [`CoreOps::reset_peak`].
    pub peak: usize,
}

/// What a device has been asked to do since it was opened. All handles of a device share one set.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// Kernels launched (CPU backend: operations run).
    pub launches: u64,
    /// Copies from host to device.
    pub uploads: u64,
    /// Copies from device to host.
    pub downloads: u64,
    /// Kernel units compiled (a hit in the disk cache is none).
    pub compiles: u64,
    /// Allocations that reached the driver (a hit in the pool is none).
    pub allocations: u64,
    /// Times the host waited for the device.
    pub syncs: u64,
}

/// A recorded point of a stream.
#[derive(Debug, Clone)]
pub struct Event(Arc<dyn BackendEvent>);

/// What a backend makes an [`Event`] of.
pub trait BackendEvent: Any + Send + Sync + std::fmt::Debug {
    /// Waits on the host.
    fn wait_host(&self) -> Result<()>;
    /// Nanoseconds of device time from `self` to `later`. Errors: `Invalid` for an event of another device.
    fn elapsed_ns(&self, later: &Event) -> Result<u64>;
}

impl Event {
    /// An event of a backend.
    pub fn new(event: impl BackendEvent) -> Self {
        Event(Arc::new(event))
    }

    /// What its backend made it of, if that is a `T`.
    pub fn downcast_ref<T: BackendEvent>(&self) -> Option<&T> {
        (&*self.0 as &dyn Any).downcast_ref()
    }

    /// Waits on the host until the device has passed this point.
    pub fn synchronize(&self) -> Result<()> {
        self.0.wait_host()
    }

    /// Device time in nanoseconds between this event and a later one of the same device, both already passed.
    pub fn elapsed_ns(&self, later: &Event) -> Result<u64> {
        self.0.elapsed_ns(later)
    }
}

io_struct! {
    /// Which implementation serves an operation, and why not the others.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Choice {
        /// The operation.
        pub op: &'static str,
        /// The variant that would run.
        pub chosen: String,
        /// The file (or vendor library) that it comes from.
        pub source: String,
        /// The other variants, each with the reason why it does not run.
        pub rejected: Vec<(String, String)> = Vec::new(),
        /// What decided.
        pub by: ChosenBy = ChosenBy::Rule,
        /// The variants that were timed for this problem, with nanoseconds, if any were.
        pub measured: Vec<(String, u64)> = Vec::new(),
    }
}

impl Choice {
    /// Why a variant that takes the problem does not run.
    pub(crate) const PREFERRED: &'static str = "another variant is preferred";

    /// The other variants that take the problem too, and run it where they are pinned.
    pub fn alternatives(&self) -> impl Iterator<Item = &str> {
        self.rejected.iter().filter(|(_, why)| why == Self::PREFERRED).map(|(name, _)| name.as_str())
    }
}

/// An argument of a user's kernel.
#[derive(Debug)]
#[non_exhaustive]
pub enum RawArg<'a> {
    /// A contiguous view that is read. In the kernel: `GK_IN(type, name)` with `GK_BIND_IN(type, name)`.
    In(View<'a>),
    /// A contiguous view that is written. In the kernel: `GK_OUT(type, name)` with `GK_BIND_OUT(type, name)`.
    Out(ViewMut<'a>),
    /// `int`.
    I32(i32),
    /// `gk_u32`.
    U32(u32),
    /// `gk_i64`.
    I64(i64),
    /// `float`; `gk_f` in units of f32, f16 and bf16.
    F32(f32),
    /// `gk_f` in units of f64.
    F64(f64),
}

/// A compiled kernel of the user, for [`CoreOps::launch_raw`].
#[derive(Debug, Clone)]
pub struct RawKernel(Arc<dyn Any + Send + Sync>);

impl RawKernel {
    /// A kernel of a backend.
    pub fn new(kernel: impl Any + Send + Sync) -> Self {
        RawKernel(Arc::new(kernel))
    }

    /// What its backend made it of, if that is a `T`.
    pub fn downcast_ref<T: Any>(&self) -> Option<&T> {
        self.0.downcast_ref()
    }
}

op_family! {
    /// Memory, copies, streams, events and introspection.
    pub trait CoreOps : Core => CORE_OPS {
        /// The device of this handle.
        fn id(&self) -> DeviceId;
        /// What the device is and can do.
        fn caps(&self) -> &Caps;
        /// A buffer of `len` elements with unspecified contents. Errors: `OutOfMemory`, `Unsupported` dtype.
        fn alloc(&self, dtype: DType, len: usize) -> Result<Buffer>;
        /// Copies host bytes into a contiguous view (`src.len()` must be its size in bytes). May return before the copy is done; `src` can
        /// be reused at once.
        fn write_bytes(&self, dst: ViewMut<'_>, src: &[u8]) -> Result<()>;
        /// Waits for all work of this handle, then copies a contiguous view to the host. Reports pending asynchronous errors.
        fn read_bytes(&self, src: View<'_>, dst: &mut [u8]) -> Result<()>;
        /// Byte-exact copy between contiguous views of equal dtype and size (`copy_buffer`). Overlapping ranges are `Invalid`.
        fn copy(&self, src: View<'_>, dst: ViewMut<'_>) -> Result<()>;
        /// Waits until all work of this handle is done and reports asynchronous errors (`IndexOutOfRange`, `Poisoned`).
        fn synchronize(&self) -> Result<()>;
        /// Another handle of the same device with a stream of its own; compiled kernels are shared.
        fn fork_stream(&self) -> Result<Arc<dyn IGpuBackend>>;
        /// Marks the current end of the stream.
        fn record(&self) -> Result<Event>;
        /// Lets later work of this handle wait for an event of the same device (any stream).
        fn wait(&self, event: &Event) -> Result<()>;
        /// Moves a buffer of another handle of the same device to this one: later work here waits for what that handle has queued so far, and
        /// the memory returns to this handle's pool. `Invalid` for a buffer of another device, or one that views or captures still share.
        fn adopt(&self, buffer: Buffer) -> Result<Buffer>;
        /// Counters of the device.
        fn counters(&self) -> Counters;
        /// Memory of this handle's pool.
        fn memory(&self) -> MemoryStats;
        /// Lets [`MemoryStats::peak`] begin anew, at what is in use: for the peak of what runs from here on.
        fn reset_peak(&self);
        /// Returns cached blocks to the driver.
        fn trim(&self) -> Result<()>;
        /// Compiles all kernel units of these families for f32 before first use.
        fn warmup(&self, families: &[crate::ops::Family]) -> Result<()>;
        /// Which variant of `op` (an [`OpInfo`](crate::ops::OpInfo) name) this handle would run for a typical problem.
        fn explain(&self, op: &str) -> Result<Choice>;
        /// Compiles a kernel of the user's. `source` is written in the dialect of `docs/KERNEL_DIALECT.md` (the prelude is put in front),
        /// `entry` names its `GK_KERNEL`, `dtype` selects `gk_t`. Parameters are pointers and scalars that a [`RawArg`] can hold. A parameter
        /// `gk_i64 NAME_len` behind the pointer `NAME` gets the number of elements that were passed for `NAME`, without an argument of its own.
        ///
        /// Errors: `Invalid` where the text has no such prototype; `Compile`; `Unsupported` on the CPU backend.
        ///
        /// # Safety
        /// The prototype of `entry` is in effect as it is written, not redefined by macros or left out by conditions. Launched with any grid, any
        /// scalars and any contiguous buffers of the declared types, the kernel reads and writes inside those buffers only; the lengths that
        /// `NAME_len` gives make that possible.
        [unsafe] fn compile_raw(&self, source: &str, entry: &str, dtype: DType) -> Result<RawKernel>;
        /// Launches a user's kernel with `grid` blocks of [`BLOCK`](crate::spec::BLOCK) threads; 2^31 - 1 blocks at most on the first axis, 65,535
        /// on the others. The arguments are those of the prototype in order, without the lengths.
        ///
        /// Errors: `Invalid` for a grid, a number, type or dtype of arguments that does not fit, views that are not contiguous, buffers of
        /// another device or stream, and outputs that share memory with another argument.
        fn launch_raw(&self, kernel: &RawKernel, grid: [u32; 3], args: &mut [RawArg<'_>]) -> Result<()>;
    }
}
