//! Losses between spectrograms.

use crate::spec::kernels::loss::*;
use crate::buffer::{Buffer, View, ViewMut};
use crate::driver::Arg;
use crate::dtype::DType;
use crate::engine::Engine;
use crate::engine::launch::{Grid, real};
use crate::engine::ops::loss::flag;
use crate::error::Result;
use crate::ops::loss::*;

/// One resolution on its way: the table of cosines and the window, and how frames are spread over blocks.
struct Pass<'a> {
    p: &'a View<'a>,
    t: &'a View<'a>,
    table: Buffer,
    /// Memory for transforms that are too long for a block's own.
    work: Option<Buffer>,
    /// Signal length, frames per signal, frames of all signals.
    len: usize,
    frames: usize,
    total: usize,
    /// Frames that a block transforms at a time.
    group: usize,
    blocks: usize,
    r: StftResolution,
}

impl Pass<'_> {
    fn dtype(&self) -> DType {
        self.p.dtype()
    }

    /// Magnitudes of all frames.
    fn count(&self) -> Arg {
        real(self.dtype(), self.total as f64 * self.r.bins() as f64)
    }

    fn sizes(&self) -> [Arg; 7] {
        [
            Arg::I64(self.total as i64),
            Arg::I64(self.frames as i64),
            Arg::I64(self.len as i64),
            Arg::I32(self.r.fft as i32),
            Arg::I64(self.r.hop as i64),
            Arg::I32(self.r.window as i32),
            Arg::I32(self.group as i32),
        ]
    }
}

impl Engine {
    fn stft_pass<'a>(
        &self,
        r: StftResolution,
        p: &'a View<'a>,
        t: &'a View<'a>,
        [rows, len]: [usize; 2],
    ) -> Result<Pass<'a>> {
        let (dt, acc) = (p.dtype(), p.dtype().accumulator());
        // GK_FFT_MAX: two complex buffers of this length fill the shared memory that every device has.
        let most = if dt == DType::F64 { 1024 } else { 2048 };
        let frames = r.frames(len);
        let total = rows * frames;
        let group = (most / r.fft).max(1);
        let own = r.fft <= most;
        let blocks = total.div_ceil(group).min(if own { 2048 } else { 256 });
        let work = if own { None } else { Some(self.scratch(acc, blocks * 4 * r.fft)?) };
        let table = self.scratch(acc, 2 * r.fft + r.window)?;
        let args = [self.arg_in(&table.view()), Arg::I64(r.fft as i64), Arg::I64(r.window as i64)];
        self.launch_list(&STFT_TABLE.spec, dt, "", Grid::Stride(r.fft), &args)?;
        Ok(Pass { p, t, table, work, len, frames, total, group, blocks, r })
    }

    fn stft_operands(&self, x: &Pass<'_>) -> Vec<Arg> {
        let work = x.work.as_ref().map(Buffer::view);
        vec![self.arg_in(x.p), self.arg_in(x.t), self.arg_in(&x.table.view()), self.arg_opt(work.as_ref())]
    }

    /// Norms of one resolution into `stat`, its loss times `factor` into `loss`.
    fn stft_norms(
        &self,
        x: &Pass<'_>,
        factor: f64,
        add: bool,
        stat: Option<&ViewMut<'_>>,
        loss: Option<&ViewMut<'_>>,
    ) -> Result<()> {
        let dt = x.dtype();
        let partial = self.scratch(dt.accumulator(), 3 * x.blocks)?;
        let mut args = self.stft_operands(x);
        args.push(self.arg_in(&partial.view()));
        args.extend(x.sizes());
        self.launch_list(&STFT_SUMS.spec, dt, "", Grid::Blocks([x.blocks, 1, 1]), &args)?;
        let args = [
            self.arg_in(&partial.view()),
            Arg::I64(x.blocks as i64),
            x.count(),
            real(dt, factor),
            flag(add),
            self.arg_opt_out(stat),
            self.arg_opt_out(loss),
        ];
        self.launch_list(&STFT_FINISH.spec, dt, "", Grid::Blocks([1, 1, 1]), &args)
    }
}

impl StftLossOps for Engine {
    fn stft_loss(&self, resolutions: &[StftResolution], io: StftLossFwd<'_>) -> Result<()> {
        const OP: &str = "stft_loss";
        let size = check_stft_loss(resolutions, &io)?;
        self.own_all(OP, &[("p", io.p), ("t", io.t), ("loss", io.loss.as_view())])?;
        let factor = 1.0 / resolutions.len() as f64;
        for (i, &r) in resolutions.iter().enumerate() {
            let x = self.stft_pass(r, &io.p, &io.t, size)?;
            self.stft_norms(&x, factor, i > 0, None, Some(&io.loss))?;
        }
        Ok(())
    }

    fn stft_loss_bwd(&self, resolutions: &[StftResolution], io: StftLossBwd<'_>) -> Result<()> {
        const OP: &str = "stft_loss_bwd";
        let size = check_stft_loss_bwd(resolutions, &io)?;
        self.own_all(OP, &[("gy", io.gy), ("p", io.p), ("t", io.t), ("dp", io.dp.out.as_view())])?;
        let (n, dt, acc) = (io.p.numel(), io.p.dtype(), io.p.dtype().accumulator());
        if n == 0 {
            return Ok(());
        }
        let last = resolutions.len() - 1;
        let factor = 1.0 / resolutions.len() as f64;
        let mut stat = self.scratch(acc, 2)?;
        let sum = if last > 0 { Some(self.scratch(acc, n)?) } else { None };
        for (i, &r) in resolutions.iter().enumerate() {
            let x = self.stft_pass(r, &io.p, &io.t, size)?;
            self.stft_norms(&x, factor, false, Some(&stat.view_mut()), None)?;
            let grad = self.scratch(acc, x.total * r.window)?;
            let mut args = self.stft_operands(&x);
            args.extend([self.arg_in(&stat.view()), self.arg_in(&io.gy), flag(io.gy.dtype() == DType::F32)]);
            args.push(self.arg_in(&grad.view()));
            args.extend(x.sizes());
            args.extend([x.count(), real(dt, factor)]);
            self.launch_list(&STFT_FRAMES.spec, dt, "", Grid::Blocks([x.blocks, 1, 1]), &args)?;
            let mut args = vec![
                self.arg_in(&grad.view()),
                self.arg_opt(sum.as_ref().map(Buffer::view).as_ref()),
                flag(i == 0),
                if i == last { self.arg_out(&io.dp.out) } else { Arg::Mem(None) },
                flag(io.dp.accumulate),
            ];
            args.extend([n, x.len, x.frames, r.fft, r.hop, r.window].map(|v| Arg::I64(v as i64)));
            self.launch_list(&STFT_GATHER.spec, dt, "", Grid::Stride(n), &args)?;
        }
        Ok(())
    }
}
