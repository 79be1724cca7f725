//! Checkpoints in the safetensors format, in which no bit changes unnoticed: every tensor has a checksum (BLAKE3), and so has the text that
//! holds these and the progress.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use safetensors::tensor::SafeTensors;
use trefoil::DType;

use crate::core::error::{NnError, Result};
pub use crate::core::host_tensor::HostTensor;
use crate::core::host_tensor::numel;
use crate::core::limits;
use crate::core::span::span;
pub use crate::io::durable::write_atomic;
pub use crate::io::record::Progress;
use crate::io::record::{KEY, Record, TensorSum, bad, damaged_tensor};
use crate::io::tensor_file::{to_format, write_tensors};

/// A checkpoint in host memory.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Checkpoint {
    /// Tensors by name: the model's under their own names, optimizer state as `optimizer.m.name`.
    pub tensors: BTreeMap<String, HostTensor>,
    /// The rest.
    pub progress: Progress,
}

fn tensor_sum(t: &HostTensor) -> String {
    let mut sum = TensorSum::new(t.dtype, &t.shape);
    sum.update(&t.bytes);
    sum.digest()
}

impl Checkpoint {
    /// Writes the file, replacing an older one only once the new one is complete; equal checkpoints give equal bytes. Errors: [`NnError::Io`];
    /// [`NnError::Checkpoint`] for a tensor whose bytes do not fit its shape. The older file is intact then.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        span!("save_checkpoint");
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
        span!("load_checkpoint");
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
}
