//! How scans and reductions of segments run.

use crate::device::Caps;
use crate::engine::geometry::Alignment;
use crate::engine::launch::{Grid, LANES, pow2};
use crate::engine::plan::{Problem, Reason, Variant};
use crate::engine::tune::ProblemKey;

/// Elements per thread (`GK_SCAN_RUN`) and per tile of a row (`GK_SPAN`).
const RUN: usize = 8;
const SPAN: usize = RUN * LANES;
/// Most chunks of one row, and of one column: a block adds the sums of those before it.
const CHUNKS: usize = 1024;
const COLUMN_CHUNKS: usize = 256;

const SCAN: &str = "kernels/common/scan/scan.c";
const SEGMENT: &str = "kernels/common/scan/segment.c";

/// Prefix sums along `size` of contiguous operands `[outer, size, inner]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct ScanProblem {
    pub(crate) outer: usize,
    pub(crate) size: usize,
    pub(crate) inner: usize,
    pub(crate) reverse: bool,
    pub(crate) operands: Alignment,
}

/// How prefix sums run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ScanPlan {
    /// `per` whole rows per block.
    Packed { per: usize, wide: bool, blocks: usize },
    /// A block per row, or per chunk of one, whose sums are found first.
    Rows { chunk: usize, splits: usize, wide: bool },
    /// `tx` columns per block, or a chunk of them, whose sums are found first.
    Columns { tx: usize, chunk: usize, splits: usize, blocks: usize },
}

impl ScanProblem {
    /// Whether runs of elements may be moved in 16-byte pieces where they lie on 16 bytes.
    fn vectors(&self) -> bool {
        self.operands.dtype.is_float() && self.operands.aligned()
    }

    fn unsplit(&self) -> Reason {
        format!("[{}, {}, {}] keeps the device busy unsplit", self.outer, self.size, self.inner).into()
    }

    fn packed(&self) -> Result<ScanPlan, Reason> {
        if self.size > SPAN {
            return Err(format!("a row of {} elements is longer than a tile", self.size).into());
        }
        let per = SPAN / self.size;
        let end = if self.reverse { self.outer * self.size } else { 0 };
        let wide = self.vectors() && (per * self.size).is_multiple_of(RUN) && end.is_multiple_of(RUN);
        Ok(ScanPlan::Packed { per, wide, blocks: self.outer.div_ceil(per) })
    }

    fn rows(&self, split: bool, caps: &Caps) -> Result<ScanPlan, Reason> {
        let (fill, rows, cols) = (caps.target_blocks(), self.outer, self.size);
        let idle = split && rows < fill;
        let splits = if idle { (fill * 2).div_ceil(rows).min(cols / (2 * SPAN)).clamp(1, CHUNKS) } else { 1 };
        if split && splits == 1 {
            return Err(self.unsplit());
        }
        let chunk = cols.div_ceil(splits).next_multiple_of(SPAN);
        let wide = self.vectors() && cols.is_multiple_of(RUN);
        Ok(ScanPlan::Rows { chunk, splits: cols.div_ceil(chunk), wide })
    }

    fn columns(&self, split: bool, caps: &Caps) -> Result<ScanPlan, Reason> {
        let tx = pow2(self.inner, 32);
        let (strips, tile) = (self.outer * self.inner.div_ceil(tx), LANES / tx * RUN);
        let (fill, most) = (caps.target_blocks(), self.size / (2 * tile));
        let idle = split && strips < fill;
        let splits = if idle { (fill * 2).div_ceil(strips).min(most).clamp(1, COLUMN_CHUNKS) } else { 1 };
        if split && splits == 1 {
            return Err(self.unsplit());
        }
        let chunk = self.size.div_ceil(splits).next_multiple_of(tile);
        let splits = self.size.div_ceil(chunk);
        Ok(ScanPlan::Columns { tx, chunk, splits, blocks: strips * splits })
    }
}

impl Problem for ScanProblem {
    type Plan = ScanPlan;

    const VARIANTS: &'static [Variant] = &[
        Variant { name: "packed_rows", source: SCAN },
        Variant { name: "rows_split", source: SCAN },
        Variant { name: "rows", source: SCAN },
        Variant { name: "columns_split", source: SCAN },
        Variant { name: "columns", source: SCAN },
    ];

    fn plan(&self, variant: usize, caps: &Caps) -> Result<ScanPlan, Reason> {
        match (variant, self.inner) {
            (0, 1) => self.packed(),
            (1, 1) => self.rows(true, caps),
            (2, 1) => self.rows(false, caps),
            (_, 1) => Err("the axis is the innermost".into()),
            (3, _) => self.columns(true, caps),
            (4, _) => self.columns(false, caps),
            _ => Err("the axis is not the innermost".into()),
        }
    }

    fn key(&self) -> Option<&dyn ProblemKey> {
        Some(self)
    }
}

/// Reductions of `count` segments of the rows of `[rows, cols]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct SegmentProblem {
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    pub(crate) count: usize,
    pub(crate) operands: Alignment,
}

/// How segments are reduced: groups of `tx * ty` threads take a segment, or one of its parts, and `tx` columns (or 16-byte items of them).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SegmentPlan {
    pub(crate) wide: bool,
    pub(crate) tx: usize,
    pub(crate) ty: usize,
    /// Groups side by side over the columns.
    pub(crate) tiles: usize,
    /// Parts of a segment; their results are combined.
    pub(crate) splits: usize,
}

impl SegmentPlan {
    /// Blocks for that many segments.
    pub(crate) fn grid(&self, segments: usize) -> Grid {
        let per_block = LANES / (self.tx * self.ty);
        Grid::Blocks([(segments * self.tiles * self.splits).div_ceil(per_block), 1, 1])
    }
}

impl SegmentProblem {
    /// The plan that keeps the device busy.
    pub(crate) fn fill_device(&self, caps: &Caps) -> SegmentPlan {
        let wide = self.operands.whole(self.cols);
        let items = if wide { self.cols / self.operands.vector() } else { self.cols };
        let tx = pow2(items, 32);
        // Rows per segment, as if all were alike: a lane takes 32 of them, which spares exchanges, or about four where that leaves the device idle.
        let rows = self.rows / self.count.max(1);
        let (tiles, fill) = (items.div_ceil(tx), caps.target_blocks());
        let blocks = |ty: usize| (self.count * tiles).div_ceil(LANES / (tx * ty));
        // A CPU reduces a segment alone; PoCL mixes up values that cross barriers in this kernel.
        let most = if caps.is_cpu { 1 } else { pow2(rows.div_ceil(4), LANES / tx) };
        let mut ty = pow2(rows.div_ceil(32), most);
        while ty < most && blocks(ty) < fill {
            ty *= 2;
        }
        let blocks = blocks(ty);
        let splits = if blocks < fill {
            (fill * 2).div_ceil(blocks.max(1)).min(rows / (ty * 8)).clamp(1, COLUMN_CHUNKS)
        } else {
            1
        };
        SegmentPlan { wide, tx, ty, tiles, splits }
    }
}

impl Problem for SegmentProblem {
    type Plan = SegmentPlan;

    const VARIANTS: &'static [Variant] =
        &[Variant { name: "split", source: SEGMENT }, Variant { name: "segments", source: SEGMENT }];

    fn plan(&self, variant: usize, caps: &Caps) -> Result<SegmentPlan, Reason> {
        let plan = self.fill_device(caps);
        match (variant, plan.splits) {
            (0, 1) => Err(format!("{} segments keep the device busy unsplit", self.count).into()),
            (0, _) => Ok(plan),
            _ => Ok(SegmentPlan { splits: 1, ..plan }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::DType;
    use crate::engine::geometry::tests::{applicable, chosen, cpu, gpu};

    fn scan(outer: usize, size: usize, inner: usize) -> ScanProblem {
        ScanProblem { outer, size, inner, reverse: false, operands: Alignment::full(DType::F32) }
    }

    fn segments(rows: usize, cols: usize, count: usize) -> SegmentProblem {
        SegmentProblem { rows, cols, count, operands: Alignment::full(DType::F32) }
    }

    #[test]
    fn short_rows_share_a_block_and_long_ones_are_cut() {
        let cases = [
            (scan(4096, 1024, 1), "packed_rows", "packed_rows"),
            (scan(1, 1, 1), "packed_rows", "packed_rows"),
            (scan(4096, 2049, 1), "rows", "rows"),
            (scan(1, 1 << 24, 1), "rows_split", "rows_split"),
            (scan(100, 1 << 20, 1), "rows_split", "rows"),
            (scan(32, 100, 64), "columns", "columns"),
            (scan(1, 1 << 20, 8), "columns_split", "columns_split"),
        ];
        for (p, on_gpu, on_cpu) in cases {
            assert_eq!((chosen(&p, &gpu()), chosen(&p, &cpu())), (on_gpu, on_cpu), "{p:?}");
        }
        assert_eq!(applicable(&scan(4096, 1024, 1), &gpu()), ["packed_rows", "rows"]);
        assert_eq!(applicable(&scan(1, 1 << 24, 1), &gpu()), ["rows_split", "rows"]);
        assert_eq!(applicable(&scan(1, 1 << 20, 8), &gpu()), ["columns_split", "columns"]);
        assert!(scan(2, 3, 4).plan(2, &gpu()).is_err_and(|e| e.contains("innermost")));
    }

    #[test]
    fn pieces_of_16_bytes_need_floats_on_16_bytes() {
        let wide = |p: ScanProblem| matches!(p.plan(0, &gpu()), Ok(ScanPlan::Packed { wide: true, .. }));
        assert!(wide(scan(7, 64, 1)));
        assert!(!wide(scan(7, 61, 1)));
        assert!(wide(ScanProblem { reverse: true, ..scan(8, 64, 1) }));
        assert!(!wide(ScanProblem { reverse: true, ..scan(7, 3, 1) }));
        assert!(!wide(ScanProblem { operands: Alignment::full(DType::I32), ..scan(7, 64, 1) }));
        assert!(!wide(ScanProblem {
            operands: Alignment { phase: 1, ..scan(1, 1, 1).operands },
            ..scan(7, 64, 1)
        }));
    }

    #[test]
    fn few_long_segments_are_cut() {
        let cases = [
            (segments(1 << 20, 64, 4), "split", "split"),
            (segments(1 << 20, 64, 1 << 16), "segments", "segments"),
            (segments(0, 64, 8), "segments", "segments"),
            (segments(8, 1, 1), "segments", "segments"),
        ];
        for (p, on_gpu, on_cpu) in cases {
            assert_eq!((chosen(&p, &gpu()), chosen(&p, &cpu())), (on_gpu, on_cpu), "{p:?}");
        }
        assert_eq!(applicable(&segments(1 << 20, 64, 4), &gpu()), ["split", "segments"]);
        assert!(segments(1 << 20, 64, 4).plan(1, &gpu()).is_ok_and(|p| p.splits == 1));
        assert!(segments(1 << 20, 64, 4).plan(1, &cpu()).is_ok_and(|p| p.ty == 1));
        // Many short segments: a lane takes all rows, and exchanges nothing.
        assert!(segments(1 << 19, 128, 1 << 15).plan(1, &gpu()).is_ok_and(|p| p.ty == 1));
    }
}
