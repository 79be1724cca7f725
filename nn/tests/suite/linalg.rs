//! Dense linear algebra: gradients against central differences, first and second ones, errors, and what the factors promise.

use crate::common::everywhere::values;
use crate::common::{close, cpu, devices, gradcheck, noise, tensor};
use trefoil::DType;
use trefoil::ops::linalg::Triangular;
use trefoil_nn::autograd::{GradOptions, grad};
use trefoil_nn::{MatrixNorm, NnError, Result, Tensor};

fn small(x: f64) -> f64 {
    0.4 * x
}

/// Well-conditioned matrices.
fn regular(x: &Tensor) -> Result<Tensor> {
    let n = x.shape()[x.rank() - 1];
    x.add(&Tensor::eye(x.device(), x.dtype(), n)?.mul_scalar(1.5)?)
}

fn definite(x: &Tensor) -> Result<Tensor> {
    regular(&x.matmul(&x.transpose(-2, -1)?)?)
}

/// Symmetric matrices whose eigenvalues lie apart.
fn spread(x: &Tensor) -> Result<Tensor> {
    let diagonal = Tensor::from_slice(&cpu(), &[0.0, 0.0, 0.0, 0.0, 3.0, 0.0, 0.0, 0.0, 7.0], &[3, 3])?;
    x.add(&x.transpose(-2, -1)?)?.add(&diagonal)
}

fn rows(t: &Tensor) -> Vec<f64> {
    t.contiguous().unwrap().to_vec().unwrap()
}

/// First derivatives of `f`, and derivatives of its first derivatives.
fn check(what: &str, shapes: &[&[usize]], f: impl Fn(&[Tensor]) -> Result<Tensor>) {
    gradcheck(what, shapes, small, &f);
    gradcheck(&format!("second derivatives of {what}"), shapes, small, |t| {
        let create_graph = t[0].requires_grad();
        let x: Vec<Tensor> = t.iter().map(|t| if create_graph { t.clone() } else { t.with_grad() }).collect();
        let y = f(&x)?;
        let weights = Tensor::from_slice(&cpu(), &noise(5, y.numel()), y.shape())?;
        let loss = y.square()?.mul(&weights)?.sum()?;
        let options = GradOptions { create_graph, ..GradOptions::default() };
        let grads = grad(&[(&loss, None)], &x.iter().collect::<Vec<_>>(), options)?;
        let parts = grads.iter().flatten().map(|g| g.reshape(&[g.numel()])).collect::<Result<Vec<_>>>()?;
        Tensor::concat(0, &parts.iter().collect::<Vec<_>>())
    });
}

#[test]
fn factors_and_systems_have_gradients_twice() {
    for upper in [false, true] {
        check("cholesky", &[&[2, 3, 3]], |t| definite(&t[0])?.cholesky(upper));
    }
    for (p, b) in [
        (Triangular::lower(), [3, 2]),
        (Triangular::upper().trans(true), [3, 2]),
        (Triangular::upper().left(false).unit(true), [2, 3]),
        (Triangular::lower().left(false).trans(true), [2, 3]),
    ] {
        // The triangle is shared by the batch.
        let b = [2, b[0], b[1]];
        check("solve_triangular", &[&[3, 3], &b], |t| regular(&t[0])?.solve_triangular(&t[1], p));
    }
    check("solve", &[&[2, 3, 3], &[3, 2]], |t| regular(&t[0])?.solve(&t[1]));
    check("inv", &[&[2, 3, 3]], |t| regular(&t[0])?.inv());
    check("det", &[&[2, 3, 3]], |t| regular(&t[0])?.det());
    // Eigenvectors have either sign.
    check("eigh", &[&[2, 3, 3]], |t| {
        let (w, v) = spread(&t[0])?.eigh(false)?;
        w.unsqueeze(-2)?.add(&v.square()?)
    });
    check("eigvalsh", &[&[3, 3]], |t| spread(&t[0])?.eigvalsh(true));
    check("matrix_exp", &[&[2, 3, 3]], |t| t[0].matrix_exp());
    check("slogdet", &[&[2, 3, 3]], |t| Ok(regular(&t[0])?.slogdet()?.1));
}

#[test]
fn indefinite_systems_are_solved() {
    // A zero diagonal needs blocks of two rows.
    let off = |x: &Tensor| {
        let s = x.add(&x.transpose(-2, -1)?)?;
        s.sub(&s.mul(&Tensor::eye(x.device(), x.dtype(), x.shape()[x.rank() - 1])?)?)
    };
    for d in devices() {
        for n in [2, 5, 40] {
            let (x, b) = (tensor(&d, &[2, n, n], 3), tensor(&d, &[2, n, 3], 4));
            let a = off(&x).unwrap();
            let f = a.ldl_factor().unwrap();
            assert_eq!(f.info.to_vec::<i32>().unwrap(), [0, 0]);
            assert!(f.pivots.to_vec::<i32>().unwrap().iter().any(|p| *p < 0), "{n}");
            let left = a.matmul(&f.solve(&b).unwrap()).unwrap().sub(&b).unwrap();
            let most = values(&left).into_iter().fold(0.0, |most: f64, v| most.max(v.abs()));
            assert!(most < 2e-4, "{n}: {most}");
        }
    }
    let a = off(&tensor(&cpu(), &[2, 4, 4], 3)).unwrap();
    let wide = a.to_dtype(DType::F64).unwrap().ldl_factor().unwrap();
    check("ldl_solve", &[&[2, 4, 3]], |t| wide.solve(&t[0].to_dtype(DType::F64)?));
    let zeros = Tensor::zeros(&cpu(), DType::F32, &[3, 3]).unwrap().ldl_factor().unwrap();
    assert_eq!(zeros.info.item::<i32>().unwrap(), 1);
    assert_eq!(zeros.pivots.to_vec::<i32>().unwrap(), [1, 2, 3]);
    assert!(Tensor::zeros(&cpu(), DType::F32, &[3, 4]).unwrap().ldl_factor().is_err());
}

#[test]
fn orthogonal_factors_have_gradients_twice() {
    // The first rows are well-conditioned.
    let tall = |x: &Tensor| Tensor::concat(-2, &[&regular(&x.narrow(-2, 0, 3)?)?, &x.narrow(-2, 3, 2)?]);
    check("Q", &[&[2, 5, 3]], |t| Ok(tall(&t[0])?.qr()?.0));
    check("R", &[&[5, 3]], |t| Ok(tall(&t[0])?.qr()?.1));
    check("Q and R", &[&[3, 3]], |t| {
        let (q, r) = regular(&t[0])?.qr()?;
        q.mul(&r)
    });
    check("wide Q and R", &[&[5, 3]], |t| {
        let (q, r) = tall(&t[0])?.transpose(-2, -1)?.qr()?;
        q.matmul(&q)?.matmul(&r)
    });
    check("least squares", &[&[5, 3], &[5, 2]], |t| tall(&t[0])?.lstsq(&t[1]));
    check("shortest solution", &[&[5, 3], &[3, 2]], |t| tall(&t[0])?.transpose(-2, -1)?.lstsq(&t[1]));
}

#[test]
fn singular_values_have_gradients_twice() {
    // Singular values that lie apart: rows of a diagonal matrix grow.
    let apart = |x: &Tensor| {
        let scale = Tensor::from_slice(&cpu(), &[1.0, 4.0, 9.0], &[3, 1])?;
        regular(&x.narrow(-1, 0, 3)?)?
            .mul(&scale)
            .and_then(|y| Tensor::concat(-1, &[&y, &x.narrow(-1, 3, 1)?]))
    };
    check("singular values", &[&[2, 3, 4]], |t| apart(&t[0])?.svdvals());
    // A pair of vectors has either sign.
    check("left vectors", &[&[3, 4]], |t| apart(&t[0])?.svd()?.0.square());
    check("right vectors", &[&[2, 3, 4]], |t| apart(&t[0])?.transpose(-2, -1)?.svd()?.2.square());
    check("all factors", &[&[3, 4]], |t| {
        let (u, s, vh) = apart(&t[0])?.svd()?;
        u.mul(&s.square()?)?.matmul(&vh)
    });
    check("pseudoinverse", &[&[2, 3, 4]], |t| apart(&t[0])?.pinv(None, None));
    check("nuclear norm", &[&[3, 4]], |t| apart(&t[0])?.matrix_norm(MatrixNorm::Nuclear, true));
    check("condition", &[&[3, 4]], |t| apart(&t[0])?.cond(MatrixNorm::Spectral));
}

#[test]
fn singular_vectors_are_orthonormal_whatever_the_rank() {
    let cpu = cpu();
    let b = tensor(&cpu, &[5, 2], 6);
    let low = b.matmul(&tensor(&cpu, &[2, 4], 7)).unwrap();
    for (a, rank) in [(low, 2), (Tensor::zeros(&cpu, b.dtype(), &[3, 4]).unwrap(), 0)] {
        let (u, s, vh) = a.svd().unwrap();
        let k = s.shape()[0];
        let one = rows(&Tensor::eye(&cpu, a.dtype(), k).unwrap());
        close(&rows(&u.t().unwrap().matmul(&u).unwrap()), &one, 1e-14, "U^T U");
        close(&rows(&vh.matmul(&vh.t().unwrap()).unwrap()), &one, 1e-14, "V^T V");
        close(&rows(&u.mul(&s).unwrap().matmul(&vh).unwrap()), &rows(&a), 1e-14, "U diag(s) V^T");
        assert_eq!(a.matrix_rank(None, None).unwrap().to_vec::<i64>().unwrap(), [rank]);
    }
}

#[test]
fn factors_multiply_to_the_matrix() {
    for shape in [[40, 40], [70, 33], [33, 70]] {
        let a = tensor(&cpu(), &shape, 3);
        let (q, r) = a.qr().unwrap();
        close(&rows(&q.matmul(&r).unwrap()), &rows(&a), 1e-12, "Q R");
        let k = shape[0].min(shape[1]);
        let gram = q.transpose(-2, -1).unwrap().matmul(&q).unwrap();
        close(&rows(&gram), &rows(&Tensor::eye(&cpu(), q.dtype(), k).unwrap()), 1e-12, "Q^T Q");
    }
    let a = definite(&tensor(&cpu(), &[2, 9, 9], 4)).unwrap();
    let l = a.cholesky(false).unwrap();
    close(&rows(&l.matmul(&l.transpose(-2, -1).unwrap()).unwrap()), &rows(&a), 1e-12, "L L^T");
    let (sign, log) = a.slogdet().unwrap();
    close(&rows(&sign.mul(&log.exp().unwrap()).unwrap()), &rows(&a.det().unwrap()), 1e-9, "slogdet");
}

#[test]
fn matrices_that_cannot_be_factored_are_named() {
    let cpu = cpu();
    let two = |second: [f64; 4]| {
        Tensor::from_slice(&cpu, &[[2.0, 1.0, 1.0, 2.0], second].concat(), &[2, 2, 2]).unwrap()
    };
    let (indefinite, singular) = (two([1.0, 2.0, 2.0, 1.0]), two([1.0, 2.0, 2.0, 4.0]));
    assert!(matches!(
        indefinite.cholesky(true),
        Err(NnError::Factorization { op: "cholesky", matrix: 1, at: 2, .. })
    ));
    let (l, info) = indefinite.cholesky_ex(false).unwrap();
    assert_eq!(info.to_vec::<i32>().unwrap(), [0, 2]);
    assert!(rows(&l)[4..].iter().all(|v| v.is_nan()) && rows(&l)[..4].iter().all(|v| v.is_finite()));
    for e in [singular.inv(), singular.solve(&singular)] {
        assert!(matches!(e, Err(NnError::Factorization { matrix: 1, at: 2, .. })), "{e:?}");
    }
    assert_eq!(rows(&singular.det().unwrap())[1], 0.0);
    let (sign, log) = singular.slogdet().unwrap();
    assert_eq!((rows(&sign)[1], rows(&log)[1]), (0.0, f64::NEG_INFINITY));
    let broken =
        Tensor::from_slice(&cpu, &[1.0, 2.0, f64::NAN, 1.0, f64::INFINITY, 0.0, 1.0, 1.0], &[2, 2, 2])
            .unwrap();
    assert!(matches!(broken.svd(), Err(NnError::Factorization { op: "svd", matrix: 0, at: 1, .. })));
    assert!(matches!(
        broken.narrow(0, 1, 1).unwrap().svdvals(),
        Err(NnError::Factorization { matrix: 0, .. })
    ));
    let (u, _, _, info) = Tensor::concat(0, &[&singular, &broken]).unwrap().svd_ex().unwrap();
    assert_eq!(info.to_vec::<i32>().unwrap(), [0, 0, 1, 1]);
    assert!(rows(&u)[8..].iter().all(|v| v.is_nan()) && rows(&u)[..8].iter().all(|v| v.is_finite()));
    let empty = Tensor::zeros(&cpu, u.dtype(), &[2, 0, 3]).unwrap();
    assert_eq!(empty.svd().unwrap().2.shape(), [2, 0, 3]);
    for e in [empty.pinv(None, None), empty.matrix_rank(None, None), empty.cond(MatrixNorm::Spectral)] {
        assert!(e.is_err_and(|e| e.to_string().contains("matrices with elements")));
    }
    assert!(singular.narrow(-1, 0, 1).unwrap().cond(MatrixNorm::One).is_err());
    assert!(
        singular.narrow(-1, 0, 1).unwrap().det().is_err() && singular.flatten(0, 2).unwrap().inv().is_err()
    );
}

#[test]
fn exponentials_of_rotations_and_diagonals() {
    let cpu = cpu();
    for angle in [0.0, 0.5, 20.0, 700.0] {
        let a = Tensor::from_slice(&cpu, &[0.0, -angle, angle, 0.0], &[2, 2]).unwrap();
        let want = [f64::cos(angle), -f64::sin(angle), f64::sin(angle), f64::cos(angle)];
        close(&rows(&a.matrix_exp().unwrap()), &want, 1e-10, "a rotation");
    }
    // Matrices of a batch are scaled each by its own norm.
    let a = Tensor::from_slice(&cpu, &[-90.0, 0.0, 0.0, 40.0, 1e-3, 0.0, 0.0, 0.0], &[2, 2, 2]).unwrap();
    let got = rows(&a.matrix_exp().unwrap());
    for (at, x) in [(0, -90.0), (3, 40.0), (4, 1e-3), (7, 0.0f64)] {
        assert!((got[at] / x.exp() - 1.0).abs() < 1e-11, "e^{x} = {}", got[at]);
    }
}

#[test]
fn empty_matrices_and_batches() {
    let cpu = cpu();
    let none = Tensor::from_slice::<f64>(&cpu, &[], &[2, 0, 0]).unwrap();
    assert_eq!(rows(&none.det().unwrap()), [1.0, 1.0]);
    assert_eq!(none.cholesky(false).unwrap().shape(), [2, 0, 0]);
    let batch = Tensor::from_slice::<f64>(&cpu, &[], &[0, 3, 3]).unwrap();
    assert_eq!(batch.inv().unwrap().shape(), [0, 3, 3]);
    assert_eq!(batch.qr().unwrap().1.shape(), [0, 3, 3]);
}
