//! The run-time compiler.

use std::ffi::{OsStr, c_char, c_int};

use crate::consts::*;
use crate::load::{HIPRTC_LIB_VAR, LoadError, Opened, function_table, open_first, override_of, rtc_names};
use crate::runtime::{Hip, text};

/// hiprtc: an open library and its functions.
#[derive(Debug, Clone)]
pub struct Hiprtc {
    opened: Opened,
    functions: HiprtcFunctions,
}

function_table! {
    /// Addresses of the functions of hiprtc.
    table HiprtcFunctions;
    owner Hiprtc;

    /// Version of the compiler.
    fn hiprtcVersion(major: *mut c_int, minor: *mut c_int) -> hiprtcResult;
    /// A status in words; static text.
    fn hiprtcGetErrorString(result: hiprtcResult) -> *const c_char;
    /// A program from text; headers are given as two arrays of `num_headers` texts and names.
    fn hiprtcCreateProgram(program: *mut hiprtcProgram, source: *const c_char, name: *const c_char, num_headers: c_int, headers: *mut *const c_char, include_names: *mut *const c_char) -> hiprtcResult;
    /// Compiles a program.
    fn hiprtcCompileProgram(program: hiprtcProgram, num_options: c_int, options: *mut *const c_char) -> hiprtcResult;
    /// Bytes of the log with its closing zero.
    fn hiprtcGetProgramLogSize(program: hiprtcProgram, bytes: *mut usize) -> hiprtcResult;
    /// Writes the log.
    fn hiprtcGetProgramLog(program: hiprtcProgram, log: *mut c_char) -> hiprtcResult;
    /// Bytes of the code object.
    fn hiprtcGetCodeSize(program: hiprtcProgram, bytes: *mut usize) -> hiprtcResult;
    /// Writes the code object.
    fn hiprtcGetCode(program: hiprtcProgram, code: *mut c_char) -> hiprtcResult;
    /// Destroys a program and sets the handle to null.
    fn hiprtcDestroyProgram(program: *mut hiprtcProgram) -> hiprtcResult;
}

impl Hiprtc {
    /// Opens the compiler that `TREFOIL_HIPRTC_LIB` names. Without that: where the user has named the runtime, its own compiler
    /// functions if it has them; then the usual names, those of the runtime's generation first; then the runtime itself, which held the
    /// compiler up to ROCm 6.
    ///
    /// # Errors
    /// What was tried, or the function that is missing.
    pub fn load(runtime: Option<&Hip>) -> Result<Hiprtc, LoadError> {
        if let Some(path) = override_of(HIPRTC_LIB_VAR) {
            return Self::load_from(&path);
        }
        if let Some(own) = runtime.filter(|r| r.named()).and_then(|r| Self::read(r.opened.clone()).ok()) {
            return Ok(own);
        }
        match (open_first(rtc_names(runtime.map_or("", |r| r.library())), HIPRTC_LIB_VAR), runtime) {
            (Ok(opened), _) => Self::read(opened),
            (Err(missing), Some(r)) => Self::read(r.opened.clone()).map_err(|_| missing),
            (Err(missing), None) => Err(missing),
        }
    }

    /// Opens the compiler of this path or name.
    ///
    /// # Errors
    /// As [`Hiprtc::load`].
    pub fn load_from(path: impl AsRef<OsStr>) -> Result<Hiprtc, LoadError> {
        Self::read(open_first([path.as_ref()], HIPRTC_LIB_VAR)?)
    }

    fn read(opened: Opened) -> Result<Hiprtc, LoadError> {
        // SAFETY: the library is hiprtc or a HIP runtime by name or by the user's word.
        let functions = unsafe { HiprtcFunctions::read(&opened)? };
        Ok(Hiprtc { opened, functions })
    }

    /// Name or path under which the library was opened.
    pub fn library(&self) -> &str {
        &self.opened.name
    }

    /// A status in words.
    pub fn error_string(&self, result: hiprtcResult) -> String {
        // SAFETY: any number may be asked for; the answer is static text or null.
        unsafe { text(self.hiprtcGetErrorString(result)) }
            .unwrap_or_else(|| format!("hiprtc status {result}"))
    }
}
