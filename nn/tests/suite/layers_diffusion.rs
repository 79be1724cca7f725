//! Diffusion of heat on surfaces and by random walks: gradients, limits, refusals.

use serde_json::json;
use trefoil_nn::layers::{DiffusionConv, DiffusionMethod, RandomWalkConv, Surface};
use trefoil_nn::{Graph, InitContext, Layer, LayerExt, Result, Tensor, network};

use crate::common::everywhere::resident;
use crate::common::layers::{f64s, gradcheck_layer, param, refused, state_names};
use crate::common::{close, cpu, tensor};

/// The vertices of a ring with masses of their own.
const V: usize = 5;
const MASS: [f64; V] = [1.0, 0.5, 2.0, 1.5, 0.75];

fn vector(values: &[f64]) -> Tensor {
    Tensor::from_slice(&cpu(), values, &[values.len()]).unwrap()
}

/// The Laplacian of the ring.
fn laplacian() -> Tensor {
    let mut l = [0.0; V * V];
    for i in 0..V {
        l[i * V + i] = 2.0;
        l[i * V + (i + 1) % V] = -1.0;
        l[i * V + (i + V - 1) % V] = -1.0;
    }
    Tensor::from_slice(&cpu(), &l, &[V, V]).unwrap()
}

/// Numbers as of eigenvectors; the layer does not depend on their being some.
fn basis() -> [Tensor; 3] {
    [vector(&MASS), vector(&[0.0, 0.5, 1.5]), tensor(&cpu(), &[V, 3], 4)]
}

fn implicit(cx: &InitContext) -> DiffusionConv {
    DiffusionConv::new(cx, 2, 3).unwrap().method(DiffusionMethod::Implicit).num_time_scales(2).unwrap()
}

fn spectral(cx: &InitContext) -> DiffusionConv {
    DiffusionConv::new(cx, 2, 3).unwrap().num_eigenvectors(3).unwrap().num_time_scales(2).unwrap()
}

fn run(l: &dyn Layer, x: &Tensor, rest: &[Tensor]) -> Result<Tensor> {
    Ok(l.forward_all(&[std::slice::from_ref(x), rest].concat())?.remove(0))
}

#[test]
fn heat_has_gradients_and_stays_on_the_device() {
    let (d, cx) = (cpu(), f64s());
    let sparse = [vector(&MASS), laplacian()];
    let all = [
        (spectral(&cx), basis().to_vec()),
        (spectral(&cx).per_channel_time().unwrap().no_bias(), basis().to_vec()),
        (implicit(&cx), sparse.to_vec()),
        (implicit(&cx).per_channel_time().unwrap(), sparse.to_vec()),
    ];
    for (l, rest) in &all {
        for shape in [&[V, 2][..], &[2, V, 2]] {
            gradcheck_layer("heat", l, &[tensor(&d, shape, 2)], |t| run(l, &t[0], rest));
        }
        let x = tensor(&d, &[2, V, 2], 1).with_grad();
        let step = || run(l, &x, rest).unwrap().sum().unwrap().backward().unwrap();
        step();
        resident("heat", &d, step);
        let both = run(l, &x, rest).unwrap().to_vec::<f64>().unwrap();
        let sample = |b| run(l, &x.select(0, b).unwrap(), rest).unwrap().to_vec::<f64>().unwrap();
        close(&both, &(0..2).flat_map(sample).collect::<Vec<_>>(), 1e-9, "samples on one surface");
    }
}

#[test]
fn steps_of_conjugate_gradients_solve_the_system() {
    let (cx, x) = (f64s(), tensor(&cpu(), &[V, 2], 1));
    let l =
        DiffusionConv::new(&cx, 2, 2).unwrap().method(DiffusionMethod::Implicit).num_time_scales(1).unwrap();
    let l = l.no_bias().activation(trefoil::ops::activation::Activation::Identity);
    assert_eq!(state_names(&l), ["times", "weight"]);
    close(&param(&l, "times"), &[0.1], 1e-15, "one time");
    let state = l.named_parameters();
    state
        .iter()
        .find(|(n, _)| n == "weight")
        .unwrap()
        .1
        .set(vector(&[1.0, 0.0, 0.0, 1.0]).reshape(&[2, 2]).unwrap());
    let y = run(&l, &x, &[vector(&MASS), laplacian()]).unwrap();
    // (M + t L) y = M x
    let mass = vector(&MASS).unsqueeze(1).unwrap();
    let left = mass.mul(&y).unwrap().add(&laplacian().matmul(&y).unwrap().mul_scalar(0.1).unwrap()).unwrap();
    let right = mass.mul(&x).unwrap();
    close(&left.to_vec::<f64>().unwrap(), &right.to_vec::<f64>().unwrap(), 1e-12, "residual");
    // Numbers whose squares are 0.
    let small = run(&l, &x.mul_scalar(1e-200).unwrap(), &[vector(&MASS), laplacian()]).unwrap();
    let enlarged = small.mul_scalar(1e200).unwrap().to_vec::<f64>().unwrap();
    close(&enlarged, &y.to_vec::<f64>().unwrap(), 1e-12, "small numbers");
    // Columns of zeros have nothing to solve.
    let zeros = run(&l, &x.zeros_like().unwrap(), &[vector(&MASS), laplacian()]).unwrap();
    assert!(zeros.to_vec::<f64>().unwrap().iter().all(|v| *v == 0.0));
}

#[test]
fn times_are_raised_in_training() {
    let cx = f64s();
    let l = spectral(&cx).min_time(0.25).unwrap();
    close(&param(&l, "times"), &[0.01, 1.0], 1e-15, "times at first");
    close(
        &param(&DiffusionConv::new(&cx, 1, 1).unwrap(), "times"),
        &[0.01, 10f64.powf(-4.0 / 3.0), 10f64.powf(-2.0 / 3.0), 1.0],
        1e-15,
        "four times",
    );
    let x = tensor(&cpu(), &[V, 2], 1);
    let y = |l: &DiffusionConv| run(l, &x, &basis()).unwrap().to_vec::<f64>().unwrap();
    l.eval();
    let before = y(&l);
    close(&param(&l, "times"), &[0.01, 1.0], 1e-15, "evaluation leaves them");
    l.train();
    assert_eq!(y(&l), before, "and computes with the least time");
    close(&param(&l, "times"), &[0.25, 1.0], 1e-15, "times of a training step");
    // Two calls in one graph.
    let twice = run(&l, &x, &basis()).unwrap().add(&run(&l, &x, &basis()).unwrap()).unwrap();
    twice.sum().unwrap().backward().unwrap();
}

#[test]
fn surfaces_that_are_none() {
    let (cx, x) = (f64s(), tensor(&cpu(), &[V, 2], 1));
    let (s, i, [mass, values, vectors]) = (spectral(&cx), implicit(&cx), basis());
    let of_basis = |m: &Tensor, l: &Tensor, v: &Tensor| run(&s, &x, &[m.clone(), l.clone(), v.clone()]);
    refused(of_basis(&mass, &vector(&[0.0, -1e-3, 1.0]), &vectors), &["eigenvalues", "-0.001 at position 1"]);
    assert!(of_basis(&mass, &vector(&[-1e-7, 1.0, 2.0]), &vectors).is_ok());
    refused(
        of_basis(&vector(&[1.0, 1.0, 0.0, 1.0, 1.0]), &values, &vectors),
        &["mass", "above 0", "position 2"],
    );
    refused(of_basis(&vector(&[1.0, 1.0, f64::NAN, 1.0, 1.0]), &values, &vectors), &["mass", "NaN"]);
    refused(of_basis(&mass, &values, &vectors.narrow(0, 0, 4).unwrap()), &["eigenvectors", "[5, 3]"]);
    refused(of_basis(&mass, &vectors, &vectors), &["eigenvalues", "[K]"]);
    refused(run(&s, &x.narrow(0, 0, 4).unwrap(), &basis()), &["DiffusionConv", "`x`", "[5, 2]"]);
    refused(
        run(&s, &x, &[mass.clone(), laplacian()]),
        &["DiffusionConv", "mass, eigenvalues and eigenvectors"],
    );
    refused(run(&i, &x, &basis()), &["DiffusionConv", "mass and laplacian"]);
    refused(s.forward(&x), &["DiffusionConv", "surface"]);
    let few = spectral(&cx).num_eigenvectors(4).unwrap();
    refused(run(&few, &x, &basis()), &["num_eigenvectors", "at most the 3", "4"]);
    let graph = Graph::from_dense(&laplacian()).unwrap();
    let surface = Surface::laplacian(&mass, &graph.0, &graph.1).unwrap();
    refused(s.forward_on(&surface, &x), &["surface", "eigenvectors, which the method needs"]);
    refused(
        i.forward_on(&Surface::spectral(&mass, &values, &vectors).unwrap(), &x),
        &["surface", "a Laplacian"],
    );
    let wrong = laplacian().narrow(0, 0, 4).unwrap();
    refused(run(&i, &x, &[mass.clone(), wrong]), &["laplacian", "5 rows and columns", "4 rows"]);
    let uneven = laplacian().add(&tensor(&cpu(), &[V, V], 9)).unwrap();
    refused(run(&i, &x, &[mass.clone(), uneven]), &["laplacian", "a symmetric matrix"]);
    let new = || DiffusionConv::new(&cx, 2, 3).unwrap();
    refused(new().num_time_scales(0), &["DiffusionConv", "num_time_scales"]);
    refused(new().num_eigenvectors(0), &["DiffusionConv", "num_eigenvectors"]);
    refused(new().max_iterations(0), &["DiffusionConv", "max_iterations"]);
    refused(new().min_time(f64::NAN), &["DiffusionConv", "min_time"]);
    refused(DiffusionConv::new(&cx, 2, 0), &["DiffusionConv", "out_channels"]);
}

#[test]
fn walks_spread_what_there_is() {
    let (d, cx) = (cpu(), f64s());
    let e = Tensor::from_slice(&d, &[0i64, 1, 2, 2, 3, 0, 1, 2, 0, 3, 3, 2], &[2, 6]).unwrap();
    let l = RandomWalkConv::new(&cx, 3, 2).unwrap();
    assert_eq!(state_names(&l), ["lin.weight", "lin.bias"]);
    let inputs = [tensor(&d, &[2, 5, 3], 1), tensor(&d, &[6], 2).abs().unwrap()];
    gradcheck_layer("walk", &l, &inputs, |t| run(&l, &t[0], &[e.clone(), t[1].clone()]));
    let l = l.chebyshev(true).max_diffusion_step(3).unwrap().unidirectional().unwrap();
    gradcheck_layer("one way", &l, &inputs[..1], |t| run(&l, &t[0], std::slice::from_ref(&e)));
    let x = tensor(&d, &[5, 3], 3).with_grad();
    let step = || run(&l, &x, std::slice::from_ref(&e)).unwrap().sum().unwrap().backward().unwrap();
    step();
    resident("walk", &d, step);
    refused(l.forward(&x), &["RandomWalkConv", "edge_index"]);
    refused(run(&l, &x, &[e.clone(), inputs[1].narrow(0, 0, 5).unwrap()]), &["edge_weight", "6"]);
    refused(run(&l, &x.narrow(1, 0, 2).unwrap(), &[e]), &["RandomWalkConv", "`x`", "[5, 3]"]);
    refused(RandomWalkConv::new(&cx, 0, 2), &["RandomWalkConv", "in_channels"]);
    refused(l.max_diffusion_step(usize::MAX), &["RandomWalkConv", "max_diffusion_step"]);
}

#[test]
fn options_of_the_other_kind_are_refused() {
    let make = |key: &str, value, kind: &str| {
        let mut json = json!({"type": "diffusion_conv", "kind": kind, "in_channels": 2, "out_channels": 3});
        json[key] = value;
        network::layer(&f64s(), &json)
    };
    for (key, value) in
        [("num_time_scales", json!(2)), ("method", json!("implicit")), ("min_time", json!(0.1))]
    {
        assert!(make(key, value.clone(), "heat").is_ok(), "{key}");
        refused(make(key, value, "random_walk"), &[key, "no such option"]);
    }
    for (key, value) in
        [("max_diffusion_step", json!(2)), ("recurrence", json!("power")), ("bidirectional", json!(true))]
    {
        assert!(make(key, value.clone(), "random_walk").is_ok(), "{key}");
        refused(make(key, value, "heat"), &[key, "no such option"]);
    }
}
