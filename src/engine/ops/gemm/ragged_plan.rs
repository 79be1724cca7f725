//! How products of groups of rows run.

use super::plan::{
    MATRIX_SIDE, SPECIALIZED, SPECIALIZED_WIDE, WIDE, matrix_tile, specialized_grid, wide_is_faster,
};
use crate::device::Caps;
use crate::dtype::DType;
use crate::engine::launch::Grid;
use crate::engine::plan::{PORTABLE, Problem, Reason, Variant};
use crate::error::Result;
use crate::ops::gemm::*;

/// Rows and columns of a tile of the portable kernels.
const SIDE: usize = 64;
/// A kernel that looks for its group among more than this many spends its time on that.
const MANY_GROUPS: usize = 64;

/// Rows of a run, as `gemm/ragged.c` has it, and threads of a block.
const RUN_ROWS: usize = 32;
const THREADS: usize = 256;

const MATRIX_CORES: Variant = Variant { name: "matrix_cores", source: "kernels/common/gemm/ragged_matrix.c" };

/// A product by groups of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct RaggedProblem {
    /// Of the product, or of the gradient as it is stored; `batch` is the number of groups.
    pub(super) e: Extents,
    /// Rows of all groups.
    pub(super) rows: usize,
    pub(super) dtype: DType,
    /// Whether results have the type of the operands.
    pub(super) same_dtype: bool,
    /// Whether rows of all operands are whole items of 16 bytes at multiples of 16 bytes.
    pub(super) aligned: bool,
}

impl RaggedProblem {
    /// Whether groups are so many and so small that finding one's rows costs more than its product.
    fn many_small_groups(&self) -> bool {
        self.e.batch > MANY_GROUPS && self.rows < SIDE.saturating_mul(self.e.batch)
    }

    /// Whether a variant is worth it. Without matrix cores the portable kernels have more of their sums in registers.
    fn prefers(&self, variant: usize, caps: &Caps) -> bool {
        match variant {
            0 | 1 => caps.matrix_cores.is_some() && !self.many_small_groups(),
            2 => self.many_small_groups(),
            _ => true,
        }
    }

    /// Why kernels for matrix cores do not take it, if so.
    fn fits_matrix_cores(&self) -> Result<(), Reason> {
        if !matches!(self.dtype, DType::F16 | DType::Bf16) || !self.same_dtype {
            return Err("operands and results are not all f16 or all bf16".into());
        }
        if !self.aligned {
            return Err("rows are no whole items of 16 bytes at multiples of 16 bytes".into());
        }
        Ok(())
    }

    /// Columns of a tile and local memory of a block on matrix cores.
    fn matrix_tile(&self, caps: &Caps) -> Result<(usize, usize), Reason> {
        self.fits_matrix_cores()?;
        matrix_tile(caps)
    }

    /// Blocks of `gemm/matrix_specialized.c`, or with tiles of [`WIDE`] columns of `gemm/matrix_wide.c`, for so many tiles of rows, in `batch` matrices.
    fn specialized(&self, columns: usize, down: usize, batch: usize, caps: &Caps) -> Result<Grid, Reason> {
        self.fits_matrix_cores()?;
        let e = self.e;
        if e.k == 0 || self.rows == 0 {
            return Err("it has no rows or no terms".into());
        }
        if [e.m, e.n, e.k, e.batch].into_iter().any(|n| n > i32::MAX as usize / 2) {
            return Err("a size is above 2^30".into());
        }
        specialized_grid(columns, [down, e.n, batch], caps)
    }
}

/// Columns that the kernels for small groups give to neighbouring threads.
pub(super) fn columns(n: usize) -> usize {
    if n <= 16 { 16 } else { 64 }
}

/// Parts that the rows of each group are added in, for the gradient of the biases in so many blocks a part: two blocks for each unit of the device, and
/// no part of a group of mean size below 1024 rows, which take less time than the sums of several parts. A function of the problem and the device alone, so results repeat.
pub(super) fn bias_parts(rows: usize, groups: usize, blocks: usize, caps: &Caps) -> usize {
    let want = (2 * caps.compute_units as usize).div_ceil(blocks.max(1));
    want.min(rows / groups.max(1) / 1024).max(1)
}

/// The product itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct RaggedForward(pub(super) RaggedProblem);

/// How a product by groups runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RaggedPlan {
    /// By a warp-specialised kernel on matrix cores.
    Specialized(Grid),
    /// The same with tiles of [`WIDE`] columns.
    Wide(Grid),
    MatrixCores(Grid),
    /// A run of rows, of any groups, for neighbouring threads.
    ByRows(Grid),
    /// A block per group.
    ByGroup(Grid),
    /// A block per tile.
    Tiles(Grid),
}

impl RaggedForward {
    /// Tiles of so many rows and columns for any partition: every group, and the rows before and after all groups, can leave one incomplete.
    fn tiles(&self, rows: usize, columns: usize) -> usize {
        let e = self.0.e;
        e.n.div_ceil(columns).saturating_mul(e.m.div_ceil(rows).saturating_add(e.batch + 1))
    }
}

impl Problem for RaggedForward {
    type Plan = RaggedPlan;

    const VARIANTS: &'static [Variant] = &[
        SPECIALIZED,
        MATRIX_CORES,
        Variant { name: "by_rows", source: "kernels/common/gemm/ragged.c" },
        Variant { name: PORTABLE, source: "kernels/common/gemm/ragged.c" },
    ];

    fn plan(&self, variant: usize, caps: &Caps) -> Result<RaggedPlan, Reason> {
        let e = self.0.e;
        Ok(match variant {
            0 => {
                let down = e.m.div_ceil(MATRIX_SIDE).saturating_add(e.batch + 1);
                RaggedPlan::Specialized(self.0.specialized(MATRIX_SIDE, down, 1, caps)?)
            }
            1 => {
                let (columns, local) = self.0.matrix_tile(caps)?;
                RaggedPlan::MatrixCores(Grid::BlocksWithLocal(
                    [self.tiles(MATRIX_SIDE, columns), 1, 1],
                    local,
                ))
            }
            2 => {
                let wide = columns(e.n);
                let blocks = e.n.div_ceil(wide).saturating_mul(e.m.div_ceil(RUN_ROWS * (THREADS / wide)));
                RaggedPlan::ByRows(Grid::Blocks([blocks, 1, 1]))
            }
            _ => RaggedPlan::Tiles(Grid::Blocks([self.tiles(SIDE, SIDE), 1, 1])),
        })
    }

    fn prefers(&self, variant: usize, caps: &Caps) -> bool {
        self.0.prefers(variant, caps)
    }
}

/// The gradient of the matrices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct RaggedBackward {
    pub(super) p: RaggedProblem,
    /// Whether it is added to what is there.
    pub(super) accumulate: bool,
}

impl Problem for RaggedBackward {
    type Plan = RaggedPlan;

    const VARIANTS: &'static [Variant] = &[
        SPECIALIZED_WIDE,
        SPECIALIZED,
        MATRIX_CORES,
        Variant { name: "by_group", source: "kernels/common/gemm/ragged_bwd.c" },
        Variant { name: PORTABLE, source: "kernels/common/gemm/ragged_bwd.c" },
    ];

    fn plan(&self, variant: usize, caps: &Caps) -> Result<RaggedPlan, Reason> {
        let e = self.p.e;
        let down = e.m.div_ceil(MATRIX_SIDE);
        let tiles =
            |rows, columns| e.m.div_ceil(rows).saturating_mul(e.n.div_ceil(columns)).saturating_mul(e.batch);
        Ok(match variant {
            0 if self.accumulate => return Err("results are added to what is there".into()),
            0 => RaggedPlan::Wide(self.p.specialized(WIDE, down, e.batch, caps)?),
            1 => RaggedPlan::Specialized(self.p.specialized(MATRIX_SIDE, down, e.batch, caps)?),
            2 => {
                let (columns, local) = self.p.matrix_tile(caps)?;
                RaggedPlan::MatrixCores(Grid::BlocksWithLocal([tiles(MATRIX_SIDE, columns), 1, 1], local))
            }
            3 => RaggedPlan::ByGroup(Grid::Blocks([tiles(SIDE, columns(e.n)), 1, 1])),
            _ => RaggedPlan::Tiles(Grid::Blocks([tiles(SIDE, SIDE), 1, 1])),
        })
    }

    fn prefers(&self, variant: usize, caps: &Caps) -> bool {
        match variant {
            0 => {
                let e = self.p.e;
                wide_is_faster([e.m.div_ceil(MATRIX_SIDE), e.n, e.batch], caps) && self.p.prefers(0, caps)
            }
            _ => self.p.prefers(variant - 1, caps),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::MatrixCores;
    use crate::engine::geometry::tests::{chosen, gpu};

    fn hopper() -> Caps {
        Caps { matrix_cores: Some(MatrixCores::Ptx), shared_bytes: 227 << 10, ..gpu() }
    }

    fn problem() -> RaggedProblem {
        let e = Extents { batch: 8, m: 1000, n: 200, k: 64 };
        RaggedProblem { e, rows: 1000, dtype: DType::Bf16, same_dtype: true, aligned: true }
    }

    #[test]
    fn ragged_products_run_on_matrix_cores() {
        let (hopper, p) = (hopper(), RaggedForward(problem()));
        assert_eq!((chosen(&p, &hopper), chosen(&p, &gpu())), ("matrix_cores", PORTABLE));
        let grid = Grid::BlocksWithLocal([2 * (8 + 9), 1, 1], 96 << 10);
        assert_eq!(p.plan(1, &hopper), Ok(RaggedPlan::MatrixCores(grid)));
        assert_eq!(p.plan(2, &hopper), Ok(RaggedPlan::ByRows(Grid::Blocks([4 * 8, 1, 1]))));
        assert_eq!([1, 16, 17, 200].map(columns), [16, 16, 64, 64]);
        assert_eq!(p.plan(3, &hopper), Ok(RaggedPlan::Tiles(Grid::Blocks([4 * (16 + 9), 1, 1]))));
        // Where local memory is short, tiles are half as wide.
        let small = Caps { shared_bytes: 48 << 10, ..hopper.clone() };
        let narrow = Grid::BlocksWithLocal([4 * (8 + 9), 1, 1], 48 << 10);
        assert_eq!(
            (chosen(&p, &small), p.plan(1, &small)),
            ("matrix_cores", Ok(RaggedPlan::MatrixCores(narrow)))
        );
        assert_eq!(chosen(&p, &Caps { shared_bytes: 32 << 10, ..hopper.clone() }), PORTABLE);
        let maps = Caps { tensor_maps: true, compute_units: 132, ..hopper.clone() };
        let grid = Grid::BlocksOf { blocks: 2 * 17, threads: 384, local: 224 << 10 };
        assert_eq!(
            (chosen(&p, &maps), p.plan(0, &maps)),
            ("warp_specialized", Ok(RaggedPlan::Specialized(grid)))
        );
        for other in [
            RaggedProblem { dtype: DType::F32, ..p.0 },
            RaggedProblem { same_dtype: false, ..p.0 },
            RaggedProblem { aligned: false, ..p.0 },
        ] {
            assert_eq!(chosen(&RaggedForward(other), &hopper), PORTABLE, "{other:?}");
            assert_eq!(
                chosen(&RaggedBackward { p: other, accumulate: false }, &hopper),
                PORTABLE,
                "{other:?}"
            );
        }
    }

    #[test]
    fn many_small_groups_have_kernels_of_their_own() {
        let e = Extents { batch: 20_000, m: 200_000, n: 64, k: 16 };
        let p = RaggedProblem { e, rows: 200_000, ..problem() };
        assert_eq!(chosen(&RaggedForward(p), &hopper()), "by_rows");
        assert_eq!(chosen(&RaggedBackward { p, accumulate: false }, &hopper()), "by_group");
        // A few hundred experts with enough rows do not.
        let experts = Extents { batch: 256, ..e };
        assert_eq!(chosen(&RaggedForward(RaggedProblem { e: experts, ..p }), &hopper()), "matrix_cores");
    }

    #[test]
    fn bias_gradients_fill_the_device() {
        let caps = Caps { compute_units: 132, ..gpu() };
        assert_eq!(bias_parts(8192, 8, 128, &caps), 1);
        assert_eq!(bias_parts(65_536, 8, 128, &caps), 3);
        assert_eq!(bias_parts(65_536, 8, 32, &caps), 8);
        assert_eq!(bias_parts(200, 8, 32, &caps), 1);
        assert_eq!(bias_parts(200_000, 20_000, 20_000, &caps), 1);
        assert_eq!(bias_parts(0, 0, 0, &caps), 1);
    }

    #[test]
    fn gradients_have_a_block_per_tile_of_each_matrix() {
        let p = RaggedBackward { p: problem(), accumulate: false };
        let local = Grid::BlocksWithLocal([8 * 8 * 2, 1, 1], 96 << 10);
        assert_eq!(p.plan(2, &hopper()), Ok(RaggedPlan::MatrixCores(local)));
        assert_eq!(p.plan(3, &gpu()), Ok(RaggedPlan::ByGroup(Grid::Blocks([16 * 4 * 8, 1, 1]))));
        assert_eq!(p.plan(4, &gpu()), Ok(RaggedPlan::Tiles(Grid::Blocks([16 * 4 * 8, 1, 1]))));
        let maps = Caps { tensor_maps: true, compute_units: 132, ..hopper() };
        let wide = Grid::BlocksOf { blocks: 132, threads: 384, local: 216_064 };
        let p = RaggedBackward { p: RaggedProblem { e: Extents { n: 1024, ..p.p.e }, ..p.p }, ..p };
        assert_eq!(
            (chosen(&p, &maps), p.plan(0, &maps)),
            ("warp_specialized_256", Ok(RaggedPlan::Wide(wide)))
        );
        let added = RaggedBackward { accumulate: true, ..p };
        assert_eq!(chosen(&added, &maps), "warp_specialized");
    }
}
