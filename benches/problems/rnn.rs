//! Recurrent networks.

use trefoil::Buffer;
use trefoil::ops::*;

use super::*;

/// Steps, batch and width.
fn sizes(b: &Bed<'_>) -> [usize; 3] {
    [b.pick(3, 16, 128), b.pick(2, 8, 64), b.pick(8, 64, 512)]
}

/// What the gradients of a sequence read.
struct Sequence {
    sizes: [usize; 3],
    x: Buffer,
    w: [Buffer; 2],
    y: Buffer,
    h: Buffer,
    c: Buffer,
    gates: Vec<Buffer>,
}

impl Sequence {
    fn new(b: &Bed<'_>, dt: DType, cell: RnnCell) -> Result<Self> {
        let sizes @ [t, n, h] = sizes(b);
        let k = cell.gates();
        let weights = || -> Result<Buffer> {
            let mut w = b.normal(dt, k * h * h)?;
            b.gpu.random(
                Distribution::Normal { mean: 0.0, std: (h as f64).powf(-0.5) },
                Rng::new(5),
                w.view_mut(),
            )?;
            Ok(w)
        };
        let saved = if cell == RnnCell::Lstm { 1 } else { 4 };
        Ok(Sequence {
            sizes,
            x: b.normal(dt, t * n * h)?,
            w: [weights()?, weights()?],
            y: b.normal(dt, t * n * h)?,
            h: b.empty(dt, (t + 1) * n * h)?,
            c: b.empty(dt, (t + 1) * n * h)?,
            gates: (0..saved).map(|_| b.empty(dt, t * n * h * 4 / saved)).collect::<Result<_>>()?,
        })
    }

    fn flops(&self, cell: RnnCell, products: usize) -> usize {
        let [t, n, h] = self.sizes;
        2 * products * t * n * cell.gates() * h * h
    }

    fn weights(&self, cell: RnnCell) -> Result<RnnWeights<'_>> {
        let shape = [cell.gates() * self.sizes[2], self.sizes[2]];
        Ok(RnnWeights::new(self.w[0].shaped(&shape)?, self.w[1].shaped(&shape)?))
    }

    fn forward(&self, g: &dyn IGpuBackend, cell: RnnCell) -> Result<()> {
        let [t, n, h] = self.sizes;
        let y = self.y.alias_mut().reshape(&[t, n, h])?;
        let mut io = RnnFwd::new(self.x.shaped(&[t, n, h])?, self.weights(cell)?, y);
        io.h = Some(self.h.alias_mut().reshape(&[t + 1, n, h])?);
        match cell {
            RnnCell::Lstm => {
                io.c = Some(self.c.alias_mut().reshape(&[t + 1, n, h])?);
                io.gates = Some(self.gates[0].alias_mut().reshape(&[t, n, 4 * h])?);
            }
            _ if cell.is_gru() => {
                let each = |k: usize| self.gates[k].alias_mut().reshape(&[t, n, h]).map(Some);
                io.gru = GruGates { r: each(0)?, z: each(1)?, n: each(2)?, u: each(3)? };
            }
            _ => {}
        }
        g.rnn(cell, &Recurrence::new(), io)
    }
}

fn forward(b: &Bed<'_>, dt: DType, cell: RnnCell) -> Result<Problem> {
    let s = Sequence::new(b, dt, cell)?;
    flops(s.flops(cell, 2), move |g| s.forward(g, cell))
}

fn backward(b: &Bed<'_>, dt: DType, cell: RnnCell) -> Result<Problem> {
    let s = Sequence::new(b, dt, cell)?;
    s.forward(b.gpu, cell)?;
    let [t, n, h] = s.sizes;
    let k = cell.gates();
    let dy = b.normal(dt, t * n * h)?;
    let (mut dx, mut dwx, mut dwh) =
        (b.empty(dt, t * n * h)?, b.empty(dt, k * h * h)?, b.empty(dt, k * h * h)?);
    flops(s.flops(cell, 4), move |g| {
        let lstm = cell == RnnCell::Lstm;
        let each = |i: usize| s.gates[i].shaped(&[t, n, h]);
        let gru = if cell.is_gru() {
            Some(GruGates { r: each(0)?, z: each(1)?, n: each(2)?, u: each(3)? })
        } else {
            None
        };
        let io = RnnBwd {
            dy: Some(dy.shaped(&[t, n, h])?),
            dh_t: None,
            dc_t: None,
            x: s.x.shaped(&[t, n, h])?,
            weights: s.weights(cell)?,
            lengths: None,
            h: s.h.shaped(&[t + 1, n, h])?,
            c: if lstm { Some(s.c.shaped(&[t + 1, n, h])?) } else { None },
            gates: if lstm { Some(s.gates[0].shaped(&[t, n, 4 * h])?) } else { None },
            gru,
            grads: RnnGrads {
                dx: Some(dx.shaped_mut(&[t, n, h])?.into()),
                dw_ih: Some(dwx.shaped_mut(&[k * h, h])?.into()),
                dw_hh: Some(dwh.shaped_mut(&[k * h, h])?.into()),
                ..RnnGrads::default()
            },
        };
        g.rnn_bwd(cell, &Recurrence::new(), io)
    })
}

/// Sizes of a convolutional LSTM: steps, images, channels and side.
fn images(b: &Bed<'_>) -> [usize; 4] {
    [b.pick(2, 4, 16), b.pick(1, 2, 16), b.pick(2, 8, 64), b.pick(5, 16, 64)]
}

pub(super) const ROWS: &[Row] = &[
    row("rnn", "lstm", F32_BF16, |b, dt| forward(b, dt, RnnCell::Lstm)),
    row("rnn", "gru", F32, |b, dt| forward(b, dt, RnnCell::Gru)),
    row("rnn", "gru_reset_before", F32, |b, dt| forward(b, dt, RnnCell::GruResetBefore)),
    row("rnn", "tanh", F32, |b, dt| forward(b, dt, RnnCell::Tanh)),
    row("rnn_bwd", "lstm", F32_BF16, |b, dt| backward(b, dt, RnnCell::Lstm)),
    row("rnn_bwd", "gru", F32, |b, dt| backward(b, dt, RnnCell::Gru)),
    row("rnn_bwd", "gru_reset_before", F32, |b, dt| backward(b, dt, RnnCell::GruResetBefore)),
    row("rnn_bwd", "tanh", F32, |b, dt| backward(b, dt, RnnCell::Tanh)),
    row("rnn_gates", "lstm", F32, |b, dt| {
        let [_, n, h] = sizes(b);
        let (x, s) = (b.normal(dt, n * h)?, b.normal(dt, n * h)?);
        let (u, v, mut z) = (b.normal(dt, 4 * h * h)?, b.normal(dt, 4 * h * h)?, b.empty(dt, 4 * n * h)?);
        flops(16 * n * h * h, move |g| {
            let w = RnnWeights::new(u.shaped(&[4 * h, h])?, v.shaped(&[4 * h, h])?);
            let (x, s) = (x.shaped(&[n, h])?, s.shaped(&[n, h])?);
            g.rnn_gates(Precision::Ieee, x, s, w, z.shaped_mut(&[n, 4 * h])?)
        })
    }),
    row("lstm_cell", "rows", F32, |b, dt| {
        let [r, c] = b.rows();
        let (z, s) = (b.normal(dt, 4 * r * c)?, b.normal(dt, r * c)?);
        let (mut h, mut n, mut k) = (b.empty(dt, r * c)?, b.empty(dt, r * c)?, b.empty(dt, 4 * r * c)?);
        bytes(11 * r * c * dt.size(), move |g| {
            g.lstm_cell(LstmCellFwd {
                z: z.shaped(&[r, 4 * c])?,
                c: s.shaped(&[r, c])?,
                h_next: h.shaped_mut(&[r, c])?,
                c_next: n.shaped_mut(&[r, c])?,
                gates: Some(k.shaped_mut(&[r, 4 * c])?),
            })
        })
    }),
    row("lstm_cell_bwd", "rows", F32, |b, dt| {
        let [r, c] = b.rows();
        let (k, s, d) = (b.normal(dt, 4 * r * c)?, b.normal(dt, r * c)?, b.normal(dt, r * c)?);
        let (mut dz, mut dc) = (b.empty(dt, 4 * r * c)?, b.empty(dt, r * c)?);
        bytes(12 * r * c * dt.size(), move |g| {
            g.lstm_cell_bwd(LstmCellBwd {
                dh_next: Some(d.shaped(&[r, c])?),
                dc_next: None,
                gates: k.shaped(&[r, 4 * c])?,
                c: s.shaped(&[r, c])?,
                c_next: s.shaped(&[r, c])?,
                dz: dz.shaped_mut(&[r, 4 * c])?.into(),
                dc: Some(dc.shaped_mut(&[r, c])?.into()),
            })
        })
    }),
    row("gru_cell", "rows", F32, |b, dt| {
        let [r, c] = b.rows();
        let (a, u, s) = (b.normal(dt, 3 * r * c)?, b.normal(dt, 3 * r * c)?, b.normal(dt, r * c)?);
        let mut y = b.empty(dt, r * c)?;
        bytes(8 * r * c * dt.size(), move |g| {
            g.gru_cell(GruCellFwd {
                a: a.shaped(&[r, 3 * c])?,
                u: u.shaped(&[r, 3 * c])?,
                h: s.shaped(&[r, c])?,
                h_next: y.shaped_mut(&[r, c])?,
                r: None,
                z: None,
                n: None,
            })
        })
    }),
    row("gru_cell_bwd", "rows", F32, |b, dt| {
        let [r, c] = b.rows();
        let (s, d) = (b.normal(dt, r * c)?, b.normal(dt, r * c)?);
        let (mut da, mut du) = (b.empty(dt, 3 * r * c)?, b.empty(dt, 3 * r * c)?);
        bytes(12 * r * c * dt.size(), move |g| {
            let v = s.shaped(&[r, c])?;
            g.gru_cell_bwd(GruCellBwd {
                dh_next: d.shaped(&[r, c])?,
                gates: GruGates { r: v, z: v, n: v, u: v },
                h: v,
                da: da.shaped_mut(&[r, 3 * c])?.into(),
                du: du.shaped_mut(&[r, 3 * c])?.into(),
                dh: None,
            })
        })
    }),
    row("conv_lstm", "k3", F32, |b, dt| {
        let [t, n, c, s] = images(b);
        let state = n * c * s * s;
        let (x, h) = (b.normal(dt, t * state)?, b.normal(dt, state)?);
        let (wx, wh, mut y) = (b.normal(dt, 36 * c * c)?, b.normal(dt, 36 * c * c)?, b.empty(dt, t * state)?);
        flops(2 * 2 * 36 * c * t * state, move |g| {
            let (image, w) = ([n, c, s, s], [4 * c, c, 3, 3]);
            g.conv_lstm(
                Precision::Ieee,
                ConvLstmFwd {
                    x: x.shaped(&[t, n, c, s, s])?,
                    h_0: h.shaped(&image)?,
                    c_0: h.shaped(&image)?,
                    wx: wx.shaped(&w)?,
                    wh: wh.shaped(&w)?,
                    b: None,
                    p: None,
                    y: y.shaped_mut(&[t, n, c, s, s])?,
                    h_t: None,
                    c_t: None,
                    h: None,
                    c: None,
                    gates: None,
                },
            )
        })
    }),
    row("conv_lstm_bwd", "k3", F32, |b, dt| {
        let [t, n, c, s] = images(b);
        let state = n * c * s * s;
        let (x, states) = (b.normal(dt, t * state)?, b.normal(dt, (t + 1) * state)?);
        let (gates, p) = (b.positive(dt, 4 * t * state)?, b.normal(dt, 3 * c * s * s)?);
        let (wx, wh) = (b.normal(dt, 36 * c * c)?, b.normal(dt, 36 * c * c)?);
        let (mut dx, mut dp) = (b.empty(dt, t * state)?, b.empty(dt, 3 * c * s * s)?);
        let (mut dwx, mut dwh) = (b.empty(dt, 36 * c * c)?, b.empty(dt, 36 * c * c)?);
        flops(2 * 4 * 36 * c * t * state, move |g| {
            let (w, all) = ([4 * c, c, 3, 3], [t + 1, n, c, s, s]);
            g.conv_lstm_bwd(
                Precision::Ieee,
                ConvLstmBwd {
                    dy: Some(x.shaped(&[t, n, c, s, s])?),
                    dh_t: None,
                    dc_t: None,
                    x: x.shaped(&[t, n, c, s, s])?,
                    wx: wx.shaped(&w)?,
                    wh: wh.shaped(&w)?,
                    p: Some(p.shaped(&[3, c, s, s])?),
                    gates: gates.shaped(&[t, n, 4 * c, s, s])?,
                    c: states.shaped(&all)?,
                    h: states.shaped(&all)?,
                    dx: Some(dx.shaped_mut(&[t, n, c, s, s])?.into()),
                    dh_0: None,
                    dc_0: None,
                    dwx: Some(dwx.shaped_mut(&w)?.into()),
                    dwh: Some(dwh.shaped_mut(&w)?.into()),
                    db: None,
                    dp: Some(dp.shaped_mut(&[3, c, s, s])?.into()),
                },
            )
        })
    }),
];
