//! Losses with one item per element.

use trefoil::ops::loss::{Loss, Reduction, RowLoss};

use super::kernel::{Kernel, run};
use super::{criteria, losses};
use crate::core::error::Result;
use crate::core::tensor::Tensor;

/// An elementwise loss. The target gets a gradient only from losses of the difference.
fn element(
    op: &'static str,
    kind: Loss,
    reduction: Reduction,
    p: &Tensor,
    t: &Tensor,
    weight: &Option<Tensor>,
    mask: &Option<Tensor>,
) -> Result<Tensor> {
    let t = if kind.is_symmetric() { t.clone() } else { t.detach() };
    let weight = weight.as_ref().map(Tensor::detach);
    let kernel = Kernel::Element(kind, reduction);
    run(op, kernel, [Some(p), Some(&t), weight.as_ref(), None], [mask.as_ref(), None, None])
}

/// Elementwise losses of predictions and targets of one shape, with options of their own.
macro_rules! elements {
    ($(
        $(#[$doc:meta])*
        $name:ident $op:literal { $($(#[$fdoc:meta])* $field:ident : $ty:ty = $default:expr,)* }
        |$s:ident| $kind:expr;
    )*) => {
        losses! {$(
            $(#[$doc])*
            $name {
                $($(#[$fdoc])* $field: $ty = $default,)*
                /// How items are combined.
                reduction: Reduction = Reduction::Mean,
                /// Weight per item, the prediction's shape and dtype.
                weight: Option<Tensor> = None,
                /// Items that count (u8), the prediction's shape.
                mask: Option<Tensor> = None,
            }
            /// Loss of predictions against targets of one shape and dtype.
            (prediction: &Tensor, target: &Tensor) |$s|
                element($op, $kind, $s.reduction, prediction, target, &$s.weight, &$s.mask);
        )*}
    };
}

elements! {
    /// Mean squared error (p - t)^2, `torch.nn.MSELoss`. Gradients: prediction, target.
    MseLoss "mse_loss" {} |_s| Loss::Mse;
    /// Mean absolute error |p - t|, `torch.nn.L1Loss`. Gradients: prediction, target.
    L1Loss "l1_loss" {} |_s| Loss::Mae;
    /// d^2 / (2 beta) below beta, d - beta/2 above, d = |p - t|; `torch.nn.SmoothL1Loss`. Gradients: prediction, target.
    SmoothL1Loss "smooth_l1_loss" {
        /// Width of the parabola, at least 0.
        beta: f64 = 1.0,
    } |s| Loss::SmoothL1 { beta: s.beta };
    /// d^2 / 2 up to delta, delta*(d - delta/2) above, d = |p - t|; `torch.nn.HuberLoss`. Gradients: prediction, target.
    HuberLoss "huber_loss" {
        /// Width of the parabola, above 0.
        delta: f64 = 1.0,
    } |s| Loss::Huber { delta: s.delta };
    /// ln cosh(p - t). Gradients: prediction, target.
    LogCoshLoss "log_cosh_loss" {} |_s| Loss::LogCosh;
    /// Pinball loss max(q*(t - p), (q - 1)*(t - p)) of one quantile. Gradients: prediction, target.
    QuantileLoss "quantile_loss" {
        /// Level in [0, 1].
        q: f64 = 0.5,
    } |s| Loss::Quantile { q: s.q };
    /// sqrt((p - t)^2 + eps^2), a smooth L1 loss. Gradients: prediction, target.
    CharbonnierLoss "charbonnier_loss" {
        /// Rounding of the kink.
        eps: f64 = 1e-3,
    } |s| Loss::Charbonnier { eps: s.eps };
    /// t - p: a diagnostic, unbounded below. Gradients: prediction, target.
    MeanBiasLoss "mean_bias_loss" {} |_s| Loss::MeanBias;
    /// max(0, 1 - t*p) for labels of -1 and 1. Gradient: prediction.
    HingeLoss "hinge_loss" {} |_s| Loss::Hinge;
    /// max(0, 1 - t*p)^2 for labels of -1 and 1. Gradient: prediction.
    SquaredHingeLoss "squared_hinge_loss" {} |_s| Loss::SquaredHinge;
    /// The squared hinge, linear below t*p = -1 (Zhang, 2004). Gradient: prediction.
    ModifiedHuberLoss "modified_huber_loss" {} |_s| Loss::ModifiedHuber;
    /// e^(-t*p) for labels of -1 and 1 (AdaBoost). Gradient: prediction.
    ExponentialLoss "exponential_loss" {} |_s| Loss::Exponential;
    /// ln(1 + e^(-t*p)) for labels of -1 and 1, `torch.nn.SoftMarginLoss`. Gradient: prediction.
    SoftMarginLoss "soft_margin_loss" {} |_s| Loss::SoftMargin;
    /// p where t = 1, max(0, margin - p) where t = -1; `torch.nn.HingeEmbeddingLoss`. Gradient: prediction.
    HingeEmbeddingLoss "hinge_embedding_loss" {
        /// Margin.
        margin: f64 = 1.0,
    } |s| Loss::HingeEmbedding { margin: s.margin };
    /// -t*p of critic scores and labels of -1 and 1 (Arjovsky et al., 2017). Gradient: prediction.
    WassersteinLoss "wasserstein_loss" {} |_s| Loss::Wasserstein;
    /// Negative log likelihood of Poisson counts, `torch.nn.PoissonNLLLoss`. Gradient: prediction.
    PoissonNllLoss "poisson_nll_loss" {
        /// Predictions are logarithms of the rates.
        log_input: bool = true,
        /// Add Stirling's term where t > 1.
        full: bool = false,
        /// Added inside the logarithm.
        eps: f64 = 1e-8,
    } |s| Loss::Poisson { eps: s.eps, log_input: s.log_input, full: s.full };
    /// (p^2 - t)^2 of amplitudes and probabilities. Gradient: prediction.
    BornMseLoss "born_mse_loss" {} |_s| Loss::BornMse;
    /// Binary cross entropy of probabilities, `torch.nn.BCELoss`. Logarithms are at least -100. Gradient: prediction.
    BceLoss "bce_loss" {} |_s| Loss::Bce;
    /// Focal loss of logits (Lin et al., 2017), `torchvision.ops.sigmoid_focal_loss`. Gradient: prediction.
    SigmoidFocalLoss "sigmoid_focal_loss" {
        /// Weight of the positive class; negative for none.
        alpha: f64 = 0.25,
        /// Exponent.
        gamma: f64 = 2.0,
    } |s| Loss::FocalLogits { alpha: s.alpha, gamma: s.gamma };
    /// Focal loss of probabilities (Lin et al., 2017). Gradient: prediction.
    BinaryFocalLoss "binary_focal_loss" {
        /// Weight of the positive class; negative for none.
        alpha: f64 = 0.25,
        /// Exponent.
        gamma: f64 = 2.0,
    } |s| Loss::Focal { alpha: s.alpha, gamma: s.gamma };
}

losses! {
    /// Binary cross entropy of logits, `torch.nn.BCEWithLogitsLoss`; `Mean` divides by the count of items. Gradient: prediction.
    BceWithLogitsLoss {
        /// How items are combined.
        reduction: Reduction = Reduction::Mean,
        /// Weight per item, the prediction's shape and dtype.
        weight: Option<Tensor> = None,
        /// Weight of positive items along the last axis.
        pos_weight: Option<Tensor> = None,
        /// Items that count (u8), the prediction's shape; not together with `pos_weight`.
        mask: Option<Tensor> = None,
    }
    /// Loss of logits against targets in [0, 1] of one shape and dtype.
    (prediction: &Tensor, target: &Tensor) |s| {
        const OP: &str = "bce_with_logits_loss";
        let Some(pos) = &s.pos_weight else {
            return element(OP, Loss::BceLogits, s.reduction, prediction, target, &s.weight, &s.mask);
        };
        let (t, pos, w) = (target.detach(), pos.detach(), s.weight.as_ref().map(Tensor::detach));
        let kernel = Kernel::Row(RowLoss::BcePosWeight, s.reduction);
        // The kernel refuses a mask, which this loss does not have.
        let with = [None, s.mask.as_ref(), None];
        run(OP, kernel, [Some(prediction), Some(&t), w.as_ref(), Some(&pos)], with)
    };

    /// Kullback-Leibler divergence t*(ln t - ln p), `torch.nn.KLDivLoss`; 0 where t = 0. Gradient: prediction.
    KlDivLoss {
        /// How items are combined.
        reduction: Reduction = Reduction::Mean,
        /// Items are the distributions along the last axis, so that `Mean` is PyTorch's `batchmean`; otherwise single elements.
        batch_mean: bool = false,
        /// Predictions are logarithms of probabilities, as PyTorch takes them.
        log_input: bool = true,
        /// Targets are logarithms too.
        log_target: bool = false,
    }
    /// Divergence of predicted distributions from target distributions of one shape and dtype.
    (prediction: &Tensor, target: &Tensor) |s| {
        let (log_input, log_target) = (s.log_input, s.log_target);
        let kernel = match s.batch_mean {
            true => Kernel::Row(RowLoss::Kl { log_input, log_target }, s.reduction),
            false => Kernel::Element(Loss::Kl { log_input, log_target }, s.reduction),
        };
        run("kl_div", kernel, [Some(prediction), Some(&target.detach()), None, None], [None; 3])
    };
}
criteria!(
    L1Loss,
    SmoothL1Loss,
    HuberLoss,
    LogCoshLoss,
    QuantileLoss,
    CharbonnierLoss,
    MeanBiasLoss,
    HingeLoss,
    SquaredHingeLoss,
    ModifiedHuberLoss,
    ExponentialLoss,
    SoftMarginLoss,
    HingeEmbeddingLoss,
    WassersteinLoss,
    PoissonNllLoss,
    BornMseLoss,
    BceLoss,
    SigmoidFocalLoss,
    BinaryFocalLoss,
    BceWithLogitsLoss,
    KlDivLoss,
);
