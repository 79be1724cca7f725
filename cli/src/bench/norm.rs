//! Normalization.

use trefoil::ops::{
    BatchNorm, BatchNormBwd, BatchNormFwd, BatchStats, GroupNorm, GroupNormBwd, GroupNormFwd, Momentum,
    NormOps, RowNorm, RowNormBwd, RowNormFwd, Running,
};
use trefoil_nn::{Device, Tensor};

use super::case::Case;
use super::ops::{random, randoms, sets, work};
use super::timing::Prepared;
use crate::error::Result;

/// A case ready to run; `None` if it is none of these operations.
pub(super) fn prepare(c: &Case, d: &Device) -> Result<Option<Prepared>> {
    Ok(Some(match c.op() {
        "layernorm" => rows(c, d, RowNorm::layer())?,
        "rmsnorm" => rows(c, d, RowNorm::rms())?,
        "batchnorm" => batch(c, d)?,
        "groupnorm" => groups(c, d)?,
        _ => return Ok(None),
    }))
}

fn rows(c: &Case, d: &Device, p: RowNorm) -> Result<Prepared> {
    let (r, n, t) = (c.size("rows")?, c.size("cols")?, c.dtype()?);
    let bytes = r * n * t.size();
    let k = sets(2 * bytes);
    let (x, dy) = (randoms(d, t, &[r, n], k, 1)?, randoms(d, t, &[r, n], k, 2)?);
    let (gamma, beta) = (random(d, t, &[n], 3, 1.0)?, random(d, t, &[n], 4, 1.0)?);
    let stat = t.accumulator();
    let (mean, rstd) = (Tensor::empty(d, stat, &[r])?, Tensor::empty(d, stat, &[r])?);
    let (y, dx) = (Tensor::empty(d, t, &[r, n])?, Tensor::empty(d, t, &[r, n])?);
    let (dgamma, dbeta) = (Tensor::empty(d, t, &[n])?, Tensor::empty(d, t, &[n])?);
    let forward = {
        let (d, x, gamma, mean, rstd) = (d.clone(), x.clone(), gamma.clone(), mean.clone(), rstd.clone());
        move |i: usize| -> Result<()> {
            let (x, y) = (x[i % k].operand(), y.operand());
            let (gamma, beta, mean, rstd) = (gamma.operand(), beta.operand(), mean.operand(), rstd.operand());
            let mut io = RowNormFwd::new(x.view()?, y.view_mut()?);
            io.gamma = Some(gamma.view()?);
            if !p.rms {
                (io.beta, io.mean) = (Some(beta.view()?), Some(mean.view_mut()?));
            }
            io.rstd = Some(rstd.view_mut()?);
            Ok(d.row_norm(&p, io)?)
        }
    };
    // The gradient reads saved statistics: those of the first set.
    forward(0)?;
    let d = d.clone();
    let bwd = work(3 * bytes, 0.0, move |i| {
        let (g, x) = (dy[i % k].operand(), x[i % k].operand());
        let (gamma, mean, rstd) = (gamma.operand(), mean.operand(), rstd.operand());
        let (dx, dgamma, dbeta) = (dx.operand(), dgamma.operand(), dbeta.operand());
        let saved = if p.rms { None } else { Some(mean.view()?) };
        let mut io = RowNormBwd::new(g.view()?, x.view()?, saved, rstd.view()?);
        io.gamma = Some(gamma.view()?);
        (io.dx, io.dgamma) = (Some(dx.grad(false)?), Some(dgamma.grad(false)?));
        if !p.rms {
            io.dbeta = Some(dbeta.grad(false)?);
        }
        Ok(d.row_norm_bwd(&p, io)?)
    });
    Ok(Prepared { fwd: work(2 * bytes, 0.0, forward), bwd: Some(bwd) })
}

fn batch(c: &Case, d: &Device) -> Result<Prepared> {
    let (n, ch, s) = (c.size("n")?, c.size("c")?, c.size("h")? * c.size("w")?);
    let (t, shape) = (c.dtype()?, [n, ch, s]);
    let bytes = n * ch * s * t.size();
    let k = sets(2 * bytes);
    let (x, dy) = (randoms(d, t, &shape, k, 1)?, randoms(d, t, &shape, k, 2)?);
    let (gamma, beta) = (random(d, t, &[ch], 3, 1.0)?, random(d, t, &[ch], 4, 1.0)?);
    let stat = t.accumulator();
    let (mean, rstd) = (Tensor::empty(d, stat, &[ch])?, Tensor::empty(d, stat, &[ch])?);
    let (rm, rv) = (random(d, stat, &[ch], 5, 1.0)?, random(d, stat, &[ch], 6, 1.0)?);
    let (y, dx) = (Tensor::empty(d, t, &shape)?, Tensor::empty(d, t, &shape)?);
    let (dgamma, dbeta) = (Tensor::empty(d, t, &[ch])?, Tensor::empty(d, t, &[ch])?);
    let forward = {
        let (d, x, gamma, mean, rstd) = (d.clone(), x.clone(), gamma.clone(), mean.clone(), rstd.clone());
        move |i: usize| -> Result<()> {
            let (x, y) = (x[i % k].operand(), y.operand());
            let (gamma, beta, mean, rstd) = (gamma.operand(), beta.operand(), mean.operand(), rstd.operand());
            let (rm, rv) = (rm.operand(), rv.operand());
            let momentum = Momentum::Factor(0.1);
            let running = Running { mean: rm.view_mut()?, var: rv.view_mut()?, momentum };
            let stats = BatchStats::Batch(Some(running));
            let mut io = BatchNormFwd::new(x.view()?, stats, y.view_mut()?);
            (io.gamma, io.beta) = (Some(gamma.view()?), Some(beta.view()?));
            (io.mean, io.rstd) = (Some(mean.view_mut()?), Some(rstd.view_mut()?));
            Ok(d.batch_norm(&BatchNorm::new(), io)?)
        }
    };
    forward(0)?;
    let d = d.clone();
    let bwd = work(5 * bytes, 0.0, move |i| {
        let (g, x) = (dy[i % k].operand(), x[i % k].operand());
        let (gamma, mean, rstd) = (gamma.operand(), mean.operand(), rstd.operand());
        let (dx, dgamma, dbeta) = (dx.operand(), dgamma.operand(), dbeta.operand());
        let mut io = BatchNormBwd::new(g.view()?, x.view()?, mean.view()?, rstd.view()?);
        io.gamma = Some(gamma.view()?);
        (io.dx, io.dgamma, io.dbeta) =
            (Some(dx.grad(false)?), Some(dgamma.grad(false)?), Some(dbeta.grad(false)?));
        Ok(d.batch_norm_bwd(&BatchNorm::new(), io)?)
    });
    Ok(Prepared { fwd: work(3 * bytes, 0.0, forward), bwd: Some(bwd) })
}

fn groups(c: &Case, d: &Device) -> Result<Prepared> {
    let (n, ch, s) = (c.size("n")?, c.size("c")?, c.size("h")? * c.size("w")?);
    let (t, shape, p) = (c.dtype()?, [n, ch, s], GroupNorm::new(c.size("groups")?));
    let bytes = n * ch * s * t.size();
    let k = sets(2 * bytes);
    let (x, dy) = (randoms(d, t, &shape, k, 1)?, randoms(d, t, &shape, k, 2)?);
    let (gamma, beta) = (random(d, t, &[ch], 3, 1.0)?, random(d, t, &[ch], 4, 1.0)?);
    let stat = t.accumulator();
    let stats = [n, p.groups];
    let (mean, rstd) = (Tensor::empty(d, stat, &stats)?, Tensor::empty(d, stat, &stats)?);
    let (y, dx) = (Tensor::empty(d, t, &shape)?, Tensor::empty(d, t, &shape)?);
    let (dgamma, dbeta) = (Tensor::empty(d, t, &[ch])?, Tensor::empty(d, t, &[ch])?);
    let forward = {
        let (d, x, gamma, mean, rstd) = (d.clone(), x.clone(), gamma.clone(), mean.clone(), rstd.clone());
        move |i: usize| -> Result<()> {
            let (x, y) = (x[i % k].operand(), y.operand());
            let (gamma, beta, mean, rstd) = (gamma.operand(), beta.operand(), mean.operand(), rstd.operand());
            let mut io = GroupNormFwd::new(x.view()?, y.view_mut()?);
            (io.gamma, io.beta) = (Some(gamma.view()?), Some(beta.view()?));
            (io.mean, io.rstd) = (Some(mean.view_mut()?), Some(rstd.view_mut()?));
            Ok(d.group_norm(&p, io)?)
        }
    };
    forward(0)?;
    let d = d.clone();
    let bwd = work(3 * bytes, 0.0, move |i| {
        let (g, x) = (dy[i % k].operand(), x[i % k].operand());
        let (gamma, mean, rstd) = (gamma.operand(), mean.operand(), rstd.operand());
        let (dx, dgamma, dbeta) = (dx.operand(), dgamma.operand(), dbeta.operand());
        let mut io = GroupNormBwd::new(g.view()?, x.view()?, mean.view()?, rstd.view()?);
        io.gamma = Some(gamma.view()?);
        (io.dx, io.dgamma, io.dbeta) =
            (Some(dx.grad(false)?), Some(dgamma.grad(false)?), Some(dbeta.grad(false)?));
        Ok(d.group_norm_bwd(&p, io)?)
    });
    Ok(Prepared { fwd: work(2 * bytes, 0.0, forward), bwd: Some(bwd) })
}
