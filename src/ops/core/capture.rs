//! Recording a sequence of calls, and replaying it.

use std::fmt;

use crate::error::Result;
use crate::ops::core::Profile;

/// What is known of a [`Graph`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct GraphInfo {
    /// Kernels and calls of vendor libraries.
    pub launches: usize,
    /// Copies on the device.
    pub copies: usize,
    /// Bytes of device memory that the graph reserves: what was allocated while it was recorded, after rounding to size classes.
    pub bytes: usize,
    /// Why the host queues every launch of a replay, with the arguments that it prepared; `None` where the driver launches the whole graph.
    pub queued_by_host: Option<String>,
}

/// What a backend makes a [`Graph`] of.
pub trait BackendGraph: Send + Sync + fmt::Debug {
    /// Queues everything that was recorded.
    fn replay(&self) -> Result<()>;
    /// What is known of it.
    fn info(&self) -> &GraphInfo;
}

/// A recorded sequence of calls, from [`CaptureOps::capture_calls`] or [`BackendExt::capture`](crate::BackendExt::capture).
///
/// It reserves the memory that was allocated while it was recorded, also where the buffers are gone, and keeps buffers alive that were made before and
/// used in it. It can be replayed as often as wanted; the memory goes back to the handle's pool with the graph and the last buffer of the recording.
#[derive(Debug)]
pub struct Graph(Box<dyn BackendGraph>);

impl Graph {
    /// A graph of a backend.
    pub fn new(graph: impl BackendGraph + 'static) -> Self {
        Graph(Box::new(graph))
    }

    /// Queues the recorded calls anew on the stream of the handle that recorded them, behind what was queued there before. They read and write the same
    /// memory as in the recording: new inputs are copied into the buffers that it read, results are in those that it wrote, until the next replay.
    ///
    /// Nothing is allocated, compiled, uploaded or waited for. Indices out of range are reported as those of the recorded operations. Errors: `Capture`
    /// while a recording is under way on the handle; those of the driver.
    pub fn replay(&self) -> Result<()> {
        self.0.replay()
    }

    /// What was recorded, and how it is replayed.
    pub fn info(&self) -> &GraphInfo {
        self.0.info()
    }
}

op_family! {
    /// Recording and replay of calls.
    pub trait CaptureOps : Core => CAPTURE_OPS {
        /// Records what `calls` calls on this handle, from the calling thread, instead of running it. Operations check their arguments as ever and
        /// compile what they need; their results are there after the first [`Graph::replay`], which gives the bits that the calls themselves would
        /// have given. Other threads and other handles run their calls as ever. Source: CUDA graphs, `torch.cuda.graph`.
        ///
        /// Numbers that a call is given by value are part of the recording. What is to differ between replays lies in device memory: inputs, and those
        /// scalars that the operations take from there ([`Rng::device_offset`](crate::ops::random::Rng::device_offset),
        /// [`Scalar::Device`](crate::ops::optimizer::Scalar::Device)). Buffers allocated in the recording belong to the graph and cannot be adopted
        /// by other handles.
        ///
        /// Errors: those of `calls`; `Capture` with the name of the first call that cannot be recorded: copies from and to the host (`write_bytes`,
        /// `read_bytes`), `synchronize`, `record`, `wait`, `adopt`, `trim`, a replay, and a recording within one or beside one on this handle;
        /// `Unsupported` on the CPU backend, which computes before a call returns. Nothing was run then.
        fn capture_calls(&self, calls: &mut dyn FnMut() -> Result<()>) -> Result<Graph>;
        /// Runs what `calls` calls on this handle, from the calling thread, and takes the times of every kernel, copy on the device and call of a
        /// vendor's library, by events of the driver before and after it; on the CPU backend of every operation, by the clock. Waits for the device
        /// before and after. Calls that are not profiled cost nothing more.
        ///
        /// Events cost a few microseconds each: a kernel that takes less than the host needs to queue the next one appears longer than it is, and so do
        /// all calls together. A replay of a graph is not seen.
        ///
        /// Errors: those of `calls`; `Invalid` within another profile of this handle; `Capture` within a recording.
        fn profile_calls(&self, calls: &mut dyn FnMut() -> Result<()>) -> Result<Profile>;
    }
}
