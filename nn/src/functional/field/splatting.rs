//! Images of Gaussians in space.

use trefoil::DType;
use trefoil::ops::field::{
    ProjectGaussians, ProjectGaussiansBwd, Projection, RasterizeGaussians, RasterizeGaussiansBwd,
};

use crate::core::autograd::{BackwardCtx, Saved, out, record_all};
use crate::core::error::{Result, invalid};
use crate::core::tensor::{Tensor, same_device};

/// What a camera sees of Gaussians, by [`Tensor::project_gaussians`].
#[derive(Debug, Clone)]
pub struct ProjectedGaussians {
    /// Centres on the image `[N, 2]` as (x, y), in pixels; the middle of the first is (0.5, 0.5).
    pub centers: Tensor,
    /// Inverse covariances on the image `[N, 3]`: xx, xy, yy.
    pub conics: Tensor,
    /// Depths `[N]`.
    pub depths: Tensor,
    /// Three standard deviations along the longer axis, rounded up: i32 `[N]`; 0 for what is not seen. No gradient.
    pub radii: Tensor,
    /// Height and width of the image.
    pub size: [usize; 2],
}

/// An image of Gaussians, by [`ProjectedGaussians::rasterize`].
#[derive(Debug, Clone)]
pub struct GaussianImage {
    /// Colours `[H, W, C]`, before a black background.
    pub image: Tensor,
    /// What is left of the light `[H, W]`: a background shows through by this much.
    pub transmittance: Tensor,
}

/// The number of Gaussians of a tensor `[N, ..]`.
fn count(op: &'static str, arg: &'static str, t: &Tensor) -> Result<usize> {
    match t.shape() {
        [n, ..] => Ok(*n),
        [] => Err(invalid(op, arg, "shape [N, ..]", "a scalar")),
    }
}

impl Tensor {
    /// What a camera sees of Gaussians at these places `[N, 3]` with these covariances `[N, 3, 3]` ([`Tensor::gaussian_covariance`]), f32 or f64.
    /// `view` `[4, 4]` leads from space to the camera, which looks along z, `intrinsics` `[3, 3]` from there to pixels. Places and covariances
    /// receive gradients; radii and the camera have none. Source Kerbl et al. (2023): 3D Gaussian splatting, and
    /// [`SplattingOps::project_gaussians`](trefoil::ops::field::SplattingOps::project_gaussians). Errors: `Invalid` for shapes and dtypes that do
    /// not fit, an image without pixels.
    pub fn project_gaussians(
        &self,
        covariance: &Tensor,
        view: &Tensor,
        intrinsics: &Tensor,
        p: Projection,
    ) -> Result<ProjectedGaussians> {
        const OP: &str = "project_gaussians";
        for other in [covariance, view, intrinsics] {
            same_device(OP, self, other)?;
        }
        let n = count(OP, "means", self)?;
        let (means, cov) = (self.contiguous()?, covariance.contiguous()?);
        let (view, camera) = (view.detach().contiguous()?, intrinsics.detach().contiguous()?);
        let (centers, conics, depths) = (means.like(&[n, 2])?, means.like(&[n, 3])?, means.like(&[n])?);
        let radii = Tensor::empty(means.device(), DType::I32, &[n])?;
        {
            let [mo, so, vo, co] = [&means, &cov, &view, &camera].map(Tensor::operand);
            let [xo, io, zo, ro] = [&centers, &conics, &depths, &radii].map(Tensor::operand);
            let io = ProjectGaussians::new(
                mo.view()?,
                so.view()?,
                vo.view()?,
                co.view()?,
                xo.view_mut()?,
                io.view_mut()?,
                zo.view_mut()?,
                ro.view_mut()?,
            );
            means.device().project_gaussians(p, io)?;
        }
        let inputs = [&means, &cov];
        let [centers, conics, depths] = record_all(OP, &inputs, [centers, conics, depths], || {
            let saved = [&means, &cov, &view, &camera, &radii].map(Saved::new);
            move |cx: &mut BackwardCtx<'_>| project_bwd(cx, p, &saved)
        });
        Ok(ProjectedGaussians { centers, conics, depths, radii, size: [p.height, p.width] })
    }
}

/// The gradients of a projection.
fn project_bwd(cx: &mut BackwardCtx<'_>, p: Projection, saved: &[Saved; 5]) -> Result<()> {
    let (dmeans, dcov) = (cx.target(0)?, cx.target(1)?);
    let upstream = |i: usize| cx.upstream(i).map(Tensor::contiguous).transpose();
    let upstream = [upstream(0)?, upstream(1)?, upstream(2)?];
    let [dcenters, dconics, ddepths] = upstream.each_ref().map(|t| t.as_ref().map(Tensor::operand));
    let [means, cov, view, camera, radii] = saved;
    let device = means.get(cx)?.device().clone();
    let [means, cov] = [means.get(cx)?.operand(), cov.get(cx)?.operand()];
    let [view, camera, radii] =
        [view.get(cx)?.operand(), camera.get(cx)?.operand(), radii.get(cx)?.operand()];
    let mut io =
        ProjectGaussiansBwd::new(means.view()?, cov.view()?, view.view()?, camera.view()?, radii.view()?);
    io.dcenters = dcenters.as_ref().map(|t| t.view()).transpose()?;
    io.dconics = dconics.as_ref().map(|t| t.view()).transpose()?;
    io.ddepths = ddepths.as_ref().map(|t| t.view()).transpose()?;
    (io.dmeans, io.dcovariance) = (out(&dmeans)?, out(&dcov)?);
    Ok(device.project_gaussians_bwd(p, io)?)
}

impl ProjectedGaussians {
    /// The image of these Gaussians with `colors` `[N, C]` and `opacities` `[N]` (0 to 1), blended from the front to the back. Centres, conics,
    /// colours and opacities receive gradients, with the same bits from every pass; depths, which give the order, have none. With a background
    /// `[C]` the image is `image + transmittance * background`. Source Kerbl et al. (2023): 3D Gaussian splatting, and
    /// [`SplattingOps::rasterize_gaussians`](trefoil::ops::field::SplattingOps::rasterize_gaussians). Errors: `Invalid` for shapes and dtypes that
    /// do not fit.
    pub fn rasterize(&self, colors: &Tensor, opacities: &Tensor) -> Result<GaussianImage> {
        const OP: &str = "rasterize_gaussians";
        for other in [colors, opacities] {
            same_device(OP, &self.centers, other)?;
        }
        let &[_, channels] = colors.shape() else {
            return Err(invalid(OP, "colors", "shape [N, C]", format!("{:?}", colors.shape())));
        };
        let [height, width] = self.size;
        let inputs = [&self.centers, &self.conics, colors, opacities].map(Tensor::contiguous);
        let [centers, conics, colors, opacities] = inputs;
        let inputs = [centers?, conics?, colors?, opacities?];
        let (depths, radii) = (self.depths.detach().contiguous()?, self.radii.contiguous()?);
        let (image, left) = (inputs[0].like(&[height, width, channels])?, inputs[0].like(&[height, width])?);
        {
            let [xo, co, fo, oo] = inputs.each_ref().map(Tensor::operand);
            let [zo, ro, io, lo] = [&depths, &radii, &image, &left].map(Tensor::operand);
            let io = RasterizeGaussians::new(
                xo.view()?,
                co.view()?,
                fo.view()?,
                oo.view()?,
                zo.view()?,
                ro.view()?,
                io.view_mut()?,
                lo.view_mut()?,
            );
            image.device().rasterize_gaussians(io)?;
        }
        let [image, transmittance] = record_all(OP, &inputs.each_ref(), [image, left], || {
            let (saved, order) = (inputs.each_ref().map(Saved::new), [&depths, &radii].map(Saved::new));
            let shape = [height, width, channels];
            move |cx: &mut BackwardCtx<'_>| rasterize_bwd(cx, &shape, &saved, &order)
        });
        Ok(GaussianImage { image, transmittance })
    }
}

/// The gradients of an image.
fn rasterize_bwd(
    cx: &mut BackwardCtx<'_>,
    shape: &[usize; 3],
    saved: &[Saved; 4],
    order: &[Saved; 2],
) -> Result<()> {
    let grads = [cx.target(0)?, cx.target(1)?, cx.target(2)?, cx.target(3)?];
    let upstream = |i: usize| cx.upstream(i).map(Tensor::contiguous).transpose();
    let (dimage, dleft) = (upstream(0)?, upstream(1)?);
    let centers = saved[0].get(cx)?.clone();
    let dimage = match dimage {
        Some(d) => d,
        None => Tensor::zeros(centers.device(), centers.dtype(), shape)?,
    };
    let (dio, dlo) = (dimage.operand(), dleft.as_ref().map(Tensor::operand));
    let (conics, colors, opacities) = (saved[1].get(cx)?, saved[2].get(cx)?, saved[3].get(cx)?);
    let [xo, co, fo, oo] = [&centers, conics, colors, opacities].map(Tensor::operand);
    let [zo, ro] = [order[0].get(cx)?.operand(), order[1].get(cx)?.operand()];
    let mut io = RasterizeGaussiansBwd::new(
        dio.view()?,
        xo.view()?,
        co.view()?,
        fo.view()?,
        oo.view()?,
        zo.view()?,
        ro.view()?,
    );
    io.dtransmittance = dlo.as_ref().map(|t| t.view()).transpose()?;
    (io.dcenters, io.dconics) = (out(&grads[0])?, out(&grads[1])?);
    (io.dcolors, io.dopacities) = (out(&grads[2])?, out(&grads[3])?);
    Ok(centers.device().rasterize_gaussians_bwd(io)?)
}
