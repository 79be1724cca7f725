//! Launch geometry of rows and columns: how the threads of blocks lie over rows and columns of contiguous operands, as pure functions of sizes, alignment and the device.

use super::launch::{Grid, LANES, pow2};
use crate::buffer::View;
use crate::device::Caps;
use crate::dtype::DType;

/// Shortest run of a cut row, in 16-byte items.
const RUN: usize = 1024;

/// Where operands of one shape and storage type begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Alignment {
    pub(crate) dtype: DType,
    /// Elements by which the first operand begins behind a multiple of 16 bytes.
    pub(crate) phase: usize,
    /// Whether all operands begin that many elements behind one.
    pub(crate) in_phase: bool,
}

impl Alignment {
    pub(crate) fn of<'a, 'b: 'a>(dtype: DType, operands: impl IntoIterator<Item = &'a View<'b>>) -> Self {
        let vector = 16 / dtype.size();
        let mut phases = operands.into_iter().map(|v| v.layout().offset() % vector);
        let phase = phases.next().unwrap_or(0);
        Alignment { dtype, phase, in_phase: phases.all(|p| p == phase) }
    }

    /// That of operands which begin at multiples of 16 bytes.
    pub(crate) fn full(dtype: DType) -> Self {
        Alignment { dtype, phase: 0, in_phase: true }
    }

    /// Elements of 16 bytes.
    pub(crate) fn vector(self) -> usize {
        16 / self.dtype.size()
    }

    /// Whether all operands begin at multiples of 16 bytes.
    pub(crate) fn aligned(self) -> bool {
        self.in_phase && self.phase == 0
    }

    /// Whether rows of `cols` elements consist of whole aligned items of 16 bytes.
    pub(crate) fn whole(self, cols: usize) -> bool {
        self.aligned() && cols.is_multiple_of(self.vector())
    }
}

/// How rows of `cols` elements are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct RowGeometry {
    /// By 16-byte items, after single elements up to the first boundary.
    pub(crate) wide: bool,
    pub(crate) phase: usize,
    /// Threads that share a row.
    pub(crate) lanes: usize,
    /// Runs of a row, and elements of one.
    pub(crate) splits: usize,
    pub(crate) chunk: usize,
    /// 16-byte items (or elements) of a row.
    pub(crate) items: usize,
}

impl RowGeometry {
    /// The geometry over rows of `cols` elements of which a thread takes about `each`.
    pub(crate) fn new([rows, cols]: [usize; 2], each: usize, a: Alignment, caps: &Caps) -> Self {
        let (w, wide, fill) = (a.vector(), a.in_phase, caps.target_blocks());
        let items = if wide { cols.div_ceil(w) } else { cols };
        let per_lane = if wide { each / w } else { each };
        let mut lanes = pow2(items.div_ceil(per_lane), LANES).max(pow2(items, 8));
        while lanes < pow2(items, LANES) && rows * lanes < fill * LANES / 2 {
            lanes *= 2;
        }
        // Rows are cut where their number alone leaves the device idle.
        let mut splits = 1;
        if lanes == LANES && rows < (fill / 4).max(4) {
            splits = (fill * 2 / rows.max(1)).min(items / RUN).max(1);
        }
        let chunk = items.div_ceil(splits).max(1) * if wide { w } else { 1 };
        RowGeometry { wide, phase: a.phase, lanes, splits: cols.div_ceil(chunk).max(1), chunk, items }
    }

    /// Blocks for rows (or runs) of which a block takes several at a time.
    pub(crate) fn grid(&self, runs: usize, caps: &Caps) -> Grid {
        let blocks = runs.div_ceil(LANES / self.lanes);
        Grid::Blocks([if self.lanes == LANES { blocks } else { blocks.min(caps.target_blocks() * 16) }, 1, 1])
    }
}

/// How columns are summed: threads side by side, chunks of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct ColumnGeometry {
    /// By 16-byte items.
    pub(crate) wide: bool,
    /// Threads side by side.
    pub(crate) tx: usize,
    /// Rows of a chunk, and chunks.
    pub(crate) chunk: usize,
    pub(crate) chunks: usize,
    /// Blocks side by side.
    pub(crate) tiles: usize,
}

impl ColumnGeometry {
    /// The geometry over the columns of `[n, cols]`.
    pub(crate) fn new([n, cols]: [usize; 2], a: Alignment, caps: &Caps) -> Self {
        let wide = a.whole(cols);
        let items = if wide { cols / a.vector() } else { cols };
        let ty = (LANES / pow2(items, 32)).max(8).min(pow2(n.div_ceil(8), LANES));
        let tx = LANES / ty;
        let tiles = items.div_ceil(tx);
        let chunks = (caps.target_blocks() * 2 / tiles.max(1)).min(n / (ty * 8)).max(1);
        let chunk = n.div_ceil(chunks).max(1);
        ColumnGeometry { wide, tx, chunk, chunks: n.div_ceil(chunk).max(1), tiles }
    }

    /// As [`new`](ColumnGeometry::new) for whole aligned rows, with no more chunks than `per_unit` blocks per unit need: each of them leaves partial
    /// sums.
    pub(crate) fn few_chunks([n, cols]: [usize; 2], a: Alignment, per_unit: usize, caps: &Caps) -> Self {
        let items = cols / a.vector();
        let tx = pow2(items, 32);
        let tiles = items.div_ceil(tx);
        let chunks =
            (caps.compute_units as usize * per_unit).div_ceil(tiles.max(1)).min(n / (LANES / tx * 4)).max(1);
        let chunk = n.div_ceil(chunks).max(1);
        ColumnGeometry { wide: true, tx, chunk, chunks: n.div_ceil(chunk).max(1), tiles }
    }

    pub(crate) fn grid(&self) -> Grid {
        Grid::Blocks([self.tiles * self.chunks, 1, 1])
    }
}

/// Threads side by side on `items` items of the inner axes, where the others of their block share the axis of `cols` elements: 32, or so few that
/// there are two blocks for each multiprocessor, but not fewer than 64 bytes of items need.
pub(crate) fn side_by_side(items: usize, cols: usize, wide: bool, caps: &Caps) -> usize {
    let least = if wide { 4 } else { 16 };
    let filled = |tx: usize| items.div_ceil(tx) >= 2 * caps.compute_units as usize;
    let tx = [32, 16, 8, 4].into_iter().find(|&tx| tx == least || filled(tx)).unwrap_or(least);
    let ty = (LANES / pow2(items, tx)).min(pow2(cols.div_ceil(8), LANES));
    LANES / ty
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::device::{BackendKind, DeviceId};
    use crate::engine::plan::{Problem, best};

    /// An H200: 132 compute units, clusters of 8 blocks.
    pub(crate) fn gpu() -> Caps {
        let mut caps = Caps::new(DeviceId::new(BackendKind::Cuda, 0), "gpu", "sm_90");
        (caps.compute_units, caps.cluster) = (132, 8);
        caps
    }

    /// A CPU with 16 cores.
    pub(crate) fn cpu() -> Caps {
        let mut caps = Caps::new(DeviceId::new(BackendKind::OpenCl, 0), "cpu", "pocl");
        (caps.compute_units, caps.is_cpu) = (16, true);
        caps
    }

    /// Name of the variant that a device takes.
    pub(crate) fn chosen<P: Problem>(p: &P, caps: &Caps) -> &'static str {
        best(p, caps).map_or("none", |(v, _)| P::VARIANTS[v].name)
    }

    /// Names of the variants that can be pinned.
    pub(crate) fn applicable<P: Problem>(p: &P, caps: &Caps) -> Vec<&'static str> {
        let all = P::VARIANTS.iter().enumerate();
        all.filter(|(v, _)| p.plan(*v, caps).is_ok()).map(|(_, v)| v.name).collect()
    }

    #[test]
    fn rows_are_cut_where_they_are_few_and_long() {
        let a = Alignment::full(DType::F32);
        let geometry = RowGeometry::new([1, 1 << 24], 32, a, &gpu());
        assert_eq!((geometry.lanes, geometry.splits, geometry.chunk), (256, 2112, 7944));
        assert_eq!(RowGeometry::new([4096, 1024], 32, a, &gpu()).splits, 1);
        let odd = RowGeometry::new([4096, 1024], 32, Alignment { in_phase: false, ..a }, &cpu());
        assert_eq!((odd.wide, odd.items, odd.lanes), (false, 1024, 32));
    }

    #[test]
    fn columns_are_read_by_items_where_rows_are_whole() {
        let a = Alignment::full(DType::F16);
        assert!(ColumnGeometry::new([4096, 64], a, &gpu()).wide);
        assert!(!ColumnGeometry::new([4096, 63], a, &gpu()).wide);
        assert!(!ColumnGeometry::new([4096, 64], Alignment { phase: 4, ..a }, &gpu()).wide);
        assert_eq!(ColumnGeometry::new([0, 0], a, &gpu()).tiles, 0);
        let few = ColumnGeometry::few_chunks([64 * 56 * 56, 64], a, 4, &gpu());
        assert_eq!((few.tx, few.tiles, few.chunks, few.chunk), (8, 1, 527, 381));
        assert_eq!(ColumnGeometry::few_chunks([64 * 49, 2048], a, 4, &gpu()).chunks, 66);
        assert_eq!(ColumnGeometry::few_chunks([3, 8], a, 4, &gpu()).chunks, 1);
    }

    #[test]
    fn few_columns_lie_side_by_side_in_fewer_threads() {
        let caps = gpu();
        assert_eq!(side_by_side(1 << 20, 4096, true, &caps), 32);
        assert_eq!(side_by_side(1024, 16384, true, &caps), 4);
        assert_eq!(side_by_side(1024, 16384, false, &caps), 16);
        // An axis too short for many threads leaves them side by side.
        assert_eq!(side_by_side(1024, 16, true, &caps), 128);
        assert_eq!(side_by_side(1, 1 << 20, false, &caps), 1);
    }
}
