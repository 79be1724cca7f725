//! Matrix products of cuBLASLt.
//!
//! The library is column-major. A row-major matrix is the transpose of the column-major one in the same memory, so D = A B is asked for as
//! Dᵀ = Bᵀ Aᵀ: the operands change places ([`ColumnMajor::of`]) and nothing is copied. The bias, which the library adds along the rows of its
//! result, then runs along our columns. Descriptors, algorithm and workspace are determined once per problem and kept.

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::Mutex;

use cudarc::cublaslt::sys as lt;
use cudarc::driver::sys as cu;
use lt::cublasComputeType_t as Compute;
use lt::cublasLtEpilogue_t as Epilogue;
use lt::cublasLtMatmulDescAttributes_t as DescAttribute;
use lt::cublasLtMatmulPreferenceAttributes_t as PreferenceAttribute;
use lt::cublasLtMatrixLayoutAttribute_t as LayoutAttribute;
use lt::cudaDataType_t as DataType;

use super::lock;
use super::preflight::{Api, function_table, toolkit_library};
use crate::device::DeviceId;
use crate::driver::{BlasAct, BlasProblem, RawMem, RawStream, VendorBlas};
use crate::dtype::DType;
use crate::error::{GpuError, Result};

/// Overrides the search for cuBLASLt.
const VAR: &str = "TREFOIL_CUBLASLT_LIB";
/// The most workspace that an algorithm may want.
const MAX_WORKSPACE: usize = 32 << 20;
/// Alignment that the usual plans require of all matrices; others get a plan for the alignment of their elements.
const ALIGN: u64 = 16;
/// Plans kept; beyond that, all are dropped and made again as needed.
const MAX_PLANS: usize = 4096;

function_table! {
    /// Functions of cuBLASLt.
    LtTable in lt -> cublasStatus_t {
        cublasLtCreate(*mut lt::cublasLtHandle_t);
        cublasLtDestroy(lt::cublasLtHandle_t);
        cublasLtMatmulDescCreate(*mut lt::cublasLtMatmulDesc_t, Compute, DataType);
        cublasLtMatmulDescDestroy(lt::cublasLtMatmulDesc_t);
        cublasLtMatmulDescSetAttribute(lt::cublasLtMatmulDesc_t, DescAttribute, *const c_void, usize);
        cublasLtMatrixLayoutCreate(*mut lt::cublasLtMatrixLayout_t, DataType, u64, u64, i64);
        cublasLtMatrixLayoutDestroy(lt::cublasLtMatrixLayout_t);
        cublasLtMatrixLayoutSetAttribute(lt::cublasLtMatrixLayout_t, LayoutAttribute, *const c_void, usize);
        cublasLtMatmulPreferenceCreate(*mut lt::cublasLtMatmulPreference_t);
        cublasLtMatmulPreferenceDestroy(lt::cublasLtMatmulPreference_t);
        cublasLtMatmulPreferenceSetAttribute(
            lt::cublasLtMatmulPreference_t, PreferenceAttribute, *const c_void, usize,
        );
        cublasLtMatmulAlgoGetHeuristic(
            lt::cublasLtHandle_t, lt::cublasLtMatmulDesc_t, lt::cublasLtMatrixLayout_t,
            lt::cublasLtMatrixLayout_t, lt::cublasLtMatrixLayout_t, lt::cublasLtMatrixLayout_t,
            lt::cublasLtMatmulPreference_t, c_int, *mut lt::cublasLtMatmulHeuristicResult_t, *mut c_int,
        );
        cublasLtMatmul(
            lt::cublasLtHandle_t, lt::cublasLtMatmulDesc_t, *const c_void, *const c_void,
            lt::cublasLtMatrixLayout_t, *const c_void, lt::cublasLtMatrixLayout_t, *const c_void, *const c_void,
            lt::cublasLtMatrixLayout_t, *mut c_void, lt::cublasLtMatrixLayout_t,
            *const lt::cublasLtMatmulAlgo_t, *mut c_void, usize, lt::cudaStream_t,
        );
    }
}

/// `cublasLtMatmulHeuristicResult_t` with the status as the number that it is.
#[repr(C)]
#[derive(Clone, Copy)]
struct HeuristicResult {
    algo: lt::cublasLtMatmulAlgo_t,
    workspace: usize,
    state: u32,
    waves: f32,
    reserved: [c_int; 4],
}
const _: () = assert!(size_of::<HeuristicResult>() == size_of::<lt::cublasLtMatmulHeuristicResult_t>());

/// One matrix as the library sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Matrix {
    rows: usize,
    cols: usize,
    ld: usize,
    batch_stride: usize,
    transposed: bool,
}

/// A problem in column-major terms: first operand, second operand, C and D.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ColumnMajor([Matrix; 4]);

impl ColumnMajor {
    /// The first operand is our B, the second our A.
    fn of(p: &BlasProblem) -> Self {
        let matrix = |i: usize, (rows, cols), transposed| Matrix {
            rows,
            cols,
            ld: p.ld[i],
            batch_stride: p.batch_stride[i],
            transposed,
        };
        // A row-major [r, c] is a column-major [c, r].
        let b = if p.trans_b { (p.k, p.n) } else { (p.n, p.k) };
        let a = if p.trans_a { (p.m, p.k) } else { (p.k, p.m) };
        ColumnMajor([
            matrix(1, b, p.trans_b),
            matrix(0, a, p.trans_a),
            matrix(2, (p.n, p.m), false),
            matrix(3, (p.n, p.m), false),
        ])
    }
}

/// What was determined for a problem. Handles are pointers as numbers.
#[derive(Debug, Clone, Copy)]
struct Plan {
    desc: u64,
    layouts: [u64; 4],
    algo: lt::cublasLtMatmulAlgo_t,
    workspace: usize,
}

/// A problem and whether all its matrices are aligned.
type Key = (BlasProblem, bool);

/// The loaded library.
pub(super) struct CublasLt {
    table: LtTable,
    api: &'static Api,
    device: DeviceId,
    context: u64,
    /// `cublasLtHandle_t`
    handle: u64,
    /// Also held while a descriptor's bias pointer is set and the product queued.
    plans: Mutex<HashMap<Key, std::result::Result<Plan, String>>>,
}

impl std::fmt::Debug for CublasLt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("CublasLt")
    }
}

/// Symbolic name of a status.
fn status_name(code: u32) -> &'static str {
    match code {
        1 => "CUBLAS_STATUS_NOT_INITIALIZED",
        3 => "CUBLAS_STATUS_ALLOC_FAILED",
        7 => "CUBLAS_STATUS_INVALID_VALUE",
        8 => "CUBLAS_STATUS_ARCH_MISMATCH",
        11 => "CUBLAS_STATUS_MAPPING_ERROR",
        13 => "CUBLAS_STATUS_EXECUTION_FAILED",
        14 => "CUBLAS_STATUS_INTERNAL_ERROR",
        15 => "CUBLAS_STATUS_NOT_SUPPORTED",
        16 => "CUBLAS_STATUS_LICENSE_ERROR",
        _ => "unknown cuBLAS status",
    }
}

fn check(call: &'static str, code: u32) -> Result<()> {
    if code == 0 { Ok(()) } else { Err(GpuError::driver(call, code.into(), status_name(code))) }
}

fn data_type(d: DType) -> Option<DataType> {
    match d {
        DType::F32 => Some(DataType::CUDA_R_32F),
        DType::F16 => Some(DataType::CUDA_R_16F),
        DType::Bf16 => Some(DataType::CUDA_R_16BF),
        DType::F64 => Some(DataType::CUDA_R_64F),
        _ => None,
    }
}

/// Whether the problem is one that this module asks the library about at all.
fn eligible(p: &BlasProblem) -> std::result::Result<(), String> {
    if p.m == 0 || p.n == 0 || p.k == 0 || p.batch == 0 {
        return Err("an extent is 0".into());
    }
    if c_int::try_from(p.batch).is_err() {
        return Err(format!("{} batches", p.batch));
    }
    let types = matches!(
        (p.dtype, p.out_dtype),
        (DType::F32, DType::F32)
            | (DType::F64, DType::F64)
            | (DType::F16, DType::F16 | DType::F32)
            | (DType::Bf16, DType::Bf16 | DType::F32)
    );
    if !types {
        return Err(format!("{} products into {}", p.dtype, p.out_dtype));
    }
    if p.dtype == DType::F64 && (p.bias || p.act != BlasAct::Identity) {
        return Err("no fused bias or activation in f64".into());
    }
    Ok(())
}

fn epilogue(p: &BlasProblem) -> Epilogue {
    match (p.act, p.bias) {
        (BlasAct::Identity, false) => Epilogue::CUBLASLT_EPILOGUE_DEFAULT,
        (BlasAct::Identity, true) => Epilogue::CUBLASLT_EPILOGUE_BIAS,
        (BlasAct::Relu, false) => Epilogue::CUBLASLT_EPILOGUE_RELU,
        (BlasAct::Relu, true) => Epilogue::CUBLASLT_EPILOGUE_RELU_BIAS,
        (BlasAct::GeluTanh, false) => Epilogue::CUBLASLT_EPILOGUE_GELU,
        (BlasAct::GeluTanh, true) => Epilogue::CUBLASLT_EPILOGUE_GELU_BIAS,
    }
}

impl CublasLt {
    /// Opens the library for the device of this context; the reason if there is none.
    pub(super) fn open(
        api: &'static Api,
        device: DeviceId,
        context: u64,
    ) -> std::result::Result<Self, String> {
        let windows = ["cublasLt64_13.dll", "cublasLt64_12.dll", "cublasLt64_11.dll"];
        let lib = toolkit_library(VAR, "cublasLt", &windows, "cublas", api.version / 1000)
            .map_err(|e| e.to_string())?;
        let table = LtTable::resolve(&lib).map_err(|e| e.to_string())?;
        let mut blas = CublasLt { table, api, device, context, handle: 0, plans: Mutex::default() };
        blas.enter().map_err(|e| e.to_string())?;
        let mut handle = ptr::null_mut();
        // SAFETY: writes one pointer; the context is current.
        let code = unsafe { (blas.table.cublasLtCreate)(&mut handle) };
        check("cublasLtCreate", code).map_err(|e| format!("{}: {e}", lib.name))?;
        blas.handle = handle as u64;
        Ok(blas)
    }

    fn enter(&self) -> Result<()> {
        // SAFETY: the driver object that owns this one retains the context.
        let code = unsafe { (self.api.table.cuCtxSetCurrent)(self.context as cu::CUcontext) };
        self.api.check("cuCtxSetCurrent", code)
    }

    /// Runs `f` with the plan of a problem, made if there is none.
    fn with_plan<T>(
        &self,
        p: &BlasProblem,
        aligned: bool,
        f: impl FnOnce(&Plan) -> T,
    ) -> std::result::Result<T, String> {
        let mut plans = lock(&self.plans);
        if let Some(plan) = plans.get(&(*p, aligned)) {
            return plan.as_ref().map(f).map_err(Clone::clone);
        }
        // The caller has room for the aligned plan's workspace only.
        let room = if aligned { MAX_WORKSPACE } else { 0 };
        let plan = eligible(p).and_then(|()| self.plan(p, aligned, room).map_err(|e| e.to_string()));
        if plans.len() >= MAX_PLANS {
            plans.drain().for_each(|(_, plan)| self.destroy(plan));
        }
        let plan = plans.entry((*p, aligned)).or_insert(plan);
        plan.as_ref().map(f).map_err(|e| e.clone())
    }

    fn plan(&self, p: &BlasProblem, aligned: bool, room: usize) -> Result<Plan> {
        self.enter()?;
        let mut plan =
            Plan { desc: 0, layouts: [0; 4], algo: lt::cublasLtMatmulAlgo_t { data: [0; 8] }, workspace: 0 };
        match self.fill(&mut plan, p, aligned, room) {
            Ok(()) => Ok(plan),
            Err(e) => {
                self.destroy(Ok(plan));
                Err(e)
            }
        }
    }

    fn destroy(&self, plan: std::result::Result<Plan, String>) {
        let Ok(plan) = plan else { return };
        // SAFETY: made by `fill`, released once; null handles are skipped.
        unsafe {
            if plan.desc != 0 {
                (self.table.cublasLtMatmulDescDestroy)(plan.desc as lt::cublasLtMatmulDesc_t);
            }
            for l in plan.layouts.into_iter().filter(|&l| l != 0) {
                (self.table.cublasLtMatrixLayoutDestroy)(l as lt::cublasLtMatrixLayout_t);
            }
        }
    }

    fn set_desc<T>(&self, desc: u64, attribute: DescAttribute, value: T) -> Result<()> {
        // SAFETY: the descriptor is live, and the value has the size that is passed.
        let code = unsafe {
            (self.table.cublasLtMatmulDescSetAttribute)(
                desc as lt::cublasLtMatmulDesc_t,
                attribute,
                ptr::from_ref(&value).cast(),
                size_of::<T>(),
            )
        };
        check("cublasLtMatmulDescSetAttribute", code)
    }

    fn set_layout<T>(&self, layout: u64, attribute: LayoutAttribute, value: T) -> Result<()> {
        // SAFETY: the layout is live, and the value has the size that is passed.
        let code = unsafe {
            (self.table.cublasLtMatrixLayoutSetAttribute)(
                layout as lt::cublasLtMatrixLayout_t,
                attribute,
                ptr::from_ref(&value).cast(),
                size_of::<T>(),
            )
        };
        check("cublasLtMatrixLayoutSetAttribute", code)
    }

    /// Makes the descriptors and asks for an algorithm. On failure, `plan` holds what was made so far.
    fn fill(&self, plan: &mut Plan, p: &BlasProblem, aligned: bool, room: usize) -> Result<()> {
        let t = &self.table;
        let unsupported = || GpuError::driver("cublasLtMatmul", 15, status_name(15));
        let input = data_type(p.dtype).ok_or_else(unsupported)?;
        let output = data_type(p.out_dtype).ok_or_else(unsupported)?;
        let (compute, scale) = match (p.dtype, p.tf32) {
            (DType::F64, _) => (Compute::CUBLAS_COMPUTE_64F, DataType::CUDA_R_64F),
            (DType::F32, true) => (Compute::CUBLAS_COMPUTE_32F_FAST_TF32, DataType::CUDA_R_32F),
            _ => (Compute::CUBLAS_COMPUTE_32F, DataType::CUDA_R_32F),
        };
        let ColumnMajor(matrices) = ColumnMajor::of(p);

        let mut desc = ptr::null_mut();
        // SAFETY: writes one pointer.
        check("cublasLtMatmulDescCreate", unsafe {
            (t.cublasLtMatmulDescCreate)(&mut desc, compute, scale)
        })?;
        plan.desc = desc as u64;
        // CUBLAS_OP_N or CUBLAS_OP_T.
        let op = |m: &Matrix| i32::from(m.transposed);
        self.set_desc(plan.desc, DescAttribute::CUBLASLT_MATMUL_DESC_TRANSA, op(&matrices[0]))?;
        self.set_desc(plan.desc, DescAttribute::CUBLASLT_MATMUL_DESC_TRANSB, op(&matrices[1]))?;
        self.set_desc(plan.desc, DescAttribute::CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue(p))?;
        if p.bias {
            self.set_desc(plan.desc, DescAttribute::CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, input)?;
        }

        let types = [input, input, output, output];
        for ((m, ty), layout) in matrices.iter().zip(types).zip(&mut plan.layouts) {
            let mut l = ptr::null_mut();
            // SAFETY: writes one pointer.
            check("cublasLtMatrixLayoutCreate", unsafe {
                (t.cublasLtMatrixLayoutCreate)(&mut l, ty, m.rows as u64, m.cols as u64, m.ld as i64)
            })?;
            *layout = l as u64;
            let count = LayoutAttribute::CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT;
            self.set_layout(*layout, count, p.batch as c_int)?;
            let stride = LayoutAttribute::CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET;
            self.set_layout(*layout, stride, m.batch_stride as i64)?;
        }
        self.choose(plan, p, aligned, room)
    }

    /// Asks for the algorithm that the library expects to be the fastest within `room` bytes of workspace.
    fn choose(&self, plan: &mut Plan, p: &BlasProblem, aligned: bool, room: usize) -> Result<()> {
        let t = &self.table;
        let mut preference = ptr::null_mut();
        // SAFETY: writes one pointer.
        check("cublasLtMatmulPreferenceCreate", unsafe {
            (t.cublasLtMatmulPreferenceCreate)(&mut preference)
        })?;
        use PreferenceAttribute as P;
        let align = |d: DType| if aligned { ALIGN as u32 } else { d.size() as u32 };
        // Parts of a split sum are never stored in the output's 16 bits.
        let schemes = lt::cublasLtReductionScheme_t::CUBLASLT_REDUCTION_SCHEME_INPLACE as u32
            | lt::cublasLtReductionScheme_t::CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE as u32;
        let attributes = [
            (P::CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, schemes),
            (P::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, align(p.dtype)),
            (P::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, align(p.dtype)),
            (P::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, align(p.out_dtype)),
            (P::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, align(p.out_dtype)),
        ];
        let mut result = MaybeUninit::<HeuristicResult>::uninit();
        let mut found = 0;
        let layout = |i: usize| plan.layouts[i] as lt::cublasLtMatrixLayout_t;
        // SAFETY: all handles are live, the attributes have the sizes that the library documents, and there is room for one result.
        let code = unsafe {
            let set = |a: P, v: *const c_void, n: usize| {
                (t.cublasLtMatmulPreferenceSetAttribute)(preference, a, v, n)
            };
            let room = ptr::from_ref(&room);
            let mut code = set(P::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, room.cast(), size_of::<usize>());
            for (a, v) in attributes.iter() {
                code = code.max(set(*a, ptr::from_ref(v).cast(), size_of::<u32>()));
            }
            if code == 0 {
                code = (t.cublasLtMatmulAlgoGetHeuristic)(
                    self.handle as lt::cublasLtHandle_t,
                    plan.desc as lt::cublasLtMatmulDesc_t,
                    layout(0),
                    layout(1),
                    layout(2),
                    layout(3),
                    preference,
                    1,
                    result.as_mut_ptr().cast(),
                    &mut found,
                );
            }
            (t.cublasLtMatmulPreferenceDestroy)(preference);
            code
        };
        check("cublasLtMatmulAlgoGetHeuristic", code)?;
        if found == 0 {
            return Err(GpuError::driver("cublasLtMatmulAlgoGetHeuristic", 15, status_name(15)));
        }
        // SAFETY: the library filled the one result that it counts.
        let result = unsafe { result.assume_init() };
        check("cublasLtMatmulAlgoGetHeuristic", result.state)?;
        plan.algo = result.algo;
        plan.workspace = result.workspace;
        Ok(())
    }
}

impl VendorBlas for CublasLt {
    fn name(&self) -> &'static str {
        "cublaslt"
    }

    fn applicable(&self, p: &BlasProblem) -> std::result::Result<(), String> {
        self.with_plan(p, true, |_| ())
    }

    fn workspace(&self, p: &BlasProblem) -> usize {
        self.with_plan(p, true, |plan| plan.workspace).unwrap_or(0)
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
        self.enter()?;
        let at = |(m, offset): (RawMem, u64)| m.0 + offset;
        let (first, second, c, d) = (at(b), at(a), at(c), at(d));
        let room = workspace.map_or(0, |w| w.2);
        let matrices_aligned = (first | second | c | d) % ALIGN == 0;
        let (single, double) = ((alpha as f32, beta as f32), (alpha, beta));
        let (alpha, beta): (*const c_void, *const c_void) = if p.dtype == DType::F64 {
            (ptr::from_ref(&double.0).cast(), ptr::from_ref(&double.1).cast())
        } else {
            (ptr::from_ref(&single.0).cast(), ptr::from_ref(&single.1).cast())
        };
        let run = |plan: &Plan| -> Result<()> {
            if plan.workspace > room {
                let name = format!("{} bytes of workspace needed, {room} given", plan.workspace);
                return Err(GpuError::driver("cublasLtMatmul", 7, name));
            }
            match (p.bias, bias) {
                (true, Some(bias)) => {
                    let pointer = DescAttribute::CUBLASLT_MATMUL_DESC_BIAS_POINTER;
                    self.set_desc(plan.desc, pointer, at(bias) as *const c_void)?;
                }
                (false, None) => {}
                _ => return Err(GpuError::driver("cublasLtMatmul", 7, "bias and problem disagree")),
            }
            let layout = |i: usize| plan.layouts[i] as lt::cublasLtMatrixLayout_t;
            let scratch = workspace.map_or(ptr::null_mut(), |(m, offset, _)| at((m, offset)) as *mut c_void);
            // SAFETY: handles and scalars are live; the memory is the caller's promise.
            let code = unsafe {
                (self.table.cublasLtMatmul)(
                    self.handle as lt::cublasLtHandle_t,
                    plan.desc as lt::cublasLtMatmulDesc_t,
                    alpha,
                    first as *const c_void,
                    layout(0),
                    second as *const c_void,
                    layout(1),
                    beta,
                    c as *const c_void,
                    layout(2),
                    d as *mut c_void,
                    layout(3),
                    &plan.algo,
                    scratch,
                    room,
                    s.0 as lt::cudaStream_t,
                )
            };
            check("cublasLtMatmul", code)
        };
        let unsupported = |reason: String| GpuError::Unsupported {
            op: "cublasLtMatmul",
            device: self.device,
            why: reason.into(),
        };
        self.with_plan(p, matrices_aligned, run).map_err(unsupported)?
    }
}

impl Drop for CublasLt {
    fn drop(&mut self) {
        if self.handle == 0 || self.enter().is_err() {
            return;
        }
        let plans = std::mem::take(&mut *lock(&self.plans));
        plans.into_values().for_each(|plan| self.destroy(plan));
        // SAFETY: the only owner; no plan is left.
        unsafe { (self.table.cublasLtDestroy)(self.handle as lt::cublasLtHandle_t) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::blas_reference::{problem, row_major};

    /// What the library does: column-major, D' = first second + C'.
    fn column_major(p: &BlasProblem, first: &[f64], second: &[f64], c: &[f64]) -> Vec<f64> {
        let ColumnMajor([x, y, cm, dm]) = ColumnMajor::of(p);
        let at = |m: &Matrix, z: usize, r: usize, col: usize| {
            let (r, col) = if m.transposed { (col, r) } else { (r, col) };
            assert!(r < m.rows && col < m.cols && m.rows <= m.ld);
            z * m.batch_stride + col * m.ld + r
        };
        let mut d = vec![0.0; p.batch * p.batch_stride[3]];
        for z in 0..p.batch {
            for r in 0..dm.rows {
                for col in 0..dm.cols {
                    let sum: f64 = (0..p.k).map(|l| first[at(&x, z, r, l)] * second[at(&y, z, l, col)]).sum();
                    d[at(&dm, z, r, col)] = sum + c[at(&cm, z, r, col)];
                }
            }
        }
        d
    }

    #[test]
    fn column_major_form_is_the_same_product() {
        for (ta, tb) in [(false, false), (false, true), (true, false), (true, true)] {
            let p = problem(3, 4, 5, 2, ta, tb);
            let data = |i: usize| -> Vec<f64> {
                (0..2 * p.batch_stride[i] + 64).map(|x| ((x * 7 + i) % 11) as f64 - 5.0).collect()
            };
            let (a, b, c) = (data(0), data(1), data(2));
            assert_eq!(row_major(&p, 1.0, 1.0, &a, &b, &c), column_major(&p, &b, &a, &c), "{p:?}");
        }
    }

    #[test]
    fn refuses_what_it_does_not_serve() {
        let p = problem(2, 2, 2, 1, false, false);
        eligible(&p).unwrap();
        eligible(&BlasProblem { k: 0, ..p }).unwrap_err();
        eligible(&BlasProblem { dtype: DType::I32, out_dtype: DType::I32, ..p }).unwrap_err();
        eligible(&BlasProblem { dtype: DType::F64, ..p }).unwrap_err();
        let double = BlasProblem { dtype: DType::F64, out_dtype: DType::F64, ..p };
        eligible(&double).unwrap();
        eligible(&BlasProblem { bias: true, ..double }).unwrap_err();
        eligible(&BlasProblem { dtype: DType::Bf16, ..p }).unwrap();
    }
}
