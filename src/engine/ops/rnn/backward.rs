//! Recurrent networks: back-propagation through time.

use crate::buffer::{Buffer, GradMut, View, ViewMut};
use crate::driver::Ptr;
use crate::dtype::DType;
use crate::engine::Engine;
use crate::engine::launch::Grid;
use crate::engine::ops::rnn::persistent::{CellsBwd, SequenceBwd};
use crate::engine::ops::rnn::plan::{MOST_STEPS, Persistent, StepsPlan, StepsProblem};
use crate::engine::ops::rnn::{part, part_mut};
use crate::error::Result;
use crate::layout::Layout;
use crate::ops::check;
use crate::ops::gemm::Gemm;
use crate::ops::reduce::ReduceOps;
use crate::ops::rnn::*;
use crate::ops::shape::ShapeOps;
use crate::spec::kernels::rnn::*;

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

/// Whether rows may keep the gradient of their state through a step: rows that have ended, and the states of a GRU.
fn keeps(cell: RnnCell, io: &RnnBwd<'_>) -> bool {
    io.lengths.is_some() || cell.is_gru()
}

/// Results of the loop over the steps.
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

/// What the kernels of a step's gradient have in common.
struct StepBwdArgs {
    dtype: DType,
    grid: Grid,
    dy: Ptr,
    dh_last: Ptr,
    lengths: Ptr,
    dh: Ptr,
    dz: Ptr,
    dx: Ptr,
    n: i64,
    hidden: i64,
    row_y: i64,
    row_x: i64,
    t: i32,
    /// Whether it is the first one processed.
    first: i32,
    /// Whether rows may keep the gradient of their state.
    keep: i32,
}

/// The factors of the product that a step in one kernel begins with: transposed recurrent weights, and the gradients of the gates of the next step.
#[derive(Clone, Copy)]
struct NextStep {
    w: Ptr,
    dz_next: Ptr,
    tiled: bool,
}

/// Gates of a GRU's step, and the state before it.
#[derive(Clone, Copy)]
struct GruGateArgs {
    r: Ptr,
    z: Ptr,
    m: Ptr,
    un: Ptr,
    h: Ptr,
}

/// Gates and cell states of an LSTM's step, and the gradients of the latter.
struct CellBwdArgs {
    gates: Ptr,
    c: Ptr,
    c_next: Ptr,
    dc_last: Ptr,
    dc: Ptr,
}

impl Engine {
    fn lstm_step_bwd(&self, s: &StepBwdArgs, cell: &CellBwdArgs, next: Option<NextStep>) -> Result<()> {
        let &StepBwdArgs { dtype, grid, dy, dh_last, lengths, dh, dz, dx, .. } = s;
        let &StepBwdArgs { n, hidden, row_y, row_x, t, first, keep, .. } = s;
        let &CellBwdArgs { gates, c, c_next, dc_last, dc } = cell;
        if let Some(NextStep { w, dz_next, tiled }) = next {
            let args = LstmFusedBwdArgs {
                w,
                dz_next,
                gates,
                c,
                c_next,
                dy,
                lengths,
                dh,
                dc,
                dz,
                dx,
                n,
                hidden,
                row_y,
                row_x,
                t,
                keep,
            };
            let kernel = if tiled { &LSTM_TILED_BWD } else { &LSTM_FUSED_BWD };
            return self.launch(kernel, dtype, "", grid, &args);
        }
        let args = LstmStepBwdArgs {
            gates,
            c,
            c_next,
            dy,
            dh_last,
            dc_last,
            lengths,
            dh,
            dc,
            dz,
            dx,
            n,
            hidden,
            row_y,
            row_x,
            t,
            first,
            keep,
        };
        self.launch(&LSTM_STEP_BWD, dtype, "", grid, &args)
    }

    fn gru_step_bwd(
        &self,
        s: &StepBwdArgs,
        gates: GruGateArgs,
        before: bool,
        next: Option<NextStep>,
    ) -> Result<()> {
        let &StepBwdArgs { dtype, grid, dy, dh_last, lengths, dh, dz, dx, .. } = s;
        let &StepBwdArgs { n, hidden, row_y, row_x, t, first, .. } = s;
        let GruGateArgs { r, z, m, un, h } = gates;
        if let Some(NextStep { w, dz_next, tiled }) = next {
            let args = GruFusedBwdArgs {
                w,
                dz_next,
                r,
                z,
                m,
                un,
                h,
                dy,
                lengths,
                dh,
                dz,
                dx,
                n,
                hidden,
                row_y,
                row_x,
                t,
            };
            let kernel = if tiled { &GRU_TILED_BWD } else { &GRU_FUSED_BWD };
            return self.launch(kernel, dtype, "", grid, &args);
        }
        let before = i32::from(before);
        let args = GruStepBwdArgs {
            r,
            z,
            m,
            un,
            h,
            dy,
            dh_last,
            lengths,
            dh,
            dz,
            dx,
            n,
            hidden,
            row_y,
            row_x,
            t,
            first,
            before,
        };
        self.launch(&GRU_STEP_BWD, dtype, "", grid, &args)
    }

    /// The gradient of r h, which is `drh`, on to the reset gate and the state; also writes r h to `rh`.
    fn gru_reset_bwd(&self, s: &StepBwdArgs, gates: GruGateArgs, drh: Ptr, rh: Ptr) -> Result<()> {
        let &StepBwdArgs { dtype, grid, lengths, dh, dz, dx, n, hidden, row_x, t, .. } = s;
        let GruGateArgs { r, h, .. } = gates;
        let args = GruResetBwdArgs { drh, r, h, lengths, dh, dz, dx, rh, n, hidden, row_x, t };
        self.launch(&GRU_RESET_BWD, dtype, "", grid, &args)
    }

    fn plain_step_bwd(&self, s: &StepBwdArgs, h_next: Ptr, relu: bool) -> Result<()> {
        let &StepBwdArgs { dtype, grid, dy, dh_last, lengths, dh, dz, dx, .. } = s;
        let &StepBwdArgs { n, hidden, row_y, row_x, t, first, keep, .. } = s;
        let args = PlainStepBwdArgs {
            h_next,
            dy,
            dh_last,
            lengths,
            dh,
            dz,
            dx,
            n,
            hidden,
            row_y,
            row_x,
            t,
            first,
            keep,
            relu: i32::from(relu),
        };
        self.launch(&PLAIN_STEP_BWD, dtype, "", grid, &args)
    }
}

impl Engine {
    /// y (+)= x for a contiguous x in the arithmetic type.
    pub(in crate::engine::ops) fn store_sum(&self, x: &View<'_>, y: &GradMut<'_>) -> Result<()> {
        let (v, n) = (y.out.as_view(), y.out.numel());
        let args = RnnStoreArgs {
            x: self.arg_in(x),
            y: self.arg_in(&v),
            n: n as i64,
            accumulate: i32::from(y.accumulate),
        };
        self.launch(&RNN_STORE, v.dtype(), "", Grid::Stride(n), &args)
    }

    fn sweep(&self, cell: RnnCell, p: &Recurrence, io: &RnnBwd<'_>, s: RnnSizes) -> Result<Swept> {
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
        // Empty states need no steps, however many there are.
        if n == 0 || s.steps == 0 {
            return Ok(w);
        }
        // Both factors of a step's product lie in scratch memory.
        let aligned = (h * dt.size()).is_multiple_of(16);
        let long = s.steps > MOST_STEPS;
        let problem = StepsProblem { cell, dtype: dt, batch: b, hidden: h, aligned, backward: true, long };
        let plan = if s.steps > 1 { self.plan("rnn_bwd", &problem)? } else { StepsPlan::Products };
        match plan.persistent() {
            Some(plan) => self.sweep_at_once(plan, cell, p, io, s, &w)?,
            None => self.sweep_steps(plan, cell, p, io, s, &w)?,
        }
        if io.grads.dh_0.is_some() {
            self.through_weights(cell, p, io, s, &w, 0)?;
        }
        Ok(w)
    }

    /// Adds to `dh` what the gradients of the gates of step `at` give the state before it, but for r h where the reset gate comes first.
    fn through_weights(
        &self,
        cell: RnnCell,
        p: &Recurrence,
        io: &RnnBwd<'_>,
        s: RnnSizes,
        w: &Swept,
        at: usize,
    ) -> Result<()> {
        let (b, h, rows) = (s.batch, s.hidden, s.gates * s.hidden);
        let used = if cell == RnnCell::GruResetBefore { 2 * h } else { rows };
        let d = columns(&w.dz, at * b * rows, [b, rows], 0, used)?;
        let weights = part(&io.weights.w_hh, 0, &[used, h])?;
        let beta = if keeps(cell, io) { 1.0 } else { 0.0 };
        let g = Gemm::new().precision(p.precision);
        self.multiply(&g, (d, weights), part_mut(&w.dh, 0, &[b, h])?, beta, None)
    }

    /// All steps as one kernel.
    fn sweep_at_once(
        &self,
        plan: Persistent,
        cell: RnnCell,
        p: &Recurrence,
        io: &RnnBwd<'_>,
        s: RnnSizes,
        w: &Swept,
    ) -> Result<()> {
        let dx = self.arg_opt(w.dx.as_ref().map(|d| d.view()).as_ref());
        let sequence = SequenceBwd {
            dtype: io.x.dtype(),
            plan,
            sizes: s,
            reverse: p.reverse,
            keep: keeps(cell, io),
            w: self.arg_in(&io.weights.w_hh),
            lengths: self.arg_opt(io.lengths.as_ref()),
            dy: (self.arg_opt(io.dy.as_ref()), s.stride(p, s.hidden)),
            dx: (dx, s.stride(p, s.gates * s.hidden)),
            last: [io.dh_t, io.dc_t].map(|v| self.arg_opt(v.as_ref())),
            dh: self.arg_in(&w.dh.view()),
            dz: self.arg_in(&w.dz.view()),
        };
        let cells = w.dc.as_ref().map(|dc| CellsBwd {
            gates: self.arg_opt(io.gates.as_ref()),
            c: self.arg_opt(io.c.as_ref()),
            dc: self.arg_in(&dc.view()),
        });
        let gru = io.gru.map(|GruGates { r, z, n: m, u }| [r, z, m, u, io.h].map(|v| self.arg_in(&v)));
        self.persistent_bwd(&sequence, cells.as_ref(), gru.unwrap_or([Ptr::NULL; 5]))
    }

    /// One step after the other.
    fn sweep_steps(
        &self,
        plan: StepsPlan,
        cell: RnnCell,
        p: &Recurrence,
        io: &RnnBwd<'_>,
        s: RnnSizes,
        w: &Swept,
    ) -> Result<()> {
        let (dt, acc) = (io.x.dtype(), io.x.dtype().accumulator());
        let (b, h, rows, n) = (s.batch, s.hidden, s.gates * s.hidden, s.batch * s.hidden);
        let before = cell == RnnCell::GruResetBefore;
        let new = |there: bool, dtype: DType, len| {
            if there { self.scratch(dtype, len).map(Some) } else { Ok(None) }
        };
        let drh = new(before, acc, n)?;
        let whole = plan.grid();
        let turned = new(whole.is_some(), dt, rows * h)?;
        if let Some(t) = &turned {
            let columns = io.weights.w_hh.map("w_hh", |l| l.transpose(0, 1))?;
            self.strided_copy(columns, part_mut(t, 0, &[h, rows])?.into())?;
        }
        let (dz, dx, dh) = (w.dz.view(), w.dx.as_ref().map(|d| d.view()), w.dh.view());
        let (dc, rh) = (w.dc.as_ref().map(|d| d.view()), w.rh.as_ref().map(|d| d.view()));
        let g = Gemm::new().precision(p.precision);
        let keep = keeps(cell, io);
        let ((step_x, row_x), (step_y, row_y)) = (s.stride(p, rows), s.stride(p, h));
        let state = |v: &Option<View<'_>>, at: usize| self.arg_part_opt(v.as_ref(), at * n);
        for at in (0..s.steps).rev() {
            let t = s.time(p, at);
            // One kernel computes the product with the gradients of the next step too, which the last step does not have.
            let next = turned.as_ref().filter(|_| at + 1 < s.steps).map(|w| NextStep {
                w: self.arg_in(&w.view()),
                dz_next: self.arg_part(&dz, (at + 1) * b * rows),
                tiled: plan.is_tiled(),
            });
            let step = StepBwdArgs {
                dtype: dt,
                grid: whole.filter(|_| next.is_some()).unwrap_or(Grid::Stride(n)),
                dy: self.arg_part_opt(io.dy.as_ref(), t * step_y),
                dh_last: self.arg_opt(io.dh_t.as_ref()),
                lengths: self.arg_opt(io.lengths.as_ref()),
                dh: self.arg_in(&dh),
                dz: self.arg_part(&dz, at * b * rows),
                dx: self.arg_part_opt(dx.as_ref(), t * step_x),
                n: n as i64,
                hidden: h as i64,
                row_y: row_y as i64,
                row_x: row_x as i64,
                t: t as i32,
                first: i32::from(at + 1 == s.steps),
                keep: i32::from(keep),
            };
            let gates = io.gru.map(|GruGates { r, z, n: m, u }| {
                let [r, z, m, un, h] = [r, z, m, u, io.h].map(|v| self.arg_part(&v, at * n));
                GruGateArgs { r, z, m, un, h }
            });
            match (cell, gates) {
                (RnnCell::Lstm, _) => {
                    let cell = CellBwdArgs {
                        gates: self.arg_part_opt(io.gates.as_ref(), at * b * rows),
                        c: state(&io.c, at),
                        c_next: state(&io.c, at + 1),
                        dc_last: self.arg_opt(io.dc_t.as_ref()),
                        dc: self.arg_opt(dc.as_ref()),
                    };
                    self.lstm_step_bwd(&step, &cell, next)?;
                }
                (_, Some(gates)) => self.gru_step_bwd(&step, gates, before, next)?,
                _ => {
                    let h_next = self.arg_part(&io.h, (at + 1) * n);
                    self.plain_step_bwd(&step, h_next, cell == RnnCell::Relu)?;
                }
            }
            if let (Some(drh), Some(rh), Some(gates)) = (&drh, &rh, gates) {
                let w_n = part(&io.weights.w_hh, 2 * h * h, &[h, h])?;
                let dn = columns(&w.dz, at * b * rows, [b, rows], 2 * h, h)?;
                self.multiply(&g, (dn, w_n), part_mut(drh, 0, &[b, h])?, 0.0, None)?;
                self.gru_reset_bwd(&step, gates, self.arg_in(&drh.view()), self.arg_part(rh, at * n))?;
            }
            if at > 0 && whole.is_none() {
                self.through_weights(cell, p, io, s, w, at)?;
            }
        }
        Ok(())
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
