//! Decoding with a cache on the CPU, in f64, one query after the other.

use crate::buffer::{View, ViewMut};
use crate::cpu::scratch::*;
use crate::cpu::{Kernels, gather, gather_f64, gather_index, store_f64};
use crate::error::Result;
use crate::ops::attention::*;

/// The keys of one query, in order: where each begins in the cache, `None` for a block out of range.
struct Query {
    /// Number of the row of q (and o) for head 0, and rows between heads.
    row: usize,
    step: usize,
    keys: Vec<Option<usize>>,
}

/// softmax(scale q K^T) V of one row and ln sum e^score; keys that are `None` are 0.
fn attend(q: &[f64], [k, v]: [&[f64]; 2], keys: &[Option<usize>], scale: f64) -> Result<(Vec<f64>, f64)> {
    let d = q.len();
    let dot = |at: &Option<usize>| {
        at.map_or(0.0, |at| q.iter().zip(&k[at..at + d]).map(|(a, b)| a * b).sum::<f64>())
    };
    let scores: Vec<f64> = keys.iter().map(|at| scale * dot(at)).try_vec()?;
    let top = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let (mut out, mut sum) = (filled(d, 0.0)?, 0.0);
    // A score of -inf has no weight.
    for (at, s) in keys.iter().zip(scores) {
        let p = if s == f64::NEG_INFINITY { 0.0 } else { (s - top).exp() };
        sum += p;
        if let Some(at) = *at {
            out.iter_mut().zip(&v[at..at + d]).for_each(|(o, v)| *o += p * v);
        }
    }
    if sum > 0.0 {
        out.iter_mut().for_each(|o| *o /= sum);
    }
    Ok((out, top + sum.ln()))
}

/// Copies rows to the slots of a cache.
fn append(
    op: &'static str,
    from: View<'_>,
    to: &ViewMut<'_>,
    row: usize,
    slots: &[Option<usize>],
) -> Result<()> {
    let (from, mut cache) = (gather_f64(op, from)?, gather_f64(op, to.as_view())?);
    for (i, slot) in slots.iter().enumerate() {
        if let Some(s) = slot {
            cache[s * row..(s + 1) * row].copy_from_slice(&from[i * row..(i + 1) * row]);
        }
    }
    store_f64(op, to, &cache)
}

impl Kernels {
    /// Rows of all queries, o and LSE; the heads of a key lie `head_step` elements apart.
    fn decode(
        &self,
        op: &'static str,
        s: &DecodeSizes,
        scale: Option<f64>,
        [q, k, v]: [View<'_>; 3],
        queries: &[Query],
        head_step: usize,
    ) -> Result<(Vec<f64>, Vec<f64>)> {
        let (q, k, v) = (gather_f64(op, q)?, gather_f64(op, k)?, gather_f64(op, v)?);
        let scale = scale.unwrap_or(1.0 / (s.d as f64).sqrt());
        let (mut out, mut lse) = (filled(q.len(), 0.0)?, filled(s.tokens * s.heads, 0.0)?);
        for query in queries {
            for h in 0..s.heads {
                let head = h / (s.heads / s.kv_heads) * head_step;
                let keys: Vec<Option<usize>> =
                    query.keys.iter().map(|at| at.map(|at| at + head)).try_vec()?;
                let row = query.row + h * query.step;
                let at = row * s.d..(row + 1) * s.d;
                let (o, l) = attend(&q[at.clone()], [&k, &v], &keys, scale)?;
                out[at].copy_from_slice(&o);
                lse[row] = l;
            }
        }
        Ok((out, lse))
    }
}

impl DecodeOps for Kernels {
    fn kv_cache_append(
        &self,
        k: View<'_>,
        v: View<'_>,
        slots: View<'_>,
        k_cache: ViewMut<'_>,
        v_cache: ViewMut<'_>,
    ) -> Result<()> {
        const OP: &str = "kv_cache_append";
        let [_, row, count] = check_kv_cache_append([&k, &v, &slots], &k_cache, &v_cache)?;
        let _timed = self.count("kv_cache_append");
        let skipped: Vec<bool> = gather_f64(OP, slots)?.into_iter().map(|s| s == -1.0).try_vec()?;
        let places = gather_index(OP, slots)?;
        let places: Vec<Option<usize>> = places.into_iter().map(|s| s.filter(|&s| s < count)).try_vec()?;
        if places.iter().zip(skipped).any(|(s, skipped)| s.is_none() && !skipped) {
            self.flag_index_error(OP);
        }
        append(OP, k, &k_cache, row, &places)?;
        append(OP, v, &v_cache, row, &places)
    }

    fn flash_decode(&self, io: FlashDecode<'_>) -> Result<()> {
        const OP: &str = "flash_decode";
        let s = check_flash_decode(&io)?;
        let _timed = self.count("flash_decode");
        if s.tokens == 0 {
            return Ok(());
        }
        let lens: Vec<i32> = match io.key_lengths {
            Some(l) => gather(OP, l)?,
            None => repeated(s.batch, s.keys as i32)?,
        };
        let mut queries = with_capacity(s.tokens)?;
        for (b, &len) in lens.iter().enumerate() {
            let len = usize::try_from(len).ok();
            if len.is_none_or(|n| n > s.keys || n < s.fresh) {
                self.flag_index_error(OP);
            }
            let len = len.unwrap_or(0).min(s.keys);
            for i in 0..s.fresh {
                let seen = if len < s.fresh { 0 } else { i + len - s.fresh + 1 };
                let keys = (0..seen).map(|j| Some((b * s.kv_heads * s.keys + j) * s.d)).try_vec()?;
                queries.try_push(Query { row: b * s.heads * s.fresh + i, step: s.fresh, keys })?;
            }
        }
        let (o, lse) = self.decode(OP, &s, io.scale, [io.q, io.k, io.v], &queries, s.keys * s.d)?;
        store_f64(OP, &io.o, &o)?;
        io.lse.map_or(Ok(()), |l| store_f64(OP, &l, &lse))
    }

    fn paged_attention(&self, io: PagedAttention<'_>) -> Result<()> {
        const OP: &str = "paged_attention";
        let s = check_paged_attention(&io)?;
        let _timed = self.count("paged_attention");
        if s.tokens == 0 {
            return Ok(());
        }
        let (table, lens): (Vec<i32>, Vec<i32>) = (gather(OP, io.block_table)?, gather(OP, io.seq_lens)?);
        let cu: Option<Vec<i32>> = io.cu_seqlens_q.map(|c| gather(OP, c)).transpose()?;
        let mut queries = with_capacity(s.tokens)?;
        for t in 0..s.tokens {
            // The last sequence that begins at or before the token.
            let (b, at, fresh) = match &cu {
                None => (t, 0, 1),
                Some(cu) => {
                    let b = (1..s.batch).take_while(|&b| i64::from(cu[b]) <= t as i64).last().unwrap_or(0);
                    (b, t as i64 - i64::from(cu[b]), i64::from(cu[b + 1]) - i64::from(cu[b]))
                }
            };
            let (len, most) = (i64::from(lens[b]), (s.table * s.keys) as i64);
            let inside = (0..fresh).contains(&at);
            if !inside || len < fresh || len > most {
                self.flag_index_error(OP);
            }
            let len = len.min(most);
            let seen = if inside && len >= fresh { at + len - fresh + 1 } else { 0 };
            let mut keys = with_capacity(seen as usize)?;
            for j in 0..seen as usize {
                let block = usize::try_from(table[b * s.table + j / s.keys]).ok().filter(|&n| n < s.blocks);
                if block.is_none() {
                    self.flag_index_error(OP);
                }
                keys.try_push(block.map(|n| (n * s.keys + j % s.keys) * s.kv_heads * s.d))?;
            }
            queries.try_push(Query { row: t * s.heads, step: 1, keys })?;
        }
        let (o, _) = self.decode(OP, &s, io.scale, [io.q, io.k_cache, io.v_cache], &queries, s.d)?;
        store_f64(OP, &io.o, &o)
    }
}
