//! Gather and scatter along an axis.

mod plan;
pub(super) mod scatter;

use self::plan::ReductionProblem;
use crate::buffer::{Buffer, GradMut, View, ViewMut};
use crate::dtype::DType;
use crate::engine::Engine;
use crate::engine::launch::{Grid, aligned16, code_of_op, dims};
use crate::engine::ops::index::scatter::*;
use crate::engine::ops::shape::element_bytes;
use crate::engine::ops::shape::strided::{magic, magic_of, mover, pattern_words, signed};
use crate::error::{GpuError, Result};
use crate::ops::core::Choice;
use crate::ops::index::*;
use crate::spec::kernels::index::*;

/// What a mask does; the numbers are those of the kernel.
#[derive(Clone, Copy)]
#[repr(i32)]
enum Masked {
    /// True cells go to the front of the output.
    Select = 0,
    /// True cells take the next element of the input.
    Consume = 1,
    /// The same, and the others become 0.
    Spread = 2,
}

impl Engine {
    /// True elements per chunk of a contiguous view that is not empty, and how a second pass reads the chunks.
    fn count_true(&self, x: &View<'_>) -> Result<(Buffer, Grid, i64)> {
        let (blocks, chunk) = self.scan_chunks(x.numel());
        let (partial, chunk) = (self.scratch(DType::I64, blocks)?, chunk as i64);
        let grid = Grid::Blocks([blocks, 1, 1]);
        // One block needs no counts of others.
        if blocks > 1 {
            let args = CountTrueArgs {
                x: self.arg_in(x),
                partial: self.arg_in(&partial.view()),
                n: x.numel() as i64,
                chunk,
            };
            self.launch(&COUNT_TRUE, x.dtype(), "", grid, &args)?;
        }
        Ok((partial, grid, chunk))
    }

    fn masked_move(
        &self,
        op: &'static str,
        mode: Masked,
        [mask, x, y]: [&View<'_>; 3],
        count: Option<&View<'_>>,
        accumulate: bool,
    ) -> Result<()> {
        let n = mask.numel();
        if n == 0 {
            return count.map_or(Ok(()), |c| self.fill_pattern(&[0; 8], c));
        }
        let mut home = None;
        let x = &self.packed(x, &mut home)?;
        let (partial, grid, chunk) = self.count_true(mask)?;
        let room = if matches!(mode, Masked::Select) { y.numel() } else { x.numel() };
        let args = MaskedMoveArgs {
            mask: self.arg_in(mask),
            partial: self.arg_in(&partial.view()),
            x: self.arg_in(x),
            y: self.arg_in(y),
            count: self.arg_opt(count),
            err: self.arg_error(),
            n: n as i64,
            chunk,
            room: room as i64,
            mode: mode as i32,
            accumulate: i32::from(accumulate),
            code: code_of_op(op),
        };
        self.launch(&MASKED_MOVE, mover(x.dtype(), accumulate), "", grid, &args)
    }
}

impl Engine {
    /// The variant that reduces a million sources: rows of 64 elements, single cells where the operation has no others.
    pub(crate) fn explain_reduction(&self, op: &'static str) -> Result<Choice> {
        let row = if op.starts_with("index") { 64 } else { 1 };
        self.explain_problem(op, &ReductionProblem { sources: 1 << 20, row })
    }
}

impl IndexOps for Engine {
    fn index_select(&self, axis: usize, x: View<'_>, index: View<'_>, y: GradMut<'_>) -> Result<()> {
        const OP: &str = "index_select";
        check_index_select(axis, &x, &index, &y)?;
        let v = y.out.as_view();
        self.check_owner_all(OP, &[("x", x), ("index", index), ("y", v)])?;
        let mut home = None;
        let x = self.packed(&x, &mut home)?;
        self.select_rows(OP, axis, &x, &index, &v, y.accumulate)
    }

    fn index_add(
        &self,
        axis: usize,
        alpha: f64,
        index: View<'_>,
        src: View<'_>,
        y: ViewMut<'_>,
    ) -> Result<()> {
        const OP: &str = "index_add";
        check_index_add(axis, alpha, &index, &src, &y)?;
        let (y, mut home) = (y.as_view(), None);
        let Some(s) = self.sources(OP, Along::Rows(axis), &index, &src, &y, &mut home)? else {
            return Ok(());
        };
        let to = Into::Tensor { y, include: true };
        self.scatter_reduction(&Scatter { alpha, ..s.reduction(OP, ScatterReduce::Sum) }, to)
    }

    fn index_copy(&self, axis: usize, index: View<'_>, src: View<'_>, y: ViewMut<'_>) -> Result<()> {
        const OP: &str = "index_copy";
        check_index_copy(axis, &index, &src, &y)?;
        let (y, mut home) = (y.as_view(), None);
        match self.sources(OP, Along::Rows(axis), &index, &src, &y, &mut home)? {
            Some(s) => self.scatter_rows(&s.plan, s.outer, s.inner, &s.src, &y),
            None => Ok(()),
        }
    }

    fn index_fill(&self, axis: usize, value: f64, index: View<'_>, y: ViewMut<'_>) -> Result<()> {
        const OP: &str = "index_fill";
        check_index_fill(axis, &index, &y)?;
        let y = y.as_view();
        self.check_owner_all(OP, &[("index", index), ("y", y)])?;
        let (outer, size, inner) = around(y.shape(), axis);
        let items = Items::new(inner, false, &[&y]);
        let shape = [outer, index.numel(), items.row];
        let n = shape.iter().product();
        let (lo, hi) = pattern_words(&element_bytes(y.dtype(), value));
        let args = IndexFillArgs {
            index: self.arg_in(&index),
            y: self.arg_in(&y),
            err: self.arg_error(),
            items: n as i64,
            wide: i32::from(items.wide),
            wide_index: wide_index(&index),
            size: size as i64,
            shape: dims(shape),
            magic: magic(shape),
            lo,
            hi,
            code: code_of_op(OP),
        };
        self.launch(&INDEX_FILL, items.dtype, "", Grid::Stride(n), &args)
    }

    fn gather(&self, axis: usize, x: View<'_>, index: View<'_>, y: GradMut<'_>) -> Result<()> {
        const OP: &str = "gather";
        check_gather(axis, &x, &index, &y)?;
        let v = y.out.as_view();
        self.check_owner_all(OP, &[("x", x), ("index", index), ("y", v)])?;
        let mut home = None;
        let x = self.packed(&x, &mut home)?;
        let (n, strides) = (index.numel(), row_major(x.shape()));
        let args = GatherAxisArgs {
            x: self.arg_in(&x),
            index: self.arg_in(&index),
            y: self.arg_in(&v),
            err: self.arg_error(),
            n: n as i64,
            wide_index: wide_index(&index),
            size: x.shape()[axis] as i64,
            step: strides[axis],
            rank: strides.len() as i32,
            shape: dims(index.shape().iter().copied()),
            magic: magic(index.shape().iter().copied()),
            sx: signed(strides.iter().enumerate().map(|(a, &s)| if a == axis { 0 } else { s })),
            accumulate: i32::from(y.accumulate),
            code: code_of_op(OP),
        };
        self.launch(&GATHER_AXIS, mover(x.dtype(), y.accumulate), "", Grid::Stride(n), &args)
    }

    fn scatter(&self, axis: usize, index: View<'_>, src: View<'_>, y: ViewMut<'_>) -> Result<()> {
        const OP: &str = "scatter";
        check_scatter(axis, &index, &src, &y)?;
        let (y, mut home) = (y.as_view(), None);
        match self.sources(OP, Along::Cells(axis), &index, &src, &y, &mut home)? {
            Some(s) => self.scatter_rows(&s.plan, s.outer, s.inner, &s.src, &y),
            None => Ok(()),
        }
    }

    fn scatter_bwd(
        &self,
        axis: usize,
        dy: View<'_>,
        index: View<'_>,
        dx: Option<GradMut<'_>>,
        dsrc: Option<GradMut<'_>>,
    ) -> Result<()> {
        const OP: &str = "scatter_bwd";
        check_scatter_bwd(axis, &dy, &index, dx.as_ref(), dsrc.as_ref())?;
        self.check_owner_all(OP, &[("dy", dy), ("index", index)])?;
        let mut home = None;
        let dy = self.packed(&dy, &mut home)?;
        let (n, k) = (dy.numel(), index.numel());
        if let Some(g) = &dx {
            let v = g.out.as_view();
            self.check_owner(OP, "dx", &v)?;
            let mask = self.scratch(DType::U8, n)?;
            let mask = mask.view();
            self.fill_pattern(&[0], &mask)?;
            if k > 0 {
                let keys = self.scatter_keys(OP, axis, dy.shape(), &index)?;
                let keys = keys.view();
                let args = MarkKeysArgs {
                    keys: self.arg_in(&keys),
                    mask: self.arg_in(&mask),
                    n: k as i64,
                    wide_keys: wide_index(&keys),
                    limit: n as i64,
                };
                self.launch(&MARK_KEYS, DType::U8, "", Grid::Stride(k), &args)?;
            }
            let args = CopyUnmarkedArgs {
                x: self.arg_in(&dy),
                mask: self.arg_in(&mask),
                y: self.arg_in(&v),
                n: n as i64,
                accumulate: i32::from(g.accumulate),
            };
            self.launch(&COPY_UNMARKED, mover(dy.dtype(), g.accumulate), "", Grid::Stride(n), &args)?;
        }
        if let Some(g) = dsrc.as_ref().filter(|_| k > 0) {
            let v = g.out.as_view();
            self.check_owner(OP, "dsrc", &v)?;
            let plan = self.scatter_plan(OP, axis, dy.shape(), &index)?;
            self.scatter_last_bwd(&plan, &dy, &v, g.accumulate)?;
        }
        Ok(())
    }

    fn scatter_reduce(
        &self,
        how: ScatterReduce,
        axis: usize,
        include_self: bool,
        index: View<'_>,
        src: View<'_>,
        y: ViewMut<'_>,
    ) -> Result<()> {
        const OP: &str = "scatter_reduce";
        check_scatter_reduce(axis, &index, &src, &y)?;
        let (y, mut home) = (y.as_view(), None);
        let Some(s) = self.sources(OP, Along::Cells(axis), &index, &src, &y, &mut home)? else {
            return Ok(());
        };
        let to = Into::Tensor { y, include: include_self };
        self.scatter_reduction(&s.reduction(OP, how), to)
    }

    fn scatter_reduce_bwd(
        &self,
        how: ScatterReduce,
        axis: usize,
        include_self: bool,
        io: ScatterReduceBwd<'_>,
    ) -> Result<()> {
        const OP: &str = "scatter_reduce_bwd";
        check_scatter_reduce_bwd(axis, &io)?;
        self.check_owner_all(
            OP,
            &[("dy", io.dy), ("x", io.x), ("index", io.index), ("src", io.src), ("y", io.y)],
        )?;
        for (arg, g) in [("dx", &io.dx), ("dsrc", &io.dsrc)] {
            g.as_ref().map_or(Ok(()), |g| self.check_owner(OP, arg, &g.out.as_view()))?;
        }
        let (n, k, dtype) = (io.x.numel(), io.src.numel(), io.x.dtype());
        if n == 0 {
            return Ok(());
        }
        let mut homes = [const { None }; 4];
        let [h0, h1, h2, h3] = &mut homes;
        let io_dy = self.packed(&io.dy, h0)?;
        let io_x = self.packed(&io.x, h1)?;
        let io_y = self.packed(&io.y, h2)?;
        let io_src = self.packed(&io.src, h3)?;
        // What the derivatives need per destination. Without sources nothing is sorted and the initial values stand.
        let keys = if k > 0 { Some(self.scatter_keys(OP, axis, io.x.shape(), &io.index)?) } else { None };
        let needs_count = how == ScatterReduce::Mean || !include_self;
        let plan = match &keys {
            Some(keys) if needs_count || how != ScatterReduce::Sum => {
                Some(self.sorted_along(OP, axis, io.x.shape(), &io.index, keys, n)?)
            }
            _ => None,
        };
        let stat = |how: ScatterReduce, value: Value, initial: f64| {
            let s = self.scratch(arithmetic(dtype), n)?;
            self.fill_pattern(&element_bytes(s.dtype(), initial), &s.view())?;
            if let Some(p) = &plan {
                let r = Scatter {
                    op: Some(OP),
                    value,
                    tie: Some(&io_y),
                    ..Scatter::new(p, [1, 1], how, &io_src)
                };
                self.scatter_reduction(&r, Into::Stat(s.view()))?;
            }
            Ok::<_, GpuError>(s)
        };
        let counts = if needs_count { Some(stat(ScatterReduce::Sum, Value::One, 0.0)?) } else { None };
        let (marks, products) = match how {
            ScatterReduce::Amax | ScatterReduce::Amin => {
                (Some(stat(ScatterReduce::Sum, Value::Tie, 0.0)?), None)
            }
            ScatterReduce::Prod => {
                let zeros = stat(ScatterReduce::Sum, Value::IsZero, 0.0)?;
                (Some(zeros), Some(stat(ScatterReduce::Prod, Value::NonZero, 1.0)?))
            }
            _ => (None, None),
        };
        let [counts, marks, products] =
            [&counts, &marks, &products].map(|s| self.arg_opt(s.as_ref().map(Buffer::view).as_ref()));
        let (dy, x, y) = (self.arg_in(&io_dy), self.arg_in(&io_x), self.arg_in(&io_y));
        let (how, include) = (number(how), i32::from(include_self));
        if let Some(g) = &io.dx {
            let args = ReduceBwdBaseArgs {
                dy,
                x,
                y,
                counts,
                marks,
                products,
                dx: self.arg_out(&g.out),
                n: n as i64,
                how,
                include,
                accumulate: i32::from(g.accumulate),
            };
            self.launch(&REDUCE_BWD_BASE, dtype, "", Grid::Stride(n), &args)?;
        }
        if let (Some(g), Some(keys)) = (&io.dsrc, &keys) {
            let keys = keys.view();
            let args = ReduceBwdSourceArgs {
                keys: self.arg_in(&keys),
                dy,
                x,
                src: self.arg_in(&io_src),
                y,
                counts,
                marks,
                products,
                dsrc: self.arg_out(&g.out),
                n: k as i64,
                wide_keys: wide_index(&keys),
                limit: n as i64,
                how,
                include,
                accumulate: i32::from(g.accumulate),
            };
            self.launch(&REDUCE_BWD_SOURCE, dtype, "", Grid::Stride(k), &args)?;
        }
        Ok(())
    }

    fn index_put(&self, accumulate: bool, index: &[View<'_>], v: View<'_>, y: ViewMut<'_>) -> Result<()> {
        const OP: &str = "index_put";
        let common = check_index_put(accumulate, index, &v, &y)?;
        let y = y.as_view();
        self.check_owner_all(OP, &[("v", v), ("y", y)])?;
        index.iter().try_for_each(|i| self.check_owner(OP, "index", i))?;
        if v.numel() == 0 {
            return Ok(());
        }
        let mut home = None;
        let v = self.packed(&v, &mut home)?;
        let (lead, rest) = y.shape().split_at(index.len());
        let plan = self.put_plan(OP, &common, index, lead)?;
        let width = rest.iter().product();
        if !accumulate {
            return self.scatter_rows(&plan, 1, width, &v, &y);
        }
        let to = Into::Tensor { y, include: true };
        let sums = Scatter { op: Some(OP), ..Scatter::new(&plan, [1, width], ScatterReduce::Sum, &v) };
        self.scatter_reduction(&sums, to)
    }

    fn masked_scatter(&self, mask: View<'_>, src: View<'_>, y: ViewMut<'_>) -> Result<()> {
        const OP: &str = "masked_scatter";
        check_masked_scatter(&mask, &src, &y)?;
        let y = y.as_view();
        self.check_owner_all(OP, &[("mask", mask), ("src", src), ("y", y)])?;
        self.masked_move(OP, Masked::Consume, [&mask, &src, &y], None, false)
    }

    fn masked_select(&self, mask: View<'_>, x: View<'_>, y: ViewMut<'_>, count: ViewMut<'_>) -> Result<()> {
        const OP: &str = "masked_select";
        check_masked_select(&mask, &x, &y, &count)?;
        let (y, count) = (y.as_view(), count.as_view());
        self.check_owner_all(OP, &[("mask", mask), ("x", x), ("y", y), ("count", count)])?;
        self.masked_move(OP, Masked::Select, [&mask, &x, &y], Some(&count), false)
    }

    fn masked_select_bwd(&self, mask: View<'_>, dy: View<'_>, dx: GradMut<'_>) -> Result<()> {
        const OP: &str = "masked_select_bwd";
        check_masked_select_bwd(&mask, &dy, &dx)?;
        let v = dx.out.as_view();
        self.check_owner_all(OP, &[("mask", mask), ("dy", dy), ("dx", v)])?;
        self.masked_move(OP, Masked::Spread, [&mask, &dy, &v], None, dx.accumulate)
    }

    fn nonzero(&self, x: View<'_>, index: ViewMut<'_>, count: ViewMut<'_>) -> Result<()> {
        const OP: &str = "nonzero";
        check_nonzero(&x, &index, &count)?;
        let (index, count) = (index.as_view(), count.as_view());
        self.check_owner_all(OP, &[("x", x), ("index", index), ("count", count)])?;
        let n = x.numel();
        if n == 0 {
            return self.fill_pattern(&[0; 8], &count);
        }
        let mut home = None;
        let x = self.packed(&x, &mut home)?;
        let (partial, grid, chunk) = self.count_true(&x)?;
        let args = NonzeroArgs {
            x: self.arg_in(&x),
            partial: self.arg_in(&partial.view()),
            index: self.arg_in(&index),
            count: self.arg_in(&count),
            err: self.arg_error(),
            n: n as i64,
            chunk,
            room: index.shape()[0] as i64,
            rank: x.shape().len() as i32,
            shape: dims(x.shape().iter().copied()),
            magic: magic(x.shape().iter().copied()),
            code: code_of_op(OP),
        };
        self.launch(&NONZERO, x.dtype(), "", grid, &args)
    }

    fn one_hot(&self, ids: View<'_>, y: ViewMut<'_>) -> Result<()> {
        const OP: &str = "one_hot";
        check_one_hot(&ids, &y)?;
        let y = y.as_view();
        self.check_owner_all(OP, &[("ids", ids), ("y", y)])?;
        let (n, classes) = (y.numel(), y.shape()[ids.shape().len()]);
        let wide = aligned16(&y);
        let args = OneHotArgs {
            ids: self.arg_in(&ids),
            y: self.arg_in(&y),
            err: self.arg_error(),
            n: n as i64,
            wide: i32::from(wide),
            wide_index: wide_index(&ids),
            classes: classes as i64,
            magic: magic_of(classes),
            code: code_of_op(OP),
        };
        // Threads take four items of 16 bytes (`GK_INDEX_DEPTH`).
        let grid = Grid::Stride(if wide { n.div_ceil(4 * 16 / y.dtype().size()) } else { n });
        self.launch(&ONE_HOT, y.dtype(), "", grid, &args)
    }
}
