//! Rotary embedding, vocabulary loss and mixture of experts on the CPU, in f64.

mod sampling;

use crate::buffer::View;
use crate::cpu::loss::class_ids;
use crate::cpu::scratch::*;
use crate::cpu::values::{CHUNK, Share, collected, each_chunk};
use crate::cpu::{Kernels, gather_f64, store_f64, store_grad};
use crate::error::Result;
use crate::ops::language_model::*;
use crate::ops::loss::Reduction;

/// Rows of a vocabulary loss whose logits exist at a time.
const ROWS: usize = 64;

pub(in crate::cpu) fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

pub(in crate::cpu) fn add(y: &mut [f64], f: f64, x: &[f64]) {
    y.iter_mut().zip(x).for_each(|(y, x)| *y += f * x);
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

impl LanguageModelOps for Kernels {
    fn fused_linear_cross_entropy(
        &self,
        p: &LinearCrossEntropy,
        io: LinearCrossEntropyFwd<'_>,
    ) -> Result<()> {
        const OP: &str = "fused_linear_cross_entropy";
        let size = check_linear_cross_entropy(p, &io)?;
        let _timed = self.count("fused_linear_cross_entropy");
        let x = Linear::new(OP, p, size, [io.h, io.w, io.target], io.b)?;
        let one = |row: usize| x.item(row).map(|item| [item.loss(p.z_loss), item.lse]);
        let rows: Vec<[f64; 2]> = collected(size[0], 1, &one)?.into_iter().try_vec_ok()?;
        if (0..size[0]).any(|row| x.counts(row).is_none()) {
            self.flag_index_error(OP);
        }
        if let Some(l) = &io.lse {
            store_f64(OP, l, &rows.iter().map(|r| r[1]).try_vec()?)?;
        }
        let items: Vec<f64> = rows.iter().map(|r| r[0]).try_vec()?;
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
        let _timed = self.count("fused_linear_cross_entropy_bwd");
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
            let one = |i: usize| -> Result<Vec<f64>> {
                let (row, g) = (first + i, upstream(first + i));
                // A row that does not count has no gradient, whatever comes from above.
                let counts = x.counts(row) == Some(true);
                x.item(row)?.grad(p)?.into_iter().map(|z| if counts { g * z } else { 0.0 }).try_vec()
            };
            let dz: Vec<Vec<f64>> = collected(rows.len(), 1, &one)?.into_iter().try_vec_ok()?;
            for (row, dz) in rows.clone().zip(&dz) {
                dz.iter().enumerate().for_each(|(k, &z)| {
                    add(&mut dh[row * d..(row + 1) * d], z, &x.w[k * d..(k + 1) * d]);
                });
            }
            each_chunk(&mut db, CHUNK, Share::ANY, &|part, db| {
                let column = |k: usize| dz.iter().map(|z| z[part * CHUNK + k]).sum::<f64>();
                db.iter_mut().enumerate().for_each(|(k, b)| *b += column(k));
            });
            each_chunk(&mut dw, d.max(1), Share::ANY, &|k, w| {
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
}
