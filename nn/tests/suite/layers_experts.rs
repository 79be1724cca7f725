//! Mixtures of experts: gradients, equal experts against a list of them, capacity, terms of the loss, refusals.

use serde_json::{Value, json};
use trefoil::ops::activation::Activation;
use trefoil_nn::layers::{Dense, Expert, ExpertMlp, MixtureOfExperts, Sequential};
use trefoil_nn::network::layer;
use trefoil_nn::{DType, InitContext, Layer, LayerExt, Result, Tensor, auxiliary};

use crate::common::everywhere::resident;
use crate::common::layers::{f64s, gradcheck_layer, param, refused, state_names};
use crate::common::{close, cpu, devices, tensor};

fn list(cx: &InitContext, count: usize) -> Vec<Box<dyn Layer>> {
    let expert = |_| -> Box<dyn Layer> {
        let first = Dense::new(cx, 4, 5).unwrap().activation(Activation::Relu);
        let chain = Sequential::new().push(first).push(Dense::new(cx, 5, 3).unwrap());
        Box::new(Expert::new(chain).unwrap())
    };
    (0..count).map(expert).collect()
}

fn of_list(cx: &InitContext) -> MixtureOfExperts {
    MixtureOfExperts::new(cx, 4, list(cx, 3)).unwrap()
}

fn of_mlps(cx: &InitContext) -> MixtureOfExperts {
    MixtureOfExperts::mlp(cx, 4, &ExpertMlp::new(3, 5, 3)).unwrap()
}

fn floats(t: &Tensor) -> Vec<f64> {
    t.to_vec().unwrap()
}

#[test]
fn gradients() {
    let cx = f64s();
    let linear = ExpertMlp::linear(3, 2).activation(Activation::Tanh).no_bias();
    let all: Result<Vec<(&str, MixtureOfExperts)>> = (|| {
        Ok(vec![
            ("all", of_mlps(&cx)),
            ("best two", of_mlps(&cx).top_k(2)?.activation(Activation::Tanh)),
            ("linear", MixtureOfExperts::mlp(&cx, 4, &linear)?.top_k(2)?),
            ("capacity", of_mlps(&cx).top_k(2)?.capacity_factor(0.7)?),
            ("noise", of_mlps(&cx).top_k(2)?.noise()?),
            ("list", of_list(&cx).top_k(2)?),
            ("list with capacity", of_list(&cx).top_k(2)?.capacity_factor(0.7)?),
            ("router", of_list(&cx).router(Dense::new(&cx, 4, 3)?)),
        ])
    })();
    for (what, l) in all.unwrap() {
        let x = tensor(&cpu(), &[2, 3, 4], 5);
        assert_eq!(l.forward(&x).unwrap().shape()[..2], [2, 3], "{what}");
        gradcheck_layer(what, &l, &[x], |t| l.forward(&t[0]));
        let none = Tensor::zeros(&cpu(), DType::F64, &[0, 4]).unwrap();
        assert_eq!(l.forward(&none).unwrap().shape()[0], 0, "{what}");
    }
}

#[test]
fn equal_experts_are_a_list_of_them() {
    let cx = f64s();
    for (k, capacity) in [(0, None), (1, None), (2, None), (2, Some(0.5)), (1, Some(1.0))] {
        let configured = |l: MixtureOfExperts| {
            let l = l.top_k(k).unwrap();
            if let Some(c) = capacity { l.capacity_factor(c).unwrap() } else { l }
        };
        let (mlps, list) = (configured(of_mlps(&cx)), configured(of_list(&cx)));
        let own = mlps.state_dict().unwrap();
        let mut state = list.state_dict().unwrap();
        state.insert("router.weight".into(), own["router.weight"].clone());
        for e in 0..3 {
            let parts = [("0.weight", "w1"), ("0.bias", "b1"), ("1.weight", "w2"), ("1.bias", "b2")];
            for (name, from) in parts {
                state.insert(format!("experts.{e}.{name}"), own[from].select(0, e).unwrap());
            }
        }
        list.load_state_dict(&state).unwrap();
        let x = tensor(&cpu(), &[7, 4], 3);
        let what = format!("{k} choices, capacity {capacity:?}");
        let (a, b) = (mlps.forward(&x).unwrap(), list.forward(&x).unwrap());
        close(&floats(&a), &floats(&b), 1e-12, &what);
        for l in [&mlps, &list] {
            l.forward(&x).unwrap().square().unwrap().sum().unwrap().backward().unwrap();
        }
        let grad = |l: &MixtureOfExperts, name: &str| {
            let all = l.named_parameters();
            all.iter().find(|(n, _)| n == name).unwrap().1.get().grad().unwrap()
        };
        let w1 = grad(&mlps, "w1");
        for e in 0..3 {
            let own = floats(&w1.select(0, e).unwrap());
            close(&own, &floats(&grad(&list, &format!("experts.{e}.0.weight"))), 1e-12, &what);
        }
    }
}

#[test]
fn full_experts_take_no_more_tokens() {
    let cx = f64s();
    // Equal tokens go to one expert, which takes ceil(0.8 * 5 / 3) of them.
    let x = Tensor::ones(&cpu(), DType::F64, &[5, 4]).unwrap();
    for l in [of_mlps(&cx), of_list(&cx)] {
        let l = l.top_k(1).unwrap().capacity_factor(0.8).unwrap();
        let y = floats(&l.forward(&x).unwrap());
        assert!(y[..6].iter().all(|&v| v != 0.0), "{y:?}");
        assert_eq!(y[..3], y[3..6]);
        assert_eq!(y[6..], [0.0; 9]);
        let mut counts = l.expert_counts().unwrap().to_vec::<i32>().unwrap();
        counts.sort_unstable();
        assert_eq!(counts, [0, 0, 5]);
    }
}

#[test]
fn terms_of_the_loss() {
    let cx = f64s();
    let x = tensor(&cpu(), &[6, 4], 3);
    let plain = of_mlps(&cx).top_k(2).unwrap();
    assert!(auxiliary::collect(|| plain.forward(&x)).unwrap().1.is_empty());
    let l = of_mlps(&cx).top_k(2).unwrap().load_balance_weight(0.1).unwrap().z_loss_weight(0.01).unwrap();
    let terms = auxiliary::collect(|| l.forward(&x)).unwrap().1;
    let (w, x_host) = (param(&l, "router.weight"), floats(&x));
    let (mut share, mut mean, mut z) = ([0.0; 3], [0.0; 3], 0.0);
    for row in x_host.chunks(4) {
        let scores: Vec<f64> =
            w.chunks(4).map(|w| w.iter().zip(row).map(|(a, b)| a * b).sum::<f64>()).collect();
        let sum: f64 = scores.iter().map(|s| s.exp()).sum();
        z += sum.ln().powi(2) / 6.0;
        let worst = (0..3).min_by(|&a, &b| scores[a].total_cmp(&scores[b])).unwrap();
        for e in 0..3 {
            mean[e] += scores[e].exp() / sum / 6.0;
            share[e] += if e == worst { 0.0 } else { 1.0 / 12.0 };
        }
    }
    let balance: f64 = (0..3).map(|e| 0.1 * 3.0 * share[e] * mean[e]).sum();
    let got: Vec<f64> = terms.iter().map(|t| t.item().unwrap()).collect();
    close(&got, &[balance, 0.01 * z], 1e-12, "balance of the load, size of the scores");
    terms[0].add(&terms[1]).unwrap().backward().unwrap();
    let router = l.named_parameters().into_iter().find(|(n, _)| n == "router.weight").unwrap().1;
    assert!(floats(&router.get().grad().unwrap()).iter().any(|&g| g != 0.0));
}

#[test]
fn noise_is_for_training() {
    let cx = f64s();
    let (noisy, plain) = (of_mlps(&cx).noise().unwrap(), of_mlps(&cx));
    let mut state = plain.state_dict().unwrap();
    state.insert("noise.weight".into(), noisy.state_dict().unwrap()["noise.weight"].clone());
    noisy.load_state_dict(&state).unwrap();
    let x = tensor(&cpu(), &[5, 4], 3);
    let run = |l: &MixtureOfExperts| floats(&l.forward(&x).unwrap());
    assert_ne!(run(&noisy), run(&noisy), "each call draws anew");
    noisy.eval();
    assert_eq!(run(&noisy), run(&plain));
    assert_eq!(state_names(&noisy), ["router.weight", "noise.weight", "w1", "b1", "w2", "b2"]);
    assert_eq!(state_names(&of_list(&cx))[1], "experts.0.0.weight");
}

#[test]
fn refusals() {
    let cx = f64s();
    let x = tensor(&cpu(), &[5, 4], 3);
    let moe = || of_list(&cx);
    refused(MixtureOfExperts::new(&cx, 4, vec![]), &["MixtureOfExperts", "experts", "none"]);
    refused(MixtureOfExperts::mlp(&cx, 4, &ExpertMlp::new(2, 0, 3)), &["hidden_features", "0"]);
    refused(MixtureOfExperts::mlp(&cx, 4, &ExpertMlp::linear(0, 3)), &["num_experts", "0"]);
    refused(MixtureOfExperts::mlp(&cx, 0, &ExpertMlp::linear(2, 3)), &["in_features", "0"]);
    refused(moe().top_k(4), &["top_k", "0 to 3", "4"]);
    refused(moe().capacity_factor(0.0), &["capacity_factor", "above 0"]);
    refused(moe().load_balance_weight(-1.0), &["load_balance_weight", "-1"]);
    refused(moe().z_loss_weight(f64::NAN), &["z_loss_weight", "NaN"]);
    refused(moe().forward(&tensor(&cpu(), &[5, 3], 1)), &["MixtureOfExperts", "`x`", "4"]);
    refused(moe().router(Dense::new(&cx, 4, 2).unwrap()).forward(&x), &["router", "[5, 3]", "[5, 2]"]);
    let mut uneven = list(&cx, 2);
    uneven.push(Box::new(Dense::new(&cx, 4, 2).unwrap()));
    let uneven = MixtureOfExperts::new(&cx, 4, uneven).unwrap();
    refused(uneven.forward(&x), &["experts", "one width", "[5, 2] of `experts.2`"]);
    refused(Expert::new(Sequential::new()), &["Expert", "layers", "none"]);
    let gap = Sequential::new().push(Dense::new(&cx, 4, 5).unwrap()).push(Dense::new(&cx, 6, 3).unwrap());
    refused(Expert::new(gap).unwrap().forward(&x), &["Expert", "layer `1`", "what `0` gives", "[5, 5]"]);
}

#[test]
fn descriptions() {
    let cx = f64s();
    let make = |experts: Value| {
        layer(&cx, &json!({"type": "mixture_of_experts", "in_features": 4, "experts": experts}))
    };
    let equal = make(json!({"num_experts": 3, "out_features": 2, "bias": false})).unwrap();
    assert_eq!(state_names(&*equal), ["router.weight", "w1"]);
    let dense = json!({"type": "dense", "in_features": 4, "out_features": 3});
    let listed = make(json!([dense, dense])).unwrap();
    assert_eq!(state_names(&*listed)[1], "experts.0.weight");
    refused(make(json!(3)), &["`experts`", "a list of layers or an object", "3"]);
    refused(make(json!([])), &["`experts`", "at least one expert"]);
    refused(make(json!({"num_experts": 3})), &["`experts`", "out_features"]);
    refused(make(json!({"num_experts": 3, "out_features": 2, "act": "relu"})), &["`experts`", "act"]);
    refused(make(json!({"num_experts": 0, "out_features": 2})), &["num_experts", "at least 1"]);
    refused(make(json!([dense, {"type": "dense"}])), &["experts[1].out_features", "missing"]);
    refused(layer(&cx, &json!({"type": "expert", "layers": []})), &["`layers`", "at least one layer"]);
}

#[test]
fn nothing_waits_for_the_device() {
    for d in devices() {
        let cx = InitContext::new(&d, 1);
        let all = [
            of_mlps(&cx).top_k(2).unwrap().capacity_factor(1.0).unwrap().load_balance_weight(0.1).unwrap(),
            of_list(&cx).top_k(1).unwrap().capacity_factor(1.0).unwrap(),
        ];
        for l in all {
            let x = Tensor::ones(&d, DType::F32, &[4, 4]).unwrap().with_grad();
            let run = || {
                let (y, terms) = auxiliary::collect(|| l.forward(&x)).unwrap();
                auxiliary::added_to(y.sum().unwrap(), &terms).unwrap().backward().unwrap();
            };
            run();
            resident("a mixture of experts", &d, run);
        }
    }
}
