//! How embeddings and their gradients move the rows of tables.

use crate::device::Caps;
use crate::engine::plan::{Problem, Reason, Variant};

const SOURCE: &str = "kernels/common/embedding/embedding.c";

/// A table whose rows are read or written, and what has the same rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct RowsProblem {
    /// Bytes of a row.
    pub(crate) row: usize,
    /// Bytes of the largest tensor.
    pub(crate) bytes: usize,
    /// Whether all tensors begin at multiples of 16 bytes.
    pub(crate) aligned: bool,
}

impl RowsProblem {
    /// Length of the rows in units of 16 bytes, where they consist of whole ones and 32-bit positions describe the tensors.
    fn items(&self) -> Result<usize, Reason> {
        if self.row == 0 || !self.row.is_multiple_of(16) || !self.aligned {
            return Err("its rows are not whole 16-byte items".into());
        }
        if self.row >= 1 << 30 || self.bytes / 16 >= i32::MAX as usize {
            return Err("it has more than 2^31 items".into());
        }
        Ok(self.row / 16)
    }
}

/// A lookup of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct EmbeddingProblem(pub(crate) RowsProblem);

/// How it runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EmbeddingPlan {
    /// Rows of that many 16-byte items.
    Items(usize),
    /// As a selection along an axis.
    Select,
}

impl Problem for EmbeddingProblem {
    type Plan = EmbeddingPlan;

    const VARIANTS: &'static [Variant] = &[
        Variant { name: "items", source: SOURCE },
        Variant { name: "index_select", source: "kernels/common/index/index.c" },
    ];

    fn plan(&self, variant: usize, _: &Caps) -> Result<EmbeddingPlan, Reason> {
        match variant {
            0 => self.0.items().map(EmbeddingPlan::Items),
            _ => Ok(EmbeddingPlan::Select),
        }
    }
}

/// A gradient of a table that is overwritten: how rows without a gradient become 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct ClearProblem {
    pub(crate) table: RowsProblem,
    /// Rows that are looked up.
    pub(crate) ids: usize,
}

/// How it runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ClearPlan {
    /// Only the others are written, as that many 16-byte items each.
    Others(usize),
    /// All are, before the sums.
    All,
}

impl Problem for ClearProblem {
    type Plan = ClearPlan;

    const VARIANTS: &'static [Variant] = &[
        Variant { name: "clear_others", source: SOURCE },
        Variant { name: "clear_all", source: "kernels/common/shape/shape.c" },
    ];

    fn plan(&self, variant: usize, _: &Caps) -> Result<ClearPlan, Reason> {
        match variant {
            0 if self.ids == 0 => Err("no row is looked up".into()),
            0 => self.table.items().map(ClearPlan::Others),
            _ => Ok(ClearPlan::All),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::geometry::tests::gpu;

    #[test]
    fn rows_of_whole_items_are_moved_as_such() {
        let caps = gpu();
        let rows = RowsProblem { row: 4096, bytes: 4096 * 50_000, aligned: true };
        assert_eq!(EmbeddingProblem(rows).plan(0, &caps), Ok(EmbeddingPlan::Items(256)));
        assert_eq!(EmbeddingProblem(rows).plan(1, &caps), Ok(EmbeddingPlan::Select));
        for odd in [
            RowsProblem { row: 0, ..rows },
            RowsProblem { row: 24, ..rows },
            RowsProblem { aligned: false, ..rows },
            RowsProblem { bytes: 1 << 36, ..rows },
        ] {
            assert!(EmbeddingProblem(odd).plan(0, &caps).is_err());
            assert!(ClearProblem { table: odd, ids: 1 }.plan(0, &caps).is_err());
        }
        let p = ClearProblem { table: rows, ids: 100 };
        assert_eq!(p.plan(0, &caps), Ok(ClearPlan::Others(256)));
        assert!(ClearProblem { ids: 0, ..p }.plan(0, &caps).is_err_and(|e| e.contains("looked up")));
        assert_eq!(p.plan(1, &caps), Ok(ClearPlan::All));
    }
}
