//! Normalization.

mod local_response;

use trefoil::ops::activation::Activation;
use trefoil::ops::norm::{
    BatchNorm, BatchNormBwd, BatchNormFwd, BatchStats, GroupNorm, GroupNormBwd, GroupNormFwd, InstanceNorm,
    Momentum, RowNorm, RowNormBwd, RowNormFwd, Running,
};

use crate::core::autograd::{BackwardCtx, Saved, compose, out, record};
use crate::core::error::{Result, invalid};
use crate::core::tensor::{Operand, Tensor, same_device, same_dtype};
use crate::functional::derivatives::norm as derivatives;
use crate::functional::operand::{Inputs, Placed, operand, save, saved, view, view_mut, whole};

/// Running mean and variance per channel, f32 (f64 for f64 data), which a batch updates in place.
#[derive(Debug, Clone)]
pub struct RunningStats {
    /// `[C]`.
    pub mean: Tensor,
    /// `[C]`, unbiased.
    pub var: Tensor,
    /// Weight of a new batch; without one all batches count alike, and `count` is increased.
    pub momentum: Option<f64>,
    /// Number of batches so far, one i64.
    pub count: Tensor,
}

impl RunningStats {
    /// Error unless they have the dtype that statistics of an input have.
    fn check(&self, op: &'static str, x: &Tensor) -> Result<()> {
        if self.mean.dtype() == x.dtype().accumulator() { Ok(()) } else { same_dtype(op, x, &self.mean) }
    }

    fn operands(&self) -> [Operand; 3] {
        [self.mean.operand(), self.var.operand(), self.count.operand()]
    }

    fn touch(&self) {
        for t in [&self.mean, &self.var, &self.count] {
            t.storage().touch();
        }
    }
}

fn running<'a>(r: &RunningStats, [mean, var, count]: &'a [Operand; 3]) -> Result<Running<'a>> {
    let momentum = match r.momentum {
        Some(m) => Momentum::Factor(m),
        None => Momentum::Cumulative(count.view_mut()?),
    };
    Ok(Running::new(mean.view_mut()?, var.view_mut()?, momentum))
}

/// The statistics that [`Tensor::batch_norm`] uses.
#[derive(Debug, Clone, Copy)]
pub enum BatchNormStats<'a> {
    /// Those of the batch; running ones are updated where given.
    Batch(Option<&'a RunningStats>),
    /// Given mean and variance `[C]`.
    Given(&'a Tensor, &'a Tensor),
}

impl Tensor {
    /// Layer or RMS normalization over the trailing axes, with scale and shift of their shape. Oracle `F.layer_norm`, `F.rms_norm`. Errors:
    /// `Invalid` for shapes, eps not above 0.
    pub fn row_norm(&self, p: &RowNorm, weight: Option<&Tensor>, bias: Option<&Tensor>) -> Result<Tensor> {
        Ok(self.row_norm_inner(p, weight, bias, None)?.0)
    }

    /// Normalizes s = self + residual in one pass; gives the result and s.
    pub fn add_row_norm(
        &self,
        residual: &Tensor,
        p: &RowNorm,
        weight: Option<&Tensor>,
        bias: Option<&Tensor>,
    ) -> Result<(Tensor, Tensor)> {
        let (y, sum) = self.row_norm_inner(p, weight, bias, Some(residual))?;
        let sum = sum.ok_or_else(|| invalid("row_norm", "residual", "a residual", "none"))?;
        Ok((y, sum))
    }

    fn row_norm_inner(
        &self,
        p: &RowNorm,
        weight: Option<&Tensor>,
        bias: Option<&Tensor>,
        residual: Option<&Tensor>,
    ) -> Result<(Tensor, Option<Tensor>)> {
        const OP: &str = "row_norm";
        for t in [weight, bias, residual].into_iter().flatten() {
            same_device(OP, self, t)?;
        }
        weight.or(bias).map_or(Ok(()), |w| same_dtype(OP, self, w))?;
        let (x, weight, bias, residual) =
            (self.contiguous()?, whole(weight)?, whole(bias)?, whole(residual)?);
        let mut inputs = Inputs::default();
        inputs.push(Some(&x));
        let [ir, iw, ib] = [&residual, &weight, &bias].map(|t| inputs.push(t.as_ref()));
        let tracked = inputs.tracked();
        let y = self.like(self.shape())?;
        let sum = if residual.is_some() { Some(self.like(self.shape())?) } else { None };
        let rows = &self.shape()[..self.rank().saturating_sub(p.axes)];
        let stat = |on: bool| {
            if on {
                Tensor::empty(self.device(), self.dtype().accumulator(), rows).map(Some)
            } else {
                Ok(None)
            }
        };
        let (mean, rstd) = (stat(tracked && !p.rms)?, stat(tracked)?);
        let (xo, yo) = (x.operand(), y.operand());
        let [ro, wo, bo, so, mo, do_] =
            [&residual, &weight, &bias, &sum, &mean, &rstd].map(|t| operand(t.as_ref()));
        let mut io = RowNormFwd::new(xo.view()?, yo.view_mut()?);
        (io.residual, io.gamma, io.beta) = (view(&ro)?, view(&wo)?, view(&bo)?);
        (io.sum, io.mean, io.rstd) = (view_mut(&so)?, view_mut(&mo)?, view_mut(&do_)?);
        self.device().row_norm(p, io)?;

        let (p, from_y) = (*p, p.act.reads_output());
        let plain = y.clone();
        let outputs: Vec<Tensor> = [Some(y), sum.clone()].into_iter().flatten().collect();
        let outputs = record(OP, &inputs.list, outputs, || {
            let (dense, x) = (x.clone(), Saved::new(sum.as_ref().unwrap_or(&x)));
            let both = sum.is_some().then(|| (Saved::new(&dense), save(residual.as_ref())));
            let [weight, bias, mean, rstd] = [&weight, &bias, &mean, &rstd].map(|t| save(t.as_ref()));
            let y = from_y.then(|| Saved::new(&plain));
            move |cx: &mut BackwardCtx<'_>| {
                if cx.create_graph() {
                    let (x, r) = both.as_ref().map_or((&x, None), |(x, r)| (x, r.as_ref()));
                    let at = Placed::new(
                        cx,
                        &[(0, Some(x)), (ir, r), (iw, weight.as_ref()), (ib, bias.as_ref())],
                    )?;
                    return compose(cx, &at.list, |t| {
                        let s = at.get(t, ir).map_or_else(|| Ok(t[0].clone()), |r| t[0].add(r))?;
                        let y = derivatives::row(&p, &s, at.get(t, iw), at.get(t, ib))?;
                        Ok(vec![y, s])
                    });
                }
                let (dw, db) = (cx.target(iw)?, cx.target(ib)?);
                let dy = cx.dy()?.contiguous()?;
                let add = cx.upstream(1).map(Tensor::contiguous).transpose()?;
                // x and the residual have one gradient; with both wanted it is made once and handed to both.
                let both = cx.needs(0) && cx.needs(ir);
                let shared = if both { Some(dy.like(dy.shape())?) } else { None };
                let single = match both {
                    true => None,
                    false => cx.target(if cx.needs(0) { 0 } else { ir })?,
                };
                let (x, rstd) = (x.get(cx)?.operand(), saved(cx, &rstd)?);
                let Some(rstd) = rstd else { return Ok(()) };
                let (weight, bias, mean) = (saved(cx, &weight)?, saved(cx, &bias)?, saved(cx, &mean)?);
                let y = saved(cx, &y)?;
                let (dyo, ao, so) = (dy.operand(), operand(add.as_ref()), operand(shared.as_ref()));
                let mut io = RowNormBwd::new(dyo.view()?, x.view()?, rstd.view()?).mean(view(&mean)?);
                (io.gamma, io.beta, io.y, io.add) = (view(&weight)?, view(&bias)?, view(&y)?, view(&ao)?);
                io.dx = match &so {
                    Some(o) => Some(o.grad(false)?),
                    None => out(&single)?,
                };
                (io.dgamma, io.dbeta) = (out(&dw)?, out(&db)?);
                dy.device().row_norm_bwd(&p, io)?;
                if let Some(dx) = shared {
                    cx.give(0, dx.clone())?;
                    cx.give(ir, dx)?;
                }
                Ok(())
            }
        });
        let mut all = outputs.into_iter();
        let y = all.next().unwrap_or(plain);
        Ok((y, all.next()))
    }

    /// Normalization of groups of channels of `[N, C, S..]`, with scale and shift `[C]`. Oracle `F.group_norm`.
    pub fn group_norm(
        &self,
        p: &GroupNorm,
        weight: Option<&Tensor>,
        bias: Option<&Tensor>,
    ) -> Result<Tensor> {
        self.channel_norm("group_norm", *p, weight, bias, |x, io| Ok(x.device().group_norm(p, io)?))
    }

    /// Normalization of each channel of each sample of `[N, C, S..]`; running statistics are updated where given. Oracle `F.instance_norm`.
    /// Errors: `Invalid` for one value per instance.
    pub fn instance_norm(
        &self,
        p: &InstanceNorm,
        weight: Option<&Tensor>,
        bias: Option<&Tensor>,
        stats: Option<&RunningStats>,
    ) -> Result<Tensor> {
        stats.map_or(Ok(()), |r| r.check("instance_norm", self))?;
        let channels = self.shape().get(1).copied().unwrap_or(0);
        let y = self.channel_norm("instance_norm", p.groups(channels), weight, bias, |x, mut io| {
            let ops = stats.map(RunningStats::operands);
            if let (Some(r), Some(o)) = (stats, &ops) {
                // The borrow of the statistics ends with this call, that of the other operands does not.
                let mut own = GroupNormFwd::new(io.x, io.y);
                (own.gamma, own.beta, own.mean, own.rstd) =
                    (io.gamma, io.beta, io.mean.take(), io.rstd.take());
                own.running = Some(running(r, o)?);
                return Ok(x.device().instance_norm(p, own)?);
            }
            Ok(x.device().instance_norm(p, io)?)
        })?;
        if let Some(r) = stats {
            r.touch();
        }
        Ok(y)
    }

    fn channel_norm(
        &self,
        op: &'static str,
        p: GroupNorm,
        weight: Option<&Tensor>,
        bias: Option<&Tensor>,
        forward: impl FnOnce(&Tensor, GroupNormFwd<'_>) -> Result<()>,
    ) -> Result<Tensor> {
        for t in [weight, bias].into_iter().flatten() {
            same_device(op, self, t)?;
        }
        weight.or(bias).map_or(Ok(()), |w| same_dtype(op, self, w))?;
        let (x, weight, bias) = (self.contiguous()?, whole(weight)?, whole(bias)?);
        let mut inputs = Inputs::default();
        inputs.push(Some(&x));
        let [iw, ib] = [&weight, &bias].map(|t| inputs.push(t.as_ref()));
        let y = self.like(self.shape())?;
        let batch = self.shape().first().copied().unwrap_or(0);
        let tracked = inputs.tracked();
        let stat = || match tracked {
            true => Tensor::empty(self.device(), self.dtype().accumulator(), &[batch, p.groups]).map(Some),
            false => Ok(None),
        };
        let (mean, rstd) = (stat()?, stat()?);
        let (xo, yo) = (x.operand(), y.operand());
        let [wo, bo, mo, so] = [&weight, &bias, &mean, &rstd].map(|t| operand(t.as_ref()));
        let mut io = GroupNormFwd::new(xo.view()?, yo.view_mut()?);
        (io.gamma, io.beta) = (view(&wo)?, view(&bo)?);
        (io.mean, io.rstd) = (view_mut(&mo)?, view_mut(&so)?);
        forward(&x, io)?;
        let plain = y.clone();
        Ok(y.record(op, &inputs.list, || {
            let x = Saved::new(&x);
            let [weight, bias, mean, rstd] = [&weight, &bias, &mean, &rstd].map(|t| save(t.as_ref()));
            let y = p.act.reads_output().then(|| Saved::new(&plain));
            move |cx: &mut BackwardCtx<'_>| {
                if cx.create_graph() {
                    let at = Placed::new(cx, &[(0, Some(&x)), (iw, weight.as_ref()), (ib, bias.as_ref())])?;
                    return compose(cx, &at.list, |t| {
                        Ok(vec![derivatives::group(&p, &t[0], at.get(t, iw), at.get(t, ib))?])
                    });
                }
                let (dx, dw, db) = (cx.target(0)?, cx.target(iw)?, cx.target(ib)?);
                let dy = cx.dy()?.contiguous()?;
                let (Some(mean), Some(rstd)) = (saved(cx, &mean)?, saved(cx, &rstd)?) else { return Ok(()) };
                let (x, y) = (x.get(cx)?.operand(), saved(cx, &y)?);
                let (weight, bias, dyo) = (saved(cx, &weight)?, saved(cx, &bias)?, dy.operand());
                let mut io = GroupNormBwd::new(dyo.view()?, x.view()?, mean.view()?, rstd.view()?);
                (io.gamma, io.beta, io.y) = (view(&weight)?, view(&bias)?, view(&y)?);
                (io.dx, io.dgamma, io.dbeta) = (out(&dx)?, out(&dw)?, out(&db)?);
                Ok(dy.device().group_norm_bwd(&p, io)?)
            }
        }))
    }

    /// Normalization of the channels of `[N, C]` or `[N, C, S..]` over N and S, with scale and shift `[C]`. Oracle `F.batch_norm`. Errors:
    /// `Invalid` for one value per channel where statistics are those of the batch.
    pub fn batch_norm(
        &self,
        p: &BatchNorm,
        weight: Option<&Tensor>,
        bias: Option<&Tensor>,
        stats: BatchNormStats<'_>,
    ) -> Result<Tensor> {
        self.batch_norm_add(None, p, weight, bias, stats)
    }

    /// [`batch_norm`](Tensor::batch_norm) with a residual of this tensor's shape added to the normalized elements, before `p.act`.
    pub fn batch_norm_add(
        &self,
        residual: Option<&Tensor>,
        p: &BatchNorm,
        weight: Option<&Tensor>,
        bias: Option<&Tensor>,
        stats: BatchNormStats<'_>,
    ) -> Result<Tensor> {
        const OP: &str = "batch_norm";
        for t in [residual, weight, bias].into_iter().flatten() {
            same_device(OP, self, t)?;
        }
        weight.or(bias).map_or(Ok(()), |w| same_dtype(OP, self, w))?;
        if let BatchNormStats::Batch(Some(r)) = stats {
            r.check(OP, self)?;
        }
        let channels = self.shape().get(1).copied().unwrap_or(0);
        let format = self.memory_format();
        let (x, residual) = (self.in_format(format)?, residual.map(|r| r.in_format(format)).transpose()?);
        let (weight, bias) = (whole(weight)?, whole(bias)?);
        let mut inputs = Inputs::default();
        inputs.push(Some(&x));
        let [ir, iw, ib] = [&residual, &weight, &bias].map(|t| inputs.push(t.as_ref()));
        let y = self.empty_in(format, self.dtype(), self.shape())?;
        let tracked = inputs.tracked();
        let stat = || match tracked {
            true => Tensor::empty(self.device(), self.dtype().accumulator(), &[channels]).map(Some),
            false => Ok(None),
        };
        let (mean, rstd) = (stat()?, stat()?);
        {
            let (xo, yo) = (x.operand(), y.operand());
            let [ro, wo, bo, mo, so] = [&residual, &weight, &bias, &mean, &rstd].map(|t| operand(t.as_ref()));
            let (ops, given) = match stats {
                BatchNormStats::Batch(r) => (r.map(RunningStats::operands), None),
                BatchNormStats::Given(m, v) => {
                    (None, Some((m.contiguous()?.operand(), v.contiguous()?.operand())))
                }
            };
            let how = match (stats, &ops, &given) {
                (BatchNormStats::Batch(Some(r)), Some(o), _) => BatchStats::Batch(Some(running(r, o)?)),
                (_, _, Some((m, v))) => BatchStats::Given { mean: m.view()?, var: v.view()? },
                _ => BatchStats::Batch(None),
            };
            let mut io = BatchNormFwd::new(xo.view()?, how, yo.view_mut()?);
            (io.residual, io.gamma, io.beta) = (view(&ro)?, view(&wo)?, view(&bo)?);
            (io.mean, io.rstd) = (view_mut(&mo)?, view_mut(&so)?);
            self.device().batch_norm(p, io)?;
        }
        if let BatchNormStats::Batch(Some(r)) = stats {
            r.touch();
        }
        let (p, training) = (*p, matches!(stats, BatchNormStats::Batch(_)));
        let plain = y.clone();
        Ok(y.record(OP, &inputs.list, || {
            let x = Saved::new(&x);
            let [weight, bias, mean, rstd] = [&weight, &bias, &mean, &rstd].map(|t| save(t.as_ref()));
            let from_y = p.act.reads_output();
            let y = from_y.then(|| Saved::new(&plain));
            // Only activations that are undone from the input need what was added to it.
            let needs_residual = p.act != Activation::Identity && !from_y;
            let added = save(residual.as_ref());
            let residual = residual.as_ref().filter(|_| needs_residual).map(Saved::new);
            move |cx: &mut BackwardCtx<'_>| {
                if cx.create_graph() {
                    let operands =
                        [(0, Some(&x)), (ir, added.as_ref()), (iw, weight.as_ref()), (ib, bias.as_ref())];
                    let at = Placed::new(cx, &operands)?;
                    let given = match (&mean, &rstd) {
                        (Some(m), Some(r)) if !training => Some([m.constant(cx)?, r.constant(cx)?]),
                        _ => None,
                    };
                    return compose(cx, &at.list, |t| {
                        let given = match &given {
                            Some([m, r]) => Some([m.to_dtype(t[0].dtype())?, r.to_dtype(t[0].dtype())?]),
                            None => None,
                        };
                        let given = given.as_ref().map(|g| g.each_ref());
                        let parts = [ir, iw, ib].map(|i| at.get(t, i));
                        Ok(vec![derivatives::batch(&p, &t[0], given, parts[0], parts[1], parts[2])?])
                    });
                }
                let (dx, dw, db) = (cx.target_like_input(0)?, cx.target(iw)?, cx.target(ib)?);
                let dr = cx.target_like_input(ir)?;
                let dy = cx.dy()?.in_format(format)?;
                let (Some(mean), Some(rstd)) = (saved(cx, &mean)?, saved(cx, &rstd)?) else { return Ok(()) };
                let (x, y) = (x.get(cx)?.operand(), saved(cx, &y)?);
                let (weight, bias, dyo) = (saved(cx, &weight)?, saved(cx, &bias)?, dy.operand());
                let residual = saved(cx, &residual)?;
                let mut io = BatchNormBwd::new(dyo.view()?, x.view()?, mean.view()?, rstd.view()?);
                (io.gamma, io.beta, io.y) = (view(&weight)?, view(&bias)?, view(&y)?);
                io.residual = view(&residual)?;
                io.training = training;
                (io.dx, io.dresidual) = (out(&dx)?, out(&dr)?);
                (io.dgamma, io.dbeta) = (out(&dw)?, out(&db)?);
                Ok(dy.device().batch_norm_bwd(&p, io)?)
            }
        }))
    }
}
