//! Status codes.

use std::ffi::{CStr, c_char};

use hip_sys::{
    hipError_t, hipErrorInvalidDevice, hipErrorInvalidValue, hipErrorNotFound, hipErrorOutOfMemory,
    hipSuccess,
};

/// A code object is not one of this library's compiler.
pub(crate) const INVALID_IMAGE: hipError_t = 200;
/// A handle is not one of this library's, or no longer.
pub(crate) const INVALID_HANDLE: hipError_t = 400;
/// The block is larger than the kernel's bound, or its shared memory than the device's.
pub(crate) const OUT_OF_RESOURCES: hipError_t = 701;
/// A kernel has done what hardware does not define; the reason stands on the error stream.
pub(crate) const LAUNCH_FAILURE: hipError_t = 719;

/// The codes that this library answers with, by name and in words.
const CODES: [(hipError_t, &CStr, &CStr); 9] = [
    (hipSuccess, c"hipSuccess", c"no error"),
    (hipErrorInvalidValue, c"hipErrorInvalidValue", c"an argument is null or out of range"),
    (hipErrorOutOfMemory, c"hipErrorOutOfMemory", c"no memory left"),
    (hipErrorInvalidDevice, c"hipErrorInvalidDevice", c"there is one device, 0"),
    (INVALID_IMAGE, c"hipErrorInvalidImage", c"not a code object of this library"),
    (INVALID_HANDLE, c"hipErrorInvalidHandle", c"not a handle of this library"),
    (hipErrorNotFound, c"hipErrorNotFound", c"no kernel of that name"),
    (OUT_OF_RESOURCES, c"hipErrorLaunchOutOfResources", c"block or shared memory too large"),
    (LAUNCH_FAILURE, c"hipErrorLaunchFailure", c"the kernel failed; the error stream has the reason"),
];

fn find(status: hipError_t) -> Option<&'static (hipError_t, &'static CStr, &'static CStr)> {
    CODES.iter().find(|(code, ..)| *code == status)
}

/// The outcome as a status.
pub(crate) fn status(result: Result<(), hipError_t>) -> hipError_t {
    result.err().unwrap_or(hipSuccess)
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn hipGetErrorName(error: hipError_t) -> *const c_char {
    find(error).map_or(c"hipErrorUnknown", |(_, name, _)| name).as_ptr()
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn hipGetErrorString(error: hipError_t) -> *const c_char {
    find(error).map_or(c"unknown error", |(.., words)| words).as_ptr()
}
