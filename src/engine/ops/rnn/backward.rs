//! Recurrent networks: back-propagation through time.

use crate::spec::kernels::rnn::*;
use crate::buffer::{Buffer, GradMut, View, ViewMut};
use crate::driver::Arg;
use crate::dtype::DType;
use crate::engine::Engine;
use crate::engine::launch::Grid;
use crate::engine::ops::rnn::{fused_grid, part, part_mut};
use crate::error::Result;
use crate::layout::Layout;
use crate::ops::check;
use crate::ops::gemm::Gemm;
use crate::ops::reduce::ReduceOps;
use crate::ops::rnn::*;
use crate::ops::shape::ShapeOps;

/// Columns `first .. first + width` of contiguous rows of `row` elements, from element `start` of a buffer.
fn columns(
    b: &Buffer,
    start: usize,
    [rows, row]: [usize; 2],
    first: usize,
    width: usize,
) -> Result<View<'_>> {
    // An empty matrix may lie in an empty buffer.
    let at = if rows * width == 0 { 0 } else { start + first };
    b.view().with_layout(check::layout("rnn_bwd", "shape", Layout::strided(&[rows, width], &[row, 1], at))?)
}

/// What the loop over the steps leaves behind.
struct Swept {
    /// Gradients of the gates of all steps [T, B, k H] in the order of processing: those of the products with W_hh.
    dz: Buffer,
    /// The same of the products with W_ih in the order of x, where they differ.
    dx: Option<Buffer>,
    /// Gradients of the first states, in the arithmetic type.
    dh: Buffer,
    dc: Option<Buffer>,
    /// r h of all steps, where the reset gate comes before the product.
    rh: Option<Buffer>,
}

impl Engine {
    /// y (+)= x for a contiguous x in the arithmetic type.
    pub(in crate::engine::ops) fn store_sum(&self, x: &View<'_>, y: &GradMut<'_>) -> Result<()> {
        let (v, n) = (y.out.as_view(), y.out.numel());
        let args = [self.arg_in(x), self.arg_in(&v), Arg::I64(n as i64), Arg::I32(y.accumulate as i32)];
        self.launch_list(&RNN_STORE.spec, v.dtype(), "", Grid::Stride(n), &args)
    }

    fn sweep(&self, cell: RnnCell, p: &Recurrence, io: &RnnBwd<'_>, s: RnnSizes) -> Result<Swept> {
        const OP: &str = "rnn_bwd";
        let (dt, acc) = (io.x.dtype(), io.x.dtype().accumulator());
        let (b, h, rows, n) = (s.batch, s.hidden, s.gates * s.hidden, s.batch * s.hidden);
        let (lstm, before) = (cell == RnnCell::Lstm, cell == RnnCell::GruResetBefore);
        let new = |there: bool, dtype: DType, len| {
            if there { self.scratch(dtype, len).map(Some) } else { Ok(None) }
        };
        let apart = p.reverse || p.batch_first || cell == RnnCell::Gru;
        let w = Swept {
            dz: self.scratch(dt, s.steps * b * rows)?,
            dx: new(apart, dt, s.steps * b * rows)?,
            dh: self.scratch(acc, n)?,
            dc: new(lstm, acc, n)?,
            rh: new(before, dt, s.steps * n)?,
        };
        let drh = new(before, acc, n)?;
        let fused = n > 0 && s.steps > 1 && self.fuses_steps(OP, cell, dt, [b, h])?;
        let turned = new(fused, dt, rows * h)?;
        if let Some(t) = &turned {
            let columns = io.weights.w_hh.map("w_hh", |l| l.transpose(0, 1))?;
            self.strided_copy(columns, part_mut(t, 0, &[h, rows])?.into())?;
        }
        let (dz, dx, dh) = (w.dz.view(), w.dx.as_ref().map(|d| d.view()), w.dh.view());
        let (dc, rh) = (w.dc.as_ref().map(|d| d.view()), w.rh.as_ref().map(|d| d.view()));
        let g = Gemm::new().precision(p.precision);
        let keep = io.lengths.is_some() || cell.is_gru();
        let ((step_x, row_x), (step_y, row_y)) = (s.stride(p, rows), s.stride(p, h));
        let state = |v: &Option<View<'_>>, at: usize| self.arg_part_opt(v.as_ref(), at * n);
        // Without states there is nothing to step through, however many steps there are.
        for at in (0..if n == 0 { 0 } else { s.steps }).rev() {
            let (t, first) = (s.time(p, at), Arg::I32((at + 1 == s.steps) as i32));
            let dy = self.arg_part_opt(io.dy.as_ref(), t * step_y);
            let (dz_now, dx_now) =
                (self.arg_part(&dz, at * b * rows), self.arg_part_opt(dx.as_ref(), t * step_x));
            let lengths = self.arg_opt(io.lengths.as_ref());
            let (dh_t, time) = (self.arg_opt(io.dh_t.as_ref()), Arg::I32(t as i32));
            let sizes = [n, h, row_y, row_x].map(|v| Arg::I64(v as i64));
            let hidden = Some(io.h);
            // The fused step makes the product with the step behind it, which the first one processed does not have.
            let behind = turned.as_ref().filter(|_| at + 1 < s.steps);
            let behind = behind.map(|w| [self.arg_in(&w.view()), self.arg_part(&dz, (at + 1) * b * rows)]);
            let (kernel, args) = match (cell, io.gru, &behind) {
                (RnnCell::Lstm, _, Some(behind)) => {
                    let gates = self.arg_part_opt(io.gates.as_ref(), at * b * rows);
                    let mut args = behind.to_vec();
                    args.extend([
                        gates,
                        state(&io.c, at),
                        state(&io.c, at + 1),
                        dy,
                        lengths,
                        self.arg_in(&dh),
                    ]);
                    args.extend([self.arg_opt(dc.as_ref()), dz_now, dx_now]);
                    args.extend(sizes);
                    args.extend([time, Arg::I32(keep as i32)]);
                    (&LSTM_FUSED_BWD.spec, args)
                }
                (RnnCell::Gru, Some(GruGates { r, z, n: m, u }), Some(behind)) => {
                    let mut args = behind.to_vec();
                    args.extend([r, z, m, u, io.h].iter().map(|v| self.arg_part(v, at * n)));
                    args.extend([dy, lengths, self.arg_in(&dh), dz_now, dx_now]);
                    args.extend(sizes);
                    args.push(time);
                    (&GRU_FUSED_BWD.spec, args)
                }
                (RnnCell::Lstm, ..) => {
                    let gates = self.arg_part_opt(io.gates.as_ref(), at * b * rows);
                    let mut args = vec![gates, state(&io.c, at), state(&io.c, at + 1), dy, dh_t];
                    args.extend([self.arg_opt(io.dc_t.as_ref()), lengths, self.arg_in(&dh)]);
                    args.extend([self.arg_opt(dc.as_ref()), dz_now, dx_now]);
                    args.extend(sizes);
                    args.extend([time, first, Arg::I32(keep as i32)]);
                    (&LSTM_STEP_BWD.spec, args)
                }
                (_, Some(gates), _) => {
                    let GruGates { r, z, n: m, u } = gates;
                    let mut args: Vec<_> =
                        [r, z, m, u, io.h].iter().map(|v| self.arg_part(v, at * n)).collect();
                    args.extend([dy, dh_t, lengths, self.arg_in(&dh), dz_now, dx_now]);
                    args.extend(sizes);
                    args.extend([time, first, Arg::I32(before as i32)]);
                    (&GRU_STEP_BWD.spec, args)
                }
                _ => {
                    let mut args =
                        vec![state(&hidden, at + 1), dy, dh_t, lengths, self.arg_in(&dh), dz_now, dx_now];
                    args.extend(sizes);
                    args.extend([
                        time,
                        first,
                        Arg::I32(keep as i32),
                        Arg::I32((cell == RnnCell::Relu) as i32),
                    ]);
                    (&PLAIN_STEP_BWD.spec, args)
                }
            };
            let grid = if behind.is_some() { fused_grid(b, h) } else { Grid::Stride(n) };
            self.launch_list(kernel, dt, "", grid, &args)?;
            let mut used = rows;
            if let (Some(drh), Some(rh), Some(gates)) = (&drh, &rh, io.gru) {
                used = 2 * h;
                let w_n = part(&io.weights.w_hh, 2 * h * h, &[h, h])?;
                let dn = columns(&w.dz, at * b * rows, [b, rows], 2 * h, h)?;
                self.multiply(&g, (dn, w_n), part_mut(drh, 0, &[b, h])?, 0.0, None)?;
                let mut args =
                    vec![self.arg_in(&drh.view()), self.arg_part(&gates.r, at * n), state(&hidden, at)];
                args.extend([lengths, self.arg_in(&dh), dz_now, dx_now, self.arg_part(rh, at * n)]);
                args.extend([n, h, row_x].map(|v| Arg::I64(v as i64)));
                args.push(time);
                self.launch_list(&GRU_RESET_BWD.spec, dt, "", Grid::Stride(n), &args)?;
            }
            if (at > 0 && !fused) || (at == 0 && io.grads.dh_0.is_some()) {
                let d = columns(&w.dz, at * b * rows, [b, rows], 0, used)?;
                let weights = part(&io.weights.w_hh, 0, &[used, h])?;
                let beta = if keep { 1.0 } else { 0.0 };
                self.multiply(&g, (d, weights), part_mut(&w.dh, 0, &[b, h])?, beta, None)?;
            }
        }
        Ok(w)
    }
}

impl RnnBackwardOps for Engine {
    fn rnn_bwd(&self, cell: RnnCell, p: &Recurrence, io: RnnBwd<'_>) -> Result<()> {
        const OP: &str = "rnn_bwd";
        let s = check_rnn_bwd(cell, p, &io)?;
        let (w, gr) = (io.weights, &io.grads);
        let gru = io.gru.map_or([None; 4], |g| [Some(g.r), Some(g.z), Some(g.n), Some(g.u)]);
        let outs = [&gr.dx, &gr.dh_0, &gr.dc_0, &gr.dw_ih, &gr.dw_hh, &gr.db_ih, &gr.db_hh];
        let outs = outs.map(|g| g.as_ref().map(|g| g.out.as_view()));
        let read = [
            io.dy,
            io.dh_t,
            io.dc_t,
            Some(io.x),
            Some(w.w_ih),
            Some(w.w_hh),
            io.lengths,
            Some(io.h),
            io.c,
            io.gates,
        ];
        self.own_named(OP, "dy dh_t dc_t x w_ih w_hh lengths h c gates", read)?;
        self.own_named(OP, "gru.r gru.z gru.n gru.u", gru)?;
        self.own_named(OP, "dx dh_0 dc_0 dw_ih dw_hh db_ih db_hh", outs)?;
        if outs.iter().all(Option::is_none) {
            return Ok(());
        }
        let (h, rows, count) = (s.hidden, s.gates * s.hidden, s.steps * s.batch);
        let swept = self.sweep(cell, p, &io, s)?;
        let gr = io.grads;
        for (from, dc, to) in [(io.dh_t, None, gr.dh_0), (io.dc_t, swept.dc.as_ref(), gr.dc_0)] {
            let Some(to) = to else { continue };
            match (s.steps, from) {
                (0, Some(from)) => self.strided_copy(from, to)?,
                (0, None) if !to.accumulate => self.fill_pattern(&[0; 8], &to.out.as_view())?,
                (0, None) => {}
                _ => self.store_sum(&dc.unwrap_or(&swept.dh).view(), &to)?,
            }
        }
        let dz = part(&swept.dz.view(), 0, &[count, rows])?;
        let dx = swept.dx.as_ref().map_or(Ok(dz), |d| part(&d.view(), 0, &[count, rows]))?;
        let g = Gemm::new().precision(p.precision);
        let gt = g.trans(true, false);
        let beta = |g: &GradMut<'_>| if g.accumulate { 1.0 } else { 0.0 };
        let x = io.x.reshape(&[count, s.input])?;
        if let Some(d) = gr.dx {
            let beta = beta(&d);
            self.multiply(&g, (dx, w.w_ih), d.out.reshape(&[count, s.input])?, beta, None)?;
        }
        if let Some(d) = gr.dw_ih {
            let beta = beta(&d);
            self.multiply(&gt, (dx, x), d.out, beta, None)?;
        }
        if let Some(d) = gr.dw_hh {
            let beta = beta(&d);
            let states = part(&io.h, 0, &[count, h])?;
            match &swept.rh {
                None => self.multiply(&gt, (dz, states), d.out, beta, None)?,
                Some(rh) => {
                    let cut = |at, width| columns(&swept.dz, 0, [count, rows], at, width);
                    let (rz, n): (ViewMut<'_>, ViewMut<'_>) = d.out.split_at(2 * h * h)?;
                    self.multiply(&gt, (cut(0, 2 * h)?, states), rz.reshape(&[2 * h, h])?, beta, None)?;
                    let products = part(&rh.view(), 0, &[count, h])?;
                    self.multiply(&gt, (cut(2 * h, h)?, products), n.reshape(&[h, h])?, beta, None)?;
                }
            }
        }
        // One sum serves both biases where they get the same.
        let same = cell != RnnCell::Gru;
        match (gr.db_ih, gr.db_hh) {
            (Some(i), Some(r)) if same && !i.accumulate && !r.accumulate => {
                let sum = i.out.as_view();
                self.sum_to_shape(dz, i)?;
                self.strided_copy(sum, r)
            }
            (i, r) => {
                i.map_or(Ok(()), |i| self.sum_to_shape(dx, i))?;
                r.map_or(Ok(()), |r| self.sum_to_shape(dz, r))
            }
        }
    }
}
