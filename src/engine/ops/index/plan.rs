//! How the sources of destinations are reduced.

use crate::device::Caps;
use crate::engine::plan::{PORTABLE, Problem, Reason, Variant};
use crate::spec::BLOCK;

/// Pairs of a block that reduces single cells (`GK_CELL_PAIRS`).
const CELL_PAIRS: usize = 8 * BLOCK as usize;

/// A reduction of sorted sources, each a row of elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(in crate::engine::ops) struct ReductionProblem {
    /// Number of sources.
    pub(in crate::engine::ops) sources: usize,
    /// Elements of each.
    pub(in crate::engine::ops) row: usize,
}

/// How it runs: by runs of so many sources, each of which leaves its first and last destination to a second kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::engine::ops) enum ReductionPlan {
    /// A run is a block's, whose threads have a source each.
    Cells { run: usize },
    /// A run is a thread's for each column.
    Rows { run: usize },
}

impl ReductionPlan {
    /// Sources of a run.
    pub(in crate::engine::ops) fn run(self) -> usize {
        let (ReductionPlan::Cells { run } | ReductionPlan::Rows { run }) = self;
        run
    }
}

impl ReductionProblem {
    /// The plan by rule, for operations whose own variants are others.
    pub(in crate::engine::ops) fn by_rule(&self) -> ReductionPlan {
        self.cells().unwrap_or_else(|_| self.rows())
    }

    fn cells(&self) -> Result<ReductionPlan, Reason> {
        match self.row {
            1 => Ok(ReductionPlan::Cells { run: CELL_PAIRS }),
            row => Err(format!("sources are rows of {row} elements").into()),
        }
    }

    /// Runs that are short enough for many threads, and long enough that few destinations cross them.
    fn rows(&self) -> ReductionPlan {
        ReductionPlan::Rows { run: if self.sources <= 64 { self.sources } else { 16 } }
    }
}

impl Problem for ReductionProblem {
    type Plan = ReductionPlan;

    const VARIANTS: &'static [Variant] = &[
        Variant { name: "cells", source: "kernels/common/index/scatter.c" },
        Variant { name: PORTABLE, source: "kernels/common/index/scatter.c" },
    ];

    fn plan(&self, variant: usize, _: &Caps) -> Result<ReductionPlan, Reason> {
        if variant == 0 { self.cells() } else { Ok(self.rows()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::geometry::tests::{chosen, gpu};

    #[test]
    fn single_cells_are_reduced_by_blocks() {
        let p = |sources, row| ReductionProblem { sources, row };
        assert_eq!((chosen(&p(9, 1), &gpu()), chosen(&p(9, 2), &gpu())), ("cells", PORTABLE));
        assert_eq!(p(9, 1).plan(1, &gpu()), Ok(ReductionPlan::Rows { run: 9 }));
        assert_eq!(p(65, 2).plan(1, &gpu()), Ok(ReductionPlan::Rows { run: 16 }));
        assert!(p(9, 2).plan(0, &gpu()).is_err_and(|e| e.contains("rows of 2")));
        for row in [1, 2] {
            let p = p(100, row);
            assert_eq!(Ok(p.by_rule()), p.plan(if row == 1 { 0 } else { 1 }, &gpu()));
        }
    }
}
