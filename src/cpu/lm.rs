//! Rotary embedding, vocabulary loss and mixture of experts on the CPU, in f64.

use rayon::prelude::*;

use super::loss::class_ids;
use super::scratch::*;
use super::{CpuBackend, gather, gather_f64, store, store_f64, store_grad};
use crate::buffer::{GradMut, View, ViewMut};
use crate::error::Result;
use crate::ops::*;

/// Rows of a vocabulary loss whose logits exist at a time.
const ROWS: usize = 64;

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn add(y: &mut [f64], f: f64, x: &[f64]) {
    y.iter_mut().zip(x).for_each(|(y, x)| *y += f * x);
}

/// x with its pairs rotated by `sign` times the angles.
fn rotate(
    op: &'static str,
    p: &Rope,
    s: RopeSize,
    sign: f64,
    x: View<'_>,
    positions: Option<View<'_>>,
) -> Result<Vec<f64>> {
    let mut y = gather_f64(op, x)?;
    let at = positions.map(|v| gather::<i32>(op, v)).transpose()?;
    let half = s.r / 2;
    for (n, head) in y.chunks_mut(s.d).enumerate() {
        let (b, l) = (n / s.h / s.l, n / s.h % s.l);
        let position = at.as_ref().map_or(p.offset + l as i64, |a| i64::from(a[b * s.step + l])) as f64;
        for i in 0..half {
            let angle = sign * position * p.base.powf(-2.0 * i as f64 / s.r as f64);
            let (j, k) = match p.layout {
                RopeLayout::Half => (i, i + half),
                RopeLayout::Interleaved => (2 * i, 2 * i + 1),
            };
            let (a, b) = (head[j], head[k]);
            head[j] = a * angle.cos() - b * angle.sin();
            head[k] = a * angle.sin() + b * angle.cos();
        }
    }
    Ok(y)
}

/// A linear layer with its targets.
struct Linear<'a> {
    p: &'a LinearCrossEntropy,
    d: usize,
    v: usize,
    h: Vec<f64>,
    w: Vec<f64>,
    b: Option<Vec<f64>>,
    ids: Option<Vec<i64>>,
    probs: Vec<f64>,
}

/// One row: its (capped) logits, target shares (empty for a row that does not count), and logarithm of the sum of exponentials.
struct Item {
    c: Vec<f64>,
    q: Vec<f64>,
    lse: f64,
}

impl<'a> Linear<'a> {
    fn new(
        op: &'static str,
        p: &'a LinearCrossEntropy,
        [_, d, v]: [usize; 3],
        [h, w, target]: [View<'_>; 3],
        b: Option<View<'_>>,
    ) -> Result<Self> {
        let ids = class_ids(op, target)?;
        let probs = if ids.is_none() { gather_f64(op, target)? } else { Vec::new() };
        let b = b.map(|b| gather_f64(op, b)).transpose()?;
        Ok(Linear { p, d, v, h: gather_f64(op, h)?, w: gather_f64(op, w)?, b, ids, probs })
    }

    /// Whether a row counts; `None` for an id out of range.
    fn counts(&self, row: usize) -> Option<bool> {
        match &self.ids {
            Some(ids) if ids[row] == self.p.ignore_index => Some(false),
            Some(ids) => usize::try_from(ids[row]).ok().filter(|&i| i < self.v).map(|_| true),
            None => Some(true),
        }
    }

    fn item(&self, row: usize) -> Result<Item> {
        let h = &self.h[row * self.d..(row + 1) * self.d];
        let cap = self.p.softcap;
        let logit = |k: usize| {
            let z = dot(h, &self.w[k * self.d..(k + 1) * self.d]) + self.b.as_ref().map_or(0.0, |b| b[k]);
            if cap > 0.0 { cap * (z / cap).tanh() } else { z }
        };
        let c: Vec<f64> = (0..self.v).map(logit).try_vec()?;
        let m = c.iter().fold(f64::NEG_INFINITY, |m, &x| if m.is_nan() || m > x { m } else { x });
        let lse = if m.is_infinite() { m } else { m + c.iter().map(|x| (x - m).exp()).sum::<f64>().ln() };
        let (e, share) = (self.p.label_smoothing, self.p.label_smoothing / self.v as f64);
        let q = match &self.ids {
            _ if self.counts(row) != Some(true) => Vec::new(),
            Some(ids) => {
                (0..self.v).map(|k| share + if k as i64 == ids[row] { 1.0 - e } else { 0.0 }).try_vec()?
            }
            None => self.probs[row * self.v..(row + 1) * self.v]
                .iter()
                .map(|q| (1.0 - e) * q + share)
                .try_vec()?,
        };
        Ok(Item { c, q, lse })
    }
}

impl Item {
    fn loss(&self, z_loss: f64) -> f64 {
        if self.q.is_empty() {
            return 0.0;
        }
        let terms = self.c.iter().zip(&self.q).filter(|(_, q)| **q != 0.0);
        let extra = if z_loss != 0.0 { z_loss * self.lse * self.lse } else { 0.0 };
        terms.map(|(c, q)| q * (self.lse - c)).sum::<f64>() + extra
    }

    /// Gradient by the logits before the cap.
    fn grad(&self, p: &LinearCrossEntropy) -> Result<Vec<f64>> {
        if self.q.is_empty() {
            return filled(self.c.len(), 0.0);
        }
        let total = self.q.iter().sum::<f64>() + 2.0 * p.z_loss * self.lse;
        let slope = |c: f64| if p.softcap > 0.0 { 1.0 - (c / p.softcap).powi(2) } else { 1.0 };
        self.c.iter().zip(&self.q).map(|(c, q)| (total * (c - self.lse).exp() - q) * slope(*c)).try_vec()
    }
}

fn scores(p: &MoeRouter, x: &[f64]) -> Result<Vec<f64>> {
    match p.score {
        RouterScore::Sigmoid => x.iter().map(|x| 1.0 / (1.0 + (-x).exp())).try_vec(),
        RouterScore::Softmax => {
            let m = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let e: Vec<f64> = x.iter().map(|x| (x - m).exp()).try_vec()?;
            let s: f64 = e.iter().sum();
            e.iter().map(|e| e / s).try_vec()
        }
    }
}

impl CpuBackend {
    /// The assignments in the order of the rows; `None` where out of range, which is reported.
    fn assignments(&self, op: &'static str, perm: View<'_>) -> Result<Vec<Option<usize>>> {
        let n = perm.numel();
        let all: Vec<_> = gather::<i32>(op, perm)?
            .into_iter()
            .map(|i| usize::try_from(i).ok().filter(|&i| i < n))
            .try_vec()?;
        if all.contains(&None) {
            self.flag_index_error(op);
        }
        Ok(all)
    }
}

/// y[t] += f(assignment) * x[i] for every row i of token t, in the order of the choices.
fn combine(
    [t, k, d]: [usize; 3],
    x: &[f64],
    at: &[Option<usize>],
    f: impl Fn(usize) -> f64,
) -> Result<Vec<f64>> {
    let mut place = repeated(t * k, None)?;
    for (i, a) in at.iter().enumerate() {
        if let Some(a) = a {
            place[*a] = Some(i);
        }
    }
    let mut y = filled(t * d, 0.0)?;
    for (a, i) in place.into_iter().enumerate() {
        if let Some(i) = i {
            add(&mut y[a / k * d..(a / k + 1) * d], f(a), &x[i * d..(i + 1) * d]);
        }
    }
    Ok(y)
}

impl LmOps for CpuBackend {
    fn rope(&self, p: &Rope, x: View<'_>, positions: Option<View<'_>>, y: ViewMut<'_>) -> Result<()> {
        const OP: &str = "rope";
        let s = check_rope(OP, p, ("x", &x), positions.as_ref(), ("y", &y))?;
        self.count();
        if y.numel() == 0 {
            return Ok(());
        }
        store_f64(OP, &y, &rotate(OP, p, s, 1.0, x, positions)?)
    }

    fn rope_bwd(&self, p: &Rope, dy: View<'_>, positions: Option<View<'_>>, dx: GradMut<'_>) -> Result<()> {
        const OP: &str = "rope_bwd";
        let s = check_rope(OP, p, ("dy", &dy), positions.as_ref(), ("dx", &dx.out))?;
        self.count();
        if dy.numel() == 0 {
            return Ok(());
        }
        store_grad(OP, &dx, &rotate(OP, p, s, -1.0, dy, positions)?)
    }

    fn fused_linear_cross_entropy(
        &self,
        p: &LinearCrossEntropy,
        io: LinearCrossEntropyFwd<'_>,
    ) -> Result<()> {
        const OP: &str = "fused_linear_cross_entropy";
        let size = check_linear_cross_entropy(p, &io)?;
        self.count();
        let x = Linear::new(OP, p, size, [io.h, io.w, io.target], io.b)?;
        let rows: Vec<(f64, f64)> = (0..size[0])
            .into_par_iter()
            .map(|row| {
                let item = x.item(row)?;
                Ok((item.loss(p.z_loss), item.lse))
            })
            .try_vec()?
            .into_iter()
            .try_vec_ok()?;
        if (0..size[0]).any(|row| x.counts(row).is_none()) {
            self.flag_index_error(OP);
        }
        if let Some(l) = &io.lse {
            store_f64(OP, l, &rows.iter().map(|r| r.1).try_vec()?)?;
        }
        let items: Vec<f64> = rows.iter().map(|r| r.0).try_vec()?;
        let count = (0..size[0]).filter(|&row| x.counts(row) == Some(true)).count();
        match p.reduction {
            Reduction::None => store_f64(OP, &io.loss, &items),
            Reduction::Sum => store_f64(OP, &io.loss, &[items.iter().sum()]),
            Reduction::Mean => store_f64(OP, &io.loss, &[items.iter().sum::<f64>() / count as f64]),
        }
    }

    fn fused_linear_cross_entropy_bwd(
        &self,
        p: &LinearCrossEntropy,
        io: LinearCrossEntropyBwd<'_>,
    ) -> Result<()> {
        const OP: &str = "fused_linear_cross_entropy_bwd";
        let [n, d, v] = check_linear_cross_entropy_bwd(p, &io)?;
        self.count();
        let x = Linear::new(OP, p, [n, d, v], [io.h, io.w, io.target], io.b)?;
        let gy = gather_f64(OP, io.gy)?;
        if (0..n).any(|row| x.counts(row).is_none()) {
            self.flag_index_error(OP);
        }
        let count = (0..n).filter(|&row| x.counts(row) == Some(true)).count() as f64;
        let upstream = |row: usize| match p.reduction {
            Reduction::None => gy[row],
            Reduction::Sum => gy[0],
            Reduction::Mean => gy[0] / count,
        };
        let (mut dh, mut dw, mut db) = (filled(n * d, 0.0)?, filled(v * d, 0.0)?, filled(v, 0.0)?);
        for first in (0..n).step_by(ROWS) {
            let rows = first..(first + ROWS).min(n);
            let dz: Vec<Vec<f64>> = rows
                .clone()
                .into_par_iter()
                .map(|row| {
                    let g = upstream(row);
                    // A row that does not count has no gradient, whatever comes from above.
                    let counts = x.counts(row) == Some(true);
                    x.item(row)?.grad(p)?.into_iter().map(|z| if counts { g * z } else { 0.0 }).try_vec()
                })
                .try_vec()?
                .into_iter()
                .try_vec_ok()?;
            for (row, dz) in rows.clone().zip(&dz) {
                dz.iter().enumerate().for_each(|(k, &z)| {
                    add(&mut dh[row * d..(row + 1) * d], z, &x.w[k * d..(k + 1) * d]);
                });
            }
            db.par_iter_mut().enumerate().for_each(|(k, b)| *b += dz.iter().map(|z| z[k]).sum::<f64>());
            dw.par_chunks_mut(d.max(1)).enumerate().for_each(|(k, w)| {
                for (row, dz) in rows.clone().zip(&dz) {
                    add(w, dz[k], &x.h[row * d..(row + 1) * d]);
                }
            });
        }
        for (g, values) in [(io.dh, &dh), (io.dw, &dw), (io.db, &db)] {
            g.map_or(Ok(()), |g| store_grad(OP, &g, values))?;
        }
        Ok(())
    }

    fn moe_router(&self, p: &MoeRouter, io: MoeRouterIo<'_>) -> Result<()> {
        const OP: &str = "moe_router";
        let [t, e, k] = check_moe_router(&io)?;
        self.count();
        let logits = gather_f64(OP, io.logits)?;
        let (mut weights, mut ids) = (with_capacity(t * k)?, with_capacity(t * k)?);
        for row in logits.chunks(e) {
            let rank = |i: usize| if row[i].is_nan() { f64::NEG_INFINITY } else { row[i] };
            let mut order: Vec<usize> = (0..e).try_vec()?;
            order.sort_unstable_by(|&a, &b| {
                rank(b).partial_cmp(&rank(a)).unwrap_or(std::cmp::Ordering::Equal).then(a.cmp(&b))
            });
            let s = scores(p, row)?;
            let chosen: f64 = order[..k].iter().map(|&i| s[i]).sum();
            for &i in &order[..k] {
                weights.try_push(if p.renormalize { s[i] / chosen } else { s[i] })?;
                ids.try_push(i as i32)?;
            }
        }
        let mut perm: Vec<i32> = (0..ids.len() as i32).try_vec()?;
        perm.sort_unstable_by_key(|&a| (ids[a as usize], a));
        let mut offsets = filled(e + 1, 0i32)?;
        ids.iter().for_each(|&i| offsets[i as usize + 1] += 1);
        store(OP, &io.counts, &offsets[1..])?;
        (0..e).for_each(|i| offsets[i + 1] += offsets[i]);
        store(OP, &io.offsets, &offsets)?;
        store(OP, &io.perm, &perm)?;
        store(OP, &io.ids, &ids)?;
        store_f64(OP, &io.weights, &weights)
    }

    fn moe_router_bwd(
        &self,
        p: &MoeRouter,
        dweights: View<'_>,
        logits: View<'_>,
        ids: View<'_>,
        dlogits: GradMut<'_>,
    ) -> Result<()> {
        const OP: &str = "moe_router_bwd";
        let [t, e, k] = check_moe_router_bwd(&dweights, &logits, &ids, &dlogits)?;
        self.count();
        let (dw, x, ids) = (gather_f64(OP, dweights)?, gather_f64(OP, logits)?, gather::<i32>(OP, ids)?);
        let mut dx = filled(t * e, 0.0)?;
        for row in 0..t {
            let (ids, dw) = (&ids[row * k..(row + 1) * k], &dw[row * k..(row + 1) * k]);
            let s = scores(p, &x[row * e..(row + 1) * e])?;
            let chosen: Vec<(usize, f64)> = ids
                .iter()
                .zip(dw)
                .filter_map(|(&i, &g)| usize::try_from(i).ok().filter(|&i| i < e).map(|i| (i, g)))
                .try_vec()?;
            if chosen.len() < k {
                self.flag_index_error(OP);
            }
            let sum: f64 = chosen.iter().map(|&(i, _)| s[i]).sum();
            let mean = chosen.iter().map(|&(i, g)| g * s[i]).sum::<f64>() / sum;
            let mut ds = filled(e, 0.0)?;
            for (i, g) in chosen {
                ds[i] += if p.renormalize { (g - mean) / sum } else { g };
            }
            let back = dot(&ds, &s);
            for i in 0..e {
                dx[row * e + i] = match p.score {
                    RouterScore::Softmax => s[i] * (ds[i] - back),
                    RouterScore::Sigmoid => s[i] * (1.0 - s[i]) * ds[i],
                };
            }
        }
        store_grad(OP, &dlogits, &dx)
    }

    fn moe_permute(&self, x: View<'_>, perm: View<'_>, y: ViewMut<'_>) -> Result<()> {
        const OP: &str = "moe_permute";
        let [_, k, d] = check_moe_permute(&x, &perm, &y)?;
        self.count();
        let (x, at) = (gather_f64(OP, x)?, self.assignments(OP, perm)?);
        let mut out = filled(at.len() * d, 0.0)?;
        for (i, a) in at.iter().enumerate() {
            if let Some(a) = a {
                out[i * d..(i + 1) * d].copy_from_slice(&x[a / k * d..(a / k + 1) * d]);
            }
        }
        store_f64(OP, &y, &out)
    }

    fn moe_permute_bwd(&self, dy: View<'_>, perm: View<'_>, dx: GradMut<'_>) -> Result<()> {
        const OP: &str = "moe_permute_bwd";
        let size = check_moe_permute_bwd(&dy, &perm, &dx)?;
        self.count();
        let (dy, at) = (gather_f64(OP, dy)?, self.assignments(OP, perm)?);
        store_grad(OP, &dx, &combine(size, &dy, &at, |_| 1.0)?)
    }

    fn moe_unpermute(&self, x: View<'_>, perm: View<'_>, weights: View<'_>, y: ViewMut<'_>) -> Result<()> {
        const OP: &str = "moe_unpermute";
        let size = check_moe_unpermute(&x, &perm, &weights, &y)?;
        self.count();
        let (x, w, at) = (gather_f64(OP, x)?, gather_f64(OP, weights)?, self.assignments(OP, perm)?);
        store_f64(OP, &y, &combine(size, &x, &at, |a| w[a])?)
    }

    fn moe_unpermute_bwd(&self, io: MoeUnpermuteBwd<'_>) -> Result<()> {
        const OP: &str = "moe_unpermute_bwd";
        let [t, k, d] = check_moe_unpermute_bwd(&io)?;
        self.count();
        let (dy, x, w) = (gather_f64(OP, io.dy)?, gather_f64(OP, io.x)?, gather_f64(OP, io.weights)?);
        let at = self.assignments(OP, io.perm)?;
        let (mut dx, mut dw) = (filled(at.len() * d, 0.0)?, filled(t * k, 0.0)?);
        for (i, a) in at.iter().enumerate() {
            if let Some(a) = *a {
                let g = &dy[a / k * d..(a / k + 1) * d];
                add(&mut dx[i * d..(i + 1) * d], w[a], g);
                dw[a] = dot(g, &x[i * d..(i + 1) * d]);
            }
        }
        io.dx.map_or(Ok(()), |g| store_grad(OP, &g, &dx))?;
        io.dweights.map_or(Ok(()), |g| store_grad(OP, &g, &dw))
    }
}
