//! A curve fitted by AdamW, by L-BFGS and by Levenberg-Marquardt: the same small network from the same start, and how many evaluations of
//! its loss each takes.
//!
//!     TREFOIL_BACKEND=cpu cargo run --release -p trefoil-nn --example second_order
//!
//! Where all data is one batch and the network is small, curvature pays: AdamW has 2,000 evaluations, L-BFGS 400, Levenberg-Marquardt 100
//! (each point that it accepts costs one backward pass per residual besides), and both end below AdamW. The first argument names a file for the three curves, an SVG.

mod common;

use std::cell::RefCell;

use common::{Outcome, device, learned};
use trefoil::DType;
use trefoil::ops::activation::Activation;
use trefoil_nn::layers::{Dense, Sequential};
use trefoil_nn::losses::Criterion;
use trefoil_nn::optim::{ClosureOptimizer, Method, Stop};
use trefoil_nn::plot::{Chart, Series, svg};
use trefoil_nn::{Device, InitContext, Layer, MseLoss, Optimizer, Result, Tensor};

/// Evaluations of AdamW.
const MANY: usize = 2000;

struct Problem {
    x: Tensor,
    y: Tensor,
    loss: MseLoss,
}

impl Problem {
    /// A decaying wave at 64 points.
    fn new(device: &Device) -> Result<Self> {
        let t = Tensor::linspace(device, DType::F32, -1.0, 1.0, 64)?;
        let wave = t.mul_scalar(4.0)?.sin()?.mul(&t.neg()?.exp()?)?.mul_scalar(0.5)?;
        Ok(Problem { x: t.unsqueeze(1)?, y: wave.unsqueeze(1)?, loss: MseLoss::default() })
    }

    fn model(device: &Device) -> Result<Sequential> {
        let cx = InitContext::new(device, 3);
        Ok(Sequential::new()
            .push(Dense::new(&cx, 1, 12)?.activation(Activation::Tanh))
            .push(Dense::new(&cx, 12, 1)?))
    }

    fn loss(&self, model: &dyn Layer) -> Result<Tensor> {
        self.loss.forward(&model.forward(&self.x)?, &self.y)
    }

    /// Residuals r with |r|^2 / 2 = the loss.
    fn residuals(&self, model: &dyn Layer) -> Result<Tensor> {
        self.loss.residuals(&model.forward(&self.x)?, &self.y).unwrap_or_else(|| self.loss(model))
    }

    fn adamw(&self, device: &Device) -> Result<Series> {
        let model = Self::model(device)?;
        let mut optimizer = Optimizer::adamw(&model, 1e-2, 0.0)?;
        let mut losses = vec![];
        for _ in 0..MANY {
            optimizer.zero_grad()?;
            let loss = self.loss(&model)?;
            loss.backward()?;
            optimizer.step()?;
            losses.push(loss.detach());
        }
        curve("AdamW", &losses)
    }

    /// By a method that evaluates the loss itself.
    fn by(&self, device: &Device, name: &str, method: Method, evaluations: u64) -> Result<Series> {
        let model = Self::model(device)?;
        let mut optimizer = ClosureOptimizer::new(&model, method)?;
        let losses = RefCell::new(vec![]);
        let note = |loss: &Tensor| losses.borrow_mut().push(loss.detach());
        // No tolerance stops before the evaluations are spent.
        let stop = Stop::default().max_evaluations(evaluations).gtol(0.0).ftol(0.0).check_closure(false);
        let done = optimizer.minimize(&stop, || match method {
            Method::LevenbergMarquardt { .. } => {
                let r = self.residuals(&model)?;
                note(&r.detach().square()?.sum()?.mul_scalar(0.5)?);
                Ok(r)
            }
            _ => {
                let loss = self.loss(&model)?;
                note(&loss);
                Ok(loss)
            }
        })?;
        println!(
            "{name}: loss {:.3e} after {} iterations, {} evaluations ({:?})",
            done.loss, done.iterations, done.evaluations, done.termination
        );
        curve(name, &losses.into_inner())
    }
}

/// Decimal logarithms of the least loss so far, read back once.
fn curve(name: &str, losses: &[Tensor]) -> Result<Series> {
    let all = Tensor::stack(0, &losses.iter().collect::<Vec<_>>())?.to_vec::<f32>()?;
    let mut least = f32::INFINITY;
    let points = all.iter().enumerate().map(|(i, &loss)| {
        least = least.min(loss);
        (i as f64 + 1.0, f64::from(least).log10())
    });
    Ok(Series { name: name.into(), points: points.collect() })
}

fn main() -> Outcome {
    let device = device()?;
    let problem = Problem::new(&device)?;
    let adamw = problem.adamw(&device)?;
    let lbfgs = problem.by(&device, "L-BFGS", Method::lbfgs(), 400)?;
    let marquardt = problem.by(&device, "Levenberg-Marquardt", Method::levenberg_marquardt(), 100)?;
    let last = |s: &Series| s.points.last().map_or(f64::NAN, |p| p.1);
    let ends = [last(&adamw), last(&lbfgs), last(&marquardt)];
    println!("least loss of AdamW after {MANY} evaluations: 1e{:.2}", ends[0]);

    if let Some(file) = std::env::args_os().nth(1) {
        let (title, x) = ("log10 of the loss".into(), "evaluations".into());
        std::fs::write(&file, svg(&[Chart { title, x, series: vec![adamw, lbfgs, marquardt], log: false }]))?;
    }
    let figure =
        format!("L-BFGS at 1e{:.2}, Levenberg-Marquardt at 1e{:.2}, both below AdamW", ends[1], ends[2]);
    learned(figure, ends[1] < ends[0] && ends[2] < ends[0])
}
