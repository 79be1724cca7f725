//! Which layers of a [`Sequential`] are computed again in the backward pass: segments of equal length, or what a budget of bytes asks for.

use std::cell::Cell;
use std::ops::Range;
use std::rc::Rc;

use super::checkpointed::repeated;
use super::recompute::{self, Cost};
use crate::core::autograd::{GradOptions, enable_grad, grad, no_grad};
use crate::core::capture;
use crate::core::error::{NnError, Result, invalid};
use crate::core::tensor::{Device, Tensor};
use crate::layers::Sequential;
use crate::module::hooks::{self, Observer, OpObserver};
use crate::module::{Layer, LayerExt, Param, Snapshot, auxiliary};
use crate::report::flops;

/// Which layers of a [`Sequential`] do not keep what the backward pass needs but [compute it again](crate::layers::Checkpointed) there; for
/// [`Sequential::checkpointed`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum CheckpointPlan {
    /// About sqrt(L) segments for L layers (rounded up), the least memory that segments of equal length take for layers of equal size (Chen et al.,
    /// 2016).
    #[default]
    Sqrt,
    /// So many segments of about equal length, `torch.utils.checkpoint.checkpoint_sequential`. The last one keeps what it computes, as there: its
    /// turn in the backward pass comes at once.
    Segments(usize),
    /// These runs of layers, each as one, in order.
    Runs(Vec<Range<usize>>),
}

impl CheckpointPlan {
    /// The runs that keep the memory of a training step within `bytes` and compute the least again, as [`CheckpointPlan::Runs`].
    ///
    /// Each layer runs forward and backward by itself on what the layers before it make of `example`, on the example's device and in the mode that
    /// the layers are in, and the live bytes of the device's pool are read; so the stack as a whole need not fit. Work is counted as in
    /// [summaries](crate::summary), bytes moved where an operation has no arithmetic: no clock is read, and the same layers get the same
    /// plan. Random streams and buffers are put back; lazy layers get their parameters. The pool's
    /// [peak](trefoil::ops::core::MemoryStats::peak) begins anew.
    ///
    /// **The budget** is for what a step with inputs like the example has beside what is there already: activations, and the gradients and
    /// scratch memory of the layer whose turn it is (with gradients of the parameters of that layer). It is not for parameters, their collected
    /// gradients and the optimizer's memory, the input, and what a loss takes beside the gradient of the output. Give an example that
    /// [requires a gradient](Tensor::with_grad) where other layers come before these. A pool that reuses blocks of other sizes may take up
    /// to a quarter more; no other thread may use the handle meanwhile.
    ///
    /// Errors: [`NnError::MemoryBudget`] with the bytes that the leanest plan takes; those of the layers, among them of stateful recurrent ones.
    pub fn within(layers: &Sequential, bytes: usize, example: &Tensor) -> Result<Self> {
        capture::refuse("CheckpointPlan::within", "it reads how much memory there is on the host")?;
        let costs = costs(layers, example)?;
        recompute::plan(&costs, bytes as u64).map(CheckpointPlan::Runs).map_err(|least| {
            NnError::MemoryBudget { budget: bytes, least: usize::try_from(least).unwrap_or(usize::MAX) }
        })
    }

    /// The runs of a row of so many layers. Errors: runs that are empty, out of order or beyond the layers, and numbers of segments that are not 1
    /// to the number of layers.
    pub(super) fn runs(&self, layers: usize) -> Result<Vec<Range<usize>>> {
        match self {
            CheckpointPlan::Sqrt => {
                let root = layers.isqrt();
                Ok(equal(layers, root + usize::from(root * root < layers)))
            }
            CheckpointPlan::Segments(n) => match (1..=layers).contains(n) {
                true => Ok(equal(layers, *n)),
                false => {
                    Err(invalid(OP, "checkpoint", format!("1 to {layers} segments"), format!("{n} segments")))
                }
            },
            CheckpointPlan::Runs(runs) => {
                let mut before = 0;
                for run in runs {
                    if run.start < before || run.is_empty() || run.end > layers {
                        let expected = format!("a run of layers in {before}..{layers}");
                        return Err(invalid(OP, "checkpoint", expected, format!("{run:?}")));
                    }
                    before = run.end;
                }
                Ok(runs.clone())
            }
        }
    }
}

const OP: &str = "Sequential";

/// All but the last of `n` segments of about equal length.
fn equal(layers: usize, n: usize) -> Vec<Range<usize>> {
    let at = |i: usize| (i as u128 * layers as u128 / n.max(1) as u128) as usize;
    (1..n).map(|i| at(i - 1)..at(i)).collect()
}

/// Counts the work of operations.
#[derive(Default)]
struct Work(Cell<u64>);

impl OpObserver for Work {
    fn op(&self, _: &[String], op: &'static str, inputs: &[&Tensor], outputs: &[Tensor]) {
        let moved: usize = outputs.iter().map(|t| t.numel() * t.dtype().size()).sum();
        let work = match flops::of(op, inputs, outputs).flops {
            0 => moved as u64,
            flops => flops,
        };
        self.0.set(self.0.get().saturating_add(work));
    }
}

impl Observer for Work {}

fn in_use(device: &Device) -> u64 {
    device.memory().in_use as u64
}

/// What the layers of a row take, each on what the one before it makes of the example.
fn costs(layers: &Sequential, example: &Tensor) -> Result<Vec<Cost>> {
    let before = Snapshot::take(layers)?;
    let all = repeated(|| {
        let (mut x, mut all) = (example.clone(), vec![]);
        // The caller has the input.
        let mut held = 0;
        for (key, layer) in layers.entries() {
            let (cost, y) = cost(key, layer, &x, held)?;
            (x, held) = (y, cost.output);
            all.push(cost);
        }
        Ok(all)
    });
    before.restore(layers)?;
    all
}

/// Bytes that go with something.
fn freed<T>(device: &Device, what: T) -> u64 {
    let with = in_use(device);
    drop(what);
    with.saturating_sub(in_use(device))
}

/// What a layer takes on an input, behind which there are `held` bytes, and its output.
fn cost(key: &str, layer: &dyn Layer, x: &Tensor, held: u64) -> Result<(Cost, Tensor)> {
    let device = x.device();
    // Once without a graph: parameters of lazy layers, and whatever else layers prepare once, are not part of a step.
    let work = Rc::new(Work::default());
    let y = no_grad(|| hooks::observe(work.clone(), || hooks::layer(key, layer, x)))?;
    let dy = if y.dtype().is_float() { Some(y.ones_like()?) } else { None };
    // A view keeps what it shows.
    let output = if y.shares_storage(x) { held } else { freed(device, y) };
    let buffers = freed(device, Snapshot::take(layer)?);
    let (kept, peak, y) = taken(key, layer, x, dy.as_ref())?;
    let peak = peak + freed(device, dy);
    Ok((Cost { kept, peak, output, buffers, work: work.0.get().max(1) }, y))
}

/// The bytes that a layer's forward leaves and those at the worst moment of its forward and backward, and its output.
fn taken(key: &str, layer: &dyn Layer, x: &Tensor, dy: Option<&Tensor>) -> Result<(u64, u64, Tensor)> {
    let device = x.device();
    let alike = |t: &Tensor| if t.requires_grad() { t.detach().with_grad() } else { t.detach() };
    let x = alike(x);
    let base = in_use(device);
    device.reset_peak();
    let (y, terms) = enable_grad(|| auxiliary::collect(|| hooks::layer(key, layer, &x)))?;
    let kept = in_use(device).saturating_sub(base);
    let mut roots = vec![(&y, dy)];
    roots.extend(terms.iter().map(|t| (t, None)));
    roots.retain(|(t, _)| t.requires_grad());
    let mut wanted: Vec<Tensor> = layer.parameters().iter().map(Param::get).collect();
    wanted.push(x);
    wanted.retain(Tensor::requires_grad);
    if !roots.is_empty() {
        let options = GradOptions { allow_unused: true, ..GradOptions::default() };
        grad(&roots, &wanted.iter().collect::<Vec<_>>(), options)?;
    }
    let peak = (device.memory().peak as u64).saturating_sub(base);
    Ok((kept, peak, alike(&y)))
}
