//! Gather and scatter along an axis. Indices are i32 or i64; out-of-range ones follow the common rule of [`ops`](crate::ops).

use crate::ops::check;
use crate::ops::shape::check_mode;
use crate::buffer::{GradMut, View, ViewMut};
use crate::dtype::DType;
use crate::error::{GpuError, Result};
use crate::layout::Dims;

/// How [`IndexOps::scatter_reduce`] combines values that meet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ScatterReduce {
    /// sum
    Sum,
    /// product
    Prod,
    /// mean
    Mean,
    /// maximum, NaN wins
    Amax,
    /// minimum, NaN wins
    Amin,
}

io_struct! {
    /// Operands of [`IndexOps::scatter_reduce_bwd`].
    #[derive(Debug)]
    pub struct ScatterReduceBwd<'a> {
        /// Upstream gradient, x's shape.
        pub dy: View<'a>,
        /// Forward's base.
        pub x: View<'a>,
        /// Forward's indices.
        pub index: View<'a>,
        /// Forward's source, shape of `index`.
        pub src: View<'a>,
        /// Forward's result.
        pub y: View<'a>,
        /// Gradient of the base.
        pub dx: Option<GradMut<'a>>,
        /// Gradient of the source.
        pub dsrc: Option<GradMut<'a>>,
    }
}

op_family! {
    /// Gather and scatter. Indices, masks and what is written are contiguous; other inputs may have any strides (devices pack them first).
    /// Scatters are deterministic: contributions to one destination are combined in the order of
    /// their source positions. Gradients of the pure gathers are the scatters on zeros, and the other way round.
    pub trait IndexOps : Index => INDEX_OPS {
        /// `y[.., i, ..] = x[.., index[i], ..]` along `axis`; `index` is a vector. Oracle `torch.index_select`; with axis 0 also `gather_kernel`.
        fn index_select(&self, axis: usize, x: View<'_>, index: View<'_>, y: GradMut<'_>) -> Result<()>;
        /// `y[.., index[i], ..] += alpha * src[.., i, ..]`; y is read and written. Oracle `x.index_add`; with axis 0 also `scatter_add_kernel`.
        fn index_add(&self, axis: usize, alpha: f64, index: View<'_>, src: View<'_>, y: ViewMut<'_>) -> Result<()>;
        /// `y[.., index[i], ..] = src[.., i, ..]`; the last of equal indices wins. Oracle `x.index_copy`.
        fn index_copy(&self, axis: usize, index: View<'_>, src: View<'_>, y: ViewMut<'_>) -> Result<()>;
        /// `y[.., index[i], ..] = value`. Oracle `x.index_fill`.
        fn index_fill(&self, axis: usize, value: f64, index: View<'_>, y: ViewMut<'_>) -> Result<()>;
        /// `y[p] = x[p with p[axis] replaced by index[p]]`; y has index's shape, whose other sizes do not exceed x's. Oracle `torch.gather`.
        fn gather(&self, axis: usize, x: View<'_>, index: View<'_>, y: GradMut<'_>) -> Result<()>;
        /// `y[p with p[axis] replaced by index[p]] = src[p]`; the last position in row-major order wins. Oracle `x.scatter`.
        fn scatter(&self, axis: usize, index: View<'_>, src: View<'_>, y: ViewMut<'_>) -> Result<()>;
        /// Gradients of [`IndexOps::scatter`]: dx is dy with the written cells 0; dsrc is dy gathered (0 for a source that was overwritten by a later one).
        fn scatter_bwd(&self, axis: usize, dy: View<'_>, index: View<'_>, dx: Option<GradMut<'_>>, dsrc: Option<GradMut<'_>>) -> Result<()>;
        /// y[..] combined with src by `how`; with `include_self` the previous y takes part. Oracle `x.scatter_reduce`.
        fn scatter_reduce(&self, how: ScatterReduce, axis: usize, include_self: bool, index: View<'_>, src: View<'_>, y: ViewMut<'_>) -> Result<()>;
        /// Gradients of [`IndexOps::scatter_reduce`], as PyTorch: amax and amin share between equal values, prod by exclusive products.
        fn scatter_reduce_bwd(&self, how: ScatterReduce, axis: usize, include_self: bool, io: ScatterReduceBwd<'_>) -> Result<()>;
        /// y[index0, index1, ..] = v (or += with `accumulate`): the index tensors address y's leading axes and broadcast together; v has the
        /// broadcast shape followed by y's remaining axes. Oracle `x.index_put`.
        fn index_put(&self, accumulate: bool, index: &[View<'_>], v: View<'_>, y: ViewMut<'_>) -> Result<()>;
        /// Consumes `src` in order for the true cells of `mask` (u8, y's shape). A source that is too short is `IndexOutOfRange`. Oracle `x.masked_scatter`.
        fn masked_scatter(&self, mask: View<'_>, src: View<'_>, y: ViewMut<'_>) -> Result<()>;
        /// The elements of x whose mask is true, in row-major order, into the front of the vector y (entries beyond the count are untouched);
        /// `count` is one i64. More elements than y holds is `IndexOutOfRange`. Oracle `torch.masked_select`.
        fn masked_select(&self, mask: View<'_>, x: View<'_>, y: ViewMut<'_>, count: ViewMut<'_>) -> Result<()>;
        /// dx = the next dy for each true cell, 0 elsewhere.
        fn masked_select_bwd(&self, mask: View<'_>, dy: View<'_>, dx: GradMut<'_>) -> Result<()>;
        /// Index tuples of the elements that are not 0, row-major, into the front rows of `index` [capacity, rank] (i64); `count` is one i64.
        /// Oracle `torch.nonzero`.
        fn nonzero(&self, x: View<'_>, index: ViewMut<'_>, count: ViewMut<'_>) -> Result<()>;
        /// y[.., c] = (ids[..] == c); y is f32, f16, bf16 or u8. An id out of range gives a row of zeros. Oracle `F.one_hot`.
        fn one_hot(&self, ids: View<'_>, y: ViewMut<'_>) -> Result<()>;
    }
}

fn same_dtype(op: &'static str, arg: &'static str, v: &View<'_>, want: &View<'_>) -> Result<()> {
    check::dtype(op, arg, v, want.dtype())
}

fn index_dtype(op: &'static str, arg: &'static str, v: &View<'_>) -> Result<()> {
    check::one_of(op, arg, v, &[DType::I32, DType::I64])
}

fn all_contiguous(op: &'static str, views: &[(&'static str, View<'_>)]) -> Result<()> {
    views.iter().try_for_each(|(arg, v)| check::contiguous(op, arg, v))
}

fn vector(op: &'static str, arg: &'static str, v: &View<'_>) -> Result<()> {
    if v.shape().len() == 1 {
        return Ok(());
    }
    Err(GpuError::invalid(op, arg, "a vector", format!("shape {:?}", v.shape())))
}

/// Types that [`IndexOps::index_add`] and [`IndexOps::scatter_reduce`] reduce.
fn reduced(op: &'static str, arg: &'static str, v: &View<'_>) -> Result<()> {
    check::one_of(op, arg, v, &[DType::F32, DType::F16, DType::Bf16, DType::F64, DType::I32, DType::I64])
}

/// An index vector along an axis of `table`, and `rows` with one slice per index. What is written must be contiguous: the table, or the rows
/// where `out` is them.
fn check_rows(
    op: &'static str,
    axis: usize,
    table: (&'static str, &View<'_>),
    index: &View<'_>,
    rows: (&'static str, &View<'_>),
    out: &'static str,
) -> Result<()> {
    check::axis(op, table.1, axis)?;
    index_dtype(op, "index", index)?;
    vector(op, "index", index)?;
    let mut want = table.1.shape().to_vec();
    want[axis] = index.numel();
    check::shape(op, rows.0, rows.1, &want)?;
    same_dtype(op, rows.0, rows.1, table.1)?;
    let mut written = vec![("index", *index)];
    written.extend([(table.0, *table.1), (rows.0, *rows.1)].into_iter().filter(|w| w.0 == out));
    all_contiguous(op, &written)
}

/// Checks of [`IndexOps::index_select`].
pub(crate) fn check_index_select(axis: usize, x: &View<'_>, index: &View<'_>, y: &GradMut<'_>) -> Result<()> {
    const OP: &str = "index_select";
    check_rows(OP, axis, ("x", x), index, ("y", &y.out.as_view()), "y")?;
    check_mode(OP, "y", y)?;
    check::separate_output(OP, "y", &y.out, &[("x", *x), ("index", *index)])
}

/// Checks of [`IndexOps::index_add`].
pub(crate) fn check_index_add(
    axis: usize,
    alpha: f64,
    index: &View<'_>,
    src: &View<'_>,
    y: &ViewMut<'_>,
) -> Result<()> {
    const OP: &str = "index_add";
    let v = y.as_view();
    reduced(OP, "y", &v)?;
    if !v.dtype().is_float() && alpha.fract() != 0.0 {
        return Err(GpuError::invalid(OP, "alpha", "a whole number for integers", format!("{alpha}")));
    }
    check_rows(OP, axis, ("y", &v), index, ("src", src), "y")?;
    check::separate_output(OP, "y", y, &[("index", *index), ("src", *src)])
}

/// Checks of [`IndexOps::index_copy`].
pub(crate) fn check_index_copy(axis: usize, index: &View<'_>, src: &View<'_>, y: &ViewMut<'_>) -> Result<()> {
    const OP: &str = "index_copy";
    check_rows(OP, axis, ("y", &y.as_view()), index, ("src", src), "y")?;
    check::separate_output(OP, "y", y, &[("index", *index), ("src", *src)])
}

/// Checks of [`IndexOps::index_fill`].
pub(crate) fn check_index_fill(axis: usize, index: &View<'_>, y: &ViewMut<'_>) -> Result<()> {
    const OP: &str = "index_fill";
    let v = y.as_view();
    check::axis(OP, &v, axis)?;
    index_dtype(OP, "index", index)?;
    vector(OP, "index", index)?;
    all_contiguous(OP, &[("y", v), ("index", *index)])?;
    check::separate_output(OP, "y", y, &[("index", *index)])
}

/// An index of `table`'s rank whose other sizes do not exceed the table's, and `cells` of the index's shape; `out` as in [`check_rows`].
fn check_cells(
    op: &'static str,
    axis: usize,
    table: (&'static str, &View<'_>),
    index: &View<'_>,
    cells: (&'static str, &View<'_>),
    out: &'static str,
) -> Result<()> {
    check::axis(op, table.1, axis)?;
    index_dtype(op, "index", index)?;
    let (s, i) = (table.1.shape(), index.shape());
    if s.len() != i.len() || (0..s.len()).any(|a| a != axis && i[a] > s[a]) {
        let want = format!("rank {} and sizes of at most {s:?} outside axis {axis}", s.len());
        return Err(GpuError::invalid(op, "index", want, format!("{i:?}")));
    }
    check::shape(op, cells.0, cells.1, i)?;
    same_dtype(op, cells.0, cells.1, table.1)?;
    let mut written = vec![("index", *index)];
    written.extend([(table.0, *table.1), (cells.0, *cells.1)].into_iter().filter(|w| w.0 == out));
    all_contiguous(op, &written)
}

/// Checks of [`IndexOps::gather`].
pub(crate) fn check_gather(axis: usize, x: &View<'_>, index: &View<'_>, y: &GradMut<'_>) -> Result<()> {
    const OP: &str = "gather";
    check_cells(OP, axis, ("x", x), index, ("y", &y.out.as_view()), "y")?;
    check_mode(OP, "y", y)?;
    check::separate_output(OP, "y", &y.out, &[("x", *x), ("index", *index)])
}

/// Checks of [`IndexOps::scatter`].
pub(crate) fn check_scatter(axis: usize, index: &View<'_>, src: &View<'_>, y: &ViewMut<'_>) -> Result<()> {
    const OP: &str = "scatter";
    check_cells(OP, axis, ("y", &y.as_view()), index, ("src", src), "y")?;
    check::separate_output(OP, "y", y, &[("index", *index), ("src", *src)])
}

/// A gradient output of a scatter: shape, dtype, and memory of its own.
fn check_grad(
    op: &'static str,
    arg: &'static str,
    g: &GradMut<'_>,
    like: &View<'_>,
    shape: &[usize],
    inputs: &[(&'static str, View<'_>)],
) -> Result<()> {
    let v = g.out.as_view();
    check::shape(op, arg, &v, shape)?;
    same_dtype(op, arg, &v, like)?;
    check::contiguous(op, arg, &v)?;
    check_mode(op, arg, g)?;
    check::separate_output(op, arg, &g.out, inputs)
}

/// Checks of [`IndexOps::scatter_bwd`].
pub(crate) fn check_scatter_bwd(
    axis: usize,
    dy: &View<'_>,
    index: &View<'_>,
    dx: Option<&GradMut<'_>>,
    dsrc: Option<&GradMut<'_>>,
) -> Result<()> {
    const OP: &str = "scatter_bwd";
    check::axis(OP, dy, axis)?;
    let (s, i) = (dy.shape(), index.shape());
    index_dtype(OP, "index", index)?;
    if s.len() != i.len() || (0..s.len()).any(|a| a != axis && i[a] > s[a]) {
        let want = format!("rank {} and sizes of at most {s:?} outside axis {axis}", s.len());
        return Err(GpuError::invalid(OP, "index", want, format!("{i:?}")));
    }
    check::contiguous(OP, "index", index)?;
    let inputs = [("dy", *dy), ("index", *index)];
    if let Some(g) = dx {
        check_grad(OP, "dx", g, dy, s, &inputs)?;
    }
    if let Some(g) = dsrc {
        check_grad(OP, "dsrc", g, dy, i, &inputs)?;
    }
    apart(OP, dx, dsrc)
}

/// Two gradients do not share memory.
fn apart(op: &'static str, a: Option<&GradMut<'_>>, b: Option<&GradMut<'_>>) -> Result<()> {
    match (a, b) {
        (Some(a), Some(b)) => check::separate_output(op, "dsrc", &b.out, &[("dx", a.out.as_view())]),
        _ => Ok(()),
    }
}

/// Checks of [`IndexOps::scatter_reduce`].
pub(crate) fn check_scatter_reduce(
    axis: usize,
    index: &View<'_>,
    src: &View<'_>,
    y: &ViewMut<'_>,
) -> Result<()> {
    const OP: &str = "scatter_reduce";
    reduced(OP, "y", &y.as_view())?;
    check_cells(OP, axis, ("y", &y.as_view()), index, ("src", src), "y")?;
    check::separate_output(OP, "y", y, &[("index", *index), ("src", *src)])
}

/// Checks of [`IndexOps::scatter_reduce_bwd`].
pub(crate) fn check_scatter_reduce_bwd(axis: usize, io: &ScatterReduceBwd<'_>) -> Result<()> {
    const OP: &str = "scatter_reduce_bwd";
    check::float(OP, "x", &io.x)?;
    check_cells(OP, axis, ("x", &io.x), &io.index, ("src", &io.src), "")?;
    for (arg, v) in [("dy", &io.dy), ("y", &io.y)] {
        check::shape(OP, arg, v, io.x.shape())?;
        same_dtype(OP, arg, v, &io.x)?;
    }
    let inputs = [("dy", io.dy), ("x", io.x), ("index", io.index), ("src", io.src), ("y", io.y)];
    if let Some(g) = &io.dx {
        check_grad(OP, "dx", g, &io.x, io.x.shape(), &inputs)?;
    }
    if let Some(g) = &io.dsrc {
        check_grad(OP, "dsrc", g, &io.x, io.src.shape(), &inputs)?;
    }
    apart(OP, io.dx.as_ref(), io.dsrc.as_ref())
}

/// Checks of [`IndexOps::index_put`]; returns the shape that the index tensors broadcast to.
pub(crate) fn check_index_put(
    accumulate: bool,
    index: &[View<'_>],
    v: &View<'_>,
    y: &ViewMut<'_>,
) -> Result<Dims> {
    const OP: &str = "index_put";
    let out = y.as_view();
    let k = index.len();
    if k == 0 || k > out.shape().len() {
        let want = format!("1 to {} index tensors", out.shape().len());
        return Err(GpuError::invalid(OP, "index", want, format!("{k}")));
    }
    if accumulate {
        reduced(OP, "y", &out)?;
    }
    let mut inputs = vec![("v", *v)];
    let mut common: Option<Dims> = Dims::new(index[0].shape());
    for i in index {
        index_dtype(OP, "index", i)?;
        check::contiguous(OP, "index", i)?;
        let so_far = common.as_deref().unwrap_or_default();
        common = Some(check::broadcast(OP, "index", so_far, i.shape())?);
        inputs.push(("index", *i));
    }
    let common = common.ok_or_else(|| GpuError::invalid(OP, "index", "a rank of at most 8", "more"))?;
    let want: Vec<usize> = common.iter().chain(&out.shape()[k..]).copied().collect();
    check::shape(OP, "v", v, &want)?;
    same_dtype(OP, "v", v, &out)?;
    check::contiguous(OP, "y", &out)?;
    check::separate_output(OP, "y", y, &inputs)?;
    Ok(common)
}

fn check_mask(op: &'static str, mask: &View<'_>, shape: &[usize]) -> Result<()> {
    check::dtype(op, "mask", mask, DType::U8)?;
    check::shape(op, "mask", mask, shape)?;
    check::contiguous(op, "mask", mask)
}

fn check_count(op: &'static str, count: &ViewMut<'_>) -> Result<()> {
    check::dtype(op, "count", &count.as_view(), DType::I64)?;
    if count.numel() == 1 {
        return Ok(());
    }
    Err(GpuError::invalid(op, "count", "one element", format!("{}", count.numel())))
}

/// Checks of [`IndexOps::masked_scatter`].
pub(crate) fn check_masked_scatter(mask: &View<'_>, src: &View<'_>, y: &ViewMut<'_>) -> Result<()> {
    const OP: &str = "masked_scatter";
    let v = y.as_view();
    check_mask(OP, mask, v.shape())?;
    same_dtype(OP, "src", src, &v)?;
    check::contiguous(OP, "y", &v)?;
    check::separate_output(OP, "y", y, &[("mask", *mask), ("src", *src)])
}

/// Checks of [`IndexOps::masked_select`].
pub(crate) fn check_masked_select(
    mask: &View<'_>,
    x: &View<'_>,
    y: &ViewMut<'_>,
    count: &ViewMut<'_>,
) -> Result<()> {
    const OP: &str = "masked_select";
    let v = y.as_view();
    check_mask(OP, mask, x.shape())?;
    same_dtype(OP, "y", &v, x)?;
    vector(OP, "y", &v)?;
    check_count(OP, count)?;
    check::contiguous(OP, "y", &v)?;
    check::separate_output(OP, "y", y, &[("mask", *mask), ("x", *x)])?;
    check::separate_output(OP, "count", count, &[("mask", *mask), ("x", *x), ("y", v)])
}

/// Checks of [`IndexOps::masked_select_bwd`].
pub(crate) fn check_masked_select_bwd(mask: &View<'_>, dy: &View<'_>, dx: &GradMut<'_>) -> Result<()> {
    const OP: &str = "masked_select_bwd";
    check::float(OP, "dy", dy)?;
    vector(OP, "dy", dy)?;
    check_mask(OP, mask, dx.out.shape())?;
    check_grad(OP, "dx", dx, dy, mask.shape(), &[("mask", *mask), ("dy", *dy)])
}

/// Checks of [`IndexOps::nonzero`].
pub(crate) fn check_nonzero(x: &View<'_>, index: &ViewMut<'_>, count: &ViewMut<'_>) -> Result<()> {
    const OP: &str = "nonzero";
    let v = index.as_view();
    check::dtype(OP, "index", &v, DType::I64)?;
    if v.shape().len() != 2 || v.shape()[1] != x.shape().len() {
        let want = format!("shape [capacity, {}]", x.shape().len());
        return Err(GpuError::invalid(OP, "index", want, format!("{:?}", v.shape())));
    }
    check_count(OP, count)?;
    check::contiguous(OP, "index", &v)?;
    check::separate_output(OP, "index", index, &[("x", *x)])?;
    check::separate_output(OP, "count", count, &[("x", *x), ("index", v)])
}

/// Checks of [`IndexOps::one_hot`].
pub(crate) fn check_one_hot(ids: &View<'_>, y: &ViewMut<'_>) -> Result<()> {
    const OP: &str = "one_hot";
    let v = y.as_view();
    index_dtype(OP, "ids", ids)?;
    check::one_of(OP, "y", &v, &[DType::F32, DType::F16, DType::Bf16, DType::F64, DType::U8])?;
    let rows = v.shape().split_last().map(|(_, r)| r).unwrap_or_default();
    if v.shape().is_empty() || rows != ids.shape() {
        let want = format!("shape {:?} and the classes", ids.shape());
        return Err(GpuError::invalid(OP, "y", want, format!("{:?}", v.shape())));
    }
    all_contiguous(OP, &[("ids", *ids), ("y", v)])?;
    check::separate_output(OP, "y", y, &[("ids", *ids)])
}
