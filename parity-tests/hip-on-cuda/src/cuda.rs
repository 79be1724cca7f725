//! The CUDA driver: its functions and the contexts of its devices.

use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::ptr;
use std::sync::{Mutex, OnceLock, PoisonError};

use hip_sys::{hipError_t, hipErrorSharedObjectInitFailed, hipSuccess};
use libloading::Library;

use crate::error::from_cuda;

/// Declares a struct of function pointers and how it is read from a library. All functions return an `int`.
macro_rules! functions {
    ($(#[$doc:meta])* $table:ident { $( $name:ident = $symbol:literal ( $($ty:ty),* ); )* }) => {
        $(#[$doc])*
        pub(crate) struct $table {
            $( pub(crate) $name: unsafe extern "C" fn($($ty),*) -> std::ffi::c_int, )*
            _library: libloading::Library,
        }

        impl $table {
            /// Reads all functions; `None` if one is missing.
            ///
            /// # Safety
            /// The library gives the symbols these signatures.
            pub(crate) unsafe fn read(library: libloading::Library) -> Option<Self> {
                Some($table {
                    // SAFETY: the caller vouches for the signatures; the library is kept open by the table.
                    $( $name: *unsafe { library.get($symbol) }.ok()?, )*
                    _library: library,
                })
            }
        }
    };
}
pub(crate) use functions;

type Handle = *mut c_void;
type Address = u64;

functions! {
    /// Functions of the CUDA driver, in the versions current since CUDA 4.
    Cuda {
        init = "cuInit"(c_uint);
        driver_version = "cuDriverGetVersion"(*mut c_int);
        error_string = "cuGetErrorString"(c_int, *mut *const c_char);
        device_count = "cuDeviceGetCount"(*mut c_int);
        device_get = "cuDeviceGet"(*mut c_int, c_int);
        device_name = "cuDeviceGetName"(*mut c_char, c_int, c_int);
        device_memory = "cuDeviceTotalMem_v2"(*mut usize, c_int);
        device_attribute = "cuDeviceGetAttribute"(*mut c_int, c_int, c_int);
        primary_context = "cuDevicePrimaryCtxRetain"(*mut Handle, c_int);
        set_current = "cuCtxSetCurrent"(Handle);
        memory_info = "cuMemGetInfo_v2"(*mut usize, *mut usize);
        alloc = "cuMemAlloc_v2"(*mut Address, usize);
        free = "cuMemFree_v2"(Address);
        host_alloc = "cuMemHostAlloc"(*mut Handle, usize, c_uint);
        host_free = "cuMemFreeHost"(Handle);
        copy_in = "cuMemcpyHtoDAsync_v2"(Address, *const c_void, usize, Handle);
        copy_out = "cuMemcpyDtoHAsync_v2"(*mut c_void, Address, usize, Handle);
        copy = "cuMemcpyDtoDAsync_v2"(Address, Address, usize, Handle);
        fill = "cuMemsetD8Async"(Address, u8, usize, Handle);
        stream_create = "cuStreamCreate"(*mut Handle, c_uint);
        stream_destroy = "cuStreamDestroy_v2"(Handle);
        stream_synchronize = "cuStreamSynchronize"(Handle);
        stream_wait = "cuStreamWaitEvent"(Handle, Handle, c_uint);
        event_create = "cuEventCreate"(*mut Handle, c_uint);
        event_destroy = "cuEventDestroy_v2"(Handle);
        event_record = "cuEventRecord"(Handle, Handle);
        event_query = "cuEventQuery"(Handle);
        event_synchronize = "cuEventSynchronize"(Handle);
        event_elapsed = "cuEventElapsedTime"(*mut f32, Handle, Handle);
        module_load = "cuModuleLoadData"(*mut Handle, *const c_void);
        module_unload = "cuModuleUnload"(Handle);
        module_function = "cuModuleGetFunction"(*mut Handle, Handle, *const c_char);
        function_attribute = "cuFuncSetAttribute"(Handle, c_int, c_int);
        capture_begin = "cuStreamBeginCapture_v2"(Handle, c_int);
        capture_end = "cuStreamEndCapture"(Handle, *mut Handle);
        graph_instantiate = "cuGraphInstantiateWithFlags"(*mut Handle, Handle, u64);
        graph_launch = "cuGraphLaunch"(Handle, Handle);
        graph_destroy = "cuGraphDestroy"(Handle);
        graph_exec_destroy = "cuGraphExecDestroy"(Handle);
        launch = "cuLaunchKernel"(Handle, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Handle, *mut Handle, *mut Handle);
    }
}

impl Cuda {
    fn open() -> Result<Cuda, hipError_t> {
        let name = if cfg!(windows) { "nvcuda.dll" } else { "libcuda.so.1" };
        // SAFETY: this is NVIDIA's driver by its fixed name, with the signatures of NVIDIA's header.
        let cuda = unsafe { Library::new(name).ok().and_then(|l| Cuda::read(l)) };
        let cuda = cuda.ok_or(hipErrorSharedObjectInitFailed)?;
        // SAFETY: 0 is the only flag there is.
        check(unsafe { (cuda.init)(0) }).map(|()| cuda)
    }
}

/// The driver, opened and initialised at the first call.
pub(crate) fn cuda() -> Result<&'static Cuda, hipError_t> {
    static CUDA: OnceLock<Result<Cuda, hipError_t>> = OnceLock::new();
    CUDA.get_or_init(Cuda::open).as_ref().map_err(|status| *status)
}

/// A status of CUDA as HIP's.
pub(crate) fn check(status: c_int) -> Result<(), hipError_t> {
    match from_cuda(status) {
        hip if hip == hipSuccess => Ok(()),
        hip => Err(hip),
    }
}

thread_local! {
    /// The device that this thread has chosen, and its context once it was needed (an address; 0 before).
    static CHOSEN: Cell<(c_int, usize)> = const { Cell::new((0, 0)) };
}

/// Chooses a device for the calling thread and makes its context current.
pub(crate) fn choose(ordinal: c_int) -> Result<(), hipError_t> {
    let context = context_of(cuda()?, ordinal)?;
    CHOSEN.set((ordinal, context));
    current().map(|_| ())
}

/// The driver with the context of the thread's device current.
pub(crate) fn current() -> Result<&'static Cuda, hipError_t> {
    let cuda = cuda()?;
    let (ordinal, mut context) = CHOSEN.get();
    if context == 0 {
        context = context_of(cuda, ordinal)?;
        CHOSEN.set((ordinal, context));
    }
    // SAFETY: primary contexts are retained until the process ends.
    check(unsafe { (cuda.set_current)(ptr::with_exposed_provenance_mut(context)) })?;
    Ok(cuda)
}

/// The primary context of a device, retained once per process.
fn context_of(cuda: &Cuda, ordinal: c_int) -> Result<usize, hipError_t> {
    static CONTEXTS: Mutex<Option<HashMap<c_int, usize>>> = Mutex::new(None);
    let mut contexts = CONTEXTS.lock().unwrap_or_else(PoisonError::into_inner);
    let contexts = contexts.get_or_insert_default();
    if let Some(context) = contexts.get(&ordinal) {
        return Ok(*context);
    }
    let (mut device, mut context) = (0, ptr::null_mut());
    // SAFETY: the places are valid; a wrong ordinal is refused.
    check(unsafe { (cuda.device_get)(&mut device, ordinal) })?;
    // SAFETY: as above.
    check(unsafe { (cuda.primary_context)(&mut context, device) })?;
    let context = context.expose_provenance();
    contexts.insert(ordinal, context);
    Ok(context)
}
