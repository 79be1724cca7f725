//! How rows and keys are sorted.

use crate::device::Caps;
use crate::dtype::DType;
use crate::engine::plan::{Problem, Reason, Variant};
use crate::engine::tune::ProblemKey;
use crate::spec::BLOCK;

/// Keys of a row that a block sorts alone, and per block of the radix sort of longer rows (`GK_ROW_KEYS`, `GK_KEY_TILE`).
fn radix_keys(key: DType) -> [usize; 2] {
    let keys = if key == DType::I64 { [8, 12] } else { [16, 24] };
    keys.map(|each| each * BLOCK as usize)
}

/// Type of the keys by which elements are sorted (`gk_key`).
pub(super) fn key_of(d: DType) -> DType {
    if d.size() == 8 { DType::I64 } else { DType::I32 }
}

/// Tiles of a row whose counts each block sums for itself, which takes less time than two more launches.
const FEW_TILES: usize = 64;
/// Shortest part of a row that a block selects from, when several share the row.
const PART: usize = 8192;

const SORT: &str = "kernels/common/sort/sort.c";
const RADIX: &str = "kernels/common/sort/radix.c";

/// Elements per thread in sorts within a block (`GK_SORT_EACH`).
pub(super) fn each(d: DType) -> usize {
    if d.size() == 8 { 4 } else { 8 }
}

/// Elements that a block sorts at once (`GK_PAIRS`).
pub(super) fn block_pairs(d: DType) -> usize {
    each(d) * BLOCK as usize
}

/// The first `keep` of each of `rows` contiguous rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct SortProblem {
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    pub(crate) keep: usize,
    pub(crate) dtype: DType,
    /// Whether both values and positions are wanted.
    pub(crate) both: bool,
}

/// How rows are sorted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SortPlan {
    /// In the local memory of a block, rows padded to `n` elements.
    Block { n: usize, blocks: usize },
    /// The first of each of the `splits` parts of a row by a block, then the first of those.
    Select { splits: usize },
    /// By the digits of keys.
    Radix(RadixPlan),
}

impl SortProblem {
    /// Rows that fit a block.
    pub(super) fn block(&self) -> Result<SortPlan, Reason> {
        let most = block_pairs(self.dtype);
        if self.cols > most {
            return Err(format!("a row of {} elements does not fit a block", self.cols).into());
        }
        let n = self.cols.max(each(self.dtype)).next_power_of_two();
        Ok(SortPlan::Block { n, blocks: self.rows.div_ceil(most / n) })
    }

    /// Few of many, which fit a block.
    fn select(&self, caps: &Caps) -> Result<SortPlan, Reason> {
        let most = block_pairs(self.dtype);
        if self.cols <= most {
            return Err(format!("a row of {} elements fits a block", self.cols).into());
        }
        if !self.both {
            return Err("only values or only positions are wanted".into());
        }
        if self.keep > most / 2 {
            return Err(format!("{} elements are kept", self.keep).into());
        }
        if self.cols > u32::MAX as usize {
            return Err("positions beyond 32 bits".into());
        }
        Ok(SortPlan::Select { splits: self.splits(caps) })
    }

    /// Parts of a row that blocks select from.
    pub(super) fn splits(&self, caps: &Caps) -> usize {
        let fill = caps.target_blocks();
        let most = self.cols / PART.max(16 * self.keep);
        if self.rows < fill { fill.div_ceil(self.rows).min(most).max(1) } else { 1 }
    }
}

impl Problem for SortProblem {
    type Plan = SortPlan;

    const VARIANTS: &'static [Variant] = &[
        Variant { name: "block", source: SORT },
        Variant { name: "select", source: SORT },
        Variant { name: "radix_block", source: RADIX },
        Variant { name: "radix", source: RADIX },
        Variant { name: "radix_scan", source: RADIX },
    ];

    fn plan(&self, variant: usize, caps: &Caps) -> Result<SortPlan, Reason> {
        let Some(n) = self.rows.checked_mul(self.cols) else { return Err(too_many()) };
        let key = key_of(self.dtype);
        match variant {
            0 => self.block(),
            1 => self.select(caps),
            2 => RadixPlan::block(self.rows, n, key).map(SortPlan::Radix),
            3 => RadixPlan::tiles(self.rows, n, key, false).map(SortPlan::Radix),
            _ => RadixPlan::tiles(self.rows, n, key, true).map(SortPlan::Radix),
        }
    }

    fn prefers(&self, variant: usize, _: &Caps) -> bool {
        variant != 1 || self.keep * 4 <= self.cols
    }

    fn key(&self) -> Option<&dyn ProblemKey> {
        Some(self)
    }
}

/// How unsigned keys are sorted by their digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RadixPlan {
    /// A block for each row.
    Block,
    /// A pass over the tiles of each row per digit; the counts of a row's tiles are summed by every block, or (`scan`) by kernels of their own.
    Tiles { tiles: usize, scan: bool },
}

impl RadixPlan {
    /// The best for `n` keys of a type in `rows` rows of one length.
    pub(super) fn new(rows: usize, n: usize, key: DType) -> Result<Self, Reason> {
        Self::block(rows, n, key)
            .or_else(|_| Self::tiles(rows, n, key, false))
            .or_else(|_| Self::tiles(rows, n, key, true))
    }

    fn block(rows: usize, n: usize, key: DType) -> Result<Self, Reason> {
        let (cols, most) = (n / rows.max(1), radix_keys(key)[0]);
        if cols > most {
            return Err(format!("a row of {cols} keys is more than a block takes, {most}").into());
        }
        // Positions count over all rows.
        if n > u32::MAX as usize {
            return Err(too_many());
        }
        Ok(RadixPlan::Block)
    }

    fn tiles(rows: usize, n: usize, key: DType, scan: bool) -> Result<Self, Reason> {
        if n > u32::MAX as usize {
            return Err(too_many());
        }
        if Self::block(rows, n, key).is_ok() {
            return Err("a block sorts a row alone".into());
        }
        let tiles = (n / rows.max(1)).div_ceil(radix_keys(key)[1]);
        if !scan && tiles > FEW_TILES {
            return Err(format!("the counts of {tiles} tiles are too many for every block to sum").into());
        }
        Ok(RadixPlan::Tiles { tiles, scan })
    }
}

fn too_many() -> Reason {
    "a sort of more than 2^32 elements".into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::geometry::tests::{applicable, chosen, cpu, gpu};

    fn rows(rows: usize, cols: usize, keep: usize) -> SortProblem {
        SortProblem { rows, cols, keep, dtype: DType::F32, both: true }
    }

    #[test]
    fn rows_are_sorted_in_blocks_or_by_digits() {
        let cases = [
            (rows(4096, 1024, 1024), "block"),
            (rows(1, 1, 1), "block"),
            (rows(7, 2048, 8), "block"),
            (rows(7, 2049, 8), "select"),
            (rows(1, 1 << 24, 1024), "select"),
            (rows(1, 1 << 24, 1025), "radix_scan"),
            (SortProblem { both: false, ..rows(64, 1 << 16, 8) }, "radix"),
            (SortProblem { dtype: DType::F64, ..rows(8, 2048, 2048) }, "radix_block"),
            (rows(8, 4096, 4096), "radix_block"),
            (rows(8, 4097, 4097), "radix"),
            (rows(1, 1 << 20, 1 << 20), "radix_scan"),
            (rows(2, 1 << 31, 1 << 31), "none"),
            (rows(usize::MAX, 4096, 4096), "none"),
        ];
        for (p, name) in cases {
            assert_eq!((chosen(&p, &gpu()), chosen(&p, &cpu())), (name, name), "{p:?}");
        }
    }

    #[test]
    fn digits_sort_all_rows() {
        assert_eq!(applicable(&rows(4096, 100, 100), &gpu()), ["block", "radix_block"]);
        assert_eq!(applicable(&rows(3, 5000, 5000), &gpu()), ["radix", "radix_scan"]);
        assert_eq!(applicable(&rows(1, 1 << 20, 8), &gpu()), ["select", "radix_scan"]);
        assert!(rows(2, 4096, 4096).plan(0, &gpu()).is_err_and(|e| e.contains("does not fit")));
        assert!(rows(1, 1 << 32, 1 << 32).plan(4, &gpu()).is_err_and(|e| e.contains("2^32")));
    }

    #[test]
    fn blocks_share_long_rows() {
        assert_eq!(rows(4096, 100, 100).plan(0, &gpu()), Ok(SortPlan::Block { n: 128, blocks: 256 }));
        assert_eq!(rows(1, 1 << 24, 8).plan(1, &gpu()), Ok(SortPlan::Select { splits: 1056 }));
        assert_eq!(rows(1, 1 << 24, 8).plan(1, &cpu()), Ok(SortPlan::Select { splits: 32 }));
        assert_eq!(rows(5000, 1 << 14, 8).plan(1, &gpu()), Ok(SortPlan::Select { splits: 1 }));
    }

    #[test]
    fn keys_are_sorted_in_a_block_or_by_passes() {
        let new = |rows, n| RadixPlan::new(rows, n, DType::I32);
        assert_eq!(new(1, 4096), Ok(RadixPlan::Block));
        assert_eq!(new(7, 7 * 4096), Ok(RadixPlan::Block));
        assert_eq!(new(1, 4097), Ok(RadixPlan::Tiles { tiles: 1, scan: false }));
        assert_eq!(new(1, 6145), Ok(RadixPlan::Tiles { tiles: 2, scan: false }));
        assert_eq!(new(1, 6144 * 128), Ok(RadixPlan::Tiles { tiles: 128, scan: true }));
        for rows in [1, 1 << 21, 1 << 33, 1 << 60] {
            assert!(new(rows, rows.max(1 << 33)).is_err_and(|e| e.contains("2^32")), "{rows}");
        }
        assert_eq!(RadixPlan::new(1, 2049, DType::I64), Ok(RadixPlan::Tiles { tiles: 1, scan: false }));
    }
}
