//! Products under each `Precision` against f64, on every backend.

mod common;
#[path = "common/values.rs"]
mod values;

use trefoil::ops::gemm::{Gemm, GemmIo, Precision};
use trefoil::{BackendExt, IGpuBackend};

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

const CASES: [Case; 5] = [
    Case { batch: 1, m: 256, n: 320, k: 512, trans: [false, false] },
    Case { batch: 1, m: 256, n: 320, k: 512, trans: [false, true] },
    Case { batch: 1, m: 256, n: 320, k: 512, trans: [true, false] },
    Case { batch: 1, m: 256, n: 320, k: 512, trans: [true, true] },
    Case { batch: 3, m: 256, n: 256, k: 260, trans: [false, false] },
];

impl Case {
    /// The largest error of a result divided by its sum of |a b|.
    fn error(&self, gpu: &dyn IGpuBackend, precision: Precision) -> f64 {
        let Case { batch, m, n, k, trans } = *self;
        let (a, b) = (values(batch * m * k, 1), values(k * n, 2));
        let (sa, sb) = (if trans[0] { [k, m] } else { [m, k] }, if trans[1] { [n, k] } else { [k, n] });
        let of_batch = |s: [usize; 2]| if batch > 1 { vec![batch, s[0], s[1]] } else { s.to_vec() };
        let (x, w) = (gpu.upload(&a).unwrap(), gpu.upload(&b).unwrap());
        let mut y = gpu.alloc(trefoil::DType::F32, batch * m * n).unwrap();
        let p = Gemm::new().trans(trans[0], trans[1]).precision(precision);
        let (x, w) = (x.shaped(&of_batch(sa)).unwrap(), w.shaped(&sb).unwrap());
        gpu.gemm(&p, GemmIo::new(x, w, y.shaped_mut(&of_batch([m, n])).unwrap())).unwrap();
        let got = gpu.download::<f32>(y.view()).unwrap();
        // Every 97th result.
        let of = |i: usize| {
            let (s, r, c) = (i / (m * n), i / n % m, i % n);
            let term = |j: usize| {
                let x = a[s * m * k + if trans[0] { j * m + r } else { r * k + j }];
                let w = b[if trans[1] { c * k + j } else { j * n + c }];
                f64::from(x) * f64::from(w)
            };
            let (sum, size) = (0..k).map(term).fold((0.0, 0.0), |(s, a), t| (s + t, a + t.abs()));
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
