//! NVIDIA's run-time compiler.

use std::ffi::{CStr, CString, c_char, c_int};
use std::ptr;
use std::sync::OnceLock;

use cudarc::nvrtc::sys as nv;

use super::preflight::{function_table, toolkit_library};
use crate::driver::CompileUnit;
use crate::driver::loader::DynLib;
use crate::error::{GpuError, Result, Unavailable};

/// Overrides the search for NVRTC.
const VAR: &str = "TREFOIL_NVRTC_LIB";

function_table! {
    /// Functions of NVRTC.
    NvrtcTable in nv -> nvrtcResult {
        nvrtcVersion(*mut c_int, *mut c_int);
        nvrtcGetNumSupportedArchs(*mut c_int);
        nvrtcGetSupportedArchs(*mut c_int);
        nvrtcCreateProgram(
            *mut nv::nvrtcProgram, *const c_char, *const c_char, c_int, *const *const c_char, *const *const c_char,
        );
        nvrtcCompileProgram(nv::nvrtcProgram, c_int, *const *const c_char);
        nvrtcDestroyProgram(*mut nv::nvrtcProgram);
        nvrtcGetCUBINSize(nv::nvrtcProgram, *mut usize);
        nvrtcGetCUBIN(nv::nvrtcProgram, *mut c_char);
        nvrtcGetPTXSize(nv::nvrtcProgram, *mut usize);
        nvrtcGetPTX(nv::nvrtcProgram, *mut c_char);
        nvrtcGetProgramLogSize(nv::nvrtcProgram, *mut usize);
        nvrtcGetProgramLog(nv::nvrtcProgram, *mut c_char);
    }
}

/// What is compiled for a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Target {
    /// Machine code of exactly this architecture, e.g. 90.
    Cubin(u32),
    /// Intermediate text of an architecture, for the driver to finish.
    Ptx(u32),
}

impl Target {
    /// The best form that a compiler with these architectures has for a device: machine code if it knows the device, else text of the newest
    /// older architecture.
    fn choose(device: u32, known: &[u32]) -> Option<Target> {
        if known.contains(&device) {
            return Some(Target::Cubin(device));
        }
        known.iter().copied().filter(|&a| a < device).max().map(Target::Ptx)
    }

    /// Blocks of a cluster in `kernels/cuda/dialect.h` (`GK_CLUSTER`).
    pub(super) fn cluster(&self) -> u32 {
        let (Target::Cubin(a) | Target::Ptx(a)) = *self;
        if a >= 90 { 8 } else { 1 }
    }

    /// Whether a compiler of this major version gives the kernels what Hopper has beyond later devices: matrix products of warp groups. CUDA 11.8
    /// has no name for it.
    fn has_warp_groups(&self, major: c_int) -> bool {
        *self == Target::Cubin(90) && major >= 12
    }

    /// For a compiler of this major version.
    fn option(&self, major: c_int) -> String {
        match self {
            target if target.has_warp_groups(major) => "--gpu-architecture=sm_90a".into(),
            Target::Cubin(a) => format!("--gpu-architecture=sm_{a}"),
            Target::Ptx(a) => format!("--gpu-architecture=compute_{a}"),
        }
    }
}

/// Options of every compilation, besides the target. No fast math.
const OPTIONS: [&str; 3] = ["--std=c++17", "-default-device", "--generate-line-info"];

/// The loaded compiler.
#[derive(Debug)]
pub(super) struct Nvrtc {
    table: NvrtcTable,
    error_string: unsafe extern "C" fn(u32) -> *const c_char,
    version: (c_int, c_int),
    archs: Vec<u32>,
}

/// NVRTC, opened once per process; `driver_major` is preferred among several versions.
pub(super) fn nvrtc(driver_major: u32) -> Result<&'static Nvrtc, Unavailable> {
    static NVRTC: OnceLock<Result<Nvrtc, Unavailable>> = OnceLock::new();
    NVRTC.get_or_init(|| open(driver_major)).as_ref().map_err(Clone::clone)
}

fn open(driver_major: u32) -> Result<Nvrtc, Unavailable> {
    let windows = ["nvrtc64_130_0.dll", "nvrtc64_120_0.dll", "nvrtc64_112_0.dll"];
    let lib: DynLib =
        toolkit_library(VAR, "nvrtc", &windows, "cuda_nvrtc", driver_major).map_err(|e| match e {
            Unavailable::LibraryNotFound { tried, var } => Unavailable::CompilerNotFound { tried, var },
            other => other,
        })?;
    let table = NvrtcTable::resolve(&lib)?;
    // SAFETY: prototype of nvrtcGetErrorString with the enum as the number that it is.
    let error_string = unsafe { lib.function("nvrtcGetErrorString") }?;
    let mut n = Nvrtc { table, error_string, version: (0, 0), archs: Vec::new() };
    let broken = |e: GpuError| Unavailable::SelfTestFailed { what: format!("{}: {e}", lib.name) };
    let (mut major, mut minor, mut count) = (0, 0, 0);
    // SAFETY: each call writes the ints it is given, the last one `count` of them.
    unsafe {
        n.check("nvrtcVersion", (n.table.nvrtcVersion)(&mut major, &mut minor)).map_err(broken)?;
        n.check("nvrtcGetNumSupportedArchs", (n.table.nvrtcGetNumSupportedArchs)(&mut count))
            .map_err(broken)?;
        let mut archs = vec![0; count.max(0) as usize];
        n.check("nvrtcGetSupportedArchs", (n.table.nvrtcGetSupportedArchs)(archs.as_mut_ptr()))
            .map_err(broken)?;
        n.archs = archs.into_iter().map(|a| a as u32).collect();
    }
    n.version = (major, minor);
    Ok(n)
}

/// A program that is destroyed when it goes out of scope.
struct Program<'a> {
    n: &'a Nvrtc,
    raw: nv::nvrtcProgram,
}

impl Drop for Program<'_> {
    fn drop(&mut self) {
        // SAFETY: this is the only owner.
        unsafe { (self.n.table.nvrtcDestroyProgram)(&mut self.raw) };
    }
}

type SizeFn = unsafe extern "C" fn(nv::nvrtcProgram, *mut usize) -> u32;
type DataFn = unsafe extern "C" fn(nv::nvrtcProgram, *mut c_char) -> u32;

impl Program<'_> {
    fn output(&self, call: &'static str, size: SizeFn, data: DataFn) -> Result<Vec<u8>> {
        let mut bytes = 0;
        // SAFETY: the program is live; the second call writes as many bytes as the first announced.
        unsafe {
            self.n.check(call, size(self.raw, &mut bytes))?;
            let mut out = vec![0u8; bytes];
            if bytes > 0 {
                self.n.check(call, data(self.raw, out.as_mut_ptr().cast()))?;
            }
            Ok(out)
        }
    }
}

impl Nvrtc {
    fn check(&self, call: &'static str, code: u32) -> Result<()> {
        if code == 0 {
            return Ok(());
        }
        // SAFETY: the function answers with a static string for every number.
        let name = unsafe {
            let p = (self.error_string)(code);
            if p.is_null() { "unknown NVRTC error".into() } else { CStr::from_ptr(p).to_string_lossy() }
        };
        Err(GpuError::driver(call, code.into(), name))
    }

    /// Name, version and options, for cache keys.
    pub(super) fn id(&self, target: &Target) -> String {
        format!(
            "nvrtc {}.{} {} {}",
            self.version.0,
            self.version.1,
            target.option(self.version.0),
            OPTIONS.join(" ")
        )
    }

    /// Whether kernels that are compiled for a target have groups of warps that multiply together.
    pub(super) fn has_warp_groups(&self, target: &Target) -> bool {
        target.has_warp_groups(self.version.0)
    }

    /// What to compile for a device; the reason if this compiler is of no use for it.
    pub(super) fn target(&self, device: u32) -> Result<Target, Unavailable> {
        Target::choose(device, &self.archs).ok_or_else(|| Unavailable::CompilerNotFound {
            tried: vec![format!(
                "NVRTC {}.{}, which does not know sm_{device}",
                self.version.0, self.version.1
            )],
            var: VAR,
        })
    }

    /// Compiles a unit to machine code, or to NUL-terminated PTX.
    pub(super) fn compile(&self, unit: &CompileUnit<'_>, target: &Target) -> Result<Vec<u8>> {
        let c = |s: &str| {
            CString::new(s)
                .map_err(|_| GpuError::driver("nvrtcCreateProgram", 0, "a NUL character in the text"))
        };
        let (source, name) = (c(unit.source)?, c(unit.name)?);
        let fixed = OPTIONS.iter().map(|s| s.to_string());
        let options = [target.option(self.version.0)]
            .into_iter()
            .chain(fixed)
            .chain(unit.options.iter().cloned())
            .map(|s| c(&s))
            .collect::<Result<Vec<_>>>()?;
        let options: Vec<*const c_char> = options.iter().map(|s| s.as_ptr()).collect();
        let t = &self.table;
        let mut p = Program { n: self, raw: ptr::null_mut() };
        // SAFETY: all strings are terminated and outlive the calls; no headers are given.
        let status = unsafe {
            let code = (t.nvrtcCreateProgram)(
                &mut p.raw,
                source.as_ptr(),
                name.as_ptr(),
                0,
                ptr::null(),
                ptr::null(),
            );
            self.check("nvrtcCreateProgram", code)?;
            (t.nvrtcCompileProgram)(p.raw, options.len() as c_int, options.as_ptr())
        };
        if status != 0 {
            let log = p
                .output("nvrtcGetProgramLog", t.nvrtcGetProgramLogSize, t.nvrtcGetProgramLog)
                .unwrap_or_default();
            let log = String::from_utf8_lossy(&log).trim_end_matches('\0').trim().to_string();
            if log.is_empty() {
                self.check("nvrtcCompileProgram", status)?;
            }
            return Err(GpuError::compile(unit.name, target.option(self.version.0), log));
        }
        match target {
            Target::Cubin(_) => p.output("nvrtcGetCUBIN", t.nvrtcGetCUBINSize, t.nvrtcGetCUBIN),
            Target::Ptx(_) => p.output("nvrtcGetPTX", t.nvrtcGetPTXSize, t.nvrtcGetPTX),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets() {
        let known = [75, 80, 86, 90, 100];
        assert_eq!(Target::choose(90, &known), Some(Target::Cubin(90)));
        assert_eq!(Target::choose(89, &known), Some(Target::Ptx(86)));
        assert_eq!(Target::choose(120, &known), Some(Target::Ptx(100)));
        assert_eq!(Target::choose(70, &known), None);
    }

    /// Needs NVRTC but no GPU.
    #[test]
    fn compiles_machine_code_and_text() {
        let n = match nvrtc(12) {
            Ok(n) => n,
            Err(e) => {
                eprintln!("skipped: {e}");
                return;
            }
        };
        let unit = |source| CompileUnit { name: "test.cu", source, options: &[] };
        let good = "extern \"C\" __global__ void f(float *x) { x[threadIdx.x] *= 2.f; }";
        let cubin = n.compile(&unit(good), &Target::Cubin(90)).unwrap();
        assert_eq!(&cubin[..4], b"\x7fELF");
        let ptx = n.compile(&unit(good), &Target::Ptx(80)).unwrap();
        assert!(ptx.ends_with(b"\0") && String::from_utf8_lossy(&ptx).contains(".target sm_80"));
        match n.compile(&unit("#line 7 \"some/file.c\"\nvoid f() { nonsense(); }"), &Target::Cubin(90)) {
            Err(GpuError::Compile(c)) => assert!(c.log.contains("some/file.c(7)"), "{}", c.log),
            other => panic!("{other:?}"),
        }
        assert!(n.id(&Target::Cubin(90)).contains("sm_90"));
        assert!(matches!(n.target(1), Err(Unavailable::CompilerNotFound { .. })));
    }
}
