//! Losses. Results are device values; nothing is read back.

use crate::buffer::{GradMut, View, ViewMut};
use crate::error::Result;

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
}

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
    /// Gradient of the target.
    pub dt: Option<GradMut<'a>>,
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

/// Operands of [`LossOps::cross_entropy`].
#[derive(Debug)]
pub struct CrossEntropyFwd<'a> {
    /// Logits [N, C, S...] (or [N, C]), contiguous.
    pub x: View<'a>,
    /// Class ids [N, S...] (i32, i64), or probabilities of x's shape and dtype.
    pub target: View<'a>,
    /// Weight per class [C], x's dtype.
    pub weight: Option<View<'a>>,
    /// f32 scalar, or [N, S...] in x's dtype for `Reduction::None`.
    pub loss: ViewMut<'a>,
    /// Saved for the backward: ln sum e^x, f32 [N, S...].
    pub lse: Option<ViewMut<'a>>,
    /// Saved for the backward of `Mean`: the denominator, one f32.
    pub den: Option<ViewMut<'a>>,
}

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

op_family! {
    /// Losses. f32, f16, bf16 and f64 data; items and sums in f32 (f64 for f64) by a fixed tree.
    pub trait LossOps : Loss => LOSS_OPS {
        /// Forward of an elementwise loss. Errors: unequal shapes or dtypes, wrong size of `loss`.
        fn loss(&self, kind: Loss, reduction: Reduction, io: LossFwd<'_>) -> Result<()>;
        /// Gradients of [`LossOps::loss`].
        fn loss_bwd(&self, kind: Loss, reduction: Reduction, io: LossBwd<'_>) -> Result<()>;
        /// Cross entropy of logits with class ids or probabilities. A class id outside [0, C) that is not `ignore_index` is `IndexOutOfRange`.
        fn cross_entropy(&self, p: &CrossEntropy, io: CrossEntropyFwd<'_>) -> Result<()>;
        /// Gradient of [`LossOps::cross_entropy`] with respect to the logits.
        fn cross_entropy_bwd(&self, p: &CrossEntropy, io: CrossEntropyBwd<'_>) -> Result<()>;
    }
}
