//! Adjoints with strides of two and few channels, without columns of windows: their tiles, and which problems they take.

use super::conv::ConvProblem;
use crate::dtype::DType;
use crate::engine::plan::Reason;
use crate::ops::conv::ConvShape;
use crate::spec::BLOCK;

/// Channels that a thread keeps sums of, four each, at most.
pub(super) const CHANNELS: usize = 4;
/// Rows of a window, and columns.
const ROWS: usize = 8;
const COLUMNS: usize = 4;
/// Runs of four elements of a channel in local memory (`GK_FEW_RUNS`).
const RUNS: usize = 512;
/// Tilings of a row that are compared.
const TILINGS: usize = 16;

/// Places that the outputs of two rows, or columns, read on an axis: outputs 2 i and 2 i + 1 read `count` places of x, the last of them i + `ahead`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::engine::ops::conv) struct Span {
    pub(in crate::engine::ops::conv) count: usize,
    pub(in crate::engine::ops::conv) ahead: usize,
}

impl Span {
    /// Output 2 i + f reads place i + a by tap f + pad - 2 a.
    fn of(taps: usize, pad: usize) -> Span {
        let ahead = pad.div_ceil(2);
        // The first is the least `a` for which the tap of f = 0 is below `taps`.
        let count = if pad + 1 > taps {
            ahead + 1 - (pad + 1 - taps).div_ceil(2)
        } else {
            ahead + 1 + (taps - 1 - pad) / 2
        };
        Span { count, ahead }
    }

    /// The tap by which output 2 i + f reads place number `a` of those.
    fn tap(self, a: usize, f: usize, taps: usize, pad: usize) -> Option<usize> {
        (f + pad + 2 * (self.count - 1)).checked_sub(2 * (self.ahead + a)).filter(|&t| t < taps)
    }
}

/// A tile of places, each of two by two outputs: `quads` runs of four on `rows` rows; how many there are on an image, and what a place reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FewTile {
    pub(in crate::engine::ops::conv) quads: usize,
    pub(in crate::engine::ops::conv) rows: usize,
    pub(in crate::engine::ops::conv) across: usize,
    pub(in crate::engine::ops::conv) down: usize,
    pub(in crate::engine::ops::conv) high: Span,
    pub(in crate::engine::ops::conv) wide: Span,
    /// Channels that the kernel keeps: 3 or 4.
    pub(in crate::engine::ops::conv) keep: usize,
}

impl FewTile {
    /// Of the tilings whose x fits into local memory that of the fewest blocks. `wide` has the columns that the kernel is written for.
    pub(super) fn of(s: &ConvShape) -> Option<FewTile> {
        let [_, high, wide] = s.input;
        let keep = s.ci.max(3);
        let (high, quads, rows) = (Span::of(s.kernel[1], s.pad[1]), wide.div_ceil(8), high.div_ceil(2));
        let wide = Span::of(s.kernel[2], s.pad[2]);
        // Four channels have windows of four columns alone.
        let columns = if wide.count <= 2 && keep == 3 { 2 } else { COLUMNS };
        if high.count > ROWS || wide.count > columns {
            return None;
        }
        let wide = Span { count: columns, ..wide };
        let least = quads.div_ceil(RUNS / (ROWS + 4));
        let tilings = (least..least + TILINGS).filter_map(|across| {
            let quads = quads.div_ceil(across);
            let room = (RUNS / (quads + 2)).checked_sub(high.count - 1)?;
            let rows_of = room.min(BLOCK as usize / quads).min(rows);
            (rows_of > 0).then(|| FewTile {
                quads,
                rows: rows_of,
                across,
                down: rows.div_ceil(rows_of),
                high,
                wide,
                keep,
            })
        });
        tilings.min_by_key(|t| t.across * t.down)
    }

    /// Which rows of a window have a tap for which of the two rows of outputs, as the kernel takes it.
    pub(in crate::engine::ops::conv) fn taps(&self, s: &ConvShape) -> u32 {
        let tap = |bit: usize| self.high.tap(bit / 2, bit % 2, s.kernel[1], s.pad[1]);
        (0..2 * self.high.count).filter(|&bit| tap(bit).is_some()).map(|bit| 1 << bit).sum()
    }

    /// Weights of a channel of x.
    pub(in crate::engine::ops::conv) fn weights(&self) -> usize {
        4 * self.high.count * self.wide.count * self.keep
    }
}

impl ConvProblem<'_> {
    /// The tile of an adjoint with few channels.
    pub(super) fn few(&self) -> Result<FewTile, Reason> {
        let s = &self.s;
        let flat = s.kernel[0] == 1 && s.input[0] == 1 && s.output[0] == 1 && s.pad[0] == 0;
        match () {
            () if !self.back => Err("it is no adjoint".into()),
            () if !matches!(self.dtype, DType::F32 | DType::F16 | DType::Bf16) => {
                Err(format!("it is not written for {}", self.dtype).into())
            }
            () if s.groups > 1 => Err("it has groups".into()),
            () if !flat || s.stride[1..] != [2, 2] => {
                Err("its strides are not two by two across an image".into())
            }
            () if s.dilation[1..] != [1, 1] => Err("it is dilated".into()),
            () if s.ci > CHANNELS => Err(format!("it has more than {CHANNELS} channels").into()),
            () if [s.ci, s.co, s.n, s.in_plane(), s.out_plane()].contains(&0) => Err("an extent is 0".into()),
            () => {
                self.fits()?;
                FewTile::of(s).ok_or_else(|| "its windows are too large".into())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_hold_every_tap_once_for_each_output() {
        for taps in 1..10 {
            for pad in 0..12 {
                let span = Span::of(taps, pad);
                let of = |f| (0..span.count).filter_map(|a| span.tap(a, f, taps, pad)).collect::<Vec<_>>();
                let mut all = [of(0), of(1)].concat();
                all.sort_unstable();
                assert_eq!(all, (0..taps).collect::<Vec<_>>(), "{taps} taps, {pad} zeros");
                // Neither end is empty.
                let any = |a| (0..2).any(|f| span.tap(a, f, taps, pad).is_some());
                assert!(any(0) || taps == 1, "{taps} taps, {pad} zeros");
            }
        }
        assert_eq!(Span::of(7, 3), Span { count: 4, ahead: 2 });
        assert_eq!(Span::of(3, 1), Span { count: 2, ahead: 1 });
    }
}
