//! How interpolation runs: cell by cell, doubling rows, or from tables of weights.

use crate::device::Caps;
use crate::dtype::DType;
use crate::engine::plan::{Problem, Reason, Variant};
use crate::engine::tune::ProblemKey;
use crate::ops::resample::Sizes;

/// Rows of the input of an item of the linear doubling kernels (`GK_PAIR`).
const PAIR: usize = 2;

/// What the weights of interpolation are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Weights {
    /// One cell's is 1.
    Nearest,
    /// Linear ones, without aligned corners or antialiasing.
    Linear,
    /// Any others.
    Tables,
}

/// Interpolation of contiguous operands, or its gradient.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct InterpolateProblem {
    pub(crate) s: Sizes,
    pub(crate) weights: Weights,
    pub(crate) dtype: DType,
    /// Whether the input, or its gradient, begins at a multiple of 16 bytes.
    pub(crate) x_aligned: bool,
    /// Whether the output, or its gradient, does.
    pub(crate) y_aligned: bool,
}

/// How it runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum InterpolatePlan {
    /// `runs` items per row of the input, each of which makes 16 bytes of `depth * height` rows.
    Doubling { runs: usize, items: usize, depth: usize, height: usize },
    /// The same with linear weights, on images: `pairs` pairs of rows of the input.
    LinearDoubling { runs: usize, pairs: usize, items: usize },
    /// A cell, or with `wide` 16 bytes of them, per thread.
    Cells { wide: bool },
    /// An output of some planes per thread, with weights from tables.
    Tables,
}

impl InterpolateProblem {
    /// Items of half of 16 bytes of a row of the input, whose rows double.
    fn doubled_runs(&self) -> Result<usize, Reason> {
        let ([_, _, w], half) = (self.s.input, 8 / self.dtype.size());
        if !self.x_aligned || !self.y_aligned || !w.is_multiple_of(half) {
            return Err("its rows are not whole 16-byte items".into());
        }
        Ok(w / half)
    }

    fn doubling(&self) -> Result<InterpolatePlan, Reason> {
        let ([d, h, w], [od, oh, ow]) = (self.s.input, self.s.output);
        let factor = |n: usize, m: usize| [1, 2].into_iter().find(|f| f * n == m);
        let (Some(depth), Some(height), true) = (factor(d, od), factor(h, oh), ow == 2 * w) else {
            return Err("it does not double rows, and other axes at most".into());
        };
        let runs = self.doubled_runs()?;
        let items = self.s.planes * d * h * runs;
        if items > i32::MAX as usize {
            return Err("it has more than 2^31 items".into());
        }
        Ok(InterpolatePlan::Doubling { runs, items, depth, height })
    }

    fn linear_doubling(&self) -> Result<InterpolatePlan, Reason> {
        let [d, h, w] = self.s.input;
        if d != 1 || self.s.output != [1, 2 * h, 2 * w] || h < 2 || w < 2 {
            return Err("it does not double both sides of images".into());
        }
        let (runs, pairs) = (self.doubled_runs()?, h.div_ceil(PAIR));
        let items = self.s.planes * pairs * runs;
        if items.max(2 * h.max(w)) > i32::MAX as usize {
            return Err("it has more than 2^31 items".into());
        }
        Ok(InterpolatePlan::LinearDoubling { runs, pairs, items })
    }
}

impl Problem for InterpolateProblem {
    type Plan = InterpolatePlan;

    const VARIANTS: &'static [Variant] = &[
        Variant { name: "doubling", source: "kernels/common/resample/resample.c, doubling.c" },
        Variant { name: "cells", source: "kernels/common/resample/resample.c" },
        Variant { name: "tables", source: "kernels/common/resample/resample.c" },
    ];

    fn plan(&self, variant: usize, _: &Caps) -> Result<InterpolatePlan, Reason> {
        let ow = self.s.output[2];
        match (variant, self.weights) {
            (0, Weights::Nearest) => self.doubling(),
            (0, Weights::Linear) => self.linear_doubling(),
            (1, Weights::Nearest) => {
                let wide = self.y_aligned && ow.is_multiple_of(16 / self.dtype.size());
                Ok(InterpolatePlan::Cells { wide })
            }
            (2, Weights::Linear | Weights::Tables) => Ok(InterpolatePlan::Tables),
            (_, Weights::Nearest) => Err("an output shows one cell".into()),
            _ => Err("an output shows several cells, by weights that are not those of doubled sides".into()),
        }
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
        let p = InterpolateProblem {
            s,
            weights: Weights::Nearest,
            dtype: DType::F32,
            x_aligned: true,
            y_aligned: true,
        };
        let twice = InterpolatePlan::Doubling { runs: 8, items: 4 * 16 * 8, depth: 1, height: 2 };
        assert_eq!(p.plan(0, &caps), Ok(twice));
        assert_eq!(p.plan(1, &caps), Ok(InterpolatePlan::Cells { wide: true }));
        let odd = InterpolateProblem { x_aligned: false, ..p };
        assert!(odd.plan(0, &caps).is_err_and(|e| e.contains("16-byte")));
        let thrice = InterpolateProblem { s: Sizes { output: [1, 48, 32], ..s }, ..p };
        assert!(thrice.plan(0, &caps).is_err_and(|e| e.contains("double")));
        let narrow = InterpolateProblem { s: Sizes { output: [1, 32, 33], ..s }, ..p };
        assert_eq!(narrow.plan(1, &caps), Ok(InterpolatePlan::Cells { wide: false }));
    }

    #[test]
    fn linear_weights_of_doubled_images_need_no_tables() {
        let caps = gpu();
        let s = Sizes { planes: 4, input: [1, 15, 16], output: [1, 30, 32] };
        let p = InterpolateProblem {
            s,
            weights: Weights::Linear,
            dtype: DType::F32,
            x_aligned: true,
            y_aligned: true,
        };
        let twice = InterpolatePlan::LinearDoubling { runs: 8, pairs: 8, items: 4 * 8 * 8 };
        assert_eq!(p.plan(0, &caps), Ok(twice));
        assert_eq!(p.plan(2, &caps), Ok(InterpolatePlan::Tables));
        assert!(p.plan(1, &caps).is_err());
        let wide = InterpolateProblem { s: Sizes { output: [1, 15, 32], ..s }, ..p };
        assert!(wide.plan(0, &caps).is_err_and(|e| e.contains("both sides")));
        assert!(InterpolateProblem { weights: Weights::Tables, ..p }.plan(0, &caps).is_err());
    }
}
