//! Reductions along axes.

use crate::buffer::{GradMut, View, ViewMut};
use crate::error::Result;

/// Reductions of a set of axes. Names and edge cases are those of `torch`.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum Reduce {
    /// sum; i32, i64 and u8 inputs give i64; empty gives 0
    Sum,
    /// mean; empty gives NaN
    Mean,
    /// product; empty gives 1
    Prod,
    /// maximum, NaN wins; an empty axis is `Invalid`; integers allowed
    Max,
    /// minimum, NaN wins; an empty axis is `Invalid`; integers allowed
    Min,
    /// largest magnitude, NaN wins
    MaxAbs,
    /// smallest magnitude, NaN wins
    MinAbs,
    /// u8: any element is not 0
    Any,
    /// u8: all elements are not 0
    All,
    /// variance with `correction` subtracted from the count, two passes; NaN when the count is not above the correction
    Var {
        /// 1 for the sample variance, 0 for the biased one
        correction: f64,
    },
    /// square root of the variance
    Std {
        /// as for `Var`
        correction: f64,
    },
    /// p-norm, p in {0, 1, 2, inf, any}; p = 2 does not overflow
    Norm {
        /// degree
        p: f64,
    },
    /// ln sum e^x; a slice of only -inf gives -inf with zero gradient
    LogSumExp,
    /// sum of squares
    SumSq,
    /// ln(variance + eps)
    LogVar {
        /// as for `Var`
        correction: f64,
        /// added to the variance
        eps: f64,
    },
}

/// Position of an extreme.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ArgReduce {
    /// first maximum, first NaN wins
    Max,
    /// first minimum, first NaN wins
    Min,
}

op_family! {
    /// Reductions. Inputs of any strides; the output's shape is the input's with the reduced axes removed or kept as 1 (both are accepted).
    /// Sums run in a fixed tree, so results repeat bit by bit. `axes` are distinct; an empty list reduces nothing but applies the
    /// elementwise part. Errors: axis out of range or repeated, output shape or dtype.
    pub trait ReduceOps : Reduce => REDUCE_OPS {
        /// y = op over `axes` of x. dtype of y: x's; `Sum` of integers gives i64; `Any` and `All` take and give u8.
        fn reduce(&self, op: Reduce, axes: &[usize], x: View<'_>, y: ViewMut<'_>) -> Result<()>;
        /// dx from dy (shape of the forward's output, axes kept as 1 or removed), x and, where given, the saved output y. `Max`, `Min`, `MaxAbs`, `MinAbs` and `Norm{inf}`
        /// share dy equally among all positions equal to the extreme. `Sum` and `Mean` do not read x; pass `None`.
        fn reduce_bwd(&self, op: Reduce, axes: &[usize], dy: View<'_>, x: Option<View<'_>>, y: Option<View<'_>>, dx: GradMut<'_>) -> Result<()>;
        /// Position (i32 or i64, by `index`'s dtype) of the extreme along `axis`, and optionally its value. Oracle `x.argmax(axis)`, `x.max(axis)`.
        /// An empty axis is `Invalid`.
        fn arg_reduce(&self, op: ArgReduce, axis: usize, x: View<'_>, index: ViewMut<'_>, value: Option<ViewMut<'_>>) -> Result<()>;
        /// dx = dy at the saved positions, 0 elsewhere; `index` and `dy` have the reduced shape (removed or kept as 1).
        fn arg_reduce_bwd(&self, axis: usize, dy: View<'_>, index: View<'_>, dx: GradMut<'_>) -> Result<()>;
        /// Mean and variance in one call. Oracle `torch.var_mean(correction=..)`.
        fn mean_var(&self, axes: &[usize], correction: f64, x: View<'_>, mean: ViewMut<'_>, var: ViewMut<'_>) -> Result<()>;
        /// Minimum and maximum in one call. Oracle `torch.aminmax`.
        fn min_max(&self, axes: &[usize], x: View<'_>, lo: ViewMut<'_>, hi: ViewMut<'_>) -> Result<()>;
        /// y[..] = sum over the last axis of a*b. a and b have one shape. Oracle `torch.linalg.vecdot`, `torch.dot`.
        fn dot(&self, a: View<'_>, b: View<'_>, y: ViewMut<'_>) -> Result<()>;
        /// da = dy*b, db = dy*a, dy broadcast over the last axis.
        fn dot_bwd(&self, dy: View<'_>, a: View<'_>, b: View<'_>, da: Option<GradMut<'_>>, db: Option<GradMut<'_>>) -> Result<()>;
        /// Sums the axes of x along which y is broadcast (missing or of size 1). Oracle `x.sum_to_size`.
        fn sum_to_shape(&self, x: View<'_>, y: GradMut<'_>) -> Result<()>;
    }
}
