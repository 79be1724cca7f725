//! A convolution as a graph of one operation, and the ways in which the library would run a graph.

use std::sync::Arc;

use cudarc::cudnn::sys as dnn;
use dnn::cudnnBackendAttributeName_t as Name;
use dnn::cudnnBackendAttributeType_t as Type;
use dnn::cudnnBackendDescriptorType_t as Kind;
use dnn::cudnnBackendHeurMode_t as Mode;
use dnn::cudnnBackendNumericalNote_t as Note;
use dnn::cudnnDataType_t as DataType;

use super::descriptor::{Api, Descriptor, Value, data_type};
use crate::driver::{ConvPass, ConvTensor, VendorConvProblem};
use crate::dtype::DType;
use crate::error::{GpuError, Result};

/// The names by which convolutions and packs of pointers know x, w and y.
pub(super) const IDS: [i64; 3] = [1, 2, 3];

/// Whether the problem is one that the library is asked about at all.
pub(super) fn eligible(p: &VendorConvProblem) -> std::result::Result<(), String> {
    if data_type(p.dtype).is_none() {
        return Err(format!("{} convolutions", p.dtype));
    }
    p.narrow()
}

/// A graph of operations, with what it is made of.
#[derive(Debug)]
pub(super) struct Graph {
    graph: Descriptor,
    _parts: Vec<Descriptor>,
}

impl Graph {
    /// The graph of those of its `parts` that are operations.
    pub(super) fn new(
        api: &Arc<Api>,
        handle: u64,
        parts: Vec<Descriptor>,
        is_operation: impl Fn(usize) -> bool,
    ) -> Result<Self> {
        let operations = parts.iter().enumerate().filter(|(i, _)| is_operation(*i));
        let operations: Vec<&Descriptor> = operations.map(|(_, d)| d).collect();
        let attributes = [
            (Name::CUDNN_ATTR_OPERATIONGRAPH_HANDLE, Value::Handle(handle)),
            (Name::CUDNN_ATTR_OPERATIONGRAPH_OPS, Value::Descriptors(&operations)),
        ];
        let graph = Descriptor::with(api, Kind::CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, &attributes)?;
        Ok(Graph { graph, _parts: parts })
    }

    /// A convolution.
    pub(super) fn conv(api: &Arc<Api>, handle: u64, p: &VendorConvProblem) -> Result<Self> {
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
        Graph::new(api, handle, vec![x, w, y, conv, op], |i| i == 4)
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

    pub(super) fn has(self, note: Note) -> bool {
        self.0 >> note as u32 & 1 != 0
    }

    /// Whether results have the precision that the problem asks for, and repeat. `transforms`: f32 products may be computed by Fourier and Winograd
    /// transforms, whose errors are as large as the largest values nearby, and which spread a NaN. `atomics`: results need not repeat.
    pub(super) fn allowed(self, engine: i64, p: &VendorConvProblem, transforms: bool, atomics: bool) -> bool {
        let (single, strict) = (p.dtype == DType::F32, p.dtype == DType::F32 && !p.tf32);
        let direct = !(single && transforms);
        let refused = [
            (Note::CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC, !atomics),
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
    /// Tensors, by the names that the graph knows them by, and workspace are addresses of live memory of the sizes that the graph and the way say.
    pub(super) unsafe fn execute(
        &self,
        handle: u64,
        (ids, tensors): (&[i64], &[u64]),
        workspace: u64,
    ) -> Result<()> {
        let api = &self.plan.api;
        let attributes = [
            (Name::CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, Value::Ints(ids)),
            (Name::CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, Value::Addresses(tensors)),
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
