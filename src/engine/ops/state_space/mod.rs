//! State-space models, linear attention and linear recurrences: validation and launch.

mod plan;

use self::plan::{RecurrenceProblem, StateKernel, StatePlan, StateProblem};
use crate::buffer::{Buffer, GradMut, View, ViewMut};
use crate::driver::{DimsArg, Ptr};
use crate::dtype::DType;
use crate::engine::Engine;
use crate::engine::launch::{Grid, aligned16, dims, int, long};
use crate::error::Result;
use crate::ops::core::{Choice, CoreOps};
use crate::ops::shape::ShapeOps;
use crate::ops::state_space::*;
use crate::spec::kernels::state_space::*;

/// The kernels' name of a rule.
fn rule_name(rule: StateRule) -> &'static str {
    match rule {
        StateRule::Gla => "gk_rule_gla",
        StateRule::GlaPerKey => "gk_rule_gla_key",
        StateRule::GatedDelta => "gk_rule_delta",
        StateRule::Selective => "gk_rule_selective",
        StateRule::Ssd => "gk_rule_ssd",
    }
}

/// Sizes for the kernels.
fn size_arg(n: StateSizes, p: &StatePlan) -> DimsArg {
    dims([n.steps, n.heads, n.rows, n.groups, p.split, p.splits, n.width, n.batch])
}

/// Whether rows of so many elements are whole items of 16 bytes in all of these operands.
fn whole_items<'a>(len: usize, dtype: DType, views: impl IntoIterator<Item = Option<&'a View<'a>>>) -> bool {
    len.is_multiple_of(16 / dtype.size()) && views.into_iter().flatten().all(aligned16)
}

/// Whether rows of a state's width are, for `backward.c`.
fn wide(s: &StateScan<'_>) -> bool {
    whole_items(s.size.width, s.v.dtype(), [Some(&s.q), Some(&s.k), Some(&s.gate), s.second.as_ref()])
}

/// Which rows are, for `chunk.h`: 1 for those of k, q and g, 2 for those of what belongs to the state's rows; `others` are such.
fn wide_rows<'a>(s: &'a StateScan<'a>, others: impl IntoIterator<Item = Option<&'a View<'a>>>) -> i32 {
    let (n, dt) = (s.size, s.v.dtype());
    let gate = |rule| (s.rule == rule).then_some(&s.gate);
    let columns = whole_items(n.width, dt, [Some(&s.q), Some(&s.k), gate(StateRule::GlaPerKey)]);
    let rows = [Some(&s.v), gate(StateRule::Selective), s.z.as_ref()].into_iter().chain(others);
    i32::from(columns) | if whole_items(n.rows, dt, rows) { 2 } else { 0 }
}

/// Sums over tiles, runs or heads that a backward pass left: `[outer, parts, inner]`. Without memory of their own they are the gradient itself.
struct Parts {
    memory: Option<Buffer>,
    size: [usize; 3],
}

/// A recurrence over contiguous operands `[outer, steps, inner]`.
struct Recurrence<'a> {
    op: &'static str,
    size: [usize; 3],
    reverse: bool,
    /// Factors, those of the step before each with `shift`.
    a: View<'a>,
    shift: bool,
    b: View<'a>,
    before: Option<View<'a>>,
    y: Option<&'a GradMut<'a>>,
    da: Option<&'a GradMut<'a>>,
}

impl Engine {
    /// What serves 8 sequences of 2048 steps of 2048 channels with 16 states.
    pub(crate) fn explain_state_space(&self, op: &'static str) -> Result<Choice> {
        if op.starts_with("associative_scan") {
            return self.explain_problem(op, &RecurrenceProblem { outer: 8, steps: 2048, inner: 2048 });
        }
        let rule = match op.trim_end_matches("_bwd") {
            "gla_scan" => StateRule::Gla,
            "gated_delta_scan" => StateRule::GatedDelta,
            "ssd_scan" => StateRule::Ssd,
            _ => StateRule::Selective,
        };
        let size = match rule {
            StateRule::Selective => {
                StateSizes { batch: 8, steps: 2048, heads: 1, rows: 2048, width: 16, groups: 1 }
            }
            _ => StateSizes { batch: 8, steps: 2048, heads: 16, rows: 64, width: 64, groups: 16 },
        };
        let dtype = DType::F32;
        self.explain_problem(op, &StateProblem { rule, size, dtype, backward: op.ends_with("_bwd") })
    }

    /// Refuses operands of another device or stream.
    fn own_state_scan(&self, s: &StateScan<'_>) -> Result<()> {
        let [q, k, v, gate, second] = s.names;
        let operands = [
            (q, Some(s.q)),
            (k, Some(s.k)),
            (v, Some(s.v)),
            (gate, Some(s.gate)),
            (second, s.second),
            ("d", s.skip),
            ("z", s.z),
            ("initial", s.initial),
        ];
        self.check_owner_all(s.op, &operands)
    }

    /// The state before each run of steps, or with `dy` the gradient of the state behind each; `None` for one run.
    fn state_parts(&self, s: &StateScan<'_>, p: &StatePlan, dy: Option<&View<'_>>) -> Result<Option<Buffer>> {
        if p.splits == 1 {
            return Ok(None);
        }
        let (n, dt) = (s.size, s.v.dtype());
        let each = n.rows * n.width;
        let part = self.scratch(dt.accumulator(), n.batch * n.heads * p.splits * 2 * each)?;
        let (gate, second) = (self.arg_in(&s.gate), self.arg_opt(s.second.as_ref()));
        let (size, lanes, softplus) = (size_arg(n, p), int(p.lanes), i32::from(s.softplus));
        let (wide, grid) = (wide_rows(s, [dy]), Grid::Blocks([p.blocks, 1, 1]));
        let to = self.arg_in(&part.view());
        match dy {
            None => {
                let (k, v) = (self.arg_in(&s.k), self.arg_in(&s.v));
                let args = StatePartialArgs { k, v, gate, second, part: to, size, lanes, softplus, wide };
                self.launch(&STATE_PARTIAL, dt, rule_name(s.rule), grid, &args)?;
            }
            Some(dy) => {
                let (q, dy, z) = (self.arg_in(&s.q), self.arg_in(dy), self.arg_opt(s.z.as_ref()));
                let args =
                    StatePartialBackArgs { q, dy, z, gate, second, part: to, size, lanes, softplus, wide };
                self.launch(&STATE_PARTIAL_BACK, dt, rule_name(s.rule), grid, &args)?;
            }
        }
        let items = n.batch * n.heads * each;
        let args = StateCarryArgs {
            initial: self.arg_opt(s.initial.as_ref().filter(|_| dy.is_none())),
            part: self.arg_in(&part.view()),
            n: long(items),
            each: long(each),
            splits: int(p.splits),
            back: i32::from(dy.is_some()),
        };
        self.launch(&STATE_CARRY, dt, "", Grid::Stride(items), &args)?;
        Ok(Some(part))
    }

    fn state_forward(&self, s: &StateScan<'_>, y: ViewMut<'_>, state: Option<ViewMut<'_>>) -> Result<()> {
        s.check_forward(&y, state.as_ref())?;
        self.own_state_scan(s)?;
        let last = state.as_ref().map(|v| v.as_view());
        self.check_owner_all(s.op, &[("y", Some(y.as_view())), ("state", last)])?;
        if s.is_empty() {
            return match (state, s.initial) {
                (Some(to), _) if to.numel() == 0 => Ok(()),
                (Some(to), Some(from)) => self.copy(from, to),
                (Some(to), None) => ShapeOps::fill(self, 0.0, to),
                (None, _) => Ok(()),
            };
        }
        let (n, dt) = (s.size, s.v.dtype());
        let problem = StateProblem { rule: s.rule, size: n, dtype: dt, backward: false };
        let p = self.plan_with(s.op, &problem, dt)?;
        let part = self.state_parts(s, &problem.runs(&p), None)?;
        let part = part.as_ref().map(Buffer::view);
        let args = StateScanArgs {
            q: self.arg_in(&s.q),
            k: self.arg_in(&s.k),
            v: self.arg_in(&s.v),
            gate: self.arg_in(&s.gate),
            second: self.arg_opt(s.second.as_ref()),
            skip: self.arg_opt(s.skip.as_ref()),
            z: self.arg_opt(s.z.as_ref()),
            initial: self.arg_opt(s.initial.as_ref()),
            part: self.arg_opt(part.as_ref()),
            y: self.arg_out(&y),
            state: self.arg_opt(last.as_ref()),
            size: size_arg(n, &p),
            lanes: int(p.lanes),
            softplus: i32::from(s.softplus),
            wide: wide_rows(s, [Some(&y.as_view())]),
        };
        self.launch_forward(s, &p, args)
    }

    /// The kernel of a plan.
    fn launch_forward(&self, s: &StateScan<'_>, p: &StatePlan, args: StateScanArgs) -> Result<()> {
        let (dt, rule, grid) = (s.v.dtype(), rule_name(s.rule), p.grid());
        let StateScanArgs { q, k, v, gate, second, skip, z, initial, part, y, state, size, .. } = args;
        let StateScanArgs { softplus, wide, .. } = args;
        match p.kernel {
            StateKernel::Matrix => {
                let args =
                    StateScanMatrixArgs { q, k, v, gate, second, skip, initial, part, y, state, size, wide };
                self.launch(&STATE_SCAN_MATRIX, dt, rule, grid, &args)
            }
            StateKernel::Channels => {
                let args = StateScanChannelsArgs {
                    q,
                    k,
                    v,
                    gate,
                    second,
                    skip,
                    z,
                    initial,
                    part,
                    y,
                    state,
                    size,
                    softplus,
                    wide,
                };
                self.launch(&STATE_SCAN_CHANNELS, dt, rule, grid, &args)
            }
            StateKernel::Scan | StateKernel::Steps | StateKernel::Chunks | StateKernel::Linear => {
                self.launch(&STATE_SCAN, dt, rule, grid, &args)
            }
        }
    }

    /// Memory for parts of a gradient, if it is asked for; one part of the gradient's type needs none.
    fn parts(&self, dt: DType, g: Option<&GradMut<'_>>, size: [usize; 3]) -> Result<Option<Parts>> {
        let Some(g) = g.filter(|g| g.out.numel() > 0) else { return Ok(None) };
        let is_gradient = size[1] == 1 && dt == dt.accumulator() && !g.accumulate;
        let memory =
            (!is_gradient).then(|| self.scratch(dt.accumulator(), size.iter().product())).transpose()?;
        Ok(Some(Parts { memory, size }))
    }

    fn arg_parts(&self, p: Option<&Parts>, g: Option<&GradMut<'_>>) -> Ptr {
        match (p, g) {
            (Some(Parts { memory: Some(memory), .. }), _) => self.arg_in(&memory.view()),
            (Some(_), Some(g)) => self.arg_out(&g.out),
            _ => Ptr::NULL,
        }
    }

    /// Adds parts up.
    fn sum_parts(&self, dt: DType, p: Option<Parts>, g: Option<GradMut<'_>>) -> Result<()> {
        let (Some(Parts { memory: Some(memory), size: [outer, parts, inner] }), Some(g)) = (p, g) else {
            return Ok(());
        };
        let args = StateSumArgs {
            part: self.arg_in(&memory.view()),
            y: self.arg_out(&g.out),
            outer: long(outer),
            parts: long(parts),
            inner: long(inner),
            accumulate: i32::from(g.accumulate),
        };
        self.launch(&STATE_SUM, dt, "", Grid::Stride(outer * inner), &args)
    }

    fn state_backward(&self, s: &StateScan<'_>, g: StateGrads<'_>) -> Result<()> {
        s.check_backward(&g)?;
        self.own_state_scan(s)?;
        self.check_owner(s.op, "dy", &g.dy)?;
        let StateGrads { dy, dq, dk, dv, dgate, dsecond, dskip, dz } = g;
        for out in [&dq, &dk, &dv, &dgate, &dsecond, &dskip, &dz].into_iter().flatten() {
            self.check_owner(s.op, "gradient", &out.out.as_view())?;
        }
        if s.is_empty() {
            let all = [dq, dk, dv, dgate, dsecond, dskip, dz];
            let mut zeros = all.into_iter().flatten().filter(|g| !g.accumulate && g.out.numel() > 0);
            return zeros.try_for_each(|g| ShapeOps::fill(self, 0.0, g.out));
        }
        let (n, dt) = (s.size, s.v.dtype());
        let problem = StateProblem { rule: s.rule, size: n, dtype: dt, backward: true };
        let p = self.plan_with(s.op, &problem, dt)?;
        let (part, back) = (self.state_parts_back(s, &p, None)?, self.state_parts_back(s, &p, Some(&dy))?);
        let marks = self.scratch(dt.accumulator(), p.marks(dt))?;
        let (steps, runs) = (n.batch * n.steps, n.batch * p.splits);
        let key = [steps * n.groups, n.heads / n.groups * p.tiles, n.width];
        let head = [steps * n.heads, p.tiles, 1];
        let (pq, pk) = (self.parts(dt, dq.as_ref(), key)?, self.parts(dt, dk.as_ref(), key)?);
        let selective = s.rule == StateRule::Selective;
        let size = if s.rule == StateRule::GlaPerKey { [steps * n.heads, p.tiles, n.width] } else { head };
        let pg = self.parts(dt, dgate.as_ref().filter(|_| !selective), size)?;
        let pb = self.parts(dt, dsecond.as_ref().filter(|_| s.rule == StateRule::GatedDelta), head)?;
        let (of_heads, of_rows) = ([1, runs * p.tiles, n.heads], [1, runs, n.rows]);
        let size = if selective { [1, runs, n.rows * n.width] } else { of_heads };
        let pa = self.parts(dt, dsecond.as_ref().filter(|_| s.rule != StateRule::GatedDelta), size)?;
        let pd = self.parts(dt, dskip.as_ref(), if selective { of_rows } else { of_heads })?;
        let direct = [(&dv, 1), (&dz, 2), (&dgate, 4)];
        let adds = |&(g, bit): &(&Option<GradMut<'_>>, i32)| {
            g.as_ref().map_or(0, |g| if g.accumulate { bit } else { 0 })
        };
        let out = |g: &Option<GradMut<'_>>| self.arg_opt_out(g.as_ref().map(|g| &g.out));
        let args = StateBackwardArgs {
            q: self.arg_in(&s.q),
            k: self.arg_in(&s.k),
            v: self.arg_in(&s.v),
            gate: self.arg_in(&s.gate),
            second: self.arg_opt(s.second.as_ref()),
            skip: self.arg_opt(s.skip.as_ref()),
            z: self.arg_opt(s.z.as_ref()),
            dy: self.arg_in(&dy),
            initial: self.arg_opt(s.initial.as_ref()),
            part: self.arg_opt(part.as_ref().map(Buffer::view).as_ref()),
            back: self.arg_opt(back.as_ref().map(Buffer::view).as_ref()),
            marks: self.arg_in(&marks.view()),
            dv: out(&dv),
            dz: out(&dz),
            dgate: if selective { out(&dgate) } else { Ptr::NULL },
            pq: self.arg_parts(pq.as_ref(), dq.as_ref()),
            pk: self.arg_parts(pk.as_ref(), dk.as_ref()),
            pg: self.arg_parts(pg.as_ref(), dgate.as_ref()),
            pb: self.arg_parts(pb.as_ref(), dsecond.as_ref()),
            pa: self.arg_parts(pa.as_ref(), dsecond.as_ref()),
            pd: self.arg_parts(pd.as_ref(), dskip.as_ref()),
            size: size_arg(n, &p),
            lanes: int(p.lanes),
            softplus: i32::from(s.softplus),
            wide: i32::from(wide(s)),
            accumulate: direct.iter().map(adds).sum(),
        };
        let rows = [&dv, &dz, &dgate].map(|g| g.as_ref().map(|g| g.out.as_view()));
        let columns = [&dq, &dk, &dgate].map(|g| g.as_ref().map(|g| g.out.as_view()));
        let wide = wide_rows(s, rows.iter().map(Option::as_ref).chain([Some(&dy)]));
        let sums = whole_items(n.width, dt.accumulator(), columns.iter().map(Option::as_ref));
        self.launch_backward(s, &p, args, wide | if sums { 4 } else { 0 })?;
        self.sum_parts(dt, pq, dq)?;
        self.sum_parts(dt, pk, dk)?;
        self.sum_parts(dt, pg, dgate)?;
        self.sum_parts(dt, pb.or(pa), dsecond)?;
        self.sum_parts(dt, pd, dskip)
    }

    /// The kernel of a plan; `wide` is for those that go through steps in chunks.
    fn launch_backward(
        &self,
        s: &StateScan<'_>,
        p: &StatePlan,
        args: StateBackwardArgs,
        wide: i32,
    ) -> Result<()> {
        let (dt, rule, grid) = (s.v.dtype(), rule_name(s.rule), p.grid());
        let StateBackwardArgs { q, k, v, gate, second, skip, z, dy, initial, part, back, marks, .. } = args;
        let StateBackwardArgs { dv, dz, dgate, pq, pk, pg, pb, pa, pd, size, softplus, accumulate, .. } =
            args;
        match p.kernel {
            StateKernel::Scan | StateKernel::Channels | StateKernel::Matrix | StateKernel::Steps => {
                self.launch(&STATE_BACKWARD, dt, rule, grid, &args)
            }
            StateKernel::Chunks => {
                let args = StateBackwardChunksArgs {
                    q,
                    k,
                    v,
                    gate,
                    second,
                    skip,
                    z,
                    dy,
                    initial,
                    part,
                    back,
                    marks,
                    dv,
                    dz,
                    dgate,
                    pq,
                    pk,
                    pa,
                    pd,
                    size,
                    softplus,
                    wide,
                    accumulate,
                };
                self.launch(&STATE_BACKWARD_CHUNKS, dt, rule, grid, &args)
            }
            StateKernel::Linear => {
                let dots = (s.rule == StateRule::GatedDelta)
                    .then(|| self.scratch(dt.accumulator(), s.v.numel()))
                    .transpose()?;
                let dots = self.arg_opt(dots.as_ref().map(Buffer::view).as_ref());
                let lanes = int(p.lanes);
                let args = StateBackwardLinearArgs {
                    q,
                    k,
                    v,
                    gate,
                    second,
                    skip,
                    dy,
                    initial,
                    part,
                    back,
                    marks,
                    dots,
                    dv,
                    pq,
                    pk,
                    pg,
                    pb,
                    pa,
                    pd,
                    size,
                    lanes,
                    wide,
                    accumulate,
                };
                self.launch(&STATE_BACKWARD_LINEAR, dt, rule, grid, &args)
            }
        }
    }

    /// [`Engine::state_parts`] for the runs of a backward pass, in blocks of the forward pass's shape.
    fn state_parts_back(
        &self,
        s: &StateScan<'_>,
        p: &StatePlan,
        dy: Option<&View<'_>>,
    ) -> Result<Option<Buffer>> {
        let blocks = StateProblem { rule: s.rule, size: s.size, dtype: s.v.dtype(), backward: false }.runs(p);
        self.state_parts(s, &blocks, dy)
    }

    fn recurrence(&self, r: &Recurrence<'_>) -> Result<()> {
        let ([outer, steps, inner], dt) = (r.size, r.a.dtype());
        let p = self.plan_with(r.op, &RecurrenceProblem { outer, steps, inner }, dt)?;
        let size = outer * p.splits * 2 * inner;
        let part = (p.splits > 1).then(|| self.scratch(dt.accumulator(), size)).transpose()?;
        let out = |g: Option<&GradMut<'_>>| self.arg_opt_out(g.map(|g| &g.out));
        let adds = |g: Option<&GradMut<'_>>, bit: i32| if g.is_some_and(|g| g.accumulate) { bit } else { 0 };
        let args = RecurrenceScanArgs {
            a: self.arg_in(&r.a),
            b: self.arg_in(&r.b),
            before: self.arg_opt(r.before.as_ref()),
            part: self.arg_opt(part.as_ref().map(Buffer::view).as_ref()),
            y: out(r.y),
            da: out(r.da),
            outer: long(outer),
            steps: long(steps),
            inner: long(inner),
            split: long(p.split),
            splits: int(p.splits),
            reverse: i32::from(r.reverse),
            shift: i32::from(r.shift),
            accumulate: adds(r.y, 1) | adds(r.da, 2),
        };
        let grid = Grid::Blocks([p.threads.div_ceil(crate::engine::launch::LANES), 1, 1]);
        if part.is_some() {
            let RecurrenceScanArgs { a, b, part, outer, steps, inner, split, splits, reverse, shift, .. } =
                args;
            let first =
                RecurrencePartialArgs { a, b, part, outer, steps, inner, split, splits, reverse, shift };
            self.launch(&RECURRENCE_PARTIAL, dt, "", grid, &first)?;
        }
        self.launch(&RECURRENCE_SCAN, dt, "", grid, &args)
    }
}

impl StateSpaceOps for Engine {
    fn associative_scan(&self, reverse: bool, a: View<'_>, b: View<'_>, y: ViewMut<'_>) -> Result<()> {
        const OP: &str = "associative_scan";
        let size = check_associative_scan(&a, &b, &y)?;
        self.check_owner_all(OP, &[("a", a), ("b", b), ("y", y.as_view())])?;
        if a.numel() == 0 {
            return Ok(());
        }
        let y = y.grad(false);
        let (before, da) = (None, None);
        self.recurrence(&Recurrence { op: OP, size, reverse, a, shift: false, b, before, y: Some(&y), da })
    }

    fn associative_scan_bwd(&self, reverse: bool, io: AssociativeScanBwd<'_>) -> Result<()> {
        const OP: &str = "associative_scan_bwd";
        let size = check_associative_scan_bwd(&io)?;
        self.check_owner_all(OP, &[("dy", Some(io.dy)), ("a", Some(io.a)), ("y", io.y)])?;
        for (arg, g) in [("da", &io.da), ("db", &io.db)] {
            g.as_ref().map_or(Ok(()), |g| self.check_owner(OP, arg, &g.out.as_view()))?;
        }
        if io.a.numel() == 0 || (io.da.is_none() && io.db.is_none()) {
            return Ok(());
        }
        self.recurrence(&Recurrence {
            op: OP,
            size,
            reverse: !reverse,
            a: io.a,
            shift: true,
            b: io.dy,
            before: io.y,
            y: io.db.as_ref(),
            da: io.da.as_ref(),
        })
    }

    fn gla_scan(&self, io: GlaScan<'_>) -> Result<()> {
        self.state_forward(&StateScan::gla(&io)?, io.y, io.state)
    }

    fn gla_scan_bwd(&self, io: GlaScanBwd<'_>) -> Result<()> {
        self.state_backward(&StateScan::gla_bwd(&io)?, io.grads())
    }

    fn gated_delta_scan(&self, io: GatedDeltaScan<'_>) -> Result<()> {
        self.state_forward(&StateScan::gated_delta(&io)?, io.y, io.state)
    }

    fn gated_delta_scan_bwd(&self, io: GatedDeltaScanBwd<'_>) -> Result<()> {
        self.state_backward(&StateScan::gated_delta_bwd(&io)?, io.grads())
    }

    fn selective_scan(&self, softplus: bool, io: SelectiveScan<'_>) -> Result<()> {
        self.state_forward(&StateScan::selective(softplus, &io)?, io.y, io.state)
    }

    fn selective_scan_bwd(&self, softplus: bool, io: SelectiveScanBwd<'_>) -> Result<()> {
        self.state_backward(&StateScan::selective_bwd(softplus, &io)?, io.grads())
    }

    fn ssd_scan(&self, io: SsdScan<'_>) -> Result<()> {
        self.state_forward(&StateScan::ssd(&io)?, io.y, io.state)
    }

    fn ssd_scan_bwd(&self, io: SsdScanBwd<'_>) -> Result<()> {
        self.state_backward(&StateScan::ssd_bwd(&io)?, io.grads())
    }
}
