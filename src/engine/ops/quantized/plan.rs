//! How quantization and products with quantized weights run.

use crate::device::Caps;
use crate::engine::launch::{LANES, pow2};
use crate::engine::plan::{Problem, Reason, Variant};

/// Rows of x up to which weights are read once for all of them (`GK_MOST_ROWS`).
const FEW_ROWS: usize = 8;
/// Codes or elements that a thread takes at a time.
const RUN: usize = 8;

const PRODUCT: &str = "kernels/common/quantized/product.c";
const QUANTIZE: &str = "kernels/common/quantized/quantize.c";

/// A product of `m` rows of `k` elements with quantized weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct QuantProblem {
    pub(crate) m: usize,
    pub(crate) k: usize,
    /// Products that share a scale.
    pub(crate) products_per: usize,
    /// Whether x and the weights begin at multiples of 16 bytes.
    pub(crate) aligned: bool,
}

/// How it runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum QuantPlan {
    /// All rows together along each row of the weights, by runs of 8 products whose scale is that of their place >> `shift`, or one by one.
    FewRows { shift: Option<u32> },
    /// By square tiles.
    Tiles,
}

impl QuantProblem {
    /// The binary logarithm of the products that share a scale, where rows and such groups are whole aligned runs; 31 for all of a row.
    fn shift(&self) -> Option<u32> {
        let group = self.products_per;
        let one = group >= self.k;
        let whole = self.aligned && self.k.is_multiple_of(RUN) && (one || group.is_multiple_of(RUN));
        match (whole, one) {
            (true, true) => Some(31),
            (true, false) if group.is_power_of_two() => Some(group.ilog2()),
            _ => None,
        }
    }
}

impl Problem for QuantProblem {
    type Plan = QuantPlan;

    const VARIANTS: &'static [Variant] =
        &[Variant { name: "few_rows", source: PRODUCT }, Variant { name: "tiles", source: PRODUCT }];

    fn plan(&self, variant: usize, _: &Caps) -> Result<QuantPlan, Reason> {
        match variant {
            0 if self.m > FEW_ROWS => Err(format!("x has more than {FEW_ROWS} rows").into()),
            0 => Ok(QuantPlan::FewRows { shift: self.shift() }),
            _ => Ok(QuantPlan::Tiles),
        }
    }
}

/// Runs of a group that a thread holds in registers: of short and long ones (the latter is `GK_QUANT_KEEP`).
const KEEP: [usize; 2] = [1, 4];

/// Quantization of `groups` groups of `size` neighbours with a scale each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct QuantizeProblem {
    pub(crate) groups: usize,
    pub(crate) size: usize,
    /// Whether x and its codes begin at multiples of 16 bytes.
    pub(crate) aligned: bool,
}

/// How it runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum QuantizePlan {
    /// A group of `runs` runs in the registers of `lanes` threads, by the kernel for `KEEP[size]` of them in each.
    Groups { runs: usize, lanes: usize, size: usize, blocks: usize },
    /// The largest magnitudes by a reduction, then the codes; with `wide` by whole aligned runs.
    Reduced { wide: bool },
}

impl QuantizeProblem {
    /// Whether groups consist of whole aligned runs.
    pub(crate) fn wide(&self) -> bool {
        self.aligned && self.size.is_multiple_of(RUN)
    }
}

impl Problem for QuantizeProblem {
    type Plan = QuantizePlan;

    const VARIANTS: &'static [Variant] =
        &[Variant { name: "groups", source: QUANTIZE }, Variant { name: "reduced", source: QUANTIZE }];

    fn plan(&self, variant: usize, _: &Caps) -> Result<QuantizePlan, Reason> {
        let runs = self.size / RUN;
        match variant {
            0 if !self.wide() => Err("groups do not consist of whole aligned runs of 8 elements".into()),
            0 => {
                // Threads of a group meet without barriers where a warp has them all.
                let Some(size) =
                    KEEP.iter().position(|&keep| runs <= keep * if keep == 1 { 32 } else { LANES })
                else {
                    return Err(format!(
                        "a group of {} elements does not fit the registers of a block",
                        self.size
                    )
                    .into());
                };
                let lanes = pow2(runs.div_ceil(KEEP[size]), LANES);
                Ok(QuantizePlan::Groups { runs, lanes, size, blocks: self.groups.div_ceil(LANES / lanes) })
            }
            _ => Ok(QuantizePlan::Reduced { wide: self.wide() }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::geometry::tests::gpu;

    #[test]
    fn few_rows_read_the_weights_once() {
        let caps = gpu();
        let p = QuantProblem { m: 1, k: 4096, products_per: 128, aligned: true };
        let shift =
            |p: QuantProblem| p.plan(0, &caps).map(|p| matches!(p, QuantPlan::FewRows { shift: Some(_) }));
        assert_eq!(p.plan(0, &caps), Ok(QuantPlan::FewRows { shift: Some(7) }));
        assert_eq!(
            QuantProblem { products_per: 4096, ..p }.plan(0, &caps),
            Ok(QuantPlan::FewRows { shift: Some(31) })
        );
        assert_eq!(p.plan(1, &caps), Ok(QuantPlan::Tiles));
        for odd in [
            QuantProblem { aligned: false, ..p },
            QuantProblem { k: 12, products_per: 12, ..p },
            QuantProblem { products_per: 4, ..p },
            QuantProblem { k: 96 * 4, products_per: 96, ..p },
        ] {
            assert_eq!(shift(odd), Ok(false), "{odd:?}");
        }
        assert!(QuantProblem { m: 9, ..p }.plan(0, &caps).is_err_and(|e| e.contains("more than 8 rows")));
    }

    #[test]
    fn groups_that_fit_registers_are_read_once() {
        let caps = gpu();
        let p = QuantizeProblem { groups: 100, size: 32, aligned: true };
        assert_eq!(p.plan(0, &caps), Ok(QuantizePlan::Groups { runs: 4, lanes: 4, size: 0, blocks: 2 }));
        let row = QuantizeProblem { size: 4096, ..p };
        assert_eq!(
            row.plan(0, &caps),
            Ok(QuantizePlan::Groups { runs: 512, lanes: 128, size: 1, blocks: 50 })
        );
        assert!(QuantizeProblem { size: 8_200, ..p }.plan(0, &caps).is_err_and(|e| e.contains("8200")));
        for odd in [QuantizeProblem { size: 12, ..p }, QuantizeProblem { aligned: false, ..p }] {
            assert!(odd.plan(0, &caps).is_err());
            assert_eq!(odd.plan(1, &caps), Ok(QuantizePlan::Reduced { wide: false }));
        }
    }
}
