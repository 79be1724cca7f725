//! Attention.

use trefoil::ops::{Attention, AttentionBwd, AttentionIo, AttentionMask, Causal};
use trefoil_nn::{Device, Tensor};

use super::case::Case;
use super::ops::{randoms, sets, work};
use super::timing::Prepared;
use crate::error::Result;

/// A case ready to run; `None` if it is none of these operations.
pub(super) fn prepare(c: &Case, d: &Device) -> Result<Option<Prepared>> {
    if c.op() != "attention" {
        return Ok(None);
    }
    let (b, hq, hkv, t) = (c.size("b")?, c.size("hq")?, c.size("hkv")?, c.dtype()?);
    let (sq, sk, head) = (c.size("sq")?, c.size("sk")?, c.size("d")?);
    let mut p = Attention::new();
    if c.flag("causal") {
        p = p.causal(Causal::TopLeft);
    }
    let (qs, ks) = ([b, hq, sq, head], [b, hkv, sk, head]);
    let (nq, nk) = (b * hq * sq * head * t.size(), b * hkv * sk * head * t.size());
    let s = sets(2 * nq + 2 * nk);
    let (q, k, v) = (randoms(d, t, &qs, s, 1)?, randoms(d, t, &ks, s, 2)?, randoms(d, t, &ks, s, 3)?);
    let up = randoms(d, t, &qs, s, 4)?;
    // The backward reads the results of its own set.
    let make = |dtype, shape: &[usize]| -> Result<Vec<Tensor>> {
        (0..s).map(|_| Ok(Tensor::empty(d, dtype, shape)?)).collect()
    };
    let (o, lse) = (make(t, &qs)?, make(t.accumulator(), &qs[..3])?);
    let (dq, dk, dv) = (Tensor::empty(d, t, &qs)?, Tensor::empty(d, t, &ks)?, Tensor::empty(d, t, &ks)?);
    let queue = {
        let (d, q, k, v, o, lse) = (d.clone(), q.clone(), k.clone(), v.clone(), o.clone(), lse.clone());
        move |i: usize| -> Result<()> {
            let i = i % s;
            let (q, k, v) = (q[i].operand(), k[i].operand(), v[i].operand());
            let (o, l) = (o[i].operand(), lse[i].operand());
            let mut io = AttentionIo::new(q.view()?, k.view()?, v.view()?, o.view_mut()?);
            io.lse = Some(l.view_mut()?);
            Ok(d.attention(&p, io)?)
        }
    };
    (0..s).try_for_each(&queue)?;
    // Two products of 2 * sq * sk * d each, half of them masked if causal; the backward has five.
    let flops = 4.0
        * (b * hq) as f64
        * sq as f64
        * sk as f64
        * head as f64
        * if c.flag("causal") { 0.5 } else { 1.0 };
    let fwd = work(2 * nq + 2 * nk, flops, queue);
    let d = d.clone();
    let bwd = work(4 * nq + 4 * nk, 2.5 * flops, move |i| {
        let i = i % s;
        let (g, q, k, v) = (up[i].operand(), q[i].operand(), k[i].operand(), v[i].operand());
        let (o, l) = (o[i].operand(), lse[i].operand());
        let (dq, dk, dv) = (dq.operand(), dk.operand(), dv.operand());
        let io = AttentionBwd {
            dout: g.view()?,
            q: q.view()?,
            k: k.view()?,
            v: v.view()?,
            o: o.view()?,
            lse: l.view()?,
            mask: AttentionMask::new(),
            dq: Some(dq.grad(false)?),
            dk: Some(dk.grad(false)?),
            dv: Some(dv.grad(false)?),
            dbias: None,
        };
        Ok(d.attention_bwd(&p, io)?)
    });
    Ok(Some(Prepared { fwd, bwd: Some(bwd) }))
}
