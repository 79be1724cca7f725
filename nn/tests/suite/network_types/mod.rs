//! Layer types of networks in JSON.

mod cases;
mod messages;

use std::collections::BTreeSet;

use self::cases::every_type;
use crate::common::{cpu, tensor};
use serde_json::{Value, json};
use trefoil_nn::autograd::no_grad;
use trefoil_nn::network::{Key, LAYERS, Network, NetworkConfig, layer};
use trefoil_nn::{DType, Device, InitContext, Layer, NnError, Tensor};

/// What a layer reads beside its features: ends, features and types of edges, types of nodes, neighbours on a mesh, a memory, what skips layers.
fn beside(d: &Device, name: &str) -> Vec<Tensor> {
    let edges = Tensor::from_slice(d, &[0i64, 1, 1, 0], &[2, 2]).unwrap();
    let ids = Tensor::zeros(d, DType::I64, &[2]).unwrap();
    let ones = |shape: &[usize]| Tensor::ones(d, DType::F32, shape).unwrap();
    match name {
        "readout" => vec![ids],
        "edge_conditional_convolutional" | "principal_neighbourhood_aggregation" => {
            vec![edges, ones(&[2, 3])]
        }
        "heterogeneous_graph" => vec![edges, ids.clone(), ids],
        "directional_graph" | "message_passing" | "diffusion_conv" => vec![edges],
        _ if name.starts_with("graph_") => vec![edges],
        "spiral_conv" => vec![Tensor::from_slice(d, &[0i64, 1, -1, 1, 0, -1], &[2, 3]).unwrap()],
        "mesh_edge_conv" | "mesh_pool" => {
            vec![Tensor::from_slice(d, &[1i64, -1, -1, -1, 0, -1, -1, -1], &[2, 4]).unwrap()]
        }
        "memory_write" => vec![ones(&[2, 3, 4])],
        "unet_up_block" => vec![ones(&[2, 3, 10, 12])],
        _ => vec![],
    }
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
        let cx = InitContext::new(&device, 1);
        let l = layer(&cx, &json).unwrap_or_else(|e| panic!("{name}: {e}"));
        let x = match name {
            "embedding" => Tensor::from_slice(&device, &[0i32, 1, 4, 2, 2, 3], shape).unwrap(),
            "rbm" | "spatial_pooler" | "anomaly_detector" | "temporal_memory" => {
                tensor(&device, shape, 7).gt_scalar(0.0).unwrap().to_dtype(DType::F32).unwrap()
            }
            _ => tensor(&device, shape, 7).to_dtype(DType::F32).unwrap(),
        };
        let beside = beside(&device, name);
        let inputs = match info.inputs.0 {
            _ if !beside.is_empty() => [vec![x], beside.clone()].concat(),
            2 => vec![x.clone(), x],
            _ if name == "concatenate" => vec![x.clone(), x],
            _ => vec![x],
        };
        let y = l.forward_all(&inputs).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(y[0].shape(), out, "{name}");

        // The same without a device.
        let mut part = json.clone();
        part["inputs"] = json!(vec!["input"; inputs.len()]);
        // Two nodes, two edges, two rows of ends: all are batches of two.
        let mut declared = json!({"input": shape[1..]});
        for (i, t) in beside.iter().enumerate() {
            let key = format!("input{i}");
            declared[&key] = json!({"shape": t.shape()[1..], "dtype": t.dtype().name()});
            part["inputs"][i + 1] = json!(key);
        }
        let mut config = NetworkConfig::sequential(vec![part]);
        config.outputs = vec!["0.0".into()];
        let mut items = vec![(&shape[1..], inputs[0].dtype())];
        if !beside.is_empty() {
            let text =
                json!({"inputs": declared, "layers": config.layers, "outputs": config.outputs}).to_string();
            config = NetworkConfig::parse(&text).unwrap_or_else(|e| panic!("{name}: {e}"));
            items.extend(beside.iter().map(|t| (&t.shape()[1..], t.dtype())));
        }
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
        layer(&InitContext::new(&device, 1), &Value::Object(least.clone()))
            .unwrap_or_else(|e| panic!("{name}: {e}"));
        for key in least.keys().filter(|k| *k != "type") {
            let mut less = least.clone();
            less.remove(key);
            let e = layer(&InitContext::new(&device, 1), &Value::Object(less)).unwrap_err();
            assert_eq!(&key_of(&e), key, "{name}: {e}");
        }
        let mut more = least.clone();
        more.insert("colour".into(), json!(1));
        let e = layer(&InitContext::new(&device, 1), &Value::Object(more)).unwrap_err();
        assert_eq!(key_of(&e), "colour", "{name}: {e}");
    }
}

#[test]
fn sizes_of_zero_are_named() {
    let sizes = [
        "attention_size",
        "base_channels",
        "base_width",
        "bn_size",
        "channels",
        "cols",
        "context_dim",
        "d_ff",
        "d_model",
        "dilation",
        "dim_feedforward",
        "downscale_factor",
        "embed_dim",
        "embedding_dim",
        "expand_ratio",
        "filters",
        "growth_rate",
        "hidden_size",
        "in_channels",
        "in_features",
        "input_size",
        "kdim",
        "kernel_size",
        "max_len",
        "nhead",
        "normalized_shape",
        "num_block",
        "num_blocks",
        "num_channels",
        "num_embeddings",
        "num_feat",
        "num_features",
        "num_groups",
        "num_grow_ch",
        "num_heads",
        "num_layers",
        "num_parameters",
        "num_splits",
        "out_channels",
        "out_features",
        "output_size",
        "patch_size",
        "pool_size",
        "query_dim",
        "rows",
        "scale",
        "scale_factor",
        "se_ratio",
        "skip_channels",
        "squeeze",
        "temperature",
        "upscale_factor",
        "eps",
        "layer_norm_eps",
        "groups",
        "deform_groups",
        "depth_multiplier",
        "ffn_hidden",
        "head_dim",
        "message_features",
        "spiral_length",
        "target_edges",
        "capsule_channels",
        "capsule_dim",
        "hidden",
        "hidden1",
        "hidden2",
        "in_capsules",
        "in_dim",
        "in_height",
        "in_width",
        "num_capsules",
        "num_classes",
        "num_levels",
        "num_qubits",
        "out_dim",
        "out_height",
        "out_width",
        "output_dim",
        "routing_iterations",
        "size",
        "conv1d_width",
        "conv_size",
        "expand_k",
        "expand_v",
        "gate_logit_normalizer",
        "gate_low_rank_dim",
        "lru_width",
        "num_kv_heads",
    ];
    let mut wrong = vec![];
    for (shape, json, _) in every_type() {
        let name = json["type"].as_str().unwrap();
        // In one type, a key of this name is a factor.
        let factor = |k: &str| (name, k) == ("memory_read", "scale");
        let known = |k: &&&str| json.get(**k).is_some_and(|v| !v.is_null()) && !factor(k);
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

/// Options with their defaults, required ones bold.
fn options(keys: &[Key]) -> String {
    let key = |k: &Key| match k.default {
        Some(d) => format!("`{}` = `{d}`", k.name),
        None => format!("**`{}`**", k.name),
    };
    keys.iter().map(key).collect::<Vec<_>>().join(", ")
}

/// The types of layers.
fn table_of_types() -> String {
    let mut text = String::from("| `type` | options | inputs | PyTorch |\n|---|---|---|---|\n");
    for l in LAYERS {
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
        text += &format!("| `{}` | {} | {inputs} | {torch} |\n", l.name, options(l.keys));
    }
    text
}

/// The types in the sections of a run.
fn table_of_runs() -> String {
    let mut text = String::from("| section | `type` | options |\n|---|---|---|\n");
    for section in trefoil_nn::config::sections() {
        for (name, keys) in section.types {
            text += &format!("| `{}` | `{name}` | {} |\n", section.path, options(keys));
        }
    }
    text
}

/// The types of Loom.
fn table_of_loom() -> String {
    let mut text = String::from("| Loom's `type` | here | keys |\n|---|---|---|\n");
    for t in trefoil_nn::loom::types() {
        text += &format!("| `{}` | `{}` | `{}` |\n", t.name, t.network, t.keys.join("`, `"));
    }
    text
}

#[test]
fn the_documented_tables_are_those_of_the_library() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/NETWORKS.md");
    let written = std::fs::read_to_string(&path).unwrap().replace("\r\n", "\n");
    let mut text = written.clone();
    for (of, table) in [("types", table_of_types()), ("runs", table_of_runs()), ("Loom", table_of_loom())] {
        let (begin, end) =
            (format!("<!-- table of {of}: begin -->\n"), format!("<!-- table of {of}: end -->"));
        let start = text.find(&begin).unwrap() + begin.len();
        let stop = start + text[start..].find(&end).unwrap();
        text.replace_range(start..stop, &table);
    }
    if text != written && std::env::var_os("TREFOIL_UPDATE_DOCS").is_some() {
        std::fs::write(&path, text).unwrap();
        return;
    }
    assert!(text == written, "docs/NETWORKS.md: run this test with TREFOIL_UPDATE_DOCS=1");
    for t in trefoil_nn::loom::types() {
        assert!(LAYERS.iter().any(|l| l.name == t.network), "{t:?}");
    }
    // Its examples are networks.
    let mut examples = 0;
    for block in text.split("```json\n").skip(1) {
        let json = block.split("```").next().unwrap();
        NetworkConfig::parse(json).unwrap_or_else(|e| panic!("{e}\n{json}"));
        examples += 1;
    }
    assert!(examples > 1);
}

#[test]
fn softmax_kinds_ask_for_their_own_options() {
    let cx = InitContext::new(&cpu(), 1);
    let make = |options: Value| {
        let mut json = options;
        json["type"] = json!("softmax_variant");
        layer(&cx, &json)
    };
    let x = tensor(cx.device(), &[2, 6], 3).to_dtype(DType::F32).unwrap();
    for (options, columns) in [
        (json!({}), 6),
        (json!({"kind": "hierarchical", "levels": [2, 3], "tree": true}), 6),
        (json!({"kind": "gumbel", "temperature": 2, "hard": true}), 6),
        (json!({"kind": "masked", "mask": [true, false, true, true, false, true]}), 6),
        (json!({"kind": "sparse"}), 6),
        (json!({"kind": "entmax", "alpha": 1.3}), 6),
        (json!({"kind": "adaptive", "clusters": [[0, 1], [2, 3, 4, 5]]}), 6),
        (json!({"kind": "mixture", "weights": [1, 3]}), 3),
    ] {
        let y = make(options.clone()).unwrap().forward(&x).unwrap_or_else(|e| panic!("{options}: {e}"));
        assert_eq!(y.shape(), [2, columns], "{options}");
    }
    for (options, key) in [
        (json!({"kind": "grid", "rows": 2}), "cols"),
        (json!({"kind": "mixture"}), "weights"),
        (json!({"kind": "sparse", "mask": [true]}), "mask"),
        (json!({"kind": "soft"}), "kind"),
        (json!({"kind": "entmax", "alpha": 0.5}), "alpha"),
    ] {
        assert_eq!(key_of(&make(options).unwrap_err()), key);
    }
}

#[test]
fn a_missing_spatial_axis_names_the_type_for_it() {
    let with = |items: &[usize], layer: Value| {
        NetworkConfig::sequential(vec![layer]).output_shapes("", &[(items, DType::F32)])
    };
    for (name, other) in [
        ("convolutional", "`conv1d`"),
        ("dilated_convolutional", "`conv1d`"),
        ("max_pooling", "`max_pool1d`"),
        ("average_pooling", "`avg_pool1d`"),
        ("adaptive_average_pooling", "`adaptive_avg_pool1d`"),
    ] {
        let mut json = json!({"type": name});
        let convolution = name.ends_with("convolutional");
        if convolution {
            (json["out_channels"], json["dilation"]) = (json!(4), json!(1));
        }
        if name != "adaptive_average_pooling" {
            json["kernel_size"] = json!(3);
        }
        for json in
            [json.clone(), json!({"type": "residual", "layers": [json], "shortcut": [{"type": "softmax"}]})]
        {
            let e = with(&[3, 16], json).unwrap_err().to_string();
            assert!(e.contains(other) && e.contains("[2, 3, 16]"), "{name}: {e}");
        }
    }
    let e = with(&[3, 8, 8], json!({"type": "conv3d", "out_channels": 4, "kernel_size": 3})).unwrap_err();
    assert!(e.to_string().contains("`convolutional`"), "{e}");
    // A layer alone takes an item without the batch axis, as in PyTorch.
    let alone = json!({"type": "convolutional", "out_channels": 4, "kernel_size": 3});
    let alone = layer(&InitContext::new(&cpu(), 1), &alone).unwrap();
    let x = tensor(&cpu(), &[3, 8, 8], 1).to_dtype(DType::F32).unwrap();
    assert_eq!(alone.forward(&x).unwrap().shape(), [4, 6, 6]);
}

fn floats(t: &Tensor) -> Vec<f32> {
    t.to_vec().unwrap()
}

#[test]
fn branches_are_merged() {
    let device = cpu();
    let x = Tensor::from_slice(&device, &[-1f32, 2., 3., -4.], &[2, 2]).unwrap();
    for (merge, want) in [
        ("concat", &[-1f32, 2., 0., 2., 3., -4., 3., 0.] as &[f32]),
        ("add", &[-1., 4., 6., -4.]),
        ("multiply", &[0., 4., 9., 0.]),
        ("average", &[-0.5, 2., 3., -2.]),
        ("maximum", &[0., 2., 3., 0.]),
    ] {
        let json = json!({"type": "parallel", "merge": merge, "branches": [[], [{"type": "activation", "kind": "relu"}]]});
        let y = layer(&InitContext::new(&device, 1), &json).unwrap().forward(&x).unwrap();
        assert!(floats(&y).iter().zip(want).all(|(a, b)| a == b), "{merge}: {:?}", floats(&y));
        assert_eq!(y.numel(), want.len());
    }
    for json in [
        json!({"type": "parallel", "merge": "add", "branches": [[]]}),
        json!({"type": "parallel", "merge": "add", "dim": 1, "branches": [[], []]}),
        json!({"type": "residual", "layers": [{"type": "dropout", "name": "shortcut"}]}),
    ] {
        assert!(matches!(layer(&InitContext::new(&device, 1), &json), Err(NnError::Config { .. })), "{json}");
    }
}

#[test]
fn causal_layers_do_not_see_later_steps() {
    let device = cpu();
    let x = tensor(&device, &[1, 4, 8], 1).to_dtype(DType::F32).unwrap();
    let tail = tensor(&device, &[1, 1, 8], 2).to_dtype(DType::F32).unwrap();
    let other = Tensor::concat(1, &[&x.narrow(1, 0, 3).unwrap(), &tail]).unwrap();
    for json in [
        json!({"type": "attention", "embed_dim": 8, "attention_size": 6}),
        json!({"type": "multi_head_attention", "embed_dim": 8, "num_heads": 2}),
        json!({"type": "self_attention", "embed_dim": 8, "num_heads": 2}),
        json!({"type": "transformer_encoder", "d_model": 8, "nhead": 2, "dim_feedforward": 16, "dropout": 0}),
    ] {
        for causal in [false, true] {
            let mut json = json.clone();
            json["is_causal"] = json!(causal);
            let l = layer(&InitContext::new(&device, 1), &json).unwrap();
            let head =
                |x: &Tensor| floats(&l.forward(x).unwrap().narrow(1, 0, 3).unwrap().contiguous().unwrap());
            assert_eq!(head(&x) == head(&other), causal, "{json}");
        }
    }
}

#[test]
fn states_are_carried_until_they_are_reset() {
    let device = cpu();
    let lstm = json!({"type": "lstm", "hidden_size": 3, "stateful": true});
    let x = tensor(&device, &[2, 4, 5], 1).to_dtype(DType::F32).unwrap();
    for json in [
        json!({"type": "sequential", "layers": [lstm]}),
        json!({"type": "residual", "layers": [lstm], "shortcut": [{"type": "dense", "out_features": 3}]}),
        json!({"type": "parallel", "branches": [[lstm], []], "dim": -1}),
        json!({"type": "bidirectional", "inner": lstm}),
    ] {
        let net = Network::new(&InitContext::new(&device, 1), &NetworkConfig::sequential(vec![json.clone()]))
            .unwrap();
        let run = || floats(&net.forward(&x).unwrap());
        let first = run();
        assert_ne!(run(), first, "{json}");
        net.reset_state();
        assert_eq!(run(), first, "{json}");
    }
    // A forward that is made twice would carry its states on twice.
    let segment = json!({"type": "checkpointed", "inner": lstm});
    let net = Network::new(&InitContext::new(&device, 1), &NetworkConfig::sequential(vec![segment])).unwrap();
    let e = net.forward(&x).unwrap_err().to_string();
    assert!(e.contains("stateful") && e.contains("checkpointed"), "{e}");
    assert!(no_grad(|| net.forward(&x)).is_ok());
}
