//! Movement and creation.

mod plan;
pub(super) mod strided;
#[cfg(all(test, feature = "driver-opencl"))]
mod tests;

use self::plan::{ConcatPlan, ConcatProblem, CopyProblem, FillProblem};
use crate::buffer::{Buffer, GradMut, View, ViewMut};
use crate::cpu::{HostElement, with_dtype};
use crate::dtype::DType;
use crate::engine::Engine;
use crate::engine::launch::{Grid, aligned16, code_of_op, dims};
use crate::engine::ops::shape::strided::*;
use crate::error::Result;
use crate::ops::core::Choice;
use crate::ops::shape::*;
use crate::spec::kernels::shape::*;
use crate::spec::kernels::sort::{REPEAT_TABLE, RepeatTableArgs};

/// The bytes of a number stored as `dtype`: rounded to nearest even, integers truncated and saturated.
pub(in crate::engine::ops) fn element_bytes(dtype: DType, value: f64) -> Vec<u8> {
    with_dtype!(dtype, T => bytemuck::bytes_of(&<T as HostElement>::from_f64(value)).to_vec())
}

/// Number of a padding mode in the kernels.
fn mode_number(mode: PadMode) -> i32 {
    match mode {
        PadMode::Constant(_) => 0,
        PadMode::Reflect => 1,
        PadMode::Replicate => 2,
        PadMode::Circular => 3,
    }
}

/// Whether a vector of equal steps is written 16 bytes at a time, and the grid that writes it.
fn ramp_grid(y: &View<'_>) -> (i32, Grid) {
    let wide = y.is_contiguous() && aligned16(y);
    let each = if wide { 16 / y.dtype().size() } else { 1 };
    (i32::from(wide), Grid::Stride(y.numel().div_ceil(each)))
}

/// One axis of a padding.
#[derive(Clone, Copy)]
struct Padded {
    /// Size in the input and in the output.
    n: usize,
    m: usize,
    before: i64,
    /// Steps of input and output.
    x: i64,
    y: i64,
}

/// Axes of a padding, those without padding merged with their neighbours.
fn padded_axes(pads: &[(isize, isize)], x: &View<'_>, y: &View<'_>) -> Vec<Padded> {
    let mut out: Vec<Padded> = vec![];
    let axes = Axis::of(x, y).into_iter().zip(x.shape()).zip(pads);
    for ((a, &n), &(before, after)) in axes {
        let plain = before == 0 && after == 0;
        if plain && n == 1 {
            continue;
        }
        let next = Padded { n, m: a.n, before: before as i64, x: a.x, y: a.y };
        match out.last_mut() {
            Some(l)
                if plain && l.before == 0 && l.n == l.m && l.x == a.x * n as i64 && l.y == a.y * n as i64 =>
            {
                *l = Padded { n: l.n * n, m: l.m * n, ..next }
            }
            _ => out.push(next),
        }
    }
    if out.is_empty() {
        out.push(Padded { n: 1, m: 1, before: 0, x: 1, y: 1 });
    }
    out
}

/// What circular padding wraps around: x without what negative pads crop, and the pads that remain.
fn cropped<'a>(pads: &[(isize, isize)], x: &View<'a>) -> Result<(View<'a>, Vec<(isize, isize)>)> {
    let mut kept = *x;
    for (axis, &(before, after)) in pads.iter().enumerate() {
        let (start, cut) = (before.min(0).unsigned_abs(), after.min(0).unsigned_abs());
        kept = kept.map("pads", |l| l.slice(axis, start, x.shape()[axis].saturating_sub(cut), 1))?;
    }
    Ok((kept, pads.iter().map(|&(b, a)| (b.max(0), a.max(0))).collect()))
}

impl Engine {
    /// What serves contiguous operands, or the copy of a transposed matrix.
    pub(crate) fn explain_shape(&self, op: &'static str) -> Result<Choice> {
        match op {
            "concat" => self.explain_problem(op, &ConcatProblem { contiguous: true }),
            "fill" => self.explain_problem(op, &FillProblem { contiguous: true }),
            _ => {
                let transposed = Some((0, [1024, 1024]));
                let p = CopyProblem { contiguous: false, accumulate: false, transposed };
                self.explain_problem(op, &p)
            }
        }
    }

    fn pad_into(
        &self,
        mode: PadMode,
        pads: &[(isize, isize)],
        x: &View<'_>,
        y: &View<'_>,
        accumulate: bool,
    ) -> Result<()> {
        if y.numel() == 0 {
            return Ok(());
        }
        let size = x.dtype().size();
        let mut axes = padded_axes(pads, x, y);
        let (last, outer) = (axes[axes.len() - 1], &axes[..axes.len() - 1]);
        let whole = last.before == 0 && last.n == last.m && last.x == 1 && last.y == 1;
        let offsets = [x.layout().offset(), y.layout().offset(), last.n];
        let strides = outer.iter().flat_map(|a| [a.x as usize, a.y as usize]).chain(offsets);
        let wide = whole && common_power(16, strides.map(|s| s * size)) == 16;
        if let (true, Some(l)) = (wide, axes.last_mut()) {
            let w = 16 / size;
            *l = Padded { n: l.n / w, m: l.m / w, before: 0, x: w as i64, y: w as i64 };
        }
        let n: usize = axes.iter().map(|a| a.m).product();
        let outside = if let PadMode::Constant(v) = mode { v } else { 0.0 };
        let (lo, hi) = pattern_words(&element_bytes(x.dtype(), outside));
        let args = PadNdArgs {
            x: self.arg_in(x),
            y: self.arg_in(y),
            n: n as i64,
            wide: i32::from(wide),
            rank: axes.len() as i32,
            shape: dims(axes.iter().map(|a| a.m)),
            magic: magic(axes.iter().map(|a| a.m)),
            sx: signed(axes.iter().map(|a| a.x)),
            sy: signed(axes.iter().map(|a| a.y)),
            size: dims(axes.iter().map(|a| a.n)),
            before: signed(axes.iter().map(|a| a.before)),
            mode: mode_number(mode),
            lo,
            hi,
            accumulate: i32::from(accumulate),
        };
        self.launch(&PAD_ND, mover(x.dtype(), accumulate), "", Grid::Stride(n.div_ceil(DEPTH)), &args)
    }

    /// Offsets of the copies of each element (n + 1 sums of the counts), and for each copy its element or -1. Reports counts that do not add
    /// up to `size`.
    fn repeat_tables(&self, op: &'static str, counts: &View<'_>, size: usize) -> Result<(Buffer, Buffer)> {
        let n = counts.numel();
        let offsets = self.prefix_sums(counts)?;
        let table = self.scratch(DType::I64, size)?;
        let args = RepeatTableArgs {
            counts: self.arg_in(counts),
            offsets: self.arg_in(&offsets.view()),
            table: self.arg_in(&table.view()),
            err: self.arg_error(),
            n: n as i64,
            size: size as i64,
            code: code_of_op(op),
        };
        // Threads take four places each.
        self.launch(&REPEAT_TABLE, DType::I64, "", Grid::Stride(n.max(size).div_ceil(4)), &args)?;
        Ok((offsets, table))
    }

    /// A contiguous copy, or the view itself.
    pub(in crate::engine::ops) fn packed<'a>(
        &self,
        v: &View<'a>,
        home: &'a mut Option<Buffer>,
    ) -> Result<View<'a>> {
        if v.is_contiguous() {
            return Ok(*v);
        }
        let copy = home.insert(self.scratch(v.dtype(), v.numel())?);
        let copy = copy.shaped(v.shape())?;
        self.move_axes(v, 0, &copy, Axis::of(v, &copy), false)?;
        Ok(copy)
    }

    /// dx (+)= sums of runs of dy; `sdy` are the steps of dy per axis of dx, `run` the axis and how its runs lie.
    fn run_sum(&self, dy: &View<'_>, sdy: &[i64], dx: &GradMut<'_>, run: Run<'_>) -> Result<()> {
        let v = dx.out.as_view();
        let (mut shape, mut sdy) = (v.shape().to_vec(), sdy.to_vec());
        let mut sdx: Vec<i64> = v.layout().strides().iter().map(|&s| s as i64).collect();
        // Items of 16 bytes where the innermost axis has no runs and both sides step by one along it.
        let (last, w) = (shape.len() - 1, 16 / v.dtype().size());
        let whole = |s: &i64| s.unsigned_abs().is_multiple_of(w as u64);
        let wide = last != run.axis
            && (sdx[last], sdy[last]) == (1, 1)
            && shape[last].is_multiple_of(w)
            && sdx[..last].iter().chain(&sdy[..last]).chain([&run.stride]).all(whole)
            && aligned16(dy)
            && aligned16(&v);
        if wide {
            shape[last] /= w;
            (sdx[last], sdy[last]) = (w as i64, w as i64);
        }
        let n: usize = shape.iter().product();
        let args = RunSumArgs {
            dy: self.arg_in(dy),
            offsets: self.arg_opt(run.offsets),
            dx: self.arg_in(&v),
            n: n as i64,
            rank: shape.len() as i32,
            shape: dims(shape.iter().copied()),
            magic: magic(shape.iter().copied()),
            sdy: signed(sdy),
            sdx: signed(sdx),
            axis: run.axis as i32,
            mode: run.mode,
            wide: i32::from(wide),
            len: run.len as i64,
            step: run.step as i64,
            // Beyond that the quotient of a cell is 0.
            by_step: magic_of(run.step.min(1 << 31)),
            places: run.places as i64,
            stride: run.stride,
            accumulate: i32::from(dx.accumulate),
        };
        self.launch(&RUN_SUM, v.dtype(), "", Grid::Stride(n), &args)
    }
}

/// The runs of [`Engine::run_sum`], as the kernel takes them.
struct Run<'a> {
    axis: usize,
    /// 0: `len` copies each, 1: between `offsets`, 2: windows of `len` every `step`.
    mode: i32,
    offsets: Option<&'a View<'a>>,
    len: usize,
    step: usize,
    /// Places of the run axis of dy and the step from one to the next.
    places: usize,
    stride: i64,
}

impl ShapeOps for Engine {
    fn strided_copy(&self, x: View<'_>, y: GradMut<'_>) -> Result<()> {
        check_strided_copy(&x, &y)?;
        let v = y.out.as_view();
        self.check_owner("strided_copy", "x", &x)?;
        self.check_owner("strided_copy", "y", &v)?;
        self.move_axes(&x, 0, &v, Axis::of(&x, &v), y.accumulate)
    }

    fn concat(&self, axis: usize, xs: &[View<'_>], y: ViewMut<'_>) -> Result<()> {
        const OP: &str = "concat";
        check_concat(axis, xs, &y)?;
        let y = y.as_view();
        self.check_owner(OP, "y", &y)?;
        xs.iter().try_for_each(|x| self.check_owner(OP, "xs", x))?;
        if y.numel() == 0 {
            return Ok(());
        }
        let contiguous = y.is_contiguous() && xs.iter().all(View::is_contiguous);
        if self.plan(OP, &ConcatProblem { contiguous })? == ConcatPlan::Copies {
            let mut at = 0;
            return xs.iter().try_for_each(|x| {
                let n = x.shape()[axis];
                let slot = y.map("axis", |l| l.narrow(axis, at, n))?;
                at += n;
                self.move_axes(x, 0, &slot, Axis::of(x, &slot), false)
            });
        }
        let (rows, size) = (y.shape()[..axis].iter().product::<usize>(), y.dtype().size());
        let inner: usize = y.shape()[axis + 1..].iter().product();
        let xs: Vec<&View<'_>> = xs.iter().filter(|x| x.numel() > 0).collect();
        let widths = xs.iter().map(|x| x.shape()[axis] * inner * size);
        let offsets = xs.iter().map(|x| x.layout().offset() * size).chain([y.layout().offset() * size]);
        let item = common_power(16, widths.chain(offsets));
        let (wide, dtype) = (item == 16, unit_of(if item == 16 { 4 } else { item }));
        let row = y.shape()[axis] * inner * size / item;
        let mut first = 0;
        for group in xs.chunks(8) {
            let mut end = 0;
            let mut ends = [0; 8];
            for (k, e) in ends.iter_mut().enumerate() {
                end += group.get(k).map_or(0, |x| x.shape()[axis] * inner * size / item);
                *e = end as i64;
            }
            // An absent input starts where the row ends, which no item reaches.
            let [x0, x1, x2, x3, x4, x5, x6, x7] =
                std::array::from_fn(|k| self.arg_opt(group.get(k).copied()));
            let shape = [rows, end];
            let args = ConcatArgs {
                x0,
                x1,
                x2,
                x3,
                x4,
                x5,
                x6,
                x7,
                y: self.arg_in(&y),
                n: (rows * end) as i64,
                wide: i32::from(wide),
                shape: dims(shape),
                magic: magic(shape),
                ends: signed(ends),
                row: row as i64,
                first: first as i64,
            };
            self.launch(&CONCAT, dtype, "", Grid::Stride(rows * end), &args)?;
            first += end;
        }
        Ok(())
    }

    fn fill(&self, value: f64, y: ViewMut<'_>) -> Result<()> {
        check_fill(&y)?;
        let v = y.as_view();
        self.check_owner("fill", "y", &v)?;
        self.fill_pattern(&element_bytes(v.dtype(), value), &v)
    }

    fn fill_bytes(&self, pattern: &[u8], y: ViewMut<'_>) -> Result<()> {
        check_fill_bytes(pattern, &y)?;
        let v = y.as_view();
        self.check_owner("fill_bytes", "y", &v)?;
        self.fill_pattern(pattern, &v)
    }

    fn arange(&self, start: f64, step: f64, y: ViewMut<'_>) -> Result<()> {
        check_arange(start, step, &y)?;
        let v = y.as_view();
        self.check_owner("arange", "y", &v)?;
        let (n, dt) = (v.numel(), v.dtype());
        let sy = v.layout().strides()[0] as i64;
        let (wide, grid) = ramp_grid(&v);
        let args = ArangeArgs { y: self.arg_in(&v), n: n as i64, sy, wide, start, step };
        self.launch(&ARANGE, dt, "", grid, &args)
    }

    fn linspace(&self, start: f64, end: f64, y: ViewMut<'_>) -> Result<()> {
        check_linspace(start, end, &y)?;
        let v = y.as_view();
        self.check_owner("linspace", "y", &v)?;
        let (n, dt) = (v.numel(), v.dtype());
        let step = (end - start) / (n.max(2) - 1) as f64;
        let sy = v.layout().strides()[0] as i64;
        let (wide, grid) = ramp_grid(&v);
        let args = LinspaceArgs { y: self.arg_in(&v), n: n as i64, sy, wide, start, end, step };
        self.launch(&LINSPACE, dt, "", grid, &args)
    }

    fn pad(&self, mode: PadMode, pads: &[(isize, isize)], x: View<'_>, y: ViewMut<'_>) -> Result<()> {
        check_pad(mode, pads, &x, &y)?;
        let y = y.as_view();
        self.check_owner("pad", "x", &x)?;
        self.check_owner("pad", "y", &y)?;
        if mode == PadMode::Circular {
            let (x, pads) = cropped(pads, &x)?;
            return self.pad_into(mode, &pads, &x, &y, false);
        }
        self.pad_into(mode, pads, &x, &y, false)
    }

    fn pad_bwd(&self, mode: PadMode, pads: &[(isize, isize)], dy: View<'_>, dx: GradMut<'_>) -> Result<()> {
        const OP: &str = "pad_bwd";
        check_pad_bwd(mode, pads, &dy, &dx)?;
        let v = dx.out.as_view();
        self.check_owner(OP, "dy", &dy)?;
        self.check_owner(OP, "dx", &v)?;
        if v.numel() == 0 {
            return Ok(());
        }
        let (v, pads) = match mode {
            // The crop of a constant padding is the padding by the negative.
            PadMode::Constant(_) => {
                let back: Vec<_> = pads.iter().map(|&(b, a)| (-b, -a)).collect();
                return self.pad_into(PadMode::Constant(0.0), &back, &dy, &v, dx.accumulate);
            }
            PadMode::Circular => cropped(pads, &v)?,
            _ => (v, pads.to_vec()),
        };
        // Nothing reads what was cropped.
        if v.numel() < dx.out.numel() && !dx.accumulate {
            ShapeOps::fill(self, 0.0, dx.out)?;
        }
        let n = v.numel();
        if n == 0 {
            return Ok(());
        }
        let axes = padded_axes(&pads, &v, &dy);
        let args = PadBwdNdArgs {
            dy: self.arg_in(&dy),
            dx: self.arg_in(&v),
            n: n as i64,
            rank: axes.len() as i32,
            shape: dims(axes.iter().map(|a| a.n)),
            magic: magic(axes.iter().map(|a| a.n)),
            sdy: signed(axes.iter().map(|a| a.y)),
            sdx: signed(axes.iter().map(|a| a.x)),
            padded: dims(axes.iter().map(|a| a.m)),
            before: signed(axes.iter().map(|a| a.before)),
            mode: mode_number(mode),
            accumulate: i32::from(dx.accumulate),
        };
        self.launch(&PAD_BWD_ND, v.dtype(), "", Grid::Stride(n), &args)
    }

    fn flip(&self, axes: &[usize], x: View<'_>, y: GradMut<'_>) -> Result<()> {
        check_flip(axes, &x, &y)?;
        let v = y.out.as_view();
        self.check_owner("flip", "x", &x)?;
        self.check_owner("flip", "y", &v)?;
        if v.numel() == 0 {
            return Ok(());
        }
        // A flip starts at the last element of its axes and steps backwards.
        let mut order = Axis::of(&x, &v);
        let mut last = 0;
        for &a in axes {
            last += order[a].x * (order[a].n as i64 - 1);
            order[a].x = -order[a].x;
        }
        self.move_axes(&x, last, &v, order, y.accumulate)
    }

    fn roll(&self, shifts: &[isize], axes: &[usize], x: View<'_>, y: GradMut<'_>) -> Result<()> {
        check_roll(shifts, axes, &x, &y)?;
        let v = y.out.as_view();
        self.check_owner("roll", "x", &x)?;
        self.check_owner("roll", "y", &v)?;
        // Rolling is wrapped padding on one side that is cropped on the other.
        let mut pads = vec![(0, 0); x.shape().len()];
        for (&s, &a) in shifts.iter().zip(axes) {
            let s = s.rem_euclid(x.shape()[a].max(1) as isize);
            pads[a] = (s, -s);
        }
        self.pad_into(PadMode::Circular, &pads, &x, &v, y.accumulate)
    }

    fn triangle(&self, side: Triangle, k: isize, x: View<'_>, y: GradMut<'_>) -> Result<()> {
        check_triangle(&x, &y)?;
        let v = y.out.as_view();
        self.check_owner("triangle", "x", &x)?;
        self.check_owner("triangle", "y", &v)?;
        if v.numel() == 0 {
            return Ok(());
        }
        let mut axes = Axis::of(&x, &v);
        let (row, col) = (axes.len() - 2, axes.len() - 1);
        let size = x.dtype().size();
        let offsets = [x.layout().offset(), v.layout().offset(), axes[col].n];
        let strides = axes[..col].iter().flat_map(|a| [a.x as usize, a.y as usize]).chain(offsets);
        let wide = axes[col].x == 1 && axes[col].y == 1 && common_power(16, strides.map(|s| s * size)) == 16;
        if wide {
            let w = 16 / size;
            axes[col] = Axis { n: axes[col].n / w, x: w as i64, y: w as i64 };
        }
        // The batch axes merge; the last two stay.
        let mut order = if row > 0 { merged(axes[..row].to_vec()) } else { vec![] };
        order.extend_from_slice(&axes[row..]);
        let n: usize = order.iter().map(|a| a.n).product();
        let args = TriangleNdArgs {
            x: self.arg_in(&x),
            y: self.arg_in(&v),
            n: n as i64,
            wide: i32::from(wide),
            rank: order.len() as i32,
            shape: dims(order.iter().map(|a| a.n)),
            magic: magic(order.iter().map(|a| a.n)),
            sx: signed(order.iter().map(|a| a.x)),
            sy: signed(order.iter().map(|a| a.y)),
            upper: i32::from(side == Triangle::Upper),
            k: k as i64,
            accumulate: i32::from(y.accumulate),
        };
        self.launch(&TRIANGLE_ND, mover(x.dtype(), y.accumulate), "", Grid::Stride(n), &args)
    }

    fn repeat_interleave(
        &self,
        axis: usize,
        repeats: usize,
        counts: Option<View<'_>>,
        x: View<'_>,
        y: ViewMut<'_>,
    ) -> Result<()> {
        const OP: &str = "repeat_interleave";
        check_repeat_interleave(axis, repeats, counts.as_ref(), &x, &y)?;
        let v = y.as_view();
        self.check_owner(OP, "x", &x)?;
        self.check_owner(OP, "y", &v)?;
        let Some(counts) = counts else {
            // Each element of the axis is an axis of copies, over which the source does not step.
            let mut axes = Axis::of(&x, &v);
            let a = axes[axis];
            axes[axis] = Axis { n: x.shape()[axis], x: a.x, y: a.y * repeats as i64 };
            axes.insert(axis + 1, Axis { n: repeats, x: 0, y: a.y });
            return self.move_axes(&x, 0, &v, axes, false);
        };
        self.check_owner(OP, "counts", &counts)?;
        let (_, table) = self.repeat_tables(OP, &counts, v.shape()[axis])?;
        let (mut from, mut to) = (None, None);
        let x = self.packed(&x, &mut from)?;
        let out = match v.is_contiguous() {
            true => v,
            false => to.insert(self.scratch(v.dtype(), v.numel())?).shaped(v.shape())?,
        };
        self.select_rows(OP, axis, &x, &table.view(), &out, false)?;
        if v.is_contiguous() {
            return Ok(());
        }
        self.move_axes(&out, 0, &v, Axis::of(&out, &v), false)
    }

    fn repeat_interleave_bwd(
        &self,
        axis: usize,
        repeats: usize,
        counts: Option<View<'_>>,
        dy: View<'_>,
        dx: GradMut<'_>,
    ) -> Result<()> {
        const OP: &str = "repeat_interleave_bwd";
        check_repeat_interleave_bwd(axis, repeats, counts.as_ref(), &dy, &dx)?;
        self.check_owner(OP, "dy", &dy)?;
        self.check_owner(OP, "dx", &dx.out.as_view())?;
        let mut sdy: Vec<i64> = dy.layout().strides().iter().map(|&s| s as i64).collect();
        let stride = std::mem::take(&mut sdy[axis]);
        let places = dy.shape()[axis];
        let run = Run { axis, mode: 0, offsets: None, len: repeats, step: 1, places, stride };
        let Some(counts) = counts else { return self.run_sum(&dy, &sdy, &dx, run) };
        self.check_owner(OP, "counts", &counts)?;
        let (offsets, _) = self.repeat_tables(OP, &counts, places)?;
        self.run_sum(&dy, &sdy, &dx, Run { mode: 1, offsets: Some(&offsets.view()), ..run })
    }

    fn unfold_bwd(&self, axis: usize, size: usize, step: usize, dy: View<'_>, dx: GradMut<'_>) -> Result<()> {
        const OP: &str = "unfold_bwd";
        check_unfold_bwd(axis, size, step, &dy, &dx)?;
        self.check_owner(OP, "dy", &dy)?;
        self.check_owner(OP, "dx", &dx.out.as_view())?;
        // Cell t is element t - w*step of window w: a step per cell, and one per window.
        let mut sdy: Vec<i64> = dy.layout().strides().iter().map(|&s| s as i64).collect();
        let within = sdy.pop().unwrap_or(0);
        let stride = sdy[axis] - step as i64 * within;
        sdy[axis] = within;
        let places = dy.shape()[axis];
        self.run_sum(&dy, &sdy, &dx, Run { axis, mode: 2, offsets: None, len: size, step, places, stride })
    }
}
