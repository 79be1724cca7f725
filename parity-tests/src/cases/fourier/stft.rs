//! Short-time Fourier transforms as the calls that they consist of: frames of a signal, windowed, transformed; and the way back.

use trefoil::ops::conv::Conv;
use trefoil::ops::elementwise::Binary;
use trefoil::ops::fourier::Fft;
use trefoil::ops::shape::PadMode;
use trefoil::{Buffer, View};

use super::F32;
use crate::cases::Bound::Derived;
use crate::cases::{Kernel, k};
use crate::device::{Cx, Fail, R};
use crate::sampler::Dom::{Any, Range};
use crate::sampler::Sample;

/// The parameters of a case, and its window centred in a frame.
struct Plan<'a> {
    cx: &'a Cx<'a>,
    n: usize,
    hop: usize,
    center: bool,
    onesided: bool,
    /// Factor of the transform.
    scale: f64,
    window: Buffer,
}

impl<'a> Plan<'a> {
    fn new(cx: &'a Cx<'a>) -> R<Self> {
        let (n, hop, w) = (cx.n("n_fft")?, cx.n("hop")?, cx.x("window")?);
        let size = w.numel();
        if hop == 0 || size > n || w.shape().len() != 1 {
            return Err(Fail::Case("a window fits a frame, and a hop is not 0".into()));
        }
        let before = ((n - size) / 2) as isize;
        let window = cx.scratch(w.dtype(), n)?;
        cx.gpu.pad(
            PadMode::Constant(0.0),
            &[(before, (n - size) as isize - before)],
            w,
            window.alias_mut(),
        )?;
        let scale = if cx.b("normalized")? { 1.0 / (n as f64).sqrt() } else { 1.0 };
        Ok(Plan { cx, n, hop, center: cx.b("center")?, onesided: cx.b("onesided")?, scale, window })
    }

    fn bins(&self) -> usize {
        if self.onesided { self.n / 2 + 1 } else { self.n }
    }

    /// Elements before and after a signal.
    fn pads(&self) -> [(isize, isize); 2] {
        let half = if self.center { (self.n / 2) as isize } else { 0 };
        [(0, 0), (half, half)]
    }

    /// Windowed frames of x [B, T]: their number, and [B, F, n] times the window.
    fn frames(&self, x: View<'_>) -> R<(usize, Buffer)> {
        let (b, count) = (x.shape()[0], (x.shape()[1].checked_sub(self.n)).map_or(0, |n| n / self.hop + 1));
        let frames = self.cx.scratch(x.dtype(), b * count * self.n)?;
        let x = x.map("frames", |l| l.unfold(1, self.n, self.hop))?;
        let y = frames.alias_mut().reshape(&[b, count, self.n])?;
        self.cx.gpu.binary(Binary::Mul, x, self.window.view(), y)?;
        Ok((count, frames))
    }

    /// The transforms of frames, to an output [B, bins, F, 2].
    fn spectrum(&self, x: View<'_>, p: Fft, output: &str) -> R {
        let ((count, frames), b) = (self.frames(x)?, x.shape()[0]);
        let (gpu, shape) = (self.cx.gpu, [b, count, self.bins(), 2]);
        let spectrum = self.cx.scratch(x.dtype(), shape.iter().product())?;
        let y = spectrum.alias_mut().reshape(&shape)?;
        if self.onesided {
            gpu.rfft(&p, frames.shaped(&[b, count, self.n])?, y.into())?;
        } else {
            let pairs = self.cx.scratch(x.dtype(), shape.iter().product())?;
            gpu.fill(0.0, pairs.alias_mut())?;
            let real = pairs.alias_mut().reshape(&shape)?.map("real", |l| l.select(3, 0))?;
            gpu.strided_copy(frames.shaped(&[b, count, self.n])?, real.into())?;
            gpu.fft(&p, 2, pairs.shaped(&shape)?, y.into())?;
        }
        let out = self.cx.out(output, x.dtype(), &[b, self.bins(), count, 2])?;
        Ok(gpu.strided_copy(spectrum.shaped(&shape)?.map("bins", |l| l.transpose(1, 2))?, out.g())?)
    }

    /// Frames [B, F, n] added up where they lie: [B, n + hop (F - 1)], times the window with `windowed`.
    fn overlap(&self, frames: View<'_>) -> R<(Buffer, [usize; 2])> {
        let (b, count) = (frames.shape()[0], frames.shape()[1]);
        let len = self.n + self.hop * count.saturating_sub(1);
        let columns = self.cx.scratch(frames.dtype(), b * count * self.n)?;
        let shape = [b, self.n, count];
        let turned = columns.alias_mut().reshape(&shape)?.map("frames", |l| l.transpose(1, 2))?;
        self.cx.gpu.binary(Binary::Mul, frames, self.window.view(), turned)?;
        let sum = self.cx.scratch(frames.dtype(), b * len)?;
        let p = Conv::new().stride(self.hop);
        self.cx.gpu.col2im(
            &p,
            &[self.n],
            columns.shaped(&shape)?,
            sum.alias_mut().reshape(&[b, 1, len])?.into(),
        )?;
        Ok((sum, [b, len]))
    }

    /// The signals of transforms [B, bins, F, 2].
    fn signal(&self, x: View<'_>, p: Fft) -> R<(Buffer, [usize; 2])> {
        let &[b, _, count, 2] = x.shape() else {
            return Err(Fail::Case("transforms are [B, bins, F, 2]".into()));
        };
        let (gpu, shape) = (self.cx.gpu, [b, count, self.bins(), 2]);
        let [turned, frames] =
            [shape.iter().product(), b * count * self.n].map(|n| self.cx.scratch(x.dtype(), n));
        let (turned, frames) = (turned?, frames?);
        let x = x.map("frames", |l| l.transpose(1, 2))?;
        gpu.strided_copy(x, turned.alias_mut().reshape(&shape)?.into())?;
        let all = [b, count, self.n];
        if self.onesided {
            gpu.irfft(&p, turned.shaped(&shape)?, frames.alias_mut().reshape(&all)?.into())?;
        } else {
            let pairs = self.cx.scratch(x.dtype(), shape.iter().product())?;
            let p = p.inverse(true);
            gpu.fft(&p, 2, turned.shaped(&shape)?, pairs.alias_mut().reshape(&shape)?.into())?;
            let real = pairs.shaped(&shape)?.map("real", |l| l.select(3, 0))?;
            gpu.strided_copy(real, frames.alias_mut().reshape(&all)?.into())?;
        }
        self.overlap(frames.shaped(&all)?)
    }

    /// Sums of the squares of the windows of `count` frames, [1, len].
    fn squares(&self, count: usize) -> R<(Buffer, [usize; 2])> {
        let w = self.window.shaped(&[1, 1, self.n])?;
        self.overlap(w.broadcast_to(&[1, count, self.n])?)
    }

    /// First element of a signal among those that `covered` frames' elements hold, and how many it has there.
    fn kept(&self, covered: usize) -> R<[usize; 2]> {
        let start = if self.center { self.n / 2 } else { 0 };
        let most = covered.saturating_sub(start);
        Ok([start, self.cx.opt_n("length")?.unwrap_or(most.saturating_sub(start)).min(most)])
    }
}

fn stft(cx: &Cx<'_>) -> R {
    let (p, x) = (Plan::new(cx)?, cx.x("x")?);
    let &[b, t] = x.shape() else { return Err(Fail::Case("signals are [B, T]".into())) };
    let padded = t + 2 * p.pads()[1].0 as usize;
    let signal = cx.scratch(x.dtype(), b * padded)?;
    cx.gpu.pad(PadMode::Reflect, &p.pads(), x, signal.alias_mut().reshape(&[b, padded])?)?;
    p.spectrum(signal.shaped(&[b, padded])?, Fft::new().scale(p.scale), "y")
}

fn stft_backward(cx: &Cx<'_>) -> R {
    let (p, shape) = (Plan::new(cx)?, cx.dims("input_size")?);
    let dy = cx.x("dy")?;
    let (sum, [b, covered]) = p.signal(dy, Fft::new().scale(p.scale).inner(0.5))?;
    // Elements after the last frame are in none.
    let padded = shape[1] + 2 * p.pads()[1].0 as usize;
    let whole = cx.scratch(dy.dtype(), b * padded)?;
    let after = padded as isize - covered as isize;
    let to = whole.alias_mut().reshape(&[b, padded])?;
    cx.gpu.pad(PadMode::Constant(0.0), &[(0, 0), (0, after)], sum.shaped(&[b, covered])?, to)?;
    let dx = cx.out("dx", dy.dtype(), &shape)?;
    Ok(cx.gpu.pad_bwd(PadMode::Reflect, &p.pads(), whole.shaped(&[b, padded])?, dx.g())?)
}

fn istft(cx: &Cx<'_>) -> R {
    let (p, x) = (Plan::new(cx)?, cx.x("x")?);
    let (sum, [b, covered]) = p.signal(x, Fft::new().scale(1.0 / (p.n as f64 * p.scale)))?;
    let (squares, _) = p.squares(x.shape()[2])?;
    let [start, len] = p.kept(covered)?;
    let y = cx.out("y", x.dtype(), &[b, len])?;
    let sum = sum.shaped(&[b, covered])?.map("kept", |l| l.narrow(1, start, len))?;
    let squares = squares.shaped(&[1, covered])?.map("kept", |l| l.narrow(1, start, len))?;
    Ok(cx.gpu.binary(Binary::Div, sum, squares, y.m())?)
}

fn istft_backward(cx: &Cx<'_>) -> R {
    let (p, dy) = (Plan::new(cx)?, cx.x("dy")?);
    let (squares, [_, covered]) = p.squares(cx.n("frames")?)?;
    let ([start, len], b) = (p.kept(covered)?, dy.shape()[0]);
    let whole = cx.scratch(dy.dtype(), b * covered)?;
    cx.gpu.fill(0.0, whole.alias_mut())?;
    let squares = squares.shaped(&[1, covered])?.map("kept", |l| l.narrow(1, start, len))?;
    let to = whole.alias_mut().reshape(&[b, covered])?.map("kept", |l| l.narrow(1, start, len))?;
    cx.gpu.binary(Binary::Div, dy, squares, to)?;
    let p_fft = Fft::new().scale(1.0 / (p.n as f64 * p.scale)).inner(2.0);
    p.spectrum(whole.shaped(&[b, covered])?, p_fft, "dx")
}

/// Frames, hop and window of a case; elements of a frame, and whether bins are those of real signals.
fn draw(s: &mut Sample) -> (usize, bool) {
    let n = [4, 9, 16][s.below(3)];
    let hop = 1 + s.below(n / 2);
    let window = n - s.below(2);
    s.typed("window", s.dtype, &[window], Range(0.5, 1.0));
    s.arg("n_fft", n);
    s.arg("hop", hop);
    let [center, normalized, onesided] = [s.coin(), s.coin(), s.coin()];
    s.arg("center", center);
    s.arg("normalized", normalized);
    s.arg("onesided", onesided);
    (n, onesided)
}

fn draw_signal(s: &mut Sample) {
    let (n, _) = draw(s);
    let shape = [1 + s.below(2), n + s.below(30)];
    s.put("x", &shape, Any);
}

fn draw_spectrum(s: &mut Sample) {
    let (n, onesided) = draw(s);
    let bins = if onesided { n / 2 + 1 } else { n };
    let frames = 3 + s.below(4);
    let outer = 1 + s.below(2);
    s.put("x", &[outer, bins, frames, 2], Any);
    // Without one the ends of the signal, where windows may be small, are left out.
    s.arg("center", true);
}

const STFT: &str = "n_fft, hop, center=true, normalized=false, onesided=true";

pub(super) const ROWS: &[Kernel] = &[
    k(
        "stft",
        "B10.2",
        "x, window",
        STFT,
        "y",
        &["pad", "binary", "rfft", "fft", "fill", "strided_copy"],
        stft,
    )
    .dtypes(F32)
    .bound(Derived)
    .composite()
    .sample(draw_signal),
    k(
        "stft_backward",
        "B10.2",
        "dy, window",
        "input_size, n_fft, hop, center=true, normalized=false, onesided=true",
        "dx",
        &["irfft", "fft", "strided_copy", "binary", "col2im", "pad", "pad_bwd"],
        stft_backward,
    )
    .dtypes(F32)
    .bound(Derived)
    .composite()
    .grad_of("stft"),
    k(
        "istft",
        "B10.2",
        "x, window",
        "n_fft, hop, center=true, normalized=false, onesided=true, length=null",
        "y",
        &["irfft", "fft", "strided_copy", "binary", "col2im", "pad"],
        istft,
    )
    .dtypes(F32)
    .bound(Derived)
    .composite()
    .sample(draw_spectrum),
    k(
        "istft_backward",
        "B10.2",
        "dy, window",
        "frames, n_fft, hop, center=true, normalized=false, onesided=true, length=null",
        "dx",
        &["rfft", "fft", "fill", "strided_copy", "binary", "col2im", "pad"],
        istft_backward,
    )
    .dtypes(F32)
    .bound(Derived)
    .composite()
    .grad_of("istft"),
];
