//! What an operation makes of one element: values and derivatives in f64, integers in i64.

use std::f64::consts::{LN_2, LN_10, PI};

use half::{bf16, f16};

use crate::cpu::HostElement;
use crate::cpu::activation::{gradient, sigmoid, value};
use crate::cpu::special::*;
use crate::dtype::DType;
use crate::ops::activation::Activation;
use crate::ops::elementwise::*;

/// Larger value; NaN wins.
pub(in crate::cpu) fn maximum(a: f64, b: f64) -> f64 {
    if a.is_nan() || a > b { a } else { b }
}

/// Smaller value; NaN wins.
pub(in crate::cpu) fn minimum(a: f64, b: f64) -> f64 {
    if a.is_nan() || a < b { a } else { b }
}

fn sign(x: f64) -> f64 {
    if x > 0.0 {
        1.0
    } else if x < 0.0 {
        -1.0
    } else {
        0.0
    }
}

/// f(x); masks are 0 or 1.
pub(super) fn unary_value(op: Unary, x: f64, dtype: DType) -> f64 {
    match op {
        Unary::Neg => -x,
        Unary::Abs => x.abs(),
        Unary::Sign => sign(x),
        Unary::Exp => x.exp(),
        Unary::Exp2 => x.exp2(),
        Unary::Exp10 => libm::exp10(x),
        Unary::Expm1 => x.exp_m1(),
        Unary::Log1p => x.ln_1p(),
        Unary::Log => x.ln(),
        Unary::Log2 => x.log2(),
        Unary::Log10 => x.log10(),
        Unary::Sqrt => x.sqrt(),
        Unary::Rsqrt => 1.0 / x.sqrt(),
        Unary::Cbrt => x.cbrt(),
        Unary::Square => x * x,
        Unary::Reciprocal => 1.0 / x,
        Unary::Sin => x.sin(),
        Unary::Cos => x.cos(),
        Unary::Tan => x.tan(),
        Unary::Asin => x.asin(),
        Unary::Acos => x.acos(),
        Unary::Atan => x.atan(),
        Unary::Sinh => x.sinh(),
        Unary::Cosh => x.cosh(),
        Unary::Asinh => libm::asinh(x),
        Unary::Acosh => libm::acosh(x),
        Unary::Atanh => libm::atanh(x),
        Unary::Erf => libm::erf(x),
        Unary::Erfc => libm::erfc(x),
        Unary::Erfinv => erfinv(x),
        Unary::Floor => x.floor(),
        Unary::Ceil => x.ceil(),
        Unary::Trunc => x.trunc(),
        Unary::Frac => x - x.trunc(),
        Unary::Round { decimals: 0 } => x.round_ties_even(),
        Unary::Round { decimals } => {
            let scale = 10f64.powi(decimals.abs());
            if decimals > 0 {
                (x * scale).round_ties_even() / scale
            } else {
                (x / scale).round_ties_even() * scale
            }
        }
        Unary::Lgamma => libm::lgamma(x),
        Unary::Digamma => digamma(x),
        Unary::Polygamma { n } => polygamma(n, x),
        Unary::I0 => bessel_i(0, x),
        Unary::Erfcx => erfcx(x),
        Unary::LogNdtr => log_ndtr(x),
        Unary::Ndtri => ndtri(x),
        Unary::BesselJ0 => libm::j0(x),
        Unary::BesselJ1 => libm::j1(x),
        Unary::BesselY0 => libm::y0(x),
        Unary::BesselY1 => libm::y1(x),
        Unary::K0 => (-x).exp() * bessel_k_scaled(0, x),
        Unary::K1 => (-x).exp() * bessel_k_scaled(1, x),
        Unary::K0e => bessel_k_scaled(0, x),
        Unary::K1e => bessel_k_scaled(1, x),
        Unary::AiryAi => airy_ai(x),
        Unary::I0e => bessel_i_scaled(0, x),
        Unary::I1 => bessel_i(1, x),
        Unary::I1e => bessel_i_scaled(1, x),
        Unary::Sinc => sinc(x),
        Unary::Scale { c } => c * x,
        Unary::AddScalar { c } => x + c,
        Unary::RsubScalar { c } => c - x,
        // As PyTorch: the root of -inf is NaN, its power 0.5 would be +inf.
        Unary::PowScalar { c: 0.5 } => x.sqrt(),
        Unary::PowScalar { c } => x.powf(c),
        Unary::Clamp { lo, hi } => {
            minimum(maximum(x, lo.unwrap_or(f64::NEG_INFINITY)), hi.unwrap_or(f64::INFINITY))
        }
        Unary::NanToNum { nan, .. } if x.is_nan() => nan,
        Unary::NanToNum { posinf, neginf, .. } if x.is_infinite() => {
            if x > 0.0 {
                posinf.unwrap_or(dtype.largest())
            } else {
                neginf.unwrap_or(-dtype.largest())
            }
        }
        Unary::NanToNum { .. } => x,
        Unary::IsNan => f64::from(x.is_nan()),
        Unary::IsInf => f64::from(x.is_infinite()),
        Unary::IsFinite => f64::from(x.is_finite()),
        // Of integers only.
        Unary::LogicalNot | Unary::BitwiseNot => f64::NAN,
    }
}

/// dy * f'(x); functions without a gradient give 0.
pub(super) fn unary_gradient(op: Unary, dy: f64, x: f64) -> f64 {
    match op {
        Unary::Neg | Unary::RsubScalar { .. } => -dy,
        Unary::Abs if x == 0.0 => 0.0,
        Unary::Abs => dy * sign(x),
        Unary::Exp | Unary::Expm1 => dy * x.exp(),
        Unary::Exp2 => dy * x.exp2() * LN_2,
        Unary::Exp10 => dy * libm::exp10(x) * LN_10,
        Unary::Log1p => dy / (1.0 + x),
        Unary::Log => dy / x,
        Unary::Log2 => dy / (x * LN_2),
        Unary::Log10 => dy / (x * LN_10),
        Unary::Sqrt => dy / (2.0 * x.sqrt()),
        Unary::Rsqrt => -0.5 * dy * x.powf(-1.5),
        Unary::Cbrt => dy / (3.0 * x.cbrt().powi(2)),
        Unary::Square => dy * 2.0 * x,
        Unary::Reciprocal => -dy / (x * x),
        Unary::Sin => dy * x.cos(),
        Unary::Cos => -dy * x.sin(),
        Unary::Tan => dy * (1.0 + x.tan().powi(2)),
        Unary::Asin => dy / (1.0 - x * x).sqrt(),
        Unary::Acos => -dy / (1.0 - x * x).sqrt(),
        Unary::Atan => dy / (1.0 + x * x),
        Unary::Sinh => dy * x.cosh(),
        Unary::Cosh => dy * x.sinh(),
        Unary::Asinh => dy / (x * x + 1.0).sqrt(),
        Unary::Acosh => dy / ((x - 1.0).sqrt() * (x + 1.0).sqrt()),
        Unary::Atanh => dy / (1.0 - x * x),
        Unary::Erf => dy * 2.0 / PI.sqrt() * (-x * x).exp(),
        Unary::Erfc => -dy * 2.0 / PI.sqrt() * (-x * x).exp(),
        Unary::Erfinv => dy * PI.sqrt() / 2.0 * erfinv(x).powi(2).exp(),
        Unary::Frac | Unary::AddScalar { .. } => dy,
        Unary::Lgamma => dy * digamma(x),
        Unary::Digamma => dy * polygamma(1, x),
        Unary::Polygamma { n } => dy * polygamma(n.saturating_add(1), x),
        Unary::I0 => dy * bessel_i(1, x),
        Unary::Erfcx => dy * erfcx_slope(x),
        Unary::LogNdtr => dy * log_ndtr_slope(x),
        Unary::Ndtri => dy * (2.0 * PI).sqrt() * (ndtri(x).powi(2) / 2.0).exp(),
        Unary::BesselJ0 => -dy * libm::j1(x),
        Unary::BesselJ1 => dy * at_zero(x, 0.5, || libm::j0(x) - libm::j1(x) / x),
        Unary::BesselY0 => -dy * libm::y1(x),
        Unary::BesselY1 => dy * at_zero(x, f64::INFINITY, || libm::y0(x) - libm::y1(x) / x),
        Unary::K0 => -dy * (-x).exp() * bessel_k_scaled(1, x),
        Unary::K1 => {
            dy * at_zero(x, f64::NEG_INFINITY, || {
                -(-x).exp() * (bessel_k_scaled(0, x) + bessel_k_scaled(1, x) / x)
            })
        }
        Unary::K0e => dy * at_zero(x, f64::NEG_INFINITY, || bessel_k_scaled(0, x) - bessel_k_scaled(1, x)),
        Unary::K1e => {
            dy * at_zero(x, f64::NEG_INFINITY, || {
                bessel_k_scaled(1, x) * (1.0 - 1.0 / x) - bessel_k_scaled(0, x)
            })
        }
        Unary::I0e => dy * (bessel_i_scaled(1, x) - sign(x) * bessel_i_scaled(0, x)),
        Unary::I1 | Unary::I1e if x == 0.0 => dy * 0.5,
        Unary::I1 if x.is_infinite() => dy * f64::INFINITY,
        // Both terms of I0 - I1/x are infinite together: e^|x| goes outside, in two halves.
        Unary::I1 => {
            let h = (0.5 * x.abs()).exp();
            dy * (h * (bessel_i_scaled(0, x) - bessel_i_scaled(1, x) / x) * h)
        }
        Unary::I1e => dy * (bessel_i_scaled(0, x) - bessel_i_scaled(1, x) * (sign(x) + 1.0 / x)),
        Unary::Sinc => dy * sinc_slope(x),
        Unary::Scale { c } => dy * c,
        Unary::PowScalar { c: 0.0 } => 0.0,
        Unary::PowScalar { c } => dy * c * x.powf(c - 1.0),
        Unary::Clamp { lo, hi } => {
            let inside = lo.is_none_or(|lo| x > lo) && hi.is_none_or(|hi| x < hi) && !x.is_nan();
            if inside { dy } else { 0.0 }
        }
        Unary::NanToNum { .. } if x.is_finite() => dy,
        _ => 0.0,
    }
}

/// sin(pi x) / (pi x)
fn sinc(x: f64) -> f64 {
    let z = PI * x;
    if z == 0.0 { 1.0 } else { z.sin() / z }
}

/// Its derivative, by its series where the two terms cancel.
fn sinc_slope(x: f64) -> f64 {
    let z = PI * x;
    if z.abs() > 0.1 {
        return (z.cos() - sinc(x)) / x;
    }
    let q = z * z;
    -PI * z * (1.0 - q * (0.1 - q * (1.0 / 280.0 - q * (1.0 / 15120.0 - q / 1_330_560.0)))) / 3.0
}

/// a - b * floor(a / b), exactly.
fn remainder(a: f64, b: f64) -> f64 {
    let r = a % b;
    if r != 0.0 && (r < 0.0) != (b < 0.0) { r + b } else { r }
}

/// trunc(a / b) of the exact quotient.
fn div_trunc(a: f64, b: f64) -> f64 {
    if b == 0.0 || !a.is_finite() { a / b } else { ((a - a % b) / b).round_ties_even() }
}

/// floor(a / b) of the exact quotient; an infinite a gives NaN.
fn div_floor(a: f64, b: f64) -> f64 {
    if b == 0.0 {
        return a / b;
    }
    let r = a % b;
    let q = ((a - r) / b).round_ties_even();
    if r != 0.0 && (r < 0.0) != (b < 0.0) { q - 1.0 } else { q }
}

/// ln(e^a + e^b)
fn logaddexp(a: f64, b: f64) -> f64 {
    if a == b && a.is_infinite() { a } else { maximum(a, b) + (-(a - b).abs()).exp().ln_1p() }
}

/// a f(b) with 0 for a = 0.
fn x_log(a: f64, b: f64, log: fn(f64) -> f64) -> f64 {
    if a == 0.0 && !b.is_nan() { 0.0 } else { a * log(b) }
}

/// f(a, b) of floats; masks are 0 or 1.
pub(super) fn binary_value(op: Binary, a: f64, b: f64, dtype: DType) -> f64 {
    match op {
        Binary::Add { alpha } => a + alpha * b,
        Binary::Sub => a - b,
        Binary::Mul => a * b,
        Binary::Div => a / b,
        Binary::DivFloor => div_floor(a, b),
        Binary::DivTrunc => div_trunc(a, b),
        Binary::Pow => a.powf(b),
        Binary::Maximum | Binary::ClampMin => maximum(a, b),
        Binary::Minimum | Binary::ClampMax => minimum(a, b),
        Binary::Fmax => a.max(b),
        Binary::Fmin => a.min(b),
        Binary::Remainder => remainder(a, b),
        Binary::Fmod => a % b,
        Binary::Atan2 => a.atan2(b),
        Binary::Hypot => a.hypot(b),
        Binary::Copysign => a.copysign(b),
        Binary::Logaddexp => logaddexp(a, b),
        Binary::Logaddexp2 => logaddexp(a * LN_2, b * LN_2) / LN_2,
        Binary::Xlogy => x_log(a, b, f64::ln),
        Binary::Xlog1py => x_log(a, b, f64::ln_1p),
        Binary::Eq => f64::from(a == b),
        Binary::Ne => f64::from(a != b),
        Binary::Lt => f64::from(a < b),
        Binary::Le => f64::from(a <= b),
        Binary::Gt => f64::from(a > b),
        Binary::Ge => f64::from(a >= b),
        Binary::Lerp { t } => lerp(a, b, t),
        Binary::AddScaled { ca, cb } => ca * a + cb * b,
        Binary::Nextafter => next(a, b, dtype),
        Binary::AddRelu => value(Activation::Relu, a + b),
        Binary::AddSigmoid => sigmoid(a + b),
        Binary::AddGelu => value(Activation::Gelu, a + b),
        Binary::Zeta => zeta(a, b),
        Binary::Igamma => igamma(a, b),
        Binary::Igammac => igammac(a, b),
        Binary::Ldexp => libm::ldexp(a, b as i32),
        // Of integers only.
        Binary::LogicalAnd | Binary::LogicalOr | Binary::LogicalXor => f64::NAN,
        Binary::BitwiseAnd | Binary::BitwiseOr | Binary::BitwiseXor | Binary::Shl | Binary::Shr => f64::NAN,
    }
}

fn lerp(a: f64, b: f64, t: f64) -> f64 {
    if t < 0.5 { a + t * (b - a) } else { b - (b - a) * (1.0 - t) }
}

/// The neighbour of a towards b among the values of a dtype: bit patterns without the sign are ordered like the magnitudes.
fn next(a: f64, b: f64, dtype: DType) -> f64 {
    if a.is_nan() || b.is_nan() {
        return f64::NAN;
    }
    if a == b {
        return b;
    }
    let (magnitude, decode): (u64, fn(u64) -> f64) = match dtype {
        DType::F32 => (u64::from((a.abs() as f32).to_bits()), |u| f64::from(f32::from_bits(u as u32))),
        DType::F16 => (u64::from(<f16 as HostElement>::from_f64(a.abs()).to_bits()), |u| {
            f16::from_bits(u as u16).to_f64()
        }),
        DType::Bf16 => (u64::from(<bf16 as HostElement>::from_f64(a.abs()).to_bits()), |u| {
            bf16::from_bits(u as u16).to_f64()
        }),
        _ => (a.abs().to_bits(), f64::from_bits),
    };
    if a == 0.0 {
        return decode(1).copysign(b);
    }
    let away = (b > a) == (a > 0.0);
    decode(if away { magnitude + 1 } else { magnitude - 1 }).copysign(a)
}

/// Gradients (dy, a, b) of f.
pub(super) fn binary_gradient(op: Binary, dy: f64, a: f64, b: f64) -> [f64; 2] {
    let nan = a.is_nan() || b.is_nan();
    let if_true = |c: bool| if c { dy } else { 0.0 };
    match op {
        Binary::Add { alpha } => [dy, dy * alpha],
        Binary::Sub => [dy, -dy],
        Binary::Mul => [dy * b, dy * a],
        Binary::Div => [dy / b, -dy * a / b / b],
        Binary::Pow => {
            let da = if b == 0.0 { 0.0 } else { dy * b * a.powf(b - 1.0) };
            let db = if a == 0.0 && b >= 0.0 { 0.0 } else { dy * a.powf(b) * a.ln() };
            [da, db]
        }
        Binary::Maximum | Binary::Minimum | Binary::Fmax | Binary::Fmin if a == b => [0.5 * dy; 2],
        Binary::Maximum => [if_true(a > b || nan), if_true(a < b || nan)],
        Binary::Minimum => [if_true(a < b || nan), if_true(a > b || nan)],
        Binary::Fmax => [if_true(a >= b || b.is_nan()), if_true(!(a >= b || b.is_nan()))],
        Binary::Fmin => [if_true(a <= b || b.is_nan()), if_true(!(a <= b || b.is_nan()))],
        Binary::ClampMin => [if_true(a > b), if_true(a < b)],
        Binary::ClampMax => [if_true(a < b), if_true(a > b)],
        Binary::Remainder => [dy, -dy * div_floor(a, b)],
        Binary::Fmod => [dy, -dy * div_trunc(a, b)],
        Binary::Atan2 | Binary::Hypot if a == 0.0 && b == 0.0 => [0.0; 2],
        Binary::Atan2 => {
            let h = a.hypot(b);
            [dy * b / h / h, -dy * a / h / h]
        }
        Binary::Hypot => [dy * (a / a.hypot(b)), dy * (b / a.hypot(b))],
        Binary::Copysign => [if a == 0.0 { 0.0 } else { dy * a.signum() * 1f64.copysign(b) }, 0.0],
        Binary::Logaddexp | Binary::Logaddexp2 if a == b => [0.5 * dy; 2],
        Binary::Logaddexp => [dy * sigmoid(a - b), dy * sigmoid(b - a)],
        Binary::Logaddexp2 => [dy * sigmoid((a - b) * LN_2), dy * sigmoid((b - a) * LN_2)],
        Binary::Xlogy => [if a == 0.0 && b <= 0.0 { 0.0 } else { dy * b.ln() }, dy * a / b],
        Binary::Xlog1py => [if a == 0.0 && b <= -1.0 { 0.0 } else { dy * b.ln_1p() }, dy * a / (1.0 + b)],
        Binary::Lerp { t } => [dy * (1.0 - t), dy * t],
        Binary::AddScaled { ca, cb } => [dy * ca, dy * cb],
        Binary::AddRelu => [gradient(Activation::Relu, dy, a + b); 2],
        Binary::AddSigmoid => [gradient(Activation::Sigmoid, dy, a + b); 2],
        Binary::AddGelu => [gradient(Activation::Gelu, dy, a + b); 2],
        Binary::Zeta => [f64::NAN, -dy * a * zeta(a + 1.0, b)],
        Binary::Igamma => [f64::NAN, dy * igamma_slope(a, b)],
        Binary::Igammac => [f64::NAN, -dy * igamma_slope(a, b)],
        Binary::Ldexp => [libm::ldexp(dy, b as i32), 0.0],
        _ => [0.0; 2],
    }
}

/// f(a, b, c) of floats.
pub(super) fn ternary_value(op: Ternary, a: f64, b: f64, c: f64) -> f64 {
    match op {
        Ternary::Where => {
            if a != 0.0 {
                b
            } else {
                c
            }
        }
        Ternary::Lerp => lerp(a, b, c),
        Ternary::Fma => a.mul_add(b, c),
        Ternary::Addcmul { v } => a + v * b * c,
        Ternary::Addcdiv { v } => a + v * b / c,
        Ternary::Clamp => minimum(maximum(a, b), c),
    }
}

/// Gradients (dy, a, b, c) of f.
pub(super) fn ternary_gradient(op: Ternary, dy: f64, a: f64, b: f64, c: f64) -> [f64; 3] {
    let if_true = |c: bool| if c { dy } else { 0.0 };
    match op {
        Ternary::Where => [0.0, if_true(a != 0.0), if_true(a == 0.0)],
        Ternary::Lerp => [dy * (1.0 - c), dy * c, dy * (b - a)],
        Ternary::Fma => [dy * b, dy * a, dy],
        Ternary::Addcmul { v } => [dy, dy * v * c, dy * v * b],
        Ternary::Addcdiv { v } => [dy, dy * v / c, -dy * v * b / c / c],
        Ternary::Clamp => [if_true(a > b && a < c), if_true(a < b && b < c), if_true(a > c || c < b)],
    }
}

pub(super) fn int_unary(op: Unary, x: i64) -> i64 {
    match op {
        Unary::Neg => x.wrapping_neg(),
        Unary::Abs => x.wrapping_abs(),
        Unary::Sign => x.signum(),
        Unary::Square => x.wrapping_mul(x),
        Unary::LogicalNot => i64::from(x == 0),
        Unary::BitwiseNot => !x,
        _ => 0,
    }
}

/// f(a, b) of integers of `bits` bits; `None` for a division by zero.
pub(super) fn int_binary(op: Binary, a: i64, b: i64, bits: i64) -> Option<i64> {
    let fits = (0..bits).contains(&b);
    Some(match op {
        Binary::Add { alpha } => a.wrapping_add(b.wrapping_mul(alpha as i64)),
        Binary::Sub => a.wrapping_sub(b),
        Binary::Mul => a.wrapping_mul(b),
        Binary::DivFloor | Binary::DivTrunc if b == 0 => return None,
        Binary::DivTrunc => a.wrapping_div(b),
        Binary::DivFloor => {
            let less = a.wrapping_rem(b) != 0 && (a < 0) != (b < 0);
            a.wrapping_div(b) - i64::from(less)
        }
        Binary::Maximum => a.max(b),
        Binary::Minimum => a.min(b),
        Binary::Eq => i64::from(a == b),
        Binary::Ne => i64::from(a != b),
        Binary::Lt => i64::from(a < b),
        Binary::Le => i64::from(a <= b),
        Binary::Gt => i64::from(a > b),
        Binary::Ge => i64::from(a >= b),
        Binary::LogicalAnd => i64::from(a != 0 && b != 0),
        Binary::LogicalOr => i64::from(a != 0 || b != 0),
        Binary::LogicalXor => i64::from((a != 0) != (b != 0)),
        Binary::BitwiseAnd => a & b,
        Binary::BitwiseOr => a | b,
        Binary::BitwiseXor => a ^ b,
        Binary::Shl if fits => a << b,
        Binary::Shl => 0,
        Binary::Shr if fits => a >> b,
        Binary::Shr => a >> 63,
        _ => 0,
    })
}
