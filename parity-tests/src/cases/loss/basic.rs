//! Losses.

use trefoil::ops::loss::{CrossEntropy, CrossEntropyBwd, CrossEntropyFwd, Loss, LossBwd, LossFwd, Reduction};

use crate::cases::Bound::Derived;
use crate::cases::{Kernel, k};
use crate::device::{Cx, Fail, R};
use crate::sampler::Dom::Any;
use crate::sampler::Sample;

pub(in crate::cases) fn reduction(cx: &Cx<'_>) -> R<Reduction> {
    Ok(match cx.s("reduction")?.as_str() {
        "none" => Reduction::None,
        "mean" | "batchmean" => Reduction::Mean,
        "sum" => Reduction::Sum,
        r => return Err(Fail::Case(format!("reduction {r} is unknown"))),
    })
}

/// An elementwise loss whose operands have these names, or its gradients, named after them.
pub(in crate::cases) fn each(cx: &Cx<'_>, kind: Loss, p: &str, t: &str) -> R {
    if cx.is_gradient() {
        return gradient(cx, kind, p, t);
    }
    let (p, t) = (cx.x(p)?, cx.x(t)?);
    let how = reduction(cx)?;
    let loss = match how {
        Reduction::None => cx.like("loss", &p)?,
        _ => cx.out("loss", p.dtype().accumulator(), &[])?,
    };
    let io = LossFwd::new(p, t, loss.m()).weight(cx.opt("weight")).mask(cx.opt("mask"));
    Ok(cx.gpu.loss(kind, how, io)?)
}

fn gradient(cx: &Cx<'_>, kind: Loss, p: &str, t: &str) -> R {
    let (vp, vt) = (cx.x(p)?, cx.x(t)?);
    let (np, nt) = (format!("d{p}"), format!("d{t}"));
    let dp = cx.wants(&np).then(|| cx.like(&np, &vp)).transpose()?;
    let dt = (kind == Loss::Mse && cx.wants(&nt)).then(|| cx.like(&nt, &vt)).transpose()?;
    let io = LossBwd::new(cx.x("gy")?, vp, vt)
        .weight(cx.opt("weight"))
        .mask(cx.opt("mask"))
        .dp(dp.as_ref().map(|t| t.g()))
        .dt(dt.as_ref().map(|t| t.g()));
    Ok(cx.gpu.loss_bwd(kind, reduction(cx)?, io)?)
}

fn mse(cx: &Cx<'_>) -> R {
    each(cx, Loss::Mse, "p", "t")
}

fn settings(cx: &Cx<'_>) -> R<CrossEntropy> {
    Ok(CrossEntropy::new()
        .reduction(reduction(cx)?)
        .ignore_index(cx.i("ignore_index")?)
        .label_smoothing(cx.f("label_smoothing")?))
}

fn cross_entropy(cx: &Cx<'_>) -> R {
    let x = cx.x("x")?;
    let p = settings(cx)?;
    let mut items = x.shape().to_vec();
    items.remove(1);
    let acc = x.dtype().accumulator();
    let loss = match p.reduction {
        Reduction::None => cx.out("loss", x.dtype(), &items)?,
        _ => cx.out("loss", acc, &[])?,
    };
    let lse = cx.wants("LSE").then(|| cx.out("LSE", acc, &items)).transpose()?;
    let den =
        (cx.wants("den") && p.reduction == Reduction::Mean).then(|| cx.out("den", acc, &[])).transpose()?;
    let io = CrossEntropyFwd::new(x, cx.x("target")?, loss.m())
        .weight(cx.opt("weight"))
        .lse(lse.as_ref().map(|t| t.m()))
        .den(den.as_ref().map(|t| t.m()));
    Ok(cx.gpu.cross_entropy(&p, io)?)
}

fn cross_entropy_backward(cx: &Cx<'_>) -> R {
    let x = cx.x("x")?;
    let dx = cx.like("dx", &x)?;
    let io = CrossEntropyBwd::new(cx.x("gy")?, x, cx.x("target")?, cx.x("LSE")?, dx.g())
        .weight(cx.opt("weight"))
        .den(cx.opt("den"));
    Ok(cx.gpu.cross_entropy_bwd(&settings(cx)?, io)?)
}

pub(in crate::cases) fn draw_reduction(s: &mut Sample) {
    let how = ["none", "mean", "sum"][s.below(3)];
    s.arg("reduction", how);
}

pub(super) const ROWS: &[&[Kernel]] = &[
    &[
        k("mse_loss", "S7.1", "p, t, [weight], [mask:u8]", "reduction=\"mean\"", "loss", &["loss"], mse)
            .bound(Derived)
            .sample(|s| {
                let shape = s.shape();
                s.put("p", &shape, Any);
                s.put("t", &shape, Any);
                match s.below(3) {
                    0 => s.put("weight", &shape, crate::sampler::Dom::Positive),
                    1 => s.mask("mask", &shape),
                    _ => {}
                }
                draw_reduction(s);
            }),
        k(
            "mse_backward",
            "S7.1",
            "gy, p, t, [weight], [mask:u8]",
            "reduction=\"mean\"",
            "[dp], [dt]",
            &["loss_bwd"],
            mse,
        )
        .bound(Derived)
        .grad_of("mse_loss"),
    ],
    &[
        k(
            "cross_entropy_loss",
            "S7.2",
            "x, target, [weight]",
            "ignore_index=-100, label_smoothing=0.0, reduction=\"mean\"",
            "loss, [LSE:f32]",
            &["cross_entropy"],
            cross_entropy,
        )
        .bound(Derived)
        .sample(|s| {
            let (n, c) = (1 + s.below(40), if s.small { 4 } else { 2 + s.below(60) });
            let shape = if s.coin() { vec![n, c] } else { vec![n, c, 1 + s.below(5)] };
            s.put("x", &shape, Any);
            if s.below(3) == 0 {
                s.put("target", &shape, crate::sampler::Dom::Range(0.0, 1.0));
            } else {
                let mut items = shape.clone();
                items.remove(1);
                s.ids("target", &items, c);
                s.arg("ignore_index", 1);
            }
            if s.coin() {
                s.put("weight", &[c], crate::sampler::Dom::Positive);
            }
            s.arg("label_smoothing", 0.125);
            draw_reduction(s);
        }),
        k(
            "cross_entropy_backward",
            "S7.6",
            "gy, x, target, [weight], LSE:f32, [den:f32]",
            "ignore_index=-100, label_smoothing=0.0, reduction=\"mean\"",
            "dx",
            &["cross_entropy_bwd"],
            cross_entropy_backward,
        )
        .bound(Derived)
        .grad_of("cross_entropy_loss"),
    ],
];
