//! Checkpoints in the safetensors format.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::Write;
use std::path::Path;

use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use serde::{Deserialize, Serialize};
use trefoil::DType;

use crate::error::{NnError, Result};
pub use crate::host::HostTensor;
use crate::layer::{Layer, LayerExt, Param, check_fit, check_names};
use crate::optim::Optimizer;
use crate::tensor::Tensor;

/// Key of the metadata entry. There is only this one, because the format does not define the order of several.
const KEY: &str = "trefoil";
const VERSION: u32 = 1;
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

/// Writes a file so that it is there as a whole or not at all: a temporary file next to it is written, flushed to disk and renamed.
pub fn write_atomic(path: &Path, bytes: &[u8]) -> Result<()> {
    write_atomic_with(path, |f| f.write_all(bytes).map_err(NnError::io("write", path)))
}

/// As [`write_atomic`], for contents that are made piece by piece.
pub(crate) fn write_atomic_with(path: &Path, fill: impl FnOnce(&mut File) -> Result<()>) -> Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(format!(".tmp{}", std::process::id()));
    let temp = path.with_file_name(name);
    let write = || {
        let mut f = File::create(&temp).map_err(NnError::io("write", path))?;
        fill(&mut f)?;
        f.sync_all().and_then(|()| std::fs::rename(&temp, path)).map_err(NnError::io("write", path))
    };
    let done = write();
    if done.is_err() {
        // The error below is what matters; a temporary file that cannot be removed does no harm.
        let _ = std::fs::remove_file(&temp);
    }
    done
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

    /// The file's bytes; equal checkpoints give equal bytes.
    fn encode(&self, path: &Path) -> Result<Vec<u8>> {
        let views = self.tensors.iter().map(|(name, t)| {
            let dtype =
                to_format(t.dtype).ok_or_else(|| bad(path, format!("cannot store {} tensors", t.dtype)))?;
            let view =
                TensorView::new(dtype, t.shape.clone(), &t.bytes).map_err(|e| bad(path, e.to_string()))?;
            Ok((name.clone(), view))
        });
        let views = views.collect::<Result<Vec<_>>>()?;
        let meta = serde_json::to_string(&self.progress).map_err(|e| bad(path, e.to_string()))?;
        safetensors::serialize(views, Some(HashMap::from([(KEY.to_string(), meta)])))
            .map_err(|e| bad(path, e.to_string()))
    }

    /// Writes the file, replacing an older one only once the new one is complete. Errors: [`NnError::Io`]; the older file is intact then.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        write_atomic(path, &self.encode(path)?)
    }

    /// Reads a file. Errors: [`NnError::Io`]; [`NnError::Checkpoint`] for a truncated or foreign file. A safetensors file without this
    /// crate's metadata (PyTorch's, say) is read with empty progress.
    pub fn load(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let bytes = std::fs::read(path).map_err(NnError::io("read", path))?;
        let damaged = |e: safetensors::SafeTensorError| {
            bad(path, format!("not a complete safetensors file ({e}, {} bytes)", bytes.len()))
        };
        let (_, meta) = SafeTensors::read_metadata(&bytes).map_err(damaged)?;
        let file = SafeTensors::deserialize(&bytes).map_err(damaged)?;
        let progress = match meta.metadata().as_ref().and_then(|m| m.get(KEY)) {
            Some(text) => {
                serde_json::from_str::<Progress>(text).map_err(|e| bad(path, format!("metadata: {e}")))?
            }
            None => Progress::default(),
        };
        if progress.version > VERSION {
            let what = format!("format version {}, this build reads up to {VERSION}", progress.version);
            return Err(bad(path, what));
        }
        let mut tensors = BTreeMap::new();
        for (name, view) in file.iter() {
            let found = DType::ALL.into_iter().find(|&d| to_format(d) == Some(view.dtype()));
            let Some(dtype) = found else {
                return Err(bad(
                    path,
                    format!("tensor `{name}` has the unsupported dtype {:?}", view.dtype()),
                ));
            };
            let t = HostTensor { dtype, shape: view.shape().to_vec(), bytes: view.data().to_vec() };
            tensors.insert(name.to_string(), t);
        }
        Ok(Checkpoint { tensors, progress })
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
