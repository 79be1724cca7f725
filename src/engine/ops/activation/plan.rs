//! How the gradients of parametric relu run.

use crate::device::Caps;
use crate::engine::geometry::{Alignment, ColumnGeometry, RowGeometry};
use crate::engine::launch::LANES;
use crate::engine::ops::norm::SHORT_PLANE;
use crate::engine::plan::{Problem, Reason, Variant};
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::DType;
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
}
