//! What networks offer beside forward: gradients from an output gradient, one batch, host vectors, capabilities.

use std::collections::BTreeMap;

use crate::common::everywhere::{resident, values};
use crate::common::{close, cpu, devices, f32s, id, noise, tensor};
use trefoil::DType;
use trefoil::ops::activation::Activation;
use trefoil_nn::layers::*;
use trefoil_nn::model::Obstacle;
use trefoil_nn::{
    Device, HostTensor, InitContext, Layer, LayerExt, Model, MseLoss, NnError, Optimizer, Param, Result,
    Tensor, Visitor,
};

fn mlp(cx: &InitContext) -> Sequential {
    Sequential::new()
        .named("in", Dense::new(cx, 3, 4).unwrap().activation(Activation::Tanh))
        .named("drop", Dropout::new(cx, 0.0).unwrap())
        .named("out", Dense::new(cx, 4, 2).unwrap())
}

fn batch(d: &Device) -> (Tensor, Tensor) {
    let single = |seed, n| noise(seed, n).iter().map(|&x| x as f32).collect::<Vec<f32>>();
    (f32s(d, &single(1, 15), &[5, 3]), f32s(d, &single(2, 10), &[5, 2]))
}

#[test]
fn backpropagation_from_an_output_gradient() {
    // f64 against central differences.
    let cx = InitContext::new(&cpu(), 1).dtype(DType::F64);
    let model = mlp(&cx);
    let (x, dy) = (tensor(&cpu(), &[5, 3], 1), tensor(&cpu(), &[5, 2], 2));
    let pass = model.pass(std::slice::from_ref(&x)).unwrap();
    assert_eq!(pass.outputs()[0].shape(), [5, 2]);
    let dx = pass.backpropagate(std::slice::from_ref(&dy)).unwrap().remove(0).unwrap();
    let value = |x: &[f64]| -> f64 {
        let x = Tensor::from_slice(&cpu(), x, &[5, 3]).unwrap();
        model.forward(&x).unwrap().mul(&dy).unwrap().sum().unwrap().item().unwrap()
    };
    let data = values(&x);
    let want: Vec<f64> = (0..data.len())
        .map(|i| {
            let moved = |h: f64| {
                let mut v = data.clone();
                v[i] += h;
                value(&v)
            };
            (moved(1e-5) - moved(-1e-5)) / 2e-5
        })
        .collect();
    close(&values(&dx), &want, 1e-7, "input gradient");
    let flat: Vec<f64> = model.download_parameters().unwrap();
    let grads: Vec<f64> = model.download_gradients().unwrap();
    let want: Vec<f64> = (0..flat.len())
        .map(|i| {
            let moved = |h: f64| {
                let mut v = flat.clone();
                v[i] += h;
                model.upload_parameters(&v).unwrap();
                value(&data)
            };
            (moved(1e-5) - moved(-1e-5)) / 2e-5
        })
        .collect();
    close(&grads, &want, 1e-7, "parameter gradients");
    model.upload_parameters(&flat).unwrap();

    // Devices against it, without a transfer; gradients add up until they are cleared.
    for d in devices() {
        let model = mlp(&InitContext::new(&d, 1));
        model.upload_parameters(&flat).unwrap();
        let single = |t: &Tensor| {
            let v: Vec<f32> = values(t).iter().map(|&x| x as f32).collect();
            f32s(&d, &v, t.shape())
        };
        let (x, dy) = (single(&x), single(&dy));
        for times in 1..=2 {
            let got = resident("backpropagate", &d, || {
                let pass = model.pass(std::slice::from_ref(&x)).unwrap();
                pass.backpropagate(std::slice::from_ref(&dy)).unwrap().remove(0).unwrap()
            });
            close(&values(&got), &values(&dx), 1e-5, &format!("input gradient on {}", id(&d)));
            let sums: Vec<f64> = model.download_gradients().unwrap();
            let want: Vec<f64> = grads.iter().map(|g| g * f64::from(times)).collect();
            close(&sums, &want, 1e-5, &format!("parameter gradients on {}", id(&d)));
        }
        assert!(x.grad().is_none(), "the caller's tensor is left alone");
        model.zero_grad().unwrap();
        assert!(model.named_gradients().iter().all(|(_, g)| g.is_none()));
        assert!(model.download_gradients::<f32>().unwrap().iter().all(|&g| g == 0.0));
    }
    let pass = model.pass(std::slice::from_ref(&x)).unwrap();
    assert!(pass.backpropagate(&[]).is_err(), "one gradient for each output");
    let pass = model.pass(std::slice::from_ref(&x)).unwrap();
    assert!(matches!(pass.backpropagate(&[x]), Err(NnError::GradShape { .. })));
}

#[test]
fn single_layers_and_several_inputs() {
    for d in devices() {
        let cx = InitContext::new(&d, 2);
        let a = f32s(&d, &[1., 2.], &[2]);
        let pass = Multiply::new().pass(&[a.clone(), f32s(&d, &[3., 4.], &[2])]).unwrap();
        let g = pass.backpropagate(&[a.ones_like().unwrap()]).unwrap();
        assert_eq!(g.iter().map(|g| values(g.as_ref().unwrap())).collect::<Vec<_>>(), [[3., 4.], [1., 2.]]);
        // Integers have no gradient, parameters do.
        let table = Embedding::new(&cx, 3, 2).unwrap();
        let ids = Tensor::from_slice(&d, &[2i64, 0], &[2]).unwrap();
        let pass = table.pass(&[ids]).unwrap();
        let dy = pass.outputs()[0].ones_like().unwrap();
        assert!(pass.backpropagate(&[dy]).unwrap()[0].is_none());
        assert_eq!(table.download_gradients::<f32>().unwrap(), [1., 1., 0., 0., 1., 1.]);
        // A dyn layer has it all.
        let layer: Box<dyn Layer> = Box::new(Dense::new(&cx, 2, 1).unwrap());
        assert!(layer.supports_training().is_yes());
        assert_eq!(layer.download_parameters::<f32>().unwrap().len(), 3);
    }
}

#[test]
fn one_batch_and_updates() {
    for d in devices() {
        let (x, y) = batch(&d);
        let (plain, optimized) = (mlp(&InitContext::new(&d, 3)), mlp(&InitContext::new(&d, 3)));
        let mut sgd = Optimizer::sgd(&optimized, 0.1).unwrap();
        let mut losses = vec![];
        for _ in 0..5 {
            let loss = resident("a batch", &d, || {
                let loss = plain.train_batch(&x, &y, &MseLoss::default()).unwrap();
                plain.update_parameters(0.1).unwrap();
                loss
            });
            assert!(!loss.requires_grad());
            losses.push(loss.item::<f32>().unwrap());
            optimized.train_batch(&x, &y, &MseLoss::default()).unwrap();
            sgd.step().unwrap();
        }
        assert!(losses.windows(2).all(|w| w[1] < w[0]), "{losses:?} on {}", id(&d));
        let got: Vec<f64> = plain.download_parameters().unwrap();
        close(&got, &optimized.download_parameters::<f64>().unwrap(), 1e-6, "plain steps and an optimizer's");
        assert!(plain.update_parameters(f64::NAN).is_err());
        // Also while nothing is recorded.
        let loss = trefoil_nn::autograd::no_grad(|| plain.train_batch(&x, &y, &MseLoss::default())).unwrap();
        assert!(loss.item::<f32>().unwrap() < losses[0]);
    }
}

#[test]
fn weights_to_and_from_the_host() {
    for d in devices() {
        let make = |seed| {
            let cx = InitContext::new(&d, seed);
            Sequential::new()
                .push(Dense::new(&cx, 3, 4).unwrap())
                .push(BatchNormalization::new(&cx, 4).unwrap())
        };
        let (a, b) = (make(1), make(2));
        let flat: Vec<f32> = a.download_parameters().unwrap();
        assert_eq!(flat.len(), 3 * 4 + 4 + 4 + 4);
        assert_eq!(flat[..12], a.state_dict().unwrap()["0.weight"].to_vec::<f32>().unwrap());
        b.upload_parameters(&flat).unwrap();
        assert_eq!(b.download_parameters::<f32>().unwrap(), flat);
        let before: Vec<f32> = b.download_parameters().unwrap();
        let e = b.upload_parameters(&flat[1..]).unwrap_err().to_string();
        assert!(e.contains("24 values") && e.contains("23"), "{e}");
        assert_eq!(b.download_parameters::<f32>().unwrap(), before);

        let mut named = a.download_state().unwrap();
        assert_eq!(named["1.num_batches_tracked"].dtype, DType::I64);
        let mean = HostTensor::from_slice(&[1f32, 2., 3., 4.], &[4]).unwrap();
        named.insert("1.running_mean".into(), mean);
        b.upload_state(&named).unwrap();
        assert_eq!(b.download_state().unwrap(), named);
        let mut wrong = named.clone();
        wrong.insert("0.bias".into(), HostTensor::from_slice(&[0f32], &[1]).unwrap());
        assert!(matches!(b.upload_state(&wrong), Err(NnError::StateShape { .. })));
        assert!(matches!(b.upload_state(&BTreeMap::new()), Err(NnError::StateNames { .. })));
        if let Some(t) = wrong.get_mut("0.bias") {
            (t.shape, t.bytes) = (vec![4], vec![0; 3]);
        }
        assert!(b.upload_state(&wrong).is_err(), "bytes that do not fit the shape");
        assert_eq!(b.download_state().unwrap(), named, "refused state changes nothing");
    }
    // 16-bit parameters are rounded.
    let layer = Dense::new(&InitContext::new(&cpu(), 1).dtype(DType::F16), 1, 1).unwrap();
    layer.upload_parameters(&[1.0f64 + 1e-9, 0.5]).unwrap();
    assert_eq!(layer.download_parameters::<f32>().unwrap(), [1.0, 0.5]);
}

/// Rounds, and says that it has no useful gradient; with a table of integers that someone took for a parameter.
#[derive(Debug)]
struct Quantise(Param);

impl Layer for Quantise {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        x.detach().round(0)
    }
    fn visit(&self, v: &mut Visitor<'_>) {
        v.param("codes", &self.0);
    }
    fn no_gradient(&self) -> Option<String> {
        Some("rounding has no backward".into())
    }
}

#[test]
fn capabilities_with_reasons() {
    for d in devices() {
        let cx = InitContext::new(&d, 1);
        let model = mlp(&cx);
        assert!(model.supports_training().is_yes() && model.can_train_on(&d).is_yes());
        assert_eq!(model.can_train_on(&d).to_string(), "yes");
        model.can_train_on(&d).ok().unwrap();
        let list = model.capabilities(Some(&d));
        let seen: Vec<_> = list.iter().map(|l| (l.name.as_str(), l.kind.as_str(), l.parameters)).collect();
        assert_eq!(
            seen,
            [("", "Sequential", 0), ("in", "Dense", 16), ("drop", "Dropout", 0), ("out", "Dense", 10)]
        );
        assert!(list.iter().all(|l| l.training.is_yes()));

        // Nothing to train: a layer without parameters, and one that does not have them yet.
        let none = Flatten::default().supports_training();
        assert!(none.to_string().contains("Flatten: no trainable parameters"), "{none}");
        let lazy = Dense::lazy(&cx, 2).unwrap();
        assert!(!lazy.supports_training().is_yes());
        lazy.forward(&f32s(&d, &[1.0], &[1, 1])).unwrap();
        assert!(lazy.supports_training().is_yes());

        // A layer without backward, and integers as a parameter.
        let codes = Param::new(Tensor::from_slice(&d, &[1i32, 2], &[2]).unwrap());
        let inner = Sequential::new().named("round", Quantise(codes));
        let model = Sequential::new().named("fc", Dense::new(&cx, 2, 2).unwrap()).named("tail", inner);
        let answer = model.supports_training();
        let o =
            |what: &str| Obstacle { layer: "tail.round".into(), kind: "Quantise".into(), what: what.into() };
        assert_eq!(
            answer.obstacles,
            [
                o("rounding has no backward"),
                o("parameter `tail.round.codes` is i32; only floats have gradients")
            ]
        );
        let e = answer.ok().unwrap_err().to_string();
        assert!(e.contains("tail.round (Quantise)") && e.contains("rounding has no backward"), "{e}");
        let boxed: Box<dyn Layer> = Box::new(Checkpointed::new(Quantise(Param::new(f32s(&d, &[1.0], &[1])))));
        assert_eq!(boxed.supports_training().obstacles.len(), 1, "a wrapper passes the answer on");

        // A dtype that the device has not.
        let wide = Dense::new(&InitContext::new(&cpu(), 1).dtype(DType::F64), 2, 2).unwrap();
        let has = trefoil::ops::core::CoreOps::caps(&d).supports(DType::F64);
        let answer = wide.can_train_on(&d);
        assert_eq!(answer.is_yes(), has, "{answer}");
        if !has {
            assert!(answer.to_string().contains("`weight` is f64"), "{answer}");
        }
    }
}
