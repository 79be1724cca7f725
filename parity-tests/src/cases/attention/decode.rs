//! Decoding with a cache of keys and values.

use trefoil::DType;
use trefoil::ops::attention::{FlashDecode, PagedAttention};

use super::Bound::{Derived, Exact};
use super::{Kernel, k};
use crate::device::{Cx, R};
use crate::sampler::Dom::Any;
use crate::sampler::Sample;

fn append(cx: &Cx<'_>) -> R {
    let (kc, vc) = (cx.inout("K_cache", "K_cache")?, cx.inout("V_cache", "V_cache")?);
    Ok(cx.gpu.kv_cache_append(cx.x("K")?, cx.x("V")?, cx.x("slots")?, kc.m(), vc.m())?)
}

fn flash(cx: &Cx<'_>) -> R {
    let q = cx.x("Q")?;
    let o = cx.like("O", &q)?;
    let lse = cx.wants("LSE").then(|| cx.out("LSE", cx.dtype.accumulator(), &q.shape()[..3])).transpose()?;
    let io = FlashDecode::new(q, cx.x("K")?, cx.x("V")?, o.m())
        .key_lengths(cx.opt("key_lengths"))
        .lse(lse.as_ref().map(|t| t.m()))
        .scale(cx.opt_f("scale")?)
        .splits(cx.n("splits")?);
    Ok(cx.gpu.flash_decode(io)?)
}

fn paged(cx: &Cx<'_>) -> R {
    let q = cx.x("Q")?;
    let o = cx.like("O", &q)?;
    let (kc, vc, table) = (cx.x("K_cache")?, cx.x("V_cache")?, cx.x("block_table")?);
    let io = PagedAttention::new(q, kc, vc, table, cx.x("seq_lens")?, o.m())
        .cu_seqlens_q(cx.opt("cu_seqlens_q"))
        .scale(cx.opt_f("scale")?);
    Ok(cx.gpu.paged_attention(io)?)
}

/// The first `n` of 0 .. `all` in a random order.
fn shuffled(s: &mut Sample, n: usize, all: usize) -> Vec<i64> {
    let mut v: Vec<i64> = (0..all as i64).collect();
    (1..all).rev().for_each(|i| v.swap(i, s.below(i + 1)));
    v.truncate(n);
    v
}

fn append_sample(s: &mut Sample) {
    let (n, h, d) = ([0, 1, 5, 300][s.below(4)], 1 + s.below(3), [1, 8, 33][s.below(3)]);
    let (blocks, block) = (n / 4 + 2, [4, 8][s.below(2)]);
    s.put("K", &[n, h, d], Any);
    s.put("V", &[n, h, d], Any);
    let mut slots = shuffled(s, n, blocks * block);
    if n > 3 {
        // One that is skipped, and two rows for one slot.
        slots[0] = -1;
        slots[1] = slots[3];
    }
    s.ids_of("slots", &[n], &slots);
    s.put("K_cache", &[blocks, block, h, d], Any);
    s.put("V_cache", &[blocks, block, h, d], Any);
}

/// Heads of the queries and of the cache, elements of one.
fn heads(s: &mut Sample) -> [usize; 3] {
    let kv = 1 + s.below(2);
    // Rows of whole items of 16 bytes are for matrix cores.
    let widths = if s.aligned().is_some() { [8, 64, 40, 64, 128, 256] } else { [3, 8, 40, 64, 128, 256] };
    [kv * [1, 2, 4, 6][s.below(4)], kv, widths[s.below(6)]]
}

fn flash_sample(s: &mut Sample) {
    let ([hq, hkv, d], b) = (heads(s), 1 + s.below(3));
    let (lq, lk) = (1 + s.below(3), [3, 40, 130, 700][s.below(4)]);
    s.put("Q", &[b, hq, lq, d], Any);
    s.put("K", &[b, hkv, lk, d], Any);
    s.put("V", &[b, hkv, lk, d], Any);
    if s.coin() {
        let lengths: Vec<i64> = (0..b).map(|_| (lq + s.below(lk - lq + 1)) as i64).collect();
        s.ints("key_lengths", DType::I32, &[b], &lengths);
    }
    let splits = 1 + s.below(5);
    s.arg("splits", splits);
}

fn paged_sample(s: &mut Sample) {
    let ([hq, hkv, d], b) = (heads(s), 1 + s.below(3));
    let (block, most) = ([1, 4, 16][s.below(3)], [5, 40, 300][s.below(3)]);
    let packed = s.coin();
    let fresh: Vec<usize> = (0..b).map(|_| if packed { s.below(4) } else { 1 }).collect();
    let lens: Vec<usize> = fresh.iter().map(|n| n + s.below(most)).collect();
    let table = lens.iter().map(|n| n.div_ceil(block)).max().unwrap_or(0).max(1);
    // Tables are made for the longest sequence that may come, which decides how far keys are split.
    let table =
        if s.aligned().is_some_and(|i| i % 3 == 0) { table.max(600usize.div_ceil(block)) } else { table };
    let blocks = b * table + 2;
    let order = shuffled(s, b * table, blocks);
    let used = |i: usize| i % table < lens[i / table].div_ceil(block);
    let entries: Vec<i64> = order.iter().enumerate().map(|(i, &n)| if used(i) { n } else { -1 }).collect();
    s.put("Q", &[fresh.iter().sum(), hq, d], Any);
    s.put("K_cache", &[blocks, block, hkv, d], Any);
    s.put("V_cache", &[blocks, block, hkv, d], Any);
    s.ints("block_table", DType::I32, &[b, table], &entries);
    s.ints("seq_lens", DType::I32, &[b], &lens.iter().map(|&n| n as i64).collect::<Vec<_>>());
    if packed {
        let mut cu = vec![0];
        fresh.iter().for_each(|&n| cu.push(cu[cu.len() - 1] + n as i64));
        s.ints("cu_seqlens_q", DType::I32, &[b + 1], &cu);
    }
}

pub(super) const DECODE: &[Kernel] = &[
    k(
        "kv_cache_append",
        "B7.2",
        "K, V, slots:idx, K_cache, V_cache",
        "-",
        "K_cache, V_cache",
        &["kv_cache_append"],
        append,
    )
    .bound(Exact)
    .sample(append_sample),
    k(
        "paged_attention",
        "B7.3",
        "Q, K_cache, V_cache, block_table:i32, seq_lens:i32, [cu_seqlens_q:i32]",
        "scale=null",
        "O",
        &["paged_attention"],
        paged,
    )
    .bound(Derived)
    .sample(paged_sample),
    k(
        "flash_decode",
        "B7.4",
        "Q, K, V, [key_lengths:i32]",
        "scale=null, splits=2",
        "O, LSE:f32",
        &["flash_decode"],
        flash,
    )
    .bound(Derived)
    .sample(flash_sample),
];
