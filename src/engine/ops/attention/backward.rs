//! Gradients of attention: the vendor's library, one kernel for all of them, or one for keys and values and one for queries.

use super::plan::{AttentionKernel, AttentionPlan, MATRIX_TILE};
use super::vendor::{Operands, VendorAnswer};
use super::{Call, TILE, score_args, steps, wide};
use crate::buffer::{Buffer, GradMut};
use crate::driver::{DimsArg, Ptr};
use crate::dtype::DType;
use crate::engine::Engine;
use crate::engine::launch::{Grid, args_from, dims};
use crate::error::Result;
use crate::ops::attention::*;
use crate::ops::shape::ShapeOps;
use crate::spec::kernels::attention::*;

/// The gradients of q, k and v, if all three are wanted and nothing else is.
fn take_all<'a>(io: &mut AttentionBwd<'a>) -> Option<[GradMut<'a>; 3]> {
    all_wanted(io)
        .then(|| [io.dq.take(), io.dk.take(), io.dv.take()])?
        .into_iter()
        .collect::<Option<Vec<_>>>()?
        .try_into()
        .ok()
}

fn all_wanted(io: &AttentionBwd<'_>) -> bool {
    io.dq.is_some() && io.dk.is_some() && io.dv.is_some() && io.dbias.is_none()
}

/// Accumulation flag of an optional gradient.
fn adds(g: &Option<GradMut<'_>>) -> usize {
    g.as_ref().is_some_and(|g| g.accumulate) as usize
}

/// Strides by batch, head and row of an optional gradient.
fn of(g: &Option<GradMut<'_>>) -> [usize; 3] {
    g.as_ref().map_or([0; 3], |g| steps(&g.out.as_view()))
}

/// A call for gradients, and what its kernels read beside the operands of the scores.
struct Backward<'a> {
    call: Call<'a>,
    vendor: VendorAnswer,
    v: Ptr,
    dout: Ptr,
    lse: Ptr,
    delta: Ptr,
    sv: DimsArg,
    sl: DimsArg,
}

/// Arguments of a kernel of the gradients: those that all of them share, and its own.
macro_rules! backward_args {
    ($b:ident => $to:ident { $($own:tt)* }) => {{
        let (call, b) = (&$b.call, $b);
        score_args!(call => $to {
            v: b.v,
            dout: b.dout,
            lse: b.lse,
            delta: b.delta,
            sv: b.sv,
            sl: b.sl,
            $($own)*
        })
    }};
}

impl Backward<'_> {
    fn engine(&self) -> &Engine {
        self.call.engine
    }

    fn out(&self, g: &Option<GradMut<'_>>) -> Ptr {
        self.engine().arg_opt_out(g.as_ref().map(|g| &g.out))
    }

    /// All gradients by one kernel, whose blocks add to dQ in order.
    fn fused(&self, plan: AttentionPlan, io: &mut AttentionBwd<'_>) -> Result<()> {
        let (engine, size) = (self.engine(), &self.call.size);
        let rows = size.outer * size.heads * size.lq;
        let sums = engine.scratch(DType::F32, rows * self.call.problem.fused_unit().1)?;
        let mut turns = engine.scratch(DType::I32, rows + 1)?;
        engine.fill(0.0, turns.view_mut())?;
        self.clear_queries_without_keys(io)?;
        let ([a, b, c], [e, f, g], [h, i, j]) = (of(&io.dk), of(&io.dv), of(&io.dq));
        let (tiles, heads) =
            (self.call.tiles(size.lk, MATRIX_TILE), size.kv_heads.saturating_mul(size.outer));
        let args = backward_args!(self => AttentionBwdFusedArgs {
            tiles: tiles as i32,
            heads: heads as i32,
            sg: dims([a, b, c, e, f, g, adds(&io.dk), adds(&io.dv)]),
            sd: dims([h, i, j, adds(&io.dq), self.together(heads)]),
            dq: self.out(&io.dq),
            dk: self.out(&io.dk),
            dv: self.out(&io.dv),
            sums: engine.arg_in(&sums.view()),
            turns: engine.arg_in(&turns.view()),
        });
        self.call.run_blocks(&ATTENTION_BWD_FUSED, plan, tiles.saturating_mul(heads), &args)
    }

    /// Heads of keys whose blocks take turns, so that blocks that begin together are of different heads: as many as an L2 cache has room for queries,
    /// gradients and sums of (measured on an H200).
    fn together(&self, heads: usize) -> usize {
        const CACHE: usize = 32 << 20;
        let size = &self.call.size;
        let row = (size.d + size.dv) * self.call.dtype.size() + 4 * self.call.problem.fused_unit().1;
        let head = (size.heads / size.kv_heads.max(1)).saturating_mul(size.lq).saturating_mul(row);
        (CACHE / head.max(1)).clamp(1, heads.clamp(1, 32))
    }

    /// Zeros in dQ where there may be sequences without keys, which have no blocks.
    fn clear_queries_without_keys(&self, io: &mut AttentionBwd<'_>) -> Result<()> {
        match &mut io.dq {
            Some(g) if !g.accumulate && (self.call.packed || self.call.size.lk == 0) => {
                self.engine().fill(0.0, g.out.reborrow())
            }
            _ => Ok(()),
        }
    }

    fn keys_and_values(&self, io: &AttentionBwd<'_>) -> Result<()> {
        let size = &self.call.size;
        let columns = match (&io.dk, &io.dv) {
            (None, None) => return Ok(()),
            (Some(_), Some(_)) => size.d.max(size.dv),
            (Some(_), None) => size.d,
            (None, Some(_)) => size.dv.max(1),
        };
        let ([a, b, c], [e, f, g]) = (of(&io.dk), of(&io.dv));
        let (plan, tiles) = self.call.plan(columns, size.lk, &self.vendor)?;
        let args = backward_args!(self => AttentionDkvArgs {
            tiles: tiles as i32,
            sg: dims([a, b, c, e, f, g, adds(&io.dk), adds(&io.dv)]),
            dk: self.out(&io.dk),
            dv: self.out(&io.dv),
        });
        self.call.launch([&ATTENTION_DKV_MATRIX, &ATTENTION_DKV], plan, [tiles, size.kv_heads], &args)
    }

    fn queries(&self, io: &AttentionBwd<'_>) -> Result<()> {
        if io.dq.is_none() {
            return Ok(());
        }
        let ([a, b, c], size) = (of(&io.dq), &self.call.size);
        let (plan, tiles) = self.call.plan(size.d, size.lq, &self.vendor)?;
        let args = backward_args!(self => AttentionDqArgs {
            tiles: tiles as i32,
            sg: dims([a, b, c, 0, 0, 0, adds(&io.dq)]),
            dq: self.out(&io.dq),
        });
        self.call.launch([&ATTENTION_DQ_MATRIX, &ATTENTION_DQ], plan, [tiles, size.heads], &args)
    }

    fn bias(&self, io: &AttentionBwd<'_>) -> Result<()> {
        let Some(g) = &io.dbias else { return Ok(()) };
        let shape = g.out.shape();
        let mut whole = [1; 4];
        whole[4 - shape.len()..].copy_from_slice(shape);
        let [bb, bh, bi, bj] = whole;
        let args = backward_args!(self => AttentionDbiasArgs {
            tiles: 0,
            sb: dims(whole),
            dbias: self.engine().arg_out(&g.out),
            accumulate: i32::from(g.accumulate),
        });
        let blocks = bi.div_ceil(TILE) * bj.div_ceil(TILE) * bh * bb;
        self.call.run(&ATTENTION_DBIAS, "", [blocks, 1, 1], 0, &args)
    }
}

impl Engine {
    pub(super) fn attention_bwd_by(
        &self,
        p: &Attention<'_>,
        mut io: AttentionBwd<'_>,
        own: bool,
    ) -> Result<()> {
        let size = check_attention_bwd(p, &io)?;
        let mut call = self.attention_bwd_call(p, size, &io, own)?;
        let operands = Operands { qkvo: [io.q, io.k, io.v, io.o], lse: Some(io.lse) };
        let vendor = call.vendor_bwd(&operands, &io);
        let (plan, _) = call.plan(size.d.max(size.dv).max(1), size.lq, &vendor)?;
        if let (AttentionKernel::Vendor, Ok(p)) = (plan.kernel, &vendor)
            && let Some(gradients) = take_all(&mut io)
        {
            return call.run_vendor_bwd(p, &operands, io.dout, gradients);
        }
        let delta = self.scratch(call.dtype.accumulator(), size.outer * size.heads * size.lq)?;
        self.attention_delta(&call, &io, &delta)?;
        let ([a, b, c], [e, f, g]) = (steps(&io.v), steps(&io.dout));
        // What is planned from here on writes a part of the gradients; the library serves all or none.
        call.problem.all_gradients = false;
        let backward = Backward {
            vendor: vendor.and(Err("another variant serves a part of the gradients".into())),
            v: self.arg_in(&io.v),
            dout: self.arg_in(&io.dout),
            lse: self.arg_in(&io.lse),
            delta: self.arg_in(&delta.view()),
            sv: dims([a, b, c, e, f, g, wide(&io.v), wide(&io.dout)]),
            sl: dims(steps(&io.lse)),
            call,
        };
        if plan.kernel == AttentionKernel::Fused {
            return backward.fused(plan, &mut io);
        }
        backward.keys_and_values(&io)?;
        backward.queries(&io)?;
        backward.bias(&io)
    }

    /// Checks the owners of the operands and results; the arguments that the kernels of the scores share.
    fn attention_bwd_call(
        &self,
        p: &Attention<'_>,
        size: AttentionSize,
        io: &AttentionBwd<'_>,
        own: bool,
    ) -> Result<Call<'_>> {
        const OP: &str = "attention_bwd";
        let mut call = self.attention_call(OP, p, size, [&io.q, &io.k], &io.mask)?;
        self.check_owner_all(OP, &[("v", io.v), ("dout", io.dout), ("o", io.o), ("lse", io.lse)])?;
        for (arg, g) in [("dq", &io.dq), ("dk", &io.dk), ("dv", &io.dv), ("dbias", &io.dbias)] {
            g.as_ref().map_or(Ok(()), |g| self.check_owner(OP, arg, &g.out.as_view()))?;
        }
        let results = [&io.dq, &io.dk, &io.dv].into_iter().flatten();
        let wide_results = results.map(|g| wide(&g.out.as_view())).all(|w| w == 1);
        call.problem.aligned &= wide(&io.v) == 1 && wide(&io.dout) == 1 && wide_results;
        call.problem.backward = true;
        call.problem.all_gradients = all_wanted(io);
        call.problem.vendor_repeats = self.driver().vendor_attention().is_ok_and(|library| library.repeats());
        call.own = own;
        Ok(call)
    }

    /// Queues the sums of dO * O over the rows.
    fn attention_delta(&self, call: &Call<'_>, io: &AttentionBwd<'_>, delta: &Buffer) -> Result<()> {
        let ([e, f, g], [h, i, j]) = (steps(&io.dout), steps(&io.o));
        let rows = call.size.outer * call.size.heads * call.size.lq;
        let args = AttentionDeltaArgs {
            dout: self.arg_in(&io.dout),
            o: self.arg_in(&io.o),
            delta: self.arg_in(&delta.view()),
            size: call.base.size,
            so: dims([e, f, g, h, i, j, wide(&io.dout).min(wide(&io.o))]),
            n: rows as i64,
        };
        let grid = Grid::Blocks([rows.div_ceil(16).min(1 << 20), 1, 1]);
        self.launch(&ATTENTION_DELTA, call.dtype, "", grid, &args)
    }
}
