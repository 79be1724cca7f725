//! The memory of a graph.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use super::super::lock;
use super::super::pool::{Pool, size_class};
use crate::buffer::{Mem, Reclaimer};
use crate::driver::{Driver, RawMem, RawStream};
use crate::error::Result;

/// Blocks that a recording allocates. They come from the handle's pool and stay here, free or not, until the graph and every buffer on them are gone:
/// each replay uses them again.
pub(crate) struct GraphPool {
    main: Arc<Pool>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Blocks that the recording has freed, by size: later calls of the recording may have them.
    free: BTreeMap<usize, BTreeSet<RawMem>>,
    /// All blocks with their sizes.
    all: BTreeMap<RawMem, usize>,
}

impl GraphPool {
    pub(super) fn new(main: Arc<Pool>) -> Self {
        GraphPool { main, state: Mutex::default() }
    }

    /// Memory for `bytes`, and the size of its class.
    pub(crate) fn alloc(&self, bytes: usize) -> Result<(RawMem, usize)> {
        let mut s = lock(&self.state);
        if let Some(class) = size_class(bytes) {
            let fit = s.free.range(class..=class + class / 4).find(|(_, v)| !v.is_empty()).map(|(&k, _)| k);
            if let Some(found) = fit.and_then(|k| Some((s.free.get_mut(&k)?.pop_first()?, k))) {
                return Ok(found);
            }
        }
        let (memory, size) = self.main.alloc(bytes)?;
        s.all.insert(memory, size);
        Ok((memory, size))
    }

    pub(super) fn owns(&self, memory: RawMem) -> bool {
        lock(&self.state).all.contains_key(&memory)
    }

    /// Bytes of all blocks.
    pub(super) fn bytes(&self) -> usize {
        lock(&self.state).all.values().sum()
    }
}

impl Reclaimer for GraphPool {
    fn reclaim(&self, mem: Mem, bytes: usize) {
        if let Mem::Device(raw) = mem {
            lock(&self.state).free.entry(bytes).or_default().insert(raw);
        }
    }

    fn release(&self, bytes: usize) {
        self.main.release(bytes);
    }

    fn stream(&self) -> Option<RawStream> {
        self.main.stream()
    }

    fn driver(&self) -> Option<&Arc<dyn Driver>> {
        self.main.driver()
    }

    fn lends(&self) -> bool {
        true
    }
}

impl Drop for GraphPool {
    fn drop(&mut self) {
        for (&memory, &bytes) in &lock(&self.state).all {
            self.main.reclaim(Mem::Device(memory), bytes);
        }
    }
}
