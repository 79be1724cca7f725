//! Prediction of rotations, a self-supervised task.

use trefoil::DType;
use trefoil::ops::loss::{CrossEntropy, Reduction};

use super::{CrossEntropyLoss, losses};
use crate::core::error::{Result, invalid};
use crate::core::tensor::Tensor;

losses! {
    /// Prediction of rotations (Gidaris et al., 2018): cross entropy of the logits of images rotated by 0, 90, 180 and 270 degrees, made by
    /// [`rotations`](RotationPredictionLoss::rotations). Gradient: logits.
    RotationPredictionLoss {
        /// How items are combined.
        reduction: Reduction = Reduction::Mean,
    }
    /// Loss of logits `[N, 4, 4]` or `[4 N, 4]`: the four rotations of an image one after the other, each with the scores of the four angles.
    (logits: &Tensor) |s| {
        let rows = match *logits.shape() {
            [n, 4, 4] => n,
            [rows, 4] if rows.is_multiple_of(4) => rows / 4,
            _ => {
                let got = format!("shape {:?}", logits.shape());
                return Err(invalid("rotation_prediction_loss", "logits", "shape [N, 4, 4] or [4 N, 4]", got));
            }
        };
        let angles = Tensor::arange(logits.device(), DType::I64, 0.0, 1.0, 4)?.repeat(&[rows])?;
        let loss = CrossEntropyLoss { options: CrossEntropy::new().reduction(s.reduction), weight: None };
        loss.forward(&logits.reshape(&[4 * rows, 4])?, &angles)
    };
}

impl RotationPredictionLoss {
    /// Images rotated by 0, 90, 180 and 270 degrees counterclockwise, `[N, C, S, S] -> [N, 4, C, S, S]`; `torch.rot90` over the last axes.
    /// Errors: images that are not square.
    pub fn rotations(images: &Tensor) -> Result<Tensor> {
        match *images.shape() {
            [_, _, h, w] if h == w => {}
            _ => {
                let got = format!("shape {:?}", images.shape());
                return Err(invalid("rotations", "images", "square images [N, C, S, S]", got));
            }
        }
        let turned = images.transpose(2, 3)?;
        Tensor::stack(1, &[images, &turned.flip(&[2])?, &images.flip(&[2, 3])?, &turned.flip(&[3])?])
    }
}
