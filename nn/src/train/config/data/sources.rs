//! Divided data as batches on a device.

use std::fmt;
use std::sync::Arc;

use trefoil::DType;

use super::divide::Data;
use super::part::{Part, PartOf};
use super::{DataConfig, OnError, TargetKind};
use crate::core::error::{NnError, Result};
use crate::core::tensor::{Device, Tensor};
use crate::train::config::transform::{Autoencode, Scale, Site};
use crate::train::data::text::ResidentText;
use crate::train::data::{
    Batch, ItemSource, Loader, Order, ResidentSource, Sampler, Source, Transform, Transformed,
};

/// Batches on a device.
pub struct Sources {
    /// Those of training.
    pub train: Box<dyn Source>,
    /// Those of tests.
    pub test: Option<Box<dyn Source>>,
    /// Largest class id, and the number of its item in the file.
    pub(in crate::train::config) largest: Option<(i64, usize)>,
    /// What the network reads in every call: the graph whose nodes the items are, all meshes.
    pub(in crate::train::config) fixed: Option<Vec<(&'static str, Tensor)>>,
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
    /// The data as batches on a device, features in `dtype`. Errors: of items; `OutOfMemory`.
    pub(in crate::train::config) fn sources(
        &self,
        data: &Data,
        device: &Device,
        dtype: DType,
        seed: u64,
    ) -> Result<Sources> {
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
