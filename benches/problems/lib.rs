//! Benchmark problems: the operands, the call, the bytes and the arithmetic of every operation.
//!
//! One table serves `cargo bench` (`benches/ops.rs`), `trefoil bench` and the test that holds it against the operations and kernels of the
//! library (`tests/benches.rs`). Each family has a module with
//!
//! * functions that prepare a problem of given sizes,
//! * `PROBLEMS`: problems with a name and with sizes for each [`Scale`], listed by [`problems`],
//! * `OPERATIONS`: operations of the JSON case format, which read their sizes from a [`Case`], found by [`operation`].
//!
//! This is a crate, and no module tree included by path, because a published package cannot include files outside its folder: `trefoil-cli`
//! depends on it like on any other crate, and `trefoil` has it as a development dependency.
#![forbid(unsafe_code)]

mod case;
mod context;

mod activation;
mod attention;
mod conv;
mod core;
mod distance;
mod elementwise;
mod embedding;
mod field;
mod fourier;
mod gemm;
mod graph;
mod index;
mod language_model;
mod linalg;
mod loss;
mod mesh;
mod moe;
mod norm;
mod optimizer;
mod pool;
mod quantized;
mod random;
mod reduce;
mod resample;
mod rnn;
mod scan;
mod shape;
mod softmax;
mod sort;
mod state_space;

use trefoil::{DType, IGpuBackend, Result};

pub use self::case::{Case, CaseError, Operation, operation, operations};
pub use self::context::{Context, Scale};
pub use self::graph::random_edges;

/// A problem of the table: one operation with one kind of operands.
#[derive(Debug)]
pub struct Problem {
    /// Method of the backend.
    pub op: &'static str,
    /// Sets it apart from other problems of the operation.
    pub name: &'static str,
    /// Storage types that it is run with.
    pub dtypes: &'static [DType],
    /// Allocates the operands.
    pub prepare: fn(&Context<'_>, DType) -> Result<Prepared>,
}

/// A call that queues the operation for one set of inputs.
type Run = Box<dyn FnMut(&dyn IGpuBackend, usize) -> Result<()>>;

/// A problem whose operands are in memory; it can be run again and again.
pub struct Prepared {
    /// Bytes that one run has to read and write at least; 0 where the arithmetic alone is counted.
    pub bytes: u64,
    /// Floating-point operations of one run; 0 where the bytes are the measure.
    pub flops: u64,
    run: Run,
}

impl std::fmt::Debug for Prepared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Prepared")
            .field("bytes", &self.bytes)
            .field("flops", &self.flops)
            .finish_non_exhaustive()
    }
}

impl Prepared {
    /// Queues run number `i` and returns without waiting; `gpu` is the device that the problem was prepared on. The number selects the set
    /// of inputs ([`Context::rotating`]).
    pub fn run(&mut self, gpu: &dyn IGpuBackend, i: usize) -> Result<()> {
        (self.run)(gpu, i)
    }

    /// The same problem, measured by its bytes.
    fn by_bytes(self) -> Self {
        Prepared { flops: 0, ..self }
    }
}

const F32: &[DType] = &[DType::F32];
const F32_BF16: &[DType] = &[DType::F32, DType::Bf16];
const BF16: &[DType] = &[DType::Bf16];

/// A problem with its bytes and floating-point operations; `run` gets the number of the run.
fn prepared(
    bytes: usize,
    flops: usize,
    run: impl FnMut(&dyn IGpuBackend, usize) -> Result<()> + 'static,
) -> Result<Prepared> {
    Ok(Prepared { bytes: bytes as u64, flops: flops as u64, run: Box::new(run) })
}

/// A problem with one set of inputs, measured in bytes.
fn bytes(bytes: usize, mut run: impl FnMut(&dyn IGpuBackend) -> Result<()> + 'static) -> Result<Prepared> {
    prepared(bytes, 0, move |gpu, _| run(gpu))
}

/// A problem with one set of inputs, measured in floating-point operations.
fn flops(flops: usize, mut run: impl FnMut(&dyn IGpuBackend) -> Result<()> + 'static) -> Result<Prepared> {
    prepared(0, flops, move |gpu, _| run(gpu))
}

/// A problem of the table.
const fn problem(
    op: &'static str,
    name: &'static str,
    dtypes: &'static [DType],
    prepare: fn(&Context<'_>, DType) -> Result<Prepared>,
) -> Problem {
    Problem { op, name, dtypes, prepare }
}

/// The whole table.
pub fn problems() -> impl Iterator<Item = &'static Problem> {
    [
        core::PROBLEMS,
        elementwise::PROBLEMS,
        activation::PROBLEMS,
        shape::PROBLEMS,
        random::PROBLEMS,
        reduce::PROBLEMS,
        softmax::PROBLEMS,
        gemm::PROBLEMS,
        quantized::PROBLEMS,
        field::PROBLEMS,
        fourier::PROBLEMS,
        index::PROBLEMS,
        loss::PROBLEMS,
        loss::ROWS,
        loss::BATCHES,
        loss::SEQUENCES,
        optimizer::PROBLEMS,
        conv::PROBLEMS,
        norm::PROBLEMS,
        pool::PROBLEMS,
        resample::PROBLEMS,
        attention::PROBLEMS,
        language_model::PROBLEMS,
        linalg::PROBLEMS,
        moe::PROBLEMS,
        state_space::PROBLEMS,
        embedding::PROBLEMS,
        rnn::PROBLEMS,
        graph::PROBLEMS,
        graph::ATTENTION,
        mesh::PROBLEMS,
        scan::PROBLEMS,
        sort::PROBLEMS,
        distance::PROBLEMS,
    ]
    .into_iter()
    .flatten()
}

/// A copy that reads and writes `bytes` in all: the speed to compare others with.
pub fn copy_of(cx: &Context<'_>, bytes: u64) -> Result<Prepared> {
    core::copy(cx, DType::F32, bytes.div_ceil(8).max(1) as usize)
}
