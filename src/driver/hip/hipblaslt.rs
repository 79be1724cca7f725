//! Finding hipBLASLt, and its names and numbers.

use std::ffi::c_int;

use super::library;
use crate::device::DeviceId;
use crate::driver::lt::{Lt, Names, Table, calls};
use crate::error::Result;

/// Overrides the search for hipBLASLt.
const VAR: &str = "TREFOIL_HIPBLASLT_LIB";
/// The version of ROCm 6.0, 0.6.0; older ones number types in another way.
const NEEDED_VERSION: c_int = 600;

/// Names and numbers of hipBLASLt, as hipblaslt.h and hipblas-common.h of ROCm 6 have them.
pub(in crate::driver) static NAMES: Names = Names {
    library: "hipblaslt",
    calls: calls!("hipblasLt"),
    status: status_name,
    invalid_value: 3,
    not_supported: 7,
    // HIPBLAS_OP_N, HIPBLAS_OP_T
    ops: [111, 112],
    // HIPBLAS_COMPUTE_32F, HIPBLAS_COMPUTE_64F
    compute: [2, 7],
    // Few devices have TF32.
    compute_tf32: None,
    // HIPBLASLT_MATMUL_DESC_TRANSA, ..._TRANSB, ..._EPILOGUE, ..._BIAS_POINTER, ..._BIAS_DATA_TYPE
    desc: [0, 1, 2, 3, 4],
    // HIPBLASLT_MATRIX_LAYOUT_BATCH_COUNT, ..._STRIDED_BATCH_OFFSET
    layout: [0, 1],
    // HIPBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES
    max_workspace: 1,
    preferences: None,
    // hipblasLtMatmulAlgo_t: 16 bytes and a size.
    algo: 3,
    bias_into_wider: false,
};

/// Symbolic name of a status.
fn status_name(code: u32) -> &'static str {
    match code {
        1 => "HIPBLAS_STATUS_NOT_INITIALIZED",
        2 => "HIPBLAS_STATUS_ALLOC_FAILED",
        3 => "HIPBLAS_STATUS_INVALID_VALUE",
        4 => "HIPBLAS_STATUS_MAPPING_ERROR",
        5 => "HIPBLAS_STATUS_EXECUTION_FAILED",
        6 => "HIPBLAS_STATUS_INTERNAL_ERROR",
        7 => "HIPBLAS_STATUS_NOT_SUPPORTED",
        8 => "HIPBLAS_STATUS_ARCH_MISMATCH",
        9 => "HIPBLAS_STATUS_HANDLE_IS_NULLPTR",
        10 => "HIPBLAS_STATUS_INVALID_ENUM",
        _ => "unknown hipBLAS status",
    }
}

/// Opens the library for the device that `enter` makes current, which `runtime` drives; the reason if there is none.
pub(super) fn open(
    runtime: &str,
    device: DeviceId,
    enter: impl Fn() -> Result<()> + Send + Sync + 'static,
) -> std::result::Result<Lt, String> {
    let names: &[&str] = match cfg!(windows) {
        true => &["libhipblaslt.dll", "hipblaslt.dll"],
        false => {
            &["libhipblaslt.so.1", "libhipblaslt.so.0", "libhipblaslt.so", "/opt/rocm/lib/libhipblaslt.so"]
        }
    };
    let lib = library::beside(runtime, VAR, names)?;
    // SAFETY: the prototypes are those of hipblaslt.h, whose enums are 32-bit numbers.
    let table = unsafe { Table::resolve(&lib, &NAMES.calls) }.map_err(|e| e.to_string())?;
    // SAFETY: as above.
    let version: unsafe extern "C" fn(*mut std::ffi::c_void, *mut c_int) -> u32 =
        unsafe { lib.function("hipblasLtGetVersion") }.map_err(|e| e.to_string())?;
    let blas = Lt::new(table, &NAMES, device, Box::new(enter)).map_err(|e| format!("{}: {e}", lib.name))?;
    let mut have = 0;
    // SAFETY: the handle is live; writes one number.
    match unsafe { version(blas.handle(), &mut have) } {
        0 => recent(have).map(|()| blas),
        code => Err(format!("hipblasLtGetVersion: {}", status_name(code))),
    }
}

/// Whether a version, as the library numbers them, is recent enough.
fn recent(have: c_int) -> std::result::Result<(), String> {
    let text = |v: c_int| format!("{}.{}.{}", v / 100_000, v / 100 % 1000, v % 100);
    match have >= NEEDED_VERSION {
        true => Ok(()),
        false => Err(format!("hipBLASLt is {}, {} is needed", text(have), text(NEEDED_VERSION))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_versions_are_refused() {
        assert!(recent(600).is_ok() && recent(1200).is_ok() && recent(100_000).is_ok());
        assert_eq!(recent(302).unwrap_err(), "hipBLASLt is 0.3.2, 0.6.0 is needed");
        assert_eq!(status_name(7), "HIPBLAS_STATUS_NOT_SUPPORTED");
    }
}
