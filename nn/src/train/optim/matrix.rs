//! Optimizers of single matrices, as operations on tensors: Muon and Adafactor.

use trefoil::DType;

use crate::core::autograd::no_grad;
use crate::core::error::{NnError, Result, invalid};
use crate::core::tensor::Tensor;
use crate::module::{Param, check_unique};

/// Coefficients of the quintic Newton-Schulz iteration (Jordan, 2024).
const NEWTON_SCHULZ: [f64; 3] = [3.4445, -4.775, 2.0315];

fn check_rate(op: &'static str, arg: &'static str, x: f64) -> Result<()> {
    match x >= 0.0 && x.is_finite() {
        true => Ok(()),
        false => Err(invalid(op, arg, "a finite value of at least 0", format!("{x}"))),
    }
}

/// The trainable floats of a list. Errors: none; two of one name.
fn trainable(op: &'static str, params: Vec<(String, Param)>) -> Result<Vec<(String, Param)>> {
    check_unique(params.iter().map(|(name, _)| name))?;
    let params: Vec<_> = params.into_iter().filter(|(_, p)| p.requires_grad()).collect();
    match params.is_empty() {
        true => Err(invalid(op, "params", "at least one parameter", "none (all are frozen?)")),
        false => Ok(params),
    }
}

/// State in the accumulator's dtype.
fn zeros(t: &Tensor, shape: &[usize]) -> Result<Tensor> {
    Tensor::zeros(t.device(), t.dtype().accumulator(), shape)
}

/// `w (1 - decay) - rate u`, written into the parameter.
fn update(w: &Tensor, decay: f64, u: &Tensor) -> Result<()> {
    let wide = w.detach().to_dtype(u.dtype())?;
    let new = if decay == 0.0 { wide.sub(u)? } else { wide.mul_scalar(1.0 - decay)?.sub(u)? };
    w.detach().assign(&new.to_dtype(w.dtype())?)
}

/// The nearest orthogonal matrix to g, roughly: all singular values are brought to about 1 by `steps` Newton-Schulz iterations. Works in
/// g's dtype. Source `torch.optim.Muon`, which works in bf16. Errors: another rank than 2.
pub fn newton_schulz(g: &Tensor, steps: usize) -> Result<Tensor> {
    let &[rows, columns] = g.shape() else {
        return Err(invalid("newton_schulz", "g", "a matrix", format!("shape {:?}", g.shape())));
    };
    let [a, b, c] = NEWTON_SCHULZ;
    let tall = rows > columns;
    let x = if tall { g.t()?.contiguous()? } else { g.contiguous()? };
    let mut x = x.div(&x.norm(2.0)?.clamp(Some(1e-7), None)?)?;
    for _ in 0..steps {
        let gram = x.matmul(&x.t()?)?;
        let inner = gram.mul_scalar(b)?.add_scaled(&gram.matmul(&gram)?, c)?;
        x = x.mul_scalar(a)?.add(&inner.matmul(&x)?)?;
    }
    if tall { x.t()?.contiguous() } else { Ok(x) }
}

/// Momentum whose steps are orthogonalized (Jordan, 2024), for matrices of hidden layers; biases, embeddings and output layers belong to
/// an [`Optimizer`](crate::Optimizer) of their own. Source `torch.optim.Muon`: b = mu b + (1 - mu) g, u = g + mu (b - g),
/// w = w (1 - lr wd) - lr sqrt(max(1, rows / columns)) [`newton_schulz`](newton_schulz)(u). Nothing is read by the host.
#[derive(Debug)]
pub struct Muon {
    params: Vec<(String, Param)>,
    momentum: Vec<Tensor>,
    lr: f64,
    mu: f64,
    weight_decay: f64,
    iterations: usize,
}

impl Muon {
    /// For matrices of floats, with momentum 0.95, weight decay 0.1 and 5 iterations. Errors: `Invalid` for other ranks, no parameters,
    /// a rate that is negative or not finite; [`NnError::DuplicateName`].
    pub fn new(params: Vec<(String, Param)>, lr: f64) -> Result<Self> {
        const OP: &str = "Muon";
        let params = trainable(OP, params)?;
        let state = |(name, p): &(String, Param)| {
            let t = p.get();
            match t.rank() {
                2 => zeros(&t, t.shape()),
                _ => {
                    let what = format!("has shape {:?}; Muon takes matrices", t.shape());
                    Err(NnError::Param { name: name.clone(), what })
                }
            }
        };
        let momentum = params.iter().map(state).collect::<Result<_>>()?;
        let mut o = Muon { params, momentum, lr: 0.0, mu: 0.95, weight_decay: 0.1, iterations: 5 };
        o.set_lr(lr)?;
        Ok(o)
    }

    /// Sets the momentum. Errors: outside of [0, 1).
    pub fn momentum(mut self, mu: f64) -> Result<Self> {
        if !(0.0..1.0).contains(&mu) {
            return Err(invalid("Muon", "momentum", "a value in [0, 1)", format!("{mu}")));
        }
        self.mu = mu;
        Ok(self)
    }

    /// Sets the decoupled weight decay. Errors: negative or not finite.
    pub fn weight_decay(mut self, decay: f64) -> Result<Self> {
        check_rate("Muon", "weight_decay", decay)?;
        self.weight_decay = decay;
        Ok(self)
    }

    /// Sets the learning rate. Errors: negative or not finite.
    pub fn set_lr(&mut self, lr: f64) -> Result<()> {
        check_rate("Muon", "lr", lr)?;
        self.lr = lr;
        Ok(())
    }

    /// Forgets the gradients of the parameters.
    pub fn zero_grad(&self) -> Result<()> {
        self.params.iter().try_for_each(|(_, p)| p.get().zero_grad())
    }

    /// The momentum of each parameter under `momentum.name`; shares memory with the optimizer.
    pub fn state_tensors(&self) -> Vec<(String, Tensor)> {
        let names = self.params.iter().map(|(name, _)| format!("momentum.{name}"));
        names.zip(self.momentum.iter().cloned()).collect()
    }

    /// One update of the parameters that have a gradient. Errors: those of the device.
    pub fn step(&mut self) -> Result<()> {
        no_grad(|| {
            for ((_, p), m) in self.params.iter().zip(&self.momentum) {
                let w = p.get();
                let Some(g) = w.grad() else { continue };
                let g = g.to_dtype(m.dtype())?;
                m.assign(&m.lerp(&g, 1.0 - self.mu)?)?;
                let u = newton_schulz(&g.lerp(m, self.mu)?, self.iterations)?;
                let (rows, columns) = (w.shape()[0] as f64, w.shape()[1].max(1) as f64);
                let rate = self.lr * (rows / columns).max(1.0).sqrt();
                update(&w, self.lr * self.weight_decay, &u.mul_scalar(rate)?)?;
            }
            Ok(())
        })
    }
}

/// The spacing of numbers at 1.
fn epsilon(dtype: DType) -> f64 {
    2f64.powi(match dtype {
        DType::F64 => -52,
        DType::F16 => -10,
        DType::Bf16 => -7,
        _ => -23,
    })
}

/// Second moments of a parameter: means of rows and columns, or all of a vector.
#[derive(Debug)]
enum Moments {
    Factored { rows: Tensor, columns: Tensor },
    Whole(Tensor),
}

/// Adam without momentum whose second moments of matrices are means of rows and of columns (Shazeer and Stern, 2018), with steps
/// relative to the parameters and clipped: memory for two vectors instead of a matrix. Source `torch.optim.Adafactor`. Tensors of more
/// axes are lists of matrices of their last two. Nothing is read by the host.
#[derive(Debug)]
pub struct Adafactor {
    params: Vec<(String, Param)>,
    moments: Vec<Moments>,
    lr: f64,
    weight_decay: f64,
    steps: u64,
}

/// beta2 of step t is 1 - t^DECAY; the least scale of a parameter; the largest root mean square of an update.
const DECAY: f64 = -0.8;
const LEAST_SCALE: f64 = 1e-3;
const CLIP: f64 = 1.0;

impl Adafactor {
    /// For floats. `lr` is the largest relative step (PyTorch: 1e-2); the present one is min(lr, 1 / sqrt(t)). Errors: `Invalid` for no
    /// parameters, a rate that is negative or not finite; [`NnError::DuplicateName`].
    pub fn new(params: Vec<(String, Param)>, lr: f64) -> Result<Self> {
        let params = trainable("Adafactor", params)?;
        let state = |(_, p): &(String, Param)| -> Result<Moments> {
            let t = p.get();
            let (s, r) = (t.shape(), t.rank());
            if r < 2 {
                return Ok(Moments::Whole(zeros(&t, s)?));
            }
            let rows = [&s[..r - 1], &[1]].concat();
            let columns = [&s[..r - 2], &[1, s[r - 1]]].concat();
            Ok(Moments::Factored { rows: zeros(&t, &rows)?, columns: zeros(&t, &columns)? })
        };
        let moments = params.iter().map(state).collect::<Result<_>>()?;
        let mut o = Adafactor { params, moments, lr: 0.0, weight_decay: 0.0, steps: 0 };
        o.set_lr(lr)?;
        Ok(o)
    }

    /// Sets the decoupled weight decay. Errors: negative or not finite.
    pub fn weight_decay(mut self, decay: f64) -> Result<Self> {
        check_rate("Adafactor", "weight_decay", decay)?;
        self.weight_decay = decay;
        Ok(self)
    }

    /// Sets the largest relative step. Errors: negative or not finite.
    pub fn set_lr(&mut self, lr: f64) -> Result<()> {
        check_rate("Adafactor", "lr", lr)?;
        self.lr = lr;
        Ok(())
    }

    /// Number of steps so far.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Sets the number of steps, with [`state_tensors`](Adafactor::state_tensors) what a run that goes on needs.
    pub fn set_steps(&mut self, steps: u64) {
        self.steps = steps;
    }

    /// Forgets the gradients of the parameters.
    pub fn zero_grad(&self) -> Result<()> {
        self.params.iter().try_for_each(|(_, p)| p.get().zero_grad())
    }

    /// The moments of each parameter under `rows.name` and `columns.name`, or `variance.name`; they share memory with the optimizer.
    pub fn state_tensors(&self) -> Vec<(String, Tensor)> {
        let mut all = vec![];
        for ((name, _), m) in self.params.iter().zip(&self.moments) {
            match m {
                Moments::Factored { rows, columns } => {
                    all.push((format!("rows.{name}"), rows.clone()));
                    all.push((format!("columns.{name}"), columns.clone()));
                }
                Moments::Whole(v) => all.push((format!("variance.{name}"), v.clone())),
            }
        }
        all
    }

    /// One update of the parameters that have a gradient. Errors: those of the device.
    pub fn step(&mut self) -> Result<()> {
        let t = self.steps as f64 + 1.0;
        let (share, relative) = (t.powf(DECAY), self.lr.min(1.0 / t.sqrt()));
        no_grad(|| {
            for ((_, p), m) in self.params.iter().zip(&self.moments) {
                let w = p.get();
                let Some(g) = w.grad() else { continue };
                let g = g.to_dtype(w.dtype().accumulator())?;
                let wide = w.detach().to_dtype(g.dtype())?;
                let eps = epsilon(w.dtype());
                let u = g.mul(&m.estimate(&g, share, eps)?.clamp(Some(eps * eps), None)?.rsqrt()?)?;
                let root = |t: &Tensor| t.square()?.mean()?.sqrt();
                let scale = root(&wide)?.clamp(Some(LEAST_SCALE), None)?.mul_scalar(relative)?;
                let clip = root(&u)?.mul_scalar(1.0 / CLIP)?.clamp(Some(1.0), None)?;
                update(&w, self.lr * self.weight_decay, &u.mul(&scale.div(&clip)?)?)?;
            }
            Ok::<_, NnError>(())
        })?;
        self.steps += 1;
        Ok(())
    }
}

impl Moments {
    /// Takes the squares of a gradient in with the weight `share`; the estimate of their mean.
    fn estimate(&self, g: &Tensor, share: f64, eps: f64) -> Result<Tensor> {
        let squares = g.square()?;
        match self {
            Moments::Whole(v) => {
                v.assign(&v.lerp(&squares, share)?)?;
                Ok(v.clone())
            }
            Moments::Factored { rows, columns } => {
                rows.assign(&rows.lerp(&squares.mean_axes(&[-1], true)?, share)?)?;
                columns.assign(&columns.lerp(&squares.mean_axes(&[-2], true)?, share)?)?;
                let mean = rows.mean_axes(&[-2], true)?.clamp(Some(eps), None)?;
                rows.mul(columns)?.div(&mean)
            }
        }
    }
}
