//! Losses with one item per row: the enum, its operands, and the checks.

use crate::ops::loss::Reduction;
use crate::buffer::{GradMut, View, ViewMut};
use crate::dtype::DType;
use crate::error::{GpuError, Result};
use crate::ops::check;

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
/// [`RowLossFwd::x`] in order; `*` marks those that have a gradient, `?` those that may be absent. Rows are the last axis unless stated.
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

/// Where an operand's numbers stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// One per element.
    Element = 0,
    /// One per row.
    Row = 1,
    /// A vector that all rows share.
    Shared = 2,
    /// A vector along the last axis, where rows are single elements.
    Last = 3,
    /// A number per all axes but the last, where rows are single elements.
    Lead = 4,
}

/// An operand of a row loss.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Operand {
    pub(crate) name: &'static str,
    pub(crate) role: Role,
    pub(crate) optional: bool,
    pub(crate) grad: bool,
}

/// Class ids of a row loss.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ids {
    No,
    PerRow { classes_beyond: usize, optional: bool },
    List,
}

/// Which axes make a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rows {
    /// All but the last.
    LastAxis,
    /// All but the class axis: axis 1 of [N, C, S..], axis 0 of \[C\].
    ClassAxis,
    /// The first `n` axes number the rows.
    First(usize),
    /// One row.
    Whole,
    /// Every element.
    Each,
}

const fn x(name: &'static str, role: Role) -> Operand {
    Operand { name, role, optional: false, grad: false }
}

impl Operand {
    const fn g(mut self) -> Self {
        self.grad = true;
        self
    }
    const fn opt(mut self) -> Self {
        self.optional = true;
        self
    }
}

use Role::{Element, Last, Lead, Row, Shared};
const PT: &[Operand] = &[x("p", Element).g(), x("t", Element)];
const WL: &[Operand] = &[x("w", Element).g(), x("l", Element).g()];
const WL_REF: &[Operand] =
    &[x("w", Element).g(), x("l", Element).g(), x("w_ref", Element), x("l_ref", Element)];

impl RowLoss {
    pub(crate) const fn operands(&self) -> &'static [Operand] {
        match self {
            RowLoss::Triplet { .. } => {
                const { &[x("a", Element).g(), x("p", Element).g(), x("q", Element).g()] }
            }
            RowLoss::Contrastive { .. } => const { &[x("u", Element).g(), x("v", Element).g(), x("y", Row)] },
            RowLoss::Cosine { .. } => const { &[x("p", Element).g(), x("t", Element).g()] },
            RowLoss::CosineEmbedding { .. } => {
                const { &[x("x1", Element).g(), x("x2", Element).g(), x("y", Row)] }
            }
            RowLoss::Nce => {
                const {
                    &[
                        x("s0", Row).g(),
                        x("sn", Element).g(),
                        x("logq0", Row).opt(),
                        x("logqn", Element).opt(),
                    ]
                }
            }
            RowLoss::Nll { .. } | RowLoss::MultiMargin { .. } => {
                const { &[x("x", Element).g(), x("weight", Shared).opt()] }
            }
            RowLoss::MulticlassFocal { .. } => const { &[x("x", Element).g(), x("alpha", Shared).opt()] },
            RowLoss::Ordinal => {
                const { &[x("f", Element).g().opt(), x("s", Row).g().opt(), x("theta", Shared).g().opt()] }
            }
            RowLoss::Distillation { .. } => const { &[x("z", Element).g(), x("y", Element)] },
            RowLoss::Dino { .. } => const { &[x("z", Element).g(), x("y", Element), x("center", Shared)] },
            RowLoss::ArcFace { .. } | RowLoss::Z { .. } | RowLoss::MultilabelMargin => {
                const { &[x("x", Element).g()] }
            }
            RowLoss::MultilabelSoftMargin => {
                const { &[x("x", Element).g(), x("t", Element), x("weight", Shared).opt()] }
            }
            RowLoss::GaussianKl => const { &[x("mu", Element).g(), x("lv", Element).g()] },
            RowLoss::GaussianNll { .. } => {
                const { &[x("p", Element).g(), x("t", Element), x("var", Element).g()] }
            }
            RowLoss::MarginRanking { .. } => {
                const { &[x("x1", Element).g(), x("x2", Element).g(), x("y", Element)] }
            }
            RowLoss::Circle { .. } => const { &[x("x", Element).g(), x("y", Element).opt()] },
            RowLoss::Kto { .. } => {
                const { &[x("w", Element).g(), x("w_ref", Element), x("y", Element), x("kl", Shared).opt()] }
            }
            RowLoss::Dpo { .. } | RowLoss::Ipo { .. } => WL_REF,
            RowLoss::SimPo { .. } | RowLoss::Orpo => WL,
            RowLoss::BcePosWeight => {
                const { &[x("x", Element).g(), x("t", Element), x("weight", Element).opt(), x("pos_weight", Last)] }
            }
            RowLoss::Quantiles => const { &[x("p", Element).g(), x("t", Lead), x("levels", Last)] },
            RowLoss::Adversarial { .. } => {
                const { &[x("d_fake", Element).g(), x("d_real", Element).g().opt()] }
            }
            _ => PT,
        }
    }

    pub(crate) const fn ids(&self) -> Ids {
        match self {
            RowLoss::Nll { .. }
            | RowLoss::MulticlassFocal { .. }
            | RowLoss::ArcFace { .. }
            | RowLoss::MultiMargin { .. } => Ids::PerRow { classes_beyond: 0, optional: false },
            RowLoss::Ordinal => Ids::PerRow { classes_beyond: 1, optional: false },
            RowLoss::Distillation { .. } | RowLoss::Circle { .. } => {
                Ids::PerRow { classes_beyond: 0, optional: true }
            }
            RowLoss::MultilabelMargin => Ids::List,
            _ => Ids::No,
        }
    }

    /// Whether `Mean` divides by weights of the rows.
    pub(crate) const fn weighted(&self) -> bool {
        matches!(self, RowLoss::Nll { .. } | RowLoss::Patches { .. })
    }

    /// Whether the elements of a row lie [`RowShape::width`] apart.
    pub(crate) const fn strided(&self) -> bool {
        matches!(self.rows(), Rows::ClassAxis)
    }

    const fn rows(&self) -> Rows {
        match self {
            RowLoss::Dice { per_channel: true, .. } => Rows::First(2),
            RowLoss::Dice { .. } | RowLoss::Tversky { .. } | RowLoss::Quantum | RowLoss::Depth { .. } => {
                Rows::First(1)
            }
            RowLoss::Rmse | RowLoss::ElasticNet { .. } => Rows::Whole,
            RowLoss::Nll { .. } => Rows::ClassAxis,
            RowLoss::GaussianNll { .. }
            | RowLoss::MarginRanking { .. }
            | RowLoss::Dpo { .. }
            | RowLoss::Ipo { .. }
            | RowLoss::SimPo { .. }
            | RowLoss::Kto { .. }
            | RowLoss::Orpo
            | RowLoss::BcePosWeight
            | RowLoss::Quantiles
            | RowLoss::Adversarial { .. } => Rows::Each,
            _ => Rows::LastAxis,
        }
    }
}

io_struct! {
    /// Operands of [`RowLossOps::row_loss`](super::RowLossOps::row_loss); all contiguous, floating ones of one dtype.
    #[derive(Debug)]
    pub struct RowLossFwd<'a> {
        /// Operands in the order that the variant of [`RowLoss`] lists.
        pub x: [Option<View<'a>>; 4],
        /// Class ids (i32, i64), for losses that have them.
        pub ids: Option<View<'a>>,
        /// u8 mask, for losses that have one.
        pub mask: Option<View<'a>>,
        /// One element of the accumulator's dtype, or one item per row in the operands' dtype for `Reduction::None`.
        pub loss: ViewMut<'a>,
    }
}

io_struct! {
    /// Operands of [`RowLossOps::row_loss_bwd`](super::RowLossOps::row_loss_bwd).
    #[derive(Debug)]
    pub struct RowLossBwd<'a> {
        /// Upstream gradient: one element (f32 or the operands' dtype), or one per row for `Reduction::None`.
        pub gy: View<'a>,
        /// As in the forward.
        pub x: [Option<View<'a>>; 4],
        /// As in the forward.
        pub ids: Option<View<'a>>,
        /// As in the forward.
        pub mask: Option<View<'a>>,
        /// Gradients of the operands, in their places.
        pub dx: [Option<GradMut<'a>>; 4] = [const { None }; 4],
    }
}

op_family! {
    /// Losses with one item per row. f32, f16, bf16 and f64 data; items and sums in f32 (f64 for f64) by a fixed tree.
    pub trait RowLossOps : Loss => ROW_LOSS_OPS {
        /// Forward of a row loss. Without rows, Mean is NaN. A class id out of range that is not ignored is `IndexOutOfRange`.
        fn row_loss(&self, kind: RowLoss, reduction: Reduction, io: RowLossFwd<'_>) -> Result<()>;
        /// Gradients of [`RowLossOps::row_loss`], from its operands alone.
        fn row_loss_bwd(&self, kind: RowLoss, reduction: Reduction, io: RowLossBwd<'_>) -> Result<()>;
    }
}

/// Sizes of a row loss.
#[derive(Debug, Clone)]
pub(crate) struct RowShape {
    pub(crate) dtype: DType,
    pub(crate) items: Vec<usize>,
    pub(crate) rows: usize,
    pub(crate) len: usize,
    /// Size of the last axis where rows are single elements; distance of neighbouring classes where rows lie along the class axis.
    pub(crate) width: usize,
}

fn row_shape(op: &'static str, kind: RowLoss, x: &[Option<View<'_>>; 4]) -> Result<RowShape> {
    let missing = |name: &'static str| GpuError::invalid(op, name, "an operand", "nothing");
    // The shape comes from the first operand with a number per element.
    let first =
        kind.operands().iter().zip(x).find_map(|(o, v)| v.as_ref().filter(|_| o.role == Element)).copied();
    let (shape, dtype) = match (first, kind, x) {
        (Some(v), ..) => (v.shape().to_vec(), v.dtype()),
        (None, RowLoss::Ordinal, [_, Some(s), Some(theta), _]) => {
            ([s.shape(), &[theta.numel()]].concat(), s.dtype())
        }
        _ => return Err(missing(kind.operands()[0].name)),
    };
    let rank = shape.len();
    let split = match kind.rows() {
        Rows::LastAxis | Rows::ClassAxis if rank == 0 => {
            return Err(GpuError::invalid(op, "x", "at least one axis", "a scalar"));
        }
        Rows::LastAxis => rank - 1,
        Rows::ClassAxis => rank.min(2) - 1,
        Rows::First(n) if rank < n => {
            return Err(GpuError::invalid(op, "x", format!("at least {n} axes"), format!("{shape:?}")));
        }
        Rows::First(n) => n,
        Rows::Whole => 0,
        Rows::Each => rank,
    };
    let bad = match kind {
        RowLoss::Boxes { .. } => shape[split..] != [4],
        RowLoss::Quantum => rank < 2 || shape[rank - 1] != 2,
        _ => false,
    };
    if bad {
        return Err(GpuError::invalid(op, "p", "a last axis of 4 corners or 2 parts", format!("{shape:?}")));
    }
    // The row is what follows the split; the class axis alone where there is one.
    let strided = kind.strided();
    let behind = if strided { split + 1 } else { rank };
    let width = if strided { shape[behind..].iter().product() } else { shape.last().copied().unwrap_or(1) };
    let items = [&shape[..split], &shape[behind..]].concat();
    Ok(RowShape {
        dtype,
        rows: items.iter().product(),
        items,
        len: shape[split..behind].iter().product(),
        width: width.max(1),
    })
}

fn check_numbers(op: &'static str, kind: RowLoss) -> Result<()> {
    let bad = |arg, want: &'static str, x: f64| Err(GpuError::invalid(op, arg, want, format!("{x}")));
    let positive = |x: f64| x > 0.0 && x.is_finite();
    match kind {
        RowLoss::Triplet { p, .. } if !positive(p) => bad("p", "a finite degree above 0", p),
        RowLoss::CategoricalCe { label_smoothing: e } if !(0.0..=1.0).contains(&e) => {
            bad("label_smoothing", "a share in [0, 1]", e)
        }
        RowLoss::Distillation { temperature: t, .. } if !positive(t) => {
            bad("temperature", "a number above 0", t)
        }
        RowLoss::Dino { student, teacher } if !positive(student) || !positive(teacher) => {
            bad("temperature", "numbers above 0", student.min(teacher))
        }
        RowLoss::Ipo { beta } if !positive(beta) => bad("beta", "a number above 0", beta),
        RowLoss::MulticlassFocal { gamma } if gamma.is_nan() || gamma < 0.0 => {
            bad("gamma", "an exponent not below 0", gamma)
        }
        _ => Ok(()),
    }
}

/// Checks of everything but the outputs; returns the sizes and all inputs.
fn check_inputs<'a>(
    op: &'static str,
    kind: RowLoss,
    x: &[Option<View<'a>>; 4],
    ids: Option<&View<'a>>,
    mask: Option<&View<'a>>,
) -> Result<(RowShape, Vec<(&'static str, View<'a>)>)> {
    check_numbers(op, kind)?;
    let s = row_shape(op, kind, x)?;
    let full: Vec<usize> = match kind.operands().iter().zip(x).find(|(o, v)| o.role == Element && v.is_some())
    {
        Some((_, Some(v))) => v.shape().to_vec(),
        _ => [&s.items[..], &[s.len]].concat(),
    };
    let mut inputs = vec![];
    for (i, v) in x.iter().enumerate() {
        let Some(o) = kind.operands().get(i) else {
            if v.is_some() {
                return Err(GpuError::invalid(op, "x", "no further operand", "a buffer"));
            }
            continue;
        };
        let Some(v) = v else {
            if !o.optional {
                return Err(GpuError::invalid(op, o.name, "an operand", "nothing"));
            }
            continue;
        };
        check::float(op, o.name, v)?;
        check::dtype(op, o.name, v, s.dtype)?;
        check::contiguous(op, o.name, v)?;
        let want = match o.role {
            Element => full.clone(),
            Row => s.items.clone(),
            Shared => vec![s.len],
            Last => vec![s.width],
            Lead => full[..full.len().saturating_sub(1)].to_vec(),
        };
        check::shape(op, o.name, v, &want)?;
        inputs.push((o.name, *v));
    }
    // Operands that come together.
    let together = |a: usize, b: usize| x[a].is_some() == x[b].is_some();
    let ok = match kind {
        RowLoss::Nce => together(2, 3),
        RowLoss::Ordinal => together(1, 2) && x[0].is_some() != x[1].is_some(),
        RowLoss::Circle { .. } => x[1].is_some() != ids.is_some(),
        _ => true,
    };
    if !ok {
        return Err(GpuError::invalid(op, "x", "operands as the loss lists them", "only some of them"));
    }
    match (kind.ids(), ids) {
        (Ids::No, Some(_)) => return Err(GpuError::invalid(op, "ids", "nothing", "a buffer")),
        (Ids::PerRow { optional: false, .. } | Ids::List, None) => {
            return Err(GpuError::invalid(op, "ids", "class ids", "nothing"));
        }
        (how, Some(v)) => {
            check::one_of(op, "ids", v, &[DType::I32, DType::I64])?;
            check::contiguous(op, "ids", v)?;
            check::shape(op, "ids", v, if how == Ids::List { &full } else { &s.items })?;
            inputs.push(("ids", *v));
        }
        _ => {}
    }
    match (kind, mask) {
        (RowLoss::Patches { .. }, None) => return Err(GpuError::invalid(op, "mask", "a mask", "nothing")),
        (RowLoss::Patches { .. } | RowLoss::Depth { .. }, Some(m)) => {
            check::dtype(op, "mask", m, DType::U8)?;
            check::contiguous(op, "mask", m)?;
            check::shape(op, "mask", m, if kind.weighted() { &s.items } else { &full })?;
            inputs.push(("mask", *m));
        }
        (_, Some(_)) => return Err(GpuError::invalid(op, "mask", "nothing", "a buffer")),
        _ => {}
    }
    Ok((s, inputs))
}

/// A loss or an upstream gradient: one element, or one per row.
fn check_result(
    op: &'static str,
    arg: &'static str,
    kind: RowLoss,
    reduction: Reduction,
    v: &View<'_>,
    s: &RowShape,
    scalars: &[DType],
) -> Result<()> {
    if reduction == Reduction::None {
        if kind.rows() == Rows::Whole {
            return Err(GpuError::invalid(op, "reduction", "mean or sum: the loss is a scalar", "none"));
        }
        check::dtype(op, arg, v, s.dtype)?;
        check::shape(op, arg, v, &s.items)?;
        return check::contiguous(op, arg, v);
    }
    crate::ops::loss::one_element(op, arg, v, scalars)
}

/// Checks of [`RowLossOps::row_loss`](super::RowLossOps::row_loss).
pub(crate) fn check_row_loss(kind: RowLoss, reduction: Reduction, io: &RowLossFwd<'_>) -> Result<RowShape> {
    const OP: &str = "row_loss";
    let (s, inputs) = check_inputs(OP, kind, &io.x, io.ids.as_ref(), io.mask.as_ref())?;
    check_result(OP, "loss", kind, reduction, &io.loss.as_view(), &s, &[s.dtype.accumulator()])?;
    check::separate_output(OP, "loss", &io.loss, &inputs)?;
    Ok(s)
}

/// Checks of [`RowLossOps::row_loss_bwd`](super::RowLossOps::row_loss_bwd).
pub(crate) fn check_row_loss_bwd(
    kind: RowLoss,
    reduction: Reduction,
    io: &RowLossBwd<'_>,
) -> Result<RowShape> {
    const OP: &str = "row_loss_bwd";
    let (s, mut inputs) = check_inputs(OP, kind, &io.x, io.ids.as_ref(), io.mask.as_ref())?;
    check_result(OP, "gy", kind, reduction, &io.gy, &s, &[s.dtype.accumulator(), s.dtype])?;
    inputs.push(("gy", io.gy));
    for (i, g) in io.dx.iter().enumerate() {
        let Some(g) = g else { continue };
        let operand = kind.operands().get(i).filter(|o| o.grad).zip(io.x[i].as_ref());
        let Some((o, x)) = operand else {
            return Err(GpuError::invalid(
                OP,
                "dx",
                "gradients of operands that have one",
                format!("place {i}"),
            ));
        };
        let v = g.out.as_view();
        check::dtype(OP, o.name, &v, s.dtype)?;
        check::shape(OP, o.name, &v, x.shape())?;
        check::contiguous(OP, o.name, &v)?;
        check::separate_output(OP, o.name, &g.out, &inputs)?;
        inputs.push(("dx", v));
    }
    Ok(s)
}
