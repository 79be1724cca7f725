//! Covariances of Gaussians in space: the launches behind [`GaussianOps`].

use crate::buffer::{GradMut, View, ViewMut};
use crate::engine::Engine;
use crate::engine::launch::{Grid, long};
use crate::error::Result;
use crate::ops::field::*;
use crate::spec::kernels::field::*;

impl GaussianOps for Engine {
    fn gaussian_covariance(&self, rotation: View<'_>, scale: View<'_>, y: ViewMut<'_>) -> Result<()> {
        let n = check_gaussian_covariance(&rotation, &scale, &y)?;
        let y = y.as_view();
        self.check_owner_all("gaussian_covariance", &[("rotation", rotation), ("scale", scale), ("y", y)])?;
        let args = GaussianCovarianceArgs {
            rotation: self.arg_in(&rotation),
            scale: self.arg_in(&scale),
            y: self.arg_in(&y),
            n: long(n),
        };
        self.launch(&GAUSSIAN_COVARIANCE, y.dtype(), "", Grid::Stride(n), &args)
    }

    fn gaussian_covariance_bwd(&self, io: CovarianceBwd<'_>) -> Result<()> {
        const OP: &str = "gaussian_covariance_bwd";
        let n = check_gaussian_covariance_bwd(&io)?;
        self.check_owner_all(OP, &[("dy", io.dy), ("rotation", io.rotation), ("scale", io.scale)])?;
        let grads = [&io.drotation, &io.dscale];
        let [drotation, dscale] = grads.map(|g| g.as_ref().map(|g| g.out.as_view()));
        self.check_owner_all(OP, &[("drotation", drotation), ("dscale", dscale)])?;
        let add = grads.map(|g| i32::from(g.as_ref().is_some_and(|g: &GradMut<'_>| g.accumulate)));
        let args = GaussianCovarianceBwdArgs {
            dy: self.arg_in(&io.dy),
            rotation: self.arg_in(&io.rotation),
            scale: self.arg_in(&io.scale),
            drotation: self.arg_opt(drotation.as_ref()),
            dscale: self.arg_opt(dscale.as_ref()),
            n: long(n),
            add: add[0] | add[1] << 1,
        };
        self.launch(&GAUSSIAN_COVARIANCE_BWD, io.dy.dtype(), "", Grid::Stride(n), &args)
    }
}
