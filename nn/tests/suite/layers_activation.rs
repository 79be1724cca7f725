//! Nonlinearities as layers, and the fully connected layer of vectors.

use crate::common::layers::{f64s, gradcheck_layer, on_devices, param, refused, round_trip, state_names};
use crate::common::{close, cpu, gradcheck, noise, tensor};
use trefoil::DType;
use trefoil::ops::activation::Activation as Act;
use trefoil_nn::layers::*;
use trefoil_nn::{Layer, Result, Tensor};

fn host(t: &Tensor) -> Vec<f64> {
    t.to_vec::<f64>().unwrap()
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// Every scalar kind by its name, its definition, and its slope at kinks (position, slope).
type Scalar = (&'static str, fn(f64) -> f64, &'static [(f64, f64)]);

/// Phi(x) of the standard normal distribution by Simpson's rule.
fn phi(x: f64) -> f64 {
    let n = 2000;
    let h = x / n as f64;
    let f = |t: f64| (-0.5 * t * t).exp() / (2.0 * std::f64::consts::PI).sqrt();
    let inner: f64 = (1..n).map(|i| f(i as f64 * h) * if i % 2 == 1 { 4.0 } else { 2.0 }).sum();
    0.5 + h / 3.0 * (f(0.0) + inner + f(x))
}

const SELU: (f64, f64) = (1.0507009873554805, 1.6732632423543772);

const SCALARS: &[Scalar] = &[
    ("identity", |x| x, &[]),
    ("relu", |x| x.max(0.0), &[(0.0, 0.0)]),
    ("leaky_relu", |x| if x > 0.0 { x } else { 0.01 * x }, &[(0.0, 0.01)]),
    ("relu6", |x| x.clamp(0.0, 6.0), &[(0.0, 0.0), (6.0, 0.0)]),
    ("elu", |x| if x > 0.0 { x } else { x.exp_m1() }, &[(0.0, 1.0)]),
    ("selu", |x| SELU.0 * if x > 0.0 { x } else { SELU.1 * x.exp_m1() }, &[(0.0, SELU.0 * SELU.1)]),
    ("celu", |x| if x > 0.0 { x } else { x.exp_m1() }, &[(0.0, 1.0)]),
    ("sigmoid", sigmoid, &[]),
    ("tanh", f64::tanh, &[]),
    ("softplus", |x| if x > 20.0 { x } else { x.exp().ln_1p() }, &[]),
    ("log_sigmoid", |x| x.min(0.0) - (-x.abs()).exp().ln_1p(), &[(0.0, 0.5)]),
    ("gelu", |x| x * phi(x), &[]),
    (
        "gelu_tanh",
        |x| 0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh()),
        &[],
    ),
    ("silu", |x| x * sigmoid(x), &[]),
    ("swish", |x| x * sigmoid(x), &[]),
    ("mish", |x| x * x.exp().ln_1p().tanh(), &[]),
    ("softsign", |x| x / (1.0 + x.abs()), &[(0.0, 1.0)]),
    ("hard_sigmoid", |x| (x / 6.0 + 0.5).clamp(0.0, 1.0), &[(-3.0, 0.0), (3.0, 0.0)]),
    ("hard_swish", |x| x * (x + 3.0).clamp(0.0, 6.0) / 6.0, &[(-3.0, 0.0), (3.0, 1.0)]),
    ("hardtanh", |x| x.clamp(-1.0, 1.0), &[(-1.0, 0.0), (1.0, 0.0)]),
    ("lisht", |x| x * x.tanh(), &[]),
    ("isru", |x| x / (1.0 + x * x).sqrt(), &[]),
    ("bent_identity", |x| ((x * x + 1.0).sqrt() - 1.0) / 2.0 + x, &[]),
    ("gaussian", |x| (-x * x).exp(), &[]),
    ("sqrbf", |x| (-x * x).exp(), &[]),
    ("scaled_tanh", |x| (x / 2.0).tanh(), &[]),
    ("thresholded_relu", |x| if x > 1.0 { x } else { 0.0 }, &[(1.0, 0.0)]),
    (
        "sign",
        |x| {
            if x > 0.0 {
                1.0
            } else if x < 0.0 {
                -1.0
            } else {
                0.0
            }
        },
        &[(0.0, 0.0)],
    ),
];

#[test]
fn scalar_kinds_follow_their_definitions() {
    for (name, f, kinks) in SCALARS {
        let layer = Activation::new(ActivationKind::from_name(name).unwrap()).unwrap();
        let mut data: Vec<f64> = noise(3, 40).iter().map(|v| 4.0 * v).collect();
        data.extend([0.0, -30.0, 30.0, -8.0, 8.0]);
        data.extend(kinks.iter().map(|k| k.0));
        let x = Tensor::from_slice(&cpu(), &data, &[data.len()]).unwrap().with_grad();
        let y = layer.forward(&x).unwrap();
        close(&host(&y), &data.iter().map(|&v| f(v)).collect::<Vec<_>>(), 2e-9, name);
        y.sum().unwrap().backward().unwrap();
        let grad = host(&x.grad().unwrap());
        let h = 1e-5;
        for (i, &v) in data.iter().enumerate() {
            if kinks.iter().all(|k| (v - k.0).abs() > 2.0 * h) {
                let want = (f(v + h) - f(v - h)) / (2.0 * h);
                assert!((grad[i] - want).abs() < 1e-6, "{name}: slope {} at {v}, expected {want}", grad[i]);
            }
        }
        for (i, (at, slope)) in kinks.iter().enumerate() {
            let got = grad[data.len() - kinks.len() + i];
            assert!((got - slope).abs() < 1e-12, "{name}: slope {got} at {at}, expected {slope}");
        }
        on_devices(
            name,
            &[&[4, 9]],
            |_| Activation::new(ActivationKind::from_name(name).unwrap()),
            |l, t| l.forward(&t[0]),
        );
    }
    assert!(ActivationKind::from_name("rely").is_none());
}

#[test]
fn constants_are_read_set_and_checked() {
    let with = |name: &str, set: &[(&str, f64)]| -> Result<Activation> {
        let mut kind = ActivationKind::from_name(name).unwrap();
        for (n, v) in set {
            *kind
                .constants()
                .into_iter()
                .find(|(own, _)| own == n)
                .unwrap_or_else(|| panic!("{name}: {n}"))
                .1 = *v;
        }
        Activation::new(kind)
    };
    let at = |name: &str, set: &[(&str, f64)], x: f64| {
        let x = Tensor::from_slice(&cpu(), &[x], &[1]).unwrap();
        with(name, set).unwrap().forward(&x).unwrap().item::<f64>().unwrap()
    };
    let near = |a: f64, b: f64| assert!((a - b).abs() < 1e-12, "{a} and {b}");
    near(at("leaky_relu", &[("negative_slope", 0.3)], -2.0), -0.6);
    near(at("elu", &[("alpha", 2.0)], -1.0), 2.0 * (-1f64).exp_m1());
    near(at("celu", &[("alpha", 2.0)], -1.0), 2.0 * (-0.5f64).exp_m1());
    near(at("isru", &[("alpha", 3.0)], 1.0), 0.5);
    near(at("swish", &[("beta", 2.0)], 1.0), sigmoid(2.0));
    near(at("softplus", &[("beta", 2.0), ("threshold", 10.0)], 1.0), 2f64.exp().ln_1p() / 2.0);
    near(at("softplus", &[("beta", 2.0), ("threshold", 1.0)], 1.0), 1.0);
    near(at("sqrbf", &[("beta", 0.5)], 2.0), (-2f64).exp());
    near(at("scaled_tanh", &[("beta", 4.0)], 0.5), 1f64.tanh());
    near(at("hardtanh", &[("min_val", -0.5), ("max_val", 2.0)], 3.0), 2.0);
    near(at("hardtanh", &[("min_val", -0.5), ("max_val", 2.0)], -3.0), -0.5);
    near(at("thresholded_relu", &[("theta", 2.0)], 1.5), 0.0);
    for alpha in [0.0, -1.0, f64::NAN] {
        refused(with("celu", &[("alpha", alpha)]), &["Activation", "alpha"]);
    }
    refused(with("isru", &[("alpha", -1.0)]), &["Activation", "alpha"]);
    refused(with("leaky_relu", &[("negative_slope", f64::INFINITY)]), &["Activation", "negative_slope"]);
}

/// The nearest point of the simplex by bisection.
fn nearest(x: &[f64]) -> Vec<f64> {
    let (mut lo, mut hi) = (-10.0, 10.0);
    for _ in 0..200 {
        let t = 0.5 * (lo + hi);
        let sum: f64 = x.iter().map(|v| (v - t).max(0.0)).sum();
        if sum > 1.0 { lo = t } else { hi = t }
    }
    x.iter().map(|v| (v - lo).max(0.0)).collect()
}

#[test]
fn vector_kinds_follow_their_definitions() {
    let softmax = |x: &[f64]| -> Vec<f64> {
        let sum: f64 = x.iter().map(|v| v.exp()).sum();
        x.iter().map(|v| v.exp() / sum).collect()
    };
    type Vector<'a> = &'a dyn Fn(&[f64]) -> Vec<f64>;
    let kinds: [(&str, Vector<'_>); 5] = [
        ("softmax", &softmax),
        ("log_softmax", &|x| softmax(x).iter().map(|v| v.ln()).collect()),
        ("softmin", &|x| softmax(&x.iter().map(|v| -v).collect::<Vec<_>>())),
        ("sparsemax", &nearest),
        ("squash", &|x| {
            let n: f64 = x.iter().map(|v| v * v).sum::<f64>().sqrt();
            x.iter().map(|v| v * n / (1.0 + n * n)).collect()
        }),
    ];
    for (name, f) in kinds {
        let kind = ActivationKind::from_name(name).unwrap();
        assert!(kind.is_vector());
        let x = tensor(&cpu(), &[2, 5, 3], 4);
        for (dim, axis) in [(-1, 2), (1, 1), (0, 0)] {
            let layer = Activation::new(kind).unwrap().dim(dim);
            let last = |t: &Tensor| t.transpose(axis, -1).unwrap();
            let rows = last(&x);
            let n = rows.shape()[2];
            let want: Vec<f64> = host(&rows).chunks(n).flat_map(f).collect();
            close(&host(&last(&layer.forward(&x).unwrap())), &want, 1e-10, name);
            gradcheck(name, &[&[2, 5, 3]], |v| 1.7 * v, |t| layer.forward(&t[0]));
            let view = tensor(&cpu(), &[3, 5, 2], 4).transpose(0, 2).unwrap();
            let plain = view.contiguous().unwrap();
            assert_eq!(host(&layer.forward(&view).unwrap()), host(&layer.forward(&plain).unwrap()), "{name}");
        }
        let layer = Activation::new(kind).unwrap();
        refused(layer.dim(3).forward(&x), &["Activation", "axis"]);
        let empty = Tensor::zeros(&cpu(), DType::F64, &[2, 0]).unwrap();
        refused(layer.forward(&empty), &["Activation", "axis 1"]);
        on_devices(name, &[&[3, 7]], |_| Activation::new(kind), |l, t| l.forward(&t[0]));
    }
    // Most of a sparse result is 0; equal elements share; a single one is 1.
    let sparse = |x: &[f64]| host(&Tensor::from_slice(&cpu(), x, &[x.len()]).unwrap().sparsemax(-1).unwrap());
    assert_eq!(sparse(&[5.0, 1.0, -2.0]), [1.0, 0.0, 0.0]);
    assert_eq!(sparse(&[2.0, 2.0]), [0.5, 0.5]);
    assert_eq!(sparse(&[-7.0]), [1.0]);
    // At s = 0 both are 0.
    let zero = Tensor::zeros(&cpu(), DType::F64, &[3]).unwrap().with_grad();
    let y = zero.squash(0).unwrap();
    y.sum().unwrap().backward().unwrap();
    assert_eq!((host(&y), host(&zero.grad().unwrap())), (vec![0.0; 3], vec![0.0; 3]));
}

#[test]
fn parametric_relu() {
    let cx = f64s();
    let (one, each) = (Prelu::new(&cx, 1).unwrap(), Prelu::with_init(&cx, 3, 0.1).unwrap());
    assert_eq!((param(&one, "weight"), param(&each, "weight")), (vec![0.25], vec![0.1; 3]));
    assert_eq!(state_names(&one), ["weight"]);
    each.weight().get().assign(&Tensor::from_slice(&cpu(), &[0.5, -1.0, 2.0], &[3]).unwrap()).unwrap();
    let x = Tensor::from_slice(&cpu(), &[1.0, -1.0, -2.0, 0.0, -3.0, 4.0], &[2, 3]).unwrap();
    assert_eq!(host(&one.forward(&x).unwrap()), [1.0, -0.25, -0.5, 0.0, -0.75, 4.0]);
    assert_eq!(host(&each.forward(&x).unwrap()), [1.0, 1.0, -4.0, 0.0, 3.0, 4.0]);
    for shape in [&[2usize, 3][..], &[2, 3, 2, 2]] {
        let x = tensor(&cpu(), shape, 2);
        gradcheck_layer("Prelu", &each, std::slice::from_ref(&x), |t| each.forward(&t[0]));
        gradcheck_layer("Prelu", &one, &[x], |t| one.forward(&t[0]));
    }
    round_trip(&each, &Prelu::new(&cx, 3).unwrap(), &x);
    refused(Prelu::new(&cx, 0), &["Prelu", "num_parameters"]);
    refused(Prelu::with_init(&cx, 1, f64::NAN), &["Prelu", "num_parameters"]);
    refused(each.forward(&tensor(&cpu(), &[2, 4], 1)), &["Prelu", "3 channels", "[2, 4]"]);
    on_devices("Prelu", &[&[4, 3, 5]], |cx| Prelu::new(cx, 3), |l, t| l.forward(&t[0]));
}

#[test]
fn fully_connected_takes_vectors_only() {
    let cx = f64s();
    let layer = FullyConnected::new(&cx, 3, 2).unwrap().activation(Act::Tanh);
    assert_eq!(layer.kind(), "FullyConnected");
    assert_eq!(Dense::lazy(&cx, 1).unwrap().kind(), "Dense");
    for shape in [&[3usize][..], &[4, 3]] {
        gradcheck_layer("FullyConnected", &layer, &[tensor(&cpu(), shape, 1)], |t| layer.forward(&t[0]));
    }
    refused(
        layer.forward(&tensor(&cpu(), &[2, 2, 3], 1)),
        &["FullyConnected", "Flatten", "Dense", "[2, 2, 3]"],
    );
    refused(layer.forward(&tensor(&cpu(), &[2, 4], 1)), &["FullyConnected", "[.., 3]"]);
    refused(FullyConnected::lazy(&cx, 0), &["FullyConnected", "out_features"]);
    round_trip(
        &layer,
        &FullyConnected::new(&cx, 3, 2).unwrap().activation(Act::Tanh),
        &tensor(&cpu(), &[2, 3], 1),
    );
}
