//! Row losses of embeddings and classes; the calls that all row losses share.

use std::rc::Rc;

use trefoil::ops::loss::{Reduction, RowLoss, RowLossBwd, RowLossFwd};
use trefoil::{GradMut, View};

use super::basic::{draw_reduction, reduction};
use crate::cases::{Kernel, pair};
use crate::device::{Cx, R, Tensor};
use crate::sampler::Dom::{self, Any, Positive, Range, Sign};
use crate::sampler::Sample;

/// Reduction of a row; rows without the argument are means.
fn how(cx: &Cx<'_>) -> R<Reduction> {
    if cx.has("reduction") { reduction(cx) } else { Ok(Reduction::Mean) }
}

/// Shape of the items: the forward's `loss` for none, from the loss's rule.
fn items(kind: RowLoss, x: &[Option<View<'_>>; 4]) -> Vec<usize> {
    let mut first = x.iter().flatten().next().map(|v| v.shape().to_vec()).unwrap_or_default();
    if let (RowLoss::Nll { .. }, Some(axis)) = (kind, first.len().min(2).checked_sub(1)) {
        first.remove(axis);
        return first;
    }
    let n = match kind {
        RowLoss::Dice { per_channel: true, .. } => 2,
        RowLoss::Dice { .. } | RowLoss::Tversky { .. } | RowLoss::Quantum | RowLoss::Depth { .. } => 1,
        RowLoss::GaussianNll { .. }
        | RowLoss::MarginRanking { .. }
        | RowLoss::Dpo { .. }
        | RowLoss::Ipo { .. }
        | RowLoss::Kto { .. }
        | RowLoss::SimPo { .. }
        | RowLoss::Orpo
        | RowLoss::BcePosWeight
        | RowLoss::Quantiles
        | RowLoss::Adversarial { .. } => first.len(),
        // The first operand is already a number per row.
        RowLoss::Nce => 1,
        RowLoss::Ordinal if x[0].is_none() => 1,
        _ => first.len().saturating_sub(1),
    };
    first[..n.min(first.len())].to_vec()
}

fn operands<'c>(cx: &'c Cx<'_>, names: &[&str]) -> [Option<View<'c>>; 4] {
    let mut x = [None; 4];
    for (v, name) in x.iter_mut().zip(names) {
        *v = cx.opt(name);
    }
    x
}

/// A row loss with these operands and ids, or its gradients: those of the row's outputs, named after the operands.
pub(in crate::cases) fn rows(cx: &Cx<'_>, kind: RowLoss, names: &[&str], ids: &str) -> R {
    rows_of(cx, kind, operands(cx, names), names, ids)
}

pub(in crate::cases) fn rows_of(
    cx: &Cx<'_>,
    kind: RowLoss,
    x: [Option<View<'_>>; 4],
    names: &[&str],
    ids: &str,
) -> R {
    if cx.is_gradient() {
        return gradient(cx, kind, x, names, ids);
    }
    let how = how(cx)?;
    let loss = match how {
        Reduction::None => cx.out("loss", cx.dtype, &items(kind, &x))?,
        _ => cx.out("loss", cx.dtype.accumulator(), &[])?,
    };
    let io = RowLossFwd::new(x, loss.m()).ids(cx.opt(ids)).mask(cx.opt("mask"));
    Ok(cx.gpu.row_loss(kind, how, io)?)
}

fn gradient(cx: &Cx<'_>, kind: RowLoss, x: [Option<View<'_>>; 4], names: &[&str], ids: &str) -> R {
    let mut out: [Option<Rc<Tensor>>; 4] = Default::default();
    for (i, name) in names.iter().enumerate() {
        let name = format!("d{name}");
        if let Some(v) = x[i].filter(|_| cx.has_output(&name) && cx.wants(&name)) {
            out[i] = Some(cx.like(&name, &v)?);
        }
    }
    let dx = [0, 1, 2, 3].map(|i: usize| out[i].as_ref().map(|t| -> GradMut<'_> { t.g() }));
    let io = RowLossBwd::new(cx.x("gy")?, x).ids(cx.opt(ids)).mask(cx.opt("mask")).dx(dx);
    Ok(cx.gpu.row_loss_bwd(kind, how(cx)?, io)?)
}

fn triplet(cx: &Cx<'_>) -> R<RowLoss> {
    Ok(RowLoss::Triplet {
        margin: cx.f("margin")?,
        p: cx.f("p")?,
        eps: cx.f("eps")?,
        swap: cx.b("swap")?,
        squared: cx.b("squared")?,
    })
}

/// Rows and their length.
pub(in crate::cases) fn size(s: &mut Sample) -> [usize; 2] {
    if s.small {
        return [2 + s.below(3), 3 + s.below(3)];
    }
    [[1, 7, 65, 300][s.below(4)], [2, 5, 33, 257, 1000][s.below(5)]]
}

/// Operands of one shape [rows, length].
pub(in crate::cases) fn matrix(s: &mut Sample, names: &[(&str, Dom)]) -> [usize; 2] {
    let n = size(s);
    for (name, dom) in names {
        s.put(name, &n, *dom);
    }
    n
}

pub(super) const ROWS: &[&[Kernel]] = &[
    &pair!(
        "triplet_loss",
        "S7.11",
        "a, p, q",
        "margin=1.0, p=2.0, eps=1e-06, swap=false, squared=false, reduction=\"mean\"",
        "[da], [dp], [dq]",
        ["row_loss"],
        |cx| rows(cx, triplet(cx)?, &["a", "p", "q"], "")
    )
    // Of two distances.
    .sample(|s| {
        matrix(s, &[("a", Any), ("p", Any), ("q", Any)]);
        let (swap, squared) = (s.coin(), s.below(3) == 0);
        s.arg("swap", swap);
        s.arg("squared", squared);
        let p = [1.0, 2.0, 3.0][s.below(3)];
        s.arg("p", p);
        draw_reduction(s);
    }),
    &pair!(
        "contrastive_loss",
        "S7.13",
        "u, v, y",
        "margin=1.0, half=false, reduction=\"mean\"",
        "[du], [dv]",
        ["row_loss"],
        |cx| {
            rows(
                cx,
                RowLoss::Contrastive { margin: cx.f("margin")?, half: cx.b("half")? },
                &["u", "v", "y"],
                "",
            )
        }
    )
    .sample(|s| {
        let n = matrix(s, &[("u", Any), ("v", Any)]);
        s.put("y", &[n[0]], Range(0.0, 1.0));
        s.arg("margin", 3.0);
        draw_reduction(s);
    }),
    &pair!(
        "cosine_similarity_loss",
        "L16",
        "p, t",
        "eps=1e-08, reduction=\"mean\"",
        "[dp], [dt]",
        ["row_loss"],
        |cx| rows(cx, RowLoss::Cosine { eps: cx.f("eps")?, scale: 1.0 }, &["p", "t"], "")
    )
    .sample(|s| {
        matrix(s, &[("p", Any), ("t", Any)]);
        draw_reduction(s);
    }),
    &pair!("byol_loss", "L65", "p, z", "-", "dp", ["row_loss"], |cx| {
        rows(cx, RowLoss::Cosine { eps: 1e-12, scale: 2.0 }, &["p", "z"], "")
    })
    .sample(|s| {
        matrix(s, &[("p", Any), ("z", Any)]);
    }),
    &pair!(
        "cosine_embedding_loss",
        "L70",
        "x1, x2, y",
        "margin=0.0, reduction=\"mean\"",
        "[dx1], [dx2]",
        ["row_loss"],
        |cx| rows(cx, RowLoss::CosineEmbedding { margin: cx.f("margin")? }, &["x1", "x2", "y"], "")
    )
    .sample(|s| {
        let n = matrix(s, &[("x1", Any), ("x2", Any)]);
        s.put("y", &[n[0]], Sign);
        draw_reduction(s);
    }),
    &pair!(
        "noise_contrastive_estimation_loss",
        "L29",
        "s0, sn, [logq0], [logqn]",
        "reduction=\"mean\"",
        "[ds0], [dsn]",
        ["row_loss"],
        |cx| rows(cx, RowLoss::Nce, &["s0", "sn", "logq0", "logqn"], "")
    )
    .sample(|s| {
        let n = size(s);
        s.put("s0", &[n[0]], Any);
        s.put("sn", &n, Any);
        if s.coin() {
            s.put("logq0", &[n[0]], Range(-6.0, -0.5));
            s.put("logqn", &n, Range(-6.0, -0.5));
        }
        draw_reduction(s);
    }),
    &pair!(
        "margin_loss",
        "L27",
        "v, t",
        "m_plus=0.9, m_minus=0.1, lambda=0.5, reduction=\"mean\"",
        "dv",
        ["row_loss"],
        |cx| {
            rows(
                cx,
                RowLoss::Capsule { plus: cx.f("m_plus")?, minus: cx.f("m_minus")?, lambda: cx.f("lambda")? },
                &["v", "t"],
                "",
            )
        }
    )
    .sample(|s| {
        matrix(s, &[("v", Range(0.0, 1.0)), ("t", Range(0.0, 1.0))]);
        draw_reduction(s);
    }),
    &pair!(
        "categorical_cross_entropy_loss",
        "L19",
        "p, t",
        "label_smoothing=0.0, reduction=\"mean\"",
        "dp",
        ["row_loss"],
        |cx| {
            rows(cx, RowLoss::CategoricalCe { label_smoothing: cx.f("label_smoothing")? }, &["p", "t"], "")
        }
    )
    .sample(|s| {
        matrix(s, &[("p", Range(0.05, 1.0)), ("t", Range(0.0, 1.0))]);
        s.arg("label_smoothing", 0.125);
        draw_reduction(s);
    }),
    &pair!(
        "sparse_categorical_cross_entropy_loss",
        "L20",
        "p, target:idx",
        "ignore_index=-100, reduction=\"mean\"",
        "dp",
        ["row_loss"],
        |cx| {
            rows(
                cx,
                RowLoss::Nll { floor: Some(1e-7), ignore_index: cx.i("ignore_index")? },
                &["p"],
                "target",
            )
        }
    )
    .sample(|s| {
        let n = matrix(s, &[("p", Range(0.05, 1.0))]);
        s.ids("target", &[n[0]], n[1]);
        s.arg("ignore_index", 1);
        draw_reduction(s);
    }),
    &pair!(
        "nll_loss",
        "L69",
        "x, target:idx, [weight]",
        "ignore_index=-100, reduction=\"mean\"",
        "dx",
        ["row_loss"],
        |cx| {
            rows(
                cx,
                RowLoss::Nll { floor: None, ignore_index: cx.i("ignore_index")? },
                &["x", "weight"],
                "target",
            )
        }
    )
    .sample(|s| {
        let mut shape = size(s).to_vec();
        match s.below(4) {
            0 => shape.extend([1 + s.below(3), 1 + s.below(5)]),
            1 => shape = vec![shape[1]],
            _ => {}
        }
        s.put("x", &shape, Any);
        let classes = shape.remove(shape.len().min(2) - 1);
        s.ids("target", &shape, classes);
        if s.coin() {
            s.put("weight", &[classes], Positive);
        }
        // The mean over no row is NaN.
        s.arg("ignore_index", if shape.is_empty() { -100 } else { 1 });
        draw_reduction(s);
    }),
    &pair!(
        "multiclass_focal_loss",
        "L22",
        "x, target:idx, [alpha]",
        "gamma=2.0, reduction=\"mean\"",
        "dx",
        ["row_loss"],
        |cx| rows(cx, RowLoss::MulticlassFocal { gamma: cx.f("gamma")? }, &["x", "alpha"], "target")
    )
    .sample(|s| {
        let n = matrix(s, &[("x", Any)]);
        s.ids("target", &[n[0]], n[1]);
        if s.coin() {
            s.put("alpha", &[n[1]], Positive);
        }
        let g = [0.0, 1.5, 2.0][s.below(3)];
        s.arg("gamma", g);
        draw_reduction(s);
    }),
    &pair!(
        "ordinal_regression_loss",
        "L31",
        "[f], [s], [theta], y:idx",
        "reduction=\"mean\"",
        "[df], [ds], [dtheta]",
        ["row_loss"],
        |cx| rows(cx, RowLoss::Ordinal, &["f", "s", "theta"], "y")
    )
    .sample(|s| {
        let n = size(s);
        if s.coin() {
            s.put("f", &n, Any);
        } else {
            s.put("s", &[n[0]], Any);
            s.put("theta", &[n[1]], Any);
        }
        s.ids("y", &[n[0]], n[1] + 1);
        draw_reduction(s);
    }),
    &pair!("distillation_loss", "L37", "z, y, [labels:idx]", "T=3.0, alpha=0.3", "dz", ["row_loss"], |cx| {
        rows(
            cx,
            RowLoss::Distillation { temperature: cx.f("T")?, alpha: cx.f("alpha")? },
            &["z", "y"],
            "labels",
        )
    })
    .sample(|s| {
        let n = matrix(s, &[("z", Any), ("y", Any)]);
        if s.coin() {
            s.ids("labels", &[n[0]], n[1]);
        }
    }),
    &pair!("dino_loss", "L66", "z, y, center", "tau_s=0.1, tau_t=0.04", "dz", ["row_loss"], |cx| {
        rows(
            cx,
            RowLoss::Dino { student: cx.f("tau_s")?, teacher: cx.f("tau_t")? },
            &["z", "y", "center"],
            "",
        )
    })
    .sample(|s| {
        let n = matrix(s, &[("z", Range(-0.5, 0.5)), ("y", Range(-0.3, 0.3))]);
        s.put("center", &[n[1]], Range(-0.1, 0.1));
    }),
    &pair!("arcface_loss", "L72", "x, target:idx", "s=64.0, m=0.5", "dx", ["row_loss"], |cx| {
        rows(cx, RowLoss::ArcFace { scale: cx.f("s")?, margin: cx.f("m")? }, &["x"], "target")
    })
    .sample(|s| {
        let n = matrix(s, &[("x", Range(-0.9, 0.9))]);
        s.ids("target", &[n[0]], n[1]);
        s.arg("s", 8.0);
    }),
    &pair!("z_loss", "L75", "x", "coef=0.0001, reduction=\"mean\"", "dx", ["row_loss"], |cx| {
        rows(cx, RowLoss::Z { coef: cx.f("coef")? }, &["x"], "")
    })
    .sample(|s| {
        matrix(s, &[("x", Any)]);
        draw_reduction(s);
    }),
    &pair!(
        "multi_margin_loss",
        "L70",
        "x, target:idx, [weight]",
        "p=1, margin=1.0, reduction=\"mean\"",
        "dx",
        ["row_loss"],
        |cx| {
            rows(
                cx,
                RowLoss::MultiMargin { squared: cx.n("p")? == 2, margin: cx.f("margin")? },
                &["x", "weight"],
                "target",
            )
        }
    )
    .sample(|s| {
        let n = matrix(s, &[("x", Any)]);
        s.ids("target", &[n[0]], n[1]);
        if s.coin() {
            s.put("weight", &[n[1]], Positive);
        }
        let p = 1 + s.below(2);
        s.arg("p", p);
        draw_reduction(s);
    }),
    &pair!(
        "multilabel_margin_loss",
        "L70",
        "x, target:idx",
        "reduction=\"mean\"",
        "dx",
        ["row_loss"],
        |cx| rows(cx, RowLoss::MultilabelMargin, &["x"], "target")
    )
    .sample(|s| {
        let n = matrix(s, &[("x", Any)]);
        s.labels("target", &n);
        draw_reduction(s);
    }),
    &pair!(
        "multilabel_soft_margin_loss",
        "L70",
        "x, t, [weight]",
        "reduction=\"mean\"",
        "dx",
        ["row_loss"],
        |cx| rows(cx, RowLoss::MultilabelSoftMargin, &["x", "t", "weight"], "")
    )
    .sample(|s| {
        let n = matrix(s, &[("x", Any), ("t", Range(0.0, 1.0))]);
        if s.coin() {
            s.put("weight", &[n[1]], Positive);
        }
        draw_reduction(s);
    }),
];
