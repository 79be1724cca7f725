//! How attention cuts the columns of its results.

use crate::device::Caps;
use crate::engine::plan::{Problem, Reason, Variant};

/// Columns per block of the narrow and of the wide unit (`HEAD_WIDTHS`).
const WIDTHS: [usize; 2] = [64, 128];

const SOURCE: &str = "kernels/common/attention/attention.c, backward.c";

/// A result of attention, or gradients beside each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct HeadProblem {
    /// Columns of a head; of the wider one for two results.
    pub(crate) columns: usize,
}

/// Blocks side by side, which each repeat the scores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HeadPlan {
    /// Number of the unit in `HEAD_WIDTHS`.
    pub(crate) unit: usize,
    pub(crate) slices: usize,
}

impl Problem for HeadProblem {
    type Plan = HeadPlan;

    const VARIANTS: &'static [Variant] =
        &[Variant { name: "head_64", source: SOURCE }, Variant { name: "head_128", source: SOURCE }];

    fn plan(&self, unit: usize, _: &Caps) -> Result<HeadPlan, Reason> {
        Ok(HeadPlan { unit, slices: self.columns.div_ceil(WIDTHS[unit]) })
    }

    /// The widest block whose columns are used.
    fn prefers(&self, unit: usize, _: &Caps) -> bool {
        unit == 1 || self.columns <= WIDTHS[0]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::geometry::tests::gpu;
    use crate::engine::plan::best;

    #[test]
    fn blocks_are_as_wide_as_heads() {
        let plan = |columns| best(&HeadProblem { columns }, &gpu()).map(|(_, p)| (p.unit, p.slices));
        assert_eq!(plan(1), Some((0, 1)));
        assert_eq!(plan(64), Some((0, 1)));
        assert_eq!(plan(65), Some((1, 1)));
        assert_eq!(plan(256), Some((1, 2)));
        // A pinned narrow block repeats the scores more often.
        assert_eq!(HeadProblem { columns: 256 }.plan(0, &gpu()), Ok(HeadPlan { unit: 0, slices: 4 }));
    }
}
