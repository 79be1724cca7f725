//! Samples along rays and their rendering: the launches behind [`RayOps`].

use super::plan::{RenderPlan, RenderProblem, groups};
use crate::buffer::{GradMut, View, ViewMut};
use crate::driver::Ptr;
use crate::engine::Engine;
use crate::engine::launch::{Grid, long};
use crate::engine::ops::random::RngArgs;
use crate::error::Result;
use crate::ops::field::*;
use crate::ops::random::Rng;
use crate::spec::kernels::field::*;

impl Engine {
    /// The arguments of a generator that may be absent, and whether it is.
    fn rng_or_middle(&self, op: &'static str, rng: Option<Rng<'_>>) -> Result<(RngArgs, i32)> {
        Ok((self.rng_args(op, &rng.unwrap_or(Rng::new(0)))?, i32::from(rng.is_none())))
    }

    /// The rendering, planned.
    fn render(&self, s: &RaySizes, plan: RenderPlan, io: &VolumeRender<'_>) -> Result<()> {
        let [density, color, delta] = [&io.density, &io.color, &io.delta].map(|v| self.arg_in(v));
        let t = if io.depth.is_some() { self.arg_opt(io.t.as_ref()) } else { Ptr::NULL };
        let [opacity, depth, weights] =
            [&io.opacity, &io.depth, &io.weights].map(|v| self.arg_opt_out(v.as_ref()));
        let (y, dt) = (self.arg_out(&io.y), io.density.dtype());
        let (samples, channels) = (long(s.samples), long(s.channels));
        if let RenderPlan::Blocks(blocks) = plan {
            let rays = long(s.rays);
            let args = VolumeRenderBlockArgs {
                density,
                color,
                delta,
                t,
                y,
                opacity,
                depth,
                weights,
                rays,
                samples,
                channels,
            };
            return self.launch(&VOLUME_RENDER_BLOCK, dt, "", Grid::Blocks([blocks, 1, 1]), &args);
        }
        let groups = groups(s.channels);
        let n = s.rays * groups;
        let args = VolumeRenderArgs {
            density,
            color,
            delta,
            t,
            y,
            opacity,
            depth,
            weights,
            n: long(n),
            samples,
            channels,
            groups: long(groups),
        };
        self.launch(&VOLUME_RENDER, dt, "", Grid::Stride(n), &args)
    }

    /// Its gradients, planned.
    fn render_bwd(&self, s: &RaySizes, plan: RenderPlan, io: &VolumeRenderBwd<'_>) -> Result<()> {
        let [density, color, delta] = [&io.density, &io.color, &io.delta].map(|v| self.arg_in(v));
        let [dy, t, dopacity, ddepth, dweights] =
            [&io.dy, &io.t, &io.dopacity, &io.ddepth, &io.dweights].map(|v| self.arg_opt(v.as_ref()));
        let grads = [&io.ddensity, &io.dcolor, &io.ddelta, &io.dt];
        let out = |g: &Option<GradMut<'_>>| self.arg_opt_out(g.as_ref().map(|g| &g.out));
        let [ddensity, dcolor, ddelta, dt] = grads.map(out);
        let accumulates = |g: &Option<GradMut<'_>>| g.as_ref().is_some_and(|g| g.accumulate);
        let add = (0..4).map(|k| i32::from(accumulates(grads[k])) << k).sum::<i32>();
        let (dtype, n) = (io.density.dtype(), s.rays * s.samples);
        let (rays, samples, channels) = (long(s.rays), long(s.samples), long(s.channels));
        let memory = self.scratch(dtype.accumulator(), n)?;
        let depths = self.arg_in(&memory.view());
        if let RenderPlan::Blocks(blocks) = plan {
            let slopes = self.scratch(dtype.accumulator(), n)?;
            let args = VolumeRenderBwdBlockArgs {
                dy,
                density,
                color,
                delta,
                t,
                dopacity,
                ddepth,
                dweights,
                ddensity,
                dcolor,
                ddelta,
                dt,
                depths,
                slopes: self.arg_in(&slopes.view()),
                rays,
                samples,
                channels,
                add,
            };
            return self.launch(&VOLUME_RENDER_BWD_BLOCK, dtype, "", Grid::Blocks([blocks, 1, 1]), &args);
        }
        let args = VolumeRenderBwdArgs {
            dy,
            density,
            color,
            delta,
            t,
            dopacity,
            ddepth,
            dweights,
            ddensity,
            dcolor,
            ddelta,
            dt,
            depths,
            rays,
            samples,
            channels,
            add,
        };
        self.launch(&VOLUME_RENDER_BWD, dtype, "", Grid::Stride(s.rays), &args)
    }
}

impl RayOps for Engine {
    fn ray_sampling(
        &self,
        rng: Option<Rng<'_>>,
        near: View<'_>,
        far: View<'_>,
        t: ViewMut<'_>,
    ) -> Result<()> {
        const OP: &str = "ray_sampling";
        let [_, samples] = check_ray_sampling(&rng, &near, &far, &t)?;
        let to = t.as_view();
        self.check_owner_all(OP, &[("near", near), ("far", far), ("t", to)])?;
        let (RngArgs { seed, stream, offset, more }, middle) = self.rng_or_middle(OP, rng)?;
        let args = RaySamplingArgs {
            low: self.arg_in(&near),
            high: self.arg_in(&far),
            t: self.arg_in(&to),
            more,
            n: long(to.numel()),
            samples: long(samples),
            seed,
            stream,
            offset,
            middle,
        };
        self.launch(&RAY_SAMPLING, to.dtype(), "", Grid::Stride(to.numel().div_ceil(4)), &args)
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
        let to = t.as_view();
        self.check_owner_all(OP, &[("edges", edges), ("weights", weights), ("t", to)])?;
        let (RngArgs { seed, stream, offset, more }, middle) = self.rng_or_middle(OP, rng)?;
        if to.numel() == 0 {
            return Ok(());
        }
        let dt = to.dtype();
        let sums = self.scratch(dt.accumulator(), rays * (intervals + 1))?;
        let args = ImportanceSumsArgs {
            weights: self.arg_in(&weights),
            sums: self.arg_in(&sums.view()),
            rays: long(rays),
            intervals: long(intervals),
            padding,
        };
        self.launch(&IMPORTANCE_SUMS, dt, "", Grid::Stride(rays), &args)?;
        let args = ImportanceSamplingArgs {
            edges: self.arg_in(&edges),
            weights: self.arg_in(&weights),
            sums: self.arg_in(&sums.view()),
            t: self.arg_in(&to),
            more,
            n: long(to.numel()),
            samples: long(samples),
            intervals: long(intervals),
            seed,
            stream,
            offset,
            padding,
            middle,
        };
        self.launch(&IMPORTANCE_SAMPLING, dt, "", Grid::Stride(to.numel().div_ceil(4)), &args)
    }

    fn volume_render(&self, io: VolumeRender<'_>) -> Result<()> {
        const OP: &str = "volume_render";
        let s = check_volume_render(&io)?;
        self.check_owner_all(OP, &[("density", io.density), ("color", io.color), ("delta", io.delta)])?;
        let outs = [&io.opacity, &io.depth, &io.weights].map(|v| v.as_ref().map(ViewMut::as_view));
        let [opacity, depth, weights] = outs;
        let optional = [("t", io.t), ("opacity", opacity), ("depth", depth), ("weights", weights)];
        self.check_owner_all(OP, &optional)?;
        self.check_owner(OP, "y", &io.y.as_view())?;
        if s.rays == 0 {
            return Ok(());
        }
        self.render(&s, self.plan_with(OP, &RenderProblem(s), io.density.dtype())?, &io)
    }

    fn volume_render_bwd(&self, io: VolumeRenderBwd<'_>) -> Result<()> {
        const OP: &str = "volume_render_bwd";
        let s = check_volume_render_bwd(&io)?;
        self.check_owner_all(OP, &[("density", io.density), ("color", io.color), ("delta", io.delta)])?;
        let optional = [
            ("t", io.t),
            ("dy", io.dy),
            ("dopacity", io.dopacity),
            ("ddepth", io.ddepth),
            ("dweights", io.dweights),
        ];
        self.check_owner_all(OP, &optional)?;
        let grads =
            [&io.ddensity, &io.dcolor, &io.ddelta, &io.dt].map(|g| g.as_ref().map(|g| g.out.as_view()));
        let [ddensity, dcolor, ddelta, dt] = grads;
        let grads = [("ddensity", ddensity), ("dcolor", dcolor), ("ddelta", ddelta), ("dt", dt)];
        self.check_owner_all(OP, &grads)?;
        if s.rays * s.samples == 0 {
            return Ok(());
        }
        self.render_bwd(&s, self.plan_with(OP, &RenderProblem(s), io.density.dtype())?, &io)
    }
}
