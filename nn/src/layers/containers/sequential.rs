//! Layers in a row.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use super::checkpoint_plan::CheckpointPlan;
use super::checkpointed::Checkpointed;
use crate::core::error::Result;
use crate::core::tensor::Tensor;
use crate::module::hooks;
use crate::module::{Layer, Visitor};

/// Applies layers one after the other, `torch.nn.Sequential`. State names are `index.name`, or `key.name` for children with a key.
#[derive(Default)]
pub struct Sequential {
    layers: Vec<(String, Arc<dyn Layer>)>,
    /// Runs of them that are computed again in the backward pass.
    segments: Vec<(Range<usize>, Checkpointed)>,
}

impl fmt::Debug for Sequential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let checkpoints: Vec<Range<usize>> = self.checkpoints().collect();
        f.debug_struct("Sequential").field("layers", &self.layers).field("checkpoints", &checkpoints).finish()
    }
}

impl Sequential {
    /// Without layers: the identity.
    pub fn new() -> Self {
        Sequential::default()
    }

    /// Appends a layer under its index.
    pub fn push(self, layer: impl Layer + 'static) -> Self {
        let key = self.layers.len().to_string();
        self.named(key, layer)
    }

    /// Appends a layer under a key.
    pub fn named(mut self, key: impl Into<String>, layer: impl Layer + 'static) -> Self {
        self.layers.push((key.into(), Arc::new(layer)));
        self
    }

    /// Number of layers.
    pub fn len(&self) -> usize {
        self.layers.len()
    }

    /// True without layers.
    pub fn is_empty(&self) -> bool {
        self.layers.is_empty()
    }

    /// The layer under an index.
    pub fn get(&self, index: usize) -> Option<&dyn Layer> {
        self.layers.get(index).map(|(_, l)| &**l)
    }

    /// The layers with their keys, in order.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (&str, &dyn Layer)> {
        self.layers.iter().map(|(key, layer)| (key.as_str(), &**layer))
    }

    /// The layer under a key.
    pub fn by_name(&self, key: &str) -> Option<&dyn Layer> {
        self.layers.iter().find(|(k, _)| k == key).map(|(_, l)| &**l)
    }

    /// Computes the activations of some layers again in the backward pass instead of keeping them,
    /// `torch.utils.checkpoint.checkpoint_sequential`: in segments of equal length ([`CheckpointPlan::Sqrt`] by default,
    /// [`CheckpointPlan::Segments`]), or such that a step stays within a budget of bytes ([`CheckpointPlan::within`]).
    ///
    /// Names, state, random streams, running statistics and results are those of the plain layers, bit for bit, see [`Checkpointed`]; a state
    /// dictionary of one loads into the other. A plan replaces the one before it; layers that are added later keep their activations.
    ///
    /// ```
    /// use trefoil::ops::activation::Activation;
    /// use trefoil_nn::layers::{CheckpointPlan, Dense, Sequential};
    /// use trefoil_nn::{DType, InitContext, Layer, NnError, Tensor};
    ///
    /// let device = trefoil::Registry::default().open(&"cpu".parse::<trefoil::Selector>()?)?;
    /// let cx = InitContext::new(&device, 1);
    /// let mut model = Sequential::new();
    /// for _ in 0..16 {
    ///     model = model.push(Dense::new(&cx, 8, 8)?.activation(Activation::Tanh));
    /// }
    /// // Four segments of four layers; the last one keeps what it computes.
    /// let model = model.checkpointed(&CheckpointPlan::default())?;
    /// assert_eq!(model.checkpoints().collect::<Vec<_>>(), [0..4, 4..8, 8..12]);
    ///
    /// // As few layers again as a budget allows.
    /// let example = Tensor::ones(&device, DType::F32, &[1024, 8])?;
    /// let plan = CheckpointPlan::within(&model, 400 << 10, &example)?;
    /// let Err(NnError::MemoryBudget { least, .. }) = CheckpointPlan::within(&model, 1 << 10, &example) else { panic!() };
    /// assert!(least < 400 << 10);
    /// let model = model.checkpointed(&plan)?;
    /// model.forward(&example)?.mean()?.backward()?;
    /// # Ok::<(), NnError>(())
    /// ```
    ///
    /// Errors: a plan for another number of layers, see [`CheckpointPlan`].
    #[doc(alias = "checkpoint_sequential")]
    pub fn checkpointed(mut self, plan: &CheckpointPlan) -> Result<Self> {
        let segment = |run: Range<usize>| {
            let layers = self.layers[run.clone()].to_vec();
            (run, Checkpointed::new(Sequential { layers, segments: vec![] }))
        };
        self.segments = plan.runs(self.layers.len())?.into_iter().map(segment).collect();
        Ok(self)
    }

    /// The runs of layers whose activations are computed again in the backward pass, in order.
    pub fn checkpoints(&self) -> impl Iterator<Item = Range<usize>> {
        self.segments.iter().map(|(run, _)| run.clone())
    }

    /// Applies some of the layers.
    fn apply(&self, part: Range<usize>, x: Tensor) -> Result<Tensor> {
        self.layers[part].iter().try_fold(x, |x, (key, layer)| hooks::layer(key, &**layer, &x))
    }
}

impl Layer for Sequential {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let (mut x, mut done) = (x.clone(), 0);
        for (run, segment) in &self.segments {
            x = self.apply(done..run.start, x)?;
            x = segment.forward(&x)?;
            done = run.end;
        }
        self.apply(done..self.layers.len(), x)
    }

    fn visit(&self, v: &mut Visitor<'_>) {
        for (key, layer) in &self.layers {
            v.child(key, &**layer);
        }
    }
}
