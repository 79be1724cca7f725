//! Elementwise functions whose result is decided by the storage type.

use half::{bf16, f16};
use trefoil::DType;

use super::{Answer, Question, broadcast};
use crate::suite::HostTensor;

/// Floats round to nearest even, float to integer truncates and saturates with NaN giving 0, integers wrap.
pub(crate) fn cast(q: &Question<'_>) -> Result<Vec<Answer>, String> {
    let (x, to) = (q.x("x")?, q.s("to")?);
    let to = DType::from_name(to).ok_or_else(|| format!("dtype {to} is unknown"))?;
    if to.is_float() {
        return Ok(vec![Answer::exact("y", &x.shape, &x.values)]);
    }
    // The sampler draws floats: what is beyond the integer's range saturates, and `as` does that.
    let limits = match to {
        DType::U8 => (0, 255),
        DType::I32 => (i64::from(i32::MIN), i64::from(i32::MAX)),
        _ => (i64::MIN, i64::MAX),
    };
    let whole: Vec<i64> = x.values.iter().map(|v| (*v as i64).clamp(limits.0, limits.1)).collect();
    Ok(vec![Answer::integers("y", to, &x.shape, &whole)])
}

/// NaN and infinities replaced; without a replacement an infinity becomes the largest finite number of its sign.
pub(crate) fn nan_to_num(q: &Question<'_>) -> Result<Vec<Answer>, String> {
    let x = q.x("x")?;
    let largest = match q.dtype() {
        DType::F16 => f16::MAX.to_f64(),
        DType::Bf16 => bf16::MAX.to_f64(),
        _ => f64::from(f32::MAX),
    };
    let nan = q.f("nan")?;
    let (up, down) = (q.opt_f("posinf")?.unwrap_or(largest), q.opt_f("neginf")?.unwrap_or(-largest));
    let replace = |&v: &f64| match v {
        v if v.is_nan() => nan,
        v if v == f64::INFINITY => up,
        v if v == f64::NEG_INFINITY => down,
        v => v,
    };
    Ok(vec![Answer::exact("y", &x.shape, &x.values.iter().map(replace).collect::<Vec<_>>())])
}

/// The number of the storage type that follows a towards b, found on the integers that order its bit patterns.
pub(crate) fn nextafter(q: &Question<'_>) -> Result<Vec<Answer>, String> {
    let dtype = q.dtype();
    let half = dtype.is_half();
    let sign = if half { 0x8000u64 } else { 0x8000_0000 };
    let value = |ordered: i64| -> f64 {
        let pattern = if ordered < 0 { sign | ordered.unsigned_abs() } else { ordered as u64 };
        let bytes = pattern.to_le_bytes()[..dtype.size()].to_vec();
        HostTensor { dtype, shape: vec![1], bytes }.to_f64()[0]
    };
    let ordered = |v: f64| -> i64 {
        let mut bytes = HostTensor::from_f64(dtype, &[1], &[v]).bytes;
        bytes.resize(8, 0);
        let pattern = u64::from_le_bytes(bytes.try_into().unwrap_or_default());
        let size = (pattern & (sign - 1)) as i64;
        if pattern & sign != 0 { -size } else { size }
    };
    let next = |a: f64, b: f64| {
        if a.is_nan() || b.is_nan() {
            return f64::NAN;
        }
        if a == b {
            return b;
        }
        value(ordered(a) + if b > a { 1 } else { -1 })
    };
    let (shape, y) = broadcast(&q.x("a")?, &q.x("b")?, next)?;
    Ok(vec![Answer::exact("y", &shape, &y)])
}

/// A bit operation by name. Integers wrap; a shift takes its count as it is.
pub(crate) fn bits(q: &Question<'_>, f: fn(i64, i64) -> i64) -> Result<Vec<Answer>, String> {
    let a = q.opt("a").map_or_else(|| q.x("x"), Ok)?;
    let b = q.opt("b");
    let apply = |a: f64, b: f64| {
        let wide = f(a as i64, b as i64);
        match q.dtype() {
            DType::U8 => f64::from(wide as u8),
            DType::I32 => f64::from(wide as i32),
            _ => wide as f64,
        }
    };
    let (shape, y) = match b {
        Some(b) => broadcast(&a, &b, apply)?,
        None => (a.shape.clone(), a.values.iter().map(|&v| apply(v, 0.0)).collect()),
    };
    let y: Vec<i64> = y.iter().map(|&v| v as i64).collect();
    Ok(vec![Answer::integers("y", q.dtype(), &shape, &y)])
}

/// A truth table over u8 masks.
pub(crate) fn logic(q: &Question<'_>, f: fn(bool, bool) -> bool) -> Result<Vec<Answer>, String> {
    let a = q.opt("a").map_or_else(|| q.x("x"), Ok)?;
    let apply = |a: f64, b: f64| f64::from(u8::from(f(a != 0.0, b != 0.0)));
    let (shape, y) = match q.opt("b") {
        Some(b) => broadcast(&a, &b, apply)?,
        None => (a.shape.clone(), a.values.iter().map(|&v| apply(v, 0.0)).collect()),
    };
    let y: Vec<i64> = y.iter().map(|&v| v as i64).collect();
    Ok(vec![Answer::integers("y", DType::U8, &shape, &y)])
}
