//! Recurrent networks on the CPU, in f64; states, and gradients of gates, pass through the storage type.

pub(super) mod conv;
mod vectorized;

use crate::cpu::matmul::{Place, product};
use crate::cpu::scratch::*;
use crate::cpu::vector::{matrix_column_sums, with_narrow};
use crate::cpu::*;
use crate::ops::gemm::Precision;
use crate::ops::rnn::*;

/// A matrix of f64: elements, rows, columns, and whether it stands for its transpose.
#[derive(Clone, Copy)]
pub(in crate::cpu) struct Matrix<'a>(pub &'a [f64], pub usize, pub usize, pub bool);

impl Matrix<'_> {
    fn place(&self) -> Place {
        let (rows, cols) = if self.3 { (1, self.2) } else { (self.2, 1) };
        Place { at: 0, rows, cols }
    }
}

/// a b, row-major.
pub(in crate::cpu) fn times(op: &'static str, a: Matrix<'_>, b: Matrix<'_>) -> Result<Vec<f64>> {
    let (m, k) = if a.3 { (a.2, a.1) } else { (a.1, a.2) };
    let n = if b.3 { b.1 } else { b.2 };
    let mut y = filled(m * n, 0.0)?;
    if m * n * k == 0 {
        return Ok(y);
    }
    let place = Place { at: 0, rows: n, cols: 1 };
    let threads = m * n * k > 1 << 18;
    product(op, (m, n, k), 1.0, (a.0, a.place()), (b.0, b.place()), 0.0, (&mut y, place), threads)?;
    Ok(y)
}

/// The value after a trip through a storage type.
pub(in crate::cpu) fn round(dtype: DType, x: f64) -> f64 {
    with_dtype!(dtype, T => <T as HostElement>::from_f64(x).to_f64())
}

pub(in crate::cpu) fn logistic(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

pub(in crate::cpu) fn optional(op: &'static str, v: Option<View<'_>>, len: usize) -> Result<Vec<f64>> {
    v.map_or_else(|| filled(len, 0.0), |v| gather_f64(op, v))
}

pub(in crate::cpu) fn keep(op: &'static str, to: &Option<ViewMut<'_>>, data: &[f64]) -> Result<()> {
    to.as_ref().map_or(Ok(()), |to| store_f64(op, to, data))
}

pub(in crate::cpu) fn give(op: &'static str, to: &Option<GradMut<'_>>, data: &[f64]) -> Result<()> {
    to.as_ref().map_or(Ok(()), |to| store_grad(op, to, data))
}

/// Adds a bias to every row.
fn add_rows(x: &mut [f64], bias: &[f64]) {
    for row in x.chunks_mut(bias.len().max(1)) {
        row.iter_mut().zip(bias).for_each(|(v, b)| *v += b);
    }
}

/// Gates i, f, g, o before their activation become the gates; returns the next cell and hidden state.
pub(in crate::cpu) fn lstm(z: &mut [f64; 4], c: f64, peep: [f64; 3]) -> (f64, f64) {
    z[0] = logistic(z[0] + if peep[0] == 0.0 { 0.0 } else { peep[0] * c });
    z[1] = logistic(z[1] + if peep[1] == 0.0 { 0.0 } else { peep[1] * c });
    z[2] = z[2].tanh();
    let next = z[1] * c + z[0] * z[2];
    z[3] = logistic(z[3] + if peep[2] == 0.0 { 0.0 } else { peep[2] * next });
    (next, z[3] * next.tanh())
}

/// Gradients of the gates before their activation, and of the cell state.
pub(in crate::cpu) fn lstm_grad(
    [i, f, g, o]: [f64; 4],
    c: f64,
    next: f64,
    dh: f64,
    dc: f64,
    peep: [f64; 3],
) -> ([f64; 4], f64) {
    let t = next.tanh();
    let d_o = dh * t * o * (1.0 - o);
    let dc = dc + dh * o * (1.0 - t * t) + if peep[2] == 0.0 { 0.0 } else { d_o * peep[2] };
    let (d_i, d_f) = (dc * g * i * (1.0 - i), dc * c * f * (1.0 - f));
    let d_g = dc * i * (1.0 - g * g);
    let through = [d_i * peep[0], d_f * peep[1]];
    ([d_i, d_f, d_g, d_o], dc * f + if peep == [0.0; 3] { 0.0 } else { through[0] + through[1] })
}

/// Gradients of a_r, a_z, a_n and u_n, and the direct one of h.
fn gru_grad(r: f64, z: f64, n: f64, u: f64, h: f64, dh: f64) -> ([f64; 4], f64) {
    let dn = dh * (1.0 - z) * (1.0 - n * n);
    ([dn * u * r * (1.0 - r), dh * (h - n) * z * (1.0 - z), dn, dn * r], dh * z)
}

/// Row of step t and batch entry b in x and y.
fn row(p: &Recurrence, s: &RnnSizes, t: usize, b: usize) -> usize {
    if p.batch_first { b * s.steps + t } else { t * s.batch + b }
}

/// Lengths of the rows.
fn row_lengths(op: &'static str, v: Option<View<'_>>, s: &RnnSizes) -> Result<Vec<i64>> {
    match v {
        Some(v) => gather::<i32>(op, v)?.into_iter().map(i64::from).try_vec(),
        None => filled(s.batch, i64::MAX),
    }
}

impl RnnOps for Kernels {
    fn rnn(&self, cell: RnnCell, p: &Recurrence, io: RnnFwd<'_>) -> Result<()> {
        const OP: &str = "rnn";
        let s = check_rnn(cell, p, &io)?;
        let _timed = self.count("rnn");
        if self.in_f32(OP, io.x.dtype(), vectorized::why_not(&s))? {
            return with_narrow!(io.x.dtype(), T => self.rnn_in_f32::<T>(cell, p, s, io));
        }
        let (dt, h, rows, n) = (io.x.dtype(), s.hidden, s.gates * s.hidden, s.batch * s.hidden);
        let w = io.weights;
        let (w_ih, w_hh) = (gather_f64(OP, w.w_ih)?, gather_f64(OP, w.w_hh)?);
        let bias = optional(OP, w.b_hh, rows)?;
        let lengths = row_lengths(OP, io.lengths, &s)?;
        let count = s.steps * s.batch;
        let x = gather_f64(OP, io.x)?;
        let mut a = times(OP, Matrix(&x, count, s.input, false), Matrix(&w_ih, rows, s.input, true))?;
        add_rows(&mut a, &optional(OP, w.b_ih, rows)?);
        let (mut hs, mut cs) = (optional(OP, io.h_0, n)?, optional(OP, io.c_0, n)?);
        let (mut y, mut gates) = (filled(count * h, 0.0)?, filled(count * rows, 0.0)?);
        let one = || filled(count * h, 0.0);
        let mut saved = [one()?, one()?, one()?, one()?];
        let before = cell == RnnCell::GruResetBefore;
        for at in 0..if n == 0 { 0 } else { s.steps } {
            let t = s.time(p, at);
            let (state, cells) = (hs[at * n..].try_to_vec()?, cs[at * n..].try_to_vec()?);
            let mut u = times(OP, Matrix(&state, s.batch, h, false), Matrix(&w_hh, rows, h, true))?;
            add_rows(&mut u, &bias);
            let gate = |b: usize, q: usize, j: usize| {
                a[row(p, &s, t, b) * rows + q * h + j] + u[b * rows + q * h + j]
            };
            if before {
                let rh: Vec<f64> =
                    (0..n).map(|e| round(dt, logistic(gate(e / h, 0, e % h)) * state[e])).try_vec()?;
                let mut un =
                    times(OP, Matrix(&rh, s.batch, h, false), Matrix(&w_hh[2 * h * h..], h, h, true))?;
                add_rows(&mut un, &bias[2 * h..]);
                for e in 0..n {
                    u[e / h * rows + 2 * h + e % h] = un[e];
                }
            }
            for e in 0..n {
                let (b, j) = (e / h, e % h);
                let gate = |q: usize| a[row(p, &s, t, b) * rows + q * h + j] + u[b * rows + q * h + j];
                if (t as i64) >= lengths[b] {
                    hs.try_push(state[e])?;
                    cs.try_push(cells[e])?;
                    continue;
                }
                if cell != RnnCell::Lstm {
                    cs.try_push(cells[e])?;
                }
                let next = match cell {
                    RnnCell::Lstm => {
                        let mut z = [0, 1, 2, 3].map(gate);
                        let (c, next) = lstm(&mut z, cells[e], [0.0; 3]);
                        cs.try_push(round(dt, c))?;
                        (0..4).for_each(|q| gates[(at * s.batch + b) * rows + q * h + j] = z[q]);
                        next
                    }
                    RnnCell::Gru | RnnCell::GruResetBefore => {
                        let (r, z, un) = (logistic(gate(0)), logistic(gate(1)), u[b * rows + 2 * h + j]);
                        let an = a[row(p, &s, t, b) * rows + 2 * h + j];
                        let m = if before { an + un } else { an + r * un }.tanh();
                        for (to, v) in saved.iter_mut().zip([r, z, m, un]) {
                            to[at * n + e] = v;
                        }
                        (1.0 - z) * m + z * state[e]
                    }
                    RnnCell::Tanh => gate(0).tanh(),
                    RnnCell::Relu => {
                        let v = gate(0);
                        if v > 0.0 || v.is_nan() { v } else { 0.0 }
                    }
                };
                y[row(p, &s, t, b) * h + j] = next;
                hs.try_push(round(dt, next))?;
            }
        }
        let end = s.steps * n;
        store_f64(OP, &io.y, &y)?;
        keep(OP, &io.h_t, &hs[end..])?;
        keep(OP, &io.h, &hs)?;
        if cell == RnnCell::Lstm {
            keep(OP, &io.c_t, &cs[end..])?;
            keep(OP, &io.c, &cs)?;
        }
        keep(OP, &io.gates, &gates)?;
        let g = &io.gru;
        [&g.r, &g.z, &g.n, &g.u].into_iter().zip(&saved).try_for_each(|(to, v)| keep(OP, to, v))
    }

    fn rnn_gates(
        &self,
        _: Precision,
        x: View<'_>,
        h: View<'_>,
        weights: RnnWeights<'_>,
        z: ViewMut<'_>,
    ) -> Result<()> {
        const OP: &str = "rnn_gates";
        check_rnn_gates(&x, &h, &weights, &z)?;
        let _timed = self.count("rnn_gates");
        if self.in_f32(OP, x.dtype(), vectorized::without_elements(&[z.numel(), x.numel(), h.numel()]))? {
            return with_narrow!(x.dtype(), T => self.rnn_gates_in_f32::<T>(x, h, weights, z));
        }
        let rows = z.shape()[1];
        let mut sum = filled(z.numel(), 0.0)?;
        for (v, w, b) in [(x, weights.w_ih, weights.b_ih), (h, weights.w_hh, weights.b_hh)] {
            let (m, k) = (v.shape()[0], v.shape()[1]);
            let (v, w) = (gather_f64(OP, v)?, gather_f64(OP, w)?);
            let y = times(OP, Matrix(&v, m, k, false), Matrix(&w, rows, k, true))?;
            sum.iter_mut().zip(&y).for_each(|(s, y)| *s += y);
            add_rows(&mut sum, &optional(OP, b, rows)?);
        }
        store_f64(OP, &z, &sum)
    }

    fn lstm_cell(&self, io: LstmCellFwd<'_>) -> Result<()> {
        const OP: &str = "lstm_cell";
        let [b, h] = check_lstm_cell(&io)?;
        let _timed = self.count("lstm_cell");
        if self.in_f32(OP, io.z.dtype(), vectorized::without_elements(&[b, h]))? {
            return with_narrow!(io.z.dtype(), T => self.lstm_cell_in_f32::<T>([b, h], io));
        }
        let (z, c) = (gather_f64(OP, io.z)?, gather_f64(OP, io.c)?);
        let (mut hs, mut cs, mut gates) = (Vec::new(), Vec::new(), z.try_to_vec()?);
        for e in 0..b * h {
            let at = |q: usize| (4 * (e / h) + q) * h + e % h;
            let mut v = [0, 1, 2, 3].map(|q| z[at(q)]);
            let (c, next) = lstm(&mut v, c[e], [0.0; 3]);
            (0..4).for_each(|q| gates[at(q)] = v[q]);
            cs.try_push(c)?;
            hs.try_push(next)?;
        }
        store_f64(OP, &io.h_next, &hs)?;
        store_f64(OP, &io.c_next, &cs)?;
        keep(OP, &io.gates, &gates)
    }

    fn lstm_cell_bwd(&self, io: LstmCellBwd<'_>) -> Result<()> {
        const OP: &str = "lstm_cell_bwd";
        let [b, h] = check_lstm_cell_bwd(&io)?;
        let _timed = self.count("lstm_cell_bwd");
        if self.in_f32(OP, io.c.dtype(), vectorized::without_elements(&[b, h]))? {
            return with_narrow!(io.c.dtype(), T => self.lstm_cell_bwd_in_f32::<T>([b, h], io));
        }
        let (dh, dc) = (optional(OP, io.dh_next, b * h)?, optional(OP, io.dc_next, b * h)?);
        let (gates, c, next) = (gather_f64(OP, io.gates)?, gather_f64(OP, io.c)?, gather_f64(OP, io.c_next)?);
        let (mut dz, mut back) = (filled(4 * b * h, 0.0)?, Vec::new());
        for e in 0..b * h {
            let at = |q: usize| (4 * (e / h) + q) * h + e % h;
            let g = [0, 1, 2, 3].map(|q| gates[at(q)]);
            let (d, dc) = lstm_grad(g, c[e], next[e], dh[e], dc[e], [0.0; 3]);
            (0..4).for_each(|q| dz[at(q)] = d[q]);
            back.try_push(dc)?;
        }
        store_grad(OP, &io.dz, &dz)?;
        give(OP, &io.dc, &back)
    }

    fn gru_cell(&self, io: GruCellFwd<'_>) -> Result<()> {
        const OP: &str = "gru_cell";
        let [b, h] = check_gru_cell(&io)?;
        let _timed = self.count("gru_cell");
        if self.in_f32(OP, io.a.dtype(), vectorized::without_elements(&[b, h]))? {
            return with_narrow!(io.a.dtype(), T => self.gru_cell_in_f32::<T>([b, h], io));
        }
        let (a, u, state) = (gather_f64(OP, io.a)?, gather_f64(OP, io.u)?, gather_f64(OP, io.h)?);
        let mut out = [(); 4].map(|_| Vec::new());
        for (e, &state) in state.iter().enumerate().take(b * h) {
            let at = |q: usize| (3 * (e / h) + q) * h + e % h;
            let (r, z) = (logistic(a[at(0)] + u[at(0)]), logistic(a[at(1)] + u[at(1)]));
            let n = (a[at(2)] + r * u[at(2)]).tanh();
            for (to, v) in out.iter_mut().zip([(1.0 - z) * n + z * state, r, z, n]) {
                to.try_push(v)?;
            }
        }
        store_f64(OP, &io.h_next, &out[0])?;
        [&io.r, &io.z, &io.n].into_iter().zip(&out[1..]).try_for_each(|(to, v)| keep(OP, to, v))
    }

    fn gru_cell_bwd(&self, io: GruCellBwd<'_>) -> Result<()> {
        const OP: &str = "gru_cell_bwd";
        let [b, h] = check_gru_cell_bwd(&io)?;
        let _timed = self.count("gru_cell_bwd");
        if self.in_f32(OP, io.h.dtype(), vectorized::without_elements(&[b, h]))? {
            return with_narrow!(io.h.dtype(), T => self.gru_cell_bwd_in_f32::<T>([b, h], io));
        }
        let g = io.gates;
        let (dh, state) = (gather_f64(OP, io.dh_next)?, gather_f64(OP, io.h)?);
        let (r, z) = (gather_f64(OP, g.r)?, gather_f64(OP, g.z)?);
        let (n, u) = (gather_f64(OP, g.n)?, gather_f64(OP, g.u)?);
        let (mut da, mut du, mut back) = (filled(3 * b * h, 0.0)?, filled(3 * b * h, 0.0)?, Vec::new());
        for e in 0..b * h {
            let at = |q: usize| (3 * (e / h) + q) * h + e % h;
            let (d, direct) = gru_grad(r[e], z[e], n[e], u[e], state[e], dh[e]);
            (0..3).for_each(|q| da[at(q)] = d[q]);
            (0..3).for_each(|q| du[at(q)] = if q == 2 { d[3] } else { d[q] });
            back.try_push(direct)?;
        }
        store_grad(OP, &io.da, &da)?;
        store_grad(OP, &io.du, &du)?;
        give(OP, &io.dh, &back)
    }
}

impl RnnBackwardOps for Kernels {
    fn rnn_bwd(&self, cell: RnnCell, p: &Recurrence, io: RnnBwd<'_>) -> Result<()> {
        const OP: &str = "rnn_bwd";
        let s = check_rnn_bwd(cell, p, &io)?;
        let _timed = self.count("rnn_bwd");
        if self.in_f32(OP, io.x.dtype(), vectorized::why_not(&s))? {
            return with_narrow!(io.x.dtype(), T => self.rnn_bwd_in_f32::<T>(cell, p, s, io));
        }
        let (dt, h, rows, n) = (io.x.dtype(), s.hidden, s.gates * s.hidden, s.batch * s.hidden);
        let count = s.steps * s.batch;
        let (w_ih, w_hh) = (gather_f64(OP, io.weights.w_ih)?, gather_f64(OP, io.weights.w_hh)?);
        let lengths = row_lengths(OP, io.lengths, &s)?;
        let dy = optional(OP, io.dy, count * h)?;
        let (mut dh, mut dc) = (optional(OP, io.dh_t, n)?, optional(OP, io.dc_t, n)?);
        let (hs, cs) = (gather_f64(OP, io.h)?, optional(OP, io.c, 0)?);
        let gates = optional(OP, io.gates, 0)?;
        let gru = match io.gru {
            Some(g) => [g.r, g.z, g.n, g.u].map(|v| gather_f64(OP, v)),
            None => [(); 4].map(|_| Ok(Vec::new())),
        };
        let [r, z, m, un] = gru;
        let (r, z, m, un) = (r?, z?, m?, un?);
        let before = cell == RnnCell::GruResetBefore;
        // Gradients of the gates by step: of the products with W_hh, and of those with W_ih in the order of x.
        let (mut du, mut da) = (filled(count * rows, 0.0)?, filled(count * rows, 0.0)?);
        let mut rh = filled(if before { count * h } else { 0 }, 0.0)?;
        for at in (0..if n == 0 { 0 } else { s.steps }).rev() {
            let t = s.time(p, at);
            let live = |e: usize| (t as i64) < lengths[e / h];
            // What the products with the recurrent weights read, and the rest of the gradient of the state.
            let first = at * s.batch * rows;
            let mut put = |e: usize, q: usize, a: f64, u: f64| {
                let (b, j) = (e / h, e % h);
                du[first + b * rows + q * h + j] = round(dt, u);
                da[row(p, &s, t, b) * rows + q * h + j] = round(dt, a);
            };
            for e in (0..n).filter(|&e| live(e)) {
                let up = dh[e] + dy[row(p, &s, t, e / h) * h + e % h];
                let at_n = at * n + e;
                match cell {
                    RnnCell::Lstm => {
                        let g = [0, 1, 2, 3].map(|q| gates[first + e / h * rows + q * h + e % h]);
                        let (d, back) = lstm_grad(g, cs[at_n], cs[at_n + n], up, dc[e], [0.0; 3]);
                        (0..4).for_each(|q| put(e, q, d[q], d[q]));
                        (dh[e], dc[e]) = (0.0, back);
                    }
                    RnnCell::Gru | RnnCell::GruResetBefore => {
                        let (d, direct) = gru_grad(r[at_n], z[at_n], m[at_n], un[at_n], hs[at_n], up);
                        if !before {
                            put(e, 0, d[0], d[0]);
                        }
                        put(e, 1, d[1], d[1]);
                        put(e, 2, d[2], if before { d[2] } else { d[3] });
                        dh[e] = direct;
                    }
                    RnnCell::Tanh | RnnCell::Relu => {
                        let out = hs[at_n + n];
                        let slope =
                            if cell == RnnCell::Tanh { 1.0 - out * out } else { f64::from(out > 0.0) };
                        put(e, 0, up * slope, up * slope);
                        dh[e] = 0.0;
                    }
                }
            }
            if before {
                let dn: Vec<f64> = (0..n).map(|e| du[first + e / h * rows + 2 * h + e % h]).try_vec()?;
                let d = times(OP, Matrix(&dn, s.batch, h, false), Matrix(&w_hh[2 * h * h..], h, h, false))?;
                for e in (0..n).filter(|&e| live(e)) {
                    let (gate, state) = (r[at * n + e], hs[at * n + e]);
                    let v = round(dt, d[e] * state * gate * (1.0 - gate));
                    du[first + e / h * rows + e % h] = v;
                    da[row(p, &s, t, e / h) * rows + e % h] = v;
                    rh[at * n + e] = round(dt, gate * state);
                    dh[e] += d[e] * gate;
                }
            }
            let used = if before { 2 * h } else { rows };
            let d: Vec<f64> =
                (0..s.batch).flat_map(|b| du[first + b * rows..][..used].iter().copied()).try_vec()?;
            let back =
                times(OP, Matrix(&d, s.batch, used, false), Matrix(&w_hh[..used * h], used, h, false))?;
            for e in (0..n).filter(|&e| live(e)) {
                dh[e] += back[e];
            }
        }
        let g = io.grads;
        give(OP, &g.dh_0, &dh)?;
        give(OP, &g.dc_0, &dc)?;
        let x = gather_f64(OP, io.x)?;
        give(OP, &g.dx, &times(OP, Matrix(&da, count, rows, false), Matrix(&w_ih, rows, s.input, false))?)?;
        give(OP, &g.dw_ih, &times(OP, Matrix(&da, count, rows, true), Matrix(&x, count, s.input, false))?)?;
        let mut dw = times(OP, Matrix(&du, count, rows, true), Matrix(&hs[..count * h], count, h, false))?;
        if before {
            let last = times(OP, Matrix(&du, count, rows, true), Matrix(&rh, count, h, false))?;
            dw[2 * h * h..].copy_from_slice(&last[2 * h * h..]);
        }
        give(OP, &g.dw_hh, &dw)?;
        give(OP, &g.db_ih, &matrix_column_sums(&da, rows)?)?;
        give(OP, &g.db_hh, &matrix_column_sums(&du, rows)?)
    }
}
