//! Losses between spectrograms: operands and checks.

use crate::ops::loss::one_element;
use crate::buffer::{GradMut, View, ViewMut};
use crate::error::{GpuError, Result};
use crate::ops::check;

/// One resolution of a spectrogram: transform length, step and window length in samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct StftResolution {
    /// Length of the transform, any number. Cheap where it has small prime factors; fastest for powers of two up to 2048.
    pub fft: usize,
    /// Samples from frame to frame.
    pub hop: usize,
    /// Length of the periodic Hann window, centred in the frame.
    pub window: usize,
}

impl StftResolution {
    /// The three resolutions of Yamamoto et al. (2020), for 24 kHz.
    pub const PARALLEL_WAVEGAN: [StftResolution; 3] = [
        StftResolution::new(1024, 120, 600),
        StftResolution::new(2048, 240, 1200),
        StftResolution::new(512, 50, 240),
    ];

    /// A transform of `fft` samples every `hop` samples under a window of `window` samples.
    pub const fn new(fft: usize, hop: usize, window: usize) -> Self {
        StftResolution { fft, hop, window }
    }

    /// Frames of a signal of `len` samples that is reflected by fft/2 at both ends; 0 where there is no step or no whole frame.
    pub const fn frames(&self, len: usize) -> usize {
        let padded = len.saturating_add(self.fft / 2 * 2);
        if self.hop == 0 || padded < self.fft {
            return 0;
        }
        (padded - self.fft) / self.hop + 1
    }

    /// Frequencies of a frame.
    pub const fn bins(&self) -> usize {
        self.fft / 2 + 1
    }
}

io_struct! {
    /// Operands of [`StftLossOps::stft_loss`].
    #[derive(Debug)]
    pub struct StftLossFwd<'a> {
        /// Predicted signals [.., T], contiguous.
        pub p: View<'a>,
        /// Target signals of p's shape and dtype.
        pub t: View<'a>,
        /// One element of the accumulator's dtype.
        pub loss: ViewMut<'a>,
    }
}

io_struct! {
    /// Operands of [`StftLossOps::stft_loss_bwd`].
    #[derive(Debug)]
    pub struct StftLossBwd<'a> {
        /// Upstream gradient, one element (f32 or p's dtype).
        pub gy: View<'a>,
        /// As in the forward.
        pub p: View<'a>,
        /// As in the forward.
        pub t: View<'a>,
        /// Gradient of the predicted signals.
        pub dp: GradMut<'a>,
    }
}

op_family! {
    /// Losses between spectrograms. f32, f16, bf16 and f64 data; transforms and sums in f32 (f64 for f64), in a fixed order.
    pub trait StftLossOps : Loss => STFT_LOSS_OPS {
        /// Mean over resolutions of |Mt - Mp|_F / |Mt|_F + mean |ln Mt - ln Mp|, M = sqrt(max(|X|^2, 1e-7)) of the short-time Fourier
        /// transform X (Yamamoto et al., 2020). Frames are centred: the signal is reflected by fft/2 at both ends; norm and mean run over all
        /// signals. Compare `torch.stft` with `center=True`. Nothing of the transform's size is stored.
        ///
        /// Errors: no resolution, a window longer than its frame, a step of 0, a signal not longer than fft/2, unequal shapes or dtypes.
        fn stft_loss(&self, resolutions: &[StftResolution], io: StftLossFwd<'_>) -> Result<()>;
        /// Gradient of [`StftLossOps::stft_loss`] with respect to `p`, from its operands alone; 0 where a magnitude is at its floor.
        fn stft_loss_bwd(&self, resolutions: &[StftResolution], io: StftLossBwd<'_>) -> Result<()>;
    }
}

/// Longest transform and most frames of a signal: what counts positions in a frame and frames of a signal is 32 bits wide.
const MAX_FFT: usize = 1 << 24;
const MAX_FRAMES: usize = 1 << 30;

/// Signals and samples per signal.
fn check_signals(
    op: &'static str,
    list: &[StftResolution],
    p: &View<'_>,
    t: &View<'_>,
) -> Result<[usize; 2]> {
    check::float(op, "p", p)?;
    check::contiguous(op, "p", p)?;
    check::dtype(op, "t", t, p.dtype())?;
    check::shape(op, "t", t, p.shape())?;
    check::contiguous(op, "t", t)?;
    let Some((&len, lead)) = p.shape().split_last() else {
        return Err(GpuError::invalid(op, "p", "at least one axis", "none"));
    };
    if list.is_empty() {
        return Err(GpuError::invalid(op, "resolutions", "at least one", "none"));
    }
    for r in list {
        let bad = |want: String| {
            Err(GpuError::invalid(op, "resolutions", want, format!("{:?}", (r.fft, r.hop, r.window))))
        };
        if r.fft == 0 || r.fft > MAX_FFT {
            return bad(format!("a transform of 1 to {MAX_FFT} samples"));
        }
        if r.hop == 0 {
            return bad("a step above 0".into());
        }
        if r.window == 0 || r.window > r.fft {
            return bad(format!("a window of 1 to {} samples", r.fft));
        }
        if r.fft / 2 >= len {
            return bad(format!("half a transform shorter than the signal of {len} samples"));
        }
        if r.frames(len) > MAX_FRAMES {
            return bad(format!("at most {MAX_FRAMES} frames per signal"));
        }
    }
    Ok([lead.iter().product(), len])
}

/// Checks of [`StftLossOps::stft_loss`].
pub(crate) fn check_stft_loss(list: &[StftResolution], io: &StftLossFwd<'_>) -> Result<[usize; 2]> {
    const OP: &str = "stft_loss";
    let size = check_signals(OP, list, &io.p, &io.t)?;
    one_element(OP, "loss", &io.loss.as_view(), &[io.p.dtype().accumulator()])?;
    check::separate_output(OP, "loss", &io.loss, &[("p", io.p), ("t", io.t)])?;
    Ok(size)
}

/// Checks of [`StftLossOps::stft_loss_bwd`].
pub(crate) fn check_stft_loss_bwd(list: &[StftResolution], io: &StftLossBwd<'_>) -> Result<[usize; 2]> {
    const OP: &str = "stft_loss_bwd";
    let size = check_signals(OP, list, &io.p, &io.t)?;
    one_element(OP, "gy", &io.gy, &[io.p.dtype().accumulator(), io.p.dtype()])?;
    let v = io.dp.out.as_view();
    check::dtype(OP, "dp", &v, io.p.dtype())?;
    check::shape(OP, "dp", &v, io.p.shape())?;
    check::contiguous(OP, "dp", &v)?;
    check::separate_output(OP, "dp", &io.dp.out, &[("gy", io.gy), ("p", io.p), ("t", io.t)])?;
    Ok(size)
}
