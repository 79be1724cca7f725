//! Products of random shapes, strides and epilogues on the CPU and on OpenCL against a plain f64 loop.

mod clblast;
mod gradients;
mod groups;
mod products;

use crate::backend::BackendExt;
use crate::ops::IGpuBackend;
use crate::ops::activation::Activation;
use crate::test_devices::present;
use crate::{Buffer, DType, Element, Engine, Layout, View, ViewMut};
use half::{bf16, f16};

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

/// Rounds of f32, and of each other type: on PoCL few, where a product takes as long as a hundred on the CPU backend, and the types of one text differ
/// in how they load and store.
type Rounds = [u64; 2];
const ON_THE_CPU: Rounds = [12, 12];

/// The seeds of a type's rounds, others for each type.
fn seeds(rounds: Rounds) -> impl Iterator<Item = (DType, u64)> {
    let types = [DType::F32, DType::F16, DType::Bf16, DType::F64].into_iter().zip(0..);
    types.flat_map(move |(d, first)| (0..rounds[usize::from(first > 0)]).map(move |r| (d, first + r)))
}
