//! `data`: what a run trains and tests on.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use trefoil::DType;

use super::files::{self, Content, FILES, Items, PATHS, Read, rebase};
use super::kind::names;
use super::mapping::DataMapping;
use super::sampler::SamplerConfig;
use super::transform::{Autoencode, Scale, Site, TransformConfig};
use crate::core::error::{NnError, Result};
use crate::core::limits;
use crate::core::options::{COUNT, FINITE, SHARE, check_keys, join, object, read, within};
use crate::core::tensor::{Device, Tensor};
use crate::train::data::text::{Encoding, ResidentText, Windows};
use crate::train::data::{
    Arrays, Batch, FixedInputs, HostTensor, Item, ItemSource, Loader, Order, ResidentSource, Sampler, Source,
    Transform, Transformed,
};

/// Where the data comes from and how it is served. The key of a file says what it is: `csv`, `parquet`, `arrow`, `npy`, `npz`, `idx`, `cifar`,
/// `images` (a folder of folders), `text`, `graph` (whose nodes are the items) or `meshes`.
#[derive(Clone)]
pub struct DataConfig {
    json: Value,
    kind: &'static str,
    files: Read,
    test_files: Option<Read>,
    /// Settings of all kinds of files.
    pub common: Common,
    /// Which items an epoch of training serves.
    pub sampler: SamplerConfig,
    /// Changes of batches on the device, in this order.
    pub transforms: Vec<TransformConfig>,
}

impl fmt::Debug for DataConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DataConfig({})", self.json)
    }
}

/// Settings of all kinds of files.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Common {
    /// What targets are; by default classes where they are integers.
    pub target: Option<TargetKind>,
    /// Factor of the features.
    pub scale: f64,
    /// Shape of one item's features; by default as stored.
    pub item_shape: Option<Vec<usize>>,
    /// The first items train; by default all that do not test.
    pub train_rows: Option<usize>,
    /// The last items test; none by default.
    pub test_rows: usize,
    /// Share of the items (of a text's tokens) that test, instead of their number.
    pub test_share: Option<f64>,
    /// How items are divided: the last ones, or a fixed choice; by default the last, of image folders a choice.
    pub split: Option<Division>,
    /// Keep the data on the device if it takes at most this many bytes there, otherwise upload batches ahead of use. Default 1 GiB.
    pub resident_bytes: usize,
    /// Threads that make batches of data that does not lie on the device.
    pub threads: usize,
    /// How many finished batches wait.
    pub ahead: usize,
    /// What happens to malformed rows and images.
    pub on_error: OnError,
}

impl Default for Common {
    fn default() -> Self {
        Common {
            target: None,
            scale: 1.0,
            item_shape: None,
            train_rows: None,
            test_rows: 0,
            test_share: None,
            split: None,
            resident_bytes: 1 << 30,
            threads: 1,
            ahead: 2,
            on_error: OnError::Fail,
        }
    }
}

pub(super) const COMMON: &[&str] = &[
    "target",
    "scale",
    "item_shape",
    "train_rows",
    "test_rows",
    "test_share",
    "split",
    "resident_bytes",
    "threads",
    "ahead",
    "on_error",
    "sampler",
    "transforms",
    "test",
];

/// What happens to malformed rows and images.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnError {
    /// The first one ends the run.
    #[default]
    Fail,
    /// They are left out, counted and named.
    Skip,
}

/// How items are divided into those of training and of tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Division {
    /// The last ones test.
    #[default]
    Last,
    /// A fixed choice tests, spread over all items.
    Random,
}

/// Meaning of targets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TargetKind {
    /// Class ids.
    Class,
    /// Real numbers.
    Value,
    /// The features themselves, for autoencoders.
    Input,
}

/// A part of the data: whose items, and which of them.
#[derive(Clone)]
struct Part {
    from: PartOf,
    scale: f64,
    classes: usize,
    skipped: Skipped,
}

#[derive(Clone)]
enum PartOf {
    Items { items: Arc<dyn ItemSource>, rows: Vec<usize>, labels: Option<Vec<i64>> },
    Text(Windows),
}

/// Malformed items that were left out, by their number.
#[derive(Clone, Default)]
struct Skipped(Arc<Mutex<BTreeMap<usize, String>>>);

impl Skipped {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<usize, String>> {
        self.0.lock().unwrap_or_else(|p| p.into_inner())
    }
}

/// Data that was read, and divided.
#[derive(Clone)]
pub struct Data {
    train: Part,
    test: Option<Part>,
    /// Named when the file was read.
    skipped: Vec<String>,
    encoding: Option<Arc<dyn Encoding>>,
    fixed: Option<Arc<dyn FixedInputs>>,
    target: TargetKind,
    mapping: DataMapping,
}

impl fmt::Debug for Data {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Data({} items to train with, {} to test)", self.train_items(), self.test_items())
    }
}

/// Batches on a device.
pub struct Sources {
    /// Those of training.
    pub train: Box<dyn Source>,
    /// Those of tests.
    pub test: Option<Box<dyn Source>>,
    /// Largest class id, and the number of its item in the file.
    pub(super) largest: Option<(i64, usize)>,
    /// What the network reads in every call: the graph whose nodes the items are, all meshes.
    pub(super) fixed: Option<Vec<(&'static str, Tensor)>>,
}

impl fmt::Debug for Sources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sources({} items, test {:?})", self.train.items(), self.test.as_ref().map(|t| t.items()))
    }
}

impl Sources {
    /// The first `n` items of training, as they come in an epoch 0 of a seed. Errors: of the data, or none.
    pub fn first(&self, seed: u64, n: usize) -> Result<Batch> {
        match self.train.epoch(Some(Order { seed, epoch: 0 }), n)?.next() {
            Some(batch) => batch,
            None => Err(NnError::config("data", "expected at least one good item, got none")),
        }
    }
}

impl DataConfig {
    pub(super) fn read(path: &str, json: Value) -> Result<Self> {
        let mut keys = object(path, json.clone(), "an object with the key of a file")?;
        let present: Vec<_> = FILES.iter().filter(|r| keys.contains_key(r.name)).collect();
        let [row] = present[..] else {
            let got = match present.len() {
                0 => "none".to_string(),
                _ => present.iter().map(|r| r.name).collect::<Vec<_>>().join(" and "),
            };
            let what = format!("expected one of the keys {}, got {got}", names(FILES).join(", "));
            return Err(NnError::config(path, what));
        };
        let own = || row.keys.iter().map(|k| k.name);
        check_keys(path, row.name, &keys, COMMON.iter().copied().chain(own()))?;
        let test = keys.remove("test");
        let sampler = keys.remove("sampler");
        let transforms = keys.remove("transforms");
        let (given, common): (Map<_, _>, Map<_, _>) =
            keys.into_iter().partition(|(k, _)| own().any(|name| name == k));
        let files = (row.read)(path, given.clone())?;
        let test_files = match test {
            None | Some(Value::Null) => None,
            Some(v) => {
                // What the test's files do not say is said by those of training.
                let at = join(path, "test");
                let more = object(&at, v, "an object with the files of the tests")?;
                check_keys(&at, row.name, &more, own())?;
                let mut all = given;
                all.extend(more);
                Some((row.read)(&at, all)?)
            }
        };
        let list = match transforms {
            None => vec![],
            Some(Value::Array(list)) => list,
            Some(v) => {
                let what = format!("invalid type: expected a list, got {v}");
                return Err(NnError::config(join(path, "transforms"), what));
            }
        };
        let transforms = list.into_iter().enumerate();
        let transforms = transforms
            .map(|(i, t)| TransformConfig::read(&format!("{path}.transforms[{i}]"), t))
            .collect::<Result<_>>()?;
        let sampler = match sampler {
            Some(v) => SamplerConfig::read(&join(path, "sampler"), v)?,
            None => SamplerConfig::default(),
        };
        let common = read(path, Value::Object(common))?;
        let config = DataConfig { json, kind: row.name, files, test_files, common, sampler, transforms };
        config.check(path)?;
        Ok(config)
    }

    /// The section as JSON.
    pub fn json(&self) -> &Value {
        &self.json
    }

    /// The key of the file: `csv`, `parquet`, ...
    pub fn kind(&self) -> &'static str {
        self.kind
    }

    /// Makes relative paths relative to a folder instead of the current one. All settings return to those of the file.
    pub fn rebase(&mut self, folder: impl AsRef<Path>) -> Result<()> {
        rebase(&mut self.json, folder.as_ref());
        *self = DataConfig::read("data", self.json.clone())?;
        Ok(())
    }

    /// What decides which items come, as it was written: without the places of files, and how they are served.
    pub(super) fn meaning(&self) -> Value {
        let mut json = self.json.clone();
        let served = ["resident_bytes", "threads", "ahead"];
        let keep = |keys: &mut Map<String, Value>| {
            keys.retain(|key, _| !PATHS.contains(&key.as_str()) && !served.contains(&key.as_str()));
        };
        if let Value::Object(keys) = &mut json {
            keep(keys);
            if let Some(Value::Object(test)) = keys.get_mut("test") {
                keep(test);
            }
        }
        json
    }

    pub(super) fn check(&self, path: &str) -> Result<()> {
        let c = &self.common;
        within(path, "scale", &c.scale, &FINITE)?;
        within(path, "train_rows", &c.train_rows, &COUNT)?;
        within(path, "test_share", &c.test_share, &SHARE)?;
        within(path, "threads", &c.threads, &COUNT)?;
        let fail = |key: &str, what: String| Err(NnError::config(join(path, key), what));
        if let Some(s) = c.item_shape.as_ref().filter(|s| s.is_empty() || s.contains(&0)) {
            return fail("item_shape", format!("expected sizes of at least 1, got {s:?}"));
        }
        if c.test_share.is_some() && c.test_rows > 0 {
            return fail("test_share", "expected it or `test_rows`, got both".into());
        }
        if self.test_files.is_some() && (c.test_share.is_some() || c.test_rows > 0) {
            return fail("test", "expected files of their own or a share of all items, got both".into());
        }
        if self.kind == "text" && (c.train_rows.is_some() || c.test_rows > 0 || c.split.is_some()) {
            return fail(
                "text",
                "expected the test's `test_share` of the tokens, got rows or a split".into(),
            );
        }
        if matches!(self.kind, "text" | "images")
            && (c.item_shape.is_some() || c.target == Some(TargetKind::Value))
        {
            return fail(self.kind, "expected neither `item_shape` nor values as targets".into());
        }
        let whole = [("graph", "nodes"), ("meshes", "meshes")];
        if let Some((kind, items)) = whole.into_iter().find(|(kind, _)| *kind == self.kind) {
            let by_class = matches!(c.target, None | Some(TargetKind::Class)) && c.on_error == OnError::Fail;
            if c.item_shape.is_some() || !by_class || !self.transforms.is_empty() {
                let what = "with classes, without `item_shape`, `transforms` and `on_error`";
                return fail(self.kind, format!("expected {items} {what}"));
            }
            let test = self.json.get("test").and_then(Value::as_object);
            if let Some(key) = test.and_then(|t| t.keys().find(|k| *k != "labels")) {
                return fail(&format!("test.{key}"), format!("expected other `labels` of the same {kind}"));
            }
        }
        Ok(())
    }

    /// Reads the files. Errors: of the files; rows that they do not have.
    pub fn open(&self) -> Result<Data> {
        self.open_mapped(None)
    }

    /// As [`open`](DataConfig::open), with what another run has learned of its data: categories, classes, vocabulary. Errors: what it does not
    /// know.
    pub fn open_mapped(&self, mapping: Option<&DataMapping>) -> Result<Data> {
        match (self.files)(&self.common, mapping)? {
            Content::Items(items) => self.divide(items),
            Content::Text { text, encoding, length, step } => self.windows(&text, encoding, length, step),
        }
    }

    fn divide(&self, mut all: Items) -> Result<Data> {
        let mut mapping = std::mem::take(&mut all.mapping);
        let c = &self.common;
        let n = all.items.len();
        let test_rows = match c.test_share {
            Some(share) => ((n as f64 * share).round() as usize).min(n),
            None => c.test_rows,
        };
        let fail = |key: &str, what: String| Err(NnError::config(format!("data.{key}"), what));
        if test_rows >= n {
            return fail("test_rows", format!("expected fewer than the file's {n} rows, got {test_rows}"));
        }
        let train_rows = c.train_rows.unwrap_or(n - test_rows);
        if train_rows > n - test_rows {
            return fail("train_rows", format!("expected at most {} rows, got {train_rows}", n - test_rows));
        }
        let mut order = limits::collect(0..n)?;
        let default = if all.sorted { Division::Random } else { Division::Last };
        if c.split.unwrap_or(default) == Division::Random {
            order.sort_unstable_by_key(|&i| spread(i as u64));
        }
        let part = |rows: Vec<usize>, all: &Items| -> Result<Part> {
            let labels =
                all.labels.as_ref().map(|l| limits::collect(rows.iter().map(|&r| l[r]))).transpose()?;
            Ok(Part {
                from: PartOf::Items { items: all.items.clone(), rows, labels },
                scale: all.scale,
                classes: all.items.classes(),
                skipped: Skipped::default(),
            })
        };
        let train = part(limits::copy(&order[..train_rows])?, &all)?;
        let mut skipped = all.skipped.clone();
        let test = match &self.test_files {
            None if test_rows == 0 => None,
            None => Some(part(limits::copy(&order[n - test_rows..])?, &all)?),
            Some(files) => match files(c, Some(&mapping))? {
                Content::Items(own) => {
                    skipped.extend(own.skipped.iter().cloned());
                    Some(part(limits::collect(0..own.items.len())?, &own)?)
                }
                Content::Text { .. } => None,
            },
        };
        let found = if train.classes > 0 { TargetKind::Class } else { TargetKind::Value };
        let target = c.target.unwrap_or(found);
        mapping.target = Some(target);
        Ok(Data { train, test, skipped, encoding: None, fixed: all.fixed, target, mapping })
    }

    /// Items of a further file without targets, in their order, for a trained network: features as those of training, with the mapping that its run
    /// has kept. Columns of targets may be absent from a table. Errors: of the file; data whose items are no rows (texts, graphs, images).
    pub fn inference(&self, file: impl AsRef<Path>, mapping: &DataMapping) -> Result<Data> {
        let all = files::inference(self.kind, &self.json, file.as_ref(), mapping, &self.common)?;
        let rows = limits::collect(0..all.items.len())?;
        let from = PartOf::Items { items: all.items, rows, labels: None };
        let train = Part { from, scale: all.scale, classes: 0, skipped: Skipped::default() };
        let test = Some(train.clone());
        let (target, mapping) = (TargetKind::Value, mapping.clone());
        Ok(Data { train, test, skipped: all.skipped, encoding: None, fixed: None, target, mapping })
    }

    fn windows(&self, text: &str, encoding: Arc<dyn Encoding>, length: usize, step: usize) -> Result<Data> {
        let tokens = encoding.encode(text)?;
        let held = (tokens.len() as f64 * self.common.test_share.unwrap_or(0.0)).round() as usize;
        let part = |tokens: &[u32]| -> Result<Part> {
            let windows = Windows::new(tokens, length, encoding.size())?.step(step)?;
            let from = PartOf::Text(windows);
            Ok(Part { from, scale: 1.0, classes: encoding.size(), skipped: Skipped::default() })
        };
        let (train, rest) = tokens.split_at(tokens.len() - held.min(tokens.len()));
        let test = match &self.test_files {
            None if held == 0 => None,
            None => Some(part(rest)?),
            Some(files) => match files(&self.common, None)? {
                Content::Text { text, .. } => Some(part(&encoding.encode(&text)?)?),
                Content::Items(_) => None,
            },
        };
        let train = part(train)?;
        Ok(Data {
            train,
            test,
            skipped: vec![],
            mapping: DataMapping::of_text(&*encoding),
            encoding: Some(encoding),
            fixed: None,
            target: TargetKind::Class,
        })
    }

    /// The data as batches on a device, features in `dtype`. Errors: of items; `OutOfMemory`.
    pub(super) fn sources(&self, data: &Data, device: &Device, dtype: DType, seed: u64) -> Result<Sources> {
        let serve = |part: &Part, train: bool| -> Result<Box<dyn Source>> {
            let base = self.serve(part, device, dtype, train)?;
            let mut list: Vec<Box<dyn Transform>> = vec![];
            if part.scale != 1.0 {
                list.push(Box::new(Scale(part.scale)));
            }
            let site = Site { device, dtype, classes: part.classes };
            for t in self.transforms.iter().filter_map(|t| t.build(site, train)) {
                list.push(t?);
            }
            if data.target == TargetKind::Input {
                list.push(Box::new(Autoencode));
            }
            if list.is_empty() {
                return Ok(base);
            }
            Ok(Box::new(list.into_iter().fold(Transformed::new(base, seed), Transformed::then)))
        };
        let train = serve(&data.train, true)?;
        let test = data.test.as_ref().map(|t| serve(t, false)).transpose()?;
        let parts = [Some(&data.train), data.test.as_ref()];
        let largest = parts.into_iter().flatten().filter_map(Part::largest).max();
        let fixed = data.fixed_inputs(device, dtype)?;
        Ok(Sources { train, test, largest, fixed })
    }

    fn serve(&self, part: &Part, device: &Device, dtype: DType, train: bool) -> Result<Box<dyn Source>> {
        let sampler = |n: usize, labels: Option<&[i64]>| match train {
            true => self.sampler.build(n, labels),
            false => Ok(Sampler::All),
        };
        let (rows, labels) = match &part.from {
            PartOf::Text(windows) => {
                let sampler = sampler(windows.len(), None)?;
                return Ok(Box::new(ResidentText::new(windows.clone(), device)?.sampler(sampler)?));
            }
            PartOf::Items { rows, labels, .. } => (rows, labels),
        };
        let skip = self.common.on_error == OnError::Skip;
        if part.bytes(dtype, skip)? <= self.common.resident_bytes {
            if skip {
                let (items, labels) = part.good()?;
                let sampler = sampler(items.len(), labels.as_deref())?;
                return Ok(Box::new(ResidentSource::from_items(&items, device, dtype)?.sampler(sampler)?));
            }
            let sampler = sampler(rows.len(), labels.as_deref())?;
            return Ok(Box::new(ResidentSource::from_items(part, device, dtype)?.sampler(sampler)?));
        }
        let sampler = sampler(rows.len(), labels.as_deref())?;
        let c = &self.common;
        let loader =
            Loader::new(Arc::new(part.clone()), device).dtype(dtype).threads(c.threads).ahead(c.ahead);
        let loader = if skip { loader.skip_malformed() } else { loader };
        Ok(Box::new(loader.sampler(sampler)?))
    }
}

/// A fixed disorder: SplitMix64 (Steele, Lea and Flood, 2014).
fn spread(i: u64) -> u64 {
    let mut z = i.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

impl Part {
    /// The item under a number, and its number in the file.
    fn fetch(&self, i: usize) -> Result<Item> {
        match &self.from {
            PartOf::Items { items, rows, .. } => {
                let at = rows.get(i).copied().unwrap_or(usize::MAX);
                items.item(at).inspect_err(|e| {
                    if let NnError::Data { .. } = e {
                        self.skipped.lock().insert(at, e.to_string());
                    }
                })
            }
            PartOf::Text(windows) => windows.item(i),
        }
    }

    /// Largest class id, and its item.
    fn largest(&self) -> Option<(i64, usize)> {
        match &self.from {
            PartOf::Items { rows, labels: Some(labels), .. } => {
                labels.iter().copied().zip(rows.iter().copied()).max()
            }
            _ => None,
        }
    }

    /// Bytes on a device, from the first good item.
    fn bytes(&self, dtype: DType, skip: bool) -> Result<usize> {
        let of = |t: &HostTensor| t.numel() * if t.dtype.is_index() { t.dtype.size() } else { dtype.size() };
        let first = (0..self.len()).map(|i| self.fetch(i)).find(|item| !skip || item.is_ok());
        match first {
            Some(item) => item.map(|i| (of(&i.x) + of(&i.y)).saturating_mul(self.len())),
            None => Err(NnError::config("data", "expected at least one good item, got none")),
        }
    }

    /// The items that are not malformed, with their labels.
    fn good(&self) -> Result<(Arrays, Option<Vec<i64>>)> {
        let (mut x, mut y, mut kept) = (vec![], vec![], vec![]);
        for i in 0..self.len() {
            match self.fetch(i) {
                Ok(item) => {
                    limits::push(&mut x, item.x)?;
                    limits::push(&mut y, item.y)?;
                    limits::push(&mut kept, i)?;
                }
                Err(NnError::Data { .. }) => {}
                Err(e) => return Err(e),
            }
        }
        let labels = match &self.from {
            PartOf::Items { labels: Some(l), .. } => Some(limits::collect(kept.iter().map(|&i| l[i]))?),
            _ => None,
        };
        let stack = |all: &[HostTensor]| HostTensor::stack(&limits::collect(all.iter())?);
        Ok((Arrays::new(stack(&x)?, stack(&y)?)?, labels))
    }
}

impl ItemSource for Part {
    fn len(&self) -> usize {
        match &self.from {
            PartOf::Items { rows, .. } => rows.len(),
            PartOf::Text(windows) => windows.len(),
        }
    }

    fn classes(&self) -> usize {
        self.classes
    }

    fn item(&self, i: usize) -> Result<Item> {
        self.fetch(i)
    }

    fn items(&self, wanted: &[usize]) -> Result<Item> {
        match &self.from {
            PartOf::Items { items, rows, .. } => {
                items.items(&wanted.iter().map(|&i| rows[i]).collect::<Vec<_>>())
            }
            PartOf::Text(windows) => windows.items(wanted),
        }
    }
}

impl Data {
    /// Number of items to train with.
    pub fn train_items(&self) -> usize {
        self.train.len()
    }

    /// Number of items to test with.
    pub fn test_items(&self) -> usize {
        self.test.as_ref().map_or(0, |t| t.len())
    }

    /// Largest class id (token id) + 1, 0 for values.
    pub fn classes(&self) -> usize {
        if self.target == TargetKind::Class { self.train.classes } else { 0 }
    }

    /// What the run has learned of its data: what features and class ids mean.
    pub fn mapping(&self) -> &DataMapping {
        &self.mapping
    }

    /// What targets are.
    pub fn target(&self) -> TargetKind {
        self.target
    }

    /// The encoding of a text.
    pub fn encoding(&self) -> Option<&dyn Encoding> {
        self.encoding.as_deref()
    }

    /// What a network reads in every call of the graph whose nodes, or of the meshes, that the items are, on a device, floats in `dtype`; see
    /// [`Network::on_nodes`](crate::network::Network::on_nodes).
    pub fn fixed_inputs(&self, device: &Device, dtype: DType) -> Result<Option<Vec<(&'static str, Tensor)>>> {
        self.fixed.as_ref().map(|all| all.fixed_inputs(device, dtype)).transpose()
    }

    /// Malformed rows and images that were left out so far, each with its place and what is wrong with it.
    pub fn skipped(&self) -> Vec<String> {
        let mut all = self.skipped.clone();
        for part in [Some(&self.train), self.test.as_ref()].into_iter().flatten() {
            all.extend(part.skipped.lock().values().cloned());
        }
        all
    }
}
