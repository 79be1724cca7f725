//! Attention.

use trefoil::ops::attention::{
    Attention, AttentionBwd, AttentionIo, AttentionMask, Causal, FlashDecode, PagedAttention,
};
use trefoil::{BackendExt, Buffer, DType, Result};

use crate::case::{Case, CaseError, Operation, both};
use crate::context::Sets;
use crate::{Context, F32, F32_BF16, Prepared, Problem, bytes, flops, prepared, problem};

/// Batch, query heads, key heads, queries, keys and head size.
#[derive(Clone)]
struct Size {
    b: usize,
    hq: usize,
    hkv: usize,
    sq: usize,
    sk: usize,
    d: usize,
    causal: bool,
}

impl Size {
    /// A causal layer of a language model.
    fn causal(cx: &Context<'_>, hkv: usize, d: usize) -> Self {
        let length = cx.pick(32, 192, 4096);
        Size {
            b: cx.pick(1, 1, 4),
            hq: cx.pick(2, 4, 16),
            hkv: cx.pick(hkv.min(2), hkv.min(4), hkv),
            sq: length,
            sk: length,
            d,
            causal: true,
        }
    }

    fn of_case(c: &Case) -> Result<Self, CaseError> {
        let [b, hq, hkv, sq, sk, d] = c.sizes(["b", "hq", "hkv", "sq", "sk", "d"])?;
        Ok(Size { b, hq, hkv, sq, sk, d, causal: c.flag("causal") })
    }

    fn plan(&self) -> Attention<'static> {
        if self.causal { Attention::new().causal(Causal::TopLeft) } else { Attention::new() }
    }

    fn q(&self) -> [usize; 4] {
        [self.b, self.hq, self.sq, self.d]
    }

    fn k(&self) -> [usize; 4] {
        [self.b, self.hkv, self.sk, self.d]
    }

    fn lse(&self) -> [usize; 3] {
        [self.b, self.hq, self.sq]
    }

    /// Elements of q (and of the result) and of k (and of v).
    fn len(&self) -> [usize; 2] {
        [self.q().iter().product(), self.k().iter().product()]
    }

    /// Bytes of q, k, v and the result.
    fn bytes(&self, dt: DType) -> usize {
        let [q, k] = self.len();
        2 * (q + k) * dt.size()
    }

    /// Operations of so many products; a causal mask hides half of each.
    fn flops(&self, products: usize) -> usize {
        let all = 2 * products * self.b * self.hq * self.sq * self.sk * self.d;
        if self.causal { all / 2 } else { all }
    }
}

/// Sets of q, k, v, the result and the logarithms of the sums.
struct Operands {
    size: Size,
    q: Sets,
    k: Sets,
    v: Sets,
    o: Sets,
    lse: Sets,
}

impl Operands {
    fn new(cx: &Context<'_>, dt: DType, size: Size, sets: usize) -> Result<Self> {
        let ([q, k], rows) = (size.len(), size.lse().iter().product());
        Ok(Operands {
            q: cx.normal_sets(dt, q, sets)?,
            k: cx.normal_sets(dt, k, sets)?,
            v: cx.normal_sets(dt, k, sets)?,
            o: cx.sets_of(sets, |cx| cx.empty(dt, q))?,
            lse: cx.sets_of(sets, |cx| cx.empty(dt.accumulator(), rows))?,
            size,
        })
    }

    fn forward(&mut self, i: usize) -> Result<AttentionIo<'_>> {
        let (q, k) = (self.size.q(), self.size.k());
        let o = self.o.at_mut(i).shaped_mut(&q)?;
        let (q, k, v) = (self.q.at(i).shaped(&q)?, self.k.at(i).shaped(&k)?, self.v.at(i).shaped(&k)?);
        let mut io = AttentionIo::new(q, k, v, o);
        io.lse = Some(self.lse.at_mut(i).shaped_mut(&self.size.lse())?);
        Ok(io)
    }

    /// Without gradients.
    fn backward<'a>(&'a self, dout: &'a Buffer, i: usize) -> Result<AttentionBwd<'a>> {
        let (q, k) = (self.size.q(), self.size.k());
        Ok(AttentionBwd::new(
            dout.shaped(&q)?,
            self.q.at(i).shaped(&q)?,
            self.k.at(i).shaped(&k)?,
            self.v.at(i).shaped(&k)?,
            self.o.at(i).shaped(&q)?,
            self.lse.at(i).shaped(&self.size.lse())?,
        ))
    }
}

fn forward(cx: &Context<'_>, dt: DType, size: Size) -> Result<Prepared> {
    let (p, moved, ops) = (size.plan(), size.bytes(dt), size.flops(2));
    let mut operands = Operands::new(cx, dt, size, cx.sets(moved))?;
    prepared(moved, ops, move |g, i| g.attention(&p, operands.forward(i)?))
}

/// The gradients of [`forward`]; each set reads its own results.
fn backward(cx: &Context<'_>, dt: DType, size: Size) -> Result<Prepared> {
    let (p, moved, ops, [nq, nk]) = (size.plan(), size.bytes(dt), size.flops(5), size.len());
    let sets = cx.sets(moved);
    let (qs, ks) = (size.q(), size.k());
    let mut operands = Operands::new(cx, dt, size, sets)?;
    for i in 0..sets {
        cx.gpu.attention(&p, operands.forward(i)?)?;
    }
    let up = cx.normal_sets(dt, nq, sets)?;
    let (mut dq, mut dk, mut dv) = (cx.empty(dt, nq)?, cx.empty(dt, nk)?, cx.empty(dt, nk)?);
    prepared(2 * moved, ops, move |g, i| {
        let mut io = operands.backward(up.at(i), i)?;
        io.dq = Some(dq.shaped_mut(&qs)?.into());
        io.dk = Some(dk.shaped_mut(&ks)?.into());
        io.dv = Some(dv.shaped_mut(&ks)?.into());
        g.attention_bwd(&p, io)
    })
}

/// A decoding step of sequences of one length with 32 query heads over a cache in blocks.
fn paged_decode(cx: &Context<'_>, dt: DType, hkv: usize) -> Result<Prepared> {
    let (b, len, block) = (cx.pick(2, 4, 64), cx.pick(32, 256, 4096), 16);
    let (hq, d) = (32, cx.pick(16, 64, 128));
    let (blocks, each) = (b * len / block, len / block);
    let cache = [blocks, block, hkv, d];
    let n = blocks * block * hkv * d;
    let (q, k, v, mut o) =
        (cx.normal(dt, b * hq * d)?, cx.normal(dt, n)?, cx.normal(dt, n)?, cx.empty(dt, b * hq * d)?);
    // Neighbouring blocks of a sequence lie apart.
    let table = cx.integers((0..blocks).map(|i| (i % each * b + i / each) as i32))?;
    let lens = cx.integers((0..b).map(|_| len as i32))?;
    bytes(2 * n * dt.size(), move |g| {
        let (k, v, table) = (k.shaped(&cache)?, v.shaped(&cache)?, table.shaped(&[b, each])?);
        let s = [b, hq, d];
        g.paged_attention(PagedAttention::new(q.shaped(&s)?, k, v, table, lens.view(), o.shaped_mut(&s)?))
    })
}

pub(super) const PROBLEMS: &[Problem] = &[
    problem("attention", "causal_64", F32_BF16, |cx, dt| forward(cx, dt, Size::causal(cx, 16, 64))),
    problem("attention", "causal_128_grouped", F32_BF16, |cx, dt| forward(cx, dt, Size::causal(cx, 4, 128))),
    problem("attention", "packed_64", F32_BF16, |cx, dt| {
        let (n, h, d) = (8, cx.pick(2, 4, 16), 64);
        let each = cx.pick(8, 64, 1024);
        let offsets: Vec<i32> = (0..=n).map(|i| (i * each) as i32).collect();
        let (cu, s) = (cx.gpu.upload(&offsets)?, [1, h, n * each, d]);
        let len = s.iter().product();
        let (q, k, v, mut o) =
            (cx.normal(dt, len)?, cx.normal(dt, len)?, cx.normal(dt, len)?, cx.empty(dt, len)?);
        flops(2 * n * h * each * each * d, move |g| {
            let mut io = AttentionIo::new(q.shaped(&s)?, k.shaped(&s)?, v.shaped(&s)?, o.shaped_mut(&s)?);
            io.mask = AttentionMask::new().sequences(cu.view(), cu.view());
            g.attention(&Attention::new().causal(Causal::TopLeft), io)
        })
    }),
    problem("attention", "short_64_probabilities", F32, |cx, dt| {
        let (n, l, d) = (cx.pick(2, 8, 768), cx.pick(16, 64, 128), 64);
        let (x, p) = ([n, 1, l, d], [n, 1, l, l]);
        let (q, k, v) = (cx.normal(dt, n * l * d)?, cx.normal(dt, n * l * d)?, cx.normal(dt, n * l * d)?);
        let (mut o, mut probs) = (cx.empty(dt, n * l * d)?, cx.empty(dt, n * l * l)?);
        flops(6 * n * l * l * d, move |g| {
            let mut io = AttentionIo::new(q.shaped(&x)?, k.shaped(&x)?, v.shaped(&x)?, o.shaped_mut(&x)?);
            io.p = Some(probs.shaped_mut(&p)?);
            g.attention(&Attention::new(), io)
        })
    }),
    problem("attention_bwd", "causal_64", F32_BF16, |cx, dt| backward(cx, dt, Size::causal(cx, 16, 64))),
    problem("attention_bwd", "causal_128_grouped", F32_BF16, |cx, dt| {
        backward(cx, dt, Size::causal(cx, 4, 128))
    }),
    problem("attention_bwd", "bias_64", F32, |cx, dt| {
        let size = Size { causal: false, ..Size::causal(cx, 16, 64) };
        let (p, ops, shape) = (size.plan(), size.flops(2), [1, size.hq, size.sq, size.sk]);
        let (bias, up) = (cx.normal(dt, shape.iter().product())?, cx.normal(dt, size.len()[0])?);
        let mut operands = Operands::new(cx, dt, size, 1)?;
        let mut io = operands.forward(0)?;
        io.mask = AttentionMask::new().bias(bias.shaped(&shape)?);
        cx.gpu.attention(&p, io)?;
        let mut dbias = cx.empty(dt, bias.len())?;
        flops(ops, move |g| {
            let mut io = operands.backward(&up, 0)?;
            io.mask = AttentionMask::new().bias(bias.shaped(&shape)?);
            io.dbias = Some(dbias.shaped_mut(&shape)?.into());
            g.attention_bwd(&p, io)
        })
    }),
    problem("kv_cache_append", "tokens", F32_BF16, |cx, dt| {
        let (n, h, d, block) = (cx.pick(8, 64, 8192), 8, cx.pick(16, 64, 128), 16);
        let (k, v) = (cx.normal(dt, n * h * d)?, cx.normal(dt, n * h * d)?);
        let (mut kc, mut vc) = (cx.empty(dt, 2 * n * h * d)?, cx.empty(dt, 2 * n * h * d)?);
        let slots = cx.integers((0..n).map(|i| (i * 2 + 1) as i32))?;
        bytes(4 * n * h * d * dt.size(), move |g| {
            let (cache, rows) = ([2 * n / block, block, h, d], [n, h, d]);
            let (kc, vc) = (kc.shaped_mut(&cache)?, vc.shaped_mut(&cache)?);
            g.kv_cache_append(k.shaped(&rows)?, v.shaped(&rows)?, slots.view(), kc, vc)
        })
    }),
    problem("paged_attention", "decode", F32_BF16, |cx, dt| paged_decode(cx, dt, 8)),
    problem("paged_attention", "decode_multi_head", F32_BF16, |cx, dt| paged_decode(cx, dt, 32)),
    problem("flash_decode", "one_sequence", F32_BF16, |cx, dt| {
        let (len, [hq, hkv], d) = (cx.pick(64, 512, 65_536), [32, 8], cx.pick(16, 64, 128));
        let (s, cache, n) = ([1, hq, 1, d], [1, hkv, len, d], hkv * len * d);
        let (q, k, v, mut o) =
            (cx.normal(dt, hq * d)?, cx.normal(dt, n)?, cx.normal(dt, n)?, cx.empty(dt, hq * d)?);
        bytes(2 * n * dt.size(), move |g| {
            let (k, v) = (k.shaped(&cache)?, v.shaped(&cache)?);
            g.flash_decode(FlashDecode::new(q.shaped(&s)?, k, v, o.shaped_mut(&s)?))
        })
    }),
];

pub(super) const OPERATIONS: &[Operation] = &[both(
    "attention",
    |cx, c| Ok(forward(cx, c.dtype()?, Size::of_case(c)?)?),
    |cx, c| Ok(backward(cx, c.dtype()?, Size::of_case(c)?)?),
)];
