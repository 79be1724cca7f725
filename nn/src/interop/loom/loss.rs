//! Loom's losses.

use trefoil::ops::loss::Reduction;

use crate::core::error::{Result, invalid};
use crate::core::tensor::Tensor;
use crate::train::losses::Criterion;

/// Loom's `cross_entropy`: -sum t ln p / N over probabilities p and targets t of one shape, N elements in all (not samples). p is limited to
/// [1e-7, 1 - 1e-7]; the gradient is -t / (p N) with the limited p, where t > 0.
///
/// Behind a `softmax` layer only. [`CrossEntropyLoss`](crate::CrossEntropyLoss) on the logits is more accurate and divides by the batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LoomCrossEntropy;

impl LoomCrossEntropy {
    /// The loss, a scalar. Errors: `Invalid` for shapes that differ.
    pub fn forward(&self, output: &Tensor, target: &Tensor) -> Result<Tensor> {
        if output.shape() != target.shape() {
            let (want, got) = (format!("shape {:?}", output.shape()), format!("{:?}", target.shape()));
            return Err(invalid("LoomCrossEntropy", "target", want, got));
        }
        let limited = output.detach().clamp(Some(1e-7), Some(1.0 - 1e-7))?;
        // The limited value with the gradient of the unlimited one.
        let p = output.add(&limited.sub(&output.detach())?)?;
        let n = output.numel().max(1) as f64;
        target.detach().relu()?.mul(&p.ln()?)?.sum()?.mul_scalar(-1.0 / n)
    }
}

impl Criterion for LoomCrossEntropy {
    fn loss(&self, output: &Tensor, target: &Tensor) -> Result<Tensor> {
        self.forward(output, target)
    }
    fn reduction(&self) -> Reduction {
        Reduction::Mean
    }
}
