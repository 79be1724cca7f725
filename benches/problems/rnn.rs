//! Recurrent networks.

use trefoil::ops::gemm::Precision;
use trefoil::ops::rnn::{
    ConvLstmBwd, ConvLstmFwd, GruCellBwd, GruCellFwd, GruGates, LstmCellBwd, LstmCellFwd, Recurrence, RnnBwd,
    RnnCell, RnnFwd, RnnGrads, RnnWeights,
};
use trefoil::{Buffer, DType, IGpuBackend, Result};

use crate::case::{Case, CaseError, Operation, both};
use crate::{Context, F32, F32_BF16, Prepared, Problem, bytes, flops, prepared, problem};

/// Steps, batch and width.
fn sizes(cx: &Context<'_>) -> [usize; 3] {
    // More than 32 rows of a batch are a way of their own to run a step.
    [cx.pick(3, 16, 128), cx.pick(2, 40, 64), cx.pick(8, 64, 512)]
}

/// A layer over a whole sequence, from states of zero, as training runs it: steps, batch, inputs and width.
#[derive(Clone, Copy)]
struct Layer {
    cell: RnnCell,
    size: [usize; 4],
    precision: Precision,
}

impl Layer {
    fn of_table(cx: &Context<'_>, cell: RnnCell) -> Self {
        let [t, b, h] = sizes(cx);
        Layer { cell, size: [t, b, h, h], precision: Precision::Ieee }
    }

    fn of_case(c: &Case, cell: RnnCell) -> Result<Self, CaseError> {
        Ok(Layer { cell, size: c.sizes(["t", "b", "in", "hidden"])?, precision: c.precision() })
    }

    fn plan(&self) -> Recurrence {
        Recurrence::new().precision(self.precision)
    }

    /// Elements of the weights.
    fn weights(&self) -> usize {
        let [_, _, i, h] = self.size;
        self.cell.gates() * h * (i + h)
    }

    /// Operations of the forward; the backward has twice as many.
    fn flops(&self) -> usize {
        let [t, b, ..] = self.size;
        2 * t * b * self.weights()
    }
}

/// What both directions read: input, weights, biases; and what the forward saves for the backward.
struct Sequence {
    layer: Layer,
    x: Buffer,
    w: [Buffer; 2],
    bias: [Buffer; 2],
    y: Buffer,
    h: Buffer,
    /// Cells and gates of an LSTM.
    c: Buffer,
    lstm: Buffer,
    gru: [Buffer; 4],
    last: [Buffer; 2],
}

impl Sequence {
    fn new(cx: &Context<'_>, dt: DType, layer: Layer) -> Result<Self> {
        let ([t, b, i, h], k) = (layer.size, layer.cell.gates());
        let (lstm, gru) = (layer.cell == RnnCell::Lstm, layer.cell.is_gru());
        let weight = |n| cx.normal_std(dt, n, (h as f64).powf(-0.5));
        let gate = || cx.empty(dt, if gru { t * b * h } else { 0 });
        Ok(Sequence {
            layer,
            x: cx.normal(dt, t * b * i)?,
            w: [weight(k * h * i)?, weight(k * h * h)?],
            bias: [weight(k * h)?, weight(k * h)?],
            y: cx.empty(dt, t * b * h)?,
            h: cx.empty(dt, (t + 1) * b * h)?,
            c: cx.empty(dt, if lstm { (t + 1) * b * h } else { 0 })?,
            lstm: cx.empty(dt, if lstm { t * b * 4 * h } else { 0 })?,
            gru: [gate()?, gate()?, gate()?, gate()?],
            last: [cx.empty(dt, b * h)?, cx.empty(dt, b * h)?],
        })
    }

    fn weights(&self) -> Result<RnnWeights<'_>> {
        let ([_, _, i, h], k) = (self.layer.size, self.layer.cell.gates());
        Ok(RnnWeights::new(self.w[0].shaped(&[k * h, i])?, self.w[1].shaped(&[k * h, h])?))
    }

    fn forward(&self, gpu: &dyn IGpuBackend) -> Result<()> {
        let (Layer { cell, size: [t, b, i, h], .. }, [bx, bh]) = (self.layer, &self.bias);
        let weights = self.weights()?.biases(bx.view(), bh.view());
        let y = self.y.alias_mut().reshape(&[t, b, h])?;
        let mut io = RnnFwd::new(self.x.shaped(&[t, b, i])?, weights, y);
        io.h = Some(self.h.alias_mut().reshape(&[t + 1, b, h])?);
        io.h_t = Some(self.last[0].alias_mut().reshape(&[b, h])?);
        if cell == RnnCell::Lstm {
            io.c = Some(self.c.alias_mut().reshape(&[t + 1, b, h])?);
            io.gates = Some(self.lstm.alias_mut().reshape(&[t, b, 4 * h])?);
            io.c_t = Some(self.last[1].alias_mut().reshape(&[b, h])?);
        } else if cell.is_gru() {
            let gate = |k: usize| self.gru[k].alias_mut().reshape(&[t, b, h]).map(Some);
            io.gru = GruGates::new(gate(0)?, gate(1)?, gate(2)?, gate(3)?);
        }
        gpu.rnn(cell, &self.layer.plan(), io)
    }

    /// The operands of the backward, without gradients.
    fn saved<'a>(&'a self, dy: &'a Buffer) -> Result<RnnBwd<'a>> {
        let Layer { cell, size: [t, b, i, h], .. } = self.layer;
        let lstm = cell == RnnCell::Lstm;
        let gate = |k: usize| self.gru[k].shaped(&[t, b, h]);
        let gru = match cell.is_gru() {
            true => Some(GruGates::new(gate(0)?, gate(1)?, gate(2)?, gate(3)?)),
            false => None,
        };
        Ok(RnnBwd::new(self.x.shaped(&[t, b, i])?, self.weights()?, self.h.shaped(&[t + 1, b, h])?)
            .dy(dy.shaped(&[t, b, h])?)
            .c(if lstm { Some(self.c.shaped(&[t + 1, b, h])?) } else { None })
            .gates(if lstm { Some(self.lstm.shaped(&[t, b, 4 * h])?) } else { None })
            .gru(gru))
    }
}

fn forward(cx: &Context<'_>, dt: DType, layer: Layer) -> Result<Prepared> {
    let [t, b, i, h] = layer.size;
    let moved = (t * b * (i + 7 * h) + layer.weights()) * dt.size();
    let s = Sequence::new(cx, dt, layer)?;
    prepared(moved, layer.flops(), move |g, _| s.forward(g))
}

/// All gradients of [`forward`].
fn backward(cx: &Context<'_>, dt: DType, layer: Layer) -> Result<Prepared> {
    let (Layer { cell, size: [t, b, i, h], .. }, k) = (layer, layer.cell.gates());
    let moved = (t * b * (2 * i + 7 * h) + 2 * layer.weights()) * dt.size();
    let s = Sequence::new(cx, dt, layer)?;
    s.forward(cx.gpu)?;
    let (dy, mut dx) = (cx.normal(dt, t * b * h)?, cx.empty(dt, t * b * i)?);
    let (mut dwx, mut dwh) = (cx.empty(dt, k * h * i)?, cx.empty(dt, k * h * h)?);
    let (mut dbx, mut dbh) = (cx.empty(dt, k * h)?, cx.empty(dt, k * h)?);
    prepared(moved, 2 * layer.flops(), move |g, _| {
        let mut io = s.saved(&dy)?;
        io.grads = RnnGrads::default()
            .dx(dx.shaped_mut(&[t, b, i])?)
            .dw_ih(dwx.shaped_mut(&[k * h, i])?)
            .dw_hh(dwh.shaped_mut(&[k * h, h])?)
            .db_ih(dbx.view_mut())
            .db_hh(dbh.view_mut());
        g.rnn_bwd(cell, &layer.plan(), io)
    })
}

/// Sizes of a convolutional LSTM: steps, images, channels and side.
fn images(cx: &Context<'_>) -> [usize; 4] {
    [cx.pick(2, 4, 16), cx.pick(1, 2, 16), cx.pick(2, 8, 64), cx.pick(5, 16, 64)]
}

/// A cell of the table in one direction.
macro_rules! layer {
    ($direction:ident, $cell:ident) => {
        |cx, dt| $direction(cx, dt, Layer::of_table(cx, RnnCell::$cell))
    };
}

pub(super) const PROBLEMS: &[Problem] = &[
    problem("rnn", "lstm", F32_BF16, layer!(forward, Lstm)),
    problem("rnn", "gru", F32, layer!(forward, Gru)),
    problem("rnn", "gru_reset_before", F32, layer!(forward, GruResetBefore)),
    problem("rnn", "tanh", F32, layer!(forward, Tanh)),
    problem("rnn_bwd", "lstm", F32_BF16, layer!(backward, Lstm)),
    problem("rnn_bwd", "gru", F32, layer!(backward, Gru)),
    problem("rnn_bwd", "gru_reset_before", F32, layer!(backward, GruResetBefore)),
    problem("rnn_bwd", "tanh", F32, layer!(backward, Tanh)),
    problem("rnn_gates", "lstm", F32, |cx, dt| {
        let [_, n, h] = sizes(cx);
        let (x, s) = (cx.normal(dt, n * h)?, cx.normal(dt, n * h)?);
        let (u, v, mut z) = (cx.normal(dt, 4 * h * h)?, cx.normal(dt, 4 * h * h)?, cx.empty(dt, 4 * n * h)?);
        flops(16 * n * h * h, move |g| {
            let w = RnnWeights::new(u.shaped(&[4 * h, h])?, v.shaped(&[4 * h, h])?);
            let (x, s) = (x.shaped(&[n, h])?, s.shaped(&[n, h])?);
            g.rnn_gates(Precision::Ieee, x, s, w, z.shaped_mut(&[n, 4 * h])?)
        })
    }),
    problem("lstm_cell", "rows", F32, |cx, dt| {
        let [r, c] = cx.rows();
        let (z, s) = (cx.normal(dt, 4 * r * c)?, cx.normal(dt, r * c)?);
        let (mut h, mut n, mut k) = (cx.empty(dt, r * c)?, cx.empty(dt, r * c)?, cx.empty(dt, 4 * r * c)?);
        bytes(11 * r * c * dt.size(), move |g| {
            g.lstm_cell(
                LstmCellFwd::new(
                    z.shaped(&[r, 4 * c])?,
                    s.shaped(&[r, c])?,
                    h.shaped_mut(&[r, c])?,
                    n.shaped_mut(&[r, c])?,
                )
                .gates(k.shaped_mut(&[r, 4 * c])?),
            )
        })
    }),
    problem("lstm_cell_bwd", "rows", F32, |cx, dt| {
        let [r, c] = cx.rows();
        let (k, s, d) = (cx.normal(dt, 4 * r * c)?, cx.normal(dt, r * c)?, cx.normal(dt, r * c)?);
        let (mut dz, mut dc) = (cx.empty(dt, 4 * r * c)?, cx.empty(dt, r * c)?);
        bytes(12 * r * c * dt.size(), move |g| {
            g.lstm_cell_bwd(
                LstmCellBwd::new(
                    k.shaped(&[r, 4 * c])?,
                    s.shaped(&[r, c])?,
                    s.shaped(&[r, c])?,
                    dz.shaped_mut(&[r, 4 * c])?.into(),
                )
                .dh_next(d.shaped(&[r, c])?)
                .dc(dc.shaped_mut(&[r, c])?),
            )
        })
    }),
    problem("gru_cell", "rows", F32, |cx, dt| {
        let [r, c] = cx.rows();
        let (a, u, s) = (cx.normal(dt, 3 * r * c)?, cx.normal(dt, 3 * r * c)?, cx.normal(dt, r * c)?);
        let mut y = cx.empty(dt, r * c)?;
        bytes(8 * r * c * dt.size(), move |g| {
            g.gru_cell(GruCellFwd::new(
                a.shaped(&[r, 3 * c])?,
                u.shaped(&[r, 3 * c])?,
                s.shaped(&[r, c])?,
                y.shaped_mut(&[r, c])?,
            ))
        })
    }),
    problem("gru_cell_bwd", "rows", F32, |cx, dt| {
        let [r, c] = cx.rows();
        let (s, d) = (cx.normal(dt, r * c)?, cx.normal(dt, r * c)?);
        let (mut da, mut du) = (cx.empty(dt, 3 * r * c)?, cx.empty(dt, 3 * r * c)?);
        bytes(12 * r * c * dt.size(), move |g| {
            let v = s.shaped(&[r, c])?;
            g.gru_cell_bwd(GruCellBwd::new(
                d.shaped(&[r, c])?,
                GruGates::new(v, v, v, v),
                v,
                da.shaped_mut(&[r, 3 * c])?.into(),
                du.shaped_mut(&[r, 3 * c])?.into(),
            ))
        })
    }),
    problem("conv_lstm", "k3", F32, |cx, dt| {
        let [t, n, c, s] = images(cx);
        let state = n * c * s * s;
        let (x, h) = (cx.normal(dt, t * state)?, cx.normal(dt, state)?);
        let (wx, wh, mut y) =
            (cx.normal(dt, 36 * c * c)?, cx.normal(dt, 36 * c * c)?, cx.empty(dt, t * state)?);
        flops(2 * 2 * 36 * c * t * state, move |g| {
            let (image, w) = ([n, c, s, s], [4 * c, c, 3, 3]);
            g.conv_lstm(
                Precision::Ieee,
                ConvLstmFwd::new(
                    x.shaped(&[t, n, c, s, s])?,
                    h.shaped(&image)?,
                    h.shaped(&image)?,
                    wx.shaped(&w)?,
                    wh.shaped(&w)?,
                    y.shaped_mut(&[t, n, c, s, s])?,
                ),
            )
        })
    }),
    problem("conv_lstm_bwd", "k3", F32, |cx, dt| {
        let [t, n, c, s] = images(cx);
        let state = n * c * s * s;
        let (x, states) = (cx.normal(dt, t * state)?, cx.normal(dt, (t + 1) * state)?);
        let (gates, p) = (cx.positive(dt, 4 * t * state)?, cx.normal(dt, 3 * c * s * s)?);
        let (wx, wh) = (cx.normal(dt, 36 * c * c)?, cx.normal(dt, 36 * c * c)?);
        let (mut dx, mut dp) = (cx.empty(dt, t * state)?, cx.empty(dt, 3 * c * s * s)?);
        let (mut dwx, mut dwh) = (cx.empty(dt, 36 * c * c)?, cx.empty(dt, 36 * c * c)?);
        flops(2 * 4 * 36 * c * t * state, move |g| {
            let (w, all) = ([4 * c, c, 3, 3], [t + 1, n, c, s, s]);
            g.conv_lstm_bwd(
                Precision::Ieee,
                ConvLstmBwd::new(
                    x.shaped(&[t, n, c, s, s])?,
                    wx.shaped(&w)?,
                    wh.shaped(&w)?,
                    gates.shaped(&[t, n, 4 * c, s, s])?,
                    states.shaped(&all)?,
                    states.shaped(&all)?,
                )
                .dy(x.shaped(&[t, n, c, s, s])?)
                .p(p.shaped(&[3, c, s, s])?)
                .dx(dx.shaped_mut(&[t, n, c, s, s])?)
                .dwx(dwx.shaped_mut(&w)?)
                .dwh(dwh.shaped_mut(&w)?)
                .dp(dp.shaped_mut(&[3, c, s, s])?),
            )
        })
    }),
];

pub(super) const OPERATIONS: &[Operation] = &[
    both(
        "lstm",
        |cx, c| Ok(forward(cx, c.dtype()?, Layer::of_case(c, RnnCell::Lstm)?)?),
        |cx, c| Ok(backward(cx, c.dtype()?, Layer::of_case(c, RnnCell::Lstm)?)?),
    ),
    both(
        "gru",
        |cx, c| Ok(forward(cx, c.dtype()?, Layer::of_case(c, RnnCell::Gru)?)?),
        |cx, c| Ok(backward(cx, c.dtype()?, Layer::of_case(c, RnnCell::Gru)?)?),
    ),
];
