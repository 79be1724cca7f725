//! Decoding with a cache: validation, splits and launch.

use crate::buffer::{Buffer, View, ViewMut};
use crate::device::Caps;
use crate::dtype::DType;
use crate::engine::Engine;
use crate::engine::launch::{Grid, LANES, aligned16, code_of_op, dims, int, long, pow2};
use crate::engine::plan::{Problem, Reason, Variant};
use crate::error::Result;
use crate::ops::attention::*;
use crate::ops::core::Choice;
use crate::spec::attention::DECODE_WIDTHS;
use crate::spec::kernels::attention::*;

/// Elements of a head per thread and query heads per block (`GK_DECODE_EACH`, `GK_DECODE_HEADS`).
const EACH: usize = 8;
const HEADS: usize = 4;
/// Keys of a split at least, and splits at most.
const KEYS: usize = 256;
const SPLITS: usize = 128;

/// Query heads per block on matrix cores (`GK_DECODE_ROWS`).
const MATRIX_HEADS: usize = 16;

const SOURCE: &str = "kernels/common/attention/decode.c";
const MATRIX_SOURCE: &str = "kernels/common/attention/decode_matrix.c";

/// A decoding step.
#[derive(Debug, Clone, Copy, Hash)]
struct DecodeProblem {
    size: DecodeSizes,
    dtype: DType,
    /// Whether rows of q, k and v are whole runs of `EACH` elements at multiples of 16 bytes.
    wide: bool,
    /// The caller's number of splits.
    splits: Option<usize>,
}

/// How it runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct DecodePlan {
    /// On matrix cores, with room for 64 columns (`false`) or 128.
    matrix: Option<bool>,
    /// Threads per key.
    lanes: usize,
    /// Query heads of a block, and blocks of those per head of the cache.
    heads: usize,
    tiles: usize,
    /// Runs of keys.
    splits: usize,
    blocks: usize,
}

impl DecodeProblem {
    /// Whether matrix cores need room for 128 columns, or why they do not serve.
    fn matrix(&self, caps: &Caps) -> std::result::Result<bool, Reason> {
        match self.size.d {
            _ if !caps.ptx() => Err("the device has no matrix cores that the kernels use".into()),
            _ if !matches!(self.dtype, DType::F16 | DType::Bf16) => {
                Err("operands are neither f16 nor bf16".into())
            }
            _ if !self.wide => Err("rows are no whole items of 16 bytes at multiples of 16 bytes".into()),
            d if d > 128 => Err(format!("heads of {d} are wider than 128").into()),
            d => Ok(d > 64),
        }
    }

    /// Runs of keys so that `whole` blocks become `fill`.
    fn splits(&self, whole: usize, fill: usize) -> usize {
        let most = self.most();
        let wanted = match self.splits {
            Some(n) => n.min(most.max(1)),
            None => fill.div_ceil(whole.max(1)).min(most / KEYS),
        };
        wanted.clamp(1, SPLITS)
    }

    /// Keys of a sequence at most.
    fn most(&self) -> usize {
        self.size.keys.saturating_mul(self.size.table.max(1))
    }
}

impl Problem for DecodeProblem {
    type Plan = DecodePlan;

    const VARIANTS: &'static [Variant] = &[
        Variant { name: "matrix_cores", source: MATRIX_SOURCE },
        Variant { name: "keys_split", source: SOURCE },
        Variant { name: "sequences", source: SOURCE },
    ];

    fn plan(&self, variant: usize, caps: &Caps) -> std::result::Result<DecodePlan, Reason> {
        let s = &self.size;
        let matrix = if variant == 0 { Some(self.matrix(caps)?) } else { None };
        let lanes = pow2(s.d.div_ceil(EACH), LANES);
        let per = s.heads / s.kv_heads;
        let heads = per.min(if matrix.is_some() { MATRIX_HEADS } else { HEADS });
        let tiles = per.div_ceil(heads);
        let whole = s.tokens * s.kv_heads * tiles;
        let splits = match variant {
            // Two blocks on a multiprocessor read as fast as memory is.
            0 => self.splits(whole, caps.target_blocks() / 4),
            1 => match self.splits(whole, caps.target_blocks()) {
                1 => {
                    let most = self.most();
                    return Err(format!("{whole} blocks over {most} keys keep the device busy whole").into());
                }
                n => n,
            },
            _ => 1,
        };
        let blocks = whole * splits;
        if blocks > i32::MAX as usize {
            return Err(format!("{blocks} blocks exceed the grid").into());
        }
        Ok(DecodePlan { matrix, lanes, heads, tiles, splits, blocks })
    }

    fn prefers(&self, variant: usize, _caps: &Caps) -> bool {
        // One query head per head of the cache has no product that is worth the name.
        variant > 0 || self.size.heads > self.size.kv_heads
    }
}

/// Operands of a decoding step.
struct Decode<'a> {
    op: &'static str,
    problem: DecodeProblem,
    scale: Option<f64>,
    q: View<'a>,
    k: View<'a>,
    v: View<'a>,
    table: Option<View<'a>>,
    lens: Option<View<'a>>,
    cu: Option<View<'a>>,
    o: View<'a>,
    lse: Option<View<'a>>,
}

impl Engine {
    /// What serves 64 sequences of at most 4096 tokens, 32 query heads of 128 over 8 of the cache.
    pub(crate) fn explain_decode(&self, op: &'static str) -> Result<Choice> {
        let [keys, table] = if op == "flash_decode" { [4096, 0] } else { [16, 256] };
        let (batch, heads, kv_heads) = (64, 32, 8);
        let size = DecodeSizes {
            batch,
            tokens: batch,
            fresh: 1,
            heads,
            kv_heads,
            d: 128,
            keys,
            table,
            blocks: 1 << 14,
        };
        self.explain_problem(op, &DecodeProblem { size, dtype: DType::F32, wide: true, splits: None })
    }

    fn decode(&self, io: &Decode<'_>) -> Result<()> {
        let (s, dt) = (io.problem.size, io.q.dtype());
        if s.tokens == 0 {
            return Ok(());
        }
        let p = self.plan_with(io.op, &io.problem, io.q.dtype())?;
        let rows = s.tokens * s.heads;
        let part = (p.splits > 1)
            .then(|| self.scratch(dt.accumulator(), rows * p.splits * (s.d + 2)))
            .transpose()?;
        let args = DecodeArgs {
            q: self.arg_in(&io.q),
            k: self.arg_in(&io.k),
            v: self.arg_in(&io.v),
            table: self.arg_opt(io.table.as_ref()),
            lens: self.arg_opt(io.lens.as_ref()),
            cu: self.arg_opt(io.cu.as_ref()),
            o: self.arg_in(&io.o),
            lse: self.arg_opt(io.lse.as_ref()),
            part: self.arg_opt(part.as_ref().map(Buffer::view).as_ref()),
            err: self.arg_error(),
            size: dims([s.tokens, s.heads, s.kv_heads, s.fresh, s.d, s.keys, s.table, s.blocks]),
            sequences: long(s.batch),
            lanes: int(p.lanes),
            heads: int(p.heads),
            tiles: int(p.tiles),
            splits: int(p.splits),
            wide: i32::from(io.problem.wide),
            scale: io.scale.unwrap_or(1.0 / (s.d as f64).sqrt()),
            code: code_of_op(io.op),
        };
        self.launch_decode(dt, &p, args)?;
        let Some(part) = part else { return Ok(()) };
        let args = DecodeCombineArgs {
            part: self.arg_in(&part.view()),
            o: self.arg_in(&io.o),
            lse: self.arg_opt(io.lse.as_ref()),
            rows: long(rows),
            d: long(s.d),
            splits: int(p.splits),
        };
        self.launch(&DECODE_COMBINE, dt, "", Grid::Stride(rows * s.d), &args)
    }
}

impl Engine {
    /// The kernel of a plan.
    fn launch_decode(&self, dt: DType, p: &DecodePlan, args: DecodeArgs) -> Result<()> {
        let grid = Grid::Blocks([p.blocks, 1, 1]);
        let Some(wide) = p.matrix else {
            return self.launch(if p.heads == 1 { &DECODE_ONE } else { &DECODE }, dt, "", grid, &args);
        };
        let DecodeArgs { q, k, v, table, lens, cu, o, lse, part, err, size, sequences, .. } = args;
        let DecodeArgs { heads, tiles, splits, scale, code, .. } = args;
        let args = DecodeMatrixArgs {
            q,
            k,
            v,
            table,
            lens,
            cu,
            o,
            lse,
            part,
            err,
            size,
            sequences,
            heads,
            tiles,
            splits,
            scale,
            code,
        };
        self.launch(&DECODE_MATRIX, dt, DECODE_WIDTHS[usize::from(wide)], grid, &args)
    }
}

/// A step's problem.
fn decode_problem(size: DecodeSizes, operands: [&View<'_>; 3], splits: Option<usize>) -> DecodeProblem {
    let wide = size.d.is_multiple_of(EACH) && operands.into_iter().all(aligned16);
    DecodeProblem { size, dtype: operands[0].dtype(), wide, splits }
}

impl DecodeOps for Engine {
    fn kv_cache_append(
        &self,
        k: View<'_>,
        v: View<'_>,
        slots: View<'_>,
        k_cache: ViewMut<'_>,
        v_cache: ViewMut<'_>,
    ) -> Result<()> {
        const OP: &str = "kv_cache_append";
        let [n, row, count] = check_kv_cache_append([&k, &v, &slots], &k_cache, &v_cache)?;
        let (kc, vc) = (k_cache.as_view(), v_cache.as_view());
        self.check_owner_all(OP, &[("k", k), ("v", v), ("slots", slots), ("k_cache", kc), ("v_cache", vc)])?;
        let args = CacheAppendArgs {
            k: self.arg_in(&k),
            v: self.arg_in(&v),
            slots: self.arg_in(&slots),
            k_cache: self.arg_out(&k_cache),
            v_cache: self.arg_out(&v_cache),
            err: self.arg_error(),
            n: long(n),
            row: long(row),
            count: long(count),
            wide: i32::from(slots.dtype() == DType::I64),
            code: code_of_op(OP),
        };
        self.launch(&CACHE_APPEND, k.dtype(), "", Grid::Blocks([n, 1, 1]), &args)
    }

    fn flash_decode(&self, io: FlashDecode<'_>) -> Result<()> {
        const OP: &str = "flash_decode";
        let size = check_flash_decode(&io)?;
        let (o, lse, lens) = (io.o.as_view(), io.lse.as_ref().map(|l| l.as_view()), io.key_lengths);
        let operands = [
            ("q", Some(io.q)),
            ("k", Some(io.k)),
            ("v", Some(io.v)),
            ("key_lengths", lens),
            ("o", Some(o)),
            ("lse", lse),
        ];
        self.check_owner_all(OP, &operands)?;
        let problem = decode_problem(size, [&io.q, &io.k, &io.v], io.splits);
        let (q, k, v, scale) = (io.q, io.k, io.v, io.scale);
        self.decode(&Decode { op: OP, problem, scale, q, k, v, table: None, lens, cu: None, o, lse })
    }

    fn paged_attention(&self, io: PagedAttention<'_>) -> Result<()> {
        const OP: &str = "paged_attention";
        let size = check_paged_attention(&io)?;
        let (o, cu) = (io.o.as_view(), io.cu_seqlens_q);
        let operands = [
            ("q", Some(io.q)),
            ("k_cache", Some(io.k_cache)),
            ("v_cache", Some(io.v_cache)),
            ("block_table", Some(io.block_table)),
            ("seq_lens", Some(io.seq_lens)),
            ("cu_seqlens_q", cu),
            ("o", Some(o)),
        ];
        self.check_owner_all(OP, &operands)?;
        self.decode(&Decode {
            op: OP,
            problem: decode_problem(size, [&io.q, &io.k_cache, &io.v_cache], None),
            scale: io.scale,
            q: io.q,
            k: io.k_cache,
            v: io.v_cache,
            table: Some(io.block_table),
            lens: Some(io.seq_lens),
            cu,
            o,
            lse: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::MatrixCores;
    use crate::engine::geometry::tests::{chosen, gpu};

    fn step(batch: usize, keys: usize, splits: Option<usize>) -> DecodeProblem {
        let (heads, kv_heads) = (24, 4);
        let size =
            DecodeSizes { batch, tokens: batch, fresh: 1, heads, kv_heads, d: 80, keys, table: 0, blocks: 0 };
        DecodeProblem { size, dtype: DType::F32, wide: true, splits }
    }

    #[test]
    fn few_long_sequences_are_split() {
        for (p, want) in [
            (step(1, 8192, None), "keys_split"),
            (step(1, 300, None), "sequences"),
            (step(4096, 8192, None), "sequences"),
            (step(4096, 8192, Some(3)), "keys_split"),
            (step(1, 8192, Some(1)), "sequences"),
        ] {
            assert_eq!(chosen(&p, &gpu()), want, "{p:?}");
        }
        let p = step(2, 300, None).plan(2, &gpu()).unwrap();
        assert_eq!(p, DecodePlan { matrix: None, lanes: 16, heads: 4, tiles: 2, splits: 1, blocks: 16 });
    }

    #[test]
    fn shared_heads_of_16_bits_are_read_by_matrix_cores() {
        let with = Caps { matrix_cores: Some(MatrixCores::Ptx), ..gpu() };
        let p = DecodeProblem { dtype: DType::Bf16, ..step(64, 4096, None) };
        assert_eq!((chosen(&p, &with), chosen(&p, &gpu())), ("matrix_cores", "keys_split"));
        // Six query heads per head of the cache are one block, of 256 in all.
        let plan = p.plan(0, &with).unwrap();
        assert_eq!((plan.matrix, plan.heads, plan.tiles, plan.blocks), (Some(true), 6, 1, 512));
        let of = |size| DecodeProblem { size, ..p };
        assert_eq!(of(DecodeSizes { d: 64, ..p.size }).plan(0, &with).unwrap().matrix, Some(false));
        assert!(of(DecodeSizes { d: 136, ..p.size }).plan(0, &with).is_err_and(|e| e.contains("wider")));
        assert_ne!(chosen(&of(DecodeSizes { kv_heads: 24, ..p.size }), &with), "matrix_cores");
        let narrow = DecodeProblem { wide: false, ..p };
        assert!(narrow.plan(0, &with).is_err_and(|e| e.contains("16 bytes")));
        assert!(step(64, 4096, None).plan(0, &with).is_err_and(|e| e.contains("bf16")));
    }
}
