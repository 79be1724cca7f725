//! How softmax runs: the threads, blocks or clusters of blocks that share a row.

use crate::device::Caps;
use crate::engine::geometry::{Alignment, side_by_side};
use crate::engine::launch::{LANES, pow2};
use crate::engine::plan::{Problem, Reason, Variant};
use crate::engine::tune::ProblemKey;

/// Elements of a row that one thread holds in registers at most; half as many of each operand backward, which has two.
const REGISTERS: usize = 32;
/// 16-byte items that a thread holds where there is a choice.
const ITEMS: usize = 4;
/// Elements of a row that one thread of the cluster kernels holds; doubles only the first.
pub(super) const CLUSTER_ELEMENTS: [usize; 2] = [16, 64];
/// Rows that are longer than this are shared by the blocks of a cluster: elements.
const LONG: usize = REGISTERS * LANES;
/// Elements of a row from which on a cluster is faster than one block that reads the row twice (of 8,200 elements the latter takes half the time, of
/// 40,000 a twentieth more, or a fifth in gradients; H200).
const LEAST_SHARED: usize = 32_768;
const LEAST_SHARED_BWD: usize = 20_480;
/// Shortest part of a split row, in items.
const PART: usize = 2048;

const REGISTERS_C: &str = "kernels/common/softmax/registers.c";
const ROWS_C: &str = "kernels/common/softmax/rows.c";
const COLUMNS_C: &str = "kernels/common/softmax/columns.c";

/// Contiguous operands of one shape `[outer, cols, inner]`, softmax along `cols`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct SoftmaxProblem {
    pub(crate) outer: usize,
    pub(crate) cols: usize,
    pub(crate) inner: usize,
    pub(crate) operands: Alignment,
    /// Tensors that are read and written: 2 forward, 3 backward.
    pub(crate) tensors: usize,
}

/// How softmax runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SoftmaxPlan {
    /// A row in the registers of `lanes` threads, `1 << items` 16-byte items each.
    Registers { lanes: usize, wide: bool, items: usize, blocks: usize },
    /// A row in the registers of a cluster of blocks, `CLUSTER_ELEMENTS[size]` elements per thread.
    Cluster { wide: bool, size: usize, blocks: usize },
    /// Partial sums of the parts of a row, their combination, then the result.
    Split(Split),
    /// A row per `lanes` threads, read twice.
    Rows { lanes: usize, wide: bool, phase: usize, blocks: usize },
    /// `tx` columns side by side.
    Columns { tx: usize, wide: bool, blocks: usize },
}

/// A row split into `splits` parts of `chunk` elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Split {
    pub(crate) splits: usize,
    pub(crate) chunk: usize,
    pub(crate) wide: bool,
    pub(crate) phase: usize,
}

impl SoftmaxProblem {
    /// Elements of 16 bytes.
    fn vector(&self) -> usize {
        self.operands.vector()
    }

    /// Whether rows are read by 16-byte items, after single elements up to the first boundary.
    fn wide(&self) -> bool {
        self.operands.in_phase
    }

    /// Elements by which rows that are read so begin behind a multiple of 16 bytes.
    fn phase(&self) -> usize {
        if self.wide() { self.operands.phase } else { 0 }
    }

    /// Blocks for rows of which a block takes `LANES / lanes` at a time.
    fn row_blocks(&self, lanes: usize, caps: &Caps) -> usize {
        let blocks = self.outer.div_ceil(LANES / lanes);
        if lanes == LANES { blocks } else { blocks.min(caps.target_blocks() * 8) }
    }

    /// Items of a row.
    fn items(&self) -> usize {
        if self.wide() { self.cols.div_ceil(self.vector()) } else { self.cols }
    }

    fn registers(&self, caps: &Caps) -> Result<SoftmaxPlan, Reason> {
        let (w, wide) = (self.vector(), self.operands.whole(self.cols));
        let least = if wide { self.cols / w } else { self.cols };
        let lanes = pow2(self.cols.div_ceil(ITEMS * w), LANES).max(pow2(least, 8));
        let items = self.cols.div_ceil(lanes * w).next_power_of_two();
        let most = if self.tensors > 2 { REGISTERS / 2 } else { REGISTERS };
        if items * w > most || items > most / 4 {
            return Err(
                format!("a row of {} elements does not fit the registers of a block", self.cols).into()
            );
        }
        let (items, blocks) = (items.ilog2() as usize, self.row_blocks(lanes, caps));
        Ok(SoftmaxPlan::Registers { lanes, wide, items, blocks })
    }

    fn cluster(&self, caps: &Caps) -> Result<SoftmaxPlan, Reason> {
        let cluster = caps.cluster as usize;
        if cluster <= 1 {
            return Err("the device has no clusters of blocks".into());
        }
        let blocks = self.outer * cluster;
        if blocks >= 1 << 31 {
            return Err(format!("{} rows are more than clusters can be", self.outer).into());
        }
        let (w, wide) = (self.vector(), self.operands.whole(self.cols));
        let sizes = if w == 2 { &CLUSTER_ELEMENTS[..1] } else { &CLUSTER_ELEMENTS[..] };
        let fits = |elements: &usize| self.cols > LONG && self.cols <= elements * LANES * cluster;
        let Some(size) = sizes.iter().position(fits) else {
            return Err(
                format!("a row of {} elements does not fit the registers of a cluster", self.cols).into()
            );
        };
        Ok(SoftmaxPlan::Cluster { wide, size, blocks })
    }

    /// Whether clusters keep the device busy, rows are long enough that meeting takes less time than a second reading, and are read 16 bytes at a time:
    /// single elements of 16 bits take more than that reading, too.
    fn prefers_cluster(&self, caps: &Caps) -> bool {
        let busy = self.outer * caps.cluster as usize >= caps.compute_units as usize;
        let long = self.cols >= if self.tensors > 2 { LEAST_SHARED_BWD } else { LEAST_SHARED };
        busy && long && (self.vector() <= 4 || self.operands.whole(self.cols))
    }

    /// Threads that share a row, where blocks loop over rows.
    fn lanes(&self, caps: &Caps) -> usize {
        let items = self.items();
        let mut lanes = pow2(items.div_ceil(ITEMS), LANES).max(pow2(items, 8));
        while lanes < pow2(items, LANES) && self.outer * lanes < caps.target_blocks() * LANES / 2 {
            lanes *= 2;
        }
        lanes
    }

    fn split(&self, caps: &Caps) -> Result<SoftmaxPlan, Reason> {
        // Rows are split until several waves of blocks are in flight.
        let blocks = caps.target_blocks();
        let splits =
            if self.outer < blocks * 2 { (blocks * 4 / self.outer).min(self.items() / PART) } else { 1 };
        if splits <= 1 {
            return Err(format!(
                "{} rows of {} elements keep the device busy unsplit",
                self.outer, self.cols
            )
            .into());
        }
        let chunk = self.items().div_ceil(splits) * if self.wide() { self.vector() } else { 1 };
        let splits = self.cols.div_ceil(chunk);
        Ok(SoftmaxPlan::Split(Split { splits, chunk, wide: self.wide(), phase: self.phase() }))
    }

    fn columns(&self, caps: &Caps) -> SoftmaxPlan {
        let wide = self.operands.whole(self.inner);
        let items = self.outer * self.inner / if wide { self.vector() } else { 1 };
        let tx = side_by_side(items, self.cols, wide, caps);
        SoftmaxPlan::Columns { tx, wide, blocks: items.div_ceil(tx) }
    }
}

impl Problem for SoftmaxProblem {
    type Plan = SoftmaxPlan;

    const VARIANTS: &'static [Variant] = &[
        Variant { name: "registers", source: REGISTERS_C },
        Variant { name: "cluster", source: REGISTERS_C },
        Variant { name: "split", source: ROWS_C },
        Variant { name: "rows", source: ROWS_C },
        Variant { name: "columns", source: COLUMNS_C },
    ];

    fn plan(&self, variant: usize, caps: &Caps) -> Result<SoftmaxPlan, Reason> {
        match (variant, self.inner) {
            (0, 1) => self.registers(caps),
            (1, 1) => self.cluster(caps),
            (2, 1) => self.split(caps),
            (3, 1) => {
                let (lanes, wide, phase) = (self.lanes(caps), self.wide(), self.phase());
                Ok(SoftmaxPlan::Rows { lanes, wide, phase, blocks: self.row_blocks(lanes, caps) })
            }
            (4, 1) => Err("the axis is the innermost".into()),
            (4, _) => Ok(self.columns(caps)),
            _ => Err("the axis is not the innermost".into()),
        }
    }

    fn prefers(&self, variant: usize, caps: &Caps) -> bool {
        variant != 1 || self.prefers_cluster(caps)
    }

    fn key(&self) -> Option<&dyn ProblemKey> {
        Some(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::DType;
    use crate::engine::geometry::tests::{applicable, chosen, cpu, gpu};

    fn problem(outer: usize, cols: usize, inner: usize) -> SoftmaxProblem {
        SoftmaxProblem { outer, cols, inner, operands: Alignment::full(DType::F32), tensors: 2 }
    }

    #[test]
    fn rows_are_held_as_near_as_they_fit() {
        let cases = [
            (problem(4096, 100, 1), "registers", "registers"),
            (problem(4096, 8192, 1), "registers", "registers"),
            (problem(4096, 8200, 1), "rows", "rows"),
            (problem(4096, 32768, 1), "cluster", "rows"),
            (SoftmaxProblem { tensors: 3, ..problem(4096, 24576, 1) }, "cluster", "rows"),
            (problem(1, 1 << 24, 1), "split", "split"),
            (problem(1 << 20, 1 << 20, 1), "rows", "rows"),
            (problem(32, 100, 64), "columns", "columns"),
        ];
        for (p, on_gpu, on_cpu) in cases {
            assert_eq!((chosen(&p, &gpu()), chosen(&p, &cpu())), (on_gpu, on_cpu), "{p:?}");
        }
        assert_eq!(chosen(&problem(8, 32768, 1), &gpu()), "split");
        assert_eq!(applicable(&problem(8, 32768, 1), &gpu()), ["cluster", "split", "rows"]);
    }

    #[test]
    fn misaligned_rows_are_read_by_single_elements() {
        let full = problem(4096, 128, 1);
        let odd =
            SoftmaxProblem { operands: Alignment { in_phase: false, phase: 3, ..full.operands }, ..full };
        let registers = SoftmaxPlan::Registers { lanes: 8, wide: false, items: 2, blocks: 128 };
        assert_eq!(odd.plan(0, &gpu()), Ok(registers));
        assert!(matches!(odd.plan(3, &gpu()), Ok(SoftmaxPlan::Rows { wide: false, phase: 0, .. })));
        assert!(odd.plan(4, &gpu()).is_err_and(|e| e.contains("innermost")));
    }
}
