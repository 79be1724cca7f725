//! How gradients of grids are gathered, and how rays are rendered.

use crate::device::Caps;
use crate::dtype::DType;
use crate::engine::launch::LANES;
use crate::engine::plan::{Problem, Reason, Variant};
use crate::ops::field::RaySizes;

const GRID: &str = "kernels/common/field/grid.c";
const RAYS: &str = "kernels/common/field/rays.c";

/// Features and channels per thread (`GK_FIELD_FEATURES`, `GK_FIELD_CHANNELS`).
pub(super) const PER_THREAD: usize = 4;

/// Threads that share `n` features or channels.
pub(super) fn groups(n: usize) -> usize {
    n.div_ceil(PER_THREAD).max(1)
}

/// A gradient of a table of features, to whose rows corners of cells add.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct TableProblem {
    pub(crate) dtype: DType,
    /// Corners of the cells of all positions.
    pub(crate) entries: usize,
    pub(crate) rows: usize,
    pub(crate) width: usize,
}

/// How it runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TablePlan {
    /// What the corners add is stored, and summed by runs of equal length.
    Segments,
    /// A thread per row and group of features sums what its corners add.
    Gather,
}

impl Problem for TableProblem {
    type Plan = TablePlan;

    const VARIANTS: &'static [Variant] = &[
        Variant { name: "segments", source: "kernels/common/index/scatter.c" },
        Variant { name: "gather", source: GRID },
    ];

    fn plan(&self, variant: usize, _: &Caps) -> Result<TablePlan, Reason> {
        match variant {
            0 if self.dtype.size() < 4 => Err("what is added would be rounded to 16 bits".into()),
            0 => Ok(TablePlan::Segments),
            _ => Ok(TablePlan::Gather),
        }
    }

    /// Where rows are few, or each has many corners, threads of their own would be few, or would wait for the longest.
    fn prefers(&self, variant: usize, caps: &Caps) -> bool {
        let few = self.rows * groups(self.width) < caps.target_blocks() * LANES / 4;
        let stored = self.entries.saturating_mul(self.width * self.dtype.size());
        variant == 1 || (few || self.entries >= 64 * self.rows) && !caps.is_cpu && stored <= 1 << 30
    }
}

/// A rendering of rays, or its gradient.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct RenderProblem(pub(crate) RaySizes);

/// How it runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RenderPlan {
    /// A block per ray, whose threads take runs of its samples.
    Blocks(usize),
    /// A thread per ray.
    Threads,
}

impl Problem for RenderProblem {
    type Plan = RenderPlan;

    const VARIANTS: &'static [Variant] =
        &[Variant { name: "blocks", source: RAYS }, Variant { name: "threads", source: RAYS }];

    fn plan(&self, variant: usize, _: &Caps) -> Result<RenderPlan, Reason> {
        match variant {
            0 => Ok(RenderPlan::Blocks(self.0.rays.min(i32::MAX as usize))),
            _ => Ok(RenderPlan::Threads),
        }
    }

    /// Few rays of many samples leave the device idle with a thread each.
    fn prefers(&self, variant: usize, caps: &Caps) -> bool {
        let few = self.0.rays < caps.target_blocks() * LANES / 4;
        variant == 1 || few && self.0.samples >= 32 && !caps.is_cpu
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::geometry::tests::gpu;
    use crate::engine::plan::best;

    #[test]
    fn long_segments_are_cut_and_short_ones_gathered() {
        let caps = gpu();
        let many = TableProblem { dtype: DType::F32, entries: 1 << 24, rows: 16 << 19, width: 2 };
        assert_eq!(best(&many, &caps), Some((1, TablePlan::Gather)));
        let dense = TableProblem { rows: 1 << 17, ..many };
        assert_eq!(best(&dense, &caps), Some((0, TablePlan::Segments)));
        let few = TableProblem { entries: 800, rows: 100, ..many };
        assert_eq!(best(&few, &caps), Some((0, TablePlan::Segments)));
        let half = TableProblem { dtype: DType::F16, ..dense };
        assert_eq!(best(&half, &caps), Some((1, TablePlan::Gather)));
        assert!(half.plan(0, &caps).is_err_and(|e| e.contains("16 bits")));
        let large = TableProblem { entries: 1 << 31, ..dense };
        assert_eq!(best(&large, &caps), Some((1, TablePlan::Gather)));
    }

    #[test]
    fn few_long_rays_have_a_block_each() {
        let caps = gpu();
        let p = |rays, samples| RenderProblem(RaySizes { rays, samples, channels: 3 });
        assert_eq!(best(&p(100, 192), &caps), Some((0, RenderPlan::Blocks(100))));
        assert_eq!(best(&p(100, 8), &caps), Some((1, RenderPlan::Threads)));
        assert_eq!(best(&p(1 << 20, 192), &caps), Some((1, RenderPlan::Threads)));
    }

    #[test]
    fn features_share_threads() {
        assert_eq!([0, 1, 4, 5, 8].map(groups), [1, 1, 1, 2, 2]);
    }
}
