//! Causal convolution: validation and launch.

use crate::spec::kernels::conv::*;
use crate::buffer::ViewMut;
use crate::driver::Arg;
use crate::engine::Engine;
use crate::engine::launch::{Grid, real};
use crate::error::Result;
use crate::ops::activation::Activation;
use crate::ops::conv::*;
use crate::ops::gemm::fused_act;

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
        self.own_all(OP, &all)?;
        let (dtype, n, (number, param)) = (io.x.dtype(), s.n * s.c * s.len, fused_act(OP, act)?);
        let args = [
            self.arg_in(&io.x),
            self.arg_in(&io.w),
            self.arg_opt(io.bias.as_ref()),
            self.arg_opt(io.state.as_ref()),
            self.arg_in(&y),
            Arg::I64(n as i64),
            Arg::I64(s.len as i64),
            Arg::I64(s.c as i64),
            Arg::I32(s.k as i32),
            Arg::I32(number),
            real(dtype, param),
        ];
        self.launch_list(&CAUSAL_CONV.spec, dtype, "", Grid::Stride(n), &args)?;
        let Some(new) = new.filter(|v| v.numel() > 0) else { return Ok(()) };
        let same = io.state.is_some_and(|s| s.block().id() == new.block().id());
        let args = [
            self.arg_in(&io.x),
            self.arg_opt(io.state.filter(|_| !same).as_ref()),
            self.arg_in(&new),
            Arg::I64((s.n * s.c) as i64),
            Arg::I64(s.len as i64),
            Arg::I32(s.k as i32),
            Arg::I32(same as i32),
        ];
        self.launch_list(&CAUSAL_STATE.spec, dtype, "", Grid::Stride(s.n * s.c), &args)
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
        self.own_all(OP, &all)?;
        for (arg, g) in [("dx", &io.dx), ("dw", &io.dw), ("dbias", &io.dbias)] {
            g.as_ref().map_or(Ok(()), |g| self.own(OP, arg, &g.out.as_view()))?;
        }
        let (dtype, n, (number, param)) = (io.x.dtype(), s.n * s.c * s.len, fused_act(OP, act)?);
        let wide = dtype.accumulator();
        let (count, len, channels, k) =
            (Arg::I64(n as i64), Arg::I64(s.len as i64), Arg::I64(s.c as i64), Arg::I32(s.k as i32));
        let dz = (number != 0).then(|| self.scratch(wide, n)).transpose()?;
        let dz = dz.as_ref().map(|d| d.view());
        if let Some(dz) = &dz {
            let args = [
                self.arg_in(&io.dy),
                self.arg_in(&io.x),
                self.arg_in(&io.w),
                self.arg_opt(io.bias.as_ref()),
                self.arg_opt(io.state.as_ref()),
                self.arg_in(dz),
                count,
                len,
                channels,
                k,
                Arg::I32(number),
                real(dtype, param),
            ];
            self.launch_list(&CAUSAL_SLOPE.spec, dtype, "", Grid::Stride(n), &args)?;
        }
        if let Some(g) = &io.dx {
            let args = [
                self.arg_in(&io.dy),
                self.arg_opt(dz.as_ref()),
                self.arg_in(&io.w),
                self.arg_out(&g.out),
                count,
                len,
                channels,
                k,
                Arg::I32(g.accumulate as i32),
            ];
            self.launch_list(&CAUSAL_INPUT.spec, dtype, "", Grid::Stride(n), &args)?;
        }
        if io.dw.is_none() && io.dbias.is_none() {
            return Ok(());
        }
        // Enough blocks to fill the device, of at least four places per work-item.
        let places = s.n * s.len;
        let want = (self.device_caps().compute_units as usize).max(1) * 8;
        let splits = (want / s.c.max(1)).min(places / 1024).max(1);
        let per = places.div_ceil(splits).next_multiple_of(256);
        let splits = places.div_ceil(per.max(1));
        let part = self.scratch(wide, splits * s.c * (s.k + 1))?;
        let args = [
            self.arg_in(&io.dy),
            self.arg_opt(dz.as_ref()),
            self.arg_in(&io.x),
            self.arg_opt(io.state.as_ref()),
            self.arg_in(&part.view()),
            Arg::I64(s.n as i64),
            len,
            channels,
            k,
            Arg::I64(per as i64),
        ];
        self.launch_list(&CAUSAL_WEIGHT.spec, dtype, "", Grid::Blocks([s.c * splits, 1, 1]), &args)?;
        let adds = |g: &Option<crate::GradMut<'_>>| Arg::I32(g.as_ref().is_some_and(|g| g.accumulate) as i32);
        let args = [
            self.arg_in(&part.view()),
            self.arg_opt_out(io.dw.as_ref().map(|g| &g.out)),
            self.arg_opt_out(io.dbias.as_ref().map(|g| &g.out)),
            channels,
            k,
            Arg::I32(splits as i32),
            adds(&io.dw),
            adds(&io.dbias),
        ];
        self.launch_list(&CAUSAL_JOIN.spec, dtype, "", Grid::Stride(s.c * (s.k + 1)), &args)
    }
}
