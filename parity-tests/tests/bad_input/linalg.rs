//! Dense linear algebra.

use super::*;
use trefoil::ops::linalg::{Eigh, LuDet, LuFactor, Qr, Triangular, TriangularSolveBwd};

pub(super) fn linalg(t: &mut Bed<'_>) {
    let (a, y, h) = (t.f32(18), t.f32(18), t.buf(DType::F16, 18));
    let (i, f) = (t.buf(DType::I32, 6), t.f32(6));
    let sq = sh(&a, &[2, 3, 3]);
    let two = |b| out(b, &[6]).range(0, 2);
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
    t.refuse("a million steps", &[&y], |g| g.newton_schulz(1_000_000, sq, out(&y, &[2, 3, 3])));

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
