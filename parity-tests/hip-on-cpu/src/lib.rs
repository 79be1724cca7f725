//! AMD's devices on the host's processor, behind HIP's interface.
//!
//! The library exports the HIP and hiprtc functions that `hip_sys` loads, no more and no fewer. Its compiler is clang, which turns the text of a unit
//! as hiprtc would get it, the branches for AMD's hardware included, into machine code of the host; its device runs the blocks of a launch one after
//! the other, and the work-items of a block as coroutines. So trefoil's HIP driver, engine and kernels run and are tested where there is no GPU:
//!
//! ```text
//! cargo build -p hip-on-cpu
//! TREFOIL_HIP_LIB=target/debug/libhip_on_cpu.so TREFOIL_BACKEND=hip cargo test ...
//! ```
//!
//! | Variable | Meaning |
//! |---|---|
//! | `TREFOIL_HIP_ON_CPU_ARCH` | The architecture that the device states, `gfx90a` unless given; those of generation 9 have wavefronts of 64 lanes, later ones of 32 |
//! | `TREFOIL_HIP_ON_CPU_SANITIZE` | `1`: kernels are compiled with AddressSanitizer and UndefinedBehaviorSanitizer; the process must have clang's runtime of the first preloaded |
//!
//! What it shows, beyond what HIP on NVIDIA's hardware (`hip-on-cuda`) can:
//!
//! * Assumptions about the width of a wavefront. Exchanges between lanes happen once all lanes of the wavefront have come to one; a lane that asks one
//!   that has ended, or that waits elsewhere, fails the launch.
//! * Missing barriers. Between two barriers a work-item runs until it must wait, the first one first and after the next barrier the last one first, so
//!   what one reads and another writes without a barrier between them differs from what hardware gives, in one order or the other.
//! * Barriers that not all work-items of a block reach: the launch fails. So it does where some lanes of a wavefront reach a matrix instruction alone.
//! * Matrix instructions (MFMA and WMMA of 16 x 16 sums): each lane's numbers are where AMD's matrix instruction calculator has them, gfx90a takes denormal
//!   numbers of f16 for 0, and lanes of gfx11 that should give the same terms and do not make sums NaN.
//! * Shared memory that is read before it is written: every block finds it full of NaN (all bits set).
//! * With sanitizers, accesses outside of buffers and arrays, misaligned ones, signed overflow, shifts beyond the width.
//!
//! What it cannot show: AMD's code generator, memory model, timing.
#![allow(non_snake_case)]

mod compiler;
mod device;
mod error;
mod execute;
mod runtime;
mod unit;

use hip_sys::{HipFunctions, HiprtcFunctions};

/// That the exported functions are exactly those which `hip_sys` loads, with the same signatures, is checked here by the compiler.
const _: HipFunctions = HipFunctions {
    hipInit: runtime::hipInit,
    hipRuntimeGetVersion: runtime::hipRuntimeGetVersion,
    hipDriverGetVersion: runtime::hipDriverGetVersion,
    hipGetErrorName: error::hipGetErrorName,
    hipGetErrorString: error::hipGetErrorString,
    hipGetDeviceCount: device::hipGetDeviceCount,
    hipDeviceGet: device::hipDeviceGet,
    hipDeviceGetName: device::hipDeviceGetName,
    hipDeviceTotalMem: device::hipDeviceTotalMem,
    hipDeviceGetAttribute: device::hipDeviceGetAttribute,
    hipGetDeviceProperties: device::hipGetDevicePropertiesR0600,
    hipSetDevice: device::hipSetDevice,
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

const _: HiprtcFunctions = HiprtcFunctions {
    hiprtcVersion: compiler::hiprtcVersion,
    hiprtcGetErrorString: compiler::hiprtcGetErrorString,
    hiprtcCreateProgram: compiler::hiprtcCreateProgram,
    hiprtcCompileProgram: compiler::hiprtcCompileProgram,
    hiprtcGetProgramLogSize: compiler::hiprtcGetProgramLogSize,
    hiprtcGetProgramLog: compiler::hiprtcGetProgramLog,
    hiprtcGetCodeSize: compiler::hiprtcGetCodeSize,
    hiprtcGetCode: compiler::hiprtcGetCode,
    hiprtcDestroyProgram: compiler::hiprtcDestroyProgram,
};
