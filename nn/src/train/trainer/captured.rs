//! Steps that are recorded on the device.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::Trainer;
use super::step::Batch;
use crate::core::error::Result;
use crate::core::tensor::{Tensor, same_handle};
use crate::module::{Entry, LayerExt, Param, Visitor};
use crate::train::capture::{CaptureStatus, Done, Steps};

impl Trainer<'_> {
    /// What is recorded of the steps, and why not everything is.
    pub fn capture_status(&self) -> CaptureStatus {
        let mut status = self.steps.as_ref().map(|s| s.status().clone()).unwrap_or_default();
        status.update = self.update_apart.clone();
        status
    }

    /// No steps yet, or the reason for which none will be recorded.
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

    /// A batch of a step, from a graph where there is one.
    pub(super) fn captured(&mut self, x: &Tensor, y: &Tensor, b: &Batch<'_>) -> Result<Done> {
        let Some(mut steps) = self.steps.take() else { return self.batch(x, y, b).map(Done::plainly) };
        let plain = steps.off();
        let more = if plain { 0 } else { self.state_of_step(b) };
        let done = steps.run(more, &[x.clone(), y.clone()], &mut |io| match io {
            [x, y] => self.batch(x, y, b),
            _ => Ok(vec![]),
        });
        let status = steps.status();
        let failed = status.plain.clone().filter(|_| !plain && status.graphs == 0);
        self.steps = Some(steps);
        if let (Some(why), None, Ok(_)) = (failed, &self.update_apart, &done) {
            // The passes alone may do.
            self.update_apart = Some(why);
            self.steps = Some(self.new_steps());
        }
        done
    }

    /// A number that changes where a recorded batch would not serve.
    fn state_of_step(&self, b: &Batch<'_>) -> u64 {
        let mut hash = DefaultHasher::new();
        (b.weight.to_bits(), b.items, b.first, b.last).hash(&mut hash);
        let totals = b.totals.map(|t| t.memory().map(|t| Arc::as_ptr(t.storage())));
        totals.hash(&mut hash);
        self.hash_model(&mut hash);
        hash.finish()
    }

    /// What changes where layers were switched between training and evaluation, parameters were frozen or replaced, or gradients are collected elsewhere.
    fn hash_model(&self, hash: &mut DefaultHasher) {
        let mut tensor = |p: &Param| {
            let t = p.get();
            Arc::as_ptr(t.storage()).hash(hash);
            if let Some(edge) = t.edge() {
                Arc::as_ptr(&edge.node).hash(hash);
                edge.node.grad(0).map(|g| Arc::as_ptr(g.storage())).hash(hash);
            }
        };
        let mut modes = vec![];
        self.model.visit(&mut Visitor::new(&mut |_, e| match e {
            Entry::Param(p) | Entry::Buffer(p) => tensor(p),
            Entry::Training(on) => modes.push(on.load(Ordering::Relaxed)),
            Entry::Counter(_) => {}
        }));
        modes.hash(hash);
    }
}
