//! Losses with one item per row: classes, embeddings, distributions.

use trefoil::ops::{Reduction, RowLoss};

use super::kernel::{Kernel, run};
use super::{criteria, losses};
use crate::error::Result;
use crate::tensor::Tensor;

/// A row loss; see [`RowLoss`] for the order of its operands.
pub(super) fn row<const N: usize>(
    op: &'static str,
    kind: RowLoss,
    reduction: Reduction,
    x: [Option<&Tensor>; N],
    ids: Option<&Tensor>,
    mask: Option<&Tensor>,
) -> Result<Tensor> {
    let all = std::array::from_fn(|i| x.get(i).copied().flatten());
    run(op, Kernel::Row(kind, reduction), all, [ids, mask, None])
}

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

    /// Triplets, `torch.nn.TripletMarginLoss`: max(0, d(anchor, positive) - d(anchor, negative) + margin).
    TripletMarginLoss {
        /// How rows are combined.
        reduction: Reduction = Reduction::Mean,
        /// Margin.
        margin: f64 = 1.0,
        /// Degree of the norm.
        p: f64 = 2.0,
        /// Added to the differences.
        eps: f64 = 1e-6,
        /// Take d(positive, negative) where it is smaller than d(anchor, negative).
        swap: bool = false,
        /// Squared Euclidean distances without eps (FaceNet).
        squared: bool = false,
    }
    /// Loss of `anchor*`, `positive*`, `negative*` `[.., E]`.
    (anchor: &Tensor, positive: &Tensor, negative: &Tensor) |s| {
        let kind = RowLoss::Triplet { margin: s.margin, p: s.p, eps: s.eps, swap: s.swap, squared: s.squared };
        let x = [Some(anchor), Some(positive), Some(negative)];
        row("triplet_margin_loss", kind, s.reduction, x, None, None)
    };

    /// Contrastive loss (Hadsell et al., 2006): y*d^2 + (1-y)*max(0, margin - d)^2 of Euclidean distances.
    ContrastiveLoss {
        /// How rows are combined.
        reduction: Reduction = Reduction::Mean,
        /// Margin.
        margin: f64 = 1.0,
        /// Halve the items.
        half: bool = false,
    }
    /// Loss of `u*`, `v*` `[.., E]` with y `[..]` (1 = similar, 0 = not).
    (u: &Tensor, v: &Tensor, y: &Tensor) |s| {
        let kind = RowLoss::Contrastive { margin: s.margin, half: s.half };
        row("contrastive_loss", kind, s.reduction, [Some(u), Some(v), Some(&y.detach())], None, None)
    };

    /// scale * (1 - cos(p, t)), the distance that BYOL minimises with scale 2.
    CosineLoss {
        /// How rows are combined.
        reduction: Reduction = Reduction::Mean,
        /// Least norm.
        eps: f64 = 1e-8,
        /// Factor.
        scale: f64 = 1.0,
    }
    /// Loss of `p*`, `t*` `[.., E]`.
    (p: &Tensor, t: &Tensor) |s| {
        let kind = RowLoss::Cosine { eps: s.eps, scale: s.scale };
        row("cosine_loss", kind, s.reduction, [Some(p), Some(t)], None, None)
    };

    /// 1 - cos for similar pairs, max(0, cos - margin) for others; `torch.nn.CosineEmbeddingLoss`.
    CosineEmbeddingLoss {
        /// How rows are combined.
        reduction: Reduction = Reduction::Mean,
        /// Margin.
        margin: f64 = 0.0,
    }
    /// Loss of `x1*`, `x2*` `[.., E]` with y `[..]` of 1 and -1.
    (x1: &Tensor, x2: &Tensor, y: &Tensor) |s| {
        let kind = RowLoss::CosineEmbedding { margin: s.margin };
        row("cosine_embedding_loss", kind, s.reduction, [Some(x1), Some(x2), Some(&y.detach())], None, None)
    };

    /// max(0, -y*(x1 - x2) + margin), `torch.nn.MarginRankingLoss`; one item per element.
    MarginRankingLoss {
        /// How items are combined.
        reduction: Reduction = Reduction::Mean,
        /// Margin.
        margin: f64 = 0.0,
    }
    /// Loss of `x1*`, `x2*` with y of 1 and -1, all of one shape.
    (x1: &Tensor, x2: &Tensor, y: &Tensor) |s| {
        let kind = RowLoss::MarginRanking { margin: s.margin };
        row("margin_ranking_loss", kind, s.reduction, [Some(x1), Some(x2), Some(&y.detach())], None, None)
    };

    /// Negative log likelihood of a Gaussian, `torch.nn.GaussianNLLLoss`; one item per element.
    GaussianNllLoss {
        /// How items are combined.
        reduction: Reduction = Reduction::Mean,
        /// With the constant.
        full: bool = false,
        /// Least variance.
        eps: f64 = 1e-6,
    }
    /// Loss of means `p*` against targets, with variances `var*`, all of one shape.
    (p: &Tensor, target: &Tensor, var: &Tensor) |s| {
        let kind = RowLoss::GaussianNll { full: s.full, eps: s.eps };
        row("gaussian_nll_loss", kind, s.reduction, [Some(p), Some(&target.detach()), Some(var)], None, None)
    };

    /// KL divergence of diagonal Gaussians from the standard one (Kingma and Welling, 2014).
    GaussianKlLoss {
        /// How rows are combined.
        reduction: Reduction = Reduction::Mean,
    }
    /// Loss of means `mu*` and logarithms of variances `log_var*` `[.., Z]`.
    (mu: &Tensor, log_var: &Tensor) |s|
        row("gaussian_kl_loss", RowLoss::GaussianKl, s.reduction, [Some(mu), Some(log_var)], None, None);
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
    CapsuleLoss,
    CosineLoss,
);
