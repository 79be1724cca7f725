//! Prefix sums and the stable sort that scatters, argsort and random permutations share.

use crate::buffer::{Buffer, View};
use crate::driver::Ptr;
use crate::dtype::DType;
use crate::engine::Engine;
use crate::engine::launch::{Grid, int, long};
use crate::engine::ops::sort::plan::RadixPlan;
use crate::error::{GpuError, Result};
use crate::spec::BLOCK;
use crate::spec::kernels::sort::*;

/// Bits that a pass orders by, and their values (`GK_DIGITS`).
const DIGIT_BITS: u32 = 8;
const DIGITS: usize = 1 << DIGIT_BITS;
/// Elements that a block takes at a time in a prefix sum (`GK_SCANNED * GK_BLOCK`).
const SCANNED: usize = 8 * BLOCK as usize;
/// Tiles whose counts are read at a time (`GK_AHEAD`).
const SUMMED: usize = 8;

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
        let chunk = n.div_ceil(1024).max(1).next_multiple_of(SCANNED);
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
        let plan = RadixPlan::new(rows, keys.numel(), keys.dtype()).map_err(|why| GpuError::Unsupported {
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
            let cols = n / rows;
            let args = RadixRowsArgs {
                keys: self.arg_in(keys),
                keys_out: self.arg_in(&out.keys.view()),
                positions_out: self.arg_in(&out.positions.view()),
                n: int(cols),
                each: int(cols.div_ceil(BLOCK as usize)),
                bits: bits as i32,
            };
            self.launch(&RADIX_ROWS, dtype, "", Grid::Blocks([rows, 1, 1]), &args)?;
            return Ok(out);
        };
        self.sort_passes(keys, out, [rows, tiles], bits, scan)
    }

    /// A pass per digit over the tiles of all rows; `scan`: counts are summed by kernels of their own.
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
        let counts = self.arg_in(&buffer.view());
        let mut other = if bits > DIGIT_BITS { Some(self.pairs(dtype, n)?) } else { None };
        for shift in (0..bits).step_by(DIGIT_BITS as usize) {
            let from = if shift == 0 { *keys } else { out.keys.view() };
            let (keys, bit) = (self.arg_in(&from), shift as i32);
            let args = RadixCountArgs { keys, counts, cols, tiles: long(tiles), shift: bit };
            self.launch(&RADIX_COUNT, dtype, "", grid, &args)?;
            if scan {
                self.radix_places(&buffer, dtype, cols, [rows, tiles])?;
            }
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
                keys_out: self.arg_in(&to.keys.view()),
                positions_out: self.arg_in(&to.positions.view()),
                cols,
                tiles: long(tiles),
                shift: bit,
                count: i32::from(!scan),
            };
            self.launch(&RADIX_SCATTER, dtype, "", grid, &args)?;
            if let (Some(o), true) = (&mut other, shift > 0) {
                std::mem::swap(o, &mut out);
            }
        }
        Ok(out)
    }

    /// Makes places of counts of digits, in parts of about as many tiles as a row has parts.
    fn radix_places(
        &self,
        counts: &Buffer,
        dtype: DType,
        cols: i64,
        [rows, tiles]: [usize; 2],
    ) -> Result<()> {
        let per = tiles.isqrt().next_multiple_of(SUMMED);
        let parts = tiles.div_ceil(per);
        let sums = self.scratch(DType::I32, DIGITS * rows * parts)?;
        let (sums, counts) = (self.arg_in(&sums.view()), self.arg_in(&counts.view()));
        let (tiles, per, grid) = (long(tiles), long(per), Grid::Blocks([rows * parts, 1, 1]));
        let parts = long(parts);
        self.launch(&RADIX_SUMS, dtype, "", grid, &RadixSumsArgs { counts, sums, tiles, per, parts })?;
        let args = RadixPlacesArgs { sums, counts, cols, tiles, per, parts };
        self.launch(&RADIX_PLACES, dtype, "", grid, &args)
    }
}
