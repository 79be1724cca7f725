//! Sorting, top-k and binary search.

mod plan;
pub(crate) mod radix;

use self::plan::{RadixPlan, SortPlan, SortProblem, each, key_of};
use crate::buffer::{GradMut, View, ViewMut};
use crate::dtype::DType;
use crate::engine::Engine;
use crate::engine::launch::{Grid, LANES, MAX_GRID_YZ, code_of_op, int, long};
use crate::engine::ops::index::scatter::wide_index;
use crate::engine::ops::shape::strided::Axis;
use crate::error::Result;
use crate::ops::core::Choice;
use crate::ops::sort::*;
use crate::spec::kernels::sort::*;

/// Elements of a thread that are on their way at a time (`GK_SORT_DEPTH`).
const DEPTH: usize = 4;

/// Rows to sort: contiguous [rows, cols], of which the first `keep` are wanted.
struct Rows<'a> {
    rows: usize,
    cols: usize,
    keep: usize,
    descending: bool,
    x: View<'a>,
    /// Contiguous [rows, keep].
    y: Option<View<'a>>,
    index: Option<View<'a>>,
}

/// The first `keep` along the middle axis of [outer, size, inner].
struct Order<'a> {
    op: &'static str,
    extents: [usize; 3],
    keep: usize,
    descending: bool,
    x: View<'a>,
    y: Option<View<'a>>,
    index: Option<View<'a>>,
}

/// [outer, size, inner] as [outer, inner, size].
fn axis_last<'a>(v: View<'a>, [outer, size, inner]: [usize; 3]) -> Result<View<'a>> {
    v.reshape(&[outer, size, inner])?.map("rows", |l| l.transpose(1, 2))
}

impl Rows<'_> {
    /// Whether indices are wanted as 64-bit, as kernels take it.
    fn wide(&self) -> i32 {
        self.index.as_ref().map_or(0, wide_index)
    }

    /// What decides how the rows are sorted.
    fn problem(&self) -> SortProblem {
        SortProblem {
            rows: self.rows,
            cols: self.cols,
            keep: self.keep,
            dtype: self.x.dtype(),
            both: self.y.is_some() && self.index.is_some(),
        }
    }
}

impl Engine {
    /// What serves 4096 rows of 1024 elements in f32, of which all are sorted, or 16 taken.
    pub(crate) fn explain_sort(&self, op: &'static str) -> Result<Choice> {
        let keep = if op == "topk" { 16 } else { 1024 };
        let p = SortProblem { rows: 4096, cols: 1024, keep, dtype: DType::F32, both: true };
        self.explain_problem(op, &p)
    }

    /// Rows that fit a block, padded to `n` elements; `from` names positions.
    fn order_block(&self, r: &Rows<'_>, from: Option<&View<'_>>, n: usize, blocks: usize) -> Result<()> {
        let args = SortRowsArgs {
            x: self.arg_in(&r.x),
            from: self.arg_opt(from),
            y: self.arg_opt(r.y.as_ref()),
            index: self.arg_opt(r.index.as_ref()),
            rows: long(r.rows),
            cols: int(r.cols),
            n: int(n),
            keep: int(r.keep),
            descending: i32::from(r.descending),
            wide: r.wide(),
        };
        self.launch(&SORT_ROWS, r.x.dtype(), "", Grid::Blocks([blocks, 1, 1]), &args)
    }

    /// The first `keep` of each of `splits` parts of long rows, and then the first of those; `from` names positions.
    fn order_select(&self, r: &Rows<'_>, from: Option<&View<'_>>, splits: usize) -> Result<()> {
        let dt = r.x.dtype();
        let part = |y: &View<'_>, index: &View<'_>| {
            let args = SortSelectArgs {
                x: self.arg_in(&r.x),
                from: self.arg_opt(from),
                y: self.arg_in(y),
                index: self.arg_in(index),
                cols: long(r.cols),
                splits: int(splits),
                count: int(r.keep),
                n: int(r.keep.max(each(dt)).next_power_of_two()),
                descending: i32::from(r.descending),
                wide: wide_index(index),
            };
            self.launch(&SORT_SELECT, dt, "", Grid::Blocks([r.rows * splits, 1, 1]), &args)
        };
        if let (1, Some(y), Some(index)) = (splits, &r.y, &r.index) {
            return part(y, index);
        }
        // Those of the parts lie in the order of their positions where they are equal.
        let n = r.rows * splits * r.keep;
        let (y, at) = (self.scratch(dt, n)?, self.scratch(DType::I32, n)?);
        part(&y.view(), &at.view())?;
        let next = Rows { cols: splits * r.keep, x: y.view(), ..*r };
        match next.problem().block() {
            Ok(SortPlan::Block { n, blocks }) => self.order_block(&next, Some(&at.view()), n, blocks),
            _ => self.order_select(&next, Some(&at.view()), next.problem().splits(self.device_caps())),
        }
    }

    /// Rows of any length by the digits of keys.
    fn order_radix(&self, r: &Rows<'_>, plan: RadixPlan) -> Result<()> {
        let (dt, n) = (r.x.dtype(), r.rows * r.cols);
        let keys = self.scratch(key_of(dt), n)?;
        let args = SortKeysArgs {
            x: self.arg_in(&r.x),
            keys: self.arg_in(&keys.view()),
            n: long(n),
            descending: i32::from(r.descending),
        };
        self.launch(&SORT_KEYS, dt, "", Grid::Stride(n.div_ceil(DEPTH)), &args)?;
        let sorted = self.sort_rows(&keys.view(), r.rows, 8 * dt.size() as u32, plan)?;
        let args = SortFinishArgs {
            keys: self.arg_in(&sorted.keys.view()),
            positions: self.arg_in(&sorted.positions.view()),
            x: self.arg_in(&r.x),
            y: self.arg_opt(r.y.as_ref()),
            index: self.arg_opt(r.index.as_ref()),
            n: long(r.rows * r.keep),
            cols: long(r.cols),
            keep: long(r.keep),
            descending: i32::from(r.descending),
            wide: r.wide(),
        };
        self.launch(&SORT_FINISH, dt, "", Grid::Stride((r.rows * r.keep).div_ceil(DEPTH)), &args)
    }

    /// The first along an axis, which is not empty.
    fn order(&self, o: &Order<'_>) -> Result<()> {
        let [outer, size, inner] = o.extents;
        let given = Rows {
            rows: outer * inner,
            cols: size,
            keep: o.keep,
            descending: o.descending,
            x: o.x,
            y: o.y,
            index: o.index,
        };
        let plan = self.plan(o.op, &given.problem())?;
        if inner == 1 {
            return self.order_rows(&given, plan);
        }
        // Along an inner axis: rows are made and undone by copies.
        let mut home = None;
        let x = self.packed(&axis_last(o.x, o.extents)?, &mut home)?;
        let spare =
            |v: &Option<View<'_>>| v.map(|v| self.scratch(v.dtype(), given.rows * o.keep)).transpose();
        let (ys, is) = (spare(&o.y)?, spare(&o.index)?);
        let (y, index) = (ys.as_ref().map(|b| b.view()), is.as_ref().map(|b| b.view()));
        self.order_rows(&Rows { x, y, index, ..given }, plan)?;
        for (rows, out) in [(y, o.y), (index, o.index)] {
            if let (Some(rows), Some(out)) = (rows, out) {
                let back = axis_last(rows, [outer, inner, o.keep])?;
                let out = out.reshape(&[outer, o.keep, inner])?;
                self.move_axes(&back, 0, &out, Axis::of(&back, &out), false)?;
            }
        }
        Ok(())
    }

    fn order_rows(&self, r: &Rows<'_>, plan: SortPlan) -> Result<()> {
        match plan {
            SortPlan::Block { n, blocks } => self.order_block(r, None, n, blocks),
            SortPlan::Select { splits } => self.order_select(r, None, splits),
            SortPlan::Radix(plan) => self.order_radix(r, plan),
        }
    }
}

impl SortOps for Engine {
    fn sort(&self, axis: usize, descending: bool, io: SortIo<'_>) -> Result<()> {
        const OP: &str = "sort";
        let extents = check_sort(axis, &io)?;
        let (y, index) = (io.y.as_ref().map(ViewMut::as_view), io.index.as_ref().map(ViewMut::as_view));
        self.check_owner_all(OP, &[("x", Some(io.x)), ("y", y), ("index", index)])?;
        if io.x.numel() == 0 || (y.is_none() && index.is_none()) {
            return Ok(());
        }
        self.order(&Order { op: OP, extents, keep: extents[1], descending, x: io.x, y, index })
    }

    fn topk(
        &self,
        axis: usize,
        largest: bool,
        x: View<'_>,
        y: ViewMut<'_>,
        index: ViewMut<'_>,
    ) -> Result<()> {
        const OP: &str = "topk";
        let (extents, k) = check_topk(axis, &x, &y, &index)?;
        let (y, index) = (y.as_view(), index.as_view());
        self.check_owner_all(OP, &[("x", x), ("y", y), ("index", index)])?;
        if y.numel() == 0 {
            return Ok(());
        }
        let (y, index) = (Some(y), Some(index));
        self.order(&Order { op: OP, extents, keep: k, descending: largest, x, y, index })
    }

    fn sort_bwd(&self, axis: usize, dy: View<'_>, index: View<'_>, dx: GradMut<'_>) -> Result<()> {
        const OP: &str = "sort_bwd";
        let ([_, size, inner], k) = check_sort_bwd(axis, &dy, &index, &dx)?;
        let v = dx.out.as_view();
        self.check_owner_all(OP, &[("dy", dy), ("index", index), ("dx", v)])?;
        if k < size && !dx.accumulate && v.numel() > 0 {
            self.fill_pattern(&vec![0; v.dtype().size()], &v)?;
        }
        let n = dy.numel();
        let args = SortScatterArgs {
            dy: self.arg_in(&dy),
            index: self.arg_in(&index),
            dx: self.arg_in(&v),
            err: self.arg_error(),
            n: long(n),
            keep: long(k),
            size: long(size),
            inner: long(inner),
            wide: wide_index(&index),
            accumulate: i32::from(dx.accumulate),
            code: code_of_op(OP),
        };
        self.launch(&SORT_SCATTER, v.dtype(), "", Grid::Stride(n), &args)
    }

    fn linear_assignment(&self, cost: View<'_>, counts: Option<View<'_>>, column: ViewMut<'_>) -> Result<()> {
        const OP: &str = "linear_assignment";
        let [problems, rows, columns] = check_linear_assignment(&cost, counts.as_ref(), &column)?;
        let v = column.as_view();
        self.check_owner_all(OP, &[("cost", Some(cost)), ("counts", counts), ("column", Some(v))])?;
        let (n, m) = (rows.min(columns), rows.max(columns));
        if v.numel() == 0 {
            return Ok(());
        }
        let prices = self.scratch(cost.dtype().accumulator(), problems * (n + 2 * m))?;
        let links = self.scratch(DType::I32, problems * (n + 3 * m))?;
        let args = LinearAssignmentArgs {
            cost: self.arg_in(&cost),
            counts: self.arg_opt(counts.as_ref()),
            prices: self.arg_in(&prices.view()),
            links: self.arg_in(&links.view()),
            column: self.arg_in(&v),
            err: self.arg_error(),
            problems: long(problems),
            rows: int(rows),
            columns: int(columns),
            wide: counts.as_ref().map_or(0, wide_index),
            code: code_of_op(OP),
        };
        let blocks = problems.min(MAX_GRID_YZ);
        self.launch(&LINEAR_ASSIGNMENT, cost.dtype(), "", Grid::Blocks([blocks, 1, 1]), &args)
    }

    fn search_sorted(
        &self,
        right: bool,
        sorted: View<'_>,
        values: View<'_>,
        index: ViewMut<'_>,
    ) -> Result<()> {
        const OP: &str = "search_sorted";
        let (edges, per) = check_search_sorted(&sorted, &values, &index)?;
        let v = index.as_view();
        self.check_owner_all(OP, &[("sorted", sorted), ("values", values), ("index", v)])?;
        let n = values.numel();
        let args = SortSearchArgs {
            sorted: self.arg_in(&sorted),
            values: self.arg_in(&values),
            index: self.arg_in(&v),
            n: long(n),
            edges: long(edges),
            per: long(per.unwrap_or(0)),
            right: i32::from(right),
            wide: wide_index(&v),
        };
        // Blocks that hold all edges in local memory (`GK_SORT_EDGES`) take many values each.
        let grid = match per {
            None if edges <= 2048 => Grid::Blocks([n.div_ceil(4 * LANES).min(self.target_blocks()), 1, 1]),
            _ => Grid::Stride(n),
        };
        self.launch(&SORT_SEARCH, values.dtype(), "", grid, &args)
    }
}
