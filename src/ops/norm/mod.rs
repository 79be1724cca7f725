//! Normalization: signatures; checks stand in `norm_check.rs`.

mod check;

pub(crate) use self::check::*;

use crate::buffer::{GradMut, View, ViewMut};
use crate::error::Result;
use crate::ops::activation::Activation;

/// Normalization of rows: the trailing axes of a tensor. Layer norm (Ba et al., 2016) or RMS norm (Zhang and Sennrich, 2019).
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct RowNorm {
    /// Leave out the mean: RMS norm.
    pub rms: bool,
    /// Number of trailing axes that make up a row.
    pub axes: usize,
    /// Added to the variance, above 0.
    pub eps: f64,
    /// Added to gamma (Gemma stores gamma - 1).
    pub gamma_offset: f64,
    /// Applied to the result.
    pub act: Activation,
}

impl RowNorm {
    /// Layer norm over the last axis, eps 1e-5.
    pub const fn layer() -> Self {
        RowNorm { rms: false, axes: 1, eps: 1e-5, gamma_offset: 0.0, act: Activation::Identity }
    }

    /// RMS norm over the last axis, eps 1e-6.
    pub const fn rms() -> Self {
        RowNorm { rms: true, axes: 1, eps: 1e-6, gamma_offset: 0.0, act: Activation::Identity }
    }

    /// Sets the number of trailing axes.
    pub const fn axes(mut self, axes: usize) -> Self {
        self.axes = axes;
        self
    }

    /// Sets eps.
    pub const fn eps(mut self, eps: f64) -> Self {
        self.eps = eps;
        self
    }

    /// Sets what is added to gamma.
    pub const fn gamma_offset(mut self, offset: f64) -> Self {
        self.gamma_offset = offset;
        self
    }

    /// Sets the activation.
    pub const fn act(mut self, act: Activation) -> Self {
        self.act = act;
        self
    }
}

io_struct! {
    /// Operands of [`NormOps::row_norm`]. Statistics are f32 (f64 for f64 data), one per row.
    #[derive(Debug)]
    pub struct RowNormFwd<'a> {
        /// Input, contiguous.
        pub x: View<'a>,
        /// Added to x first, x's shape.
        pub residual: Option<View<'a>>,
        /// Scale per column; 1 without.
        pub gamma: Option<View<'a>>,
        /// Shift per column; 0 without.
        pub beta: Option<View<'a>>,
        /// Result, x's shape.
        pub y: ViewMut<'a>,
        /// x + residual; what the gradient takes as x where there is a residual.
        pub sum: Option<ViewMut<'a>>,
        /// Mean per row; not for RMS norm.
        pub mean: Option<ViewMut<'a>>,
        /// 1 / sqrt(variance + eps) per row.
        pub rstd: Option<ViewMut<'a>>,
    }
}

io_struct! {
    /// Operands of [`NormBackwardOps::row_norm_bwd`].
    #[derive(Debug)]
    pub struct RowNormBwd<'a> {
        /// Upstream gradient, x's shape.
        pub dy: View<'a>,
        /// What was normalised: the forward's x, or its `sum`.
        pub x: View<'a>,
        /// Forward's gamma.
        pub gamma: Option<View<'a>>,
        /// Forward's beta; read where an activation is to be undone from x.
        pub beta: Option<View<'a>>,
        /// Forward's result; used instead of x by relu, sigmoid and tanh where it is given.
        pub y: Option<View<'a>>,
        /// Saved mean; not for RMS norm.
        pub mean: Option<View<'a>>,
        /// Saved rstd.
        pub rstd: View<'a>,
        /// Added to dx: the gradient that reaches `sum` by the other way.
        pub add: Option<View<'a>>,
        /// Gradient of x, and of the residual.
        pub dx: Option<GradMut<'a>>,
        /// Gradient of gamma.
        pub dgamma: Option<GradMut<'a>>,
        /// Gradient of beta.
        pub dbeta: Option<GradMut<'a>>,
    }
}

/// Normalization of groups of channels of [N, C, S...] (Wu and He, 2018).
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct GroupNorm {
    /// Number of groups, a divisor of C.
    pub groups: usize,
    /// Added to the variance, above 0.
    pub eps: f64,
    /// Applied to the result.
    pub act: Activation,
}

impl GroupNorm {
    /// eps 1e-5, no activation.
    pub const fn new(groups: usize) -> Self {
        GroupNorm { groups, eps: 1e-5, act: Activation::Identity }
    }

    /// Sets eps.
    pub const fn eps(mut self, eps: f64) -> Self {
        self.eps = eps;
        self
    }

    /// Sets the activation.
    pub const fn act(mut self, act: Activation) -> Self {
        self.act = act;
        self
    }
}

/// Normalization of each channel of each sample of [N, C, S...] over S (Ulyanov et al., 2016).
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct InstanceNorm {
    /// Added to the variance, above 0.
    pub eps: f64,
    /// Applied to the result.
    pub act: Activation,
}

impl InstanceNorm {
    /// eps 1e-5, no activation.
    pub const fn new() -> Self {
        InstanceNorm { eps: 1e-5, act: Activation::Identity }
    }

    /// Sets eps.
    pub const fn eps(mut self, eps: f64) -> Self {
        self.eps = eps;
        self
    }

    /// Sets the activation.
    pub const fn act(mut self, act: Activation) -> Self {
        self.act = act;
        self
    }

    /// The same as groups of one channel, for [`NormBackwardOps::group_norm_bwd`].
    pub const fn groups(self, channels: usize) -> GroupNorm {
        GroupNorm { groups: channels, eps: self.eps, act: self.act }
    }
}

impl Default for InstanceNorm {
    fn default() -> Self {
        InstanceNorm::new()
    }
}

io_struct! {
    /// Operands of [`NormOps::group_norm`] and [`NormOps::instance_norm`]. Statistics [N, groups] (groups of instance norm: C) are f32 (f64 for
    /// f64 data).
    #[derive(Debug)]
    pub struct GroupNormFwd<'a> {
        /// Input [N, C, S...], contiguous.
        pub x: View<'a>,
        /// Added to x first, x's shape.
        pub residual: Option<View<'a>>,
        /// Scale per channel; 1 without.
        pub gamma: Option<View<'a>>,
        /// Shift per channel; 0 without.
        pub beta: Option<View<'a>>,
        /// Result, x's shape.
        pub y: ViewMut<'a>,
        /// x + residual; what the gradient takes as x where there is a residual.
        pub sum: Option<ViewMut<'a>>,
        /// Mean per group.
        pub mean: Option<ViewMut<'a>>,
        /// 1 / sqrt(variance + eps) per group.
        pub rstd: Option<ViewMut<'a>>,
        /// Instance norm only: running statistics per channel, updated by the means over N of mean and unbiased variance.
        pub running: Option<Running<'a>>,
    }
}

io_struct! {
    /// Operands of [`NormBackwardOps::group_norm_bwd`].
    #[derive(Debug)]
    pub struct GroupNormBwd<'a> {
        /// Upstream gradient, x's shape.
        pub dy: View<'a>,
        /// What was normalised: the forward's x, or its `sum`.
        pub x: View<'a>,
        /// Forward's gamma.
        pub gamma: Option<View<'a>>,
        /// Forward's beta; read where an activation is to be undone from x.
        pub beta: Option<View<'a>>,
        /// Forward's result; used instead of x by relu, sigmoid and tanh where it is given.
        pub y: Option<View<'a>>,
        /// Saved mean [N, groups].
        pub mean: View<'a>,
        /// Saved rstd [N, groups].
        pub rstd: View<'a>,
        /// Added to dx: the gradient that reaches `sum` by the other way.
        pub add: Option<View<'a>>,
        /// Gradient of x, and of the residual.
        pub dx: Option<GradMut<'a>>,
        /// Gradient of gamma.
        pub dgamma: Option<GradMut<'a>>,
        /// Gradient of beta.
        pub dbeta: Option<GradMut<'a>>,
    }
}

/// Weight of a new batch in running statistics: running = (1 - m) * running + m * new.
#[derive(Debug)]
#[non_exhaustive]
pub enum Momentum<'a> {
    /// A fixed weight, 0.1 by PyTorch's default.
    Factor(f64),
    /// 1 / (counter + 1): the average of all batches. The counter (one i64) holds the number of batches before and is increased by one.
    Cumulative(ViewMut<'a>),
}

io_struct! {
    /// Running statistics that a batch updates.
    #[derive(Debug)]
    pub struct Running<'a> {
        /// Running mean \[C\], f32 (f64 for f64 data).
        pub mean: ViewMut<'a>,
        /// Running variance \[C\], the unbiased one.
        pub var: ViewMut<'a>,
        /// Weight of the new batch.
        pub momentum: Momentum<'a>,
    }
}

/// Statistics that batch norm uses.
#[derive(Debug)]
#[non_exhaustive]
pub enum BatchStats<'a> {
    /// Those of the batch (training); running ones are updated where given.
    Batch(Option<Running<'a>>),
    /// Given ones (inference), which are only read.
    Given {
        /// mean \[C\]
        mean: View<'a>,
        /// variance \[C\]
        var: View<'a>,
    },
}

/// Normalization of the channels of [N, C, S...] over N and S (Ioffe and Szegedy, 2015).
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct BatchNorm {
    /// Added to the variance, above 0.
    pub eps: f64,
    /// Applied to the result, after the residual.
    pub act: Activation,
}

impl BatchNorm {
    /// eps 1e-5, no activation.
    pub const fn new() -> Self {
        BatchNorm { eps: 1e-5, act: Activation::Identity }
    }

    /// Sets eps.
    pub const fn eps(mut self, eps: f64) -> Self {
        self.eps = eps;
        self
    }

    /// Sets the activation.
    pub const fn act(mut self, act: Activation) -> Self {
        self.act = act;
        self
    }
}

impl Default for BatchNorm {
    fn default() -> Self {
        BatchNorm::new()
    }
}

io_struct! {
    /// Operands of [`NormOps::batch_norm`].
    #[derive(Debug)]
    pub struct BatchNormFwd<'a> {
        /// Input [N, C] or [N, C, S...], contiguous or channels last.
        pub x: View<'a>,
        /// Added to the normalised x before the activation, x's shape.
        pub residual: Option<View<'a>>,
        /// Scale per channel; 1 without.
        pub gamma: Option<View<'a>>,
        /// Shift per channel; 0 without.
        pub beta: Option<View<'a>>,
        /// Which statistics are used.
        pub stats: BatchStats<'a>,
        /// Result, x's shape.
        pub y: ViewMut<'a>,
        /// Mean \[C\] that was used, f32 (f64 for f64 data).
        pub mean: Option<ViewMut<'a>>,
        /// 1 / sqrt(variance + eps) \[C\] that was used.
        pub rstd: Option<ViewMut<'a>>,
    }
}

io_struct! {
    /// Operands of [`NormBackwardOps::batch_norm_bwd`].
    #[derive(Debug)]
    pub struct BatchNormBwd<'a> {
        /// Upstream gradient, x's shape.
        pub dy: View<'a>,
        /// Forward's input.
        pub x: View<'a>,
        /// Forward's residual; read where an activation is to be undone from x.
        pub residual: Option<View<'a>>,
        /// Forward's gamma.
        pub gamma: Option<View<'a>>,
        /// Forward's beta; read where an activation is to be undone from x.
        pub beta: Option<View<'a>>,
        /// Forward's result; used instead of x by relu, sigmoid and tanh where it is given.
        pub y: Option<View<'a>>,
        /// Saved mean \[C\].
        pub mean: View<'a>,
        /// Saved rstd \[C\].
        pub rstd: View<'a>,
        /// Whether the statistics were those of the batch and so depend on x.
        pub training: bool = true,
        /// Gradient of x.
        pub dx: Option<GradMut<'a>>,
        /// Gradient of the residual.
        pub dresidual: Option<GradMut<'a>>,
        /// Gradient of gamma.
        pub dgamma: Option<GradMut<'a>>,
        /// Gradient of beta.
        pub dbeta: Option<GradMut<'a>>,
    }
}

op_family! {
    /// Normalization over batches, rows, groups and instances. Operands are floats of one dtype, contiguous (but see `batch_norm`); statistics are f32 (f64 for f64 data), found in
    /// two passes or combined after Chan et al., never as a difference of squares. Variances are divided by the count; running ones by the count less one.
    /// Activations: those of fused matrix products. Outputs share no memory with inputs. Deterministic: parameter gradients are summed in two stages.
    /// Errors: shapes, dtypes, eps not above 0, another activation.
    pub trait NormOps : Norm => NORM_OPS {
        /// y = act((s - mean(s)) * rstd * (gamma + offset) + beta) per row, s = x + residual; RMS norm takes the mean as 0.
        /// Oracle `F.layer_norm`, `F.rms_norm`.
        fn row_norm(&self, p: &RowNorm, io: RowNormFwd<'_>) -> Result<()>;
        /// The same over groups of C / groups channels with their inner axes, gamma and beta per channel. Oracle `F.group_norm`.
        /// Errors: C not divisible; running statistics.
        fn group_norm(&self, p: &GroupNorm, io: GroupNormFwd<'_>) -> Result<()>;
        /// The same over each channel of each sample. With given running statistics it is [`NormOps::batch_norm`] with [`BatchStats::Given`].
        /// Oracle `F.instance_norm`. Errors: one value per instance.
        fn instance_norm(&self, p: &InstanceNorm, io: GroupNormFwd<'_>) -> Result<()>;
        /// y = act((x - mean) * rstd * gamma + beta + residual) per channel. x, residual and y, and in the gradient dy, dx and dresidual, are all
        /// contiguous or all [channels last](crate::Layout::channels_last). Oracle `F.batch_norm`. Errors: one value per channel in training.
        fn batch_norm(&self, p: &BatchNorm, io: BatchNormFwd<'_>) -> Result<()>;
        /// y = x / max(r, eps) with the Euclidean norm r along `axis`. Oracle `F.normalize`. Errors: axis out of range, eps below 0.
        fn l2_normalize(&self, axis: usize, eps: f64, x: View<'_>, y: ViewMut<'_>) -> Result<()>;
        /// dx = (dy - xh * sum(dy * xh)) / r with xh = x / r; dy / eps where r is not above eps.
        fn l2_normalize_bwd(&self, axis: usize, eps: f64, dy: View<'_>, x: View<'_>, dx: GradMut<'_>) -> Result<()>;
    }
}

op_family! {
    /// Gradients of the normalizations.
    pub trait NormBackwardOps : Norm => NORM_BACKWARD_OPS {
        /// With xh = (x - mean) * rstd, dz = dy * act', g = dz * (gamma + offset): dx = rstd * (g - mean(g) - xh * mean(g * xh)) + add (without mean(g) for
        /// RMS norm), dgamma = sum of dz * xh and dbeta = sum of dz over the rows. Each output is optional.
        fn row_norm_bwd(&self, p: &RowNorm, io: RowNormBwd<'_>) -> Result<()>;
        /// Gradients of [`NormOps::group_norm`], and with `groups` = C of [`NormOps::instance_norm`]; formulas as in [`NormBackwardOps::row_norm_bwd`].
        fn group_norm_bwd(&self, p: &GroupNorm, io: GroupNormBwd<'_>) -> Result<()>;
        /// Gradients of [`NormOps::batch_norm`]; formulas as in [`NormBackwardOps::row_norm_bwd`]; with given statistics dx = dz * gamma * rstd.
        fn batch_norm_bwd(&self, p: &BatchNorm, io: BatchNormBwd<'_>) -> Result<()>;
    }
}
