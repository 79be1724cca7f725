//! Dense linear algebra.

use super::*;
use trefoil::ops::linalg::{Eigh, LdlFactor, LuDet, LuFactor, Qr, Svd, Triangular, TriangularSolveBwd};

pub(super) fn linalg(t: &mut Bed<'_>) {
    let (a, y, h) = (t.f32(18), t.f32(18), t.buf(DType::F16, 18));
    let (i, f) = (t.buf(DType::I32, 6), t.f32(6));
    let sq = sh(&a, &[2, 3, 3]);
    let two = |b| out(b, &[6]).range(0, 2);
    let i2 = t.buf(DType::I32, 6);
    t.refuse("cholesky of a vector", &[&y], |g| g.cholesky(false, a.view(), out(&y, &[18]), two(&i)?));
    t.refuse("cholesky of rectangles", &[&y, &i], |g| {
        g.cholesky(false, sh(&a, &[1, 3, 6]), out(&y, &[1, 3, 6]), out(&i, &[6]).range(0, 1)?)
    });
    t.refuse("cholesky in f16", &[&y, &i], |g| {
        g.cholesky(false, sh(&h, &[2, 3, 3]), out(&y, &[2, 3, 3]), two(&i)?)
    });
    t.refuse("cholesky with float info", &[&y, &f], |g| g.cholesky(false, sq, out(&y, &[2, 3, 3]), two(&f)?));
    t.refuse("cholesky in place", &[&a, &i], |g| g.cholesky(false, sq, out(&a, &[2, 3, 3]), two(&i)?));
    t.refuse("cholesky of transposed matrices", &[&y, &i], |g| {
        g.cholesky(false, sq.map("transpose", |l| l.transpose(1, 2))?, out(&y, &[2, 3, 3]), two(&i)?)
    });
    t.refuse("gradient of cholesky from another shape", &[&y], |g| {
        g.cholesky_bwd(false, sh(&a, &[3, 2, 3]), sq, out(&y, &[2, 3, 3]).into())
    });
    let p = Triangular::lower();
    let b = t.f32(12);
    t.refuse("right sides of another batch", &[&y], |g| {
        g.triangular_solve(p, sq, sh(&b, &[4, 3, 1]), out(&y, &[18]).range(0, 12)?.reshape(&[4, 3, 1])?)
    });
    t.refuse("right sides on the wrong side", &[&y], |g| {
        let x = out(&y, &[18]).range(0, 12)?.reshape(&[2, 3, 2])?;
        g.triangular_solve(p.left(false), sq, sh(&b, &[2, 3, 2]), x)
    });
    t.refuse("gradient of a system into one memory", &[&y], |g| {
        let x = sh(&b, &[2, 3, 2]);
        let db = out(&y, &[18]).range(0, 12)?.reshape(&[2, 3, 2])?;
        g.triangular_solve_bwd(p, TriangularSolveBwd::new(x, sq, x).da(out(&y, &[2, 3, 3])).db(db))
    });
    t.refuse("too few pivots", &[&y, &i], |g| {
        let (lu, rest) = (out(&y, &[2, 3, 3]), out(&i, &[6]).range(4, 2)?);
        g.lu_factor(LuFactor::new(sq, lu, out(&i, &[6]).range(0, 4)?.reshape(&[2, 2])?, rest))
    });
    let pivots = t.buf(DType::I64, 6);
    t.refuse("pivots in i64", &[&y], |g| {
        let x = out(&y, &[18]).range(0, 12)?.reshape(&[2, 3, 2])?;
        g.lu_solve(false, sq, sh(&pivots, &[2, 3]), sh(&b, &[2, 3, 2]), x)
    });
    t.refuse("determinants of another batch", &[&y], |g| {
        g.lu_det(LuDet::new(sq, sh(&i, &[2, 3])).det(out(&y, &[18]).range(0, 3)?))
    });
    t.refuse("symmetric factors of rectangles", &[&y, &i], |g| {
        let pivots = out(&i, &[6]).range(0, 3)?.reshape(&[1, 3])?;
        let info = out(&i, &[6]).range(3, 1)?;
        g.ldl_factor(LdlFactor::new(sh(&a, &[1, 3, 6]), out(&y, &[1, 3, 6]), pivots, info))
    });
    t.refuse("symmetric factors in place", &[&a, &i], |g| {
        let pivots = out(&i, &[2, 3]);
        g.ldl_factor(LdlFactor::new(sq, out(&a, &[2, 3, 3]), pivots, two(&i2)?))
    });
    t.refuse("pivots of two rows in i64", &[&y], |g| {
        let x = out(&y, &[18]).range(0, 12)?.reshape(&[2, 3, 2])?;
        g.ldl_solve(sq, sh(&pivots, &[2, 3]), sh(&b, &[2, 3, 2]), x)
    });
    t.refuse("solutions over the factors", &[&a], |g| {
        let x = out(&a, &[18]).range(0, 12)?.reshape(&[2, 3, 2])?;
        g.ldl_solve(sq, sh(&i, &[2, 3]), sh(&b, &[2, 3, 2]), x)
    });
    t.refuse("full Q", &[&y], |g| {
        let r = out(&f, &[6]).reshape(&[1, 2, 3])?;
        g.qr(Qr::new(sh(&a, &[1, 6, 3]).map("first", |l| l.narrow(1, 0, 2))?, r).q(out(&y, &[1, 6, 3])))
    });
    t.refuse("eigenvalues of rectangles", &[&y, &i], |g| {
        g.eigh(
            false,
            Eigh::new(
                sh(&a, &[1, 3, 6]),
                out(&y, &[18]).range(0, 3)?.reshape(&[1, 3])?,
                out(&i, &[6]).range(0, 1)?,
            ),
        )
    });
    t.refuse("full U of tall matrices", &[&y, &i, &f], |g| {
        let s = out(&f, &[6]).range(0, 2)?.reshape(&[1, 2])?;
        let info = out(&i, &[6]).range(0, 1)?;
        let tall =
            sh(&a, &[1, 6, 3]).map("first", |l| l.narrow(1, 0, 3))?.map("two", |l| l.narrow(2, 0, 2))?;
        g.svd(Svd::new(tall, s, info).u(out(&y, &[18]).range(0, 9)?.reshape(&[1, 3, 3])?))
    });
    t.refuse("right vectors in columns", &[&y, &i, &f], |g| {
        let (s, info) = (out(&f, &[6]).reshape(&[2, 3])?, out(&i, &[6]).range(0, 2)?);
        g.svd(Svd::new(sq, s, info).vh(out(&y, &[18]).reshape(&[3, 3, 2])?))
    });
    t.refuse("singular values of half precision", &[&y, &i], |g| {
        g.svd(Svd::new(sh(&h, &[2, 3, 3]), out(&y, &[18]).range(0, 6)?.reshape(&[2, 3])?, two(&i)?))
    });
    t.refuse("singular vectors in place", &[&a, &i, &f], |g| {
        g.svd(Svd::new(sq, out(&f, &[6]).reshape(&[2, 3])?, two(&i)?).u(out(&a, &[2, 3, 3])))
    });
    t.refuse("a million steps", &[&y], |g| g.newton_schulz(1_000_000, sq, out(&y, &[2, 3, 3])));

    for bad in
        [[0, 2, 3], [1, 4, 3], [-2, 2, 3], [1, 2, -3], [-1, -1, 3], [-9, -9, 3], [i32::MIN, i32::MIN, 3]]
    {
        let bad = t.gpu.upload(&[&[1, 2, 3], &bad[..]].concat()).expect("a small upload");
        let x = out(&y, &[18]).range(0, 12).and_then(|v| v.reshape(&[2, 3, 2])).expect("twelve elements");
        let result = t.gpu.ldl_solve(sq, sh(&bad, &[2, 3]), sh(&b, &[2, 3, 2]), x);
        let waited = result.and_then(|()| t.gpu.synchronize());
        if !matches!(waited, Err(GpuError::IndexOutOfRange { .. })) {
            t.wrong.push(format!("a pivot that no factorisation leaves: {waited:?}"));
        }
    }
    // Pivots that only the device can see are reported by the next waiting call.
    for bad in [0, 4, -1, i32::MAX] {
        let bad = t.gpu.upload(&[1, 2, 3, 1, bad, 3]).expect("a small upload");
        let x = out(&y, &[18]).range(0, 12).and_then(|v| v.reshape(&[2, 3, 2])).expect("twelve elements");
        let result = t.gpu.lu_solve(false, sq, sh(&bad, &[2, 3]), sh(&b, &[2, 3, 2]), x);
        let waited = result.and_then(|()| t.gpu.synchronize());
        if !matches!(waited, Err(GpuError::IndexOutOfRange { .. })) {
            t.wrong.push(format!("a pivot out of range: {waited:?}"));
        }
    }
}
