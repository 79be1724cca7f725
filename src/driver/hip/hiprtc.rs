//! hiprtc: text to code objects.

use std::ffi::{CString, c_char, c_int};
use std::ptr;
use std::sync::{Mutex, OnceLock};

use hip_sys::{HIPRTC_SUCCESS, Hip, Hiprtc, LoadError, hiprtcProgram, hiprtcResult};

use super::lock;
use crate::device::BackendKind;
use crate::driver::CompileUnit;
use crate::error::{GpuError, Result, Unavailable};

/// The run-time compiler.
#[derive(Debug)]
pub(crate) struct Compiler {
    rtc: Hiprtc,
    version: String,
    /// The compiler below hiprtc keeps process-wide state; early releases are not safe to enter from several threads.
    entry: Mutex<()>,
}

/// The compiler, opened once per process.
pub(crate) fn compiler() -> Result<&'static Compiler, Unavailable> {
    static COMPILER: OnceLock<Result<Compiler, Unavailable>> = OnceLock::new();
    COMPILER.get_or_init(Compiler::open).as_ref().map_err(Clone::clone)
}

/// Compiles a unit for an architecture, with or without a device of it.
///
/// # Errors
/// `Unavailable` where there is no hiprtc, `Compile` with the log where the text is refused.
pub fn compile_for(arch: &str, unit: &CompileUnit<'_>) -> Result<Vec<u8>> {
    compiler().map_err(|reason| GpuError::unavailable(BackendKind::Hip, reason))?.compile(arch, unit)
}

/// Name and version of the compiler.
///
/// # Errors
/// Where there is none.
pub fn version() -> Result<String, Unavailable> {
    compiler().map(|c| c.version().to_string())
}

/// What is passed for every unit. The architecture is the full `gcnArchName` with its feature suffixes, or `sm_XY` where HIP runs on CUDA;
/// both compilers take the same spelling.
pub(super) fn options(arch: &str) -> Vec<String> {
    vec![format!("--gpu-architecture={arch}"), "-std=c++17".into()]
}

impl Compiler {
    fn open() -> Result<Compiler, Unavailable> {
        // Not the initialised runtime: text can be compiled without a device.
        let hip = Hip::load().ok();
        let rtc = Hiprtc::load(hip.as_ref()).map_err(|e| match e {
            LoadError::Symbol { library, symbol } => {
                Unavailable::SymbolMissing { library, symbol: symbol.into() }
            }
            LoadError::Library { tried, var } => Unavailable::CompilerNotFound { tried, var },
            other => {
                Unavailable::CompilerNotFound { tried: vec![other.to_string()], var: hip_sys::HIPRTC_LIB_VAR }
            }
        })?;
        let (mut major, mut minor, mut runtime) = (0, 0, 0);
        // SAFETY: the places are valid.
        let status = unsafe { rtc.hiprtcVersion(&mut major, &mut minor) };
        if status != HIPRTC_SUCCESS {
            let tried = vec![format!("{}: {}", rtc.library(), rtc.error_string(status))];
            return Err(Unavailable::CompilerNotFound { tried, var: hip_sys::HIPRTC_LIB_VAR });
        }
        if let Some(hip) = &hip {
            // hiprtc's own number changes less often than what it generates.
            // SAFETY: the place is valid.
            unsafe { hip.hipRuntimeGetVersion(&mut runtime) };
        }
        let version = format!("hiprtc {major}.{minor} of runtime {runtime} ({})", rtc.library());
        Ok(Compiler { rtc, version, entry: Mutex::new(()) })
    }

    /// Name, version and library.
    pub(super) fn version(&self) -> &str {
        &self.version
    }

    /// Compiles a unit for an architecture.
    pub(super) fn compile(&self, arch: &str, unit: &CompileUnit<'_>) -> Result<Vec<u8>> {
        let failed = |log: String| GpuError::compile(unit.name, arch, log);
        let c_text = |s: &str| CString::new(s).map_err(|_| failed("the text holds a zero byte".into()));
        let (source, name) = (c_text(unit.source)?, c_text(unit.name)?);
        let options: Vec<CString> =
            options(arch).iter().chain(unit.options).map(|o| c_text(o)).collect::<Result<_>>()?;
        let mut options: Vec<*const c_char> = options.iter().map(|o| o.as_ptr()).collect();

        let _guard = lock(&self.entry);
        let program =
            Program::new(&self.rtc, &source, &name).map_err(|s| failed(self.rtc.error_string(s)))?;
        // SAFETY: the program is live, the options are zero-terminated and live.
        let status = unsafe {
            self.rtc.hiprtcCompileProgram(program.handle, options.len() as c_int, options.as_mut_ptr())
        };
        if status != HIPRTC_SUCCESS {
            let words = self.rtc.error_string(status);
            return Err(failed(match program.log() {
                Some(log) => format!("{words}\n{log}"),
                None => words,
            }));
        }
        program.code().map_err(|s| failed(self.rtc.error_string(s)))
    }
}

/// A hiprtc program, destroyed when dropped.
struct Program<'a> {
    rtc: &'a Hiprtc,
    handle: hiprtcProgram,
}

impl<'a> Program<'a> {
    fn new(rtc: &'a Hiprtc, source: &CString, name: &CString) -> Result<Self, hiprtcResult> {
        let mut handle = ptr::null_mut();
        // SAFETY: both texts are zero-terminated; no headers are passed.
        let status = unsafe {
            let none = ptr::null_mut();
            rtc.hiprtcCreateProgram(&mut handle, source.as_ptr(), name.as_ptr(), 0, none, none)
        };
        if status == HIPRTC_SUCCESS { Ok(Program { rtc, handle }) } else { Err(status) }
    }

    /// The log, if the compiler has one.
    fn log(&self) -> Option<String> {
        let mut bytes = 0;
        // SAFETY: the place is valid.
        let status = unsafe { self.rtc.hiprtcGetProgramLogSize(self.handle, &mut bytes) };
        if status != HIPRTC_SUCCESS || bytes <= 1 {
            return None;
        }
        let mut log = vec![0u8; bytes + 1];
        // SAFETY: the buffer is larger than the size just given.
        let status = unsafe { self.rtc.hiprtcGetProgramLog(self.handle, log.as_mut_ptr().cast()) };
        let text = log.split(|&b| b == 0).next().unwrap_or_default();
        (status == HIPRTC_SUCCESS).then(|| String::from_utf8_lossy(text).trim_end().to_string())
    }

    fn code(&self) -> Result<Vec<u8>, hiprtcResult> {
        let mut bytes = 0;
        // SAFETY: the place is valid.
        let status = unsafe { self.rtc.hiprtcGetCodeSize(self.handle, &mut bytes) };
        if status != HIPRTC_SUCCESS {
            return Err(status);
        }
        let mut code = vec![0u8; bytes];
        // SAFETY: the buffer has the size just given.
        let status = unsafe { self.rtc.hiprtcGetCode(self.handle, code.as_mut_ptr().cast()) };
        if status == HIPRTC_SUCCESS { Ok(code) } else { Err(status) }
    }
}

impl Drop for Program<'_> {
    fn drop(&mut self) {
        // SAFETY: the handle came from `hiprtcCreateProgram` and is not used again.
        unsafe { self.rtc.hiprtcDestroyProgram(&mut self.handle) };
    }
}
