//! Back-propagation through time.

use super::super::give;
use super::*;
use crate::cpu::vector::activation::activate;
use crate::cpu::vector::matrix_column_sums;
use crate::ops::activation::Activation;

/// What the forward pass saved, and the gradient of its result.
struct Saved<'a> {
    /// In the order of y.
    dy: Option<Values<'a, f32>>,
    /// All states [T+1, B, H].
    h: Values<'a, f32>,
    /// Cell states [T+1, B, H] of an LSTM.
    c: Option<Values<'a, f32>>,
    /// Gates of an LSTM [T, B, 4 H].
    gates: Option<Values<'a, f32>>,
    /// r, z, n and u_n of a GRU [T, B, H].
    gru: [Option<Values<'a, f32>>; 4],
    /// The panels of W_hh [gates, H]; where the reset gate comes before the product, those of the first two gates, and of the third.
    w_hh: [Vec<f32>; 2],
}

/// Gradients of one part of the batch: of each step its rows.
struct Part<'a> {
    first: usize,
    /// Of what the recurrent weights make [T][b, gates].
    du: Vec<&'a mut [f32]>,
    /// Of what the input weights make, where it differs.
    da: Vec<&'a mut [f32]>,
    /// r h, where the reset gate comes before the product [T][b, H].
    rh: Vec<&'a mut [f32]>,
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

/// Row `i` of a matrix of `width` columns, or nothing.
fn row_at<'a>(v: &'a Option<Values<'_, f32>>, i: usize, width: usize) -> &'a [f32] {
    v.as_ref().map_or(&[], |v| &v[i * width..][..width])
}

/// Blocks of the operands of a call.
fn blocks(io: &RnnBwd<'_>) -> Result<Blocks> {
    let (w, g) = (&io.weights, &io.grads);
    let [r, z, n, u] = io.gru.map_or([None; 4], |g| [g.r, g.z, g.n, g.u].map(Some));
    let of_state = [io.dy, io.dh_t, io.dc_t, Some(io.h), io.c, io.gates, r, z, n, u];
    let of_input = [Some(io.x), Some(w.w_ih), Some(w.w_hh), w.b_ih, w.b_hh, io.lengths];
    let written = [&g.dx, &g.dh_0, &g.dc_0, &g.dw_ih, &g.dw_hh, &g.db_ih, &g.db_hh];
    let written = written.into_iter().flatten().map(|g| g.out.block().id());
    let read = of_state.into_iter().chain(of_input).flatten().map(|v| v.block().id());
    Ok(Blocks(read.chain(written).try_vec()?))
}

impl<'a> Saved<'a> {
    fn new<T: Narrow>(run: &Run<'_>, io: &RnnBwd<'a>, blocks: &Blocks) -> Result<Self> {
        let hold = |v: View<'a>| vector::values(run.op, v, blocks.of_others(&v));
        let may = |v: Option<View<'a>>| v.map(hold).transpose();
        let [r, z, n, u] = io.gru.map_or([None; 4], |g| [g.r, g.z, g.n, g.u].map(Some)).map(may);
        let (h, wide, w_hh) = (run.s.hidden, run.gates(), values::<T>(run.op, io.weights.w_hh)?);
        let first = if run.cell == RnnCell::GruResetBefore { 2 * h } else { wide };
        let of = |gates: Range<usize>| panels(run.op, (gates.len(), h), (&w_hh, packed(gates.start * h, h)));
        Ok(Saved {
            dy: may(io.dy)?,
            h: hold(io.h)?,
            c: may(io.c)?,
            gates: may(io.gates)?,
            gru: [r?, z?, n?, u?],
            w_hh: [of(0..first)?, of(first..wide)?],
        })
    }
}

impl Kernels {
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
        let (h, wide, rows) = (s.hidden, run.gates(), run.rows());
        let zeros = |there: bool, width| filled(if there { rows * width } else { 0 }, 0.0f32);
        let first = |v| optional::<T>(OP, v)?.map_or_else(|| filled(s.batch * h, 0.0f32), Ok);
        let mut all = Gradients {
            du: zeros(true, wide)?,
            da: zeros(cell == RnnCell::Gru, wide)?,
            rh: zeros(cell == RnnCell::GruResetBefore, h)?,
            dh: first(io.dh_t)?,
            dc: first(io.dc_t)?,
        };
        let blocks = blocks(&io)?;
        let saved = Saved::new::<T>(&run, &io, &blocks)?;
        run.backward::<T>(&saved, &mut all)?;
        let (hs, g) = (saved.h, &io.grads);
        for (to, data) in [(&g.dh_0, &all.dh), (&g.dc_0, &all.dc)] {
            to.as_ref().map_or(Ok(()), |to| vector::put(OP, to, data))?;
        }
        run.input_gradient::<T>(&io, all.of_input())?;
        if let Some(to) = &g.dw_ih {
            let x = run.in_order::<T>(io.x, blocks.of_others(&io.x))?;
            vector::write_or_add(OP, to, |dw, beta| {
                run.weight_gradient((all.of_input(), 0..wide), (&x, s.input), beta, dw)
            })?;
        }
        if let Some(to) = &g.dw_hh {
            let split = if all.rh.is_empty() { wide } else { 2 * h };
            vector::write_or_add(OP, to, |dw, beta| {
                let (dw, last) = dw.split_at_mut(split * h);
                run.weight_gradient((&all.du, 0..split), (&hs, h), beta, dw)?;
                match last.is_empty() {
                    true => Ok(()),
                    false => run.weight_gradient((&all.du, split..wide), (&all.rh, h), beta, last),
                }
            })?;
        }
        all.biases(wide, g)
    }
}

impl Gradients {
    /// Of what the input weights make.
    fn of_input(&self) -> &[f32] {
        if self.da.is_empty() { &self.du } else { &self.da }
    }

    /// Gradients of the biases: sums over all rows.
    fn biases(&self, wide: usize, g: &RnnGrads<'_>) -> Result<()> {
        const OP: &str = "rnn_bwd";
        let sums = |used: bool, d: &[f32]| if used { matrix_column_sums(d, wide) } else { Ok(Vec::new()) };
        let (hh, ih, same) = (g.db_hh.is_some(), g.db_ih.is_some(), self.da.is_empty());
        let (of_hh, of_ih) = (sums(hh || ih && same, &self.du)?, sums(ih && !same, &self.da)?);
        give(OP, &g.db_hh, &of_hh)?;
        give(OP, &g.db_ih, if same { &of_hh } else { &of_ih })
    }
}

impl Run<'_> {
    /// dx = da W_ih
    fn input_gradient<T: Narrow>(&self, io: &RnnBwd<'_>, da: &[f32]) -> Result<()> {
        let Some(to) = &io.grads.dx else { return Ok(()) };
        let (wide, width, w_ih) = (self.gates(), self.s.input, values::<T>(self.op, io.weights.w_ih)?);
        let product = |dx: &mut [f32], beta| {
            let (size, y) = ((self.rows(), width, wide), (dx, packed(0, width)));
            multiply(self.op, size, (da, packed(0, wide)), (&w_ih, packed(0, width)), beta, y, true)
        };
        if self.is_in_order() {
            return vector::write_or_add(self.op, to, product);
        }
        let mut dx = filled(self.rows() * width, 0.0)?;
        product(&mut dx, 0.0)?;
        self.put_sequence::<T>(to, width, &dx)
    }

    /// dw = d^T x + beta dw of some gates; sums over all steps.
    fn weight_gradient(
        &self,
        (d, gates): (&[f32], Range<usize>),
        (x, width): (&[f32], usize),
        beta: f32,
        dw: &mut [f32],
    ) -> Result<()> {
        let (d, size) = ((d, turned(gates.start, self.gates())), (gates.len(), width, self.rows()));
        multiply(self.op, size, d, (x, packed(0, width)), beta, (dw, packed(0, width)), true)
    }

    /// Runs the parts of the batch.
    fn backward<T: Narrow>(&self, saved: &Saved<'_>, all: &mut Gradients) -> Result<()> {
        let (batch, width, wide) = (self.s.batch, self.s.hidden, self.gates());
        let du = parts(&mut all.du, batch, wide)?.into_iter();
        let (da, rh) = (parts(&mut all.da, batch, wide)?, parts(&mut all.rh, batch, width)?);
        let states = all.dh.chunks_mut(ROWS * width).zip(all.dc.chunks_mut(ROWS * width));
        let mut work = with_capacity(du.len())?;
        for (i, (((du, da), rh), (dh, dc))) in du.zip(da).zip(rh).zip(states).enumerate() {
            work.try_push(Part { first: i * ROWS, du, da, rh, dh, dc })?;
        }
        let alone = work.len() == 1;
        let run: &(dyn Fn(Part<'_>) -> Result<()> + Sync) = &|part| part.run::<T>(self, saved, alone);
        work.into_par_iter().try_for_each(run)
    }
}

impl Part<'_> {
    /// All steps from the last one; `alone`: whether no other part runs beside it.
    fn run<T: Narrow>(mut self, run: &Run<'_>, saved: &Saved<'_>, alone: bool) -> Result<()> {
        let (h, wide, n) = (run.s.hidden, run.gates(), self.dh.len());
        let (batch, before) = (n / h, run.cell == RnnCell::GruResetBefore);
        let first = self.first;
        let live = |at: usize| (0..batch).filter(move |b| run.live(at, first + b));
        let (mut back, mut room) = (filled(n, 0.0)?, filled(h, 0.0)?);
        for at in (0..run.s.steps).rev() {
            for b in live(at) {
                self.step::<T>(run, saved, at, b, &mut room);
            }
            if before {
                let (from, to) = (packed(2 * h, wide), (&mut *back, packed(0, h)));
                let d = &*self.du[at];
                multiply_panels(run.op, (batch, h, h), (d, from), &saved.w_hh[1], 0.0, to, alone)?;
                for b in live(at) {
                    self.reset::<T>(run, saved, at, b, &back[b * h..][..h]);
                }
            }
            let used = if before { 2 * h } else { wide };
            let (d, to) = ((&*self.du[at], packed(0, wide)), (&mut *back, packed(0, h)));
            multiply_panels(run.op, (batch, h, used), d, &saved.w_hh[0], 0.0, to, alone)?;
            for b in live(at) {
                vector::add(&mut self.dh[b * h..][..h], &back[b * h..][..h]);
            }
        }
        Ok(())
    }

    /// Gradients of the gates of one row and the rest of that of its state.
    fn step<T: Narrow>(&mut self, run: &Run<'_>, saved: &Saved<'_>, at: usize, b: usize, room: &mut [f32]) {
        let (h, wide, batch) = (run.s.hidden, run.gates(), run.s.batch);
        // Rows in the sequence of the result, and in those that were saved.
        let (outer, row) = (run.outer(at, self.first + b), at * batch + self.first + b);
        let dh = &mut self.dh[b * h..][..h];
        let du = &mut self.du[at][b * wide..][..wide];
        if saved.dy.is_some() {
            vector::add(dh, row_at(&saved.dy, outer, h));
        }
        match run.cell {
            RnnCell::Lstm => {
                let states = [row, row + batch].map(|i| row_at(&saved.c, i, h));
                let gates = row_at(&saved.gates, row, wide);
                lstm_bwd(gates, states, dh, &mut self.dc[b * h..][..h], du, room);
                dh.fill(0.0);
            }
            RnnCell::Gru | RnnCell::GruResetBefore => {
                let [r, z, m, u] = saved.gru.each_ref().map(|v| row_at(v, row, h));
                let saved = [r, z, m, u, &saved.h[row * h..][..h]];
                let da: &mut [f32] = match run.cell {
                    RnnCell::Gru => &mut self.da[at][b * wide..][..wide],
                    _ => &mut [],
                };
                gru_bwd(saved, dh, du, da);
                round::<T>(da);
            }
            RnnCell::Tanh | RnnCell::Relu => {
                let y = &saved.h[(row + batch) * h..][..h];
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
    fn reset<T: Narrow>(&mut self, run: &Run<'_>, saved: &Saved<'_>, at: usize, b: usize, d: &[f32]) {
        let (h, row) = (run.s.hidden, at * run.s.batch + self.first + b);
        let (r, x) = (row_at(&saved.gru[0], row, h), &saved.h[row * h..][..h]);
        let dr = &mut self.du[at][b * run.gates()..][..h];
        fuse3(dr, [d, x, r], |_, [d, x, r]| d * x * r * (1.0 - r));
        round::<T>(dr);
        let rh = &mut self.rh[at][b * h..][..h];
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
