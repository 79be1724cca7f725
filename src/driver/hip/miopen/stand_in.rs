//! A stand-in of MIOpen that keeps what it is given, refuses what the library refuses, and computes convolutions in the host's memory.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{c_int, c_void};
use std::slice;

use half::{bf16, f16};

use super::api::{Api, BAD_PARAMETER, Call, Pass, Raw, Solution};
use super::{number, pointer};

/// A tensor's type, extents and strides.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Tensor {
    pub(super) ty: u32,
    pub(super) extents: Vec<i32>,
    pub(super) strides: Vec<i32>,
}

/// A convolution's numbers.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Convolution {
    pub(super) pad: Vec<i32>,
    pub(super) stride: Vec<i32>,
    pub(super) dilation: Vec<i32>,
    pub(super) groups: i32,
    pub(super) attributes: BTreeMap<u32, i32>,
}

#[derive(Debug, Clone, PartialEq)]
enum Object {
    Handle,
    Tensor(Tensor),
    Convolution(Convolution),
}

/// x, w and y of a call, and its convolution.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Operands {
    pub(super) tensors: [Tensor; 3],
    pub(super) conv: Convolution,
}

#[derive(Default)]
pub(super) struct Library {
    objects: BTreeMap<u64, Object>,
    made: u64,
    stream: u64,
    /// Names of the calls.
    pub(super) calls: Vec<String>,
    /// The call that fails, and its status.
    pub(super) fails: Option<(&'static str, u32)>,
    /// What it lists for every problem.
    pub(super) offered: Vec<Solution>,
    /// Solutions whose compilation fails.
    pub(super) broken: BTreeSet<u64>,
    /// Bytes of workspace that every solution really wants.
    pub(super) workspace: usize,
    /// Whether it has the attribute for TF32.
    pub(super) has_tf32: bool,
    pub(super) compiled: Vec<u64>,
    /// Solutions that ran, with what they were given.
    pub(super) ran: Vec<(u64, Operands)>,
}

impl Library {
    pub(super) fn live(&self) -> usize {
        self.objects.len()
    }
}

thread_local! {
    static LIBRARY: RefCell<Library> = RefCell::default();
}

pub(super) const STREAM: u64 = 0x77;
/// Statuses of the library.
pub(super) const INTERNAL_ERROR: u32 = 5;
pub(super) const NOT_IMPLEMENTED: u32 = 6;

pub(super) fn with<T>(f: impl FnOnce(&mut Library) -> T) -> T {
    LIBRARY.with(|l| f(&mut l.borrow_mut()))
}

/// Notes a call; what it does, unless it is to fail.
fn called(name: &str, f: impl FnOnce(&mut Library) -> u32) -> u32 {
    with(|l| {
        l.calls.push(name.to_string());
        match l.fails {
            Some((failing, status)) if failing == name => status,
            _ => f(l),
        }
    })
}

fn make(name: &str, object: Object, out: *mut Raw) -> u32 {
    called(name, |l| {
        l.made += 16;
        l.objects.insert(l.made, object);
        // SAFETY: the caller passes a place for one pointer.
        unsafe { *out = pointer(l.made) };
        0
    })
}

fn end(name: &str, at: Raw, is: impl FnOnce(&Object) -> bool) -> u32 {
    called(name, |l| match l.objects.remove(&number(at)) {
        Some(object) if is(&object) => 0,
        _ => BAD_PARAMETER,
    })
}

unsafe extern "C" fn create(out: *mut Raw) -> u32 {
    make("miopenCreate", Object::Handle, out)
}

unsafe extern "C" fn destroy(at: Raw) -> u32 {
    end("miopenDestroy", at, |o| *o == Object::Handle)
}

unsafe extern "C" fn set_stream(handle: Raw, stream: Raw) -> u32 {
    called("miopenSetStream", |l| match l.objects.get(&number(handle)) {
        Some(Object::Handle) => {
            l.stream = number(stream);
            0
        }
        _ => BAD_PARAMETER,
    })
}

unsafe extern "C" fn create_tensor(out: *mut Raw) -> u32 {
    make("miopenCreateTensorDescriptor", Object::Tensor(Tensor::default()), out)
}

unsafe extern "C" fn destroy_tensor(at: Raw) -> u32 {
    end("miopenDestroyTensorDescriptor", at, |o| matches!(o, Object::Tensor(_)))
}

unsafe extern "C" fn create_conv(out: *mut Raw) -> u32 {
    make("miopenCreateConvolutionDescriptor", Object::Convolution(Convolution::default()), out)
}

unsafe extern "C" fn destroy_conv(at: Raw) -> u32 {
    end("miopenDestroyConvolutionDescriptor", at, |o| matches!(o, Object::Convolution(_)))
}

/// # Safety
/// There are `n` numbers.
unsafe fn list(at: *const c_int, n: c_int) -> Vec<i32> {
    // SAFETY: the caller's promise.
    unsafe { slice::from_raw_parts(at, usize::try_from(n).unwrap()) }.to_vec()
}

unsafe extern "C" fn set_tensor(
    at: Raw,
    ty: u32,
    n: c_int,
    extents: *const c_int,
    strides: *const c_int,
) -> u32 {
    // SAFETY: the caller passes as many numbers as axes.
    let (extents, strides) = unsafe { (list(extents, n), list(strides, n)) };
    called("miopenSetTensorDescriptor", |l| match l.objects.get_mut(&number(at)) {
        Some(Object::Tensor(t)) if extents.iter().chain(&strides).all(|&v| v > 0) => {
            *t = Tensor { ty, extents, strides };
            0
        }
        _ => BAD_PARAMETER,
    })
}

unsafe extern "C" fn init_conv(
    at: Raw,
    axes: c_int,
    pad: *const c_int,
    stride: *const c_int,
    dilation: *const c_int,
    mode: u32,
) -> u32 {
    // SAFETY: the caller passes as many numbers as axes.
    let (pad, stride, dilation) = unsafe { (list(pad, axes), list(stride, axes), list(dilation, axes)) };
    let fits = pad.iter().all(|&v| v >= 0) && stride.iter().chain(&dilation).all(|&v| v > 0);
    called("miopenInitConvolutionNdDescriptor", |l| match l.objects.get_mut(&number(at)) {
        Some(Object::Convolution(c)) if fits && mode == 0 && (axes == 2 || axes == 3) => {
            *c = Convolution { pad, stride, dilation, groups: 1, ..Convolution::default() };
            0
        }
        _ => BAD_PARAMETER,
    })
}

unsafe extern "C" fn set_groups(at: Raw, groups: c_int) -> u32 {
    called("miopenSetConvolutionGroupCount", |l| match l.objects.get_mut(&number(at)) {
        Some(Object::Convolution(c)) if groups > 0 => {
            c.groups = groups;
            0
        }
        _ => BAD_PARAMETER,
    })
}

unsafe extern "C" fn set_attribute(at: Raw, attribute: u32, value: c_int) -> u32 {
    called("miopenSetConvolutionAttribute", |l| {
        let least = match attribute {
            0 => -1,
            1 => 0,
            3 if l.has_tf32 => 0,
            _ => return BAD_PARAMETER,
        };
        match l.objects.get_mut(&number(at)) {
            Some(Object::Convolution(c)) if (least..=1).contains(&value) => {
                c.attributes.insert(attribute, value);
                0
            }
            _ => BAD_PARAMETER,
        }
    })
}

/// x, w and y among the tensors of a pass: what forward convolutions, gradients of inputs and gradients of weights are given.
const POSITIONS: [[usize; 3]; 3] = [[1, 0, 2], [2, 1, 0], [1, 2, 0]];
const PASSES: [&str; 3] = ["Forward", "BackwardData", "BackwardWeights"];

/// What a call of a pass was given, if it goes together.
fn operands(l: &Library, pass: usize, raw: [Raw; 5]) -> Option<Operands> {
    let [handle, a, b, conv, to] = raw.map(|r| l.objects.get(&number(r)));
    let tensor = |o: Option<&Object>| match o {
        Some(Object::Tensor(t)) => Some(t.clone()),
        _ => None,
    };
    let (Object::Handle, Object::Convolution(conv)) = (handle?, conv?) else { return None };
    let given = [tensor(a)?, tensor(b)?, tensor(to)?];
    let tensors = POSITIONS[pass].map(|i| given[i].clone());
    let [x, w, y] = &tensors;
    let along = |a: usize| {
        let span = conv.dilation[a] * (w.extents[2 + a] - 1) + 1;
        (x.extents[2 + a] + 2 * conv.pad[a] - span) / conv.stride[a] + 1 == y.extents[2 + a]
    };
    let types = [x, w, y].iter().all(|t| t.ty == x.ty && t.extents.len() == conv.pad.len() + 2);
    let channels = x.extents[1] == w.extents[1] * conv.groups
        && y.extents[1] == w.extents[0]
        && w.extents[0] % conv.groups == 0;
    let fits = types && channels && x.extents[0] == y.extents[0] && (0..conv.pad.len()).all(along);
    fits.then(|| Operands { tensors: tensors.clone(), conv: conv.clone() })
}

/// Notes a call of a pass; what it does, where its operands go together.
fn of_pass(pass: usize, call: &str, raw: [Raw; 5], f: impl FnOnce(&mut Library, Operands) -> u32) -> u32 {
    let name = format!("miopenConvolution{}{call}", PASSES[pass]);
    called(&name, |l| match operands(l, pass, raw) {
        Some(operands) => f(l, operands),
        None => BAD_PARAMETER,
    })
}

unsafe extern "C" fn count<const P: usize>(h: Raw, a: Raw, b: Raw, c: Raw, to: Raw, n: *mut usize) -> u32 {
    of_pass(P, "GetSolutionCount", [h, a, b, c, to], |l, _| {
        // SAFETY: the caller passes a place for one number.
        unsafe { *n = l.offered.len() };
        0
    })
}

unsafe extern "C" fn solutions<const P: usize>(
    h: Raw,
    a: Raw,
    b: Raw,
    c: Raw,
    to: Raw,
    room: usize,
    n: *mut usize,
    out: *mut Solution,
) -> u32 {
    of_pass(P, "GetSolution", [h, a, b, c, to], |l, _| {
        // SAFETY: the caller passes a place for one number, and room for so many solutions.
        unsafe {
            *n = l.offered.len().min(room);
            slice::from_raw_parts_mut(out, *n).copy_from_slice(&l.offered[..*n]);
        }
        0
    })
}

unsafe extern "C" fn workspace<const P: usize>(
    h: Raw,
    a: Raw,
    b: Raw,
    c: Raw,
    to: Raw,
    _: u64,
    bytes: *mut usize,
) -> u32 {
    of_pass(P, "GetSolutionWorkspaceSize", [h, a, b, c, to], |l, _| {
        // SAFETY: the caller passes a place for one number.
        unsafe { *bytes = l.workspace };
        0
    })
}

unsafe extern "C" fn compile<const P: usize>(h: Raw, a: Raw, b: Raw, c: Raw, to: Raw, id: u64) -> u32 {
    of_pass(P, "CompileSolution", [h, a, b, c, to], |l, _| {
        if l.broken.contains(&id) {
            return NOT_IMPLEMENTED;
        }
        l.compiled.push(id);
        0
    })
}

unsafe extern "C" fn run<const P: usize>(
    h: Raw,
    a: Raw,
    a_at: *const c_void,
    b: Raw,
    b_at: *const c_void,
    c: Raw,
    to: Raw,
    to_at: Raw,
    scratch: Raw,
    bytes: usize,
    id: u64,
) -> u32 {
    of_pass(P, "Immediate", [h, a, b, c, to], |l, operands| {
        // It would compile, or write beyond the workspace.
        let ready = l.compiled.contains(&id) && bytes >= l.workspace && (bytes == 0 || !scratch.is_null());
        if !ready || l.stream != STREAM {
            return INTERNAL_ERROR;
        }
        // SAFETY: the tensors and the workspace lie in the host's memory, as the test laid them out.
        unsafe {
            scratch.cast::<u8>().write_bytes(0xff, l.workspace);
            convolve(P, &operands, POSITIONS[P].map(|i| [a_at, b_at, to_at.cast_const()][i]));
        }
        l.ran.push((id, operands));
        0
    })
}

/// Positions of these extents, the last fastest.
fn positions(extents: &[i32]) -> impl Iterator<Item = Vec<i32>> + '_ {
    let all: i32 = extents.iter().product();
    (0..all).map(move |mut i| {
        let mut at = vec![0; extents.len()];
        for (to, n) in at.iter_mut().zip(extents).rev() {
            (*to, i) = (i % n, i / n);
        }
        at
    })
}

fn place(t: &Tensor, at: &[i32]) -> usize {
    at.iter().zip(&t.strides).map(|(i, s)| (i * s) as usize).sum()
}

/// Where y lies for the element of x at `r` and the tap at `k`, along each axis.
fn met(o: &Operands, r: &[i32], k: &[i32]) -> Option<Vec<i32>> {
    let (conv, y) = (&o.conv, &o.tensors[2]);
    let one = |a: usize| {
        let t = r[2 + a] + conv.pad[a] - k[2 + a] * conv.dilation[a];
        let u = t / conv.stride[a];
        (t >= 0 && t % conv.stride[a] == 0 && u < y.extents[2 + a]).then_some(u)
    };
    (0..conv.pad.len()).map(one).collect()
}

/// # Safety
/// x, w and y lie at `at`, as the descriptors say.
unsafe fn convolve(pass: usize, o: &Operands, at: [*const c_void; 3]) {
    let [x, w, y] = &o.tensors;
    let (written, each) = ([2, 0, 1][pass], w.extents[0] / o.conv.groups);
    let mut sums: BTreeMap<usize, f64> =
        positions(&o.tensors[written].extents).map(|i| (place(&o.tensors[written], &i), 0.0)).collect();
    for r in positions(&x.extents) {
        for k in positions(&w.extents)
            .filter(|k| k[0] / each == r[1] / w.extents[1] && k[1] == r[1] % w.extents[1])
        {
            let Some(u) = met(o, &r, &k) else { continue };
            let u = [&[r[0], k[0]], &u[..]].concat();
            let places = [place(x, &r), place(w, &k), place(y, &u)];
            // SAFETY: the places lie within the tensors.
            let factors = (0..3).filter(|&t| t != written).map(|t| unsafe { load(x.ty, at[t], places[t]) });
            *sums.get_mut(&places[written]).unwrap() += factors.product::<f64>();
        }
    }
    for (i, sum) in sums {
        // SAFETY: as above; the caller gave the place to write to.
        unsafe { store(x.ty, at[written].cast_mut(), i, sum) };
    }
}

/// # Safety
/// There is such a number of this type of the library.
unsafe fn load(ty: u32, at: *const c_void, i: usize) -> f64 {
    // SAFETY: the caller's promise.
    unsafe {
        match ty {
            0 => (*at.cast::<f16>().add(i)).to_f64(),
            1 => f64::from(*at.cast::<f32>().add(i)),
            5 => (*at.cast::<bf16>().add(i)).to_f64(),
            _ => panic!("type {ty}"),
        }
    }
}

/// # Safety
/// As for [`load`].
unsafe fn store(ty: u32, at: Raw, i: usize, v: f64) {
    // SAFETY: the caller's promise.
    unsafe {
        match ty {
            0 => *at.cast::<f16>().add(i) = crate::dtype::f16_from_f64(v),
            1 => *at.cast::<f32>().add(i) = v as f32,
            _ => *at.cast::<bf16>().add(i) = crate::dtype::bf16_from_f64(v),
        }
    }
}

/// The functions of the pass of this number and name.
macro_rules! pass {
    ($pass:literal, $name:literal) => {
        Pass {
            count: Call { name: concat!("miopenConvolution", $name, "GetSolutionCount"), f: count::<$pass> },
            solutions: Call {
                name: concat!("miopenConvolution", $name, "GetSolution"),
                f: solutions::<$pass>,
            },
            workspace: Call {
                name: concat!("miopenConvolution", $name, "GetSolutionWorkspaceSize"),
                f: workspace::<$pass>,
            },
            compile: Call {
                name: concat!("miopenConvolution", $name, "CompileSolution"),
                f: compile::<$pass>,
            },
            run: Call { name: concat!("miopenConvolution", $name, "Immediate"), f: run::<$pass> },
        }
    };
}

/// The stand-in's functions, and an empty memory of what it is asked. It lists one solution.
pub(super) fn api() -> Api {
    let offered = vec![Solution { time: 0.5, workspace: 64, id: 82, algorithm: 5 }];
    LIBRARY.set(Library { offered, workspace: 96, has_tf32: true, ..Library::default() });
    Api {
        create: Call { name: "miopenCreate", f: create },
        destroy: Call { name: "miopenDestroy", f: destroy },
        set_stream: Call { name: "miopenSetStream", f: set_stream },
        create_tensor: Call { name: "miopenCreateTensorDescriptor", f: create_tensor },
        set_tensor: Call { name: "miopenSetTensorDescriptor", f: set_tensor },
        destroy_tensor: Call { name: "miopenDestroyTensorDescriptor", f: destroy_tensor },
        create_conv: Call { name: "miopenCreateConvolutionDescriptor", f: create_conv },
        init_conv: Call { name: "miopenInitConvolutionNdDescriptor", f: init_conv },
        set_groups: Call { name: "miopenSetConvolutionGroupCount", f: set_groups },
        set_attribute: Call { name: "miopenSetConvolutionAttribute", f: set_attribute },
        destroy_conv: Call { name: "miopenDestroyConvolutionDescriptor", f: destroy_conv },
        passes: [pass!(0, "Forward"), pass!(1, "BackwardData"), pass!(2, "BackwardWeights")],
    }
}
