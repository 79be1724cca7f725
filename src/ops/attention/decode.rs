//! Attention of new tokens against a cache, and the cache: signatures and checks.

use crate::buffer::{View, ViewMut};
use crate::dtype::DType;
use crate::error::{GpuError, Result};
use crate::ops::check;

/// Elements of a head at most.
pub const MAX_DECODE_HEAD: usize = 256;

io_struct! {
    /// Operands of [`DecodeOps::flash_decode`]; contiguous.
    #[derive(Debug)]
    pub struct FlashDecode<'a> {
        /// Queries of the new tokens [B, Hq, Lq, D], D at most [`MAX_DECODE_HEAD`].
        pub q: View<'a>,
        /// Keys [B, Hkv, Lk, D]; Hkv divides Hq.
        pub k: View<'a>,
        /// Values [B, Hkv, Lk, D].
        pub v: View<'a>,
        /// Result [B, Hq, Lq, D].
        pub o: ViewMut<'a>,
        /// Tokens of each sequence, the new ones included, i32 `[B]`, Lq to Lk; Lk where absent.
        pub key_lengths: Option<View<'a>>,
        /// ln sum e^score, f32 (f64 for f64 data) [B, Hq, Lq].
        pub lse: Option<ViewMut<'a>>,
        /// Factor of the products; 1/sqrt(D) where absent.
        pub scale: Option<f64>,
        /// Runs of keys that are computed side by side; the backend's choice where absent. No result depends on it but by rounding.
        pub splits: Option<usize>,
    }
}

io_struct! {
    /// Operands of [`DecodeOps::paged_attention`]; contiguous.
    #[derive(Debug)]
    pub struct PagedAttention<'a> {
        /// Queries: one per sequence [B, Hq, D], or with `cu_seqlens_q` those of all sequences [total, Hq, D]; D at most [`MAX_DECODE_HEAD`].
        pub q: View<'a>,
        /// Keys [blocks, block, Hkv, D]; Hkv divides Hq.
        pub k_cache: View<'a>,
        /// Values, as the keys.
        pub v_cache: View<'a>,
        /// Blocks of each sequence in order, i32 [B, M]; what a sequence does not need may be anything.
        pub block_table: View<'a>,
        /// Tokens of each sequence in the cache, the new ones included, i32 `[B]`.
        pub seq_lens: View<'a>,
        /// Result, q's shape.
        pub o: ViewMut<'a>,
        /// Where the queries of each sequence begin, i32 [B + 1], rising from 0 to total.
        pub cu_seqlens_q: Option<View<'a>>,
        /// Factor of the products; 1/sqrt(D) where absent.
        pub scale: Option<f64>,
    }
}

op_family! {
    /// Decoding with a cache of keys and values. f32, f16, bf16 and f64. No gradients. Errors: `Invalid` for shapes, dtypes, layout, overlap.
    pub trait DecodeOps : Attention => DECODE_OPS {
        /// Row i of k and v [n, Hkv, D] to flat slot `slots[i]` (i32, i64 `[n]`) of the caches [blocks, block, Hkv, D], slot = block number * block + offset.
        /// -1 skips a row, any other slot that is not in the cache is `IndexOutOfRange`; of several rows for one slot the last is kept.
        fn kv_cache_append(&self, k: View<'_>, v: View<'_>, slots: View<'_>, k_cache: ViewMut<'_>, v_cache: ViewMut<'_>) -> Result<()>;
        /// softmax(scale q K^T) V for the last Lq tokens of each sequence, causal: token i sees the keys up to its own. A length out of range is
        /// `IndexOutOfRange`; its rows are 0. Dao (2023, Flash-Decoding).
        fn flash_decode(&self, io: FlashDecode<'_>) -> Result<()>;
        /// The same with keys and values in blocks of a cache. Lengths, offsets and block numbers out of range are `IndexOutOfRange`. Kwon et al. (2023).
        fn paged_attention(&self, io: PagedAttention<'_>) -> Result<()>;
    }
}

type Named<'a> = (&'static str, View<'a>);

/// Sizes of a decoding step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct DecodeSizes {
    /// Sequences.
    pub(crate) batch: usize,
    /// New tokens of all sequences, and of each (1 for packed ones).
    pub(crate) tokens: usize,
    pub(crate) fresh: usize,
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) d: usize,
    /// Keys of a sequence at most, or tokens of a block.
    pub(crate) keys: usize,
    /// Blocks per sequence (0 without a table) and of the cache.
    pub(crate) table: usize,
    pub(crate) blocks: usize,
}

fn four(op: &'static str, arg: &'static str, v: &View<'_>) -> Result<[usize; 4]> {
    <[usize; 4]>::try_from(v.shape())
        .map_err(|_| GpuError::invalid(op, arg, "four axes", format!("shape {:?}", v.shape())))
}

fn check_heads(op: &'static str, s: &DecodeSizes, scale: Option<f64>) -> Result<()> {
    if s.kv_heads == 0 || !s.heads.is_multiple_of(s.kv_heads) {
        let want = format!("a number of heads that divides {}", s.heads);
        return Err(GpuError::invalid(op, "k", want, format!("{}", s.kv_heads)));
    }
    if s.d == 0 || s.d > MAX_DECODE_HEAD {
        let want = format!("heads of 1 to {MAX_DECODE_HEAD} elements");
        return Err(GpuError::invalid(op, "q", want, format!("{}", s.d)));
    }
    match scale {
        Some(f) if !f.is_finite() => Err(GpuError::invalid(op, "scale", "a finite number", format!("{f}"))),
        _ => Ok(()),
    }
}

/// Checks of [`DecodeOps::kv_cache_append`]; rows, elements of one, slots.
pub(crate) fn check_kv_cache_append<'a>(
    [k, v, slots]: [&View<'a>; 3],
    k_cache: &ViewMut<'a>,
    v_cache: &ViewMut<'a>,
) -> Result<[usize; 3]> {
    const OP: &str = "kv_cache_append";
    check::float(OP, "k", k)?;
    let &[n, heads, d] = k.shape() else {
        return Err(GpuError::invalid(OP, "k", "shape [n, H, D]", format!("{:?}", k.shape())));
    };
    check::contiguous(OP, "k", k)?;
    check::exact(OP, "v", v, k.shape(), k.dtype())?;
    check::one_of(OP, "slots", slots, &[DType::I32, DType::I64])?;
    check::exact(OP, "slots", slots, &[n], slots.dtype())?;
    let [blocks, block, ..] = four(OP, "k_cache", &k_cache.as_view())?;
    let shape = [blocks, block, heads, d];
    let mut seen = vec![("k", *k), ("v", *v), ("slots", *slots)];
    check::exact_output(OP, "k_cache", k_cache, &shape, k.dtype(), &mut seen)?;
    check::exact_output(OP, "v_cache", v_cache, &shape, k.dtype(), &mut seen)?;
    let slots = if k_cache.numel() == 0 { 0 } else { blocks * block };
    Ok([n, heads * d, slots])
}

/// Checks of [`DecodeOps::flash_decode`].
pub(crate) fn check_flash_decode(io: &FlashDecode<'_>) -> Result<DecodeSizes> {
    const OP: &str = "flash_decode";
    check::float(OP, "q", &io.q)?;
    check::contiguous(OP, "q", &io.q)?;
    let ([batch, heads, fresh, d], [_, kv_heads, keys, _]) = (four(OP, "q", &io.q)?, four(OP, "k", &io.k)?);
    let (dt, kv) = (io.q.dtype(), [batch, kv_heads, keys, d]);
    check::exact(OP, "k", &io.k, &kv, dt)?;
    check::exact(OP, "v", &io.v, &kv, dt)?;
    let tokens = if io.q.numel() == 0 { 0 } else { batch * fresh };
    let s = DecodeSizes { batch, tokens, fresh, heads, kv_heads, d, keys, table: 0, blocks: 0 };
    check_heads(OP, &s, io.scale)?;
    if keys < fresh {
        return Err(GpuError::invalid(OP, "k", format!("at least {fresh} keys, the new ones"), format!("{keys}")));
    }
    let mut seen: Vec<Named<'_>> = vec![("q", io.q), ("k", io.k), ("v", io.v)];
    if let Some(l) = &io.key_lengths {
        check::exact(OP, "key_lengths", l, &[batch], DType::I32)?;
        seen.push(("key_lengths", *l));
    }
    if io.splits == Some(0) {
        return Err(GpuError::invalid(OP, "splits", "at least 1", "0"));
    }
    check::exact_output(OP, "o", &io.o, io.q.shape(), dt, &mut seen)?;
    if let Some(l) = &io.lse {
        check::exact_output(OP, "lse", l, &[batch, heads, fresh], dt.accumulator(), &mut seen)?;
    }
    Ok(s)
}

/// Checks of [`DecodeOps::paged_attention`].
pub(crate) fn check_paged_attention(io: &PagedAttention<'_>) -> Result<DecodeSizes> {
    const OP: &str = "paged_attention";
    check::float(OP, "q", &io.q)?;
    check::contiguous(OP, "q", &io.q)?;
    let &[tokens, heads, d] = io.q.shape() else {
        return Err(GpuError::invalid(OP, "q", "shape [tokens, H, D]", format!("{:?}", io.q.shape())));
    };
    let [blocks, block, kv_heads, _] = four(OP, "k_cache", &io.k_cache)?;
    let (dt, kv) = (io.q.dtype(), [blocks, block, kv_heads, d]);
    check::exact(OP, "k_cache", &io.k_cache, &kv, dt)?;
    check::exact(OP, "v_cache", &io.v_cache, &kv, dt)?;
    check::dtype(OP, "block_table", &io.block_table, DType::I32)?;
    let [batch, table] = check::matrix(OP, "block_table", &io.block_table)?;
    if (table == 0 || block == 0) && tokens > 0 {
        return Err(GpuError::invalid(OP, "block_table", "at least one block of one token", "none"));
    }
    check::exact(OP, "seq_lens", &io.seq_lens, &[batch], DType::I32)?;
    let mut seen: Vec<Named<'_>> = vec![
        ("q", io.q),
        ("k_cache", io.k_cache),
        ("v_cache", io.v_cache),
        ("block_table", io.block_table),
        ("seq_lens", io.seq_lens),
    ];
    match &io.cu_seqlens_q {
        Some(cu) => {
            check::exact(OP, "cu_seqlens_q", cu, &[batch + 1], DType::I32)?;
            if batch == 0 && tokens > 0 {
                return Err(GpuError::invalid(OP, "cu_seqlens_q", "at least one sequence", "none"));
            }
            seen.push(("cu_seqlens_q", *cu));
        }
        None if tokens == batch => {}
        None => {
            let want = format!("{batch} queries, one per sequence, without `cu_seqlens_q`");
            return Err(GpuError::invalid(OP, "q", want, format!("{tokens}")));
        }
    }
    let tokens = if io.q.numel() == 0 { 0 } else { tokens };
    let s = DecodeSizes { batch, tokens, fresh: 1, heads, kv_heads, d, keys: block, table, blocks };
    check_heads(OP, &s, io.scale)?;
    check::exact_output(OP, "o", &io.o, io.q.shape(), dt, &mut seen)?;
    Ok(s)
}
