//! New handwritten digits by a diffusion model.
//!
//!     TREFOIL_BACKEND=cpu cargo run --release -p trefoil-nn --example ddpm
//!
//! A denoising diffusion model (Ho, Jain and Abbeel, 2020): a U-Net that knows the time learns which noise was added to an image; from
//! noise alone, it then makes images step by step. Whether they are digits, and of all kinds, is told by how far an unseen digit is from the
//! nearest of them, beside how far it is from the nearest of as many digits of the training data, and of as many images whose pixels are
//! drawn independently.

mod common;

use common::{Outcome, Steady, data, device, learned};
use trefoil::ops::random::Rng;
use trefoil::{DType, GpuError};
use trefoil_nn::data::{CsvOptions, Order, ResidentSource, Source, read_csv};
use trefoil_nn::layers::{Convolutional, Dense, GroupNormalization, MaxPooling, TimeEmbedding, Upsampling};
use trefoil_nn::{
    Device, InitContext, Layer, LayerExt, MseLoss, Optimizer, Result, Tensor, Visitor, autograd,
};

/// Steps from an image to noise.
const STEPS: usize = 100;
/// Features of the time.
const TIME: usize = 32;
/// Images that are made.
const SAMPLES: usize = 256;

/// A convolution, to whose channels the time adds, with normalization and silu.
#[derive(Debug)]
struct Block {
    conv: Convolutional,
    time: Dense,
    norm: GroupNormalization,
}

impl Block {
    fn new(cx: &InitContext, inputs: usize, outputs: usize) -> Result<Self> {
        Ok(Block {
            conv: Convolutional::new(cx, inputs, outputs, 3)?.same_padding(),
            time: Dense::new(cx, TIME, outputs)?,
            norm: GroupNormalization::new(cx, 8, outputs)?,
        })
    }

    fn forward(&self, x: &Tensor, time: &Tensor) -> Result<Tensor> {
        let shift = self.time.forward(time)?.unsqueeze(2)?.unsqueeze(3)?;
        self.norm.forward(&self.conv.forward(x)?.add(&shift)?)?.silu()
    }

    fn visit(&self, name: &str, v: &mut Visitor<'_>) {
        v.child(&format!("{name}.conv"), &self.conv);
        v.child(&format!("{name}.time"), &self.time);
        v.child(&format!("{name}.norm"), &self.norm);
    }
}

/// 8 by 8, 4 by 4, 2 by 2 and back; what goes down at a size is laid beside what comes up to it.
#[derive(Debug)]
struct UNet {
    time: TimeEmbedding,
    down: [Block; 3],
    up: [Block; 2],
    pool: MaxPooling,
    double: Upsampling,
    head: Convolutional,
}

impl UNet {
    fn new(cx: &InitContext) -> Result<Self> {
        Ok(UNet {
            time: TimeEmbedding::new(cx, TIME, TIME)?,
            down: [Block::new(cx, 1, 32)?, Block::new(cx, 32, 64)?, Block::new(cx, 64, 64)?],
            up: [Block::new(cx, 64 + 64, 32)?, Block::new(cx, 32 + 32, 32)?],
            pool: MaxPooling::new(2)?,
            double: Upsampling::scale(2.0)?,
            head: Convolutional::new(cx, 32, 1, 1)?,
        })
    }
}

impl Layer for UNet {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        Ok(self.forward_all(std::slice::from_ref(x))?.remove(0))
    }

    /// The noise in images `[B, 1, 8, 8]` at times `[B]`.
    fn forward_all(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        let [x, time] = inputs else {
            let got = format!("{} tensors", inputs.len());
            return Err(GpuError::invalid("UNet", "inputs", "images and times", got).into());
        };
        let time = self.time.forward(time)?;
        let full = self.down[0].forward(x, &time)?;
        let half = self.down[1].forward(&self.pool.forward(&full)?, &time)?;
        let quarter = self.down[2].forward(&self.pool.forward(&half)?, &time)?;
        let half = Tensor::concat(1, &[&half, &self.double.forward(&quarter)?])?;
        let half = self.up[0].forward(&half, &time)?;
        let full = Tensor::concat(1, &[&full, &self.double.forward(&half)?])?;
        Ok(vec![self.head.forward(&self.up[1].forward(&full, &time)?)?])
    }

    fn visit(&self, v: &mut Visitor<'_>) {
        v.child("time", &self.time);
        self.down.iter().enumerate().for_each(|(i, b)| b.visit(&format!("down.{i}"), v));
        self.up.iter().enumerate().for_each(|(i, b)| b.visit(&format!("up.{i}"), v));
        v.child("head", &self.head);
    }
}

/// Variances of the steps, and what they leave of an image's variance.
struct Schedule {
    beta: Vec<f64>,
    left: Vec<f64>,
    /// `left` on the device.
    table: Tensor,
}

impl Schedule {
    /// The paper's line from 0.0001 to 0.02 in 1000 steps, as steep as fewer steps need it.
    fn new(device: &Device) -> Result<Self> {
        let (first, last) = (0.1 / STEPS as f64, 20.0 / STEPS as f64);
        let beta: Vec<f64> =
            (0..STEPS).map(|t| first + (last - first) * t as f64 / (STEPS - 1) as f64).collect();
        let mut product = 1.0;
        let left: Vec<f64> = (beta.iter())
            .map(|b| {
                product *= 1.0 - b;
                product
            })
            .collect();
        let host: Vec<f32> = left.iter().map(|&l| l as f32).collect();
        Ok(Schedule { beta, left, table: Tensor::from_slice(device, &host, &[STEPS])? })
    }

    /// Images `[B, 1, 8, 8]` at times `[B]` with this noise.
    fn noisy(&self, x: &Tensor, time: &Tensor, noise: &Tensor) -> Result<Tensor> {
        let left = self.table.index_select(0, time)?.reshape(&[x.shape()[0], 1, 1, 1])?;
        x.mul(&left.sqrt()?)?.add(&noise.mul(&left.rsub_scalar(1.0)?.sqrt()?)?)
    }

    /// Images made of noise.
    fn sample(&self, model: &UNet, device: &Device) -> Result<Tensor> {
        let shape = [SAMPLES, 1, 8, 8];
        let draw = |t: usize| Tensor::randn(device, DType::F32, &shape, Rng::new(3).at(t as u64, 0));
        let mut x = draw(STEPS)?;
        for t in (0..STEPS).rev() {
            let time = Tensor::full(device, DType::I64, &[SAMPLES], t as f64)?;
            let noise = model.forward_all(&[x.clone(), time])?.remove(0);
            let (beta, left) = (self.beta[t], self.left[t]);
            x = x.add_scaled(&noise, -beta / (1.0 - left).sqrt())?.mul_scalar((1.0 - beta).sqrt().recip())?;
            if t > 0 {
                x = x.add_scaled(&draw(t)?, beta.sqrt())?;
            }
        }
        x.clamp(Some(-1.0), Some(1.0))
    }
}

fn main() -> Outcome {
    let device = device()?;
    let rows = read_csv(data("digits.csv"), &CsvOptions { scale: 1.0 / 16.0, ..CsvOptions::default() })?;
    // Pixels from -1 to 1.
    let images = |start: usize, n: usize| -> Result<Tensor> {
        let x = Tensor::from_slice(&device, rows.slice(start, n)?.features(), &[n, 64])?;
        x.mul_scalar(2.0)?.sub_scalar(1.0)
    };
    let train = ResidentSource::new(&rows.slice(0, 1437)?, &device, DType::F32)?;
    let (model, schedule) = (UNet::new(&InitContext::new(&device, 1))?, Schedule::new(&device)?);
    println!("{} parameters", model.num_parameters());

    let (epochs, batch) = (40, 64);
    let mut optimizer = Optimizer::adam(&model, 2e-3)?;
    let steady = Steady::new(&device, 1437 / batch as u64 + 2);
    let started = std::time::Instant::now();
    for epoch in 0..epochs {
        optimizer.set_lr(2e-3 * (1.0 - epoch as f64 / epochs as f64))?;
        let (mut sum, mut count) = (Tensor::zeros(&device, DType::F32, &[])?, 0);
        for b in train.epoch(Some(Order { seed: 1, epoch }), batch)? {
            let b = b?;
            let x = b.x.mul_scalar(2.0)?.sub_scalar(1.0)?.reshape(&[b.len, 1, 8, 8])?;
            let at = optimizer.steps();
            let noise = x.randn_like(Rng::new(1).at(at, 0))?;
            let time = Tensor::rand(&device, DType::F32, &[b.len], 0.0, STEPS as f64, Rng::new(2).at(at, 0))?;
            // Rounding may give the end of the range.
            let time = time.floor()?.clamp(None, Some((STEPS - 1) as f64))?.to_dtype(DType::I64)?;
            optimizer.zero_grad()?;
            let answer = model.forward_all(&[schedule.noisy(&x, &time, &noise)?, time])?.remove(0);
            let loss = MseLoss::default().forward(&answer, &noise)?;
            loss.backward()?;
            optimizer.step()?;
            (sum, count) = (sum.add(&loss.detach())?, count + 1);
            steady.step();
        }
        if epoch % 5 == 4 {
            let (epoch, seconds) = (epoch + 1, started.elapsed().as_secs_f64());
            println!("epoch {epoch:>2}  {seconds:5.1} s  loss {:.4}", sum.item::<f32>()? / count as f32);
        }
        steady.pause();
    }
    steady.finish();

    let made = autograd::no_grad(|| schedule.sample(&model, &device))?.reshape(&[SAMPLES, 64])?;
    draw(&made)?;
    let (known, unseen) = (images(0, 1437)?, images(1437, 360)?);
    let pixels = Tensor::randn(&device, DType::F32, &[SAMPLES, 64], Rng::new(4))?
        .mul(&known.std(&[0], 1.0, true)?)?
        .add(&known.mean_axes(&[0], true)?)?
        .clamp(Some(-1.0), Some(1.0))?;
    let away = |from: &Tensor| unseen.cdist(from, 2.0)?.amin(&[1], false)?.mean()?.item::<f32>();
    let (digits, independent, after) = (away(&known.narrow(0, 0, SAMPLES)?)?, away(&pixels)?, away(&made)?);
    println!(
        "distance of an unseen digit: from digits {digits:.3}, from independent pixels {independent:.3}"
    );
    let wanted = (digits + independent) / 2.0;
    learned(format!("from images of the model {after:.3}, at most {wanted:.3} wanted"), after <= wanted)
}

/// The first images side by side.
fn draw(images: &Tensor) -> Outcome {
    let pixels = images.narrow(0, 0, 8)?.to_vec::<f32>()?;
    for y in 0..8 {
        for image in pixels.chunks(64) {
            let shade = |v: &f32| [' ', '.', ':', '+', '#', '@'][((v + 1.0) * 2.99).clamp(0.0, 5.0) as usize];
            image[8 * y..8 * y + 8].iter().for_each(|v| print!("{0}{0}", shade(v)));
            print!("  ");
        }
        println!();
    }
    Ok(())
}
