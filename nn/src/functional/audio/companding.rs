//! Mu-law companding of samples.

use trefoil::DType;

use crate::core::error::{Result, invalid};
use crate::core::tensor::Tensor;

/// The largest code.
fn largest(op: &'static str, channels: usize) -> Result<f64> {
    match channels {
        2..=0x0100_0000 => Ok((channels - 1) as f64),
        n => Err(invalid(op, "channels", "2 to 2^24", format!("{n}"))),
    }
}

impl Tensor {
    /// Codes (i64) from 0 to `channels - 1` of samples between -1 and 1, finer for quiet ones. Source `torchaudio.functional.mu_law_encoding`.
    /// Errors: `Invalid` for integers, fewer than 2 channels.
    pub fn mu_law_encode(&self, channels: usize) -> Result<Tensor> {
        let mu = largest("mu_law_encode", channels)?;
        let x = self.detach();
        let compressed = x.abs()?.mul_scalar(mu)?.log1p()?.mul_scalar(1.0 / mu.ln_1p())?.mul(&x.sign()?)?;
        compressed.add_scalar(1.0)?.mul_scalar(0.5 * mu)?.add_scalar(0.5)?.to_dtype(DType::I64)
    }

    /// The samples (floats of this dtype) of codes. Source `torchaudio.functional.mu_law_decoding`. Errors: `Invalid` for fewer than 2 channels,
    /// a dtype that is no float.
    pub fn mu_law_decode(&self, channels: usize, dtype: DType) -> Result<Tensor> {
        const OP: &str = "mu_law_decode";
        let mu = largest(OP, channels)?;
        if !dtype.is_float() {
            return Err(invalid(OP, "dtype", "a floating-point type", format!("{dtype}")));
        }
        let x = self.to_dtype(dtype)?.mul_scalar(2.0 / mu)?.add_scalar(-1.0)?;
        x.abs()?.mul_scalar(mu.ln_1p())?.expm1()?.mul_scalar(1.0 / mu)?.mul(&x.sign()?)
    }
}
