//! Gated units.

use trefoil::ops::{Activation, GatedGrad, GatedInput};

use crate::autograd::{BackwardCtx, Saved, out};
use crate::error::Result;
use crate::tensor::{Tensor, axis, same_device};

impl Tensor {
    /// The first half of an axis times act(the second half), `torch.nn.functional.glu` for sigmoid (Shazeer, 2020): `[.., 2 n, ..] -> [..,
    /// n, ..]`. Errors: `Invalid` for an odd size, or an activation that the kernel does not fuse.
    pub fn glu(&self, act: Activation, along: isize) -> Result<Tensor> {
        let at = axis("glu", along, self.rank())?;
        let x = self.contiguous()?;
        let mut shape = self.shape().to_vec();
        shape[at] /= 2;
        let y = self.like(&shape)?;
        let (xo, yo) = (x.operand(), y.operand());
        let halves = GatedInput::Halves { x: xo.view()?, axis: at, gate_first: false };
        self.device().gated(act, halves, yo.view_mut()?)?;
        Ok(y.record("glu", &[&x], || {
            let x = Saved::new(&x);
            move |cx: &mut BackwardCtx<'_>| {
                let Some(dx) = cx.target(0)? else { return Ok(()) };
                let (dy, x) = (cx.dy()?.contiguous()?, x.get(cx)?.operand());
                let halves = GatedInput::Halves { x: x.view()?, axis: at, gate_first: false };
                let dyo = dy.operand();
                Ok(dy.device().gated_bwd(act, dyo.view()?, halves, GatedGrad::Halves(dx.out()?))?)
            }
        }))
    }

    /// This tensor times act(gate), of one shape.
    pub fn gated_by(&self, gate: &Tensor, act: Activation) -> Result<Tensor> {
        same_device("gated", self, gate)?;
        let (up, gate) = (self.contiguous()?, gate.contiguous()?);
        let y = self.like(self.shape())?;
        let (uo, go, yo) = (up.operand(), gate.operand(), y.operand());
        self.device().gated(act, GatedInput::Two { gate: go.view()?, up: uo.view()? }, yo.view_mut()?)?;
        Ok(y.record("gated", &[&up, &gate], || {
            let (up, gate) = (Saved::new(&up), Saved::new(&gate));
            move |cx: &mut BackwardCtx<'_>| {
                let (du, dg) = (cx.target(0)?, cx.target(1)?);
                let dy = cx.dy()?.contiguous()?;
                let (up, gate, dyo) = (up.get(cx)?.operand(), gate.get(cx)?.operand(), dy.operand());
                let input = GatedInput::Two { gate: gate.view()?, up: up.view()? };
                let grads = GatedGrad::Two { gate: out(&dg)?, up: out(&du)? };
                Ok(dy.device().gated_bwd(act, dyo.view()?, input, grads)?)
            }
        }))
    }
}
