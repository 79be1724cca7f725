//! The order of calls, against a stand-in of the library that keeps what it is given and refuses what cuDNN refuses.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{c_char, c_void};
use std::ptr;
use std::sync::Arc;

use cudarc::cudnn::sys as dnn;
use dnn::cudnnBackendAttributeName_t as Name;
use dnn::cudnnBackendAttributeType_t as Type;
use dnn::cudnnBackendDescriptor_t as Raw;
use dnn::cudnnBackendDescriptorType_t as Kind;
use dnn::cudnnBackendHeurMode_t as Mode;
use dnn::cudnnBackendNumericalNote_t as Note;

use super::attention::AttentionPlan;
use super::descriptor::{Api, DnnTable};
use super::graph::{Graph, IDS, Notes, Way};
use crate::driver::conv_reference::problem;
use crate::driver::{AttentionTensor, ConvPass, VendorAttentionProblem, VendorConvProblem};
use crate::dtype::DType;

/// A descriptor: its attributes by number, pointers and scalars as numbers.
#[derive(Debug, Clone, Default)]
struct Made {
    kind: u32,
    attributes: BTreeMap<u32, (u32, Vec<i64>)>,
    finalized: bool,
}

#[derive(Default)]
struct Library {
    made: BTreeMap<u64, Made>,
    destroyed: BTreeSet<u64>,
    /// Descriptors that executions were given: plan and pack.
    ran: Vec<[Made; 2]>,
}

thread_local! {
    static LIBRARY: RefCell<Library> = RefCell::default();
}

const REFUSED: u32 = dnn::cudnnStatus_t::CUDNN_STATUS_BAD_PARAM as u32;
/// What the three engines say of themselves.
const NOTES: [&[u32]; 3] = [
    &[Note::CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC as u32],
    &[Note::CUDNN_NUMERICAL_NOTE_TENSOR_CORE as u32, 40],
    &[],
];

fn with<T>(f: impl FnOnce(&mut Library) -> T) -> T {
    LIBRARY.with(|l| f(&mut l.borrow_mut()))
}

unsafe extern "C" fn create(kind: Kind, out: *mut Raw) -> u32 {
    let id = with(|l| {
        let id = 16 * (l.made.len() as u64 + 1);
        l.made.insert(id, Made { kind: kind as u32, ..Made::default() });
        id
    });
    // SAFETY: the caller passes a place for one pointer.
    unsafe { *out = id as Raw };
    0
}

unsafe extern "C" fn destroy(d: Raw) -> u32 {
    with(|l| if l.made.contains_key(&(d as u64)) && l.destroyed.insert(d as u64) { 0 } else { REFUSED })
}

unsafe extern "C" fn finalize(d: Raw) -> u32 {
    with(|l| match l.made.get_mut(&(d as u64)) {
        Some(made) if !made.finalized => {
            made.finalized = true;
            0
        }
        _ => REFUSED,
    })
}

unsafe extern "C" fn set(d: Raw, name: Name, ty: Type, count: i64, at: *const c_void) -> u32 {
    let wide = matches!(
        ty,
        Type::CUDNN_TYPE_INT64
            | Type::CUDNN_TYPE_HANDLE
            | Type::CUDNN_TYPE_BACKEND_DESCRIPTOR
            | Type::CUDNN_TYPE_VOID_PTR
    );
    let one = |i: i64| {
        // SAFETY: the caller passes `count` values of the type.
        unsafe {
            match wide {
                true => *at.cast::<i64>().offset(i as isize),
                false if ty == Type::CUDNN_TYPE_BOOLEAN => i64::from(*at.cast::<u8>().offset(i as isize)),
                false => i64::from(*at.cast::<u32>().offset(i as isize)),
            }
        }
    };
    let values: Vec<i64> = (0..count).map(one).collect();
    with(|l| {
        let is_ready = |v: &i64| l.made.get(&(*v as u64)).is_some_and(|m| m.finalized || m.kind == CONFIG);
        let live = ty != Type::CUDNN_TYPE_BACKEND_DESCRIPTOR || values.iter().all(is_ready);
        match l.made.get_mut(&(d as u64)) {
            Some(made) if !made.finalized && live && count > 0 => {
                made.attributes.insert(name as u32, (ty as u32, values));
                0
            }
            _ => REFUSED,
        }
    })
}

/// Configurations come finalized from the library.
const CONFIG: u32 = Kind::CUDNN_BACKEND_ENGINECFG_DESCRIPTOR as u32;

unsafe extern "C" fn get(d: Raw, name: Name, ty: Type, room: i64, count: *mut i64, at: *mut c_void) -> u32 {
    let engine = |l: &Library| l.made[&(d as u64)].attributes.get(&0).map_or(0, |a| a.1[0]);
    // SAFETY: the caller passes a place for the count, and one for `room` values of the type.
    unsafe {
        match name {
            Name::CUDNN_ATTR_ENGINEHEUR_RESULTS => {
                *count = 3;
                for i in 0..room.min(3) {
                    let config = *at.cast::<u64>().offset(i as isize);
                    with(|l| l.made.get_mut(&config).unwrap().attributes.insert(0, (0, vec![i])));
                }
            }
            Name::CUDNN_ATTR_ENGINECFG_ENGINE => {
                *count = 1;
                let of = with(|l| engine(l));
                let to = *at.cast::<u64>();
                with(|l| l.made.get_mut(&to).unwrap().attributes.insert(0, (0, vec![of])));
            }
            Name::CUDNN_ATTR_ENGINE_NUMERICAL_NOTE => {
                let notes = NOTES[with(|l| engine(l)) as usize];
                *count = notes.len() as i64;
                ptr::copy_nonoverlapping(notes.as_ptr(), at.cast(), notes.len().min(room as usize));
            }
            Name::CUDNN_ATTR_ENGINE_GLOBAL_INDEX => *at.cast::<i64>() = 100 + with(|l| engine(l)),
            Name::CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE => *at.cast::<i64>() = 4096,
            _ => return REFUSED,
        }
    }
    assert!(ty != Type::CUDNN_TYPE_HANDLE);
    0
}

unsafe extern "C" fn execute(_: dnn::cudnnHandle_t, plan: Raw, pack: Raw) -> u32 {
    with(|l| {
        let both = [plan, pack].map(|d| l.made[&(d as u64)].clone());
        let ready = both.iter().all(|m| m.finalized);
        l.ran.push(both);
        if ready { 0 } else { REFUSED }
    })
}

unsafe extern "C" fn no_handle(_: *mut dnn::cudnnHandle_t) -> u32 {
    REFUSED
}

unsafe extern "C" fn no_destroy(_: dnn::cudnnHandle_t) -> u32 {
    REFUSED
}

unsafe extern "C" fn set_stream(_: dnn::cudnnHandle_t, _: dnn::cudaStream_t) -> u32 {
    0
}

unsafe extern "C" fn no_text(_: u32) -> *const c_char {
    ptr::null()
}

fn api() -> Arc<Api> {
    let table = DnnTable {
        cudnnCreate: no_handle,
        cudnnDestroy: no_destroy,
        cudnnSetStream: set_stream,
        cudnnBackendCreateDescriptor: create,
        cudnnBackendDestroyDescriptor: destroy,
        cudnnBackendFinalize: finalize,
        cudnnBackendSetAttribute: set,
        cudnnBackendGetAttribute: get,
        cudnnBackendExecute: execute,
    };
    Arc::new(Api { table, error_string: no_text })
}

/// The values of an attribute, whose type is checked.
fn value(made: &Made, name: Name, ty: Type) -> Vec<i64> {
    let (of, values) = &made.attributes[&(name as u32)];
    assert_eq!(*of, ty as u32, "{name:?}");
    values.clone()
}

/// The one descriptor of a kind.
fn only(kind: Kind) -> Made {
    with(|l| {
        let mut all = l.made.values().filter(|m| m.kind == kind as u32);
        let one = all.next().unwrap().clone();
        assert!(all.next().is_none(), "{kind:?}");
        one
    })
}

const HANDLE: u64 = 0x1234;

/// The name of the tensor that an attribute refers to.
fn tensor_of(op: &Made, name: Name) -> i64 {
    let d = value(op, name, Type::CUDNN_TYPE_BACKEND_DESCRIPTOR)[0] as u64;
    let tensor = with(|l| l.made[&d].clone());
    assert_eq!(tensor.kind, Kind::CUDNN_BACKEND_TENSOR_DESCRIPTOR as u32);
    value(&tensor, Name::CUDNN_ATTR_TENSOR_UNIQUE_ID, Type::CUDNN_TYPE_INT64)[0]
}

#[test]
fn a_graph_says_what_the_problem_says() {
    let p = problem([2, 6, 8, 11, 3], [2, 1, 1, 2], DType::Bf16);
    let api = api();
    let graph = Graph::conv(&api, HANDLE, &p).unwrap();
    let conv = only(Kind::CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
    let ints = |name| value(&conv, name, Type::CUDNN_TYPE_INT64);
    assert_eq!(ints(Name::CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS), [2]);
    assert_eq!(ints(Name::CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS), [1, 1]);
    assert_eq!(ints(Name::CUDNN_ATTR_CONVOLUTION_POST_PADDINGS), [1, 1]);
    assert_eq!(ints(Name::CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES), [2, 2]);
    assert_eq!(ints(Name::CUDNN_ATTR_CONVOLUTION_DILATIONS), [1, 1]);
    // Cross-correlation, sums in f32.
    assert_eq!(value(&conv, Name::CUDNN_ATTR_CONVOLUTION_CONV_MODE, Type::CUDNN_TYPE_CONVOLUTION_MODE), [1]);
    assert_eq!(value(&conv, Name::CUDNN_ATTR_CONVOLUTION_COMP_TYPE, Type::CUDNN_TYPE_DATA_TYPE), [0]);
    let op = only(Kind::CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR);
    let float = |name| f32::from_bits(value(&op, name, Type::CUDNN_TYPE_FLOAT)[0] as u32);
    assert_eq!(float(Name::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA), 1.0);
    assert_eq!(float(Name::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA), 0.0);
    let tensors: Vec<Made> = with(|l| {
        l.made.values().filter(|m| m.kind == Kind::CUDNN_BACKEND_TENSOR_DESCRIPTOR as u32).cloned().collect()
    });
    let [x, w, y] = &tensors[..] else { panic!("{} tensors", tensors.len()) };
    let dims = |t| value(t, Name::CUDNN_ATTR_TENSOR_DIMENSIONS, Type::CUDNN_TYPE_INT64);
    let strides = |t| value(t, Name::CUDNN_ATTR_TENSOR_STRIDES, Type::CUDNN_TYPE_INT64);
    assert_eq!((dims(x), strides(x)), (vec![2, 6, 11, 11], vec![726, 121, 11, 1]));
    assert_eq!((dims(w), strides(w)), (vec![8, 3, 3, 3], vec![27, 9, 3, 1]));
    assert_eq!((dims(y), strides(y)), (vec![2, 8, 6, 6], vec![288, 36, 6, 1]));
    assert_eq!(value(x, Name::CUDNN_ATTR_TENSOR_DATA_TYPE, Type::CUDNN_TYPE_DATA_TYPE), [9]);
    assert_eq!(value(x, Name::CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, Type::CUDNN_TYPE_INT64), [16]);
    let whole = only(Kind::CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    assert_eq!(
        value(&whole, Name::CUDNN_ATTR_OPERATIONGRAPH_HANDLE, Type::CUDNN_TYPE_HANDLE),
        [HANDLE as i64]
    );
    drop(graph);
    with(|l| assert_eq!(l.destroyed.len(), l.made.len()));
}

#[test]
fn operations_name_their_tensors() {
    use Name::*;
    let each = [
        (
            ConvPass::Forward,
            Kind::CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
            [
                CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
                CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
                CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
            ],
        ),
        (
            ConvPass::Input,
            Kind::CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
            [
                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
            ],
        ),
        (
            ConvPass::Weight,
            Kind::CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
            [
                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
            ],
        ),
    ];
    for (pass, kind, names) in each {
        let p = VendorConvProblem { pass, ..problem([2, 4, 4, 8, 3], [1, 1, 1, 1], DType::F32) };
        let _graph = Graph::conv(&api(), HANDLE, &p).unwrap();
        let op = only(kind);
        assert_eq!(names.map(|n| tensor_of(&op, n)), [1, 2, 3]);
    }
}

#[test]
fn the_first_kernel_that_is_allowed_runs() {
    let p = problem([2, 4, 4, 8, 3], [1, 1, 1, 1], DType::F32);
    let api = api();
    let graph = Graph::conv(&api, HANDLE, &p).unwrap();
    let configs = graph.configs(Mode::CUDNN_HEUR_MODE_A).unwrap();
    let notes: Vec<_> = configs.iter().map(|c| Notes::of(c).unwrap()).collect();
    assert_eq!(notes.iter().map(|n| n.1).collect::<Vec<_>>(), [100, 101, 102]);
    let allowed = |p: &VendorConvProblem| -> Vec<bool> {
        notes.iter().map(|&(notes, engine)| notes.allowed(engine, p, false, false)).collect()
    };
    assert_eq!(allowed(&p), [false, false, true]);
    assert_eq!(allowed(&VendorConvProblem { tf32: true, ..p }), [false, true, true]);
    assert_eq!(allowed(&VendorConvProblem { dtype: DType::F16, ..p }), [false, true, true]);
    // What adds atomically may be asked for.
    assert!(notes[0].0.allowed(notes[0].1, &p, false, true));
    // Sums in 16 bits.
    let half = VendorConvProblem { dtype: DType::F16, pass: ConvPass::Input, ..p };
    assert!(!notes[2].0.allowed(2, &half, false, false) && notes[2].0.allowed(2, &p, false, false));
    let config = configs.into_iter().nth(2).unwrap();
    let way = Way::new(HANDLE, config, notes[2]).unwrap();
    assert_eq!((way.workspace, way.engine), (4096, 102));
    // SAFETY: the stand-in reads no memory.
    unsafe { way.execute(HANDLE, (&IDS, &[11, 22, 33]), 44).unwrap() };
    let [plan, pack] = with(|l| l.ran.pop()).unwrap();
    assert_eq!(plan.kind, Kind::CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR as u32);
    assert_eq!(
        value(&plan, Name::CUDNN_ATTR_EXECUTION_PLAN_HANDLE, Type::CUDNN_TYPE_HANDLE),
        [HANDLE as i64]
    );
    assert_eq!(value(&pack, Name::CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, Type::CUDNN_TYPE_INT64), [1, 2, 3]);
    assert_eq!(
        value(&pack, Name::CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, Type::CUDNN_TYPE_VOID_PTR),
        [11, 22, 33]
    );
    assert_eq!(value(&pack, Name::CUDNN_ATTR_VARIANT_PACK_WORKSPACE, Type::CUDNN_TYPE_VOID_PTR), [44]);
    drop((way, graph));
    with(|l| assert_eq!(l.destroyed.len(), l.made.len()));
}

/// Batches, heads, heads of keys, queries and keys, columns.
fn attention([batch, heads, kv_heads, l, d]: [usize; 5], backward: bool) -> VendorAttentionProblem {
    let [wide, keys] = [heads, kv_heads].map(|h| AttentionTensor::packed([batch, h, l, d]));
    let gradients = backward.then_some([wide, wide, keys, keys]);
    let (q, k, v, o) = (wide, keys, keys, wide);
    VendorAttentionProblem { q, k, v, o, gradients, logarithms: true, causal: true, dtype: DType::F16 }
}

fn count(kind: Kind) -> usize {
    with(|l| l.made.values().filter(|m| m.kind == kind as u32).count())
}

#[test]
fn attention_is_two_products_around_a_softmax() {
    let p = attention([2, 4, 2, 160, 64], false);
    let plan = AttentionPlan::new(&api(), HANDLE, &p, true).unwrap();
    assert_eq!(count(Kind::CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR), 2);
    assert_eq!(count(Kind::CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR), 2);
    // Factor, row, column, comparison, choice, difference, exponential, logarithm, sum, quotient.
    assert_eq!(count(Kind::CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR), 10);
    assert_eq!(plan.workspace(), 4096);
    // SAFETY: the stand-in reads no memory.
    unsafe { plan.execute(HANDLE, &[16, 32, 48, 64, 80], 0.125, 96).unwrap() };
    let [_, pack] = with(|l| l.ran.pop()).unwrap();
    let at = value(&pack, Name::CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, Type::CUDNN_TYPE_VOID_PTR);
    // q and k, two numbers on the host, the logarithms, v and o.
    assert_eq!([at[0], at[1], at[4], at[5], at[6]], [16, 32, 80, 48, 64]);
    drop(plan);
    with(|l| assert_eq!(l.destroyed.len(), l.made.len()));
}

#[test]
fn gradients_that_repeat_need_no_sums_in_the_workspace() {
    let p = attention([2, 4, 2, 160, 64], true);
    let [repeat, atomic] = [true, false].map(|repeats| {
        let plan = AttentionPlan::new(&api(), HANDLE, &p, repeats).unwrap();
        let notes = with(|l| l.ran.len());
        assert_eq!(notes, 0);
        plan.workspace()
    });
    let (delta, sums) = (2 * 4 * 160 * 4, 2 * 4 * 160 * 64 * 4);
    assert_eq!((repeat, atomic), (delta + 4096, delta + sums + 4096));
    // Five products each; gradients of keys and values are sums over the heads that share them.
    assert_eq!(count(Kind::CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR), 10);
    assert_eq!(count(Kind::CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR), 6);
}

#[test]
fn a_call_for_every_part_of_large_gradients() {
    let p = attention([2, 32, 8, 8192, 128], true);
    let plan = AttentionPlan::new(&api(), HANDLE, &p, true).unwrap();
    let operands: Vec<u64> = (0..9).map(|i| i << 40).collect();
    // SAFETY: the stand-in reads no memory.
    unsafe { plan.execute(HANDLE, &operands, 0.125, 96).unwrap() };
    with(|l| assert_eq!(l.ran.len(), 8));
}
