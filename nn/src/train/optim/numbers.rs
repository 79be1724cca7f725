//! What recorded steps take from the host, in device memory.

use trefoil::ops::optimizer::STEP_NUMBERS;
use trefoil::{DType, GpuError};

use crate::core::error::Result;
use crate::core::tensor::{Device, Operand, Tensor, contiguous};

/// Calls of a recorded step at most: parameters that missed different numbers of steps have calls of their own.
pub(crate) const CALLS: usize = 8;

/// Steps whose numbers are in device memory at a time.
pub(crate) const STEPS_AHEAD: usize = 64;

/// Place of the share of the moving average among the numbers of a step; rules leave it free.
pub(crate) const AVERAGE_SHARE: usize = STEP_NUMBERS - 1;

/// Numbers of recorded steps, in the dtype of an optimizer's states.
pub(crate) struct StepNumbers {
    /// Of the present step, `[CALLS, STEP_NUMBERS]`.
    now: Tensor,
    /// Of the present and the next steps, `[STEPS_AHEAD, CALLS * STEP_NUMBERS]`.
    ahead: Tensor,
}

fn refused(why: &'static str) -> GpuError {
    GpuError::Capture { op: "Optimizer::step", why }
}

impl StepNumbers {
    pub(crate) fn new(device: &Device, dtype: DType) -> Result<Self> {
        let zeros = |shape: &[usize]| Tensor::zeros(device, dtype, shape);
        Ok(StepNumbers {
            now: zeros(&[CALLS, STEP_NUMBERS])?,
            ahead: zeros(&[STEPS_AHEAD, CALLS * STEP_NUMBERS])?,
        })
    }

    /// Those of the steps ahead, for the host to write.
    pub(crate) fn ahead(&self) -> Tensor {
        self.ahead.clone()
    }

    /// Takes those of the step at the position `row` (i64 `[1]`) of those ahead, one launch.
    pub(crate) fn take(&self, row: &Operand) -> Result<()> {
        let now = self.now.relayout(contiguous("numbers", &[1, CALLS * STEP_NUMBERS])?).operand();
        let (ahead, row) = (self.ahead.operand(), row.view()?);
        Ok(self.now.device().index_select(0, ahead.view()?, row, now.grad(false)?)?)
    }

    /// Those of call `k` of the present step. Errors: too many calls.
    pub(crate) fn call(&self, k: usize) -> Result<Tensor> {
        if k >= CALLS {
            return Err(refused("its parameters have missed too many different numbers of steps").into());
        }
        self.part(k * STEP_NUMBERS, STEP_NUMBERS)
    }

    /// The share of the moving average, one element.
    pub(crate) fn average_share(&self) -> Result<Tensor> {
        self.part(AVERAGE_SHARE, 1)
    }

    fn part(&self, start: usize, len: usize) -> Result<Tensor> {
        let part = contiguous("numbers", &[len])?.shifted(start);
        Ok(self.now.relayout(part.map_err(|_| refused("its numbers have no room"))?))
    }
}
