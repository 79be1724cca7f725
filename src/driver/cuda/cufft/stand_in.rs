//! A stand-in of cuFFT that keeps what it is given, refuses what the library refuses, and transforms in the host's memory.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::slice;

use super::{ALLOC_FAILED, FftTable, INVERSE, NO_WORKSPACE, Type, fft};
use crate::driver::blas_reference::{decode, encode};
use crate::driver::fft_reference::transform;
use crate::driver::{FftKind, VendorFftProblem};
use crate::dtype::DType;

pub(super) const INVALID_PLAN: u32 = 1;
pub(super) const INVALID_VALUE: u32 = 4;
pub(super) const EXEC_FAILED: u32 = 6;
pub(super) const STREAM: u64 = 0x77;

/// A plan: its numbers, once it was made.
#[derive(Debug, Clone, Default)]
pub(super) struct Made {
    pub(super) auto: bool,
    pub(super) problem: Option<VendorFftProblem>,
    pub(super) ty: u32,
    stream: u64,
    area: Option<u64>,
}

#[derive(Default)]
pub(super) struct Library {
    plans: BTreeMap<c_int, Made>,
    last: c_int,
    /// Names of the calls.
    pub(super) calls: Vec<&'static str>,
    /// The call that fails, and its status.
    pub(super) fails: Option<(&'static str, u32)>,
    /// How often it fails, if not always.
    pub(super) times: Option<u32>,
    /// Bytes of workspace that every plan wants.
    pub(super) workspace: usize,
    /// Plans that ran.
    pub(super) ran: Vec<Made>,
}

impl Library {
    pub(super) fn live(&self) -> usize {
        self.plans.len()
    }
}

thread_local! {
    static LIBRARY: RefCell<Library> = RefCell::default();
}

pub(super) fn with<T>(f: impl FnOnce(&mut Library) -> T) -> T {
    LIBRARY.with(|l| f(&mut l.borrow_mut()))
}

/// Notes a call; what it does, unless it is to fail.
fn called(name: &'static str, f: impl FnOnce(&mut Library) -> u32) -> u32 {
    with(|l| {
        l.calls.push(name);
        let left = l.times != Some(0);
        match l.fails {
            Some((failing, status)) if failing == name && left => {
                l.times = l.times.map(|n| n - 1);
                status
            }
            _ => f(l),
        }
    })
}

/// Notes a call on a plan.
fn on(name: &'static str, plan: c_int, f: impl FnOnce(&mut Made, usize) -> u32) -> u32 {
    called(name, |l| {
        let workspace = l.workspace;
        l.plans.get_mut(&plan).map_or(INVALID_PLAN, |made| f(made, workspace))
    })
}

unsafe extern "C" fn create(out: *mut fft::cufftHandle) -> u32 {
    called("cufftCreate", |l| {
        l.last += 1;
        l.plans.insert(l.last, Made { auto: true, ..Made::default() });
        // SAFETY: the caller passes a place for one number.
        unsafe { *out = l.last };
        0
    })
}

unsafe extern "C" fn destroy(plan: fft::cufftHandle) -> u32 {
    called("cufftDestroy", |l| if l.plans.remove(&plan).is_some() { 0 } else { INVALID_PLAN })
}

unsafe extern "C" fn version(out: *mut c_int) -> u32 {
    // SAFETY: the caller passes a place for one number.
    called("cufftGetVersion", |_| unsafe {
        *out = 12_000;
        0
    })
}

unsafe extern "C" fn set_auto_allocation(plan: fft::cufftHandle, on_: c_int) -> u32 {
    on("cufftSetAutoAllocation", plan, |made, _| match made.problem {
        None => {
            made.auto = on_ != 0;
            0
        }
        Some(_) => INVALID_VALUE,
    })
}

fn kind_of(ty: Type) -> (FftKind, DType) {
    match ty {
        Type::CUFFT_C2C => (FftKind::Forward, DType::F32),
        Type::CUFFT_Z2Z => (FftKind::Forward, DType::F64),
        Type::CUFFT_R2C => (FftKind::RealToBins, DType::F32),
        Type::CUFFT_D2Z => (FftKind::RealToBins, DType::F64),
        Type::CUFFT_C2R => (FftKind::BinsToReal, DType::F32),
        Type::CUFFT_Z2D => (FftKind::BinsToReal, DType::F64),
    }
}

unsafe extern "C" fn make_plan(
    plan: fft::cufftHandle,
    rank: c_int,
    n: *mut i64,
    read: *mut i64,
    stride: i64,
    from: i64,
    written: *mut i64,
    out_stride: i64,
    to: i64,
    ty: Type,
    batch: i64,
    bytes: *mut usize,
) -> u32 {
    on("cufftMakePlanMany64", plan, |made, workspace| {
        // SAFETY: the caller passes a list of `rank` numbers, and a place for one.
        let n = unsafe {
            *bytes = workspace;
            *n
        };
        let positive = [n, stride, from, to, batch].into_iter().all(|v| v > 0);
        let embedded = !read.is_null() && !written.is_null();
        if rank != 1 || !positive || !embedded || stride != out_stride || made.problem.is_some() {
            return INVALID_VALUE;
        }
        if made.auto {
            return ALLOC_FAILED;
        }
        let (kind, dtype) = kind_of(ty);
        let [n, stride, from, to, batch] = [n, stride, from, to, batch].map(|v| v as usize);
        let distance = [from, to];
        made.problem = Some(VendorFftProblem { kind, n, batch, stride, distance, dtype });
        made.ty = ty as u32;
        0
    })
}

unsafe extern "C" fn get_size(plan: fft::cufftHandle, bytes: *mut usize) -> u32 {
    on("cufftGetSize", plan, |_, workspace| {
        // SAFETY: the caller passes a place for one number.
        unsafe { *bytes = workspace };
        0
    })
}

unsafe extern "C" fn set_work_area(plan: fft::cufftHandle, area: *mut c_void) -> u32 {
    on("cufftSetWorkArea", plan, |made, _| {
        made.area = Some(area.expose_provenance() as u64);
        0
    })
}

unsafe extern "C" fn set_stream(plan: fft::cufftHandle, stream: fft::cudaStream_t) -> u32 {
    on("cufftSetStream", plan, |made, _| {
        made.stream = stream as u64;
        0
    })
}

/// # Safety
/// x and y are as large as the plan says.
unsafe fn execute(
    name: &'static str,
    plan: c_int,
    ty: Type,
    direction: c_int,
    x: *mut c_void,
    y: *mut c_void,
) -> u32 {
    called(name, |l| {
        let (workspace, Some(made)) = (l.workspace, l.plans.get(&plan).cloned()) else { return INVALID_PLAN };
        let Some(mut p) = made.problem.filter(|_| made.ty == ty as u32) else { return INVALID_PLAN };
        match made.area {
            Some(area) if workspace == 0 || area != 0 => {}
            _ => return NO_WORKSPACE,
        }
        if made.stream != STREAM {
            return EXEC_FAILED;
        }
        if p.kind == FftKind::Forward && direction == INVERSE {
            p.kind = FftKind::Inverse;
        }
        let size = p.dtype.size();
        let [read, written] = p.reals();
        // SAFETY: the caller's promise.
        let (x, y) = unsafe {
            let bytes = |at: *mut c_void, reals| slice::from_raw_parts_mut(at.cast::<u8>(), reals * size);
            (bytes(x, read), bytes(y, written))
        };
        let (mut from, mut to) = (decode(p.dtype, x), decode(p.dtype, y));
        transform(&p, &mut from, &mut to);
        x.copy_from_slice(&encode(p.dtype, &from));
        y.copy_from_slice(&encode(p.dtype, &to));
        l.ran.push(made);
        0
    })
}

macro_rules! exec {
    ($($name:ident = $symbol:literal, $ty:ident, $x:ty => $y:ty, $($direction:ident)?;)*) => {$(
        unsafe extern "C" fn $name(
            plan: fft::cufftHandle,
            x: *mut $x,
            y: *mut $y,
            $($direction: c_int,)?
        ) -> u32 {
            let direction = 0 $(+ $direction)?;
            // SAFETY: the caller passes memory of the plan's sizes.
            unsafe { execute($symbol, plan, Type::$ty, direction, x.cast(), y.cast()) }
        }
    )*};
}

exec! {
    c2c = "cufftExecC2C", CUFFT_C2C, fft::cufftComplex => fft::cufftComplex, direction;
    z2z = "cufftExecZ2Z", CUFFT_Z2Z, fft::cufftDoubleComplex => fft::cufftDoubleComplex, direction;
    r2c = "cufftExecR2C", CUFFT_R2C, fft::cufftReal => fft::cufftComplex, ;
    d2z = "cufftExecD2Z", CUFFT_D2Z, fft::cufftDoubleReal => fft::cufftDoubleComplex, ;
    c2r = "cufftExecC2R", CUFFT_C2R, fft::cufftComplex => fft::cufftReal, ;
    z2d = "cufftExecZ2D", CUFFT_Z2D, fft::cufftDoubleComplex => fft::cufftDoubleReal, ;
}

pub(super) fn table() -> FftTable {
    FftTable {
        cufftCreate: create,
        cufftDestroy: destroy,
        cufftGetVersion: version,
        cufftSetAutoAllocation: set_auto_allocation,
        cufftMakePlanMany64: make_plan,
        cufftGetSize: get_size,
        cufftSetWorkArea: set_work_area,
        cufftSetStream: set_stream,
        cufftExecC2C: c2c,
        cufftExecZ2Z: z2z,
        cufftExecR2C: r2c,
        cufftExecD2Z: d2z,
        cufftExecC2R: c2r,
        cufftExecZ2D: z2d,
    }
}
