//! Normalization, alone and fused with residuals and activations.

use trefoil::ops::*;
use trefoil::{DType, View};

use super::Bound::Close;
use super::activation::gelu;
use super::{Bound, Kernel, k};
use crate::device::{Cx, Fail, R};
use crate::random_cases::Dom::{Any, Coarse, Positive, Range};
use crate::random_cases::Sample;

/// Type of statistics.
fn stat(cx: &Cx<'_>) -> DType {
    cx.dtype.accumulator()
}

fn leading<'a>(x: &View<'a>) -> Vec<usize> {
    x.shape().split_last().map(|(_, l)| l.to_vec()).unwrap_or_default()
}

fn layer(cx: &Cx<'_>, act: Activation) -> R<RowNorm> {
    Ok(RowNorm::layer().eps(cx.f("eps")?).act(act))
}

/// Layer norm with or without residual; `y` is the output's name.
fn layer_norm(cx: &Cx<'_>, p: RowNorm, y: &str) -> R {
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
fn layer_norm_backward(cx: &Cx<'_>, p: RowNorm, [dy, x, dx]: [&str; 3]) -> R {
    let (dy, x) = (cx.x(dy)?, cx.x(x)?);
    let dx = cx.has_output(dx).then(|| cx.like(dx, &x)).transpose()?;
    let k = *x.shape().last().unwrap_or(&1);
    let dgamma = cx.has_output("dgamma").then(|| cx.out("dgamma", x.dtype(), &[k])).transpose()?;
    let dbeta = cx.has_output("dbeta").then(|| cx.out("dbeta", x.dtype(), &[k])).transpose()?;
    let mut io = RowNormBwd::new(dy, x, Some(cx.x("mean")?), cx.x("rstd")?);
    (io.gamma, io.beta, io.y, io.add) = (cx.opt("gamma"), cx.opt("beta"), cx.opt("Y"), cx.opt("ds_in"));
    io.dx = dx.as_ref().map(|t| t.g());
    io.dgamma = dgamma.as_ref().map(|t| t.g());
    io.dbeta = dbeta.as_ref().map(|t| t.g());
    Ok(cx.gpu.row_norm_bwd(&p, io)?)
}

fn rms_norm(cx: &Cx<'_>) -> R {
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

fn rms_norm_backward(cx: &Cx<'_>, x: &str, dx: &str) -> R {
    let (dy, x) = (cx.x("dy")?, cx.x(x)?);
    let dx = cx.has_output(dx).then(|| cx.like(dx, &x)).transpose()?;
    let k = *x.shape().last().unwrap_or(&1);
    let optional = cx.has_output("ds");
    let dgamma = (cx.has_output("dgamma") && (!optional || cx.opt("gamma").is_some()))
        .then(|| cx.out("dgamma", x.dtype(), &[k]))
        .transpose()?;
    let offset = if cx.has("gamma_offset") { cx.f("gamma_offset")? } else { 0.0 };
    let mut io = RowNormBwd::new(dy, x, None, cx.x("r")?);
    (io.gamma, io.add) = (cx.opt("gamma"), cx.opt("ds_in"));
    io.dx = dx.as_ref().map(|t| t.g());
    io.dgamma = dgamma.as_ref().map(|t| t.g());
    Ok(cx.gpu.row_norm_bwd(&RowNorm::rms().gamma_offset(offset), io)?)
}

fn groups(cx: &Cx<'_>, act: Activation) -> R<GroupNorm> {
    let p = GroupNorm::new(cx.n("G")?).act(act);
    Ok(if cx.has("eps") { p.eps(cx.f("eps")?) } else { p })
}

fn size(x: &View<'_>, axis: usize) -> usize {
    x.shape().get(axis).copied().unwrap_or(1)
}

fn group_norm(cx: &Cx<'_>, p: GroupNorm) -> R {
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

fn group_norm_backward(cx: &Cx<'_>, p: GroupNorm) -> R {
    let (dy, x) = (cx.x("dy")?, cx.x("x")?);
    let c = [size(&x, 1)];
    let (dx, dgamma, dbeta) =
        (cx.like("dx", &x)?, cx.out("dgamma", x.dtype(), &c)?, cx.out("dbeta", x.dtype(), &c)?);
    let mut io = GroupNormBwd::new(dy, x, cx.x("mean")?, cx.x("rstd")?);
    (io.gamma, io.beta) = (cx.opt("gamma"), cx.opt("beta"));
    (io.dx, io.dgamma, io.dbeta) = (Some(dx.g()), Some(dgamma.g()), Some(dbeta.g()));
    Ok(cx.gpu.group_norm_bwd(&p, io)?)
}

fn instance_norm(cx: &Cx<'_>) -> R {
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
    io.running = running.as_ref().map(|[m, v]| Running {
        mean: m.m(),
        var: v.m(),
        momentum: Momentum::Factor(momentum),
    });
    Ok(cx.gpu.instance_norm(&InstanceNorm::new().eps(cx.f("eps")?), io)?)
}

/// Activation of batch norm by name.
fn named(cx: &Cx<'_>) -> R<Activation> {
    Ok(match cx.s("act")?.as_str() {
        "relu" => Activation::Relu,
        "gelu" => Activation::Gelu,
        "sigmoid" => Activation::Sigmoid,
        "tanh" => Activation::Tanh,
        "swish" | "silu" => Activation::Swish { beta: 1.0 },
        a => return Err(Fail::Case(format!("activation {a} is unknown"))),
    })
}

fn batch_norm(cx: &Cx<'_>, act: Activation) -> R {
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
            BatchStats::Batch(Some(Running { mean: m.m(), var: v.m(), momentum }))
        }
    };
    let mut io = BatchNormFwd::new(x, stats, y.m());
    (io.gamma, io.beta, io.residual) = (cx.opt("gamma"), cx.opt("beta"), cx.opt("r"));
    io.mean = mean.as_ref().map(|t| t.m());
    io.rstd = rstd.as_ref().map(|t| t.m());
    Ok(cx.gpu.batch_norm(&BatchNorm::new().eps(cx.f("eps")?).act(act), io)?)
}

fn batch_norm_backward(cx: &Cx<'_>, act: Activation) -> R {
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

fn l2_normalize(cx: &Cx<'_>) -> R {
    let x = cx.x("x")?;
    let y = cx.like("y", &x)?;
    Ok(cx.gpu.l2_normalize(cx.axis("axis", x.shape().len())?, cx.f("eps")?, x, y.m())?)
}

fn l2_normalize_backward(cx: &Cx<'_>) -> R {
    let (dy, x) = (cx.x("dy")?, cx.x("x")?);
    let dx = cx.like("dx", &x)?;
    Ok(cx.gpu.l2_normalize_bwd(cx.axis("axis", x.shape().len())?, cx.f("eps")?, dy, x, dx.g())?)
}

/// A matrix of rows of every length class: registers, long rows, cut rows, aligned or not.
fn draw_matrix(s: &mut Sample) -> [usize; 2] {
    let shape = if s.small {
        [2 + s.below(3), 3 + s.below(4)]
    } else {
        let edges = [
            [7, 33],
            [300, 64],
            [3, 1031],
            [64, 1024],
            [2, 20_004],
            [5, 4096],
            [3, 8192],
            [1, 40_000],
            [1000, 5],
            [0, 8],
            [9, 12_288],
            [40, 8192],
            [33, 2000],
        ];
        edges[s.below(edges.len())]
    };
    s.put("x", &shape, Any);
    shape
}

/// gamma and beta of n entries; always both where gradients are checked.
fn draw_affine(s: &mut Sample, n: usize, beta: bool) {
    let all = s.small;
    if all || s.below(4) > 0 {
        s.put("gamma", &[n], Positive);
    }
    if beta && (all || s.below(4) > 0) {
        s.put("beta", &[n], Any);
    }
}

fn draw_eps(s: &mut Sample) {
    let eps = [1e-5, 1e-2][s.below(2)];
    s.arg("eps", eps);
}

fn draw_layer(s: &mut Sample) {
    let [_, k] = draw_matrix(s);
    draw_affine(s, k, true);
    draw_eps(s);
}

fn draw_fused_layer(s: &mut Sample) {
    let [_, k] = draw_matrix(s);
    s.put("gamma", &[k], Positive);
    s.put("beta", &[k], Any);
}

fn draw_residual(s: &mut Sample) {
    let shape = draw_matrix(s);
    s.put("r", &shape, Any);
    s.put("gamma", &[shape[1]], Positive);
    s.put("beta", &[shape[1]], Any);
}

fn draw_rms(s: &mut Sample) {
    let [_, k] = draw_matrix(s);
    draw_affine(s, k, false);
    let offset = [0.0, 1.0][s.below(2)];
    s.arg("gamma_offset", offset);
}

fn draw_residual_rms(s: &mut Sample) {
    let shape = draw_matrix(s);
    s.put("r", &shape, Any);
    draw_affine(s, shape[1], false);
    let offset = [0.0, 1.0][s.below(2)];
    s.arg("gamma_offset", offset);
}

/// Images of every size class (not of two values per set, whose variance may be far below their mean, so that no f32 mean is close enough): single values, short planes, planes that 16 bytes divide or not, long ones.
fn draw_images(s: &mut Sample, several: bool) -> Vec<usize> {
    let shape: Vec<usize> = if s.small {
        vec![2 + s.below(2), 4, 2 + s.below(2)]
    } else {
        let edges: [&[usize]; 10] = [
            &[300, 12],
            &[6, 4, 7, 7],
            &[5, 8, 16, 16],
            &[2, 4, 70_000],
            &[9, 20, 6],
            &[3, 4, 2, 3, 6],
            &[1, 8, 3001],
            &[2, 36, 33],
            &[4000, 4, 6],
            &[40, 64, 4],
        ];
        let at = s.below(edges.len());
        edges[if several && at == 0 { 4 } else { at }].to_vec()
    };
    s.put("x", &shape, Any);
    shape
}

fn draw_groups(s: &mut Sample, residual: bool) {
    let shape = draw_images(s, false);
    if residual {
        s.put("r", &shape, Any);
    }
    draw_affine(s, shape[1], true);
    let g = [1, 2, 4][s.below(3)];
    s.arg("G", g);
    draw_eps(s);
}

fn draw_group_swish(s: &mut Sample) {
    let shape = draw_images(s, true);
    s.put("gamma", &[shape[1]], Positive);
    s.put("beta", &[shape[1]], Any);
    s.arg("G", 2);
}

fn draw_running(s: &mut Sample, c: usize) {
    let stat = s.dtype.accumulator();
    s.typed("running_mean", stat, &[c], Any);
    s.typed("running_var", stat, &[c], Range(0.5, 2.0));
}

fn draw_instances(s: &mut Sample) {
    let shape = draw_images(s, true);
    draw_affine(s, shape[1], true);
    if !s.small && s.coin() {
        draw_running(s, shape[1]);
    }
    draw_eps(s);
}

fn draw_batch(s: &mut Sample) {
    let shape = draw_images(s, false);
    draw_affine(s, shape[1], true);
    draw_eps(s);
    if s.small {
        return;
    }
    match s.below(4) {
        0 => {
            draw_running(s, shape[1]);
            s.arg("training", false);
        }
        1 => {
            draw_running(s, shape[1]);
            let count = s.below(5) as i64;
            s.ints("counter", DType::I64, &[], &[count]);
            s.arg("momentum", serde_json::Value::Null);
        }
        2 => {
            draw_running(s, shape[1]);
            s.arg("momentum", 0.3);
        }
        _ => {}
    }
}

fn draw_batch_act(s: &mut Sample) {
    draw_batch(s);
    s.forget("momentum");
    s.drop("counter");
    let act = ["relu", "gelu", "sigmoid", "tanh", "swish"][s.below(5)];
    s.arg("act", act);
}

fn draw_batch_residual(s: &mut Sample) {
    draw_batch(s);
    s.forget("momentum");
    s.drop("counter");
    let shape = s.shape_of("x");
    s.put("r", &shape, Any);
}

fn draw_l2(s: &mut Sample) {
    let shape = s.solid();
    s.put("x", &shape, Coarse);
    let axis = s.below(shape.len());
    s.arg("axis", axis);
}

const FWD: Bound = Close(1e-5, 4e-6);
const BWD: Bound = Close(1e-4, 3e-5);

const BATCH_ARGS: &str = "eps=1e-05, momentum=0.1, training=true";
const BATCH_IN: &str = "x, [gamma], [beta], [running_mean:f32], [running_var:f32]";
const BATCH_OUT: &str = "y, [save_mean:f32], [save_rstd:f32], [running_mean:f32], [running_var:f32]";

pub(super) const ROWS: &[&[Kernel]] = &[
    &[
        k(
            "batchnorm_forward",
            "S4.1",
            "x, [gamma], [beta], [running_mean:f32], [running_var:f32], [counter:i64]",
            BATCH_ARGS,
            "y, [save_mean:f32], [save_rstd:f32], [running_mean:f32], [running_var:f32], [counter:i64]",
            &["batch_norm"],
            |cx| batch_norm(cx, Activation::Identity),
        )
        .bound(FWD)
        .sample(draw_batch),
        k(
            "batchnorm_backward",
            "S4.6",
            "dy, x, [gamma], save_mean:f32, save_rstd:f32",
            "training=true",
            "dx, dgamma, dbeta",
            &["batch_norm_bwd"],
            |cx| batch_norm_backward(cx, Activation::Identity),
        )
        .bound(BWD)
        .grad_of("batchnorm_forward"),
        k(
            "batchnorm_act",
            "B3.2",
            BATCH_IN,
            "act=\"relu\", eps=1e-05, momentum=0.1, training=true",
            BATCH_OUT,
            &["batch_norm"],
            |cx| batch_norm(cx, named(cx)?),
        )
        .bound(FWD)
        .sample(draw_batch_act),
        k(
            "batchnorm_act_backward",
            "B3.2",
            "dy, x, [gamma], [beta], save_mean:f32, save_rstd:f32",
            "act=\"relu\", training=true",
            "dx, dgamma, dbeta",
            &["batch_norm_bwd"],
            |cx| batch_norm_backward(cx, named(cx)?),
        )
        .bound(BWD)
        .grad_of("batchnorm_act"),
        k(
            "residual_batchnorm_relu",
            "B3.3",
            "x, r, [gamma], [beta], [running_mean:f32], [running_var:f32]",
            BATCH_ARGS,
            BATCH_OUT,
            &["batch_norm"],
            |cx| batch_norm(cx, Activation::Relu),
        )
        .bound(FWD)
        .sample(draw_batch_residual),
        k(
            "residual_batchnorm_relu_backward",
            "B3.3",
            "dy, x, r, [gamma], [beta], save_mean:f32, save_rstd:f32",
            "training=true",
            "dx, dr, dgamma, dbeta",
            &["batch_norm_bwd"],
            |cx| batch_norm_backward(cx, Activation::Relu),
        )
        .bound(BWD)
        .grad_of("residual_batchnorm_relu"),
    ],
    &[
        k(
            "layernorm_forward",
            "S4.2",
            "x, [gamma], [beta]",
            "eps=1e-05",
            "y, [mean:f32], [rstd:f32]",
            &["row_norm"],
            |cx| layer_norm(cx, layer(cx, Activation::Identity)?, "y"),
        )
        .bound(FWD)
        .sample(draw_layer),
        k(
            "layernorm_backward",
            "S4.7",
            "dy, x, [gamma], mean:f32, rstd:f32",
            "-",
            "dx",
            &["row_norm_bwd"],
            |cx| layer_norm_backward(cx, RowNorm::layer(), ["dy", "x", "dx"]),
        )
        .bound(BWD)
        .grad_of("layernorm_forward"),
        k(
            "layernorm_grad_params",
            "S4.8",
            "dy, x, mean:f32, rstd:f32",
            "-",
            "dgamma, dbeta",
            &["row_norm_bwd"],
            |cx| layer_norm_backward(cx, RowNorm::layer(), ["dy", "x", "dx"]),
        )
        .bound(BWD)
        .grad_of("layernorm_forward"),
        k(
            "layernorm_relu",
            "S12.7",
            "x, gamma, beta",
            "eps=1e-05",
            "Y, mean:f32, rstd:f32",
            &["row_norm"],
            |cx| layer_norm(cx, layer(cx, Activation::Relu)?, "Y"),
        )
        .bound(FWD)
        .sample(draw_fused_layer),
        k(
            "layernorm_relu_backward",
            "S12.7",
            "dY, x, gamma, mean:f32, rstd:f32, Y",
            "-",
            "dx, dgamma, dbeta",
            &["row_norm_bwd"],
            |cx| layer_norm_backward(cx, RowNorm::layer().act(Activation::Relu), ["dY", "x", "dx"]),
        )
        .bound(BWD)
        .grad_of("layernorm_relu"),
        k(
            "layernorm_gelu",
            "S12.8",
            "x, gamma, beta",
            "eps=1e-05, approx=\"none\"",
            "Y, mean:f32, rstd:f32",
            &["row_norm"],
            |cx| layer_norm(cx, layer(cx, gelu(cx)?)?, "Y"),
        )
        .bound(FWD)
        .sample(|s| {
            draw_fused_layer(s);
            let approx = ["none", "tanh"][s.below(2)];
            s.arg("approx", approx);
        }),
        k(
            "layernorm_gelu_backward",
            "S12.8",
            "dY, x, gamma, beta, mean:f32, rstd:f32",
            "approx=\"none\"",
            "dx, dgamma, dbeta",
            &["row_norm_bwd"],
            |cx| layer_norm_backward(cx, RowNorm::layer().act(gelu(cx)?), ["dY", "x", "dx"]),
        )
        .bound(BWD)
        .grad_of("layernorm_gelu"),
        k(
            "residual_layernorm",
            "S12.9",
            "x, r, gamma, beta",
            "eps=1e-05",
            "Y, s, mean:f32, rstd:f32",
            &["row_norm"],
            |cx| layer_norm(cx, layer(cx, Activation::Identity)?, "Y"),
        )
        .bound(FWD)
        .sample(draw_residual),
        k(
            "residual_layernorm_backward",
            "S12.9",
            "dY, [ds_in], s, gamma, mean:f32, rstd:f32",
            "-",
            "ds, dgamma, dbeta",
            &["row_norm_bwd"],
            |cx| layer_norm_backward(cx, RowNorm::layer(), ["dY", "s", "ds"]),
        )
        .bound(BWD)
        .grad_of("residual_layernorm"),
    ],
    &[
        k(
            "rmsnorm_forward",
            "S4.5",
            "x, [gamma]",
            "eps=1e-06, gamma_offset=0.0",
            "y, [r:f32]",
            &["row_norm"],
            rms_norm,
        )
        .bound(FWD)
        .sample(draw_rms),
        k(
            "rmsnorm_backward",
            "S4.11",
            "dy, x, [gamma], r:f32",
            "gamma_offset=0.0",
            "dx",
            &["row_norm_bwd"],
            |cx| rms_norm_backward(cx, "x", "dx"),
        )
        .bound(BWD)
        .grad_of("rmsnorm_forward"),
        k("rmsnorm_grad_gamma", "S4.12", "dy, x, r:f32", "-", "dgamma", &["row_norm_bwd"], |cx| {
            rms_norm_backward(cx, "x", "dx")
        })
        .bound(BWD)
        .grad_of("rmsnorm_forward"),
        k(
            "residual_rmsnorm",
            "B3.5",
            "x, r, [gamma]",
            "eps=1e-06, gamma_offset=0.0",
            "y, s",
            &["row_norm"],
            rms_norm,
        )
        .bound(FWD)
        .sample(draw_residual_rms),
        k(
            "residual_rmsnorm_backward",
            "B3.5",
            "dy, [ds_in], s, [gamma], r:f32",
            "gamma_offset=0.0",
            "ds, [dgamma]",
            &["row_norm_bwd"],
            |cx| rms_norm_backward(cx, "s", "ds"),
        )
        .bound(BWD)
        .grad_of("residual_rmsnorm"),
    ],
    &[
        k(
            "groupnorm_forward",
            "S4.3",
            "x, [gamma], [beta]",
            "G, eps=1e-05",
            "y, [mean:f32], [rstd:f32]",
            &["group_norm"],
            |cx| group_norm(cx, groups(cx, Activation::Identity)?),
        )
        .bound(FWD)
        .sample(|s| draw_groups(s, false)),
        k(
            "groupnorm_backward",
            "S4.9",
            "dy, x, [gamma], mean:f32, rstd:f32",
            "G",
            "dx, dgamma, dbeta",
            &["group_norm_bwd"],
            |cx| group_norm_backward(cx, groups(cx, Activation::Identity)?),
        )
        .bound(BWD)
        .grad_of("groupnorm_forward"),
        k(
            "instancenorm_forward",
            "S4.4",
            "x, [gamma], [beta], [running_mean:f32], [running_var:f32]",
            "eps=1e-05, momentum=0.1, use_input_stats=true",
            "y, [mean:f32], [rstd:f32], [running_mean:f32], [running_var:f32]",
            &["instance_norm", "batch_norm"],
            instance_norm,
        )
        .bound(FWD)
        .sample(draw_instances),
        k(
            "instancenorm_backward",
            "S4.10",
            "dy, x, [gamma], mean:f32, rstd:f32",
            "-",
            "dx, dgamma, dbeta",
            &["group_norm_bwd"],
            |cx| group_norm_backward(cx, GroupNorm::new(size(&cx.x("x")?, 1))),
        )
        .bound(BWD)
        .grad_of("instancenorm_forward"),
        k(
            "groupnorm_swish",
            "B3.4",
            "x, [gamma], [beta]",
            "G, eps=1e-05",
            "y, [mean:f32], [rstd:f32]",
            &["group_norm"],
            |cx| group_norm(cx, groups(cx, Activation::Swish { beta: 1.0 })?),
        )
        .bound(FWD)
        .sample(draw_group_swish),
        k(
            "groupnorm_swish_backward",
            "B3.4",
            "dy, x, gamma, beta, mean:f32, rstd:f32",
            "G",
            "dx, dgamma, dbeta",
            &["group_norm_bwd"],
            |cx| group_norm_backward(cx, groups(cx, Activation::Swish { beta: 1.0 })?),
        )
        .bound(BWD)
        .grad_of("groupnorm_swish"),
        k(
            "add_groupnorm",
            "B3.4",
            "x, r, [gamma], [beta]",
            "G, eps=1e-05",
            "y, s, [mean:f32], [rstd:f32]",
            &["group_norm"],
            |cx| group_norm(cx, groups(cx, Activation::Identity)?),
        )
        .bound(FWD)
        .sample(|s| draw_groups(s, true)),
    ],
    &[
        k("l2_normalize", "B3.1", "x", "axis=-1, eps=1e-12", "y", &["l2_normalize"], l2_normalize)
            .bound(Close(2e-6, 1e-7))
            .sample(draw_l2),
        k(
            "l2_normalize_backward",
            "B3.1",
            "dy, x",
            "axis=-1, eps=1e-12",
            "dx",
            &["l2_normalize_bwd"],
            l2_normalize_backward,
        )
        .bound(Close(1e-5, 1e-5))
        .grad_of("l2_normalize"),
    ],
];
