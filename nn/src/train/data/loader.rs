//! Batches made by threads ahead of the training loop.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use trefoil::DType;

use super::items::stack;
use super::source::check;
use super::{Batch, Batches, Dataset, Item, ItemSource, Order, Sampler, Source};
use crate::core::error::{NnError, Result, invalid};
use crate::core::host_tensor::HostTensor;
use crate::core::tensor::{Device, Tensor};

/// Serves the items of an [`ItemSource`] as batches on a device. Threads make whole batches and queue their uploads ahead of the training
/// loop; what is served, and in which order, does not depend on their number.
///
/// Floats and bytes are converted to the loader's dtype on the device; i32 and i64 (class and token ids) stay what they are.
pub struct Loader {
    work: Arc<Work>,
    threads: usize,
    ahead: usize,
    sampler: Sampler,
}

/// What the threads share.
#[derive(Clone)]
struct Work {
    items: Arc<dyn ItemSource>,
    device: Device,
    dtype: DType,
    skip: bool,
    skipped: Arc<AtomicU64>,
}

impl fmt::Debug for Loader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Loader")
            .field("items", &self.work.items.len())
            .field("device", &self.work.device.id())
            .field("dtype", &self.work.dtype)
            .field("threads", &self.threads)
            .field("ahead", &self.ahead)
            .field("sampler", &self.sampler)
            .finish_non_exhaustive()
    }
}

impl Loader {
    /// One thread, two batches ahead, f32, each item once, malformed items are errors.
    pub fn new(items: Arc<dyn ItemSource>, device: &Device) -> Self {
        let device = device.clone();
        let work = Work { items, device, dtype: DType::F32, skip: false, skipped: Arc::default() };
        Loader { work: Arc::new(work), threads: 1, ahead: 2, sampler: Sampler::All }
    }

    /// Dtype of features and values.
    pub fn dtype(mut self, dtype: DType) -> Self {
        Arc::make_mut(&mut self.work).dtype = dtype;
        self
    }

    /// Number of threads (at least 1).
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = threads.max(1);
        self
    }

    /// How many finished batches wait at most (at least 1 per thread). Each thread makes one more meanwhile.
    pub fn ahead(mut self, batches: usize) -> Self {
        self.ahead = batches;
        self
    }

    /// Which items an epoch serves. Errors: a sampler that does not fit the items.
    pub fn sampler(mut self, sampler: Sampler) -> Result<Self> {
        sampler.check(self.work.items.len())?;
        self.sampler = sampler;
        Ok(self)
    }

    /// Leaves malformed items ([`NnError::Data`]) out of their batch, counts and logs them. A batch without any item left is not served.
    pub fn skip_malformed(mut self) -> Self {
        Arc::make_mut(&mut self.work).skip = true;
        self
    }

    /// Items left out so far, over all epochs.
    pub fn skipped(&self) -> u64 {
        self.work.skipped.load(Ordering::Relaxed)
    }
}

impl Work {
    fn gather(&self, rows: &[usize]) -> Result<Option<Item>> {
        if !self.skip {
            return self.items.items(rows).map(Some);
        }
        let mut good = Vec::with_capacity(rows.len());
        for &i in rows {
            match self.items.item(i) {
                Ok(item) => good.push(item),
                Err(e @ NnError::Data { .. }) => {
                    log::warn!("item {i} is left out: {e}");
                    self.skipped.fetch_add(1, Ordering::Relaxed);
                }
                Err(e) => return Err(e),
            }
        }
        if good.is_empty() { Ok(None) } else { stack(&good).map(Some) }
    }

    fn upload(&self, t: &HostTensor) -> Result<Tensor> {
        let y = t.to_device(&self.device)?;
        if t.dtype.is_index() { Ok(y) } else { y.to_dtype(self.dtype) }
    }

    fn batch(&self, rows: &[usize]) -> Result<Option<Batch>> {
        let Some(Item { x, y }) = self.gather(rows)? else { return Ok(None) };
        let len = x.shape.first().copied().unwrap_or(0);
        Ok(Some(Batch { x: self.upload(&x)?, y: self.upload(&y)?, len }))
    }
}

type Made = Result<Option<Batch>>;

/// Batches of threads in turn: thread t makes the batches t, t + threads, ...
struct Prefetched {
    receivers: Vec<Receiver<Made>>,
    threads: Vec<JoinHandle<()>>,
    next: usize,
    count: usize,
}

impl Iterator for Prefetched {
    type Item = Result<Batch>;
    fn next(&mut self) -> Option<Self::Item> {
        while self.next < self.count {
            let from = self.next % self.receivers.len();
            self.next += 1;
            match self.receivers[from].recv() {
                Ok(Ok(Some(batch))) => return Some(Ok(batch)),
                Ok(Ok(None)) => {}
                Ok(Err(e)) => {
                    self.next = self.count;
                    return Some(Err(e));
                }
                // A thread ends without an error only if the item source panicked.
                Err(_) => {
                    self.next = self.count;
                    return Some(Err(invalid("Loader", "items", "batches until the epoch's end", "a panic")));
                }
            }
        }
        None
    }
}

impl Drop for Prefetched {
    fn drop(&mut self) {
        // Threads end when the receiver is gone.
        self.receivers.clear();
        for t in self.threads.drain(..) {
            // Its panic was reported by its own hook, and as an error above.
            let _ = t.join();
        }
    }
}

fn run(work: &Work, rows: &[usize], batch: usize, first: usize, step: usize, sender: &SyncSender<Made>) {
    for rows in rows.chunks(batch).skip(first).step_by(step) {
        let made = work.batch(rows);
        let failed = made.is_err();
        if sender.send(made).is_err() || failed {
            return;
        }
    }
}

impl Source for Loader {
    fn items(&self) -> usize {
        self.sampler.count(self.work.items.len())
    }

    fn classes(&self) -> usize {
        self.work.items.classes()
    }

    fn epoch(&self, order: Option<Order>, batch: usize) -> Result<Batches<'_>> {
        check(batch)?;
        let rows = Arc::new(self.sampler.rows(&self.work.device, self.work.items.len(), order)?);
        let count = rows.len().div_ceil(batch);
        let step = self.threads.min(count.max(1));
        let mut all = Prefetched { receivers: vec![], threads: vec![], next: 0, count };
        for first in 0..step {
            // Room for more batches than there are would only take memory.
            let (sender, receiver) = sync_channel((self.ahead / step).clamp(1, count.max(1)));
            let (work, rows) = (self.work.clone(), rows.clone());
            let thread = std::thread::Builder::new()
                .name(format!("trefoil-batches-{first}"))
                .spawn(move || run(&work, &rows, batch, first, step, &sender))
                .map_err(|source| NnError::Io { what: "start", path: "the batch thread".into(), source })?;
            all.receivers.push(receiver);
            all.threads.push(thread);
        }
        Ok(Box::new(all))
    }
}

/// A data set in host memory: a [`Loader`] with one thread over it. The order is the one a [`ResidentSource`](super::ResidentSource)
/// would use.
#[derive(Debug)]
pub struct HostSource(Loader);

impl HostSource {
    /// Batches are prepared up to `ahead` (at least 1) before they are asked for.
    pub fn new(data: Arc<Dataset>, device: &Device, dtype: DType, ahead: usize) -> Self {
        HostSource(Loader::new(data, device).dtype(dtype).ahead(ahead))
    }
}

impl Source for HostSource {
    fn items(&self) -> usize {
        self.0.items()
    }

    fn classes(&self) -> usize {
        self.0.classes()
    }

    fn epoch(&self, order: Option<Order>, batch: usize) -> Result<Batches<'_>> {
        self.0.epoch(order, batch)
    }
}
