//! Language models: rotary embedding, vocabulary loss, mixture of experts.

mod sampling;

pub use self::sampling::*;

use crate::ops::check;
use crate::ops::loss::Reduction;
use crate::buffer::{GradMut, View, ViewMut};
use crate::error::{GpuError, Result};

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

io_struct! {
    /// Operands of [`LanguageModelOps::fused_linear_cross_entropy`]; contiguous.
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
}

io_struct! {
    /// Operands of [`LanguageModelOps::fused_linear_cross_entropy_bwd`]; contiguous.
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
}

op_family! {
    /// Language models. Deterministic; f32, f16, bf16 and f64 data.
    pub trait LanguageModelOps : LanguageModel => LANGUAGE_MODEL_OPS {
        /// Cross entropy (plus z_loss * LSE^2) of z = cap(h w^T + b), with at most `chunk` rows of z in memory. A class id outside [0, V) that is not
        /// `ignore_index` is `IndexOutOfRange` and does not count. Mean over nothing is NaN. Oracle `F.cross_entropy(F.linear(h, w, b), target)`.
        fn fused_linear_cross_entropy(&self, p: &LinearCrossEntropy, io: LinearCrossEntropyFwd<'_>) -> Result<()>;
        /// Gradients of [`LanguageModelOps::fused_linear_cross_entropy`], from its operands alone: logits are computed again, chunk by chunk. dz passes through
        /// the storage type; gradients of weights and bias are summed over the chunks in f32.
        fn fused_linear_cross_entropy_bwd(&self, p: &LinearCrossEntropy, io: LinearCrossEntropyBwd<'_>) -> Result<()>;
    }
}

type Named<'a> = (&'static str, View<'a>);

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
    let ([n, d], [v, _]) = (check::matrix(op, "h", h)?, check::matrix(op, "w", w)?);
    check::exact(op, "w", w, &[v, d], h.dtype())?;
    if v == 0 {
        return Err(GpuError::invalid(op, "w", "at least one class", "none"));
    }
    let mut seen = vec![("h", *h), ("w", *w), ("target", *target)];
    if let Some(b) = b {
        check::exact(op, "b", b, &[v], h.dtype())?;
        seen.push(("b", *b));
    }
    check::contiguous(op, "target", target)?;
    if target.dtype().is_index() {
        check::shape(op, "target", target, &[n])?;
    } else {
        check::exact(op, "target", target, &[n, v], h.dtype())?;
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

/// Checks of [`LanguageModelOps::fused_linear_cross_entropy`]; rows, hidden size and classes.
pub(crate) fn check_linear_cross_entropy(
    p: &LinearCrossEntropy,
    io: &LinearCrossEntropyFwd<'_>,
) -> Result<[usize; 3]> {
    const OP: &str = "fused_linear_cross_entropy";
    let (size, mut seen) = check_linear(OP, p, &io.h, &io.w, io.b.as_ref(), &io.target)?;
    let acc = io.h.dtype().accumulator();
    if p.reduction == Reduction::None {
        check::exact_output(OP, "loss", &io.loss, &size[..1], io.h.dtype(), &mut seen)?;
    } else {
        crate::ops::loss::one_element(OP, "loss", &io.loss.as_view(), &[acc])?;
        check::separate_output(OP, "loss", &io.loss, &seen)?;
        seen.push(("loss", io.loss.as_view()));
    }
    if let Some(l) = &io.lse {
        check::exact_output(OP, "lse", l, &size[..1], acc, &mut seen)?;
    }
    Ok(size)
}

/// Checks of [`LanguageModelOps::fused_linear_cross_entropy_bwd`]; rows, hidden size and classes.
pub(crate) fn check_linear_cross_entropy_bwd(
    p: &LinearCrossEntropy,
    io: &LinearCrossEntropyBwd<'_>,
) -> Result<[usize; 3]> {
    const OP: &str = "fused_linear_cross_entropy_bwd";
    let (size, mut seen) = check_linear(OP, p, &io.h, &io.w, io.b.as_ref(), &io.target)?;
    let dtype = io.h.dtype();
    if p.reduction == Reduction::None {
        check::exact(OP, "gy", &io.gy, &size[..1], dtype)?;
    } else {
        crate::ops::loss::one_element(OP, "gy", &io.gy, &[dtype.accumulator(), dtype])?;
    }
    seen.push(("gy", io.gy));
    let [n, d, v] = size;
    for (arg, g, shape) in [("dh", &io.dh, &[n, d][..]), ("dw", &io.dw, &[v, d]), ("db", &io.db, &[v])] {
        if let Some(g) = g {
            check::exact_output(OP, arg, &g.out, shape, dtype, &mut seen)?;
        }
    }
    Ok(size)
}
