//! Normalization: signatures and checks.

use crate::buffer::{GradMut, View, ViewMut};
use crate::dtype::DType;
use crate::error::{GpuError, Result};
use crate::ops::{Activation, check, fused_act};

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

impl<'a> RowNormFwd<'a> {
    /// Without parameters, residual and saved statistics.
    pub fn new(x: View<'a>, y: ViewMut<'a>) -> Self {
        RowNormFwd { x, residual: None, gamma: None, beta: None, y, sum: None, mean: None, rstd: None }
    }
}

/// Operands of [`NormOps::row_norm_bwd`].
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

impl<'a> RowNormBwd<'a> {
    /// Without parameters and outputs.
    pub fn new(dy: View<'a>, x: View<'a>, mean: Option<View<'a>>, rstd: View<'a>) -> Self {
        RowNormBwd {
            dy,
            x,
            gamma: None,
            beta: None,
            y: None,
            mean,
            rstd,
            add: None,
            dx: None,
            dgamma: None,
            dbeta: None,
        }
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

    /// The same as groups of one channel, for [`NormOps::group_norm_bwd`].
    pub const fn groups(self, channels: usize) -> GroupNorm {
        GroupNorm { groups: channels, eps: self.eps, act: self.act }
    }
}

impl Default for InstanceNorm {
    fn default() -> Self {
        InstanceNorm::new()
    }
}

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

impl<'a> GroupNormFwd<'a> {
    /// Without parameters, residual, saved and running statistics.
    pub fn new(x: View<'a>, y: ViewMut<'a>) -> Self {
        GroupNormFwd {
            x,
            residual: None,
            gamma: None,
            beta: None,
            y,
            sum: None,
            mean: None,
            rstd: None,
            running: None,
        }
    }
}

/// Operands of [`NormOps::group_norm_bwd`].
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

impl<'a> GroupNormBwd<'a> {
    /// Without parameters and outputs.
    pub fn new(dy: View<'a>, x: View<'a>, mean: View<'a>, rstd: View<'a>) -> Self {
        GroupNormBwd {
            dy,
            x,
            gamma: None,
            beta: None,
            y: None,
            mean,
            rstd,
            add: None,
            dx: None,
            dgamma: None,
            dbeta: None,
        }
    }
}

/// Weight of a new batch in running statistics: running = (1 - m) * running + m * new.
#[derive(Debug)]
pub enum Momentum<'a> {
    /// A fixed weight, 0.1 by PyTorch's default.
    Factor(f64),
    /// 1 / (counter + 1): the average of all batches. The counter (one i64) holds the number of batches before and is increased by one.
    Cumulative(ViewMut<'a>),
}

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

/// Statistics that batch norm uses.
#[derive(Debug)]
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

/// Operands of [`NormOps::batch_norm`].
#[derive(Debug)]
pub struct BatchNormFwd<'a> {
    /// Input [N, C] or [N, C, S...], contiguous.
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

impl<'a> BatchNormFwd<'a> {
    /// Without parameters, residual and saved statistics.
    pub fn new(x: View<'a>, stats: BatchStats<'a>, y: ViewMut<'a>) -> Self {
        BatchNormFwd { x, residual: None, gamma: None, beta: None, stats, y, mean: None, rstd: None }
    }
}

/// Operands of [`NormOps::batch_norm_bwd`].
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
    pub training: bool,
    /// Gradient of x.
    pub dx: Option<GradMut<'a>>,
    /// Gradient of the residual.
    pub dresidual: Option<GradMut<'a>>,
    /// Gradient of gamma.
    pub dgamma: Option<GradMut<'a>>,
    /// Gradient of beta.
    pub dbeta: Option<GradMut<'a>>,
}

impl<'a> BatchNormBwd<'a> {
    /// Of a training step, without parameters and outputs.
    pub fn new(dy: View<'a>, x: View<'a>, mean: View<'a>, rstd: View<'a>) -> Self {
        BatchNormBwd {
            dy,
            x,
            residual: None,
            gamma: None,
            beta: None,
            y: None,
            mean,
            rstd,
            training: true,
            dx: None,
            dresidual: None,
            dgamma: None,
            dbeta: None,
        }
    }
}

op_family! {
    /// Normalization over batches, rows, groups and instances. Operands are contiguous floats of one dtype; statistics are f32 (f64 for f64 data), found in
    /// two passes or joined after Chan et al., never as a difference of squares. Variances are divided by the count; running ones by the count less one.
    /// Activations: those of fused matrix products. Outputs share no memory with inputs. Deterministic: parameter gradients are summed in two stages.
    /// Errors: shapes, dtypes, eps not above 0, another activation.
    pub trait NormOps : Norm => NORM_OPS {
        /// y = act((s - mean(s)) * rstd * (gamma + offset) + beta) per row, s = x + residual; RMS norm takes the mean as 0.
        /// Oracle `F.layer_norm`, `F.rms_norm`.
        fn row_norm(&self, p: &RowNorm, io: RowNormFwd<'_>) -> Result<()>;
        /// With xh = (x - mean) * rstd, dz = dy * act', g = dz * (gamma + offset): dx = rstd * (g - mean(g) - xh * mean(g * xh)) + add (without mean(g) for
        /// RMS norm), dgamma = sum of dz * xh and dbeta = sum of dz over the rows. Each output is optional.
        fn row_norm_bwd(&self, p: &RowNorm, io: RowNormBwd<'_>) -> Result<()>;
        /// The same over groups of C / groups channels with their inner axes, gamma and beta per channel. Oracle `F.group_norm`.
        /// Errors: C not divisible; running statistics.
        fn group_norm(&self, p: &GroupNorm, io: GroupNormFwd<'_>) -> Result<()>;
        /// Gradients of [`NormOps::group_norm`], and with `groups` = C of [`NormOps::instance_norm`]; formulas as in [`NormOps::row_norm_bwd`].
        fn group_norm_bwd(&self, p: &GroupNorm, io: GroupNormBwd<'_>) -> Result<()>;
        /// The same over each channel of each sample. With given running statistics it is [`NormOps::batch_norm`] with [`BatchStats::Given`].
        /// Oracle `F.instance_norm`. Errors: one value per instance.
        fn instance_norm(&self, p: &InstanceNorm, io: GroupNormFwd<'_>) -> Result<()>;
        /// y = act((x - mean) * rstd * gamma + beta + residual) per channel. Oracle `F.batch_norm`. Errors: one value per channel in training.
        fn batch_norm(&self, p: &BatchNorm, io: BatchNormFwd<'_>) -> Result<()>;
        /// Gradients of [`NormOps::batch_norm`]; formulas as in [`NormOps::row_norm_bwd`]; with given statistics dx = dz * gamma * rstd.
        fn batch_norm_bwd(&self, p: &BatchNorm, io: BatchNormBwd<'_>) -> Result<()>;
        /// y = x / max(r, eps) with the Euclidean norm r along `axis`. Oracle `F.normalize`. Errors: axis out of range, eps below 0.
        fn l2_normalize(&self, axis: usize, eps: f64, x: View<'_>, y: ViewMut<'_>) -> Result<()>;
        /// dx = (dy - xh * sum(dy * xh)) / r with xh = x / r; dy / eps where r is not above eps.
        fn l2_normalize_bwd(&self, axis: usize, eps: f64, dy: View<'_>, x: View<'_>, dx: GradMut<'_>) -> Result<()>;
    }
}

/// Operands of one call under their names, for checks that all of them pass.
pub(crate) struct Operands<'a> {
    pub(crate) op: &'static str,
    pub(crate) inputs: Vec<(&'static str, View<'a>)>,
    pub(crate) outputs: Vec<(&'static str, View<'a>)>,
}

impl<'a> Operands<'a> {
    fn new(op: &'static str, x: View<'a>) -> Result<Self> {
        check::float(op, "x", &x)?;
        check::contiguous(op, "x", &x)?;
        Ok(Operands { op, inputs: vec![("x", x)], outputs: vec![] })
    }

    /// A contiguous input of this shape and dtype.
    fn input(
        &mut self,
        arg: &'static str,
        v: impl Into<Option<View<'a>>>,
        shape: &[usize],
        dtype: DType,
    ) -> Result<()> {
        let Some(v) = v.into() else { return Ok(()) };
        check::shape(self.op, arg, &v, shape)?;
        check::dtype(self.op, arg, &v, dtype)?;
        check::contiguous(self.op, arg, &v)?;
        self.inputs.push((arg, v));
        Ok(())
    }

    /// A contiguous output of this shape and dtype that shares memory with no operand listed before.
    fn output(
        &mut self,
        arg: &'static str,
        v: Option<&ViewMut<'a>>,
        shape: &[usize],
        dtype: DType,
    ) -> Result<()> {
        let Some(m) = v else { return Ok(()) };
        let v = m.as_view();
        check::shape(self.op, arg, &v, shape)?;
        check::dtype(self.op, arg, &v, dtype)?;
        check::contiguous(self.op, arg, &v)?;
        check::separate_output(self.op, arg, m, &self.inputs)?;
        check::separate_output(self.op, arg, m, &self.outputs)?;
        self.outputs.push((arg, v));
        Ok(())
    }

    fn grad(
        &mut self,
        arg: &'static str,
        g: Option<&GradMut<'a>>,
        shape: &[usize],
        dtype: DType,
    ) -> Result<()> {
        self.output(arg, g.map(|g| &g.out), shape, dtype)
    }
}

fn check_eps(op: &'static str, eps: f64) -> Result<()> {
    if eps > 0.0 && eps.is_finite() {
        return Ok(());
    }
    Err(GpuError::invalid(op, "eps", "a number above 0", format!("{eps}")))
}

/// Whether the gradient takes the slope of `act` from the saved result.
pub(crate) fn from_result(act: Activation, y: Option<&View<'_>>) -> bool {
    y.is_some() && matches!(act, Activation::Relu | Activation::Sigmoid | Activation::Tanh)
}

/// Splits x's shape into rows and columns.
fn row_shapes<'s>(op: &'static str, p: &RowNorm, shape: &'s [usize]) -> Result<(&'s [usize], &'s [usize])> {
    check_eps(op, p.eps)?;
    fused_act(op, p.act)?;
    if p.axes == 0 || p.axes > shape.len() {
        let want = format!("1 to {} trailing axes", shape.len());
        return Err(GpuError::invalid(op, "axes", want, format!("{}", p.axes)));
    }
    let (rows, cols) = shape.split_at(shape.len() - p.axes);
    if cols.contains(&0) {
        return Err(GpuError::invalid(op, "x", "rows that are not empty", format!("{shape:?}")));
    }
    Ok((rows, cols))
}

fn no_mean(op: &'static str, p: &RowNorm, mean: bool) -> Result<()> {
    if p.rms && mean {
        return Err(GpuError::invalid(op, "mean", "none for RMS norm", "a tensor"));
    }
    Ok(())
}

/// Checks of [`NormOps::row_norm`]; operands, rows and columns.
pub(crate) fn check_row_norm<'a>(p: &RowNorm, io: &RowNormFwd<'a>) -> Result<(Operands<'a>, [usize; 2])> {
    const OP: &str = "row_norm";
    let mut o = Operands::new(OP, io.x)?;
    let (shape, dt, stat) = (io.x.shape(), io.x.dtype(), io.x.dtype().accumulator());
    let (rows, cols) = row_shapes(OP, p, shape)?;
    no_mean(OP, p, io.mean.is_some())?;
    o.input("residual", io.residual, shape, dt)?;
    o.input("gamma", io.gamma, cols, dt)?;
    o.input("beta", io.beta, cols, dt)?;
    o.output("y", Some(&io.y), shape, dt)?;
    o.output("sum", io.sum.as_ref(), shape, dt)?;
    o.output("mean", io.mean.as_ref(), rows, stat)?;
    o.output("rstd", io.rstd.as_ref(), rows, stat)?;
    Ok((o, [rows.iter().product(), cols.iter().product()]))
}

/// Checks of [`NormOps::row_norm_bwd`]; operands, rows and columns.
pub(crate) fn check_row_norm_bwd<'a>(p: &RowNorm, io: &RowNormBwd<'a>) -> Result<(Operands<'a>, [usize; 2])> {
    const OP: &str = "row_norm_bwd";
    let mut o = Operands::new(OP, io.x)?;
    let (shape, dt, stat) = (io.x.shape(), io.x.dtype(), io.x.dtype().accumulator());
    let (rows, cols) = row_shapes(OP, p, shape)?;
    no_mean(OP, p, io.mean.is_some())?;
    if !p.rms && io.mean.is_none() {
        return Err(GpuError::invalid(OP, "mean", "the saved mean", "none"));
    }
    o.input("dy", io.dy, shape, dt)?;
    o.input("gamma", io.gamma, cols, dt)?;
    o.input("beta", io.beta, cols, dt)?;
    o.input("y", io.y, shape, dt)?;
    o.input("mean", io.mean, rows, stat)?;
    o.input("rstd", io.rstd, rows, stat)?;
    o.input("add", io.add, shape, dt)?;
    o.grad("dx", io.dx.as_ref(), shape, dt)?;
    o.grad("dgamma", io.dgamma.as_ref(), cols, dt)?;
    o.grad("dbeta", io.dbeta.as_ref(), cols, dt)?;
    Ok((o, [rows.iter().product(), cols.iter().product()]))
}

/// N, C and the product of the inner axes of [N, C, S...].
fn channels(op: &'static str, x: &View<'_>) -> Result<[usize; 3]> {
    match x.shape() {
        &[n, c, ref inner @ ..] if c > 0 => Ok([n, c, inner.iter().product()]),
        s => Err(GpuError::invalid(op, "x", "shape [N, C, ...] with channels", format!("{s:?}"))),
    }
}

fn check_running<'a>(
    o: &mut Operands<'a>,
    running: Option<&Running<'a>>,
    channels: usize,
    stat: DType,
) -> Result<()> {
    let Some(r) = running else { return Ok(()) };
    o.output("running.mean", Some(&r.mean), &[channels], stat)?;
    o.output("running.var", Some(&r.var), &[channels], stat)?;
    match &r.momentum {
        Momentum::Cumulative(c) => {
            let shape: &[usize] = if c.shape().is_empty() { &[] } else { &[1] };
            o.output("running.momentum", Some(c), shape, DType::I64)
        }
        Momentum::Factor(m) if m.is_finite() => Ok(()),
        Momentum::Factor(m) => {
            Err(GpuError::invalid(o.op, "running.momentum", "a finite number", format!("{m}")))
        }
    }
}

fn several_values(op: &'static str, n: usize) -> Result<()> {
    if n == 1 {
        return Err(GpuError::invalid(op, "x", "more than one value per channel", "one"));
    }
    Ok(())
}

fn check_groups(op: &'static str, p: &GroupNorm, c: usize) -> Result<()> {
    check_eps(op, p.eps)?;
    fused_act(op, p.act)?;
    if p.groups == 0 || !c.is_multiple_of(p.groups) {
        return Err(GpuError::invalid(op, "groups", format!("a divisor of {c}"), format!("{}", p.groups)));
    }
    Ok(())
}

/// Checks of [`NormOps::group_norm`]; operands, N, C and the product of the inner axes.
pub(crate) fn check_group_norm<'a>(
    p: &GroupNorm,
    io: &GroupNormFwd<'a>,
) -> Result<(Operands<'a>, [usize; 3])> {
    const OP: &str = "group_norm";
    if io.running.is_some() {
        return Err(GpuError::invalid(OP, "running", "none: instance norm has them", "running statistics"));
    }
    group_operands(OP, p, io)
}

/// Checks of [`NormOps::instance_norm`]; operands, N, C and the product of the inner axes.
pub(crate) fn check_instance_norm<'a>(
    p: &InstanceNorm,
    io: &GroupNormFwd<'a>,
) -> Result<(Operands<'a>, [usize; 3])> {
    const OP: &str = "instance_norm";
    let [_, c, s] = channels(OP, &io.x)?;
    several_values(OP, s)?;
    let (mut o, shape) = group_operands(OP, &p.groups(c), io)?;
    check_running(&mut o, io.running.as_ref(), c, io.x.dtype().accumulator())?;
    Ok((o, shape))
}

fn group_operands<'a>(
    op: &'static str,
    p: &GroupNorm,
    io: &GroupNormFwd<'a>,
) -> Result<(Operands<'a>, [usize; 3])> {
    let mut o = Operands::new(op, io.x)?;
    let (shape, dt, stat) = (io.x.shape(), io.x.dtype(), io.x.dtype().accumulator());
    let [n, c, s] = channels(op, &io.x)?;
    check_groups(op, p, c)?;
    o.input("residual", io.residual, shape, dt)?;
    o.input("gamma", io.gamma, &[c], dt)?;
    o.input("beta", io.beta, &[c], dt)?;
    o.output("y", Some(&io.y), shape, dt)?;
    o.output("sum", io.sum.as_ref(), shape, dt)?;
    o.output("mean", io.mean.as_ref(), &[n, p.groups], stat)?;
    o.output("rstd", io.rstd.as_ref(), &[n, p.groups], stat)?;
    Ok((o, [n, c, s]))
}

/// Checks of [`NormOps::group_norm_bwd`]; operands, N, C and the product of the inner axes.
pub(crate) fn check_group_norm_bwd<'a>(
    p: &GroupNorm,
    io: &GroupNormBwd<'a>,
) -> Result<(Operands<'a>, [usize; 3])> {
    const OP: &str = "group_norm_bwd";
    let mut o = Operands::new(OP, io.x)?;
    let (shape, dt, stat) = (io.x.shape(), io.x.dtype(), io.x.dtype().accumulator());
    let [n, c, s] = channels(OP, &io.x)?;
    check_groups(OP, p, c)?;
    o.input("dy", io.dy, shape, dt)?;
    o.input("gamma", io.gamma, &[c], dt)?;
    o.input("beta", io.beta, &[c], dt)?;
    o.input("y", io.y, shape, dt)?;
    o.input("mean", io.mean, &[n, p.groups], stat)?;
    o.input("rstd", io.rstd, &[n, p.groups], stat)?;
    o.input("add", io.add, shape, dt)?;
    o.grad("dx", io.dx.as_ref(), shape, dt)?;
    o.grad("dgamma", io.dgamma.as_ref(), &[c], dt)?;
    o.grad("dbeta", io.dbeta.as_ref(), &[c], dt)?;
    Ok((o, [n, c, s]))
}

/// Checks of [`NormOps::batch_norm`]; operands, N, C and the product of the inner axes.
pub(crate) fn check_batch_norm<'a>(
    p: &BatchNorm,
    io: &BatchNormFwd<'a>,
) -> Result<(Operands<'a>, [usize; 3])> {
    const OP: &str = "batch_norm";
    let mut o = Operands::new(OP, io.x)?;
    let (shape, dt, stat) = (io.x.shape(), io.x.dtype(), io.x.dtype().accumulator());
    let [n, c, s] = channels(OP, &io.x)?;
    check_eps(OP, p.eps)?;
    fused_act(OP, p.act)?;
    o.input("residual", io.residual, shape, dt)?;
    o.input("gamma", io.gamma, &[c], dt)?;
    o.input("beta", io.beta, &[c], dt)?;
    if let BatchStats::Given { mean, var } = &io.stats {
        o.input("stats.mean", *mean, &[c], stat)?;
        o.input("stats.var", *var, &[c], stat)?;
    }
    o.output("y", Some(&io.y), shape, dt)?;
    o.output("mean", io.mean.as_ref(), &[c], stat)?;
    o.output("rstd", io.rstd.as_ref(), &[c], stat)?;
    if let BatchStats::Batch(running) = &io.stats {
        several_values(OP, n * s)?;
        check_running(&mut o, running.as_ref(), c, stat)?;
    }
    Ok((o, [n, c, s]))
}

/// Checks of [`NormOps::batch_norm_bwd`]; operands, N, C and the product of the inner axes.
pub(crate) fn check_batch_norm_bwd<'a>(
    p: &BatchNorm,
    io: &BatchNormBwd<'a>,
) -> Result<(Operands<'a>, [usize; 3])> {
    const OP: &str = "batch_norm_bwd";
    let mut o = Operands::new(OP, io.x)?;
    let (shape, dt, stat) = (io.x.shape(), io.x.dtype(), io.x.dtype().accumulator());
    let [n, c, s] = channels(OP, &io.x)?;
    fused_act(OP, p.act)?;
    o.input("dy", io.dy, shape, dt)?;
    o.input("residual", io.residual, shape, dt)?;
    o.input("gamma", io.gamma, &[c], dt)?;
    o.input("beta", io.beta, &[c], dt)?;
    o.input("y", io.y, shape, dt)?;
    o.input("mean", io.mean, &[c], stat)?;
    o.input("rstd", io.rstd, &[c], stat)?;
    o.grad("dx", io.dx.as_ref(), shape, dt)?;
    o.grad("dresidual", io.dresidual.as_ref(), shape, dt)?;
    o.grad("dgamma", io.dgamma.as_ref(), &[c], dt)?;
    o.grad("dbeta", io.dbeta.as_ref(), &[c], dt)?;
    Ok((o, [n, c, s]))
}

fn l2_shape(op: &'static str, axis: usize, eps: f64, x: &View<'_>) -> Result<[usize; 3]> {
    check::axis(op, x, axis)?;
    if eps.is_nan() || eps < 0.0 {
        return Err(GpuError::invalid(op, "eps", "a number of at least 0", format!("{eps}")));
    }
    let s = x.shape();
    Ok([s[..axis].iter().product(), s[axis], s[axis + 1..].iter().product()])
}

/// Checks of [`NormOps::l2_normalize`]; [outer, size of the axis, inner].
pub(crate) fn check_l2<'a>(
    axis: usize,
    eps: f64,
    x: View<'a>,
    y: &ViewMut<'a>,
) -> Result<(Operands<'a>, [usize; 3])> {
    const OP: &str = "l2_normalize";
    let mut o = Operands::new(OP, x)?;
    let shape = l2_shape(OP, axis, eps, &x)?;
    o.output("y", Some(y), x.shape(), x.dtype())?;
    Ok((o, shape))
}

/// Checks of [`NormOps::l2_normalize_bwd`]; [outer, size of the axis, inner].
pub(crate) fn check_l2_bwd<'a>(
    axis: usize,
    eps: f64,
    dy: View<'a>,
    x: View<'a>,
    dx: &GradMut<'a>,
) -> Result<(Operands<'a>, [usize; 3])> {
    const OP: &str = "l2_normalize_bwd";
    let mut o = Operands::new(OP, x)?;
    let shape = l2_shape(OP, axis, eps, &x)?;
    o.input("dy", dy, x.shape(), x.dtype())?;
    o.grad("dx", Some(dx), x.shape(), x.dtype())?;
    Ok((o, shape))
}
