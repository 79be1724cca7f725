//! Unary, binary and ternary arithmetic.

use crate::buffer::{Buffer, GradMut, View, ViewMut};
use crate::driver::{DimsArg, Ptr};
use crate::dtype::DType;
use crate::engine::Engine;
use crate::engine::launch::{Grid, MAX_GRID_YZ, Merged, aligned16, code_of_op, dims};
use crate::engine::ops::shape::strided::magic;
use crate::error::{GpuError, Result};
use crate::ops::elementwise::*;
use crate::ops::reduce::ReduceOps;
use crate::spec::elementwise::{binary_function, cast_function, ternary_function, unary_function};
use crate::spec::kernels::elementwise::*;
use crate::spec::{BLOCK, SIZES};

/// Items that a work-item of `binary_nd` takes (`GK_ND_RUNS`).
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

/// A problem for `binary_bwd_rows`: a matrix and a row that all its rows share.
struct Rows {
    rows: usize,
    cols: usize,
    /// Whether the shared row is the first operand.
    row_first: bool,
}

impl Rows {
    /// dy and the matrix have no gaps, the other operand repeats over leading axes only.
    fn find(dy: &View<'_>, a: &View<'_>, b: &View<'_>) -> Option<Rows> {
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
            (true, _) => Some(Rows { rows, cols, row_first: false }),
            (_, true) => Some(Rows { rows, cols, row_first: true }),
            _ => None,
        }
    }
}

/// Grid of `unary_flat` and `unary_bwd_flat`, whose work-items take `runs` vectors each of 16-bit values (`GK_RUNS`, `GK_BWD_RUNS`).
pub(crate) fn flat_grid(n: usize, dt: DType, wide: bool, runs: usize) -> Grid {
    let runs = if vector(dt) >= 8 { runs } else { 1 };
    Grid::Stride(if wide { n.div_ceil(vector(dt) * runs) } else { n })
}

impl Engine {
    /// y = f(x) for any function of `elementwise/unary_ops.h` and `activation/activation_ops.h`; operands are checked.
    pub(in crate::engine::ops) fn map(
        &self,
        op: &'static str,
        x: &View<'_>,
        y: &ViewMut<'_>,
        [p, q, s]: [f64; 3],
    ) -> Result<()> {
        let n = x.numel();
        if n == 0 {
            return Ok(());
        }
        let (dt, v) = (x.dtype(), y.as_view());
        let m = Merged::new([x.layout(), v.layout()]);
        let wide = is_flat(&m, [x, &v]);
        let (rank, shape, [sx, sy]) = merged_axes(&m);
        let (x, y, items) = (self.arg_in(x), self.arg_in(&v), n as i64);
        if v.dtype() != dt {
            let args = UnaryMaskArgs { x, y, n: items, wide: i32::from(wide), rank, shape, sx, sy, p, q, s };
            let grid = Grid::Stride(if wide { n.div_ceil(vector(dt)) } else { n });
            return self.launch(&UNARY_MASK, dt, op, grid, &args);
        }
        if m.is_flat(0) && m.is_flat(1) {
            let args = UnaryFlatArgs { x, y, n: items, wide: i32::from(wide), p, q, s };
            return self.launch(&UNARY_FLAT, dt, op, flat_grid(n, dt, wide, 4), &args);
        }
        let args = UnaryNdArgs { x, y, n: items, rank, shape, sx, sy, p, q, s };
        self.launch(&UNARY_ND, dt, op, Grid::Stride(n), &args)
    }

    /// dx (+)= g(dy, saved) for any function of `elementwise/unary_ops.h` and `activation/activation_ops.h`; operands are checked.
    pub(in crate::engine::ops) fn map_bwd(
        &self,
        op: &'static str,
        dy: &View<'_>,
        saved: &View<'_>,
        dx: &GradMut<'_>,
        [p, q, s]: [f64; 3],
    ) -> Result<()> {
        let n = dy.numel();
        if n == 0 {
            return Ok(());
        }
        let (dt, v) = (dy.dtype(), dx.out.as_view());
        let m = Merged::new([dy.layout(), saved.layout(), v.layout()]);
        let wide = is_flat(&m, [dy, saved, &v]);
        let (dy, x, accumulate) = (self.arg_in(dy), self.arg_in(saved), i32::from(dx.accumulate));
        let (dx, items) = (self.arg_in(&v), n as i64);
        if (0..3).all(|k| m.is_flat(k)) {
            let args = UnaryBwdFlatArgs { dy, x, dx, n: items, wide: i32::from(wide), accumulate, p, q, s };
            return self.launch(&UNARY_BWD_FLAT, dt, op, flat_grid(n, dt, wide, 2), &args);
        }
        let (rank, shape, [sdy, sx, sdx]) = merged_axes(&m);
        let args = UnaryBwdNdArgs { dy, x, dx, n: items, rank, shape, sdy, sx, sdx, accumulate, p, q, s };
        self.launch(&UNARY_BWD_ND, dt, op, Grid::Stride(n), &args)
    }

    /// y = f(a, b); operands have y's shape.
    fn map2(&self, op: Binary, a: &View<'_>, b: &View<'_>, y: &View<'_>) -> Result<()> {
        let (dt, n) = (a.dtype(), y.numel());
        let Some((name, [p, q])) = binary_function(op, dt) else { return self.ldexp(a, b, y, false) };
        let mut m = Merged::new([y.layout(), a.layout(), b.layout()]);
        let flat = is_flat(&m, [y, a, b]);
        let wide = i32::from(flat);
        let grid = Grid::Stride(if flat { n.div_ceil(vector(dt)) } else { n });
        let (pa, pb, py) = (self.arg_in(a), self.arg_in(b), self.arg_in(y));
        let (rank, shape, [sy, sa, sb]) = merged_axes(&m);
        if !dt.is_float() && matches!(op, Binary::DivFloor | Binary::DivTrunc) {
            let (err, code) = (self.arg_error(), code_of_op("binary"));
            let args =
                BinaryIntDivArgs { a: pa, b: pb, y: py, n: n as i64, rank, shape, sa, sb, sy, err, code };
            return self.launch(&BINARY_INT_DIV, dt, name, Grid::Stride(n), &args);
        }
        if y.dtype() != dt {
            let args =
                BinaryMaskArgs { a: pa, b: pb, y: py, n: n as i64, wide, rank, shape, sa, sb, sy, p, q };
            return self.launch(&BINARY_MASK, dt, name, grid, &args);
        }
        if (0..3).all(|k| m.is_flat(k)) {
            let args = BinaryFlatArgs { a: pa, b: pb, y: py, n: n as i64, wide, p, q };
            return self.launch(&BINARY_FLAT, dt, name, grid, &args);
        }
        let bits = widen(&mut m, [y, a, b], vector(dt));
        let items: usize = m.shape.iter().product();
        let (rank, shape, [sy, sa, sb]) = merged_axes(&m);
        let args = BinaryNdArgs {
            a: pa,
            b: pb,
            y: py,
            n: items as i64,
            rank,
            shape,
            magic: magic(m.shape.iter().copied()),
            sa,
            sb,
            sy,
            wide: bits,
            p,
            q,
        };
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
        problem: &Rows,
        [dy, x, v]: [&View<'_>; 3],
        dx: Option<&GradMut<'_>>,
        dv: &GradMut<'_>,
    ) -> Result<()> {
        let dt = dy.dtype();
        let Some((name, [p, q])) = binary_function(op, dt) else { return Ok(()) };
        let &Rows { rows, cols, row_first } = problem;
        let out = dx.map(|g| g.out.as_view());
        let wide = cols.is_multiple_of(vector(dt))
            && [Some(*dy), Some(*x), Some(*v), out].iter().flatten().all(aligned16);
        let across = if wide { cols / vector(dt) } else { cols };
        let lanes = across.next_power_of_two().min(BLOCK as usize);
        let stripes = across.div_ceil(lanes);
        let caps = self.device_caps();
        let fill = caps.compute_units as usize * if caps.is_cpu { 2 } else { 8 };
        let at_once = BLOCK as usize / lanes;
        let slices = (fill / stripes).clamp(1, MAX_GRID_YZ).min(rows.div_ceil(at_once * 4));
        let part = self.scratch(dt.accumulator(), slices * cols)?;
        let args = BinaryBwdRowsArgs {
            dy: self.arg_in(dy),
            x: self.arg_in(x),
            v: self.arg_in(v),
            dx: self.arg_opt(out.as_ref()),
            part: self.arg_in(&part.view()),
            rows: rows as i64,
            cols: cols as i64,
            lanes: lanes as i32,
            wide: i32::from(wide),
            row_first: i32::from(row_first),
            accumulate: i32::from(dx.is_some_and(|g| g.accumulate)),
            p,
            q,
        };
        self.launch(&BINARY_BWD_ROWS, dt, name, Grid::Blocks([stripes, slices, 1]), &args)?;
        let args = BinaryBwdFoldArgs {
            part: self.arg_in(&part.view()),
            dv: self.arg_out(&dv.out),
            slices: slices as i64,
            cols: cols as i64,
            accumulate: i32::from(dv.accumulate),
        };
        self.launch(&BINARY_BWD_FOLD, dt, name, Grid::Blocks([cols.div_ceil(8), 1, 1]), &args)
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
        self.map(name, &x, &y, params)
    }

    fn unary_bwd(&self, op: Unary, dy: View<'_>, x: View<'_>, dx: GradMut<'_>) -> Result<()> {
        check_unary_bwd(op, &dy, &x, &dx)?;
        self.check_owner("unary_bwd", "dy", &dy)?;
        self.check_owner("unary_bwd", "x", &x)?;
        self.check_owner("unary_bwd", "dx", &dx.out.as_view())?;
        let Some((name, params)) = unary_function(op, x.dtype()) else { return Ok(()) };
        self.map_bwd(name, &dy, &x, &dx, params)
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
        let Some((name, [p, q])) = binary_function(op, dt) else {
            // Ldexp: the gradient is the function itself, of dy.
            let full = Full::new(self, da, shape)?;
            let v = full.view(&dy, shape)?;
            if full.grad.is_some() {
                self.ldexp(&dy, &b, &v, full.accumulate())?;
            }
            return full.finish(self, shape);
        };
        if let Some(problem) = Rows::find(&dy, &a, &b) {
            let gapless = |g: &GradMut<'_>| g.out.is_contiguous();
            // An operand that was expanded by the caller looks like a row, but wants a gradient for each of its elements.
            let row = |g: &GradMut<'_>| gapless(g) && g.out.numel() == problem.cols;
            match (problem.row_first, &da, &db) {
                (false, x, Some(v)) if row(v) && x.as_ref().is_none_or(gapless) => {
                    return self.bwd_rows(op, &problem, [&dy, &a, &b], x.as_ref(), v);
                }
                (true, Some(v), x) if row(v) && x.as_ref().is_none_or(gapless) => {
                    return self.bwd_rows(op, &problem, [&dy, &b, &a], x.as_ref(), v);
                }
                _ => {}
            }
        }
        let (fa, fb) = (Full::new(self, da, shape)?, Full::new(self, db, shape)?);
        if fa.grad.is_some() || fb.grad.is_some() {
            let (va, vb) = (fa.view(&dy, shape)?, fb.view(&dy, shape)?);
            let views = [&dy, &a, &b, &va, &vb];
            let mut m = Merged::new(views.map(|v| v.layout()));
            let bits = widen(&mut m, views, vector(dt));
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
            self.launch(&BINARY_BWD_ND, dt, name, Grid::Stride(items), &args)?;
        }
        fa.finish(self, shape)?;
        fb.finish(self, shape)
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
        let mut m = Merged::new([a.layout(), b.layout(), c.layout(), y.layout()]);
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
            let m = Merged::new([&dy, &a, &b, &c, &va, &vb, &vc].map(|v| v.layout()));
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
            let m = Merged::new([&dy, &a, &vb, &vc].map(|v| v.layout()));
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
        let m = Merged::new([x.layout(), v.layout()]);
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
