//! MIOpen's functions and numbers, as miopen.h of version 3 has them, and its descriptors.

use std::ffi::{c_int, c_void};
use std::ptr;

use crate::driver::hip::{number, pointer};
use crate::driver::loader::DynLib;
use crate::driver::{ConvPass, ConvTensor, VendorConvProblem};
use crate::dtype::DType;
use crate::error::{GpuError, Result, Unavailable};

/// A handle of the library, a descriptor, a stream, or device memory.
pub(super) type Raw = *mut c_void;

/// `miopenStatusInvalidValue` and `miopenStatusBadParm`.
pub(super) const INVALID_VALUE: u32 = 2;
pub(super) const BAD_PARAMETER: u32 = 3;

/// `miopenConvolutionAttrib_t`: on gfx90a, products of f16 by way of bf16.
pub(super) const FP16_ALT_IMPL: u32 = 0;
/// Only kernels whose results repeat bit by bit.
pub(super) const DETERMINISTIC: u32 = 1;
/// Whether f32 may be rounded to TF32; not all versions have it.
pub(super) const MATH_TYPE: u32 = 3;
/// `miopenMathPedantic`.
pub(super) const PEDANTIC: c_int = 1;
/// `miopenConvolution`, which does not flip windows.
pub(super) const CROSS_CORRELATION: u32 = 0;

/// `miopenConvAlgorithm_t`: products of matrices of columns, Fourier and Winograd transforms.
pub(super) const GEMM: u32 = 0;
pub(super) const FFT: u32 = 2;
pub(super) const WINOGRAD: u32 = 3;

/// `miopenConvSolution_t`: a kernel of the library for a problem.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct Solution {
    /// Milliseconds, as measured once or estimated.
    pub(super) time: f32,
    pub(super) workspace: usize,
    pub(super) id: u64,
    pub(super) algorithm: u32,
}

/// A function of the library and its name. Numbers of enums are 32 bits wide.
#[derive(Debug, Clone, Copy)]
pub(super) struct Call<F> {
    pub(super) name: &'static str,
    pub(super) f: F,
}

impl<F: Copy> Call<F> {
    /// # Safety
    /// The library's function of this name has the prototype `F`.
    pub(super) unsafe fn find(lib: &DynLib, name: &'static str) -> std::result::Result<Self, Unavailable> {
        // SAFETY: the caller's promise.
        Ok(Call { name, f: unsafe { lib.function(name) }? })
    }
}

pub(super) type Create = unsafe extern "C" fn(*mut Raw) -> u32;
pub(super) type Destroy = unsafe extern "C" fn(Raw) -> u32;
/// Major, minor and patch version.
pub(super) type Version = unsafe extern "C" fn(*mut usize, *mut usize, *mut usize) -> u32;
/// Handle, stream.
type SetStream = unsafe extern "C" fn(Raw, Raw) -> u32;
/// Descriptor, type, axes, extents, strides.
type SetTensor = unsafe extern "C" fn(Raw, u32, c_int, *const c_int, *const c_int) -> u32;
/// Descriptor, spatial axes, padding, strides, dilation, mode.
type InitConv = unsafe extern "C" fn(Raw, c_int, *const c_int, *const c_int, *const c_int, u32) -> u32;
/// Descriptor, groups.
type SetGroups = unsafe extern "C" fn(Raw, c_int) -> u32;
/// Descriptor, attribute, value.
type SetAttribute = unsafe extern "C" fn(Raw, u32, c_int) -> u32;

/// Handle and descriptors of the two tensors that are read, the convolution, and the tensor that is written, then the count of solutions.
type Count = unsafe extern "C" fn(Raw, Raw, Raw, Raw, Raw, *mut usize) -> u32;
/// The same, then room for solutions, their count, the solutions.
type Solutions = unsafe extern "C" fn(Raw, Raw, Raw, Raw, Raw, usize, *mut usize, *mut Solution) -> u32;
/// The same, then a solution and its bytes of workspace.
type Workspace = unsafe extern "C" fn(Raw, Raw, Raw, Raw, Raw, u64, *mut usize) -> u32;
/// The same, then a solution.
type Compile = unsafe extern "C" fn(Raw, Raw, Raw, Raw, Raw, u64) -> u32;
/// The same with the tensors' memory behind their descriptors, then the workspace, its bytes, and a solution.
type Run =
    unsafe extern "C" fn(Raw, Raw, *const c_void, Raw, *const c_void, Raw, Raw, Raw, Raw, usize, u64) -> u32;

/// Functions of a pass.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pass {
    pub(super) count: Call<Count>,
    pub(super) solutions: Call<Solutions>,
    pub(super) workspace: Call<Workspace>,
    pub(super) compile: Call<Compile>,
    pub(super) run: Call<Run>,
}

/// All functions of the pass of this name.
macro_rules! pass {
    ($lib:expr, $name:literal) => {
        Pass {
            count: Call::find($lib, concat!("miopenConvolution", $name, "GetSolutionCount"))?,
            solutions: Call::find($lib, concat!("miopenConvolution", $name, "GetSolution"))?,
            workspace: Call::find($lib, concat!("miopenConvolution", $name, "GetSolutionWorkspaceSize"))?,
            compile: Call::find($lib, concat!("miopenConvolution", $name, "CompileSolution"))?,
            run: Call::find($lib, concat!("miopenConvolution", $name, "Immediate"))?,
        }
    };
}

/// The library's functions.
#[derive(Debug, Clone, Copy)]
pub(super) struct Api {
    pub(super) create: Call<Create>,
    pub(super) destroy: Call<Destroy>,
    pub(super) set_stream: Call<SetStream>,
    pub(super) create_tensor: Call<Create>,
    pub(super) set_tensor: Call<SetTensor>,
    pub(super) destroy_tensor: Call<Destroy>,
    pub(super) create_conv: Call<Create>,
    pub(super) init_conv: Call<InitConv>,
    pub(super) set_groups: Call<SetGroups>,
    pub(super) set_attribute: Call<SetAttribute>,
    pub(super) destroy_conv: Call<Destroy>,
    /// Forward, gradients of the input, gradients of the weight.
    pub(super) passes: [Pass; 3],
}

impl Api {
    /// All functions; names the first that is missing.
    pub(super) fn resolve(lib: &DynLib) -> std::result::Result<Self, Unavailable> {
        // SAFETY: the prototypes are those of miopen.h.
        unsafe {
            Ok(Api {
                create: Call::find(lib, "miopenCreate")?,
                destroy: Call::find(lib, "miopenDestroy")?,
                set_stream: Call::find(lib, "miopenSetStream")?,
                create_tensor: Call::find(lib, "miopenCreateTensorDescriptor")?,
                set_tensor: Call::find(lib, "miopenSetTensorDescriptor")?,
                destroy_tensor: Call::find(lib, "miopenDestroyTensorDescriptor")?,
                create_conv: Call::find(lib, "miopenCreateConvolutionDescriptor")?,
                init_conv: Call::find(lib, "miopenInitConvolutionNdDescriptor")?,
                set_groups: Call::find(lib, "miopenSetConvolutionGroupCount")?,
                set_attribute: Call::find(lib, "miopenSetConvolutionAttribute")?,
                destroy_conv: Call::find(lib, "miopenDestroyConvolutionDescriptor")?,
                passes: [pass!(lib, "Forward"), pass!(lib, "BackwardData"), pass!(lib, "BackwardWeights")],
            })
        }
    }

    pub(super) fn pass(&self, pass: ConvPass) -> &Pass {
        match pass {
            ConvPass::Forward => &self.passes[0],
            ConvPass::Input => &self.passes[1],
            ConvPass::Weight => &self.passes[2],
        }
    }
}

/// Which of x, w and y the functions of a pass read, in their order, and which one they write.
pub(super) fn order(pass: ConvPass) -> [usize; 3] {
    match pass {
        ConvPass::Forward => [1, 0, 2],
        ConvPass::Input => [2, 1, 0],
        ConvPass::Weight => [2, 0, 1],
    }
}

/// Symbolic name of a status.
pub(super) fn status_name(code: u32) -> &'static str {
    match code {
        1 => "miopenStatusNotInitialized",
        INVALID_VALUE => "miopenStatusInvalidValue",
        BAD_PARAMETER => "miopenStatusBadParm",
        4 => "miopenStatusAllocFailed",
        5 => "miopenStatusInternalError",
        6 => "miopenStatusNotImplemented",
        7 => "miopenStatusUnknownError",
        8 => "miopenStatusUnsupportedOp",
        9 => "miopenStatusGpuOperationsSkipped",
        10 => "miopenStatusVersionMismatch",
        _ => "unknown MIOpen status",
    }
}

pub(super) fn check(name: &'static str, code: u32) -> Result<()> {
    match code {
        0 => Ok(()),
        _ => Err(GpuError::driver(name, code.into(), status_name(code))),
    }
}

/// The library's number of a storage type, if it is one that convolutions have.
pub(super) fn data_type(d: DType) -> Option<u32> {
    match d {
        DType::F16 => Some(0),
        DType::F32 => Some(1),
        DType::Bf16 => Some(5),
        _ => None,
    }
}

/// Numbers as the library counts.
fn ints(v: &[usize]) -> Result<Vec<c_int>> {
    let one = |&x: &usize| {
        c_int::try_from(x)
            .map_err(|_| GpuError::driver("miopen", INVALID_VALUE.into(), "a number is too large"))
    };
    v.iter().map(one).collect()
}

/// A descriptor, destroyed when it goes out of scope.
#[derive(Debug)]
pub(super) struct Descriptor {
    raw: u64,
    destroy: Call<Destroy>,
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: made by `new`, destroyed once. A refusal leaves a few bytes of the host behind.
        unsafe { (self.destroy.f)(self.raw()) };
    }
}

impl Descriptor {
    fn new(create: Call<Create>, destroy: Call<Destroy>) -> Result<Self> {
        let mut raw = ptr::null_mut();
        // SAFETY: writes one pointer.
        check(create.name, unsafe { (create.f)(&mut raw) })?;
        Ok(Descriptor { raw: number(raw), destroy })
    }

    pub(super) fn raw(&self) -> Raw {
        pointer(self.raw)
    }

    /// A tensor with that many spatial axes.
    pub(super) fn tensor(api: &Api, dtype: DType, t: &ConvTensor, axes: usize) -> Result<Self> {
        let call = api.set_tensor;
        let ty = data_type(dtype)
            .ok_or_else(|| GpuError::driver(call.name, INVALID_VALUE.into(), "type of a tensor"))?;
        let (extents, strides) = (ints(&t.extents[..axes + 2])?, ints(&t.strides[..axes + 2])?);
        let d = Descriptor::new(api.create_tensor, api.destroy_tensor)?;
        // SAFETY: the descriptor is live; there are as many extents and strides as axes, which the call copies.
        let code =
            unsafe { (call.f)(d.raw(), ty, extents.len() as c_int, extents.as_ptr(), strides.as_ptr()) };
        check(call.name, code).map(|()| d)
    }

    /// The convolution of a problem, in `groups` groups: by kernels whose results repeat, in the precision of its type.
    pub(super) fn convolution(api: &Api, p: &VendorConvProblem, groups: usize) -> Result<Self> {
        let axis = |v: &[usize; 3]| ints(&v[..p.axes]);
        let (pad, stride, dilation) = (axis(&p.pad)?, axis(&p.stride)?, axis(&p.dilation)?);
        let groups = ints(&[groups])?[0];
        let d = Descriptor::new(api.create_conv, api.destroy_conv)?;
        let (pad_at, stride_at, dilation_at) = (pad.as_ptr(), stride.as_ptr(), dilation.as_ptr());
        let (init, axes) = (api.init_conv, pad.len() as c_int);
        // SAFETY: the descriptor is live; there is a number per axis in each list, which the call copies.
        let code = unsafe { (init.f)(d.raw(), axes, pad_at, stride_at, dilation_at, CROSS_CORRELATION) };
        check(init.name, code)?;
        // SAFETY: the descriptor is live.
        check(api.set_groups.name, unsafe { (api.set_groups.f)(d.raw(), groups) })?;
        d.attribute(api, DETERMINISTIC, 1)?;
        d.attribute(api, FP16_ALT_IMPL, 0)?;
        match d.set(api, MATH_TYPE, PEDANTIC) {
            // A version without the attribute has no TF32.
            BAD_PARAMETER => Ok(d),
            code => check(api.set_attribute.name, code).map(|()| d),
        }
    }

    fn attribute(&self, api: &Api, attribute: u32, value: c_int) -> Result<()> {
        check(api.set_attribute.name, self.set(api, attribute, value))
    }

    fn set(&self, api: &Api, attribute: u32, value: c_int) -> u32 {
        // SAFETY: the descriptor is a live convolution's.
        unsafe { (api.set_attribute.f)(self.raw(), attribute, value) }
    }
}
