//! The disk cache across processes, on whatever OpenCL device there is.
#![cfg(feature = "driver-opencl")]

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use trefoil::ops::core::CoreOps;
use trefoil::ops::elementwise::{ElementwiseOps, Unary};
use trefoil::testing::MockDriver;
use trefoil::{BackendExt, Engine, GpuError};

/// Runs one kernel and prints how many units were compiled. Started as a child process by the tests below.
#[test]
fn child() {
    if std::env::var_os("TREFOIL_TEST_CHILD").is_none() {
        return;
    }
    let Ok(driver) = trefoil::driver::opencl_open(0) else {
        println!("compiled none");
        return;
    };
    let e = Engine::new(driver).unwrap();
    let x = e.upload(&[1.0f32, 2.0]).unwrap();
    let mut y = e.upload(&[0.0f32; 2]).unwrap();
    e.unary(Unary::Neg, x.view(), y.view_mut()).unwrap();
    assert_eq!(e.download::<f32>(y.view()).unwrap(), [-1.0, -2.0]);
    if std::env::var_os("TREFOIL_TEST_CHILD").is_some_and(|v| v == "2") {
        e.unary(Unary::Exp, x.view(), y.view_mut()).unwrap();
        assert!((e.download::<f32>(y.view()).unwrap()[0] - 1f32.exp()).abs() < 1e-5);
    }
    println!("compiled {}", e.counters().compiles);
}

/// A cached image that loads but lacks the kernel, by a driver that says so once. Started as a child process by the test below.
#[test]
fn child_without_the_kernel() {
    if std::env::var_os("TREFOIL_TEST_CHILD").is_none() {
        return;
    }
    let driver = Arc::new(MockDriver::default());
    let run = || {
        let e = Engine::new(driver.clone()).unwrap();
        let x = e.upload(&[1.0f32]).unwrap();
        let mut y = e.alloc(trefoil::DType::F32, 1).unwrap();
        e.unary(Unary::Neg, x.view(), y.view_mut()).unwrap();
        e.counters().compiles
    };
    assert_eq!((run(), run()), (1, 0));
    driver.fail_next("function", GpuError::driver("function", 500, "NOT_FOUND"));
    assert_eq!(run(), 1, "rebuilt");
    driver.fail_next("load", GpuError::driver("load", 209, "NO_BINARY_FOR_GPU"));
    println!("compiled {}", run());
}

fn start(dir: &Path) -> Child {
    start_child(dir, "child", "1")
}

/// Runs a test of this file in a new process, with `units` kernels.
fn start_child(dir: &Path, name: &str, units: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture"])
        .env("TREFOIL_TEST_CHILD", units)
        .env("TREFOIL_CACHE_DIR", dir)
        .env_remove("TREFOIL_CACHE")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Units the child compiled; `None` without a device.
fn finish(child: Child) -> Option<u64> {
    let out = child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success(), "{text}");
    let rest = text.split("compiled ").nth(1).unwrap();
    rest.split_whitespace().next().unwrap().parse().ok()
}

struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("trefoil-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        Dir(dir)
    }

    fn entries(&self) -> Vec<PathBuf> {
        std::fs::read_dir(&self.0).unwrap().map(|e| e.unwrap().path()).collect()
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn device_present() -> bool {
    let present = trefoil::driver::opencl_open(0).is_ok();
    assert!(
        present || !trefoil::is_required("opencl"),
        "TREFOIL_REQUIRE names opencl, and there is no device"
    );
    if !present {
        println!("skipped: no OpenCL device");
    }
    present
}

#[test]
fn a_second_process_compiles_nothing_and_damage_is_repaired() {
    if !device_present() {
        return;
    }
    let dir = Dir::new("cache");
    assert_eq!(finish(start(&dir.0)), Some(1));
    assert_eq!(finish(start(&dir.0)), Some(0), "warm");
    let entry = dir.entries().remove(0);
    let whole = std::fs::read(&entry).unwrap();
    // Truncated.
    std::fs::write(&entry, &whole[..whole.len() / 2]).unwrap();
    assert_eq!(finish(start(&dir.0)), Some(1));
    assert_eq!(std::fs::read(&entry).unwrap().len(), whole.len(), "rebuilt in place");
    // Altered.
    let mut bytes = whole.clone();
    bytes[whole.len() - 1] ^= 0x20;
    std::fs::write(&entry, &bytes).unwrap();
    assert_eq!(finish(start(&dir.0)), Some(1));
    assert_eq!(finish(start(&dir.0)), Some(0));
}

#[test]
fn entries_that_changed_places_are_rebuilt() {
    if !device_present() {
        return;
    }
    let dir = Dir::new("cache-swap");
    assert_eq!(finish(start_child(&dir.0, "child", "2")), Some(2));
    let [a, b] = <[PathBuf; 2]>::try_from(dir.entries()).unwrap();
    let (in_a, in_b) = (std::fs::read(&a).unwrap(), std::fs::read(&b).unwrap());
    std::fs::write(&a, &in_b).unwrap();
    std::fs::write(&b, &in_a).unwrap();
    assert_eq!(finish(start_child(&dir.0, "child", "2")), Some(2), "the child checks its results");
    assert_eq!(finish(start_child(&dir.0, "child", "2")), Some(0));
}

#[test]
fn an_image_without_the_kernel_is_rebuilt() {
    let dir = Dir::new("cache-lacks");
    assert_eq!(finish(start_child(&dir.0, "child_without_the_kernel", "1")), Some(1));
}

#[test]
fn two_processes_fill_one_cache_at_once() {
    if !device_present() {
        return;
    }
    let dir = Dir::new("cache-race");
    let children: Vec<_> = (0..4).map(|_| start(&dir.0)).collect();
    for c in children {
        assert!(finish(c).is_some());
    }
    assert_eq!(dir.entries().len(), 1, "one entry, no temporary file left");
    assert_eq!(finish(start(&dir.0)), Some(0));
}

#[cfg(unix)]
#[test]
fn an_unusable_directory_only_costs_time() {
    use std::os::unix::fs::PermissionsExt;
    if !device_present() {
        return;
    }
    let dir = Dir::new("cache-open");
    std::fs::create_dir_all(&dir.0).unwrap();
    std::fs::set_permissions(&dir.0, std::fs::Permissions::from_mode(0o777)).unwrap();
    assert_eq!(finish(start(&dir.0)), Some(1), "a directory that others can write is not used");
    assert!(dir.entries().is_empty());
    let file = Dir::new("cache-file");
    std::fs::write(&file.0, b"not a directory").unwrap();
    assert_eq!(finish(start(&file.0)), Some(1));
    std::fs::remove_file(&file.0).unwrap();
}
