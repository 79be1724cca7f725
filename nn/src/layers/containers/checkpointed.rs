//! Gradient checkpointing.

use std::cell::Cell;
use std::sync::Arc;

use crate::core::autograd::{
    BackwardCtx, GradOptions, Saved, backward, enable_grad, grad, grad_enabled, no_grad, record,
};
use crate::core::error::Result;
use crate::core::tensor::Tensor;
use crate::module::{Layer, LayerExt, Param, Snapshot, Visitor, auxiliary, parametrized};

/// A layer whose intermediate results are not kept for the backward pass but computed again there (Chen et al., 2016),
/// `torch.utils.checkpoint.checkpoint`: memory for the inputs only, at the price of a second forward.
///
/// Results and gradients have the same bits as without: random numbers are drawn again from the same positions, and buffers (running statistics)
/// are as they were before the forward while it is repeated, and as they were after it afterwards. The mode (training, evaluation) must not
/// change between forward and backward. State and names are the layer's own. Stateful recurrent layers refuse to run in it. For layers in a row,
/// in about sqrt(depth) segments or within a budget of bytes: [`Sequential::checkpointed`](crate::layers::Sequential::checkpointed).
#[derive(Debug)]
pub struct Checkpointed {
    layer: Arc<dyn Layer>,
}

impl Checkpointed {
    /// Checkpoints a layer.
    pub fn new(layer: impl Layer + 'static) -> Self {
        Checkpointed { layer: Arc::new(layer) }
    }

    /// The layer.
    pub fn layer(&self) -> &dyn Layer {
        &*self.layer
    }

    fn run(&self, inputs: &[Tensor], call: Call) -> Result<Vec<Tensor>> {
        if !grad_enabled() {
            return call(&*self.layer, inputs);
        }
        let before = Snapshot::take(&*self.layer)?;
        let plain: Vec<Tensor> = inputs.iter().map(Tensor::detach).collect();
        let with_terms = auxiliary::is_collecting();
        let (y, terms) = no_grad(|| repeated(|| outputs(&*self.layer, call, with_terms, &plain)))?;
        let count = y.len();
        let y = y.iter().chain(&terms).map(Tensor::detach).collect();
        let params: Vec<Param> = self.layer.named_parameters().into_iter().map(|(_, p)| p).collect();
        let read: Vec<Tensor> = params.iter().map(Param::get).collect();
        let from: Vec<&Tensor> = inputs.iter().chain(&read).collect();
        let mut y = record("checkpointed", &from, y, || {
            let layer = self.layer.clone();
            let x: Vec<Saved> = plain.iter().map(Saved::new).collect();
            let seen = |(p, t): (&Param, &Tensor)| (p.clone(), Saved::new(t), p.is_parametrized());
            let params: Vec<(Param, Saved, bool)> = params.iter().zip(&read).map(seen).collect();
            let run = move |x: &[Tensor]| {
                let (mut y, terms) = outputs(&*layer, call, with_terms, x)?;
                y.extend(terms);
                Ok(y)
            };
            let layer = self.layer.clone();
            move |cx: &mut BackwardCtx<'_>| recompute(&*layer, &run, &before, &x, &params, cx)
        });
        y.split_off(count).into_iter().try_for_each(|term| auxiliary::add(|| Ok(term)))?;
        Ok(y)
    }
}

/// How a segment is called.
type Call = fn(&dyn Layer, &[Tensor]) -> Result<Vec<Tensor>>;

/// A segment's outputs and, where they are asked for, the terms that its layers add to the loss.
fn outputs(
    layer: &dyn Layer,
    call: Call,
    with_terms: bool,
    x: &[Tensor],
) -> Result<(Vec<Tensor>, Vec<Tensor>)> {
    match with_terms {
        true => auxiliary::collect(|| call(layer, x)),
        false => Ok((call(layer, x)?, vec![])),
    }
}

thread_local! {
    static REPEATED: Cell<bool> = const { Cell::new(false) };
}

/// Whether a forward runs that will be, or is, repeated.
pub(crate) fn is_repeated() -> bool {
    REPEATED.with(Cell::get)
}

/// Runs a forward that will be, or is, repeated.
pub(super) fn repeated<T>(f: impl FnOnce() -> T) -> T {
    struct Restore(bool);
    impl Drop for Restore {
        fn drop(&mut self) {
            REPEATED.with(|r| r.set(self.0));
        }
    }
    let _before = Restore(REPEATED.with(|r| r.replace(true)));
    f()
}

/// Gradients of a segment whose forward is repeated.
fn recompute(
    layer: &dyn Layer,
    run: &dyn Fn(&[Tensor]) -> Result<Vec<Tensor>>,
    before: &Snapshot,
    inputs: &[Saved],
    params: &[(Param, Saved, bool)],
    cx: &mut BackwardCtx<'_>,
) -> Result<()> {
    cx.first_order_only()?;
    let mut x = vec![];
    for (i, saved) in inputs.iter().enumerate() {
        let t = saved.get(cx)?;
        x.push(if cx.needs(i) { t.with_grad() } else { t.clone() });
    }
    // Parameters that read as something else in the forward do so again.
    let mut replaced = vec![];
    for (i, (p, saved, substituted)) in params.iter().enumerate() {
        // One that changed since the forward would give the gradient of another function.
        let t = saved.get(cx)?;
        if *substituted {
            let at = inputs.len() + i;
            replaced.push((at, p.clone(), if cx.needs(at) { t.with_grad() } else { t.clone() }));
        }
    }

    let now = Snapshot::take(layer)?;
    let again = || -> Result<Vec<(usize, Option<Tensor>)>> {
        before.restore(layer)?;
        let substitutes = replaced.iter().map(|(_, p, t)| (p.clone(), t.clone())).collect();
        let y = enable_grad(|| parametrized(substitutes, || repeated(|| run(&x))))?;
        let roots: Vec<(&Tensor, Option<&Tensor>)> = y
            .iter()
            .enumerate()
            .filter(|(_, y)| y.requires_grad())
            .filter_map(|(i, y)| cx.upstream(i).map(|g| (y, Some(g))))
            .collect();
        if !cx.returns_gradients() {
            // Other parameters' gradients are collected by their leaves directly.
            backward(&roots, false)?;
            return Ok(vec![]);
        }
        let substitute = |at: usize| replaced.iter().find(|(i, ..)| *i == at).map(|(.., t)| t.clone());
        let mut asked: Vec<(usize, Tensor)> = x.iter().cloned().enumerate().collect();
        for (i, (p, ..)) in params.iter().enumerate() {
            let at = inputs.len() + i;
            asked.push((at, substitute(at).unwrap_or_else(|| p.get())));
        }
        asked.retain(|(at, t)| cx.needs(*at) && t.requires_grad());
        let wanted: Vec<&Tensor> = asked.iter().map(|(_, t)| t).collect();
        let found = grad(&roots, &wanted, GradOptions { allow_unused: true, ..GradOptions::default() })?;
        Ok(asked.iter().map(|(at, _)| *at).zip(found).collect::<Vec<_>>())
    };
    // The backward may read buffers, so they change back after it.
    let done = again();
    now.restore(layer)?;
    for (at, g) in done? {
        if let Some(g) = g {
            cx.give(at, g)?;
        }
    }
    let inputs = x.iter().enumerate().chain(replaced.iter().map(|(at, _, t)| (*at, t)));
    for (i, x) in inputs {
        if let Some(g) = x.grad() {
            cx.give(i, g)?;
        }
    }
    Ok(())
}

impl Layer for Checkpointed {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let y = self.run(std::slice::from_ref(x), |layer, x| Ok(vec![layer.forward(&x[0])?]))?;
        Ok(y[0].clone())
    }

    fn forward_all(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        self.run(inputs, |layer, x| layer.forward_all(x))
    }

    fn visit(&self, v: &mut Visitor<'_>) {
        v.flattened(&*self.layer);
    }

    fn no_gradient(&self) -> Option<String> {
        self.layer.no_gradient()
    }
}
