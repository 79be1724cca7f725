//! How normalization runs, backward.

use super::cut::{Cut, Groups, fits_i32, too_many};
use super::plan::{CHANNELS_LAST, ChannelsLast, SHORT_PLANE, channels_last};
use crate::device::Caps;
use crate::engine::geometry::{Alignment, ColumnGeometry, RowGeometry};
use crate::engine::launch::{LANES, pow2};
use crate::engine::plan::{Problem, Reason, Variant};
use crate::engine::tune::ProblemKey;

/// Values of a row per thread of the kernels for rows in registers, and how many of their blocks fit on a multiprocessor at a time.
const ROW_KERNELS: [(usize, usize); 2] = [(16, 2), (32, 1)];
/// Elements of problems that are small enough for few blocks.
const SMALL: usize = 1 << 18;

const GENERAL: &str = "kernels/common/norm/backward.c";
const ALIGNED: &str = "kernels/common/norm/backward_aligned.c";

/// Gradient of rows with statistics of their own and parameters per column: of layer and RMS norm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct RowNormBwdProblem {
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    /// Of what is summed: dy, x and y.
    pub(crate) terms: Alignment,
    /// Whether all elementwise operands and results begin at multiples of 16 bytes.
    pub(crate) aligned: bool,
    /// Whether gamma and beta do.
    pub(crate) affine_aligned: bool,
    /// Whether gradients of parameters are wanted.
    pub(crate) params: bool,
}

/// How the gradient of rows runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RowNormBwdPlan {
    /// A row in the registers of `1 << bits` threads, of the kernel of this number: dx and sums for the parameters in one pass.
    Registers { kernel: usize, items: usize, bits: u32, blocks: usize },
    /// Sums down the columns for the parameters, sums along the rows, then the map.
    Steps { columns: ColumnSums, rows: RowSums, map: BackMap },
}

/// Sums down columns; `affine`: parameters are read by 16-byte items, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ColumnSums {
    pub(crate) geometry: ColumnGeometry,
    pub(crate) affine: bool,
}

/// Sums along rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RowSums {
    pub(crate) geometry: RowGeometry,
    pub(crate) affine: bool,
}

/// The map whose means are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BackMap {
    Aligned(Cut),
    General { wide: bool, affine: bool },
}

/// The sums along rows of `cols` elements.
fn row_sums(rows: usize, cols: usize, terms: Alignment, affine: bool, caps: &Caps) -> RowSums {
    RowSums { geometry: RowGeometry::new([rows, cols], 8 * terms.vector(), terms, caps), affine }
}

/// Blocks, at most `most`, for so many pieces of work, with equal shares: no block waits for a few that have one piece more.
fn equal_blocks(pieces: usize, most: usize) -> usize {
    pieces.div_ceil(pieces.div_ceil(most.max(1)).max(1)).max(1)
}

impl RowNormBwdProblem {
    /// Whether every row has whole 16-byte items.
    fn whole_items(&self) -> bool {
        self.cols.is_multiple_of(self.terms.vector())
    }

    fn registers(&self, caps: &Caps) -> Result<RowNormBwdPlan, Reason> {
        let (rows, cols, units) = (self.rows, self.cols, caps.compute_units as usize);
        let Some(kernel) = ROW_KERNELS.iter().position(|(values, _)| cols <= values * LANES) else {
            return Err(format!("a row of {cols} elements does not fit the registers of a block").into());
        };
        if !(self.whole_items() && self.aligned && self.affine_aligned) {
            return Err("operands do not consist of whole aligned 16-byte items".into());
        }
        // The row index after the last row must fit an i32 too.
        if !rows.checked_mul(2).and_then(|r| r.checked_add(1 << 20)).is_some_and(fits_i32) {
            return Err(too_many());
        }
        let (values, resident) = ROW_KERNELS[kernel];
        let items = cols / self.terms.vector();
        let lanes = pow2(items.div_ceil(values / self.terms.vector()), LANES).max(pow2(items, 8));
        // With parameters the grid is what is resident at a time, so that there are few partial sums.
        let most = if self.params { units * resident } else { caps.target_blocks() * 16 };
        let blocks = equal_blocks(rows.div_ceil(LANES / lanes), most);
        Ok(RowNormBwdPlan::Registers { kernel, items, bits: lanes.trailing_zeros(), blocks })
    }

    fn steps(&self, caps: &Caps) -> RowNormBwdPlan {
        let (rows, cols) = (self.rows, self.cols);
        let geometry = ColumnGeometry::new([rows, cols], self.terms, caps);
        let columns = ColumnSums { geometry, affine: self.affine_aligned };
        let affine = self.whole_items() && self.terms.phase == 0 && self.affine_aligned;
        RowNormBwdPlan::Steps {
            columns,
            rows: row_sums(rows, cols, self.terms, affine, caps),
            map: BackMap::General { wide: self.whole_items() && self.aligned, affine: self.affine_aligned },
        }
    }
}

impl Problem for RowNormBwdProblem {
    type Plan = RowNormBwdPlan;

    const VARIANTS: &'static [Variant] =
        &[Variant { name: "aligned_rows", source: ALIGNED }, Variant { name: "rows", source: GENERAL }];

    fn plan(&self, variant: usize, caps: &Caps) -> Result<RowNormBwdPlan, Reason> {
        if variant == 0 { self.registers(caps) } else { Ok(self.steps(caps)) }
    }

    fn prefers(&self, variant: usize, caps: &Caps) -> bool {
        variant > 0 || self.rows * self.cols < SMALL || self.rows >= caps.compute_units as usize
    }

    fn key(&self) -> Option<&dyn ProblemKey> {
        Some(self)
    }
}

/// Gradient of planes `[n, c, s]` with parameters per channel: of group and batch norm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct PlaneNormBwdProblem {
    pub(crate) n: usize,
    pub(crate) c: usize,
    pub(crate) s: usize,
    /// Channels that share statistics; 0 for those of a channel over all n.
    pub(crate) share: usize,
    /// Of what is summed: dy, x, y and the residual.
    pub(crate) terms: Alignment,
    /// How many these are.
    pub(crate) operands: usize,
    /// Whether an activation's slope is taken from x and the parameters.
    pub(crate) slope_of_x: bool,
    /// Whether all elementwise operands and results begin at multiples of 16 bytes.
    pub(crate) aligned: bool,
}

/// How the gradient of planes runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PlaneNormBwdPlan {
    /// A group of planes of `items` per block, which reads it twice, the second time from a cache.
    Groups { items: usize, bits: u32, blocks: usize },
    /// Sums over chunks of rows of channels, their combination, then the map.
    ChannelsLast(ChannelsLast),
    /// Sums, their means, then the map.
    Steps { sums: PlaneSums, map: BackMap },
}

/// What is summed first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PlaneSums {
    /// Columns of `[n, c * s]`.
    Columns(ColumnSums),
    /// Runs of planes of aligned items.
    Aligned(Cut),
    /// Runs of planes.
    Rows(RowSums),
}

impl PlaneNormBwdProblem {
    fn planes(&self) -> [usize; 2] {
        [self.n * self.c, self.s]
    }

    fn groups(&self, caps: &Caps) -> Result<PlaneNormBwdPlan, Reason> {
        if self.share == 0 {
            return Err("statistics are those of channels".into());
        }
        let Cut { items, .. } = self.aligned_cut(caps)?;
        let groups = self.cached(items);
        Ok(PlaneNormBwdPlan::Groups { items, bits: groups.bits()?, blocks: groups.blocks(caps) })
    }

    /// The groups, with planes of that many 16-byte items.
    fn cached(&self, items: usize) -> Groups {
        let bytes = self.share * items * 16 * self.operands;
        Groups { count: self.n * self.c / self.share.max(1), share: self.share, items, bytes }
    }

    fn channels_last(&self, caps: &Caps) -> Result<PlaneNormBwdPlan, Reason> {
        if self.share > 0 {
            return Err("statistics are those of groups".into());
        }
        if !self.aligned {
            return Err("an operand or result does not begin at a multiple of 16 bytes".into());
        }
        let rows = channels_last([self.n, self.c, self.s], self.terms, caps)?;
        if rows.map.fold > 1 && self.slope_of_x {
            return Err(
                "the slope is taken from x, of channels that are no whole aligned 16-byte items".into()
            );
        }
        Ok(PlaneNormBwdPlan::ChannelsLast(rows))
    }

    fn columns(&self, caps: &Caps) -> Result<PlaneSums, Reason> {
        if self.share > 0 {
            return Err("statistics are those of groups".into());
        }
        let geometry = ColumnGeometry::new([self.n, self.c * self.s], self.terms, caps);
        Ok(PlaneSums::Columns(ColumnSums { geometry, affine: self.s.is_multiple_of(self.terms.vector()) }))
    }

    fn aligned_sums(&self, caps: &Caps) -> Result<PlaneSums, Reason> {
        Cut::of_sums(self.planes(), self.terms, caps).map(PlaneSums::Aligned)
    }

    fn rows(&self, caps: &Caps) -> PlaneSums {
        // A row of one channel has one parameter.
        PlaneSums::Rows(row_sums(self.n * self.c, self.s, self.terms, true, caps))
    }

    fn aligned_cut(&self, caps: &Caps) -> Result<Cut, Reason> {
        if !self.aligned {
            return Err("an operand or result does not begin at a multiple of 16 bytes".into());
        }
        Cut::new(self.planes(), self.terms, caps)
    }

    fn aligned_map(&self, caps: &Caps) -> Result<BackMap, Reason> {
        self.aligned_cut(caps).map(BackMap::Aligned)
    }

    fn general_map(&self) -> BackMap {
        BackMap::General { wide: self.aligned && self.s.is_multiple_of(self.terms.vector()), affine: true }
    }
}

impl Problem for PlaneNormBwdProblem {
    type Plan = PlaneNormBwdPlan;

    const VARIANTS: &'static [Variant] = &[
        Variant { name: "aligned_groups", source: ALIGNED },
        Variant { name: "channels_last", source: CHANNELS_LAST },
        Variant { name: "columns_aligned", source: ALIGNED },
        Variant { name: "columns", source: GENERAL },
        Variant { name: "aligned", source: ALIGNED },
        Variant { name: "aligned_sums", source: ALIGNED },
        Variant { name: "rows", source: GENERAL },
    ];

    fn plan(&self, variant: usize, caps: &Caps) -> Result<PlaneNormBwdPlan, Reason> {
        let (sums, map) = match variant {
            0 => return self.groups(caps),
            1 => return self.channels_last(caps),
            2 => (self.columns(caps)?, self.aligned_map(caps)?),
            3 => (self.columns(caps)?, self.general_map()),
            4 => (self.aligned_sums(caps)?, self.aligned_map(caps)?),
            5 => (self.aligned_sums(caps)?, self.general_map()),
            _ => (self.rows(caps), self.general_map()),
        };
        Ok(PlaneNormBwdPlan::Steps { sums, map })
    }

    fn prefers(&self, variant: usize, caps: &Caps) -> bool {
        match variant {
            0 => self.cached(self.s / self.terms.vector()).busy(caps),
            2 | 3 => self.s < SHORT_PLANE,
            _ => true,
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

    fn rows(rows: usize, cols: usize) -> RowNormBwdProblem {
        let terms = Alignment::full(DType::F32);
        RowNormBwdProblem { rows, cols, terms, aligned: true, affine_aligned: true, params: true }
    }

    fn planes(n: usize, c: usize, s: usize, share: usize) -> PlaneNormBwdProblem {
        let terms = Alignment::full(DType::F32);
        PlaneNormBwdProblem { n, c, s, share, terms, operands: 2, slope_of_x: false, aligned: true }
    }

    #[test]
    fn rows_are_held_in_registers() {
        let cases = [
            (rows(4096, 1024), "aligned_rows"),
            (rows(4096, 8192), "aligned_rows"),
            (rows(4096, 8196), "rows"),
            (rows(8, 1024), "aligned_rows"),
            (rows(4096, 1023), "rows"),
            (RowNormBwdProblem { affine_aligned: false, ..rows(4096, 1024) }, "rows"),
        ];
        for (p, name) in cases {
            assert_eq!((chosen(&p, &gpu()), chosen(&p, &cpu())), (name, name), "{p:?}");
        }
        let few = rows(64, 8192);
        assert_eq!((chosen(&few, &gpu()), chosen(&few, &cpu())), ("rows", "aligned_rows"));
        assert_eq!(applicable(&rows(4096, 1024), &gpu()), ["aligned_rows", "rows"]);
        let Ok(RowNormBwdPlan::Registers { kernel, items, bits, blocks }) = rows(4096, 1024).plan(0, &gpu())
        else {
            panic!("rows fit registers")
        };
        assert_eq!((kernel, items, bits, blocks), (0, 256, 6, 256));
    }

    #[test]
    fn planes_are_taken_as_groups_columns_or_runs() {
        let odd = Alignment { in_phase: false, ..Alignment::full(DType::F32) };
        let unaligned = |p: PlaneNormBwdProblem| PlaneNormBwdProblem { aligned: false, ..p };
        let cases = [
            (planes(32, 64, 1024, 2), "aligned_groups"),
            (planes(1, 64, 1 << 16, 2), "aligned"),
            (unaligned(planes(32, 64, 1024, 2)), "aligned_sums"),
            (planes(32, 64, 1023, 2), "rows"),
            (planes(32, 64, 1024, 0), "aligned"),
            (planes(32, 64, 16, 0), "columns_aligned"),
            (unaligned(planes(32, 64, 16, 0)), "columns"),
            (planes(4096, 64, 1, 0), "channels_last"),
            (planes(4096, 63, 1, 0), "channels_last"),
            (planes(4095, 63, 1, 0), "columns"),
            (PlaneNormBwdProblem { slope_of_x: true, ..planes(4096, 63, 1, 0) }, "columns"),
            (PlaneNormBwdProblem { terms: odd, ..unaligned(planes(32, 64, 1024, 0)) }, "rows"),
        ];
        for (p, name) in cases {
            assert_eq!((chosen(&p, &gpu()), chosen(&p, &cpu())), (name, name), "{p:?}");
        }
        let short = applicable(&planes(32, 64, 16, 0), &gpu());
        assert_eq!(short, ["columns_aligned", "columns", "aligned", "aligned_sums", "rows"]);
        assert!(planes(32, 64, 16, 2).plan(3, &gpu()).is_err_and(|e| e.contains("groups")));
    }
}
