//! Losses of distributions, one item per row.

use trefoil::ops::loss::{Reduction, RowLoss};

use super::kernel::row;
use super::{criteria, losses};
use crate::core::error::Result;
use crate::core::tensor::Tensor;

losses! {
    /// Negative log likelihood of a Gaussian, `torch.nn.GaussianNLLLoss`; one item per element.
    GaussianNllLoss {
        /// How items are combined.
        reduction: Reduction = Reduction::Mean,
        /// With the constant.
        full: bool = false,
        /// Least variance.
        eps: f64 = 1e-6,
    }
    /// Loss of means `p*` against targets, with variances `var*`, all of one shape.
    (p: &Tensor, target: &Tensor, var: &Tensor) |s| {
        let kind = RowLoss::GaussianNll { full: s.full, eps: s.eps };
        row("gaussian_nll_loss", kind, s.reduction, [Some(p), Some(&target.detach()), Some(var)], None, None)
    };

    /// KL divergence of diagonal Gaussians from the standard one (Kingma and Welling, 2014).
    GaussianKlLoss {
        /// How rows are combined.
        reduction: Reduction = Reduction::Mean,
    }
    /// Loss of means `mu*` and logarithms of variances `log_var*` `[.., Z]`.
    (mu: &Tensor, log_var: &Tensor) |s|
        row("gaussian_kl_loss", RowLoss::GaussianKl, s.reduction, [Some(mu), Some(log_var)], None, None);

    /// 1 - fidelity of quantum states.
    QuantumFidelityLoss {
        /// How states are combined.
        reduction: Reduction = Reduction::Mean,
    }
    /// Loss of states `psi*` `[B, D, 2]` (real and imaginary parts) against states of their shape.
    (psi: &Tensor, phi: &Tensor) |s|
        row("quantum_loss", RowLoss::Quantum, s.reduction, [Some(psi), Some(&phi.detach())], None, None);

    /// Knowledge distillation (Hinton et al., 2015): alpha*CE(z, id) + (1-alpha)*T^2*KL of softened distributions.
    DistillationLoss {
        /// How rows are combined.
        reduction: Reduction = Reduction::Mean,
        /// T.
        temperature: f64 = 2.0,
        /// Share of the labels.
        alpha: f64 = 0.5,
    }
    /// Loss of the student's logits `z*` `[.., C]` against the teacher's; without class ids `[..]` only the second term, with weight 1.
    (student: &Tensor, teacher: &Tensor, target: Option<&Tensor>) |s| {
        let kind = RowLoss::Distillation { temperature: s.temperature, alpha: s.alpha };
        row("distillation_loss", kind, s.reduction, [Some(student), Some(&teacher.detach())], target, None)
    };

    /// Self-distillation without labels (Caron et al., 2021).
    DinoLoss {
        /// How rows are combined.
        reduction: Reduction = Reduction::Mean,
        /// Student's temperature.
        student_temp: f64 = 0.1,
        /// Teacher's temperature.
        teacher_temp: f64 = 0.04,
    }
    /// Loss of the student's outputs `z*` `[.., C]` against the teacher's with their running centre `[C]`.
    (student: &Tensor, teacher: &Tensor, center: &Tensor) |s| {
        let kind = RowLoss::Dino { student: s.student_temp, teacher: s.teacher_temp };
        let x = [Some(student), Some(&teacher.detach()), Some(&center.detach())];
        row("dino_loss", kind, s.reduction, x, None, None)
    };
}
criteria!(QuantumFidelityLoss);
