//! Activations made of elementwise operations.

use trefoil::ops::random::Rng;

use crate::core::error::{Result, invalid};
use crate::core::tensor::Tensor;

/// Error for a number that has to be at least 0.
fn not_negative(op: &'static str, arg: &'static str, n: f64) -> Result<()> {
    match n >= 0.0 {
        true => Ok(()),
        false => Err(invalid(op, arg, "a number of at least 0", format!("{n}"))),
    }
}

impl Tensor {
    /// x where positive, alpha (e^(x / alpha) - 1) elsewhere, which has a continuous slope. Source `torch.nn.functional.celu` (alpha 1). Errors:
    /// an alpha of 0.
    pub fn celu(&self, alpha: f64) -> Result<Tensor> {
        if alpha == 0.0 {
            return Err(invalid("celu", "alpha", "a number other than 0", "0"));
        }
        let positive = self.detach().gt_scalar(0.0)?;
        // The exponential of large numbers would be infinite, and so would its slope.
        let below = self.masked_fill(&positive, 0.0)?.mul_scalar(1.0 / alpha)?.expm1()?.mul_scalar(alpha)?;
        self.where_(&positive, &below)
    }

    /// x / (1 + |x|). Source `torch.nn.functional.softsign`.
    pub fn softsign(&self) -> Result<Tensor> {
        self.div(&self.abs()?.add_scalar(1.0)?)
    }

    /// x moved towards 0 by lambda, 0 within it. Source `torch.nn.functional.softshrink` (lambda 0.5). Errors: a negative lambda.
    pub fn softshrink(&self, lambda: f64) -> Result<Tensor> {
        not_negative("softshrink", "lambda", lambda)?;
        let x = self.detach();
        let within = x.abs()?.le_scalar(lambda)?;
        let moved = self.sub(&x.sign()?.mul_scalar(lambda)?)?;
        moved.masked_fill(&within, 0.0)
    }

    /// x where |x| > lambda, 0 elsewhere. Source `torch.nn.functional.hardshrink` (lambda 0.5).
    pub fn hardshrink(&self, lambda: f64) -> Result<Tensor> {
        self.masked_fill(&self.detach().abs()?.le_scalar(lambda)?, 0.0)
    }

    /// x - tanh(x). Source `torch.nn.functional.tanhshrink`.
    pub fn tanhshrink(&self) -> Result<Tensor> {
        self.sub(&self.tanh()?)
    }

    /// x above a threshold, `value` elsewhere. Source `torch.nn.functional.threshold`.
    pub fn threshold(&self, threshold: f64, value: f64) -> Result<Tensor> {
        self.masked_fill(&self.detach().le_scalar(threshold)?, value)
    }

    /// ln sigmoid(x). Source `torch.nn.functional.logsigmoid`.
    #[doc(alias = "logsigmoid")]
    pub fn log_sigmoid(&self) -> Result<Tensor> {
        let below = self.minimum(&Tensor::zeros(self.device(), self.dtype(), &[])?)?;
        below.sub(&self.abs()?.neg()?.exp()?.log1p()?)
    }

    /// x where positive, elsewhere x times a slope drawn from [lower, upper) for each element, or with no `rng` (in evaluation) times their
    /// mean. Source `torch.nn.functional.rrelu` (1/8 and 1/3). Errors: bounds that are not in order.
    pub fn rrelu(&self, lower: f64, upper: f64, rng: Option<Rng<'_>>) -> Result<Tensor> {
        if lower.is_nan() || upper.is_nan() || lower > upper {
            return Err(invalid("rrelu", "upper", format!("at least {lower}"), format!("{upper}")));
        }
        let Some(rng) = rng else { return self.leaky_relu((lower + upper) / 2.0) };
        let slope = Tensor::rand(self.device(), self.dtype(), self.shape(), lower, upper, rng)?;
        let below = self.detach().le_scalar(0.0)?;
        self.mul(&slope)?.where_(&below, self)
    }
}
