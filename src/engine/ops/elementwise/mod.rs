//! Unary, binary and ternary arithmetic.

mod binary;
mod binary_bwd;
mod full;
mod plan;
#[cfg(all(test, feature = "driver-opencl"))]
mod tests;
pub(in crate::engine) mod unary;

use self::binary::widen;
use self::binary_bwd::bwd_problem;
use self::full::Full;
use self::plan::{BinaryBwdPlan, BinaryBwdProblem, MapPlan, MapProblem, SharedRow};
use crate::buffer::{Buffer, GradMut, View, ViewMut};
use crate::driver::DimsArg;
use crate::dtype::DType;
use crate::engine::Engine;
use crate::engine::launch::{Grid, Merged, aligned16, dims};
use crate::error::{GpuError, Result};
use crate::ops::core::Choice;
use crate::ops::elementwise::*;
use crate::ops::reduce::ReduceOps;
use crate::spec::SIZES;
use crate::spec::elementwise::{binary_function, cast_function, ternary_function, unary_function};
use crate::spec::kernels::elementwise::*;

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

/// The view repeated to a shape that it is known to broadcast to.
fn spread<'a>(v: &View<'a>, shape: &[usize]) -> Result<View<'a>> {
    v.broadcast_to(shape)
}

/// How operands lie, of which number `result` is the result.
fn map_problem<const N: usize>(m: &Merged<N>, views: [&View<'_>; N], result: usize) -> MapProblem {
    let flat = (0..N).all(|k| m.is_flat(k));
    let crossed = !flat && (0..N).any(|k| k != result && lies_across(views[k], views[result]));
    MapProblem { flat, aligned: views.into_iter().all(aligned16), crossed, elements: views[result].numel() }
}

/// Whether the result is contiguous, and an operand's neighbours are neighbours along another axis of it than the innermost. A broadcast operand does not count.
fn lies_across(operand: &View<'_>, result: &View<'_>) -> bool {
    let m = Merged::new([operand.layout(), result.layout()]);
    let strides = &m.strides[0];
    let apart = strides.last().is_some_and(|&s| s > 1);
    result.is_contiguous() && apart && strides.contains(&1) && !strides.contains(&0)
}

/// The views' axes in the order in which the result lies.
fn merged<const N: usize>(views: &[View<'_>; N], result: usize) -> Merged<N> {
    Merged::in_order_of(result, views.each_ref().map(|v| v.layout()))
}

/// Operands and results as a kernel takes them.
struct Settled<'a, const N: usize> {
    views: [View<'a>; N],
    m: Merged<N>,
    /// Whether 16 bytes at a time, where all are addressed by position.
    flat: Option<bool>,
}

impl Engine {
    /// How a function of these views runs, of which number `result` is the result. Operands that lie across it are copied to `homes` where the plan is so.
    fn settle<'a, const N: usize>(
        &self,
        op: &'static str,
        mut views: [View<'a>; N],
        result: usize,
        homes: &'a mut [Option<Buffer>; N],
    ) -> Result<Settled<'a, N>> {
        let m = merged(&views, result);
        let problem = map_problem(&m, views.each_ref(), result);
        match self.plan(op, &problem)? {
            MapPlan::Flat { wide } => return Ok(Settled { views, m, flat: Some(wide) }),
            MapPlan::Strided => return Ok(Settled { views, m, flat: None }),
            MapPlan::Packed => {}
        }
        let y = views[result];
        for (v, home) in views.iter_mut().zip(homes) {
            if lies_across(v, &y) {
                *v = self.packed(v, home)?;
            }
        }
        let m = merged(&views, result);
        let problem = map_problem(&m, views.each_ref(), result);
        Ok(Settled { views, m, flat: problem.flat.then_some(problem.aligned) })
    }

    /// What serves functions of 2^20 contiguous f32 numbers, or the gradients of a matrix of 4096 x 1024 with a bias.
    pub(crate) fn explain_elementwise(&self, op: &'static str) -> Result<Choice> {
        if op == "binary_bwd" {
            let (shared, dtype) = (Some(SharedRow::B), DType::F32);
            let p = BinaryBwdProblem { rows: 4096, cols: 1024, shared, dtype, aligned: true };
            return self.explain_problem(op, &p);
        }
        self.explain_problem(op, &MapProblem { flat: true, aligned: true, crossed: false, elements: 1 << 20 })
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
            let views = [&dy, &a, &vb, &vc];
            let m = Merged::in_order_of(0, views.map(|v| v.layout()));
            let wide = is_flat(&m, views);
            let (rank, shape, [sdy, sc, sda, sdb]) = merged_axes(&m);
            let args = WhereBwdArgs {
                dy: self.arg_in(&dy),
                c: self.arg_in(&a),
                da: db,
                db: dc,
                n: n as i64,
                wide: i32::from(wide),
                rank,
                shape,
                sdy,
                sc,
                sda,
                sdb,
                acc_a: i32::from(full[1].accumulate()),
                acc_b: i32::from(full[2].accumulate()),
            };
            let items = if wide { n.div_ceil(vector(dt)) } else { n };
            self.launch(&WHERE_BWD, dt, "", Grid::Stride(items), &args)?;
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
