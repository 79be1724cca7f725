//! Sorting, top-k and binary search.

pub(crate) mod radix;

use crate::buffer::{GradMut, View, ViewMut};
use crate::dtype::DType;
use crate::engine::Engine;
use crate::engine::launch::{Grid, code_of_op, int, long};
use crate::engine::ops::index::scatter::wide_index;
use crate::engine::ops::shape::strided::Axis;
use crate::error::Result;
use crate::ops::sort::*;
use crate::spec::BLOCK;
use crate::spec::kernels::sort::*;

/// Elements per work-item in sorts within a block (`GK_EACH`).
fn each(d: DType) -> usize {
    if d.size() == 8 { 4 } else { 8 }
}

/// Elements that a block sorts at once (`GK_PAIRS`).
fn block_pairs(d: DType) -> usize {
    each(d) * BLOCK as usize
}

/// Shortest part of a row that a block selects from, when several share the row.
const PART: usize = 8192;

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

/// [outer, size, inner] as [outer, inner, size].
fn axis_last<'a>(v: View<'a>, [outer, size, inner]: [usize; 3]) -> Result<View<'a>> {
    v.reshape(&[outer, size, inner])?.map("rows", |l| l.transpose(1, 2))
}

impl Rows<'_> {
    /// Whether indices are wanted as 64-bit, as kernels take it.
    fn wide(&self) -> i32 {
        self.index.as_ref().map_or(0, wide_index)
    }
}

impl Engine {
    /// Rows that fit a block; `from` names positions.
    fn order_short(&self, r: &Rows<'_>, from: Option<&View<'_>>) -> Result<()> {
        let dt = r.x.dtype();
        let n = r.cols.max(each(dt)).next_power_of_two();
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
        self.launch(&SORT_ROWS, dt, "", Grid::Blocks([r.rows.div_ceil(block_pairs(dt) / n), 1, 1]), &args)
    }

    /// The first `keep`, which fit a block, of long rows; `from` names positions.
    fn order_select(&self, r: &Rows<'_>, from: Option<&View<'_>>) -> Result<()> {
        let dt = r.x.dtype();
        if r.cols <= block_pairs(dt) {
            return self.order_short(r, from);
        }
        let fill = self.target_blocks();
        let most = r.cols / PART.max(16 * r.keep);
        let splits = if r.rows < fill { fill.div_ceil(r.rows).min(most).max(1) } else { 1 };
        let part = |y: &View<'_>, index: &View<'_>, wide: i32| {
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
                wide,
            };
            self.launch(&SORT_SELECT, dt, "", Grid::Blocks([r.rows * splits, 1, 1]), &args)
        };
        match (&r.y, &r.index) {
            (Some(y), Some(index)) if splits == 1 => part(y, index, wide_index(index)),
            _ => {
                // The best of each part, and then the best of those; they lie in the order of their positions where they are equal.
                let n = r.rows * splits * r.keep;
                let (y, at) = (self.scratch(dt, n)?, self.scratch(DType::I32, n)?);
                part(&y.view(), &at.view(), 0)?;
                let next = Rows { cols: splits * r.keep, x: y.view(), ..*r };
                self.order_select(&next, Some(&at.view()))
            }
        }
    }

    /// Rows of any length by radix.
    fn order_long(&self, op: &'static str, r: &Rows<'_>) -> Result<()> {
        let (dt, n) = (r.x.dtype(), r.rows * r.cols);
        let key = if dt.size() == 8 { DType::I64 } else { DType::I32 };
        let keys = self.scratch(key, n)?;
        let args = SortKeysArgs {
            x: self.arg_in(&r.x),
            keys: self.arg_in(&keys.view()),
            n: long(n),
            descending: i32::from(r.descending),
        };
        self.launch(&SORT_KEYS, dt, "", Grid::Stride(n), &args)?;
        let sorted = self.sort_rows(op, &keys.view(), r.rows, 8 * dt.size() as u32)?;
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
        self.launch(&SORT_FINISH, dt, "", Grid::Stride(r.rows * r.keep), &args)
    }

    /// The first `keep` along an axis of [outer, size, inner], which is not empty.
    #[allow(clippy::too_many_arguments)]
    fn order(
        &self,
        op: &'static str,
        extents: [usize; 3],
        keep: usize,
        descending: bool,
        x: View<'_>,
        y: Option<View<'_>>,
        index: Option<View<'_>>,
    ) -> Result<()> {
        let [outer, size, inner] = extents;
        let rows = outer * inner;
        let mut home = None;
        let across = inner > 1;
        // Along an inner axis: rows are made and undone by copies.
        let x = if across { self.packed(&axis_last(x, extents)?, &mut home)? } else { x };
        let spare = |v: &Option<View<'_>>| {
            v.filter(|_| across).map(|v| self.scratch(v.dtype(), rows * keep)).transpose()
        };
        let (ys, is) = (spare(&y)?, spare(&index)?);
        let r = Rows {
            rows,
            cols: size,
            keep,
            descending,
            x,
            y: ys.as_ref().map(|b| b.view()).or(y),
            index: is.as_ref().map(|b| b.view()).or(index),
        };
        let most = block_pairs(x.dtype());
        if size <= most {
            self.order_short(&r, None)?;
        } else if keep <= most / 2
            && r.y.is_some()
            && r.index.is_some()
            && keep * 4 <= size
            && size <= u32::MAX as usize
        {
            self.order_select(&r, None)?;
        } else {
            self.order_long(op, &r)?;
        }
        for (rows, out) in [(&ys, &y), (&is, &index)] {
            if let (Some(rows), Some(out)) = (rows, out) {
                let back = axis_last(rows.view(), [outer, inner, keep])?;
                let out = out.reshape(&[outer, keep, inner])?;
                self.move_axes(&back, 0, &out, Axis::of(&back, &out), false)?;
            }
        }
        Ok(())
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
        self.order(OP, extents, extents[1], descending, io.x, y, index)
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
        self.order(OP, extents, k, largest, x, Some(y), Some(index))
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
        self.launch(&SORT_SEARCH, values.dtype(), "", Grid::Stride(n), &args)
    }
}
