//! Probabilities of the outcomes of a measurement.

use crate::core::error::{Result, invalid};
use crate::core::tensor::Tensor;
use crate::layers::spatial::positive;
use crate::module::Layer;

const OP: &str = "Measurement";

/// Probabilities of the basis states of a quantum state by Born's rule: |psi_i|^2 divided by their sum. A row of zeros gives zeros, with
/// gradient 0. Amplitudes are real, `[.., n]`; complex in two inputs of that shape; or complex in one of shape `[.., n, 2]`, see
/// [`complex`](Measurement::complex). The result is `[.., n]`.
#[derive(Debug, Clone, Copy)]
pub struct Measurement {
    size: usize,
    complex: bool,
}

impl Measurement {
    /// Of states with `size` amplitudes. Errors: 0.
    pub fn new(size: usize) -> Result<Self> {
        positive(OP, "size", &[size])?;
        Ok(Measurement { size, complex: false })
    }

    setters! {
        /// Whether a single input has real and imaginary parts on a last axis of 2 (default false: it is real).
        complex: bool => complex;
    }

    /// The probabilities by real parts `[.., n]` and, if there are any, imaginary parts of the same shape. Errors: other shapes.
    pub fn measure(&self, re: &Tensor, im: Option<&Tensor>) -> Result<Tensor> {
        if re.shape().last() != Some(&self.size) {
            let expected = format!("shape [.., {}]", self.size);
            return Err(invalid(OP, "re", expected, format!("shape {:?}", re.shape())));
        }
        let mut weights = re.square()?;
        if let Some(im) = im {
            if im.shape() != re.shape() {
                let expected = format!("the shape {:?} of the real parts", re.shape());
                return Err(invalid(OP, "im", expected, format!("shape {:?}", im.shape())));
            }
            weights = weights.add(&im.square()?)?;
        }
        normalized(&weights)
    }
}

/// Weights divided by their sum along the last axis, where it is not 0.
fn normalized(weights: &Tensor) -> Result<Tensor> {
    let sum = weights.sum_axes(&[-1], true)?;
    weights.div(&sum.masked_fill(&sum.detach().eq_scalar(0.0)?, 1.0)?)
}

impl Layer for Measurement {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        if !self.complex {
            return self.measure(x, None);
        }
        match x.shape() {
            [.., n, 2] if *n == self.size => normalized(&x.square()?.sum_axes(&[-1], false)?),
            other => {
                let expected = format!("shape [.., {}, 2]", self.size);
                Err(invalid(OP, "x", expected, format!("shape {other:?}")))
            }
        }
    }

    /// `[x]`, or `[re, im]` of one shape.
    fn forward_all(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        match inputs {
            [x] => Ok(vec![self.forward(x)?]),
            [re, im] => Ok(vec![self.measure(re, Some(im))?]),
            _ => Err(invalid(OP, "inputs", "1 or 2 tensors", format!("{} tensors", inputs.len()))),
        }
    }
}
