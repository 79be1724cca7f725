//! Derivatives of elementwise functions.

use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI, LN_2, LN_10, PI};

use trefoil::ops::elementwise::{Binary, Ternary, Unary};

use crate::core::error::Result;
use crate::core::tensor::Tensor;

/// 1 where a mask is true and 0 elsewhere, in the dtype of x.
pub(crate) fn indicator(mask: &Tensor, x: &Tensor) -> Result<Tensor> {
    mask.to_dtype(x.dtype())
}

/// The gradient of op(x), or nothing where it has no differentiable form.
pub(crate) fn unary(op: Unary, dy: &Tensor, x: &Tensor) -> Result<Option<Tensor>> {
    use Unary::*;
    let y = || x.unary(op);
    let one_plus_square = || x.square()?.add_scalar(1.0);
    let one_minus_square = || x.square()?.rsub_scalar(1.0);
    let gauss = || x.square()?.neg()?.exp()?.mul_scalar(FRAC_2_SQRT_PI);
    let slope = match op {
        Neg => return dy.neg().map(Some),
        Scale { c } => return dy.mul_scalar(c).map(Some),
        AddScalar { .. } | Frac => return Ok(Some(dy.clone())),
        RsubScalar { .. } => return dy.neg().map(Some),
        // Steps; a product keeps the zeros in the graph.
        Sign | Floor | Ceil | Trunc | Round { .. } => return dy.mul_scalar(0.0).map(Some),
        Abs => x.detach().sign()?,
        Exp => y()?,
        Exp2 => y()?.mul_scalar(LN_2)?,
        Exp10 => y()?.mul_scalar(LN_10)?,
        Expm1 => x.exp()?,
        Log => x.recip()?,
        Log1p => x.add_scalar(1.0)?.recip()?,
        Log2 => x.mul_scalar(LN_2)?.recip()?,
        Log10 => x.mul_scalar(LN_10)?.recip()?,
        Sqrt => y()?.recip()?.mul_scalar(0.5)?,
        Rsqrt => y()?.pow_scalar(3.0)?.mul_scalar(-0.5)?,
        Cbrt => y()?.square()?.mul_scalar(3.0)?.recip()?,
        Square => x.mul_scalar(2.0)?,
        Reciprocal => y()?.square()?.neg()?,
        Sin => x.cos()?,
        Cos => x.sin()?.neg()?,
        Tan => y()?.square()?.add_scalar(1.0)?,
        Asin => one_minus_square()?.rsqrt()?,
        Acos => one_minus_square()?.rsqrt()?.neg()?,
        Atan => one_plus_square()?.recip()?,
        Sinh => x.cosh()?,
        Cosh => x.sinh()?,
        Asinh => one_plus_square()?.rsqrt()?,
        Acosh => x.square()?.sub_scalar(1.0)?.rsqrt()?,
        Atanh => one_minus_square()?.recip()?,
        Erf => gauss()?,
        Erfc => gauss()?.neg()?,
        Erfinv => y()?.square()?.exp()?.mul_scalar(PI.sqrt() / 2.0)?,
        Erfcx => y()?.mul(x)?.mul_scalar(2.0)?.sub_scalar(2.0 / PI.sqrt())?,
        LogNdtr => x.mul_scalar(-FRAC_1_SQRT_2)?.erfcx()?.recip()?.mul_scalar((2.0 / PI).sqrt())?,
        Ndtri => y()?.square()?.mul_scalar(0.5)?.exp()?.mul_scalar((2.0 * PI).sqrt())?,
        BesselJ0 => x.bessel_j1()?.neg()?,
        BesselJ1 => x.bessel_j0()?.sub(&y()?.div(x)?)?,
        BesselY0 => x.bessel_y1()?.neg()?,
        BesselY1 => x.bessel_y0()?.sub(&y()?.div(x)?)?,
        K0 => x.modified_bessel_k1()?.neg()?,
        K1 => x.modified_bessel_k0()?.add(&y()?.div(x)?)?.neg()?,
        K0e => y()?.sub(&x.scaled_modified_bessel_k1()?)?,
        K1e => y()?.sub(&y()?.div(x)?)?.sub(&x.scaled_modified_bessel_k0()?)?,
        Lgamma => x.digamma()?,
        Digamma => x.polygamma(1)?,
        Polygamma { n } => x.polygamma(n.saturating_add(1))?,
        PowScalar { c: 0.0 } => return dy.mul_scalar(0.0).map(Some),
        PowScalar { c } => x.pow_scalar(c - 1.0)?.mul_scalar(c)?,
        Clamp { lo, hi } => inside(x, lo, hi)?,
        NanToNum { .. } => indicator(&x.detach().is_finite()?, x)?,
        _ => return Ok(None),
    };
    dy.mul(&slope).map(Some)
}

/// 1 strictly between bounds, 0 elsewhere.
pub(crate) fn inside(x: &Tensor, lo: Option<f64>, hi: Option<f64>) -> Result<Tensor> {
    let x = x.detach();
    let mut slope = x.ones_like()?;
    if let Some(lo) = lo {
        slope = slope.mul(&indicator(&x.gt_scalar(lo)?, &x)?)?;
    }
    if let Some(hi) = hi {
        slope = slope.mul(&indicator(&x.lt_scalar(hi)?, &x)?)?;
    }
    Ok(slope)
}

/// The larger or smaller of two as parts of each: 1, 0, or a half at a tie.
fn share(a: &Tensor, b: &Tensor, larger: bool) -> Result<Tensor> {
    let (a, b) = (a.detach(), b.detach());
    let wins = if larger { a.gt(&b)? } else { a.lt(&b)? };
    let tie = indicator(&a.eq(&b)?, &a)?.mul_scalar(0.5)?;
    indicator(&wins, &a)?.add(&tie)
}

/// The gradients of op(a, b) before they are summed to the operands' shapes, or nothing where they have no differentiable form.
pub(crate) fn binary(op: Binary, dy: &Tensor, a: &Tensor, b: &Tensor) -> Result<Option<[Option<Tensor>; 2]>> {
    use Binary::*;
    let both = |da: Tensor, db: Tensor| Ok(Some([Some(da), Some(db)]));
    match op {
        Add { alpha } => both(dy.clone(), dy.mul_scalar(alpha)?),
        Sub => both(dy.clone(), dy.neg()?),
        AddScaled { ca, cb } => both(dy.mul_scalar(ca)?, dy.mul_scalar(cb)?),
        Lerp { t } => both(dy.mul_scalar(1.0 - t)?, dy.mul_scalar(t)?),
        Mul => both(dy.mul(b)?, dy.mul(a)?),
        Div => {
            let da = dy.div(b)?;
            let db = da.mul(&a.div(b)?)?.neg()?;
            both(da, db)
        }
        DivFloor | DivTrunc => both(dy.mul_scalar(0.0)?, dy.mul_scalar(0.0)?),
        Pow => {
            // The logarithm of a negative base would be NaN, of 0 infinite times 0.
            let positive = a.detach().gt_scalar(0.0)?;
            let log = a.where_(&positive, &a.ones_like()?)?.ln()?;
            let slope = a.pow(b)?.mul(&log)?;
            both(dy.mul(b)?.mul(&a.pow(&b.sub_scalar(1.0)?)?)?, dy.mul(&slope)?)
        }
        Maximum | Minimum => {
            let s = share(a, b, matches!(op, Maximum))?;
            both(dy.mul(&s)?, dy.mul(&s.rsub_scalar(1.0)?)?)
        }
        ClampMin | ClampMax => {
            let (da, db) = (a.detach(), b.detach());
            let (first, second) = match op {
                ClampMin => (da.gt(&db)?, da.lt(&db)?),
                _ => (da.lt(&db)?, da.gt(&db)?),
            };
            both(dy.mul(&indicator(&first, a)?)?, dy.mul(&indicator(&second, a)?)?)
        }
        Atan2 => {
            let r = dy.div(&a.square()?.add(&b.square()?)?)?;
            both(r.mul(b)?, r.mul(a)?.neg()?)
        }
        Hypot => {
            let r = dy.div(&a.hypot(b)?)?;
            both(r.mul(a)?, r.mul(b)?)
        }
        Logaddexp => both(dy.mul(&a.sub(b)?.sigmoid()?)?, dy.mul(&b.sub(a)?.sigmoid()?)?),
        Xlogy => both(dy.mul(&b.ln()?)?, dy.mul(&a.div(b)?)?),
        AddRelu => {
            let d = dy.mul(&indicator(&a.detach().add(&b.detach())?.gt_scalar(0.0)?, a)?)?;
            both(d.clone(), d)
        }
        AddSigmoid => {
            let s = a.add(b)?.sigmoid()?;
            let d = dy.mul(&s)?.mul(&s.rsub_scalar(1.0)?)?;
            both(d.clone(), d)
        }
        Igamma | Igammac => {
            let log = b.ln()?.mul(&a.sub_scalar(1.0)?)?.sub(b)?.sub(&a.lgamma()?)?;
            let db = dy.mul(&log.exp()?)?;
            Ok(Some([None, Some(if matches!(op, Igamma) { db } else { db.neg()? })]))
        }
        _ => Ok(None),
    }
}

/// As [`binary`] for three operands.
pub(crate) fn ternary(op: Ternary, dy: &Tensor, x: [&Tensor; 3]) -> Result<[Option<Tensor>; 3]> {
    let [a, b, c] = x;
    Ok(match op {
        Ternary::Where => {
            let zero = dy.mul_scalar(0.0)?;
            [None, Some(dy.where_(a, &zero)?), Some(zero.where_(a, dy)?)]
        }
        Ternary::Lerp => {
            let db = dy.mul(c)?;
            [Some(dy.sub(&db)?), Some(db), Some(dy.mul(&b.sub(a)?)?)]
        }
        Ternary::Fma => [Some(dy.mul(b)?), Some(dy.mul(a)?), Some(dy.clone())],
        Ternary::Addcmul { v } => {
            let scaled = dy.mul_scalar(v)?;
            [Some(dy.clone()), Some(scaled.mul(c)?), Some(scaled.mul(b)?)]
        }
        Ternary::Addcdiv { v } => {
            let db = dy.mul_scalar(v)?.div(c)?;
            let dc = db.mul(&b.div(c)?)?.neg()?;
            [Some(dy.clone()), Some(db), Some(dc)]
        }
        _ => [None, None, None],
    })
}
