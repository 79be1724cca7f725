//! Sampling at positions and suppression of boxes: the launches behind [`ResampleOps`](crate::ops::resample::ResampleOps).

use crate::spec::kernels::resample::*;
use crate::buffer::View;
use crate::driver::Arg;
use crate::dtype::DType;
use crate::engine::Engine;
use crate::engine::launch::{Grid, dims, real};
use crate::engine::ops::index::scatter::wide_index;
use crate::error::Result;
use crate::ops::resample::*;
use crate::spec::BLOCK;

/// The unit that serves a mode, and its taps along an axis.
fn unit(mode: SampleMode) -> (&'static str, usize) {
    match mode {
        SampleMode::Nearest => ("gk_sample_nearest", 1),
        SampleMode::Linear => ("gk_sample_linear", 2),
        SampleMode::Cubic => ("gk_sample_cubic", 4),
    }
}

fn padding(p: GridSample) -> Arg {
    Arg::I32(match p.padding {
        SamplePadding::Zeros => 0,
        SamplePadding::Border => 1,
        SamplePadding::Reflection => 2,
    })
}

impl Engine {
    /// Channels per work-item when there are `positions` of them: few enough that the device is full.
    fn channel_groups(&self, channels: usize, positions: usize) -> (usize, usize) {
        let wanted = (2 * self.fill() * BLOCK as usize).div_ceil(positions.max(1));
        let per = channels.div_ceil(wanted.clamp(1, channels.max(1))).max(1);
        (per, channels.div_ceil(per))
    }

    pub(in crate::engine::ops) fn sample(
        &self,
        p: GridSample,
        s: &SampleSizes,
        x: &View<'_>,
        grid: &View<'_>,
        y: &View<'_>,
    ) -> Result<()> {
        let positions = s.batch * s.outputs;
        let (channels, groups) = self.channel_groups(s.channels, positions);
        let n = positions * groups;
        let args = [
            self.arg_in(x),
            self.arg_in(grid),
            self.arg_in(y),
            Arg::I64(n as i64),
            Arg::I64(s.batch as i64),
            Arg::I64(s.outputs as i64),
            Arg::I64(s.channels as i64),
            Arg::I64(channels as i64),
            Arg::I32(s.axes as i32),
            dims(s.input),
            padding(p),
            Arg::I32(p.align_corners as i32),
        ];
        self.launch_list(&GRID_SAMPLE.spec, x.dtype(), unit(p.mode).0, Grid::Stride(n), &args)
    }

    pub(in crate::engine::ops) fn sample_dgrid(
        &self,
        p: GridSample,
        s: &SampleSizes,
        io: &GridSampleBwd<'_>,
        dgrid: &View<'_>,
        accumulate: bool,
    ) -> Result<()> {
        let n = s.batch * s.outputs;
        let args = [
            self.arg_in(&io.dy),
            self.arg_in(&io.x),
            self.arg_in(&io.grid),
            self.arg_in(dgrid),
            Arg::I64(n as i64),
            Arg::I64(s.outputs as i64),
            Arg::I64(s.channels as i64),
            Arg::I32(s.axes as i32),
            dims(s.input),
            padding(p),
            Arg::I32(p.align_corners as i32),
            Arg::I32(accumulate as i32),
        ];
        self.launch_list(&GRID_SAMPLE_DGRID.spec, dgrid.dtype(), unit(p.mode).0, Grid::Stride(n), &args)
    }

    /// Sorts the taps of all positions by the cell that they read; each cell then adds up its own.
    pub(in crate::engine::ops) fn sample_dx(
        &self,
        op: &'static str,
        p: GridSample,
        s: &SampleSizes,
        io: &GridSampleBwd<'_>,
        dx: &View<'_>,
        accumulate: bool,
    ) -> Result<()> {
        let (positions, limit, dt) = (s.batch * s.outputs, s.batch * s.cells(), dx.dtype());
        if dx.numel() == 0 {
            return Ok(());
        }
        let (unit, taps) = unit(p.mode);
        let per = taps.pow(s.axes as u32);
        let entries = positions * per;
        let key = if limit < i32::MAX as usize { DType::I32 } else { DType::I64 };
        let keys = self.scratch(key, entries)?;
        let weights = self.scratch(dt.accumulator(), entries)?;
        let wide = wide_index(&keys.view());
        let args = [
            self.arg_in(&io.grid),
            self.arg_in(&keys.view()),
            self.arg_in(&weights.view()),
            Arg::I64(positions as i64),
            Arg::I64(s.outputs as i64),
            wide,
            Arg::I64(limit as i64),
            Arg::I32(per as i32),
            Arg::I32(s.axes as i32),
            dims(s.input),
            padding(p),
            Arg::I32(p.align_corners as i32),
        ];
        self.launch_list(&GRID_SAMPLE_KEYS.spec, dt, unit, Grid::Stride(positions), &args)?;
        let pairs = self.sort_pairs(op, &keys.view(), usize::BITS - limit.leading_zeros())?;
        let (channels, groups) = self.channel_groups(s.channels, limit);
        let n = limit * groups;
        let args = [
            self.arg_in(&pairs.keys.view()),
            self.arg_in(&pairs.positions.view()),
            self.arg_in(&weights.view()),
            self.arg_in(&io.dy),
            self.arg_in(dx),
            Arg::I64(n as i64),
            Arg::I64(entries as i64),
            wide,
            Arg::I64(s.cells() as i64),
            Arg::I64(s.batch as i64),
            Arg::I64(s.outputs as i64),
            Arg::I64(s.channels as i64),
            Arg::I64(channels as i64),
            Arg::I32(per.trailing_zeros() as i32),
            Arg::I32(accumulate as i32),
        ];
        self.launch_list(&SAMPLE_GATHER.spec, dt, "", Grid::Stride(n), &args)
    }

    #[allow(clippy::too_many_arguments)]
    pub(in crate::engine::ops) fn suppress(
        &self,
        op: &'static str,
        threshold: f64,
        boxes: &View<'_>,
        scores: &View<'_>,
        groups: Option<&View<'_>>,
        n: usize,
        keep: &View<'_>,
        count: &View<'_>,
    ) -> Result<()> {
        if n == 0 {
            return self.fill_pattern(&[0; 8], count);
        }
        let dt = boxes.dtype();
        let key = if dt == DType::F64 { DType::I64 } else { DType::I32 };
        let keys = self.scratch(key, n)?;
        let args = [self.arg_in(scores), self.arg_in(&keys.view()), Arg::I64(n as i64)];
        self.launch_list(&NMS_KEYS.spec, dt, "", Grid::Stride(n), &args)?;
        let order = self.sort_pairs(op, &keys.view(), 8 * key.size() as u32)?.positions;
        let words = n.div_ceil(32);
        let (bits, gone) = (self.scratch(DType::I32, n * words)?, self.scratch(DType::I32, words)?);
        let args = [
            self.arg_in(boxes),
            self.arg_opt(groups),
            self.arg_in(&order.view()),
            self.arg_in(&bits.view()),
            Arg::I64(n as i64),
            Arg::I64(words as i64),
            groups.map_or(Arg::I32(0), wide_index),
            real(dt, threshold),
        ];
        self.launch_list(&NMS_OVERLAPS.spec, dt, "", Grid::Stride(n * words), &args)?;
        let args = [
            self.arg_in(&order.view()),
            self.arg_in(&bits.view()),
            self.arg_in(&gone.view()),
            self.arg_in(keep),
            self.arg_in(count),
            Arg::I64(n as i64),
            Arg::I64(words as i64),
        ];
        self.launch_list(&NMS_PASS.spec, dt, "", Grid::Blocks([1, 1, 1]), &args)
    }
}
