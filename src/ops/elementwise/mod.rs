//! Unary, binary and ternary arithmetic with broadcasting.

mod functions;

pub use self::functions::*;

use crate::buffer::{GradMut, View, ViewMut};
use crate::dtype::DType;
use crate::error::{GpuError, Result};
use crate::ops::check;

io_struct! {
    /// Operands of [`ElementwiseOps::binary_bwd`].
    #[derive(Debug)]
    pub struct BinaryBwd<'a> {
        /// Upstream gradient, shape of the result.
        pub dy: View<'a>,
        /// First operand as given to the forward.
        pub a: View<'a>,
        /// Second operand as given to the forward.
        pub b: View<'a>,
        /// Gradient of `a`, shape of `a`.
        pub da: Option<GradMut<'a>>,
        /// Gradient of `b`, shape of `b`.
        pub db: Option<GradMut<'a>>,
    }
}

io_struct! {
    /// Operands of [`ElementwiseOps::ternary_bwd`].
    #[derive(Debug)]
    pub struct TernaryBwd<'a> {
        /// Upstream gradient, shape of the result.
        pub dy: View<'a>,
        /// First operand as given to the forward.
        pub a: View<'a>,
        /// Second operand as given to the forward.
        pub b: View<'a>,
        /// Third operand as given to the forward.
        pub c: View<'a>,
        /// Gradient of `a` (`None` for `Where`, whose `a` is a mask).
        pub da: Option<GradMut<'a>>,
        /// Gradient of `b`.
        pub db: Option<GradMut<'a>>,
        /// Gradient of `c`.
        pub dc: Option<GradMut<'a>>,
    }
}

op_family! {
    /// Elementwise arithmetic. All operands may have any strides; operands broadcast to the shape of the output. Sources: `torch.*` of the
    /// function's name. Gradients of broadcast operands are summed over the repeated axes. Errors: `Invalid` for shapes that do not
    /// broadcast, unequal dtypes, an output of another shape, overlap; `Unsupported` for f64 where the device has none.
    pub trait ElementwiseOps : Elementwise => ELEMENTWISE_OPS {
        /// y = op(x). `y` has x's shape; its dtype is x's, or u8 for the predicates.
        fn unary(&self, op: Unary, x: View<'_>, y: ViewMut<'_>) -> Result<()>;
        /// dx = dy * op'(x). `Invalid` for functions without a gradient (predicates, bit operations, `AiryAi`).
        fn unary_bwd(&self, op: Unary, dy: View<'_>, x: View<'_>, dx: GradMut<'_>) -> Result<()>;
        /// y = op(a, b). `y` has the broadcast shape; its dtype is that of the operands, or u8 for comparisons and logic.
        fn binary(&self, op: Binary, a: View<'_>, b: View<'_>, y: ViewMut<'_>) -> Result<()>;
        /// Gradients of [`ElementwiseOps::binary`], summed to the operands' shapes. `Invalid` for functions without one.
        fn binary_bwd(&self, op: Binary, io: BinaryBwd<'_>) -> Result<()>;
        /// y = op(a, b, c).
        fn ternary(&self, op: Ternary, a: View<'_>, b: View<'_>, c: View<'_>, y: ViewMut<'_>) -> Result<()>;
        /// Gradients of [`ElementwiseOps::ternary`], summed to the operands' shapes.
        fn ternary_bwd(&self, op: Ternary, io: TernaryBwd<'_>) -> Result<()>;
        /// Converts between any two dtypes: floats round to nearest even (f32 to f16 overflows to infinity), float to integer truncates and
        /// saturates with NaN giving 0, integers wrap. Oracle `x.to(dtype)`.
        fn cast(&self, x: View<'_>, y: ViewMut<'_>) -> Result<()>;
    }
}

/// Checks of [`ElementwiseOps::unary`].
pub(crate) fn check_unary(op: Unary, x: &View<'_>, y: &ViewMut<'_>) -> Result<()> {
    const OP: &str = "unary";
    let v = y.as_view();
    check::shape(OP, "y", &v, x.shape())?;
    check_order(OP, op)?;
    check::one_of(OP, "x", x, op.dtypes())?;
    check::dtype(OP, "y", &v, if op.is_predicate() { DType::U8 } else { x.dtype() })?;
    check::elementwise_output(OP, "y", y, &[("x", *x)])
}

/// The order of a polygamma function is not negative.
fn check_order(name: &'static str, op: Unary) -> Result<()> {
    match op {
        Unary::Polygamma { n } if n < 0 => {
            Err(GpuError::invalid(name, "n", "an order of at least 0", format!("{n}")))
        }
        _ => Ok(()),
    }
}

/// Checks of [`ElementwiseOps::unary_bwd`].
pub(crate) fn check_unary_bwd(op: Unary, dy: &View<'_>, x: &View<'_>, dx: &GradMut<'_>) -> Result<()> {
    const OP: &str = "unary_bwd";
    if !op.is_differentiable() {
        return Err(GpuError::invalid(OP, "op", "a function with a gradient", format!("{op:?}")));
    }
    check_order(OP, op)?;
    check::float(OP, "x", x)?;
    for (arg, v) in [("dy", dy), ("dx", &dx.out.as_view())] {
        check::shape(OP, arg, v, x.shape())?;
        check::dtype(OP, arg, v, x.dtype())?;
    }
    check::elementwise_output(OP, "dx", &dx.out, &[("dy", *dy), ("x", *x)])
}

/// Checks of [`ElementwiseOps::binary`].
pub(crate) fn check_binary(op: Binary, a: &View<'_>, b: &View<'_>, y: &ViewMut<'_>) -> Result<()> {
    const OP: &str = "binary";
    let v = y.as_view();
    check::shape(OP, "y", &v, &check::broadcast(OP, "b", a.shape(), b.shape())?)?;
    check::one_of(OP, "a", a, op.dtypes())?;
    check::dtype(OP, "b", b, if op == Binary::Ldexp { DType::I32 } else { a.dtype() })?;
    check::dtype(OP, "y", &v, if op.is_predicate() { DType::U8 } else { a.dtype() })?;
    if let (Binary::Add { alpha }, false) = (op, a.dtype().is_float())
        && alpha.fract() != 0.0
    {
        return Err(GpuError::invalid(OP, "alpha", "an integer", format!("{alpha}")));
    }
    check::elementwise_output(OP, "y", y, &[("a", *a), ("b", *b)])
}

/// One gradient among several: shape and dtype of its operand, apart from the other outputs and (up to exact aliasing) from the inputs.
fn check_grad(
    op: &'static str,
    arg: &'static str,
    grad: &GradMut<'_>,
    of: &View<'_>,
    inputs: &[(&'static str, View<'_>)],
    others: &[(&'static str, Option<View<'_>>)],
) -> Result<()> {
    let v = grad.out.as_view();
    check::shape(op, arg, &v, of.shape())?;
    check::dtype(op, arg, &v, of.dtype())?;
    check::elementwise_output(op, arg, &grad.out, inputs)?;
    for (name, other) in others {
        if other.is_some_and(|o| check::overlap(&v, &o)) {
            return Err(GpuError::invalid(
                op,
                arg,
                format!("memory apart from `{name}`"),
                "overlapping ranges of one buffer",
            ));
        }
    }
    Ok(())
}

/// Checks of [`ElementwiseOps::binary_bwd`].
pub(crate) fn check_binary_bwd(op: Binary, io: &BinaryBwd<'_>) -> Result<()> {
    const OP: &str = "binary_bwd";
    let (dy, a, b) = (&io.dy, &io.a, &io.b);
    let [for_a, for_b] = op.differentiable();
    if !for_a && !for_b {
        return Err(GpuError::invalid(OP, "op", "a function with a gradient", format!("{op:?}")));
    }
    for (arg, wanted, there) in [("da", io.da.is_some(), for_a), ("db", io.db.is_some(), for_b)] {
        if wanted && !there {
            let got = format!("a gradient of {op:?}, which has one for the other operand alone");
            return Err(GpuError::invalid(OP, arg, "none", got));
        }
    }
    check::shape(OP, "dy", dy, &check::broadcast(OP, "b", a.shape(), b.shape())?)?;
    check::float(OP, "a", a)?;
    check::dtype(OP, "b", b, if op == Binary::Ldexp { DType::I32 } else { a.dtype() })?;
    check::dtype(OP, "dy", dy, a.dtype())?;
    let inputs = [("dy", *dy), ("a", *a), ("b", *b)];
    if let Some(da) = &io.da {
        check_grad(OP, "da", da, a, &inputs, &[])?;
    }
    if let Some(db) = &io.db {
        check_grad(OP, "db", db, b, &inputs, &[("da", io.da.as_ref().map(|g| g.out.as_view()))])?;
    }
    Ok(())
}

/// Dtypes of ternary operands: a mask and two of any type for `Where`, equal floats otherwise.
fn check_ternary_types(
    name: &'static str,
    op: Ternary,
    a: &View<'_>,
    b: &View<'_>,
    c: &View<'_>,
) -> Result<()> {
    if op == Ternary::Where {
        check::dtype(name, "a", a, DType::U8)?;
        return check::dtype(name, "c", c, b.dtype());
    }
    check::float(name, "a", a)?;
    check::dtype(name, "b", b, a.dtype())?;
    check::dtype(name, "c", c, a.dtype())
}

/// Shape that three operands broadcast to.
fn broadcast3(name: &'static str, a: &View<'_>, b: &View<'_>, c: &View<'_>) -> Result<crate::layout::Dims> {
    let ab = check::broadcast(name, "b", a.shape(), b.shape())?;
    check::broadcast(name, "c", &ab, c.shape())
}

/// Checks of [`ElementwiseOps::ternary`].
pub(crate) fn check_ternary(
    op: Ternary,
    a: &View<'_>,
    b: &View<'_>,
    c: &View<'_>,
    y: &ViewMut<'_>,
) -> Result<()> {
    const OP: &str = "ternary";
    let v = y.as_view();
    check::shape(OP, "y", &v, &broadcast3(OP, a, b, c)?)?;
    check_ternary_types(OP, op, a, b, c)?;
    check::dtype(OP, "y", &v, b.dtype())?;
    check::elementwise_output(OP, "y", y, &[("a", *a), ("b", *b), ("c", *c)])
}

/// Checks of [`ElementwiseOps::ternary_bwd`].
pub(crate) fn check_ternary_bwd(op: Ternary, io: &TernaryBwd<'_>) -> Result<()> {
    const OP: &str = "ternary_bwd";
    let (dy, a, b, c) = (&io.dy, &io.a, &io.b, &io.c);
    if op == Ternary::Where && io.da.is_some() {
        return Err(GpuError::invalid(OP, "da", "none: the mask has no gradient", "a gradient"));
    }
    check::shape(OP, "dy", dy, &broadcast3(OP, a, b, c)?)?;
    check_ternary_types(OP, op, a, b, c)?;
    check::float(OP, "b", b)?;
    check::dtype(OP, "dy", dy, b.dtype())?;
    let inputs = [("dy", *dy), ("a", *a), ("b", *b), ("c", *c)];
    let [da, db] = [&io.da, &io.db].map(|g| g.as_ref().map(|g| g.out.as_view()));
    if let Some(g) = &io.da {
        check_grad(OP, "da", g, a, &inputs, &[])?;
    }
    if let Some(g) = &io.db {
        check_grad(OP, "db", g, b, &inputs, &[("da", da)])?;
    }
    if let Some(g) = &io.dc {
        check_grad(OP, "dc", g, c, &inputs, &[("da", da), ("db", db)])?;
    }
    Ok(())
}

/// Checks of [`ElementwiseOps::cast`].
pub(crate) fn check_cast(x: &View<'_>, y: &ViewMut<'_>) -> Result<()> {
    check::shape("cast", "y", &y.as_view(), x.shape())?;
    check::elementwise_output("cast", "y", y, &[("x", *x)])
}
