//! Matrix products.

use trefoil::ops::activation::Activation;
use trefoil::ops::gemm::{Gemm, GemmBwd, GemmIo, Precision};

use crate::core::autograd::{BackwardCtx, Saved, out};
use crate::core::error::{Result, invalid};
use crate::core::tensor::{Tensor, same_device};
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
            let (x, w) = (Saved::new(&x), Saved::new(weight));
            let saved = match act {
                Activation::Identity => None,
                _ => Some(Saved::new(z.as_ref().unwrap_or(&plain))),
            };
            move |cx: &mut BackwardCtx<'_>| {
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
}
