//! Probing and opening every backend in child processes: with this machine's drivers, with stand-ins and with broken installations. Whatever
//! is missing must come back as a typed reason, without a panic.
#![allow(missing_docs)]
#![cfg_attr(not(any(feature = "driver-cuda", feature = "driver-opencl")), allow(dead_code))]

use std::path::PathBuf;
use std::process::{Command, Output};

use trefoil::{Registry, Selector};

/// Set in children: the selectors to probe and open, separated by commas.
const CHILD: &str = "TREFOIL_TEST_CHILD";

/// The child's part: prints what happens with each selector.
#[test]
#[ignore = "run by the other tests in a process of its own"]
fn child() {
    let Ok(selectors) = std::env::var(CHILD) else { return };
    let registry = Registry::default();
    for text in selectors.split(',') {
        let kind = text.split(':').next().unwrap_or_default();
        for report in registry.probe_all().iter().filter(|r| r.kind.name() == kind) {
            println!("probe {text}: {:?}", report.result);
            println!("{report}");
        }
        match registry.open(&text.parse::<Selector>().unwrap()) {
            Ok(backend) => println!("open {text}: Ok({})", backend.id()),
            Err(e) => println!("open {text}: {e:?}"),
        }
    }
    println!("child is done");
}

fn run(selectors: &str, vars: &[(&str, &str)]) -> String {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "child", "--ignored", "--nocapture"]).env(CHILD, selectors);
    command.env_remove("TREFOIL_BACKEND").envs(vars.iter().copied());
    let Output { status, stdout, stderr } = command.output().unwrap();
    let text = format!("{}{}", String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert!(status.success() && !text.contains("panicked"), "{selectors} with {vars:?}: {status}\n{text}");
    assert!(text.contains("child is done"), "{text}");
    text
}

fn folder(name: &str) -> PathBuf {
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&dir).unwrap();
    dir
}

/// A shared library of this C text, or `None` (said loudly) where there is no C compiler.
fn library(name: &str, text: &str) -> Option<String> {
    if cfg!(windows) {
        eprintln!("SKIPPED: stand-in libraries are built with cc, which is not expected on Windows");
        return None;
    }
    let dir = folder(name);
    let (c, so) = (dir.join("stand_in.c"), dir.join(format!("lib{name}.so")));
    std::fs::write(&c, text).unwrap();
    match Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&so).arg(&c).status() {
        Ok(s) if s.success() => Some(so.to_string_lossy().into_owned()),
        other => {
            eprintln!("SKIPPED: no C compiler for a stand-in library ({other:?})");
            None
        }
    }
}

#[test]
fn on_this_machine() {
    let text = run("cuda,hip,opencl,cpu,auto,cuda:99,hip:99,opencl:99,cpu:99", &[]);
    assert!(text.contains("open cpu: Ok(cpu:0)"), "{text}");
    assert!(text.contains("open auto: Ok("), "{text}");
    for kind in ["cuda", "hip", "opencl", "cpu"] {
        assert!(text.contains(&format!("open {kind}:99: Unavailable")), "{text}");
    }
}

#[cfg(feature = "driver-cuda")]
#[test]
fn missing_cuda_library() {
    let text = run("cuda", &[("TREFOIL_CUDA_LIB", "/nonexistent/libcuda.so")]);
    assert!(text.contains("probe cuda: Err(LibraryNotFound"), "{text}");
    assert!(text.contains("/nonexistent/libcuda.so") && text.contains("TREFOIL_CUDA_LIB"), "{text}");
    assert!(text.contains("open cuda: Unavailable"), "{text}");
}

/// A library of the right name without the functions, then with one function after the other until none is missing.
#[cfg(feature = "driver-cuda")]
#[test]
fn cuda_stand_ins() {
    let grow = |version: u32, status: u32| -> Option<String> {
        let mut text = format!("int cuDriverGetVersion(int *v) {{ *v = {version}; return 0; }}\n");
        for missing in 0..200 {
            let path = library(&format!("cuda-{version}-{status}-{missing}"), &text)?;
            let out = run("cuda", &[("TREFOIL_CUDA_LIB", &path)]);
            let Some(at) = out.find("probe cuda: Err(SymbolMissing") else { return Some(out) };
            assert!(out.contains("open cuda: Unavailable"), "{out}");
            let symbol = out[at..].split("symbol: \"").nth(1).and_then(|s| s.split('"').next()).unwrap();
            // The name of a status is a pointer that the stand-in leaves alone.
            let answer = if symbol == "cuInit" || symbol.contains("Device") { status } else { 0 };
            text += &format!("int {symbol}(void) {{ return {answer}; }}\n");
        }
        panic!("symbols without end");
    };
    let Some(no_device) = grow(12040, 100) else { return };
    assert!(no_device.contains("probe cuda: Err(NoDevice") && no_device.contains("cuInit"), "{no_device}");
    assert!(no_device.contains("open cuda: Unavailable"), "{no_device}");
    let Some(old) = grow(11040, 0) else { return };
    assert!(old.contains("probe cuda: Err(DriverTooOld { have: 11040, need: 12000 })"), "{old}");
}

#[cfg(feature = "driver-opencl")]
#[test]
fn missing_opencl_library() {
    let text = run("opencl", &[("TREFOIL_OPENCL_LIB", "/nonexistent/libOpenCL.so")]);
    assert!(text.contains("probe opencl: Err(LibraryNotFound"), "{text}");
    assert!(text.contains("TREFOIL_OPENCL_LIB"), "{text}");
    if let Some(empty) = library("empty-opencl", "int nothing;\n") {
        let text = run("opencl", &[("TREFOIL_OPENCL_LIB", &empty)]);
        assert!(text.contains("probe opencl: Err(SymbolMissing"), "{text}");
        assert!(text.contains("open opencl: Unavailable"), "{text}");
    }
}

/// The ICD loader is there, and the drivers that it is told of are not, or are none.
#[cfg(feature = "driver-opencl")]
#[test]
fn broken_opencl_drivers() {
    let dir = folder("vendors");
    std::fs::write(dir.join("gone.icd"), "/nonexistent/libvendor.so\n").unwrap();
    if let Some(empty) = library("empty-icd", "int nothing;\n") {
        std::fs::write(dir.join("empty.icd"), format!("{empty}\n")).unwrap();
    }
    let vendors = dir.to_string_lossy();
    let text = run("opencl", &[("OCL_ICD_VENDORS", &vendors)]);
    if text.contains("probe opencl: Ok(") {
        eprintln!("SKIPPED: this ICD loader finds drivers in spite of OCL_ICD_VENDORS");
        return;
    }
    let typed =
        text.contains("probe opencl: Err(NoDevice") || text.contains("probe opencl: Err(LibraryNotFound");
    assert!(typed && text.contains("open opencl: Unavailable"), "{text}");
}

#[test]
fn the_environment_selects() {
    for (value, expected) in
        [("cpu", "Ok(Exact"), ("auto", "Ok(Auto"), ("", "Ok(Auto"), ("gpu", "Err(Config")]
    {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "env_child", "--ignored", "--nocapture"]);
        let out = command.env(CHILD, "env").env("TREFOIL_BACKEND", value).output().unwrap();
        let text = String::from_utf8_lossy(&out.stdout);
        assert!(out.status.success() && text.contains(expected), "{value}: {text}");
    }
}

#[test]
#[ignore = "run by the other tests in a process of its own"]
fn env_child() {
    if std::env::var(CHILD).is_ok_and(|v| v == "env") {
        println!("{:?}", Selector::from_env());
    }
}
