//! Attention: validation and launch.

mod backward;
mod decode;
mod plan;
mod rope;
mod vendor;

use self::plan::{AttentionBwdProblem, AttentionKernel, AttentionPlan, AttentionProblem, VENDOR};
use self::vendor::{Operands, VendorAnswer};
use crate::buffer::{Buffer, View};
use crate::driver::{DimsArg, Ptr};
use crate::engine::Engine;
use crate::engine::launch::{Grid, MAX_GRID_YZ, aligned16, args_from, code_of_op, dims};
use crate::engine::ops::random::{RngArgs, keep_scale};
use crate::engine::plan::best;
use crate::error::{GpuError, Result};
use crate::ops::attention::*;
use crate::ops::core::Choice;
use crate::spec::kernels::attention::*;
use crate::spec::{Kernel, KernelArgs};

/// Queries and keys per tile.
const TILE: usize = 64;
/// A bound that no distance of positions exceeds.
const UNBOUNDED: usize = 1 << 30;

/// Strides by batch, head and row.
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

/// Arguments of a kernel of the scores: those that all of them share, from the call, and its own.
macro_rules! score_args {
    ($call:ident => $to:ident { $($own:tt)* }) => {{
        let base = &$call.base;
        args_from! { base => $to
            [q k bias mask lengths cu_q cu_k more err size sq sm scale cap left right bottom
             seed stream offset keep kept code]
            { $($own)* }
        }
    }};
}
use score_args;

/// A call whose operands are checked.
struct Call<'a> {
    engine: &'a Engine,
    size: AttentionSize,
    dtype: crate::DType,
    packed: bool,
    /// Whether sequences of keys have lengths of their own.
    lengths: bool,
    /// What decides how it runs, save the columns of a result and the vendor's answer.
    problem: AttentionProblem<'static>,
    /// Whether pins and the vendor's library are left out.
    own: bool,
    op: &'static str,
    /// What all its kernels share; without tiles and results.
    base: AttentionProbsArgs,
}

impl Call<'_> {
    /// How a kernel with results of up to `columns` columns runs, and its tiles per head along a length. How packed sequences are cut is known on the
    /// device only: each can leave a tile incomplete.
    fn plan(&self, columns: usize, length: usize, vendor: &VendorAnswer) -> Result<(AttentionPlan, usize)> {
        let vendor = vendor.as_ref().map(|_| ()).map_err(|why| why.as_ref());
        let problem = AttentionProblem { columns, vendor, ..self.problem };
        let (caps, plan) = (self.engine.device_caps(), |found: Option<(usize, AttentionPlan)>| {
            found
                .map(|(_, plan)| plan)
                .ok_or_else(|| self.engine.no_variant(self.op, "no variant applies".into()))
        });
        let plan = match (self.own, problem.backward) {
            (true, true) => plan(best(&AttentionBwdProblem(problem), caps))?,
            (true, false) => plan(best(&problem, caps))?,
            (false, true) => self.engine.plan_with(self.op, &AttentionBwdProblem(problem), self.extent())?,
            (false, false) => self.engine.plan_with(self.op, &problem, self.extent())?,
        };
        Ok((plan, self.tiles(length, plan.tile)))
    }

    /// What the time depends on beside the problem: sizes, how far keys are visible, whether sequences are packed or keys have lengths.
    fn extent(&self) -> (AttentionSize, [i32; 2], [bool; 2]) {
        (self.size, [self.base.left, self.base.right], [self.packed, self.lengths])
    }

    fn tiles(&self, length: usize, side: usize) -> usize {
        length.div_ceil(side) + if self.packed { self.size.batch + 1 } else { 0 }
    }

    /// Launches the forward kernel in which some warps copy and others multiply: as many blocks as run at a time share tiles, or
    /// pairs of them under a causal mask.
    fn launch_specialized(&self, plan: AttentionPlan, tiles: usize, args: &AttentionFwdArgs) -> Result<()> {
        let paired = args.right < UNBOUNDED as i32 && args.left >= UNBOUNDED as i32;
        let each = if paired { tiles.div_ceil(2) } else { tiles };
        let all = each.saturating_mul(self.size.heads).saturating_mul(self.size.outer);
        let blocks = all.min(self.engine.device_caps().compute_units as usize);
        self.check_tiles(all)?;
        self.run_blocks(&ATTENTION_FWD_SPECIALIZED, plan, blocks, args)
    }

    fn check_tiles(&self, all: usize) -> Result<()> {
        if all > 1 << 30 {
            let got = all.to_string();
            return Err(GpuError::invalid(self.op, "q", "at most 2^30 tiles of queries or keys", got));
        }
        Ok(())
    }

    /// Launches blocks of the plan's number of threads.
    fn run_blocks<A: KernelArgs>(
        &self,
        kernel: &'static Kernel<A>,
        plan: AttentionPlan,
        blocks: usize,
        args: &A,
    ) -> Result<()> {
        self.check_tiles(blocks)?;
        let grid = Grid::BlocksOf { blocks, threads: plan.threads, local: plan.local };
        self.engine.launch(kernel, self.dtype, plan.op, grid, args)
    }

    /// Launches for `tiles` x `heads`: the kernel for matrix cores, or the other one.
    fn launch<A: KernelArgs>(
        &self,
        [matrix, other]: [&'static Kernel<A>; 2],
        plan: AttentionPlan,
        [tiles, heads]: [usize; 2],
        args: &A,
    ) -> Result<()> {
        let blocks = tiles.saturating_mul(heads).saturating_mul(self.size.outer);
        match plan.kernel {
            AttentionKernel::Matrix => self.run_blocks(matrix, plan, blocks, args),
            _ => self.run(other, plan.op, [blocks, plan.slices, 1], plan.local, args),
        }
    }

    fn run<A: KernelArgs>(
        &self,
        kernel: &'static Kernel<A>,
        op: &'static str,
        blocks: [usize; 3],
        local: usize,
        args: &A,
    ) -> Result<()> {
        if blocks[0] > i32::MAX as usize || blocks[1] > MAX_GRID_YZ {
            let got = format!("{} tiles, {} slices", blocks[0], blocks[1]);
            return Err(GpuError::invalid(self.op, "q", "at most 2^31 - 1 tiles of 64 x 64", got));
        }
        self.engine.launch(kernel, self.dtype, op, Grid::BlocksWithLocal(blocks, local), args)
    }
}

impl Engine {
    /// Checks the owners of the operands and collects the arguments that the kernels of a call share.
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
        self.check_owner_all(op, &operands)?;
        let AttentionSize { batch, heads, kv_heads, lq, lk, d, dv, outer } = size;
        let problem = AttentionProblem {
            dtype,
            d,
            dv,
            columns: 0,
            aligned: wide(q) == 1 && wide(k) == 1,
            plain: m.bias.is_none()
                && m.mask.is_none()
                && p.softcap <= 0.0
                && p.dropout <= 0.0
                && p.factor(d) > 0.0,
            backward: false,
            probabilities: false,
            all_gradients: false,
            vendor: Err(""),
            vendor_repeats: true,
        };
        let lengths = m.key_lengths.is_some();
        let ([a, b, c], [e, f, g]) = (steps(q), steps(k));
        let scores = [outer, heads, lq, lk];
        let (bias, mask) = (repeated(m.bias.as_ref(), scores)?, repeated(m.mask.as_ref(), scores)?);
        let bound = |b: Option<usize>| b.map_or(UNBOUNDED, |b| b.min(UNBOUNDED)) as i32;
        let [left, right] = p.bounds();
        let RngArgs { seed, stream, offset, more } = self.rng_args(op, &p.rng)?;
        let base = AttentionProbsArgs {
            q: self.arg_in(q),
            k: self.arg_in(k),
            bias: self.arg_opt(m.bias.as_ref()),
            mask: self.arg_opt(m.mask.as_ref()),
            lengths: self.arg_opt(m.key_lengths.as_ref()),
            cu_q: self.arg_opt(seq(0).as_ref()),
            cu_k: self.arg_opt(seq(1).as_ref()),
            more,
            err: self.arg_error(),
            size: dims([batch, heads, kv_heads, lq, lk, d, dv]),
            sq: dims([a, b, c, e, f, g, wide(q), wide(k)]),
            sm: dims(bias.into_iter().chain(mask)),
            tiles: 0,
            scale: p.factor(d),
            cap: p.softcap,
            left: bound(left),
            right: bound(right),
            bottom: i32::from(p.causal == Some(Causal::BottomRight)),
            seed,
            stream,
            offset,
            keep: (1.0 - p.dropout) as f32,
            kept: keep_scale(p.dropout),
            code: code_of_op(op),
            lse: Ptr::NULL,
            sl: DimsArg::default(),
            p: Ptr::NULL,
        };
        let packed = m.sequences.is_some();
        Ok(Call { engine: self, size, dtype, packed, lengths, problem, own: false, op, base })
    }
}

impl Engine {
    /// What serves long heads of 64 columns of f16, without rules of their own.
    pub(crate) fn explain_attention(&self, op: &'static str) -> Result<Choice> {
        let (dtype, columns, backward) = (crate::DType::F16, 64, op == "attention_bwd");
        let (d, dv, aligned, plain) = (columns, columns, true, true);
        let library = self.driver().vendor_attention();
        let problem = AttentionProblem {
            dtype,
            d,
            dv,
            columns,
            aligned,
            plain,
            backward,
            probabilities: false,
            all_gradients: backward,
            vendor: library.map(|_| ()),
            vendor_repeats: library.is_ok_and(|l| l.repeats()),
        };
        match backward {
            true => self.explain_problem(op, &AttentionBwdProblem(problem)),
            false => self.explain_problem(op, &problem),
        }
    }
}

impl AttentionOps for Engine {
    fn attention(&self, p: &Attention<'_>, io: AttentionIo<'_>) -> Result<()> {
        self.attention_by(p, io, false)
    }

    fn attention_bwd(&self, p: &Attention<'_>, io: AttentionBwd<'_>) -> Result<()> {
        self.attention_bwd_by(p, io, false)
    }
}

impl Engine {
    /// Attention by the best kernel of this library.
    fn own_attention(&self, p: &Attention<'_>, io: AttentionIo<'_>) -> Result<()> {
        self.attention_by(p, io, true)
    }

    /// Its gradients by the best kernels of this library.
    fn own_attention_bwd(&self, p: &Attention<'_>, io: AttentionBwd<'_>) -> Result<()> {
        self.attention_bwd_by(p, io, true)
    }

    fn attention_by(&self, p: &Attention<'_>, io: AttentionIo<'_>, own: bool) -> Result<()> {
        const OP: &str = "attention";
        let size = check_attention(p, &io)?;
        let (o, lse) = (io.o.as_view(), io.lse.as_ref().map(|l| l.as_view()));
        let probs = io.p.as_ref().map(|l| l.as_view());
        let mut call = self.attention_call(OP, p, size, [&io.q, &io.k], &io.mask)?;
        self.check_owner_all(OP, &[("v", Some(io.v)), ("o", Some(o)), ("lse", lse), ("p", probs)])?;
        call.problem.aligned &= wide(&io.v) == 1 && wide(&o) == 1;
        call.problem.probabilities = probs.is_some();
        call.own = own;
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
        let operands = Operands { qkvo: [io.q, io.k, io.v, o], lse };
        let vendor = call.vendor::<AttentionProblem<'_>>(VENDOR, &operands, None);
        let (plan, tiles) = call.plan(size.dv.max(1), size.lq, &vendor)?;
        let args = score_args!(call => AttentionFwdArgs {
            tiles: tiles as i32,
            v: self.arg_in(&io.v),
            o: self.arg_in(&o),
            lse: self.arg_opt(lse.as_ref()),
            sv: dims([a, b, c, e, f, g, wide(&io.v)]),
            sl,
        });
        match plan.kernel {
            AttentionKernel::Vendor => vendor.map_or(Ok(()), |p| call.run_vendor(&p, &operands))?,
            AttentionKernel::Specialized => call.launch_specialized(plan, tiles, &args)?,
            _ => call.launch([&ATTENTION_FWD_MATRIX, &ATTENTION_FWD], plan, [tiles, size.heads], &args)?,
        }
        let (Some(probs), Some(lse)) = (probs, lse) else { return Ok(()) };
        let tiles = call.tiles(size.lq, TILE);
        let args = AttentionProbsArgs {
            tiles: tiles as i32,
            lse: self.arg_in(&lse),
            sl,
            p: self.arg_in(&probs),
            ..call.base
        };
        let across = size.lk.div_ceil(TILE).min(MAX_GRID_YZ);
        call.run(&ATTENTION_PROBS, "", [tiles * size.heads * size.outer, across, 1], 0, &args)
    }
}
