//! Mixture of experts: routing and permutation.

use crate::buffer::{GradMut, View, ViewMut};
use crate::cpu::language_model::{add, dot};
use crate::cpu::scratch::*;
use crate::cpu::scratch::{filled, repeated, with_capacity};
use crate::cpu::values::sort_positions;
use crate::cpu::{Kernels, gather, gather_f64, store, store_f64, store_grad};
use crate::error::Result;
use crate::ops::moe::{
    MoeOps, MoePermuteBwd, MoeRouter, MoeRouterIo, MoeUnpermute, MoeUnpermuteBwd, RouterScore,
    check_moe_permute, check_moe_permute_bwd, check_moe_router, check_moe_router_bwd, check_moe_unpermute,
    check_moe_unpermute_bwd,
};

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

impl Kernels {
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

impl MoeOps for Kernels {
    fn moe_router(&self, p: &MoeRouter, io: MoeRouterIo<'_>) -> Result<()> {
        const OP: &str = "moe_router";
        let [t, e, k] = check_moe_router(&io)?;
        let _timed = self.count("moe_router");
        let logits = gather_f64(OP, io.logits)?;
        let (mut weights, mut ids) = (with_capacity(t * k)?, with_capacity(t * k)?);
        for row in logits.chunks(e) {
            let rank = |i: usize| if row[i].is_nan() { f64::NEG_INFINITY } else { row[i] };
            let mut order: Vec<usize> = (0..e).try_vec()?;
            sort_positions(&mut order, &|a, b| {
                rank(b).partial_cmp(&rank(a)).unwrap_or(std::cmp::Ordering::Equal).then(a.cmp(&b))
            });
            let s = scores(p, row)?;
            let chosen: f64 = order[..k].iter().map(|&i| s[i]).sum();
            for &i in &order[..k] {
                weights.try_push(if p.renormalize { s[i] / chosen } else { s[i] })?;
                ids.try_push(i as i32)?;
            }
        }
        let mut by_expert: Vec<usize> = (0..ids.len()).try_vec()?;
        sort_positions(&mut by_expert, &|a, b| (ids[a], a).cmp(&(ids[b], b)));
        let perm: Vec<i32> = by_expert.iter().map(|&a| a as i32).try_vec()?;
        let mut offsets = filled(e + 1, 0i32)?;
        ids.iter().for_each(|&i| offsets[i as usize + 1] += 1);
        store(OP, &io.counts, &offsets[1..])?;
        (0..e).for_each(|i| offsets[i + 1] += offsets[i]);
        store(OP, &io.offsets, &offsets)?;
        store(OP, &io.perm, &perm)?;
        if let Some(inverse) = &io.inverse {
            let mut places = filled(perm.len(), 0i32)?;
            perm.iter().enumerate().for_each(|(i, &a)| places[a as usize] = i as i32);
            store(OP, inverse, &places)?;
        }
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
        let _timed = self.count("moe_router_bwd");
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
        let _timed = self.count("moe_permute");
        let (x, at) = (gather_f64(OP, x)?, self.assignments(OP, perm)?);
        let mut out = filled(at.len() * d, 0.0)?;
        for (i, a) in at.iter().enumerate() {
            if let Some(a) = a {
                out[i * d..(i + 1) * d].copy_from_slice(&x[a / k * d..(a / k + 1) * d]);
            }
        }
        store_f64(OP, &y, &out)
    }

    fn moe_permute_bwd(&self, io: MoePermuteBwd<'_>) -> Result<()> {
        const OP: &str = "moe_permute_bwd";
        let size = check_moe_permute_bwd(&io)?;
        let _timed = self.count("moe_permute_bwd");
        let (dy, at) = (gather_f64(OP, io.dy)?, self.assignments(OP, io.perm)?);
        store_grad(OP, &io.dx, &combine(size, &dy, &at, |_| 1.0)?)
    }

    fn moe_unpermute(&self, io: MoeUnpermute<'_>) -> Result<()> {
        const OP: &str = "moe_unpermute";
        let size = check_moe_unpermute(&io)?;
        let _timed = self.count("moe_unpermute");
        let (x, w, at) = (gather_f64(OP, io.x)?, gather_f64(OP, io.weights)?, self.assignments(OP, io.perm)?);
        store_f64(OP, &io.y, &combine(size, &x, &at, |a| w[a])?)
    }

    fn moe_unpermute_bwd(&self, io: MoeUnpermuteBwd<'_>) -> Result<()> {
        const OP: &str = "moe_unpermute_bwd";
        let [t, k, d] = check_moe_unpermute_bwd(&io)?;
        let _timed = self.count("moe_unpermute_bwd");
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
