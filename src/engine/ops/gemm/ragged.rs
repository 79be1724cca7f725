//! Products of groups of rows with matrices of their own, and the gradient of these.

use super::MatrixOperand;
use super::plan::{MATRIX_SIDE, matrix_tile, specialized_grid};
use crate::buffer::View;
use crate::device::Caps;
use crate::driver::{DimsArg, Ptr, TensorMap};
use crate::dtype::DType;
use crate::engine::Engine;
use crate::engine::launch::{Grid, code_of_op, dims};
use crate::engine::plan::{PORTABLE, Problem, Reason, Variant};
use crate::error::Result;
use crate::ops::core::Choice;
use crate::ops::gemm::*;
use crate::spec::gemm::OUTPUTS;
use crate::spec::kernels::gemm::*;

/// Rows and columns of a tile of the portable kernels.
const SIDE: usize = 64;
/// A kernel that looks for its group among more than this many spends its time on that.
const MANY_GROUPS: usize = 64;

const SPECIALIZED: Variant =
    Variant { name: "warp_specialized", source: "kernels/common/gemm/matrix_specialized.c" };
const MATRIX_CORES: Variant = Variant { name: "matrix_cores", source: "kernels/common/gemm/ragged_matrix.c" };

/// A product by groups of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct RaggedProblem {
    /// Of the product, or of the gradient as it is stored; `batch` is the number of groups.
    e: Extents,
    /// Rows of all groups.
    rows: usize,
    dtype: DType,
    /// Whether results have the type of the operands.
    same_dtype: bool,
    /// Whether rows of all operands are whole items of 16 bytes at multiples of 16 bytes.
    aligned: bool,
}

impl RaggedProblem {
    /// Whether groups are so many and so small that finding one's rows costs more than its product.
    fn many_small_groups(&self) -> bool {
        self.e.batch > MANY_GROUPS && self.rows < SIDE.saturating_mul(self.e.batch)
    }

    /// Whether a variant is worth it. Without matrix cores the portable kernels have more of their sums in registers.
    fn prefers(&self, variant: usize, caps: &Caps) -> bool {
        match variant {
            0 | 1 => caps.matrix_cores && !self.many_small_groups(),
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

    /// Blocks of `gemm/matrix_specialized.c` for so many tiles of rows, in `batch` matrices.
    fn specialized(&self, down: usize, batch: usize, caps: &Caps) -> Result<RaggedPlan, Reason> {
        self.fits_matrix_cores()?;
        let e = self.e;
        if e.k == 0 || self.rows == 0 {
            return Err("it has no rows or no terms".into());
        }
        if [e.m, e.n, e.k, e.batch].into_iter().any(|n| n > i32::MAX as usize / 2) {
            return Err("a size is above 2^30".into());
        }
        specialized_grid(down, e.n.div_ceil(MATRIX_SIDE), batch, caps).map(RaggedPlan::Specialized)
    }
}

/// Columns that a block of the kernels for small groups has.
fn columns(n: usize) -> usize {
    if n <= 16 { 16 } else { 64 }
}

/// The product itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct RaggedForward(RaggedProblem);

/// How a product by groups runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RaggedPlan {
    /// On matrix cores by warps of different work.
    Specialized(Grid),
    MatrixCores(Grid),
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
        Variant { name: "by_group", source: "kernels/common/gemm/ragged.c" },
        Variant { name: PORTABLE, source: "kernels/common/gemm/ragged.c" },
    ];

    fn plan(&self, variant: usize, caps: &Caps) -> Result<RaggedPlan, Reason> {
        let e = self.0.e;
        Ok(match variant {
            0 => return self.0.specialized(e.m.div_ceil(MATRIX_SIDE).saturating_add(e.batch + 1), 1, caps),
            1 => {
                let (columns, local) = self.0.matrix_tile(caps)?;
                RaggedPlan::MatrixCores(Grid::BlocksWithLocal(
                    [self.tiles(MATRIX_SIDE, columns), 1, 1],
                    local,
                ))
            }
            2 => {
                let blocks = e.n.div_ceil(columns(e.n)).saturating_mul(e.batch.saturating_add(2));
                RaggedPlan::ByGroup(Grid::Blocks([blocks, 1, 1]))
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
pub(crate) struct RaggedBackward(RaggedProblem);

impl Problem for RaggedBackward {
    type Plan = RaggedPlan;

    const VARIANTS: &'static [Variant] = &[
        SPECIALIZED,
        MATRIX_CORES,
        Variant { name: "by_group", source: "kernels/common/gemm/ragged_bwd.c" },
        Variant { name: PORTABLE, source: "kernels/common/gemm/ragged_bwd.c" },
    ];

    fn plan(&self, variant: usize, caps: &Caps) -> Result<RaggedPlan, Reason> {
        let e = self.0.e;
        let tiles =
            |rows, columns| e.m.div_ceil(rows).saturating_mul(e.n.div_ceil(columns)).saturating_mul(e.batch);
        Ok(match variant {
            0 => return self.0.specialized(e.m.div_ceil(MATRIX_SIDE), e.batch, caps),
            1 => {
                let (columns, local) = self.0.matrix_tile(caps)?;
                RaggedPlan::MatrixCores(Grid::BlocksWithLocal([tiles(MATRIX_SIDE, columns), 1, 1], local))
            }
            2 => RaggedPlan::ByGroup(Grid::Blocks([tiles(SIDE, columns(e.n)), 1, 1])),
            _ => RaggedPlan::Tiles(Grid::Blocks([tiles(SIDE, SIDE), 1, 1])),
        })
    }

    fn prefers(&self, variant: usize, caps: &Caps) -> bool {
        self.0.prefers(variant, caps)
    }
}

/// A matrix that lies in memory with steps by row and column.
fn operand(v: &View<'_>, trans: bool) -> MatrixOperand {
    MatrixOperand::new(v, steps(v, trans))
}

/// A matrix per group; a step between groups also where there is one.
fn of_groups(v: &View<'_>, trans: bool) -> MatrixOperand {
    let mut m = operand(v, trans);
    m.steps[2] = v.layout().strides()[0];
    m
}

/// Arguments of the kernels of warps of different work for a product alone: nothing is added to it, no activation, no second output.
fn specialized_args(
    [a, b]: [TensorMap; 2],
    y: MatrixOperand,
    (offsets, err, code): (Ptr, Ptr, i32),
    [size, steps]: [DimsArg; 2],
    alpha: f64,
) -> GemmRaggedSpecializedArgs {
    GemmRaggedSpecializedArgs {
        a,
        b,
        offsets,
        c: Ptr::NULL,
        bias: Ptr::NULL,
        y: y.arg(),
        z: Ptr::NULL,
        err,
        code,
        size,
        steps,
        alpha,
        beta: 0.0,
        p: 0.0,
        act: 0,
    }
}

/// A product of `gemm_ragged`.
struct Ragged<'a> {
    p: &'a Gemm,
    e: Extents,
    dtype: DType,
    out: DType,
    a: MatrixOperand,
    b: MatrixOperand,
    y: MatrixOperand,
    z: Option<MatrixOperand>,
    offsets: Ptr,
    bias: Ptr,
    err: Ptr,
    act: (i32, f64),
}

impl Ragged<'_> {
    /// Steps of B from row to row and from group to group as it lies in memory, and whether its rows are the columns of a term.
    fn rows_of_b(&self) -> ([usize; 2], bool) {
        let [r, c, group] = self.b.steps;
        let by_terms = c == 1;
        ([if by_terms { r } else { c }, group], by_terms)
    }

    fn problem(&self) -> RaggedForward {
        let (Ragged { e, dtype, a, b, y, .. }, ([row, group], by_terms)) = (self, self.rows_of_b());
        let whole = |n: usize| (n * dtype.size()).is_multiple_of(16);
        let z = self.z.unwrap_or(*y);
        let inner = a.steps[1] == 1 && y.steps[1] == 1 && z.steps[1] == 1 && (by_terms || b.steps[0] == 1);
        let rows = [a.steps[0], row, group, y.steps[0], z.steps[0], e.n, e.k].into_iter().all(whole);
        let aligned = a.aligned && b.aligned && y.aligned && z.aligned && inner && rows;
        let same_dtype = self.out == *dtype;
        RaggedForward(RaggedProblem { e: *e, rows: e.m, dtype: *dtype, same_dtype, aligned })
    }

    fn z(&self) -> (Ptr, [usize; 3]) {
        self.z.map_or((Ptr::NULL, [0; 3]), |z| (z.arg(), z.steps))
    }

    fn matrix_args(&self) -> GemmRaggedMatrixArgs {
        let (e, ([row, group], _), (z, sz)) = (self.e, self.rows_of_b(), self.z());
        GemmRaggedMatrixArgs {
            a: self.a.arg(),
            b: self.b.arg(),
            offsets: self.offsets,
            bias: self.bias,
            y: self.y.arg(),
            z,
            err: self.err,
            size: dims([e.m, e.n, e.k, e.batch]),
            steps: dims([self.a.steps[0], row, group, self.y.steps[0], sz[0], e.n]),
            alpha: self.p.alpha,
            act: self.act.0,
            p: self.act.1,
            code: code_of_op("gemm_ragged"),
        }
    }

    fn specialized_args(&self) -> GemmRaggedSpecializedArgs {
        let (e, (_, by_terms), (z, sz)) = (self.e, self.rows_of_b(), self.z());
        let (inner, outer) = if by_terms { (e.n, e.k) } else { (e.k, e.n) };
        let (act, p) = self.act;
        let plain = specialized_args(
            [self.a.map(e.k, e.m, 1, false), self.b.map(inner, outer, e.batch, !by_terms)],
            self.y,
            (self.offsets, self.err, code_of_op("gemm_ragged")),
            [dims([e.m, e.n, e.k, e.batch, 0, 0, e.n]), dims([0, 0, 0, 0, self.y.steps[0], 0, sz[0], 0])],
            self.p.alpha,
        );
        GemmRaggedSpecializedArgs { bias: self.bias, z, act, p, ..plain }
    }

    fn portable_args(&self) -> GemmRaggedArgs {
        let (e, dt, (z, sz)) = (self.e, self.dtype, self.z());
        // Groups start at any row: a load along the rows would not be aligned.
        let a = MatrixOperand { aligned: self.a.aligned && self.a.steps[1] == 1, ..self.a };
        let wide =
            usize::from(self.y.wide_rows(e.m)) + 2 * usize::from(self.z.is_some_and(|z| z.wide_rows(e.m)));
        GemmRaggedArgs {
            a: a.arg(),
            b: self.b.arg(),
            offsets: self.offsets,
            bias: self.bias,
            y: self.y.arg(),
            z,
            err: self.err,
            size: dims([e.m, e.n, e.k, e.batch, columns(e.n), 0, wide]),
            sa: a.side(e.m, e.k, dt),
            sb: self.b.transposed().side(e.n, e.k, dt),
            sv: dims([e.n]),
            sy: self.y.dims(),
            sz: dims(sz),
            alpha: self.p.alpha,
            act: self.act.0,
            p: self.act.1,
            code: code_of_op("gemm_ragged"),
        }
    }
}

impl Engine {
    /// The variant that serves eight groups of 4096 rows in all with matrices of 1024 x 1024 in bf16.
    pub(crate) fn explain_ragged(&self, op: &'static str) -> Result<Choice> {
        let e = Extents { batch: 8, m: 4096, n: 1024, k: 1024 };
        let p = RaggedProblem { e, rows: 4096, dtype: DType::Bf16, same_dtype: true, aligned: true };
        match op {
            "gemm_ragged" => self.explain_problem(op, &RaggedForward(p)),
            _ => self.explain_problem(
                op,
                &RaggedBackward(RaggedProblem { e: Extents { m: 1024, k: 4096, ..e }, ..p }),
            ),
        }
    }

    pub(super) fn ragged_product(&self, p: &Gemm, io: GemmRagged<'_>) -> Result<()> {
        let op = "gemm_ragged";
        let e = check_gemm_ragged(p, &io)?;
        let (y, z) = (io.y.as_view(), io.z.as_ref().map(|z| z.as_view()));
        for (arg, v) in [("a", &io.a), ("b", &io.b), ("offsets", &io.offsets), ("y", &y)] {
            self.check_owner(op, arg, v)?;
        }
        for (arg, v) in [("bias", &io.bias), ("z", &z)] {
            v.as_ref().map_or(Ok(()), |v| self.check_owner(op, arg, v))?;
        }
        let ragged = Ragged {
            p,
            e,
            dtype: io.a.dtype(),
            out: y.dtype(),
            a: operand(&io.a, false),
            b: of_groups(&io.b, p.trans_b),
            y: operand(&y, false),
            z: z.as_ref().map(|z| operand(z, false)),
            offsets: self.arg_in(&io.offsets),
            bias: io.bias.as_ref().map_or(Ptr::NULL, |v| self.arg_in(v)),
            err: self.arg_error(),
            act: fused_act(op, p.act)?,
        };
        let (kernel, grid) = match self.plan(op, &ragged.problem())? {
            RaggedPlan::Specialized(grid) => {
                let (_, by_terms) = ragged.rows_of_b();
                let kernel = if by_terms { &GEMM_RAGGED_SPECIALIZED_NN } else { &GEMM_RAGGED_SPECIALIZED_NT };
                return self.launch(kernel, ragged.dtype, OUTPUTS[0], grid, &ragged.specialized_args());
            }
            RaggedPlan::MatrixCores(grid) => {
                let (_, by_terms) = ragged.rows_of_b();
                let kernel = if by_terms { &GEMM_RAGGED_MATRIX_TERMS } else { &GEMM_RAGGED_MATRIX };
                return self.launch(kernel, ragged.dtype, "", grid, &ragged.matrix_args());
            }
            RaggedPlan::ByGroup(grid) => (&GEMM_RAGGED_BY_GROUP, grid),
            RaggedPlan::Tiles(grid) => (&GEMM_RAGGED, grid),
        };
        let of = OUTPUTS[usize::from(ragged.out != ragged.dtype)];
        self.launch(kernel, ragged.dtype, of, grid, &ragged.portable_args())
    }

    pub(super) fn ragged_gradient(&self, p: &Gemm, io: GemmRaggedBwd<'_>) -> Result<()> {
        let op = "gemm_ragged_bwd";
        let e = check_gemm_ragged_bwd(p, &io)?;
        let db = io.db.out.as_view();
        for (arg, v) in [("dz", &io.dz), ("a", &io.a), ("offsets", &io.offsets), ("db", &db)] {
            self.check_owner(op, arg, v)?;
        }
        let dt = io.a.dtype();
        let (a, dz, d) = (operand(&io.a, false), operand(&io.dz, false), of_groups(&db, false));
        let (left, right) = if p.trans_b { (dz, a) } else { (a, dz) };
        let whole = |n: usize| (n * dt.size()).is_multiple_of(16);
        let aligned = [left, right, d].iter().all(|m| m.aligned && m.steps[1] == 1 && whole(m.steps[0]))
            && [d.steps[2], e.m, e.n].into_iter().all(whole);
        let problem = RaggedBackward(RaggedProblem { e, rows: e.k, dtype: dt, same_dtype: true, aligned });
        let plan = self.plan(op, &problem)?;
        let (offsets, err, code) = (self.arg_in(&io.offsets), self.arg_error(), code_of_op(op));
        let (alpha, accumulate) = (p.alpha, i32::from(io.db.accumulate));
        let size = dims([e.k, e.m, e.n, e.batch, columns(e.n), 0, usize::from(d.wide_rows(e.m))]);
        let (p, q) = (left.arg(), right.arg());
        let (kernel, grid) = match plan {
            RaggedPlan::Specialized(grid) => {
                let plain = specialized_args(
                    [left.map(e.m, e.k, 1, false), right.map(e.n, e.k, 1, false)],
                    d,
                    (offsets, err, code),
                    [
                        dims([e.m, e.n, e.k, e.batch]),
                        dims([d.steps[0], d.steps[2], 0, 0, d.steps[0], d.steps[2]]),
                    ],
                    alpha,
                );
                let c = if accumulate == 1 { d.arg() } else { Ptr::NULL };
                let args = GemmRaggedSpecializedArgs { c, beta: 1.0, ..plain };
                return self.launch(&GEMM_RAGGED_BWD_SPECIALIZED, dt, OUTPUTS[0], grid, &args);
            }
            RaggedPlan::MatrixCores(grid) => {
                let steps = dims([left.steps[0], right.steps[0], d.steps[0], d.steps[2]]);
                let d = d.arg();
                let args =
                    GemmRaggedBwdMatrixArgs { p, q, offsets, d, err, size, steps, alpha, accumulate, code };
                return self.launch(&GEMM_RAGGED_BWD_MATRIX, dt, "", grid, &args);
            }
            RaggedPlan::ByGroup(grid) => (&GEMM_RAGGED_BWD_BY_GROUP, grid),
            RaggedPlan::Tiles(grid) => (&GEMM_RAGGED_BWD, grid),
        };
        // The rows of a group are the terms of its product.
        let side = |m: MatrixOperand, columns| m.transposed().side(columns, e.k, dt);
        let (sp, sq, sd) = (side(left, e.m), side(right, e.n), d.dims());
        let d = d.arg();
        let args = GemmRaggedBwdArgs { p, q, offsets, d, err, size, sp, sq, sd, alpha, accumulate, code };
        self.launch(kernel, dt, "", grid, &args)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::geometry::tests::{chosen, gpu};

    fn hopper() -> Caps {
        Caps { matrix_cores: true, shared_bytes: 227 << 10, ..gpu() }
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
        assert_eq!(p.plan(2, &hopper), Ok(RaggedPlan::ByGroup(Grid::Blocks([4 * 10, 1, 1]))));
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
            assert_eq!(chosen(&RaggedBackward(other), &hopper), PORTABLE, "{other:?}");
        }
    }

    #[test]
    fn many_small_groups_have_a_block_each() {
        let e = Extents { batch: 20_000, m: 200_000, n: 64, k: 16 };
        let p = RaggedProblem { e, rows: 200_000, ..problem() };
        assert_eq!(chosen(&RaggedForward(p), &hopper()), "by_group");
        assert_eq!(chosen(&RaggedBackward(p), &hopper()), "by_group");
        // A few hundred experts with enough rows do not.
        let experts = Extents { batch: 256, ..e };
        assert_eq!(chosen(&RaggedForward(RaggedProblem { e: experts, ..p }), &hopper()), "matrix_cores");
    }

    #[test]
    fn gradients_have_a_block_per_tile_of_each_matrix() {
        let p = RaggedBackward(problem());
        let local = Grid::BlocksWithLocal([8 * 8 * 2, 1, 1], 96 << 10);
        assert_eq!(p.plan(1, &hopper()), Ok(RaggedPlan::MatrixCores(local)));
        assert_eq!(p.plan(2, &gpu()), Ok(RaggedPlan::ByGroup(Grid::Blocks([16 * 4 * 8, 1, 1]))));
        assert_eq!(p.plan(3, &gpu()), Ok(RaggedPlan::Tiles(Grid::Blocks([16 * 4 * 8, 1, 1]))));
    }
}
