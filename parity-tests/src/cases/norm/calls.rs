//! The calls that the rows of the table stand for.

use trefoil::ops::activation::Activation;
use trefoil::ops::norm::{
    BatchNorm, BatchNormBwd, BatchNormFwd, BatchStats, GroupNorm, GroupNormBwd, GroupNormFwd, InstanceNorm,
    Momentum, RowNorm, RowNormBwd, RowNormFwd, Running,
};
use trefoil::{DType, View};

use crate::device::{Cx, Fail, R};

/// Type of statistics.
pub(super) fn stat(cx: &Cx<'_>) -> DType {
    cx.dtype.accumulator()
}

pub(super) fn leading<'a>(x: &View<'a>) -> Vec<usize> {
    x.shape().split_last().map(|(_, l)| l.to_vec()).unwrap_or_default()
}

pub(super) fn layer(cx: &Cx<'_>, act: Activation) -> R<RowNorm> {
    Ok(RowNorm::layer().eps(cx.f("eps")?).act(act))
}

/// Layer norm with or without residual; `y` is the output's name.
pub(super) fn layer_norm(cx: &Cx<'_>, p: RowNorm, y: &str) -> R {
    let x = cx.x("x")?;
    let rows = leading(&x);
    let y = cx.like(y, &x)?;
    let s = cx.has_output("s").then(|| cx.like("s", &x)).transpose()?;
    let mean = cx.wants("mean").then(|| cx.out("mean", stat(cx), &rows)).transpose()?;
    let rstd = cx.wants("rstd").then(|| cx.out("rstd", stat(cx), &rows)).transpose()?;
    let mut io = RowNormFwd::new(x, y.m());
    (io.gamma, io.beta, io.residual) = (cx.opt("gamma"), cx.opt("beta"), cx.opt("r"));
    io.sum = s.as_ref().map(|t| t.m());
    io.mean = mean.as_ref().map(|t| t.m());
    io.rstd = rstd.as_ref().map(|t| t.m());
    Ok(cx.gpu.row_norm(&p, io)?)
}

/// Gradient of layer norm: `dy`, `x` and `dx` under the kernel's names.
pub(super) fn layer_norm_backward(cx: &Cx<'_>, p: RowNorm, [dy, x, dx]: [&str; 3]) -> R {
    let (dy, x) = (cx.x(dy)?, cx.x(x)?);
    let dx = cx.has_output(dx).then(|| cx.like(dx, &x)).transpose()?;
    let k = *x.shape().last().unwrap_or(&1);
    let dgamma = cx.has_output("dgamma").then(|| cx.out("dgamma", x.dtype(), &[k])).transpose()?;
    let dbeta = cx.has_output("dbeta").then(|| cx.out("dbeta", x.dtype(), &[k])).transpose()?;
    let mut io = RowNormBwd::new(dy, x, cx.x("rstd")?).mean(cx.x("mean")?);
    (io.gamma, io.beta, io.y, io.add) = (cx.opt("gamma"), cx.opt("beta"), cx.opt("Y"), cx.opt("ds_in"));
    io.dx = dx.as_ref().map(|t| t.g());
    io.dgamma = dgamma.as_ref().map(|t| t.g());
    io.dbeta = dbeta.as_ref().map(|t| t.g());
    Ok(cx.gpu.row_norm_bwd(&p, io)?)
}

pub(super) fn rms_norm(cx: &Cx<'_>) -> R {
    let x = cx.x("x")?;
    let y = cx.like("y", &x)?;
    let residual = cx.has_output("s");
    let s = residual.then(|| cx.like("s", &x)).transpose()?;
    let r = (!residual && cx.wants("r")).then(|| cx.out("r", stat(cx), &leading(&x))).transpose()?;
    let p = RowNorm::rms().eps(cx.f("eps")?).gamma_offset(cx.f("gamma_offset")?);
    let mut io = RowNormFwd::new(x, y.m());
    io.gamma = cx.opt("gamma");
    io.residual = cx.opt("r");
    io.sum = s.as_ref().map(|t| t.m());
    io.rstd = r.as_ref().map(|t| t.m());
    Ok(cx.gpu.row_norm(&p, io)?)
}

pub(super) fn rms_norm_backward(cx: &Cx<'_>, x: &str, dx: &str) -> R {
    let (dy, x) = (cx.x("dy")?, cx.x(x)?);
    let dx = cx.has_output(dx).then(|| cx.like(dx, &x)).transpose()?;
    let k = *x.shape().last().unwrap_or(&1);
    let optional = cx.has_output("ds");
    let dgamma = (cx.has_output("dgamma") && (!optional || cx.opt("gamma").is_some()))
        .then(|| cx.out("dgamma", x.dtype(), &[k]))
        .transpose()?;
    let offset = if cx.has("gamma_offset") { cx.f("gamma_offset")? } else { 0.0 };
    let mut io = RowNormBwd::new(dy, x, cx.x("r")?);
    (io.gamma, io.add) = (cx.opt("gamma"), cx.opt("ds_in"));
    io.dx = dx.as_ref().map(|t| t.g());
    io.dgamma = dgamma.as_ref().map(|t| t.g());
    Ok(cx.gpu.row_norm_bwd(&RowNorm::rms().gamma_offset(offset), io)?)
}

pub(super) fn groups(cx: &Cx<'_>, act: Activation) -> R<GroupNorm> {
    let p = GroupNorm::new(cx.n("G")?).act(act);
    Ok(if cx.has("eps") { p.eps(cx.f("eps")?) } else { p })
}

pub(super) fn size(x: &View<'_>, axis: usize) -> usize {
    x.shape().get(axis).copied().unwrap_or(1)
}

pub(super) fn group_norm(cx: &Cx<'_>, p: GroupNorm) -> R {
    let x = cx.x("x")?;
    let stats = [size(&x, 0), p.groups];
    let y = cx.like("y", &x)?;
    let s = cx.has_output("s").then(|| cx.like("s", &x)).transpose()?;
    let mean = cx.wants("mean").then(|| cx.out("mean", stat(cx), &stats)).transpose()?;
    let rstd = cx.wants("rstd").then(|| cx.out("rstd", stat(cx), &stats)).transpose()?;
    let mut io = GroupNormFwd::new(x, y.m());
    (io.gamma, io.beta, io.residual) = (cx.opt("gamma"), cx.opt("beta"), cx.opt("r"));
    io.sum = s.as_ref().map(|t| t.m());
    io.mean = mean.as_ref().map(|t| t.m());
    io.rstd = rstd.as_ref().map(|t| t.m());
    Ok(cx.gpu.group_norm(&p, io)?)
}

pub(super) fn group_norm_backward(cx: &Cx<'_>, p: GroupNorm) -> R {
    let (dy, x) = (cx.x("dy")?, cx.x("x")?);
    let c = [size(&x, 1)];
    let (dx, dgamma, dbeta) =
        (cx.like("dx", &x)?, cx.out("dgamma", x.dtype(), &c)?, cx.out("dbeta", x.dtype(), &c)?);
    let mut io = GroupNormBwd::new(dy, x, cx.x("mean")?, cx.x("rstd")?);
    (io.gamma, io.beta) = (cx.opt("gamma"), cx.opt("beta"));
    (io.dx, io.dgamma, io.dbeta) = (Some(dx.g()), Some(dgamma.g()), Some(dbeta.g()));
    Ok(cx.gpu.group_norm_bwd(&p, io)?)
}

pub(super) fn instance_norm(cx: &Cx<'_>) -> R {
    let x = cx.x("x")?;
    let (n, c) = (size(&x, 0), size(&x, 1));
    let y = cx.like("y", &x)?;
    let running = cx.opt("running_mean").is_some();
    let own = cx.b("use_input_stats")?;
    if !own {
        // The running statistics normalise: inference of batch norm.
        let (rm, rv) = (cx.inout("running_mean", "running_mean")?, cx.inout("running_var", "running_var")?);
        let stats = BatchStats::Given { mean: rm.v(), var: rv.v() };
        let mut io = BatchNormFwd::new(x, stats, y.m());
        (io.gamma, io.beta) = (cx.opt("gamma"), cx.opt("beta"));
        return Ok(cx.gpu.batch_norm(&BatchNorm::new().eps(cx.f("eps")?), io)?);
    }
    let mean = cx.wants("mean").then(|| cx.out("mean", stat(cx), &[n, c])).transpose()?;
    let rstd = cx.wants("rstd").then(|| cx.out("rstd", stat(cx), &[n, c])).transpose()?;
    let running = running
        .then(|| {
            Ok::<_, Fail>([
                cx.inout("running_mean", "running_mean")?,
                cx.inout("running_var", "running_var")?,
            ])
        })
        .transpose()?;
    let mut io = GroupNormFwd::new(x, y.m());
    (io.gamma, io.beta) = (cx.opt("gamma"), cx.opt("beta"));
    io.mean = mean.as_ref().map(|t| t.m());
    io.rstd = rstd.as_ref().map(|t| t.m());
    let momentum = cx.f("momentum")?;
    io.running = running.as_ref().map(|[m, v]| Running::new(m.m(), v.m(), Momentum::Factor(momentum)));
    Ok(cx.gpu.instance_norm(&InstanceNorm::new().eps(cx.f("eps")?), io)?)
}

/// Activation of batch norm by name.
pub(super) fn named(cx: &Cx<'_>) -> R<Activation> {
    Ok(match cx.s("act")?.as_str() {
        "relu" => Activation::Relu,
        "gelu" => Activation::Gelu,
        "sigmoid" => Activation::Sigmoid,
        "tanh" => Activation::Tanh,
        "swish" | "silu" => Activation::Swish { beta: 1.0 },
        a => return Err(Fail::Case(format!("activation {a} is unknown"))),
    })
}

pub(super) fn batch_norm(cx: &Cx<'_>, act: Activation) -> R {
    let x = cx.x("x")?;
    let c = [size(&x, 1)];
    let y = cx.like("y", &x)?;
    let mean = cx.wants("save_mean").then(|| cx.out("save_mean", stat(cx), &c)).transpose()?;
    let rstd = cx.wants("save_rstd").then(|| cx.out("save_rstd", stat(cx), &c)).transpose()?;
    let running = cx
        .opt("running_mean")
        .map(|_| {
            Ok::<_, Fail>([
                cx.inout("running_mean", "running_mean")?,
                cx.inout("running_var", "running_var")?,
            ])
        })
        .transpose()?;
    let counter = match cx.opt_f("momentum")? {
        None => Some(cx.inout("counter", "counter")?),
        Some(_) => None,
    };
    let stats = match (cx.b("training")?, &running) {
        (false, Some([m, v])) => BatchStats::Given { mean: m.v(), var: v.v() },
        (false, None) => return Err(Fail::Case("inference needs running statistics".into())),
        (true, None) => BatchStats::Batch(None),
        (true, Some([m, v])) => {
            let momentum = match &counter {
                Some(t) => Momentum::Cumulative(t.m()),
                None => Momentum::Factor(cx.f("momentum")?),
            };
            BatchStats::Batch(Some(Running::new(m.m(), v.m(), momentum)))
        }
    };
    let mut io = BatchNormFwd::new(x, stats, y.m());
    (io.gamma, io.beta, io.residual) = (cx.opt("gamma"), cx.opt("beta"), cx.opt("r"));
    io.mean = mean.as_ref().map(|t| t.m());
    io.rstd = rstd.as_ref().map(|t| t.m());
    Ok(cx.gpu.batch_norm(&BatchNorm::new().eps(cx.f("eps")?).act(act), io)?)
}

pub(super) fn batch_norm_backward(cx: &Cx<'_>, act: Activation) -> R {
    let (dy, x) = (cx.x("dy")?, cx.x("x")?);
    let c = [size(&x, 1)];
    let dx = cx.like("dx", &x)?;
    let dr = cx.has_output("dr").then(|| cx.like("dr", &x)).transpose()?;
    let (dgamma, dbeta) = (cx.out("dgamma", x.dtype(), &c)?, cx.out("dbeta", x.dtype(), &c)?);
    let mut io = BatchNormBwd::new(dy, x, cx.x("save_mean")?, cx.x("save_rstd")?);
    io.training = cx.b("training")?;
    (io.gamma, io.beta, io.residual) = (cx.opt("gamma"), cx.opt("beta"), cx.opt("r"));
    (io.dx, io.dgamma, io.dbeta) = (Some(dx.g()), Some(dgamma.g()), Some(dbeta.g()));
    io.dresidual = dr.as_ref().map(|t| t.g());
    Ok(cx.gpu.batch_norm_bwd(&BatchNorm::new().act(act), io)?)
}

pub(super) fn l2_normalize(cx: &Cx<'_>) -> R {
    let x = cx.x("x")?;
    let y = cx.like("y", &x)?;
    Ok(cx.gpu.l2_normalize(cx.axis("axis", x.shape().len())?, cx.f("eps")?, x, y.m())?)
}

pub(super) fn l2_normalize_backward(cx: &Cx<'_>) -> R {
    let (dy, x) = (cx.x("dy")?, cx.x("x")?);
    let dx = cx.like("dx", &x)?;
    Ok(cx.gpu.l2_normalize_bwd(cx.axis("axis", x.shape().len())?, cx.f("eps")?, dy, x, dx.g())?)
}
