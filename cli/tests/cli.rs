//! Runs the binary.
#![allow(missing_docs)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The binary, in the repository's root, without settings from outside.
fn trefoil(args: &[&str]) -> Output {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    Command::new(env!("CARGO_BIN_EXE_trefoil"))
        .args(args)
        .current_dir(root)
        .env_remove("TREFOIL_BACKEND")
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Both streams.
fn text_of(o: &Output) -> String {
    text(&o.stdout) + &text(&o.stderr)
}

fn ok(args: &[&str]) -> String {
    let o = trefoil(args);
    assert!(o.status.success(), "{args:?}: {}{}", text(&o.stdout), text(&o.stderr));
    text(&o.stdout)
}

/// Runs a command that must fail with `code` and without a panic; gives its messages.
fn fails(args: &[&str], code: i32) -> String {
    let o = trefoil(args);
    let err = text(&o.stderr);
    assert_eq!(o.status.code(), Some(code), "{args:?}: {}{err}", text(&o.stdout));
    assert!(!err.contains("panicked"), "{err}");
    err
}

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let p = std::env::temp_dir().join(format!("trefoil-cli-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&p);
        std::fs::create_dir_all(&p).unwrap();
        Folder(p)
    }
    fn at(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }
    fn write(&self, name: &str, text: &str) -> String {
        std::fs::write(self.0.join(name), text).unwrap();
        self.at(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn help_is_complete() {
    let all = ok(&["--help"]);
    for word in [
        "devices",
        "train",
        "summary",
        "compare",
        "plot",
        "profile",
        "bench",
        "tune",
        "explain",
        "status",
        "init",
        "data",
        "eval",
        "predict",
        "generate",
        "export",
        "report",
        "schema",
        "Examples:",
        "TREFOIL_BACKEND",
    ] {
        assert!(all.contains(word), "{word}: {all}");
    }
    for (command, word) in [
        ("train", "--resume"),
        ("summary", "--batch"),
        ("compare", "--against"),
        ("plot", "--log"),
        ("init", "--label"),
        ("data", "--picture"),
        ("eval", "--confusion"),
        ("predict", "--scores"),
        ("generate", "--prompt"),
        ("export", "--out"),
        ("report", "--out"),
        ("schema", "Examples"),
        ("profile", "--trace"),
        ("bench", "--only"),
        ("tune", "--batch"),
        ("explain", "--backend"),
        ("status", "--all"),
    ] {
        let help = ok(&[command, "--help"]);
        assert!(help.contains(word) && (command == "status" || help.contains("Examples:")), "{help}");
    }
    assert!(ok(&["--version"]).contains(env!("CARGO_PKG_VERSION")));
    fails(&[], 2);
    fails(&["trian"], 2);
    fails(&["train"], 2);
}

#[test]
fn devices_lists_every_backend() {
    let all = ok(&["devices"]);
    for kind in ["cuda", "hip", "opencl", "cpu:0"] {
        assert!(all.lines().any(|l| l.starts_with(kind)), "{kind}: {all}");
    }
}

#[test]
fn status_and_explain() {
    assert!(ok(&["status"]).contains("elementwise"));
    assert!(ok(&["status", "--all"]).lines().count() > ok(&["status"]).lines().count());
    assert!(ok(&["explain"]).contains("gemm"));
    assert!(ok(&["explain", "unary", "--backend", "cpu"]).starts_with("unary on cpu:0"));
    let e = fails(&["explain", "softmaxx", "--backend", "cpu"], 1);
    assert!(e.contains("no operation `softmaxx`") && e.contains("did you mean"), "{e}");
}

#[test]
fn selectors_are_checked() {
    let e = fails(&["explain", "gemm", "--backend", "cude"], 1);
    assert!(e.contains("cude") && e.contains("what to do:"), "{e}");
    let e = fails(&["explain", "gemm", "--backend", "cpu:7"], 1);
    assert!(e.contains("ordinal 7") && e.contains("trefoil devices"), "{e}");
}

#[test]
fn training_resuming_and_quiet() {
    let f = Folder::new("train");
    let run = f.at("run");
    // Without a schedule, which would span the number of epochs.
    let digits = include_str!("../../examples/digits.json");
    let (from, to) = (digits.find("\"schedule\"").unwrap(), digits.find("\"train\"").unwrap());
    let config = f.write("constant.json", &format!("{}{}", &digits[..from], &digits[to..]));
    let args = ["train", &config, "--backend", "cpu", "--run", &run];
    let with = |more: &[&'static str]| ok(&[&args[..], more].concat());
    let first = with(&["--epochs", "2"]);
    assert!(first.contains("epoch   2/2") && first.contains("test accuracy 0."), "{first}");
    for name in ["checkpoint.safetensors", "best.safetensors", "metrics.jsonl", "curves.svg"] {
        assert!(f.0.join("run").join(name).is_file(), "{name}");
    }
    let more = with(&["--epochs", "3", "--resume"]);
    assert!(more.contains("resumed after epoch 2") && !more.contains("epoch   2/3"), "{more}");
    assert_eq!(std::fs::read_to_string(f.0.join("run/metrics.jsonl")).unwrap().lines().count(), 3);
    let again = with(&["--epochs", "1"]);
    assert!(again.contains("starting over") && again.contains("after epoch 3"), "{again}");
    let quiet = with(&["--epochs", "1", "--quiet"]);
    assert_eq!(quiet.lines().count(), 2, "{quiet}");
    // Another seed is another run.
    let e = fails(&[&args[..], &["--resume", "--seed", "7"]].concat(), 1);
    assert!(e.contains("seed") && e.contains("what to do:"), "{e}");
    // A damaged checkpoint.
    std::fs::write(f.0.join("run/checkpoint.safetensors"), b"damaged").unwrap();
    let e = fails(&[&args[..], &["--resume"]].concat(), 1);
    assert!(e.contains("not a complete safetensors file") && e.contains("leave out --resume"), "{e}");
}

#[test]
fn an_old_run_is_moved_aside_and_a_failed_start_leaves_it() {
    let f = Folder::new("aside");
    let run = f.at("run");
    let args = ["train", "examples/digits.json", "--backend", "cpu", "--run", &run, "--epochs", "1", "-q"];
    ok(&args);
    let files = ["checkpoint.safetensors", "best.safetensors", "metrics.jsonl", "curves.svg"];
    let read = |run: &str| files.map(|name| std::fs::read(f.0.join(run).join(name)).unwrap());
    let old = read("run");
    // Starts that fail: a configuration, data and a learning rate that are no good.
    let digits = include_str!("../../examples/digits.json");
    for (name, from, to) in [
        ("key.json", "\"epochs\"", "\"epoch\""),
        ("data.json", "data/digits.csv", "no/such.csv"),
        ("rate.json", "\"lr\": 0.004", "\"lr\": 1e30"),
    ] {
        let c = f.write(name, &digits.replace(from, to));
        fails(&["train", &c, "--backend", "cpu", "--run", &run], 1);
        assert!(read("run") == old, "{name}");
    }
    // The second run says where the first one is, under -q too.
    let o = trefoil(&args);
    let err = text(&o.stderr);
    assert!(o.status.success() && err.contains("is now in") && err.contains("run.1"), "{err}");
    assert!(read("run.1") == old);
    // Another number of epochs under the schedule, and another network, are other runs.
    let e = fails(&[&args[..6], &["--epochs", "2", "--resume"]].concat(), 1);
    assert!(e.contains("number of epochs") && e.contains("written with 1, this run has 2"), "{e}");
    let c = f.write("tanh.json", &digits.replacen("\"relu\"", "\"tanh\"", 1));
    let e = fails(&["train", &c, "--backend", "cpu", "--run", &run, "--epochs", "1", "--resume"], 1);
    assert!(e.contains("model.layers[0].activation") && e.contains("\"tanh\""), "{e}");
}

/// Starts training with the standard output in a pipe.
#[cfg(unix)]
fn start(args: &[&str]) -> std::process::Child {
    Command::new(env!("CARGO_BIN_EXE_trefoil"))
        .args(args)
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap())
        .env_remove("TREFOIL_BACKEND")
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap()
}

/// Epochs in a run's file of metrics.
#[cfg(unix)]
fn epochs(run: &Path) -> usize {
    std::fs::read_to_string(run.join("metrics.jsonl")).map_or(0, |t| t.lines().count())
}

/// Sends a signal to a process that this test has started.
#[cfg(unix)]
fn send(signal: &str, child: &std::process::Child) {
    let sent = Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap();
    assert!(sent.success());
}

/// Interrupts a run wherever it is, by signals and by a kill: at its end it has the bytes of a run that was left alone.
#[cfg(unix)]
#[test]
fn signals_save_the_step_and_a_resumed_run_gives_the_same_bytes() {
    let f = Folder::new("signals");
    let digits = include_str!("../../examples/digits.json").replace("\"epochs\": 100", "\"epochs\": 60");
    let config = f.write("digits.json", &digits.replace("\"batch_size\": 64", "\"batch_size\": 16"));
    let (whole, run) = (f.at("whole"), f.at("run"));
    let args = |run| ["train", &config, "--backend", "cpu", "-q", "--run", run];
    ok(&args(&whole));
    for (signal, code) in [("-INT", Some(130)), ("-TERM", Some(143)), ("-KILL", None), ("-INT", Some(130))] {
        let before = epochs(Path::new(&run));
        let child = start(&[&args(&run)[..], &["--resume"]].concat());
        // An epoch later it trains, and its handlers are there.
        let waited = std::time::Instant::now();
        while epochs(Path::new(&run)) <= before && waited.elapsed().as_secs() < 60 {
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
        // Nobody else may use the folder meanwhile.
        send("-STOP", &child);
        let e = fails(&args(&run), 1);
        assert!(e.contains(&format!("is in use by process {}", child.id())), "{e}");
        send("-CONT", &child);
        send(signal, &child);
        let o = child.wait_with_output().unwrap();
        let err = text(&o.stderr);
        assert_eq!(o.status.code(), code, "{signal}: {err}");
        if code.is_some() {
            assert!(err.contains("stopped in epoch") && err.contains("To go on: "), "{err}");
        }
    }
    ok(&[&args(&run)[..], &["--resume"]].concat());
    for name in ["checkpoint.safetensors", "best.safetensors"] {
        let read = |run: &str| std::fs::read(Path::new(run).join(name)).unwrap();
        assert!(read(&whole) == read(&run), "{name}");
    }
    assert_eq!(epochs(Path::new(&run)), 60);
}

#[test]
fn configuration_errors_name_the_place() {
    let f = Folder::new("config");
    let good = include_str!("../../examples/digits.json");
    let c = f.write("zero.json", &good.replace("\"batch_size\": 64", "\"batch_size\": 0"));
    let e = fails(&["train", &c, "--backend", "cpu"], 1);
    assert!(e.contains("zero.json") && e.contains("train.batch_size") && e.contains("what to do:"), "{e}");
    let c = f.write("key.json", &good.replace("\"epochs\"", "\"epoch\""));
    assert!(fails(&["train", &c], 1).contains("unknown field `epoch`"));
    let c = f.write("csv.json", &good.replace("data/digits.csv", "no/such.csv"));
    let e = fails(&["train", &c], 1);
    assert!(e.contains("cannot open no/such.csv") && e.contains("caused by:"), "{e}");
    let data = f.write("bad.csv", "1,2,0\n1,oops,1\n");
    let c = f.write("cell.json", &good.replace("data/digits.csv", &data));
    let e = fails(&["train", &c], 1);
    assert!(e.contains("row 2, column 2") && e.contains("oops"), "{e}");
    assert!(fails(&["train", "no/such.json"], 1).contains("no/such.json"));
    assert!(fails(&["train", "examples/digits.json", "--epochs", "0"], 1).contains("train.epochs"));
    // A file where the run folder should be.
    let file = f.write("file", "x");
    let e = fails(&["train", "examples/digits.json", "--backend", "cpu", "--run", &file], 1);
    assert!(e.contains("cannot create") && e.contains("what to do:"), "{e}");
}

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
fn frozen_parameters_take_no_gradients() {
    let f = Folder::new("freeze");
    let digits = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/digits.json");
    let run = |pattern: &str| {
        let mut json: serde_json::Value =
            serde_json::from_str(&std::fs::read_to_string(&digits).unwrap()).unwrap();
        json["train"]["freeze"] = serde_json::json!([pattern]);
        f.write("freeze.json", &json.to_string())
    };
    let bytes = |file: &str| {
        let text = ok(&["summary", file, "--backend", "cpu", "--json"]);
        let json: serde_json::Value = serde_json::from_str(&text).unwrap();
        json["parameter_bytes"].as_u64().unwrap() - json["gradient_bytes"].as_u64().unwrap()
    };
    // The first layer has 64 * 128 weights and 128 biases.
    assert_eq!(bytes(&run("0")), 8320 * 4);
    assert_eq!(bytes(&run("0.bias")), 128 * 4);
    let e = fails(&["summary", &run("encoder"), "--backend", "cpu"], 1);
    assert!(e.contains("train.freeze[0]") && e.contains("`encoder`"), "{e}");
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

#[test]
fn malformed_rows_are_counted_and_named() {
    let f = Folder::new("malformed");
    let data = f.write("bad.csv", &format!("{}1,oops,0\n", "0.5,1.5,0\n1.5,0.5,1\n".repeat(8)));
    let config = |policy: &str| {
        format!(
            r#"{{ "data": {{ "csv": "{data}", "on_error": "{policy}" }}, "metrics": ["f1"],
                "model": {{ "layers": [{{ "type": "dense", "out_features": 2 }}] }}, "train": {{ "epochs": 1 }} }}"#
        )
    };
    let skip = ok(&["train", &f.write("skip.json", &config("skip")), "--backend", "cpu"]);
    assert!(skip.contains("1 malformed items were left out") && skip.contains("row 17, column 2"), "{skip}");
    let e = fails(&["train", &f.write("fail.json", &config("fail")), "--backend", "cpu"], 1);
    assert!(e.contains("row 17, column 2"), "{e}");
}

#[test]
fn ids_beyond_a_table_are_named_with_its_size() {
    let f = Folder::new("vocabulary");
    let data = f.write("t.txt", &"abcd".repeat(20));
    let run = f.write(
        "run.json",
        &format!(
            r#"{{ "data": {{ "text": "{data}", "length": 6, "test_share": 0.25 }},
                  "model": {{ "layers": [{{ "type": "embedding", "num_embeddings": 3, "embedding_dim": 2 }},
                                          {{ "type": "dense", "out_features": 4 }}] }},
                  "train": {{ "epochs": 1, "batch_size": 4, "shuffle": false }} }}"#
        ),
    );
    let e = fails(&["train", &run, "--backend", "cpu"], 1);
    let named = "embedding: id 3 in row 0, position 3 of the inputs of the training data is out of range: \
                 num_embeddings is 3";
    assert!(e.contains(named) && e.contains("set num_embeddings") && !e.contains("class ids"), "{e}");
}

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

#[test]
fn a_reader_that_stops_early_is_no_error() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_trefoil"))
        .args(["explain"])
        .current_dir(root)
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let o = child.wait_with_output().unwrap();
    assert!(o.status.success() && o.stderr.is_empty(), "{}", text(&o.stderr));
}
