//! Matrix products.

mod bilinear;
mod products;
mod ragged;

use trefoil::ops::activation::Activation;
use trefoil::ops::gemm::{Gemm, GemmBwd, GemmIo, Precision};

use crate::core::autograd::{BackwardCtx, Saved, compose, out, record};
use crate::core::error::{Result, invalid};
use crate::core::tensor::{Operand, Tensor, same_device, same_dtype};
use crate::functional::elementwise::arithmetic::broadcast;
use crate::functional::operand::whole;

/// Whether products and convolutions can apply this activation themselves.
pub(crate) fn fuses(act: Activation) -> bool {
    use Activation::*;
    matches!(
        act,
        Identity | Relu | LeakyRelu { .. } | Gelu | GeluTanh | Sigmoid | Tanh | Swish { .. } | Hardswish
    )
}

impl Tensor {
    /// Matrix product of two rank-2 tensors, or batches of them in rank 3 (equal batch sizes).
    fn gemm(&self, b: &Tensor, p: Gemm) -> Result<Tensor> {
        let r = self.rank();
        let mut shape = self.shape().to_vec();
        shape[r - 1] = b.shape()[r - 1];
        let y = self.like(&shape)?;
        let (ao, bo, yo) = (self.operand(), b.operand(), y.operand());
        self.device().gemm(&p, GemmIo::new(ao.view()?, bo.view()?, yo.view_mut()?))?;
        Ok(y.record("matmul", &[self, b], || {
            let (a, b) = (Saved::new(self), Saved::new(b));
            move |cx: &mut BackwardCtx<'_>| {
                if cx.create_graph() {
                    let (dy, a, b) = (cx.dy()?.contiguous()?, a.input(cx, 0)?, b.input(cx, 1)?);
                    if cx.needs(0) {
                        cx.give(0, dy.gemm(&b.t()?, p)?)?;
                    }
                    if cx.needs(1) {
                        cx.give(1, a.t()?.gemm(&dy, p)?)?;
                    }
                    return Ok(());
                }
                let (da, db) = (cx.target(0)?, cx.target(1)?);
                let (dy, a, b) = (cx.dy()?.contiguous()?, a.get(cx)?.operand(), b.get(cx)?.operand());
                let dyo = dy.operand();
                let io = GemmBwd::new(dyo.view()?, a.view()?, b.view()?).da(out(&da)?).db(out(&db)?);
                Ok(dy.device().gemm_bwd(&p, io)?)
            }
        }))
    }

    /// Matrix product with NumPy's rules: the last two axes are multiplied, leading axes broadcast, vectors lose the axis they were given.
    /// Oracle `torch.matmul`. Errors: `Invalid` for rank 0, inner sizes that differ, batches that do not broadcast.
    #[doc(alias = "mm")]
    #[doc(alias = "bmm")]
    #[doc(alias = "mv")]
    pub fn matmul(&self, b: &Tensor) -> Result<Tensor> {
        same_device("matmul", self, b)?;
        if self.rank() == 0 || b.rank() == 0 {
            return Err(invalid("matmul", "self", "tensors of rank 1 or more", "a scalar"));
        }
        if self.rank() == 1 {
            return self.unsqueeze(0)?.matmul(b)?.squeeze(if b.rank() == 1 { 0 } else { -2 });
        }
        if b.rank() == 1 {
            return self.matmul(&b.unsqueeze(1)?)?.squeeze(-1);
        }
        let (ar, br) = (self.rank(), b.rank());
        let (m, k) = (self.shape()[ar - 2], self.shape()[ar - 1]);
        let (kb, n) = (b.shape()[br - 2], b.shape()[br - 1]);
        if k != kb {
            let got = format!("{kb} rows in shape {:?}", b.shape());
            return Err(invalid("matmul", "b", format!("{k} rows"), got));
        }
        let p = Gemm::new();
        if br == 2 {
            let rows = self.numel().checked_div(k).unwrap_or_else(|| self.shape()[..ar - 1].iter().product());
            let shape = [&self.shape()[..ar - 1], &[n]].concat();
            return self.reshape(&[rows, k])?.gemm(b, p)?.reshape(&shape);
        }
        let batch = broadcast("matmul", &self.shape()[..ar - 2], &b.shape()[..br - 2])?;
        let count = batch.numel();
        let flat = |t: &Tensor, rows: usize, cols: usize| {
            t.expand(&[&*batch, &[rows, cols]].concat())?.reshape(&[count, rows, cols])?.contiguous()
        };
        let y = flat(self, m, k)?.gemm(&flat(b, k, n)?, p)?;
        y.reshape(&[&*batch, &[m, n]].concat())
    }

    /// Products of all pairs of elements of two vectors, `[m]`, `[n] -> [m, n]`. Errors: other ranks.
    pub fn outer(&self, b: &Tensor) -> Result<Tensor> {
        if (self.rank(), b.rank()) != (1, 1) {
            let got = format!("shapes {:?} and {:?}", self.shape(), b.shape());
            return Err(invalid("outer", "b", "two vectors", got));
        }
        self.unsqueeze(1)?.mul(&b.unsqueeze(0)?)
    }

    /// act(x W^T + b) for x `[.., in]`, W `[out, in]`, b `[out]`: one kernel where the product can apply the activation.
    /// Oracle `torch.nn.functional.linear`. Errors: `Invalid` for rank 0 or sizes that differ.
    pub fn linear(
        &self,
        weight: &Tensor,
        bias: Option<&Tensor>,
        act: Activation,
        precision: Precision,
    ) -> Result<Tensor> {
        same_device("linear", self, weight)?;
        same_dtype("linear", self, weight)?;
        let &[n, k] = weight.shape() else {
            return Err(invalid("linear", "weight", "shape [out, in]", format!("{:?}", weight.shape())));
        };
        if self.shape().last() != Some(&k) {
            return Err(invalid("linear", "x", format!("shape [.., {k}]"), format!("{:?}", self.shape())));
        }
        if !fuses(act) {
            return self.linear(weight, bias, Activation::Identity, precision)?.activation(act);
        }
        let lead = &self.shape()[..self.rank() - 1];
        let rows: usize = lead.iter().product();
        let (x, bias) = (self.reshape(&[rows, k])?, whole(bias)?);
        let bias = bias.as_ref();
        let p = Gemm::new().trans(false, true).act(act).precision(precision);
        let y = self.like(&[rows, n])?;
        let tracked = crate::core::autograd::grad_enabled()
            && (x.requires_grad() || weight.requires_grad() || bias.is_some_and(|b| b.requires_grad()));
        let needs_z = tracked && act != Activation::Identity && !act.reads_output();
        let z = if needs_z { Some(self.like(&[rows, n])?) } else { None };
        let (xo, wo, yo) = (x.operand(), weight.operand(), y.operand());
        let (bo, zo) = (bias.map(Tensor::operand), z.as_ref().map(Tensor::operand));
        let mut io = GemmIo::new(xo.view()?, wo.view()?, yo.view_mut()?);
        io.bias = bo.as_ref().map(|b| b.view()).transpose()?;
        io.z = zo.as_ref().map(|z| z.view_mut()).transpose()?;
        self.device().gemm(&p, io)?;

        let mut inputs = vec![&x, weight];
        inputs.extend(bias);
        let plain = y.clone();
        let y = y.record("linear", &inputs, || {
            let (x, w, bias) = (Saved::new(&x), Saved::new(weight), bias.map(Saved::new));
            let saved = match act {
                Activation::Identity => None,
                _ => Some(Saved::new(z.as_ref().unwrap_or(&plain))),
            };
            move |cx: &mut BackwardCtx<'_>| {
                if cx.create_graph() {
                    let mut at = vec![(0, x.input(cx, 0)?), (1, w.input(cx, 1)?)];
                    if let Some(b) = &bias {
                        at.push((2, b.input(cx, 2)?));
                    }
                    return compose(cx, &at, |t| {
                        let mut y = t[0].gemm(&t[1].t()?, Gemm::new().precision(precision))?;
                        if let Some(b) = t.get(2) {
                            y = y.add(b)?;
                        }
                        Ok(vec![y.activation(act)?])
                    });
                }
                let (dx, dw, db) = (cx.target(0)?, cx.target(1)?, cx.target(2)?);
                let dy = cx.dy()?.contiguous()?;
                let (x, w) = (x.get(cx)?.operand(), w.get(cx)?.operand());
                let saved = match &saved {
                    Some(s) => Some(s.get(cx)?.operand()),
                    None => None,
                };
                let dyo = dy.operand();
                let io = GemmBwd::new(dyo.view()?, x.view()?, w.view()?)
                    .saved(saved.as_ref().map(|s| s.view()).transpose()?)
                    .da(out(&dx)?)
                    .db(out(&dw)?)
                    .dbias(out(&db)?);
                Ok(dy.device().gemm_bwd(&p, io)?)
            }
        });
        y.reshape(&[lead, &[n]].concat())
    }

    /// The products alpha op(a_i) op(b_i) of a list of problems, matrices of any sizes, in one call: only `alpha`, the transposes and the
    /// precision of `p` are used. Floats; each result has its a's dtype. Gradients are such lists too. Errors: `Invalid` for lists of
    /// different length, other ranks, sizes and dtypes that do not fit.
    pub fn gemm_grouped(p: &Gemm, a: &[&Tensor], b: &[&Tensor]) -> Result<Vec<Tensor>> {
        const OP: &str = "gemm_grouped";
        if a.len() != b.len() {
            return Err(invalid(OP, "b", format!("{} matrices", a.len()), format!("{}", b.len())));
        }
        let Some(first) = a.first() else { return Ok(vec![]) };
        for t in a.iter().chain(b) {
            same_device(OP, first, t)?;
            if t.rank() != 2 {
                return Err(invalid(OP, "a", "matrices", format!("shape {:?}", t.shape())));
            }
        }
        let p = Gemm::new().scaled(p.alpha, 0.0).trans(p.trans_a, p.trans_b).precision(p.precision);
        let inputs: Vec<&Tensor> = a.iter().chain(b).copied().collect();
        let outputs = grouped(&p, a, b)?;
        Ok(record(OP, &inputs, outputs, || {
            let saved: Vec<Saved> = inputs.iter().map(|t| Saved::new(t)).collect();
            move |cx: &mut BackwardCtx<'_>| {
                let n = saved.len() / 2;
                let all = saved.iter().map(|s| s.get(cx).cloned()).collect::<Result<Vec<_>>>()?;
                let dy = (0..n).map(|i| cx.dy_at(i)).collect::<Result<Vec<_>>>()?;
                for (of_a, from) in [(true, 0), (false, n)] {
                    let wanted: Vec<usize> = (0..n).filter(|i| cx.needs(from + i)).collect();
                    let dys: Vec<&Tensor> = wanted.iter().map(|&i| &dy[i]).collect();
                    let others: Vec<&Tensor> = wanted.iter().map(|&i| &all[n - from + i]).collect();
                    // Of op(a) op(b): da = dy op(b)^T and db = op(a)^T dy, transposed where the operand is stored so.
                    let grads = match (of_a, p.trans_a, p.trans_b) {
                        (true, false, tb) => grouped(&p.trans(false, !tb), &dys, &others)?,
                        (true, true, tb) => grouped(&p.trans(tb, true), &others, &dys)?,
                        (false, ta, false) => grouped(&p.trans(!ta, false), &others, &dys)?,
                        (false, ta, true) => grouped(&p.trans(true, ta), &dys, &others)?,
                    };
                    for (i, g) in wanted.into_iter().zip(grads) {
                        cx.give(from + i, g)?;
                    }
                }
                Ok(())
            }
        }))
    }
}

/// The products of a list, outside of the graph.
fn grouped(p: &Gemm, a: &[&Tensor], b: &[&Tensor]) -> Result<Vec<Tensor>> {
    let size = |t: &Tensor, trans: bool, at: usize| t.shape()[if trans { 1 - at } else { at }];
    let Some(device) = a.first().map(|t| t.device().clone()) else { return Ok(vec![]) };
    let y = a.iter().zip(b).map(|(a, b)| a.like(&[size(a, p.trans_a, 0), size(b, p.trans_b, 1)]));
    let y = y.collect::<Result<Vec<_>>>()?;
    let [ao, bo] = [a, b].map(|list| list.iter().map(|t| t.operand()).collect::<Vec<_>>());
    let yo: Vec<_> = y.iter().map(Tensor::operand).collect();
    let av = ao.iter().map(Operand::view).collect::<Result<Vec<_>>>()?;
    let bv = bo.iter().map(Operand::view).collect::<Result<Vec<_>>>()?;
    let mut yv = yo.iter().map(Operand::view_mut).collect::<Result<Vec<_>>>()?;
    device.gemm_grouped(p, &av, &bv, &mut yv)?;
    Ok(y)
}
