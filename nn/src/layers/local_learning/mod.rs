//! Layers that learn by rules of their own, see [`LocalLearning`](crate::LocalLearning): what they learn are buffers, which optimizers do not
//! see.

pub(super) mod anomaly;
pub(super) mod continuum;
pub(super) mod rbm;
pub(super) mod spatial_pooler;
pub(super) mod synaptic;
pub(super) mod temporal_memory;

use std::sync::Mutex;

use crate::core::autograd::BackwardCtx;
use crate::core::error::{Result, invalid};
use crate::core::index_check::Values;
use crate::core::tensor::Tensor;
use crate::functional::check_values;
use crate::module::Param;

/// What the last forward in training left for the learning rule.
#[derive(Debug)]
struct Seen<T>(Mutex<Option<T>>);

impl<T> Default for Seen<T> {
    fn default() -> Self {
        Seen(Mutex::default())
    }
}

impl<T> Seen<T> {
    fn put(&self, what: T) {
        *self.0.lock().unwrap_or_else(|p| p.into_inner()) = Some(what);
    }

    fn take(&self) -> Option<T> {
        self.0.lock().unwrap_or_else(|p| p.into_inner()).take()
    }
}

/// Why gradients end at a layer whose output is a step function of its input.
const STEP_FUNCTION: &str = "the output is a step function of the input, whose gradient is 0";

/// A result of x through which no gradient comes back: the input's is 0.
fn constant_of(op: &'static str, y: Tensor, x: &Tensor) -> Tensor {
    y.record(op, &[x], || {
        |cx: &mut BackwardCtx<'_>| match cx.target(0)? {
            Some(dx) => dx.prepare(),
            None => Ok(()),
        }
    })
}

/// Fills a buffer with zeros. A device that cannot be written to reports so to the next call that can say it.
fn clear(buffer: &Param) {
    let _ = buffer.get().fill(0.0);
}

/// Has the device examine that all elements are 0 or 1; others are reported by the next call that waits.
fn check_binary(op: &'static str, x: &Tensor) -> Result<()> {
    let good = x.eq_scalar(0.0)?.logical_or(&x.eq_scalar(1.0)?)?;
    check_values(x, &good, Values { op, expected: "0 or 1", allows: |v| v == 0.0 || v == 1.0 })
}

/// Error unless a size is at least 1.
fn check_size(op: &'static str, arg: &'static str, n: usize) -> Result<()> {
    if n == 0 { Err(invalid(op, arg, "at least 1", "0")) } else { Ok(()) }
}

/// Error unless a rate or a strength is a finite number of at least 0.
fn check_rate(op: &'static str, arg: &'static str, rate: f64) -> Result<()> {
    if rate >= 0.0 && rate.is_finite() {
        return Ok(());
    }
    Err(invalid(op, arg, "a finite number of at least 0", format!("{rate}")))
}

/// Error unless a number is in [0, 1].
fn check_share(op: &'static str, arg: &'static str, share: f64) -> Result<()> {
    if (0.0..=1.0).contains(&share) {
        return Ok(());
    }
    Err(invalid(op, arg, "a number in [0, 1]", format!("{share}")))
}

/// Error unless x is `[n]` or `[B, n]`.
fn check_vectors(op: &'static str, arg: &'static str, x: &Tensor, n: usize) -> Result<()> {
    match *x.shape() {
        [width] | [_, width] if width == n => Ok(()),
        _ => Err(invalid(op, arg, format!("shape [{n}] or [B, {n}]"), format!("shape {:?}", x.shape()))),
    }
}

/// Error unless x is `[.., n]`.
fn check_last(op: &'static str, x: &Tensor, n: usize) -> Result<()> {
    if x.shape().last() == Some(&n) {
        return Ok(());
    }
    Err(invalid(op, "x", format!("shape [.., {n}]"), format!("shape {:?}", x.shape())))
}

/// The vectors along the last axis, `[.., n] -> [rows, n]`.
fn rows(x: &Tensor, n: usize) -> Result<Tensor> {
    x.reshape(&[x.shape().iter().rev().skip(1).product(), n])
}
