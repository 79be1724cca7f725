//! Sorting, selection and search.

use super::*;
use trefoil::ops::sort::SortIo;

pub(super) fn sort(t: &mut Bed<'_>) {
    let (x, y, h) = (t.f32(12), t.f32(12), t.buf(DType::F16, 12));
    let (i, u) = (t.buf(DType::I64, 12), t.buf(DType::U8, 12));
    let x34 = sh(&x, &[3, 4]);
    let io = |y, index| SortIo::new(x34).y(y).index(index);
    t.refuse("sort along axis 2 of rank 2", &[&y, &i], |g| {
        g.sort(2, false, io(out(&y, &[3, 4]), out(&i, &[3, 4])))
    });
    t.refuse("sort into another shape", &[&y, &i], |g| {
        g.sort(1, false, io(out(&y, &[4, 3]), out(&i, &[3, 4])))
    });
    t.refuse("sort into another dtype", &[&h, &i], |g| {
        g.sort(1, false, io(out(&h, &[3, 4]), out(&i, &[3, 4])))
    });
    t.refuse("positions in bytes", &[&y, &u], |g| g.sort(1, false, io(out(&y, &[3, 4]), out(&u, &[3, 4]))));
    t.refuse("sort in place", &[&x], |g| g.sort(1, false, SortIo::new(x34).y(out(&x, &[3, 4]))));
    t.refuse("sort of a strided view", &[&y], |g| {
        let y = out(&y, &[12]).range(0, 6)?;
        g.sort(0, false, SortIo::new(every_second(&x, 6)).y(y))
    });
    let (big, bigs) = (t.f32(15), t.buf(DType::I64, 15));
    t.refuse("more than there are", &[&big, &bigs], |g| {
        g.topk(1, true, x34, out(&big, &[3, 5]), out(&bigs, &[3, 5]))
    });
    t.refuse("values and positions of two sizes", &[&y, &i], |g| {
        let y = out(&y, &[12]).range(0, 6)?.reshape(&[3, 2])?;
        g.topk(1, true, x34, y, out(&i, &[3, 4]))
    });
    t.refuse("topk of other rows", &[&y, &i], |g| {
        let (y, i) = (out(&y, &[12]).range(0, 4)?, out(&i, &[12]).range(0, 4)?);
        g.topk(1, true, x34, y.reshape(&[2, 2])?, i.reshape(&[2, 2])?)
    });
    t.refuse("gradient with another dtype", &[&y], |g| {
        g.sort_bwd(1, sh(&h, &[3, 4]), sh(&i, &[3, 4]), out(&y, &[3, 4]).into())
    });
    t.refuse("gradient with float positions", &[&y], |g| g.sort_bwd(1, x34, x34, out(&y, &[3, 4]).into()));
    t.refuse("search in other rows", &[&i], |g| {
        g.search_sorted(false, sh(&x, &[4, 3]), sh(&y, &[3, 4]), out(&i, &[3, 4]))
    });
    t.refuse("search for another dtype", &[&i], |g| {
        g.search_sorted(false, x.view(), h.view(), out(&i, &[12]))
    });
    t.refuse("search into floats", &[&y], |g| g.search_sorted(false, x.view(), x.view(), out(&y, &[12])));

    let (three, n) = (t.ids(&[1, 2, 3]), t.ids(&[1, 4]));
    let cost = sh(&x, &[2, 2, 3]);
    fn four(b: &Buffer) -> trefoil::Result<ViewMut<'_>> {
        out(b, &[12]).range(0, 4)?.reshape(&[2, 2])
    }
    t.refuse("an assignment of a matrix", &[&i], |g| g.linear_assignment(x34, None, out(&i, &[3, 4])));
    t.refuse("an assignment of integers", &[&i], |g| {
        g.linear_assignment(sh(&u, &[2, 2, 3]), None, four(&i)?)
    });
    t.refuse("columns as floats", &[&y], |g| g.linear_assignment(cost, None, four(&y)?));
    t.refuse("columns of other rows", &[&i], |g| {
        g.linear_assignment(cost, None, out(&i, &[12]).range(0, 6)?.reshape(&[2, 3])?)
    });
    t.refuse("counts of other problems", &[&i], |g| g.linear_assignment(cost, Some(three.view()), four(&i)?));
    let rows =
        t.gpu.linear_assignment(cost, Some(n.view()), four(&i).unwrap()).and_then(|()| t.gpu.synchronize());
    if !matches!(rows, Err(GpuError::IndexOutOfRange { .. })) {
        t.wrong.push(format!("more rows than there are: {rows:?}"));
    }

    // Positions that only the device can see are reported by the next waiting call.
    let far = t.ids(&[0, 1, 2, 12, 4, 5, 6, 7, 8, 9, 10, -1]);
    let waited =
        t.gpu.sort_bwd(0, x.view(), far.view(), y.alias_mut().into()).and_then(|()| t.gpu.synchronize());
    if !matches!(waited, Err(GpuError::IndexOutOfRange { .. })) {
        t.wrong.push(format!("a position behind the axis: {waited:?}"));
    }
}
