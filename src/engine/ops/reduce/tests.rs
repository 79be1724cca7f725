//! The engine on an OpenCL device against the CPU backend: reductions and softmax over every order of the axes.

use half::{bf16, f16};

use crate::buffer::{Buffer, View};
use crate::dtype::DType;
use crate::engine::Engine;
use crate::layout::Layout;
use crate::ops::reduce::*;
use crate::ops::softmax::Softmax;
use crate::test_devices::present;
use crate::{CpuBackend, IGpuBackend};

fn opencl() -> Option<Engine> {
    present("opencl", crate::driver::opencl_open(0).and_then(Engine::new))
}

/// Values in (-1.5, 1.5) that look random, as bytes of a dtype.
fn values(dtype: DType, n: usize, seed: u64) -> Vec<u8> {
    let mut s = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        s ^= s << 13;
        s ^= s >> 7;
        s ^= s << 17;
        (s >> 40) as f64 / 5592405.0 - 1.5
    };
    let mut out = vec![];
    for _ in 0..n {
        let x = next();
        match dtype {
            DType::F16 => out.extend(crate::dtype::f16_from_f64(x).to_le_bytes()),
            DType::Bf16 => out.extend(crate::dtype::bf16_from_f64(x).to_le_bytes()),
            DType::F64 => out.extend(x.to_le_bytes()),
            _ => out.extend((x as f32).to_le_bytes()),
        }
    }
    out
}

fn put(b: &dyn IGpuBackend, dtype: DType, n: usize, seed: u64) -> Buffer {
    let mut buf = b.alloc(dtype, n).unwrap();
    b.write_bytes(buf.view_mut(), &values(dtype, n, seed)).unwrap();
    buf
}

fn bytes(b: &dyn IGpuBackend, buf: &Buffer) -> Vec<u8> {
    let mut out = vec![0; buf.len() * buf.dtype().size()];
    b.read_bytes(buf.view(), &mut out).unwrap();
    out
}

fn get(b: &dyn IGpuBackend, buf: &Buffer) -> Vec<f64> {
    let raw = bytes(b, buf);
    match buf.dtype() {
        DType::F16 => raw.chunks(2).map(|c| f16::from_le_bytes([c[0], c[1]]).to_f64()).collect(),
        DType::Bf16 => raw.chunks(2).map(|c| bf16::from_le_bytes([c[0], c[1]]).to_f64()).collect(),
        DType::F64 => raw.chunks(8).map(|c| f64::from_le_bytes(c.try_into().unwrap())).collect(),
        DType::I64 => raw.chunks(8).map(|c| i64::from_le_bytes(c.try_into().unwrap()) as f64).collect(),
        _ => raw.chunks(4).map(|c| f32::from_le_bytes(c.try_into().unwrap()) as f64).collect(),
    }
}

/// Runs the same calls on both backends, twice on the device, and compares what they wrote into a buffer of `n` elements.
fn compare(
    what: &str,
    gpu: &Engine,
    dtype: DType,
    n: usize,
    tol: f64,
    run: &dyn Fn(&dyn IGpuBackend, &mut Buffer),
) {
    let cpu = CpuBackend::new();
    let result = |b: &dyn IGpuBackend| {
        let mut out = if dtype == DType::I64 { b.alloc(dtype, n).unwrap() } else { put(b, dtype, n, 99) };
        run(b, &mut out);
        out
    };
    let (a, d, again) = (result(&cpu), result(gpu), result(gpu));
    assert_eq!(bytes(gpu, &d), bytes(gpu, &again), "{what} {dtype}: two runs differ");
    let unit = match dtype {
        DType::F16 => 1.0 / 1024.0,
        DType::Bf16 => 1.0 / 128.0,
        _ => 0.0,
    };
    for (i, (x, y)) in get(&cpu, &a).into_iter().zip(get(gpu, &d)).enumerate() {
        let same = x == y || (x.is_nan() && y.is_nan()) || (x - y).abs() <= (tol + unit) * (1.0 + x.abs());
        assert!(same, "{what} {dtype}: element {i}: {x} on the CPU, {y} on the device");
    }
}

const FLOATS: [DType; 4] = [DType::F32, DType::F16, DType::Bf16, DType::F64];

/// Shape, strides, offset, reduced axes.
type Case = (&'static [usize], &'static [usize], usize, &'static [usize]);

const CASES: &[Case] = &[
    (&[3, 40001], &[40001, 1], 0, &[1]), // long rows, cut, at any alignment
    (&[70000], &[1], 3, &[0]),           // one row that starts off the boundary
    (&[500, 64], &[64, 1], 0, &[1]),     // short rows
    (&[301, 7], &[7, 1], 0, &[1]),       // shorter than an item
    (&[5000, 48], &[48, 1], 0, &[0]),    // columns in items, cut
    (&[900, 33], &[33, 1], 1, &[0]),     // columns one by one
    (&[2, 3000], &[3000, 1], 0, &[0]),   // two rows
    (&[6, 5, 16, 8], &[640, 128, 8, 1], 0, &[0, 2, 3]), // channels
    (&[4, 30, 6], &[180, 6, 1], 0, &[1]), // an inner axis
    (&[16, 24], &[1, 16], 0, &[1]),      // transposed
    (&[10, 9, 8], &[288, 16, 2], 1, &[0, 2]), // with gaps
    (&[12, 40], &[0, 1], 0, &[0]),       // repeated
    (&[3, 4], &[4, 1], 0, &[]),          // nothing
];

fn view<'a>(buf: &'a Buffer, (shape, strides, offset, _): &Case) -> View<'a> {
    buf.view().with_layout(Layout::strided(shape, strides, *offset).unwrap()).unwrap()
}

/// Elements that a buffer under the view has.
fn reach((shape, strides, offset, _): &Case) -> usize {
    offset + shape.iter().zip(*strides).map(|(n, s)| (n - 1) * s).sum::<usize>() + 1
}

fn results((shape, _, _, axes): &Case) -> Vec<usize> {
    (0..shape.len()).map(|a| if axes.contains(&a) { 1 } else { shape[a] }).collect()
}

const OPS: [Reduce; 13] = [
    Reduce::Sum,
    Reduce::Mean,
    Reduce::Max,
    Reduce::Min,
    Reduce::MaxAbs,
    Reduce::MinAbs,
    Reduce::Var { correction: 1.0 },
    Reduce::Std { correction: 0.0 },
    Reduce::LogVar { correction: 0.0, eps: 1e-3 },
    Reduce::Norm { p: 2.0 },
    Reduce::Norm { p: 3.0 },
    Reduce::LogSumExp,
    Reduce::SumSq,
];

#[test]
fn reductions_agree_with_the_cpu() {
    let Some(gpu) = opencl() else { return };
    for case in CASES {
        let (shape, reduced) = (case.0, results(case));
        let n: usize = reduced.iter().product();
        for (k, &op) in OPS.iter().enumerate() {
            // every storage type for sums, in turn for the rest
            for dtype in FLOATS.into_iter().enumerate().filter(|(i, _)| k == 0 || k % 4 == *i).map(|(_, d)| d)
            {
                // sums of many terms of either sign: relative to the magnitudes
                let many = case.3.iter().map(|&a| shape[a]).product::<usize>() as f64;
                let tol = if matches!(op, Reduce::Sum) { 1e-6 * many.max(1.0) } else { 2e-5 };
                compare(&format!("{op:?} {case:?}"), &gpu, dtype, n, tol, &|b, out| {
                    let x = put(b, dtype, reach(case), 1);
                    b.reduce(op, case.3, view(&x, case), out.shaped_mut(&reduced).unwrap()).unwrap();
                });
            }
        }
        compare(&format!("sum_to_shape {case:?}"), &gpu, DType::F32, n, 1e-5, &|b, out| {
            let x = put(b, DType::F32, reach(case), 1);
            b.sum_to_shape(view(&x, case), out.shaped_mut(&reduced).unwrap().accumulate()).unwrap();
        });
        if let &[axis] = case.3 {
            compare(&format!("argmin {case:?}"), &gpu, DType::I64, n, 0.0, &|b, out| {
                let x = put(b, DType::Bf16, reach(case), 1);
                b.arg_reduce(ArgReduce::Min, axis, view(&x, case), out.shaped_mut(&reduced).unwrap(), None)
                    .unwrap();
            });
        }
    }
}

#[test]
fn gradients_of_reductions_agree_with_the_cpu() {
    let Some(gpu) = opencl() else { return };
    for (c, case) in CASES.iter().enumerate() {
        let (shape, reduced) = (case.0, results(case));
        let (n, outputs): (usize, usize) = (shape.iter().product(), reduced.iter().product());
        for (k, &op) in OPS.iter().enumerate() {
            if (k + c) % 3 != 0 {
                continue;
            }
            let dtype = FLOATS[k % 4];
            // A variance of one element, or of equal ones, has no gradient worth comparing.
            if case.3.is_empty() || case.1.contains(&0) {
                continue;
            }
            compare(&format!("{op:?} gradient {case:?}"), &gpu, dtype, n, 5e-5, &|b, out| {
                let (x, dy) = (put(b, dtype, reach(case), 1), put(b, dtype, outputs, 2));
                let dx = out.shaped_mut(shape).unwrap().grad(c % 2 == 0);
                b.reduce_bwd(op, case.3, dy.shaped(&reduced).unwrap(), Some(view(&x, case)), None, dx)
                    .unwrap();
            });
        }
    }
}

#[test]
fn softmax_agrees_with_the_cpu() {
    let Some(gpu) = opencl() else { return };
    let cases: [(&[usize], usize, usize); 9] = [
        (&[700, 64], 1, 0),
        (&[3, 20480], 1, 0),
        (&[2, 20001], 1, 1),
        (&[40, 1000], 1, 3),
        (&[9, 37], 1, 0),
        (&[3, 50, 24], 1, 0),
        (&[200, 7], 0, 1),
        (&[5, 1], 1, 0),
        (&[2, 2048, 4], 1, 0),
    ];
    for (i, (shape, axis, offset)) in cases.into_iter().enumerate() {
        let n: usize = shape.iter().product();
        let layout = Layout::contiguous(shape).and_then(|l| l.shifted(offset)).unwrap();
        // f32, and one of the other types in turn
        let kinds = [Softmax::Softmax, Softmax::LogSoftmax].into_iter().enumerate();
        for (kind, dtype) in
            kinds.flat_map(|(k, kind)| [FLOATS[0], FLOATS[1 + (i + k) % 3]].map(|d| (kind, d)))
        {
            compare(&format!("{kind:?} {shape:?}"), &gpu, dtype, n + offset, 2e-6, &|b, out| {
                let x = put(b, dtype, n + offset, 1);
                b.softmax(
                    kind,
                    axis,
                    x.view().with_layout(layout).unwrap(),
                    out.view_mut().with_layout(layout).unwrap(),
                )
                .unwrap();
            });
            compare(&format!("{kind:?} gradient {shape:?}"), &gpu, dtype, n + offset, 1e-4, &|b, out| {
                let (dy, y) = (put(b, dtype, n + offset, 1), put(b, dtype, n + offset, 2));
                let (dy, y) = (dy.view().with_layout(layout).unwrap(), y.view().with_layout(layout).unwrap());
                b.softmax_bwd(
                    kind,
                    axis,
                    dy,
                    y,
                    out.view_mut().with_layout(layout).unwrap().grad(i % 2 == 0),
                )
                .unwrap();
            });
        }
    }
}
