//! A U-Net that takes noise away from handwritten digits.
//!
//!     TREFOIL_BACKEND=cpu cargo run --release -p trefoil-nn --example denoiser
//!
//! The network sees an image plus Gaussian noise, new in every step and drawn on the device, and answers with the image. Down-sampling
//! lets it see whole strokes, skip connections keep their places. Measured on images that it has not seen, against two answers that
//! need no network: the noisy image itself, and the mean of all training images.

mod common;

use common::{Outcome, Steady, data, device, learned};
use trefoil::DType;
use trefoil::ops::activation::Activation;
use trefoil::ops::random::Rng;
use trefoil_nn::data::{CsvOptions, Order, ResidentSource, Source, read_csv};
use trefoil_nn::layers::{Convolutional, MaxPooling, Upsampling};
use trefoil_nn::{InitContext, Layer, LayerExt, MseLoss, Optimizer, Result, Tensor, autograd};

/// Standard deviation of the noise; pixels are from 0 to 1.
const NOISE: f64 = 0.3;

/// 8 by 8, 4 by 4, 2 by 2 and back; what goes down at a size is laid beside what comes up to it.
#[derive(Debug, Layer)]
struct UNet {
    down: Vec<Convolutional>,
    up: Vec<Convolutional>,
    pool: MaxPooling,
    double: Upsampling,
    head: Convolutional,
}

impl UNet {
    fn new(cx: &InitContext) -> Result<Self> {
        let conv = |inputs: usize, outputs: usize| -> Result<_> {
            Ok(Convolutional::new(cx, inputs, outputs, 3)?.same_padding().activation(Activation::Relu))
        };
        Ok(UNet {
            down: vec![conv(1, 16)?, conv(16, 32)?, conv(32, 32)?],
            up: vec![conv(32 + 32, 16)?, conv(16 + 16, 16)?],
            pool: MaxPooling::new(2)?,
            double: Upsampling::scale(2.0)?,
            head: Convolutional::new(cx, 16, 1, 1)?,
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let full = self.down[0].forward(x)?;
        let half = self.down[1].forward(&self.pool.forward(&full)?)?;
        let quarter = self.down[2].forward(&self.pool.forward(&half)?)?;
        let half = Tensor::concat(1, &[&half, &self.double.forward(&quarter)?])?;
        let half = self.up[0].forward(&half)?;
        let full = Tensor::concat(1, &[&full, &self.double.forward(&half)?])?;
        self.head.forward(&self.up[1].forward(&full)?)
    }
}

/// Images plus noise; `at` names the random numbers.
fn noisy(x: &Tensor, at: u64) -> Result<Tensor> {
    let noise = Tensor::randn(x.device(), x.dtype(), x.shape(), Rng::new(1).at(at, 0))?;
    x.add(&noise.mul_scalar(NOISE)?)
}

fn main() -> Outcome {
    let device = device()?;
    let rows = read_csv(data("digits.csv"), &CsvOptions { scale: 1.0 / 16.0, ..CsvOptions::default() })?;
    let images = |start: usize, n: usize| -> Result<Tensor> {
        Tensor::from_slice(&device, rows.slice(start, n)?.features(), &[n, 1, 8, 8])
    };
    let (clean, batch, epochs) = (images(1437, 360)?, 64, 15);
    let train = ResidentSource::new(&rows.slice(0, 1437)?, &device, DType::F32)?;
    let model = UNet::new(&InitContext::new(&device, 1))?;
    println!("{} parameters", model.num_parameters());

    let mut optimizer = Optimizer::adam(&model, 3e-3)?;
    let steady = Steady::new(&device, 1437 / batch as u64 + 2);
    let started = std::time::Instant::now();
    for epoch in 0..epochs {
        optimizer.set_lr(3e-3 * (1.0 - epoch as f64 / epochs as f64))?;
        let mut last = None;
        for b in train.epoch(Some(Order { seed: 1, epoch }), batch)? {
            let x = b?.x;
            let x = x.reshape(&[x.shape()[0], 1, 8, 8])?;
            optimizer.zero_grad()?;
            let answer = model.forward(&noisy(&x, 1 + optimizer.steps())?)?;
            let loss = MseLoss::default().forward(&answer, &x)?;
            loss.backward()?;
            optimizer.step()?;
            steady.step();
            last = Some(loss.detach());
        }
        if let (Some(loss), true) = (last, epoch % 5 == 4) {
            let (epoch, seconds) = (epoch + 1, started.elapsed().as_secs_f64());
            println!("epoch {epoch:>2}  {seconds:5.1} s  loss {:.4}", loss.item::<f32>()?);
        }
        steady.pause();
    }
    steady.finish();

    // Stream 0 of the random numbers is not used in training.
    let seen = noisy(&clean, 0)?;
    let answer = autograd::no_grad(|| model.forward(&seen))?;
    let mean = images(0, 1437)?.mean_axes(&[0], true)?.expand(clean.shape())?;
    let error = |x: &Tensor| {
        Ok::<_, Box<dyn std::error::Error>>(f64::from(MseLoss::default().forward(x, &clean)?.item::<f32>()?))
    };
    let (before, average, after) = (error(&seen)?, error(&mean)?, error(&answer)?);
    draw(&[&clean, &seen, &answer])?;
    println!("squared error: of the noisy image {before:.4}, of the mean image {average:.4}");
    let wanted = 0.5 * before.min(average);
    learned(format!("squared error {after:.4}, at most {wanted:.4} wanted"), after <= wanted)
}

/// The first images of each tensor side by side.
fn draw(images: &[&Tensor]) -> Outcome {
    let pixels: Vec<Vec<f32>> = images.iter().map(|t| t.narrow(0, 0, 1)?.to_vec()).collect::<Result<_>>()?;
    for y in 0..8 {
        for image in &pixels {
            let shade = |v: &f32| [' ', '.', ':', '+', '#', '@'][(v * 5.99).clamp(0.0, 5.0) as usize];
            image[8 * y..8 * y + 8].iter().for_each(|v| print!("{0}{0}", shade(v)));
            print!("   ");
        }
        println!();
    }
    Ok(())
}
