//! `trefoil profile` and `trefoil bench`.

use crate::{Folder, fails, ok};

const CASES: &str = r#"[
{"id": "copy", "op": "copy", "n": 1000},
{"id": "act_gelu_bf16", "op": "activation", "kind": "gelu", "n": 1000, "dtype": "bf16"},
{"id": "act_sigmoid", "op": "activation", "kind": "sigmoid", "n": 1000},
{"id": "bcast", "op": "binary_broadcast", "rows": 8, "cols": 32},
{"id": "rows", "op": "reduce_sum", "rows": 8, "cols": 32, "axis": 1},
{"id": "cols", "op": "reduce_sum", "rows": 8, "cols": 32, "axis": 0},
{"id": "permute", "op": "permute", "shape": [2, 3, 4, 5], "perm": [0, 2, 1, 3]},
{"id": "softmax", "op": "softmax", "rows": 8, "cols": 32},
{"id": "gemm", "op": "gemm", "m": 8, "n": 9, "k": 10, "tf32": true},
{"id": "gemm_batched", "op": "gemm", "batch": 2, "m": 8, "n": 9, "k": 10, "dtype": "f16"},
{"id": "linear_relu", "op": "linear_act", "m": 8, "n": 9, "k": 10, "act": "relu"},
{"id": "linear_gelu", "op": "linear_act", "m": 8, "n": 9, "k": 10, "act": "gelu", "dtype": "bf16"},
{"id": "mse", "op": "mse", "n": 100},
{"id": "xent", "op": "cross_entropy", "rows": 8, "cols": 32, "dtype": "bf16"},
{"id": "adamw", "op": "optimizer", "kind": "adamw", "sizes": [10, 20, 3]},
{"id": "sgdm", "op": "optimizer", "kind": "sgd_momentum", "n": 33},
{"id": "rmsprop", "op": "optimizer", "kind": "rmsprop", "n": 33},
{"id": "adagrad", "op": "optimizer", "kind": "adagrad", "n": 33},
{"id": "adadelta", "op": "optimizer", "kind": "adadelta", "n": 33},
{"id": "adamax", "op": "optimizer", "kind": "adamax", "n": 33},
{"id": "nadam", "op": "optimizer", "kind": "nadam", "n": 33},
{"id": "clip", "op": "clip_norm", "sizes": [10, 20]},
{"id": "dropout", "op": "dropout", "n": 100},
{"id": "conv1d", "op": "conv1d", "n": 2, "c": 3, "w": 9, "k": 4, "r": 3, "pad": 1},
{"id": "conv2d", "op": "conv2d", "n": 2, "c": 4, "h": 7, "w": 6, "k": 4, "r": 3, "stride": 2, "dilation": 2, "pad": 2, "groups": 2},
{"id": "conv3d", "op": "conv3d", "n": 1, "c": 2, "d": 4, "h": 5, "w": 6, "k": 3, "r": 3, "dtype": "bf16"},
{"id": "conv_t", "op": "conv_transpose2d", "n": 1, "c": 2, "h": 5, "w": 6, "k": 3, "r": 4, "stride": 2, "pad": 1},
{"id": "layernorm", "op": "layernorm", "rows": 8, "cols": 32},
{"id": "rmsnorm", "op": "rmsnorm", "rows": 8, "cols": 32, "dtype": "f16"},
{"id": "batchnorm", "op": "batchnorm", "n": 2, "c": 4, "h": 3, "w": 5},
{"id": "groupnorm", "op": "groupnorm", "n": 2, "c": 4, "h": 3, "w": 5, "groups": 2},
{"id": "maxpool", "op": "maxpool2d", "n": 2, "c": 4, "h": 8, "w": 9, "r": 3, "stride": 2, "pad": 1},
{"id": "avgpool", "op": "avgpool2d", "n": 2, "c": 4, "h": 8, "w": 8, "r": 2},
{"id": "upsample", "op": "upsample3d_nearest", "n": 1, "c": 2, "d": 3, "h": 4, "w": 5, "scale": 2},
{"id": "attention", "op": "attention", "b": 2, "hq": 4, "hkv": 2, "sq": 12, "sk": 12, "d": 8, "causal": true},
{"id": "embedding", "op": "embedding", "vocab": 20, "dim": 8, "tokens": 30},
{"id": "lstm", "op": "lstm", "t": 3, "b": 2, "in": 5, "hidden": 8},
{"id": "gru", "op": "gru", "t": 3, "b": 2, "in": 5, "hidden": 8},
{"id": "scatter_add", "op": "scatter_add", "nodes": 20, "edges": 60, "dim": 8},
{"id": "scatter_max", "op": "scatter_max", "nodes": 20, "edges": 60, "dim": 8},
{"id": "spmm", "op": "spmm", "nodes": 20, "edges": 60, "dim": 8},
{"id": "mean", "op": "gather_scatter", "nodes": 20, "edges": 60, "dim": 8},
{"id": "edge_softmax", "op": "edge_softmax", "nodes": 20, "edges": 60, "heads": 4},
{"id": "gat", "op": "gat_layer", "nodes": 20, "edges": 60, "dim": 8, "heads": 4},
{"id": "spiral", "op": "spiral_conv", "n": 2, "v": 15, "c": 3, "k": 4, "s": 5},
{"id": "additions", "op": "additions", "n": 100, "launches": 4},
{"id": "mlp", "op": "train_mlp", "batch": 4, "in": 5, "hidden": [6, 7], "out": 3}
]"#;

#[test]
fn profile_shows_kernels_and_layers_and_writes_a_trace() {
    let f = Folder::new("profile");
    let trace = f.at("trace.json");
    let shown =
        ok(&["profile", "examples/digits.json", "--backend", "cpu", "--steps", "2", "--trace", &trace]);
    let row =
        |name: &str| shown.lines().find(|l| l.starts_with(name)).unwrap_or_else(|| panic!("{name}: {shown}"));
    assert!(row("Kernel").contains("GB/s") && row("Layer").contains("Backward us"), "{shown}");
    assert!(row("gemm").split_whitespace().count() == 7 && row("(no layer)").contains('.'), "{shown}");
    assert!(row("per step:").contains("us on the device"), "{shown}");
    let trace: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(&trace).unwrap()).unwrap();
    assert!(trace["traceEvents"].as_array().is_some_and(|e| e.len() > 20), "{trace}");
    assert!(fails(&["profile", "examples/digits.json", "--steps", "0"], 1).contains("--steps"));
}

#[test]
fn profile_draws_the_graph_of_a_step() {
    let f = Folder::new("profile-graph");
    let file = f.at("step.dot");
    let run = ["profile", "examples/digits.json", "--backend", "cpu", "--steps", "1"];
    let shown = ok(&[&run[..], &["--graph", &file]].concat());
    let text = std::fs::read_to_string(&file).unwrap();
    let (arrows, boxes): (Vec<&str>, Vec<&str>) =
        text.lines().filter(|l| l.starts_with("  n") && l.ends_with("];")).partition(|l| l.contains(" -> "));
    let calls = boxes.iter().filter(|l| !l.starts_with("  node")).count();
    assert!(shown.contains(&format!("the graph ({calls} calls)")), "{shown}{text}");
    assert!(text.contains("label=\"gemm\"") && text.contains("label=\"optimizer_step\""), "{text}");
    assert!(arrows.len() >= calls - 1, "nearly every call reads what another wrote: {text}");
    let e = fails(&[&run[..], &["--set", "train.capture=false", "--graph", &file]].concat(), 1);
    assert!(e.contains("--graph") && e.contains("`capture` is off"), "{e}");
}

#[test]
fn bench_times_every_operation() {
    let f = Folder::new("bench");
    let (cases, out) = (f.write("cases.json", CASES), f.at("out.json"));
    ok(&["bench", &cases, "--backend", "cpu", "--json", &out, "--budget", "0.001"]);
    let result: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(&out).unwrap()).unwrap();
    let cases: Vec<serde_json::Value> = serde_json::from_str(CASES).unwrap();
    for c in &cases {
        let (id, op) = (c["id"].as_str().unwrap(), trefoil_bench::operation(c["op"].as_str().unwrap()));
        assert!(result[id]["fwd_us"].as_f64().is_some_and(|t| t > 0.0), "{id}: {}", result[id]);
        assert_eq!(result[id]["bwd_us"].is_number(), op.is_some_and(|o| o.backward.is_some()), "{id}");
        assert_eq!(result[id]["launches"].is_number(), op.is_none(), "{id}");
    }
    for o in trefoil_bench::operations() {
        assert!(cases.iter().any(|c| c["op"] == o.name), "no case of {}", o.name);
    }
    let cases = f.at("cases.json");
    let one = ok(&["bench", &cases, "--backend", "cpu", "--only", "gelu", "--budget", "0.001", "--copy"]);
    assert_eq!(one.lines().count(), 2 + 2, "{one}");
    assert!(one.contains("fwd/copy"), "{one}");
}

#[test]
fn bench_errors_name_the_case() {
    let f = Folder::new("bench-errors");
    for (text, words) in [
        (r#"[{"id": "a", "op": "copy"}]"#, "case `a`: expected a whole number above 0 under `n`"),
        (r#"[{"id": "a", "op": "copy", "n": 0}]"#, "under `n`, got 0"),
        (r#"[{"id": "a", "op": "activation", "n": 4, "kind": "mesh"}]"#, "under `kind`"),
        (r#"[{"id": "a", "op": "copy", "n": 4, "dtype": "f8"}]"#, "under `dtype`"),
        (r#"[{"id": "a", "op": "optimizer", "n": 4, "kind": "best"}]"#, "one of sgd, sgd_momentum"),
        (
            r#"[{"id": "a", "op": "conv2d", "n": 1, "c": 1, "h": 9, "w": 2, "k": 1, "r": 3}]"#,
            "a side that leaves an output under `w`, got 2",
        ),
        (r#"[{"id": "a", "op": "maxpool2d", "n": 1, "c": 1, "h": 2, "w": 2, "r": 3}]"#, "under `r`, got 3"),
        (r#"[{"op": "copy"}]"#, "case 0: expected a text under `id`"),
        (r#"{"id": "a"}"#, "expected a JSON list"),
    ] {
        let cases = f.write("cases.json", text);
        let e = fails(&["bench", &cases, "--backend", "cpu"], 1);
        assert!(e.contains(words), "{text}: {e}");
    }
    let cases =
        f.write("cases.json", r#"[{"id": "a", "op": "copy", "n": 4}, {"id": "b", "op": "teleport"}]"#);
    let (out, bad) = (f.at("out.json"), ["bench", &cases, "--backend", "cpu", "--budget", "0.001"]);
    let e = fails(&[&bad[..], &["--json", &out]].concat(), 1);
    assert!(e.contains("case `b`: no operation `teleport`; the operations are"), "{e}");
    for name in ["softmax", "train_mlp", "layer"] {
        assert!(e.split([',', '\n']).any(|n| n.trim() == name), "{name}: {e}");
    }
    assert!(!std::path::Path::new(&out).exists());
    ok(&[&bad[..], &["--only", "a"]].concat());
    assert!(fails(&["bench", "no/such.json"], 1).contains("cannot read no/such.json"));
    let cases = f.write("cases.json", "[]");
    fails(&["bench", &cases, "--backend", "cpu", "--budget", "0"], 1);
}
