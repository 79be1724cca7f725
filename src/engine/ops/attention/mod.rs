//! Attention: validation and launch.

mod rope;

use crate::spec::kernels::attention::*;
use crate::spec::attention::{HEAD_WIDTHS};
use crate::buffer::{Buffer, GradMut, View};
use crate::driver::Arg;
use crate::engine::Engine;
use crate::engine::launch::{Grid, MAX_GRID_YZ, aligned16, code_of_op, dims, real};
use crate::engine::ops::random::keep_scale;
use crate::error::{GpuError, Result};
use crate::ops::attention::*;
use crate::spec::KernelSpec;

/// Queries and keys per tile.
const TILE: usize = 64;
/// A bound that no distance of positions exceeds.
const UNBOUNDED: usize = 1 << 30;

/// Steps by batch, head and row.
fn steps(v: &View<'_>) -> [usize; 3] {
    let (n, s) = (v.shape(), v.layout().strides());
    std::array::from_fn(|i| if n[i] > 1 { s[i] } else { 0 })
}

/// Whether every row begins at a multiple of 16 bytes.
fn wide(v: &View<'_>) -> usize {
    let w = 16 / v.dtype().size();
    (aligned16(v) && steps(v).iter().all(|s| s.is_multiple_of(w))) as usize
}

/// Strides of an optional operand that repeats over the scores; all 0 without one.
fn repeated(v: Option<&View<'_>>, scores: [usize; 4]) -> Result<[usize; 4]> {
    let Some(v) = v else { return Ok([0; 4]) };
    let v = v.broadcast_to(&scores)?;
    Ok(std::array::from_fn(|i| if scores[i] > 1 { v.layout().strides()[i] } else { 0 }))
}

/// A call whose operands are checked: what all its kernels share.
struct Call<'a> {
    engine: &'a Engine,
    size: AttentionSize,
    dtype: crate::DType,
    packed: bool,
    op: &'static str,
    head: Vec<Arg>,
}

/// Position of `tiles` in the head.
const TILES: usize = 12;

impl Call<'_> {
    /// Tiles per head along one of the lengths. How packed sequences are cut is known on the device only: each can leave a tile incomplete.
    fn tiles(&self, length: usize) -> usize {
        length.div_ceil(TILE) + if self.packed { self.size.batch + 1 } else { 0 }
    }

    /// Launches for tiles of `length` x `heads`, with results of up to `columns` columns; 0 for kernels that do not cut columns.
    fn launch(
        &self,
        kernel: &'static KernelSpec,
        length: usize,
        heads: usize,
        columns: usize,
        tail: &[Arg],
    ) -> Result<()> {
        let tiles = self.tiles(length);
        let (op, slices) = match columns {
            0 => ("", 1),
            1..=64 => (HEAD_WIDTHS[0], 1),
            _ => (HEAD_WIDTHS[1], columns.div_ceil(128)),
        };
        let mut args = self.head.clone();
        args[TILES] = Arg::I32(tiles as i32);
        args.extend_from_slice(tail);
        self.run(kernel, op, [tiles.saturating_mul(heads).saturating_mul(self.size.outer), slices, 1], &args)
    }

    fn run(
        &self,
        kernel: &'static KernelSpec,
        op: &'static str,
        blocks: [usize; 3],
        args: &[Arg],
    ) -> Result<()> {
        if blocks[0] > i32::MAX as usize || blocks[1] > MAX_GRID_YZ {
            let got = format!("{} tiles, {} slices", blocks[0], blocks[1]);
            return Err(GpuError::invalid(self.op, "q", "at most 2^31 - 1 tiles of 64 x 64", got));
        }
        self.engine.launch_list(kernel, self.dtype, op, Grid::Blocks(blocks), args)
    }
}

impl Engine {
    /// The parameters that the kernels of a call share; `tiles` is filled in at the launch.
    fn attention_call(
        &self,
        op: &'static str,
        p: &Attention<'_>,
        size: AttentionSize,
        [q, k]: [&View<'_>; 2],
        m: &AttentionMask<'_>,
    ) -> Result<Call<'_>> {
        let dtype = q.dtype();
        let seq = |i: usize| m.sequences.map(|s| s[i]);
        let operands = [
            ("q", Some(*q)),
            ("k", Some(*k)),
            ("bias", m.bias),
            ("mask", m.mask),
            ("key_lengths", m.key_lengths),
            ("sequences.0", seq(0)),
            ("sequences.1", seq(1)),
        ];
        self.own_all(op, &operands)?;
        let AttentionSize { batch, heads, kv_heads, lq, lk, d, dv, outer } = size;
        let ([a, b, c], [e, f, g]) = (steps(q), steps(k));
        let scores = [outer, heads, lq, lk];
        let (bias, mask) = (repeated(m.bias.as_ref(), scores)?, repeated(m.mask.as_ref(), scores)?);
        let bound = |b: Option<usize>| Arg::I32(b.map_or(UNBOUNDED, |b| b.min(UNBOUNDED)) as i32);
        let [left, right] = p.bounds();
        let [seed, stream, offset, more] = self.rng_args(op, &p.rng)?;
        let mut head: Vec<Arg> =
            operands.iter().map(|(_, v)| v.as_ref().map_or(Arg::Mem(None), |v| self.arg_in(v))).collect();
        head.extend([
            more,
            self.arg_error(),
            dims([batch, heads, kv_heads, lq, lk, d, dv]),
            dims([a, b, c, e, f, g, wide(q), wide(k)]),
            dims(bias.into_iter().chain(mask)),
            Arg::I32(0),
            real(dtype, p.factor(d)),
            real(dtype, p.softcap),
            bound(left),
            bound(right),
            Arg::I32((p.causal == Some(Causal::BottomRight)) as i32),
            seed,
            stream,
            offset,
            Arg::F32((1.0 - p.dropout) as f32),
            real(dtype, keep_scale(p.dropout)),
            Arg::I32(code_of_op(op)),
        ]);
        Ok(Call { engine: self, size, dtype, packed: m.sequences.is_some(), op, head })
    }
}

/// Accumulation flag of an optional gradient.
fn adds(g: &Option<GradMut<'_>>) -> usize {
    g.as_ref().is_some_and(|g| g.accumulate) as usize
}

impl AttentionOps for Engine {
    fn attention(&self, p: &Attention<'_>, io: AttentionIo<'_>) -> Result<()> {
        const OP: &str = "attention";
        let size = check_attention(p, &io)?;
        let (o, lse) = (io.o.as_view(), io.lse.as_ref().map(|l| l.as_view()));
        let probs = io.p.as_ref().map(|l| l.as_view());
        let call = self.attention_call(OP, p, size, [&io.q, &io.k], &io.mask)?;
        self.own_all(OP, &[("v", Some(io.v)), ("o", Some(o)), ("lse", lse), ("p", probs)])?;
        let mut scratch: Option<Buffer> = None;
        let lse = match (lse, probs) {
            (None, Some(_)) => {
                let b = self.scratch(call.dtype.accumulator(), size.outer * size.heads * size.lq)?;
                Some(scratch.insert(b).shaped(&[size.outer, size.heads, size.lq])?)
            }
            (l, _) => l,
        };
        let ([a, b, c], [e, f, g]) = (steps(&io.v), steps(&o));
        let sl = dims(lse.as_ref().map_or([0; 3], steps));
        let tail = [
            self.arg_in(&io.v),
            self.arg_in(&o),
            self.arg_opt(lse.as_ref()),
            dims([a, b, c, e, f, g, wide(&io.v)]),
            sl,
        ];
        call.launch(&ATTENTION_FWD.spec, size.lq, size.heads, size.dv.max(1), &tail)?;
        let (Some(probs), Some(lse)) = (probs, lse) else { return Ok(()) };
        let tiles = call.tiles(size.lq);
        let mut args = call.head.clone();
        args[TILES] = Arg::I32(tiles as i32);
        args.extend([self.arg_in(&lse), sl, self.arg_in(&probs)]);
        let across = size.lk.div_ceil(TILE).min(MAX_GRID_YZ);
        call.run(&ATTENTION_PROBS.spec, "", [tiles * size.heads * size.outer, across, 1], &args)
    }

    fn attention_bwd(&self, p: &Attention<'_>, io: AttentionBwd<'_>) -> Result<()> {
        const OP: &str = "attention_bwd";
        let size = check_attention_bwd(p, &io)?;
        let call = self.attention_call(OP, p, size, [&io.q, &io.k], &io.mask)?;
        self.own_all(OP, &[("v", io.v), ("dout", io.dout), ("o", io.o), ("lse", io.lse)])?;
        for (arg, g) in [("dq", &io.dq), ("dk", &io.dk), ("dv", &io.dv), ("dbias", &io.dbias)] {
            g.as_ref().map_or(Ok(()), |g| self.own(OP, arg, &g.out.as_view()))?;
        }
        let rows = size.outer * size.heads * size.lq;
        let delta = self.scratch(call.dtype.accumulator(), rows)?;
        let delta = delta.view();
        let ([a, b, c], [e, f, g]) = (steps(&io.v), steps(&io.dout));
        let so = [[e, f, g], steps(&io.o)].concat();
        let head = [self.arg_in(&io.dout), self.arg_in(&io.o), self.arg_in(&delta), call.head[9]];
        let args = [&head[..], &[dims(so), Arg::I64(rows as i64)]].concat();
        self.launch_list(
            &ATTENTION_DELTA.spec,
            call.dtype,
            "",
            Grid::Blocks([rows.div_ceil(16).min(1 << 20), 1, 1]),
            &args,
        )?;
        let shared = [
            self.arg_in(&io.v),
            self.arg_in(&io.dout),
            self.arg_in(&io.lse),
            self.arg_in(&delta),
            dims([a, b, c, e, f, g, wide(&io.v), wide(&io.dout)]),
            dims(steps(&io.lse)),
        ];
        let of = |g: &Option<GradMut<'_>>| g.as_ref().map_or([0; 3], |g| steps(&g.out.as_view()));
        let out = |g: &Option<GradMut<'_>>| self.arg_opt_out(g.as_ref().map(|g| &g.out));
        if io.dk.is_some() || io.dv.is_some() {
            let columns = match (&io.dk, &io.dv) {
                (Some(_), Some(_)) => size.d.max(size.dv),
                (Some(_), None) => size.d,
                _ => size.dv.max(1),
            };
            let sg = [&of(&io.dk)[..], &of(&io.dv), &[adds(&io.dk), adds(&io.dv)]].concat();
            let tail = [&shared[..], &[dims(sg), out(&io.dk), out(&io.dv)]].concat();
            call.launch(&ATTENTION_DKV.spec, size.lk, size.kv_heads, columns, &tail)?;
        }
        if io.dq.is_some() {
            let sg = [&of(&io.dq)[..], &[0; 3], &[adds(&io.dq)]].concat();
            let tail = [&shared[..], &[dims(sg), out(&io.dq)]].concat();
            call.launch(&ATTENTION_DQ.spec, size.lq, size.heads, size.d, &tail)?;
        }
        let Some(g) = &io.dbias else { return Ok(()) };
        let shape = g.out.shape();
        let mut whole = [1; 4];
        whole[4 - shape.len()..].copy_from_slice(shape);
        let [bb, bh, bi, bj] = whole;
        let mut args = [&call.head[..], &shared].concat();
        args.extend([dims(whole), self.arg_out(&g.out), Arg::I32(g.accumulate as i32)]);
        let blocks = bi.div_ceil(TILE) * bj.div_ceil(TILE) * bh * bb;
        call.run(&ATTENTION_DBIAS.spec, "", [blocks, 1, 1], &args)
    }
}
