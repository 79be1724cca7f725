//! Embedding: signatures and checks.

use crate::ops::check;
use crate::ops::shape::check_mode;
use crate::buffer::{GradMut, View, ViewMut};
use crate::dtype::DType;
use crate::error::{GpuError, Result};

/// Parameters of [`EmbeddingOps::embedding_bwd`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct EmbeddingGrad {
    /// Row of the table that gets no gradient; a negative number counts from the end.
    pub padding_idx: Option<i64>,
    /// Divide the gradient of a row by the number of ids that name it.
    pub scale_grad_by_freq: bool,
}

impl EmbeddingGrad {
    /// No padding row, plain sums.
    pub const fn new() -> Self {
        EmbeddingGrad { padding_idx: None, scale_grad_by_freq: false }
    }

    /// Sets the padding row.
    pub const fn padding_idx(mut self, row: Option<i64>) -> Self {
        self.padding_idx = row;
        self
    }

    /// Sets whether gradients are means instead of sums.
    pub const fn scale_grad_by_freq(mut self, on: bool) -> Self {
        self.scale_grad_by_freq = on;
        self
    }
}

op_family! {
    /// Table lookup and its gradient. `ids` are i32 or i64 of any shape, tables are [V, D]; all operands are contiguous. An id outside [0, V)
    /// gives a row of zeros, takes part in no gradient and is `IndexOutOfRange` at the next waiting call. Deterministic.
    /// Reference: `torch.nn.functional.embedding`.
    pub trait EmbeddingOps : Embedding => EMBEDDING_OPS {
        /// `y[.., :] = table[ids[..], :]`, exact; y has the shape of `ids` followed by D and the table's dtype (any dtype). `padding_idx` does
        /// not change the result; it is checked to name a row (negative: from the end), as PyTorch does. Nothing is saved but the ids.
        fn embedding(&self, padding_idx: Option<i64>, ids: View<'_>, table: View<'_>, y: ViewMut<'_>) -> Result<()>;
        /// Rescales, in place, the rows that `ids` name and whose `norm_type`-norm (p > 0, or infinity) exceeds `max_norm`:
        /// `row *= max_norm / (norm + 1e-7)`, once per row however often it is named. The table is f32, f16, bf16 or f64; the norm is summed in
        /// f32 (f64). Oracle `F.embedding(ids, table, max_norm=, norm_type=)`, which does this before the lookup.
        fn embedding_renorm(&self, max_norm: f64, norm_type: f64, ids: View<'_>, table: ViewMut<'_>) -> Result<()>;
        /// `dtable[v] = sum of dy[i] over all i with ids[i] = v`, in the order of i; rows that no id names, and the padding row, are 0. dy has
        /// the shape of `ids` followed by D. The ids are sorted, so the cost is O(n log V + n D + V D).
        fn embedding_bwd(&self, p: &EmbeddingGrad, dy: View<'_>, ids: View<'_>, dtable: GradMut<'_>) -> Result<()>;
    }
}

/// The padding row as a number below `rows`.
pub(crate) fn padding_row(op: &'static str, padding_idx: Option<i64>, rows: usize) -> Result<Option<usize>> {
    let Some(p) = padding_idx else { return Ok(None) };
    let at = if p < 0 { p.checked_add(rows as i64) } else { Some(p) };
    match at.and_then(|a| usize::try_from(a).ok()).filter(|&a| a < rows) {
        Some(a) => Ok(Some(a)),
        None => {
            Err(GpuError::invalid(op, "padding_idx", format!("a row of the table's {rows}"), format!("{p}")))
        }
    }
}

/// A table of rank 2, ids, and rows of it in the shape of the ids.
fn check_lookup(
    op: &'static str,
    ids: &View<'_>,
    table: (&'static str, &View<'_>),
    rows: Option<(&'static str, &View<'_>)>,
) -> Result<()> {
    check::one_of(op, "ids", ids, &[DType::I32, DType::I64])?;
    check::contiguous(op, "ids", ids)?;
    let &[_, width] = table.1.shape() else {
        return Err(GpuError::invalid(op, table.0, "rank 2", format!("shape {:?}", table.1.shape())));
    };
    check::contiguous(op, table.0, table.1)?;
    let Some((arg, v)) = rows else { return Ok(()) };
    let want: Vec<usize> = ids.shape().iter().copied().chain([width]).collect();
    check::shape(op, arg, v, &want)?;
    check::dtype(op, arg, v, table.1.dtype())?;
    check::contiguous(op, arg, v)
}

/// Checks of [`EmbeddingOps::embedding`].
pub(crate) fn check_embedding(
    padding_idx: Option<i64>,
    ids: &View<'_>,
    table: &View<'_>,
    y: &ViewMut<'_>,
) -> Result<()> {
    const OP: &str = "embedding";
    check_lookup(OP, ids, ("table", table), Some(("y", &y.as_view())))?;
    padding_row(OP, padding_idx, table.shape()[0])?;
    check::separate_output(OP, "y", y, &[("ids", *ids), ("table", *table)])
}

/// Checks of [`EmbeddingOps::embedding_renorm`].
pub(crate) fn check_embedding_renorm(
    max_norm: f64,
    norm_type: f64,
    ids: &View<'_>,
    table: &ViewMut<'_>,
) -> Result<()> {
    const OP: &str = "embedding_renorm";
    let v = table.as_view();
    check::float(OP, "table", &v)?;
    check_lookup(OP, ids, ("table", &v), None)?;
    // NaN is refused too.
    if !matches!(max_norm.partial_cmp(&0.0), Some(std::cmp::Ordering::Greater | std::cmp::Ordering::Equal)) {
        return Err(GpuError::invalid(OP, "max_norm", "a number of at least 0", format!("{max_norm}")));
    }
    if norm_type.partial_cmp(&0.0) != Some(std::cmp::Ordering::Greater) {
        return Err(GpuError::invalid(OP, "norm_type", "a number above 0", format!("{norm_type}")));
    }
    check::separate_output(OP, "table", table, &[("ids", *ids)])
}

/// Checks of [`EmbeddingOps::embedding_bwd`]; the padding row.
pub(crate) fn check_embedding_bwd(
    p: &EmbeddingGrad,
    dy: &View<'_>,
    ids: &View<'_>,
    dtable: &GradMut<'_>,
) -> Result<Option<usize>> {
    const OP: &str = "embedding_bwd";
    let v = dtable.out.as_view();
    check::float(OP, "dtable", &v)?;
    check_lookup(OP, ids, ("dtable", &v), Some(("dy", dy)))?;
    check_mode(OP, "dtable", dtable)?;
    let padding = padding_row(OP, p.padding_idx, v.shape()[0])?;
    check::separate_output(OP, "dtable", &dtable.out, &[("dy", *dy), ("ids", *ids)])?;
    Ok(padding)
}
