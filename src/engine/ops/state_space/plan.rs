//! How linear recurrences run: whole sequences, or runs of steps side by side.

use crate::device::Caps;
use crate::engine::launch::{LANES, pow2};
use crate::engine::plan::{Problem, Reason, Variant};
use crate::ops::state_space::{StateRule, StateSizes};

/// Columns of a state per thread (`GK_STATE_KEEP`), forward and backward.
const KEEP: [usize; 2] = [16, 4];
/// Steps between two marks of the backward pass (`GK_STATE_CHUNK`), marks within (`GK_STATE_CHUNK / GK_SEGMENT`), and elements of a mark per block.
const CHUNK: usize = 64;
const INNER_MARKS: usize = 8;
const MARK: usize = LANES * KEEP[1];
/// Most runs of one sequence.
const SPLITS: usize = 256;

const SCAN: &str = "kernels/common/state_space/scan.c";
const RECURRENCE: &str = "kernels/common/state_space/recurrence.c";

/// Blocks along the axis that every device has.
const MAX_BLOCKS: usize = i32::MAX as usize;

/// A scan of matrix states.
#[derive(Debug, Clone, Copy, Hash)]
pub(crate) struct StateProblem {
    pub(crate) rule: StateRule,
    pub(crate) size: StateSizes,
    pub(crate) backward: bool,
}

/// How it runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StatePlan {
    /// Threads per row of a state.
    pub(crate) lanes: usize,
    /// Blocks along the rows.
    pub(crate) tiles: usize,
    /// Steps of a run, and runs.
    pub(crate) split: usize,
    pub(crate) splits: usize,
    /// Blocks in all.
    pub(crate) blocks: usize,
}

impl StatePlan {
    /// Elements of the backward pass's marks.
    pub(crate) fn marks(&self) -> usize {
        self.blocks * (self.split.div_ceil(CHUNK) + INNER_MARKS) * MARK
    }
}

/// Steps of a run so that `blocks` blocks, cut into runs, keep the device busy; `None` where they do whole.
fn run_length(steps: usize, blocks: usize, caps: &Caps) -> Option<usize> {
    let fill = (caps.target_blocks() / 2).max(2);
    let splits = fill.div_ceil(blocks.max(1)).min(steps / CHUNK).min(SPLITS);
    (splits > 1).then(|| steps.div_ceil(splits).next_multiple_of(CHUNK))
}

impl StateProblem {
    /// Threads per row, and blocks along the rows.
    fn lanes(&self) -> [usize; 2] {
        let lanes = pow2(self.size.width.div_ceil(KEEP[usize::from(self.backward)]), LANES);
        [lanes, self.size.rows.div_ceil(LANES / lanes)]
    }

    /// The geometry of this pass for the runs of steps of another one's plan, whose blocks are no fewer.
    pub(crate) fn runs(&self, of: &StatePlan) -> StatePlan {
        let [lanes, tiles] = self.lanes();
        StatePlan { lanes, tiles, blocks: self.size.batch * self.size.heads * tiles * of.splits, ..*of }
    }
}

impl Problem for StateProblem {
    type Plan = StatePlan;

    const VARIANTS: &'static [Variant] =
        &[Variant { name: "steps_split", source: SCAN }, Variant { name: "sequences", source: SCAN }];

    fn plan(&self, variant: usize, caps: &Caps) -> Result<StatePlan, Reason> {
        let n = self.size;
        let [lanes, tiles] = self.lanes();
        let whole = n.batch * n.heads * tiles;
        let split = match variant {
            0 if self.rule == StateRule::GatedDelta => {
                return Err("a step of the delta rule is no factor per column".into());
            }
            0 => run_length(n.steps, whole, caps).ok_or_else(|| -> Reason {
                format!("{whole} blocks over {} steps keep the device busy whole", n.steps).into()
            })?,
            _ => n.steps.max(1),
        };
        let splits = n.steps.div_ceil(split).max(1);
        let blocks = whole * splits;
        if blocks > MAX_BLOCKS {
            return Err(format!("{blocks} blocks exceed the grid").into());
        }
        Ok(StatePlan { lanes, tiles, split, splits, blocks })
    }
}

/// A recurrence over `steps` of contiguous operands `[outer, steps, inner]`.
#[derive(Debug, Clone, Copy, Hash)]
pub(crate) struct RecurrenceProblem {
    pub(crate) outer: usize,
    pub(crate) steps: usize,
    pub(crate) inner: usize,
}

/// How it runs: a thread has a column, or one of its runs of `split` steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RecurrencePlan {
    pub(crate) split: usize,
    pub(crate) splits: usize,
    /// Threads in all.
    pub(crate) threads: usize,
}

impl Problem for RecurrenceProblem {
    type Plan = RecurrencePlan;

    const VARIANTS: &'static [Variant] = &[
        Variant { name: "steps_split", source: RECURRENCE },
        Variant { name: "sequences", source: RECURRENCE },
    ];

    fn plan(&self, variant: usize, caps: &Caps) -> Result<RecurrencePlan, Reason> {
        let columns = self.outer * self.inner;
        let split = match variant {
            0 => run_length(self.steps, columns.div_ceil(LANES), caps).ok_or_else(|| -> Reason {
                format!("{columns} columns of {} steps keep the device busy whole", self.steps).into()
            })?,
            _ => self.steps.max(1),
        };
        let splits = self.steps.div_ceil(split).max(1);
        let threads = columns * splits;
        if threads.div_ceil(LANES) > MAX_BLOCKS {
            return Err(format!("{threads} threads exceed the grid").into());
        }
        Ok(RecurrencePlan { split, splits, threads })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::geometry::tests::{applicable, chosen, gpu};

    fn selective(batch: usize, steps: usize, rows: usize, backward: bool) -> StateProblem {
        let size = StateSizes { batch, steps, heads: 1, rows, width: 16, groups: 1 };
        StateProblem { rule: StateRule::Selective, size, backward }
    }

    #[test]
    fn few_long_sequences_are_cut() {
        for (p, want) in [
            (selective(1, 4096, 256, false), "steps_split"),
            (selective(1, 100, 256, false), "sequences"),
            (selective(4096, 4096, 256, false), "sequences"),
        ] {
            assert_eq!(chosen(&p, &gpu()), want, "{p:?}");
        }
        let delta = StateProblem { rule: StateRule::GatedDelta, ..selective(1, 4096, 256, false) };
        assert_eq!(applicable(&delta, &gpu()), ["sequences"]);
        let column = RecurrenceProblem { outer: 1, steps: 1 << 16, inner: 3 };
        assert_eq!(chosen(&column, &gpu()), "steps_split");
    }

    #[test]
    fn runs_cover_the_steps_and_none_is_empty() {
        for steps in [1, 63, 64, 127, 128, 130, 1000, 4096, 100_001] {
            for backward in [false, true] {
                for variant in 0..2 {
                    let Ok(p) = selective(2, steps, 100, backward).plan(variant, &gpu()) else { continue };
                    assert!(
                        p.split * p.splits >= steps && p.split * (p.splits - 1) < steps,
                        "{steps}: {p:?}"
                    );
                    assert_eq!(p.blocks, 2 * p.tiles * p.splits);
                    assert_eq!(p.lanes, if backward { 4 } else { 1 });
                }
            }
        }
    }
}
