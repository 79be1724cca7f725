//! Neural fields: features of positions and directions, samples along rays, and what is seen along them.

mod splatting;

use trefoil::ops::field::{
    CovarianceBwd, HarmonicsBwd, HashGrid, HashGridBwd, TrilinearBwd, VolumeRender, VolumeRenderBwd,
};
use trefoil::ops::random::Rng;

pub use self::splatting::{GaussianImage, ProjectedGaussians};
use crate::core::autograd::{BackwardCtx, Saved, out, record};
use crate::core::error::{Result, invalid};
use crate::core::tensor::{Tensor, same_device};
use crate::functional::operand::{Inputs, operand, save, saved, view, view_mut};

/// What is seen along rays, by [`Tensor::volume_render`].
#[derive(Debug, Clone)]
pub struct VolumeRendering {
    /// Colours `[.., C]`.
    pub color: Tensor,
    /// Sums of the weights `[..]`: the share of the light that the volume holds back.
    pub opacity: Tensor,
    /// Sums of the weights times the distances `[..]`, where distances were given.
    pub depth: Option<Tensor>,
    /// Weights of the samples `[.., S]`.
    pub weights: Tensor,
}

/// The leading sizes of a tensor, and its last `N`.
fn split<'a, const N: usize>(
    op: &'static str,
    arg: &'static str,
    t: &'a Tensor,
) -> Result<(&'a [usize], [usize; N])> {
    match t.shape().split_last_chunk::<N>() {
        Some((lead, last)) => Ok((lead, *last)),
        None => Err(invalid(op, arg, format!("at least {N} axes"), format!("shape {:?}", t.shape()))),
    }
}

impl Tensor {
    /// Features of these positions `[.., D]` (D of 2 or 3, from 0 to 1 along each axis) from the levels of a hash grid, `table` `[L, T, F]`, floats
    /// `-> [.., L F]`. Both receive gradients. Positions beyond are moved to the border, where they have none. Source Müller et al. (2022): Instant
    /// Neural Graphics Primitives. Errors: `Invalid` for shapes and dtypes that do not fit, levels of more than 2^24 cells along an axis.
    pub fn hash_grid_encode(&self, table: &Tensor, p: HashGrid) -> Result<Tensor> {
        const OP: &str = "hash_grid_encode";
        same_device(OP, self, table)?;
        let (lead, [axes]) = split(OP, "x", self)?;
        let &[levels, _, width] = table.shape() else {
            return Err(invalid(OP, "table", "shape [L, T, F]", format!("{:?}", table.shape())));
        };
        let features = levels.saturating_mul(width);
        let (x, table) = (self.reshape(&[lead.iter().product(), axes])?.contiguous()?, table.contiguous()?);
        let y = x.like(&[x.shape()[0], features])?;
        let (xo, to, yo) = (x.operand(), table.operand(), y.operand());
        x.device().hash_grid_encode(p, xo.view()?, to.view()?, yo.view_mut()?)?;
        let y = y.record(OP, &[&x, &table], || {
            let (x, table) = (Saved::new(&x), Saved::new(&table));
            move |cx: &mut BackwardCtx<'_>| {
                let (dx, dtable) = (cx.target(0)?, cx.target(1)?);
                let dy = cx.dy()?.contiguous()?;
                let (dyo, x, table) = (dy.operand(), x.get(cx)?.operand(), table.get(cx)?.operand());
                let mut io = HashGridBwd::new(dyo.view()?, x.view()?, table.view()?);
                (io.dx, io.dtable) = (out(&dx)?, out(&dtable)?);
                Ok(dy.device().hash_grid_encode_bwd(p, io)?)
            }
        });
        y.reshape(&[lead, &[features]].concat())
    }

    /// Features of this grid `[D, H, W, C]` at `points` `[.., 3]` as (x, y, z), from 0 at the first corner of an axis to 1 at the last, mixed
    /// linearly, floats `-> [.., C]`. Both receive gradients. Points beyond are moved to the border, where they have none. Source `F.grid_sample` of
    /// a volume with `align_corners=True, padding_mode="border"`. Errors: `Invalid` for shapes and dtypes that do not fit.
    pub fn trilinear_interpolate(&self, points: &Tensor) -> Result<Tensor> {
        const OP: &str = "trilinear_interpolate";
        same_device(OP, self, points)?;
        let (lead, [axes]) = split(OP, "points", points)?;
        let &[_, _, _, width] = self.shape() else {
            return Err(invalid(OP, "grid", "shape [D, H, W, C]", format!("{:?}", self.shape())));
        };
        let (grid, at) = (self.contiguous()?, points.reshape(&[lead.iter().product(), axes])?.contiguous()?);
        let y = grid.like(&[at.shape()[0], width])?;
        let (go, po, yo) = (grid.operand(), at.operand(), y.operand());
        grid.device().trilinear_interpolate(go.view()?, po.view()?, yo.view_mut()?)?;
        let y = y.record(OP, &[&grid, &at], || {
            let (grid, at) = (Saved::new(&grid), Saved::new(&at));
            move |cx: &mut BackwardCtx<'_>| {
                let (dgrid, dpoints) = (cx.target(0)?, cx.target(1)?);
                let dy = cx.dy()?.contiguous()?;
                let (dyo, grid, at) = (dy.operand(), grid.get(cx)?.operand(), at.get(cx)?.operand());
                let mut io = TrilinearBwd::new(dyo.view()?, grid.view()?, at.view()?);
                (io.dgrid, io.dpoints) = (out(&dgrid)?, out(&dpoints)?);
                Ok(dy.device().trilinear_interpolate_bwd(io)?)
            }
        });
        y.reshape(&[lead, &[width]].concat())
    }

    /// Real spherical harmonics of degree 0 to 4 at these directions `[.., 3]` of length 1, mixed by `coefficients` `[.., C, K]` with K of 1, 4, 9,
    /// 16 or 25, floats `-> [.., C]`. Both receive gradients. Other directions r give the solid harmonics |r|^l Y. Source PlenOctrees (Yu et al.,
    /// 2021). Errors: `Invalid` for shapes and dtypes that do not fit.
    pub fn spherical_harmonics(&self, coefficients: &Tensor) -> Result<Tensor> {
        const OP: &str = "spherical_harmonics";
        same_device(OP, self, coefficients)?;
        let (lead, [axes]) = split(OP, "directions", self)?;
        let (of, [channels, count]) = split(OP, "coefficients", coefficients)?;
        if of != lead {
            let expected = format!("shape [{lead:?}, C, K]");
            return Err(invalid(OP, "coefficients", expected, format!("{:?}", coefficients.shape())));
        }
        let n = lead.iter().product();
        let r = self.reshape(&[n, axes])?.contiguous()?;
        let k = coefficients.reshape(&[n, channels, count])?.contiguous()?;
        let y = r.like(&[n, channels])?;
        let (ro, ko, yo) = (r.operand(), k.operand(), y.operand());
        r.device().spherical_harmonics(ro.view()?, ko.view()?, yo.view_mut()?)?;
        let y = y.record(OP, &[&r, &k], || {
            let (r, k) = (Saved::new(&r), Saved::new(&k));
            move |cx: &mut BackwardCtx<'_>| {
                let (dr, dk) = (cx.target(0)?, cx.target(1)?);
                let dy = cx.dy()?.contiguous()?;
                let (dyo, r, k) = (dy.operand(), r.get(cx)?.operand(), k.get(cx)?.operand());
                let mut io = HarmonicsBwd::new(dyo.view()?, r.view()?, k.view()?);
                (io.ddirections, io.dcoefficients) = (out(&dr)?, out(&dk)?);
                Ok(dy.device().spherical_harmonics_bwd(io)?)
            }
        });
        y.reshape(&[lead, &[channels]].concat())
    }

    /// Covariances R S S R^T of Gaussians from the rotations R of these quaternions `[.., 4]` (w, x, y, z), divided by their lengths, and `scale`
    /// `[.., 3]`, the diagonal of S, floats `-> [.., 3, 3]`. Both receive gradients. Source Kerbl et al. (2023): 3D Gaussian splatting. Errors:
    /// `Invalid` for shapes and dtypes that do not fit.
    pub fn gaussian_covariance(&self, scale: &Tensor) -> Result<Tensor> {
        const OP: &str = "gaussian_covariance";
        same_device(OP, self, scale)?;
        let ((lead, [parts]), (of, [sides])) = (split(OP, "rotation", self)?, split(OP, "scale", scale)?);
        if of != lead {
            let expected = format!("leading axes {lead:?}");
            return Err(invalid(OP, "scale", expected, format!("shape {:?}", scale.shape())));
        }
        let n = lead.iter().product();
        let q = self.reshape(&[n, parts])?.contiguous()?;
        let s = scale.reshape(&[n, sides])?.contiguous()?;
        let y = q.like(&[n, 3, 3])?;
        let (qo, so, yo) = (q.operand(), s.operand(), y.operand());
        q.device().gaussian_covariance(qo.view()?, so.view()?, yo.view_mut()?)?;
        let y = y.record(OP, &[&q, &s], || {
            let (q, s) = (Saved::new(&q), Saved::new(&s));
            move |cx: &mut BackwardCtx<'_>| {
                let (dq, ds) = (cx.target(0)?, cx.target(1)?);
                let dy = cx.dy()?.contiguous()?;
                let (dyo, q, s) = (dy.operand(), q.get(cx)?.operand(), s.get(cx)?.operand());
                let mut io = CovarianceBwd::new(dyo.view()?, q.view()?, s.view()?);
                (io.drotation, io.dscale) = (out(&dq)?, out(&ds)?);
                Ok(dy.device().gaussian_covariance_bwd(io)?)
            }
        });
        y.reshape(&[lead, &[3, 3]].concat())
    }

    /// Distances along rays that begin at these distances `[..]` and end at `far` `[..]`: one in each of `samples` equal parts, at random, or in the
    /// middle without a generator, floats `-> [.., samples]`. No gradient. Source NeRF (Mildenhall et al., 2020), stratified sampling. Errors:
    /// `Invalid` for shapes and dtypes that differ.
    pub fn ray_sampling(&self, far: &Tensor, samples: usize, rng: Option<Rng<'_>>) -> Result<Tensor> {
        const OP: &str = "ray_sampling";
        same_device(OP, self, far)?;
        if far.shape() != self.shape() {
            let expected = format!("shape {:?}", self.shape());
            return Err(invalid(OP, "far", expected, format!("{:?}", far.shape())));
        }
        let flat = |t: &Tensor| t.detach().reshape(&[t.numel()])?.contiguous();
        let (near, far) = (flat(self)?, flat(far)?);
        let t = near.like(&[near.numel(), samples])?;
        let (no, fo, to) = (near.operand(), far.operand(), t.operand());
        near.device().ray_sampling(rng, no.view()?, fo.view()?, to.view_mut()?)?;
        t.reshape(&[self.shape(), &[samples]].concat())
    }

    /// Distances along rays where a volume is dense: between these edges `[.., S + 1]` the density is proportional to `weights` `[.., S]` plus
    /// `padding`, and one sample is in each of `samples` parts of equal weight, at random, or in the middle without a generator, floats
    /// `-> [.., samples]`. No gradient. Source NeRF's `sample_pdf`, whose padding is 1e-5. Errors: `Invalid` for shapes and dtypes that do not fit, a
    /// padding below 0, no intervals.
    pub fn importance_sampling(
        &self,
        weights: &Tensor,
        samples: usize,
        padding: f64,
        rng: Option<Rng<'_>>,
    ) -> Result<Tensor> {
        const OP: &str = "importance_sampling";
        same_device(OP, self, weights)?;
        let ((lead, [edges]), (of, [intervals])) =
            (split(OP, "edges", self)?, split(OP, "weights", weights)?);
        if of != lead {
            let expected = format!("leading axes {lead:?}");
            return Err(invalid(OP, "weights", expected, format!("shape {:?}", weights.shape())));
        }
        let n = lead.iter().product();
        let edges = self.detach().reshape(&[n, edges])?.contiguous()?;
        let weights = weights.detach().reshape(&[n, intervals])?.contiguous()?;
        let t = edges.like(&[n, samples])?;
        let (eo, wo, to) = (edges.operand(), weights.operand(), t.operand());
        edges.device().importance_sampling(padding, rng, eo.view()?, wo.view()?, to.view_mut()?)?;
        t.reshape(&[lead, &[samples]].concat())
    }

    /// What is seen along rays through samples of these densities `[.., S]` and of `color` `[.., S, C]` in intervals of lengths `delta` `[.., S]`,
    /// and with distances `t` `[.., S]` how far away it is. All receive gradients. Source Max (1995); NeRF (Mildenhall et al., 2020). Errors:
    /// `Invalid` for shapes and dtypes that do not fit.
    pub fn volume_render(
        &self,
        color: &Tensor,
        delta: &Tensor,
        t: Option<&Tensor>,
    ) -> Result<VolumeRendering> {
        const OP: &str = "volume_render";
        for other in [Some(color), Some(delta), t].into_iter().flatten() {
            same_device(OP, self, other)?;
        }
        let ((lead, [samples]), (of, [channels])) = (split(OP, "density", self)?, split(OP, "color", color)?);
        for (arg, shape) in [("color", of), ("delta", delta.shape()), ("t", t.unwrap_or(self).shape())] {
            if shape != self.shape() {
                let got = format!("{shape:?}, less the channels of colours");
                return Err(invalid(OP, arg, format!("shape {:?}", self.shape()), got));
            }
        }
        let n: usize = lead.iter().product();
        let rows = |t: &Tensor| t.reshape(&[n, samples])?.contiguous();
        let (density, delta, t) = (rows(self)?, rows(delta)?, t.map(rows).transpose()?);
        let color = color.reshape(&[n, samples, channels])?.contiguous()?;
        let mut outputs = render([&density, &color, &delta], t.as_ref())?.into_iter();
        let mut next = |last: &[usize]| match outputs.next() {
            Some(t) => t.reshape(&[lead, last].concat()),
            None => Err(invalid(OP, "outputs", "three or four outputs", "fewer")),
        };
        let (color, opacity, weights) = (next(&[channels])?, next(&[])?, next(&[samples])?);
        let depth = t.map(|_| next(&[])).transpose()?;
        Ok(VolumeRendering { color, opacity, depth, weights })
    }
}

/// Colours, opacity, weights and, with distances, depth of rays [R, S].
fn render([density, color, delta]: [&Tensor; 3], t: Option<&Tensor>) -> Result<Vec<Tensor>> {
    let &[n, samples, channels] = color.shape() else { return Ok(vec![]) };
    let (y, opacity, weights) =
        (density.like(&[n, channels])?, density.like(&[n])?, density.like(&[n, samples])?);
    let depth = t.map(|_| density.like(&[n])).transpose()?;
    {
        let [po, co, lo, yo, oo, wo] = [density, color, delta, &y, &opacity, &weights].map(Tensor::operand);
        let (to, fo) = (operand(t), operand(depth.as_ref()));
        let mut io = VolumeRender::new(po.view()?, co.view()?, lo.view()?, yo.view_mut()?)
            .opacity(oo.view_mut()?)
            .weights(wo.view_mut()?);
        (io.t, io.depth) = (view(&to)?, view_mut(&fo)?);
        y.device().volume_render(io)?;
    }
    let mut inputs = Inputs { list: vec![density, color, delta] };
    inputs.push(t);
    let outputs = [Some(y), Some(opacity), Some(weights), depth].into_iter().flatten().collect();
    Ok(record("volume_render", &inputs.list, outputs, || {
        let (operands, t) = ([density, color, delta].map(Saved::new), save(t));
        move |cx: &mut BackwardCtx<'_>| render_bwd(cx, &operands, &t)
    }))
}

/// The gradients of [`render`].
fn render_bwd(cx: &mut BackwardCtx<'_>, operands: &[Saved; 3], t: &Option<Saved>) -> Result<()> {
    let [dp, dc, dl] = [cx.target(0)?, cx.target(1)?, cx.target(2)?];
    let dt = if t.is_some() { cx.target(3)? } else { None };
    let upstream = |i: usize| cx.upstream(i).map(Tensor::contiguous).transpose();
    let (dy, dopacity, dweights) = (upstream(0)?, upstream(1)?, upstream(2)?);
    let ddepth = if t.is_some() { upstream(3)? } else { None };
    let [yo, oo, wo, fo] = [&dy, &dopacity, &dweights, &ddepth].map(|t| operand(t.as_ref()));
    let [density, color, delta] = operands;
    let density = density.get(cx)?;
    let (device, po) = (density.device().clone(), density.operand());
    let (co, lo, to) = (color.get(cx)?.operand(), delta.get(cx)?.operand(), saved(cx, t)?);
    let mut io = VolumeRenderBwd::new(po.view()?, co.view()?, lo.view()?);
    (io.t, io.dy, io.dopacity) = (view(&to)?, view(&yo)?, view(&oo)?);
    (io.dweights, io.ddepth) = (view(&wo)?, view(&fo)?);
    (io.ddensity, io.dcolor, io.ddelta, io.dt) = (out(&dp)?, out(&dc)?, out(&dl)?, out(&dt)?);
    Ok(device.volume_render_bwd(io)?)
}
