//! Recurrent networks: signatures and checks.

mod conv;

pub use self::conv::*;

use crate::ops::check;
use crate::ops::gemm::Precision;
use crate::buffer::{GradMut, View, ViewMut};
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

io_struct! {
    /// Operands of [`RnnOps::rnn`]. T steps, batch B, input width I, hidden width H.
    #[derive(Debug)]
    pub struct RnnFwd<'a> {
        /// [T, B, I] ([B, T, I] with `batch_first`).
        pub x: View<'a>,
        /// First hidden state [B, H]; zeros without.
        pub h_0: Option<View<'a>>,
        /// First cell state [B, H] of an LSTM; zeros without.
        pub c_0: Option<View<'a>>,
        /// Parameters.
        pub weights: RnnWeights<'a>,
        /// i32, shape `[B]`: steps at and behind a row's length leave its states as they are and give an output of 0.
        pub lengths: Option<View<'a>>,
        /// Hidden states [T, B, H] ([B, T, H] with `batch_first`), in the order of x.
        pub y: ViewMut<'a>,
        /// Last hidden state [B, H].
        pub h_t: Option<ViewMut<'a>>,
        /// Last cell state [B, H] of an LSTM.
        pub c_t: Option<ViewMut<'a>>,
        /// Saved for the gradient: all hidden states [T+1, B, H] in the order of processing, the first state first.
        pub h: Option<ViewMut<'a>>,
        /// Saved by an LSTM: all cell states [T+1, B, H].
        pub c: Option<ViewMut<'a>>,
        /// Saved by an LSTM: its gates after their activation [T, B, 4 H]; 0 at steps that a length leaves out.
        pub gates: Option<ViewMut<'a>>,
        /// Saved by a GRU; 0 at steps that a length leaves out.
        pub gru: GruGates<Option<ViewMut<'a>>> = GruGates::new(None, None, None, None),
    }
}

io_struct! {
    /// Operands of [`RnnBackwardOps::rnn_bwd`].
    #[derive(Debug)]
    pub struct RnnBwd<'a> {
        /// Gradient of y; 0 without.
        pub dy: Option<View<'a>>,
        /// Gradient of the last hidden state; 0 without.
        pub dh_t: Option<View<'a>>,
        /// Gradient of the last cell state; 0 without.
        pub dc_t: Option<View<'a>>,
        /// Forward's x.
        pub x: View<'a>,
        /// Forward's parameters; the biases are not read.
        pub weights: RnnWeights<'a>,
        /// Forward's lengths.
        pub lengths: Option<View<'a>>,
        /// Saved hidden states [T+1, B, H].
        pub h: View<'a>,
        /// Saved cell states [T+1, B, H] of an LSTM.
        pub c: Option<View<'a>>,
        /// Saved gates [T, B, 4 H] of an LSTM.
        pub gates: Option<View<'a>>,
        /// Saved gates of a GRU.
        pub gru: Option<GruGates<View<'a>>>,
        /// Gradients to compute.
        pub grads: RnnGrads<'a> = RnnGrads::new(),
    }
}

io_struct! {
    /// Gradients of [`RnnBackwardOps::rnn_bwd`], each in the shape of what it belongs to.
    #[derive(Debug, Default)]
    pub struct RnnGrads<'a> {
        /// Of x.
        pub dx: Option<GradMut<'a>>,
        /// Of the first hidden state.
        pub dh_0: Option<GradMut<'a>>,
        /// Of the first cell state of an LSTM.
        pub dc_0: Option<GradMut<'a>>,
        /// Of the input weights.
        pub dw_ih: Option<GradMut<'a>>,
        /// Of the recurrent weights.
        pub dw_hh: Option<GradMut<'a>>,
        /// Of the input bias.
        pub db_ih: Option<GradMut<'a>>,
        /// Of the recurrent bias.
        pub db_hh: Option<GradMut<'a>>,
    }
}

io_struct! {
    /// Operands of [`RnnOps::lstm_cell`].
    #[derive(Debug)]
    pub struct LstmCellFwd<'a> {
        /// Gates before their activation, [B, 4 H].
        pub z: View<'a>,
        /// Cell state [B, H].
        pub c: View<'a>,
        /// Next hidden state [B, H].
        pub h_next: ViewMut<'a>,
        /// Next cell state [B, H].
        pub c_next: ViewMut<'a>,
        /// Saved: gates after their activation, [B, 4 H].
        pub gates: Option<ViewMut<'a>>,
    }
}

io_struct! {
    /// Operands of [`RnnOps::lstm_cell_bwd`].
    #[derive(Debug)]
    pub struct LstmCellBwd<'a> {
        /// Gradient of h_next; 0 without.
        pub dh_next: Option<View<'a>>,
        /// Gradient of c_next; 0 without.
        pub dc_next: Option<View<'a>>,
        /// Saved gates.
        pub gates: View<'a>,
        /// Forward's cell state.
        pub c: View<'a>,
        /// Forward's next cell state.
        pub c_next: View<'a>,
        /// Gradient of z, [B, 4 H].
        pub dz: GradMut<'a>,
        /// Gradient of c.
        pub dc: Option<GradMut<'a>>,
    }
}

io_struct! {
    /// Operands of [`RnnOps::gru_cell`].
    #[derive(Debug)]
    pub struct GruCellFwd<'a> {
        /// x W_ihᵀ + b_ih, [B, 3 H].
        pub a: View<'a>,
        /// h W_hhᵀ + b_hh, [B, 3 H]; its last third is the u_n of the gradient.
        pub u: View<'a>,
        /// Hidden state [B, H].
        pub h: View<'a>,
        /// Next hidden state [B, H].
        pub h_next: ViewMut<'a>,
        /// Saved: reset gate [B, H].
        pub r: Option<ViewMut<'a>>,
        /// Saved: update gate [B, H].
        pub z: Option<ViewMut<'a>>,
        /// Saved: candidate [B, H].
        pub n: Option<ViewMut<'a>>,
    }
}

io_struct! {
    /// Operands of [`RnnOps::gru_cell_bwd`].
    #[derive(Debug)]
    pub struct GruCellBwd<'a> {
        /// Gradient of h_next.
        pub dh_next: View<'a>,
        /// Saved r, z, n, and the last third of u (its rows may lie apart).
        pub gates: GruGates<View<'a>>,
        /// Forward's hidden state.
        pub h: View<'a>,
        /// Gradient of a, [B, 3 H].
        pub da: GradMut<'a>,
        /// Gradient of u, [B, 3 H].
        pub du: GradMut<'a>,
        /// The direct part of the gradient of h, dh_next z; the rest is du W_hh.
        pub dh: Option<GradMut<'a>>,
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

/// Sizes of a checked sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RnnSizes {
    pub(crate) steps: usize,
    pub(crate) batch: usize,
    pub(crate) input: usize,
    pub(crate) hidden: usize,
    pub(crate) gates: usize,
}

impl RnnSizes {
    /// Strides of one step and one row in tensors like x and y with rows of `width`.
    pub(crate) fn stride(&self, p: &Recurrence, width: usize) -> (usize, usize) {
        if p.batch_first { (width, self.steps * width) } else { (self.batch * width, width) }
    }

    /// Time of the step that is processed as number `at`.
    pub(crate) fn time(&self, p: &Recurrence, at: usize) -> usize {
        if p.reverse { self.steps - 1 - at } else { at }
    }
}

/// Sizes by x and the weights, which must fit them.
fn sizes(
    op: &'static str,
    cell: RnnCell,
    p: &Recurrence,
    x: &View<'_>,
    w: &RnnWeights<'_>,
) -> Result<RnnSizes> {
    check::float(op, "x", x)?;
    let &[outer, inner, input] = x.shape() else {
        return Err(GpuError::invalid(op, "x", "rank 3", format!("shape {:?}", x.shape())));
    };
    let &[_, hidden] = w.w_hh.shape() else {
        return Err(GpuError::invalid(op, "w_hh", "rank 2", format!("shape {:?}", w.w_hh.shape())));
    };
    let (steps, batch) = if p.batch_first { (inner, outer) } else { (outer, inner) };
    Ok(RnnSizes { steps, batch, input, hidden, gates: cell.gates() })
}

/// Lengths [B]; added to `read`.
fn lengths<'v>(
    op: &'static str,
    v: Option<View<'v>>,
    batch: usize,
    read: &mut Vec<(&'static str, View<'v>)>,
) -> Result<()> {
    let Some(v) = v else { return Ok(()) };
    check::shape(op, "lengths", &v, &[batch])?;
    check::dtype(op, "lengths", &v, DType::I32)?;
    check::contiguous(op, "lengths", &v)?;
    read.push(("lengths", v));
    Ok(())
}

/// Checks of [`RnnOps::rnn`].
pub(crate) fn check_rnn(cell: RnnCell, p: &Recurrence, io: &RnnFwd<'_>) -> Result<RnnSizes> {
    const OP: &str = "rnn";
    let w = &io.weights;
    let s = sizes(OP, cell, p, &io.x, w)?;
    let (dt, b, h) = (io.x.dtype(), s.batch, s.hidden);
    let rows = h.saturating_mul(s.gates);
    let mut read = inputs(
        OP,
        dt,
        &[
            ("x", Some(io.x), io.x.shape()),
            ("w_ih", Some(w.w_ih), &[rows, s.input]),
            ("w_hh", Some(w.w_hh), &[rows, h]),
            ("b_ih", w.b_ih, &[rows]),
            ("b_hh", w.b_hh, &[rows]),
            ("h_0", io.h_0, &[b, h]),
            ("c_0", io.c_0, &[b, h]),
        ],
    )?;
    lengths(OP, io.lengths, b, &mut read)?;
    let lstm = cell == RnnCell::Lstm;
    for (arg, there) in [
        ("c_0", io.c_0.is_some()),
        ("c_t", io.c_t.is_some()),
        ("c", io.c.is_some()),
        ("gates", io.gates.is_some()),
    ] {
        absent(OP, arg, there && !lstm, cell)?;
    }
    let g = &io.gru;
    for (arg, v) in [("gru.r", &g.r), ("gru.z", &g.z), ("gru.n", &g.n), ("gru.u", &g.u)] {
        absent(OP, arg, v.is_some() && !cell.is_gru(), cell)?;
    }
    let y = if p.batch_first { [b, s.steps, h] } else { [s.steps, b, h] };
    let (each, states) = ([s.steps, b, h], [s.steps + 1, b, h]);
    outputs(
        OP,
        dt,
        read,
        &[
            ("y", Some(&io.y), &y),
            ("h_t", io.h_t.as_ref(), &[b, h]),
            ("c_t", io.c_t.as_ref(), &[b, h]),
            ("h", io.h.as_ref(), &states),
            ("c", io.c.as_ref(), &states),
            ("gates", io.gates.as_ref(), &[s.steps, b, rows]),
            ("gru.r", g.r.as_ref(), &each),
            ("gru.z", g.z.as_ref(), &each),
            ("gru.n", g.n.as_ref(), &each),
            ("gru.u", g.u.as_ref(), &each),
        ],
    )?;
    Ok(s)
}

/// Checks of [`RnnBackwardOps::rnn_bwd`].
pub(crate) fn check_rnn_bwd(cell: RnnCell, p: &Recurrence, io: &RnnBwd<'_>) -> Result<RnnSizes> {
    const OP: &str = "rnn_bwd";
    let w = &io.weights;
    let s = sizes(OP, cell, p, &io.x, w)?;
    let (dt, b, h) = (io.x.dtype(), s.batch, s.hidden);
    let rows = h.saturating_mul(s.gates);
    let (lstm, gru) = (cell == RnnCell::Lstm, cell.is_gru());
    for (arg, there, has) in [
        ("dc_t", io.dc_t.is_some(), lstm),
        ("c", io.c.is_some(), lstm),
        ("gates", io.gates.is_some(), lstm),
        ("dc_0", io.grads.dc_0.is_some(), lstm),
        ("gru", io.gru.is_some(), gru),
    ] {
        absent(OP, arg, there && !has, cell)?;
    }
    for (arg, there) in [
        ("c", io.c.is_some() || !lstm),
        ("gates", io.gates.is_some() || !lstm),
        ("gru", io.gru.is_some() || !gru),
    ] {
        if !there {
            return Err(GpuError::invalid(OP, arg, "what the forward saved", "none"));
        }
    }
    let y = if p.batch_first { [b, s.steps, h] } else { [s.steps, b, h] };
    let (each, states) = ([s.steps, b, h], [s.steps + 1, b, h]);
    let mut read = inputs(
        OP,
        dt,
        &[
            ("x", Some(io.x), io.x.shape()),
            ("w_ih", Some(w.w_ih), &[rows, s.input]),
            ("w_hh", Some(w.w_hh), &[rows, h]),
            ("dy", io.dy, &y),
            ("dh_t", io.dh_t, &[b, h]),
            ("dc_t", io.dc_t, &[b, h]),
            ("h", Some(io.h), &states),
            ("c", io.c, &states),
            ("gates", io.gates, &[s.steps, b, rows]),
            ("gru.r", io.gru.map(|g| g.r), &each),
            ("gru.z", io.gru.map(|g| g.z), &each),
            ("gru.n", io.gru.map(|g| g.n), &each),
            ("gru.u", io.gru.map(|g| g.u), &each),
        ],
    )?;
    lengths(OP, io.lengths, b, &mut read)?;
    let g = &io.grads;
    outputs(
        OP,
        dt,
        read,
        &[
            ("dx", g.dx.as_ref().map(|g| &g.out), io.x.shape()),
            ("dh_0", g.dh_0.as_ref().map(|g| &g.out), &[b, h]),
            ("dc_0", g.dc_0.as_ref().map(|g| &g.out), &[b, h]),
            ("dw_ih", g.dw_ih.as_ref().map(|g| &g.out), &[rows, s.input]),
            ("dw_hh", g.dw_hh.as_ref().map(|g| &g.out), &[rows, h]),
            ("db_ih", g.db_ih.as_ref().map(|g| &g.out), &[rows]),
            ("db_hh", g.db_hh.as_ref().map(|g| &g.out), &[rows]),
        ],
    )?;
    Ok(s)
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

/// Checks of [`RnnOps::lstm_cell`]; batch and hidden width.
pub(crate) fn check_lstm_cell(io: &LstmCellFwd<'_>) -> Result<[usize; 2]> {
    const OP: &str = "lstm_cell";
    let (b, h) = matrix(OP, "c", &io.c)?;
    let dt = io.z.dtype();
    check::float(OP, "z", &io.z)?;
    let read = inputs(OP, dt, &[("z", Some(io.z), &[b, h.saturating_mul(4)]), ("c", Some(io.c), &[b, h])])?;
    let outs = [
        ("h_next", Some(&io.h_next), &[b, h][..]),
        ("c_next", Some(&io.c_next), &[b, h]),
        ("gates", io.gates.as_ref(), &[b, h.saturating_mul(4)]),
    ];
    outputs(OP, dt, read, &outs)?;
    Ok([b, h])
}

/// Checks of [`RnnOps::lstm_cell_bwd`]; batch and hidden width.
pub(crate) fn check_lstm_cell_bwd(io: &LstmCellBwd<'_>) -> Result<[usize; 2]> {
    const OP: &str = "lstm_cell_bwd";
    let (b, h) = matrix(OP, "c", &io.c)?;
    let dt = io.gates.dtype();
    check::float(OP, "gates", &io.gates)?;
    let state = &[b, h][..];
    let read = inputs(
        OP,
        dt,
        &[
            ("gates", Some(io.gates), &[b, h.saturating_mul(4)]),
            ("c", Some(io.c), state),
            ("c_next", Some(io.c_next), state),
            ("dh_next", io.dh_next, state),
            ("dc_next", io.dc_next, state),
        ],
    )?;
    let dc = io.dc.as_ref().map(|g| &g.out);
    outputs(OP, dt, read, &[("dz", Some(&io.dz.out), &[b, h.saturating_mul(4)]), ("dc", dc, state)])?;
    Ok([b, h])
}

/// Checks of [`RnnOps::gru_cell`]; batch and hidden width.
pub(crate) fn check_gru_cell(io: &GruCellFwd<'_>) -> Result<[usize; 2]> {
    const OP: &str = "gru_cell";
    let (b, h) = matrix(OP, "h", &io.h)?;
    let dt = io.a.dtype();
    check::float(OP, "a", &io.a)?;
    let (state, all) = (&[b, h][..], &[b, h.saturating_mul(3)][..]);
    let read = inputs(OP, dt, &[("a", Some(io.a), all), ("u", Some(io.u), all), ("h", Some(io.h), state)])?;
    let outs = [
        ("h_next", Some(&io.h_next), state),
        ("r", io.r.as_ref(), state),
        ("z", io.z.as_ref(), state),
        ("n", io.n.as_ref(), state),
    ];
    outputs(OP, dt, read, &outs)?;
    Ok([b, h])
}

/// Checks of [`RnnOps::gru_cell_bwd`]; batch and hidden width.
pub(crate) fn check_gru_cell_bwd(io: &GruCellBwd<'_>) -> Result<[usize; 2]> {
    const OP: &str = "gru_cell_bwd";
    let (b, h) = matrix(OP, "h", &io.h)?;
    let dt = io.h.dtype();
    check::float(OP, "h", &io.h)?;
    let (state, all) = (&[b, h][..], &[b, h.saturating_mul(3)][..]);
    let g = &io.gates;
    let mut read = inputs(
        OP,
        dt,
        &[
            ("dh_next", Some(io.dh_next), state),
            ("gates.r", Some(g.r), state),
            ("gates.z", Some(g.z), state),
            ("gates.n", Some(g.n), state),
            ("h", Some(io.h), state),
        ],
    )?;
    check::shape(OP, "gates.u", &g.u, state)?;
    check::dtype(OP, "gates.u", &g.u, dt)?;
    if h > 1 && g.u.layout().strides()[1] != 1 {
        let got = format!("strides {:?}", g.u.layout().strides());
        return Err(GpuError::invalid(OP, "gates.u", "contiguous rows", got));
    }
    read.push(("gates.u", g.u));
    let dh = io.dh.as_ref().map(|g| &g.out);
    outputs(
        OP,
        dt,
        read,
        &[("da", Some(&io.da.out), all), ("du", Some(&io.du.out), all), ("dh", dh, state)],
    )?;
    Ok([b, h])
}
