//! The optimizer: one loop for what searches along lines, and one each for what does not.

use std::fmt;

use super::admm::{Splitting, inner_steps};
use super::conjugate::Conjugate;
use super::coordinate::Blocks;
use super::least_squares::{Damping, LeastSquares};
use super::line_search::{Found, Search, Trial};
use super::method::{Method, Outcome, Stop, Termination};
use super::newton::{dense_newton, newton_cg, steihaug};
use super::quasi_newton::{Formula, Matrix, Memory, Pair};
use super::space::{Closure, Ray, Reading, Space};
use crate::core::autograd::no_grad;
use crate::core::error::{NnError, Result, invalid};
use crate::core::tensor::Tensor;
use crate::module::{Layer, LayerExt, Param};

/// What a method remembers from step to step.
enum State {
    Blocks(Blocks),
    Conjugate(Conjugate),
    Matrix(Matrix),
    Memory(Memory),
    Newton,
    Damping(Damping),
    Radius(f64),
    Splitting(Option<Splitting>),
}

/// Minimizes what a closure computes, by a [`Method`]: line searches, curvature, least squares, constraints.
///
/// The closure gives the loss (for [`Method::LevenbergMarquardt`] the residuals) and is called at points of the method's choice. It must be a
/// function of the parameters: one batch, dropout off or with a fixed generator. Vectors stay on the device. The host reads a few numbers, at
/// most 64 bytes at a time: once per evaluation, once per iteration, and once per product with the Hessian where there are some.
///
/// ```
/// use trefoil::{Registry, Selector, ops::activation::Activation};
/// use trefoil_nn::layers::{Dense, Sequential};
/// use trefoil_nn::optim::{ClosureOptimizer, Method, Stop};
/// use trefoil_nn::{InitContext, Layer, MseLoss, Tensor};
///
/// let device = Registry::default().open(&"cpu".parse::<Selector>()?)?;
/// let cx = InitContext::new(&device, 1);
/// let model = Sequential::new()
///     .push(Dense::new(&cx, 2, 4)?.activation(Activation::Tanh))
///     .push(Dense::new(&cx, 4, 1)?);
/// let x = Tensor::from_slice(&device, &[0f32, 0., 0., 1., 1., 0., 1., 1.], &[4, 2])?;
/// let y = Tensor::from_slice(&device, &[0f32, 1., 1., 0.], &[4, 1])?;
///
/// let mut optimizer = ClosureOptimizer::new(&model, Method::lbfgs())?;
/// let done = optimizer.minimize(&Stop::iterations(50), || MseLoss::default().forward(&model.forward(&x)?, &y))?;
/// assert!(done.loss < 0.01, "{done:?}");
/// # Ok::<(), trefoil_nn::NnError>(())
/// ```
///
/// The parameters move into one vector, as those of an [`Optimizer`](crate::Optimizer) do. What a method has learned (pairs, matrices, radius,
/// damping, duals) stays from call to call; it is not part of a checkpoint.
pub struct ClosureOptimizer {
    space: Space,
    method: Method,
    state: State,
    examined: bool,
    steps: u64,
}

impl fmt::Debug for ClosureOptimizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let n = self.space.parameters();
        f.debug_struct("ClosureOptimizer").field("method", &self.method).field("parameters", &n).finish()
    }
}

/// Counters when a call began.
struct Counts {
    evaluations: u64,
    products: u64,
    reads: u64,
    bytes: u64,
}

impl Counts {
    fn of(space: &Space) -> Self {
        let Space { evaluations, products, reads, bytes, .. } = *space;
        Counts { evaluations, products, reads, bytes }
    }

    fn outcome(&self, space: &Space, termination: Termination, iterations: u64, f: f64, g: f64) -> Outcome {
        Outcome {
            termination,
            iterations,
            evaluations: space.evaluations - self.evaluations,
            products: space.products - self.products,
            loss: f,
            gradient: g,
            reads: space.reads - self.reads,
            bytes_read: space.bytes - self.bytes,
        }
    }

    fn exhausted(&self, space: &Space, stop: &Stop, iterations: u64) -> Option<Termination> {
        if iterations >= stop.max_iterations {
            return Some(Termination::MaxIterations);
        }
        (self.left(space, stop) == 0).then_some(Termination::MaxEvaluations)
    }

    fn left(&self, space: &Space, stop: &Stop) -> u64 {
        stop.max_evaluations.saturating_sub(space.evaluations - self.evaluations)
    }
}

impl ClosureOptimizer {
    /// An optimizer of all parameters of a model but those that are frozen now. Errors: constants out of range; no parameters; several
    /// devices or dtypes, or others than f32 and f64; more parameters than the method makes matrices of; a parameter of another living
    /// optimizer.
    pub fn new(model: &dyn Layer, method: Method) -> Result<Self> {
        Self::with_parameters(model.named_parameters(), method)
    }

    /// An optimizer of parameters with their names. Errors: as [`new`](ClosureOptimizer::new).
    pub fn with_parameters(params: Vec<(String, Param)>, method: Method) -> Result<Self> {
        method.check()?;
        let count: usize =
            params.iter().filter(|(_, p)| p.requires_grad()).map(|(_, p)| p.get().numel()).sum();
        if let Some(most) = method.max_parameters().filter(|&most| count > most) {
            let expected = format!("at most {most} parameters for a matrix of their square");
            return Err(invalid("ClosureOptimizer", "params", expected, format!("{count}")));
        }
        let space = Space::new(params)?;
        let state = match method {
            Method::CoordinateDescent { lr } => State::Blocks(Blocks::new(&space, lr)),
            Method::ConjugateGradient => State::Conjugate(Conjugate::default()),
            Method::Bfgs { damping, .. } => State::Matrix(Matrix::new(Formula::Bfgs { damping })),
            Method::Dfp { .. } => State::Matrix(Matrix::new(Formula::Dfp)),
            Method::Lbfgs { history, .. } => State::Memory(Memory::new(history)),
            Method::NewtonCg | Method::DenseNewton { .. } => State::Newton,
            Method::LevenbergMarquardt { lambda, .. } => State::Damping(Damping::new(lambda)),
            Method::TrustRegion { radius, .. } => State::Radius(radius),
            Method::Admm { .. } => State::Splitting(None),
        };
        Ok(ClosureOptimizer { space, method, state, examined: false, steps: 0 })
    }

    /// The method.
    pub fn method(&self) -> Method {
        self.method
    }

    /// Iterations done in all calls.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// The approximation of the inverse Hessian of [`Method::Bfgs`] and [`Method::Dfp`], once there is one: of all parameters one behind the
    /// other, `[n, n]`.
    pub fn inverse_hessian(&self) -> Option<Tensor> {
        match &self.state {
            State::Matrix(m) => m.get().cloned(),
            _ => None,
        }
    }

    /// Iterates until one of the conditions of `stop` holds. The closure gives the loss, one element (for
    /// [`Method::LevenbergMarquardt`] residuals of any shape), from the parameters as they are when it is called. Gradients that the
    /// parameters had are overwritten. The parameters end at the best point that was found.
    ///
    /// Errors: those of the closure and of the device; [`NnError::NonDeterministicClosure`]; [`NnError::NotScalar`];
    /// [`NnError::NotTwiceDifferentiable`] for methods with products; tolerances out of range.
    pub fn minimize(&mut self, stop: &Stop, closure: impl FnMut() -> Result<Tensor>) -> Result<Outcome> {
        let mut closure = closure;
        stop.check()?;
        let done = no_grad(|| self.dispatch(stop, &mut closure))?;
        self.steps += done.iterations;
        Ok(done)
    }

    /// One iteration on what the closure computes, which may be another batch than in the step before. Errors: as
    /// [`minimize`](ClosureOptimizer::minimize).
    pub fn step_with(&mut self, closure: impl FnMut() -> Result<Tensor>) -> Result<Outcome> {
        self.minimize(&Stop::iterations(1), closure)
    }

    fn dispatch(&mut self, stop: &Stop, closure: &mut Closure<'_>) -> Result<Outcome> {
        match self.method {
            Method::CoordinateDescent { .. } => self.by_blocks(stop, closure),
            Method::LevenbergMarquardt { max_parameters, .. } => {
                self.least_squares(stop, closure, max_parameters)
            }
            Method::TrustRegion { max_radius, .. } => self.trust_region(stop, closure, max_radius),
            Method::Admm { .. } => self.alternate(stop, closure),
            _ => self.descend(stop, closure),
        }
    }

    /// Loss and gradient at the first point.
    fn begin(&mut self, stop: &Stop, closure: &mut Closure<'_>) -> Result<Reading> {
        let at = self.space.measure(closure, None)?;
        if stop.check_closure && !std::mem::replace(&mut self.examined, true) {
            self.space.check_closure(closure, at.f)?;
        }
        Ok(at)
    }

    /// The direction from the present gradient, and whether it is that of steepest descent.
    fn direction(&mut self, closure: &mut Closure<'_>, at: &Reading) -> Result<(Tensor, bool)> {
        Ok(match &mut self.state {
            State::Conjugate(c) => {
                let n = self.space.parameters();
                let steepest = c.is_empty();
                (c.direction(&self.space.g, at, n)?, steepest)
            }
            State::Matrix(m) => (m.direction(&mut self.space)?, m.is_empty()),
            State::Memory(m) => (m.direction(&self.space.g)?, m.is_empty()),
            _ => {
                self.space.prepare_products(closure)?;
                let d = match self.method {
                    Method::DenseNewton { .. } => dense_newton(&mut self.space)?,
                    _ => newton_cg(&mut self.space, at.gg.sqrt())?,
                };
                (d, false)
            }
        })
    }

    /// Forgets the curvature.
    fn restart(&mut self) {
        match &mut self.state {
            State::Conjugate(c) => c.clear(),
            State::Matrix(m) => m.clear(),
            State::Memory(m) => m.clear(),
            _ => {}
        }
    }

    /// Learns from a step `t` along d from a point with the gradient g0 and the slope `slope`.
    fn learn(
        &mut self,
        d: &Tensor,
        dd: f64,
        g0: &Tensor,
        start: &Reading,
        slope: f64,
        t: &Trial,
    ) -> Result<()> {
        if let State::Conjugate(c) = &mut self.state {
            c.went(d, start.gg);
            return Ok(());
        }
        if matches!(self.state, State::Newton) {
            return Ok(());
        }
        let pair = Pair {
            s: d.mul_scalar(t.a)?,
            y: self.space.g.sub(g0)?,
            sy: t.a * (t.at.slope - slope),
            ss: t.a * t.a * dd,
            yy: t.at.yy,
        };
        match &mut self.state {
            State::Matrix(m) => m.add(&mut self.space, pair, t.a, slope, g0),
            State::Memory(m) => {
                m.add(pair);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// c2 of the search.
    fn curvature_condition(&self) -> f64 {
        match self.method {
            Method::ConjugateGradient | Method::Dfp { .. } => 0.1,
            _ => 0.9,
        }
    }

    /// Search directions and line searches.
    fn descend(&mut self, stop: &Stop, closure: &mut Closure<'_>) -> Result<Outcome> {
        let counts = Counts::of(&self.space);
        let mut at = self.begin(stop, closure)?;
        let (mut iterations, mut retried) = (0, false);
        let mut before: Option<(f64, f64)> = None;
        let dtype = self.space.dtype();
        let ended = loop {
            if !at.is_finite() {
                break Termination::NonFinite;
            }
            if stop.converged(dtype, at.f, at.g_max) {
                break Termination::Converged;
            }
            if let Some(t) = counts.exhausted(&self.space, stop, iterations) {
                break t;
            }
            let (mut d, mut steepest) = match retried {
                true => (self.space.g.neg()?, true),
                false => self.direction(closure, &at)?,
            };
            let scalars = [self.space.g.dot(&d)?, d.dot(&d)?, d.norm(f64::INFINITY)?];
            let v = self.space.read(&scalars)?;
            let (mut slope, mut dd, mut d_max) = (v[0], v[1], v[2]);
            if slope.is_nan() || slope >= -1e-10 * (at.gg * dd).sqrt() {
                self.restart();
                (d, steepest) = (self.space.g.neg()?, true);
                (slope, dd, d_max) = (-at.gg, at.gg, at.g_max);
            }
            let (from, g0) = (self.space.x.copy()?, self.space.g.copy()?);
            let first = self.first_trial(&at, steepest, before, slope);
            let found = match self.method {
                Method::Lbfgs { line_search: false, .. } => {
                    self.space.move_to(&from, first, &d)?;
                    let at = self.space.measure(closure, Some(Ray { d: &d, g0: &g0 }))?;
                    Found::Step(Trial { a: first, at })
                }
                _ => {
                    let search = Search {
                        from: &from,
                        g0: &g0,
                        d: &d,
                        f0: at.f,
                        slope0: slope,
                        d_max,
                        c1: 1e-4,
                        c2: self.curvature_condition(),
                        first,
                        left: counts.left(&self.space, stop),
                    };
                    search.run(&mut self.space, closure, at)?
                }
            };
            let Found::Step(t) = found else {
                if counts.left(&self.space, stop) == 0 {
                    break Termination::MaxEvaluations;
                }
                if steepest {
                    break Termination::LineSearchFailed;
                }
                self.restart();
                retried = true;
                continue;
            };
            if !t.at.is_finite() {
                self.space.set(&from)?;
                self.space.g.assign(&g0)?;
                break Termination::NonFinite;
            }
            iterations += 1;
            retried = false;
            self.learn(&d, dd, &g0, &at, slope, &t)?;
            let (f, step) = (at.f, t.a * d_max);
            before = Some((t.a, slope));
            at = t.at;
            if stop.converged(dtype, at.f, at.g_max) {
                break Termination::Converged;
            }
            if stop.small_change(dtype, f, at.f, step) {
                break Termination::SmallChange;
            }
        };
        Ok(counts.outcome(&self.space, ended, iterations, at.f, at.g_max))
    }

    /// The first step that a search tries. `before`: step and slope of the last one.
    fn first_trial(&self, at: &Reading, steepest: bool, before: Option<(f64, f64)>, slope: f64) -> f64 {
        let short = (1.0 / at.g_abs).min(1.0);
        match (self.method, before) {
            (Method::Lbfgs { lr, .. }, _) => {
                if steepest {
                    short * lr
                } else {
                    lr
                }
            }
            (Method::ConjugateGradient, Some((a, s))) => (a * s / slope).clamp(1e-10, 1e3),
            _ if steepest => short,
            _ => 1.0,
        }
    }

    /// Block coordinate descent.
    fn by_blocks(&mut self, stop: &Stop, closure: &mut Closure<'_>) -> Result<Outcome> {
        let counts = Counts::of(&self.space);
        let mut at = self.begin(stop, closure)?;
        let (mut iterations, dtype) = (0, self.space.dtype());
        let ended = loop {
            if !at.is_finite() {
                break Termination::NonFinite;
            }
            if stop.converged(dtype, at.f, at.g_max) {
                break Termination::Converged;
            }
            if let Some(t) = counts.exhausted(&self.space, stop, iterations) {
                break t;
            }
            let most = self.space.evaluations + counts.left(&self.space, stop);
            let State::Blocks(blocks) = &mut self.state else { break Termination::LineSearchFailed };
            let Some((f, step)) = blocks.cycle(&mut self.space, closure, at.f, most)? else {
                break match counts.left(&self.space, stop) {
                    0 => Termination::MaxEvaluations,
                    _ => Termination::LineSearchFailed,
                };
            };
            iterations += 1;
            let scalars = self.space.gradient_scalars()?;
            let v = self.space.read(&scalars)?;
            let small = stop.small_change(dtype, at.f, f, step);
            at = Reading { f, g_max: v[0], gg: v[1], ..at };
            if small && !stop.converged(dtype, at.f, at.g_max) {
                break Termination::SmallChange;
            }
        };
        Ok(counts.outcome(&self.space, ended, iterations, at.f, at.g_max))
    }

    /// Steps within a trust region.
    fn trust_region(&mut self, stop: &Stop, closure: &mut Closure<'_>, most: f64) -> Result<Outcome> {
        let counts = Counts::of(&self.space);
        let mut at = self.begin(stop, closure)?;
        let (mut iterations, dtype) = (0, self.space.dtype());
        let negligible = if dtype == trefoil::DType::F64 { 1e-12 } else { 4e-7 };
        let ended = loop {
            if !at.is_finite() {
                break Termination::NonFinite;
            }
            if stop.converged(dtype, at.f, at.g_max) {
                break Termination::Converged;
            }
            if let Some(t) = counts.exhausted(&self.space, stop, iterations) {
                break t;
            }
            let State::Radius(radius) = &mut self.state else { break Termination::RadiusTooSmall };
            if *radius < 1e-12 {
                break Termination::RadiusTooSmall;
            }
            self.space.prepare_products(closure)?;
            let step = steihaug(&mut self.space, *radius, at.gg.sqrt())?;
            let (from, g0) = (self.space.x.copy()?, self.space.g.copy()?);
            self.space.move_to(&from, 1.0, &step.p)?;
            let new = self.space.measure(closure, None)?;
            iterations += 1;
            let decrease = at.f - new.f;
            let noise = negligible * at.f.abs();
            let ratio = match new.is_finite() {
                false => -1.0,
                true if decrease.abs() <= noise && step.predicted.abs() <= noise => 1.0,
                true => decrease / step.predicted,
            };
            if ratio.is_nan() || ratio < 0.25 {
                *radius = step.norm / 4.0;
            } else if ratio > 0.75 && step.on_boundary {
                *radius = (2.0 * *radius).min(most);
            }
            if ratio > 0.1 {
                let small = stop.small_change(dtype, at.f, new.f, step.max);
                at = new;
                if small && !stop.converged(dtype, at.f, at.g_max) {
                    break Termination::SmallChange;
                }
            } else {
                self.space.set(&from)?;
                self.space.g.assign(&g0)?;
            }
        };
        Ok(counts.outcome(&self.space, ended, iterations, at.f, at.g_max))
    }

    /// Levenberg-Marquardt.
    fn least_squares(&mut self, stop: &Stop, closure: &mut Closure<'_>, dense: usize) -> Result<Outcome> {
        let counts = Counts::of(&self.space);
        let residuals = self.space.call(closure)?;
        if stop.check_closure && !std::mem::replace(&mut self.examined, true) {
            let again = self.space.call(closure)?;
            examine(&mut self.space, &residuals, &again)?;
        }
        let mut model = LeastSquares::new(&mut self.space, residuals, dense)?;
        let (mut iterations, dtype) = (0, self.space.dtype());
        let ended = loop {
            if !model.f.is_finite() {
                break Termination::NonFinite;
            }
            if stop.converged(dtype, model.f, model.g_max) {
                break Termination::Converged;
            }
            if let Some(t) = counts.exhausted(&self.space, stop, iterations) {
                break t;
            }
            let State::Damping(damping) = &mut self.state else { break Termination::RadiusTooSmall };
            if damping.lambda > 1e20 {
                break Termination::RadiusTooSmall;
            }
            let tried = model.advance(&mut self.space, closure, damping)?;
            iterations += 1;
            match tried.residuals {
                Some(r) => {
                    let f = model.f;
                    model = LeastSquares::new(&mut self.space, r, dense)?;
                    let still = tried.step <= stop.xtol * (tried.x + stop.xtol);
                    let small = stop.small_change(dtype, f, tried.after, f64::INFINITY) || still;
                    if small && !stop.converged(dtype, model.f, model.g_max) {
                        break Termination::SmallChange;
                    }
                }
                None if !model.outlives_a_step() => {
                    let r = self.space.call(closure)?;
                    model = LeastSquares::new(&mut self.space, r, dense)?;
                }
                None => {}
            }
        };
        Ok(counts.outcome(&self.space, ended, iterations, model.f, model.g_max))
    }

    /// Alternating directions.
    fn alternate(&mut self, stop: &Stop, closure: &mut Closure<'_>) -> Result<Outcome> {
        let Method::Admm { prox, rho, lr, inner } = self.method else {
            return Err(invalid("minimize", "method", "ADMM", format!("{:?}", self.method)));
        };
        let counts = Counts::of(&self.space);
        let at = self.begin(stop, closure)?;
        let tol = stop.gtol.unwrap_or(if self.space.dtype() == trefoil::DType::F64 { 1e-6 } else { 1e-4 });
        let n = self.space.parameters();
        let State::Splitting(state) = &mut self.state else {
            return Err(invalid("minimize", "method", "ADMM", format!("{:?}", self.method)));
        };
        let mut s = match state.take() {
            Some(s) => s,
            None => Splitting::new(&self.space.x, rho)?,
        };
        let mut iterations = 0;
        let mut ended = if at.is_finite() { None } else { Some(Termination::NonFinite) };
        while ended.is_none() {
            ended = counts.exhausted(&self.space, stop, iterations);
            if ended.is_some() {
                break;
            }
            let last = (s.z.clone(), s.u.clone());
            inner_steps(&mut self.space, closure, &s, lr, inner)?;
            let sums = s.update(&prox, &self.space.x)?;
            let v = self.space.read(&sums)?;
            iterations += 1;
            if v.iter().any(|x| !x.is_finite()) {
                (s.z, s.u) = last;
                ended = Some(Termination::NonFinite);
                break;
            }
            let (residuals, _) = s.balance(&v)?;
            if residuals.small(n, tol, tol) {
                ended = Some(Termination::Converged);
            }
        }
        let z = s.z.clone();
        if iterations > 0 {
            self.space.set(&z)?;
        }
        self.state = State::Splitting(Some(s));
        let end = if iterations > 0 { self.space.measure(closure, None)? } else { at };
        let ended = ended.unwrap_or(Termination::MaxIterations);
        Ok(counts.outcome(&self.space, ended, iterations, end.f, end.g_max))
    }
}

/// Error if residuals of two evaluations at one point differ in a bit.
fn examine(space: &mut Space, first: &Tensor, second: &Tensor) -> Result<()> {
    let (a, b) = (first.detach(), second.detach());
    if a.shape() != b.shape() {
        return Err(invalid(
            "minimize",
            "closure",
            format!("shape {:?}", a.shape()),
            format!("{:?}", b.shape()),
        ));
    }
    let all: Vec<isize> = (0..a.rank() as isize).collect();
    let same = a.eq(&b)?.all(&all, false)?.to_dtype(a.dtype())?;
    let v = space.read(&[same, a.square()?.sum()?, b.square()?.sum()?])?;
    if v[1].is_finite() && v[0] == 0.0 {
        return Err(NnError::NonDeterministicClosure { first: 0.5 * v[1], second: 0.5 * v[2] });
    }
    Ok(())
}
