//! Products of every variant, and what they refuse.

use super::{ACTS, ON_THE_CPU, Rng, Rounds, Tensor, act, download, eps, opencl, seeds};
use crate::backend::BackendExt;
use crate::ops::IGpuBackend;
use crate::ops::activation::Activation;
use crate::ops::core::{CoreOps, InteropOps};
use crate::ops::gemm::*;
use crate::{Buffer, CpuBackend, DType, GpuError, Layout, View};

/// One random product; everything about it follows from `seed`.
fn forward(gpu: &dyn IGpuBackend, seed: u64, d: DType, e: [usize; 4]) {
    try_forward(gpu, seed, d, e).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
}

/// The same where the product may be refused.
pub(super) fn try_forward(
    gpu: &dyn IGpuBackend,
    seed: u64,
    d: DType,
    [batch, m, n, k]: [usize; 4],
) -> crate::Result<()> {
    let rng = &mut Rng(seed);
    (0..5).for_each(|_| _ = rng.word());
    let what = format!("seed {seed} {d} batch {batch} {m}x{n}x{k}");
    let (ta, tb) = (rng.flag(), rng.flag());
    let out = if rng.below(4) == 0 { DType::F32 } else { d };
    let lead = |with: bool, r: usize, c: usize| if with { vec![batch, r, c] } else { vec![r, c] };
    let batched = batch != 1;
    let shape = |t: bool, r: usize, c: usize, with: bool| if t { lead(with, c, r) } else { lead(with, r, c) };
    let (with_a, with_b) = (batched && rng.below(4) > 0, batched && rng.below(4) > 0);
    let style = |rng: &mut Rng| [0, 0, 1, 2, 3][rng.below(5)];
    let s = style(rng);
    let a = Tensor::new(gpu, rng, d, &shape(ta, m, k, with_a), s);
    let s = style(rng);
    let b = Tensor::new(gpu, rng, d, &shape(tb, k, n, with_b), s);
    let s = style(rng);
    let y = Tensor::new(gpu, rng, out, &lead(batched, m, n), s);
    let s = style(rng);
    let with_c = batched && rng.flag();
    let c = Tensor::new(gpu, rng, out, &lead(with_c, m, n), s);
    let s = style(rng);
    let residual = Tensor::new(gpu, rng, out, &lead(batched, m, n), s);
    let s = style(rng);
    let z = Tensor::new(gpu, rng, out, &lead(batched, m, n), s);
    let axes = [GemmAxis::Col, GemmAxis::Row];
    let (bias_axis, scale_axis) = (axes[rng.below(2)], axes[rng.below(2)]);
    let len = |a: GemmAxis| if a == GemmAxis::Row { m } else { n };
    let bias = Tensor::new(gpu, rng, d, &[len(bias_axis)], 3);
    let scale = Tensor::new(gpu, rng, d, &[len(scale_axis)], 0);
    let colsum = Tensor::new(gpu, rng, out, &[n], 0);
    let (alpha, beta) = ([1.0, 0.5][rng.below(2)], [0.0, 0.0, 1.0, -0.5][rng.below(4)]);
    let activation = ACTS[rng.below(ACTS.len())];
    let onto_y = rng.flag();
    let [use_bias, use_scale, use_residual, use_z, use_colsum] = [(); 5].map(|()| rng.below(3) == 0);
    let p = Gemm::new().scaled(alpha, beta).trans(ta, tb).act(activation).axes(bias_axis, scale_axis);
    let io = GemmIo {
        a: a.v(),
        b: b.v(),
        c: (beta != 0.0).then(|| if onto_y { y.v() } else { c.v() }),
        bias: use_bias.then(|| bias.v()),
        residual: use_residual.then(|| residual.v()),
        scale: use_scale.then(|| scale.v()),
        y: y.m(),
        z: use_z.then(|| z.m()),
        colsum: use_colsum.then(|| colsum.m()),
    };
    gpu.gemm(&p, io)?;
    let (got_y, got_z, got_sum) = (download(gpu, &y.buf), download(gpu, &z.buf), download(gpu, &colsum.buf));
    let unit = if d == DType::F64 { 1.2e-16 } else { 6e-8 };
    let mut sums = vec![(0.0, 0.0); n];
    let mut touched = vec![false; y.host.len()];
    for bt in 0..batch {
        for i in 0..m {
            for (j, sum) in sums.iter_mut().enumerate() {
                let (mut v, mut mag) = (0.0, 0.0);
                for x in 0..k {
                    let t = a.mat(bt, i, x, ta) * b.mat(bt, x, j, tb);
                    v += t;
                    mag += t.abs();
                }
                let of = |axis: GemmAxis| if axis == GemmAxis::Row { i } else { j };
                let f = alpha * if use_scale { scale.get(&[of(scale_axis)]) } else { 1.0 };
                v *= f;
                mag *= f.abs();
                let mut add = |t: f64| {
                    v += t;
                    mag += t.abs();
                };
                if beta != 0.0 {
                    add(beta * if onto_y { y.mat(bt, i, j, false) } else { c.mat(bt, i, j, false) });
                }
                if use_bias {
                    add(bias.get(&[of(bias_axis)]));
                }
                if use_residual {
                    add(residual.mat(bt, i, j, false));
                }
                let tol =
                    1.5 * (8.0 + (k as f64).sqrt()) * unit * mag + if d == DType::F64 { 1e-14 } else { 3e-7 };
                let ix: Vec<usize> = if batched { vec![bt, i, j] } else { vec![i, j] };
                if use_z {
                    let g = z.at(&got_z, &ix);
                    assert!(
                        (g - v).abs() <= tol + eps(out) * v.abs(),
                        "{what} z{ix:?}: {g} for {v} within {tol}"
                    );
                }
                let want = act(activation, v);
                let tol = tol + eps(out) * want.abs();
                let g = y.at(&got_y, &ix);
                assert!(
                    (g - want).abs() <= tol,
                    "{what} {activation:?} y{ix:?}: {g} for {want} within {tol}; {p:?}"
                );
                sum.0 += g;
                sum.1 += g.abs();
                let at =
                    y.layout.offset() + ix.iter().zip(y.layout.strides()).map(|(i, s)| i * s).sum::<usize>();
                touched[at] = true;
            }
        }
    }
    for (i, t) in touched.iter().enumerate().filter(|(_, t)| !**t) {
        assert!(got_y[i] == y.host[i], "{what}: element {i} outside of y was written ({t})");
    }
    if use_colsum {
        for (j, (v, mag)) in sums.iter().enumerate() {
            let unit = if out == DType::F64 { unit } else { 6e-8 };
            let tol = 20.0 * unit * mag + eps(out) * v.abs() + 1e-30;
            assert!((got_sum[j] - v).abs() <= tol, "{what} colsum[{j}]: {} for {v}", got_sum[j]);
        }
    }
    Ok(())
}

const SHAPES: [[usize; 4]; 26] = [
    [1, 1, 1, 1],
    [1, 5, 7, 3],
    [1, 64, 64, 32],
    [1, 65, 63, 33],
    [1, 16, 300, 70],
    [1, 300, 9, 40],
    [1, 1, 260, 129],
    [1, 130, 1, 64],
    [3, 4, 5, 6],
    [2, 33, 17, 20],
    [5, 20, 36, 8],
    [1, 3, 4, 0],
    [1, 0, 4, 3],
    [0, 2, 3, 4],
    [1, 4, 0, 3],
    [1, 128, 132, 48],
    [1, 131, 257, 19],
    [1, 7, 5, 700],
    [2, 8, 12, 600],
    [1, 40, 24, 16],
    [1, 64, 128, 64],
    [1, 128, 64, 40],
    [4, 1, 1, 5],
    [2, 12, 200, 64],
    [1, 2, 2, 1031],
    [1, 96, 96, 96],
];

fn sweep(gpu: &dyn IGpuBackend, rounds: Rounds) {
    for (d, seed) in seeds(rounds) {
        for (i, shape) in SHAPES.iter().enumerate() {
            forward(gpu, 1000 * i as u64 + seed, d, *shape);
        }
    }
}

#[test]
fn products_on_the_cpu() {
    sweep(&CpuBackend::new(), ON_THE_CPU);
    forward(&CpuBackend::new(), 5, DType::F32, [1, 200, 180, 150]);
    forward(&CpuBackend::new(), 6, DType::F32, [40, 60, 20, 50]);
}

#[test]
fn products_on_opencl() {
    if let Some(gpu) = opencl() {
        sweep(&gpu, [3, 1]);
    }
}

#[test]
fn every_variant_on_opencl() {
    let Some(gpu) = opencl() else { return };
    let shapes = |v: &str| match v {
        "skinny" => vec![[1, 16, 300, 70], [1, 300, 9, 700], [2, 12, 200, 64], [1, 1, 1, 1]],
        "split_k" => vec![[1, 7, 5, 700], [2, 33, 17, 200], [1, 70, 66, 64]],
        _ => vec![[1, 131, 257, 50], [2, 33, 17, 20], [1, 128, 128, 64], [1, 5, 7, 3]],
    };
    for v in ["portable", "tile_128", "tile_64", "skinny", "split_k"] {
        gpu.pin_variant("gemm", Some(v)).unwrap();
        for (i, shape) in shapes(v).into_iter().enumerate() {
            for (d, seed) in seeds([2, 1]).filter(|(d, _)| *d != DType::F16) {
                if v != "tile_128" || d != DType::F64 {
                    forward(&gpu, 77 * i as u64 + seed, d, shape);
                }
            }
        }
    }
    gpu.pin_variant("gemm", Some("cublaslt")).unwrap();
    let b = gpu.upload(&[1f32; 4]).unwrap();
    let y = gpu.upload(&[1f32; 4]).unwrap();
    let b = b.shaped(&[2, 2]).unwrap();
    let r = gpu.gemm(&Gemm::new(), GemmIo::new(b, b, y.alias_mut().reshape(&[2, 2]).unwrap()));
    assert!(matches!(r, Err(GpuError::Unsupported { .. })), "{r:?}");
    let c = gpu.explain("gemm_bwd").unwrap();
    assert_eq!(c.chosen, "portable");
    assert!(c.rejected.iter().any(|(v, why)| v == "cublaslt" && why.contains("no vendor library")), "{c:?}");
}

#[test]
fn special_values_and_refusals() {
    let backends: Vec<Box<dyn IGpuBackend>> =
        std::iter::once(Box::new(CpuBackend::new()) as Box<dyn IGpuBackend>)
            .chain(opencl().map(|g| Box::new(g) as _))
            .collect();
    for gpu in &backends {
        let nan = gpu.upload(&[f32::NAN; 64]).unwrap();
        let one = gpu.upload(&[1f32; 64]).unwrap();
        let mut y = gpu.upload(&[f32::NAN; 64]).unwrap();
        let v = |b: &Buffer, s: &[usize]| {
            b.view().range(0, s.iter().product()).unwrap().reshape(s).map(|v| *v.layout()).unwrap()
        };
        let (of, at) = (&one, |b: &Buffer| v(b, &[8, 8]));
        let view = |b| -> View<'_> { Buffer::view(b).with_layout(at(b)).unwrap() };
        let out = |b: &mut Buffer| -> Layout { at(b) };
        // Beta 0 does not read C or Y; alpha 0 does not read A and B.
        let l = out(&mut y);
        let mut io = GemmIo::new(view(of), view(of), y.alias_mut().with_layout(l).unwrap());
        io.c = Some(view(&nan));
        gpu.gemm(&Gemm::new(), io).unwrap();
        assert_eq!(gpu.download::<f32>(y.view()).unwrap(), [8.0; 64]);
        let mut io = GemmIo::new(view(&nan), view(&nan), y.alias_mut().with_layout(l).unwrap());
        io.c = Some(y.view().with_layout(l).unwrap());
        gpu.gemm(&Gemm::new().scaled(0.0, 0.5), io).unwrap();
        assert_eq!(gpu.download::<f32>(y.view()).unwrap(), [4.0; 64]);
        // NaN passes relu.
        gpu.gemm(
            &Gemm::new().act(Activation::Relu),
            GemmIo::new(view(&nan), view(of), y.alias_mut().with_layout(l).unwrap()),
        )
        .unwrap();
        assert!(gpu.download::<f32>(y.view()).unwrap().iter().all(|v| v.is_nan()));
        // Refusals leave the output alone.
        let refused = |p: Gemm, change: &dyn Fn(&mut GemmIo<'_>), arg: &str| {
            let y = gpu.upload(&[7f32; 64]).unwrap();
            let mut io = GemmIo::new(view(of), view(of), y.alias_mut().with_layout(l).unwrap());
            change(&mut io);
            match gpu.gemm(&p, io) {
                Err(GpuError::Invalid(e)) => assert_eq!(e.arg, arg, "{e}"),
                r => panic!("{arg}: {r:?}"),
            }
            assert_eq!(gpu.download::<f32>(y.view()).unwrap(), [7.0; 64]);
        };
        refused(Gemm::new().scaled(1.0, 1.0), &|_| {}, "c");
        refused(Gemm::new().act(Activation::Mish), &|_| {}, "act");
        refused(Gemm::new(), &|io| io.a = io.a.reshape(&[4, 16]).unwrap(), "b");
        refused(Gemm::new(), &|io| io.a = io.y.as_view(), "y");
        refused(Gemm::new(), &|io| io.bias = Some(io.a.range(0, 7).unwrap()), "bias");
        refused(Gemm::new(), &|io| io.a = io.a.range(0, 64).unwrap(), "a");
        let y = gpu.upload(&[0f32; 64]).unwrap();
        let twice = Layout::strided(&[8, 8], &[0, 1], 0).unwrap();
        let r = gpu
            .gemm(&Gemm::new(), GemmIo::new(view(of), view(of), y.alias_mut().with_layout(twice).unwrap()));
        assert!(matches!(r, Err(GpuError::Invalid(_))));
        let bwd =
            GemmBwd { dy: view(of), a: view(of), b: view(of), saved: None, da: None, db: None, dbias: None };
        assert!(matches!(gpu.gemm_bwd(&Gemm::new().act(Activation::Gelu), bwd), Err(GpuError::Invalid(_))));
    }
}
