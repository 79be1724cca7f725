//! Samples along rays and what is seen along them: signatures and checks.

use super::{gradient, operand};
use crate::buffer::{GradMut, View, ViewMut};
use crate::error::{GpuError, Result};
use crate::ops::check;
use crate::ops::random::{Rng, check_rng};

io_struct! {
    /// Operands of [`RayOps::volume_render`].
    #[derive(Debug)]
    pub struct VolumeRender<'a> {
        /// Densities [R, S].
        pub density: View<'a>,
        /// Colours [R, S, C].
        pub color: View<'a>,
        /// Lengths of the intervals [R, S].
        pub delta: View<'a>,
        /// Distances of the samples [R, S], for `depth`.
        pub t: Option<View<'a>>,
        /// What is seen, [R, C].
        pub y: ViewMut<'a>,
        /// Sum of the weights \[R\].
        pub opacity: Option<ViewMut<'a>>,
        /// Sum of the weights times the distances \[R\]; with `t` alone.
        pub depth: Option<ViewMut<'a>>,
        /// Weights [R, S].
        pub weights: Option<ViewMut<'a>>,
    }
}

io_struct! {
    /// Operands of [`RayOps::volume_render_bwd`]. An upstream gradient that is absent is 0.
    #[derive(Debug)]
    pub struct VolumeRenderBwd<'a> {
        /// Forward's.
        pub density: View<'a>,
        /// Forward's.
        pub color: View<'a>,
        /// Forward's.
        pub delta: View<'a>,
        /// Forward's.
        pub t: Option<View<'a>>,
        /// Upstream gradient of `y`.
        pub dy: Option<View<'a>>,
        /// Upstream gradient of `opacity`.
        pub dopacity: Option<View<'a>>,
        /// Upstream gradient of `depth`; with `t` alone.
        pub ddepth: Option<View<'a>>,
        /// Upstream gradient of `weights`.
        pub dweights: Option<View<'a>>,
        /// Gradient of the densities.
        pub ddensity: Option<GradMut<'a>>,
        /// Gradient of the colours.
        pub dcolor: Option<GradMut<'a>>,
        /// Gradient of the lengths.
        pub ddelta: Option<GradMut<'a>>,
        /// Gradient of the distances; with `t` alone.
        pub dt: Option<GradMut<'a>>,
    }
}

op_family! {
    /// Rays through a volume: f32, f16, bf16, f64, operands of one dtype, contiguous. Deterministic, random numbers included: element i of a result
    /// takes the 24 upper bits of word i of the generator, whatever the dtype. Errors: `Invalid` for shapes, dtypes, overlap.
    pub trait RayOps : Field => RAY_OPS {
        /// t[r, s] = near\[r\] + (far\[r\] - near\[r\]) (s + u) / S: near and far \[R\], t [R, S], u uniform in [0, 1), or 1/2 without a generator. No
        /// gradient. Source Mildenhall et al. (2020): NeRF, stratified sampling.
        fn ray_sampling(&self, rng: Option<Rng<'_>>, near: View<'_>, far: View<'_>, t: ViewMut<'_>) -> Result<()>;
        /// Where the integral of a density that is constant between neighbours of `edges` [R, S + 1], and there proportional to `weights` [R, S] plus
        /// `padding`, reaches (n + u) / N: t [R, N], rising where the edges do, u uniform in (0, 1], or 1/2 without a generator. Weights below 0
        /// count as 0; without any weight all intervals weigh the same; a sum that is not finite gives NaN. No gradient. Source NeRF's `sample_pdf`.
        /// Errors: `Invalid` for a padding that is negative or not finite, S = 0.
        fn importance_sampling(&self, padding: f64, rng: Option<Rng<'_>>, edges: View<'_>, weights: View<'_>, t: ViewMut<'_>) -> Result<()>;
        /// y = sum over the samples of w color with weights w_s = T_s (1 - exp(-density_s delta_s)), T_s = exp(-sum over earlier samples of density
        /// delta). Source Max (1995); NeRF.
        fn volume_render(&self, io: VolumeRender<'_>) -> Result<()>;
        /// Gradients of [`RayOps::volume_render`]; nothing but its inputs is saved. With g_s the gradient of w_s, that of density_s delta_s is
        /// g_s T_(s+1) - the sum over later samples of g w.
        fn volume_render_bwd(&self, io: VolumeRenderBwd<'_>) -> Result<()>;
    }
}

fn matrix(op: &'static str, arg: &'static str, v: &View<'_>) -> Result<[usize; 2]> {
    check::float(op, arg, v)?;
    check::matrix(op, arg, v)
}

/// Checks of [`RayOps::ray_sampling`]; rays and samples.
pub(crate) fn check_ray_sampling(
    rng: &Option<Rng<'_>>,
    near: &View<'_>,
    far: &View<'_>,
    t: &ViewMut<'_>,
) -> Result<[usize; 2]> {
    const OP: &str = "ray_sampling";
    rng.as_ref().map_or(Ok(()), |r| check_rng(OP, r))?;
    let v = t.as_view();
    let [rays, samples] = matrix(OP, "t", &v)?;
    for (arg, bound) in [("near", near), ("far", far)] {
        operand(OP, arg, bound, &v)?;
        check::shape(OP, arg, bound, &[rays])?;
    }
    check::separate_output(OP, "t", t, &[("near", *near), ("far", *far)])?;
    Ok([rays, samples])
}

/// Checks of [`RayOps::importance_sampling`]; rays, intervals, samples.
pub(crate) fn check_importance_sampling(
    padding: f64,
    rng: &Option<Rng<'_>>,
    edges: &View<'_>,
    weights: &View<'_>,
    t: &ViewMut<'_>,
) -> Result<[usize; 3]> {
    const OP: &str = "importance_sampling";
    rng.as_ref().map_or(Ok(()), |r| check_rng(OP, r))?;
    if !(padding >= 0.0 && padding.is_finite()) {
        let want = "a finite number of at least 0";
        return Err(GpuError::invalid(OP, "padding", want, padding.to_string()));
    }
    let [rays, intervals] = matrix(OP, "weights", weights)?;
    if intervals == 0 {
        return Err(GpuError::invalid(OP, "weights", "at least one interval", "none"));
    }
    let v = t.as_view();
    let samples = matrix(OP, "t", &v)?[1];
    check::shape(OP, "t", &v, &[rays, samples])?;
    check::shape(OP, "edges", edges, &[rays, intervals + 1])?;
    operand(OP, "edges", edges, weights)?;
    operand(OP, "t", &v, weights)?;
    check::separate_output(OP, "t", t, &[("edges", *edges), ("weights", *weights)])?;
    Ok([rays, intervals, samples])
}

/// Sizes of a checked rendering.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct RaySizes {
    pub(crate) rays: usize,
    pub(crate) samples: usize,
    pub(crate) channels: usize,
}

impl RaySizes {
    /// Shapes of what a ray has: one number, one for each sample, one for each channel.
    fn shapes(&self) -> ([usize; 1], [usize; 2], [usize; 2]) {
        ([self.rays], [self.rays, self.samples], [self.rays, self.channels])
    }
}

fn check_rays(
    op: &'static str,
    [density, color, delta]: [&View<'_>; 3],
    t: Option<&View<'_>>,
) -> Result<RaySizes> {
    let [rays, samples] = matrix(op, "density", density)?;
    let &[_, _, channels] = color.shape() else {
        return Err(GpuError::invalid(op, "color", "shape [R, S, C]", format!("{:?}", color.shape())));
    };
    check::shape(op, "color", color, &[rays, samples, channels])?;
    check::shape(op, "delta", delta, &[rays, samples])?;
    for (arg, v) in [("color", color), ("delta", delta)] {
        operand(op, arg, v, density)?;
    }
    t.map_or(Ok(()), |t| check::exact(op, "t", t, &[rays, samples], density.dtype()))?;
    Ok(RaySizes { rays, samples, channels })
}

/// An operand that has a meaning with distances alone.
fn with_distances(op: &'static str, arg: &'static str, given: bool, t: bool) -> Result<()> {
    if t || !given {
        return Ok(());
    }
    Err(GpuError::invalid(op, arg, "none without `t`", "one"))
}

/// Checks of [`RayOps::volume_render`].
pub(crate) fn check_volume_render(io: &VolumeRender<'_>) -> Result<RaySizes> {
    const OP: &str = "volume_render";
    let s = check_rays(OP, [&io.density, &io.color, &io.delta], io.t.as_ref())?;
    with_distances(OP, "depth", io.depth.is_some(), io.t.is_some())?;
    let (one, each, channels) = s.shapes();
    let mut seen = vec![("density", io.density), ("color", io.color), ("delta", io.delta)];
    seen.extend(io.t.map(|t| ("t", t)));
    let outs = [
        ("y", Some(&io.y), &channels[..]),
        ("opacity", io.opacity.as_ref(), &one[..]),
        ("depth", io.depth.as_ref(), &one[..]),
        ("weights", io.weights.as_ref(), &each[..]),
    ];
    for (arg, v, shape) in outs {
        let Some(v) = v else { continue };
        check::exact_output(OP, arg, v, shape, io.density.dtype(), &mut seen)?;
    }
    Ok(s)
}

/// Checks of [`RayOps::volume_render_bwd`].
pub(crate) fn check_volume_render_bwd(io: &VolumeRenderBwd<'_>) -> Result<RaySizes> {
    const OP: &str = "volume_render_bwd";
    let s = check_rays(OP, [&io.density, &io.color, &io.delta], io.t.as_ref())?;
    with_distances(OP, "ddepth", io.ddepth.is_some(), io.t.is_some())?;
    with_distances(OP, "dt", io.dt.is_some(), io.t.is_some())?;
    let (one, each, channels) = s.shapes();
    let mut seen = vec![("density", io.density), ("color", io.color), ("delta", io.delta)];
    seen.extend(io.t.map(|t| ("t", t)));
    let upstream = [
        ("dy", io.dy, &channels[..]),
        ("dopacity", io.dopacity, &one[..]),
        ("ddepth", io.ddepth, &one[..]),
        ("dweights", io.dweights, &each[..]),
    ];
    for (arg, v, shape) in upstream {
        let Some(v) = v else { continue };
        check::exact(OP, arg, &v, shape, io.density.dtype())?;
        seen.push((arg, v));
    }
    gradient(OP, "ddensity", io.ddensity.as_ref(), &io.density, &mut seen)?;
    gradient(OP, "dcolor", io.dcolor.as_ref(), &io.color, &mut seen)?;
    gradient(OP, "ddelta", io.ddelta.as_ref(), &io.delta, &mut seen)?;
    gradient(OP, "dt", io.dt.as_ref(), &io.delta, &mut seen)?;
    Ok(s)
}
