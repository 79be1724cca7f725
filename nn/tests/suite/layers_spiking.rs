//! Spiking neurons: gradients of potentials and of spikes, carried states, how often each model spikes, refusals.

use serde_json::{Value, json};
use trefoil_nn::autograd::no_grad;
use trefoil_nn::layers::{Neuron, SpikeReset, Spiking, Surrogate};
use trefoil_nn::network::layer;
use trefoil_nn::{DType, InitContext, Layer, LayerExt, Tensor};

use crate::common::everywhere::resident;
use crate::common::layers::{f64s, gradcheck_layer, refused, state_names};
use crate::common::{close, cpu, devices, tensor};

const LEAKY: Neuron = Neuron::LeakyIntegrateAndFire { beta: 0.9 };

/// One neuron whose current is its input.
fn single(neuron: Neuron) -> Spiking {
    let l = Spiking::new(&f64s(), 1, 1, neuron).unwrap();
    for (name, p) in l.named_parameters() {
        p.get().fill(if name == "weight" { 1.0 } else { 0.0 }).unwrap();
    }
    l
}

/// Currents of one neuron, `[T, 1, 1]`.
fn currents(all: &[f64]) -> Tensor {
    Tensor::from_slice(&cpu(), all, &[all.len(), 1, 1]).unwrap()
}

/// When a neuron spikes that gets this current all the time.
fn spike_times(l: &Spiking, current: f64, steps: usize) -> Vec<usize> {
    let y = no_grad(|| l.forward(&currents(&vec![current; steps]))).unwrap().to_vec::<f64>().unwrap();
    (0..steps).filter(|&t| y[t] == 1.0).collect()
}

#[test]
fn gradients_of_potentials() {
    let neurons = [
        LEAKY,
        Neuron::IntegrateAndFire,
        Neuron::Izhikevich,
        Neuron::AdaptiveExponential,
        Neuron::HodgkinHuxley,
    ];
    // What spikes change is constant near these inputs.
    for neuron in neurons {
        let l = Spiking::new(&f64s(), 3, 4, neuron).unwrap();
        gradcheck_layer(&format!("{neuron:?}"), &l, &[tensor(&cpu(), &[5, 2, 3], 3)], |t| {
            Ok(l.run(&t[0], None)?.membrane)
        });
    }
    for reset in [SpikeReset::Subtract, SpikeReset::Zero, SpikeReset::None] {
        let l = Spiking::new(&f64s(), 3, 4, LEAKY).unwrap().threshold(0.2).unwrap().reset(reset).unwrap();
        let l = l.refractory_steps(1).unwrap();
        let x = tensor(&cpu(), &[6, 2, 3], 3);
        assert!(l.forward(&x).unwrap().sum().unwrap().item::<f64>().unwrap() > 3.0);
        gradcheck_layer(&format!("{reset:?}"), &l, &[x], |t| Ok(l.run(&t[0], None)?.membrane));
    }
}

#[test]
fn gradients_through_spikes() {
    // u_1 = I_1, u_2 = 0.9 u_1 + I_2 - s(u_1 - 1).
    let run = |l: &Spiking| {
        let x = currents(&[1.3, 0.4]).with_grad();
        let out = l.run(&x, None).unwrap();
        close(&out.membrane.to_vec::<f64>().unwrap(), &[1.3, 0.9 * 1.3 + 0.4 - 1.0], 1e-12, "potentials");
        assert_eq!(out.spikes.to_vec::<f64>().unwrap(), [1.0, 0.0]);
        out.membrane.select(0, 1).unwrap().sum().unwrap().backward().unwrap();
        x.grad().unwrap().to_vec::<f64>().unwrap()
    };
    close(&run(&single(LEAKY)), &[0.9, 1.0], 1e-12, "spikes held fixed");
    let sigmoid = |z: f64| 1.0 / (1.0 + (-z).exp());
    let (s, z) = (sigmoid(25.0 * 0.3), 0.3f64);
    for (surrogate, slope) in [
        (Surrogate::default(), 1.0 / (1.0 + (std::f64::consts::PI * z).powi(2))),
        (Surrogate::FastSigmoid { slope: 25.0 }, 1.0 / (1.0 + 25.0 * z).powi(2)),
        (Surrogate::Sigmoid { slope: 25.0 }, 25.0 * s * (1.0 - s)),
    ] {
        let l = single(LEAKY).surrogate(surrogate).unwrap().detach_reset(false);
        close(&run(&l), &[0.9 - slope, 1.0], 1e-12, &format!("{surrogate:?}"));
    }
}

#[test]
fn neurons_spike_as_their_models_do() {
    let wait = single(Neuron::IntegrateAndFire).reset(SpikeReset::Zero).unwrap();
    assert_eq!(spike_times(&wait, 0.6, 6), [1, 3, 5]);
    let wait = wait.refractory_steps(2).unwrap();
    assert_eq!(spike_times(&wait, 2.0, 7), [0, 3, 6]);
    let counts = [
        // Regular spiking, with intervals that grow.
        (Neuron::Izhikevich, 10.0, 300),
        (Neuron::AdaptiveExponential, 1000.0, 300),
    ];
    for (neuron, current, steps) in counts {
        let times = spike_times(&single(neuron), current, steps);
        let gaps: Vec<usize> = times.windows(2).map(|w| w[1] - w[0]).collect();
        assert!((4..60).contains(&times.len()), "{neuron:?}: {times:?}");
        assert!(gaps[0] < gaps[gaps.len() - 1], "{neuron:?}: {gaps:?}");
        assert!(spike_times(&single(neuron), 0.0, 100).is_empty(), "{neuron:?} at rest");
    }
    // 20 ms of 10 uA/cm^2 give a spike at once, and a second one about 15 ms later.
    let squid = single(Neuron::HodgkinHuxley);
    let times = spike_times(&squid, 10.0, 2000);
    assert_eq!(times.len(), 2, "{times:?}");
    assert!((1200..1700).contains(&(times[1] - times[0])), "{times:?}");
    assert!(spike_times(&squid, 0.0, 300).is_empty());
}

#[test]
fn states_are_carried() {
    let cx = f64s();
    let whole = Spiking::new(&cx, 3, 4, LEAKY).unwrap().threshold(0.2).unwrap().refractory_steps(1).unwrap();
    let x = tensor(&cpu(), &[6, 2, 3], 3);
    let (first, second) = (x.narrow(0, 0, 3).unwrap(), x.narrow(0, 3, 3).unwrap());
    let floats = |t: &Tensor| t.to_vec::<f64>().unwrap();
    let want = floats(&whole.run(&x, None).unwrap().membrane);
    let start = whole.run(&first, None).unwrap();
    assert_eq!(start.state.tensors().len(), 3);
    let rest = whole.run(&second, Some(&start.state)).unwrap();
    assert_eq!([floats(&start.membrane), floats(&rest.membrane)].concat(), want);
    assert_ne!(floats(&whole.run(&second, None).unwrap().membrane), floats(&rest.membrane));
    let stateful =
        Spiking::new(&cx, 3, 4, LEAKY).unwrap().threshold(0.2).unwrap().refractory_steps(1).unwrap();
    let stateful = stateful.stateful();
    stateful.load_state_dict(&whole.state_dict().unwrap()).unwrap();
    for _ in 0..2 {
        let parts = [&first, &second].map(|x| floats(&stateful.run(x, None).unwrap().membrane));
        assert_eq!(parts.concat(), want);
        stateful.reset_state();
    }
    let batch_first =
        Spiking::new(&cx, 3, 4, LEAKY).unwrap().threshold(0.2).unwrap().refractory_steps(1).unwrap();
    let batch_first = batch_first.batch_first(true);
    batch_first.load_state_dict(&whole.state_dict().unwrap()).unwrap();
    let membrane = batch_first.run(&x.transpose(0, 1).unwrap(), None).unwrap().membrane;
    assert_eq!(floats(&membrane.transpose(0, 1).unwrap()), want);
    refused(batch_first.run(&x.narrow(1, 0, 1).unwrap().squeeze(1).unwrap(), None), &["[B, T, in]"]);
    // One step alone, and another batch, which starts at rest.
    let step = stateful.forward_all(&[x.select(0, 0).unwrap()]).unwrap();
    assert_eq!((step[0].shape(), floats(&step[1])), (&[2usize, 4][..], want[..8].to_vec()));
    let one = stateful.run(&x.narrow(1, 0, 1).unwrap(), None).unwrap();
    assert_eq!(floats(&one.membrane.select(0, 0).unwrap()), want[..4]);
    assert_eq!(state_names(&whole), ["weight", "bias"]);
}

#[test]
fn refusals() {
    let cx = f64s();
    let new = |neuron| Spiking::new(&cx, 3, 4, neuron);
    let x = tensor(&cpu(), &[5, 2, 3], 3);
    refused(new(Neuron::LeakyIntegrateAndFire { beta: 1.5 }), &["Spiking", "beta", "1.5"]);
    refused(Neuron::leaky(0.5), &["tau", "at least 1", "0.5"]);
    refused(Spiking::new(&cx, 0, 4, LEAKY), &["in_features", "0"]);
    refused(new(LEAKY).unwrap().threshold(f64::NAN), &["threshold", "finite"]);
    refused(new(LEAKY).unwrap().dt(0.1), &["dt", "LeakyIntegrateAndFire"]);
    refused(new(LEAKY).unwrap().surrogate(Surrogate::Sigmoid { slope: 0.0 }), &["surrogate", "above 0"]);
    let other = || new(Neuron::Izhikevich).unwrap();
    refused(other().threshold(0.5), &["threshold", "Izhikevich"]);
    refused(other().reset(SpikeReset::Zero), &["reset", "Izhikevich"]);
    refused(other().refractory_steps(1), &["refractory_steps", "Izhikevich"]);
    refused(other().dt(0.0), &["dt", "above 0"]);
    refused(other().forward(&x.narrow(2, 0, 2).unwrap()), &["`x`", "3"]);
    refused(other().forward(&x.narrow(0, 0, 0).unwrap()), &["Spiking", "at least one step"]);
    refused(other().forward(&x.reshape(&[30]).unwrap()), &["Spiking", "[T, B, in]", "[30]"]);
    refused(other().forward_all(&[x.clone(), x.clone()]), &["Spiking", "1 tensor", "2 tensors"]);
    let leaky = new(LEAKY).unwrap().run(&x, None).unwrap().state;
    refused(
        new(LEAKY).unwrap().run(&x.narrow(1, 0, 1).unwrap(), Some(&leaky)),
        &["initial", "[1, 4]", "[2, 4]"],
    );
    refused(new(Neuron::HodgkinHuxley).unwrap().run(&x, Some(&leaky)), &["state", "2 tensors"]);
}

#[test]
fn descriptions() {
    let make = |mut options: Value| {
        (options["type"], options["in_features"], options["out_features"]) =
            (json!("spiking"), json!(3), json!(4));
        layer(&f64s(), &options)
    };
    for options in
        [json!({}), json!({"neuron": "adex", "dt": 0.5}), json!({"surrogate": {"kind": "sigmoid"}})]
    {
        make(options.clone()).unwrap_or_else(|e| panic!("{options}: {e}"));
    }
    // tau is another name of the leak.
    let x = tensor(&cpu(), &[5, 2, 3], 3);
    let potentials = |options: Value| {
        make(options).unwrap().forward_all(std::slice::from_ref(&x)).unwrap()[1].to_vec::<f64>().unwrap()
    };
    assert_eq!(potentials(json!({"tau": 4})), potentials(json!({"beta": 0.75})));
    assert_ne!(potentials(json!({"tau": 4})), potentials(json!({})));
    refused(make(json!({"tau": 4, "beta": 0.75})), &["`tau`", "beta"]);
    refused(make(json!({"neuron": "if", "beta": 0.75})), &["`beta`", "lif"]);
    refused(make(json!({"neuron": "izhikevich", "reset": "zero"})), &["`reset`", "Izhikevich"]);
    refused(make(json!({"dt": 0.1})), &["`dt`", "differential equation"]);
    refused(make(json!({"surrogate": "step"})), &["`surrogate`", "step"]);
    refused(make(json!({"surrogate": {"kind": "atan", "slope": 3}})), &["`surrogate`", "slope"]);
}

#[test]
fn nothing_waits_for_the_device() {
    for d in devices() {
        let cx = InitContext::new(&d, 1).dtype(DType::F16);
        let l = Spiking::new(&cx, 3, 4, LEAKY).unwrap().threshold(0.2).unwrap().refractory_steps(1).unwrap();
        let x = Tensor::ones(&d, DType::F16, &[3, 2, 3]).unwrap().with_grad();
        let run = || {
            let y = l.forward(&x).unwrap();
            assert_eq!(y.dtype(), DType::F16);
            y.sum().unwrap().backward().unwrap();
        };
        run();
        resident("spiking neurons", &d, run);
    }
}
