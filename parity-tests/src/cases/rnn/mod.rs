//! Recurrent networks.

mod calls;
mod sample;

use trefoil::ops::rnn::RnnCell;

use super::Bound::{Derived, Product, Stored};
use super::{Kernel, k};
use crate::sampler::Dom::Any;

use calls::*;
use sample::*;

/// Forward values of a few steps; states are stored in between.
const STEPS: super::Bound = Stored;
/// Gradients: sums over steps and rows of the batch, of gradients of gates that are stored in between.
const THROUGH: super::Bound = Stored;

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
        .grad_of("lstm_states"),
        k("lstm_cell_forward", "S10.3", "z, c", "-", "h_next, c_next, gates", &["lstm_cell"], lstm_cell)
            .bound(Derived)
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
        .bound(Derived)
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
        .grad_of("gru_states"),
        k("gru_cell_forward", "S10.7", "a, u, h", "-", "h_next, r, z, n", &["gru_cell"], gru_cell)
            .bound(Derived)
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
        .bound(Derived)
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
        .bound(Derived)
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
        .grad_of("rnn_sequence"),
    ],
];
