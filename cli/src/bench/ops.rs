//! The operations that can be timed.

use trefoil::DType;
use trefoil::ops::{
    Activation, Binary, BinaryBwd, ClipNorm, CrossEntropy, CrossEntropyBwd, CrossEntropyFwd, Distribution,
    DropoutMask, Gemm, GemmBwd, GemmIo, Loss, LossBwd, LossFwd, OptimRule, ParamSlot, Precision, Reduce,
    Reduction, Rng, Saved, Softmax, Step,
};
use trefoil_nn::layers::activation_from_name;
use trefoil_nn::{Device, Tensor};

use super::case::Case;
use super::timing::{Prepared, Work};
use crate::error::Result;

/// Input sets together exceed every current L2 cache.
const ROTATE_BYTES: usize = 256 << 20;

/// Number of input sets for sets of this size.
pub(super) fn sets(bytes: usize) -> usize {
    ROTATE_BYTES.div_ceil(bytes.max(1)).clamp(1, 8)
}

/// Normal numbers; never zeros, which some devices move and multiply faster.
pub(super) fn random(d: &Device, dtype: DType, shape: &[usize], seed: u64, std: f64) -> Result<Tensor> {
    Ok(Tensor::random(d, dtype, shape, Distribution::Normal { mean: 0.0, std }, Rng::new(seed))?)
}

pub(super) fn randoms(
    d: &Device,
    dtype: DType,
    shape: &[usize],
    count: usize,
    tag: u64,
) -> Result<Vec<Tensor>> {
    (0..count as u64).map(|i| random(d, dtype, shape, 1000 * tag + i, 1.0)).collect()
}

pub(super) fn work(bytes: usize, flops: f64, queue: impl Fn(usize) -> Result<()> + 'static) -> Work {
    Work { queue: Box::new(queue), bytes: bytes as f64, flops }
}

fn act(c: &Case, key: &str) -> Result<Activation> {
    activation_from_name(c.text(key)?).ok_or_else(|| c.unknown(key, "an activation"))
}

/// A case ready to run; `None` if the operation is not in this build.
pub(crate) fn prepare(c: &Case, d: &Device) -> Result<Option<Prepared>> {
    Ok(Some(match c.op() {
        "copy" => copy(c, d)?,
        "activation" => activation(c, d)?,
        "binary_broadcast" => binary_broadcast(c, d)?,
        "reduce_sum" => reduce_sum(c, d)?,
        "permute" => permute(c, d)?,
        "softmax" => softmax(c, d)?,
        "gemm" => gemm(c, d)?,
        "linear_act" => linear_act(c, d)?,
        "mse" => mse(c, d)?,
        "cross_entropy" => cross_entropy(c, d)?,
        "optimizer" => return optimizer(c, d),
        "clip_norm" => clip_norm(c, d)?,
        "dropout" => dropout(c, d)?,
        _ => return prepare_in_families(c, d),
    }))
}

fn prepare_in_families(c: &Case, d: &Device) -> Result<Option<Prepared>> {
    for prepare in [
        super::attention::prepare,
        super::conv::prepare,
        super::embedding::prepare,
        super::gnn::prepare,
        super::mesh::prepare,
        super::norm::prepare,
        super::pool::prepare,
        super::resample::prepare,
        super::rnn::prepare,
        super::train::prepare,
    ] {
        if let Some(p) = prepare(c, d)? {
            return Ok(Some(p));
        }
    }
    Ok(None)
}

fn copy(c: &Case, d: &Device) -> Result<Prepared> {
    let (n, t) = (c.size("n")?, c.dtype()?);
    let k = sets(2 * n * t.size());
    let (x, y) = (randoms(d, t, &[n], k, 1)?, Tensor::empty(d, t, &[n])?);
    let d = d.clone();
    let fwd =
        work(
            2 * n * t.size(),
            0.0,
            move |i| Ok(d.copy(x[i % k].operand().view()?, y.operand().view_mut()?)?),
        );
    Ok(Prepared { fwd, bwd: None })
}

fn activation(c: &Case, d: &Device) -> Result<Prepared> {
    let (n, t, a) = (c.size("n")?, c.dtype()?, act(c, "kind")?);
    let bytes = n * t.size();
    let k = sets(2 * bytes);
    let (x, y) = (randoms(d, t, &[n], k, 1)?, Tensor::empty(d, t, &[n])?);
    let (dy, dx) = (randoms(d, t, &[n], k, 2)?, Tensor::empty(d, t, &[n])?);
    let output = matches!(a, Activation::Sigmoid | Activation::Tanh);
    let (d1, d2, x2) = (d.clone(), d.clone(), x.clone());
    let fwd = work(2 * bytes, 0.0, move |i| {
        Ok(d1.activation(a, x[i % k].operand().view()?, y.operand().view_mut()?)?)
    });
    let bwd = work(3 * bytes, 0.0, move |i| {
        let s = x2[i % k].operand();
        let s = if output { Saved::Output(s.view()?) } else { Saved::Input(s.view()?) };
        Ok(d2.activation_bwd(a, dy[i % k].operand().view()?, s, dx.operand().grad(false)?)?)
    });
    Ok(Prepared { fwd, bwd: Some(bwd) })
}

fn binary_broadcast(c: &Case, d: &Device) -> Result<Prepared> {
    let (r, n, t) = (c.size("rows")?, c.size("cols")?, c.dtype()?);
    let bytes = r * n * t.size();
    let k = sets(2 * bytes);
    let (a, b) = (randoms(d, t, &[r, n], k, 1)?, randoms(d, t, &[n], k, 2)?);
    let (y, dy) = (Tensor::empty(d, t, &[r, n])?, randoms(d, t, &[r, n], k, 3)?);
    let (da, db) = (Tensor::empty(d, t, &[r, n])?, Tensor::empty(d, t, &[n])?);
    let (d1, d2, a2, b2) = (d.clone(), d.clone(), a.clone(), b.clone());
    let fwd = work(2 * bytes, 0.0, move |i| {
        let (a, b) = (a[i % k].operand(), b[i % k].operand());
        Ok(d1.binary(Binary::Mul, a.view()?, b.view()?, y.operand().view_mut()?)?)
    });
    let bwd = work(3 * bytes, 0.0, move |i| {
        let (g, a, b) = (dy[i % k].operand(), a2[i % k].operand(), b2[i % k].operand());
        let (oa, ob) = (da.operand(), db.operand());
        let io = BinaryBwd {
            dy: g.view()?,
            a: a.view()?,
            b: b.view()?,
            da: Some(oa.grad(false)?),
            db: Some(ob.grad(false)?),
        };
        Ok(d2.binary_bwd(Binary::Mul, io)?)
    });
    Ok(Prepared { fwd, bwd: Some(bwd) })
}

fn reduce_sum(c: &Case, d: &Device) -> Result<Prepared> {
    let (r, n, t, axis) = (c.size("rows")?, c.size("cols")?, c.dtype()?, c.axis("axis")?);
    if axis > 1 {
        return Err(c.unknown("axis", "0 or 1"));
    }
    let bytes = r * n * t.size();
    let k = sets(bytes);
    let x = randoms(d, t, &[r, n], k, 1)?;
    let y = Tensor::empty(d, t, &[if axis == 0 { n } else { r }])?;
    let d = d.clone();
    let fwd = work(bytes, 0.0, move |i| {
        Ok(d.reduce(Reduce::Sum, &[axis], x[i % k].operand().view()?, y.operand().view_mut()?)?)
    });
    Ok(Prepared { fwd, bwd: None })
}

fn permute(c: &Case, d: &Device) -> Result<Prepared> {
    let (shape, perm, t) = (c.list("shape")?, c.list("perm")?, c.dtype()?);
    let bytes = shape.iter().product::<usize>() * t.size();
    let k = sets(2 * bytes);
    let order: Vec<isize> = perm.iter().map(|&p| p as isize).collect();
    let x = randoms(d, t, &shape, k, 1)?;
    let views = x.iter().map(|x| x.permute(&order)).collect::<trefoil_nn::Result<Vec<_>>>()?;
    let y = Tensor::empty(d, t, views[0].shape())?;
    let d = d.clone();
    let fwd = work(2 * bytes, 0.0, move |i| {
        Ok(d.strided_copy(views[i % k].operand().view()?, y.operand().grad(false)?)?)
    });
    Ok(Prepared { fwd, bwd: None })
}

fn softmax(c: &Case, d: &Device) -> Result<Prepared> {
    let (r, n, t) = (c.size("rows")?, c.size("cols")?, c.dtype()?);
    let bytes = r * n * t.size();
    let k = sets(2 * bytes);
    let (x, dy) = (randoms(d, t, &[r, n], k, 1)?, randoms(d, t, &[r, n], k, 2)?);
    let y = x.iter().map(|x| x.softmax(1)).collect::<trefoil_nn::Result<Vec<_>>>()?;
    let (out, dx) = (Tensor::empty(d, t, &[r, n])?, Tensor::empty(d, t, &[r, n])?);
    let (d1, d2) = (d.clone(), d.clone());
    let kind = Softmax::Softmax;
    let fwd = work(2 * bytes, 0.0, move |i| {
        Ok(d1.softmax(kind, 1, x[i % k].operand().view()?, out.operand().view_mut()?)?)
    });
    let bwd = work(3 * bytes, 0.0, move |i| {
        let (g, y) = (dy[i % k].operand(), y[i % k].operand());
        Ok(d2.softmax_bwd(kind, 1, g.view()?, y.view()?, dx.operand().grad(false)?)?)
    });
    Ok(Prepared { fwd, bwd: Some(bwd) })
}

pub(super) fn precision(c: &Case) -> Precision {
    if c.flag("tf32") { Precision::Tf32 } else { Precision::Ieee }
}

fn gemm(c: &Case, d: &Device) -> Result<Prepared> {
    let (m, n, k, t) = (c.size("m")?, c.size("n")?, c.size("k")?, c.dtype()?);
    let b = c.size_or("batch", 1)?;
    let shape = |r: usize, c: usize| if b > 1 { vec![b, r, c] } else { vec![r, c] };
    let bytes = b * (m * k + k * n + m * n) * t.size();
    let s = sets(bytes);
    let (x, w) = (randoms(d, t, &shape(m, k), s, 1)?, randoms(d, t, &shape(k, n), s, 2)?);
    let y = Tensor::empty(d, t, &shape(m, n))?;
    let (d, p) = (d.clone(), Gemm::new().precision(precision(c)));
    let fwd = work(bytes, 2.0 * (b * m * n) as f64 * k as f64, move |i| {
        let (x, w, y) = (x[i % s].operand(), w[i % s].operand(), y.operand());
        Ok(d.gemm(&p, GemmIo::new(x.view()?, w.view()?, y.view_mut()?))?)
    });
    Ok(Prepared { fwd, bwd: None })
}

fn linear_act(c: &Case, d: &Device) -> Result<Prepared> {
    let (m, n, k, t) = (c.size("m")?, c.size("n")?, c.size("k")?, c.dtype()?);
    let a = act(c, "act")?;
    let size = t.size();
    let s = sets((m * k + n * k + m * n) * size);
    let x = randoms(d, t, &[m, k], s, 1)?;
    let w = (0..s as u64)
        .map(|i| random(d, t, &[n, k], 2000 + i, (k as f64).powf(-0.5)))
        .collect::<Result<Vec<_>>>()?;
    let (bias, dy) = (random(d, t, &[n], 3, 1.0)?, randoms(d, t, &[m, n], s, 4)?);
    let (y, z) = (Tensor::empty(d, t, &[m, n])?, Tensor::empty(d, t, &[m, n])?);
    let by_output = a.reads_output();
    let needs_z = !by_output && a != Activation::Identity;
    let p = Gemm::new().trans(false, true).act(a).precision(precision(c));
    let queue = {
        let (d, x, w, y, z) = (d.clone(), x.clone(), w.clone(), y.clone(), z.clone());
        move |i: usize| -> Result<()> {
            let (x, w, b) = (x[i % s].operand(), w[i % s].operand(), bias.operand());
            let (y, z) = (y.operand(), z.operand());
            let mut io = GemmIo::new(x.view()?, w.view()?, y.view_mut()?);
            io.bias = Some(b.view()?);
            io.z = if needs_z { Some(z.view_mut()?) } else { None };
            Ok(d.gemm(&p, io)?)
        }
    };
    // The backward reads what one forward saved.
    queue(0)?;
    let flops = 2.0 * (m * n) as f64 * k as f64;
    let outputs = if needs_z { 2 } else { 1 };
    let fwd = work((m * k + n * k + n + outputs * m * n) * size, flops, queue);
    let (dx, dw, db) =
        (Tensor::empty(d, t, &[m, k])?, Tensor::empty(d, t, &[n, k])?, Tensor::empty(d, t, &[n])?);
    let d = d.clone();
    let bwd = work((2 * (m * k + n * k) + n + 2 * m * n) * size, 2.0 * flops, move |i| {
        let (g, x, w) = (dy[i % s].operand(), x[i % s].operand(), w[i % s].operand());
        let saved = match (needs_z, by_output) {
            (true, _) => Some(z.operand()),
            (_, true) => Some(y.operand()),
            _ => None,
        };
        let (dx, dw, db) = (dx.operand(), dw.operand(), db.operand());
        let io = GemmBwd {
            dy: g.view()?,
            a: x.view()?,
            b: w.view()?,
            saved: saved.as_ref().map(|s| s.view()).transpose()?,
            da: Some(dx.grad(false)?),
            db: Some(dw.grad(false)?),
            dbias: Some(db.grad(false)?),
        };
        Ok(d.gemm_bwd(&p, io)?)
    });
    Ok(Prepared { fwd, bwd: Some(bwd) })
}

fn mse(c: &Case, d: &Device) -> Result<Prepared> {
    let (n, t) = (c.size("n")?, c.dtype()?);
    let bytes = n * t.size();
    let k = sets(2 * bytes);
    let (p, y) = (randoms(d, t, &[n], k, 1)?, randoms(d, t, &[n], k, 2)?);
    let (loss, gy) = (Tensor::empty(d, t.accumulator(), &[])?, Tensor::ones(d, t.accumulator(), &[])?);
    let dp = Tensor::empty(d, t, &[n])?;
    let (d1, d2, p2, y2) = (d.clone(), d.clone(), p.clone(), y.clone());
    let fwd = work(2 * bytes, 0.0, move |i| {
        let (p, t, l) = (p[i % k].operand(), y[i % k].operand(), loss.operand());
        let io = LossFwd { p: p.view()?, t: t.view()?, weight: None, mask: None, loss: l.view_mut()? };
        Ok(d1.loss(Loss::Mse, Reduction::Mean, io)?)
    });
    let bwd = work(3 * bytes, 0.0, move |i| {
        let (g, p, t, o) = (gy.operand(), p2[i % k].operand(), y2[i % k].operand(), dp.operand());
        let io = LossBwd {
            gy: g.view()?,
            p: p.view()?,
            t: t.view()?,
            weight: None,
            mask: None,
            dp: Some(o.grad(false)?),
            dt: None,
        };
        Ok(d2.loss_bwd(Loss::Mse, Reduction::Mean, io)?)
    });
    Ok(Prepared { fwd, bwd: Some(bwd) })
}

fn cross_entropy(c: &Case, d: &Device) -> Result<Prepared> {
    let (r, n, t) = (c.size("rows")?, c.size("cols")?, c.dtype()?);
    let bytes = r * n * t.size();
    let k = sets(bytes);
    let acc = t.accumulator();
    let x = randoms(d, t, &[r, n], k, 1)?;
    let ids = Tensor::random(d, DType::I64, &[r], Distribution::Int { lo: 0, hi: n as i64 }, Rng::new(7))?;
    let (loss, gy) = (Tensor::empty(d, acc, &[])?, Tensor::ones(d, acc, &[])?);
    let (lse, den) = (Tensor::empty(d, acc, &[r])?, Tensor::empty(d, acc, &[])?);
    let dx = Tensor::empty(d, t, &[r, n])?;
    let p = CrossEntropy::new();
    let queue = {
        let (d, x, ids, lse, den) = (d.clone(), x.clone(), ids.clone(), lse.clone(), den.clone());
        move |i: usize| -> Result<()> {
            let (x, t, l) = (x[i % k].operand(), ids.operand(), loss.operand());
            let (s, n) = (lse.operand(), den.operand());
            let io = CrossEntropyFwd {
                x: x.view()?,
                target: t.view()?,
                weight: None,
                loss: l.view_mut()?,
                lse: Some(s.view_mut()?),
                den: Some(n.view_mut()?),
            };
            Ok(d.cross_entropy(&p, io)?)
        }
    };
    queue(0)?;
    let fwd = work(bytes, 0.0, queue);
    let d = d.clone();
    let bwd = work(2 * bytes, 0.0, move |i| {
        let (g, x, t) = (gy.operand(), x[i % k].operand(), ids.operand());
        let (s, n, o) = (lse.operand(), den.operand(), dx.operand());
        let io = CrossEntropyBwd {
            gy: g.view()?,
            x: x.view()?,
            target: t.view()?,
            weight: None,
            lse: s.view()?,
            den: Some(n.view()?),
            dx: o.grad(false)?,
        };
        Ok(d.cross_entropy_bwd(&p, io)?)
    });
    Ok(Prepared { fwd, bwd: Some(bwd) })
}

/// All tensors of the case lie in one buffer, as trefoil-nn's optimizers arrange them.
fn optimizer(c: &Case, d: &Device) -> Result<Option<Prepared>> {
    let rule = match c.text("kind")? {
        "sgd" => OptimRule::Sgd { wd: 0.0 },
        "sgd_momentum" => OptimRule::Momentum { mu: 0.9, damp: 0.0, wd: 0.0, nesterov: false },
        "rmsprop" => OptimRule::RmsProp { a: 0.99, eps: 1e-8, wd: 0.0, mu: 0.0, centered: false },
        "adagrad" => OptimRule::Adagrad { lr_decay: 0.0, eps: 1e-10, wd: 0.0 },
        "adadelta" => OptimRule::Adadelta { rho: 0.9, eps: 1e-6, wd: 0.0 },
        "adamax" => OptimRule::AdaMax { b1: 0.9, b2: 0.999, eps: 1e-8, wd: 0.0 },
        "nadam" => {
            OptimRule::Nadam { b1: 0.9, b2: 0.999, eps: 1e-8, wd: 0.0, psi: Some(4e-3), decoupled: false }
        }
        "adam" => OptimRule::Adam { b1: 0.9, b2: 0.999, eps: 1e-8, wd: 0.0 },
        "adamw" => OptimRule::AdamW { b1: 0.9, b2: 0.999, eps: 1e-8, wd: 0.01 },
        _ => return Ok(None),
    };
    let (n, t) = (c.total()?, c.dtype()?);
    let states = rule.states().len();
    let bytes = n * (3 * t.size() + 2 * states * t.accumulator().size());
    let k = sets(bytes);
    let (w, g) = (randoms(d, t, &[n], k, 1)?, randoms(d, t, &[n], k, 2)?);
    let state = (0..2 * k)
        .map(|_| Ok(Tensor::zeros(d, t.accumulator(), &[if states > 0 { n } else { 0 }])?))
        .collect::<Result<Vec<_>>>()?;
    let d = d.clone();
    let count = std::cell::Cell::new(0);
    let fwd = work(bytes, 0.0, move |i| {
        count.set(count.get() + 1);
        let j = i % k;
        let (w, g) = (w[j].operand(), g[j].operand());
        let (s0, s1) = (state[2 * j].operand(), state[2 * j + 1].operand());
        let s0 = if states > 0 { Some(s0.view_mut()?) } else { None };
        let s1 = if states > 1 { Some(s1.view_mut()?) } else { None };
        let slot = ParamSlot { w: w.view_mut()?, g: g.view()?, state: [s0, s1, None, None], copy: None };
        Ok(d.optimizer_step(&rule, &Step::host(1e-3, count.get()), &mut [slot])?)
    });
    Ok(Some(Prepared { fwd, bwd: None }))
}

fn clip_norm(c: &Case, d: &Device) -> Result<Prepared> {
    let (n, t) = (c.total()?, c.dtype()?);
    let bytes = n * t.size();
    let k = sets(bytes);
    let (g, total) = (randoms(d, t, &[n], k, 1)?, Tensor::empty(d, DType::F32, &[])?);
    let d = d.clone();
    // Read for the norm, read and written for the scaling.
    let fwd = work(3 * bytes, 0.0, move |i| {
        let (g, total) = (g[i % k].operand(), total.operand());
        Ok(d.clip_grad_norm(&ClipNorm::new(1.0), &mut [g.view_mut()?], total.view_mut()?)?)
    });
    Ok(Prepared { fwd, bwd: None })
}

fn dropout(c: &Case, d: &Device) -> Result<Prepared> {
    let (n, t) = (c.size("n")?, c.dtype()?);
    let bytes = n * t.size();
    let k = sets(2 * bytes);
    let (x, dy) = (randoms(d, t, &[n], k, 1)?, randoms(d, t, &[n], k, 2)?);
    let (y, dx) = (Tensor::empty(d, t, &[n])?, Tensor::empty(d, t, &[n])?);
    let (d1, d2, rng) = (d.clone(), d.clone(), Rng::new(9));
    let fwd = work(2 * bytes, 0.0, move |i| {
        Ok(d1.dropout(0.1, rng, x[i % k].operand().view()?, y.operand().view_mut()?, None)?)
    });
    let bwd = work(2 * bytes, 0.0, move |i| {
        let mask = DropoutMask::Regenerate(rng);
        Ok(d2.dropout_bwd(0.1, mask, dy[i % k].operand().view()?, dx.operand().grad(false)?)?)
    });
    Ok(Prepared { fwd, bwd: Some(bwd) })
}
