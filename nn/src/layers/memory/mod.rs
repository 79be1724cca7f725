//! Layers that read and write a memory.

pub(crate) mod read;
pub(crate) mod write;

use crate::core::error::{Result, invalid};
use crate::core::tensor::{Tensor, same_device};

/// Error unless x is `[B, inputs]` and the memory `[B, S, width]`, or where it may be shared `[S, width]`, with at least one slot.
fn check(
    op: &'static str,
    x: &Tensor,
    inputs: usize,
    memory: &Tensor,
    width: usize,
    shared: bool,
) -> Result<()> {
    same_device(op, x, memory)?;
    let &[batch, features] = x.shape() else {
        return Err(invalid(op, "x", format!("shape [B, {inputs}]"), format!("shape {:?}", x.shape())));
    };
    if features != inputs {
        return Err(invalid(op, "x", format!("shape [B, {inputs}]"), format!("shape {:?}", x.shape())));
    }
    let fits = match *memory.shape() {
        [slots, w] => shared && slots > 0 && w == width,
        [b, slots, w] => b == batch && slots > 0 && w == width,
        _ => false,
    };
    if fits {
        return Ok(());
    }
    let or = if shared { format!(" or [S, {width}]") } else { String::new() };
    let want = format!("shape [{batch}, S, {width}]{or} with at least one slot");
    Err(invalid(op, "memory", want, format!("shape {:?}", memory.shape())))
}

/// Adds the mean entropy of rows of weights to the loss.
fn add_entropy(weights: &Tensor, factor: f64) -> Result<()> {
    if factor == 0.0 || weights.shape()[0] == 0 {
        return Ok(());
    }
    crate::module::auxiliary::add(|| {
        let a = weights.to_dtype(weights.dtype().accumulator())?;
        let surprise = a.clamp(Some(1e-10), None)?.ln()?.neg()?;
        a.mul(&surprise)?.sum_axes(&[-1], false)?.mean()?.mul_scalar(factor)
    })
}

/// The weight of the entropy in the loss. Errors: negative or infinite.
fn check_entropy_weight(op: &'static str, weight: f64) -> Result<f64> {
    if weight >= 0.0 && weight.is_finite() {
        return Ok(weight);
    }
    Err(invalid(op, "entropy_weight", "a finite number of at least 0", format!("{weight}")))
}

/// The two inputs of a layer with a memory.
fn pair<'a>(op: &'static str, inputs: &'a [Tensor]) -> Result<[&'a Tensor; 2]> {
    match inputs {
        [x, memory] => Ok([x, memory]),
        _ => Err(invalid(op, "inputs", "features and a memory", format!("{} tensors", inputs.len()))),
    }
}

/// Refuses a call without a memory.
fn without_memory(op: &'static str) -> Result<Tensor> {
    Err(invalid(op, "memory", "features and a memory (`forward_all`)", "features alone"))
}
