//! Unary, binary and ternary arithmetic.

use crate::spec::kernels::elementwise::*;
use crate::spec::elementwise::{binary_function, cast_function, ternary_function, unary_function};
use crate::spec::SIZES;
use crate::buffer::{Buffer, GradMut, View, ViewMut};
use crate::driver::Arg;
use crate::dtype::DType;
use crate::engine::Engine;
use crate::engine::launch::{Grid, MAX_GRID_YZ, Merged, aligned16, code_of_op, dims, real};
use crate::engine::ops::shape::strided::magic;
use crate::error::{GpuError, Result};
use crate::ops::elementwise::*;
use crate::ops::reduce::ReduceOps;
use crate::spec::{BLOCK, KernelSpec};

/// The kernels that evaluate one list of functions of one value.
pub(in crate::engine::ops) struct MapKernels {
    pub(in crate::engine::ops) flat: &'static KernelSpec,
    pub(in crate::engine::ops) nd: &'static KernelSpec,
    pub(in crate::engine::ops) bwd_flat: &'static KernelSpec,
    pub(in crate::engine::ops) bwd_nd: &'static KernelSpec,
}

static MAP: MapKernels =
    MapKernels { flat: &UNARY_FLAT.spec, nd: &UNARY_ND.spec, bwd_flat: &UNARY_BWD_FLAT.spec, bwd_nd: &UNARY_BWD_ND.spec };
/// Integers have no gradients; those kernels are never asked for.
static INT_MAP: MapKernels =
    MapKernels { flat: &UNARY_FLAT.spec, nd: &UNARY_ND.spec, bwd_flat: &UNARY_BWD_FLAT.spec, bwd_nd: &UNARY_BWD_ND.spec };

/// Items that a work-item of `binary_nd` takes (`GK_ND_RUNS`).
const ND_RUNS: usize = 2;

/// Elements in 16 bytes.
fn vector(d: DType) -> usize {
    16 / d.size()
}

/// Rank, shape and strides of merged axes.
fn axes<const N: usize>(m: &Merged<N>) -> impl Iterator<Item = Arg> + '_ {
    [Arg::I32(m.shape.len() as i32), dims(m.shape.iter().copied())]
        .into_iter()
        .chain(m.strides.iter().map(|s| dims(s.iter().copied())))
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

    fn arg(&self, engine: &Engine, view: &View<'_>) -> Arg {
        if self.grad.is_some() { engine.arg_in(view) } else { Arg::Mem(None) }
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
    /// y = f(x) for any function of `kernels/common/{unary,activation}_ops.h`; operands are checked.
    pub(in crate::engine::ops) fn map(
        &self,
        kernels: &MapKernels,
        op: &'static str,
        x: &View<'_>,
        y: &ViewMut<'_>,
        params: [f64; 3],
    ) -> Result<()> {
        let n = x.numel();
        if n == 0 {
            return Ok(());
        }
        let (dt, v) = (x.dtype(), y.as_view());
        let m = Merged::new([x.layout(), v.layout()]);
        let mut args = vec![self.arg_in(x), self.arg_in(&v), Arg::I64(n as i64)];
        let wide = is_flat(&m, [x, &v]);
        let items = if wide { n.div_ceil(vector(dt)) } else { n };
        let p = params.map(|p| real(dt, p));
        if v.dtype() != dt {
            args.push(Arg::I32(wide as i32));
            args.extend(axes(&m));
            args.extend(p);
            return self.launch_list(&UNARY_MASK.spec, dt, op, Grid::Stride(items), &args);
        }
        if m.is_flat(0) && m.is_flat(1) {
            args.push(Arg::I32(wide as i32));
            args.extend(p);
            return self.launch_list(kernels.flat, dt, op, flat_grid(n, dt, wide, 4), &args);
        }
        args.extend(axes(&m));
        args.extend(p);
        self.launch_list(kernels.nd, dt, op, Grid::Stride(n), &args)
    }

    /// dx (+)= g(dy, saved) for any function of `kernels/common/{unary,activation}_ops.h`; operands are checked.
    pub(in crate::engine::ops) fn map_bwd(
        &self,
        kernels: &MapKernels,
        op: &'static str,
        dy: &View<'_>,
        saved: &View<'_>,
        dx: &GradMut<'_>,
        params: [f64; 3],
    ) -> Result<()> {
        let n = dy.numel();
        if n == 0 {
            return Ok(());
        }
        let (dt, v) = (dy.dtype(), dx.out.as_view());
        let m = Merged::new([dy.layout(), saved.layout(), v.layout()]);
        let mut args = vec![self.arg_in(dy), self.arg_in(saved), self.arg_in(&v), Arg::I64(n as i64)];
        let p = params.map(|p| real(dt, p));
        let accumulate = Arg::I32(dx.accumulate as i32);
        if (0..3).all(|k| m.is_flat(k)) {
            let wide = is_flat(&m, [dy, saved, &v]);
            args.extend([Arg::I32(wide as i32), accumulate]);
            args.extend(p);
            return self.launch_list(kernels.bwd_flat, dt, op, flat_grid(n, dt, wide, 2), &args);
        }
        args.extend(axes(&m));
        args.push(accumulate);
        args.extend(p);
        self.launch_list(kernels.bwd_nd, dt, op, Grid::Stride(n), &args)
    }

    /// y = f(a, b); operands have y's shape.
    fn map2(&self, op: Binary, a: &View<'_>, b: &View<'_>, y: &View<'_>) -> Result<()> {
        let (dt, n) = (a.dtype(), y.numel());
        let mut m = Merged::new([y.layout(), a.layout(), b.layout()]);
        let mut args = vec![self.arg_in(a), self.arg_in(b), self.arg_in(y), Arg::I64(n as i64)];
        let Some((name, params)) = binary_function(op, dt) else {
            let m = Merged::new([a.layout(), b.layout(), y.layout()]);
            args.extend(axes(&m));
            args.push(Arg::I32(0));
            return self.launch_list(&LDEXP_ND.spec, dt, "", Grid::Stride(n), &args);
        };
        let p = params.map(|p| real(dt, p));
        let (float, wide) = (dt.is_float(), is_flat(&m, [y, a, b]));
        let order = |m: &Merged<3>| {
            let [sy, sa, sb] = [0, 1, 2].map(|k| dims(m.strides[k].iter().copied()));
            [Arg::I32(m.shape.len() as i32), dims(m.shape.iter().copied()), sa, sb, sy]
        };
        if !float && matches!(op, Binary::DivFloor | Binary::DivTrunc) {
            args.extend(order(&m));
            args.extend([self.arg_error(), Arg::I32(code_of_op("binary"))]);
            return self.launch_list(&BINARY_INT_DIV.spec, dt, name, Grid::Stride(n), &args);
        }
        if y.dtype() != dt {
            args.push(Arg::I32(wide as i32));
            args.extend(order(&m));
            args.extend(p);
            let kernel = if float { &BINARY_MASK.spec } else { &BINARY_MASK.spec };
            let items = if wide { n.div_ceil(vector(dt)) } else { n };
            return self.launch_list(kernel, dt, name, Grid::Stride(items), &args);
        }
        if (0..3).all(|k| m.is_flat(k)) {
            args.push(Arg::I32(wide as i32));
            args.extend(p);
            let kernel = if float { &BINARY_FLAT.spec } else { &BINARY_FLAT.spec };
            let items = if wide { n.div_ceil(vector(dt)) } else { n };
            return self.launch_list(kernel, dt, name, Grid::Stride(items), &args);
        }
        let bits = widen(&mut m, [y, a, b], vector(dt));
        let items: usize = m.shape.iter().product();
        args[3] = Arg::I64(items as i64);
        let [rank, shape, sa, sb, sy] = order(&m);
        args.extend([rank, shape, magic(m.shape.iter().copied()), sa, sb, sy, Arg::I32(bits)]);
        args.extend(p);
        let grid = Grid::Stride(items.div_ceil(ND_RUNS));
        self.launch_list(if float { &BINARY_ND.spec } else { &BINARY_ND.spec }, dt, name, grid, &args)
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
        let Some((name, params)) = binary_function(op, dt) else { return Ok(()) };
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
        let mut args = vec![self.arg_in(dy), self.arg_in(x), self.arg_in(v), self.arg_opt(out.as_ref())];
        args.push(self.arg_in(&part.view()));
        args.extend([Arg::I64(rows as i64), Arg::I64(cols as i64), Arg::I32(lanes as i32)]);
        let flags = [wide, row_first, dx.is_some_and(|g| g.accumulate)];
        args.extend(flags.map(|f| Arg::I32(f as i32)));
        args.extend(params.map(|p| real(dt, p)));
        self.launch_list(&BINARY_BWD_ROWS.spec, dt, name, Grid::Blocks([stripes, slices, 1]), &args)?;
        let args = [
            self.arg_in(&part.view()),
            self.arg_out(&dv.out),
            Arg::I64(slices as i64),
            Arg::I64(cols as i64),
            Arg::I32(dv.accumulate as i32),
        ];
        self.launch_list(&BINARY_BWD_FOLD.spec, dt, name, Grid::Blocks([cols.div_ceil(8), 1, 1]), &args)
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
        self.own("unary", "x", &x)?;
        self.own("unary", "y", &y.as_view())?;
        let Some((name, params)) = unary_function(op, x.dtype()) else { return Ok(()) };
        self.map(if x.dtype().is_float() { &MAP } else { &INT_MAP }, name, &x, &y, params)
    }

    fn unary_bwd(&self, op: Unary, dy: View<'_>, x: View<'_>, dx: GradMut<'_>) -> Result<()> {
        check_unary_bwd(op, &dy, &x, &dx)?;
        self.own("unary_bwd", "dy", &dy)?;
        self.own("unary_bwd", "x", &x)?;
        self.own("unary_bwd", "dx", &dx.out.as_view())?;
        let Some((name, params)) = unary_function(op, x.dtype()) else { return Ok(()) };
        self.map_bwd(&MAP, name, &dy, &x, &dx, params)
    }

    fn binary(&self, op: Binary, a: View<'_>, b: View<'_>, y: ViewMut<'_>) -> Result<()> {
        check_binary(op, &a, &b, &y)?;
        let v = y.as_view();
        for (arg, view) in [("a", &a), ("b", &b), ("y", &v)] {
            self.own("binary", arg, view)?;
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
            self.own(OP, arg, view)?;
        }
        for (arg, grad) in [("da", &da), ("db", &db)] {
            grad.as_ref().map_or(Ok(()), |g| self.own(OP, arg, &g.out.as_view()))?;
        }
        let (dt, n, shape) = (dy.dtype(), dy.numel(), dy.shape());
        if n == 0 {
            return self.empty_grads(&dy, [da, db]);
        }
        let (a, b) = (spread(&a, shape)?, spread(&b, shape)?);
        let Some((name, params)) = binary_function(op, dt) else {
            // Ldexp: the gradient is the function itself, of dy.
            let full = Full::new(self, da, shape)?;
            let v = full.view(&dy, shape)?;
            let m = Merged::new([dy.layout(), b.layout(), v.layout()]);
            if full.grad.is_some() {
                let mut args = vec![self.arg_in(&dy), self.arg_in(&b), self.arg_in(&v), Arg::I64(n as i64)];
                args.extend(axes(&m));
                args.push(Arg::I32(full.accumulate() as i32));
                self.launch_list(&LDEXP_ND.spec, dt, "", Grid::Stride(n), &args)?;
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
            let mut args = vec![
                self.arg_in(&dy),
                self.arg_in(&a),
                self.arg_in(&b),
                fa.arg(self, &va),
                fb.arg(self, &vb),
            ];
            args.push(Arg::I64(items as i64));
            args.extend(axes(&m));
            args.extend([wide, fa.accumulate() as i32, fb.accumulate() as i32].map(Arg::I32));
            args.extend(params.map(|p| real(dt, p)));
            self.launch_list(&BINARY_BWD_ND.spec, dt, name, Grid::Stride(items), &args)?;
        }
        fa.finish(self, shape)?;
        fb.finish(self, shape)
    }

    fn ternary(&self, op: Ternary, a: View<'_>, b: View<'_>, c: View<'_>, y: ViewMut<'_>) -> Result<()> {
        check_ternary(op, &a, &b, &c, &y)?;
        let y = y.as_view();
        for (arg, view) in [("a", &a), ("b", &b), ("c", &c), ("y", &y)] {
            self.own("ternary", arg, view)?;
        }
        let (dt, n) = (b.dtype(), y.numel());
        if n == 0 {
            return Ok(());
        }
        let [a, b, c] = [spread(&a, y.shape())?, spread(&b, y.shape())?, spread(&c, y.shape())?];
        let mut m = Merged::new([a.layout(), b.layout(), c.layout(), y.layout()]);
        let mut args = vec![self.arg_in(&a), self.arg_in(&b), self.arg_in(&c), self.arg_in(&y)];
        let Some((name, params)) = ternary_function(op, dt) else {
            // Where copies bits, through a type of the same size.
            let by_size = SIZES.iter().copied().find(|t| t.size() == dt.size());
            let unit = by_size.ok_or_else(|| {
                GpuError::invalid("ternary", "b", "an element of 1, 2, 4 or 8 bytes", dt.name())
            })?;
            let wide = is_flat(&m, [&a, &b, &c, &y]);
            args.extend([Arg::I64(n as i64), Arg::I32(wide as i32)]);
            args.extend(axes(&m));
            let items = if wide { n.div_ceil(vector(dt)) } else { n };
            return self.launch_list(&WHERE_ND.spec, unit, "", Grid::Stride(items), &args);
        };
        let bits = widen(&mut m, [&a, &b, &c, &y], vector(dt));
        let items: usize = m.shape.iter().product();
        args.push(Arg::I64(items as i64));
        args.extend(axes(&m));
        // The kernel's bits: 0 on, 1 a, 2 b, 3 c.
        args.push(Arg::I32(if bits == 0 { 0 } else { 1 | ((bits & 7) << 1) }));
        args.extend(params.map(|p| real(dt, p)));
        self.launch_list(&TERNARY_ND.spec, dt, name, Grid::Stride(items), &args)
    }

    fn ternary_bwd(&self, op: Ternary, io: TernaryBwd<'_>) -> Result<()> {
        const OP: &str = "ternary_bwd";
        check_ternary_bwd(op, &io)?;
        let TernaryBwd { dy, a, b, c, da, db, dc } = io;
        for (arg, view) in [("dy", &dy), ("a", &a), ("b", &b), ("c", &c)] {
            self.own(OP, arg, view)?;
        }
        for (arg, grad) in [("da", &da), ("db", &db), ("dc", &dc)] {
            grad.as_ref().map_or(Ok(()), |g| self.own(OP, arg, &g.out.as_view()))?;
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
        if let Some((name, params)) = ternary_function(op, dt) {
            let m = Merged::new([&dy, &a, &b, &c, &va, &vb, &vc].map(|v| v.layout()));
            let mut args = vec![self.arg_in(&dy), self.arg_in(&a), self.arg_in(&b), self.arg_in(&c)];
            args.extend([
                full[0].arg(self, &va),
                full[1].arg(self, &vb),
                full[2].arg(self, &vc),
                Arg::I64(n as i64),
            ]);
            args.extend(axes(&m));
            let bits = full.iter().enumerate().map(|(k, f)| i32::from(f.accumulate()) << k).sum();
            args.push(Arg::I32(bits));
            args.extend(params.map(|p| real(dt, p)));
            self.launch_list(&TERNARY_BWD_ND.spec, dt, name, Grid::Stride(n), &args)?;
        } else {
            let m = Merged::new([&dy, &a, &vb, &vc].map(|v| v.layout()));
            let mut args =
                vec![self.arg_in(&dy), self.arg_in(&a), full[1].arg(self, &vb), full[2].arg(self, &vc)];
            args.push(Arg::I64(n as i64));
            args.extend(axes(&m));
            args.extend([full[1].accumulate() as i32, full[2].accumulate() as i32].map(Arg::I32));
            self.launch_list(&WHERE_BWD.spec, dt, "", Grid::Stride(n), &args)?;
        }
        full.into_iter().try_for_each(|f| f.finish(self, shape))
    }

    fn cast(&self, x: View<'_>, y: ViewMut<'_>) -> Result<()> {
        check_cast(&x, &y)?;
        let v = y.as_view();
        self.own("cast", "x", &x)?;
        self.own("cast", "y", &v)?;
        let n = x.numel();
        if n == 0 {
            return Ok(());
        }
        let m = Merged::new([x.layout(), v.layout()]);
        let wide = is_flat(&m, [&x, &v]);
        let mut args = vec![self.arg_in(&x), self.arg_in(&v), Arg::I64(n as i64), Arg::I32(wide as i32)];
        args.extend(axes(&m));
        let items = if wide { n.div_ceil(vector(x.dtype()).max(vector(v.dtype()))) } else { n };
        self.launch_list(&CAST_ND.spec, x.dtype(), cast_function(v.dtype()), Grid::Stride(items), &args)
    }
}
