//! Types and constants of the headers.
//!
//! The values were read from the headers of ROCm 5.2 and compared with bindings of ROCm 6 and 7: the enumeration of attributes was
//! renumbered for the last time in ROCm 4.3; later releases only append and rename unused entries.

use std::ffi::{c_int, c_void};

/// Status of a HIP call; 0 is success. An integer, since newer runtimes return codes that this crate has no name for.
pub type hipError_t = c_int;
/// Number of a device.
pub type hipDevice_t = c_int;
/// Address of device memory.
pub type hipDeviceptr_t = *mut c_void;
/// Handle of a stream; null is the legacy default stream.
pub type hipStream_t = *mut c_void;
/// Handle of an event.
pub type hipEvent_t = *mut c_void;
/// Handle of a graph.
pub type hipGraph_t = *mut c_void;
/// Handle of a graph that is ready to launch.
pub type hipGraphExec_t = *mut c_void;
/// What other calls are forbidden while a stream records.
pub type hipStreamCaptureMode = c_int;
/// Handle of a loaded code object.
pub type hipModule_t = *mut c_void;
/// Handle of a kernel in a module.
pub type hipFunction_t = *mut c_void;
/// Key for [`Hip::hipDeviceGetAttribute`](crate::Hip::hipDeviceGetAttribute).
pub type hipDeviceAttribute_t = c_int;
/// Status of a hiprtc call; 0 is success.
pub type hiprtcResult = c_int;
/// Handle of a hiprtc program.
pub type hiprtcProgram = *mut c_void;

/// The call succeeded.
pub const hipSuccess: hipError_t = 0;
/// An argument is null or out of range.
pub const hipErrorInvalidValue: hipError_t = 1;
/// No memory left.
pub const hipErrorOutOfMemory: hipError_t = 2;
/// The runtime could not be initialised.
pub const hipErrorNotInitialized: hipError_t = 3;
/// The driver is older than the runtime needs.
pub const hipErrorInsufficientDriver: hipError_t = 35;
/// There is no device.
pub const hipErrorNoDevice: hipError_t = 100;
/// The ordinal is not that of a device.
pub const hipErrorInvalidDevice: hipError_t = 101;
/// A shared library could not be initialised.
pub const hipErrorSharedObjectInitFailed: hipError_t = 303;
/// A named symbol is not in the module.
pub const hipErrorNotFound: hipError_t = 500;
/// Work is still under way; the answer of queries, no failure.
pub const hipErrorNotReady: hipError_t = 600;
/// A recording was broken off by a call that cannot be recorded.
pub const hipErrorStreamCaptureInvalidated: hipError_t = 901;
/// A failure without a name of its own.
pub const hipErrorUnknown: hipError_t = 999;

/// Nothing is forbidden.
pub const hipStreamCaptureModeRelaxed: hipStreamCaptureMode = 2;

/// Major number of the compute capability.
pub const hipDeviceAttributeComputeCapabilityMajor: hipDeviceAttribute_t = 23;
/// Work-items per block at most.
pub const hipDeviceAttributeMaxThreadsPerBlock: hipDeviceAttribute_t = 56;
/// Minor number of the compute capability.
pub const hipDeviceAttributeComputeCapabilityMinor: hipDeviceAttribute_t = 61;
/// Compute units (multiprocessors).
pub const hipDeviceAttributeMultiprocessorCount: hipDeviceAttribute_t = 63;
/// Bytes of local data share (shared memory) that a block may use.
pub const hipDeviceAttributeMaxSharedMemoryPerBlock: hipDeviceAttribute_t = 74;
/// Lanes of a wavefront (warp).
pub const hipDeviceAttributeWarpSize: hipDeviceAttribute_t = 87;

/// Flag of [`Hip::hipStreamCreateWithFlags`](crate::Hip::hipStreamCreateWithFlags): no implicit order with the default stream.
pub const hipStreamNonBlocking: u32 = 1;
/// Flag of [`Hip::hipEventCreateWithFlags`](crate::Hip::hipEventCreateWithFlags): with a time stamp, waiting by polling.
pub const hipEventDefault: u32 = 0;
/// Flag of [`Hip::hipEventCreateWithFlags`](crate::Hip::hipEventCreateWithFlags): no time stamp.
pub const hipEventDisableTiming: u32 = 2;
/// Flag of [`Hip::hipHostMalloc`](crate::Hip::hipHostMalloc): pinned, cached, for the current device.
pub const hipHostMallocDefault: u32 = 0;

/// The call succeeded.
pub const HIPRTC_SUCCESS: hiprtcResult = 0;
/// No memory left.
pub const HIPRTC_ERROR_OUT_OF_MEMORY: hiprtcResult = 1;
/// An argument is null or out of range.
pub const HIPRTC_ERROR_INVALID_INPUT: hiprtcResult = 3;
/// The program handle is not valid.
pub const HIPRTC_ERROR_INVALID_PROGRAM: hiprtcResult = 4;
/// An option is not known.
pub const HIPRTC_ERROR_INVALID_OPTION: hiprtcResult = 5;
/// The text does not compile; the log says why.
pub const HIPRTC_ERROR_COMPILATION: hiprtcResult = 6;
/// A failure inside the compiler.
pub const HIPRTC_ERROR_INTERNAL_ERROR: hiprtcResult = 11;
