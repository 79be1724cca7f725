//! Where problems are prepared: the device, the sizes, and buffers with random contents.

use std::cell::Cell;

use trefoil::ops::random::{Distribution, Rng};
use trefoil::{Buffer, Caps, DType, IGpuBackend, Result};

/// How large the operands of the table's problems are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scale {
    /// A few thousand elements: to see that it runs.
    Tiny,
    /// For a CPU.
    Small,
    /// For a GPU: sizes of training.
    Large,
}

impl Scale {
    /// The scale of a device.
    pub fn of(caps: &Caps) -> Self {
        if caps.is_cpu { Scale::Small } else { Scale::Large }
    }
}

/// Input sets together exceed every current L2 cache.
const ROTATED_BYTES: usize = 256 << 20;

/// The device that problems are prepared on, and how.
pub struct Context<'a> {
    pub(crate) gpu: &'a dyn IGpuBackend,
    scale: Scale,
    rotate: bool,
    /// Of the next buffer.
    seed: Cell<u64>,
}

impl std::fmt::Debug for Context<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context").field("device", &self.gpu.id()).field("scale", &self.scale).finish()
    }
}

impl<'a> Context<'a> {
    /// One set of inputs for each problem, and sizes of this scale.
    pub fn new(gpu: &'a dyn IGpuBackend, scale: Scale) -> Self {
        Context { gpu, scale, rotate: false, seed: Cell::new(0) }
    }

    /// Several sets of inputs that take turns, so that no cache holds the next one.
    pub fn rotating(gpu: &'a dyn IGpuBackend) -> Self {
        Context { rotate: true, ..Self::new(gpu, Scale::of(gpu.caps())) }
    }

    /// The one of these sizes that belongs to the scale.
    pub(crate) fn pick(&self, tiny: usize, small: usize, large: usize) -> usize {
        match self.scale {
            Scale::Tiny => tiny,
            Scale::Small => small,
            Scale::Large => large,
        }
    }

    /// Elements of a streaming problem: beyond the caches of a GPU.
    pub(crate) fn n(&self) -> usize {
        self.pick(1 << 12, 1 << 17, 1 << 26)
    }

    /// Rows and row length of activations in training.
    pub(crate) fn rows(&self) -> [usize; 2] {
        [self.pick(16, 256, 16_384), self.pick(256, 512, 4_096)]
    }

    /// Rows and classes of a language model's loss.
    pub(crate) fn classes(&self) -> [usize; 2] {
        [self.pick(8, 64, 4_096), self.pick(500, 1_000, 50_304)]
    }

    /// Side of square matrices.
    pub(crate) fn side(&self) -> usize {
        self.pick(64, 256, 4_096)
    }

    /// Number of input sets of a problem that moves `bytes`.
    pub(crate) fn sets(&self, bytes: usize) -> usize {
        if self.rotate { ROTATED_BYTES.div_ceil(bytes.max(1)).clamp(1, 8) } else { 1 }
    }

    /// Uninitialised elements.
    pub(crate) fn empty(&self, dtype: DType, n: usize) -> Result<Buffer> {
        self.gpu.alloc(dtype, n)
    }

    pub(crate) fn zeros(&self, dtype: DType, n: usize) -> Result<Buffer> {
        let mut b = self.empty(dtype, n)?;
        self.gpu.fill(0.0, b.view_mut())?;
        Ok(b)
    }

    fn random(&self, dtype: DType, n: usize, distribution: Distribution) -> Result<Buffer> {
        let mut b = self.empty(dtype, n)?;
        self.gpu.random(distribution, self.rng(), b.view_mut())?;
        Ok(b)
    }

    /// A generator for the next buffer: no two buffers of a problem have the same contents.
    fn rng(&self) -> Rng<'static> {
        self.seed.set(self.seed.get() + 1);
        Rng::new(self.seed.get())
    }

    /// The device.
    pub(crate) fn device(&self) -> &'a dyn IGpuBackend {
        self.gpu
    }

    /// Standard normal values; never zeros, which some devices move and multiply faster.
    pub(crate) fn normal(&self, dtype: DType, n: usize) -> Result<Buffer> {
        self.normal_std(dtype, n, 1.0)
    }

    /// Normal values with this standard deviation.
    pub(crate) fn normal_std(&self, dtype: DType, n: usize, std: f64) -> Result<Buffer> {
        self.random(dtype, n, Distribution::Normal { mean: 0.0, std })
    }

    /// Numbers from 0 to 1.
    pub(crate) fn unit(&self, dtype: DType, n: usize) -> Result<Buffer> {
        self.random(dtype, n, Distribution::Uniform { lo: 0.0, hi: 1.0 })
    }

    /// Values in [0.5, 1.5).
    pub(crate) fn positive(&self, dtype: DType, n: usize) -> Result<Buffer> {
        self.random(dtype, n, Distribution::Uniform { lo: 0.5, hi: 1.5 })
    }

    /// Values in [-1.5, -0.5): rates of states, which grow beyond all bounds with positive ones.
    pub(crate) fn negative(&self, dtype: DType, n: usize) -> Result<Buffer> {
        self.random(dtype, n, Distribution::Uniform { lo: -1.5, hi: -0.5 })
    }

    /// i64 values in [0, below).
    pub(crate) fn ids(&self, n: usize, below: usize) -> Result<Buffer> {
        self.random(DType::I64, n, Distribution::Int { lo: 0, hi: below as i64 })
    }

    /// An i32 tensor of these values.
    pub(crate) fn integers(&self, values: impl Iterator<Item = i32>) -> Result<Buffer> {
        let bytes: Vec<[u8; 4]> = values.map(i32::to_le_bytes).collect();
        let mut b = self.empty(DType::I32, bytes.len())?;
        self.gpu.write_bytes(b.view_mut(), bytes.as_flattened())?;
        Ok(b)
    }

    /// Different i64 values in [0, n), shuffled.
    pub(crate) fn permutation(&self, n: usize) -> Result<Buffer> {
        let mut b = self.empty(DType::I64, n)?;
        self.gpu.permutation(self.rng(), b.view_mut())?;
        Ok(b)
    }

    /// A u8 mask, half of it true.
    pub(crate) fn mask(&self, n: usize) -> Result<Buffer> {
        self.random(DType::U8, n, Distribution::Bernoulli { p: 0.5 })
    }

    /// `count` buffers that take turns.
    pub(crate) fn sets_of(&self, count: usize, make: impl Fn(&Self) -> Result<Buffer>) -> Result<Sets> {
        (0..count).map(|_| make(self)).collect::<Result<_>>().map(Sets)
    }

    /// Standard normal values, `count` times.
    pub(crate) fn normal_sets(&self, dtype: DType, n: usize, count: usize) -> Result<Sets> {
        self.sets_of(count, |cx| cx.normal(dtype, n))
    }
}

/// The buffers of one operand; run number `i` uses one of them.
pub(crate) struct Sets(Vec<Buffer>);

impl Sets {
    pub(crate) fn at(&self, i: usize) -> &Buffer {
        &self.0[i % self.0.len()]
    }

    pub(crate) fn at_mut(&mut self, i: usize) -> &mut Buffer {
        let n = self.0.len();
        &mut self.0[i % n]
    }
}
