//! Scans and segments.

use super::*;
use trefoil::ops::scan::{CumSum, SegmentReduce, SegmentReduceBwd};

pub(super) fn scan(t: &mut Bed<'_>) {
    let (x, y, h) = (t.f32(12), t.f32(12), t.buf(DType::F16, 12));
    let (i, l) = (t.buf(DType::I32, 12), t.buf(DType::I64, 12));
    let x34 = sh(&x, &[3, 4]);
    let p = CumSum::new();
    t.refuse("cumsum along axis 2 of rank 2", &[&y], |g| g.cumsum(p, 2, x34, out(&y, &[3, 4]).into()));
    t.refuse("cumsum into another shape", &[&y], |g| g.cumsum(p, 0, x34, out(&y, &[4, 3]).into()));
    t.refuse("cumsum of floats into f16", &[&h], |g| g.cumsum(p, 0, x34, out(&h, &[3, 4]).into()));
    t.refuse("cumsum of i64 into i32", &[&i], |g| g.cumsum(p, 0, l.view(), out(&i, &[12]).into()));
    t.refuse("cumsum of integers added to its output", &[&l], |g| {
        g.cumsum(p, 0, i.view(), out(&l, &[12]).accumulate())
    });
    t.refuse("cumsum of a strided view", &[&y], |g| {
        g.cumsum(p, 0, every_second(&x, 6), out(&y, &[12]).range(0, 6)?.into())
    });
    let w = t.f32(16);
    t.refuse("cumsum over part of its input", &[&w], |g| {
        g.cumsum(p, 0, w.view().range(0, 8)?, w.alias_mut().range(4, 8)?.into())
    });

    let offsets = t.ids(&[0, 1, 3]);
    let o = offsets.view();
    let y24 = |b| out(b, &[12]).range(0, 8).and_then(|v| v.reshape(&[2, 4]));
    t.refuse("segments into another number of rows", &[&y], |g| {
        g.segment_reduce(SegmentReduce::Sum, x34, o, out(&y, &[3, 4]))
    });
    t.refuse("segments of integers", &[&i], |g| {
        g.segment_reduce(SegmentReduce::Sum, sh(&i, &[3, 4]), o, out(&l, &[3, 4]))
    });
    t.refuse("float offsets", &[&y], |g| {
        g.segment_reduce(SegmentReduce::Sum, x34, x.view().range(0, 3)?, y24(&y)?)
    });
    t.refuse("no offset at all", &[&y], |g| {
        g.segment_reduce(
            SegmentReduce::Sum,
            x34,
            o.range(0, 0)?,
            out(&y, &[12]).range(0, 0)?.reshape(&[0, 4])?,
        )
    });
    t.refuse("a negative eps", &[&y], |g| {
        g.segment_reduce(SegmentReduce::Std { eps: -1.0 }, x34, o, y24(&y)?)
    });
    t.refuse("gradient of the maximum without its input", &[&x], |g| {
        let dy = y.view().range(0, 8)?.reshape(&[2, 4])?;
        let io = SegmentReduceBwd::new(dy, o, out(&x, &[3, 4]).into());
        g.segment_reduce_bwd(SegmentReduce::Max, io)
    });

    // Offsets that only the device can see are reported by the next waiting call.
    for bad in [[0, 5, 3], [0, 2, 1], [-1, 0, 3], [0, 1, 4]] {
        let bad = t.ids(&bad);
        let result =
            t.gpu.segment_reduce(SegmentReduce::Mean, x34, bad.view(), y24(&y).expect("eight elements"));
        let waited = result.and_then(|()| t.gpu.synchronize());
        if !matches!(waited, Err(GpuError::IndexOutOfRange { .. })) {
            t.wrong.push(format!("offsets that do not rise within the rows: {waited:?}"));
        }
    }
}
