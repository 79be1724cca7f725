//! Unary, binary and ternary arithmetic.

mod plan;

use self::plan::{BinaryBwdPlan, BinaryBwdProblem, MapPlan, MapProblem, RowCut, SharedRow};
use crate::buffer::{Buffer, GradMut, View, ViewMut};
use crate::driver::{DimsArg, Ptr};
use crate::dtype::DType;
use crate::engine::Engine;
use crate::engine::launch::{Grid, Merged, aligned16, code_of_op, dims, int, long};
use crate::engine::ops::shape::strided::magic;
use crate::error::{GpuError, Result};
use crate::ops::core::Choice;
use crate::ops::elementwise::*;
use crate::ops::reduce::ReduceOps;
use crate::spec::SIZES;
use crate::spec::elementwise::{
    AIRY, BINARY_SPECIAL, SPECIAL, binary_function, cast_function, ternary_function, unary_function,
};
use crate::spec::kernels::elementwise::*;

/// Items that a thread of `binary_nd` takes (`GK_ND_RUNS`).
const ND_RUNS: usize = 2;

/// Elements in 16 bytes.
fn vector(d: DType) -> usize {
    16 / d.size()
}

/// Rank, shape and strides of merged axes.
pub(in crate::engine::ops) fn merged_axes<const N: usize>(m: &Merged<N>) -> (i32, DimsArg, [DimsArg; N]) {
    let strides = std::array::from_fn(|k| dims(m.strides[k].iter().copied()));
    (m.shape.len() as i32, dims(m.shape.iter().copied()), strides)
}

/// Whether all operands are free of gaps and 16-byte aligned.
fn is_flat<const N: usize>(m: &Merged<N>, views: [&View<'_>; N]) -> bool {
    (0..N).all(|k| m.is_flat(k)) && views.into_iter().all(aligned16)
}

/// Makes an item of `w` elements along the innermost axis where all operands either step by 1 from aligned places or repeat there. Bit k of the
/// answer says that operand k steps; 0 means that nothing was changed.
fn widen<const N: usize>(m: &mut Merged<N>, views: [&View<'_>; N], w: usize) -> i32 {
    let last = m.shape.len() - 1;
    let mut bits = 0;
    for (k, v) in views.into_iter().enumerate() {
        let s = &m.strides[k];
        let steps = s[last] == 1 && aligned16(v) && s[..last].iter().all(|x| x.is_multiple_of(w));
        if !steps && s[last] != 0 {
            return 0;
        }
        bits |= i32::from(steps) << k;
    }
    if !m.shape[last].is_multiple_of(w) {
        return 0;
    }
    m.shape[last] /= w;
    for s in m.strides.iter_mut().filter(|s| s[last] == 1) {
        s[last] = w;
    }
    bits
}

/// The view repeated to a shape that it is known to broadcast to.
fn spread<'a>(v: &View<'a>, shape: &[usize]) -> Result<View<'a>> {
    v.broadcast_to(shape)
}

/// Where a gradient is computed at the shape of dy: in place, or in scratch memory that is summed to the operand's shape afterwards.
struct Full<'a> {
    grad: Option<GradMut<'a>>,
    scratch: Option<Buffer>,
}

impl<'a> Full<'a> {
    fn new(engine: &Engine, grad: Option<GradMut<'a>>, shape: &[usize]) -> Result<Self> {
        let scratch = match &grad {
            Some(g) if g.out.shape() != shape => Some(engine.scratch(g.out.dtype(), shape.iter().product())?),
            _ => None,
        };
        Ok(Full { grad, scratch })
    }

    /// The destination; `like` stands for an absent one.
    fn view<'b>(&'b self, like: &View<'b>, shape: &[usize]) -> Result<View<'b>> {
        match (&self.scratch, &self.grad) {
            (Some(b), _) => b.shaped(shape),
            (None, Some(g)) => Ok(g.out.as_view()),
            (None, None) => Ok(*like),
        }
    }

    fn arg(&self, engine: &Engine, view: &View<'_>) -> Ptr {
        if self.grad.is_some() { engine.arg_in(view) } else { Ptr::NULL }
    }

    fn accumulate(&self) -> bool {
        self.scratch.is_none() && self.grad.as_ref().is_some_and(|g| g.accumulate)
    }

    fn finish(self, engine: &Engine, shape: &[usize]) -> Result<()> {
        match (self.grad, self.scratch) {
            (Some(g), Some(b)) => engine.sum_to_shape(b.shaped(shape)?, g),
            _ => Ok(()),
        }
    }
}

/// A matrix's sizes as rows and columns, and the operand that is a row which all its rows share: dy and the other operand have no gaps, it repeats
/// over leading axes only.
fn shared_row(dy: &View<'_>, a: &View<'_>, b: &View<'_>) -> Option<([usize; 2], SharedRow)> {
    let m = Merged::new([dy.layout(), a.layout(), b.layout()]);
    let (rows, cols) = match m.shape[..] {
        [n] => (n, 1),
        [r, c] => (r, c),
        _ => return None,
    };
    let matrix = |s: &[usize]| s == [cols, 1] || s == [1];
    let row = |s: &[usize]| s == [0, 1] || s == [0];
    let [g, s, t] = &m.strides;
    if !matrix(g) {
        return None;
    }
    match (matrix(s) && row(t), row(s) && matrix(t)) {
        (true, _) => Some(([rows, cols], SharedRow::B)),
        (_, true) => Some(([rows, cols], SharedRow::A)),
        _ => None,
    }
}

/// What decides how the gradients of a binary function run; a and b are broadcast to dy's shape.
fn bwd_problem([dy, a, b]: [&View<'_>; 3], [da, db]: [Option<&GradMut<'_>>; 2]) -> BinaryBwdProblem {
    let dtype = dy.dtype();
    let gapless = |g: &GradMut<'_>| g.out.is_contiguous();
    let found = shared_row(dy, a, b).filter(|([_, cols], side)| {
        let (row, other) = match side {
            SharedRow::A => (da, db),
            SharedRow::B => (db, da),
        };
        // An operand that was expanded by the caller looks like a row, but wants a gradient for each of its elements.
        row.is_some_and(|g| gapless(g) && g.out.numel() == *cols) && other.is_none_or(gapless)
    });
    let Some(([rows, cols], side)) = found else {
        return BinaryBwdProblem { rows: 1, cols: dy.numel(), shared: None, dtype, aligned: false };
    };
    let other = if side == SharedRow::A { db } else { da };
    let aligned = [dy, a, b].into_iter().all(aligned16) && other.is_none_or(|g| aligned16(&g.out.as_view()));
    BinaryBwdProblem { rows, cols, shared: Some(side), dtype, aligned }
}

/// Whether operands are addressed by position.
fn map_problem<const N: usize>(m: &Merged<N>, views: [&View<'_>; N]) -> MapProblem {
    MapProblem { flat: (0..N).all(|k| m.is_flat(k)), aligned: views.into_iter().all(aligned16) }
}

/// Grid of `unary_flat` and `unary_bwd_flat`, whose threads take `runs` vectors each of 16-bit values (`GK_RUNS`, `GK_BWD_RUNS`).
pub(crate) fn flat_grid(n: usize, dt: DType, wide: bool, runs: usize) -> Grid {
    let runs = if vector(dt) >= 8 { runs } else { 1 };
    Grid::Stride(if wide { n.div_ceil(vector(dt) * runs) } else { n })
}

/// Whether a function has the kernels of `elementwise/unary_special.c`.
fn is_special(function: &str) -> bool {
    SPECIAL.contains(&function)
}

/// Whether a function has the kernels of `elementwise/unary_airy.c`.
fn is_airy(function: &str) -> bool {
    AIRY.contains(&function)
}

/// Whether a function has the kernels of `elementwise/binary_special.c`.
fn is_binary_special(function: &str) -> bool {
    BINARY_SPECIAL.contains(&function)
}

impl Engine {
    /// What serves functions of contiguous f32 operands, or the gradients of a matrix of 4096 x 1024 with a bias.
    pub(crate) fn explain_elementwise(&self, op: &'static str) -> Result<Choice> {
        if op == "binary_bwd" {
            let (shared, dtype) = (Some(SharedRow::B), DType::F32);
            let p = BinaryBwdProblem { rows: 4096, cols: 1024, shared, dtype, aligned: true };
            return self.explain_problem(op, &p);
        }
        self.explain_problem(op, &MapProblem { flat: true, aligned: true })
    }

    /// y = f(x) for any function of `elementwise/unary_ops.h` and `activation/activation_ops.h`; operands are checked.
    pub(in crate::engine::ops) fn map(
        &self,
        op: &'static str,
        function: &'static str,
        x: &View<'_>,
        y: &ViewMut<'_>,
        [p, q, s]: [f64; 3],
    ) -> Result<()> {
        let count = x.numel();
        if count == 0 {
            return Ok(());
        }
        let (dt, v) = (x.dtype(), y.as_view());
        let m = Merged::in_order_of(1, [x.layout(), v.layout()]);
        let problem = map_problem(&m, [x, &v]);
        let (rank, shape, [sx, sy]) = merged_axes(&m);
        let (x, y, n) = (self.arg_in(x), self.arg_in(&v), long(count));
        if v.dtype() != dt {
            let wide = problem.flat && problem.aligned;
            let args = UnaryMaskArgs { x, y, n, wide: i32::from(wide), rank, shape, sx, sy, p, q, s };
            let grid = Grid::Stride(if wide { count.div_ceil(vector(dt)) } else { count });
            return self.launch(&UNARY_MASK, dt, function, grid, &args);
        }
        match self.plan(op, &problem)? {
            MapPlan::Flat { wide } => {
                let args = UnaryFlatArgs { x, y, n, wide: i32::from(wide), p, q, s };
                let kernel = match function {
                    f if is_special(f) => &SPECIAL_FLAT,
                    f if is_airy(f) => &AIRY_FLAT,
                    _ => &UNARY_FLAT,
                };
                self.launch(kernel, dt, function, flat_grid(count, dt, wide, 4), &args)
            }
            MapPlan::Strided => {
                let args = UnaryNdArgs { x, y, n, rank, shape, sx, sy, p, q, s };
                let kernel = match function {
                    f if is_special(f) => &SPECIAL_ND,
                    f if is_airy(f) => &AIRY_ND,
                    _ => &UNARY_ND,
                };
                self.launch(kernel, dt, function, Grid::Stride(count), &args)
            }
        }
    }

    /// dx (+)= g(dy, saved) for any function of `elementwise/unary_ops.h` and `activation/activation_ops.h`; operands are checked.
    pub(in crate::engine::ops) fn map_bwd(
        &self,
        op: &'static str,
        function: &'static str,
        [dy, saved]: [&View<'_>; 2],
        dx: &GradMut<'_>,
        [p, q, s]: [f64; 3],
    ) -> Result<()> {
        let count = dy.numel();
        if count == 0 {
            return Ok(());
        }
        let (dt, v) = (dy.dtype(), dx.out.as_view());
        let m = Merged::in_order_of(2, [dy.layout(), saved.layout(), v.layout()]);
        let plan = self.plan(op, &map_problem(&m, [dy, saved, &v]))?;
        let (dy, x, accumulate) = (self.arg_in(dy), self.arg_in(saved), i32::from(dx.accumulate));
        let (dx, n) = (self.arg_in(&v), long(count));
        match plan {
            MapPlan::Flat { wide } => {
                let args = UnaryBwdFlatArgs { dy, x, dx, n, wide: i32::from(wide), accumulate, p, q, s };
                let kernel = if is_special(function) { &SPECIAL_BWD_FLAT } else { &UNARY_BWD_FLAT };
                self.launch(kernel, dt, function, flat_grid(count, dt, wide, 2), &args)
            }
            MapPlan::Strided => {
                let (rank, shape, [sdy, sx, sdx]) = merged_axes(&m);
                let args = UnaryBwdNdArgs { dy, x, dx, n, rank, shape, sdy, sx, sdx, accumulate, p, q, s };
                let kernel = if is_special(function) { &SPECIAL_BWD_ND } else { &UNARY_BWD_ND };
                self.launch(kernel, dt, function, Grid::Stride(count), &args)
            }
        }
    }

    /// y = f(a, b); operands have y's shape.
    fn map2(&self, op: Binary, a: &View<'_>, b: &View<'_>, y: &View<'_>) -> Result<()> {
        const OP: &str = "binary";
        let (dt, count) = (a.dtype(), y.numel());
        let Some((name, [p, q])) = binary_function(op, dt) else { return self.ldexp(a, b, y, false) };
        let mut m = Merged::in_order_of(0, [y.layout(), a.layout(), b.layout()]);
        let views = [y, a, b];
        let problem = map_problem(&m, views);
        let by_vector = |wide: bool| Grid::Stride(if wide { count.div_ceil(vector(dt)) } else { count });
        let ([y_arg, a, b], n) = (views.map(|v| self.arg_in(v)), long(count));
        let (rank, shape, [sy, sa, sb]) = merged_axes(&m);
        if !dt.is_float() && matches!(op, Binary::DivFloor | Binary::DivTrunc) {
            let (y, err, code) = (y_arg, self.arg_error(), code_of_op(OP));
            let args = BinaryIntDivArgs { a, b, y, n, rank, shape, sa, sb, sy, err, code };
            return self.launch(&BINARY_INT_DIV, dt, name, Grid::Stride(count), &args);
        }
        if y.dtype() != dt {
            let (y, wide) = (y_arg, problem.flat && problem.aligned);
            let grid = by_vector(wide);
            let wide = i32::from(wide);
            let args = BinaryMaskArgs { a, b, y, n, wide, rank, shape, sa, sb, sy, p, q };
            return self.launch(&BINARY_MASK, dt, name, grid, &args);
        }
        let special = is_binary_special(name);
        if let MapPlan::Flat { wide } = self.plan(OP, &problem)? {
            let (wide, kernel) = if special { (false, &BINARY_SPECIAL_FLAT) } else { (wide, &BINARY_FLAT) };
            let args = BinaryFlatArgs { a, b, y: y_arg, n, wide: i32::from(wide), p, q };
            return self.launch(kernel, dt, name, by_vector(wide), &args);
        }
        if special {
            let (y, magic) = (y_arg, magic(m.shape.iter().copied()));
            let args = BinaryNdArgs { a, b, y, n, rank, shape, magic, sa, sb, sy, wide: 0, p, q };
            return self.launch(&BINARY_SPECIAL_ND, dt, name, Grid::Stride(count), &args);
        }
        let wide = widen(&mut m, views, vector(dt));
        let items: usize = m.shape.iter().product();
        let (rank, shape, [sy, sa, sb]) = merged_axes(&m);
        let (y, n, magic) = (y_arg, long(items), magic(m.shape.iter().copied()));
        let args = BinaryNdArgs { a, b, y, n, rank, shape, magic, sa, sb, sy, wide, p, q };
        self.launch(&BINARY_ND, dt, name, Grid::Stride(items.div_ceil(ND_RUNS)), &args)
    }

    /// y (+)= a * 2^e; operands have one shape.
    fn ldexp(&self, a: &View<'_>, e: &View<'_>, y: &View<'_>, accumulate: bool) -> Result<()> {
        let n = y.numel();
        let (rank, shape, [sa, se, sy]) = merged_axes(&Merged::new([a.layout(), e.layout(), y.layout()]));
        let args = LdexpNdArgs {
            a: self.arg_in(a),
            e: self.arg_in(e),
            y: self.arg_in(y),
            n: n as i64,
            rank,
            shape,
            sa,
            se,
            sy,
            accumulate: i32::from(accumulate),
        };
        self.launch(&LDEXP_ND, a.dtype(), "", Grid::Stride(n), &args)
    }

    /// Both gradients where one operand is a row shared by a matrix's rows: see `binary_bwd_rows`.
    fn bwd_rows(
        &self,
        op: Binary,
        problem: &BinaryBwdProblem,
        cut: &RowCut,
        [dy, x, v]: [&View<'_>; 3],
        [dx, dv]: [Option<&GradMut<'_>>; 2],
    ) -> Result<()> {
        let dt = dy.dtype();
        let (Some((name, [p, q])), Some(dv)) = (binary_function(op, dt), dv) else { return Ok(()) };
        let BinaryBwdProblem { rows, cols, shared, .. } = *problem;
        let part = self.scratch(dt.accumulator(), cut.slices * cols)?;
        let args = BinaryBwdRowsArgs {
            dy: self.arg_in(dy),
            x: self.arg_in(x),
            v: self.arg_in(v),
            dx: self.arg_opt_out(dx.map(|g| &g.out)),
            part: self.arg_in(&part.view()),
            rows: long(rows),
            cols: long(cols),
            lanes: int(cut.lanes),
            wide: i32::from(cut.wide),
            row_first: i32::from(shared == Some(SharedRow::A)),
            accumulate: i32::from(dx.is_some_and(|g| g.accumulate)),
            p,
            q,
        };
        self.launch(&BINARY_BWD_ROWS, dt, name, Grid::Blocks([cut.stripes, cut.slices, 1]), &args)?;
        let args = BinaryBwdFoldArgs {
            part: self.arg_in(&part.view()),
            dv: self.arg_out(&dv.out),
            slices: long(cut.slices),
            cols: long(cols),
            accumulate: i32::from(dv.accumulate),
        };
        self.launch(&BINARY_BWD_FOLD, dt, name, Grid::Blocks([cols.div_ceil(8), 1, 1]), &args)
    }

    /// Both gradients at dy's shape, summed to the shapes of the operands.
    fn bwd_strided(
        &self,
        op: Binary,
        [dy, a, b]: [View<'_>; 3],
        [da, db]: [Option<GradMut<'_>>; 2],
    ) -> Result<()> {
        let (dt, shape) = (dy.dtype(), dy.shape());
        let Some((name, [p, q])) = binary_function(op, dt) else { return Ok(()) };
        let (fa, fb) = (Full::new(self, da, shape)?, Full::new(self, db, shape)?);
        if fa.grad.is_some() || fb.grad.is_some() {
            let (va, vb) = (fa.view(&dy, shape)?, fb.view(&dy, shape)?);
            let views = [&dy, &a, &b, &va, &vb];
            let mut m = Merged::in_order_of(0, views.map(|v| v.layout()));
            let special = is_binary_special(name);
            let bits = if special { 0 } else { widen(&mut m, views, vector(dt)) };
            // The kernel's bits: 0 on, 1 a, 2 b, 3 dy.
            let wide = if bits == 0 { 0 } else { 1 | (bits & 6) | ((bits & 1) << 3) };
            let items: usize = m.shape.iter().product();
            let (rank, shape, [sdy, sa, sb, sda, sdb]) = merged_axes(&m);
            let args = BinaryBwdNdArgs {
                dy: self.arg_in(&dy),
                a: self.arg_in(&a),
                b: self.arg_in(&b),
                da: fa.arg(self, &va),
                db: fb.arg(self, &vb),
                n: items as i64,
                rank,
                shape,
                sdy,
                sa,
                sb,
                sda,
                sdb,
                wide,
                acc_a: i32::from(fa.accumulate()),
                acc_b: i32::from(fb.accumulate()),
                p,
                q,
            };
            let kernel = if special { &BINARY_SPECIAL_BWD } else { &BINARY_BWD_ND };
            self.launch(kernel, dt, name, Grid::Stride(items), &args)?;
        }
        fa.finish(self, shape)?;
        fb.finish(self, shape)
    }

    /// Sums an empty gradient of dy's shape: zeros where an operand is not empty.
    fn empty_grads<'a>(
        &self,
        dy: &View<'_>,
        grads: impl IntoIterator<Item = Option<GradMut<'a>>>,
    ) -> Result<()> {
        grads.into_iter().flatten().try_for_each(|g| self.sum_to_shape(*dy, g))
    }
}

impl ElementwiseOps for Engine {
    fn unary(&self, op: Unary, x: View<'_>, y: ViewMut<'_>) -> Result<()> {
        check_unary(op, &x, &y)?;
        self.check_owner("unary", "x", &x)?;
        self.check_owner("unary", "y", &y.as_view())?;
        let Some((name, params)) = unary_function(op, x.dtype()) else { return Ok(()) };
        self.map("unary", name, &x, &y, params)
    }

    fn unary_bwd(&self, op: Unary, dy: View<'_>, x: View<'_>, dx: GradMut<'_>) -> Result<()> {
        check_unary_bwd(op, &dy, &x, &dx)?;
        self.check_owner("unary_bwd", "dy", &dy)?;
        self.check_owner("unary_bwd", "x", &x)?;
        self.check_owner("unary_bwd", "dx", &dx.out.as_view())?;
        let Some((name, params)) = unary_function(op, x.dtype()) else { return Ok(()) };
        self.map_bwd("unary_bwd", name, [&dy, &x], &dx, params)
    }

    fn binary(&self, op: Binary, a: View<'_>, b: View<'_>, y: ViewMut<'_>) -> Result<()> {
        check_binary(op, &a, &b, &y)?;
        let v = y.as_view();
        for (arg, view) in [("a", &a), ("b", &b), ("y", &v)] {
            self.check_owner("binary", arg, view)?;
        }
        if v.numel() == 0 {
            return Ok(());
        }
        self.map2(op, &spread(&a, v.shape())?, &spread(&b, v.shape())?, &v)
    }

    fn binary_bwd(&self, op: Binary, io: BinaryBwd<'_>) -> Result<()> {
        const OP: &str = "binary_bwd";
        check_binary_bwd(op, &io)?;
        let BinaryBwd { dy, a, b, da, db } = io;
        for (arg, view) in [("dy", &dy), ("a", &a), ("b", &b)] {
            self.check_owner(OP, arg, view)?;
        }
        for (arg, grad) in [("da", &da), ("db", &db)] {
            grad.as_ref().map_or(Ok(()), |g| self.check_owner(OP, arg, &g.out.as_view()))?;
        }
        let (dt, n, shape) = (dy.dtype(), dy.numel(), dy.shape());
        if n == 0 {
            return self.empty_grads(&dy, [da, db]);
        }
        let (a, b) = (spread(&a, shape)?, spread(&b, shape)?);
        if binary_function(op, dt).is_none() {
            // Ldexp: the gradient is the function itself, of dy.
            let full = Full::new(self, da, shape)?;
            let v = full.view(&dy, shape)?;
            if full.grad.is_some() {
                self.ldexp(&dy, &b, &v, full.accumulate())?;
            }
            return full.finish(self, shape);
        }
        let mut problem = bwd_problem([&dy, &a, &b], [da.as_ref(), db.as_ref()]);
        if matches!(op, Binary::Igamma | Binary::Igammac) {
            problem.shared = None;
        }
        match self.plan(OP, &problem)? {
            BinaryBwdPlan::SharedRow(cut) if problem.shared == Some(SharedRow::A) => {
                let grads = [db.as_ref(), da.as_ref()];
                self.bwd_rows(op, &problem, &cut, [&dy, &b, &a], grads)
            }
            BinaryBwdPlan::SharedRow(cut) => {
                let grads = [da.as_ref(), db.as_ref()];
                self.bwd_rows(op, &problem, &cut, [&dy, &a, &b], grads)
            }
            BinaryBwdPlan::Strided => self.bwd_strided(op, [dy, a, b], [da, db]),
        }
    }

    fn ternary(&self, op: Ternary, a: View<'_>, b: View<'_>, c: View<'_>, y: ViewMut<'_>) -> Result<()> {
        check_ternary(op, &a, &b, &c, &y)?;
        let y = y.as_view();
        for (arg, view) in [("a", &a), ("b", &b), ("c", &c), ("y", &y)] {
            self.check_owner("ternary", arg, view)?;
        }
        let (dt, n) = (b.dtype(), y.numel());
        if n == 0 {
            return Ok(());
        }
        let [a, b, c] = [spread(&a, y.shape())?, spread(&b, y.shape())?, spread(&c, y.shape())?];
        let mut m = Merged::in_order_of(3, [a.layout(), b.layout(), c.layout(), y.layout()]);
        let views = [&a, &b, &c, &y];
        let [pa, pb, pc, py] = views.map(|v| self.arg_in(v));
        let Some((name, [p])) = ternary_function(op, dt) else {
            // Where copies bits, through a type of the same size.
            let by_size = SIZES.iter().copied().find(|t| t.size() == dt.size());
            let unit = by_size.ok_or_else(|| {
                GpuError::invalid("ternary", "b", "an element of 1, 2, 4 or 8 bytes", dt.name())
            })?;
            let wide = is_flat(&m, views);
            let (rank, shape, [sc, sa, sb, sy]) = merged_axes(&m);
            let args = WhereNdArgs {
                c: pa,
                a: pb,
                b: pc,
                y: py,
                n: n as i64,
                wide: i32::from(wide),
                rank,
                shape,
                sc,
                sa,
                sb,
                sy,
            };
            let items = if wide { n.div_ceil(vector(dt)) } else { n };
            return self.launch(&WHERE_ND, unit, "", Grid::Stride(items), &args);
        };
        let bits = widen(&mut m, views, vector(dt));
        let items: usize = m.shape.iter().product();
        let (rank, shape, [sa, sb, sc, sy]) = merged_axes(&m);
        let args = TernaryNdArgs {
            a: pa,
            b: pb,
            c: pc,
            y: py,
            n: items as i64,
            rank,
            shape,
            sa,
            sb,
            sc,
            sy,
            // The kernel's bits: 0 on, 1 a, 2 b, 3 c.
            wide: if bits == 0 { 0 } else { 1 | ((bits & 7) << 1) },
            p,
        };
        self.launch(&TERNARY_ND, dt, name, Grid::Stride(items), &args)
    }

    fn ternary_bwd(&self, op: Ternary, io: TernaryBwd<'_>) -> Result<()> {
        const OP: &str = "ternary_bwd";
        check_ternary_bwd(op, &io)?;
        let TernaryBwd { dy, a, b, c, da, db, dc } = io;
        for (arg, view) in [("dy", &dy), ("a", &a), ("b", &b), ("c", &c)] {
            self.check_owner(OP, arg, view)?;
        }
        for (arg, grad) in [("da", &da), ("db", &db), ("dc", &dc)] {
            grad.as_ref().map_or(Ok(()), |g| self.check_owner(OP, arg, &g.out.as_view()))?;
        }
        let (dt, n, shape) = (dy.dtype(), dy.numel(), dy.shape());
        if n == 0 {
            return self.empty_grads(&dy, [da, db, dc]);
        }
        if da.is_none() && db.is_none() && dc.is_none() {
            return Ok(());
        }
        let [a, b, c] = [spread(&a, shape)?, spread(&b, shape)?, spread(&c, shape)?];
        let full = [Full::new(self, da, shape)?, Full::new(self, db, shape)?, Full::new(self, dc, shape)?];
        let [va, vb, vc] = [full[0].view(&dy, shape)?, full[1].view(&dy, shape)?, full[2].view(&dy, shape)?];
        let [da, db, dc] = [full[0].arg(self, &va), full[1].arg(self, &vb), full[2].arg(self, &vc)];
        if let Some((name, [p])) = ternary_function(op, dt) {
            let m = Merged::in_order_of(0, [&dy, &a, &b, &c, &va, &vb, &vc].map(|v| v.layout()));
            let (rank, shape, [sdy, sa, sb, sc, sda, sdb, sdc]) = merged_axes(&m);
            let args = TernaryBwdNdArgs {
                dy: self.arg_in(&dy),
                a: self.arg_in(&a),
                b: self.arg_in(&b),
                c: self.arg_in(&c),
                da,
                db,
                dc,
                n: n as i64,
                rank,
                shape,
                sdy,
                sa,
                sb,
                sc,
                sda,
                sdb,
                sdc,
                // Bit k: the gradient of operand k is added to what is there.
                accumulate: full.iter().enumerate().map(|(k, f)| i32::from(f.accumulate()) << k).sum(),
                p,
            };
            self.launch(&TERNARY_BWD_ND, dt, name, Grid::Stride(n), &args)?;
        } else {
            // Where: `a` is the condition; the gradients of the two values are the kernel's da and db.
            let m = Merged::in_order_of(0, [&dy, &a, &vb, &vc].map(|v| v.layout()));
            let (rank, shape, [sdy, sc, sda, sdb]) = merged_axes(&m);
            let args = WhereBwdArgs {
                dy: self.arg_in(&dy),
                c: self.arg_in(&a),
                da: db,
                db: dc,
                n: n as i64,
                rank,
                shape,
                sdy,
                sc,
                sda,
                sdb,
                acc_a: i32::from(full[1].accumulate()),
                acc_b: i32::from(full[2].accumulate()),
            };
            self.launch(&WHERE_BWD, dt, "", Grid::Stride(n), &args)?;
        }
        full.into_iter().try_for_each(|f| f.finish(self, shape))
    }

    fn cast(&self, x: View<'_>, y: ViewMut<'_>) -> Result<()> {
        check_cast(&x, &y)?;
        let v = y.as_view();
        self.check_owner("cast", "x", &x)?;
        self.check_owner("cast", "y", &v)?;
        let n = x.numel();
        if n == 0 {
            return Ok(());
        }
        let m = Merged::in_order_of(1, [x.layout(), v.layout()]);
        let wide = is_flat(&m, [&x, &v]);
        let (rank, shape, [sx, sy]) = merged_axes(&m);
        let args = CastNdArgs {
            x: self.arg_in(&x),
            y: self.arg_in(&v),
            n: n as i64,
            wide: i32::from(wide),
            rank,
            shape,
            sx,
            sy,
        };
        let items = if wide { n.div_ceil(vector(x.dtype()).max(vector(v.dtype()))) } else { n };
        self.launch(&CAST_ND, x.dtype(), cast_function(v.dtype()), Grid::Stride(items), &args)
    }
}
