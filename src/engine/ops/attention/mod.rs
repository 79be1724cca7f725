//! Attention: validation and launch.

mod decode;
mod plan;
mod rope;
mod vendor;

use self::plan::{AttentionBwdProblem, AttentionKernel, AttentionPlan, AttentionProblem, VENDOR};
use self::vendor::{Operands, VendorAnswer};
use crate::buffer::{Buffer, GradMut, View};
use crate::driver::{DimsArg, Ptr};
use crate::engine::Engine;
use crate::engine::launch::{Grid, MAX_GRID_YZ, aligned16, code_of_op, dims};
use crate::engine::ops::loss::args_from;
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
        if all > 1 << 30 {
            return Err(GpuError::invalid(
                self.op,
                "q",
                "at most 2^30 tiles of 128 queries",
                all.to_string(),
            ));
        }
        let blocks = all.min(self.engine.device_caps().compute_units as usize);
        let grid = Grid::BlocksOf { blocks, threads: plan.threads, local: plan.local };
        self.engine.launch(&ATTENTION_FWD_SPECIALIZED, self.dtype, plan.op, grid, args)
    }

    /// Launches for `tiles` x `heads`: the kernel for matrix cores, or the other one.
    fn launch<A: KernelArgs>(
        &self,
        [matrix, other]: [&'static Kernel<A>; 2],
        plan: AttentionPlan,
        [tiles, heads]: [usize; 2],
        args: &A,
    ) -> Result<()> {
        let blocks = [tiles.saturating_mul(heads).saturating_mul(self.size.outer), plan.slices, 1];
        let kernel = if plan.kernel == AttentionKernel::Matrix { matrix } else { other };
        self.run(kernel, plan.op, blocks, plan.local, args)
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
            vendor: Err(""),
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

/// The gradients of q, k and v, if all three are wanted and nothing else is.
fn take_all<'a>(io: &mut AttentionBwd<'a>) -> Option<[GradMut<'a>; 3]> {
    let all = io.dq.is_some() && io.dk.is_some() && io.dv.is_some() && io.dbias.is_none();
    all.then(|| [io.dq.take(), io.dk.take(), io.dv.take()])?
        .into_iter()
        .collect::<Option<Vec<_>>>()?
        .try_into()
        .ok()
}

/// Accumulation flag of an optional gradient.
fn adds(g: &Option<GradMut<'_>>) -> usize {
    g.as_ref().is_some_and(|g| g.accumulate) as usize
}

impl Engine {
    /// What serves long heads of 64 columns of f16, without rules of their own.
    pub(crate) fn explain_attention(&self, op: &'static str) -> Result<Choice> {
        let (dtype, columns, backward) = (crate::DType::F16, 64, op == "attention_bwd");
        let (d, dv, aligned, plain) = (columns, columns, true, true);
        let vendor = self.driver().vendor_attention().map(|_| ());
        let problem = AttentionProblem { dtype, d, dv, columns, aligned, plain, backward, vendor };
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

    fn attention_bwd_by(&self, p: &Attention<'_>, mut io: AttentionBwd<'_>, own: bool) -> Result<()> {
        const OP: &str = "attention_bwd";
        let size = check_attention_bwd(p, &io)?;
        let mut call = self.attention_call(OP, p, size, [&io.q, &io.k], &io.mask)?;
        self.check_owner_all(OP, &[("v", io.v), ("dout", io.dout), ("o", io.o), ("lse", io.lse)])?;
        for (arg, g) in [("dq", &io.dq), ("dk", &io.dk), ("dv", &io.dv), ("dbias", &io.dbias)] {
            g.as_ref().map_or(Ok(()), |g| self.check_owner(OP, arg, &g.out.as_view()))?;
        }
        let results = [&io.dq, &io.dk, &io.dv].into_iter().flatten();
        let wide_results = results.map(|g| wide(&g.out.as_view())).all(|w| w == 1);
        call.problem.aligned &= wide(&io.v) == 1 && wide(&io.dout) == 1 && wide_results;
        call.problem.backward = true;
        call.own = own;
        let operands = Operands { qkvo: [io.q, io.k, io.v, io.o], lse: Some(io.lse) };
        let vendor = call.vendor_bwd(&operands, &io);
        if let Ok(p) = &vendor {
            let (plan, _) = call.plan(size.d.max(size.dv), size.lq, &vendor)?;
            if let (AttentionKernel::Vendor, Some(gradients)) = (plan.kernel, take_all(&mut io)) {
                return call.run_vendor_bwd(p, &operands, io.dout, gradients);
            }
        }
        // It serves all gradients or none.
        let vendor = vendor.and(Err("another variant serves a part of the gradients".into()));
        let rows = size.outer * size.heads * size.lq;
        let scratch = self.scratch(call.dtype.accumulator(), rows)?;
        let (v, dout, lse) = (self.arg_in(&io.v), self.arg_in(&io.dout), self.arg_in(&io.lse));
        let delta = self.arg_in(&scratch.view());
        let ([a, b, c], [e, f, g]) = (steps(&io.v), steps(&io.dout));
        let [h, i, j] = steps(&io.o);
        let args = AttentionDeltaArgs {
            dout,
            o: self.arg_in(&io.o),
            delta,
            size: call.base.size,
            so: dims([e, f, g, h, i, j, wide(&io.dout).min(wide(&io.o))]),
            n: rows as i64,
        };
        let grid = Grid::Blocks([rows.div_ceil(16).min(1 << 20), 1, 1]);
        self.launch(&ATTENTION_DELTA, call.dtype, "", grid, &args)?;
        let sv = dims([a, b, c, e, f, g, wide(&io.v), wide(&io.dout)]);
        let sl = dims(steps(&io.lse));
        let of = |g: &Option<GradMut<'_>>| g.as_ref().map_or([0; 3], |g| steps(&g.out.as_view()));
        let out = |g: &Option<GradMut<'_>>| self.arg_opt_out(g.as_ref().map(|g| &g.out));
        if io.dk.is_some() || io.dv.is_some() {
            let columns = match (&io.dk, &io.dv) {
                (Some(_), Some(_)) => size.d.max(size.dv),
                (Some(_), None) => size.d,
                _ => size.dv.max(1),
            };
            let ([a, b, c], [e, f, g]) = (of(&io.dk), of(&io.dv));
            let (plan, tiles) = call.plan(columns, size.lk, &vendor)?;
            let args = score_args!(call => AttentionDkvArgs {
                tiles: tiles as i32,
                v,
                dout,
                lse,
                delta,
                sv,
                sl,
                sg: dims([a, b, c, e, f, g, adds(&io.dk), adds(&io.dv)]),
                dk: out(&io.dk),
                dv: out(&io.dv),
            });
            call.launch([&ATTENTION_DKV_MATRIX, &ATTENTION_DKV], plan, [tiles, size.kv_heads], &args)?;
        }
        if io.dq.is_some() {
            let [a, b, c] = of(&io.dq);
            let (plan, tiles) = call.plan(size.d, size.lq, &vendor)?;
            let args = score_args!(call => AttentionDqArgs {
                tiles: tiles as i32,
                v,
                dout,
                lse,
                delta,
                sv,
                sl,
                sg: dims([a, b, c, 0, 0, 0, adds(&io.dq)]),
                dq: out(&io.dq),
            });
            call.launch([&ATTENTION_DQ_MATRIX, &ATTENTION_DQ], plan, [tiles, size.heads], &args)?;
        }
        let Some(g) = &io.dbias else { return Ok(()) };
        let shape = g.out.shape();
        let mut whole = [1; 4];
        whole[4 - shape.len()..].copy_from_slice(shape);
        let [bb, bh, bi, bj] = whole;
        let args = score_args!(call => AttentionDbiasArgs {
            tiles: 0,
            v,
            dout,
            lse,
            delta,
            sv,
            sl,
            sb: dims(whole),
            dbias: self.arg_out(&g.out),
            accumulate: i32::from(g.accumulate),
        });
        let blocks = bi.div_ceil(TILE) * bj.div_ceil(TILE) * bh * bb;
        call.run(&ATTENTION_DBIAS, "", [blocks, 1, 1], 0, &args)
    }
}
