//! How tokens are drawn: each row by one block, sections of rows by blocks of their own first, or what is kept by histograms of parts of rows, or by
//! clusters of blocks that hold a row.

use crate::device::Caps;
use crate::dtype::DType;
use crate::engine::launch::LANES;
use crate::engine::plan::{Problem, Reason, Variant};

const SOURCE: &str = "kernels/common/language_model/sampling.c";

/// Sections of a row (`GK_SAMPLE_DIGITS`).
pub(super) const SECTIONS: usize = 16;
/// Logits of a part of a row at most (`GK_ROW_PART`).
const PART: usize = 8192;
/// Logits that a block of a cluster holds, and bytes of local memory: half of them, and as many sums (`GK_HELD_PART`); beside what the kernels declare.
const HELD: usize = 64 * LANES;
const HELD_LOCAL: usize = 4 * HELD;
const HELD_BESIDE: usize = 6 << 10;
/// Blocks of a cluster: what kernels note of a row has room for as many.
const CLUSTER: usize = 8;
/// Logits of a row from which on a cluster serves it: 4,096 for each of eight blocks.
const LONG_HELD: usize = 1 << 15;
/// Logits of a row from which on several blocks serve it: 128 in a section.
const LONG: usize = 128 * SECTIONS;

/// A draw from each of `rows` rows of `vocab` logits.
#[derive(Debug, Clone, Copy, Hash)]
pub(super) struct SampleProblem {
    pub(super) rows: usize,
    pub(super) vocab: usize,
    pub(super) dtype: DType,
    /// Whether top-k or top-p leave logits out.
    pub(super) filtered: bool,
}

/// Where a row is looked at before a token is drawn from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SamplePlan {
    /// What is kept is found by a cluster of blocks for each row: as many blocks, with bytes of local memory.
    Cluster { blocks: usize, local: usize },
    /// What is kept is found by this many blocks for each row: a multiple of [`SECTIONS`].
    Histogram { parts: usize },
    /// Largest logits and sums of sections are.
    Sections,
    /// By the block that draws.
    Rows,
}

impl SampleProblem {
    /// Blocks for `parts` of each row.
    fn fits(&self, parts: usize) -> Result<(), Reason> {
        match self.rows.saturating_mul(parts) {
            blocks if blocks > i32::MAX as usize => Err(format!("{blocks} blocks exceed the grid").into()),
            _ => Ok(()),
        }
    }

    /// Why neither clusters nor histograms serve the rows.
    fn unfiltered(&self) -> Option<Reason> {
        match self.dtype {
            _ if !self.filtered => Some("neither top-k nor top-p leave anything out".into()),
            DType::F64 => Some("powers are summed with 18 to 21 bits, too few for f64".into()),
            _ => None,
        }
    }

    fn cluster(&self, caps: &Caps) -> Result<SamplePlan, Reason> {
        let cluster = caps.cluster as usize;
        if cluster != CLUSTER {
            return Err("the device has no clusters of eight blocks".into());
        }
        if self.vocab > cluster * HELD {
            return Err(format!("{} logits in a row, a cluster holds {}", self.vocab, cluster * HELD).into());
        }
        if HELD_LOCAL + HELD_BESIDE > caps.shared_bytes as usize {
            return Err(
                format!("it needs {HELD_LOCAL} bytes of local memory, of {}", caps.shared_bytes).into()
            );
        }
        self.fits(cluster).map(|()| SamplePlan::Cluster { blocks: self.rows * cluster, local: HELD_LOCAL })
    }
}

impl Problem for SampleProblem {
    type Plan = SamplePlan;

    const VARIANTS: &'static [Variant] = &[
        Variant { name: "cluster", source: "kernels/common/language_model/cluster.c" },
        Variant { name: "histogram", source: "kernels/common/language_model/histogram.c" },
        Variant { name: "sections", source: SOURCE },
        Variant { name: "rows", source: SOURCE },
    ];

    fn plan(&self, variant: usize, caps: &Caps) -> Result<SamplePlan, Reason> {
        if let (0 | 1, Some(reason)) = (variant, self.unfiltered()) {
            return Err(reason);
        }
        match variant {
            0 => self.cluster(caps),
            1 => {
                let parts = SECTIONS * self.vocab.div_ceil(SECTIONS).div_ceil(PART);
                if parts > LANES {
                    return Err(format!(
                        "{} logits in a row, at most {} are cut into parts",
                        self.vocab,
                        LANES * PART
                    )
                    .into());
                }
                self.fits(parts).map(|()| SamplePlan::Histogram { parts })
            }
            2 => self.fits(SECTIONS).map(|()| SamplePlan::Sections),
            _ => Ok(SamplePlan::Rows),
        }
    }

    fn prefers(&self, variant: usize, caps: &Caps) -> bool {
        // As many blocks as rows are enough where each multiprocessor has eight.
        let long = if variant == 0 { LONG_HELD } else { LONG };
        variant == 3 || !caps.is_cpu && self.vocab >= long && self.rows < caps.target_blocks()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::geometry::tests::{chosen, cpu, gpu};

    #[test]
    fn several_blocks_serve_rows_that_are_few_and_long() {
        let p = SampleProblem { rows: 256, vocab: 131_072, dtype: DType::F32, filtered: false };
        assert_eq!((chosen(&p, &gpu()), p.plan(2, &gpu())), ("sections", Ok(SamplePlan::Sections)));
        assert_eq!(chosen(&SampleProblem { rows: 2000, ..p }, &gpu()), "rows");
        assert_eq!(chosen(&SampleProblem { vocab: 1000, ..p }, &gpu()), "rows");
        assert_eq!(chosen(&p, &cpu()), "rows");
        assert!(SampleProblem { rows: 1 << 28, ..p }.plan(2, &gpu()).is_err_and(|e| e.contains("grid")));
    }

    #[test]
    fn histograms_serve_rows_of_which_something_is_left_out() {
        let p = SampleProblem { rows: 256, vocab: 131_072, dtype: DType::Bf16, filtered: true };
        assert_eq!(
            (chosen(&p, &gpu()), p.plan(1, &gpu())),
            ("histogram", Ok(SamplePlan::Histogram { parts: 16 }))
        );
        let longer = SampleProblem { vocab: 131_073, ..p };
        assert_eq!(longer.plan(1, &gpu()), Ok(SamplePlan::Histogram { parts: 32 }));
        let longest = SampleProblem { vocab: (256 * 8192) + 1, ..p };
        assert!(longest.plan(1, &gpu()).is_err_and(|e| e.contains("2097152")));
        assert_eq!(chosen(&SampleProblem { dtype: DType::F64, ..p }, &gpu()), "sections");
        assert_eq!(chosen(&SampleProblem { rows: 2000, ..p }, &gpu()), "rows");
        assert_eq!(chosen(&p, &cpu()), "rows");
    }
    #[test]
    fn clusters_hold_rows_that_fit() {
        let caps = Caps { shared_bytes: 227 << 10, ..gpu() };
        let p = SampleProblem { rows: 256, vocab: 131_072, dtype: DType::F32, filtered: true };
        let plan = SamplePlan::Cluster { blocks: 2048, local: 64 << 10 };
        assert_eq!((chosen(&p, &caps), p.plan(0, &caps)), ("cluster", Ok(plan)));
        assert_eq!(chosen(&SampleProblem { vocab: 131_073, ..p }, &caps), "histogram");
        assert_eq!(chosen(&SampleProblem { vocab: 30_000, ..p }, &caps), "histogram");
        assert_eq!(chosen(&SampleProblem { filtered: false, ..p }, &caps), "sections");
        assert_eq!(chosen(&p, &Caps { cluster: 1, ..caps.clone() }), "histogram");
        assert!(p.plan(0, &Caps { shared_bytes: 64 << 10, ..caps }).is_err_and(|e| e.contains("local")));
    }
}
