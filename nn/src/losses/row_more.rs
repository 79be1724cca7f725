//! Losses with one item per row: regions, regression, language models, adversaries.

use trefoil::ops::{Adversary, BoxOverlap, Reduction, RowLoss};

use super::row::row;
use super::{criteria, losses};
use crate::error::Result;
use crate::tensor::Tensor;

losses! {
    /// Overlap loss 1 - (2I + s)/(S + s) per sample (Milletari et al., 2016).
    DiceLoss {
        /// How samples are combined.
        reduction: Reduction = Reduction::Mean,
        /// s.
        smooth: f64 = 1.0,
        /// S = sum p^2 + t^2 instead of sum p + t.
        squared: bool = false,
        /// Predictions are logits.
        from_logits: bool = false,
        /// One item per sample and channel.
        per_channel: bool = false,
    }
    /// Loss of masks `p*` `[N, ..]` (`[N, C, ..]`) against targets of their shape.
    (p: &Tensor, target: &Tensor) |s| {
        let (squared, from_logits, per_channel) = (s.squared, s.from_logits, s.per_channel);
        let kind = RowLoss::Dice { smooth: s.smooth, squared, from_logits, per_channel };
        row("dice_loss", kind, s.reduction, [Some(p), Some(&target.detach())], None, None)
    };

    /// (1 - (TP + s)/(TP + a*FP + b*FN + s))^gamma per sample (Salehi et al., 2017; Abraham and Khan, 2019).
    TverskyLoss {
        /// How samples are combined.
        reduction: Reduction = Reduction::Mean,
        /// Weight of false positives.
        a: f64 = 0.5,
        /// Weight of false negatives.
        b: f64 = 0.5,
        /// s.
        smooth: f64 = 1.0,
        /// Exponent.
        gamma: f64 = 1.0,
    }
    /// Loss of masks `p*` `[N, ..]` against targets of their shape.
    (p: &Tensor, target: &Tensor) |s| {
        let kind = RowLoss::Tversky { a: s.a, b: s.b, smooth: s.smooth, gamma: s.gamma };
        row("tversky_loss", kind, s.reduction, [Some(p), Some(&target.detach())], None, None)
    };

    /// 1 - intersection over union of masks per sample.
    JaccardLoss {
        /// How samples are combined.
        reduction: Reduction = Reduction::Mean,
        /// Added to numerator and denominator.
        smooth: f64 = 1.0,
    }
    /// Loss of masks `p*` `[N, ..]` against targets of their shape.
    (p: &Tensor, target: &Tensor) |s| {
        let kind = RowLoss::Tversky { a: 1.0, b: 1.0, smooth: s.smooth, gamma: 1.0 };
        row("jaccard_loss", kind, s.reduction, [Some(p), Some(&target.detach())], None, None)
    };

    /// 1 - overlap of boxes, `torchvision.ops.generalized_box_iou_loss` and its relatives.
    BoxIouLoss {
        /// How boxes are combined.
        reduction: Reduction = Reduction::Mean,
        /// Measure.
        overlap: BoxOverlap = BoxOverlap::Giou,
        /// Added to denominators.
        eps: f64 = 1e-7,
    }
    /// Loss of boxes `p*` `[.., 4]` (corners x1 y1 x2 y2) against boxes of their shape.
    (p: &Tensor, target: &Tensor) |s| {
        let kind = RowLoss::Boxes { overlap: s.overlap, eps: s.eps };
        row("box_iou_loss", kind, s.reduction, [Some(p), Some(&target.detach())], None, None)
    };

    /// 1 - fidelity of quantum states.
    QuantumFidelityLoss {
        /// How states are combined.
        reduction: Reduction = Reduction::Mean,
    }
    /// Loss of states `psi*` `[B, D, 2]` (real and imaginary parts) against states of their shape.
    (psi: &Tensor, phi: &Tensor) |s|
        row("quantum_loss", RowLoss::Quantum, s.reduction, [Some(psi), Some(&phi.detach())], None, None);

    /// Scale-invariant depth (Eigen et al., 2014): mean d^2 - lambda*(mean d)^2 of d = ln p - ln t over valid pixels.
    ScaleInvariantDepthLoss {
        /// How samples are combined.
        reduction: Reduction = Reduction::Mean,
        /// lambda.
        lambda: f64 = 0.5,
        /// 10*sqrt of the item (Bhat et al., 2021, with lambda 0.85).
        root: bool = false,
        /// Pixels that count (u8), the prediction's shape.
        mask: Option<Tensor> = None,
    }
    /// Loss of depths `p*` `[N, ..]` against depths of their shape; pixels with t <= 0 do not count.
    (p: &Tensor, target: &Tensor) |s| {
        let kind = RowLoss::Depth { lambda: s.lambda, root: s.root };
        row("depth_loss", kind, s.reduction, [Some(p), Some(&target.detach())], None, s.mask.as_ref())
    };

    /// Masked autoencoders (He et al., 2022): mean (p - t)^2 per patch; `Mean` divides by the count of the mask.
    MaskedPatchLoss {
        /// How patches are combined.
        reduction: Reduction = Reduction::Mean,
        /// Standardise the target patches.
        normalize: bool = true,
    }
    /// Loss of patches `p*` `[B, L, P]` against patches of their shape where the mask (u8) `[B, L]` is true.
    (p: &Tensor, target: &Tensor, mask: &Tensor) |s| {
        let kind = RowLoss::Patches { normalize: s.normalize };
        row("masked_patch_loss", kind, s.reduction, [Some(p), Some(&target.detach())], None, Some(mask))
    };

    /// Square root of the mean squared error. No `Reduction::None`.
    RmseLoss {
        /// Mean and sum are the same.
        reduction: Reduction = Reduction::Mean,
    }
    /// Loss of `p*` against targets of its shape.
    (p: &Tensor, target: &Tensor) |s|
        row("rmse_loss", RowLoss::Rmse, s.reduction, [Some(p), Some(&target.detach())], None, None);

    /// Mean squared error with an elastic net on the predictions. No `Reduction::None`.
    ElasticNetLoss {
        /// Mean and sum are the same.
        reduction: Reduction = Reduction::Mean,
        /// Weight of the penalty.
        alpha: f64 = 1.0,
        /// Share of L1.
        l1_ratio: f64 = 0.5,
    }
    /// Loss of `p*` against targets of its shape.
    (p: &Tensor, target: &Tensor) |s| {
        let kind = RowLoss::ElasticNet { alpha: s.alpha, r: s.l1_ratio };
        row("elastic_net_loss", kind, s.reduction, [Some(p), Some(&target.detach())], None, None)
    };

    /// Pinball losses of several quantiles at once; one item per prediction.
    QuantilesLoss {
        /// How items are combined.
        reduction: Reduction = Reduction::Mean,
    }
    /// Loss of predicted quantiles `p*` `[.., Q]` against targets `[..]`, with levels `[Q]`.
    (p: &Tensor, target: &Tensor, levels: &Tensor) |s| {
        let x = [Some(p), Some(&target.detach()), Some(&levels.detach())];
        row("quantiles_loss", RowLoss::Quantiles, s.reduction, x, None, None)
    };

    /// Knowledge distillation (Hinton et al., 2015): alpha*CE(z, id) + (1-alpha)*T^2*KL of softened distributions.
    DistillationLoss {
        /// How rows are combined.
        reduction: Reduction = Reduction::Mean,
        /// T.
        temperature: f64 = 2.0,
        /// Share of the labels.
        alpha: f64 = 0.5,
    }
    /// Loss of the student's logits `z*` `[.., C]` against the teacher's; without class ids `[..]` only the second term, with weight 1.
    (student: &Tensor, teacher: &Tensor, target: Option<&Tensor>) |s| {
        let kind = RowLoss::Distillation { temperature: s.temperature, alpha: s.alpha };
        row("distillation_loss", kind, s.reduction, [Some(student), Some(&teacher.detach())], target, None)
    };

    /// Self-distillation without labels (Caron et al., 2021).
    DinoLoss {
        /// How rows are combined.
        reduction: Reduction = Reduction::Mean,
        /// Student's temperature.
        student_temp: f64 = 0.1,
        /// Teacher's temperature.
        teacher_temp: f64 = 0.04,
    }
    /// Loss of the student's outputs `z*` `[.., C]` against the teacher's with their running centre `[C]`.
    (student: &Tensor, teacher: &Tensor, center: &Tensor) |s| {
        let kind = RowLoss::Dino { student: s.student_temp, teacher: s.teacher_temp };
        let x = [Some(student), Some(&teacher.detach()), Some(&center.detach())];
        row("dino_loss", kind, s.reduction, x, None, None)
    };

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
    /// Loss of scores of the truth `positive*` `[B]` and of noise `negative*` `[B, K]`; with the noise's log-probabilities of both (`[B]`, `[B, K]`)
    /// noise-contrastive estimation, without negative sampling.
    (positive: &Tensor, negative: &Tensor, log_noise: Option<(&Tensor, &Tensor)>) |s| {
        let noise = log_noise.map(|(a, b)| (a.detach(), b.detach()));
        let (a, b) = (noise.as_ref().map(|n| &n.0), noise.as_ref().map(|n| &n.1));
        row("nce_loss", RowLoss::Nce, s.reduction, [Some(positive), Some(negative), a, b], None, None)
    };

    /// Cumulative-link regression of ordered classes (Cao et al., 2020): binary cross entropies against "class above j".
    OrdinalLoss {
        /// How rows are combined.
        reduction: Reduction = Reduction::Mean,
    }
    /// Loss of logits `f*` `[B, K-1]`, or with thresholds `theta*` `[K-1]` of scores `f*` `[B]`, against classes `[B]` in 0..K (i32, i64).
    (f: &Tensor, theta: Option<&Tensor>, target: &Tensor) |s| {
        let x = if theta.is_some() { [None, Some(f), theta] } else { [Some(f), None, None] };
        row("ordinal_loss", RowLoss::Ordinal, s.reduction, x, Some(target), None)
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
criteria!(
    DiceLoss,
    TverskyLoss,
    JaccardLoss,
    BoxIouLoss,
    QuantumFidelityLoss,
    ScaleInvariantDepthLoss,
    RmseLoss,
    ElasticNetLoss,
);
