//! Networks of sequence layers learn, and nothing but losses leaves the device.

use crate::common::{devices, noise, steps_on};
use trefoil::ops::activation::Activation;
use trefoil_nn::layers::*;
use trefoil_nn::{CrossEntropyLoss, Device, InitContext, Layer, Optimizer, Result, Tensor};

/// Sequences of six ids below 5; the class is the id that comes first.
fn data(d: &Device) -> (Tensor, Tensor) {
    let n = steps_on(d, 32, 8);
    let ids: Vec<i64> = noise(3, n * 6).iter().map(|v| ((v + 1.0) * 2.5) as i64).collect();
    let first: Vec<i64> = ids.iter().step_by(6).copied().collect();
    (Tensor::from_slice(d, &ids, &[n, 6]).unwrap(), Tensor::from_slice(d, &first, &[n]).unwrap())
}

/// Trains 40 steps; transfers, waits, allocations and compilations must end with the third.
fn train(d: &Device, what: &str, model: &dyn Layer, forward: impl Fn(&Tensor) -> Result<Tensor>) {
    let (x, y) = data(d);
    let mut optimizer = Optimizer::adam(model, 0.02).unwrap();
    let (mut losses, mut warm) = (vec![], None);
    let steps = steps_on(d, 40, 20);
    for step in 0..steps {
        optimizer.zero_grad().unwrap();
        let loss = CrossEntropyLoss::default().forward(&forward(&x).unwrap(), &y).unwrap();
        loss.backward().unwrap();
        optimizer.step().unwrap();
        // A list of all losses would hold on to one number per step.
        if step == 0 || step + 1 == steps {
            losses.push(loss.detach());
        }
        if step == 2 {
            warm = Some(d.counters());
        }
    }
    let quiet =
        |c: trefoil::ops::core::Counters| (c.uploads, c.downloads, c.syncs, c.allocations, c.compiles);
    assert_eq!(quiet(warm.unwrap()), quiet(d.counters()), "{what} on {}", crate::common::id(d));
    let value = |t: &Tensor| t.item::<f32>().unwrap();
    let (before, after) = (value(&losses[0]), value(&losses[1]));
    assert!(
        after < 0.5 * before,
        "{what} on {}: the loss went from {before} to {after}",
        crate::common::id(d)
    );
}

#[test]
fn networks_of_sequence_layers_learn_without_leaving_the_device() {
    for d in devices() {
        let cx = InitContext::new(&d, 7);
        let config = TransformerConfig::new(16, 4).d_ff(32).dropout(0.05).activation(Activation::Gelu);
        let transformer = Sequential::new()
            .push(Embedding::new(&cx, 5, 16).unwrap().scale_by_sqrt_dim())
            .push(PositionalEncoding::new(&cx, 16, 6).unwrap())
            .push(TransformerEncoder::new(&cx, &config).unwrap())
            .push(TransformerEncoder::new(&cx, &config.clone().norm_first()).unwrap())
            .push(RmsNorm::new(&cx, &[16]).unwrap())
            .push(Mean::new(&[1]))
            .push(Dense::new(&cx, 16, 5).unwrap());
        train(&d, "transformer", &transformer, |x| transformer.forward(x));

        let lstm = Lstm::new(&cx, 8, 12).unwrap().num_layers(2).unwrap().dropout(0.05).unwrap();
        let recurrent = Sequential::new()
            .push(Embedding::new(&cx, 5, 8).unwrap())
            .push(lstm.bidirectional().unwrap())
            .push(SelfAttention::new(&cx, 24, 2).unwrap())
            .push(GatedLinearUnit::swiglu(&cx, 24, 12).unwrap())
            .push(Gru::new(&cx, 12, 12).unwrap().return_last())
            .push(BatchNormalization::new(&cx, 12).unwrap())
            .push(Dense::new(&cx, 12, 5).unwrap());
        train(&d, "recurrent network", &recurrent, |x| recurrent.forward(x));
    }
}
