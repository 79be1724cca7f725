//! How elements are moved and written.

use crate::device::Caps;
use crate::engine::plan::{Problem, Reason, Variant};

/// Shorter side of a matrix from which it is transposed by tiles.
const SHORT: usize = 16;

const SOURCE: &str = "kernels/common/shape/shape.c";
const STRIDED: Variant = Variant { name: "strided", source: SOURCE };

/// A movement over merged axes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct CopyProblem {
    /// Whether source and destination are one run of memory each.
    pub(crate) contiguous: bool,
    pub(crate) accumulate: bool,
    /// A transposition: the axis along which the source lies in memory, and the sizes of it and of the destination's, the last.
    pub(crate) transposed: Option<(usize, [usize; 2])>,
}

/// How it runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CopyPlan {
    /// By the driver.
    Contiguous,
    /// By tiles that are transposed in local memory, along that axis of the source.
    Tiles { axis: usize },
    /// By coordinates.
    Strided,
}

impl Problem for CopyProblem {
    type Plan = CopyPlan;

    const VARIANTS: &'static [Variant] = &[
        Variant { name: "contiguous", source: "the driver" },
        Variant { name: "tiles", source: SOURCE },
        STRIDED,
    ];

    fn plan(&self, variant: usize, _: &Caps) -> Result<CopyPlan, Reason> {
        match (variant, self.transposed) {
            (0, _) if self.accumulate => Err("it adds to what is there".into()),
            (0, _) if !self.contiguous => Err("an operand is not contiguous".into()),
            (0, _) => Ok(CopyPlan::Contiguous),
            (1, None) => Err("it is no transposition".into()),
            (1, Some((_, [a, b]))) if a.min(b) < SHORT => Err(format!("a side is below {SHORT}").into()),
            (1, Some((axis, _))) => Ok(CopyPlan::Tiles { axis }),
            _ => Ok(CopyPlan::Strided),
        }
    }
}

/// A concatenation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct ConcatProblem {
    /// Whether all operands are.
    pub(crate) contiguous: bool,
}

/// How it runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ConcatPlan {
    /// Eight inputs at a time.
    Batched,
    /// A strided copy per input.
    Copies,
}

impl Problem for ConcatProblem {
    type Plan = ConcatPlan;

    const VARIANTS: &'static [Variant] =
        &[Variant { name: "batched", source: SOURCE }, Variant { name: "copies", source: SOURCE }];

    fn plan(&self, variant: usize, _: &Caps) -> Result<ConcatPlan, Reason> {
        match (variant, self.contiguous) {
            (0, false) => Err("an operand is not contiguous".into()),
            (0, true) => Ok(ConcatPlan::Batched),
            _ => Ok(ConcatPlan::Copies),
        }
    }
}

/// A tensor that is filled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct FillProblem {
    /// Whether it is one run of memory.
    pub(crate) contiguous: bool,
}

/// How it is filled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FillPlan {
    /// By 16 bytes, after single elements up to the first boundary.
    Flat,
    /// By coordinates.
    Strided,
}

impl Problem for FillProblem {
    type Plan = FillPlan;

    const VARIANTS: &'static [Variant] = &[Variant { name: "flat", source: SOURCE }, STRIDED];

    fn plan(&self, variant: usize, _: &Caps) -> Result<FillPlan, Reason> {
        match (variant, self.contiguous) {
            (0, false) => Err("it is not contiguous".into()),
            (0, true) => Ok(FillPlan::Flat),
            _ => Ok(FillPlan::Strided),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::geometry::tests::{cpu, gpu};

    #[test]
    fn copies_take_the_shortest_way() {
        let caps = gpu();
        let chosen = |p: CopyProblem| (0..3).find_map(|v| p.plan(v, &caps).ok());
        let flat = CopyProblem { contiguous: true, accumulate: false, transposed: None };
        assert_eq!(chosen(flat), Some(CopyPlan::Contiguous));
        assert_eq!(chosen(CopyProblem { accumulate: true, ..flat }), Some(CopyPlan::Strided));
        let strided = CopyProblem { contiguous: false, ..flat };
        assert_eq!(chosen(strided), Some(CopyPlan::Strided));
        let turned = CopyProblem { transposed: Some((1, [64, 16])), ..strided };
        assert_eq!(chosen(turned), Some(CopyPlan::Tiles { axis: 1 }));
        let thin = CopyProblem { transposed: Some((1, [4096, 15])), ..strided };
        assert_eq!(chosen(thin), Some(CopyPlan::Strided));
        assert!(thin.plan(1, &caps).is_err_and(|e| e.contains("below 16")));
        assert!(flat.plan(1, &caps).is_err_and(|e| e.contains("no transposition")));
    }

    #[test]
    fn gaps_are_addressed_by_coordinates() {
        let caps = cpu();
        assert_eq!(ConcatProblem { contiguous: true }.plan(0, &caps), Ok(ConcatPlan::Batched));
        assert!(ConcatProblem { contiguous: false }.plan(0, &caps).is_err());
        assert_eq!(ConcatProblem { contiguous: true }.plan(1, &caps), Ok(ConcatPlan::Copies));
        assert_eq!(FillProblem { contiguous: true }.plan(0, &caps), Ok(FillPlan::Flat));
        assert!(FillProblem { contiguous: false }.plan(0, &caps).is_err());
        assert_eq!(FillProblem { contiguous: false }.plan(1, &caps), Ok(FillPlan::Strided));
    }
}
