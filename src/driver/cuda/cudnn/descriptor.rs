//! cuDNN's descriptors, of which its graphs are made.
//!
//! A descriptor is made, given its attributes, finalized, and from then on read only. Attributes are numbers with a type each; [`Value`] keeps both
//! together. What a descriptor refers to is kept alive with it.

use std::ffi::{CStr, c_char, c_void};
use std::ptr;
use std::sync::Arc;

use cudarc::cudnn::sys as dnn;
use dnn::cudnnBackendAttributeName_t as Name;
use dnn::cudnnBackendAttributeType_t as Type;
use dnn::cudnnBackendDescriptorType_t as Kind;
use dnn::cudnnBackendHeurMode_t as Mode;
use dnn::cudnnDataType_t as DataType;
use dnn::cudnnPointwiseMode_t as Pointwise;
use dnn::cudnnReduceTensorOp_t as Reduction;

use crate::driver::cuda::preflight::function_table;
use crate::driver::loader::DynLib;
use crate::dtype::DType;
use crate::error::{GpuError, Result, Unavailable};

function_table! {
    /// Functions of cuDNN that return a status.
    DnnTable in dnn -> cudnnStatus_t {
        cudnnCreate(*mut dnn::cudnnHandle_t);
        cudnnDestroy(dnn::cudnnHandle_t);
        cudnnSetStream(dnn::cudnnHandle_t, dnn::cudaStream_t);
        cudnnBackendCreateDescriptor(Kind, *mut dnn::cudnnBackendDescriptor_t);
        cudnnBackendDestroyDescriptor(dnn::cudnnBackendDescriptor_t);
        cudnnBackendFinalize(dnn::cudnnBackendDescriptor_t);
        cudnnBackendSetAttribute(dnn::cudnnBackendDescriptor_t, Name, Type, i64, *const c_void);
        cudnnBackendGetAttribute(dnn::cudnnBackendDescriptor_t, Name, Type, i64, *mut i64, *mut c_void);
        cudnnBackendExecute(dnn::cudnnHandle_t, dnn::cudnnBackendDescriptor_t, dnn::cudnnBackendDescriptor_t);
    }
}

/// The library's functions.
#[derive(Debug)]
pub(super) struct Api {
    pub(super) table: DnnTable,
    pub(super) error_string: unsafe extern "C" fn(u32) -> *const c_char,
}

impl Api {
    /// All functions; names the first that is missing.
    pub(super) fn resolve(lib: &DynLib) -> std::result::Result<Self, Unavailable> {
        let table = DnnTable::resolve(lib)?;
        // SAFETY: prototype of cudnnGetErrorString with the enum as the number that it is.
        let error_string = unsafe { lib.function("cudnnGetErrorString") }?;
        Ok(Api { table, error_string })
    }

    pub(super) fn check(&self, call: &'static str, code: u32) -> Result<()> {
        if code == 0 {
            return Ok(());
        }
        // SAFETY: any number is answered by a static string.
        let text = unsafe { (self.error_string)(code) };
        let name = if text.is_null() {
            "unknown cuDNN status".into()
        } else {
            // SAFETY: terminated and static.
            unsafe { CStr::from_ptr(text) }.to_string_lossy()
        };
        Err(GpuError::driver(call, code.into(), name))
    }
}

/// What an attribute is set to, with the type that the library knows it by.
#[derive(Clone, Copy)]
pub(super) enum Value<'a> {
    Ints(&'a [i64]),
    Float(f32),
    Flag(bool),
    DataType(DataType),
    Pointwise(Pointwise),
    Reduction(Reduction),
    CrossCorrelation,
    Mode(Mode),
    Handle(u64),
    Descriptors(&'a [&'a Descriptor]),
    Addresses(&'a [u64]),
}

/// A descriptor, destroyed when it goes out of scope.
#[derive(Debug)]
pub(super) struct Descriptor {
    pub(super) api: Arc<Api>,
    pub(super) raw: u64,
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: made by `new`, destroyed once; whoever refers to it is destroyed with it.
        unsafe { (self.api.table.cudnnBackendDestroyDescriptor)(self.raw as dnn::cudnnBackendDescriptor_t) };
    }
}

impl Descriptor {
    pub(super) fn new(api: &Arc<Api>, kind: Kind) -> Result<Self> {
        let mut raw = ptr::null_mut();
        // SAFETY: writes one pointer.
        let code = unsafe { (api.table.cudnnBackendCreateDescriptor)(kind, &mut raw) };
        api.check("cudnnBackendCreateDescriptor", code)?;
        Ok(Descriptor { api: api.clone(), raw: raw as u64 })
    }

    /// A finalized descriptor with these attributes.
    pub(super) fn with(api: &Arc<Api>, kind: Kind, attributes: &[(Name, Value<'_>)]) -> Result<Self> {
        let d = Descriptor::new(api, kind)?;
        attributes.iter().try_for_each(|&(name, value)| d.set(name, value))?;
        // SAFETY: the descriptor is live.
        let code = unsafe { (api.table.cudnnBackendFinalize)(d.raw as dnn::cudnnBackendDescriptor_t) };
        api.check("cudnnBackendFinalize", code)?;
        Ok(d)
    }

    fn set(&self, name: Name, value: Value<'_>) -> Result<()> {
        let mode = dnn::cudnnConvolutionMode_t::CUDNN_CROSS_CORRELATION;
        let raws: Vec<u64>;
        let one = |of: *const c_void| (1, of);
        let (ty, (count, at)) = match &value {
            Value::Ints(v) => (Type::CUDNN_TYPE_INT64, (v.len(), v.as_ptr().cast())),
            Value::Float(v) => (Type::CUDNN_TYPE_FLOAT, one(ptr::from_ref(v).cast())),
            Value::Flag(v) => (Type::CUDNN_TYPE_BOOLEAN, one(ptr::from_ref(v).cast())),
            Value::Pointwise(v) => (Type::CUDNN_TYPE_POINTWISE_MODE, one(ptr::from_ref(v).cast())),
            Value::Reduction(v) => (Type::CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, one(ptr::from_ref(v).cast())),
            Value::DataType(v) => (Type::CUDNN_TYPE_DATA_TYPE, one(ptr::from_ref(v).cast())),
            Value::CrossCorrelation => (Type::CUDNN_TYPE_CONVOLUTION_MODE, one(ptr::from_ref(&mode).cast())),
            Value::Mode(v) => (Type::CUDNN_TYPE_HEUR_MODE, one(ptr::from_ref(v).cast())),
            Value::Handle(v) => (Type::CUDNN_TYPE_HANDLE, one(ptr::from_ref(v).cast())),
            Value::Addresses(v) => (Type::CUDNN_TYPE_VOID_PTR, (v.len(), v.as_ptr().cast())),
            Value::Descriptors(v) => {
                raws = v.iter().map(|d| d.raw).collect();
                (Type::CUDNN_TYPE_BACKEND_DESCRIPTOR, (raws.len(), raws.as_ptr().cast()))
            }
        };
        // SAFETY: the descriptor is live; `at` points to as many values of that type, which the call copies. Pointers are 64-bit numbers.
        let code = unsafe {
            let raw = self.raw as dnn::cudnnBackendDescriptor_t;
            (self.api.table.cudnnBackendSetAttribute)(raw, name, ty, count as i64, at)
        };
        self.api.check("cudnnBackendSetAttribute", code)
    }

    /// Reads an attribute of that type into `into`, whose elements are as large as the type's; how many there are.
    pub(super) fn get<T: Copy>(&self, name: Name, ty: Type, into: &mut [T]) -> Result<usize> {
        let mut count = 0i64;
        let at = if into.is_empty() { ptr::null_mut() } else { into.as_mut_ptr().cast() };
        // SAFETY: the descriptor is live; at most `len` elements are written, of the size that the caller vouches for.
        let code = unsafe {
            let raw = self.raw as dnn::cudnnBackendDescriptor_t;
            (self.api.table.cudnnBackendGetAttribute)(raw, name, ty, into.len() as i64, &mut count, at)
        };
        self.api.check("cudnnBackendGetAttribute", code)?;
        Ok(usize::try_from(count).unwrap_or(0))
    }

    /// Lets the attribute's descriptors be copied into `into`; how many there are.
    pub(super) fn get_descriptors(&self, name: Name, into: &[Descriptor]) -> Result<usize> {
        let mut raws: Vec<u64> = into.iter().map(|d| d.raw).collect();
        self.get(name, Type::CUDNN_TYPE_BACKEND_DESCRIPTOR, &mut raws)
    }

    pub(super) fn get_int(&self, name: Name) -> Result<i64> {
        let mut v = [0i64];
        self.get(name, Type::CUDNN_TYPE_INT64, &mut v).map(|_| v[0])
    }
}

/// The library's name of a storage type, if it has one.
pub(super) fn data_type(d: DType) -> Option<DataType> {
    match d {
        DType::F32 => Some(DataType::CUDNN_DATA_FLOAT),
        DType::F16 => Some(DataType::CUDNN_DATA_HALF),
        DType::Bf16 => Some(DataType::CUDNN_DATA_BFLOAT16),
        _ => None,
    }
}
