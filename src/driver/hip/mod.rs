//! HIP: AMD's runtime and run-time compiler, loaded when first asked for.
//!
//! The same code runs on NVIDIA hardware through a runtime that forwards HIP to CUDA (`TREFOIL_HIP_LIB`); such a runtime names an
//! architecture `sm_XY`, and that is all this driver sees of it.
// Status codes keep their C names, also in patterns.
#![allow(non_upper_case_globals)]

mod graph;
pub(super) mod hipblaslt;
pub(crate) mod hiprtc;
mod library;
mod miopen;
mod staging;

use std::ffi::{CString, c_char, c_int, c_void};
use std::fmt;
use std::path::Path;
use std::ptr;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use hip_sys::{Hip, HipGraphs, LoadError, hipError_t, hipErrorOutOfMemory, hipSuccess};

use super::lt::Lt;
use super::{
    Arg, CompileUnit, Driver, LaunchConfig, RawEvent, RawFunction, RawMem, RawModule, RawStream,
    StreamGraphs, VendorBlas, VendorConv, context_lost, refuse_cooperative, refuse_maps,
};
use crate::device::{BackendKind, Caps, DeviceId, MatrixCores};
use crate::error::{GpuError, Result, Unavailable};
use miopen::Miopen;
use staging::Staging;

/// Device files of AMD's driver: on Linux, and under Windows' subsystem for Linux.
const DEVICE_FILES: [&str; 2] = ["/dev/kfd", "/dev/dxg"];

/// Whether no runtime could find a device. Then it is better not opened at all: it brings a compiler of many megabytes along, and distributions
/// build that on a shared LLVM, which aborts the process when a second user of its command-line options (PoCL) is loaded.
fn no_device_file() -> bool {
    let named = std::env::var_os(hip_sys::HIP_LIB_VAR).is_some_and(|v| !v.is_empty());
    cfg!(target_os = "linux") && !named && !DEVICE_FILES.iter().any(|f| Path::new(f).exists())
}

/// The runtime, opened and initialised once per process.
fn runtime() -> Result<&'static Hip, Unavailable> {
    static HIP: OnceLock<Result<Hip, Unavailable>> = OnceLock::new();
    let open = || {
        if no_device_file() {
            let what = format!("there is no {}; is AMD's kernel driver loaded?", DEVICE_FILES.join(" or "));
            return Err(Unavailable::NoDevice { what });
        }
        let hip = Hip::load().map_err(not_loaded)?;
        // SAFETY: 0 is the only flag there is.
        match unsafe { hip.hipInit(0) } {
            hipSuccess => Ok(hip),
            status => Err(no_device("hipInit", &hip, status)),
        }
    };
    HIP.get_or_init(open).as_ref().map_err(Clone::clone)
}

fn not_loaded(e: LoadError) -> Unavailable {
    match e {
        LoadError::Library { tried, var } => Unavailable::LibraryNotFound { tried, var },
        LoadError::Symbol { library, symbol } => {
            Unavailable::SymbolMissing { library, symbol: symbol.into() }
        }
        other => Unavailable::LibraryNotFound { tried: vec![other.to_string()], var: hip_sys::HIP_LIB_VAR },
    }
}

fn no_device(call: &str, hip: &Hip, status: hipError_t) -> Unavailable {
    Unavailable::NoDevice { what: format!("{call} of {} answers {}", hip.library(), hip.error_name(status)) }
}

/// Capabilities of all HIP devices.
///
/// # Errors
/// Why there are none: library, function, compiler or device missing.
pub(crate) fn probe() -> Result<Vec<Caps>, Unavailable> {
    let hip = runtime()?;
    hiprtc::compiler()?;
    let count = device_count(hip)?;
    (0..count).map(|ordinal| read_caps(hip, ordinal)).collect()
}

/// The number of devices, at least one.
fn device_count(hip: &Hip) -> Result<c_int, Unavailable> {
    let mut count = 0;
    // SAFETY: the place is valid.
    match unsafe { hip.hipGetDeviceCount(&mut count) } {
        hipSuccess if count > 0 => Ok(count),
        hipSuccess => {
            Err(Unavailable::NoDevice { what: format!("{} counts {count} devices", hip.library()) })
        }
        status => Err(no_device("hipGetDeviceCount", hip, status)),
    }
}

fn read_caps(hip: &Hip, ordinal: c_int) -> Result<Caps, Unavailable> {
    let refused = |call: &str, status| no_device(&format!("{call} for device {ordinal}"), hip, status);
    let check = |call: &str, status| if status == hipSuccess { Ok(()) } else { Err(refused(call, status)) };
    let attribute = |key: c_int| {
        let mut value = 0;
        // SAFETY: the place is valid.
        check("hipDeviceGetAttribute", unsafe { hip.hipDeviceGetAttribute(&mut value, key, ordinal) })?;
        Ok(u32::try_from(value).unwrap_or(0))
    };
    let mut device = 0;
    // SAFETY: the place is valid.
    check("hipDeviceGet", unsafe { hip.hipDeviceGet(&mut device, ordinal) })?;
    let mut name = [0u8; 256];
    // SAFETY: the length is one less than the buffer's, so that it ends with a zero whatever the runtime does.
    check("hipDeviceGetName", unsafe {
        hip.hipDeviceGetName(name.as_mut_ptr().cast::<c_char>(), name.len() as c_int - 1, device)
    })?;
    let mut memory = 0;
    // SAFETY: the place is valid.
    check("hipDeviceTotalMem", unsafe { hip.hipDeviceTotalMem(&mut memory, device) })?;
    let arch = hip
        .arch_name(ordinal)
        .map_err(|status| refused("hipGetDeviceProperties", status))?
        .ok_or_else(|| Unavailable::NoDevice { what: format!("device {ordinal} names no architecture") })?;
    let text = name.split(|&b| b == 0).next().unwrap_or_default();
    // Some boards have no marketing name in the driver's list.
    let name = if text.is_empty() { arch.clone() } else { String::from_utf8_lossy(text).into_owned() };
    Ok(Caps {
        driver_version: version_text(hip),
        memory_bytes: memory as u64,
        compute_units: attribute(hip_sys::hipDeviceAttributeMultiprocessorCount)?,
        max_block: attribute(hip_sys::hipDeviceAttributeMaxThreadsPerBlock)?,
        shared_bytes: attribute(hip_sys::hipDeviceAttributeMaxSharedMemoryPerBlock)?,
        warp_size: attribute(hip_sys::hipDeviceAttributeWarpSize)?,
        lane_exchange: true,
        matrix_cores: matrix_cores(&arch),
        // NVIDIA's Hopper behind HIP's interface.
        warp_groups: arch == "sm_90a",
        f64: true,
        device_addresses: true,
        ..Caps::new(id(ordinal), name, arch)
    })
}

/// The matrix cores of an architecture that kernels use, as `kernels/hip/matrix.h` has them: NVIDIA's (`sm_XY`) from 8.0 on, AMD's of CDNA and of RDNA 3
/// and 4.
fn matrix_cores(arch: &str) -> Option<MatrixCores> {
    let digits = |s: &str| s.trim_end_matches(|c: char| !c.is_ascii_digit()).parse::<u32>().ok();
    if let Some(capability) = arch.strip_prefix("sm_").and_then(digits) {
        return (capability >= 80).then_some(MatrixCores::Ptx);
    }
    // Behind a colon stand features.
    match arch.split(':').next()? {
        "gfx908" | "gfx90a" | "gfx940" | "gfx941" | "gfx942" => Some(MatrixCores::Mfma),
        "gfx1100" | "gfx1101" | "gfx1102" | "gfx1103" | "gfx1150" | "gfx1151" => Some(MatrixCores::Wmma),
        "gfx1200" | "gfx1201" => Some(MatrixCores::Wmma),
        _ => None,
    }
}

fn id(ordinal: c_int) -> DeviceId {
    DeviceId::new(BackendKind::Hip, ordinal.unsigned_abs())
}

/// The runtime's version as text: `HIP 5.2.21153`; a runtime that forwards to CUDA answers with CUDA's number.
fn version_text(hip: &Hip) -> String {
    let mut v = 0;
    // SAFETY: the place is valid.
    match unsafe { hip.hipRuntimeGetVersion(&mut v) } {
        hipSuccess if v >= 1_000_000 => {
            format!("HIP {}.{}.{}", v / 10_000_000, v / 100_000 % 100, v % 100_000)
        }
        hipSuccess => format!("HIP on CUDA {}.{}", v / 1000, v % 1000 / 10),
        status => hip.error_name(status),
    }
}

/// One HIP device.
pub(crate) struct HipDriver {
    hip: &'static Hip,
    compiler: &'static hiprtc::Compiler,
    /// Functions of graphs, or which one the runtime lacks.
    graphs: std::result::Result<HipGraphs, String>,
    ordinal: c_int,
    caps: Caps,
    staging: Mutex<Staging>,
    /// Modules stay loaded as long as the driver.
    modules: Mutex<Vec<u64>>,
    blas: OnceLock<std::result::Result<Lt, String>>,
    dnn: OnceLock<std::result::Result<Miopen, String>>,
}

impl fmt::Debug for HipDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HipDriver").field("caps", &self.caps).finish_non_exhaustive()
    }
}

impl HipDriver {
    /// Opens a device.
    ///
    /// # Errors
    /// `Unavailable` with the reason.
    pub(crate) fn open(ordinal: u32) -> Result<HipDriver> {
        let unavailable = |reason| GpuError::unavailable(BackendKind::Hip, reason);
        let hip = runtime().map_err(unavailable)?;
        let compiler = hiprtc::compiler().map_err(unavailable)?;
        let count = device_count(hip).map_err(unavailable)?;
        let index = c_int::try_from(ordinal).ok().filter(|o| *o < count).ok_or_else(|| {
            unavailable(Unavailable::NoDevice { what: format!("ordinal {ordinal} of {count} devices") })
        })?;
        let caps = read_caps(hip, index).map_err(unavailable)?;
        let staging = Mutex::new(Staging::new(hip));
        let graphs = hip.graphs().map_err(|e| e.to_string());
        let (modules, blas, dnn) = (Mutex::default(), OnceLock::new(), OnceLock::new());
        Ok(HipDriver { hip, compiler, graphs, ordinal: index, caps, staging, modules, blas, dnn })
    }

    fn check(&self, call: &'static str, status: hipError_t) -> Result<()> {
        check(self.hip, call, status)
    }

    /// Makes the device current in this thread, on which the meaning of nearly every other call depends.
    fn bind(&self) -> Result<&'static Hip> {
        // SAFETY: the ordinal was valid at open.
        self.check("hipSetDevice", unsafe { self.hip.hipSetDevice(self.ordinal) })?;
        Ok(self.hip)
    }

    /// What makes the device current, for libraries.
    fn enter(&self) -> impl Fn() -> Result<()> + Send + Sync + 'static {
        let (hip, ordinal) = (self.hip, self.ordinal);
        // SAFETY: the ordinal was valid at open.
        move || check(hip, "hipSetDevice", unsafe { hip.hipSetDevice(ordinal) })
    }
}

fn check(hip: &Hip, call: &'static str, status: hipError_t) -> Result<()> {
    match status {
        hipSuccess => Ok(()),
        hipErrorOutOfMemory => Err(GpuError::OutOfMemory { requested: 0, in_use: 0, cached: 0 }),
        _ => {
            let fail = if context_lost(status as u32) { GpuError::driver_fatal } else { GpuError::driver };
            Err(fail(call, i64::from(status), hip.error_name(status)))
        }
    }
}

/// The guarded value even if a thread panicked while it held the lock: all values here are valid after every step.
fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A handle or device address as the pointer that HIP takes.
fn pointer(handle: u64) -> *mut c_void {
    ptr::with_exposed_provenance_mut(handle as usize)
}

/// A pointer of HIP as a number.
fn number(handle: *mut c_void) -> u64 {
    handle.expose_provenance() as u64
}

impl Driver for HipDriver {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn dialect(&self) -> &'static str {
        "hip"
    }

    fn compiler_id(&self) -> String {
        format!("{}; {}", self.compiler.version(), hiprtc::options(&self.caps.arch).join(" "))
    }

    fn alloc(&self, bytes: usize) -> Result<RawMem> {
        let hip = self.bind()?;
        let mut memory = ptr::null_mut();
        // SAFETY: the place is valid.
        match unsafe { hip.hipMalloc(&mut memory, bytes) } {
            hipErrorOutOfMemory => Err(GpuError::OutOfMemory { requested: bytes, in_use: 0, cached: 0 }),
            status => self.check("hipMalloc", status).map(|()| RawMem(number(memory))),
        }
    }

    unsafe fn free(&self, mem: RawMem) {
        if let Ok(hip) = self.bind() {
            // SAFETY: the caller vouches that the memory is of this driver and unused.
            let status = unsafe { hip.hipFree(pointer(mem.0)) };
            if let Err(e) = self.check("hipFree", status) {
                log::warn!("{e}");
            }
        }
    }

    fn new_stream(&self) -> Result<RawStream> {
        let hip = self.bind()?;
        let mut stream = ptr::null_mut();
        // SAFETY: the place is valid.
        let status = unsafe { hip.hipStreamCreateWithFlags(&mut stream, hip_sys::hipStreamNonBlocking) };
        self.check("hipStreamCreateWithFlags", status)?;
        Ok(RawStream(number(stream)))
    }

    unsafe fn destroy_stream(&self, s: RawStream) {
        if let Ok(hip) = self.bind() {
            // SAFETY: the caller vouches that the stream is of this driver and not used again.
            let status = unsafe {
                hip.hipStreamSynchronize(pointer(s.0));
                hip.hipStreamDestroy(pointer(s.0))
            };
            if let Err(e) = self.check("hipStreamDestroy", status) {
                log::warn!("{e}");
            }
        }
    }

    unsafe fn copy_in(&self, s: RawStream, dst: RawMem, offset: u64, src: &[u8]) -> Result<()> {
        self.bind()?;
        // SAFETY: the caller vouches for the range on the device.
        unsafe { lock(&self.staging).copy_in(pointer(s.0), dst.0 + offset, src) }
    }

    unsafe fn copy_out(&self, s: RawStream, src: RawMem, offset: u64, dst: &mut [u8]) -> Result<()> {
        let hip = self.bind()?;
        if !dst.is_empty() {
            let (to, from) = (dst.as_mut_ptr().cast::<c_void>(), pointer(src.0 + offset));
            // SAFETY: the caller vouches for the range on the device; `dst` is borrowed until the stream is idle, below.
            let status = unsafe { hip.hipMemcpyDtoHAsync(to, from, dst.len(), pointer(s.0)) };
            self.check("hipMemcpyDtoHAsync", status)?;
        }
        // SAFETY: forwarded.
        unsafe { self.synchronize(s) }
    }

    unsafe fn copy(&self, s: RawStream, src: (RawMem, u64), dst: (RawMem, u64), bytes: usize) -> Result<()> {
        let hip = self.bind()?;
        if bytes == 0 {
            return Ok(());
        }
        let (to, from) = (pointer(dst.0.0 + dst.1), pointer(src.0.0 + src.1));
        // SAFETY: the caller vouches for both ranges.
        let status = unsafe { hip.hipMemcpyDtoDAsync(to, from, bytes, pointer(s.0)) };
        self.check("hipMemcpyDtoDAsync", status)
    }

    fn compile(&self, unit: &CompileUnit<'_>) -> Result<Vec<u8>> {
        self.compiler.compile(&self.caps.arch, unit)
    }

    unsafe fn load(&self, image: &[u8]) -> Result<RawModule> {
        let hip = self.bind()?;
        let mut module = ptr::null_mut();
        // SAFETY: an image states its own size; the caller had it from `compile`.
        let status = unsafe { hip.hipModuleLoadData(&mut module, image.as_ptr().cast()) };
        self.check("hipModuleLoadData", status)?;
        let module = number(module);
        lock(&self.modules).push(module);
        Ok(RawModule(module))
    }

    unsafe fn function(&self, module: RawModule, entry: &str) -> Result<RawFunction> {
        let hip = self.bind()?;
        let missing =
            |_| GpuError::driver("hipModuleGetFunction", i64::from(hip_sys::hipErrorInvalidValue), entry);
        let name = CString::new(entry).map_err(missing)?;
        let mut function = ptr::null_mut();
        // SAFETY: the module is loaded as long as this driver lives; the name is zero-terminated.
        let status = unsafe { hip.hipModuleGetFunction(&mut function, pointer(module.0), name.as_ptr()) };
        self.check("hipModuleGetFunction", status).map_err(|e| match e {
            GpuError::Driver(mut failure) => {
                failure.name = format!("{} for {entry}", failure.name);
                GpuError::Driver(failure)
            }
            other => other,
        })?;
        Ok(RawFunction(number(function)))
    }

    unsafe fn launch(
        &self,
        s: RawStream,
        f: RawFunction,
        cfg: &LaunchConfig,
        args: &[Arg<'_>],
    ) -> Result<()> {
        refuse_maps("hipModuleLaunchKernel", args)?;
        refuse_cooperative("hipModuleLaunchKernel", cfg)?;
        let hip = self.bind()?;
        let address = |arg: &Arg<'_>| match arg {
            Arg::Mem(Some((mem, offset))) => mem.0 + offset,
            _ => 0,
        };
        let addresses: Vec<u64> = args.iter().map(address).collect();
        // HIP reads each argument through its pointer before the call returns.
        let place = |(arg, address): (&Arg<'_>, &u64)| -> *mut c_void {
            match arg {
                Arg::Mem(_) => ptr::from_ref(address).cast_mut().cast(),
                value => value.bytes().as_ptr().cast_mut().cast(),
            }
        };
        let mut params: Vec<*mut c_void> = args.iter().zip(&addresses).map(place).collect();
        let ([gx, gy, gz], [bx, by, bz]) = (cfg.grid, cfg.block);
        // SAFETY: the caller vouches for the kernel and that the arguments match it; all places are alive.
        let status = unsafe {
            let (f, s, params) = (pointer(f.0), pointer(s.0), params.as_mut_ptr());
            hip.hipModuleLaunchKernel(f, gx, gy, gz, bx, by, bz, cfg.local_bytes, s, params, ptr::null_mut())
        };
        self.check("hipModuleLaunchKernel", status)
    }

    unsafe fn synchronize(&self, s: RawStream) -> Result<()> {
        let hip = self.bind()?;
        // SAFETY: streams live until `destroy_stream`.
        self.check("hipStreamSynchronize", unsafe { hip.hipStreamSynchronize(pointer(s.0)) })
    }

    unsafe fn record(&self, s: RawStream) -> Result<RawEvent> {
        let hip = self.bind()?;
        let mut event = ptr::null_mut();
        // SAFETY: the place is valid.
        let status = unsafe { hip.hipEventCreateWithFlags(&mut event, hip_sys::hipEventDefault) };
        self.check("hipEventCreateWithFlags", status)?;
        // SAFETY: event and stream are live.
        let status = unsafe { hip.hipEventRecord(event, pointer(s.0)) };
        self.check("hipEventRecord", status).inspect_err(|_| {
            // SAFETY: the event was made above and is known to nobody else.
            unsafe { hip.hipEventDestroy(event) };
        })?;
        Ok(RawEvent(number(event)))
    }

    unsafe fn wait(&self, s: RawStream, e: RawEvent) -> Result<()> {
        let hip = self.bind()?;
        // SAFETY: events live until `destroy_event`, streams until `destroy_stream`.
        self.check("hipStreamWaitEvent", unsafe { hip.hipStreamWaitEvent(pointer(s.0), pointer(e.0), 0) })
    }

    unsafe fn event_synchronize(&self, e: RawEvent) -> Result<()> {
        let hip = self.bind()?;
        // SAFETY: events live until `destroy_event`.
        self.check("hipEventSynchronize", unsafe { hip.hipEventSynchronize(pointer(e.0)) })
    }

    unsafe fn elapsed_ns(&self, from: RawEvent, to: RawEvent) -> Result<u64> {
        let hip = self.bind()?;
        let mut ms = 0.0f32;
        // SAFETY: the place is valid, and events live until `destroy_event`.
        let status = unsafe { hip.hipEventElapsedTime(&mut ms, pointer(from.0), pointer(to.0)) };
        self.check("hipEventElapsedTime", status)?;
        Ok((f64::from(ms.max(0.0)) * 1e6) as u64)
    }

    fn vendor_blas(&self) -> std::result::Result<&dyn VendorBlas, &str> {
        let open = || {
            hipblaslt::open(self.hip.library(), self.caps.id, self.enter())
                .inspect_err(|reason| log::debug!("{}: no hipBLASLt: {reason}", self.caps.id))
        };
        self.blas.get_or_init(open).as_ref().map(|b| b as &dyn VendorBlas).map_err(String::as_str)
    }

    fn vendor_conv(&self) -> std::result::Result<&dyn VendorConv, &str> {
        let open = || {
            miopen::open(self.hip.library(), self.caps.id, Box::new(self.enter()))
                .inspect_err(|reason| log::debug!("{}: no MIOpen: {reason}", self.caps.id))
                .map_err(|reason| format!("no MIOpen: {reason}"))
        };
        self.dnn.get_or_init(open).as_ref().map(|d| d as &dyn VendorConv).map_err(String::as_str)
    }

    fn stream_graphs(&self) -> std::result::Result<&dyn StreamGraphs, &str> {
        self.graphs.as_ref().map(|_| self as &dyn StreamGraphs).map_err(String::as_str)
    }

    unsafe fn destroy_event(&self, e: RawEvent) {
        if let Ok(hip) = self.bind() {
            // SAFETY: the caller vouches that the event is of this driver and not used again.
            unsafe { hip.hipEventDestroy(pointer(e.0)) };
        }
    }
}

impl Drop for HipDriver {
    fn drop(&mut self) {
        let Ok(hip) = self.bind() else { return };
        self.blas.take();
        self.dnn.take();
        lock(&self.staging).release();
        for module in lock(&self.modules).drain(..) {
            // SAFETY: the module was loaded by this driver, whose kernels nobody can launch any more.
            unsafe { hip.hipModuleUnload(pointer(module)) };
        }
    }
}

#[cfg(test)]
mod tests;
