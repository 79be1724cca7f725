//! Runs the binary.
#![allow(missing_docs)]

mod measure;
mod network;
mod train;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

/// The binary, in the repository's root, without settings from outside.
fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_trefoil"));
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    command.args(args).current_dir(root).env_remove("TREFOIL_BACKEND");
    command
}

/// Runs it to its end.
fn trefoil(args: &[&str]) -> Output {
    command(args).output().unwrap()
}

/// Starts it with both streams in pipes.
fn start(args: &[&str]) -> Child {
    command(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
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
fn a_reader_that_stops_early_is_no_error() {
    let mut child = start(&["explain"]);
    drop(child.stdout.take());
    let o = child.wait_with_output().unwrap();
    assert!(o.status.success() && o.stderr.is_empty(), "{}", text(&o.stderr));
}
