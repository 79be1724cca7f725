//! The system's C++ compiler: units become shared objects, which are this driver's images.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};

use trefoil::driver::CompileUnit;
use trefoil::{GpuError, Result};

/// The compiler's flags.
const FLAGS: &[&str] =
    &["-std=c++17", "-O1", "-fPIC", "-shared", "-fno-strict-aliasing", "-ffp-contract=off", "-w"];
/// What the dialect and the code behind a unit use of the system.
const HEADERS: &[&str] = &["math.h", "stdlib.h", "ucontext.h", "utility"];
const RUNTIME: &str = include_str!("runtime.cpp");

/// A folder that is removed with its contents at the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> std::io::Result<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let name = format!("trefoil-host-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let dir = std::env::temp_dir().join(name);
        std::fs::create_dir(&dir)?;
        Ok(Scratch(dir))
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What cannot be removed is the system's to clean up.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn refused(call: &'static str) -> impl Fn(std::io::Error) -> GpuError {
    move |e| GpuError::driver(call, e.raw_os_error().unwrap_or(0).into(), e.to_string())
}

/// The compiler, by name.
#[derive(Debug)]
pub(crate) struct Compiler {
    program: String,
    version: String,
}

impl Compiler {
    /// `$CXX` or `c++`. Errors: the names that were tried.
    pub(crate) fn find() -> std::result::Result<Self, Vec<String>> {
        let program = std::env::var("CXX").unwrap_or_else(|_| "c++".into());
        match Command::new(&program).arg("--version").output() {
            Ok(out) if out.status.success() => {
                let version =
                    String::from_utf8_lossy(&out.stdout).lines().next().unwrap_or_default().to_string();
                Ok(Compiler { program, version })
            }
            _ => Err(vec![program]),
        }
    }

    /// Its version and the flags: what images depend on beside the text.
    pub(crate) fn id(&self) -> String {
        format!("{} {}; {RUNTIME}", self.version, FLAGS.join(" "))
    }

    /// Runs it on a text; its output file, or the log.
    fn run(
        &self,
        dir: &Scratch,
        text: &str,
        args: &[&str],
        out: &str,
    ) -> Result<std::result::Result<PathBuf, String>> {
        let (source, out) = (dir.file("unit.cpp"), dir.file(out));
        std::fs::write(&source, text).map_err(refused("write"))?;
        let mut command = Command::new(&self.program);
        command
            .args(HEADERS.iter().flat_map(|h| ["-include", h]))
            .args(args)
            .arg("-o")
            .arg(&out)
            .arg(&source);
        let done = command.output().map_err(refused("exec"))?;
        let log = String::from_utf8_lossy(&done.stderr);
        Ok(if done.status.success() { Ok(out) } else { Err(log.into_owned()) })
    }

    /// A shared object with a function `gk_launch_NAME` per kernel.
    pub(crate) fn compile(&self, unit: &CompileUnit<'_>, arch: &str) -> Result<Vec<u8>> {
        let failed = |log: String| GpuError::compile(unit.name, arch, log);
        let dir = Scratch::new().map_err(refused("mkdir"))?;
        let expanded =
            self.run(&dir, unit.source, &["-std=c++17", "-E", "-w"], "unit.ii")?.map_err(failed)?;
        let expanded = std::fs::read_to_string(expanded).map_err(refused("read"))?;
        let exports: String = kernels(&expanded).map(|name| format!("HOST_EXPORT({name})\n")).collect();
        let text = format!("#define GK_ENTRY extern \"C\"\n#line 1\n{}\n{RUNTIME}{exports}", unit.source);
        let object = self.run(&dir, &text, FLAGS, "unit.so")?.map_err(failed)?;
        std::fs::read(object).map_err(refused("read"))
    }
}

/// Names of the kernels in a text whose macros are expanded, all but `GK_ENTRY`.
fn kernels(expanded: &str) -> impl Iterator<Item = &str> {
    expanded.split("GK_ENTRY void ").skip(1).map(|rest| {
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
        &rest[..end]
    })
}

/// Opens an image.
///
/// # Safety
/// The image is a shared object that [`Compiler::compile`] made.
pub(crate) unsafe fn open(image: &[u8]) -> Result<libloading::Library> {
    let dir = Scratch::new().map_err(refused("mkdir"))?;
    let path: &Path = &dir.file("unit.so");
    std::fs::write(path, image).map_err(refused("write"))?;
    // SAFETY: the object has no initialisers beyond those of the C library.
    unsafe { libloading::Library::new(path) }.map_err(|e| GpuError::driver("dlopen", 0, e.to_string()))
}
