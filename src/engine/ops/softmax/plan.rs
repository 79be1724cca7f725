//! How softmax runs: the threads, blocks or clusters of blocks that share a row.

use crate::device::Caps;
use crate::dtype::DType;
use crate::engine::launch::{LANES, pow2};
use crate::engine::plan::{Problem, Reason, Variant};

/// Elements of a row that one thread holds in registers at most; half as many of each operand backward, which has two.
const REGISTERS: usize = 32;
/// 16-byte items that a thread holds where there is a choice.
const ITEMS: usize = 4;
/// Elements of a row that one thread of the cluster kernels holds; doubles only the first.
pub(super) const CLUSTER_ELEMENTS: [usize; 2] = [16, 64];
/// Rows that are longer than this are shared by the blocks of a cluster: elements.
const LONG: usize = REGISTERS * LANES;
/// Shortest part of a split row, in items.
const PART: usize = 2048;

const SOURCE: &str = "kernels/common/softmax/softmax.c";

/// Contiguous operands of one shape `[outer, cols, inner]`, softmax along `cols`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct SoftmaxProblem {
    pub(crate) outer: usize,
    pub(crate) cols: usize,
    pub(crate) inner: usize,
    pub(crate) dtype: DType,
    /// Tensors that are read and written: 2 forward, 3 backward.
    pub(crate) operands: usize,
    /// Whether all operands begin at multiples of 16 bytes.
    pub(crate) aligned: bool,
    /// Elements by which all operands begin behind a multiple of 16 bytes; `None` where they differ.
    pub(crate) phase: Option<usize>,
}

/// How softmax runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SoftmaxPlan {
    /// A row in the registers of `lanes` threads, `1 << items` 16-byte items each.
    Registers { lanes: usize, wide: bool, items: usize },
    /// A row in the registers of a cluster of blocks, `CLUSTER_ELEMENTS[size]` elements per thread.
    Cluster { wide: bool, size: usize },
    /// A row split into parts of `chunk` elements: partial sums, their combination, then the result.
    Split { splits: usize, chunk: usize, wide: bool, phase: usize },
    /// A row per `lanes` threads, read twice.
    Rows { lanes: usize, wide: bool, phase: usize },
    /// `tx` columns side by side.
    Columns { tx: usize, wide: bool },
}

impl SoftmaxProblem {
    /// Elements of 16 bytes.
    fn vector(&self) -> usize {
        16 / self.dtype.size()
    }

    /// Whether every row consists of whole 16-byte items.
    fn whole_items(&self) -> bool {
        self.aligned && self.cols.is_multiple_of(self.vector())
    }

    /// Whether rows are read by 16-byte items, after single elements up to the first boundary.
    fn wide(&self) -> bool {
        self.phase.is_some()
    }

    /// Items of a row.
    fn items(&self) -> usize {
        if self.wide() { self.cols.div_ceil(self.vector()) } else { self.cols }
    }

    fn registers(&self) -> Result<SoftmaxPlan, Reason> {
        let (w, wide) = (self.vector(), self.whole_items());
        let least = if wide { self.cols / w } else { self.cols };
        let lanes = pow2(self.cols.div_ceil(ITEMS * w), LANES).max(pow2(least, 8));
        let items = self.cols.div_ceil(lanes * w).next_power_of_two();
        let most = if self.operands > 2 { REGISTERS / 2 } else { REGISTERS };
        if items * w > most || items > most / 4 {
            return Err(
                format!("a row of {} elements does not fit the registers of a block", self.cols).into()
            );
        }
        Ok(SoftmaxPlan::Registers { lanes, wide, items: items.ilog2() as usize })
    }

    fn cluster(&self, caps: &Caps) -> Result<SoftmaxPlan, Reason> {
        let cluster = caps.cluster as usize;
        if cluster <= 1 {
            return Err("the device has no clusters of blocks".into());
        }
        let blocks = self.outer * cluster;
        if blocks < caps.compute_units as usize || blocks >= 1 << 31 {
            return Err(format!("{} rows do not keep the device busy", self.outer).into());
        }
        let (w, wide) = (self.vector(), self.whole_items());
        let sizes = if w == 2 { &CLUSTER_ELEMENTS[..1] } else { &CLUSTER_ELEMENTS[..] };
        let fits = |elements: &usize| self.cols > LONG && self.cols <= elements * LANES * cluster;
        let Some(size) = sizes.iter().position(fits) else {
            return Err(
                format!("a row of {} elements does not fit the registers of a cluster", self.cols).into()
            );
        };
        // Single elements of 16 bits take more time than a second reading.
        if !wide && w > 4 {
            return Err("16-bit rows that do not consist of whole 16-byte items".into());
        }
        Ok(SoftmaxPlan::Cluster { wide, size })
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
        let phase = self.phase.unwrap_or(0);
        Ok(SoftmaxPlan::Split { splits: self.cols.div_ceil(chunk), chunk, wide: self.wide(), phase })
    }

    fn columns(&self) -> SoftmaxPlan {
        let wide = self.aligned && self.inner.is_multiple_of(self.vector());
        let items = self.outer * self.inner / if wide { self.vector() } else { 1 };
        let ty = (LANES / pow2(items, 32)).min(pow2(self.cols.div_ceil(8), LANES));
        SoftmaxPlan::Columns { tx: LANES / ty, wide }
    }
}

impl Problem for SoftmaxProblem {
    type Plan = SoftmaxPlan;

    const VARIANTS: &'static [Variant] = &[
        Variant { name: "registers", source: SOURCE },
        Variant { name: "cluster", source: SOURCE },
        Variant { name: "split", source: SOURCE },
        Variant { name: "rows", source: SOURCE },
        Variant { name: "columns", source: SOURCE },
    ];

    fn plan(&self, variant: usize, caps: &Caps) -> Result<SoftmaxPlan, Reason> {
        match (variant, self.inner) {
            (0, 1) => self.registers(),
            (1, 1) => self.cluster(caps),
            (2, 1) => self.split(caps),
            (3, 1) => {
                let phase = self.phase.unwrap_or(0);
                Ok(SoftmaxPlan::Rows { lanes: self.lanes(caps), wide: self.wide(), phase })
            }
            (4, 1) => Err("the axis is the innermost".into()),
            (4, _) => Ok(self.columns()),
            _ => Err("the axis is not the innermost".into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{BackendKind, DeviceId};

    fn problem(outer: usize, cols: usize, inner: usize) -> SoftmaxProblem {
        SoftmaxProblem { outer, cols, inner, dtype: DType::F32, operands: 2, aligned: true, phase: Some(0) }
    }

    /// The variant that an H200 (132 SMs, clusters of 8 blocks) would run.
    fn chosen(p: SoftmaxProblem) -> &'static str {
        let mut caps = Caps::new(DeviceId::new(BackendKind::Cuda, 0), "test", "sm_90");
        (caps.compute_units, caps.cluster) = (132, 8);
        let at = (0..SoftmaxProblem::VARIANTS.len()).find(|&v| p.plan(v, &caps).is_ok());
        at.map_or("none", |v| SoftmaxProblem::VARIANTS[v].name)
    }

    #[test]
    fn rows_are_held_as_near_as_they_fit() {
        assert_eq!(chosen(problem(4096, 100, 1)), "registers");
        assert_eq!(chosen(problem(4096, 8192, 1)), "registers");
        assert_eq!(chosen(problem(4096, 32768, 1)), "cluster");
        assert_eq!(chosen(problem(1, 1 << 24, 1)), "split");
        assert_eq!(chosen(problem(1 << 20, 1 << 20, 1)), "rows");
        assert_eq!(chosen(problem(32, 100, 64)), "columns");
    }

    #[test]
    fn misaligned_rows_are_read_by_single_elements() {
        let odd = SoftmaxProblem { aligned: false, phase: None, ..problem(4096, 128, 1) };
        let caps = Caps::new(DeviceId::new(BackendKind::Cuda, 0), "test", "sm_90");
        assert_eq!(odd.plan(0, &caps), Ok(SoftmaxPlan::Registers { lanes: 8, wide: false, items: 2 }));
        assert!(matches!(odd.plan(3, &caps), Ok(SoftmaxPlan::Rows { wide: false, phase: 0, .. })));
        assert!(odd.plan(4, &caps).is_err_and(|e| e.contains("innermost")));
    }
}
