//! Dense linear algebra.

use trefoil::ops::elementwise::Binary;
use trefoil::ops::gemm::{Gemm, GemmIo};
use trefoil::ops::linalg::{Eigh, LdlFactor, LuDet, LuFactor, Qr, Svd, Triangular, TriangularSolveBwd};
use trefoil::{Buffer, DType, View, ViewMut};

use super::Bound::Derived;
use super::{F32, Kernel, k};
use crate::device::{Cx, R};
use crate::sampler::Dom::Any;
use crate::sampler::Sample;

/// Leading axes and the two sides.
fn sides(v: &View<'_>) -> (Vec<usize>, usize, usize) {
    let s = v.shape();
    let at = s.len().saturating_sub(2);
    (s[..at].to_vec(), s.get(at).copied().unwrap_or(1), s.get(at + 1).copied().unwrap_or(1))
}

/// Leading axes with others behind them.
fn behind(v: &View<'_>, axes: &[usize]) -> Vec<usize> {
    [&sides(v).0[..], axes].concat()
}

/// One batch axis.
fn flat<'a>(v: View<'a>) -> R<View<'a>> {
    let (lead, rows, cols) = sides(&v);
    Ok(v.reshape(&[lead.iter().product(), rows, cols])?)
}

fn flat_mut(v: ViewMut<'_>) -> R<ViewMut<'_>> {
    let (lead, rows, cols) = sides(&v.as_view());
    Ok(v.reshape(&[lead.iter().product(), rows, cols])?)
}

/// (A + A^T) / 2: the gradients of Cholesky factors count an element and its mirror image half each.
fn symmetric(cx: &Cx<'_>) -> R<Buffer> {
    let a = cx.x("A")?;
    let rank = a.shape().len();
    let mut s = cx.scratch(a.dtype(), a.numel())?;
    let mirrored = a.map("transpose", |l| l.transpose(rank - 2, rank - 1))?;
    let to = s.view_mut().reshape(a.shape())?;
    cx.gpu.binary(Binary::AddScaled { ca: 0.5, cb: 0.5 }, a, mirrored, to)?;
    Ok(s)
}

fn cholesky(cx: &Cx<'_>) -> R {
    let a = cx.x("A")?;
    let s = symmetric(cx)?;
    let l = cx.like("L", &a)?;
    let info = cx.out("info", DType::I32, &behind(&a, &[]))?;
    Ok(cx.gpu.cholesky(cx.b("upper")?, s.view().reshape(a.shape())?, l.m(), info.m())?)
}

fn cholesky_backward(cx: &Cx<'_>) -> R {
    let l = cx.x("L")?;
    let da = cx.like("dA", &l)?;
    Ok(cx.gpu.cholesky_bwd(cx.b("upper")?, cx.x("dL")?, l, da.g())?)
}

fn triangle(cx: &Cx<'_>) -> R<Triangular> {
    let p = if cx.b("upper")? { Triangular::upper() } else { Triangular::lower() };
    Ok(p.left(cx.b("left")?).trans(cx.b("trans")?).unit(cx.b("unit")?))
}

fn triangular_solve(cx: &Cx<'_>) -> R {
    let b = cx.x("B")?;
    let x = cx.like("X", &b)?;
    Ok(cx.gpu.triangular_solve(triangle(cx)?, cx.x("A")?, b, x.m())?)
}

fn triangular_solve_backward(cx: &Cx<'_>) -> R {
    let (a, x) = (cx.x("A")?, cx.x("X")?);
    let (da, db) = (cx.like("dA", &a)?, cx.like("dB", &x)?);
    let io = TriangularSolveBwd::new(cx.x("dX")?, a, x).da(da.g()).db(db.g());
    Ok(cx.gpu.triangular_solve_bwd(triangle(cx)?, io)?)
}

fn lu_factor(cx: &Cx<'_>) -> R {
    let a = cx.x("A")?;
    let (_, rows, cols) = sides(&a);
    let lu = cx.like("LU", &a)?;
    let pivots = cx.out("pivots", DType::I32, &behind(&a, &[rows.min(cols)]))?;
    let info = cx.out("info", DType::I32, &behind(&a, &[]))?;
    Ok(cx.gpu.lu_factor(LuFactor::new(a, lu.m(), pivots.m(), info.m()))?)
}

fn lu_solve(cx: &Cx<'_>) -> R {
    let b = cx.x("B")?;
    let x = cx.like("X", &b)?;
    Ok(cx.gpu.lu_solve(false, cx.x("LU")?, cx.x("pivots")?, b, x.m())?)
}

fn ldl_factor(cx: &Cx<'_>) -> R {
    let a = cx.x("A")?;
    let ld = cx.like("LD", &a)?;
    let pivots = cx.out("pivots", DType::I32, &behind(&a, &[sides(&a).1]))?;
    let info = cx.out("info", DType::I32, &behind(&a, &[]))?;
    Ok(cx.gpu.ldl_factor(LdlFactor::new(a, ld.m(), pivots.m(), info.m()))?)
}

fn ldl_solve(cx: &Cx<'_>) -> R {
    let b = cx.x("B")?;
    let x = cx.like("X", &b)?;
    Ok(cx.gpu.ldl_solve(cx.x("LD")?, cx.x("pivots")?, b, x.m())?)
}

/// The factors' matrix is symmetric: the gradient of B is a solution.
fn ldl_solve_backward(cx: &Cx<'_>) -> R {
    let dx = cx.x("dX")?;
    let db = cx.like("dB", &dx)?;
    Ok(cx.gpu.ldl_solve(cx.x("LD")?, cx.x("pivots")?, dx, db.m())?)
}

/// Factors of A in memory of their own.
struct Factors {
    lu: Buffer,
    pivots: Buffer,
}

impl Factors {
    fn of(cx: &Cx<'_>, a: View<'_>) -> R<Self> {
        let (lead, n, _) = sides(&a);
        let batch = lead.iter().product::<usize>();
        let mut lu = cx.scratch(a.dtype(), a.numel())?;
        let (mut pivots, mut info) = (cx.scratch(DType::I32, batch * n)?, cx.scratch(DType::I32, batch)?);
        let io = LuFactor::new(
            a,
            lu.view_mut().reshape(a.shape())?,
            pivots.view_mut().reshape(&behind(&a, &[n]))?,
            info.view_mut().reshape(&lead)?,
        );
        cx.gpu.lu_factor(io)?;
        Ok(Factors { lu, pivots })
    }

    fn views(&self, a: &View<'_>) -> R<(View<'_>, View<'_>)> {
        let n = sides(a).1;
        Ok((self.lu.view().reshape(a.shape())?, self.pivots.view().reshape(&behind(a, &[n]))?))
    }
}

fn solve(cx: &Cx<'_>) -> R {
    let (a, b) = (cx.x("A")?, cx.x("B")?);
    let f = Factors::of(cx, a)?;
    let (lu, pivots) = f.views(&a)?;
    let x = cx.like("X", &b)?;
    Ok(cx.gpu.lu_solve(false, lu, pivots, b, x.m())?)
}

fn solve_backward(cx: &Cx<'_>) -> R {
    let (a, x) = (cx.x("A")?, cx.x("X")?);
    let f = Factors::of(cx, a)?;
    let (lu, pivots) = f.views(&a)?;
    let (da, db) = (cx.like("dA", &a)?, cx.like("dB", &x)?);
    cx.gpu.lu_solve(true, lu, pivots, cx.x("dX")?, db.m())?;
    let p = Gemm::new().trans(false, true).scaled(-1.0, 0.0);
    Ok(cx.gpu.gemm(&p, GemmIo::new(flat(db.v())?, flat(x)?, flat_mut(da.m())?))?)
}

/// The identity for each matrix of A.
fn identities(cx: &Cx<'_>, a: &View<'_>) -> R<Buffer> {
    let (lead, n, _) = sides(a);
    let each: Vec<f64> = (0..n * n).map(|i| if i % (n + 1) == 0 { 1.0 } else { 0.0 }).collect();
    let all = each.repeat(lead.iter().product());
    let mut b = cx.scratch(a.dtype(), all.len())?;
    cx.gpu.write_bytes(
        b.view_mut(),
        &crate::suite::HostTensor::from_f64(a.dtype(), &[all.len()], &all).bytes,
    )?;
    Ok(b)
}

fn inv(cx: &Cx<'_>) -> R {
    let a = cx.x("A")?;
    let f = Factors::of(cx, a)?;
    let (lu, pivots) = f.views(&a)?;
    let (one, y) = (identities(cx, &a)?, cx.like("Y", &a)?);
    Ok(cx.gpu.lu_solve(false, lu, pivots, one.view().reshape(a.shape())?, y.m())?)
}

fn inv_backward(cx: &Cx<'_>) -> R {
    let (dy, y) = (flat(cx.x("dY")?)?, flat(cx.x("Y")?)?);
    let da = cx.like("dA", &cx.x("Y")?)?;
    let mut half = cx.scratch(y.dtype(), y.numel())?;
    let p = Gemm::new().trans(true, false);
    cx.gpu.gemm(&p, GemmIo::new(y, dy, half.view_mut().reshape(y.shape())?))?;
    let p = Gemm::new().trans(false, true).scaled(-1.0, 0.0);
    Ok(cx.gpu.gemm(&p, GemmIo::new(half.view().reshape(y.shape())?, y, flat_mut(da.m())?))?)
}

fn det(cx: &Cx<'_>) -> R {
    let a = cx.x("A")?;
    let f = Factors::of(cx, a)?;
    let (lu, pivots) = f.views(&a)?;
    let y = cx.out("y", a.dtype(), &behind(&a, &[]))?;
    Ok(cx.gpu.lu_det(LuDet::new(lu, pivots).det(y.m()))?)
}

/// dy y A^-T: the transpose of the inverse solves for the identity, with each right side times dy y.
fn det_backward(cx: &Cx<'_>) -> R {
    let a = cx.x("A")?;
    let f = Factors::of(cx, a)?;
    let (lu, pivots) = f.views(&a)?;
    let (one, dy, y) = (identities(cx, &a)?, cx.x("dy")?, cx.x("y")?);
    let (mut factor, mut scaled) = (cx.scratch(a.dtype(), dy.numel())?, cx.scratch(a.dtype(), a.numel())?);
    cx.gpu.binary(Binary::Mul, dy, y, factor.view_mut().reshape(dy.shape())?)?;
    let each = factor.view().reshape(&behind(&a, &[1, 1]))?;
    let right = scaled.view_mut().reshape(a.shape())?;
    cx.gpu.binary(Binary::Mul, one.view().reshape(a.shape())?, each, right)?;
    let da = cx.like("dA", &a)?;
    Ok(cx.gpu.lu_solve(true, lu, pivots, scaled.view().reshape(a.shape())?, da.m())?)
}

fn slogdet(cx: &Cx<'_>) -> R {
    let a = cx.x("A")?;
    let f = Factors::of(cx, a)?;
    let (lu, pivots) = f.views(&a)?;
    let shape = behind(&a, &[]);
    let (sign, log) = (cx.out("sign", a.dtype(), &shape)?, cx.out("logabsdet", a.dtype(), &shape)?);
    Ok(cx.gpu.lu_det(LuDet::new(lu, pivots).sign(sign.m()).logabsdet(log.m()))?)
}

fn qr(cx: &Cx<'_>) -> R {
    let a = cx.x("A")?;
    let (_, rows, cols) = sides(&a);
    let least = rows.min(cols);
    let q = cx.out("Q", a.dtype(), &behind(&a, &[rows, least]))?;
    let r = cx.out("R", a.dtype(), &behind(&a, &[least, cols]))?;
    Ok(cx.gpu.qr(Qr::new(a, r.m()).q(q.m()))?)
}

/// The eigenvalues, and what does not depend on the signs and order of the vectors: V diag(w) V^T and V^T V.
fn eigh(cx: &Cx<'_>) -> R {
    let a = cx.x("A")?;
    let n = sides(&a).1;
    let w = cx.out("w", a.dtype(), &behind(&a, &[n]))?;
    let info = cx.out("info", DType::I32, &behind(&a, &[]))?;
    let (product, gram) = (cx.like("VwV", &a)?, cx.like("VV", &a)?);
    let (mut v, mut vw) = (cx.scratch(a.dtype(), a.numel())?, cx.scratch(a.dtype(), a.numel())?);
    cx.gpu.eigh(cx.b("upper")?, Eigh::new(a, w.m(), info.m()).v(v.view_mut().reshape(a.shape())?))?;
    let v = v.view().reshape(a.shape())?;
    let each = w.v().reshape(&behind(&a, &[1, n]))?;
    cx.gpu.binary(Binary::Mul, v, each, vw.view_mut().reshape(a.shape())?)?;
    let (v, vw) = (flat(v)?, flat(vw.view().reshape(a.shape())?)?);
    cx.gpu.gemm(&Gemm::new().trans(false, true), GemmIo::new(vw, v, flat_mut(product.m())?))?;
    Ok(cx.gpu.gemm(&Gemm::new().trans(true, false), GemmIo::new(v, v, flat_mut(gram.m())?))?)
}

/// The singular values, and what does not depend on the signs of the vectors: U diag(s) V^T, U^T U and V^T V.
fn svd(cx: &Cx<'_>) -> R {
    let a = cx.x("A")?;
    let (_, rows, cols) = sides(&a);
    let k = rows.min(cols);
    let s = cx.out("s", a.dtype(), &behind(&a, &[k]))?;
    let info = cx.out("info", DType::I32, &behind(&a, &[]))?;
    let (left, right) = (behind(&a, &[rows, k]), behind(&a, &[k, cols]));
    let (product, square) = (cx.like("USV", &a)?, behind(&a, &[k, k]));
    let (uu, vv) = (cx.out("UU", a.dtype(), &square)?, cx.out("VV", a.dtype(), &square)?);
    let room = |shape: &[usize]| cx.scratch(a.dtype(), shape.iter().product());
    let (mut u, mut us, mut vh) = (room(&left)?, room(&left)?, room(&right)?);
    let io = Svd::new(a, s.m(), info.m());
    cx.gpu.svd(io.u(u.view_mut().reshape(&left)?).vh(vh.view_mut().reshape(&right)?))?;
    let (u, vh) = (u.view().reshape(&left)?, vh.view().reshape(&right)?);
    let each = s.v().reshape(&behind(&a, &[1, k]))?;
    cx.gpu.binary(Binary::Mul, u, each, us.view_mut().reshape(&left)?)?;
    let (u, us, vh) = (flat(u)?, flat(us.view().reshape(&left)?)?, flat(vh)?);
    cx.gpu.gemm(&Gemm::new(), GemmIo::new(us, vh, flat_mut(product.m())?))?;
    cx.gpu.gemm(&Gemm::new().trans(true, false), GemmIo::new(u, u, flat_mut(uu.m())?))?;
    Ok(cx.gpu.gemm(&Gemm::new().trans(false, true), GemmIo::new(vh, vh, flat_mut(vv.m())?))?)
}

/// The singular values alone, of matrices of which some have equal rows.
fn svdvals(cx: &Cx<'_>) -> R {
    let a = cx.x("A")?;
    let (_, rows, cols) = sides(&a);
    let s = cx.out("s", a.dtype(), &behind(&a, &[rows.min(cols)]))?;
    let info = cx.out("info", DType::I32, &behind(&a, &[]))?;
    Ok(cx.gpu.svd(Svd::new(a, s.m(), info.m()))?)
}

fn newton_schulz(cx: &Cx<'_>) -> R {
    let x = cx.x("X")?;
    let y = cx.like("Y", &x)?;
    Ok(cx.gpu.newton_schulz(cx.n("steps")?, x, y.m())?)
}

/// A side: of several blocks of 128 rows, of tiles of 32, around their edges, 0.
fn side(s: &mut Sample) -> usize {
    match s.aligned() {
        _ if s.small => 2 + s.below(3),
        Some(0 | 3 | 6 | 9) => 130 + s.below(30),
        Some(1) => 64,
        Some(2) => 0,
        _ => [1, 2, 5, 17, 31, 32, 33, 40, 65, 96][s.below(10)],
    }
}

/// Leading axes for matrices of a side.
fn batch(s: &mut Sample, n: usize) -> Vec<usize> {
    match s.below(4) {
        _ if n > 100 => vec![],
        0 => vec![],
        1 if !s.small => vec![2, 3],
        _ => vec![2],
    }
}

/// Adds matrices [.., rows, cols] of noise / sqrt(cols), with something added to the diagonal.
fn noise(s: &mut Sample, name: &str, lead: &[usize], [rows, cols]: [usize; 2], diagonal: f64) {
    let shape = [lead, &[rows, cols]].concat();
    let scale = 1.0 / (cols.max(1) as f64).sqrt();
    let mut v = s.normals(shape.iter().product());
    for (i, v) in v.iter_mut().enumerate() {
        *v *= scale;
        if i / cols % rows == i % cols {
            *v += diagonal;
        }
    }
    s.values(name, &shape, &v);
}

fn draw_square(s: &mut Sample) {
    let n = side(s);
    let lead = batch(s, n);
    noise(s, "A", &lead, [n, n], 1.5);
}

/// M M^T / n + 1; in one case of five some matrix is not positive definite.
fn draw_definite(s: &mut Sample) {
    let n = side(s);
    let lead = batch(s, n);
    let count: usize = lead.iter().product();
    let mut all = Vec::new();
    for _ in 0..count {
        let m = s.normals(n * n);
        for r in 0..n {
            for c in 0..n {
                let dot: f64 = (0..n).map(|i| m[r * n + i] * m[c * n + i]).sum();
                all.push(dot / n as f64 + f64::from(u8::from(r == c)));
            }
        }
    }
    if !s.small && n > 0 && s.below(5) == 0 {
        let at = s.below(n);
        all[at * n + at] = -1.0;
    }
    s.values("A", &[&lead[..], &[n, n]].concat(), &all);
    let upper = s.coin();
    s.arg("upper", upper);
}

fn draw_triangle(s: &mut Sample) {
    let n = side(s);
    let lead = batch(s, n);
    noise(s, "A", &lead, [n, n], 1.5);
    let left = s.coin();
    let k = right_sides(s);
    s.put("B", &[&lead[..], &if left { [n, k] } else { [k, n] }].concat(), Any);
    s.arg("left", left);
    for flag in ["upper", "trans", "unit"] {
        let on = s.coin();
        s.arg(flag, on);
    }
}

fn right_sides(s: &mut Sample) -> usize {
    if s.small { 1 + s.below(3) } else { [0, 1, 3, 32, 33, 70][s.below(6)] }
}

fn draw_system(s: &mut Sample) {
    let n = side(s);
    let lead = batch(s, n);
    noise(s, "A", &lead, [n, n], 1.5);
    let k = right_sides(s);
    s.put("B", &[&lead[..], &[n, k]].concat(), Any);
}

/// Factors as `lu_factor` leaves them, with any exchanges.
fn draw_factors(s: &mut Sample) {
    draw_system(s);
    let b = s.shape_of("B");
    let lead = s.drop("A");
    let (n, lead) = (lead[lead.len() - 1], lead[..lead.len() - 2].to_vec());
    let right = s.take_values("B");
    noise(s, "LU", &lead, [n, n], 1.5);
    let count: usize = lead.iter().product::<usize>() * n;
    let pivots: Vec<i64> = (0..count).map(|i| (i % n + 1 + s.below(n - i % n)) as i64).collect();
    s.ints("pivots", DType::I32, &[&lead[..], &[n]].concat(), &pivots);
    s.values("B", &b, &right);
}

/// Matrices with elements of their own size on the diagonal, some of them nearly 0: blocks of one and of two rows.
fn draw_indefinite(s: &mut Sample) {
    let n = side(s) % 70;
    let lead = batch(s, n);
    let shape = [&lead[..], &[n, n]].concat();
    let mut v = s.normals(shape.iter().product());
    for (i, v) in v.iter_mut().enumerate() {
        let (r, c) = (i / n % n, i % n);
        *v *= if r != c { 1.0 } else { [1e-3, 4.0][r % 2] };
    }
    s.values("A", &shape, &v);
}

/// Factors as `ldl_factor` leaves them, with any blocks and exchanges.
fn draw_ldl(s: &mut Sample) {
    draw_system(s);
    let (b, lead) = (s.shape_of("B"), s.drop("A"));
    let (n, lead) = (lead[lead.len() - 1], lead[..lead.len() - 2].to_vec());
    let right = s.take_values("B");
    noise(s, "LD", &lead, [n, n], 1.5);
    let (shape, mut ld) = (s.shape_of("LD"), s.take_values("LD"));
    let mut pivots = Vec::new();
    for m in 0..lead.iter().product::<usize>() {
        let mut k = 0;
        while k < n {
            let rows = if k + 1 < n && s.coin() { 2 } else { 1 };
            let to = (k + rows + s.below(n - k - rows + 1)) as i64;
            pivots.extend(vec![if rows == 2 { -to } else { to }; rows]);
            if rows == 2 {
                // Of two rows the element beside the diagonal is the largest.
                ld[(m * n + k + 1) * n + k] = 3.0;
            }
            k += rows;
        }
    }
    s.values("LD", &shape, &ld);
    s.ints("pivots", DType::I32, &[&lead[..], &[n]].concat(), &pivots);
    s.values("B", &b, &right);
}

/// Tall, wide and square matrices.
fn draw_rectangle(s: &mut Sample) {
    let (n, other) = (side(s), side(s));
    let (rows, cols) = if n.max(other) > 100 { (n.max(other), n.min(40)) } else { (n, other) };
    let lead = batch(s, rows.max(cols));
    let sides = if s.coin() { [rows, cols] } else { [cols, rows] };
    noise(s, "A", &lead, sides, 1.0);
}

fn draw_symmetric(s: &mut Sample) {
    let n = side(s) % 100;
    let lead = batch(s, n);
    noise(s, "A", &lead, [n, n], 0.5);
    let upper = s.coin();
    s.arg("upper", upper);
}

/// Rectangles, in one case of two with rows that are equal and a column of zeros.
fn draw_ranks(s: &mut Sample) {
    draw_rectangle(s);
    if s.small || s.coin() {
        return;
    }
    let (shape, mut v) = (s.shape_of("A"), s.take_values("A"));
    let cols = shape[shape.len() - 1].max(1);
    for (i, row) in v.chunks_mut(cols).enumerate() {
        row[0] = 0.0;
        if i % 3 == 0 {
            row.iter_mut().skip(1).enumerate().for_each(|(c, x)| *x = (c % 5) as f64 - 2.0);
        }
    }
    s.values("A", &shape, &v);
}

fn draw_iteration(s: &mut Sample) {
    let sides = [1 + side(s) % 70, 1 + side(s) % 70];
    let lead = batch(s, 70);
    s.put("X", &[&lead[..], &sides].concat(), Any);
    let steps = s.below(6);
    s.arg("steps", steps);
}

const TRIANGLE: &str = "upper=false, left=true, trans=false, unit=false";
const CONDITION: &str = "an error grows with the condition of the matrix";

pub(super) const ROWS: &[&[Kernel]] = &[&[
    k("cholesky", "B9.1", "A", "upper=false", "[L], info:i32", &["cholesky", "binary"], cholesky)
        .dtypes(F32)
        .bound(Derived)
        .composite()
        .sample(draw_definite),
    k("cholesky_backward", "B9.1", "dL, L", "upper=false", "dA", &["cholesky_bwd"], cholesky_backward)
        .dtypes(F32)
        .bound(Derived)
        .grad_of("cholesky"),
    k("triangular_solve", "B9.2", "A, B", TRIANGLE, "X", &["triangular_solve"], triangular_solve)
        .dtypes(F32)
        .bound(Derived)
        .sample(draw_triangle),
    k(
        "triangular_solve_backward",
        "B9.2",
        "dX, A, X",
        TRIANGLE,
        "dA, dB",
        &["triangular_solve_bwd"],
        triangular_solve_backward,
    )
    .dtypes(F32)
    .bound(Derived)
    .grad_of("triangular_solve"),
    k("lu_factor", "B9.3", "A", "-", "LU, pivots:i32, info:i32", &["lu_factor"], lu_factor)
        .dtypes(F32)
        .bound(Derived)
        .sample(draw_rectangle),
    k("lu_solve", "B9.3", "LU, pivots:i32, B", "-", "X", &["lu_solve"], lu_solve)
        .dtypes(F32)
        .bound(Derived)
        .sample(draw_factors),
    k("solve", "B9.3", "A, B", "-", "X", &["lu_factor", "lu_solve"], solve)
        .dtypes(F32)
        .bound(Derived)
        .units(16.0, CONDITION)
        .composite()
        .sample(draw_system),
    k(
        "solve_backward",
        "B9.3",
        "dX, A, X",
        "-",
        "dA, dB",
        &["lu_factor", "lu_solve", "gemm"],
        solve_backward,
    )
    .dtypes(F32)
    .bound(Derived)
    .units(16.0, CONDITION)
    .composite()
    .grad_of("solve"),
    k("inv", "B9.3", "A", "-", "Y", &["lu_factor", "lu_solve"], inv)
        .dtypes(F32)
        .bound(Derived)
        .composite()
        .sample(draw_square),
    k("inv_backward", "B9.3", "dY, Y", "-", "dA", &["gemm"], inv_backward)
        .dtypes(F32)
        .bound(Derived)
        .composite()
        .grad_of("inv"),
    k("det", "B9.3", "A", "-", "y", &["lu_factor", "lu_det"], det)
        .dtypes(F32)
        .bound(Derived)
        .composite()
        .sample(draw_square),
    k("det_backward", "B9.3", "dy, A, y", "-", "dA", &["lu_factor", "lu_solve", "binary"], det_backward)
        .dtypes(F32)
        .bound(Derived)
        .composite()
        .grad_of("det"),
    k("slogdet", "B9.3", "A", "-", "sign, logabsdet", &["lu_factor", "lu_det"], slogdet)
        .dtypes(F32)
        .bound(Derived)
        .units(16.0, "the logarithms of the pivots cancel")
        .composite()
        .sample(draw_square),
    k("qr", "B9.4", "A", "-", "Q, R", &["qr"], qr).dtypes(F32).bound(Derived).sample(draw_rectangle),
    k("eigh", "B9.5", "A", "upper=false", "w, info:i32, VwV, VV", &["eigh", "binary", "gemm"], eigh)
        .dtypes(F32)
        .bound(Derived)
        .units(128.0, "rotations add roundings of the norm of the matrix to every element")
        .composite()
        .sample(draw_symmetric),
    k("svd", "B9.6", "A", "-", "s, info:i32, USV, UU, VV", &["svd", "binary", "gemm"], svd)
        .dtypes(F32)
        .bound(Derived)
        .units(128.0, "rotations add roundings of the norm of the matrix to every element")
        .composite()
        .sample(draw_ranks),
    k("svdvals", "B9.6", "A", "-", "s, info:i32", &["svd"], svdvals)
        .dtypes(F32)
        .bound(Derived)
        .units(128.0, "rotations add roundings of the norm of the matrix to every element")
        .sample(draw_ranks),
    k("ldl_factor", "B9.7", "A", "-", "LD, pivots:i32, info:i32", &["ldl_factor"], ldl_factor)
        .dtypes(F32)
        .bound(Derived)
        .sample(draw_indefinite),
    k("ldl_solve", "B9.7", "LD, pivots:i32, B", "-", "X", &["ldl_solve"], ldl_solve)
        .dtypes(F32)
        .bound(Derived)
        .sample(draw_ldl),
    k("ldl_solve_backward", "B9.7", "dX, LD, pivots:i32", "-", "dB", &["ldl_solve"], ldl_solve_backward)
        .dtypes(F32)
        .bound(Derived)
        .grad_of("ldl_solve"),
    k("newton_schulz", "B9.8", "X", "steps=5", "Y", &["newton_schulz"], newton_schulz)
        .dtypes(F32)
        .bound(Derived)
        .units(16.0, "each step multiplies the roundings of the one before")
        .sample(draw_iteration),
]];
