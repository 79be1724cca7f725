//! Fewer calls for the same bits: recorded calls whose results nobody reads are left out, chains and trees of elementwise calls become one kernel, and
//! what the recording allocated lies in one block.
//!
//! All of it is decided from what the calls read and write, byte by byte where a call is understood and by whole blocks where it is not. A value is not
//! stored if its buffer was gone at the end of the recording and no other call reads it; a call that finds addresses in a table counts as a reader of
//! all that lives then.

mod access;
mod arena;
mod group;
mod member;
mod text;

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::Ordering;

use rustc_hash::FxHashMap;

use self::access::Uses;
pub(super) use self::access::{Access, Space, Spot};
use self::arena::Life;
use self::group::{Group, groups};
use self::text::Text;
use super::queued::{About, Place, Queued};
use crate::driver::{RawFunction, RawMem};
use crate::dtype::DType;
use crate::engine::Engine;
use crate::engine::launch::Grid;
use crate::error::Result;
use crate::ops::core::{GraphEdge, Touch};

/// A call, and what it uses.
pub(super) struct Item {
    pub(super) call: Queued,
    pub(super) uses: Vec<Access>,
    /// It may use everything.
    pub(super) everything: bool,
}

/// Reads of each memory: the number of the call, and the bytes.
type Reads = FxHashMap<Spot, Vec<(usize, Range<u64>)>>;

fn note_reads(reads: &mut Reads, at: usize, list: &[Access]) {
    for a in list.iter().filter(|a| a.read) {
        reads.entry(a.spot).or_default().push((at, a.bytes.clone()));
    }
}

/// Whether one of the reads that `counts` sees what was written.
fn is_read(reads: &Reads, written: &Access, counts: impl Fn(usize) -> bool) -> bool {
    let overlaps = |r: &Range<u64>| r.start < written.bytes.end && written.bytes.start < r.end;
    let all = reads.get(&written.spot).into_iter().flatten();
    matches!(written.spot, Spot::Outside(_)) || all.into_iter().any(|(at, r)| counts(*at) && overlaps(r))
}

/// What is left of the calls without those whose results nobody outside sees, and none of the others reads.
fn without_unread(calls: Vec<Uses>) -> Vec<Option<Uses>> {
    let mut reads = Reads::default();
    let mut left: Vec<Option<Uses>> = calls.into_iter().map(Some).collect();
    for (at, slot) in left.iter_mut().enumerate().rev() {
        let Some(uses) = slot else { continue };
        let mut writes = uses.list.iter().filter(|a| a.write).peekable();
        if uses.everything || writes.peek().is_none() || writes.any(|a| is_read(&reads, a, |_| true)) {
            note_reads(&mut reads, at, &uses.list);
        } else {
            *slot = None;
        }
    }
    left
}

/// A group with its kernel.
struct Fused {
    members: Vec<usize>,
    text: Text,
    function: RawFunction,
}

impl Group {
    /// What the group computes; it stores what `is_read` by others. `None` where it stores nothing.
    fn text(&self, calls: &[Option<Uses>], is_read: impl Fn(&Access) -> bool) -> Option<Text> {
        let member = |at: usize| calls[at].as_ref().and_then(|u| Some((u.member.as_ref()?, &u.list)));
        let mut text = Text::new(*self.units.first()?);
        for &at in &self.members {
            let (m, list) = member(at)?;
            text.push(m, list);
        }
        text.pointers.iter_mut().filter(|p| p.stored).for_each(|p| p.stored = is_read(&p.access));
        text.pointers.iter().any(|p| p.stored).then_some(text)
    }
}

/// The groups and their kernels, by the numbers of their last calls.
fn kernels(engine: &Engine, calls: &[Option<Uses>]) -> FxHashMap<usize, Fused> {
    let (groups, mut reads) = (groups(calls), Reads::default());
    let mut moved: Vec<usize> = (0..calls.len()).collect();
    for g in &groups {
        g.members.iter().for_each(|&m| moved[m] = g.members[g.members.len() - 1]);
    }
    for (at, uses) in calls.iter().enumerate() {
        uses.iter().for_each(|u| note_reads(&mut reads, at, &u.list));
    }
    let mut texts = vec![];
    for g in groups {
        let last = g.members[g.members.len() - 1];
        let text = g.text(calls, |a| is_read(&reads, a, |at| moved[at] > last));
        texts.extend(text.map(|text| (g.members, text)));
    }
    compiled(engine, texts)
}

/// All kernels of a storage type are one unit. Where it does not compile, its calls stay apart.
fn compiled(engine: &Engine, texts: Vec<(Vec<usize>, Text)>) -> FxHashMap<usize, Fused> {
    let mut units = FxHashMap::<DType, Vec<String>>::default();
    let mut numbers = vec![];
    for (_, text) in &texts {
        let (unit, kernel) = (units.entry(text.unit).or_default(), text.kernel());
        numbers.push(unit.iter().position(|k| *k == kernel).unwrap_or(unit.len()));
        if numbers.last() == Some(&unit.len()) {
            unit.push(kernel);
        }
    }
    let mut functions = FxHashMap::default();
    for (dtype, kernels) in units {
        match engine.generated(dtype, &kernels) {
            Ok(list) => drop(functions.insert(dtype, list)),
            Err(e) => log::warn!("{}: calls in {dtype} stay apart: {e}", engine.device_caps().id),
        }
    }
    let mut fused = FxHashMap::default();
    for ((members, text), number) in texts.into_iter().zip(numbers) {
        if let (Some(list), Some(&last)) = (functions.get(&text.unit), members.last()) {
            fused.insert(last, Fused { members, text, function: list[number] });
        }
    }
    fused
}

enum Step {
    /// The call of this number.
    Call(usize),
    Kernel(Fused),
}

/// What to make of a recording.
pub(super) struct Plan {
    steps: Vec<Step>,
    /// What each step uses, and whether it may use everything.
    uses: Vec<(Vec<Access>, bool)>,
    /// Calls that are left out.
    pub(super) unread: usize,
    /// Calls that are part of a kernel of several.
    pub(super) fused: usize,
    /// Blocks that nothing uses any more.
    pub(super) gone: BTreeSet<RawMem>,
    /// Bytes of the block that serves in their stead.
    pub(super) arena: usize,
    /// Where the allocations lie in it.
    offsets: FxHashMap<usize, u64>,
}

impl Plan {
    /// `None` where a call uses memory in a way that is not understood. `slack`: calls for which memory is not used again behind its last reader.
    pub(super) fn new(engine: &Engine, calls: &[Queued], space: &Space, slack: usize) -> Option<Plan> {
        let uses: Option<Vec<_>> = calls.iter().enumerate().map(|(at, c)| space.uses(at, c)).collect();
        let uses = without_unread(uses?);
        let unread = uses.iter().filter(|u| u.is_none()).count();
        let mut kernels = kernels(engine, &uses);
        let members: BTreeSet<usize> = kernels.values().flat_map(|k| k.members.iter().copied()).collect();
        let mut plan = Plan {
            steps: vec![],
            uses: vec![],
            unread,
            fused: members.len(),
            gone: BTreeSet::new(),
            arena: 0,
            offsets: FxHashMap::default(),
        };
        for (at, uses) in uses.into_iter().enumerate() {
            if let Some(k) = kernels.remove(&at) {
                plan.uses.push((k.text.accesses(), false));
                plan.steps.push(Step::Kernel(k));
            } else if let (Some(uses), false) = (uses, members.contains(&at)) {
                plan.uses.push((uses.list, uses.everything));
                plan.steps.push(Step::Call(at));
            }
        }
        plan.place(space, slack);
        Some(plan)
    }

    /// Finds room in one block for the allocations that may move.
    fn place(&mut self, space: &Space, slack: usize) {
        let mut lives = std::collections::BTreeMap::<usize, Life>::new();
        for (step, (uses, _)) in self.uses.iter().enumerate() {
            for i in uses.iter().filter_map(|a| a.spot.own()) {
                let new = || Life { bytes: space.spans[i].bytes, calls: step..step };
                lives.entry(i).or_insert_with(new).calls.end = step + 1 + slack;
            }
        }
        let list: Vec<Life> = lives.values().cloned().collect();
        let (offsets, bytes) = arena::place(&list);
        self.offsets = lives.into_keys().zip(offsets.into_iter().map(|at| at as u64)).collect();
        self.arena = bytes;
        let blocks = |movable: bool| {
            let spans = space.spans.iter().zip(&space.movable).filter(move |(_, m)| **m == movable);
            spans.map(|(s, _)| s.memory).collect::<BTreeSet<_>>()
        };
        self.gone = &blocks(true) - &blocks(false);
    }

    /// The calls as they are made now. `arena`: the block that serves in the stead of those that are gone.
    pub(super) fn apply(
        self,
        engine: &Engine,
        calls: Vec<Queued>,
        space: &Space,
        arena: Option<RawMem>,
    ) -> Vec<Item> {
        let offset = |spot: Spot| Some((arena?, *self.offsets.get(&spot.own()?)?));
        let mut calls: Vec<Option<Queued>> = calls.into_iter().map(Some).collect();
        let names: Vec<Box<str>> = calls.iter().flatten().map(|c| c.name().into()).collect();
        let mut items = vec![];
        for (step, (uses, everything)) in self.steps.into_iter().zip(self.uses) {
            let call = match step {
                Step::Call(at) => calls[at].take().map(|mut call| {
                    call.places(&mut |place| {
                        let moved = space.spot(at, place.0).and_then(offset);
                        *place = moved.map_or(*place, |(arena, o)| (arena, o + place.1));
                    });
                    call
                }),
                Step::Kernel(k) => {
                    let locate =
                        |a: &Access, p: Place| offset(a.spot).map_or(p, |(arena, o)| (arena, o + p.1));
                    let (args, outputs) = k.text.args(locate);
                    let parts: Vec<&str> = k.members.iter().map(|&m| &*names[m]).collect();
                    let name = format!("fused({})", parts.join(", ")).into();
                    let about = About { known: None, outputs };
                    let grid = engine.geometry(Grid::Stride(k.text.items()));
                    grid.map(|config| Queued::Launch { f: k.function, name, config, args, about })
                }
            };
            let uses = uses.into_iter().map(|a| match (offset(a.spot), a.spot.own()) {
                (Some((arena, o)), Some(i)) => {
                    let end = a.bytes.end.min(space.spans[i].bytes as u64);
                    Access { spot: Spot::Outside(arena), bytes: o + a.bytes.start..o + end, ..a }
                }
                _ => a,
            });
            items.extend(call.map(|call| Item { call, uses: uses.collect(), everything }));
        }
        items
    }
}

impl Spot {
    fn own(self) -> Option<usize> {
        match self {
            Spot::Own(i) => Some(i),
            Spot::Outside(_) => None,
        }
    }
}

/// The calls as they were recorded.
pub(super) fn as_recorded(calls: Vec<Queued>, space: &Space) -> Vec<Item> {
    let item = |(at, call): (usize, Queued)| {
        let uses = space.uses(at, &call);
        let everything = uses.as_ref().is_none_or(|u| u.everything);
        let uses = uses.map_or_else(Vec::new, |u| u.list);
        Item { uses: uses.into_iter().map(|a| space.placed(a)).collect(), call, everything }
    };
    calls.into_iter().enumerate().map(item).collect()
}

/// What the calls read of what others wrote; `memory`: sizes of what holds values.
pub(super) fn edges(items: &[Item], memory: &FxHashMap<RawMem, u64>) -> Vec<GraphEdge> {
    let touch = |a: &Access| {
        let Spot::Outside(raw) = a.spot else { return None };
        let bytes = a.bytes.start..a.bytes.end.min(*memory.get(&raw)?);
        Some(Touch { memory: raw, bytes, read: a.read, write: a.write })
    };
    let all = || memory.iter().map(|(&memory, &n)| Touch { memory, bytes: 0..n, read: true, write: true });
    let touches = |item: &Item| match item.everything {
        true => all().collect(),
        false => item.uses.iter().filter_map(touch).collect::<Vec<_>>(),
    };
    crate::ops::core::edges(items.iter().map(touches))
}

impl Engine {
    /// The functions of generated kernels, which are compiled together.
    fn generated(&self, dtype: DType, kernels: &[String]) -> Result<Vec<RawFunction>> {
        let named = kernels.iter().enumerate().map(|(i, k)| k.replacen(text::NAME, &format!("fused{i}"), 1));
        let text: String = std::iter::once(text::HEADER.to_string()).chain(named).collect();
        let (d, mut compiled) = (&self.inner.device, 0);
        let list = d.programs.generated(&*d.driver, dtype, &text, kernels.len(), &mut compiled);
        d.counts.compiles.fetch_add(compiled, Ordering::Relaxed);
        list
    }
}
