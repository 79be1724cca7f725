//! Losses of classes, one item per row.

use trefoil::ops::loss::{Reduction, RowLoss};

use super::kernel::row;
use super::{criteria, losses};
use crate::core::error::Result;
use crate::core::tensor::Tensor;

losses! {
    /// Negative log likelihood of class ids, `torch.nn.NLLLoss`; `Mean` divides by the sum of the weights.
    NllLoss {
        /// How rows are combined.
        reduction: Reduction = Reduction::Mean,
        /// Weight per class `[C]`.
        weight: Option<Tensor> = None,
        /// Id of rows that do not count.
        ignore_index: i64 = -100,
        /// Inputs are probabilities, taken as ln max(x, floor); otherwise log-probabilities, as PyTorch takes them.
        floor: Option<f64> = None,
    }
    /// Loss of log-probabilities `x*` `[N, C, S..]` or `[C]` against class ids `[N, S..]` or a scalar (i32, i64).
    (x: &Tensor, target: &Tensor) |s| {
        let kind = RowLoss::Nll { floor: s.floor, ignore_index: s.ignore_index };
        let weight = s.weight.as_ref().map(Tensor::detach);
        row("nll_loss", kind, s.reduction, [Some(x), weight.as_ref()], Some(target), None)
    };

    /// Focal loss of several classes (Lin et al., 2017): -alpha*(1 - pt)^gamma*ln pt of softmax probabilities.
    MulticlassFocalLoss {
        /// How rows are combined.
        reduction: Reduction = Reduction::Mean,
        /// Exponent.
        gamma: f64 = 2.0,
        /// Weight per class `[C]`.
        alpha: Option<Tensor> = None,
    }
    /// Loss of logits `x*` `[.., C]` against class ids `[..]` (i32, i64).
    (x: &Tensor, target: &Tensor) |s| {
        let alpha = s.alpha.as_ref().map(Tensor::detach);
        let kind = RowLoss::MulticlassFocal { gamma: s.gamma };
        row("multiclass_focal_loss", kind, s.reduction, [Some(x), alpha.as_ref()], Some(target), None)
    };

    /// Additive angular margin (Deng et al., 2019): cross entropy of scaled cosines with cos(theta + margin) at the target.
    ArcFaceLoss {
        /// How rows are combined.
        reduction: Reduction = Reduction::Mean,
        /// Scale.
        scale: f64 = 64.0,
        /// Margin in radians.
        margin: f64 = 0.5,
    }
    /// Loss of cosines `x*` `[.., C]` against class ids `[..]` (i32, i64).
    (x: &Tensor, target: &Tensor) |s| {
        let kind = RowLoss::ArcFace { scale: s.scale, margin: s.margin };
        row("arc_face_loss", kind, s.reduction, [Some(x)], Some(target), None)
    };

    /// Circle loss (Sun et al., 2020) of similarities: each pair is weighted by its distance from its optimum.
    CircleLoss {
        /// How rows are combined.
        reduction: Reduction = Reduction::Mean,
        /// Scale.
        scale: f64 = 256.0,
        /// Margin.
        margin: f64 = 0.25,
        /// The weights of pairs are constants for the gradient, as in the paper.
        detach: bool = true,
    }
    /// Loss of similarities `x*` `[.., C]`. `target`: class ids `[..]` (i32, i64), the positive column; or pairs of the shape and dtype of `x`:
    /// 1 = positive, 0 = negative, others (an item with itself) do not count. A row without either side costs nothing.
    (x: &Tensor, target: &Tensor) |s| {
        let kind = RowLoss::Circle { scale: s.scale, margin: s.margin, detach: s.detach };
        if target.dtype().is_float() {
            row("circle_loss", kind, s.reduction, [Some(x), Some(&target.detach())], None, None)
        } else {
            row("circle_loss", kind, s.reduction, [Some(x)], Some(target), None)
        }
    };

    /// Multi-class margins, `torch.nn.MultiMarginLoss`.
    MultiMarginLoss {
        /// How rows are combined.
        reduction: Reduction = Reduction::Mean,
        /// Square the margins (PyTorch's p = 2).
        squared: bool = false,
        /// Margin.
        margin: f64 = 1.0,
        /// Weight per class `[C]`.
        weight: Option<Tensor> = None,
    }
    /// Loss of scores `x*` `[N, C]` against class ids `[N]` (i32, i64).
    (x: &Tensor, target: &Tensor) |s| {
        let kind = RowLoss::MultiMargin { squared: s.squared, margin: s.margin };
        let weight = s.weight.as_ref().map(Tensor::detach);
        row("multi_margin_loss", kind, s.reduction, [Some(x), weight.as_ref()], Some(target), None)
    };

    /// Multi-label margins, `torch.nn.MultiLabelMarginLoss`.
    MultiLabelMarginLoss {
        /// How rows are combined.
        reduction: Reduction = Reduction::Mean,
    }
    /// Loss of scores `x*` `[N, C]` against lists of labels `[N, C]` (i32, i64) that end at the first negative one.
    (x: &Tensor, target: &Tensor) |s|
        row("multilabel_margin_loss", RowLoss::MultilabelMargin, s.reduction, [Some(x)], Some(target), None);

    /// Mean of binary cross entropies of logits per row, `torch.nn.MultiLabelSoftMarginLoss`.
    MultiLabelSoftMarginLoss {
        /// How rows are combined.
        reduction: Reduction = Reduction::Mean,
        /// Weight per class `[C]`.
        weight: Option<Tensor> = None,
    }
    /// Loss of logits `x*` `[N, C]` against targets in [0, 1] of their shape.
    (x: &Tensor, target: &Tensor) |s| {
        let weight = s.weight.as_ref().map(Tensor::detach);
        let x = [Some(x), Some(&target.detach()), weight.as_ref()];
        row("multilabel_soft_margin_loss", RowLoss::MultilabelSoftMargin, s.reduction, x, None, None)
    };

    /// Cross entropy -sum t*ln max(p, 1e-7) of probabilities, Keras' `CategoricalCrossentropy`.
    CategoricalCrossEntropyLoss {
        /// How rows are combined.
        reduction: Reduction = Reduction::Mean,
        /// Share spread over all classes.
        label_smoothing: f64 = 0.0,
    }
    /// Loss of probabilities `p*` `[.., C]` against target probabilities of their shape.
    (p: &Tensor, target: &Tensor) |s| {
        let kind = RowLoss::CategoricalCe { label_smoothing: s.label_smoothing };
        row("categorical_cross_entropy", kind, s.reduction, [Some(p), Some(&target.detach())], None, None)
    };

    /// Margin loss of capsule lengths (Sabour et al., 2017).
    CapsuleLoss {
        /// How rows are combined.
        reduction: Reduction = Reduction::Mean,
        /// Length above which a present class costs nothing.
        plus: f64 = 0.9,
        /// Length below which an absent class costs nothing.
        minus: f64 = 0.1,
        /// Weight of absent classes.
        lambda: f64 = 0.5,
    }
    /// Loss of lengths `v*` `[B, C]` against one-hot targets of their shape.
    (v: &Tensor, target: &Tensor) |s| {
        let kind = RowLoss::Capsule { plus: s.plus, minus: s.minus, lambda: s.lambda };
        row("capsule_loss", kind, s.reduction, [Some(v), Some(&target.detach())], None, None)
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
}
criteria!(
    NllLoss,
    MulticlassFocalLoss,
    ArcFaceLoss,
    CircleLoss,
    MultiMarginLoss,
    MultiLabelMarginLoss,
    MultiLabelSoftMarginLoss,
    CategoricalCrossEntropyLoss,
    CapsuleLoss
);
