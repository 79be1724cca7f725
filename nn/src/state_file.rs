//! State dictionaries in safetensors files, as PyTorch and Hugging Face write and read them: whole or sharded, all of a model or a part.
//!
//! Files are read by position in pieces of a few MiB, so that host memory stays bounded however large a tensor is. (A memory map would
//! need `unsafe`: another process can change the file under it.)
//!
//! ```no_run
//! use trefoil_nn::state_file::{self, LoadOptions, NameMap, SaveOptions};
//! use trefoil_nn::{Layer, LayerExt, StateFile};
//!
//! # fn f(model: &dyn Layer) -> trefoil_nn::Result<()> {
//! let file = StateFile::open("model.safetensors.index.json")?;
//! let names = NameMap::new().prefix("model.", "").drop("lm_head.");
//! let report = file.load(model, &LoadOptions::new().partial().convert().names(names))?;
//! println!("{} loaded, missing: {:?}", report.loaded.len(), report.missing);
//! state_file::save(&model.state_dict()?, "out/model.safetensors", &SaveOptions::new().shard_bytes(5 << 30))?;
//! # Ok(()) }
//! ```

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use safetensors::tensor::{Dtype, Metadata, TensorInfo};
use serde::{Deserialize, Serialize};
use trefoil::DType;

use crate::checkpoint::{Record, TensorSum, damaged_tensor, to_format};
use crate::durable::{write_atomic, write_atomic_with};
use crate::error::{At, NnError, Result, invalid};
use crate::host_tensor::{HostTensor, convert, numel};
use crate::layer::{Layer, LayerExt, Param, StateDict};
use crate::limits;
use crate::tensor::{Device, Tensor};

/// Bytes of a tensor that are in host memory at a time.
const PIECE: usize = 16 << 20;
/// Limit of the format on a file's header; an index is held to it too.
const MAX_HEADER: u64 = 100_000_000;

/// A rule on names.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Rule {
    Prefix(String, String),
    Exact(String, String),
    Drop(String),
}

/// Rules that turn one naming into another. They are applied one after the other, each to what the one before it gave.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NameMap(Vec<Rule>);

impl NameMap {
    /// Names as they are.
    pub fn new() -> Self {
        NameMap::default()
    }

    /// Replaces a prefix; an empty `from` puts `to` in front of every name.
    pub fn prefix(mut self, from: impl Into<String>, to: impl Into<String>) -> Self {
        self.0.push(Rule::Prefix(from.into(), to.into()));
        self
    }

    /// Replaces one name.
    pub fn rename(mut self, from: impl Into<String>, to: impl Into<String>) -> Self {
        self.0.push(Rule::Exact(from.into(), to.into()));
        self
    }

    /// Leaves out names with a prefix.
    pub fn drop(mut self, prefix: impl Into<String>) -> Self {
        self.0.push(Rule::Drop(prefix.into()));
        self
    }

    /// The new name; `None` if it is left out.
    pub fn apply(&self, name: &str) -> Option<String> {
        let mut name = name.to_string();
        for rule in &self.0 {
            match rule {
                Rule::Prefix(from, to) => {
                    if let Some(rest) = name.strip_prefix(from.as_str()) {
                        name = format!("{to}{rest}");
                    }
                }
                Rule::Exact(from, to) if name == *from => name.clone_from(to),
                Rule::Drop(prefix) if name.starts_with(prefix.as_str()) => return None,
                _ => {}
            }
        }
        Some(name)
    }

    /// New names with their old ones. Errors: two names that become one.
    fn apply_all<'a>(&self, names: impl Iterator<Item = &'a String>) -> Result<BTreeMap<String, &'a str>> {
        let mut out = BTreeMap::new();
        for old in names {
            let Some(new) = self.apply(old) else { continue };
            if let Some(other) = out.insert(new.clone(), old.as_str()) {
                let got = format!("`{other}` and `{old}` as `{new}`");
                return Err(invalid("NameMap", "names", "one new name for each name", got));
            }
        }
        Ok(out)
    }
}

/// How a file is put into a model.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LoadOptions {
    partial: bool,
    convert: bool,
    names: NameMap,
}

impl LoadOptions {
    /// Strict: every tensor of the model and none beside it, in the model's shapes and dtypes.
    pub fn new() -> Self {
        LoadOptions::default()
    }

    /// Loads what fits and reports the rest instead of refusing it.
    pub fn partial(mut self) -> Self {
        self.partial = true;
        self
    }

    /// Converts to the model's dtypes.
    pub fn convert(mut self) -> Self {
        self.convert = true;
        self
    }

    /// Turns the file's names into the model's.
    pub fn names(mut self, names: NameMap) -> Self {
        self.names = names;
        self
    }
}

/// What [`StateFile::load`] or [`LayerExt::load_matching`] did. Names are the model's.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LoadReport {
    /// Written into the model.
    pub loaded: Vec<String>,
    /// In the model but not in the file, and not tied to a tensor that was loaded.
    pub missing: Vec<String>,
    /// In the file but not in the model.
    pub unexpected: Vec<String>,
    /// In both, with another shape or dtype: not loaded.
    pub mismatched: Vec<Mismatch>,
}

impl LoadReport {
    /// Whether everything was there and fitted, and nothing else was.
    pub fn is_complete(&self) -> bool {
        self.missing.is_empty() && self.unexpected.is_empty() && self.mismatched.is_empty()
    }
}

/// A tensor that does not fit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mismatch {
    /// Name in the model.
    pub name: String,
    /// Shape in the model.
    pub expected: Vec<usize>,
    /// Dtype in the model.
    pub expected_dtype: DType,
    /// Shape in the file.
    pub found: Vec<usize>,
    /// Dtype in the file, `None` for one that this crate has not.
    pub found_dtype: Option<DType>,
}

#[derive(Debug)]
struct Stored {
    shard: usize,
    /// Offset in the file.
    start: u64,
    dtype: Dtype,
    shape: Vec<usize>,
    /// In a checkpoint.
    sum: Option<String>,
}

/// The dtype in which stored elements are handed out: the same, or one that holds all of their values.
fn read_as(stored: Dtype) -> Option<DType> {
    Some(match stored {
        Dtype::BOOL => DType::U8,
        Dtype::I8 | Dtype::I16 | Dtype::U16 => DType::I32,
        Dtype::U32 => DType::I64,
        d => return DType::ALL.into_iter().find(|&t| to_format(t) == Some(d)),
    })
}

/// Elements of a stored dtype as [`read_as`] names it. Errors: `OutOfMemory`.
fn widen(stored: Dtype, raw: Vec<u8>) -> Result<Vec<u8>> {
    fn each<const N: usize, const M: usize>(
        raw: &[u8],
        wide: impl Fn([u8; N]) -> [u8; M],
    ) -> Result<Vec<u8>> {
        let mut out = vec![];
        limits::reserve(&mut out, (raw.len() / N).saturating_mul(M))?;
        for c in raw.chunks_exact(N) {
            let mut x = [0; N];
            x.copy_from_slice(c);
            out.extend_from_slice(&wide(x));
        }
        Ok(out)
    }
    match stored {
        Dtype::I8 => each(&raw, |x| i32::from(i8::from_le_bytes(x)).to_le_bytes()),
        Dtype::I16 => each(&raw, |x| i32::from(i16::from_le_bytes(x)).to_le_bytes()),
        Dtype::U16 => each(&raw, |x| i32::from(u16::from_le_bytes(x)).to_le_bytes()),
        Dtype::U32 => each(&raw, |x| i64::from(u32::from_le_bytes(x)).to_le_bytes()),
        _ => Ok(raw),
    }
}

#[derive(Debug)]
struct Shard {
    path: PathBuf,
    file: Mutex<File>,
}

/// A state dictionary in a safetensors file or in several. Opening reads the headers only.
#[derive(Debug)]
pub struct StateFile {
    path: PathBuf,
    shards: Vec<Shard>,
    tensors: BTreeMap<String, Stored>,
    metadata: BTreeMap<String, String>,
}

/// `model.safetensors.index.json`.
#[derive(Serialize, Deserialize)]
struct Index {
    #[serde(default)]
    metadata: BTreeMap<String, serde_json::Value>,
    weight_map: BTreeMap<String, String>,
}

const INDEX: &str = ".index.json";
const SINGLE: &str = "model.safetensors";

impl StateFile {
    /// Opens a `.safetensors` file, an index (`model.safetensors.index.json`) with its shards next to it, or a folder that holds
    /// `model.safetensors.index.json` or `model.safetensors`. Errors: [`NnError::Io`]; [`NnError::Data`] for a truncated or foreign file,
    /// and an index that does not match its shards; [`NnError::Checkpoint`] for a checkpoint with damaged metadata.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let mut path = path.as_ref().to_path_buf();
        if path.is_dir() {
            let index = path.join(format!("{SINGLE}{INDEX}"));
            path = if index.exists() { index } else { path.join(SINGLE) };
        }
        let mut all = StateFile {
            path: path.clone(),
            shards: vec![],
            tensors: BTreeMap::new(),
            metadata: BTreeMap::new(),
        };
        if path.extension().is_some_and(|e| e == "json") {
            all.open_index(&path)?;
        } else {
            all.open_shard(&path)?;
        }
        Ok(all)
    }

    fn open_index(&mut self, path: &Path) -> Result<()> {
        let bytes = limits::read_file(path, MAX_HEADER)?;
        let index: Index = serde_json::from_slice(&bytes).map_err(|e| {
            NnError::data(path, At::File, "a safetensors index with `weight_map`", e.to_string())
        })?;
        let mut files: Vec<&String> = index.weight_map.values().collect();
        files.sort_unstable();
        files.dedup();
        for file in files {
            // Shards lie next to their index; a name that leads elsewhere is not followed.
            if Path::new(file).file_name().is_none_or(|n| n != file.as_str()) {
                return Err(NnError::data(path, At::File, "file names without folders", format!("`{file}`")));
            }
            self.open_shard(&path.with_file_name(file))?;
        }
        for (name, file) in &index.weight_map {
            let there = self.tensors.get(name).is_some_and(|t| self.shards[t.shard].path.ends_with(file));
            if !there {
                let at = At::Entry(name.clone());
                return Err(NnError::data(path, at, format!("the tensor in `{file}`"), "none there"));
            }
        }
        self.tensors.retain(|name, _| index.weight_map.contains_key(name));
        Ok(())
    }

    fn open_shard(&mut self, path: &Path) -> Result<()> {
        let mut file = File::open(path).map_err(NnError::io("open", path))?;
        let io = || NnError::io("read", path);
        let size = file.metadata().map_err(io())?.len();
        let short =
            |want: u64| NnError::data(path, At::File, format!("at least {want} bytes"), format!("{size}"));
        if size < 8 {
            return Err(short(8));
        }
        let mut head = [0; 8];
        file.read_exact(&mut head).map_err(io())?;
        let header = u64::from_le_bytes(head);
        if header > MAX_HEADER {
            let expected = format!("a safetensors header of at most {MAX_HEADER} bytes");
            return Err(NnError::data(path, At::Byte(0), expected, format!("{header}")));
        }
        let start = 8 + header;
        if start > size {
            return Err(short(start));
        }
        let mut text = limits::zeroed(header as usize)?;
        file.read_exact(&mut text).map_err(io())?;
        let metadata: Metadata = serde_json::from_slice(&text)
            .map_err(|e| NnError::data(path, At::Byte(8), "a safetensors header", e.to_string()))?;
        let end = start + metadata.data_len() as u64;
        if end != size {
            let expected = format!("{end} bytes, as the header says");
            return Err(NnError::data(path, At::File, expected, format!("{size}")));
        }
        let shard = self.shards.len();
        let texts: BTreeMap<String, String> =
            metadata.metadata().iter().flatten().map(|(k, v)| (k.clone(), v.clone())).collect();
        let record = Record::read(path, &texts)?;
        for (name, info) in metadata.tensors() {
            let sum = record.as_ref().map(|r| r.sum_of(path, &name)).transpose()?.flatten();
            let stored = Stored {
                shard,
                start: start + info.data_offsets.0 as u64,
                dtype: info.dtype,
                shape: info.shape.clone(),
                sum: sum.map(str::to_string),
            };
            if self.tensors.insert(name.clone(), stored).is_some() {
                let found = "it in another shard too";
                return Err(NnError::data(
                    path,
                    At::Entry(name),
                    "a tensor that no other shard holds",
                    found,
                ));
            }
        }
        self.metadata.extend(texts);
        self.shards.push(Shard { path: path.into(), file: Mutex::new(file) });
        Ok(())
    }

    /// Names of the tensors, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// Shape of a tensor; `None` if there is none of that name.
    pub fn shape(&self, name: &str) -> Option<&[usize]> {
        self.tensors.get(name).map(|t| t.shape.as_slice())
    }

    /// Dtype in which a tensor is read: that of the file; u8 for booleans, i32 for 8- and 16-bit integers, i64 for u32. `None` if there is
    /// no such tensor, or for other dtypes (u64, 8-bit floats), which cannot be read.
    pub fn dtype(&self, name: &str) -> Option<DType> {
        self.tensors.get(name).and_then(|t| read_as(t.dtype))
    }

    /// Free text that the file carries, such as `format: pt`.
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        &self.metadata
    }

    fn stored(&self, name: &str) -> Result<&Stored> {
        self.tensors.get(name).ok_or_else(|| {
            NnError::data(&self.path, At::Entry(name.into()), "a tensor of that name", "none in the file")
        })
    }

    fn dtype_of(&self, name: &str, t: &Stored) -> Result<DType> {
        read_as(t.dtype).ok_or_else(|| {
            let expected = "bool, u8, i8, u16, i16, u32, i32, i64, f16, bf16, f32 or f64";
            let path = &self.shards[t.shard].path;
            NnError::data(path, At::Entry(name.into()), expected, format!("{:?}", t.dtype))
        })
    }

    /// Error if a tensor of a checkpoint is not what was saved.
    fn check_sum(&self, name: &str, t: &Stored, sum: &TensorSum) -> Result<()> {
        match &t.sum {
            Some(wanted) if *wanted != sum.finish() => Err(damaged_tensor(&self.shards[t.shard].path, name)),
            _ => Ok(()),
        }
    }

    /// `len` elements from `start`, as they are stored.
    fn part(&self, t: &Stored, start: usize, len: usize) -> Result<Vec<u8>> {
        let shard = &self.shards[t.shard];
        let width = t.dtype.bitsize() / 8;
        let mut raw = limits::zeroed(len.saturating_mul(width))?;
        let mut file = shard.file.lock().unwrap_or_else(PoisonError::into_inner);
        file.seek(SeekFrom::Start(t.start + (start * width) as u64))
            .and_then(|_| file.read_exact(&mut raw))
            .map_err(NnError::io("read", &shard.path))?;
        Ok(raw)
    }

    /// One tensor in host memory. Errors: [`NnError::Data`] for an unknown name or a dtype that cannot be read; [`NnError::Checkpoint`] for a
    /// tensor of a checkpoint whose checksum is another one; [`NnError::Io`].
    pub fn read(&self, name: &str) -> Result<HostTensor> {
        let t = self.stored(name)?;
        let dtype = self.dtype_of(name, t)?;
        // The header was checked against the size of the file, so that the product fits.
        let raw = self.part(t, 0, numel(&t.shape).unwrap_or(0))?;
        let mut sum = TensorSum::new(dtype, &t.shape);
        sum.update(&raw);
        self.check_sum(name, t, &sum)?;
        HostTensor::new(dtype, &t.shape, widen(t.dtype, raw)?)
    }

    /// All tensors on a device, under their names. Errors: as [`StateFile::read`]; `OutOfMemory`.
    pub fn state_dict(&self, device: &Device) -> Result<StateDict> {
        let put = |(name, t): (&String, &Stored)| {
            let y = Tensor::empty(device, self.dtype_of(name, t)?, &t.shape)?;
            self.copy_into(name, t, &y)?;
            Ok((name.clone(), y))
        };
        self.tensors.iter().map(put).collect()
    }

    /// Copies a tensor of the file over one of the same shape, converted to its dtype.
    fn copy_into(&self, name: &str, t: &Stored, y: &Tensor) -> Result<()> {
        let dtype = self.dtype_of(name, t)?;
        if !y.is_contiguous() {
            return y.assign(&self.read(name)?.to_dtype(y.dtype())?.to_device(y.device())?);
        }
        let flat = y.reshape(&[y.numel()])?;
        let step = PIECE / dtype.size();
        let mut sum = TensorSum::new(dtype, &t.shape);
        for start in (0..y.numel()).step_by(step) {
            let len = step.min(y.numel() - start);
            let raw = self.part(t, start, len)?;
            sum.update(&raw);
            let bytes = convert(&widen(t.dtype, raw)?, dtype, y.dtype())?;
            flat.narrow(0, start, len)?.write_bytes(&bytes)?;
        }
        self.check_sum(name, t, &sum)
    }

    /// Copies the file's tensors into a model. Names, shapes and dtypes are checked before the first is written. A name of the model that
    /// is missing from the file counts as loaded if it is tied to (the same parameter as) one that is there. Errors, unless loading is
    /// partial: [`NnError::StateNames`], [`NnError::StateShape`]; always: two names that become one, [`NnError::Data`],
    /// [`NnError::Checkpoint`] for a damaged tensor, [`NnError::Io`] (tensors up to the failing one are written then).
    pub fn load(&self, model: &dyn Layer, options: &LoadOptions) -> Result<LoadReport> {
        let names = options.names.apply_all(self.tensors.keys())?;
        let own = model.unique_state()?;
        let mut report = LoadReport::default();
        let mut todo: Vec<(&str, &Stored, &Param)> = vec![];
        for (name, p) in &own {
            let Some((&stored_name, stored)) = names.get(name).and_then(|n| Some((n, self.tensors.get(*n)?)))
            else {
                report.missing.push(name.clone());
                continue;
            };
            let (t, found) = (p.get(), read_as(stored.dtype));
            let fits = if options.convert { found.is_some() } else { found == Some(t.dtype()) };
            if fits && stored.shape == t.shape() {
                report.loaded.push(name.clone());
                todo.push((stored_name, stored, p));
            } else {
                report.mismatched.push(Mismatch {
                    name: name.clone(),
                    expected: t.shape().to_vec(),
                    expected_dtype: t.dtype(),
                    found: stored.shape.clone(),
                    found_dtype: found,
                });
            }
        }
        let known: HashMap<&str, &Param> = own.iter().map(|(n, p)| (n.as_str(), p)).collect();
        report.missing.retain(|n| !todo.iter().any(|(_, _, p)| known[n.as_str()].same(p)));
        report.unexpected = names.keys().filter(|n| !known.contains_key(n.as_str())).cloned().collect();
        if !options.partial {
            self.refuse(&report, &names)?;
        }
        for (name, stored, p) in todo {
            self.copy_into(name, stored, &p.get().detach())?;
        }
        Ok(report)
    }

    fn refuse(&self, report: &LoadReport, names: &BTreeMap<String, &str>) -> Result<()> {
        if !report.missing.is_empty() || !report.unexpected.is_empty() {
            let (missing, unexpected) = (report.missing.clone(), report.unexpected.clone());
            return Err(NnError::StateNames { missing, unexpected });
        }
        let Some(m) = report.mismatched.first() else { return Ok(()) };
        let found_dtype = match m.found_dtype {
            Some(d) => d,
            None => {
                let name = names.get(&m.name).copied().unwrap_or(&m.name);
                self.dtype_of(name, self.stored(name)?)?
            }
        };
        Err(NnError::StateShape {
            name: m.name.clone(),
            expected: m.expected.clone(),
            expected_dtype: m.expected_dtype,
            found: m.found.clone(),
            found_dtype,
        })
    }
}

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

/// Writes a safetensors file so that it is there as a whole or not at all, with the tensors of a list (name, dtype, shape, and from what
/// `elements` gives their bytes to its second argument, in pieces of any size). Errors: [`NnError::Io`]; [`NnError::Data`] for a dtype that the
/// format has not; those of `elements`.
pub(crate) fn write_tensors<T>(
    path: &Path,
    metadata: Option<HashMap<String, String>>,
    mut list: Vec<(&str, DType, &[usize], T)>,
    elements: impl Fn(&T, &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()>,
) -> Result<()> {
    // Wide elements first, as the reference implementation orders them, so that every tensor is aligned.
    list.sort_by(|(a, x, ..), (b, y, ..)| y.size().cmp(&x.size()).then(a.cmp(b)));
    let mut infos = vec![];
    let mut end = 0;
    for &(name, dtype, shape, _) in &list {
        let format = to_format(dtype).ok_or_else(|| {
            NnError::data(path, At::Entry(name.to_string()), "a dtype of the format", dtype.name())
        })?;
        let start = end;
        end += shape.iter().product::<usize>() * dtype.size();
        let info = TensorInfo { dtype: format, shape: shape.to_vec(), data_offsets: (start, end) };
        infos.push((name.to_string(), info));
    }
    let refused = |e: String| NnError::data(path, At::File, "tensors of a safetensors file", e);
    let header = Metadata::new(metadata, infos).map_err(|e| refused(e.to_string()))?;
    let mut header = serde_json::to_vec(&header).map_err(|e| refused(e.to_string()))?;
    header.resize(header.len().next_multiple_of(8), b' ');
    write_atomic_with(path, |f| {
        let mut write = |bytes: &[u8]| f.write_all(bytes).map_err(NnError::io("write", path));
        write(&(header.len() as u64).to_le_bytes())?;
        write(&header)?;
        list.iter().try_for_each(|(.., t)| elements(t, &mut write))
    })
}
