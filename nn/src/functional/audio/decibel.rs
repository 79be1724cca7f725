//! Decibels.

use crate::core::error::{Result, invalid};
use crate::core::tensor::Tensor;

impl Tensor {
    /// `factor` log10(x / reference), x not below `amin`.
    fn decibels(
        &self,
        op: &'static str,
        factor: f64,
        reference: f64,
        amin: f64,
        top_db: Option<f64>,
    ) -> Result<Tensor> {
        if amin.is_nan() || amin <= 0.0 || reference.is_nan() {
            return Err(invalid(op, "amin", "amin above 0", format!("amin {amin}, reference {reference}")));
        }
        let db = self.clamp(Some(amin), None)?.log10()?.mul_scalar(factor)?;
        let db = db.add_scalar(-factor * reference.max(amin).log10())?;
        let Some(top_db) = top_db else { return Ok(db) };
        let over: Vec<isize> = (1..=db.rank().min(3) as isize).map(|i| -i).collect();
        db.maximum(&db.amax(&over, true)?.add_scalar(-top_db)?)
    }

    /// 10 log10(x / reference) of powers, which count as at least `amin`; with `top_db`, no element is further below the largest of its item, which
    /// is the last three axes (channels, frequencies, times). Source `torchaudio.functional.amplitude_to_DB(multiplier=10)`, where `reference` is 1
    /// and `amin` 1e-10. Errors: `Invalid` for integers, an `amin` that is not above 0.
    pub fn power_to_db(&self, reference: f64, amin: f64, top_db: Option<f64>) -> Result<Tensor> {
        self.decibels("power_to_db", 10.0, reference, amin, top_db)
    }

    /// 20 log10(x / reference) of amplitudes; otherwise as [`power_to_db`](Tensor::power_to_db). Source
    /// `torchaudio.functional.amplitude_to_DB(multiplier=20)`.
    pub fn amplitude_to_db(&self, reference: f64, amin: f64, top_db: Option<f64>) -> Result<Tensor> {
        self.decibels("amplitude_to_db", 20.0, reference, amin, top_db)
    }

    /// reference 10^(x / 10): powers of decibels. Source `torchaudio.functional.DB_to_amplitude(power=1)`.
    pub fn db_to_power(&self, reference: f64) -> Result<Tensor> {
        self.mul_scalar(0.1 * std::f64::consts::LN_10)?.exp()?.mul_scalar(reference)
    }

    /// reference 10^(x / 20): amplitudes of decibels. Source `torchaudio.functional.DB_to_amplitude(power=0.5)`.
    pub fn db_to_amplitude(&self, reference: f64) -> Result<Tensor> {
        self.mul_scalar(0.05 * std::f64::consts::LN_10)?.exp()?.mul_scalar(reference)
    }
}
