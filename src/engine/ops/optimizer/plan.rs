//! How lists of tensors are cut into launches.

use crate::device::Caps;
use crate::engine::plan::{Problem, Reason, Variant};

/// A list of tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct ListProblem;

/// How it is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ListPlan {
    /// One launch for all, whose table holds addresses.
    Fused,
    /// One per run of tensors that share their buffers, whose table holds offsets.
    PerBuffer,
}

const SOURCE: &str = "kernels/common/optimizer";

impl Problem for ListProblem {
    type Plan = ListPlan;

    const VARIANTS: &'static [Variant] =
        &[Variant { name: "fused", source: SOURCE }, Variant { name: "per_buffer", source: SOURCE }];

    fn plan(&self, variant: usize, caps: &Caps) -> Result<ListPlan, Reason> {
        match variant {
            0 if !caps.device_addresses => Err("kernels of this device take no addresses".into()),
            0 => Ok(ListPlan::Fused),
            _ => Ok(ListPlan::PerBuffer),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::geometry::tests::{cpu, gpu};

    #[test]
    fn lists_are_fused_where_kernels_take_addresses() {
        let mut caps = gpu();
        caps.device_addresses = true;
        assert_eq!(ListProblem.plan(0, &caps), Ok(ListPlan::Fused));
        assert_eq!(ListProblem.plan(1, &caps), Ok(ListPlan::PerBuffer));
        assert!(ListProblem.plan(0, &cpu()).is_err_and(|e| e.contains("addresses")));
    }
}
