//! Convolutions for tests of a vendor's library, and what their results should be.

use super::{ConvPass, ConvTensor, VendorConvProblem};
use crate::dtype::DType;

/// Images, channels in and out, side, taps along a side; stride, padding, dilation, groups.
pub(crate) fn problem(sizes: [usize; 5], window: [usize; 4], dtype: DType) -> VendorConvProblem {
    convolution(2, sizes, window, dtype)
}

/// As [`problem`], of volumes where there are three axes.
pub(crate) fn convolution(
    axes: usize,
    [n, ci, co, side, taps]: [usize; 5],
    [stride, pad, dilation, groups]: [usize; 4],
    dtype: DType,
) -> VendorConvProblem {
    let out = (side + 2 * pad - dilation * (taps - 1) - 1) / stride + 1;
    let each = |v: usize, none: usize| [0, 1, 2].map(|a| if a < axes { v } else { none });
    let tensor = |n, c, side| {
        let [a, b, d] = each(side, 1);
        ConvTensor::packed([n, c, a, b, d])
    };
    VendorConvProblem {
        pass: ConvPass::Forward,
        axes,
        x: tensor(n, ci, side),
        w: tensor(co, ci / groups, taps),
        y: tensor(n, co, out),
        pad: each(pad, 0),
        pad_end: each(pad, 0),
        stride: each(stride, 1),
        dilation: each(dilation, 1),
        dtype,
        tf32: false,
        align: 16,
    }
}

/// The position of a packed tensor's element.
fn position(mut i: usize, extents: [usize; 5]) -> [usize; 5] {
    let mut at = [0; 5];
    for (to, n) in at.iter_mut().zip(extents).rev() {
        (*to, i) = (i % n, i / n);
    }
    at
}

/// The element of x that a tap at `k` of output channel and position `u` meets, if it lies within.
fn met(p: &VendorConvProblem, u: [usize; 5], k: [usize; 5]) -> Option<[usize; 5]> {
    let (co, cig) = (p.w.extents[0], p.w.extents[1]);
    let groups = p.x.extents[1] / cig;
    let mut at = [u[0], u[1] / (co / groups) * cig + k[1], 0, 0, 0];
    for a in 0..3 {
        let along = u[2 + a] * p.stride[a] + k[2 + a] * p.dilation[a];
        at[2 + a] = along.checked_sub(p.pad[a]).filter(|&r| r < p.x.extents[2 + a])?;
    }
    Some(at)
}

/// Each output by its definition, with the sum of magnitudes and the number of terms.
pub(crate) fn reference(p: &VendorConvProblem, [x, w, y]: [&[f64]; 3]) -> Vec<[f64; 3]> {
    let out = [&p.y, &p.x, &p.w][p.pass as usize];
    let mut all = vec![[0.0; 3]; size(out)];
    let at = |t: &ConvTensor, i: [usize; 5]| -> usize { (0..5).map(|a| i[a] * t.strides[a]).sum() };
    let taps = [1, p.w.extents[1], p.w.extents[2], p.w.extents[3], p.w.extents[4]];
    for u in (0..size(&p.y)).map(|i| position(i, p.y.extents)) {
        for tap in (0..taps.iter().product()).map(|j| position(j, taps)) {
            let Some(from) = met(p, u, tap) else { continue };
            let k = [u[1], tap[1], tap[2], tap[3], tap[4]];
            let (xi, wi, yi) = (at(&p.x, from), at(&p.w, k), at(&p.y, u));
            let (term, to) = match p.pass {
                ConvPass::Forward => (x[xi] * w[wi], yi),
                ConvPass::Input => (y[yi] * w[wi], xi),
                ConvPass::Weight => (y[yi] * x[xi], wi),
            };
            let [sum, magnitude, count] = &mut all[to];
            (*sum, *magnitude, *count) = (*sum + term, *magnitude + term.abs(), *count + 1.0);
        }
    }
    all
}

/// Elements of a tensor.
pub(crate) fn size(t: &ConvTensor) -> usize {
    t.extents.iter().product()
}
