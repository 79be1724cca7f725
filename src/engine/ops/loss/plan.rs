//! How losses run that have several ways to.

use super::lanes_for;
use crate::device::Caps;
use crate::engine::geometry::side_by_side;
use crate::engine::launch::{LANES, pow2};
use crate::engine::plan::{Problem, Reason, Variant};

/// Elements that a block sums before a long row is cut, and how many runs a row has at most.
const CHUNK: usize = 8192;
const CHUNKS: usize = 1024;
/// Threads of a warp on most devices.
const WARP: usize = 32;
/// Threads that keep a compute unit busy.
const BUSY: usize = 2048;
/// Rows that fill a device uncut.
const ENOUGH: usize = 512;
/// Most blocks of a launch; they loop.
const BLOCKS: usize = 1 << 20;

/// Blocks for rows of which a block takes `LANES / lanes` at a time.
fn row_blocks(rows: usize, lanes: usize) -> usize {
    rows.div_ceil(LANES / lanes).min(BLOCKS)
}

/// Cross entropy of `[n, c, s]` over `c` classes, or its gradient.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct CrossEntropyProblem {
    pub(crate) n: usize,
    pub(crate) c: usize,
    pub(crate) s: usize,
    /// Whether x, its gradient and target probabilities begin at multiples of 16 bytes.
    pub(crate) aligned: bool,
    /// Elements in 16 bytes.
    pub(crate) vector: usize,
}

impl CrossEntropyProblem {
    /// `tx` threads side by side on positions (or items of neighbouring ones), the others of a block on classes.
    fn positions(&self, caps: &Caps) -> CrossEntropyPlan {
        let wide = self.aligned && self.s.is_multiple_of(self.vector);
        let items = self.n * self.s / if wide { self.vector } else { 1 };
        let tx = side_by_side(items, self.c, wide, caps);
        CrossEntropyPlan::Positions { tx, wide, blocks: items.div_ceil(tx).min(BLOCKS) }
    }
}

/// How cross entropy runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CrossEntropyPlan {
    /// A row of classes per `lanes` threads.
    Rows { lanes: usize, blocks: usize, wide: bool },
    /// `tx` positions side by side (`wide`: in items of a vector), whose classes the threads of a block share.
    Positions { tx: usize, wide: bool, blocks: usize },
}

impl Problem for CrossEntropyProblem {
    type Plan = CrossEntropyPlan;

    const VARIANTS: &'static [Variant] = &[
        Variant { name: "rows", source: "kernels/common/loss/loss.c" },
        Variant { name: "positions", source: "kernels/common/loss/loss.c" },
    ];

    fn plan(&self, variant: usize, caps: &Caps) -> Result<CrossEntropyPlan, Reason> {
        match (variant, self.s) {
            (0, 1) => {
                let mut lanes = lanes_for(self.c);
                // Few rows: more threads for each, up to a block per unit.
                while lanes < pow2(self.c, LANES) && row_blocks(self.n, lanes) < caps.compute_units as usize {
                    lanes *= 2;
                }
                Ok(CrossEntropyPlan::Rows { lanes, blocks: row_blocks(self.n, lanes), wide: self.aligned })
            }
            (0, _) => Err("the classes are not the innermost axis".into()),
            _ => Ok(self.positions(caps)),
        }
    }
}

/// A loss with one item per row, or its gradient.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct RowLossProblem {
    pub(crate) rows: usize,
    pub(crate) len: usize,
    /// Whether the statistics are plain sums, so that a row can be cut.
    pub(crate) sums: bool,
    /// Whether neighbouring rows are neighbours in memory.
    pub(crate) interleaved: bool,
    /// Whether a row is read again after its statistics, as for a gradient.
    pub(crate) again: bool,
}

impl RowLossProblem {
    /// Threads of an uncut row. A warp waits for no other one, and has more loads in flight, if there are rows for all of them; rows that are
    /// read again have more threads, so that few are under way and the cache still holds them.
    fn lanes(&self, caps: &Caps) -> usize {
        let most = lanes_for(self.len);
        let mut lanes = most.min(if self.again { 4 * WARP } else { WARP });
        while lanes < most && self.rows * lanes < caps.compute_units as usize * BUSY {
            lanes *= 2;
        }
        lanes
    }
}

/// How a row loss runs: `lanes` threads share a row, or one of the `chunks` runs that it is cut into, whose sums are combined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RowLossPlan {
    pub(crate) lanes: usize,
    pub(crate) chunks: usize,
}

impl RowLossPlan {
    /// Blocks for a launch over rows, or over the runs of all rows.
    pub(crate) fn blocks(&self, rows: usize) -> usize {
        row_blocks(rows, self.lanes)
    }
}

impl Problem for RowLossProblem {
    type Plan = RowLossPlan;

    const VARIANTS: &'static [Variant] = &[
        Variant { name: "split", source: "kernels/common/loss/rows.c" },
        Variant { name: "rows", source: "kernels/common/loss/rows.c" },
    ];

    fn plan(&self, variant: usize, caps: &Caps) -> Result<RowLossPlan, Reason> {
        if variant > 0 {
            // Neighbouring threads take neighbouring rows where those are neighbours in memory.
            let lanes = if self.interleaved { 1 } else { self.lanes(caps) };
            return Ok(RowLossPlan { lanes, chunks: 1 });
        }
        if !self.sums {
            return Err("the statistics of a row are no plain sums".into());
        }
        let chunks = self.len.div_ceil(CHUNK).clamp(1, CHUNKS);
        if chunks == 1 {
            return Err(format!("a row of {} elements is not cut", self.len).into());
        }
        Ok(RowLossPlan { lanes: LANES, chunks })
    }

    fn prefers(&self, variant: usize, _: &Caps) -> bool {
        variant > 0 || self.rows < ENOUGH
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::geometry::tests::{applicable, chosen, cpu, gpu};

    #[test]
    fn classes_side_by_side_are_taken_as_rows() {
        let p = |n, c, s| CrossEntropyProblem { n, c, s, aligned: true, vector: 4 };
        for (p, name) in [(p(4096, 32000, 1), "rows"), (p(1, 1, 1), "rows"), (p(8, 21, 4096), "positions")] {
            assert_eq!((chosen(&p, &gpu()), chosen(&p, &cpu())), (name, name), "{p:?}");
        }
        assert_eq!(applicable(&p(4096, 1000, 1), &gpu()), ["rows", "positions"]);
        assert!(p(8, 21, 4096).plan(0, &gpu()).is_err_and(|e| e.contains("innermost")));
        let rows = CrossEntropyPlan::Rows { lanes: 128, blocks: 2048, wide: true };
        assert_eq!(p(4096, 1000, 1).plan(0, &gpu()), Ok(rows));
        // Few rows have as many threads as classes.
        let few = CrossEntropyPlan::Rows { lanes: 16, blocks: 8, wide: true };
        assert_eq!(p(128, 10, 1).plan(0, &gpu()), Ok(few));
        // Many positions and few classes: a thread per position. Few positions: threads share the classes of neighbours.
        let many = CrossEntropyPlan::Positions { tx: 64, wide: true, blocks: 8 * 1024 * 1024 / 4 / 64 };
        assert_eq!(p(8, 21, 1 << 20).plan(1, &gpu()), Ok(many));
        let few = CrossEntropyPlan::Positions { tx: 4, wide: true, blocks: 32 };
        assert_eq!(p(64, 50_304, 8).plan(1, &gpu()), Ok(few));
    }

    #[test]
    fn few_long_rows_of_sums_are_cut() {
        let p = |rows, len| RowLossProblem { rows, len, sums: true, interleaved: false, again: false };
        let cases = [
            (p(8, 1 << 20), "split"),
            (p(512, 1 << 20), "rows"),
            (p(8, 8192), "rows"),
            (p(0, 0), "rows"),
            (RowLossProblem { sums: false, ..p(8, 1 << 20) }, "rows"),
        ];
        for (p, name) in cases {
            assert_eq!((chosen(&p, &gpu()), chosen(&p, &cpu())), (name, name), "{p:?}");
        }
        assert_eq!(applicable(&p(4096, 1 << 20), &gpu()), ["split", "rows"]);
        assert_eq!(applicable(&p(8, 8192), &gpu()), ["rows"]);
        assert_eq!(p(8, 1 << 30).plan(0, &gpu()), Ok(RowLossPlan { lanes: LANES, chunks: 1024 }));
        // Few rows have as many threads as there are vectors; many a warp, or four where they are read twice.
        let lanes = |p: RowLossProblem| p.plan(1, &gpu()).map(|plan| plan.lanes);
        assert_eq!(lanes(p(8, 1024)), Ok(128));
        assert_eq!(lanes(p(1 << 16, 1024)), Ok(32));
        assert_eq!(lanes(RowLossProblem { again: true, ..p(1 << 16, 4096) }), Ok(128));
        let beside = RowLossProblem { interleaved: true, ..p(8, 1 << 20) };
        assert_eq!(beside.plan(1, &gpu()), Ok(RowLossPlan { lanes: 1, chunks: 1 }));
    }
}
