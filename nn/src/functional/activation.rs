//! Activations: elementwise, with learned slopes, gated, and of vectors.

mod pointwise;

use trefoil::ops::activation::{Activation, GatedGrad, GatedInput};
use trefoil::ops::reduce::Reduce;

use crate::core::autograd::{BackwardCtx, Saved, compose, out};
use crate::core::error::Result;
use crate::core::tensor::{Tensor, axis, same_device, same_dtype};
use crate::functional::derivatives::activation::composed;
use crate::functional::derivatives::elementwise::indicator;

/// The gradient of act(x) in a pass that creates a graph. `saved`: the output or the input, whichever the activation's gradient reads.
fn activation_twice(cx: &mut BackwardCtx<'_>, act: Activation, saved: &Saved) -> Result<()> {
    let dy = cx.dy()?;
    if !act.reads_output() {
        let x = saved.input(cx, 0)?;
        return compose(cx, &[(0, x)], |t| Ok(vec![composed(act, &t[0])?]));
    }
    let y = saved.output(cx, 0)?;
    let dx = match act {
        Activation::Relu => dy.mul(&indicator(&y.detach().gt_scalar(0.0)?, &dy)?)?,
        Activation::Sigmoid => dy.mul(&y)?.mul(&y.rsub_scalar(1.0)?)?,
        Activation::Tanh => dy.mul(&y.square()?.rsub_scalar(1.0)?)?,
        _ => return cx.first_order_only(),
    };
    cx.give(0, dx)
}

/// dy times the derivative of an activation, of which `saved` is input or output.
pub(crate) fn through(act: Activation, dy: &Tensor, saved: &Tensor) -> Result<Tensor> {
    let dz = dy.like(dy.shape())?;
    let [dyo, so, zo] = [dy, saved, &dz].map(Tensor::operand);
    dy.device().activation_bwd(act, dyo.view()?, act.saved(so.view()?), zo.grad(false)?)?;
    Ok(dz)
}

impl Tensor {
    /// act(x) element by element.
    pub fn activation(&self, act: Activation) -> Result<Tensor> {
        if act == Activation::Identity {
            return Ok(self.clone());
        }
        let y = Tensor::result_of(&[self], self.dtype(), self.shape())?;
        self.device().activation(act, self.operand().view()?, y.operand().view_mut()?)?;
        let saved = if act.reads_output() { y.clone() } else { self.detach() };
        Ok(y.record("activation", &[self], || {
            let saved = Saved::new(&saved);
            move |cx: &mut BackwardCtx<'_>| {
                if cx.create_graph() {
                    return activation_twice(cx, act, &saved);
                }
                let Some(dx) = cx.target_like_input(0)? else { return Ok(()) };
                let (dy, s) = (cx.dy()?, saved.get(cx)?.operand());
                Ok(dy.device().activation_bwd(act, dy.operand().view()?, act.saved(s.view()?), dx.out()?)?)
            }
        }))
    }

    /// max(x, 0); the gradient at 0 is 0.
    pub fn relu(&self) -> Result<Tensor> {
        self.activation(Activation::Relu)
    }

    /// 1 / (1 + e^-x).
    pub fn sigmoid(&self) -> Result<Tensor> {
        self.activation(Activation::Sigmoid)
    }

    /// Hyperbolic tangent.
    pub fn tanh(&self) -> Result<Tensor> {
        self.activation(Activation::Tanh)
    }

    /// x * Phi(x), exact.
    pub fn gelu(&self) -> Result<Tensor> {
        self.activation(Activation::Gelu)
    }

    /// x * sigmoid(x).
    pub fn silu(&self) -> Result<Tensor> {
        self.activation(Activation::Swish { beta: 1.0 })
    }

    /// x where positive, slope * x elsewhere.
    pub fn leaky_relu(&self, slope: f64) -> Result<Tensor> {
        self.activation(Activation::LeakyRelu { slope })
    }

    /// x where positive, alpha * (e^x - 1) elsewhere.
    pub fn elu(&self, alpha: f64) -> Result<Tensor> {
        self.activation(Activation::Elu { alpha })
    }

    /// ln(1 + e^x).
    pub fn softplus(&self) -> Result<Tensor> {
        self.activation(Activation::Softplus { beta: 1.0, threshold: 20.0 })
    }

    /// x where it is above 0, else a slope times x: one slope `[1]`, or one per channel `[C]` of axis 1. Oracle
    /// `torch.nn.functional.prelu`. Errors: `Invalid` for another number of slopes.
    pub fn prelu(&self, slope: &Tensor) -> Result<Tensor> {
        same_device("prelu", self, slope)?;
        same_dtype("prelu", self, slope)?;
        let (x, a) = (self.contiguous()?, slope.contiguous()?);
        let y = self.like(self.shape())?;
        self.device().prelu(x.operand().view()?, a.operand().view()?, y.operand().view_mut()?)?;
        Ok(y.record("prelu", &[&x, &a], || {
            let (x, a) = (Saved::new(&x), Saved::new(&a));
            move |cx: &mut BackwardCtx<'_>| {
                if cx.create_graph() {
                    let at = [(0, x.input(cx, 0)?), (1, a.input(cx, 1)?)];
                    return compose(cx, &at, |t| {
                        let mut shape = vec![1; t[0].rank()];
                        if let (Some(c), true) = (shape.get_mut(1), t[1].numel() > 1) {
                            *c = t[1].numel();
                        }
                        let below = t[0].mul(&t[1].reshape(&shape)?)?;
                        Ok(vec![t[0].where_(&t[0].detach().gt_scalar(0.0)?, &below)?])
                    });
                }
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
                if cx.create_graph() {
                    let x = x.input(cx, 0)?;
                    return compose(cx, &[(0, x)], |t| {
                        let n = t[0].shape()[at] / 2;
                        let halves = t[0].split(at as isize, &[n, n])?;
                        Ok(vec![halves[0].mul(&composed(act, &halves[1])?)?])
                    });
                }
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
                if cx.create_graph() {
                    let at = [(0, up.input(cx, 0)?), (1, gate.input(cx, 1)?)];
                    return compose(cx, &at, |t| Ok(vec![t[0].mul(&composed(act, &t[1])?)?]));
                }
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
