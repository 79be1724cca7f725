//! Dropout of whole feature maps, and dropout that keeps mean and variance.

use trefoil::ops::random::Rng;

use crate::core::error::{Result, invalid};
use crate::core::tensor::Tensor;

/// The negative limit of SELU, -scale * alpha (Klambauer et al., 2017).
const SATURATION: f64 = -1.758_099_340_847_376_6;

/// Error for what is no probability.
fn probability(op: &'static str, p: f64) -> Result<()> {
    match (0.0..=1.0).contains(&p) {
        true => Ok(()),
        false => Err(invalid(op, "p", "a probability in [0, 1]", format!("{p}"))),
    }
}

impl Tensor {
    /// The shape of one number for each feature map of `[N, C, ..]`.
    fn per_map(&self, op: &'static str) -> Result<Vec<usize>> {
        match self.shape() {
            [n, c, rest @ ..] => Ok([&[*n, *c][..], &vec![1; rest.len()]].concat()),
            other => Err(invalid(op, "self", "shape [N, C, ..]", format!("{other:?}"))),
        }
    }

    /// Each feature map of `[N, C, ..]` kept with probability 1 - p and divided by it, 0 otherwise. An item without a batch needs
    /// [`unsqueeze`](Tensor::unsqueeze) before. Source `torch.nn.functional.dropout1d`, `dropout2d`, `dropout3d` (Tompson et al., 2015). Errors:
    /// p outside of [0, 1], fewer than two axes.
    #[doc(alias = "dropout1d")]
    #[doc(alias = "dropout2d")]
    #[doc(alias = "dropout3d")]
    pub fn feature_dropout(&self, p: f64, rng: Rng<'static>) -> Result<Tensor> {
        const OP: &str = "feature_dropout";
        probability(OP, p)?;
        let shape = self.per_map(OP)?;
        if p == 0.0 {
            return Ok(self.clone());
        }
        self.mul(&Tensor::ones(self.device(), self.dtype(), &shape)?.dropout(p, rng)?)
    }

    /// Each element kept with probability 1 - p and set to the negative limit of SELU otherwise, then scaled and shifted so that mean 0 and
    /// variance 1 stay as they are. Source `torch.nn.functional.alpha_dropout` (Klambauer et al., 2017). Errors: p outside of [0, 1].
    pub fn alpha_dropout(&self, p: f64, rng: Rng<'_>) -> Result<Tensor> {
        self.saturated("alpha_dropout", p, self.shape(), rng)
    }

    /// [`alpha_dropout`](Tensor::alpha_dropout) of whole feature maps of `[N, C, ..]`. Source
    /// `torch.nn.functional.feature_alpha_dropout`. Errors: p outside of [0, 1], fewer than two axes.
    pub fn feature_alpha_dropout(&self, p: f64, rng: Rng<'_>) -> Result<Tensor> {
        const OP: &str = "feature_alpha_dropout";
        self.saturated(OP, p, &self.per_map(OP)?, rng)
    }

    fn saturated(&self, op: &'static str, p: f64, shape: &[usize], rng: Rng<'_>) -> Result<Tensor> {
        probability(op, p)?;
        if p == 0.0 {
            return Ok(self.clone());
        }
        if p == 1.0 {
            return self.mul_scalar(0.0);
        }
        let keep = Tensor::full(self.device(), self.dtype(), shape, 1.0 - p)?.bernoulli(rng)?;
        let keep = keep.to_dtype(self.dtype())?;
        let scale = ((SATURATION * SATURATION * p + 1.0) * (1.0 - p)).sqrt().recip();
        // Dropped: scale * (limit - limit * p); kept: scale * (x - limit * p).
        let shift = keep.rsub_scalar(1.0)?.sub_scalar(p)?.mul_scalar(scale * SATURATION)?;
        self.mul(&keep.mul_scalar(scale)?)?.add(&shift)
    }
}
