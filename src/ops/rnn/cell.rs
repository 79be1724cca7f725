//! One step of an LSTM or a GRU: operands and checks.

use crate::ops::rnn::{GruGates, inputs, matrix, outputs};
use crate::ops::check;
use crate::buffer::{GradMut, View, ViewMut};
use crate::error::{GpuError, Result};

io_struct! {
    /// Operands of [`RnnOps::lstm_cell`](super::RnnOps::lstm_cell).
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
    /// Operands of [`RnnOps::lstm_cell_bwd`](super::RnnOps::lstm_cell_bwd).
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
    /// Operands of [`RnnOps::gru_cell`](super::RnnOps::gru_cell).
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
    /// Operands of [`RnnOps::gru_cell_bwd`](super::RnnOps::gru_cell_bwd).
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

/// Checks of [`RnnOps::lstm_cell`](super::RnnOps::lstm_cell); batch and hidden width.
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

/// Checks of [`RnnOps::lstm_cell_bwd`](super::RnnOps::lstm_cell_bwd); batch and hidden width.
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

/// Checks of [`RnnOps::gru_cell`](super::RnnOps::gru_cell); batch and hidden width.
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

/// Checks of [`RnnOps::gru_cell_bwd`](super::RnnOps::gru_cell_bwd); batch and hidden width.
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
