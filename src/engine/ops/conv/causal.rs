//! Causal convolution: validation, plan and launch.

use crate::buffer::{Buffer, View, ViewMut};
use crate::device::Caps;
use crate::dtype::DType;
use crate::engine::Engine;
use crate::engine::launch::{Grid, adds, aligned16, long};
use crate::engine::ops::shape::strided::magic;
use crate::engine::plan::{Problem, Reason, Variant};
use crate::engine::tune::ProblemKey;
use crate::error::Result;
use crate::ops::activation::Activation;
use crate::ops::conv::*;
use crate::ops::core::Choice;
use crate::ops::gemm::fused_act;
use crate::spec::BLOCK;
use crate::spec::kernels::conv::*;

const SOURCE: &str = "kernels/common/conv/causal.c";

/// Causal convolution, or its gradient.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct CausalProblem {
    s: CausalShape,
    dtype: DType,
    /// Whether all operands of x's shape begin at multiples of 16 bytes.
    aligned: bool,
}

/// How it runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CausalPlan {
    /// 16 bytes of a row per thread, `runs` of them in a row; the gradient in one pass.
    Runs { runs: usize },
    /// An element per thread; the gradient in several passes.
    Elements,
}

impl Problem for CausalProblem {
    type Plan = CausalPlan;

    const VARIANTS: &'static [Variant] =
        &[Variant { name: "runs", source: SOURCE }, Variant { name: "elements", source: SOURCE }];

    fn plan(&self, variant: usize, _: &Caps) -> std::result::Result<CausalPlan, Reason> {
        if variant == 1 {
            return Ok(CausalPlan::Elements);
        }
        // Elements of 16 bytes, and taps that kernels of runs are written for (`GK_TAPS`).
        let (s, vector) = (&self.s, 16 / self.dtype.size());
        let taps = if vector < 4 { 3 } else { 4 };
        if s.k > taps {
            return Err(format!("it has more than {taps} taps").into());
        }
        if !self.aligned || s.len == 0 || !s.len.is_multiple_of(vector) {
            return Err("its rows are not whole 16-byte items".into());
        }
        let runs = s.len / vector;
        if [s.c, runs].iter().fold(s.n, |a: usize, &b| a.saturating_mul(b)) > i32::MAX as usize {
            return Err("it has more than 2^31 items".into());
        }
        Ok(CausalPlan::Runs { runs })
    }

    fn key(&self) -> Option<&dyn ProblemKey> {
        Some(self)
    }
}

fn problem(s: CausalShape, operands: &[Option<View<'_>>]) -> CausalProblem {
    let dtype = operands.iter().flatten().next().map_or(DType::F32, View::dtype);
    CausalProblem { s, dtype, aligned: operands.iter().flatten().all(aligned16) }
}

impl Engine {
    /// What serves sequences of 1024 elements in f32 with four taps.
    pub(crate) fn explain_causal(&self, op: &'static str) -> Result<Choice> {
        let s = CausalShape { n: 2, c: 64, len: 1024, k: 4 };
        self.explain_problem(op, &CausalProblem { s, dtype: DType::F32, aligned: true })
    }

    /// The state behind x.
    fn causal_state(&self, s: &CausalShape, io: &CausalConvIo<'_>, new: &View<'_>) -> Result<()> {
        let same = io.state.is_some_and(|s| s.block().id() == new.block().id());
        let args = CausalStateArgs {
            x: self.arg_in(&io.x),
            state: self.arg_opt(io.state.filter(|_| !same).as_ref()),
            out: self.arg_in(new),
            rows: (s.n * s.c) as i64,
            len: s.len as i64,
            k: s.k as i32,
            same: i32::from(same),
        };
        self.launch(&CAUSAL_STATE, io.x.dtype(), "", Grid::Stride(s.n * s.c), &args)
    }

    /// All gradients in one pass over `runs` runs of each row.
    fn causal_runs_bwd(
        &self,
        act: (i32, f64),
        s: &CausalShape,
        runs: usize,
        io: &CausalConvBwd<'_>,
    ) -> Result<()> {
        let (items, block) = (s.n * runs, BLOCK as usize);
        let splits = (self.causal_blocks() / s.c.max(1)).min(items / block).max(1);
        let per = items.div_ceil(splits).next_multiple_of(block);
        let splits = items.div_ceil(per.max(1));
        let sums = io.dw.is_some() || io.dbias.is_some();
        let part =
            sums.then(|| self.scratch(io.x.dtype().accumulator(), splits * s.c * (s.k + 1))).transpose()?;
        let args = CausalRunsBwdArgs {
            dy: self.arg_in(&io.dy),
            x: self.arg_in(&io.x),
            w: self.arg_in(&io.w),
            bias: self.arg_opt(io.bias.as_ref()),
            state: self.arg_opt(io.state.as_ref()),
            dx: self.arg_opt_out(io.dx.as_ref().map(|g| &g.out)),
            part: self.arg_opt(part.as_ref().map(Buffer::view).as_ref()),
            n: long(items),
            runs: long(runs),
            channels: long(s.c),
            by: magic([runs]),
            k: s.k as i32,
            act: act.0,
            p: act.1,
            per: long(per),
            accumulate: i32::from(io.dx.as_ref().is_some_and(|g| g.accumulate)),
        };
        self.launch(&CAUSAL_RUNS_BWD, io.x.dtype(), "", Grid::Blocks([s.c * splits, 1, 1]), &args)?;
        part.map_or(Ok(()), |part| self.causal_combine(s, &part.view(), splits, io))
    }

    /// Enough blocks to fill the device.
    fn causal_blocks(&self) -> usize {
        (self.device_caps().compute_units as usize).max(1) * 8
    }

    /// dw and dbias from the sums of all blocks.
    fn causal_combine(
        &self,
        s: &CausalShape,
        part: &View<'_>,
        splits: usize,
        io: &CausalConvBwd<'_>,
    ) -> Result<()> {
        let args = CausalCombineArgs {
            part: self.arg_in(part),
            dw: self.arg_opt_out(io.dw.as_ref().map(|g| &g.out)),
            dbias: self.arg_opt_out(io.dbias.as_ref().map(|g| &g.out)),
            channels: s.c as i64,
            k: s.k as i32,
            splits: splits as i32,
            accumulate_w: adds(&io.dw),
            accumulate_b: adds(&io.dbias),
        };
        self.launch(&CAUSAL_COMBINE, io.x.dtype(), "", Grid::Stride(s.c * (s.k + 1)), &args)
    }
}

impl CausalConvOps for Engine {
    fn causal_conv1d(&self, act: Activation, io: CausalConvIo<'_>) -> Result<()> {
        const OP: &str = "causal_conv1d";
        let s = check_causal_conv1d(act, &io)?;
        let (y, new) = (io.y.as_view(), io.new_state.as_ref().map(ViewMut::as_view));
        let all = [
            ("x", Some(io.x)),
            ("w", Some(io.w)),
            ("bias", io.bias),
            ("state", io.state),
            ("y", Some(y)),
            ("new_state", new),
        ];
        self.check_owner_all(OP, &all)?;
        let (dtype, n, (number, param)) = (io.x.dtype(), s.n * s.c * s.len, fused_act(OP, act)?);
        let ((x, w), y_arg) = ((self.arg_in(&io.x), self.arg_in(&io.w)), self.arg_in(&y));
        let (bias, state) = (self.arg_opt(io.bias.as_ref()), self.arg_opt(io.state.as_ref()));
        let (channels, k, act, p) = (s.c as i64, s.k as i32, number, param);
        match self.plan(OP, &problem(s, &[Some(io.x), Some(y)]))? {
            CausalPlan::Runs { runs } => {
                let (items, by) = (s.n * s.c * runs, magic([runs, s.c]));
                let (n, runs) = (long(items), long(runs));
                let args = CausalRunsArgs { x, w, bias, state, y: y_arg, n, runs, channels, by, k, act, p };
                self.launch(&CAUSAL_RUNS, dtype, "", Grid::Stride(items), &args)?;
            }
            CausalPlan::Elements => {
                let len = s.len as i64;
                let args =
                    CausalConvArgs { x, w, bias, state, y: y_arg, n: n as i64, len, channels, k, act, p };
                self.launch(&CAUSAL_CONV, dtype, "", Grid::Stride(n), &args)?;
            }
        }
        new.filter(|v| v.numel() > 0).map_or(Ok(()), |new| self.causal_state(&s, &io, &new))
    }

    fn causal_conv1d_bwd(&self, act: Activation, io: CausalConvBwd<'_>) -> Result<()> {
        const OP: &str = "causal_conv1d_bwd";
        let s = check_causal_conv1d_bwd(act, &io)?;
        let all = [
            ("dy", Some(io.dy)),
            ("x", Some(io.x)),
            ("w", Some(io.w)),
            ("bias", io.bias),
            ("state", io.state),
        ];
        self.check_owner_all(OP, &all)?;
        for (arg, g) in [("dx", &io.dx), ("dw", &io.dw), ("dbias", &io.dbias)] {
            g.as_ref().map_or(Ok(()), |g| self.check_owner(OP, arg, &g.out.as_view()))?;
        }
        let (dtype, n, (number, param)) = (io.x.dtype(), s.n * s.c * s.len, fused_act(OP, act)?);
        let operands = [Some(io.dy), Some(io.x), io.dx.as_ref().map(|g| g.out.as_view())];
        if let CausalPlan::Runs { runs } = self.plan(OP, &problem(s, &operands))? {
            return self.causal_runs_bwd((number, param), &s, runs, &io);
        }
        let wide = dtype.accumulator();
        let (count, len, channels, k) = (n as i64, s.len as i64, s.c as i64, s.k as i32);
        let dz = (number != 0).then(|| self.scratch(wide, n)).transpose()?;
        let dz = dz.as_ref().map(|d| d.view());
        if let Some(dz) = &dz {
            let args = CausalSlopeArgs {
                dy: self.arg_in(&io.dy),
                x: self.arg_in(&io.x),
                w: self.arg_in(&io.w),
                bias: self.arg_opt(io.bias.as_ref()),
                state: self.arg_opt(io.state.as_ref()),
                dz: self.arg_in(dz),
                n: count,
                len,
                channels,
                k,
                act: number,
                p: param,
            };
            self.launch(&CAUSAL_SLOPE, dtype, "", Grid::Stride(n), &args)?;
        }
        if let Some(g) = &io.dx {
            let args = CausalInputArgs {
                dy: self.arg_in(&io.dy),
                dz: self.arg_opt(dz.as_ref()),
                w: self.arg_in(&io.w),
                dx: self.arg_out(&g.out),
                n: count,
                len,
                channels,
                k,
                accumulate: i32::from(g.accumulate),
            };
            self.launch(&CAUSAL_INPUT, dtype, "", Grid::Stride(n), &args)?;
        }
        if io.dw.is_none() && io.dbias.is_none() {
            return Ok(());
        }
        // Enough blocks to fill the device, of at least four places per thread.
        let places = s.n * s.len;
        let splits = (self.causal_blocks() / s.c.max(1)).min(places / 1024).max(1);
        let per = places.div_ceil(splits).next_multiple_of(256);
        let splits = places.div_ceil(per.max(1));
        let part = self.scratch(wide, splits * s.c * (s.k + 1))?;
        let args = CausalWeightArgs {
            dy: self.arg_in(&io.dy),
            dz: self.arg_opt(dz.as_ref()),
            x: self.arg_in(&io.x),
            state: self.arg_opt(io.state.as_ref()),
            part: self.arg_in(&part.view()),
            images: s.n as i64,
            len,
            channels,
            k,
            per: per as i64,
        };
        self.launch(&CAUSAL_WEIGHT, dtype, "", Grid::Blocks([s.c * splits, 1, 1]), &args)?;
        self.causal_combine(&s, &part.view(), splits, &io)
    }
}
