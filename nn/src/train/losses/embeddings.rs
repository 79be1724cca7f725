//! Losses of embeddings and rankings, one item per row.

use trefoil::ops::loss::{Reduction, RowLoss};

use super::kernel::row;
use super::{criteria, losses};
use crate::core::error::Result;
use crate::core::tensor::Tensor;

losses! {
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
}
criteria!(CosineLoss);
