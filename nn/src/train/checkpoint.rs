//! Checkpoints of models and optimizers.

use std::collections::BTreeMap;

use crate::core::error::Result;
use crate::core::host_tensor::HostTensor;
use crate::core::tensor::Tensor;
use crate::io::checkpoint::{Checkpoint, Progress};
use crate::io::record::VERSION;
use crate::module::{Layer, LayerExt, Param, check_fit, check_names};
use crate::train::optim::Optimizer;

/// In front of the names of an optimizer's tensors.
const OPTIMIZER: &str = "optimizer.";

impl Checkpoint {
    /// The state of a model and, where given, its optimizer. Waits for the device.
    pub fn capture(model: &dyn Layer, optimizer: Option<&Optimizer>, progress: Progress) -> Result<Self> {
        let mut tensors = BTreeMap::new();
        let mut put = |name: String, t: &Tensor| -> Result<()> {
            tensors.insert(
                name,
                HostTensor { dtype: t.dtype(), shape: t.shape().to_vec(), bytes: t.to_bytes()? },
            );
            Ok(())
        };
        for (name, p) in model.unique_state()? {
            put(name, &p.get())?;
        }
        if let Some(o) = optimizer {
            for (name, t) in o.state_tensors()? {
                put(format!("{OPTIMIZER}{name}"), &t)?;
            }
        }
        let progress = Progress {
            version: VERSION,
            step: optimizer.map_or(progress.step, Optimizer::steps),
            state: progress
                .state
                .into_iter()
                .chain(optimizer.iter().flat_map(|o| o.missed_steps()))
                .collect(),
            counters: model.counters(),
            ..progress
        };
        Ok(Checkpoint { tensors, progress })
    }

    /// Puts the state into a model and an optimizer. Everything is checked before the first tensor is written. Errors:
    /// [`NnError::StateNames`](crate::NnError::StateNames), [`NnError::StateShape`](crate::NnError::StateShape).
    pub fn restore(&self, model: &dyn Layer, optimizer: Option<&mut Optimizer>) -> Result<()> {
        let own = model.unique_state()?;
        let state = match &optimizer {
            Some(o) => o.state_tensors()?,
            None => vec![],
        };
        let mut all: Vec<(String, Tensor)> =
            own.iter().map(|(n, p): &(String, Param)| (n.clone(), p.get())).collect();
        all.extend(state.into_iter().map(|(n, t)| (format!("{OPTIMIZER}{n}"), t)));

        let wanted = |n: &&String| optimizer.is_some() || !n.starts_with(OPTIMIZER);
        check_names(all.iter().map(|(n, _)| n), self.tensors.keys().filter(wanted))?;
        for (name, t) in &all {
            let h = &self.tensors[name];
            check_fit(name, t, h.dtype, &h.shape)?;
        }
        // Files of other programs hold no generator positions.
        if self.progress.version > 0 {
            model.set_counters(&self.progress.counters)?;
        }
        for (name, t) in &all {
            t.write_bytes(&self.tensors[name].bytes)?;
        }
        if let Some(o) = optimizer {
            o.set_steps(self.progress.step);
            o.set_missed_steps(&self.progress.state);
        }
        Ok(())
    }
}
