//! Errors of this crate.

use std::fmt;
use std::path::{Path, PathBuf};

use trefoil::{DType, DeviceId, GpuError};

/// Result with [`NnError`].
pub type Result<T, E = NnError> = std::result::Result<T, E>;

/// Target of log messages that concern files of a run, which its user should see: what was moved, repaired or cannot be checked.
pub(crate) const NOTICE: &str = "trefoil_nn::run";

/// A place in a data file.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum At {
    /// The file as a whole.
    File,
    /// Offset in bytes (in the unpacked data of a compressed file).
    Byte(u64),
    /// Item of an array or a stream, from 0.
    Item(u64),
    /// Line of a text, from 1.
    Line(u64),
    /// A named part: a tensor, an array of an archive.
    Entry(String),
}

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            At::File => f.write_str("the file"),
            At::Byte(n) => write!(f, "byte {n}"),
            At::Item(n) => write!(f, "item {n}"),
            At::Line(n) => write!(f, "line {n}"),
            At::Entry(name) => write!(f, "`{name}`"),
        }
    }
}

/// What a call of this crate can fail with.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NnError {
    /// The backend refused or failed.
    #[error(transparent)]
    Gpu(#[from] GpuError),
    /// `backward` was called on a tensor that does not depend on any tensor with `with_grad`.
    #[error("backward: the tensor does not require a gradient (was it made inside no_grad, or detached?)")]
    NoGraph,
    /// `backward` without a gradient needs a tensor with one element.
    #[error(
        "backward: a gradient must be given for a tensor of shape {shape:?}; only tensors with one element start from 1"
    )]
    NotScalar {
        /// Shape of the tensor.
        shape: Vec<usize>,
    },
    /// The graph was used by an earlier `backward` that did not retain it.
    #[error(
        "backward through `{op}` a second time: its saved tensors were freed; retain the graph in the first call"
    )]
    GraphFreed {
        /// The first freed operation that was met.
        op: &'static str,
    },
    /// A tensor that an operation saved for its backward was overwritten since.
    #[error(
        "backward of `{op}`: a saved tensor was modified in place after the forward (version {found}, expected {expected})"
    )]
    SavedModified {
        /// The operation.
        op: &'static str,
        /// Version when it was saved.
        expected: u64,
        /// Version now.
        found: u64,
    },
    /// A backward pass that creates a graph met an operation whose gradient is not made of operations that can be differentiated.
    #[error(
        "backward with create_graph: the gradient of `{op}` cannot be differentiated; write it with operations that can, or use \
         first derivatives alone"
    )]
    NotTwiceDifferentiable {
        /// The operation.
        op: &'static str,
    },
    /// A tensor whose gradient was asked for has no influence on the outputs.
    #[error("grad: input {index} has no influence on the outputs; set `allow_unused` if that is meant")]
    UnusedInput {
        /// Which input.
        index: usize,
    },
    /// A closure that an optimizer evaluates gave another loss or gradient at the same point.
    #[error(
        "the closure is not a function of the parameters: its loss or gradient changed between two evaluations at one point (losses \
         {first} and {second}); use one batch, and switch dropout and running statistics off"
    )]
    NonDeterministicClosure {
        /// Loss of the first evaluation.
        first: f64,
        /// Loss of the second evaluation.
        second: f64,
    },
    /// A gradient of another shape than its tensor.
    #[error("backward of `{op}`: gradient {index} has shape {got:?}, its tensor has shape {expected:?}")]
    GradShape {
        /// The operation.
        op: &'static str,
        /// Which input.
        index: usize,
        /// Shape of the tensor.
        expected: Vec<usize>,
        /// Shape of the gradient.
        got: Vec<usize>,
    },
    /// Operands live on different devices.
    #[error("{op}: the operands live on {a} and {b}; move one with to_device")]
    DeviceMismatch {
        /// The operation.
        op: &'static str,
        /// Device of the first operand.
        a: DeviceId,
        /// Device of the other operand.
        b: DeviceId,
    },
    /// Operands live on two handles of one device, each with a stream of its own.
    #[error(
        "{op}: the operands live on two handles of {device}, each with its own stream; move one with to_device, or clone one handle"
    )]
    HandleMismatch {
        /// The operation.
        op: &'static str,
        /// The device.
        device: DeviceId,
    },
    /// A label or another index is out of range. The device noticed, at the latest when the host last waited for it; reads of that index gave
    /// 0.
    #[error("{op}: {}", out_of_range(.op, .place, *.index, *.limit))]
    OutOfRange {
        /// The operation.
        op: &'static str,
        /// Where it stands: `row 3`, `row 17 of the labels of the training data`.
        place: String,
        /// The index.
        index: i64,
        /// Indices are below it.
        limit: usize,
    },
    /// An input of a layer holds a value that the layer does not allow. The device noticed, at the latest when the host last waited for it.
    #[error("{op}: {place} is {value}, expected {expected}")]
    Value {
        /// The layer.
        op: &'static str,
        /// Where the value stands: `row 3, position 1`.
        place: String,
        /// The value, as f32.
        value: f64,
        /// What is allowed.
        expected: &'static str,
    },
    /// A matrix of a batch has no such factors.
    #[error("{op}: matrix {matrix} of the batch, {at}: {what}")]
    Factorization {
        /// The operation.
        op: &'static str,
        /// Which of the matrices, from 0, in row-major order of the leading axes.
        matrix: usize,
        /// What `at` counts and what is wrong with it.
        what: &'static str,
        /// Size of the leading minor, or number of the pivot, from 1.
        at: usize,
    },
    /// A cache of keys and values has no room for more tokens.
    #[error(
        "KvCache: no room for {new} tokens behind {held} of at most {max_len}; clear or truncate the cache, or make a larger one"
    )]
    CacheFull {
        /// The most that it holds.
        max_len: usize,
        /// How many it holds.
        held: usize,
        /// How many were to be appended.
        new: usize,
    },
    /// A parameter set that cannot be used (already owned by an optimizer, moved to another device, empty).
    #[error("parameter `{name}`: {what}")]
    Param {
        /// Name in the state dictionary.
        name: String,
        /// What is wrong.
        what: String,
    },
    /// A tensor of a state dictionary does not fit the model.
    #[error("tensor `{name}`: expected {expected_dtype} {expected:?}, found {found_dtype} {found:?}")]
    StateShape {
        /// Name in the state dictionary.
        name: String,
        /// Shape in the model.
        expected: Vec<usize>,
        /// Dtype in the model.
        expected_dtype: DType,
        /// Shape that was received.
        found: Vec<usize>,
        /// Dtype that was received.
        found_dtype: DType,
    },
    /// Two parameters, two buffers or two generator positions of a model (or of the groups of an optimizer) have one name, so that one of
    /// them would be lost in a state dictionary.
    #[error(
        "two tensors or generator positions are named `{name}`; give the parts of a layer different names"
    )]
    DuplicateName {
        /// The first name that occurs twice.
        name: String,
    },
    /// Names of a state dictionary do not match the model's.
    #[error("state dictionary: missing tensors {missing:?}, unexpected tensors {unexpected:?}")]
    StateNames {
        /// In the model but not in the dictionary.
        missing: Vec<String>,
        /// In the dictionary but not in the model.
        unexpected: Vec<String>,
    },
    /// A checkpoint cannot be read.
    #[error("checkpoint {}: {what}", path.display())]
    Checkpoint {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
        /// The underlying error, where there is one.
        #[source]
        source: Option<Box<NnError>>,
    },
    /// A run cannot go on from a checkpoint of a run with other settings: it would not be the same training.
    #[error(
        "checkpoint {}: cannot resume with another {setting}: it was written with {written}, this run has {given}; resume with \
         {written}, or start a new run",
        path.display()
    )]
    ResumeMismatch {
        /// The file.
        path: PathBuf,
        /// What differs.
        setting: String,
        /// Its value in the run that wrote the checkpoint.
        written: String,
        /// Its value in this run.
        given: String,
    },
    /// Another trainer uses the run folder.
    #[error(
        "run folder {} is in use by {holder}; wait until that has ended (or end it), or name another run folder",
        path.display()
    )]
    Locked {
        /// The folder.
        path: PathBuf,
        /// Who uses it: `process 4711 (trefoil)`.
        holder: String,
    },
    /// A cell, row or column of a table (CSV, Parquet, Arrow) is missing or malformed. Rows and columns count from 1, the header line of CSV
    /// included.
    #[error("{}: row {row}, column {column}: {what}", path.display())]
    Table {
        /// The file.
        path: PathBuf,
        /// Row, from 1; of CSV the line of the file.
        row: usize,
        /// Column, from 1.
        column: usize,
        /// What is wrong.
        what: String,
    },
    /// A data file, or an item of it, is malformed.
    #[error("{}: {at}: expected {expected}, found {found}", path.display())]
    Data {
        /// The file.
        path: PathBuf,
        /// Where in it.
        at: At,
        /// What should be there.
        expected: String,
        /// What is there.
        found: String,
    },
    /// A file of another format, which its first bytes show.
    #[error("{}: expected {expected}, found {found}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// The format that can be read here.
        expected: &'static str,
        /// The format that it has, and how to write the other one.
        found: &'static str,
    },
    /// A configuration value is missing, unknown, of a wrong type or out of range.
    #[error("{file}: `{key}`: {what}")]
    Config {
        /// The file, or what stands for it.
        file: String,
        /// Path of the value in the file, such as `model.layers[2].out_features`.
        key: String,
        /// What is wrong.
        what: String,
    },
    /// A layer of a model does not take what comes to it, or failed otherwise.
    #[error("layer `{name}` ({kind}) with inputs of shape {inputs:?}: {error}")]
    Layer {
        /// Name of the innermost layer that failed, as in the state dictionary: `encoder.0.linear1`.
        name: String,
        /// Its type.
        kind: &'static str,
        /// Shapes of what came.
        inputs: Vec<Vec<usize>>,
        /// What is wrong; never this variant again.
        error: Box<NnError>,
    },
    /// What a training step needs of layers in a row does not fit in a budget, however many of them compute their activations again.
    #[error(
        "a step of these layers takes at least {least} bytes beside parameters and optimizer, however many activations are computed again; \
         the budget is {budget} bytes: raise it, or use smaller batches"
    )]
    MemoryBudget {
        /// The budget.
        budget: usize,
        /// What the leanest plan takes.
        least: usize,
    },
    /// The loss is NaN or infinite.
    #[error(
        "the loss of epoch {epoch} is {loss}; lower the learning rate or clip the gradients (the last checkpoint is intact)"
    )]
    Diverged {
        /// Epoch, from 1.
        epoch: u64,
        /// Mean training loss of that epoch.
        loss: f64,
    },
    /// The loss or a gradient is NaN or infinite, found by the trainer's anomaly mode.
    #[error(
        "step {step}: {what} is NaN or infinite, first produced by {origin}; the parameters are those before that step"
    )]
    Anomaly {
        /// Optimizer step, from 1.
        step: u64,
        /// `the loss` or `a gradient`.
        what: &'static str,
        /// Layer and operation whose output was the first that is not finite.
        origin: String,
    },
    /// A file cannot be read or written.
    #[error("cannot {what} {}", path.display())]
    Io {
        /// What was tried, as a verb.
        what: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The error of the operating system.
        #[source]
        source: std::io::Error,
    },
}

impl NnError {
    /// What failed, without the [layer](NnError::Layer) in which it did.
    pub fn root(&self) -> &NnError {
        match self {
            NnError::Layer { error, .. } => error,
            e => e,
        }
    }

    /// The error of a layer `name` of this type, or of one of its parts. An empty name is that of the whole, which adds nothing.
    /// `shapes`: those of its inputs.
    pub(crate) fn within(
        self,
        name: &str,
        kind: &'static str,
        shapes: impl FnOnce() -> Vec<Vec<usize>>,
    ) -> NnError {
        match self {
            e if name.is_empty() => e,
            NnError::Layer { name: part, kind, inputs, error } => {
                NnError::Layer { name: format!("{name}.{part}"), kind, inputs, error }
            }
            e => NnError::Layer { name: name.to_string(), kind, inputs: shapes(), error: Box::new(e) },
        }
    }

    /// Operands of two devices, or of two handles of one.
    pub(crate) fn mixed(op: &'static str, a: DeviceId, b: DeviceId) -> NnError {
        if a == b { NnError::HandleMismatch { op, device: a } } else { NnError::DeviceMismatch { op, a, b } }
    }

    pub(crate) fn io(what: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> NnError {
        let path = path.into();
        move |source| NnError::Io { what, path, source }
    }

    pub(crate) fn data(
        path: impl AsRef<Path>,
        at: At,
        expected: impl Into<String>,
        found: impl Into<String>,
    ) -> NnError {
        NnError::Data { path: path.as_ref().into(), at, expected: expected.into(), found: found.into() }
    }

    pub(crate) fn config(key: impl Into<String>, what: impl Into<String>) -> NnError {
        NnError::Config { file: "configuration".into(), key: key.into(), what: what.into() }
    }
}

/// An index out of range, in the words of who gave it.
fn out_of_range(op: &str, place: &str, index: i64, limit: usize) -> String {
    match op {
        "embedding" => format!("id {index} in {place} is out of range: num_embeddings is {limit}"),
        _ => format!("index {index} in {place} is out of range, which is 0..{limit}"),
    }
}

/// An argument that does not fit, as [`GpuError::Invalid`].
pub(crate) fn invalid(
    op: &'static str,
    arg: &'static str,
    expected: impl Into<String>,
    got: impl Into<String>,
) -> NnError {
    NnError::Gpu(GpuError::invalid(op, arg, expected, got))
}
