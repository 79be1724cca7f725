//! The engine on an OpenCL device against the CPU backend: movement and indexing give the same bits.

use std::sync::{Mutex, OnceLock};

use crate::buffer::Buffer;
use crate::dtype::{DType, Element};
use crate::engine::Engine;
use crate::error::Result;
use crate::layout::Layout;
use crate::ops::core::CoreOps;
use crate::ops::index::ScatterReduce;
use crate::ops::shape::*;
use crate::test_devices::present;
use crate::{CpuBackend, IGpuBackend};

/// An OpenCL device, where there is one, shared by the tests of this file. Its absence is printed, or a failure where `TREFOIL_REQUIRE`
/// asks for it. Locked while in use: PoCL compiles on one thread only.
fn opencl() -> std::sync::MutexGuard<'static, Option<Engine>> {
    static DEVICE: OnceLock<Mutex<Option<Engine>>> = OnceLock::new();
    let open = || Mutex::new(present("opencl", crate::driver::opencl_open(0).and_then(Engine::new)));
    DEVICE.get_or_init(open).lock().unwrap_or_else(|p| p.into_inner())
}

fn upload<T: Element>(b: &dyn IGpuBackend, data: &[T]) -> Buffer {
    let mut buf = b.alloc(T::DTYPE, data.len()).unwrap();
    b.write_bytes(buf.view_mut(), bytemuck::cast_slice(data)).unwrap();
    buf
}

fn download(b: &dyn IGpuBackend, buf: &Buffer) -> Vec<u8> {
    let mut out = vec![0; buf.len() * buf.dtype().size()];
    b.read_bytes(buf.view(), &mut out).unwrap();
    out
}

/// Deterministic bytes that look random.
fn noise(n: usize, seed: u64) -> Vec<u8> {
    let mut s = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..n)
        .map(|_| {
            s ^= s << 13;
            s ^= s >> 7;
            s ^= s << 17;
            (s >> 32) as u8
        })
        .collect()
}

/// Small whole numbers of a dtype, exact in every type, as bytes.
fn numbers(dtype: DType, n: usize, seed: u64) -> Vec<u8> {
    use crate::cpu::{HostElement, with_dtype};
    with_dtype!(dtype, T => {
        let v: Vec<T> = noise(n, seed).into_iter().map(|b| <T as HostElement>::from_f64((b % 61) as f64)).collect();
        bytemuck::cast_slice::<T, u8>(&v).to_vec()
    })
}

fn buffer(b: &dyn IGpuBackend, dtype: DType, bytes: &[u8]) -> Buffer {
    let mut buf = b.alloc(dtype, bytes.len() / dtype.size()).unwrap();
    b.write_bytes(buf.view_mut(), bytes).unwrap();
    buf
}

/// Runs `f` on every backend; all must give the same bytes.
fn agree(what: &str, f: impl Fn(&dyn IGpuBackend) -> Result<Vec<u8>>) {
    let want = f(&CpuBackend::new()).unwrap_or_else(|e| panic!("{what} on the CPU: {e}"));
    if let Some(engine) = &*opencl() {
        let got = f(engine).unwrap_or_else(|e| panic!("{what} on {}: {e}", engine.id()));
        assert!(want == got, "{what} on {}:\n{got:?}\nwant\n{want:?}", engine.id());
    }
}

#[test]
fn strided_copies() {
    let lay = |s: &[usize], st: &[usize], o| Layout::strided(s, st, o).unwrap();
    let c = |s: &[usize]| Layout::contiguous(s).unwrap();
    let p = |s: &[usize], perm: &[usize]| c(s).permute(perm).unwrap();
    // Source and destination layouts of one shape.
    let cases = [
        (c(&[5, 7]), c(&[5, 7])),
        (p(&[70, 131], &[1, 0]), c(&[131, 70])),
        (p(&[3, 64, 128], &[0, 2, 1]), c(&[3, 128, 64])),
        (p(&[2, 16, 3, 32], &[0, 2, 1, 3]), c(&[2, 3, 16, 32])),
        (p(&[2, 20, 3, 24], &[3, 2, 1, 0]), c(&[24, 3, 20, 2])),
        (c(&[33, 40]), p(&[40, 33], &[1, 0])),
        (lay(&[6, 9], &[40, 2], 3), lay(&[6, 9], &[9, 1], 1)),
        (c(&[1, 17]).broadcast_to(&[12, 17]).unwrap(), c(&[12, 17])),
        (c(&[12, 1]).broadcast_to(&[12, 17]).unwrap(), lay(&[12, 17], &[32, 1], 16)),
        (lay(&[4, 16], &[32, 1], 16), lay(&[4, 16], &[48, 1], 32)),
        (lay(&[1000], &[1], 1), lay(&[1000], &[3], 2)),
        (p(&[2, 1, 3, 2, 2, 1, 2, 3], &[7, 3, 0, 5, 2, 6, 1, 4]), c(&[3, 2, 2, 1, 3, 2, 1, 2])),
        (c(&[]), c(&[])),
        (c(&[3, 0]), c(&[3, 0])),
    ];
    for dtype in DType::ALL {
        for (i, (from, to)) in cases.iter().enumerate() {
            for accumulate in [false, true] {
                if accumulate && !dtype.is_float() {
                    continue;
                }
                agree(&format!("case {i} {dtype} accumulate {accumulate}"), |b| {
                    let x = buffer(b, dtype, &numbers(dtype, from.span().end, 1));
                    let mut y = buffer(b, dtype, &numbers(dtype, to.span().end + 3, 2));
                    b.strided_copy(
                        x.view().with_layout(*from)?,
                        y.view_mut().with_layout(*to)?.grad(accumulate),
                    )?;
                    Ok(download(b, &y))
                });
            }
        }
    }
}

#[test]
fn fills() {
    for dtype in DType::ALL {
        for (n, at) in [(0, 0), (1, 0), (5, 3), (300, 0), (1031, 7)] {
            agree(&format!("fill {dtype} {n}"), |b| {
                let mut y = buffer(b, dtype, &numbers(dtype, 1100, 3));
                b.fill(2.5, y.view_mut().range(at, n)?)?;
                b.fill_bytes(&[1, 2, 3, 4, 5, 6, 7, 8][..dtype.size()], y.view_mut().range(40, 2)?)?;
                b.fill(-1.0, y.view_mut().with_layout(Layout::strided(&[3, 8], &[32, 1], 128).unwrap())?)?;
                b.fill(7.0, y.view_mut().with_layout(Layout::strided(&[3, 5], &[1, 20], 330).unwrap())?)?;
                Ok(download(b, &y))
            });
        }
    }
}

/// Index values below `limit` (many of them equal) as a buffer of i32 or i64.
fn indices(b: &dyn IGpuBackend, wide: bool, n: usize, limit: usize, seed: u64) -> Buffer {
    let raw: Vec<i64> =
        noise(2 * n, seed).chunks(2).map(|c| (c[0] as i64 * 256 + c[1] as i64) % limit as i64).collect();
    match wide {
        true => upload::<i64>(b, &raw),
        false => upload::<i32>(b, &raw.iter().map(|&i| i as i32).collect::<Vec<_>>()),
    }
}

#[test]
fn rows_are_selected_and_added() {
    for dtype in DType::ALL {
        for (outer, size, inner, n, wide) in [
            (1, 9, 5, 7, true),
            (3, 4, 8, 40, false),
            (1, 3, 1, 300, true),
            (2, 5, 16, 70, true),
            (1, 900, 1, 3000, false),
        ] {
            let what = format!("{dtype} [{outer}, {size}, {inner}] n {n}");
            agree(&what, |b| {
                let x = buffer(b, dtype, &numbers(dtype, outer * size * inner, 1));
                let index = indices(b, wide, n, size, 2);
                let mut y = buffer(b, dtype, &numbers(dtype, outer * n * inner, 3));
                let acc = dtype.is_float() && n % 2 == 0;
                let xv = x.shaped(&[outer, size, inner])?;
                b.index_select(1, xv, index.view(), y.shaped_mut(&[outer, n, inner])?.grad(acc))?;
                Ok(download(b, &y))
            });
            if dtype == DType::U8 {
                continue;
            }
            // Sums of whole numbers are exact, except in bf16 and f16, where a sum may need rounding: once, in both.
            agree(&what, |b| {
                let mut y = buffer(b, dtype, &numbers(dtype, outer * size * inner, 1));
                let index = indices(b, wide, n, size, 2);
                let src = buffer(b, dtype, &numbers(dtype, outer * n * inner, 3));
                let yv = y.shaped_mut(&[outer, size, inner])?;
                b.index_add(1, -2.0, index.view(), src.shaped(&[outer, n, inner])?, yv)?;
                Ok(download(b, &y))
            });
        }
    }
}

/// A tensor of small whole numbers.
fn tensor(b: &dyn IGpuBackend, dtype: DType, shape: &[usize], seed: u64) -> Buffer {
    buffer(b, dtype, &numbers(dtype, shape.iter().product(), seed))
}

#[test]
fn paddings_and_their_gradients() {
    use PadMode::*;
    type Case = (PadMode, &'static [usize], &'static [(isize, isize)]);
    let cases: [Case; 10] = [
        (Constant(2.0), &[3, 4], &[(1, 2), (0, 3)]),
        (Constant(-1.0), &[5, 3, 16], &[(2, 0), (-1, 1), (0, 0)]),
        (Reflect, &[2, 5, 7], &[(0, 0), (4, 3), (6, 2)]),
        (Reflect, &[6, 8], &[(-2, 3), (2, -1)]),
        (Replicate, &[2, 3, 1], &[(0, 1), (5, 0), (3, 3)]),
        (Replicate, &[6, 8], &[(-2, 3), (2, -5)]),
        (Circular, &[3, 4, 8], &[(3, 3), (4, 2), (0, 0)]),
        (Circular, &[6, 8], &[(-2, 3), (7, -1)]),
        (Circular, &[4], &[(-1, 1)]),
        (Circular, &[3, 7, 5], &[(-1, 2), (3, -2), (-2, -1)]),
    ];
    for dtype in [DType::F32, DType::Bf16, DType::I64, DType::U8] {
        for (i, (mode, shape, pads)) in cases.iter().enumerate() {
            let padded: Vec<usize> =
                shape.iter().zip(*pads).map(|(&n, &(b, a))| (n as isize + b + a) as usize).collect();
            agree(&format!("pad {i} {dtype}"), |b| {
                let x = tensor(b, dtype, shape, 1);
                let mut y = tensor(b, dtype, &padded, 2);
                b.pad(*mode, pads, x.shaped(shape)?, y.shaped_mut(&padded)?)?;
                Ok(download(b, &y))
            });
            if !dtype.is_float() {
                continue;
            }
            agree(&format!("pad_bwd {i} {dtype}"), |b| {
                let dy = tensor(b, dtype, &padded, 1);
                let mut dx = tensor(b, dtype, shape, 2);
                b.pad_bwd(*mode, pads, dy.shaped(&padded)?, dx.shaped_mut(shape)?.grad(i % 2 == 1))?;
                Ok(download(b, &dx))
            });
        }
    }
}

#[test]
fn flips_rolls_triangles_and_repeats() {
    for dtype in [DType::F32, DType::F16, DType::I64, DType::U8] {
        let shape = [3, 4, 32];
        let acc = dtype.is_float();
        agree(&format!("{dtype}"), |b| {
            let x = tensor(b, dtype, &shape, 1);
            let mut all = vec![];
            let strided = x
                .view()
                .with_layout(Layout::contiguous(&[32, 4, 3]).unwrap().permute(&[2, 1, 0]).unwrap())?;
            for v in [x.shaped(&shape)?, strided] {
                let mut y = tensor(b, dtype, &shape, 2);
                b.flip(&[0, 1], v, y.shaped_mut(&shape)?.grad(false))?;
                all.extend(download(b, &y));
                b.flip(&[2], v, y.shaped_mut(&shape)?.grad(acc))?;
                all.extend(download(b, &y));
                b.roll(&[1, -3], &[0, 1], v, y.shaped_mut(&shape)?.grad(acc))?;
                all.extend(download(b, &y));
                b.roll(&[-70], &[2], v, y.shaped_mut(&shape)?.into())?;
                all.extend(download(b, &y));
                for (side, k) in
                    [(Triangle::Lower, 0), (Triangle::Upper, 2), (Triangle::Lower, -2), (Triangle::Upper, -9)]
                {
                    b.triangle(side, k, v, y.shaped_mut(&shape)?.grad(acc && k == 2))?;
                    all.extend(download(b, &y));
                }
                let mut r = tensor(b, dtype, &[3, 12, 32], 2);
                b.repeat_interleave(1, 3, None, v, r.shaped_mut(&[3, 12, 32])?)?;
                all.extend(download(b, &r));
                let counts = upload::<i32>(b, &[2, 0, 9, 1]);
                b.repeat_interleave(1, 0, Some(counts.view()), v, r.shaped_mut(&[3, 12, 32])?)?;
                all.extend(download(b, &r));
                if acc {
                    let dy = tensor(b, dtype, &[3, 12, 32], 5);
                    b.repeat_interleave_bwd(
                        1,
                        3,
                        None,
                        dy.shaped(&[3, 12, 32])?,
                        y.shaped_mut(&shape)?.into(),
                    )?;
                    all.extend(download(b, &y));
                    let g = y.shaped_mut(&shape)?.grad(true);
                    b.repeat_interleave_bwd(1, 0, Some(counts.view()), dy.shaped(&[3, 12, 32])?, g)?;
                    all.extend(download(b, &y));
                    let dy = tensor(b, dtype, &[3, 4, 9, 6], 6);
                    b.unfold_bwd(2, 6, 3, dy.shaped(&[3, 4, 9, 6])?, y.shaped_mut(&shape)?.grad(true))?;
                    all.extend(download(b, &y));
                }
            }
            Ok(all)
        });
    }
}

#[test]
fn concatenations_of_more_inputs_than_a_launch_takes() {
    for (dtype, inner) in [(DType::F32, 4), (DType::F16, 3), (DType::U8, 1), (DType::F64, 2)] {
        agree(&format!("{dtype}"), |b| {
            let sizes = [1, 2, 0, 4, 1, 1, 3, 2, 5, 1, 2];
            let parts: Vec<Buffer> =
                sizes.iter().map(|&s| tensor(b, dtype, &[3, s, inner], s as u64)).collect();
            let views: Vec<_> =
                parts.iter().zip(sizes).map(|(p, s)| p.shaped(&[3, s, inner]).unwrap()).collect();
            let total = [3, sizes.iter().sum(), inner];
            let mut y = tensor(b, dtype, &total, 1);
            b.concat(1, &views, y.shaped_mut(&total)?)?;
            Ok(download(b, &y))
        });
    }
}

#[test]
fn cells_are_gathered_and_scattered() {
    for dtype in DType::ALL {
        for (n, wide) in [(2, true), (40, false), (700, true)] {
            let (shape, ishape) = ([5, 60, 3], [4, n, 3]);
            agree(&format!("{dtype} n {n}"), |b| {
                let count = ishape.iter().product();
                let index = indices(b, wide, count, 60, 2);
                let index = index.shaped(&ishape)?;
                let (x, src) = (tensor(b, dtype, &shape, 1), tensor(b, dtype, &ishape, 4));
                let mut y = tensor(b, dtype, &ishape, 3);
                b.gather(1, x.shaped(&shape)?, index, y.shaped_mut(&ishape)?.grad(dtype.is_float()))?;
                let mut all = download(b, &y);
                let mut z = tensor(b, dtype, &shape, 5);
                b.scatter(1, index, src.shaped(&ishape)?, z.shaped_mut(&shape)?)?;
                all.extend(download(b, &z));
                b.scatter_bwd(
                    1,
                    x.shaped(&shape)?,
                    index,
                    Some(z.shaped_mut(&shape)?.grad(dtype.is_float())),
                    Some(y.shaped_mut(&ishape)?.into()),
                )?;
                all.extend(download(b, &z));
                all.extend(download(b, &y));
                let rows = indices(b, wide, n, 60, 8);
                b.index_fill(1, 3.0, rows.view(), z.shaped_mut(&shape)?)?;
                let many = tensor(b, dtype, &[5, n, 3], 9);
                b.index_copy(1, rows.view(), many.shaped(&[5, n, 3])?, z.shaped_mut(&shape)?)?;
                all.extend(download(b, &z));
                let (i, j) = (indices(b, wide, 7, 5, 1), indices(b, wide, n, 60, 2));
                let at = [i.shaped(&[7, 1])?, j.view()];
                let v = tensor(b, dtype, &[7, n, 3], 6);
                b.index_put(false, &at, v.shaped(&[7, n, 3])?, z.shaped_mut(&shape)?)?;
                if dtype == DType::F32 || dtype == DType::I64 {
                    b.index_put(true, &at, v.shaped(&[7, n, 3])?, z.shaped_mut(&shape)?)?;
                }
                all.extend(download(b, &z));
                Ok(all)
            });
        }
    }
}

#[test]
fn reductions_by_destination() {
    use ScatterReduce::*;
    for dtype in [DType::F32, DType::F64, DType::I32, DType::I64] {
        for how in [Sum, Mean, Amax, Amin, Prod] {
            for include in [false, true] {
                for n in [1, 50, 5000] {
                    if how == Prod && n > 50 {
                        continue;
                    }
                    agree(&format!("{how:?} {dtype} include {include} n {n}"), |b| {
                        let index = indices(b, n % 4 == 0, n, 40, 2);
                        let src = tensor(b, dtype, &[n], 3);
                        let mut y = tensor(b, dtype, &[50], 1);
                        b.scatter_reduce(how, 0, include, index.view(), src.view(), y.view_mut())?;
                        Ok(download(b, &y))
                    });
                }
            }
        }
    }
}

#[test]
fn masks_select_in_order() {
    for dtype in DType::ALL {
        for n in [0, 1, 1000, 1024, 5003] {
            agree(&format!("{dtype} n {n}"), |b| {
                let bits: Vec<u8> = noise(n, 7).into_iter().map(|m| (m % 3 == 0) as u8 * m).collect();
                let trues = bits.iter().filter(|&&m| m != 0).count();
                let (mask, x) = (upload::<u8>(b, &bits), tensor(b, dtype, &[n], 1));
                let (mut y, mut count) = (tensor(b, dtype, &[trues + 2], 2), upload::<i64>(b, &[-1]));
                b.masked_select(mask.view(), x.view(), y.view_mut(), count.view_mut())?;
                let mut all = download(b, &y);
                all.extend(download(b, &count));
                let mut z = tensor(b, dtype, &[n], 3);
                b.masked_scatter(mask.view(), y.view(), z.view_mut())?;
                all.extend(download(b, &z));
                if dtype.is_float() {
                    b.masked_select_bwd(mask.view(), y.view(), z.view_mut().grad(n == 1000))?;
                    all.extend(download(b, &z));
                }
                let shape = [n / 8, 4, 2];
                let cells: usize = shape.iter().product();
                let mut index = upload::<i64>(b, &vec![-1; 3 * cells]);
                let at = index.shaped_mut(&[cells, 3])?;
                b.nonzero(z.view().range(0, cells)?.reshape(&shape)?, at, count.view_mut())?;
                all.extend(download(b, &index));
                all.extend(download(b, &count));
                Ok(all)
            });
        }
    }
}

#[test]
fn sorts_are_stable() {
    let device = opencl();
    let Some(e) = &*device else { return };
    for (n, bits) in [(1, 1), (5, 32), (1024, 7), (1025, 3), (5000, 4), (5000, 5), (9000, 12), (70_000, 17)] {
        let raw = noise(8 * n, n as u64);
        let keys: Vec<i64> = raw
            .chunks(8)
            .map(|c| (u64::from_le_bytes(c.try_into().unwrap()) & ((1u64 << bits) - 1)) as i64)
            .collect();
        let mut want: Vec<usize> = (0..n).collect();
        want.sort_by_key(|&i| keys[i] as u64);
        for wide in [false, true] {
            let buf = match wide {
                true => upload::<i64>(e, &keys),
                false => upload::<i32>(e, &keys.iter().map(|&k| k as i32).collect::<Vec<_>>()),
            };
            let sorted = e.sort_pairs("test", &buf.view(), bits).unwrap();
            let got: Vec<i32> = download(e, &sorted.positions)
                .chunks(4)
                .map(|c| i32::from_le_bytes(c.try_into().unwrap()))
                .collect();
            assert!(want.iter().zip(&got).all(|(&w, &g)| w == g as usize), "n {n} bits {bits} wide {wide}");
        }
    }
}

#[test]
fn indices_out_of_range_are_reported() {
    // What follows an error can be looked at in a copy.
    let download = |b: &dyn IGpuBackend, buf: &Buffer| {
        let mut copy = b.alloc(buf.dtype(), buf.len()).unwrap();
        b.copy(buf.view(), copy.view_mut()).unwrap();
        download(b, &copy)
    };
    let check = |b: &dyn IGpuBackend| {
        let x = tensor(b, DType::F32, &[4, 2], 1);
        let mut y = tensor(b, DType::F32, &[3, 2], 2);
        let index = upload::<i32>(b, &[1, 4, -1]);
        b.index_select(0, x.shaped(&[4, 2]).unwrap(), index.view(), y.shaped_mut(&[3, 2]).unwrap().into())
            .unwrap();
        let first = b.synchronize().unwrap_err().to_string();
        let got = download(b, &y);
        assert!(first.contains("index_select") && got[8..].iter().all(|&v| v == 0), "{first} {got:?}");
        let mut z = tensor(b, DType::F32, &[4, 2], 3);
        let before = download(b, &z);
        let bad = upload::<i32>(b, &[9, 4, -1]);
        b.index_add(0, 1.0, bad.view(), y.shaped(&[3, 2]).unwrap(), z.shaped_mut(&[4, 2]).unwrap()).unwrap();
        assert!(b.synchronize().unwrap_err().to_string().contains("index_add"));
        assert_eq!(download(b, &z), before);
        let counts = upload::<i32>(b, &[1, 1, 1, 2]);
        b.repeat_interleave(
            0,
            0,
            Some(counts.view()),
            x.shaped(&[4, 2]).unwrap(),
            z.shaped_mut(&[4, 2]).unwrap(),
        )
        .unwrap();
        assert!(b.synchronize().unwrap_err().to_string().contains("repeat_interleave"));
    };
    check(&CpuBackend::new());
    if let Some(e) = &*opencl() {
        check(e);
    }
}
