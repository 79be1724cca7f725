//! Losses that see outputs through other networks, and the task of rotations: against their formulas, gradients, refusals.

use std::sync::Arc;

use serde_json::json;
use trefoil::DType;
use trefoil_nn::losses::*;
use trefoil_nn::network::{Network, NetworkConfig};
use trefoil_nn::{Device, InitContext, Layer, LayerExt, Tensor};

use crate::common::layers::refused;
use crate::common::{close, cpu, gradcheck, tensor};

fn network(d: &Device, json: serde_json::Value) -> Network {
    let config = NetworkConfig::parse(&json.to_string()).unwrap();
    Network::new(&InitContext::new(d, 3).dtype(DType::F64), &config).unwrap()
}

/// Two feature maps of images with one channel.
fn maps(d: &Device) -> Network {
    network(
        d,
        json!({ "outputs": ["near", "far"], "layers": [
            { "type": "convolutional", "name": "near", "in_channels": 1, "out_channels": 2, "kernel_size": 2, "activation": "tanh" },
            { "type": "dropout", "p": 0.5, "name": "drop" },
            { "type": "convolutional", "name": "far", "in_channels": 2, "out_channels": 3, "kernel_size": 2 } ] }),
    )
}

fn judge(d: &Device) -> Network {
    network(
        d,
        json!({ "layers": [
            { "type": "convolutional", "in_channels": 1, "out_channels": 1, "kernel_size": 3, "activation": "tanh" } ] }),
    )
}

fn scalar(t: &Tensor) -> f64 {
    t.item::<f64>().unwrap()
}

const IMAGES: [usize; 4] = [2, 1, 4, 4];

#[test]
fn features_are_compared_map_by_map() {
    let d = cpu();
    let loss = PerceptualLoss::new(maps(&d)).weights(&[0.3, 2.0]).unwrap();
    let (p, t) = (tensor(&d, &IMAGES, 1), tensor(&d, &IMAGES, 2));
    let plain = maps(&d);
    plain.eval();
    let of = |x: &Tensor| plain.forward_all(std::slice::from_ref(x)).unwrap();
    let parts = |one: fn(&Tensor) -> Tensor| -> Vec<f64> {
        let differences = of(&p).into_iter().zip(of(&t)).map(|(a, b)| a.sub(&b).unwrap());
        differences.map(|d| scalar(&one(&d).mean().unwrap())).collect()
    };
    let squares = parts(|d| d.square().unwrap());
    close(
        &[scalar(&loss.forward(&p, &t).unwrap())],
        &[0.3 * squares[0] + 2.0 * squares[1]],
        1e-12,
        "squares",
    );
    let absolute = parts(|d| d.abs().unwrap());
    let l1 = PerceptualLoss::new(maps(&d)).l1();
    close(&[scalar(&l1.forward(&p, &t).unwrap())], &[absolute[0] + absolute[1]], 1e-12, "l1");
    gradcheck("perceptual", &[&IMAGES], |x| x, |x| loss.forward(&x[0], &t));

    // Neither the target nor the features have a gradient.
    let (p, t) = (p.with_grad(), t.with_grad());
    let features = Arc::new(maps(&d));
    PerceptualLoss::new(features.clone()).forward(&p, &t).unwrap().backward().unwrap();
    assert!(p.grad().is_some() && t.grad().is_none());
    assert!(features.parameters().iter().all(|w| w.get().grad().is_none()));

    refused(PerceptualLoss::new(maps(&d)).weights(&[-1.0]), &["PerceptualLoss", "weights", "-1"]);
    let one = PerceptualLoss::new(maps(&d)).weights(&[1.0]).unwrap();
    refused(one.forward(&p, &t), &["perceptual_loss", "weights", "2, one for each output"]);
    refused(one.forward(&p, &t.narrow(0, 0, 1).unwrap()), &["target", "[2, 1, 4, 4]", "[1, 1, 4, 4]"]);
}

#[test]
fn generators_are_judged_by_pixels_features_and_discriminator() {
    let d = cpu();
    let (features, discriminator) = (PerceptualLoss::new(maps(&d)).l1(), Arc::new(judge(&d)));
    let loss = RealEsrganLoss::new(features.clone(), discriminator.clone());
    let (p, t) = (tensor(&d, &IMAGES, 1), tensor(&d, &IMAGES, 2));
    let pixels = scalar(&p.sub(&t).unwrap().abs().unwrap().mean().unwrap());
    let seen = scalar(&features.forward(&p, &t).unwrap());
    let scores = |x: &Tensor| discriminator.forward(x).unwrap();
    let mean_softplus = |x: Tensor| scalar(&x.softplus().unwrap().mean().unwrap());
    let fooled = mean_softplus(scores(&p).neg().unwrap());
    let close = |got: &Tensor, want: f64, what: &str| close(&[scalar(got)], &[want], 1e-12, what);
    close(&loss.forward(&p, &t).unwrap(), pixels + seen + 0.1 * fooled, "standard weights");
    let weighted = loss.clone().weights(0.5, 2.0, 3.0).unwrap();
    close(&weighted.forward(&p, &t).unwrap(), 0.5 * pixels + 2.0 * seen + 3.0 * fooled, "weights");
    gradcheck("real-esrgan", &[&IMAGES], |x| x, |x| weighted.forward(&x[0], &t));
    refused(loss.clone().weights(1.0, f64::NAN, 1.0), &["RealEsrganLoss", "weights", "NaN"]);

    let leaf = p.with_grad();
    let theirs = loss.discriminator_loss(&leaf, &t).unwrap();
    close(&theirs, mean_softplus(scores(&t).neg().unwrap()) + mean_softplus(scores(&p)), "discriminator");
    discriminator.zero_grad().unwrap();
    theirs.backward().unwrap();
    assert!(leaf.grad().is_none());
    assert!(discriminator.parameters().iter().all(|w| w.get().grad().is_some()));
}

#[test]
fn rotations_are_told_apart() {
    let d = cpu();
    let image = Tensor::from_slice(&d, &[1f64, 2., 3., 4.], &[1, 1, 2, 2]).unwrap();
    let turned = RotationPredictionLoss::rotations(&image).unwrap();
    assert_eq!(turned.shape(), [1, 4, 1, 2, 2]);
    // torch.rot90(x, k, (2, 3)) for k of 0 to 3.
    let want = [1., 2., 3., 4., 2., 4., 1., 3., 4., 3., 2., 1., 3., 1., 4., 2.];
    assert_eq!(turned.to_vec::<f64>().unwrap(), want);
    let many = tensor(&d, &[3, 2, 4, 4], 1);
    let (first, all) = (many.narrow(0, 1, 1).unwrap(), RotationPredictionLoss::rotations(&many).unwrap());
    let alone = RotationPredictionLoss::rotations(&first).unwrap().to_vec::<f64>().unwrap();
    assert_eq!(all.narrow(0, 1, 1).unwrap().to_vec::<f64>().unwrap(), alone);

    let logits = tensor(&d, &[3, 4, 4], 2);
    let logs = logits.log_softmax(-1).unwrap().to_vec::<f64>().unwrap();
    let items: Vec<f64> = (0..12).map(|row| -logs[4 * row + row % 4]).collect();
    let each = RotationPredictionLoss { reduction: Reduction::None };
    close(&each.forward(&logits).unwrap().to_vec::<f64>().unwrap(), &items, 1e-12, "items");
    let mean = RotationPredictionLoss::default();
    let rows = logits.reshape(&[12, 4]).unwrap();
    let want = items.iter().sum::<f64>() / 12.0;
    close(&[scalar(&mean.forward(&rows).unwrap())], &[want], 1e-12, "mean");
    gradcheck("rotations", &[&[2, 4, 4]], |x| x, |x| mean.forward(&x[0]));
    refused(mean.forward(&rows.narrow(0, 0, 6).unwrap()), &["logits", "[4 N, 4]", "[6, 4]"]);
    refused(
        RotationPredictionLoss::rotations(&tensor(&d, &[1, 1, 2, 3], 1)),
        &["images", "square", "[1, 1, 2, 3]"],
    );
}
