//! A convolutional network on files in the format of MNIST.
//!
//!     TREFOIL_BACKEND=cpu cargo run --release -p trefoil-nn --example mnist_cnn
//!     TREFOIL_BACKEND=cpu cargo run --release -p trefoil-nn --example mnist_cnn -- FOLDER
//!
//! FOLDER has MNIST's four files, `train-images-idx3-ubyte` and so on, as they are or packed with gzip under these names. Without it, the
//! handwritten digits of this repository, enlarged to 28 by 28 pixels, are written as such files: 1,437 to learn from and 360 to test.
//! The network gets 0.944 of these 360 right.

mod common;

use std::path::Path;

use common::{Folder, Outcome, Steady, data, device, learned, options, show};
use trefoil::DType;
use trefoil::ops::activation::Activation;
use trefoil_nn::data::{Dataset, ResidentSource, read_idx_pair};
use trefoil_nn::layers::{
    BatchNormalization, Convolutional, Dense, Dropout, Flatten, MaxPooling, Sequential,
};
use trefoil_nn::optim::Schedule;
use trefoil_nn::trainer::{Objective, TrainOptions};
use trefoil_nn::{CrossEntropyLoss, InitContext, LayerExt, Optimizer, Result, Trainer};

/// Rows and columns of an image.
const SIDE: usize = 28;

fn main() -> Outcome {
    let device = device()?;
    let folder = Folder::open("mnist", write)?;
    let (train, test) = (images(&folder.path, "train")?, images(&folder.path, "t10k")?);
    println!("{} images, {} to test", train.len(), test.len());

    let model = network(&InitContext::new(&device, 1))?;
    println!("{} parameters", model.num_parameters());
    let (batch, epochs) = (64, 12);
    let steps = train.len().div_ceil(batch) as u64;
    let schedule = Schedule::Cosine { total: epochs * steps, min: 0.0 };
    let options = TrainOptions { schedule, ..options(epochs, batch) };
    let (optimizer, steady) = (Optimizer::adamw(&model, 1e-3, 0.01)?, Steady::of_epochs(&device, steps));
    let objective = Objective::Classify(CrossEntropyLoss::default());
    let mut trainer = Trainer::new(&model, optimizer, objective, &device, options)?.callback(&steady);
    let train = ResidentSource::new(&train, &device, DType::F32)?;
    let test = ResidentSource::new(&test, &device, DType::F32)?;
    let report = trainer.fit(&train, Some(&test), &mut show)?;
    steady.finish();

    let accuracy = report.history.last().and_then(|s| s.test_accuracy).unwrap_or(0.0);
    learned(format!("test accuracy {accuracy:.4}, at least 0.93 wanted"), accuracy >= 0.93)
}

/// Two convolutions with batch norm and pooling, dropout, two dense layers.
fn network(cx: &InitContext) -> Result<Sequential> {
    Ok(Sequential::new()
        .push(Convolutional::new(cx, 1, 16, 5)?.same_padding())
        .push(BatchNormalization::new(cx, 16)?.activation(Activation::Relu))
        .push(MaxPooling::new(2)?)
        .push(Convolutional::new(cx, 16, 32, 5)?.same_padding())
        .push(BatchNormalization::new(cx, 32)?.activation(Activation::Relu))
        .push(MaxPooling::new(2)?)
        .push(Dropout::new(cx, 0.25)?)
        .push(Flatten::default())
        .push(Dense::new(cx, 32 * SIDE / 4 * SIDE / 4, 64)?.activation(Activation::Relu))
        .push(Dense::new(cx, 64, 10)?))
}

/// The images of a part, one channel of values from 0 to 1, and their digits.
fn images(folder: &Path, part: &str) -> Result<Dataset> {
    let file = |what: &str| folder.join(format!("{part}-{what}-ubyte"));
    let read = read_idx_pair(file("images-idx3"), file("labels-idx1"))?.dataset(1.0 / 255.0)?;
    Dataset::new(read.features().to_vec(), &[1, SIDE, SIDE], read.targets().clone())
}

/// Writes the digits of the repository as four IDX files: after two zeros the type (8 for u8) and the number of axes, the sizes as big-endian
/// u32, the values.
fn write(folder: &Path) -> std::io::Result<()> {
    let text = std::fs::read_to_string(data("digits.csv"))?;
    let rows: Vec<Vec<u8>> =
        text.lines().skip(1).map(|l| l.split(',').filter_map(|v| v.parse().ok()).collect()).collect();
    let (train, test) = rows.split_at(1437);
    for (part, rows) in [("train", train), ("t10k", test)] {
        let n = (rows.len() as u32).to_be_bytes();
        let side = (SIDE as u32).to_be_bytes();
        let mut images = [&[0, 0, 8, 3], &n[..], &side, &side].concat();
        let mut labels = [&[0, 0, 8, 1], &n[..]].concat();
        for row in rows {
            images.extend((0..SIDE * SIDE).map(|i| enlarged(row, i / SIDE, i % SIDE)));
            labels.push(row[64]);
        }
        std::fs::write(folder.join(format!("{part}-images-idx3-ubyte")), images)?;
        std::fs::write(folder.join(format!("{part}-labels-idx1-ubyte")), labels)?;
    }
    Ok(())
}

/// A pixel of an image whose pixels from 0 to 16 became squares of three, with a border of two.
fn enlarged(digit: &[u8], y: usize, x: usize) -> u8 {
    let inside = 2..SIDE - 2;
    match inside.contains(&y) && inside.contains(&x) {
        true => (u16::from(digit[(y - 2) / 3 * 8 + (x - 2) / 3]) * 255 / 16) as u8,
        false => 0,
    }
}
