//! Random numbers and dropout.

use super::*;
use trefoil::ops::random::{Distribution, DropoutMask, Rng, Weights};

pub(super) fn random(t: &mut Bed<'_>) {
    let (x, y, i) = (t.f32(8), t.f32(8), t.buf(DType::I32, 8));
    let r = Rng::new(1);
    t.refuse("uniform integers", &[&i], |g| {
        g.random(Distribution::Uniform { lo: 0.0, hi: 1.0 }, r, i.alias_mut())
    });
    t.refuse("integers into floats", &[&y], |g| {
        g.random(Distribution::Int { lo: 0, hi: 3 }, r, y.alias_mut())
    });
    t.refuse("an empty range", &[&i], |g| g.random(Distribution::Int { lo: 3, hi: 3 }, r, i.alias_mut()));
    t.refuse("a rate of 0", &[&y], |g| g.random(Distribution::Exponential { rate: 0.0 }, r, y.alias_mut()));
    t.refuse("a permutation of rank 2", &[&i], |g| g.permutation(r, out(&i, &[2, 4])));
    t.refuse("categorical with rows that disagree", &[&i], |g| {
        g.categorical(Weights::Probs(sh(&x, &[2, 4])), r, out(&i, &[4, 2]))
    });
    t.refuse("dropout with p = 1.5", &[&y], |g| g.dropout(1.5, r, x.view(), y.alias_mut(), None));
    t.refuse("dropout with p = NaN", &[&y], |g| g.dropout(f64::NAN, r, x.view(), y.alias_mut(), None));
    t.refuse("a float mask", &[&y], |g| {
        g.dropout_bwd(0.5, DropoutMask::Saved(x.view()), x.view(), y.alias_mut().into())
    });
    t.refuse("a mask of another size", &[&y], |g| {
        let m = g.alloc(DType::U8, 7)?;
        g.dropout_bwd(0.5, DropoutMask::Saved(m.view()), x.view(), y.alias_mut().into())
    });
}
