//! The engine on an OpenCL device against the CPU backend: movement and indexing give the same bits.

use std::sync::{Mutex, OnceLock};

use crate::buffer::Buffer;
use crate::dtype::{DType, Element};
use crate::engine::Engine;
use crate::error::Result;
use crate::layout::Layout;
use crate::ops::*;
use crate::{CpuBackend, IGpuBackend};

/// An OpenCL device, where there is one, shared by the tests of this file. Its absence is printed, or a failure where `TREFOIL_REQUIRE`
/// asks for it. Locked while in use: PoCL compiles on one thread only.
fn opencl() -> std::sync::MutexGuard<'static, Option<Engine>> {
    static DEVICE: OnceLock<Mutex<Option<Engine>>> = OnceLock::new();
    let open = || {
        let required = std::env::var("TREFOIL_REQUIRE").is_ok_and(|r| r.contains("opencl"));
        match crate::driver::opencl_open(0).and_then(Engine::new) {
            Ok(e) => Mutex::new(Some(e)),
            Err(e) if required => panic!("opencl is required: {e}"),
            Err(e) => {
                println!("skipped on opencl: {e}");
                Mutex::new(None)
            }
        }
    };
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
