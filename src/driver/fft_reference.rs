//! Fourier transforms by their definition, with what cuFFT does beside: the input of transforms to real numbers is overwritten, and imaginary parts of
//! bins that have none come out in the results.

use std::f64::consts::PI;

use super::{FftKind, VendorFftProblem};

/// Transforms the reals of x to those of y. What lies between sequences stays.
pub(crate) fn transform(p: &VendorFftProblem, x: &mut [f64], y: &mut [f64]) {
    let ([from, to], [read, written]) = (p.kind.lengths(p.n), p.kind.widths());
    for b in 0..p.batch {
        let at = |side: usize, k: usize, width: usize| (b * p.distance[side] + k * p.stride) * width;
        let sequence: Vec<[f64; 2]> = (0..from)
            .map(|k| at(0, k, read))
            .map(|i| [x[i], if read == 2 { x[i + 1] } else { 0.0 }])
            .collect();
        for k in 0..to {
            let value = one(p, &sequence, k);
            y[at(1, k, written)..][..written].copy_from_slice(&value[..written]);
        }
        if p.kind == FftKind::BinsToReal {
            (0..from).for_each(|k| x[at(0, k, read)..][..read].fill(f64::NAN));
        }
    }
}

/// Number k of the result.
fn one(p: &VendorFftProblem, sequence: &[[f64; 2]], k: usize) -> [f64; 2] {
    let sign = if matches!(p.kind, FftKind::Inverse | FftKind::BinsToReal) { 1.0 } else { -1.0 };
    let mut sum = [0.0; 2];
    for (j, [re, im]) in sequence.iter().enumerate() {
        let (sin, cos) = (sign * 2.0 * PI * (j * k % p.n) as f64 / p.n as f64).sin_cos();
        let alone = j == 0 || 2 * j == p.n;
        if p.kind != FftKind::BinsToReal {
            sum[0] += re * cos - im * sin;
            sum[1] += re * sin + im * cos;
        } else if alone {
            // cuFFT 12 for 2^13 and 2^14: an imaginary part of 100 adds -100 and 100 in turn.
            sum[0] += re * cos + if k.is_multiple_of(2) { -im } else { *im };
        } else {
            sum[0] += 2.0 * (re * cos - im * sin);
        }
    }
    sum
}

/// Problems of all kinds: rows and columns, with and without large prime factors.
pub(crate) fn problems(dtype: crate::DType) -> Vec<VendorFftProblem> {
    use FftKind::{BinsToReal, Forward, Inverse, RealToBins};
    let lengths = [1, 2, 3, 8, 12, 17, 30, 64];
    let rows = lengths.iter().flat_map(|&n| {
        [Forward, Inverse, RealToBins, BinsToReal].map(|kind| VendorFftProblem::rows(kind, n, 3, dtype))
    });
    let columns = lengths
        .iter()
        .flat_map(|&n| [Forward, Inverse].map(|kind| VendorFftProblem::columns(kind, n, 5, dtype)));
    rows.chain(columns).collect()
}
