//! Comparison of a result with what is expected.

use trefoil::DType;

use crate::suite::{HostTensor, Tol};

/// The element that disagrees most.
#[derive(Debug, Clone)]
pub struct Mismatch {
    /// Index in row-major order, with the number of elements that disagree.
    pub at: usize,
    /// How many elements disagree.
    pub count: usize,
    /// Value found.
    pub got: f64,
    /// Value expected.
    pub want: f64,
    /// Largest error allowed there.
    pub allowed: f64,
}

impl std::fmt::Display for Mismatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Mismatch { at, count, got, want, allowed } = self;
        write!(
            f,
            "{count} elements differ; worst [{at}]: got {got:e}, want {want:e}, error {:e}, allowed {allowed:e}",
            (got - want).abs()
        )
    }
}

/// Whether `got` equals `want` for the purpose of an exact comparison or of the position of NaN and infinities.
fn same(got: f64, want: f64) -> bool {
    got == want || (got.is_nan() && want.is_nan())
}

/// Compares element by element; `allowed(i, want)` is the largest error, `None` asks for equality.
pub fn elements(
    got: &[f64],
    want: &[f64],
    allowed: impl Fn(usize, f64) -> Option<f64>,
) -> Result<(), Mismatch> {
    let mut worst: Option<(f64, Mismatch)> = None;
    let mut count = 0;
    for (i, (&g, &w)) in got.iter().zip(want).enumerate() {
        let limit = allowed(i, w);
        let fine = match limit {
            Some(a) if g.is_finite() && w.is_finite() => (g - w).abs() <= a,
            _ => same(g, w),
        };
        if fine {
            continue;
        }
        count += 1;
        let a = limit.unwrap_or(0.0);
        let ratio = if g.is_finite() && w.is_finite() {
            (g - w).abs() / a.max(f64::MIN_POSITIVE)
        } else {
            f64::INFINITY
        };
        if worst.as_ref().is_none_or(|(r, _)| ratio > *r) {
            worst = Some((ratio, Mismatch { at: i, count: 0, got: g, want: w, allowed: a }));
        }
    }
    match worst {
        Some((_, m)) => Err(Mismatch { count, ..m }),
        None => Ok(()),
    }
}

/// Compares a result with the expectation of a golden case. Floating results of any storage type are held against f64; an integer
/// expectation asks for the same integer type, or for whole numbers in the case's floating type `data`.
pub fn golden(got: &HostTensor, want: &HostTensor, tol: Tol, data: DType) -> Result<(), String> {
    if got.shape != want.shape {
        return Err(format!("shape: got {:?}, want {:?}", got.shape, want.shape));
    }
    let dtypes_agree = if want.dtype.is_float() {
        got.dtype.is_float()
    } else {
        got.dtype == want.dtype || (got.dtype.is_float() && got.dtype == data)
    };
    if !dtypes_agree {
        return Err(format!("dtype: got {}, want {}", got.dtype, want.dtype));
    }
    if got.dtype == want.dtype && !want.dtype.is_float() {
        let (g, w) = (got.to_i64(), want.to_i64());
        return match g.iter().zip(&w).position(|(a, b)| a != b) {
            None => Ok(()),
            Some(i) => Err(format!("worst [{i}]: got {}, want {}, exact", g[i], w[i])),
        };
    }
    // An exact expectation in f64 is met by the value rounded to the storage type.
    let want = match tol {
        Tol::Exact => want.to_dtype(got.dtype).to_f64(),
        Tol::Close { .. } => want.to_f64(),
    };
    let allowed = |_, w: f64| match tol {
        Tol::Exact => None,
        Tol::Close { rtol, atol } => Some(atol + rtol * w.abs()),
    };
    elements(&got.to_f64(), &want, allowed).map_err(|m| m.to_string())
}

/// Sum of (got - want)^2 and sum of want^2 over the elements that are finite in both.
pub fn square_error(got: &[f64], want: &[f64]) -> (f64, f64) {
    let finite = got.iter().zip(want).filter(|(g, w)| g.is_finite() && w.is_finite());
    finite.fold((0.0, 0.0), |(err, norm), (&g, &w)| (err + (g - w) * (g - w), norm + w * w))
}

/// Distance between neighbouring values of `dtype` around `x`.
pub fn ulp(dtype: DType, x: f64) -> f64 {
    let (mantissa, min_exp) = match dtype {
        DType::F16 => (10, -14),
        DType::Bf16 => (7, -126),
        DType::F32 => (23, -126),
        _ => (52, -1022),
    };
    let e = if x == 0.0 || !x.is_finite() { min_exp } else { (x.abs().log2().floor() as i32).max(min_exp) };
    2f64.powi(e - mantissa)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn f32s(v: &[f64]) -> HostTensor {
        HostTensor::from_f64(DType::F32, &[v.len()], v)
    }

    #[test]
    fn tolerance_rule() {
        let want = HostTensor::from_f64(DType::F64, &[3], &[1.0, f64::NAN, f64::INFINITY]);
        let tol = Tol::Close { rtol: 0.1, atol: 0.0 };
        assert!(golden(&f32s(&[1.05, f64::NAN, f64::INFINITY]), &want, tol, DType::F32).is_ok());
        assert!(golden(&f32s(&[1.2, f64::NAN, f64::INFINITY]), &want, tol, DType::F32).is_err());
        assert!(golden(&f32s(&[1.0, 0.0, f64::INFINITY]), &want, tol, DType::F32).is_err());
        assert!(golden(&f32s(&[1.0, f64::NAN, f64::NEG_INFINITY]), &want, tol, DType::F32).is_err());
        assert!(golden(&f32s(&[f64::NAN, f64::NAN, f64::INFINITY]), &want, tol, DType::F32).is_err());
        assert!(golden(&f32s(&[-0.0]), &f32s(&[0.0]), Tol::Exact, DType::F32).is_ok());
    }

    #[test]
    fn shapes_and_dtypes_must_match() {
        let want = HostTensor::from_i64(DType::I64, &[2], &[1, i64::MAX]);
        let off = HostTensor::from_i64(DType::I64, &[2], &[1, i64::MAX - 1]);
        assert!(golden(&want, &want, Tol::Exact, DType::F32).is_ok());
        assert!(golden(&off, &want, Tol::Exact, DType::F32).is_err());
        assert!(
            golden(&HostTensor::from_i64(DType::I32, &[2], &[1, 2]), &want, Tol::Exact, DType::F32).is_err()
        );
        assert!(golden(&f32s(&[1.0]), &f32s(&[1.0, 2.0]), Tol::Exact, DType::F32).is_err());
    }

    #[test]
    fn worst_element_is_reported() {
        let m = elements(&[1.0, 2.0, 9.0], &[1.0, 2.5, 3.0], |_, _| Some(0.1)).unwrap_err();
        assert_eq!((m.at, m.count), (2, 2));
        assert_eq!(ulp(DType::F16, 1.0), 2f64.powi(-10));
        assert_eq!(square_error(&[1.0, 2.0, f64::NAN], &[1.0, 3.0, 0.0]), (1.0, 10.0));
    }
}
