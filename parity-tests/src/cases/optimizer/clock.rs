//! What the forms of optimizer steps share: step counts and rates in device memory, states.

use std::rc::Rc;

use trefoil::ops::optimizer::{Scalar, Step};
use trefoil::{Buffer, DType};

use crate::device::{Cx, R, Tensor};

/// Step count and rate of call `i`: every second call reads them from device memory.
pub(super) struct Clock {
    lr: f64,
    first: usize,
    dev_lr: Buffer,
    dev_step: Buffer,
}

impl Clock {
    pub(super) fn new(cx: &Cx<'_>) -> R<Self> {
        let (lr, first) = (cx.f("lr")?, cx.n("step")?);
        let mut dev_lr = cx.scratch(DType::F32, 1)?;
        cx.gpu.write_bytes(dev_lr.view_mut(), &(lr as f32).to_le_bytes())?;
        Ok(Clock { lr, first, dev_lr, dev_step: cx.scratch(DType::I64, 1)? })
    }

    pub(super) fn step<'a>(&'a mut self, cx: &'a Cx<'_>, i: usize) -> R<Step<'a>> {
        let t = self.first + i;
        let mut step = Step::host(self.lr, t as u64);
        if i % 2 == 1 {
            cx.gpu.write_bytes(self.dev_step.view_mut(), &(t as i64).to_le_bytes())?;
            step.lr = Scalar::Device(self.dev_lr.view());
            step.step = Scalar::Device(self.dev_step.view());
        }
        step.maximize = cx.b("maximize")?;
        step.inv_scale = cx.opt("inv_scale");
        step.found_inf = cx.opt("found_inf");
        Ok(step)
    }
}

/// An output that starts with the input of its name, or at zero.
pub(super) fn state(cx: &Cx<'_>, name: &str, dtype: DType, shape: &[usize]) -> R<Rc<Tensor>> {
    match cx.opt(name) {
        Some(_) => cx.inout(name, name),
        None => cx.zeroed(name, dtype, shape),
    }
}
