//! HIP graphs.

use std::ptr;

use hip_sys::{HipGraphs, hipError_t, hipErrorStreamCaptureInvalidated, hipStreamCaptureModeRelaxed};

use super::{HipDriver, number, pointer};
use crate::driver::{Driver, RawGraph, RawStream, StreamGraphs};
use crate::error::Result;

/// Turns the status of a call into a result.
type Check<'a> = &'a dyn Fn(&'static str, hipError_t) -> Result<()>;

/// Ends the recording of a stream and makes an executable graph of it.
///
/// # Safety
/// As [`StreamGraphs::end_graph`].
unsafe fn end(hip: &HipGraphs, s: RawStream, check: Check<'_>) -> Result<RawGraph> {
    let (mut graph, mut ready) = (ptr::null_mut(), ptr::null_mut());
    // SAFETY: the stream records, and the place is valid.
    let ended = check("hipStreamEndCapture", unsafe { hip.hipStreamEndCapture(pointer(s.0), &mut graph) });
    if graph.is_null() {
        let broken = || check("hipStreamEndCapture", hipErrorStreamCaptureInvalidated);
        return ended.and_then(|()| broken()).map(|()| RawGraph(0));
    }
    let made = ended.and_then(|()| {
        // SAFETY: the graph is live, and the place is valid.
        let status = unsafe { hip.hipGraphInstantiateWithFlags(&mut ready, graph, 0) };
        check("hipGraphInstantiateWithFlags", status)
    });
    // SAFETY: the graph was made above, and what was made ready does not refer to it.
    if let Err(e) = check("hipGraphDestroy", unsafe { hip.hipGraphDestroy(graph) }) {
        log::warn!("{e}");
    }
    made.map(|()| RawGraph(number(ready)))
}

impl HipDriver {
    /// The functions, with the device current.
    fn graph_functions(&self) -> Result<&HipGraphs> {
        self.bind()?;
        self.graphs.as_ref().map_err(|why| crate::GpuError::driver("hipGraphLaunch", 0, why.clone()))
    }
}

impl StreamGraphs for HipDriver {
    unsafe fn begin_graph(&self, s: RawStream) -> Result<()> {
        let hip = self.graph_functions()?;
        // SAFETY: the stream is live. Nothing else than the launches of this thread goes to it, so that no stricter mode is needed.
        let status = unsafe { hip.hipStreamBeginCapture(pointer(s.0), hipStreamCaptureModeRelaxed) };
        self.check("hipStreamBeginCapture", status)
    }

    unsafe fn end_graph(&self, s: RawStream) -> Result<RawGraph> {
        // SAFETY: forwarded.
        unsafe { end(self.graph_functions()?, s, &|call, status| self.check(call, status)) }
    }

    unsafe fn launch_graph(&self, s: RawStream, g: RawGraph) -> Result<()> {
        let hip = self.graph_functions()?;
        // SAFETY: graph and stream are live.
        self.check("hipGraphLaunch", unsafe { hip.hipGraphLaunch(pointer(g.0), pointer(s.0)) })
    }

    unsafe fn destroy_graph(&self, s: RawStream, g: RawGraph) {
        let Ok(hip) = self.graph_functions() else { return };
        // AMD's documentation does not say what becomes of launches that are under way, so they are waited for.
        // SAFETY: the stream is live, and nobody else has the graph.
        let done = unsafe {
            self.synchronize(s)
                .and_then(|()| self.check("hipGraphExecDestroy", hip.hipGraphExecDestroy(pointer(g.0))))
        };
        if let Err(e) = done {
            log::warn!("{e}");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use hip_sys::{HipGraphFunctions, hipGraph_t, hipGraphExec_t, hipStream_t, hipStreamCaptureMode};

    use super::*;
    use crate::error::GpuError;

    /// The call that fails, with its status.
    type Failing = Option<(&'static str, hipError_t)>;

    thread_local! {
        /// The calls, and the one that fails.
        static CALLS: RefCell<(Vec<String>, Failing)> = RefCell::default();
    }

    fn called(name: &'static str, arguments: &[u64]) -> hipError_t {
        CALLS.with_borrow_mut(|(calls, fails)| {
            calls.push(format!("{name}{arguments:?}"));
            fails.filter(|(failing, _)| *failing == name).map_or(0, |(_, code)| code)
        })
    }

    unsafe extern "C" fn begin(s: hipStream_t, mode: hipStreamCaptureMode) -> hipError_t {
        called("begin", &[number(s), mode as u64])
    }

    unsafe extern "C" fn end_capture(s: hipStream_t, graph: *mut hipGraph_t) -> hipError_t {
        let status = called("end", &[number(s)]);
        let broken = status == hipErrorStreamCaptureInvalidated;
        // SAFETY: the caller passes a place.
        unsafe { *graph = if broken { ptr::null_mut() } else { pointer(70) } };
        status
    }

    unsafe extern "C" fn instantiate(ready: *mut hipGraphExec_t, g: hipGraph_t, flags: u64) -> hipError_t {
        // SAFETY: the caller passes a place.
        unsafe { *ready = pointer(71) };
        called("instantiate", &[number(g), flags])
    }

    unsafe extern "C" fn launch(g: hipGraphExec_t, s: hipStream_t) -> hipError_t {
        called("launch", &[number(g), number(s)])
    }

    unsafe extern "C" fn destroy(g: hipGraph_t) -> hipError_t {
        called("destroy", &[number(g)])
    }

    unsafe extern "C" fn destroy_exec(g: hipGraphExec_t) -> hipError_t {
        called("destroy_exec", &[number(g)])
    }

    fn stand_in() -> HipGraphs {
        let functions = HipGraphFunctions {
            hipStreamBeginCapture: begin,
            hipStreamEndCapture: end_capture,
            hipGraphInstantiateWithFlags: instantiate,
            hipGraphLaunch: launch,
            hipGraphDestroy: destroy,
            hipGraphExecDestroy: destroy_exec,
        };
        // SAFETY: the calls below give the stand-ins what they expect.
        unsafe { HipGraphs::of(functions) }
    }

    /// Ends a recording; the calls, and the graph or what failed.
    fn run(fails: Failing) -> (Vec<String>, std::result::Result<u64, String>) {
        CALLS.with_borrow_mut(|c| *c = (vec![], fails));
        let check = |call: &'static str, code: hipError_t| match code {
            0 => Ok(()),
            _ => Err(GpuError::driver(call, code.into(), "refused")),
        };
        // SAFETY: the stand-ins read no handle.
        let done = unsafe { end(&stand_in(), RawStream(5), &check) };
        (CALLS.with_borrow(|(calls, _)| calls.clone()), done.map(|g| g.0).map_err(|e| e.to_string()))
    }

    #[test]
    fn a_recording_becomes_one_graph() {
        let want = ["end[5]", "instantiate[70, 0]", "destroy[70]"].map(String::from).to_vec();
        assert_eq!(run(None), (want, Ok(71)));
    }

    #[test]
    fn failures_name_the_call_and_leave_no_graph() {
        for (fails, calls, names) in [
            (("end", hipErrorStreamCaptureInvalidated), 1, "hipStreamEndCapture"),
            (("end", 1), 2, "hipStreamEndCapture"),
            (("instantiate", 801), 3, "hipGraphInstantiateWithFlags"),
        ] {
            let (made, done) = run(Some(fails));
            assert_eq!(made.len(), calls, "{fails:?}: {made:?}");
            assert!(done.is_err_and(|e| e.contains(names)), "{fails:?}");
        }
    }
}
