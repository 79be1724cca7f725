//! Checkpoints in the safetensors format, in which no bit changes unnoticed: every tensor has a checksum (BLAKE3), and so has the text that
//! holds these and the progress.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use safetensors::tensor::{Dtype, SafeTensors};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use trefoil::DType;

pub use crate::durable::write_atomic;
use crate::error::{NOTICE, NnError, Result};
pub use crate::host_tensor::HostTensor;
use crate::host_tensor::numel;
use crate::layer::{Layer, LayerExt, Param, check_fit, check_names};
use crate::limits;
use crate::optim::Optimizer;
use crate::state_file::write_tensors;
use crate::tensor::Tensor;

/// Key of the metadata entry. There is only this one, because the format does not define the order of several.
const KEY: &str = "trefoil";
/// Since version 2 there are checksums.
const VERSION: u32 = 2;
const OPTIMIZER: &str = "optimizer.";

/// What a checkpoint holds besides tensors. Numbers that must return exactly are kept as bits.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Progress {
    /// Version of this format.
    pub version: u32,
    /// Epochs done.
    pub epoch: u64,
    /// Optimizer steps done.
    pub step: u64,
    /// Seed of the run.
    pub seed: u64,
    /// Items per batch.
    pub batch_size: u64,
    /// Positions of the model's random number generators.
    pub counters: BTreeMap<String, u64>,
    /// Further state of the run, such as `plateau.best`, as bits of f64 or counts.
    pub state: BTreeMap<String, u64>,
    /// What defines the training, such as its schedule; a run that resumes must have the same.
    pub settings: BTreeMap<String, Value>,
}

/// A checkpoint in host memory.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Checkpoint {
    /// Tensors by name: the model's under their own names, optimizer state as `optimizer.m.name`.
    pub tensors: BTreeMap<String, HostTensor>,
    /// The rest.
    pub progress: Progress,
}

pub(crate) fn to_format(d: DType) -> Option<Dtype> {
    Some(match d {
        DType::F32 => Dtype::F32,
        DType::F16 => Dtype::F16,
        DType::Bf16 => Dtype::BF16,
        DType::F64 => Dtype::F64,
        DType::I32 => Dtype::I32,
        DType::I64 => Dtype::I64,
        DType::U8 => Dtype::U8,
        _ => return None,
    })
}

fn bad(path: &Path, what: impl Into<String>) -> NnError {
    NnError::Checkpoint { path: path.into(), what: what.into(), source: None }
}

fn sum(bytes: &[u8]) -> String {
    blake3::hash(bytes).to_hex().to_string()
}

/// The checksum of a tensor, fed with its elements in order.
#[derive(Debug)]
pub(crate) struct TensorSum(blake3::Hasher);

impl TensorSum {
    pub(crate) fn new(dtype: DType, shape: &[usize]) -> Self {
        let mut hasher = blake3::Hasher::new();
        hasher.update(format!("{dtype} {shape:?}\n").as_bytes());
        TensorSum(hasher)
    }

    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    pub(crate) fn finish(&self) -> String {
        self.0.finalize().to_hex().to_string()
    }
}

fn tensor_sum(t: &HostTensor) -> String {
    let mut sum = TensorSum::new(t.dtype, &t.shape);
    sum.update(&t.bytes);
    sum.finish()
}

/// The text of the metadata entry: progress and checksums of tensors, a line of JSON each, and the checksum of these lines.
pub(crate) struct Record {
    progress: Progress,
    /// By name; `None` in files of version 1.
    sums: Option<BTreeMap<String, String>>,
}

impl Record {
    fn write(&self) -> serde_json::Result<String> {
        let text = [serde_json::to_string(&self.progress)?, serde_json::to_string(&self.sums)?].join("\n");
        let sum = sum(text.as_bytes());
        Ok([text, sum].join("\n"))
    }

    /// `None` for a file of another program. Errors: [`NnError::Checkpoint`] if the entry is damaged, or of a later version.
    pub(crate) fn read(path: &Path, metadata: &BTreeMap<String, String>) -> Result<Option<Record>> {
        let intact = |text: &str| text.rsplit_once('\n').is_some_and(|(lines, s)| sum(lines.as_bytes()) == s);
        let Some(text) = metadata.get(KEY) else {
            // A flipped bit of the key would otherwise make it a file of another program.
            return match metadata.iter().find(|(_, text)| intact(text)) {
                Some((key, _)) => {
                    Err(bad(path, format!("damaged: its metadata stands under the key `{key}`")))
                }
                None => Ok(None),
            };
        };
        let json = |e: serde_json::Error| bad(path, format!("damaged metadata: {e}"));
        let record = match text.rsplit_once('\n') {
            Some(_) if !intact(text) => {
                return Err(bad(path, "damaged metadata: its checksum is another one"));
            }
            Some((lines, _)) => {
                let (progress, sums) = lines.split_once('\n').unwrap_or((lines, ""));
                let sums = serde_json::from_str(sums).map_err(json)?;
                Record { progress: serde_json::from_str(progress).map_err(json)?, sums: Some(sums) }
            }
            None => Record { progress: serde_json::from_str(text).map_err(json)?, sums: None },
        };
        let version = record.progress.version;
        if version > VERSION {
            let what = format!("format version {version}, this build reads up to {VERSION}");
            return Err(bad(path, what));
        }
        if record.sums.is_none() {
            if version == VERSION {
                return Err(bad(path, "damaged metadata: the checksums are missing"));
            }
            log::warn!(
                target: NOTICE,
                "{} was written by an earlier version, without checksums: damage would not be noticed",
                path.display()
            );
        }
        Ok(Some(record))
    }

    /// The checksum that a tensor must have; `None` in files without checksums. Errors: a tensor that was not saved.
    pub(crate) fn sum_of(&self, path: &Path, name: &str) -> Result<Option<&str>> {
        let Some(sums) = &self.sums else { return Ok(None) };
        match sums.get(name) {
            Some(sum) => Ok(Some(sum)),
            None => Err(bad(path, format!("damaged: tensor `{name}` has no checksum"))),
        }
    }

    fn check_names(&self, path: &Path, tensors: &BTreeMap<String, HostTensor>) -> Result<()> {
        let lost = self.sums.iter().flat_map(BTreeMap::keys).find(|name| !tensors.contains_key(*name));
        match lost {
            Some(name) => Err(bad(path, format!("damaged: tensor `{name}` is missing"))),
            None => Ok(()),
        }
    }
}

/// Error of a tensor whose bytes are not those that were saved.
pub(crate) fn damaged_tensor(path: &Path, name: &str) -> NnError {
    bad(path, format!("tensor `{name}` is damaged: its checksum is another one"))
}

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

    /// Writes the file, replacing an older one only once the new one is complete; equal checkpoints give equal bytes. Errors: [`NnError::Io`];
    /// [`NnError::Checkpoint`] for a tensor whose bytes do not fit its shape. The older file is intact then.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let mut list = vec![];
        for (name, t) in &self.tensors {
            let bytes = numel(&t.shape).and_then(|n| n.checked_mul(t.dtype.size()));
            if bytes != Some(t.bytes.len()) {
                let what = format!("`{name}` has {} bytes for {} {:?}", t.bytes.len(), t.dtype, t.shape);
                return Err(bad(path, what));
            }
            list.push((name.as_str(), t.dtype, t.shape.as_slice(), &t.bytes));
        }
        let sums = self.tensors.iter().map(|(name, t)| (name.clone(), tensor_sum(t))).collect();
        let record = Record { progress: self.progress.clone(), sums: Some(sums) };
        let meta = record.write().map_err(|e| bad(path, e.to_string()))?;
        write_tensors(path, Some(HashMap::from([(KEY.to_string(), meta)])), list, |bytes, write| write(bytes))
    }

    /// Reads a file. Errors: [`NnError::Io`]; [`NnError::Checkpoint`] for a truncated, damaged or foreign file, with the tensor whose
    /// checksum is another one. A safetensors file without this crate's metadata (PyTorch's, say) is read with empty progress, and files of
    /// earlier versions of this crate without checksums, which a warning says.
    pub fn load(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let bytes = std::fs::read(path).map_err(NnError::io("read", path))?;
        let damaged = |e: safetensors::SafeTensorError| {
            bad(path, format!("not a complete safetensors file ({e}, {} bytes)", bytes.len()))
        };
        let (_, meta) = SafeTensors::read_metadata(&bytes).map_err(damaged)?;
        let file = SafeTensors::deserialize(&bytes).map_err(damaged)?;
        let metadata = meta.metadata().iter().flatten().map(|(k, v)| (k.clone(), v.clone())).collect();
        let record = Record::read(path, &metadata)?;
        let mut tensors = BTreeMap::new();
        for (name, view) in file.iter() {
            let found = DType::ALL.into_iter().find(|&d| to_format(d) == Some(view.dtype()));
            let Some(dtype) = found else {
                return Err(bad(
                    path,
                    format!("tensor `{name}` has the unsupported dtype {:?}", view.dtype()),
                ));
            };
            let t = HostTensor { dtype, shape: view.shape().to_vec(), bytes: limits::copy(view.data())? };
            let wanted = record.as_ref().map(|r| r.sum_of(path, name)).transpose()?.flatten();
            if wanted.is_some_and(|wanted| wanted != tensor_sum(&t)) {
                return Err(damaged_tensor(path, name));
            }
            tensors.insert(name.to_string(), t);
        }
        let Some(record) = record else { return Ok(Checkpoint { tensors, progress: Progress::default() }) };
        record.check_names(path, &tensors)?;
        Ok(Checkpoint { tensors, progress: record.progress })
    }

    /// Puts the state into a model and an optimizer. Everything is checked before the first tensor is written. Errors:
    /// [`NnError::StateNames`], [`NnError::StateShape`].
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
