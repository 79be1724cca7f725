//! Losses of language models: preferences, sampled classes, logits.

use trefoil::ops::loss::{Reduction, RowLoss};

use super::kernel::row;
use super::losses;
use crate::core::error::Result;
use crate::core::tensor::Tensor;

losses! {
    /// Penalty coef*logsumexp(x)^2 on the size of logits (router and softmax z-loss).
    ZLoss {
        /// How rows are combined.
        reduction: Reduction = Reduction::Mean,
        /// Factor.
        coef: f64 = 1e-3,
    }
    /// Loss of logits `x*` `[.., C]`.
    (x: &Tensor) |s| row("z_loss", RowLoss::Z { coef: s.coef }, s.reduction, [Some(x)], None, None);

    /// Noise-contrastive estimation and negative sampling: softplus(-d0) + sum softplus(dn).
    NceLoss {
        /// How rows are combined.
        reduction: Reduction = Reduction::Mean,
    }
    /// Loss of scores of the truth `positive*` `[B]` and of noise `negative*` `[B, K]`; with the noise's log-probabilities of both (`[B]`,
    /// `[B, K]`) noise-contrastive estimation, without negative sampling.
    (positive: &Tensor, negative: &Tensor, log_noise: Option<(&Tensor, &Tensor)>) |s| {
        let noise = log_noise.map(|(a, b)| (a.detach(), b.detach()));
        let (a, b) = (noise.as_ref().map(|n| &n.0), noise.as_ref().map(|n| &n.1));
        row("nce_loss", RowLoss::Nce, s.reduction, [Some(positive), Some(negative), a, b], None, None)
    };

    /// Direct preference optimisation (Rafailov et al., 2023).
    DpoLoss {
        /// How pairs are combined.
        reduction: Reduction = Reduction::Mean,
        /// beta.
        beta: f64 = 0.1,
    }
    /// Loss of log-probabilities of preferred and rejected answers `chosen*`, `rejected*` `[B]` and the reference model's.
    (chosen: &Tensor, rejected: &Tensor, ref_chosen: &Tensor, ref_rejected: &Tensor) |s| {
        let x = [Some(chosen), Some(rejected), Some(&ref_chosen.detach()), Some(&ref_rejected.detach())];
        row("dpo_loss", RowLoss::Dpo { beta: s.beta }, s.reduction, x, None, None)
    };

    /// Kahneman-Tversky optimisation of single answers (Ethayarajh et al., 2024).
    KtoLoss {
        /// How answers are combined.
        reduction: Reduction = Reduction::Mean,
        /// beta.
        beta: f64 = 0.1,
        /// Weight of desirable answers.
        desirable: f64 = 1.0,
        /// Weight of undesirable answers.
        undesirable: f64 = 1.0,
    }
    /// Loss of log-probabilities `logp*` `[B]`, the reference model's, and labels (1 = desirable) in their dtype. `kl` `[1]` estimates the
    /// divergence from the reference, as the batch's mean of logp - ref over mismatched answers; it is taken as max(0, kl), without it as 0.
    (logp: &Tensor, reference: &Tensor, label: &Tensor, kl: Option<&Tensor>) |s| {
        let kind = RowLoss::Kto { beta: s.beta, desirable: s.desirable, undesirable: s.undesirable };
        let kl = kl.map(Tensor::detach);
        let x = [Some(logp), Some(&reference.detach()), Some(&label.detach()), kl.as_ref()];
        row("kto_loss", kind, s.reduction, x, None, None)
    };

    /// Identity preference optimisation (Azar et al., 2023).
    IpoLoss {
        /// How pairs are combined.
        reduction: Reduction = Reduction::Mean,
        /// beta, above 0.
        beta: f64 = 0.1,
    }
    /// Loss of log-probabilities of preferred and rejected answers `chosen*`, `rejected*` `[B]` and the reference model's.
    (chosen: &Tensor, rejected: &Tensor, ref_chosen: &Tensor, ref_rejected: &Tensor) |s| {
        let x = [Some(chosen), Some(rejected), Some(&ref_chosen.detach()), Some(&ref_rejected.detach())];
        row("ipo_loss", RowLoss::Ipo { beta: s.beta }, s.reduction, x, None, None)
    };

    /// Preference optimisation without a reference (Meng et al., 2024): -ln sigmoid(beta*(w - l) - gamma).
    SimPoLoss {
        /// How pairs are combined.
        reduction: Reduction = Reduction::Mean,
        /// beta.
        beta: f64 = 2.0,
        /// Margin.
        gamma: f64 = 0.5,
    }
    /// Loss of mean log-probabilities of preferred and rejected answers `chosen*`, `rejected*` `[B]`.
    (chosen: &Tensor, rejected: &Tensor) |s| {
        let kind = RowLoss::SimPo { beta: s.beta, gamma: s.gamma };
        row("simpo_loss", kind, s.reduction, [Some(chosen), Some(rejected)], None, None)
    };

    /// Odds-ratio term of ORPO (Hong et al., 2024).
    OrpoLoss {
        /// How pairs are combined.
        reduction: Reduction = Reduction::Mean,
    }
    /// Loss of mean log-probabilities (below 0) of preferred and rejected answers `chosen*`, `rejected*` `[B]`.
    (chosen: &Tensor, rejected: &Tensor) |s|
        row("orpo_loss", RowLoss::Orpo, s.reduction, [Some(chosen), Some(rejected)], None, None);
}
