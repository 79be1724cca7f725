//! `trefoil tune`, on OpenCL where it is.
#![allow(missing_docs)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let p = std::env::temp_dir().join(format!("trefoil-cli-tune-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&p);
        std::fs::create_dir_all(&p).unwrap();
        Folder(p)
    }

    fn write(&self, name: &str, text: &str) -> String {
        std::fs::write(self.0.join(name), text).unwrap();
        self.0.join(name).display().to_string()
    }

    /// The binary with a kernel cache in this folder, and with these variables.
    fn trefoil(&self, variables: &[(&str, &str)], args: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_trefoil"))
            .args(args)
            .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap())
            .env_remove("TREFOIL_BACKEND")
            .env_remove("TREFOIL_TUNE")
            .env_remove("TREFOIL_VARIANT")
            .env("TREFOIL_CACHE_DIR", self.0.join("cache"))
            .envs(variables.iter().copied())
            .output()
            .unwrap()
    }

    /// What it prints; it must succeed.
    fn ok(&self, variables: &[(&str, &str)], args: &[&str]) -> String {
        let o = self.trefoil(variables, args);
        assert!(o.status.success(), "{args:?}: {o:?}");
        String::from_utf8(o.stdout).unwrap()
    }

    /// Its messages; it must fail without a panic.
    fn fails(&self, variables: &[(&str, &str)], args: &[&str]) -> String {
        let o = self.trefoil(variables, args);
        let e = String::from_utf8(o.stderr).unwrap();
        assert!(o.status.code() == Some(1) && !e.contains("panicked"), "{args:?}: {e}");
        e
    }

    /// Whether there is an OpenCL device; without one a test is skipped, which is printed.
    fn opencl(&self) -> bool {
        let o = self.trefoil(&[], &["explain", "gemm", "--backend", "opencl"]);
        if !o.status.success() {
            let why = String::from_utf8_lossy(&o.stderr);
            assert!(!trefoil::is_required("opencl"), "{why}");
            println!("skipped: {why}");
        }
        o.status.success()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

const CASES: &str = r#"[{"id": "small", "op": "softmax", "rows": 16, "cols": 64, "dtype": "f32"},
    {"id": "other", "op": "copy", "n": 64}]"#;

/// One matrix, whose products have several variants.
const NETWORK: &str = r#"{"inputs": {"x": [24]}, "layers": [{"type": "dense", "out_features": 20}]}"#;

#[test]
fn cases_are_measured_and_their_results_written() {
    let f = Folder::new("cases");
    let cases = f.write("cases.json", CASES);
    // The CPU's variants are chosen by the type of the data.
    let text = f.ok(&[], &["tune", &cases, "--backend", "cpu"]);
    assert!(text.contains("small, forward") && text.contains("nothing to choose: on cpu:0"), "{text}");
    if !f.opencl() {
        return;
    }
    let out = f.write("out.json", "");
    let args = ["tune", &cases, "--backend", "opencl", "--only", "small", "--json", &out];
    let text = f.ok(&[], &args);
    assert!(!text.contains("other, forward") && text.contains("kept in the kernel cache"), "{text}");
    let result: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(&out).unwrap()).unwrap();
    let choices = result["choices"].as_array().unwrap();
    assert!(choices.iter().any(|c| c["case"] == "small, backward" && c["op"] == "softmax_bwd"), "{result}");
    for c in choices {
        let us = |name: &str| c["us"][c[name].as_str().unwrap()].as_f64().unwrap();
        assert!(
            us("chosen") > 0.0 && (us("by_rule") / us("chosen") - c["gain"].as_f64().unwrap()).abs() < 1e-9
        );
        assert!(c["us"].as_object().unwrap().len() > 1 && c["kept"] == true, "{c}");
        assert!(text.contains(c["problem"].as_str().unwrap()), "{text}");
    }
    let text = f.ok(&[("TREFOIL_CACHE", "off")], &args);
    assert!(text.contains("not kept: there is no kernel cache"), "{text}");
}

#[test]
fn a_network_is_measured_and_explained_by_what_was() {
    let f = Folder::new("network");
    if !f.opencl() {
        return;
    }
    let network = f.write("network.json", NETWORK);
    let explain = |variables: &[(&str, &str)]| {
        let text = f.ok(variables, &["explain", &network, "--backend", "opencl"]);
        assert!(text.contains("gemm on opencl:0"), "{text}");
        text
    };
    assert!(!explain(&[]).contains("measured"));
    let text = f.ok(&[], &["tune", &network, "--backend", "opencl"]);
    assert!(text.contains("the network, both passes") && text.contains("GemmProblem"), "{text}");
    let text = explain(&[]);
    assert!(text.contains("(measured)") && text.contains("    measured: portable "), "{text}");
    assert!(!explain(&[("TREFOIL_TUNE", "off")]).contains("measured"));
    let pinned = explain(&[("TREFOIL_VARIANT", "gemm:tile_64")]);
    assert!(pinned.contains("gemm on opencl:0 (1 calls): tile_64 (pinned)"), "{pinned}");
    for (value, words) in [("off", "TREFOIL_TUNE=off"), ("on", "expected `use` or `off`, got `on`")] {
        let e = f.fails(&[("TREFOIL_TUNE", value)], &["tune", &network, "--backend", "opencl"]);
        assert!(e.contains(words) && e.contains("set TREFOIL_TUNE to `use`"), "{e}");
    }
}

#[test]
fn what_is_no_case_or_network_is_named() {
    let f = Folder::new("errors");
    for (text, words) in [
        (r#"[{"id": "a", "op": "teleport"}]"#, "case `a`: no operation `teleport`"),
        (r#"[{"id": "a", "op": "softmax", "rows": 0, "cols": 4}]"#, "under `rows`, got 0"),
        (r#"[{"op": "copy"}]"#, "case 0: expected a text under `id`"),
        (r#"{"layers": 3}"#, "layers"),
    ] {
        let file = f.write("bad.json", text);
        let e = f.fails(&[], &["tune", &file, "--backend", "cpu"]);
        assert!(e.contains(words), "{text}: {e}");
    }
    assert!(f.fails(&[], &["tune", "none.json", "--backend", "cpu"]).contains("none.json"));
    let o = f.trefoil(&[], &["tune"]);
    assert_eq!(o.status.code(), Some(2), "{o:?}");
}
