//! Capsules: gradients, refusals, routing by hand, the entropy of the couplings.

use std::slice::from_ref;

use trefoil_nn::layers::{Capsule, DigitCapsule, Flatten, PrimaryCapsule, Reconstruction};
use trefoil_nn::{DType, Device, InitContext, Layer, LayerExt, Result, Tensor, auxiliary};

use crate::common::everywhere::resident;
use crate::common::layers::{f64s, gradcheck_layer, refused, state_names};
use crate::common::{close, cpu, devices, tensor};

fn host(t: &Tensor) -> Vec<f64> {
    t.to_vec().unwrap()
}

/// The one term that a forward pass adds to the loss.
fn term(l: &dyn Layer, x: &Tensor) -> Result<Tensor> {
    let (_, mut terms) = auxiliary::collect(|| l.forward(x))?;
    assert_eq!(terms.len(), 1, "{}", l.kind());
    Ok(terms.remove(0))
}

#[test]
fn gradients_names_and_refusals() {
    let cx = f64s();
    let u = tensor(&cpu(), &[2, 4, 3], 1);
    let capsule = || Capsule::new(&cx, 4, 3, 3, 2).unwrap();
    let digit = || DigitCapsule::new(&cx, 4, 3, 3, 2).unwrap();
    let layers: [Box<dyn Layer>; 4] = [
        Box::new(capsule()),
        Box::new(capsule().routing_iterations(1).unwrap().no_bias()),
        Box::new(digit()),
        Box::new(digit().routing_iterations(2).unwrap().flatten(true)),
    ];
    for l in &layers {
        gradcheck_layer(l.kind(), l, from_ref(&u), |t| l.forward(&t[0]));
        for wrong in [&[2usize, 4, 2][..], &[2, 3, 3], &[4, 3], &[2, 12]] {
            refused(l.forward(&tensor(&cpu(), wrong, 1)), &[l.kind(), "`u`", "[B, 4, 3]"]);
        }
    }
    assert_eq!(state_names(&capsule()), ["weight", "bias"]);
    assert_eq!(state_names(&digit()), ["weight"]);
    assert_eq!(digit().state_dict().unwrap()["weight"].shape(), [4, 3, 3, 2]);
    refused(Capsule::new(&cx, 4, 3, 0, 2), &["Capsule", "num_capsules"]);
    refused(DigitCapsule::new(&cx, 4, 3, 3, 0), &["DigitCapsule", "out_dim"]);
    refused(capsule().routing_iterations(0), &["Capsule", "routing_iterations", "at least 1"]);
    refused(digit().aux_weight(f64::NAN), &["DigitCapsule", "aux_weight"]);

    let primary = PrimaryCapsule::with_kernel(&cx, 2, 2, 3, 3).unwrap();
    let x = tensor(&cpu(), &[2, 2, 5, 6], 2);
    gradcheck_layer("PrimaryCapsule", &primary, from_ref(&x), |t| primary.forward(&t[0]));
    assert_eq!(state_names(&primary), ["conv.weight", "conv.bias"]);
    let y = Flatten::new(1, 3).forward(&primary.forward(&x).unwrap()).unwrap();
    assert_eq!(y.shape(), [2, 2 * 2 * 2, 3]);
    refused(PrimaryCapsule::new(&cx, 2, 0, 3), &["PrimaryCapsule", "capsule_channels"]);
    refused(PrimaryCapsule::new(&cx, 2, 2, 3).unwrap().forward(&x), &["x", "9", "5"]);
    refused(primary.forward(&tensor(&cpu(), &[2, 3, 5, 6], 2)), &["x", "2 channels"]);
    refused(primary.forward(&tensor(&cpu(), &[5, 6], 2)), &["PrimaryCapsule", "`x`", "[B, C, ..]"]);

    let decoder = Reconstruction::with_hidden(&cx, 6, 4, 5, 3).unwrap();
    let x = tensor(&cpu(), &[2, 3, 2], 3);
    gradcheck_layer("Reconstruction", &decoder, from_ref(&x), |t| decoder.forward(&t[0]));
    let names = ["0.weight", "0.bias", "2.weight", "2.bias", "4.weight", "4.bias"];
    assert_eq!(state_names(&decoder), names);
    refused(
        decoder.forward(&tensor(&cpu(), &[2, 4], 1)),
        &["Reconstruction", "`x`", "multiple of 6", "[2, 4]"],
    );
    refused(Reconstruction::with_hidden(&cx, 6, 4, 0, 3), &["Reconstruction", "hidden2"]);
}

#[test]
fn capsules_agree() {
    let d = cpu();
    // Two inputs with the same prediction of output 0 and opposite ones of output 1.
    let w = [3.0, 0.0, 3.0, 0.0, 3.0, 0.0, -3.0, 0.0];
    let w = Tensor::from_slice(&d, &w, &[2, 1, 2, 2]).unwrap();
    let u = Tensor::ones(&d, DType::F64, &[1, 2, 1]).unwrap();
    let lengths = |iterations: usize| {
        let l = Capsule::new(&f64s(), 2, 1, 2, 2).unwrap().no_bias().routing_iterations(iterations).unwrap();
        l.load_state_dict(&[("weight".to_string(), w.clone())].into()).unwrap();
        host(&l.forward(&u).unwrap().norm_axes(2.0, &[-1], false).unwrap())
    };
    // Half of each prediction at first: s = (3, 0) for output 0 and 0 for output 1.
    close(&lengths(1), &[0.9, 0.0], 1e-12, "without routing");
    // Then the logits of output 0 are those of output 1 and 3 * 0.9 more.
    let c = 1.0 / (1.0 + (-2.7f64).exp());
    let n = (6.0 * c).powi(2);
    close(&lengths(2), &[n / (1.0 + n), 0.0], 1e-12, "routed once");
    assert!(lengths(3)[0] > lengths(2)[0]);

    // Without anything to route, output and gradient are 0 and not NaN.
    let l = DigitCapsule::new(&f64s(), 2, 1, 2, 2).unwrap();
    let u = Tensor::zeros(&d, DType::F64, &[1, 2, 1]).unwrap().with_grad();
    let y = l.forward(&u).unwrap();
    y.sum().unwrap().backward().unwrap();
    assert_eq!(host(&y), [0.0; 4]);
    assert_eq!(host(&u.grad().unwrap()), [0.0; 2]);
}

#[test]
fn sharp_couplings_cost_less() {
    let cx = f64s();
    let u = tensor(&cpu(), &[2, 4, 3], 1);
    let make = |weight: f64| Capsule::new(&cx, 4, 3, 3, 2).unwrap().aux_weight(weight).unwrap();
    let even = make(0.5).routing_iterations(1).unwrap();
    close(&host(&term(&even, &u).unwrap()), &[0.5 * 3f64.ln()], 1e-12, "equal coefficients");
    let routed = make(2.0);
    assert!(host(&term(&routed, &u).unwrap())[0] < 2.0 * 3f64.ln());
    gradcheck_layer("entropy", &routed, from_ref(&u), |t| term(&routed, &t[0]));
    // What is constant to the routing still has a gradient in the term.
    let detached = make(2.0).detach_routing(true);
    term(&detached, &u).unwrap().backward().unwrap();
    let grad = detached.parameters()[0].get().grad().unwrap();
    assert!(host(&grad).iter().any(|g| g.abs() > 1e-6));
    assert!(auxiliary::collect(|| make(0.0).forward(&u)).unwrap().1.is_empty());
}

/// One step with an auxiliary term.
fn step(l: &dyn Layer, u: &Tensor) {
    let (y, terms) = auxiliary::collect(|| l.forward(u)).unwrap();
    auxiliary::added_to(y.sum().unwrap(), &terms).unwrap().backward().unwrap();
}

#[test]
fn the_entropy_stays_on_the_device() {
    let run = |d: &Device| {
        let l = Capsule::new(&InitContext::new(d, 1), 4, 3, 3, 2).unwrap().aux_weight(0.1).unwrap();
        let u = Tensor::ones(d, DType::F32, &[2, 4, 3]).unwrap();
        step(&l, &u);
        resident("Capsule", d, || step(&l, &u));
    };
    devices().iter().for_each(run);
}
