//! Activations; the softmax family stands in `softmax.rs`.

use super::elementwise::MapKernels;
use crate::buffer::{Buffer, GradMut, View, ViewMut};
use crate::engine::Engine;
use crate::error::Result;
use crate::ops::*;
use crate::spec::activation::*;

static MAP: MapKernels =
    MapKernels { flat: &ACT_FLAT, nd: &ACT_ND, bwd_flat: &ACT_BWD_FLAT, bwd_nd: &ACT_BWD_ND };

impl Engine {
    /// Gradient before the activation of a fused operation: `dy` itself, or dy * act' from what was saved, in `room`.
    pub(super) fn before_activation<'a>(
        &self,
        act: Activation,
        dy: View<'a>,
        saved: Option<View<'_>>,
        room: &'a mut Option<Buffer>,
    ) -> Result<View<'a>> {
        let Some(saved) = saved.filter(|_| act != Activation::Identity) else { return Ok(dy) };
        let buffer = room.insert(self.scratch(dy.dtype(), dy.numel())?);
        let out = buffer.alias_mut().reshape(dy.shape())?;
        let dz = out.as_view();
        self.activation_bwd(act, dy, act.saved(saved), out.into())?;
        Ok(dz)
    }
}

impl ActivationOps for Engine {
    fn activation(&self, act: Activation, x: View<'_>, y: ViewMut<'_>) -> Result<()> {
        const OP: &str = "activation";
        check_activation(&x, &y)?;
        self.own(OP, "x", &x)?;
        self.own(OP, "y", &y.as_view())?;
        let (name, [p, q]) = activation_function(act);
        self.map(&MAP, name, &x, &y, [p, q, 0.0])
    }

    fn activation_bwd(&self, act: Activation, dy: View<'_>, saved: Saved<'_>, dx: GradMut<'_>) -> Result<()> {
        const OP: &str = "activation_bwd";
        check_activation_bwd(act, &dy, &saved, &dx)?;
        let (name, [p, q]) = activation_function(act);
        let (s, name) = match (act, saved) {
            (Activation::Elu { .. }, Saved::Output(y)) => (y, ELU_FROM_OUTPUT),
            (_, Saved::Output(v) | Saved::Input(v)) => (v, name),
        };
        self.own(OP, "dy", &dy)?;
        self.own(OP, "saved", &s)?;
        self.own(OP, "dx", &dx.out.as_view())?;
        self.map_bwd(&MAP, name, &dy, &s, &dx, [p, q, 0.0])
    }

    fn softmax(&self, kind: Softmax, axis: usize, x: View<'_>, y: ViewMut<'_>) -> Result<()> {
        self.softmax_impl(kind, axis, x, y)
    }

    fn softmax_bwd(
        &self,
        kind: Softmax,
        axis: usize,
        dy: View<'_>,
        y: View<'_>,
        dx: GradMut<'_>,
    ) -> Result<()> {
        self.softmax_bwd_impl(kind, axis, dy, y, dx)
    }

    fn masked_softmax(&self, scale: f64, x: View<'_>, mask: Option<View<'_>>, y: ViewMut<'_>) -> Result<()> {
        self.masked_softmax_impl(scale, x, mask, y)
    }

    fn masked_softmax_bwd(&self, scale: f64, dy: View<'_>, y: View<'_>, dx: GradMut<'_>) -> Result<()> {
        self.masked_softmax_bwd_impl(scale, dy, y, dx)
    }

    fn gated(&self, act: Activation, input: GatedInput<'_>, y: ViewMut<'_>) -> Result<()> {
        self.gated_impl(act, input, y)
    }

    fn gated_bwd(
        &self,
        act: Activation,
        dy: View<'_>,
        input: GatedInput<'_>,
        grads: GatedGrad<'_>,
    ) -> Result<()> {
        self.gated_bwd_impl(act, dy, input, grads)
    }

    fn prelu(&self, x: View<'_>, a: View<'_>, y: ViewMut<'_>) -> Result<()> {
        self.prelu_impl(x, a, y)
    }

    fn prelu_bwd(
        &self,
        dy: View<'_>,
        x: View<'_>,
        a: View<'_>,
        dx: Option<GradMut<'_>>,
        da: Option<GradMut<'_>>,
    ) -> Result<()> {
        self.prelu_bwd_impl(dy, x, a, dx, da)
    }
}
