//! Elementwise losses.

use trefoil::ops::loss::Loss;

use super::basic::{draw_reduction, each};
use crate::cases::Bound::{Derived, Sum};
use crate::cases::{Kernel, k, pair};
use crate::device::{Cx, R};
use crate::sampler::Dom::{self, Any, Count, Positive, Range, Sign};
use crate::sampler::Sample;

fn focal(cx: &Cx<'_>) -> R<Loss> {
    let (alpha, gamma) = (cx.f("alpha")?, cx.f("gamma")?);
    Ok(match cx.s("input")?.as_str() {
        "logits" => Loss::FocalLogits { alpha, gamma },
        _ => Loss::Focal { alpha, gamma },
    })
}

fn poisson(cx: &Cx<'_>) -> R<Loss> {
    Ok(Loss::Poisson { eps: cx.f("eps")?, log_input: cx.b("log_input")?, full: cx.b("full")? })
}

/// Two operands of one shape.
fn operands(s: &mut Sample, p: &str, p_dom: Dom, t: &str, t_dom: Dom) {
    let shape = s.shape();
    s.put(p, &shape, p_dom);
    s.put(t, &shape, t_dom);
}

/// Perhaps a weight, or (where the row has one) a mask.
fn weights(s: &mut Sample, masked: bool) {
    let shape = s.shape_of_first();
    match s.below(3) {
        0 => s.put("weight", &shape, Positive),
        1 if masked => s.mask("mask", &shape),
        _ => {}
    }
}

pub(super) const ROWS: &[&[Kernel]] = &[
    &[
        k(
            "smooth_l1_loss",
            "S7.4",
            "p, t, [weight], [mask:u8]",
            "beta=1.0, reduction=\"mean\"",
            "loss",
            &["loss"],
            |cx| each(cx, Loss::SmoothL1 { beta: cx.f("beta")? }, "p", "t"),
        )
        .bound(Derived)
        .sample(|s| {
            operands(s, "p", Any, "t", Any);
            weights(s, true);
            s.arg("beta", 0.5);
            draw_reduction(s);
        }),
        k(
            "smooth_l1_backward",
            "S7.4",
            "gy, p, t, [weight], [mask:u8]",
            "beta=1.0, reduction=\"mean\"",
            "dp",
            &["loss_bwd"],
            |cx| each(cx, Loss::SmoothL1 { beta: cx.f("beta")? }, "p", "t"),
        )
        .bound(Derived)
        .grad_of("smooth_l1_loss"),
    ],
    &[
        k("bce_loss", "S7.3", "p, t, [weight]", "reduction=\"mean\"", "loss", &["loss"], |cx| {
            each(cx, Loss::Bce, "p", "t")
        })
        .bound(Derived)
        .sample(|s| {
            operands(s, "p", Range(0.02, 0.98), "t", Range(0.0, 1.0));
            weights(s, false);

            draw_reduction(s);
        }),
        k("bce_backward", "S7.3", "gy, p, t, [weight]", "reduction=\"mean\"", "dp", &["loss_bwd"], |cx| {
            each(cx, Loss::Bce, "p", "t")
        })
        .bound(Derived)
        .grad_of("bce_loss"),
    ],
    &pair!(
        "focal_loss",
        "S7.9",
        "x, t",
        "alpha=0.25, gamma=2.0, input=\"logits\", reduction=\"mean\"",
        "dx",
        ["loss"],
        |cx| each(cx, focal(cx)?, "x", "t")
    )
    .sample(|s| {
        operands(s, "x", Any, "t", Range(0.0, 1.0));
        let gamma = [0.0, 1.5, 2.0][s.below(3)];
        s.arg("gamma", gamma);
        if s.coin() {
            let shape = s.drop("x");
            s.put("x", &shape, Range(0.05, 0.95));
            s.arg("input", "probability");
        }
        draw_reduction(s);
    }),
    &pair!("mae_loss", "L2", "p, t, [weight], [mask:u8]", "reduction=\"mean\"", "dp", ["loss"], |cx| {
        each(cx, Loss::Mae, "p", "t")
    })
    .sample(|s| {
        operands(s, "p", Any, "t", Any);
        weights(s, true);

        draw_reduction(s);
    }),
    &pair!(
        "huber_loss",
        "L4",
        "p, t, [weight], [mask:u8]",
        "delta=1.0, reduction=\"mean\"",
        "dp",
        ["loss"],
        |cx| each(cx, Loss::Huber { delta: cx.f("delta")? }, "p", "t")
    )
    .sample(|s| {
        operands(s, "p", Any, "t", Any);
        weights(s, true);
        s.arg("delta", 0.5);
        draw_reduction(s);
    }),
    &pair!("log_cosh_loss", "L5", "p, t, [weight], [mask:u8]", "reduction=\"mean\"", "dp", ["loss"], |cx| {
        each(cx, Loss::LogCosh, "p", "t")
    })
    .sample(|s| {
        operands(s, "p", Any, "t", Any);
        weights(s, true);

        draw_reduction(s);
    }),
    &pair!(
        "charbonnier_loss",
        "L7",
        "p, t, [weight], [mask:u8]",
        "eps=0.001, reduction=\"mean\"",
        "dp",
        ["loss"],
        |cx| each(cx, Loss::Charbonnier { eps: cx.f("eps")? }, "p", "t")
    )
    .sample(|s| {
        operands(s, "p", Any, "t", Any);
        weights(s, true);

        draw_reduction(s);
    }),
    &pair!(
        "mean_bias_error_loss",
        "L8",
        "p, t, [weight], [mask:u8]",
        "reduction=\"mean\"",
        "dp",
        ["loss"],
        |cx| each(cx, Loss::MeanBias, "p", "t")
    )
    .sample(|s| {
        operands(s, "p", Any, "t", Any);
        weights(s, true);

        draw_reduction(s);
    }),
    &pair!("hinge_loss", "L10", "p, t, [weight], [mask:u8]", "reduction=\"mean\"", "dp", ["loss"], |cx| {
        each(cx, Loss::Hinge, "p", "t")
    })
    .sample(|s| {
        operands(s, "p", Any, "t", Sign);
        weights(s, true);

        draw_reduction(s);
    }),
    &pair!(
        "squared_hinge_loss",
        "L11",
        "p, t, [weight], [mask:u8]",
        "reduction=\"mean\"",
        "dp",
        ["loss"],
        |cx| each(cx, Loss::SquaredHinge, "p", "t")
    )
    .sample(|s| {
        operands(s, "p", Any, "t", Sign);
        weights(s, true);

        draw_reduction(s);
    }),
    &pair!(
        "modified_huber_loss",
        "L12",
        "p, t, [weight], [mask:u8]",
        "reduction=\"mean\"",
        "dp",
        ["loss"],
        |cx| each(cx, Loss::ModifiedHuber, "p", "t")
    )
    .sample(|s| {
        operands(s, "p", Any, "t", Sign);
        weights(s, true);

        draw_reduction(s);
    }),
    &pair!(
        "exponential_loss",
        "L13",
        "p, t, [weight], [mask:u8]",
        "reduction=\"mean\"",
        "dp",
        ["loss"],
        |cx| each(cx, Loss::Exponential, "p", "t")
    )
    .sample(|s| {
        operands(s, "p", Any, "t", Sign);
        weights(s, true);

        draw_reduction(s);
    }),
    &pair!(
        "poisson_loss",
        "L14",
        "p, t, [weight], [mask:u8]",
        "eps=1e-08, log_input=false, full=false, reduction=\"mean\"",
        "dp",
        ["loss"],
        |cx| each(cx, poisson(cx)?, "p", "t")
    )
    .sample(|s| {
        operands(s, "p", Positive, "t", Count);
        weights(s, true);
        let (log, full) = (s.coin(), s.coin());
        s.arg("log_input", log);
        s.arg("full", full);
        draw_reduction(s);
    }),
    &pair!(
        "born_rule_mse_loss",
        "L41",
        "p, t, [weight], [mask:u8]",
        "reduction=\"mean\"",
        "dp",
        ["loss"],
        |cx| each(cx, Loss::BornMse, "p", "t")
    )
    .sample(|s| {
        operands(s, "p", Any, "t", Any);
        weights(s, true);

        draw_reduction(s);
    }),
    &pair!(
        "wasserstein_loss",
        "L35",
        "c, y, [weight], [mask:u8]",
        "reduction=\"mean\"",
        "dc",
        ["loss"],
        |cx| each(cx, Loss::Wasserstein, "c", "y")
    )
    .bound(Sum)
    .sample(|s| {
        operands(s, "c", Any, "y", Sign);
        weights(s, true);

        draw_reduction(s);
    }),
    &pair!("hinge_embedding_loss", "L70", "x, y", "margin=1.0, reduction=\"mean\"", "dx", ["loss"], |cx| {
        each(cx, Loss::HingeEmbedding { margin: cx.f("margin")? }, "x", "y")
    })
    .sample(|s| {
        operands(s, "x", Positive, "y", Sign);

        draw_reduction(s);
    }),
    &pair!("soft_margin_loss", "L70", "x, y", "reduction=\"mean\"", "dx", ["loss"], |cx| {
        each(cx, Loss::SoftMargin, "x", "y")
    })
    .sample(|s| {
        operands(s, "x", Any, "y", Sign);

        draw_reduction(s);
    }),
];
