//! The forward pass.

use super::*;
use crate::cpu::vector::activation::activate;
use crate::ops::activation::Activation;

/// What one part of the batch writes.
struct Part<'a> {
    /// Row of the batch that it begins with.
    first: usize,
    /// Products with the input weights, which become the gates [T, b, gates].
    gates: &'a mut [f32],
    /// u_n of a GRU [T, b, H].
    un: &'a mut [f32],
    /// States [T+1, b, H].
    h: &'a mut [f32],
    /// Cell states of an LSTM [T+1, b, H].
    c: &'a mut [f32],
}

/// Recurrent weights and biases.
struct Weights {
    /// W_hh^T [H, gates]: rows of the product are then contiguous in it, and need not be packed for each step.
    w_hh: Vec<f32>,
    /// Bias of u_n.
    bias: Vec<f32>,
}

/// The matrix with rows and columns exchanged, `columns` being those of x.
fn transposed(x: &[f32], columns: usize) -> Result<Vec<f32>> {
    let (mut y, rows) = (filled(x.len(), 0.0)?, x.len() / columns);
    for (r, row) in x.chunks(columns).enumerate() {
        row.iter().enumerate().for_each(|(c, x)| y[c * rows + r] = *x);
    }
    Ok(y)
}

/// Copies a bias to every row.
fn spread(rows: &mut [f32], bias: &[f32]) {
    rows.chunks_mut(bias.len()).for_each(|row| row.copy_from_slice(bias));
}

impl CpuBackend {
    pub(in crate::cpu::rnn) fn rnn_in_f32<T: Narrow>(
        &self,
        cell: RnnCell,
        p: &Recurrence,
        s: RnnSizes,
        io: RnnFwd<'_>,
    ) -> Result<()> {
        const OP: &str = "rnn";
        let lengths = super::super::row_lengths(OP, io.lengths, &s)?;
        let run = Run { op: OP, cell, p, s, lengths: &lengths };
        let (h, wide, order) = (s.hidden, run.gates(), run.order());
        let zeros = |n| filled(n, 0.0f32);
        let w_hh = values::<T>(OP, io.weights.w_hh)?;
        let mut bias = optional::<T>(OP, io.weights.b_hh)?.map_or_else(|| zeros(wide), Ok)?;
        let mut of_un = Vec::new();
        if cell.is_gru() {
            of_un = bias[2 * h..].try_to_vec()?;
            bias[2 * h..].fill(0.0);
        }
        if let Some(b_ih) = optional::<T>(OP, io.weights.b_ih)? {
            vector::add(&mut bias, &b_ih);
        }
        let mut gates = zeros(order.rows() * wide)?;
        spread(&mut gates, &bias);
        {
            let x = run.take::<T>(io.x, order, s.input, |at, b| run.outer(at, b))?;
            let w_ih = values::<T>(OP, io.weights.w_ih)?;
            let (size, to) = ((order.rows(), wide, s.input), (&mut *gates, packed(0, wide)));
            multiply(run.op, size, (&x, packed(0, s.input)), (&w_ih, turned(0, s.input)), 1.0, to, true)?;
        }
        let weights = Weights { w_hh: transposed(&w_hh, h)?, bias: of_un };
        let states = run.states();
        let mut un = zeros(if cell.is_gru() { order.rows() * h } else { 0 })?;
        let (mut hs, mut cs) = (zeros(states.rows() * h)?, Vec::new());
        if cell == RnnCell::Lstm {
            cs = zeros(states.rows() * h)?;
        }
        for (to, first) in [(&mut hs, io.h_0), (&mut cs, io.c_0)] {
            for (b, x) in optional::<T>(OP, first)?.iter().flat_map(|v| v.chunks(h)).enumerate() {
                to[states.row(0, b) * h..][..h].copy_from_slice(x);
            }
        }
        self.parts::<T>(&run, &weights, [&mut gates, &mut un, &mut hs, &mut cs])?;
        put_rows::<T>(run.op, &io.y.grad(false), h, |i| {
            let (at, b) = run.inner(i);
            run.live(at, b).then(|| &hs[states.row(at + 1, b) * h..][..h])
        })?;
        for (last, data) in [(io.h_t, &hs), (io.c_t, &cs)] {
            let Some(last) = last else { continue };
            put_rows::<T>(run.op, &last.grad(false), h, |b| Some(&data[states.row(s.steps, b) * h..][..h]))?;
        }
        run.keep::<T>(io.h, states, &hs, h, 0..h)?;
        run.keep::<T>(io.c, states, &cs, h, 0..h)?;
        run.keep::<T>(io.gates, order, &gates, wide, 0..wide)?;
        for (q, to) in [io.gru.r, io.gru.z, io.gru.n].into_iter().enumerate() {
            run.keep::<T>(to, order, &gates, wide, q * h..(q + 1) * h)?;
        }
        run.keep::<T>(io.gru.u, order, &un, h, 0..h)
    }

    /// Runs the parts of the batch on the buffers of gates, u_n, states and cell states.
    fn parts<T: Narrow>(
        &self,
        run: &Run<'_>,
        weights: &Weights,
        [gates, un, h, c]: [&mut Vec<f32>; 4],
    ) -> Result<()> {
        let (n, width) = (run.s.batch.div_ceil(ROWS), run.s.hidden);
        let (each, states) = (ROWS * run.s.steps, ROWS * (run.s.steps + 1) * width);
        let mut gates = gates.chunks_mut(each * run.gates());
        let (mut un, mut h, mut c) =
            (un.chunks_mut(each * width), h.chunks_mut(states), c.chunks_mut(states));
        let mut parts = with_capacity(n)?;
        for i in 0..n {
            parts.try_push(Part {
                first: i * ROWS,
                gates: gates.next().unwrap_or_default(),
                un: un.next().unwrap_or_default(),
                h: h.next().unwrap_or_default(),
                c: c.next().unwrap_or_default(),
            })?;
        }
        parts.into_par_iter().try_for_each(|part| part.run::<T>(run, weights, n == 1))
    }
}

impl Part<'_> {
    /// All steps; `alone`: whether no other part runs beside it.
    fn run<T: Narrow>(self, run: &Run<'_>, w: &Weights, alone: bool) -> Result<()> {
        let (h, wide) = (run.s.hidden, run.gates());
        let n = self.h.len() / (run.s.steps + 1);
        let batch = n / h;
        let gru = run.cell.is_gru();
        let used = if gru { 2 * h } else { wide };
        let mut reset = filled(if run.cell == RnnCell::GruResetBefore { n } else { 0 }, 0.0)?;
        for at in 0..run.s.steps {
            let (before, after) = self.h[at * n..(at + 2) * n].split_at_mut(n);
            let gates = &mut self.gates[at * batch * wide..][..batch * wide];
            let size = (batch, used, h);
            let to = (&mut *gates, packed(0, wide));
            multiply(run.op, size, (before, packed(0, h)), (&w.w_hh, packed(0, wide)), 1.0, to, alone)?;
            let mut un: &mut [f32] = &mut [];
            if gru {
                gates.chunks_mut(wide).for_each(|z| activate(Activation::Sigmoid, &mut z[..2 * h]));
                un = &mut self.un[at * n..][..n];
                spread(un, &w.bias);
                for ((r, z), x) in reset.chunks_mut(h).zip(gates.chunks(wide)).zip(before.chunks(h)) {
                    fuse2(r, [&z[..h], x], |_, [r, x]| r * x);
                    round::<T>(r);
                }
                let from = if reset.is_empty() { &*before } else { &*reset };
                let columns = packed(2 * h, wide);
                let to = (&mut *un, packed(0, h));
                multiply(run.op, (batch, h, h), (from, packed(0, h)), (&w.w_hh, columns), 1.0, to, alone)?;
            }
            for b in 0..batch {
                let row = b * h..(b + 1) * h;
                let (gates, x, y) =
                    (&mut gates[b * wide..][..wide], &before[row.clone()], &mut after[row.clone()]);
                let live = run.live(at, self.first + b);
                match run.cell {
                    RnnCell::Lstm => {
                        let (c, next) = self.c[at * n..(at + 2) * n].split_at_mut(n);
                        let (c, next) = (&c[row.clone()], &mut next[row]);
                        lstm(gates, c, next, y);
                        round::<T>(next);
                        if !live {
                            next.copy_from_slice(c);
                        }
                    }
                    RnnCell::Gru | RnnCell::GruResetBefore => {
                        let un = &mut un[row];
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
        Ok(())
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
