//! Losses of masks and boxes, one item per row.

use trefoil::ops::loss::{BoxOverlap, Reduction, RowLoss};

use super::kernel::row;
use super::{criteria, losses};
use crate::core::error::Result;
use crate::core::tensor::Tensor;

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
}
criteria!(DiceLoss, TverskyLoss, JaccardLoss, BoxIouLoss);
