//! Products under each `Precision`, and convolutions in f32 by products in bf16, against f64, on every backend.

mod common;
#[path = "common/values.rs"]
mod values;

use trefoil::ops::conv::{Conv, ConvBwd, ConvIo};
use trefoil::ops::gemm::{Gemm, GemmIo, Precision};
use trefoil::{BackendExt, DType, GpuError, IGpuBackend};

use self::values::values;

/// A product of m x k and k x n with the storage of either operand exchanged, and one of a batch that shares B.
#[derive(Debug, Clone, Copy)]
struct Case {
    batch: usize,
    m: usize,
    n: usize,
    k: usize,
    trans: [bool; 2],
}

/// The last four have tiles that are incomplete in all directions, and terms for one, two, and eight blocks of a cluster.
const CASES: [Case; 9] = [
    Case { batch: 1, m: 256, n: 320, k: 512, trans: [false, false] },
    Case { batch: 1, m: 256, n: 320, k: 512, trans: [false, true] },
    Case { batch: 1, m: 256, n: 320, k: 512, trans: [true, false] },
    Case { batch: 1, m: 256, n: 320, k: 512, trans: [true, true] },
    Case { batch: 3, m: 256, n: 256, k: 260, trans: [false, false] },
    Case { batch: 1, m: 200, n: 76, k: 452, trans: [false, true] },
    Case { batch: 1, m: 1000, n: 516, k: 132, trans: [false, false] },
    Case { batch: 1, m: 132, n: 68, k: 1988, trans: [true, false] },
    Case { batch: 2, m: 76, n: 136, k: 1028, trans: [true, false] },
];

/// Variants of products in f32 that are asked for by name, where they are, beside the choice of the rules.
const BY_NAME: [Option<&str>; 3] = [None, Some("bf16x6"), Some("bf16x6_128")];

impl Case {
    /// Operands of other values in each run of `seed`.
    fn operands(&self, seed: u32) -> [Vec<f32>; 2] {
        [values(self.batch * self.m * self.k, seed), values(self.k * self.n, seed + 1)]
    }

    /// The product by a variant; `None` where it is not there or does not take it.
    fn by_variant(
        &self,
        gpu: &dyn IGpuBackend,
        operands: [&[f32]; 2],
        variant: Option<&str>,
    ) -> Option<Vec<f32>> {
        gpu.pin_variant("gemm", variant).ok()?;
        let done = self.product(gpu, operands, Precision::Ieee);
        gpu.pin_variant("gemm", None).unwrap();
        match (done, variant) {
            (Ok(y), _) => Some(y),
            (Err(e @ GpuError::Unsupported { .. }), Some(_)) => {
                println!("skipped on {}: {e}", gpu.id());
                None
            }
            (Err(e), _) => panic!("{e}"),
        }
    }

    fn product(
        &self,
        gpu: &dyn IGpuBackend,
        [a, b]: [&[f32]; 2],
        precision: Precision,
    ) -> trefoil::Result<Vec<f32>> {
        let Case { batch, m, n, k, trans } = *self;
        let (sa, sb) = (if trans[0] { [k, m] } else { [m, k] }, if trans[1] { [n, k] } else { [k, n] });
        let of_batch = |s: [usize; 2]| if batch > 1 { vec![batch, s[0], s[1]] } else { s.to_vec() };
        let (x, w) = (gpu.upload(a).unwrap(), gpu.upload(b).unwrap());
        let mut y = gpu.alloc(DType::F32, batch * m * n).unwrap();
        let p = Gemm::new().trans(trans[0], trans[1]).precision(precision);
        let (x, w) = (x.shaped(&of_batch(sa)).unwrap(), w.shaped(&sb).unwrap());
        gpu.gemm(&p, GemmIo::new(x, w, y.shaped_mut(&of_batch([m, n])).unwrap()))?;
        gpu.download::<f32>(y.view())
    }

    /// The factors of result i.
    fn terms<'a>(&self, i: usize, [a, b]: [&'a [f32]; 2]) -> impl Iterator<Item = [f32; 2]> + use<'a> {
        let Case { m, n, k, trans, .. } = *self;
        let (s, r, c) = (i / (m * n), i / n % m, i % n);
        (0..k).map(move |j| {
            let x = a[s * m * k + if trans[0] { j * m + r } else { r * k + j }];
            [x, b[if trans[1] { c * k + j } else { j * n + c }]]
        })
    }

    /// The largest error of every 97th result divided by its sum of |a b|.
    fn error(&self, gpu: &dyn IGpuBackend, precision: Precision) -> f64 {
        let [a, b] = self.operands(1);
        let got = self.product(gpu, [&a, &b], precision).unwrap();
        let of = |i: usize| {
            let products = self.terms(i, [&a, &b]).map(|[x, w]| f64::from(x) * f64::from(w));
            let (sum, size) = products.fold((0.0, 0.0), |(s, a), t| (s + t, a + t.abs()));
            (f64::from(got[i]) - sum).abs() / size
        };
        (0..got.len()).step_by(97).map(of).fold(0.0, f64::max)
    }
}

#[test]
fn three_products_in_tf32_are_nearly_one_in_f32() {
    for gpu in common::backends() {
        for case in CASES {
            let [exact, parts] = [Precision::Ieee, Precision::Tf32x3].map(|p| case.error(&*gpu, p));
            println!("{} {case:?}: {exact:.1e} in f32, {parts:.1e} in three products", gpu.id());
            // The product of the small parts is missing, up to 2^-22 of a term; sums on matrix cores are rounded towards zero.
            assert!(exact < 1e-6 && parts < 1e-6, "{} {case:?}: {exact:e} {parts:e}", gpu.id());
        }
    }
}

/// The same with infinities, NaN, and numbers near the ends of f32.
fn with_extremes(plain: &[f32]) -> Vec<f32> {
    let mut wild = plain.to_vec();
    let extremes = [f32::INFINITY, f32::NEG_INFINITY, f32::NAN, f32::MAX / 4.0, f32::MIN_POSITIVE];
    for (i, extreme) in extremes.into_iter().enumerate() {
        wild[i * plain.len() / 5 + 23] = extreme;
    }
    wild
}

/// Numbers whose lower bits are 0, and zeros, among others.
fn with_short_numbers(v: &mut [f32]) {
    v.iter_mut().step_by(5).for_each(|v| *v = v.signum());
    v.iter_mut().step_by(7).for_each(|v| *v = 0.0);
}

#[test]
fn products_in_f32_have_its_infinities_and_extremes() {
    for (case, gpu) in CASES.iter().flat_map(|c| common::backends().into_iter().map(move |gpu| (c, gpu))) {
        let [plain, mut b] = case.operands(3);
        with_short_numbers(&mut b);
        for (a, variant) in [&with_extremes(&plain), &plain].into_iter().flat_map(|a| BY_NAME.map(|v| (a, v)))
        {
            let Some(got) = case.by_variant(&*gpu, [a, &b], variant) else { continue };
            let what = format!("{} {case:?} {}", gpu.id(), variant.unwrap_or("by the rules"));
            hold(&what, &got, 7, |i| case.terms(i, [a, &b]));
        }
    }
}

/// A convolution of f32 images by square windows, without groups.
#[derive(Debug, Clone, Copy)]
struct Windows {
    /// Images, channels, height, width.
    images: [usize; 4],
    /// Rows and side of the windows.
    rows: usize,
    side: usize,
    stride: usize,
    pad: usize,
}

/// The second has few channels and a stride of two, and an odd padding; the third an even one.
const WINDOWS: [Windows; 3] = [
    Windows { images: [2, 24, 10, 9], rows: 70, side: 3, stride: 1, pad: 0 },
    Windows { images: [2, 3, 15, 18], rows: 10, side: 7, stride: 2, pad: 3 },
    Windows { images: [1, 4, 12, 14], rows: 66, side: 4, stride: 2, pad: 2 },
];

impl Windows {
    fn weights(&self) -> [usize; 4] {
        [self.rows, self.images[1], self.side, self.side]
    }

    fn outputs(&self) -> [usize; 4] {
        let along = |n: usize| (n + 2 * self.pad - self.side) / self.stride + 1;
        [self.images[0], self.rows, along(self.images[2]), along(self.images[3])]
    }

    /// Where tap t of the window of place q of an output plane lies in x, if it does: the element of image n and channel c.
    fn read(&self, n: usize, c: usize, q: usize, t: usize) -> Option<usize> {
        let [_, channels, height, width] = self.images;
        let across = self.outputs()[3];
        let at = |q: usize, t: usize| (q * self.stride + t).checked_sub(self.pad);
        let (y, x) = (at(q / across, t / self.side)?, at(q % across, t % self.side)?);
        (y < height && x < width).then_some(((n * channels + c) * height + y) * width + x)
    }

    /// The convolution by `bf16x6`, and its weight gradient; `None` where the device has no such variant.
    fn by_six_products(&self, gpu: &dyn IGpuBackend, [x, w, dy]: [&[f32]; 3]) -> Option<[Vec<f32>; 2]> {
        for op in ["conv", "conv_bwd"] {
            gpu.pin_variant(op, Some("bf16x6")).ok()?;
        }
        let (out, windows) = (self.outputs(), self.weights());
        let [x, w, dy] = [x, w, dy].map(|v| gpu.upload(v).unwrap());
        let mut y = gpu.alloc(DType::F32, out.iter().product()).unwrap();
        let mut dw = gpu.alloc(DType::F32, windows.iter().product()).unwrap();
        let (x, w) = (x.shaped(&self.images).unwrap(), w.shaped(&windows).unwrap());
        let p = Conv::new().stride(self.stride).pad(self.pad);
        let done = gpu.conv(&p, ConvIo::new(x, w, y.shaped_mut(&out).unwrap())).and_then(|()| {
            let mut io = ConvBwd::new(dy.shaped(&out).unwrap());
            (io.x, io.dw) = (Some(x), Some(dw.shaped_mut(&windows).unwrap().into()));
            gpu.conv_bwd(&p, io)
        });
        for op in ["conv", "conv_bwd"] {
            gpu.pin_variant(op, None).unwrap();
        }
        if let Err(why) = done {
            println!("skipped on {}: {why}", gpu.id());
            return None;
        }
        Some([&y, &dw].map(|b| gpu.download::<f32>(b.view()).unwrap()))
    }
}

/// Holds `got` against sums of the products of `terms(i)`, each as f64 has it.
fn hold<I: Iterator<Item = [f32; 2]>>(what: &str, got: &[f32], step: usize, terms: impl Fn(usize) -> I) {
    let mut largest = 0.0f64;
    for i in (0..got.len()).step_by(step) {
        let products = terms(i).map(|[a, b]| f64::from(a) * f64::from(b));
        let (sum, size) = products.fold((0.0, 0.0), |(s, a), t| (s + t, a + t.abs()));
        let y = f64::from(got[i]);
        if sum.is_finite() {
            largest = largest.max((y - sum).abs() / size.max(f64::MIN_POSITIVE));
        } else {
            assert!(y == sum || (y.is_nan() && sum.is_nan()), "{what}[{i}]: {y}, not {sum}");
        }
    }
    println!("{what}: {largest:.1e}");
    assert!(largest < 1e-6, "{what}: {largest:e}");
}

#[test]
fn six_products_in_bf16_are_one_in_f32() {
    for (case, gpu) in WINDOWS.iter().flat_map(|c| common::backends().into_iter().map(move |gpu| (c, gpu))) {
        let ([n, channels, ..], [_, rows, height, width]) = (case.images, case.outputs());
        let (taps, plane) = (case.side * case.side, height * width);
        let mut weights = values(rows * channels * taps, 2);
        let mut gradients = values(n * rows * plane, 3);
        with_short_numbers(&mut weights);
        with_short_numbers(&mut gradients);
        let plain = values(case.images.iter().product(), 1);
        let wild = with_extremes(&plain);
        for (name, images) in [("plain", &plain), ("extreme", &wild)] {
            let Some([y, dw]) = case.by_six_products(&*gpu, [images, &weights, &gradients]) else { continue };
            let (what, weights, gradients) =
                (|of: &str| format!("{} {case:?} {name} {of}", gpu.id()), &weights, &gradients);
            hold(&what("y"), &y, 1, |i| {
                let (image, m, q) = (i / (rows * plane), i / plane % rows, i % plane);
                (0..channels * taps).filter_map(move |k| {
                    let at = case.read(image, k / taps, q, k % taps)?;
                    Some([images[at], weights[m * channels * taps + k]])
                })
            });
            hold(&what("dw"), &dw, 3, |i| {
                let (m, c, t) = (i / (channels * taps), i / taps % channels, i % taps);
                (0..n * plane).filter_map(move |k| {
                    let (image, q) = (k / plane, k % plane);
                    Some([images[case.read(image, c, q, t)?], gradients[(image * rows + m) * plane + q]])
                })
            });
        }
    }
}
