//! Finding OpenCL devices and reading their capabilities.

use std::sync::{Mutex, OnceLock, PoisonError};

use opencl3::device as dev;
use opencl3::error_codes::error_text;
use opencl3::platform::platform;
use opencl3::types::{cl_command_queue, cl_device_id, cl_device_info, cl_event, cl_int, cl_kernel, cl_uint};

use crate::device::{BackendKind, Caps, DeviceId, MatrixCores};
use crate::driver::loader;
use crate::error::Unavailable;

/// Overrides the search for the ICD loader.
const LIBRARY_VAR: &str = "TREFOIL_OPENCL_LIB";

/// Every function that this driver calls.
const SYMBOLS: &[&str] = &[
    "clBuildProgram",
    "clCreateBuffer",
    "clCreateCommandQueue",
    "clCreateContext",
    "clCreateKernel",
    "clCreateProgramWithBinary",
    "clCreateProgramWithSource",
    "clCreateSubBuffer",
    "clEnqueueBarrierWithWaitList",
    "clEnqueueCopyBuffer",
    "clEnqueueMarkerWithWaitList",
    "clEnqueueNDRangeKernel",
    "clEnqueueReadBuffer",
    "clEnqueueWriteBuffer",
    "clFinish",
    "clFlush",
    "clGetCommandQueueInfo",
    "clGetDeviceIDs",
    "clGetDeviceInfo",
    "clGetEventInfo",
    "clGetEventProfilingInfo",
    "clGetPlatformIDs",
    "clGetPlatformInfo",
    "clGetProgramBuildInfo",
    "clGetProgramInfo",
    "clReleaseCommandQueue",
    "clReleaseContext",
    "clReleaseDevice",
    "clReleaseEvent",
    "clReleaseKernel",
    "clReleaseMemObject",
    "clReleaseProgram",
    "clRetainCommandQueue",
    "clRetainContext",
    "clRetainDevice",
    "clSetKernelArg",
    "clWaitForEvents",
];

/// A device of the flattened list.
pub(super) struct Found {
    pub(super) caps: Caps,
    /// `cl_device_id`
    pub(super) device: u64,
    /// Options of every compilation.
    pub(super) options: String,
}

/// The devices of all platforms, GPUs before CPUs; ordinals are positions in this list.
pub(crate) fn probe() -> Result<Vec<Caps>, Unavailable> {
    Ok(devices()?.into_iter().map(|d| d.caps).collect())
}

/// The device at a position of the list.
pub(super) fn device(ordinal: u32) -> Result<Found, Unavailable> {
    let mut all = devices()?;
    if (ordinal as usize) < all.len() {
        return Ok(all.swap_remove(ordinal as usize));
    }
    Err(Unavailable::NoDevice { what: format!("ordinal {ordinal} of {} OpenCL devices", all.len()) })
}

/// A device by its `cl_device_id`; what the list lacks (a part of a device) has the ordinal behind its end.
pub(super) fn device_of_id(id: u64) -> Result<Found, Unavailable> {
    let mut all = devices()?;
    if let Some(at) = all.iter().position(|d| d.device == id) {
        return Ok(all.swap_remove(at));
    }
    let mut found = describe(id as cl_device_id, "").map_err(|what| Unavailable::NoDevice { what })?;
    found.caps.id = DeviceId::new(BackendKind::OpenCl, all.len() as u32);
    Ok(found)
}

/// The little-endian number in a device's or event's answer of up to eight bytes.
pub(super) fn number(bytes: &[u8]) -> u64 {
    let mut b = [0; 8];
    let n = bytes.len().min(8);
    b[..n].copy_from_slice(&bytes[..n]);
    u64::from_le_bytes(b)
}

/// `clEnqueueNDRangeKernel`: opencl3 asks for an event with every launch, which a queue with profiling makes more than twice as expensive
/// (11.4 us against 4.5 us on an H200).
pub(super) type EnqueueKernel = unsafe extern "system" fn(
    cl_command_queue,
    cl_kernel,
    cl_uint,
    *const usize,
    *const usize,
    *const usize,
    cl_uint,
    *const cl_event,
    *mut cl_event,
) -> cl_int;

/// Checks the library once per process.
pub(super) fn library() -> Result<EnqueueKernel, Unavailable> {
    static CHECKED: OnceLock<Result<EnqueueKernel, Unavailable>> = OnceLock::new();
    CHECKED.get_or_init(check_library).clone()
}

fn check_library() -> Result<EnqueueKernel, Unavailable> {
    // opencl3 looks for OPENCL_DYLIB_PATH, then for this name.
    let default = if cfg!(target_os = "windows") {
        "OpenCL.dll"
    } else if cfg!(target_os = "macos") {
        "/System/Library/Frameworks/OpenCL.framework/OpenCL"
    } else {
        "libOpenCL.so.1"
    };
    let paths = std::env::var("OPENCL_DYLIB_PATH").unwrap_or_default();
    let names: Vec<String> =
        paths.split(';').filter(|p| !p.is_empty()).chain([default]).map(String::from).collect();
    let chosen = loader::open(LIBRARY_VAR, &names)?;
    loader::preflight(&chosen, SYMBOLS)?;
    // A library that is loaded already is found again by its name, so opencl3 gets the one that LIBRARY_VAR chose. That fails for a file
    // whose own name (soname) is another: say so instead of using a different library than the user asked for.
    let used = loader::open("OPENCL_DYLIB_PATH", &names)?;
    if used.address("clGetPlatformIDs")? != chosen.address("clGetPlatformIDs")? {
        let what =
            format!("{}: its soname is not {default}; set OPENCL_DYLIB_PATH to it as well", chosen.name);
        return Err(Unavailable::LibraryNotFound { tried: vec![what], var: LIBRARY_VAR });
    }
    // SAFETY: the prototype is the standard's.
    unsafe { chosen.function("clEnqueueNDRangeKernel") }
}

fn devices() -> Result<Vec<Found>, Unavailable> {
    library()?;
    // Some drivers set themselves up in the first query and answer a second thread, meanwhile, that there is no device.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let no_device =
        |call: &str, c: cl_int| Unavailable::NoDevice { what: format!("{call}: {} ({c})", error_text(c)) };
    let platforms = platform::get_platform_ids().map_err(|c| no_device("clGetPlatformIDs", c))?;
    let mut reason = Unavailable::NoDevice { what: "no OpenCL platform has a device".into() };
    let mut found = Vec::new();
    for p in platforms {
        let version =
            platform::get_platform_data(p, platform::CL_PLATFORM_VERSION).map(text).unwrap_or_default();
        match dev::get_device_ids(p, dev::CL_DEVICE_TYPE_ALL) {
            Ok(ids) => {
                for id in ids {
                    match describe(id, &version) {
                        Ok(d) => found.push(d),
                        Err(what) => {
                            log::debug!("skipping an OpenCL device: {what}");
                            reason = Unavailable::NoDevice { what };
                        }
                    }
                }
            }
            Err(c) => {
                reason = no_device("clGetDeviceIDs", c);
                log::debug!("skipping the OpenCL platform {version}: {reason}");
            }
        }
    }
    if found.is_empty() {
        return Err(reason);
    }
    found.sort_by_key(|d| d.caps.is_cpu);
    for (i, d) in found.iter_mut().enumerate() {
        d.caps.id = DeviceId::new(BackendKind::OpenCl, i as u32);
    }
    Ok(found)
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8_lossy(&bytes).trim_end_matches('\0').trim().to_string()
}

/// Reads the capabilities; the error says what makes the device unusable.
fn describe(id: cl_device_id, platform_version: &str) -> Result<Found, String> {
    let get = |p: cl_device_info| dev::get_device_data(id, p);
    let need = |p: cl_device_info, what: &str| {
        get(p).map_err(|c| format!("clGetDeviceInfo of {what}: {} ({c})", error_text(c)))
    };
    let name = text(need(dev::CL_DEVICE_NAME, "CL_DEVICE_NAME")?);
    let num = |p, what: &str| need(p, what).map(|b| number(&b)).map_err(|e| format!("{name}: {e}"));
    if num(dev::CL_DEVICE_AVAILABLE, "CL_DEVICE_AVAILABLE")? == 0 {
        return Err(format!("{name} is not available"));
    }
    if num(dev::CL_DEVICE_COMPILER_AVAILABLE, "CL_DEVICE_COMPILER_AVAILABLE")? == 0 {
        return Err(format!("{name} has no compiler"));
    }
    let version = text(need(dev::CL_DEVICE_VERSION, "CL_DEVICE_VERSION")?);
    if !at_least_1_2(&version) {
        return Err(format!("{name} has {version}, OpenCL 1.2 is needed"));
    }
    let driver = text(need(dev::CL_DRIVER_VERSION, "CL_DRIVER_VERSION")?);
    let extensions = get(dev::CL_DEVICE_EXTENSIONS).map(text).unwrap_or_default();
    let has = |e: &str| extensions.split_whitespace().any(|x| x == e);

    let mut caps = Caps::new(
        DeviceId::new(BackendKind::OpenCl, 0),
        name.clone(),
        format!("{name}; {version}; {platform_version}; {driver}"),
    );
    caps.is_cpu = num(dev::CL_DEVICE_TYPE, "CL_DEVICE_TYPE")? & dev::CL_DEVICE_TYPE_CPU != 0;
    caps.memory_bytes = num(dev::CL_DEVICE_GLOBAL_MEM_SIZE, "CL_DEVICE_GLOBAL_MEM_SIZE")?;
    caps.compute_units = num(dev::CL_DEVICE_MAX_COMPUTE_UNITS, "CL_DEVICE_MAX_COMPUTE_UNITS")? as u32;
    // The first of three sizes; a group is a row in most kernels.
    let per_axis = number(
        need(dev::CL_DEVICE_MAX_WORK_ITEM_SIZES, "CL_DEVICE_MAX_WORK_ITEM_SIZES")?
            .get(..size_of::<usize>())
            .unwrap_or_default(),
    );
    let per_group = num(dev::CL_DEVICE_MAX_WORK_GROUP_SIZE, "CL_DEVICE_MAX_WORK_GROUP_SIZE")?;
    caps.max_block = per_group.min(per_axis).max(1) as u32;
    caps.shared_bytes = num(dev::CL_DEVICE_LOCAL_MEM_SIZE, "CL_DEVICE_LOCAL_MEM_SIZE")? as u32;
    // Devices without f64 answer 0, or (before 1.2) do not know the question.
    caps.f64 = get(dev::CL_DEVICE_DOUBLE_FP_CONFIG).is_ok_and(|b| number(&b) != 0);
    caps.warp_size = if has("cl_nv_device_attribute_query") {
        get(dev::CL_DEVICE_WARP_SIZE_NV).map_or(1, |b| number(&b) as u32)
    } else if has("cl_amd_device_attribute_query") {
        get(dev::CL_DEVICE_WAVEFRONT_WIDTH_AMD).map_or(1, |b| number(&b) as u32)
    } else {
        1
    };
    caps.driver_version = driver;
    // NVIDIA's compiler takes inline PTX.
    let nvidia = |what| get(what).map_or(0, |b| number(&b));
    let ampere =
        has("cl_nv_device_attribute_query") && nvidia(dev::CL_DEVICE_COMPUTE_CAPABILITY_MAJOR_NV) >= 8;
    caps.matrix_cores = ampere.then_some(MatrixCores::Ptx);

    let mut options = String::from("-cl-std=CL1.2");
    let rounding = get(dev::CL_DEVICE_SINGLE_FP_CONFIG).map_or(0, |b| number(&b));
    if rounding & dev::CL_FP_CORRECTLY_ROUNDED_DIVIDE_SQRT != 0 {
        options.push_str(" -cl-fp32-correctly-rounded-divide-sqrt");
    }
    if ampere {
        options.push_str(" -DGK_PTX=80");
    }
    Ok(Found { caps, device: id as u64, options })
}

/// `OpenCL <major>.<minor> <vendor's words>`
fn at_least_1_2(version: &str) -> bool {
    let mut parts = version.strip_prefix("OpenCL ").unwrap_or_default().split(['.', ' ']);
    let mut next = || parts.next().and_then(|p| p.parse::<u32>().ok()).unwrap_or(0);
    (next(), next()) >= (1, 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_versions() {
        assert!(at_least_1_2("OpenCL 1.2 CUDA"));
        assert!(at_least_1_2("OpenCL 3.0 PoCL HSTR: x"));
        assert!(!at_least_1_2("OpenCL 1.1 old"));
        assert!(!at_least_1_2("something else"));
    }

    #[test]
    fn reads_numbers() {
        assert_eq!(number(&[1, 2]), 0x201);
        assert_eq!(number(&[0xff; 9]), u64::MAX);
        assert_eq!(number(&[]), 0);
    }
}
