//! Pooling.

use super::*;
use trefoil::ops::pool::{Pooling, Window};

pub(super) fn pool(t: &mut Bed<'_>) {
    let (x, y, i) = (t.f32(72), t.f32(18), t.buf(DType::I32, 18));
    let (h, wide_ids) = (t.buf(DType::F16, 18), t.buf(DType::I64, 18));
    let (xs, ys) = ([1, 2, 6, 6], [1, 2, 3, 3]);
    let w = Window::new(&[2]);
    let sliding: Pooling = w.into();
    let mut forward = |what: &str, w: Window| {
        t.refuse(&format!("maximum with {what}"), &[&y, &i], |g| {
            g.max_pool(w.into(), sh(&x, &xs), out(&y, &ys), Some(out(&i, &ys)))
        });
        t.refuse(&format!("average with {what}"), &[&y], |g| g.avg_pool(w.into(), sh(&x, &xs), out(&y, &ys)));
        t.refuse(&format!("gradient of an average with {what}"), &[&x], |g| {
            g.avg_pool_bwd(w.into(), sh(&y, &ys), out(&x, &xs).into())
        });
    };
    forward("a window of 0", Window::new(&[0]));
    forward("a stride of 0", w.stride(&[2, 0]));
    forward("padding above half the window", w.padding(&[2]));
    forward("padding for three axes", w.padding(&[1, 1, 1]));
    forward("no window", Window::new(&[]));
    forward("a window larger than the input", Window::new(&[7]));
    forward("nine entries", Window::new(&[2; 9]));
    forward("an overflowing window", Window::new(&[usize::MAX]));
    forward("an overflowing stride", w.stride(&[usize::MAX]));
    forward("another number of windows", w.stride(&[1]));
    forward("a divisor of 0", w.divisor(0));
    t.refuse("a dilation of 0", &[&y], |g| {
        g.max_pool(w.dilation(&[0]).into(), sh(&x, &xs), out(&y, &ys), None)
    });
    t.refuse("a dilated window larger than the input", &[&y], |g| {
        g.max_pool(w.dilation(&[6]).into(), sh(&x, &xs), out(&y, &ys), None)
    });
    let six = t.f32(6);
    t.refuse("a dilated average", &[&six], |g| {
        let w = w.dilation(&[2]).stride(&[2]);
        g.avg_pool(w.into(), sh(&x, &[1, 3, 4, 6]), out(&six, &[1, 3, 1, 2]))
    });
    t.refuse("rank 2", &[&y], |g| g.max_pool(sliding, sh(&x, &[12, 6]), out(&y, &[6, 3]), None));
    t.refuse("rank 6", &[&y], |g| {
        g.avg_pool(sliding, sh(&x, &[1, 2, 1, 1, 6, 6]), out(&y, &[1, 2, 1, 1, 3, 3]))
    });
    t.refuse("maximum into another dtype", &[&h], |g| g.max_pool(sliding, sh(&x, &xs), out(&h, &ys), None));
    let two = t.buf(DType::I32, 2);
    t.refuse("average of integers", &[&two], |g| {
        g.avg_pool(sliding, sh(&i, &[1, 2, 3, 3]), out(&two, &[1, 2, 1, 1]))
    });
    t.refuse("positions as i64", &[&y, &wide_ids], |g| {
        g.max_pool(sliding, sh(&x, &xs), out(&y, &ys), Some(out(&wide_ids, &ys)))
    });
    t.refuse("positions of another shape", &[&y, &i], |g| {
        g.max_pool(sliding, sh(&x, &xs), out(&y, &ys), Some(out(&i, &[2, 1, 3, 3])))
    });
    t.refuse("a transposed input", &[&y], |g| {
        g.max_pool(sliding, sh(&x, &xs).map("x", |l| l.transpose(2, 3))?, out(&y, &ys), None)
    });
    t.refuse("output over the input", &[&x], |g| {
        g.avg_pool(sliding, sh(&x, &xs), x.alias_mut().range(0, 18)?.reshape(&ys)?)
    });
    t.refuse("an adaptive output of other channels", &[&y], |g| {
        g.avg_pool(Pooling::Adaptive, sh(&x, &xs), out(&y, &[2, 1, 3, 3]))
    });
    t.refuse("an adaptive output of another rank", &[&y], |g| {
        g.max_pool(Pooling::Adaptive, sh(&x, &xs), out(&y, &[1, 2, 9]), None)
    });
    let empty = t.f32(0);
    t.refuse("adaptive windows of an empty axis", &[&y], |g| {
        g.avg_pool(Pooling::Adaptive, sh(&empty, &[1, 2, 0, 6]), out(&y, &ys))
    });
    t.refuse("an adaptive output without cells", &[], |g| {
        g.avg_pool(Pooling::Adaptive, sh(&x, &xs), out(&empty, &[1, 2, 0, 6]))
    });
    t.refuse("gradient with positions of another shape", &[&x], |g| {
        g.max_pool_bwd(sliding, sh(&y, &ys), sh(&i, &[2, 1, 3, 3]), out(&x, &xs).into())
    });
    t.refuse("gradient with float positions", &[&x], |g| {
        g.max_pool_bwd(sliding, sh(&y, &ys), sh(&y, &ys), out(&x, &xs).into())
    });
    t.accept("planes without samples", |g| {
        g.max_pool(sliding, sh(&empty, &[0, 2, 6, 6]), out(&empty, &[0, 2, 3, 3]), None)
    });
    // A position outside the plane is found on the device.
    let (bad, dx) = (
        t.gpu.upload(&[0i32, 36, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7, 8]).expect("upload"),
        t.f32(72),
    );
    let call = t.gpu.max_pool_bwd(sliding, sh(&y, &ys), sh(&bad, &ys), out(&dx, &xs).into());
    match call.and_then(|()| t.gpu.synchronize()) {
        Err(GpuError::IndexOutOfRange { op: "max_pool_bwd" }) => {}
        other => t.wrong.push(format!("a position outside the plane: {other:?}")),
    }
}
