//! Convolution by its definition, in f64.

use super::cells;
use crate::cpu::scratch::*;
use crate::cpu::values::{Share, each_chunk};
use crate::error::Result;
use crate::ops::conv::ConvShape;

/// y = conv(x, w) by definition.
pub(super) fn forward64(s: &ConvShape, x: &[f64], w: &[f64]) -> Result<Vec<f64>> {
    let (plane, out, taps, cig) = (s.in_plane(), s.out_plane(), s.taps(), s.cig());
    let mut y = filled(s.n * s.co * out, 0.0)?;
    each_chunk(&mut y, out.max(1), Share::ANY, &|i, y| {
        let (n, o) = (i / s.co, i % s.co);
        for c in 0..cig {
            let x = &x[(n * s.ci + o / s.cog() * cig + c) * plane..][..plane];
            for (t, k) in cells(s.kernel).enumerate() {
                let w = w[(o * cig + c) * taps + t];
                for r in s.runs(k) {
                    let x = x[r.at..].iter().step_by(s.stride[2]);
                    y[r.out..r.out + r.len].iter_mut().zip(x).for_each(|(y, x)| *y += w * x);
                }
            }
        }
    });
    Ok(y)
}

/// dx of conv by definition: every product goes where its input came from.
pub(super) fn input_grad64(s: &ConvShape, dy: &[f64], w: &[f64]) -> Result<Vec<f64>> {
    let (plane, out, taps, cig, cog) = (s.in_plane(), s.out_plane(), s.taps(), s.cig(), s.cog());
    let mut dx = filled(s.n * s.ci * plane, 0.0)?;
    each_chunk(&mut dx, plane.max(1), Share::ANY, &|i, dx| {
        let (n, c) = (i / s.ci, i % s.ci);
        for o in c / cig * cog..(c / cig + 1) * cog {
            let dy = &dy[(n * s.co + o) * out..][..out];
            for (t, k) in cells(s.kernel).enumerate() {
                let w = w[(o * cig + c % cig) * taps + t];
                for r in s.runs(k) {
                    let dx = dx[r.at..].iter_mut().step_by(s.stride[2]);
                    dx.zip(&dy[r.out..r.out + r.len]).for_each(|(dx, dy)| *dx += w * dy);
                }
            }
        }
    });
    Ok(dx)
}

/// dw of conv by definition.
pub(super) fn weight_grad64(s: &ConvShape, x: &[f64], dy: &[f64]) -> Result<Vec<f64>> {
    let (plane, out, taps, cig) = (s.in_plane(), s.out_plane(), s.taps(), s.cig());
    let mut dw = filled(s.co * cig * taps, 0.0)?;
    each_chunk(&mut dw, taps.max(1), Share::ANY, &|i, dw| {
        let (o, c) = (i / cig, i % cig);
        for n in 0..s.n {
            let x = &x[(n * s.ci + o / s.cog() * cig + c) * plane..][..plane];
            let dy = &dy[(n * s.co + o) * out..][..out];
            for (dw, k) in dw.iter_mut().zip(cells(s.kernel)) {
                for r in s.runs(k) {
                    let x = x[r.at..].iter().step_by(s.stride[2]);
                    *dw += dy[r.out..r.out + r.len].iter().zip(x).map(|(dy, x)| dy * x).sum::<f64>();
                }
            }
        }
    });
    Ok(dw)
}
