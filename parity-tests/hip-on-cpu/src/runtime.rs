//! The HIP runtime: memory, streams, events, modules. All work is done when it is queued, so that streams are always idle.

use std::alloc::Layout;
use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{LazyLock, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use hip_sys::*;

use crate::compiler::DEVICE;
use crate::device::{MEMORY_BYTES, answer};
use crate::error::{INVALID_HANDLE, status};
use crate::execute::Dim;
use crate::unit::{Function, Unit};

/// What device memory is aligned to.
const ALIGNMENT: usize = 256;

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn hipInit(flags: c_uint) -> hipError_t {
    if flags == 0 { hipSuccess } else { hipErrorInvalidValue }
}

/// Major number 1, and as the rest what the text of the built-ins hashes to: code that is kept on disk is kept by it.
fn version() -> c_int {
    static VERSION: OnceLock<c_int> = OnceLock::new();
    *VERSION.get_or_init(|| {
        let hash = blake3::hash(DEVICE.as_bytes());
        let [a, b, ..] = hash.as_bytes();
        10_000_000 + c_int::from(u16::from_le_bytes([*a, *b]))
    })
}

/// # Safety
/// As in AMD's documentation; so for all functions below.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn hipRuntimeGetVersion(place: *mut c_int) -> hipError_t {
    // SAFETY: the caller vouches for the place; so below.
    unsafe { answer(place, version()) }
}

/// # Safety
/// See `hipRuntimeGetVersion`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn hipDriverGetVersion(place: *mut c_int) -> hipError_t {
    // SAFETY: see `hipRuntimeGetVersion`.
    unsafe { answer(place, version()) }
}

/// Live allocations by address.
static MEMORY: LazyLock<Mutex<HashMap<usize, Layout>>> = LazyLock::new(Mutex::default);

fn allocate(bytes: usize) -> Result<*mut c_void, hipError_t> {
    if bytes == 0 {
        return Ok(ptr::null_mut());
    }
    let layout = Layout::from_size_align(bytes, ALIGNMENT).map_err(|_| hipErrorOutOfMemory)?;
    let mut live = lock(&MEMORY);
    if live.values().map(Layout::size).sum::<usize>().saturating_add(bytes) > MEMORY_BYTES {
        return Err(hipErrorOutOfMemory);
    }
    // SAFETY: the size is not 0.
    let memory = unsafe { std::alloc::alloc(layout) };
    if memory.is_null() {
        return Err(hipErrorOutOfMemory);
    }
    live.insert(memory.expose_provenance(), layout);
    Ok(memory.cast())
}

fn release(memory: *mut c_void) -> Result<(), hipError_t> {
    if memory.is_null() {
        return Ok(());
    }
    let layout = lock(&MEMORY).remove(&memory.addr()).ok_or(hipErrorInvalidValue)?;
    // SAFETY: it was allocated with this layout, and is in the table no more.
    unsafe { std::alloc::dealloc(memory.cast(), layout) };
    Ok(())
}

/// # Safety
/// See `hipRuntimeGetVersion`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn hipMalloc(memory: *mut hipDeviceptr_t, bytes: usize) -> hipError_t {
    // SAFETY: see `hipRuntimeGetVersion`.
    allocate(bytes).map_or_else(|e| e, |found| unsafe { answer(memory, found) })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn hipFree(memory: hipDeviceptr_t) -> hipError_t {
    status(release(memory))
}

/// # Safety
/// See `hipRuntimeGetVersion`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn hipHostMalloc(
    memory: *mut *mut c_void,
    bytes: usize,
    _flags: c_uint,
) -> hipError_t {
    // SAFETY: see `hipRuntimeGetVersion`.
    allocate(bytes).map_or_else(|e| e, |found| unsafe { answer(memory, found) })
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn hipHostFree(memory: *mut c_void) -> hipError_t {
    status(release(memory))
}

/// # Safety
/// See `hipRuntimeGetVersion`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn hipMemGetInfo(free: *mut usize, total: *mut usize) -> hipError_t {
    let used: usize = lock(&MEMORY).values().map(Layout::size).sum();
    // SAFETY: see `hipRuntimeGetVersion`.
    unsafe { answer(free, MEMORY_BYTES - used).max(answer(total, MEMORY_BYTES)) }
}

/// # Safety
/// See `hipRuntimeGetVersion`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn hipMemcpyHtoDAsync(
    dst: hipDeviceptr_t,
    src: *mut c_void,
    bytes: usize,
    _stream: hipStream_t,
) -> hipError_t {
    // SAFETY: the caller vouches for both ranges; so below. Copies on one device may overlap.
    unsafe { ptr::copy(src.cast::<u8>(), dst.cast::<u8>(), bytes) };
    hipSuccess
}

/// # Safety
/// See `hipRuntimeGetVersion`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn hipMemcpyDtoHAsync(
    dst: *mut c_void,
    src: hipDeviceptr_t,
    bytes: usize,
    _stream: hipStream_t,
) -> hipError_t {
    // SAFETY: see `hipMemcpyHtoDAsync`.
    unsafe { ptr::copy(src.cast::<u8>(), dst.cast::<u8>(), bytes) };
    hipSuccess
}

/// # Safety
/// See `hipRuntimeGetVersion`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn hipMemcpyDtoDAsync(
    dst: hipDeviceptr_t,
    src: hipDeviceptr_t,
    bytes: usize,
    _stream: hipStream_t,
) -> hipError_t {
    // SAFETY: see `hipMemcpyHtoDAsync`.
    unsafe { ptr::copy(src.cast::<u8>(), dst.cast::<u8>(), bytes) };
    hipSuccess
}

/// # Safety
/// See `hipRuntimeGetVersion`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn hipMemsetD8Async(
    dst: hipDeviceptr_t,
    value: u8,
    count: usize,
    _stream: hipStream_t,
) -> hipError_t {
    // SAFETY: see `hipMemcpyHtoDAsync`.
    unsafe { ptr::write_bytes(dst.cast::<u8>(), value, count) };
    hipSuccess
}

/// # Safety
/// See `hipRuntimeGetVersion`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn hipStreamCreateWithFlags(
    stream: *mut hipStream_t,
    _flags: c_uint,
) -> hipError_t {
    // A stream is nothing but a number.
    static NEXT: AtomicUsize = AtomicUsize::new(1);
    // SAFETY: see `hipRuntimeGetVersion`.
    unsafe { answer(stream, ptr::without_provenance_mut(NEXT.fetch_add(1, Ordering::Relaxed))) }
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn hipStreamDestroy(stream: hipStream_t) -> hipError_t {
    if stream.is_null() { INVALID_HANDLE } else { hipSuccess }
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn hipStreamSynchronize(_stream: hipStream_t) -> hipError_t {
    hipSuccess
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn hipStreamWaitEvent(
    _stream: hipStream_t,
    event: hipEvent_t,
    _flags: c_uint,
) -> hipError_t {
    if event.is_null() { INVALID_HANDLE } else { hipSuccess }
}

/// When an event was recorded.
type Event = Mutex<Option<Instant>>;

/// # Safety
/// The handle is null, or of `hipEventCreateWithFlags` and not destroyed.
unsafe fn event<'a>(handle: hipEvent_t) -> Result<&'a Event, hipError_t> {
    // SAFETY: the caller vouches for the handle.
    unsafe { handle.cast::<Event>().as_ref() }.ok_or(INVALID_HANDLE)
}

/// # Safety
/// See `hipRuntimeGetVersion`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn hipEventCreateWithFlags(
    event: *mut hipEvent_t,
    _flags: c_uint,
) -> hipError_t {
    if event.is_null() {
        return hipErrorInvalidValue;
    }
    // SAFETY: see `hipRuntimeGetVersion`.
    unsafe { answer(event, Box::into_raw(Box::<Event>::default()).cast()) }
}

/// # Safety
/// See `hipRuntimeGetVersion`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn hipEventDestroy(handle: hipEvent_t) -> hipError_t {
    if handle.is_null() {
        return INVALID_HANDLE;
    }
    // SAFETY: the caller vouches that it was created here and is not used again.
    drop(unsafe { Box::from_raw(handle.cast::<Event>()) });
    hipSuccess
}

/// # Safety
/// See `hipRuntimeGetVersion`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn hipEventRecord(handle: hipEvent_t, _stream: hipStream_t) -> hipError_t {
    // SAFETY: the caller vouches for the handle; so below.
    status(unsafe { event(handle) }.map(|e| *lock(e) = Some(Instant::now())))
}

/// # Safety
/// See `hipRuntimeGetVersion`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn hipEventQuery(handle: hipEvent_t) -> hipError_t {
    // SAFETY: see `hipEventRecord`.
    status(unsafe { event(handle) }.map(|_| ()))
}

/// # Safety
/// See `hipRuntimeGetVersion`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn hipEventSynchronize(handle: hipEvent_t) -> hipError_t {
    // SAFETY: see `hipEventRecord`.
    status(unsafe { event(handle) }.map(|_| ()))
}

/// # Safety
/// See `hipRuntimeGetVersion`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn hipEventElapsedTime(
    ms: *mut f32,
    start: hipEvent_t,
    stop: hipEvent_t,
) -> hipError_t {
    // SAFETY: see `hipEventRecord`.
    let (Ok(start), Ok(stop)) = (unsafe { (event(start), event(stop)) }) else { return INVALID_HANDLE };
    let (Some(start), Some(stop)) = (*lock(start), *lock(stop)) else { return INVALID_HANDLE };
    // SAFETY: see `hipRuntimeGetVersion`.
    unsafe { answer(ms, stop.saturating_duration_since(start).as_secs_f32() * 1e3) }
}

/// # Safety
/// The image is one of `hiprtcGetCode`'s.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn hipModuleLoadData(
    module: *mut hipModule_t,
    image: *const c_void,
) -> hipError_t {
    if module.is_null() {
        return hipErrorInvalidValue;
    }
    // SAFETY: the caller vouches for image and place.
    unsafe { Unit::load(image.cast()).map_or_else(|e| e, |unit| answer(module, Box::into_raw(unit).cast())) }
}

/// # Safety
/// See `hipRuntimeGetVersion`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn hipModuleUnload(module: hipModule_t) -> hipError_t {
    if module.is_null() {
        return INVALID_HANDLE;
    }
    // SAFETY: the caller vouches that it was loaded here, and that none of its kernels are used again.
    drop(unsafe { Box::from_raw(module.cast::<Unit>()) });
    hipSuccess
}

/// # Safety
/// See `hipRuntimeGetVersion`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn hipModuleGetFunction(
    function: *mut hipFunction_t,
    module: hipModule_t,
    name: *const c_char,
) -> hipError_t {
    if module.is_null() || name.is_null() {
        return hipErrorInvalidValue;
    }
    // SAFETY: the caller vouches for module, name and place.
    unsafe {
        let found = (*module.cast::<Unit>()).function(CStr::from_ptr(name));
        found.map_or_else(|e| e, |f| answer(function, f.cast_mut().cast()))
    }
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
    _stream: hipStream_t,
    params: *mut *mut c_void,
    _extra: *mut *mut c_void,
) -> hipError_t {
    let blocks = Dim { x: grid_x, y: grid_y, z: grid_z };
    let threads = Dim { x: block_x, y: block_y, z: block_z };
    // SAFETY: the caller vouches for kernel and arguments.
    let Some(function) = (unsafe { function.cast::<Function>().as_ref() }) else { return INVALID_HANDLE };
    // SAFETY: as above.
    status(unsafe { function.launch(blocks, threads, shared_bytes as usize, params) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_aligned_and_freed_once() {
        let mut memory = ptr::null_mut();
        // SAFETY: the place is valid.
        assert_eq!(unsafe { hipMalloc(&mut memory, 100) }, hipSuccess);
        assert_eq!(memory.addr() % ALIGNMENT, 0);
        assert_eq!([hipFree(memory), hipFree(memory)], [hipSuccess, hipErrorInvalidValue]);
    }

    #[test]
    fn more_than_the_device_has_is_refused() {
        let mut memory = ptr::null_mut();
        // SAFETY: the places are valid, or null is what is tested.
        unsafe {
            assert_eq!(hipMalloc(&mut memory, MEMORY_BYTES + 1), hipErrorOutOfMemory);
            assert_eq!(hipMalloc(ptr::null_mut(), 0), hipErrorInvalidValue);
        }
    }
}
