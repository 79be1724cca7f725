//! The caching allocator in front of every driver: size classes, best fit, flush and retry.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use crate::buffer::{Mem, Owner, Reclaimer};
use crate::driver::{Driver, RawMem, RawStream};
use crate::error::{GpuError, Result};
use crate::ops::core::MemoryStats;

use super::Counts;

/// Blocks of one stream. A freed block can be handed out again at once, because the stream runs in order.
pub(crate) struct Pool {
    driver: Arc<dyn Driver>,
    stream: RawStream,
    counts: Arc<Counts>,
    caching: bool,
    /// Whether the stream is somebody else's, who destroys it.
    adopted: bool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Handed out from the lowest address up: the same program then gets the same addresses in every step, and tables of addresses stay valid.
    free: BTreeMap<usize, BTreeSet<RawMem>>,
    stats: MemoryStats,
    /// Owners of imported memory that no buffer holds any more; queued work may still use it.
    retired: Vec<Owner>,
}

/// Rounds a request up to its class: 512-byte steps up to 1 MiB, then an eighth of the next power of two, so that at most a fifth is lost.
/// `None` above 2^62, which no memory holds.
pub(crate) fn size_class(bytes: usize) -> Option<usize> {
    if bytes > 1 << 62 {
        return None;
    }
    let step = if bytes <= 1 << 20 { 512 } else { bytes.next_power_of_two() / 8 };
    Some(bytes.max(1).div_ceil(step) * step)
}

impl State {
    fn out_of_memory(&self, requested: usize) -> GpuError {
        GpuError::OutOfMemory { requested, in_use: self.stats.in_use, cached: self.stats.cached }
    }
}

impl Pool {
    pub(crate) fn new(
        driver: Arc<dyn Driver>,
        stream: RawStream,
        adopted: bool,
        counts: Arc<Counts>,
    ) -> Self {
        let caching = !std::env::var("TREFOIL_POOL").is_ok_and(|v| v == "off" || v == "0");
        Pool { driver, stream, counts, caching, adopted, state: Mutex::default() }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|p| p.into_inner())
    }

    /// Memory for `bytes`, and the size of its class.
    pub(crate) fn alloc(&self, bytes: usize) -> Result<(RawMem, usize)> {
        let mut s = self.lock();
        let class = size_class(bytes).ok_or_else(|| s.out_of_memory(bytes))?;
        // Best fit, but do not waste more than a quarter.
        let fit = s.free.range(class..=class + class / 4).find(|(_, v)| !v.is_empty()).map(|(&k, _)| k);
        let (mem, size) = match fit.and_then(|k| Some((s.free.get_mut(&k)?.pop_first()?, k))) {
            Some((mem, size)) => {
                s.stats.cached -= size;
                (mem, size)
            }
            None => (self.fresh(&mut s, class)?, class),
        };
        s.stats.in_use += size;
        s.stats.peak = s.stats.peak.max(s.stats.in_use);
        Ok((mem, size))
    }

    /// Memory from the driver; where it has none left, cached blocks go back to it first.
    fn fresh(&self, s: &mut State, class: usize) -> Result<RawMem> {
        match self.take(class) {
            Err(GpuError::OutOfMemory { .. }) => {
                self.flush(s)?;
                self.take(class).map_err(|e| match e {
                    GpuError::OutOfMemory { .. } => s.out_of_memory(class),
                    e => e,
                })
            }
            r => r,
        }
    }

    /// Memory from the driver, within what the device has: some drivers promise more and fail when it is used.
    fn take(&self, class: usize) -> Result<RawMem> {
        if !self.counts.allocate(class, self.driver.caps().memory_bytes) {
            return Err(GpuError::OutOfMemory { requested: class, in_use: 0, cached: 0 });
        }
        self.driver.alloc(class).inspect_err(|_| self.counts.free(class))
    }

    fn flush(&self, s: &mut State) -> Result<()> {
        // SAFETY: the stream is the driver's and lives as long as this pool.
        unsafe { self.driver.synchronize(self.stream)? };
        self.free_cached(s);
        Ok(())
    }

    /// Frees the free list, once the stream was waited for.
    fn free_cached(&self, s: &mut State) {
        for (bytes, list) in std::mem::take(&mut s.free) {
            for mem in list {
                // SAFETY: the block is on the free list, so no buffer owns it, and the stream was waited for: it is idle, or dead.
                unsafe { self.driver.free(mem) };
                self.counts.free(bytes);
            }
        }
        s.stats.cached = 0;
    }

    /// Returns cached blocks to the driver.
    pub(crate) fn trim(&self) -> Result<()> {
        self.flush(&mut self.lock())
    }

    pub(crate) fn stats(&self) -> MemoryStats {
        self.lock().stats
    }

    /// Lets the peak begin anew.
    pub(crate) fn reset_peak(&self) {
        let mut s = self.lock();
        s.stats.peak = s.stats.in_use;
    }
}

impl Pool {
    /// Owners of imported memory that no buffer holds any more; to be dropped once the stream has been waited for.
    pub(crate) fn retired(&self) -> Vec<Owner> {
        std::mem::take(&mut self.lock().retired)
    }

    /// Counts a live block that came from another reclaimer.
    pub(crate) fn receive(&self, bytes: usize) {
        let mut s = self.lock();
        s.stats.in_use += bytes;
        s.stats.peak = s.stats.peak.max(s.stats.in_use);
    }
}

impl Reclaimer for Pool {
    fn release(&self, bytes: usize) {
        self.lock().stats.in_use -= bytes;
    }

    fn stream(&self) -> Option<RawStream> {
        Some(self.stream)
    }

    fn driver(&self) -> Option<&Arc<dyn Driver>> {
        Some(&self.driver)
    }

    fn reclaim(&self, mem: Mem, bytes: usize) {
        let raw = match mem {
            Mem::Device(raw) => raw,
            Mem::Foreign(_, owner) => {
                let owner = owner.into_inner().unwrap_or_else(PoisonError::into_inner);
                return self.lock().retired.extend(owner);
            }
            Mem::Host(_) | Mem::Custom(_) => return,
        };
        let mut s = self.lock();
        s.stats.in_use -= bytes;
        if self.caching {
            s.stats.cached += bytes;
            s.free.entry(bytes).or_default().insert(raw);
        } else {
            // SAFETY: the stream is the driver's and lives as long as this pool.
            if let Err(e) = unsafe { self.driver.synchronize(self.stream) } {
                log::warn!("waiting before a free failed: {e}");
            }
            // SAFETY: the last buffer of the block is gone and the stream is idle.
            unsafe { self.driver.free(raw) };
            self.counts.free(bytes);
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let mut s = self.lock();
        if let Err(e) = self.flush(&mut s) {
            // A stream that cannot be waited for runs nothing any more; its memory goes back all the same.
            log::warn!("waiting before the pool was emptied failed: {e}");
            self.free_cached(&mut s);
        }
        drop(s);
        // SAFETY: every handle and block of the stream is gone (they hold this pool), so nothing of this crate uses it.
        unsafe {
            match self.adopted {
                true => self.driver.forget_stream(self.stream),
                false => self.driver.destroy_stream(self.stream),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::size_class;

    #[test]
    fn classes() {
        assert_eq!(size_class(0), Some(512));
        assert_eq!(size_class(513), Some(1024));
        assert_eq!(size_class(1 << 20), Some(1 << 20));
        for n in [(1 << 20) + 1, 3_000_000, 1 << 30, (1 << 30) + 5, (1 << 61) + 1, 1 << 62] {
            let c = size_class(n).unwrap();
            assert!(c >= n && c - n <= n / 4 && c.is_multiple_of(512), "{n} {c}");
            assert_eq!(size_class(c), Some(c));
        }
        assert_eq!([(1 << 62) + 1, 1 << 63, usize::MAX].map(size_class), [None; 3]);
    }
}
