//! CUDA through the driver API, NVRTC and, where present, cuBLASLt, cuDNN and cuFFT; all loaded at run time.
//!
//! The device's primary context is used, so that memory can be shared with other libraries of the process. It is made current at the entry
//! of every call, which costs some ten nanoseconds and lets any thread call; it stays current on that thread.

pub(super) mod cublaslt;
mod cudnn;
mod cufft;
mod graph;
mod nvrtc;
mod preflight;
mod staging;
mod tensor_map;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::ffi::{CStr, CString, c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use cudarc::driver::sys as cu;
use cudarc::driver::sys::CUdevice_attribute_enum as Attribute;

use self::cudnn::Cudnn;
use self::cufft::Cufft;
use self::nvrtc::{Nvrtc, Target};
use self::preflight::Api;
use self::staging::Staging;
use self::tensor_map::Encoded;
use super::lt::Lt;
use super::{
    Arg, CompileUnit, Driver, LaunchConfig, RawContext, RawEvent, RawFunction, RawMem, RawModule, RawStream,
    StreamGraphs, VendorAttention, VendorBlas, VendorConv, VendorFft,
};
use crate::device::{BackendKind, Caps, DeviceId, MatrixCores};
use crate::error::{GpuError, Result, Unavailable};

/// Kernel arguments at most.
const MAX_ARGS: usize = 64;
/// Maps of tensors among them at most.
const MAX_MAPS: usize = 2;
/// Bytes of local memory that a launch may have without asking for more.
const LOCAL_BYTES: u32 = 48 << 10;

/// Keeps kernels from beginning before the one before them has ended.
const OVERLAP_VAR: &str = "TREFOIL_CUDA_OVERLAP";

/// One CUDA device.
#[derive(Debug)]
pub(crate) struct CudaDriver {
    api: &'static Api,
    nvrtc: &'static Nvrtc,
    target: Target,
    /// Whether a kernel that waits for the one before it may begin while that one ends.
    overlaps: bool,
    caps: Caps,
    device: cu::CUdevice,
    /// `CUcontext`
    context: u64,
    /// Whether the context is the device's primary one, of which the driver holds a reference, and not somebody else's.
    retained: bool,
    /// `CUmodule` of everything that was loaded.
    modules: Mutex<Vec<u64>>,
    /// Timing events that are free for reuse.
    events: Mutex<Vec<u64>>,
    /// Page-locked memory of each stream that had a copy from the host.
    staging: Mutex<HashMap<u64, Staging>>,
    blas: OnceLock<std::result::Result<Lt, String>>,
    dnn: OnceLock<std::result::Result<Cudnn, String>>,
    fft: OnceLock<std::result::Result<Cufft, String>>,
}

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The CUDA devices, in the driver's order. An error if there is none, or no run-time compiler.
pub(crate) fn probe() -> Result<Vec<Caps>, Unavailable> {
    let api = preflight::api()?;
    let mut count = 0;
    // SAFETY: writes one int.
    api.check_device("cuDeviceGetCount", unsafe { (api.table.cuDeviceGetCount)(&mut count) })?;
    if count <= 0 {
        return Err(Unavailable::NoDevice { what: format!("cuDeviceGetCount: {count}") });
    }
    nvrtc::nvrtc(api.version / 1000)?;
    (0..count.unsigned_abs()).map(|i| Ok(describe(api, i)?.caps)).collect()
}

struct Found {
    caps: Caps,
    device: cu::CUdevice,
    /// 10 major + minor of the compute capability.
    capability: u32,
}

fn describe(api: &Api, ordinal: u32) -> Result<Found, Unavailable> {
    let t = &api.table;
    let mut device = 0;
    let index = c_int::try_from(ordinal).unwrap_or(c_int::MAX);
    // SAFETY: writes one device number; a bad ordinal is refused.
    api.check_device("cuDeviceGet", unsafe { (t.cuDeviceGet)(&mut device, index) })?;
    let mut name = [0u8; 256];
    let mut memory = 0;
    // SAFETY: the name is terminated within the given length; the second call writes one number.
    unsafe {
        let n = name.len() as c_int - 1;
        api.check_device("cuDeviceGetName", (t.cuDeviceGetName)(name.as_mut_ptr().cast(), n, device))?;
        api.check_device("cuDeviceTotalMem", (t.cuDeviceTotalMem_v2)(&mut memory, device))?;
    }
    let get = |a: Attribute| -> Result<u32, Unavailable> {
        let mut v = 0;
        // SAFETY: writes one int.
        api.check_device("cuDeviceGetAttribute", unsafe { (t.cuDeviceGetAttribute)(&mut v, a, device) })?;
        Ok(v.max(0) as u32)
    };
    let capability = 10 * get(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?
        + get(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
    let name = CStr::from_bytes_until_nul(&name).unwrap_or_default().to_string_lossy();
    let mut caps = Caps::new(DeviceId::new(BackendKind::Cuda, ordinal), name, format!("sm_{capability}"));
    caps.driver_version = format!("{}.{}", api.version / 1000, api.version % 1000 / 10);
    caps.memory_bytes = memory as u64;
    caps.compute_units = get(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
    caps.max_block = get(Attribute::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK)?;
    caps.shared_bytes = get(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?;
    caps.matrix_cores = (capability >= 80).then_some(MatrixCores::Ptx);
    caps.lane_exchange = true;
    caps.warp_size = get(Attribute::CU_DEVICE_ATTRIBUTE_WARP_SIZE)?;
    caps.cooperative = get(Attribute::CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH)? != 0;
    caps.f64 = true;
    caps.device_addresses = true;
    Ok(Found { caps, device, capability })
}

fn unavailable(reason: Unavailable) -> GpuError {
    GpuError::unavailable(BackendKind::Cuda, reason)
}

impl CudaDriver {
    /// cuDNN, opened on the first call; the reason if there is none.
    fn cudnn(&self) -> std::result::Result<&Cudnn, &str> {
        let open = || {
            Cudnn::open(self.api, self.caps.id, self.context)
                .inspect_err(|reason| log::debug!("{}: no cuDNN: {reason}", self.caps.id))
                .map_err(|reason| format!("no cuDNN: {reason}"))
        };
        self.dnn.get_or_init(open).as_ref().map_err(String::as_str)
    }

    /// Opens a device by the driver's ordinal.
    pub(crate) fn open(ordinal: u32) -> Result<Self> {
        let api = preflight::api().map_err(unavailable)?;
        let mut driver = CudaDriver::on(api, ordinal)?;
        let mut context = ptr::null_mut();
        // SAFETY: writes one pointer.
        let code = unsafe { (api.table.cuDevicePrimaryCtxRetain)(&mut context, driver.device) };
        api.check("cuDevicePrimaryCtxRetain", code)?;
        (driver.context, driver.retained) = (context as u64, true);
        Ok(driver)
    }

    /// The driver of somebody else's context.
    ///
    /// # Safety
    /// The context is live and outlives the driver.
    pub(crate) unsafe fn adopt(context: RawContext) -> Result<Self> {
        let api = preflight::api().map_err(unavailable)?;
        let mut device = -1;
        // SAFETY: the context is live by the caller's promise; the second call writes one number.
        unsafe {
            api.check("cuCtxSetCurrent", (api.table.cuCtxSetCurrent)(context.0 as cu::CUcontext))?;
            api.check("cuCtxGetDevice", (api.table.cuCtxGetDevice)(&mut device))?;
        }
        let is_its = |ordinal: &u32| describe(api, *ordinal).is_ok_and(|found| found.device == device);
        let ordinal = (0..probe().map_err(unavailable)?.len() as u32).find(is_its);
        let unknown =
            || unavailable(Unavailable::NoDevice { what: format!("device {device} of the context") });
        let mut driver = CudaDriver::on(api, ordinal.ok_or_else(unknown)?)?;
        driver.context = context.0;
        Ok(driver)
    }

    /// The driver of a device, without a context.
    fn on(api: &'static Api, ordinal: u32) -> Result<Self> {
        let mut found = describe(api, ordinal).map_err(unavailable)?;
        let nvrtc = nvrtc::nvrtc(api.version / 1000).map_err(unavailable)?;
        let target = nvrtc.target(found.capability).map_err(unavailable)?;
        found.caps.cluster = target.cluster();
        found.caps.warp_groups = nvrtc.has_warp_groups(&target);
        found.caps.tensor_maps = found.caps.warp_groups && api.tensor_maps.is_ok();
        // Clusters come with the architecture that can wait; recorded launches keep the attribute from 12.3 on.
        let overlaps = found.caps.cluster > 1
            && api.version >= 12_030
            && !std::env::var(OVERLAP_VAR).is_ok_and(|v| v == "off" || v == "0");
        Ok(CudaDriver {
            api,
            nvrtc,
            target,
            overlaps,
            caps: found.caps,
            device: found.device,
            context: 0,
            retained: false,
            modules: Mutex::default(),
            events: Mutex::default(),
            staging: Mutex::default(),
            blas: OnceLock::new(),
            dnn: OnceLock::new(),
            fft: OnceLock::new(),
        })
    }

    /// Makes the context current for this thread.
    fn enter(&self) -> Result<()> {
        // SAFETY: the context lives as long as this object.
        let code = unsafe { (self.api.table.cuCtxSetCurrent)(self.context as cu::CUcontext) };
        self.api.check("cuCtxSetCurrent", code)
    }

    /// Logs the failure of a call that cannot return one.
    fn log_failure(&self, call: &str, code: u32) {
        if code != 0 {
            log::warn!("{call}: {}", self.api.name(code));
        }
    }
}

impl Driver for CudaDriver {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn dialect(&self) -> &'static str {
        "cuda"
    }

    fn compiler_id(&self) -> String {
        self.nvrtc.id(&self.target)
    }

    fn alloc(&self, bytes: usize) -> Result<RawMem> {
        self.enter()?;
        let mut p = 0;
        // SAFETY: writes one address.
        let code = unsafe { (self.api.table.cuMemAlloc_v2)(&mut p, bytes) };
        self.api.check("cuMemAlloc", code).map(|()| RawMem(p)).map_err(|e| match e {
            GpuError::OutOfMemory { in_use, cached, .. } => {
                GpuError::OutOfMemory { requested: bytes, in_use, cached }
            }
            e => e,
        })
    }

    unsafe fn free(&self, mem: RawMem) {
        if self.enter().is_ok() {
            // SAFETY: the caller gives up the memory.
            self.log_failure("cuMemFree", unsafe { (self.api.table.cuMemFree_v2)(mem.0) });
        }
    }

    fn new_stream(&self) -> Result<RawStream> {
        self.enter()?;
        let mut s = ptr::null_mut();
        let flags = cu::CUstream_flags_enum::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: writes one pointer.
        self.api.check("cuStreamCreate", unsafe { (self.api.table.cuStreamCreate)(&mut s, flags) })?;
        Ok(RawStream(s as u64))
    }

    unsafe fn destroy_stream(&self, s: RawStream) {
        if self.enter().is_err() {
            return;
        }
        let t = &self.api.table;
        let staging = lock(&self.staging).remove(&s.0);
        // SAFETY: the caller gives up the stream; its staging memory is freed when the stream is idle.
        unsafe {
            self.log_failure("cuStreamSynchronize", (t.cuStreamSynchronize)(s.0 as cu::CUstream));
            if let Some(mut staging) = staging {
                staging.free(self.api);
            }
            self.log_failure("cuStreamDestroy", (t.cuStreamDestroy_v2)(s.0 as cu::CUstream));
        }
    }

    unsafe fn forget_stream(&self, s: RawStream) {
        if let (Ok(()), Some(mut staging)) = (self.enter(), lock(&self.staging).remove(&s.0)) {
            // SAFETY: the stream is idle, so that no copy reads the staging memory.
            unsafe { staging.free(self.api) };
        }
    }

    unsafe fn copy_in(&self, s: RawStream, dst: RawMem, offset: u64, src: &[u8]) -> Result<()> {
        self.enter()?;
        let mut staging = lock(&self.staging);
        let staging = staging.entry(s.0).or_default();
        // SAFETY: the context is current, the range is the caller's promise.
        unsafe { staging.copy_in(self.api, s.0, dst.0 + offset, src) }
    }

    unsafe fn copy_out(&self, s: RawStream, src: RawMem, offset: u64, dst: &mut [u8]) -> Result<()> {
        self.enter()?;
        if !dst.is_empty() {
            // SAFETY: `dst` lives until the stream was waited for; the range is the caller's promise.
            let code = unsafe {
                (self.api.table.cuMemcpyDtoHAsync_v2)(
                    dst.as_mut_ptr().cast(),
                    src.0 + offset,
                    dst.len(),
                    s.0 as cu::CUstream,
                )
            };
            self.api.check("cuMemcpyDtoHAsync", code)?;
        }
        // SAFETY: forwarded.
        unsafe { self.synchronize(s) }
    }

    unsafe fn copy(&self, s: RawStream, src: (RawMem, u64), dst: (RawMem, u64), bytes: usize) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        self.enter()?;
        let (from, to) = (src.0.0 + src.1, dst.0.0 + dst.1);
        // SAFETY: ranges and disjointness are the caller's promise.
        let code = unsafe { (self.api.table.cuMemcpyDtoDAsync_v2)(to, from, bytes, s.0 as cu::CUstream) };
        self.api.check("cuMemcpyDtoDAsync", code)
    }

    fn compile(&self, unit: &CompileUnit<'_>) -> Result<Vec<u8>> {
        self.nvrtc.compile(unit, &self.target)
    }

    unsafe fn load(&self, image: &[u8]) -> Result<RawModule> {
        // The call is given no length: it reads an ELF header's sizes, or text up to a NUL.
        if !image.starts_with(b"\x7fELF") && !image.ends_with(b"\0") {
            return Err(GpuError::driver("cuModuleLoadData", 0, "neither machine code nor PTX"));
        }
        self.enter()?;
        let mut m = ptr::null_mut();
        // SAFETY: the image is complete, see above; the driver copies it.
        let code = unsafe { (self.api.table.cuModuleLoadData)(&mut m, image.as_ptr().cast()) };
        self.api.check("cuModuleLoadData", code)?;
        lock(&self.modules).push(m as u64);
        Ok(RawModule(m as u64))
    }

    unsafe fn function(&self, module: RawModule, entry: &str) -> Result<RawFunction> {
        self.enter()?;
        let name = CString::new(entry)
            .map_err(|_| GpuError::driver("cuModuleGetFunction", 0, "a NUL character in the name"))?;
        let mut f = ptr::null_mut();
        // SAFETY: the module is loaded and the name terminated.
        let code =
            unsafe { (self.api.table.cuModuleGetFunction)(&mut f, module.0 as cu::CUmodule, name.as_ptr()) };
        self.api.check("cuModuleGetFunction", code)?;
        Ok(RawFunction(f as u64))
    }

    unsafe fn launch(
        &self,
        s: RawStream,
        f: RawFunction,
        cfg: &LaunchConfig,
        args: &[Arg<'_>],
    ) -> Result<()> {
        if args.len() > MAX_ARGS {
            return Err(GpuError::driver("cuLaunchKernelEx", 0, format!("more than {MAX_ARGS} arguments")));
        }
        self.enter()?;
        // Most kernels have no maps; their room is not even cleared.
        let mut maps = [const { MaybeUninit::<Encoded>::uninit() }; MAX_MAPS];
        let mut room = maps.iter_mut();
        let mut addresses = [0u64; MAX_ARGS];
        let mut params = [ptr::null_mut::<c_void>(); MAX_ARGS];
        for ((a, address), param) in args.iter().zip(&mut addresses).zip(&mut params) {
            *param = match a {
                Arg::Mem(m) => {
                    *address = m.map_or(0, |(m, offset)| m.0 + offset);
                    ptr::from_mut(address).cast()
                }
                Arg::Map(map) => {
                    let place = room.next().ok_or_else(|| {
                        GpuError::driver(
                            "cuLaunchKernelEx",
                            0,
                            format!("more than {MAX_MAPS} maps of tensors"),
                        )
                    })?;
                    place.write(Encoded::of(self.api, map)?).as_param()
                }
                value => value.bytes().as_ptr().cast_mut().cast(),
            };
        }
        let ([gx, gy, gz], [bx, by, bz]) = (cfg.grid, cfg.block);
        if cfg.local_bytes > LOCAL_BYTES {
            let limit = cu::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            let bytes = cfg.local_bytes.min(i32::MAX as u32) as c_int;
            // SAFETY: the function is live; a size that the device does not have is refused.
            let code = unsafe { (self.api.table.cuFuncSetAttribute)(f.0 as cu::CUfunction, limit, bytes) };
            self.api.check("cuFuncSetAttribute", code)?;
        }
        use cu::CUlaunchAttributeID as Id;
        let together = cu::CUlaunchAttributeValue { cooperative: 1 };
        let overlap = cu::CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 };
        let (id, value) = match cfg.cooperative {
            true => (Id::CU_LAUNCH_ATTRIBUTE_COOPERATIVE, together),
            false => (Id::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION, overlap),
        };
        let mut attribute = cu::CUlaunchAttribute { id, pad: [0; 4], value };
        let config = cu::CUlaunchConfig {
            gridDimX: gx,
            gridDimY: gy,
            gridDimZ: gz,
            blockDimX: bx,
            blockDimY: by,
            blockDimZ: bz,
            sharedMemBytes: cfg.local_bytes,
            hStream: s.0 as cu::CUstream,
            attrs: &raw mut attribute,
            numAttrs: u32::from(cfg.cooperative || (cfg.waits && self.overlaps)),
        };
        // SAFETY: every parameter points to a value that outlives the call, which copies it; that they fit the kernel, and that it waits if it
        // says so, is the caller's promise.
        let code = unsafe {
            (self.api.table.cuLaunchKernelEx)(
                &config,
                f.0 as cu::CUfunction,
                params.as_mut_ptr(),
                ptr::null_mut(),
            )
        };
        self.api.check("cuLaunchKernelEx", code)
    }

    unsafe fn synchronize(&self, s: RawStream) -> Result<()> {
        self.enter()?;
        // SAFETY: the stream is live.
        let code = unsafe { (self.api.table.cuStreamSynchronize)(s.0 as cu::CUstream) };
        self.api.check("cuStreamSynchronize", code)
    }

    unsafe fn record(&self, s: RawStream) -> Result<RawEvent> {
        self.enter()?;
        let t = &self.api.table;
        let reused = lock(&self.events).pop();
        let e = match reused {
            Some(e) => e,
            None => {
                let mut e = ptr::null_mut();
                // SAFETY: writes one pointer.
                self.api.check("cuEventCreate", unsafe { (t.cuEventCreate)(&mut e, 0) })?;
                e as u64
            }
        };
        // SAFETY: event and stream are live and of one context.
        let code = unsafe { (t.cuEventRecord)(e as cu::CUevent, s.0 as cu::CUstream) };
        if let Err(error) = self.api.check("cuEventRecord", code) {
            lock(&self.events).push(e);
            return Err(error);
        }
        Ok(RawEvent(e))
    }

    unsafe fn wait(&self, s: RawStream, e: RawEvent) -> Result<()> {
        self.enter()?;
        // SAFETY: event and stream are live and of one context; no flags are defined.
        let code = unsafe { (self.api.table.cuStreamWaitEvent)(s.0 as cu::CUstream, e.0 as cu::CUevent, 0) };
        self.api.check("cuStreamWaitEvent", code)
    }

    unsafe fn event_synchronize(&self, e: RawEvent) -> Result<()> {
        self.enter()?;
        // SAFETY: the event is live.
        let code = unsafe { (self.api.table.cuEventSynchronize)(e.0 as cu::CUevent) };
        self.api.check("cuEventSynchronize", code)
    }

    unsafe fn elapsed_ns(&self, from: RawEvent, to: RawEvent) -> Result<u64> {
        self.enter()?;
        let mut ms = 0f32;
        // SAFETY: writes one float.
        let code = unsafe {
            (self.api.table.cuEventElapsedTime)(&mut ms, from.0 as cu::CUevent, to.0 as cu::CUevent)
        };
        self.api.check("cuEventElapsedTime", code)?;
        Ok((f64::from(ms.max(0.0)) * 1e6) as u64)
    }

    unsafe fn destroy_event(&self, e: RawEvent) {
        lock(&self.events).push(e.0);
    }

    fn vendor_blas(&self) -> std::result::Result<&dyn VendorBlas, &str> {
        let open = || {
            cublaslt::open(self.api, self.caps.id, self.context)
                .inspect_err(|reason| log::debug!("{}: no cuBLASLt: {reason}", self.caps.id))
        };
        self.blas.get_or_init(open).as_ref().map(|b| b as &dyn VendorBlas).map_err(String::as_str)
    }

    fn stream_graphs(&self) -> std::result::Result<&dyn StreamGraphs, &str> {
        self.api.graphs.as_ref().map(|_| self as &dyn StreamGraphs).map_err(String::as_str)
    }

    fn vendor_conv(&self) -> std::result::Result<&dyn VendorConv, &str> {
        self.cudnn().map(|dnn| dnn as &dyn VendorConv)
    }

    fn vendor_attention(&self) -> std::result::Result<&dyn VendorAttention, &str> {
        self.cudnn().map(|dnn| dnn as &dyn VendorAttention)
    }

    fn vendor_fft(&self) -> std::result::Result<&dyn VendorFft, &str> {
        let open = || {
            cufft::open(self.api, self.caps.id, self.context)
                .inspect_err(|reason| log::debug!("{}: no cuFFT: {reason}", self.caps.id))
                .map_err(|reason| format!("no cuFFT: {reason}"))
        };
        self.fft.get_or_init(open).as_ref().map(|fft| fft as &dyn VendorFft).map_err(String::as_str)
    }
}

impl Drop for CudaDriver {
    fn drop(&mut self) {
        if self.enter().is_err() {
            return;
        }
        let t = &self.api.table;
        self.blas.take();
        self.dnn.take();
        self.fft.take();
        // SAFETY: every handle was made by this driver, is released once, and nobody else can use it: the driver is going away.
        unsafe {
            for (stream, mut s) in lock(&self.staging).drain() {
                self.log_failure("cuStreamSynchronize", (t.cuStreamSynchronize)(stream as cu::CUstream));
                s.free(self.api);
            }
            for e in lock(&self.events).drain(..) {
                self.log_failure("cuEventDestroy", (t.cuEventDestroy_v2)(e as cu::CUevent));
            }
            for m in lock(&self.modules).drain(..) {
                self.log_failure("cuModuleUnload", (t.cuModuleUnload)(m as cu::CUmodule));
            }
            if self.retained {
                let released = (t.cuDevicePrimaryCtxRelease_v2)(self.device);
                self.log_failure("cuDevicePrimaryCtxRelease", released);
            }
        }
    }
}
