//! `train`: length, batches, precision, run folder.

use std::path::PathBuf;

use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;
use trefoil::DType;
use trefoil::ops::optimizer::LossScale;

use super::lora::LoraOptions;
use crate::core::error::{NnError, Result};
use crate::core::options::{BELOW_ONE, COUNT, Limit, NOT_NEGATIVE, POSITIVE, SHARE, join, read, within};
use crate::core::tensor::MemoryFormat;
use crate::train::optim::Optimizer;
use crate::train::trainer::{Clip, EarlyStopping};

/// Length, batches, precision, run folder.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct TrainConfig {
    /// Epochs.
    pub epochs: u64,
    /// Items per batch (per micro-batch, where gradients accumulate).
    pub batch_size: usize,
    /// Micro-batches whose gradients make one step.
    pub accumulate: usize,
    /// Seed of parameters, data order, transforms and dropout.
    pub seed: u64,
    /// New order in every epoch.
    pub shuffle: bool,
    /// Largest Euclidean norm of the gradients.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clip_norm: Option<f64>,
    /// Largest absolute value of a gradient.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clip_value: Option<f64>,
    /// Epochs without improvement after which training ends; short for `early_stopping`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub patience: Option<u64>,
    /// When to end before the last epoch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub early_stopping: Option<StoppingConfig>,
    /// Moving average of the parameters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ema: Option<EmaConfig>,
    /// Parameters and layers that are not trained, as [`LayerExt::freeze`](crate::LayerExt::freeze) takes them: `["encoder", "*.bias"]`.
    pub freeze: Vec<String>,
    /// Low-rank adapters that are trained in place of the weights.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lora: Option<LoraOptions>,
    /// Dtype of parameters and data.
    pub precision: Precision,
    /// f32 originals of 16-bit parameters (default true).
    pub master_weights: bool,
    /// Scaling of the loss; by default for f16 only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss_scaling: Option<ScalingConfig>,
    /// Looks for values that are not finite: true, or how many steps pass between two looks.
    pub anomaly: Anomaly,
    /// Records passes on the device and replays them (default true); see [`TrainOptions::capture`](crate::trainer::TrainOptions::capture).
    pub capture: bool,
    /// `contiguous` (default), or `channels_last`, which makes 16-bit and TF32 convolutions on matrix cores faster; see
    /// [`TrainOptions::memory_format`](crate::trainer::TrainOptions::memory_format).
    pub memory_format: MemoryFormat,
    /// Run folder.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run: Option<PathBuf>,
}

/// Dtype of parameters and data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Precision {
    /// 32 bits.
    #[default]
    F32,
    /// 16 bits with f32 originals and a scaled loss.
    F16,
    /// bfloat16 with f32 originals.
    Bf16,
}

impl Precision {
    /// The dtype.
    pub fn dtype(self) -> DType {
        match self {
            Precision::F32 => DType::F32,
            Precision::F16 => DType::F16,
            Precision::Bf16 => DType::Bf16,
        }
    }
}

/// When to end before the last epoch.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct StoppingConfig {
    /// Epochs without improvement that are tolerated.
    pub patience: u64,
    /// Improvement that counts.
    #[serde(default)]
    pub min_delta: f64,
}

/// Moving average of the parameters: its decay, or an object.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize, Serialize)]
#[serde(try_from = "Value")]
pub struct EmaConfig {
    /// Decay per step.
    pub decay: f64,
    /// Whether tests use the average.
    pub evaluate: bool,
}

impl TryFrom<Value> for EmaConfig {
    type Error = String;
    fn try_from(v: Value) -> Result<Self, String> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Full {
            decay: f64,
            #[serde(default = "yes")]
            evaluate: bool,
        }
        fn yes() -> bool {
            true
        }
        if let Some(decay) = v.as_f64() {
            return Ok(EmaConfig { decay, evaluate: true });
        }
        let Full { decay, evaluate } = serde_json::from_value(v)
            .map_err(|e| format!("expected a decay or an object with `decay` and `evaluate`: {e}"))?;
        Ok(EmaConfig { decay, evaluate })
    }
}

/// How the loss is scaled: false, true or the factors.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(try_from = "Value")]
pub struct ScalingConfig(Option<(f64, LossScale)>);

impl Serialize for ScalingConfig {
    fn serialize<S: Serializer>(&self, s: S) -> std::result::Result<S::Ok, S::Error> {
        match &self.0 {
            None => false.serialize(s),
            Some((initial, f)) => serde_json::json!({
                "initial": initial, "growth": f.growth, "backoff": f.backoff, "interval": f.interval
            })
            .serialize(s),
        }
    }
}

const INITIAL: f64 = 65536.0;

impl TryFrom<Value> for ScalingConfig {
    type Error = String;
    fn try_from(v: Value) -> Result<Self, String> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Full {
            initial: Option<f64>,
            growth: Option<f64>,
            backoff: Option<f64>,
            interval: Option<u32>,
        }
        if let Some(on) = v.as_bool() {
            return Ok(ScalingConfig(on.then_some((INITIAL, LossScale::new()))));
        }
        let f: Full = serde_json::from_value(v).map_err(|e| {
            format!("expected true, false or an object with `initial`, `growth`, `backoff`, `interval`: {e}")
        })?;
        let d = LossScale::new();
        let scale = d.factors(f.growth.unwrap_or(d.growth), f.backoff.unwrap_or(d.backoff));
        let scale = scale.interval(f.interval.unwrap_or(d.interval));
        Ok(ScalingConfig(Some((f.initial.unwrap_or(INITIAL), scale))))
    }
}

/// Whether and how often values that are not finite are looked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(try_from = "Value")]
pub struct Anomaly(pub Option<u64>);

impl Serialize for Anomaly {
    fn serialize<S: Serializer>(&self, s: S) -> std::result::Result<S::Ok, S::Error> {
        match self.0 {
            None => false.serialize(s),
            Some(steps) => steps.serialize(s),
        }
    }
}

impl TryFrom<Value> for Anomaly {
    type Error = String;
    fn try_from(v: Value) -> Result<Self, String> {
        match (v.as_bool(), v.as_u64()) {
            (Some(on), _) => Ok(Anomaly(on.then_some(1))),
            (_, Some(n)) if n > 0 => Ok(Anomaly(Some(n))),
            _ => Err(format!("expected true, false or a number of steps of at least 1, got {v}")),
        }
    }
}

impl Default for TrainConfig {
    fn default() -> Self {
        TrainConfig {
            epochs: 10,
            batch_size: 32,
            accumulate: 1,
            seed: 0,
            shuffle: true,
            clip_norm: None,
            clip_value: None,
            patience: None,
            early_stopping: None,
            ema: None,
            freeze: vec![],
            lora: None,
            precision: Precision::F32,
            master_weights: true,
            loss_scaling: None,
            anomaly: Anomaly(None),
            capture: true,
            memory_format: MemoryFormat::Contiguous,
            run: None,
        }
    }
}

impl TrainConfig {
    pub(super) fn read(path: &str, json: Value) -> Result<Self> {
        read(path, json)
    }

    pub(super) fn check(&self, path: &str) -> Result<()> {
        within(path, "epochs", &self.epochs, &COUNT)?;
        within(path, "batch_size", &self.batch_size, &COUNT)?;
        within(path, "accumulate", &self.accumulate, &COUNT)?;
        within(path, "clip_norm", &self.clip_norm, &POSITIVE)?;
        within(path, "clip_value", &self.clip_value, &POSITIVE)?;
        let twice = |key: &str, what: &str| Err(NnError::config(join(path, key), what));
        if self.clip_norm.is_some() && self.clip_value.is_some() {
            return twice("clip_value", "expected only one kind of clipping, got two");
        }
        if self.patience.is_some() && self.early_stopping.is_some() {
            return twice("patience", "expected it or `early_stopping`, got both");
        }
        within(path, "early_stopping.min_delta", &self.early_stopping.map(|s| s.min_delta), &NOT_NEGATIVE)?;
        within(path, "ema", &self.ema.map(|e| e.decay), &SHARE)?;
        if let Some(lora) = &self.lora {
            lora.check(&join(path, "lora"))?;
        }
        if let Some(ScalingConfig(Some((initial, scale)))) = &self.loss_scaling {
            let at = join(path, "loss_scaling");
            within(&at, "initial", initial, &POSITIVE)?;
            let growth = Limit { ok: |x| x >= 1.0 && x.is_finite(), says: "at least 1" };
            within(&at, "growth", &scale.growth, &growth)?;
            within(&at, "backoff", &scale.backoff, &POSITIVE)?;
            within(&at, "backoff", &scale.backoff, &BELOW_ONE)?;
            within(&at, "interval", &scale.interval, &COUNT)?;
        }
        Ok(())
    }

    pub(super) fn clip(&self) -> Option<Clip> {
        self.clip_norm.map(Clip::Norm).or(self.clip_value.map(Clip::Value))
    }

    pub(super) fn stopping(&self) -> Option<EarlyStopping> {
        let short = self.patience.map(|patience| EarlyStopping { patience, min_delta: 0.0 });
        short.or(self.early_stopping.map(|s| EarlyStopping { patience: s.patience, min_delta: s.min_delta }))
    }

    /// Error where something is asked for that an optimizer which evaluates the loss itself does not have.
    pub(super) fn check_closure(&self, name: &str) -> Result<()> {
        let refused = [
            ("precision", self.precision != Precision::F32),
            ("loss_scaling", self.loss_scaling.is_some()),
            ("ema", self.ema.is_some()),
            ("accumulate", self.accumulate != 1),
            ("clip_norm", self.clip_norm.is_some()),
            ("clip_value", self.clip_value.is_some()),
            ("anomaly", self.anomaly.0.is_some()),
        ];
        match refused.into_iter().find(|(_, on)| *on) {
            Some((key, _)) => Err(NnError::config(
                format!("train.{key}"),
                format!("has no meaning with the optimizer `{name}`"),
            )),
            None => Ok(()),
        }
    }

    /// Masters, loss scaling and averages, as far as they are asked for.
    pub(super) fn configure(&self, optimizer: Optimizer) -> Result<Optimizer> {
        let half = self.precision != Precision::F32;
        let mut o = if half && self.master_weights { optimizer.master_weights()? } else { optimizer };
        let scaling = match self.loss_scaling {
            Some(ScalingConfig(scaling)) => scaling,
            None => (self.precision == Precision::F16).then_some((INITIAL, LossScale::new())),
        };
        if let Some((initial, scale)) = scaling {
            o = o.loss_scaling(scale, initial)?;
        }
        match self.ema {
            Some(e) => o.ema(e.decay),
            None => Ok(o),
        }
    }
}
