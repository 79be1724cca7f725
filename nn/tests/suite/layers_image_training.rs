//! Networks of image layers learn, and their steps stay on the device.

use crate::common::{cpu, devices, id, noise, slow, steps_on};
use trefoil::ops::activation::Activation;
use trefoil::ops::resample::InterpolateMode;
use trefoil::ops::shape::PadMode;
use trefoil_nn::layers::*;
use trefoil_nn::{CrossEntropyLoss, Device, InitContext, Layer, MseLoss, Optimizer, Result, Tensor};

/// Every image layer with something to learn, and those between them: [B, 1, 8, 8] -> [B, 2].
fn classifier(cx: &InitContext) -> Result<Sequential> {
    let relu = Activation::Relu;
    Ok(Sequential::new()
        .push(Convolutional::new(cx, 1, 8, 3)?.same_padding().padding_mode(PadMode::Reflect).activation(relu))
        .push(MaxPooling::new(2)?)
        .push(DepthwiseSeparableConvolutional::new(cx, 8, 8, 3)?.padding(1).mid_activation(Activation::Gelu))
        .push(DeformableConvolutional::new(cx, 8, 8, 3)?)
        .push(Activate(relu))
        .push(Upsampling::scale(1.6)?.mode(InterpolateMode::Linear))
        .push(AveragePooling::new(2)?.stride(1))
        .push(LocallyConnected::new(cx, 8, 8, 2)?.activation(relu).input_size(5, 5)?)
        .push(GlobalPooling::max().keepdim(false))
        .push(Dense::new(cx, 8, 2)?))
}

/// Images [B, 1, 8, 8] to images of the same size: half the resolution and back.
fn autoencoder(cx: &InitContext) -> Result<Sequential> {
    let act = Activation::Tanh;
    Ok(Sequential::new()
        .push(PatchEmbedding::new(cx, 1, 2, 8)?.flatten(false))
        .push(DilatedConvolutional::new(cx, 8, 8, 3, 2)?.same_padding().activation(act))
        .push(Deconvolutional::new(cx, 8, 4, 2)?.stride(2).activation(act))
        .push(PixelUnshuffle::new(2)?)
        .push(Padding::new(&[(2, 1), (1, 2)])?.mode(PadMode::Replicate))
        .push(Cropping::new(&[(1, 2), (2, 1)]))
        .push(SubpixelConvolutional::new(cx, 16, 1, 2, 3)?))
}

/// Losses of `steps` steps; transfers, waits, allocations and compilations must end with the second.
fn train(
    d: &Device,
    m: &Sequential,
    steps: usize,
    loss: impl Fn(&Tensor) -> Result<Tensor>,
    x: &Tensor,
) -> Vec<f32> {
    let mut o = Optimizer::adam(m, 0.01).unwrap();
    let (mut losses, mut warm) = (vec![], None);
    for i in 0..steps {
        o.zero_grad().unwrap();
        let l = loss(&m.forward(x).unwrap()).unwrap();
        l.backward().unwrap();
        o.step().unwrap();
        // The mean of all losses would hold on to one number per step; the first and the last are enough.
        if i == 0 || i + 1 == steps {
            losses.push(l.detach());
        }
        if i == 2 {
            warm = Some(d.counters());
        }
    }
    let (before, after) = (warm.unwrap(), d.counters());
    let quiet =
        |c: trefoil::ops::core::Counters| (c.uploads, c.downloads, c.syncs, c.allocations, c.compiles);
    assert_eq!(quiet(before), quiet(after), "on {}", id(d));
    assert!(after.launches > before.launches);
    losses.iter().map(|l| l.item::<f32>().unwrap()).collect()
}

/// Trains on every device: the last loss is below a third of the first. A slow device takes 6 steps, with the losses of the CPU.
fn learns(steps: usize, run: impl Fn(&Device, usize) -> Vec<f32>) {
    for d in devices() {
        let steps = steps_on(&d, steps, 6);
        let losses = run(&d, steps);
        if !slow(&d) {
            assert!(losses[1] < 0.3 * losses[0], "{losses:?} on {}", id(&d));
            continue;
        }
        let want = run(&cpu(), steps);
        let near = losses.iter().zip(&want).all(|(got, want)| (got - want).abs() <= 2e-3 * (want + 0.1));
        assert!(near && want[0] != want[1], "{losses:?} on {}, {want:?} on the CPU", id(&d));
    }
}

#[test]
fn a_classifier_learns_on_the_device() {
    // Bright rows or bright columns, with noise.
    let (mut v, mut ids) = (vec![], vec![]);
    for n in 0..16 {
        let grain = noise(50 + n as u64, 64);
        v.extend((0..64).map(|i| {
            let line = if n % 2 == 0 { i / 8 } else { i % 8 };
            let bright = if line % 4 == n / 4 { 1.0 } else { 0.0 };
            (bright + 0.1 * grain[i]) as f32
        }));
        ids.push((n % 2) as i64);
    }
    learns(60, |d, steps| {
        let x = Tensor::from_slice(d, &v, &[16, 1, 8, 8]).unwrap();
        let ids = Tensor::from_slice(d, &ids, &[16]).unwrap();
        let m = classifier(&InitContext::new(d, 5)).unwrap();
        let loss = CrossEntropyLoss::default();
        train(d, &m, steps, |y| loss.forward(y, &ids), &x)
    });
}

#[test]
fn an_autoencoder_learns_on_the_device() {
    let v: Vec<f32> = noise(8, 4 * 64).into_iter().map(|v| 0.5 * v as f32).collect();
    learns(80, |d, steps| {
        let x = Tensor::from_slice(d, &v, &[4, 1, 8, 8]).unwrap();
        let m = autoencoder(&InitContext::new(d, 5)).unwrap();
        train(d, &m, steps, |y| MseLoss::default().forward(y, &x), &x)
    });
}
