//! Status codes. HIP took most of CUDA's numbers; the rest are mapped to the nearest.

use std::ffi::{CStr, c_char, c_int};
use std::ptr;

use hip_sys::hipError_t;

use crate::cuda;

/// HIP's codes that CUDA's driver can answer with, by name.
const NAMES: [(hipError_t, &CStr); 47] = [
    (0, c"hipSuccess"),
    (1, c"hipErrorInvalidValue"),
    (2, c"hipErrorOutOfMemory"),
    (3, c"hipErrorNotInitialized"),
    (4, c"hipErrorDeinitialized"),
    (5, c"hipErrorProfilerDisabled"),
    (6, c"hipErrorProfilerNotInitialized"),
    (35, c"hipErrorInsufficientDriver"),
    (100, c"hipErrorNoDevice"),
    (101, c"hipErrorInvalidDevice"),
    (200, c"hipErrorInvalidImage"),
    (201, c"hipErrorInvalidContext"),
    (202, c"hipErrorContextAlreadyCurrent"),
    (205, c"hipErrorMapFailed"),
    (206, c"hipErrorUnmapFailed"),
    (209, c"hipErrorNoBinaryForGpu"),
    (210, c"hipErrorAlreadyAcquired"),
    (214, c"hipErrorECCNotCorrectable"),
    (215, c"hipErrorUnsupportedLimit"),
    (216, c"hipErrorContextAlreadyInUse"),
    (217, c"hipErrorPeerAccessUnsupported"),
    (218, c"hipErrorInvalidKernelFile"),
    (300, c"hipErrorInvalidSource"),
    (301, c"hipErrorFileNotFound"),
    (302, c"hipErrorSharedObjectSymbolNotFound"),
    (303, c"hipErrorSharedObjectInitFailed"),
    (304, c"hipErrorOperatingSystem"),
    (400, c"hipErrorInvalidHandle"),
    (401, c"hipErrorIllegalState"),
    (500, c"hipErrorNotFound"),
    (600, c"hipErrorNotReady"),
    (700, c"hipErrorIllegalAddress"),
    (701, c"hipErrorLaunchOutOfResources"),
    (702, c"hipErrorLaunchTimeOut"),
    (704, c"hipErrorPeerAccessAlreadyEnabled"),
    (705, c"hipErrorPeerAccessNotEnabled"),
    (708, c"hipErrorSetOnActiveProcess"),
    (709, c"hipErrorContextIsDestroyed"),
    (710, c"hipErrorAssert"),
    (712, c"hipErrorHostMemoryAlreadyRegistered"),
    (713, c"hipErrorHostMemoryNotRegistered"),
    (719, c"hipErrorLaunchFailure"),
    (720, c"hipErrorCooperativeLaunchTooLarge"),
    (801, c"hipErrorNotSupported"),
    (900, c"hipErrorStreamCaptureUnsupported"),
    (901, c"hipErrorStreamCaptureInvalidated"),
    (999, c"hipErrorUnknown"),
];

fn name_of(status: hipError_t) -> Option<&'static CStr> {
    NAMES.iter().find(|(code, _)| *code == status).map(|(_, name)| *name)
}

/// A status of the CUDA driver as HIP's.
pub(crate) fn from_cuda(status: c_int) -> hipError_t {
    match status {
        // The driver found is a stub for linking.
        34 => hip_sys::hipErrorSharedObjectInitFailed,
        // PTX of a version or for a target that the driver does not know.
        222 | 223 => 200,
        // Faults of a running kernel: stack, instruction, alignment, address space, program counter.
        714..=718 => 719,
        code if name_of(code).is_some() => code,
        _ => hip_sys::hipErrorUnknown,
    }
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn hipGetErrorName(error: hipError_t) -> *const c_char {
    name_of(error).unwrap_or(c"hipErrorUnknown").as_ptr()
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn hipGetErrorString(error: hipError_t) -> *const c_char {
    let mut text = ptr::null();
    if let Ok(cuda) = cuda::cuda() {
        // SAFETY: the place is valid; an unknown number leaves it null.
        unsafe { (cuda.error_string)(error, &mut text) };
    }
    if text.is_null() { hipGetErrorName(error) } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_codes_stay_and_others_are_mapped() {
        for (code, _) in NAMES {
            assert_eq!(from_cuda(code), code);
        }
        assert_eq!([34, 222, 716, 12345].map(from_cuda), [303, 200, 719, 999]);
    }

    #[test]
    fn names_are_sorted_and_unique() {
        assert!(NAMES.is_sorted_by(|a, b| a.0 < b.0));
    }
}
