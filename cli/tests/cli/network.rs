//! Networks alone, and those of Loom: summaries, training, comparison; plots of runs.

use crate::{Folder, fails, ok, text, text_of, trefoil};

/// A network with branches, normalizations and a free size.
const NETWORK: &str = r#"{ "version": 1, "inputs": { "image": [1, -1, 8] }, "layers": [
  { "type": "convolutional", "name": "conv", "out_channels": 4, "kernel_size": 3, "padding": "same" },
  { "type": "batch_normalization", "name": "norm", "num_features": 4 },
  { "type": "activation", "kind": "gelu" },
  { "type": "residual", "name": "block", "layers": [
    { "type": "convolutional", "out_channels": 4, "kernel_size": 3, "padding": "same", "activation": "tanh" } ] },
  { "type": "flatten" },
  { "type": "dense", "name": "head", "out_features": 3 } ] }"#;

#[test]
fn summary_counts_parameters_and_arithmetic() {
    let f = Folder::new("summary");
    let text = ok(&["summary", "examples/digits.json", "--backend", "cpu"]);
    for word in ["0 (Dense)", "[1, 128]", "8320", "17226 parameters", "17.02 k multiply-accumulates", "adamw"]
    {
        assert!(text.contains(word), "{word}: {text}");
    }
    let network = f.write("network.json", NETWORK);
    let json: serde_json::Value =
        serde_json::from_str(&ok(&["summary", &network, "--backend", "cpu", "--batch", "2", "--json"]))
            .unwrap();
    let layer = |name: &str| {
        let all = json["layers"].as_array().unwrap();
        all.iter().find(|l| l["name"] == name).unwrap_or_else(|| panic!("{name}: {json:#}")).clone()
    };
    // 64 positions of 4 channels from 9 taps of 1 channel (of 4 channels in the block), two items.
    assert_eq!(layer("conv")["macs"], 2 * 64 * 4 * 9);
    assert_eq!(layer("block")["macs"], 2 * 64 * 4 * 36);
    assert_eq!(layer("head")["macs"], 2 * 256 * 3);
    assert_eq!(layer("head")["outputs"], serde_json::json!([[2, 3]]));
    assert_eq!(json["macs"], 2 * (64 * 4 * 45 + 256 * 3));
    assert!(json["flops"].as_u64().unwrap() > 2 * json["macs"].as_u64().unwrap());
    let open = f.write("open.json", &NETWORK.replace(r#""inputs": { "image": [1, -1, 8] }, "#, ""));
    assert!(fails(&["summary", &open, "--backend", "cpu"], 1).contains("does not say what its inputs are"));
    // The same by options.
    let given = ok(&["summary", &open, "--input", "1,-1,8", "--batch", "2", "--json"]);
    assert_eq!(serde_json::from_str::<serde_json::Value>(&given).unwrap(), json);
    let given = ok(&["summary", &network, "--input", "image=1,8,16", "--json"]);
    assert!(given.contains("\"macs\"") && given != ok(&["summary", &network, "--json"]));
    assert!(ok(&["summary", "examples/digits.json", "--input", "64"]).contains("17226 parameters"));
    for (input, word) in [
        ("1,8", "rank 4"),
        ("x=1,8,8", "one of the inputs [\"image\"], got x"),
        ("1,8,8:i33", "unknown dtype `i33`"),
        ("a", "3,32,32"),
    ] {
        let o = trefoil(&["summary", &network, "--input", input]);
        assert!(!o.status.success() && text_of(&o).contains(word), "{input}: {}", text_of(&o));
    }
    let bad = f.write("bad.json", &NETWORK.replace("kernel_size", "kernel"));
    let e = fails(&["summary", &bad, "--backend", "cpu"], 1);
    assert!(e.contains("bad.json") && e.contains("layers[0].kernel"), "{e}");
    fails(&["summary", &network, "--batch", "0"], 1);
}

#[test]
fn summary_takes_no_time_for_large_numbers() {
    let f = Folder::new("large");
    for (input, layer, place) in [
        ("[4, 8]", r#""type": "lstm", "hidden_size": 8, "num_layers": 1000000000"#, "layers[0].num_layers"),
        ("[1000000000, 8]", r#""type": "lstm", "hidden_size": 8"#, "layers[0]"),
        (
            "[4, 8]",
            r#""type": "positional_encoding", "d_model": 8, "max_len": 2147483648"#,
            "layers[0].max_len",
        ),
    ] {
        let text = format!(r#"{{ "inputs": {{ "x": {input} }}, "layers": [ {{ {layer} }} ] }}"#);
        let (file, start) = (f.write("large.json", &text), std::time::Instant::now());
        let e = fails(&["summary", &file], 1);
        assert!(e.contains(&format!("large.json: `{place}`")) && e.contains("at most"), "{e}");
        assert!(start.elapsed().as_secs() < 5, "{:?}", start.elapsed());
    }
    // Large, but within the limits: nothing is allocated for it.
    let wide =
        r#"{ "inputs": { "x": [1000000000] }, "layers": [ { "type": "dense", "out_features": 500 } ] }"#;
    assert!(ok(&["summary", &f.write("wide.json", wide)]).contains("500000000500 parameters"));
}

#[test]
fn networks_alone_and_of_loom_are_trained() {
    let f = Folder::new("alone");
    let data = f.write("xor.csv", &"0,0,0\n0,1,1\n1,0,1\n1,1,0\n".repeat(8));
    let loom = |last: &str| {
        format!(
            r#"{{ "id": "xor", "batch_size": 4, "grid_rows": 1, "grid_cols": 1, "layers_per_cell": 2, "seed": 7, "layers": [
                 {{ "type": "dense", "activation": "tanh", "input_height": 2, "output_height": 8 }}, {last} ] }}"#
        )
    };
    let value = r#"{ "type": "dense", "activation": "sigmoid", "input_height": 8, "output_height": 1 }"#;
    // The name of a file says nothing.
    let file = f.write("any.name", &loom(value));
    let run = f.write(
        "run.json",
        &format!(
            r#"{{ "data": {{ "csv": "{data}", "target": "value" }}, "optimizer": {{ "type": "adam", "lr": 0.1 }},
                  "train": {{ "epochs": 60, "batch_size": 8 }} }}"#
        ),
    );
    // What is missing is said.
    let e = fails(&["train", &file, "--backend", "cpu"], 1);
    assert!(e.contains("a network of Loom") && e.contains("--data") && e.contains("--config"), "{e}");
    let e = fails(&["train", &file, "--backend", "cpu", "--data", "x.bin"], 1);
    assert!(e.contains("x.bin") && e.contains(".csv"), "{e}");
    // By a run without a network; the result is a bundle, with which training goes on.
    let (out, folder) = (f.at("trained.json"), f.at("run"));
    let more = ["--config", &run, "--backend", "cpu", "-q", "--out", &out];
    let first = ok(&[&["train", &file, "--run", &folder], &more[..]].concat());
    let loss = |text: &str| -> f64 {
        let line =
            text.lines().find_map(|l| l.strip_prefix("training loss ")).unwrap_or_else(|| panic!("{text}"));
        line.split(' ').next().unwrap().parse().unwrap()
    };
    assert!(loss(&first) < 0.1, "{first}");
    assert!(ok(&["summary", &out]).contains("33 parameters"));
    let again = ok(&[&["train", &out], &more[..], &["--epochs", "1"]].concat());
    assert!(loss(&again) < 0.01, "{first}{again}");
    let other = f.write("other.json", &loom(&value.replace("sigmoid", "tanh")));
    let e = fails(&[&["train", &other, "--run", &folder, "--resume"], &more[..]].concat(), 1);
    assert!(e.contains("model.layers[1].activation"), "{e}");
    // By options: classes behind a softmax.
    let classes = r#"{ "type": "dense", "activation": "linear", "input_height": 8, "output_height": 2 }, { "type": "softmax" }"#;
    let file =
        f.write("classes.json", &loom(classes).replace("\"layers_per_cell\": 2", "\"layers_per_cell\": 3"));
    let text = ok(&["train", &file, "--data", &data, "--backend", "cpu", "--epochs", "2"]);
    assert!(text.contains("the loss is nll") && text.contains("32 training"), "{text}");
    // Networks that are not Loom's, too.
    let network = f.write("network.json", r#"{ "layers": [ { "type": "dense", "out_features": 2 } ] }"#);
    let text = ok(&[
        "train",
        &network,
        "--data",
        &data,
        "--loss",
        "cross_entropy",
        "--backend",
        "cpu",
        "--epochs",
        "1",
    ]);
    assert!(text.contains("6 parameters"), "{text}");
    let e = fails(&["train", &network, "--config", &run, "--loss", "l7", "--backend", "cpu"], 1);
    assert!(e.contains("run.json") && e.contains("`l7`"), "{e}");
    fails(&["train", &network, "--data", &data, "--out", &out, "--backend", "cpu"], 1);
    fails(&["train", "examples/digits.json", "--config", &run], 1);
}

#[test]
fn networks_of_loom_and_runs_without_data_are_described() {
    let f = Folder::new("described");
    let loom = f.write(
        "loom.json",
        r#"{ "id": "xor", "batch_size": 4, "grid_rows": 1, "grid_cols": 1, "layers_per_cell": 2, "seed": 7,
             "layers": [ { "type": "dense", "activation": "tanh", "input_height": 2, "output_height": 8 },
                         { "type": "dense", "activation": "sigmoid", "input_height": 8, "output_height": 1 } ] }"#,
    );
    let text = ok(&["summary", &loom, "--backend", "cpu", "--json"]);
    let all: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(all["parameters"], 2 * 8 + 8 + 8 + 1);
    assert!(ok(&["compare", &loom, "--backend", "cpu", "--double"]).contains(" 0 failed"));
    assert!(ok(&["explain", &loom, "--backend", "cpu"]).contains("vectorized"));
    // Without a grid, only Loom has such keys; a first layer of any size has its input from an option.
    let any = r#"{ "layers": [ { "type": "softmax", "softmax_variant": "standard" } ] }"#;
    let any = f.write("any.json", any);
    assert!(fails(&["summary", &any], 1).contains("--input"));
    assert!(ok(&["summary", &any, "--input", "5", "--json"]).contains("\"input_bytes\": 20"));

    let model =
        r#""model": { "inputs": { "x": [5] }, "layers": [ { "type": "dense", "out_features": 3 } ] }"#;
    let absent = r#""data": { "npy": "no-such-file.npy", "targets": "no-such-file.npy" }"#;
    for (name, run) in [("alone", format!("{{ {model} }}")), ("absent", format!("{{ {absent}, {model} }}"))] {
        let file = f.write(&format!("{name}.json"), &run);
        let text = ok(&["summary", &file, "--backend", "cpu", "--json"]);
        let all: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(all["parameters"], 18, "{name}");
    }
    // Without declared inputs the data is needed.
    let open = f
        .write("open.json", &format!("{{ {absent}, {} }}", model.replace(r#""inputs": { "x": [5] }, "#, "")));
    assert!(fails(&["summary", &open, "--backend", "cpu"], 1).contains("no-such-file"));
}

#[test]
fn every_tensor_is_compared() {
    let f = Folder::new("compare");
    let network = f.write("network.json", NETWORK);
    for more in [&[][..], &["--double"], &["--eval"]] {
        let text = ok(&[&["compare", &network, "--backend", "cpu"], more].concat());
        for word in ["conv (Convolutional)", "gradient of parameter weight", "gradient of input", "0 failed"]
        {
            assert!(text.contains(word), "{word}: {text}");
        }
        assert!(!text.contains("FAIL"), "{text}");
    }
    // What a tolerance of nothing finds, between f64 and f32.
    let o = trefoil(&["compare", &network, "--backend", "cpu", "--double", "--tolerance", "0", "--json"]);
    assert_eq!(o.status.code(), Some(1));
    let json: serde_json::Value = serde_json::from_str(&text(&o.stdout)).unwrap();
    assert!(json["failed"].as_u64().unwrap() > 0, "{json:#}");
    let tensors = json["tensors"].as_array().unwrap();
    let has =
        |layer: &str, tensor: &str| tensors.iter().any(|t| t["layer"] == layer && t["tensor"] == tensor);
    for layer in ["conv", "norm", "block", "head"] {
        assert!(has(layer, "output") && has(layer, "gradient of output"), "{layer}: {json:#}");
    }
    assert!(has("norm", "buffer") && has("head", "gradient of parameter") && has("", "gradient of input"));
    let run = ok(&["compare", "examples/digits.json", "--backend", "cpu", "--batch", "8"]);
    assert!(run.contains("[8, 128]") && run.contains("0 failed"), "{run}");
    // Another device, where there is one.
    if trefoil(&["explain", "gemm", "--backend", "opencl"]).status.success() {
        let text = ok(&["compare", &network, "--backend", "opencl"]);
        assert!(text.contains("opencl") && text.contains("0 failed"), "{text}");
    }
    fails(&["compare", &network, "--backend", "cpu", "--tolerance=-1"], 1);
    fails(&["compare", &network, "--backend", "cpu", "--against", "cpux"], 1);
}

#[test]
fn plot_draws_one_run_or_several() {
    let f = Folder::new("plot");
    let epoch = |e: u32, loss: f64| {
        format!(
            r#"{{"epoch":{e},"step":{e},"lr":0.1,"train_loss":{loss},"train_accuracy":null,"test_loss":{loss},"test_accuracy":0.5,"metrics":{{"f1":0.25}},"seconds":0.1}}"#
        )
    };
    for (run, loss) in [("a", 1.0), ("b", 2.0)] {
        std::fs::create_dir_all(f.0.join(run)).unwrap();
        f.write(&format!("{run}/metrics.jsonl"), &format!("{}\n{}\n", epoch(1, loss), epoch(2, loss / 2.0)));
    }
    assert!(ok(&["plot", &f.at("a")]).contains("2 epochs"));
    let one = std::fs::read_to_string(f.0.join("a/plot.svg")).unwrap();
    assert!(one.contains(">loss<") && one.contains(">train<") && one.contains(">f1<"), "{one}");
    let svg = f.at("both.svg");
    ok(&["plot", &f.at("a"), &f.at("b/metrics.jsonl"), "--out", &svg]);
    let both = std::fs::read_to_string(&svg).unwrap();
    for word in [">training loss<", ">test accuracy<", ">f1<", ">learning rate<", ">a<", ">b<"] {
        assert!(both.contains(word), "{word}: {both}");
    }
    assert!(!both.contains("training accuracy"));
    assert!(fails(&["plot", &f.at("none")], 1).contains("no epochs"));
    assert!(fails(&["plot", &f.at("a"), "--out", "/no/such/x.svg"], 1).contains("cannot write"));
    fails(&["plot"], 2);
}
