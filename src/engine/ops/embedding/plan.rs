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

/// Ids that one kernel looks through for each row (`GK_FEW_IDS`), and how many comparisons that may be in all.
const FEW_IDS: usize = 4096;
const COMPARISONS: usize = 1 << 22;

/// A gradient of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct EmbeddingBwdProblem {
    pub(crate) table: RowsProblem,
    /// Rows of the table.
    pub(crate) rows: usize,
    /// Rows that are looked up.
    pub(crate) ids: usize,
}

/// How it runs: rows look for their ids, or the ids are sorted; and how, where nothing is added to it, rows without a gradient become 0 then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EmbeddingBwdPlan {
    /// Every row looks through all ids.
    FewIds,
    /// Only rows without a gradient are cleared, as that many 16-byte items each.
    Others(usize),
    /// All are, before the sums.
    All,
}

impl Problem for EmbeddingBwdProblem {
    type Plan = EmbeddingBwdPlan;

    const VARIANTS: &'static [Variant] = &[
        Variant { name: "few_ids", source: SOURCE },
        Variant { name: "clear_others", source: SOURCE },
        Variant { name: "clear_all", source: "kernels/common/shape/shape.c" },
    ];

    fn plan(&self, variant: usize, _: &Caps) -> Result<EmbeddingBwdPlan, Reason> {
        match variant {
            0 if self.ids > FEW_IDS => Err(format!("{} ids are more than {FEW_IDS}", self.ids).into()),
            0 if self.rows > i32::MAX as usize => Err(format!("{} rows are too many", self.rows).into()),
            0 => Ok(EmbeddingBwdPlan::FewIds),
            1 if self.ids == 0 => Err("no row is looked up".into()),
            1 => self.table.items().map(EmbeddingBwdPlan::Others),
            _ => Ok(EmbeddingBwdPlan::All),
        }
    }

    fn prefers(&self, variant: usize, caps: &Caps) -> bool {
        variant > 0 || (!caps.is_cpu && self.ids > 0 && self.ids.saturating_mul(self.rows) <= COMPARISONS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::geometry::tests::{chosen, cpu, gpu};

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
            assert!(EmbeddingBwdProblem { table: odd, rows: 9, ids: 1 }.plan(1, &caps).is_err());
        }
        let p = EmbeddingBwdProblem { table: rows, rows: 50_000, ids: 100 };
        assert_eq!(p.plan(1, &caps), Ok(EmbeddingBwdPlan::Others(256)));
        assert!(EmbeddingBwdProblem { ids: 0, ..p }.plan(1, &caps).is_err_and(|e| e.contains("looked up")));
        assert_eq!(p.plan(2, &caps), Ok(EmbeddingBwdPlan::All));
    }

    #[test]
    fn rows_look_for_few_ids() {
        let table = RowsProblem { row: 512, bytes: 512 * 256, aligned: true };
        let p = EmbeddingBwdProblem { table, rows: 256, ids: 2048 };
        assert_eq!(
            [
                chosen(&p, &gpu()),
                chosen(&EmbeddingBwdProblem { rows: 50_000, ..p }, &gpu()),
                chosen(&p, &cpu())
            ],
            ["few_ids", "clear_others", "clear_others"]
        );
        assert!(EmbeddingBwdProblem { ids: 4097, ..p }.plan(0, &gpu()).is_err_and(|e| e.contains("4097")));
    }
}
