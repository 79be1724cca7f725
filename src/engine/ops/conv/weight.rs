//! Weight gradients of convolutions.

use crate::buffer::{GradMut, View};
use crate::dtype::DType;
use crate::engine::Engine;
use crate::engine::launch::{Grid, dims};
use crate::engine::ops::conv::plan::Library;
use crate::engine::ops::conv::plan::weight::{WeightPlan, WeightProblem};
use crate::error::Result;
use crate::ops::conv::*;
use crate::spec::kernels::conv::*;

impl Engine {
    /// dw (+)= sums of dy * x by kernels for contiguous operands.
    pub(super) fn own_weight(
        &self,
        op: &'static str,
        plan: WeightPlan,
        s: &ConvShape,
        views: [View<'_>; 2],
        g: GradMut<'_>,
    ) -> Result<()> {
        self.weight_in_format(views, g, false, |views, g| self.weight_gradient(op, plan, s, views, g))
    }

    /// dw (+)= sums of dy * x, all of them contiguous.
    pub(in crate::engine::ops) fn weight_gradient(
        &self,
        op: &'static str,
        plan: WeightPlan,
        s: &ConvShape,
        [x, dy]: [View<'_>; 2],
        g: GradMut<'_>,
    ) -> Result<()> {
        if g.out.numel() == 0 {
            return Ok(());
        }
        if s.n * s.out_plane() == 0 {
            return self.conv_join(&g, None, 0);
        }
        match plan {
            WeightPlan::Vendor | WeightPlan::Pointwise => {
                let vendor = Library::unasked("the portable kernels are asked");
                let problem = WeightProblem { s: *s, dtype: x.dtype(), last: false, tf32: false, vendor };
                self.weight_gradient(op, problem.convolution(self.device_caps()), s, [x, dy], g)
            }
            WeightPlan::Matrix { tile, splits, per } => {
                self.conv_matrix_weight(s, (tile, [splits, per]), [x, dy], g)
            }
            WeightPlan::Tiles { side, splits, per } => self.weight_tiles(s, side, [splits, per], [x, dy], g),
            WeightPlan::Depthwise { items, splits, per } => {
                self.conv_extents(op, s)?;
                self.depthwise_weight(s, items, [splits, per], [x, dy], g)
            }
            WeightPlan::Direct { splits, per } => {
                self.conv_extents(op, s)?;
                self.direct_weight(s, [splits, per], [x, dy], g)
            }
        }
    }

    /// Tiles of that side, and `splits` runs of `per` terms.
    fn weight_tiles(
        &self,
        s: &ConvShape,
        side: usize,
        [splits, per]: [usize; 2],
        [x, dy]: [View<'_>; 2],
        g: GradMut<'_>,
    ) -> Result<()> {
        let (dtype, size) = (x.dtype(), g.out.numel());
        let (m, cols, k) = (s.cog(), s.cig() * s.taps(), s.n * s.out_plane());
        let (mt, ct) = (m.div_ceil(side), cols.div_ceil(side));
        let plan = self.scratch(DType::I32, 4 * (1 + cols))?;
        self.conv_plan(s, false, None, &plan.view(), (1, 1, s.cig()), s.input)?;
        let real = dtype.accumulator();
        let part = self.scratch(real, splits * size)?;
        let plane = s.in_plane();
        let args = ConvWeightArgs {
            x: self.arg_in(&x),
            dy: self.arg_in(&dy),
            plan: self.arg_in(&plan.view()),
            part: self.arg_in(&part.view()),
            img: dims(s.input.into_iter().chain([s.ci * plane, s.cig() * plane])),
            out: dims(s.output.into_iter().chain([m, s.groups, s.n])),
            step: dims(s.stride.into_iter().chain(s.pad)),
            size: dims([cols, splits, per, mt, ct, k]),
        };
        let kernel = if side == 128 { &CONV_WEIGHT128 } else { &CONV_WEIGHT64 };
        let blocks = mt.saturating_mul(ct).saturating_mul(s.groups).saturating_mul(splits);
        self.launch(kernel, dtype, "", Grid::Blocks([blocks, 1, 1]), &args)?;
        self.conv_join(&g, Some(&part.view()), splits)
    }

    /// Adds the runs of a split sum.
    pub(super) fn conv_join(&self, g: &GradMut<'_>, part: Option<&View<'_>>, splits: usize) -> Result<()> {
        let n = g.out.numel();
        let args = ConvCombineArgs {
            part: self.arg_opt(part),
            dw: self.arg_out(&g.out),
            n: n as i64,
            splits: splits as i32,
            accumulate: i32::from(g.accumulate),
        };
        self.launch(&CONV_COMBINE, g.out.dtype(), "", Grid::Stride(n), &args)
    }

    /// One block per pair of channels, chunk of taps and run of places.
    fn direct_weight(
        &self,
        s: &ConvShape,
        [splits, per]: [usize; 2],
        [x, dy]: [View<'_>; 2],
        g: GradMut<'_>,
    ) -> Result<()> {
        let (dtype, size) = (x.dtype(), g.out.numel());
        let blocks = size / s.taps() * s.taps().div_ceil(9);
        let real = dtype.accumulator();
        let part = self.scratch(real, splits * size)?;
        let args = ConvDirectWeightArgs {
            x: self.arg_in(&x),
            dy: self.arg_in(&dy),
            part: self.arg_in(&part.view()),
            img: dims(s.input),
            out: dims(s.output.into_iter().chain([s.cog(), s.groups, s.n, s.cig()])),
            win: dims(s.kernel.into_iter().chain(s.stride)),
            geo: dims(s.pad.into_iter().chain(s.dilation)),
            splits: splits as i32,
            per: per as i64,
        };
        self.launch(&CONV_DIRECT_WEIGHT, dtype, "", Grid::Blocks([blocks * splits, 1, 1]), &args)?;
        self.conv_join(&g, Some(&part.view()), splits)
    }
}
