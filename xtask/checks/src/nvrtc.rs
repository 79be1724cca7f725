//! NVRTC without a GPU: found on this machine or in Python's packages, used for any architecture that it knows.

use std::ffi::{CString, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::ptr;

use libloading::Library;

type Program = *mut c_void;

/// An open NVRTC.
#[derive(Debug)]
pub(crate) struct Nvrtc {
    library: Library,
    /// Where it was found.
    pub(crate) path: String,
}

/// A call by name. NVRTC's functions all return a status, 0 for success.
macro_rules! call {
    ($self:ident, $name:ident($($arg:expr => $ty:ty),*)) => {{
        let symbol = stringify!($name);
        // SAFETY: the types are those of NVIDIA's header for this function, and all places and texts are alive during the call.
        unsafe {
            match $self.library.get::<unsafe extern "C" fn($($ty),*) -> c_int>(symbol) {
                Ok(f) => match f($($arg),*) {
                    0 => Ok(()),
                    status => Err(format!("{symbol} answers {status}")),
                },
                Err(e) => Err(e.to_string()),
            }
        }
    }};
}

impl Nvrtc {
    /// Opens what `TREFOIL_NVRTC_LIB` names, else the usual names, else what Python's packages hold.
    pub(crate) fn open() -> Result<Nvrtc, String> {
        let named = std::env::var_os("TREFOIL_NVRTC_LIB").filter(|v| !v.is_empty()).map(PathBuf::from);
        let candidates = match named {
            Some(path) => vec![path],
            None => {
                let usual = [
                    "libnvrtc.so.13",
                    "libnvrtc.so.12",
                    "libnvrtc.so.11.2",
                    "nvrtc64_130_0.dll",
                    "nvrtc64_120_0.dll",
                ];
                usual.iter().map(PathBuf::from).chain(in_python_packages()).collect()
            }
        };
        let mut last = String::new();
        for path in &candidates {
            // SAFETY: NVRTC by its names, or what the user named.
            match unsafe { Library::new(path) } {
                Ok(library) => return Ok(Nvrtc { library, path: path.display().to_string() }),
                Err(e) => last = std::error::Error::source(&e).map_or(e.to_string(), ToString::to_string),
            }
        }
        let tried: Vec<String> = candidates.iter().map(|p| p.display().to_string()).collect();
        Err(format!("NVRTC was not found (tried {}; {last}); TREFOIL_NVRTC_LIB names it", tried.join(", ")))
    }

    /// Major and minor version.
    pub(crate) fn version(&self) -> Result<(c_int, c_int), String> {
        let (mut major, mut minor) = (0, 0);
        call!(self, nvrtcVersion(&mut major => *mut c_int, &mut minor => *mut c_int)).map(|()| (major, minor))
    }

    /// Compute capabilities as numbers (90 for 9.0), ascending.
    pub(crate) fn architectures(&self) -> Result<Vec<c_int>, String> {
        let mut count = 0;
        call!(self, nvrtcGetNumSupportedArchs(&mut count => *mut c_int))?;
        let mut archs = vec![0; usize::try_from(count).unwrap_or(0)];
        call!(self, nvrtcGetSupportedArchs(archs.as_mut_ptr() => *mut c_int))?;
        archs.sort_unstable();
        Ok(archs)
    }

    /// Compiles to a CUBIN; the error is the log.
    pub(crate) fn compile(&self, name: &str, source: &str, options: &[String]) -> Result<usize, String> {
        let text = |s: &str| CString::new(s).map_err(|e| e.to_string());
        let (name, source) = (text(name)?, text(source)?);
        let options = options.iter().map(|o| text(o)).collect::<Result<Vec<_>, _>>()?;
        let options: Vec<*const c_char> = options.iter().map(|o| o.as_ptr()).collect();
        let mut program: Program = ptr::null_mut();
        let none: *const *const c_char = ptr::null();
        call!(self, nvrtcCreateProgram(
            &mut program => *mut Program, source.as_ptr() => *const c_char, name.as_ptr() => *const c_char, 0 => c_int,
            none => *const *const c_char, none => *const *const c_char
        ))?;
        let outcome = self.compile_program(program, &options);
        call!(self, nvrtcDestroyProgram(&mut program => *mut Program))?;
        outcome
    }

    /// Fails, too, where matrix products of warp groups were serialized: that costs half of their speed, and only the log says so.
    fn compile_program(&self, program: Program, options: &[*const c_char]) -> Result<usize, String> {
        let compiled = call!(self, nvrtcCompileProgram(
            program => Program, options.len() as c_int => c_int, options.as_ptr() => *const *const c_char
        ));
        let log = self.log(program)?;
        compiled.map_err(|status| format!("{status}\n{log}"))?;
        if let Some(line) = log.lines().find(|l| l.contains("instructions are serialized")) {
            return Err(format!("error: {line}"));
        }
        let mut bytes = 0usize;
        call!(self, nvrtcGetCUBINSize(program => Program, &mut bytes => *mut usize))?;
        if bytes == 0 { Err("the compiler gave no code".into()) } else { Ok(bytes) }
    }

    fn log(&self, program: Program) -> Result<String, String> {
        let mut bytes = 0usize;
        call!(self, nvrtcGetProgramLogSize(program => Program, &mut bytes => *mut usize))?;
        let mut log = vec![0u8; bytes + 1];
        call!(self, nvrtcGetProgramLog(program => Program, log.as_mut_ptr().cast() => *mut c_char))?;
        let log = log.split(|&b| b == 0).next().unwrap_or_default();
        Ok(String::from_utf8_lossy(log).trim_end().into())
    }
}

/// `libnvrtc.so.*` below `nvidia/` in the folders where Python looks for packages, newest name first.
fn in_python_packages() -> Vec<PathBuf> {
    let script = "import sys; print('\\n'.join(sys.path))";
    let pythons = std::env::var_os("VIRTUAL_ENV").map(|v| Path::new(&v).join("bin/python3"));
    let mut found = Vec::new();
    for python in pythons.into_iter().chain([PathBuf::from("python3")]) {
        let Ok(out) = Command::new(python).args(["-c", script]).output() else { continue };
        for folder in String::from_utf8_lossy(&out.stdout).lines().filter(|l| !l.is_empty()) {
            let entries = |p: PathBuf| std::fs::read_dir(p).into_iter().flatten().flatten().map(|e| e.path());
            let libraries = entries(Path::new(folder).join("nvidia")).flat_map(|p| entries(p.join("lib")));
            found.extend(
                libraries.filter(|p| {
                    p.file_name().is_some_and(|n| n.to_string_lossy().starts_with("libnvrtc.so"))
                }),
            );
        }
    }
    found.sort_by(|a, b| b.file_name().cmp(&a.file_name()));
    found
}
