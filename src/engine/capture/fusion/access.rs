//! What recorded calls read and write.

use std::ops::Range;

use rustc_hash::{FxHashMap, FxHashSet};

use super::super::pool::Span;
use super::super::queued::{Place, Queued, QueuedBlas, Value};
use super::member::Member;
use crate::driver::{Arg, ConvPass, FftKind, RawMem};

/// Memory as a call sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(in crate::engine::capture) enum Spot {
    /// Memory that stays where it is.
    Outside(RawMem),
    /// An allocation of the recording, by its number, which may lie anywhere.
    Own(usize),
}

/// Bytes that a call reads or writes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::engine::capture) struct Access {
    pub(in crate::engine::capture) spot: Spot,
    pub(in crate::engine::capture) bytes: Range<u64>,
    pub(in crate::engine::capture) read: bool,
    pub(in crate::engine::capture) write: bool,
}

impl Access {
    pub(super) fn overlaps(&self, other: &Access) -> bool {
        self.spot == other.spot && self.bytes.start < other.bytes.end && other.bytes.start < self.bytes.end
    }

    /// Whether the order of the two matters.
    pub(in crate::engine::capture) fn conflicts(&self, other: &Access) -> bool {
        (self.write || other.write) && self.overlaps(other)
    }
}

/// What is known of a recorded call.
#[derive(Debug)]
pub(in crate::engine::capture) struct Uses {
    pub(super) list: Vec<Access>,
    /// It finds addresses in a table: it may read and write all memory that is there.
    pub(super) everything: bool,
    /// What it computes, if it is elementwise.
    pub(super) member: Option<Member>,
}

/// The memory of a recording.
pub(in crate::engine::capture) struct Space {
    pub(super) spans: Vec<Span>,
    /// Whether an allocation may lie elsewhere: its buffer is gone, and no table has its address.
    pub(super) movable: Vec<bool>,
    /// Numbers of the allocations of each block.
    of: FxHashMap<RawMem, Vec<usize>>,
    tables: FxHashSet<RawMem>,
}

/// All of a block.
const WHOLE: Range<u64> = 0..u64::MAX;

impl Space {
    pub(in crate::engine::capture) fn new(
        calls: &[Queued],
        spans: Vec<Span>,
        tables: FxHashSet<RawMem>,
    ) -> Self {
        let mut of = FxHashMap::<_, Vec<_>>::default();
        for (i, span) in spans.iter().enumerate() {
            of.entry(span.memory).or_default().push(i);
        }
        let movable = spans.iter().map(|s| s.released).collect();
        let mut space = Space { spans, movable, of, tables };
        let addressed: Vec<usize> = (0..calls.len()).filter(|&at| space.addresses(&calls[at])).collect();
        for (span, movable) in space.spans.iter().zip(&mut space.movable) {
            *movable &= !addressed.iter().any(|at| span.calls.contains(at));
        }
        space
    }

    /// Whether a call finds addresses in a table.
    fn addresses(&self, call: &Queued) -> bool {
        let table = |v: &Value| matches!(v, Value::Plain(Arg::Mem(Some((m, _)))) if self.tables.contains(m));
        matches!(call, Queued::Launch { args, .. } if args.iter().any(table))
    }

    /// The memory that call number `at` knows as `memory`; `None` for a block of the recording that no buffer had then.
    pub(super) fn spot(&self, at: usize, memory: RawMem) -> Option<Spot> {
        let Some(own) = self.of.get(&memory) else { return Some(Spot::Outside(memory)) };
        let i = own.iter().rev().copied().find(|&i| self.spans[i].calls.contains(&at))?;
        Some(if self.movable[i] { Spot::Own(i) } else { Spot::Outside(memory) })
    }

    /// An access to an allocation where the recording had it.
    pub(super) fn placed(&self, a: Access) -> Access {
        match a.spot {
            Spot::Outside(_) => a,
            Spot::Own(i) => {
                let Span { memory, bytes, .. } = self.spans[i];
                let end = a.bytes.end.min(bytes as u64);
                Access { spot: Spot::Outside(memory), bytes: a.bytes.start..end, ..a }
            }
        }
    }

    /// What call number `at` uses; `None` where that cannot be told.
    pub(super) fn uses(&self, at: usize, call: &Queued) -> Option<Uses> {
        let mut uses = Uses { list: vec![], everything: false, member: None };
        let mut add = |memory: RawMem, bytes: Range<u64>, read: bool, write: bool| {
            let spot = self.spot(at, memory)?;
            uses.list.push(Access { spot, bytes, read, write });
            Some(())
        };
        match call {
            Queued::Launch { args, about, .. } => {
                let member = about.known.and_then(|known| Member::of(&known, args));
                if let Some(m) = &member {
                    for o in &m.inputs {
                        add(o.place.0, o.bytes.clone(), true, false)?;
                    }
                    for o in m.outputs.iter().flatten() {
                        add(o.place.0, o.bytes.clone(), false, true)?;
                    }
                    if let Some((memory, at)) = m.random.as_ref().and_then(|r| r.more) {
                        add(memory, at..at + 8, true, false)?;
                    }
                    uses.member = member;
                    return Some(uses);
                }
                for (i, arg) in args.iter().enumerate() {
                    match arg {
                        Value::Plain(Arg::Mem(Some((memory, _)))) => {
                            add(*memory, WHOLE, true, about.outputs >> i.min(63) & 1 == 1)?;
                        }
                        Value::Plain(Arg::Map(map)) => add(map.place.0, WHOLE, true, false)?,
                        _ => {}
                    }
                }
                uses.everything = self.addresses(call);
            }
            Queued::Copy { from, to, bytes } => {
                add(from.0, from.1..from.1 + *bytes as u64, true, false)?;
                add(to.0, to.1..to.1 + *bytes as u64, false, true)?;
            }
            Queued::Blas(q) => {
                for (place, bytes, read, write) in blas(q) {
                    add(place.0, bytes, read, write)?;
                }
            }
            Queued::Conv(q) => {
                let written = match q.problem.pass {
                    ConvPass::Forward => 2,
                    ConvPass::Input => 0,
                    ConvPass::Weight => 1,
                };
                for (i, &(memory, _)) in q.tensors.iter().enumerate() {
                    add(memory, WHOLE, true, i == written)?;
                }
                q.workspace.map_or(Some(()), |w| add(w.0, WHOLE, false, true))?;
            }
            Queued::Attention(q) => {
                let inputs = if q.problem.gradients.is_some() { 6 } else { 3 };
                for (i, &(memory, _)) in q.tensors.iter().enumerate() {
                    add(memory, WHOLE, true, i >= inputs)?;
                }
                q.workspace.map_or(Some(()), |w| add(w.0, WHOLE, false, true))?;
            }
            Queued::Fft(q) => {
                add(q.x.0, WHOLE, true, q.problem.kind == FftKind::BinsToReal)?;
                // One call of several writes a part.
                add(q.y.0, WHOLE, true, true)?;
                q.workspace.map_or(Some(()), |w| add(w.0, WHOLE, false, true))?;
            }
        }
        Some(uses)
    }
}

/// Operands of a product: place, bytes, whether they are read and written.
fn blas(q: &QueuedBlas) -> Vec<(Place, Range<u64>, bool, bool)> {
    let p = &q.problem;
    let rows = [if p.trans_a { p.k } else { p.m }, if p.trans_b { p.n } else { p.k }, p.m, p.m];
    let cols = [if p.trans_a { p.m } else { p.k }, if p.trans_b { p.k } else { p.n }, p.n, p.n];
    let types = [p.dtype, p.dtype, p.out_dtype, p.out_dtype];
    let mut list = vec![];
    for i in 0..4 {
        let batches = p.batch.saturating_sub(1) * p.batch_stride[i];
        let elements = batches + rows[i].saturating_sub(1) * p.ld[i] + cols[i];
        let (place, bytes) = (q.matrices[i], (elements * types[i].size()) as u64);
        // C counts where it is added.
        if i != 2 || q.beta != 0.0 {
            list.push((place, place.1..place.1 + bytes, i != 3, i == 3));
        }
    }
    if let Some(bias) = q.bias {
        list.push((bias, bias.1..bias.1 + (p.n * p.dtype.size()) as u64, true, false));
    }
    if let Some((memory, at, bytes)) = q.workspace {
        list.push(((memory, at), at..at + bytes as u64, false, true));
    }
    list
}
