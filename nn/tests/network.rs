//! Networks described in JSON.

mod common;

use std::collections::BTreeSet;

use common::{cpu, tensor};
use serde_json::{Value, json};
use trefoil::ops::{Activation, CoreOps};
use trefoil_nn::layers::{
    Activate, BatchNormalization, Convolutional, Dense, Dropout, LayerNormalization, Parallel, ParallelMerge,
    Residual, Sequential,
};
use trefoil_nn::network::{Key, LAYERS, Network, NetworkConfig, layer};
use trefoil_nn::summary::summary;
use trefoil_nn::{Build, DType, Init, Layer, LayerExt, NnError, Tensor};

/// For each layer type: an input, the layer with every option, the shape of its (first) output.
fn every_type() -> Vec<(&'static [usize], Value, &'static [usize])> {
    let dense = json!({"type": "dense", "out_features": 4});
    let lstm = json!({"type": "lstm", "hidden_size": 3});
    vec![
        (
            &[2, 3, 6],
            json!({"type": "dense", "in_features": 6, "out_features": 4, "bias": false,
                   "activation": {"kind": "leaky_relu", "negative_slope": 0.2}, "weight_init": "he", "bias_init": null}),
            &[2, 3, 4],
        ),
        (
            &[2, 6],
            json!({"type": "fully_connected", "in_features": 6, "out_features": 4, "bias": true, "activation": "relu",
                   "weight_init": {"normal": {"std": 0.1}}, "bias_init": "zeros"}),
            &[2, 4],
        ),
        (
            &[2, 4, 7, 8],
            json!({"type": "convolutional", "in_channels": 4, "out_channels": 6, "kernel_size": [3, 2], "stride": [2, 1],
                   "padding": [1, 0], "dilation": 1, "groups": 2, "bias": false, "padding_mode": "reflect",
                   "activation": "silu", "weight_init": null, "bias_init": null}),
            &[2, 6, 4, 7],
        ),
        (
            &[2, 3, 4, 4],
            json!({"type": "batch_normalization", "num_features": 3, "eps": 1e-3, "momentum": null, "affine": false,
                   "track_running_stats": true}),
            &[2, 3, 4, 4],
        ),
        (
            &[2, 3, 4],
            json!({"type": "layer_normalization", "normalized_shape": [3, 4], "eps": 1e-6, "elementwise_affine": true,
                   "bias": false}),
            &[2, 3, 4],
        ),
        (
            &[2, 3],
            json!({"type": "embedding", "num_embeddings": 5, "embedding_dim": 4, "padding_idx": -1,
                   "scale_by_sqrt_dim": true, "max_norm": 1.5, "norm_type": 1, "scale_grad_by_freq": true,
                   "weight_init": {"constant": 0.5}}),
            &[2, 3, 4],
        ),
        (
            &[2, 5, 8],
            json!({"type": "attention", "embed_dim": 8, "attention_size": 6, "context_dim": 8, "bias": true,
                   "dropout": 0.1, "is_causal": true}),
            &[2, 5, 8],
        ),
        (
            &[2, 5, 8],
            json!({"type": "multi_head_attention", "embed_dim": 8, "num_heads": 2, "dropout": 0.1, "bias": false,
                   "kdim": 8, "vdim": 8, "rope": {"base": 500.0}, "alibi": true, "is_causal": true}),
            &[2, 5, 8],
        ),
        (
            &[2, 5, 8],
            json!({"type": "self_attention", "embed_dim": 8, "num_heads": 4, "dropout": 0.1, "bias": true,
                   "out_proj": false, "is_causal": true}),
            &[2, 5, 8],
        ),
        (
            &[2, 5, 8],
            json!({"type": "cross_attention", "query_dim": 8, "context_dim": 8, "num_heads": 2, "qkv_bias": true,
                   "out_bias": false, "dropout": 0.1, "zero_init_out": true}),
            &[2, 5, 8],
        ),
        (
            &[2, 5, 4],
            json!({"type": "lstm", "input_size": 4, "hidden_size": 3, "bias": false, "return_sequences": false,
                   "stateful": true, "num_layers": 2, "dropout": 0.1, "weight_init": "glorot", "bias_init": null}),
            &[2, 3],
        ),
        (
            &[2, 5, 4],
            json!({"type": "gru", "input_size": 4, "hidden_size": 3, "bias": true, "return_sequences": true,
                   "stateful": false, "num_layers": 1, "dropout": 0, "weight_init": null, "bias_init": "zeros"}),
            &[2, 5, 3],
        ),
        (
            &[2, 5, 4],
            json!({"type": "recurrent", "input_size": 4, "hidden_size": 3, "nonlinearity": "relu", "bias": true,
                   "return_sequences": true, "stateful": false, "num_layers": 1, "dropout": 0,
                   "weight_init": {"uniform": {"lo": -0.1, "hi": 0.1}}, "bias_init": "zeros"}),
            &[2, 5, 3],
        ),
        (
            &[2, 3, 2, 6, 6],
            json!({"type": "conv_lstm", "in_channels": 2, "filters": 3, "kernel_size": 3, "stride": 2, "padding": [1, 1],
                   "dilation": 1, "bias": true, "peephole": true, "return_sequences": false}),
            &[2, 3, 3, 3],
        ),
        (
            &[2, 5, 4],
            json!({"type": "bidirectional", "inner": lstm, "merge_mode": "ave",
                   "backward_inner": {"type": "gru", "hidden_size": 3}}),
            &[2, 5, 3],
        ),
        (
            &[2, 3, 7, 7],
            json!({"type": "average_pooling", "kernel_size": 3, "stride": [2, 2], "padding": 1, "ceil_mode": true,
                   "count_include_pad": false, "divisor_override": 4}),
            &[2, 3, 4, 4],
        ),
        (
            &[2, 3, 7, 7],
            json!({"type": "max_pooling", "kernel_size": [2, 3], "stride": 2, "padding": [0, 1], "dilation": 1,
                   "ceil_mode": false, "return_indices": true}),
            &[2, 3, 3, 4],
        ),
        (
            &[2, 3, 4, 6, 6],
            json!({"type": "max_pool3d", "kernel_size": 2, "stride": [2, 3, 3], "padding": 0, "dilation": 1,
                   "ceil_mode": false, "return_indices": false}),
            &[2, 3, 2, 2, 2],
        ),
        (
            &[2, 3, 4, 4],
            json!({"type": "global_pooling", "mode": "max", "keepdim": false, "activation": "tanh"}),
            &[2, 3],
        ),
        (&[2, 3, 4, 6], json!({"type": "adaptive_average_pooling", "output_size": [2, null]}), &[2, 3, 2, 6]),
        (
            &[2, 3, 4, 4],
            json!({"type": "instance_normalization", "num_features": 3, "eps": 1e-3, "momentum": 0.2, "affine": true,
                   "track_running_stats": true}),
            &[2, 3, 4, 4],
        ),
        (
            &[2, 4, 3],
            json!({"type": "group_normalization", "num_groups": 2, "num_channels": 4, "eps": 1e-3, "affine": false}),
            &[2, 4, 3],
        ),
        (
            &[2, 4, 3],
            json!({"type": "rms_norm", "normalized_shape": 3, "eps": null, "elementwise_affine": true}),
            &[2, 4, 3],
        ),
        (
            &[2, 5, 8],
            json!({"type": "transformer_encoder", "d_model": 8, "nhead": 2, "dim_feedforward": 16, "dropout": 0,
                   "activation": "gelu", "layer_norm_eps": 1e-4, "norm_first": true, "bias": false, "is_causal": true}),
            &[2, 5, 8],
        ),
        (
            &[2, 5, 8],
            json!({"type": "transformer_decoder", "d_model": 8, "nhead": 2, "dim_feedforward": 16, "dropout": 0,
                   "activation": "relu", "layer_norm_eps": 1e-4, "norm_first": false, "bias": true}),
            &[2, 5, 8],
        ),
        (
            &[2, 5, 8],
            json!({"type": "feed_forward", "d_model": 8, "d_ff": 16, "activation": "gelu", "dropout": 0.1, "bias": false}),
            &[2, 5, 8],
        ),
        (
            &[2, 5, 8],
            json!({"type": "positional_encoding", "d_model": 8, "max_len": 10, "base": 100.0, "dropout": 0.1}),
            &[2, 5, 8],
        ),
        (
            &[2, 3, 8, 8],
            json!({"type": "patch_embedding", "in_channels": 3, "patch_size": 4, "embed_dim": 5, "bias": true,
                   "flatten": false, "weight_init": "lecun", "bias_init": "zeros"}),
            &[2, 5, 2, 2],
        ),
        (
            &[2, 2, 4, 5, 6],
            json!({"type": "conv3d", "in_channels": 2, "out_channels": 4, "kernel_size": 3, "stride": 1,
                   "padding": "same", "dilation": [1, 1, 1], "groups": 2, "bias": true, "padding_mode": "zeros",
                   "activation": "identity", "weight_init": null, "bias_init": null}),
            &[2, 4, 4, 5, 6],
        ),
        (
            &[2, 4, 3, 3],
            json!({"type": "deconvolutional", "in_channels": 4, "out_channels": 2, "kernel_size": 3, "stride": 2,
                   "padding": 1, "output_padding": [1, 1], "groups": 2, "bias": true, "dilation": 1,
                   "activation": "relu", "weight_init": null, "bias_init": null}),
            &[2, 2, 6, 6],
        ),
        (
            &[2, 4, 5, 5],
            json!({"type": "deformable_convolutional", "in_channels": 4, "out_channels": 6, "kernel_size": [3, 3],
                   "stride": 1, "padding": 1, "dilation": 1, "groups": 2, "deform_groups": 2, "modulation": false,
                   "bias": true, "weight_init": null, "bias_init": "zeros"}),
            &[2, 6, 5, 5],
        ),
        (
            &[2, 3, 5, 5],
            json!({"type": "depthwise_separable_convolutional", "in_channels": 3, "out_channels": 4, "kernel_size": 3,
                   "stride": 1, "padding": 1, "dilation": 1, "depth_multiplier": 2, "bias": true,
                   "mid_activation": "relu", "activation": "relu6", "weight_init": null, "bias_init": null}),
            &[2, 4, 5, 5],
        ),
        (
            &[2, 3, 6, 6],
            json!({"type": "dilated_convolutional", "in_channels": 3, "out_channels": 4, "kernel_size": 3, "stride": 1,
                   "padding": "valid", "dilation": 2, "groups": 1, "bias": true, "padding_mode": "zeros",
                   "activation": "relu", "weight_init": "he", "bias_init": "zeros"}),
            &[2, 4, 2, 2],
        ),
        (
            &[2, 3, 5, 5],
            json!({"type": "locally_connected", "in_channels": 3, "out_channels": 2, "kernel_size": 3, "stride": 2,
                   "bias": true, "activation": "relu", "weight_init": null, "bias_init": null}),
            &[2, 2, 2, 2],
        ),
        (
            &[2, 3, 5, 5],
            json!({"type": "separable_convolutional", "in_channels": 3, "out_channels": 4, "kernel_size": 3, "stride": 2,
                   "padding": 1, "dilation": 1, "depth_multiplier": 1, "bias": false, "activation": "relu",
                   "weight_init": null, "bias_init": null}),
            &[2, 4, 3, 3],
        ),
        (
            &[2, 3, 2, 3, 4],
            json!({"type": "upsample3d", "scale_factor": [2, 1, 1.5], "size": null, "mode": "trilinear",
                   "align_corners": false}),
            &[2, 3, 4, 3, 6],
        ),
        (
            &[2, 3, 4, 5],
            json!({"type": "upsampling", "scale_factor": null, "size": [6, 7], "mode": "bilinear", "align_corners": true}),
            &[2, 3, 6, 7],
        ),
        (
            &[2, 3, 4, 4],
            json!({"type": "subpixel_convolutional", "in_channels": 3, "out_channels": 2, "upscale_factor": 2,
                   "kernel_size": 3, "bias": true, "activation": "tanh", "icnr_init": true, "weight_init": null,
                   "bias_init": null}),
            &[2, 2, 8, 8],
        ),
        (&[2, 8, 3, 3], json!({"type": "pixel_shuffle", "upscale_factor": 2}), &[2, 2, 6, 6]),
        (&[2, 2, 6, 6], json!({"type": "pixel_unshuffle", "downscale_factor": 2}), &[2, 8, 3, 3]),
        (
            &[2, 3],
            json!({"type": "activation", "kind": "softplus", "dim": null, "negative_slope": null, "alpha": null,
                   "beta": 2.0, "threshold": 10, "min_val": null, "max_val": null, "theta": null,
                   "num_parameters": null, "init": null}),
            &[2, 3],
        ),
        (&[2, 3], json!({"type": "softmax", "dim": 0}), &[2, 3]),
        (&[2, 3], json!({"type": "log_softmax", "dim": 1}), &[2, 3]),
        (&[2, 3], json!({"type": "add", "activation": "relu"}), &[2, 3]),
        (&[2, 3], json!({"type": "concatenate", "dim": -1, "activation": "relu"}), &[2, 6]),
        (&[2, 3, 4, 5], json!({"type": "cropping", "cropping": [[1, 0], [2, 1]]}), &[2, 3, 3, 2]),
        (&[2, 3], json!({"type": "dropout", "p": 0.25}), &[2, 3]),
        (&[2, 3, 4, 5], json!({"type": "flatten", "start_dim": 2, "end_dim": -1}), &[2, 3, 20]),
        (&[2, 3], json!({"type": "gaussian_noise", "stddev": 0.2, "mean": 1}), &[2, 3]),
        (&[2, 3, 4], json!({"type": "input", "shape": [-1, 4], "dtype": "f32"}), &[2, 3, 4]),
        (&[2, 3, 4], json!({"type": "masking", "mask_value": -1}), &[2, 3, 4]),
        (&[2, 3], json!({"type": "multiply", "activation": "sigmoid"}), &[2, 3]),
        (
            &[2, 3, 4],
            json!({"type": "padding", "padding": [[1, 2]], "mode": "constant", "value": 0.5}),
            &[2, 3, 7],
        ),
        (&[2, 12], json!({"type": "reshape", "target_shape": [3, -1]}), &[2, 3, 4]),
        (&[2, 3, 4], json!({"type": "sequence_last"}), &[2, 4]),
        (&[2, 6], json!({"type": "split", "num_splits": 2, "sizes": null, "dim": 1}), &[2, 3]),
        (&[2, 3, 5], json!({"type": "time_distributed", "inner": dense, "activation": "relu"}), &[2, 3, 4]),
        (&[2, 3, 4], json!({"type": "mean", "dim": [1, -1], "keepdim": true}), &[2, 1, 1]),
        (&[2, 3, 4], json!({"type": "log_variance", "dim": 1, "keepdim": false, "eps": 1e-4}), &[2, 4]),
        (
            &[2, 6],
            json!({"type": "gated_linear_unit", "in_features": 6, "out_features": 4, "bias": true,
                   "gate_activation": "silu", "weight_init": null, "bias_init": null}),
            &[2, 4],
        ),
        (
            &[2, 6],
            json!({"type": "spectral_normalization", "inner": dense, "parameter": "weight", "n_power_iterations": 2,
                   "eps": 1e-10, "dim": 0}),
            &[2, 4],
        ),
        (
            &[2, 5, 8],
            json!({"type": "decoder", "d_model": 8, "attention_size": 6, "dim_feedforward": 16, "activation": "gelu",
                   "dropout": 0.1, "layer_norm_eps": 1e-4, "norm_first": true}),
            &[2, 5, 8],
        ),
        (
            &[2, 6],
            json!({"type": "hyperbolic_linear", "in_features": 6, "out_features": 4, "c": 0.5, "bias": true,
                   "hyperbolic_input": false, "nonlin": "relu", "output": "tangent", "weight_init": null,
                   "bias_init": "zeros"}),
            &[2, 4],
        ),
        (
            &[2, 16],
            json!({"type": "octonion_linear", "in_features": 2, "out_features": 3, "bias": true, "activation": "relu"}),
            &[2, 24],
        ),
        (&[2, 6], json!({"type": "sequential", "layers": [dense, {"type": "dropout"}]}), &[2, 4]),
        (
            &[2, 6],
            json!({"type": "residual", "layers": [dense], "shortcut": [dense], "activation": "relu"}),
            &[2, 4],
        ),
        (
            &[2, 6],
            json!({"type": "parallel", "branches": [[dense], []], "merge": "concat", "dim": 1, "activation": "relu"}),
            &[2, 10],
        ),
        (&[2, 6], json!({"type": "checkpointed", "inner": dense}), &[2, 4]),
    ]
}

#[test]
fn every_type_takes_every_key() {
    let device = cpu();
    let types = every_type();
    let covered: BTreeSet<&str> = types.iter().map(|(_, j, _)| j["type"].as_str().unwrap()).collect();
    let known: BTreeSet<&str> = LAYERS.iter().map(|l| l.name).collect();
    assert_eq!(covered, known);
    assert_eq!(LAYERS.len(), known.len(), "a name stands twice in the table");
    for (shape, json, out) in types {
        let name = json["type"].as_str().unwrap();
        let info = LAYERS.iter().find(|l| l.name == name).unwrap();
        let given: BTreeSet<&str> = json.as_object().unwrap().keys().map(String::as_str).collect();
        let keys: BTreeSet<&str> = info.keys.iter().map(|k| k.name).chain(["type"]).collect();
        assert_eq!(given, keys, "{name}");
        let cx = Build::new(&device, 1);
        let l = layer(&cx, &json).unwrap_or_else(|e| panic!("{name}: {e}"));
        let x = match name {
            "embedding" => Tensor::from_slice(&device, &[0i32, 1, 4, 2, 2, 3], shape).unwrap(),
            _ => tensor(&device, shape, 7).to_dtype(DType::F32).unwrap(),
        };
        let inputs = match info.inputs.0 {
            2 => vec![x.clone(), x],
            _ if name == "concatenate" => vec![x.clone(), x],
            _ => vec![x],
        };
        let y = l.forward_all(&inputs).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(y[0].shape(), out, "{name}");

        // The same without a device.
        let mut part = json.clone();
        part["inputs"] = json!(vec!["input"; inputs.len()]);
        let mut config = NetworkConfig::sequential(vec![part]);
        config.outputs = vec!["0.0".into()];
        let items = [(&shape[1..], inputs[0].dtype())];
        let shapes = config.output_shapes("", &items).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(shapes, [out], "{name}");
    }
}

#[test]
fn required_keys_alone_are_enough_and_each_is_required() {
    let device = cpu();
    for (_, json, _) in every_type() {
        let name = json["type"].as_str().unwrap();
        let info = LAYERS.iter().find(|l| l.name == name).unwrap();
        let mut least = json.as_object().unwrap().clone();
        least.retain(|k, _| k == "type" || info.keys.iter().any(|i| i.name == k && i.default.is_none()));
        // One of two keys is required.
        match name {
            "upsample3d" => drop(least.insert("scale_factor".into(), json!(2))),
            "upsampling" => drop(least.insert("scale_factor".into(), json!(2))),
            "split" => drop(least.insert("num_splits".into(), json!(2))),
            "activation" => drop(least.insert("kind".into(), json!("relu"))),
            _ => {}
        }
        layer(&Build::new(&device, 1), &Value::Object(least.clone()))
            .unwrap_or_else(|e| panic!("{name}: {e}"));
        for key in least.keys().filter(|k| *k != "type") {
            let mut less = least.clone();
            less.remove(key);
            let e = layer(&Build::new(&device, 1), &Value::Object(less)).unwrap_err();
            assert_eq!(&key_of(&e), key, "{name}: {e}");
        }
        let mut more = least.clone();
        more.insert("colour".into(), json!(1));
        let e = layer(&Build::new(&device, 1), &Value::Object(more)).unwrap_err();
        assert_eq!(key_of(&e), "colour", "{name}: {e}");
    }
}

#[test]
fn sizes_of_zero_are_named() {
    let sizes = [
        "attention_size",
        "context_dim",
        "d_ff",
        "d_model",
        "dilation",
        "dim_feedforward",
        "downscale_factor",
        "embed_dim",
        "embedding_dim",
        "filters",
        "hidden_size",
        "in_channels",
        "in_features",
        "input_size",
        "kdim",
        "kernel_size",
        "max_len",
        "nhead",
        "normalized_shape",
        "num_channels",
        "num_embeddings",
        "num_features",
        "num_groups",
        "num_heads",
        "num_layers",
        "num_parameters",
        "num_splits",
        "out_channels",
        "out_features",
        "output_size",
        "patch_size",
        "query_dim",
        "scale_factor",
        "upscale_factor",
        "eps",
        "layer_norm_eps",
        "groups",
        "deform_groups",
        "depth_multiplier",
    ];
    let mut wrong = vec![];
    for (shape, json, _) in every_type() {
        let name = json["type"].as_str().unwrap();
        let known = |k: &&&str| json.get(**k).is_some_and(|v| !v.is_null());
        for key in sizes.iter().filter(known) {
            let mut json = json.clone();
            json[*key] = json!(0);
            json["inputs"] = json!(vec!["input"; LAYERS.iter().find(|l| l.name == name).unwrap().inputs.0]);
            let dtype = if name == "embedding" { DType::I32 } else { DType::F32 };
            match NetworkConfig::sequential(vec![json]).output_shapes("", &[(&shape[1..], dtype)]) {
                Err(NnError::Config { key: k, .. }) if k == format!("layers[0].{key}") => {}
                // Found in the forward.
                Err(NnError::Config { key: k, what, .. }) if k == "layers[0]" && what.contains(key) => {}
                other => wrong.push(format!("{name}.{key}: {other:?}")),
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

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
    let cx = Build::new(&device, 3);
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
    let cx = Build::new(&device, 99);
    let conv = Convolutional::new(&cx, 1, 4, 3).unwrap().same_padding().activation(Activation::Relu);
    let norm = BatchNormalization::new(&cx, 4).unwrap();
    let one = Convolutional::new(&cx, 4, 4, 1).unwrap();
    let head = Dense::new(&cx, 6, 3).unwrap();
    let parts: [(&str, &dyn Layer); 4] =
        [("conv", &conv), ("block.norm", &norm), ("block.1", &one), ("head", &head)];
    let state = net.state_dict();
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
        ("\"type\": \"add\"", "\"type\": \"ad\"", "layers[5].type", &["`ad`", "add, concatenate"]),
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
        ("\"out_features\": 3", "\"units\": 3", "layers[0].units", &["unknown key", "out_features"]),
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
        ("\"name\": \"norm\", ", "\"inputs\": [], ", "layers[2].layers[0].inputs", &["unknown key"]),
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
        ("\"image\": [1, 8, 8]", "\"image\": [1, 8]", "layers[2]", &["`block.norm`", "[4, 1, 8]"]),
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
    assert!(Network::new(&Build::new(&device, 1), &config).is_err());
    // Sizes that come with the data.
    let config = NetworkConfig::parse(
        r#"{"layers": [{"type": "flatten"}, {"type": "dense", "out_features": 3, "in_features": 5}]}"#,
    )
    .unwrap();
    let items =
        |n: usize| Network::for_items(&Build::new(&device, 1), &config, "model", &[(&[n], DType::F32)]);
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
    let net = Network::new(&Build::new(&device, 1), &config).unwrap();
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
    let state = net.state_dict();
    assert_eq!(state["norm.running_mean"].to_vec::<f32>().unwrap(), [0.0; 3]);
    assert_eq!(state["norm.num_batches_tracked"].item::<i64>().unwrap(), 0);
    assert_eq!(net.counters()["drop.offset"], 0);
    // The trial run left no state to start from.
    let x = Tensor::from_slice(&device, &[1i32, 2, 3, 4, 5, 6, 0, 1, 2, 3], &[2, 5]).unwrap();
    net.eval();
    let first = net.forward(&x).unwrap().to_vec::<f32>().unwrap();
    let again = Network::new(&Build::new(&device, 1), &config).unwrap();
    again.eval();
    assert_eq!(again.forward(&x).unwrap().to_vec::<f32>().unwrap(), first);
    // A network without sizes makes its parameters in the first forward, with the same numbers in the end.
    let open = text.replace("\"shape\": [5]", "\"shape\": [-1]");
    let open = Network::new(&Build::new(&device, 1), &NetworkConfig::parse(&open).unwrap()).unwrap();
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
    let net = Network::new(&Build::new(&device, 5), &again).unwrap();
    let cx = Build::new(&device, 5);
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

/// The table of `docs/NETWORKS.md`, made from the table of the library.
fn table_of_types() -> String {
    let mut text = String::from("| `type` | options | inputs | PyTorch |\n|---|---|---|---|\n");
    for l in LAYERS {
        let key = |k: &Key| match k.default {
            Some(d) => format!("`{}` = `{d}`", k.name),
            None => format!("**`{}`**", k.name),
        };
        let keys: Vec<String> = l.keys.iter().map(key).collect();
        let inputs = match l.inputs {
            (a, b) if a == b => format!("{a}"),
            (a, usize::MAX) => format!("{a} or more"),
            (a, b) => format!("{a} to {b}"),
        };
        let torch = if l.torch.contains('`') || l.torch.contains(' ') || l.torch == "none" {
            l.torch.to_string()
        } else {
            format!("`{}`", l.torch)
        };
        text += &format!("| `{}` | {} | {inputs} | {torch} |\n", l.name, keys.join(", "));
    }
    text
}

#[test]
fn the_documented_table_is_that_of_the_library() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/NETWORKS.md");
    let text = std::fs::read_to_string(&path).unwrap().replace("\r\n", "\n");
    let (begin, end) = ("<!-- table of types: begin -->\n", "<!-- table of types: end -->");
    let start = text.find(begin).unwrap() + begin.len();
    let (head, rest) = text.split_at(start);
    let (table, tail) = rest.split_at(rest.find(end).unwrap());
    let wanted = table_of_types();
    if table != wanted && std::env::var_os("TREFOIL_UPDATE_DOCS").is_some() {
        std::fs::write(&path, format!("{head}{wanted}{tail}")).unwrap();
        return;
    }
    assert_eq!(table, wanted, "docs/NETWORKS.md: run this test with TREFOIL_UPDATE_DOCS=1");
    // Its examples are networks.
    let mut examples = 0;
    for block in text.split("```json\n").skip(1) {
        let json = block.split("```").next().unwrap();
        NetworkConfig::parse(json).unwrap_or_else(|e| panic!("{e}\n{json}"));
        examples += 1;
    }
    assert!(examples > 1);
}
