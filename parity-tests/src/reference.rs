//! Results that a device is held against.

use trefoil::{CpuBackend, DType};

use crate::cases::{Kernel, Oracle, fields};
use crate::device::{Fail, Pattern, Placement};
use crate::runner;
use crate::suite::{Case, Named};

/// The case with floating inputs in f64, for the CPU.
pub(crate) fn widened(kernel: &Kernel, case: &Case) -> Case {
    let mut wide = case.clone();
    wide.dtype = if case.dtype.is_float() { DType::F64 } else { case.dtype };
    for (name, t) in &mut wide.inputs {
        // The scalars that the optimizer reads from the device are f32 whatever the parameters are.
        let fixed = matches!(name.as_str(), "inv_scale" | "found_inf");
        let declared = fields(kernel.inputs).into_iter().find(|f| f.matches(name)).map_or("data", |f| f.kind);
        if t.dtype.is_float() && !fixed && matches!(declared, "data" | "f32") {
            *t = t.to_dtype(DType::F64);
        }
    }
    wide
}

pub(crate) fn on_cpu(kernel: &Kernel, case: &Case) -> Result<Named, String> {
    let run = runner::execute(&CpuBackend::new(), kernel, case, Pattern::Nan, Placement::Aligned);
    match run.result {
        Ok(()) if run.problems.is_empty() => Ok(run.outputs),
        Ok(()) => Err(format!("the CPU reference: {}", run.problems.join("; "))),
        Err(Fail::Gpu(e)) => Err(format!("the CPU reference: {e}")),
        Err(Fail::Case(e)) => Err(format!("the CPU reference: {e}")),
    }
}

/// What the CPU makes of a case.
pub fn reference(kernel: &Kernel, case: &Case, oracle: Oracle) -> Result<Named, String> {
    match oracle {
        Oracle::F64 => on_cpu(kernel, &widened(kernel, case)),
        Oracle::SameDtype => on_cpu(kernel, case),
    }
}

/// Runs the case in f64 as it is (all tensors f64 already, for finite differences).
pub fn run_wide(kernel: &Kernel, case: &Case) -> Result<Named, String> {
    on_cpu(kernel, case)
}
