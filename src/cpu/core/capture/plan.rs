//! Which calls of a recording are made, and in which memory.

use std::ops::Range;
use std::sync::{Arc, PoisonError};

use rustc_hash::{FxHashMap, FxHashSet};

use super::calls::Call;
use crate::buffer::{Access, Block};
use crate::dtype::DType;

/// What a call does with a block.
struct Use {
    block: u64,
    /// From the first element to behind the last.
    span: Range<usize>,
    writes: bool,
}

fn uses(call: &mut dyn Call) -> Vec<Use> {
    let mut all = vec![];
    call.each(&mut |v| {
        let span = v.view().layout().span();
        all.push(Use { block: v.block.id(), span, writes: v.access != Access::Read });
    });
    all
}

/// Of the blocks that the recording made those that only the calls hold.
pub(super) fn gone(calls: &mut [Box<dyn Call>], made: &FxHashSet<u64>) -> FxHashSet<u64> {
    // Views of the calls, and holders in all.
    let mut held: FxHashMap<u64, (usize, usize)> = FxHashMap::default();
    for call in calls {
        call.each(&mut |v| {
            let (views, holders) = held.entry(v.block.id()).or_default();
            (*views, *holders) = (*views + 1, Arc::strong_count(&v.block));
        });
    }
    held.retain(|id, (views, holders)| made.contains(id) && views == holders);
    held.into_keys().collect()
}

/// Removes the calls whose results nobody reads: all of them lie in blocks that are `gone`, where no later call that is made reads them. Gives their
/// number.
pub(super) fn leave_out_unread(calls: &mut Vec<Box<dyn Call>>, gone: &FxHashSet<u64>) -> usize {
    let mut wanted: FxHashMap<u64, Vec<Range<usize>>> = FxHashMap::default();
    let recorded = calls.len();
    let mut made = Vec::with_capacity(recorded);
    while let Some(mut call) = calls.pop() {
        let uses = uses(&mut *call);
        let meets = |u: &Use| {
            let later = wanted.get(&u.block).map(Vec::as_slice).unwrap_or_default();
            later.iter().any(|r| r.start < u.span.end && u.span.start < r.end)
        };
        if uses.iter().any(|u| u.writes && (!gone.contains(&u.block) || meets(u))) {
            // What is written may be read before: sums are added to it, parameters are changed.
            for u in uses.into_iter().filter(|u| gone.contains(&u.block)) {
                let later = wanted.entry(u.block).or_default();
                if !later.contains(&u.span) {
                    later.push(u.span);
                }
            }
            made.push(call);
        }
    }
    made.reverse();
    *calls = made;
    recorded - calls.len()
}

/// A block from the first call that uses it to the last.
struct Life {
    block: Arc<Block>,
    kind: (DType, usize),
    first: usize,
    last: usize,
}

/// Lets blocks that are `gone` lie in one, if they are of one dtype and size and no call of one's life is in the other's.
pub(super) fn share_memory(calls: &mut [Box<dyn Call>], gone: &FxHashSet<u64>) {
    let mut lives: Vec<(u64, Life)> = vec![];
    let mut places: FxHashMap<u64, usize> = FxHashMap::default();
    for (at, call) in calls.iter_mut().enumerate() {
        call.each(&mut |v| {
            let id = v.block.id();
            let Some(host) = v.block.host().filter(|_| gone.contains(&id)) else { return };
            let place = *places.entry(id).or_insert_with(|| {
                let kind = host.data.read().unwrap_or_else(PoisonError::into_inner).key();
                lives.push((id, Life { block: v.block.clone(), kind, first: at, last: at }));
                lives.len() - 1
            });
            lives[place].1.last = at;
        });
    }
    // In the order of their first calls, one behind another that has ended.
    let mut taken: FxHashMap<(DType, usize), Vec<Life>> = FxHashMap::default();
    let mut instead: FxHashMap<u64, Arc<Block>> = FxHashMap::default();
    for (id, life) in lives {
        let same = taken.entry(life.kind).or_default();
        match same.iter_mut().find(|l| l.last < life.first) {
            Some(before) => {
                before.last = life.last;
                instead.insert(id, before.block.clone());
            }
            None => same.push(life),
        }
    }
    calls.iter_mut().for_each(|call| super::exchange(&mut **call, &instead));
}
