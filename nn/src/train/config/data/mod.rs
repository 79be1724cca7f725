//! `data`: what a run trains and tests on.

mod divide;
mod part;
mod sources;

pub use self::divide::Data;
pub use self::sources::Sources;

use std::fmt;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::files::{FILES, PATHS, Read, rebase};
use super::kind::names;
use super::sampler::SamplerConfig;
use super::transform::TransformConfig;
use crate::core::error::{NnError, Result};
use crate::core::options::{COUNT, FINITE, SHARE, check_keys, join, object, read, within};

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
}
