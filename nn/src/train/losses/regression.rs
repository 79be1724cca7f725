//! Losses of values, one item per row.

use trefoil::ops::loss::{Reduction, RowLoss};

use super::kernel::row;
use super::{criteria, losses};
use crate::core::error::Result;
use crate::core::tensor::Tensor;

losses! {
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
}
criteria!(ScaleInvariantDepthLoss, RmseLoss, ElasticNetLoss);
