//! Which calls of a recording may run at the same time.
//!
//! The calls are spread over a few streams. One that must come after a call of another stream waits for an event behind that call; what two calls share
//! decides, as for fusion. A driver that records several streams into one graph makes branches of it.

use rustc_hash::FxHashMap;

use super::fusion::{Access, Item, Spot};

/// Streams of a graph at most.
pub(super) const MOST_LANES: usize = 4;

/// Where a call runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Lane {
    /// The stream.
    pub(super) stream: usize,
    /// Calls of other streams that must be done.
    pub(super) waits: Vec<usize>,
    /// Whether another stream waits for it.
    pub(super) awaited: bool,
}

/// What was done to each memory by calls that later ones may have to wait for.
#[derive(Default)]
struct History {
    of: FxHashMap<Spot, Vec<(usize, Access)>>,
    /// The last call that may have used everything; it comes after all before it.
    barrier: Option<usize>,
}

impl History {
    /// The calls before `at` that it must come after.
    fn before(&mut self, at: usize, item: &Item) -> Vec<usize> {
        if item.everything {
            self.of.clear();
            self.barrier = Some(at);
            return (0..at).collect();
        }
        let mut before: Vec<usize> = self.barrier.into_iter().collect();
        for a in &item.uses {
            let list = self.of.entry(a.spot).or_default();
            before.extend(list.iter().filter(|(_, b)| a.conflicts(b)).map(|(i, _)| *i));
            // Who comes after this write comes after what it covers.
            let covered =
                |b: &Access| a.write && a.bytes.start <= b.bytes.start && b.bytes.end <= a.bytes.end;
            list.retain(|(_, b)| !covered(b));
            list.push((at, a.clone()));
        }
        before.retain(|&i| i != at);
        before.sort_unstable();
        before.dedup();
        before
    }
}

/// Spreads the calls over at most `most` streams.
pub(super) fn lanes(items: &[Item], most: usize) -> Vec<Lane> {
    let mut history = History::default();
    let (mut lanes, mut tails) = (Vec::<Lane>::new(), Vec::<usize>::new());
    // For each call and stream how many calls, by number, are known to be done before it ends.
    let mut done: Vec<Vec<usize>> = vec![];
    for (at, item) in items.iter().enumerate() {
        let before = history.before(at, item);
        let behind = |&s: &usize| before.contains(&tails[s]);
        let stream = match (0..tails.len()).filter(behind).max_by_key(|&s| tails[s]) {
            Some(s) => s,
            None if tails.len() < most => tails.len(),
            None => (0..tails.len()).min_by_key(|&s| tails[s]).unwrap_or(0),
        };
        let mut known = tails.get(stream).map_or_else(|| vec![0; most], |&t| done[t].clone());
        let mut waits = vec![];
        // The latest first: what it has waited for is known with it.
        for &i in before.iter().rev() {
            let other: &Lane = &lanes[i];
            if other.stream != stream && known[other.stream] <= i {
                known.iter_mut().zip(&done[i]).for_each(|(k, d)| *k = (*k).max(*d));
                waits.push(i);
            }
        }
        waits.iter().for_each(|&i| lanes[i].awaited = true);
        known[stream] = at + 1;
        done.push(known);
        if stream == tails.len() {
            tails.push(at)
        } else {
            tails[stream] = at
        }
        lanes.push(Lane { stream, waits, awaited: false });
    }
    lanes
}
