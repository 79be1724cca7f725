//! How reductions run: along rows or down columns, in one pass or in runs whose states are combined.

use crate::device::Caps;
use crate::dtype::DType;
use crate::engine::launch::{LANES, pow2};
use crate::engine::plan::{Problem, Reason, Variant};
use crate::engine::tune::ProblemKey;

/// Elements of a column up to which few columns are summed by narrow tiles instead of runs that are combined.
const SHORT: usize = 512;
/// Shortest run of a cut row, in items.
const RUN: usize = 16 * LANES;

const SOURCE: &str = "kernels/common/reduce/reduce.c";

/// Items side by side in a cluster of `reduce/column_sums.c` (`GK_COLUMN_ITEMS`), and the most rows of a block and the fewest of all that are worth it: 2.5 us
/// for 2,048 x 128 to 512 in f32, 6.7 for 8,192 x 1,024, where the sums of parts and their combination take two launches (H200).
const SUM_ITEMS: usize = 8;
const SUM_ROWS: usize = 1024;
const FEWEST_ROWS: usize = 32;

/// How the elements of a row lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum RowAccess {
    /// With gaps.
    Strided,
    /// One after the other, at any alignment.
    Contiguous,
    /// With gaps between aligned items of 16 bytes.
    Items,
}

/// A reduction whose axes are merged into lists: those that stay and those that go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct ReduceProblem {
    pub(crate) dtype: DType,
    /// Results; at least one.
    pub(crate) outputs: usize,
    /// Elements of which a result is made.
    pub(crate) count: usize,
    /// Whether the innermost axis that stays is denser than the innermost that goes.
    pub(crate) kept_denser: bool,
    pub(crate) row: RowAccess,
    /// Whether neighbouring results can be read in aligned items of 16 bytes.
    pub(crate) wide_columns: bool,
    /// Whether it is the sum of the rows of a matrix, in the type of its elements; or why not.
    pub(crate) column_sums: Result<(), &'static str>,
}

/// How the elements of a result are cut into runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Runs {
    /// 1: nothing is cut.
    pub(crate) splits: usize,
    /// What a run has of [`RowPlan::n`], or of the count.
    pub(crate) chunk: usize,
    /// Threads that combine the states of a result.
    pub(crate) combine: usize,
}

/// Neighbouring threads lie along the reduced axes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RowPlan {
    pub(crate) access: RowAccess,
    /// Threads that share a row.
    pub(crate) lanes: usize,
    pub(crate) blocks: usize,
    /// Elements of a row, or 16-byte items where it is read by those.
    pub(crate) n: usize,
    pub(crate) runs: Runs,
}

/// Neighbouring threads lie on neighbouring results.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ColumnPlan {
    pub(crate) wide: bool,
    /// Threads side by side.
    pub(crate) tx: usize,
    pub(crate) blocks: usize,
    /// Results, or 16-byte items of neighbouring ones.
    pub(crate) items: usize,
    pub(crate) runs: Runs,
}

/// By clusters of blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ColumnSumsPlan {
    pub(crate) wide: bool,
    /// Columns, or 16-byte items of neighbouring ones.
    pub(crate) items: usize,
    /// Rows of a block.
    pub(crate) chunk: usize,
    pub(crate) blocks: usize,
}

/// How a reduction runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReducePlan {
    ColumnSums(ColumnSumsPlan),
    Rows(RowPlan),
    Columns(ColumnPlan),
}

impl ReduceProblem {
    /// Elements of 16 bytes.
    fn vector(&self) -> usize {
        16 / self.dtype.size()
    }

    fn unsplit(&self) -> Reason {
        format!("{} results of {} elements are as fast unsplit", self.outputs, self.count).into()
    }

    fn column_sums(&self, caps: &Caps) -> Result<ColumnSumsPlan, Reason> {
        self.column_sums?;
        let (wide, cluster) = (self.wide_columns, caps.cluster as usize);
        if cluster < 2 {
            return Err("the device has no clusters of blocks".into());
        }
        let items = if wide { self.outputs / self.vector() } else { self.outputs };
        let blocks = items.div_ceil(SUM_ITEMS).saturating_mul(cluster);
        if self.outputs > i32::MAX as usize / 2 || blocks > i32::MAX as usize {
            return Err("it has too many columns".into());
        }
        Ok(ColumnSumsPlan { wide, items, chunk: self.count.div_ceil(cluster).max(1), blocks })
    }

    /// Whether rows are few enough for one block of a cluster each, and columns for the device.
    fn prefers_column_sums(&self, caps: &Caps) -> bool {
        let fits = |p: ColumnSumsPlan| p.chunk <= SUM_ROWS && p.blocks <= caps.target_blocks();
        self.count >= FEWEST_ROWS && self.column_sums(caps).is_ok_and(fits)
    }

    fn rows(&self, split: bool, caps: &Caps) -> Result<RowPlan, Reason> {
        let (fill, w) = (caps.target_blocks(), self.vector());
        let items = if self.row == RowAccess::Strided { self.count } else { self.count.div_ceil(w) };
        let n = if self.row == RowAccess::Items { items } else { self.count };
        // About sixteen accesses per lane, because combining lanes costs more than a few accesses; more lanes where rows are too few to fill
        // the device.
        let mut lanes = pow2(items.div_ceil(16), LANES).max(pow2(items, 8));
        while lanes < pow2(items, LANES) && self.outputs * lanes < fill * LANES * 2 {
            lanes *= 2;
        }
        // Long rows are cut where their number alone leaves most of the device idle.
        let idle = lanes == LANES && self.outputs < fill / 2;
        let splits = if split && idle { (fill / self.outputs).min(items / RUN).max(1) } else { 1 };
        if split && splits == 1 {
            return Err(self.unsplit());
        }
        let per_item = if self.row == RowAccess::Contiguous { w } else { 1 };
        let chunk = items.div_ceil(splits).max(1) * per_item;
        let splits = n.div_ceil(chunk).max(1);
        let blocks = self.outputs.div_ceil(LANES / lanes) * splits;
        // Short rows leave a block little to do: fewer blocks that go on are cheaper.
        let blocks = if lanes == LANES { blocks } else { blocks.min(fill * 32) };
        let runs = Runs { splits, chunk, combine: pow2(splits, LANES) };
        Ok(RowPlan { access: self.row, lanes, blocks, n, runs })
    }

    fn columns(&self, split: bool, caps: &Caps) -> Result<ColumnPlan, Reason> {
        let wide = self.wide_columns;
        let items = if wide { self.outputs / self.vector() } else { self.outputs };
        // A few rows per thread at least, neighbours on 512 bytes where there are that many, on 128 where these would be too few blocks.
        let narrow = self.count <= SHORT && items.div_ceil(32) < caps.compute_units as usize;
        let side = if narrow { 8 } else { 32 };
        let ty = (LANES / pow2(items, side)).min(pow2(self.count.div_ceil(8), LANES));
        let tx = LANES / ty;
        let tiles = items.div_ceil(tx);
        // Two blocks per compute unit: each has many accesses in flight, and every further run adds to what has to be combined.
        let blocks = caps.compute_units as usize * 2;
        let runs = if narrow { 1 } else { (blocks / tiles).min(self.count / (ty * 8)).max(1) };
        let splits = if split { runs } else { 1 };
        if split && splits == 1 {
            return Err(self.unsplit());
        }
        let chunk = self.count.div_ceil(splits).max(1);
        let splits = self.count.div_ceil(chunk).max(1);
        let combine = pow2(splits.min(caps.target_blocks() * 32 / self.outputs), 32);
        Ok(ColumnPlan { wide, tx, blocks: tiles * splits, items, runs: Runs { splits, chunk, combine } })
    }
}

impl Problem for ReduceProblem {
    type Plan = ReducePlan;

    const VARIANTS: &'static [Variant] = &[
        Variant { name: "column_sums", source: "kernels/common/reduce/column_sums.c" },
        Variant { name: "columns_split", source: SOURCE },
        Variant { name: "columns", source: SOURCE },
        Variant { name: "rows_split", source: SOURCE },
        Variant { name: "rows", source: SOURCE },
    ];

    fn plan(&self, variant: usize, caps: &Caps) -> Result<ReducePlan, Reason> {
        match variant {
            0 => self.column_sums(caps).map(ReducePlan::ColumnSums),
            1 => self.columns(true, caps).map(ReducePlan::Columns),
            2 => self.columns(false, caps).map(ReducePlan::Columns),
            3 => self.rows(true, caps).map(ReducePlan::Rows),
            _ => self.rows(false, caps).map(ReducePlan::Rows),
        }
    }

    fn prefers(&self, variant: usize, caps: &Caps) -> bool {
        match variant {
            0 => self.prefers_column_sums(caps),
            // Columns where neighbouring elements belong to different results.
            1 | 2 => self.outputs > 1 && (self.count <= 1 || self.kept_denser),
            _ => true,
        }
    }

    fn key(&self) -> Option<&dyn ProblemKey> {
        Some(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::geometry::tests::{applicable, chosen, cpu, gpu};

    /// `outputs` contiguous rows of `count` elements.
    fn rows(outputs: usize, count: usize) -> ReduceProblem {
        let row = RowAccess::Contiguous;
        ReduceProblem {
            dtype: DType::F32,
            outputs,
            count,
            kept_denser: false,
            row,
            wide_columns: false,
            column_sums: Err("no sum"),
        }
    }

    /// The columns of a contiguous `[count, outputs]`.
    fn columns(count: usize, outputs: usize) -> ReduceProblem {
        let (row, wide_columns) = (RowAccess::Strided, outputs.is_multiple_of(4));
        ReduceProblem { kept_denser: true, row, wide_columns, ..rows(outputs, count) }
    }

    #[test]
    fn few_long_slices_are_cut() {
        let cases = [
            (rows(4096, 1024), "rows", "rows"),
            (rows(1, 1 << 24), "rows_split", "rows_split"),
            (rows(100, 1 << 20), "rows_split", "rows"),
            (rows(1, 1), "rows", "rows"),
            (rows(1, 0), "rows", "rows"),
            (rows(1 << 30, 1), "columns", "columns"),
            (columns(4096, 1024), "columns_split", "columns_split"),
            (columns(1 << 20, 8), "columns_split", "columns_split"),
            (columns(8, 1 << 20), "columns", "columns"),
            (columns(4096, 1), "rows", "rows"),
        ];
        for (p, on_gpu, on_cpu) in cases {
            assert_eq!((chosen(&p, &gpu()), chosen(&p, &cpu())), (on_gpu, on_cpu), "{p:?}");
        }
    }

    #[test]
    fn pins_take_what_a_slice_allows() {
        assert_eq!(applicable(&rows(4096, 1024), &gpu()), ["columns_split", "columns", "rows"]);
        assert_eq!(applicable(&rows(1, 1), &gpu()), ["columns", "rows"]);
        let p = columns(4096, 1024);
        assert_eq!(applicable(&p, &gpu()), ["columns_split", "columns", "rows"]);
        assert!(
            matches!(p.plan(2, &gpu()), Ok(ReducePlan::Columns(c)) if c.runs.splits == 1 && c.runs.chunk == 4096)
        );
        assert!(rows(8, 100).plan(3, &gpu()).is_err_and(|e| e.contains("unsplit")));
        // Four tiles of 64 columns and 16 rows in place of runs of 64 rows.
        let short = columns(128, 256);
        let one =
            |p| matches!(p, Ok(ReducePlan::Columns(c)) if (c.tx, c.blocks, c.runs.splits) == (16, 4, 1));
        assert!(chosen(&short, &gpu()) == "columns" && one(short.plan(2, &gpu())));
    }

    #[test]
    fn few_rows_are_summed_by_clusters() {
        let sums = |count, outputs| ReduceProblem { column_sums: Ok(()), ..columns(count, outputs) };
        let cases = [
            (sums(2048, 512), "column_sums"),
            (sums(128, 10), "column_sums"),
            (sums(8192, 1024), "column_sums"),
            (sums(8193, 1024), "columns_split"),
            (sums(16, 1024), "columns"),
            (sums(128, 1 << 20), "columns"),
            (columns(2048, 512), "columns_split"),
        ];
        for (p, name) in cases {
            assert_eq!(chosen(&p, &gpu()), name, "{p:?}");
        }
        let plan = ColumnSumsPlan { wide: false, items: 10, chunk: 16, blocks: 16 };
        assert_eq!(sums(128, 10).plan(0, &gpu()), Ok(ReducePlan::ColumnSums(plan)));
        assert!(sums(2048, 512).plan(0, &cpu()).is_err_and(|e| e.contains("clusters")));
        assert!(columns(2048, 512).plan(0, &gpu()).is_err_and(|e| e.contains("no sum")));
    }

    #[test]
    fn contiguous_rows_are_cut_at_items() {
        let Ok(ReducePlan::Rows(p)) = rows(1, (1 << 24) + 1).plan(3, &gpu()) else { panic!("rows are cut") };
        assert_eq!((p.lanes, p.n, p.runs.splits, p.runs.chunk % 4), (256, (1 << 24) + 1, p.runs.splits, 0));
        assert!(p.runs.splits > 1 && p.runs.splits * p.runs.chunk >= p.n);
        assert_eq!(p.blocks, p.runs.splits);
    }
}
