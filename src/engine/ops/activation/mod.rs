//! Activations and parametric relu.

mod bias;
pub(super) mod gated;
mod plan;

use self::plan::{PreluBwdPlan, PreluBwdProblem};
use crate::buffer::{Buffer, GradMut, View, ViewMut};
use crate::driver::Ptr;
use crate::dtype::DType;
use crate::engine::Engine;
use crate::engine::geometry::Alignment;
use crate::engine::launch::{Grid, aligned16, int, long};
use crate::engine::ops::norm::join_tx;
use crate::error::Result;
use crate::layout::Layout;
use crate::ops::activation::*;
use crate::ops::core::Choice;
use crate::ops::shape::ShapeOps;
use crate::spec::activation::{ELU_FROM_OUTPUT, activation_function};
use crate::spec::kernels::activation::*;

impl Engine {
    /// What serves the gradients of 32 images of 56 x 56 cells with 64 slopes in f32.
    pub(crate) fn explain_prelu(&self, op: &'static str) -> Result<Choice> {
        let operands = Alignment::full(DType::F32);
        self.explain_problem(op, &PreluBwdProblem { n: 32, slopes: 64, cols: 3136, operands })
    }

    /// Gradient before the activation of a fused operation: `dy` itself, or dy * act' from what was saved, in `room`.
    pub(in crate::engine::ops) fn before_activation<'a>(
        &self,
        act: Activation,
        dy: View<'a>,
        saved: Option<View<'_>>,
        room: &'a mut Option<Buffer>,
    ) -> Result<View<'a>> {
        let Some(saved) = saved.filter(|_| act != Activation::Identity) else { return Ok(dy) };
        let out = self.room_before_activation(&dy, room)?;
        let dz = out.as_view();
        self.activation_bwd(act, dy, act.saved(saved), out.into())?;
        Ok(dz)
    }

    /// Memory for the gradient before an activation, in the order of `dy`.
    pub(in crate::engine::ops) fn room_before_activation<'a>(
        &self,
        dy: &View<'_>,
        room: &'a mut Option<Buffer>,
    ) -> Result<ViewMut<'a>> {
        let buffer = room.insert(self.scratch(dy.dtype(), dy.numel())?);
        buffer.alias_mut().map("dz", |_| match dy.layout().is_channels_last() {
            true if !dy.is_contiguous() => Layout::channels_last(dy.shape()),
            _ => Layout::contiguous(dy.shape()),
        })
    }
}

/// The saved tensor, and the name and parameters of the function that is the gradient.
fn gradient_function(act: Activation, saved: Saved<'_>) -> (View<'_>, &'static str, [f64; 2]) {
    let (name, parameters) = activation_function(act);
    match (act, saved) {
        (Activation::Elu { .. }, Saved::Output(y)) => (y, ELU_FROM_OUTPUT, parameters),
        (_, Saved::Output(v) | Saved::Input(v)) => (v, name, parameters),
    }
}

/// Operands of the gradients of parametric relu.
struct PreluBwd {
    dy: Ptr,
    x: Ptr,
    a: Ptr,
    dx: Ptr,
    /// Partial sums of da.
    part: Ptr,
    accumulate: i32,
}

impl Engine {
    /// Adds the sums `part` [outer, sets, inner] of each set.
    fn combine_parts(
        &self,
        part: &View<'_>,
        to: &GradMut<'_>,
        [outer, sets, inner]: [usize; 3],
    ) -> Result<()> {
        let tx = join_tx(outer, inner);
        let args = ActivationCombineArgs {
            part: self.arg_in(part),
            da: self.arg_out(&to.out),
            outer: long(outer),
            sets: long(sets),
            inner: long(inner),
            tx: int(tx),
            accumulate: i32::from(to.accumulate),
        };
        let grid = Grid::Blocks([sets.div_ceil(tx), 1, 1]);
        self.launch(&ACTIVATION_COMBINE, to.out.dtype(), "", grid, &args)
    }

    /// dx, and partial sums of da.
    fn prelu_sums(&self, p: &PreluBwdProblem, plan: PreluBwdPlan, io: PreluBwd) -> Result<()> {
        let PreluBwd { dy, x, a, dx, part, accumulate } = io;
        let &PreluBwdProblem { n, slopes, cols, operands } = p;
        match plan {
            PreluBwdPlan::Columns(geometry) => {
                let args = PreluBwdColumnsArgs {
                    dy,
                    x,
                    a,
                    dx,
                    part,
                    n: long(n),
                    cols: long(slopes * cols),
                    inner: long(cols),
                    chunk: long(geometry.chunk),
                    chunks: int(geometry.chunks),
                    tx: int(geometry.tx),
                    wide: i32::from(geometry.wide),
                    accumulate,
                };
                self.launch(&PRELU_BWD_COLUMNS, operands.dtype, "", geometry.grid(), &args)
            }
            PreluBwdPlan::Rows(geometry) => {
                let rows = n * slopes;
                let args = PreluBwdRowsArgs {
                    dy,
                    x,
                    a,
                    dx,
                    part,
                    rows: long(rows),
                    cols: long(cols),
                    slopes: long(slopes),
                    splits: int(geometry.splits),
                    chunk: long(geometry.chunk),
                    lanes: int(geometry.lanes),
                    wide: i32::from(geometry.wide),
                    phase: int(geometry.phase),
                    accumulate,
                };
                let grid = geometry.grid(rows * geometry.splits, self.device_caps());
                self.launch(&PRELU_BWD_ROWS, operands.dtype, "", grid, &args)
            }
        }
    }
}

impl ActivationOps for Engine {
    fn activation(&self, act: Activation, x: View<'_>, y: ViewMut<'_>) -> Result<()> {
        const OP: &str = "activation";
        check_activation(&x, &y)?;
        self.check_owner(OP, "x", &x)?;
        self.check_owner(OP, "y", &y.as_view())?;
        let (name, [p, q]) = activation_function(act);
        self.map(OP, name, &x, &y, [p, q, 0.0])
    }

    fn activation_bwd(&self, act: Activation, dy: View<'_>, saved: Saved<'_>, dx: GradMut<'_>) -> Result<()> {
        const OP: &str = "activation_bwd";
        check_activation_bwd(OP, act, &dy, &saved, &dx.out)?;
        let (s, name, [p, q]) = gradient_function(act, saved);
        self.check_owner(OP, "dy", &dy)?;
        self.check_owner(OP, "saved", &s)?;
        self.check_owner(OP, "dx", &dx.out.as_view())?;
        self.map_bwd(OP, name, [&dy, &s], &dx, [p, q, 0.0])
    }

    fn activation_bias_bwd(&self, act: Activation, io: ActivationBiasBwd<'_>) -> Result<()> {
        self.bias_gradient(act, io)
    }

    fn prelu(&self, x: View<'_>, a: View<'_>, y: ViewMut<'_>) -> Result<()> {
        const OP: &str = "prelu";
        let [_, slopes, cols] = check_prelu(&x, &a, &y)?;
        let out = y.as_view();
        self.check_owner_all(OP, &[("x", x), ("a", a), ("y", out)])?;
        let (n, dt) = (x.numel(), x.dtype());
        if n == 0 {
            return Ok(());
        }
        let wide = aligned16(&x) && aligned16(&out) && cols.is_multiple_of(16 / dt.size());
        let args = PreluArgs {
            x: self.arg_in(&x),
            a: self.arg_in(&a),
            y: self.arg_in(&out),
            n: long(n),
            cols: long(cols),
            slopes: long(slopes),
            wide: i32::from(wide),
        };
        self.launch(&PRELU, dt, "", self.map_grid(n, wide, dt, 1), &args)
    }

    fn prelu_bwd(
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
        self.check_owner_all(OP, &[("dy", dy), ("x", x), ("a", a)])?;
        self.check_owner_all(OP, &[("dx", vx), ("da", va)])?;
        if x.numel() == 0 {
            return match da {
                Some(g) if !g.accumulate => ShapeOps::fill(self, 0.0, g.out),
                _ => Ok(()),
            };
        }
        let dt = x.dtype();
        let accumulate = i32::from(dx.as_ref().is_some_and(|g| g.accumulate));
        let operands = Alignment::of(dt, [Some(&dy), Some(&x), vx.as_ref()].into_iter().flatten());
        let problem = PreluBwdProblem { n, slopes, cols, operands };
        let plan = self.plan(OP, &problem)?;
        let (outer, inner) = match plan {
            PreluBwdPlan::Columns(geometry) => (geometry.chunks, cols),
            PreluBwdPlan::Rows(geometry) => (n, geometry.splits),
        };
        let sums = || self.scratch(dt.accumulator(), outer * slopes * inner);
        let part = va.is_some().then(sums).transpose()?;
        let [dy, x, a] = [&dy, &x, &a].map(|v| self.arg_in(v));
        let (dx, sums) = (self.arg_opt(vx.as_ref()), self.arg_opt(part.as_ref().map(Buffer::view).as_ref()));
        self.prelu_sums(&problem, plan, PreluBwd { dy, x, a, dx, part: sums, accumulate })?;
        let (Some(part), Some(da)) = (part, da) else { return Ok(()) };
        self.combine_parts(&part.view(), &da, [outer, slopes, inner])
    }
}
