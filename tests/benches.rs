//! The table of benchmarks against the operations and the kernels of the library.
#![allow(missing_docs)]

use std::collections::BTreeSet;
use std::sync::Arc;

#[path = "../benches/problems/mod.rs"]
mod problems;

use problems::{Bed, Scale, rows};
use trefoil::driver::mock::MockDriver;
use trefoil::ops::{CoreOps, Family, all_ops};
use trefoil::spec::all_kernels;
use trefoil::{BackendKind, Caps, CpuBackend, DeviceId, Engine};

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
    "trim",
    "warmup",
    "explain",
    "compile_raw",
    "launch_raw",
];

#[test]
fn every_operation_has_a_benchmark() {
    for op in all_ops().filter(|o| !(o.family == Family::Core && NOT_TIMED.contains(&o.name))) {
        assert!(rows().any(|r| r.op == op.name), "no benchmark of {}", op.name);
    }
    let mut names = BTreeSet::new();
    for r in rows() {
        assert!(all_ops().any(|o| o.name == r.op), "{} is no operation", r.op);
        assert!(names.insert((r.op, r.case)), "{}/{} twice", r.op, r.case);
    }
}

#[test]
fn every_benchmark_runs_on_the_cpu() {
    let cpu = CpuBackend::new();
    let bed = Bed::new(&cpu, Scale::Tiny);
    for r in rows() {
        for &dtype in r.dtypes {
            let run = || {
                let mut problem = (r.make)(&bed, dtype)?;
                assert!(problem.bytes > 0 || problem.flops.is_some_and(|f| f > 0));
                (problem.run)(&cpu)?;
                cpu.synchronize()
            };
            run().unwrap_or_else(|e| panic!("{}/{}/{dtype}: {e}", r.op, r.case));
        }
    }
}

/// Launches of all benchmarks on a device that computes nothing.
fn launches(units: u32, cluster: u32, is_cpu: bool) -> BTreeSet<String> {
    let mut caps = Caps::new(DeviceId::new(BackendKind::Custom, 0), "mock", "mock");
    (caps.f64, caps.compute_units, caps.cluster, caps.is_cpu) = (true, units, cluster, is_cpu);
    let driver = Arc::new(MockDriver::new(caps));
    let engine = Engine::new(driver.clone()).unwrap();
    let mut launched = BTreeSet::new();
    for scale in [Scale::Tiny, Scale::Small] {
        let bed = Bed::new(&engine, scale);
        for r in rows() {
            for &dtype in r.dtypes {
                driver.clear();
                let mut problem = (r.make)(&bed, dtype).unwrap();
                (problem.run)(&engine).unwrap_or_else(|e| panic!("{}/{}/{dtype}: {e}", r.op, r.case));
                launched.extend(driver.launches());
            }
        }
    }
    launched
}

/// Every kernel of the table is met: what a device chooses depends on how large it is, so two kinds of devices are asked.
#[test]
fn every_kernel_is_launched_by_a_benchmark() {
    let mut launched = launches(132, 8, false);
    launched.append(&mut launches(2, 1, true));
    let missing: Vec<_> = all_kernels().map(|k| k.entry).filter(|e| !launched.contains(*e)).collect();
    assert!(missing.is_empty(), "kernels without a benchmark: {missing:?}");
}
