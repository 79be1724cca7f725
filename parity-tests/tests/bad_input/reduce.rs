//! Reductions.

use super::*;
use trefoil::ops::reduce::{ArgReduce, Reduce};

pub(super) fn reduce(t: &mut Bed<'_>) {
    let (x, y, z) = (t.f32(12), t.f32(3), t.f32(4));
    let (m, i, empty) = (t.buf(DType::U8, 3), t.buf(DType::I64, 3), t.f32(0));
    let x34 = sh(&x, &[3, 4]);
    t.refuse("axis 2 of rank 2", &[&y], |g| g.reduce(Reduce::Sum, &[2], x34, y.alias_mut()));
    t.refuse("an axis twice", &[&y], |g| g.reduce(Reduce::Sum, &[1, 1], x34, y.alias_mut()));
    t.refuse("another output shape", &[&z], |g| g.reduce(Reduce::Sum, &[1], x34, z.alias_mut()));
    t.refuse("another output dtype", &[&i], |g| g.reduce(Reduce::Mean, &[1], x34, i.alias_mut()));
    t.refuse("any of floats", &[&m], |g| g.reduce(Reduce::Any, &[1], x34, m.alias_mut()));
    t.refuse("max over an empty axis", &[&y], |g| {
        g.reduce(Reduce::Max, &[1], sh(&empty, &[3, 0]), y.alias_mut())
    });
    t.refuse("argmax over an empty axis", &[&i], |g| {
        g.arg_reduce(ArgReduce::Max, 1, sh(&empty, &[3, 0]), i.alias_mut(), None)
    });
    t.refuse("argmax into floats", &[&y], |g| g.arg_reduce(ArgReduce::Max, 1, x34, y.alias_mut(), None));
    t.refuse("argmax along axis 2", &[&i], |g| g.arg_reduce(ArgReduce::Max, 2, x34, i.alias_mut(), None));
    t.refuse("min_max over an empty axis", &[&y], |g| {
        g.min_max(&[1], sh(&empty, &[3, 0]), y.alias_mut(), out(&z, &[4]).range(0, 3)?)
    });
    t.refuse("mean_var with two shapes", &[&y, &z], |g| {
        g.mean_var(&[1], 1.0, x34, y.alias_mut(), z.alias_mut())
    });
    t.refuse("dot of two shapes", &[&y], |g| g.dot(x34, sh(&x, &[4, 3]), y.alias_mut()));
    t.refuse("sum to a shape that does not broadcast", &[&y], |g| {
        g.sum_to_shape(sh(&x, &[3, 4]), y.alias_mut().into())
    });
    let dx = t.f32(12);
    t.refuse("gradient with dy of another shape", &[&dx], |g| {
        g.reduce_bwd(Reduce::Sum, &[1], z.view(), None, None, out(&dx, &[3, 4]).into())
    });
    t.refuse("gradient without x", &[&dx], |g| {
        g.reduce_bwd(Reduce::SumSq, &[1], y.view(), None, None, out(&dx, &[3, 4]).into())
    });
}
