//! Recording a sequence of calls, and replaying it.

use crate::error::Result;
use crate::ops::core::{Graph, Profile};

op_family! {
    /// Recording and replay of calls.
    pub trait CaptureOps : Core => CAPTURE_OPS {
        /// Records what `calls` calls on this handle, from the calling thread, instead of running it. Operations check their arguments as ever and
        /// compile what they need; their results are there after the first [`Graph::replay`], which gives the bits that the calls themselves would
        /// have given. Other threads and other handles run their calls as ever. Source: CUDA graphs, `torch.cuda.graph`.
        ///
        /// What a replay calls need not be what was recorded: calls whose results nobody reads are left out, elementwise calls become one kernel, and
        /// what the recording allocated and dropped shares memory. The variants `plain` (nothing of it) and `parallel` (independent calls also run side
        /// by side, in graphs of CUDA and HIP) are chosen with [`pin_variant`](super::InteropOps::pin_variant), or `TREFOIL_FUSION=off`; the bits are
        /// the same. [`GraphInfo`](super::GraphInfo) says what became of the calls, [`Graph::dot`] draws them.
        ///
        /// The CPU backend makes each call once while it records, on copies of what the call would change, and fuses nothing (variants `compact` and
        /// `plain`).
        ///
        /// Numbers that a call is given by value are part of the recording. What is to differ between replays lies in device memory: inputs, and those
        /// scalars that the operations take from there ([`Rng::device_offset`](crate::ops::random::Rng::device_offset),
        /// [`Scalar::Device`](crate::ops::optimizer::Scalar::Device)). Buffers allocated in the recording belong to the graph and cannot be adopted
        /// by other handles.
        ///
        /// Errors: those of `calls`; `Capture` with the name of the first call that cannot be recorded: copies from and to the host (`write_bytes`,
        /// `read_bytes`), `synchronize`, `record`, `wait`, `adopt`, `trim`, a replay, a profile, and a recording within one or beside one on this
        /// handle. Nothing was run then.
        fn capture_calls(&self, calls: &mut dyn FnMut() -> Result<()>) -> Result<Graph>;
        /// Runs what `calls` calls on this handle, from the calling thread, and takes the times of every kernel, copy on the device and call of a
        /// vendor's library, by events of the driver before and after it; on the CPU backend of every operation, by the clock. Waits for the device
        /// before and after. Calls that are not profiled cost nothing more.
        ///
        /// Events cost a few microseconds each: a kernel that takes less than the host needs to queue the next one appears longer than it is, and so do
        /// all calls together. A replay of a graph is not seen, except on the CPU backend.
        ///
        /// Errors: those of `calls`; `Invalid` within another profile of this handle; `Capture` within a recording.
        fn profile_calls(&self, calls: &mut dyn FnMut() -> Result<()>) -> Result<Profile>;
    }
}
