//! The table of benchmarks against the operations and the kernels of the library.
#![allow(missing_docs)]

use std::collections::BTreeSet;
use std::sync::Arc;

use trefoil::ops::core::CoreOps;
use trefoil::ops::{Family, all_ops};
use trefoil::spec::all_kernels;
use trefoil::testing::MockDriver;
use trefoil::{BackendKind, Caps, CpuBackend, DeviceId, Engine, MatrixCores};
use trefoil_bench::{Context, Scale, problems};

/// Methods of the core family that queue no work of their own worth a benchmark.
const NOT_TIMED: &[&str] = &[
    "id",
    "caps",
    "synchronize",
    "fork_stream",
    "record",
    "wait",
    "adopt",
    "counters",
    "memory",
    "reset_peak",
    "trim",
    "warmup",
    "explain",
    "compile_raw",
    "launch_raw",
    // Doors to memory, queues and decisions.
    "import",
    "export",
    "raw_stream",
    "adopt_stream",
    "pin_variant",
    "explain_calls",
    "tune_calls",
    "profile_calls",
];

#[test]
fn every_operation_has_a_benchmark() {
    for op in all_ops().filter(|o| !(o.family == Family::Core && NOT_TIMED.contains(&o.name))) {
        assert!(problems().any(|p| p.op == op.name), "no benchmark of {}", op.name);
    }
    let mut names = BTreeSet::new();
    for p in problems() {
        assert!(all_ops().any(|o| o.name == p.op), "{} is no operation", p.op);
        assert!(names.insert((p.op, p.name)), "{}/{} twice", p.op, p.name);
    }
}

#[test]
fn every_benchmark_runs_on_the_cpu() {
    let cpu = CpuBackend::new();
    let cx = Context::new(&cpu, Scale::Tiny);
    for p in problems() {
        for &dtype in p.dtypes {
            let run = || {
                let mut problem = (p.prepare)(&cx, dtype)?;
                assert!(problem.bytes > 0 || problem.flops > 0);
                problem.run(&cpu, 0)?;
                cpu.synchronize()
            };
            run().unwrap_or_else(|e| panic!("{}/{}/{dtype}: {e}", p.op, p.name));
        }
    }
}

/// A device of so many units.
fn device(units: u32) -> Caps {
    let mut caps = Caps::new(DeviceId::new(BackendKind::Custom, 0), "mock", "mock");
    (caps.f64, caps.compute_units) = (true, units);
    caps
}

/// One with matrix cores, as NVIDIA's since Ampere.
fn ampere(units: u32) -> Caps {
    let mut caps = device(units);
    (caps.matrix_cores, caps.lane_exchange, caps.max_block, caps.shared_bytes) =
        (Some(MatrixCores::Ptx), true, 1024, 163 << 10);
    caps
}

/// One with groups of warps and maps of tensors, too.
fn hopper(units: u32) -> Caps {
    let mut caps = ampere(units);
    (caps.warp_groups, caps.tensor_maps, caps.cluster, caps.shared_bytes) = (true, true, 8, 227 << 10);
    caps.cooperative = true;
    caps
}

/// Launches of all benchmarks on a device that computes nothing.
fn launches(caps: Caps) -> BTreeSet<String> {
    let driver = Arc::new(MockDriver::new(caps));
    let engine = Engine::new(driver.clone()).unwrap();
    let mut launched = BTreeSet::new();
    for scale in [Scale::Tiny, Scale::Small] {
        let cx = Context::new(&engine, scale);
        for p in problems() {
            for &dtype in p.dtypes {
                driver.clear();
                let mut problem = (p.prepare)(&cx, dtype).unwrap();
                problem.run(&engine, 0).unwrap_or_else(|e| panic!("{}/{}/{dtype}: {e}", p.op, p.name));
                launched.extend(driver.launches());
            }
        }
    }
    launched
}

/// Kernels that prepare operands of a vendor's library alone.
const BESIDE_LIBRARIES: &[&str] = &["gemm_repitch", "gemm_parts"];

/// Which kernels an operation launches depends on what the device is, so several are asked.
#[test]
fn every_kernel_is_launched_by_a_benchmark() {
    let mut cpu = device(2);
    cpu.is_cpu = true;
    let devices = [hopper(132), hopper(4), ampere(132), cpu];
    let launched: BTreeSet<String> = devices.into_iter().flat_map(launches).collect();
    let expected = all_kernels().map(|k| k.entry).filter(|e| !BESIDE_LIBRARIES.contains(e));
    let missing: Vec<_> = expected.filter(|e| !launched.contains(*e)).collect();
    assert!(missing.is_empty(), "kernels without a benchmark: {missing:?}");
}
