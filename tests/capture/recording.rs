//! Recordings on every device: what is refused, how they end, what runs beside them, how a graph is drawn.

use std::sync::Arc;

use crate::common::backends;
use crate::{bytes, host_calls, is_cpu, refused_call};
use trefoil::ops::elementwise::{Binary, Unary};
use trefoil::ops::softmax::Softmax;
use trefoil::prelude::*;
use trefoil::{BackendExt, DType, GpuError, IGpuBackend};

#[test]
fn every_backend_refuses_what_needs_the_host() {
    for g in backends() {
        let (x, event) = (g.upload(&[1f32; 8]).unwrap(), g.record().unwrap());
        let (graph, ()) = g.capture(|_| Ok(())).unwrap();
        for (name, call) in host_calls(&*g, &x, &event, &graph) {
            assert_eq!(refused_call(g.capture(|_| call())), name, "{}", g.id());
            // An error that the caller swallows spoils the recording all the same.
            assert_eq!(refused_call(g.capture(|_| Ok(call().is_ok()))), name, "{}", g.id());
            call().unwrap_or_else(|e| panic!("{}: {name}: {e}", g.id()));
        }
    }
}

#[test]
fn nothing_was_run_after_a_recording_in_whichever_way_it_ends() {
    for g in backends() {
        let (x, table) = (g.upload(&[1f32, 2.0, 3.0]).unwrap(), g.upload(&[5f32; 3]).unwrap());
        let (ids, wide) = (g.upload(&[0i64, 7]).unwrap(), g.zeros(DType::F32, 9).unwrap());
        let before = [&x, &table, &ids, &wide].map(|b| bytes(&g, b));
        let calls = || {
            g.fill(7.0, x.alias_mut())?;
            g.binary(Binary::Mul, x.view(), x.view(), table.alias_mut())?;
            // An index out of range, in what is not run.
            g.gather(0, table.view(), ids.view(), wide.alias_mut().range(3, 2)?.into())
        };
        let same = |what: &str| {
            g.synchronize().unwrap_or_else(|e| panic!("{}: {what}: {e}", g.id()));
            assert_eq!([&x, &table, &ids, &wide].map(|b| bytes(&g, b)), before, "{}: {what}", g.id());
        };
        let (graph, ()) = g.capture(|_| calls()).unwrap();
        same("recorded");
        let failed = g.capture(|g| {
            calls()?;
            g.unary(Unary::Neg, x.view(), wide.alias_mut())
        });
        assert!(matches!(failed, Err(GpuError::Invalid(_))), "{}: {failed:?}", g.id());
        same("failed");
        assert_eq!(refused_call(g.capture(|g| calls().and_then(|()| g.synchronize()))), "synchronize");
        same("refused");
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            g.capture(|_| -> trefoil::Result<()> {
                calls()?;
                panic!("in it")
            })
        }));
        assert!(panicked.is_err());
        same("panicked");
        // The handle makes and records calls as before.
        graph.replay().unwrap();
        assert!(matches!(g.synchronize(), Err(GpuError::IndexOutOfRange { op: "gather" })), "{}", g.id());
        g.write(ids.alias_mut(), &[0i64, 2]).unwrap();
        graph.replay().unwrap();
        assert_eq!(g.download::<f32>(table.view()).unwrap(), [49.0; 3], "{}", g.id());
    }
}

#[test]
fn other_threads_and_handles_run_their_calls_beside_a_recording() {
    for g in backends() {
        let (x, y) = (g.upload(&[1f32; 8]).unwrap(), g.zeros(DType::F32, 8).unwrap());
        let other = g.fork_stream().unwrap();
        let z = other.zeros(DType::F32, 8).unwrap();
        let (graph, ()) = g
            .capture(|g| {
                other.fill(3.0, z.alias_mut())?;
                std::thread::scope(|s| {
                    let run = s.spawn(|| {
                        g.fill(2.0, y.alias_mut())?;
                        assert_eq!(refused_call(g.capture(|_| Ok(()))), "capture_calls");
                        g.download::<f32>(y.view())
                    });
                    assert_eq!(run.join().unwrap().unwrap(), [2.0; 8]);
                });
                g.unary(Unary::Neg, x.view(), x.alias_mut())
            })
            .unwrap();
        assert_eq!(graph.info().recorded, 1, "{}", g.id());
        assert_eq!(other.download::<f32>(z.view()).unwrap(), [3.0; 8], "{}", g.id());
        assert_eq!(g.download::<f32>(x.view()).unwrap(), [1.0; 8], "{}", g.id());
    }
}

#[test]
fn a_graph_is_drawn_with_the_bytes_that_calls_read_of_each_other() {
    for g in backends() {
        let (x, y) = (g.zeros(DType::F32, 64).unwrap(), g.zeros(DType::F32, 64).unwrap());
        let calls = |g: &Arc<dyn IGpuBackend>| {
            let t = g.alloc(DType::F32, 64)?;
            g.softmax(Softmax::Softmax, 0, x.view().range(0, 40)?, t.alias_mut().range(0, 40)?)?;
            g.softmax(Softmax::Softmax, 0, x.view().range(0, 40)?, t.alias_mut().range(24, 40)?)?;
            g.softmax(Softmax::Softmax, 0, t.view(), y.alias_mut())?;
            g.unary(Unary::Neg, y.view(), y.alias_mut())?;
            g.unary(Unary::Exp, y.view(), y.alias_mut())
        };
        let (graph, ()) = g.capture(calls).unwrap();
        let (info, dot) = (graph.info(), graph.dot());
        assert!(dot.starts_with("digraph ") && dot.ends_with("}\n"), "{dot}");
        let label = |l: &str| l.split('"').nth(1).unwrap_or_default().to_string();
        let (mut boxes, mut arrows) = (vec![], vec![]);
        for line in dot.lines().filter(|l| l.starts_with("  n") && !l.starts_with("  node")) {
            let names: Vec<usize> = line
                .split_whitespace()
                .filter_map(|w| w.strip_prefix('n').and_then(|n| n.parse().ok()))
                .collect();
            match names[..] {
                [at] => boxes.push((at, label(line))),
                [from, to] => arrows.push((from, to, label(line).parse::<u64>().unwrap())),
                _ => panic!("{line}"),
            }
        }
        assert_eq!(boxes.iter().map(|b| b.0).collect::<Vec<_>>(), (0..info.calls.len()).collect::<Vec<_>>());
        let edges: Vec<_> = info.edges.iter().map(|e| (e.from, e.to, e.bytes)).collect();
        assert_eq!(arrows, edges, "{}", g.id());
        assert!(edges.iter().all(|&(from, to, bytes)| from < to && bytes > 0), "{edges:?}");
        // What the second call overwrote, the third does not read of the first.
        match is_cpu(&g) {
            true => assert_eq!(edges, [(0, 1, 64), (0, 2, 96), (1, 2, 160), (2, 3, 256), (3, 4, 256)]),
            false => {
                // Of other kernels than elementwise ones it is known which buffers they use, not which parts.
                assert_eq!(edges, [(0, 1, 256), (1, 2, 256), (2, 3, 256)], "{}", g.id());
                // The two last are one kernel, with both names.
                assert!(boxes.last().is_some_and(|b| b.1.starts_with("fused\\n")), "{boxes:?}");
                assert_eq!(boxes.last().map(|b| b.1.matches("unary").count()), Some(2), "{boxes:?}");
            }
        }
    }
}
