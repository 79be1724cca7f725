//! Fourier transforms.

use super::*;
use trefoil::ops::fourier::Fft;

pub(super) fn fourier(t: &mut Bed<'_>) {
    let (x, y, h) = (t.f32(24), t.f32(24), t.buf(DType::F16, 24));
    let (p, x342) = (Fft::new(), sh(&x, &[3, 4, 2]));
    t.refuse("fft along the axis of pairs", &[&y], |g| g.fft(&p, 2, x342, out(&y, &[3, 4, 2]).into()));
    t.refuse("fft of no pairs", &[&y], |g| g.fft(&p, 0, sh(&x, &[2, 12]), out(&y, &[2, 12]).into()));
    t.refuse("fft into another shape", &[&y], |g| g.fft(&p, 0, x342, out(&y, &[4, 3, 2]).into()));
    t.refuse("fft of f16", &[&h], |g| g.fft(&p, 0, sh(&h, &[12, 2]), out(&h, &[12, 2]).into()));
    t.refuse("fft over its input", &[&x], |g| g.fft(&p, 0, x342, out(&x, &[3, 4, 2]).into()));
    let part =
        |b, shape: &[usize]| out(b, &[24]).range(0, shape.iter().product()).and_then(|v| v.reshape(shape));
    let x34 = x.view().range(0, 12).and_then(|v| v.reshape(&[3, 4])).expect("a part");
    t.refuse("rfft to all bins", &[&y], |g| g.rfft(&p, x34, out(&y, &[3, 4, 2]).into()));
    t.refuse("rfft to bins without pairs", &[&y], |g| g.rfft(&p, x34, part(&y, &[3, 3])?.into()));
    t.refuse("irfft to more elements than bins give", &[&y], |g| g.irfft(&p, x342, out(&y, &[3, 8]).into()));
    t.refuse("irfft to no elements", &[&y], |g| g.irfft(&p, x342, part(&y, &[3, 0])?.into()));
}
