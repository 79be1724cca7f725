//! The order of calls, with the names and numbers of both libraries, against a stand-in that keeps what it is given, refuses what is of another size or
//! number, and computes products of matrices in the host's memory.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::slice;

use half::{bf16, f16};

use super::*;
use crate::device::BackendKind;
use crate::driver::blas_reference::{element, problem};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Handle,
    Desc,
    Layout,
    Preference,
}

/// An object of the library: what it was created with, and its attributes.
#[derive(Debug, Clone)]
struct Object {
    kind: Kind,
    with: Vec<u64>,
    attributes: BTreeMap<u32, Vec<u8>>,
}

impl Object {
    /// An attribute as a number.
    fn get(&self, attribute: u32) -> Option<u64> {
        let bytes = self.attributes.get(&attribute)?;
        let mut word = [0; 8];
        word[..bytes.len()].copy_from_slice(bytes);
        Some(u64::from_le_bytes(word))
    }
}

struct Library {
    names: &'static Names,
    objects: BTreeMap<u64, Object>,
    made: u64,
    heuristics: usize,
    /// Descriptors and layouts of the products that ran.
    ran: Vec<[Object; 5]>,
}

thread_local! {
    static LIBRARY: RefCell<Option<Library>> = const { RefCell::new(None) };
}

/// What the stand-in's algorithm says of itself: its workspace, and a word to know it by.
const WORKSPACE: usize = 4096;
const ALGO: u64 = 0x5eed_0000_0000_1234;
/// A length of products that it has no algorithm for.
const REFUSED: usize = 13;

fn with<T>(f: impl FnOnce(&mut Library) -> T) -> T {
    LIBRARY.with(|l| f(l.borrow_mut().as_mut().unwrap()))
}

fn make(kind: Kind, created: &[u64], out: *mut Raw) -> u32 {
    let id = with(|l| {
        l.made += 16;
        let object = Object { kind, with: created.to_vec(), attributes: BTreeMap::new() };
        l.objects.insert(l.made, object);
        l.made
    });
    // SAFETY: the caller passes a place for one pointer.
    unsafe { *out = pointer(id) };
    0
}

fn end(kind: Kind, at: Raw) -> u32 {
    with(|l| match l.objects.remove(&number(at)) {
        Some(object) if object.kind == kind => 0,
        _ => l.names.invalid_value,
    })
}

/// The attributes that an object has, with their sizes.
fn sizes(names: &Names, kind: Kind) -> Vec<(u32, usize)> {
    let [ta, tb, epilogue, bias, bias_type] = names.desc;
    let further = |f: Preferences| f(&problem(1, 1, 1, 1, false, false), true);
    match kind {
        Kind::Handle => vec![],
        Kind::Desc => vec![(ta, 4), (tb, 4), (epilogue, 4), (bias, 8), (bias_type, 4)],
        Kind::Layout => vec![(names.layout[0], 4), (names.layout[1], 8)],
        Kind::Preference => {
            let others = names.preferences.map(further).into_iter().flatten().map(|(a, _)| (a, 4));
            std::iter::once((names.max_workspace, 8)).chain(others).collect()
        }
    }
}

unsafe fn set(kind: Kind, at: Raw, attribute: u32, value: *const c_void, size: usize) -> u32 {
    // SAFETY: the caller passes a value of this size.
    let bytes = unsafe { slice::from_raw_parts(value.cast::<u8>(), size) }.to_vec();
    with(|l| {
        let known = sizes(l.names, kind).contains(&(attribute, size));
        match l.objects.get_mut(&number(at)) {
            Some(object) if known && object.kind == kind => {
                object.attributes.insert(attribute, bytes);
                0
            }
            _ => l.names.invalid_value,
        }
    })
}

unsafe extern "C" fn create(out: *mut Raw) -> u32 {
    make(Kind::Handle, &[], out)
}

unsafe extern "C" fn destroy(at: Raw) -> u32 {
    end(Kind::Handle, at)
}

unsafe extern "C" fn desc_create(out: *mut Raw, compute: u32, scale: u32) -> u32 {
    make(Kind::Desc, &[compute.into(), scale.into()], out)
}

unsafe extern "C" fn desc_destroy(at: Raw) -> u32 {
    end(Kind::Desc, at)
}

unsafe extern "C" fn desc_set(at: Raw, attribute: u32, value: *const c_void, size: usize) -> u32 {
    // SAFETY: forwarded.
    unsafe { set(Kind::Desc, at, attribute, value, size) }
}

unsafe extern "C" fn layout_create(out: *mut Raw, ty: u32, rows: u64, cols: u64, ld: i64) -> u32 {
    if ld < rows as i64 {
        return with(|l| l.names.invalid_value);
    }
    make(Kind::Layout, &[ty.into(), rows, cols, ld as u64], out)
}

unsafe extern "C" fn layout_destroy(at: Raw) -> u32 {
    end(Kind::Layout, at)
}

unsafe extern "C" fn layout_set(at: Raw, attribute: u32, value: *const c_void, size: usize) -> u32 {
    // SAFETY: forwarded.
    unsafe { set(Kind::Layout, at, attribute, value, size) }
}

unsafe extern "C" fn preference_create(out: *mut Raw) -> u32 {
    make(Kind::Preference, &[], out)
}

unsafe extern "C" fn preference_destroy(at: Raw) -> u32 {
    end(Kind::Preference, at)
}

unsafe extern "C" fn preference_set(at: Raw, attribute: u32, value: *const c_void, size: usize) -> u32 {
    // SAFETY: forwarded.
    unsafe { set(Kind::Preference, at, attribute, value, size) }
}

/// Descriptor and layouts, where they are that.
fn operands(l: &Library, raw: [Raw; 5]) -> Option<[Object; 5]> {
    let kinds = [Kind::Desc, Kind::Layout, Kind::Layout, Kind::Layout, Kind::Layout];
    let all: Vec<Object> = raw.iter().filter_map(|r| l.objects.get(&number(*r)).cloned()).collect();
    let all: [Object; 5] = all.try_into().ok()?;
    all.iter().zip(kinds).all(|(o, kind)| o.kind == kind).then_some(all)
}

unsafe extern "C" fn heuristic(
    handle: Raw,
    desc: Raw,
    a: Raw,
    b: Raw,
    c: Raw,
    d: Raw,
    preference: Raw,
    room: c_int,
    results: *mut c_void,
    found: *mut c_int,
) -> u32 {
    with(|l| {
        l.heuristics += 1;
        let is = |raw: Raw, kind| l.objects.get(&number(raw)).filter(|o| o.kind == kind);
        let (Some(_), Some(wish), Some(all)) =
            (is(handle, Kind::Handle), is(preference, Kind::Preference), operands(l, [desc, a, b, c, d]))
        else {
            return l.names.invalid_value;
        };
        let transposed = all[0].get(l.names.desc[0]) == Some(l.names.ops[1] as u64);
        let k = all[1].with[if transposed { 1 } else { 2 }] as usize;
        let some = room >= 1 && k != REFUSED;
        let workspace = if wish.get(l.names.max_workspace) >= Some(WORKSPACE as u64) { WORKSPACE } else { 0 };
        // SAFETY: the caller passes places for the count and for one result.
        unsafe {
            *found = c_int::from(some);
            if some {
                let words = slice::from_raw_parts_mut(results.cast::<u64>(), l.names.algo + REST);
                words.fill(0);
                (words[0], words[l.names.algo - 1]) = (ALGO, ALGO + 1);
                words[l.names.algo] = workspace as u64;
                // Success, and a number of waves behind it.
                words[l.names.algo + 1] = u64::from(1f32.to_bits()) << 32;
            }
        }
        0
    })
}

/// A number of memory of this type of the libraries.
unsafe fn load(ty: u64, at: *const c_void, i: usize) -> f64 {
    // SAFETY: the caller's promise: there is such a number.
    unsafe {
        match ty {
            0 => f64::from(*at.cast::<f32>().add(i)),
            1 => *at.cast::<f64>().add(i),
            2 => (*at.cast::<f16>().add(i)).to_f64(),
            _ => (*at.cast::<bf16>().add(i)).to_f64(),
        }
    }
}

unsafe fn store(ty: u64, at: *mut c_void, i: usize, x: f64) {
    // SAFETY: as for `load`.
    unsafe {
        match ty {
            0 => *at.cast::<f32>().add(i) = x as f32,
            1 => *at.cast::<f64>().add(i) = x,
            2 => *at.cast::<f16>().add(i) = crate::dtype::f16_from_f64(x),
            _ => *at.cast::<bf16>().add(i) = crate::dtype::bf16_from_f64(x),
        }
    }
}

fn gelu(x: f64) -> f64 {
    0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh())
}

unsafe extern "C" fn matmul(
    handle: Raw,
    desc: Raw,
    alpha: *const c_void,
    a: *const c_void,
    la: Raw,
    b: *const c_void,
    lb: Raw,
    beta: *const c_void,
    c: *const c_void,
    lc: Raw,
    d: *mut c_void,
    ld: Raw,
    algo: *const c_void,
    workspace: *mut c_void,
    bytes: usize,
    stream: Raw,
) -> u32 {
    let found = with(|l| {
        let live = l.objects.get(&number(handle)).is_some_and(|o| o.kind == Kind::Handle);
        let all = operands(l, [desc, la, lb, lc, ld]).filter(|_| live && number(stream) == STREAM)?;
        l.ran.push(all.clone());
        Some((all, l.names))
    });
    let Some(([desc, la, lb, lc, ld], names)) = found else { return with(|l| l.names.invalid_value) };
    // SAFETY: the algorithm has so many words.
    let words = unsafe { slice::from_raw_parts(algo.cast::<u64>(), names.algo) };
    let room = bytes == 0 || !workspace.is_null();
    if (words[0], words[names.algo - 1]) != (ALGO, ALGO + 1) || !room {
        return names.invalid_value;
    }
    let turned = |i: usize| desc.get(names.desc[i]) == Some(names.ops[1] as u64);
    let (ta, tb, post) = (turned(0), turned(1), desc.get(names.desc[2]).unwrap());
    let (m, n, k) = (ld.with[1] as usize, ld.with[2] as usize, la.with[if ta { 1 } else { 2 }] as usize);
    let at = |l: &Object, z: usize, r: usize, col: usize| {
        assert!(r < l.with[1] as usize && col < l.with[2] as usize, "outside of a matrix");
        z * l.get(names.layout[1]).unwrap() as usize + col * l.with[3] as usize + r
    };
    let scale = desc.with[1];
    // SAFETY: the matrices lie in the host's memory, as the test laid them out; alpha and beta are of the scale's type.
    unsafe {
        let (alpha, beta) = (load(scale, alpha, 0), load(scale, beta, 0));
        for z in 0..ld.get(names.layout[0]).unwrap() as usize {
            for (r, col) in (0..n).flat_map(|col| (0..m).map(move |r| (r, col))) {
                let term = |i| {
                    let x = if ta { at(&la, z, i, r) } else { at(&la, z, r, i) };
                    let y = if tb { at(&lb, z, col, i) } else { at(&lb, z, i, col) };
                    load(la.with[0], a, x) * load(lb.with[0], b, y)
                };
                let mut v = alpha * (0..k).map(term).sum::<f64>();
                if beta != 0.0 {
                    v += beta * load(lc.with[0], c, at(&lc, z, r, col));
                }
                if post & 4 != 0 {
                    let bias = desc.get(names.desc[3]).unwrap();
                    v += load(desc.get(names.desc[4]).unwrap(), pointer(bias), r);
                }
                let v = match post & !4 {
                    2 => v.max(0.0),
                    32 => gelu(v),
                    _ => v,
                };
                store(ld.with[0], d, at(&ld, z, r, col), v);
            }
        }
    }
    0
}

const STREAM: u64 = 0x77;

/// The library of these names, and the tests' own memory of what it is asked.
fn library(names: &'static Names) -> Lt {
    let (objects, ran) = (BTreeMap::new(), vec![]);
    LIBRARY.set(Some(Library { names, objects, made: 0, heuristics: 0, ran }));
    let table = Table {
        create,
        destroy,
        desc_create,
        desc_destroy,
        desc_set,
        layout_create,
        layout_destroy,
        layout_set,
        preference_create,
        preference_destroy,
        preference_set,
        heuristic,
        matmul,
    };
    Lt::new(table, names, DeviceId::new(BackendKind::Custom, 0), Box::new(|| Ok(()))).unwrap()
}

fn dialects() -> Vec<&'static Names> {
    vec![
        #[cfg(feature = "driver-cuda")]
        &crate::driver::cuda::cublaslt::NAMES,
        #[cfg(feature = "driver-hip")]
        &crate::driver::hip::hipblaslt::NAMES,
    ]
}

/// Numbers of a type in memory that begins at a multiple of 16 bytes.
struct Memory(DType, Vec<u128>);

impl Memory {
    fn new(dtype: DType, values: &[f64]) -> Self {
        let mut memory = Memory(dtype, vec![0; (values.len() * 8).div_ceil(16) + 1]);
        let at = memory.1.as_mut_ptr().cast();
        // SAFETY: there is room for as many numbers of eight bytes.
        values.iter().enumerate().for_each(|(i, &x)| unsafe { store(ty(dtype), at, i, x) });
        memory
    }

    fn get(&self, i: usize) -> f64 {
        // SAFETY: within the memory, by the tests.
        unsafe { load(ty(self.0), self.1.as_ptr().cast(), i) }
    }

    fn raw(&mut self) -> RawMem {
        RawMem(number(self.1.as_mut_ptr().cast()))
    }
}

fn ty(dtype: DType) -> u64 {
    data_type(dtype).unwrap().into()
}

/// Runs a problem, alpha 0.5 and beta 2, and compares the result.
fn compare(blas: &Lt, p: &BlasProblem) {
    let values =
        |i: usize, n: usize| -> Vec<f64> { (0..n).map(|x| ((x * 7 + i) % 11) as f64 / 4.0 - 1.25).collect() };
    let [a, b, c, d] = [0, 1, 2, 3].map(|i| values(i, p.batch * p.batch_stride[i] + 64));
    let bias: Vec<f64> = (0..p.n).map(|j| j as f64 / 8.0 - 1.0).collect();
    let (mut am, mut bm) = (Memory::new(p.dtype, &a), Memory::new(p.dtype, &b));
    let (mut cm, mut dm) = (Memory::new(p.out_dtype, &c), Memory::new(p.out_dtype, &d));
    let (mut bias_m, mut room) =
        (Memory::new(p.dtype, &bias), Memory::new(DType::F64, &[0.0; WORKSPACE / 8]));
    let bytes = blas.workspace(p);
    assert_eq!(bytes, WORKSPACE);
    let with = p.bias.then(|| (bias_m.raw(), 0));
    let [a_at, b_at, c_at, d_at] = [am.raw(), bm.raw(), cm.raw(), dm.raw()].map(|m| (m, 0));
    // SAFETY: all memory is the host's, and as large as the problem says.
    unsafe {
        let work = Some((room.raw(), 0, bytes));
        blas.gemm(RawStream(STREAM), p, 0.5, 2.0, a_at, b_at, c_at, d_at, with, work).unwrap();
    }
    for z in 0..p.batch {
        for (i, j) in (0..p.m).flat_map(|i| (0..p.n).map(move |j| (i, j))) {
            let sum = element(p, [0.5, 2.0], [&a, &b, &c], [z, i, j]) + if p.bias { bias[j] } else { 0.0 };
            let want = match p.act {
                BlasAct::Identity => sum,
                BlasAct::Relu => sum.max(0.0),
                BlasAct::GeluTanh => gelu(sum),
            };
            let got = dm.get(z * p.batch_stride[3] + i * p.ld[3] + j);
            let within = if p.out_dtype.size() == 2 { 1e-2 } else { 1e-6 };
            assert!(
                (got - want).abs() <= within * (1.0 + want.abs()),
                "{p:?} ({z}, {i}, {j}): {got} for {want}"
            );
        }
    }
}

#[test]
fn products_of_both_libraries_are_row_major_products() {
    for names in dialects() {
        let blas = library(names);
        let types = [
            (DType::F32, DType::F32),
            (DType::F64, DType::F64),
            (DType::F16, DType::F16),
            (DType::Bf16, DType::Bf16),
            (DType::Bf16, DType::F32),
        ];
        let posts = [
            (false, BlasAct::Identity),
            (true, BlasAct::Identity),
            (true, BlasAct::Relu),
            (false, BlasAct::Relu),
            (true, BlasAct::GeluTanh),
        ];
        for (dtype, out_dtype) in types {
            for (ta, tb) in [(false, false), (false, true), (true, false), (true, true)] {
                for (bias, act) in posts {
                    let p = BlasProblem { dtype, out_dtype, bias, act, ..problem(3, 4, 5, 2, ta, tb) };
                    let fused = bias || act != BlasAct::Identity;
                    match blas.applicable(&p) {
                        Ok(()) => compare(&blas, &p),
                        Err(why) if dtype == DType::F64 => assert!(fused && why.contains("f64"), "{why}"),
                        Err(why) => assert!(bias && dtype != out_dtype && !names.bias_into_wider, "{why}"),
                    }
                }
            }
        }
        drop(blas);
        with(|l| assert_eq!(l.objects.len(), 0, "{}: something was left behind", l.names.library));
    }
}

#[test]
#[cfg(feature = "driver-hip")]
fn hipblaslt_is_given_its_own_numbers() {
    let blas = library(&crate::driver::hip::hipblaslt::NAMES);
    let p = BlasProblem {
        dtype: DType::Bf16,
        out_dtype: DType::Bf16,
        tf32: true,
        bias: true,
        act: BlasAct::Relu,
        ..problem(3, 4, 5, 2, true, false)
    };
    compare(&blas, &p);
    let [desc, first, second, c, d] = with(|l| l.ran.pop().unwrap());
    // HIPBLAS_COMPUTE_32F and HIP_R_32F.
    assert_eq!(desc.with, [2, 0]);
    // B as it is, A transposed: HIPBLAS_OP_N and HIPBLAS_OP_T; HIPBLASLT_EPILOGUE_RELU_BIAS; HIP_R_16BF.
    assert_eq!([0, 1, 2, 4].map(|a| desc.get(a)), [Some(111), Some(112), Some(6), Some(14)]);
    assert_eq!((&first.with, &second.with), (&vec![14, 4, 5, 6], &vec![14, 3, 5, 4]));
    assert_eq!((&c.with, &d.with), (&vec![14, 4, 3, 7], &vec![14, 4, 3, 4]));
    assert_eq!([first.get(0), first.get(1), d.get(1)], [Some(2), Some(30), Some(19)]);
    // Double precision.
    let double =
        BlasProblem { dtype: DType::F64, out_dtype: DType::F64, ..problem(3, 4, 5, 1, false, false) };
    compare(&blas, &double);
    assert_eq!(with(|l| l.ran.pop().unwrap())[0].with, [7, 1]);
    assert!(!blas.tf32() && blas.aligned_only() && blas.name() == "hipblaslt");
}

#[test]
fn a_problem_is_asked_about_once() {
    for names in dialects() {
        let blas = library(names);
        let p = problem(3, 4, 5, 1, false, false);
        (0..3).for_each(|_| compare(&blas, &p));
        assert_eq!(with(|l| l.heuristics), 1);
        let refused = BlasProblem { k: REFUSED, ld: [14, 6, 7, 4], ..p };
        let why = (0..3).map(|_| blas.applicable(&refused).unwrap_err()).next_back().unwrap();
        assert!(why.contains("NOT_SUPPORTED"), "{why}");
        assert_eq!((with(|l| l.heuristics), blas.workspace(&refused)), (2, 0));
        // What was made for it is gone: what is left are the handle, a descriptor and four layouts.
        assert_eq!(with(|l| l.objects.len()), 6);
    }
}

#[test]
fn calls_that_do_not_fit_their_problem_are_refused() {
    for names in dialects() {
        let blas = library(names);
        let p = problem(3, 4, 5, 1, false, false);
        let mut memory = Memory::new(DType::F32, &[0.0; 256]);
        let (m, mut room) = (memory.raw(), Memory::new(DType::F64, &[0.0; WORKSPACE / 8]));
        let room = room.raw();
        let run = |p: &BlasProblem, at: u64, bias, workspace| {
            // SAFETY: the memory is the host's, and larger than the problem; the result lies behind the operands.
            unsafe {
                let [a, b, c, d] = [at, 256, 512, 768].map(|at| (m, at));
                blas.gemm(RawStream(STREAM), p, 1.0, 0.0, a, b, c, d, bias, workspace)
            }
        };
        let invalid = |r: Result<()>, what: &str| match r {
            Err(GpuError::Driver(f)) if f.code == i64::from(names.invalid_value) => {
                assert!(f.name.contains(what), "{}", f.name);
            }
            other => panic!("{other:?}"),
        };
        invalid(run(&p, 0, None, Some((room, 0, 64))), "4096 bytes of workspace needed");
        invalid(run(&p, 0, Some((m, 0)), Some((room, 0, WORKSPACE))), "disagree");
        run(&p, 0, None, Some((room, 0, WORKSPACE))).unwrap();
        // A matrix at a multiple of its elements alone: with an algorithm for that, where the library has such.
        match run(&p, 4, None, None) {
            Ok(()) => assert!(!blas.aligned_only() && with(|l| l.heuristics) == 2),
            Err(e) => {
                assert!(blas.aligned_only() && matches!(e, GpuError::Unsupported { .. }), "{e}");
            }
        }
    }
}

#[test]
fn a_library_that_does_not_start_has_a_reason() {
    unsafe extern "C" fn none(_: *mut Raw) -> u32 {
        1
    }
    for names in dialects() {
        let table = Table { create: none, ..library(names).table };
        let why =
            Lt::new(table, names, DeviceId::new(BackendKind::Custom, 0), Box::new(|| Ok(()))).unwrap_err();
        assert!(why.contains("NOT_INITIALIZED") && why.contains(names.calls.create), "{why}");
    }
}
