//! Recurrent networks: sequences forward, and single cells. Products go through the engine's own variants.

pub(super) mod backward;
pub(super) mod conv;
pub(super) mod persistent;
pub(super) mod plan;

use self::persistent::Sequence;
use self::plan::{MOST_STEPS, StepsPlan, StepsProblem};
use crate::buffer::{Buffer, View, ViewMut};
use crate::driver::Ptr;
use crate::dtype::DType;
use crate::engine::Engine;
use crate::engine::launch::{Grid, aligned16};
use crate::error::{GpuError, Result};
use crate::layout::Layout;
use crate::ops::check;
use crate::ops::core::Choice;
use crate::ops::gemm::{Gemm, GemmIo, GemmOps, Precision};
use crate::ops::rnn::*;
use crate::ops::shape::ShapeOps;
use crate::spec::kernels::rnn::*;

fn layout(shape: &[usize], at: usize) -> Result<Layout> {
    check::layout("rnn", "shape", Layout::contiguous(shape).and_then(|l| l.shifted(at)))
}

/// The contiguous part of that shape from element `start` of a view.
pub(in crate::engine::ops) fn part<'a>(v: &View<'a>, start: usize, shape: &[usize]) -> Result<View<'a>> {
    v.with_layout(layout(shape, v.layout().offset() + start)?)
}

/// A part of scratch memory as an output.
pub(in crate::engine::ops) fn part_mut<'a>(
    b: &'a Buffer,
    start: usize,
    shape: &[usize],
) -> Result<ViewMut<'a>> {
    b.alias_mut().with_layout(layout(shape, start)?)
}

/// An optional output for reading its place.
pub(in crate::engine::ops) fn seen<'a>(v: &Option<ViewMut<'a>>) -> Option<View<'a>> {
    v.as_ref().map(|v| v.as_view())
}

/// The states of a sequence: all of them where they are saved, else two that alternate.
struct States<'a> {
    saved: Option<View<'a>>,
    turns: Option<Buffer>,
    first: Option<View<'a>>,
    shape: [usize; 2],
}

impl States<'_> {
    /// The state before step `at`.
    fn at(&self, at: usize) -> Result<View<'_>> {
        let n = self.shape[0] * self.shape[1];
        match (&self.saved, &self.first, &self.turns) {
            (Some(all), _, _) => part(all, at * n, &self.shape),
            (_, Some(first), _) if at == 0 => Ok(*first),
            (_, _, Some(two)) => part(&two.view(), at % 2 * n, &self.shape),
            _ => Err(GpuError::invalid("rnn", "h", "a place for states", "none")),
        }
    }
}

/// What the kernels of a step have in common.
struct StepArgs {
    dtype: DType,
    grid: Grid,
    /// How the steps run.
    plan: StepsPlan,
    /// The recurrent weights where a step is one kernel, else their products with the state.
    from: Ptr,
    a: Ptr,
    bias: Ptr,
    h: Ptr,
    lengths: Ptr,
    h_next: Ptr,
    y: Ptr,
    h_last: Ptr,
    n: i64,
    hidden: i64,
    row_a: i64,
    row_y: i64,
    t: i32,
}

/// Cell states and gates of a step of an LSTM.
struct CellArgs {
    c: Ptr,
    c_next: Ptr,
    gates: Ptr,
    c_last: Ptr,
}

/// The recurrent products of a GRU's candidate, and how far apart the rows of all products are.
struct Candidate {
    un: Ptr,
    row_u: usize,
    row_n: usize,
    /// Whether they are those with r h.
    before: bool,
}

impl Engine {
    /// Pointer to element `start` of a view.
    pub(in crate::engine::ops) fn arg_part(&self, v: &View<'_>, start: usize) -> Ptr {
        let at = (v.layout().offset() + start) * v.dtype().size();
        Ptr(v.block().raw().map(|m| (m, at as u64)))
    }

    /// [`Engine::check_owner`] for operands that may be absent, named in order.
    pub(in crate::engine::ops) fn own_named<'a>(
        &self,
        op: &'static str,
        names: &'static str,
        views: impl IntoIterator<Item = Option<View<'a>>>,
    ) -> Result<()> {
        let mut names = names.split(' ');
        views.into_iter().try_for_each(|v| {
            let arg = names.next().unwrap_or("operand");
            v.map_or(Ok(()), |v| self.check_owner(op, arg, &v))
        })
    }

    /// [`Engine::arg_part`] of an operand that may be absent.
    pub(in crate::engine::ops) fn arg_part_opt(&self, v: Option<&View<'_>>, start: usize) -> Ptr {
        v.map_or(Ptr::NULL, |v| self.arg_part(v, start))
    }

    /// Y = A B + beta Y (+ a bias per column).
    pub(in crate::engine::ops) fn multiply(
        &self,
        p: &Gemm,
        (a, b): (View<'_>, View<'_>),
        y: ViewMut<'_>,
        beta: f64,
        bias: Option<View<'_>>,
    ) -> Result<()> {
        let c = (beta != 0.0).then(|| y.as_view());
        self.gemm(&p.scaled(1.0, beta), GemmIo { c, bias, ..GemmIo::new(a, b, y) })
    }

    /// How an LSTM of 64 rows of 512 in f32 runs.
    pub(crate) fn explain_rnn(&self, op: &'static str) -> Result<Choice> {
        let (cell, dtype, backward) = (RnnCell::Lstm, DType::F32, op == "rnn_bwd");
        let (aligned, long) = (true, false);
        let p = StepsProblem { cell, dtype, batch: 64, hidden: 512, aligned, backward, long };
        self.explain_problem(op, &p)
    }

    /// Copies a state, or zeros where there is none.
    pub(in crate::engine::ops) fn first_state(&self, from: Option<View<'_>>, to: ViewMut<'_>) -> Result<()> {
        match from {
            Some(v) => self.strided_copy(v, to.into()),
            None => self.fill_pattern(&[0; 8], &to.as_view()),
        }
    }

    fn states<'a>(
        &self,
        dtype: DType,
        shape: [usize; 2],
        first: Option<View<'a>>,
        saved: Option<ViewMut<'a>>,
    ) -> Result<States<'a>> {
        let n = shape[0] * shape[1];
        let turns = if saved.is_none() { Some(self.scratch(dtype, 2 * n)?) } else { None };
        let kept = saved.as_ref().map(|s| s.as_view());
        match (saved, &turns) {
            (Some(s), _) => {
                let at = s.layout().offset();
                self.first_state(first, s.with_layout(layout(&shape, at)?)?)?;
            }
            (_, Some(two)) if first.is_none() => self.first_state(None, part_mut(two, 0, &shape)?)?,
            _ => {}
        }
        Ok(States { saved: kept, turns, first, shape })
    }
}

impl Engine {
    fn lstm_step(&self, s: &StepArgs, cell: &CellArgs) -> Result<()> {
        let &StepArgs { dtype, grid, plan, from, a, bias, h, lengths, h_next, y, h_last, .. } = s;
        let &StepArgs { n, hidden, row_a, row_y, t, .. } = s;
        let &CellArgs { c, c_next, gates, c_last } = cell;
        if plan != StepsPlan::Products {
            let kernel = if plan.is_tiled() { &LSTM_TILED } else { &LSTM_FUSED };
            let args = LstmFusedArgs {
                w: from,
                a,
                bias,
                h,
                c,
                lengths,
                h_next,
                c_next,
                y,
                gates,
                h_last,
                c_last,
                n,
                hidden,
                row_a,
                row_y,
                t,
            };
            return self.launch(kernel, dtype, "", grid, &args);
        }
        let args = LstmStepArgs {
            u: from,
            a,
            bias,
            h,
            c,
            lengths,
            h_next,
            c_next,
            y,
            gates,
            h_last,
            c_last,
            n,
            hidden,
            row_a,
            row_y,
            t,
        };
        self.launch(&LSTM_STEP, dtype, "", grid, &args)
    }

    /// A step of a GRU; one kernel where no products are given. `save`: where the gates r, z, n and u go.
    fn gru_step(&self, s: &StepArgs, save: [Ptr; 4], products: Option<Candidate>) -> Result<()> {
        let &StepArgs { dtype, grid, plan, from, a, bias, h, lengths, h_next, y, h_last, .. } = s;
        let &StepArgs { n, hidden, row_a, row_y, t, .. } = s;
        let [save_r, save_z, save_n, save_u] = save;
        let Some(Candidate { un, row_u, row_n, before }) = products else {
            let kernel = if plan.is_tiled() { &GRU_TILED } else { &GRU_FUSED };
            let args = GruFusedArgs {
                w: from,
                a,
                bias,
                h,
                lengths,
                h_next,
                y,
                save_r,
                save_z,
                save_n,
                save_u,
                h_last,
                n,
                hidden,
                row_a,
                row_y,
                t,
            };
            return self.launch(kernel, dtype, "", grid, &args);
        };
        let args = GruStepArgs {
            u: from,
            un,
            a,
            bias,
            h,
            lengths,
            h_next,
            y,
            save_r,
            save_z,
            save_n,
            save_u,
            h_last,
            n,
            hidden,
            row_u: row_u as i64,
            row_n: row_n as i64,
            row_a,
            row_y,
            t,
            before: i32::from(before),
        };
        self.launch(&GRU_STEP, dtype, "", grid, &args)
    }

    /// r h of a step, for the GRU that applies the reset gate before the product.
    fn gru_reset(&self, s: &StepArgs, rh: &View<'_>) -> Result<()> {
        let &StepArgs { dtype, grid, from, a, bias, h, n, hidden, row_a, .. } = s;
        let args = GruResetArgs { u: from, a, bias, h, rh: self.arg_in(rh), n, hidden, row_a };
        self.launch(&GRU_RESET, dtype, "", grid, &args)
    }

    fn plain_step(&self, s: &StepArgs, relu: bool) -> Result<()> {
        let &StepArgs { dtype, grid, from, a, bias, h, lengths, h_next, y, h_last, .. } = s;
        let &StepArgs { n, hidden, row_a, row_y, t, .. } = s;
        let args = PlainStepArgs {
            u: from,
            a,
            bias,
            h,
            lengths,
            h_next,
            y,
            h_last,
            n,
            hidden,
            row_a,
            row_y,
            t,
            relu: i32::from(relu),
        };
        self.launch(&PLAIN_STEP, dtype, "", grid, &args)
    }
}

impl RnnOps for Engine {
    fn rnn(&self, cell: RnnCell, p: &Recurrence, io: RnnFwd<'_>) -> Result<()> {
        const OP: &str = "rnn";
        let s = check_rnn(cell, p, &io)?;
        let w = io.weights;
        let y = io.y.as_view();
        let GruGates { r, z, n: m, u: un } = &io.gru;
        let outs = [seen(&io.h), seen(&io.c), seen(&io.gates), seen(r), seen(z), seen(m), seen(un)];
        let [_, _, gates, save @ ..] = outs;
        let last = [seen(&io.h_t), seen(&io.c_t)];
        let read =
            [io.h_0, io.c_0, w.b_ih, w.b_hh, io.lengths, Some(io.x), Some(w.w_ih), Some(w.w_hh), Some(y)];
        self.own_named(OP, "h_0 c_0 b_ih b_hh lengths x w_ih w_hh y", read)?;
        self.own_named(OP, "h c gates gru.r gru.z gru.n gru.u h_t c_t", outs.into_iter().chain(last))?;
        let (dt, b, h, rows) = (io.x.dtype(), s.batch, s.hidden, s.gates * s.hidden);
        let n = b * h;
        if n == 0 {
            return Ok(());
        }
        let lstm = cell == RnnCell::Lstm;
        if s.steps == 0 {
            for (first, to) in [(io.h_0, io.h), (io.h_0, io.h_t), (io.c_0, io.c), (io.c_0, io.c_t)] {
                to.map_or(Ok(()), |to| self.first_state(first, to.reshape(&[b, h])?))?;
            }
            return Ok(());
        }
        // States that are not saved alternate in scratch memory, but for the first.
        let states = if io.h.is_some() { seen(&io.h) } else { io.h_0 };
        let aligned =
            (h * dt.size()).is_multiple_of(16) && [Some(w.w_hh), states].iter().flatten().all(aligned16);
        let long = s.steps > MOST_STEPS;
        let problem = StepsProblem { cell, dtype: dt, batch: b, hidden: h, aligned, backward: false, long };
        let plan = self.plan(OP, &problem)?;
        let whole = plan.grid();
        let hidden = self.states(dt, [b, h], io.h_0, io.h)?;
        let cells = if lstm { Some(self.states(dt, [b, h], io.c_0, io.c)?) } else { None };

        let acc = dt.accumulator();
        let g = Gemm::new().trans(false, true).precision(p.precision);
        let count = s.steps * b;
        let a = self.scratch(acc, count * rows)?;
        let x = io.x.reshape(&[count, s.input])?;
        self.multiply(&g, (x, w.w_ih), part_mut(&a, 0, &[count, rows])?, 0.0, w.b_ih)?;
        let a = a.view();

        if let Some(plan) = plan.persistent() {
            let sequence = Sequence {
                dtype: dt,
                plan,
                sizes: s,
                reverse: p.reverse,
                w: self.arg_in(&w.w_hh),
                bias: self.arg_opt(w.b_hh.as_ref()),
                lengths: self.arg_opt(io.lengths.as_ref()),
                a: (self.arg_in(&a), s.stride(p, rows)),
                y: (self.arg_in(&y), s.stride(p, h)),
                last: last.map(|v| self.arg_opt(v.as_ref())),
            };
            let (gates, save) = (self.arg_opt(gates.as_ref()), save.map(|v| self.arg_opt(v.as_ref())));
            return self.persistent(&sequence, &hidden, cells.as_ref(), gates, save);
        }
        let before = cell == RnnCell::GruResetBefore;
        let u = self.scratch(acc, if whole.is_some() { 0 } else { b * rows })?;
        let rh = if before { Some(self.scratch(dt, n)?) } else { None };
        // Rows of the recurrent weights in the first product of a step.
        let now = if before { 2 * h } else { rows };
        let w_now = part(&w.w_hh, 0, &[now, h])?;
        let ((step_a, row_a), (step_y, row_y)) = (s.stride(p, rows), s.stride(p, h));
        for at in 0..s.steps {
            let t = s.time(p, at);
            let ends = at + 1 == s.steps;
            let (state, next) = (hidden.at(at)?, hidden.at(at + 1)?);
            let only_last = |v: &Option<View<'_>>| self.arg_opt(v.as_ref().filter(|_| ends));
            if whole.is_none() {
                self.multiply(&g, (state, w_now), part_mut(&u, 0, &[b, now])?, 0.0, None)?;
            }
            let step = StepArgs {
                dtype: dt,
                plan,
                grid: whole.unwrap_or(Grid::Stride(n)),
                from: if whole.is_some() { self.arg_in(&w.w_hh) } else { self.arg_in(&u.view()) },
                a: self.arg_part(&a, t * step_a),
                bias: self.arg_opt(w.b_hh.as_ref()),
                h: self.arg_in(&state),
                lengths: self.arg_opt(io.lengths.as_ref()),
                h_next: self.arg_in(&next),
                y: self.arg_part(&y, t * step_y),
                h_last: only_last(&last[0]),
                n: n as i64,
                hidden: h as i64,
                row_a: row_a as i64,
                row_y: row_y as i64,
                t: t as i32,
            };
            let save = save.map(|v| self.arg_part_opt(v.as_ref(), at * n));
            match (cell, &cells) {
                (RnnCell::Lstm, Some(cells)) => {
                    let cell = CellArgs {
                        c: self.arg_in(&cells.at(at)?),
                        c_next: self.arg_in(&cells.at(at + 1)?),
                        gates: self.arg_part_opt(gates.as_ref(), at * b * rows),
                        c_last: only_last(&last[1]),
                    };
                    self.lstm_step(&step, &cell)?;
                }
                (RnnCell::Gru, _) if whole.is_some() => self.gru_step(&step, save, None)?,
                (RnnCell::Gru | RnnCell::GruResetBefore, _) => {
                    let (un, row_n) = if before { (b * now, h) } else { (2 * h, rows) };
                    if let Some(rh) = &rh {
                        self.gru_reset(&step, &rh.view())?;
                        let w_n = part(&w.w_hh, 2 * h * h, &[h, h])?;
                        self.multiply(&g, (rh.shaped(&[b, h])?, w_n), part_mut(&u, un, &[b, h])?, 0.0, None)?;
                    }
                    let un = self.arg_part(&u.view(), un);
                    self.gru_step(&step, save, Some(Candidate { un, row_u: now, row_n, before }))?;
                }
                _ => self.plain_step(&step, cell == RnnCell::Relu)?,
            }
        }
        Ok(())
    }

    fn rnn_gates(
        &self,
        precision: Precision,
        x: View<'_>,
        h: View<'_>,
        weights: RnnWeights<'_>,
        z: ViewMut<'_>,
    ) -> Result<()> {
        const OP: &str = "rnn_gates";
        let w = weights;
        check_rnn_gates(&x, &h, &w, &z)?;
        let all = [Some(x), Some(h), Some(w.w_ih), Some(w.w_hh), w.b_ih, w.b_hh, Some(z.as_view())];
        self.own_named(OP, "x h w_ih w_hh b_ih b_hh z", all)?;
        let g = Gemm::new().trans(false, true).precision(precision);
        let (dt, acc) = (z.dtype(), z.dtype().accumulator());
        if dt == acc {
            let mut z = z;
            self.multiply(&g, (x, w.w_ih), z.reborrow(), 0.0, w.b_ih)?;
            return self.multiply(&g, (h, w.w_hh), z, 1.0, w.b_hh);
        }
        // The sum of both products is rounded once.
        let sum = self.scratch(acc, z.numel())?;
        self.multiply(&g, (x, w.w_ih), part_mut(&sum, 0, z.shape())?, 0.0, w.b_ih)?;
        self.multiply(&g, (h, w.w_hh), part_mut(&sum, 0, z.shape())?, 1.0, w.b_hh)?;
        self.store_sum(&sum.view(), &z.into())
    }

    fn lstm_cell(&self, io: LstmCellFwd<'_>) -> Result<()> {
        const OP: &str = "lstm_cell";
        let [b, h] = check_lstm_cell(&io)?;
        let (h_next, c_next) = (io.h_next.as_view(), io.c_next.as_view());
        let gates = io.gates.as_ref().map(|g| g.as_view());
        let all = [Some(io.z), Some(io.c), Some(h_next), Some(c_next), gates];
        self.own_named(OP, "z c h_next c_next gates", all)?;
        let args = LstmCellArgs {
            z: self.arg_in(&io.z),
            c: self.arg_in(&io.c),
            h_next: self.arg_in(&h_next),
            c_next: self.arg_in(&c_next),
            gates: self.arg_opt(gates.as_ref()),
            n: (b * h) as i64,
            hidden: h as i64,
        };
        self.launch(&LSTM_CELL, io.z.dtype(), "", Grid::Stride(b * h), &args)
    }

    fn lstm_cell_bwd(&self, io: LstmCellBwd<'_>) -> Result<()> {
        const OP: &str = "lstm_cell_bwd";
        let [b, h] = check_lstm_cell_bwd(&io)?;
        let (dz, dc) = (io.dz.out.as_view(), io.dc.as_ref().map(|g| g.out.as_view()));
        let all = [io.dh_next, io.dc_next, Some(io.gates), Some(io.c), Some(io.c_next), Some(dz), dc];
        self.own_named(OP, "dh_next dc_next gates c c_next dz dc", all)?;
        let args = LstmCellBwdArgs {
            dh: self.arg_opt(io.dh_next.as_ref()),
            dc_next: self.arg_opt(io.dc_next.as_ref()),
            gates: self.arg_in(&io.gates),
            c: self.arg_in(&io.c),
            c_next: self.arg_in(&io.c_next),
            dz: self.arg_in(&dz),
            dc: self.arg_opt(dc.as_ref()),
            n: (b * h) as i64,
            hidden: h as i64,
            flags: i32::from(io.dz.accumulate) + 2 * i32::from(io.dc.is_some_and(|g| g.accumulate)),
        };
        self.launch(&LSTM_CELL_BWD, io.gates.dtype(), "", Grid::Stride(b * h), &args)
    }

    fn gru_cell(&self, io: GruCellFwd<'_>) -> Result<()> {
        const OP: &str = "gru_cell";
        let [b, h] = check_gru_cell(&io)?;
        let outs = [seen(&io.r), seen(&io.z), seen(&io.n)];
        let all = [Some(io.a), Some(io.u), Some(io.h), Some(io.h_next.as_view()), outs[0], outs[1], outs[2]];
        self.own_named(OP, "a u h h_next r z n", all)?;
        let [r, z, n] = &outs;
        let args = GruCellArgs {
            a: self.arg_in(&io.a),
            u: self.arg_in(&io.u),
            h: self.arg_in(&io.h),
            h_next: self.arg_out(&io.h_next),
            save_r: self.arg_opt(r.as_ref()),
            save_z: self.arg_opt(z.as_ref()),
            save_n: self.arg_opt(n.as_ref()),
            n: (b * h) as i64,
            hidden: h as i64,
        };
        self.launch(&GRU_CELL, io.a.dtype(), "", Grid::Stride(b * h), &args)
    }

    fn gru_cell_bwd(&self, io: GruCellBwd<'_>) -> Result<()> {
        const OP: &str = "gru_cell_bwd";
        let [b, h] = check_gru_cell_bwd(&io)?;
        let g = io.gates;
        let (da, du, dh) =
            (io.da.out.as_view(), io.du.out.as_view(), io.dh.as_ref().map(|g| g.out.as_view()));
        let all = [
            Some(io.dh_next),
            Some(g.r),
            Some(g.z),
            Some(g.n),
            Some(g.u),
            Some(io.h),
            Some(da),
            Some(du),
            dh,
        ];
        self.own_named(OP, "dh_next gates.r gates.z gates.n gates.u h da du dh", all)?;
        let more = i32::from(io.dh.is_some_and(|g| g.accumulate));
        let args = GruCellBwdArgs {
            dh_next: self.arg_in(&io.dh_next),
            r: self.arg_in(&g.r),
            z: self.arg_in(&g.z),
            m: self.arg_in(&g.n),
            un: self.arg_in(&g.u),
            h: self.arg_in(&io.h),
            da: self.arg_in(&da),
            du: self.arg_in(&du),
            dh: self.arg_opt(dh.as_ref()),
            n: (b * h) as i64,
            hidden: h as i64,
            row_n: g.u.layout().strides()[0] as i64,
            flags: i32::from(io.da.accumulate) + 2 * i32::from(io.du.accumulate) + 4 * more,
        };
        self.launch(&GRU_CELL_BWD, io.h.dtype(), "", Grid::Stride(b * h), &args)
    }
}
