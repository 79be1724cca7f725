//! Scatters without atomics: the sources are sorted by destination, then each destination is written once.

use super::plan::{ReductionPlan, ReductionProblem};
use crate::buffer::{Buffer, View};
use crate::driver::Ptr;
use crate::dtype::DType;
use crate::engine::Engine;
use crate::engine::launch::{Grid, args_from, code_of_op, dims};
use crate::engine::ops::shape::strided::{common_power, magic, mover, signed, unit_of};
use crate::engine::ops::sort::radix::SortedPairs;
use crate::error::Result;
use crate::layout::Layout;
use crate::ops::index::ScatterReduce;
use crate::spec::kernels::index::*;
use crate::spec::kernels::sort::*;

/// The sources of a scatter in the order of their destinations.
pub(in crate::engine::ops) struct Plan {
    pairs: SortedPairs,
    /// Number of sources.
    n: usize,
    /// Number of destinations; keys not below it are dropped.
    limit: usize,
}

impl Plan {
    /// The keys in order, and where each was before.
    pub(in crate::engine::ops) fn sorted_views(&self) -> (View<'_>, View<'_>) {
        (self.pairs.keys.view(), self.pairs.positions.view())
    }
}

/// What the indices of a scatter along an axis address.
#[derive(Clone, Copy)]
pub(in crate::engine::ops) enum Along {
    /// Rows: a vector with the position of each.
    Rows(usize),
    /// Single cells: a position for every source.
    Cells(usize),
}

/// Sources of a scatter, packed and in the order of their destinations; rows of `inner` elements, `outer` times.
pub(in crate::engine::ops) struct Sources<'a> {
    pub(in crate::engine::ops) plan: Plan,
    pub(in crate::engine::ops) outer: usize,
    pub(in crate::engine::ops) inner: usize,
    pub(in crate::engine::ops) src: View<'a>,
}

impl Sources<'_> {
    /// Their reduction, a variant of `op`.
    pub(in crate::engine::ops) fn reduction(&self, op: &'static str, how: ScatterReduce) -> Scatter<'_> {
        Scatter { op: Some(op), ..Scatter::new(&self.plan, [self.outer, self.inner], how, &self.src) }
    }
}

/// What a source counts as in a reduction.
#[derive(Clone, Copy)]
#[repr(i32)]
pub(in crate::engine::ops) enum Value {
    /// Itself.
    Own = 0,
    /// 1.
    One = 1,
    /// Whether it equals the forward result.
    Tie = 2,
    /// Whether it is 0.
    IsZero = 3,
    /// Itself, with 0 replaced by 1.
    NonZero = 4,
}

/// A reduction of the sources of each destination; rows of `inner` elements, `outer` times.
#[derive(Clone, Copy)]
pub(in crate::engine::ops) struct Scatter<'a> {
    /// The operation whose variant it is, `None` in one that has others of its own.
    pub(in crate::engine::ops) op: Option<&'static str>,
    pub(in crate::engine::ops) plan: &'a Plan,
    pub(in crate::engine::ops) outer: usize,
    pub(in crate::engine::ops) inner: usize,
    pub(in crate::engine::ops) how: ScatterReduce,
    pub(in crate::engine::ops) value: Value,
    pub(in crate::engine::ops) alpha: f64,
    pub(in crate::engine::ops) src: &'a View<'a>,
    /// The forward result, for [`Value::Tie`].
    pub(in crate::engine::ops) tie: Option<&'a View<'a>>,
}

impl<'a> Scatter<'a> {
    /// A reduction of the sources themselves.
    pub(in crate::engine::ops) fn new(
        plan: &'a Plan,
        [outer, inner]: [usize; 2],
        how: ScatterReduce,
        src: &'a View<'a>,
    ) -> Self {
        Scatter { op: None, plan, outer, inner, how, value: Value::Own, alpha: 1.0, src, tie: None }
    }
}

/// Where a reduction goes.
pub(in crate::engine::ops) enum Into<'a> {
    /// Combined with what is there, or replacing it.
    Tensor { y: View<'a>, include: bool },
    /// Raw results in the arithmetic type; cells without sources keep their contents.
    Stat(View<'a>),
}

/// Type in which sources of a dtype are combined (`gk_f`).
pub(in crate::engine::ops) fn arithmetic(d: DType) -> DType {
    if d.is_float() { d.accumulator() } else { d }
}

/// How the rows of an operation along an axis are moved: in units of `dtype`, `wide` for 16 bytes at once.
pub(in crate::engine::ops) struct Items {
    pub(in crate::engine::ops) dtype: DType,
    pub(in crate::engine::ops) wide: bool,
    /// Items per row.
    pub(in crate::engine::ops) row: usize,
}

impl Items {
    /// Rows of `row` elements that are contiguous in all views; outputs that accumulate keep their own unit.
    pub(in crate::engine::ops) fn new(row: usize, accumulate: bool, views: &[&View<'_>]) -> Items {
        let (d, size) = (views[0].dtype(), views[0].dtype().size());
        let mut bytes =
            common_power(16, views.iter().map(|v| v.layout().offset() * size).chain([row * size]));
        if accumulate && bytes < 16 {
            bytes = size;
        }
        let wide = bytes == 16;
        let dtype = if accumulate { d } else { unit_of(if wide { 4 } else { bytes }) };
        Items { dtype, wide, row: row * size / bytes }
    }
}

/// Sizes before, at and behind an axis.
pub(in crate::engine::ops) fn around(shape: &[usize], axis: usize) -> (usize, usize, usize) {
    (shape[..axis].iter().product(), shape[axis], shape[axis + 1..].iter().product())
}

/// The number under which the kernels know a reduction.
pub(in crate::engine::ops) fn number(how: ScatterReduce) -> i32 {
    match how {
        ScatterReduce::Sum => 0,
        ScatterReduce::Prod => 1,
        ScatterReduce::Mean => 2,
        ScatterReduce::Amax => 3,
        ScatterReduce::Amin => 4,
    }
}

/// Elements of a thread that are on their way at a time (`GK_RADIX_DEPTH`, `GK_INDEX_DEPTH`).
const DEPTH: usize = 4;
/// Shortest rows of sources that are sorted one by one.
const ROW: usize = 512;

/// Where the sources of a scatter lie in rows, each with a row of the table to itself along the innermost axis: the number of rows, and how many
/// bits tell the destinations of one row, and a dropped source, apart. Sorting such rows one by one takes fewer digits, and moves keys less far.
fn separate_rows(axis: usize, table: &[usize], index: &[usize]) -> Option<(usize, u32)> {
    let (&size, &k) = (table.last()?, index.last()?);
    let alone = axis + 1 == table.len() && index.len() == table.len() && index[..axis] == table[..axis];
    let rows: usize = index[..axis].iter().product();
    let bits = usize::BITS - size.leading_zeros();
    // Dropped sources have keys up to 2^bits beyond the table.
    let fits = bits < 31 && (rows * size).saturating_add(1 << bits) < i32::MAX as usize;
    (alone && fits && rows > 1 && k >= ROW).then_some((rows, bits))
}

/// Type of keys up to and including `limit`.
pub(in crate::engine::ops) fn key_type(limit: usize) -> DType {
    if limit < i32::MAX as usize { DType::I32 } else { DType::I64 }
}

/// Whether indices are 64-bit, as kernels take it.
pub(in crate::engine::ops) fn wide_index(v: &View<'_>) -> i32 {
    i32::from(v.dtype() == DType::I64)
}

impl Engine {
    /// What every scatter of `src` into `y` starts with; `None` without sources. The caller has checked the operands; `home` holds a packed copy.
    pub(in crate::engine::ops) fn sources<'a>(
        &self,
        op: &'static str,
        along: Along,
        index: &View<'_>,
        src: &View<'a>,
        y: &View<'_>,
        home: &'a mut Option<Buffer>,
    ) -> Result<Option<Sources<'a>>> {
        self.check_owner(op, "index", index)?;
        self.check_owner(op, "src", src)?;
        self.check_owner(op, "y", y)?;
        if src.numel() == 0 {
            return Ok(None);
        }
        let src = self.packed(src, home)?;
        let (plan, outer, inner) = match along {
            Along::Rows(axis) => {
                let (outer, size, inner) = around(y.shape(), axis);
                (self.scatter_plan(op, 0, &[size], index)?, outer, inner)
            }
            Along::Cells(axis) => (self.scatter_plan(op, axis, y.shape(), index)?, 1, 1),
        };
        Ok(Some(Sources { plan, outer, inner, src }))
    }

    /// Sorts keys up to and including `limit`.
    pub(in crate::engine::ops) fn sorted(
        &self,
        op: &'static str,
        keys: &Buffer,
        limit: usize,
    ) -> Result<Plan> {
        let bits = usize::BITS - limit.leading_zeros();
        let pairs = self.sort_pairs(op, &keys.view(), bits)?;
        Ok(Plan { pairs, n: keys.len(), limit })
    }

    /// Sources are the elements of `index` (contiguous); the destination of one is its cell in a table of shape `table` with the coordinate
    /// at `axis` replaced by the index. For an index vector of rows the table is that axis alone.
    pub(in crate::engine::ops) fn scatter_plan(
        &self,
        op: &'static str,
        axis: usize,
        table: &[usize],
        index: &View<'_>,
    ) -> Result<Plan> {
        let limit = table.iter().product();
        let keys = self.scatter_keys(op, axis, table, index)?;
        self.sorted_along(op, axis, table, index, &keys, limit)
    }

    /// Sorts the result of [`Engine::scatter_keys`] of the same table and index.
    pub(in crate::engine::ops) fn sorted_along(
        &self,
        op: &'static str,
        axis: usize,
        table: &[usize],
        index: &View<'_>,
        keys: &Buffer,
        limit: usize,
    ) -> Result<Plan> {
        let Some((rows, bits)) = separate_rows(axis, table, index.shape()) else {
            return self.sorted(op, keys, limit);
        };
        let pairs = self.sort_row_pairs(op, &keys.view(), rows, bits)?;
        Ok(Plan { pairs, n: keys.len(), limit })
    }

    /// The destinations of [`Engine::scatter_plan`] in the order of the sources; the table's size or more for an index out of range.
    pub(in crate::engine::ops) fn scatter_keys(
        &self,
        op: &'static str,
        axis: usize,
        table: &[usize],
        index: &View<'_>,
    ) -> Result<Buffer> {
        let (n, limit) = (index.numel(), table.iter().product::<usize>());
        let dtype = key_type(limit);
        let keys = self.scratch(dtype, n)?;
        let strides = row_major(table);
        let args = ScatterKeysArgs {
            index: self.arg_in(index),
            keys: self.arg_in(&keys.view()),
            err: self.arg_error(),
            n: n as i64,
            wide: wide_index(index),
            size: table[axis] as i64,
            step: strides[axis],
            none: limit as i64,
            mask: separate_rows(axis, table, index.shape()).map_or(0, |(_, bits)| (1 << bits) - 1),
            rank: table.len() as i32,
            shape: dims(index.shape().iter().copied()),
            magic: magic(index.shape().iter().copied()),
            sy: signed(strides.iter().enumerate().map(|(a, &s)| if a == axis { 0 } else { s })),
            code: code_of_op(op),
        };
        self.launch(&SCATTER_KEYS, dtype, "", Grid::Stride(n.div_ceil(DEPTH)), &args)?;
        Ok(keys)
    }

    /// Sources are the cells of the shape that the index tensors broadcast to; each tensor gives one leading coordinate of a table.
    pub(in crate::engine::ops) fn put_plan(
        &self,
        op: &'static str,
        common: &[usize],
        index: &[View<'_>],
        lead: &[usize],
    ) -> Result<Plan> {
        let (n, limit) = (common.iter().product::<usize>(), lead.iter().product::<usize>());
        let dtype = key_type(limit);
        let keys = self.scratch(dtype, n)?;
        // A scalar index has no axis; kernels take at least one.
        let shape = if common.is_empty() { vec![1] } else { common.to_vec() };
        for (k, (i, &size)) in index.iter().zip(lead).enumerate() {
            let wide = i.broadcast_to(&shape)?;
            let args = PutKeysArgs {
                index: self.arg_in(i),
                keys: self.arg_in(&keys.view()),
                err: self.arg_error(),
                n: n as i64,
                wide: wide_index(i),
                size: size as i64,
                first: i32::from(k == 0),
                last: i32::from(k + 1 == index.len()),
                none: limit as i64,
                rank: shape.len() as i32,
                shape: dims(shape.iter().copied()),
                magic: magic(shape.iter().copied()),
                si: dims(wide.layout().strides().iter().copied()),
                code: code_of_op(op),
            };
            self.launch(&PUT_KEYS, dtype, "", Grid::Stride(n), &args)?;
        }
        self.sorted(op, &keys, limit)
    }

    /// y[o, i, c] (+)= x[o, index[i], c] along an axis of contiguous, checked operands.
    pub(in crate::engine::ops) fn select_rows(
        &self,
        op: &'static str,
        axis: usize,
        x: &View<'_>,
        index: &View<'_>,
        y: &View<'_>,
        accumulate: bool,
    ) -> Result<()> {
        let (outer, size, inner) = around(x.shape(), axis);
        let items = Items::new(inner, accumulate, &[x, y]);
        let shape = [outer, index.numel(), items.row];
        let n: usize = shape.iter().product();
        let args = IndexSelectArgs {
            x: self.arg_in(x),
            index: self.arg_in(index),
            y: self.arg_in(y),
            err: self.arg_error(),
            items: n as i64,
            wide: i32::from(items.wide),
            wide_index: wide_index(index),
            size: size as i64,
            shape: dims(shape),
            magic: magic(shape),
            accumulate: i32::from(accumulate),
            code: code_of_op(op),
        };
        self.launch(&INDEX_SELECT, items.dtype, "", Grid::Stride(n.div_ceil(DEPTH)), &args)
    }

    /// Keys and positions of a plan, and whether the keys are 64-bit.
    fn plan_args(&self, p: &Plan) -> (Ptr, Ptr, i32) {
        let keys = p.pairs.keys.view();
        (self.arg_in(&keys), self.arg_in(&p.pairs.positions.view()), wide_index(&keys))
    }

    /// y[o, destination, c] = src[o, source, c], the last source of each destination; rows of `inner` elements, `outer` times.
    pub(in crate::engine::ops) fn scatter_rows(
        &self,
        p: &Plan,
        outer: usize,
        inner: usize,
        src: &View<'_>,
        y: &View<'_>,
    ) -> Result<()> {
        let items = Items::new(inner, false, &[src, y]);
        let shape = [outer, p.n, items.row];
        let n: usize = shape.iter().product();
        let (keys, positions, wide_keys) = self.plan_args(p);
        let args = ScatterLastArgs {
            keys,
            positions,
            src: self.arg_in(src),
            y: self.arg_in(y),
            items: n as i64,
            wide: i32::from(items.wide),
            wide_keys,
            limit: p.limit as i64,
            shape: dims(shape),
            magic: magic(shape),
        };
        self.launch(&SCATTER_LAST, items.dtype, "", Grid::Stride(n.div_ceil(DEPTH)), &args)
    }

    /// dsrc[source] (+)= dy[destination] where the source was the last one.
    pub(in crate::engine::ops) fn scatter_last_bwd(
        &self,
        p: &Plan,
        dy: &View<'_>,
        dsrc: &View<'_>,
        accumulate: bool,
    ) -> Result<()> {
        let (keys, positions, wide_keys) = self.plan_args(p);
        let args = ScatterLastBwdArgs {
            keys,
            positions,
            dy: self.arg_in(dy),
            dsrc: self.arg_in(dsrc),
            n: p.n as i64,
            wide_keys,
            limit: p.limit as i64,
            accumulate: i32::from(accumulate),
        };
        self.launch(&SCATTER_LAST_BWD, mover(dy.dtype(), accumulate), "", Grid::Stride(p.n), &args)
    }

    /// Reduces the sources of each destination in their order.
    pub(in crate::engine::ops) fn scatter_reduction(&self, r: &Scatter<'_>, to: Into<'_>) -> Result<()> {
        let Scatter { op, plan: p, outer, inner, how, value, alpha, src, tie } = *r;
        let dtype = src.dtype();
        let (y, stat, include) = match &to {
            Into::Tensor { y, include } => (Some(y), None, *include),
            Into::Stat(s) => (None, Some(s), false),
        };
        let aligned = [Some(src), tie, y].into_iter().flatten().map(|v| v.layout().offset() * dtype.size());
        let wide = common_power(16, aligned.chain([inner * dtype.size()])) == 16;
        let columns = outer * inner / if wide { 16 / dtype.size() } else { 1 };
        let problem = ReductionProblem { sources: p.n, row: outer * inner };
        let plan = op.map_or_else(|| Ok(problem.by_rule()), |op| self.plan(op, &problem))?;
        let run = plan.run();
        let runs = p.n.div_ceil(run);
        let part = |runs: usize| self.scratch(arithmetic(dtype), runs * outer * inner);
        let parts = if runs > 1 { Some((part(runs)?, part(runs)?)) } else { None };
        let (head, tail) = match &parts {
            Some((h, t)) => (self.arg_in(&h.view()), self.arg_in(&t.view())),
            None => (Ptr::NULL, Ptr::NULL),
        };
        let (keys, positions, wide_keys) = self.plan_args(p);
        let (y, stat) = (self.arg_opt(y), self.arg_opt(stat));
        let [n, run, outer, inner, limit] = [p.n, run, outer, inner, p.limit].map(|v| v as i64);
        let (wide, how, include) = (i32::from(wide), number(how), i32::from(include));
        let args = ScatterReduceArgs {
            keys,
            positions,
            src: self.arg_in(src),
            tie: self.arg_opt(tie),
            y,
            stat,
            head,
            tail,
            n,
            run,
            outer,
            inner,
            limit,
            wide_keys,
            wide,
            how,
            value: value as i32,
            include,
            alpha,
        };
        match plan {
            ReductionPlan::Cells { .. } => {
                let args = args_from! { args => ScatterReduceCellsArgs
                    [keys positions src tie y stat head tail n limit wide_keys how value include alpha] {}
                };
                self.launch(&SCATTER_REDUCE_CELLS, dtype, "", Grid::Blocks([runs, 1, 1]), &args)?;
            }
            ReductionPlan::Rows { .. } => {
                self.launch(&SCATTER_REDUCE, dtype, "", Grid::Stride(runs * columns), &args)?;
            }
        }
        if runs == 1 {
            return Ok(());
        }
        let args = args_from! { args => ScatterReduceCombineArgs
            [keys y stat head tail n run outer inner limit wide_keys wide how include alpha] {}
        };
        self.launch(&SCATTER_REDUCE_COMBINE, dtype, "", Grid::Stride((runs - 1) * columns), &args)
    }
}

/// Strides of a contiguous tensor.
pub(in crate::engine::ops) fn row_major(shape: &[usize]) -> Vec<i64> {
    Layout::contiguous(shape).map_or(vec![], |l| l.strides().iter().map(|&s| s as i64).collect())
}
