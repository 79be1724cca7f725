//! A layer of one's own: what has to be written, and what comes with it.
//!
//!     TREFOIL_BACKEND=cpu cargo run --release -p trefoil-nn --example custom_layer
//!
//! Radial basis functions: each unit has a place in the input space and answers to what is near it. They tell two interleaved spirals
//! apart, which no straight line does. From tensor operations a layer gets its gradients, its backends and its dtypes; from its fields,
//! which `derive(Layer)` shows, it gets optimizers, files, device moves and summaries.

mod common;

use common::{Outcome, Steady, device, learned, options};
use std::f64::consts::PI;
use trefoil::{DType, GpuError};
use trefoil_nn::data::{Dataset, ResidentSource, Targets};
use trefoil_nn::layers::{Dense, Sequential};
use trefoil_nn::trainer::{EpochStats, Objective};
use trefoil_nn::{
    CrossEntropyLoss, Device, Init, InitContext, Layer, LayerExt, Optimizer, Param, Result, Tensor, Trainer,
};

/// y_j = exp(-g_j |x - c_j|^2), `[B, in] -> [B, units]`.
#[derive(Debug, Layer)]
struct RadialBasis {
    centres: Param,
    /// Logarithms of g, so that g stays above 0.
    log_sharpness: Param,
}

impl RadialBasis {
    /// Centres from N(0, 1). Parameters come from the build's stream of random numbers, in its dtype and on its device.
    fn new(cx: &InitContext, inputs: usize, units: usize) -> Result<Self> {
        let normal = Init::Normal { mean: 0.0, std: 1.0 };
        Ok(RadialBasis {
            centres: Param::new(normal.tensor(cx, &[units, inputs], inputs, units)?),
            log_sharpness: Param::new(Tensor::full(cx.device(), cx.param_dtype(), &[units], 1.0)?),
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let (c, g) = (self.centres.get(), self.log_sharpness.get().exp()?);
        let (&[b, d], true) = (x.shape(), x.rank() == 2 && x.shape()[1] == c.shape()[1]) else {
            let expected = format!("shape [B, {}]", c.shape()[1]);
            return Err(GpuError::invalid("RadialBasis", "x", expected, format!("{:?}", x.shape())).into());
        };
        // [B, 1, in] - [units, in], squared and summed over the last axis.
        let apart = (x.reshape(&[b, 1, d])? - c)?;
        (-apart.square()?.sum_axes(&[-1], false)? * g)?.exp()
    }
}

/// Compares a gradient with differences of the output's sum, in f64.
fn check_gradient() -> Outcome {
    let device: Device = std::sync::Arc::new(trefoil::CpuBackend::new());
    let layer = RadialBasis::new(&InitContext::new(&device, 3).dtype(DType::F64), 2, 4)?;
    let x = [0.3f64, -0.5, 0.9, 0.1];
    let leaf = Tensor::from_slice(&device, &x, &[2, 2])?.with_grad();
    layer.forward(&leaf)?.sum()?.backward()?;
    let gradient = leaf.grad().ok_or("no gradient")?.to_vec::<f64>()?;
    for i in 0..4 {
        let at = |h: f64| -> Result<f64> {
            let mut moved = x;
            moved[i] += h;
            layer.forward(&Tensor::from_slice(&device, &moved, &[2, 2])?)?.sum()?.item()
        };
        let difference = (at(1e-5)? - at(-1e-5)?) / 2e-5;
        assert!((gradient[i] - difference).abs() < 1e-8, "{} and {difference}", gradient[i]);
    }
    println!("the gradient agrees with finite differences");
    Ok(())
}

/// Points along two spirals.
fn spirals(n: usize, phase: f64) -> Result<Dataset> {
    let point = |i: usize| {
        let (along, class) = ((i / 2) as f64 / (n / 2) as f64, (i % 2) as f64);
        let (radius, angle) = (0.2 + 1.3 * along, 3.0 * PI * along + PI * class + phase);
        [(radius * angle.cos()) as f32, (radius * angle.sin()) as f32]
    };
    let classes = (0..n as i64).map(|i| i % 2).collect();
    Dataset::new((0..n).flat_map(point).collect(), &[2], Targets::Classes(classes))
}

fn main() -> Outcome {
    check_gradient()?;
    let device = device()?;
    // Test points lie beside the training points.
    let train = ResidentSource::new(&spirals(400, 0.0)?, &device, DType::F32)?;
    let test = ResidentSource::new(&spirals(200, 0.05)?, &device, DType::F32)?;
    let cx = InitContext::new(&device, 1);
    let model = Sequential::new().push(RadialBasis::new(&cx, 2, 48)?).push(Dense::new(&cx, 48, 2)?);

    let steady = Steady::new(&device, 9);
    let optimizer = Optimizer::adam(&model, 2e-2)?;
    let objective = Objective::Classify(CrossEntropyLoss::default());
    let mut trainer =
        Trainer::new(&model, optimizer, objective, &device, options(150, 50))?.callback(&steady);
    let mut show = |s: &EpochStats| !s.epoch.is_multiple_of(25) || common::show(s);
    let report = trainer.fit(&train, Some(&test), &mut show)?;
    steady.finish();
    for (name, p) in model.named_parameters() {
        println!("{name:<16} {:?}", p.get().shape());
    }
    let accuracy = report.history.last().and_then(|s| s.test_accuracy).unwrap_or(0.0);
    learned(format!("test accuracy {accuracy:.4}, at least 0.98 wanted"), accuracy >= 0.98)
}
