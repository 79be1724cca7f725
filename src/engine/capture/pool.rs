//! The memory of a graph.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
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
    /// Calls that were recorded.
    calls: usize,
    /// Every allocation, in order.
    spans: Vec<Span>,
}

/// An allocation of a recording: a block, for as long as a buffer had it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) memory: RawMem,
    /// Bytes that were asked for.
    pub(super) bytes: usize,
    /// Calls that may use it, by their numbers.
    pub(super) calls: Range<usize>,
    /// Whether its buffer was gone at the end of the recording.
    pub(super) released: bool,
}

impl GraphPool {
    pub(super) fn new(main: Arc<Pool>) -> Self {
        GraphPool { main, state: Mutex::default() }
    }

    /// Memory for `bytes`, and the size of its class.
    pub(crate) fn alloc(&self, bytes: usize) -> Result<(RawMem, usize)> {
        let mut s = lock(&self.state);
        let (memory, size) = self.find(&mut s, bytes)?;
        let calls = s.calls..usize::MAX;
        s.spans.push(Span { memory, bytes, calls, released: false });
        Ok((memory, size))
    }

    /// A block that the recording has freed, or one of the handle's pool.
    fn find(&self, s: &mut State, bytes: usize) -> Result<(RawMem, usize)> {
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

    /// Counts a recorded call.
    pub(super) fn tick(&self) {
        lock(&self.state).calls += 1;
    }

    /// The allocations so far.
    pub(super) fn spans(&self) -> Vec<Span> {
        lock(&self.state).spans.clone()
    }

    /// A block of the handle's pool of this size, if any is needed, in exchange for those that are `gone`.
    pub(super) fn exchange(&self, gone: &BTreeSet<RawMem>, bytes: usize) -> Result<Option<RawMem>> {
        let arena = if bytes > 0 { Some(self.main.alloc(bytes)?) } else { None };
        let mut s = lock(&self.state);
        s.all.extend(arena);
        for &memory in gone {
            if let Some(size) = s.all.remove(&memory) {
                if let Some(free) = s.free.get_mut(&size) {
                    free.remove(&memory);
                }
                self.main.reclaim(Mem::Device(memory), size);
            }
        }
        Ok(arena.map(|(memory, _)| memory))
    }

    /// Bytes of these blocks.
    pub(super) fn bytes_of(&self, blocks: &BTreeSet<RawMem>) -> usize {
        lock(&self.state).all.iter().filter(|(m, _)| blocks.contains(m)).map(|(_, &size)| size).sum()
    }

    /// All blocks with their sizes.
    pub(super) fn blocks(&self) -> BTreeMap<RawMem, usize> {
        lock(&self.state).all.clone()
    }

    /// Bytes of all blocks.
    pub(super) fn bytes(&self) -> usize {
        lock(&self.state).all.values().sum()
    }
}

impl Reclaimer for GraphPool {
    fn reclaim(&self, mem: Mem, bytes: usize) {
        if let Mem::Device(raw) = mem {
            let mut s = lock(&self.state);
            let now = s.calls;
            if let Some(span) = s.spans.iter_mut().rev().find(|span| span.memory == raw) {
                (span.calls.end, span.released) = (now, true);
            }
            s.free.entry(bytes).or_default().insert(raw);
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
