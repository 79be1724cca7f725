//! Regions of interest: the launches behind [`ResampleOps`](crate::ops::resample::ResampleOps).

use crate::buffer::{GradMut, View};
use crate::dtype::DType;
use crate::engine::Engine;
use crate::engine::launch::{Grid, code_of_op};
use crate::engine::ops::index::scatter::wide_index;
use crate::error::Result;
use crate::ops::resample::*;
use crate::spec::kernels::resample::*;

/// Channels per thread (`GK_ROI_CHANNELS`).
const CHANNELS: usize = 4;

impl Engine {
    pub(in crate::engine::ops) fn regions(
        &self,
        op: &'static str,
        p: RoiAlign,
        s: &RoiSizes,
        [x, boxes, images]: [&View<'_>; 3],
        y: &View<'_>,
    ) -> Result<()> {
        let groups = s.channels.div_ceil(CHANNELS);
        let n = s.boxes * groups * s.bins[0] * s.bins[1];
        let args = RoiAlignArgs {
            x: self.arg_in(x),
            boxes: self.arg_in(boxes),
            images: self.arg_in(images),
            y: self.arg_in(y),
            err: self.arg_error(),
            n: n as i64,
            samples: s.batch as i64,
            channels: s.channels as i64,
            groups: groups as i64,
            wide: wide_index(images),
            code: code_of_op(op),
            scale: p.spatial_scale,
            height: s.input[0] as i32,
            width: s.input[1] as i32,
            rows: s.bins[0] as i32,
            columns: s.bins[1] as i32,
            ratio: p.sampling_ratio as i32,
            aligned: i32::from(p.aligned),
        };
        self.launch(&ROI_ALIGN, y.dtype(), "", Grid::Stride(n), &args)
    }

    /// Each cell looks for the samples of all boxes of its image that read it.
    pub(in crate::engine::ops) fn regions_bwd(
        &self,
        op: &'static str,
        p: RoiAlign,
        s: &RoiSizes,
        [dy, boxes, images]: [&View<'_>; 3],
        dx: &GradMut<'_>,
    ) -> Result<()> {
        let v = dx.out.as_view();
        let dt = v.dtype();
        if v.numel() == 0 && s.boxes == 0 {
            return Ok(());
        }
        let spans = self.scratch(dt.accumulator(), 5 * s.boxes)?;
        let places = self.scratch(DType::I64, 3 * s.boxes)?;
        let args = RoiAlignSpansArgs {
            boxes: self.arg_in(boxes),
            images: self.arg_in(images),
            spans: self.arg_in(&spans.view()),
            places: self.arg_in(&places.view()),
            err: self.arg_error(),
            n: s.boxes as i64,
            samples: s.batch as i64,
            wide: wide_index(images),
            code: code_of_op(op),
            scale: p.spatial_scale,
            height: s.input[0] as i32,
            width: s.input[1] as i32,
            rows: s.bins[0] as i32,
            columns: s.bins[1] as i32,
            ratio: p.sampling_ratio as i32,
            aligned: i32::from(p.aligned),
        };
        self.launch(&ROI_ALIGN_SPANS, dt, "", Grid::Stride(s.boxes), &args)?;
        let groups = s.channels.div_ceil(CHANNELS);
        let n = s.batch * groups * s.input[0] * s.input[1];
        let args = RoiAlignBwdArgs {
            dy: self.arg_in(dy),
            spans: self.arg_in(&spans.view()),
            places: self.arg_in(&places.view()),
            dx: self.arg_in(&v),
            n: n as i64,
            boxes: s.boxes as i64,
            channels: s.channels as i64,
            groups: groups as i64,
            accumulate: i32::from(dx.accumulate),
            scale: p.spatial_scale,
            height: s.input[0] as i32,
            width: s.input[1] as i32,
            rows: s.bins[0] as i32,
            columns: s.bins[1] as i32,
            ratio: p.sampling_ratio as i32,
            aligned: i32::from(p.aligned),
        };
        self.launch(&ROI_ALIGN_BWD, dt, "", Grid::Stride(n), &args)
    }
}
