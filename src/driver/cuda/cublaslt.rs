//! Finding cuBLASLt, and its names and numbers.

use std::ffi::{c_int, c_void};
use std::mem::offset_of;

use cudarc::cublaslt::sys as lt;
use cudarc::driver::sys as cu;
use lt::cublasComputeType_t as Compute;
use lt::cublasLtEpilogue_t as Epilogue;
use lt::cublasLtMatmulDescAttributes_t as DescAttribute;
use lt::cublasLtMatmulPreferenceAttributes_t as PreferenceAttribute;
use lt::cublasLtMatrixLayoutAttribute_t as LayoutAttribute;
use lt::cudaDataType_t as DataType;

use super::preflight::{Api, toolkit_library};
use crate::device::DeviceId;
use crate::driver::BlasProblem;
use crate::driver::lt::{Lt, Names, Table, calls};
use crate::dtype::DType;

/// Overrides the search for cuBLASLt.
const VAR: &str = "TREFOIL_CUBLASLT_LIB";

/// The prototypes, as the bindings have them: those of [`Table`], with types for its pointers and enums of 32 bits for its numbers.
const _: () = {
    use lt::{
        cublasLtHandle_t as Handle, cublasLtMatmulDesc_t as Desc, cublasLtMatmulPreference_t as Preference,
        cublasLtMatrixLayout_t as Layout, cublasStatus_t as Status,
    };
    type Set<T, A> = unsafe fn(T, A, *const c_void, usize) -> Status;
    let _: unsafe fn(*mut Handle) -> Status = lt::cublasLtCreate;
    let _: unsafe fn(Handle) -> Status = lt::cublasLtDestroy;
    let _: unsafe fn(*mut Desc, Compute, DataType) -> Status = lt::cublasLtMatmulDescCreate;
    let _: unsafe fn(Desc) -> Status = lt::cublasLtMatmulDescDestroy;
    let _: Set<Desc, DescAttribute> = lt::cublasLtMatmulDescSetAttribute;
    let _: unsafe fn(*mut Layout, DataType, u64, u64, i64) -> Status = lt::cublasLtMatrixLayoutCreate;
    let _: unsafe fn(Layout) -> Status = lt::cublasLtMatrixLayoutDestroy;
    let _: Set<Layout, LayoutAttribute> = lt::cublasLtMatrixLayoutSetAttribute;
    let _: unsafe fn(*mut Preference) -> Status = lt::cublasLtMatmulPreferenceCreate;
    let _: unsafe fn(Preference) -> Status = lt::cublasLtMatmulPreferenceDestroy;
    let _: Set<Preference, PreferenceAttribute> = lt::cublasLtMatmulPreferenceSetAttribute;
    type Heuristic = unsafe fn(
        Handle,
        Desc,
        Layout,
        Layout,
        Layout,
        Layout,
        Preference,
        c_int,
        *mut lt::cublasLtMatmulHeuristicResult_t,
        *mut c_int,
    ) -> Status;
    let _: Heuristic = lt::cublasLtMatmulAlgoGetHeuristic;
    type Matmul = unsafe fn(
        Handle,
        Desc,
        *const c_void,
        *const c_void,
        Layout,
        *const c_void,
        Layout,
        *const c_void,
        *const c_void,
        Layout,
        *mut c_void,
        Layout,
        *const lt::cublasLtMatmulAlgo_t,
        *mut c_void,
        usize,
        lt::cudaStream_t,
    ) -> Status;
    let _: Matmul = lt::cublasLtMatmul;
    assert!(size_of::<Status>() == 4);
};

/// 64-bit words of an algorithm.
const ALGO: usize = 8;
const _: () = {
    assert!(size_of::<lt::cublasLtMatmulAlgo_t>() == 8 * ALGO);
    assert!(size_of::<lt::cublasLtMatmulHeuristicResult_t>() == 8 * (ALGO + 4));
    assert!(offset_of!(lt::cublasLtMatmulHeuristicResult_t, workspaceSize) == 8 * ALGO);
    assert!(offset_of!(lt::cublasLtMatmulHeuristicResult_t, state) == 8 * (ALGO + 1));
    assert!(size_of::<Compute>() == 4 && size_of::<DataType>() == 4 && size_of::<Epilogue>() == 4);
    assert!(size_of::<DescAttribute>() == 4 && size_of::<LayoutAttribute>() == 4);
    assert!(size_of::<PreferenceAttribute>() == 4);
    // Numbers that both libraries share.
    assert!(DataType::CUDA_R_32F as u32 == 0 && DataType::CUDA_R_64F as u32 == 1);
    assert!(DataType::CUDA_R_16F as u32 == 2 && DataType::CUDA_R_16BF as u32 == 14);
    assert!(Epilogue::CUBLASLT_EPILOGUE_DEFAULT as u32 == 1 && Epilogue::CUBLASLT_EPILOGUE_BIAS as u32 == 4);
    assert!(
        Epilogue::CUBLASLT_EPILOGUE_RELU as u32 == 2 && Epilogue::CUBLASLT_EPILOGUE_RELU_BIAS as u32 == 6
    );
    assert!(
        Epilogue::CUBLASLT_EPILOGUE_GELU as u32 == 32 && Epilogue::CUBLASLT_EPILOGUE_GELU_BIAS as u32 == 36
    );
};

/// Names and numbers of cuBLASLt.
pub(in crate::driver) static NAMES: Names = Names {
    library: "cublaslt",
    calls: calls!("cublasLt"),
    status: status_name,
    invalid_value: lt::cublasStatus_t::CUBLAS_STATUS_INVALID_VALUE as u32,
    not_supported: lt::cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED as u32,
    // CUBLAS_OP_N, CUBLAS_OP_T
    ops: [0, 1],
    compute: [Compute::CUBLAS_COMPUTE_32F as u32, Compute::CUBLAS_COMPUTE_64F as u32],
    compute_tf32: Some(Compute::CUBLAS_COMPUTE_32F_FAST_TF32 as u32),
    desc: [
        DescAttribute::CUBLASLT_MATMUL_DESC_TRANSA as u32,
        DescAttribute::CUBLASLT_MATMUL_DESC_TRANSB as u32,
        DescAttribute::CUBLASLT_MATMUL_DESC_EPILOGUE as u32,
        DescAttribute::CUBLASLT_MATMUL_DESC_BIAS_POINTER as u32,
        DescAttribute::CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE as u32,
    ],
    layout: [
        LayoutAttribute::CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT as u32,
        LayoutAttribute::CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET as u32,
    ],
    max_workspace: PreferenceAttribute::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES as u32,
    preferences: Some(preferences),
    algo: ALGO,
    bias_into_wider: true,
};

/// Schemes of reduction and least alignments, in bytes.
fn preferences(p: &BlasProblem, aligned: bool) -> [(u32, u32); 5] {
    use PreferenceAttribute as P;
    let align = |d: DType| if aligned { 16 } else { d.size() as u32 };
    // Parts of a split sum are never stored in the output's 16 bits.
    let schemes = lt::cublasLtReductionScheme_t::CUBLASLT_REDUCTION_SCHEME_INPLACE as u32
        | lt::cublasLtReductionScheme_t::CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE as u32;
    [
        (P::CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK as u32, schemes),
        (P::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES as u32, align(p.dtype)),
        (P::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES as u32, align(p.dtype)),
        (P::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES as u32, align(p.out_dtype)),
        (P::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES as u32, align(p.out_dtype)),
    ]
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

/// Opens the library for the device of this context; the reason if there is none.
pub(super) fn open(api: &'static Api, device: DeviceId, context: u64) -> std::result::Result<Lt, String> {
    let windows = ["cublasLt64_13.dll", "cublasLt64_12.dll", "cublasLt64_11.dll"];
    let lib = toolkit_library(VAR, "cublasLt", &windows, "cublas", api.version / 1000)
        .map_err(|e| e.to_string())?;
    // SAFETY: the prototypes are those of the bindings, as the comparison above shows.
    let table = unsafe { Table::resolve(&lib, &NAMES.calls) }.map_err(|e| e.to_string())?;
    let enter = move || {
        // SAFETY: the driver object that owns the library retains the context.
        let code = unsafe { (api.table.cuCtxSetCurrent)(context as cu::CUcontext) };
        api.check("cuCtxSetCurrent", code)
    };
    Lt::new(table, &NAMES, device, Box::new(enter)).map_err(|e| format!("{}: {e}", lib.name))
}
