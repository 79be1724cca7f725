//! Handwritten digits by a capsule network.
//!
//!     TREFOIL_BACKEND=cpu cargo run --release -p trefoil-nn --example capsules
//!
//! The network of Sabour, Frosst and Hinton (2017) in small: a convolution, capsules of its channels, and one capsule for each digit, whose
//! length says how sure the network is. A decoder makes the image again of the right digit's capsule, so that the capsule must hold more than
//! its name. Ends in the accuracy on 360 images that the network has not seen.

mod common;

use common::{Outcome, Steady, data, device, learned};
use trefoil::DType;
use trefoil::ops::activation::Activation;
use trefoil_nn::data::{CsvOptions, Dataset, Order, ResidentSource, Source, read_csv};
use trefoil_nn::layers::{Convolutional, DigitCapsule, Flatten, PrimaryCapsule, Reconstruction};
use trefoil_nn::metrics::count_correct;
use trefoil_nn::{InitContext, Layer, LayerExt, MseLoss, Optimizer, Result, Tensor, autograd};

/// Digits, and numbers of a digit's capsule.
const CLASSES: usize = 10;
const DIM: usize = 16;
/// Weight of the mean squared error of the images beside the margins, the paper's 0.0005 for each of 784 pixels.
const RECONSTRUCTION: f64 = 0.392;

#[derive(Debug, Layer)]
struct CapsuleNetwork {
    conv: Convolutional,
    primary: PrimaryCapsule,
    digits: DigitCapsule,
    decoder: Reconstruction,
}

impl CapsuleNetwork {
    fn new(cx: &InitContext) -> Result<Self> {
        Ok(CapsuleNetwork {
            // 8 by 8 cells, then 3 by 3 with eight capsules of eight numbers in each.
            conv: Convolutional::new(cx, 1, 64, 3)?.same_padding().activation(Activation::Relu),
            primary: PrimaryCapsule::with_kernel(cx, 64, 8, 8, 3)?,
            digits: DigitCapsule::new(cx, 3 * 3 * 8, 8, CLASSES, DIM)?,
            decoder: Reconstruction::with_hidden(cx, CLASSES * DIM, 64, 128, 64)?,
        })
    }

    /// The capsules of the digits, `[B, 10, 16]`.
    fn capsules(&self, x: &Tensor) -> Result<Tensor> {
        let parts = self.primary.forward(&self.conv.forward(x)?)?;
        self.digits.forward(&Flatten::new(1, 3).forward(&parts)?)
    }

    /// The images `[B, 64]` that the capsules of these digits describe; `digits` are one-hot, `[B, 10]`.
    fn images(&self, capsules: &Tensor, digits: &Tensor) -> Result<Tensor> {
        self.decoder.forward(&capsules.mul(&digits.unsqueeze(2)?)?)
    }

    /// The lengths of the capsules, `[B, 10]`.
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.capsules(x)?.norm_axes(2.0, &[-1], false)
    }
}

/// The right capsule should be longer than 0.9, the others, which count half, shorter than 0.1.
fn margin_loss(lengths: &Tensor, digits: &Tensor) -> Result<Tensor> {
    let right = lengths.rsub_scalar(0.9)?.relu()?.square()?.mul(digits)?;
    let wrong = lengths.sub_scalar(0.1)?.relu()?.square()?.mul(&digits.rsub_scalar(1.0)?)?;
    right.add_scaled(&wrong, 0.5)?.sum_axes(&[1], false)?.mean()
}

fn main() -> Outcome {
    let device = device()?;
    let rows = read_csv(data("digits.csv"), &CsvOptions { scale: 1.0 / 16.0, ..CsvOptions::default() })?;
    let images = Dataset::new(rows.features().to_vec(), &[1, 8, 8], rows.targets().clone())?;
    let train = ResidentSource::new(&images.slice(0, 1437)?, &device, DType::F32)?;
    let test = ResidentSource::new(&images.slice(1437, 360)?, &device, DType::F32)?;
    let model = CapsuleNetwork::new(&InitContext::new(&device, 1))?;
    println!("{} parameters", model.num_parameters());

    let (epochs, batch) = (20, 64);
    let mut optimizer = Optimizer::adam(&model, 3e-3)?;
    let steady = Steady::new(&device, 1437 / batch as u64 + 2);
    let started = std::time::Instant::now();
    for epoch in 0..epochs {
        optimizer.set_lr(3e-3 * (1.0 - epoch as f64 / epochs as f64))?;
        let mut last = None;
        for b in train.epoch(Some(Order { seed: 1, epoch }), batch)? {
            let b = b?;
            let digits = b.y.one_hot(CLASSES, DType::F32)?;
            optimizer.zero_grad()?;
            let capsules = model.capsules(&b.x)?;
            let margins = margin_loss(&capsules.norm_axes(2.0, &[-1], false)?, &digits)?;
            let error =
                MseLoss::default().forward(&model.images(&capsules, &digits)?, &b.x.flatten(1, -1)?)?;
            let loss = margins.add_scaled(&error, RECONSTRUCTION)?;
            loss.backward()?;
            optimizer.step()?;
            steady.step();
            last = Some((margins.detach(), error.detach()));
        }
        if let (Some((margins, error)), true) = (last, epoch % 5 == 4) {
            let (margins, error) = (margins.item::<f32>()?, error.item::<f32>()?);
            let (epoch, seconds) = (epoch + 1, started.elapsed().as_secs_f64());
            println!("epoch {epoch:>2}  {seconds:5.1} s  margins {margins:.4}  squared error {error:.4}");
        }
        steady.pause();
    }
    steady.finish();

    let (mut right, mut total) = (0, 0);
    for b in test.epoch(None, 360)? {
        let b = b?;
        let lengths = autograd::no_grad(|| model.forward(&b.x))?;
        right += count_correct(&lengths, &b.y)?.item::<i64>()?;
        total += b.len;
    }
    let accuracy = right as f64 / total as f64;
    learned(format!("test accuracy {accuracy:.4}, at least 0.945 wanted"), accuracy >= 0.945)
}
