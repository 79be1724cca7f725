//! Convolutions of MIOpen 3.
//!
//! The library is asked through its immediate mode: for each problem it lists solutions, which are its kernels, those that it expects to be the fastest
//! first. The first that is allowed, compiles and is content with the workspace is kept. That happens when a problem is first asked about, so that a run
//! has its kernel ready and allocates nothing: it can be recorded. No kernel is timed.
//!
//! There was no AMD GPU to run it on: a stand-in of the library holds the calls.

mod api;
#[cfg(test)]
mod stand_in;
#[cfg(test)]
mod tests;

use std::ptr;

use self::api::{
    Api, BAD_PARAMETER, Call, Descriptor, FFT, GEMM, Raw, Solution, Version, WINOGRAD, check, order,
};
use super::{library, number, pointer};
use crate::device::DeviceId;
use crate::driver::loader::DynLib;
use crate::driver::plan_cache::PlanCache;
use crate::driver::{ConvPass, ConvTensor, RawMem, RawStream, VendorConv, VendorConvProblem};
use crate::error::{GpuError, Result};

/// Overrides the search for MIOpen.
const VAR: &str = "TREFOIL_MIOPEN_LIB";
/// The version that is known: that of ROCm 6 and 7.
const MAJOR: usize = 3;
/// The most workspace that a solution may want.
const MAX_WORKSPACE: usize = 256 << 20;
/// Solutions that are looked at.
const MAX_SOLUTIONS: usize = 64;
/// Plans kept. What the library compiled for them it keeps itself.
const MAX_PLANS: usize = 1024;
/// Bytes at a multiple of which all tensors begin: the library is not told of alignment.
const ALIGN: usize = 16;
/// Numbers of the solutions that compute each output by its definition, in a thread of its own: the last resort of the library, slower than any kernel
/// of this one.
const NAIVE: std::ops::RangeInclusive<u64> = 85..=87;

/// Makes the device current in this thread.
pub(super) type Enter = Box<dyn Fn() -> Result<()> + Send + Sync>;

/// What was determined for a problem.
#[derive(Debug)]
struct Plan {
    /// Of x, w and y.
    tensors: [Descriptor; 3],
    conv: Descriptor,
    solution: u64,
    workspace: usize,
}

impl Plan {
    /// Descriptors of what is read, in the order of the pass, of the convolution, and of what is written.
    fn operands(&self, p: &VendorConvProblem) -> [Raw; 4] {
        let [a, b, to] = order(p.pass).map(|i| self.tensors[i].raw());
        [a, b, self.conv.raw(), to]
    }
}

/// The loaded library.
pub(super) struct Miopen {
    api: Api,
    device: DeviceId,
    enter: Enter,
    /// `miopenHandle_t`
    handle: u64,
    /// Also held while the handle is used, which is one thread's at a time.
    plans: PlanCache<VendorConvProblem, Plan>,
}

impl std::fmt::Debug for Miopen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Miopen")
    }
}

/// Opens the library for the device that `enter` makes current, which `runtime` drives; the reason if there is none.
pub(super) fn open(runtime: &str, device: DeviceId, enter: Enter) -> std::result::Result<Miopen, String> {
    let names: &[&str] = match cfg!(windows) {
        true => &["MIOpen.dll"],
        false => &["libMIOpen.so.1", "libMIOpen.so", "/opt/rocm/lib/libMIOpen.so"],
    };
    let lib = library::beside(runtime, VAR, names)?;
    Miopen::new(resolve(&lib)?, device, enter).map_err(|e| format!("{}: {e}", lib.name))
}

/// The functions of a library whose version is known.
fn resolve(lib: &DynLib) -> std::result::Result<Api, String> {
    // SAFETY: the prototype is that of miopen.h.
    let version = unsafe { Call::find(lib, "miopenGetVersion") }.map_err(|e| e.to_string())?;
    known(version).map_err(|why| format!("{}: {why}", lib.name))?;
    Api::resolve(lib).map_err(|e| e.to_string())
}

/// Whether the version is one whose interface is known.
fn known(call: Call<Version>) -> std::result::Result<(), String> {
    let [mut major, mut minor, mut patch] = [0; 3];
    // SAFETY: writes three numbers.
    let code = unsafe { (call.f)(&mut major, &mut minor, &mut patch) };
    check(call.name, code).map_err(|e| e.to_string())?;
    match major {
        MAJOR => Ok(()),
        _ => Err(format!("version {major}.{minor}.{patch} is not {MAJOR}.x")),
    }
}

/// Whether the problem is one that the library is asked about at all.
fn eligible(p: &VendorConvProblem) -> std::result::Result<(), String> {
    if api::data_type(p.dtype).is_none() {
        return Err(format!("{} convolutions", p.dtype));
    }
    p.narrow()?;
    if p.pad != p.pad_end {
        return Err("there are not as many zeros behind an axis as before it".into());
    }
    if !p.align.is_multiple_of(ALIGN) {
        return Err(format!("a tensor does not begin at a multiple of {ALIGN} bytes"));
    }
    let all = [&p.x, &p.w, &p.y];
    let is = |form: fn([usize; 5]) -> ConvTensor| all.iter().all(|t| **t == form(t.extents));
    if !is(ConvTensor::packed) && !is(ConvTensor::channels_last) {
        return Err("its tensors are neither all packed nor all channels last".into());
    }
    // The library's documentation has dilation 1 alone for groups.
    if groups(p) > 1 && p.dilation != [1; 3] {
        return Err("it has groups and dilation".into());
    }
    Ok(())
}

fn groups(p: &VendorConvProblem) -> usize {
    p.x.extents[1] / p.w.extents[1].max(1)
}

/// Whether a solution may be taken. Transforms have errors as large as the largest values nearby, and spread a NaN. Gradients by products of matrices
/// are added up in the type of the tensors: those of a weight image by image, those of an input tap by tap.
fn allowed(p: &VendorConvProblem, s: &Solution) -> std::result::Result<(), &'static str> {
    match s.algorithm {
        FFT | WINOGRAD => Err("no kernel of the library computes it without a transform"),
        GEMM if p.dtype.is_half() && p.pass != ConvPass::Forward => {
            Err("no kernel of the library has its sums in f32")
        }
        _ if NAIVE.contains(&s.id) => Err("the library has its naive kernel alone for it"),
        _ => Ok(()),
    }
}

impl Miopen {
    /// The library on the device that `enter` makes current; the reason if it does not start.
    fn new(api: Api, device: DeviceId, enter: Enter) -> Result<Self> {
        enter()?;
        let mut handle = ptr::null_mut();
        // SAFETY: writes one pointer; the device is current.
        check(api.create.name, unsafe { (api.create.f)(&mut handle) })?;
        Ok(Miopen { api, device, enter, handle: number(handle), plans: PlanCache::new(MAX_PLANS) })
    }

    /// Runs `f` with the plan of a problem, made if there is none.
    fn with_plan<T>(
        &self,
        p: &VendorConvProblem,
        f: impl FnOnce(&Plan) -> T,
    ) -> std::result::Result<T, String> {
        let make = || eligible(p).and_then(|()| self.plan(p));
        self.plans.with(p, make, drop, |plan| f(plan))
    }

    /// Describes a problem and takes the first of the library's solutions that can be taken.
    fn plan(&self, p: &VendorConvProblem) -> std::result::Result<Plan, String> {
        let text = |e: GpuError| e.to_string();
        (self.enter)().map_err(text)?;
        let tensor = |t| Descriptor::tensor(&self.api, p.dtype, t, p.axes);
        let describe = || Ok([tensor(&p.x)?, tensor(&p.w)?, tensor(&p.y)?]);
        let tensors = describe().map_err(text)?;
        let conv = Descriptor::convolution(&self.api, p, groups(p)).map_err(text)?;
        let mut plan = Plan { tensors, conv, solution: 0, workspace: 0 };
        let mut why = "the library has no kernel for it".to_string();
        for s in self.solutions(p, &plan).map_err(text)? {
            let ready = allowed(p, &s).map_err(String::from).and_then(|()| self.ready(p, &plan, &s));
            match ready {
                Ok(workspace) => {
                    log::debug!("MIOpen: {:?}: {s:?}", p.pass);
                    (plan.solution, plan.workspace) = (s.id, workspace);
                    return Ok(plan);
                }
                Err(reason) => why = reason,
            }
        }
        Err(why)
    }

    /// The library's solutions of a problem, those that it expects to be the fastest first.
    fn solutions(&self, p: &VendorConvProblem, plan: &Plan) -> Result<Vec<Solution>> {
        let (pass, [a, b, conv, to]) = (self.api.pass(p.pass), plan.operands(p));
        let (handle, mut count) = (pointer(self.handle), 0);
        // SAFETY: handle and descriptors are live; writes one number.
        check(pass.count.name, unsafe { (pass.count.f)(handle, a, b, conv, to, &mut count) })?;
        let mut found = vec![Solution::default(); count.min(MAX_SOLUTIONS)];
        if found.is_empty() {
            return Ok(found);
        }
        let (room, mut count) = (found.len(), 0);
        // SAFETY: as above; writes one number and at most as many solutions as there is room for.
        let code =
            unsafe { (pass.solutions.f)(handle, a, b, conv, to, room, &mut count, found.as_mut_ptr()) };
        check(pass.solutions.name, code)?;
        found.truncate(count);
        Ok(found)
    }

    /// Compiles a solution; the workspace that it wants, or why it cannot be taken.
    fn ready(&self, p: &VendorConvProblem, plan: &Plan, s: &Solution) -> std::result::Result<usize, String> {
        let (pass, [a, b, conv, to]) = (self.api.pass(p.pass), plan.operands(p));
        let (handle, mut bytes) = (pointer(self.handle), 0);
        let text = |e: GpuError| e.to_string();
        // SAFETY: handle and descriptors are live; writes one number.
        let code = unsafe { (pass.workspace.f)(handle, a, b, conv, to, s.id, &mut bytes) };
        check(pass.workspace.name, code).map_err(text)?;
        // What the list says may have been written down by another version.
        let bytes = bytes.max(s.workspace);
        if bytes > MAX_WORKSPACE {
            return Err(format!("its kernels want {bytes} bytes of workspace"));
        }
        // SAFETY: handle and descriptors are live.
        let code = unsafe { (pass.compile.f)(handle, a, b, conv, to, s.id) };
        check(pass.compile.name, code).map_err(text)?;
        Ok(bytes)
    }

    /// Queues the work of a plan.
    ///
    /// # Safety
    /// As for [`VendorConv::run`]; tensors are addresses of x, w and y.
    unsafe fn execute(
        &self,
        (s, p, plan): (RawStream, &VendorConvProblem, &Plan),
        tensors: [u64; 3],
        (workspace, room): (u64, usize),
    ) -> Result<()> {
        let run = self.api.pass(p.pass).run;
        if plan.workspace > room {
            let name = format!("{} bytes of workspace needed, {room} given", plan.workspace);
            return Err(GpuError::driver(run.name, BAD_PARAMETER.into(), name));
        }
        let (handle, set) = (pointer(self.handle), self.api.set_stream);
        // SAFETY: handle and stream are live.
        check(set.name, unsafe { (set.f)(handle, pointer(s.0)) })?;
        let [a, b, conv, to] = plan.operands(p);
        let [a_at, b_at, to_at] = order(p.pass).map(|i| pointer(tensors[i]));
        let (scratch, bytes, id) = (pointer(workspace), plan.workspace, plan.solution);
        // SAFETY: handle and descriptors are live; the memory is the caller's promise.
        let code = unsafe {
            (run.f)(handle, a, a_at.cast_const(), b, b_at.cast_const(), conv, to, to_at, scratch, bytes, id)
        };
        check(run.name, code)
    }
}

impl VendorConv for Miopen {
    fn name(&self) -> &'static str {
        "miopen"
    }

    fn applicable(&self, p: &VendorConvProblem) -> std::result::Result<(), String> {
        self.with_plan(p, |_| ())
    }

    fn workspace(&self, p: &VendorConvProblem) -> usize {
        self.with_plan(p, |plan| plan.workspace).unwrap_or(0)
    }

    unsafe fn run(
        &self,
        s: RawStream,
        p: &VendorConvProblem,
        tensors: [(RawMem, u64); 3],
        workspace: Option<(RawMem, u64, usize)>,
    ) -> Result<()> {
        (self.enter)()?;
        let tensors = tensors.map(|(m, offset)| m.0 + offset);
        let scratch = workspace.map_or((0, 0), |(m, offset, bytes)| (m.0 + offset, bytes));
        let op = self.api.pass(p.pass).run.name;
        // SAFETY: forwarded.
        let run = |plan: &Plan| unsafe { self.execute((s, p, plan), tensors, scratch) };
        let unsupported = |why: String| GpuError::Unsupported { op, device: self.device, why: why.into() };
        self.with_plan(p, run).map_err(unsupported)?
    }
}

impl Drop for Miopen {
    fn drop(&mut self) {
        let plans = self.plans.take();
        if (self.enter)().is_err() {
            // What belongs to a lost device is left as it is.
            std::mem::forget(plans);
            return;
        }
        drop(plans);
        // SAFETY: the only owner; no plan is left.
        unsafe { (self.api.destroy.f)(pointer(self.handle)) };
    }
}
