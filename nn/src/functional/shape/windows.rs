//! Windows of signals, and positions of triangles.

use std::f64::consts::TAU;

use trefoil::DType;

use crate::core::error::{Result, invalid};
use crate::core::tensor::{Device, Tensor};

/// Position i of n in a window, as 2 i / N - 1: N is n for a periodic window and n - 1 for a symmetric one. `None` for windows of at most one
/// element, which are ones.
fn from_the_middle(device: &Device, dtype: DType, n: usize, periodic: bool) -> Result<Option<Tensor>> {
    let period = if periodic { n } else { n.saturating_sub(1) };
    if n < 2 {
        return Ok(None);
    }
    Tensor::arange(device, dtype, -1.0, 2.0 / period as f64, n).map(Some)
}

/// Positions (i64 `[2, n]`) of a matrix, row by row, in the columns that `range` gives for a row.
fn positions(
    device: &Device,
    rows: usize,
    range: impl Fn(usize) -> std::ops::Range<usize>,
) -> Result<Tensor> {
    let all: Vec<[i64; 2]> = (0..rows).flat_map(|r| range(r).map(move |c| [r as i64, c as i64])).collect();
    let flat: Vec<i64> = (0..2).flat_map(|i| all.iter().map(move |p| p[i])).collect();
    Tensor::from_slice(device, &flat, &[2, all.len()])
}

impl Tensor {
    /// Sums of cosines, c0 + c1 cos(2 pi i / N) + c2 cos(4 pi i / N) ...
    fn cosine_window(device: &Device, dtype: DType, n: usize, periodic: bool, c: &[f64]) -> Result<Tensor> {
        let Some(x) = from_the_middle(device, dtype, n, periodic)? else {
            return Tensor::ones(device, dtype, &[n]);
        };
        let turn = x.add_scalar(1.0)?.mul_scalar(TAU / 2.0)?;
        let mut y = x.zeros_like()?;
        for (k, &c) in c.iter().enumerate() {
            y = y.add(&turn.mul_scalar(k as f64)?.cos()?.mul_scalar(c)?)?;
        }
        Ok(y)
    }

    /// A Hann window of `n` numbers, floats; `periodic` for spectra, otherwise symmetric. Source `torch.hann_window`.
    pub fn hann_window(device: &Device, dtype: DType, n: usize, periodic: bool) -> Result<Tensor> {
        Tensor::cosine_window(device, dtype, n, periodic, &[0.5, -0.5])
    }

    /// A Hamming window, alpha - beta cos(2 pi i / N). Source `torch.hamming_window` (0.54 and 0.46).
    pub fn hamming_window(
        device: &Device,
        dtype: DType,
        n: usize,
        periodic: bool,
        alpha: f64,
        beta: f64,
    ) -> Result<Tensor> {
        Tensor::cosine_window(device, dtype, n, periodic, &[alpha, -beta])
    }

    /// A Blackman window. Source `torch.blackman_window`.
    pub fn blackman_window(device: &Device, dtype: DType, n: usize, periodic: bool) -> Result<Tensor> {
        Tensor::cosine_window(device, dtype, n, periodic, &[0.42, -0.5, 0.08])
    }

    /// A Bartlett window, a triangle. Source `torch.bartlett_window`.
    pub fn bartlett_window(device: &Device, dtype: DType, n: usize, periodic: bool) -> Result<Tensor> {
        match from_the_middle(device, dtype, n, periodic)? {
            Some(x) => x.abs()?.rsub_scalar(1.0),
            None => Tensor::ones(device, dtype, &[n]),
        }
    }

    /// A Kaiser window, I0(beta sqrt(1 - x^2)) / I0(beta) of x from -1 to 1. Source `torch.kaiser_window` (beta 12).
    pub fn kaiser_window(
        device: &Device,
        dtype: DType,
        n: usize,
        periodic: bool,
        beta: f64,
    ) -> Result<Tensor> {
        let Some(x) = from_the_middle(device, dtype, n, periodic)? else {
            return Tensor::ones(device, dtype, &[n]);
        };
        let height = x.square()?.rsub_scalar(1.0)?.clamp(Some(0.0), None)?.sqrt()?.mul_scalar(beta)?;
        height.i0()?.div(&Tensor::full(device, dtype, &[], beta)?.i0()?)
    }

    /// Positions (i64 `[2, n]`: rows, columns) on and below diagonal `k` of a matrix. Source `torch.tril_indices`. Errors: more than 2^26
    /// elements.
    pub fn tril_indices(device: &Device, rows: usize, cols: usize, k: isize) -> Result<Tensor> {
        matrix("tril_indices", rows, cols)?;
        positions(device, rows, |r| 0..cols.min(column(r, k.saturating_add(1))))
    }

    /// Positions (i64 `[2, n]`: rows, columns) on and above diagonal `k` of a matrix. Source `torch.triu_indices`. Errors: more than 2^26
    /// elements.
    pub fn triu_indices(device: &Device, rows: usize, cols: usize, k: isize) -> Result<Tensor> {
        matrix("triu_indices", rows, cols)?;
        positions(device, rows, |r| cols.min(column(r, k))..cols)
    }
}

/// The column of a row on diagonal `k`, or 0 before the first.
fn column(row: usize, k: isize) -> usize {
    row.saturating_add_signed(k)
}

/// Error for a matrix whose positions the host should not list.
fn matrix(op: &'static str, rows: usize, cols: usize) -> Result<()> {
    match rows.checked_mul(cols).filter(|&n| n <= 1 << 26) {
        Some(_) => Ok(()),
        None => Err(invalid(op, "rows", "at most 2^26 elements", format!("{rows} rows of {cols}"))),
    }
}
