//! Products of groups of rows with matrices of their own, and the gradient of these.

use super::product::MatrixOperand;
use super::ragged_plan::{RaggedBackward, RaggedForward, RaggedPlan, RaggedProblem, bias_parts, columns};
use crate::buffer::{GradMut, View};
use crate::driver::{DimsArg, Ptr, TensorMap};
use crate::dtype::DType;
use crate::engine::Engine;
use crate::engine::launch::{Grid, code_of_op, dims};
use crate::error::Result;
use crate::ops::core::{Choice, CoreOps};
use crate::ops::gemm::*;
use crate::spec::gemm::OUTPUTS;
use crate::spec::kernels::gemm::*;

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

/// Arguments of the warp-specialised kernels for a product alone: nothing is added to it, no activation, no second output.
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
                &RaggedBackward {
                    p: RaggedProblem { e: Extents { m: 1024, k: 4096, ..e }, ..p },
                    accumulate: false,
                },
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
            RaggedPlan::Wide(grid) | RaggedPlan::Specialized(grid) => {
                let (_, by_terms) = ragged.rows_of_b();
                let kernel = if by_terms { &GEMM_RAGGED_SPECIALIZED_NN } else { &GEMM_RAGGED_SPECIALIZED_NT };
                return self.launch(kernel, ragged.dtype, OUTPUTS[0], grid, &ragged.specialized_args());
            }
            RaggedPlan::MatrixCores(grid) => {
                let (_, by_terms) = ragged.rows_of_b();
                let kernel = if by_terms { &GEMM_RAGGED_MATRIX_TERMS } else { &GEMM_RAGGED_MATRIX };
                return self.launch(kernel, ragged.dtype, "", grid, &ragged.matrix_args());
            }
            RaggedPlan::ByRows(grid) | RaggedPlan::ByGroup(grid) => (&GEMM_RAGGED_BY_ROWS, grid),
            RaggedPlan::Tiles(grid) => (&GEMM_RAGGED, grid),
        };
        let of = OUTPUTS[usize::from(ragged.out != ragged.dtype)];
        self.launch(kernel, ragged.dtype, of, grid, &ragged.portable_args())
    }

    /// The sums of the rows of dZ by groups; wrong offsets are reported under `op`.
    pub(in crate::engine::ops) fn ragged_bias_gradient(
        &self,
        op: &'static str,
        dz: &View<'_>,
        offsets: &View<'_>,
        g: &GradMut<'_>,
    ) -> Result<()> {
        let (&[rows, n], &[groups, _]) = (dz.shape(), g.out.shape()) else { return Ok(()) };
        let (dt, m) = (dz.dtype(), operand(dz, false));
        let w = 16 / dt.size();
        let wide = m.aligned && m.steps[1] == 1 && m.steps[0].is_multiple_of(w) && n.is_multiple_of(w);
        let blocks = n.div_ceil(8 * if wide { w } else { 1 }).saturating_mul(groups);
        let parts = bias_parts(rows, groups, blocks, self.caps());
        let scratch = match parts {
            1 => None,
            _ => Some(self.scratch(dt.accumulator(), groups * parts * n)?),
        };
        let part = scratch.as_ref().map_or(Ptr::NULL, |s| self.arg_in(&s.view()));
        let accumulate = i32::from(g.accumulate);
        let args = GemmRaggedBiasArgs {
            p: m.arg(),
            offsets: self.arg_in(offsets),
            d: self.arg_out(&g.out),
            part,
            err: self.arg_error(),
            size: dims([rows, n, groups, parts, m.steps[0], m.steps[1]]),
            wide: i32::from(wide),
            accumulate,
            code: code_of_op(op),
        };
        let grid = Grid::Blocks([blocks.saturating_mul(parts), 1, 1]);
        self.launch(&GEMM_RAGGED_BIAS, dt, "", grid, &args)?;
        if scratch.is_none() {
            return Ok(());
        }
        let args = GemmRaggedBiasPartsArgs {
            part,
            d: self.arg_out(&g.out),
            n: n as i64,
            groups: groups as i64,
            parts: parts as i32,
            accumulate,
        };
        self.launch(&GEMM_RAGGED_BIAS_PARTS, dt, "", Grid::Stride(groups * n), &args)
    }

    pub(super) fn ragged_gradient(&self, p: &Gemm, io: GemmRaggedBwd<'_>) -> Result<()> {
        let op = "gemm_ragged_bwd";
        let e = check_gemm_ragged_bwd(p, &io)?;
        let db = io.db.out.as_view();
        for (arg, v) in [("dz", &io.dz), ("a", &io.a), ("offsets", &io.offsets), ("db", &db)] {
            self.check_owner(op, arg, v)?;
        }
        if let Some(g) = &io.dbias {
            self.check_owner(op, "dbias", &g.out.as_view())?;
            self.ragged_bias_gradient(op, &io.dz, &io.offsets, g)?;
        }
        let dt = io.a.dtype();
        let (a, dz, d) = (operand(&io.a, false), operand(&io.dz, false), of_groups(&db, false));
        let (left, right) = if p.trans_b { (dz, a) } else { (a, dz) };
        let whole = |n: usize| (n * dt.size()).is_multiple_of(16);
        let aligned = [left, right, d].iter().all(|m| m.aligned && m.steps[1] == 1 && whole(m.steps[0]))
            && [d.steps[2], e.m, e.n].into_iter().all(whole);
        let of = RaggedProblem { e, rows: e.k, dtype: dt, same_dtype: true, aligned };
        let problem = RaggedBackward { p: of, accumulate: io.db.accumulate };
        let plan = self.plan(op, &problem)?;
        let (offsets, err, code) = (self.arg_in(&io.offsets), self.arg_error(), code_of_op(op));
        let (alpha, accumulate) = (p.alpha, i32::from(io.db.accumulate));
        let size = dims([e.k, e.m, e.n, e.batch, columns(e.n), 0, usize::from(d.wide_rows(e.m))]);
        let (p, q) = (left.arg(), right.arg());
        let maps = [left.map(e.m, e.k, 1, false), right.map(e.n, e.k, 1, false)];
        let (kernel, grid) = match plan {
            RaggedPlan::Wide(grid) => {
                let [a, b] = maps;
                let (y, size) = (d.arg(), dims([e.m, e.n, e.k, e.batch]));
                let (row, batch) = (d.steps[0] as i64, d.steps[2] as i64);
                let args = GemmRaggedBwdWideArgs { a, b, offsets, y, err, size, row, batch, alpha, code };
                return self.launch(&GEMM_RAGGED_BWD_WIDE, dt, "", grid, &args);
            }
            RaggedPlan::Specialized(grid) => {
                let steps = dims([d.steps[0], d.steps[2], 0, 0, d.steps[0], d.steps[2]]);
                let size = dims([e.m, e.n, e.k, e.batch]);
                let plain = specialized_args(maps, d, (offsets, err, code), [size, steps], alpha);
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
            RaggedPlan::ByRows(grid) | RaggedPlan::ByGroup(grid) => (&GEMM_RAGGED_BWD_BY_GROUP, grid),
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
