//! Elementwise functions.

use super::*;
use trefoil::ops::elementwise::{Binary, Ternary, Unary};

pub(super) fn elementwise(t: &mut Bed<'_>) {
    let (a, b, y) = (t.f32(12), t.f32(12), t.f32(12));
    let (h, m, i) = (t.buf(DType::F16, 12), t.buf(DType::U8, 12), t.buf(DType::I32, 12));
    let short = t.f32(11);
    t.refuse("unary into another shape", &[&short], |g| g.unary(Unary::Exp, a.view(), out(&short, &[11])));
    t.refuse("unary into another rank", &[&y], |g| g.unary(Unary::Exp, sh(&a, &[3, 4]), out(&y, &[12])));
    t.refuse("unary into another dtype", &[&h], |g| g.unary(Unary::Exp, a.view(), out(&h, &[12])));
    t.refuse("unary of integers", &[&i], |g| g.unary(Unary::Exp, i.view(), out(&i, &[12])));
    t.refuse("predicate into floats", &[&y], |g| g.unary(Unary::IsNan, a.view(), out(&y, &[12])));
    t.refuse("bit operation on floats", &[&y], |g| g.unary(Unary::BitwiseNot, a.view(), out(&y, &[12])));
    t.refuse("gradient of a predicate", &[&y], |g| {
        g.unary_bwd(Unary::IsNan, a.view(), b.view(), out(&y, &[12]).into())
    });
    t.refuse("binary of shapes that do not broadcast", &[&y], |g| {
        g.binary(Binary::Sub, sh(&a, &[3, 4]), sh(&b, &[4, 3]), out(&y, &[3, 4]))
    });
    t.refuse("binary of two dtypes", &[&y], |g| g.binary(Binary::Sub, a.view(), h.view(), out(&y, &[12])));
    t.refuse("binary into a smaller output", &[&short], |g| {
        g.binary(Binary::Mul, a.view(), b.view(), out(&short, &[11]))
    });
    t.refuse("comparison into floats", &[&y], |g| g.binary(Binary::Lt, a.view(), b.view(), out(&y, &[12])));
    t.refuse("logic on floats", &[&m], |g| g.binary(Binary::LogicalAnd, a.view(), b.view(), out(&m, &[12])));
    t.refuse("true division of integers", &[&i], |g| {
        g.binary(Binary::Div, i.view(), i.view(), out(&i, &[12]))
    });
    t.refuse("where with a float mask", &[&y], |g| {
        g.ternary(Ternary::Where, a.view(), a.view(), b.view(), out(&y, &[12]))
    });
    t.refuse("cast into another shape", &[&h], |g| g.cast(short.view(), out(&h, &[12])));
    let w = t.f32(16);
    t.refuse("overlapping input and output", &[&w], |g| {
        g.unary(Unary::Neg, w.view().range(0, 12)?, w.alias_mut().range(4, 12)?)
    });
    t.refuse("output that repeats elements", &[&w], |g| {
        let y = w.alias_mut().with_layout(Layout::strided(&[3, 4], &[0, 1], 0).expect("rank 2"))?;
        g.unary(Unary::Neg, sh(&a, &[3, 4]), y)
    });
    t.accept("output exactly on the input", |g| g.unary(Unary::Neg, w.view(), w.alias_mut()));
}
