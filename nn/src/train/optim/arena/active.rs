//! Which tensors take part in a step, and its operands.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use trefoil::ops::optimizer::{ParamSlot, STATES};

use super::{ALIGN, Arena, Entry, tied_to};
use crate::core::error::Result;
use crate::core::tensor::Tensor;
use crate::train::optim::collected::collect_in;
use crate::train::optim::recorded::Missed;

/// Tensors that a step updates, as ranges of the arena, with how many steps they missed before.
pub(crate) struct Active {
    pub(crate) missed: u64,
    pub(super) ranges: Vec<(usize, usize)>,
}

/// Ranges in their order, each once.
pub(super) fn distinct(mut ranges: Vec<(usize, usize)>) -> Vec<(usize, usize)> {
    ranges.sort_unstable();
    ranges.dedup();
    ranges
}

/// Ranges that follow each other as one; gaps between tensors belong to the one before.
pub(super) fn merged(ranges: &[(usize, usize)]) -> Vec<(usize, usize)> {
    let mut out: Vec<(usize, usize)> = vec![];
    for &(start, len) in ranges {
        let len = len.next_multiple_of(ALIGN);
        match out.last_mut() {
            Some((s, n)) if *s + *n == start => *n += len,
            _ => out.push((start, len)),
        }
    }
    out
}

impl Arena {
    /// Ranges of the tensors; tied parameters have one.
    pub(super) fn ranges(&self) -> Vec<(usize, usize)> {
        distinct(self.entries.iter().map(Entry::range).collect())
    }

    /// Whether a parameter got a gradient since the last clearing. One that was frozen and is trained again collects in the arena from now on.
    fn is_filled(&self, e: &Entry) -> Result<bool> {
        let t = e.param.get();
        let Some(edge) = t.edge() else { return Ok(false) };
        match edge.node.is_filled() {
            Some(filled) => Ok(filled),
            None => collect_in(&self.device, &self.grads, e.start, &e.param, tied_to(&self.entries, e)),
        }
    }

    /// Values and gradients of the tensors that got some, tied parameters once.
    pub(crate) fn filled(&self) -> Result<Vec<[Tensor; 2]>> {
        let mut all: Vec<(usize, [Tensor; 2])> = vec![];
        for e in &self.entries {
            if self.is_filled(e)? && !all.iter().any(|(start, _)| *start == e.start) {
                let values = e.param.get().detach();
                let grad = Tensor::over(&self.device, &self.grads, e.start, values.shape())?;
                all.push((e.start, [values, grad]));
            }
        }
        Ok(all.into_iter().map(|(_, pair)| pair).collect())
    }

    /// The tensors that got gradients, by how many steps they missed before.
    pub(crate) fn active(&self) -> Result<Vec<Active>> {
        let mut groups: BTreeMap<u64, Vec<(usize, usize)>> = BTreeMap::new();
        for e in &self.entries {
            if self.is_filled(e)? {
                groups.entry(e.missed()).or_default().push(e.range());
            }
        }
        let group = |(missed, ranges)| Active { missed, ranges: distinct(ranges) };
        Ok(groups.into_iter().map(group).collect())
    }

    /// Counts a step for the tensors that took no part in it, and notes that the others changed in place.
    pub(crate) fn stepped(&mut self, active: &[Active]) {
        for e in &mut self.entries {
            let took_part = |a: &Active| a.ranges.iter().any(|(start, _)| *start == e.start);
            match active.iter().any(took_part) {
                true => e.storage.touch(),
                false => drop(e.missed.fetch_add(1, Ordering::Relaxed)),
            }
        }
    }

    /// How many steps the parameters of some tensors missed, shared with them; those of all others.
    pub(crate) fn missed_of(&self, active: &[Active]) -> [Vec<Missed>; 2] {
        let takes_part =
            |e: &&Entry| active.iter().any(|a| a.ranges.iter().any(|(start, _)| *start == e.start));
        let (part, rest): (Vec<&Entry>, Vec<&Entry>) = self.entries.iter().partition(takes_part);
        [part, rest].map(|list| list.into_iter().map(|e| e.missed.clone()).collect())
    }

    /// Steps that each parameter missed, where it missed any.
    pub(crate) fn missed(&self) -> impl Iterator<Item = (&str, u64)> {
        self.entries.iter().map(|e| (e.name.as_str(), e.missed())).filter(|(_, missed)| *missed > 0)
    }

    /// Sets the steps that each parameter missed.
    pub(crate) fn set_missed(&mut self, missed: impl Fn(&str) -> u64) {
        self.entries.iter().for_each(|e| e.missed.store(missed(&e.name), Ordering::Relaxed));
    }

    /// Operands of a step of some tensors: what lies together as one, or each parameter as one for rules that look at a tensor's norm.
    pub(crate) fn slots(&self, active: &[Active], per_tensor: bool) -> Result<Vec<ParamSlot<'_>>> {
        let mut ranges: Vec<_> = active.iter().flat_map(|a| a.ranges.iter().copied()).collect();
        ranges.sort_unstable();
        let ranges = if per_tensor { ranges } else { merged(&ranges) };
        let slot = |(start, len): (usize, usize)| {
            let mut state = [const { None }; STATES];
            for (out, buffer) in state.iter_mut().zip(&self.states) {
                *out = Some(buffer.alias_mut().range(start, len)?);
            }
            let copy = match &self.masters {
                Some(_) => Some(self.values.alias_mut().range(start, len)?),
                None => None,
            };
            let w = self.weights().alias_mut().range(start, len)?;
            Ok(ParamSlot::new(w, self.grads.view().range(start, len)?).state(state).copy(copy))
        };
        ranges.into_iter().map(slot).collect()
    }
}
