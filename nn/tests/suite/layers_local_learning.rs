//! Layers that learn by rules of their own: what the rules do, where they sample, refusals, residency, sequences that are learned.

use trefoil::DType;
use trefoil_nn::layers::*;
use trefoil_nn::{Device, InitContext, Layer, LayerExt, NnError, Result, Tensor};

use crate::common::everywhere::{resident, values};
use crate::common::layers::{f64s, gradcheck_layer, param, refused, state_names};
use crate::common::{close, cpu, devices, f32s, noise, slow, tensor};

/// Zeros and ones without pattern.
fn bits(d: &Device, shape: &[usize], seed: u64) -> Tensor {
    let v: Vec<f32> = noise(seed, shape.iter().product()).iter().map(|&x| f32::from(x > 0.0)).collect();
    f32s(d, &v, shape)
}

fn state(layer: &dyn Layer, name: &str) -> Vec<f64> {
    values(&layer.state_dict().unwrap()[name])
}

fn load(layer: &dyn Layer, name: &str, t: &Tensor) {
    layer.state_dict().unwrap()[name].assign(t).unwrap();
}

fn rbm(cx: &InitContext) -> Rbm {
    let l = Rbm::new(cx, 5, 4).unwrap();
    for (i, name) in ["weight", "visible_bias", "hidden_bias"].into_iter().enumerate() {
        let t = l.state_dict().unwrap()[name].clone();
        t.assign(&tensor(cx.device(), t.shape(), 3 + i as u64)).unwrap();
    }
    l
}

#[test]
fn contrastive_divergence_descends_the_gap_of_free_energies() {
    let cx = f64s();
    let (l, by_gradient) = (rbm(&cx).persistent(3).unwrap(), rbm(&cx).persistent(3).unwrap().trainable());
    assert_eq!(state_names(&l), ["weight", "visible_bias", "hidden_bias", "chains"]);
    assert!(l.named_parameters().is_empty() && by_gradient.named_parameters().len() == 2);
    let x = tensor(&cpu(), &[2, 3, 5], 1).abs().unwrap();
    gradcheck_layer("Rbm", &by_gradient, std::slice::from_ref(&x), |t| by_gradient.forward(&t[0]));
    gradcheck_layer("free energy", &by_gradient, std::slice::from_ref(&x), |t| {
        by_gradient.free_energy(&t[0])
    });

    // The chains hold what was sampled last.
    let (lr, before) = (0.3, param(&l, "visible_bias"));
    l.learn_from(&x, lr, 2).unwrap();
    let model = l.state_dict().unwrap()["chains"].clone();
    assert!(param(&l, "chains").iter().all(|&v| v == 0.0 || v == 1.0));
    by_gradient.zero_grad().unwrap();
    let energy = |v: &Tensor| by_gradient.free_energy(v).unwrap().mean().unwrap();
    energy(&x).sub(&energy(&model)).unwrap().backward().unwrap();
    for (name, p) in by_gradient.named_parameters() {
        let want = p.get().detach().add_scaled(&p.get().grad().unwrap(), -lr).unwrap();
        close(&param(&l, &name), &want.to_vec::<f64>().unwrap(), 1e-12, &name);
    }
    let mean = |t: &Tensor| t.reshape(&[t.numel() / 5, 5]).unwrap().mean_axes(&[0], false).unwrap();
    let want = mean(&x).sub(&mean(&model)).unwrap().mul_scalar(lr).unwrap().to_vec::<f64>().unwrap();
    let moved: Vec<f64> = param(&l, "visible_bias").iter().zip(before).map(|(a, b)| a - b).collect();
    close(&moved, &want, 1e-12, "visible_bias");
}

#[test]
fn samples_of_a_boltzmann_machine_follow_their_probabilities() {
    for d in devices() {
        let make = || Rbm::new(&InitContext::new(&d, 3), 2, 3).unwrap();
        let (a, b) = (make(), make());
        for l in [&a, &b] {
            load(l, "weight", &Tensor::zeros(&d, DType::F32, &[3, 2]).unwrap());
            load(l, "visible_bias", &f32s(&d, &[-1.0, 0.5], &[2]));
        }
        let rows = 4000;
        let x = Tensor::zeros(&d, DType::F32, &[rows, 2]).unwrap();
        a.learn_from(&x, 1.0, 1).unwrap();
        b.learn_from(&x, 1.0, 1).unwrap();
        assert_eq!(state(&a, "visible_bias"), state(&b, "visible_bias"), "equal seeds draw alike");
        for (after, before) in state(&a, "visible_bias").iter().zip([-1.0, 0.5f64]) {
            let p = 1.0 / (1.0 + (-before).exp());
            let sigma = (p * (1.0 - p) / rows as f64).sqrt();
            assert!((before - after - p).abs() < 5.0 * sigma, "{} of {p}", before - after);
        }
        let first = a.counters();
        a.learn_from(&x, 1.0, 1).unwrap();
        assert!(a.counters()["offset"] > first["offset"]);
    }
    // Two patterns are learned: what comes back is nearer to what went in.
    let l = Rbm::new(&InitContext::new(&cpu(), 1), 6, 4).unwrap().learning_rate(0.5).unwrap();
    let x = f32s(&cpu(), &[1., 1., 1., 0., 0., 0., 0., 0., 0., 1., 1., 1.], &[2, 6]);
    let error = || {
        let y = l.reconstruct(&l.forward(&x).unwrap()).unwrap();
        y.sub(&x).unwrap().square().unwrap().mean().unwrap().item::<f32>().unwrap()
    };
    let before = error();
    for _ in 0..150 {
        l.forward(&x).unwrap();
        LayerExt::learn(&l).unwrap();
    }
    assert!(error() < 0.2 * before, "{} of {before}", error());
    l.eval();
    let kept = state(&l, "weight");
    l.forward(&x).unwrap();
    LayerExt::learn(&l).unwrap();
    assert_eq!(state(&l, "weight"), kept, "nothing is learned in evaluation");
    let tuned = Rbm::new(&InitContext::new(&cpu(), 1), 6, 4).unwrap().trainable();
    assert!(tuned.local_learning().is_none() && l.local_learning().is_some());
}

#[test]
fn spikes_strengthen_the_synapses_that_they_follow() {
    let options = StdpOptions { homeostasis_rate: 0.0, ..StdpOptions::default() };
    let make = || SynapticPlasticity::new(&f64s(), 3, 2, options).unwrap();
    let spike = |n: usize, at: usize| {
        let v: Vec<f64> = (0..n).map(|i| f64::from(i == at)).collect();
        Tensor::from_slice(&cpu(), &v, &[n]).unwrap()
    };
    let none = |n: usize| Tensor::zeros(&cpu(), DType::F64, &[n]).unwrap();
    let l = make();
    let before = param(&l, "weight");
    l.learn_from(&spike(3, 1), Some(&none(2)), 1.0).unwrap();
    assert_eq!(param(&l, "weight"), before, "one spike alone");
    l.learn_from(&none(3), Some(&spike(2, 0)), 1.0).unwrap();
    let mut want = before.clone();
    want[2] += 0.005 * 0.95 * (1.0 - want[2]);
    close(&param(&l, "weight"), &want, 1e-12, "pre before post");

    let l = make();
    l.learn_from(&none(3), Some(&spike(2, 0)), 1.0).unwrap();
    l.learn_from(&spike(3, 1), Some(&none(2)), 1.0).unwrap();
    let mut want = before.clone();
    want[2] -= 0.0025 * 0.95 * want[2];
    close(&param(&l, "weight"), &want, 1e-12, "post before pre");
    assert!(param(&l, "pre_trace").iter().chain(&param(&l, "post_trace")).any(|&v| v != 0.0));
    l.reset_state();
    assert!(param(&l, "pre_trace").iter().chain(&param(&l, "post_trace")).all(|&v| v == 0.0));

    assert!(make().named_parameters().is_empty());
    gradcheck_layer("SynapticPlasticity", &l, &[tensor(&cpu(), &[4, 3], 1)], |t| l.forward(&t[0]));
    let identity = SynapticPlasticity::new(&f64s(), 3, 2, StdpOptions { identity: true, ..options }).unwrap();
    gradcheck_layer("identity", &identity, &[tensor(&cpu(), &[3], 1)], |t| identity.forward(&t[0]));
}

#[test]
fn pooled_columns_are_few_and_take_turns() {
    for d in devices() {
        let make = |seed: u64, boost_strength: f64| {
            let options = SpatialPoolerOptions {
                local_area_density: 0.1,
                boost_strength,
                duty_cycle_period: 10,
                ..SpatialPoolerOptions::default()
            };
            SpatialPooler::new(&InitContext::new(&d, seed), 21, 30, options).unwrap()
        };
        let (l, same, other) = (make(1, 0.0), make(1, 0.0), make(2, 0.0));
        assert!(l.named_parameters().is_empty());
        assert_eq!(state(&l, "permanence"), state(&same, "permanence"));
        assert_ne!(state(&l, "permanence"), state(&other, "permanence"));
        let (potential, permanence) = (state(&l, "potential"), state(&l, "permanence"));
        assert!(potential.chunks(21).all(|c| c.iter().sum::<f64>() == 11.0), "half of 21, rounded");
        let connected =
            permanence.iter().filter(|&&p| p >= 0.1).count() as f64 / potential.iter().sum::<f64>();
        assert!((connected - 0.5).abs() < 0.15, "{connected} are connected");
        let fits = |(on, p): (&f64, &f64)| *p == 0.0 || *on == 1.0 && (0.025..=1.0).contains(p);
        assert!(potential.iter().zip(&permanence).all(fits));

        // Without any overlap all columns are equal, and the last win.
        let none = l.forward(&Tensor::zeros(&d, DType::F32, &[21]).unwrap()).unwrap();
        let want: Vec<f64> = (0..30).map(|c| f64::from(c >= 27)).collect();
        assert_eq!(values(&none), want);
        let x = bits(&d, &[5, 21], 1);
        let y = values(&l.forward(&x).unwrap());
        assert!(y.chunks(30).all(|row| row.iter().sum::<f64>() == 3.0));
        let leaf = x.with_grad();
        l.forward(&leaf).unwrap().sum().unwrap().backward().unwrap();
        assert!(values(&leaf.grad().unwrap()).iter().all(|&g| g == 0.0));
        assert!(l.no_gradient().is_some());
    }
    let used = |boost_strength: f64| {
        let options = SpatialPoolerOptions {
            local_area_density: 0.1,
            boost_strength,
            duty_cycle_period: 10,
            ..SpatialPoolerOptions::default()
        };
        let l = SpatialPooler::new(&InitContext::new(&cpu(), 1), 21, 30, options).unwrap();
        let mut seen = [false; 30];
        for step in 0..40 {
            let y = l.forward(&bits(&cpu(), &[21], 1 + step % 2)).unwrap();
            LayerExt::learn(&l).unwrap();
            values(&y).iter().zip(&mut seen).for_each(|(&y, seen)| *seen |= y == 1.0);
        }
        seen.iter().filter(|&&s| s).count()
    };
    let (plain, boosted) = (used(0.0), used(20.0));
    assert!(boosted > 2 * plain, "{boosted} columns with boosting, {plain} without");
}

#[test]
fn likelihood_judges_the_last_scores_by_all() {
    // Twenty steps around the second fit; the score of a step is its number of active bits that were not predicted, of five.
    let wrong = |step: usize| if step < 480 { step * step % 3 } else { step % 6 };
    let l = AnomalyDetector::new(&f64s(), 10, 0.3).unwrap().likelihood().unwrap();
    let scores: Vec<f64> = (0..500).map(|s| wrong(s) as f64 / 5.0).collect();
    let (mut fit, mut got, mut want) = ((0.0, 1.0), vec![], vec![]);
    for step in 0..500 {
        let x: Vec<f64> = (0..10).map(|i| f64::from(i < 5 || i - 5 >= wrong(step))).collect();
        let y = l.forward(&Tensor::from_slice(&cpu(), &x, &[10]).unwrap()).unwrap();
        got.push(y.item::<f64>().unwrap());
        let average = scores[..=step].iter().rev().take(10).sum::<f64>() / 10.0;
        let z: f64 = (average - fit.0) / f64::sqrt(2.0 * fit.1);
        // The error function, which the standard library lacks.
        let z = Tensor::from_slice(&cpu(), &[z], &[1]).unwrap().erfc().unwrap().item::<f64>().unwrap();
        want.push(if step < 388 { 0.5 } else { 1.0 - 0.5 * z });
        if step == 387 || step == 487 {
            let n = (step + 1) as f64;
            let mean = scores[..=step].iter().sum::<f64>() / n;
            let variance = scores[..=step].iter().map(|s| (s - mean).powi(2)).sum::<f64>() / n;
            fit = (mean.max(0.03), variance.max(3e-4));
        }
    }
    close(&got, &want, 1e-4, "likelihood");
    assert!(got[480..].iter().any(|&p| p > 0.95) && l.is_anomaly().unwrap());
    let s = l.statistics().unwrap().unwrap();
    let mean = scores[400..].iter().sum::<f64>() / 100.0;
    assert!(s.count == 100 && (s.mean - mean).abs() < 1e-6 && s.min == 0.0 && (s.max - 1.0).abs() < 1e-6);
    l.reset_state();
    assert!(l.statistics().unwrap().is_none() && !l.is_anomaly().unwrap());
    assert!(state(&l, "window").iter().all(|&v| v == 0.0));
    let rows = l.scores(&bits(&cpu(), &[2, 3, 10], 1)).unwrap();
    assert_eq!(rows.shape(), [2, 3]);
}

#[test]
fn values_that_are_not_allowed_are_reported_by_the_next_call_that_waits() {
    for d in devices() {
        let cx = InitContext::new(&d, 1);
        let pooler = SpatialPoolerOptions { local_area_density: 0.3, ..SpatialPoolerOptions::default() };
        let layers: [(Box<dyn Layer>, f32); 3] = [
            (Box::new(SpatialPooler::new(&cx, 4, 8, pooler).unwrap()), 0.5),
            (Box::new(AnomalyDetector::new(&cx, 4, 0.5).unwrap()), f32::INFINITY),
            (Box::new(Rbm::new(&cx, 4, 2).unwrap()), 1.5),
        ];
        for (l, bad) in layers {
            let x = f32s(&d, &[0., 1., 1., 0., 1., 0., bad, 0.], &[2, 4]);
            let e = l.forward(&x).unwrap().to_vec::<f32>().unwrap_err();
            let NnError::Value { op, ref place, value, .. } = e else { panic!("{e:?}") };
            assert_eq!((op, place.as_str(), value), (l.kind(), "row 1, position 2", f64::from(bad)));
        }
        let l = Rbm::new(&cx, 4, 2).unwrap();
        assert!(l.forward(&f32s(&d, &[0., 1., 0.5, 0.25], &[4])).unwrap().to_vec::<f32>().is_ok());
    }
}

#[test]
fn levels_learn_on_their_clocks() {
    let cx = f64s();
    // With chunks of 1 the rule is gradient descent.
    let l = ContinuumMemorySystem::new(&cx, 3, 4, 2).unwrap().chunk_sizes(&[1, 1]).unwrap();
    let l = l.level_lr(&[0.1, 0.1]).unwrap();
    let dense = |i: usize, o: usize| {
        Dense::new(&f64s(), i, o).unwrap().activation(trefoil::ops::activation::Activation::Relu)
    };
    let plain = Sequential::new().push(dense(3, 4)).push(dense(4, 4));
    for (name, p) in plain.named_parameters() {
        load(&l, &format!("levels.{name}"), &p.get().detach());
    }
    let mut sgd = trefoil_nn::Optimizer::sgd(&plain, 0.1).unwrap();
    let (x, w) = (tensor(&cpu(), &[5, 3], 1), tensor(&cpu(), &[5, 4], 2));
    for _ in 0..4 {
        l.forward(&x).unwrap().mul(&w).unwrap().sum().unwrap().backward().unwrap();
        LayerExt::learn(&l).unwrap();
        sgd.zero_grad().unwrap();
        plain.forward(&x).unwrap().mul(&w).unwrap().sum().unwrap().backward().unwrap();
        sgd.step().unwrap();
    }
    for (name, p) in plain.named_parameters() {
        close(&param(&l, &format!("levels.{name}")), &p.get().to_vec::<f64>().unwrap(), 1e-12, &name);
    }
    assert!(l.named_parameters().is_empty());
    gradcheck_layer("ContinuumMemorySystem", &l, std::slice::from_ref(&x), |t| l.forward(&t[0]));

    // No backward, nothing to learn; nor in evaluation.
    let before = state(&l, "levels.0.weight");
    l.forward(&x).unwrap();
    LayerExt::learn(&l).unwrap();
    l.eval();
    l.forward(&x.with_grad()).unwrap().sum().unwrap().backward().unwrap();
    LayerExt::learn(&l).unwrap();
    assert_eq!(state(&l, "levels.0.weight"), before);

    // The gradients of a checkpointed system come from the repeated forward.
    let make = || ContinuumMemorySystem::new(&f64s(), 3, 4, 2).unwrap();
    let (direct, again) = (make(), Checkpointed::new(make()));
    let layers: [&dyn Layer; 2] = [&direct, &again];
    for l in layers {
        l.forward(&x.with_grad()).unwrap().mul(&w).unwrap().sum().unwrap().backward().unwrap();
        LayerExt::learn(l).unwrap();
    }
    assert_ne!(state(&direct, "levels.0.weight"), state(&make(), "levels.0.weight"));
    assert_eq!(state(&direct, "levels.0.weight"), state(&again, "levels.0.weight"));
    assert_eq!(state(&direct, "levels.1.count"), [1.0]);

    let l = ContinuumMemorySystem::new(&cx, 3, 4, 3).unwrap();
    let [from, to] = [1, 2].map(|i| param(&l, &format!("levels.{i}.weight")));
    l.consolidate(1).unwrap();
    let want: Vec<f64> = from.iter().zip(&to).map(|(a, b)| 0.01 * a + 0.99 * b).collect();
    close(&param(&l, "levels.2.weight"), &want, 1e-12, "consolidated");
    refused(l.consolidate(0), &["ContinuumMemorySystem", "level", "[4, 3]"]);
    refused(l.consolidate(2), &["before the last of 3"]);
}

/// A column of eight for each letter.
fn letter(d: &Device, c: u8) -> Tensor {
    let v: Vec<f32> = (0..16).map(|i| f32::from(i / 4 == usize::from(c - b'a'))).collect();
    f32s(d, &v, &[16])
}

fn small() -> TemporalMemoryOptions {
    TemporalMemoryOptions {
        cells_per_column: 4,
        activation_threshold: 3,
        min_threshold: 2,
        initial_permanence: 0.3,
        max_new_synapse_count: 4,
        max_synapses_per_segment: 8,
        capacity: 64,
        ..TemporalMemoryOptions::default()
    }
}

#[test]
fn sequences_are_remembered_in_their_context() {
    let d = cpu();
    let l = TemporalMemory::new(&InitContext::new(&d, 1), 16, small()).unwrap();
    let first = l.step(&letter(&d, b'a'), true).unwrap();
    assert_eq!(values(&first).iter().sum::<f64>(), 16.0, "unexpected columns burst");
    for _ in 0..8 {
        for word in ["abc", "dba"] {
            l.reset_state();
            word.bytes().for_each(|c| drop(l.step(&letter(&d, c), true).unwrap()));
        }
    }
    // b alone leaves open what follows; after its beginning it does not.
    let follows = |word: &str| {
        l.reset_state();
        let mut y = first.clone();
        word.bytes().for_each(|c| y = l.step(&letter(&d, c), false).unwrap());
        (values(&y).iter().sum::<f64>(), values(&l.predicted_columns().unwrap()))
    };
    let [a, b, c] = [b'a', b'b', b'c'].map(|c| values(&letter(&d, c)));
    assert_eq!(follows("a"), (16.0, b.clone()));
    assert_eq!(follows("ab"), (4.0, c.clone()));
    assert_eq!(follows("db"), (4.0, a.clone()));
    let either: Vec<f64> = a.iter().zip(&c).map(|(a, c)| a + c).collect();
    assert_eq!(follows("b"), (16.0, either));

    // Another memory with the saved state goes on alike.
    let other = TemporalMemory::new(&InitContext::new(&d, 2), 16, small()).unwrap();
    other.load_state_dict(&l.state_dict().unwrap()).unwrap();
    assert_eq!(values(&other.predictive_cells().unwrap()), values(&l.predictive_cells().unwrap()));

    // A full table refuses, and keeps what it has.
    let options = TemporalMemoryOptions { capacity: 5, ..small() };
    let l = TemporalMemory::new(&InitContext::new(&d, 1), 16, options).unwrap();
    l.step(&letter(&d, b'a'), true).unwrap();
    l.step(&letter(&d, b'b'), true).unwrap();
    let (before, count) = (state(&l, "presynaptic"), l.segment_count().unwrap());
    refused(l.step(&letter(&d, b'c'), true), &["TemporalMemory", "capacity", "5"]);
    assert_eq!((state(&l, "presynaptic"), l.segment_count().unwrap()), (before, count));
}

#[test]
fn a_learned_sequence_is_no_anomaly() {
    for d in devices() {
        let cx = InitContext::new(&d, 1);
        let options = SpatialPoolerOptions { local_area_density: 0.25, ..SpatialPoolerOptions::default() };
        let pooler = SpatialPooler::new(&cx, 24, 16, options).unwrap();
        let memory = TemporalMemory::new(&cx, 16, small()).unwrap();
        let detector = AnomalyDetector::new(&cx, 32, 0.5).unwrap();
        let mut scores = vec![];
        for step in 0..36 {
            if step % 3 == 0 {
                memory.reset_state();
            }
            let predicted = memory.predicted_columns().unwrap().to_dtype(DType::F32).unwrap();
            let x = bits(&d, &[24], 1 + step % 3);
            let columns = pooler.forward(&x).unwrap();
            memory.forward(&columns).unwrap();
            LayerExt::learn(&pooler).unwrap();
            LayerExt::learn(&memory).unwrap();
            let y = detector.forward(&Tensor::concat(0, &[&columns, &predicted]).unwrap()).unwrap();
            scores.push(y.item::<f32>().unwrap());
        }
        // What a sequence begins with is never expected.
        assert_eq!(scores[..3], [1.0; 3]);
        assert_eq!(scores[33..], [1.0, 0.0, 0.0], "{scores:?}");
    }
}

/// One of each, for inputs `[.., 8]`.
fn layers(cx: &InitContext) -> Result<Vec<Box<dyn Layer>>> {
    let pooler = SpatialPoolerOptions {
        local_area_density: 0.3,
        stimulus_threshold: 2,
        straight_through: true,
        ..SpatialPoolerOptions::default()
    };
    Ok(vec![
        Box::new(Rbm::new(cx, 8, 4)?.persistent(2)?),
        Box::new(SynapticPlasticity::new(cx, 8, 8, StdpOptions { recurrent: true, ..Default::default() })?),
        Box::new(SpatialPooler::new(cx, 8, 12, pooler)?),
        Box::new(AnomalyDetector::new(cx, 8, 0.5)?.likelihood()?),
        Box::new(ContinuumMemorySystem::new(cx, 8, 4, 2)?),
    ])
}

#[test]
fn rules_leave_everything_on_the_device() {
    for d in devices() {
        for dtype in [DType::F32, DType::F16, DType::Bf16, DType::F64] {
            // A slow device would compile the kernels of every dtype anew.
            if !d.caps().supports(dtype) || slow(&d) && dtype != DType::F32 {
                continue;
            }
            let cx = InitContext::new(&d, 1).dtype(dtype);
            let x = bits(&d, &[3, 8], 1).to_dtype(dtype).unwrap();
            for l in layers(&cx).unwrap() {
                let step = || {
                    let leaf = x.with_grad();
                    let y = l.forward(&leaf).unwrap();
                    y.sum().unwrap().backward().unwrap();
                    LayerExt::learn(&*l).unwrap();
                    (y, leaf.grad().unwrap())
                };
                step();
                let (y, dx) = resident(l.kind(), &d, step);
                assert_eq!((y.dtype(), dx.dtype()), (dtype, dtype), "{}", l.kind());
                assert!(values(&y).iter().chain(&values(&dx)).all(|v| v.is_finite()), "{}", l.kind());
            }
        }
    }
}

#[test]
fn misfits_are_refused() {
    let cx = f64s();
    let x = Tensor::zeros(&cpu(), DType::F64, &[3, 7]).unwrap();
    for l in layers(&cx).unwrap() {
        refused(l.forward(&x), &[l.kind(), "`x`", "8]", "[3, 7]"]);
    }
    refused(Rbm::new(&cx, 0, 4), &["Rbm", "visible"]);
    refused(rbm(&cx).steps(0), &["Rbm", "`k`"]);
    refused(rbm(&cx).persistent(0), &["persistent_chains"]);
    refused(rbm(&cx).learning_rate(-1.0), &["learning_rate"]);
    refused(rbm(&cx).learn_from(&x.narrow(1, 0, 5).unwrap(), 0.1, 0), &["`k`"]);
    let stdp = |o: StdpOptions| SynapticPlasticity::new(&cx, 3, 2, o);
    refused(stdp(StdpOptions { w_min: 1.0, ..Default::default() }), &["SynapticPlasticity", "w_min"]);
    refused(stdp(StdpOptions { trace_decay: 1.0, ..Default::default() }), &["trace_decay"]);
    refused(stdp(StdpOptions { recurrent: true, ..Default::default() }), &["recurrent", "3 and 2"]);
    let l = stdp(StdpOptions::default()).unwrap();
    let spikes = |shape: &[usize]| Tensor::zeros(&cpu(), DType::F64, shape).unwrap();
    refused(l.learn_from(&spikes(&[4, 3]), Some(&spikes(&[3, 2])), 1.0), &["post", "[4, 3]", "[3, 2]"]);
    let pooler = |o: SpatialPoolerOptions| SpatialPooler::new(&cx, 8, 12, o);
    let options = SpatialPoolerOptions { local_area_density: 0.25, ..Default::default() };
    refused(pooler(SpatialPoolerOptions::default()), &["SpatialPooler", "local_area_density", "12 columns"]);
    refused(pooler(SpatialPoolerOptions { local_area_density: 0.6, ..options }), &["at most 0.5"]);
    refused(pooler(SpatialPoolerOptions { syn_perm_connected: 1.0, ..options }), &["syn_perm_connected"]);
    refused(pooler(SpatialPoolerOptions { potential_pct: 0.01, ..options }), &["potential_pct", "8 inputs"]);
    refused(
        pooler(SpatialPoolerOptions { stimulus_threshold: 5, ..options }),
        &["stimulus_threshold", "4 inputs"],
    );
    refused(AnomalyDetector::new(&cx, 7, 0.5), &["AnomalyDetector", "input_size", "even"]);
    refused(AnomalyDetector::new(&cx, 8, 1.5), &["anomaly_threshold"]);
    refused(AnomalyDetector::new(&cx, 8, 0.5).unwrap().history_capacity(0), &["history_capacity"]);
    refused(ContinuumMemorySystem::new(&cx, 8, 4, 11), &["ContinuumMemorySystem", "num_levels", "1 to 10"]);
    let cms = || ContinuumMemorySystem::new(&cx, 8, 4, 2).unwrap();
    refused(cms().chunk_sizes(&[1]), &["chunk_sizes", "2"]);
    refused(cms().chunk_sizes(&[1, 0]), &["chunk_sizes", "at least 1"]);
    refused(cms().level_lr(&[0.1, -0.1]), &["level_lr"]);
    let memory = |o: TemporalMemoryOptions| TemporalMemory::new(&cx, 16, o);
    refused(
        memory(TemporalMemoryOptions { min_threshold: 4, ..small() }),
        &["min_threshold", "activation_threshold = 3"],
    );
    refused(memory(TemporalMemoryOptions { cells_per_column: 1 << 40, ..small() }), &["cells_per_column"]);
    let l = memory(small()).unwrap();
    refused(l.forward(&x), &["TemporalMemory", "`x`", "16]"]);
    refused(
        l.step(&Tensor::full(&cpu(), DType::F32, &[2, 16], 0.5).unwrap(), true),
        &["step 0, column 0", "0.5"],
    );
}
