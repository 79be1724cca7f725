//! Convolutional LSTM on the CPU: convolutions as loops over taps and rows of pixels, in f64.

use crate::cpu::rnn::{give, keep, lstm, lstm_grad, optional, round};
use crate::cpu::scratch::*;
use crate::cpu::*;
use crate::ops::gemm::Precision;
use crate::ops::rnn::*;
use crate::ops::rnn::{ConvLstmBwd, ConvLstmFwd};

/// One of the two convolutions, from `channels` images to 4 Hc.
struct Filter {
    weights: Vec<f64>,
    channels: usize,
    kernel: [usize; 2],
}

/// Pixels `to` of an output that read pixels `from` of an input along one axis of `size`, for a tap shifted by `by`.
fn overlap(size: usize, by: isize) -> (std::ops::Range<usize>, usize) {
    let n = size as isize;
    let first = (-by).clamp(0, n);
    let end = (n - by.max(0)).max(first);
    (first as usize..end as usize, (first + by).clamp(0, n) as usize)
}

impl Filter {
    fn new(op: &'static str, w: View<'_>) -> Result<Self> {
        let s = w.shape();
        Ok(Filter { channels: s[1], kernel: [s[2], s[3]], weights: gather_f64(op, w)? })
    }

    /// Calls `f(weight, output pixels, input pixels)` for every weight and row of an image n: runs of pixels, as element ranges.
    fn taps(&self, s: &ConvLstmSizes, n: usize, mut f: impl FnMut(usize, std::ops::Range<usize>, usize)) {
        let ([kh, kw], pixels) = (self.kernel, s.pixels());
        for o in 0..4 * s.hidden {
            for c in 0..self.channels {
                for (y, x) in (0..kh).flat_map(|y| (0..kw).map(move |x| (y, x))) {
                    let weight = ((o * self.channels + c) * kh + y) * kw + x;
                    let (to_y, from_y) = overlap(s.height, y as isize - (kh / 2) as isize);
                    let (to_x, from_x) = overlap(s.width, x as isize - (kw / 2) as isize);
                    for (line, py) in to_y.enumerate() {
                        let to = (n * 4 * s.hidden + o) * pixels + py * s.width;
                        let from = (n * self.channels + c) * pixels + (from_y + line) * s.width + from_x;
                        f(weight, to + to_x.start..to + to_x.end, from);
                    }
                }
            }
        }
    }

    /// z += conv(x).
    fn apply(&self, s: &ConvLstmSizes, x: &[f64], z: &mut [f64]) {
        for n in 0..s.batch {
            self.taps(s, n, |w, to, from| {
                let w = self.weights[w];
                z[to].iter_mut().zip(&x[from..]).for_each(|(z, x)| *z += w * x);
            });
        }
    }

    /// dw += dz * x, and dx += the adjoint of dz.
    fn back(&self, s: &ConvLstmSizes, dz: &[f64], x: &[f64], dw: &mut [f64], dx: &mut [f64]) {
        for n in 0..s.batch {
            self.taps(s, n, |at, to, from| {
                let w = self.weights[at];
                let (dz, len) = (&dz[to.clone()], to.len());
                dw[at] += dz.iter().zip(&x[from..]).map(|(d, x)| d * x).sum::<f64>();
                dx[from..from + len].iter_mut().zip(dz).for_each(|(v, d)| *v += w * d);
            });
        }
    }
}

/// Image, channel and pixel of element e of a state.
fn place(s: &ConvLstmSizes, e: usize) -> [usize; 3] {
    let pixels = s.pixels();
    [e / pixels / s.hidden, e / pixels % s.hidden, e % pixels]
}

/// Position of gate q of element e of a state in [N, 4 Hc, H, W].
fn gate(s: &ConvLstmSizes, e: usize, q: usize) -> usize {
    let [n, c, p] = place(s, e);
    ((n * 4 + q) * s.hidden + c) * s.pixels() + p
}

/// Positions of the peephole weights of element e.
fn peep(s: &ConvLstmSizes, e: usize) -> [usize; 3] {
    let [_, c, p] = place(s, e);
    [0, 1, 2].map(|k| if s.shared_p { k * s.hidden + c } else { (k * s.hidden + c) * s.pixels() + p })
}

impl ConvLstmOps for Kernels {
    fn conv_lstm(&self, _: Precision, io: ConvLstmFwd<'_>) -> Result<()> {
        const OP: &str = "conv_lstm";
        let s = check_conv_lstm(&io)?;
        let _timed = self.count("conv_lstm");
        let (dt, n, pixels) = (io.x.dtype(), s.state(), s.pixels());
        let (wx, wh) = (Filter::new(OP, io.wx)?, Filter::new(OP, io.wh)?);
        let (x, b) = (gather_f64(OP, io.x)?, optional(OP, io.b, 4 * s.hidden)?);
        let p = io.p.map(|p| gather_f64(OP, p)).transpose()?;
        let (mut hs, mut cs) = (gather_f64(OP, io.h_0)?, gather_f64(OP, io.c_0)?);
        let (mut y, mut gates) = (with_capacity(s.steps * n)?, Vec::new());
        let each = s.batch * s.input * pixels;
        for t in 0..if n == 0 { 0 } else { s.steps } {
            let mut z: Vec<f64> = (0..4 * n).map(|e| b[e / pixels % (4 * s.hidden)]).try_vec()?;
            wx.apply(&s, &x[t * each..(t + 1) * each], &mut z);
            wh.apply(&s, &hs[t * n..], &mut z);
            for e in 0..n {
                let weights = p.as_ref().map_or([0.0; 3], |p| peep(&s, e).map(|k| p[k]));
                let mut v = [0, 1, 2, 3].map(|q| z[gate(&s, e, q)]);
                let (c, h) = lstm(&mut v, cs[t * n + e], weights);
                (0..4).for_each(|q| z[gate(&s, e, q)] = v[q]);
                cs.try_push(round(dt, c))?;
                hs.try_push(round(dt, h))?;
                y.try_push(h)?;
            }
            gates.try_extend(z)?;
        }
        let end = s.steps * n;
        store_f64(OP, &io.y, &y)?;
        keep(OP, &io.h_t, &hs[end..])?;
        keep(OP, &io.c_t, &cs[end..])?;
        keep(OP, &io.h, &hs)?;
        keep(OP, &io.c, &cs)?;
        keep(OP, &io.gates, &gates)
    }

    fn conv_lstm_bwd(&self, _: Precision, io: ConvLstmBwd<'_>) -> Result<()> {
        const OP: &str = "conv_lstm_bwd";
        let s = check_conv_lstm_bwd(&io)?;
        let _timed = self.count("conv_lstm_bwd");
        let (dt, n, pixels) = (io.x.dtype(), s.state(), s.pixels());
        let (wx, wh) = (Filter::new(OP, io.wx)?, Filter::new(OP, io.wh)?);
        let (x, hs, cs) = (gather_f64(OP, io.x)?, gather_f64(OP, io.h)?, gather_f64(OP, io.c)?);
        let gates = gather_f64(OP, io.gates)?;
        let p = io.p.map(|p| gather_f64(OP, p)).transpose()?;
        let dy = optional(OP, io.dy, s.steps * n)?;
        let (mut dh, mut dc) = (optional(OP, io.dh_t, n)?, optional(OP, io.dc_t, n)?);
        let (mut dwx, mut dwh) = (filled(wx.weights.len(), 0.0)?, filled(wh.weights.len(), 0.0)?);
        let (mut db, mut dp) = (filled(4 * s.hidden, 0.0)?, filled(p.as_ref().map_or(0, Vec::len), 0.0)?);
        let mut dx = filled(x.len(), 0.0)?;
        let each = s.batch * s.input * pixels;
        for t in (0..if n == 0 { 0 } else { s.steps }).rev() {
            let mut dz = filled(4 * n, 0.0)?;
            for e in 0..n {
                let weights = p.as_ref().map_or([0.0; 3], |p| peep(&s, e).map(|k| p[k]));
                let g = [0, 1, 2, 3].map(|q| gates[4 * t * n + gate(&s, e, q)]);
                let (c, next) = (cs[t * n + e], cs[(t + 1) * n + e]);
                let (d, back) = lstm_grad(g, c, next, dh[e] + dy[t * n + e], dc[e], weights);
                dc[e] = back;
                let d = d.map(|d| round(dt, d));
                for (q, &d) in d.iter().enumerate() {
                    dz[gate(&s, e, q)] = d;
                    db[q * s.hidden + place(&s, e)[1]] += d;
                }
                if p.is_some() {
                    let at = peep(&s, e);
                    dp[at[0]] += d[0] * c;
                    dp[at[1]] += d[1] * c;
                    dp[at[2]] += d[3] * next;
                }
            }
            dh.fill(0.0);
            let steps = t * each..(t + 1) * each;
            wx.back(&s, &dz, &x[steps.clone()], &mut dwx, &mut dx[steps]);
            wh.back(&s, &dz, &hs[t * n..(t + 1) * n], &mut dwh, &mut dh);
        }
        give(OP, &io.dx, &dx)?;
        give(OP, &io.dh_0, &dh)?;
        give(OP, &io.dc_0, &dc)?;
        give(OP, &io.dwx, &dwx)?;
        give(OP, &io.dwh, &dwh)?;
        give(OP, &io.db, &db)?;
        give(OP, &io.dp, &dp)
    }
}
