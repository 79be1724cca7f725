//! cuDNN's descriptors: a convolution as a graph of one operation, and the ways in which the library would run it.
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
use dnn::cudnnBackendNumericalNote_t as Note;
use dnn::cudnnDataType_t as DataType;

use crate::driver::cuda::preflight::function_table;
use crate::driver::loader::DynLib;
use crate::driver::{ConvPass, ConvTensor, VendorConvProblem};
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
enum Value<'a> {
    Ints(&'a [i64]),
    Float(f32),
    DataType(DataType),
    CrossCorrelation,
    Mode(Mode),
    Handle(u64),
    Descriptors(&'a [&'a Descriptor]),
    Addresses(&'a [u64]),
}

/// A descriptor, destroyed when it goes out of scope.
#[derive(Debug)]
pub(super) struct Descriptor {
    api: Arc<Api>,
    raw: u64,
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: made by `new`, destroyed once; whoever refers to it is destroyed with it.
        unsafe { (self.api.table.cudnnBackendDestroyDescriptor)(self.raw as dnn::cudnnBackendDescriptor_t) };
    }
}

impl Descriptor {
    fn new(api: &Arc<Api>, kind: Kind) -> Result<Self> {
        let mut raw = ptr::null_mut();
        // SAFETY: writes one pointer.
        let code = unsafe { (api.table.cudnnBackendCreateDescriptor)(kind, &mut raw) };
        api.check("cudnnBackendCreateDescriptor", code)?;
        Ok(Descriptor { api: api.clone(), raw: raw as u64 })
    }

    /// A finalized descriptor with these attributes.
    fn with(api: &Arc<Api>, kind: Kind, attributes: &[(Name, Value<'_>)]) -> Result<Self> {
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
    fn get<T: Copy>(&self, name: Name, ty: Type, into: &mut [T]) -> Result<usize> {
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
    fn get_descriptors(&self, name: Name, into: &[Descriptor]) -> Result<usize> {
        let mut raws: Vec<u64> = into.iter().map(|d| d.raw).collect();
        self.get(name, Type::CUDNN_TYPE_BACKEND_DESCRIPTOR, &mut raws)
    }

    fn get_int(&self, name: Name) -> Result<i64> {
        let mut v = [0i64];
        self.get(name, Type::CUDNN_TYPE_INT64, &mut v).map(|_| v[0])
    }
}

/// The names by which operations and packs of pointers know x, w and y.
const IDS: [i64; 3] = [1, 2, 3];

fn data_type(d: DType) -> Option<DataType> {
    match d {
        DType::F32 => Some(DataType::CUDNN_DATA_FLOAT),
        DType::F16 => Some(DataType::CUDNN_DATA_HALF),
        DType::Bf16 => Some(DataType::CUDNN_DATA_BFLOAT16),
        _ => None,
    }
}

/// Whether the problem is one that the library is asked about at all.
pub(super) fn eligible(p: &VendorConvProblem) -> std::result::Result<(), String> {
    if data_type(p.dtype).is_none() {
        return Err(format!("{} convolutions", p.dtype));
    }
    let all = [&p.x, &p.w, &p.y];
    if all.iter().any(|t| t.extents.contains(&0)) {
        return Err("an extent is 0".into());
    }
    let last = |sum: usize, (&n, s): (&usize, usize)| sum.saturating_add((n - 1).saturating_mul(s));
    let far = |t: &ConvTensor| t.extents.iter().zip(t.strides).fold(0, last) > i32::MAX as usize;
    let wide = [p.pad, p.pad_end, p.stride, p.dilation].iter().flatten().any(|&v| v > 1 << 20);
    if wide || all.into_iter().any(far) {
        return Err("its positions need 64 bits".into());
    }
    Ok(())
}

/// A graph of one operation, with what it is made of.
#[derive(Debug)]
pub(super) struct Graph {
    graph: Descriptor,
    _parts: [Descriptor; 5],
}

impl Graph {
    pub(super) fn new(api: &Arc<Api>, handle: u64, p: &VendorConvProblem) -> Result<Self> {
        let ty = data_type(p.dtype).ok_or_else(|| GpuError::driver("cudnn", 0, "type of a tensor"))?;
        let ints = |v: &[usize]| -> Vec<i64> { v.iter().map(|&x| x as i64).collect() };
        let tensor = |t: &ConvTensor, id: i64| {
            let n = p.axes + 2;
            let attributes = [
                (Name::CUDNN_ATTR_TENSOR_DATA_TYPE, Value::DataType(ty)),
                (Name::CUDNN_ATTR_TENSOR_DIMENSIONS, Value::Ints(&ints(&t.extents[..n]))),
                (Name::CUDNN_ATTR_TENSOR_STRIDES, Value::Ints(&ints(&t.strides[..n]))),
                (Name::CUDNN_ATTR_TENSOR_UNIQUE_ID, Value::Ints(&[id])),
                (Name::CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, Value::Ints(&[p.align as i64])),
            ];
            Descriptor::with(api, Kind::CUDNN_BACKEND_TENSOR_DESCRIPTOR, &attributes)
        };
        let [x, w, y] = [tensor(&p.x, IDS[0])?, tensor(&p.w, IDS[1])?, tensor(&p.y, IDS[2])?];
        let axes = |v: &[usize; 3]| ints(&v[..p.axes]);
        let attributes = [
            (Name::CUDNN_ATTR_CONVOLUTION_COMP_TYPE, Value::DataType(DataType::CUDNN_DATA_FLOAT)),
            (Name::CUDNN_ATTR_CONVOLUTION_CONV_MODE, Value::CrossCorrelation),
            (Name::CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, Value::Ints(&[p.axes as i64])),
            (Name::CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, Value::Ints(&axes(&p.pad))),
            (Name::CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, Value::Ints(&axes(&p.pad_end))),
            (Name::CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, Value::Ints(&axes(&p.stride))),
            (Name::CUDNN_ATTR_CONVOLUTION_DILATIONS, Value::Ints(&axes(&p.dilation))),
        ];
        let conv = Descriptor::with(api, Kind::CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, &attributes)?;
        let (kind, names) = operation(p.pass);
        let values = [
            Value::Descriptors(&[&x]),
            Value::Descriptors(&[&w]),
            Value::Descriptors(&[&y]),
            Value::Descriptors(&[&conv]),
            Value::Float(1.0),
            Value::Float(0.0),
        ];
        let attributes: Vec<_> = names.into_iter().zip(values).collect();
        let op = Descriptor::with(api, kind, &attributes)?;
        let attributes = [
            (Name::CUDNN_ATTR_OPERATIONGRAPH_HANDLE, Value::Handle(handle)),
            (Name::CUDNN_ATTR_OPERATIONGRAPH_OPS, Value::Descriptors(&[&op])),
        ];
        let graph = Descriptor::with(api, Kind::CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, &attributes)?;
        Ok(Graph { graph, _parts: [x, w, y, conv, op] })
    }

    /// Configurations of the library's kernels for the graph, those that it expects to be the fastest first.
    pub(super) fn configs(&self, mode: Mode) -> Result<Vec<Descriptor>> {
        let api = &self.graph.api;
        let attributes = [
            (Name::CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, Value::Descriptors(&[&self.graph])),
            (Name::CUDNN_ATTR_ENGINEHEUR_MODE, Value::Mode(mode)),
        ];
        let heuristic = Descriptor::with(api, Kind::CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, &attributes)?;
        let results = Name::CUDNN_ATTR_ENGINEHEUR_RESULTS;
        let count = heuristic.get_descriptors(results, &[])?;
        let new = |_| Descriptor::new(api, Kind::CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
        let mut configs = (0..count).map(new).collect::<Result<Vec<_>>>()?;
        let filled = heuristic.get_descriptors(results, &configs)?;
        configs.truncate(filled);
        Ok(configs)
    }
}

/// The descriptor of an operation, and its attributes for x, w, y, the convolution, alpha and beta.
fn operation(pass: ConvPass) -> (Kind, [Name; 6]) {
    match pass {
        ConvPass::Forward => (
            Kind::CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
            [
                Name::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
                Name::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
                Name::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
                Name::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
                Name::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
                Name::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA,
            ],
        ),
        ConvPass::Input => (
            Kind::CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
            [
                Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
                Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
                Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
                Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
                Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
                Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA,
            ],
        ),
        ConvPass::Weight => (
            Kind::CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
            [
                Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
                Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
                Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
                Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
                Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
                Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA,
            ],
        ),
    }
}

/// What a kernel says of its arithmetic, a bit for each [note](Note).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Notes(u64);

impl Notes {
    /// The notes of the kernel of a configuration, and its number.
    pub(super) fn of(config: &Descriptor) -> Result<(Self, i64)> {
        let engine = [Descriptor::new(&config.api, Kind::CUDNN_BACKEND_ENGINE_DESCRIPTOR)?];
        config.get_descriptors(Name::CUDNN_ATTR_ENGINECFG_ENGINE, &engine)?;
        // Newer libraries may know more notes than the bindings.
        let mut all = [0u32; 64];
        let n = engine[0].get(
            Name::CUDNN_ATTR_ENGINE_NUMERICAL_NOTE,
            Type::CUDNN_TYPE_NUMERICAL_NOTE,
            &mut all,
        )?;
        let bits = all.iter().take(n).fold(0, |bits, &note| bits | 1u64.checked_shl(note).unwrap_or(0));
        Ok((Notes(bits), engine[0].get_int(Name::CUDNN_ATTR_ENGINE_GLOBAL_INDEX)?))
    }

    fn has(self, note: Note) -> bool {
        self.0 >> note as u32 & 1 != 0
    }

    /// Whether results have the precision that the problem asks for, and repeat. `transforms`: f32 products may be computed by Fourier and Winograd
    /// transforms, whose errors are as large as the largest values nearby, and which spread a NaN.
    pub(super) fn allowed(self, engine: i64, p: &VendorConvProblem, transforms: bool) -> bool {
        let (single, strict) = (p.dtype == DType::F32, p.dtype == DType::F32 && !p.tf32);
        let direct = !(single && transforms);
        let refused = [
            (Note::CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC, true),
            (Note::CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION, true),
            (Note::CUDNN_NUMERICAL_NOTE_FFT, direct),
            (Note::CUDNN_NUMERICAL_NOTE_WINOGRAD, direct),
            (Note::CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_4x4, direct),
            (Note::CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_6x6, true),
            (Note::CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_13x13, true),
            // f32 rounded to f16 or bf16; on tensor cores to TF32.
            (Note::CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS, single),
            (Note::CUDNN_NUMERICAL_NOTE_TENSOR_CORE, strict),
        ];
        let inexact = !single && p.pass == ConvPass::Input && engine == INEXACT;
        !inexact && !refused.into_iter().any(|(note, matters)| matters && self.has(note))
    }
}

/// The number of a kernel for gradients of inputs that keeps sums in 16 bits and does not say so (cuDNN 9.14, H200: errors of 15 ULP).
const INEXACT: i64 = 2;

/// A configuration that is ready to run.
#[derive(Debug)]
pub(super) struct Way {
    plan: Descriptor,
    _config: Descriptor,
    pub(super) workspace: usize,
    /// The library's number of the kernel.
    pub(super) engine: i64,
    pub(super) notes: Notes,
}

impl Way {
    pub(super) fn new(handle: u64, config: Descriptor, (notes, engine): (Notes, i64)) -> Result<Self> {
        let attributes = [
            (Name::CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, Value::Descriptors(&[&config])),
            (Name::CUDNN_ATTR_EXECUTION_PLAN_HANDLE, Value::Handle(handle)),
        ];
        let plan = Descriptor::with(&config.api, Kind::CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, &attributes)?;
        let workspace = plan.get_int(Name::CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE)?.max(0) as usize;
        Ok(Way { plan, _config: config, workspace, engine, notes })
    }

    /// Queues the work on the handle's stream.
    ///
    /// # Safety
    /// x, w, y and the workspace are addresses of live memory of the sizes that the graph and the way say.
    pub(super) unsafe fn execute(&self, handle: u64, tensors: [u64; 3], workspace: u64) -> Result<()> {
        let api = &self.plan.api;
        let attributes = [
            (Name::CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, Value::Ints(&IDS)),
            (Name::CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, Value::Addresses(&tensors)),
            (Name::CUDNN_ATTR_VARIANT_PACK_WORKSPACE, Value::Addresses(&[workspace])),
        ];
        let pack = Descriptor::with(api, Kind::CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, &attributes)?;
        let raw = |d: &Descriptor| d.raw as dnn::cudnnBackendDescriptor_t;
        // SAFETY: handle, plan and pack are live; the memory is the caller's promise.
        let code = unsafe {
            (api.table.cudnnBackendExecute)(handle as dnn::cudnnHandle_t, raw(&self.plan), raw(&pack))
        };
        api.check("cudnnBackendExecute", code)
    }
}
