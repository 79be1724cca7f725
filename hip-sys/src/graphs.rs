//! Graphs of the HIP runtime: recorded work of a stream, launched as a whole.

use crate::consts::*;
use crate::load::{LoadError, function_table};
use crate::runtime::Hip;

/// The functions of graphs, which older runtimes lack in part. Their library stays open.
#[derive(Debug, Clone)]
pub struct HipGraphs {
    functions: HipGraphFunctions,
}

function_table! {
    /// Addresses of the functions of graphs.
    table HipGraphFunctions;
    owner HipGraphs;

    /// Records what is queued on a stream from now on, instead of running it.
    fn hipStreamBeginCapture(stream: hipStream_t, mode: hipStreamCaptureMode) -> hipError_t;
    /// Ends the recording; the graph is null where it was broken off.
    fn hipStreamEndCapture(stream: hipStream_t, graph: *mut hipGraph_t) -> hipError_t;
    /// Makes a graph ready to launch; `flags` is 0.
    fn hipGraphInstantiateWithFlags(ready: *mut hipGraphExec_t, graph: hipGraph_t, flags: u64) -> hipError_t;
    /// Queues a graph.
    fn hipGraphLaunch(graph: hipGraphExec_t, stream: hipStream_t) -> hipError_t;
    /// Destroys a graph; what was made ready of it stays.
    fn hipGraphDestroy(graph: hipGraph_t) -> hipError_t;
    /// Destroys what was made ready.
    fn hipGraphExecDestroy(graph: hipGraphExec_t) -> hipError_t;
}

impl HipGraphs {
    /// The functions at these addresses.
    ///
    /// # Safety
    /// They have the effects of AMD's, and their library is not closed.
    pub unsafe fn of(functions: HipGraphFunctions) -> HipGraphs {
        HipGraphs { functions }
    }
}

impl Hip {
    /// The functions of graphs.
    ///
    /// # Errors
    /// The first function that the runtime lacks.
    pub fn graphs(&self) -> Result<HipGraphs, LoadError> {
        // SAFETY: the library is a HIP runtime, as it was when it was opened.
        let functions = unsafe { HipGraphFunctions::read(&self.opened)? };
        Ok(HipGraphs { functions })
    }
}
