//! Gradients of products.

use super::{ACTS, ON_THE_CPU, Rng, Rounds, Tensor, act, download, eps, opencl, seeds};
use crate::ops::IGpuBackend;
use crate::ops::activation::Activation;
use crate::ops::gemm::*;
use crate::{CpuBackend, DType};

/// Gradients against central differences of a plain loop, in all four layouts.
fn backward(
    gpu: &dyn IGpuBackend,
    d: DType,
    seed: u64,
    [batch, m, n, k]: [usize; 4],
    shared_b: bool,
    strided: bool,
) {
    let rng = &mut Rng(seed);
    (0..5).for_each(|_| _ = rng.word());
    let (ta, tb) = (rng.flag(), rng.flag());
    let lead = |with: bool, r: usize, c: usize, t: bool| {
        let (r, c) = if t { (c, r) } else { (r, c) };
        if with { vec![batch, r, c] } else { vec![r, c] }
    };
    let batched = batch > 1;
    let style = |rng: &mut Rng| if strided { rng.below(4) } else { 0 };
    let s = style(rng);
    let a = Tensor::new(gpu, rng, d, &lead(batched, m, k, ta), s);
    let s = style(rng);
    let b = Tensor::new(gpu, rng, d, &lead(batched && !shared_b, k, n, tb), s);
    let dy = Tensor::new(gpu, rng, d, &lead(batched, m, n, false), style(&mut Rng(seed ^ 1)));
    let saved = Tensor::new(gpu, rng, d, &lead(batched, m, n, false), 0);
    let activation = ACTS[rng.below(ACTS.len())];
    let axis = [GemmAxis::Col, GemmAxis::Row][rng.below(2)];
    let accumulate = rng.flag();
    let s = style(rng);
    let da = Tensor::new(gpu, rng, d, a.layout.shape(), s);
    let db = Tensor::new(gpu, rng, d, b.layout.shape(), 0);
    let dbias = Tensor::new(gpu, rng, d, &[if axis == GemmAxis::Row { m } else { n }], 0);
    let alpha = 0.5;
    let p = Gemm::new().scaled(alpha, 0.0).trans(ta, tb).act(activation).axes(axis, GemmAxis::Col);
    let io = GemmBwd {
        dy: dy.v(),
        a: a.v(),
        b: b.v(),
        saved: (activation != Activation::Identity).then(|| saved.v()),
        da: Some(da.m().grad(accumulate)),
        db: Some(db.m().grad(accumulate)),
        dbias: Some(dbias.m().grad(accumulate)),
    };
    gpu.gemm_bwd(&p, io).unwrap();
    let dz = |bt: usize, i: usize, j: usize| {
        let (g, s) = (dy.mat(bt, i, j, false), saved.mat(bt, i, j, false));
        let h = 1e-6;
        g * match activation {
            Activation::Relu => f64::from(s > 0.0),
            Activation::Sigmoid => s * (1.0 - s),
            Activation::Tanh => 1.0 - s * s,
            f => (act(f, s + h) - act(f, s - h)) / (2.0 * h),
        }
    };
    let what = format!("seed {seed} {d} {batch} {m}x{n}x{k} {p:?} shared {shared_b} accumulate {accumulate}");
    let close = |t: &Tensor, got: &[f64], ix: &[usize], want: f64, mag: f64, terms: usize| {
        let before = if accumulate { t.get(ix) } else { 0.0 };
        let (g, want) = (t.at(got, ix), want + before);
        // dZ is rounded to the storage type once.
        let unit = if d == DType::F64 { 1e-9 } else { 6e-8 + eps(d) / 4.0 };
        let tol =
            2.0 * (8.0 + (terms as f64).sqrt()) * unit * mag + eps(d) * (want.abs() + before.abs()) + 1e-9;
        assert!((g - want).abs() <= tol, "{what} {ix:?}: {g} for {want} within {tol}");
    };
    let (ga, gb, gs) = (download(gpu, &da.buf), download(gpu, &db.buf), download(gpu, &dbias.buf));
    let index = |bt: usize, r: usize, c: usize, t: bool, rank: usize| {
        let (r, c) = if t { (c, r) } else { (r, c) };
        if rank == 3 { vec![bt, r, c] } else { vec![r, c] }
    };
    let mut sums = vec![(0.0, 0.0); dbias.host.len()];
    for bt in 0..batch {
        for i in 0..m {
            for x in 0..k {
                let terms: Vec<f64> = (0..n).map(|j| alpha * dz(bt, i, j) * b.mat(bt, x, j, tb)).collect();
                let ix = index(bt, i, x, ta, a.layout.rank());
                close(&da, &ga, &ix, terms.iter().sum(), terms.iter().map(|t| t.abs()).sum(), n);
            }
            for j in 0..n {
                let s = &mut sums[if axis == GemmAxis::Row { i } else { j }];
                s.0 += dz(bt, i, j);
                s.1 += dz(bt, i, j).abs();
            }
        }
    }
    let each = if shared_b || !batched { 1 } else { batch };
    for bt in 0..each {
        for x in 0..k {
            for j in 0..n {
                let all = if each == 1 { 0..batch } else { bt..bt + 1 };
                let terms: Vec<f64> = all
                    .flat_map(|q| (0..m).map(move |i| (q, i)))
                    .map(|(q, i)| alpha * a.mat(q, i, x, ta) * dz(q, i, j))
                    .collect();
                let ix = index(bt, x, j, tb, b.layout.rank());
                close(&db, &gb, &ix, terms.iter().sum(), terms.iter().map(|t| t.abs()).sum(), terms.len());
            }
        }
    }
    for (j, (v, mag)) in sums.iter().enumerate() {
        close(&dbias, &gs, &[j], *v, *mag, m * batch);
    }
}

fn backward_sweep(gpu: &dyn IGpuBackend, rounds: Rounds) {
    for (d, seed) in seeds(rounds) {
        for shape in [[1, 5, 7, 6], [3, 4, 6, 5], [2, 20, 33, 18], [1, 1, 1, 1], [2, 17, 8, 70]] {
            backward(gpu, d, seed, shape, seed % 2 == 0, seed % 3 != 0);
        }
    }
}

#[test]
fn gradients_on_the_cpu() {
    backward_sweep(&CpuBackend::new(), ON_THE_CPU);
}

#[test]
fn gradients_on_opencl() {
    if let Some(gpu) = opencl() {
        backward_sweep(&gpu, [4, 1]);
    }
}
