//! Anomaly mode: finding the first value that is not finite, without waiting for the device in every step.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};

use trefoil::DType;
use trefoil::ops::elementwise::Binary;

use crate::core::autograd::no_grad;
use crate::core::error::{NnError, Result};
use crate::core::hooks::{self, OpObserver};
use crate::core::tensor::{Device, Tensor};
use crate::train::optim::Optimizer;

/// Operations of a forward that can be told apart; later ones are seen through the loss alone.
const OPS: usize = 8192;

#[derive(Default)]
struct Book {
    /// Layer and operation behind each flag, as in the last forward.
    names: Vec<(String, &'static str)>,
    /// Error of a backend call during the forward.
    failed: Option<NnError>,
    /// The step that each batch since the last read belongs to.
    steps: Vec<u64>,
    /// Batches that belong to no finished step yet.
    open: usize,
}

/// Flags on the device, and what they stand for. Clones share them.
#[derive(Clone)]
pub(super) struct Watch {
    /// Per operation of the present forward: not 0 if a result is not finite.
    now: Tensor,
    /// The same of the first bad batch.
    first: Tensor,
    /// Loss of the present batch, gradients of the present batch.
    flags: Tensor,
    /// The same of the first bad batch.
    first_flags: Tensor,
    /// Bad batches: the first one and all after it. Steps change nothing while it is not 0.
    count: Tensor,
    zero: Tensor,
    book: Arc<Mutex<Book>>,
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Watch")
    }
}

/// Sets a flag if the tensor holds a value that is not finite.
fn examine(t: &Tensor, flag: &Tensor) -> Result<()> {
    // Other layouts are views of results that were looked at already.
    if !t.dtype().is_float() || !t.is_contiguous() {
        return Ok(());
    }
    let (x, flag) = (t.operand(), flag.operand());
    Ok(t.device().unscale_grads(None, &mut [x.view_mut()?], flag.view_mut()?)?)
}

impl Watch {
    pub(super) fn new(device: &Device) -> Result<Self> {
        let zeros = |n: usize| Tensor::zeros(device, DType::F32, &[n]);
        let book = Arc::default();
        Ok(Watch {
            now: zeros(OPS)?,
            first: zeros(OPS)?,
            flags: zeros(2)?,
            first_flags: zeros(2)?,
            count: zeros(1)?,
            zero: zeros(1)?,
            book,
        })
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(|p| p.into_inner())
    }

    /// Before a batch's forward.
    pub(super) fn begin(&self) -> Result<()> {
        let mut book = self.book();
        book.names.clear();
        book.failed = None;
        self.now.fill(0.0)?;
        self.flags.fill(0.0)
    }

    /// After a batch's backward.
    pub(super) fn judge(&self, loss: &Tensor, optimizer: &Optimizer) -> Result<()> {
        if let Some(e) = self.book().failed.take() {
            return Err(e);
        }
        no_grad(|| {
            examine(&loss.detach(), &self.flags.narrow(0, 0, 1)?)?;
            // Scaled gradients may overflow; the scaler deals with that.
            if optimizer.loss_scale().is_none() {
                optimizer.examine_grads(&self.flags.narrow(0, 1, 1)?)?;
            }
            // What the first bad batch showed stays.
            let good = self.count.eq(&self.zero)?;
            self.first.assign(&self.now.where_(&good, &self.first)?)?;
            self.first_flags.assign(&self.flags.where_(&good, &self.first_flags)?)?;
            let bad = self.flags.amax(&[0], true)?.maximum(&self.count.clamp(None, Some(1.0))?)?;
            let (c, b) = (self.count.operand(), bad.operand());
            let add = Binary::Add { alpha: 1.0 };
            Ok::<_, NnError>(bad.device().binary(add, c.view()?, b.view()?, c.view_mut()?)?)
        })?;
        self.book().open += 1;
        Ok(())
    }

    /// Not 0 since the first bad batch.
    pub(super) fn bad(&self) -> &Tensor {
        &self.count
    }

    /// The batches since the last call made a step.
    pub(super) fn end_step(&self, step: u64) {
        let mut book = self.book();
        for _ in 0..std::mem::take(&mut book.open) {
            book.steps.push(step);
        }
    }

    /// Waits for the device. Errors: [`NnError::Anomaly`].
    pub(super) fn read(&self) -> Result<()> {
        let bad = self.count.item::<f32>()? as usize;
        let mut book = self.book();
        let steps = std::mem::take(&mut book.steps);
        if bad == 0 {
            return Ok(());
        }
        let step = steps.get(steps.len().saturating_sub(bad)).copied().unwrap_or(1);
        let flags = self.first.to_vec::<f32>()?;
        let in_loss = self.first_flags.to_vec::<f32>()?[0] != 0.0;
        let at = flags.iter().position(|&f| f != 0.0);
        let origin = match at.and_then(|i| book.names.get(i)) {
            Some((path, op)) if path.is_empty() => format!("operation `{op}`"),
            Some((path, op)) => format!("layer `{path}`, operation `{op}`"),
            None if in_loss => "an operation beyond those that are told apart".into(),
            None => "the backward pass".into(),
        };
        // Training may go on with other data, so the count starts again.
        self.count.fill(0.0)?;
        Err(NnError::Anomaly { step, what: if in_loss { "the loss" } else { "a gradient" }, origin })
    }
}

impl OpObserver for Watch {
    fn op(&self, path: &[String], op: &'static str, _: &[&Tensor], outputs: &[Tensor]) {
        let mut book = self.book();
        let at = book.names.len();
        if at >= OPS || book.failed.is_some() {
            return;
        }
        book.names.push((hooks::join(path), op));
        let look = || {
            let flag = no_grad(|| self.now.narrow(0, at, 1))?;
            outputs.iter().try_for_each(|t| examine(t, &flag))
        };
        book.failed = look().err();
    }
}
