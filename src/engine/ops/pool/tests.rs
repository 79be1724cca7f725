//! Pooling, doubling interpolation and embedding on an OpenCL device against the CPU backend in f64, in shapes that the kernels with several
//! outputs per thread serve and in shapes next to them. Operands are small multiples of 1/2, so that results must be equal.

use std::sync::{Mutex, MutexGuard, OnceLock};

use crate::buffer::{Buffer, GradMut};
use crate::dtype::DType;
use crate::engine::Engine;
use crate::ops::core::CoreOps;
use crate::ops::embedding::EmbeddingGrad;
use crate::ops::pool::*;
use crate::ops::resample::{Interpolate, InterpolateMode};
use crate::test_devices::present;
use crate::{CpuBackend, IGpuBackend, Result};

/// An OpenCL device, where there is one, shared by the tests of this file and locked while in use: one that is opened reads every program again.
fn opencl() -> MutexGuard<'static, Option<Engine>> {
    static DEVICE: OnceLock<Mutex<Option<Engine>>> = OnceLock::new();
    let open = || Mutex::new(present("opencl", crate::driver::opencl_open(0).and_then(Engine::new)));
    DEVICE.get_or_init(open).lock().unwrap_or_else(|p| p.into_inner())
}

const DTYPES: [DType; 3] = [DType::F32, DType::Bf16, DType::F64];

fn values(n: usize, seed: usize) -> Vec<f64> {
    (0..n).map(|i| ((i * 7919 + seed * 104_729 + i * i % 31) % 13) as f64 / 2.0 - 3.0).collect()
}

fn put(b: &dyn IGpuBackend, dtype: DType, v: &[f64]) -> Buffer {
    let mut buf = b.alloc(dtype, v.len()).unwrap();
    let bytes: Vec<u8> = match dtype {
        DType::F64 => v.iter().flat_map(|x| x.to_le_bytes()).collect(),
        DType::Bf16 => v.iter().flat_map(|&x| (((x as f32).to_bits() >> 16) as u16).to_le_bytes()).collect(),
        DType::I32 => v.iter().flat_map(|&x| (x as i32).to_le_bytes()).collect(),
        _ => v.iter().flat_map(|&x| (x as f32).to_le_bytes()).collect(),
    };
    b.write_bytes(buf.view_mut(), &bytes).unwrap();
    buf
}

fn get(b: &dyn IGpuBackend, buf: &Buffer) -> Vec<f64> {
    let mut raw = vec![0; buf.len() * buf.dtype().size()];
    b.read_bytes(buf.view(), &mut raw).unwrap();
    let word = |c: &[u8]| c.iter().rev().fold(0u32, |w, &b| w << 8 | u32::from(b));
    match buf.dtype() {
        DType::F64 => raw.chunks(8).map(|c| f64::from_le_bytes(c.try_into().unwrap())).collect(),
        DType::Bf16 => raw.chunks(2).map(|c| f64::from(f32::from_bits(word(c) << 16))).collect(),
        DType::I32 => raw.chunks(4).map(|c| f64::from(word(c) as i32)).collect(),
        _ => raw.chunks(4).map(|c| f64::from(f32::from_bits(word(c)))).collect(),
    }
}

fn count(s: &[usize]) -> usize {
    s.iter().product()
}

/// Holds what `run` returns on the device against what it returns on the CPU in f64.
fn compare(what: &str, run: impl Fn(&dyn IGpuBackend, DType) -> Result<Vec<Vec<f64>>>) {
    let device = opencl();
    let Some(gpu) = &*device else { return };
    let want = run(&CpuBackend::new(), DType::F64).unwrap();
    for dtype in DTYPES.into_iter().filter(|&d| gpu.caps().supports(d)) {
        let got = run(gpu, dtype).unwrap();
        for (k, (got, want)) in got.iter().zip(&want).enumerate() {
            let same = |(g, w): (&f64, &f64)| g == w || (g.is_nan() && w.is_nan());
            let wrong = got.iter().zip(want).position(|p| !same(p));
            assert!(
                wrong.is_none(),
                "{what} {dtype}: result {k} at {wrong:?}: {:?} for {:?}",
                wrong.map(|i| got[i]),
                wrong.map(|i| want[i])
            );
        }
    }
}

fn pools(windows: &Window, input: &[usize]) {
    let out = windows.output_size(input).unwrap();
    let (xs, ys) = ([&[2, 3], input].concat(), [&[2, 3], &out[..]].concat());
    let p: Pooling = (*windows).into();
    for strange in [None, Some(f64::NAN), Some(f64::NEG_INFINITY)] {
        compare(&format!("{input:?} with {strange:?}"), |b, t| {
            let mut x = values(count(&xs), 1);
            match strange {
                Some(s) if s.is_nan() => x.iter_mut().step_by(11).for_each(|x| *x = s),
                Some(s) => x[..count(input)].fill(s),
                None => {}
            }
            let (bx, dy) = (put(b, t, &x), put(b, t, &values(count(&ys), 2)));
            let (mut y, mut alone, mut dx) =
                (b.alloc(t, count(&ys))?, b.alloc(t, count(&ys))?, put(b, t, &values(x.len(), 3)));
            let mut index = b.alloc(DType::I32, count(&ys))?;
            let (x, g) = (bx.shaped(&xs)?, dy.shaped(&ys)?);
            b.max_pool(p, x, y.shaped_mut(&ys)?, Some(index.shaped_mut(&ys)?))?;
            b.max_pool(p, x, alone.shaped_mut(&ys)?, None)?;
            let mut all = vec![get(b, &y), get(b, &alone), get(b, &index)];
            for accumulate in [true, false] {
                b.max_pool_bwd(p, g, index.shaped(&ys)?, dx.shaped_mut(&xs)?.grad(accumulate))?;
                all.push(get(b, &dx));
            }
            b.avg_pool(p, x, y.shaped_mut(&ys)?)?;
            all.push(get(b, &y));
            for accumulate in [true, false] {
                b.avg_pool_bwd(p, g, dx.shaped_mut(&xs)?.grad(accumulate))?;
                all.push(get(b, &dx));
            }
            Ok(all)
        });
    }
}

#[test]
fn pools_that_halve() {
    for input in [[8, 16], [7, 16], [1, 8], [9, 32], [6, 12], [5, 14], [4, 15]] {
        for (side, pad) in [(2, 0), (3, 1)] {
            for ceil in [false, true] {
                if input[0] + 2 * pad >= side {
                    let w = Window::new(&[side]).stride(&[2]).padding(&[pad]).ceil_mode(ceil);
                    pools(&w.divisor(4), &input);
                }
            }
        }
    }
}

/// An index outside the plane is an error, and every window is looked at.
#[test]
fn positions_out_of_range_are_reported() {
    let device = opencl();
    let Some(gpu) = &*device else { return };
    for (side, pad) in [(2, 0), (3, 1)] {
        let p: Pooling = Window::new(&[side]).stride(&[2]).padding(&[pad]).into();
        for bad in 0..12 {
            let mut at = vec![0.0; 12];
            at[bad] = if bad % 2 == 0 { 48.0 } else { -2.0 };
            let (dy, index) = (put(gpu, DType::F32, &[1.0; 12]), put(gpu, DType::I32, &at));
            let mut dx = gpu.alloc(DType::F32, 48).unwrap();
            let shape = [1, 1, 3, 4];
            let to: GradMut<'_> = dx.shaped_mut(&[1, 1, 6, 8]).unwrap().into();
            gpu.max_pool_bwd(p, dy.shaped(&shape).unwrap(), index.shaped(&shape).unwrap(), to).unwrap();
            assert!(gpu.synchronize().is_err(), "window {bad} of side {side}");
        }
    }
}

#[test]
fn interpolation_that_doubles() {
    for input in [[2, 3, 8], [1, 5, 4], [3, 2, 6], [2, 2, 5]] {
        for factor in [[2, 2, 2], [1, 2, 2], [2, 1, 2], [1, 1, 2], [2, 2, 1], [3, 2, 2]] {
            let output: [usize; 3] = std::array::from_fn(|a| input[a] * factor[a]);
            let (xs, ys) = ([&[2, 3], &input[..]].concat(), [&[2, 3], &output[..]].concat());
            for mode in [InterpolateMode::Nearest, InterpolateMode::NearestExact] {
                compare(&format!("{input:?} to {output:?}"), |b, t| {
                    let (x, dy) = (put(b, t, &values(count(&xs), 1)), put(b, t, &values(count(&ys), 2)));
                    let (mut y, mut dx) = (b.alloc(t, count(&ys))?, put(b, t, &values(count(&xs), 3)));
                    let p = Interpolate::new(mode);
                    b.interpolate(p, x.shaped(&xs)?, y.shaped_mut(&ys)?)?;
                    let mut all = vec![get(b, &y)];
                    for accumulate in [true, false] {
                        b.interpolate_bwd(p, dy.shaped(&ys)?, dx.shaped_mut(&xs)?.grad(accumulate))?;
                        all.push(get(b, &dx));
                    }
                    Ok(all)
                });
            }
        }
    }
}

#[test]
fn embedding_of_wide_and_narrow_rows() {
    for (rows, width, tokens) in [(70, 24, 50), (5, 8, 1500), (33, 3, 40), (1, 16, 1)] {
        compare(&format!("{tokens} of {rows} rows of {width}"), |b, t| {
            let ids: Vec<f64> = (0..tokens).map(|i| (i * i * 3 % rows) as f64).collect();
            let (ids, table) = (put(b, DType::I32, &ids), put(b, t, &values(rows * width, 1)));
            // Few tokens have a gradient, so that sums stay exact in all types.
            let dy: Vec<f64> =
                (0..tokens * width).map(|i| if i / width < 20 { (i % 5) as f64 } else { 0.0 }).collect();
            let dy = put(b, t, &dy);
            let (mut y, mut dtable) = (b.alloc(t, tokens * width)?, put(b, t, &values(rows * width, 2)));
            let (s, ts) = ([tokens, width], [rows, width]);
            b.embedding(None, ids.shaped(&[tokens])?, table.shaped(&ts)?, y.shaped_mut(&s)?)?;
            let mut all = vec![get(b, &y)];
            for accumulate in [true, false] {
                let g = dtable.shaped_mut(&ts)?.grad(accumulate);
                b.embedding_bwd(&EmbeddingGrad::new(), dy.shaped(&s)?, ids.shaped(&[tokens])?, g)?;
                all.push(get(b, &dtable));
            }
            Ok(all)
        });
    }
}
