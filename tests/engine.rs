//! The engine's own logic on the recording mock driver: pool, errors, counters, streams, argument tables. Needs no device.

use std::sync::Arc;
use trefoil::prelude::*;

use trefoil::driver::{Arg, Driver};
use trefoil::ops::elementwise::Unary;
use trefoil::ops::gemm::{Gemm, GemmIo};
use trefoil::ops::optimizer::{OptimRule, ParamSlot, Step};
use trefoil::testing::{Call, MockDriver, OwnedArg};
use trefoil::{BackendExt, Buffer, Caps, CpuBackend, DType, Engine, GpuError, GradMut, MatrixCores};

fn engine() -> (Arc<MockDriver>, Engine) {
    engine_on(MockDriver::default())
}

fn engine_on(driver: MockDriver) -> (Arc<MockDriver>, Engine) {
    let driver = Arc::new(driver);
    let engine = Engine::new(driver.clone()).unwrap();
    driver.clear();
    (driver, engine)
}

fn neg(e: &Engine, x: &Buffer, y: &mut Buffer) -> trefoil::Result<()> {
    e.unary(Unary::Neg, x.view(), y.view_mut())
}

#[test]
fn freed_blocks_are_reused_and_trimmed() {
    let (d, e) = engine();
    let before = e.counters().allocations;
    let base = e.memory().in_use;
    for _ in 0..100 {
        let b = e.alloc(DType::F32, 1000).unwrap();
        assert_eq!(e.memory().in_use, base + 4096);
        drop(b);
    }
    assert_eq!(e.counters().allocations, before + 1);
    assert_eq!(e.memory().cached, 4096);
    e.trim().unwrap();
    assert_eq!(e.memory().cached, 0);
    assert_eq!(e.memory().peak, base + 4096);
    e.reset_peak();
    assert_eq!((e.memory().in_use, e.memory().peak), (base, base));
    assert!(d.calls().iter().any(|c| matches!(c, Call::Free(_))));
}

#[test]
fn a_full_device_flushes_its_cache_and_then_says_how_much_is_missing() {
    let (d, e) = engine();
    drop(e.alloc(DType::U8, 1 << 20).unwrap());
    let held = d.memory_in_use();
    d.limit_memory(Some(held + 512));
    // Does not fit beside the cached block, fits after the flush.
    let b = e.alloc(DType::U8, 900 << 10).unwrap();
    let err = e.alloc(DType::U8, 900 << 10).unwrap_err();
    let GpuError::OutOfMemory { requested, in_use, cached } = err else { panic!("{err}") };
    assert_eq!((requested, cached), (900 << 10, 0));
    assert!(in_use >= 900 << 10);
    drop(b);
    assert!(e.alloc(DType::U8, 900 << 10).is_ok(), "the freed block serves again");
}

/// Operands of kernels with maps of tensors: extents innermost first, strides in bytes, of the matrices as they lie in memory.
#[test]
fn maps_of_tensors_describe_operands() {
    let mut caps = MockDriver::default().caps().clone();
    (caps.matrix_cores, caps.warp_groups, caps.tensor_maps) = (Some(MatrixCores::Ptx), true, true);
    (caps.compute_units, caps.shared_bytes) = (4, 227 << 10);
    let (d, e) = engine_on(MockDriver::new(caps));
    let (x, w) = (e.alloc(DType::Bf16, 2 * 400 * 64).unwrap(), e.alloc(DType::Bf16, 264 * 80).unwrap());
    let mut y = e.alloc(DType::Bf16, 2 * 400 * 264).unwrap();
    // Two matrices, and 64 of 80 columns of the one that both share.
    let a = x.shaped(&[2, 400, 64]).unwrap();
    let b = w.shaped(&[264, 80]).unwrap().map("w", |l| l.narrow(1, 8, 64)).unwrap();
    e.gemm(&Gemm::new().trans(false, true), GemmIo::new(a, b, y.shaped_mut(&[2, 400, 264]).unwrap()))
        .unwrap();
    let launched = d.calls().into_iter().find_map(|c| match c {
        Call::Launch { entry, args, config, .. } => Some((entry, args, config)),
        _ => None,
    });
    let (entry, args, config) = launched.unwrap();
    assert_eq!((entry.as_str(), config.grid, config.block), ("gemm_wide_nt", [4, 1, 1], [384, 1, 1]));
    let (OwnedArg::Map(a), OwnedArg::Map(b)) = (&args[0], &args[1]) else { panic!("{args:?}") };
    assert_eq!((a.shape, a.strides, a.place.1), ([64, 400, 2], [128, 400 * 128], 0));
    assert_eq!((b.shape, b.strides, b.place.1), ([64, 264, 1], [160, 160], 16));
}

#[test]
fn launches_carry_offsets_and_count() {
    let (d, e) = engine();
    let x = e.alloc(DType::F32, 1000).unwrap();
    let mut y = e.alloc(DType::F32, 1000).unwrap();
    e.unary(Unary::Neg, x.view().range(3, 100).unwrap(), y.view_mut().range(4, 100).unwrap()).unwrap();
    let calls = d.calls();
    let launch = calls.iter().find_map(|c| match c {
        Call::Launch { entry, args, config, .. } => Some((entry, args, config)),
        _ => None,
    });
    let (entry, args, config) = launch.unwrap();
    assert_eq!(entry, "unary_flat");
    let offset = |a: &OwnedArg| match a {
        OwnedArg::Mem(Some((_, o))) => *o,
        other => panic!("{other:?}"),
    };
    assert_eq!((offset(&args[0]), offset(&args[1])), (12, 16));
    assert_eq!(args[2], OwnedArg::from(&Arg::I64(100)));
    assert_eq!(args[3], OwnedArg::from(&Arg::I32(0)), "offset 12 is not aligned for 16-byte accesses");
    assert_eq!((config.grid, config.block), ([1, 1, 1], [256, 1, 1]));
    assert_eq!(e.counters().launches, 1);
    // Nothing is launched for an empty tensor.
    e.unary(Unary::Neg, x.view().range(0, 0).unwrap(), y.view_mut().range(0, 0).unwrap()).unwrap();
    assert_eq!(e.counters().launches, 1);
}

#[test]
fn the_first_asynchronous_failure_sticks() {
    let (d, e) = engine();
    let x = e.alloc(DType::F32, 8).unwrap();
    let mut y = e.alloc(DType::F32, 8).unwrap();
    d.fail_next("launch", GpuError::driver_fatal("launch", 700, "ILLEGAL_ADDRESS"));
    let err = neg(&e, &x, &mut y).unwrap_err();
    assert!(err.to_string().contains("ILLEGAL_ADDRESS") && err.to_string().contains("unary_flat"), "{err}");
    for err in
        [neg(&e, &x, &mut y).unwrap_err(), e.synchronize().unwrap_err(), e.alloc(DType::F32, 1).unwrap_err()]
    {
        assert!(matches!(&err, GpuError::Poisoned { first } if first.contains("ILLEGAL_ADDRESS")), "{err}");
    }
}

#[test]
fn what_the_driver_refuses_leaves_the_handle_as_it_was() {
    let (d, e) = engine();
    let x = e.upload(&[1.0f32; 8]).unwrap();
    let mut y = e.alloc(DType::F32, 8).unwrap();
    type Call = fn(&Engine, &Buffer, &mut Buffer) -> trefoil::Result<()>;
    let refusals: [(&'static str, Call); 5] = [
        ("launch", neg),
        ("copy_in", |e, _, y| e.write_bytes(y.view_mut(), &[0; 32])),
        ("copy_out", |e, x, _| e.download::<f32>(x.view()).map(|_| ())),
        ("copy", |e, x, y| e.copy(x.view(), y.view_mut())),
        ("record", |e, _, _| e.record().map(|_| ())),
    ];
    for (method, call) in refusals {
        d.fail_next(method, GpuError::driver(method, -52, "INVALID_KERNEL_ARGS"));
        assert!(call(&e, &x, &mut y).unwrap_err().to_string().contains("INVALID_KERNEL_ARGS"), "{method}");
        call(&e, &x, &mut y).unwrap_or_else(|e| panic!("{method}: {e}"));
    }
    // Memory that was promised and is missing when a launch needs it.
    d.fail_next("launch", GpuError::OutOfMemory { requested: 0, in_use: 0, cached: 0 });
    let err = neg(&e, &x, &mut y).unwrap_err();
    assert!(matches!(err, GpuError::OutOfMemory { in_use, .. } if in_use > 0), "{err}");
    assert!(!err.to_string().contains(" 0 bytes requested"), "{err}");
    neg(&e, &x, &mut y).unwrap();
}

#[test]
fn all_streams_of_a_device_share_its_memory() {
    let mut caps = Caps::new(trefoil::DeviceId::new(trefoil::BackendKind::Custom, 0), "small", "mock");
    caps.memory_bytes = 1 << 20;
    let (d, e) = engine_on(MockDriver::new(caps));
    let other = e.fork_stream().unwrap();
    let held = e.alloc(DType::U8, 700 << 10).unwrap();
    assert!(
        matches!(other.alloc(DType::U8, 700 << 10), Err(GpuError::OutOfMemory { requested, .. }) if requested == 700 << 10)
    );
    assert!(d.memory_in_use() < 1 << 20, "a driver that promises more is not asked");
    drop(held);
    e.trim().unwrap();
    assert!(other.alloc(DType::U8, 700 << 10).is_ok());
}

#[test]
fn a_failing_wait_poisons_too() {
    let (d, e) = engine();
    d.fail_next("synchronize", GpuError::driver("synchronize", 719, "LAUNCH_FAILED"));
    assert!(e.synchronize().unwrap_err().to_string().contains("LAUNCH_FAILED"));
    assert!(matches!(e.synchronize().unwrap_err(), GpuError::Poisoned { .. }));
}

#[test]
fn bad_arguments_do_not_reach_the_driver() {
    let (d, e) = engine();
    let x = e.alloc(DType::F32, 8).unwrap();
    let mut y = e.alloc(DType::F32, 9).unwrap();
    let err = neg(&e, &x, &mut y).unwrap_err();
    assert_eq!(err.to_string(), "unary: argument `y`: expected shape [8], got [9]");
    let mut h = e.alloc(DType::F16, 8).unwrap();
    assert!(neg(&e, &x, &mut h).unwrap_err().to_string().contains("`y`"));
    // Overlap of different ranges is refused, the same range is in place.
    let b = e.alloc(DType::F32, 16).unwrap();
    let shifted = b.alias_mut().range(1, 8).unwrap();
    let err = e.unary(Unary::Neg, b.view().range(0, 8).unwrap(), shifted).unwrap_err();
    assert!(err.to_string().contains("overlapping"), "{err}");
    let broadcast = b.view().range(0, 1).unwrap().broadcast_to(&[8]).unwrap();
    assert!(e.unary(Unary::Neg, broadcast, b.alias_mut().range(8, 8).unwrap()).is_ok());
    assert!(d.launches().len() == 1);
    // Memory of another backend.
    let cpu = CpuBackend::new();
    let foreign = cpu.upload(&[0f32; 8]).unwrap();
    let mut own = e.alloc(DType::F32, 8).unwrap();
    assert!(neg(&e, &foreign, &mut own).unwrap_err().to_string().contains("cpu:0"));
}

#[test]
fn streams_own_their_buffers_until_they_are_adopted() {
    let (d, e) = engine();
    let other = e.fork_stream().unwrap();
    let x = e.alloc(DType::F32, 8).unwrap();
    let mut y = other.alloc(DType::F32, 8).unwrap();
    let err = other.unary(Unary::Neg, x.view(), y.view_mut()).unwrap_err();
    assert!(err.to_string().contains("adopt"), "{err}");
    let in_use = e.memory().in_use;
    d.clear();
    let x = other.adopt(x).unwrap();
    assert!(d.calls().iter().any(|c| matches!(c, Call::Wait(..))), "the new stream waits for the old one");
    assert_eq!(e.memory().in_use, in_use - 512);
    other.unary(Unary::Neg, x.view(), y.view_mut()).unwrap();
    drop((x, y));
    assert_eq!(d.live_handles().1, 0, "no event is left");
}

#[test]
fn handles_leave_nothing_behind() {
    let (d, e) = engine();
    let other = e.fork_stream().unwrap();
    let b = other.alloc(DType::F32, 1000).unwrap();
    drop(other);
    drop(e);
    drop(b);
    assert_eq!((d.memory_in_use(), d.live_handles()), (0, (0, 0)));
}

#[test]
fn lists_of_tensors_upload_their_table_once() {
    let mut caps = Caps::new(trefoil::DeviceId::new(trefoil::BackendKind::Custom, 0), "mock", "mock");
    caps.device_addresses = true;
    let (d, e) = engine_on(MockDriver::new(caps));
    let mut bufs: Vec<[Buffer; 2]> = (1..4)
        .map(|n| [e.alloc(DType::F32, n * 100).unwrap(), e.alloc(DType::F32, n * 100).unwrap()])
        .collect();
    let mut step = |t| {
        let mut slots: Vec<ParamSlot<'_>> =
            bufs.iter_mut().map(|[w, g]| ParamSlot::new(w.view_mut(), g.view())).collect();
        e.optimizer_step(&OptimRule::Sgd { wd: 0.0 }, &Step::host(0.1, t), &mut slots).unwrap();
    };
    step(1);
    let before = e.counters();
    step(2);
    let after = e.counters();
    assert_eq!(d.launches(), ["optimizer_step", "optimizer_step"], "one launch per step");
    assert_eq!((after.uploads, after.allocations), (before.uploads, before.allocations));
}

#[test]
fn step_counts_start_at_one_and_tensors_do_not_overlap() {
    let (d, e) = engine();
    let (w, g) = (e.alloc(DType::F32, 8).unwrap(), e.alloc(DType::F32, 8).unwrap());
    let slot = || ParamSlot::new(w.alias_mut(), g.view());
    let rule = OptimRule::Sgd { wd: 0.0 };
    let err = e.optimizer_step(&rule, &Step::host(0.1, 0), &mut [slot()]).unwrap_err();
    assert!(err.to_string().contains("`step`"), "{err}");
    let err = e.optimizer_step(&rule, &Step::host(0.1, 1), &mut [slot(), slot()]).unwrap_err();
    assert!(err.to_string().contains("overlap"), "{err}");
    let adam = OptimRule::Adam { b1: 0.9, b2: 0.999, eps: 1e-8, wd: 0.0 };
    let err = e.optimizer_step(&adam, &Step::host(0.1, 1), &mut [slot()]).unwrap_err();
    assert!(err.to_string().contains("state buffer `m`"), "{err}");
    assert!(d.launches().is_empty());
}

#[test]
fn an_accumulating_gradient_says_so_to_the_kernel() {
    let (d, e) = engine();
    let x = e.alloc(DType::F32, 8).unwrap();
    let mut dx = e.alloc(DType::F32, 8).unwrap();
    let grad: GradMut<'_> = dx.view_mut().accumulate();
    e.unary_bwd(Unary::Exp, x.view(), x.view(), grad).unwrap();
    let Some(Call::Launch { args, .. }) = d.calls().into_iter().find(|c| matches!(c, Call::Launch { .. }))
    else {
        panic!()
    };
    assert_eq!(args[5], OwnedArg::from(&Arg::I32(1)));
}
