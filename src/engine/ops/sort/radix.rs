//! Prefix sums and the stable sort that scatters, argsort and random permutations share.

use crate::buffer::{Buffer, View};
use crate::driver::Ptr;
use crate::dtype::DType;
use crate::engine::Engine;
use crate::engine::launch::{Grid, int, long};
use crate::engine::ops::sort::plan::{RadixPlan, TILE};
use crate::error::{GpuError, Result};
use crate::spec::kernels::sort::*;

/// Bits that a pass orders by, and their values (`GK_DIGITS`).
const DIGIT_BITS: u32 = 8;
const DIGITS: usize = 1 << DIGIT_BITS;
/// Pairs in ascending order of their keys, equal keys in the order of their positions.
#[derive(Debug)]
pub(crate) struct SortedPairs {
    /// Unsigned keys, i32 or i64 as they came.
    pub(crate) keys: Buffer,
    /// Where each key was before (unsigned 32-bit in an i32 buffer).
    pub(crate) positions: Buffer,
}

impl Engine {
    /// Splits `n` elements over blocks for a two-step prefix sum: number of blocks (at most 1024) and elements per block.
    pub(crate) fn scan_chunks(&self, n: usize) -> (usize, usize) {
        let chunk = n.div_ceil(1024).max(1).next_multiple_of(TILE);
        (n.div_ceil(chunk).max(1), chunk)
    }

    /// Exclusive prefix sums of a contiguous i32 view of `n` elements (negative ones count as 0): `n + 1` values in i64, the last one the sum.
    pub(crate) fn prefix_sums(&self, x: &View<'_>) -> Result<Buffer> {
        let n = x.numel();
        let out = self.scratch(DType::I64, n + 1)?;
        let (blocks, chunk) = self.scan_chunks(n);
        let partial = self.scratch(DType::I64, blocks)?;
        let (n, chunk) = (n as i64, chunk as i64);
        let grid = Grid::Blocks([blocks, 1, 1]);
        let (x, partial) = (self.arg_in(x), self.arg_in(&partial.view()));
        // One block needs no sums of others.
        if blocks > 1 {
            self.launch(&SCAN_SUMS, DType::I64, "", grid, &ScanSumsArgs { x, partial, n, chunk })?;
        }
        let args = ScanApplyArgs { x, partial, out: self.arg_in(&out.view()), n, chunk };
        self.launch(&SCAN_APPLY, DType::I64, "", grid, &args)?;
        Ok(out)
    }

    /// Stable ascending sort of the unsigned keys in a contiguous view (i32: 32 bits, i64: 64 bits), of which only the lowest `bits` differ.
    /// The positions are 0, 1, ... before the sort. Exact and deterministic; cost O(n * bits / 8). The keys are left as they are.
    pub(crate) fn sort_pairs(&self, op: &'static str, keys: &View<'_>, bits: u32) -> Result<SortedPairs> {
        self.sort_row_pairs(op, keys, 1, bits)
    }

    /// The same for each of `rows` equal parts of the keys; positions count over all rows.
    pub(crate) fn sort_row_pairs(
        &self,
        op: &'static str,
        keys: &View<'_>,
        rows: usize,
        bits: u32,
    ) -> Result<SortedPairs> {
        let device = self.device_caps().id;
        let plan = RadixPlan::new(rows, keys.numel()).map_err(|why| GpuError::Unsupported {
            op,
            device,
            why: why.into_owned().into(),
        })?;
        self.sort_rows(keys, rows, bits, plan)
    }

    /// Room for `n` sorted pairs.
    fn pairs(&self, dtype: DType, n: usize) -> Result<SortedPairs> {
        Ok(SortedPairs { keys: self.scratch(dtype, n)?, positions: self.scratch(DType::I32, n)? })
    }

    /// The same for each of `rows` equal parts of the keys, at most 2^32; positions count over all rows.
    pub(super) fn sort_rows(
        &self,
        keys: &View<'_>,
        rows: usize,
        bits: u32,
        plan: RadixPlan,
    ) -> Result<SortedPairs> {
        let (dtype, n) = (keys.dtype(), keys.numel());
        let out = self.pairs(dtype, n)?;
        if n == 0 {
            return Ok(out);
        }
        // At least one pass, so that positions are written.
        let bits = bits.clamp(1, 8 * dtype.size() as u32);
        let RadixPlan::Tiles { tiles, scan } = plan else {
            let args = RadixSmallArgs {
                keys: self.arg_in(keys),
                keys_out: self.arg_in(&out.keys.view()),
                positions_out: self.arg_in(&out.positions.view()),
                n: int(n),
                bits: bits as i32,
            };
            self.launch(&RADIX_SMALL, dtype, "", Grid::Blocks([1, 1, 1]), &args)?;
            return Ok(out);
        };
        self.sort_passes(keys, out, [rows, tiles], bits, scan)
    }

    /// A pass per digit over the tiles of all rows; `scan`: counters are summed by prefix sums.
    fn sort_passes(
        &self,
        keys: &View<'_>,
        mut out: SortedPairs,
        [rows, tiles]: [usize; 2],
        bits: u32,
        scan: bool,
    ) -> Result<SortedPairs> {
        let (dtype, n) = (keys.dtype(), keys.numel());
        let cols = long(n / rows.max(1));
        let grid = Grid::Blocks([rows * tiles, 1, 1]);
        let buffer = self.scratch(DType::I32, DIGITS * rows * tiles)?;
        let (counts, tiles) = (self.arg_in(&buffer.view()), long(tiles));
        let mut other = if bits > DIGIT_BITS { Some(self.pairs(dtype, n)?) } else { None };
        for shift in (0..bits).step_by(DIGIT_BITS as usize) {
            let from = if shift == 0 { *keys } else { out.keys.view() };
            let keys = self.arg_in(&from);
            let shift = shift as i32;
            self.launch(&RADIX_COUNT, dtype, "", grid, &RadixCountArgs { keys, counts, cols, tiles, shift })?;
            let offsets = scan.then(|| self.prefix_sums(&buffer.view())).transpose()?;
            // The first pass reads the caller's keys and fills `out`; later ones go back and forth.
            let positions = if shift == 0 { Ptr::NULL } else { self.arg_in(&out.positions.view()) };
            let to = match &other {
                Some(o) if shift > 0 => o,
                _ => &out,
            };
            let args = RadixScatterArgs {
                keys,
                positions,
                counts,
                offsets: self.arg_opt(offsets.as_ref().map(Buffer::view).as_ref()),
                keys_out: self.arg_in(&to.keys.view()),
                positions_out: self.arg_in(&to.positions.view()),
                cols,
                tiles,
                shift,
            };
            self.launch(&RADIX_SCATTER, dtype, "", grid, &args)?;
            if let (Some(o), true) = (&mut other, shift > 0) {
                std::mem::swap(o, &mut out);
            }
        }
        Ok(out)
    }
}
