//! How normalization runs, forward.

use super::cut::{Cut, Groups, KEEP, lane_bits};
use crate::device::Caps;
use crate::engine::geometry::{Alignment, ColumnGeometry, RowGeometry, side_by_side};
use crate::engine::launch::{LANES, pow2};
use crate::engine::plan::{Problem, Reason, Variant};
use crate::engine::tune::ProblemKey;

/// 16-byte items of an aligned row that a thread of the kernel for longer ones holds.
const KEEP_LONG: usize = 2 * KEEP;
/// Values of a row that a thread of `norm_rows` holds; that of `norm_rows_looped` holds twice as many.
const VALUES: usize = 32;
/// Groups shorter than this are taken in one pass: 16-byte items.
const SHORT_GROUP: usize = KEEP_LONG * LANES;
/// Inner axes shorter than this are reduced as columns of [N, C * S].
pub(in crate::engine::ops) const SHORT_PLANE: usize = 32;

const GENERAL: &str = "kernels/common/norm/norm.c";
const ALIGNED: &str = "kernels/common/norm/aligned.c";
pub(super) const CHANNELS_LAST: &str = "kernels/common/norm/channels_last.c";

/// Rows with statistics of their own: of layer and RMS norm, or groups of channels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct RowNormProblem {
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    /// Elements per channel; 0 where parameters are per column.
    pub(crate) inner: usize,
    /// Channels of a row.
    pub(crate) channels: usize,
    /// Of x, residual, y and sum.
    pub(crate) operands: Alignment,
    /// Whether gamma and beta begin at multiples of 16 bytes.
    pub(crate) affine_aligned: bool,
    pub(crate) rms: bool,
    pub(crate) residual: bool,
    pub(crate) sum: bool,
    /// Whether variances are written, for running statistics.
    pub(crate) var: bool,
}

/// How rows with statistics of their own are normalized.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RowNormPlan {
    /// A row of aligned items in the registers of `1 << bits` threads; `looped`: up to twice as many items each.
    AlignedRows { looped: bool, items: usize, bits: u32 },
    /// A group of planes per block, which reads it twice, the second time from a cache.
    AlignedGroups { items: usize, bits: u32 },
    /// Moments of runs of aligned items, their combination, then the map over planes.
    AlignedSplit { moments: Cut, map: Cut },
    /// Moments of runs, their combination, then the map; `affine`: parameters are read by 16-byte items, too.
    Split { geometry: RowGeometry, wide: bool, affine: bool },
    /// A row per `geometry.lanes` threads, read again where it does not fit their registers; `looped`: twice as many of them.
    Rows { geometry: RowGeometry, affine: bool, looped: bool },
}

impl RowNormProblem {
    fn aligned_rows(&self, looped: bool, caps: &Caps) -> Result<RowNormPlan, Reason> {
        if self.inner > 0 {
            return Err("parameters are per channel".into());
        }
        let Cut { items, .. } = Cut::new([self.rows, self.cols], self.operands, caps)?;
        if !self.affine_aligned {
            return Err("gamma or beta does not begin at a multiple of 16 bytes".into());
        }
        if self.sum && !self.residual {
            return Err("the sum is wanted without a residual".into());
        }
        let keep = if looped { KEEP_LONG } else { KEEP };
        if items > keep * LANES || (looped && self.residual) {
            return Err(
                format!("a row of {} elements does not fit the registers of a block", self.cols).into()
            );
        }
        Ok(RowNormPlan::AlignedRows { looped, items, bits: lane_bits(self.rows, items, keep, caps) })
    }

    /// Whether rows of aligned items keep the device busy uncut, and those of the kernel with more registers need them.
    fn prefers_aligned_rows(&self, looped: bool, caps: &Caps) -> bool {
        let items = self.cols / self.operands.vector();
        // Decoding 16-bit values twice for the mean costs more than the lanes that fewer of them leave idle.
        let decoding = self.operands.dtype.is_half() && !self.rms && items >= 2 * LANES;
        let busy = self.rows >= caps.compute_units as usize / 4 || items <= LANES;
        busy && (!looped || items > KEEP * LANES || decoding)
    }

    /// The runs whose moments are taken, and those of the map.
    fn groups(&self, caps: &Caps) -> Result<(Cut, Cut), Reason> {
        if self.inner == 0 {
            return Err("parameters are per column".into());
        }
        if self.residual || self.sum || self.var {
            return Err("a residual, its sum or variances".into());
        }
        let moments = Cut::of_sums([self.rows, self.cols], self.operands, caps)?;
        Ok((moments, Cut::new([self.rows * self.channels, self.inner], self.operands, caps)?))
    }

    /// Whether a group fits the registers of a block.
    fn short(&self) -> bool {
        self.cols / self.operands.vector() < SHORT_GROUP
    }

    /// The groups, with planes of that many 16-byte items.
    fn cached(&self, items: usize) -> Groups {
        let bytes = self.channels * items * 16;
        Groups { count: self.rows, share: self.channels, items, bytes }
    }

    fn aligned_groups(&self, caps: &Caps) -> Result<RowNormPlan, Reason> {
        let (_, Cut { items, .. }) = self.groups(caps)?;
        Ok(RowNormPlan::AlignedGroups { items, bits: self.cached(items).bits()? })
    }

    fn geometry(&self, caps: &Caps) -> RowGeometry {
        RowGeometry::new([self.rows, self.cols], VALUES, self.operands, caps)
    }

    /// Whether the items of 16 bytes are whole and aligned, and meet parameters in one access: parameters aligned likewise, or one channel per item.
    fn access(&self) -> (bool, bool) {
        let whole = self.operands.whole(self.cols);
        let affine = match self.inner {
            0 => self.affine_aligned,
            inner => inner.is_multiple_of(self.operands.vector()),
        };
        (whole, whole && affine)
    }

    fn split(&self, caps: &Caps) -> Result<RowNormPlan, Reason> {
        let (geometry, (wide, affine)) = (self.geometry(caps), self.access());
        if self.var {
            return Err("variances are written".into());
        }
        if geometry.splits == 1 {
            let (rows, cols) = (self.rows, self.cols);
            return Err(format!("{rows} rows of {cols} elements keep the device busy unsplit").into());
        }
        Ok(RowNormPlan::Split { geometry, wide, affine })
    }

    fn general(&self, looped: bool, caps: &Caps) -> RowNormPlan {
        let (geometry, (_, affine)) = (self.geometry(caps), self.access());
        RowNormPlan::Rows { geometry, affine, looped }
    }

    /// Whether a row takes more than the registers of `norm_rows`.
    fn prefers_looped(&self) -> bool {
        let w = self.operands.vector();
        self.operands.in_phase && self.cols.div_ceil(w) * w > VALUES * LANES
    }
}

impl Problem for RowNormProblem {
    type Plan = RowNormPlan;

    const VARIANTS: &'static [Variant] = &[
        Variant { name: "aligned_rows_looped", source: ALIGNED },
        Variant { name: "aligned_rows", source: ALIGNED },
        Variant { name: "aligned_groups", source: ALIGNED },
        Variant { name: "aligned_split", source: ALIGNED },
        Variant { name: "split", source: GENERAL },
        Variant { name: "rows_looped", source: GENERAL },
        Variant { name: "rows", source: GENERAL },
    ];

    fn plan(&self, variant: usize, caps: &Caps) -> Result<RowNormPlan, Reason> {
        match variant {
            0 => self.aligned_rows(true, caps),
            1 => self.aligned_rows(false, caps),
            2 => self.aligned_groups(caps),
            3 => self.groups(caps).map(|(moments, map)| RowNormPlan::AlignedSplit { moments, map }),
            4 => self.split(caps),
            _ => Ok(self.general(variant == 5, caps)),
        }
    }

    fn prefers(&self, variant: usize, caps: &Caps) -> bool {
        match variant {
            0 | 1 => self.prefers_aligned_rows(variant == 0, caps),
            2 => !self.short() && self.cached(self.inner / self.operands.vector()).busy(caps),
            3 => !self.short(),
            5 => self.prefers_looped(),
            _ => true,
        }
    }

    fn key(&self) -> Option<&dyn ProblemKey> {
        Some(self)
    }
}

/// Batch norm of `[n, c, s]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct BatchNormProblem {
    pub(crate) n: usize,
    pub(crate) c: usize,
    pub(crate) s: usize,
    pub(crate) x: Alignment,
    /// Of x, residual and y.
    pub(crate) operands: Alignment,
    /// Whether the statistics are those of the batch; else they are given.
    pub(crate) batch: bool,
}

/// How batch norm runs: the statistics, unless they are given, then the map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BatchNormPlan {
    pub(crate) stats: Option<ChannelStats>,
    pub(crate) map: BatchMap,
}

/// Whose moments are taken for the statistics of channels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ChannelStats {
    /// Chunks of rows of channels.
    ChannelsLast(FoldedRows),
    /// Columns of `[n, c * s]`.
    Columns(ColumnGeometry),
    /// Runs of planes of aligned items.
    Aligned(Cut),
    /// Runs of planes.
    Rows(RowGeometry),
}

/// The map over planes whose statistics are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BatchMap {
    /// Rows of channels.
    ChannelsLast(FoldedRows),
    Aligned(Cut),
    General {
        wide: bool,
    },
}

impl BatchNormProblem {
    fn planes(&self) -> [usize; 2] {
        [self.n * self.c, self.s]
    }

    fn general(&self) -> BatchMap {
        BatchMap::General { wide: self.operands.whole(self.s) }
    }

    fn aligned(&self, caps: &Caps) -> Result<BatchMap, Reason> {
        Cut::new(self.planes(), self.operands, caps).map(BatchMap::Aligned)
    }

    /// An error where the statistics are given.
    fn of_batch(&self) -> Result<(), Reason> {
        if self.batch { Ok(()) } else { Err("the statistics are given".into()) }
    }

    fn columns(&self, caps: &Caps) -> Result<ChannelStats, Reason> {
        self.of_batch()?;
        Ok(ChannelStats::Columns(ColumnGeometry::new([self.n, self.c * self.s], self.x, caps)))
    }

    fn aligned_stats(&self, caps: &Caps) -> Result<ChannelStats, Reason> {
        Cut::of_sums(self.planes(), self.x, caps).map(ChannelStats::Aligned)
    }

    fn rows(&self, caps: &Caps) -> ChannelStats {
        ChannelStats::Rows(RowGeometry::new(self.planes(), 16 * self.x.vector(), self.x, caps))
    }
}

impl Problem for BatchNormProblem {
    type Plan = BatchNormPlan;

    const VARIANTS: &'static [Variant] = &[
        Variant { name: "channels_last", source: CHANNELS_LAST },
        Variant { name: "columns_aligned", source: ALIGNED },
        Variant { name: "columns", source: GENERAL },
        Variant { name: "aligned", source: ALIGNED },
        Variant { name: "aligned_moments", source: ALIGNED },
        Variant { name: "rows", source: GENERAL },
    ];

    fn plan(&self, variant: usize, caps: &Caps) -> Result<BatchNormPlan, Reason> {
        let (stats, map) = match variant {
            0 => {
                let rows = channels_last([self.n, self.c, self.s], self.operands, caps)?;
                (ChannelStats::ChannelsLast(rows.sums), BatchMap::ChannelsLast(rows.map))
            }
            1 => (self.columns(caps)?, self.aligned(caps)?),
            2 => (self.columns(caps)?, self.general()),
            3 => (self.aligned_stats(caps)?, self.aligned(caps)?),
            4 => self.of_batch().and_then(|()| Ok((self.aligned_stats(caps)?, self.general())))?,
            _ => (self.rows(caps), self.general()),
        };
        Ok(BatchNormPlan { stats: self.batch.then_some(stats), map })
    }

    fn prefers(&self, variant: usize, _: &Caps) -> bool {
        variant == 0 || variant > 2 || self.s < SHORT_PLANE
    }

    fn key(&self) -> Option<&dyn ProblemKey> {
        Some(self)
    }
}

/// Rows of channels that lie side by side, alone or together in whole aligned items.
pub(super) fn channels_last(
    [n, c, s]: [usize; 3],
    operands: Alignment,
    caps: &Caps,
) -> Result<ChannelsLast, Reason> {
    if s != 1 {
        return Err(format!("channels are {s} elements apart").into());
    }
    let vector = operands.vector();
    // The fewest rows that consist of whole items together.
    let fold = (1..=vector).find(|rows| (rows * c).is_multiple_of(vector)).unwrap_or(vector);
    if !operands.whole(c * fold) || !n.is_multiple_of(fold) {
        return Err("rows of channels do not consist of whole aligned 16-byte items".into());
    }
    if fold > 1 && c < vector {
        return Err("an item of 16 bytes has more elements than there are channels".into());
    }
    if c > i32::MAX as usize / vector {
        return Err("channels need 64-bit positions".into());
    }
    let rows = |per_unit| {
        let geometry = ColumnGeometry::few_chunks([n / fold, c * fold], operands, per_unit, caps);
        FoldedRows { geometry, fold }
    };
    Ok(ChannelsLast { sums: rows(2), map: rows(4) })
}

/// Rows of channels of which `fold` are taken as one, so that it consists of whole items.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FoldedRows {
    pub(crate) geometry: ColumnGeometry,
    pub(crate) fold: usize,
}

/// How rows of channels are taken: for sums, and by the map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ChannelsLast {
    pub(crate) sums: FoldedRows,
    pub(crate) map: FoldedRows,
}

/// Contiguous operands `[outer, cols, inner]` that are scaled to unit length along `cols`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct L2Problem {
    pub(crate) outer: usize,
    pub(crate) cols: usize,
    pub(crate) inner: usize,
    pub(crate) operands: Alignment,
}

/// How an L2 normalization runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum L2Plan {
    /// A row of `items` aligned items in the registers of `lanes` threads.
    Registers { lanes: usize, items: usize, blocks: usize },
    /// A row per `lanes` threads.
    Rows { lanes: usize, wide: bool, blocks: usize },
    /// `tx` columns side by side.
    Columns { tx: usize, wide: bool, blocks: usize },
}

/// 16-byte items of a row that a thread of `l2_registers` holds (`GK_L2_KEEP`).
const KEEP_L2: usize = 4;

impl L2Problem {
    fn registers(&self) -> Result<L2Plan, Reason> {
        let items = self.cols / self.operands.vector();
        if !self.operands.whole(self.cols) {
            return Err("rows do not consist of whole aligned 16-byte items".into());
        }
        if items > KEEP_L2 * LANES {
            return Err(
                format!("a row of {} elements does not fit the registers of a block", self.cols).into()
            );
        }
        let lanes = pow2(items.div_ceil(KEEP_L2), LANES).max(pow2(items, 8));
        Ok(L2Plan::Registers { lanes, items, blocks: self.outer.div_ceil(LANES / lanes) })
    }

    fn rows(&self) -> L2Plan {
        let wide = self.operands.whole(self.cols);
        let items = if wide { self.cols / self.operands.vector() } else { self.cols };
        let lanes = pow2(items.div_ceil(16), LANES).max(pow2(items, 8));
        L2Plan::Rows { lanes, wide, blocks: self.outer.div_ceil(LANES / lanes) }
    }

    fn columns(&self, caps: &Caps) -> L2Plan {
        let wide = self.operands.whole(self.inner);
        let items = self.outer * self.inner / if wide { self.operands.vector() } else { 1 };
        let tx = side_by_side(items, self.cols, wide, caps);
        L2Plan::Columns { tx, wide, blocks: items.div_ceil(tx) }
    }
}

impl Problem for L2Problem {
    type Plan = L2Plan;

    const VARIANTS: &'static [Variant] = &[
        Variant { name: "registers", source: "kernels/common/norm/l2.c" },
        Variant { name: "rows", source: "kernels/common/norm/l2.c" },
        Variant { name: "columns", source: "kernels/common/norm/l2.c" },
    ];

    fn plan(&self, variant: usize, caps: &Caps) -> Result<L2Plan, Reason> {
        match (variant, self.inner) {
            (0, 1) => self.registers(),
            (1, 1) => Ok(self.rows()),
            (0 | 1, _) => Err("the axis is not the innermost".into()),
            (_, 1) => Err("the axis is the innermost".into()),
            _ => Ok(self.columns(caps)),
        }
    }

    fn key(&self) -> Option<&dyn ProblemKey> {
        Some(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::DType;
    use crate::engine::geometry::tests::{applicable, chosen, cpu, gpu};

    fn rows(rows: usize, cols: usize) -> RowNormProblem {
        RowNormProblem {
            rows,
            cols,
            inner: 0,
            channels: 1,
            operands: Alignment::full(DType::F32),
            affine_aligned: true,
            rms: false,
            residual: false,
            sum: false,
            var: false,
        }
    }

    /// Groups of `channels` planes of `inner` elements.
    fn groups(count: usize, channels: usize, inner: usize) -> RowNormProblem {
        RowNormProblem { inner, channels, ..rows(count, channels * inner) }
    }

    #[test]
    fn rows_are_held_in_registers_or_cut() {
        let half = Alignment::full(DType::F16);
        let cases = [
            (rows(4096, 1024), "aligned_rows", "aligned_rows"),
            (rows(4096, 8192), "aligned_rows_looped", "aligned_rows_looped"),
            (
                RowNormProblem { operands: half, ..rows(4096, 4096) },
                "aligned_rows_looped",
                "aligned_rows_looped",
            ),
            (
                RowNormProblem { operands: half, rms: true, ..rows(4096, 4096) },
                "aligned_rows",
                "aligned_rows",
            ),
            (RowNormProblem { residual: true, sum: true, ..rows(4096, 8192) }, "rows", "rows"),
            (rows(4096, 32768), "rows_looped", "rows_looped"),
            (rows(4096, 1023), "rows", "rows"),
            (rows(2, 4096), "rows", "rows"),
            (rows(2, 1 << 20), "split", "split"),
            (rows(1, 1), "rows", "rows"),
            (groups(1024, 2, 1024), "rows", "rows"),
            (groups(1024, 16, 1024), "aligned_groups", "aligned_groups"),
            (groups(64, 16, 4096), "aligned_split", "aligned_groups"),
            (RowNormProblem { var: true, ..groups(1, 1, 1 << 20) }, "rows_looped", "rows_looped"),
        ];
        for (p, on_gpu, on_cpu) in cases {
            assert_eq!((chosen(&p, &gpu()), chosen(&p, &cpu())), (on_gpu, on_cpu), "{p:?}");
        }
    }

    #[test]
    fn the_general_kernel_takes_all_rows() {
        let aligned = ["aligned_rows_looped", "aligned_rows"];
        assert_eq!(applicable(&rows(4096, 1024), &gpu()), [&aligned[..], &["rows_looped", "rows"]].concat());
        let grouped = ["aligned_groups", "aligned_split", "rows_looped", "rows"];
        assert_eq!(applicable(&groups(1024, 16, 1024), &gpu()), grouped);
        assert!(groups(64, 16, 4096).plan(4, &gpu()).is_ok() && groups(8, 2, 8).plan(4, &gpu()).is_err());
        assert_eq!(applicable(&groups(8, 2, 8), &gpu()), grouped);
        let odd = RowNormProblem { affine_aligned: false, ..rows(4096, 1024) };
        assert_eq!(applicable(&odd, &gpu()), ["rows_looped", "rows"]);
        assert!(odd.plan(1, &gpu()).is_err_and(|e| e.contains("gamma")));
        assert!(rows(4096, 1024).plan(3, &gpu()).is_err_and(|e| e.contains("per column")));
    }

    #[test]
    fn batch_norm_reduces_short_planes_as_columns() {
        let full = Alignment::full(DType::F32);
        let p = |s, operands, batch| BatchNormProblem { n: 32, c: 64, s, x: full, operands, batch };
        let odd = Alignment { in_phase: false, ..full };
        let cases = [
            (p(1024, full, true), "aligned"),
            (p(1024, odd, true), "aligned_moments"),
            (BatchNormProblem { x: odd, ..p(1024, odd, true) }, "rows"),
            (p(1023, full, true), "rows"),
            (p(16, full, true), "columns_aligned"),
            (p(16, odd, true), "columns"),
            (p(1, full, true), "channels_last"),
            (p(1, full, false), "channels_last"),
            (BatchNormProblem { c: 63, ..p(1, full, true) }, "channels_last"),
            (BatchNormProblem { c: 63, n: 33, ..p(1, full, true) }, "columns"),
            (BatchNormProblem { c: 3, ..p(1, full, true) }, "columns"),
            (p(1, odd, true), "columns"),
            (p(16, full, false), "aligned"),
            (p(1023, full, false), "rows"),
        ];
        for (p, name) in cases {
            assert_eq!((chosen(&p, &gpu()), chosen(&p, &cpu())), (name, name), "{p:?}");
        }
        let of_planes = ["columns_aligned", "columns", "aligned", "aligned_moments", "rows"];
        assert_eq!(applicable(&p(16, full, true), &gpu()), of_planes);
        assert_eq!(applicable(&p(1, full, true), &gpu())[0], "channels_last");
        assert_eq!(applicable(&p(16, full, false), &gpu()), ["aligned", "rows"]);
        assert!(p(16, full, false).plan(5, &gpu()).is_ok_and(|plan| plan.stats.is_none()));
    }

    #[test]
    fn unit_length_depends_on_the_axis() {
        let operands = Alignment::full(DType::F16);
        let p = |inner| L2Problem { outer: 100, cols: 64, inner, operands };
        assert_eq!((chosen(&p(1), &gpu()), chosen(&p(8), &gpu())), ("registers", "columns"));
        assert_eq!(p(1).plan(0, &gpu()), Ok(L2Plan::Registers { lanes: 8, items: 8, blocks: 4 }));
        let long = L2Problem { cols: 8200, ..p(1) };
        assert_eq!((chosen(&long, &gpu()), applicable(&p(1), &gpu())), ("rows", vec!["registers", "rows"]));
        assert_eq!(p(1).plan(1, &gpu()), Ok(L2Plan::Rows { lanes: 8, wide: true, blocks: 4 }));
        assert!(
            p(1).plan(2, &gpu()).is_err() && p(8).plan(0, &gpu()).is_err() && p(8).plan(1, &gpu()).is_err()
        );
    }
}
