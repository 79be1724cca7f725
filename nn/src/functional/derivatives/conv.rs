//! Convolution as a bilinear map: its two gradients are bilinear too, and each is differentiated by the others.

use trefoil::ops::conv::{Conv, ConvBwd, ConvIo};

use crate::core::autograd::{BackwardCtx, Saved};
use crate::core::error::Result;
use crate::core::tensor::Tensor;

/// A convolution without epilogue, and shapes of what it takes.
#[derive(Debug, Clone)]
pub(crate) struct Bilinear {
    pub(crate) op: &'static str,
    pub(crate) p: Conv,
    pub(crate) transposed: bool,
    /// Of input, weight and result.
    pub(crate) shapes: [Vec<usize>; 3],
}

impl Bilinear {
    /// y of x and w.
    pub(crate) fn output(&self, x: &Tensor, w: &Tensor) -> Result<Tensor> {
        let (x, w) = (x.contiguous()?, w.contiguous()?);
        let y = x.like(&self.shapes[2])?;
        let [xo, wo, yo] = [&x, &w, &y].map(Tensor::operand);
        let io = ConvIo::new(xo.view()?, wo.view()?, yo.view_mut()?);
        match self.transposed {
            false => x.device().conv(&self.p, io)?,
            true => x.device().conv_transpose(&self.p, io)?,
        }
        self.recorded(y, [&x, &w], |m, dy, [_, w]| m.input_grad(dy, w), |m, dy, [x, _]| m.weight_grad(dy, x))
    }

    /// The gradient of x from that of y and w.
    pub(crate) fn input_grad(&self, dy: &Tensor, w: &Tensor) -> Result<Tensor> {
        let (dy, w) = (dy.contiguous()?, w.contiguous()?);
        let dx = dy.like(&self.shapes[0])?;
        let [go, wo, xo] = [&dy, &w, &dx].map(Tensor::operand);
        let mut io = ConvBwd::new(go.view()?);
        (io.w, io.dx) = (Some(wo.view()?), Some(xo.grad(false)?));
        self.backward(&dy, io)?;
        self.recorded(dx, [&dy, &w], |m, u, [_, w]| m.output(u, w), |m, u, [dy, _]| m.weight_grad(dy, u))
    }

    /// The gradient of w from that of y and x.
    pub(crate) fn weight_grad(&self, dy: &Tensor, x: &Tensor) -> Result<Tensor> {
        let (dy, x) = (dy.contiguous()?, x.contiguous()?);
        let dw = dy.like(&self.shapes[1])?;
        let [go, xo, wo] = [&dy, &x, &dw].map(Tensor::operand);
        let mut io = ConvBwd::new(go.view()?);
        (io.x, io.dw) = (Some(xo.view()?), Some(wo.grad(false)?));
        self.backward(&dy, io)?;
        self.recorded(dw, [&dy, &x], |m, v, [_, x]| m.output(x, v), |m, v, [dy, _]| m.input_grad(dy, v))
    }

    fn backward(&self, dy: &Tensor, io: ConvBwd<'_>) -> Result<()> {
        match self.transposed {
            false => dy.device().conv_bwd(&self.p, io)?,
            true => dy.device().conv_transpose_bwd(&self.p, io)?,
        }
        Ok(())
    }

    /// `y` in the graph as a result of `inputs`, with the gradient of each.
    fn recorded(
        &self,
        y: Tensor,
        inputs: [&Tensor; 2],
        first: fn(&Bilinear, &Tensor, [&Tensor; 2]) -> Result<Tensor>,
        second: fn(&Bilinear, &Tensor, [&Tensor; 2]) -> Result<Tensor>,
    ) -> Result<Tensor> {
        Ok(y.record(self.op, &inputs, || {
            let (map, saved) = (self.clone(), inputs.map(Saved::new));
            move |cx: &mut BackwardCtx<'_>| {
                let (dy, a, b) = (cx.dy()?, saved[0].input(cx, 0)?, saved[1].input(cx, 1)?);
                if cx.needs(0) {
                    cx.give(0, first(&map, &dy, [&a, &b])?)?;
                }
                if cx.needs(1) {
                    cx.give(1, second(&map, &dy, [&a, &b])?)?;
                }
                Ok(())
            }
        }))
    }
}
