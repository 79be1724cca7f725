//! How tokens are drawn: each row by one block, or sections of rows by blocks of their own first.

use crate::device::Caps;
use crate::engine::plan::{Problem, Reason, Variant};

const SOURCE: &str = "kernels/common/language_model/sampling.c";

/// Sections of a row (`GK_SAMPLE_DIGITS`).
pub(super) const SECTIONS: usize = 16;

/// A draw from each of `rows` rows of `vocab` logits.
#[derive(Debug, Clone, Copy, Hash)]
pub(super) struct SampleProblem {
    pub(super) rows: usize,
    pub(super) vocab: usize,
}

impl Problem for SampleProblem {
    /// Blocks for sections, or none.
    type Plan = Option<usize>;

    const VARIANTS: &'static [Variant] =
        &[Variant { name: "sections", source: SOURCE }, Variant { name: "rows", source: SOURCE }];

    fn plan(&self, variant: usize, _caps: &Caps) -> Result<Option<usize>, Reason> {
        match self.rows.saturating_mul(SECTIONS) {
            _ if variant == 1 => Ok(None),
            blocks if blocks > i32::MAX as usize => Err(format!("{blocks} blocks exceed the grid").into()),
            blocks => Ok(Some(blocks)),
        }
    }

    fn prefers(&self, variant: usize, caps: &Caps) -> bool {
        // A section has 128 elements at least; as many blocks as rows are enough where each multiprocessor has eight.
        variant == 1 || !caps.is_cpu && self.vocab >= 128 * SECTIONS && self.rows < caps.target_blocks()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::geometry::tests::{chosen, cpu, gpu};

    #[test]
    fn sections_serve_where_rows_are_few_and_long() {
        let p = SampleProblem { rows: 256, vocab: 131_072 };
        assert_eq!((chosen(&p, &gpu()), p.plan(0, &gpu())), ("sections", Ok(Some(4096))));
        assert_eq!(p.plan(1, &gpu()), Ok(None));
        assert_eq!(chosen(&SampleProblem { rows: 2000, ..p }, &gpu()), "rows");
        assert_eq!(chosen(&SampleProblem { vocab: 1000, ..p }, &gpu()), "rows");
        assert_eq!(chosen(&p, &cpu()), "rows");
        assert!(SampleProblem { rows: 1 << 28, ..p }.plan(0, &gpu()).is_err_and(|e| e.contains("grid")));
    }
}
