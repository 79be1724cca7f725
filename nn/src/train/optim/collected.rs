//! Where parameters collect their gradients.

use std::sync::Arc;

use trefoil::Buffer;

use crate::core::error::Result;
use crate::core::tensor::{Device, Tensor, contiguous};
use crate::module::Param;

/// The memory of a parameter's gradient, from `start` on in `grads`, and whether it holds some: that of a parameter that it is tied to, if there is one.
pub(super) fn grad_memory<'p>(
    device: &Device,
    grads: &Arc<Buffer>,
    start: usize,
    param: &Param,
    mut tied: impl Iterator<Item = &'p Param>,
) -> Result<(Tensor, bool)> {
    let t = param.get();
    let placed = |p: &Param| {
        let node = p.get().edge()?.node.clone();
        Some((node.placed_grad()?, node.has_grad()))
    };
    match tied.find_map(placed) {
        Some((first, filled)) => Ok((first.relayout(contiguous("arena", t.shape())?), filled)),
        None => Ok((Tensor::over(device, grads, start, t.shape())?, false)),
    }
}

/// Lets a parameter collect its gradient there, to which what it has collected elsewhere moves. Returns whether there is some.
pub(super) fn collect_in<'p>(
    device: &Device,
    grads: &Arc<Buffer>,
    start: usize,
    param: &Param,
    tied: impl Iterator<Item = &'p Param>,
) -> Result<bool> {
    let t = param.get();
    let Some(edge) = t.edge() else { return Ok(false) };
    let (grad, before) = grad_memory(device, grads, start, param, tied)?;
    let collected = t.grad().filter(|g| edge.node.has_grad() && !g.shares_storage(&grad));
    match &collected {
        Some(g) => device.strided_copy(g.operand().view()?, grad.operand().grad(before)?)?,
        None if before => {}
        None => grad.fill(0.0)?,
    }
    let filled = before || collected.is_some();
    edge.node.place_grad(grad, filled);
    Ok(filled)
}
