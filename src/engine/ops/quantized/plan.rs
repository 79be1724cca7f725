//! How products with quantized weights run.

use crate::device::Caps;
use crate::engine::plan::{Problem, Reason, Variant};

/// Rows of x up to which weights are read once for all of them (`GK_MOST_ROWS`).
const FEW_ROWS: usize = 8;
/// Products that a thread of the kernel for few rows takes at a time.
const GROUP: usize = 8;

const SOURCE: &str = "kernels/common/quantized/quantized.c";

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
    /// All rows together along each row of the weights, with `wide` by groups of 8 products.
    FewRows { wide: bool },
    /// By square tiles.
    Tiles,
}

impl Problem for QuantProblem {
    type Plan = QuantPlan;

    const VARIANTS: &'static [Variant] =
        &[Variant { name: "few_rows", source: SOURCE }, Variant { name: "tiles", source: SOURCE }];

    fn plan(&self, variant: usize, _: &Caps) -> Result<QuantPlan, Reason> {
        match variant {
            0 if self.m > FEW_ROWS => Err(format!("x has more than {FEW_ROWS} rows").into()),
            // Groups of products lie in one scale's group and at multiples of 4 bytes.
            0 => {
                let groups = self.k.is_multiple_of(GROUP) && self.products_per.is_multiple_of(GROUP);
                Ok(QuantPlan::FewRows { wide: groups && self.aligned })
            }
            _ => Ok(QuantPlan::Tiles),
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
        assert_eq!(p.plan(0, &caps), Ok(QuantPlan::FewRows { wide: true }));
        assert_eq!(p.plan(1, &caps), Ok(QuantPlan::Tiles));
        for odd in [
            QuantProblem { aligned: false, ..p },
            QuantProblem { k: 12, ..p },
            QuantProblem { products_per: 12, ..p },
        ] {
            assert_eq!(odd.plan(0, &caps), Ok(QuantPlan::FewRows { wide: false }));
        }
        assert!(QuantProblem { m: 9, ..p }.plan(0, &caps).is_err_and(|e| e.contains("more than 8 rows")));
    }
}
