//! Recording and replay of calls: on the mock driver what the engine makes of a recording, on every device that is there that a replay gives the bits of
//! the calls themselves.

mod common;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use common::backends;
use trefoil::ops::Family;
use trefoil::ops::activation::Activation;
use trefoil::ops::core::Graph;
use trefoil::ops::elementwise::{Binary, Unary};
use trefoil::ops::gemm::{Gemm, GemmIo};
use trefoil::ops::optimizer::{AdaptiveRule, ClipNorm, OptimRule, ParamSlot, STEP_NUMBERS, Scalar, Step};
use trefoil::ops::random::{Distribution, Rng};
use trefoil::ops::softmax::Softmax;
use trefoil::prelude::*;
use trefoil::testing::{Call, MockDriver, OwnedArg};
use trefoil::{
    BackendExt, BackendKind, Buffer, Caps, CpuBackend, DType, DeviceId, Engine, GpuError, IGpuBackend, Layout,
};

fn mock(graphs: bool) -> (Arc<MockDriver>, Engine) {
    let driver = Arc::new(MockDriver::default());
    driver.have_graphs(graphs);
    let engine = Engine::new(driver.clone()).unwrap();
    (driver, engine)
}

fn refused_call(done: trefoil::Result<impl std::fmt::Debug>) -> &'static str {
    match done {
        Err(GpuError::Capture { op, .. }) => op,
        other => panic!("{other:?}"),
    }
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
    type Refused<'a> = (&'static str, Box<dyn Fn() -> trefoil::Result<()> + 'a>);
    let calls: Vec<Refused<'_>> = vec![
        ("read_bytes", Box::new(|| e.download::<f32>(x.view()).map(drop))),
        ("write_bytes", Box::new(|| e.write(x.alias_mut(), &[0f32; 8]))),
        ("synchronize", Box::new(|| e.synchronize())),
        ("record", Box::new(|| e.record().map(drop))),
        ("wait", Box::new(|| e.wait(&event))),
        ("trim", Box::new(|| e.trim())),
        ("adopt", Box::new(|| e.adopt(e.alloc(DType::F32, 1)?).map(drop))),
        ("replay", Box::new(|| graph.replay())),
        ("capture_calls", Box::new(|| e.capture(|_| Ok(())).map(drop))),
    ];
    for (name, call) in &calls {
        d.clear();
        assert_eq!(refused_call(e.capture(|_| call())), *name);
        // An error that the caller swallows spoils the recording all the same.
        assert_eq!(refused_call(e.capture(|_| Ok(call().is_ok()))), *name);
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

fn is_cpu(g: &Arc<dyn IGpuBackend>) -> bool {
    g.id().kind == BackendKind::Cpu
}

/// A small network's training step on buffers, with a dropout that draws from a position on the device.
struct Net {
    x: Buffer,
    w: Buffer,
    m: Buffer,
    v: Buffer,
    count: Buffer,
    position: Buffer,
    out: Buffer,
}

const ROWS: usize = 48;
const COLUMNS: usize = 80;

impl Net {
    fn new(g: &Arc<dyn IGpuBackend>) -> trefoil::Result<Net> {
        let wave = |n: usize, f: f32| (0..n).map(|i| (i as f32 * f).sin()).collect::<Vec<_>>();
        Ok(Net {
            x: g.upload(&wave(ROWS * COLUMNS, 0.7))?,
            w: g.upload(&wave(COLUMNS * COLUMNS, 0.3))?,
            m: g.zeros(DType::F32, COLUMNS * COLUMNS)?,
            v: g.zeros(DType::F32, COLUMNS * COLUMNS)?,
            count: g.upload(&[1i64])?,
            position: g.upload(&[0i64])?,
            out: g.zeros(DType::F32, ROWS * COLUMNS)?,
        })
    }

    /// out = softmax(dropout(gelu(x w))), a gradient from it, clipped, an Adam step; then the two counts go on.
    fn step(&self, g: &Arc<dyn IGpuBackend>) -> trefoil::Result<()> {
        let (shape, square) = ([ROWS, COLUMNS], [COLUMNS, COLUMNS]);
        let h = g.alloc(DType::F32, ROWS * COLUMNS)?;
        let layer = Gemm::new().act(Activation::GeluTanh);
        let io = GemmIo::new(self.x.shaped(&shape)?, self.w.shaped(&square)?, h.alias_mut().reshape(&shape)?);
        g.gemm(&layer, io)?;
        let dropped = g.alloc(DType::F32, h.len())?;
        let mut rng = Rng::new(9);
        rng.device_offset = Some(self.position.view());
        g.dropout(0.3, rng, h.view(), dropped.alias_mut(), None)?;
        let out = self.out.alias_mut().reshape(&shape)?;
        g.softmax(Softmax::Softmax, 1, dropped.shaped(&shape)?, out)?;
        let grad = g.alloc(DType::F32, self.w.len())?;
        let by = Gemm::new().trans(true, false);
        let io =
            GemmIo::new(self.x.shaped(&shape)?, self.out.shaped(&shape)?, grad.alias_mut().reshape(&square)?);
        g.gemm(&by, io)?;
        let norm = g.alloc(DType::F32, 1)?;
        g.clip_grad_norm(&ClipNorm::new(0.5), &mut [grad.alias_mut()], norm.alias_mut())?;
        let mut step = Step::host(0.01, 1);
        step.step = Scalar::Device(self.count.view());
        let state = [Some(self.m.alias_mut()), Some(self.v.alias_mut()), None, None];
        let slot = ParamSlot::new(self.w.alias_mut(), grad.view()).state(state);
        g.optimizer_step(&OptimRule::Adam { b1: 0.9, b2: 0.999, eps: 1e-8, wd: 0.0 }, &step, &mut [slot])?;
        let blocks = (ROWS * COLUMNS / 4) as f64;
        for (count, more) in [(&self.count, 1.0), (&self.position, blocks)] {
            let one = g.alloc(DType::I64, 1)?;
            g.fill(more, one.alias_mut())?;
            g.binary(Binary::Add { alpha: 1.0 }, count.view(), one.view(), count.alias_mut())?;
        }
        Ok(())
    }

    fn bytes(&self, g: &Arc<dyn IGpuBackend>) -> Vec<Vec<u8>> {
        let read = |b: &Buffer| {
            let mut bytes = vec![0; b.len() * b.dtype().size()];
            g.read_bytes(b.view(), &mut bytes).unwrap();
            bytes
        };
        [&self.w, &self.m, &self.v, &self.count, &self.position, &self.out].map(read).to_vec()
    }
}

#[test]
fn replayed_steps_equal_the_calls_bit_for_bit() {
    const STEPS: usize = 20;
    for g in backends() {
        let (eager, replayed) = (Net::new(&g).unwrap(), Net::new(&g).unwrap());
        for _ in 0..STEPS {
            eager.step(&g).unwrap();
        }
        // The first is recorded without ever having run.
        let (graph, ()) = g.capture(|g| replayed.step(g)).unwrap();
        println!("{}: {:?}", g.id(), graph.info());
        let before = (g.counters(), g.memory());
        for _ in 0..STEPS {
            graph.replay().unwrap();
        }
        let after = g.counters();
        let same =
            |f: fn(&trefoil::ops::core::Counters) -> u64| assert_eq!(f(&after), f(&before.0), "{}", g.id());
        same(|c| c.uploads);
        same(|c| c.downloads);
        same(|c| c.allocations);
        same(|c| c.compiles);
        same(|c| c.syncs);
        assert_eq!(g.memory(), before.1);
        let (want, got) = (eager.bytes(&g), replayed.bytes(&g));
        assert!(
            want == got,
            "{}: buffers differ: {:?}",
            g.id(),
            want.iter().zip(&got).map(|(a, b)| a == b).collect::<Vec<_>>()
        );
        // Steps change what they should, so that the comparison means something.
        let start = Net::new(&g).unwrap().bytes(&g);
        assert!(start.iter().zip(&want).all(|(a, b)| a != b), "{}", g.id());
    }
}

/// Rules with every kind of numbers that change from step to step.
fn rules() -> Vec<OptimRule> {
    let (b1, b2, eps, wd) = (0.9, 0.999, 1e-8, 0.01);
    vec![
        OptimRule::Sgd { wd },
        OptimRule::Momentum { mu: 0.9, damp: 0.1, wd, nesterov: true },
        OptimRule::Adam { b1, b2, eps, wd },
        OptimRule::Nadam { b1, b2, eps, wd, psi: Some(0.004), decoupled: false },
        OptimRule::RAdam { b1, b2: 0.9, eps, wd, decoupled: true },
        OptimRule::Asgd { lambd: 1e-4, alpha: 0.75, t0: 2.0, wd },
        OptimRule::Rprop { up: 1.2, down: 0.5, least: 1e-6, most: 50.0 },
        OptimRule::Adagrad { lr_decay: 0.1, eps, wd },
        OptimRule::Lamb { b1, b2, eps, wd, bias_correction: true, max_norm: 10.0, adapt: true },
        OptimRule::Lars { mu: 0.9, wd, eta: 1e-3, eps, nesterov: false, adapt: true },
        OptimRule::Adan { b1: 0.98, b2: 0.92, b3: 0.99, eps, wd },
        OptimRule::Adaptive(AdaptiveRule::HypergradientSgd { rate: 1e-3 }),
        OptimRule::Adaptive(AdaptiveRule::DAdaptSgd { d0: 1e-6, mu: 0.9, wd, growth: f64::INFINITY }),
        OptimRule::Adaptive(AdaptiveRule::DAdaptAdam { b1, b2, eps, wd, d0: 1e-6, growth: f64::INFINITY }),
        OptimRule::Adaptive(AdaptiveRule::ScheduleFreeAdamW { b: 0.9, b2, eps, wd }),
    ]
}

/// Steps of a rule with other rates and gradients each: given by value, or replayed with numbers on the device. Bytes of parameter, states and memory.
fn steps(
    g: &Arc<dyn IGpuBackend>,
    rule: &OptimRule,
    dtype: DType,
    replayed: bool,
) -> trefoil::Result<Vec<Vec<u8>>> {
    const N: usize = 700;
    let acc = dtype.accumulator();
    let ones = g.alloc(dtype, N)?;
    g.fill(0.5, ones.alias_mut())?;
    let gradient = g.alloc(dtype, N)?;
    let states = (0..rule.states().len()).map(|_| g.zeros(acc, N)).collect::<trefoil::Result<Vec<_>>>()?;
    let memory = match rule {
        OptimRule::Adaptive(a) => Some(g.zeros(acc, a.memory().len())?),
        _ => None,
    };
    let numbers = g.zeros(acc, STEP_NUMBERS)?;
    let call = |step: &Step<'_>| -> trefoil::Result<()> {
        let mut slots = [const { None }; 4];
        slots.iter_mut().zip(&states).for_each(|(slot, s)| *slot = Some(s.alias_mut()));
        let slot = ParamSlot::new(ones.alias_mut(), gradient.view()).state(slots);
        match (rule, &memory) {
            (OptimRule::Adaptive(a), Some(m)) => g.adaptive_step(a, step, m.alias_mut(), &mut [slot]),
            _ => g.optimizer_step(rule, step, &mut [slot]),
        }
    };
    let recorded = Step::host(9.0, 77).numbers(numbers.view());
    let graph = if replayed { Some(g.capture(|_| call(&recorded))?.0) } else { None };
    for t in 1..=7u64 {
        let lr = 0.3 / t as f64;
        g.random(Distribution::Normal { mean: 0.1, std: 1.0 }, Rng::new(t), gradient.alias_mut())?;
        match &graph {
            Some(graph) => {
                let n = rule.step_numbers(lr, t);
                match acc {
                    DType::F64 => g.write(numbers.alias_mut(), &n)?,
                    _ => g.write(numbers.alias_mut(), &n.map(|x| x as f32))?,
                }
                graph.replay()?;
            }
            None => call(&Step::host(lr, t))?,
        }
    }
    let read = |b: &Buffer| {
        let mut bytes = vec![0; b.len() * b.dtype().size()];
        g.read_bytes(b.view(), &mut bytes).map(|()| bytes)
    };
    [&ones].into_iter().chain(&states).chain(&memory).map(read).collect()
}

#[test]
fn steps_with_numbers_on_the_device_equal_those_with_numbers_by_value() {
    for g in backends() {
        for rule in rules() {
            for dtype in [DType::F32, DType::Bf16, DType::F64] {
                if dtype == DType::F64 && !g.caps().f64 {
                    continue;
                }
                let (want, got) =
                    (steps(&g, &rule, dtype, false).unwrap(), steps(&g, &rule, dtype, true).unwrap());
                assert!(want == got, "{} {rule:?} {dtype}", g.id());
            }
        }
    }
}

#[test]
fn numbers_of_another_type_or_size_are_refused() {
    for g in backends() {
        let (w, grad) = (g.zeros(DType::F32, 8).unwrap(), g.zeros(DType::F32, 8).unwrap());
        let (small, wide) = (g.zeros(DType::F32, 7).unwrap(), g.zeros(DType::F64, STEP_NUMBERS));
        let rule = OptimRule::Sgd { wd: 0.0 };
        for numbers in [Some(small), wide.ok()].into_iter().flatten() {
            let step = Step::host(0.1, 1).numbers(numbers.view());
            let slot = ParamSlot::new(w.alias_mut(), grad.view());
            let refused = g.optimizer_step(&rule, &step, &mut [slot]);
            assert!(
                matches!(&refused, Err(GpuError::Invalid(e)) if e.arg == "numbers"),
                "{}: {refused:?}",
                g.id()
            );
        }
        // Rate and count come from there, whatever the step says.
        let numbers = g.upload(&rule.step_numbers(0.5, 3).map(|x| x as f32)).unwrap();
        let ones = g.upload(&[1f32; 8]).unwrap();
        let slot = ParamSlot::new(w.alias_mut(), ones.view());
        g.optimizer_step(&rule, &Step::host(0.1, 1).numbers(numbers.view()), &mut [slot]).unwrap();
        assert_eq!(g.download::<f32>(w.view()).unwrap(), [-0.5; 8], "{}", g.id());
    }
}

/// A graph of a few small launches on buffers that it keeps.
fn small(g: &Arc<dyn IGpuBackend>) -> (Graph, Buffer, Buffer) {
    let x = g.upload(&[1f32; 64]).unwrap();
    let (graph, y) = g
        .capture(|g| {
            let y = g.alloc(DType::F32, 64)?;
            g.unary(Unary::Neg, x.view(), y.alias_mut())?;
            g.binary(Binary::Add { alpha: 1.0 }, y.view(), x.view(), y.alias_mut())?;
            g.binary(Binary::Add { alpha: 0.5 }, y.view(), x.view(), y.alias_mut())?;
            Ok(y)
        })
        .unwrap();
    (graph, x, y)
}

#[test]
fn ten_thousand_replays_take_no_memory_and_read_nothing_back() {
    for g in backends() {
        let (graph, _x, y) = small(&g);
        graph.replay().unwrap();
        g.synchronize().unwrap();
        let (memory, counters) = (g.memory(), g.counters());
        for i in 0..10_000 {
            graph.replay().unwrap();
            // A driver's queue need not be endless.
            if i % 1000 == 999 {
                g.record().unwrap().synchronize().unwrap();
            }
        }
        g.synchronize().unwrap();
        let after = g.counters();
        assert_eq!(g.memory(), memory, "{}", g.id());
        assert_eq!(
            (after.allocations, after.downloads, after.uploads),
            (counters.allocations, counters.downloads, counters.uploads),
            "{}",
            g.id()
        );
        // Three calls are one kernel where calls are fused.
        let launches = graph.info().launches;
        assert_eq!(launches, if is_cpu(&g) { 3 } else { 1 }, "{}", g.id());
        assert_eq!(after.launches - counters.launches, 10_000 * launches as u64, "{}", g.id());
        assert_eq!(g.download::<f32>(y.view()).unwrap(), [0.5; 64]);
    }
}

#[test]
fn inputs_are_copied_in_and_graphs_outlive_what_they_read() {
    for g in backends() {
        let (graph, x, y) = small(&g);
        let other = g.upload(&[3f32; 64]).unwrap();
        g.copy(other.view(), x.alias_mut()).unwrap();
        drop((x, other));
        // Blocks that the graph did not hold would be taken by these.
        let others: Vec<Buffer> = (0..32).map(|_| g.upload(&[9f32; 64]).unwrap()).collect();
        graph.replay().unwrap();
        assert_eq!(g.download::<f32>(y.view()).unwrap(), [1.5; 64], "{}", g.id());
        drop(graph);
        // What the graph gave stays without it.
        let more: Vec<Buffer> = (0..32).map(|_| g.upload(&[7f32; 64]).unwrap()).collect();
        assert_eq!(g.download::<f32>(y.view()).unwrap(), [1.5; 64], "{}", g.id());
        drop((others, more));
    }
}

#[test]
fn an_index_out_of_range_in_a_replay_is_reported() {
    for g in backends() {
        let (table, ids) = (g.upload(&[1f32, 2.0, 3.0]).unwrap(), g.upload(&[0i64, 2]).unwrap());
        let (graph, y) = g
            .capture(|g| {
                let y = g.alloc(DType::F32, 2)?;
                g.gather(0, table.view(), ids.view(), y.alias_mut().into())?;
                Ok(y)
            })
            .unwrap();
        graph.replay().unwrap();
        assert_eq!(g.download::<f32>(y.view()).unwrap(), [1.0, 3.0], "{}", g.id());
        g.write(ids.alias_mut(), &[1i64, 3]).unwrap();
        graph.replay().unwrap();
        assert!(matches!(g.synchronize(), Err(GpuError::IndexOutOfRange { op: "gather" })), "{}", g.id());
        g.write(ids.alias_mut(), &[1i64, 1]).unwrap();
        graph.replay().unwrap();
        assert_eq!(g.download::<f32>(y.view()).unwrap(), [2.0, 2.0], "{}", g.id());
    }
}

#[test]
fn replays_of_several_threads_do_not_mix() {
    for g in backends() {
        let (graph, _x, y) = small(&g);
        std::thread::scope(|s| {
            for _ in 0..3 {
                s.spawn(|| (0..200).for_each(|_| graph.replay().unwrap()));
            }
            std::thread::sleep(Duration::from_millis(1));
        });
        assert_eq!(g.download::<f32>(y.view()).unwrap(), [0.5; 64], "{}", g.id());
    }
}

fn bytes(g: &Arc<dyn IGpuBackend>, b: &Buffer) -> Vec<u8> {
    let mut bytes = vec![0; b.len() * b.dtype().size()];
    g.read_bytes(b.view(), &mut bytes).unwrap();
    bytes
}

#[test]
fn every_backend_refuses_what_needs_the_host() {
    for g in backends() {
        let (x, event) = (g.upload(&[1f32; 8]).unwrap(), g.record().unwrap());
        let (graph, ()) = g.capture(|_| Ok(())).unwrap();
        type Refused<'a> = (&'static str, Box<dyn Fn() -> trefoil::Result<()> + 'a>);
        let calls: Vec<Refused<'_>> = vec![
            ("read_bytes", Box::new(|| g.download::<f32>(x.view()).map(drop))),
            ("write_bytes", Box::new(|| g.write(x.alias_mut(), &[0f32; 8]))),
            ("synchronize", Box::new(|| g.synchronize())),
            ("record", Box::new(|| g.record().map(drop))),
            ("wait", Box::new(|| g.wait(&event))),
            ("trim", Box::new(|| g.trim())),
            ("adopt", Box::new(|| g.adopt(g.alloc(DType::F32, 1)?).map(drop))),
            ("profile_calls", Box::new(|| g.profile_calls(&mut || Ok(())).map(drop))),
            ("replay", Box::new(|| graph.replay())),
            ("capture_calls", Box::new(|| g.capture(|_| Ok(())).map(drop))),
        ];
        for (name, call) in &calls {
            assert_eq!(refused_call(g.capture(|_| call())), *name, "{}", g.id());
            // An error that the caller swallows spoils the recording all the same.
            assert_eq!(refused_call(g.capture(|_| Ok(call().is_ok()))), *name, "{}", g.id());
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
fn on_the_cpu_unread_calls_are_left_out_and_dropped_buffers_share_memory() {
    const N: usize = 1000;
    let g: Arc<dyn IGpuBackend> = Arc::new(CpuBackend::new());
    let (x, y) = (g.upload(&[0.5f32; N]).unwrap(), g.zeros(DType::F32, N).unwrap());
    let chain = |g: &Arc<dyn IGpuBackend>| {
        let mut last = g.alloc(DType::F32, N)?;
        g.unary(Unary::Neg, x.view(), last.alias_mut())?;
        for _ in 0..10 {
            let next = g.alloc(DType::F32, N)?;
            g.unary(Unary::Neg, last.view(), next.alias_mut())?;
            // Two calls whose results nobody reads.
            let unread = g.alloc(DType::F32, N)?;
            g.fill(1.0, unread.alias_mut())?;
            g.unary(Unary::Exp, next.view(), unread.alias_mut())?;
            last = next;
        }
        g.copy(last.view(), y.alias_mut())
    };
    let base = g.memory().in_use;
    let (graph, ()) = g.capture(chain).unwrap();
    let info = graph.info();
    assert_eq!((info.recorded, info.unread, info.launches, info.copies), (32, 20, 11, 1));
    assert_eq!((info.fused, info.calls.len()), (0, 12));
    // Two blocks of 4000 bytes, in steps of 512, take turns.
    assert_eq!(info.bytes, 2 * 4096);
    assert_eq!(g.memory().in_use, base + info.bytes);
    graph.replay().unwrap();
    assert_eq!(g.download::<f32>(y.view()).unwrap(), [-0.5; N]);
    drop(graph);
    assert_eq!(g.memory().in_use, base);
    g.pin_variant("capture_calls", Some("plain")).unwrap();
    let (plain, ()) = g.capture(chain).unwrap();
    assert_eq!((plain.info().unread, plain.info().calls.len(), plain.info().bytes), (0, 32, 21 * 4096));
    // A buffer that is there at the end is written, and stays where it is.
    g.pin_variant("capture_calls", None).unwrap();
    let kept = g.capture(|g| {
        let kept = g.alloc(DType::F32, N)?;
        g.fill(2.0, kept.alias_mut())?;
        chain(g)?;
        Ok(kept)
    });
    let (graph, kept) = kept.unwrap();
    graph.replay().unwrap();
    assert_eq!(g.download::<f32>(kept.view()).unwrap(), [2.0; N]);
}

#[test]
fn a_replay_on_the_cpu_runs_the_variants_of_its_recording() {
    const N: usize = 4096;
    let g: Arc<dyn IGpuBackend> = Arc::new(CpuBackend::new());
    let wave: Vec<f32> = (0..N).map(|i| (i as f32 * 0.37).sin() * 9.0).collect();
    let (x, y) = (g.upload(&wave).unwrap(), g.zeros(DType::F32, N).unwrap());
    let softmax = || g.softmax(Softmax::Softmax, 0, x.view(), y.alias_mut());
    let results: Vec<_> = ["reference", "vectorized"]
        .map(|variant| {
            g.pin_variant("softmax", Some(variant)).unwrap();
            softmax().unwrap();
            let want = bytes(&g, &y);
            let (graph, ()) = g.capture(|_| softmax()).unwrap();
            g.pin_variant("softmax", None).unwrap();
            graph.replay().unwrap();
            assert!(bytes(&g, &y) == want, "{variant}");
            want
        })
        .to_vec();
    assert!(results[0] != results[1], "the variants differ, so that the comparison means something");
}

/// Numbers that look random.
struct Draw(u64);

impl Draw {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((self.0 >> 33) as usize) % n
    }
}

/// 200 calls on parts of buffers, some of which overlap, some of which come and go; gives how many were accepted.
fn tangle(g: &Arc<dyn IGpuBackend>, seed: u64, outside: &[Buffer]) -> trefoil::Result<usize> {
    let mut draw = Draw(seed);
    let mut own: Vec<Buffer> = vec![];
    let mut made = 0;
    for i in 0..200 {
        if draw.below(5) == 0 {
            let new = g.alloc(DType::F32, 64)?;
            g.fill(f64::from(i) / 100.0 - 1.0, new.alias_mut())?;
            own.push(new);
        }
        if own.len() > 3 {
            own.swap_remove(draw.below(3));
        }
        let all: Vec<&Buffer> = outside.iter().chain(&own).collect();
        let n = 1 + draw.below(24);
        let mut part = || (all[draw.below(all.len())], draw.below(64 - n + 1));
        let [(a, i), (b, j), (y, k)] = [part(), part(), part()];
        let (a, b) = (a.view().range(i, n)?, b.view().range(j, n)?);
        let out = y.alias_mut().range(k, n)?;
        let call = match draw.below(6) {
            0 => g.unary(Unary::Sin, a, out),
            1 => g.binary(Binary::Add { alpha: -0.5 }, a, b, out),
            2 => g.copy(a, out),
            3 => g.strided_copy(a, out.accumulate()),
            4 => g.softmax(Softmax::Softmax, 0, a, out),
            // Every second element.
            _ => {
                let pair = Layout::contiguous(&[n / 2, 2]).and_then(|l| l.shifted(i));
                let column = pair.and_then(|l| l.select(1, 1));
                let column = all[0].view().with_layout(column.expect("it lies in the buffer"))?;
                g.unary(Unary::Sin, column, y.alias_mut().range(k, n / 2)?)
            }
        };
        match call {
            Ok(()) => made += 1,
            // Operands that overlap: not made, neither plainly nor in the recording.
            Err(GpuError::Invalid(_)) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(made)
}

#[test]
fn two_hundred_calls_on_views_that_alias_replay_with_the_same_bits() {
    for g in backends() {
        let buffers = |seed: u64| -> Vec<Buffer> {
            let mut draw = Draw(seed);
            let mut values = || (0..64).map(|_| draw.below(1000) as f32 / 500.0 - 1.0).collect::<Vec<_>>();
            (0..4).map(|_| g.upload(&values()).unwrap()).collect()
        };
        for seed in 0..12 {
            let (eager, replayed) = (buffers(seed), buffers(seed));
            let start: Vec<_> = replayed.iter().map(|b| bytes(&g, b)).collect();
            g.pin_variant("capture_calls", (seed % 3 == 0).then_some("plain")).unwrap();
            let (graph, made) = g.capture(|g| tangle(g, seed, &replayed)).unwrap();
            g.pin_variant("capture_calls", None).unwrap();
            assert!(made > 100, "{}: {made} of 200", g.id());
            let now: Vec<_> = replayed.iter().map(|b| bytes(&g, b)).collect();
            assert!(now == start, "{}: recording runs nothing", g.id());
            for times in 0..3 {
                tangle(&g, seed, &eager).unwrap();
                graph.replay().unwrap();
                for (i, (a, b)) in eager.iter().zip(&replayed).enumerate() {
                    assert!(bytes(&g, a) == bytes(&g, b), "{}: seed {seed}, buffer {i}, {times}", g.id());
                }
            }
        }
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
