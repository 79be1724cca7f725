//! Losses between spectrograms.

use crate::buffer::{Buffer, View, ViewMut};
use crate::driver::Ptr;
use crate::dtype::DType;
use crate::engine::Engine;
use crate::engine::launch::{Grid, args_from};
use crate::engine::ops::loss::flag;
use crate::error::Result;
use crate::ops::loss::*;
use crate::spec::kernels::loss::*;

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

    /// Number of magnitudes in all frames.
    fn count(&self) -> f64 {
        self.total as f64 * self.r.bins() as f64
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
        let args = StftTableArgs { table: self.arg_in(&table.view()), n: r.fft as i64, win: r.window as i64 };
        self.launch(&STFT_TABLE, dt, "", Grid::Stride(r.fft), &args)?;
        Ok(Pass { p, t, table, work, len, frames, total, group, blocks, r })
    }

    /// Arguments of the pass that sums over all frames, with its output null.
    fn stft_sums(&self, x: &Pass<'_>) -> StftSumsArgs {
        StftSumsArgs {
            p: self.arg_in(x.p),
            t: self.arg_in(x.t),
            table: self.arg_in(&x.table.view()),
            work: self.arg_opt(x.work.as_ref().map(Buffer::view).as_ref()),
            partial: Ptr::NULL,
            total: x.total as i64,
            frames: x.frames as i64,
            T: x.len as i64,
            n: x.r.fft as i32,
            hop: x.r.hop as i64,
            win: x.r.window as i32,
            group: x.group as i32,
        }
    }

    /// Norms of one resolution, written to `stat`, and its loss times `factor`, written or added to `loss`.
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
        let args = StftSumsArgs { partial: self.arg_in(&partial.view()), ..self.stft_sums(x) };
        self.launch(&STFT_SUMS, dt, "", Grid::Blocks([x.blocks, 1, 1]), &args)?;
        let args = StftFinishArgs {
            partial: self.arg_in(&partial.view()),
            blocks: x.blocks as i64,
            count: x.count(),
            factor,
            add: flag(add),
            stat: self.arg_opt_out(stat),
            loss: self.arg_opt_out(loss),
        };
        self.launch(&STFT_FINISH, dt, "", Grid::Blocks([1, 1, 1]), &args)
    }
}

impl StftLossOps for Engine {
    fn stft_loss(&self, resolutions: &[StftResolution], io: StftLossFwd<'_>) -> Result<()> {
        const OP: &str = "stft_loss";
        let size = check_stft_loss(resolutions, &io)?;
        self.check_owner_all(OP, &[("p", io.p), ("t", io.t), ("loss", io.loss.as_view())])?;
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
        self.check_owner_all(OP, &[("gy", io.gy), ("p", io.p), ("t", io.t), ("dp", io.dp.out.as_view())])?;
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
            let sums = self.stft_sums(&x);
            let args = args_from! { sums => StftFramesArgs
                [p t table work total frames T n hop win group]
                {
                    stat: self.arg_in(&stat.view()),
                    gy: self.arg_in(&io.gy),
                    gy_f32: flag(io.gy.dtype() == DType::F32),
                    grad: self.arg_in(&grad.view()),
                    count: x.count(),
                    factor,
                }
            };
            self.launch(&STFT_FRAMES, dt, "", Grid::Blocks([x.blocks, 1, 1]), &args)?;
            let args = StftGatherArgs {
                grad: self.arg_in(&grad.view()),
                sum: self.arg_opt(sum.as_ref().map(Buffer::view).as_ref()),
                fresh: flag(i == 0),
                dp: if i == last { self.arg_out(&io.dp.out) } else { Ptr::NULL },
                accumulate: flag(io.dp.accumulate),
                N: n as i64,
                T: x.len as i64,
                frames: x.frames as i64,
                n: r.fft as i64,
                hop: r.hop as i64,
                win: r.window as i64,
            };
            self.launch(&STFT_GATHER, dt, "", Grid::Stride(n), &args)?;
        }
        Ok(())
    }
}
