//! Files that were read, and their items divided into those of training and of tests.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use trefoil::DType;

use super::part::{Part, PartOf, Skipped};
use super::{DataConfig, Division, TargetKind};
use crate::core::error::{NnError, Result};
use crate::core::limits;
use crate::core::tensor::{Device, Tensor};
use crate::train::config::files::{self, Content, Items};
use crate::train::config::mapping::DataMapping;
use crate::train::data::text::{Encoding, Windows};
use crate::train::data::{FixedInputs, ItemSource};

/// Data that was read, and divided.
#[derive(Clone)]
pub struct Data {
    pub(super) train: Part,
    pub(super) test: Option<Part>,
    /// Named when the file was read.
    skipped: Vec<String>,
    encoding: Option<Arc<dyn Encoding>>,
    fixed: Option<Arc<dyn FixedInputs>>,
    pub(super) target: TargetKind,
    mapping: DataMapping,
}

impl fmt::Debug for Data {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Data({} items to train with, {} to test)", self.train_items(), self.test_items())
    }
}

impl DataConfig {
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
}

/// A fixed disorder: SplitMix64 (Steele, Lea and Flood, 2014).
fn spread(i: u64) -> u64 {
    let mut z = i.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
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
