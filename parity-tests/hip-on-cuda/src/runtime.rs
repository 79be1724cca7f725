//! The HIP runtime on the CUDA driver API. Flags of streams and events, and sizes, are the same numbers in both.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::ptr;

use hip_sys::*;

use crate::cuda::{Cuda, check, choose, cuda, current};

/// `CU_MEMHOSTALLOC_PORTABLE`: pinned for all contexts, as HIP's pinned memory is.
const HOST_ALLOC_PORTABLE: c_uint = 1;
/// `CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES`, and the bytes beyond which CUDA wants it to be set.
const MAX_DYNAMIC_SHARED: c_int = 8;
const SHARED_WITHOUT_ASKING: c_uint = 48 << 10;
/// Bytes of `hipDeviceProp_t` since ROCm 6, and where `gcnArchName` stands in it.
const PROPERTY_BYTES: usize = 1472;
const PROPERTY_ARCH: usize = 1160;
/// Bytes of `name` at the start of `hipDeviceProp_t`, and of `gcnArchName`.
const PROPERTY_TEXT: usize = 256;

fn address(p: hipDeviceptr_t) -> u64 {
    p.expose_provenance() as u64
}

/// The outcome as a status.
fn status(result: Result<(), hipError_t>) -> hipError_t {
    result.err().unwrap_or(hipSuccess)
}

/// Calls the driver, which needs no context for this.
fn call(f: impl FnOnce(&Cuda) -> c_int) -> hipError_t {
    status(cuda().and_then(|c| check(f(c))))
}

/// Calls the driver with the context of the thread's device.
fn call_current(f: impl FnOnce(&Cuda) -> c_int) -> hipError_t {
    status(current().and_then(|c| check(f(c))))
}

/// The attribute of CUDA that answers one of HIP; only those that `hip_sys` names.
fn attribute_of(hip: hipDeviceAttribute_t) -> Option<c_int> {
    #[allow(non_upper_case_globals)]
    Some(match hip {
        hipDeviceAttributeMaxThreadsPerBlock => 1,
        // What a kernel may have if it asks; `hipModuleLaunchKernel` asks, as AMD's devices need not be.
        hipDeviceAttributeMaxSharedMemoryPerBlock => 97,
        hipDeviceAttributeWarpSize => 10,
        hipDeviceAttributeMultiprocessorCount => 16,
        hipDeviceAttributeComputeCapabilityMajor => 75,
        hipDeviceAttributeComputeCapabilityMinor => 76,
        _ => return None,
    })
}

/// The CUDA device of an ordinal.
fn device(c: &Cuda, ordinal: c_int) -> Result<c_int, hipError_t> {
    let mut device = 0;
    // SAFETY: the place is valid; a wrong ordinal is refused.
    check(unsafe { (c.device_get)(&mut device, ordinal) }).map(|()| device)
}

fn attribute(c: &Cuda, ordinal: c_int, hip: hipDeviceAttribute_t) -> Result<c_int, hipError_t> {
    let key = attribute_of(hip).ok_or(hipErrorInvalidValue)?;
    let mut value = 0;
    // SAFETY: the place is valid.
    check(unsafe { (c.device_attribute)(&mut value, key, device(c, ordinal)?) }).map(|()| value)
}

/// Name and architecture in the place that they have in `hipDeviceProp_t`; everything else 0.
fn properties(name: &[u8], arch: &str) -> [u8; PROPERTY_BYTES] {
    let mut bytes = [0; PROPERTY_BYTES];
    for (at, text) in [(0, name), (PROPERTY_ARCH, arch.as_bytes())] {
        let len = text.len().min(PROPERTY_TEXT - 1);
        bytes[at..at + len].copy_from_slice(&text[..len]);
    }
    bytes
}

fn device_properties(ordinal: c_int) -> Result<[u8; PROPERTY_BYTES], hipError_t> {
    let c = cuda()?;
    let mut name = [0u8; PROPERTY_TEXT];
    // SAFETY: the length is that of the buffer.
    check(unsafe { (c.device_name)(name.as_mut_ptr().cast(), name.len() as c_int, device(c, ordinal)?) })?;
    let name = name.split(|&b| b == 0).next().unwrap_or_default();
    let major = attribute(c, ordinal, hipDeviceAttributeComputeCapabilityMajor)?;
    let minor = attribute(c, ordinal, hipDeviceAttributeComputeCapabilityMinor)?;
    // With what only this architecture has: matrix products of warp groups.
    let own = if (major, minor) == (9, 0) { "a" } else { "" };
    Ok(properties(name, &format!("sm_{major}{minor}{own}")))
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn hipInit(flags: c_uint) -> hipError_t {
    // SAFETY: unknown flags are refused.
    call(|c| unsafe { (c.init)(flags) })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn hipSetDevice(ordinal: c_int) -> hipError_t {
    status(choose(ordinal))
}

/// # Safety
/// As in AMD's documentation; so for all functions below.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn hipRuntimeGetVersion(version: *mut c_int) -> hipError_t {
    // SAFETY: the caller vouches for the place; so below.
    call(|c| unsafe { (c.driver_version)(version) })
}

/// # Safety
/// See `hipRuntimeGetVersion`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn hipDriverGetVersion(version: *mut c_int) -> hipError_t {
    // SAFETY: see `hipRuntimeGetVersion`.
    call(|c| unsafe { (c.driver_version)(version) })
}

/// # Safety
/// See `hipRuntimeGetVersion`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn hipGetDeviceCount(count: *mut c_int) -> hipError_t {
    // SAFETY: see `hipRuntimeGetVersion`.
    call(|c| unsafe { (c.device_count)(count) })
}

/// # Safety
/// See `hipRuntimeGetVersion`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn hipDeviceGet(device: *mut hipDevice_t, ordinal: c_int) -> hipError_t {
    // SAFETY: see `hipRuntimeGetVersion`.
    call(|c| unsafe { (c.device_get)(device, ordinal) })
}

/// # Safety
/// See `hipRuntimeGetVersion`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn hipDeviceGetName(
    name: *mut c_char,
    len: c_int,
    device: hipDevice_t,
) -> hipError_t {
    // SAFETY: see `hipRuntimeGetVersion`.
    call(|c| unsafe { (c.device_name)(name, len, device) })
}

/// # Safety
/// See `hipRuntimeGetVersion`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn hipDeviceTotalMem(bytes: *mut usize, device: hipDevice_t) -> hipError_t {
    // SAFETY: see `hipRuntimeGetVersion`.
    call(|c| unsafe { (c.device_memory)(bytes, device) })
}

/// # Safety
/// See `hipRuntimeGetVersion`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn hipDeviceGetAttribute(
    value: *mut c_int,
    key: hipDeviceAttribute_t,
    ordinal: c_int,
) -> hipError_t {
    if value.is_null() {
        return hipErrorInvalidValue;
    }
    status(cuda().and_then(|c| attribute(c, ordinal, key)).map(|v| {
        // SAFETY: not null, and the caller vouches for the place.
        unsafe { value.write(v) }
    }))
}

/// # Safety
/// `place` has room for the structure of ROCm 6.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn hipGetDevicePropertiesR0600(
    place: *mut c_void,
    ordinal: c_int,
) -> hipError_t {
    if place.is_null() {
        return hipErrorInvalidValue;
    }
    status(device_properties(ordinal).map(|bytes| {
        // SAFETY: not null, and the caller vouches for the room.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), place.cast::<u8>(), bytes.len()) }
    }))
}

/// # Safety
/// See `hipRuntimeGetVersion`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn hipMalloc(memory: *mut hipDeviceptr_t, bytes: usize) -> hipError_t {
    if memory.is_null() {
        return hipErrorInvalidValue;
    }
    let mut found = 0;
    // CUDA refuses 0 bytes, where HIP answers with a null pointer.
    let status = match bytes {
        0 => hipSuccess,
        // SAFETY: the place is valid.
        _ => call_current(|c| unsafe { (c.alloc)(&mut found, bytes) }),
    };
    if status == hipSuccess {
        // SAFETY: not null, and the caller vouches for the place.
        unsafe { memory.write(ptr::with_exposed_provenance_mut(found as usize)) };
    }
    status
}

/// # Safety
/// See `hipRuntimeGetVersion`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn hipFree(memory: hipDeviceptr_t) -> hipError_t {
    if memory.is_null() {
        return hipSuccess;
    }
    // SAFETY: the caller vouches that the memory is live.
    call_current(|c| unsafe { (c.free)(address(memory)) })
}

/// # Safety
/// See `hipRuntimeGetVersion`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn hipModuleLaunchKernel(
    function: hipFunction_t,
    grid_x: c_uint,
    grid_y: c_uint,
    grid_z: c_uint,
    block_x: c_uint,
    block_y: c_uint,
    block_z: c_uint,
    shared_bytes: c_uint,
    stream: hipStream_t,
    params: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> hipError_t {
    call_current(|c| {
        // SAFETY: the caller vouches for kernel, stream and arguments, which have the same form in both.
        unsafe {
            if shared_bytes > SHARED_WITHOUT_ASKING {
                match (c.function_attribute)(function, MAX_DYNAMIC_SHARED, shared_bytes as c_int) {
                    0 => {}
                    refused => return refused,
                }
            }
            (c.launch)(
                function,
                grid_x,
                grid_y,
                grid_z,
                block_x,
                block_y,
                block_z,
                shared_bytes,
                stream,
                params,
                extra,
            )
        }
    })
}

/// Functions that have an equal in the driver and work on the thread's device.
macro_rules! forward {
    ($( fn $name:ident($($arg:ident: $ty:ty),*) = |$c:ident| $call:expr; )*) => {$(
        /// # Safety
        /// See `hipRuntimeGetVersion`.
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C" fn $name($($arg: $ty),*) -> hipError_t {
            // SAFETY: the caller vouches for the arguments, which mean the same to the driver.
            call_current(|$c| unsafe { $call })
        }
    )*};
}

forward! {
    fn hipMemGetInfo(free: *mut usize, total: *mut usize) = |c| (c.memory_info)(free, total);
    fn hipMemcpyHtoDAsync(dst: hipDeviceptr_t, src: *mut c_void, bytes: usize, stream: hipStream_t) = |c| (c.copy_in)(address(dst), src, bytes, stream);
    fn hipMemcpyDtoHAsync(dst: *mut c_void, src: hipDeviceptr_t, bytes: usize, stream: hipStream_t) = |c| (c.copy_out)(dst, address(src), bytes, stream);
    fn hipMemcpyDtoDAsync(dst: hipDeviceptr_t, src: hipDeviceptr_t, bytes: usize, stream: hipStream_t) = |c| (c.copy)(address(dst), address(src), bytes, stream);
    fn hipMemsetD8Async(dst: hipDeviceptr_t, value: u8, count: usize, stream: hipStream_t) = |c| (c.fill)(address(dst), value, count, stream);
    fn hipHostMalloc(memory: *mut *mut c_void, bytes: usize, _flags: c_uint) = |c| (c.host_alloc)(memory, bytes, HOST_ALLOC_PORTABLE);
    fn hipHostFree(memory: *mut c_void) = |c| (c.host_free)(memory);
    fn hipStreamCreateWithFlags(stream: *mut hipStream_t, flags: c_uint) = |c| (c.stream_create)(stream, flags);
    fn hipStreamDestroy(stream: hipStream_t) = |c| (c.stream_destroy)(stream);
    fn hipStreamSynchronize(stream: hipStream_t) = |c| (c.stream_synchronize)(stream);
    fn hipStreamWaitEvent(stream: hipStream_t, event: hipEvent_t, flags: c_uint) = |c| (c.stream_wait)(stream, event, flags);
    fn hipEventCreateWithFlags(event: *mut hipEvent_t, flags: c_uint) = |c| (c.event_create)(event, flags);
    fn hipEventDestroy(event: hipEvent_t) = |c| (c.event_destroy)(event);
    fn hipEventRecord(event: hipEvent_t, stream: hipStream_t) = |c| (c.event_record)(event, stream);
    fn hipEventQuery(event: hipEvent_t) = |c| (c.event_query)(event);
    fn hipEventSynchronize(event: hipEvent_t) = |c| (c.event_synchronize)(event);
    fn hipEventElapsedTime(ms: *mut f32, start: hipEvent_t, stop: hipEvent_t) = |c| (c.event_elapsed)(ms, start, stop);
    fn hipStreamBeginCapture(stream: hipStream_t, mode: hipStreamCaptureMode) = |c| (c.capture_begin)(stream, mode);
    fn hipStreamEndCapture(stream: hipStream_t, graph: *mut hipGraph_t) = |c| (c.capture_end)(stream, graph);
    fn hipGraphInstantiateWithFlags(ready: *mut hipGraphExec_t, graph: hipGraph_t, flags: u64) = |c| (c.graph_instantiate)(ready, graph, flags);
    fn hipGraphLaunch(graph: hipGraphExec_t, stream: hipStream_t) = |c| (c.graph_launch)(graph, stream);
    fn hipGraphDestroy(graph: hipGraph_t) = |c| (c.graph_destroy)(graph);
    fn hipGraphExecDestroy(graph: hipGraphExec_t) = |c| (c.graph_exec_destroy)(graph);
    fn hipModuleLoadData(module: *mut hipModule_t, image: *const c_void) = |c| (c.module_load)(module, image);
    fn hipModuleUnload(module: hipModule_t) = |c| (c.module_unload)(module);
    fn hipModuleGetFunction(function: *mut hipFunction_t, module: hipModule_t, name: *const c_char) = |c| (c.module_function)(function, module, name);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn properties_hold_name_and_architecture() {
        let bytes = properties(b"a card", "sm_90");
        assert_eq!(&bytes[..7], b"a card\0");
        assert_eq!(&bytes[PROPERTY_ARCH..PROPERTY_ARCH + 6], b"sm_90\0");
        assert_eq!(properties(&[b'x'; 300], "sm_90")[PROPERTY_TEXT - 1], 0, "a long name is cut");
    }

    #[test]
    fn every_attribute_of_hip_sys_is_mapped() {
        let keys = [23, 56, 61, 63, 74, 87];
        assert!(keys.iter().all(|k| attribute_of(*k).is_some()));
        assert_eq!(attribute_of(0), None);
    }

    #[test]
    fn null_places_are_refused() {
        // SAFETY: null is what is tested.
        unsafe {
            assert_eq!(hipMalloc(ptr::null_mut(), 1), hipErrorInvalidValue);
            assert_eq!(hipDeviceGetAttribute(ptr::null_mut(), 10, 0), hipErrorInvalidValue);
            assert_eq!(hipGetDevicePropertiesR0600(ptr::null_mut(), 0), hipErrorInvalidValue);
            assert_eq!(hipFree(ptr::null_mut()), hipSuccess);
        }
    }
}
