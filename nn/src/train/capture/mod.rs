//! Recorded steps: what a step queues on the device is recorded once and replayed as a whole, which spares the host the work of every operation.

mod recorded;
mod steps;

use std::fmt;

pub use self::steps::CaptureStatus;
pub(crate) use self::steps::{Done, Steps};

use crate::core::error::Result;
use crate::core::tensor::{Device, Tensor};

/// A step that is recorded when it runs for the third time with inputs of the same shapes and dtypes, and replayed from then on; from [`capture`].
pub struct CapturedStep<F> {
    steps: Steps,
    step: F,
}

impl<F> fmt::Debug for CapturedStep<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CapturedStep").field("status", self.steps.status()).finish_non_exhaustive()
    }
}

/// Records and replays a step of a loop of your own, `torch.cuda.make_graphed_callables`: usually forward, loss and backward. A
/// [`Trainer`](crate::Trainer) does it by itself.
///
/// The first two runs with inputs of some shapes are the plain calls, which also fill whatever layers prepare once; the third is recorded. Each set of
/// shapes has a graph of its own, at most [`CaptureStatus::MOST_GRAPHS`]. A replay gives the bits of the plain calls: inputs are copied in, random layers
/// go on in their streams. What else the closure reads on the host stays as it was in the recording, so that it must depend on its inputs, on parameters
/// and buffers of the model, and on nothing that changes from run to run; after a layer was switched between training and evaluation, frozen or
/// replaced, make a new one.
///
/// Steps that need the host in between (that read values back or upload some), and those that keep tensors they made (gradients outside of an
/// [`Optimizer`](crate::Optimizer)'s memory, states that layers carry from batch to batch), run as plain calls; [`CapturedStep::status`] says why.
///
/// An [`Optimizer`](crate::Optimizer) may be part of the step, from clearing the gradients to its [`step`](crate::Optimizer::step): its rate and its count
/// then lie in device memory, for up to 64 steps ahead, and count on as ever; they are written again after a rate that was set anew. Under loss scaling
/// clipping and step must be in it both or neither. Random rounding of packed moments belongs outside.
///
/// ```
/// use trefoil::{Registry, Selector};
/// use trefoil_nn::layers::Dense;
/// use trefoil_nn::{InitContext, Layer, MseLoss, Optimizer, Tensor};
///
/// let device = Registry::default().open(&"cpu".parse::<Selector>()?)?;
/// let model = Dense::new(&InitContext::new(&device, 1), 2, 1)?;
/// let mut optimizer = Optimizer::sgd(&model, 0.1)?;
/// let mut step = trefoil_nn::capture(&device, |io| {
///     let loss = MseLoss::default().forward(&model.forward(&io[0])?, &io[1])?;
///     loss.backward()?;
///     Ok(vec![loss])
/// });
/// let x = Tensor::from_slice(&device, &[1f32, 2.0], &[1, 2])?;
/// let y = Tensor::from_slice(&device, &[3f32], &[1, 1])?;
/// let mut losses = vec![];
/// for _ in 0..5 {
///     optimizer.zero_grad()?;
///     losses.extend(step.run(&[x.clone(), y.clone()])?);
///     optimizer.step()?;
/// }
/// assert!(losses[4].item::<f32>()? < losses[0].item::<f32>()?);
/// # Ok::<(), trefoil_nn::NnError>(())
/// ```
pub fn capture<F>(device: &Device, step: F) -> CapturedStep<F>
where
    F: FnMut(&[Tensor]) -> Result<Vec<Tensor>>,
{
    CapturedStep { steps: Steps::new(device), step }
}

impl<F: FnMut(&[Tensor]) -> Result<Vec<Tensor>>> CapturedStep<F> {
    /// Runs the step on these inputs, outside of the graph. Returns its outputs, detached, in memory of their own. Errors: those of the step.
    pub fn run(&mut self, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        let done = self.steps.run(0, inputs, &mut self.step)?;
        if done.replayed { done.outputs.iter().map(Tensor::copy).collect() } else { Ok(done.outputs) }
    }

    /// What is recorded, and why not everything is.
    pub fn status(&self) -> &CaptureStatus {
        self.steps.status()
    }
}
