//! Complex numbers as pairs (real, imaginary) along a last axis of 2, as `torch.view_as_real` gives them. Gradients are those of the pairs, which
//! is PyTorch's convention.

use crate::core::error::{Result, invalid};
use crate::core::tensor::{Tensor, same_device};

/// Rank without the pairs' axis.
pub(super) fn complex_rank(op: &'static str, x: &Tensor) -> Result<usize> {
    match x.shape() {
        [rest @ .., 2] if !rest.is_empty() => Ok(rest.len()),
        s => Err(invalid(
            op,
            "x",
            "pairs (real, imaginary) along the last of two or more axes",
            format!("{s:?}"),
        )),
    }
}

/// Real and imaginary parts of pairs.
fn parts(op: &'static str, x: &Tensor) -> Result<[Tensor; 2]> {
    complex_rank(op, x)?;
    Ok([x.select(-1, 0)?, x.select(-1, 1)?])
}

impl Tensor {
    /// Products of complex numbers `[.., 2]`, broadcast. Source `torch.mul` of complex tensors. Errors: `Invalid` without pairs, for shapes that do
    /// not broadcast.
    pub fn complex_mul(&self, other: &Tensor) -> Result<Tensor> {
        const OP: &str = "complex_mul";
        same_device(OP, self, other)?;
        let ([a, b], [c, d]) = (parts(OP, self)?, parts(OP, other)?);
        let (re, im) = (a.mul(&c)?.sub(&b.mul(&d)?)?, a.mul(&d)?.add(&b.mul(&c)?)?);
        Tensor::stack(-1, &[&re, &im])
    }

    /// Conjugates of complex numbers `[.., 2]`. Source `torch.conj`. Errors: `Invalid` without pairs.
    pub fn complex_conj(&self) -> Result<Tensor> {
        let [re, im] = parts("complex_conj", self)?;
        Tensor::stack(-1, &[&re, &im.neg()?])
    }

    /// Magnitudes `[..]` of complex numbers `[.., 2]`; their gradient at 0 is 0. Source `torch.abs` of complex tensors. Errors: `Invalid` without
    /// pairs.
    pub fn complex_abs(&self) -> Result<Tensor> {
        complex_rank("complex_abs", self)?;
        self.norm_axes(2.0, &[-1], false)
    }

    /// Angles `[..]` of complex numbers `[.., 2]`, from -pi to pi; 0 and its gradient for 0. Source `torch.angle` of complex tensors. Errors:
    /// `Invalid` without pairs.
    pub fn complex_angle(&self) -> Result<Tensor> {
        let [re, im] = parts("complex_angle", self)?;
        im.atan2(&re)
    }

    /// Complex numbers `[.., 2]` of these magnitudes at angles, which broadcast. Source `torch.polar`. Errors: shapes that do not broadcast,
    /// integers.
    pub fn polar(&self, angle: &Tensor) -> Result<Tensor> {
        same_device("polar", self, angle)?;
        Tensor::stack(-1, &[&self.mul(&angle.cos()?)?, &self.mul(&angle.sin()?)?])
    }

    /// x conj(y) of complex numbers `[.., 2]`, broadcast: of the spectra of two signals, what they share at each frequency. Errors: those of
    /// [`complex_mul`](Tensor::complex_mul).
    pub fn cross_spectrum(&self, other: &Tensor) -> Result<Tensor> {
        self.complex_mul(&other.complex_conj()?)
    }
}
