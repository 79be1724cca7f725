//! Reservoirs: spectral radius, gradients, carried states, refusals.

use trefoil_nn::layers::{Reservoir, ReservoirWeights};
use trefoil_nn::{DType, InitContext, Layer, LayerExt, Tensor};

use crate::common::everywhere::resident;
use crate::common::layers::{f64s, gradcheck_layer, param, refused, state_names};
use crate::common::{close, cpu, devices, tensor};

const DENSE: ReservoirWeights =
    ReservoirWeights { connection_probability: 1.0, spectral_radius: 0.8, input_scaling: 2.0 };

#[test]
fn the_spectral_radius_counts_complex_eigenvalues() {
    let mut complex = 0;
    for seed in 0..20 {
        let cx = InitContext::new(&cpu(), seed).dtype(DType::F64);
        let l = Reservoir::with(&cx, 1, 2, &DENSE).unwrap();
        let w = param(&l, "w_res");
        // Eigenvalues of a matrix of two rows: t / 2 +- sqrt(t^2 / 4 - det).
        let (half, det) = ((w[0] + w[3]) / 2.0, w[0] * w[3] - w[1] * w[2]);
        let root = half * half - det;
        complex += u32::from(root < 0.0);
        let radius = if root < 0.0 { det.sqrt() } else { half.abs() + root.sqrt() };
        close(&[radius], &[0.8], 1e-5, "spectral radius");
    }
    assert!((3..18).contains(&complex), "both kinds of eigenvalues occur: {complex}");
}

#[test]
fn weights_are_drawn_as_described() {
    let cx = f64s();
    let l =
        Reservoir::with(&cx, 3, 60, &ReservoirWeights { input_scaling: 2.0, ..Default::default() }).unwrap();
    let connected = param(&l, "w_res").iter().filter(|&&w| w != 0.0).count();
    assert!((240..480).contains(&connected), "a tenth of 3600: {connected}");
    let w_in = param(&l, "w_in");
    let largest = w_in.iter().fold(0.0f64, |m, w| m.max(w.abs()));
    assert!(largest <= 1.0 && largest > 0.9, "{largest}");
    assert_eq!(state_names(&l), ["w_in", "w_res"]);
    assert!(l.named_parameters().is_empty());
}

#[test]
fn gradients_and_carried_states() {
    for leak in [1.0, 0.3] {
        let make = || Reservoir::with(&f64s(), 3, 5, &DENSE).unwrap().leaking_rate(leak).unwrap();
        let l = make();
        let x = tensor(&cpu(), &[2, 4, 3], 3);
        gradcheck_layer(&format!("leak {leak}"), &l, std::slice::from_ref(&x), |t| l.forward(&t[0]));
        let floats = |t: Tensor| t.to_vec::<f64>().unwrap();
        let want = l.forward(&x).unwrap();
        let sequence = x.select(0, 1).unwrap();
        let alone = floats(l.forward(&sequence).unwrap());
        close(&alone, &floats(want.select(0, 1).unwrap()), 1e-12, "a sequence alone");
        let stateful = make().stateful();
        stateful.load_state_dict(&l.state_dict().unwrap()).unwrap();
        for _ in 0..2 {
            for t in 0..4 {
                let step = stateful.forward(&sequence.select(0, t).unwrap()).unwrap();
                assert_eq!(step.shape(), [5]);
                close(&floats(step), &alone[5 * t..5 * t + 5], 1e-12, "step by step");
            }
            refused(stateful.forward(&x), &["Reservoir", "`x`", "a batch of 1"]);
            stateful.reset_state();
        }
        let leaf = x.with_grad();
        assert!(!make().detach_input(true).forward(&leaf).unwrap().requires_grad());
    }
}

#[test]
fn a_readout_is_fitted_in_one_step() {
    let l = Reservoir::with(&f64s(), 3, 5, &DENSE).unwrap();
    let states = l.forward(&tensor(&cpu(), &[4, 6, 3], 3)).unwrap();
    let w = tensor(&cpu(), &[2, 5], 9);
    let targets = states.matmul(&w.t().unwrap()).unwrap();
    let floats = |t: &Tensor| t.to_vec::<f64>().unwrap();
    let found = Reservoir::ridge_readout(&states, &targets, 0.0).unwrap();
    close(&floats(&found), &floats(&w), 1e-9, "exact");
    // (S^T S + beta I) w = S^T y.
    let found = Reservoir::ridge_readout(&states, &targets, 0.5).unwrap();
    let s = states.reshape(&[24, 5]).unwrap();
    let left = found.matmul(&s.t().unwrap()).unwrap().matmul(&s).unwrap().add_scaled(&found, 0.5).unwrap();
    let right = targets.reshape(&[24, 2]).unwrap().t().unwrap().matmul(&s).unwrap();
    close(&floats(&left), &floats(&right), 1e-10, "normal equations");
    let fit = |s: &Tensor, y: &Tensor, beta| Reservoir::ridge_readout(s, y, beta);
    refused(fit(&states, &targets, -1.0), &["beta", "at least 0"]);
    refused(fit(&states, &targets.narrow(1, 0, 5).unwrap(), 1.0), &["targets", "[4, 6]", "[4, 5, 2]"]);
    refused(
        fit(&states.narrow(0, 0, 0).unwrap(), &targets.narrow(0, 0, 0).unwrap(), 0.0),
        &["beta", "above 0"],
    );
}

#[test]
fn refusals() {
    let cx = f64s();
    let with = |change: fn(&mut ReservoirWeights)| {
        let mut weights = DENSE;
        change(&mut weights);
        Reservoir::with(&cx, 3, 5, &weights)
    };
    refused(Reservoir::new(&cx, 0, 5), &["Reservoir", "input_size", "0"]);
    refused(Reservoir::new(&cx, 3, 0), &["reservoir_size", "0"]);
    refused(with(|w| w.connection_probability = 0.0), &["connection_probability", "(0, 1]"]);
    refused(with(|w| w.spectral_radius = 0.0), &["spectral_radius", "above 0"]);
    refused(with(|w| w.input_scaling = f64::INFINITY), &["input_scaling", "above 0"]);
    refused(
        with(|w| w.connection_probability = 1e-12),
        &["connection_probability", "spectral radius above 0"],
    );
    let l = || Reservoir::with(&cx, 3, 5, &DENSE).unwrap();
    refused(l().leaking_rate(0.0), &["leaking_rate", "(0, 1]"]);
    refused(l().leaking_rate(1.5), &["leaking_rate", "1.5"]);
    refused(l().forward(&tensor(&cpu(), &[2, 4, 2], 1)), &["Reservoir", "`x`", "3"]);
    refused(l().forward(&tensor(&cpu(), &[2, 0, 3], 1)), &["Reservoir", "at least one step"]);
    refused(l().forward(&tensor(&cpu(), &[1, 2, 4, 3], 1)), &["Reservoir", "[B, T, D]"]);
}

#[test]
fn nothing_waits_for_the_device() {
    for d in devices() {
        let cx = InitContext::new(&d, 1);
        let l = Reservoir::with(&cx, 3, 5, &DENSE).unwrap().leaking_rate(0.5).unwrap().stateful();
        let x = Tensor::ones(&d, DType::F32, &[2, 3, 3]).unwrap().with_grad();
        let run = || l.forward(&x).unwrap().sum().unwrap().backward().unwrap();
        run();
        resident("a reservoir", &d, run);
    }
}
