//! Mixture of experts: routing and permutation.

use crate::buffer::{Buffer, GradMut, View, ViewMut};
use crate::dtype::DType;
use crate::engine::Engine;
use crate::engine::launch::{Grid, adds, aligned16, code_of_op, int, long};
use crate::engine::ops::language_model::{lanes, row_blocks};
use crate::error::Result;
use crate::ops::moe::*;
use crate::ops::shape::ShapeOps;
use crate::spec::kernels::moe::*;

impl Engine {
    /// `inverse[perm[i]] = i`; any number for an assignment that `perm` does not have.
    fn moe_inverse(&self, op: &'static str, perm: &View<'_>) -> Result<Buffer> {
        let n = perm.numel();
        let inverse = self.scratch(DType::I32, n)?;
        let args = MoeInverseArgs {
            perm: self.arg_in(perm),
            inverse: self.arg_in(&inverse.view()),
            err: self.arg_error(),
            n: long(n),
            code: code_of_op(op),
        };
        self.launch(&MOE_INVERSE, DType::I32, "", Grid::Stride(n), &args)?;
        Ok(inverse)
    }

    /// `y[t]` = sum over j of `f * x[inverse[t * k + j]]`; the inverse is made if it is not given.
    fn moe_combine(
        &self,
        op: &'static str,
        [t, k, d]: [usize; 3],
        x: &View<'_>,
        (perm, inverse): (&View<'_>, Option<View<'_>>),
        weights: Option<&View<'_>>,
        y: &GradMut<'_>,
    ) -> Result<()> {
        let made = inverse.is_none().then(|| self.moe_inverse(op, perm)).transpose()?;
        let inverse = inverse.or(made.as_ref().map(Buffer::view));
        let v = y.out.as_view();
        let (wide, lanes) = row_access(d, &[x, &v]);
        let args = MoeCombineArgs {
            x: self.arg_in(x),
            inverse: self.arg_opt(inverse.as_ref()),
            perm: self.arg_in(perm),
            weights: self.arg_opt(weights),
            y: self.arg_in(&v),
            tokens: long(t),
            d: long(d),
            k: int(k),
            wide: i32::from(wide),
            lanes: int(lanes),
            accumulate: i32::from(y.accumulate),
        };
        self.launch(&MOE_COMBINE, x.dtype(), "", row_blocks(if d > 0 { t } else { 0 }, lanes), &args)
    }
}

/// Vectors of 16 bytes that a thread moves at a time: as many loads are on their way.
const VECTORS: usize = 4;

/// Whether rows of `d` elements are moved by 16 bytes, and the threads per row.
fn row_access(d: usize, operands: &[&View<'_>]) -> (bool, usize) {
    let w = operands.first().map_or(1, |v| 16 / v.dtype().size());
    let wide = d.is_multiple_of(w) && operands.iter().all(|v| aligned16(v));
    (wide, if wide { lanes(d.div_ceil(VECTORS * w)) } else { lanes(d) })
}

impl MoeOps for Engine {
    fn moe_router(&self, p: &MoeRouter, io: MoeRouterIo<'_>) -> Result<()> {
        const OP: &str = "moe_router";
        let [t, e, k] = check_moe_router(&io)?;
        let (w, ids) = (io.weights.as_view(), io.ids.as_view());
        let (counts, offsets, perm) = (io.counts.as_view(), io.offsets.as_view(), io.perm.as_view());
        let inverse = io.inverse.as_ref().map(ViewMut::as_view);
        let operands = [
            ("logits", io.logits),
            ("weights", w),
            ("ids", ids),
            ("counts", counts),
            ("offsets", offsets),
            ("perm", perm),
        ];
        self.check_owner_all(OP, &operands)?;
        self.check_owner_all(OP, &[("inverse", inverse)])?;
        // Each choice reads the row once more: few long steps are slower than a few lanes more.
        let lanes = lanes(e).min(32);
        let args = MoeRouterArgs {
            logits: self.arg_in(&io.logits),
            weights: self.arg_in(&w),
            ids: self.arg_in(&ids),
            tokens: long(t),
            experts: int(e),
            k: int(k),
            lanes: int(lanes),
            sigmoid: i32::from(p.score == RouterScore::Sigmoid),
            renorm: i32::from(p.renormalize),
        };
        self.launch(&MOE_ROUTER, io.logits.dtype(), "", row_blocks(t, lanes), &args)?;
        let args = MoeOrderArgs {
            ids: self.arg_in(&ids),
            counts: self.arg_out(&io.counts),
            offsets: self.arg_out(&io.offsets),
            perm: self.arg_out(&io.perm),
            inverse: self.arg_opt(inverse.as_ref()),
            n: long(t * k),
            experts: int(e),
        };
        self.launch(&MOE_ORDER, DType::I32, "", Grid::Blocks([e.min(1 << 16), 1, 1]), &args)
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
        self.check_owner_all(
            OP,
            &[("dweights", dweights), ("logits", logits), ("ids", ids), ("dlogits", out)],
        )?;
        let lanes = lanes(e).min(32);
        let args = MoeRouterBwdArgs {
            dweights: self.arg_in(&dweights),
            logits: self.arg_in(&logits),
            ids: self.arg_in(&ids),
            dlogits: self.arg_in(&out),
            err: self.arg_error(),
            tokens: long(t),
            experts: int(e),
            k: int(k),
            lanes: int(lanes),
            sigmoid: i32::from(p.score == RouterScore::Sigmoid),
            renorm: i32::from(p.renormalize),
            accumulate: i32::from(dlogits.accumulate),
            code: code_of_op(OP),
        };
        self.launch(&MOE_ROUTER_BWD, logits.dtype(), "", row_blocks(t, lanes), &args)
    }

    fn moe_permute(&self, x: View<'_>, perm: View<'_>, y: ViewMut<'_>) -> Result<()> {
        const OP: &str = "moe_permute";
        let size = check_moe_permute(&x, &perm, &y)?;
        self.check_owner_all(OP, &[("x", x), ("perm", perm), ("y", y.as_view())])?;
        let ([_, k, d], rows, v) = (size, perm.numel(), y.as_view());
        let (wide, lanes) = row_access(d, &[&x, &v]);
        let args = MoeGatherArgs {
            x: self.arg_in(&x),
            perm: self.arg_in(&perm),
            y: self.arg_out(&y),
            err: self.arg_error(),
            rows: long(rows),
            d: long(d),
            k: int(k),
            wide: i32::from(wide),
            lanes: int(lanes),
            code: code_of_op(OP),
        };
        self.launch(&MOE_GATHER, x.dtype(), "", row_blocks(if d > 0 { rows } else { 0 }, lanes), &args)
    }

    fn moe_permute_bwd(&self, io: MoePermuteBwd<'_>) -> Result<()> {
        const OP: &str = "moe_permute_bwd";
        let size = check_moe_permute_bwd(&io)?;
        self.check_owner_all(OP, &[("dy", io.dy), ("perm", io.perm), ("dx", io.dx.out.as_view())])?;
        self.check_owner_all(OP, &[("inverse", io.inverse)])?;
        self.moe_combine(OP, size, &io.dy, (&io.perm, io.inverse), None, &io.dx)
    }

    fn moe_unpermute(&self, io: MoeUnpermute<'_>) -> Result<()> {
        const OP: &str = "moe_unpermute";
        let size = check_moe_unpermute(&io)?;
        let y = io.y.as_view();
        self.check_owner_all(OP, &[("x", io.x), ("perm", io.perm), ("weights", io.weights), ("y", y)])?;
        self.check_owner_all(OP, &[("inverse", io.inverse)])?;
        self.moe_combine(OP, size, &io.x, (&io.perm, io.inverse), Some(&io.weights), &io.y.into())
    }

    fn moe_unpermute_bwd(&self, mut io: MoeUnpermuteBwd<'_>) -> Result<()> {
        const OP: &str = "moe_unpermute_bwd";
        let size = check_moe_unpermute_bwd(&io)?;
        self.check_owner_all(OP, &[("dy", io.dy), ("x", io.x), ("perm", io.perm), ("weights", io.weights)])?;
        for (arg, g) in [("dx", &io.dx), ("dweights", &io.dweights)] {
            g.as_ref().map_or(Ok(()), |g| self.check_owner(OP, arg, &g.out.as_view()))?;
        }
        if io.dx.is_none() && io.dweights.is_none() {
            return Ok(());
        }
        let ([_, k, d], rows) = (size, io.perm.numel());
        // An assignment that `perm` does not have has no row, and a weight's gradient of 0.
        if let Some(g) = io.dweights.as_mut().filter(|g| !io.whole && !g.accumulate && g.out.numel() > 0) {
            ShapeOps::fill(self, 0.0, g.out.reborrow())?;
        }
        let dx = io.dx.as_ref().map(|g| g.out.as_view());
        let mut moved = vec![&io.dy, &io.x];
        moved.extend(&dx);
        let (wide, lanes) = row_access(d, &moved);
        let args = MoeCombineBwdArgs {
            dy: self.arg_in(&io.dy),
            x: self.arg_in(&io.x),
            perm: self.arg_in(&io.perm),
            weights: self.arg_in(&io.weights),
            dx: self.arg_grad(&io.dx),
            dw: self.arg_grad(&io.dweights),
            err: self.arg_error(),
            rows: long(rows),
            d: long(d),
            k: int(k),
            wide: i32::from(wide),
            lanes: int(lanes),
            accumulate: adds(&io.dx) + 2 * adds(&io.dweights),
            code: code_of_op(OP),
        };
        self.launch(&MOE_COMBINE_BWD, io.x.dtype(), "", row_blocks(rows, lanes), &args)
    }
}
