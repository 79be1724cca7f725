//! Losses that mix operands of several shapes; lists.

use trefoil::ops::loss::{Loss, LossTerm, RowLoss};
use trefoil::{Buffer, GradMut, View};

use super::basic::{draw_reduction, each};
use super::rows::{matrix, rows, rows_of};
use crate::cases::Bound::Derived;
use crate::cases::{Kernel, element, k, pair};
use crate::device::{Cx, R};
use crate::sampler::Dom::{Any, Positive, Range};

/// The list of levels as a tensor, where `q` is one.
fn levels(cx: &Cx<'_>) -> R<Option<Buffer>> {
    let Some(q) = cx.opt_list("q")? else { return Ok(None) };
    let mut buffer = cx.gpu.alloc(cx.dtype, q.len())?;
    let bytes: Vec<u8> = q.iter().flat_map(|&q| element(cx.dtype, q)).collect();
    cx.gpu.write_bytes(buffer.view_mut(), &bytes)?;
    Ok(Some(buffer))
}

fn quantile(cx: &Cx<'_>) -> R {
    match levels(cx)? {
        None => each(cx, Loss::Quantile { q: cx.f("q")? }, "p", "t"),
        Some(q) => {
            rows_of(cx, RowLoss::Quantiles, [cx.opt("p"), cx.opt("t"), Some(q.view()), None], &["p"], "")
        }
    }
}

const BCE: &[&str] = &["x", "t", "weight", "pos_weight"];

fn bce_logits(cx: &Cx<'_>) -> R {
    match cx.opt("pos_weight") {
        Some(_) => rows(cx, RowLoss::BcePosWeight, BCE, ""),
        None => each(cx, Loss::BceLogits, "x", "t"),
    }
}

const NLL: RowLoss = RowLoss::Nll { floor: Some(0.0), ignore_index: -100 };

fn weighted(cx: &Cx<'_>) -> R {
    match cx.s("mode")?.as_str() {
        "categorical" => rows(cx, NLL, &["p", "weight"], "target"),
        _ => each(cx, Loss::Bce, "p", "t"),
    }
}

fn divergence(cx: &Cx<'_>) -> R {
    let (log_input, log_target) = (cx.b("log_input")?, cx.b("log_target")?);
    match cx.s("reduction")?.as_str() {
        "batchmean" => rows(cx, RowLoss::Kl { log_input, log_target }, &["p", "t"], ""),
        _ => each(cx, Loss::Kl { log_input, log_target }, "p", "t"),
    }
}

/// Terms of a list, with the elementwise loss.
fn terms<'c>(cx: &'c Cx<'_>, p: &str, t: &str) -> R<Vec<LossTerm<'c>>> {
    let weights = cx.numbers("weights")?;
    let t: Vec<Option<View<'c>>> = cx.list(t).into_iter().map(Some).collect();
    let pairs = cx.list(p).into_iter().zip(t.into_iter().chain(std::iter::repeat(None)));
    Ok(pairs.zip(weights).map(|((p, t), weight)| LossTerm::new(p).t(t).weight(weight)).collect())
}

fn perceptual_kind(cx: &Cx<'_>) -> R<Loss> {
    Ok(if cx.b("l1")? { Loss::Mae } else { Loss::Mse })
}

fn perceptual(cx: &Cx<'_>) -> R {
    let loss = cx.out("loss", cx.dtype.accumulator(), &[])?;
    Ok(cx.gpu.loss_list(perceptual_kind(cx)?, &terms(cx, "f", "g")?, loss.m())?)
}

fn perceptual_grad(cx: &Cx<'_>) -> R {
    let terms = terms(cx, "f", "g")?;
    let out: Vec<_> =
        terms.iter().enumerate().map(|(i, x)| cx.like(&format!("df{i}"), &x.p)).collect::<R<_>>()?;
    let mut dp: Vec<GradMut<'_>> = out.iter().map(|t| t.g()).collect();
    Ok(cx.gpu.loss_list_bwd(perceptual_kind(cx)?, cx.x("gy")?, &terms, &mut dp)?)
}

fn physics(cx: &Cx<'_>) -> R {
    let loss = cx.out("loss", cx.dtype.accumulator(), &[])?;
    Ok(cx.gpu.loss_list(Loss::Square, &terms(cx, "r", "none")?, loss.m())?)
}
pub(super) const ROWS: &[&[Kernel]] = &[
    &pair!(
        "quantile_loss",
        "L6",
        "p, t, [weight], [mask:u8]",
        "q=0.5, reduction=\"mean\"",
        "dp",
        ["loss", "row_loss"],
        quantile
    )
    .sample(|s| {
        let shape = s.solid();
        if s.coin() {
            s.put("p", &[&shape[..], &[3]].concat(), Any);
            s.arg("q", serde_json::json!([0.125, 0.5, 0.75]));
        } else {
            s.put("p", &shape, Any);
        }
        s.put("t", &shape, Any);
        draw_reduction(s);
    }),
    &pair!(
        "binary_cross_entropy_with_logits_loss",
        "L39",
        "x, t, [weight], [pos_weight]",
        "reduction=\"mean\"",
        "dx",
        ["loss", "row_loss"],
        bce_logits
    )
    .sample(|s| {
        let n = matrix(s, &[("x", Any), ("t", Range(0.0, 1.0))]);
        if s.coin() {
            s.put("weight", &n, Positive);
        }
        if s.coin() {
            s.put("pos_weight", &[n[1]], Positive);
        }
        draw_reduction(s);
    }),
    &pair!(
        "weighted_cross_entropy_loss",
        "L21",
        "p, [target], [t], weight",
        "mode=\"categorical\", reduction=\"mean\"",
        "dp",
        ["loss", "row_loss"],
        weighted
    )
    .sample(|s| {
        let n = matrix(s, &[("p", Range(0.05, 0.95))]);
        if s.coin() {
            s.ids("target", &[n[0]], n[1]);
            s.put("weight", &[n[1]], Positive);
        } else {
            s.put("t", &n, Range(0.0, 1.0));
            s.put("weight", &n, Positive);
            s.arg("mode", "binary");
        }
        draw_reduction(s);
    }),
    &pair!(
        "kullback_leibler_divergence",
        "L15",
        "p, t",
        "log_input=false, log_target=false, reduction=\"batchmean\"",
        "dp",
        ["loss", "row_loss"],
        divergence
    )
    .sample(|s| {
        matrix(s, &[("p", Range(0.05, 1.0)), ("t", Range(0.05, 1.0))]);
        let (a, b) = (s.coin(), s.coin());
        s.arg("log_input", a);
        s.arg("log_target", b);
        let how = ["none", "sum", "mean", "batchmean"][s.below(4)];
        s.arg("reduction", how);
    }),
    &[
        k(
            "perceptual_loss",
            "L30",
            "f0, f1, ..., g0, g1, ...",
            "weights, l1=false",
            "loss",
            &["loss_list"],
            perceptual,
        )
        .bound(Derived)
        .sample(|s| {
            let shapes = [s.solid(), s.solid()];
            for name in ["f", "g"] {
                for (i, shape) in shapes.iter().enumerate() {
                    s.put(&format!("{name}{i}"), shape, Any);
                }
            }
            s.arg("weights", serde_json::json!([0.5, 2.0]));
            let l1 = s.coin();
            s.arg("l1", l1);
        }),
        k(
            "perceptual_loss_backward",
            "L30",
            "gy:f32, f0, f1, ..., g0, g1, ...",
            "weights, l1=false",
            "df0, df1, ...",
            &["loss_list_bwd"],
            perceptual_grad,
        )
        .bound(Derived)
        .grad_of("perceptual_loss"),
        k("physics_informed_loss", "L38", "r0, r1, ...", "weights", "loss", &["loss_list"], physics)
            .bound(Derived)
            .sample(|s| {
                for i in 0..2 {
                    let shape = s.solid();
                    s.put(&format!("r{i}"), &shape, Any);
                }
                s.arg("weights", serde_json::json!([0.5, 2.0]));
            }),
    ],
];
