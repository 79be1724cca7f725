//! Back-propagation through time.

use super::*;
use crate::cpu::vector::activation::activate;
use crate::cpu::vector::matrix_column_sums;
use crate::ops::activation::Activation;

/// What the forward pass saved, in the order of the parts.
struct Saved {
    dy: Vec<f32>,
    /// States before each step.
    h: Vec<f32>,
    /// Cell states [T+1, b, H] of an LSTM; of a plain cell its outputs [T, b, H].
    c: Vec<f32>,
    /// Gates of an LSTM; r, z, n and u_n of a GRU.
    gates: Vec<f32>,
    gru: [Vec<f32>; 4],
    /// W_hh [gates, H].
    w_hh: Vec<f32>,
}

/// Gradients of one part of the batch.
struct Part<'a> {
    first: usize,
    /// Of what the recurrent weights make [T, b, gates].
    du: &'a mut [f32],
    /// Of what the input weights make, where it differs.
    da: &'a mut [f32],
    /// r h, where the reset gate comes before the product [T, b, H].
    rh: &'a mut [f32],
    dh: &'a mut [f32],
    dc: &'a mut [f32],
}

/// Buffers of all parts, as in [`Part`].
struct Gradients {
    du: Vec<f32>,
    da: Vec<f32>,
    rh: Vec<f32>,
    dh: Vec<f32>,
    dc: Vec<f32>,
}

impl Saved {
    fn new<T: Narrow>(run: &Run<'_>, io: &RnnBwd<'_>) -> Result<Self> {
        let (order, h, batch) = (run.order(), run.s.hidden, run.s.batch);
        let take = |v: Option<View<'_>>, order, width| match v {
            Some(v) => run.take_saved::<T>(v, order, width),
            None => Ok(Vec::new()),
        };
        let plain = matches!(run.cell, RnnCell::Tanh | RnnCell::Relu);
        let gru = match io.gru {
            Some(g) => [g.r, g.z, g.n, g.u].map(|v| take(Some(v), order, h)),
            None => [(); 4].map(|_| Ok(Vec::new())),
        };
        let [r, z, m, u] = gru;
        Ok(Saved {
            dy: match io.dy {
                Some(dy) => run.take::<T>(dy, order, h, |at, b| run.outer(at, b))?,
                None => filled(order.rows() * h, 0.0)?,
            },
            h: run.take_saved::<T>(io.h, order, h)?,
            c: match plain {
                true => run.take::<T>(io.h, order, h, |at, b| (at + 1) * batch + b)?,
                false => take(io.c, run.states(), h)?,
            },
            gates: take(io.gates, order, run.gates())?,
            gru: [r?, z?, m?, u?],
            w_hh: values::<T>(run.op, io.weights.w_hh)?,
        })
    }
}

impl CpuBackend {
    pub(in crate::cpu::rnn) fn rnn_bwd_in_f32<T: Narrow>(
        &self,
        cell: RnnCell,
        p: &Recurrence,
        s: RnnSizes,
        io: RnnBwd<'_>,
    ) -> Result<()> {
        const OP: &str = "rnn_bwd";
        let lengths = super::super::row_lengths(OP, io.lengths, &s)?;
        let run = Run { op: OP, cell, p, s, lengths: &lengths };
        let saved = Saved::new::<T>(&run, &io)?;
        let (h, wide, order) = (s.hidden, run.gates(), run.order());
        let zeros = |there: bool, width| filled(if there { order.rows() * width } else { 0 }, 0.0f32);
        let first = |v| optional::<T>(OP, v)?.map_or_else(|| filled(s.batch * h, 0.0f32), Ok);
        let mut all = Gradients {
            du: zeros(true, wide)?,
            da: zeros(cell == RnnCell::Gru, wide)?,
            rh: zeros(cell == RnnCell::GruResetBefore, h)?,
            dh: first(io.dh_t)?,
            dc: first(io.dc_t)?,
        };
        self.parts_bwd::<T>(&run, &saved, &mut all)?;
        let all = all;
        let (du, da) = (&all.du, if all.da.is_empty() { &all.du } else { &all.da });
        let give = |to: &Option<GradMut<'_>>, data: &[f32], width: usize| match to {
            Some(to) => put_rows::<T>(run.op, to, width, |i| Some(&data[i * width..][..width])),
            None => Ok(()),
        };
        let g = &io.grads;
        give(&g.dh_0, &all.dh, h)?;
        give(&g.dc_0, &all.dc, h)?;
        if let Some(to) = &g.dx {
            let w_ih = values::<T>(OP, io.weights.w_ih)?;
            let mut dx = zeros(true, s.input)?;
            let (size, y) = ((order.rows(), s.input, wide), (&mut *dx, packed(0, s.input)));
            multiply(run.op, size, (da, packed(0, wide)), (&w_ih, packed(0, s.input)), 0.0, y, true)?;
            put_rows::<T>(run.op, to, s.input, |i| {
                let (at, b) = run.inner(i);
                Some(&dx[order.row(at, b) * s.input..][..s.input])
            })?;
        }
        // d^T x, sums over all steps.
        let weight = |d: &[f32], gates: Range<usize>, x: &[f32], width: usize| -> Result<Vec<f32>> {
            let mut dw = filled(gates.len() * width, 0.0)?;
            let d = (d, turned(gates.start, wide));
            let size = (gates.len(), width, order.rows());
            multiply(run.op, size, d, (x, packed(0, width)), 0.0, (&mut dw, packed(0, width)), true)?;
            Ok(dw)
        };
        if g.dw_ih.is_some() {
            let x = run.take::<T>(io.x, order, s.input, |at, b| run.outer(at, b))?;
            give(&g.dw_ih, &weight(da, 0..wide, &x, s.input)?, s.input)?;
        }
        if g.dw_hh.is_some() {
            let split = if all.rh.is_empty() { wide } else { 2 * h };
            let mut dw = weight(du, 0..split, &saved.h, h)?;
            if split < wide {
                dw.try_extend(weight(du, split..wide, &all.rh, h)?)?;
            }
            give(&g.dw_hh, &dw, h)?;
        }
        for (to, d) in [(&g.db_ih, da), (&g.db_hh, du)] {
            if let Some(to) = to {
                store_grad(OP, to, &matrix_column_sums(d, wide)?)?;
            }
        }
        Ok(())
    }

    /// Runs the parts of the batch.
    fn parts_bwd<T: Narrow>(&self, run: &Run<'_>, saved: &Saved, all: &mut Gradients) -> Result<()> {
        let (n, width, wide) = (run.s.batch.div_ceil(ROWS), run.s.hidden, run.gates());
        let each = ROWS * run.s.steps;
        let (mut du, mut da) = (all.du.chunks_mut(each * wide), all.da.chunks_mut(each * wide));
        let mut rh = all.rh.chunks_mut(each * width);
        let (mut dh, mut dc) = (all.dh.chunks_mut(ROWS * width), all.dc.chunks_mut(ROWS * width));
        let mut parts = with_capacity(n)?;
        for i in 0..n {
            parts.try_push(Part {
                first: i * ROWS,
                du: du.next().unwrap_or_default(),
                da: da.next().unwrap_or_default(),
                rh: rh.next().unwrap_or_default(),
                dh: dh.next().unwrap_or_default(),
                dc: dc.next().unwrap_or_default(),
            })?;
        }
        parts.into_par_iter().try_for_each(|part| part.run::<T>(run, saved, n == 1))
    }
}

impl Part<'_> {
    /// All steps from the last one; `alone`: whether no other part runs beside it.
    fn run<T: Narrow>(mut self, run: &Run<'_>, saved: &Saved, alone: bool) -> Result<()> {
        let (h, wide, n) = (run.s.hidden, run.gates(), self.dh.len());
        let (batch, before) = (n / h, run.cell == RnnCell::GruResetBefore);
        let first = self.first;
        let live = |at: usize| (0..batch).filter(move |b| run.live(at, first + b));
        let (mut back, mut room) = (filled(n, 0.0)?, filled(h, 0.0)?);
        for at in (0..run.s.steps).rev() {
            for b in live(at) {
                self.step::<T>(run, saved, at, b, &mut room);
            }
            let d = at * batch * wide;
            if before {
                let (from, w) = (packed(d + 2 * h, wide), packed(2 * h * h, h));
                let to = (&mut *back, packed(0, h));
                multiply(run.op, (batch, h, h), (self.du, from), (&saved.w_hh, w), 0.0, to, alone)?;
                for b in live(at) {
                    self.reset::<T>(run, saved, at, b, &back[b * h..][..h]);
                }
            }
            let used = if before { 2 * h } else { wide };
            let (from, to) = (packed(d, wide), (&mut *back, packed(0, h)));
            multiply(run.op, (batch, h, used), (self.du, from), (&saved.w_hh, packed(0, h)), 0.0, to, alone)?;
            for b in live(at) {
                vector::add(&mut self.dh[b * h..][..h], &back[b * h..][..h]);
            }
        }
        Ok(())
    }

    /// Gradients of the gates of one row and the rest of that of its state.
    fn step<T: Narrow>(&mut self, run: &Run<'_>, saved: &Saved, at: usize, b: usize, room: &mut [f32]) {
        let (h, wide, batch) = (run.s.hidden, run.gates(), self.dh.len() / run.s.hidden);
        // Rows in the part, and in the buffers of all parts.
        let mine = at * batch + b;
        let all = self.first * run.s.steps + mine;
        let dh = &mut self.dh[b * h..][..h];
        let du = &mut self.du[mine * wide..][..wide];
        vector::add(dh, &saved.dy[all * h..][..h]);
        match run.cell {
            RnnCell::Lstm => {
                let of_c = self.first * (run.s.steps + 1) + mine;
                let (c, next) = (&saved.c[of_c * h..][..h], &saved.c[(of_c + batch) * h..][..h]);
                let gates = &saved.gates[all * wide..][..wide];
                lstm_bwd(gates, [c, next], dh, &mut self.dc[b * h..][..h], du, room);
                dh.fill(0.0);
            }
            RnnCell::Gru | RnnCell::GruResetBefore => {
                let [r, z, m, u] = [0, 1, 2, 3].map(|q| &saved.gru[q][all * h..][..h]);
                let saved = [r, z, m, u, &saved.h[all * h..][..h]];
                let da: &mut [f32] = match run.cell {
                    RnnCell::Gru => &mut self.da[mine * wide..][..wide],
                    _ => &mut [],
                };
                gru_bwd(saved, dh, du, da);
                round::<T>(da);
            }
            RnnCell::Tanh | RnnCell::Relu => {
                let y = &saved.c[all * h..][..h];
                match run.cell {
                    RnnCell::Tanh => fuse2(du, [dh, y], |_, [up, y]| up * (1.0 - y * y)),
                    _ => fuse2(du, [dh, y], |_, [up, y]| up * if y > 0.0 { 1.0 } else { 0.0 }),
                }
                dh.fill(0.0);
            }
        }
        round::<T>(du);
    }

    /// What the product with r h gives back, `d`, as gradients of the reset gate and of the state.
    fn reset<T: Narrow>(&mut self, run: &Run<'_>, saved: &Saved, at: usize, b: usize, d: &[f32]) {
        let (h, batch) = (run.s.hidden, self.dh.len() / run.s.hidden);
        let mine = at * batch + b;
        let all = self.first * run.s.steps + mine;
        let (r, x) = (&saved.gru[0][all * h..][..h], &saved.h[all * h..][..h]);
        let dr = &mut self.du[mine * run.gates()..][..h];
        fuse3(dr, [d, x, r], |_, [d, x, r]| d * x * r * (1.0 - r));
        round::<T>(dr);
        let rh = &mut self.rh[mine * h..][..h];
        fuse2(rh, [r, x], |_, [r, x]| r * x);
        round::<T>(rh);
        fuse2(&mut self.dh[b * h..][..h], [d, r], |dh, [d, r]| dh + d * r);
    }
}

/// Gradients of the gates of an LSTM's row before their activation, and of its cell state; `up` is that of the hidden state.
pub(super) fn lstm_bwd(
    gates: &[f32],
    [c, next]: [&[f32]; 2],
    up: &[f32],
    dc: &mut [f32],
    du: &mut [f32],
    room: &mut [f32],
) {
    let n = c.len();
    let [i, f, g, o] = [0, 1, 2, 3].map(|q| &gates[q * n..(q + 1) * n]);
    room.copy_from_slice(next);
    activate(Activation::Tanh, room);
    fuse3(&mut du[3 * n..], [up, room, o], |_, [up, t, o]| up * t * o * (1.0 - o));
    fuse3(dc, [up, room, o], |dc, [up, t, o]| dc + up * o * (1.0 - t * t));
    fuse3(&mut du[..n], [dc, g, i], |_, [dc, g, i]| dc * g * i * (1.0 - i));
    fuse3(&mut du[n..2 * n], [dc, c, f], |_, [dc, c, f]| dc * c * f * (1.0 - f));
    fuse3(&mut du[2 * n..3 * n], [dc, i, g], |_, [dc, i, g]| dc * i * (1.0 - g * g));
    fuse1(dc, [f], |dc, [f]| dc * f);
}

/// Gradients of the gates of a GRU's row before their activation, as the recurrent weights (`du`) and the input weights (`da`) make them; `up` is
/// that of the next state and becomes its direct part of that of the state. Without `da` the reset gate comes before the product: its gradient is
/// left out.
pub(super) fn gru_bwd([r, z, m, u, x]: [&[f32]; 5], up: &mut [f32], du: &mut [f32], da: &mut [f32]) {
    let n = x.len();
    let (rz, dn) = du.split_at_mut(2 * n);
    fuse4(&mut rz[n..], [up, x, m, z], |_, [up, x, m, z]| up * (x - m) * z * (1.0 - z));
    fuse3(dn, [up, z, m], |_, [up, z, m]| up * (1.0 - z) * (1.0 - m * m));
    fuse1(up, [z], |up, [z]| up * z);
    if da.is_empty() {
        return;
    }
    fuse3(&mut rz[..n], [dn, u, r], |_, [dn, u, r]| dn * u * r * (1.0 - r));
    da[..2 * n].copy_from_slice(rz);
    da[2 * n..].copy_from_slice(dn);
    fuse1(dn, [r], |dn, [r]| dn * r);
}
