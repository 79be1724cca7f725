//! Attention.

use trefoil::ops::*;
use trefoil::{BackendExt, Buffer, Result};

use super::*;

/// Batch, query heads, key heads, length and head size.
struct Size {
    b: usize,
    hq: usize,
    hkv: usize,
    l: usize,
    d: usize,
}

impl Size {
    fn q(&self) -> [usize; 4] {
        [self.b, self.hq, self.l, self.d]
    }

    fn k(&self) -> [usize; 4] {
        [self.b, self.hkv, self.l, self.d]
    }

    fn flops(&self, products: usize, causal: bool) -> usize {
        2 * products * self.b * self.hq * self.l * self.l * self.d / if causal { 2 } else { 1 }
    }
}

fn size(b: &Bed<'_>, hkv: usize, d: usize) -> Size {
    Size {
        b: b.pick(1, 1, 4),
        hq: b.pick(2, 4, 16),
        hkv: b.pick(hkv.min(2), hkv.min(4), hkv),
        l: b.pick(32, 192, 4096),
        d,
    }
}

const CAUSAL: Attention<'static> = Attention::new().causal(Causal::TopLeft);

/// Operands of a size: q, k, v, o, lse.
fn operands(b: &Bed<'_>, s: &Size, dt: DType) -> Result<[Buffer; 5]> {
    let (q, k) = (s.q().iter().product(), s.k().iter().product());
    let rows = s.b * s.hq * s.l;
    Ok([
        b.normal(dt, q)?,
        b.normal(dt, k)?,
        b.normal(dt, k)?,
        b.empty(dt, q)?,
        b.empty(dt.accumulator(), rows)?,
    ])
}

fn forward(b: &Bed<'_>, dt: DType, hkv: usize, d: usize) -> Result<Problem> {
    let s = size(b, hkv, d);
    let [q, k, v, mut o, mut lse] = operands(b, &s, dt)?;
    flops(s.flops(2, true), move |g| {
        let mut io =
            AttentionIo::new(q.shaped(&s.q())?, k.shaped(&s.k())?, v.shaped(&s.k())?, o.shaped_mut(&s.q())?);
        io.lse = Some(lse.shaped_mut(&s.q()[..3])?);
        g.attention(&CAUSAL, io)
    })
}

fn backward(b: &Bed<'_>, dt: DType, hkv: usize, d: usize) -> Result<Problem> {
    let s = size(b, hkv, d);
    let [q, k, v, mut o, mut lse] = operands(b, &s, dt)?;
    let mut io =
        AttentionIo::new(q.shaped(&s.q())?, k.shaped(&s.k())?, v.shaped(&s.k())?, o.shaped_mut(&s.q())?);
    io.lse = Some(lse.shaped_mut(&s.q()[..3])?);
    b.gpu.attention(&CAUSAL, io)?;
    let up = b.normal(dt, o.len())?;
    let (mut dq, mut dk, mut dv) = (b.empty(dt, q.len())?, b.empty(dt, k.len())?, b.empty(dt, k.len())?);
    flops(s.flops(5, true), move |g| {
        let io = AttentionBwd {
            dout: up.shaped(&s.q())?,
            q: q.shaped(&s.q())?,
            k: k.shaped(&s.k())?,
            v: v.shaped(&s.k())?,
            o: o.shaped(&s.q())?,
            lse: lse.shaped(&s.q()[..3])?,
            mask: AttentionMask::new(),
            dq: Some(dq.shaped_mut(&s.q())?.into()),
            dk: Some(dk.shaped_mut(&s.k())?.into()),
            dv: Some(dv.shaped_mut(&s.k())?.into()),
            dbias: None,
        };
        g.attention_bwd(&CAUSAL, io)
    })
}

pub(super) const ROWS: &[Row] = &[
    row("attention", "causal_64", F32_BF16, |b, dt| forward(b, dt, 16, 64)),
    row("attention", "causal_128_grouped", F32_BF16, |b, dt| forward(b, dt, 4, 128)),
    row("attention", "short_64_probabilities", F32, |b, dt| {
        let (n, l, d) = (b.pick(2, 8, 768), b.pick(16, 64, 128), 64);
        let (x, p) = ([n, 1, l, d], [n, 1, l, l]);
        let (q, k, v) = (b.normal(dt, n * l * d)?, b.normal(dt, n * l * d)?, b.normal(dt, n * l * d)?);
        let (mut o, mut probs) = (b.empty(dt, n * l * d)?, b.empty(dt, n * l * l)?);
        flops(6 * n * l * l * d, move |g| {
            let mut io = AttentionIo::new(q.shaped(&x)?, k.shaped(&x)?, v.shaped(&x)?, o.shaped_mut(&x)?);
            io.p = Some(probs.shaped_mut(&p)?);
            g.attention(&Attention::new(), io)
        })
    }),
    row("attention", "packed_64", F32_BF16, |b, dt| {
        let (n, h, d) = (8, b.pick(2, 4, 16), 64);
        let each = b.pick(8, 64, 1024);
        let offsets: Vec<i32> = (0..=n).map(|i| (i * each) as i32).collect();
        let (cu, s) = (b.gpu.upload(&offsets)?, [1, h, n * each, d]);
        let len = s.iter().product();
        let (q, k, v, mut o) =
            (b.normal(dt, len)?, b.normal(dt, len)?, b.normal(dt, len)?, b.empty(dt, len)?);
        flops(2 * n * h * each * each * d, move |g| {
            let mut io = AttentionIo::new(q.shaped(&s)?, k.shaped(&s)?, v.shaped(&s)?, o.shaped_mut(&s)?);
            io.mask = AttentionMask::new().sequences(cu.view(), cu.view());
            g.attention(&CAUSAL, io)
        })
    }),
    row("attention_bwd", "causal_64", F32_BF16, |b, dt| backward(b, dt, 16, 64)),
    row("attention_bwd", "causal_128_grouped", F32_BF16, |b, dt| backward(b, dt, 4, 128)),
    row("attention_bwd", "bias_64", F32, |b, dt| {
        let s = size(b, 16, 64);
        let [q, k, v, mut o, mut lse] = operands(b, &s, dt)?;
        let (of, shape) = (b.normal(dt, s.hq * s.l * s.l)?, [1, s.hq, s.l, s.l]);
        let mut io =
            AttentionIo::new(q.shaped(&s.q())?, k.shaped(&s.k())?, v.shaped(&s.k())?, o.shaped_mut(&s.q())?);
        io.mask = AttentionMask::new().bias(of.shaped(&shape)?);
        io.lse = Some(lse.shaped_mut(&s.q()[..3])?);
        b.gpu.attention(&Attention::new(), io)?;
        let (up, mut dbias) = (b.normal(dt, o.len())?, b.empty(dt, of.len())?);
        flops(s.flops(2, false), move |g| {
            let io = AttentionBwd {
                dout: up.shaped(&s.q())?,
                q: q.shaped(&s.q())?,
                k: k.shaped(&s.k())?,
                v: v.shaped(&s.k())?,
                o: o.shaped(&s.q())?,
                lse: lse.shaped(&s.q()[..3])?,
                mask: AttentionMask::new().bias(of.shaped(&shape)?),
                dq: None,
                dk: None,
                dv: None,
                dbias: Some(dbias.shaped_mut(&shape)?.into()),
            };
            g.attention_bwd(&Attention::new(), io)
        })
    }),
];
