//! Losses: device values with gradients, under PyTorch's names.
//!
//! Every loss is a struct of its options with PyTorch's defaults and a `forward` over its tensors; the result is an f32 scalar on the device
//! (f64 for f64 data), or one value per item with [`Reduction::None`]. Gradients go to the tensors that the documentation marks with `*`.
//!
//! | Kind | Losses |
//! |---|---|
//! | one item per element | [`MseLoss`], [`L1Loss`], [`SmoothL1Loss`], [`HuberLoss`], [`BceLoss`], [`BceWithLogitsLoss`], [`PoissonNllLoss`], ... |
//! | one item per row | [`NllLoss`], [`KlDivLoss`], [`TripletMarginLoss`], [`CosineEmbeddingLoss`], [`DiceLoss`], [`DpoLoss`], ... |
//! | a whole batch | [`NtXentLoss`], [`InfoNceLoss`], [`SupConLoss`], [`BarlowTwinsLoss`], [`LovaszLoss`], ... |
//! | sets | [`DetrLoss`] |
//! | through other networks | [`PerceptualLoss`], [`RealEsrganLoss`] |
//! | sequences and signals | [`CtcLoss`], [`RnntLoss`], [`StftLoss`] |
//!
//! ```
//! use trefoil_nn::losses::{Reduction, SmoothL1Loss};
//! use trefoil_nn::Tensor;
//! # let device = trefoil::Registry::default().open(&"cpu".parse::<trefoil::Selector>()?)?;
//! let p = Tensor::from_slice(&device, &[0f32, 3.0], &[2])?.with_grad();
//! let t = Tensor::zeros(&device, trefoil::DType::F32, &[2])?;
//! let loss = SmoothL1Loss { beta: 2.0, reduction: Reduction::Sum, ..Default::default() }.forward(&p, &t)?;
//! assert_eq!(loss.item::<f32>()?, 2.0);
//! # Ok::<(), trefoil_nn::NnError>(())
//! ```

mod adversarial;
mod batch;
mod classes;
mod cross_entropy;
mod distributions;
mod element;
mod embeddings;
mod kernel;
mod language;
mod list;
mod perceptual;
mod regions;
mod regression;
mod rotation;
mod second;
mod sequence;
mod set;

use std::fmt;

pub use trefoil::ops::loss::{Adversary, BoxOverlap, CrossEntropy, Loss, Reduction, StftResolution};

pub use self::adversarial::*;
pub use self::batch::*;
pub use self::classes::*;
pub use self::cross_entropy::CrossEntropyLoss;
pub use self::distributions::*;
pub use self::element::*;
pub use self::embeddings::*;
pub use self::language::*;
pub use self::list::{LossList, Term};
pub use self::perceptual::{PerceptualLoss, RealEsrganLoss};
pub use self::regions::*;
pub use self::regression::*;
pub use self::rotation::RotationPredictionLoss;
pub use self::sequence::*;
pub use self::set::{DetrLoss, DetrTargets, DetrTerms, ImageTargets};
use crate::core::error::Result;
use crate::core::tensor::Tensor;

/// A loss of a model's output and a target, as the trainer takes it.
pub trait Criterion: Send + Sync + fmt::Debug {
    /// The loss.
    fn loss(&self, output: &Tensor, target: &Tensor) -> Result<Tensor>;
    /// How items are combined.
    fn reduction(&self) -> Reduction;
    /// Residuals r with |r|^2 / 2 = the loss, for methods of least squares; none for other losses than sums of squares.
    fn residuals(&self, _output: &Tensor, _target: &Tensor) -> Option<Result<Tensor>> {
        None
    }
}

/// The value of a loss, and its gradient with respect to the output: a forward and a backward through the loss alone. Where the gradient of
/// a model is wanted, call `backward` on the loss instead; this one leaves the output's graph alone. Errors: those of the loss; a reduction
/// that leaves more than one value.
pub fn loss_and_grad(
    criterion: &dyn Criterion,
    output: &Tensor,
    target: &Tensor,
) -> Result<(Tensor, Tensor)> {
    let leaf = output.detach().with_grad();
    let loss = criterion.loss(&leaf, target)?;
    loss.backward()?;
    let grad = match leaf.grad() {
        Some(g) => g,
        None => Tensor::zeros(leaf.device(), leaf.dtype(), leaf.shape())?,
    };
    Ok((loss.detach(), grad))
}

impl Criterion for CrossEntropyLoss {
    fn loss(&self, output: &Tensor, target: &Tensor) -> Result<Tensor> {
        self.forward(output, target)
    }
    fn reduction(&self) -> Reduction {
        self.options.reduction
    }
}

/// Defines a loss: options with their defaults, and `forward` over tensors.
macro_rules! losses {
    ($(
        $(#[$doc:meta])*
        $name:ident { $($(#[$fdoc:meta])* $field:ident : $ty:ty = $default:expr,)* }
        $(#[$adoc:meta])*
        ($($arg:ident : $aty:ty),*) |$s:ident| $body:expr;
    )*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone)]
        pub struct $name { $($(#[$fdoc])* pub $field: $ty,)* }
        impl Default for $name {
            fn default() -> Self {
                $name { $($field: $default,)* }
            }
        }
        impl $name {
            $(#[$adoc])*
            #[doc = "\n\nErrors: `Invalid` for operands whose shapes or dtypes do not fit, options out of range; tensors of several devices."]
            pub fn forward(&self, $($arg: $aty),*) -> Result<Tensor> {
                let $s = self;
                $body
            }
        }
    )*};
}
use losses;

/// Makes losses of an output and a target usable by the trainer.
macro_rules! criteria {
    ($($name:ident),* $(,)?) => {$(
        impl $crate::train::losses::Criterion for $name {
            fn loss(&self, output: &Tensor, target: &Tensor) -> Result<Tensor> {
                self.forward(output, target)
            }
            fn reduction(&self) -> Reduction {
                self.reduction
            }
        }
    )*};
}
use criteria;

impl Criterion for MseLoss {
    fn loss(&self, output: &Tensor, target: &Tensor) -> Result<Tensor> {
        self.forward(output, target)
    }
    fn reduction(&self) -> Reduction {
        self.reduction
    }
    fn residuals(&self, output: &Tensor, target: &Tensor) -> Option<Result<Tensor>> {
        if self.weight.is_some() || self.mask.is_some() || self.reduction == Reduction::None {
            return None;
        }
        let items = if self.reduction == Reduction::Mean { output.numel().max(1) as f64 } else { 1.0 };
        Some(output.sub(&target.detach()).and_then(|d| d.mul_scalar((2.0 / items).sqrt())))
    }
}
