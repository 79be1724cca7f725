//! The calls that the rows of the table stand for.

use std::rc::Rc;

use trefoil::ops::gemm::Precision;
use trefoil::ops::rnn::{
    ConvLstmBwd, ConvLstmFwd, GruCellBwd, GruCellFwd, GruGates, LstmCellBwd, LstmCellFwd, Recurrence, RnnBwd,
    RnnCell, RnnFwd, RnnGrads, RnnWeights,
};
use trefoil::{DType, View, ViewMut};

use crate::device::{Cx, Fail, R, Tensor};

/// A flag that the row may not have.
pub(super) fn flag(cx: &Cx<'_>, name: &str) -> R<bool> {
    if cx.has(name) { cx.b(name) } else { Ok(false) }
}

pub(super) fn recurrence(cx: &Cx<'_>) -> R<Recurrence> {
    Ok(Recurrence::new().reverse(flag(cx, "reverse")?).batch_first(flag(cx, "batch_first")?))
}

pub(super) fn weights<'a>(cx: &'a Cx<'_>) -> R<RnnWeights<'a>> {
    let mut w = RnnWeights::new(cx.x("W_ih")?, cx.x("W_hh")?);
    (w.b_ih, w.b_hh) = (cx.opt("b_ih"), cx.opt("b_hh"));
    Ok(w)
}

/// An output that a row may not have, or that nobody asks for.
pub(super) fn wanted(cx: &Cx<'_>, name: &str, dtype: DType, shape: &[usize]) -> R<Option<Rc<Tensor>>> {
    if cx.has_output(name) && cx.wants(name) { Ok(Some(cx.out(name, dtype, shape)?)) } else { Ok(None) }
}

pub(super) fn m(t: &Option<Rc<Tensor>>) -> Option<ViewMut<'_>> {
    t.as_ref().map(|t| t.m())
}

pub(super) fn size(v: &View<'_>, axis: usize) -> R<usize> {
    v.shape()
        .get(axis)
        .copied()
        .ok_or_else(|| Fail::Case(format!("shape {:?} has no axis {axis}", v.shape())))
}

pub(super) fn forward(cx: &Cx<'_>, cell: RnnCell) -> R {
    let p = recurrence(cx)?;
    let (x, w) = (cx.x("X")?, weights(cx)?);
    let (dt, h) = (x.dtype(), size(&w.w_hh, 1)?);
    let (t, b) = (size(&x, p.batch_first as usize)?, size(&x, !p.batch_first as usize)?);
    let y = cx.out("Y", dt, &if p.batch_first { [b, t, h] } else { [t, b, h] })?;
    let lstm = cell == RnnCell::Lstm;
    let part =
        |has: bool, name: &str, shape: &[usize]| if has { wanted(cx, name, dt, shape) } else { Ok(None) };
    let (h_t, c_t) = (part(true, "h_T", &[b, h])?, part(lstm, "c_T", &[b, h])?);
    let each = |name: &str| part(cell.is_gru(), name, &[t, b, h]);
    let (r, z, n, u) = (each("r")?, each("z")?, each("n")?, each("u_n")?);
    let gates = part(lstm, "gates", &[t, b, 4 * h])?;
    let (c, all) = (part(lstm, "c", &[t + 1, b, h])?, part(true, "h", &[t + 1, b, h])?);
    let mut io = RnnFwd::new(x, w, y.m());
    (io.h_0, io.c_0, io.lengths) = (cx.opt("h_0"), cx.opt("c_0"), cx.opt("lengths"));
    (io.h_t, io.c_t, io.h, io.c, io.gates) = (m(&h_t), m(&c_t), m(&all), m(&c), m(&gates));
    io.gru = GruGates::new(m(&r), m(&z), m(&n), m(&u));
    Ok(cx.gpu.rnn(cell, &p, io)?)
}

pub(super) fn backward(cx: &Cx<'_>, cell: RnnCell) -> R {
    let p = recurrence(cx)?;
    let (x, w, h) = (cx.x("X")?, RnnWeights::new(cx.x("W_ih")?, cx.x("W_hh")?), cx.x("h")?);
    let (dt, state) = (x.dtype(), &h.shape()[1..]);
    let bias = [size(&w.w_ih, 0)?];
    let dx = cx.like("dX", &x)?;
    let dh_0 = cx.out("dh_0", dt, state)?;
    let dc_0 = if cell == RnnCell::Lstm { Some(cx.out("dc_0", dt, state)?) } else { None };
    let (dw_ih, dw_hh) = (cx.like("dW_ih", &w.w_ih)?, cx.like("dW_hh", &w.w_hh)?);
    // Gradients of biases that the forward had.
    let (db_ih, db_hh) = (wanted(cx, "db_ih", dt, &bias)?, wanted(cx, "db_hh", dt, &bias)?);
    let gru = match (cell.is_gru(), cx.opt("r"), cx.opt("z"), cx.opt("n"), cx.opt("u_n")) {
        (true, Some(r), Some(z), Some(n), Some(u)) => Some(GruGates::new(r, z, n, u)),
        _ => None,
    };
    let grads = RnnGrads::new()
        .dx(dx.g())
        .dh_0(dh_0.g())
        .dc_0(dc_0.as_ref().map(|g| g.g()))
        .dw_ih(dw_ih.g())
        .dw_hh(dw_hh.g())
        .db_ih(db_ih.as_ref().map(|g| g.g()))
        .db_hh(db_hh.as_ref().map(|g| g.g()));
    let io = RnnBwd::new(x, w, h)
        .dy(cx.opt("dY"))
        .dh_t(cx.opt("dh_T"))
        .dc_t(cx.opt("dc_T"))
        .lengths(cx.opt("lengths"))
        .c(cx.opt("c"))
        .gates(cx.opt("gates"))
        .gru(gru)
        .grads(grads);
    Ok(cx.gpu.rnn_bwd(cell, &p, io)?)
}

/// The cell that an argument names.
pub(super) fn named(cx: &Cx<'_>) -> R<RnnCell> {
    Ok(match cx.s("cell")?.as_str() {
        "gru" => RnnCell::Gru,
        "gru_reset_before" => RnnCell::GruResetBefore,
        "tanh" => RnnCell::Tanh,
        "relu" => RnnCell::Relu,
        "lstm" => RnnCell::Lstm,
        c => return Err(Fail::Case(format!("cell {c} is unknown"))),
    })
}

/// Which GRU.
pub(super) fn gru(cx: &Cx<'_>) -> R<RnnCell> {
    Ok(if flag(cx, "reset_before")? { RnnCell::GruResetBefore } else { RnnCell::Gru })
}

pub(super) fn precompute(cx: &Cx<'_>) -> R {
    let (x, h, w) = (cx.x("x")?, cx.x("h")?, weights(cx)?);
    let z = cx.out("z", x.dtype(), &[size(&x, 0)?, size(&w.w_ih, 0)?])?;
    Ok(cx.gpu.rnn_gates(Precision::Ieee, x, h, w, z.m())?)
}

pub(super) fn lstm_cell(cx: &Cx<'_>) -> R {
    let (z, c) = (cx.x("z")?, cx.x("c")?);
    let (h_next, c_next) = (cx.like("h_next", &c)?, cx.like("c_next", &c)?);
    let gates = cx.like("gates", &z)?;
    let io = LstmCellFwd::new(z, c, h_next.m(), c_next.m()).gates(gates.m());
    Ok(cx.gpu.lstm_cell(io)?)
}

pub(super) fn lstm_cell_backward(cx: &Cx<'_>) -> R {
    let (gates, c) = (cx.x("gates")?, cx.x("c")?);
    let (dz, dc) = (cx.like("dz", &gates)?, cx.like("dc", &c)?);
    let io = LstmCellBwd::new(gates, c, cx.x("c_next")?, dz.g())
        .dh_next(cx.opt("dh_next"))
        .dc_next(cx.opt("dc_next"))
        .dc(dc.g());
    Ok(cx.gpu.lstm_cell_bwd(io)?)
}

pub(super) fn gru_cell(cx: &Cx<'_>) -> R {
    let (a, u, h) = (cx.x("a")?, cx.x("u")?, cx.x("h")?);
    let next = cx.like("h_next", &h)?;
    let (r, z, n) = (cx.like("r", &h)?, cx.like("z", &h)?, cx.like("n", &h)?);
    let io = GruCellFwd::new(a, u, h, next.m()).r(r.m()).z(z.m()).n(n.m());
    Ok(cx.gpu.gru_cell(io)?)
}

pub(super) fn gru_cell_backward(cx: &Cx<'_>) -> R {
    let h = cx.x("h")?;
    let wide = [size(&h, 0)?, 3 * size(&h, 1)?];
    let (da, du, dh) = (cx.out("da", h.dtype(), &wide)?, cx.out("du", h.dtype(), &wide)?, cx.like("dh", &h)?);
    let gates = GruGates::new(cx.x("r")?, cx.x("z")?, cx.x("n")?, cx.x("u_n")?);
    let io = GruCellBwd::new(cx.x("dh_next")?, gates, h, da.g(), du.g()).dh(dh.g());
    Ok(cx.gpu.gru_cell_bwd(io)?)
}

pub(super) fn conv_lstm(cx: &Cx<'_>) -> R {
    let (x, h_0) = (cx.x("X")?, cx.x("h_0")?);
    let (dt, steps) = (x.dtype(), size(&x, 0)?);
    let state = h_0.shape();
    let over = |n: usize| [&[n], state].concat();
    let mut wide = over(steps);
    wide[2.min(state.len())] *= 4;
    let y = cx.out("Y", dt, &over(steps))?;
    let (h_t, c_t) = (cx.like("h_T", &h_0)?, cx.like("c_T", &h_0)?);
    let (gates, c) = (cx.out("gates", dt, &wide)?, cx.out("c", dt, &over(steps + 1))?);
    let h = wanted(cx, "h", dt, &over(steps + 1))?;
    let io = ConvLstmFwd::new(x, h_0, cx.x("c_0")?, cx.x("Wx")?, cx.x("Wh")?, y.m())
        .b(cx.opt("b"))
        .p(cx.opt("P"))
        .h_t(h_t.m())
        .c_t(c_t.m())
        .h(m(&h))
        .c(c.m())
        .gates(gates.m());
    Ok(cx.gpu.conv_lstm(Precision::Ieee, io)?)
}

pub(super) fn conv_lstm_backward(cx: &Cx<'_>) -> R {
    let (x, wx, wh, h) = (cx.x("X")?, cx.x("Wx")?, cx.x("Wh")?, cx.x("h")?);
    let (dt, state) = (x.dtype(), &h.shape()[1..]);
    let dx = cx.like("dX", &x)?;
    let (dh_0, dc_0) = (cx.out("dh_0", dt, state)?, cx.out("dc_0", dt, state)?);
    let (dwx, dwh) = (cx.like("dWx", &wx)?, cx.like("dWh", &wh)?);
    let db = cx.out("db", dt, &[size(&wx, 0)?])?;
    let p = cx.opt("P");
    let dp = p.as_ref().map(|p| cx.like("dP", p)).transpose()?;
    let io = ConvLstmBwd::new(x, wx, wh, cx.x("gates")?, cx.x("c")?, h)
        .dy(cx.opt("dY"))
        .dh_t(cx.opt("dh_T"))
        .dc_t(cx.opt("dc_T"))
        .p(p)
        .dx(dx.g())
        .dh_0(dh_0.g())
        .dc_0(dc_0.g())
        .dwx(dwx.g())
        .dwh(dwh.g())
        .db(db.g())
        .dp(dp.as_ref().map(|g| g.g()));
    Ok(cx.gpu.conv_lstm_bwd(Precision::Ieee, io)?)
}
