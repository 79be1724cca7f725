//! How nearest-neighbour interpolation runs: cell by cell, or doubling rows.

use crate::device::Caps;
use crate::dtype::DType;
use crate::engine::plan::{Problem, Reason, Variant};
use crate::engine::tune::ProblemKey;
use crate::ops::resample::Sizes;

/// Interpolation to the nearest cell of contiguous operands, or its gradient.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct NearestProblem {
    pub(crate) s: Sizes,
    pub(crate) dtype: DType,
    /// Whether the input, or its gradient, begins at a multiple of 16 bytes.
    pub(crate) x_aligned: bool,
    /// Whether the output, or its gradient, does.
    pub(crate) y_aligned: bool,
}

/// How it runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NearestPlan {
    /// `runs` items per row of the input, each of which makes 16 bytes of `depth * height` rows.
    Doubling { runs: usize, items: usize, depth: usize, height: usize },
    /// A cell, or with `wide` 16 bytes of them, per thread.
    Cells { wide: bool },
}

impl Problem for NearestProblem {
    type Plan = NearestPlan;

    const VARIANTS: &'static [Variant] = &[
        Variant { name: "doubling", source: "kernels/common/resample/resample.c" },
        Variant { name: "cells", source: "kernels/common/resample/resample.c" },
    ];

    fn plan(&self, variant: usize, _: &Caps) -> Result<NearestPlan, Reason> {
        let ([d, h, w], [od, oh, ow]) = (self.s.input, self.s.output);
        if variant == 1 {
            let wide = self.y_aligned && ow.is_multiple_of(16 / self.dtype.size());
            return Ok(NearestPlan::Cells { wide });
        }
        let factor = |n: usize, m: usize| [1, 2].into_iter().find(|f| f * n == m);
        let (Some(depth), Some(height), true) = (factor(d, od), factor(h, oh), ow == 2 * w) else {
            return Err("it does not double rows, and other axes at most".into());
        };
        let half = 8 / self.dtype.size();
        if !self.x_aligned || !self.y_aligned || !w.is_multiple_of(half) {
            return Err("its rows are not whole 16-byte items".into());
        }
        let (runs, items) = (w / half, self.s.planes * d * h * (w / half));
        if items > i32::MAX as usize {
            return Err("it has more than 2^31 items".into());
        }
        Ok(NearestPlan::Doubling { runs, items, depth, height })
    }

    fn key(&self) -> Option<&dyn ProblemKey> {
        Some(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::geometry::tests::gpu;

    #[test]
    fn rows_that_double_are_written_by_whole_items() {
        let caps = gpu();
        let s = Sizes { planes: 4, input: [1, 16, 16], output: [1, 32, 32] };
        let p = NearestProblem { s, dtype: DType::F32, x_aligned: true, y_aligned: true };
        let twice = NearestPlan::Doubling { runs: 8, items: 4 * 16 * 8, depth: 1, height: 2 };
        assert_eq!(p.plan(0, &caps), Ok(twice));
        assert_eq!(p.plan(1, &caps), Ok(NearestPlan::Cells { wide: true }));
        let odd = NearestProblem { x_aligned: false, ..p };
        assert!(odd.plan(0, &caps).is_err_and(|e| e.contains("16-byte")));
        let thrice = NearestProblem { s: Sizes { output: [1, 48, 32], ..s }, ..p };
        assert!(thrice.plan(0, &caps).is_err_and(|e| e.contains("double")));
        let narrow = NearestProblem { s: Sizes { output: [1, 32, 33], ..s }, ..p };
        assert_eq!(narrow.plan(1, &caps), Ok(NearestPlan::Cells { wide: false }));
    }
}
