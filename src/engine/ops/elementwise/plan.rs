//! How elementwise functions and their gradients run.

use crate::device::Caps;
use crate::dtype::DType;
use crate::engine::launch::{LANES, MAX_GRID_YZ};
use crate::engine::plan::{Problem, Reason, Variant};
use crate::engine::tune::ProblemKey;

const SOURCE: &str = "kernels/common/elementwise/unary.c, binary.c";
const STRIDED: Variant = Variant { name: "strided", source: SOURCE };
/// Elements from which a copy of an operand costs less than reads of single elements that lie apart (2^26 in f32 on an H200: 505 us strided, of which a copy
/// takes 133 and the function 127).
const WORTH_PACKING: usize = 1 << 22;

/// A function of operands of one shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct MapProblem {
    /// Whether all operands are without gaps, in one order.
    pub(crate) flat: bool,
    /// Whether all begin at multiples of 16 bytes.
    pub(crate) aligned: bool,
    /// Whether the result is contiguous and an operand lies across it: neighbours along another axis of the result than the innermost are neighbours there.
    pub(crate) crossed: bool,
    pub(crate) elements: usize,
}

/// How it runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MapPlan {
    /// By position in memory, with `wide` 16 bytes at a time.
    Flat { wide: bool },
    /// From copies of the operands that lie across the result, in its order.
    Packed,
    /// By coordinates.
    Strided,
}

impl Problem for MapProblem {
    type Plan = MapPlan;

    const VARIANTS: &'static [Variant] = &[
        Variant { name: "flat", source: SOURCE },
        Variant { name: "packed", source: "kernels/common/shape/shape.c" },
        STRIDED,
    ];

    fn plan(&self, variant: usize, _: &Caps) -> Result<MapPlan, Reason> {
        match variant {
            0 if !self.flat => Err("an operand has gaps, or is broadcast".into()),
            0 => Ok(MapPlan::Flat { wide: self.aligned }),
            1 if !self.crossed => Err("no operand lies across a contiguous result".into()),
            1 => Ok(MapPlan::Packed),
            _ => Ok(MapPlan::Strided),
        }
    }

    fn prefers(&self, variant: usize, caps: &Caps) -> bool {
        variant != 1 || self.elements >= WORTH_PACKING && !caps.is_cpu
    }
}

/// The operand of a binary function that is a row shared by all rows of the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum SharedRow {
    A,
    B,
}

/// Gradients of a binary function of a matrix `[rows, cols]` and what broadcasts to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct BinaryBwdProblem {
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    /// The shared row, where one operand is one, wants a gradient, and nothing has gaps.
    pub(crate) shared: Option<SharedRow>,
    pub(crate) dtype: DType,
    /// Whether all that has the matrix' shape, and the row, begin at multiples of 16 bytes.
    pub(crate) aligned: bool,
}

/// A matrix in `stripes` parts of the columns, each for `lanes` threads side by side, and `slices` parts of the rows, whose sums are combined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RowCut {
    pub(crate) wide: bool,
    pub(crate) lanes: usize,
    pub(crate) stripes: usize,
    pub(crate) slices: usize,
}

/// How they run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BinaryBwdPlan {
    /// Both at once.
    SharedRow(RowCut),
    /// At the full shape by coordinates, then sums where an operand was broadcast.
    Strided,
}

impl Problem for BinaryBwdProblem {
    type Plan = BinaryBwdPlan;

    const VARIANTS: &'static [Variant] = &[Variant { name: "shared_row", source: SOURCE }, STRIDED];

    fn plan(&self, variant: usize, caps: &Caps) -> Result<BinaryBwdPlan, Reason> {
        if variant == 1 {
            return Ok(BinaryBwdPlan::Strided);
        }
        if self.shared.is_none() {
            return Err("no operand with a gradient is a row that the other's rows share".into());
        }
        let vector = 16 / self.dtype.size();
        let wide = self.aligned && self.cols.is_multiple_of(vector);
        let across = if wide { self.cols / vector } else { self.cols };
        let lanes = across.next_power_of_two().min(LANES);
        let stripes = across.div_ceil(lanes);
        // Four rows per thread at least.
        let most = self.rows.div_ceil(LANES / lanes * 4);
        let slices = (caps.target_blocks() / stripes).clamp(1, MAX_GRID_YZ).min(most);
        Ok(BinaryBwdPlan::SharedRow(RowCut { wide, lanes, stripes, slices }))
    }

    fn key(&self) -> Option<&dyn ProblemKey> {
        Some(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::geometry::tests::{applicable, chosen, cpu, gpu};

    #[test]
    fn operands_without_gaps_are_addressed_by_position() {
        let (p, gpu) = (MapProblem { flat: true, aligned: false, crossed: false, elements: 1 << 20 }, gpu());
        assert_eq!(p.plan(0, &gpu), Ok(MapPlan::Flat { wide: false }));
        assert_eq!(p.plan(2, &gpu), Ok(MapPlan::Strided));
        let gaps = MapProblem { flat: false, ..p };
        assert!(gaps.plan(0, &gpu).is_err_and(|e| e.contains("gaps")));
        assert_eq!(applicable(&gaps, &gpu), ["strided"]);
        let crossed = MapProblem { crossed: true, ..gaps };
        assert_eq!(
            (applicable(&crossed, &gpu), chosen(&crossed, &gpu)),
            (vec!["packed", "strided"], "strided")
        );
        let large = MapProblem { elements: 1 << 24, ..crossed };
        assert_eq!((chosen(&large, &gpu), chosen(&large, &cpu())), ("packed", "strided"));
    }

    #[test]
    fn rows_of_a_matrix_share_a_bias() {
        let shared = Some(SharedRow::B);
        let p = BinaryBwdProblem { rows: 4096, cols: 1024, shared, dtype: DType::F32, aligned: true };
        let plan =
            |slices| Ok(BinaryBwdPlan::SharedRow(RowCut { wide: true, lanes: 256, stripes: 1, slices }));
        let (gpu, cpu) = (gpu(), cpu());
        assert_eq!(p.plan(0, &gpu), plan(1024));
        assert_eq!(p.plan(0, &cpu), plan(32));
        let thin = BinaryBwdProblem { cols: 1, aligned: false, rows: 1 << 30, ..p };
        let cut = RowCut { wide: false, lanes: 1, stripes: 1, slices: 1056 };
        assert_eq!(thin.plan(0, &gpu), Ok(BinaryBwdPlan::SharedRow(cut)));
        let none = BinaryBwdProblem { shared: None, ..p };
        assert!(none.plan(0, &gpu).is_err_and(|e| e.contains("row")));
        assert_eq!(none.plan(1, &gpu), Ok(BinaryBwdPlan::Strided));
    }
}
