//! hiprtc on clang: text to shared objects of the host.

use std::ffi::{CStr, c_char, c_int};
use std::path::PathBuf;
use std::process::Command;
use std::ptr;
use std::sync::OnceLock;

use hip_sys::{
    HIPRTC_ERROR_COMPILATION, HIPRTC_ERROR_INTERNAL_ERROR, HIPRTC_ERROR_INVALID_INPUT, HIPRTC_SUCCESS,
    hiprtcProgram, hiprtcResult,
};

use crate::device::answer;
use crate::unit::seal;

/// What precedes every unit.
pub(crate) const DEVICE: &str = include_str!("device.h");
/// The compiler by name. The first is the one that Debian's PoCL brings.
const NAMES: [&str; 3] = ["clang-15", "clang", "clang-16"];
const FLAGS: &[&str] = &[
    "-O1",
    "-fPIC",
    "-shared",
    "-nostdinc++",
    "-nostdlib++",
    "-fno-math-errno",
    "-ffp-contract=off",
    "-fvisibility=hidden",
    "-w",
];
/// Kernels end the process at the first finding.
const SANITIZERS: &[&str] = &[
    "-fsanitize=address,undefined",
    "-fno-sanitize=vptr,function",
    "-fno-sanitize-recover=all",
    "-fsanitize-address-use-after-return=never",
    "-shared-libsan",
    "-gline-tables-only",
];
/// Static memory in which `__shared__` variables lie. A name with a dot, since AddressSanitizer leaves sections alone that could be a C name.
pub(crate) const SHARED_SECTION: &str = ".host_shared";
/// Dynamic shared memory, of the size that a device has at most.
const DYNAMIC: &str = "char host_dynamic[65536]";

/// Whether units are compiled with sanitizers.
pub(crate) fn sanitizes() -> bool {
    std::env::var_os("TREFOIL_HIP_ON_CPU_SANITIZE").is_some_and(|v| v == "1")
}

/// The compiler's name and its major version; `None` where none of the names answers.
fn clang() -> Option<&'static (&'static str, c_int)> {
    static FOUND: OnceLock<Option<(&str, c_int)>> = OnceLock::new();
    let version = |name: &str| -> Option<c_int> {
        let out = Command::new(name).env_remove("LD_PRELOAD").arg("-dumpversion").output().ok()?;
        String::from_utf8_lossy(&out.stdout).split('.').next()?.trim().parse().ok()
    };
    FOUND.get_or_init(|| NAMES.iter().find_map(|name| Some((*name, version(name)?)))).as_ref()
}

/// A kernel of a preprocessed text: its name, and the bound of its block as the text states it.
#[derive(Debug, PartialEq)]
struct Kernel<'a> {
    name: &'a str,
    bound: &'a str,
}

/// The kernel whose head stands behind its `HOST_KERNEL`.
fn kernel(rest: &str) -> Option<Kernel<'_>> {
    let head = &rest[..rest.find('{').unwrap_or(rest.len())];
    let (bound, head) = match head.split_once("HOST_BOUNDS(").and_then(|(_, b)| split_at_end(b)) {
        Some((bound, tail)) => (bound.trim(), tail),
        None => ("1024", head.trim_start().strip_prefix("void")?),
    };
    let name = head.trim_start();
    let end = name.find(|c: char| !c.is_ascii_alphanumeric() && c != '_')?;
    Some(Kernel { name: &name[..end], bound })
}

/// What stands before the parenthesis that ends a list, which may have others within, and behind it.
fn split_at_end(list: &str) -> Option<(&str, &str)> {
    let mut open = 1;
    let end = list.find(|c| {
        open += i32::from(c == '(') - i32::from(c == ')');
        open == 0
    })?;
    Some((&list[..end], &list[end + 1..]))
}

/// The kernels of a preprocessed text: `HOST_KERNEL void HOST_BOUNDS(256) name(`, with or without the bound.
fn kernels(text: &str) -> Vec<Kernel<'_>> {
    text.split("HOST_KERNEL").skip(1).filter_map(kernel).collect()
}

/// What a kernel exports: a function that calls it with the addresses of its arguments, and the bound of its block.
fn export(kernel: &Kernel<'_>) -> String {
    let visible = "extern \"C\" __attribute__((visibility(\"default\")))";
    let Kernel { name, bound } = kernel;
    format!(
        "{visible} void host_call_{name}(void** arguments) {{ host_call({name}, arguments); }}\n\
         {visible} const int host_bound_{name} = {bound};\n"
    )
}

/// The preprocessed text as C++ of the host.
fn rewritten(text: &str) -> String {
    let exports: String = kernels(text).iter().map(export).collect();
    let mut out =
        format!("__attribute__((section(\"{SHARED_SECTION}.dynamic\"), aligned(1024))) {DYNAMIC};\n");
    let mut rest = text;
    // Dynamic shared memory: an array without a size that is declared extern, under any name.
    while let Some(at) = rest.find("extern HOST_SHARED") {
        out.push_str(&rest[..at]);
        let declared = &rest[at + "extern HOST_SHARED".len()..];
        let end = declared.find(';').unwrap_or(declared.len());
        out.push_str(&format!("extern {} __asm__(\"host_dynamic\")", &declared[..end]));
        rest = &declared[end..];
    }
    out.push_str(rest);
    let shared = format!("static __attribute__((section(\"{SHARED_SECTION}\")))");
    let text = out.replace("HOST_SHARED", &shared).replace("HOST_KERNEL", "");
    format!("#define HOST_BOUNDS(threads)\n{text}\n{exports}")
}

/// A program of hiprtc.
#[derive(Debug)]
struct Program {
    source: String,
    log: Vec<u8>,
    code: Vec<u8>,
}

impl Program {
    /// Compiles with options of hiprtc's. Errors: the compiler's log.
    fn compile(&self, options: &[String]) -> Result<Vec<u8>, String> {
        let (clang, _) = clang().ok_or(format!("no compiler found (tried {})", NAMES.join(", ")))?;
        let words = |e: std::io::Error| e.to_string();
        let dir = tempfile::tempdir().map_err(words)?;
        let run = |text: &str, args: &[&str], from: &str, to: &str| -> Result<PathBuf, String> {
            let (from, to) = (dir.path().join(from), dir.path().join(to));
            std::fs::write(&from, text).map_err(words)?;
            // The architecture is not the host's, but the text asks for it.
            let given = options.iter().map(|o| match o.strip_prefix("--gpu-architecture=") {
                Some(arch) => format!("-D__{}__=1", arch.split(':').next().unwrap_or_default()),
                None => o.clone(),
            });
            let out = Command::new(clang)
                // A sanitizer's runtime is for this process.
                .env_remove("LD_PRELOAD")
                .args(["-x", "c++"])
                .args(given)
                .args(args)
                .arg(&from)
                .arg("-o")
                .arg(&to)
                .output()
                .map_err(words)?;
            let log = || String::from_utf8_lossy(&out.stderr).into_owned();
            if out.status.success() { Ok(to) } else { Err(log()) }
        };
        let text = format!("{DEVICE}{}", self.source);
        let expanded = run(&text, &["-E", "-w", "-nostdinc++"], "unit.hip", "unit.ii")?;
        let text = rewritten(&std::fs::read_to_string(expanded).map_err(words)?);
        let sanitizers = if sanitizes() { SANITIZERS } else { &[] };
        let object = run(&text, &[FLAGS, sanitizers].concat(), "unit.cpp", "unit.so")?;
        std::fs::read(object).map(|bytes| seal(&bytes)).map_err(words)
    }
}

/// The program of a handle.
///
/// # Safety
/// The handle is null, or of `hiprtcCreateProgram` and not destroyed.
unsafe fn program<'a>(handle: hiprtcProgram) -> Option<&'a mut Program> {
    // SAFETY: the caller vouches for the handle.
    unsafe { handle.cast::<Program>().as_mut() }
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn hiprtcGetErrorString(result: hiprtcResult) -> *const c_char {
    let text = match result {
        HIPRTC_SUCCESS => c"HIPRTC_SUCCESS",
        HIPRTC_ERROR_INVALID_INPUT => c"HIPRTC_ERROR_INVALID_INPUT",
        HIPRTC_ERROR_COMPILATION => c"HIPRTC_ERROR_COMPILATION",
        _ if clang().is_none() => c"clang was not found",
        _ => c"HIPRTC_ERROR_INTERNAL_ERROR",
    };
    text.as_ptr()
}

/// # Safety
/// As in AMD's documentation; so for all functions below.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn hiprtcVersion(major: *mut c_int, minor: *mut c_int) -> hiprtcResult {
    let Some((_, version)) = clang() else { return HIPRTC_ERROR_INTERNAL_ERROR };
    // SAFETY: the caller vouches for the places.
    let answers = unsafe { [answer(major, *version), answer(minor, c_int::from(sanitizes()))] };
    if answers == [0, 0] { HIPRTC_SUCCESS } else { HIPRTC_ERROR_INVALID_INPUT }
}

/// # Safety
/// See `hiprtcVersion`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn hiprtcCreateProgram(
    program: *mut hiprtcProgram,
    source: *const c_char,
    _name: *const c_char,
    num_headers: c_int,
    _headers: *mut *const c_char,
    _include_names: *mut *const c_char,
) -> hiprtcResult {
    // Nobody here passes headers.
    if program.is_null() || source.is_null() || num_headers != 0 {
        return HIPRTC_ERROR_INVALID_INPUT;
    }
    // SAFETY: not null, and the caller vouches for the text and the place.
    unsafe {
        let source = CStr::from_ptr(source).to_string_lossy().into_owned();
        let made = Box::new(Program { source, log: vec![0], code: vec![] });
        program.write(Box::into_raw(made).cast());
    }
    HIPRTC_SUCCESS
}

/// # Safety
/// See `hiprtcVersion`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn hiprtcCompileProgram(
    handle: hiprtcProgram,
    num_options: c_int,
    options: *mut *const c_char,
) -> hiprtcResult {
    let count = usize::try_from(num_options).unwrap_or(0);
    // SAFETY: the caller vouches for the handle.
    let Some(program) = (unsafe { program(handle) }) else { return HIPRTC_ERROR_INVALID_INPUT };
    if count > 0 && options.is_null() {
        return HIPRTC_ERROR_INVALID_INPUT;
    }
    // SAFETY: not null where there are options, and the caller vouches for their number and texts.
    let option = |i| unsafe { CStr::from_ptr(*options.add(i)) }.to_string_lossy().into_owned();
    match program.compile(&(0..count).map(option).collect::<Vec<_>>()) {
        Ok(code) => {
            program.code = code;
            HIPRTC_SUCCESS
        }
        Err(mut log) => {
            log.push('\0');
            program.log = log.into_bytes();
            HIPRTC_ERROR_COMPILATION
        }
    }
}

/// Functions that answer the size of a text or write it.
macro_rules! results {
    ($( $size:ident, $write:ident: $field:ident; )*) => {$(
        /// # Safety
        /// See `hiprtcVersion`.
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C" fn $size(handle: hiprtcProgram, bytes: *mut usize) -> hiprtcResult {
            // SAFETY: the caller vouches for handle and place.
            match unsafe { program(handle).map(|p| answer(bytes, p.$field.len())) } {
                Some(0) => HIPRTC_SUCCESS,
                _ => HIPRTC_ERROR_INVALID_INPUT,
            }
        }

        /// # Safety
        /// See `hiprtcVersion`; `place` has the room that the size function answers.
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C" fn $write(handle: hiprtcProgram, place: *mut c_char) -> hiprtcResult {
            // SAFETY: the caller vouches for handle and place.
            match unsafe { program(handle) } {
                Some(p) if !place.is_null() => {
                    // SAFETY: as above.
                    unsafe { ptr::copy_nonoverlapping(p.$field.as_ptr(), place.cast::<u8>(), p.$field.len()) };
                    HIPRTC_SUCCESS
                }
                _ => HIPRTC_ERROR_INVALID_INPUT,
            }
        }
    )*};
}

results! {
    hiprtcGetProgramLogSize, hiprtcGetProgramLog: log;
    hiprtcGetCodeSize, hiprtcGetCode: code;
}

/// # Safety
/// See `hiprtcVersion`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn hiprtcDestroyProgram(program: *mut hiprtcProgram) -> hiprtcResult {
    if program.is_null() {
        return HIPRTC_ERROR_INVALID_INPUT;
    }
    // SAFETY: not null, and the caller vouches that a handle there is of `hiprtcCreateProgram`.
    unsafe {
        let handle = program.replace(ptr::null_mut()).cast::<Program>();
        if !handle.is_null() {
            drop(Box::from_raw(handle));
        }
    }
    HIPRTC_SUCCESS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_are_found_with_their_bounds() {
        let text = "extern \"C\" HOST_KERNEL void HOST_BOUNDS(256) one(int x) {}\nextern \"C\" HOST_KERNEL void two(float* y) {}";
        let kernel = |name, bound| Kernel { name, bound };
        assert_eq!(kernels(text), [kernel("one", "256"), kernel("two", "1024")]);
        assert_eq!(
            kernels("HOST_KERNEL void HOST_BOUNDS((2 * 64)) three() {}"),
            [kernel("three", "(2 * 64)")]
        );
    }

    #[test]
    fn shared_memory_is_static_and_dynamic_memory_is_one_array() {
        let text = rewritten("HOST_SHARED float a[4]; extern HOST_SHARED alignas(16) float b[];");
        assert!(text.contains("section(\".host_shared\"))) float a[4]"), "{text}");
        assert!(text.contains("extern  alignas(16) float b[] __asm__(\"host_dynamic\");"), "{text}");
    }
}
