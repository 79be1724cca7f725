//! The calls that the rows of the table stand for.

use trefoil::ops::attention::{Attention, AttentionBwd, AttentionIo, AttentionMask, Causal};
use trefoil::ops::elementwise::Unary;
use trefoil::ops::gemm::{Gemm, GemmBwd, GemmIo};
use trefoil::ops::random::Rng;
use trefoil::{Buffer, DType, View, ViewMut};

use crate::device::{Cx, Fail, R};

pub(super) fn causal(cx: &Cx<'_>) -> R<Option<Causal>> {
    Ok(match cx.opt_s("causal")?.as_deref() {
        None => None,
        Some("top_left") => Some(Causal::TopLeft),
        Some("bottom_right") => Some(Causal::BottomRight),
        Some(c) => return Err(Fail::Case(format!("causal = {c} is unknown"))),
    })
}

/// The arguments that the row has.
pub(super) fn plan(cx: &Cx<'_>) -> R<Attention<'static>> {
    let mut p = Attention::new();
    if cx.has("scale") {
        p.scale = cx.opt_f("scale")?;
    }
    if cx.has("causal") {
        p.causal = causal(cx)?;
    }
    if cx.has("window")
        && let Some(w) = cx.opt_ints("window")?
    {
        let &[left, right] = w.as_slice() else {
            return Err(Fail::Case(format!("window = {w:?} is no pair")));
        };
        // Negative bounds are none.
        p = p.window(usize::try_from(left).ok(), usize::try_from(right).ok());
    }
    if cx.has("softcap") {
        p = p.softcap(cx.f("softcap")?);
    }
    if cx.has("dropout") {
        let rng = Rng::new(cx.bits("seed")?).at(cx.bits("stream")?, cx.bits("offset")?);
        p = p.dropout(cx.f("dropout")?, rng);
    }
    Ok(p)
}

pub(super) fn mask<'a>(cx: &'a Cx<'_>) -> AttentionMask<'a> {
    let mut m = AttentionMask::new();
    (m.bias, m.mask, m.key_lengths) = (cx.opt("bias"), cx.opt("mask"), cx.opt("key_lengths"));
    m
}

/// `key_padding` [B, Lk] (true = pad) as a mask.
pub(super) fn padding(cx: &Cx<'_>) -> R<Option<Buffer>> {
    let Some(v) = cx.opt("key_padding") else { return Ok(None) };
    let b = cx.scratch(DType::U8, v.numel())?;
    cx.gpu.unary(Unary::LogicalNot, v, b.alias_mut().reshape(v.shape())?)?;
    Ok(Some(b))
}

pub(super) fn padded<'a>(
    mut m: AttentionMask<'a>,
    pad: &'a Option<Buffer>,
    k: &View<'_>,
) -> R<AttentionMask<'a>> {
    if let Some(b) = pad {
        m.mask = Some(b.shaped(&[k.shape()[0], 1, 1, k.shape()[2]])?);
    }
    Ok(m)
}

/// O, LSE and P of operands [B, H, L, D].
pub(super) fn forward(cx: &Cx<'_>) -> R {
    let (q, k, v) = (cx.x("Q")?, cx.x("K")?, cx.x("V")?);
    let (s, d) = (q.shape(), v.shape()[3]);
    let o = cx.out("O", cx.dtype, &[s[0], s[1], s[2], d])?;
    let p = (cx.has_output("P") && cx.wants("P"))
        .then(|| cx.out("P", cx.dtype, &[s[0], s[1], s[2], k.shape()[2]]))
        .transpose()?;
    let lse = cx.wants("LSE").then(|| cx.out("LSE", cx.dtype.accumulator(), &s[..3])).transpose()?;
    let pad = padding(cx)?;
    let mut io = AttentionIo::new(q, k, v, o.m());
    io.mask = padded(mask(cx), &pad, &k)?;
    io.lse = lse.as_ref().map(|t| t.m());
    io.p = p.as_ref().map(|t| t.m());
    Ok(cx.gpu.attention(&plan(cx)?, io)?)
}

pub(super) fn backward(cx: &Cx<'_>) -> R {
    let (q, k, v) = (cx.x("Q")?, cx.x("K")?, cx.x("V")?);
    let (dq, dk, dv) = (cx.like("dQ", &q)?, cx.like("dK", &k)?, cx.like("dV", &v)?);
    let dbias = cx.opt("bias").filter(|_| cx.wants("dBias")).map(|b| cx.like("dBias", &b)).transpose()?;
    let pad = padding(cx)?;
    let io = AttentionBwd::new(cx.x("dO")?, q, k, v, cx.x("O")?, cx.x("LSE")?)
        .mask(padded(mask(cx), &pad, &k)?)
        .dq(dq.g())
        .dk(dk.g())
        .dv(dv.g())
        .dbias(dbias.as_ref().map(|t| t.g()));
    Ok(cx.gpu.attention_bwd(&plan(cx)?, io)?)
}

/// [total, H, D] as [1, H, total, D]; [total, H] as [1, H, total].
macro_rules! packed {
    ($v:expr) => {{
        let v = $v;
        let order: &[usize] = if v.shape().len() == 3 { &[1, 0, 2] } else { &[1, 0] };
        v.map("shape", |l| l.permute(order)?.unsqueeze(0))
    }};
}

pub(super) fn sequences<'a>(cx: &'a Cx<'_>) -> R<AttentionMask<'a>> {
    Ok(AttentionMask::new().sequences(cx.x("cu_seqlens_q")?, cx.x("cu_seqlens_k")?))
}

pub(super) fn varlen(cx: &Cx<'_>) -> R {
    let (q, k, v) = (cx.x("Q")?, cx.x("K")?, cx.x("V")?);
    let s = [q.shape()[0], q.shape()[1], v.shape()[2]];
    let o = cx.out("O", cx.dtype, &s)?;
    let lse = cx.wants("LSE").then(|| cx.out("LSE", cx.dtype.accumulator(), &s[..2])).transpose()?;
    let mut io = AttentionIo::new(packed!(q)?, packed!(k)?, packed!(v)?, packed!(o.m())?);
    io.mask = sequences(cx)?;
    io.lse = lse.as_ref().map(|t| packed!(t.m())).transpose()?;
    Ok(cx.gpu.attention(&plan(cx)?, io)?)
}

pub(super) fn varlen_backward(cx: &Cx<'_>) -> R {
    let (q, k, v) = (cx.x("Q")?, cx.x("K")?, cx.x("V")?);
    let (dq, dk, dv) = (cx.like("dQ", &q)?, cx.like("dK", &k)?, cx.like("dV", &v)?);
    let io = AttentionBwd::new(
        packed!(cx.x("dO")?)?,
        packed!(q)?,
        packed!(k)?,
        packed!(v)?,
        packed!(cx.x("O")?)?,
        packed!(cx.x("LSE")?)?,
    )
    .mask(sequences(cx)?)
    .dq(packed!(dq.m())?.grad(dq.g().accumulate))
    .dk(packed!(dk.m())?.grad(dk.g().accumulate))
    .dv(packed!(dv.m())?.grad(dv.g().accumulate));
    Ok(cx.gpu.attention_bwd(&plan(cx)?, io)?)
}

// ---- multi-head attention: three projections, attention, one projection --------------------------------------------------------

/// y = x w^T + b.
pub(super) const LINEAR: Gemm = Gemm::new().trans(false, true);

/// Rows `i * n .. (i + 1) * n`.
pub(super) fn third<'a>(v: View<'a>, i: usize, n: usize) -> R<View<'a>> {
    Ok(v.map("weight", |l| l.narrow(0, i * n, n))?)
}

pub(super) fn third_mut<'a>(v: ViewMut<'a>, i: usize, n: usize) -> R<ViewMut<'a>> {
    Ok(v.map("weight", |l| l.narrow(0, i * n, n))?)
}

/// [B, L, H * D] as [B, H, L, D].
macro_rules! heads {
    ($v:expr, $h:expr) => {{
        let v = $v;
        let (s, h): (Vec<usize>, usize) = (v.shape().to_vec(), $h);
        v.reshape(&[s[0], s[1], h, s[2] / h.max(1)])
            .and_then(|v| v.map("shape", |l| l.permute(&[0, 2, 1, 3])))
    }};
}

pub(super) struct Mha<'a> {
    /// Sources of queries, keys and values.
    x: [View<'a>; 3],
    w: [View<'a>; 3],
    b: [Option<View<'a>>; 3],
    h: usize,
    e: usize,
}

pub(super) fn mha<'a>(cx: &'a Cx<'_>) -> R<Mha<'a>> {
    let (xq, wo) = (cx.x("Xq")?, cx.x("Wo")?);
    let (h, e) = (cx.n("H")?, wo.shape()[1]);
    let x = [xq, cx.opt("Xk").unwrap_or(xq), cx.opt("Xv").unwrap_or(xq)];
    let w = match cx.opt("W_in") {
        Some(w) => [third(w, 0, e)?, third(w, 1, e)?, third(w, 2, e)?],
        None => [cx.x("Wq")?, cx.x("Wk")?, cx.x("Wv")?],
    };
    let b = match cx.opt("b_in") {
        Some(b) => [Some(third(b, 0, e)?), Some(third(b, 1, e)?), Some(third(b, 2, e)?)],
        None => [cx.opt("bq"), cx.opt("bk"), cx.opt("bv")],
    };
    if h == 0 || e % h != 0 {
        let e = trefoil::GpuError::invalid(
            "multi_head_attention",
            "H",
            format!("a divisor of {e}"),
            format!("{h}"),
        );
        return Err(e.into());
    }
    Ok(Mha { x, w, b, h, e })
}

pub(super) fn multi_head(cx: &Cx<'_>) -> R {
    let m = mha(cx)?;
    let (b, lq, lk) = (m.x[0].shape()[0], m.x[0].shape()[1], m.x[1].shape()[1]);
    let lengths = [lq, lk, lk];
    let y = cx.out("Y", cx.dtype, &[b, lq, m.e])?;
    let mut qkv = Vec::new();
    for ((x, length), (w, bias)) in m.x.iter().zip(lengths).zip(m.w.iter().zip(&m.b)) {
        let t = cx.scratch(cx.dtype, b * length * m.e)?;
        let (n, s) = (b * length, x.shape()[2]);
        let mut io = GemmIo::new(x.reshape(&[n, s])?, *w, t.alias_mut().reshape(&[n, m.e])?);
        io.bias = *bias;
        cx.gpu.gemm(&LINEAR, io)?;
        qkv.push(t);
    }
    let o = cx.scratch(cx.dtype, b * lq * m.e)?;
    let lse = cx.out("LSE", cx.dtype.accumulator(), &[b, m.h, lq])?;
    let view = |i: usize| heads!(qkv[i].shaped(&[b, lengths[i], m.e])?, m.h);
    let mut io =
        AttentionIo::new(view(0)?, view(1)?, view(2)?, heads!(o.alias_mut().reshape(&[b, lq, m.e])?, m.h)?);
    io.lse = Some(lse.m());
    cx.gpu.attention(&plan(cx)?, io)?;
    let mut io = GemmIo::new(o.shaped(&[b * lq, m.e])?, cx.x("Wo")?, y.m().reshape(&[b * lq, m.e])?);
    io.bias = cx.opt("bo");
    cx.gpu.gemm(&LINEAR, io)?;
    for (i, name) in ["q", "k", "v", "O"].into_iter().enumerate().filter(|(_, n)| cx.wants(n)) {
        let v = if i < 3 { view(i)? } else { heads!(o.shaped(&[b, lq, m.e])?, m.h)? };
        let t = cx.out(name, cx.dtype, v.shape())?;
        cx.gpu.strided_copy(v, t.g())?;
    }
    Ok(())
}

pub(super) fn multi_head_backward(cx: &Cx<'_>) -> R {
    let m = mha(cx)?;
    let (b, lq, lk, e) = (m.x[0].shape()[0], m.x[0].shape()[1], m.x[1].shape()[1], m.e);
    let (lengths, own) = ([lq, lk, lk], cx.opt("Xk").is_none());
    let dwo = cx.like("dWo", &cx.x("Wo")?)?;
    let dbo = cx.out("dbo", cx.dtype, &[e])?;
    let (o, merged, dout) =
        (cx.x("O")?, cx.scratch(cx.dtype, b * lq * e)?, cx.scratch(cx.dtype, b * lq * e)?);
    cx.gpu.strided_copy(o, heads!(merged.alias_mut().reshape(&[b, lq, e])?, m.h)?.into())?;
    let io = GemmBwd::new(cx.x("dY")?.reshape(&[b * lq, e])?, merged.shaped(&[b * lq, e])?, cx.x("Wo")?)
        .da(dout.alias_mut().reshape(&[b * lq, e])?)
        .db(dwo.g())
        .dbias(dbo.g());
    cx.gpu.gemm_bwd(&LINEAR, io)?;
    let d = lengths.map(|l| cx.scratch(cx.dtype, b * l * e)).into_iter().collect::<R<Vec<_>>>()?;
    let grad = |i: usize| heads!(d[i].alias_mut().reshape(&[b, lengths[i], e])?, m.h);
    let io = AttentionBwd::new(
        heads!(dout.shaped(&[b, lq, e])?, m.h)?,
        cx.x("q")?,
        cx.x("k")?,
        cx.x("v")?,
        o,
        cx.x("LSE")?,
    )
    .dq(grad(0)?)
    .dk(grad(1)?)
    .dv(grad(2)?);
    cx.gpu.attention_bwd(&plan(cx)?, io)?;
    let dx0 = cx.like("dXq", &m.x[0])?;
    let dx = match own {
        true => [dx0.clone(), dx0.clone(), dx0],
        false => [dx0, cx.like("dXk", &m.x[1])?, cx.like("dXv", &m.x[2])?],
    };
    let (dw, db) = match cx.opt("W_in") {
        Some(w) => {
            let (w, b) = (cx.like("dW_in", &w)?, cx.out("db_in", cx.dtype, &[3 * e])?);
            (vec![w.clone(), w.clone(), w], vec![b.clone(), b.clone(), b])
        }
        None => (
            ["dWq", "dWk", "dWv"].iter().zip(&m.w).map(|(n, w)| cx.like(n, w)).collect::<R<_>>()?,
            ["dbq", "dbk", "dbv"].iter().map(|n| cx.out(n, cx.dtype, &[e])).collect::<R<_>>()?,
        ),
    };
    let part = |i: usize| if cx.opt("W_in").is_some() { i } else { 0 };
    for i in 0..3 {
        let (n, s) = (b * lengths[i], m.x[i].shape()[2]);
        // In self-attention the three gradients of the source are added up.
        let add = dx[i].g().accumulate || (own && i > 0);
        let io = GemmBwd::new(d[i].shaped(&[n, e])?, m.x[i].reshape(&[n, s])?, m.w[i])
            .da(dx[i].m().reshape(&[n, s])?.grad(add))
            .db(third_mut(dw[i].m(), part(i), e)?.grad(dw[i].g().accumulate))
            .dbias(third_mut(db[i].m(), part(i), e)?.grad(db[i].g().accumulate));
        cx.gpu.gemm_bwd(&LINEAR, io)?;
    }
    Ok(())
}
