//! Reading state dictionaries from files of safetensors, PyTorch and GGUF.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use safetensors::tensor::Metadata;
use trefoil::DType;

use crate::core::error::{At, NnError, Result};
use crate::core::host_tensor::{HostTensor, convert, numel};
use crate::core::limits;
use crate::core::tensor::{Device, Tensor};
use crate::io::foreign::{HEAD, format_of};
use crate::io::gguf;
use crate::io::names::NameMap;
#[cfg(feature = "archives")]
use crate::io::pytorch;
use crate::io::record::{Record, TensorSum, damaged_tensor};
use crate::io::save::{INDEX, Index, PIECE};
use crate::io::stored::{Form, Stored};
use crate::module::state::{LoadReport, Mismatch};
use crate::module::{Layer, LayerExt, Param, StateDict};

/// Limit of the format on a file's header; an index is held to it too.
const MAX_HEADER: u64 = 100_000_000;
const SINGLE: &str = "model.safetensors";

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

#[derive(Debug)]
struct Shard {
    path: PathBuf,
    file: Mutex<File>,
}

/// A state dictionary in a file of safetensors, PyTorch or GGUF, or in several. Opening reads the headers only.
#[derive(Debug)]
pub struct StateFile {
    path: PathBuf,
    shards: Vec<Shard>,
    tensors: BTreeMap<String, Stored>,
    metadata: BTreeMap<String, String>,
}

impl StateFile {
    /// Opens a `.safetensors` file, an index (`model.safetensors.index.json`) with its shards next to it, or a folder that holds
    /// `model.safetensors.index.json` or `model.safetensors`; also a file of `torch.save` (the zip archives of PyTorch 1.6 and newer) or GGUF
    /// (version 2 or 3), which their first bytes tell, whatever their names.
    ///
    /// Of a file of PyTorch the tensors are there, nested dictionaries under names joined by dots (`model.conv1.weight`); nothing else of its
    /// pickle is made, and no code in it runs. Of GGUF, F32, F16, BF16, F64, integers, and `Q8_0` and `Q4_0` (as f32) can be read; names and
    /// layouts are llama.cpp's: what its converters permute is not undone.
    ///
    /// Errors: [`NnError::Io`]; [`NnError::Format`] for pickles without an archive and files of NumPy, with the way to safetensors;
    /// [`NnError::Data`] for a truncated, damaged or foreign file, tensors that are not within it, and an index that does not match its
    /// shards; [`NnError::Checkpoint`] for a checkpoint with damaged metadata.
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
        if head.starts_with(gguf::MAGIC) {
            file.rewind().map_err(io())?;
            let (texts, tensors) = gguf::read(path, &file, self.shards.len())?;
            self.metadata.extend(texts);
            return self.add(path, file, tensors);
        }
        #[cfg(feature = "archives")]
        if head.starts_with(b"PK\x03\x04")
            && let Some(tensors) = pytorch::read(path, &file, self.shards.len())?
        {
            return self.add(path, file, tensors);
        }
        let header = u64::from_le_bytes(head);
        if header > MAX_HEADER {
            // The length that other formats seem to have here is always larger.
            let mut head = vec![];
            file.rewind().and_then(|()| (&file).take(HEAD).read_to_end(&mut head)).map_err(io())?;
            if let Some(found) = format_of(&head) {
                return Err(NnError::Format { path: path.into(), expected: "a safetensors file", found });
            }
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
        let mut tensors = vec![];
        for (name, info) in metadata.tensors() {
            let sum = record.as_ref().map(|r| r.sum_of(path, &name)).transpose()?.flatten();
            let stored = Stored {
                shard,
                start: start + info.data_offsets.0 as u64,
                form: Form::Plain(info.dtype),
                shape: info.shape.clone(),
                strides: None,
                sum: sum.map(str::to_string),
            };
            tensors.push((name, stored));
        }
        self.metadata.extend(texts);
        self.add(path, file, tensors)
    }

    /// Adds a shard with its tensors. Errors: a name that is there already.
    fn add(&mut self, path: &Path, file: File, tensors: Vec<(String, Stored)>) -> Result<()> {
        for (name, stored) in tensors {
            if self.tensors.insert(name.clone(), stored).is_some() {
                let at = At::Entry(name);
                return Err(NnError::data(
                    path,
                    at,
                    "a tensor that stands in one place",
                    "it in another one too",
                ));
            }
        }
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
    /// no such tensor, or for other dtypes (u64, 8-bit floats, other blocks of GGUF), which cannot be read.
    pub fn dtype(&self, name: &str) -> Option<DType> {
        self.tensors.get(name).and_then(|t| t.form.read_as())
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
        t.form.read_as().ok_or_else(|| {
            let expected = "bool, u8, i8, u16, i16, u32, i32, i64, f16, bf16, f32, f64, Q8_0 or Q4_0";
            let path = &self.shards[t.shard].path;
            NnError::data(path, At::Entry(name.into()), expected, format!("{:?}", t.form))
        })
    }

    /// Error if a tensor of a checkpoint is not what was saved.
    fn check_sum(&self, name: &str, t: &Stored, sum: &TensorSum) -> Result<()> {
        match &t.sum {
            Some(wanted) if *wanted != sum.digest() => Err(damaged_tensor(&self.shards[t.shard].path, name)),
            _ => Ok(()),
        }
    }

    /// Bytes of a shard.
    fn bytes(&self, shard: usize, start: u64, len: usize) -> Result<Vec<u8>> {
        let shard = &self.shards[shard];
        let mut raw = limits::zeroed(len)?;
        let mut file = shard.file.lock().unwrap_or_else(PoisonError::into_inner);
        file.seek(SeekFrom::Start(start))
            .and_then(|_| file.read_exact(&mut raw))
            .map_err(NnError::io("read", &shard.path))?;
        Ok(raw)
    }

    /// `len` elements from `start` in row-major order, as they are handed out; `raw` sees them as they are stored. Blocks are read whole: `start`
    /// and `len` are multiples of their size.
    fn part(&self, t: &Stored, start: usize, len: usize, raw: &mut TensorSum) -> Result<Vec<u8>> {
        let (block, size) = t.form.block();
        if t.strides.is_some() && len > 0 {
            return self.picked(t, start, len);
        }
        let at = t.start + (start / block * size) as u64;
        let bytes = self.bytes(t.shard, at, (len / block).saturating_mul(size))?;
        raw.update(&bytes);
        t.form.widen(bytes)
    }

    /// As [`part`](Self::part) of a tensor that is not stored in row-major order: what lies between the first and the last element is read, and
    /// the elements are picked of it.
    fn picked(&self, t: &Stored, start: usize, len: usize) -> Result<Vec<u8>> {
        let (_, size) = t.form.block();
        let places = limits::collect((start..start + len).map(|i| t.place(i)))?;
        let (first, last) = places.iter().fold((usize::MAX, 0), |(a, b), &p| (a.min(p), b.max(p)));
        let all = self.bytes(t.shard, t.start + (first * size) as u64, (last - first + 1) * size)?;
        let mut bytes = vec![];
        limits::reserve(&mut bytes, len.saturating_mul(size))?;
        for p in places {
            bytes.extend_from_slice(&all[(p - first) * size..(p - first + 1) * size]);
        }
        t.form.widen(bytes)
    }

    /// One tensor in host memory. Errors: [`NnError::Data`] for an unknown name or a dtype that cannot be read; [`NnError::Checkpoint`] for a
    /// tensor of a checkpoint whose checksum is another one; [`NnError::Io`].
    pub fn read(&self, name: &str) -> Result<HostTensor> {
        let t = self.stored(name)?;
        let dtype = self.dtype_of(name, t)?;
        // The header was checked against the size of the file, so that the product fits.
        let mut sum = TensorSum::new(dtype, &t.shape);
        let bytes = self.part(t, 0, numel(&t.shape).unwrap_or(0), &mut sum)?;
        self.check_sum(name, t, &sum)?;
        HostTensor::new(dtype, &t.shape, bytes)
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
            let bytes = convert(&self.part(t, start, len, &mut sum)?, dtype, y.dtype())?;
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
            let (t, found) = (p.get(), stored.form.read_as());
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
