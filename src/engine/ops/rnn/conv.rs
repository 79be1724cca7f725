//! Convolutional LSTM: unfolded convolutions as products, and the kernels between them.

use crate::buffer::{Buffer, GradMut, View};
use crate::driver::Ptr;
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
use crate::spec::kernels::rnn::*;

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

/// Images and a window over them as the kernels take them.
struct FoldArgs {
    count: i64,
    channels: i32,
    height: i32,
    width: i32,
    kh: i32,
    kw: i32,
}

impl Engine {
    fn fold_args(&self, s: &ConvLstmSizes, w: Window) -> FoldArgs {
        let [kh, kw] = w.kernel;
        let [channels, height, width, kh, kw] = [w.channels, s.height, s.width, kh, kw].map(|v| v as i32);
        FoldArgs { count: s.batch as i64, channels, height, width, kh, kw }
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
        let FoldArgs { count, channels, height, width, kh, kw } = self.fold_args(s, w);
        let images = self.arg_part(x, at);
        let col = self.arg_in(&col.view());
        let args = ConvLstmUnfoldArgs { images, col, count, channels, height, width, kh, kw };
        self.launch(&CONV_LSTM_UNFOLD, x.dtype(), "", self.fold_grid(s, w), &args)
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
        let carry = carry.map(|c| c.view());
        let FoldArgs { count, channels, height, width, kh, kw } = self.fold_args(s, w);
        let args = ConvLstmFoldArgs {
            col: self.arg_in(&col.view()),
            grad: grad.map_or(Ptr::NULL, |(g, at)| self.arg_part(&g.out.as_view(), at)),
            carry: self.arg_opt(carry.as_ref()),
            count,
            channels,
            height,
            width,
            kh,
            kw,
            accumulate: i32::from(grad.is_some_and(|(g, _)| g.accumulate)),
        };
        self.launch(&CONV_LSTM_FOLD, dtype, "", self.fold_grid(s, w), &args)
    }
}

impl Engine {
    /// Gradient of the peephole weights: sums of dz c over the steps and all elements that share a weight.
    fn peephole_gradient(
        &self,
        s: &ConvLstmSizes,
        dz: &View<'_>,
        c: &View<'_>,
        dp: &GradMut<'_>,
    ) -> Result<()> {
        let to = dp.out.as_view();
        let weights = to.numel();
        let lanes = if s.shared_p { BLOCK as usize } else { 1 };
        let args = ConvLstmPeepArgs {
            dz: self.arg_in(dz),
            c: self.arg_in(c),
            dp: self.arg_in(&to),
            weights: weights as i64,
            steps: s.steps as i64,
            count: s.batch as i64,
            hidden: s.hidden as i64,
            pixels: s.pixels() as i64,
            lanes: lanes as i32,
            accumulate: i32::from(dp.accumulate),
        };
        let blocks = (weights * lanes).div_ceil(BLOCK as usize);
        self.launch(&CONV_LSTM_PEEP, dz.dtype(), "", Grid::Blocks([blocks, 1, 1]), &args)
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
        // States that are not saved alternate between two places in scratch memory; the first one is read where it is.
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
            let args = ConvLstmStepArgs {
                z: self.arg_in(&z.view()),
                c: state(at, &all_c, io.c_0, &turns_c),
                peep: self.arg_opt(io.p.as_ref()),
                h_next: state(at + 1, &all_h, io.h_0, &turns_h),
                c_next: state(at + 1, &all_c, io.c_0, &turns_c),
                y: self.arg_part(&y, at * n),
                gates: self.arg_part_opt(gates.as_ref(), 4 * at * n),
                h_last: only_last(&last[0]),
                c_last: only_last(&last[1]),
                n: n as i64,
                hidden: s.hidden as i64,
                pixels: s.pixels() as i64,
                shared: i32::from(s.shared_p),
            };
            self.launch(&CONV_LSTM_STEP, dt, "", Grid::Stride(n), &args)?;
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
            let args = ConvLstmStepBwdArgs {
                gates: self.arg_part(&io.gates, 4 * at * n),
                c: self.arg_part(&io.c, at * n),
                c_next: self.arg_part(&io.c, (at + 1) * n),
                peep: self.arg_opt(io.p.as_ref()),
                dy: self.arg_part_opt(io.dy.as_ref(), at * n),
                dh_last: self.arg_opt(io.dh_t.as_ref()),
                dc_last: self.arg_opt(io.dc_t.as_ref()),
                dh: self.arg_in(&dh.view()),
                dc: self.arg_in(&dc.view()),
                dz: self.arg_part(&dz.view(), at * rows * cols),
                n: n as i64,
                hidden: s.hidden as i64,
                pixels: s.pixels() as i64,
                shared: i32::from(s.shared_p),
                first: i32::from(first),
            };
            self.launch(&CONV_LSTM_STEP_BWD, dt, "", Grid::Stride(n), &args)?;
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
        let stored = [
            (&dh, io.dh_t, io.dh_0),
            (&dc, io.dc_t, io.dc_0),
            (&sums[0], None, io.dwx),
            (&sums[1], None, io.dwh),
        ];
        for (sum, from, to) in stored {
            let Some(to) = to else { continue };
            match from {
                Some(from) if empty => self.strided_copy(from, to)?,
                None if empty && to.accumulate => {}
                None if empty => self.fill_pattern(&[0; 8], &to.out.as_view())?,
                _ => self.store_sum(&sum.view(), &to)?,
            }
        }
        if let Some(db) = io.db {
            let all = part(&dz.view(), 0, &[s.steps, rows, cols])?;
            let to = GradMut { out: db.out.reshape(&[rows, 1])?, accumulate: db.accumulate };
            self.sum_to_shape(all, to)?;
        }
        io.dp.map_or(Ok(()), |dp| self.peephole_gradient(&s, &dz.view(), &io.c, &dp))
    }
}
