//! Passes that are recorded on the device.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::Trainer;
use crate::core::error::Result;
use crate::core::tensor::{Tensor, same_handle};
use crate::module::{Entry, LayerExt, Param, Visitor};
use crate::train::capture::{CaptureStatus, Done, Steps};

impl Trainer<'_> {
    /// What is recorded of the passes, and why not everything is.
    pub fn capture_status(&self) -> CaptureStatus {
        self.steps.as_ref().map(|s| s.status().clone()).unwrap_or_default()
    }

    /// No passes yet, or the reason for which none will be recorded.
    pub(super) fn new_steps(&self) -> Steps {
        let elsewhere = |(_, p): &(String, Param)| !same_handle(p.get().device(), &self.device);
        let why = match () {
            () if !self.options.capture => "the option `capture` is off",
            () if self.watch.is_some() => "anomaly mode looks at every operation",
            () if self.learns_locally => "a layer has a learning rule of its own",
            () if self.model.named_state().iter().any(elsewhere) => "the model is not all on one handle",
            () => return Steps::new(&self.device),
        };
        Steps::plain(&self.device, why)
    }

    /// Adds `weight` times the gradients of a batch, from a graph where there is one.
    pub(super) fn captured(&mut self, x: &Tensor, y: &Tensor, weight: f64) -> Result<Done> {
        let Some(mut steps) = self.steps.take() else { return self.passes(x, y, weight) };
        let more = if steps.off() { 0 } else { self.state_of_model(weight) };
        let done = steps.run(more, &[x.clone(), y.clone()], &mut |io| match io {
            [x, y] => Ok(self.passes(x, y, weight)?.outputs),
            _ => Ok(vec![]),
        });
        self.steps = Some(steps);
        done
    }

    /// A number that changes where a recorded pass would not serve: layers that were switched between training and evaluation, parameters that were
    /// frozen or replaced, gradients that are collected elsewhere.
    fn state_of_model(&self, weight: f64) -> u64 {
        let mut hash = DefaultHasher::new();
        weight.to_bits().hash(&mut hash);
        let mut tensor = |p: &Param| {
            let t = p.get();
            Arc::as_ptr(t.storage()).hash(&mut hash);
            if let Some(edge) = t.edge() {
                Arc::as_ptr(&edge.node).hash(&mut hash);
                edge.node.grad(0).map(|g| Arc::as_ptr(g.storage())).hash(&mut hash);
            }
        };
        let mut modes = vec![];
        self.model.visit(&mut Visitor::new(&mut |_, e| match e {
            Entry::Param(p) | Entry::Buffer(p) => tensor(p),
            Entry::Training(on) => modes.push(on.load(Ordering::Relaxed)),
            Entry::Counter(_) => {}
        }));
        modes.hash(&mut hash);
        hash.finish()
    }
}
