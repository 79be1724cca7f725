//! Recurrent networks: signatures and checks.

mod cell;
mod conv;
mod sequence;

pub use self::cell::*;
pub use self::conv::*;
pub use self::sequence::*;

use crate::ops::check;
use crate::ops::gemm::Precision;
use crate::buffer::{View, ViewMut};
use crate::dtype::DType;
use crate::error::{GpuError, Result};

/// The recurrences. `a = x W_ihᵀ + b_ih` and `u = h W_hhᵀ + b_hh` are cut in blocks of H columns, one per gate; s is the logistic function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RnnCell {
    /// Gates i, f, g, o of z = a + u: c' = s(f) c + s(i) tanh(g), h' = s(o) tanh(c'). Reference: `torch.nn.LSTM`.
    Lstm,
    /// Gates r, z, n: r = s(a_r + u_r), z = s(a_z + u_z), n = tanh(a_n + r u_n), h' = (1 - z) n + z h. Reference: `torch.nn.GRU`.
    Gru,
    /// The form in which the reset gate comes before the product: n = tanh(a_n + (r h) W_hnᵀ + b_hn). Reference: Cho et al. (2014); ONNX's GRU
    /// with `linear_before_reset = 0`.
    GruResetBefore,
    /// h' = tanh(a + u). Reference: `torch.nn.RNN`.
    Tanh,
    /// h' = max(a + u, 0). Reference: `torch.nn.RNN(nonlinearity="relu")`.
    Relu,
}

impl RnnCell {
    /// Blocks of H rows in the weights.
    pub const fn gates(self) -> usize {
        match self {
            RnnCell::Lstm => 4,
            RnnCell::Gru | RnnCell::GruResetBefore => 3,
            RnnCell::Tanh | RnnCell::Relu => 1,
        }
    }

    /// Whether it saves r, z, n and u_n.
    pub const fn is_gru(self) -> bool {
        matches!(self, RnnCell::Gru | RnnCell::GruResetBefore)
    }
}

/// How a sequence is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Recurrence {
    /// From the last step to the first. Saved tensors are in the order of processing.
    pub reverse: bool,
    /// x, y and their gradients are [B, T, ..] instead of [T, B, ..]. States and saved tensors keep their layout.
    pub batch_first: bool,
    /// Arithmetic of the products.
    pub precision: Precision,
}

impl Recurrence {
    /// Forward in time, time first.
    pub const fn new() -> Self {
        Recurrence { reverse: false, batch_first: false, precision: Precision::Ieee }
    }

    /// Sets the direction.
    pub const fn reverse(mut self, on: bool) -> Self {
        self.reverse = on;
        self
    }

    /// Sets the order of the axes.
    pub const fn batch_first(mut self, on: bool) -> Self {
        self.batch_first = on;
        self
    }

    /// Sets the arithmetic.
    pub const fn precision(mut self, precision: Precision) -> Self {
        self.precision = precision;
        self
    }
}

io_struct! {
    /// Parameters of one layer and direction; k = [`RnnCell::gates`].
    #[derive(Debug, Clone, Copy)]
    pub struct RnnWeights<'a> {
        /// [k H, I].
        pub w_ih: View<'a>,
        /// [k H, H].
        pub w_hh: View<'a>,
        /// [k H].
        pub b_ih: Option<View<'a>>,
        /// [k H].
        pub b_hh: Option<View<'a>>,
    }
}

impl<'a> RnnWeights<'a> {
    /// With both biases.
    pub fn biases(mut self, b_ih: View<'a>, b_hh: View<'a>) -> Self {
        self.b_ih = Some(b_ih);
        self.b_hh = Some(b_hh);
        self
    }
}

io_struct! {
    /// What a GRU saves, each [T, B, H] (a cell: [B, H]).
    #[derive(Debug, Clone, Copy)]
    pub struct GruGates<V> {
        /// Reset gate.
        pub r: V,
        /// Update gate.
        pub z: V,
        /// Candidate.
        pub n: V,
        /// Recurrent part of the candidate: h W_hnᵀ + b_hn, or (r h) W_hnᵀ + b_hn where the reset gate comes before.
        pub u: V,
    }
}

op_family! {
    /// Recurrent cells and sequences. All operands are contiguous and share a floating dtype. States travel from step to step in the storage
    /// type, products and gates are computed in f32 (f64). Deterministic. Layers and directions are composed from calls.
    pub trait RnnOps : Rnn => RNN_OPS {
        /// A whole sequence: the products with W_ih of all steps at once, then per step one product with W_hh (two for
        /// [`RnnCell::GruResetBefore`]) and one kernel. T = 0 copies the first states. Errors: `Invalid` for shapes, dtypes, overlap, and
        /// operands that the cell does not have. Oracle `torch.nn.LSTM`, `torch.nn.GRU`, `torch.nn.RNN` with one layer;
        /// `pack_padded_sequence` with `lengths` (forward in time).
        fn rnn(&self, cell: RnnCell, p: &Recurrence, io: RnnFwd<'_>) -> Result<()>;
        /// z = x W_ihᵀ + b_ih + h W_hhᵀ + b_hh, [B, k H] for x [B, I] and h [B, H]: what [`RnnOps::lstm_cell`] reads, and, with one gate, a
        /// plain cell before its activation. The sum is rounded once. Its gradients are those of two products.
        fn rnn_gates(&self, precision: Precision, x: View<'_>, h: View<'_>, weights: RnnWeights<'_>, z: ViewMut<'_>) -> Result<()>;
        /// The pointwise part of one LSTM step. Oracle `torch.nn.LSTMCell`.
        fn lstm_cell(&self, io: LstmCellFwd<'_>) -> Result<()>;
        /// Gradients of [`RnnOps::lstm_cell`].
        fn lstm_cell_bwd(&self, io: LstmCellBwd<'_>) -> Result<()>;
        /// The pointwise part of one GRU step. Oracle `torch.nn.GRUCell`.
        fn gru_cell(&self, io: GruCellFwd<'_>) -> Result<()>;
        /// Gradients of [`RnnOps::gru_cell`].
        fn gru_cell_bwd(&self, io: GruCellBwd<'_>) -> Result<()>;
    }
}

op_family! {
    /// Gradients of recurrent sequences.
    pub trait RnnBackwardOps : Rnn => RNN_BACKWARD_OPS {
        /// Gradients of [`RnnOps::rnn`] by back-propagation through time from what it saved. Weight gradients are one product each over all
        /// steps. The gradients of the gates pass through the storage type.
        fn rnn_bwd(&self, cell: RnnCell, p: &Recurrence, io: RnnBwd<'_>) -> Result<()>;
    }
}

/// An operand with its name and the shape that it must have.
pub(crate) type Want<'a, 'v> = (&'static str, Option<View<'v>>, &'a [usize]);

/// Shapes, dtype and contiguity of the inputs that are there; returns them by name.
pub(crate) fn inputs<'v>(
    op: &'static str,
    dtype: DType,
    all: &[Want<'_, 'v>],
) -> Result<Vec<(&'static str, View<'v>)>> {
    let mut there = Vec::with_capacity(all.len());
    for (arg, v, shape) in all {
        let Some(v) = v else { continue };
        check::shape(op, arg, v, shape)?;
        check::dtype(op, arg, v, dtype)?;
        check::contiguous(op, arg, v)?;
        there.push((*arg, *v));
    }
    Ok(there)
}

/// The same for outputs, which share no memory with inputs and each other.
pub(crate) fn outputs(
    op: &'static str,
    dtype: DType,
    read: Vec<(&'static str, View<'_>)>,
    all: &[(&'static str, Option<&ViewMut<'_>>, &[usize])],
) -> Result<()> {
    let mut taken = read;
    for (arg, out, shape) in all {
        let Some(out) = out else { continue };
        let v = out.as_view();
        check::shape(op, arg, &v, shape)?;
        check::dtype(op, arg, &v, dtype)?;
        check::contiguous(op, arg, &v)?;
        check::separate_output(op, arg, out, &taken)?;
        taken.push((*arg, v));
    }
    Ok(())
}

/// An operand that this cell does not have.
fn absent(op: &'static str, arg: &'static str, there: bool, cell: RnnCell) -> Result<()> {
    if there {
        return Err(GpuError::invalid(op, arg, format!("none, as {cell:?} has no such operand"), "a view"));
    }
    Ok(())
}

/// Rows and columns of a matrix.
fn matrix(op: &'static str, arg: &'static str, v: &View<'_>) -> Result<(usize, usize)> {
    match v.shape() {
        &[r, c] => Ok((r, c)),
        s => Err(GpuError::invalid(op, arg, "rank 2", format!("shape {s:?}"))),
    }
}

/// Checks of [`RnnOps::rnn_gates`].
pub(crate) fn check_rnn_gates(x: &View<'_>, h: &View<'_>, w: &RnnWeights<'_>, z: &ViewMut<'_>) -> Result<()> {
    const OP: &str = "rnn_gates";
    check::float(OP, "x", x)?;
    let ((b, i), (_, hidden), (rows, _)) =
        (matrix(OP, "x", x)?, matrix(OP, "h", h)?, matrix(OP, "w_ih", &w.w_ih)?);
    let read = inputs(
        OP,
        x.dtype(),
        &[
            ("x", Some(*x), x.shape()),
            ("h", Some(*h), &[b, hidden]),
            ("w_ih", Some(w.w_ih), &[rows, i]),
            ("w_hh", Some(w.w_hh), &[rows, hidden]),
            ("b_ih", w.b_ih, &[rows]),
            ("b_hh", w.b_hh, &[rows]),
        ],
    )?;
    outputs(OP, x.dtype(), read, &[("z", Some(z), &[b, rows])])
}
