//! Reductions.

mod statistics;

use trefoil::DType;
use trefoil::ops::reduce::{ArgReduce, Reduce};

use crate::core::autograd::{BackwardCtx, Saved, compose, out};
use crate::core::error::Result;
use crate::core::tensor::{Tensor, axes, axis, same_device};
use crate::functional::derivatives::reduce as derivatives;

/// Shape after reducing `axes`, each kept as 1.
fn kept(shape: &[usize], axes: &[usize]) -> Vec<usize> {
    shape.iter().enumerate().map(|(i, &n)| if axes.contains(&i) { 1 } else { n }).collect()
}

fn removed(shape: &[usize], axes: &[usize]) -> Vec<usize> {
    shape.iter().enumerate().filter(|(i, _)| !axes.contains(i)).map(|(_, &n)| n).collect()
}

/// The gradient of a reduction in a pass that creates a graph. `saved`: its input and output, where it is not linear.
fn reduce_twice(
    cx: &mut BackwardCtx<'_>,
    op: Reduce,
    over: &[usize],
    shape: &[usize],
    saved: &Option<(Saved, Saved)>,
) -> Result<()> {
    let with_axes = |t: Tensor| t.reshape(&kept(shape, over));
    let dy = with_axes(cx.dy()?)?;
    let (x, y) = match saved {
        Some((x, y)) => (x.input(cx, 0)?, with_axes(y.output(cx, 0)?)?),
        // A linear one reads the shape alone.
        None => (dy.detach().expand(shape)?, dy.detach()),
    };
    let dx = derivatives::reduce(op, over, &dy, &x, &y)?;
    cx.give_form(0, dx)
}

impl Tensor {
    /// Reduces the given axes; with `keep` they stay as size 1. Errors: `Invalid` for axes out of range or repeated.
    pub fn reduce(&self, op: Reduce, over: &[isize], keep: bool) -> Result<Tensor> {
        let over = axes("reduce", over, self.rank())?;
        let shape = if keep { kept(self.shape(), &over) } else { removed(self.shape(), &over) };
        let integer = matches!(self.dtype(), DType::I32 | DType::I64 | DType::U8);
        let dtype = if op == Reduce::Sum && integer { DType::I64 } else { self.dtype() };
        let y = Tensor::empty(self.device(), dtype, &shape)?;
        self.device().reduce(op, &over, self.operand().view()?, y.operand().view_mut()?)?;
        let plain = y.clone();
        Ok(y.record("reduce", &[self], || {
            let linear = matches!(op, Reduce::Sum | Reduce::Mean);
            let saved = (!linear).then(|| (Saved::new(self), Saved::new(&plain)));
            let full = self.shape().to_vec();
            move |cx: &mut BackwardCtx<'_>| {
                if cx.create_graph() {
                    return reduce_twice(cx, op, &over, &full, &saved);
                }
                let Some(dx) = cx.target(0)? else { return Ok(()) };
                let dy = cx.dy()?;
                let saved = match &saved {
                    Some((x, y)) => Some((x.get(cx)?.operand(), y.get(cx)?.operand())),
                    None => None,
                };
                let (x, y) = match &saved {
                    Some((x, y)) => (Some(x.view()?), Some(y.view()?)),
                    None => (None, None),
                };
                Ok(dy.device().reduce_bwd(op, &over, dy.operand().view()?, x, y, dx.out()?)?)
            }
        }))
    }

    fn all_axes(&self) -> Vec<isize> {
        (0..self.rank() as isize).collect()
    }

    /// Sum of all elements, a scalar.
    pub fn sum(&self) -> Result<Tensor> {
        self.reduce(Reduce::Sum, &self.all_axes(), false)
    }

    /// Mean of all elements, a scalar.
    pub fn mean(&self) -> Result<Tensor> {
        self.reduce(Reduce::Mean, &self.all_axes(), false)
    }

    /// Sums along axes.
    pub fn sum_axes(&self, over: &[isize], keep: bool) -> Result<Tensor> {
        self.reduce(Reduce::Sum, over, keep)
    }

    /// Means along axes.
    pub fn mean_axes(&self, over: &[isize], keep: bool) -> Result<Tensor> {
        self.reduce(Reduce::Mean, over, keep)
    }

    /// Maxima along axes; ties share the gradient. [`max_with_index`](Tensor::max_with_index) gives it to the first.
    pub fn amax(&self, over: &[isize], keep: bool) -> Result<Tensor> {
        self.reduce(Reduce::Max, over, keep)
    }

    /// Minima along axes; ties share the gradient.
    pub fn amin(&self, over: &[isize], keep: bool) -> Result<Tensor> {
        self.reduce(Reduce::Min, over, keep)
    }

    /// Variances along axes with `correction` subtracted from the count.
    pub fn var(&self, over: &[isize], correction: f64, keep: bool) -> Result<Tensor> {
        self.reduce(Reduce::Var { correction }, over, keep)
    }

    /// Standard deviations along axes with `correction` subtracted from the count.
    pub fn std(&self, over: &[isize], correction: f64, keep: bool) -> Result<Tensor> {
        self.reduce(Reduce::Std { correction }, over, keep)
    }

    /// Products along axes.
    pub fn prod(&self, over: &[isize], keep: bool) -> Result<Tensor> {
        self.reduce(Reduce::Prod, over, keep)
    }

    /// u8 masks along axes: whether any element is true.
    pub fn any(&self, over: &[isize], keep: bool) -> Result<Tensor> {
        self.reduce(Reduce::Any, over, keep)
    }

    /// u8 masks along axes: whether all elements are true.
    pub fn all(&self, over: &[isize], keep: bool) -> Result<Tensor> {
        self.reduce(Reduce::All, over, keep)
    }

    /// Maximum of all elements, a scalar; ties share the gradient.
    pub fn max(&self) -> Result<Tensor> {
        self.reduce(Reduce::Max, &self.all_axes(), false)
    }

    /// Minimum of all elements, a scalar; ties share the gradient.
    pub fn min(&self) -> Result<Tensor> {
        self.reduce(Reduce::Min, &self.all_axes(), false)
    }

    /// Minima and maxima along axes, in one pass where no gradient is wanted.
    #[doc(alias = "aminmax")]
    pub fn min_max(&self, over: &[isize], keep: bool) -> Result<(Tensor, Tensor)> {
        if self.requires_grad() {
            return Ok((self.amin(over, keep)?, self.amax(over, keep)?));
        }
        let over = axes("min_max", over, self.rank())?;
        let shape = if keep { kept(self.shape(), &over) } else { removed(self.shape(), &over) };
        let (lo, hi) = (self.like(&shape)?, self.like(&shape)?);
        let (x, l, h) = (self.operand(), lo.operand(), hi.operand());
        self.device().min_max(&over, x.view()?, l.view_mut()?, h.view_mut()?)?;
        Ok((lo, hi))
    }

    /// p-norms along axes.
    #[doc(alias = "vector_norm")]
    pub fn norm_axes(&self, p: f64, over: &[isize], keep: bool) -> Result<Tensor> {
        self.reduce(Reduce::Norm { p }, over, keep)
    }

    /// x / max(r, eps) with the Euclidean norm r along an axis; `F.normalize`.
    #[doc(alias = "normalize")]
    pub fn l2_normalize(&self, along: isize, eps: f64) -> Result<Tensor> {
        let at = axis("l2_normalize", along, self.rank())?;
        let x = self.contiguous()?;
        let y = self.like(self.shape())?;
        self.device().l2_normalize(at, eps, x.operand().view()?, y.operand().view_mut()?)?;
        Ok(y.record("l2_normalize", &[self], || {
            let x = Saved::new(&x);
            move |cx: &mut BackwardCtx<'_>| {
                if cx.create_graph() {
                    let x = x.input(cx, 0)?;
                    return compose(cx, &[(0, x)], |t| {
                        let r = t[0].norm_axes(2.0, &[at as isize], true)?.clamp(Some(eps), None)?;
                        Ok(vec![t[0].div(&r)?])
                    });
                }
                let Some(dx) = cx.target(0)? else { return Ok(()) };
                let (dy, x) = (cx.dy()?.contiguous()?, x.get(cx)?.operand());
                Ok(dy.device().l2_normalize_bwd(at, eps, dy.operand().view()?, x.view()?, dx.out()?)?)
            }
        }))
    }

    /// p-norm of all elements, a scalar.
    pub fn norm(&self, p: f64) -> Result<Tensor> {
        self.reduce(Reduce::Norm { p }, &self.all_axes(), false)
    }

    /// ln sum e^x along axes.
    pub fn logsumexp(&self, over: &[isize], keep: bool) -> Result<Tensor> {
        self.reduce(Reduce::LogSumExp, over, keep)
    }

    /// Position (i64) of the first maximum along an axis, which is removed.
    pub fn argmax(&self, along: isize) -> Result<Tensor> {
        self.arg(ArgReduce::Max, along)
    }

    /// Position (i64) of the first minimum along an axis, which is removed.
    pub fn argmin(&self, along: isize) -> Result<Tensor> {
        self.arg(ArgReduce::Min, along)
    }

    fn arg(&self, op: ArgReduce, along: isize) -> Result<Tensor> {
        let at = axis("arg_reduce", along, self.rank())?;
        let index = Tensor::empty(self.device(), DType::I64, &removed(self.shape(), &[at]))?;
        self.device().arg_reduce(op, at, self.operand().view()?, index.operand().view_mut()?, None)?;
        Ok(index)
    }

    /// Values and positions (i64) of the first maxima along an axis, which is removed. The gradient goes to those positions alone.
    pub fn max_with_index(&self, along: isize) -> Result<(Tensor, Tensor)> {
        self.arg_value(ArgReduce::Max, along)
    }

    /// Values and positions (i64) of the first minima along an axis, which is removed. The gradient goes to those positions alone.
    pub fn min_with_index(&self, along: isize) -> Result<(Tensor, Tensor)> {
        self.arg_value(ArgReduce::Min, along)
    }

    fn arg_value(&self, op: ArgReduce, along: isize) -> Result<(Tensor, Tensor)> {
        let at = axis("arg_reduce", along, self.rank())?;
        let shape = removed(self.shape(), &[at]);
        let (value, index) = (self.like(&shape)?, Tensor::empty(self.device(), DType::I64, &shape)?);
        let (v, i) = (value.operand(), index.operand());
        self.device().arg_reduce(op, at, self.operand().view()?, i.view_mut()?, Some(v.view_mut()?))?;
        let saved = index.clone();
        let value = value.record("arg_reduce", &[self], || {
            let index = Saved::new(&saved);
            let full = self.shape().to_vec();
            move |cx: &mut BackwardCtx<'_>| {
                if cx.create_graph() {
                    let places = index.get(cx)?.unsqueeze(at as isize)?;
                    let zeros = Tensor::zeros(places.device(), cx.dy()?.dtype(), &full)?;
                    let dx = zeros.scatter(at as isize, &places, &cx.dy()?.unsqueeze(at as isize)?)?;
                    return cx.give(0, dx);
                }
                let Some(dx) = cx.target(0)? else { return Ok(()) };
                let (dy, index) = (cx.dy()?.contiguous()?, index.get(cx)?);
                Ok(dy.device().arg_reduce_bwd(
                    at,
                    dy.operand().view()?,
                    index.operand().view()?,
                    dx.out()?,
                )?)
            }
        });
        Ok((value, index))
    }

    /// Mean and variance along axes in one pass over the data.
    pub fn mean_var(&self, over: &[isize], correction: f64, keep: bool) -> Result<(Tensor, Tensor)> {
        if self.requires_grad() {
            return Ok((self.mean_axes(over, keep)?, self.var(over, correction, keep)?));
        }
        let over = axes("mean_var", over, self.rank())?;
        let shape = if keep { kept(self.shape(), &over) } else { removed(self.shape(), &over) };
        let (m, v) = (self.like(&shape)?, self.like(&shape)?);
        self.device().mean_var(
            &over,
            correction,
            self.operand().view()?,
            m.operand().view_mut()?,
            v.operand().view_mut()?,
        )?;
        Ok((m, v))
    }

    /// Sum of products along the last axis of two tensors of one shape.
    pub fn dot(&self, b: &Tensor) -> Result<Tensor> {
        same_device("dot", self, b)?;
        let y = self.like(&self.shape()[..self.rank().saturating_sub(1)])?;
        self.device().dot(self.operand().view()?, b.operand().view()?, y.operand().view_mut()?)?;
        Ok(y.record("dot", &[self, b], || {
            let (a, b) = (Saved::new(self), Saved::new(b));
            move |cx: &mut BackwardCtx<'_>| {
                if cx.create_graph() {
                    let at = [(0, a.input(cx, 0)?), (1, b.input(cx, 1)?)];
                    return compose(cx, &at, |t| Ok(vec![t[0].mul(&t[1])?.sum_axes(&[-1], false)?]));
                }
                let (da, db) = (cx.target(0)?, cx.target(1)?);
                let (dy, a, b) = (cx.dy()?, a.get(cx)?.operand(), b.get(cx)?.operand());
                Ok(dy.device().dot_bwd(dy.operand().view()?, a.view()?, b.view()?, out(&da)?, out(&db)?)?)
            }
        }))
    }

    /// Sums the axes along which `shape` is broadcast to this tensor's shape; the inverse of [`expand`](Tensor::expand).
    pub fn sum_to_shape(&self, shape: &[usize]) -> Result<Tensor> {
        if shape == self.shape() {
            return Ok(self.clone());
        }
        let y = self.like(shape)?;
        self.device().sum_to_shape(self.operand().view()?, y.operand().grad(false)?)?;
        let full = self.shape().to_vec();
        Ok(y.record("sum_to_shape", &[self], || {
            move |cx: &mut BackwardCtx<'_>| {
                let dx = cx.dy()?.expand(&full)?;
                cx.give(0, dx)
            }
        }))
    }
}
