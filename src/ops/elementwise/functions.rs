//! The functions, and the dtypes that each takes.

use crate::dtype::DType;

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
