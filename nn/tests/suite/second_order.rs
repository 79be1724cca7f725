//! Optimizers with line searches and curvature: iterations and evaluations beside those measured with other implementations, what the host
//! reads, and what ends them.

use crate::common::{close, cpu, devices, noise};
use trefoil::ops::core::CoreOps;
use trefoil::{DType, Element};
use trefoil_nn::optim::{
    ClosureOptimizer, Method, Outcome, Prox, Stop, Termination, admm_lasso, coordinate_descent_lasso,
    linear_conjugate_gradient,
};
use trefoil_nn::{Device, NnError, Param, Result, Tensor};

/// A vector that is minimized.
struct Point(Param);

impl Point {
    fn new<T: Element>(d: &Device, x: &[T]) -> Self {
        Point(Param::new(Tensor::from_slice(d, x, &[x.len()]).unwrap()))
    }

    fn of(d: &Device, dtype: DType, x: &[f64]) -> Self {
        let t = Tensor::from_slice(d, x, &[x.len()]);
        match dtype {
            DType::F64 => Point(Param::new(t.unwrap())),
            _ => Point::new(d, &x.iter().map(|&x| x as f32).collect::<Vec<_>>()),
        }
    }

    fn x(&self) -> Tensor {
        self.0.get()
    }

    fn values(&self) -> Vec<f64> {
        self.x().detach().to_dtype(DType::F64).and_then(|t| t.to_vec()).unwrap()
    }

    fn optimizer(&self, method: Method) -> ClosureOptimizer {
        ClosureOptimizer::with_parameters(vec![("x".into(), self.0.clone())], method).unwrap()
    }
}

fn start(n: usize) -> Vec<f64> {
    (0..n).map(|i| if i % 2 == 0 { -1.2 } else { 1.0 }).collect()
}

fn rosenbrock(x: &Tensor) -> Result<Tensor> {
    let n = x.numel();
    let (a, b) = (x.narrow(0, 0, n - 1)?, x.narrow(0, 1, n - 1)?);
    let steep = b.sub(&a.square()?)?.square()?.mul_scalar(100.0)?;
    steep.add(&a.rsub_scalar(1.0)?.square()?)?.sum()
}

/// A symmetric matrix with these eigenvalues, by three reflections.
fn symmetric(eigenvalues: &[f64]) -> Vec<f64> {
    let n = eigenvalues.len();
    let mut a = vec![0.0; n * n];
    for (i, value) in eigenvalues.iter().enumerate() {
        a[i * n + i] = *value;
    }
    for seed in 0..3 {
        let v = noise(seed + 1, n);
        let vv: f64 = v.iter().map(|x| x * x).sum();
        // Q A Q with Q = I - 2 v v^T / v.v
        for side in 0..2 {
            for i in 0..n {
                let at = |j: usize| if side == 0 { j * n + i } else { i * n + j };
                let dot: f64 = (0..n).map(|j| v[j] * a[at(j)]).sum();
                (0..n).for_each(|j| a[at(j)] -= 2.0 * v[j] * dot / vv);
            }
        }
    }
    a
}

/// Runs a minimization and checks what the host read of it.
fn minimize(
    d: &Device,
    optimizer: &mut ClosureOptimizer,
    stop: &Stop,
    f: impl FnMut() -> Result<Tensor>,
) -> Outcome {
    // The first product of a type may be checked, which reads it back.
    for dtype in [DType::F32, DType::F64].into_iter().filter(|t| d.caps().supports(*t)) {
        let one = Tensor::ones(d, dtype, &[2, 2]).unwrap();
        one.matmul(&one).unwrap();
    }
    let before = d.counters();
    let done = optimizer.minimize(stop, f).unwrap();
    let after = d.counters();
    assert_eq!(after.downloads - before.downloads, done.reads, "copies to the host");
    assert_eq!(after.uploads, before.uploads, "copies to the device");
    let allowed = 64 * (done.evaluations + done.iterations + done.products + 1);
    assert!(done.bytes_read <= allowed, "{} of {allowed} bytes: {done:?}", done.bytes_read);
    assert!(done.bytes_read <= 64 * done.reads);
    done
}

fn stop(gtol: f64) -> Stop {
    Stop::iterations(2000).gtol(gtol).check_closure(false)
}

/// Iterations and evaluations of the acceptance problems, of which twice as many are allowed.
fn on_rosenbrock(method: Method, n: usize, dtype: DType, want: [u64; 2]) {
    let d = cpu();
    let p = Point::of(&d, dtype, &start(n));
    let mut optimizer = p.optimizer(method);
    let gtol = if dtype == DType::F64 { 1e-6 } else { 1e-3 };
    let done = minimize(&d, &mut optimizer, &stop(gtol), || rosenbrock(&p.x()));
    let what = format!("{} of {n} in {dtype}: {done:?}", method.name());
    println!("{what}");
    assert!(done.iterations <= 2 * want[0] && done.evaluations <= 2 * want[1], "{what}, expected {want:?}");
    assert!(done.loss < if dtype == DType::F64 { 1e-9 } else { 1e-4 }, "{what}");
    let tol = if dtype == DType::F64 { 1e-4 } else { 2e-2 };
    close(&p.values(), &vec![1.0; n], tol, &what);
}

#[test]
fn bfgs_minimizes_rosenbrock() {
    on_rosenbrock(Method::bfgs(), 2, DType::F64, [39, 47]);
    on_rosenbrock(Method::bfgs(), 2, DType::F32, [36, 44]);
    on_rosenbrock(Method::bfgs(), 20, DType::F64, [151, 166]);
    on_rosenbrock(Method::bfgs(), 20, DType::F32, [147, 163]);
}

#[test]
fn dfp_minimizes_rosenbrock() {
    on_rosenbrock(Method::dfp(), 2, DType::F64, [26, 128]);
    on_rosenbrock(Method::dfp(), 2, DType::F32, [28, 195]);
    on_rosenbrock(Method::dfp(), 20, DType::F64, [130, 577]);
    on_rosenbrock(Method::dfp(), 20, DType::F32, [138, 627]);
}

#[test]
fn lbfgs_minimizes_rosenbrock() {
    on_rosenbrock(Method::lbfgs(), 2, DType::F64, [36, 45]);
    on_rosenbrock(Method::lbfgs(), 2, DType::F32, [35, 44]);
    on_rosenbrock(Method::lbfgs(), 20, DType::F64, [132, 153]);
    on_rosenbrock(Method::lbfgs(), 20, DType::F32, [122, 154]);
}

#[test]
fn conjugate_gradients_minimize_rosenbrock() {
    on_rosenbrock(Method::ConjugateGradient, 2, DType::F64, [31, 88]);
    on_rosenbrock(Method::ConjugateGradient, 2, DType::F32, [25, 64]);
    on_rosenbrock(Method::ConjugateGradient, 20, DType::F64, [266, 609]);
    on_rosenbrock(Method::ConjugateGradient, 20, DType::F32, [210, 474]);
}

#[test]
fn newton_cg_minimizes_rosenbrock() {
    on_rosenbrock(Method::NewtonCg, 2, DType::F64, [71, 101]);
    on_rosenbrock(Method::NewtonCg, 2, DType::F32, [70, 100]);
    on_rosenbrock(Method::NewtonCg, 20, DType::F64, [151, 239]);
    on_rosenbrock(Method::NewtonCg, 20, DType::F32, [146, 230]);
    on_rosenbrock(Method::DenseNewton { max_parameters: 64 }, 2, DType::F64, [71, 101]);
}

#[test]
fn a_trust_region_minimizes_rosenbrock() {
    on_rosenbrock(Method::trust_region(), 2, DType::F64, [29, 60]);
    on_rosenbrock(Method::trust_region(), 20, DType::F64, [136, 280]);
}

#[test]
fn quadratics() {
    let d = cpu();
    let n = 30;
    let steps = |i: usize| i as f64 / (n - 1) as f64;
    let even: Vec<f64> = (0..n).map(|i| 1.0 + 999.0 * steps(i)).collect();
    let even = Tensor::from_slice(&d, &symmetric(&even), &[n, n]).unwrap();
    let b = Tensor::from_slice(&d, &noise(5, n), &[n]).unwrap();
    let (_, iterations) = linear_conjugate_gradient(|v| even.matmul(v), &b, 1e-8, 100).unwrap();
    println!("linear conjugate gradients: {iterations} iterations");
    assert!(iterations <= 35, "{iterations} iterations of linear conjugate gradients");

    let geometric: Vec<f64> = (0..n).map(|i| 1000f64.powf(steps(i))).collect();
    let a = Tensor::from_slice(&d, &symmetric(&geometric), &[n, n]).unwrap();
    let (exact, _) = linear_conjugate_gradient(|v| a.matmul(v), &b, 1e-12, 200).unwrap();
    let left = a.matmul(&exact).unwrap().sub(&b).unwrap().norm(2.0).unwrap().item::<f64>().unwrap();
    assert!(left < 1e-7, "residual {left}");
    let exact = exact.to_vec::<f64>().unwrap();
    let cases = [
        (Method::bfgs(), [113, 115], 1e-8),
        (Method::dfp(), [39, 141], 1e-8),
        (Method::lbfgs(), [281, 306], 1e-8),
        (Method::ConjugateGradient, [252, 539], 2e-6),
        (Method::NewtonCg, [9, 10], 1e-8),
        (Method::DenseNewton { max_parameters: 64 }, [9, 10], 1e-8),
    ];
    for (method, want, gtol) in cases {
        let p = Point::new(&d, &vec![0f64; n]);
        let mut optimizer = p.optimizer(method);
        let f = || {
            let x = p.x();
            x.mul(&a.matmul(&x)?)?.sum()?.mul_scalar(0.5)?.sub(&x.mul(&b)?.sum()?)
        };
        let done = minimize(&d, &mut optimizer, &stop(gtol), f);
        let what = format!("{} of a quadratic: {done:?}", method.name());
        println!("{what}");
        assert!(
            done.iterations <= 2 * want[0] && done.evaluations <= 2 * want[1],
            "{what}, expected {want:?}"
        );
        close(&p.values(), &exact, 1e-5, &what);
    }
}

/// ln(1 + e^-y(x.w)) of separable-ish classes plus 1e-3 |w|^2 / 2.
fn logistic(d: &Device, w: &Tensor, dtype: DType) -> Result<Tensor> {
    let (rows, columns) = (500, 20);
    let x = Tensor::from_slice(d, &noise(8, rows * columns), &[rows, columns])?;
    let truth = Tensor::from_slice(d, &noise(9, columns), &[columns])?;
    let noisy = x.matmul(&truth)?.add(&Tensor::from_slice(d, &noise(10, rows), &[rows])?)?;
    let (x, y) = (x.to_dtype(dtype)?, noisy.sign()?.to_dtype(dtype)?);
    let fit = x.matmul(w)?.mul(&y)?.neg()?.softplus()?.mean()?;
    fit.add(&w.square()?.sum()?.mul_scalar(5e-4)?)
}

#[test]
fn logistic_regression_has_one_minimum() {
    let d = cpu();
    let mut losses = vec![];
    let methods = [
        Method::bfgs(),
        Method::dfp(),
        Method::lbfgs(),
        Method::ConjugateGradient,
        Method::NewtonCg,
        Method::trust_region(),
        Method::CoordinateDescent { lr: 1.0 },
    ];
    for method in methods {
        let p = Point::new(&d, &[0f64; 20]);
        let done = p.optimizer(method).minimize(&stop(1e-6), || logistic(&d, &p.x(), DType::F64)).unwrap();
        println!("{} of a logistic regression: {done:?}", method.name());
        assert!(done.gradient < 1e-6, "{}: {done:?}", method.name());
        losses.push(done.loss);
    }
    close(&losses, &vec![losses[0]; losses.len()], 1e-10, "losses at the minimum");
}

#[test]
fn lbfgs_visits_the_points_of_pytorch() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/second-order.json");
    let golden: serde_json::Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    let points: Vec<Vec<f64>> = serde_json::from_value(golden["lbfgs"]["points"].clone()).unwrap();
    assert_eq!(points.len(), 10);
    let d = cpu();
    let p = Point::new(&d, &[0.9f64, -0.7, 1.4, 0.2, -1.1]);
    let mut optimizer = p.optimizer(Method::Lbfgs { history: 4, line_search: false, lr: 0.7 });
    let bowl = || {
        let x = p.x();
        let steps = x.narrow(0, 1, 4)?.sub(&x.narrow(0, 0, 4)?)?.square()?.sum()?.mul_scalar(0.5)?;
        x.exp()?.sub(&x)?.sum()?.add(&steps)
    };
    for (i, want) in points.iter().enumerate() {
        let stop = Stop::iterations(1).gtol(0.0).ftol(0.0).check_closure(false);
        optimizer.minimize(&stop, bowl).unwrap();
        close(&p.values(), want, 1e-10, &format!("step {}", i + 1));
    }
    // With a search both end at the minimum, if not by the same way.
    let q = Point::new(&d, &start(4));
    q.optimizer(Method::lbfgs()).minimize(&stop(1e-7), || rosenbrock(&q.x())).unwrap();
    let want: Vec<f64> = serde_json::from_value(golden["lbfgs"]["rosenbrock"].clone()).unwrap();
    close(&q.values(), &want, 2e-5, "Rosenbrock's minimum");
}

#[test]
fn a_trust_region_leaves_a_saddle() {
    let d = cpu();
    let p = Point::new(&d, &[1f64, 1e-3]);
    let f = || {
        let (x, y) = (p.x().select(0, 0)?, p.x().select(0, 1)?);
        x.square()?.sub(&y.square()?)?.add(&y.pow_scalar(4.0)?.mul_scalar(0.25)?)
    };
    let done = minimize(&d, &mut p.optimizer(Method::trust_region()), &stop(1e-8), f);
    println!("saddle: {done:?}");
    assert!(done.iterations <= 14 && (done.loss + 1.0).abs() < 1e-9, "{done:?}");
    let q = Point::new(&d, &[1f64, 1e-3]);
    let f = || {
        let (x, y) = (q.x().select(0, 0)?, q.x().select(0, 1)?);
        x.square()?.sub(&y.square()?)?.add(&y.pow_scalar(4.0)?.mul_scalar(0.25)?)
    };
    let done = minimize(&d, &mut q.optimizer(Method::DenseNewton { max_parameters: 8 }), &stop(1e-8), f);
    assert!((done.loss + 1.0).abs() < 1e-9, "{done:?}");
}

#[test]
fn the_matrices_satisfy_the_secant_condition_and_stay_positive() {
    let d = cpu();
    for method in [Method::bfgs(), Method::Bfgs { damping: true, max_parameters: 64 }, Method::dfp()] {
        let p = Point::new(&d, &[0.5f64, -0.3, 0.8, 0.1]);
        let mut optimizer = p.optimizer(method);
        let f = || p.x().exp()?.sum()?.add(&p.x().square()?.sum()?);
        let gradient = |x: &[f64]| x.iter().map(|x| x.exp() + 2.0 * x).collect::<Vec<_>>();
        for _ in 0..4 {
            let before = p.values();
            let done = optimizer.step_with(f).unwrap();
            if done.iterations == 0 {
                break;
            }
            let after = p.values();
            let h = optimizer.inverse_hessian().unwrap();
            assert_eq!(h.shape(), [4, 4]);
            let s: Vec<f64> = after.iter().zip(&before).map(|(a, b)| a - b).collect();
            let y: Vec<f64> = gradient(&after).iter().zip(gradient(&before)).map(|(a, b)| a - b).collect();
            let y = Tensor::from_slice(&d, &y, &[4]).unwrap();
            close(&h.matmul(&y).unwrap().to_vec::<f64>().unwrap(), &s, 1e-8, "H y = s");
            let values = h.contiguous().unwrap().to_vec::<f64>().unwrap();
            for i in 0..4 {
                for j in 0..4 {
                    assert!((values[4 * i + j] - values[4 * j + i]).abs() < 1e-15, "symmetry");
                }
            }
            let v = Tensor::from_slice(&d, &noise(3, 4), &[4]).unwrap();
            assert!(v.dot(&h.matmul(&v).unwrap()).unwrap().item::<f64>().unwrap() > 0.0);
        }
    }
}

#[test]
fn least_squares() {
    let d = cpu();
    for max_parameters in [4096, 0] {
        let method = Method::LevenbergMarquardt { lambda: 1e-3, max_parameters };
        // Rosenbrock's function as residuals.
        let p = Point::new(&d, &[-1.2f64, 1.0]);
        let residuals = || {
            let (a, b) = (p.x().narrow(0, 0, 1)?, p.x().narrow(0, 1, 1)?);
            Tensor::concat(0, &[&b.sub(&a.square()?)?.mul_scalar(10.0)?, &a.rsub_scalar(1.0)?])
        };
        let done = minimize(&d, &mut p.optimizer(method), &stop(1e-11), residuals);
        println!("Rosenbrock's residuals: {done:?}");
        assert!(done.iterations <= 40 && done.loss < 1e-20, "{done:?}");

        // a e^(-b t) + c at 50 points.
        let t = Tensor::linspace(&d, DType::F64, 0.0, 4.0, 50).unwrap();
        let y = t.mul_scalar(-1.3).unwrap().exp().unwrap().mul_scalar(2.5).unwrap().add_scalar(0.5).unwrap();
        let p = Point::new(&d, &[1f64, 1.0, 0.0]);
        let residuals = || {
            let x = p.x();
            let e = t.mul(&x.select(0, 1)?)?.neg()?.exp()?;
            e.mul(&x.select(0, 0)?)?.add(&x.select(0, 2)?)?.sub(&y)
        };
        let done = minimize(&d, &mut p.optimizer(method), &stop(1e-9), residuals);
        println!("exponential fit: {done:?}");
        assert!(done.iterations <= 16, "{done:?}");
        close(&p.values(), &[2.5, 1.3, 0.5], 1e-6, "exponential fit");
    }
}

/// The lasso of the acceptance problems: A 60 x 100, b, and a tenth of the least penalty with solution 0.
fn lasso(d: &Device) -> (Tensor, Tensor, f64) {
    let a = Tensor::from_slice(d, &noise(21, 6000), &[60, 100]).unwrap();
    let truth: Vec<f64> = (0..100).map(|i| if i % 20 == 3 { 1.0 + i as f64 / 50.0 } else { 0.0 }).collect();
    let exact = a.matmul(&Tensor::from_slice(d, &truth, &[100]).unwrap()).unwrap();
    let b = exact.add_scaled(&Tensor::from_slice(d, &noise(22, 60), &[60]).unwrap(), 0.05).unwrap();
    let most = a.t().unwrap().matmul(&b).unwrap().norm(f64::INFINITY).unwrap().item::<f64>().unwrap();
    (a, b, 0.1 * most)
}

fn lasso_loss(a: &Tensor, b: &Tensor, l1: f64, x: &Tensor) -> f64 {
    let fit = a.matmul(x).unwrap().sub(b).unwrap().square().unwrap().sum().unwrap().item::<f64>().unwrap();
    0.5 * fit + l1 * x.norm(1.0).unwrap().item::<f64>().unwrap()
}

#[test]
fn the_lasso_of_coordinate_descent_and_of_admm() {
    let d = cpu();
    let (a, b, l1) = lasso(&d);
    let before = d.counters().downloads;
    let (x, sweeps) = coordinate_descent_lasso(&a, &b, l1, 1e-10, 1000).unwrap();
    assert_eq!(d.counters().downloads - before, sweeps, "one copy to the host per sweep");
    // The optimality conditions: |A^T (b - A x)| is l1 where x is not 0, and not above it elsewhere.
    let g = a.t().unwrap().matmul(&b.sub(&a.matmul(&x).unwrap()).unwrap()).unwrap().to_vec::<f64>().unwrap();
    let values = x.to_vec::<f64>().unwrap();
    for (g, x) in g.iter().zip(&values) {
        match *x == 0.0 {
            true => assert!(g.abs() <= l1 * (1.0 + 1e-8), "{g}"),
            false => assert!((g - l1 * x.signum()).abs() < 1e-7, "{g} at {x}"),
        }
    }
    println!("lasso: {sweeps} sweeps, {} of 100 coordinates", values.iter().filter(|x| **x != 0.0).count());
    assert!(values.iter().any(|x| *x != 0.0));
    let (_, rough) = coordinate_descent_lasso(&a, &b, l1, 1e-6, 1000).unwrap();
    println!("lasso: {rough} sweeps to 1e-6");
    assert!(rough <= 30, "{rough} sweeps");

    let (z, iterations) = admm_lasso(&a, &b, Prox::ElasticNet { l1, l2: 0.0 }, 1.0, 1e-10, 4000).unwrap();
    println!("admm: {iterations} iterations");
    let (first, second) = (lasso_loss(&a, &b, l1, &x), lasso_loss(&a, &b, l1, &z));
    assert!((first - second).abs() < 1e-9 * first, "{first} and {second}");
    let support = |v: &[f64]| v.iter().map(|x| x.abs() > 1e-7).collect::<Vec<_>>();
    assert_eq!(support(&z.to_vec::<f64>().unwrap()), support(&values));

    // A column of zeros is skipped.
    let mut wide = noise(21, 6000);
    (0..60).for_each(|i| wide[100 * i + 7] = 0.0);
    let a = Tensor::from_slice(&d, &wide, &[60, 100]).unwrap();
    let (x, _) = coordinate_descent_lasso(&a, &b, l1, 1e-8, 1000).unwrap();
    let x = x.to_vec::<f64>().unwrap();
    assert!(x[7] == 0.0 && x.iter().all(|x| x.is_finite()));
}

#[test]
fn admm_keeps_constraints() {
    let d = cpu();
    let p = Point::new(&d, &[0.3f64, -0.4, 0.9]);
    let goal = Tensor::from_slice(&d, &[0.2f64, -1.0, 2.0], &[3]).unwrap();
    let prox = Prox::Box { lo: -0.5, hi: 0.5 };
    let method = Method::Admm { prox, rho: 1.0, lr: 0.2, inner: 5 };
    let f = || p.x().sub(&goal)?.square()?.sum();
    let done = minimize(&d, &mut p.optimizer(method), &stop(1e-8), f);
    assert_eq!(done.termination, Termination::Converged, "{done:?}");
    close(&p.values(), &[0.2, -0.5, 0.5], 1e-6, "nearest point of the box");
}

#[test]
fn a_failed_search_restores_the_best_point() {
    let d = cpu();
    // A gradient that does not belong to the loss: no direction descends.
    for method in [Method::bfgs(), Method::lbfgs(), Method::ConjugateGradient, Method::dfp()] {
        let p = Point::new(&d, &[2f64, 1.0]);
        let f = || p.x().square()?.sum()?.detach().sub(&p.x().sum()?.sub(&p.x().sum()?.detach())?);
        let done = minimize(&d, &mut p.optimizer(method), &stop(1e-8), f);
        assert_eq!(done.termination, Termination::LineSearchFailed, "{}: {done:?}", method.name());
        assert_eq!((p.values(), done.loss), (vec![2.0, 1.0], 5.0), "{}", method.name());
    }
    // A loss that is not finite where the first step leads.
    let p = Point::new(&d, &[2f64, 1.0]);
    let g = || p.x().sub_scalar(0.999)?.ln()?.add(&p.x().mul_scalar(5.0)?)?.sum();
    let done = minimize(&d, &mut p.optimizer(Method::bfgs()), &Stop::iterations(20).check_closure(false), g);
    assert!(done.loss.is_finite() && p.values().iter().all(|x| x.is_finite()), "{done:?}");
    // Not finite from the start.
    let q = Point::new(&d, &[-1f64]);
    let done = minimize(&d, &mut q.optimizer(Method::lbfgs()), &stop(1e-8), || q.x().ln()?.sum());
    assert_eq!((done.termination, q.values()), (Termination::NonFinite, vec![-1.0]));
}

#[test]
fn limits_end_a_run() {
    let d = cpu();
    let p = Point::new(&d, &start(20));
    let done =
        minimize(&d, &mut p.optimizer(Method::lbfgs()), &Stop::iterations(5).check_closure(false), || {
            rosenbrock(&p.x())
        });
    assert_eq!((done.termination, done.iterations), (Termination::MaxIterations, 5));
    for method in [
        Method::lbfgs(),
        Method::ConjugateGradient,
        Method::CoordinateDescent { lr: 1.0 },
        Method::trust_region(),
    ] {
        let p = Point::new(&d, &start(20));
        let stop = stop(1e-8).max_evaluations(12);
        let done = minimize(&d, &mut p.optimizer(method), &stop, || rosenbrock(&p.x()));
        assert_eq!(done.termination, Termination::MaxEvaluations, "{}", method.name());
        assert!(done.evaluations <= 14, "{}: {done:?}", method.name());
    }
}

#[test]
fn bad_options_and_closures_are_refused() {
    let d = cpu();
    let p = Point::new(&d, &[1f64, 2.0]);
    let made = |method| ClosureOptimizer::with_parameters(vec![("x".into(), p.0.clone())], method);
    let bad = [
        Method::Lbfgs { history: 0, line_search: true, lr: 1.0 },
        Method::Lbfgs { history: 3, line_search: true, lr: -1.0 },
        Method::CoordinateDescent { lr: 0.0 },
        Method::LevenbergMarquardt { lambda: f64::NAN, max_parameters: 10 },
        Method::TrustRegion { radius: 2.0, max_radius: 1.0 },
        Method::Admm { prox: Prox::Box { lo: 1.0, hi: 0.0 }, rho: 1.0, lr: 0.1, inner: 1 },
        Method::Admm { prox: Prox::Box { lo: 0.0, hi: 1.0 }, rho: 0.0, lr: 0.1, inner: 1 },
        Method::Bfgs { damping: false, max_parameters: 1 },
    ];
    for method in bad {
        let e = made(method).unwrap_err();
        assert!(e.to_string().contains("ClosureOptimizer"), "{method:?}: {e}");
    }
    assert!(ClosureOptimizer::with_parameters(vec![], Method::lbfgs()).is_err());
    let half = Param::new(Tensor::zeros(&d, DType::F16, &[2]).unwrap());
    assert!(ClosureOptimizer::with_parameters(vec![("h".into(), half)], Method::lbfgs()).is_err());

    let mut optimizer = made(Method::lbfgs()).unwrap();
    assert!(made(Method::lbfgs()).is_err(), "the parameters belong to the first");
    assert!(optimizer.minimize(&Stop::default().gtol(-1.0), || p.x().sum()).is_err());
    let e = optimizer.minimize(&stop(1e-6), || p.x().square()).unwrap_err();
    assert!(matches!(e, NnError::NotScalar { .. }), "{e}");
    let e = optimizer.minimize(&stop(1e-6), || p.x().detach().sum()).unwrap_err();
    assert!(matches!(e, NnError::NoGraph), "{e}");
    let mut calls = 0.0;
    let e = optimizer
        .minimize(&Stop::default().check_closure(true), || {
            calls += 1.0;
            p.x().square()?.sum()?.mul_scalar(calls)
        })
        .unwrap_err();
    assert!(matches!(e, NnError::NonDeterministicClosure { first: 5.0, second: 10.0 }), "{e}");
    assert_eq!(p.values(), [1.0, 2.0]);

    let (a, b) =
        (Tensor::zeros(&d, DType::F64, &[3, 2]).unwrap(), Tensor::zeros(&d, DType::F64, &[2]).unwrap());
    assert!(coordinate_descent_lasso(&a, &b, 0.1, 1e-6, 10).is_err());
    let b = Tensor::zeros(&d, DType::F64, &[3]).unwrap();
    assert!(coordinate_descent_lasso(&a, &b, -0.1, 1e-6, 10).is_err());
    assert!(admm_lasso(&a, &b, Prox::ElasticNet { l1: 0.1, l2: 0.0 }, -1.0, 1e-6, 10).is_err());
    assert!(linear_conjugate_gradient(|v| v.neg(), &b.add_scalar(1.0).unwrap(), 1e-6, 10).is_err());
    assert!(linear_conjugate_gradient(|v| Ok(v.clone()), &a, 1e-6, 10).is_err());
}

#[test]
fn on_every_device() {
    for d in devices() {
        let methods = [
            (Method::lbfgs(), [35, 44]),
            (Method::bfgs(), [36, 44]),
            (Method::ConjugateGradient, [25, 64]),
            (Method::NewtonCg, [70, 100]),
        ];
        for (method, want) in methods {
            let p = Point::of(&d, DType::F32, &start(2));
            let done = minimize(&d, &mut p.optimizer(method), &stop(1e-3), || rosenbrock(&p.x()));
            let what = format!("{} on {}: {done:?}", method.name(), CoreOps::id(&d));
            println!("{what}");
            assert!(done.iterations <= 2 * want[0] && done.evaluations <= 2 * want[1], "{what}");
            assert!(done.loss < 1e-4, "{what}");
        }
        let p = Point::of(&d, DType::F32, &[-1.2, 1.0]);
        let residuals = || {
            let (a, b) = (p.x().narrow(0, 0, 1)?, p.x().narrow(0, 1, 1)?);
            Tensor::concat(0, &[&b.sub(&a.square()?)?.mul_scalar(10.0)?, &a.rsub_scalar(1.0)?])
        };
        let done = minimize(&d, &mut p.optimizer(Method::levenberg_marquardt()), &stop(1e-4), residuals);
        assert!(done.iterations <= 40 && done.loss < 1e-6, "{done:?}");
    }
}

#[test]
fn parameters_that_share_memory_are_one() {
    let d = cpu();
    let p = Point::new(&d, &[1f64, -2.0]);
    let q = Param::new(Tensor::from_slice(&d, &[0.5f64], &[1]).unwrap());
    let list = vec![("a".into(), p.0.clone()), ("q".into(), q.clone()), ("b".into(), p.0.clone())];
    let mut optimizer =
        ClosureOptimizer::with_parameters(list, Method::DenseNewton { max_parameters: 16 }).unwrap();
    // A quadratic of both, with a minimum at (1, 2) and 3.
    let goal = Tensor::from_slice(&d, &[1f64, 2.0], &[2]).unwrap();
    let done = optimizer
        .minimize(&stop(1e-9), || {
            p.x().sub(&goal)?.square()?.sum()?.add(&q.get().sub_scalar(3.0)?.square()?.sum()?)
        })
        .unwrap();
    assert_eq!(done.iterations, 1, "{done:?}");
    close(&p.values(), &[1.0, 2.0], 1e-12, "shared");
    close(&q.get().to_vec::<f64>().unwrap(), &[3.0], 1e-12, "apart");
}
