//! CUDA graphs.

use std::ffi::c_ulonglong;
use std::ptr;

use cudarc::driver::sys as cu;

use super::CudaDriver;
use super::preflight::function_table;
use crate::driver::{RawGraph, RawStream, StreamGraphs};
use crate::error::Result;

function_table! {
    /// Functions of the driver library that make and launch graphs.
    GraphTable in cu -> CUresult {
        cuStreamBeginCapture_v2(cu::CUstream, cu::CUstreamCaptureMode);
        cuStreamEndCapture(cu::CUstream, *mut cu::CUgraph);
        cuGraphInstantiateWithFlags(*mut cu::CUgraphExec, cu::CUgraph, c_ulonglong);
        cuGraphLaunch(cu::CUgraphExec, cu::CUstream);
        cuGraphDestroy(cu::CUgraph);
        cuGraphExecDestroy(cu::CUgraphExec);
    }
}

/// Turns the status of a call into a result.
type Check<'a> = &'a dyn Fn(&'static str, u32) -> Result<()>;

impl GraphTable {
    /// Records the stream's work from now on. Nothing else than the launches of this thread goes to the stream, so that calls which a stricter mode
    /// forbids (a vendor's library that loads a module, other threads that allocate) do no harm.
    ///
    /// # Safety
    /// As [`StreamGraphs::begin_graph`].
    unsafe fn begin(&self, s: RawStream, check: Check<'_>) -> Result<()> {
        let mode = cu::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: the stream is live.
        let code = unsafe { (self.cuStreamBeginCapture_v2)(s.0 as cu::CUstream, mode) };
        check("cuStreamBeginCapture", code)
    }

    /// Ends the recording and makes an executable graph of it.
    ///
    /// # Safety
    /// As [`StreamGraphs::end_graph`].
    unsafe fn end(&self, s: RawStream, check: Check<'_>) -> Result<RawGraph> {
        let (mut graph, mut ready) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the stream records; writes one pointer, null where the recording was broken off.
        let code = unsafe { (self.cuStreamEndCapture)(s.0 as cu::CUstream, &mut graph) };
        let ended = check("cuStreamEndCapture", code);
        if graph.is_null() {
            return ended.and_then(|()| check("cuStreamEndCapture", INVALIDATED)).map(|()| RawGraph(0));
        }
        let made = ended.and_then(|()| {
            // SAFETY: the graph is live; writes one pointer.
            check("cuGraphInstantiate", unsafe { (self.cuGraphInstantiateWithFlags)(&mut ready, graph, 0) })
        });
        // SAFETY: the graph was made above, and what was made ready does not refer to it.
        let destroyed = check("cuGraphDestroy", unsafe { (self.cuGraphDestroy)(graph) });
        if let Err(e) = destroyed {
            log::warn!("{e}");
        }
        made.map(|()| RawGraph(ready as u64))
    }

    /// # Safety
    /// As [`StreamGraphs::launch_graph`].
    unsafe fn launch(&self, s: RawStream, g: RawGraph, check: Check<'_>) -> Result<()> {
        // SAFETY: graph and stream are live.
        check("cuGraphLaunch", unsafe { (self.cuGraphLaunch)(g.0 as cu::CUgraphExec, s.0 as cu::CUstream) })
    }

    /// # Safety
    /// As [`StreamGraphs::destroy_graph`].
    unsafe fn destroy(&self, g: RawGraph, check: Check<'_>) {
        // SAFETY: nobody else has the graph; launches that are under way end before it is freed.
        let code = unsafe { (self.cuGraphExecDestroy)(g.0 as cu::CUgraphExec) };
        if let Err(e) = check("cuGraphExecDestroy", code) {
            log::warn!("{e}");
        }
    }
}

/// The status of a recording that was broken off.
const INVALIDATED: u32 = cu::CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED as u32;

impl CudaDriver {
    fn graphs(&self) -> Result<&GraphTable> {
        self.enter()?;
        self.api.graphs.as_ref().map_err(|why| crate::GpuError::driver("cuGraphLaunch", 0, why.clone()))
    }
}

impl StreamGraphs for CudaDriver {
    unsafe fn begin_graph(&self, s: RawStream) -> Result<()> {
        // SAFETY: forwarded.
        unsafe { self.graphs()?.begin(s, &|call, code| self.api.check(call, code)) }
    }

    unsafe fn end_graph(&self, s: RawStream) -> Result<RawGraph> {
        // SAFETY: forwarded.
        unsafe { self.graphs()?.end(s, &|call, code| self.api.check(call, code)) }
    }

    unsafe fn launch_graph(&self, s: RawStream, g: RawGraph) -> Result<()> {
        // SAFETY: forwarded.
        unsafe { self.graphs()?.launch(s, g, &|call, code| self.api.check(call, code)) }
    }

    unsafe fn destroy_graph(&self, _: RawStream, g: RawGraph) {
        if let Ok(table) = self.graphs() {
            // SAFETY: forwarded.
            unsafe { table.destroy(g, &|call, code| self.api.check(call, code)) };
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;
    use crate::error::GpuError;

    /// The call that fails, with its status.
    type Failing = Option<(&'static str, u32)>;

    thread_local! {
        /// The calls, and the one that fails.
        static CALLS: RefCell<(Vec<String>, Failing)> = RefCell::default();
    }

    fn called(name: &'static str, arguments: &[u64]) -> u32 {
        CALLS.with_borrow_mut(|(calls, fails)| {
            calls.push(format!("{name}{arguments:?}"));
            fails.filter(|(failing, _)| *failing == name).map_or(0, |(_, code)| code)
        })
    }

    unsafe extern "C" fn begin(s: cu::CUstream, mode: cu::CUstreamCaptureMode) -> u32 {
        called("begin", &[s as u64, mode as u64])
    }

    unsafe extern "C" fn end(s: cu::CUstream, graph: *mut cu::CUgraph) -> u32 {
        let code = called("end", &[s as u64]);
        // SAFETY: the caller passes a place. A recording that was broken off gives none.
        unsafe { *graph = if code == INVALIDATED { ptr::null_mut() } else { 70 as cu::CUgraph } };
        code
    }

    unsafe extern "C" fn instantiate(ready: *mut cu::CUgraphExec, g: cu::CUgraph, flags: c_ulonglong) -> u32 {
        // SAFETY: the caller passes a place.
        unsafe { *ready = 71 as cu::CUgraphExec };
        called("instantiate", &[g as u64, flags])
    }

    unsafe extern "C" fn launch(g: cu::CUgraphExec, s: cu::CUstream) -> u32 {
        called("launch", &[g as u64, s as u64])
    }

    unsafe extern "C" fn destroy(g: cu::CUgraph) -> u32 {
        called("destroy", &[g as u64])
    }

    unsafe extern "C" fn destroy_exec(g: cu::CUgraphExec) -> u32 {
        called("destroy_exec", &[g as u64])
    }

    const STAND_IN: GraphTable = GraphTable {
        cuStreamBeginCapture_v2: begin,
        cuStreamEndCapture: end,
        cuGraphInstantiateWithFlags: instantiate,
        cuGraphLaunch: launch,
        cuGraphDestroy: destroy,
        cuGraphExecDestroy: destroy_exec,
    };

    fn check(call: &'static str, code: u32) -> Result<()> {
        if code == 0 { Ok(()) } else { Err(GpuError::driver(call, code.into(), "refused")) }
    }

    /// Records, ends, launches twice and destroys, as far as the failure lets it; the calls and what failed.
    fn run(fails: Failing) -> (Vec<String>, Option<String>) {
        CALLS.with_borrow_mut(|c| *c = (vec![], fails));
        let (t, s) = (&STAND_IN, RawStream(5));
        // SAFETY: the stand-ins read no handle.
        let done = unsafe {
            t.begin(s, &check).and_then(|()| t.end(s, &check)).and_then(|g| {
                t.launch(RawStream(6), g, &check)?;
                t.launch(RawStream(6), g, &check)?;
                t.destroy(g, &check);
                Ok(())
            })
        };
        (CALLS.with_borrow(|(calls, _)| calls.clone()), done.err().map(|e| e.to_string()))
    }

    #[test]
    fn a_stream_is_recorded_in_relaxed_mode_and_launched_as_a_whole() {
        let want = [
            "begin[5, 2]",
            "end[5]",
            "instantiate[70, 0]",
            "destroy[70]",
            "launch[71, 6]",
            "launch[71, 6]",
            "destroy_exec[71]",
        ];
        assert_eq!(run(None), (want.map(String::from).to_vec(), None));
    }

    #[test]
    fn failures_name_the_call_and_leave_no_graph() {
        for (fails, calls, names) in [
            (("begin", 1), 1, "cuStreamBeginCapture"),
            (("end", INVALIDATED), 2, "cuStreamEndCapture"),
            // A graph that came with an error is destroyed.
            (("end", 1), 3, "cuStreamEndCapture"),
            (("instantiate", 801), 4, "cuGraphInstantiate"),
            (("launch", 700), 5, "cuGraphLaunch"),
        ] {
            let (made, error) = run(Some(fails));
            assert_eq!(made.len(), calls, "{fails:?}: {made:?}");
            assert!(error.is_some_and(|e| e.contains(names)), "{fails:?}");
        }
    }
}
