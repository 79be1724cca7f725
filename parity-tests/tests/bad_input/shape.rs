//! Movements.

use super::*;
use trefoil::ops::shape::{PadMode, Triangle};

pub(super) fn shape(t: &mut Bed<'_>) {
    let (x, y, z) = (t.f32(12), t.f32(12), t.f32(24));
    let i = t.buf(DType::I32, 12);
    let x34 = sh(&x, &[3, 4]);
    t.refuse("copy into another shape", &[&y], |g| g.strided_copy(x34, out(&y, &[4, 3]).into()));
    t.refuse("copy into another dtype", &[&i], |g| g.strided_copy(x34, out(&i, &[3, 4]).into()));
    t.refuse("accumulating integers", &[&i], |g| g.strided_copy(i.view(), i.alias_mut().accumulate()));
    t.refuse("concat of shapes that disagree", &[&z], |g| {
        g.concat(0, &[x34, sh(&y, &[4, 3])], out(&z, &[6, 4]))
    });
    t.refuse("concat of nothing", &[&z], |g| g.concat(0, &[], out(&z, &[24])));
    t.refuse("concat along axis 2", &[&z], |g| g.concat(2, &[x34, x34], out(&z, &[6, 4])));
    t.refuse("concat into another size", &[&z], |g| g.concat(0, &[x34], out(&z, &[6, 4])));
    t.refuse("a pattern of 3 bytes", &[&y], |g| g.fill_bytes(&[1, 2, 3], y.alias_mut()));
    t.refuse("arange of rank 2", &[&y], |g| g.arange(0.0, 1.0, out(&y, &[3, 4])));
    t.refuse("reflect padding of the size", &[&z], |g| {
        g.pad(PadMode::Reflect, &[(0, 0), (4, 0)], x34, out(&z, &[3, 8]))
    });
    t.refuse("circular padding above the size", &[&z], |g| {
        g.pad(PadMode::Circular, &[(0, 0), (0, 5)], x34, out(&z, &[24]).range(0, 21)?.reshape(&[3, 7])?)
    });
    t.refuse("pads for one axis of two", &[&z], |g| {
        g.pad(PadMode::Constant(0.0), &[(0, 4)], x34, out(&z, &[3, 8]))
    });
    t.refuse("padding into another shape", &[&z], |g| {
        g.pad(PadMode::Constant(0.0), &[(0, 0), (1, 1)], x34, out(&z, &[3, 8]))
    });
    t.refuse("flip along axis 2", &[&y], |g| g.flip(&[2], x34, out(&y, &[3, 4]).into()));
    t.refuse("flip along an axis twice", &[&y], |g| g.flip(&[0, 0], x34, out(&y, &[3, 4]).into()));
    t.refuse("roll with one shift for two axes", &[&y], |g| {
        g.roll(&[1], &[0, 1], x34, out(&y, &[3, 4]).into())
    });
    t.refuse("triangle of a vector", &[&y], |g| {
        g.triangle(Triangle::Lower, 0, x.view(), y.alias_mut().into())
    });
    t.refuse("repeat_interleave into another size", &[&z], |g| {
        g.repeat_interleave(0, 3, None, x34, out(&z, &[6, 4]))
    });
    t.refuse("unfold gradient with windows that do not fit", &[&y], |g| {
        g.unfold_bwd(0, 5, 1, sh(&z, &[24]).reshape(&[6, 4])?, y.alias_mut().into())
    });
    let w = t.f32(16);
    t.refuse("overlapping copy", &[&w], |g| g.copy(w.view().range(0, 8)?, w.alias_mut().range(4, 8)?));
    t.refuse("copy of two sizes", &[&w], |g| g.copy(x.view(), w.alias_mut()));
    t.refuse("copy of two dtypes", &[&y], |g| g.copy(i.view(), y.alias_mut()));
    t.refuse("write of another size", &[&y], |g| g.write_bytes(y.alias_mut(), &[0; 7]));
    t.refuse("read of another size", &[], |g| g.read_bytes(y.view(), &mut [0; 7]));
    t.refuse("read of a strided view", &[], |g| g.read_bytes(every_second(&z, 12), &mut [0; 48]));
}
