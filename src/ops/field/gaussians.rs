//! Gaussians in space: signatures and checks.

use super::{gradient, operand};
use crate::buffer::{GradMut, View, ViewMut};
use crate::error::{GpuError, Result};
use crate::ops::check;

io_struct! {
    /// Operands of [`GaussianOps::gaussian_covariance_bwd`].
    #[derive(Debug)]
    pub struct CovarianceBwd<'a> {
        /// Upstream gradient [N, 3, 3], which need not be symmetric.
        pub dy: View<'a>,
        /// Forward's.
        pub rotation: View<'a>,
        /// Forward's.
        pub scale: View<'a>,
        /// Gradient of the quaternions.
        pub drotation: Option<GradMut<'a>>,
        /// Gradient of the scales.
        pub dscale: Option<GradMut<'a>>,
    }
}

op_family! {
    /// Gaussians in space: f32, f16, bf16, f64, operands of one dtype, contiguous. Deterministic. Errors: `Invalid` for shapes, dtypes, overlap.
    pub trait GaussianOps : Field => GAUSSIAN_OPS {
        /// y = R S S R^T: rotation [N, 4] quaternions (w, x, y, z), which are divided by their lengths, scale [N, 3] the diagonal of S, y [N, 3, 3].
        /// A quaternion of length 0 gives NaN. Source Kerbl et al. (2023): 3D Gaussian splatting.
        fn gaussian_covariance(&self, rotation: View<'_>, scale: View<'_>, y: ViewMut<'_>) -> Result<()>;
        /// Gradients of [`GaussianOps::gaussian_covariance`], that of a quaternion at right angles to it. With the upstream gradient G and
        /// B = R^T (G + G^T) R the scales get S_k B_kk, and a turn about axis i (S_j^2 - S_k^2) B_jk.
        fn gaussian_covariance_bwd(&self, io: CovarianceBwd<'_>) -> Result<()>;
    }
}

/// The number of Gaussians.
fn check_covariance(
    op: &'static str,
    rotation: &View<'_>,
    scale: &View<'_>,
    y: (&'static str, &View<'_>),
) -> Result<usize> {
    let &[count, 4] = rotation.shape() else {
        let got = format!("{:?}", rotation.shape());
        return Err(GpuError::invalid(op, "rotation", "shape [N, 4]", got));
    };
    check::shape(op, "scale", scale, &[count, 3])?;
    check::shape(op, y.0, y.1, &[count, 3, 3])?;
    for (arg, v) in [("rotation", rotation), ("scale", scale), y] {
        operand(op, arg, v, rotation)?;
    }
    Ok(count)
}

/// Checks of [`GaussianOps::gaussian_covariance`]; the number of Gaussians.
pub(crate) fn check_gaussian_covariance(
    rotation: &View<'_>,
    scale: &View<'_>,
    y: &ViewMut<'_>,
) -> Result<usize> {
    const OP: &str = "gaussian_covariance";
    let n = check_covariance(OP, rotation, scale, ("y", &y.as_view()))?;
    check::separate_output(OP, "y", y, &[("rotation", *rotation), ("scale", *scale)])?;
    Ok(n)
}

/// Checks of [`GaussianOps::gaussian_covariance_bwd`]; the number of Gaussians.
pub(crate) fn check_gaussian_covariance_bwd(io: &CovarianceBwd<'_>) -> Result<usize> {
    const OP: &str = "gaussian_covariance_bwd";
    let n = check_covariance(OP, &io.rotation, &io.scale, ("dy", &io.dy))?;
    let mut seen = vec![("dy", io.dy), ("rotation", io.rotation), ("scale", io.scale)];
    gradient(OP, "drotation", io.drotation.as_ref(), &io.rotation, &mut seen)?;
    gradient(OP, "dscale", io.dscale.as_ref(), &io.scale, &mut seen)?;
    Ok(n)
}
