//! Finding CUDA's libraries and every function that is called in them.
//!
//! cudarc panics on its first call when a library or a symbol is missing, and it looks for names of its own choosing. So the functions are
//! resolved here, from the one library that was found; cudarc's bindings give the types, and each prototype below is held against them by the
//! compiler. Status codes are plain numbers, because newer drivers return codes that the bindings' enums do not know.

use std::collections::BTreeSet;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use cudarc::driver::sys as cu;

use super::graph::GraphTable;
use super::tensor_map::TensorMapTable;
use crate::driver::context_lost;
use crate::driver::loader::{self, DynLib};
use crate::error::{GpuError, Result, Unavailable};

/// Declares a struct of resolved functions that return a status.
macro_rules! function_table {
    ($(#[$meta:meta])* $table:ident in $sys:ident -> $status:ident { $($name:ident($($arg:ty),* $(,)?);)* }) => {
        $(#[$meta])*
        #[allow(non_snake_case)]
        #[derive(Debug)]
        pub(super) struct $table {
            $(pub(super) $name: unsafe extern "C" fn($($arg),*) -> u32,)*
        }

        impl $table {
            /// Resolves all functions; names the first that is missing.
            pub(super) fn resolve(
                lib: &$crate::driver::loader::DynLib,
            ) -> std::result::Result<Self, $crate::error::Unavailable> {
                // SAFETY: the prototypes equal those of the bindings (checked below), whose status enums are 32-bit numbers.
                unsafe { Ok($table { $($name: lib.function(stringify!($name))?,)* }) }
            }
        }

        const _: () = {
            $(let _: unsafe fn($($arg),*) -> $sys::$status = $sys::$name;)*
            assert!(size_of::<$sys::$status>() == 4);
        };
    };
}
pub(super) use function_table;

function_table! {
    /// Functions of the driver library.
    DriverTable in cu -> CUresult {
        cuInit(c_uint);
        cuDriverGetVersion(*mut c_int);
        cuDeviceGetCount(*mut c_int);
        cuDeviceGet(*mut cu::CUdevice, c_int);
        cuDeviceGetName(*mut c_char, c_int, cu::CUdevice);
        cuDeviceGetAttribute(*mut c_int, cu::CUdevice_attribute, cu::CUdevice);
        cuDeviceTotalMem_v2(*mut usize, cu::CUdevice);
        cuDevicePrimaryCtxRetain(*mut cu::CUcontext, cu::CUdevice);
        cuDevicePrimaryCtxRelease_v2(cu::CUdevice);
        cuCtxSetCurrent(cu::CUcontext);
        cuCtxGetDevice(*mut cu::CUdevice);
        cuMemAlloc_v2(*mut cu::CUdeviceptr, usize);
        cuMemFree_v2(cu::CUdeviceptr);
        cuMemHostAlloc(*mut *mut c_void, usize, c_uint);
        cuMemFreeHost(*mut c_void);
        cuMemcpyHtoDAsync_v2(cu::CUdeviceptr, *const c_void, usize, cu::CUstream);
        cuMemcpyDtoHAsync_v2(*mut c_void, cu::CUdeviceptr, usize, cu::CUstream);
        cuMemcpyDtoDAsync_v2(cu::CUdeviceptr, cu::CUdeviceptr, usize, cu::CUstream);
        cuStreamCreate(*mut cu::CUstream, c_uint);
        cuStreamDestroy_v2(cu::CUstream);
        cuStreamSynchronize(cu::CUstream);
        cuStreamIsCapturing(cu::CUstream, *mut cu::CUstreamCaptureStatus);
        cuStreamWaitEvent(cu::CUstream, cu::CUevent, c_uint);
        cuEventCreate(*mut cu::CUevent, c_uint);
        cuEventRecord(cu::CUevent, cu::CUstream);
        cuEventSynchronize(cu::CUevent);
        cuEventElapsedTime(*mut f32, cu::CUevent, cu::CUevent);
        cuEventDestroy_v2(cu::CUevent);
        cuModuleLoadData(*mut cu::CUmodule, *const c_void);
        cuModuleUnload(cu::CUmodule);
        cuModuleGetFunction(*mut cu::CUfunction, cu::CUmodule, *const c_char);
        cuFuncSetAttribute(cu::CUfunction, cu::CUfunction_attribute, c_int);
        cuLaunchKernelEx(*const cu::CUlaunchConfig, cu::CUfunction, *mut *mut c_void, *mut *mut c_void);
    }
}

/// Overrides the search for the driver library.
const DRIVER_VAR: &str = "TREFOIL_CUDA_LIB";
/// Version of the driver API that the bindings describe: 12.0.
const NEEDED_VERSION: u32 = 12_000;

/// The initialised driver API.
#[derive(Debug)]
pub(super) struct Api {
    pub(super) table: DriverTable,
    /// 1000 major + 10 minor.
    pub(super) version: u32,
    /// Why the driver has no graphs, if it lacks a function of theirs.
    pub(super) graphs: std::result::Result<GraphTable, String>,
    /// Why the driver makes no maps of tensors, if it lacks the function.
    pub(super) tensor_maps: std::result::Result<TensorMapTable, String>,
    error_name: unsafe extern "C" fn(u32, *mut *const c_char) -> u32,
}

impl Api {
    /// Symbolic name of a status.
    pub(super) fn name(&self, code: u32) -> String {
        let mut p = std::ptr::null();
        // SAFETY: writes a pointer to a static string, or null for an unknown code.
        let ok = unsafe { (self.error_name)(code, &mut p) } == 0 && !p.is_null();
        if !ok {
            return "unknown CUDA error".into();
        }
        // SAFETY: a static, terminated string of the driver.
        unsafe { CStr::from_ptr(p) }.to_string_lossy().into_owned()
    }

    /// Turns a status into a result.
    pub(super) fn check(&self, call: &'static str, code: u32) -> Result<()> {
        const OUT_OF_MEMORY: u32 = cu::CUresult::CUDA_ERROR_OUT_OF_MEMORY as u32;
        match code {
            0 => Ok(()),
            OUT_OF_MEMORY => Err(GpuError::OutOfMemory { requested: 0, in_use: 0, cached: 0 }),
            lost if context_lost(lost) => Err(GpuError::driver_fatal(call, code.into(), self.name(code))),
            _ => Err(GpuError::driver(call, code.into(), self.name(code))),
        }
    }

    /// The same for calls before a device is open.
    pub(super) fn check_device(&self, call: &str, code: u32) -> Result<(), Unavailable> {
        match code {
            0 => Ok(()),
            _ => Err(Unavailable::NoDevice { what: format!("{call}: {} ({code})", self.name(code)) }),
        }
    }
}

/// The driver API, opened and initialised once per process.
pub(super) fn api() -> Result<&'static Api, Unavailable> {
    static API: OnceLock<Result<Api, Unavailable>> = OnceLock::new();
    API.get_or_init(open_api).as_ref().map_err(Clone::clone)
}

fn open_api() -> Result<Api, Unavailable> {
    let name = if cfg!(windows) { "nvcuda.dll" } else { "libcuda.so.1" };
    let lib = loader::open(DRIVER_VAR, &[name.to_string()])?;
    let table = DriverTable::resolve(&lib)?;
    // SAFETY: prototype of cuGetErrorName with the enum as the number that it is.
    let error_name = unsafe { lib.function("cuGetErrorName") }?;
    let graphs = GraphTable::resolve(&lib).map_err(|e| e.to_string());
    let tensor_maps = TensorMapTable::resolve(&lib).map_err(|e| e.to_string());
    let mut api = Api { table, version: 0, graphs, tensor_maps, error_name };
    // SAFETY: the first call of the API; no flags are defined.
    api.check_device("cuInit", unsafe { (api.table.cuInit)(0) })?;
    let mut version = 0;
    // SAFETY: writes one int.
    api.check_device("cuDriverGetVersion", unsafe { (api.table.cuDriverGetVersion)(&mut version) })?;
    api.version = version.max(0) as u32;
    if api.version < NEEDED_VERSION {
        return Err(Unavailable::DriverTooOld { have: api.version, need: NEEDED_VERSION });
    }
    Ok(api)
}

/// Opens a library of the CUDA toolkit, preferring the driver's major version: the system's search path first, then the toolkit's folders,
/// then Python wheels (`nvidia/cu13`, or `nvidia/<wheel>` before CUDA 13).
pub(super) fn toolkit_library(
    var: &'static str,
    stem: &str,
    windows_names: &[&str],
    wheel: &str,
    driver_major: u32,
) -> Result<DynLib, Unavailable> {
    let names: Vec<String> = if cfg!(windows) {
        windows_names.iter().map(|s| s.to_string()).collect()
    } else {
        // NVRTC of CUDA 11 names its file after 11.2. A driver loads what older toolkits made, but not what newer ones did.
        let mut majors = vec![(13, "13"), (12, "12"), (11, "11"), (11, "11.2")];
        majors.sort_by_key(|&(m, _)| m > driver_major);
        majors.into_iter().map(|(_, m)| format!("lib{stem}.so.{m}")).collect()
    };
    library_of(var, names, wheel)
}

/// Opens a library by its file names: in the system's search path first, then where [`toolkit_library`] looks.
pub(super) fn library_of(
    var: &'static str,
    mut names: Vec<String>,
    wheel: &str,
) -> Result<DynLib, Unavailable> {
    let in_folders: Vec<String> = names
        .iter()
        .flat_map(|n| toolkit_folders(wheel).into_iter().map(move |f| f.join(n)))
        .filter(|p| p.is_file())
        .map(|p| p.to_string_lossy().into_owned())
        .collect();
    names.extend(in_folders);
    loader::open(var, &names)
}

/// Folders in which the toolkit's libraries may lie.
fn toolkit_folders(wheel: &str) -> Vec<PathBuf> {
    let env_dir = |v: &str| std::env::var_os(v).filter(|s| !s.is_empty()).map(PathBuf::from);
    let mut folders = Vec::new();
    let roots = ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(env_dir);
    for root in roots.chain([PathBuf::from("/usr/local/cuda")]) {
        for sub in ["lib64", "lib", "targets/x86_64-linux/lib", "bin", "bin/x64"] {
            folders.push(root.join(sub));
        }
    }
    // Prefixes of Python installations: the active environment, those on PATH, the usual ones.
    let mut prefixes: Vec<PathBuf> =
        ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().filter_map(env_dir).collect();
    let path = std::env::var_os("PATH").unwrap_or_default();
    prefixes.extend(
        std::env::split_paths(&path)
            .filter(|d| d.join("python3").exists())
            .filter_map(|d| d.parent().map(Path::to_path_buf)),
    );
    prefixes.extend(env_dir("HOME").map(|h| h.join(".local")));
    prefixes.extend(["/usr/local", "/usr"].map(PathBuf::from));
    let mut seen = BTreeSet::new();
    for prefix in prefixes {
        if !seen.insert(prefix.clone()) {
            continue;
        }
        for packages in python_packages(&prefix) {
            for sub in ["cu13", wheel] {
                folders.push(packages.join("nvidia").join(sub).join(if cfg!(windows) {
                    "bin"
                } else {
                    "lib"
                }));
            }
        }
    }
    folders
}

/// `lib/python3.*/{site,dist}-packages` below a prefix.
fn python_packages(prefix: &Path) -> Vec<PathBuf> {
    let mut found = vec![prefix.join("Lib/site-packages")];
    let mut versions: Vec<PathBuf> = std::fs::read_dir(prefix.join("lib"))
        .map(|d| d.flatten().map(|e| e.path()).collect())
        .unwrap_or_default();
    versions.retain(|p| p.file_name().is_some_and(|n| n.to_string_lossy().starts_with("python3")));
    versions.sort();
    for v in versions {
        found.extend(["site-packages", "dist-packages"].map(|p| v.join(p)));
    }
    found
}
