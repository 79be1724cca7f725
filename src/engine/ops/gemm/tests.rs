//! Products of random shapes, strides and epilogues on the CPU and on OpenCL against a plain f64 loop.

use half::{bf16, f16};

use crate::backend::BackendExt;
use crate::ops::IGpuBackend;
use crate::ops::activation::Activation;
use crate::ops::core::CoreOps;
use crate::ops::core::InteropOps;
use crate::ops::gemm::*;
use crate::test_devices::present;
use crate::{Buffer, CpuBackend, DType, Element, Engine, GpuError, Layout, View, ViewMut};

fn opencl() -> Option<Engine> {
    present("opencl", crate::driver::opencl_open(0).and_then(Engine::new))
}

struct Rng(u64);

impl Rng {
    fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        self.0 >> 33
    }
    fn below(&mut self, n: usize) -> usize {
        (self.word() % n as u64) as usize
    }
    fn flag(&mut self) -> bool {
        self.below(2) == 1
    }
    fn value(&mut self) -> f64 {
        self.word() as f64 / (1u64 << 30) as f64 - 1.0
    }
}

fn round(d: DType, x: f64) -> f64 {
    match d {
        DType::F32 => x as f32 as f64,
        DType::F16 => f16::from_f32(x as f32).to_f64(),
        DType::Bf16 => bf16::from_f32(x as f32).to_f64(),
        _ => x,
    }
}

fn upload(gpu: &dyn IGpuBackend, d: DType, v: &[f64]) -> Buffer {
    fn cast<T: Element>(v: &[f64], f: impl Fn(f64) -> T) -> Vec<T> {
        v.iter().map(|&x| f(x)).collect()
    }
    match d {
        DType::F32 => gpu.upload(&cast(v, |x| x as f32)),
        DType::F16 => gpu.upload(&cast(v, |x| f16::from_f32(x as f32))),
        DType::Bf16 => gpu.upload(&cast(v, |x| bf16::from_f32(x as f32))),
        _ => gpu.upload(v),
    }
    .unwrap()
}

fn download(gpu: &dyn IGpuBackend, b: &Buffer) -> Vec<f64> {
    match b.dtype() {
        DType::F32 => gpu.download::<f32>(b.view()).unwrap().into_iter().map(f64::from).collect(),
        DType::F16 => gpu.download::<f16>(b.view()).unwrap().into_iter().map(f64::from).collect(),
        DType::Bf16 => gpu.download::<bf16>(b.view()).unwrap().into_iter().map(f64::from).collect(),
        _ => gpu.download::<f64>(b.view()).unwrap(),
    }
}

/// A tensor somewhere in a buffer, and the buffer's contents.
struct Tensor {
    buf: Buffer,
    layout: Layout,
    host: Vec<f64>,
}

impl Tensor {
    /// `style` 0: contiguous; 1: padded rows; 2: the last two axes exchanged; 3: steps between columns, an odd offset.
    fn new(gpu: &dyn IGpuBackend, rng: &mut Rng, d: DType, shape: &[usize], style: usize) -> Self {
        let n = shape.len();
        let mut wide: Vec<usize> = shape.to_vec();
        let layout = match style {
            1 if n >= 2 => {
                wide[n - 1] += 8;
                Layout::contiguous(&wide).unwrap().narrow(n - 1, 4, shape[n - 1]).unwrap()
            }
            2 if n >= 2 => {
                wide.swap(n - 1, n - 2);
                Layout::contiguous(&wide).unwrap().transpose(n - 1, n - 2).unwrap()
            }
            3 => {
                wide[n - 1] = wide[n - 1] * 2 + 1;
                Layout::contiguous(&wide).unwrap().slice(n - 1, 1, shape[n - 1] * 2 + 1, 2).unwrap()
            }
            _ => Layout::contiguous(shape).unwrap(),
        };
        let len = wide.iter().product();
        let host: Vec<f64> = (0..len).map(|_| round(d, rng.value())).collect();
        Tensor { buf: upload(gpu, d, &host), layout, host }
    }

    fn v(&self) -> View<'_> {
        self.buf.view().with_layout(self.layout).unwrap()
    }

    fn m(&self) -> ViewMut<'_> {
        self.buf.alias_mut().with_layout(self.layout).unwrap()
    }

    fn at(&self, host: &[f64], ix: &[usize]) -> f64 {
        host[self.layout.offset() + ix.iter().zip(self.layout.strides()).map(|(i, s)| i * s).sum::<usize>()]
    }

    fn get(&self, ix: &[usize]) -> f64 {
        self.at(&self.host, ix)
    }

    /// Element of a matrix or of batch number `b` of matrices, possibly transposed.
    fn mat(&self, b: usize, r: usize, c: usize, trans: bool) -> f64 {
        let (r, c) = if trans { (c, r) } else { (r, c) };
        if self.layout.rank() == 3 {
            self.get(&[if self.layout.shape()[0] == 1 { 0 } else { b }, r, c])
        } else {
            self.get(&[r, c])
        }
    }
}

fn act(a: Activation, x: f64) -> f64 {
    let s = |x: f64| 1.0 / (1.0 + (-x).exp());
    match a {
        Activation::Relu => x.max(0.0),
        Activation::LeakyRelu { slope } => {
            if x > 0.0 {
                x
            } else {
                slope * x
            }
        }
        Activation::Gelu => x * 0.5 * (1.0 + libm::erf(x / 2f64.sqrt())),
        Activation::GeluTanh => 0.5 * x * (1.0 + (0.7978845608028654 * (x + 0.044715 * x.powi(3))).tanh()),
        Activation::Sigmoid => s(x),
        Activation::Tanh => x.tanh(),
        Activation::Swish { beta } => x * s(beta * x),
        Activation::Hardswish => x * (x + 3.0).clamp(0.0, 6.0) / 6.0,
        _ => x,
    }
}

const ACTS: [Activation; 9] = [
    Activation::Identity,
    Activation::Relu,
    Activation::LeakyRelu { slope: 0.1 },
    Activation::Gelu,
    Activation::GeluTanh,
    Activation::Sigmoid,
    Activation::Tanh,
    Activation::Swish { beta: 1.5 },
    Activation::Hardswish,
];

fn eps(d: DType) -> f64 {
    match d {
        DType::F32 => 1.2e-7,
        DType::F16 => 9.8e-4,
        DType::Bf16 => 7.9e-3,
        _ => 2.3e-16,
    }
}

/// One random product; everything about it follows from `seed`.
fn forward(gpu: &dyn IGpuBackend, seed: u64, d: DType, [batch, m, n, k]: [usize; 4]) {
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
    gpu.gemm(&p, io).unwrap_or_else(|e| panic!("{what}: {e}"));
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

/// Rounds of f32, and of each other type: on PoCL few, where a product takes as long as a hundred on the CPU backend, and the types of one text differ
/// in how they load and store.
type Rounds = [u64; 2];
const ON_THE_CPU: Rounds = [12, 12];

/// The seeds of a type's rounds, others for each type.
fn seeds(rounds: Rounds) -> impl Iterator<Item = (DType, u64)> {
    let types = [DType::F32, DType::F16, DType::Bf16, DType::F64].into_iter().zip(0..);
    types.flat_map(move |(d, first)| (0..rounds[usize::from(first > 0)]).map(move |r| (d, first + r)))
}

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
