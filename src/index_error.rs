//! Indices out of range: who is told, and which memory must not be read any more.
//!
//! A kernel that meets an index out of range reads 0 or drops the write and sets a word on the device; the host learns of it when it next
//! waits. Until the error has been reported, everything that the stream wrote from the faulty operation on may depend on it. While a kernel
//! with indices may have met an error, and for good after the first error, each piece of memory has a note of its last write, by a clock of
//! the process, so that reads of such memory can be refused and others need not be. Otherwise writes are not noted, which keeps them cheap.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustc_hash::FxHashMap;

use crate::driver::RawMem;
use crate::error::{GpuError, Result};

/// Counts the writes that the process has queued.
static WRITES: AtomicU64 = AtomicU64::new(1);

/// The number of the next write.
pub(crate) fn now() -> u64 {
    WRITES.load(Ordering::Relaxed)
}

/// When memory was last written, and by whom.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Write {
    stream: u64,
    number: u64,
}

impl Write {
    /// A write that is being queued on `stream`.
    pub(crate) fn new(stream: u64) -> Self {
        Write { stream, number: WRITES.fetch_add(1, Ordering::Relaxed) }
    }
}

/// The last noted write of every piece of a device's memory.
#[derive(Debug, Default)]
pub(crate) struct WriteLog(Mutex<FxHashMap<RawMem, Write>>);

impl WriteLog {
    fn lock(&self) -> MutexGuard<'_, FxHashMap<RawMem, Write>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that `memory` is being written on `stream`.
    pub(crate) fn wrote(&self, stream: u64, memory: impl IntoIterator<Item = RawMem>) {
        let write = Write::new(stream);
        let mut log = self.lock();
        for m in memory {
            log.insert(m, write);
        }
    }

    /// The last write of `memory`.
    pub(crate) fn last(&self, memory: RawMem) -> Write {
        self.lock().get(&memory).copied().unwrap_or_default()
    }
}

/// Writes of one stream that followed an index out of range.
#[derive(Debug)]
struct Suspect {
    op: &'static str,
    from: u64,
    /// End of the writes; open until the error was reported.
    to: Option<u64>,
}

/// What is known about indices out of range on the streams of a device.
#[derive(Debug, Default)]
pub(crate) struct IndexErrors {
    by_stream: Mutex<HashMap<u64, Vec<Suspect>>>,
    any: AtomicBool,
}

impl IndexErrors {
    /// Ranges of writes that are kept apart per stream; beyond that the two oldest become one.
    const MAX: usize = 64;

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Vec<Suspect>>> {
        self.by_stream.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether an index out of range was ever met.
    pub(crate) fn any(&self) -> bool {
        self.any.load(Ordering::Acquire)
    }

    /// Notes that `op`, whose first write was number `from`, met an index out of range on `stream`.
    pub(crate) fn found(&self, stream: u64, op: &'static str, from: u64) {
        let mut streams = self.lock();
        let list = streams.entry(stream).or_default();
        // Whatever comes after an error that nobody knows of yet is covered by it.
        match list.last_mut() {
            Some(last) if last.to.is_none() => last.from = last.from.min(from),
            _ => list.push(Suspect { op, from, to: None }),
        }
        if list.len() > Self::MAX {
            list[1].from = list[0].from.min(list[1].from);
            list.remove(0);
        }
        self.any.store(true, Ordering::Release);
    }

    /// Reports what `stream` has not reported yet.
    pub(crate) fn report(&self, stream: u64) -> Result<()> {
        if !self.any() {
            return Ok(());
        }
        match self.lock().get_mut(&stream).and_then(|list| list.last_mut()) {
            Some(s) if s.to.is_none() => {
                s.to = Some(now());
                Err(GpuError::IndexOutOfRange { op: s.op })
            }
            _ => Ok(()),
        }
    }

    /// Forgets the errors of a stream that nobody waits for.
    pub(crate) fn forget(&self, stream: u64) {
        if self.any() {
            self.lock().remove(&stream);
        }
    }

    /// Refuses memory whose last write followed an index out of range.
    pub(crate) fn check(&self, last: impl FnOnce() -> Write) -> Result<()> {
        if !self.any() {
            return Ok(());
        }
        let Write { stream, number: at } = last();
        let mut streams = self.lock();
        let list = streams.get_mut(&stream).map(Vec::as_mut_slice).unwrap_or_default();
        match list.iter_mut().find(|s| s.from <= at && s.to.is_none_or(|to| at < to)) {
            Some(s) => {
                s.to.get_or_insert_with(now);
                Err(GpuError::IndexOutOfRange { op: s.op })
            }
            None => Ok(()),
        }
    }
}
