//! Graphs of an interface that records the work of a stream: CUDA's and HIP's.

use super::{RawGraph, RawStream};
use crate::error::Result;

/// Recording of a stream's work into a graph, and its launch as a whole.
///
/// The engine keeps a list of what it recorded and queues it, once, on a stream of its own between [`StreamGraphs::begin_graph`] and
/// [`StreamGraphs::end_graph`]: nothing else goes to that stream, and nothing waits or allocates meanwhile. Where a driver has no graphs, or one cannot be
/// made, the engine queues the list anew for every replay.
pub trait StreamGraphs: Send + Sync {
    /// From now on what is queued on the stream is recorded and not run.
    ///
    /// # Safety
    /// `s` is an idle stream of this driver.
    unsafe fn begin_graph(&self, s: RawStream) -> Result<()>;

    /// Ends the recording and makes what was recorded ready to launch. The stream is as it was before, also where this fails.
    ///
    /// # Safety
    /// `s` is the stream of a [`StreamGraphs::begin_graph`] that succeeded.
    unsafe fn end_graph(&self, s: RawStream) -> Result<RawGraph>;

    /// Queues the graph.
    ///
    /// # Safety
    /// `s` and `g` are of this driver and alive, as is all that the graph's kernels and copies use.
    unsafe fn launch_graph(&self, s: RawStream, g: RawGraph) -> Result<()>;

    /// Destroys a graph.
    ///
    /// # Safety
    /// `g` came from [`StreamGraphs::end_graph`], is not used again, and all launches of it were queued on `s`, which is alive.
    unsafe fn destroy_graph(&self, s: RawStream, g: RawGraph);
}
