//! Convolutional LSTM: unfolded convolutions as products, and the kernels between them.

use crate::spec::kernels::rnn::*;
use crate::buffer::{Buffer, GradMut, View};
use crate::driver::Arg;
use crate::dtype::DType;
use crate::engine::Engine;
use crate::engine::launch::{Grid, MAX_GRID_YZ};
use crate::engine::ops::rnn::{part, part_mut, seen};
use crate::error::Result;
use crate::ops::gemm::{Gemm, GemmAxis, Precision};
use crate::ops::reduce::ReduceOps;
use crate::ops::rnn::*;
use crate::ops::rnn::{ConvLstmBwd, ConvLstmFwd};
use crate::ops::shape::ShapeOps;
use crate::spec::BLOCK;

/// One of the two convolutions.
#[derive(Clone, Copy)]
struct Window {
    channels: usize,
    kernel: [usize; 2],
}

impl Window {
    /// Products per output.
    fn depth(self) -> usize {
        self.channels * self.kernel[0] * self.kernel[1]
    }
}

impl ConvLstmSizes {
    fn windows(&self) -> [Window; 2] {
        [Window { channels: self.input, kernel: self.kx }, Window { channels: self.hidden, kernel: self.kh }]
    }

    /// Columns of the products: pixels of all images.
    fn columns(&self) -> usize {
        self.batch * self.pixels()
    }
}

impl Engine {
    fn fold_args(&self, s: &ConvLstmSizes, w: Window) -> [Arg; 6] {
        let [kh, kw] = w.kernel;
        let [c, h, v, kh, kw] = [w.channels, s.height, s.width, kh, kw].map(|v| Arg::I32(v as i32));
        [Arg::I64(s.batch as i64), c, h, v, kh, kw]
    }

    fn fold_grid(&self, s: &ConvLstmSizes, w: Window) -> Grid {
        Grid::Blocks([s.columns().div_ceil(BLOCK as usize), w.channels.min(MAX_GRID_YZ), 1])
    }

    /// The images [N, C, H, W] at element `at` of `x`, unfolded into `col` [C kh kw, N H W].
    fn unfold_images(
        &self,
        s: &ConvLstmSizes,
        w: Window,
        x: &View<'_>,
        at: usize,
        col: &Buffer,
    ) -> Result<()> {
        let mut args = vec![self.arg_part(x, at), self.arg_in(&col.view())];
        args.extend(self.fold_args(s, w));
        self.launch_list(&CONV_LSTM_UNFOLD.spec, x.dtype(), "", self.fold_grid(s, w), &args)
    }

    /// The adjoint, into images of the storage type at an element of a gradient, or into a carried gradient of the arithmetic type.
    fn fold_images(
        &self,
        dtype: DType,
        s: &ConvLstmSizes,
        w: Window,
        col: &Buffer,
        grad: Option<(&GradMut<'_>, usize)>,
        carry: Option<&Buffer>,
    ) -> Result<()> {
        let to = grad.map_or(Arg::Mem(None), |(g, at)| self.arg_part(&g.out.as_view(), at));
        let carry = carry.map(|c| c.view());
        let mut args = vec![self.arg_in(&col.view()), to, self.arg_opt(carry.as_ref())];
        args.extend(self.fold_args(s, w));
        args.push(Arg::I32(grad.is_some_and(|(g, _)| g.accumulate) as i32));
        self.launch_list(&CONV_LSTM_FOLD.spec, dtype, "", self.fold_grid(s, w), &args)
    }
}

impl ConvLstmOps for Engine {
    fn conv_lstm(&self, precision: Precision, io: ConvLstmFwd<'_>) -> Result<()> {
        const OP: &str = "conv_lstm";
        let s = check_conv_lstm(&io)?;
        let (y, gates, last) = (io.y.as_view(), seen(&io.gates), [seen(&io.h_t), seen(&io.c_t)]);
        let (all_h, all_c) = (seen(&io.h), seen(&io.c));
        let read = [Some(io.x), Some(io.h_0), Some(io.c_0), Some(io.wx), Some(io.wh), io.b, io.p, Some(y)];
        self.own_named(OP, "x h_0 c_0 wx wh b p y", read)?;
        self.own_named(OP, "gates h c h_t c_t", [gates, all_h, all_c].into_iter().chain(last))?;
        let (dt, n, acc) = (io.x.dtype(), s.state(), io.x.dtype().accumulator());
        if n == 0 {
            return Ok(());
        }
        if s.steps == 0 {
            let shape = io.h_0.shape();
            for (first, to) in [(io.h_0, io.h), (io.h_0, io.h_t), (io.c_0, io.c), (io.c_0, io.c_t)] {
                to.map_or(Ok(()), |to| self.strided_copy(first, to.reshape(shape)?.into()))?;
            }
            return Ok(());
        }
        // States that nobody keeps take turns in scratch memory; the first one is read where it is.
        let [turns_h, turns_c] = [self.scratch(dt, 2 * n)?, self.scratch(dt, 2 * n)?];
        let shape = io.h_0.shape();
        for (first, kept) in [(io.h_0, io.h), (io.c_0, io.c)] {
            let Some(kept) = kept else { continue };
            let start = kept.layout().offset();
            let to = kept.reshape(&[(s.steps + 1) * n])?.range(start, n)?;
            self.strided_copy(first, to.reshape(shape)?.into())?;
        }
        let state = |at: usize, all: &Option<View<'_>>, first: View<'_>, turns: &Buffer| match all {
            Some(all) => self.arg_part(all, at * n),
            None if at == 0 => self.arg_in(&first),
            None => self.arg_part(&turns.view(), at % 2 * n),
        };
        let [wx, wh] = s.windows();
        let (rows, cols, each) = (4 * s.hidden, s.columns(), s.batch * s.input * s.pixels());
        let col = self.scratch(dt, wx.depth().max(wh.depth()) * cols)?;
        let z = self.scratch(acc, rows * cols)?;
        let g = Gemm::new().precision(precision).axes(GemmAxis::Row, GemmAxis::Col);
        let weights = [io.wx.reshape(&[rows, wx.depth()])?, io.wh.reshape(&[rows, wh.depth()])?];
        for at in 0..s.steps {
            let ends = at + 1 == s.steps;
            let only_last = |v: &Option<View<'_>>| self.arg_opt(v.as_ref().filter(|_| ends));
            self.unfold_images(&s, wx, &io.x, at * each, &col)?;
            let b = part(&col.view(), 0, &[wx.depth(), cols])?;
            self.multiply(&g, (weights[0], b), part_mut(&z, 0, &[rows, cols])?, 0.0, io.b)?;
            match (&all_h, at) {
                (Some(h), _) => self.unfold_images(&s, wh, h, at * n, &col)?,
                (None, 0) => self.unfold_images(&s, wh, &io.h_0, 0, &col)?,
                (None, _) => self.unfold_images(&s, wh, &turns_h.view(), at % 2 * n, &col)?,
            }
            let b = part(&col.view(), 0, &[wh.depth(), cols])?;
            self.multiply(&g, (weights[1], b), part_mut(&z, 0, &[rows, cols])?, 1.0, None)?;
            let mut args = vec![
                self.arg_in(&z.view()),
                state(at, &all_c, io.c_0, &turns_c),
                self.arg_opt(io.p.as_ref()),
            ];
            args.extend([state(at + 1, &all_h, io.h_0, &turns_h), state(at + 1, &all_c, io.c_0, &turns_c)]);
            args.extend([self.arg_part(&y, at * n), self.arg_part_opt(gates.as_ref(), 4 * at * n)]);
            args.extend([only_last(&last[0]), only_last(&last[1])]);
            args.extend([n, s.hidden, s.pixels()].map(|v| Arg::I64(v as i64)));
            args.push(Arg::I32(s.shared_p as i32));
            self.launch_list(&CONV_LSTM_STEP.spec, dt, "", Grid::Stride(n), &args)?;
        }
        Ok(())
    }

    fn conv_lstm_bwd(&self, precision: Precision, io: ConvLstmBwd<'_>) -> Result<()> {
        const OP: &str = "conv_lstm_bwd";
        let s = check_conv_lstm_bwd(&io)?;
        let outs = [&io.dx, &io.dh_0, &io.dc_0, &io.dwx, &io.dwh, &io.db, &io.dp];
        let outs = outs.map(|g| g.as_ref().map(|g| g.out.as_view()));
        let read = [
            io.dy,
            io.dh_t,
            io.dc_t,
            io.p,
            Some(io.x),
            Some(io.wx),
            Some(io.wh),
            Some(io.gates),
            Some(io.c),
            Some(io.h),
        ];
        self.own_named(OP, "dy dh_t dc_t p x wx wh gates c h", read)?;
        self.own_named(OP, "dx dh_0 dc_0 dwx dwh db dp", outs)?;
        if outs.iter().all(Option::is_none) {
            return Ok(());
        }
        let (dt, n, acc) = (io.x.dtype(), s.state(), io.x.dtype().accumulator());
        let [wx, wh] = s.windows();
        let (rows, cols, each) = (4 * s.hidden, s.columns(), s.batch * s.input * s.pixels());
        let dz = self.scratch(dt, s.steps * rows * cols)?;
        let [dh, dc] = [self.scratch(acc, n)?, self.scratch(acc, n)?];
        let depth = wx.depth().max(wh.depth());
        let (col, dcol) = (self.scratch(dt, depth * cols)?, self.scratch(acc, depth * cols)?);
        let sums = [self.scratch(acc, rows * wx.depth())?, self.scratch(acc, rows * wh.depth())?];
        let g = Gemm::new().precision(precision);
        let weights = [io.wx.reshape(&[rows, wx.depth()])?, io.wh.reshape(&[rows, wh.depth()])?];
        for at in (0..s.steps).rev() {
            let first = at + 1 == s.steps;
            let mut args = vec![self.arg_part(&io.gates, 4 * at * n), self.arg_part(&io.c, at * n)];
            args.extend([self.arg_part(&io.c, (at + 1) * n), self.arg_opt(io.p.as_ref())]);
            args.extend([self.arg_part_opt(io.dy.as_ref(), at * n), self.arg_opt(io.dh_t.as_ref())]);
            args.extend([self.arg_opt(io.dc_t.as_ref()), self.arg_in(&dh.view()), self.arg_in(&dc.view())]);
            args.push(self.arg_part(&dz.view(), at * rows * cols));
            args.extend([n, s.hidden, s.pixels()].map(|v| Arg::I64(v as i64)));
            args.extend([Arg::I32(s.shared_p as i32), Arg::I32(first as i32)]);
            self.launch_list(&CONV_LSTM_STEP_BWD.spec, dt, "", Grid::Stride(n), &args)?;
            let d = part(&dz.view(), at * rows * cols, &[rows, cols])?;
            let beta = if first { 0.0 } else { 1.0 };
            for (k, (w, from, start)) in [(wx, &io.x, at * each), (wh, &io.h, at * n)].into_iter().enumerate()
            {
                if outs[3 + k].is_none() {
                    continue;
                }
                self.unfold_images(&s, w, from, start, &col)?;
                let b = part(&col.view(), 0, &[w.depth(), cols])?;
                let to = part_mut(&sums[k], 0, &[rows, w.depth()])?;
                self.multiply(&g.trans(false, true), (d, b), to, beta, None)?;
            }
            if let Some(dx) = &io.dx {
                let to = part_mut(&dcol, 0, &[wx.depth(), cols])?;
                self.multiply(&g.trans(true, false), (weights[0], d), to, 0.0, None)?;
                self.fold_images(dt, &s, wx, &dcol, Some((dx, at * each)), None)?;
            }
            if at > 0 || io.dh_0.is_some() {
                let to = part_mut(&dcol, 0, &[wh.depth(), cols])?;
                self.multiply(&g.trans(true, false), (weights[1], d), to, 0.0, None)?;
                self.fold_images(dt, &s, wh, &dcol, None, Some(&dh))?;
            }
        }
        let empty = s.steps == 0 || n == 0;
        for (from, d, to) in [(io.dh_t, &dh, io.dh_0), (io.dc_t, &dc, io.dc_0)] {
            let Some(to) = to else { continue };
            match from {
                Some(from) if empty => self.strided_copy(from, to)?,
                None if empty && to.accumulate => {}
                None if empty => self.fill_pattern(&[0; 8], &to.out.as_view())?,
                _ => self.store_sum(&d.view(), &to)?,
            }
        }
        for (sum, to) in [(&sums[0], io.dwx), (&sums[1], io.dwh)] {
            match to {
                Some(to) if empty && !to.accumulate => self.fill_pattern(&[0; 8], &to.out.as_view())?,
                Some(to) if !empty => self.store_sum(&sum.view(), &to)?,
                _ => {}
            }
        }
        if let Some(db) = io.db {
            let all = part(&dz.view(), 0, &[s.steps, rows, cols])?;
            let to = GradMut { out: db.out.reshape(&[rows, 1])?, accumulate: db.accumulate };
            self.sum_to_shape(all, to)?;
        }
        let Some(dp) = io.dp else { return Ok(()) };
        let weights = dp.out.numel();
        let lanes = if s.shared_p { BLOCK as usize } else { 1 };
        let to = dp.out.as_view();
        let mut args = vec![self.arg_in(&dz.view()), self.arg_in(&io.c), self.arg_in(&to)];
        args.extend([weights, s.steps, s.batch, s.hidden, s.pixels()].map(|v| Arg::I64(v as i64)));
        args.extend([Arg::I32(lanes as i32), Arg::I32(dp.accumulate as i32)]);
        let blocks = (weights * lanes).div_ceil(BLOCK as usize);
        self.launch_list(&CONV_LSTM_PEEP.spec, dt, "", Grid::Blocks([blocks, 1, 1]), &args)
    }
}
