//! Bilinear forms of rows, summed by groups.

use crate::buffer::{GradMut, View};
use crate::device::Caps;
use crate::dtype::DType;
use crate::engine::Engine;
use crate::engine::launch::{Grid, adds, code_of_op, dims};
use crate::engine::plan::{PORTABLE, Problem, Reason, Variant};
use crate::error::Result;
use crate::ops::core::Choice;
use crate::ops::gemm::*;
use crate::ops::reduce::ReduceOps;
use crate::spec::kernels::gemm::*;

/// The largest M, N and O of `gemm/bilinear.c`.
const MOST: [usize; 3] = [64, 16, 16];
/// Rows in local memory there.
const ROWS: usize = 64;
/// Blocks for each unit of a device: as each begins with all matrices, more of them cost time, and fewer leave units without work at the end.
const BLOCKS: usize = 6;

/// Gradients of the rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct BilinearProblem {
    sizes: BilinearSizes,
    dtype: DType,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BilinearPlan {
    /// So many rows for a block, which makes the matrices of their groups itself.
    Fused { rows: usize, grid: Grid },
    /// A matrix per group in memory, and two products by groups.
    Products,
}

impl Problem for BilinearProblem {
    type Plan = BilinearPlan;

    const VARIANTS: &'static [Variant] = &[
        Variant { name: "fused", source: "kernels/common/gemm/bilinear.c" },
        Variant { name: PORTABLE, source: "kernels/common/gemm/ragged.c" },
    ];

    fn plan(&self, variant: usize, caps: &Caps) -> Result<BilinearPlan, Reason> {
        if variant > 0 {
            return Ok(BilinearPlan::Products);
        }
        let BilinearSizes { rows, m, n, outputs, .. } = self.sizes;
        if self.dtype == DType::F64 {
            return Err("f64".into());
        }
        if [m, n, outputs].into_iter().zip(MOST).any(|(have, most)| have > most) {
            return Err("more than 64 left columns, 16 right ones or 16 outputs".into());
        }
        let blocks = BLOCKS * (caps.compute_units as usize).max(1);
        let each = rows.div_ceil(blocks).max(4 * ROWS).next_multiple_of(ROWS);
        Ok(BilinearPlan::Fused { rows: each, grid: Grid::Blocks([rows.div_ceil(each), 1, 1]) })
    }
}

impl Engine {
    /// The variant that serves a graph of 20,000 nodes and 200,000 edges in f32.
    pub(crate) fn explain_bilinear(&self, op: &'static str) -> Result<Choice> {
        let sizes = BilinearSizes { rows: 200_000, m: 64, n: 16, outputs: 16, groups: 20_000 };
        self.explain_problem(op, &BilinearProblem { sizes, dtype: DType::F32 })
    }

    fn bilinear_rows_fused(
        &self,
        s: BilinearSizes,
        io: &BilinearRaggedBwd<'_>,
        rows: usize,
        grid: Grid,
    ) -> Result<()> {
        let steps = |v: &View<'_>| [v.layout().strides()[0], v.layout().strides()[1]];
        let of = |g: &Option<GradMut<'_>>| g.as_ref().map_or([0; 2], |g| steps(&g.out.as_view()));
        let [a, b, da, db] = [steps(&io.a), steps(&io.b), of(&io.da), of(&io.db)];
        let args = BilinearRaggedBwdArgs {
            dy: self.arg_in(&io.dy),
            w: self.arg_in(&io.w),
            a: self.arg_in(&io.a),
            b: self.arg_in(&io.b),
            offsets: self.arg_in(&io.offsets),
            da: self.arg_grad(&io.da),
            db: self.arg_grad(&io.db),
            err: self.arg_error(),
            size: dims([s.rows, s.m, s.n, s.outputs, s.groups, rows]),
            steps: dims([a[0], a[1], b[0], b[1], da[0], da[1], db[0], db[1]]),
            accumulate: adds(&io.da) + 2 * adds(&io.db),
            code: code_of_op("bilinear_ragged_bwd"),
        };
        self.launch(&BILINEAR_RAGGED_BWD, io.a.dtype(), "", grid, &args)
    }

    fn bilinear_rows_by_products(&self, s: BilinearSizes, io: BilinearRaggedBwd<'_>) -> Result<()> {
        let each = s.m * s.n;
        let mut forms = self.scratch(io.a.dtype(), s.groups * each)?;
        let flat = io.w.reshape(&[s.outputs, each])?;
        self.gemm(&Gemm::new(), GemmIo::new(io.dy, flat, forms.shaped_mut(&[s.groups, each])?))?;
        let forms = forms.shaped(&[s.groups, s.m, s.n])?;
        let gradients = [(io.da, io.b, true, s.m), (io.db, io.a, false, s.n)];
        for (g, other, trans_b, columns) in gradients {
            let Some(g) = g else { continue };
            let p = Gemm::new().trans(false, trans_b);
            if !g.accumulate {
                self.gemm_ragged(&p, GemmRagged::new(other, forms, io.offsets, g.out))?;
                continue;
            }
            let mut sums = self.scratch(io.a.dtype(), s.rows * columns)?;
            let y = sums.shaped_mut(&[s.rows, columns])?;
            self.gemm_ragged(&p, GemmRagged::new(other, forms, io.offsets, y))?;
            self.sum_to_shape(sums.shaped(&[s.rows, columns])?, g.out.grad(true))?;
        }
        Ok(())
    }
}

impl BilinearOps for Engine {
    fn bilinear_ragged(&self, mut io: BilinearRagged<'_>) -> Result<()> {
        let (op, s) = ("bilinear_ragged", check_bilinear_ragged(&io)?);
        let (sums, y) = (io.sums.as_view(), io.y.as_view());
        let all = [("a", io.a), ("b", io.b), ("offsets", io.offsets), ("w", io.w), ("sums", sums), ("y", y)];
        all.iter().try_for_each(|(arg, v)| self.check_owner(op, arg, v))?;
        let outer = GemmRaggedBwd::new(io.b, io.a, io.offsets, io.sums.reborrow().grad(false));
        self.gemm_ragged_bwd(&Gemm::new(), outer)?;
        let each = s.m * s.n;
        let [sums, w] = [io.sums.as_view().reshape(&[s.groups, each])?, io.w.reshape(&[s.outputs, each])?];
        self.gemm(&Gemm::new().trans(false, true), GemmIo::new(sums, w, io.y))
    }

    fn bilinear_ragged_bwd(&self, mut io: BilinearRaggedBwd<'_>) -> Result<()> {
        let (op, s) = ("bilinear_ragged_bwd", check_bilinear_ragged_bwd(&io)?);
        let read = [
            ("dy", io.dy),
            ("a", io.a),
            ("b", io.b),
            ("offsets", io.offsets),
            ("w", io.w),
            ("sums", io.sums),
        ];
        read.iter().try_for_each(|(arg, v)| self.check_owner(op, arg, v))?;
        for (arg, g) in [("da", &io.da), ("db", &io.db), ("dw", &io.dw)] {
            g.as_ref().map_or(Ok(()), |g| self.check_owner(op, arg, &g.out.as_view()))?;
        }
        // Refused before anything is written.
        let plan = self.plan(op, &BilinearProblem { sizes: s, dtype: io.a.dtype() })?;
        if let Some(dw) = io.dw.take() {
            let each = s.m * s.n;
            let [sums, w] = [io.sums.reshape(&[s.groups, each])?, io.w.reshape(&[s.outputs, each])?];
            let flat = dw.out.reshape(&[s.outputs, each])?.grad(dw.accumulate);
            self.gemm_bwd(&Gemm::new().trans(false, true), GemmBwd::new(io.dy, sums, w).db(flat))?;
        }
        if io.da.is_none() && io.db.is_none() {
            return Ok(());
        }
        match plan {
            BilinearPlan::Fused { rows, grid } => self.bilinear_rows_fused(s, &io, rows, grid),
            BilinearPlan::Products => self.bilinear_rows_by_products(s, io),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::geometry::tests::{chosen, gpu};

    #[test]
    fn gradients_of_small_forms_are_made_by_one_kernel() {
        let sizes = BilinearSizes { rows: 200_000, m: 64, n: 16, outputs: 16, groups: 20_000 };
        let p = BilinearProblem { sizes, dtype: DType::F32 };
        let caps = Caps { compute_units: 132, ..gpu() };
        assert_eq!(chosen(&p, &caps), "fused");
        let plan = |p: BilinearProblem| p.plan(0, &caps);
        let grid = Grid::Blocks([782, 1, 1]);
        assert_eq!(plan(p), Ok(BilinearPlan::Fused { rows: 256, grid }));
        let many = BilinearProblem { sizes: BilinearSizes { rows: 2_000_000, ..sizes }, ..p };
        assert_eq!(plan(many), Ok(BilinearPlan::Fused { rows: 2560, grid }));
        for other in [
            BilinearProblem { dtype: DType::F64, ..p },
            BilinearProblem { sizes: BilinearSizes { m: 65, ..sizes }, ..p },
            BilinearProblem { sizes: BilinearSizes { n: 17, ..sizes }, ..p },
            BilinearProblem { sizes: BilinearSizes { outputs: 17, ..sizes }, ..p },
        ] {
            assert_eq!(chosen(&other, &caps), PORTABLE, "{other:?}");
        }
    }
}
