//! Handwritten digits by a convolutional network.
//!
//!     TREFOIL_BACKEND=cpu cargo run --release -p trefoil-nn --example digits_cnn
//!
//! Fifteen epochs over the first 1,437 images, then the accuracy on the 360 that the network has not seen; PyTorch reaches 0.964 with the
//! same network (`digits_cnn.py`). With `-- bf16` or `-- f16` behind the command, parameters and activations have 16 bits.

mod common;

use common::{Outcome, Steady, data, device, dtype, learned, mixed, options, show};
use trefoil::ops::activation::Activation;
use trefoil_nn::data::{CsvOptions, Dataset, ResidentSource, read_csv};
use trefoil_nn::layers::{
    Activate, BatchNormalization, Convolutional, Dense, Dropout, Flatten, MaxPooling, Sequential,
};
use trefoil_nn::summary::summary;
use trefoil_nn::trainer::Objective;
use trefoil_nn::{CrossEntropyLoss, InitContext, Optimizer, Result, Tensor, Trainer};

fn main() -> Outcome {
    let (device, dtype) = (device()?, dtype()?);

    // Pixels from 0 to 16 become 0 to 1; an image is one channel of 8 by 8. Both parts lie on the device from here on.
    let rows = read_csv(data("digits.csv"), &CsvOptions { scale: 1.0 / 16.0, ..CsvOptions::default() })?;
    let images = Dataset::new(rows.features().to_vec(), &[1, 8, 8], rows.targets().clone())?;
    let train = ResidentSource::new(&images.slice(0, 1437)?, &device, dtype)?;
    let test = ResidentSource::new(&images.slice(1437, 360)?, &device, dtype)?;

    // Layers draw their weights from one seed, in order: the same network on every backend.
    let cx = InitContext::new(&device, 1).dtype(dtype);
    let model = network(&cx)?;
    println!("{}", summary(&model, &[Tensor::zeros(&device, dtype, &[64, 1, 8, 8])?])?);

    let optimizer = mixed(Optimizer::adamw(&model, 1e-3, 0.01)?, dtype)?;
    let objective = Objective::Classify(CrossEntropyLoss::default());
    let steady = Steady::of_epochs(&device, 1437_u64.div_ceil(64));
    let mut trainer = Trainer::new(&model, optimizer, objective, &device, options(15, 64))?.callback(&steady);
    let report = trainer.fit(&train, Some(&test), &mut show)?;
    steady.finish();

    // The first epoch warms caches and compiles kernels.
    let rest: Vec<f64> = report.history[1..].iter().map(|s| s.seconds).collect();
    println!("median epoch: {:.3} s", median(rest));
    let accuracy = report.history.last().and_then(|s| s.test_accuracy).unwrap_or(0.0);
    learned(format!("test accuracy {accuracy:.4}, at least 0.955 wanted"), accuracy >= 0.955)
}

/// Two convolutions with batch norm, pooling, dropout, two dense layers.
fn network(cx: &InitContext) -> Result<Sequential> {
    Ok(Sequential::new()
        .push(Convolutional::new(cx, 1, 16, 3)?.same_padding())
        .push(BatchNormalization::new(cx, 16)?)
        .push(Activate(Activation::Relu))
        .push(Convolutional::new(cx, 16, 32, 3)?.same_padding())
        .push(BatchNormalization::new(cx, 32)?)
        .push(Activate(Activation::Relu))
        .push(MaxPooling::new(2)?)
        .push(Dropout::new(cx, 0.25)?)
        .push(Flatten::default())
        .push(Dense::new(cx, 512, 64)?.activation(Activation::Relu))
        .push(Dense::new(cx, 64, 10)?))
}

fn median(mut seconds: Vec<f64>) -> f64 {
    seconds.sort_by(f64::total_cmp);
    seconds[seconds.len() / 2]
}
