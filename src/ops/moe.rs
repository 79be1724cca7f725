//! Mixture of experts: signatures and checks.

use crate::buffer::{GradMut, View, ViewMut};
use crate::dtype::DType;
use crate::error::{GpuError, Result};
use crate::ops::check;

/// How a router scores experts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
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

io_struct! {
    /// Operands of [`MoeOps::moe_router`]; contiguous. Assignment t * k + j is choice j of token t.
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
        /// Where each assignment stands in `perm`, i32 \[T*k\].
        pub inverse: Option<ViewMut<'a>>,
    }
}

io_struct! {
    /// Operands of [`MoeOps::moe_permute_bwd`]; contiguous.
    #[derive(Debug)]
    pub struct MoePermuteBwd<'a> {
        /// Upstream gradient [T*k, D].
        pub dy: View<'a>,
        /// Forward's order, i32 \[T*k\].
        pub perm: View<'a>,
        /// Gradient of the rows [T, D].
        pub dx: GradMut<'a>,
        /// The inverse of `perm`, i32 \[T*k\]. Without it, it is made first; where it is another, results are not specified.
        pub inverse: Option<View<'a>>,
    }
}

io_struct! {
    /// Operands of [`MoeOps::moe_unpermute`]; contiguous.
    #[derive(Debug)]
    pub struct MoeUnpermute<'a> {
        /// Rows by expert [T*k, D].
        pub x: View<'a>,
        /// Their order, i32 \[T*k\].
        pub perm: View<'a>,
        /// Factors of the rows [T, k].
        pub weights: View<'a>,
        /// Rows by token [T, D].
        pub y: ViewMut<'a>,
        /// As in [`MoePermuteBwd`].
        pub inverse: Option<View<'a>>,
    }
}

io_struct! {
    /// Operands of [`MoeOps::moe_unpermute_bwd`]; contiguous.
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
        /// Whether `perm` has every assignment, as a router's has. Without it the gradient of a weight whose assignment `perm` does not have is 0.
        pub whole: bool = false,
    }
}

op_family! {
    /// Mixture of experts: routing, and the permutation of tokens by expert.
    pub trait MoeOps : Moe => MOE_OPS {
        /// Scores, the k best experts of every token, and the order of the assignments by expert. k of 1 to E. A NaN is chosen last.
        fn moe_router(&self, p: &MoeRouter, io: MoeRouterIo<'_>) -> Result<()>;
        /// Gradient of the weights of [`MoeOps::moe_router`] with the choice `ids` [T, k] held fixed; an id out of range is `IndexOutOfRange` and counts as a
        /// score of 0. An expert that is chosen twice gets the sum.
        fn moe_router_bwd(&self, p: &MoeRouter, dweights: View<'_>, logits: View<'_>, ids: View<'_>, dlogits: GradMut<'_>) -> Result<()>;
        /// `y[i] = x[perm[i] div k]`: rows x [T, D] in the order of the experts, y [T*k, D], `perm` i32 \[T*k\].
        fn moe_permute(&self, x: View<'_>, perm: View<'_>, y: ViewMut<'_>) -> Result<()>;
        /// `dx[t]` = sum over the k rows of dy that token t went to.
        fn moe_permute_bwd(&self, io: MoePermuteBwd<'_>) -> Result<()>;
        /// `y[t]` = sum over j of `weights[t, j]` * row of assignment t * k + j in x [T*k, D].
        fn moe_unpermute(&self, io: MoeUnpermute<'_>) -> Result<()>;
        /// `dx[i] = weights[perm[i]] * dy[perm[i] div k]`, `dweights[t, j] = dy[t] . x[row of assignment t * k + j]`.
        fn moe_unpermute_bwd(&self, io: MoeUnpermuteBwd<'_>) -> Result<()>;
    }
}

/// Tokens, experts and choices.
pub(crate) fn check_moe_router(io: &MoeRouterIo<'_>) -> Result<[usize; 3]> {
    const OP: &str = "moe_router";
    check::float(OP, "logits", &io.logits)?;
    let ([t, e], [_, k]) = (check::matrix(OP, "logits", &io.logits)?, check::matrix(OP, "weights", &io.weights.as_view())?);
    check_choices(OP, e, k, t)?;
    let mut seen = vec![("logits", io.logits)];
    check::exact_output(OP, "weights", &io.weights, &[t, k], io.logits.dtype(), &mut seen)?;
    let ints = [
        ("ids", &io.ids, &[t, k][..]),
        ("counts", &io.counts, &[e]),
        ("offsets", &io.offsets, &[e + 1]),
        ("perm", &io.perm, &[t * k]),
    ];
    for (arg, v, shape) in ints {
        check::exact_output(OP, arg, v, shape, DType::I32, &mut seen)?;
    }
    if let Some(v) = &io.inverse {
        check::exact_output(OP, "inverse", v, &[t * k], DType::I32, &mut seen)?;
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

/// Checks of [`MoeOps::moe_router_bwd`]; tokens, experts and choices.
pub(crate) fn check_moe_router_bwd(
    dweights: &View<'_>,
    logits: &View<'_>,
    ids: &View<'_>,
    dlogits: &GradMut<'_>,
) -> Result<[usize; 3]> {
    const OP: &str = "moe_router_bwd";
    check::float(OP, "logits", logits)?;
    let ([t, e], [_, k]) = (check::matrix(OP, "logits", logits)?, check::matrix(OP, "ids", ids)?);
    check_choices(OP, e, k, t)?;
    check::exact(OP, "ids", ids, &[t, k], DType::I32)?;
    check::exact(OP, "dweights", dweights, &[t, k], logits.dtype())?;
    let mut seen = vec![("dweights", *dweights), ("logits", *logits), ("ids", *ids)];
    check::exact_output(OP, "dlogits", &dlogits.out, &[t, e], logits.dtype(), &mut seen)?;
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
    let ([t, d], [n, _]) = (check::matrix(op, token_arg, tokens)?, check::matrix(op, row_arg, rows)?);
    check::exact(op, row_arg, rows, &[n, d], tokens.dtype())?;
    let k = n.checked_div(t).unwrap_or(1);
    if n != t.saturating_mul(k) || k == 0 {
        let want = format!("a multiple of {t} rows");
        return Err(GpuError::invalid(op, row_arg, want, format!("{n}")));
    }
    if n > i32::MAX as usize {
        return Err(GpuError::invalid(op, row_arg, "below 2^31 assignments", format!("{n}")));
    }
    check::exact(op, "perm", perm, &[n], DType::I32)?;
    Ok([t, k, d])
}

/// Checks of [`MoeOps::moe_permute`].
pub(crate) fn check_moe_permute(x: &View<'_>, perm: &View<'_>, y: &ViewMut<'_>) -> Result<[usize; 3]> {
    const OP: &str = "moe_permute";
    let size = check_moe_rows(OP, ("x", x), ("y", &y.as_view()), perm)?;
    check::separate_output(OP, "y", y, &[("x", *x), ("perm", *perm)])?;
    Ok(size)
}

/// Checks of [`MoeOps::moe_permute_bwd`].
pub(crate) fn check_moe_permute_bwd(io: &MoePermuteBwd<'_>) -> Result<[usize; 3]> {
    const OP: &str = "moe_permute_bwd";
    let size = check_moe_rows(OP, ("dx", &io.dx.out.as_view()), ("dy", &io.dy), &io.perm)?;
    let mut inputs = vec![("dy", io.dy), ("perm", io.perm)];
    inputs.extend(check_inverse(OP, io.inverse, &io.perm)?);
    check::separate_output(OP, "dx", &io.dx.out, &inputs)?;
    Ok(size)
}

/// The optional inverse of an order, by its name.
fn check_inverse<'a>(
    op: &'static str,
    inverse: Option<View<'a>>,
    perm: &View<'_>,
) -> Result<Option<(&'static str, View<'a>)>> {
    let Some(v) = inverse else { return Ok(None) };
    check::exact(op, "inverse", &v, perm.shape(), DType::I32)?;
    Ok(Some(("inverse", v)))
}

/// Checks of [`MoeOps::moe_unpermute`].
pub(crate) fn check_moe_unpermute(io: &MoeUnpermute<'_>) -> Result<[usize; 3]> {
    const OP: &str = "moe_unpermute";
    let [t, k, d] = check_moe_rows(OP, ("y", &io.y.as_view()), ("x", &io.x), &io.perm)?;
    let k = choices(&io.weights, k, t);
    check::exact(OP, "weights", &io.weights, &[t, k], io.x.dtype())?;
    let mut inputs = vec![("x", io.x), ("perm", io.perm), ("weights", io.weights)];
    inputs.extend(check_inverse(OP, io.inverse, &io.perm)?);
    check::separate_output(OP, "y", &io.y, &inputs)?;
    Ok([t, k, d])
}

/// Without tokens, the weights may have any number of columns.
fn choices(weights: &View<'_>, k: usize, t: usize) -> usize {
    if t == 0 { weights.shape().get(1).copied().unwrap_or(k) } else { k }
}

/// Checks of [`MoeOps::moe_unpermute_bwd`].
pub(crate) fn check_moe_unpermute_bwd(io: &MoeUnpermuteBwd<'_>) -> Result<[usize; 3]> {
    const OP: &str = "moe_unpermute_bwd";
    let [t, k, d] = check_moe_rows(OP, ("dy", &io.dy), ("x", &io.x), &io.perm)?;
    let k = choices(&io.weights, k, t);
    check::exact(OP, "weights", &io.weights, &[t, k], io.x.dtype())?;
    let mut seen = vec![("dy", io.dy), ("x", io.x), ("perm", io.perm), ("weights", io.weights)];
    if let Some(g) = &io.dx {
        check::exact_output(OP, "dx", &g.out, io.x.shape(), io.x.dtype(), &mut seen)?;
    }
    if let Some(g) = &io.dweights {
        check::exact_output(OP, "dweights", &g.out, &[t, k], io.x.dtype(), &mut seen)?;
    }
    Ok([t, k, d])
}
