//! Rows of whole aligned 16-byte items: how they lie over threads, and how long ones are cut into runs.

use crate::device::Caps;
use crate::dtype::DType;
use crate::engine::geometry::Alignment;
use crate::engine::launch::{Grid, LANES, int, pow2};
use crate::engine::plan::Reason;

/// Items of a run that a thread holds.
pub(super) const KEEP: usize = 4;
/// Longest run that is summed by itself, and how much of it a thread should have at least: 16-byte items.
const SUM_RUN: usize = 4096;
const SUM_KEEP: usize = 16;
/// Bytes per multiprocessor that caches keep between two reads of a set.
const SET_CACHE: usize = 256 << 10;

/// Rows of `items` cut into runs of `chunk` items.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Cut {
    pub(super) runs: usize,
    pub(super) items: usize,
    pub(super) splits: usize,
    chunk: usize,
    /// Binary logarithm of the threads that share a run.
    bits: u32,
}

/// A cut as the kernels take it.
pub(super) struct CutArgs {
    pub(super) runs: i32,
    pub(super) items: i32,
    pub(super) splits: i32,
    pub(super) chunk: i32,
    pub(super) bits: i32,
}

impl Cut {
    /// Runs of rows of `cols` elements that fit in registers. An error unless the rows consist of aligned items.
    pub(super) fn new([rows, cols]: [usize; 2], a: Alignment, caps: &Caps) -> Result<Cut, Reason> {
        if cols == 0 || !a.whole(cols) {
            return Err(
                format!("rows of {cols} elements do not consist of whole aligned 16-byte items").into()
            );
        }
        let items = cols / a.vector();
        let chunk = items.div_ceil(items.div_ceil(KEEP * LANES));
        let splits = items.div_ceil(chunk);
        // Indices of the last block must fit an i32 too.
        let runs = rows.checked_mul(splits).filter(|r| r.checked_add(LANES).is_some_and(fits_i32));
        let Some(runs) = runs.filter(|_| fits_i32(items)) else { return Err(too_many()) };
        Ok(Cut { runs, items, splits, chunk, bits: lane_bits(runs, chunk, KEEP, caps) })
    }

    /// Runs that are summed: longer ones, over few lanes, so that combining the lanes costs little.
    pub(super) fn of_sums([rows, cols]: [usize; 2], a: Alignment, caps: &Caps) -> Result<Cut, Reason> {
        let cut = Cut::new([rows, cols], a, caps)?;
        let chunk = cut.items.div_ceil(cut.items.div_ceil(SUM_RUN));
        let splits = cut.items.div_ceil(chunk);
        let runs = rows * splits;
        Ok(Cut { runs, chunk, splits, bits: lane_bits(runs, chunk, SUM_KEEP, caps), ..cut })
    }

    pub(super) fn chunk_elements(&self, dt: DType) -> usize {
        self.chunk * (16 / dt.size())
    }

    pub(super) fn grid(&self) -> Grid {
        Grid::Blocks([self.runs.div_ceil(LANES >> self.bits), 1, 1])
    }

    pub(super) fn args(&self) -> CutArgs {
        CutArgs {
            runs: int(self.runs),
            items: int(self.items),
            splits: int(self.splits),
            chunk: int(self.chunk),
            bits: self.bits as i32,
        }
    }
}

/// Binary logarithm of the lanes for rows of `items`, `keep` of them per lane, more lanes where the rows are few.
pub(super) fn lane_bits(rows: usize, items: usize, keep: usize, caps: &Caps) -> u32 {
    let mut lanes = pow2(items.div_ceil(keep), LANES).max(pow2(items, 8));
    while lanes < pow2(items, LANES) && rows * lanes < caps.target_blocks() * LANES / 2 {
        lanes *= 2;
    }
    lanes.trailing_zeros()
}

/// Groups of `share` planes of `items`, which a block reads twice, the second time from a cache.
#[derive(Debug, Clone, Copy)]
pub(super) struct Groups {
    pub(super) count: usize,
    pub(super) share: usize,
    pub(super) items: usize,
    /// What is read of a group at a time.
    pub(super) bytes: usize,
}

impl Groups {
    /// Binary logarithm of the lanes per plane.
    pub(super) fn bits(&self) -> Result<u32, Reason> {
        if !self.count.checked_mul(self.share).is_some_and(fits_i32) || !fits_i32(self.items) {
            return Err(too_many());
        }
        // The number of lanes with the fewest rounds; of equals the largest.
        let rounds = |bits: &u32| self.share.div_ceil(LANES >> bits) * self.items.div_ceil(1 << bits);
        Ok((3..=LANES.trailing_zeros()).rev().min_by_key(rounds).unwrap_or(3))
    }

    /// Whether there are enough groups for all multiprocessors, and the second read can come from a cache.
    pub(super) fn busy(&self, caps: &Caps) -> bool {
        self.count >= 2 * caps.compute_units as usize
            && self.share * self.items >= LANES
            && self.bytes <= 2 * SET_CACHE
    }

    /// Blocks: short groups are taken by short-lived blocks, of long ones no more at a time than the caches hold.
    pub(super) fn blocks(&self, caps: &Caps) -> usize {
        let (units, resident) = (caps.compute_units as usize, SET_CACHE / self.bytes.max(1));
        if resident > 4 { self.count } else { (units * resident.max(2)).min(self.count) }
    }
}

pub(super) fn fits_i32(n: usize) -> bool {
    i32::try_from(n).is_ok()
}

pub(super) fn too_many() -> Reason {
    "counts beyond 32 bits".into()
}
