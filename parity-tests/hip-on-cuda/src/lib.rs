//! HIP's NVIDIA platform in library form.
//!
//! On NVIDIA hardware AMD's headers turn HIP into CUDA at compile time: `hipMalloc` becomes `cudaMalloc` and so on. A program that
//! resolves HIP at run time cannot use that. This library does the same at run time: it exports the HIP and hiprtc functions that
//! `hip_sys` loads, no more and no fewer, and forwards them to the CUDA driver API and to NVRTC, so that trefoil's HIP driver runs, launches
//! kernels and is tested without AMD hardware:
//!
//! ```text
//! cargo build -p hip-on-cuda
//! TREFOIL_HIP_LIB=target/debug/libhip_on_cuda.so TREFOIL_BACKEND=hip cargo test ...
//! ```
//!
//! What it shows: that the HIP driver's calls, their order, arguments and error handling are right, and that the HIP dialect's text means
//! the same as the CUDA dialect's. What it cannot show: AMD's compiler, wavefronts of 64 lanes, AMD's memory model, AMD's bugs.
//!
//! * The CUDA driver (`libcuda.so.1`, `nvcuda.dll`) and NVRTC (`TREFOIL_NVRTC_LIB`, else its usual names) are opened at first use; where
//!   the first is missing, every call answers `hipErrorSharedObjectInitFailed`, where the second is, `HIPRTC_ERROR_INTERNAL_ERROR`.
//! * Each device has its primary context, retained at first use. `hipSetDevice` chooses it for the calling thread; a thread that never
//!   called it works on device 0. The context is made current again by every call, since other code of the process may have changed it.
//! * `hipGetDevicePropertiesR0600` writes the device's name and, as `gcnArchName`, its `sm_XY`; all other properties are 0.
//! * `hiprtcCompileProgram` adds `-D__HIP_PLATFORM_NVIDIA__=1`; the code object is a CUBIN.
#![allow(non_snake_case)]

mod cuda;
mod error;
mod nvrtc;
mod runtime;

use hip_sys::{HipFunctions, HipGraphFunctions, HiprtcFunctions};

/// That the exported functions are exactly those which `hip_sys` loads, with the same signatures, is checked here by the compiler.
const _: HipFunctions = HipFunctions {
    hipInit: runtime::hipInit,
    hipRuntimeGetVersion: runtime::hipRuntimeGetVersion,
    hipDriverGetVersion: runtime::hipDriverGetVersion,
    hipGetErrorName: error::hipGetErrorName,
    hipGetErrorString: error::hipGetErrorString,
    hipGetDeviceCount: runtime::hipGetDeviceCount,
    hipDeviceGet: runtime::hipDeviceGet,
    hipDeviceGetName: runtime::hipDeviceGetName,
    hipDeviceTotalMem: runtime::hipDeviceTotalMem,
    hipDeviceGetAttribute: runtime::hipDeviceGetAttribute,
    hipGetDeviceProperties: runtime::hipGetDevicePropertiesR0600,
    hipSetDevice: runtime::hipSetDevice,
    hipMemGetInfo: runtime::hipMemGetInfo,
    hipMalloc: runtime::hipMalloc,
    hipFree: runtime::hipFree,
    hipHostMalloc: runtime::hipHostMalloc,
    hipHostFree: runtime::hipHostFree,
    hipMemcpyHtoDAsync: runtime::hipMemcpyHtoDAsync,
    hipMemcpyDtoHAsync: runtime::hipMemcpyDtoHAsync,
    hipMemcpyDtoDAsync: runtime::hipMemcpyDtoDAsync,
    hipMemsetD8Async: runtime::hipMemsetD8Async,
    hipStreamCreateWithFlags: runtime::hipStreamCreateWithFlags,
    hipStreamDestroy: runtime::hipStreamDestroy,
    hipStreamSynchronize: runtime::hipStreamSynchronize,
    hipStreamWaitEvent: runtime::hipStreamWaitEvent,
    hipEventCreateWithFlags: runtime::hipEventCreateWithFlags,
    hipEventDestroy: runtime::hipEventDestroy,
    hipEventRecord: runtime::hipEventRecord,
    hipEventQuery: runtime::hipEventQuery,
    hipEventSynchronize: runtime::hipEventSynchronize,
    hipEventElapsedTime: runtime::hipEventElapsedTime,
    hipModuleLoadData: runtime::hipModuleLoadData,
    hipModuleUnload: runtime::hipModuleUnload,
    hipModuleGetFunction: runtime::hipModuleGetFunction,
    hipModuleLaunchKernel: runtime::hipModuleLaunchKernel,
};

const _: HipGraphFunctions = HipGraphFunctions {
    hipStreamBeginCapture: runtime::hipStreamBeginCapture,
    hipStreamEndCapture: runtime::hipStreamEndCapture,
    hipGraphInstantiateWithFlags: runtime::hipGraphInstantiateWithFlags,
    hipGraphLaunch: runtime::hipGraphLaunch,
    hipGraphDestroy: runtime::hipGraphDestroy,
    hipGraphExecDestroy: runtime::hipGraphExecDestroy,
};

const _: HiprtcFunctions = HiprtcFunctions {
    hiprtcVersion: nvrtc::hiprtcVersion,
    hiprtcGetErrorString: nvrtc::hiprtcGetErrorString,
    hiprtcCreateProgram: nvrtc::hiprtcCreateProgram,
    hiprtcCompileProgram: nvrtc::hiprtcCompileProgram,
    hiprtcGetProgramLogSize: nvrtc::hiprtcGetProgramLogSize,
    hiprtcGetProgramLog: nvrtc::hiprtcGetProgramLog,
    hiprtcGetCodeSize: nvrtc::hiprtcGetCodeSize,
    hiprtcGetCode: nvrtc::hiprtcGetCode,
    hiprtcDestroyProgram: nvrtc::hiprtcDestroyProgram,
};
