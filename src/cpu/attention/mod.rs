//! Attention on the CPU. The reference: a row of scores at a time, in f64.

mod decode;
mod rope;
mod vectorized;

use std::ops::Range;

use rayon::prelude::*;

use crate::buffer::View;
use crate::cpu::random::Words;
use crate::cpu::scratch::*;
use crate::cpu::{Kernels, gather, gather_f64, store_f64, store_grad};
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::attention::*;

/// Values of a tensor that repeats over the scores.
struct Repeated<T> {
    values: Vec<T>,
    steps: [usize; 4],
}

impl<T: Copy> Repeated<T> {
    /// `values` are those of `v` in row-major order.
    fn new(values: Vec<T>, v: &View<'_>) -> Self {
        let (mut steps, mut step) = ([0; 4], 1);
        for (i, &n) in v.shape().iter().rev().enumerate() {
            steps[3 - i] = if n > 1 { step } else { 0 };
            step *= n;
        }
        Repeated { values, steps }
    }

    fn place(&self, at: [usize; 4]) -> usize {
        at.iter().zip(&self.steps).map(|(i, s)| i * s).sum()
    }

    fn get(&self, at: [usize; 4]) -> T {
        self.values[self.place(at)]
    }
}

/// Queries `q0 .. q0 + lq` attend to keys `k0 .. k0 + lk`, of which the first `keys` are visible.
#[derive(Debug, Clone, Copy)]
struct Span {
    q0: usize,
    lq: usize,
    k0: usize,
    lk: usize,
    keys: usize,
}

/// What decides the scores besides queries and keys.
struct Rules<'a, T> {
    p: Attention<'a>,
    size: AttentionSize,
    bias: Option<Repeated<T>>,
    mask: Option<Repeated<u8>>,
    /// By batch of the tensors.
    spans: Vec<Vec<Span>>,
    words: Words,
}

impl<T> Rules<'_, T> {
    /// The key head that a query head reads.
    fn kv(&self, h: usize) -> usize {
        h / (self.size.heads / self.size.kv_heads)
    }

    /// The keys of a span that query i of it can see, but for the mask.
    fn reach(&self, span: &Span, i: usize) -> Range<usize> {
        let shift =
            if self.p.causal == Some(Causal::BottomRight) { span.lk as i64 - span.lq as i64 } else { 0 };
        let at = i as i64 + shift;
        let [left, right] = self.p.bounds().map(|b| b.map(|b| i64::try_from(b).unwrap_or(i64::MAX)));
        let inside = |j: i64| j.clamp(0, span.keys as i64) as usize;
        let start = left.map_or(0, |l| inside(at.saturating_sub(l)));
        let end = right.map_or(span.keys, |r| inside(at.saturating_add(r).saturating_add(1)));
        start..end.max(start)
    }
}

/// Factors of dropout, by number of an entry of P.
struct Dropout {
    words: Words,
    keep: f64,
    kept: f64,
}

impl Dropout {
    fn new<T>(r: &Rules<'_, T>) -> Self {
        let p = r.p.dropout;
        let kept = if p < 1.0 { 1.0 / (1.0 - p) } else { 0.0 };
        Dropout { words: r.words.clone(), keep: f64::from((1.0 - p) as f32), kept }
    }

    fn factor(&mut self, element: usize) -> f64 {
        if self.words.unit(DType::F32, element) < self.keep { self.kept } else { 0.0 }
    }
}

/// A call with its operands in row-major order.
struct Call<'a> {
    rules: Rules<'a, f64>,
    q: Vec<f64>,
    k: Vec<f64>,
    v: Vec<f64>,
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn add(y: &mut [f64], f: f64, x: &[f64]) {
    y.iter_mut().zip(x).for_each(|(y, x)| *y += f * x);
}

/// One score: key, value, and its derivative by the product.
struct Score {
    j: usize,
    s: f64,
    slope: f64,
    /// Dropout factor.
    factor: f64,
}

impl Call<'_> {
    fn q_row(&self, b: usize, h: usize, i: usize) -> &[f64] {
        let s = &self.rules.size;
        &self.q[((b * s.heads + h) * s.lq + i) * s.d..][..s.d]
    }

    fn k_row(&self, b: usize, h: usize, j: usize) -> &[f64] {
        let s = &self.rules.size;
        &self.k[((b * s.kv_heads + self.rules.kv(h)) * s.lk + j) * s.d..][..s.d]
    }

    fn v_row(&self, b: usize, h: usize, j: usize) -> &[f64] {
        let s = &self.rules.size;
        &self.v[((b * s.kv_heads + self.rules.kv(h)) * s.lk + j) * s.dv..][..s.dv]
    }

    /// Scores of the keys that query i of a span can see.
    fn scores(&self, b: usize, h: usize, i: usize, span: &Span) -> Result<Vec<Score>> {
        let Rules { p, size, bias, mask, .. } = &self.rules;
        let mut dropout = Dropout::new(&self.rules);
        let q = self.q_row(b, h, span.q0 + i);
        let mut out = with_capacity(span.keys)?;
        for j in self.rules.reach(span, i) {
            let at = [b, h, span.q0 + i, span.k0 + j];
            if mask.as_ref().is_some_and(|m| m.get(at) == 0) {
                continue;
            }
            let (mut s, mut slope) = (p.factor(size.d) * dot(q, self.k_row(b, h, at[3])), 1.0);
            if p.softcap > 0.0 {
                let t = (s / p.softcap).tanh();
                (s, slope) = (p.softcap * t, 1.0 - t * t);
            }
            s += bias.as_ref().map_or(0.0, |b| b.get(at));
            let element = ((b * size.heads + h) * size.lq + at[2]) * size.lk + at[3];
            let factor = if p.dropout > 0.0 { dropout.factor(element) } else { 1.0 };
            out.try_push(Score { j, s, slope, factor })?;
        }
        Ok(out)
    }
}

/// Logarithm of the sum of e^s; -inf for nothing.
fn log_sum(scores: &[Score]) -> f64 {
    let m = scores.iter().fold(f64::NEG_INFINITY, |m, x| if m.is_nan() || m > x.s { m } else { x.s });
    if m == f64::NEG_INFINITY {
        return m;
    }
    m + scores.iter().map(|x| (x.s - m).exp()).sum::<f64>().ln()
}

impl Kernels {
    /// `bias`: how the values of the bias are read.
    fn attention_rules<'a, T: Copy>(
        &self,
        op: &'static str,
        p: &Attention<'a>,
        size: AttentionSize,
        m: &AttentionMask<'_>,
        bias: impl Fn(View<'_>) -> Result<Vec<T>>,
    ) -> Result<Rules<'a, T>> {
        let dense = |keys: usize| [Span { q0: 0, lq: size.lq, k0: 0, lk: size.lk, keys }].try_to_vec();
        let mut spans = repeated(size.outer, dense(size.lk)?)?;
        if let Some(l) = m.key_lengths {
            let lengths = gather::<i32>(op, l)?;
            spans = lengths.iter().map(|&n| dense((n.max(0) as usize).min(size.lk))).try_vec_ok()?;
        }
        if let Some([cq, ck]) = m.sequences {
            let (cq, ck) = (gather::<i32>(op, cq)?, gather::<i32>(op, ck)?);
            let mut bad = cq[0] != 0 || ck[0] != 0;
            let (mut q0, mut k0) = (0, 0);
            let mut end = |c: i32, from: usize, total: usize| match usize::try_from(c) {
                Ok(c) if (from..=total).contains(&c) => c,
                _ => {
                    bad = true;
                    from
                }
            };
            let mut all = Vec::new();
            for (&q, &k) in cq[1..].iter().zip(&ck[1..]) {
                let (q1, k1) = (end(q, q0, size.lq), end(k, k0, size.lk));
                all.try_push(Span { q0, lq: q1 - q0, k0, lk: k1 - k0, keys: k1 - k0 })?;
                (q0, k0) = (q1, k1);
            }
            // What lies behind all sequences sees nothing.
            all.try_push(Span { q0, lq: size.lq - q0, k0, lk: 0, keys: 0 })?;
            spans = with_capacity(1)?;
            spans.try_push(all)?;
            if bad {
                self.flag_index_error(op);
            }
        }
        Ok(Rules {
            p: *p,
            size,
            bias: m.bias.map(|b| Ok(Repeated::new(bias(b)?, &b))).transpose()?,
            mask: m.mask.map(|b| Ok(Repeated::new(gather(op, b)?, &b))).transpose()?,
            spans,
            words: Words::new(op, &p.rng)?,
        })
    }

    fn attention_call<'a>(
        &self,
        op: &'static str,
        p: &Attention<'a>,
        size: AttentionSize,
        [q, k, v]: [View<'_>; 3],
        m: &AttentionMask<'_>,
    ) -> Result<Call<'a>> {
        let rules = self.attention_rules(op, p, size, m, |b| gather_f64(op, b))?;
        Ok(Call { rules, q: gather_f64(op, q)?, k: gather_f64(op, k)?, v: gather_f64(op, v)? })
    }
}

/// Chunks of a vector, also where they are empty.
fn chunks<T>(v: &mut [T], n: usize, count: usize) -> Result<Vec<&mut [T]>> {
    if n == 0 {
        return (0..count).map(|_| &mut [] as &mut [T]).try_vec();
    }
    v.chunks_mut(n).try_vec()
}

/// Number of scores.
fn scores(size: &AttentionSize) -> usize {
    [size.heads, size.lq, size.lk].into_iter().fold(size.outer, usize::saturating_mul)
}

impl AttentionOps for Kernels {
    fn attention(&self, p: &Attention<'_>, io: AttentionIo<'_>) -> Result<()> {
        const OP: &str = "attention";
        let size = check_attention(p, &io)?;
        let _timed = self.count("attention");
        let whole = io.p.is_some().then_some("the softmax itself is computed in f64");
        if self.in_f32_unless_few(OP, io.q.dtype(), whole, scores(&size))? {
            return self.attention_in_f32(p, size, io);
        }
        let c = self.attention_call(OP, p, size, [io.q, io.k, io.v], &io.mask)?;
        let AttentionSize { heads, lq, lk, dv, outer, .. } = size;
        let n = outer * heads;
        let mut o = filled(n * lq * dv, 0.0)?;
        let mut lse = filled(n * lq, f64::NEG_INFINITY)?;
        let per = if io.p.is_some() { lq * lk } else { 0 };
        let mut probs = filled(n * per, 0.0)?;
        let mut work: Vec<_> = chunks(&mut o, lq * dv, n)?
            .into_iter()
            .zip(chunks(&mut lse, lq, n)?)
            .zip(chunks(&mut probs, per, n)?)
            .enumerate()
            .try_vec()?;
        work.par_iter_mut().try_for_each(|(at, ((o, lse), probs))| {
            let (b, h) = (*at / heads, *at % heads);
            for span in &c.rules.spans[b] {
                for i in 0..span.lq {
                    let scores = c.scores(b, h, i, span)?;
                    let (l, row) = (log_sum(&scores), span.q0 + i);
                    lse[row] = l;
                    if l == f64::NEG_INFINITY {
                        continue;
                    }
                    for x in &scores {
                        let e = (x.s - l).exp();
                        add(&mut o[row * dv..(row + 1) * dv], e * x.factor, c.v_row(b, h, span.k0 + x.j));
                        if per > 0 {
                            probs[row * lk + x.j] = e;
                        }
                    }
                }
            }
            Ok(())
        })?;
        store_f64(OP, &io.o, &o)?;
        io.lse.map_or(Ok(()), |v| store_f64(OP, &v, &lse))?;
        io.p.map_or(Ok(()), |v| store_f64(OP, &v, &probs))
    }

    fn attention_bwd(&self, p: &Attention<'_>, io: AttentionBwd<'_>) -> Result<()> {
        const OP: &str = "attention_bwd";
        let size = check_attention_bwd(p, &io)?;
        let _timed = self.count("attention_bwd");
        let bias = io.dbias.is_some().then_some("the gradient of a bias is computed in f64");
        if self.in_f32_unless_few(OP, io.q.dtype(), bias, scores(&size))? {
            return self.attention_bwd_in_f32(p, size, io);
        }
        let c = self.attention_call(OP, p, size, [io.q, io.k, io.v], &io.mask)?;
        let (dout, o, lse) = (gather_f64(OP, io.dout)?, gather_f64(OP, io.o)?, gather_f64(OP, io.lse)?);
        let AttentionSize { heads, kv_heads, lq, lk, d, dv, outer, .. } = size;
        let (group, n) = (heads.checked_div(kv_heads).unwrap_or(0), outer * kv_heads);
        let (mut dq, mut dk) = (filled(outer * heads * lq * d, 0.0)?, filled(n * lk * d, 0.0)?);
        let mut dvs = filled(n * lk * dv, 0.0)?;
        let mut dbias = filled(c.rules.bias.as_ref().map_or(0, |b| b.values.len()), 0.0)?;
        // The gradients of a key head and of its query heads; those of the bias where they are wanted.
        let one =
            |at: usize, dq: &mut [f64], dk: &mut [f64], dvs: &mut [f64], dbias: &mut [f64]| -> Result<()> {
                let (b, factor) = (at / kv_heads, p.factor(d));
                for g in 0..group {
                    let h = at % kv_heads * group + g;
                    for span in &c.rules.spans[b] {
                        for i in 0..span.lq {
                            let row = (b * heads + h) * lq + span.q0 + i;
                            let (up, base) = (&dout[row * dv..(row + 1) * dv], lse[row]);
                            if base == f64::NEG_INFINITY {
                                continue;
                            }
                            let delta = dot(up, &o[row * dv..(row + 1) * dv]);
                            for x in c.scores(b, h, i, span)? {
                                let (e, j) = ((x.s - base).exp(), span.k0 + x.j);
                                if e == 0.0 {
                                    continue;
                                }
                                add(&mut dvs[j * dv..(j + 1) * dv], e * x.factor, up);
                                let ds = e * (x.factor * dot(up, c.v_row(b, h, j)) - delta);
                                if let (Some(bias), false) = (&c.rules.bias, dbias.is_empty()) {
                                    dbias[bias.place([b, h, span.q0 + i, j])] += ds;
                                }
                                let ds = ds * x.slope * factor;
                                let r = g * lq + span.q0 + i;
                                add(&mut dq[r * d..(r + 1) * d], ds, c.k_row(b, h, j));
                                add(&mut dk[j * d..(j + 1) * d], ds, c.q_row(b, h, span.q0 + i));
                            }
                        }
                    }
                }
                Ok(())
            };
        let mut work: Vec<_> = chunks(&mut dq, group * lq * d, n)?
            .into_iter()
            .zip(chunks(&mut dk, lk * d, n)?)
            .zip(chunks(&mut dvs, lk * dv, n)?)
            .enumerate()
            .try_vec()?;
        if io.dbias.is_some() {
            work.iter_mut().try_for_each(|(at, ((dq, dk), dvs))| one(*at, dq, dk, dvs, &mut dbias))?;
        } else {
            work.par_iter_mut().try_for_each(|(at, ((dq, dk), dvs))| one(*at, dq, dk, dvs, &mut []))?;
        }
        for (g, values) in [(io.dq, &dq), (io.dk, &dk), (io.dv, &dvs), (io.dbias, &dbias)] {
            g.map_or(Ok(()), |g| store_grad(OP, &g, values))?;
        }
        Ok(())
    }
}
