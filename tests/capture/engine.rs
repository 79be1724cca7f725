//! What the engine makes of a recording, on the mock driver: which calls reach the driver, memory, refusals.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::{host_calls, refused_call};
use trefoil::ops::Family;
use trefoil::ops::elementwise::Unary;
use trefoil::prelude::*;
use trefoil::testing::{Call, MockDriver, OwnedArg};
use trefoil::{BackendExt, BackendKind, Buffer, Caps, DType, DeviceId, Engine, GpuError};

fn mock(graphs: bool) -> (Arc<MockDriver>, Engine) {
    let driver = Arc::new(MockDriver::default());
    driver.have_graphs(graphs);
    let engine = Engine::new(driver.clone()).unwrap();
    (driver, engine)
}

/// y = -x, then z = a copy of y.
fn negate_and_copy(e: &Engine, x: &Buffer, z: &Buffer) -> trefoil::Result<()> {
    let y = e.alloc(DType::F32, x.len())?;
    e.unary(Unary::Neg, x.view(), y.alias_mut())?;
    e.copy(y.view(), z.alias_mut())
}

#[test]
fn a_recording_is_queued_on_a_stream_of_its_own_and_launched_as_a_whole() {
    let (d, e) = mock(true);
    // Without further streams beside it.
    e.pin_variant("capture_calls", Some("fused")).unwrap();
    let (x, z) = (e.alloc(DType::F32, 100).unwrap(), e.alloc(DType::F32, 100).unwrap());
    negate_and_copy(&e, &x, &z).unwrap();
    let own = e.raw_stream().unwrap();
    d.clear();
    let (graph, ()) = e.capture(|e| negate_and_copy(e, &x, &z)).unwrap();
    let recorded = match d.calls().as_slice() {
        [
            Call::BeginGraph(s),
            Call::Launch { stream, .. },
            Call::Copy(copied, ..),
            Call::EndGraph(ended, g),
        ] => {
            assert!(*s != own && [stream, copied, ended] == [s; 3]);
            *g
        }
        other => panic!("{other:?}"),
    };
    let info = graph.info();
    assert_eq!((info.launches, info.copies, &info.queued_by_host), (1, 1, &None));
    assert_eq!(d.live_handles().0, 1, "the stream of the recording is gone");
    d.clear();
    let before = e.counters();
    graph.replay().unwrap();
    graph.replay().unwrap();
    assert_eq!(d.calls(), [(); 2].map(|()| Call::LaunchGraph(own, recorded)));
    assert_eq!(e.counters().launches - before.launches, 2);
    d.clear();
    drop(graph);
    assert_eq!(d.calls(), [Call::DestroyGraph(own, recorded)]);
}

#[test]
fn without_graphs_of_the_driver_the_host_queues_the_same_calls() {
    let (d, e) = mock(false);
    let (x, z) = (e.alloc(DType::F32, 100).unwrap(), e.alloc(DType::F32, 100).unwrap());
    negate_and_copy(&e, &x, &z).unwrap();
    d.clear();
    negate_and_copy(&e, &x, &z).unwrap();
    let eager = d.calls();
    d.clear();
    let (graph, ()) = e.capture(|e| negate_and_copy(e, &x, &z)).unwrap();
    assert!(d.launches().is_empty(), "recording runs nothing");
    assert_eq!(graph.info().queued_by_host.as_deref(), Some("the mock has no graphs"));
    d.clear();
    graph.replay().unwrap();
    let place = |c: &Call| match c {
        Call::Launch { stream, entry, config, args } => {
            format!("{stream:?} {entry} {config:?} {}", args.len())
        }
        Call::Copy(s, _, to, n) => format!("{s:?} {to:?} {n}"),
        other => format!("{other:?}"),
    };
    let [eager, replayed] = [eager, d.calls()].map(|c| c.iter().map(place).collect::<Vec<_>>());
    assert_eq!(replayed, eager);
}

/// What was queued: kernels with geometry, scalars and which pointers are null, and copies. Places of temporary memory and of tables differ from run to
/// run.
fn queued(calls: &[Call]) -> Vec<String> {
    let arg = |a: &OwnedArg| match a {
        OwnedArg::Mem(m) => format!("{}", m.is_some()),
        OwnedArg::Map(m) => format!("{:?} {:?}", m.shape, m.strides),
        OwnedArg::Bytes(b) => format!("{b:?}"),
    };
    let one = |c: &Call| match c {
        Call::Launch { entry, config, args, .. } => {
            Some(format!("{entry} {config:?} {:?}", args.iter().map(arg).collect::<Vec<_>>()))
        }
        Call::Copy(_, from, to, bytes) => Some(format!("copy {} {} {bytes}", from.1, to.1)),
        Call::CopyOut(..) | Call::Synchronize(_) => Some(format!("{c:?}")),
        _ => None,
    };
    calls.iter().filter_map(one).collect()
}

#[test]
fn every_operation_is_recorded_as_it_is_queued() {
    let mut recorded = BTreeSet::new();
    for (units, is_cpu, addresses) in [(132, false, true), (2, true, false)] {
        let mut caps = Caps::new(DeviceId::new(BackendKind::Custom, 0), "mock", "mock");
        (caps.f64, caps.compute_units, caps.cluster, caps.is_cpu) = (true, units, 8, is_cpu);
        caps.device_addresses = addresses;
        let d = Arc::new(MockDriver::new(caps));
        let e = Engine::new(d.clone()).unwrap();
        e.pin_variant("capture_calls", Some("plain")).unwrap();
        let cx = trefoil_bench::Context::new(&e, trefoil_bench::Scale::Tiny);
        // These copy from and to the host, or are recordings themselves.
        let host = ["write_bytes", "read_bytes", "capture_calls"];
        for p in trefoil_bench::problems().filter(|p| !host.contains(&p.op)) {
            for &dtype in p.dtypes {
                let what = format!("{}/{}/{dtype}", p.op, p.name);
                // Two of a kind: some count their runs.
                let [mut called, mut problem] = [(); 2].map(|()| (p.prepare)(&cx, dtype).unwrap());
                problem.run(&e, 0).unwrap();
                called.run(&e, 0).unwrap();
                d.clear();
                called.run(&e, 0).unwrap();
                let want = queued(&d.calls());
                d.clear();
                let graph =
                    e.capture_calls(&mut || problem.run(&e, 0)).unwrap_or_else(|e| panic!("{what}: {e}"));
                assert_eq!(queued(&d.calls()), [""; 0], "{what}: recording queues nothing");
                d.clear();
                let before = e.counters();
                graph.replay().unwrap();
                let after = e.counters();
                assert_eq!(queued(&d.calls()), want, "{what}");
                assert_eq!(
                    (after.uploads, after.allocations),
                    (before.uploads, before.allocations),
                    "{what}"
                );
                // With fusion no more is called.
                e.pin_variant("capture_calls", Some("parallel")).unwrap();
                let fused = e.capture_calls(&mut || problem.run(&e, 0)).unwrap();
                e.pin_variant("capture_calls", Some("plain")).unwrap();
                let info = fused.info();
                assert_eq!(
                    (info.recorded, info.calls.len()),
                    (want.len(), info.launches + info.copies),
                    "{what}"
                );
                assert!(info.calls.len() <= want.len(), "{what}");
                recorded.insert(p.op);
            }
        }
    }
    let missing = trefoil::ops::all_ops().filter(|o| o.family != Family::Core && !recorded.contains(o.name));
    assert_eq!(missing.map(|o| o.name).collect::<Vec<_>>(), [""; 0]);
}

#[test]
fn a_driver_that_makes_no_graph_of_it_leaves_the_replay_to_the_host() {
    for method in ["new_stream", "begin_graph", "launch", "end_graph"] {
        let (d, e) = mock(true);
        let (x, z) = (e.alloc(DType::F32, 8).unwrap(), e.alloc(DType::F32, 8).unwrap());
        negate_and_copy(&e, &x, &z).unwrap();
        d.fail_next(method, GpuError::driver("call", 901, "INVALIDATED"));
        d.clear();
        let (graph, ()) = e.capture(|e| negate_and_copy(e, &x, &z)).unwrap();
        let begun = d.calls().iter().filter(|c| matches!(c, Call::BeginGraph(_))).count();
        let ended = d.calls().iter().filter(|c| matches!(c, Call::EndGraph(..))).count();
        assert_eq!(ended, begun - usize::from(method == "begin_graph"), "{method}");
        assert!(
            graph.info().queued_by_host.as_ref().is_some_and(|why| why.contains("INVALIDATED")),
            "{method}"
        );
        assert_eq!(d.live_handles().0, 1, "{method}");
        d.clear();
        graph.replay().unwrap();
        assert_eq!(d.launches().len(), 1, "{method}");
    }
}

#[test]
fn a_graph_keeps_its_memory_and_gives_it_back() {
    let (_, e) = mock(false);
    e.pin_variant("capture_calls", Some("plain")).unwrap();
    let outside = e.alloc(DType::F32, 1000).unwrap();
    let base = e.memory().in_use;
    let (graph, y) = e
        .capture(|e| {
            let y = e.alloc(DType::F32, 1000)?;
            let t = e.alloc(DType::F32, 5000)?;
            e.unary(Unary::Neg, outside.view(), y.alias_mut())?;
            e.fill(0.0, t.alias_mut())?;
            drop(t);
            // Takes the block that has become free.
            e.fill(0.0, e.alloc(DType::F32, 5000)?.alias_mut())?;
            Ok(y)
        })
        .unwrap();
    // 4000 and 20000 bytes in steps of 512.
    assert_eq!(graph.info().bytes, 4096 + 20480);
    assert_eq!(e.memory().in_use, base + graph.info().bytes, "also what is free within the graph");
    drop(outside);
    assert_eq!(e.memory().in_use, base + graph.info().bytes, "the graph reads it");
    graph.replay().unwrap();
    let other = e.fork_stream().unwrap();
    assert!(matches!(other.adopt(y), Err(GpuError::Invalid(_))), "the graph writes it");
    drop(graph);
    assert_eq!(e.memory().in_use, base - 4096);
}

#[test]
fn what_needs_the_host_is_refused_by_name() {
    let (d, e) = mock(true);
    let (x, y) = (e.alloc(DType::F32, 8).unwrap(), e.alloc(DType::F32, 8).unwrap());
    let event = e.record().unwrap();
    let (graph, ()) = e.capture(|_| Ok(())).unwrap();
    for (name, call) in host_calls(&e, &x, &event, &graph) {
        d.clear();
        assert_eq!(refused_call(e.capture(|_| call())), name);
        // An error that the caller swallows spoils the recording all the same.
        assert_eq!(refused_call(e.capture(|_| Ok(call().is_ok()))), name);
        assert!(d.calls().iter().all(|c| matches!(c, Call::Alloc(_))), "{name}: {:?}", d.calls());
        call().unwrap();
    }
    // The handle records as before.
    let (graph, ()) = e.capture(|e| e.unary(Unary::Neg, x.view(), y.alias_mut())).unwrap();
    assert_eq!(graph.info().launches, 1);
    // Other errors of the closure are passed on, and a panic ends the recording.
    let bad = e.capture(|e| e.unary(Unary::Neg, x.view(), e.alloc(DType::F32, 9)?.alias_mut()));
    assert!(matches!(bad, Err(GpuError::Invalid(_))));
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        e.capture(|_| -> trefoil::Result<()> { panic!("in it") })
    }));
    assert!(panicked.is_err());
    e.synchronize().unwrap();
}

#[test]
fn other_threads_run_their_calls() {
    let (d, e) = mock(false);
    let (x, y) = (e.alloc(DType::F32, 8).unwrap(), e.alloc(DType::F32, 8).unwrap());
    let neg = |e: &Engine| e.unary(Unary::Neg, x.view(), y.alias_mut());
    neg(&e).unwrap();
    d.clear();
    let (graph, ()) = e
        .capture(|e| {
            std::thread::scope(|s| {
                s.spawn(|| {
                    neg(e).unwrap();
                    e.synchronize().unwrap();
                    assert_eq!(
                        refused_call(e.capture(|_| Ok(()))),
                        "capture_calls",
                        "one recording at a time"
                    );
                });
            });
            neg(e)
        })
        .unwrap();
    assert_eq!((d.launches().len(), graph.info().launches), (1, 1));
}
