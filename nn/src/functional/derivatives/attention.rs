//! Attention as a composition with the matrix of scores in memory.

use trefoil::DType;
use trefoil::ops::attention::{Attention, Causal};

use super::elementwise::indicator;
use crate::core::error::Result;
use crate::core::tensor::Tensor;

/// Which keys a query sees, apart from what the options say.
pub(crate) struct Hidden<'a> {
    pub(crate) mask: Option<&'a Tensor>,
    pub(crate) key_lengths: Option<&'a Tensor>,
}

/// Keys or values of fewer heads, each repeated for the query heads that read it.
fn for_each_query(t: &Tensor, heads: usize) -> Result<Tensor> {
    let times = heads.checked_div(t.shape()[1]).unwrap_or(1);
    if times == 1 { Ok(t.clone()) } else { t.repeat_interleave(1, times) }
}

/// A u8 mask that broadcasts to `[B, H, Lq, Lk]`; none where every key is seen.
fn visible(p: &Attention<'_>, q: &Tensor, lk: usize, hidden: &Hidden<'_>) -> Result<Option<Tensor>> {
    let (device, lq) = (q.device(), q.shape()[2]);
    let j = Tensor::arange(device, DType::I64, 0.0, 1.0, lk)?.reshape(&[1, lk])?;
    let moved = match p.causal {
        Some(Causal::BottomRight) => lk as f64 - lq as f64,
        _ => 0.0,
    };
    let ahead = || {
        let here = Tensor::arange(device, DType::I64, moved, 1.0, lq)?.reshape(&[lq, 1])?;
        j.sub(&here)
    };
    let mut parts = vec![];
    if p.causal.is_some() {
        parts.push(ahead()?.le_scalar(0.0)?);
    }
    if let [Some(left), _] = p.window {
        parts.push(ahead()?.ge_scalar(-(left as f64))?);
    }
    if let [_, Some(right)] = p.window {
        parts.push(ahead()?.le_scalar(right as f64)?);
    }
    if let Some(m) = hidden.mask {
        parts.push(m.ne_scalar(0.0)?);
    }
    if let Some(n) = hidden.key_lengths {
        let n = n.to_dtype(DType::I64)?.reshape(&[n.numel(), 1, 1, 1])?;
        parts.push(j.lt(&n)?);
    }
    let mut all: Option<Tensor> = None;
    for part in parts {
        all = Some(match all {
            Some(a) => a.logical_and(&part)?,
            None => part,
        });
    }
    Ok(all)
}

/// softmax(scale Q K^T + bias) V over the visible keys, without dropout and packed sequences.
pub(crate) fn composed(
    p: &Attention<'_>,
    [q, k, v]: [&Tensor; 3],
    bias: Option<&Tensor>,
    hidden: &Hidden<'_>,
) -> Result<Tensor> {
    let (heads, width, lk) = (q.shape()[1], q.shape()[3], k.shape()[2]);
    let (k, v) = (for_each_query(k, heads)?, for_each_query(v, heads)?);
    let scale = p.scale.unwrap_or(1.0 / (width as f64).sqrt());
    let mut s = q.matmul(&k.t()?)?.mul_scalar(scale)?;
    if p.softcap > 0.0 {
        s = s.mul_scalar(1.0 / p.softcap)?.tanh()?.mul_scalar(p.softcap)?;
    }
    if let Some(b) = bias {
        s = s.add(b)?;
    }
    let Some(seen) = visible(p, q, lk, hidden)? else { return s.softmax(-1)?.matmul(&v) };
    let seen = seen.expand(s.shape())?.contiguous()?;
    // Finite, so that a query that sees nothing has no NaN; its weights become 0 afterwards.
    let low = if q.dtype() == DType::F16 { -3e4 } else { -1e30 };
    let hidden = Tensor::full(q.device(), q.dtype(), &[], low)?;
    s.where_(&seen, &hidden)?.softmax(-1)?.mul(&indicator(&seen, &s)?)?.matmul(&v)
}
