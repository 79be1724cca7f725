//! Checks of normalization, which engine and CPU backend call first.

use crate::ops::norm::*;
use crate::buffer::{GradMut, View, ViewMut};
use crate::dtype::DType;
use crate::error::{GpuError, Result};
use crate::layout::{Layout, LayoutError};
use crate::ops::check;
use crate::ops::activation::Activation;
use crate::ops::gemm::fused_act;

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
    y.is_some() && act.reads_output()
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

/// Checks of [`NormBackwardOps::row_norm_bwd`](super::NormBackwardOps::row_norm_bwd); operands, rows and columns.
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

/// Checks of [`NormBackwardOps::group_norm_bwd`](super::NormBackwardOps::group_norm_bwd); operands, N, C and the product of the inner axes.
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

/// Whether x is channels last and not contiguous: batch norm then works on the matrix [N * S, C].
fn is_rows_of_channels(x: &View<'_>) -> bool {
    x.shape().len() > 2 && !x.is_contiguous() && x.layout().is_channels_last()
}

/// A channels-last layout as that of the matrix [N * S, C].
fn as_rows(l: &Layout) -> std::result::Result<Layout, LayoutError> {
    let c = l.shape()[1];
    l.channels_as_columns()?.reshape(&[l.numel().checked_div(c).unwrap_or(0), c])
}

/// An operand as the matrix [N * S, C]. Errors: `Invalid` unless it has x's shape and is channels last.
fn rows_of<'a>(op: &'static str, arg: &'static str, v: View<'a>, x: &View<'_>) -> Result<View<'a>> {
    check::shape(op, arg, &v, x.shape())?;
    if v.layout().is_channels_last() {
        return v.map(arg, as_rows);
    }
    let got = format!("shape {:?} strides {:?}", v.shape(), v.layout().strides());
    Err(GpuError::invalid(op, arg, "a channels-last view, as x is", got))
}

/// [`rows_of`] for what is written.
fn rows_of_mut<'a>(op: &'static str, arg: &'static str, v: ViewMut<'a>, x: &View<'_>) -> Result<ViewMut<'a>> {
    rows_of(op, arg, v.as_view(), x)?;
    v.map(arg, as_rows)
}

impl<'a> BatchNormFwd<'a> {
    /// Channels-last operands as matrices [N * S, C]; others as they are.
    pub(crate) fn channels_as_columns(mut self) -> Result<Self> {
        const OP: &str = "batch_norm";
        let x = self.x;
        if !is_rows_of_channels(&x) {
            return Ok(self);
        }
        self.residual = self.residual.map(|r| rows_of(OP, "residual", r, &x)).transpose()?;
        self.y = rows_of_mut(OP, "y", self.y, &x)?;
        self.x = rows_of(OP, "x", x, &x)?;
        Ok(self)
    }
}

impl<'a> BatchNormBwd<'a> {
    /// As [`BatchNormFwd::channels_as_columns`].
    pub(crate) fn channels_as_columns(mut self) -> Result<Self> {
        const OP: &str = "batch_norm_bwd";
        let x = self.x;
        if !is_rows_of_channels(&x) {
            return Ok(self);
        }
        let read = |arg, v: Option<View<'a>>| v.map(|v| rows_of(OP, arg, v, &x)).transpose();
        let written = |arg, g: Option<GradMut<'a>>| -> Result<_> {
            g.map(|g| Ok(rows_of_mut(OP, arg, g.out, &x)?.grad(g.accumulate))).transpose()
        };
        self.dy = rows_of(OP, "dy", self.dy, &x)?;
        (self.residual, self.y) = (read("residual", self.residual)?, read("y", self.y)?);
        (self.dx, self.dresidual) = (written("dx", self.dx)?, written("dresidual", self.dresidual)?);
        self.x = rows_of(OP, "x", x, &x)?;
        Ok(self)
    }
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

/// Checks of [`NormBackwardOps::batch_norm_bwd`](super::NormBackwardOps::batch_norm_bwd); operands, N, C and the product of the inner axes.
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
