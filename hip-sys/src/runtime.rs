//! The HIP runtime.

use std::ffi::{CStr, OsStr, c_char, c_int, c_uint, c_void};

use crate::consts::*;
use crate::load::{HIP_LIB_VAR, LoadError, Opened, function_table, open_first, override_of, runtime_names};

/// The HIP runtime: an open library and its functions.
#[derive(Debug, Clone)]
pub struct Hip {
    pub(crate) opened: Opened,
    functions: HipFunctions,
    named: bool,
}

/// Larger than any `hipDeviceProp_t` (792 bytes in ROCm 5, 1472 in 6 and 7), so that no runtime writes beyond it.
const PROPERTY_BYTES: usize = 16 * 1024;
/// The property structure starts with the device's name, which must not be taken for the architecture.
const PROPERTY_NAME_BYTES: usize = 256;

function_table! {
    /// Addresses of the functions of the HIP runtime.
    table HipFunctions;
    owner Hip;

    /// Initialises the runtime; `flags` is 0.
    fn hipInit(flags: c_uint) -> hipError_t;
    /// Version of the runtime: major * 10^7 + minor * 10^5 + patch.
    fn hipRuntimeGetVersion(version: *mut c_int) -> hipError_t;
    /// Version of the driver below the runtime.
    fn hipDriverGetVersion(version: *mut c_int) -> hipError_t;
    /// A status by name; static text.
    fn hipGetErrorName(error: hipError_t) -> *const c_char;
    /// A status in words; static text.
    fn hipGetErrorString(error: hipError_t) -> *const c_char;
    /// Number of devices.
    fn hipGetDeviceCount(count: *mut c_int) -> hipError_t;
    /// The device of an ordinal.
    fn hipDeviceGet(device: *mut hipDevice_t, ordinal: c_int) -> hipError_t;
    /// Name of a device, at most `len` bytes with the closing zero.
    fn hipDeviceGetName(name: *mut c_char, len: c_int, device: hipDevice_t) -> hipError_t;
    /// Bytes of device memory.
    fn hipDeviceTotalMem(bytes: *mut usize, device: hipDevice_t) -> hipError_t;
    /// One attribute of a device by ordinal.
    fn hipDeviceGetAttribute(value: *mut c_int, attribute: hipDeviceAttribute_t, ordinal: c_int) -> hipError_t;
    /// All properties of a device; the structure differs between releases, see [`Hip::arch_name`]. Newer runtimes have the current
    /// structure under the name with the suffix `R0600`; the plain name is then the structure of ROCm 5.
    fn hipGetDeviceProperties(properties: *mut c_void, ordinal: c_int) -> hipError_t as "hipGetDevicePropertiesR0600";
    /// Makes a device the calling thread's current one.
    fn hipSetDevice(ordinal: c_int) -> hipError_t;
    /// Free and total bytes of the current device.
    fn hipMemGetInfo(free: *mut usize, total: *mut usize) -> hipError_t;
    /// Device memory of the current device.
    fn hipMalloc(memory: *mut hipDeviceptr_t, bytes: usize) -> hipError_t;
    /// Frees device memory after all work of the device.
    fn hipFree(memory: hipDeviceptr_t) -> hipError_t;
    /// Pinned host memory.
    fn hipHostMalloc(memory: *mut *mut c_void, bytes: usize, flags: c_uint) -> hipError_t;
    /// Frees pinned host memory.
    fn hipHostFree(memory: *mut c_void) -> hipError_t;
    /// Queues a copy from the host.
    fn hipMemcpyHtoDAsync(dst: hipDeviceptr_t, src: *mut c_void, bytes: usize, stream: hipStream_t) -> hipError_t;
    /// Queues a copy to the host.
    fn hipMemcpyDtoHAsync(dst: *mut c_void, src: hipDeviceptr_t, bytes: usize, stream: hipStream_t) -> hipError_t;
    /// Queues a copy on the device.
    fn hipMemcpyDtoDAsync(dst: hipDeviceptr_t, src: hipDeviceptr_t, bytes: usize, stream: hipStream_t) -> hipError_t;
    /// Queues filling with a byte.
    fn hipMemsetD8Async(dst: hipDeviceptr_t, value: u8, count: usize, stream: hipStream_t) -> hipError_t;
    /// A new stream of the current device.
    fn hipStreamCreateWithFlags(stream: *mut hipStream_t, flags: c_uint) -> hipError_t;
    /// Destroys a stream; its queued work still completes.
    fn hipStreamDestroy(stream: hipStream_t) -> hipError_t;
    /// Waits on the host until a stream is idle.
    fn hipStreamSynchronize(stream: hipStream_t) -> hipError_t;
    /// Lets a stream wait for an event; `flags` is 0.
    fn hipStreamWaitEvent(stream: hipStream_t, event: hipEvent_t, flags: c_uint) -> hipError_t;
    /// A new event.
    fn hipEventCreateWithFlags(event: *mut hipEvent_t, flags: c_uint) -> hipError_t;
    /// Destroys an event.
    fn hipEventDestroy(event: hipEvent_t) -> hipError_t;
    /// Records an event at the current end of a stream.
    fn hipEventRecord(event: hipEvent_t, stream: hipStream_t) -> hipError_t;
    /// Whether an event has passed: success, or [`hipErrorNotReady`].
    fn hipEventQuery(event: hipEvent_t) -> hipError_t;
    /// Waits on the host until an event has passed.
    fn hipEventSynchronize(event: hipEvent_t) -> hipError_t;
    /// Milliseconds between two passed events.
    fn hipEventElapsedTime(ms: *mut f32, start: hipEvent_t, stop: hipEvent_t) -> hipError_t;
    /// Loads a code object into the current device.
    fn hipModuleLoadData(module: *mut hipModule_t, image: *const c_void) -> hipError_t;
    /// Unloads a code object.
    fn hipModuleUnload(module: hipModule_t) -> hipError_t;
    /// A kernel by name.
    fn hipModuleGetFunction(function: *mut hipFunction_t, module: hipModule_t, name: *const c_char) -> hipError_t;
    /// Queues a kernel: blocks per axis, work-items per block and axis, bytes of dynamic shared memory, stream, one pointer per argument.
    fn hipModuleLaunchKernel(function: hipFunction_t, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint, block_z: c_uint, shared_bytes: c_uint, stream: hipStream_t, params: *mut *mut c_void, extra: *mut *mut c_void) -> hipError_t;
}

impl Hip {
    /// Opens the runtime that `TREFOIL_HIP_LIB` names, else the newest found by its usual names.
    ///
    /// # Errors
    /// What was tried, or the function that is missing.
    pub fn load() -> Result<Hip, LoadError> {
        match override_of(HIP_LIB_VAR) {
            Some(path) => Self::load_from(&path),
            None => Self::read(open_first(runtime_names(), HIP_LIB_VAR)?, false),
        }
    }

    /// Opens the runtime of this path or name.
    ///
    /// # Errors
    /// As [`Hip::load`].
    pub fn load_from(path: impl AsRef<OsStr>) -> Result<Hip, LoadError> {
        Self::read(open_first([path.as_ref()], HIP_LIB_VAR)?, true)
    }

    fn read(opened: Opened, named: bool) -> Result<Hip, LoadError> {
        // SAFETY: the library is a HIP runtime by name or by the user's word.
        let functions = unsafe { HipFunctions::read(&opened)? };
        Ok(Hip { opened, functions, named })
    }

    /// Name or path under which the library was opened.
    pub fn library(&self) -> &str {
        &self.opened.name
    }

    /// Whether the library was named by the user, who then expects the compiler to be its own.
    pub(crate) fn named(&self) -> bool {
        self.named
    }

    /// A status by name, e.g. `hipErrorOutOfMemory`.
    pub fn error_name(&self, status: hipError_t) -> String {
        // SAFETY: any number may be asked for; the answer is static text or null.
        unsafe { text(self.hipGetErrorName(status)) }.unwrap_or_else(|| format!("hipError {status}"))
    }

    /// Architecture of a device as the compiler wants it: `gfx90a:sramecc+:xnack-`, or `sm_90` from a runtime that forwards to CUDA.
    /// `None` if the runtime names none.
    ///
    /// It is only found in the property structure, whose layout depends on the release (the name is at byte 396 in ROCm 5, at 1160 in 6
    /// and 7). The structure is therefore written into a far larger, zeroed buffer, which is searched for the name.
    ///
    /// # Errors
    /// The status of the runtime.
    pub fn arch_name(&self, ordinal: c_int) -> Result<Option<String>, hipError_t> {
        // u64 for the alignment of the structure.
        let mut buffer = vec![0u64; PROPERTY_BYTES / 8];
        // SAFETY: the buffer is aligned and larger than the structure of any release.
        let status = unsafe { self.hipGetDeviceProperties(buffer.as_mut_ptr().cast(), ordinal) };
        if status != hipSuccess {
            return Err(status);
        }
        let bytes: Vec<u8> = buffer.iter().flat_map(|w| w.to_ne_bytes()).collect();
        Ok(find_arch(&bytes[PROPERTY_NAME_BYTES..]))
    }
}

/// The first zero-terminated text that looks like an architecture.
fn find_arch(bytes: &[u8]) -> Option<String> {
    (0..bytes.len()).find_map(|at| {
        let tail = &bytes[at..];
        let first = ["gfx", "sm_"].iter().find_map(|p| tail.strip_prefix(p.as_bytes()))?.first()?;
        let end = tail.iter().position(|&b| b == 0)?;
        let allowed = |b: &u8| b.is_ascii_alphanumeric() || b"_:+-".contains(b);
        (first.is_ascii_digit() && end < 64 && tail[..end].iter().all(allowed))
            .then(|| String::from_utf8_lossy(&tail[..end]).into_owned())
    })
}

/// Static text of the library.
///
/// # Safety
/// `p` is null or zero-terminated.
pub(crate) unsafe fn text(p: *const c_char) -> Option<String> {
    // SAFETY: not null, and zero-terminated by the caller's word.
    (!p.is_null()).then(|| unsafe { CStr::from_ptr(p) }.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::find_arch;

    #[test]
    fn the_architecture_is_found_wherever_it_stands() {
        for (offset, arch) in [(140, "gfx906"), (904, "gfx90a:sramecc+:xnack-"), (7, "sm_90")] {
            let mut bytes = vec![0u8; 2048];
            bytes[..4].copy_from_slice(&[0x8e, 3, 0xff, 1]);
            bytes[offset..offset + arch.len()].copy_from_slice(arch.as_bytes());
            assert_eq!(find_arch(&bytes).as_deref(), Some(arch));
        }
    }

    #[test]
    fn what_is_no_architecture_is_not_taken_for_one() {
        assert_eq!(find_arch(&[0; 512]), None);
        assert_eq!(find_arch(b"gfx\0sm_x\0gfx9!\0"), None);
        assert_eq!(find_arch(b"gfx906"), None, "not terminated");
    }
}
