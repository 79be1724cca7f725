//! Row losses of regions, boxes, states, densities and preferences.

use trefoil::DType;
use trefoil::ops::loss::{Adversary, BoxOverlap, RowLoss};

use super::basic::draw_reduction;
use super::rows::{matrix, rows, size};
use crate::cases::{Kernel, pair};
use crate::device::{Cx, R};
use crate::sampler::Dom::{self, Any, Positive, Range, Sign};
use crate::sampler::Sample;

fn adversarial(cx: &Cx<'_>) -> R<RowLoss> {
    let mode = if cx.s("mode")? == "hinge" { Adversary::Hinge } else { Adversary::Vanilla };
    Ok(RowLoss::Adversarial { mode })
}

/// Operands of one shape.
fn same(s: &mut Sample, names: &[(&str, Dom)]) {
    let shape = s.solid();
    for (name, dom) in names {
        s.put(name, &shape, *dom);
    }
}

/// p and t with at least two axes: samples, channels, positions.
fn volume(s: &mut Sample, dom: Dom) {
    let [n, d] = size(s);
    let long = if s.small || s.below(3) > 0 { d } else { 20_000 };
    let n = if long > d { 3 } else { n };
    s.put("p", &[n, 2, long], dom);
    s.put("t", &[n, 2, long], if dom == Positive { Positive } else { Range(0.0, 1.0) });
}

/// Overlapping boxes.
fn box_pairs(s: &mut Sample) {
    let n = size(s)[0];
    for name in ["p", "t"] {
        s.corners(name, n);
    }
}

pub(super) const ROWS: &[&[Kernel]] = &[
    &pair!(
        "dice_loss",
        "L23",
        "p, t",
        "smooth=1.0, squared=false, from_logits=false, per_channel=false, reduction=\"mean\"",
        "dp",
        ["row_loss"],
        |cx| {
            rows(
                cx,
                RowLoss::Dice {
                    smooth: cx.f("smooth")?,
                    squared: cx.b("squared")?,
                    from_logits: cx.b("from_logits")?,
                    per_channel: cx.b("per_channel")?,
                },
                &["p", "t"],
                "",
            )
        }
    )
    .sample(|s| {
        volume(s, Range(0.05, 0.95));
        let (squared, logits, channel) = (s.coin(), s.coin(), s.coin());
        s.arg("squared", squared);
        s.arg("from_logits", logits);
        s.arg("per_channel", channel);
        draw_reduction(s);
    }),
    &pair!("jaccard_loss", "L24", "p, t", "smooth=1.0, reduction=\"mean\"", "dp", ["row_loss"], |cx| {
        rows(cx, RowLoss::Tversky { a: 1.0, b: 1.0, smooth: cx.f("smooth")?, gamma: 1.0 }, &["p", "t"], "")
    })
    .sample(|s| {
        volume(s, Range(0.05, 0.95));
        draw_reduction(s);
    }),
    &pair!(
        "tversky_loss",
        "L71",
        "p, t",
        "a=0.3, b=0.7, smooth=1.0, reduction=\"mean\"",
        "dp",
        ["row_loss"],
        |cx| {
            rows(
                cx,
                RowLoss::Tversky { a: cx.f("a")?, b: cx.f("b")?, smooth: cx.f("smooth")?, gamma: 1.0 },
                &["p", "t"],
                "",
            )
        }
    )
    .sample(|s| {
        volume(s, Range(0.05, 0.95));
        draw_reduction(s);
    }),
    &pair!(
        "focal_tversky_loss",
        "L71",
        "p, t",
        "a=0.3, b=0.7, smooth=1.0, gamma=0.75, reduction=\"mean\"",
        "dp",
        ["row_loss"],
        |cx| {
            rows(
                cx,
                RowLoss::Tversky {
                    a: cx.f("a")?,
                    b: cx.f("b")?,
                    smooth: cx.f("smooth")?,
                    gamma: cx.f("gamma")?,
                },
                &["p", "t"],
                "",
            )
        }
    )
    .sample(|s| {
        volume(s, Range(0.05, 0.95));
        draw_reduction(s);
    }),
    &pair!("iou_loss", "L53", "p, t", "eps=1e-07, reduction=\"mean\"", "dp", ["row_loss"], |cx| {
        rows(cx, RowLoss::Boxes { overlap: BoxOverlap::Iou, eps: cx.f("eps")? }, &["p", "t"], "")
    })
    .sample(|s| {
        box_pairs(s);
        draw_reduction(s);
    }),
    &pair!("giou_loss", "L54", "p, t", "eps=1e-07, reduction=\"mean\"", "dp", ["row_loss"], |cx| {
        rows(cx, RowLoss::Boxes { overlap: BoxOverlap::Giou, eps: cx.f("eps")? }, &["p", "t"], "")
    })
    .sample(|s| {
        box_pairs(s);
        draw_reduction(s);
    }),
    &pair!("diou_loss", "L55", "p, t", "eps=1e-07, reduction=\"mean\"", "dp", ["row_loss"], |cx| {
        rows(cx, RowLoss::Boxes { overlap: BoxOverlap::Diou, eps: cx.f("eps")? }, &["p", "t"], "")
    })
    .sample(|s| {
        box_pairs(s);
        draw_reduction(s);
    }),
    &pair!("ciou_loss", "L56", "p, t", "eps=1e-07, reduction=\"mean\"", "dp", ["row_loss"], |cx| {
        rows(cx, RowLoss::Boxes { overlap: BoxOverlap::Ciou, eps: cx.f("eps")? }, &["p", "t"], "")
    })
    .sample(|s| {
        box_pairs(s);
        draw_reduction(s);
    }),
    &pair!("quantum_loss", "L32", "psi, phi", "reduction=\"mean\"", "dpsi", ["row_loss"], |cx| {
        rows(cx, RowLoss::Quantum, &["psi", "phi"], "")
    })
    .sample(|s| {
        let [n, d] = size(s);
        s.put("psi", &[n, d, 2], Any);
        s.put("phi", &[n, d, 2], Any);
        draw_reduction(s);
    }),
    &pair!(
        "scale_invariant_depth_loss",
        "L34",
        "p, t, [mask:u8]",
        "lambda=0.5, sqrt=false, reduction=\"mean\"",
        "dp",
        ["row_loss"],
        |cx| rows(cx, RowLoss::Depth { lambda: cx.f("lambda")?, root: cx.b("sqrt")? }, &["p", "t"], "")
    )
    .sample(|s| {
        volume(s, Positive);
        let shape = s.shape_of("p");
        if s.coin() && s.small {
            s.ints("mask", DType::U8, &shape, &vec![1; shape.iter().product()]);
        } else if s.coin() && !s.small {
            s.mask("mask", &shape);
        }
        let root = s.coin();
        s.arg("sqrt", root);
        draw_reduction(s);
    }),
    &pair!("mae_reconstruction_loss", "L67", "p, t, mask:u8", "normalize=false", "dp", ["row_loss"], |cx| {
        rows(cx, RowLoss::Patches { normalize: cx.b("normalize")? }, &["p", "t"], "")
    })
    .sample(|s| {
        let [n, d] = size(s);
        let shape = [n, 2, d.max(2)];
        s.put("p", &shape, Any);
        s.put("t", &shape, Any);
        s.mask("mask", &shape[..2]);
        let on = s.coin();
        s.arg("normalize", on);
    }),
    &pair!(
        "diag_gaussian_kl_loss",
        "L48",
        "mu, lv",
        "reduction=\"mean\"",
        "[dmu], [dlv]",
        ["row_loss"],
        |cx| { rows(cx, RowLoss::GaussianKl, &["mu", "lv"], "") }
    )
    .sample(|s| {
        matrix(s, &[("mu", Any), ("lv", Any)]);
        draw_reduction(s);
    }),
    &pair!("root_mean_squared_error_loss", "L3", "p, t", "-", "dp", ["row_loss"], |cx| {
        rows(cx, RowLoss::Rmse, &["p", "t"], "")
    })
    .sample(|s| {
        same(s, &[("p", Any), ("t", Any)]);
    }),
    &pair!("elastic_net_loss", "L9", "p, t", "alpha=0.01, r=0.5", "dp", ["row_loss"], |cx| {
        rows(cx, RowLoss::ElasticNet { alpha: cx.f("alpha")?, r: cx.f("r")? }, &["p", "t"], "")
    })
    .sample(|s| {
        same(s, &[("p", Any), ("t", Any)]);
    }),
    &pair!(
        "gaussian_nll_loss",
        "L70",
        "p, t, var",
        "full=false, eps=1e-06, reduction=\"mean\"",
        "[dp], [dvar]",
        ["row_loss"],
        |cx| {
            rows(cx, RowLoss::GaussianNll { full: cx.b("full")?, eps: cx.f("eps")? }, &["p", "t", "var"], "")
        }
    )
    .sample(|s| {
        same(s, &[("p", Any), ("t", Any), ("var", Positive)]);
        let full = s.coin();
        s.arg("full", full);
        draw_reduction(s);
    }),
    &pair!(
        "margin_ranking_loss",
        "L70",
        "x1, x2, y",
        "margin=0.0, reduction=\"mean\"",
        "[dx1], [dx2]",
        ["row_loss"],
        |cx| rows(cx, RowLoss::MarginRanking { margin: cx.f("margin")? }, &["x1", "x2", "y"], "")
    )
    .sample(|s| {
        same(s, &[("x1", Any), ("x2", Any), ("y", Sign)]);
        s.arg("margin", 0.5);
        draw_reduction(s);
    }),
    &pair!(
        "dpo_loss",
        "L74",
        "w, l, w_ref, l_ref",
        "beta=0.1, reduction=\"mean\"",
        "[dw], [dl]",
        ["row_loss"],
        |cx| rows(cx, RowLoss::Dpo { beta: cx.f("beta")? }, &["w", "l", "w_ref", "l_ref"], "")
    )
    .sample(|s| {
        same(s, &[("w", Range(-4.0, -0.2)), ("l", Range(-4.0, -0.2)), ("w_ref", Any), ("l_ref", Any)]);
        draw_reduction(s);
    }),
    &pair!(
        "ipo_loss",
        "L74",
        "w, l, w_ref, l_ref",
        "beta=0.1, reduction=\"mean\"",
        "[dw], [dl]",
        ["row_loss"],
        |cx| rows(cx, RowLoss::Ipo { beta: cx.f("beta")? }, &["w", "l", "w_ref", "l_ref"], "")
    )
    .sample(|s| {
        same(s, &[("w", Range(-4.0, -0.2)), ("l", Range(-4.0, -0.2)), ("w_ref", Any), ("l_ref", Any)]);
        draw_reduction(s);
    }),
    &pair!(
        "simpo_loss",
        "L74",
        "w, l",
        "beta=2.0, gamma=1.0, reduction=\"mean\"",
        "[dw], [dl]",
        ["row_loss"],
        |cx| rows(cx, RowLoss::SimPo { beta: cx.f("beta")?, gamma: cx.f("gamma")? }, &["w", "l"], "")
    )
    .sample(|s| {
        same(s, &[("w", Range(-4.0, -0.2)), ("l", Range(-4.0, -0.2))]);
        draw_reduction(s);
    }),
    &pair!("orpo_loss", "L74", "w, l", "reduction=\"mean\"", "[dw], [dl]", ["row_loss"], |cx| {
        rows(cx, RowLoss::Orpo, &["w", "l"], "")
    })
    .sample(|s| {
        same(s, &[("w", Range(-4.0, -0.2)), ("l", Range(-4.0, -0.2))]);
        draw_reduction(s);
    }),
    &pair!(
        "adversarial_loss",
        "L47",
        "d_fake, [d_real]",
        "role=\"generator\", mode=\"vanilla\"",
        "[dd_fake], [dd_real]",
        ["row_loss"],
        |cx| rows(cx, adversarial(cx)?, &["d_fake", "d_real"], "")
    )
    .sample(|s| {
        same(s, &[("d_fake", Any)]);
        if s.coin() {
            let shape = s.shape_of_first();
            s.put("d_real", &shape, Any);
            s.arg("role", "discriminator");
        }
        let mode = ["vanilla", "hinge"][s.below(2)];
        s.arg("mode", mode);
    }),
];
