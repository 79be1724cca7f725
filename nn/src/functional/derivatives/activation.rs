//! Activations as compositions.

use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_PI};

use trefoil::ops::activation::Activation;

use super::elementwise::indicator;
use crate::core::error::Result;
use crate::core::tensor::Tensor;

/// Scale and slope of selu (Klambauer et al., 2017).
const SELU: [f64; 2] = [1.050_700_987_355_480_5, 1.673_263_242_354_377_2];

/// `above` where x > 0, `below` elsewhere. Neither may be infinite where the other is chosen, or a gradient of 0 becomes NaN.
fn by_sign(x: &Tensor, above: &Tensor, below: &Tensor) -> Result<Tensor> {
    above.where_(&x.detach().gt_scalar(0.0)?, below)
}

fn negative(x: &Tensor) -> Result<Tensor> {
    x.clamp(None, Some(0.0))
}

/// act(x), made of operations that can be differentiated as often as wanted.
pub(crate) fn composed(act: Activation, x: &Tensor) -> Result<Tensor> {
    use Activation::*;
    match act {
        Identity => Ok(x.clone()),
        Relu => x.mul(&indicator(&x.detach().gt_scalar(0.0)?, x)?),
        LeakyRelu { slope } => by_sign(x, x, &x.mul_scalar(slope)?),
        // The kernel's value: this gradient is made of the output.
        Sigmoid => x.sigmoid(),
        Tanh => x.tanh(),
        Gelu => x.mul_scalar(FRAC_1_SQRT_2)?.erf()?.add_scalar(1.0)?.mul_scalar(0.5)?.mul(x),
        GeluTanh => {
            let cubic = x.pow_scalar(3.0)?.mul_scalar(0.044715)?.add(x)?;
            cubic.mul_scalar(FRAC_2_PI.sqrt())?.tanh()?.add_scalar(1.0)?.mul_scalar(0.5)?.mul(x)
        }
        Swish { beta } => x.mul(&x.mul_scalar(beta)?.sigmoid()?),
        Elu { alpha } => by_sign(x, x, &negative(x)?.expm1()?.mul_scalar(alpha)?),
        Selu => {
            let below = negative(x)?.expm1()?.mul_scalar(SELU[1])?;
            by_sign(x, x, &below)?.mul_scalar(SELU[0])
        }
        Softplus { beta, threshold } => softplus(x, beta, threshold),
        Mish => x.mul(&softplus(x, 1.0, f64::INFINITY)?.tanh()?),
        Hardsigmoid => x.add_scalar(3.0)?.clamp(Some(0.0), Some(6.0))?.mul_scalar(1.0 / 6.0),
        Hardswish => x.mul(&x.add_scalar(3.0)?.clamp(Some(0.0), Some(6.0))?.mul_scalar(1.0 / 6.0)?),
        Hardtanh { lo, hi } => x.clamp(Some(lo), Some(hi)),
        Relu6 => x.clamp(Some(0.0), Some(6.0)),
        _ => x.activation(act),
    }
}

/// ln(1 + e^(beta x)) / beta, x where beta x is above the threshold.
pub(crate) fn softplus(x: &Tensor, beta: f64, threshold: f64) -> Result<Tensor> {
    let scaled = x.mul_scalar(beta)?;
    // logaddexp has the derivative sigmoid, to every order.
    let soft = scaled.logaddexp(&scaled.detach().zeros_like()?)?.mul_scalar(1.0 / beta)?;
    match threshold.is_finite() {
        true => x.where_(&scaled.detach().gt_scalar(threshold)?, &soft),
        false => Ok(soft),
    }
}
