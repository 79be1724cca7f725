//! Gather and scatter along an axis. Indices are i32 or i64; out-of-range ones follow the common rule of [`ops`](crate::ops).

use crate::buffer::{GradMut, View, ViewMut};
use crate::error::Result;

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

op_family! {
    /// Gather and scatter. Contiguous operands. Scatters are deterministic: contributions to one destination are combined in the order of
    /// their source positions. Gradients of the pure gathers are the scatters on zeros, and the other way round.
    pub trait IndexOps : Index => INDEX_OPS {
        /// y[.., i, ..] = x[.., index[i], ..] along `axis`; `index` is a vector. Oracle `torch.index_select`; with axis 0 also `gather_kernel`.
        fn index_select(&self, axis: usize, x: View<'_>, index: View<'_>, y: GradMut<'_>) -> Result<()>;
        /// y[.., index[i], ..] += alpha * src[.., i, ..]; y is read and written. Oracle `x.index_add`; with axis 0 also `scatter_add_kernel`.
        fn index_add(&self, axis: usize, alpha: f64, index: View<'_>, src: View<'_>, y: ViewMut<'_>) -> Result<()>;
        /// y[.., index[i], ..] = src[.., i, ..]; the last of equal indices wins. Oracle `x.index_copy`.
        fn index_copy(&self, axis: usize, index: View<'_>, src: View<'_>, y: ViewMut<'_>) -> Result<()>;
        /// y[.., index[i], ..] = value. Oracle `x.index_fill`.
        fn index_fill(&self, axis: usize, value: f64, index: View<'_>, y: ViewMut<'_>) -> Result<()>;
        /// y[p] = x[p with p[axis] replaced by index[p]]; y has index's shape, whose other sizes do not exceed x's. Oracle `torch.gather`.
        fn gather(&self, axis: usize, x: View<'_>, index: View<'_>, y: GradMut<'_>) -> Result<()>;
        /// y[p with p[axis] replaced by index[p]] = src[p]; the last position in row-major order wins. Oracle `x.scatter`.
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
