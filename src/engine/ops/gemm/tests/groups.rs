//! Lists of products and products of groups of rows.

use super::{Rng, Tensor, download, eps, opencl};
use crate::backend::BackendExt;
use crate::ops::IGpuBackend;
use crate::ops::activation::Activation;
use crate::ops::gemm::*;
use crate::{CpuBackend, DType, GpuError};

fn lists(gpu: &dyn IGpuBackend) {
    let rng = &mut Rng(9);
    let sizes = [[3, 4, 5], [0, 3, 5], [70, 20, 33], [2, 2, 0]];
    let t = |rng: &mut Rng, r: usize, c: usize| Tensor::new(gpu, rng, DType::F32, &[r, c], 0);
    let a: Vec<_> = sizes.iter().map(|s| t(rng, s[0], s[2])).collect();
    let b: Vec<_> = sizes.iter().map(|s| t(rng, s[1], s[2])).collect();
    let y: Vec<_> = sizes.iter().map(|s| t(rng, s[0], s[1])).collect();
    let (av, bv): (Vec<_>, Vec<_>) = (a.iter().map(Tensor::v).collect(), b.iter().map(Tensor::v).collect());
    let mut yv: Vec<_> = y.iter().map(Tensor::m).collect();
    gpu.gemm_grouped(&Gemm::new().trans(false, true), &av, &bv, &mut yv).unwrap();
    for (g, [m, n, k]) in sizes.into_iter().enumerate() {
        let got = download(gpu, &y[g].buf);
        for (i, j) in (0..m).flat_map(|i| (0..n).map(move |j| (i, j))) {
            let want: f64 = (0..k).map(|x| a[g].get(&[i, x]) * b[g].get(&[j, x])).sum();
            assert!((got[i * n + j] - want).abs() < 1e-5);
        }
    }
    assert!(matches!(gpu.gemm_grouped(&Gemm::new(), &av, &bv[1..], &mut yv), Err(GpuError::Invalid(_))));

    // Rows of no group become 0; a wrong offset is reported, and the other groups are right.
    let (total, n, k) = (150, 70, 20);
    for (d, trans_b) in [(DType::F32, false), (DType::F32, true), (DType::Bf16, false), (DType::F64, true)] {
        for offsets in [[0, 150, 150, 150], [3, 3, 70, 140], [0, 1, 66, 150], [5, 9, 200, 7], [0, -4, 30, 40]]
        {
            for style in [0, 2] {
                let a = Tensor::new(gpu, rng, d, &[total, k], style);
                let b = Tensor::new(gpu, rng, d, &if trans_b { [3, n, k] } else { [3, k, n] }, 0);
                let y = Tensor::new(gpu, rng, d, &[total, n], 1);
                let at = gpu.upload(&offsets).unwrap();
                let p = Gemm::new().trans(false, trans_b).scaled(0.5, 0.0);
                gpu.gemm_ragged(&p, GemmRagged::new(a.v(), b.v(), at.view(), y.m())).unwrap();
                let bad = offsets.windows(2).any(|w| w[1] < w[0])
                    || offsets.iter().any(|&o| o < 0 || o > total as i32);
                assert_eq!(
                    matches!(gpu.synchronize(), Err(GpuError::IndexOutOfRange { op: "gemm_ragged" })),
                    bad,
                    "{offsets:?}"
                );
                // What follows an error can be looked at in a copy.
                let mut copy = gpu.alloc(y.buf.dtype(), y.buf.len()).unwrap();
                gpu.copy(y.buf.view(), copy.view_mut()).unwrap();
                let got = download(gpu, &copy);
                let mut low = 0;
                let bounds: Vec<usize> = offsets
                    .iter()
                    .map(|&o| {
                        low = (o.max(0) as usize).clamp(low, total);
                        low
                    })
                    .collect();
                for (i, j) in (0..total).flat_map(|i| (0..n).map(move |j| (i, j))) {
                    let want: f64 = match (0..3).find(|&g| (bounds[g]..bounds[g + 1]).contains(&i)) {
                        Some(g) => (0..k).map(|x| 0.5 * a.get(&[i, x]) * b.mat(g, x, j, trans_b)).sum(),
                        None => 0.0,
                    };
                    let g = y.at(&got, &[i, j]);
                    assert!(
                        (g - want).abs() <= 1e-5 + eps(d) * want.abs(),
                        "{d} {offsets:?} {i} {j}: {g} for {want}"
                    );
                }
            }
        }
    }
}

/// Bias, activation and the value before it by groups, and the gradient of the matrices, added to what is there.
fn ragged(gpu: &dyn IGpuBackend) {
    let rng = &mut Rng(11);
    let (total, n, k) = (150, 72, 24);
    for (d, trans_b) in [(DType::F32, false), (DType::F32, true), (DType::Bf16, true), (DType::F64, false)] {
        for offsets in [[0usize, 150, 150, 150], [3, 3, 70, 140]] {
            let a = Tensor::new(gpu, rng, d, &[total, k], 0);
            let b = Tensor::new(gpu, rng, d, &if trans_b { [3, n, k] } else { [3, k, n] }, 0);
            let bias = Tensor::new(gpu, rng, d, &[3, n], 0);
            let [y, z, dz] = [(); 3].map(|()| Tensor::new(gpu, rng, d, &[total, n], 0));
            let db = Tensor::new(gpu, rng, d, &if trans_b { [3, n, k] } else { [3, k, n] }, 0);
            let at = gpu.upload(&offsets.map(|o| o as i32)).unwrap();
            let p = Gemm::new().trans(false, trans_b).act(Activation::Sigmoid);
            let mut io = GemmRagged::new(a.v(), b.v(), at.view(), y.m());
            (io.bias, io.z) = (Some(bias.v()), Some(z.m()));
            gpu.gemm_ragged(&p, io).unwrap();
            gpu.gemm_ragged_bwd(&p, GemmRaggedBwd::new(dz.v(), a.v(), at.view(), db.m().grad(true))).unwrap();
            let [ys, zs, dbs] = [&y, &z, &db].map(|t| download(gpu, &t.buf));
            let near = |got: f64, want: f64, what: &str| {
                assert!(
                    (got - want).abs() <= 1e-4 + 2.0 * eps(d) * want.abs().max(1.0),
                    "{d} {what}: {got} for {want}"
                );
            };
            for (i, j) in (0..total).flat_map(|i| (0..n).map(move |j| (i, j))) {
                let group = (0..3).find(|&g| (offsets[g]..offsets[g + 1]).contains(&i));
                let (want_y, want_z) = group.map_or((0.0, 0.0), |g| {
                    let sum: f64 = (0..k).map(|x| a.get(&[i, x]) * b.mat(g, x, j, trans_b)).sum();
                    let z = sum + bias.get(&[g, j]);
                    (1.0 / (1.0 + (-z).exp()), z)
                });
                near(y.at(&ys, &[i, j]), want_y, "y");
                near(z.at(&zs, &[i, j]), want_z, "z");
            }
            for (g, x, j) in (0..3).flat_map(|g| (0..k).flat_map(move |x| (0..n).map(move |j| (g, x, j)))) {
                let rows = offsets[g]..offsets[g + 1];
                let sum: f64 = rows.map(|i| a.get(&[i, x]) * dz.get(&[i, j])).sum();
                let place = if trans_b { [g, j, x] } else { [g, x, j] };
                near(db.at(&dbs, &place), db.get(&place) + sum, "db");
            }
        }
    }
    // A wrong offset is reported.
    let (a, dz) =
        (Tensor::new(gpu, rng, DType::F32, &[9, 4], 0), Tensor::new(gpu, rng, DType::F32, &[9, 5], 0));
    let db = Tensor::new(gpu, rng, DType::F32, &[1, 4, 5], 0);
    for offsets in [[0, 10], [-1, 3], [5, 4]] {
        let at = gpu.upload(&offsets).unwrap();
        gpu.gemm_ragged_bwd(&Gemm::new(), GemmRaggedBwd::new(dz.v(), a.v(), at.view(), db.m().grad(false)))
            .unwrap();
        let e = gpu.synchronize();
        assert!(matches!(e, Err(GpuError::IndexOutOfRange { op: "gemm_ragged_bwd" })), "{offsets:?}: {e:?}");
    }
}

#[test]
fn groups_of_rows_on_the_cpu() {
    ragged(&CpuBackend::new());
}

#[test]
fn groups_of_rows_on_opencl() {
    if let Some(gpu) = opencl() {
        ragged(&gpu);
    }
}

#[test]
fn lists_on_the_cpu() {
    lists(&CpuBackend::new());
}

#[test]
fn lists_on_opencl() {
    if let Some(gpu) = opencl() {
        lists(&gpu);
    }
}
