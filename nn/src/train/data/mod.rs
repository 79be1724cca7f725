//! Data: from files to batches on the device.
//!
//! Readers ([`read_csv`], [`table::Table`], [`read_npy`], [`read_npz`], [`read_idx`], [`read_cifar`], image folders, [`text`]) give a [`Dataset`], [`HostTensor`]s that make
//! [`Arrays`], or another [`ItemSource`] that makes items when they are asked for. A [`Source`] serves them to a
//! [`Trainer`](crate::Trainer) as batches on the device, in an order that follows from seed and epoch:
//!
//! | | where the data is | a step transfers |
//! |---|---|---|
//! | [`ResidentSource`], [`text::ResidentText`] | on the device | nothing |
//! | [`Loader`] ([`HostSource`] for a [`Dataset`]) | items are made by threads | the batch, ahead of its use |
//! | [`Transformed`] | changes the batches of another source on the device | nothing more |
//!
//! A [`Sampler`] says which items an epoch has. Of a graph ([`GraphData`]), the items are nodes, of [`MeshData`] meshes.

pub(crate) mod cifar;
mod csv;
mod graph;
mod idx;
#[cfg(feature = "images")]
mod images;
pub(crate) mod index_check;
mod items;
mod loader;
mod mesh;
mod npy;
#[cfg(feature = "archives")]
mod npz;
mod sampler;
mod source;
pub mod table;
pub mod text;
pub mod transform;

pub use cifar::{CifarLabels, read_cifar};
pub use csv::{CsvOptions, Label, read_csv, read_csv_each, read_csv_skipping};
pub use graph::{GraphData, GraphOptions};
pub use idx::{read_idx, read_idx_pair};
#[cfg(feature = "images")]
pub use images::{Channels, ImageFolder};
pub use items::{Arrays, Item, ItemSource};
pub use loader::{HostSource, Loader};
pub use mesh::{MeshData, MeshFile, MeshLabels, MeshOptions, mesh_files, read_mesh};
pub use npy::read_npy;
#[cfg(feature = "archives")]
pub use npz::read_npz;
pub use sampler::Sampler;
pub use source::{Batch, Batches, Order, ResidentSource, Source};
pub use transform::{Transform, Transformed};

pub use crate::core::host_tensor::HostTensor;

use std::fmt::Debug;
use std::path::{Path, PathBuf};

use trefoil::DType;

use crate::core::error::{NnError, Result, invalid};
use crate::core::limits;
use crate::core::tensor::{Device, Tensor};

/// Data that a network reads as a whole in every call, which items are parts of: the nodes of a graph, meshes.
#[cfg_attr(not(feature = "json"), allow(dead_code, reason = "runs in JSON alone use it"))]
pub(crate) trait FixedInputs: Debug + Send + Sync {
    /// The inputs by their names, on a device, floats in `dtype`.
    fn fixed_inputs(&self, device: &Device, dtype: DType) -> Result<Vec<(&'static str, Tensor)>>;
}

/// What a folder holds, in alphabetical order.
fn entries(folder: &Path) -> Result<Vec<PathBuf>> {
    let list = std::fs::read_dir(folder).map_err(NnError::io("read", folder))?;
    let list = list.map(|e| e.map(|e| e.path())).collect::<std::io::Result<Vec<_>>>();
    let mut list = list.map_err(NnError::io("read", folder))?;
    list.sort_unstable();
    Ok(list)
}

/// What a model should produce for each item.
#[derive(Debug, Clone, PartialEq)]
pub enum Targets {
    /// Class ids, at least 0.
    Classes(Vec<i64>),
    /// Values of a shape per item, row-major.
    Values {
        /// All values.
        data: Vec<f32>,
        /// Shape of one item's values.
        shape: Vec<usize>,
    },
}

/// Items with features of one shape and their targets, in host memory.
#[derive(Debug, Clone, PartialEq)]
pub struct Dataset {
    features: Vec<f32>,
    item: Vec<usize>,
    targets: Targets,
    len: usize,
}

impl Dataset {
    /// Features in row-major order, `item` the shape of one item. Errors: no items, sizes that do not agree, a negative class id.
    pub fn new(features: Vec<f32>, item: &[usize], targets: Targets) -> Result<Self> {
        let width: usize = item.iter().product();
        if width == 0 || features.is_empty() || !features.len().is_multiple_of(width) {
            let expected = format!("a positive multiple of the item size {width}");
            return Err(invalid("Dataset", "features", expected, format!("{} values", features.len())));
        }
        let len = features.len() / width;
        let (have, what) = match &targets {
            Targets::Classes(ids) => (ids.len(), len),
            Targets::Values { data, shape } => (data.len(), len * shape.iter().product::<usize>()),
        };
        if have != what {
            return Err(invalid("Dataset", "targets", format!("{what} for {len} items"), format!("{have}")));
        }
        if let Targets::Classes(ids) = &targets
            && let Some(bad) = ids.iter().find(|&&c| c < 0)
        {
            return Err(invalid("Dataset", "targets", "class ids of at least 0", format!("{bad}")));
        }
        Ok(Dataset { features, item: item.to_vec(), targets, len })
    }

    /// Number of items.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True without items.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Shape of one item's features.
    pub fn item_shape(&self) -> &[usize] {
        &self.item
    }

    /// All features, row-major.
    pub fn features(&self) -> &[f32] {
        &self.features
    }

    /// The targets.
    pub fn targets(&self) -> &Targets {
        &self.targets
    }

    /// Largest class id plus 1; 0 for values.
    pub fn classes(&self) -> usize {
        match &self.targets {
            Targets::Classes(ids) => ids.iter().max().map_or(0, |&m| m as usize + 1),
            Targets::Values { .. } => 0,
        }
    }

    /// Bytes that the data takes on a device.
    pub fn bytes(&self) -> usize {
        let t = match &self.targets {
            Targets::Classes(ids) => ids.len() * 8,
            Targets::Values { data, .. } => data.len() * 4,
        };
        self.features.len() * 4 + t
    }

    /// Items `start..start + len`. Errors: beyond the end, or no items.
    pub fn slice(&self, start: usize, len: usize) -> Result<Dataset> {
        let Some(end) = start.checked_add(len).filter(|&e| e <= self.len && len > 0) else {
            let got = format!("items {start}..{}", start.saturating_add(len));
            return Err(invalid("Dataset", "range", format!("a part of 0..{}", self.len), got));
        };
        let width: usize = self.item.iter().product();
        let targets = match &self.targets {
            Targets::Classes(ids) => Targets::Classes(limits::copy(&ids[start..end])?),
            Targets::Values { data, shape } => {
                let w: usize = shape.iter().product();
                Targets::Values { data: limits::copy(&data[start * w..end * w])?, shape: shape.clone() }
            }
        };
        Dataset::new(limits::copy(&self.features[start * width..end * width])?, &self.item, targets)
    }

    /// The same values as items of another shape. Errors: sizes that do not agree.
    #[cfg(feature = "json")]
    pub(crate) fn reshaped(self, item: &[usize]) -> Result<Dataset> {
        Dataset::new(self.features, item, self.targets)
    }

    /// Multiplies all features by a factor.
    pub fn scale(&mut self, factor: f32) {
        self.features.iter_mut().for_each(|x| *x *= factor);
    }
}
