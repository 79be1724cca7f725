//! Images of Gaussians in space: signatures and checks.

use super::gradient;
use crate::buffer::{GradMut, View, ViewMut};
use crate::dtype::DType;
use crate::error::{GpuError, Result};
use crate::ops::check;

/// The image onto which [`SplattingOps::project_gaussians`] projects.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Projection {
    /// Pixels across.
    pub width: usize,
    /// Pixels down.
    pub height: usize,
    /// Depths up to this one are not seen, at least 0.
    pub near: f64,
    /// What is added to the variances on the image, in pixels squared, at least 0.
    pub blur: f64,
}

impl Projection {
    /// An image of this size, from depth 0.01 on, with variances 0.3 larger.
    pub const fn new(width: usize, height: usize) -> Self {
        Projection { width, height, near: 0.01, blur: 0.3 }
    }

    /// Sets the depth from which on Gaussians are seen.
    pub const fn near(mut self, near: f64) -> Self {
        self.near = near;
        self
    }

    /// Sets what is added to the variances.
    pub const fn blur(mut self, blur: f64) -> Self {
        self.blur = blur;
        self
    }
}

io_struct! {
    /// Operands of [`SplattingOps::project_gaussians`].
    #[derive(Debug)]
    pub struct ProjectGaussians<'a> {
        /// Places in space [N, 3].
        pub means: View<'a>,
        /// Covariances [N, 3, 3], of which the symmetric part counts.
        pub covariance: View<'a>,
        /// From space to the camera, which looks along z: [4, 4], of which the first three rows are read.
        pub view: View<'a>,
        /// Focal lengths on the diagonal and the principal point in the last column, in pixels: [3, 3], without skew.
        pub intrinsics: View<'a>,
        /// Centres on the image [N, 2] as (x, y), in pixels; the middle of the first is (0.5, 0.5).
        pub centers: ViewMut<'a>,
        /// Inverse covariances on the image [N, 3]: xx, xy, yy.
        pub conics: ViewMut<'a>,
        /// Depths \[N\].
        pub depths: ViewMut<'a>,
        /// Three standard deviations along the longer axis, rounded up: i32 \[N\]; 0 for what is not seen.
        pub radii: ViewMut<'a>,
    }
}

io_struct! {
    /// Operands of [`SplattingOps::project_gaussians_bwd`].
    #[derive(Debug)]
    pub struct ProjectGaussiansBwd<'a> {
        /// Forward's.
        pub means: View<'a>,
        /// Forward's.
        pub covariance: View<'a>,
        /// Forward's.
        pub view: View<'a>,
        /// Forward's.
        pub intrinsics: View<'a>,
        /// Forward's result.
        pub radii: View<'a>,
        /// Upstream gradient of the centres.
        pub dcenters: Option<View<'a>>,
        /// Upstream gradient of the conics.
        pub dconics: Option<View<'a>>,
        /// Upstream gradient of the depths.
        pub ddepths: Option<View<'a>>,
        /// Gradient of the places.
        pub dmeans: Option<GradMut<'a>>,
        /// Gradient of the covariances.
        pub dcovariance: Option<GradMut<'a>>,
    }
}

io_struct! {
    /// Operands of [`SplattingOps::rasterize_gaussians`].
    #[derive(Debug)]
    pub struct RasterizeGaussians<'a> {
        /// Centres on the image [N, 2] as (x, y), in pixels.
        pub centers: View<'a>,
        /// Inverse covariances on the image [N, 3]: xx, xy, yy.
        pub conics: View<'a>,
        /// Colours [N, C].
        pub colors: View<'a>,
        /// Opacities \[N\], 0 to 1.
        pub opacities: View<'a>,
        /// Depths \[N\].
        pub depths: View<'a>,
        /// i32 \[N\]; a Gaussian whose radius is not above 0 is left out.
        pub radii: View<'a>,
        /// The image [H, W, C].
        pub image: ViewMut<'a>,
        /// What is left of the light behind all Gaussians [H, W].
        pub transmittance: ViewMut<'a>,
    }
}

io_struct! {
    /// Operands of [`SplattingOps::rasterize_gaussians_bwd`].
    #[derive(Debug)]
    pub struct RasterizeGaussiansBwd<'a> {
        /// Upstream gradient of the image [H, W, C].
        pub dimage: View<'a>,
        /// Forward's.
        pub centers: View<'a>,
        /// Forward's.
        pub conics: View<'a>,
        /// Forward's.
        pub colors: View<'a>,
        /// Forward's.
        pub opacities: View<'a>,
        /// Forward's.
        pub depths: View<'a>,
        /// Forward's.
        pub radii: View<'a>,
        /// Upstream gradient of the transmittance [H, W].
        pub dtransmittance: Option<View<'a>>,
        /// Gradient of the centres.
        pub dcenters: Option<GradMut<'a>>,
        /// Gradient of the conics.
        pub dconics: Option<GradMut<'a>>,
        /// Gradient of the colours.
        pub dcolors: Option<GradMut<'a>>,
        /// Gradient of the opacities.
        pub dopacities: Option<GradMut<'a>>,
    }
}

op_family! {
    /// Images of Gaussians in space (Kerbl et al., 2023: 3D Gaussian splatting): f32 or f64, operands of one dtype, contiguous, fewer than 2^31
    /// Gaussians. Deterministic. Errors: `Invalid` for shapes, dtypes, parameters out of range, overlap.
    pub trait SplattingOps : Field => SPLATTING_OPS {
        /// What a camera sees of each Gaussian. With p = W m + t its place before the camera: centres (fx x/z + cx, fy y/z + cy), depth z, and on the
        /// image the covariance S = J W V W^T J^T + blur, J the derivative of the projection at p with x/z and y/z held within 1.3 times the half
        /// width or height of the image over the focal length (Zwicker et al., 2002: EWA splatting). A Gaussian whose depth is not above `near`,
        /// or whose square of twice the radius about the centre does not touch the image, is not seen: its results are 0.
        fn project_gaussians(&self, p: Projection, io: ProjectGaussians<'_>) -> Result<()>;
        /// Gradients of [`SplattingOps::project_gaussians`] with respect to places and covariances; those of what is not seen are 0. The camera has
        /// none.
        fn project_gaussians_bwd(&self, p: Projection, io: ProjectGaussiansBwd<'_>) -> Result<()>;
        /// Colours from the front to the back, in the order of the depths (of equal ones the first comes first): with d from a Gaussian's centre to
        /// the middle of a pixel, alpha = opacity exp(-d^T conic d / 2), at most 0.99, a pixel takes the Gaussians of alpha of at least 1/255, each
        /// with the weight alpha T, and T, from 1 on, becomes T (1 - alpha). It ends before the one with which T would fall below 1e-4. A Gaussian
        /// whose conic is not positive definite, or that has a NaN, is left out.
        fn rasterize_gaussians(&self, io: RasterizeGaussians<'_>) -> Result<()>;
        /// Gradients of [`SplattingOps::rasterize_gaussians`]; depths have none. An alpha held at 0.99 passes none on to opacity and shape. The same
        /// bits from every call.
        fn rasterize_gaussians_bwd(&self, io: RasterizeGaussiansBwd<'_>) -> Result<()>;
    }
}

/// Contiguous f32 or f64 of a shape.
fn real(op: &'static str, arg: &'static str, v: &View<'_>, shape: &[usize], like: DType) -> Result<()> {
    check::one_of(op, arg, v, &[DType::F32, DType::F64])?;
    check::exact(op, arg, v, shape, like)
}

/// The number of Gaussians of an operand [N, ..].
fn count(op: &'static str, arg: &'static str, v: &View<'_>, axes: &[usize]) -> Result<usize> {
    let n = v.shape().first().copied().unwrap_or(0);
    if v.shape() != [&[n], axes].concat() || n > i32::MAX as usize {
        let want = format!("shape [N, {axes:?}] of fewer than 2^31 Gaussians");
        return Err(GpuError::invalid(op, arg, want, format!("{:?}", v.shape())));
    }
    Ok(n)
}

/// Most pixels along a side.
const MOST_PIXELS: usize = 1 << 20;

fn check_projection(op: &'static str, p: Projection, io: [&View<'_>; 4]) -> Result<usize> {
    for (arg, pixels) in [("width", p.width), ("height", p.height)] {
        if pixels == 0 || pixels > MOST_PIXELS {
            return Err(GpuError::invalid(op, arg, format!("1 to {MOST_PIXELS} pixels"), pixels.to_string()));
        }
    }
    for (arg, v) in [("near", p.near), ("blur", p.blur)] {
        if !(v >= 0.0 && v.is_finite()) {
            return Err(GpuError::invalid(op, arg, "a finite number of at least 0", v.to_string()));
        }
    }
    let [means, covariance, view, intrinsics] = io;
    let (n, dtype) = (count(op, "means", means, &[3])?, means.dtype());
    real(op, "means", means, &[n, 3], dtype)?;
    real(op, "covariance", covariance, &[n, 3, 3], dtype)?;
    real(op, "view", view, &[4, 4], dtype)?;
    real(op, "intrinsics", intrinsics, &[3, 3], dtype)?;
    Ok(n)
}

/// Checks of [`SplattingOps::project_gaussians`]; the number of Gaussians.
pub(crate) fn check_project_gaussians(p: Projection, io: &ProjectGaussians<'_>) -> Result<usize> {
    const OP: &str = "project_gaussians";
    let n = check_projection(OP, p, [&io.means, &io.covariance, &io.view, &io.intrinsics])?;
    let inputs =
        [("means", io.means), ("covariance", io.covariance), ("view", io.view), ("intrinsics", io.intrinsics)];
    let (mut seen, dtype) = (inputs.to_vec(), io.means.dtype());
    check::exact_output(OP, "centers", &io.centers, &[n, 2], dtype, &mut seen)?;
    check::exact_output(OP, "conics", &io.conics, &[n, 3], dtype, &mut seen)?;
    check::exact_output(OP, "depths", &io.depths, &[n], dtype, &mut seen)?;
    check::exact_output(OP, "radii", &io.radii, &[n], DType::I32, &mut seen)?;
    Ok(n)
}

/// Checks of [`SplattingOps::project_gaussians_bwd`]; the number of Gaussians.
pub(crate) fn check_project_gaussians_bwd(p: Projection, io: &ProjectGaussiansBwd<'_>) -> Result<usize> {
    const OP: &str = "project_gaussians_bwd";
    let n = check_projection(OP, p, [&io.means, &io.covariance, &io.view, &io.intrinsics])?;
    check::exact(OP, "radii", &io.radii, &[n], DType::I32)?;
    let mut seen = vec![
        ("means", io.means),
        ("covariance", io.covariance),
        ("view", io.view),
        ("intrinsics", io.intrinsics),
        ("radii", io.radii),
    ];
    let upstream =
        [("dcenters", io.dcenters, vec![n, 2]), ("dconics", io.dconics, vec![n, 3]), ("ddepths", io.ddepths, vec![n])];
    for (arg, v, shape) in upstream {
        let Some(v) = v else { continue };
        real(OP, arg, &v, &shape, io.means.dtype())?;
        seen.push((arg, v));
    }
    gradient(OP, "dmeans", io.dmeans.as_ref(), &io.means, &mut seen)?;
    gradient(OP, "dcovariance", io.dcovariance.as_ref(), &io.covariance, &mut seen)?;
    Ok(n)
}

/// Sizes of a checked image of Gaussians.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Splats {
    pub(crate) count: usize,
    pub(crate) height: usize,
    pub(crate) width: usize,
    pub(crate) channels: usize,
}

/// Side of the tiles of an image (`GK_SPLAT_SIDE`).
pub(crate) const SPLAT_SIDE: usize = 16;

impl Splats {
    pub(crate) fn pixels(self) -> usize {
        self.height * self.width
    }

    pub(crate) fn tiles(self) -> usize {
        self.height.div_ceil(SPLAT_SIDE) * self.width.div_ceil(SPLAT_SIDE)
    }
}

/// Centres, conics, colours, opacities, depths, radii.
type Flat<'a> = [(&'static str, View<'a>); 6];

fn check_image(op: &'static str, io: &Flat<'_>, image: (&'static str, &View<'_>)) -> Result<Splats> {
    let [centers, conics, colors, opacities, depths, radii] = io;
    let (n, dtype) = (count(op, "centers", &centers.1, &[2])?, centers.1.dtype());
    let &[_, channels] = colors.1.shape() else {
        return Err(GpuError::invalid(op, "colors", "shape [N, C]", format!("{:?}", colors.1.shape())));
    };
    real(op, "centers", &centers.1, &[n, 2], dtype)?;
    real(op, "conics", &conics.1, &[n, 3], dtype)?;
    real(op, "colors", &colors.1, &[n, channels], dtype)?;
    real(op, "opacities", &opacities.1, &[n], dtype)?;
    real(op, "depths", &depths.1, &[n], dtype)?;
    check::exact(op, "radii", &radii.1, &[n], DType::I32)?;
    let &[height, width, _] = image.1.shape() else {
        return Err(GpuError::invalid(op, image.0, "shape [H, W, C]", format!("{:?}", image.1.shape())));
    };
    if height.max(width) > MOST_PIXELS {
        let want = format!("at most {MOST_PIXELS} pixels a side");
        return Err(GpuError::invalid(op, image.0, want, format!("{:?}", image.1.shape())));
    }
    real(op, image.0, image.1, &[height, width, channels], dtype)?;
    Ok(Splats { count: n, height, width, channels })
}

/// Checks of [`SplattingOps::rasterize_gaussians`].
pub(crate) fn check_rasterize_gaussians(io: &RasterizeGaussians<'_>) -> Result<Splats> {
    const OP: &str = "rasterize_gaussians";
    let inputs = [
        ("centers", io.centers),
        ("conics", io.conics),
        ("colors", io.colors),
        ("opacities", io.opacities),
        ("depths", io.depths),
        ("radii", io.radii),
    ];
    let s = check_image(OP, &inputs, ("image", &io.image.as_view()))?;
    let (mut seen, dtype) = (inputs.to_vec(), io.centers.dtype());
    check::exact_output(OP, "image", &io.image, &[s.height, s.width, s.channels], dtype, &mut seen)?;
    check::exact_output(OP, "transmittance", &io.transmittance, &[s.height, s.width], dtype, &mut seen)?;
    Ok(s)
}

/// Checks of [`SplattingOps::rasterize_gaussians_bwd`].
pub(crate) fn check_rasterize_gaussians_bwd(io: &RasterizeGaussiansBwd<'_>) -> Result<Splats> {
    const OP: &str = "rasterize_gaussians_bwd";
    let inputs = [
        ("centers", io.centers),
        ("conics", io.conics),
        ("colors", io.colors),
        ("opacities", io.opacities),
        ("depths", io.depths),
        ("radii", io.radii),
    ];
    let s = check_image(OP, &inputs, ("dimage", &io.dimage))?;
    let mut seen = inputs.to_vec();
    seen.push(("dimage", io.dimage));
    if let Some(d) = io.dtransmittance {
        real(OP, "dtransmittance", &d, &[s.height, s.width], io.centers.dtype())?;
        seen.push(("dtransmittance", d));
    }
    gradient(OP, "dcenters", io.dcenters.as_ref(), &io.centers, &mut seen)?;
    gradient(OP, "dconics", io.dconics.as_ref(), &io.conics, &mut seen)?;
    gradient(OP, "dcolors", io.dcolors.as_ref(), &io.colors, &mut seen)?;
    gradient(OP, "dopacities", io.dopacities.as_ref(), &io.opacities, &mut seen)?;
    Ok(s)
}
