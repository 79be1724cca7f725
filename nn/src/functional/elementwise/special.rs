//! Functions made of elementwise operations, and comparisons of whole tensors.

use std::f64::consts::{FRAC_1_SQRT_2, PI};

use trefoil::DType;

use super::arithmetic::broadcast;
use crate::core::error::{Result, invalid};
use crate::core::tensor::{Tensor, same_device};

/// Error unless two tensors hold integers of one dtype.
fn integers(op: &'static str, a: &Tensor, b: &Tensor) -> Result<()> {
    same_device(op, a, b)?;
    if a.dtype().is_float() || a.dtype() != b.dtype() {
        let got = format!("{} and {}", a.dtype(), b.dtype());
        return Err(invalid(op, "b", "integers of one dtype", got));
    }
    Ok(())
}

/// Most steps of Euclid's algorithm for two numbers of a dtype (Lamé), and one that may exchange them.
fn euclid_steps(dtype: DType) -> usize {
    match dtype {
        DType::U8 => 13,
        DType::I32 => 46,
        _ => 92,
    }
}

impl Tensor {
    /// ln(x / (1 - x)), the inverse of the sigmoid; with `eps` of x limited to [eps, 1 - eps]. Source `torch.logit`.
    pub fn logit(&self, eps: Option<f64>) -> Result<Tensor> {
        let x = match eps {
            Some(e) => self.clamp(Some(e), Some(1.0 - e))?,
            None => self.clone(),
        };
        x.div(&x.rsub_scalar(1.0)?)?.ln()
    }

    /// sin(x) / x, 1 at 0: the spherical Bessel function of the first kind, order 0. Source `torch.special.spherical_bessel_j0`.
    pub fn spherical_bessel_j0(&self) -> Result<Tensor> {
        self.mul_scalar(1.0 / PI)?.sinc()
    }

    /// 0 where this tensor is negative or NaN, 1 where it is positive, `values` where it is 0; both broadcast. No gradient. Source
    /// `torch.heaviside`.
    pub fn heaviside(&self, values: &Tensor) -> Result<Tensor> {
        let x = self.detach();
        let step = x.gt_scalar(0.0)?.to_dtype(x.dtype())?;
        values.detach().where_(&x.eq_scalar(0.0)?, &step)
    }

    /// u8 mask: |a - b| <= atol + rtol |b|, or both equal; with `equal_nan` NaN equals NaN. Both broadcast; integers are compared in f32.
    /// PyTorch's numbers are rtol 1e-5 and atol 1e-8. Source `torch.isclose`. Errors: numbers that are negative, dtypes that differ.
    #[doc(alias = "isclose")]
    pub fn is_close(&self, b: &Tensor, rtol: f64, atol: f64, equal_nan: bool) -> Result<Tensor> {
        for (arg, n) in [("rtol", rtol), ("atol", atol)] {
            if n.is_nan() || n < 0.0 {
                return Err(invalid("is_close", arg, "a number of at least 0", format!("{n}")));
            }
        }
        let float = if self.dtype().is_float() { self.dtype() } else { DType::F32 };
        let mut close = self.detach().eq(&b.detach())?;
        let (a, b) = (self.detach().to_dtype(float)?, b.detach().to_dtype(float)?);
        if equal_nan {
            close = close.logical_or(&a.is_nan()?.logical_and(&b.is_nan()?)?)?;
        }
        let (distance, allowed) = (a.sub(&b)?.abs()?, b.mul_scalar(rtol)?.abs()?.add_scalar(atol)?);
        close.logical_or(&distance.is_finite()?.logical_and(&distance.le(&allowed)?)?)
    }

    /// Whether all elements are [close](Tensor::is_close). Waits for the device. Source `torch.allclose`.
    #[doc(alias = "allclose")]
    pub fn all_close(&self, b: &Tensor, rtol: f64, atol: f64, equal_nan: bool) -> Result<bool> {
        self.is_close(b, rtol, atol, equal_nan)?.all_true()
    }

    /// Whether two tensors have one shape and the same elements; NaN equals nothing. Waits for the device. Source `torch.equal`. Errors: dtypes
    /// that differ.
    pub fn equal(&self, b: &Tensor) -> Result<bool> {
        same_device("equal", self, b)?;
        Ok(self.shape() == b.shape() && self.detach().eq(&b.detach())?.all_true()?)
    }

    /// Whether no element of a mask is 0.
    fn all_true(&self) -> Result<bool> {
        let all = self.all(&(0..self.rank() as isize).collect::<Vec<_>>(), false)?;
        Ok(all.item::<u8>()? != 0)
    }

    /// u8 mask: the sign bit is set, also that of -0. Source `torch.signbit`.
    #[doc(alias = "signbit")]
    pub fn sign_bit(&self) -> Result<Tensor> {
        let x = self.detach();
        if !x.dtype().is_float() {
            return x.lt_scalar(0.0);
        }
        Tensor::ones(x.device(), x.dtype(), &[])?.copysign(&x)?.lt_scalar(0.0)
    }

    /// Greatest common divisors of integers, broadcast; that of 0 and 0 is 0. By as many steps of Euclid's algorithm as the largest numbers of
    /// the dtype take, so that nothing waits for the device. Source `torch.gcd`. Errors: floats, dtypes that differ.
    pub fn gcd(&self, b: &Tensor) -> Result<Tensor> {
        integers("gcd", self, b)?;
        let shape = broadcast("gcd", self.shape(), b.shape())?;
        let (mut a, mut b) = (self.abs()?.expand(&shape)?, b.abs()?.expand(&shape)?);
        for _ in 0..euclid_steps(a.dtype()) {
            let done = b.eq_scalar(0.0)?;
            let divisor = b.masked_fill(&done, 1.0)?;
            let rest = a.sub(&a.div_trunc(&divisor)?.mul(&divisor)?)?;
            a = a.where_(&done, &b)?;
            b = rest;
        }
        Ok(a)
    }

    /// Least common multiples of integers, broadcast; 0 where one of them is 0. Source `torch.lcm`. Errors: floats, dtypes that differ.
    pub fn lcm(&self, b: &Tensor) -> Result<Tensor> {
        let gcd = self.gcd(b)?;
        let divisor = gcd.masked_fill(&gcd.eq_scalar(0.0)?, 1.0)?;
        self.div_trunc(&divisor)?.mul(b)?.abs()
    }

    /// ln of the multivariate gamma function of dimension `p`. Source `torch.mvlgamma`. Errors: a dimension of 0.
    #[doc(alias = "multigammaln")]
    pub fn mvlgamma(&self, p: usize) -> Result<Tensor> {
        if p == 0 {
            return Err(invalid("mvlgamma", "p", "a dimension of at least 1", "0"));
        }
        let mut y = self.lgamma()?;
        for i in 1..p {
            y = y.add(&self.sub_scalar(i as f64 / 2.0)?.lgamma()?)?;
        }
        y.add_scalar((p * (p - 1)) as f64 / 4.0 * PI.ln())
    }

    /// The distribution function of the standard normal distribution. Source `torch.special.ndtr`.
    pub fn ndtr(&self) -> Result<Tensor> {
        self.mul_scalar(-FRAC_1_SQRT_2)?.erfc()?.mul_scalar(0.5)
    }

    /// -x ln x, the entropy of a probability; 0 at 0 and negative infinity below. Source `torch.special.entr`.
    pub fn entr(&self) -> Result<Tensor> {
        self.xlogy(self)?.neg()?.masked_fill(&self.detach().lt_scalar(0.0)?, f64::NEG_INFINITY)
    }

    /// Degrees as radians. Source `torch.deg2rad`.
    pub fn deg2rad(&self) -> Result<Tensor> {
        self.mul_scalar(PI / 180.0)
    }

    /// Radians as degrees. Source `torch.rad2deg`.
    pub fn rad2deg(&self) -> Result<Tensor> {
        self.mul_scalar(180.0 / PI)
    }
}
