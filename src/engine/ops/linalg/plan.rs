//! How factorisations and triangular systems run.

use super::matrix::TILE;
use crate::device::Caps;
use crate::engine::plan::{Problem, Reason, Variant};

/// Rows that one block factors or solves with before the others take a matrix product.
pub(super) const ROWS: usize = 128;

const CHOLESKY: &str = "kernels/common/linalg/cholesky.c";
const TRIANGLE: &str = "kernels/common/linalg/triangle.c";

fn one_block(n: usize) -> Reason {
    format!("{n} rows are one block of {ROWS}").into()
}

/// Cholesky factors of `batch` matrices of side `n`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct CholeskyProblem {
    pub(crate) batch: usize,
    pub(crate) n: usize,
}

/// How they are found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CholeskyPlan {
    /// Blocks of [`ROWS`] columns: a diagonal block is factored, those below it are solved, the rest takes a product.
    Blocked,
    /// One block of threads per matrix.
    Block,
}

impl Problem for CholeskyProblem {
    type Plan = CholeskyPlan;

    const VARIANTS: &'static [Variant] =
        &[Variant { name: "blocked", source: CHOLESKY }, Variant { name: "block", source: CHOLESKY }];

    fn plan(&self, variant: usize, _: &Caps) -> Result<CholeskyPlan, Reason> {
        match variant {
            0 if self.n <= ROWS => Err(one_block(self.n)),
            0 => Ok(CholeskyPlan::Blocked),
            _ => Ok(CholeskyPlan::Block),
        }
    }

    fn prefers(&self, variant: usize, caps: &Caps) -> bool {
        variant != 0 || self.n > 4 * ROWS || self.n > 2 * ROWS && self.batch < caps.target_blocks() / 8
    }
}

/// Triangular systems: `batch` triangles of side `n`, `k` right sides each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct TriangularProblem {
    pub(crate) batch: usize,
    pub(crate) n: usize,
    pub(crate) k: usize,
}

/// How they are solved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TriangularPlan {
    /// [`ROWS`] rows at a time; those below take a product.
    Blocked,
    /// A block of threads has 32 right sides from the first row to the last.
    Columns,
}

impl Problem for TriangularProblem {
    type Plan = TriangularPlan;

    const VARIANTS: &'static [Variant] =
        &[Variant { name: "blocked", source: TRIANGLE }, Variant { name: "columns", source: TRIANGLE }];

    fn plan(&self, variant: usize, _: &Caps) -> Result<TriangularPlan, Reason> {
        match variant {
            0 if self.n <= ROWS => Err(one_block(self.n)),
            0 => Ok(TriangularPlan::Blocked),
            _ => Ok(TriangularPlan::Columns),
        }
    }

    fn prefers(&self, variant: usize, caps: &Caps) -> bool {
        let blocks = self.batch.saturating_mul(self.k.div_ceil(TILE));
        variant != 0 || self.n > 4 * ROWS || self.n > 2 * ROWS && blocks < caps.target_blocks() / 8
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::geometry::tests::{applicable, chosen, cpu, gpu};

    #[test]
    fn large_matrices_are_cut_into_blocks() {
        let cases = [
            (CholeskyProblem { batch: 64, n: 128 }, "block"),
            (CholeskyProblem { batch: 1, n: 256 }, "block"),
            (CholeskyProblem { batch: 1, n: 300 }, "blocked"),
            (CholeskyProblem { batch: 4096, n: 300 }, "block"),
            (CholeskyProblem { batch: 4096, n: 2000 }, "blocked"),
        ];
        for (p, on_gpu) in cases {
            assert_eq!(chosen(&p, &gpu()), on_gpu, "{p:?}");
        }
        assert_eq!(applicable(&CholeskyProblem { batch: 1, n: 128 }, &cpu()), ["block"]);
        assert_eq!(applicable(&CholeskyProblem { batch: 1, n: 129 }, &cpu()), ["blocked", "block"]);
    }

    #[test]
    fn few_right_sides_of_large_triangles_are_solved_in_blocks() {
        let system = |batch, n, k| TriangularProblem { batch, n, k };
        let cases = [
            (system(1, 64, 1), "columns"),
            (system(64, 256, 256), "columns"),
            (system(1, 400, 1), "blocked"),
            (system(1, 400, 100_000), "columns"),
            (system(1, 4096, 4096), "blocked"),
        ];
        for (p, on_gpu) in cases {
            assert_eq!(chosen(&p, &gpu()), on_gpu, "{p:?}");
        }
        assert!(system(1, 128, 1).plan(0, &gpu()).is_err_and(|e| e.contains("one block")));
    }
}
