//! Gated units, parametric relu and masked softmax.

use super::norm::{SHORT_PLANE, join_tx};
use crate::buffer::{Buffer, GradMut, View, ViewMut};
use crate::driver::Arg;
use crate::engine::Engine;
use crate::engine::launch::{Grid, LANES, aligned16, dims, int, long, real};
use crate::error::Result;
use crate::layout::Layout;
use crate::ops::*;
use crate::spec::gated::*;

/// The rows of an operand that begin `at` elements into a tensor.
fn part<'a>(v: &View<'a>, at: usize, plan: &GatedPlan<'_>) -> Result<View<'a>> {
    if plan.outer * plan.cols == 0 {
        return Ok(*v);
    }
    let rows = Layout::strided(&[plan.outer, plan.cols], &[plan.stride, 1], v.layout().offset() + at);
    v.with_layout(check::layout("gated", "x", rows)?)
}

impl Engine {
    pub(super) fn gated_impl(&self, act: Activation, input: GatedInput<'_>, y: ViewMut<'_>) -> Result<()> {
        const OP: &str = "gated";
        let p = check_gated(act, &input, &y)?;
        let out = y.as_view();
        self.own_all(OP, &[("gate", p.gate), ("up", p.up), ("y", out)])?;
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
        let args = [
            self.arg_in(&gate),
            self.arg_in(&up),
            self.arg_in(&out),
            long(n),
            long(p.cols),
            long(p.stride),
            int(wide as usize),
            Arg::I32(fused_act(OP, act)?.0),
        ];
        self.launch(&GATED, dt, "", self.map_grid(n, wide, dt, 2), &args)
    }

    pub(super) fn gated_bwd_impl(
        &self,
        act: Activation,
        dy: View<'_>,
        input: GatedInput<'_>,
        grads: GatedGrad<'_>,
    ) -> Result<()> {
        const OP: &str = "gated_bwd";
        let p = check_gated_bwd(act, &dy, &input, &grads)?;
        self.own_all(OP, &[("dy", dy), ("gate", p.gate), ("up", p.up)])?;
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
        self.own_all(OP, &[("dgate", dgate), ("dup", dup)])?;
        let n = p.outer * p.cols;
        if n == 0 {
            return Ok(());
        }
        let dt = dy.dtype();
        let (gate, up) = (part(&p.gate, p.at[0], &p)?, part(&p.up, p.at[1], &p)?);
        let all = [Some(&gate), Some(&up), Some(&dy), dgate.as_ref(), dup.as_ref()];
        let wide = all.into_iter().flatten().all(aligned16) && p.cols.is_multiple_of(16 / dt.size());
        let args = [
            self.arg_in(&dy),
            self.arg_in(&gate),
            self.arg_in(&up),
            self.arg_opt(dgate.as_ref()),
            self.arg_opt(dup.as_ref()),
            long(n),
            long(p.cols),
            long(p.stride),
            int(wide as usize),
            Arg::I32(fused_act(OP, act)?.0),
            int(adds[0] as usize),
            int(adds[1] as usize),
        ];
        self.launch(&GATED_BWD, dt, "", self.map_grid(n, wide, dt, 1), &args)
    }

    pub(super) fn prelu_impl(&self, x: View<'_>, a: View<'_>, y: ViewMut<'_>) -> Result<()> {
        const OP: &str = "prelu";
        let [_, slopes, cols] = check_prelu(&x, &a, &y)?;
        let out = y.as_view();
        self.own_all(OP, &[("x", x), ("a", a), ("y", out)])?;
        let (n, dt) = (x.numel(), x.dtype());
        if n == 0 {
            return Ok(());
        }
        let wide = aligned16(&x) && aligned16(&out) && cols.is_multiple_of(16 / dt.size());
        let sizes = [long(n), long(cols), long(slopes), int(wide as usize)];
        let args = [&[self.arg_in(&x), self.arg_in(&a), self.arg_in(&out)], &sizes[..]].concat();
        self.launch(&PRELU, dt, "", self.map_grid(n, wide, dt, 1), &args)
    }

    pub(super) fn prelu_bwd_impl(
        &self,
        dy: View<'_>,
        x: View<'_>,
        a: View<'_>,
        dx: Option<GradMut<'_>>,
        da: Option<GradMut<'_>>,
    ) -> Result<()> {
        const OP: &str = "prelu_bwd";
        let [n, slopes, cols] = check_prelu_bwd(&dy, &x, &a, dx.as_ref(), da.as_ref())?;
        let (vx, va) = (dx.as_ref().map(|g| g.out.as_view()), da.as_ref().map(|g| g.out.as_view()));
        self.own_all(OP, &[("dy", dy), ("x", x), ("a", a)])?;
        self.own_all(OP, &[("dx", vx), ("da", va)])?;
        if x.numel() == 0 {
            return match da {
                Some(g) if !g.accumulate => ShapeOps::fill(self, 0.0, g.out),
                _ => Ok(()),
            };
        }
        let dt = x.dtype();
        let accumulate = int(dx.as_ref().is_some_and(|g| g.accumulate) as usize);
        let all: Vec<&View<'_>> = [Some(&dy), Some(&x), vx.as_ref()].into_iter().flatten().collect();
        let sums = |n: usize| -> Result<Option<Buffer>> {
            va.is_some().then(|| self.scratch(dt.accumulator(), n)).transpose()
        };
        let inputs = [self.arg_in(&dy), self.arg_in(&x), self.arg_in(&a), self.arg_opt(vx.as_ref())];
        let (part, outer, inner);
        if slopes > 1 && cols < SHORT_PLANE {
            let walk = self.col_walk(n, slopes * cols, &all);
            part = sums(walk.chunks * slopes * cols)?;
            (outer, inner) = (walk.chunks, cols);
            let view = part.as_ref().map(Buffer::view);
            let sizes = [
                self.arg_opt(view.as_ref()),
                long(n),
                long(slopes * cols),
                long(cols),
                long(walk.chunk),
                int(walk.chunks),
                int(walk.tx),
                int(walk.wide as usize),
                accumulate,
            ];
            let grid = Grid::Blocks([walk.tiles * walk.chunks, 1, 1]);
            self.launch(&PRELU_BWD_COLS, dt, "", grid, &[&inputs, &sizes[..]].concat())?;
        } else {
            // One slope: a single long row, cut to fill the device.
            let rows = n * slopes;
            let mut walk = self.row_walk(rows, cols, 8 * 16 / dt.size(), &all);
            if rows == 1 {
                let runs = cols.div_ceil(16 * LANES).min(self.fill() * 4).max(1);
                walk.chunk = cols.div_ceil(runs).next_multiple_of(16 / dt.size());
                walk.splits = cols.div_ceil(walk.chunk);
                walk.lanes = LANES;
            }
            part = sums(rows * walk.splits)?;
            (outer, inner) = (n, walk.splits);
            let view = part.as_ref().map(Buffer::view);
            let sizes = [
                self.arg_opt(view.as_ref()),
                long(rows),
                long(cols),
                long(slopes),
                int(walk.splits),
                long(walk.chunk),
                int(walk.lanes),
                int(walk.wide as usize),
                int(walk.phase),
                accumulate,
            ];
            let grid = self.row_grid(rows * walk.splits, &walk);
            self.launch(&PRELU_BWD_ROWS, dt, "", grid, &[&inputs, &sizes[..]].concat())?;
        }
        let (Some(part), Some(da)) = (part, da) else { return Ok(()) };
        let tx = join_tx(outer, inner);
        let args = [
            self.arg_in(&part.view()),
            self.arg_out(&da.out),
            long(outer),
            long(slopes),
            long(inner),
            int(tx),
            int(da.accumulate as usize),
        ];
        self.launch(&PRELU_JOIN, dt, "", Grid::Blocks([slopes.div_ceil(tx), 1, 1]), &args)
    }

    pub(super) fn masked_softmax_impl(
        &self,
        scale: f64,
        x: View<'_>,
        mask: Option<View<'_>>,
        y: ViewMut<'_>,
    ) -> Result<()> {
        const OP: &str = "masked_softmax";
        let [rows, cols] = check_masked_softmax(&x, mask.as_ref(), &y)?;
        let out = y.as_view();
        self.own_all(OP, &[("x", Some(x)), ("mask", mask), ("y", Some(out))])?;
        if x.numel() == 0 {
            return Ok(());
        }
        let dt = x.dtype();
        let mut walk = self.row_walk(rows, cols, 32, &[&x, &out]);
        (walk.splits, walk.chunk) = (1, cols);
        let wide_mask = mask.map(|m| m.broadcast_to(x.shape())).transpose()?;
        let lead = x.shape().len() - 1;
        let strides: Vec<usize> =
            wide_mask.as_ref().map_or(vec![0; lead + 1], |m| m.layout().strides().to_vec());
        let step = if cols == 1 { 0 } else { strides[lead] };
        let args = [
            self.arg_in(&x),
            self.arg_opt(wide_mask.as_ref()),
            self.arg_in(&out),
            long(rows),
            long(cols),
            int(walk.lanes),
            int(walk.wide as usize),
            int(walk.phase),
            real(dt, scale),
            int(lead),
            dims(x.shape()[..lead].iter().copied()),
            dims(strides[..lead].iter().copied()),
            int(step),
            int(mask.as_ref().is_some_and(aligned16) as usize),
        ];
        self.launch(&SOFTMAX_MASKED, dt, "", self.row_grid(rows, &walk), &args)
    }

    pub(super) fn masked_softmax_bwd_impl(
        &self,
        scale: f64,
        dy: View<'_>,
        y: View<'_>,
        dx: GradMut<'_>,
    ) -> Result<()> {
        const OP: &str = "masked_softmax_bwd";
        let [rows, cols] = check_masked_softmax_bwd(&dy, &y, &dx)?;
        let out = dx.out.as_view();
        self.own_all(OP, &[("dy", dy), ("y", y), ("dx", out)])?;
        if y.numel() == 0 {
            return Ok(());
        }
        let dt = y.dtype();
        let walk = self.row_walk(rows, cols, 32, &[&dy, &y, &out]);
        let args = [
            self.arg_in(&dy),
            self.arg_in(&y),
            self.arg_in(&out),
            long(rows),
            long(cols),
            int(walk.lanes),
            int(walk.wide as usize),
            int(walk.phase),
            real(dt, scale),
            int(dx.accumulate as usize),
        ];
        self.launch(&SOFTMAX_MASKED_BWD, dt, "", self.row_grid(rows, &walk), &args)
    }
}
