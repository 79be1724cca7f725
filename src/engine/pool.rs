//! The caching allocator in front of every driver: size classes, best fit, flush and retry.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use crate::buffer::{Home, Mem};
use crate::driver::{Driver, RawMem, RawStream};
use crate::error::{GpuError, Result};
use crate::ops::MemoryStats;

use super::Counts;

/// Blocks of one stream. A freed block can be handed out again at once, because the stream runs in order.
#[derive(Debug)]
pub(crate) struct Pool {
    driver: Arc<dyn Driver>,
    stream: RawStream,
    counts: Arc<Counts>,
    caching: bool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Handed out from the lowest address up: the same program then gets the same addresses in every step, and tables of addresses stay valid.
    free: BTreeMap<usize, BTreeSet<RawMem>>,
    stats: MemoryStats,
}

/// Rounds a request up to its class: 512-byte steps up to 1 MiB, then an eighth of the next power of two, so that at most a fifth is lost.
pub(crate) fn size_class(bytes: usize) -> usize {
    let step = if bytes <= 1 << 20 { 512 } else { bytes.next_power_of_two() / 8 };
    bytes.max(1).div_ceil(step) * step
}

impl Pool {
    pub(crate) fn new(driver: Arc<dyn Driver>, stream: RawStream, counts: Arc<Counts>) -> Self {
        let caching = !std::env::var("TREFOIL_POOL").is_ok_and(|v| v == "off" || v == "0");
        Pool { driver, stream, counts, caching, state: Mutex::default() }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|p| p.into_inner())
    }

    /// Memory for `bytes`, and the size of its class.
    pub(crate) fn alloc(&self, bytes: usize) -> Result<(RawMem, usize)> {
        let class = size_class(bytes);
        let mut s = self.lock();
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

    fn fresh(&self, s: &mut State, class: usize) -> Result<RawMem> {
        self.counts.allocations();
        match self.driver.alloc(class) {
            Err(GpuError::OutOfMemory { .. }) => {
                self.flush(s)?;
                self.driver.alloc(class).map_err(|e| match e {
                    GpuError::OutOfMemory { .. } => GpuError::OutOfMemory {
                        requested: class,
                        in_use: s.stats.in_use,
                        cached: s.stats.cached,
                    },
                    e => e,
                })
            }
            r => r,
        }
    }

    fn flush(&self, s: &mut State) -> Result<()> {
        self.driver.synchronize(self.stream)?;
        for (_, list) in std::mem::take(&mut s.free) {
            for mem in list {
                // SAFETY: the block is on the free list, so no buffer owns it, and the stream is idle.
                unsafe { self.driver.free(mem) };
            }
        }
        s.stats.cached = 0;
        Ok(())
    }

    /// Returns cached blocks to the driver.
    pub(crate) fn trim(&self) -> Result<()> {
        self.flush(&mut self.lock())
    }

    pub(crate) fn stats(&self) -> MemoryStats {
        self.lock().stats
    }
}

impl Pool {
    /// Counts a live block that came from another home.
    pub(crate) fn receive(&self, bytes: usize) {
        let mut s = self.lock();
        s.stats.in_use += bytes;
        s.stats.peak = s.stats.peak.max(s.stats.in_use);
    }
}

impl Home for Pool {
    fn release(&self, bytes: usize) {
        self.lock().stats.in_use -= bytes;
    }

    fn stream(&self) -> Option<RawStream> {
        Some(self.stream)
    }

    fn reclaim(&self, mem: Mem, bytes: usize) {
        let Mem::Device(raw) = mem else { return };
        let mut s = self.lock();
        s.stats.in_use -= bytes;
        if self.caching {
            s.stats.cached += bytes;
            s.free.entry(bytes).or_default().insert(raw);
        } else {
            if let Err(e) = self.driver.synchronize(self.stream) {
                log::warn!("waiting before a free failed: {e}");
            }
            // SAFETY: the last buffer of the block is gone and the stream is idle.
            unsafe { self.driver.free(raw) };
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        if let Err(e) = self.trim() {
            log::warn!("the pool could not be emptied: {e}");
        }
        // SAFETY: every handle and block of the stream is gone (they hold this pool), so nothing uses it.
        unsafe { self.driver.destroy_stream(self.stream) };
    }
}

#[cfg(test)]
mod tests {
    use super::size_class;

    #[test]
    fn classes() {
        assert_eq!(size_class(0), 512);
        assert_eq!(size_class(513), 1024);
        assert_eq!(size_class(1 << 20), 1 << 20);
        for n in [(1 << 20) + 1, 3_000_000, 1 << 30, (1 << 30) + 5] {
            let c = size_class(n);
            assert!(c >= n && c - n <= n / 4 && c.is_multiple_of(512), "{n} {c}");
            assert_eq!(size_class(c), c);
        }
    }
}
