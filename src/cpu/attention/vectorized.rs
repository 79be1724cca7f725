//! Attention in f32 by tiles of queries and keys, without a matrix of all scores (Dao, 2023, arXiv 2307.08691).

use std::ops::Range;
use std::sync::RwLockReadGuard;

use rayon::prelude::*;

use super::{Dropout, Rules, Span, chunks};
use crate::buffer::{HostData, View};
use crate::cpu::matmul::{Place, product};
use crate::cpu::scratch::*;
use crate::cpu::vector::math::{exp, ln, tanh};
use crate::cpu::vector::{self, Narrow, row, simd, simd_widest, with_narrow};
use crate::cpu::{HostElement, Kernels, gather, read, wrong_storage};
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::attention::*;

/// Queries and keys of a tile.
const QUERIES: usize = 64;
const KEYS: usize = 64;
/// Tiles, or heads of keys, that a thread takes at once: few, so that none waits long for another's last.
const TASK: usize = 4;

/// Blocks of operands, each locked once.
struct Blocks<'a>(Vec<(u64, RwLockReadGuard<'a, HostData>)>);

impl<'a> Blocks<'a> {
    fn lock(op: &'static str, views: &[View<'a>]) -> Result<Self> {
        let mut all: Vec<(u64, _)> = with_capacity(views.len())?;
        for v in views {
            let id = v.block().id();
            if all.iter().all(|b| b.0 != id) {
                all.try_push((id, read(op, v)?))?;
            }
        }
        Ok(Blocks(all))
    }

    /// A tensor [B, H, L, D] of the locked ones.
    fn heads<T: HostElement>(&self, op: &'static str, v: &View<'_>) -> Result<Heads<'_, T>> {
        let held = self.0.iter().find(|b| b.0 == v.block().id());
        let data = held.and_then(|b| T::slice(&b.1)).ok_or_else(|| wrong_storage(op, v.dtype()))?;
        let (l, s) = (v.layout(), v.layout().strides());
        Ok(Heads { data, at: l.offset(), steps: [s[0], s[1], s[2]], width: l.shape()[3] })
    }
}

/// A tensor [B, H, L, width] in its storage; elements of a row lie side by side.
struct Heads<'a, T> {
    data: &'a [T],
    at: usize,
    steps: [usize; 3],
    width: usize,
}

impl<T: Narrow> Heads<'_, T> {
    /// Rows of a head as f32: in place, or one after the other in `room`.
    fn rows<'r>(
        &'r self,
        [b, h]: [usize; 2],
        rows: Range<usize>,
        room: &'r mut Vec<f32>,
    ) -> Result<Rows<'r>> {
        let (w, step) = (self.width, self.steps[2]);
        let from = &self.data[self.at + b * self.steps[0] + h * self.steps[1] + rows.start * step..];
        if T::DTYPE == DType::F32 {
            return Ok(Rows { data: T::widened(from, &mut []), step });
        }
        let to = sized(room, rows.len() * w)?;
        for (i, to) in to.chunks_exact_mut(w.max(1)).enumerate() {
            to.iter_mut().zip(&from[i * step..][..w]).for_each(|(to, x)| *to = x.widen());
        }
        Ok(Rows { data: to, step: w })
    }
}

/// Rows of a matrix, `step` elements apart.
#[derive(Clone, Copy)]
struct Rows<'a> {
    data: &'a [f32],
    step: usize,
}

impl<'a> Rows<'a> {
    /// Rows of `width` elements one after the other.
    fn packed(data: &'a [f32], width: usize) -> Self {
        Rows { data, step: width }
    }

    fn row(&self, i: usize, width: usize) -> &'a [f32] {
        &self.data[i * self.step..][..width]
    }
}

/// The first `n` elements of a vector, which grows where it must.
fn sized(room: &mut Vec<f32>, n: usize) -> Result<&mut [f32]> {
    if room.len() < n {
        *room = filled(n, 0.0)?;
    }
    Ok(&mut room[..n])
}

/// Memory of a tile, used again for the next.
#[derive(Default)]
struct Room {
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    up: Vec<f32>,
    o: Vec<f32>,
    scores: Vec<f32>,
    grads: Vec<f32>,
    slopes: Vec<f32>,
    factors: Vec<f32>,
}

/// Y = alpha A B + beta Y for a Y of contiguous rows; `ta`, `tb`: A or B is stored transposed.
fn add_product(
    op: &'static str,
    (m, n, k): (usize, usize, usize),
    alpha: f32,
    (a, ta): (Rows<'_>, bool),
    (b, tb): (Rows<'_>, bool),
    (y, beta): (&mut [f32], f32),
) -> Result<()> {
    let place = |t: bool, step: usize| match t {
        true => Place { at: 0, rows: 1, cols: step },
        false => Place { at: 0, rows: step, cols: 1 },
    };
    let (a, b, y) = ((a.data, place(ta, a.step)), (b.data, place(tb, b.step)), (y, place(false, n)));
    product(op, (m, n, k), alpha, a, b, beta, y, false)
}

/// Queries of a head that belong to one span: numbers within the span.
struct Part<'a> {
    head: [usize; 2],
    span: &'a Span,
    rows: Range<usize>,
}

impl Part<'_> {
    /// The rows of the tensors.
    fn queries(&self) -> Range<usize> {
        self.span.q0 + self.rows.start..self.span.q0 + self.rows.end
    }

    /// Positions of keys of the span in the tensors.
    fn keys(&self, keys: &Range<usize>) -> Range<usize> {
        self.span.k0 + keys.start..self.span.k0 + keys.end
    }
}

/// Calls `f` with number and value of `n` values of a repeated tensor along its last axis.
fn row_of<T: Copy>(r: &super::Repeated<T>, at: [usize; 4], n: usize, mut f: impl FnMut(usize, T)) {
    let first = r.place(at);
    match r.steps[3] {
        0 => (0..n).for_each(|j| f(j, r.values[first])),
        _ => r.values[first..first + n].iter().enumerate().for_each(|(j, x)| f(j, *x)),
    }
}

impl Rules<'_, f32> {
    /// The parts of queries `first .. first + n` of a head that lie in spans.
    fn parts(&self, head: [usize; 2], first: usize, n: usize) -> impl Iterator<Item = Part<'_>> {
        self.spans[head[0]].iter().filter_map(move |span| {
            let (from, to) = (first.max(span.q0), (first + n).min(span.q0 + span.lq));
            (from < to).then(|| Part { head, span, rows: from - span.q0..to - span.q0 })
        })
    }

    /// The keys that queries of a part can see, in tiles.
    fn tiles(&self, part: &Part<'_>) -> impl Iterator<Item = Range<usize>> + use<> {
        let start = self.reach(part.span, part.rows.start).start;
        let end = self.reach(part.span, part.rows.end - 1).end;
        (start..end).step_by(KEYS).map(move |j| j..(j + KEYS).min(end))
    }

    /// Scores of a tile, -inf for invisible keys; `slopes`: their derivatives by the products where there is a softcap.
    fn scores(
        &self,
        op: &'static str,
        part: &Part<'_>,
        keys: &Range<usize>,
        (q, k): (Rows<'_>, Rows<'_>),
        s: &mut [f32],
        slopes: Option<&mut [f32]>,
    ) -> Result<()> {
        let (n, d) = (keys.len(), self.size.d);
        let factor = self.p.factor(d) as f32;
        add_product(op, (part.rows.len(), n, d), factor, (q, false), (k, true), (s, 0.0))?;
        if self.p.softcap > 0.0 {
            let cap = self.p.softcap as f32;
            simd!(s.iter_mut().for_each(|s| *s = tanh(*s / cap)));
            if let Some(slopes) = slopes {
                simd!(slopes.iter_mut().zip(&*s).for_each(|(d, s)| *d = 1.0 - s * s));
            }
            simd!(s.iter_mut().for_each(|s| *s *= cap));
        }
        for (s, i) in s.chunks_exact_mut(n).zip(part.rows.clone()) {
            let at = [part.head[0], part.head[1], part.span.q0 + i, part.span.k0 + keys.start];
            if let Some(bias) = &self.bias {
                row_of(bias, at, n, |j, x| s[j] += x);
            }
            let seen = self.reach(part.span, i);
            let inside = |j: usize| j.clamp(keys.start, keys.end) - keys.start;
            s[..inside(seen.start)].fill(f32::NEG_INFINITY);
            s[inside(seen.end)..].fill(f32::NEG_INFINITY);
            if let Some(mask) = &self.mask {
                row_of(mask, at, n, |j, x| {
                    if x == 0 {
                        s[j] = f32::NEG_INFINITY;
                    }
                });
            }
        }
        Ok(())
    }

    /// Dropout factors of a tile.
    fn factors<'r>(&self, part: &Part<'_>, keys: &Range<usize>, room: &'r mut Vec<f32>) -> Result<&'r [f32]> {
        let (size, [b, h], n) = (&self.size, part.head, keys.len());
        let to = sized(room, part.rows.len() * n)?;
        let mut dropout = Dropout::new(self);
        for (to, i) in to.chunks_exact_mut(n).zip(part.queries()) {
            let first = ((b * size.heads + h) * size.lq + i) * size.lk + part.span.k0 + keys.start;
            to.iter_mut().enumerate().for_each(|(j, f)| *f = dropout.factor(first + j) as f32);
        }
        Ok(to)
    }
}

/// y = y * x
fn multiply(y: &mut [f32], x: &[f32]) {
    simd!(y.iter_mut().zip(x).for_each(|(y, x)| *y *= x));
}

/// Running maxima and sums of e^(s - maximum) of the rows of a tile.
struct Sums {
    top: [f32; QUERIES],
    sum: [f32; QUERIES],
}

impl Sums {
    fn new() -> Self {
        Sums { top: [f32::NEG_INFINITY; QUERIES], sum: [0.0; QUERIES] }
    }

    /// Scores of further keys, `n` in a row, become e^(s - maximum); what was summed before is taken relative to the new maximum.
    fn update(&mut self, s: &mut [f32], n: usize, o: &mut [f32], dv: usize) {
        simd_widest!({
            for (i, s) in s.chunks_exact_mut(n).enumerate() {
                let (old, here) = (self.top[i], row::max(s));
                let top = if here > old { here } else { old };
                // A score of -inf has no weight, even where there is no other.
                let base = if top == f32::NEG_INFINITY { 0.0 } else { top };
                s.iter_mut().for_each(|s| *s = exp(*s - base));
                let factor = exp(old - base);
                self.sum[i] = self.sum[i] * factor + row::sum(s) as f32;
                self.top[i] = top;
                if factor != 1.0 {
                    o[i * dv..(i + 1) * dv].iter_mut().for_each(|o| *o *= factor);
                }
            }
        });
    }

    /// Divides results by their sums and gives the logarithms; a row without weights is 0.
    fn finish(&self, o: &mut [f32], dv: usize, lse: &mut [f32]) {
        for (i, lse) in lse.iter_mut().enumerate() {
            *lse = self.top[i] + ln(self.sum[i]);
            let factor = if self.sum[i] == 0.0 { 0.0 } else { 1.0 / self.sum[i] };
            o[i * dv..(i + 1) * dv].iter_mut().for_each(|o| *o *= factor);
        }
    }
}

/// Operands of a call in their storage.
struct Operands<'a, T> {
    op: &'static str,
    rules: &'a Rules<'a, f32>,
    q: Heads<'a, T>,
    k: Heads<'a, T>,
    v: Heads<'a, T>,
}

impl<T: Narrow> Operands<'_, T> {
    /// Results and logarithms of queries from `first` on of a head; `o` is 0 and `lse` -inf before.
    fn forward(
        &self,
        [b, h]: [usize; 2],
        first: usize,
        (o, lse): (&mut [f32], &mut [f32]),
        room: &mut Room,
    ) -> Result<()> {
        let (r, op) = (self.rules, self.op);
        let (dv, shared) = (r.size.dv, [b, r.kv(h)]);
        for part in r.parts([b, h], first, lse.len()) {
            let (rows, at) = (part.rows.len(), part.queries().start - first);
            let o = &mut o[at * dv..(at + rows) * dv];
            let q = self.q.rows([b, h], part.queries(), &mut room.q)?;
            let mut sums = Sums::new();
            for keys in r.tiles(&part) {
                let n = keys.len();
                let k = self.k.rows(shared, part.keys(&keys), &mut room.k)?;
                let v = self.v.rows(shared, part.keys(&keys), &mut room.v)?;
                let s = sized(&mut room.scores, rows * n)?;
                r.scores(op, &part, &keys, (q, k), s, None)?;
                sums.update(s, n, o, dv);
                if r.p.dropout > 0.0 {
                    multiply(s, r.factors(&part, &keys, &mut room.factors)?);
                }
                add_product(op, (rows, dv, n), 1.0, (Rows::packed(s, n), false), (v, false), (o, 1.0))?;
            }
            sums.finish(o, dv, &mut lse[at..at + rows]);
        }
        Ok(())
    }
}

/// What the gradients read besides queries, keys and values.
struct Upstream<'a, T> {
    dout: Heads<'a, T>,
    o: Heads<'a, T>,
    lse: &'a [f32],
}

/// Gradients of the query heads that share a key head, and of that.
struct Grads<'a> {
    dq: &'a mut [f32],
    dk: &'a mut [f32],
    dv: &'a mut [f32],
}

impl<T: Narrow> Operands<'_, T> {
    /// Adds the gradients of a part to those of its query head and key head. `at`: row of the part's first query in `g.dq`.
    fn backward(
        &self,
        part: &Part<'_>,
        up: &Upstream<'_, T>,
        (g, at): (&mut Grads<'_>, usize),
        room: &mut Room,
    ) -> Result<()> {
        let (r, op) = (self.rules, self.op);
        let (d, dv, rows) = (r.size.d, r.size.dv, part.rows.len());
        let ([b, h], shared) = (part.head, [part.head[0], r.kv(part.head[1])]);
        let factor = r.p.factor(d) as f32;
        let q = self.q.rows(part.head, part.queries(), &mut room.q)?;
        let dout = up.dout.rows(part.head, part.queries(), &mut room.up)?;
        let o = up.o.rows(part.head, part.queries(), &mut room.o)?;
        let mut delta = [0.0f32; QUERIES];
        simd!({
            for (i, x) in delta[..rows].iter_mut().enumerate() {
                *x = row::dot(dout.row(i, dv), o.row(i, dv)) as f32;
            }
        });
        let lse = &up.lse[(b * r.size.heads + h) * r.size.lq..][part.queries()];
        for keys in r.tiles(part) {
            let (n, seen) = (keys.len(), part.keys(&keys));
            let k = self.k.rows(shared, seen.clone(), &mut room.k)?;
            let v = self.v.rows(shared, seen.clone(), &mut room.v)?;
            let (p, ds) = (sized(&mut room.scores, rows * n)?, sized(&mut room.grads, rows * n)?);
            let capped = r.p.softcap > 0.0;
            let slopes = sized(&mut room.slopes, if capped { rows * n } else { 0 })?;
            r.scores(op, part, &keys, (q, k), p, capped.then_some(&mut *slopes))?;
            add_product(op, (rows, n, dv), 1.0, (dout, false), (v, true), (ds, 0.0))?;
            let factors = match r.p.dropout > 0.0 {
                true => Some(r.factors(part, &keys, &mut room.factors)?),
                false => None,
            };
            if let Some(f) = factors {
                multiply(ds, f);
            }
            score_gradients(p, ds, n, lse, &delta);
            if let Some(f) = factors {
                multiply(p, f);
            }
            if capped {
                multiply(ds, slopes);
            }
            let (p, ds) = (Rows::packed(p, n), Rows::packed(ds, n));
            let to = &mut g.dv[seen.start * dv..seen.end * dv];
            add_product(op, (n, dv, rows), 1.0, (p, true), (dout, false), (to, 1.0))?;
            let to = &mut g.dq[at * d..(at + rows) * d];
            add_product(op, (rows, d, n), factor, (ds, false), (k, false), (to, 1.0))?;
            let to = &mut g.dk[seen.start * d..seen.end * d];
            add_product(op, (n, d, rows), factor, (ds, true), (q, false), (to, 1.0))?;
        }
        Ok(())
    }
}

/// Scores become P = e^(s - LSE), and the gradients of P those of the scores: P (dP - delta).
fn score_gradients(p: &mut [f32], ds: &mut [f32], n: usize, lse: &[f32], delta: &[f32]) {
    simd_widest!({
        let rows = p.chunks_exact_mut(n).zip(ds.chunks_exact_mut(n)).zip(lse.iter().zip(delta));
        for ((p, ds), (&lse, &delta)) in rows {
            // A query that sees nothing has no gradient.
            let lse = if lse == f32::NEG_INFINITY { f32::INFINITY } else { lse };
            for (p, ds) in p.iter_mut().zip(ds) {
                let e = exp(*p - lse);
                *p = e;
                *ds = if e == 0.0 { 0.0 } else { e * (*ds - delta) };
            }
        }
    });
}

/// What a thread does with an item. A reference: the code that divides work among threads is large, and is compiled once for all types of elements.
type Task<'a, I> = dyn Fn(&mut Room, I) -> Result<()> + Sync + 'a;
/// A head, the number of its first query, and its results.
type ForwardItem<'a> = ([usize; 2], usize, (&'a mut [f32], &'a mut [f32]));
/// The number of a head, and its gradients.
type BackwardItem<'a> = (usize, ((&'a mut [f32], &'a mut [f32]), &'a mut [f32]));

impl Kernels {
    pub(super) fn attention_in_f32(
        &self,
        p: &Attention<'_>,
        size: AttentionSize,
        io: AttentionIo<'_>,
    ) -> Result<()> {
        const OP: &str = "attention";
        let bias = |b: View<'_>| vector::values(OP, b, &[])?.try_to_vec();
        let rules = self.attention_rules(OP, p, size, &io.mask, bias)?;
        let AttentionSize { heads, lq, dv, outer, .. } = size;
        let (n, tiles) = (outer * heads, lq.div_ceil(QUERIES));
        let (mut o, mut lse) = (filled(n * lq * dv, 0.0)?, filled(n * lq, f32::NEG_INFINITY)?);
        let mut work = with_capacity(n * tiles)?;
        let all = chunks(&mut o, lq * dv, n)?.into_iter().zip(chunks(&mut lse, lq, n)?).enumerate();
        for (at, (o, lse)) in all {
            let parts = chunks(o, QUERIES * dv, tiles)?.into_iter().zip(chunks(lse, QUERIES, tiles)?);
            work.try_extend(
                parts.enumerate().map(|(i, part)| ([at / heads, at % heads], i * QUERIES, part)),
            )?;
        }
        with_narrow!(io.q.dtype(), T => {
            let blocks = Blocks::lock(OP, &[io.q, io.k, io.v])?;
            let heads = |v: &View<'_>| blocks.heads::<T>(OP, v);
            let c = Operands { op: OP, rules: &rules, q: heads(&io.q)?, k: heads(&io.k)?, v: heads(&io.v)? };
            let task: &Task<'_, ForwardItem<'_>> = &|room, (head, first, part)| c.forward(head, first, part, room);
            work.into_par_iter().with_max_len(TASK).try_for_each_init(Room::default, task)?;
        });
        vector::put(OP, &io.o.into(), &o)?;
        io.lse.map_or(Ok(()), |v| vector::put(OP, &v.into(), &lse))
    }

    pub(super) fn attention_bwd_in_f32(
        &self,
        p: &Attention<'_>,
        size: AttentionSize,
        io: AttentionBwd<'_>,
    ) -> Result<()> {
        const OP: &str = "attention_bwd";
        let bias = |b: View<'_>| vector::values(OP, b, &[])?.try_to_vec();
        let rules = self.attention_rules(OP, p, size, &io.mask, bias)?;
        let AttentionSize { heads, kv_heads, lq, lk, d, dv, outer, .. } = size;
        let (group, n) = (heads.checked_div(kv_heads).unwrap_or(0), outer * kv_heads);
        let (mut dq, mut dk) = (filled(outer * heads * lq * d, 0.0)?, filled(n * lk * d, 0.0)?);
        let mut dvs = filled(n * lk * dv, 0.0)?;
        let work: Vec<_> = chunks(&mut dq, group * lq * d, n)?
            .into_iter()
            .zip(chunks(&mut dk, lk * d, n)?)
            .zip(chunks(&mut dvs, lk * dv, n)?)
            .enumerate()
            .try_vec()?;
        let lse = gather::<f32>(OP, io.lse)?;
        with_narrow!(io.q.dtype(), T => {
            let blocks = Blocks::lock(OP, &[io.q, io.k, io.v, io.dout, io.o])?;
            let heads = |v: &View<'_>| blocks.heads::<T>(OP, v);
            let c = Operands { op: OP, rules: &rules, q: heads(&io.q)?, k: heads(&io.k)?, v: heads(&io.v)? };
            let up = Upstream { dout: heads(&io.dout)?, o: heads(&io.o)?, lse: &lse };
            let task: &Task<'_, BackwardItem<'_>> = &|room, (at, ((dq, dk), dv))| {
                let mut g = Grads { dq, dk, dv };
                for i in 0..group {
                    let head = [at / kv_heads, at % kv_heads * group + i];
                    for first in (0..lq).step_by(QUERIES) {
                        for part in rules.parts(head, first, QUERIES) {
                            let row = i * lq + part.queries().start;
                            c.backward(&part, &up, (&mut g, row), room)?;
                        }
                    }
                }
                Ok(())
            };
            work.into_par_iter().with_max_len(TASK).try_for_each_init(Room::default, task)?;
        });
        for (g, values) in [(io.dq, &dq), (io.dk, &dk), (io.dv, &dvs)] {
            g.map_or(Ok(()), |g| vector::put(OP, &g, values))?;
        }
        Ok(())
    }
}
