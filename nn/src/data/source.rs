//! Batches on the device: from a resident data set, or uploaded ahead of use by a thread.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};

use trefoil::DType;
use trefoil::ops::Rng;

use super::{Dataset, Targets};
use crate::autograd::no_grad;
use crate::error::{NnError, Result, invalid};
use crate::tensor::{Device, Tensor};

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
    fn rng(self) -> Rng<'static> {
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

fn check(batch: usize) -> Result<()> {
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
}

impl ResidentSource {
    /// Uploads the data; features and values in `dtype`. Errors: `OutOfMemory`.
    pub fn new(data: &Dataset, device: &Device, dtype: DType) -> Result<Self> {
        let (x, y) = upload(device, dtype, data)?;
        Ok(ResidentSource { x, y, classes: data.classes() })
    }
}

impl Source for ResidentSource {
    fn items(&self) -> usize {
        self.x.shape()[0]
    }

    fn classes(&self) -> usize {
        self.classes
    }

    fn epoch(&self, order: Option<Order>, batch: usize) -> Result<Batches<'_>> {
        check(batch)?;
        let n = self.items();
        let perm = order.map(|o| Tensor::permutation(self.x.device(), n, o.rng())).transpose()?;
        Ok(Box::new((0..n.div_ceil(batch)).map(move |i| {
            let start = i * batch;
            let len = batch.min(n - start);
            no_grad(|| match &perm {
                Some(p) => {
                    let at = p.narrow(0, start, len)?;
                    Ok(Batch { x: self.x.index_select(0, &at)?, y: self.y.index_select(0, &at)?, len })
                }
                None => Ok(Batch { x: self.x.narrow(0, start, len)?, y: self.y.narrow(0, start, len)?, len }),
            })
        })))
    }
}

/// A data set in host memory. A thread gathers the batches of an epoch and queues their uploads ahead of the training loop; the order is
/// the one a [`ResidentSource`] would use.
#[derive(Debug)]
pub struct HostSource {
    data: Arc<Dataset>,
    device: Device,
    dtype: DType,
    ahead: usize,
}

impl HostSource {
    /// Batches are prepared up to `ahead` (at least 1) before they are asked for.
    pub fn new(data: Arc<Dataset>, device: &Device, dtype: DType, ahead: usize) -> Self {
        HostSource { data, device: device.clone(), dtype, ahead: ahead.max(1) }
    }
}

fn gather(data: &Dataset, rows: &[usize]) -> Result<Dataset> {
    fn pick<T: Copy>(from: &[T], rows: &[usize], width: usize) -> Vec<T> {
        rows.iter().flat_map(|&r| &from[r * width..(r + 1) * width]).copied().collect()
    }
    let width = data.item_shape().iter().product();
    let targets = match data.targets() {
        Targets::Classes(ids) => Targets::Classes(pick(ids, rows, 1)),
        Targets::Values { data: v, shape } => {
            Targets::Values { data: pick(v, rows, shape.iter().product()), shape: shape.clone() }
        }
    };
    Dataset::new(pick(data.features(), rows, width), data.item_shape(), targets)
}

struct Prefetched {
    receiver: Receiver<Result<Batch>>,
}

impl Iterator for Prefetched {
    type Item = Result<Batch>;
    fn next(&mut self) -> Option<Self::Item> {
        // The channel closes when the thread is done; the thread ends when this receiver is dropped.
        self.receiver.recv().ok()
    }
}

impl Source for HostSource {
    fn items(&self) -> usize {
        self.data.len()
    }

    fn classes(&self) -> usize {
        self.data.classes()
    }

    fn epoch(&self, order: Option<Order>, batch: usize) -> Result<Batches<'_>> {
        check(batch)?;
        let rows: Vec<usize> = match order {
            Some(o) => {
                let p = Tensor::permutation(&self.device, self.data.len(), o.rng())?.to_vec::<i64>()?;
                p.into_iter().map(|i| i as usize).collect()
            }
            None => (0..self.data.len()).collect(),
        };
        let (sender, receiver) = sync_channel(self.ahead);
        let (data, device, dtype) = (self.data.clone(), self.device.clone(), self.dtype);
        let work =
            move || {
                for rows in rows.chunks(batch) {
                    let made = gather(&data, rows)
                        .and_then(|d| upload(&device, dtype, &d))
                        .map(|(x, y)| Batch { x, y, len: rows.len() });
                    let failed = made.is_err();
                    if sender.send(made).is_err() || failed {
                        return;
                    }
                }
            };
        std::thread::Builder::new()
            .name("trefoil-batches".into())
            .spawn(work)
            .map_err(|source| NnError::Io { what: "start", path: "the batch thread".into(), source })?;
        Ok(Box::new(Prefetched { receiver }))
    }
}
