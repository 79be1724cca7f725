//! How gradients of parametric relu, and of rows with a bias and an activation, run.

use crate::device::Caps;
use crate::dtype::DType;
use crate::engine::geometry::{Alignment, ColumnGeometry, RowGeometry};
use crate::engine::launch::LANES;
use crate::engine::ops::norm::SHORT_PLANE;
use crate::engine::plan::{PORTABLE, Problem, Reason, Variant};
use crate::engine::tune::ProblemKey;

const SOURCE: &str = "kernels/common/activation/gated.c";

/// Gradients of contiguous operands `[n, slopes, cols]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct PreluBwdProblem {
    pub(crate) n: usize,
    pub(crate) slopes: usize,
    pub(crate) cols: usize,
    pub(crate) operands: Alignment,
}

/// How they run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PreluBwdPlan {
    /// Down the columns of `[n, slopes * cols]`.
    Columns(ColumnGeometry),
    /// Along `n * slopes` rows.
    Rows(RowGeometry),
}

impl Problem for PreluBwdProblem {
    type Plan = PreluBwdPlan;

    const VARIANTS: &'static [Variant] =
        &[Variant { name: "columns", source: SOURCE }, Variant { name: "rows", source: SOURCE }];

    fn plan(&self, variant: usize, caps: &Caps) -> Result<PreluBwdPlan, Reason> {
        let (rows, cols) = (self.n * self.slopes, self.cols);
        if variant == 0 {
            if self.slopes <= 1 || cols >= SHORT_PLANE {
                return Err("its rows are not short ones of several slopes".into());
            }
            let geometry = ColumnGeometry::new([self.n, self.slopes * cols], self.operands, caps);
            return Ok(PreluBwdPlan::Columns(geometry));
        }
        let vector = self.operands.vector();
        let mut geometry = RowGeometry::new([rows, cols], 8 * vector, self.operands, caps);
        if rows == 1 {
            // One slope: a single long row, cut to fill the device.
            let runs = cols.div_ceil(16 * LANES).min(caps.target_blocks() * 4).max(1);
            geometry.chunk = cols.div_ceil(runs).next_multiple_of(vector);
            geometry.splits = cols.div_ceil(geometry.chunk);
            geometry.lanes = LANES;
        }
        Ok(PreluBwdPlan::Rows(geometry))
    }

    fn key(&self) -> Option<&dyn ProblemKey> {
        Some(self)
    }
}

/// Gradients of rows to which a bias and an activation were applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct BiasProblem {
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    pub(crate) groups: usize,
    /// Whether rows of no group may lie before and behind the groups.
    pub(crate) by_offsets: bool,
    pub(crate) operands: Alignment,
    /// Whether all operands lie without gaps.
    pub(crate) contiguous: bool,
}

/// How they run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BiasPlan {
    /// At once, a group's rows in so many parts, by so many blocks.
    OnePass { parts: usize, blocks: usize },
    /// The activation's gradient, then sums of its rows.
    Apart,
}

/// Items of 16 bytes that a block of `activation/bias.c` takes of a row, blocks of it that run on a unit at a time, and rows that a block adds alone
/// sooner than others could help it and their sums be added.
const BIAS_LANES: usize = 8;
const BIAS_BLOCKS: usize = 4;
const BIAS_ROWS: usize = 512;
/// Elements that caches do not hold.
const BIAS_LARGE: usize = 1 << 22;

impl BiasProblem {
    /// 8192 rows of 4096 elements in bf16.
    pub(crate) fn typical() -> Self {
        let operands = Alignment::full(DType::Bf16);
        BiasProblem { rows: 8192, cols: 4096, groups: 1, by_offsets: false, operands, contiguous: true }
    }

    /// Parts of a group and blocks: as many blocks as run at a time.
    fn one_pass(&self, caps: &Caps) -> BiasPlan {
        let across = self.cols.div_ceil(BIAS_LANES * self.operands.vector());
        let fit = BIAS_BLOCKS * caps.compute_units as usize / across.saturating_mul(self.groups).max(1);
        let rows = self.rows / self.groups.max(1);
        let parts = if rows <= BIAS_ROWS { 1 } else { fit.min(rows / (BIAS_ROWS / 4)).max(1) };
        let groups = self.groups + if self.by_offsets { 2 } else { 0 };
        BiasPlan::OnePass { parts, blocks: across.saturating_mul(groups).saturating_mul(parts) }
    }
}

impl Problem for BiasProblem {
    type Plan = BiasPlan;

    const VARIANTS: &'static [Variant] = &[
        Variant { name: "one_pass", source: "kernels/common/activation/bias.c" },
        Variant { name: PORTABLE, source: "kernels/common/elementwise/unary.c" },
    ];

    fn plan(&self, variant: usize, caps: &Caps) -> Result<BiasPlan, Reason> {
        match variant {
            0 if !self.contiguous || !self.operands.whole(self.cols) => {
                Err("operands do not lie without gaps in rows of whole items of 16 bytes".into())
            }
            0 if self.rows == 0 || self.cols == 0 || self.groups == 0 => Err("there is no row".into()),
            0 => Ok(self.one_pass(caps)),
            _ => Ok(BiasPlan::Apart),
        }
    }

    /// Rows shorter than what a block takes of one would leave most of its threads idle. Where parts have to be added and caches hold the operands, a recorded
    /// step is faster with the sums beside what follows: 830 and 847 us for a small GPT with 2,048 x 512 elements (H200).
    fn prefers(&self, variant: usize, _: &Caps) -> bool {
        let alone = self.rows <= BIAS_ROWS * self.groups;
        variant > 0
            || self.cols >= BIAS_LANES * self.operands.vector()
                && (alone || self.rows * self.cols >= BIAS_LARGE)
    }

    fn key(&self) -> Option<&dyn ProblemKey> {
        Some(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::geometry::tests::{chosen, gpu};

    #[test]
    fn short_rows_are_summed_down_their_columns() {
        let operands = Alignment::full(DType::F32);
        let p = PreluBwdProblem { n: 4096, slopes: 64, cols: 1, operands };
        assert_eq!(chosen(&p, &gpu()), "columns");
        assert!(matches!(p.plan(1, &gpu()), Ok(PreluBwdPlan::Rows(_))));
        assert_eq!(chosen(&PreluBwdProblem { cols: 3136, n: 32, ..p }, &gpu()), "rows");
        let one = PreluBwdProblem { n: 1, slopes: 1, cols: 1 << 24, operands };
        assert!(one.plan(0, &gpu()).is_err_and(|e| e.contains("several slopes")));
        let Ok(PreluBwdPlan::Rows(geometry)) = one.plan(1, &gpu()) else { panic!("rows take every problem") };
        assert_eq!((geometry.lanes, geometry.splits, geometry.chunk), (256, 4096, 4096));
    }

    #[test]
    fn gradients_with_a_bias_take_one_pass_where_rows_fill_its_threads() {
        let caps = Caps { compute_units: 132, ..gpu() };
        let p = BiasProblem::typical();
        assert_eq!(chosen(&p, &caps), "one_pass");
        assert_eq!(p.plan(0, &caps), Ok(BiasPlan::OnePass { parts: 8, blocks: 512 }));
        let groups = BiasProblem { groups: 8, by_offsets: true, ..p };
        assert_eq!(groups.plan(0, &caps), Ok(BiasPlan::OnePass { parts: 1, blocks: 640 }));
        let few = BiasProblem { rows: 128, cols: 512, ..p };
        assert_eq!(few.plan(0, &caps), Ok(BiasPlan::OnePass { parts: 1, blocks: 8 }));
        let tall = BiasProblem { rows: 8192, cols: 64, ..p };
        assert_eq!(tall.plan(0, &caps), Ok(BiasPlan::OnePass { parts: 64, blocks: 64 }));
        for other in [
            BiasProblem { cols: 56, ..p },
            BiasProblem { rows: 2048, cols: 512, ..p },
            BiasProblem { contiguous: false, ..p },
            BiasProblem { cols: 4097, ..p },
            BiasProblem { rows: 0, ..p },
        ] {
            assert_eq!(chosen(&other, &caps), "portable");
        }
    }
}
