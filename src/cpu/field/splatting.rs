//! Images of Gaussians in space, in f64.

use super::dual::Dual;
use crate::buffer::View;
use crate::cpu::scratch::*;
use crate::cpu::{Kernels, gather, gather_f64, store, store_f64, store_grad};
use crate::error::Result;
use crate::ops::field::*;

/// A number with its slopes by a place (three) and a covariance (nine).
type Number = Dual<12>;

/// What a camera sees of a Gaussian.
struct Seen {
    center: [Number; 2],
    /// Covariance on the image: xx, xy, yy.
    covariance: [Number; 3],
    depth: Number,
}

fn sum(terms: impl IntoIterator<Item = Number>) -> Number {
    terms.into_iter().fold(Dual::constant(0.0), |sum, t| sum + t)
}

fn projected(p: Projection, mean: &[f64], cov: &[f64], view: &[f64], camera: &[f64]) -> Seen {
    let m: [Number; 3] = std::array::from_fn(|i| Dual::variable(mean[i], i));
    let v = |i: usize, j: usize| {
        let part = |i: usize, j: usize| Dual::variable(cov[3 * i + j], 3 + 3 * i + j);
        (part(i, j) + part(j, i)) * 0.5
    };
    let w = |i: usize, j: usize| view[4 * i + j];
    let place: [Number; 3] =
        std::array::from_fn(|i| sum((0..3).map(|j| m[j] * w(i, j))) + Dual::constant(w(i, 3)));
    let (focal, middle) = ([camera[0], camera[4]], [camera[2], camera[5]]);
    let near = place[2].power(-1.0);
    let slope = [place[0] * near, place[1] * near];
    let center = std::array::from_fn(|i| slope[i] * focal[i] + Dual::constant(middle[i]));
    // Rows of J W.
    let size = [p.width as f64, p.height as f64];
    let rows: [[Number; 3]; 2] = std::array::from_fn(|i| {
        let most = 1.3 * size[i] / (2.0 * focal[i]);
        let held = match slope[i].value {
            s if s > most => Dual::constant(most),
            s if s < -most => Dual::constant(-most),
            _ => slope[i],
        };
        std::array::from_fn(|j| near * focal[i] * w(i, j) - held * near * focal[i] * w(2, j))
    });
    let entry = |a: usize, b: usize| {
        sum((0..3).flat_map(|i| (0..3).map(move |j| (i, j))).map(|(i, j)| rows[a][i] * v(i, j) * rows[b][j]))
    };
    let blur = Dual::constant(p.blur);
    Seen { center, covariance: [entry(0, 0) + blur, entry(0, 1), entry(1, 1) + blur], depth: place[2] }
}

impl Seen {
    /// The inverse covariance.
    fn conic(&self) -> [Number; 3] {
        let [a, b, c] = self.covariance;
        let inverse = (a * c - b * b).power(-1.0);
        [c * inverse, b * inverse * -1.0, a * inverse]
    }

    /// The radius; 0 where it is not seen.
    fn radius(&self, p: Projection) -> f64 {
        let [a, b, c] = self.covariance.map(|n| n.value);
        let [x, y] = self.center.map(|n| n.value);
        let largest = 0.5 * (a + c) + (0.25 * (a - c) * (a - c) + b * b).sqrt();
        let r = (3.0 * largest.sqrt()).ceil();
        let across = x + r > 0.0 && x - r < p.width as f64;
        let down = y + r > 0.0 && y - r < p.height as f64;
        let seen = self.depth.value > p.near && a * c - b * b > 0.0 && r < 1e9 && across && down;
        if seen { r } else { 0.0 }
    }
}

/// Gaussians on an image, from the front.
struct Layers {
    /// Number, centre, conic, opacity.
    all: Vec<(usize, [f64; 2], [f64; 3], f64)>,
}

/// A Gaussian in a pixel: its place among the layers, alpha, exp(-s), and the light that reaches it.
struct Hit {
    layer: usize,
    alpha: f64,
    part: f64,
    light: f64,
}

impl Layers {
    fn load(op: &'static str, io: [View<'_>; 4], radii: View<'_>) -> Result<Self> {
        let [centers, conics, opacities, depths] = io;
        let (centers, conics) = (gather_f64(op, centers)?, gather_f64(op, conics)?);
        let (opacities, depths, radii) =
            (gather_f64(op, opacities)?, gather_f64(op, depths)?, gather::<i32>(op, radii)?);
        let mut all = with_capacity(depths.len())?;
        for i in (0..depths.len()).filter(|&i| radii[i] > 0) {
            let (c, m) = (&centers[2 * i..][..2], &conics[3 * i..][..3]);
            if m[0] * m[2] - m[1] * m[1] > 0.0 && m[0] > 0.0 {
                all.try_push((i, [c[0], c[1]], [m[0], m[1], m[2]], opacities[i]))?;
            }
        }
        // Of equal depths the first comes first; NaN is behind all.
        all.sort_unstable_by(|a, b| {
            let (x, y) = (depths[a.0], depths[b.0]);
            let by_depth = x.partial_cmp(&y).unwrap_or_else(|| x.is_nan().cmp(&y.is_nan()));
            by_depth.then(a.0.cmp(&b.0))
        });
        Ok(Layers { all })
    }

    /// What counts in the pixel whose middle this is, and the light that is left.
    fn pixel(&self, [x, y]: [f64; 2]) -> Result<(Vec<Hit>, f64)> {
        let (mut hits, mut light) = (Vec::new(), 1.0);
        for (layer, (_, center, [a, b, c], opacity)) in self.all.iter().enumerate() {
            let [dx, dy] = [x - center[0], y - center[1]];
            let part = (-0.5 * (a * dx * dx + c * dy * dy) - b * dx * dy).exp();
            let alpha = (opacity * part).min(0.99);
            if opacity.is_nan() || part.is_nan() || alpha < 1.0 / 255.0 {
                continue;
            }
            if light * (1.0 - alpha) < 1e-4 {
                break;
            }
            hits.try_push(Hit { layer, alpha, part, light })?;
            light *= 1.0 - alpha;
        }
        Ok((hits, light))
    }
}

/// The middles of the pixels of an image, row by row.
fn middles(s: Splats) -> impl Iterator<Item = [f64; 2]> {
    (0..s.pixels()).map(move |i| [(i % s.width) as f64 + 0.5, (i / s.width) as f64 + 0.5])
}

/// Gradients of what an image is made of.
struct Slopes {
    centers: Vec<f64>,
    conics: Vec<f64>,
    colors: Vec<f64>,
    opacities: Vec<f64>,
}

impl Slopes {
    /// Adds those of a pixel with the gradients of its colours and of the light that is left.
    fn add(
        &mut self,
        layers: &Layers,
        colors: &[f64],
        at: [f64; 2],
        (dy, dlight): (&[f64], f64),
    ) -> Result<()> {
        let (hits, light) = layers.pixel(at)?;
        let mut behind = light * dlight;
        for h in hits.iter().rev() {
            let (i, center, [a, b, c], opacity) = layers.all[h.layer];
            let channels = i * dy.len()..(i + 1) * dy.len();
            let weight = h.alpha * h.light;
            self.colors[channels.clone()].iter_mut().zip(dy).for_each(|(d, g)| *d += weight * g);
            let seen: f64 = dy.iter().zip(&colors[channels]).map(|(g, c)| g * c).sum();
            let dalpha = h.light * seen - behind / (1.0 - h.alpha);
            behind += seen * weight;
            if opacity * h.part > 0.99 {
                continue;
            }
            self.opacities[i] += dalpha * h.part;
            // alpha is opacity exp(-s).
            let (ds, [dx, dy]) = (-dalpha * h.alpha, [at[0] - center[0], at[1] - center[1]]);
            self.centers[2 * i] -= ds * (a * dx + b * dy);
            self.centers[2 * i + 1] -= ds * (b * dx + c * dy);
            let by = [0.5 * dx * dx, dx * dy, 0.5 * dy * dy];
            self.conics[3 * i..][..3].iter_mut().zip(by).for_each(|(d, by)| *d += ds * by);
        }
        Ok(())
    }
}

impl SplattingOps for Kernels {
    fn project_gaussians(&self, p: Projection, io: ProjectGaussians<'_>) -> Result<()> {
        const OP: &str = "project_gaussians";
        let n = check_project_gaussians(p, &io)?;
        let _timed = self.count(OP);
        let (means, cov) = (gather_f64(OP, io.means)?, gather_f64(OP, io.covariance)?);
        let (view, camera) = (gather_f64(OP, io.view)?, gather_f64(OP, io.intrinsics)?);
        let (mut centers, mut conics) = (with_capacity(2 * n)?, with_capacity(3 * n)?);
        let (mut depths, mut radii) = (with_capacity(n)?, with_capacity(n)?);
        for (mean, cov) in means.chunks(3).zip(cov.chunks(9)) {
            let s = projected(p, mean, cov, &view, &camera);
            let radius = s.radius(p);
            let or_zero = |v: f64| if radius > 0.0 { v } else { 0.0 };
            centers.try_extend(s.center.map(|v| or_zero(v.value)))?;
            conics.try_extend(s.conic().map(|v| or_zero(v.value)))?;
            depths.try_push(or_zero(s.depth.value))?;
            radii.try_push(radius as i32)?;
        }
        store_f64(OP, &io.centers, &centers)?;
        store_f64(OP, &io.conics, &conics)?;
        store_f64(OP, &io.depths, &depths)?;
        store(OP, &io.radii, &radii)
    }

    fn project_gaussians_bwd(&self, p: Projection, io: ProjectGaussiansBwd<'_>) -> Result<()> {
        const OP: &str = "project_gaussians_bwd";
        let n = check_project_gaussians_bwd(p, &io)?;
        let _timed = self.count(OP);
        let (means, cov) = (gather_f64(OP, io.means)?, gather_f64(OP, io.covariance)?);
        let (view, camera) = (gather_f64(OP, io.view)?, gather_f64(OP, io.intrinsics)?);
        let radii = gather::<i32>(OP, io.radii)?;
        let upstream =
            |v: Option<View<'_>>, len: usize| v.map_or_else(|| filled(len, 0.0), |v| gather_f64(OP, v));
        let dcenters = upstream(io.dcenters, 2 * n)?;
        let (dconics, ddepths) = (upstream(io.dconics, 3 * n)?, upstream(io.ddepths, n)?);
        let (mut dmeans, mut dcov) = (with_capacity(3 * n)?, with_capacity(9 * n)?);
        for i in 0..n {
            let s = projected(p, &means[3 * i..][..3], &cov[9 * i..][..9], &view, &camera);
            let (centers, conics) = (&dcenters[2 * i..][..2], &dconics[3 * i..][..3]);
            let all = s.center.iter().zip(centers).map(|(v, g)| *v * *g);
            let all = all.chain(s.conic().into_iter().zip(conics).map(|(v, g)| v * *g));
            let loss = sum(all) + s.depth * ddepths[i];
            let slope = |k: usize| if radii[i] > 0 { loss.slope[k] } else { 0.0 };
            dmeans.try_extend((0..3).map(slope))?;
            dcov.try_extend((3..12).map(slope))?;
        }
        io.dmeans.map_or(Ok(()), |g| store_grad(OP, &g, &dmeans))?;
        io.dcovariance.map_or(Ok(()), |g| store_grad(OP, &g, &dcov))
    }

    fn rasterize_gaussians(&self, io: RasterizeGaussians<'_>) -> Result<()> {
        const OP: &str = "rasterize_gaussians";
        let s = check_rasterize_gaussians(&io)?;
        let _timed = self.count(OP);
        let layers = Layers::load(OP, [io.centers, io.conics, io.opacities, io.depths], io.radii)?;
        let colors = gather_f64(OP, io.colors)?;
        let (mut image, mut left) = (filled(io.image.numel(), 0.0)?, with_capacity(s.pixels())?);
        for (p, at) in middles(s).enumerate() {
            let (hits, light) = layers.pixel(at)?;
            let pixel = &mut image[p * s.channels..][..s.channels];
            for h in hits {
                let color = &colors[layers.all[h.layer].0 * s.channels..][..s.channels];
                pixel.iter_mut().zip(color).for_each(|(p, c)| *p += h.alpha * h.light * c);
            }
            left.try_push(light)?;
        }
        store_f64(OP, &io.image, &image)?;
        store_f64(OP, &io.transmittance, &left)
    }

    fn rasterize_gaussians_bwd(&self, io: RasterizeGaussiansBwd<'_>) -> Result<()> {
        const OP: &str = "rasterize_gaussians_bwd";
        let s = check_rasterize_gaussians_bwd(&io)?;
        let _timed = self.count(OP);
        let layers = Layers::load(OP, [io.centers, io.conics, io.opacities, io.depths], io.radii)?;
        let (colors, dimage) = (gather_f64(OP, io.colors)?, gather_f64(OP, io.dimage)?);
        let dlight = io.dtransmittance.map_or_else(|| filled(s.pixels(), 0.0), |v| gather_f64(OP, v))?;
        let zeros = |n: usize| filled(n, 0.0);
        let mut all = Slopes {
            centers: zeros(2 * s.count)?,
            conics: zeros(3 * s.count)?,
            colors: zeros(colors.len())?,
            opacities: zeros(s.count)?,
        };
        for (p, at) in middles(s).enumerate() {
            let dy = &dimage[p * s.channels..][..s.channels];
            all.add(&layers, &colors, at, (dy, dlight[p]))?;
        }
        io.dcenters.map_or(Ok(()), |g| store_grad(OP, &g, &all.centers))?;
        io.dconics.map_or(Ok(()), |g| store_grad(OP, &g, &all.conics))?;
        io.dcolors.map_or(Ok(()), |g| store_grad(OP, &g, &all.colors))?;
        io.dopacities.map_or(Ok(()), |g| store_grad(OP, &g, &all.opacities))
    }
}
