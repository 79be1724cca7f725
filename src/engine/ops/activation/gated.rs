//! Gated units.

use crate::buffer::{GradMut, View, ViewMut};
use crate::engine::Engine;
use crate::engine::launch::{aligned16, long};
use crate::error::Result;
use crate::layout::Layout;
use crate::ops::activation::*;
use crate::ops::check;
use crate::ops::gemm::fused_act;
use crate::spec::kernels::activation::*;

/// The rows of an operand that begin `at` elements into a tensor.
fn part<'a>(v: &View<'a>, at: usize, plan: &GatedPlan<'_>) -> Result<View<'a>> {
    if plan.outer * plan.cols == 0 {
        return Ok(*v);
    }
    let rows = Layout::strided(&[plan.outer, plan.cols], &[plan.stride, 1], v.layout().offset() + at);
    v.with_layout(check::layout("gated", "x", rows)?)
}

impl GatedOps for Engine {
    fn gated(&self, act: Activation, input: GatedInput<'_>, y: ViewMut<'_>) -> Result<()> {
        const OP: &str = "gated";
        let p = check_gated(act, &input, &y)?;
        let out = y.as_view();
        self.check_owner_all(OP, &[("gate", p.gate), ("up", p.up), ("y", out)])?;
        let n = p.outer * p.cols;
        if n == 0 {
            return Ok(());
        }
        let dt = out.dtype();
        let (gate, up) = (part(&p.gate, p.at[0], &p)?, part(&p.up, p.at[1], &p)?);
        let wide = [&gate, &up, &out].into_iter().all(aligned16) && p.cols.is_multiple_of(16 / dt.size())
            || (p.outer == 1
                && [&gate, &up, &out].into_iter().all(aligned16)
                && n.is_multiple_of(16 / dt.size()));
        let args = GatedArgs {
            gate: self.arg_in(&gate),
            up: self.arg_in(&up),
            y: self.arg_in(&out),
            n: long(n),
            cols: long(p.cols),
            stride: long(p.stride),
            wide: i32::from(wide),
            act: fused_act(OP, act)?.0,
        };
        self.launch(&GATED, dt, "", self.map_grid(n, wide, dt, 2), &args)
    }

    fn gated_bwd(
        &self,
        act: Activation,
        dy: View<'_>,
        input: GatedInput<'_>,
        grads: GatedGrad<'_>,
    ) -> Result<()> {
        const OP: &str = "gated_bwd";
        let p = check_gated_bwd(act, &dy, &input, &grads)?;
        self.check_owner_all(OP, &[("dy", dy), ("gate", p.gate), ("up", p.up)])?;
        let view = |g: &Option<GradMut<'_>>| g.as_ref().map(|g| g.accumulate);
        let (dgate, dup, adds) = match &grads {
            GatedGrad::Halves(dx) => {
                let v = dx.out.as_view();
                (Some(part(&v, p.at[0], &p)?), Some(part(&v, p.at[1], &p)?), [dx.accumulate; 2])
            }
            GatedGrad::Two { gate, up } => (
                gate.as_ref().map(|g| g.out.as_view()),
                up.as_ref().map(|g| g.out.as_view()),
                [view(gate).unwrap_or(false), view(up).unwrap_or(false)],
            ),
        };
        self.check_owner_all(OP, &[("dgate", dgate), ("dup", dup)])?;
        let n = p.outer * p.cols;
        if n == 0 {
            return Ok(());
        }
        let dt = dy.dtype();
        let (gate, up) = (part(&p.gate, p.at[0], &p)?, part(&p.up, p.at[1], &p)?);
        let all = [Some(&gate), Some(&up), Some(&dy), dgate.as_ref(), dup.as_ref()];
        let wide = all.into_iter().flatten().all(aligned16) && p.cols.is_multiple_of(16 / dt.size());
        let args = GatedBwdArgs {
            dy: self.arg_in(&dy),
            gate: self.arg_in(&gate),
            up: self.arg_in(&up),
            dgate: self.arg_opt(dgate.as_ref()),
            dup: self.arg_opt(dup.as_ref()),
            n: long(n),
            cols: long(p.cols),
            stride: long(p.stride),
            wide: i32::from(wide),
            act: fused_act(OP, act)?.0,
            accumulate_gate: i32::from(adds[0]),
            accumulate_up: i32::from(adds[1]),
        };
        self.launch(&GATED_BWD, dt, "", self.map_grid(n, wide, dt, 1), &args)
    }
}
