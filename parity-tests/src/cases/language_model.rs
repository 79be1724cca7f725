//! Language models.

use trefoil::ops::attention::{Rope, RopeLayout};
use trefoil::ops::gemm::{Gemm, GemmIo};
use trefoil::ops::language_model::{
    LinearCrossEntropy, LinearCrossEntropyBwd, LinearCrossEntropyFwd, LogitProcessors,
};
use trefoil::ops::loss::Reduction;
use trefoil::ops::random::Rng;
use trefoil::{DType, View};

use super::Bound::{Derived, Exact, Stored};
use super::loss::{draw_reduction, reduction};
use super::{Kernel, TRANS, k};
use crate::device::{Cx, Fail, R};
use crate::sampler::Dom::{Any, Coarse, Range};
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

/// The low-rank factors of a case: x [M, D], A [D, r], B [r, N].
fn low_rank<'a>(cx: &'a Cx<'_>) -> R<[View<'a>; 3]> {
    let all = [cx.x("x")?, cx.x("A")?, cx.x("B")?];
    match all.iter().all(|t| t.shape().len() == 2) {
        true => Ok(all),
        false => Err(Fail::Case("factors are matrices".into())),
    }
}

fn lora(cx: &Cx<'_>) -> R {
    let (base, [x, a, b]) = (cx.x("base")?, low_rank(cx)?);
    let y = cx.like("y", &base)?;
    let inner = [x.shape()[0], a.shape()[1]];
    let mut h = cx.scratch(x.dtype(), inner[0] * inner[1])?;
    cx.gpu.gemm(&Gemm::new(), GemmIo::new(x, a, h.shaped_mut(&inner)?))?;
    let io = GemmIo::new(h.shaped(&inner)?, b, y.m()).c(Some(base));
    Ok(cx.gpu.gemm(&Gemm::new().scaled(cx.f("s")?, 1.0), io)?)
}

/// With t = s dy B^T: dx = t A^T, dA = x^T t, dB = s (x A)^T dy.
fn lora_backward(cx: &Cx<'_>) -> R {
    let (dy, [x, a, b], s) = (cx.x("dy")?, low_rank(cx)?, cx.f("s")?);
    let (dx, da, db) = (cx.like("dx", &x)?, cx.like("dA", &a)?, cx.like("dB", &b)?);
    let inner = [x.shape()[0], a.shape()[1]];
    let [mut h, mut t] =
        [cx.scratch(x.dtype(), inner[0] * inner[1])?, cx.scratch(x.dtype(), inner[0] * inner[1])?];
    let scaled = Gemm::new().scaled(s, 0.0);
    cx.gpu.gemm(&Gemm::new(), GemmIo::new(x, a, h.shaped_mut(&inner)?))?;
    cx.gpu.gemm(&scaled.trans(false, true), GemmIo::new(dy, b, t.shaped_mut(&inner)?))?;
    let (h, t) = (h.shaped(&inner)?, t.shaped(&inner)?);
    cx.gpu.gemm(&Gemm::new().trans(false, true), GemmIo::new(t, a, dx.m()))?;
    cx.gpu.gemm(&Gemm::new().trans(true, false), GemmIo::new(x, t, da.m()))?;
    Ok(cx.gpu.gemm(&scaled.trans(true, false), GemmIo::new(h, dy, db.m()))?)
}

fn processors(cx: &Cx<'_>) -> R<LogitProcessors> {
    Ok(LogitProcessors::new()
        .temperature(cx.f("temperature")?)
        .top_k(cx.n("top_k")?)
        .top_p(cx.f("top_p")?)
        .min_p(cx.f("min_p")?)
        .repetition_penalty(cx.f("repetition_penalty")?))
}

fn logit_processors(cx: &Cx<'_>) -> R {
    let x = cx.x("logits")?;
    let y = cx.like("y", &x)?;
    Ok(cx.gpu.logit_processors(&processors(cx)?, x, cx.opt("prev"), y.m())?)
}

fn sample_tokens(cx: &Cx<'_>) -> R {
    let x = cx.x("logits")?;
    let ids = cx.out("ids", DType::I64, &x.shape()[..1])?;
    let rng = Rng::new(cx.bits("seed")?).at(cx.bits("stream")?, cx.bits("offset")?);
    Ok(cx.gpu.sample_tokens(&processors(cx)?, rng, x, None, ids.m())?)
}

/// Logits of some rows, with equal ones or without, and what is kept of them; rows and vocabulary.
fn logits(s: &mut Sample) -> [usize; 2] {
    let size = [[1, 2, 7, 0][s.below(4)], [1, 2, 20, 300, 5000][s.below(5)]];
    let dom = if s.coin() { Any } else { Coarse };
    s.put("logits", &size, dom);
    let temperature = [1.0, 0.7, 1.5][s.below(3)];
    s.arg("temperature", temperature);
    if s.coin() {
        let k = 1 + s.below(size[1] + 2);
        s.arg("top_k", k);
    }
    if s.coin() {
        s.arg("top_p", 0.8313);
    }
    if s.coin() {
        s.arg("min_p", 0.0517);
    }
    size
}

fn processors_sample(s: &mut Sample) {
    let [rows, vocab] = logits(s);
    if s.coin() {
        s.arg("repetition_penalty", 1.25);
        let ids: Vec<i64> = (0..rows * 6).map(|_| s.below(vocab + 1) as i64 - 1).collect();
        s.ints("prev", DType::I32, &[rows, 6], &ids);
    }
}

fn tokens_sample(s: &mut Sample) {
    logits(s);
    if s.below(4) == 0 {
        s.arg("temperature", 0.0);
    }
    let seed = s.below(1 << 20);
    s.arg("seed", seed);
    s.arg("stream", 3);
    let offset = s.below(100);
    s.arg("offset", offset);
}

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

const ROPE: &str = "layout=\"half\", base=10000.0, rotary_dim=null, offset=0";
const PROCESSORS: &str = "temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, repetition_penalty=1.0";
const LINEAR: &str = "ignore_index=-100, label_smoothing=0.0, z_loss=0.0, softcap=0.0, reduction=\"mean\"";

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
    k("lora_linear", "B7.8", "base, x, A, B", "s=1.0", "y", &["gemm"], lora).bound(Stored).sample(|s| {
        let [m, d, n] = [[1, 5, 33][s.below(3)], [7, 64, 130][s.below(3)], [3, 48, 129][s.below(3)]];
        let r = [1, 4, 16][s.below(3)];
        s.put("base", &[m, n], Any);
        s.put("x", &[m, d], Any);
        s.put("A", &[d, r], Range(-0.3, 0.3));
        s.put("B", &[r, n], Any);
        let scale = [1.0, 0.5, 2.0][s.below(3)];
        s.arg("s", scale);
    }),
    k("lora_linear_backward", "B7.8", "dy, x, A, B", "s=1.0", "dx, dA, dB", &["gemm"], lora_backward)
        .bound(Stored)
        .composite()
        .grad_of("lora_linear"),
    k(
        "logit_processors",
        "B7.9",
        "logits, [prev:i32]",
        PROCESSORS,
        "y",
        &["logit_processors"],
        logit_processors,
    )
    .bound(TRANS)
    .sample(processors_sample),
    k(
        "sample_tokens",
        "B7.10",
        "logits",
        "temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, repetition_penalty=1.0, seed=0, stream=0, offset=0",
        "ids:i64",
        &["sample_tokens"],
        sample_tokens,
    )
    .bound(Exact)
    .sample(tokens_sample),
]];
