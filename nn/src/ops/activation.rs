//! Activations and the softmax family.

use trefoil::ops::{Activation, Softmax};

use crate::autograd::{BackwardCtx, Saved};
use crate::error::Result;
use crate::tensor::{Tensor, axis, same_device};

impl Tensor {
    /// act(x) element by element.
    pub fn activation(&self, act: Activation) -> Result<Tensor> {
        if act == Activation::Identity {
            return Ok(self.clone());
        }
        let y = self.like(self.shape())?;
        self.device().activation(act, self.operand().view()?, y.operand().view_mut()?)?;
        let saved = if act.reads_output() { y.clone() } else { self.detach() };
        Ok(y.record("activation", &[self], || {
            let saved = Saved::new(&saved);
            move |cx: &mut BackwardCtx<'_>| {
                let Some(dx) = cx.target(0)? else { return Ok(()) };
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

    /// Softmax along the last axis of scale * x + mask; the additive mask (0 and -inf, or any number, without gradient) broadcasts.
    pub fn masked_softmax(&self, scale: f64, mask: Option<&Tensor>) -> Result<Tensor> {
        if let Some(m) = mask {
            same_device("masked_softmax", self, m)?;
        }
        let x = self.contiguous()?;
        let y = self.like(self.shape())?;
        let (xo, mo, yo) = (x.operand(), mask.map(Tensor::operand), y.operand());
        let m = mo.as_ref().map(|m| m.view()).transpose()?;
        self.device().masked_softmax(scale, xo.view()?, m, yo.view_mut()?)?;
        let plain = y.clone();
        Ok(y.record("masked_softmax", &[self], || {
            let y = Saved::new(&plain);
            move |cx: &mut BackwardCtx<'_>| {
                let Some(dx) = cx.target(0)? else { return Ok(()) };
                let (dy, y) = (cx.dy()?.contiguous()?, y.get(cx)?.operand());
                Ok(dy.device().masked_softmax_bwd(scale, dy.operand().view()?, y.view()?, dx.out()?)?)
            }
        }))
    }

    /// e^x / sum e^x along an axis.
    pub fn softmax(&self, axis: isize) -> Result<Tensor> {
        self.softmax_kind(Softmax::Softmax, axis)
    }

    /// x - ln sum e^x along an axis.
    pub fn log_softmax(&self, axis: isize) -> Result<Tensor> {
        self.softmax_kind(Softmax::LogSoftmax, axis)
    }

    fn softmax_kind(&self, kind: Softmax, at: isize) -> Result<Tensor> {
        let at = axis("softmax", at, self.rank())?;
        let x = self.contiguous()?;
        let y = self.like(self.shape())?;
        self.device().softmax(kind, at, x.operand().view()?, y.operand().view_mut()?)?;
        let plain = y.clone();
        Ok(y.record("softmax", &[self], || {
            let y = Saved::new(&plain);
            move |cx: &mut BackwardCtx<'_>| {
                let Some(dx) = cx.target(0)? else { return Ok(()) };
                let (dy, y) = (cx.dy()?.contiguous()?, y.get(cx)?);
                Ok(dy.device().softmax_bwd(kind, at, dy.operand().view()?, y.operand().view()?, dx.out()?)?)
            }
        }))
    }
}
