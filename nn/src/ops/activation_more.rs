//! Activations with parameters, and of vectors.

use trefoil::ops::Reduce;

use crate::autograd::{BackwardCtx, Saved, out};
use crate::error::Result;
use crate::tensor::{Tensor, axis, same_device};

impl Tensor {
    /// x where it is above 0, else a slope times x: one slope `[1]`, or one per channel `[C]` of axis 1. Oracle
    /// `torch.nn.functional.prelu`. Errors: `Invalid` for another number of slopes.
    pub fn prelu(&self, slope: &Tensor) -> Result<Tensor> {
        same_device("prelu", self, slope)?;
        let (x, a) = (self.contiguous()?, slope.contiguous()?);
        let y = self.like(self.shape())?;
        self.device().prelu(x.operand().view()?, a.operand().view()?, y.operand().view_mut()?)?;
        Ok(y.record("prelu", &[&x, &a], || {
            let (x, a) = (Saved::new(&x), Saved::new(&a));
            move |cx: &mut BackwardCtx<'_>| {
                let (dx, da) = (cx.target(0)?, cx.target(1)?);
                let dy = cx.dy()?.contiguous()?;
                let (x, a, dyo) = (x.get(cx)?.operand(), a.get(cx)?.operand(), dy.operand());
                Ok(dy.device().prelu_bwd(dyo.view()?, x.view()?, a.view()?, out(&dx)?, out(&da)?)?)
            }
        }))
    }

    /// s |s| / (1 + |s|^2) of the vectors s along an axis, whose length becomes at most 1 (Sabour et al., 2017); 0 with gradient 0 for s = 0.
    pub fn squash(&self, along: isize) -> Result<Tensor> {
        let at = [axis("squash", along, self.rank())? as isize];
        let norm = self.reduce(Reduce::Norm { p: 2.0 }, &at, true)?;
        self.mul(&norm.div(&norm.square()?.add_scalar(1.0)?)?)
    }
}
