//! What is minimized how, when it ends, and what came of it.

use trefoil::DType;
use trefoil::ops::optimizer::Prox;

use crate::core::error::{Result, invalid};

/// The algorithm of a [`ClosureOptimizer`](super::ClosureOptimizer) with its constants.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum Method {
    /// Gradient steps of one parameter tensor after the other, each with the gradient at the present point (block Gauss-Seidel) and a rate
    /// from backtracking.
    CoordinateDescent {
        /// First rate of each block, above 0.
        lr: f64,
    },
    /// Nonlinear conjugate gradients of Polak and Ribiere with non-negative factors, Powell's restarts, and a strong Wolfe search with
    /// c2 = 0.1 (Nocedal and Wright, 2006). `scipy.optimize.minimize(method="CG")`.
    ConjugateGradient,
    /// Broyden, Fletcher, Goldfarb and Shanno with the inverse Hessian as a matrix. `scipy.optimize.minimize(method="BFGS")`.
    Bfgs {
        /// Keeps the matrix positive definite where a step had no positive curvature (Powell, 1978), instead of skipping the step.
        damping: bool,
        /// The most parameters for which the matrix may be made.
        max_parameters: usize,
    },
    /// The same from the last pairs of steps and changes of the gradient (Liu and Nocedal, 1989). `torch.optim.LBFGS`.
    Lbfgs {
        /// Pairs that are kept, at least 1.
        history: usize,
        /// With a strong Wolfe search; otherwise steps of the rate `lr`, of which the first is shortened to |g|_1 = 1, as in PyTorch.
        line_search: bool,
        /// Rate of steps without a search, and largest first trial of those with one.
        lr: f64,
    },
    /// Davidon, Fletcher and Powell, the older formula for the inverse Hessian; its search is stricter (c2 = 0.1).
    Dfp {
        /// The most parameters for which the matrix may be made.
        max_parameters: usize,
    },
    /// Newton steps by conjugate gradients on products with the Hessian (Newton-CG). `scipy.optimize.minimize(method="Newton-CG")`.
    NewtonCg,
    /// Newton steps of the whole Hessian, one product per parameter, shifted until it is positive definite.
    DenseNewton {
        /// The most parameters for which the matrix may be made.
        max_parameters: usize,
    },
    /// Levenberg and Marquardt's least squares: the closure gives residuals r of any shape, and |r|^2 / 2 is minimized. Marquardt's scaling
    /// and Nielsen's damping. `scipy.optimize.least_squares(method="lm")`.
    LevenbergMarquardt {
        /// First damping, above 0.
        lambda: f64,
        /// Up to as many parameters the Jacobian is made as a matrix; beyond, products with it are.
        max_parameters: usize,
    },
    /// Steps within a trust region by conjugate gradients (Steihaug, 1983). `scipy.optimize.minimize(method="trust-ncg")`.
    TrustRegion {
        /// First radius, above 0.
        radius: f64,
        /// Largest radius.
        max_radius: f64,
    },
    /// Alternating directions (Boyd et al., 2011) for the loss plus a penalty or constraint: a few gradient steps on the loss with a pull
    /// towards z, then the proximal map of the penalty. The parameters end as z, which satisfies the constraint.
    Admm {
        /// Penalty or constraint.
        prox: Prox,
        /// First weight of the pull, above 0.
        rho: f64,
        /// Rate of the gradient steps.
        lr: f64,
        /// Gradient steps per iteration, at least 1.
        inner: usize,
    },
}

impl Method {
    /// L-BFGS with 10 pairs and a strong Wolfe search.
    pub const fn lbfgs() -> Self {
        Method::Lbfgs { history: 10, line_search: true, lr: 1.0 }
    }

    /// BFGS for up to 16384 parameters, without damping.
    pub const fn bfgs() -> Self {
        Method::Bfgs { damping: false, max_parameters: 16384 }
    }

    /// DFP for up to 16384 parameters.
    pub const fn dfp() -> Self {
        Method::Dfp { max_parameters: 16384 }
    }

    /// Levenberg and Marquardt with a first damping of 1e-3, and a matrix up to 4096 parameters.
    pub const fn levenberg_marquardt() -> Self {
        Method::LevenbergMarquardt { lambda: 1e-3, max_parameters: 4096 }
    }

    /// A trust region that starts at radius 1 and ends at 100.
    pub const fn trust_region() -> Self {
        Method::TrustRegion { radius: 1.0, max_radius: 100.0 }
    }

    /// Its name in run configurations.
    pub const fn name(&self) -> &'static str {
        match self {
            Method::CoordinateDescent { .. } => "coordinate_descent",
            Method::ConjugateGradient => "conjugate_gradient",
            Method::Bfgs { .. } => "bfgs",
            Method::Lbfgs { .. } => "lbfgs",
            Method::Dfp { .. } => "dfp",
            Method::NewtonCg => "newton_cg",
            Method::DenseNewton { .. } => "newton",
            Method::LevenbergMarquardt { .. } => "levenberg_marquardt",
            Method::TrustRegion { .. } => "trust_region",
            Method::Admm { .. } => "admm",
        }
    }

    /// The most parameters, where a matrix of them is made.
    pub(crate) fn max_parameters(&self) -> Option<usize> {
        match *self {
            Method::Bfgs { max_parameters, .. }
            | Method::Dfp { max_parameters }
            | Method::DenseNewton { max_parameters } => Some(max_parameters),
            _ => None,
        }
    }

    /// Errors: constants out of range.
    pub(crate) fn check(&self) -> Result<()> {
        let positive = |arg: &'static str, x: f64| match x > 0.0 && x.is_finite() {
            true => Ok(()),
            false => Err(invalid("ClosureOptimizer", arg, "a finite value above 0", format!("{x}"))),
        };
        let some = |arg: &'static str, n: usize| match n {
            0 => Err(invalid("ClosureOptimizer", arg, "at least 1", "0")),
            _ => Ok(()),
        };
        match *self {
            Method::CoordinateDescent { lr } => positive("lr", lr),
            Method::Lbfgs { history, lr, .. } => positive("lr", lr).and(some("history", history)),
            Method::LevenbergMarquardt { lambda, .. } => positive("lambda", lambda),
            Method::TrustRegion { radius, max_radius } => {
                positive("radius", radius).and(positive("max_radius", max_radius))?;
                match radius <= max_radius {
                    true => Ok(()),
                    false => {
                        let expected = format!("at most max_radius = {max_radius}");
                        Err(invalid("ClosureOptimizer", "radius", expected, format!("{radius}")))
                    }
                }
            }
            Method::Admm { prox, rho, lr, inner } => {
                positive("rho", rho).and(positive("lr", lr)).and(some("inner", inner))?;
                check_prox("ClosureOptimizer", &prox)
            }
            _ => Ok(()),
        }
    }
}

/// Error unless the constants of a proximal map are in range.
pub(crate) fn check_prox(op: &'static str, prox: &Prox) -> Result<()> {
    match *prox {
        Prox::ElasticNet { l1, l2 } if !(l1 >= 0.0 && l2 >= 0.0 && l1.is_finite() && l2.is_finite()) => {
            Err(invalid(op, "prox", "finite penalties of at least 0", format!("{l1} and {l2}")))
        }
        Prox::Box { lo, hi } if lo.is_nan() || hi.is_nan() || lo > hi => {
            Err(invalid(op, "prox", "lo <= hi", format!("[{lo}, {hi}]")))
        }
        _ => Ok(()),
    }
}

/// When a minimization ends. Tolerances that are absent have the dtype's default.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Stop {
    /// Most iterations.
    pub max_iterations: u64,
    /// Most evaluations of the closure, products with the Hessian not included.
    pub max_evaluations: u64,
    /// Largest element of the gradient at a minimum; 1e-6 in f64, 1e-4 max(1, |f|) in f32.
    pub gtol: Option<f64>,
    /// Least change of the loss, relative to max(1, |f|); 1e-16 in f64, 1e-9 in f32.
    pub ftol: Option<f64>,
    /// Least step of any parameter; 0.
    pub xtol: f64,
    /// Evaluates the closure twice at the first point and refuses one that gives other bits the second time; on where debug assertions are.
    pub check_closure: bool,
}

impl Default for Stop {
    /// 1000 iterations, 10000 evaluations.
    fn default() -> Self {
        Stop {
            max_iterations: 1000,
            max_evaluations: 10_000,
            gtol: None,
            ftol: None,
            xtol: 0.0,
            check_closure: cfg!(debug_assertions),
        }
    }
}

impl Stop {
    /// The defaults with another number of iterations.
    pub fn iterations(n: u64) -> Self {
        Stop { max_iterations: n, ..Self::default() }
    }

    /// Sets the most evaluations.
    pub fn max_evaluations(mut self, n: u64) -> Self {
        self.max_evaluations = n;
        self
    }

    /// Sets the largest element of the gradient at a minimum.
    pub fn gtol(mut self, tol: f64) -> Self {
        self.gtol = Some(tol);
        self
    }

    /// Sets the least relative change of the loss.
    pub fn ftol(mut self, tol: f64) -> Self {
        self.ftol = Some(tol);
        self
    }

    /// Sets the least step.
    pub fn xtol(mut self, tol: f64) -> Self {
        self.xtol = tol;
        self
    }

    /// Whether the closure is examined at the first point.
    pub fn check_closure(mut self, on: bool) -> Self {
        self.check_closure = on;
        self
    }

    pub(crate) fn check(&self) -> Result<()> {
        for (arg, x) in [("gtol", self.gtol), ("ftol", self.ftol), ("xtol", Some(self.xtol))] {
            if let Some(x) = x.filter(|x| x.is_nan() || *x < 0.0) {
                return Err(invalid("minimize", arg, "a value of at least 0", format!("{x}")));
            }
        }
        Ok(())
    }

    pub(crate) fn converged(&self, dtype: DType, f: f64, g_max: f64) -> bool {
        let default = if dtype == DType::F64 { 1e-6 } else { 1e-4 * f.abs().max(1.0) };
        g_max <= self.gtol.unwrap_or(default)
    }

    pub(crate) fn small_change(&self, dtype: DType, before: f64, after: f64, step: f64) -> bool {
        let ftol = self.ftol.unwrap_or(if dtype == DType::F64 { 1e-16 } else { 1e-9 });
        (before - after).abs() <= ftol * before.abs().max(1.0) || step <= self.xtol
    }
}

/// Why a minimization ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Termination {
    /// The gradient is small enough.
    Converged,
    /// The loss or the parameters hardly change.
    SmallChange,
    /// As many iterations as allowed.
    MaxIterations,
    /// As many evaluations as allowed.
    MaxEvaluations,
    /// No better point along the steepest descent; the parameters are the best ones found.
    LineSearchFailed,
    /// The trust region (or the rate, or the damping's inverse) has become too small.
    RadiusTooSmall,
    /// The loss or its gradient is not finite; the parameters are the last for which they were.
    NonFinite,
}

/// What came of a minimization.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Outcome {
    /// Why it ended.
    pub termination: Termination,
    /// Iterations.
    pub iterations: u64,
    /// Evaluations of the closure.
    pub evaluations: u64,
    /// Products with the Hessian, or with a Jacobian and its transpose.
    pub products: u64,
    /// The loss at the parameters.
    pub loss: f64,
    /// Largest element of its gradient there.
    pub gradient: f64,
    /// Copies from device to host that were made, each of at most 64 bytes.
    pub reads: u64,
    /// Bytes of these copies.
    pub bytes_read: u64,
}
