//! Recurrent networks.

use std::rc::Rc;

use trefoil::ops::*;
use trefoil::{DType, View, ViewMut};

use super::Bound::{Product, Stored};
use super::{GRAD, Kernel, k};
use crate::device::{Cx, Fail, R, Tensor};
use crate::random_cases::Dom::{Any, Range};
use crate::random_cases::Sample;

/// A flag that the row may not have.
fn flag(cx: &Cx<'_>, name: &str) -> R<bool> {
    if cx.has(name) { cx.b(name) } else { Ok(false) }
}

fn recurrence(cx: &Cx<'_>) -> R<Recurrence> {
    Ok(Recurrence::new().reverse(flag(cx, "reverse")?).batch_first(flag(cx, "batch_first")?))
}

fn weights<'a>(cx: &'a Cx<'_>) -> R<RnnWeights<'a>> {
    let mut w = RnnWeights::new(cx.x("W_ih")?, cx.x("W_hh")?);
    (w.b_ih, w.b_hh) = (cx.opt("b_ih"), cx.opt("b_hh"));
    Ok(w)
}

/// An output that a row may not have, or that nobody asks for.
fn wanted(cx: &Cx<'_>, name: &str, dtype: DType, shape: &[usize]) -> R<Option<Rc<Tensor>>> {
    if cx.has_output(name) && cx.wants(name) { Ok(Some(cx.out(name, dtype, shape)?)) } else { Ok(None) }
}

fn m(t: &Option<Rc<Tensor>>) -> Option<ViewMut<'_>> {
    t.as_ref().map(|t| t.m())
}

fn size(v: &View<'_>, axis: usize) -> R<usize> {
    v.shape()
        .get(axis)
        .copied()
        .ok_or_else(|| Fail::Case(format!("shape {:?} has no axis {axis}", v.shape())))
}

fn forward(cx: &Cx<'_>, cell: RnnCell) -> R {
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
    io.gru = GruGates { r: m(&r), z: m(&z), n: m(&n), u: m(&u) };
    Ok(cx.gpu.rnn(cell, &p, io)?)
}

fn backward(cx: &Cx<'_>, cell: RnnCell) -> R {
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
        (true, Some(r), Some(z), Some(n), Some(u)) => Some(GruGates { r, z, n, u }),
        _ => None,
    };
    let grads = RnnGrads {
        dx: Some(dx.g()),
        dh_0: Some(dh_0.g()),
        dc_0: dc_0.as_ref().map(|g| g.g()),
        dw_ih: Some(dw_ih.g()),
        dw_hh: Some(dw_hh.g()),
        db_ih: db_ih.as_ref().map(|g| g.g()),
        db_hh: db_hh.as_ref().map(|g| g.g()),
    };
    let io = RnnBwd {
        dy: cx.opt("dY"),
        dh_t: cx.opt("dh_T"),
        dc_t: cx.opt("dc_T"),
        x,
        weights: w,
        lengths: cx.opt("lengths"),
        h,
        c: cx.opt("c"),
        gates: cx.opt("gates"),
        gru,
        grads,
    };
    Ok(cx.gpu.rnn_bwd(cell, &p, io)?)
}

/// The cell that an argument names.
fn named(cx: &Cx<'_>) -> R<RnnCell> {
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
fn gru(cx: &Cx<'_>) -> R<RnnCell> {
    Ok(if flag(cx, "reset_before")? { RnnCell::GruResetBefore } else { RnnCell::Gru })
}

fn precompute(cx: &Cx<'_>) -> R {
    let (x, h, w) = (cx.x("x")?, cx.x("h")?, weights(cx)?);
    let z = cx.out("z", x.dtype(), &[size(&x, 0)?, size(&w.w_ih, 0)?])?;
    Ok(cx.gpu.rnn_gates(Precision::Ieee, x, h, w, z.m())?)
}

fn lstm_cell(cx: &Cx<'_>) -> R {
    let (z, c) = (cx.x("z")?, cx.x("c")?);
    let (h_next, c_next) = (cx.like("h_next", &c)?, cx.like("c_next", &c)?);
    let gates = cx.like("gates", &z)?;
    let io = LstmCellFwd { z, c, h_next: h_next.m(), c_next: c_next.m(), gates: Some(gates.m()) };
    Ok(cx.gpu.lstm_cell(io)?)
}

fn lstm_cell_backward(cx: &Cx<'_>) -> R {
    let (gates, c) = (cx.x("gates")?, cx.x("c")?);
    let (dz, dc) = (cx.like("dz", &gates)?, cx.like("dc", &c)?);
    let io = LstmCellBwd {
        dh_next: cx.opt("dh_next"),
        dc_next: cx.opt("dc_next"),
        gates,
        c,
        c_next: cx.x("c_next")?,
        dz: dz.g(),
        dc: Some(dc.g()),
    };
    Ok(cx.gpu.lstm_cell_bwd(io)?)
}

fn gru_cell(cx: &Cx<'_>) -> R {
    let (a, u, h) = (cx.x("a")?, cx.x("u")?, cx.x("h")?);
    let next = cx.like("h_next", &h)?;
    let (r, z, n) = (cx.like("r", &h)?, cx.like("z", &h)?, cx.like("n", &h)?);
    let io = GruCellFwd { a, u, h, h_next: next.m(), r: Some(r.m()), z: Some(z.m()), n: Some(n.m()) };
    Ok(cx.gpu.gru_cell(io)?)
}

fn gru_cell_backward(cx: &Cx<'_>) -> R {
    let h = cx.x("h")?;
    let wide = [size(&h, 0)?, 3 * size(&h, 1)?];
    let (da, du, dh) = (cx.out("da", h.dtype(), &wide)?, cx.out("du", h.dtype(), &wide)?, cx.like("dh", &h)?);
    let gates = GruGates { r: cx.x("r")?, z: cx.x("z")?, n: cx.x("n")?, u: cx.x("u_n")? };
    let io = GruCellBwd { dh_next: cx.x("dh_next")?, gates, h, da: da.g(), du: du.g(), dh: Some(dh.g()) };
    Ok(cx.gpu.gru_cell_bwd(io)?)
}

fn conv_lstm(cx: &Cx<'_>) -> R {
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
    let io = ConvLstmFwd {
        x,
        h_0,
        c_0: cx.x("c_0")?,
        wx: cx.x("Wx")?,
        wh: cx.x("Wh")?,
        b: cx.opt("b"),
        p: cx.opt("P"),
        y: y.m(),
        h_t: Some(h_t.m()),
        c_t: Some(c_t.m()),
        h: m(&h),
        c: Some(c.m()),
        gates: Some(gates.m()),
    };
    Ok(cx.gpu.conv_lstm(Precision::Ieee, io)?)
}

fn conv_lstm_backward(cx: &Cx<'_>) -> R {
    let (x, wx, wh, h) = (cx.x("X")?, cx.x("Wx")?, cx.x("Wh")?, cx.x("h")?);
    let (dt, state) = (x.dtype(), &h.shape()[1..]);
    let dx = cx.like("dX", &x)?;
    let (dh_0, dc_0) = (cx.out("dh_0", dt, state)?, cx.out("dc_0", dt, state)?);
    let (dwx, dwh) = (cx.like("dWx", &wx)?, cx.like("dWh", &wh)?);
    let db = cx.out("db", dt, &[size(&wx, 0)?])?;
    let p = cx.opt("P");
    let dp = p.as_ref().map(|p| cx.like("dP", p)).transpose()?;
    let io = ConvLstmBwd {
        dy: cx.opt("dY"),
        dh_t: cx.opt("dh_T"),
        dc_t: cx.opt("dc_T"),
        x,
        wx,
        wh,
        p,
        gates: cx.x("gates")?,
        c: cx.x("c")?,
        h,
        dx: Some(dx.g()),
        dh_0: Some(dh_0.g()),
        dc_0: Some(dc_0.g()),
        dwx: Some(dwx.g()),
        dwh: Some(dwh.g()),
        db: Some(db.g()),
        dp: dp.as_ref().map(|g| g.g()),
    };
    Ok(cx.gpu.conv_lstm_bwd(Precision::Ieee, io)?)
}

/// A sequence with weights small enough that rounding errors fade.
fn draw(s: &mut Sample, gates: usize, lstm: bool, lengths: bool, batch_first: bool) {
    let edge = s.below(8);
    let (t, b) =
        if s.small { (3, 2) } else { ([5, 1, 9, 3, 0, 6, 4, 2][edge], [3, 1, 2, 17, 2, 1, 0, 70][edge]) };
    let (i, h) = if s.small { (2, 3) } else { ([4, 1, 33, 16][s.below(4)], [6, 1, 17, 64, 5][s.below(5)]) };
    let scale = 1.0 / (h as f64).sqrt();
    let near = Range(-scale, scale);
    s.put("X", &if batch_first { [b, t, i] } else { [t, b, i] }, Any);
    s.put("h_0", &[b, h], Range(-1.0, 1.0));
    if lstm {
        s.put("c_0", &[b, h], Range(-1.0, 1.0));
    }
    s.put("W_ih", &[gates * h, i], near);
    s.put("W_hh", &[gates * h, h], near);
    if s.small || s.below(4) > 0 {
        s.put("b_ih", &[gates * h], near);
        s.put("b_hh", &[gates * h], near);
    }
    if lengths {
        let values: Vec<i64> = (0..b).map(|_| s.below(t + 2) as i64).collect();
        s.ints("lengths", DType::I32, &[b], &values);
    }
    let reverse = s.coin();
    s.arg("reverse", reverse);
}

fn draw_gru_cell(s: &mut Sample) {
    let (b, h) = (s.below(5), [1, 5, 64, 65][s.below(4)]);
    let (b, h) = if s.small { (2, 3) } else { (b, h) };
    s.put("a", &[b, 3 * h], Any);
    s.put("u", &[b, 3 * h], Any);
    s.put("h", &[b, h], Any);
}

fn draw_conv(s: &mut Sample) {
    let (t, n) = if s.small { (2, 1) } else { ([3, 1, 2, 0][s.below(4)], [1, 2, 3][s.below(3)]) };
    let (ci, hc) = if s.small { (1, 2) } else { ([1, 3, 5][s.below(3)], [1, 4, 9][s.below(3)]) };
    let (h, w) = if s.small { (2, 3) } else { ([4, 1, 9][s.below(3)], [5, 2, 17][s.below(3)]) };
    let (kh, kw) = ([1, 3, 5][s.below(3)], [1, 3][s.below(2)]);
    let state = [n, hc, h, w];
    let scale = 1.0 / ((hc.max(ci) * kh * kw) as f64).sqrt();
    s.put("X", &[t, n, ci, h, w], Any);
    s.put("h_0", &state, Range(-1.0, 1.0));
    s.put("c_0", &state, Range(-1.0, 1.0));
    s.put("Wx", &[4 * hc, ci, kh, kw], Range(-scale, scale));
    s.put("Wh", &[4 * hc, hc, kw, kh], Range(-scale, scale));
    // Required, as the gradient always has one.
    s.put("b", &[4 * hc], Range(-0.5, 0.5));
    match s.below(3) {
        0 => s.put("P", &[3, hc, h, w], Range(-0.5, 0.5)),
        1 => s.put("P", &[3, hc, 1, 1], Range(-0.5, 0.5)),
        _ => {}
    }
}

/// Forward values of a few steps; states are stored in between.
const STEPS: super::Bound = Stored(2e-5, 2e-6);
/// Gradients: sums over steps and rows of the batch, of gradients of gates that are stored in between.
const THROUGH: super::Bound = Stored(5e-5, 3e-5);

pub(super) const ROWS: &[&[Kernel]] = &[
    &[
        k(
            "lstm_forward",
            "S10.1",
            "X, h_0, c_0, W_ih, W_hh, [b_ih], [b_hh], [lengths:i32]",
            "reverse=false, batch_first=false",
            "Y, h_T, c_T, [gates], [c]",
            &["rnn"],
            |cx| forward(cx, RnnCell::Lstm),
        )
        .bound(STEPS)
        .same_dtype()
        .sample(|s| {
            let lengths = s.coin();
            draw(s, 4, true, lengths, false);
        }),
        k(
            "lstm_backward",
            "S10.2",
            "[dY], [dh_T], [dc_T], X, W_ih, W_hh, gates, c, h, [lengths:i32]",
            "reverse=false",
            "dX, dh_0, dc_0, dW_ih, dW_hh, [db_ih], [db_hh]",
            &["rnn_bwd"],
            |cx| backward(cx, RnnCell::Lstm),
        )
        .bound(THROUGH)
        .same_dtype()
        .grad_of("lstm_states"),
        k("lstm_cell_forward", "S10.3", "z, c", "-", "h_next, c_next, gates", &["lstm_cell"], lstm_cell)
            .bound(GRAD)
            .sample(|s| {
                let (b, h) = (s.below(5), [1, 5, 64, 65][s.below(4)]);
                let (b, h) = if s.small { (2, 3) } else { (b, h) };
                s.put("z", &[b, 4 * h], Any);
                s.put("c", &[b, h], Any);
            }),
        k(
            "lstm_cell_backward",
            "S10.4",
            "dh_next, dc_next, gates, c, c_next",
            "-",
            "dz, dc",
            &["lstm_cell_bwd"],
            lstm_cell_backward,
        )
        .bound(GRAD)
        .grad_of("lstm_cell_forward"),
        k(
            "lstm_gates_precompute",
            "S10.4",
            "x, h, W_ih, W_hh, [b_ih], [b_hh]",
            "-",
            "z",
            &["rnn_gates"],
            precompute,
        )
        .bound(Product)
        .sample(|s| {
            let (b, i, h) = (s.below(20), [1, 4, 33, 130][s.below(4)], [1, 3, 17, 40][s.below(4)]);
            s.put("x", &[b, i], Any);
            s.put("h", &[b, h], Any);
            s.put("W_ih", &[4 * h, i], Any);
            s.put("W_hh", &[4 * h, h], Any);
            if s.coin() {
                s.put("b_ih", &[4 * h], Any);
                s.put("b_hh", &[4 * h], Any);
            }
        }),
    ],
    &[
        k(
            "gru_forward",
            "S10.5",
            "X, h_0, W_ih, W_hh, [b_ih], [b_hh], [lengths:i32]",
            "reverse=false, batch_first=false, reset_before=false",
            "Y, h_T, [r], [z], [n], [u_n]",
            &["rnn"],
            |cx| forward(cx, gru(cx)?),
        )
        .bound(STEPS)
        .same_dtype()
        .sample(|s| draw(s, 3, false, false, false)),
        k(
            "gru_backward",
            "S10.6",
            "[dY], [dh_T], X, W_ih, W_hh, r, z, n, u_n, h",
            "reverse=false",
            "dX, dh_0, dW_ih, dW_hh, [db_ih], [db_hh]",
            &["rnn_bwd"],
            |cx| backward(cx, RnnCell::Gru),
        )
        .bound(THROUGH)
        .same_dtype()
        .grad_of("gru_states"),
        k("gru_cell_forward", "S10.7", "a, u, h", "-", "h_next, r, z, n", &["gru_cell"], gru_cell)
            .bound(GRAD)
            .sample(draw_gru_cell),
        k(
            "gru_cell_backward",
            "S10.8",
            "dh_next, r, z, n, u_n, h",
            "-",
            "da, du, dh",
            &["gru_cell_bwd"],
            gru_cell_backward,
        )
        .bound(GRAD)
        .grad_of("gru_cell_states"),
    ],
    &[
        k(
            "convlstm_forward",
            "S10.9",
            "X, h_0, c_0, Wx, Wh, [b], [P]",
            "-",
            "Y, h_T, c_T, gates, c",
            &["conv_lstm"],
            conv_lstm,
        )
        .bound(STEPS)
        .same_dtype()
        .sample(draw_conv),
        k(
            "convlstm_backward",
            "S10.10",
            "[dY], [dh_T], [dc_T], X, Wx, Wh, [P], gates, c, h",
            "-",
            "dX, dh_0, dc_0, dWx, dWh, db, [dP]",
            &["conv_lstm_bwd"],
            conv_lstm_backward,
        )
        .bound(THROUGH)
        .same_dtype()
        .grad_of("convlstm_states"),
    ],
    // The forwards with everything that their gradients read.
    &[
        k(
            "lstm_states",
            "S10.1",
            "X, h_0, c_0, W_ih, W_hh, [b_ih], [b_hh], [lengths:i32]",
            "reverse=false",
            "Y, h_T, c_T, gates, c, h",
            &["rnn"],
            |cx| forward(cx, RnnCell::Lstm),
        )
        .bound(STEPS)
        .same_dtype()
        .sample(|s| {
            let lengths = s.coin();
            draw(s, 4, true, lengths, false);
        }),
        k(
            "gru_states",
            "S10.5",
            "X, h_0, W_ih, W_hh, [b_ih], [b_hh]",
            "reverse=false",
            "Y, h_T, r, z, n, u_n, h",
            &["rnn"],
            |cx| forward(cx, RnnCell::Gru),
        )
        .bound(STEPS)
        .same_dtype()
        .sample(|s| draw(s, 3, false, false, false)),
        k(
            "gru_cell_states",
            "S10.7",
            "a, u, h",
            "-",
            "h_next, r, z, n, u_n",
            &["gru_cell", "strided_copy"],
            |cx| {
                gru_cell(cx)?;
                let (u, h) = (cx.x("u")?, size(&cx.x("h")?, 1)?);
                let last = u.map("u", |l| l.narrow(1, 2 * h, h))?;
                Ok(cx.gpu.strided_copy(last, cx.like("u_n", &cx.x("h")?)?.g())?)
            },
        )
        .bound(GRAD)
        .sample(draw_gru_cell),
        k(
            "convlstm_states",
            "S10.9",
            "X, h_0, c_0, Wx, Wh, [b], [P]",
            "-",
            "Y, h_T, c_T, gates, c, h",
            &["conv_lstm"],
            conv_lstm,
        )
        .bound(STEPS)
        .same_dtype()
        .sample(draw_conv),
    ],
    // Every cell with every way to run it.
    &[
        k(
            "rnn_sequence",
            "S10.5",
            "X, [h_0], [c_0], W_ih, W_hh, [b_ih], [b_hh], [lengths:i32]",
            "cell, reverse=false, batch_first=false",
            "Y, h_T, [c_T], h, [gates], [c], [r], [z], [n], [u_n]",
            &["rnn"],
            |cx| forward(cx, named(cx)?),
        )
        .bound(STEPS)
        .same_dtype()
        .sample(|s| {
            let cells = [("gru_reset_before", 3), ("tanh", 1), ("relu", 1), ("gru", 3), ("lstm", 4)];
            let (cell, gates) = cells[s.below(5)];
            let (lengths, batch_first) = (s.coin(), s.coin());
            draw(s, gates, cell == "lstm", lengths, batch_first);
            s.arg("cell", cell);
            s.arg("batch_first", batch_first);
        }),
        k(
            "rnn_sequence_backward",
            "S10.6",
            "[dY], [dh_T], [dc_T], X, W_ih, W_hh, h, [gates], [c], [r], [z], [n], [u_n], [lengths:i32]",
            "cell, reverse=false, batch_first=false",
            "dX, dh_0, [dc_0], dW_ih, dW_hh, [db_ih], [db_hh]",
            &["rnn_bwd"],
            |cx| backward(cx, named(cx)?),
        )
        .bound(THROUGH)
        .same_dtype()
        .grad_of("rnn_sequence"),
    ],
];
