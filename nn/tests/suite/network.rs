//! Networks described in JSON.

use crate::common::{cpu, tensor};
use trefoil::ops::activation::Activation;
use trefoil::ops::core::CoreOps;
use trefoil_nn::layers::{
    Activate, BatchNormalization, Convolutional, Dense, Dropout, LayerNormalization, Parallel, ParallelMerge,
    Residual, Sequential,
};
use trefoil_nn::network::{Network, NetworkConfig};
use trefoil_nn::summary::summary;
use trefoil_nn::{DType, Init, InitContext, Layer, LayerExt, NnError, Tensor};

fn key_of(e: &NnError) -> String {
    match e {
        NnError::Config { key, .. } => key.clone(),
        e => panic!("not an error of the configuration: {e}"),
    }
}

/// A network with two inputs, branches, parts of an output and layers that stand in another order than they run.
const GRAPH: &str = r#"{
  "version": 1,
  "inputs": { "image": [1, 8, 8], "extra": [6] },
  "layers": [
    { "type": "dense", "name": "head", "inputs": ["joined"], "out_features": 3 },
    { "type": "convolutional", "name": "conv", "inputs": ["image"], "out_channels": 4, "kernel_size": 3,
      "padding": "same", "activation": "relu" },
    { "type": "residual", "name": "block", "layers": [
      { "type": "batch_normalization", "name": "norm", "num_features": 4 },
      { "type": "convolutional", "out_channels": 4, "kernel_size": 1 } ] },
    { "type": "global_pooling", "name": "pool", "keepdim": false },
    { "type": "split", "name": "parts", "inputs": ["extra"], "sizes": [2, 4] },
    { "type": "add", "name": "sum", "inputs": ["pool", "parts.1"] },
    { "type": "concatenate", "name": "joined", "inputs": ["sum", "parts.0"] }
  ],
  "outputs": ["head", "sum"]
}"#;

#[test]
fn a_graph_runs_and_names_its_state() {
    let device = cpu();
    let config = NetworkConfig::parse(GRAPH).unwrap();
    let cx = InitContext::new(&device, 3);
    let net = Network::new(&cx, &config).unwrap();
    assert_eq!(net.input_names().collect::<Vec<_>>(), ["extra", "image"]);
    assert_eq!(net.output_names().collect::<Vec<_>>(), ["head", "sum"]);
    let image = tensor(&device, &[2, 1, 8, 8], 1).to_dtype(DType::F32).unwrap();
    let extra = tensor(&device, &[2, 6], 2).to_dtype(DType::F32).unwrap();
    let y = net.forward_named(&[("image", &image), ("extra", &extra)]).unwrap();
    assert_eq!([y[0].shape(), y[1].shape()], [[2, 3].as_slice(), &[2, 4]]);
    let names: Vec<String> = net.named_state().into_iter().map(|(n, _)| n).collect();
    let want = [
        "head.weight",
        "head.bias",
        "conv.weight",
        "conv.bias",
        "block.norm.weight",
        "block.norm.bias",
        "block.norm.running_mean",
        "block.norm.running_var",
        "block.norm.num_batches_tracked",
        "block.1.weight",
        "block.1.bias",
    ];
    assert_eq!(names, want);

    // The same by hand, with the network's parameters.
    net.eval();
    let y = net.forward_named(&[("extra", &extra), ("image", &image)]).unwrap();
    let cx = InitContext::new(&device, 99);
    let conv = Convolutional::new(&cx, 1, 4, 3).unwrap().same_padding().activation(Activation::Relu);
    let norm = BatchNormalization::new(&cx, 4).unwrap();
    let one = Convolutional::new(&cx, 4, 4, 1).unwrap();
    let head = Dense::new(&cx, 6, 3).unwrap();
    let parts: [(&str, &dyn Layer); 4] =
        [("conv", &conv), ("block.norm", &norm), ("block.1", &one), ("head", &head)];
    let state = net.state_dict().unwrap();
    for (prefix, part) in parts {
        let own = state
            .iter()
            .filter_map(|(k, t)| Some((k.strip_prefix(&format!("{prefix}."))?.into(), t.clone())));
        part.load_state_dict(&own.collect()).unwrap();
        part.eval();
    }
    let c = conv.forward(&image).unwrap();
    let b = c.add(&one.forward(&norm.forward(&c).unwrap()).unwrap()).unwrap();
    let pool = b.mean_axes(&[2, 3], false).unwrap();
    let sum = pool.add(&extra.narrow(1, 2, 4).unwrap()).unwrap();
    let joined = Tensor::concat(1, &[&sum, &extra.narrow(1, 0, 2).unwrap()]).unwrap();
    let expected = [head.forward(&joined).unwrap(), sum];
    for (y, e) in y.iter().zip(&expected) {
        let (y, e) = (y.to_vec::<f32>().unwrap(), e.to_vec::<f32>().unwrap());
        assert!(y.iter().zip(&e).all(|(a, b)| (a - b).abs() < 1e-5), "{y:?} {e:?}");
    }
}

/// The graph with one piece of its text replaced, and what is then wrong: the path, and words of the message.
#[test]
fn errors_name_the_place_and_what_stands_there() {
    let mut wrong = vec![];
    for (from, to, key, words) in [
        // The format.
        ("\"version\": 1", "\"version\": 2", "version", &["expected 1", "2"] as &[&str]),
        ("\"version\": 1", "\"colour\": 1", "colour", &["unknown field"]),
        ("\"extra\": [6]", "\"extra\": [0]", "inputs.extra", &["above 0", "[0]"]),
        (
            "\"extra\": [6]",
            "\"extra\": {\"shape\": [6], \"dtype\": \"f31\"}",
            "inputs.extra",
            &["f31", "f32"],
        ),
        (
            "\"extra\": [6]",
            "\"extra\": {\"shape\": [6], \"kind\": 1}",
            "inputs.extra",
            &["kind", "shape, dtype"],
        ),
        // The graph.
        (
            "\"joined\", \"inputs\": [\"sum\"",
            "\"joined\", \"inputs\": [\"head\"",
            "layers",
            &["joined -> head -> joined"],
        ),
        ("[\"image\"]", "[\"picture\"]", "layers[1].inputs[0]", &["`picture`", "image", "conv"]),
        ("[\"image\"]", "[\"extra\"]", "inputs.image", &["`image`"]),
        ("\"name\": \"pool\"", "\"name\": \"conv\"", "layers[3].name", &["`conv`"]),
        ("\"name\": \"pool\"", "\"name\": \"image\"", "layers[3].name", &["`image`"]),
        ("\"name\": \"pool\"", "\"name\": \"a.b\"", "layers[3].name", &["dots", "a.b"]),
        ("\"name\": \"pool\"", "\"name\": \"\"", "layers[3].name", &["dots"]),
        ("\"name\": \"pool\"", "\"name\": 3", "layers[3].name", &["string"]),
        ("[\"head\", \"sum\"]", "[\"head\", \"tail\"]", "outputs[1]", &["`tail`", "head"]),
        ("[\"head\", \"sum\"]", "[\"sum\"]", "layers[0]", &["`head`", "dense", "no output"]),
        ("\"inputs\": [\"joined\"], ", "", "layers[0].inputs", &["extra, image"]),
        ("[\"pool\", \"parts.1\"]", "[\"pool\"]", "layers[5].inputs", &["at least 2", "got 1"]),
        ("[\"image\"]", "[\"image\", \"extra\"]", "layers[1].inputs", &["takes 1 inputs", "got 2"]),
        ("[\"image\"]", "\"image\"", "layers[1].inputs", &["sequence"]),
        // Options, of parts too.
        (
            "\"type\": \"add\"",
            "\"type\": \"ad\"",
            "layers[5].type",
            &["`ad`", "did you mean `add`? docs/NETWORKS.md"],
        ),
        ("\"type\": \"add\",", "", "layers[5].type", &["missing"]),
        ("\"type\": \"add\"", "\"type\": 7", "layers[5].type", &["7"]),
        ("\"sizes\": [2, 4]", "\"sizes\": [2, 4], \"num_splits\": 2", "layers[4].sizes", &["num_splits"]),
        ("\"sizes\": [2, 4]", "\"dim\": 1", "layers[4].num_splits", &["missing"]),
        (
            "\"out_channels\": 4, \"kernel_size\": 3",
            "\"kernel_size\": 3",
            "layers[1].out_channels",
            &["missing"],
        ),
        (
            "\"out_features\": 3",
            "\"out_features\": 0",
            "layers[0].out_features",
            &["Dense", "at least 1", "got 0"],
        ),
        ("\"out_features\": 3", "\"out_features\": -3", "layers[0].out_features", &["-3"]),
        ("\"out_features\": 3", "\"units\": 3", "layers[0].units", &["unknown field", "out_features"]),
        (
            "\"out_features\": 3",
            "\"out_feature\": 3",
            "layers[0].out_feature",
            &["unknown field `out_feature` of `dense`; did you mean `out_features`? known are in_features"],
        ),
        (
            "\"type\": \"dense\"",
            "\"type\": \"dens\"",
            "layers[0].type",
            &["did you mean `dense`? docs/NETWORKS.md lists"],
        ),
        ("\"outputs\":", "\"output\":", "output", &["did you mean `outputs`?"]),
        (
            "\"kernel_size\": 3",
            "\"kernel_size\": [3, 3, 3]",
            "layers[1].kernel_size",
            &["list of 2", "[3,3,3]"],
        ),
        ("\"kernel_size\": 3", "\"kernel_size\": 0", "layers[1].kernel_size", &["at least 1"]),
        ("\"padding\": \"same\"", "\"padding\": \"some\"", "layers[1].padding", &["\"same\"", "some"]),
        (
            "\"activation\": \"relu\"",
            "\"activation\": \"rule\"",
            "layers[1].activation",
            &["`rule`", "leaky_relu"],
        ),
        (
            "\"activation\": \"relu\"",
            "\"activation\": {\"kind\": \"relu\", \"alpha\": 1}",
            "layers[1].activation",
            &["`relu`", "`alpha`"],
        ),
        (
            "\"num_features\": 4 }",
            "\"num_features\": 0 }",
            "layers[2].layers[0].num_features",
            &["at least 1"],
        ),
        ("\"kernel_size\": 1", "\"kernel\": 1", "layers[2].layers[1].kernel", &["kernel_size"]),
        ("\"name\": \"norm\", ", "\"inputs\": [], ", "layers[2].layers[0].inputs", &["unknown field"]),
        ("\"name\": \"norm\"", "\"name\": \"1\"", "layers[2].layers[1].name", &["`1`"]),
        // Shapes: the layer, what came and what it wants.
        (
            "\"num_features\": 4 }",
            "\"num_features\": 5 }",
            "layers[2]",
            &["[2, 4, 8, 8]", "`block.norm`", "5 channels"],
        ),
        (
            "\"out_channels\": 4, \"kernel_size\": 1",
            "\"out_channels\": 3, \"kernel_size\": 1",
            "layers[2]",
            &["[2, 4, 8, 8]", "[2, 3, 8, 8]"],
        ),
        (
            "\"image\": [1, 8, 8]",
            "\"image\": [1, 8]",
            "layers[1]",
            &["`conv`", "rank 4", "rank 3", "[2, 1, 8]", "use `conv1d`"],
        ),
        ("\"image\": [1, 8, 8]", "\"image\": [8]", "layers[1]", &["`conv`", "[2, 8]", "[B, C, ..]"]),
        ("\"sizes\": [2, 4]", "\"sizes\": [3, 3]", "layers[5]", &["`sum`", "[[2, 4], [2, 3]]"]),
        (
            "\"sizes\": [2, 4]",
            "\"sizes\": [3, 4]",
            "layers[4]",
            &["`parts`", "[2, 6]", "add up to 6", "[3, 4]"],
        ),
        ("\"parts.1\"", "\"parts.2\"", "layers", &["parts.2", "below 2"]),
        (
            "\"out_features\": 3",
            "\"out_features\": 3, \"in_features\": 7",
            "layers[0]",
            &["`head`", "[2, 6]", "7"],
        ),
    ] {
        assert!(GRAPH.contains(from), "{from}");
        match NetworkConfig::parse(&GRAPH.replacen(from, to, 1)) {
            Err(NnError::Config { key: k, what, .. })
                if k == key && words.iter().all(|w| what.contains(w)) => {}
            other => wrong.push(format!("{to}: expected {key} with {words:?}, got {other:?}")),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(matches!(NetworkConfig::load("/no/such/network.json"), Err(NnError::Io { .. })));
    assert!(matches!(NetworkConfig::parse("[]"), Err(NnError::Config { .. })));
    assert!(matches!(NetworkConfig::parse("{\"layers\": []}"), Err(NnError::Config { .. })));
    assert!(matches!(NetworkConfig::parse(&format!("{GRAPH} 1")), Err(NnError::Config { .. })));
}

#[test]
fn nothing_is_allocated_for_a_network_that_does_not_fit() {
    let device = cpu();
    let before = device.counters();
    let text = GRAPH.replace("[2, 4]", "[3, 3]");
    let config: NetworkConfig = serde_json::from_str(&text).unwrap();
    assert!(Network::new(&InitContext::new(&device, 1), &config).is_err());
    // Sizes that come with the data.
    let config = NetworkConfig::parse(
        r#"{"layers": [{"type": "flatten"}, {"type": "dense", "out_features": 3, "in_features": 5}]}"#,
    )
    .unwrap();
    let items =
        |n: usize| Network::for_items(&InitContext::new(&device, 1), &config, "model", &[(&[n], DType::F32)]);
    let e = items(6).unwrap_err();
    assert_eq!(key_of(&e), "model.layers[1]");
    let e = e.to_string();
    assert!(["`1`", "Dense", "[2, 6]", "[.., 5]"].iter().all(|w| e.contains(w)), "{e}");
    assert_eq!(device.counters(), before);
    items(5).unwrap();
    // Far more than any device has.
    let shape = config.output_shapes("", &[(&[5], DType::F32)]).unwrap();
    assert_eq!(shape, [[2, 3]]);
    let config = NetworkConfig::parse(
        r#"{"layers": [{"type": "dense", "out_features": 1099511627776, "bias": false}]}"#,
    )
    .unwrap();
    assert_eq!(config.output_shapes("", &[(&[64], DType::F32)]).unwrap(), [[2, 1 << 40]]);
}

#[test]
fn lazy_layers_get_their_parameters_and_nothing_else_happens() {
    let device = cpu();
    let text = r#"{
      "inputs": { "tokens": { "shape": [5], "dtype": "i32" } },
      "layers": [
        { "type": "embedding", "num_embeddings": 7, "embedding_dim": 4 },
        { "type": "lstm", "name": "rnn", "hidden_size": 3, "stateful": true },
        { "type": "dropout", "name": "drop" },
        { "type": "sequence_last" },
        { "type": "batch_normalization", "name": "norm", "num_features": 3 },
        { "type": "dense", "out_features": 2 } ] }"#;
    let config = NetworkConfig::parse(text).unwrap();
    let net = Network::new(&InitContext::new(&device, 1), &config).unwrap();
    let names: Vec<String> = net.named_parameters().into_iter().map(|(n, _)| n).collect();
    let want = [
        "0.weight",
        "rnn.weight_ih_l0",
        "rnn.weight_hh_l0",
        "rnn.bias_ih_l0",
        "rnn.bias_hh_l0",
        "norm.weight",
    ];
    assert_eq!(&names[..6], want);
    assert_eq!(&names[6..], ["norm.bias", "5.weight", "5.bias"]);
    let state = net.state_dict().unwrap();
    assert_eq!(state["norm.running_mean"].to_vec::<f32>().unwrap(), [0.0; 3]);
    assert_eq!(state["norm.num_batches_tracked"].item::<i64>().unwrap(), 0);
    assert_eq!(net.counters()["drop.offset"], 0);
    // The trial run left no state to start from.
    let x = Tensor::from_slice(&device, &[1i32, 2, 3, 4, 5, 6, 0, 1, 2, 3], &[2, 5]).unwrap();
    net.eval();
    let first = net.forward(&x).unwrap().to_vec::<f32>().unwrap();
    let again = Network::new(&InitContext::new(&device, 1), &config).unwrap();
    again.eval();
    assert_eq!(again.forward(&x).unwrap().to_vec::<f32>().unwrap(), first);
    // A network without sizes makes its parameters in the first forward, with the same numbers in the end.
    let open = text.replace("\"shape\": [5]", "\"shape\": [-1]");
    let open = Network::new(&InitContext::new(&device, 1), &NetworkConfig::parse(&open).unwrap()).unwrap();
    assert!(!open.named_parameters().iter().any(|(n, _)| n.starts_with("rnn")));
    open.eval();
    assert_eq!(open.forward(&x).unwrap().to_vec::<f32>().unwrap(), first);
    let e = open.forward(&tensor(&device, &[2, 5], 1)).unwrap_err().to_string();
    assert!(e.contains("`tokens`") && e.contains("i32"), "{e}");
}

#[test]
fn the_same_seed_gives_the_network_that_rust_code_makes() {
    let device = cpu();
    let config = NetworkConfig::parse(
        r#"{ "layers": [
            { "type": "dense", "in_features": 6, "out_features": 8, "activation": "gelu" },
            { "type": "parallel", "merge": "add", "branches": [
                [ { "type": "dense", "in_features": 8, "out_features": 8, "weight_init": "he", "bias_init": "zeros" } ],
                [ { "type": "layer_normalization", "normalized_shape": 8 }, { "type": "activation", "kind": "tanh" } ] ] },
            { "type": "residual", "name": "last", "activation": "relu", "layers": [
                { "type": "dropout", "name": "drop", "p": 0.5 },
                { "type": "dense", "in_features": 8, "out_features": 8, "bias": false } ] } ] }"#,
    )
    .unwrap();
    let again: NetworkConfig = serde_json::from_str(&serde_json::to_string(&config).unwrap()).unwrap();
    assert_eq!(again, config);
    let net = Network::new(&InitContext::new(&device, 5), &again).unwrap();
    let cx = InitContext::new(&device, 5);
    let dense = |a, b| Dense::new(&cx, a, b).unwrap();
    let (zero, he) = (Init::Zeros, Init::He);
    let by_hand = Sequential::new()
        .push(dense(6, 8).activation(Activation::Gelu))
        .push(
            Parallel::new(
                vec![
                    Sequential::new().push(dense(8, 8).init(he, zero).unwrap()),
                    Sequential::new()
                        .push(LayerNormalization::new(&cx, &[8]).unwrap())
                        .push(Activate(Activation::Tanh)),
                ],
                ParallelMerge::Add,
            )
            .unwrap(),
        )
        .named(
            "last",
            Residual::new(
                Sequential::new().named("drop", Dropout::new(&cx, 0.5).unwrap()).push(dense(8, 8).no_bias()),
            )
            .activation(Activation::Relu),
        );
    let names = |l: &dyn Layer| l.named_state().into_iter().map(|(n, _)| n).collect::<Vec<_>>();
    assert_eq!(names(&net), names(&by_hand));
    let x = tensor(&device, &[3, 6], 4).to_dtype(DType::F32).unwrap();
    let bits = |l: &dyn Layer| -> Vec<u32> {
        let y = l.forward(&x).unwrap();
        y.mean_axes(&[0, 1], false).unwrap().backward().unwrap();
        let grads = l
            .named_parameters()
            .into_iter()
            .flat_map(|(_, p)| p.get().grad().unwrap().to_vec::<f32>().unwrap());
        y.to_vec::<f32>().unwrap().into_iter().chain(grads).map(f32::to_bits).collect()
    };
    assert_eq!(bits(&net), bits(&by_hand));
    let table = summary(&net, &[x]).unwrap();
    let rows: Vec<(&str, &str)> = table.rows.iter().map(|r| (r.name.as_str(), r.kind.as_str())).collect();
    assert_eq!(rows[0], ("", "Network"));
    assert!(
        rows.contains(&("1.1.0", "LayerNormalization")) && rows.contains(&("last.drop", "Dropout")),
        "{rows:?}"
    );
}

#[test]
fn sequences_have_layers_of_their_own() {
    let config = NetworkConfig::parse(
        r#"{
          "inputs": { "signal": [3, 32] },
          "layers": [
            { "type": "conv1d", "out_channels": 8, "kernel_size": 3, "padding": "same", "activation": "relu" },
            { "type": "max_pool1d", "kernel_size": 2 },
            { "type": "conv1d", "out_channels": 8, "kernel_size": 3, "padding": 1, "stride": 2, "groups": 2, "dilation": 1 },
            { "type": "avg_pool1d", "kernel_size": 2 },
            { "type": "adaptive_avg_pool1d", "output_size": 2 },
            { "type": "flatten" },
            { "type": "dense", "out_features": 4 },
            { "type": "softmax_variant", "kind": "entmax", "alpha": 1.5 } ] }"#,
    )
    .unwrap();
    assert_eq!(config.output_shapes("", &[(&[3, 32], DType::F32)]).unwrap(), [[2, 4]]);
    let tokens = NetworkConfig::parse(
        r#"{
          "inputs": { "tokens": { "shape": [6], "dtype": "i32" } },
          "layers": [
            { "type": "embedding", "num_embeddings": 9, "embedding_dim": 4 },
            { "type": "positional_embedding", "d_model": 4, "max_len": 6 },
            { "type": "residual", "layers": [
              { "type": "rms_norm", "normalized_shape": 4 }, { "type": "swiglu", "d_ff": 8 } ] },
            { "type": "softmax_variant", "kind": "masked", "mask": [true, true, false, true] } ] }"#,
    )
    .unwrap();
    for device in crate::common::devices() {
        let cx = InitContext::new(&device, 1);
        let net = Network::new(&cx, &config).unwrap();
        let x = tensor(&device, &[2, 3, 32], 1).to_dtype(DType::F32).unwrap();
        let y = net.forward(&x).unwrap();
        y.mean_axes(&[0, 1], false).unwrap().backward().unwrap();
        let sum: f32 = y.to_vec::<f32>().unwrap().iter().sum();
        assert!((sum - 2.0).abs() < 1e-5, "{sum}");
        let net = Network::new(&cx, &tokens).unwrap();
        let x = Tensor::from_slice(&device, &[1i32, 2, 3, 4, 5, 6, 0, 1, 2, 3, 8, 7], &[2, 6]).unwrap();
        let y = net.forward(&x).unwrap();
        assert_eq!(y.shape(), [2, 6, 4]);
        assert!(y.to_vec::<f32>().unwrap().chunks(4).all(|p| p[2] == 0.0));
    }
    // Layers of images say which one reads sequences.
    for (layer, other) in [
        (r#""type": "convolutional", "out_channels": 2, "kernel_size": 3"#, "conv1d"),
        (r#""type": "max_pooling", "kernel_size": 2"#, "max_pool1d"),
        (r#""type": "average_pooling", "kernel_size": 2"#, "avg_pool1d"),
        (r#""type": "adaptive_average_pooling""#, "adaptive_avg_pool1d"),
    ] {
        let text = format!(r#"{{ "inputs": {{ "x": [3, 32] }}, "layers": [ {{ {layer} }} ] }}"#);
        let e = NetworkConfig::parse(&text).unwrap_err();
        assert_eq!(key_of(&e), "layers[0]");
        let e = e.to_string();
        let use_other = format!("expected rank 4, [B, C, H, W] (for [B, C, L] use `{other}`)");
        assert!(e.contains(&use_other) && e.contains("got rank 3, shape [2, 3, 32]"), "{e}");
    }
}

#[test]
fn lengths_are_an_input_like_others() {
    for device in crate::common::devices() {
        let config = NetworkConfig::parse(
            r#"{
              "inputs": { "x": [4, 3], "lengths": { "shape": [], "dtype": "i32" } },
              "layers": [
                { "type": "gru", "name": "rnn", "inputs": ["x", "lengths"], "hidden_size": 2 },
                { "type": "sequence_last", "name": "last", "inputs": ["rnn", "lengths"] } ],
              "outputs": ["last", "rnn.1"] }"#,
        )
        .unwrap();
        let net = Network::new(&InitContext::new(&device, 1), &config).unwrap();
        assert_eq!(net.num_parameters(), 6 * 3 + 6 * 2 + 12);
        let x = tensor(&device, &[2, 4, 3], 1).to_dtype(DType::F32).unwrap();
        let lengths = Tensor::from_slice(&device, &[4i32, 2], &[2]).unwrap();
        let y = net.forward_named(&[("x", &x), ("lengths", &lengths)]).unwrap();
        let (last, state) = (y[0].to_vec::<f32>().unwrap(), y[1].to_vec::<f32>().unwrap());
        assert!(last.iter().zip(&state).all(|(a, b)| (a - b).abs() < 1e-6), "{last:?} {state:?}");
        let e = net.forward(&x).unwrap_err().to_string();
        assert!(e.contains("lengths, x"), "{e}");
        assert!(net.forward_named(&[("x", &x), ("length", &lengths)]).is_err());
    }
}
