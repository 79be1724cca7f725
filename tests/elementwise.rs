//! Elementwise kernels against the CPU where golden cases are too small or too few: shared rows, conversions, integers, storage-type steps.
#![cfg(feature = "driver-opencl")]

use half::{bf16, f16};
use trefoil::ops::elementwise::{Binary, BinaryBwd, Ternary, Unary};
use trefoil::{BackendExt, Buffer, CpuBackend, DType, Element, Engine, GpuError, IGpuBackend};

/// OpenCL's first device, if there is one.
fn opencl() -> Option<Engine> {
    match trefoil::driver::opencl_open(0).and_then(Engine::new) {
        Ok(e) => Some(e),
        Err(e) => {
            eprintln!("SKIPPED: no OpenCL device: {e}");
            assert!(!trefoil::is_required("opencl"), "TREFOIL_REQUIRE names opencl");
            None
        }
    }
}

/// Reproducible values in [-2, 2) without zeros.
fn values(n: usize, seed: u32) -> Vec<f32> {
    let mut s = seed.wrapping_mul(2_654_435_761).wrapping_add(12345);
    let mut next = || {
        s = s.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (s >> 8) as f32 / (1 << 22) as f32 - 2.0 + 1e-3
    };
    (0..n).map(|_| next()).collect()
}

/// An f32 tensor in another float type.
fn upload(b: &dyn IGpuBackend, x: &[f32], dtype: DType) -> Buffer {
    let f32s = b.upload(x).unwrap();
    let mut y = b.alloc(dtype, x.len()).unwrap();
    b.cast(f32s.view(), y.view_mut()).unwrap();
    y
}

fn download(b: &dyn IGpuBackend, x: &Buffer) -> Vec<f64> {
    let mut y = b.alloc(DType::F64, x.len()).unwrap();
    b.cast(x.view(), y.view_mut()).unwrap();
    b.download(y.view()).unwrap()
}

/// da and db of a problem whose gradients start from 1 when they accumulate.
#[allow(clippy::too_many_arguments)]
fn gradients(
    b: &dyn IGpuBackend,
    op: Binary,
    dtype: DType,
    shapes: [&[usize]; 3],
    accumulate: bool,
    want_a: bool,
) -> [Vec<f64>; 2] {
    let size = |s: &[usize]| s.iter().product::<usize>();
    let [g, x, y] = [0, 1, 2].map(|k| upload(b, &values(size(shapes[k]), k as u32), dtype));
    let [mut da, mut db] = [1, 2].map(|k| upload(b, &vec![1.0; size(shapes[k])], dtype));
    let io = BinaryBwd::new(
        g.shaped(shapes[0]).unwrap(),
        x.shaped(shapes[1]).unwrap(),
        y.shaped(shapes[2]).unwrap(),
    )
    .da(want_a.then(|| da.shaped_mut(shapes[1]).unwrap().grad(accumulate)))
    .db(db.shaped_mut(shapes[2]).unwrap().grad(accumulate));
    b.binary_bwd(op, io).unwrap();
    [download(b, &da), download(b, &db)]
}

#[test]
fn gradients_of_shared_rows_match_the_cpu() {
    let Some(gpu) = opencl() else { return };
    let cpu = CpuBackend::new();
    let problems: &[(DType, [&[usize]; 3])] = &[
        (DType::F32, [&[301, 512], &[301, 512], &[512]]),
        (DType::F32, [&[301, 512], &[512], &[301, 512]]),
        (DType::F32, [&[77, 1300], &[77, 1300], &[1, 1300]]),
        (DType::F32, [&[9, 7, 33], &[9, 7, 33], &[33]]),
        (DType::F32, [&[5000], &[5000], &[1]]),
        (DType::F32, [&[6, 4, 8], &[6, 4, 8], &[4, 1]]),
        (DType::Bf16, [&[64, 256], &[64, 256], &[256]]),
        (DType::F64, [&[40, 66], &[66], &[40, 66]]),
    ];
    for (dtype, shapes) in problems {
        for (accumulate, want_a) in [(false, true), (true, true), (false, false)] {
            let got = gradients(&gpu, Binary::Div, *dtype, *shapes, accumulate, want_a);
            let want = gradients(&cpu, Binary::Div, *dtype, *shapes, accumulate, want_a);
            let again = gradients(&gpu, Binary::Div, *dtype, *shapes, accumulate, want_a);
            assert_eq!(got, again, "{dtype} {shapes:?} does not repeat");
            // Dividing by values near 0 makes large terms: the bound is relative to the largest result.
            let eps = if dtype.is_half() { 8e-3 } else { 1e-5 };
            for (g, w) in got.iter().zip(&want) {
                let scale = w.iter().fold(1.0, |m: f64, x| m.max(x.abs()));
                for (i, (g, w)) in g.iter().zip(w).enumerate() {
                    assert!(
                        (g - w).abs() <= eps * scale,
                        "{dtype} {shapes:?} acc {accumulate} [{i}]: {g} for {w}"
                    );
                }
            }
        }
    }
}

fn cast<T: Element, U: Element>(b: &dyn IGpuBackend, x: &[T]) -> Vec<U> {
    let x = b.upload(x).unwrap();
    let mut y = b.alloc(U::DTYPE, x.len()).unwrap();
    b.cast(x.view(), y.view_mut()).unwrap();
    b.download(y.view()).unwrap()
}

#[test]
fn conversions_round_once_and_saturate() {
    let mut backends: Vec<Box<dyn IGpuBackend>> = vec![Box::new(CpuBackend::new())];
    backends.extend(opencl().map(|e| Box::new(e) as Box<dyn IGpuBackend>));
    for b in &backends {
        let b = &**b;
        // Above the middle of 1 and the next half by less than f32 can tell: rounding through f32 would fall back to 1.
        let above = 1.0 + f64::powi(2.0, -11) + f64::powi(2.0, -40);
        assert_eq!(
            cast::<f64, f16>(b, &[above, 65519.9, 65520.0, -1e300]).map(f16::to_f32),
            [1.0 + 9.765_625e-4, 65504.0, f32::INFINITY, f32::NEG_INFINITY]
        );
        let above = 1.0 + f64::powi(2.0, -8) + f64::powi(2.0, -40);
        assert_eq!(
            cast::<f64, bf16>(b, &[above, 1.0 + f64::powi(2.0, -8)]).map(bf16::to_f32),
            [1.007_812_5, 1.0]
        );
        let odd = (1i64 << 40) + (1 << 32) + 1;
        assert_eq!(
            cast::<i64, bf16>(b, &[odd, -odd, odd - 1]).map(|x| x.to_f64() / (1i64 << 33) as f64),
            [129.0, -129.0, 128.0]
        );
        let wild = [f32::NAN, 1e30, -1e30, -1.9, 300.7, 2.5];
        assert_eq!(cast::<f32, i32>(b, &wild), [0, i32::MAX, i32::MIN, -1, 300, 2]);
        assert_eq!(cast::<f32, i64>(b, &wild), [0, i64::MAX, i64::MIN, -1, 300, 2]);
        assert_eq!(cast::<f32, u8>(b, &wild), [0, 255, 0, 0, 255, 2]);
        assert_eq!(cast::<i64, i64>(b, &[i64::MAX, i64::MIN]), [i64::MAX, i64::MIN]);
        assert_eq!(cast::<i64, i32>(b, &[(1 << 32) + 7, -1]), [7, -1]);
        assert_eq!(cast::<i32, u8>(b, &[257, -1]), [1, 255]);
        // Long enough for 16-byte accesses and a tail on both sides.
        let long: Vec<f32> = values(1003, 9);
        let want: Vec<bf16> = long.iter().map(|&x| bf16::from_f32(x)).collect();
        assert_eq!(cast::<f32, bf16>(b, &long), want);
        let bytes: Vec<u8> = (0..1003).map(|i| (i % 251) as u8).collect();
        assert_eq!(cast::<u8, f32>(b, &bytes), bytes.iter().map(|&x| f32::from(x)).collect::<Vec<_>>());
        assert_eq!(cast::<f32, u8>(b, &cast::<u8, f32>(b, &bytes)), bytes);
    }
}

/// Maps over results, which `assert_eq!` then compares with arrays.
trait MapVec<T> {
    fn map<U>(self, f: impl FnMut(T) -> U) -> Vec<U>;
}

impl<T> MapVec<T> for Vec<T> {
    fn map<U>(self, f: impl FnMut(T) -> U) -> Vec<U> {
        self.into_iter().map(f).collect()
    }
}

fn binary<T: Element>(b: &dyn IGpuBackend, op: Binary, x: &[T], y: &[T]) -> trefoil::Result<Vec<T>> {
    let (x, y) = (b.upload(x)?, b.upload(y)?);
    let mut z = b.alloc(T::DTYPE, x.len())?;
    b.binary(op, x.view(), y.view(), z.view_mut())?;
    b.download(z.view())
}

#[test]
fn integers_wrap_and_report_division_by_zero() {
    let mut backends: Vec<Box<dyn IGpuBackend>> = vec![Box::new(CpuBackend::new())];
    backends.extend(opencl().map(|e| Box::new(e) as Box<dyn IGpuBackend>));
    for b in &backends {
        let b = &**b;
        assert_eq!(
            binary(b, Binary::DivFloor, &[7, -7, i32::MIN, 5], &[2, 2, -1, -3]).unwrap(),
            [3, -4, i32::MIN, -2]
        );
        assert_eq!(
            binary(b, Binary::DivTrunc, &[7i64, -7, i64::MIN], &[-2, 2, -1]).unwrap(),
            [-3, -3, i64::MIN]
        );
        let e = binary(b, Binary::DivTrunc, &[1, 2], &[1, 0]).unwrap_err();
        assert!(matches!(e, GpuError::IndexOutOfRange { op: "binary" }), "{e}");
        assert_eq!(
            binary(b, Binary::Add { alpha: 2.0 }, &[i32::MAX, 1], &[1, -3]).unwrap(),
            [i32::MIN + 1, -5]
        );
        assert_eq!(binary(b, Binary::Mul, &[200u8, 3], &[2, 5]).unwrap(), [144, 15]);
        assert_eq!(binary(b, Binary::Shl, &[1u8, 255, 3], &[7, 8, 1]).unwrap(), [128, 0, 6]);
        assert_eq!(binary(b, Binary::Shr, &[-8, -8, 8], &[1, 40, 2]).unwrap(), [-4, -1, 2]);
        let e = binary(b, Binary::Add { alpha: 0.5 }, &[1], &[1]).unwrap_err();
        assert!(matches!(e, GpuError::Invalid(_)), "{e}");
    }
}

#[test]
fn neighbours_step_in_the_storage_type() {
    let mut backends: Vec<Box<dyn IGpuBackend>> = vec![Box::new(CpuBackend::new())];
    backends.extend(opencl().map(|e| Box::new(e) as Box<dyn IGpuBackend>));
    for b in &backends {
        let b = &**b;
        let (x, up) = ([1.0, 0.0, -1.0, 2.0].map(bf16::from_f32), [2.0, -1.0, 0.0, 2.0].map(bf16::from_f32));
        let bits = binary(b, Binary::Nextafter, &x, &up).unwrap().map(bf16::to_bits);
        assert_eq!(bits, [0x3f81, 0x8001, 0xbf7f, 0x4000]);
        // A choice of bits: patterns that are NaN in one 16-bit type are numbers in the other.
        let (p, q): (Vec<u16>, Vec<u16>) = (0..300).map(|i| (0x7c01 + i, 0xfc01 + i)).unzip();
        let mask: Vec<u8> = (0..300).map(|i| (i % 3) as u8).collect();
        let of = |v: &[u16]| b.upload(&v.iter().map(|&u| bf16::from_bits(u)).collect::<Vec<_>>()).unwrap();
        let (m, u, v) = (b.upload(&mask).unwrap(), of(&p), of(&q));
        let mut y = b.alloc(DType::Bf16, 300).unwrap();
        b.ternary(Ternary::Where, m.view(), u.view(), v.view(), y.view_mut()).unwrap();
        let got = b.download::<bf16>(y.view()).unwrap().map(bf16::to_bits);
        let want: Vec<u16> = (0..300).map(|i| if mask[i] != 0 { p[i] } else { q[i] }).collect();
        assert_eq!(got, want);
    }
}

#[test]
fn the_gradient_of_i1_overflows_to_infinity() {
    let mut backends: Vec<Box<dyn IGpuBackend>> = vec![Box::new(CpuBackend::new())];
    backends.extend(opencl().map(|e| Box::new(e) as Box<dyn IGpuBackend>));
    for b in &backends {
        let b = &**b;
        let x = b.upload(&[100f32, -1000.0, f32::INFINITY, 0.0]).unwrap();
        let dy = b.upload(&[1f32, -1.0, 1.0, 1.0]).unwrap();
        let mut dx = b.alloc(DType::F32, 4).unwrap();
        b.unary_bwd(Unary::I1, dy.view(), x.view(), dx.view_mut().grad(false)).unwrap();
        let got: Vec<f32> = b.download(dx.view()).unwrap();
        assert_eq!(got, [f32::INFINITY, f32::NEG_INFINITY, f32::INFINITY, 0.5]);
    }
}
