//! The table of benchmarks. `tests/benches.rs` holds it against the operations and the kernels of the library.

// The test that includes this module uses other parts of it than the benchmark does.
#![allow(dead_code)]

mod attention;
mod conv;
mod dense;
mod distance;
mod elements;
mod embedding;
mod gnn;
mod indexed;
mod lm;
mod losses;
mod mesh;
mod norm;
mod optim;
mod pool;
mod resample;
mod rnn;
mod scan;
mod sort;
mod train;

use trefoil::ops::{Distribution, Rng};
use trefoil::{Buffer, Caps, DType, IGpuBackend, Result};

/// One call of a benchmark, with its operands.
pub(crate) type Run = Box<dyn FnMut(&dyn IGpuBackend) -> Result<()>>;

/// Operands, ready to be used again and again.
pub(crate) struct Problem {
    /// Bytes that one call has to read and write.
    pub(crate) bytes: u64,
    /// Floating-point operations, where these are the measure.
    pub(crate) flops: Option<u64>,
    /// The call.
    pub(crate) run: Run,
}

/// One benchmark of an operation.
pub(crate) struct Row {
    /// Method of the backend.
    pub(crate) op: &'static str,
    /// What sets it apart from other rows of the operation.
    pub(crate) case: &'static str,
    /// Storage types that it is run with.
    pub(crate) dtypes: &'static [DType],
    /// Makes the operands.
    pub(crate) make: fn(&Bed<'_>, DType) -> Result<Problem>,
}

const F32: &[DType] = &[DType::F32];
const F32_BF16: &[DType] = &[DType::F32, DType::Bf16];

/// How large the operands are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scale {
    /// A few thousand elements: to see that it runs.
    Tiny,
    /// A CPU.
    Small,
    /// A GPU.
    Large,
}

impl Scale {
    pub(crate) fn of(caps: &Caps) -> Self {
        if caps.is_cpu { Scale::Small } else { Scale::Large }
    }
}

/// Where problems are made.
pub(crate) struct Bed<'a> {
    pub(crate) gpu: &'a dyn IGpuBackend,
    scale: Scale,
}

impl<'a> Bed<'a> {
    pub(crate) fn new(gpu: &'a dyn IGpuBackend, scale: Scale) -> Self {
        Bed { gpu, scale }
    }

    fn pick(&self, tiny: usize, small: usize, large: usize) -> usize {
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

    pub(crate) fn empty(&self, dtype: DType, n: usize) -> Result<Buffer> {
        self.gpu.alloc(dtype, n)
    }

    /// Standard normal values.
    pub(crate) fn normal(&self, dtype: DType, n: usize) -> Result<Buffer> {
        let mut b = self.empty(dtype, n)?;
        self.gpu.random(Distribution::Normal { mean: 0.0, std: 1.0 }, Rng::new(n as u64), b.view_mut())?;
        Ok(b)
    }

    /// Values in [0.5, 1.5).
    pub(crate) fn positive(&self, dtype: DType, n: usize) -> Result<Buffer> {
        let mut b = self.empty(dtype, n)?;
        self.gpu.random(Distribution::Uniform { lo: 0.5, hi: 1.5 }, Rng::new(n as u64), b.view_mut())?;
        Ok(b)
    }

    /// i64 values in [0, below).
    pub(crate) fn ids(&self, n: usize, below: usize) -> Result<Buffer> {
        let mut b = self.empty(DType::I64, n)?;
        let dist = Distribution::Int { lo: 0, hi: below as i64 };
        self.gpu.random(dist, Rng::new(n as u64).at(1, 0), b.view_mut())?;
        Ok(b)
    }

    /// Different i64 values in [0, n), shuffled.
    pub(crate) fn permutation(&self, n: usize) -> Result<Buffer> {
        let mut b = self.empty(DType::I64, n)?;
        self.gpu.permutation(Rng::new(n as u64), b.view_mut())?;
        Ok(b)
    }

    /// A u8 mask, half of it true.
    pub(crate) fn mask(&self, n: usize) -> Result<Buffer> {
        let mut b = self.empty(DType::U8, n)?;
        self.gpu.random(Distribution::Bernoulli { p: 0.5 }, Rng::new(n as u64), b.view_mut())?;
        Ok(b)
    }

    pub(crate) fn zeros(&self, dtype: DType, n: usize) -> Result<Buffer> {
        let mut b = self.empty(dtype, n)?;
        self.gpu.fill(0.0, b.view_mut())?;
        Ok(b)
    }
}

/// A problem measured in bytes.
fn bytes(bytes: usize, run: impl FnMut(&dyn IGpuBackend) -> Result<()> + 'static) -> Result<Problem> {
    Ok(Problem { bytes: bytes as u64, flops: None, run: Box::new(run) })
}

/// A problem measured in floating-point operations.
fn flops(flops: usize, run: impl FnMut(&dyn IGpuBackend) -> Result<()> + 'static) -> Result<Problem> {
    Ok(Problem { bytes: 0, flops: Some(flops as u64), run: Box::new(run) })
}

/// Every benchmark.
pub(crate) fn rows() -> impl Iterator<Item = &'static Row> {
    [
        elements::ROWS,
        dense::ROWS,
        indexed::ROWS,
        train::ROWS,
        optim::ROWS,
        losses::ROWS,
        conv::ROWS,
        norm::ROWS,
        pool::ROWS,
        resample::ROWS,
        attention::ROWS,
        lm::ROWS,
        embedding::ROWS,
        rnn::ROWS,
        gnn::ROWS,
        mesh::ROWS,
        scan::ROWS,
        sort::ROWS,
        distance::ROWS,
    ]
    .into_iter()
    .flatten()
}

/// A row of the table.
const fn row(
    op: &'static str,
    case: &'static str,
    dtypes: &'static [DType],
    make: fn(&Bed<'_>, DType) -> Result<Problem>,
) -> Row {
    Row { op, case, dtypes, make }
}
