//! Handwritten digits by a multilayer perceptron: the smallest complete training run.
//!
//!     TREFOIL_BACKEND=cpu cargo run --release -p trefoil-nn --example digits_mlp
//!
//! The last 360 images come from other writers than the first 1,437, which is why such a network ends near 0.92 on them and not near 0.98.
//! What it should see for its answers is shown at the end: the confusion matrix.

mod common;

use common::{Outcome, Steady, data, device, learned, options, show};
use trefoil::DType;
use trefoil::ops::activation::Activation;
use trefoil_nn::data::{CsvOptions, ResidentSource, Source, read_csv};
use trefoil_nn::layers::{Dense, Dropout, Sequential};
use trefoil_nn::metrics::{Average, Classification, ConfusionMatrix, Metric, Score};
use trefoil_nn::optim::Schedule;
use trefoil_nn::trainer::{Objective, TrainOptions};
use trefoil_nn::{CrossEntropyLoss, InitContext, Layer, LayerExt, Optimizer, Trainer, autograd};

fn main() -> Outcome {
    let device = device()?;

    // 64 pixels from 0 to 16 and the digit in the last column. The first rows train, the last ones test; both stay on the device.
    let rows = read_csv(data("digits.csv"), &CsvOptions { scale: 1.0 / 16.0, ..CsvOptions::default() })?;
    let train = ResidentSource::new(&rows.slice(0, 1437)?, &device, DType::F32)?;
    let test = ResidentSource::new(&rows.slice(1437, 360)?, &device, DType::F32)?;

    let cx = InitContext::new(&device, 1);
    let model = Sequential::new()
        .push(Dense::new(&cx, 64, 128)?.activation(Activation::Relu))
        .push(Dropout::new(&cx, 0.3)?)
        .push(Dense::new(&cx, 128, 64)?.activation(Activation::Relu))
        .push(Dense::new(&cx, 64, 10)?);

    // The learning rate falls to zero along a cosine.
    let (epochs, batch) = (40, 64);
    let steps = 1437_u64.div_ceil(batch as u64);
    let schedule = Schedule::Cosine { total: epochs * steps, min: 0.0 };
    let optimizer = Optimizer::adamw(&model, 3e-3, 0.01)?;
    let objective = Objective::Classify(CrossEntropyLoss::default());
    let steady = Steady::of_epochs(&device, steps);
    let mut trainer = Trainer::new(
        &model,
        optimizer,
        objective,
        &device,
        TrainOptions { schedule, ..options(epochs, batch) },
    )?
    .metric(Classification::new(&device, 10, Score::F1, Average::Macro)?)
    .callback(&steady);
    let report = trainer.fit(&train, Some(&test), &mut |s| !s.epoch.is_multiple_of(5) || show(s))?;
    steady.finish();

    // The same numbers by hand: a pass over the test data without recording, counted on the device and read back once.
    model.eval();
    let mut matrix = ConfusionMatrix::new(&device, 10)?;
    autograd::no_grad(|| {
        test.epoch(None, 60)?.try_for_each(|batch| {
            let b = batch?;
            matrix.update(&model.forward(&b.x)?, &b.y)
        })
    })?;
    println!("digits (rows) and what they were taken for (columns):");
    for row in matrix.counts()?.rows() {
        row.iter().for_each(|n| print!("{n:>4}"));
        println!();
    }

    let last = report.history.last().ok_or("no epochs")?;
    let (accuracy, f1) = (last.test_accuracy.unwrap_or(0.0), last.metrics["f1"]);
    println!("macro F1 {f1:.4}");
    learned(format!("test accuracy {accuracy:.4}, at least 0.91 wanted"), accuracy >= 0.91)
}
