//! Which losses take a row to one item.

/// Boxes: which overlap measure is subtracted from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum BoxOverlap {
    /// Intersection over union.
    Iou,
    /// Generalised (Rezatofighi et al., 2019).
    Giou,
    /// With the distance of the centres (Zheng et al., 2020).
    Diou,
    /// With distance and aspect ratio.
    Ciou,
}

/// How an adversarial loss scores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Adversary {
    /// ln(1 + e^-d) for real, ln(1 + e^d) for generated samples
    Vanilla,
    /// max(0, 1 - d), max(0, 1 + d); the generator gets -d
    Hinge,
    /// (d - 1)^2, d^2
    LeastSquares,
}

/// Losses that take a row of numbers (usually the last axis) to one item. The comment of each variant lists its operands for
/// [`RowLossFwd::x`](super::RowLossFwd::x) in order; `*` marks those that have a gradient, `?` those that may be absent. Rows are the last axis unless stated.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum RowLoss {
    /// `a*, p*, q*` [B, E]: max(0, d(a, p) - d(a, q) + margin), d(u, v) = |u - v + eps|_p; `F.triplet_margin_loss`
    Triplet {
        /// margin
        margin: f64,
        /// degree of the norm
        p: f64,
        /// added to the differences
        eps: f64,
        /// take d(p, q) where it is smaller than d(a, q)
        swap: bool,
        /// squared Euclidean distances without eps
        squared: bool,
    },
    /// `u*, v*` \[B, E\], `y` \[B\] (1 = similar): y*d^2 + (1-y)*max(0, margin - d)^2
    Contrastive {
        /// margin
        margin: f64,
        /// halve the items
        half: bool,
    },
    /// `p*, t*` [B, E]: scale * (1 - cos(p, t))
    Cosine {
        /// least norm
        eps: f64,
        /// 1, or 2 for BYOL
        scale: f64,
    },
    /// `x1*, x2*` \[B, E\], `y` \[B\] of 1 and -1; `F.cosine_embedding_loss`
    CosineEmbedding {
        /// margin for y = -1
        margin: f64,
    },
    /// `s0*` \[B\], `sn*` \[B, K\], `logq0?` \[B\], `logqn?` \[B, K\]: softplus(-d0) + sum softplus(dn); with log noise probabilities d = s - ln K - logq
    Nce,
    /// `v*, t` [B, C]: sum of t*max(0, plus - v)^2 + lambda*(1-t)*max(0, v - minus)^2
    Capsule {
        /// upper margin
        plus: f64,
        /// lower margin
        minus: f64,
        /// weight of absent classes
        lambda: f64,
    },
    /// `p*, t` [.., C]: -sum t'*ln max(p, 1e-7), t' smoothed
    CategoricalCe {
        /// share spread over all classes
        label_smoothing: f64,
    },
    /// `p*, t` [.., C]: sum t*(ln t - ln p); Mean is PyTorch's batchmean
    Kl {
        /// p is a logarithm
        log_input: bool,
        /// t is a logarithm
        log_target: bool,
    },
    /// `x*` [N, C, S..] or \[C\], `weight?` \[C\], ids [N, S..] or a scalar: -w\[id\]*x\[id\]; Mean divides by the sum of w; `F.nll_loss`
    Nll {
        /// x holds probabilities, taken as ln max(x, floor)
        floor: Option<f64>,
        /// id of rows that do not count
        ignore_index: i64,
    },
    /// `x*` \[B, C\], `alpha?` \[C\], ids \[B\]: -alpha\[id\]*(1 - pt)^gamma*ln pt, pt = softmax(x)\[id\]
    MulticlassFocal {
        /// exponent
        gamma: f64,
    },
    /// `f*?` \[B, K-1\], or `s*?` \[B\] and `theta*?` \[K-1\] (f = s - theta), ids in 0..K: sum of binary cross entropies of f_j against id > j
    Ordinal,
    /// `z*, y` \[B, C\], ids? \[B\]: alpha*CE(z, id) + (1-alpha)*T^2*KL(softmax(y/T) || softmax(z/T)); without ids only the second term, weight 1
    Distillation {
        /// T
        temperature: f64,
        /// share of the labels
        alpha: f64,
    },
    /// `z*, y` \[B, C\], `center` \[C\]: -sum softmax((y - c)/teacher)*log_softmax(z/student)
    Dino {
        /// student's temperature
        student: f64,
        /// teacher's temperature
        teacher: f64,
    },
    /// `x*` cosines \[B, C\], ids \[B\]: cross entropy of scale*x with scale*cos(theta + margin) at the id (where cos > 0)
    ArcFace {
        /// scale
        scale: f64,
        /// margin in radians
        margin: f64,
    },
    /// `x*` [N, C]: coef*logsumexp(x)^2
    Z {
        /// factor
        coef: f64,
    },
    /// `x*` \[N, C\], `weight?` \[C\], ids \[N\]; `F.multi_margin_loss`
    MultiMargin {
        /// squared margins
        squared: bool,
        /// margin
        margin: f64,
    },
    /// `x*` [N, C], ids [N, C]: labels up to the first negative one; `F.multilabel_margin_loss`
    MultilabelMargin,
    /// `x*, t` \[N, C\], `weight?` \[C\]: mean of binary cross entropies; `F.multilabel_soft_margin_loss`
    MultilabelSoftMargin,
    /// `p*, t`: 1 - (2I + s)/(S + s) per sample (first axis), I = sum p*t, S = sum p + t
    Dice {
        /// s
        smooth: f64,
        /// S = sum p^2 + t^2
        squared: bool,
        /// p are logits
        from_logits: bool,
        /// rows are the first two axes
        per_channel: bool,
    },
    /// `p*, t`: (1 - (TP + s)/(TP + a*FP + b*FN + s))^gamma per sample (first axis); a = b = gamma = 1 is the Jaccard loss
    Tversky {
        /// weight of false positives
        a: f64,
        /// weight of false negatives
        b: f64,
        /// s
        smooth: f64,
        /// exponent
        gamma: f64,
    },
    /// `p*, t` [N, 4], corners x1 y1 x2 y2
    Boxes {
        /// measure
        overlap: BoxOverlap,
        /// added to denominators
        eps: f64,
    },
    /// `psi*, phi` [B, D, 2], complex states interleaved: 1 - |<phi, psi>|^2/(|psi|^2*|phi|^2)
    Quantum,
    /// `p*, t`, mask?: with d = ln p - ln t over valid pixels (t > 0, mask), mean d^2 - lambda*(mean d)^2 per sample (first axis)
    Depth {
        /// lambda
        lambda: f64,
        /// 10*sqrt of the item
        root: bool,
    },
    /// `p*, t` [B, L, P], mask [B, L]: mean (p - t)^2 per patch; Mean divides by the count of the mask
    Patches {
        /// standardise the target patches (unbiased variance, eps 1e-6)
        normalize: bool,
    },
    /// `mu*, lv*` [B, Z]: KL from the standard Gaussian
    GaussianKl,
    /// `p*, t`, scalar only: sqrt of the mean of (p - t)^2
    Rmse,
    /// `p*, t`, scalar only: mean (p-t)^2 + alpha*r*sum|p| + alpha*(1-r)/2*sum p^2
    ElasticNet {
        /// alpha
        alpha: f64,
        /// share of L1
        r: f64,
    },
    /// `p*, t, var*` of one shape, item per element; `F.gaussian_nll_loss`
    GaussianNll {
        /// with the constant
        full: bool,
        /// least variance
        eps: f64,
    },
    /// `x1*, x2*, y` of one shape, item per element: max(0, margin - y*(x1 - x2))
    MarginRanking {
        /// margin
        margin: f64,
    },
    /// `w*, l*, w_ref, l_ref` \[B\]: -ln sigmoid(beta*((w - w_ref) - (l - l_ref)))
    Dpo {
        /// beta
        beta: f64,
    },
    /// `w*, l*, w_ref, l_ref` \[B\]: ((w - w_ref) - (l - l_ref) - 1/(2 beta))^2
    Ipo {
        /// beta
        beta: f64,
    },
    /// `w*, l*` \[B\]: -ln sigmoid(beta*(w - l) - gamma)
    SimPo {
        /// beta
        beta: f64,
        /// margin
        gamma: f64,
    },
    /// `w*, l*` \[B\]: -ln sigmoid of the difference of log odds
    Orpo,
    /// `x*, y?` [.., C], ids? [..]: circle loss of similarities (Sun et al., 2020), positives being y = 1 or the id's column, negatives y = 0 or
    /// the other columns (either y or ids): softplus(lse_n(scale*a_n*(x - m)) + lse_p(-scale*a_p*(x - 1 + m))) with a_p = max(0, 1 + m - x),
    /// a_n = max(0, x + m); 0 for a row without positives or without negatives
    Circle {
        /// scale
        scale: f64,
        /// margin m
        margin: f64,
        /// a_p and a_n are constants for the gradient, as in the paper
        detach: bool,
    },
    /// `w*, w_ref, y` \[B\] (y = 1: desirable), `kl?` \[1\]: with r = w - w_ref and z = max(0, kl), a constant,
    /// desirable*sigmoid(-beta*(r - z)), else undesirable*sigmoid(-beta*(z - r)); Ethayarajh et al. (2024)
    Kto {
        /// beta
        beta: f64,
        /// weight of desirable answers
        desirable: f64,
        /// weight of undesirable answers
        undesirable: f64,
    },
    /// `x*, t, weight?` of one shape, `pos_weight` of the last axis; item per element; Mean divides by the count
    BcePosWeight,
    /// `p*` [.., Q], `t` [..], `levels` \[Q\]; item per element
    Quantiles,
    /// `d_fake*, d_real*?` of one shape, item per element: the generator's loss, or with d_real the discriminator's
    Adversarial {
        /// scoring
        mode: Adversary,
    },
}
