//! Sampling at positions and suppression of boxes: the launches behind [`ResampleOps`](crate::ops::resample::ResampleOps).

use crate::buffer::View;
use crate::dtype::DType;
use crate::engine::Engine;
use crate::engine::launch::{Grid, dims};
use crate::engine::ops::index::scatter::wide_index;
use crate::error::Result;
use crate::ops::resample::*;
use crate::spec::BLOCK;
use crate::spec::kernels::resample::*;

/// The unit that serves a mode, and its taps along an axis.
fn unit(mode: SampleMode) -> (&'static str, usize) {
    match mode {
        SampleMode::Nearest => ("gk_sample_nearest", 1),
        SampleMode::Linear => ("gk_sample_linear", 2),
        SampleMode::Cubic => ("gk_sample_cubic", 4),
    }
}

fn padding(p: GridSample) -> i32 {
    match p.padding {
        SamplePadding::Zeros => 0,
        SamplePadding::Border => 1,
        SamplePadding::Reflection => 2,
    }
}

impl Engine {
    /// Channels per thread when there are `positions` of them: few enough that the device is full.
    fn channel_groups(&self, channels: usize, positions: usize) -> (usize, usize) {
        let wanted = (2 * self.target_blocks() * BLOCK as usize).div_ceil(positions.max(1));
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
        let args = GridSampleArgs {
            x: self.arg_in(x),
            grid: self.arg_in(grid),
            y: self.arg_in(y),
            n: n as i64,
            samples: s.batch as i64,
            outputs: s.outputs as i64,
            all: s.channels as i64,
            channels: channels as i64,
            axes: s.axes as i32,
            size: dims(s.input),
            padding: padding(p),
            align: i32::from(p.align_corners),
        };
        self.launch(&GRID_SAMPLE, x.dtype(), unit(p.mode).0, Grid::Stride(n), &args)
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
        let args = GridSampleDgridArgs {
            dy: self.arg_in(&io.dy),
            x: self.arg_in(&io.x),
            grid: self.arg_in(&io.grid),
            dgrid: self.arg_in(dgrid),
            n: n as i64,
            outputs: s.outputs as i64,
            all: s.channels as i64,
            axes: s.axes as i32,
            size: dims(s.input),
            padding: padding(p),
            align: i32::from(p.align_corners),
            accumulate: i32::from(accumulate),
        };
        self.launch(&GRID_SAMPLE_DGRID, dgrid.dtype(), unit(p.mode).0, Grid::Stride(n), &args)
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
        let args = GridSampleKeysArgs {
            grid: self.arg_in(&io.grid),
            keys: self.arg_in(&keys.view()),
            weights: self.arg_in(&weights.view()),
            n: positions as i64,
            outputs: s.outputs as i64,
            wide_keys: wide,
            none: limit as i64,
            per: per as i32,
            axes: s.axes as i32,
            size: dims(s.input),
            padding: padding(p),
            align: i32::from(p.align_corners),
        };
        self.launch(&GRID_SAMPLE_KEYS, dt, unit, Grid::Stride(positions), &args)?;
        let pairs = self.sort_pairs(op, &keys.view(), usize::BITS - limit.leading_zeros())?;
        let (channels, groups) = self.channel_groups(s.channels, limit);
        let n = limit * groups;
        let args = SampleGatherArgs {
            keys: self.arg_in(&pairs.keys.view()),
            positions: self.arg_in(&pairs.positions.view()),
            weights: self.arg_in(&weights.view()),
            dy: self.arg_in(&io.dy),
            dx: self.arg_in(dx),
            n: n as i64,
            entries: entries as i64,
            wide_keys: wide,
            cells: s.cells() as i64,
            samples: s.batch as i64,
            outputs: s.outputs as i64,
            all: s.channels as i64,
            channels: channels as i64,
            shift: per.trailing_zeros() as i32,
            accumulate: i32::from(accumulate),
        };
        self.launch(&SAMPLE_GATHER, dt, "", Grid::Stride(n), &args)
    }

    /// Non-maximum suppression of boxes, within their groups where there are any.
    pub(in crate::engine::ops) fn suppress(
        &self,
        op: &'static str,
        threshold: f64,
        [boxes, scores]: [&View<'_>; 2],
        groups: Option<&View<'_>>,
        [keep, count]: [&View<'_>; 2],
    ) -> Result<()> {
        let n = scores.numel();
        if n == 0 {
            return self.fill_pattern(&[0; 8], count);
        }
        let dt = boxes.dtype();
        let key = if dt == DType::F64 { DType::I64 } else { DType::I32 };
        let keys = self.scratch(key, n)?;
        let args = NmsKeysArgs { scores: self.arg_in(scores), keys: self.arg_in(&keys.view()), n: n as i64 };
        self.launch(&NMS_KEYS, dt, "", Grid::Stride(n), &args)?;
        let order = self.sort_pairs(op, &keys.view(), 8 * key.size() as u32)?.positions;
        let words = n.div_ceil(32);
        let (bits, gone) = (self.scratch(DType::I32, n * words)?, self.scratch(DType::I32, words)?);
        let args = NmsOverlapsArgs {
            boxes: self.arg_in(boxes),
            groups: self.arg_opt(groups),
            order: self.arg_in(&order.view()),
            bits: self.arg_in(&bits.view()),
            n: n as i64,
            words: words as i64,
            wide_groups: groups.map_or(0, wide_index),
            threshold,
        };
        self.launch(&NMS_OVERLAPS, dt, "", Grid::Stride(n * words), &args)?;
        let args = NmsPassArgs {
            order: self.arg_in(&order.view()),
            bits: self.arg_in(&bits.view()),
            gone: self.arg_in(&gone.view()),
            keep: self.arg_in(keep),
            count: self.arg_in(count),
            n: n as i64,
            words: words as i64,
        };
        self.launch(&NMS_PASS, dt, "", Grid::Blocks([1, 1, 1]), &args)
    }
}
