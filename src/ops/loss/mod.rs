//! Losses. Results are device values; nothing is read back.

mod batch;
mod rows;
mod sequence;
mod stft;

pub use self::batch::*;
pub use self::rows::*;
pub use self::sequence::*;
pub use self::stft::*;

use crate::buffer::{GradMut, View, ViewMut};
use crate::dtype::DType;
use crate::error::{GpuError, Result};
use crate::ops::check;

/// How per-item losses are combined.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Reduction {
    /// One value per item.
    None,
    /// Divided by the number of items (by the sum of weights, or the count of the mask, where given). NaN without items.
    #[default]
    Mean,
    /// Plain sum.
    Sum,
}

/// Elementwise losses of a prediction p and a target t of one shape.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum Loss {
    /// (p - t)^2, `F.mse_loss`
    Mse,
    /// p^2 (t is not used): residuals
    Square,
    /// |p - t|, `F.l1_loss`
    Mae,
    /// d^2 / (2 beta) where d = |p - t| < beta, else d - beta/2; `F.smooth_l1_loss`
    SmoothL1 {
        /// width of the parabola, at least 0
        beta: f64,
    },
    /// d^2 / 2 where d = |p - t| <= delta, else delta*(d - delta/2); `F.huber_loss`
    Huber {
        /// width of the parabola, above 0
        delta: f64,
    },
    /// ln cosh(p - t)
    LogCosh,
    /// max(q*(t - p), (q - 1)*(t - p))
    Quantile {
        /// level in [0, 1]
        q: f64,
    },
    /// sqrt((p - t)^2 + eps^2)
    Charbonnier {
        /// rounding of the kink
        eps: f64,
    },
    /// t - p (a diagnostic: unbounded below)
    MeanBias,
    /// max(0, 1 - t*p) for labels t of -1 and 1
    Hinge,
    /// max(0, 1 - t*p)^2
    SquaredHinge,
    /// max(0, 1 - t*p)^2 where t*p >= -1, else -4*t*p
    ModifiedHuber,
    /// e^(-t*p)
    Exponential,
    /// ln(1 + e^(-t*p)), `F.soft_margin_loss`
    SoftMargin,
    /// p where t = 1, max(0, margin - p) where t = -1; `F.hinge_embedding_loss`
    HingeEmbedding {
        /// margin
        margin: f64,
    },
    /// -t*p: critic scores and labels of -1 and 1
    Wasserstein,
    /// p - t*ln(p + eps), or e^p - t*p with `log_input`; `F.poisson_nll_loss`
    Poisson {
        /// added inside the logarithm
        eps: f64,
        /// p is the logarithm of the rate
        log_input: bool,
        /// add Stirling's term for t > 1
        full: bool,
    },
    /// t*(ln t - ln p), 0 where t = 0; `F.kl_div` of single elements ([`RowLoss::Kl`] for distributions)
    Kl {
        /// p is a logarithm
        log_input: bool,
        /// t is a logarithm
        log_target: bool,
    },
    /// (p^2 - t)^2
    BornMse,
    /// Probabilities: -(t*max(ln p, -100) + (1-t)*max(ln(1-p), -100)); `F.binary_cross_entropy`. Mean divides by the count of items.
    Bce,
    /// Logits: ln(1 + e^p) - p*t; `F.binary_cross_entropy_with_logits`. Mean divides by the count of items.
    BceLogits,
    /// Logits: a_t*(1 - pt)^gamma*bce, pt = probability of t, a_t = alpha*t + (1-alpha)*(1-t); `torchvision.ops.sigmoid_focal_loss`
    FocalLogits {
        /// weight of the positive class; negative for none
        alpha: f64,
        /// exponent
        gamma: f64,
    },
    /// The same of probabilities.
    Focal {
        /// weight of the positive class; negative for none
        alpha: f64,
        /// exponent
        gamma: f64,
    },
}

impl Loss {
    /// Whether the loss depends on p - t alone, so that t has the gradient -dp.
    pub const fn is_symmetric(&self) -> bool {
        matches!(
            self,
            Loss::Mse
                | Loss::Mae
                | Loss::SmoothL1 { .. }
                | Loss::Huber { .. }
                | Loss::LogCosh
                | Loss::Quantile { .. }
                | Loss::Charbonnier { .. }
                | Loss::MeanBias
        )
    }

    /// Whether `Mean` divides by the count of items although they are weighted (PyTorch's binary cross entropies).
    pub const fn counts_items(&self) -> bool {
        matches!(self, Loss::Bce | Loss::BceLogits)
    }
}

io_struct! {
    /// One term of [`LossOps::loss_list`].
    #[derive(Debug, Clone, Copy)]
    pub struct LossTerm<'a> {
        /// Prediction, of any shape.
        pub p: View<'a>,
        /// Target of p's shape; may be absent for [`Loss::Square`].
        pub t: Option<View<'a>>,
        /// Factor of this term's mean.
        pub weight: f64 = 1.0,
    }
}

io_struct! {
    /// Operands of [`LossOps::loss`].
    #[derive(Debug)]
    pub struct LossFwd<'a> {
        /// Prediction.
        pub p: View<'a>,
        /// Target, p's shape.
        pub t: View<'a>,
        /// Weight per item, p's shape and dtype.
        pub weight: Option<View<'a>>,
        /// Items that count (u8), p's shape.
        pub mask: Option<View<'a>>,
        /// f32 scalar (one element; f64 for f64 data), or p's shape and dtype for `Reduction::None`.
        pub loss: ViewMut<'a>,
    }
}

io_struct! {
    /// Operands of [`LossOps::loss_bwd`].
    #[derive(Debug)]
    pub struct LossBwd<'a> {
        /// Upstream gradient: one element (f32, or p's dtype), or p's shape for `Reduction::None`.
        pub gy: View<'a>,
        /// Prediction.
        pub p: View<'a>,
        /// Target.
        pub t: View<'a>,
        /// As in the forward.
        pub weight: Option<View<'a>>,
        /// As in the forward.
        pub mask: Option<View<'a>>,
        /// Gradient of the prediction.
        pub dp: Option<GradMut<'a>>,
        /// Gradient of the target, for losses of p - t ([`Loss::is_symmetric`]).
        pub dt: Option<GradMut<'a>>,
    }
}

/// Cross entropy of logits, `F.cross_entropy`.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct CrossEntropy {
    /// How items are combined; `Mean` divides by the sum of the targets' weights (by the number of positions for probabilities).
    pub reduction: Reduction,
    /// Class id whose items do not count.
    pub ignore_index: i64,
    /// In [0, 1): share spread over all classes.
    pub label_smoothing: f64,
}

impl CrossEntropy {
    /// Mean, ignore_index -100, no smoothing.
    pub const fn new() -> Self {
        CrossEntropy { reduction: Reduction::Mean, ignore_index: -100, label_smoothing: 0.0 }
    }

    /// Sets the reduction.
    pub const fn reduction(mut self, reduction: Reduction) -> Self {
        self.reduction = reduction;
        self
    }

    /// Sets the ignored class id.
    pub const fn ignore_index(mut self, id: i64) -> Self {
        self.ignore_index = id;
        self
    }

    /// Sets the label smoothing.
    pub const fn label_smoothing(mut self, e: f64) -> Self {
        self.label_smoothing = e;
        self
    }
}

impl Default for CrossEntropy {
    fn default() -> Self {
        CrossEntropy::new()
    }
}

io_struct! {
    /// Operands of [`LossOps::cross_entropy`].
    #[derive(Debug)]
    pub struct CrossEntropyFwd<'a> {
        /// Logits [N, C, S...] (or [N, C]), contiguous.
        pub x: View<'a>,
        /// Class ids [N, S...] (i32, i64), or probabilities of x's shape and dtype.
        pub target: View<'a>,
        /// Weight per class `[C]`, x's dtype.
        pub weight: Option<View<'a>>,
        /// f32 scalar, or [N, S...] in x's dtype for `Reduction::None`.
        pub loss: ViewMut<'a>,
        /// Saved for the backward: ln sum e^x, f32 [N, S...].
        pub lse: Option<ViewMut<'a>>,
        /// Saved for the backward of `Mean`: the denominator, one f32.
        pub den: Option<ViewMut<'a>>,
    }
}

io_struct! {
    /// Operands of [`LossOps::cross_entropy_bwd`].
    #[derive(Debug)]
    pub struct CrossEntropyBwd<'a> {
        /// Upstream gradient: one element (f32 or x's dtype), or [N, S...] for `Reduction::None`.
        pub gy: View<'a>,
        /// Forward's logits.
        pub x: View<'a>,
        /// Forward's target.
        pub target: View<'a>,
        /// Forward's weight.
        pub weight: Option<View<'a>>,
        /// Saved by the forward.
        pub lse: View<'a>,
        /// Saved by the forward; needed for `Mean`.
        pub den: Option<View<'a>>,
        /// Gradient of the logits.
        pub dx: GradMut<'a>,
    }
}

op_family! {
    /// Losses. f32, f16, bf16 and f64 data; items and sums in f32 (f64 for f64) by a fixed tree.
    pub trait LossOps : Loss => LOSS_OPS {
        /// Forward of an elementwise loss. Errors: unequal shapes or dtypes, wrong size of `loss`.
        fn loss(&self, kind: Loss, reduction: Reduction, io: LossFwd<'_>) -> Result<()>;
        /// Gradients of [`LossOps::loss`].
        fn loss_bwd(&self, kind: Loss, reduction: Reduction, io: LossBwd<'_>) -> Result<()>;
        /// loss = sum over terms of weight * mean of the elementwise loss (perceptual and physics-informed losses); all of one dtype.
        fn loss_list(&self, kind: Loss, terms: &[LossTerm<'_>], loss: ViewMut<'_>) -> Result<()>;
        /// Gradients of [`LossOps::loss_list`], one per term; `gy` is one element.
        fn loss_list_bwd(&self, kind: Loss, gy: View<'_>, terms: &[LossTerm<'_>], dp: &mut [GradMut<'_>]) -> Result<()>;
        /// Cross entropy of logits with class ids or probabilities. A class id outside [0, C) that is not `ignore_index` is `IndexOutOfRange`.
        fn cross_entropy(&self, p: &CrossEntropy, io: CrossEntropyFwd<'_>) -> Result<()>;
        /// Gradient of [`LossOps::cross_entropy`] with respect to the logits.
        fn cross_entropy_bwd(&self, p: &CrossEntropy, io: CrossEntropyBwd<'_>) -> Result<()>;
    }
}

pub(crate) fn one_element(op: &'static str, arg: &'static str, v: &View<'_>, dtypes: &[DType]) -> Result<()> {
    check::one_of(op, arg, v, dtypes)?;
    if v.numel() == 1 { Ok(()) } else { check::shape(op, arg, v, &[]) }
}

/// p, t, weight and mask of an elementwise loss.
fn check_items(
    op: &'static str,
    p: &View<'_>,
    t: &View<'_>,
    weight: Option<&View<'_>>,
    mask: Option<&View<'_>>,
) -> Result<()> {
    check::float(op, "p", p)?;
    check::contiguous(op, "p", p)?;
    let vectors = [("t", Some(t), p.dtype()), ("weight", weight, p.dtype()), ("mask", mask, DType::U8)];
    for (arg, v, dtype) in vectors {
        let Some(v) = v else { continue };
        check::dtype(op, arg, v, dtype)?;
        check::shape(op, arg, v, p.shape())?;
        check::contiguous(op, arg, v)?;
    }
    Ok(())
}

/// Numbers that a loss cannot use.
fn check_kind(op: &'static str, kind: Loss) -> Result<()> {
    let bad = |arg, want: &'static str, x: f64| Err(GpuError::invalid(op, arg, want, format!("{x}")));
    match kind {
        Loss::SmoothL1 { beta } if beta.is_nan() || beta < 0.0 => bad("beta", "a width not below 0", beta),
        Loss::Huber { delta } if delta.is_nan() || delta <= 0.0 => bad("delta", "a width above 0", delta),
        Loss::Quantile { q } if !(0.0..=1.0).contains(&q) => bad("q", "a level in [0, 1]", q),
        Loss::FocalLogits { gamma, .. } | Loss::Focal { gamma, .. } if gamma.is_nan() || gamma < 0.0 => {
            bad("gamma", "an exponent not below 0", gamma)
        }
        _ => Ok(()),
    }
}

/// Terms of a list of losses.
fn check_terms(op: &'static str, kind: Loss, terms: &[LossTerm<'_>]) -> Result<()> {
    check_kind(op, kind)?;
    for x in terms {
        check::dtype(op, "p", &x.p, terms[0].p.dtype())?;
        if x.t.is_none() && kind != Loss::Square {
            return Err(GpuError::invalid(op, "t", "a target", "nothing"));
        }
        check_items(op, &x.p, x.t.as_ref().unwrap_or(&x.p), None, None)?;
    }
    Ok(())
}

/// Checks of [`LossOps::loss_list`].
pub(crate) fn check_loss_list(kind: Loss, terms: &[LossTerm<'_>], loss: &ViewMut<'_>) -> Result<()> {
    const OP: &str = "loss_list";
    check_terms(OP, kind, terms)?;
    let acc = terms.first().map_or(loss.dtype(), |x| x.p.dtype().accumulator());
    one_element(OP, "loss", &loss.as_view(), &[acc])?;
    let inputs: Vec<_> = terms.iter().flat_map(|x| [Some(x.p), x.t]).flatten().map(|v| ("p", v)).collect();
    check::separate_output(OP, "loss", loss, &inputs)
}

/// Checks of [`LossOps::loss_list_bwd`].
pub(crate) fn check_loss_list_bwd(
    kind: Loss,
    gy: &View<'_>,
    terms: &[LossTerm<'_>],
    dp: &[GradMut<'_>],
) -> Result<()> {
    const OP: &str = "loss_list_bwd";
    check_terms(OP, kind, terms)?;
    if dp.len() != terms.len() {
        let (want, got) = (format!("{} gradients", terms.len()), format!("{}", dp.len()));
        return Err(GpuError::invalid(OP, "dp", want, got));
    }
    let mut others = vec![("gy", *gy)];
    others.extend(terms.iter().flat_map(|x| [Some(x.p), x.t]).flatten().map(|v| ("p", v)));
    for (x, d) in terms.iter().zip(dp) {
        one_element(OP, "gy", gy, &[x.p.dtype().accumulator(), x.p.dtype()])?;
        let v = d.out.as_view();
        check::dtype(OP, "dp", &v, x.p.dtype())?;
        check::shape(OP, "dp", &v, x.p.shape())?;
        check::contiguous(OP, "dp", &v)?;
        check::separate_output(OP, "dp", &d.out, &others)?;
        others.push(("dp", v));
    }
    Ok(())
}

/// Checks of [`LossOps::loss`].
pub(crate) fn check_loss(kind: Loss, reduction: Reduction, io: &LossFwd<'_>) -> Result<()> {
    const OP: &str = "loss";
    check_kind(OP, kind)?;
    check_items(OP, &io.p, &io.t, io.weight.as_ref(), io.mask.as_ref())?;
    let v = io.loss.as_view();
    if reduction == Reduction::None {
        check::dtype(OP, "loss", &v, io.p.dtype())?;
        check::shape(OP, "loss", &v, io.p.shape())?;
        check::contiguous(OP, "loss", &v)?;
    } else {
        one_element(OP, "loss", &v, &[io.p.dtype().accumulator()])?;
    }
    let mut inputs = vec![("p", io.p), ("t", io.t)];
    inputs.extend(io.weight.map(|w| ("weight", w)));
    inputs.extend(io.mask.map(|m| ("mask", m)));
    check::separate_output(OP, "loss", &io.loss, &inputs)
}

/// Checks of [`LossOps::loss_bwd`].
pub(crate) fn check_loss_bwd(kind: Loss, reduction: Reduction, io: &LossBwd<'_>) -> Result<()> {
    const OP: &str = "loss_bwd";
    check_kind(OP, kind)?;
    if io.dt.is_some() && !kind.is_symmetric() {
        return Err(GpuError::invalid(
            OP,
            "dt",
            "nothing: the target of this loss has no gradient",
            "a buffer",
        ));
    }
    check_items(OP, &io.p, &io.t, io.weight.as_ref(), io.mask.as_ref())?;
    if reduction == Reduction::None {
        check::dtype(OP, "gy", &io.gy, io.p.dtype())?;
        check::shape(OP, "gy", &io.gy, io.p.shape())?;
        check::contiguous(OP, "gy", &io.gy)?;
    } else {
        one_element(OP, "gy", &io.gy, &[io.p.dtype().accumulator(), io.p.dtype()])?;
    }
    let mut inputs = vec![("gy", io.gy), ("p", io.p), ("t", io.t)];
    inputs.extend(io.weight.map(|w| ("weight", w)));
    inputs.extend(io.mask.map(|m| ("mask", m)));
    for (arg, g) in [("dp", &io.dp), ("dt", &io.dt)] {
        let Some(g) = g else { continue };
        let v = g.out.as_view();
        check::dtype(OP, arg, &v, io.p.dtype())?;
        check::shape(OP, arg, &v, io.p.shape())?;
        check::contiguous(OP, arg, &v)?;
        check::separate_output(OP, arg, &g.out, &inputs)?;
        inputs.push((arg, v));
    }
    Ok(())
}

/// Sizes of a cross-entropy problem.
#[derive(Debug, Clone, Copy)]
pub(crate) struct XentShape {
    /// Samples.
    pub(crate) n: usize,
    /// Classes.
    pub(crate) c: usize,
    /// Positions per sample.
    pub(crate) s: usize,
    /// Whether the target holds probabilities.
    pub(crate) probs: bool,
}

fn check_xent(
    op: &'static str,
    p: &CrossEntropy,
    x: &View<'_>,
    target: &View<'_>,
    weight: Option<&View<'_>>,
) -> Result<(XentShape, Vec<usize>)> {
    check::float(op, "x", x)?;
    check::contiguous(op, "x", x)?;
    if !(0.0..=1.0).contains(&p.label_smoothing) {
        return Err(GpuError::invalid(
            op,
            "label_smoothing",
            "a share in [0, 1]",
            format!("{}", p.label_smoothing),
        ));
    }
    let shape = x.shape();
    if shape.len() < 2 || shape[1] == 0 {
        return Err(GpuError::invalid(
            op,
            "x",
            "shape [N, C, ...] with at least one class",
            format!("{shape:?}"),
        ));
    }
    let mut positions = shape.to_vec();
    positions.remove(1);
    let probs = target.dtype().is_float();
    if probs {
        check::dtype(op, "target", target, x.dtype())?;
        check::shape(op, "target", target, shape)?;
    } else {
        check::one_of(op, "target", target, &[DType::I32, DType::I64])?;
        check::shape(op, "target", target, &positions)?;
    }
    check::contiguous(op, "target", target)?;
    if let Some(w) = weight {
        check::dtype(op, "weight", w, x.dtype())?;
        check::shape(op, "weight", w, &[shape[1]])?;
        check::contiguous(op, "weight", w)?;
    }
    let s = positions[1..].iter().product();
    Ok((XentShape { n: shape[0], c: shape[1], s, probs }, positions))
}

/// Checks of [`LossOps::cross_entropy`].
pub(crate) fn check_cross_entropy(p: &CrossEntropy, io: &CrossEntropyFwd<'_>) -> Result<XentShape> {
    const OP: &str = "cross_entropy";
    let (xs, positions) = check_xent(OP, p, &io.x, &io.target, io.weight.as_ref())?;
    let acc = io.x.dtype().accumulator();
    let v = io.loss.as_view();
    if p.reduction == Reduction::None {
        check::dtype(OP, "loss", &v, io.x.dtype())?;
        check::shape(OP, "loss", &v, &positions)?;
        check::contiguous(OP, "loss", &v)?;
    } else {
        one_element(OP, "loss", &v, &[acc])?;
    }
    let mut others = vec![("x", io.x), ("target", io.target)];
    others.extend(io.weight.map(|w| ("weight", w)));
    check::separate_output(OP, "loss", &io.loss, &others)?;
    others.push(("loss", v));
    if let Some(l) = &io.lse {
        let v = l.as_view();
        check::dtype(OP, "lse", &v, acc)?;
        check::shape(OP, "lse", &v, &positions)?;
        check::contiguous(OP, "lse", &v)?;
        check::separate_output(OP, "lse", l, &others)?;
        others.push(("lse", v));
    }
    if let Some(d) = &io.den {
        one_element(OP, "den", &d.as_view(), &[acc])?;
        check::separate_output(OP, "den", d, &others)?;
    }
    Ok(xs)
}

/// Checks of [`LossOps::cross_entropy_bwd`].
pub(crate) fn check_cross_entropy_bwd(p: &CrossEntropy, io: &CrossEntropyBwd<'_>) -> Result<XentShape> {
    const OP: &str = "cross_entropy_bwd";
    let (xs, positions) = check_xent(OP, p, &io.x, &io.target, io.weight.as_ref())?;
    let acc = io.x.dtype().accumulator();
    check::dtype(OP, "lse", &io.lse, acc)?;
    check::shape(OP, "lse", &io.lse, &positions)?;
    check::contiguous(OP, "lse", &io.lse)?;
    if p.reduction == Reduction::None {
        check::dtype(OP, "gy", &io.gy, io.x.dtype())?;
        check::shape(OP, "gy", &io.gy, &positions)?;
        check::contiguous(OP, "gy", &io.gy)?;
    } else {
        one_element(OP, "gy", &io.gy, &[acc, io.x.dtype()])?;
    }
    match (&io.den, p.reduction) {
        (Some(d), Reduction::Mean) => one_element(OP, "den", d, &[acc])?,
        (None, Reduction::Mean) => {
            return Err(GpuError::invalid(
                OP,
                "den",
                "the denominator that the forward of Mean saved",
                "nothing",
            ));
        }
        _ => {}
    }
    let v = io.dx.out.as_view();
    check::dtype(OP, "dx", &v, io.x.dtype())?;
    check::shape(OP, "dx", &v, io.x.shape())?;
    check::contiguous(OP, "dx", &v)?;
    check::elementwise_output(OP, "dx", &io.dx.out, &[("x", io.x)])?;
    let mut others = vec![("gy", io.gy), ("target", io.target), ("lse", io.lse)];
    others.extend(io.weight.map(|w| ("weight", w)));
    check::separate_output(OP, "dx", &io.dx.out, &others)?;
    Ok(xs)
}
