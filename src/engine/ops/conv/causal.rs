//! Causal convolution: validation and launch.

use crate::buffer::ViewMut;
use crate::engine::Engine;
use crate::engine::launch::Grid;
use crate::error::Result;
use crate::ops::activation::Activation;
use crate::ops::conv::*;
use crate::ops::gemm::fused_act;
use crate::spec::kernels::conv::*;

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
        let args = CausalConvArgs {
            x: self.arg_in(&io.x),
            w: self.arg_in(&io.w),
            bias: self.arg_opt(io.bias.as_ref()),
            state: self.arg_opt(io.state.as_ref()),
            y: self.arg_in(&y),
            n: n as i64,
            len: s.len as i64,
            channels: s.c as i64,
            k: s.k as i32,
            act: number,
            p: param,
        };
        self.launch(&CAUSAL_CONV, dtype, "", Grid::Stride(n), &args)?;
        let Some(new) = new.filter(|v| v.numel() > 0) else { return Ok(()) };
        let same = io.state.is_some_and(|s| s.block().id() == new.block().id());
        let args = CausalStateArgs {
            x: self.arg_in(&io.x),
            state: self.arg_opt(io.state.filter(|_| !same).as_ref()),
            out: self.arg_in(&new),
            rows: (s.n * s.c) as i64,
            len: s.len as i64,
            k: s.k as i32,
            same: i32::from(same),
        };
        self.launch(&CAUSAL_STATE, dtype, "", Grid::Stride(s.n * s.c), &args)
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
        let want = (self.device_caps().compute_units as usize).max(1) * 8;
        let splits = (want / s.c.max(1)).min(places / 1024).max(1);
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
        let adds = |g: &Option<crate::GradMut<'_>>| i32::from(g.as_ref().is_some_and(|g| g.accumulate));
        let args = CausalCombineArgs {
            part: self.arg_in(&part.view()),
            dw: self.arg_opt_out(io.dw.as_ref().map(|g| &g.out)),
            dbias: self.arg_opt_out(io.dbias.as_ref().map(|g| &g.out)),
            channels,
            k,
            splits: splits as i32,
            accumulate_w: adds(&io.dw),
            accumulate_b: adds(&io.dbias),
        };
        self.launch(&CAUSAL_COMBINE, dtype, "", Grid::Stride(s.c * (s.k + 1)), &args)
    }
}
