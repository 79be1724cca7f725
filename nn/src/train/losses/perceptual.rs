//! Losses that see outputs through other networks.

use std::sync::Arc;

use trefoil::ops::loss::{Loss, Reduction};

use super::{AdversarialLoss, Criterion, L1Loss, LossList, Term};
use crate::core::autograd::no_grad;
use crate::core::error::{Result, invalid};
use crate::core::tensor::Tensor;
use crate::module::{Layer, LayerExt};

/// Error unless all weights are finite numbers of at least 0.
fn check_weights(op: &'static str, weights: &[f64]) -> Result<()> {
    match weights.iter().find(|w| !(w.is_finite() && **w >= 0.0)) {
        Some(w) => Err(invalid(op, "weights", "finite numbers of at least 0", format!("{w}"))),
        None => Ok(()),
    }
}

/// Perceptual loss (Johnson et al., 2016): the sum over the outputs of a feature network of weight * mean (f(p) - f(t))^2, for a network such
/// as VGG19 cut off behind its last feature map, with each map among its outputs. Gradient: prediction.
#[derive(Debug, Clone)]
pub struct PerceptualLoss {
    features: Arc<dyn Layer>,
    weights: Option<Vec<f64>>,
    kind: Loss,
}

impl PerceptualLoss {
    /// Of the features that a network of one input gives, each with weight 1. The network evaluates from now on, and its parameters are
    /// frozen.
    pub fn new(features: impl Layer + 'static) -> Self {
        features.eval();
        features.parameters().iter().for_each(|p| p.set_requires_grad(false));
        PerceptualLoss { features: Arc::new(features), weights: None, kind: Loss::Mse }
    }

    /// Sets the weight of each feature map, in the order of the network's outputs. Errors: negative or not finite.
    pub fn weights(mut self, weights: &[f64]) -> Result<Self> {
        check_weights("PerceptualLoss", weights)?;
        self.weights = Some(weights.to_vec());
        Ok(self)
    }

    /// Compares by |f(p) - f(t)|.
    pub fn l1(mut self) -> Self {
        self.kind = Loss::Mae;
        self
    }

    /// Loss of predictions against targets of one shape and dtype, a scalar. Errors: `Invalid` for operands that do not fit and for another
    /// number of weights than the network has outputs; those of the network.
    pub fn forward(&self, prediction: &Tensor, target: &Tensor) -> Result<Tensor> {
        const OP: &str = "perceptual_loss";
        if prediction.shape() != target.shape() {
            let expected = format!("shape {:?}", prediction.shape());
            return Err(invalid(OP, "target", expected, format!("shape {:?}", target.shape())));
        }
        let of = |x: &Tensor| self.features.forward_all(std::slice::from_ref(x));
        let (found, wanted) = (of(prediction)?, no_grad(|| of(&target.detach()))?);
        let ones = || vec![1.0; found.len()];
        let weights = self.weights.clone().unwrap_or_else(ones);
        if weights.len() != found.len() {
            let expected = format!("{}, one for each output of the feature network", found.len());
            return Err(invalid(OP, "weights", expected, format!("{}", weights.len())));
        }
        let term = |((prediction, target), weight)| Term { prediction, target: Some(target), weight };
        let terms: Vec<Term> = found.into_iter().zip(wanted).zip(weights).map(term).collect();
        LossList { kind: self.kind }.forward(&terms)
    }
}

/// The generator's loss of Real-ESRGAN (Wang et al., 2021): |p - t|, a [`PerceptualLoss`], and softplus(-d(p)) of a discriminator's logits, with
/// the weights 1, 1 and 0.1. The paper's perceptual loss compares VGG19's maps before their activations by [`l1`](PerceptualLoss::l1), weighted
/// by 0.1, 0.1, 1, 1, 1. Gradient: prediction, and the parameters of the discriminator unless they are frozen.
#[derive(Debug, Clone)]
pub struct RealEsrganLoss {
    perceptual: PerceptualLoss,
    discriminator: Arc<dyn Layer>,
    weights: [f64; 3],
}

impl RealEsrganLoss {
    /// With the discriminator of the images, of which its training may keep an `Arc`.
    pub fn new(perceptual: PerceptualLoss, discriminator: impl Layer + 'static) -> Self {
        RealEsrganLoss { perceptual, discriminator: Arc::new(discriminator), weights: [1.0, 1.0, 0.1] }
    }

    /// Sets the weights of pixels, features and discriminator. Errors: negative or not finite.
    pub fn weights(mut self, pixel: f64, perceptual: f64, adversarial: f64) -> Result<Self> {
        self.weights = [pixel, perceptual, adversarial];
        check_weights("RealEsrganLoss", &self.weights)?;
        Ok(self)
    }

    /// Loss of generated images against real ones of one shape and dtype, a scalar. Errors: those of the parts.
    pub fn forward(&self, prediction: &Tensor, target: &Tensor) -> Result<Tensor> {
        let [pixel, perceptual, adversarial] = self.weights;
        let features = self.perceptual.forward(prediction, target)?;
        let loss = L1Loss::default().forward(prediction, &target.detach())?.mul_scalar(pixel)?;
        let scores = self.discriminator.forward(prediction)?;
        let fooled = AdversarialLoss::default().forward(&scores, None)?;
        loss.add_scaled(&features, perceptual)?.add_scaled(&fooled, adversarial)
    }

    /// The discriminator's loss, mean softplus(-d(t)) + mean softplus(d(p)), a scalar. Gradient: the parameters of the discriminator. Errors:
    /// those of the discriminator.
    pub fn discriminator_loss(&self, prediction: &Tensor, target: &Tensor) -> Result<Tensor> {
        let fake = self.discriminator.forward(&prediction.detach())?;
        let real = self.discriminator.forward(&target.detach())?;
        AdversarialLoss::default().forward(&fake, Some(&real))
    }
}

macro_rules! scalars {
    ($($name:ident),*) => {$(
        impl Criterion for $name {
            fn loss(&self, output: &Tensor, target: &Tensor) -> Result<Tensor> {
                self.forward(output, target)
            }
            fn reduction(&self) -> Reduction {
                Reduction::Mean
            }
        }
    )*};
}
scalars!(PerceptualLoss, RealEsrganLoss);
