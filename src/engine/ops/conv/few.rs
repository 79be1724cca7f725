//! Adjoints with strides of two and few channels: weights by place, and sums of two by two outputs.

use super::Gathered;
use super::plan::few::FewTile;
use crate::buffer::ViewMut;
use crate::engine::Engine;
use crate::engine::launch::{Grid, aligned16, dims};
use crate::error::Result;
use crate::ops::gemm::fused_act;
use crate::spec::kernels::conv::*;

impl Engine {
    /// The adjoint of a convolution whose operands are contiguous.
    pub(super) fn adjoint_of_few(&self, op: &'static str, q: &Gathered<'_>, t: FewTile) -> Result<()> {
        let (s, dtype) = (&q.p.s, q.p.dtype);
        let n = s.co * t.weights();
        let wt = self.scratch(dtype.accumulator(), n)?;
        let spans = [t.high.count, t.wide.count, t.high.ahead, t.wide.ahead];
        let tile = dims([t.quads, t.rows, t.across, t.down].into_iter().chain(spans));
        let args = ConvFewWeightsArgs {
            w: self.arg_in(&q.w),
            wt: self.arg_in(&wt.view()),
            n: n as i64,
            channels: s.ci as i32,
            keep: t.keep as i32,
            tile,
            win: dims(s.kernel.into_iter().chain(s.stride)),
            geo: dims(s.pad.into_iter().chain(s.dilation)),
        };
        self.launch(&CONV_FEW_WEIGHTS, dtype, "", Grid::Stride(n), &args)?;
        let (y, z) = (q.y.as_view(), q.z.as_ref().map(ViewMut::as_view));
        let (act, slope) = fused_act(op, q.act)?;
        let wide = |width: usize, aligned: bool| usize::from(width.is_multiple_of(4) && aligned);
        let ([_, from_high, from_wide], [_, to_high, to_wide]) = (s.output, s.input);
        let args = ConvFewArgs {
            x: self.arg_in(&q.x),
            wt: self.arg_in(&wt.view()),
            scale: self.arg_opt(q.scale.as_ref()),
            bias: self.arg_opt(q.bias.as_ref()),
            residual: self.arg_opt(q.residual.as_ref()),
            y: self.arg_in(&y),
            z: self.arg_opt(z.as_ref()),
            img: dims([from_high, from_wide, s.co, wide(from_wide, aligned16(&q.x))]),
            out: dims([to_high, to_wide, s.ci, wide(to_wide, aligned16(&y))]),
            tile,
            accumulate: i32::from(q.accumulate),
            act,
            q_act: slope,
            taps: t.taps(s),
        };
        let blocks = (t.across * t.down).saturating_mul(s.n);
        self.launch(&CONV_FEW, dtype, "", Grid::Blocks([blocks, 1, 1]), &args)
    }
}
