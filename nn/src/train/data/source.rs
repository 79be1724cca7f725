//! Batches on the device, and a data set that lies there as a whole.

use trefoil::DType;
use trefoil::ops::random::Rng;

use super::{Dataset, Item, ItemSource, Sampler, Targets};
use crate::core::autograd::no_grad;
use crate::core::error::{Result, invalid};
use crate::core::host_tensor::HostTensor;
use crate::core::limits;
use crate::core::tensor::{Device, Tensor};

/// A batch on the device.
#[derive(Debug, Clone)]
pub struct Batch {
    /// Features `[len, item..]`.
    pub x: Tensor,
    /// Class ids `[len]` (i64) or values `[len, ..]`.
    pub y: Tensor,
    /// Number of items.
    pub len: usize,
}

/// The order of an epoch's items: a random permutation that depends on seed and epoch only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Order {
    /// Seed of the run.
    pub seed: u64,
    /// Epoch.
    pub epoch: u64,
}

/// Keeps the streams of shuffling apart from those of parameters and dropout.
const SHUFFLE: u64 = 1 << 61;

impl Order {
    pub(super) fn rng(self) -> Rng<'static> {
        Rng::new(self.seed).at(SHUFFLE | self.epoch, 0)
    }
}

/// An iterator over the batches of one epoch.
pub type Batches<'a> = Box<dyn Iterator<Item = Result<Batch>> + 'a>;

/// Something that serves batches. The last batch of an epoch may be shorter.
pub trait Source: Send + Sync {
    /// Number of items.
    fn items(&self) -> usize;
    /// Number of classes (largest id + 1), 0 for values.
    fn classes(&self) -> usize;
    /// Batches of one epoch, in the given order or as stored. Errors: a batch size of 0.
    fn epoch(&self, order: Option<Order>, batch: usize) -> Result<Batches<'_>>;
}

impl<T: Source + ?Sized> Source for Box<T> {
    fn items(&self) -> usize {
        (**self).items()
    }
    fn classes(&self) -> usize {
        (**self).classes()
    }
    fn epoch(&self, order: Option<Order>, batch: usize) -> Result<Batches<'_>> {
        (**self).epoch(order, batch)
    }
}

pub(super) fn check(batch: usize) -> Result<()> {
    if batch == 0 { Err(invalid("epoch", "batch", "at least 1 item", "0")) } else { Ok(()) }
}

fn upload(device: &Device, dtype: DType, data: &Dataset) -> Result<(Tensor, Tensor)> {
    let shape = [&[data.len()], data.item_shape()].concat();
    let x = Tensor::from_slice(device, data.features(), &shape)?.to_dtype(dtype)?;
    let y = match data.targets() {
        Targets::Classes(ids) => Tensor::from_slice(device, ids, &[ids.len()])?,
        Targets::Values { data: v, shape } => {
            Tensor::from_slice(device, v, &[&[data.len()], shape.as_slice()].concat())?.to_dtype(dtype)?
        }
    };
    Ok((x, y))
}

/// A data set that lies on the device as a whole. A shuffled epoch draws its permutation there and gathers batches from it, so that
/// training transfers nothing.
#[derive(Debug)]
pub struct ResidentSource {
    x: Tensor,
    y: Tensor,
    classes: usize,
    sampler: Sampler,
}

impl ResidentSource {
    /// Uploads the data; features and values in `dtype`. Errors: `OutOfMemory`.
    pub fn new(data: &Dataset, device: &Device, dtype: DType) -> Result<Self> {
        let (x, y) = upload(device, dtype, data)?;
        Ok(ResidentSource { x, y, classes: data.classes(), sampler: Sampler::All })
    }

    /// Makes all items and uploads them; features and values in `dtype`, i32 and i64 as they are. Errors: of the items; `OutOfMemory`.
    pub fn from_items(items: &dyn ItemSource, device: &Device, dtype: DType) -> Result<Self> {
        let Item { x, y } = items.items(&limits::collect(0..items.len())?)?;
        let put = |t: HostTensor| {
            let y = t.to_device(device)?;
            if t.dtype.is_index() { Ok(y) } else { y.to_dtype(dtype) }
        };
        Ok(ResidentSource { x: put(x)?, y: put(y)?, classes: items.classes(), sampler: Sampler::All })
    }

    /// Which items an epoch serves; with a sampler other than [`Sampler::All`], their indices are uploaded once per epoch. Errors: a
    /// sampler that does not fit the items.
    pub fn sampler(mut self, sampler: Sampler) -> Result<Self> {
        sampler.check(self.len())?;
        self.sampler = sampler;
        Ok(self)
    }

    fn len(&self) -> usize {
        self.x.shape()[0]
    }
}

/// Indices of an epoch's items on the device; `None` for all as stored.
pub(super) fn device_rows(
    device: &Device,
    sampler: &Sampler,
    n: usize,
    order: Option<Order>,
) -> Result<Option<Tensor>> {
    match (sampler, order) {
        (Sampler::All, None) => Ok(None),
        (Sampler::All, Some(o)) => Tensor::permutation(device, n, o.rng()).map(Some),
        (sampler, order) => {
            let rows = limits::collect(sampler.rows(device, n, order)?.into_iter().map(|i| i as i64))?;
            Tensor::from_slice(device, &rows, &[rows.len()]).map(Some)
        }
    }
}

impl Source for ResidentSource {
    fn items(&self) -> usize {
        self.sampler.count(self.len())
    }

    fn classes(&self) -> usize {
        self.classes
    }

    fn epoch(&self, order: Option<Order>, batch: usize) -> Result<Batches<'_>> {
        check(batch)?;
        let n = self.items();
        let rows = device_rows(self.x.device(), &self.sampler, self.len(), order)?;
        Ok(Box::new((0..n.div_ceil(batch)).map(move |i| {
            let start = i * batch;
            let len = batch.min(n - start);
            no_grad(|| match &rows {
                Some(rows) => {
                    let at = rows.narrow(0, start, len)?;
                    Ok(Batch { x: self.x.index_select(0, &at)?, y: self.y.index_select(0, &at)?, len })
                }
                None => Ok(Batch { x: self.x.narrow(0, start, len)?, y: self.y.narrow(0, start, len)?, len }),
            })
        })))
    }
}
