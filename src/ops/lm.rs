//! Language models: rotary embedding, vocabulary loss, mixture of experts.

use super::check;
use super::loss::Reduction;
use crate::buffer::{GradMut, View, ViewMut};
use crate::dtype::DType;
use crate::error::{GpuError, Result};

/// Which elements of a head form a pair that is rotated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RopeLayout {
    /// i and i + R/2 (GPT-NeoX, Llama in its Hugging Face form).
    #[default]
    Half,
    /// 2i and 2i + 1 (GPT-J).
    Interleaved,
}

/// Rotary position embedding (Su et al., 2021, arXiv 2104.09864): pair i of R/2 is rotated by position * base^(-2i/R).
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Rope {
    /// Pairs.
    pub layout: RopeLayout,
    /// Base of the frequencies, above 0.
    pub base: f64,
    /// R: leading elements of a head that are rotated, even; `None` is all. The others pass.
    pub rotary_dim: Option<usize>,
    /// Position of the first token where no positions are given.
    pub offset: i64,
}

impl Rope {
    /// Halves, base 10000, the whole head, from position 0.
    pub const fn new() -> Self {
        Rope { layout: RopeLayout::Half, base: 10_000.0, rotary_dim: None, offset: 0 }
    }

    /// Sets the pairs.
    pub const fn layout(mut self, layout: RopeLayout) -> Self {
        self.layout = layout;
        self
    }

    /// Sets the base.
    pub const fn base(mut self, base: f64) -> Self {
        self.base = base;
        self
    }

    /// Sets R.
    pub const fn rotary_dim(mut self, dim: usize) -> Self {
        self.rotary_dim = Some(dim);
        self
    }

    /// Sets the first position.
    pub const fn offset(mut self, offset: i64) -> Self {
        self.offset = offset;
        self
    }

    /// Turns per position of each pair.
    pub(crate) fn frequencies(&self, r: usize) -> impl Iterator<Item = f64> + use<> {
        let base = self.base;
        (0..r / 2).map(move |i| base.powf(-2.0 * i as f64 / r as f64) / std::f64::consts::TAU)
    }
}

impl Default for Rope {
    fn default() -> Self {
        Rope::new()
    }
}

/// A linear layer and the cross entropy of its outputs, which never exist as a whole.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct LinearCrossEntropy {
    /// How items are combined; `Mean` divides by the number of rows that count.
    pub reduction: Reduction,
    /// Class id of rows that do not count.
    pub ignore_index: i64,
    /// In [0, 1): share spread over all classes.
    pub label_smoothing: f64,
    /// Factor of LSE^2, added to each item that counts.
    pub z_loss: f64,
    /// c: logits z become c * tanh(z / c); 0 for none.
    pub softcap: f64,
    /// Rows whose logits exist at a time; `None` lets the backend choose.
    pub chunk: Option<usize>,
}

impl LinearCrossEntropy {
    /// Mean, ignore_index -100, no smoothing, z-loss or softcap.
    pub const fn new() -> Self {
        LinearCrossEntropy {
            reduction: Reduction::Mean,
            ignore_index: -100,
            label_smoothing: 0.0,
            z_loss: 0.0,
            softcap: 0.0,
            chunk: None,
        }
    }

    /// Sets the reduction.
    pub const fn reduction(mut self, reduction: Reduction) -> Self {
        self.reduction = reduction;
        self
    }

    /// Sets the ignored class id.
    pub const fn ignore_index(mut self, id: i64) -> Self {
        self.ignore_index = id;
        self
    }

    /// Sets the label smoothing.
    pub const fn label_smoothing(mut self, e: f64) -> Self {
        self.label_smoothing = e;
        self
    }

    /// Sets the z-loss.
    pub const fn z_loss(mut self, factor: f64) -> Self {
        self.z_loss = factor;
        self
    }

    /// Sets the softcap.
    pub const fn softcap(mut self, c: f64) -> Self {
        self.softcap = c;
        self
    }

    /// Sets the rows per chunk.
    pub const fn chunk(mut self, rows: usize) -> Self {
        self.chunk = Some(rows);
        self
    }
}

impl Default for LinearCrossEntropy {
    fn default() -> Self {
        LinearCrossEntropy::new()
    }
}

/// Operands of [`LmOps::fused_linear_cross_entropy`]; contiguous.
#[derive(Debug)]
pub struct LinearCrossEntropyFwd<'a> {
    /// Hidden states [N, D].
    pub h: View<'a>,
    /// Weights [V, D].
    pub w: View<'a>,
    /// Bias `[V]`.
    pub b: Option<View<'a>>,
    /// Class ids `[N]` (i32, i64), or probabilities [N, V] of h's dtype.
    pub target: View<'a>,
    /// f32 scalar, or `[N]` in h's dtype for `Reduction::None`.
    pub loss: ViewMut<'a>,
    /// ln sum e^z over the (capped) logits, f32 `[N]`.
    pub lse: Option<ViewMut<'a>>,
}

/// Operands of [`LmOps::fused_linear_cross_entropy_bwd`]; contiguous.
#[derive(Debug)]
pub struct LinearCrossEntropyBwd<'a> {
    /// Upstream gradient: one element (f32 or h's dtype), or `[N]` for `Reduction::None`.
    pub gy: View<'a>,
    /// Forward's hidden states.
    pub h: View<'a>,
    /// Forward's weights.
    pub w: View<'a>,
    /// Forward's bias.
    pub b: Option<View<'a>>,
    /// Forward's target.
    pub target: View<'a>,
    /// Gradient of the hidden states.
    pub dh: Option<GradMut<'a>>,
    /// Gradient of the weights.
    pub dw: Option<GradMut<'a>>,
    /// Gradient of the bias.
    pub db: Option<GradMut<'a>>,
}

/// How a router scores experts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RouterScore {
    /// Softmax over the experts.
    #[default]
    Softmax,
    /// Sigmoid of each.
    Sigmoid,
}

/// A router of tokens to experts. The number of choices is that of the operands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct MoeRouter {
    /// Scores of the logits.
    pub score: RouterScore,
    /// Divide the chosen scores by their sum.
    pub renormalize: bool,
}

impl MoeRouter {
    /// Softmax, renormalised.
    pub const fn new() -> Self {
        MoeRouter { score: RouterScore::Softmax, renormalize: true }
    }

    /// Sets the score.
    pub const fn score(mut self, score: RouterScore) -> Self {
        self.score = score;
        self
    }

    /// Sets the renormalisation.
    pub const fn renormalize(mut self, on: bool) -> Self {
        self.renormalize = on;
        self
    }
}

impl Default for MoeRouter {
    fn default() -> Self {
        MoeRouter::new()
    }
}

/// Operands of [`LmOps::moe_router`]; contiguous. Assignment t * k + j is choice j of token t.
#[derive(Debug)]
pub struct MoeRouterIo<'a> {
    /// Logits [T, E].
    pub logits: View<'a>,
    /// Chosen scores [T, k], the logits' dtype.
    pub weights: ViewMut<'a>,
    /// Chosen experts i32 [T, k], by falling score; of equal ones the lower number first.
    pub ids: ViewMut<'a>,
    /// Assignments per expert, i32 `[E]`.
    pub counts: ViewMut<'a>,
    /// Where each expert's assignments begin, i32 [E+1] (what `gemm_ragged` takes).
    pub offsets: ViewMut<'a>,
    /// Assignments by expert, i32 \[T*k\]; equal experts in rising order.
    pub perm: ViewMut<'a>,
}

/// Operands of [`LmOps::moe_unpermute_bwd`]; contiguous.
#[derive(Debug)]
pub struct MoeUnpermuteBwd<'a> {
    /// Upstream gradient [T, D].
    pub dy: View<'a>,
    /// Forward's rows [T*k, D].
    pub x: View<'a>,
    /// Forward's order.
    pub perm: View<'a>,
    /// Forward's weights [T, k].
    pub weights: View<'a>,
    /// Gradient of the rows.
    pub dx: Option<GradMut<'a>>,
    /// Gradient of the weights.
    pub dweights: Option<GradMut<'a>>,
}

op_family! {
    /// Language models. Deterministic; f32, f16, bf16 and f64 data.
    pub trait LmOps : Lm => LM_OPS {
        /// y = x with its pairs rotated: (a, b) -> (a cos - b sin, a sin + b cos). x and y [B, L, H, D] of any strides with a step of 1 along the last axis; y
        /// may be x. `positions` i32 `[L]` or [B, L]; without it `offset + l`. Angles are exact to f32 whatever the position. Oracle: the formula.
        fn rope(&self, p: &Rope, x: View<'_>, positions: Option<View<'_>>, y: ViewMut<'_>) -> Result<()>;
        /// Gradient of [`LmOps::rope`]: the rotation by the negative angles.
        fn rope_bwd(&self, p: &Rope, dy: View<'_>, positions: Option<View<'_>>, dx: GradMut<'_>) -> Result<()>;
        /// Cross entropy (plus z_loss * LSE^2) of z = cap(h w^T + b), with at most `chunk` rows of z in memory. A class id outside [0, V) that is not
        /// `ignore_index` is `IndexOutOfRange` and does not count. Mean over nothing is NaN. Oracle `F.cross_entropy(F.linear(h, w, b), target)`.
        fn fused_linear_cross_entropy(&self, p: &LinearCrossEntropy, io: LinearCrossEntropyFwd<'_>) -> Result<()>;
        /// Gradients of [`LmOps::fused_linear_cross_entropy`], from its operands alone: logits are computed again, chunk by chunk. dz passes through
        /// the storage type; gradients of weights and bias are summed over the chunks in f32.
        fn fused_linear_cross_entropy_bwd(&self, p: &LinearCrossEntropy, io: LinearCrossEntropyBwd<'_>) -> Result<()>;
        /// Scores, the k best experts of every token, and the order of the assignments by expert. k of 1 to E. A NaN is chosen last.
        fn moe_router(&self, p: &MoeRouter, io: MoeRouterIo<'_>) -> Result<()>;
        /// Gradient of the weights of [`LmOps::moe_router`] with the choice `ids` [T, k] held fixed; an id out of range is `IndexOutOfRange` and counts as a
        /// score of 0. An expert that is chosen twice gets the sum.
        fn moe_router_bwd(&self, p: &MoeRouter, dweights: View<'_>, logits: View<'_>, ids: View<'_>, dlogits: GradMut<'_>) -> Result<()>;
        /// `y[i] = x[perm[i] div k]`: rows x [T, D] in the order of the experts, y [T*k, D], `perm` i32 \[T*k\].
        fn moe_permute(&self, x: View<'_>, perm: View<'_>, y: ViewMut<'_>) -> Result<()>;
        /// `dx[t]` = sum over the k rows of dy that token t went to.
        fn moe_permute_bwd(&self, dy: View<'_>, perm: View<'_>, dx: GradMut<'_>) -> Result<()>;
        /// `y[t]` = sum over j of `weights[t, j]` * row of assignment t * k + j in x [T*k, D].
        fn moe_unpermute(&self, x: View<'_>, perm: View<'_>, weights: View<'_>, y: ViewMut<'_>) -> Result<()>;
        /// `dx[i] = weights[perm[i]] * dy[perm[i] div k]`, `dweights[t, j] = dy[t] . x[row of assignment t * k + j]`.
        fn moe_unpermute_bwd(&self, io: MoeUnpermuteBwd<'_>) -> Result<()>;
    }
}

type Named<'a> = (&'static str, View<'a>);

fn matrix(op: &'static str, arg: &'static str, v: &View<'_>) -> Result<[usize; 2]> {
    check::contiguous(op, arg, v)?;
    <[usize; 2]>::try_from(v.shape())
        .map_err(|_| GpuError::invalid(op, arg, "a matrix", format!("shape {:?}", v.shape())))
}

/// A contiguous operand of this shape and dtype.
fn exact(op: &'static str, arg: &'static str, v: &View<'_>, shape: &[usize], dtype: DType) -> Result<()> {
    check::shape(op, arg, v, shape)?;
    check::dtype(op, arg, v, dtype)?;
    check::contiguous(op, arg, v)
}

/// The same for an output with memory of its own, which is then added to `seen`.
fn output<'a>(
    op: &'static str,
    arg: &'static str,
    v: &ViewMut<'a>,
    shape: &[usize],
    dtype: DType,
    seen: &mut Vec<Named<'a>>,
) -> Result<()> {
    exact(op, arg, &v.as_view(), shape, dtype)?;
    check::separate_output(op, arg, v, seen)?;
    seen.push((arg, v.as_view()));
    Ok(())
}

/// Sizes of a checked rotation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RopeSize {
    pub(crate) b: usize,
    pub(crate) l: usize,
    pub(crate) h: usize,
    pub(crate) d: usize,
    pub(crate) r: usize,
    /// Step of the positions from batch to batch.
    pub(crate) step: usize,
}

/// Checks of [`LmOps::rope`] and its gradient.
pub(crate) fn check_rope(
    op: &'static str,
    p: &Rope,
    (arg, x): (&'static str, &View<'_>),
    positions: Option<&View<'_>>,
    (name, y): (&'static str, &ViewMut<'_>),
) -> Result<RopeSize> {
    let &[b, l, h, d] = x.shape() else {
        return Err(GpuError::invalid(op, arg, "rank 4: [B, L, H, D]", format!("shape {:?}", x.shape())));
    };
    let v = y.as_view();
    check::float(op, arg, x)?;
    check::shape(op, name, &v, x.shape())?;
    check::dtype(op, name, &v, x.dtype())?;
    for (arg, v) in [(arg, x), (name, &v)] {
        let s = v.layout().strides();
        if v.numel() > 0 && d > 1 && s[3] != 1 {
            return Err(GpuError::invalid(
                op,
                arg,
                "a step of 1 along the last axis",
                format!("strides {s:?}"),
            ));
        }
    }
    let r = p.rotary_dim.unwrap_or(d);
    if !r.is_multiple_of(2) || r > d {
        return Err(GpuError::invalid(op, "rotary_dim", format!("an even number up to {d}"), format!("{r}")));
    }
    if !(p.base > 0.0 && p.base.is_finite()) {
        return Err(GpuError::invalid(op, "base", "a finite number above 0", format!("{}", p.base)));
    }
    let mut step = 0;
    check::elementwise_output(op, name, y, &[(arg, *x)])?;
    if let Some(at) = positions {
        check::dtype(op, "positions", at, DType::I32)?;
        check::contiguous(op, "positions", at)?;
        if at.shape().len() == 2 {
            check::shape(op, "positions", at, &[b, l])?;
            step = l;
        } else {
            check::shape(op, "positions", at, &[l])?;
        }
        check::separate_output(op, name, y, &[("positions", *at)])?;
    }
    Ok(RopeSize { b, l, h, d, r, step })
}

/// Rows, hidden size and classes.
fn check_linear<'a>(
    op: &'static str,
    p: &LinearCrossEntropy,
    h: &View<'a>,
    w: &View<'a>,
    b: Option<&View<'a>>,
    target: &View<'a>,
) -> Result<([usize; 3], Vec<Named<'a>>)> {
    check::float(op, "h", h)?;
    let ([n, d], [v, _]) = (matrix(op, "h", h)?, matrix(op, "w", w)?);
    exact(op, "w", w, &[v, d], h.dtype())?;
    if v == 0 {
        return Err(GpuError::invalid(op, "w", "at least one class", "none"));
    }
    let mut seen = vec![("h", *h), ("w", *w), ("target", *target)];
    if let Some(b) = b {
        exact(op, "b", b, &[v], h.dtype())?;
        seen.push(("b", *b));
    }
    check::contiguous(op, "target", target)?;
    if target.dtype().is_index() {
        check::shape(op, "target", target, &[n])?;
    } else {
        exact(op, "target", target, &[n, v], h.dtype())?;
    }
    let bad = |arg, want: &str, got: f64| Err(GpuError::invalid(op, arg, want, format!("{got}")));
    if !(0.0..1.0).contains(&p.label_smoothing) {
        return bad("label_smoothing", "a share in [0, 1)", p.label_smoothing);
    }
    if !(p.softcap >= 0.0 && p.softcap.is_finite()) {
        return bad("softcap", "a finite number not below 0", p.softcap);
    }
    if !p.z_loss.is_finite() {
        return bad("z_loss", "a finite number", p.z_loss);
    }
    if p.chunk == Some(0) {
        return bad("chunk", "at least one row", 0.0);
    }
    Ok(([n, d, v], seen))
}

/// Checks of [`LmOps::fused_linear_cross_entropy`]; rows, hidden size and classes.
pub(crate) fn check_linear_cross_entropy(
    p: &LinearCrossEntropy,
    io: &LinearCrossEntropyFwd<'_>,
) -> Result<[usize; 3]> {
    const OP: &str = "fused_linear_cross_entropy";
    let (size, mut seen) = check_linear(OP, p, &io.h, &io.w, io.b.as_ref(), &io.target)?;
    let acc = io.h.dtype().accumulator();
    if p.reduction == Reduction::None {
        output(OP, "loss", &io.loss, &size[..1], io.h.dtype(), &mut seen)?;
    } else {
        super::loss::one_element(OP, "loss", &io.loss.as_view(), &[acc])?;
        check::separate_output(OP, "loss", &io.loss, &seen)?;
        seen.push(("loss", io.loss.as_view()));
    }
    if let Some(l) = &io.lse {
        output(OP, "lse", l, &size[..1], acc, &mut seen)?;
    }
    Ok(size)
}

/// Checks of [`LmOps::fused_linear_cross_entropy_bwd`]; rows, hidden size and classes.
pub(crate) fn check_linear_cross_entropy_bwd(
    p: &LinearCrossEntropy,
    io: &LinearCrossEntropyBwd<'_>,
) -> Result<[usize; 3]> {
    const OP: &str = "fused_linear_cross_entropy_bwd";
    let (size, mut seen) = check_linear(OP, p, &io.h, &io.w, io.b.as_ref(), &io.target)?;
    let dtype = io.h.dtype();
    if p.reduction == Reduction::None {
        exact(OP, "gy", &io.gy, &size[..1], dtype)?;
    } else {
        super::loss::one_element(OP, "gy", &io.gy, &[dtype.accumulator(), dtype])?;
    }
    seen.push(("gy", io.gy));
    let [n, d, v] = size;
    for (arg, g, shape) in [("dh", &io.dh, &[n, d][..]), ("dw", &io.dw, &[v, d]), ("db", &io.db, &[v])] {
        if let Some(g) = g {
            output(OP, arg, &g.out, shape, dtype, &mut seen)?;
        }
    }
    Ok(size)
}

/// Tokens, experts and choices.
pub(crate) fn check_moe_router(io: &MoeRouterIo<'_>) -> Result<[usize; 3]> {
    const OP: &str = "moe_router";
    check::float(OP, "logits", &io.logits)?;
    let ([t, e], [_, k]) = (matrix(OP, "logits", &io.logits)?, matrix(OP, "weights", &io.weights.as_view())?);
    check_choices(OP, e, k, t)?;
    let mut seen = vec![("logits", io.logits)];
    output(OP, "weights", &io.weights, &[t, k], io.logits.dtype(), &mut seen)?;
    let ints = [
        ("ids", &io.ids, &[t, k][..]),
        ("counts", &io.counts, &[e]),
        ("offsets", &io.offsets, &[e + 1]),
        ("perm", &io.perm, &[t * k]),
    ];
    for (arg, v, shape) in ints {
        output(OP, arg, v, shape, DType::I32, &mut seen)?;
    }
    Ok([t, e, k])
}

fn check_choices(op: &'static str, e: usize, k: usize, t: usize) -> Result<()> {
    if k == 0 || k > e {
        let want = format!("a number of choices from 1 to {e}, the experts");
        return Err(GpuError::invalid(op, "weights", want, format!("{k}")));
    }
    if t.saturating_mul(k) > i32::MAX as usize || e > 1 << 24 {
        let got = format!("{t} tokens, {e} experts");
        return Err(GpuError::invalid(op, "logits", "below 2^31 assignments and 2^24 experts", got));
    }
    Ok(())
}

/// Checks of [`LmOps::moe_router_bwd`]; tokens, experts and choices.
pub(crate) fn check_moe_router_bwd(
    dweights: &View<'_>,
    logits: &View<'_>,
    ids: &View<'_>,
    dlogits: &GradMut<'_>,
) -> Result<[usize; 3]> {
    const OP: &str = "moe_router_bwd";
    check::float(OP, "logits", logits)?;
    let ([t, e], [_, k]) = (matrix(OP, "logits", logits)?, matrix(OP, "ids", ids)?);
    check_choices(OP, e, k, t)?;
    exact(OP, "ids", ids, &[t, k], DType::I32)?;
    exact(OP, "dweights", dweights, &[t, k], logits.dtype())?;
    let mut seen = vec![("dweights", *dweights), ("logits", *logits), ("ids", *ids)];
    output(OP, "dlogits", &dlogits.out, &[t, e], logits.dtype(), &mut seen)?;
    Ok([t, e, k])
}

/// Tokens, choices and row length, from rows by token and rows by assignment.
pub(crate) fn check_moe_rows(
    op: &'static str,
    (token_arg, tokens): (&'static str, &View<'_>),
    (row_arg, rows): (&'static str, &View<'_>),
    perm: &View<'_>,
) -> Result<[usize; 3]> {
    check::float(op, token_arg, tokens)?;
    let ([t, d], [n, _]) = (matrix(op, token_arg, tokens)?, matrix(op, row_arg, rows)?);
    exact(op, row_arg, rows, &[n, d], tokens.dtype())?;
    let k = n.checked_div(t).unwrap_or(1);
    if n != t.saturating_mul(k) || k == 0 {
        let want = format!("a multiple of {t} rows");
        return Err(GpuError::invalid(op, row_arg, want, format!("{n}")));
    }
    if n > i32::MAX as usize {
        return Err(GpuError::invalid(op, row_arg, "below 2^31 assignments", format!("{n}")));
    }
    exact(op, "perm", perm, &[n], DType::I32)?;
    Ok([t, k, d])
}

/// Checks of [`LmOps::moe_permute`].
pub(crate) fn check_moe_permute(x: &View<'_>, perm: &View<'_>, y: &ViewMut<'_>) -> Result<[usize; 3]> {
    const OP: &str = "moe_permute";
    let size = check_moe_rows(OP, ("x", x), ("y", &y.as_view()), perm)?;
    check::separate_output(OP, "y", y, &[("x", *x), ("perm", *perm)])?;
    Ok(size)
}

/// Checks of [`LmOps::moe_permute_bwd`].
pub(crate) fn check_moe_permute_bwd(dy: &View<'_>, perm: &View<'_>, dx: &GradMut<'_>) -> Result<[usize; 3]> {
    const OP: &str = "moe_permute_bwd";
    let size = check_moe_rows(OP, ("dx", &dx.out.as_view()), ("dy", dy), perm)?;
    check::separate_output(OP, "dx", &dx.out, &[("dy", *dy), ("perm", *perm)])?;
    Ok(size)
}

/// Checks of [`LmOps::moe_unpermute`].
pub(crate) fn check_moe_unpermute(
    x: &View<'_>,
    perm: &View<'_>,
    weights: &View<'_>,
    y: &ViewMut<'_>,
) -> Result<[usize; 3]> {
    const OP: &str = "moe_unpermute";
    let [t, k, d] = check_moe_rows(OP, ("y", &y.as_view()), ("x", x), perm)?;
    let k = choices(weights, k, t);
    exact(OP, "weights", weights, &[t, k], x.dtype())?;
    check::separate_output(OP, "y", y, &[("x", *x), ("perm", *perm), ("weights", *weights)])?;
    Ok([t, k, d])
}

/// Without tokens, the weights may have any number of columns.
fn choices(weights: &View<'_>, k: usize, t: usize) -> usize {
    if t == 0 { weights.shape().get(1).copied().unwrap_or(k) } else { k }
}

/// Checks of [`LmOps::moe_unpermute_bwd`].
pub(crate) fn check_moe_unpermute_bwd(io: &MoeUnpermuteBwd<'_>) -> Result<[usize; 3]> {
    const OP: &str = "moe_unpermute_bwd";
    let [t, k, d] = check_moe_rows(OP, ("dy", &io.dy), ("x", &io.x), &io.perm)?;
    let k = choices(&io.weights, k, t);
    exact(OP, "weights", &io.weights, &[t, k], io.x.dtype())?;
    let mut seen = vec![("dy", io.dy), ("x", io.x), ("perm", io.perm), ("weights", io.weights)];
    if let Some(g) = &io.dx {
        output(OP, "dx", &g.out, io.x.shape(), io.x.dtype(), &mut seen)?;
    }
    if let Some(g) = &io.dweights {
        output(OP, "dweights", &g.out, &[t, k], io.x.dtype(), &mut seen)?;
    }
    Ok([t, k, d])
}
