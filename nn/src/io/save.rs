//! Writing state dictionaries to safetensors files, whole or sharded.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::core::error::{At, NnError, Result, invalid};
use crate::core::tensor::Tensor;
use crate::io::durable::write_atomic;
use crate::io::names::NameMap;
use crate::io::tensor_file::write_tensors;
use crate::module::StateDict;

/// Bytes of a tensor that are in host memory at a time.
pub(crate) const PIECE: usize = 16 << 20;

/// `model.safetensors.index.json`.
#[derive(Serialize, Deserialize)]
pub(crate) struct Index {
    #[serde(default)]
    pub(crate) metadata: BTreeMap<String, serde_json::Value>,
    pub(crate) weight_map: BTreeMap<String, String>,
}

/// What the name of an index ends in.
pub(crate) const INDEX: &str = ".index.json";

/// How a state dictionary is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SaveOptions {
    shard_bytes: Option<u64>,
    metadata: BTreeMap<String, String>,
    names: NameMap,
}

impl Default for SaveOptions {
    fn default() -> Self {
        let metadata = BTreeMap::from([("format".to_string(), "pt".to_string())]);
        SaveOptions { shard_bytes: None, metadata, names: NameMap::default() }
    }
}

impl SaveOptions {
    /// One file with the metadata `format: pt`, which Hugging Face's readers ask for.
    pub fn new() -> Self {
        SaveOptions::default()
    }

    /// Several files of at most this many bytes of tensors (a larger tensor gets a file of its own), with an index, if the whole is larger.
    pub fn shard_bytes(mut self, bytes: u64) -> Self {
        self.shard_bytes = Some(bytes);
        self
    }

    /// Free text in the header.
    pub fn metadata(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.metadata.insert(key.into(), value.into());
        self
    }

    /// Turns the model's names into the file's.
    pub fn names(mut self, names: NameMap) -> Self {
        self.names = names;
        self
    }
}

/// Writes a state dictionary and returns the files: `path` alone, or `NAME-00001-of-0000N.safetensors` and last
/// `NAME.safetensors.index.json`. Each file is there as a whole or not at all. Waits for the device. Errors: [`NnError::Io`]; two names
/// that become one; a dtype that the format has not.
pub fn save(state: &StateDict, path: impl AsRef<Path>, options: &SaveOptions) -> Result<Vec<PathBuf>> {
    let path = path.as_ref();
    let names = options.names.apply_all(state.keys())?;
    let mut shards: Vec<(u64, Vec<(&str, &Tensor)>)> = vec![];
    let limit = options.shard_bytes.unwrap_or(u64::MAX);
    for (new, old) in &names {
        let Some(t) = state.get(*old) else { continue };
        let bytes = (t.numel() * t.dtype().size()) as u64;
        match shards.last_mut() {
            Some((sum, list)) if sum.saturating_add(bytes) <= limit => {
                *sum += bytes;
                list.push((new, t));
            }
            _ => shards.push((bytes, vec![(new, t)])),
        }
    }
    if shards.len() <= 1 {
        let list = shards.pop().map(|s| s.1).unwrap_or_default();
        write_shard(path, list, options)?;
        return Ok(vec![path.to_path_buf()]);
    }
    let Some(stem) = path.file_stem().and_then(|s| s.to_str()) else {
        return Err(invalid("save", "path", "a file name in UTF-8", path.display().to_string()));
    };
    let (count, total) = (shards.len(), shards.iter().map(|s| s.0).sum::<u64>());
    let mut index = Index {
        metadata: BTreeMap::from([("total_size".into(), total.into())]),
        weight_map: BTreeMap::new(),
    };
    let mut files = vec![];
    for (i, (_, list)) in shards.into_iter().enumerate() {
        let file = format!("{stem}-{:05}-of-{count:05}.safetensors", i + 1);
        index.weight_map.extend(list.iter().map(|(n, _)| (n.to_string(), file.clone())));
        files.push(path.with_file_name(file));
        write_shard(&files[i], list, options)?;
    }
    let at = path.with_file_name(format!("{stem}.safetensors{INDEX}"));
    let text = serde_json::to_string_pretty(&index)
        .map_err(|e| NnError::data(&at, At::File, "text", e.to_string()))?;
    write_atomic(&at, text.as_bytes())?;
    files.push(at);
    Ok(files)
}

fn write_shard(path: &Path, list: Vec<(&str, &Tensor)>, options: &SaveOptions) -> Result<()> {
    let metadata = (!options.metadata.is_empty()).then(|| options.metadata.clone().into_iter().collect());
    let list = list.into_iter().map(|(name, t)| (name, t.dtype(), t.shape(), t)).collect();
    write_tensors(path, metadata, list, |t, write| {
        let flat = t.detach().contiguous()?.reshape(&[t.numel()])?;
        let step = PIECE / t.dtype().size();
        (0..t.numel()).step_by(step).try_for_each(|start| {
            let piece = flat.narrow(0, start, step.min(t.numel() - start))?;
            write(&piece.to_bytes()?)
        })
    })
}
