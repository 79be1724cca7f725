//! Which calls read what others wrote.

use std::collections::BTreeMap;
use std::hash::Hash;
use std::ops::Range;

use rustc_hash::FxHashMap;

use crate::ops::core::GraphEdge;

/// What a call does with memory that is known as an `M`.
pub(crate) struct Touch<M> {
    pub(crate) memory: M,
    pub(crate) bytes: Range<u64>,
    pub(crate) read: bool,
    pub(crate) write: bool,
}

/// What each of some calls reads of what those before it wrote last.
pub(crate) fn edges<M: Hash + Eq + Copy>(calls: impl IntoIterator<Item = Vec<Touch<M>>>) -> Vec<GraphEdge> {
    let mut writers = Writers(FxHashMap::default());
    let mut edges = vec![];
    for (to, touches) in calls.into_iter().enumerate() {
        edges.extend(writers.of(&touches).into_iter().map(|(from, bytes)| GraphEdge { from, to, bytes }));
        touches.into_iter().filter(|t| t.write).for_each(|t| writers.write(t, to));
    }
    edges
}

/// The last writer of each part of each memory.
struct Writers<M>(FxHashMap<M, Vec<(Range<u64>, usize)>>);

impl<M: Hash + Eq + Copy> Writers<M> {
    /// Who wrote how many bytes of what is read.
    fn of(&self, touches: &[Touch<M>]) -> BTreeMap<usize, u64> {
        let mut reads = FxHashMap::<M, Vec<Range<u64>>>::default();
        for t in touches.iter().filter(|t| t.read) {
            reads.entry(t.memory).or_default().push(t.bytes.clone());
        }
        let mut from = BTreeMap::new();
        for (memory, mut list) in reads {
            list.sort_unstable_by_key(|r| r.start);
            for (part, by) in self.0.get(&memory).into_iter().flatten() {
                let bytes = covered(part, &list);
                if bytes > 0 {
                    *from.entry(*by).or_default() += bytes;
                }
            }
        }
        from
    }

    fn write(&mut self, t: Touch<M>, by: usize) {
        let parts = self.0.entry(t.memory).or_default();
        // What is left of earlier writes lies before and behind this one.
        let left = |(part, by): (Range<u64>, usize)| {
            [part.start..part.end.min(t.bytes.start), part.start.max(t.bytes.end)..part.end].map(|p| (p, by))
        };
        *parts = std::mem::take(parts).into_iter().flat_map(left).filter(|(p, _)| !p.is_empty()).collect();
        parts.push((t.bytes, by));
    }
}

/// Bytes of `part` that lie in some of the ranges, which are sorted.
fn covered(part: &Range<u64>, ranges: &[Range<u64>]) -> u64 {
    let (mut at, mut sum) = (part.start, 0);
    for r in ranges {
        let (start, end) = (r.start.max(at), r.end.min(part.end));
        if start < end {
            (at, sum) = (end, sum + (end - start));
        }
    }
    sum
}
