//! Recurrent networks: two steps, a batch of 3, an input width of 4 and a hidden width of 2.

use super::*;
use trefoil::ops::gemm::Precision;
use trefoil::ops::rnn::{
    ConvLstmBwd, ConvLstmFwd, GruCellBwd, GruCellFwd, GruGates, LstmCellBwd, LstmCellFwd, Recurrence, RnnBwd,
    RnnCell, RnnFwd, RnnGrads, RnnWeights,
};

const T: usize = 2;
const B: usize = 3;
const I: usize = 4;
const H: usize = 2;

/// Operands of an LSTM that fit; other cells use parts of them.
struct Set {
    x: Buffer,
    y: Buffer,
    state: [Buffer; 2],
    last: [Buffer; 2],
    all: [Buffer; 2],
    gates: Buffer,
    w_ih: Buffer,
    w_hh: Buffer,
    bias: Buffer,
    grads: [Buffer; 4],
}

impl Set {
    fn new(t: &Bed<'_>) -> Self {
        let two = |n| [t.f32(n), t.f32(n)];
        Set {
            x: t.f32(T * B * I),
            y: t.f32(T * B * H),
            state: two(B * H),
            last: two(B * H),
            all: two((T + 1) * B * H),
            gates: t.f32(T * B * 4 * H),
            w_ih: t.f32(4 * H * I),
            w_hh: t.f32(4 * H * H),
            bias: t.f32(4 * H),
            grads: [t.f32(T * B * I), t.f32(4 * H * I), t.f32(4 * H * H), t.f32(4 * H)],
        }
    }

    /// Weights of `k` gates.
    fn weights(&self, k: usize) -> Result<RnnWeights<'_>> {
        let w_ih = self.w_ih.view().range(0, k * H * I)?.reshape(&[k * H, I])?;
        let w_hh = self.w_hh.view().range(0, k * H * H)?.reshape(&[k * H, H])?;
        let b = self.bias.view().range(0, k * H)?;
        Ok(RnnWeights::new(w_ih, w_hh).biases(b, b))
    }

    fn fwd(&self, k: usize) -> Result<RnnFwd<'_>> {
        let mut io = RnnFwd::new(sh(&self.x, &[T, B, I]), self.weights(k)?, out(&self.y, &[T, B, H]));
        io.h_0 = Some(sh(&self.state[0], &[B, H]));
        io.h_t = Some(out(&self.last[0], &[B, H]));
        if k == 4 {
            io.c_0 = Some(sh(&self.state[1], &[B, H]));
            io.c_t = Some(out(&self.last[1], &[B, H]));
            io.c = Some(out(&self.all[1], &[T + 1, B, H]));
            io.gates = Some(out(&self.gates, &[T, B, 4 * H]));
        }
        io.h = Some(out(&self.all[0], &[T + 1, B, H]));
        Ok(io)
    }

    fn outs(&self) -> Vec<&Buffer> {
        vec![&self.y, &self.last[0], &self.last[1], &self.all[0], &self.all[1], &self.gates]
    }

    fn bwd(&self) -> Result<RnnBwd<'_>> {
        let [dx, dw_ih, dw_hh, db] = &self.grads;
        Ok(RnnBwd::new(sh(&self.x, &[T, B, I]), self.weights(4)?, sh(&self.all[0], &[T + 1, B, H]))
            .dy(sh(&self.y, &[T, B, H]))
            .dh_t(sh(&self.state[0], &[B, H]))
            .dc_t(sh(&self.state[1], &[B, H]))
            .c(sh(&self.all[1], &[T + 1, B, H]))
            .gates(sh(&self.gates, &[T, B, 4 * H]))
            .grads(
                RnnGrads::new()
                    .dx(out(dx, &[T, B, I]))
                    .dh_0(out(&self.last[0], &[B, H]))
                    .dc_0(out(&self.last[1], &[B, H]))
                    .dw_ih(out(dw_ih, &[4 * H, I]))
                    .dw_hh(out(dw_hh, &[4 * H, H]))
                    .db_ih(out(db, &[4 * H])),
            ))
    }

    fn grads(&self) -> Vec<&Buffer> {
        self.grads.iter().chain(&self.last).collect()
    }
}

pub(super) fn rnn(t: &mut Bed<'_>) {
    sequences(t);
    cells(t);
    conv(t);
}

fn sequences(t: &mut Bed<'_>) {
    let s = Set::new(t);
    let p = Recurrence::new();
    type Change = fn(&mut RnnFwd<'_>);
    let wrong: [(&str, Change); 12] = [
        ("x of rank 2", |io| io.x = io.x.reshape(&[T * B, I]).expect("contiguous")),
        ("x of another width", |io| io.x = io.x.reshape(&[T, B * 2, I / 2]).expect("contiguous")),
        ("x of other axes", |io| io.x = io.x.reshape(&[B, T, I]).expect("contiguous")),
        ("a first state of another shape", |io| {
            io.h_0 = io.h_0.map(|v| v.reshape(&[H, B]).expect("contiguous"));
        }),
        ("recurrent weights of three gates", |io| {
            io.weights.w_hh =
                io.weights.w_hh.range(0, 3 * H * H).and_then(|v| v.reshape(&[3 * H, H])).expect("a part");
        }),
        ("recurrent weights of rank 1", |io| {
            io.weights.w_hh = io.weights.w_hh.reshape(&[4 * H * H]).expect("contiguous");
        }),
        ("input weights transposed", |io| {
            io.weights.w_ih = io.weights.w_ih.reshape(&[I, 4 * H]).expect("contiguous");
        }),
        ("a bias that is too short", |io| {
            io.weights.b_hh = io.weights.b_hh.map(|b| b.range(0, 4 * H - 1).expect("a part"));
        }),
        ("lengths as floats", |io| io.lengths = Some(io.weights.w_ih.range(0, B).expect("a part"))),
        ("states without the first one", |io| {
            io.h =
                io.h.take()
                    .map(|v| v.range(0, T * B * H).and_then(|v| v.reshape(&[T, B, H])).expect("a part"));
        }),
        ("gates of another shape", |io| {
            io.gates = io.gates.take().map(|v| v.reshape(&[T, 4, B, H]).expect("contiguous"));
        }),
        ("strided x", |io| {
            let l = Layout::strided(&[T, B, I / 2], &[B * I, I, 2], 0).expect("rank 3");
            io.x = io.x.with_layout(l).expect("a part");
        }),
    ];
    for (what, change) in wrong {
        t.refuse(what, &s.outs(), |g| {
            let mut io = s.fwd(4)?;
            change(&mut io);
            g.rnn(RnnCell::Lstm, &p, io)
        });
    }
    t.refuse("an LSTM's operands for a GRU", &s.outs(), |g| {
        let mut io = s.fwd(3)?;
        io.gates = Some(out(&s.gates, &[T, B, 4 * H]));
        g.rnn(RnnCell::Gru, &p, io)
    });
    t.refuse("a cell state for a plain cell", &s.outs(), |g| {
        let mut io = s.fwd(1)?;
        io.c_0 = Some(sh(&s.state[1], &[B, H]));
        g.rnn(RnnCell::Tanh, &p, io)
    });
    t.refuse("a GRU's saved gates for an LSTM", &s.outs(), |g| {
        let mut io = s.fwd(4)?;
        io.c = None;
        io.gru.r = Some(s.all[1].alias_mut().range(0, T * B * H)?.reshape(&[T, B, H])?);
        g.rnn(RnnCell::Lstm, &p, io)
    });
    t.refuse("time first with batch_first", &s.outs(), |g| {
        g.rnn(RnnCell::Lstm, &p.batch_first(true), s.fwd(4)?)
    });
    t.refuse("saved states over the output", &s.outs(), |g| {
        let mut io = s.fwd(4)?;
        io.y = s.all[0].alias_mut().range(0, T * B * H)?.reshape(&[T, B, H])?;
        g.rnn(RnnCell::Lstm, &p, io)
    });
    let h = t.buf(DType::F16, T * B * H);
    t.refuse("an output of another dtype", &[&h], |g| {
        let mut io = s.fwd(4)?;
        io.y = out(&h, &[T, B, H]);
        g.rnn(RnnCell::Lstm, &p, io)
    });
    t.accept("the operands that were changed above", |g| g.rnn(RnnCell::Lstm, &p, s.fwd(4)?));

    let s = Set::new(t);
    type ChangeBack = fn(&mut RnnBwd<'_>);
    let wrong: [(&str, ChangeBack); 7] = [
        ("a gradient without saved gates", |io| io.gates = None),
        ("a gradient without cell states", |io| io.c = None),
        ("a gradient with T states", |io| {
            io.h = io.h.range(0, T * B * H).and_then(|v| v.reshape(&[T, B, H])).expect("a part");
        }),
        ("an upstream gradient of another shape", |io| {
            io.dy = io.dy.map(|v| v.reshape(&[T, H, B]).expect("contiguous"));
        }),
        ("a weight gradient of another shape", |io| {
            let g = io.grads.dw_ih.take().expect("it was set");
            io.grads.dw_ih = Some(g.out.reshape(&[I, 4 * H]).expect("contiguous").into());
        }),
        ("a GRU's gates for an LSTM", |io| {
            let v = io.h.range(0, T * B * H).and_then(|v| v.reshape(&[T, B, H])).expect("a part");
            io.gru = Some(GruGates::new(v, v, v, v));
        }),
        ("lengths of another size", |io| io.lengths = Some(io.x.range(0, 2).expect("a part"))),
    ];
    for (what, change) in wrong {
        t.refuse(what, &s.grads(), |g| {
            let mut io = s.bwd()?;
            change(&mut io);
            g.rnn_bwd(RnnCell::Lstm, &p, io)
        });
    }
    t.refuse("a GRU's gradient without its gates", &s.grads(), |g| {
        let mut io = s.bwd()?;
        (io.weights, io.gates, io.c, io.dc_t, io.grads) =
            (s.weights(3)?, None, None, None, RnnGrads::default());
        g.rnn_bwd(RnnCell::Gru, &p, io)
    });
    t.refuse("a gradient over the saved states", &s.grads(), |g| {
        let mut io = s.bwd()?;
        io.grads.dh_0 = Some(s.all[0].alias_mut().range(0, B * H)?.reshape(&[B, H])?.into());
        g.rnn_bwd(RnnCell::Lstm, &p, io)
    });
    t.refuse("one buffer for two gradients", &s.grads(), |g| {
        let mut io = s.bwd()?;
        io.grads.db_hh = Some(out(&s.grads[3], &[4 * H]).into());
        g.rnn_bwd(RnnCell::Lstm, &p, io)
    });
    t.accept("the gradient that was changed above", |g| g.rnn_bwd(RnnCell::Lstm, &p, s.bwd()?));
}

fn cells(t: &mut Bed<'_>) {
    let (z, c, h, d, gates) = (t.f32(24), t.f32(6), t.f32(6), t.f32(6), t.f32(24));
    let wide = t.f32(24);
    t.refuse("a cell whose gates do not fit", &[&h, &d, &gates], |g| {
        let (z, c) = (sh(&z, &[2, 12]), sh(&c, &[3, 2]));
        g.lstm_cell(LstmCellFwd::new(z, c, out(&h, &[3, 2]), out(&d, &[3, 2])))
    });
    t.refuse("a cell over its own state", &[&h, &c], |g| {
        let (z, v) = (sh(&z, &[3, 8]), sh(&c, &[3, 2]));
        g.lstm_cell(LstmCellFwd::new(z, v, out(&h, &[3, 2]), out(&c, &[3, 2])))
    });
    t.refuse("a cell's gradient of another shape", &[&wide, &d], |g| {
        let s = [3, 2];
        g.lstm_cell_bwd(
            LstmCellBwd::new(sh(&gates, &[3, 8]), sh(&c, &s), sh(&c, &s), out(&wide, &[8, 3]).into())
                .dh_next(sh(&h, &s))
                .dc(out(&d, &s)),
        )
    });
    let (a, u) = (t.f32(18), t.f32(18));
    t.refuse("a GRU's gates of two shapes", &[&h], |g| {
        let (a, u, state) = (sh(&a, &[3, 6]), sh(&u, &[6, 3]), sh(&c, &[3, 2]));
        g.gru_cell(GruCellFwd::new(a, u, state, out(&h, &[3, 2])))
    });
    let (da, du) = (t.f32(18), t.f32(18));
    let gru = |u_n| GruGates::new(sh(&c, &[3, 2]), sh(&c, &[3, 2]), sh(&c, &[3, 2]), u_n);
    let back = |gates, da, du| GruCellBwd::new(sh(&h, &[3, 2]), gates, sh(&c, &[3, 2]), da, du);
    t.refuse("a GRU's gradients in one buffer", &[&da], |g| {
        let one = || out(&da, &[3, 6]).into();
        g.gru_cell_bwd(back(gru(sh(&c, &[3, 2])), one(), one()))
    });
    t.refuse("a GRU's gradient with columns apart", &[&da, &du], |g| {
        let l = Layout::strided(&[3, 2], &[6, 2], 0).expect("rank 2");
        let outs = (out(&da, &[3, 6]).into(), out(&du, &[3, 6]).into());
        g.gru_cell_bwd(back(gru(u.view().with_layout(l)?), outs.0, outs.1))
    });
    t.accept("a GRU's gradient with rows apart", |g| {
        let l = Layout::strided(&[3, 2], &[6, 1], 4).expect("rank 2");
        let outs = (out(&da, &[3, 6]).into(), out(&du, &[3, 6]).into());
        g.gru_cell_bwd(back(gru(u.view().with_layout(l)?), outs.0, outs.1))
    });
    let (x, w) = (t.f32(8), t.f32(32));
    t.refuse("gates of inputs that do not fit", &[&wide], |g| {
        let w = RnnWeights::new(sh(&w, &[8, 4]), sh(&gates, &[8, 3]));
        g.rnn_gates(Precision::Ieee, sh(&x, &[2, 4]), sh(&c, &[3, 2]), w, out(&wide, &[3, 8]))
    });
}

fn conv(t: &mut Bed<'_>) {
    let (x, y, state, wx, wh, p) = (t.f32(9), t.f32(9), t.f32(9), t.f32(36), t.f32(36), t.f32(27));
    let image = [1, 1, 3, 3];
    let fwd = |wx, wh, p| {
        ConvLstmFwd::new(
            sh(&x, &[1, 1, 1, 3, 3]),
            sh(&state, &image),
            sh(&state, &image),
            wx,
            wh,
            out(&y, &[1, 1, 1, 3, 3]),
        )
        .p(p)
    };
    let even = t.f32(16);
    let (fit, part) = ([4, 1, 3, 3], [4, 1, 2, 2]);
    t.refuse("an even kernel", &[&y], |g| {
        g.conv_lstm(Precision::Ieee, fwd(sh(&even, &part), sh(&wh, &fit), None))
    });
    t.refuse("an even recurrent kernel", &[&y], |g| {
        g.conv_lstm(Precision::Ieee, fwd(sh(&wx, &fit), sh(&even, &part), None))
    });
    t.refuse("recurrent weights of other channels", &[&y], |g| {
        g.conv_lstm(Precision::Ieee, fwd(sh(&wx, &fit), sh(&wh, &[4, 9, 1, 1]), None))
    });
    t.refuse("peepholes of another shape", &[&y], |g| {
        g.conv_lstm(Precision::Ieee, fwd(sh(&wx, &fit), sh(&wh, &fit), Some(sh(&p, &[3, 1, 9, 1]))))
    });
    t.accept("peepholes of every pixel", |g| {
        g.conv_lstm(Precision::Ieee, fwd(sh(&wx, &fit), sh(&wh, &fit), Some(sh(&p, &[3, 1, 3, 3]))))
    });
    let (gates, all, dp) = (t.f32(36), t.f32(18), t.f32(27));
    t.refuse("a gradient of peepholes that are not there", &[&dp], |g| {
        let states = sh(&all, &[2, 1, 1, 3, 3]);
        g.conv_lstm_bwd(
            Precision::Ieee,
            ConvLstmBwd::new(
                sh(&x, &[1, 1, 1, 3, 3]),
                sh(&wx, &fit),
                sh(&wh, &fit),
                sh(&gates, &[1, 1, 4, 3, 3]),
                states,
                states,
            )
            .dp(out(&dp, &[3, 1, 3, 3])),
        )
    });
}
