//! What each kind of layer computes.

use trefoil::DType;
use trefoil::ops::activation::Activation;
use trefoil::ops::attention::{Attention, Causal, Rope};
use trefoil::ops::conv::Conv;
use trefoil::ops::gemm::Precision;
use trefoil::ops::norm::RowNorm;
use trefoil::ops::rnn::{Recurrence, RnnCell};

use super::LoomLayer;
use crate::core::autograd::no_grad;
use crate::core::error::{NnError, Result, invalid};
use crate::core::tensor::Tensor;
use crate::functional::{RnnParams, ScaledDotProductAttention, sparsemax_support};
use crate::interop::loom::plan::{Act, Combine, Heads, SoftmaxPlan, Window, times};
use crate::module::{Layer, hooks};

impl LoomLayer {
    fn param(&self, i: usize) -> Tensor {
        self.params[i].1.get()
    }

    /// A projection whose weight is parameter `i` and whose bias is the next.
    pub(super) fn project(&self, x: &Tensor, i: usize, act: Activation) -> Result<Tensor> {
        x.linear(&self.param(i), Some(&self.param(i + 1)), act, Precision::Ieee)
    }

    pub(super) fn conv(&self, x: &Tensor, w: &Window, act: &Act) -> Result<Tensor> {
        let batch = x.shape()[0];
        // A sequence whose length the file does not determine.
        let free = [x.shape()[1] / w.channels];
        let size = if w.size.is_empty() { &free[..] } else { &w.size };
        let x = x.reshape(&[&[batch, w.channels][..], size].concat())?;
        let mut p = Conv::new().pad(w.padding).act(act.act);
        // One window for all places: the next one would start behind the input.
        let only = w.size.iter().max().copied().unwrap_or(1) + 2 * w.padding;
        p = p.stride(if w.fixed { only } else { w.stride });
        let mut y = x.conv(&self.param(0), Some(&self.param(1)), &p)?;
        if w.fixed {
            y = y.expand(&[&[batch, w.filters][..], &w.out].concat())?.contiguous()?;
        }
        flat(&scaled(y, act.scale)?, batch)
    }

    pub(super) fn recurrence(&self, cell: RnnCell, x: &Tensor, [input, steps]: [usize; 2]) -> Result<Tensor> {
        let batch = x.shape()[0];
        let weights =
            RnnParams { w_ih: self.param(0), w_hh: self.param(1), b_ih: Some(self.param(2)), b_hh: None };
        let how = Recurrence::new().batch_first(true);
        let (y, _) = x.reshape(&[batch, steps, input])?.rnn(cell, &how, &weights, None, None)?;
        flat(&y, batch)
    }

    pub(super) fn attention(&self, x: &Tensor, h: &Heads) -> Result<Tensor> {
        let batch = x.shape()[0];
        let joined = if h.empty {
            Tensor::zeros(x.device(), x.dtype(), &[x.numel() / h.d, h.d])?
        } else {
            let sequences = if h.one_sequence { 1 } else { batch };
            let len = x.numel() / h.d / sequences.max(1);
            let x = x.reshape(&[sequences, len, h.d])?;
            let heads = |i: usize, n: usize| {
                self.project(&x, i, Activation::Identity)?.reshape(&[sequences, len, n, h.head_dim])
            };
            let rope = |t: Tensor| match h.head_dim {
                1 => t.transpose(1, 2),
                _ => t.rope(&Rope::new().base(h.base), None)?.transpose(1, 2),
            };
            let (q, k) = (rope(heads(0, h.heads)?)?, rope(heads(2, h.kv_heads)?)?);
            let v = heads(4, h.kv_heads)?.transpose(1, 2)?;
            let how = Attention::new().causal(Causal::TopLeft);
            ScaledDotProductAttention::with(how).forward(&q, &k, &v)?.merge_heads()?
        };
        let y = if h.projected { self.project(&joined, 6, Activation::Identity)? } else { joined };
        flat(&y, batch)
    }

    pub(super) fn norm(&self, x: &Tensor, n: usize, p: &RowNorm, rows: Option<usize>) -> Result<Tensor> {
        let (batch, all) = (x.shape()[0], x.numel() / n);
        let bias = if p.rms { None } else { Some(self.param(1)) };
        let x = x.reshape(&[all, n])?;
        let y = match rows.filter(|r| *r < all) {
            None => x.row_norm(p, Some(&self.param(0)), bias.as_ref())?,
            Some(rows) => {
                let y = x.narrow(0, 0, rows)?.row_norm(p, Some(&self.param(0)), bias.as_ref())?;
                let rest = Tensor::zeros(x.device(), x.dtype(), &[all - rows, n])?;
                Tensor::concat(0, &[&y, &rest])?
            }
        };
        flat(&y, batch)
    }

    pub(super) fn softmax(&self, x: &Tensor, plan: &SoftmaxPlan) -> Result<Tensor> {
        match plan {
            SoftmaxPlan::Kind(_) => match &self.softmax {
                Some(s) => s.forward(x),
                None => x.softmax(-1),
            },
            SoftmaxPlan::CutGrid { rows, cols, temperature } => {
                let (batch, n, used) = (x.shape()[0], x.shape()[1], times(*rows, &[*cols]));
                if used > n {
                    let want = format!("at least {used} elements of a sample");
                    return Err(invalid("Softmax", "x", want, format!("{n}")));
                }
                let y = x.narrow(1, 0, used)?.mul_scalar(1.0 / temperature)?;
                let y = y.reshape(&[batch, *rows, *cols])?.softmax(-1)?.reshape(&[batch, used])?;
                let rest = Tensor::zeros(x.device(), x.dtype(), &[batch, n - used])?;
                Tensor::concat(1, &[&y, &rest])
            }
            SoftmaxPlan::SparseBug => sparse_bug(x),
            SoftmaxPlan::Blend { weight, bug } => {
                let sparse = if *bug { sparse_bug(x)? } else { x.sparsemax(-1)? };
                let y = x.softmax(-1)?.mul_scalar(1.0 - weight)?.add(&sparse.mul_scalar(*weight)?)?;
                y.div(&y.sum_axes(&[-1], true)?)
            }
        }
    }

    pub(super) fn embedding(&self, ids: &Tensor, vocab: usize) -> Result<Tensor> {
        let batch = ids.shape()[0];
        let table = self.param(0);
        if ids.dtype().is_index() {
            return flat(&table.embedding(ids, &Default::default())?, batch);
        }
        // Numbers truncated towards zero; a row of zeros for what the table does not have.
        let (at, inside) = no_grad(|| {
            let at = ids.detach().unary(trefoil::ops::elementwise::Unary::Trunc)?;
            let bound = |v: f64| Tensor::full(ids.device(), ids.dtype(), &[], v);
            let limited = at.clamp(Some(0.0), Some(vocab as f64 - 1.0))?;
            let inside = at.eq(&limited)?.to_dtype(table.dtype())?;
            // NaN is in no row.
            let safe = limited.where_(&limited.ge(&bound(0.0)?)?, &bound(0.0)?)?;
            Ok::<_, NnError>((safe.to_dtype(DType::I32)?, inside))
        })?;
        let rows = table.embedding(&at, &Default::default())?;
        flat(&rows.mul(&inside.unsqueeze(-1)?)?, batch)
    }

    pub(super) fn combine(&self, x: &Tensor, combine: &Combine) -> Result<Tensor> {
        let batch = x.shape()[0];
        let run = |(i, c): (usize, &LoomLayer)| hooks::layer(&format!("branches.{i}"), c, x);
        let ys = self.children.iter().enumerate().map(run).collect::<Result<Vec<_>>>()?;
        match combine {
            Combine::Concat { batch_major: false } => Tensor::concat(1, &ys.iter().collect::<Vec<_>>()),
            Combine::Concat { batch_major: true } => {
                let flat = ys.iter().map(|y| y.reshape(&[y.numel()])).collect::<Result<Vec<_>>>()?;
                let all = Tensor::concat(0, &flat.iter().collect::<Vec<_>>())?;
                all.reshape(&[batch, all.numel() / batch.max(1)])
            }
            Combine::Add => self.sum(ys),
            Combine::Mean => {
                let n = ys.len() as f64;
                self.sum(ys)?.mul_scalar(1.0 / n)
            }
            Combine::Grid(order) => {
                let cells: Vec<&Tensor> = order.iter().filter_map(|&i| ys.get(i)).collect();
                Tensor::concat(1, &cells)
            }
            Combine::Filter => {
                let wide = ys.iter().map(|y| y.shape()[1]).max().unwrap_or(0);
                let n = ys.len() as f64;
                let padded = ys.into_iter().map(|y| {
                    let rest = wide - y.shape()[1];
                    if rest == 0 {
                        return Ok(y);
                    }
                    let zeros = Tensor::zeros(y.device(), y.dtype(), &[batch, rest])?;
                    Tensor::concat(1, &[&y, &zeros])
                });
                self.sum(padded.collect::<Result<_>>()?)?.mul_scalar(1.0 / n)
            }
        }
    }

    fn sum(&self, ys: Vec<Tensor>) -> Result<Tensor> {
        let mut all = ys.into_iter();
        let Some(first) = all.next() else {
            return Err(invalid("parallel", "branches", "at least one", "none"));
        };
        all.try_fold(first, |sum, y| {
            if sum.shape() != y.shape() {
                let (want, got) =
                    (format!("branches of shape {:?}", sum.shape()), format!("{:?}", y.shape()));
                return Err(invalid("parallel", "branches", want, got));
            }
            sum.add(&y)
        })
    }
}

/// `[batch, everything else]`.
pub(super) fn flat(t: &Tensor, batch: usize) -> Result<Tensor> {
    t.reshape(&[batch, t.numel() / batch.max(1)])
}

pub(super) fn scaled(t: Tensor, by: f64) -> Result<Tensor> {
    if by == 1.0 { Ok(t) } else { t.mul_scalar(by) }
}

/// Sparsemax whose threshold counts each of the k kept values twice: max(x - (2 (x_1 + .. + x_k) - 1) / k, 0). Which values are kept is not
/// differentiated, as in sparsemax.
fn sparse_bug(x: &Tensor) -> Result<Tensor> {
    let (k, kept) = no_grad(|| {
        let (k, sum) = sparsemax_support(x, x.rank() - 1)?;
        let tau = sum.add_scalar(-1.0)?.div(&k)?;
        Ok::<_, NnError>((k, x.detach().gt(&tau)?.to_dtype(x.dtype())?))
    })?;
    let sum = x.mul(&kept)?.sum_axes(&[-1], true)?;
    x.sub(&sum.mul_scalar(2.0)?.add_scalar(-1.0)?.div(&k)?)?.relu()
}
