//! Images of Gaussians in space: the launches behind [`SplattingOps`].

use super::plan::groups;
use crate::buffer::{Buffer, GradMut, View, ViewMut};
use crate::driver::Ptr;
use crate::dtype::DType;
use crate::engine::Engine;
use crate::engine::launch::{Grid, long};
use crate::error::Result;
use crate::ops::field::*;
use crate::ops::sort::{SortIo, SortOps};
use crate::spec::kernels::field::*;

/// What an image is made of, as kernels read it.
struct Operands<'a> {
    sizes: Splats,
    dtype: DType,
    centers: View<'a>,
    conics: View<'a>,
    colors: View<'a>,
    opacities: View<'a>,
    radii: View<'a>,
    /// Numbers of the Gaussians by depth.
    order: Buffer,
}

/// Sums of tiles that are held at a time, in elements, and Gaussians at least.
const MOST_SUMS: usize = 1 << 24;
const LEAST_GAUSSIANS: usize = 32;

/// Gaussians whose gradients are taken at a time.
fn chunk(s: Splats) -> usize {
    let each = s.tiles() * (6 + s.channels);
    (MOST_SUMS / each.max(1)).clamp(LEAST_GAUSSIANS, s.count.max(LEAST_GAUSSIANS))
}

impl Engine {
    /// The numbers of Gaussians in the order of their depths.
    fn depth_order(&self, depths: &View<'_>) -> Result<Buffer> {
        let mut order = self.scratch(DType::I32, depths.numel())?;
        if depths.numel() > 0 {
            self.sort(0, false, SortIo::new(*depths).index(order.view_mut()))?;
        }
        Ok(order)
    }

    /// The image, what is left of the light, and the last Gaussian of each pixel.
    fn blend(&self, o: &Operands<'_>, image: Ptr, light: Ptr, last: Ptr) -> Result<()> {
        let s = o.sizes;
        let groups = if image == Ptr::NULL { 1 } else { groups(s.channels) };
        let args = RasterizeGaussiansArgs {
            centers: self.arg_in(&o.centers),
            conics: self.arg_in(&o.conics),
            colors: self.arg_in(&o.colors),
            opacities: self.arg_in(&o.opacities),
            radii: self.arg_in(&o.radii),
            order: self.arg_in(&o.order.view()),
            image,
            light,
            last,
            n: long(s.count),
            width: long(s.width),
            height: long(s.height),
            channels: long(if image == Ptr::NULL { 0 } else { s.channels }),
            groups: long(groups),
        };
        self.launch(&RASTERIZE_GAUSSIANS, o.dtype, "", Grid::Blocks([s.tiles() * groups, 1, 1]), &args)
    }

    /// The gradients, from the farthest Gaussians on, as many at a time as fit the memory for the sums of tiles.
    fn blend_bwd(
        &self,
        o: &Operands<'_>,
        dimage: &View<'_>,
        dlight: Ptr,
        grads: [Ptr; 4],
        add: i32,
    ) -> Result<()> {
        let (s, dt) = (o.sizes, o.dtype);
        let (light, behind) = (self.scratch(dt, s.pixels())?, self.scratch(dt, s.pixels())?);
        let last = self.scratch(DType::I32, s.pixels())?;
        let [light_arg, behind, last] = [&light, &behind, &last].map(|b| self.arg_in(&b.view()));
        self.blend(o, Ptr::NULL, light_arg, last)?;
        let args = RasterizeGaussiansRestArgs { light: light_arg, dlight, behind, n: long(s.pixels()) };
        self.launch(&RASTERIZE_GAUSSIANS_REST, dt, "", Grid::Stride(s.pixels()), &args)?;
        let chunk = chunk(s);
        let part = self.scratch(dt, chunk * s.tiles() * (6 + s.channels))?;
        let flags = self.scratch(DType::U8, chunk * s.tiles())?;
        let (part, flags) = (self.arg_in(&part.view()), self.arg_in(&flags.view()));
        let order = self.arg_in(&o.order.view());
        for from in (0..s.count).step_by(chunk).rev() {
            let count = chunk.min(s.count - from);
            let args = RasterizeGaussiansBwdArgs {
                dy: self.arg_in(dimage),
                centers: self.arg_in(&o.centers),
                conics: self.arg_in(&o.conics),
                colors: self.arg_in(&o.colors),
                opacities: self.arg_in(&o.opacities),
                radii: self.arg_in(&o.radii),
                order,
                last,
                light: light_arg,
                behind,
                part,
                flags,
                from: long(from),
                to: long(from + count),
                width: long(s.width),
                height: long(s.height),
                channels: long(s.channels),
            };
            self.launch(&RASTERIZE_GAUSSIANS_BWD, dt, "", Grid::Blocks([s.tiles(), 1, 1]), &args)?;
            let [dcenters, dconics, dcolors, dopacities] = grads;
            let args = RasterizeGaussiansFoldArgs {
                part,
                flags,
                order,
                dcenters,
                dconics,
                dcolors,
                dopacities,
                from: long(from),
                count: long(count),
                tiles: long(s.tiles()),
                channels: long(s.channels),
                add,
            };
            self.launch(&RASTERIZE_GAUSSIANS_FOLD, dt, "", Grid::Blocks([count.div_ceil(8), 1, 1]), &args)?;
        }
        Ok(())
    }
}

impl SplattingOps for Engine {
    fn project_gaussians(&self, p: Projection, io: ProjectGaussians<'_>) -> Result<()> {
        const OP: &str = "project_gaussians";
        let n = check_project_gaussians(p, &io)?;
        let inputs = [io.means, io.covariance, io.view, io.intrinsics];
        let [means, covariance, view, intrinsics] = inputs;
        let outputs = [&io.centers, &io.conics, &io.depths, &io.radii].map(ViewMut::as_view);
        let [centers, conics, depths, radii] = outputs;
        self.check_owner_all(
            OP,
            &[("means", means), ("covariance", covariance), ("view", view), ("intrinsics", intrinsics)],
        )?;
        self.check_owner_all(
            OP,
            &[("centers", centers), ("conics", conics), ("depths", depths), ("radii", radii)],
        )?;
        let args = ProjectGaussiansArgs {
            means: self.arg_in(&means),
            cov: self.arg_in(&covariance),
            view: self.arg_in(&view),
            camera: self.arg_in(&intrinsics),
            centers: self.arg_in(&centers),
            conics: self.arg_in(&conics),
            depths: self.arg_in(&depths),
            radii: self.arg_in(&radii),
            n: long(n),
            width: p.width as f64,
            height: p.height as f64,
            close: p.near,
            blur: p.blur,
        };
        self.launch(&PROJECT_GAUSSIANS, means.dtype(), "", Grid::Stride(n), &args)
    }

    fn project_gaussians_bwd(&self, p: Projection, io: ProjectGaussiansBwd<'_>) -> Result<()> {
        const OP: &str = "project_gaussians_bwd";
        let n = check_project_gaussians_bwd(p, &io)?;
        let grads = [&io.dmeans, &io.dcovariance];
        let [dmeans, dcov] = grads.map(|g| g.as_ref().map(|g| g.out.as_view()));
        let operands = [
            ("means", Some(io.means)),
            ("covariance", Some(io.covariance)),
            ("view", Some(io.view)),
            ("intrinsics", Some(io.intrinsics)),
            ("radii", Some(io.radii)),
            ("dcenters", io.dcenters),
            ("dconics", io.dconics),
            ("ddepths", io.ddepths),
            ("dmeans", dmeans),
            ("dcovariance", dcov),
        ];
        self.check_owner_all(OP, &operands)?;
        let add = grads.map(|g| i32::from(g.as_ref().is_some_and(|g: &GradMut<'_>| g.accumulate)));
        let args = ProjectGaussiansBwdArgs {
            dcenters: self.arg_opt(io.dcenters.as_ref()),
            dconics: self.arg_opt(io.dconics.as_ref()),
            ddepths: self.arg_opt(io.ddepths.as_ref()),
            means: self.arg_in(&io.means),
            cov: self.arg_in(&io.covariance),
            view: self.arg_in(&io.view),
            camera: self.arg_in(&io.intrinsics),
            radii: self.arg_in(&io.radii),
            dmeans: self.arg_opt(dmeans.as_ref()),
            dcov: self.arg_opt(dcov.as_ref()),
            n: long(n),
            width: p.width as f64,
            height: p.height as f64,
            blur: p.blur,
            add: add[0] | add[1] << 1,
        };
        self.launch(&PROJECT_GAUSSIANS_BWD, io.means.dtype(), "", Grid::Stride(n), &args)
    }

    fn rasterize_gaussians(&self, io: RasterizeGaussians<'_>) -> Result<()> {
        const OP: &str = "rasterize_gaussians";
        let sizes = check_rasterize_gaussians(&io)?;
        let (image, light) = (io.image.as_view(), io.transmittance.as_view());
        let operands = [
            ("centers", io.centers),
            ("conics", io.conics),
            ("colors", io.colors),
            ("opacities", io.opacities),
            ("depths", io.depths),
            ("radii", io.radii),
            ("image", image),
            ("transmittance", light),
        ];
        self.check_owner_all(OP, &operands)?;
        if sizes.pixels() == 0 {
            return Ok(());
        }
        let o = Operands {
            sizes,
            dtype: io.centers.dtype(),
            centers: io.centers,
            conics: io.conics,
            colors: io.colors,
            opacities: io.opacities,
            radii: io.radii,
            order: self.depth_order(&io.depths)?,
        };
        let image = if sizes.channels == 0 { Ptr::NULL } else { self.arg_in(&image) };
        self.blend(&o, image, self.arg_in(&light), Ptr::NULL)
    }

    fn rasterize_gaussians_bwd(&self, io: RasterizeGaussiansBwd<'_>) -> Result<()> {
        const OP: &str = "rasterize_gaussians_bwd";
        let sizes = check_rasterize_gaussians_bwd(&io)?;
        let grads = [&io.dcenters, &io.dconics, &io.dcolors, &io.dopacities];
        let [dcenters, dconics, dcolors, dopacities] = grads.map(|g| g.as_ref().map(|g| g.out.as_view()));
        let operands = [
            ("dimage", Some(io.dimage)),
            ("centers", Some(io.centers)),
            ("conics", Some(io.conics)),
            ("colors", Some(io.colors)),
            ("opacities", Some(io.opacities)),
            ("depths", Some(io.depths)),
            ("radii", Some(io.radii)),
            ("dtransmittance", io.dtransmittance),
            ("dcenters", dcenters),
            ("dconics", dconics),
            ("dcolors", dcolors),
            ("dopacities", dopacities),
        ];
        self.check_owner_all(OP, &operands)?;
        if grads.iter().all(|g| g.is_none()) {
            return Ok(());
        }
        if sizes.pixels() == 0 {
            // Nothing was seen.
            let zero = |g: &&Option<GradMut<'_>>| match g {
                Some(g) if !g.accumulate => self.fill_pattern(&[0; 8], &g.out.as_view()),
                _ => Ok(()),
            };
            return grads.iter().try_for_each(zero);
        }
        let accumulates = |g: &Option<GradMut<'_>>| g.as_ref().is_some_and(|g| g.accumulate);
        let add = (0..4).map(|k| i32::from(accumulates(grads[k])) << k).sum::<i32>();
        let o = Operands {
            sizes,
            dtype: io.centers.dtype(),
            centers: io.centers,
            conics: io.conics,
            colors: io.colors,
            opacities: io.opacities,
            radii: io.radii,
            order: self.depth_order(&io.depths)?,
        };
        let to = [dcenters, dconics, dcolors, dopacities].map(|g| self.arg_opt(g.as_ref()));
        self.blend_bwd(&o, &io.dimage, self.arg_opt(io.dtransmittance.as_ref()), to, add)
    }
}
