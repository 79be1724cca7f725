//! Networks of Loom: errors, bundles, training, devices.

use crate::common::layers::{gradcheck_layer, refused};
use crate::common::{close, cpu, devices, f32s, id, noise};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use trefoil::DType;
use trefoil::ops::core::CoreOps;
use trefoil_nn::compare::{Gate, Table, compare_models};
use trefoil_nn::data::{Dataset, ResidentSource, Targets};
use trefoil_nn::loom::*;
use trefoil_nn::trainer::{Objective, TrainOptions};
use trefoil_nn::{
    CrossEntropyLoss, Device, InitContext, Layer, LayerExt, MseLoss, Optimizer, Tensor, Trainer,
};

/// Every type of layer, with the elements of a sample and whether these are ids.
fn every_layer() -> Vec<(&'static str, Value, usize, bool)> {
    let dense = |act: &str, i: usize, o: usize| json!({"type": "dense", "activation": act, "input_size": i, "output_size": o});
    let norm = json!({"type": "layer_norm", "norm_size": 4});
    let cells = json!([{"branch_index": 0, "target_row": 1}, {"branch_index": 1, "target_row": 0}]);
    let branches = json!([dense("tanh", 4, 2), dense("sigmoid", 4, 2)]);
    vec![
        (
            "dense",
            json!([dense("leaky_relu", 4, 3), dense("softplus", 3, 3), dense("identity", 3, 2)]),
            4,
            false,
        ),
        (
            "conv1d",
            json!([{"type": "conv1d", "activation": "tanh", "conv1d_in_channels": 2, "conv1d_filters": 3,
            "conv1d_kernel_size": 3, "conv1d_padding": 1}]),
            10,
            false,
        ),
        (
            "conv2d",
            json!([{"type": "conv2d", "activation": "tanh", "input_channels": 2, "filters": 3, "kernel_size": 3,
            "stride": 2, "padding": 1, "input_height": 4, "input_width": 5}]),
            40,
            false,
        ),
        ("rnn", json!([{"type": "rnn", "input_size": 3, "hidden_size": 4, "seq_length": 3}]), 9, false),
        ("lstm", json!([{"type": "lstm", "input_size": 3, "hidden_size": 4, "seq_length": 3}]), 9, false),
        ("mha", json!([{"type": "mha", "d_model": 8, "num_heads": 4, "num_kv_heads": 2}]), 24, false),
        ("norms", json!([{"type": "rms_norm", "norm_size": 4}, norm]), 8, false),
        ("swiglu", json!([{"type": "swiglu", "input_height": 4, "output_height": 6}]), 8, false),
        (
            "block",
            json!([{"type": "rms_norm", "norm_size": 4}, {"type": "mha", "d_model": 4, "num_heads": 2},
            {"type": "rms_norm", "norm_size": 4}, {"type": "swiglu", "input_size": 4, "output_size": 3}, norm]),
            12,
            false,
        ),
        ("embedding", json!([{"type": "embedding", "vocab_size": 5, "embedding_dim": 3}]), 4, true),
        ("concat", json!([{"type": "parallel", "branches": branches}]), 4, false),
        ("add", json!([{"type": "parallel", "combine_mode": "add", "branches": branches}]), 4, false),
        ("avg", json!([{"type": "parallel", "combine_mode": "avg", "branches": branches}]), 4, false),
        (
            "filter",
            json!([{"type": "parallel", "combine_mode": "filter", "branches": [dense("tanh", 4, 3), dense("tanh", 4, 2)]}]),
            4,
            false,
        ),
        (
            "grid",
            json!([{"type": "parallel", "combine_mode": "grid_scatter", "grid_output_rows": 2, "grid_output_cols": 1,
            "grid_output_layers": 1, "grid_positions": cells, "branches": branches}]),
            4,
            false,
        ),
        (
            "sequential",
            json!([{"type": "sequential", "branches": [dense("tanh", 4, 4), norm,
            {"type": "parallel", "branches": branches}]}]),
            4,
            false,
        ),
        ("residual", json!([dense("tanh", 4, 4), {"type": "residual"}]), 4, false),
        (
            "softmax",
            json!([dense("linear", 4, 6), {"type": "softmax", "softmax_variant": "entmax", "entmax_alpha": 1.5}]),
            4,
            false,
        ),
    ]
}

fn config(layers: &Value) -> LoomConfig {
    LoomConfig::from_json(&json!({ "layers": layers }).to_string()).unwrap_or_else(|e| panic!("{e}"))
}

fn network(layers: &Value, d: &Device, seed: u64, dtype: DType) -> LoomNetwork {
    let cx = InitContext::new(d, seed).dtype(dtype);
    LoomNetwork::new(&cx, &config(layers), &Flags::corrected()).unwrap_or_else(|e| panic!("{layers}: {e}"))
}

fn sample(d: &Device, n: usize, ids: bool, dtype: DType) -> Tensor {
    if ids {
        let v: Vec<i64> = (0..2 * n as i64).map(|i| (3 * i + 1) % 5).collect();
        return Tensor::from_slice(d, &v, &[2, n]).unwrap();
    }
    let v: Vec<f32> = noise(8, 2 * n).iter().map(|v| *v as f32).collect();
    f32s(d, &v, &[2, n]).to_dtype(dtype).unwrap()
}

#[test]
fn gradients() {
    for (name, layers, n, ids) in every_layer() {
        let net = network(&layers, &cpu(), 3, DType::F64);
        gradcheck_layer(name, &net, &[sample(&cpu(), n, ids, DType::F64)], |t| net.forward(&t[0]));
    }
}

/// Losses of 20 steps, and whether the first changed every parameter.
fn train(layers: &Value, n: usize, ids: bool, d: &Device, what: &str) -> Vec<f32> {
    let net = network(layers, d, 3, DType::F32);
    let x = sample(d, n, ids, DType::F32);
    let target = {
        let y = net.forward(&x).unwrap();
        let t: Vec<f32> = noise(9, y.numel()).iter().map(|v| 0.5 * *v as f32).collect();
        f32s(d, &t, y.shape())
    };
    let values = || -> Vec<(String, Vec<f32>)> {
        net.named_parameters().iter().map(|(n, p)| (n.clone(), p.get().to_vec().unwrap())).collect()
    };
    let before = values();
    let mut optimizer = Optimizer::sgd(&net, 0.2).unwrap();
    let mut losses = vec![];
    let mut counters = None;
    for step in 0..20 {
        optimizer.zero_grad().unwrap();
        let loss = MseLoss::default().forward(&net.forward(&x).unwrap(), &target).unwrap();
        loss.backward().unwrap();
        optimizer.step().unwrap();
        losses.push(loss.detach());
        if step == 0 {
            for ((name, a), (_, b)) in before.iter().zip(values()) {
                assert!(a.iter().zip(&b).any(|(a, b)| a != b), "{what}: {name} did not change");
            }
        }
        if step == 1 {
            counters = Some(d.counters());
        }
    }
    let (a, b) = (counters.unwrap(), d.counters());
    assert_eq!((a.uploads, a.downloads), (b.uploads, b.downloads), "{what}: transfers in a step");
    losses.iter().map(|l| l.item::<f32>().unwrap()).collect()
}

#[test]
fn training() {
    for (name, layers, n, ids) in every_layer() {
        let want = train(&layers, n, ids, &cpu(), name);
        assert!(want[19] < want[0], "{name}: {want:?}");
        for d in devices().iter().skip(1) {
            let got = train(&layers, n, ids, d, name);
            for (i, (g, w)) in got.iter().zip(&want).enumerate() {
                assert!((g - w).abs() <= 1e-4, "{name} on {}, step {i}: {g} against {w}", id(d));
            }
        }
    }
}

/// The ordinary trainer on batches of 16, the last of which is smaller.
#[test]
fn the_trainer() {
    let layers = json!([
        {"type": "dense", "activation": "tanh", "input_size": 2, "output_size": 12},
        {"type": "rms_norm", "norm_size": 12}, {"type": "swiglu", "input_size": 12, "output_size": 8},
        {"type": "dense", "activation": "linear", "input_size": 12, "output_size": 3}
    ]);
    let centres = [(0.0, 1.0), (1.0, -1.0), (-1.0, -1.0)];
    let z = noise(5, 300);
    let point = |i: usize| [centres[i % 3].0 + 0.5 * z[2 * i], centres[i % 3].1 + 0.5 * z[2 * i + 1]];
    let x: Vec<f32> = (0..150).flat_map(|i| point(i).map(|v| v as f32)).collect();
    let classes = Targets::Classes((0..150).map(|i| i % 3).collect());
    let data = Dataset::new(x, &[2], classes).unwrap();
    for d in devices() {
        let net = network(&layers, &d, 1, DType::F32);
        let optimizer = Optimizer::adamw(&net, 0.02, 0.01).unwrap();
        let source = ResidentSource::new(&data, &d, DType::F32).unwrap();
        let objective = Objective::Classify(CrossEntropyLoss::default());
        let options = TrainOptions { epochs: 8, batch_size: 16, seed: 2, ..TrainOptions::default() };
        let mut trainer = Trainer::new(&net, optimizer, objective, &d, options).unwrap();
        let done = trainer.fit(&source, Some(&source), &mut |_| true).unwrap();
        let last = done.history.last().unwrap();
        assert!(last.train_loss < 0.1 && last.test_accuracy > Some(0.97), "{} {last:?}", id(&d));
    }
}

#[test]
fn bundles_round_trip() {
    let folder = std::env::temp_dir().join(format!("trefoil-loom-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("models.json");
    for (name, layers, n, ids) in every_layer() {
        let net = network(&layers, &cpu(), 1, DType::F32);
        net.save(&path, name).unwrap();
        let cx = InitContext::new(&cpu(), 2);
        let back = LoomNetwork::load(&path, name, &cx, &Flags::corrected())
            .unwrap_or_else(|e| panic!("{name}: {e}"));
        let x = sample(&cpu(), n, ids, DType::F32);
        let out = |net: &LoomNetwork| net.forward(&x).unwrap().to_vec::<f32>().unwrap();
        assert_eq!(out(&net), out(&back), "{name}: bit for bit");
        let mut again = Bundle::default();
        again.insert(name, &back).unwrap();
        assert_eq!(again.to_json().unwrap(), std::fs::read_to_string(&path).unwrap(), "{name}");
        assert_eq!(Bundle::from_json(&again.to_json().unwrap()).unwrap(), again);
    }
    // Several models in one file; the last of a name counts.
    let layers = json!([{"type": "dense", "input_size": 2, "output_size": 1}]);
    let (a, b) = (network(&layers, &cpu(), 1, DType::F32), network(&layers, &cpu(), 2, DType::F32));
    let mut bundle = Bundle::default();
    for (id, net) in [("a", &a), ("b", &a), ("b", &b)] {
        bundle.insert(id, net).unwrap();
    }
    assert_eq!(bundle.ids(), ["a", "b"]);
    let read = bundle.network("b", &InitContext::new(&cpu(), 3), &Flags::corrected()).unwrap();
    let kernel = |n: &LoomNetwork| n.get_layer(0, 0, 0).unwrap().weight("kernel").unwrap();
    assert_eq!(kernel(&read), kernel(&b));
    b.get_layer(0, 0, 0).unwrap().set_weight("kernel", &[f32::NAN, 1.0]).unwrap();
    refused(bundle.insert("c", &b), &["layers[0].kernel", "NaN"]);
    std::fs::remove_dir_all(&folder).unwrap();
}

/// A bundle as Loom writes it.
fn written(layers: Value, weights: Value) -> String {
    let n = layers.as_array().unwrap().len();
    let inner = json!({"type": "float32", "dtype": "", "layers": weights}).to_string();
    json!({"type": "modelhost/bundle", "version": 1, "models": [{
        "id": "m",
        "cfg": {"id": "m", "batch_size": 1, "grid_rows": 1, "grid_cols": 1, "layers_per_cell": n, "layers": layers},
        "weights": {"fmt": "jsonModelB64", "data": STANDARD.encode(inner)}
    }]})
    .to_string()
}

#[test]
fn bundles_of_loom() {
    let load =
        |text: &str| Bundle::from_json(text)?.network("m", &InitContext::new(&cpu(), 1), &Flags::corrected());
    // Width and height 1 stand beside the real sizes; activations stand everywhere; heads of keys stand nowhere.
    let dense = json!({"type": "dense", "activation": "tanh", "width": 1, "height": 1, "input_height": 2, "output_height": 4});
    let mha = json!({"type": "multi_head_attention", "activation": "relu", "d_model": 4, "num_heads": 2, "seq_length": 1});
    let eye: Vec<f32> = (0..16).map(|i| if i % 5 == 0 { 1.0 } else { 0.0 }).collect();
    let half = [0.5f32; 8];
    let heads = json!({"q_weights": eye, "k_weights": half, "v_weights": half, "output_weight": eye,
        "q_bias": [0., 0., 0., 0.], "k_bias": [0., 0.], "v_bias": [0.25, 0.5], "output_bias": [0., 0., 0., 0.]});
    let rnn =
        json!({"type": "rnn", "activation": "relu", "input_size": 4, "hidden_size": 1, "seq_length": 1});
    let weights = json!([
        {"kernel": [1, 2, 3, 4, 5, 6, 7, 8], "biases": [0.5, 0, 0, 0]},
        heads,
        {"weight_ih": [1, 2, 3, 4], "weight_hh": [9], "bias_h": [0.125]}
    ]);
    let net = load(&written(json!([dense, mha, rnn]), weights)).unwrap();
    assert!(net.report().unused.is_empty(), "{:?}", net.report().unused);
    let y = net.forward(&f32s(&cpu(), &[0.01, -0.02], &[2])).unwrap().to_vec::<f32>().unwrap();
    // kernel is [in][out]: row 0 belongs to the first input.
    let h: Vec<f64> = (0..4)
        .map(|o| (0.01 * (1 + o) as f64 - 0.02 * (5 + o) as f64 + if o == 0 { 0.5 } else { 0. }).tanh())
        .collect();
    let s: f64 = h.iter().sum::<f64>() * 0.5;
    let v = [s + 0.25, s + 0.5, s + 0.25, s + 0.5];
    let t: f64 = v.iter().enumerate().map(|(i, v)| (i + 1) as f64 * v).sum::<f64>() + 0.125;
    assert!((f64::from(y[0]) - t.tanh()).abs() < 1e-6, "{y:?} against {}", t.tanh());

    // A layer of which Loom kept nothing is 0, as there.
    let empty = load(&written(json!([dense]), json!([{}]))).unwrap();
    assert_eq!(empty.get_layer(0, 0, 0).unwrap().weight("kernel").unwrap(), [0.0; 8]);

    let one = |w: Value| written(json!([dense]), json!([w]));
    for (text, words) in [
        (one(json!({"kernel": [1, 2], "biases": [1, 2, 3, 4]})), ["layers[0].kernel", "expected 8"]),
        (one(json!({"biases": [1, 2, 3, 4]})), ["layers[0].kernel", "found 0"]),
        (one(json!({"kernel": [0, 0, 0, 0, 0, 0, 0, 0], "gamma": [1]})), ["layers[0].gamma", "Dense"]),
        (one(json!({"kernels": [1]})), ["layers[0]", "kernels"]),
        (written(json!([dense]), json!([])), ["models[0].weights.data.layers", "0 layers"]),
        (one(json!({})).replace("modelhost/bundle", "other"), ["type", "modelhost/bundle"]),
        (
            one(json!({})).replace("jsonModelB64", "multiPrecisionB64"),
            ["models[0].weights.fmt", "multiPrecisionB64"],
        ),
        (one(json!({})).replace("\"data\":\"", "\"data\":\"?"), ["models[0].weights.data", "Invalid symbol"]),
        (one(json!({})).replace("\"version\":1", "\"version\":2"), ["version", "2"]),
        (one(json!({})).replace("\"id\":\"m\"", "\"id\":\"k\""), ["models", "no model `m`"]),
    ] {
        refused(load(&text), &words);
    }
    assert!(Bundle::from_file("/nonexistent/bundle.json").is_err());
}

#[test]
fn errors_name_the_place() {
    let dense = json!({"type": "dense", "input_size": 3, "output_size": 2});
    let mut extra = dense.clone();
    extra["unitz"] = json!(4);
    let branches =
        |a: Value, b: Value| json!([{"type": "parallel", "combine_mode": "add", "branches": [a, b]}]);
    let conv = |key: &str, v: Value| {
        let mut c = json!({"type": "conv2d", "input_channels": 1, "filters": 1, "kernel_size": 3, "input_height": 4, "input_width": 4});
        c[key] = v;
        json!([c])
    };
    let cases: Vec<(Value, &[&str])> = vec![
        (json!([extra]), &["layers[0]", "unitz"]),
        (json!([{"type": "gru"}]), &["layers[0].type", "gru", "lstm"]),
        (json!([{"type": "dense", "input_size": "3", "output_size": 2}]), &["layers[0].input_size", "3"]),
        (json!([{"type": "dense", "input_size": -3, "output_size": 2}]), &["layers[0].input_size", "-3"]),
        (json!([{"type": "dense", "output_size": 2}]), &["layers[0]", "input_size"]),
        (json!([dense, dense]), &["layers[1]", "takes 3", "gives 2"]),
        (json!([dense, {"type": "layer_norm", "norm_size": 3}]), &["layers[1]", "rows of 3", "gives 2"]),
        (json!([dense, {"type": "mha", "d_model": 4, "num_heads": 2}]), &["layers[1]", "tokens of 4"]),
        (json!([{"type": "mha", "d_model": 6, "num_heads": 4}]), &["layers[0].num_heads", "6"]),
        (json!([{"type": "mha", "d_model": 6, "num_heads": 2}]), &["layers[0].num_heads", "odd"]),
        (
            json!([dense, {"type": "rnn", "input_size": 2, "hidden_size": 2, "seq_length": 2}]),
            &["layers[1]", "takes 4"],
        ),
        (
            branches(dense.clone(), json!({"type": "dense", "input_size": 3, "output_size": 4})),
            &["layers[0]", "[2, 4]"],
        ),
        (
            branches(dense.clone(), json!({"type": "conv1d", "filters": 1})),
            &["layers[0].branches[1].kernel_size"],
        ),
        (json!([{"type": "parallel", "branches": []}]), &["layers[0].branches", "at least one"]),
        (
            json!([{"type": "parallel", "combine_mode": "grid_scatter", "branches": [dense]}]),
            &["layers[0].grid_output_rows"],
        ),
        (conv("kernel_size", json!(9)), &["layers[0].kernel_size", "9"]),
        (conv("output_width", json!(7)), &["layers[0].output_width", "7", "2"]),
        (json!([{"type": "layer_norm", "norm_size": 4, "epsilon": -1.0}]), &["layers[0].epsilon"]),
        (json!([{"type": "embedding", "vocab_size": 4}]), &["layers[0].embedding_dim"]),
        (json!([{"type": "softmax", "temperature": -1.0}]), &["layers[0].temperature"]),
        (
            json!([{"type": "dense", "input_size": 3, "output_size": 9e18 as u64}]),
            &["layers[0].output_size", "at most"],
        ),
        (
            json!([{"type": "conv2d", "input_channels": 2147483647, "filters": 2147483647, "kernel_size": 2147483647,
            "padding": 2147483647, "input_height": 2147483647, "input_width": 2147483647}]),
            &["shape"],
        ),
        (
            json!([{"type": "softmax", "softmax_variant": "hierarchical", "hierarchy_levels": [1e9 as u64, 1e9 as u64, 1e9 as u64]}]),
            &["layers[0].hierarchy_levels"],
        ),
        (
            json!([dense, {"type": "softmax", "softmax_variant": "masked", "mask": [true]}]),
            &["layers[1]", "takes 1"],
        ),
        (
            json!([{"type": "softmax", "softmax_variant": "adaptive", "adaptive_clusters": [[1]]}]),
            &["layers[0]", "clusters"],
        ),
        (json!([{"type": "softmax", "softmax_variant": "mixture"}]), &["layers[0].mixture_weights"]),
    ];
    let cx = InitContext::new(&cpu(), 1);
    for (layers, words) in cases {
        let text = json!({ "layers": layers }).to_string();
        let built = LoomConfig::from_json(&text).and_then(|c| LoomNetwork::new(&cx, &c, &Flags::corrected()));
        refused(built, words);
    }
    let grid = json!({"grid_rows": 2, "grid_cols": 1, "layers_per_cell": 2, "layers": [dense]}).to_string();
    refused(
        check(&LoomConfig::from_json(&grid).unwrap(), &Flags::corrected()),
        &["layers", "2 x 1 x 2", "found 1"],
    );
    let vast = LoomConfig::new(usize::MAX, usize::MAX, 2);
    refused(check(&vast, &Flags::corrected()), &["layers", "found 0"]);
    refused(LoomConfig::from_json(r#"{"layers": []} x"#), &["Loom network"]);
    refused(LoomConfig::from_json(r#"{"layer": []}"#), &["layer"]);
    refused(LoomConfig::from_file("/nonexistent/loom.json"), &["loom.json"]);

    let mut odd = dense.clone();
    odd["filters"] = json!(3);
    assert_eq!(check(&config(&json!([odd])), &Flags::corrected()).unwrap().unused, ["layers[0].filters"]);
    let net = network(&json!([dense]), &cpu(), 1, DType::F32);
    refused(net.forward(&f32s(&cpu(), &[0.0; 4], &[4])), &["LoomNetwork", "3 elements"]);
    refused(net.forward(&f32s(&cpu(), &[0.0; 7], &[7])), &["LoomNetwork"]);
    refused(net.forward(&f32s(&cpu(), &[0.0], &[])), &["LoomNetwork"]);
    let l = net.get_layer(0, 0, 0).unwrap();
    refused(l.weight("gamma"), &["Dense", "gamma"]);
    refused(l.set_weight("kernel", &[1.0]), &["Dense", "6 numbers"]);
}

#[test]
fn grids_batches_and_switches() {
    let d = cpu();
    let dense = |i: usize, o: usize| LayerDefinition {
        activation: Some("tanh".into()),
        input_size: Some(i),
        output_size: Some(o),
        ..LayerDefinition::new("dense")
    };
    let mut grid = LoomConfig::new(2, 1, 2);
    for (r, l) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        grid.set_layer(r, 0, l, dense(3, 3)).unwrap();
    }
    assert!(grid.set_layer(2, 0, 0, dense(3, 3)).is_err());
    grid.batch_size = 2;
    let net = LoomNetwork::new(&grid.init_context(&d), &grid, &Flags::default()).unwrap();
    assert!(net.get_layer(0, 1, 0).is_none() && net.get_layer(0, 0, 2).is_none());
    assert!(std::ptr::eq(net.get_layer(1, 0, 0).unwrap(), &net.layers()[2]));
    assert_eq!(net.layers().len(), 4);
    assert_eq!((net.report().inputs, net.report().outputs), (Some(3), Some(3)));

    let data: Vec<f32> = noise(3, 6).iter().map(|v| *v as f32).collect();
    let out = |x: &Tensor| net.forward(x).unwrap().to_vec::<f32>().unwrap();
    let flat = out(&f32s(&d, &data, &[6]));
    assert_eq!(flat, out(&f32s(&d, &data, &[2, 3])), "a flat array of two samples");
    assert_eq!(net.forward(&f32s(&d, &data[..3], &[1, 3])).unwrap().shape(), [1, 3]);
    net.set_batch_size(1);
    assert_eq!(net.forward(&f32s(&d, &data[..3], &[3])).unwrap().shape(), [1, 3]);
    for l in 0..2 {
        net.set_disabled(0, 0, l, true).unwrap();
        net.set_disabled(1, 0, l, true).unwrap();
    }
    assert_eq!(out(&f32s(&d, &data, &[2, 3])), data, "all layers pass their input on");
    net.set_disabled(1, 0, 1, false).unwrap();
    assert_ne!(out(&f32s(&d, &data, &[2, 3])), data);
    assert!(net.set_disabled(0, 5, 0, true).is_err());

    let (_, block, ..) = every_layer().into_iter().find(|l| l.0 == "block").unwrap();
    let text = network(&block, &d, 1, DType::F32).describe();
    let want = "0: RmsNorm(input)\n1: Mha(0) + input\n2: RmsNorm(1)\n3: SwiGlu(2) + 1\n4: LayerNorm(3 + 3)\n";
    assert_eq!(text, want);

    // Ids as floats: truncated towards zero, zeros outside; the same rows as integer ids.
    for d in devices() {
        let table = json!([{"type": "embedding", "vocab_size": 5, "embedding_dim": 3}]);
        let net = network(&table, &d, 1, DType::F32);
        let y = net.forward(&f32s(&d, &[2.9, -0.9, 5.0, -1.0, f32::NAN, 4.0], &[1, 6])).unwrap();
        let rows = net.get_layer(0, 0, 0).unwrap().weight("embedding_weights").unwrap();
        let zero = [0.0; 3];
        let want = [&rows[6..9], &rows[..3], &zero, &zero, &zero, &rows[12..15]].concat();
        let got = y.to_vec::<f32>().unwrap();
        assert_eq!([&got[..12], &got[15..]].concat(), [&want[..12], &want[15..]].concat());
        let ints = Tensor::from_slice(&d, &[2i64, 0, 4], &[1, 3]).unwrap();
        let want = [&rows[6..9], &rows[..3], &rows[12..15]].concat();
        assert_eq!(net.forward(&ints).unwrap().to_vec::<f32>().unwrap(), want);
    }
}

#[test]
fn initial_weights() {
    let layers = json!([
        {"type": "dense", "input_size": 40, "output_size": 50},
        {"type": "conv1d", "input_channels": 5, "filters": 8, "kernel_size": 3, "padding": 1},
        {"type": "lstm", "input_size": 8, "hidden_size": 10, "seq_length": 10},
        {"type": "rms_norm", "norm_size": 10}
    ]);
    let file = LoomConfig { seed: Some(5), ..config(&layers) };
    let build = |d: &Device| LoomNetwork::new(&file.init_context(d), &file, &Flags::corrected()).unwrap();
    let net = build(&cpu());
    let get = |l: usize, key: &str| net.layers()[l].weight(key).unwrap();
    let all_in = |v: &[f32], lo: f32, hi: f32| {
        assert!(v.iter().all(|x| (lo..=hi).contains(x)), "{v:?}");
        assert!(v.iter().any(|x| *x > lo + 0.9 * (hi - lo)) && v.iter().any(|x| *x < lo + 0.1 * (hi - lo)));
    };
    all_in(&get(0, "kernel"), -1.0 / 40.0, 1.0 / 40.0);
    all_in(&get(0, "biases"), 0.0, 0.01);
    let conv = get(1, "kernel");
    let std = (conv.iter().map(|v| v * v).sum::<f32>() / conv.len() as f32).sqrt();
    assert!((std - (2.0f32 / 15.0).sqrt()).abs() < 0.1, "He: {std}");
    assert_eq!(get(1, "conv_bias"), [0.0; 8]);
    for key in ["weight_ii", "weight_hf", "weight_ig", "weight_ho"] {
        all_in(&get(2, key), -0.1, 0.1);
    }
    assert_ne!(get(2, "weight_ii"), get(2, "weight_if"));
    assert_eq!((get(2, "bias_f"), get(3, "gamma")), (vec![0.0; 10], vec![1.0; 10]));
    // Equal seeds, equal weights: on every device, and drawn again.
    let before: Vec<Vec<f32>> = ["kernel", "biases"].map(|k| get(0, k)).into();
    for d in devices() {
        let other = build(&d);
        let same: Vec<Vec<f32>> = ["kernel", "biases"].map(|k| other.layers()[0].weight(k).unwrap()).into();
        assert_eq!(same, before, "{}", id(&d));
        other.initialize_weights(&InitContext::new(&d, 6)).unwrap();
        assert_ne!(other.layers()[0].weight("kernel").unwrap(), before[0]);
    }
}

#[test]
fn mounting_parity_and_losses() {
    let layers = json!([
        {"type": "conv1d", "activation": "leaky_relu", "input_channels": 2, "filters": 4, "kernel_size": 3, "padding": 1, "input_length": 6},
        {"type": "lstm", "input_size": 6, "hidden_size": 6, "seq_length": 4},
        {"type": "rms_norm", "norm_size": 6}, {"type": "mha", "d_model": 6, "num_heads": 3},
        {"type": "rms_norm", "norm_size": 6}, {"type": "swiglu", "input_height": 6, "output_height": 8},
        {"type": "parallel", "branches": [
            {"type": "dense", "activation": "tanh", "input_size": 24, "output_size": 3},
            {"type": "sequential", "branches": [{"type": "dense", "activation": "relu", "input_size": 24, "output_size": 4}, {"type": "softmax"}]}]}
    ]);
    let x = sample(&cpu(), 12, false, DType::F32);
    let reference = network(&layers, &cpu(), 1, DType::F64);
    for d in devices() {
        let net = network(&layers, &d, 2, DType::F32);
        let errors = compare_models(&reference, &net, std::slice::from_ref(&x)).unwrap();
        assert!(errors.iter().all(|e| e.passes(&Gate::default())), "{}\n{}", id(&d), Table(&errors));
        assert!(errors.iter().any(|e| e.layer == "6.branches.1.branches.0"), "{}", Table(&errors));
    }

    // To a device as often as one likes, trained there, and back: nothing is lost.
    for d in devices() {
        let net = network(&layers, &cpu(), 4, DType::F32);
        net.to_device(&d).unwrap();
        net.to_device(&d).unwrap();
        assert!(net.is_mounted_on(&d));
        let there = x.to_device(&d).unwrap();
        let mut optimizer = Optimizer::sgd(&net, 0.1).unwrap();
        net.forward(&there).unwrap().square().unwrap().mean().unwrap().backward().unwrap();
        optimizer.step().unwrap();
        drop(optimizer);
        let want = net.forward(&there).unwrap().to_vec::<f32>().unwrap();
        net.to_device(&cpu()).unwrap();
        assert!(net.is_mounted_on(&cpu()) || id(&d) == id(&cpu()));
        let home = x.to_device(net.named_parameters()[0].1.get().device()).unwrap();
        let got = net.forward(&home).unwrap().to_vec::<f32>().unwrap();
        let wide = |v: &[f32]| v.iter().map(|v| f64::from(*v)).collect::<Vec<_>>();
        close(&wide(&got), &wide(&want), 1e-6, "back on the CPU");
    }

    // -sum t ln p / N, with p limited and gradients -t / (p N).
    let p = Tensor::from_slice(&cpu(), &[0.25f64, 0.75, 0.0, 1.0], &[2, 2]).unwrap().with_grad();
    let t = Tensor::from_slice(&cpu(), &[1.0f64, 0.0, 0.5, 0.5], &[2, 2]).unwrap();
    let loss = LoomCrossEntropy.forward(&p, &t).unwrap();
    let want = -(0.25f64.ln() + 0.5 * 1e-7f64.ln() + 0.5 * (1.0 - 1e-7f64).ln()) / 4.0;
    assert!((loss.item::<f64>().unwrap() - want).abs() < 1e-12);
    loss.backward().unwrap();
    let g = p.grad().unwrap().to_vec::<f64>().unwrap();
    close(&g, &[-1.0, 0.0, -0.5 / 1e-7 / 4.0, -0.5 / (1.0 - 1e-7) / 4.0], 1e-9, "gradient");
    refused(LoomCrossEntropy.forward(&p, &t.reshape(&[4]).unwrap()), &["LoomCrossEntropy", "target"]);
}
