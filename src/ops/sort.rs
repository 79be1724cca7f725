//! Order: signatures and checks.

use crate::ops::check;
use crate::ops::shape::check_mode;
use crate::buffer::{GradMut, View, ViewMut};
use crate::dtype::DType;
use crate::error::{GpuError, Result};

io_struct! {
    /// Operands of [`SortOps::sort`]; without `y` it is an argsort.
    #[derive(Debug)]
    pub struct SortIo<'a> {
        /// Any dtype.
        pub x: View<'a>,
        /// The values in order, x's shape and dtype.
        pub y: Option<ViewMut<'a>>,
        /// Where along the axis each of them was, i32 or i64, x's shape.
        pub index: Option<ViewMut<'a>>,
    }
}

op_family! {
    /// Sorting, selection, search and assignment. Operands are contiguous.
    ///
    /// NaN counts as larger than everything (all NaN are equal), and zeros of both signs are equal. Equal values stay in the order of their
    /// positions, in both directions, so that every result is unique.
    pub trait SortOps : Sort => SORT_OPS {
        /// Sorts along `axis`, stably: ascending with NaN last, or descending with NaN first. Any dtype. Up to 2^32 elements, else `Unsupported`.
        /// The gradient is [`SortOps::sort_bwd`]; save the index. Errors: `Invalid` for axis, shapes, dtypes, overlap.
        /// Oracle `torch.sort(stable=True)`, `torch.argsort(stable=True)`.
        fn sort(&self, axis: usize, descending: bool, io: SortIo<'_>) -> Result<()>;
        /// The k largest (smallest) along `axis` in descending (ascending) order, with their positions; k is the size of y's and index' axis, at most
        /// that of x. The same as the first k of a sort, without sorting everything. Oracle `torch.topk` (which leaves the order of ties open).
        fn topk(&self, axis: usize, largest: bool, x: View<'_>, y: ViewMut<'_>, index: ViewMut<'_>) -> Result<()>;
        /// Gradient of [`SortOps::sort`] and [`SortOps::topk`]: `dx[index[e]] = dy[e]` along `axis`, 0 where no index points (with k below the axis'
        /// size). Positions along the axis are distinct, as those operations make them; which one of equal positions counts is not defined.
        /// An index outside the axis is `IndexOutOfRange`.
        fn sort_bwd(&self, axis: usize, dy: View<'_>, index: View<'_>, dx: GradMut<'_>) -> Result<()>;
        /// Where each value would be inserted into its sorted row: the first i with sorted\[i\] >= v, with `right` the first i with sorted\[i\] > v; the
        /// number of edges for NaN. `sorted` is ascending along its last axis: a vector for all values, or with the leading axes of `values`.
        /// `index` is i32 or i64 of the values' shape. Any dtype. Oracle `torch.searchsorted`, `torch.bucketize`.
        fn search_sorted(&self, right: bool, sorted: View<'_>, values: View<'_>, index: ViewMut<'_>) -> Result<()>;
        /// Assignment of least cost: for each of B problems [R, C] of `cost` the column of each row (i64 [B, R]), such that no two rows have
        /// one column and the sum of their costs is the smallest; as many rows have one as the smaller side is long, the others -1. With
        /// `counts` (i32 or i64 \[B\]) only the first rows of each problem take part, the others get -1; a count outside [0, R] is
        /// `IndexOutOfRange` and counts as 0. A cost that is not finite forbids the pair, and a row that no path reaches then gets -1. Exact up
        /// to rounding of the arithmetic type; f32, f16, bf16, f64; no gradient. `Invalid` for sides from 2^24 on.
        /// Source shortest augmenting paths (Jonker and Volgenant, 1987); oracle `scipy.optimize.linear_sum_assignment`.
        fn linear_assignment(&self, cost: View<'_>, counts: Option<View<'_>>, column: ViewMut<'_>) -> Result<()>;
    }
}

fn index_output(op: &'static str, v: &View<'_>, size: usize) -> Result<()> {
    check::one_of(op, "index", v, &[DType::I32, DType::I64])?;
    check::contiguous(op, "index", v)?;
    if v.dtype() == DType::I32 && size > i32::MAX as usize {
        let got = format!("i32 for {size} elements");
        return Err(GpuError::invalid(op, "index", "i64 for an axis of this length", got));
    }
    Ok(())
}

fn around(shape: &[usize], axis: usize) -> [usize; 3] {
    [shape[..axis].iter().product(), shape[axis], shape[axis + 1..].iter().product()]
}

/// Checks of [`SortOps::sort`]; [outer, size of the axis, inner].
pub(crate) fn check_sort(axis: usize, io: &SortIo<'_>) -> Result<[usize; 3]> {
    const OP: &str = "sort";
    let x = &io.x;
    check::axis(OP, x, axis)?;
    check::contiguous(OP, "x", x)?;
    let mut others = vec![("x", *x)];
    if let Some(y) = &io.y {
        let v = y.as_view();
        check::shape(OP, "y", &v, x.shape())?;
        check::dtype(OP, "y", &v, x.dtype())?;
        check::contiguous(OP, "y", &v)?;
        check::separate_output(OP, "y", y, &others)?;
        others.push(("y", v));
    }
    if let Some(index) = &io.index {
        check::shape(OP, "index", &index.as_view(), x.shape())?;
        index_output(OP, &index.as_view(), x.shape()[axis])?;
        check::separate_output(OP, "index", index, &others)?;
    }
    Ok(around(x.shape(), axis))
}

/// Two tensors of one shape, which differs from `whole` at most by a smaller size of `axis`; that size.
fn check_part(
    op: &'static str,
    axis: usize,
    whole: (&'static str, &View<'_>),
    a: (&'static str, &View<'_>),
    b: (&'static str, &View<'_>),
) -> Result<usize> {
    check::axis(op, whole.1, axis)?;
    let (s, got) = (whole.1.shape(), a.1.shape());
    let k = got.get(axis).copied().unwrap_or(0);
    let mut want = s.to_vec();
    want[axis] = k;
    if got != want || k > s[axis] {
        let expected = format!("shape {s:?} with at most {} along axis {axis}", s[axis]);
        return Err(GpuError::invalid(op, a.0, expected, format!("{got:?}")));
    }
    check::shape(op, b.0, b.1, got)?;
    for (arg, v) in [whole, a, b] {
        check::contiguous(op, arg, v)?;
    }
    Ok(k)
}

/// Checks of [`SortOps::topk`]; [outer, size of the axis, inner] and k.
pub(crate) fn check_topk(
    axis: usize,
    x: &View<'_>,
    y: &ViewMut<'_>,
    index: &ViewMut<'_>,
) -> Result<([usize; 3], usize)> {
    const OP: &str = "topk";
    let (v, i) = (y.as_view(), index.as_view());
    let k = check_part(OP, axis, ("x", x), ("y", &v), ("index", &i))?;
    check::dtype(OP, "y", &v, x.dtype())?;
    index_output(OP, &i, x.shape()[axis])?;
    check::separate_output(OP, "y", y, &[("x", *x)])?;
    check::separate_output(OP, "index", index, &[("x", *x), ("y", v)])?;
    Ok((around(x.shape(), axis), k))
}

/// Checks of [`SortOps::sort_bwd`]; [outer, size of the axis, inner] and k.
pub(crate) fn check_sort_bwd(
    axis: usize,
    dy: &View<'_>,
    index: &View<'_>,
    dx: &GradMut<'_>,
) -> Result<([usize; 3], usize)> {
    const OP: &str = "sort_bwd";
    let v = dx.out.as_view();
    let k = check_part(OP, axis, ("dx", &v), ("dy", dy), ("index", index))?;
    check::float(OP, "dx", &v)?;
    check::dtype(OP, "dy", dy, v.dtype())?;
    check::one_of(OP, "index", index, &[DType::I32, DType::I64])?;
    check_mode(OP, "dx", dx)?;
    check::separate_output(OP, "dx", &dx.out, &[("dy", *dy), ("index", *index)])?;
    Ok((around(v.shape(), axis), k))
}

/// Checks of [`SortOps::search_sorted`]; number of edges, and values per row of edges (`None`: all share one).
pub(crate) fn check_search_sorted(
    sorted: &View<'_>,
    values: &View<'_>,
    index: &ViewMut<'_>,
) -> Result<(usize, Option<usize>)> {
    const OP: &str = "search_sorted";
    let v = index.as_view();
    check::dtype(OP, "values", values, sorted.dtype())?;
    check::shape(OP, "index", &v, values.shape())?;
    check::contiguous(OP, "sorted", sorted)?;
    check::contiguous(OP, "values", values)?;
    let Some((&edges, lead)) = sorted.shape().split_last() else {
        return Err(GpuError::invalid(OP, "sorted", "at least one axis", "none"));
    };
    index_output(OP, &v, edges)?;
    check::separate_output(OP, "index", index, &[("sorted", *sorted), ("values", *values)])?;
    if lead.is_empty() {
        return Ok((edges, None));
    }
    match values.shape().split_last() {
        Some((&per, rows)) if rows == lead => Ok((edges, Some(per))),
        _ => {
            let want = format!("leading axes {lead:?}, as `sorted` has, or a vector of edges");
            Err(GpuError::invalid(OP, "values", want, format!("shape {:?}", values.shape())))
        }
    }
}

/// Checks of [`SortOps::linear_assignment`]; problems, rows, columns.
pub(crate) fn check_linear_assignment(
    cost: &View<'_>,
    counts: Option<&View<'_>>,
    column: &ViewMut<'_>,
) -> Result<[usize; 3]> {
    const OP: &str = "linear_assignment";
    check::float(OP, "cost", cost)?;
    let &[problems, rows, columns] = cost.shape() else {
        return Err(GpuError::invalid(OP, "cost", "shape [B, R, C]", format!("{:?}", cost.shape())));
    };
    // Kernels compare numbers of columns as floats.
    if rows.max(columns) >= 1 << 24 {
        let got = format!("{:?}", cost.shape());
        return Err(GpuError::invalid(OP, "cost", "less than 2^24 rows and columns", got));
    }
    check::contiguous(OP, "cost", cost)?;
    let mut inputs = vec![("cost", *cost)];
    if let Some(c) = counts {
        check::one_of(OP, "counts", c, &[DType::I32, DType::I64])?;
        check::shape(OP, "counts", c, &[problems])?;
        check::contiguous(OP, "counts", c)?;
        inputs.push(("counts", *c));
    }
    check::exact_output(OP, "column", column, &[problems, rows], DType::I64, &mut inputs)?;
    Ok([problems, rows, columns])
}
