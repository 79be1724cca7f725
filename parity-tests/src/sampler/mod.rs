//! Cases drawn at random: a sampler per forward kernel; gradients take their inputs from a run of the forward on the CPU in f64.

use std::collections::BTreeMap;

use serde_json::{Map, Value};
use trefoil::DType;

use crate::cases::Kernel;
use crate::suite::{Case, HostTensor, Named, Wanted};

mod draw;

pub use self::draw::{Forward, draw};

/// What values a tensor holds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Dom {
    /// Standard normal; integers from a wide range.
    Any,
    /// Standard normal or, all of a tensor, from 64 to 65, where the spread is in the last digits of the mean.
    Spread,
    /// Normal, at least 0.3 away from 0.
    Nonzero,
    /// From 0.2 to 3.
    Positive,
    /// Uniform between two bounds.
    Range(f64, f64),
    /// Multiples of 1/2, so that values repeat and zeros occur.
    Coarse,
    /// Magnitudes from 0.8 to 1.25 and either sign, so that long products stay in range.
    NearOne,
    /// Whole numbers from 0 to 4.
    Count,
    /// -1 or 1.
    Sign,
    /// Zeros.
    Zero,
}

/// A small deterministic generator (SplitMix64).
#[derive(Debug, Clone)]
pub(crate) struct Draw(pub(crate) u64);

impl Draw {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 * 2f64.powi(-53)
    }

    fn normal(&mut self) -> f64 {
        let (u, v) = (1.0 - self.unit(), self.unit());
        (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos()
    }
}

/// Inputs and arguments of one random case, being drawn.
#[derive(Debug)]
pub struct Sample {
    /// Storage type of the data tensors.
    pub dtype: DType,
    /// Draw few elements (for finite differences).
    pub small: bool,
    draw: Draw,
    index: usize,
    /// Number of the case among those of its kernel and storage type.
    number: usize,
    /// All indices of a call have one type.
    ids: DType,
    inputs: Named,
    args: Map<String, Value>,
}

/// Shapes on and around the edges of blocks, vectors and grids.
const EDGES: &[&[usize]] = &[
    &[1],
    &[31],
    &[33],
    &[4, 255],
    &[257],
    &[3, 0],
    &[2, 3, 5],
    &[1025],
    &[65_600, 2],
    &[7, 1, 13],
    &[0],
    &[1, 1, 1],
    &[129, 65],
    &[2, 3, 4, 5],
    &[3, 65_537],
];

impl Sample {
    fn new(kernel: &Kernel, dtype: DType, index: usize, seed: u64, small: bool) -> Self {
        let mut h = seed ^ 0xcbf2_9ce4_8422_2325;
        for b in kernel.name.bytes().chain(dtype.name().bytes()).chain((index as u64).to_le_bytes()) {
            h = (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3);
        }
        // Which edge shape comes first depends on the kernel, so that a few shapes per kernel cover all of them across the table.
        let start = kernel.name.bytes().map(usize::from).sum::<usize>();
        let ids = if h & 64 == 0 { DType::I64 } else { DType::I32 };
        Sample {
            ids,
            dtype,
            small,
            draw: Draw(h),
            index: start + index,
            number: index,
            inputs: Vec::new(),
            args: Map::new(),
        }
    }

    /// A whole number below `n`, 0 for n = 0.
    pub fn below(&mut self, n: usize) -> usize {
        if n == 0 { 0 } else { (self.draw.next() % n as u64) as usize }
    }

    /// A flag.
    pub fn coin(&mut self) -> bool {
        self.below(2) == 1
    }

    /// `Some(0)`, `Some(1)`, .. for every other case: those whose operands begin at multiples of 16 bytes and are neither expanded nor spliced.
    /// Samplers draw in them the shapes that kernels for aligned rows take, each of which random shapes would rarely meet.
    pub fn aligned(&self) -> Option<usize> {
        (!self.small && self.number.is_multiple_of(2)).then_some(self.number / 2)
    }

    /// Elements of 16 bytes of the storage type.
    pub fn vector(&self) -> usize {
        16 / self.dtype.size()
    }

    /// A shape of rank 1 to 4: the edge shapes in turn, every third one free.
    pub fn shape(&mut self) -> Vec<usize> {
        if self.small {
            let r = 1 + self.below(3);
            return (0..r).map(|_| 2 + self.below(3)).collect();
        }
        if self.index % 3 == 2 {
            let r = 1 + self.below(4);
            return (0..r).map(|_| 1 + self.below(21)).collect();
        }
        EDGES[(self.index - self.index / 3) % EDGES.len()].to_vec()
    }

    /// A shape without axes of size 0.
    pub fn solid(&mut self) -> Vec<usize> {
        self.shape().into_iter().map(|n| n.max(2)).collect()
    }

    /// A shape of exactly this rank, not large.
    pub fn ranked(&mut self, rank: usize) -> Vec<usize> {
        let edge = [1, 2, 3, 5, 17, 33];
        if self.small {
            return (0..rank).map(|_| 2 + self.below(3)).collect();
        }
        let mut s: Vec<usize> = (0..rank).map(|_| edge[self.below(edge.len())]).collect();
        match self.index % 8 {
            0 => s[rank - 1] = 257,
            1 => s[0] = if rank < 4 { 1000 } else { 70 },
            2 => s[rank / 2] = 0,
            _ => {}
        }
        s
    }

    /// One size.
    pub fn size(&mut self) -> usize {
        if self.small {
            return 3 + self.below(4);
        }
        [1, 31, 33, 255, 257, 1000, 2049, 70_000][self.index % 8]
    }

    /// Adds an input of the data type.
    pub fn put(&mut self, name: &str, shape: &[usize], dom: Dom) {
        let dtype = self.dtype;
        self.typed(name, dtype, shape, dom);
    }

    /// Adds an input of a given type.
    pub fn typed(&mut self, name: &str, dtype: DType, shape: &[usize], dom: Dom) {
        let n = shape.iter().product();
        let dom = match dom {
            Dom::Spread if self.coin() => Dom::Range(64.0, 65.0),
            dom => dom,
        };
        let values: Vec<f64> = (0..n).map(|_| self.value(dtype, dom)).collect();
        self.inputs.push((name.into(), HostTensor::from_f64(dtype, shape, &values)));
    }

    fn value(&mut self, dtype: DType, dom: Dom) -> f64 {
        let integer = !dtype.is_float();
        match dom {
            Dom::Any if integer => {
                self.below(if dtype == DType::U8 { 256 } else { 100_000 }) as f64
                    - if dtype == DType::U8 { 0.0 } else { 5e4 }
            }
            Dom::Any | Dom::Spread => self.draw.normal(),
            Dom::Nonzero => {
                let x = self.draw.normal();
                x + 0.3f64.copysign(x)
            }
            Dom::Positive => 0.2 + 2.8 * self.draw.unit(),
            Dom::Range(lo, hi) => {
                let x = lo + (hi - lo) * self.draw.unit();
                if integer { x.trunc() } else { x }
            }
            Dom::Coarse if integer => self.below(5) as f64,
            Dom::Coarse if self.small => self.draw.normal(),
            Dom::Coarse => (self.draw.normal() * 2.0).round() / 2.0,
            Dom::NearOne if integer => self.below(100) as f64,
            Dom::NearOne => {
                let x = 0.8 + 0.45 * self.draw.unit();
                if self.coin() { x } else { -x }
            }
            Dom::Count => self.below(5) as f64,
            Dom::Sign => 1.0 - 2.0 * self.below(2) as f64,
            Dom::Zero => 0.0,
        }
    }

    /// Adds a u8 mask.
    pub fn mask(&mut self, name: &str, shape: &[usize]) {
        let n: usize = shape.iter().product();
        let values: Vec<i64> = (0..n).map(|_| i64::from(self.coin())).collect();
        self.ints(name, DType::U8, shape, &values);
    }

    /// Adds indices below `n`, i32 or i64.
    pub fn ids(&mut self, name: &str, shape: &[usize], n: usize) {
        let dtype = self.ids;
        let count: usize = shape.iter().product();
        let values: Vec<i64> = (0..count).map(|_| self.below(n) as i64).collect();
        self.ints(name, dtype, shape, &values);
    }

    /// Adds index values of the case's index type.
    pub fn ids_of(&mut self, name: &str, shape: &[usize], values: &[i64]) {
        let dtype = self.ids;
        self.ints(name, dtype, shape, values);
    }

    /// Adds lists of labels per row, ended by -1; some lists name each label twice.
    pub fn labels(&mut self, name: &str, shape: &[usize; 2]) {
        let [rows, classes] = *shape;
        let mut values = vec![-1; rows * classes];
        for row in values.chunks_mut(classes.max(1)) {
            let step = 1 + self.below(3);
            let count = self.below(classes / step + 1).min(4);
            let (first, times) = (self.below(step), 1 + self.below(2));
            row.iter_mut().enumerate().take(count).for_each(|(i, v)| *v = (first + i / times * step) as i64);
            row.iter_mut().for_each(|v| *v = if *v < classes as i64 { *v } else { -1 });
        }
        self.ints(name, DType::I64, shape, &values);
    }

    /// Adds noise with a pulse at every `every`-th sample, `size` times 3 to 5 high: where a window sees one pulse, no frequency is weak.
    pub fn pulses(&mut self, name: &str, shape: &[usize; 2], every: usize, size: f64) {
        let dtype = self.dtype;
        let mut values = Vec::new();
        for i in 0..shape[0] * shape[1] {
            let pulse = (i % shape[1]).is_multiple_of(every);
            let height = if pulse { size * (3.0 + 2.0 * self.draw.unit()) } else { 0.0 };
            let noise = self.draw.normal();
            values.push(if self.coin() { noise + height } else { noise - height });
        }
        self.inputs.push((name.into(), HostTensor::from_f64(dtype, shape, &values)));
    }

    /// Adds boxes as corners x1 y1 x2 y2.
    pub fn corners(&mut self, name: &str, n: usize) {
        let dtype = self.dtype;
        let mut values = Vec::with_capacity(4 * n);
        for _ in 0..n {
            let (x, y) = (2.0 * self.draw.unit(), 2.0 * self.draw.unit());
            let (w, h) = (0.5 + 2.0 * self.draw.unit(), 0.5 + 2.0 * self.draw.unit());
            values.extend([x, y, x + w, y + h]);
        }
        self.inputs.push((name.into(), HostTensor::from_f64(dtype, &[n, 4], &values)));
    }

    /// Adds an integer input with these values.
    pub fn ints(&mut self, name: &str, dtype: DType, shape: &[usize], values: &[i64]) {
        self.inputs.push((name.into(), HostTensor::from_i64(dtype, shape, values)));
    }

    /// Adds an input of the data type with these values.
    pub fn values(&mut self, name: &str, shape: &[usize], values: &[f64]) {
        self.inputs.push((name.into(), HostTensor::from_f64(self.dtype, shape, values)));
    }

    /// Numbers from the standard normal distribution.
    pub fn normals(&mut self, n: usize) -> Vec<f64> {
        (0..n).map(|_| self.draw.normal()).collect()
    }

    /// Takes an input back; returns its values.
    pub fn take_values(&mut self, name: &str) -> Vec<f64> {
        let i = self.inputs.iter().position(|(n, _)| n == name);
        i.map(|i| self.inputs.remove(i).1.to_f64()).unwrap_or_default()
    }

    /// Takes an input back; returns its shape.
    pub fn drop(&mut self, name: &str) -> Vec<usize> {
        let i = self.inputs.iter().position(|(n, _)| n == name);
        i.map(|i| self.inputs.remove(i).1.shape).unwrap_or_default()
    }

    /// Sets an argument.
    pub fn arg(&mut self, name: &str, value: impl Into<Value>) {
        self.args.insert(name.into(), value.into());
    }

    /// Takes an argument back.
    pub fn forget(&mut self, name: &str) {
        self.args.remove(name);
    }

    /// Shape of an input drawn before.
    pub fn shape_of(&self, name: &str) -> Vec<usize> {
        self.inputs.iter().find(|(n, _)| n == name).map(|(_, t)| t.shape.clone()).unwrap_or_default()
    }

    /// Whether an input was drawn before.
    pub fn has(&self, name: &str) -> bool {
        self.inputs.iter().any(|(n, _)| n == name)
    }

    /// Shape of the first input.
    pub fn shape_of_first(&self) -> Vec<usize> {
        self.inputs.first().map(|(_, t)| t.shape.clone()).unwrap_or_default()
    }

    /// Rank of an input drawn before.
    pub fn rank_of(&self, name: &str) -> usize {
        self.shape_of(name).len()
    }

    /// Elements of an input drawn before.
    pub fn numel_of(&self, name: &str) -> usize {
        self.shape_of(name).iter().product()
    }

    fn into_case(self, kernel: &Kernel) -> Case {
        Case {
            id: format!("{}/random", kernel.name),
            kernel: kernel.name.into(),
            dtype: self.dtype,
            args: self.args,
            inputs: self.inputs,
            strides: BTreeMap::new(),
            accumulate: BTreeMap::new(),
            wanted: Wanted::All,
            expected: BTreeMap::new(),
            error: None,
        }
    }
}
