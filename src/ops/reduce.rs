//! Reductions along axes.

use crate::ops::check;
use crate::buffer::{GradMut, View, ViewMut};
use crate::dtype::DType;
use crate::error::{GpuError, Result};
use crate::layout::{Dims, Layout, MAX_RANK};

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

impl Reduce {
    /// Whether [`ReduceOps::reduce_bwd`] takes it.
    pub const fn is_differentiable(self) -> bool {
        !matches!(self, Reduce::Any | Reduce::All)
    }

    /// Whether a slice without elements has a value.
    fn takes_empty(self) -> bool {
        match self {
            Reduce::Max | Reduce::Min | Reduce::MaxAbs | Reduce::MinAbs => false,
            Reduce::Norm { p } => p >= 0.0 && p.is_finite(),
            _ => true,
        }
    }

    fn check_params(self, op: &'static str) -> Result<()> {
        let bad = |what: &str, x: f64| Err(GpuError::invalid(op, "op", what, format!("{x}")));
        match self {
            Reduce::Norm { p } if p.is_nan() => bad("a degree p that is a number", p),
            Reduce::Var { correction: c }
            | Reduce::Std { correction: c }
            | Reduce::LogVar { correction: c, .. }
                if !c.is_finite() =>
            {
                bad("a finite correction", c)
            }
            Reduce::LogVar { eps, .. } if eps.is_nan() || eps < 0.0 => bad("an eps of at least 0", eps),
            _ => Ok(()),
        }
    }
}

/// Which axes of a shape are reduced, and the shapes that results may have.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Axes {
    /// Reduced axes.
    pub(crate) reduced: [bool; MAX_RANK],
    /// The shape with the reduced axes as 1.
    pub(crate) keepdim: Dims,
    /// The shape without the reduced axes.
    pub(crate) removed: Dims,
    /// Elements per result.
    pub(crate) count: usize,
}

/// Strides of `v` aligned right to `rank` axes; 0 where it has none or repeats.
pub(crate) fn right_aligned(v: &View<'_>, rank: usize) -> Vec<usize> {
    let (shape, strides) = (v.shape(), v.layout().strides());
    let lead = rank.saturating_sub(shape.len());
    (0..rank).map(|a| if a < lead || shape[a - lead] == 1 { 0 } else { strides[a - lead] }).collect()
}

impl Axes {
    pub(crate) fn new(op: &'static str, shape: &[usize], axes: &[usize]) -> Result<Self> {
        let mut reduced = [false; MAX_RANK];
        for &a in axes {
            if a >= shape.len() || std::mem::replace(&mut reduced[a], true) {
                let expected = format!("distinct axes below {}", shape.len());
                return Err(GpuError::invalid(op, "axes", expected, format!("{axes:?}")));
            }
        }
        Ok(Self::of(shape, reduced))
    }

    fn of(shape: &[usize], reduced: [bool; MAX_RANK]) -> Self {
        let sizes = || shape.iter().copied().zip(reduced);
        let keepdim: Vec<_> = sizes().map(|(n, r)| if r { 1 } else { n }).collect();
        let removed: Vec<_> = sizes().filter(|(_, r)| !r).map(|(n, _)| n).collect();
        let count = sizes().filter(|(_, r)| *r).map(|(n, _)| n).product();
        let dims = |s: &[usize]| Dims::new(s).unwrap_or_else(|| unreachable!("no more axes than the input"));
        Axes { reduced, keepdim: dims(&keepdim), removed: dims(&removed), count }
    }

    /// `v` has one of the shapes that results may have.
    fn check_result(&self, op: &'static str, arg: &'static str, v: &View<'_>) -> Result<()> {
        if v.shape() == &*self.keepdim || v.shape() == &*self.removed {
            return Ok(());
        }
        let expected = format!("shape {:?} or {:?}", self.removed, self.keepdim);
        Err(GpuError::invalid(op, arg, expected, format!("{:?}", v.shape())))
    }

    /// Strides of a result (of either shape) per axis of the input; 0 on reduced axes.
    pub(crate) fn strides(&self, v: &View<'_>) -> Vec<usize> {
        let rank = self.keepdim.len();
        let mut of = v.layout().strides().iter().copied();
        let kept = v.shape().len() == rank;
        (0..rank)
            .map(|a| match self.reduced[a] {
                true if kept => of.next().map_or(0, |_| 0),
                true => 0,
                false => of.next().unwrap_or(0),
            })
            .collect()
    }
}

fn sum_dtype(d: DType) -> DType {
    if d.is_float() { d } else { DType::I64 }
}

/// Checks of [`ReduceOps::reduce`].
pub(crate) fn check_reduce(op: Reduce, axes: &[usize], x: &View<'_>, y: &ViewMut<'_>) -> Result<Axes> {
    const OP: &str = "reduce";
    op.check_params(OP)?;
    let a = Axes::new(OP, x.shape(), axes)?;
    let v = y.as_view();
    match op {
        Reduce::Any | Reduce::All => check::dtype(OP, "x", x, DType::U8)?,
        Reduce::Sum | Reduce::Max | Reduce::Min => {}
        _ => check::float(OP, "x", x)?,
    }
    check::dtype(OP, "y", &v, if op == Reduce::Sum { sum_dtype(x.dtype()) } else { x.dtype() })?;
    a.check_result(OP, "y", &v)?;
    if a.count == 0 && v.numel() > 0 && !op.takes_empty() {
        return Err(GpuError::invalid(
            OP,
            "axes",
            "axes with at least one element",
            format!("shape {:?}", x.shape()),
        ));
    }
    check::separate_output(OP, "y", y, &[("x", *x)])?;
    Ok(a)
}

/// Checks of [`ReduceOps::sum_to_shape`]; the axes of x that are summed.
pub(crate) fn check_sum_to_shape(x: &View<'_>, y: &GradMut<'_>) -> Result<Axes> {
    const OP: &str = "sum_to_shape";
    let v = y.out.as_view();
    check::float(OP, "x", x)?;
    check::dtype(OP, "y", &v, x.dtype())?;
    let mut reduced = [false; MAX_RANK];
    let wrong = || {
        GpuError::invalid(
            OP,
            "y",
            format!("a shape that broadcasts to {:?}", x.shape()),
            format!("{:?}", v.shape()),
        )
    };
    let lead = x.shape().len().checked_sub(v.shape().len()).ok_or_else(wrong)?;
    for (a, &n) in x.shape().iter().enumerate() {
        let to = a.checked_sub(lead).map(|a| v.shape()[a]);
        reduced[a] = match to {
            None => true,
            Some(m) if m == n => false,
            Some(1) => true,
            Some(_) => return Err(wrong()),
        };
    }
    check::separate_output(OP, "y", &y.out, &[("x", *x)])?;
    Ok(Axes::of(x.shape(), reduced))
}

/// A result's gradient as an operand over the input's shape, with stride 0 along the reduced axes.
pub(crate) fn spread(v: &View<'_>, axes: &Axes, shape: &[usize]) -> Result<Layout> {
    check::layout("reduce_bwd", "dy", Layout::strided(shape, &axes.strides(v), v.layout().offset()))
}

/// Checks of [`ReduceOps::reduce_bwd`].
pub(crate) fn check_reduce_bwd(
    op: Reduce,
    axes: &[usize],
    dy: &View<'_>,
    x: Option<&View<'_>>,
    y: Option<&View<'_>>,
    dx: &GradMut<'_>,
) -> Result<Axes> {
    const OP: &str = "reduce_bwd";
    op.check_params(OP)?;
    if !op.is_differentiable() {
        return Err(GpuError::invalid(OP, "op", "a function with a gradient", format!("{op:?}")));
    }
    let out = dx.out.as_view();
    let a = Axes::new(OP, out.shape(), axes)?;
    check::float(OP, "dx", &out)?;
    let mut inputs = vec![("dy", *dy)];
    a.check_result(OP, "dy", dy)?;
    match x {
        Some(x) => {
            check::shape(OP, "x", x, out.shape())?;
            inputs.push(("x", *x));
        }
        None if matches!(op, Reduce::Sum | Reduce::Mean) => {}
        None => return Err(GpuError::invalid(OP, "x", "the forward's input", "None")),
    }
    if let Some(y) = y {
        a.check_result(OP, "y", y)?;
        inputs.push(("y", *y));
    }
    for (arg, v) in &inputs {
        check::dtype(OP, arg, v, out.dtype())?;
    }
    check::separate_output(OP, "dx", &dx.out, &inputs)?;
    Ok(a)
}

/// Checks of [`ReduceOps::arg_reduce`].
pub(crate) fn check_arg_reduce(
    axis: usize,
    x: &View<'_>,
    index: &ViewMut<'_>,
    value: Option<&ViewMut<'_>>,
) -> Result<Axes> {
    const OP: &str = "arg_reduce";
    check::axis(OP, x, axis)?;
    let a = Axes::new(OP, x.shape(), &[axis])?;
    let i = index.as_view();
    check::one_of(OP, "index", &i, &[DType::I32, DType::I64])?;
    a.check_result(OP, "index", &i)?;
    check_fits(OP, &i, x.shape()[axis])?;
    check::separate_output(OP, "index", index, &[("x", *x)])?;
    if let Some(value) = value {
        let v = value.as_view();
        check::dtype(OP, "value", &v, x.dtype())?;
        a.check_result(OP, "value", &v)?;
        check::separate_output(OP, "value", value, &[("x", *x), ("index", i)])?;
    }
    if a.count == 0 && i.numel() > 0 {
        return Err(GpuError::invalid(
            OP,
            "axis",
            "an axis with at least one element",
            format!("shape {:?}", x.shape()),
        ));
    }
    Ok(a)
}

/// Positions below `size` fit the index type.
fn check_fits(op: &'static str, index: &View<'_>, size: usize) -> Result<()> {
    if index.dtype() == DType::I32 && size > i32::MAX as usize {
        return Err(GpuError::invalid(
            op,
            "index",
            "i64 for an axis of this length",
            format!("i32 for {size} elements"),
        ));
    }
    Ok(())
}

/// Checks of [`ReduceOps::arg_reduce_bwd`].
pub(crate) fn check_arg_reduce_bwd(
    axis: usize,
    dy: &View<'_>,
    index: &View<'_>,
    dx: &GradMut<'_>,
) -> Result<Axes> {
    const OP: &str = "arg_reduce_bwd";
    let out = dx.out.as_view();
    check::axis(OP, &out, axis)?;
    let a = Axes::new(OP, out.shape(), &[axis])?;
    check::float(OP, "dx", &out)?;
    check::dtype(OP, "dy", dy, out.dtype())?;
    check::one_of(OP, "index", index, &[DType::I32, DType::I64])?;
    a.check_result(OP, "dy", dy)?;
    a.check_result(OP, "index", index)?;
    check::separate_output(OP, "dx", &dx.out, &[("dy", *dy), ("index", *index)])?;
    Ok(a)
}

/// Checks of [`ReduceOps::mean_var`].
pub(crate) fn check_mean_var(
    axes: &[usize],
    correction: f64,
    x: &View<'_>,
    mean: &ViewMut<'_>,
    var: &ViewMut<'_>,
) -> Result<Axes> {
    const OP: &str = "mean_var";
    Reduce::Var { correction }.check_params(OP)?;
    let a = Axes::new(OP, x.shape(), axes)?;
    check::float(OP, "x", x)?;
    check_pair(OP, &a, x, ("mean", mean), ("var", var))?;
    Ok(a)
}

/// Checks of [`ReduceOps::min_max`].
pub(crate) fn check_min_max(
    axes: &[usize],
    x: &View<'_>,
    lo: &ViewMut<'_>,
    hi: &ViewMut<'_>,
) -> Result<Axes> {
    const OP: &str = "min_max";
    let a = Axes::new(OP, x.shape(), axes)?;
    check_pair(OP, &a, x, ("lo", lo), ("hi", hi))?;
    if a.count == 0 && lo.numel() > 0 {
        return Err(GpuError::invalid(
            OP,
            "axes",
            "axes with at least one element",
            format!("shape {:?}", x.shape()),
        ));
    }
    Ok(a)
}

fn check_pair(
    op: &'static str,
    axes: &Axes,
    x: &View<'_>,
    a: (&'static str, &ViewMut<'_>),
    b: (&'static str, &ViewMut<'_>),
) -> Result<()> {
    for (arg, v) in [a, b] {
        check::dtype(op, arg, &v.as_view(), x.dtype())?;
        axes.check_result(op, arg, &v.as_view())?;
    }
    check::separate_output(op, a.0, a.1, &[("x", *x)])?;
    check::separate_output(op, b.0, b.1, &[("x", *x), (a.0, a.1.as_view())])
}

/// Checks of [`ReduceOps::dot`].
pub(crate) fn check_dot(a: &View<'_>, b: &View<'_>, y: &ViewMut<'_>) -> Result<Axes> {
    let axes = check_dot_inputs("dot", a, b, ("y", &y.as_view()))?;
    check::separate_output("dot", "y", y, &[("a", *a), ("b", *b)])?;
    Ok(axes)
}

fn check_dot_inputs(
    op: &'static str,
    a: &View<'_>,
    b: &View<'_>,
    y: (&'static str, &View<'_>),
) -> Result<Axes> {
    check::float(op, "a", a)?;
    check::dtype(op, "b", b, a.dtype())?;
    check::dtype(op, y.0, y.1, a.dtype())?;
    check::shape(op, "b", b, a.shape())?;
    let Some(last) = a.shape().len().checked_sub(1) else {
        return Err(GpuError::invalid(op, "a", "at least one axis", "none"));
    };
    let axes = Axes::new(op, a.shape(), &[last])?;
    axes.check_result(op, y.0, y.1)?;
    Ok(axes)
}

/// Checks of [`ReduceOps::dot_bwd`].
pub(crate) fn check_dot_bwd(
    dy: &View<'_>,
    a: &View<'_>,
    b: &View<'_>,
    da: Option<&GradMut<'_>>,
    db: Option<&GradMut<'_>>,
) -> Result<Axes> {
    const OP: &str = "dot_bwd";
    let axes = check_dot_inputs(OP, a, b, ("dy", dy))?;
    let mut others = vec![("dy", *dy), ("a", *a), ("b", *b)];
    for (arg, g) in [("da", da), ("db", db)] {
        if let Some(g) = g {
            let v = g.out.as_view();
            check::dtype(OP, arg, &v, a.dtype())?;
            check::shape(OP, arg, &v, a.shape())?;
            check::separate_output(OP, arg, &g.out, &others)?;
            others.push((arg, v));
        }
    }
    Ok(axes)
}
