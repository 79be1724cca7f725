//! The forward pass.

use super::*;
use crate::cpu::vector::activation::activate;
use crate::ops::activation::Activation;

/// What one part of the batch writes, step by step.
struct Part<'a> {
    /// Row of the batch that it begins with.
    first: usize,
    /// Products with the input weights, which become the gates [T][b, gates].
    gates: Vec<&'a mut [f32]>,
    /// u_n of a GRU [T][b, H].
    un: Vec<&'a mut [f32]>,
    /// States [T+1][b, H].
    h: Vec<&'a mut [f32]>,
    /// Cell states of an LSTM [T+1][b, H].
    c: Vec<&'a mut [f32]>,
}

/// Recurrent weights and biases.
struct Weights {
    /// The panels of W_hh^T [H, gates]; of a GRU those of its first two gates, and of the third.
    w_hh: [Vec<f32>; 2],
    /// Of the gates.
    bias: Vec<f32>,
    /// Of u_n.
    bias_un: Vec<f32>,
}

impl Weights {
    fn new<T: Narrow>(run: &Run<'_>, w: &RnnWeights<'_>) -> Result<Self> {
        let (h, wide, gru) = (run.s.hidden, run.gates(), run.cell.is_gru());
        let w_hh = values::<T>(run.op, w.w_hh)?;
        let mut bias = optional::<T>(run.op, w.b_hh)?.map_or_else(|| filled(wide, 0.0f32), Ok)?;
        let mut bias_un = Vec::new();
        if gru {
            bias_un = bias[2 * h..].try_to_vec()?;
            bias[2 * h..].fill(0.0);
        }
        if let Some(b_ih) = optional::<T>(run.op, w.b_ih)? {
            vector::add(&mut bias, &b_ih);
        }
        let first = if gru { 2 * h } else { wide };
        let of = |gates: Range<usize>| panels(run.op, (h, gates.len()), (&w_hh, turned(gates.start * h, h)));
        Ok(Weights { w_hh: [of(0..first)?, of(first..wide)?], bias, bias_un })
    }
}

impl Kernels {
    pub(in crate::cpu::rnn) fn rnn_in_f32<'a, T: Narrow>(
        &self,
        cell: RnnCell,
        p: &Recurrence,
        s: RnnSizes,
        io: RnnFwd<'a>,
    ) -> Result<()> {
        const OP: &str = "rnn";
        let lengths = super::super::row_lengths(OP, io.lengths, &s)?;
        let run = Run { op: OP, cell, p, s, lengths: &lengths };
        let (h, wide, rows, n) = (s.hidden, run.gates(), run.rows(), s.batch * s.hidden);
        let lstm = cell == RnnCell::Lstm;
        let weights = Weights::new::<T>(&run, &io.weights)?;
        let w_ih = values::<T>(OP, io.weights.w_ih)?;
        let first = [io.h_0, io.c_0].map(|v| optional::<T>(OP, v));
        let blocks = blocks(&io)?;
        let place = |to: &Option<ViewMut<'a>>, len| Written::new(OP, to.as_ref(), len, &blocks);
        let mut gates = place(&io.gates, rows * wide)?;
        let (mut hs, mut cs) =
            (place(&io.h, n + rows * h)?, place(&io.c, if lstm { n + rows * h } else { 0 })?);
        let mut un = filled(if cell.is_gru() { rows * h } else { 0 }, 0.0)?;
        {
            let x = run.in_order::<T>(io.x, &[])?;
            let (size, to) = ((rows, wide, s.input), (&mut *gates, packed(0, wide)));
            multiply(run.op, size, (&x, packed(0, s.input)), (&w_ih, turned(0, s.input)), 0.0, to, true)?;
        }
        for (to, first) in [&mut hs, &mut cs].into_iter().zip(first) {
            let n = n.min(to.len());
            let to = &mut to[..n];
            match first? {
                Some(x) => to.copy_from_slice(&x),
                None => to.fill(0.0),
            }
        }
        run.forward::<T>(&weights, [&mut gates, &mut un, &mut hs, &mut cs])?;
        put_rows::<T>(OP, &io.y.grad(false), h, |i| {
            let (at, b) = run.inner(i);
            run.live(at, b).then(|| &hs[((at + 1) * s.batch + b) * h..][..h])
        })?;
        for (last, data) in [(io.h_t, &hs), (io.c_t, &cs)] {
            let Some(last) = last else { continue };
            vector::put(OP, &last.grad(false), &data[rows * h..])?;
        }
        for (q, to) in [io.gru.r, io.gru.z, io.gru.n].into_iter().enumerate() {
            let Some(to) = to else { continue };
            put_rows::<T>(OP, &to.grad(false), h, |i| Some(&gates[i * wide + q * h..][..h]))?;
        }
        for (to, data) in [(io.h, hs), (io.c, cs), (io.gates, gates)] {
            data.store(OP, to)?;
        }
        io.gru.u.map_or(Ok(()), |to| vector::put(OP, &to.grad(false), &un))
    }
}

/// Blocks of the operands of a call.
fn blocks(io: &RnnFwd<'_>) -> Result<Blocks> {
    let w = &io.weights;
    let read = [Some(io.x), io.h_0, io.c_0, Some(w.w_ih), Some(w.w_hh), w.b_ih, w.b_hh, io.lengths];
    let g = &io.gru;
    let written = [&io.h_t, &io.c_t, &io.h, &io.c, &io.gates, &g.r, &g.z, &g.n, &g.u];
    let written = written.into_iter().flatten().chain([&io.y]).map(|v| v.block().id());
    Ok(Blocks(read.into_iter().flatten().map(|v| v.block().id()).chain(written).try_vec()?))
}

impl Run<'_> {
    /// Runs the parts of the batch on the buffers of gates, u_n, states and cell states.
    fn forward<T: Narrow>(&self, weights: &Weights, [gates, un, h, c]: [&mut [f32]; 4]) -> Result<()> {
        let (batch, width) = (self.s.batch, self.s.hidden);
        let gates = parts(gates, batch, self.gates())?.into_iter();
        let (un, h, c) = (parts(un, batch, width)?, parts(h, batch, width)?, parts(c, batch, width)?);
        let mut work = with_capacity(h.len())?;
        for (i, (((gates, un), h), c)) in gates.zip(un).zip(h).zip(c).enumerate() {
            work.try_push(Part { first: i * ROWS, gates, un, h, c })?;
        }
        let alone = work.len() == 1;
        // A reference, so that what divides the work is compiled once.
        let run: &(dyn Fn(Part<'_>) -> Result<()> + Sync) = &|part| part.run::<T>(self, weights, alone);
        work.into_par_iter().try_for_each(run)
    }
}

impl Part<'_> {
    /// All steps; `alone`: whether no other part runs beside it.
    fn run<T: Narrow>(mut self, run: &Run<'_>, w: &Weights, alone: bool) -> Result<()> {
        let n = self.h[0].len();
        let mut reset = filled(if run.cell == RnnCell::GruResetBefore { n } else { 0 }, 0.0)?;
        for at in 0..run.s.steps {
            self.products::<T>(run, w, at, &mut reset, alone)?;
            for b in 0..n / run.s.hidden {
                self.cell::<T>(run, at, b);
            }
        }
        Ok(())
    }

    /// What a step makes of its state: the sums of the gates, and u_n.
    fn products<T: Narrow>(
        &mut self,
        run: &Run<'_>,
        w: &Weights,
        at: usize,
        reset: &mut [f32],
        alone: bool,
    ) -> Result<()> {
        let (h, wide, gru) = (run.s.hidden, run.gates(), run.cell.is_gru());
        let (state, gates) = (&*self.h[at], &mut *self.gates[at]);
        let (batch, used) = (state.len() / h, if gru { 2 * h } else { wide });
        let to = (&mut *gates, packed(0, wide));
        multiply_panels(run.op, (batch, used, h), (state, packed(0, h)), &w.w_hh[0], 1.0, to, alone)?;
        gates.chunks_mut(wide).for_each(|z| vector::add(z, &w.bias));
        if !gru {
            return Ok(());
        }
        gates.chunks_mut(wide).for_each(|z| activate(Activation::Sigmoid, &mut z[..2 * h]));
        for ((r, z), x) in reset.chunks_mut(h).zip(gates.chunks(wide)).zip(state.chunks(h)) {
            fuse2(r, [&z[..h], x], |_, [r, x]| r * x);
            round::<T>(r);
        }
        let from = if reset.is_empty() { state } else { reset };
        let un = &mut *self.un[at];
        un.chunks_mut(h).for_each(|un| un.copy_from_slice(&w.bias_un));
        let to = (un, packed(0, h));
        multiply_panels(run.op, (batch, h, h), (from, packed(0, h)), &w.w_hh[1], 1.0, to, alone)
    }

    /// Gates and next state of row `b`.
    fn cell<T: Narrow>(&mut self, run: &Run<'_>, at: usize, b: usize) {
        let (h, wide) = (run.s.hidden, run.gates());
        let row = b * h..(b + 1) * h;
        let (before, after) = steps(&mut self.h, at);
        let (x, y) = (&before[row.clone()], &mut after[row.clone()]);
        let gates = &mut self.gates[at][b * wide..][..wide];
        let live = run.live(at, self.first + b);
        match run.cell {
            RnnCell::Lstm => {
                let (c, next) = steps(&mut self.c, at);
                let (c, next) = (&c[row.clone()], &mut next[row]);
                lstm(gates, c, next, y);
                round::<T>(next);
                if !live {
                    next.copy_from_slice(c);
                }
            }
            RnnCell::Gru | RnnCell::GruResetBefore => {
                let un = &mut self.un[at][row];
                gru_step(run.cell, gates, un, x, y);
                if !live {
                    un.fill(0.0);
                }
            }
            RnnCell::Tanh | RnnCell::Relu => {
                y.copy_from_slice(gates);
                let tanh = run.cell == RnnCell::Tanh;
                activate(if tanh { Activation::Tanh } else { Activation::Relu }, y);
            }
        }
        round::<T>(y);
        if !live {
            y.copy_from_slice(x);
            gates.fill(0.0);
        }
    }
}

/// Gates of a row after their activation, and its next cell and hidden state.
pub(super) fn lstm(z: &mut [f32], c: &[f32], next: &mut [f32], y: &mut [f32]) {
    let n = c.len();
    activate(Activation::Sigmoid, &mut z[..2 * n]);
    activate(Activation::Tanh, &mut z[2 * n..3 * n]);
    activate(Activation::Sigmoid, &mut z[3 * n..]);
    let [i, f, g, o] = [0, 1, 2, 3].map(|q| &z[q * n..(q + 1) * n]);
    fuse4(next, [i, f, g, c], |_, [i, f, g, c]| f * c + i * g);
    y.copy_from_slice(next);
    activate(Activation::Tanh, y);
    fuse1(y, [o], |y, [o]| o * y);
}

/// The candidate of a row, whose gates r and z are there, and its next state.
pub(super) fn gru_step(cell: RnnCell, gates: &mut [f32], un: &[f32], x: &[f32], y: &mut [f32]) {
    let (rz, m) = gates.split_at_mut(2 * x.len());
    let (r, z) = rz.split_at(x.len());
    match cell {
        RnnCell::GruResetBefore => fuse1(m, [un], |a, [u]| a + u),
        _ => fuse2(m, [r, un], |a, [r, u]| a + r * u),
    }
    activate(Activation::Tanh, m);
    fuse3(y, [z, m, x], |_, [z, m, x]| (1.0 - z) * m + z * x);
}
