//! Losses of sequences without alignment, and between spectrograms.

use trefoil::ops::loss::{Reduction, SeqLoss, StftResolution};

use super::kernel::{Kernel, run};
use super::losses;
use crate::core::error::Result;
use crate::core::tensor::Tensor;

losses! {
    /// Connectionist temporal classification (Graves et al., 2006), `torch.nn.CTCLoss`. `Mean` divides each loss by its number of labels first.
    CtcLoss {
        /// Class of the blank.
        blank: usize = 0,
        /// How samples are combined.
        reduction: Reduction = Reduction::Mean,
        /// An impossible alignment counts 0 instead of infinity.
        zero_infinity: bool = false,
        /// Log-probabilities are `[B, T, C]`.
        batch_first: bool = false,
    }
    /// Loss of log-probabilities `x*` `[T, B, C]` (see [`Tensor::log_softmax`]) against labels `[B, S]`, or all labels one after the other;
    /// lengths are `[B]`. Labels and lengths are i32 or i64. Labels or lengths out of range are reported by the device as `IndexOutOfRange`.
    (log_probs: &Tensor, targets: &Tensor, input_lengths: &Tensor, target_lengths: &Tensor) |s| {
        let kind = SeqLoss::Ctc { blank: s.blank, zero_infinity: s.zero_infinity, batch_first: s.batch_first };
        let with = [Some(targets), Some(input_lengths), Some(target_lengths)];
        run("ctc_loss", Kernel::Sequence(kind, s.reduction), [Some(log_probs), None, None, None], with)
    };

    /// Transducer loss (Graves, 2012), `torchaudio.transforms.RNNTLoss`.
    RnntLoss {
        /// Class of the blank.
        blank: usize = 0,
        /// How samples are combined.
        reduction: Reduction = Reduction::Mean,
    }
    /// Loss of logits `x*` `[B, T, U+1, C]` against labels `[B, U]`; lengths are `[B]`. Labels and lengths are i32 or i64.
    (logits: &Tensor, targets: &Tensor, input_lengths: &Tensor, target_lengths: &Tensor) |s| {
        let with = [Some(targets), Some(input_lengths), Some(target_lengths)];
        let kernel = Kernel::Sequence(SeqLoss::Rnnt { blank: s.blank }, s.reduction);
        run("rnnt_loss", kernel, [Some(logits), None, None, None], with)
    };

    /// Multi-resolution spectral loss (Yamamoto et al., 2020): convergence and log-magnitude distance of spectrograms.
    StftLoss {
        /// The resolutions that are averaged.
        resolutions: Vec<StftResolution> = StftResolution::PARALLEL_WAVEGAN.to_vec(),
    }
    /// Loss of predicted signals `p*` `[.., T]` against signals of their shape.
    (prediction: &Tensor, target: &Tensor) |s| {
        let kernel = Kernel::Stft(s.resolutions.clone());
        run("stft_loss", kernel, [Some(prediction), Some(&target.detach()), None, None], [None; 3])
    };
}

impl super::Criterion for StftLoss {
    fn loss(&self, output: &Tensor, target: &Tensor) -> Result<Tensor> {
        self.forward(output, target)
    }
    fn reduction(&self) -> Reduction {
        Reduction::Mean
    }
}
