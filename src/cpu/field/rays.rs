//! Samples along rays and what is seen along them, in f64.

use crate::buffer::{View, ViewMut};
use crate::cpu::random::Words;
use crate::cpu::scratch::*;
use crate::cpu::{Kernels, gather_f64, store_f64, store_grad};
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::field::*;
use crate::ops::random::Rng;

/// Parts of a stratum for element i of a result: uniform in [0, 1), or the middle.
fn parts(op: &'static str, rng: &Option<Rng<'_>>) -> Result<impl FnMut(usize) -> f64> {
    let mut words = rng.as_ref().map(|r| Words::new(op, r)).transpose()?;
    Ok(move |i| words.as_mut().map_or(0.5, |w| w.unit(DType::F32, i)))
}

/// Where the integral of weights over the intervals between edges reaches a share of the whole.
fn inverse(edges: &[f64], weights: &[f64], share: f64) -> Result<f64> {
    let total: f64 = weights.iter().sum();
    if !total.is_finite() {
        return Ok(f64::NAN);
    }
    if total == 0.0 {
        return inverse(edges, &filled(weights.len(), 1.0)?, share);
    }
    let (target, mut before, mut at) = (share * total, 0.0, (0, 0.0));
    for (k, w) in weights.iter().enumerate() {
        if before < target {
            at = (k, before);
        }
        before += w;
    }
    let (k, before) = at;
    let part = ((target - before) / weights[k]).min(1.0);
    Ok(edges[k] + part * (edges[k + 1] - edges[k]))
}

/// The weights of the samples of a ray, and the light that is left behind each.
fn weights(density: &[f64], delta: &[f64]) -> Result<(Vec<f64>, Vec<f64>)> {
    let (mut w, mut left) = (with_capacity(density.len())?, with_capacity(density.len())?);
    let mut depth = 0.0;
    for (density, delta) in density.iter().zip(delta) {
        let thickness = density * delta;
        w.try_push(f64::exp(-depth) * -f64::exp_m1(-thickness))?;
        depth += thickness;
        left.try_push(f64::exp(-depth))?;
    }
    Ok((w, left))
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// An operand's values, if it is there.
fn optional(op: &'static str, v: Option<View<'_>>) -> Result<Option<Vec<f64>>> {
    v.map(|v| gather_f64(op, v)).transpose()
}

impl RayOps for Kernels {
    fn ray_sampling(
        &self,
        rng: Option<Rng<'_>>,
        near: View<'_>,
        far: View<'_>,
        t: ViewMut<'_>,
    ) -> Result<()> {
        const OP: &str = "ray_sampling";
        let [rays, samples] = check_ray_sampling(&rng, &near, &far, &t)?;
        let _timed = self.count(OP);
        let (near, far, mut part) = (gather_f64(OP, near)?, gather_f64(OP, far)?, parts(OP, &rng)?);
        let mut all = with_capacity(t.numel())?;
        for r in 0..rays {
            all.try_extend((0..samples).map(|s| {
                let share = (s as f64 + part(r * samples + s)) / samples as f64;
                near[r] + (far[r] - near[r]) * share
            }))?;
        }
        store_f64(OP, &t, &all)
    }

    fn importance_sampling(
        &self,
        padding: f64,
        rng: Option<Rng<'_>>,
        edges: View<'_>,
        weights: View<'_>,
        t: ViewMut<'_>,
    ) -> Result<()> {
        const OP: &str = "importance_sampling";
        let [rays, intervals, samples] = check_importance_sampling(padding, &rng, &edges, &weights, &t)?;
        let _timed = self.count(OP);
        let (edges, mut part) = (gather_f64(OP, edges)?, parts(OP, &rng)?);
        // Never 0, which would be the left end of an interval without weight.
        let ahead = if rng.is_some() { 2f64.powi(-24) } else { 0.0 };
        let mut weights = gather_f64(OP, weights)?;
        weights.iter_mut().for_each(|w| *w = if *w < 0.0 { padding } else { *w + padding });
        let mut all = with_capacity(t.numel())?;
        for r in 0..rays {
            let edges = &edges[r * (intervals + 1)..][..intervals + 1];
            let weights = &weights[r * intervals..][..intervals];
            for n in 0..samples {
                let share = (n as f64 + part(r * samples + n) + ahead) / samples as f64;
                all.try_push(inverse(edges, weights, share)?)?;
            }
        }
        store_f64(OP, &t, &all)
    }

    fn volume_render(&self, io: VolumeRender<'_>) -> Result<()> {
        const OP: &str = "volume_render";
        let s = check_volume_render(&io)?;
        let _timed = self.count(OP);
        let (density, delta) = (gather_f64(OP, io.density)?, gather_f64(OP, io.delta)?);
        let (color, t) = (gather_f64(OP, io.color)?, optional(OP, io.t)?);
        let (mut y, mut opacity, mut depth) =
            (filled(io.y.numel(), 0.0)?, with_capacity(s.rays)?, Vec::new());
        let mut shares = with_capacity(density.len())?;
        for r in 0..s.rays {
            let of = r * s.samples..(r + 1) * s.samples;
            let (w, _) = weights(&density[of.clone()], &delta[of.clone()])?;
            let y = &mut y[r * s.channels..][..s.channels];
            for (i, w) in w.iter().enumerate() {
                let color = &color[(r * s.samples + i) * s.channels..][..s.channels];
                y.iter_mut().zip(color).for_each(|(y, c)| *y += w * c);
            }
            opacity.try_push(w.iter().sum::<f64>())?;
            if let Some(t) = &t {
                depth.try_push(dot(&w, &t[of]))?;
            }
            shares.try_extend(w)?;
        }
        store_f64(OP, &io.y, &y)?;
        io.opacity.map_or(Ok(()), |o| store_f64(OP, &o, &opacity))?;
        io.depth.map_or(Ok(()), |o| store_f64(OP, &o, &depth))?;
        io.weights.map_or(Ok(()), |o| store_f64(OP, &o, &shares))
    }

    fn volume_render_bwd(&self, io: VolumeRenderBwd<'_>) -> Result<()> {
        const OP: &str = "volume_render_bwd";
        let s = check_volume_render_bwd(&io)?;
        let _timed = self.count(OP);
        let (density, delta) = (gather_f64(OP, io.density)?, gather_f64(OP, io.delta)?);
        let (color, t) = (gather_f64(OP, io.color)?, optional(OP, io.t)?);
        let dy = optional(OP, io.dy)?.map_or_else(|| filled(s.rays * s.channels, 0.0), Ok)?;
        let (dopacity, ddepth) = (optional(OP, io.dopacity)?, optional(OP, io.ddepth)?);
        let dweights = optional(OP, io.dweights)?;
        let at = |v: &Option<Vec<f64>>, i: usize| v.as_ref().map_or(0.0, |v| v[i]);
        let mut thickness = filled(density.len(), 0.0)?;
        let (mut dcolor, mut dt) = (filled(color.len(), 0.0)?, filled(density.len(), 0.0)?);
        for r in 0..s.rays {
            let first = r * s.samples;
            let (w, left) = weights(&density[first..][..s.samples], &delta[first..][..s.samples])?;
            let dy = &dy[r * s.channels..][..s.channels];
            let mut later = 0.0;
            for i in (0..s.samples).rev() {
                let sample = (first + i) * s.channels..(first + i + 1) * s.channels;
                let seen = at(&dopacity, r) + at(&ddepth, r) * at(&t, first + i) + at(&dweights, first + i);
                let g = dot(dy, &color[sample.clone()]) + seen;
                thickness[first + i] = g * left[i] - later;
                later += g * w[i];
                dcolor[sample].iter_mut().zip(dy).for_each(|(d, g)| *d = w[i] * g);
                dt[first + i] = w[i] * at(&ddepth, r);
            }
        }
        let times = |v: &[f64]| v.iter().zip(&thickness).map(|(v, d)| v * d).try_vec();
        io.ddensity.map_or(Ok(()), |g| store_grad(OP, &g, &times(&delta)?))?;
        io.ddelta.map_or(Ok(()), |g| store_grad(OP, &g, &times(&density)?))?;
        io.dcolor.map_or(Ok(()), |g| store_grad(OP, &g, &dcolor))?;
        io.dt.map_or(Ok(()), |g| store_grad(OP, &g, &dt))
    }
}
