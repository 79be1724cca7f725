//! Names of the functions in `kernels/common/elementwise/*_ops.h`.
//!
//! A function is a variant of its enum, one line in `*_ops.h`, one line in a table here and one match arm in `src/cpu`.

pub(crate) use super::activation::ACTIVATIONS;
use crate::dtype::DType;
use crate::ops::elementwise::{Binary, Ternary, Unary};

/// Scalar parameters, filled up with zeros.
const fn pad<const N: usize>(given: &[f64]) -> [f64; N] {
    let mut all = [0.0; N];
    let mut i = 0;
    while i < given.len() {
        all[i] = given[i];
        i += 1;
    }
    all
}

/// Declares the map from an operation to its C name and scalar parameters, and the lists of names that float and integer units are compiled for.
macro_rules! functions {
    (
        $(#[$m:meta])*
        fn $find:ident($op:ident: $ty:ty, $dtype:ident) -> [f64; $n:literal];
        floats $floats:ident { $($fp:pat => $fname:literal $(($($fv:expr),*))?,)* }
        both { $($bp:pat => $bname:literal $(($($bv:expr),*))?,)* }
        ints $ints:ident { $($ip:pat => $iname:literal,)* }
        $(apart $apart:ident { $($ap:pat => $aname:literal,)* })*
        none { $($np:pat)? }
    ) => {
        /// Functions of float units.
        pub(crate) const $floats: &[&str] = &[$($fname,)* $($bname,)*];
        /// Functions of integer units.
        #[allow(dead_code)]
        pub(crate) const $ints: &[&str] = &[$($bname,)* $($iname,)*];
        $(
            /// Functions of float units in a file of their own.
            pub(crate) const $apart: &[&str] = &[$($aname,)*];
        )*
        $(#[$m])*
        pub(crate) fn $find($op: $ty, $dtype: DType) -> Option<(&'static str, [f64; $n])> {
            let _ = $dtype;
            Some(match $op {
                $($fp => ($fname, pad(&[$($($fv),*)?])),)*
                $($bp => ($bname, pad(&[$($($bv),*)?])),)*
                $($ip => ($iname, pad(&[])),)*
                $($($ap => ($aname, pad(&[])),)*)*
                $($np => return None,)?
            })
        }
    };
}

functions! {
    /// C name and parameters of a function of one value.
    fn unary_function(op: Unary, dtype) -> [f64; 3];
    floats UNARY {
        Unary::Exp => "gk_op_exp",
        Unary::Exp2 => "gk_op_exp2",
        Unary::Exp10 => "gk_op_exp10",
        Unary::Expm1 => "gk_op_expm1",
        Unary::Log1p => "gk_op_log1p",
        Unary::Log => "gk_op_log",
        Unary::Log2 => "gk_op_log2",
        Unary::Log10 => "gk_op_log10",
        Unary::Sqrt => "gk_op_sqrt",
        Unary::Rsqrt => "gk_op_rsqrt",
        Unary::Cbrt => "gk_op_cbrt",
        Unary::Reciprocal => "gk_op_reciprocal",
        Unary::Sin => "gk_op_sin",
        Unary::Cos => "gk_op_cos",
        Unary::Tan => "gk_op_tan",
        Unary::Asin => "gk_op_asin",
        Unary::Acos => "gk_op_acos",
        Unary::Atan => "gk_op_atan",
        Unary::Sinh => "gk_op_sinh",
        Unary::Cosh => "gk_op_cosh",
        Unary::Asinh => "gk_op_asinh",
        Unary::Acosh => "gk_op_acosh",
        Unary::Atanh => "gk_op_atanh",
        Unary::Erf => "gk_op_erf",
        Unary::Erfc => "gk_op_erfc",
        Unary::Erfinv => "gk_op_erfinv",
        Unary::Floor => "gk_op_floor",
        Unary::Ceil => "gk_op_ceil",
        Unary::Trunc => "gk_op_trunc",
        Unary::Frac => "gk_op_frac",
        Unary::Round { decimals } => "gk_op_round" (10f64.powi(decimals.abs()), f64::from(decimals < 0)),
        Unary::Lgamma => "gk_op_lgamma",
        Unary::Digamma => "gk_op_digamma",
        Unary::Polygamma { n } => "gk_op_polygamma" (f64::from(n)),
        Unary::I0 => "gk_op_i0",
        Unary::I0e => "gk_op_i0e",
        Unary::I1 => "gk_op_i1",
        Unary::I1e => "gk_op_i1e",
        Unary::Sinc => "gk_op_sinc",
        Unary::Scale { c } => "gk_op_scale" (c),
        Unary::AddScalar { c } => "gk_op_add_scalar" (c),
        Unary::RsubScalar { c } => "gk_op_rsub_scalar" (c),
        Unary::PowScalar { c } => "gk_op_pow_scalar" (c),
        Unary::Clamp { lo, hi } => "gk_op_clamp" (lo.unwrap_or(f64::NEG_INFINITY), hi.unwrap_or(f64::INFINITY)),
        Unary::NanToNum { nan, posinf, neginf } => "gk_op_nan_to_num"
            (nan, posinf.unwrap_or(dtype.largest()), neginf.unwrap_or(-dtype.largest())),
        Unary::IsNan => "gk_op_isnan",
        Unary::IsInf => "gk_op_isinf",
        Unary::IsFinite => "gk_op_isfinite",
    }
    both {
        Unary::Neg => "gk_op_neg",
        Unary::Abs => "gk_op_abs",
        Unary::Sign => "gk_op_sign",
        Unary::Square => "gk_op_square",
    }
    ints INT_UNARY {
        Unary::LogicalNot => "gk_op_logical_not",
        Unary::BitwiseNot => "gk_op_bitwise_not",
    }
    apart SPECIAL {
        Unary::Erfcx => "gk_op_erfcx",
        Unary::LogNdtr => "gk_op_log_ndtr",
        Unary::Ndtri => "gk_op_ndtri",
        Unary::BesselJ0 => "gk_op_bessel_j0",
        Unary::BesselJ1 => "gk_op_bessel_j1",
        Unary::BesselY0 => "gk_op_bessel_y0",
        Unary::BesselY1 => "gk_op_bessel_y1",
        Unary::K0 => "gk_op_k0",
        Unary::K1 => "gk_op_k1",
        Unary::K0e => "gk_op_k0e",
        Unary::K1e => "gk_op_k1e",
    }
    apart AIRY {
        Unary::AiryAi => "gk_op_airy_ai",
    }
    none {}
}

functions! {
    /// C name and parameters of a function of two values; `None` for the ones that have kernels of their own.
    fn binary_function(op: Binary, dtype) -> [f64; 2];
    floats BINARY {
        Binary::Div => "gk_op_div",
        Binary::Pow => "gk_op_pow",
        Binary::Fmax => "gk_op_fmax",
        Binary::Fmin => "gk_op_fmin",
        Binary::Remainder => "gk_op_remainder",
        Binary::Fmod => "gk_op_fmod",
        Binary::Atan2 => "gk_op_atan2",
        Binary::Hypot => "gk_op_hypot",
        Binary::Copysign => "gk_op_copysign",
        Binary::Logaddexp => "gk_op_logaddexp",
        Binary::Logaddexp2 => "gk_op_logaddexp2",
        Binary::Xlogy => "gk_op_xlogy",
        Binary::Xlog1py => "gk_op_xlog1py",
        Binary::Lerp { t } => "gk_op_lerp" (t),
        Binary::AddScaled { ca, cb } => "gk_op_add_scaled" (ca, cb),
        Binary::Nextafter => "gk_op_nextafter",
        Binary::ClampMin => "gk_op_clamp_min",
        Binary::ClampMax => "gk_op_clamp_max",
        Binary::AddRelu => "gk_op_add_relu",
        Binary::AddSigmoid => "gk_op_add_sigmoid",
        Binary::AddGelu => "gk_op_add_gelu",
        Binary::Zeta => "gk_op_zeta",
    }
    both {
        Binary::Add { alpha } => "gk_op_add" (alpha),
        Binary::Sub => "gk_op_sub",
        Binary::Mul => "gk_op_mul",
        Binary::DivFloor => "gk_op_div_floor",
        Binary::DivTrunc => "gk_op_div_trunc",
        Binary::Maximum => "gk_op_maximum",
        Binary::Minimum => "gk_op_minimum",
        Binary::Eq => "gk_op_eq",
        Binary::Ne => "gk_op_ne",
        Binary::Lt => "gk_op_lt",
        Binary::Le => "gk_op_le",
        Binary::Gt => "gk_op_gt",
        Binary::Ge => "gk_op_ge",
    }
    ints INT_BINARY {
        Binary::BitwiseAnd => "gk_op_bitwise_and",
        Binary::BitwiseOr => "gk_op_bitwise_or",
        Binary::BitwiseXor => "gk_op_bitwise_xor",
        Binary::Shl => "gk_op_shl",
        Binary::Shr => "gk_op_shr",
        Binary::LogicalAnd => "gk_op_logical_and",
        Binary::LogicalOr => "gk_op_logical_or",
        Binary::LogicalXor => "gk_op_logical_xor",
    }
    apart BINARY_SPECIAL {
        Binary::Igamma => "gk_op_igamma",
        Binary::Igammac => "gk_op_igammac",
    }
    none { Binary::Ldexp }
}

functions! {
    /// C name and parameters of a function of three values; `None` for the ones that have kernels of their own.
    fn ternary_function(op: Ternary, dtype) -> [f64; 1];
    floats TERNARY {
        Ternary::Lerp => "gk_op_lerp3",
        Ternary::Fma => "gk_op_fma",
        Ternary::Addcmul { v } => "gk_op_addcmul" (v),
        Ternary::Addcdiv { v } => "gk_op_addcdiv" (v),
        Ternary::Clamp => "gk_op_clamp3",
    }
    both {}
    ints INT_TERNARY {}
    none { Ternary::Where }
}

/// Functions whose result is a mask.
pub(crate) const PREDICATES: &[&str] = &["gk_op_isnan", "gk_op_isinf", "gk_op_isfinite"];
/// Functions of two values whose result is a mask.
pub(crate) const COMPARISONS: &[&str] =
    &["gk_op_eq", "gk_op_ne", "gk_op_lt", "gk_op_le", "gk_op_gt", "gk_op_ge"];
/// Integer functions that report a division by zero.
pub(crate) const INT_DIV: &[&str] = &["gk_op_div_floor", "gk_op_div_trunc"];
/// Conversions by target.
pub(crate) const CASTS: &[&str] =
    &["gk_to_f32", "gk_to_f16", "gk_to_bf16", "gk_to_f64", "gk_to_i32", "gk_to_i64", "gk_to_u8"];

/// Name of the conversion to a dtype.
pub(crate) fn cast_function(to: DType) -> &'static str {
    let at = DType::ALL.into_iter().position(|d| d == to).unwrap_or(0);
    CASTS[at]
}
