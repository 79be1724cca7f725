//! Depthwise convolutions that keep a map's size or halve it: outputs in blocks of neighbouring rows and columns.

use super::Gathered;
use super::plan::Depthwise;
use crate::buffer::{GradMut, View};
use crate::driver::DimsArg;
use crate::engine::Engine;
use crate::engine::launch::{Grid, aligned16, args_from, dims};
use crate::engine::ops::shape::strided::magic;
use crate::error::Result;
use crate::ops::conv::ConvShape;
use crate::spec::kernels::conv::*;

/// A depthwise convolution as a kernel takes it.
struct DepthwiseArgs {
    items: usize,
    size: DimsArg,
    /// Multipliers that divide by the items of a row, the strips of a map and the maps of an image.
    by: DimsArg,
    wide: i32,
}

impl DepthwiseArgs {
    /// Arguments for `maps` maps, of which input maps have `each` outputs.
    fn new(s: &ConvShape, d: Depthwise, [maps, each]: [usize; 2], views: [&View<'_>; 2]) -> Self {
        DepthwiseArgs {
            items: s.n * maps * d.quads * d.strips,
            size: dims([s.input[1], s.input[2], s.groups, each]),
            by: magic([d.quads, d.strips, s.groups * each]),
            wide: i32::from(s.input[2].is_multiple_of(4) && views.into_iter().all(aligned16)),
        }
    }

    /// Arguments for all output maps, `each` per group.
    fn forward(s: &ConvShape, d: Depthwise, each: usize, views: [&View<'_>; 2]) -> Self {
        DepthwiseArgs::new(s, d, [s.groups * each, each], views)
    }

    /// Arguments for the weights of one channel: its items in all images.
    fn weight(s: &ConvShape, d: Depthwise, views: [&View<'_>; 2]) -> Self {
        DepthwiseArgs::new(s, d, [1, s.cog()], views)
    }
}

impl Engine {
    /// A depthwise convolution, or its adjoint, whose operands are those of `args`.
    pub(super) fn depthwise(&self, q: &Gathered<'_>, d: Depthwise, args: ConvDirectArgs) -> Result<()> {
        let (views, channels) = ([&q.x, &q.y.as_view()], q.p.channels().0);
        let DepthwiseArgs { items, size, by, wide } = DepthwiseArgs::forward(&q.p.s, d, channels, views);
        let (n, side, grid, dtype) = (items as i64, d.side as i32, Grid::Stride(items), q.p.dtype);
        if d.stride == 2 {
            let kernel = if q.p.back { &CONV_DEPTHWISE_STRIDED_ADJOINT } else { &CONV_DEPTHWISE_STRIDED };
            let args = args_from! { args => ConvDepthwiseStridedArgs
                [x w scale bias residual y z accumulate act p]
                { n, size, by, side, wide }
            };
            return self.launch(kernel, dtype, "", grid, &args);
        }
        if d.side > 3 {
            let args = args_from! { args => ConvDepthwiseLargeArgs
                [x w scale bias residual y z back accumulate act p]
                { n, size, by, side, wide }
            };
            return self.launch(&CONV_DEPTHWISE_LARGE, dtype, "", grid, &args);
        }
        let args = args_from! { args => ConvDepthwiseArgs
            [x w scale bias residual y z back accumulate act p]
            { n, size, by, wide }
        };
        self.launch(&CONV_DEPTHWISE, dtype, "", grid, &args)
    }

    /// A weight gradient, with one block per channel and run of items.
    pub(super) fn depthwise_weight(
        &self,
        s: &ConvShape,
        d: Depthwise,
        [splits, per]: [usize; 2],
        [x, dy]: [View<'_>; 2],
        g: GradMut<'_>,
    ) -> Result<()> {
        let DepthwiseArgs { items: n, size, by, wide } = DepthwiseArgs::weight(s, d, [&x, &dy]);
        let part = self.scratch(x.dtype().accumulator(), splits * g.out.numel())?;
        let (grid, dtype) = (Grid::Blocks([s.co * splits, 1, 1]), x.dtype());
        let (x, dy, sums) = (self.arg_in(&x), self.arg_in(&dy), self.arg_in(&part.view()));
        let (n, per, side) = (n as i64, per as i64, d.side as i32);
        if d.side == 3 && d.stride == 1 {
            let args = ConvDepthwiseWeightArgs { x, dy, part: sums, n, per, size, by, wide };
            self.launch(&CONV_DEPTHWISE_WEIGHT, dtype, "", grid, &args)?;
        } else {
            let strided = d.stride == 2;
            let kernel = if strided { &CONV_DEPTHWISE_STRIDED_WEIGHT } else { &CONV_DEPTHWISE_LARGE_WEIGHT };
            let args = ConvDepthwiseLargeWeightArgs { x, dy, part: sums, n, per, size, by, side, wide };
            self.launch(kernel, dtype, "", grid, &args)?;
        }
        self.conv_join(&g, Some(&part.view()), splits)
    }
}
