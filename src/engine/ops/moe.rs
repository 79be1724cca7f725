//! Mixture of experts: routing and permutation.

use crate::spec::kernels::moe::*;
use crate::buffer::{Buffer, GradMut, View, ViewMut};
use crate::driver::Arg;
use crate::dtype::DType;
use crate::engine::Engine;
use crate::engine::launch::{Grid, aligned16, code_of_op, int, long};
use crate::engine::ops::language_model::{lanes, row_blocks};
use crate::error::Result;
use crate::ops::moe::*;
use crate::ops::shape::ShapeOps;

impl Engine {
    /// `inverse[perm[i]] = i`.
    fn moe_inverse(&self, op: &'static str, perm: &View<'_>) -> Result<Buffer> {
        let n = perm.numel();
        let mut inverse = self.scratch(DType::I32, n)?;
        if n > 0 {
            ShapeOps::fill(self, -1.0, inverse.view_mut())?;
        }
        let args = [
            self.arg_in(perm),
            self.arg_in(&inverse.view()),
            self.arg_error(),
            long(n),
            Arg::I32(code_of_op(op)),
        ];
        self.launch_list(&MOE_INVERSE.spec, DType::I32, "", Grid::Stride(n), &args)?;
        Ok(inverse)
    }

    /// `y[i] = f * x[perm[i] div k]`.
    fn moe_gather(
        &self,
        op: &'static str,
        [_, k, d]: [usize; 3],
        x: &View<'_>,
        perm: &View<'_>,
        weights: Option<&View<'_>>,
        y: &GradMut<'_>,
    ) -> Result<()> {
        let v = y.out.as_view();
        let (wide, lanes) = moe_walk(d, &[x, &v]);
        let rows = perm.numel();
        let args = [
            self.arg_in(x),
            self.arg_in(perm),
            self.arg_opt(weights),
            self.arg_in(&v),
            self.arg_error(),
            long(rows),
            long(d),
            int(k),
            int(wide as usize),
            int(lanes),
            int(y.accumulate as usize),
            Arg::I32(code_of_op(op)),
        ];
        self.launch_list(&MOE_GATHER.spec, x.dtype(), "", row_blocks(if d > 0 { rows } else { 0 }, lanes), &args)
    }

    /// `y[t]` = sum over j of `f * x[inverse[t * k + j]]`.
    fn moe_combine(
        &self,
        op: &'static str,
        [t, k, d]: [usize; 3],
        x: &View<'_>,
        perm: &View<'_>,
        weights: Option<&View<'_>>,
        y: &GradMut<'_>,
    ) -> Result<()> {
        let inverse = self.moe_inverse(op, perm)?;
        let v = y.out.as_view();
        let (wide, lanes) = moe_walk(d, &[x, &v]);
        let args = [
            self.arg_in(x),
            self.arg_in(&inverse.view()),
            self.arg_opt(weights),
            self.arg_in(&v),
            long(t),
            long(d),
            int(k),
            int(wide as usize),
            int(lanes),
            int(y.accumulate as usize),
        ];
        self.launch_list(&MOE_COMBINE.spec, x.dtype(), "", row_blocks(if d > 0 { t } else { 0 }, lanes), &args)
    }
}

/// Whether rows of `d` elements are moved by 16 bytes, and the work-items per row.
fn moe_walk(d: usize, operands: &[&View<'_>]) -> (bool, usize) {
    let w = operands.first().map_or(1, |v| 16 / v.dtype().size());
    let wide = d.is_multiple_of(w) && operands.iter().all(|v| aligned16(v));
    (wide, lanes(if wide { d / w } else { d }))
}

impl MoeOps for Engine {
    fn moe_router(&self, p: &MoeRouter, io: MoeRouterIo<'_>) -> Result<()> {
        const OP: &str = "moe_router";
        let [t, e, k] = check_moe_router(&io)?;
        let (w, ids) = (io.weights.as_view(), io.ids.as_view());
        let (counts, offsets, perm) = (io.counts.as_view(), io.offsets.as_view(), io.perm.as_view());
        let operands = [
            ("logits", io.logits),
            ("weights", w),
            ("ids", ids),
            ("counts", counts),
            ("offsets", offsets),
            ("perm", perm),
        ];
        self.own_all(OP, &operands)?;
        // Each choice walks along the row once more: few long steps are slower than a few lanes more.
        let lanes = lanes(e).min(32);
        let args = [
            self.arg_in(&io.logits),
            self.arg_in(&w),
            self.arg_in(&ids),
            long(t),
            int(e),
            int(k),
            int(lanes),
            int((p.score == RouterScore::Sigmoid) as usize),
            int(p.renormalize as usize),
        ];
        self.launch_list(&MOE_ROUTER.spec, io.logits.dtype(), "", row_blocks(t, lanes), &args)?;
        let (n, all) = (long(t * k), Grid::Blocks([e.min(1 << 16), 1, 1]));
        let (ids, offsets) = (self.arg_in(&ids), self.arg_in(&offsets));
        let (counts, perm) = (self.arg_in(&counts), self.arg_in(&perm));
        self.launch_list(&MOE_COUNT.spec, DType::I32, "", all, &[ids, counts, n, int(e)])?;
        self.launch_list(&MOE_OFFSETS.spec, DType::I32, "", Grid::Blocks([1; 3]), &[counts, offsets, int(e)])?;
        self.launch_list(&MOE_ORDER.spec, DType::I32, "", all, &[ids, offsets, perm, n, int(e)])
    }

    fn moe_router_bwd(
        &self,
        p: &MoeRouter,
        dweights: View<'_>,
        logits: View<'_>,
        ids: View<'_>,
        dlogits: GradMut<'_>,
    ) -> Result<()> {
        const OP: &str = "moe_router_bwd";
        let [t, e, k] = check_moe_router_bwd(&dweights, &logits, &ids, &dlogits)?;
        let out = dlogits.out.as_view();
        self.own_all(OP, &[("dweights", dweights), ("logits", logits), ("ids", ids), ("dlogits", out)])?;
        let lanes = lanes(e).min(32);
        let args = [
            self.arg_in(&dweights),
            self.arg_in(&logits),
            self.arg_in(&ids),
            self.arg_in(&out),
            self.arg_error(),
            long(t),
            int(e),
            int(k),
            int(lanes),
            int((p.score == RouterScore::Sigmoid) as usize),
            int(p.renormalize as usize),
            int(dlogits.accumulate as usize),
            Arg::I32(code_of_op(OP)),
        ];
        self.launch_list(&MOE_ROUTER_BWD.spec, logits.dtype(), "", row_blocks(t, lanes), &args)
    }

    fn moe_permute(&self, x: View<'_>, perm: View<'_>, y: ViewMut<'_>) -> Result<()> {
        const OP: &str = "moe_permute";
        let size = check_moe_permute(&x, &perm, &y)?;
        self.own_all(OP, &[("x", x), ("perm", perm), ("y", y.as_view())])?;
        self.moe_gather(OP, size, &x, &perm, None, &y.into())
    }

    fn moe_permute_bwd(&self, dy: View<'_>, perm: View<'_>, dx: GradMut<'_>) -> Result<()> {
        const OP: &str = "moe_permute_bwd";
        let size = check_moe_permute_bwd(&dy, &perm, &dx)?;
        self.own_all(OP, &[("dy", dy), ("perm", perm), ("dx", dx.out.as_view())])?;
        self.moe_combine(OP, size, &dy, &perm, None, &dx)
    }

    fn moe_unpermute(&self, x: View<'_>, perm: View<'_>, weights: View<'_>, y: ViewMut<'_>) -> Result<()> {
        const OP: &str = "moe_unpermute";
        let size = check_moe_unpermute(&x, &perm, &weights, &y)?;
        self.own_all(OP, &[("x", x), ("perm", perm), ("weights", weights), ("y", y.as_view())])?;
        self.moe_combine(OP, size, &x, &perm, Some(&weights), &y.into())
    }

    fn moe_unpermute_bwd(&self, io: MoeUnpermuteBwd<'_>) -> Result<()> {
        const OP: &str = "moe_unpermute_bwd";
        let size = check_moe_unpermute_bwd(&io)?;
        self.own_all(OP, &[("dy", io.dy), ("x", io.x), ("perm", io.perm), ("weights", io.weights)])?;
        for (arg, g) in [("dx", &io.dx), ("dweights", &io.dweights)] {
            g.as_ref().map_or(Ok(()), |g| self.own(OP, arg, &g.out.as_view()))?;
        }
        if let Some(g) = &io.dx {
            self.moe_gather(OP, size, &io.dy, &io.perm, Some(&io.weights), g)?;
        }
        let Some(g) = &io.dweights else { return Ok(()) };
        let ([_, k, d], rows) = (size, io.perm.numel());
        let inverse = self.moe_inverse(OP, &io.perm)?;
        let (wide, lanes) = moe_walk(d, &[&io.dy, &io.x]);
        let args = [
            self.arg_in(&io.dy),
            self.arg_in(&io.x),
            self.arg_in(&inverse.view()),
            self.arg_out(&g.out),
            long(rows),
            long(d),
            int(k),
            int(wide as usize),
            int(lanes),
            int(g.accumulate as usize),
        ];
        self.launch_list(&MOE_DOT.spec, io.x.dtype(), "", row_blocks(rows, lanes), &args)
    }
}
