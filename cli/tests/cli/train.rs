//! `trefoil train`: resuming, interrupting, and errors that name their place.

use std::path::Path;
use std::process::Command;

use crate::{Folder, fails, ok, start, text, trefoil};

const DIGITS: &str = include_str!("../../../examples/digits.json");

#[test]
fn training_resuming_and_quiet() {
    let f = Folder::new("train");
    let run = f.at("run");
    // Without a schedule, which would span the number of epochs.
    let (from, to) = (DIGITS.find("\"schedule\"").unwrap(), DIGITS.find("\"train\"").unwrap());
    let config = f.write("constant.json", &format!("{}{}", &DIGITS[..from], &DIGITS[to..]));
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
    for (name, from, to) in [
        ("key.json", "\"epochs\"", "\"epoch\""),
        ("data.json", "data/digits.csv", "no/such.csv"),
        ("rate.json", "\"lr\": 0.004", "\"lr\": 1e30"),
    ] {
        let c = f.write(name, &DIGITS.replace(from, to));
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
    let c = f.write("tanh.json", &DIGITS.replacen("\"relu\"", "\"tanh\"", 1));
    let e = fails(&["train", &c, "--backend", "cpu", "--run", &run, "--epochs", "1", "--resume"], 1);
    assert!(e.contains("model.layers[0].activation") && e.contains("\"tanh\""), "{e}");
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
    let digits = DIGITS.replace("\"epochs\": 100", "\"epochs\": 60");
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
    let c = f.write("zero.json", &DIGITS.replace("\"batch_size\": 64", "\"batch_size\": 0"));
    let e = fails(&["train", &c, "--backend", "cpu"], 1);
    assert!(e.contains("zero.json") && e.contains("train.batch_size") && e.contains("what to do:"), "{e}");
    let c = f.write("key.json", &DIGITS.replace("\"epochs\"", "\"epoch\""));
    assert!(fails(&["train", &c], 1).contains("unknown field `epoch`"));
    let c = f.write("csv.json", &DIGITS.replace("data/digits.csv", "no/such.csv"));
    let e = fails(&["train", &c], 1);
    assert!(e.contains("cannot open no/such.csv") && e.contains("caused by:"), "{e}");
    let data = f.write("bad.csv", "1,2,0\n1,oops,1\n");
    let c = f.write("cell.json", &DIGITS.replace("data/digits.csv", &data));
    let e = fails(&["train", &c], 1);
    assert!(e.contains("row 2, column 2") && e.contains("oops"), "{e}");
    assert!(fails(&["train", "no/such.json"], 1).contains("no/such.json"));
    assert!(fails(&["train", "examples/digits.json", "--epochs", "0"], 1).contains("train.epochs"));
    // A file where the run folder should be.
    let file = f.write("file", "x");
    let e = fails(&["train", "examples/digits.json", "--backend", "cpu", "--run", &file], 1);
    assert!(e.contains("cannot create") && e.contains("what to do:"), "{e}");
}

#[test]
fn frozen_parameters_take_no_gradients() {
    let f = Folder::new("freeze");
    let run = |pattern: &str| {
        let mut json: serde_json::Value = serde_json::from_str(DIGITS).unwrap();
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
