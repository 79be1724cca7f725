//! A weighted sum of elementwise losses in one pass.

use trefoil::GradMut;
use trefoil::ops::loss::{Loss, LossTerm};

use super::second;
use crate::core::autograd::{BackwardCtx, GradTarget, Saved, compose};
use crate::core::error::{Result, invalid};
use crate::core::tensor::{Operand, Tensor, same_device};

/// One term of a [`LossList`].
#[derive(Debug, Clone)]
pub struct Term {
    /// Prediction, of any shape; gets a gradient.
    pub prediction: Tensor,
    /// Target of its shape; absent for [`Loss::Square`] (residuals).
    pub target: Option<Tensor>,
    /// Factor of the term's mean.
    pub weight: f64,
}

/// Sum over terms of weight * mean of an elementwise loss, as perceptual losses (one term per feature map) and physics-informed losses (one per
/// residual) need it.
#[derive(Debug, Clone)]
pub struct LossList {
    /// The loss of every term.
    pub kind: Loss,
}

impl Default for LossList {
    fn default() -> Self {
        LossList { kind: Loss::Mse }
    }
}

type Operands = Vec<(Operand, Option<Operand>, f64)>;

fn terms(list: &Operands) -> Result<Vec<LossTerm<'_>>> {
    list.iter()
        .map(|(p, t, weight)| {
            let t = t.as_ref().map(Operand::view).transpose()?;
            Ok(LossTerm::new(p.view()?).t(t).weight(*weight))
        })
        .collect()
}

impl LossList {
    /// The weighted sum, a scalar. Errors: no terms; terms of several devices or dtypes; a target of another shape, or none where the loss
    /// needs one.
    pub fn forward(&self, list: &[Term]) -> Result<Tensor> {
        const OP: &str = "loss_list";
        let Some(first) = list.first().map(|x| &x.prediction) else {
            return Err(invalid(OP, "terms", "at least one term", "none"));
        };
        let mut dense = vec![];
        for x in list {
            for t in [Some(&x.prediction), x.target.as_ref()].into_iter().flatten() {
                same_device(OP, first, t)?;
            }
            let t = x.target.as_ref().map(|t| t.detach().contiguous()).transpose()?;
            dense.push((x.prediction.contiguous()?, t, x.weight));
        }
        let kind = self.kind;
        let loss = Tensor::empty(first.device(), first.dtype().accumulator(), &[])?;
        let operands =
            dense.iter().map(|(p, t, w)| (p.operand(), t.as_ref().map(Tensor::operand), *w)).collect();
        first.device().loss_list(kind, &terms(&operands)?, loss.operand().view_mut()?)?;
        let inputs: Vec<&Tensor> = dense.iter().map(|x| &x.0).collect();
        Ok(loss.record(OP, &inputs, || {
            let saved: Vec<_> =
                dense.iter().map(|(p, t, w)| (Saved::new(p), t.as_ref().map(Saved::new), *w)).collect();
            move |cx: &mut BackwardCtx<'_>| {
                if cx.create_graph() {
                    let at: Vec<_> = saved
                        .iter()
                        .enumerate()
                        .map(|(i, (p, ..))| Ok((i, p.input(cx, i)?)))
                        .collect::<Result<_>>()?;
                    let targets =
                        saved.iter().map(|(_, t, _)| t.as_ref().map(|t| t.constant(cx)).transpose());
                    let targets = targets.collect::<Result<Vec<_>>>()?;
                    if !second::has_form(kind) {
                        return cx.first_order_only();
                    }
                    return compose(cx, &at, |p| {
                        let mut total: Option<Tensor> = None;
                        for ((p, t), (_, _, weight)) in p.iter().zip(&targets).zip(&saved) {
                            let t = t.as_ref().map_or_else(|| p.detach().zeros_like(), |t| Ok(t.clone()))?;
                            let mean = second::item(kind, p, &t)?.mean()?.mul_scalar(*weight)?;
                            total = Some(total.map_or_else(|| Ok(mean.clone()), |s| s.add(&mean))?);
                        }
                        total.into_iter().map(|t| t.to_dtype(t.dtype().accumulator())).collect()
                    });
                }
                // The kernel writes the gradients of all the terms that it is given.
                let (mut operands, mut targets): (Operands, Vec<GradTarget>) = Default::default();
                for (i, (p, t, weight)) in saved.iter().enumerate() {
                    let Some(target) = cx.target(i)? else { continue };
                    let t = t.as_ref().map(|t| t.get(cx)).transpose()?.map(Tensor::operand);
                    operands.push((p.get(cx)?.operand(), t, *weight));
                    targets.push(target);
                }
                let gy = cx.dy()?;
                let mut dp = targets.iter().map(GradTarget::out).collect::<Result<Vec<GradMut<'_>>>>()?;
                let gyo = gy.operand();
                Ok(gy.device().loss_list_bwd(kind, gyo.view()?, &terms(&operands)?, &mut dp)?)
            }
        }))
    }
}
