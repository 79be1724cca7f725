//! Losses of generative adversarial networks.

use trefoil::ops::loss::{Adversary, Reduction, RowLoss};

use super::kernel::row;
use super::losses;
use crate::core::error::Result;
use crate::core::tensor::Tensor;

losses! {
    /// Losses of generative adversarial networks.
    AdversarialLoss {
        /// How items are combined.
        reduction: Reduction = Reduction::Mean,
        /// Scoring.
        mode: Adversary = Adversary::Vanilla,
    }
    /// The generator's loss of the discriminator's scores `fake*`, or, with scores `real*` of that shape, the discriminator's.
    (fake: &Tensor, real: Option<&Tensor>) |s| {
        row("adversarial_loss", RowLoss::Adversarial { mode: s.mode }, s.reduction, [Some(fake), real], None, None)
    };
}
