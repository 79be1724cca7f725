//! Language models.

use trefoil::DType;
use trefoil::ops::attention::{Rope, RopeLayout};
use trefoil::ops::language_model::{LinearCrossEntropy, LinearCrossEntropyBwd, LinearCrossEntropyFwd};
use trefoil::ops::loss::Reduction;
use trefoil::ops::moe::{MoeRouter, MoeRouterIo, MoeUnpermuteBwd, RouterScore};

use super::Bound::{Derived, Product, Stored, Sum};
use super::loss::{draw_reduction, reduction};
use super::{Kernel, TRANS, k};
use crate::device::{Cx, Fail, R};
use crate::sampler::Dom::{Any, Range};
use crate::sampler::Sample;

fn rope_plan(cx: &Cx<'_>) -> R<Rope> {
    let layout = match cx.s("layout")?.as_str() {
        "half" => RopeLayout::Half,
        "interleaved" => RopeLayout::Interleaved,
        l => return Err(Fail::Case(format!("layout = {l} is unknown"))),
    };
    let mut p = Rope::new().layout(layout).base(cx.f("base")?).offset(cx.i("offset")?);
    p.rotary_dim = cx.opt_n("rotary_dim")?;
    Ok(p)
}

fn rope(cx: &Cx<'_>) -> R {
    let x = cx.x("x")?;
    let y = cx.like("y", &x)?;
    Ok(cx.gpu.rope(&rope_plan(cx)?, x, cx.opt("positions"), y.m())?)
}

fn rope_backward(cx: &Cx<'_>) -> R {
    let dy = cx.x("dy")?;
    let dx = cx.like("dx", &dy)?;
    Ok(cx.gpu.rope_bwd(&rope_plan(cx)?, dy, cx.opt("positions"), dx.g())?)
}

fn linear_plan(cx: &Cx<'_>) -> R<LinearCrossEntropy> {
    Ok(LinearCrossEntropy::new()
        .reduction(reduction(cx)?)
        .ignore_index(cx.i("ignore_index")?)
        .label_smoothing(cx.f("label_smoothing")?)
        .z_loss(cx.f("z_loss")?)
        .softcap(cx.f("softcap")?)
        // Several chunks and an incomplete one.
        .chunk(3))
}

fn linear_loss(cx: &Cx<'_>) -> R {
    let (h, p) = (cx.x("h")?, linear_plan(cx)?);
    let (n, acc) = (h.shape()[0], h.dtype().accumulator());
    let loss = match p.reduction {
        Reduction::None => cx.out("loss", h.dtype(), &[n])?,
        _ => cx.out("loss", acc, &[])?,
    };
    let lse = cx.wants("LSE").then(|| cx.out("LSE", acc, &[n])).transpose()?;
    let io = LinearCrossEntropyFwd::new(h, cx.x("W")?, cx.x("target")?, loss.m())
        .b(cx.opt("b"))
        .lse(lse.as_ref().map(|t| t.m()));
    Ok(cx.gpu.fused_linear_cross_entropy(&p, io)?)
}

fn linear_loss_backward(cx: &Cx<'_>) -> R {
    let (h, w, b) = (cx.x("h")?, cx.x("W")?, cx.opt("b"));
    let (dh, dw) = (cx.like("dh", &h)?, cx.like("dW", &w)?);
    let db = b.map(|b| cx.like("db", &b)).transpose()?;
    let io = LinearCrossEntropyBwd::new(cx.x("gy")?, h, w, cx.x("target")?)
        .b(b)
        .dh(dh.g())
        .dw(dw.g())
        .db(db.as_ref().map(|t| t.g()));
    Ok(cx.gpu.fused_linear_cross_entropy_bwd(&linear_plan(cx)?, io)?)
}

fn router_plan(cx: &Cx<'_>) -> R<MoeRouter> {
    let score = match cx.s("score")?.as_str() {
        "softmax" => RouterScore::Softmax,
        "sigmoid" => RouterScore::Sigmoid,
        s => return Err(Fail::Case(format!("score = {s} is unknown"))),
    };
    Ok(MoeRouter::new().score(score).renormalize(cx.b("renormalize")?))
}

fn router(cx: &Cx<'_>) -> R {
    let (x, k) = (cx.x("logits")?, cx.n("k")?);
    let (t, e) = (x.shape()[0], x.shape()[1]);
    let weights = cx.out("weights", cx.dtype, &[t, k])?;
    let int = |name: &str, shape: &[usize]| cx.out(name, DType::I32, shape);
    let (ids, counts, offsets, perm) =
        (int("ids", &[t, k])?, int("counts", &[e])?, int("offsets", &[e + 1])?, int("perm", &[t * k])?);
    let io = MoeRouterIo::new(x, weights.m(), ids.m(), counts.m(), offsets.m(), perm.m());
    Ok(cx.gpu.moe_router(&router_plan(cx)?, io)?)
}

fn router_backward(cx: &Cx<'_>) -> R {
    let x = cx.x("logits")?;
    let dx = cx.like("dlogits", &x)?;
    Ok(cx.gpu.moe_router_bwd(&router_plan(cx)?, cx.x("dweights")?, x, cx.x("ids")?, dx.g())?)
}

fn permute(cx: &Cx<'_>) -> R {
    let (x, perm) = (cx.x("x")?, cx.x("perm")?);
    let y = cx.out("y", cx.dtype, &[perm.numel(), x.shape()[1]])?;
    Ok(cx.gpu.moe_permute(x, perm, y.m())?)
}

fn permute_backward(cx: &Cx<'_>) -> R {
    let (dy, perm) = (cx.x("dy")?, cx.x("perm")?);
    let dx = cx.out("dx", cx.dtype, &[perm.numel() / cx.n("k")?.max(1), dy.shape()[1]])?;
    Ok(cx.gpu.moe_permute_bwd(dy, perm, dx.g())?)
}

fn unpermute(cx: &Cx<'_>) -> R {
    let (x, perm, w) = (cx.x("x")?, cx.x("perm")?, cx.x("weights")?);
    let y = cx.out("y", cx.dtype, &[w.shape()[0], x.shape()[1]])?;
    Ok(cx.gpu.moe_unpermute(x, perm, w, y.m())?)
}

fn unpermute_backward(cx: &Cx<'_>) -> R {
    let (x, w) = (cx.x("x")?, cx.x("weights")?);
    let (dx, dw) = (cx.like("dx", &x)?, cx.like("dweights", &w)?);
    let io = MoeUnpermuteBwd::new(cx.x("dy")?, x, cx.x("perm")?, w).dx(dx.g()).dweights(dw.g());
    Ok(cx.gpu.moe_unpermute_bwd(io)?)
}

// ---- samples -------------------------------------------------------------------------------------------------------------------

fn rope_sample(s: &mut Sample) {
    let d = [2, 8, 32, 40, 64, 3, 16, 5][s.below(if s.small { 2 } else { 8 })];
    let n = |s: &mut Sample| if s.small { 2 } else { 1 + s.below(12) };
    let (b, l, h) = (n(s), n(s), n(s));
    s.put("x", &[b, l, h, d], Any);
    if s.coin() {
        s.arg("layout", "interleaved");
    }
    let r = if s.coin() || d % 2 == 1 { 2 * s.below(d / 2 + 1) } else { d };
    s.arg("rotary_dim", r);
    match s.below(3) {
        0 => {
            let at: Vec<i64> = (0..b * l).map(|_| s.below(100_000) as i64).collect();
            s.ints("positions", DType::I32, &[b, l], &at);
        }
        1 => {
            let at: Vec<i64> = (0..l).map(|_| s.below(100) as i64 - 50).collect();
            s.ints("positions", DType::I32, &[l], &at);
        }
        _ => s.arg("offset", 1000),
    }
}

fn linear_sample(s: &mut Sample) {
    let (n, d) = if s.small { (4, 3) } else { ([1, 7, 40, 0][s.below(4)], 1 + s.below(33)) };
    let v = if s.small { 5 } else { [1, 5, 300, 2049][s.below(4)] };
    let bound = 1.5 / (d as f64).sqrt();
    s.put("h", &[n, d], Any);
    s.put("W", &[v, d], Range(-bound, bound));
    if s.coin() {
        s.put("b", &[v], Any);
    }
    if s.below(3) == 0 {
        s.put("target", &[n, v], Range(0.0, 2.0 / v as f64));
    } else {
        s.ids("target", &[n], v);
        s.arg("ignore_index", 1);
    }
    if s.coin() {
        s.arg("label_smoothing", 0.125);
    }
    if s.coin() {
        s.arg("z_loss", 0.01);
    }
    if s.coin() {
        s.arg("softcap", 3.0);
    }
    draw_reduction(s);
}

/// Tokens, experts and choices.
fn experts(s: &mut Sample) -> [usize; 3] {
    let t = if s.small { 4 } else { [1, 5, 33, 300, 0][s.below(5)] };
    let e = if s.small { 3 } else { [1, 4, 8, 33, 70][s.below(5)] };
    [t, e, 1 + s.below(e.min(4))]
}

fn router_sample(s: &mut Sample) {
    let [t, e, k] = experts(s);
    s.put("logits", &[t, e], Any);
    s.arg("k", k);
    if s.coin() {
        s.arg("score", "sigmoid");
    }
    let on = s.coin();
    s.arg("renormalize", on);
}

/// A shuffled order of the assignments.
fn order(s: &mut Sample, n: usize) {
    let mut all: Vec<i64> = (0..n as i64).collect();
    (1..n).rev().for_each(|i| all.swap(i, s.below(i + 1)));
    s.ints("perm", DType::I32, &[n], &all);
}

fn permute_sample(s: &mut Sample) {
    let [t, _, k] = experts(s);
    let d = if s.small { 3 } else { [1, 5, 64, 256, 1100][s.below(5)] };
    s.put("x", &[t, d], Any);
    order(s, t * k);
    s.arg("k", if t == 0 { 1 } else { k });
}

fn unpermute_sample(s: &mut Sample) {
    let [t, _, k] = experts(s);
    let d = if s.small { 3 } else { [1, 5, 64, 256, 1100][s.below(5)] };
    s.put("x", &[t * k, d], Any);
    order(s, t * k);
    s.put("weights", &[t, k], Range(0.0, 1.0));
    s.arg("k", k);
}

const ROPE: &str = "layout=\"half\", base=10000.0, rotary_dim=null, offset=0";
const LINEAR: &str = "ignore_index=-100, label_smoothing=0.0, z_loss=0.0, softcap=0.0, reduction=\"mean\"";
const ROUTER: &str = "score=\"softmax\", renormalize=true";

pub(super) const ROWS: &[&[Kernel]] = &[&[
    k("rope", "B7.1", "x, [positions:i32]", ROPE, "y", &["rope"], rope).bound(Derived).sample(rope_sample),
    k("rope_backward", "B7.1", "dy, [positions:i32]", ROPE, "dx", &["rope_bwd"], rope_backward)
        .bound(Derived)
        .grad_of("rope"),
    k(
        "fused_linear_cross_entropy",
        "B7.7",
        "h, W, [b], target",
        LINEAR,
        "loss, [LSE:f32]",
        &["fused_linear_cross_entropy"],
        linear_loss,
    )
    .bound(Derived)
    .units(8.0, super::LOGARITHMS)
    .sample(linear_sample),
    k(
        "fused_linear_cross_entropy_backward",
        "B7.7",
        "gy, h, W, [b], target",
        LINEAR,
        "dh, dW, [db]",
        &["fused_linear_cross_entropy_bwd"],
        linear_loss_backward,
    )
    .bound(Stored)
    .units(16.0, "p - 1 of the target is 0 where there is one class")
    .grad_of("fused_linear_cross_entropy"),
    k(
        "moe_router",
        "B7.13",
        "logits",
        "k, score=\"softmax\", renormalize=true",
        "weights, ids:i32, counts:i32, offsets:i32, perm:i32",
        &["moe_router"],
        router,
    )
    .bound(TRANS)
    .sample(router_sample),
    k(
        "moe_router_backward",
        "B7.13",
        "dweights, logits, ids:i32",
        ROUTER,
        "dlogits",
        &["moe_router_bwd"],
        router_backward,
    )
    .bound(Derived)
    .units(16.0, "renormalised weights of one choice are 1 whatever the logits")
    .grad_of("moe_router"),
    k("moe_permute", "B7.14", "x, perm:i32", "k", "y", &["moe_permute"], permute).sample(permute_sample),
    k("moe_unpermute", "B7.14", "x, perm:i32, weights", "k", "y", &["moe_unpermute"], unpermute)
        .bound(Product)
        .sample(unpermute_sample),
    k("moe_permute_backward", "B7.14", "dy, perm:i32", "k", "dx", &["moe_permute_bwd"], permute_backward)
        .bound(Sum)
        .grad_of("moe_permute"),
    k(
        "moe_unpermute_backward",
        "B7.14",
        "dy, x, perm:i32, weights",
        "k",
        "dx, dweights",
        &["moe_unpermute_bwd"],
        unpermute_backward,
    )
    .bound(Product)
    .grad_of("moe_unpermute"),
]];
