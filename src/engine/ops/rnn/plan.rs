//! How the steps of a recurrent network run.

use crate::device::{BackendKind, Caps};
use crate::dtype::DType;
use crate::engine::launch::MAX_GRID_YZ;
use crate::engine::plan::{PORTABLE, Problem, Reason, Variant};
use crate::ops::rnn::RnnCell;

/// Rows of the batch per block of the fused kernels (`GK_ROWS`).
pub(crate) const ROWS: usize = 8;

/// The steps of a cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct StepsProblem {
    pub(crate) cell: RnnCell,
    pub(crate) dtype: DType,
    pub(crate) batch: usize,
    pub(crate) hidden: usize,
}

/// How they run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StepsPlan {
    /// A step is one kernel, which multiplies by the recurrent weights itself.
    Fused,
    /// A step is a product and a kernel.
    Products,
}

impl Problem for StepsProblem {
    type Plan = StepsPlan;

    const VARIANTS: &'static [Variant] = &[
        Variant { name: "fused_step", source: "kernels/common/rnn/fused.c" },
        Variant { name: PORTABLE, source: "kernels/common/rnn/rnn.c" },
    ];

    fn plan(&self, variant: usize, _: &Caps) -> Result<StepsPlan, Reason> {
        match (variant, self.cell, self.dtype) {
            (1, ..) => Ok(StepsPlan::Products),
            (_, RnnCell::Lstm | RnnCell::Gru, DType::F64) => Err("there is no f64 unit".into()),
            (_, RnnCell::Lstm | RnnCell::Gru, _) if self.batch <= ROWS * MAX_GRID_YZ => Ok(StepsPlan::Fused),
            (_, RnnCell::Lstm | RnnCell::Gru, _) => Err("the batch exceeds the grid".into()),
            _ => Err("only LSTM and GRU have such a kernel".into()),
        }
    }

    /// The fused step where a product takes less time than its launch. Sums over lanes are slow on devices without shuffles.
    fn prefers(&self, variant: usize, caps: &Caps) -> bool {
        let exchange = !caps.is_cpu && caps.id.kind != BackendKind::OpenCl;
        variant == 1 || (self.batch <= 32 && self.hidden <= 512 && exchange)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::geometry::tests::{chosen, cpu, gpu};

    #[test]
    fn small_steps_are_fused() {
        let p = StepsProblem { cell: RnnCell::Lstm, dtype: DType::F32, batch: 16, hidden: 256 };
        assert_eq!(chosen(&p, &gpu()), "fused_step");
        assert_eq!(chosen(&p, &cpu()), "portable");
        for other in [
            StepsProblem { cell: RnnCell::Tanh, ..p },
            StepsProblem { dtype: DType::F64, ..p },
            StepsProblem { batch: 33, ..p },
            StepsProblem { hidden: 513, ..p },
        ] {
            assert_eq!(chosen(&other, &gpu()), "portable");
        }
    }

    #[test]
    fn a_pinned_fused_step_takes_what_fits_its_grid() {
        let caps = cpu();
        let p = StepsProblem { cell: RnnCell::Gru, dtype: DType::F32, batch: 4096, hidden: 4096 };
        assert_eq!(p.plan(0, &caps), Ok(StepsPlan::Fused));
        let huge = StepsProblem { batch: ROWS * MAX_GRID_YZ + 1, ..p };
        assert!(huge.plan(0, &caps).is_err_and(|e| e.contains("grid")));
        let plain = StepsProblem { cell: RnnCell::Relu, ..p };
        assert!(plain.plan(0, &caps).is_err_and(|e| e.contains("LSTM and GRU")));
    }
}
