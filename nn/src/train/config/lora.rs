//! `train.lora`: low-rank adapters.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::core::error::{NnError, Result};
use crate::core::options::{COUNT, FINITE, join, within};
use crate::io::state_file::{LoadOptions, StateFile};
use crate::layers::LoraConfig;
use crate::module::{InitContext, Layer, LayerExt};
use crate::network::Network;

/// Low-rank adapters that are trained in place of the network's weights; see [`Lora`](crate::layers::Lora).
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct LoraOptions {
    /// Rank of the products (default 8).
    pub rank: usize,
    /// The products are scaled by alpha / rank; 1 without it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub alpha: Option<f64>,
    /// Layers and weights whose matrices are adapted, as [`LoraConfig::targets`] (default all: `["*"]`).
    pub targets: Vec<String>,
    /// Parameters and layers that are trained as they are, as [`LayerExt::unfreeze`] takes them: a new head.
    pub modules_to_save: Vec<String>,
    /// The network's state before the run: safetensors, PyTorch or GGUF. What is frozen has to be in it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weights: Option<PathBuf>,
}

impl Default for LoraOptions {
    fn default() -> Self {
        let targets = vec!["*".to_string()];
        LoraOptions { rank: 8, alpha: None, targets, modules_to_save: vec![], weights: None }
    }
}

impl LoraOptions {
    pub(super) fn check(&self, path: &str) -> Result<()> {
        within(path, "rank", &self.rank, &COUNT)?;
        within(path, "alpha", &self.alpha, &FINITE)
    }

    /// Adapts a network. Errors: a target without matrices; a pattern of `modules_to_save` that fits nothing.
    pub(super) fn adapt(&self, cx: &InitContext, network: &mut Network, path: &str) -> Result<()> {
        let alpha = self.alpha.unwrap_or(self.rank as f64);
        let config = LoraConfig { rank: self.rank, alpha, targets: self.targets.clone() };
        network.adapt(cx, &config).map_err(|e| NnError::config(path, e.to_string()))?;
        for (i, pattern) in self.modules_to_save.iter().enumerate() {
            let key = join(path, &format!("modules_to_save[{i}]"));
            network.unfreeze(pattern).map_err(|e| NnError::config(key, e.to_string()))?;
        }
        Ok(())
    }

    /// Puts the state before the run into a model. Errors: those of [`StateFile::open`]; a frozen parameter or a buffer that the file lacks, or has
    /// in another shape.
    pub(super) fn load(&self, model: &dyn Layer) -> Result<()> {
        let Some(path) = &self.weights else { return Ok(()) };
        let report = StateFile::open(path)?.load(model, &LoadOptions::new().partial().convert())?;
        let trained =
            |name: &str| model.named_parameters().iter().any(|(n, p)| n == name && p.requires_grad());
        let left = report.missing.iter().chain(report.mismatched.iter().map(|m| &m.name));
        let missing: Vec<String> = left.filter(|name| !trained(name)).cloned().collect();
        match missing.is_empty() {
            true => Ok(()),
            false => Err(NnError::StateNames { missing, unexpected: report.unexpected }),
        }
    }
}
