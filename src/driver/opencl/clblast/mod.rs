//! Matrix products of CLBlast.
//!
//! The library is given row-major matrices as they are, or, exchanged, as the column-major ones in the same memory (Dᵀ = Bᵀ Aᵀ), whichever needs less
//! of its temporary memory: what it needs is copies of operands in another order. That memory is the caller's workspace, so that a product allocates
//! nothing. The library's own batched products allocate it where they copy; they serve products that need none, the others are made one by one.
//!
//! It computes D = alpha op(A) op(B) + beta D in f32 and f64: C must be D, there is no bias and no activation. Its programs are compiled by the first
//! product of a type in a context and kept by the library.

mod calls;
#[cfg(test)]
pub(crate) mod tests;

use std::ffi::c_int;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};

use opencl3::command_queue as queue;
use opencl3::memory;
use opencl3::types::{cl_buffer_region, cl_command_queue, cl_device_id, cl_mem};

use self::calls::{Call, Functions, Matrix};
use super::probe;
use super::{failure, lock};
use crate::driver::loader::{self, DynLib};
use crate::driver::plan_cache::PlanCache;
use crate::driver::{BlasAct, BlasProblem, RawMem, RawStream, VendorBlas};
use crate::dtype::DType;
use crate::error::{GpuError, Result, Unavailable};

/// Overrides the search for CLBlast.
const VAR: &str = "TREFOIL_CLBLAST_LIB";
/// Forms kept.
const MAX_FORMS: usize = 4096;
/// `CL_INVALID_VALUE`
const INVALID_VALUE: c_int = -30;
/// Its kernels count elements by `int`.
const REACH: usize = c_int::MAX as usize;

/// How a problem is given to the library.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Form {
    /// As column-major matrices, the operands exchanged.
    exchanged: bool,
    /// Bytes of temporary memory for one product of the batch.
    temporary: usize,
}

/// A part of a memory object as an object of its own.
struct SubBuffer(cl_mem);

impl SubBuffer {
    /// # Safety
    /// The part lies within a live object, which is no part itself, and begins at a multiple of the device's base alignment.
    unsafe fn new(object: cl_mem, origin: usize, size: usize) -> Result<Self> {
        let region = cl_buffer_region { origin, size };
        // SAFETY: the region is what this type of part takes; the object is the caller's promise.
        let part = unsafe {
            memory::create_sub_buffer(
                object,
                memory::CL_MEM_READ_WRITE,
                memory::CL_BUFFER_CREATE_TYPE_REGION,
                ptr::from_ref(&region).cast(),
            )
        };
        part.map(SubBuffer).map_err(|c| failure("clCreateSubBuffer", c))
    }
}

impl Drop for SubBuffer {
    fn drop(&mut self) {
        // SAFETY: the only owner; queued kernels hold what they use.
        let _ = unsafe { memory::release_mem_object(self.0) };
    }
}

/// What keeps programs of contexts alive: the library's cache, which is cleared when nobody uses it any more.
struct Cache {
    clear: unsafe extern "C" fn() -> c_int,
}

/// Users of the library's cache.
static USERS: AtomicUsize = AtomicUsize::new(0);

impl Cache {
    fn new(clear: unsafe extern "C" fn() -> c_int) -> Self {
        USERS.fetch_add(1, Ordering::AcqRel);
        Cache { clear }
    }
}

impl Drop for Cache {
    fn drop(&mut self) {
        if USERS.fetch_sub(1, Ordering::AcqRel) == 1 {
            let _one_at_a_time = calling();
            // SAFETY: takes no arguments; programs that another user asks for meanwhile are compiled again.
            unsafe { (self.clear)() };
        }
    }
}

/// Calls of the library are made one at a time: a first one compiles, and others of the same kind would compile the same.
fn calling() -> MutexGuard<'static, ()> {
    static CALLING: Mutex<()> = Mutex::new(());
    lock(&CALLING)
}

/// The loaded library.
pub(super) struct Clblast {
    single: Functions<f32>,
    double: Functions<f64>,
    /// A queue to ask for sizes with; its device decides.
    queue: u64,
    /// Multiples of it, in bytes, are where parts of memory objects begin.
    align: usize,
    forms: PlanCache<BlasProblem, Form>,
    /// Dropped last.
    _cache: Cache,
}

impl std::fmt::Debug for Clblast {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Clblast")
    }
}

/// Name of a status of the library; OpenCL's own statuses have their names.
fn status_name(code: c_int) -> String {
    let own = match code {
        -1024 => "CLBlastNotImplemented",
        -1022..=-1020 => "CLBlastInvalidMatrix",
        -1017 => "CLBlastInvalidDimension",
        -1016..=-1014 => "CLBlastInvalidLeadDim",
        -1011..=-1009 => "CLBlastInsufficientMemory",
        -2050 => "CLBlastInsufficientMemoryTemp",
        -2049 => "CLBlastInvalidBatchCount",
        -2046 => "CLBlastInvalidLocalMemUsage",
        -2045 => "CLBlastNoHalfPrecision",
        -2044 => "CLBlastNoDoublePrecision",
        -2041 => "CLBlastDatabaseError",
        -2040 => "CLBlastUnknownError",
        -2039 => "CLBlastUnexpectedError",
        other => return opencl3::error_codes::error_text(other).to_string(),
    };
    own.into()
}

fn check(call: &'static str, code: c_int) -> Result<()> {
    match code {
        0 => Ok(()),
        own if own <= -1000 => Err(GpuError::driver(call, own.into(), status_name(own))),
        opencl => Err(failure(call, opencl)),
    }
}

/// Whether the library has products of these types.
fn of_types(dtype: DType, out: DType) -> std::result::Result<(), String> {
    match (dtype, out) {
        (DType::F32, DType::F32) | (DType::F64, DType::F64) => Ok(()),
        (DType::F16, _) => Err("CLBlast adds up products of f16 in f16".into()),
        (DType::Bf16, _) => Err("CLBlast has no products of bf16".into()),
        _ => Err(format!("CLBlast has no products of {dtype} into {out}")),
    }
}

/// Elements from the first of a matrix to behind its last, for A, B and D, all batches included.
fn extents(p: &BlasProblem) -> Option<[usize; 3]> {
    let stored = |rows: usize, cols: usize, transposed| if transposed { [cols, rows] } else { [rows, cols] };
    let each = [(0, stored(p.m, p.k, p.trans_a)), (1, stored(p.k, p.n, p.trans_b)), (3, [p.m, p.n])];
    let extent = |(i, [rows, cols]): (usize, [usize; 2])| {
        let batches = p.batch.checked_sub(1)?.checked_mul(p.batch_stride[i])?;
        rows.checked_sub(1)?.checked_mul(p.ld[i])?.checked_add(cols)?.checked_add(batches)
    };
    let [a, b, d] = each.map(extent);
    Some([a?, b?, d?])
}

/// Whether the problem is one that this module asks the library about at all.
fn eligible(p: &BlasProblem) -> std::result::Result<(), String> {
    of_types(p.dtype, p.out_dtype)?;
    if [p.m, p.n, p.k, p.batch].contains(&0) {
        return Err("an extent is 0".into());
    }
    if p.bias || p.act != BlasAct::Identity {
        return Err("CLBlast adds no bias and has no activations".into());
    }
    if (p.ld[2], p.batch_stride[2]) != (p.ld[3], p.batch_stride[3]) {
        return Err("CLBlast adds to the memory of the result alone".into());
    }
    match extents(p) {
        Some(all) if all.iter().chain(&[p.m, p.n, p.k, p.batch]).all(|&n| n <= REACH) => Ok(()),
        _ => Err("CLBlast counts elements in 32 bits".into()),
    }
}

fn open_library() -> std::result::Result<DynLib, Unavailable> {
    let names: &[&str] = match () {
        () if cfg!(windows) => &["clblast.dll"],
        () if cfg!(target_os = "macos") => &["libclblast.1.dylib", "libclblast.dylib"],
        () => &["libclblast.so.1", "libclblast.so"],
    };
    let names: Vec<String> = names.iter().map(|n| n.to_string()).collect();
    loader::open(VAR, &names)
}

impl Clblast {
    /// Opens the library for a device and a context of it; the reason if there is none.
    pub(super) fn open(device: u64, context: u64) -> std::result::Result<Self, String> {
        let lib = open_library().map_err(|e| e.to_string())?;
        let missing = |e: Unavailable| e.to_string();
        let (single, double) = (Functions::resolve(&lib, 'S'), Functions::resolve(&lib, 'D'));
        let (single, double) = (single.map_err(missing)?, double.map_err(missing)?);
        // SAFETY: the prototype is that of clblast_c.h.
        let clear = unsafe { lib.function("CLBlastClearCache") }.map_err(missing)?;
        same_opencl(&lib)?;
        let align = opencl3::device::get_device_data(
            device as cl_device_id,
            opencl3::device::CL_DEVICE_MEM_BASE_ADDR_ALIGN,
        )
        .map(|bits| probe::number(&bits) as usize / 8)
        .map_err(|c| failure("clGetDeviceInfo", c).to_string())?;
        // The 1.2 call: devices of OpenCL 1.2 lack its successor.
        #[allow(deprecated)]
        // SAFETY: context and device are live and belong together.
        let queue = unsafe { queue::create_command_queue(context as _, device as _, 0) }
            .map_err(|c| failure("clCreateCommandQueue", c).to_string())?;
        Ok(Clblast {
            single,
            double,
            queue: queue as u64,
            align: align.max(1),
            forms: PlanCache::new(MAX_FORMS),
            _cache: Cache::new(clear),
        })
    }

    /// How a problem is given to the library, or why it is not.
    fn form(&self, p: &BlasProblem) -> std::result::Result<Form, String> {
        self.forms.with(p, || eligible(p).and_then(|()| self.choose(p)), drop, |form| *form)
    }

    /// The form that needs less temporary memory.
    fn choose(&self, p: &BlasProblem) -> std::result::Result<Form, String> {
        let [rows, columns] = [false, true].map(|exchanged| self.temporary(p, exchanged));
        let (rows, columns) = (rows?, columns?);
        let form = match columns < rows {
            true => Form { exchanged: true, temporary: columns },
            false => Form { exchanged: false, temporary: rows },
        };
        match form.temporary / p.dtype.size() <= REACH {
            true => Ok(form),
            false => Err("CLBlast counts elements in 32 bits".into()),
        }
    }

    /// Bytes of temporary memory of one product, wherever its matrices begin.
    fn temporary(&self, p: &BlasProblem, exchanged: bool) -> std::result::Result<usize, String> {
        // What begins with its object may be used as it is, so that this asks for a place behind.
        let of = |i: usize| Matrix { object: ptr::null_mut(), offset: 1, ld: p.ld[i], stride: 0 };
        let call = Call::new(p, exchanged, [of(0), of(1), of(3)]);
        let f = if p.dtype == DType::F64 { self.double.temp_size } else { self.single.temp_size };
        let ([m, n, k], [a, b, c]) = (call.size, [call.first, call.second, call.result]);
        let (mut q, mut bytes) = (self.queue as cl_command_queue, 0);
        let _one_at_a_time = calling();
        // SAFETY: the queue is live; writes one number.
        let code = unsafe {
            f(
                call.layout,
                call.ops[0],
                call.ops[1],
                m,
                n,
                k,
                a.offset,
                a.ld,
                b.offset,
                b.ld,
                c.offset,
                c.ld,
                &mut q,
                &mut bytes,
            )
        };
        check("CLBlastGemmTempBufferSize", code).map(|()| bytes).map_err(|e| e.to_string())
    }

    /// A matrix of `extent` elements of `size` bytes; where it lies too far from its object's beginning, as a part of the object, which is kept in `parts`.
    ///
    /// # Safety
    /// The matrix lies within a live object.
    unsafe fn matrix(
        &self,
        (m, offset): (RawMem, u64),
        [ld, stride, extent, size]: [usize; 4],
        parts: &mut Vec<SubBuffer>,
    ) -> Result<Matrix> {
        let (object, offset) = (m.0 as cl_mem, offset as usize);
        if !offset.is_multiple_of(size) {
            return Err(refused("a matrix begins within an element"));
        }
        if offset / size + extent <= REACH {
            return Ok(Matrix { object, offset: offset / size, ld, stride });
        }
        let origin = offset - offset % self.align.next_multiple_of(size);
        // SAFETY: the part ends with the matrix.
        let part = unsafe { SubBuffer::new(object, origin, offset - origin + extent * size) }?;
        let matrix = Matrix { object: part.0, offset: (offset - origin) / size, ld, stride };
        parts.push(part);
        Ok(matrix)
    }

    /// The temporary memory of a product within the workspace; null where it needs none.
    ///
    /// # Safety
    /// The workspace is live and of the size that is stated.
    unsafe fn room(
        &self,
        need: usize,
        workspace: Option<(RawMem, u64, usize)>,
        parts: &mut Vec<SubBuffer>,
    ) -> Result<cl_mem> {
        if need == 0 {
            return Ok(ptr::null_mut());
        }
        let (m, offset, bytes) = workspace.ok_or_else(|| refused("it needs a workspace"))?;
        let origin = (offset as usize).next_multiple_of(self.align);
        if origin - offset as usize + need > bytes {
            return Err(refused("the workspace is too small"));
        }
        if origin == 0 {
            return Ok(m.0 as cl_mem);
        }
        // SAFETY: the part lies within the workspace.
        let part = unsafe { SubBuffer::new(m.0 as cl_mem, origin, need) }?;
        let object = part.0;
        parts.push(part);
        Ok(object)
    }
}

/// Whether the library calls the OpenCL library that this crate uses: objects of one are none of another's.
fn same_opencl(lib: &DynLib) -> std::result::Result<(), String> {
    let ours = probe::library().map_err(|e| e.to_string())? as usize;
    // The loader looks in what a library depends on, too.
    match lib.address("clEnqueueNDRangeKernel") {
        Ok(theirs) if theirs == ours => Ok(()),
        // Windows does not.
        Err(_) if cfg!(windows) => Ok(()),
        _ => Err(format!("{} uses another OpenCL library", lib.name)),
    }
}

/// A call that is not made, under the status with which OpenCL refuses arguments.
fn refused(why: impl Into<String>) -> GpuError {
    GpuError::driver("CLBlast", INVALID_VALUE.into(), why)
}

impl VendorBlas for Clblast {
    fn name(&self) -> &'static str {
        "clblast"
    }

    fn types(&self, dtype: DType, out: DType) -> std::result::Result<(), String> {
        of_types(dtype, out)
    }

    fn tf32(&self) -> bool {
        false
    }

    fn in_place(&self) -> bool {
        true
    }

    fn workspace_kernels(&self) -> bool {
        true
    }

    fn applicable(&self, p: &BlasProblem) -> std::result::Result<(), String> {
        self.form(p).map(|_| ())
    }

    fn workspace(&self, p: &BlasProblem) -> usize {
        match self.form(p) {
            // Room to begin at a multiple of the alignment.
            Ok(form) if form.temporary > 0 => form.temporary + self.align,
            _ => 0,
        }
    }

    unsafe fn gemm(
        &self,
        s: RawStream,
        p: &BlasProblem,
        alpha: f64,
        beta: f64,
        a: (RawMem, u64),
        b: (RawMem, u64),
        c: (RawMem, u64),
        d: (RawMem, u64),
        bias: Option<(RawMem, u64)>,
        workspace: Option<(RawMem, u64, usize)>,
    ) -> Result<()> {
        let form = self.form(p).map_err(refused)?;
        if bias.is_some() || (beta != 0.0 && c != d) {
            return Err(refused("it adds to the memory of the result alone"));
        }
        let [ea, eb, ed] = extents(p).ok_or_else(|| refused("an extent is too large"))?;
        let (size, mut parts) = (p.dtype.size(), vec![]);
        let of = |i: usize, extent| [p.ld[i], p.batch_stride[i], extent, size];
        // SAFETY: the memory is the caller's promise.
        let (matrices, temporary) = unsafe {
            let a = self.matrix(a, of(0, ea), &mut parts)?;
            let b = self.matrix(b, of(1, eb), &mut parts)?;
            let d = self.matrix(d, of(3, ed), &mut parts)?;
            ([a, b, d], self.room(form.temporary, workspace, &mut parts)?)
        };
        let (call, q) = (Call::new(p, form.exchanged, matrices), s.0 as cl_command_queue);
        let _one_at_a_time = calling();
        // SAFETY: as above; the temporary memory has the size that the library asked for, and the queue works in order.
        unsafe {
            match p.dtype {
                DType::F64 => queue_all(&self.double, &call, [alpha, beta], q, temporary),
                _ => queue_all(&self.single, &call, [alpha as f32, beta as f32], q, temporary),
            }
        }
    }
}

/// Queues a product, or the products of a batch.
///
/// # Safety
/// As for [`Call::one`].
unsafe fn queue_all<T: Copy>(
    f: &Functions<T>,
    call: &Call,
    factors: [T; 2],
    q: cl_command_queue,
    temporary: cl_mem,
) -> Result<()> {
    // SAFETY: the caller's promise.
    unsafe {
        if call.batch > 1 && temporary.is_null() {
            return check("CLBlastGemmStridedBatched", call.all(f.batched, factors, q));
        }
        let one = |i| check("CLBlastGemmWithTempBuffer", call.at(i).one(f.gemm, factors, q, temporary));
        (0..call.batch).try_for_each(one)
    }
}

impl Drop for Clblast {
    fn drop(&mut self) {
        // SAFETY: made by `open`, released once.
        let _ = unsafe { queue::release_command_queue(self.queue as _) };
    }
}
