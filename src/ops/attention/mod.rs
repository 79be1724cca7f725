//! Scaled dot-product attention: parameters, operands, checks.

mod decode;
mod rope;

pub use self::decode::*;
pub use self::rope::*;

use crate::ops::check;
use crate::ops::random::check_rng;
use crate::buffer::{GradMut, View, ViewMut};
use crate::dtype::DType;
use crate::error::{GpuError, Result};
use crate::ops::random::Rng;

/// Which keys a causal query sees. With Lq = Lk both are the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Causal {
    /// Key j is visible to query i if j <= i (PyTorch).
    TopLeft,
    /// Key j is visible to query i if j <= i + Lk - Lq: the last query sees the last key (decoding with a cache).
    BottomRight,
}

/// How scores are made: s = scale * (q . k); with a softcap c, s = c * tanh(s / c); then the bias is added; then invisible keys get -inf.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Attention<'a> {
    /// Factor of the products; `None` is 1/sqrt(D).
    pub scale: Option<f64>,
    /// Hide later keys.
    pub causal: Option<Causal>,
    /// Keys visible to the left and to the right of the query's position (which `BottomRight` moves by Lk - Lq); `None` is unbounded.
    pub window: [Option<usize>; 2],
    /// c above, 0 for none.
    pub softcap: f64,
    /// Probability of dropping an entry of P; what is kept is scaled by 1 / (1 - p).
    pub dropout: f64,
    /// Generator of the dropout mask: entry (b, h, i, j) is element ((b * Hq + h) * Lq + i) * Lk + j of the call. For packed sequences i and j
    /// count all tokens and b is 0.
    pub rng: Rng<'a>,
}

impl<'a> Attention<'a> {
    /// softmax(Q K^T / sqrt D) V.
    pub const fn new() -> Self {
        Attention {
            scale: None,
            causal: None,
            window: [None, None],
            softcap: 0.0,
            dropout: 0.0,
            rng: Rng::new(0),
        }
    }

    /// Sets the factor.
    pub const fn scale(mut self, scale: f64) -> Self {
        self.scale = Some(scale);
        self
    }

    /// Hides later keys.
    pub const fn causal(mut self, causal: Causal) -> Self {
        self.causal = Some(causal);
        self
    }

    /// Sets the window.
    pub const fn window(mut self, left: Option<usize>, right: Option<usize>) -> Self {
        self.window = [left, right];
        self
    }

    /// Sets the softcap.
    pub const fn softcap(mut self, softcap: f64) -> Self {
        self.softcap = softcap;
        self
    }

    /// Drops entries of P.
    pub const fn dropout(mut self, p: f64, rng: Rng<'a>) -> Self {
        self.dropout = p;
        self.rng = rng;
        self
    }

    pub(crate) fn factor(&self, d: usize) -> f64 {
        self.scale.unwrap_or(1.0 / (d as f64).sqrt())
    }

    /// Bounds of j - i - shift, where the shift is Lk - Lq for `BottomRight` and 0 otherwise.
    pub(crate) fn bounds(&self) -> [Option<usize>; 2] {
        let right = match (self.causal, self.window[1]) {
            (Some(_), _) => Some(0),
            (None, r) => r,
        };
        [self.window[0], right]
    }
}

impl Default for Attention<'_> {
    fn default() -> Self {
        Attention::new()
    }
}

/// What is added to scores and which keys are visible, beside what [`Attention`] says.
#[derive(Debug, Clone, Copy, Default)]
#[non_exhaustive]
pub struct AttentionMask<'a> {
    /// Added to the scores; the data's dtype; broadcasts to [B, Hq, Lq, Lk].
    pub bias: Option<View<'a>>,
    /// u8, not 0 = visible; broadcasts to [B, Hq, Lq, Lk].
    pub mask: Option<View<'a>>,
    /// i32 `[B]`: keys from this one on are invisible. What stands there is not read.
    pub key_lengths: Option<View<'a>>,
    /// Packed sequences: i32 offsets [n+1] of the queries and of the keys, from 0, rising. Then B is 1, Lq and Lk are the total numbers of tokens, sequence
    /// s attends to itself only (`BottomRight` is by its own lengths), and there are no bias, mask, key lengths and P. Tokens after the last sequence
    /// see nothing. Offsets that fall or lie beyond the total are `IndexOutOfRange`.
    pub sequences: Option<[View<'a>; 2]>,
}

impl<'a> AttentionMask<'a> {
    /// Everything visible.
    pub const fn new() -> Self {
        AttentionMask { bias: None, mask: None, key_lengths: None, sequences: None }
    }

    /// Sets the bias.
    pub const fn bias(mut self, bias: View<'a>) -> Self {
        self.bias = Some(bias);
        self
    }

    /// Sets the boolean mask.
    pub const fn mask(mut self, mask: View<'a>) -> Self {
        self.mask = Some(mask);
        self
    }

    /// Sets the lengths.
    pub const fn key_lengths(mut self, lengths: View<'a>) -> Self {
        self.key_lengths = Some(lengths);
        self
    }

    /// Sets the offsets of packed sequences.
    pub const fn sequences(mut self, queries: View<'a>, keys: View<'a>) -> Self {
        self.sequences = Some([queries, keys]);
        self
    }
}

io_struct! {
    /// Operands of [`AttentionOps::attention`]. Any strides with a step of 1 along the last axis, so that tensors stored [B, L, H, D] are views too.
    #[derive(Debug)]
    pub struct AttentionIo<'a> {
        /// Queries [B, Hq, Lq, D].
        pub q: View<'a>,
        /// Keys [B, Hkv, Lk, D]; Hkv divides Hq, and query head h reads head h / (Hq / Hkv).
        pub k: View<'a>,
        /// Values [B, Hkv, Lk, Dv].
        pub v: View<'a>,
        /// Bias and visibility.
        pub mask: AttentionMask<'a> = AttentionMask::new(),
        /// Result [B, Hq, Lq, Dv].
        pub o: ViewMut<'a>,
        /// Natural logarithm of the sum of e^s over the keys, f32 (f64 for f64) [B, Hq, Lq], any strides: what the backward needs.
        pub lse: Option<ViewMut<'a>>,
        /// The softmax before dropout [B, Hq, Lq, Lk], contiguous, where it is wanted.
        pub p: Option<ViewMut<'a>>,
    }
}

io_struct! {
    /// Operands of [`AttentionOps::attention_bwd`]; strides as in [`AttentionIo`].
    #[derive(Debug)]
    pub struct AttentionBwd<'a> {
        /// Upstream gradient, O's shape.
        pub dout: View<'a>,
        /// Forward's queries.
        pub q: View<'a>,
        /// Forward's keys.
        pub k: View<'a>,
        /// Forward's values.
        pub v: View<'a>,
        /// Forward's result.
        pub o: View<'a>,
        /// Forward's logarithms.
        pub lse: View<'a>,
        /// Forward's bias and visibility.
        pub mask: AttentionMask<'a> = AttentionMask::new(),
        /// Gradient of the queries.
        pub dq: Option<GradMut<'a>>,
        /// Gradient of the keys, summed over the query heads that share them.
        pub dk: Option<GradMut<'a>>,
        /// Gradient of the values, likewise.
        pub dv: Option<GradMut<'a>>,
        /// Gradient of the bias, in its shape (summed over the axes that it repeats), contiguous.
        pub dbias: Option<GradMut<'a>>,
    }
}

op_family! {
    /// Scaled dot-product attention: self, cross, grouped-query, multi-query and packed, without the matrix of scores in memory (Dao, 2023, arXiv 2307.08691).
    /// D and Dv are arbitrary and may differ. Deterministic: sums have a fixed order. A query that sees no key, or whose
    /// scores are all -inf, gives O = 0, LSE = -inf, P = 0 and zero gradients. Values of invisible keys inside the lengths should be finite.
    /// Oracle `F.scaled_dot_product_attention(q, k, v, attn_mask, dropout_p, is_causal, scale, enable_gqa)` (its math path).
    /// Errors: `Invalid` for ranks, sizes, dtypes, heads that do not divide, strides, overlap.
    pub trait AttentionOps : Attention => ATTENTION_OPS {
        /// O = dropout(softmax(s)) V, and LSE.
        fn attention(&self, p: &Attention<'_>, io: AttentionIo<'_>) -> Result<()>;
        /// With P = e^(s - LSE) computed again and M the dropout factors: delta = rowsum(dO * O), dV = (P M)^T dO, dS = P (M (dO V^T) - delta),
        /// dBias = dS, dQ = scale dS' K and dK = scale dS'^T Q, where dS' = dS (1 - (s_cap / c)^2) with a softcap and dS without.
        fn attention_bwd(&self, p: &Attention<'_>, io: AttentionBwd<'_>) -> Result<()>;
    }
}

/// Sizes of a checked call; `batch` counts packed sequences too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct AttentionSize {
    pub(crate) batch: usize,
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) lq: usize,
    pub(crate) lk: usize,
    pub(crate) d: usize,
    pub(crate) dv: usize,
    /// Axis 0 of the tensors.
    pub(crate) outer: usize,
}

/// Positions are computed in 32 bits.
const MAX_LENGTH: usize = 1 << 30;

fn rank4(op: &'static str, arg: &'static str, v: &View<'_>) -> Result<[usize; 4]> {
    <[usize; 4]>::try_from(v.shape())
        .map_err(|_| GpuError::invalid(op, arg, "rank 4: [B, H, L, D]", format!("shape {:?}", v.shape())))
}

/// Elements of a row lie side by side.
fn rows(op: &'static str, arg: &'static str, v: &View<'_>) -> Result<()> {
    let l = v.layout();
    if v.numel() == 0 || v.shape().last().is_none_or(|&n| n == 1) || l.strides().last() == Some(&1) {
        return Ok(());
    }
    Err(GpuError::invalid(op, arg, "a step of 1 along the last axis", format!("strides {:?}", l.strides())))
}

fn operand(op: &'static str, arg: &'static str, v: &View<'_>, want: &[usize; 4], dtype: DType) -> Result<()> {
    check::shape(op, arg, v, want)?;
    check::dtype(op, arg, v, dtype)?;
    rows(op, arg, v)
}

fn broadcasts(op: &'static str, arg: &'static str, v: &View<'_>, to: &[usize; 4]) -> Result<()> {
    if v.shape().len() <= 4 && v.broadcast_to(to).is_ok() {
        return Ok(());
    }
    Err(GpuError::invalid(op, arg, format!("a shape that broadcasts to {to:?}"), format!("{:?}", v.shape())))
}

/// What forward and backward have in common.
fn common<'a>(
    op: &'static str,
    p: &Attention<'_>,
    [q, k, v]: [View<'a>; 3],
    m: &AttentionMask<'a>,
) -> Result<AttentionSize> {
    let [outer, heads, lq, d] = rank4(op, "q", &q)?;
    let [_, kv_heads, lk, _] = rank4(op, "k", &k)?;
    let [.., dv] = rank4(op, "v", &v)?;
    check::float(op, "q", &q)?;
    rows(op, "q", &q)?;
    operand(op, "k", &k, &[outer, kv_heads, lk, d], q.dtype())?;
    operand(op, "v", &v, &[outer, kv_heads, lk, dv], q.dtype())?;
    if kv_heads == 0 && heads > 0 || kv_heads > 0 && !heads.is_multiple_of(kv_heads) {
        let want = format!("a number of heads that divides {heads}");
        return Err(GpuError::invalid(op, "k", want, format!("{kv_heads}")));
    }
    if d == 0 {
        return Err(GpuError::invalid(op, "q", "a head size of at least 1", "0"));
    }
    if lq.max(lk) >= MAX_LENGTH {
        return Err(GpuError::invalid(op, "q", "lengths below 2^30", format!("{}", lq.max(lk))));
    }
    if !(p.softcap >= 0.0 && p.softcap.is_finite()) {
        return Err(GpuError::invalid(
            op,
            "softcap",
            "a finite number not below 0",
            format!("{}", p.softcap),
        ));
    }
    if !(0.0..=1.0).contains(&p.dropout) {
        return Err(GpuError::invalid(op, "dropout", "a probability in [0, 1]", format!("{}", p.dropout)));
    }
    check_rng(op, &p.rng)?;
    let scores = [outer, heads, lq, lk];
    if let Some(b) = &m.bias {
        check::dtype(op, "bias", b, q.dtype())?;
        broadcasts(op, "bias", b, &scores)?;
    }
    if let Some(b) = &m.mask {
        check::dtype(op, "mask", b, DType::U8)?;
        broadcasts(op, "mask", b, &scores)?;
    }
    if let Some(b) = &m.key_lengths {
        check::dtype(op, "key_lengths", b, DType::I32)?;
        check::shape(op, "key_lengths", b, &[outer])?;
        check::contiguous(op, "key_lengths", b)?;
    }
    let mut batch = outer;
    if let Some([cq, ck]) = &m.sequences {
        for (arg, c) in [("sequences.0", cq), ("sequences.1", ck)] {
            check::dtype(op, arg, c, DType::I32)?;
            check::contiguous(op, arg, c)?;
            if c.shape().len() != 1 || c.numel() < 2 || c.numel() != cq.numel() {
                let got = format!("{:?}", c.shape());
                return Err(GpuError::invalid(op, arg, "a vector of n + 1 offsets, n >= 1", got));
            }
        }
        if outer != 1 {
            return Err(GpuError::invalid(op, "q", "B = 1 with packed sequences", format!("{outer}")));
        }
        if m.bias.is_some() || m.mask.is_some() || m.key_lengths.is_some() {
            return Err(GpuError::invalid(op, "sequences", "no bias, mask or key_lengths beside it", "one"));
        }
        batch = cq.numel() - 1;
    }
    Ok(AttentionSize { batch, heads, kv_heads, lq, lk, d, dv, outer })
}

fn inputs<'a>([q, k, v]: [View<'a>; 3], m: &AttentionMask<'a>) -> Vec<(&'static str, View<'a>)> {
    let mut all = vec![("q", q), ("k", k), ("v", v)];
    let seq = |i: usize| m.sequences.map(|s| s[i]);
    let more = [
        ("bias", m.bias),
        ("mask", m.mask),
        ("key_lengths", m.key_lengths),
        ("sequences.0", seq(0)),
        ("sequences.1", seq(1)),
    ];
    all.extend(more.into_iter().filter_map(|(n, v)| Some((n, v?))));
    all
}

/// Checks of [`AttentionOps::attention`].
pub(crate) fn check_attention(p: &Attention<'_>, io: &AttentionIo<'_>) -> Result<AttentionSize> {
    const OP: &str = "attention";
    let qkv = [io.q, io.k, io.v];
    let s = common(OP, p, qkv, &io.mask)?;
    let mut seen = inputs(qkv, &io.mask);
    seen.extend(p.rng.device_offset.map(|v| ("rng.device_offset", v)));
    let o = io.o.as_view();
    operand(OP, "o", &o, &[s.outer, s.heads, s.lq, s.dv], io.q.dtype())?;
    check::separate_output(OP, "o", &io.o, &seen)?;
    seen.push(("o", o));
    if let Some(l) = &io.lse {
        let v = l.as_view();
        check::shape(OP, "lse", &v, &[s.outer, s.heads, s.lq])?;
        check::dtype(OP, "lse", &v, io.q.dtype().accumulator())?;
        check::separate_output(OP, "lse", l, &seen)?;
        seen.push(("lse", v));
    }
    if let Some(l) = &io.p {
        let v = l.as_view();
        check::shape(OP, "p", &v, &[s.outer, s.heads, s.lq, s.lk])?;
        check::dtype(OP, "p", &v, io.q.dtype())?;
        check::contiguous(OP, "p", &v)?;
        check::separate_output(OP, "p", l, &seen)?;
        if io.mask.sequences.is_some() {
            return Err(GpuError::invalid(OP, "p", "no P of packed sequences", "one"));
        }
    }
    Ok(s)
}

/// Checks of [`AttentionOps::attention_bwd`].
pub(crate) fn check_attention_bwd(p: &Attention<'_>, io: &AttentionBwd<'_>) -> Result<AttentionSize> {
    const OP: &str = "attention_bwd";
    let qkv = [io.q, io.k, io.v];
    let s = common(OP, p, qkv, &io.mask)?;
    let dtype = io.q.dtype();
    for (arg, v) in [("dout", &io.dout), ("o", &io.o)] {
        operand(OP, arg, v, &[s.outer, s.heads, s.lq, s.dv], dtype)?;
    }
    check::shape(OP, "lse", &io.lse, &[s.outer, s.heads, s.lq])?;
    check::dtype(OP, "lse", &io.lse, dtype.accumulator())?;
    let mut seen = inputs(qkv, &io.mask);
    seen.extend([("dout", io.dout), ("o", io.o), ("lse", io.lse)]);
    seen.extend(p.rng.device_offset.map(|v| ("rng.device_offset", v)));
    for (arg, g, like) in [("dq", &io.dq, &io.q), ("dk", &io.dk, &io.k), ("dv", &io.dv, &io.v)] {
        let Some(g) = g else { continue };
        let v = g.out.as_view();
        check::shape(OP, arg, &v, like.shape())?;
        check::dtype(OP, arg, &v, dtype)?;
        rows(OP, arg, &v)?;
        check::separate_output(OP, arg, &g.out, &seen)?;
        seen.push((arg, v));
    }
    if let Some(g) = &io.dbias {
        let v = g.out.as_view();
        let Some(b) = &io.mask.bias else {
            return Err(GpuError::invalid(OP, "dbias", "none without a bias", "one"));
        };
        check::shape(OP, "dbias", &v, b.shape())?;
        check::dtype(OP, "dbias", &v, dtype)?;
        check::contiguous(OP, "dbias", &v)?;
        check::separate_output(OP, "dbias", &g.out, &seen)?;
    }
    Ok(s)
}
