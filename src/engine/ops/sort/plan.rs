//! How rows and keys are sorted.

use crate::device::Caps;
use crate::dtype::DType;
use crate::engine::plan::{Problem, Reason, Variant};
use crate::engine::tune::ProblemKey;
use crate::spec::BLOCK;

/// Keys per block of the radix sort, and of the sort in one block (`GK_KEY_TILE`, `GK_SMALL_KEYS * GK_BLOCK`).
pub(super) const TILE: usize = 8 * BLOCK as usize;
const SMALL: usize = 4 * BLOCK as usize;
/// Tiles of a row whose counters each block sums for itself, which takes less time than the launches of a prefix sum.
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
        match variant {
            0 => self.block(),
            1 => self.select(caps),
            2 => RadixPlan::block(self.rows, n).map(SortPlan::Radix),
            3 => RadixPlan::tiles(self.rows, n, false).map(SortPlan::Radix),
            _ => RadixPlan::tiles(self.rows, n, true).map(SortPlan::Radix),
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
    /// In one block.
    Block,
    /// A pass over the tiles of each row per digit; the counters of a row's tiles are summed by every block, or (`scan`) by prefix sums.
    Tiles { tiles: usize, scan: bool },
}

impl RadixPlan {
    /// The best for `n` keys in `rows` rows of one length.
    pub(super) fn new(rows: usize, n: usize) -> Result<Self, Reason> {
        Self::block(rows, n).or_else(|_| Self::tiles(rows, n, false)).or_else(|_| Self::tiles(rows, n, true))
    }

    fn block(rows: usize, n: usize) -> Result<Self, Reason> {
        if n > SMALL || rows != 1 {
            return Err(format!("{rows} rows of {n} keys in all do not fit a block").into());
        }
        Ok(RadixPlan::Block)
    }

    fn tiles(rows: usize, n: usize, scan: bool) -> Result<Self, Reason> {
        if n > u32::MAX as usize {
            return Err(too_many());
        }
        let tiles = (n / rows.max(1)).div_ceil(TILE);
        if !scan && tiles > FEW_TILES {
            return Err(format!("the counters of {tiles} tiles take prefix sums").into());
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
            (SortProblem { dtype: DType::F64, ..rows(8, 2048, 2048) }, "radix"),
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
        let radix = ["radix", "radix_scan"];
        assert_eq!(applicable(&rows(4096, 100, 100), &gpu())[1..], radix);
        assert_eq!(applicable(&rows(1, 100, 100), &gpu()), ["block", "radix_block", "radix", "radix_scan"]);
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
        assert_eq!(RadixPlan::new(1, 1024), Ok(RadixPlan::Block));
        assert_eq!(RadixPlan::new(1, 1025), Ok(RadixPlan::Tiles { tiles: 1, scan: false }));
        assert_eq!(RadixPlan::new(2, 1024), Ok(RadixPlan::Tiles { tiles: 1, scan: false }));
        assert_eq!(RadixPlan::new(1, 1 << 20), Ok(RadixPlan::Tiles { tiles: 512, scan: true }));
        assert!(RadixPlan::new(1, 1 << 33).is_err());
    }
}
