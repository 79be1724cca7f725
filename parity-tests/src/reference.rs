//! Results that a device is held against.

use trefoil::{CpuBackend, DType};

use crate::cases::{Kernel, fields};
use crate::device::{Fail, Pattern, Placement};
use crate::runner;
use crate::suite::{Case, Named};

/// The case with its data and f32 inputs in f64, for the CPU. Integer data is exact there, so that moved and sorted integers are not held against
/// the code that moved them.
pub(crate) fn widened(kernel: &Kernel, case: &Case) -> Case {
    let mut wide = case.clone();
    wide.dtype = DType::F64;
    for (name, t) in &mut wide.inputs {
        // The scalars that the optimizer reads from the device are f32 whatever the parameters are.
        let fixed = matches!(name.as_str(), "inv_scale" | "found_inf");
        let declared = fields(kernel.inputs).into_iter().find(|f| f.matches(name)).map_or("data", |f| f.kind);
        let data = declared == "data" && t.dtype == case.dtype;
        if data || (t.dtype.is_float() && !fixed && matches!(declared, "data" | "f32")) {
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

/// What the CPU backend makes of a case in f64.
pub fn reference(kernel: &Kernel, case: &Case) -> Result<Named, String> {
    on_cpu(kernel, &widened(kernel, case))
}

/// Runs the case in f64 as it is (all tensors f64 already, for finite differences).
pub fn run_wide(kernel: &Kernel, case: &Case) -> Result<Named, String> {
    on_cpu(kernel, case)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cases::{KERNELS, Oracle};
    use crate::sampler::draw;

    #[test]
    fn no_reference_is_the_code_under_test() {
        let mut same = vec![];
        for kernel in KERNELS.iter().filter(|k| matches!(k.oracle, Oracle::F64)) {
            for &dtype in kernel.dtypes {
                let (case, _) = draw(kernel, dtype, 0, 1, true).unwrap();
                let (wide, got) = (reference(kernel, &case).unwrap(), on_cpu(kernel, &case).unwrap());
                let types = |outputs: &Named| outputs.iter().map(|(_, t)| t.dtype).collect::<Vec<_>>();
                let inputs = |c: &Case| c.inputs.iter().map(|(_, t)| t.dtype).collect::<Vec<_>>();
                if types(&wide) == types(&got) && inputs(&widened(kernel, &case)) == inputs(&case) {
                    same.push(format!("{} {dtype}", kernel.name));
                }
            }
        }
        assert!(same.is_empty(), "held against the same call on the CPU: {same:?}");
    }
}
