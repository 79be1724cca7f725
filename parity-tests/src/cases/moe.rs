//! Mixtures of experts.

use trefoil::ops::moe::{MoePermuteBwd, MoeRouter, MoeRouterIo, MoeUnpermute, MoeUnpermuteBwd, RouterScore};
use trefoil::{BackendExt, Buffer, DType};

use super::Bound::{Derived, Product, Sum};
use super::{Kernel, TRANS, k};
use crate::device::{Cx, Fail, R};
use crate::sampler::Dom::{Any, Range};
use crate::sampler::Sample;

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
    let inverse = int("inverse", &[t * k])?;
    Ok(cx.gpu.moe_router(&router_plan(cx)?, io.inverse(inverse.m()))?)
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

/// The inverse of the order, where the number of assignments is even; the operation makes it itself for the others.
fn inverse(cx: &Cx<'_>) -> R<Option<Buffer>> {
    let perm: Vec<i32> = cx.gpu.download(cx.x("perm")?)?;
    let mut places = vec![0i32; perm.len()];
    for (i, &a) in perm.iter().enumerate() {
        match usize::try_from(a).ok().and_then(|a| places.get_mut(a)) {
            Some(place) => *place = i as i32,
            None => return Ok(None),
        }
    }
    Ok(if perm.len().is_multiple_of(2) { Some(cx.gpu.upload(&places)?) } else { None })
}

fn permute_backward(cx: &Cx<'_>) -> R {
    let (dy, perm) = (cx.x("dy")?, cx.x("perm")?);
    let dx = cx.out("dx", cx.dtype, &[perm.numel() / cx.n("k")?.max(1), dy.shape()[1]])?;
    let inverse = inverse(cx)?;
    let io = MoePermuteBwd::new(dy, perm, dx.g()).inverse(inverse.as_ref().map(Buffer::view));
    Ok(cx.gpu.moe_permute_bwd(io)?)
}

fn unpermute(cx: &Cx<'_>) -> R {
    let (x, perm, w) = (cx.x("x")?, cx.x("perm")?, cx.x("weights")?);
    let y = cx.out("y", cx.dtype, &[w.shape()[0], x.shape()[1]])?;
    let inverse = inverse(cx)?;
    let io = MoeUnpermute::new(x, perm, w, y.m()).inverse(inverse.as_ref().map(Buffer::view));
    Ok(cx.gpu.moe_unpermute(io)?)
}

fn unpermute_backward(cx: &Cx<'_>) -> R {
    let (x, w) = (cx.x("x")?, cx.x("weights")?);
    let (dx, dw) = (cx.like("dx", &x)?, cx.like("dweights", &w)?);
    let io = MoeUnpermuteBwd::new(cx.x("dy")?, x, cx.x("perm")?, w).dx(dx.g()).dweights(dw.g());
    // The orders of random cases have every assignment.
    Ok(cx.gpu.moe_unpermute_bwd(io.whole(x.shape()[0].is_multiple_of(2)))?)
}

// ---- samples -------------------------------------------------------------------------------------------------------------------

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

const ROUTER: &str = "score=\"softmax\", renormalize=true";

pub(super) const ROWS: &[&[Kernel]] = &[&[
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
