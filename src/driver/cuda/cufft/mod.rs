//! Fourier transforms of cuFFT 11 and 12, which are those of CUDA 12 and 13.
//!
//! A plan is made for each problem, by the interface for batches of any stride. Work areas are the caller's: the library is told to allocate none, so
//! that a run queues its kernels and nothing else, and can be recorded. Results are not scaled; what the library does to a spectrum whose first bin has
//! an imaginary part depends on the length, so that it is given none (`engine::ops::fourier`).

#[cfg(test)]
mod stand_in;
#[cfg(test)]
mod tests;

use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use std::{ptr, thread};

use cudarc::cufft::sys as fft;
use cudarc::driver::sys as cu;
use fft::cufftType_t as Type;

use super::lock;
use super::preflight::{self, function_table, library_of};
use crate::device::DeviceId;
use crate::driver::loader::DynLib;
use crate::driver::plan_cache::PlanCache;
use crate::driver::{FftKind, RawMem, RawStream, VendorFft, VendorFftProblem};
use crate::dtype::DType;
use crate::error::{GpuError, Result};

/// Overrides the search for cuFFT.
const VAR: &str = "TREFOIL_CUFFT_LIB";
/// The versions that are known, with those of CUDA that have them.
const KNOWN: [(c_int, u32); 2] = [(12, 13), (11, 12)];
/// The most workspace that a plan may want.
const MAX_WORKSPACE: usize = 1 << 30;
/// Plans kept, each with tables of roots in device memory.
const MAX_PLANS: usize = 512;
const FORWARD: c_int = -1;
const INVERSE: c_int = 1;
const ALLOC_FAILED: u32 = 2;
const INTERNAL_ERROR: u32 = 5;
const NO_WORKSPACE: u32 = 13;

function_table! {
    /// Functions of the library.
    FftTable in fft -> cufftResult {
        cufftCreate(*mut fft::cufftHandle);
        cufftDestroy(fft::cufftHandle);
        cufftGetVersion(*mut c_int);
        cufftSetAutoAllocation(fft::cufftHandle, c_int);
        cufftMakePlanMany64(
            fft::cufftHandle,
            c_int,
            *mut i64,
            *mut i64,
            i64,
            i64,
            *mut i64,
            i64,
            i64,
            Type,
            i64,
            *mut usize,
        );
        cufftGetSize(fft::cufftHandle, *mut usize);
        cufftSetWorkArea(fft::cufftHandle, *mut c_void);
        cufftSetStream(fft::cufftHandle, fft::cudaStream_t);
        cufftExecC2C(fft::cufftHandle, *mut fft::cufftComplex, *mut fft::cufftComplex, c_int);
        cufftExecZ2Z(fft::cufftHandle, *mut fft::cufftDoubleComplex, *mut fft::cufftDoubleComplex, c_int);
        cufftExecR2C(fft::cufftHandle, *mut fft::cufftReal, *mut fft::cufftComplex);
        cufftExecD2Z(fft::cufftHandle, *mut fft::cufftDoubleReal, *mut fft::cufftDoubleComplex);
        cufftExecC2R(fft::cufftHandle, *mut fft::cufftComplex, *mut fft::cufftReal);
        cufftExecZ2D(fft::cufftHandle, *mut fft::cufftDoubleComplex, *mut fft::cufftDoubleReal);
    }
}

/// Name of a status; those from 17 on are of version 12.
fn status_name(code: u32) -> &'static str {
    match code {
        1 => "CUFFT_INVALID_PLAN",
        ALLOC_FAILED => "CUFFT_ALLOC_FAILED",
        3 => "CUFFT_INVALID_TYPE",
        4 => "CUFFT_INVALID_VALUE",
        INTERNAL_ERROR => "CUFFT_INTERNAL_ERROR",
        6 => "CUFFT_EXEC_FAILED",
        7 => "CUFFT_SETUP_FAILED",
        8 => "CUFFT_INVALID_SIZE",
        9 => "CUFFT_UNALIGNED_DATA",
        10 => "CUFFT_INCOMPLETE_PARAMETER_LIST",
        11 => "CUFFT_INVALID_DEVICE",
        12 => "CUFFT_PARSE_ERROR",
        NO_WORKSPACE => "CUFFT_NO_WORKSPACE",
        14 => "CUFFT_NOT_IMPLEMENTED",
        15 => "CUFFT_LICENSE_ERROR",
        16 => "CUFFT_NOT_SUPPORTED",
        17 => "CUFFT_MISSING_DEPENDENCY",
        18 => "CUFFT_NVRTC_FAILURE",
        19 => "CUFFT_NVJITLINK_FAILURE",
        20 => "CUFFT_NVSHMEM_FAILURE",
        _ => "unknown cuFFT status",
    }
}

fn check(call: &'static str, code: u32) -> Result<()> {
    match code {
        0 => Ok(()),
        _ => Err(GpuError::driver(call, code.into(), status_name(code))),
    }
}

/// Whether a version is one whose interface is known: 1000 major + 100 minor + patch.
fn known(version: c_int) -> std::result::Result<(), String> {
    match KNOWN.iter().any(|(major, _)| *major == version / 1000) {
        true => Ok(()),
        false => Err(format!("version {version} is neither 11.x nor 12.x")),
    }
}

/// File names of the library: that of the driver's CUDA first, then older ones, then newer ones.
fn names(driver_major: u32) -> Vec<String> {
    let mut known = KNOWN;
    known.sort_by_key(|&(_, cuda)| cuda > driver_major);
    let name = |(major, _)| match cfg!(windows) {
        true => format!("cufft64_{major}.dll"),
        false => format!("libcufft.so.{major}"),
    };
    known.map(name).to_vec()
}

/// The functions of a library whose version is known.
fn resolve(lib: &DynLib) -> std::result::Result<FftTable, String> {
    let table = FftTable::resolve(lib).map_err(|e| e.to_string())?;
    let mut version = 0;
    // SAFETY: writes one number.
    let code = unsafe { (table.cufftGetVersion)(&mut version) };
    check("cufftGetVersion", code).map_err(|e| e.to_string())?;
    known(version).map_err(|why| format!("{}: {why}", lib.name))?;
    log::debug!("cuFFT {version}");
    Ok(table)
}

/// Whether the problem is one that the library is asked about at all.
fn eligible(p: &VendorFftProblem) -> std::result::Result<(), String> {
    if !matches!(p.dtype, DType::F32 | DType::F64) {
        return Err(format!("{} transforms", p.dtype));
    }
    let extents = [p.n, p.batch, p.stride, p.distance[0], p.distance[1]];
    if extents.contains(&0) {
        return Err("an extent is 0".into());
    }
    if extents.iter().any(|&e| i64::try_from(e).is_err()) {
        return Err("an extent needs more than 63 bits".into());
    }
    Ok(())
}

/// The type of a problem's plan.
fn transform_type(p: &VendorFftProblem) -> Type {
    match (p.kind, p.dtype == DType::F64) {
        (FftKind::Forward | FftKind::Inverse, false) => Type::CUFFT_C2C,
        (FftKind::Forward | FftKind::Inverse, true) => Type::CUFFT_Z2Z,
        (FftKind::RealToBins, false) => Type::CUFFT_R2C,
        (FftKind::RealToBins, true) => Type::CUFFT_D2Z,
        (FftKind::BinsToReal, false) => Type::CUFFT_C2R,
        (FftKind::BinsToReal, true) => Type::CUFFT_Z2D,
    }
}

/// Held while a plan is made, used or destroyed, by whatever driver object of the process: the library (12.0) gave some plans `CUFFT_INTERNAL_ERROR` where
/// two threads made plans at a time.
static LIBRARY: Mutex<()> = Mutex::new(());

/// How often a plan is tried that the library refuses with `CUFFT_INTERNAL_ERROR`, and the pause between two attempts. With one attempt, 1
/// to 7 plans were refused in each of three runs of tests side by side, and none where tests ran one after another; with six, none in three runs. The cause
/// is not known.
const ATTEMPTS: u32 = 6;
const PAUSE: Duration = Duration::from_millis(20);

/// What was determined for a problem: a plan of the library, which ends with it.
#[derive(Debug)]
struct Plan {
    table: Arc<FftTable>,
    handle: fft::cufftHandle,
    workspace: usize,
    ran: bool,
    /// Whether a run was recorded: its graph reads the plan's tables.
    recorded: bool,
}

impl Plan {
    fn new(table: &Arc<FftTable>, p: &VendorFftProblem) -> Result<Self> {
        for _ in 1..ATTEMPTS {
            match Plan::make(table, p) {
                Err(GpuError::Driver(failure)) if failure.code == INTERNAL_ERROR.into() => {
                    thread::sleep(PAUSE)
                }
                made => return made,
            }
        }
        Plan::make(table, p)
    }

    /// A plan of the library, which is told to allocate no work area.
    fn make(table: &Arc<FftTable>, p: &VendorFftProblem) -> Result<Self> {
        let mut handle = 0;
        // SAFETY: writes one number.
        check("cufftCreate", unsafe { (table.cufftCreate)(&mut handle) })?;
        let mut plan = Plan { table: Arc::clone(table), handle, workspace: 0, ran: false, recorded: false };
        // SAFETY: the plan is live.
        let code = unsafe { (table.cufftSetAutoAllocation)(handle, 0) };
        check("cufftSetAutoAllocation", code)?;
        // Without these the library would take strides and distances for those of packed rows; of one axis, it does not read the numbers.
        let [mut n, mut read, mut written] = [p.n as i64; 3];
        let [from, to] = p.distance.map(|d| d as i64);
        let (stride, batch, mut bytes) = (p.stride as i64, p.batch as i64, 0);
        let alone = lock(&LIBRARY);
        // SAFETY: the plan is live; each list has one number, as one axis has; writes one number.
        let code = unsafe {
            (table.cufftMakePlanMany64)(
                handle,
                1,
                &mut n,
                &mut read,
                stride,
                from,
                &mut written,
                stride,
                to,
                transform_type(p),
                batch,
                &mut bytes,
            )
        };
        drop(alone);
        check("cufftMakePlanMany64", code)?;
        // SAFETY: the plan is live; writes one number.
        check("cufftGetSize", unsafe { (table.cufftGetSize)(handle, &mut plan.workspace) })?;
        Ok(plan)
    }

    /// Queues the transforms.
    ///
    /// # Safety
    /// As for [`VendorFft::run`]; operands and workspace are addresses.
    unsafe fn execute(
        &self,
        s: RawStream,
        p: &VendorFftProblem,
        x: u64,
        y: u64,
        workspace: u64,
    ) -> Result<()> {
        let (t, plan) = (&*self.table, self.handle);
        let [x, y, workspace] =
            [x, y, workspace].map(|at| ptr::with_exposed_provenance_mut::<c_void>(at as usize));
        let _alone = lock(&LIBRARY);
        // SAFETY: plan and stream are live.
        check("cufftSetStream", unsafe { (t.cufftSetStream)(plan, s.0 as fft::cudaStream_t) })?;
        // SAFETY: the memory is the caller's promise.
        check("cufftSetWorkArea", unsafe { (t.cufftSetWorkArea)(plan, workspace) })?;
        let direction = if p.kind == FftKind::Inverse { INVERSE } else { FORWARD };
        // SAFETY: the plan is of this type; the memory is the caller's promise.
        unsafe {
            match transform_type(p) {
                Type::CUFFT_C2C => {
                    check("cufftExecC2C", (t.cufftExecC2C)(plan, x.cast(), y.cast(), direction))
                }
                Type::CUFFT_Z2Z => {
                    check("cufftExecZ2Z", (t.cufftExecZ2Z)(plan, x.cast(), y.cast(), direction))
                }
                Type::CUFFT_R2C => check("cufftExecR2C", (t.cufftExecR2C)(plan, x.cast(), y.cast())),
                Type::CUFFT_D2Z => check("cufftExecD2Z", (t.cufftExecD2Z)(plan, x.cast(), y.cast())),
                Type::CUFFT_C2R => check("cufftExecC2R", (t.cufftExecC2R)(plan, x.cast(), y.cast())),
                Type::CUFFT_Z2D => check("cufftExecZ2D", (t.cufftExecZ2D)(plan, x.cast(), y.cast())),
            }
        }
    }
}

impl Drop for Plan {
    fn drop(&mut self) {
        let _alone = lock(&LIBRARY);
        // SAFETY: made by `new`, destroyed once; the context is current wherever plans end.
        let code = unsafe { (self.table.cufftDestroy)(self.handle) };
        if code != 0 {
            log::warn!("cufftDestroy: {}", status_name(code));
        }
    }
}

/// What the library needs of the device's driver.
pub(super) struct Ties {
    /// Makes the context current in this thread.
    enter: Box<dyn Fn() -> Result<()> + Send + Sync>,
    /// Whether a stream's work is recorded, not run.
    captures: Box<dyn Fn(RawStream) -> Result<bool> + Send + Sync>,
}

impl Ties {
    fn new(cuda: &'static preflight::Api, context: u64) -> Self {
        let enter = move || {
            // SAFETY: the driver object that owns the library retains the context.
            let code = unsafe { (cuda.table.cuCtxSetCurrent)(context as cu::CUcontext) };
            cuda.check("cuCtxSetCurrent", code)
        };
        let captures = move |s: RawStream| {
            let mut status = cu::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
            // SAFETY: the stream is live; writes one number, of which the interface has had three values from the start.
            let code = unsafe { (cuda.table.cuStreamIsCapturing)(s.0 as cu::CUstream, &mut status) };
            cuda.check("cuStreamIsCapturing", code)?;
            Ok(status != cu::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE)
        };
        Ties { enter: Box::new(enter), captures: Box::new(captures) }
    }
}

/// The loaded library.
pub(super) struct Cufft {
    table: Arc<FftTable>,
    device: DeviceId,
    ties: Ties,
    plans: PlanCache<VendorFftProblem, Plan>,
    /// Plans that were given up but stand in recorded graphs, which may live as long as the driver.
    kept: Mutex<Vec<Plan>>,
}

impl std::fmt::Debug for Cufft {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Cufft")
    }
}

/// Opens the library for the device of this context; the reason if there is none.
pub(super) fn open(
    cuda: &'static preflight::Api,
    device: DeviceId,
    context: u64,
) -> std::result::Result<Cufft, String> {
    let lib = library_of(VAR, names(cuda.version / 1000), "cufft").map_err(|e| e.to_string())?;
    Ok(Cufft::new(resolve(&lib)?, device, Ties::new(cuda, context), MAX_PLANS))
}

impl Cufft {
    fn new(table: FftTable, device: DeviceId, ties: Ties, most: usize) -> Self {
        Cufft { table: Arc::new(table), device, ties, plans: PlanCache::new(most), kept: Mutex::default() }
    }

    /// Runs `f` with the plan of a problem, made if there is none.
    fn with_plan<T>(
        &self,
        p: &VendorFftProblem,
        f: impl FnOnce(&mut Plan) -> T,
    ) -> std::result::Result<T, String> {
        let end = |plan: Plan| match plan.recorded {
            true => lock(&self.kept).push(plan),
            // The library frees its tables by a call that waits for the device.
            false => drop(plan),
        };
        self.plans.with(p, || self.plan(p), end, f)
    }

    fn plan(&self, p: &VendorFftProblem) -> std::result::Result<Plan, String> {
        eligible(p)?;
        let made = (self.ties.enter)().and_then(|()| Plan::new(&self.table, p));
        match made.map_err(|e| e.to_string())? {
            plan if plan.workspace > MAX_WORKSPACE => {
                Err(format!("its kernels want {} bytes of workspace", plan.workspace))
            }
            plan => Ok(plan),
        }
    }
}

impl VendorFft for Cufft {
    fn name(&self) -> &'static str {
        "cufft"
    }

    fn applicable(&self, p: &VendorFftProblem) -> std::result::Result<(), String> {
        self.with_plan(p, |_| ())
    }

    fn workspace(&self, p: &VendorFftProblem) -> usize {
        self.with_plan(p, |plan| plan.workspace).unwrap_or(0)
    }

    fn first_run_loads(&self, p: &VendorFftProblem) -> bool {
        self.with_plan(p, |plan| !plan.ran).unwrap_or(false)
    }

    unsafe fn run(
        &self,
        s: RawStream,
        p: &VendorFftProblem,
        x: (RawMem, u64),
        y: (RawMem, u64),
        workspace: Option<(RawMem, u64, usize)>,
    ) -> Result<()> {
        (self.ties.enter)()?;
        let [x, y] = [x, y].map(|(m, offset)| m.0 + offset);
        let (scratch, room) = workspace.map_or((0, 0), |(m, offset, bytes)| (m.0 + offset, bytes));
        let run = |plan: &mut Plan| -> Result<()> {
            if plan.workspace > room {
                let what = format!("{} bytes of workspace needed, {room} given", plan.workspace);
                return Err(GpuError::driver("cufftSetWorkArea", NO_WORKSPACE.into(), what));
            }
            plan.recorded = plan.recorded || (self.ties.captures)(s)?;
            // SAFETY: forwarded.
            unsafe { plan.execute(s, p, x, y, scratch) }?;
            plan.ran = true;
            Ok(())
        };
        let unsupported =
            |why: String| GpuError::Unsupported { op: "cufftExec", device: self.device, why: why.into() };
        self.with_plan(p, run).map_err(unsupported)?
    }
}

impl Drop for Cufft {
    fn drop(&mut self) {
        let (plans, kept) = (self.plans.take(), std::mem::take(&mut *lock(&self.kept)));
        if (self.ties.enter)().is_err() {
            // What belongs to a lost context is left as it is.
            std::mem::forget((plans, kept));
        }
    }
}
