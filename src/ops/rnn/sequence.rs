//! Recurrence over a whole sequence: operands and checks.

use crate::ops::rnn::{GruGates, Recurrence, RnnCell, RnnWeights, absent, inputs, outputs};
use crate::ops::check;
use crate::buffer::{GradMut, View, ViewMut};
use crate::dtype::DType;
use crate::error::{GpuError, Result};

io_struct! {
    /// Operands of [`RnnOps::rnn`](super::RnnOps::rnn). T steps, batch B, input width I, hidden width H.
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
    /// Operands of [`RnnBackwardOps::rnn_bwd`](super::RnnBackwardOps::rnn_bwd).
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
    /// Gradients of [`RnnBackwardOps::rnn_bwd`](super::RnnBackwardOps::rnn_bwd), each in the shape of what it belongs to.
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

/// Checks of [`RnnOps::rnn`](super::RnnOps::rnn).
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

/// Checks of [`RnnBackwardOps::rnn_bwd`](super::RnnBackwardOps::rnn_bwd).
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
