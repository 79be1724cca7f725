//! Unary, binary and ternary arithmetic with broadcasting.

use crate::buffer::{GradMut, View, ViewMut};
use crate::dtype::DType;
use crate::error::{GpuError, Result};
use crate::ops::check;

/// Functions of one tensor. Names and edge cases are those of `torch.<name>`.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum Unary {
    /// -x; integers allowed
    Neg,
    /// |x|; the gradient at 0 is 0; integers allowed
    Abs,
    /// -1, 0, 1; NaN gives 0, as `torch.sign` (NumPy gives NaN); integers allowed
    Sign,
    /// e^x
    Exp,
    /// 2^x
    Exp2,
    /// 10^x
    Exp10,
    /// e^x - 1, accurate near 0
    Expm1,
    /// ln(1 + x), accurate near 0
    Log1p,
    /// natural logarithm
    Log,
    /// base-2 logarithm
    Log2,
    /// base-10 logarithm
    Log10,
    /// square root
    Sqrt,
    /// 1 / sqrt(x)
    Rsqrt,
    /// real cube root
    Cbrt,
    /// x^2; integers allowed
    Square,
    /// 1 / x
    Reciprocal,
    /// sine
    Sin,
    /// cosine
    Cos,
    /// tangent
    Tan,
    /// inverse sine
    Asin,
    /// inverse cosine
    Acos,
    /// inverse tangent
    Atan,
    /// hyperbolic sine
    Sinh,
    /// hyperbolic cosine
    Cosh,
    /// inverse hyperbolic sine
    Asinh,
    /// inverse hyperbolic cosine
    Acosh,
    /// inverse hyperbolic tangent
    Atanh,
    /// error function
    Erf,
    /// complementary error function
    Erfc,
    /// inverse error function
    Erfinv,
    /// largest integer not above x
    Floor,
    /// smallest integer not below x
    Ceil,
    /// integer part
    Trunc,
    /// x - trunc(x)
    Frac,
    /// nearest integer, halves to even, at `decimals` decimal places
    Round {
        /// decimal places
        decimals: i32,
    },
    /// ln |Gamma(x)|
    Lgamma,
    /// derivative of ln Gamma
    Digamma,
    /// n-th derivative of digamma
    Polygamma {
        /// order, at least 0
        n: i32,
    },
    /// modified Bessel function of the first kind, order 0
    I0,
    /// I0 scaled by exp(-|x|)
    I0e,
    /// modified Bessel function of the first kind, order 1
    I1,
    /// I1 scaled by exp(-|x|)
    I1e,
    /// sin(pi x) / (pi x), 1 at 0 (`torch.sinc`)
    Sinc,
    /// e^(x^2) erfc(x)
    Erfcx,
    /// logarithm of the distribution function of the standard normal distribution
    LogNdtr,
    /// quantile of the standard normal distribution
    Ndtri,
    /// Bessel function of the first kind, order 0
    BesselJ0,
    /// Bessel function of the first kind, order 1
    BesselJ1,
    /// Bessel function of the second kind, order 0; NaN for negative numbers
    BesselY0,
    /// Bessel function of the second kind, order 1; NaN for negative numbers
    BesselY1,
    /// modified Bessel function of the second kind, order 0; NaN for negative numbers
    K0,
    /// modified Bessel function of the second kind, order 1; NaN for negative numbers
    K1,
    /// modified Bessel function of the second kind, order 0, times e^x
    K0e,
    /// modified Bessel function of the second kind, order 1, times e^x
    K1e,
    /// Airy function Ai; no gradient, as in PyTorch (`torch.special.airy_ai`)
    AiryAi,
    /// c * x
    Scale {
        /// factor
        c: f64,
    },
    /// x + c
    AddScalar {
        /// summand
        c: f64,
    },
    /// c - x
    RsubScalar {
        /// minuend
        c: f64,
    },
    /// x^c; the square root for c = 0.5
    PowScalar {
        /// exponent
        c: f64,
    },
    /// min(max(x, lo), hi) with NaN kept; an absent bound does not bind; lo > hi gives hi. No gradient at or outside the bounds.
    Clamp {
        /// lower bound
        lo: Option<f64>,
        /// upper bound
        hi: Option<f64>,
    },
    /// replaces NaN and infinities; `None` for an infinity means the largest finite value of the dtype with its sign
    NanToNum {
        /// replacement of NaN
        nan: f64,
        /// replacement of +inf
        posinf: Option<f64>,
        /// replacement of -inf
        neginf: Option<f64>,
    },
    /// u8: is NaN
    IsNan,
    /// u8: is an infinity
    IsInf,
    /// u8: is neither NaN nor an infinity
    IsFinite,
    /// u8 to u8: is zero
    LogicalNot,
    /// integer complement
    BitwiseNot,
}

/// Functions of two tensors, broadcast against each other. Names and edge cases are those of `torch.<name>`.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum Binary {
    /// a + alpha*b; integers allowed (with an integer alpha)
    Add {
        /// factor of b
        alpha: f64,
    },
    /// a - b; integers allowed
    Sub,
    /// a * b; integers allowed
    Mul,
    /// a / b; floats only
    Div,
    /// floor(a / b), gradient 0; integer division by zero gives 0 and `IndexOutOfRange`
    DivFloor,
    /// trunc(a / b), gradient 0; integer division by zero gives 0 and `IndexOutOfRange`
    DivTrunc,
    /// a^b
    Pow,
    /// larger, NaN wins; gradient halved on ties; integers allowed
    Maximum,
    /// smaller, NaN wins; gradient halved on ties; integers allowed
    Minimum,
    /// larger, numbers win over NaN; gradient halved on ties
    Fmax,
    /// smaller, numbers win over NaN; gradient halved on ties
    Fmin,
    /// a - b*floor(a/b)
    Remainder,
    /// C's fmod
    Fmod,
    /// angle of (b, a)
    Atan2,
    /// sqrt(a^2 + b^2) without overflow; gradient 0 at the origin
    Hypot,
    /// |a| with the sign of b
    Copysign,
    /// ln(e^a + e^b)
    Logaddexp,
    /// log2(2^a + 2^b)
    Logaddexp2,
    /// a ln b, 0 where a = 0
    Xlogy,
    /// a ln(1 + b), 0 where a = 0
    Xlog1py,
    /// u8: a = b
    Eq,
    /// u8: a != b
    Ne,
    /// u8: a < b
    Lt,
    /// u8: a <= b
    Le,
    /// u8: a > b
    Gt,
    /// u8: a >= b
    Ge,
    /// u8 operands and result
    LogicalAnd,
    /// u8 operands and result
    LogicalOr,
    /// u8 operands and result
    LogicalXor,
    /// integers
    BitwiseAnd,
    /// integers
    BitwiseOr,
    /// integers
    BitwiseXor,
    /// integers; a shift by the width or more gives 0
    Shl,
    /// integers; fills with the sign of signed types
    Shr,
    /// a + t*(b - a), exact at t = 0 and 1
    Lerp {
        /// weight of b
        t: f64,
    },
    /// ca*a + cb*b
    AddScaled {
        /// factor of a
        ca: f64,
        /// factor of b
        cb: f64,
    },
    /// the next representable value from a towards b
    Nextafter,
    /// a * 2^b, b is i32; has a gradient for a only
    Ldexp,
    /// max(x, lo) with a tensor bound, NaN kept; the gradient of a tie goes to neither
    ClampMin,
    /// min(x, hi) with a tensor bound, NaN kept; the gradient of a tie goes to neither
    ClampMax,
    /// relu(a + b)
    AddRelu,
    /// sigmoid(a + b)
    AddSigmoid,
    /// gelu(a + b), the exact form
    AddGelu,
    /// Hurwitz zeta function zeta(a, b); has a gradient for b only
    Zeta,
    /// regularized lower incomplete gamma function P(a, b), NaN for negative numbers (`torch.special.gammainc`); has a gradient for b only
    Igamma,
    /// regularized upper incomplete gamma function 1 - P(a, b) (`torch.special.gammaincc`); has a gradient for b only
    Igammac,
}

/// Functions of three tensors, broadcast against each other.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum Ternary {
    /// a ? b : c with a mask a (u8); a selection, so NaN of the other branch does not leak. Any dtype.
    Where,
    /// a + c*(b - a) with a tensor weight c
    Lerp,
    /// a*b + c with a single rounding
    Fma,
    /// a + v*b*c
    Addcmul {
        /// factor
        v: f64,
    },
    /// a + v*b/c
    Addcdiv {
        /// factor
        v: f64,
    },
    /// min(max(a, b), c) with tensor bounds, NaN kept
    Clamp,
}

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

impl Unary {
    /// Whether the result is a u8 mask.
    pub const fn is_predicate(self) -> bool {
        matches!(self, Unary::IsNan | Unary::IsInf | Unary::IsFinite | Unary::LogicalNot)
    }

    /// Whether it has a gradient.
    pub const fn is_differentiable(self) -> bool {
        !self.is_predicate() && !matches!(self, Unary::BitwiseNot | Unary::AiryAi)
    }

    /// Dtypes that it takes.
    pub const fn dtypes(self) -> &'static [DType] {
        match self {
            Unary::LogicalNot => MASK,
            Unary::BitwiseNot => INTS,
            Unary::Neg | Unary::Abs | Unary::Sign | Unary::Square => &DType::ALL,
            _ => FLOATS,
        }
    }
}

const FLOATS: &[DType] = &[DType::F32, DType::F16, DType::Bf16, DType::F64];
const INTS: &[DType] = &[DType::I32, DType::I64, DType::U8];
const MASK: &[DType] = &[DType::U8];

impl Binary {
    /// Whether the result is a u8 mask.
    pub const fn is_predicate(self) -> bool {
        use Binary::*;
        matches!(self, Eq | Ne | Lt | Le | Gt | Ge | LogicalAnd | LogicalOr | LogicalXor)
    }

    /// For which of its operands it has a gradient: none for masks, bit operations and `Nextafter`, the first for `Ldexp`, the second for `Zeta`,
    /// `Igamma` and `Igammac`.
    pub const fn differentiable(self) -> [bool; 2] {
        use Binary::*;
        match self {
            Eq | Ne | Lt | Le | Gt | Ge | LogicalAnd | LogicalOr | LogicalXor => [false, false],
            BitwiseAnd | BitwiseOr | BitwiseXor | Shl | Shr | Nextafter => [false, false],
            Ldexp => [true, false],
            Zeta | Igamma | Igammac => [false, true],
            _ => [true, true],
        }
    }

    /// Dtypes that its first operand takes; the second has the same, but i32 for `Ldexp`.
    pub const fn dtypes(self) -> &'static [DType] {
        use Binary::*;
        match self {
            Add { .. }
            | Sub
            | Mul
            | DivFloor
            | DivTrunc
            | Maximum
            | Minimum
            | Eq
            | Ne
            | Lt
            | Le
            | Gt
            | Ge => &DType::ALL,
            BitwiseAnd | BitwiseOr | BitwiseXor | Shl | Shr => INTS,
            LogicalAnd | LogicalOr | LogicalXor => MASK,
            _ => FLOATS,
        }
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
