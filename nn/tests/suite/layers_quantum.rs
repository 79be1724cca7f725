//! Measurements of quantum states, and circuits.

use std::f64::consts::{FRAC_PI_2, PI};
use std::slice::from_ref;

use trefoil_nn::autograd::no_grad;
use trefoil_nn::layers::{Measurement, Quantum};
use trefoil_nn::{DType, Layer, LayerExt, Tensor};

use crate::common::layers::{f64s, gradcheck_layer, refused, state_names};
use crate::common::{close, cpu, tensor};

fn host(t: &Tensor) -> Vec<f64> {
    t.to_vec().unwrap()
}

fn row(values: &[f64]) -> Tensor {
    Tensor::from_slice(&cpu(), values, &[1, values.len()]).unwrap()
}

#[test]
fn measurements() {
    let l = Measurement::new(3).unwrap();
    let (re, im) = (tensor(&cpu(), &[2, 3], 1), tensor(&cpu(), &[2, 3], 2));
    gradcheck_layer("real", &l, from_ref(&re), |t| l.forward(&t[0]));
    gradcheck_layer("two parts", &l, &[re.clone(), im.clone()], |t| Ok(l.forward_all(t)?.remove(0)));
    let complex = l.complex(true);
    let both = Tensor::stack(2, &[&re, &im]).unwrap();
    gradcheck_layer("complex", &complex, from_ref(&both), |t| complex.forward(&t[0]));
    let (parts, axis) = (l.forward_all(&[re.clone(), im]).unwrap(), complex.forward(&both).unwrap());
    close(&host(&axis), &host(&parts[0]), 1e-12, "both forms");
    close(&host(&axis.sum_axes(&[-1], false).unwrap()), &[1.0, 1.0], 1e-12, "sums");

    // A row of zeros has no probabilities, and no gradient.
    let x = Tensor::from_slice(&cpu(), &[0.0, 0.0, 0.0, 3.0, 0.0, 4.0], &[2, 3]).unwrap().with_grad();
    let y = l.forward(&x).unwrap();
    close(&host(&y), &[0.0, 0.0, 0.0, 0.36, 0.0, 0.64], 1e-12, "a row of zeros");
    y.narrow(1, 0, 1).unwrap().sum().unwrap().backward().unwrap();
    let grad = host(&x.grad().unwrap());
    close(&grad[..3], &[0.0; 3], 1e-12, "its gradient");
    close(&grad[3..], &[0.24 * 0.64, 0.0, -0.32 * 0.36], 1e-12, "the gradient of the other");

    refused(l.forward(&tensor(&cpu(), &[2, 4], 1)), &["Measurement", "[.., 3]", "[2, 4]"]);
    refused(complex.forward(&re), &["Measurement", "[.., 3, 2]", "[2, 3]"]);
    let odd = [re.clone(), tensor(&cpu(), &[3], 1)];
    refused(l.forward_all(&odd), &["Measurement", "`im`", "[2, 3]", "[3]"]);
    refused(l.forward_all(&[re.clone(), re.clone(), re]), &["Measurement", "1 or 2 tensors"]);
    refused(Measurement::new(0), &["Measurement", "size"]);
}

/// A circuit with these angles.
fn circuit(l: Quantum, theta: &[f64]) -> Quantum {
    let own = l.parameters()[0].get().detach();
    own.assign(&Tensor::from_slice(&cpu(), theta, own.shape()).unwrap()).unwrap();
    l
}

#[test]
fn rotations_and_controlled_nots() {
    let cx = f64s();
    let make = |n: usize| Quantum::new(&cx, n).unwrap();
    let basis = |i: usize| {
        let mut x = [0.0; 8];
        x[i] = 2.5;
        row(&x)
    };
    let at = |l: &Quantum, x: &Tensor| host(&no_grad(|| l.forward(x)).unwrap());
    // Half a turn exchanges 0 and 1 of its qubit alone; a quarter of a turn leaves both open.
    let l = circuit(make(3), &[0.0, PI, 0.0]);
    close(&at(&l, &basis(1)), &[0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0], 1e-12, "qubit 1");
    let l = circuit(make(3), &[0.0, 0.0, FRAC_PI_2]).expval_z();
    close(&at(&l, &basis(1)), &[-1.0, 1.0, 0.0], 1e-12, "expectations");
    // 001 -> 011 by 0 to 1, 111 by 1 to 2, 110 by 2 to 0.
    let l = circuit(make(3), &[0.0; 3]).ring();
    close(&at(&l, &basis(1)), &[0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0], 1e-12, "a ring");
    let l = make(4).num_layers(3).unwrap().ring();
    let y = l.forward(&tensor(&cpu(), &[5, 16], 3)).unwrap();
    close(&host(&y.sum_axes(&[-1], false).unwrap()), &[1.0; 5], 1e-12, "sums of probabilities");
    assert!(at(&make(3), &row(&[0.0; 8])).iter().all(|p| p.is_nan()), "a row of zeros is no state");
}

#[test]
fn gradients_of_circuits() {
    let cx = f64s();
    let x = tensor(&cpu(), &[2, 5], 1);
    for l in [
        Quantum::new(&cx, 3).unwrap(),
        Quantum::new(&cx, 3).unwrap().num_layers(2).unwrap().ring(),
        Quantum::new(&cx, 3).unwrap().num_layers(2).unwrap().ring().expval_z(),
    ] {
        gradcheck_layer("Quantum", &l, from_ref(&x), |t| l.forward(&t[0]));
        assert_eq!(state_names(&l), ["theta"]);
    }

    // The rule of shifted parameters, which is exact for rotations.
    let theta = [0.3, 1.1, -0.7, 2.0, 0.4, 5.0];
    let l = circuit(Quantum::new(&cx, 3).unwrap().num_layers(2).unwrap().ring().expval_z(), &theta);
    let f = |l: &Quantum| l.forward(&x).unwrap().select(1, 1).unwrap().sum().unwrap();
    f(&l).backward().unwrap();
    let grad = host(&l.parameters()[0].get().grad().unwrap());
    for (i, g) in grad.into_iter().enumerate() {
        let shifted = |by: f64| {
            let mut moved = theta;
            moved[i] += by;
            let l = Quantum::new(&cx, 3).unwrap().num_layers(2).unwrap().ring().expval_z();
            host(&no_grad(|| f(&circuit(l, &moved))))[0]
        };
        close(&[g], &[(shifted(FRAC_PI_2) - shifted(-FRAC_PI_2)) / 2.0], 1e-10, "shifted parameters");
    }
}

#[test]
fn refusals_of_circuits() {
    let cx = f64s();
    for n in [0, 21] {
        refused(Quantum::new(&cx, n), &["Quantum", "num_qubits", "1 to 20"]);
    }
    let l = Quantum::new(&cx, 2).unwrap();
    for shape in [&[3usize, 5][..], &[3, 0], &[]] {
        let x = Tensor::zeros(&cpu(), DType::F64, shape).unwrap();
        refused(l.forward(&x), &["Quantum", "`x`", "d from 1 to 4"]);
    }
    refused(l.num_layers(0), &["Quantum", "num_layers"]);
}
