//! Compiling and loading OpenCL programs.

use std::ffi::CString;
use std::ptr;

use opencl3::error_codes::error_text;
use opencl3::program as prog;
use opencl3::types::{cl_int, cl_program};

use super::{OpenClDriver, failure};
use crate::driver::CompileUnit;
use crate::error::{CompileFailure, GpuError, Result};

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
            Err(GpuError::Compile(Box::new(CompileFailure {
                unit: unit.to_string(),
                arch: d.caps.arch.clone(),
                log: format!("{}\n{log}", error_text(code)),
            })))
        }
    }
}

/// Compiles a unit to the device's binary.
pub(super) fn compile(d: &OpenClDriver, unit: &CompileUnit<'_>) -> Result<Vec<u8>> {
    let p = prog::create_program_with_source(d.context as _, &[unit.source])
        .map(Program)
        .map_err(|c| failure("clCreateProgramWithSource", c))?;
    let mut options = d.options.clone();
    for o in unit.options {
        options.push(' ');
        options.push_str(o);
    }
    build(d, &p, unit.name, &options)?;
    // The context has one device, so there is one binary.
    let binaries = prog::get_program_info(p.0, prog::CL_PROGRAM_BINARIES)
        .map_err(|c| failure("clGetProgramInfo", c))?
        .to_vec_vec_uchar();
    match binaries.into_iter().next() {
        Some(b) if !b.is_empty() => Ok(b),
        _ => Err(GpuError::driver("clGetProgramInfo", 0, "the program has no binary")),
    }
}

/// Loads a binary made by [`compile`].
pub(super) fn load(d: &OpenClDriver, image: &[u8]) -> Result<cl_program> {
    // SAFETY: the device belongs to the context; both slices have one element.
    let p = unsafe { prog::create_program_with_binary(d.context as _, &[d.device as _], &[image]) }
        .map(Program)
        .map_err(|c| failure("clCreateProgramWithBinary", c))?;
    build(d, &p, "(program binary)", &d.options)?;
    Ok(p.into_raw())
}
