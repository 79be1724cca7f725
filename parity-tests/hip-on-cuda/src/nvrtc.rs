//! hiprtc on NVRTC. Program handles and status codes are the same numbers in both.

use std::ffi::{OsString, c_char, c_int, c_void};
use std::sync::OnceLock;

use hip_sys::{
    HIPRTC_ERROR_INTERNAL_ERROR, HIPRTC_ERROR_INVALID_INPUT, HIPRTC_SUCCESS, hiprtcProgram, hiprtcResult,
};
use libloading::Library;

use crate::cuda::functions;

functions! {
    /// Functions of NVRTC.
    Nvrtc {
        version = "nvrtcVersion"(*mut c_int, *mut c_int);
        create = "nvrtcCreateProgram"(*mut *mut c_void, *const c_char, *const c_char, c_int, *mut *const c_char, *mut *const c_char);
        compile = "nvrtcCompileProgram"(*mut c_void, c_int, *mut *const c_char);
        log_size = "nvrtcGetProgramLogSize"(*mut c_void, *mut usize);
        log = "nvrtcGetProgramLog"(*mut c_void, *mut c_char);
        code_size = "nvrtcGetCUBINSize"(*mut c_void, *mut usize);
        code = "nvrtcGetCUBIN"(*mut c_void, *mut c_char);
        destroy = "nvrtcDestroyProgram"(*mut *mut c_void);
    }
}

/// NVRTC, opened at the first call: what `TREFOIL_NVRTC_LIB` names, else the newest by its usual names.
fn nvrtc() -> Result<&'static Nvrtc, hiprtcResult> {
    static NVRTC: OnceLock<Option<Nvrtc>> = OnceLock::new();
    // SAFETY: the library is NVRTC by name or by the user's word, with the signatures of NVIDIA's header.
    let open = |name: OsString| unsafe { Library::new(name).ok().and_then(|l| Nvrtc::read(l)) };
    NVRTC.get_or_init(|| candidates().into_iter().find_map(open)).as_ref().ok_or(HIPRTC_ERROR_INTERNAL_ERROR)
}

fn candidates() -> Vec<OsString> {
    if let Some(named) = std::env::var_os("TREFOIL_NVRTC_LIB").filter(|v| !v.is_empty()) {
        return vec![named];
    }
    if cfg!(windows) {
        return ["nvrtc64_130_0.dll", "nvrtc64_120_0.dll", "nvrtc64_112_0.dll"].map(OsString::from).to_vec();
    }
    let names = ["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so.11.2", "libnvrtc.so"];
    let home = std::env::var("CUDA_HOME").unwrap_or_else(|_| "/usr/local/cuda".into());
    let in_home = names.iter().map(|n| format!("{home}/lib64/{n}").into());
    names.iter().map(OsString::from).chain(in_home).collect()
}

/// Calls NVRTC; its codes up to 11 are hiprtc's, later ones have no equal there.
fn call(f: impl FnOnce(&Nvrtc) -> c_int) -> hiprtcResult {
    match nvrtc().map(f) {
        Ok(status) if (0..=HIPRTC_ERROR_INTERNAL_ERROR).contains(&status) => status,
        _ => HIPRTC_ERROR_INTERNAL_ERROR,
    }
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn hiprtcGetErrorString(result: hiprtcResult) -> *const c_char {
    let text = match result {
        HIPRTC_SUCCESS => c"HIPRTC_SUCCESS",
        1 => c"HIPRTC_ERROR_OUT_OF_MEMORY",
        2 => c"HIPRTC_ERROR_PROGRAM_CREATION_FAILURE",
        3 => c"HIPRTC_ERROR_INVALID_INPUT",
        4 => c"HIPRTC_ERROR_INVALID_PROGRAM",
        5 => c"HIPRTC_ERROR_INVALID_OPTION",
        6 => c"HIPRTC_ERROR_COMPILATION",
        7 => c"HIPRTC_ERROR_BUILTIN_OPERATION_FAILURE",
        _ if nvrtc().is_err() => c"NVRTC was not found; TREFOIL_NVRTC_LIB names it",
        _ => c"HIPRTC_ERROR_INTERNAL_ERROR",
    };
    text.as_ptr()
}

/// # Safety
/// As in AMD's documentation; so for all functions below.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn hiprtcVersion(major: *mut c_int, minor: *mut c_int) -> hiprtcResult {
    // SAFETY: the caller vouches for the arguments, which mean the same to NVRTC; so in all functions below.
    call(|n| unsafe { (n.version)(major, minor) })
}

/// # Safety
/// See `hiprtcVersion`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn hiprtcCreateProgram(
    program: *mut hiprtcProgram,
    source: *const c_char,
    name: *const c_char,
    num_headers: c_int,
    headers: *mut *const c_char,
    include_names: *mut *const c_char,
) -> hiprtcResult {
    // SAFETY: see `hiprtcVersion`.
    call(|n| unsafe { (n.create)(program, source, name, num_headers, headers, include_names) })
}

/// # Safety
/// See `hiprtcVersion`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn hiprtcCompileProgram(
    program: hiprtcProgram,
    num_options: c_int,
    options: *mut *const c_char,
) -> hiprtcResult {
    let Ok(count) = usize::try_from(num_options) else { return HIPRTC_ERROR_INVALID_INPUT };
    if count > 0 && options.is_null() {
        return HIPRTC_ERROR_INVALID_INPUT;
    }
    // SAFETY: not null where there are options, and the caller vouches for their number.
    let given = (0..count).map(|i| unsafe { *options.add(i) });
    // AMD's headers define this when HIP is compiled for NVIDIA; without them the compiler has to.
    let mut all: Vec<*const c_char> = given.chain([c"-D__HIP_PLATFORM_NVIDIA__=1".as_ptr()]).collect();
    // SAFETY: see `hiprtcVersion`.
    call(|n| unsafe { (n.compile)(program, num_options + 1, all.as_mut_ptr()) })
}

/// # Safety
/// See `hiprtcVersion`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn hiprtcGetProgramLogSize(
    program: hiprtcProgram,
    bytes: *mut usize,
) -> hiprtcResult {
    // SAFETY: see `hiprtcVersion`.
    call(|n| unsafe { (n.log_size)(program, bytes) })
}

/// # Safety
/// See `hiprtcVersion`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn hiprtcGetProgramLog(
    program: hiprtcProgram,
    log: *mut c_char,
) -> hiprtcResult {
    // SAFETY: see `hiprtcVersion`.
    call(|n| unsafe { (n.log)(program, log) })
}

/// # Safety
/// See `hiprtcVersion`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn hiprtcGetCodeSize(program: hiprtcProgram, bytes: *mut usize) -> hiprtcResult {
    // SAFETY: see `hiprtcVersion`.
    call(|n| unsafe { (n.code_size)(program, bytes) })
}

/// # Safety
/// See `hiprtcVersion`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn hiprtcGetCode(program: hiprtcProgram, code: *mut c_char) -> hiprtcResult {
    // SAFETY: see `hiprtcVersion`.
    call(|n| unsafe { (n.code)(program, code) })
}

/// # Safety
/// See `hiprtcVersion`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn hiprtcDestroyProgram(program: *mut hiprtcProgram) -> hiprtcResult {
    // SAFETY: see `hiprtcVersion`.
    call(|n| unsafe { (n.destroy)(program) })
}
