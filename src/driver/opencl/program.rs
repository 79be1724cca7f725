//! Compiling and loading OpenCL programs.

use std::ffi::CString;
use std::ptr;

use opencl3::error_codes::error_text;
use opencl3::program as prog;
use opencl3::types::{cl_int, cl_program};

use super::{OpenClDriver, failure, lock};
use crate::driver::CompileUnit;
use crate::error::{GpuError, Result};

const BUILD_PROGRAM_FAILURE: cl_int = -11;

/// A program that is released when it goes out of scope.
struct Program(cl_program);

impl Program {
    /// Hands the program over to the caller.
    fn into_raw(self) -> cl_program {
        std::mem::ManuallyDrop::new(self).0
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: this is the only owner.
        let _ = unsafe { prog::release_program(self.0) };
    }
}

/// Text without an inner NUL, as C wants it.
pub(super) fn c_string(call: &'static str, s: &str) -> Result<CString> {
    CString::new(s).map_err(|_| GpuError::driver(call, 0, format!("a NUL character in {s:?}")))
}

fn build(d: &OpenClDriver, p: &Program, unit: &str, options: &str) -> Result<()> {
    let options = c_string("clBuildProgram", options)?;
    match prog::build_program(p.0, &[d.device as _], &options, None, ptr::null_mut()) {
        Ok(()) => Ok(()),
        Err(code) => {
            let log = prog::get_program_build_data(p.0, d.device as _, prog::CL_PROGRAM_BUILD_LOG)
                .map(|b| String::from_utf8_lossy(&b).trim_end_matches('\0').trim().to_string())
                .unwrap_or_default();
            if log.is_empty() && code != BUILD_PROGRAM_FAILURE {
                return Err(failure("clBuildProgram", code));
            }
            Err(GpuError::compile(unit, &d.caps.arch, format!("{}\n{log}", error_text(code))))
        }
    }
}

/// Begins an image that is text instead of a binary.
const TEXT_TAG: &[u8] = b"OpenCL C\0";

/// The image of a unit whose text is built again when it is loaded: options, NUL, text.
fn text_image(options: &str, source: &str) -> Vec<u8> {
    [TEXT_TAG, options.as_bytes(), b"\0", source.as_bytes()].concat()
}

/// Options and text of such an image.
fn from_text_image(image: &[u8]) -> Option<(&str, &str)> {
    std::str::from_utf8(image.strip_prefix(TEXT_TAG)?).ok()?.split_once('\0')
}

fn build_text(d: &OpenClDriver, unit: &str, options: &str, source: &str) -> Result<Program> {
    let p = prog::create_program_with_source(d.context as _, &[source])
        .map(Program)
        .map_err(|c| failure("clCreateProgramWithSource", c))?;
    build(d, &p, unit, options)?;
    Ok(p)
}

/// Compiles a unit to the device's binary; on CPUs to a checked text.
///
/// PoCL, asked for a binary, first compiles every kernel of the program for blocks of any size, most of them in vain; left alone, it compiles
/// what is launched, for the block size in use, and keeps that in a cache of its own.
pub(super) fn compile(d: &OpenClDriver, unit: &CompileUnit<'_>) -> Result<Vec<u8>> {
    let mut options = d.options.clone();
    for o in unit.options {
        options.push(' ');
        options.push_str(o);
    }
    let p = build_text(d, unit.name, &options, unit.source)?;
    if d.caps.is_cpu {
        let image = text_image(&options, unit.source);
        // Loading usually comes next, and must not build the same text again.
        if let Some(older) = lock(&d.built).insert(image.clone(), p.into_raw() as u64) {
            drop(Program(older as cl_program));
        }
        return Ok(image);
    }
    // The context has one device, so there is one binary.
    let binaries = prog::get_program_info(p.0, prog::CL_PROGRAM_BINARIES)
        .map_err(|c| failure("clGetProgramInfo", c))?
        .to_vec_vec_uchar();
    match binaries.into_iter().next() {
        Some(b) if !b.is_empty() => Ok(b),
        _ => Err(GpuError::driver("clGetProgramInfo", 0, "the program has no binary")),
    }
}

/// Loads an image made by [`compile`].
pub(super) fn load(d: &OpenClDriver, image: &[u8]) -> Result<cl_program> {
    if let Some(p) = lock(&d.built).remove(image) {
        return Ok(p as cl_program);
    }
    if let Some((options, source)) = from_text_image(image) {
        return Ok(build_text(d, "(cached text)", options, source)?.into_raw());
    }
    // SAFETY: the device belongs to the context; both slices have one element.
    let p = unsafe { prog::create_program_with_binary(d.context as _, &[d.device as _], &[image]) }
        .map(Program)
        .map_err(|c| failure("clCreateProgramWithBinary", c))?;
    build(d, &p, "(program binary)", &d.options)?;
    Ok(p.into_raw())
}
