//! Convolutions and attention of cuDNN 9.
//!
//! The library is asked through its graph interface, which has the fastest kernels for tensor cores. For each problem it lists configurations of its
//! kernels; the first that has the precision asked for, repeats bit by bit and is content with the workspace is taken. Of a large problem the first
//! few are run and timed once, as the library's expectations are often wrong; what was found holds for the rest of the process.

mod attention;
mod descriptor;
mod graph;
#[cfg(test)]
mod stand_in;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::ptr;
use std::sync::{Arc, Mutex};

use cudarc::cudnn::sys as dnn;
use cudarc::driver::sys as cu;
use dnn::cudnnBackendHeurMode_t as Mode;

use self::attention::AttentionPlan;
use self::descriptor::{Api, Descriptor};
use self::graph::{Graph, IDS, Notes, Way, eligible};
use super::lock;
use super::preflight::{self, library_of};
use crate::device::DeviceId;
use crate::driver::plan_cache::PlanCache;
use crate::driver::{
    RawMem, RawStream, VendorAttention, VendorAttentionProblem, VendorConv, VendorConvProblem,
};
use crate::error::{GpuError, Result};

/// Overrides the search for cuDNN.
const VAR: &str = "TREFOIL_CUDNN_LIB";
/// Turns the timing of kernels off.
const TUNE_VAR: &str = "TREFOIL_CUDNN_TUNE";
/// Allows transforms for f32.
const TRANSFORMS_VAR: &str = "TREFOIL_CUDNN_TRANSFORMS";
/// Allows gradients that do not repeat bit by bit.
const ATOMICS_VAR: &str = "TREFOIL_CUDNN_ATOMICS";
/// The version that is known.
const MAJOR: usize = 9;
/// The most workspace that a kernel may want.
const MAX_WORKSPACE: usize = 256 << 20;
/// Kernels that are timed at most.
const TRIED: usize = 8;
/// Slower than the best by this factor in one run: no more are made.
const SLOW: f32 = 1.5;
/// Operations from which on kernels are timed: about 20 us of an H200 in f32.
const LARGE: usize = 1 << 30;
/// Runs that are timed, after one that is not.
const RUNS: u16 = 5;
/// Plans kept, of convolutions and of attention.
const MAX_PLANS: usize = 1024;

/// Which of the ways proved to be the fastest, for the life of the process.
static FASTEST: Mutex<Option<HashMap<(DeviceId, VendorConvProblem), usize>>> = Mutex::new(None);

/// What was found for a problem.
#[derive(Debug)]
struct Plan {
    /// The first is to be taken, if there is one only; else they are to be timed.
    ways: Vec<Way>,
    _graph: Graph,
}

/// The loaded library.
pub(super) struct Cudnn {
    api: Arc<Api>,
    cuda: &'static preflight::Api,
    device: DeviceId,
    context: u64,
    /// `cudnnHandle_t`
    handle: u64,
    tune: bool,
    /// Whether f32 products may be computed by Fourier and Winograd transforms.
    transforms: bool,
    /// Whether gradients may be summed by atomic additions.
    atomics: bool,
    version: usize,
    /// Also held while the handle's stream is set and work is queued.
    plans: PlanCache<VendorConvProblem, Plan>,
    /// Likewise.
    attention: PlanCache<VendorAttentionProblem, AttentionPlan>,
}

impl std::fmt::Debug for Cudnn {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Cudnn")
    }
}

impl Cudnn {
    /// Opens the library for the device of this context; the reason if there is none.
    pub(super) fn open(
        cuda: &'static preflight::Api,
        device: DeviceId,
        context: u64,
    ) -> std::result::Result<Self, String> {
        let name = if cfg!(windows) { "cudnn64_9.dll" } else { "libcudnn.so.9" };
        let lib = library_of(VAR, vec![name.into()], "cudnn").map_err(|e| e.to_string())?;
        // SAFETY: prototype of cudnnGetVersion.
        let version: unsafe extern "C" fn() -> usize =
            unsafe { lib.function("cudnnGetVersion") }.map_err(|e| e.to_string())?;
        // SAFETY: takes nothing and reads a constant.
        let version = unsafe { version() };
        known(version).map_err(|why| format!("{}: {why}", lib.name))?;
        let api = Arc::new(Api::resolve(&lib).map_err(|e| e.to_string())?);
        let is =
            |var: &str, values: [&str; 2]| std::env::var(var).is_ok_and(|v| values.contains(&v.as_str()));
        let mut cudnn = Cudnn {
            api,
            cuda,
            device,
            context,
            handle: 0,
            tune: !is(TUNE_VAR, ["0", "off"]),
            transforms: is(TRANSFORMS_VAR, ["1", "on"]),
            atomics: is(ATOMICS_VAR, ["1", "on"]),
            version,
            plans: PlanCache::new(MAX_PLANS),
            attention: PlanCache::new(MAX_PLANS),
        };
        cudnn.enter().map_err(|e| e.to_string())?;
        let mut handle = ptr::null_mut();
        // SAFETY: writes one pointer; the context is current.
        let code = unsafe { (cudnn.api.table.cudnnCreate)(&mut handle) };
        cudnn.api.check("cudnnCreate", code).map_err(|e| format!("{}: {e}", lib.name))?;
        cudnn.handle = handle as u64;
        log::debug!("{device}: cuDNN {version}");
        Ok(cudnn)
    }

    fn enter(&self) -> Result<()> {
        // SAFETY: the driver object that owns this one retains the context.
        let code = unsafe { (self.cuda.table.cuCtxSetCurrent)(self.context as cu::CUcontext) };
        self.cuda.check("cuCtxSetCurrent", code)
    }

    /// Runs `f` with the plan of a problem, made if there is none.
    fn with_plan<T>(
        &self,
        p: &VendorConvProblem,
        f: impl FnOnce(&mut Plan) -> T,
    ) -> std::result::Result<T, String> {
        self.plans.with(p, || eligible(p).and_then(|()| self.plan(p)), drop, f)
    }

    /// Runs `f` with the plan of attention, made if there is none.
    fn with_attention<T>(
        &self,
        p: &VendorAttentionProblem,
        f: impl FnOnce(&AttentionPlan) -> T,
    ) -> std::result::Result<T, String> {
        let make = || {
            attention::eligible(self.version, p)?;
            self.enter().map_err(|e| e.to_string())?;
            AttentionPlan::new(&self.api, self.handle, p, !self.atomics)
        };
        self.attention.with(p, make, drop, |plan| f(plan))
    }

    fn set_stream(&self, s: RawStream) -> Result<()> {
        // SAFETY: handle and stream are live.
        let code = unsafe {
            (self.api.table.cudnnSetStream)(self.handle as dnn::cudnnHandle_t, s.0 as dnn::cudaStream_t)
        };
        self.api.check("cudnnSetStream", code)
    }

    fn plan(&self, p: &VendorConvProblem) -> std::result::Result<Plan, String> {
        let text = |e: GpuError| e.to_string();
        self.enter().map_err(text)?;
        let graph = Graph::conv(&self.api, self.handle, p).map_err(text)?;
        let known = lock(&FASTEST).get_or_insert_default().get(&(self.device, *p)).copied();
        let most = match known {
            Some(at) => at + 1,
            None if self.tune && p.operations() >= LARGE => TRIED,
            None => 1,
        };
        let mut ways = Vec::new();
        let mut why = "the library has no kernel for it".to_string();
        // Where the first list has few kernels that are allowed, those of the second may be faster.
        for mode in [Mode::CUDNN_HEUR_MODE_A, Mode::CUDNN_HEUR_MODE_FALLBACK] {
            match graph.configs(mode) {
                Ok(configs) => self.ready(p, configs, most, &mut ways, &mut why),
                Err(e) => why = e.to_string(),
            }
        }
        if let Some(at) = known.filter(|&at| at < ways.len()) {
            ways.swap(0, at);
            ways.truncate(1);
        }
        if ways.is_empty() { Err(why) } else { Ok(Plan { ways, _graph: graph }) }
    }

    /// Makes configurations ready to run, until there are `most`. The reason of the last that is not goes to `why`.
    fn ready(
        &self,
        p: &VendorConvProblem,
        configs: Vec<Descriptor>,
        most: usize,
        ways: &mut Vec<Way>,
        why: &mut String,
    ) {
        for config in configs {
            if ways.len() == most {
                break;
            }
            let allowed =
                |(notes, engine): (Notes, i64)| notes.allowed(engine, p, self.transforms, self.atomics);
            let way = Notes::of(&config).and_then(|found| match allowed(found) {
                true => Way::new(self.handle, config, found).map(Some),
                false => Ok(None),
            });
            match way {
                Ok(Some(way)) if way.workspace <= MAX_WORKSPACE => ways.push(way),
                Ok(Some(way)) => *why = format!("its kernels want {} bytes of workspace", way.workspace),
                Ok(None) => *why = "no kernel of the library has this precision and repeats".into(),
                Err(e) => *why = e.to_string(),
            }
        }
    }

    /// Leaves the fastest way only.
    ///
    /// # Safety
    /// As for [`VendorConv::run`].
    unsafe fn settle(
        &self,
        p: &VendorConvProblem,
        s: RawStream,
        plan: &mut Plan,
        tensors: [u64; 3],
        workspace: u64,
    ) -> Result<()> {
        let mut best = (0, f32::INFINITY);
        if !self.capturing(s)? {
            for (i, way) in plan.ways.iter().enumerate() {
                // SAFETY: forwarded; what a run writes does not depend on what was there.
                let run = || unsafe { way.execute(self.handle, (&IDS, &tensors), workspace) };
                // A way that fails is none.
                let once = self.time(s, 1, &run).unwrap_or(f32::INFINITY);
                let ms = if once > SLOW * best.1 { once } else { self.time(s, RUNS, &run).unwrap_or(once) };
                log::debug!("cuDNN: {:?}: engine {}, {:?}: {ms} ms", p.pass, way.engine, way.notes);
                if ms < best.1 {
                    best = (i, ms);
                }
            }
        }
        lock(&FASTEST).get_or_insert_default().insert((self.device, *p), best.0);
        plan.ways.swap(0, best.0);
        plan.ways.truncate(1);
        Ok(())
    }

    fn unsupported(&self, why: String) -> GpuError {
        GpuError::Unsupported { op: "cudnnBackendExecute", device: self.device, why: why.into() }
    }

    /// Whether the stream's work is recorded, not run.
    fn capturing(&self, s: RawStream) -> Result<bool> {
        let mut status = cu::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        // SAFETY: the stream is live; writes one number, of which the interface has had three values from the start.
        let code = unsafe { (self.cuda.table.cuStreamIsCapturing)(s.0 as cu::CUstream, &mut status) };
        self.cuda.check("cuStreamIsCapturing", code)?;
        Ok(status != cu::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE)
    }

    /// Milliseconds of a run, the mean of some after one that is not timed.
    fn time(&self, s: RawStream, runs: u16, run: &dyn Fn() -> Result<()>) -> Result<f32> {
        let (t, stream) = (&self.cuda.table, s.0 as cu::CUstream);
        let check = |call, code| self.cuda.check(call, code);
        let mut events = [ptr::null_mut(); 2];
        let mut ms = 0.0;
        let timed = (|| {
            for e in &mut events {
                // SAFETY: writes one pointer.
                check("cuEventCreate", unsafe { (t.cuEventCreate)(e, 0) })?;
            }
            run()?;
            // SAFETY: events and stream are live and of one context; the last call writes one float.
            unsafe {
                check("cuEventRecord", (t.cuEventRecord)(events[0], stream))?;
                (0..runs).try_for_each(|_| run())?;
                check("cuEventRecord", (t.cuEventRecord)(events[1], stream))?;
                check("cuEventSynchronize", (t.cuEventSynchronize)(events[1]))?;
                check("cuEventElapsedTime", (t.cuEventElapsedTime)(&mut ms, events[0], events[1]))
            }
        })();
        for e in events.into_iter().filter(|e| !e.is_null()) {
            // SAFETY: made above, destroyed once.
            unsafe { (t.cuEventDestroy_v2)(e) };
        }
        timed.map(|()| ms / f32::from(runs))
    }
}

/// Whether a version is one whose interface is known.
fn known(version: usize) -> std::result::Result<(), String> {
    // 90100 is 9.1.0; before 9 a major version had a thousand.
    if version / 10_000 == MAJOR {
        return Ok(());
    }
    Err(format!("version {version} is not {MAJOR}.x"))
}

impl VendorConv for Cudnn {
    fn name(&self) -> &'static str {
        "cudnn"
    }

    fn applicable(&self, p: &VendorConvProblem) -> std::result::Result<(), String> {
        self.with_plan(p, |_| ())
    }

    fn workspace(&self, p: &VendorConvProblem) -> usize {
        self.with_plan(p, |plan| plan.ways.iter().map(|w| w.workspace).max()).ok().flatten().unwrap_or(0)
    }

    unsafe fn may_time(&self, s: RawStream, p: &VendorConvProblem) -> bool {
        self.tune && p.operations() >= LARGE && self.enter().is_ok() && self.capturing(s).is_ok_and(|on| !on)
    }

    unsafe fn run(
        &self,
        s: RawStream,
        p: &VendorConvProblem,
        tensors: [(RawMem, u64); 3],
        workspace: Option<(RawMem, u64, usize)>,
    ) -> Result<()> {
        self.enter()?;
        let tensors = tensors.map(|(m, offset)| m.0 + offset);
        let (scratch, room) = workspace.map_or((0, 0), |(m, offset, bytes)| (m.0 + offset, bytes));
        let run = |plan: &mut Plan| -> Result<()> {
            let want = plan.ways.iter().map(|w| w.workspace).max().unwrap_or(0);
            enough(want, room)?;
            self.set_stream(s)?;
            if plan.ways.len() > 1 {
                // SAFETY: forwarded.
                unsafe { self.settle(p, s, plan, tensors, scratch) }?;
            }
            // SAFETY: forwarded.
            unsafe { plan.ways[0].execute(self.handle, (&IDS, &tensors), scratch) }
        };
        self.with_plan(p, run).map_err(|why| self.unsupported(why))?
    }
}

impl VendorAttention for Cudnn {
    fn name(&self) -> &'static str {
        "cudnn"
    }

    fn applicable(&self, p: &VendorAttentionProblem) -> std::result::Result<(), String> {
        self.with_attention(p, |_| ())
    }

    fn repeats(&self) -> bool {
        !self.atomics
    }

    fn workspace(&self, p: &VendorAttentionProblem) -> usize {
        self.with_attention(p, AttentionPlan::workspace).unwrap_or(0)
    }

    unsafe fn run(
        &self,
        s: RawStream,
        p: &VendorAttentionProblem,
        scale: f32,
        tensors: &[(RawMem, u64)],
        workspace: Option<(RawMem, u64, usize)>,
    ) -> Result<()> {
        self.enter()?;
        let operands: Vec<u64> = tensors.iter().map(|(m, offset)| m.0 + offset).collect();
        let (scratch, room) = workspace.map_or((0, 0), |(m, offset, bytes)| (m.0 + offset, bytes));
        let run = |plan: &AttentionPlan| -> Result<()> {
            enough(plan.workspace(), room)?;
            // The handle's stream stays this call's until its work is queued.
            let _convolutions = self.plans.hold();
            self.set_stream(s)?;
            // SAFETY: forwarded.
            unsafe { plan.execute(self.handle, &operands, scale, scratch) }
        };
        self.with_attention(p, run).map_err(|why| self.unsupported(why))?
    }
}

/// An error if less workspace was given than a call wants.
fn enough(want: usize, room: usize) -> Result<()> {
    if want <= room {
        return Ok(());
    }
    let name = format!("{want} bytes of workspace needed, {room} given");
    Err(GpuError::driver("cudnnBackendExecute", 2006, name))
}

impl Drop for Cudnn {
    fn drop(&mut self) {
        if self.handle == 0 || self.enter().is_err() {
            // Descriptors of a lost context are left as they are.
            std::mem::forget(self.plans.take());
            std::mem::forget(self.attention.take());
            return;
        }
        drop(self.plans.take());
        drop(self.attention.take());
        // SAFETY: the only owner; no plan is left.
        unsafe { (self.api.table.cudnnDestroy)(self.handle as dnn::cudnnHandle_t) };
    }
}
