//! Fusion in recorded calls: random graphs give the bits of the calls themselves, and what was recorded tells what became of it.

mod common;

use std::sync::Arc;

use common::backends;
use trefoil::ops::activation::{Activation, Saved};
use trefoil::ops::core::GraphInfo;
use trefoil::ops::elementwise::{Binary, BinaryBwd, Ternary, Unary};
use trefoil::ops::optimizer::{OptimRule, ParamSlot, Step as OptimStep};
use trefoil::ops::random::{DropoutMask, Rng};
use trefoil::ops::reduce::Reduce;
use trefoil::prelude::*;
use trefoil::testing::{Call, MockDriver, OwnedArg};
use trefoil::{
    BackendExt, BackendKind, Buffer, Caps, CpuBackend, DType, DeviceId, Engine, IGpuBackend, View, ViewMut,
};

type Gpu = Arc<dyn IGpuBackend>;

/// Every backend that records.
fn recording_backends() -> Vec<Gpu> {
    let is_cpu = |b: &Gpu| b.id() == CpuBackend::new().id();
    backends().into_iter().filter(|b| !is_cpu(b)).collect()
}

/// A linear congruential generator.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((self.0 >> 33) % n as u64) as usize
    }

    fn one<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(list.len())]
    }
}

/// How a node sees a buffer of `[ROWS, COLUMNS]`.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Seen {
    Whole,
    /// Rows from this one on, half of all.
    Half(usize),
    /// Its first row, or first column, repeated.
    Row,
    Column,
}

#[derive(Debug, Clone, Copy)]
enum Node {
    Unary(Unary),
    UnaryBwd(Unary),
    Activation(Activation),
    ActivationBwd(Activation),
    Binary(Binary),
    /// Both gradients.
    BinaryBwd(Binary),
    Ternary(Ternary),
    /// A selection by a comparison of two operands.
    Where,
    /// With its mask, which the gradient takes.
    Dropout(u64),
    /// To 16 bits and back.
    Rounded(DType),
    Fill(f64),
    Copy,
    /// What is not elementwise: the mean of each row, repeated.
    RowMeans,
}

/// A node: operands by the numbers of their buffers, and the buffers that it writes. New ones come into being, used ones are overwritten.
#[derive(Debug, Clone)]
struct Step {
    node: Node,
    from: [(usize, Seen); 3],
    to: [usize; 2],
    half: Option<usize>,
    /// Buffers that are dropped behind it.
    dropped: Vec<usize>,
}

#[derive(Debug, Clone)]
struct Program {
    shape: [usize; 2],
    dtype: DType,
    steps: Vec<Step>,
}

/// Buffers 0 to OUTSIDE - 1 are made before the recording.
const OUTSIDE: usize = 4;

impl Program {
    fn random(seed: u64, dtype: DType, shape: [usize; 2], nodes: usize) -> Program {
        use {Activation as A, Binary as B, Unary as U};
        let mut r = Random(seed);
        let mut live: Vec<usize> = (0..OUTSIDE).collect();
        let mut next = OUTSIDE;
        let mut steps = vec![];
        for at in 0..nodes {
            let unary = [U::Sin, U::Cos, U::Neg, U::Abs, U::Atan, U::Square, U::Exp];
            let act = [A::Relu, A::Gelu, A::Sigmoid, A::Swish { beta: 1.0 }, A::Tanh];
            let binary = [B::Add { alpha: 0.5 }, B::Add { alpha: 1.0 }, B::Sub, B::Mul, B::Maximum, B::Atan2];
            let node = match r.below(16) {
                0 | 1 => Node::Unary(r.one(&unary)),
                2 => Node::UnaryBwd(r.one(&unary)),
                3 | 4 => Node::Activation(r.one(&act)),
                5 => Node::ActivationBwd(r.one(&act)),
                6..=8 => Node::Binary(r.one(&binary)),
                9 => Node::BinaryBwd(r.one(&binary)),
                10 => Node::Ternary(r.one(&[Ternary::Addcmul { v: 0.3 }, Ternary::Lerp])),
                11 => Node::Where,
                12 => Node::Dropout(at as u64),
                13 => match dtype {
                    DType::F32 => Node::Rounded(r.one(&[DType::F16, DType::Bf16])),
                    _ => Node::Copy,
                },
                14 => r.one(&[Node::Fill(0.7), Node::Copy]),
                _ => Node::RowMeans,
            };
            let half = (r.below(6) == 0).then(|| r.below(shape[0] - shape[0] / 2 + 1));
            let from = [(); 3].map(|()| {
                let seen = match (half, r.below(8)) {
                    (Some(at), _) => Seen::Half(at),
                    (None, 0) => Seen::Row,
                    (None, 1) => Seen::Column,
                    (None, _) => Seen::Whole,
                };
                (r.one(&live), seen)
            });
            let to = [(); 2].map(|()| {
                // In place, or over anything else that is not an operand seen otherwise.
                let fits = |b: usize| {
                    from.iter().all(|&(x, seen)| x != b || matches!(seen, Seen::Whole | Seen::Half(_)))
                };
                let old = r.one(&live);
                if r.below(3) == 0 && fits(old) {
                    return old;
                }
                next += 1;
                next - 1
            });
            let to = if to[0] == to[1] { [to[0], next] } else { to };
            next = next.max(to[1] + 1);
            for b in to {
                if !live.contains(&b) && (b == to[0] || matches!(node, Node::BinaryBwd(_))) {
                    live.push(b);
                }
            }
            let mut dropped = vec![];
            while live.len() > OUTSIDE + 6 {
                let at = OUTSIDE + r.below(live.len() - OUTSIDE);
                dropped.push(live.remove(at));
            }
            steps.push(Step { node, from, to, half, dropped });
        }
        Program { shape, dtype, steps }
    }

    fn start(&self, g: &Gpu) -> trefoil::Result<Vec<Buffer>> {
        let n = self.shape[0] * self.shape[1];
        let one = |k: usize| {
            let values: Vec<f32> = (0..n).map(|i| (i as f32 * 0.37 + k as f32).sin() * 1.5).collect();
            let (x, y) = (g.upload(&values)?, g.alloc(self.dtype, n)?);
            match self.dtype {
                DType::F32 => Ok(x),
                _ => g.cast(x.view(), y.alias_mut()).map(|()| y),
            }
        };
        (0..OUTSIDE).map(one).collect()
    }

    /// Runs the steps; the buffers that are left.
    fn run(&self, g: &Gpu, outside: &[Buffer]) -> trefoil::Result<Vec<Buffer>> {
        let n = self.shape[0] * self.shape[1];
        let mut own: Vec<(usize, Buffer)> = vec![];
        for step in &self.steps {
            for b in step.to {
                if b >= OUTSIDE && own.iter().all(|(i, _)| *i != b) {
                    let new = g.alloc(self.dtype, n)?;
                    g.fill(0.25, new.alias_mut())?;
                    own.push((b, new));
                }
            }
            let find = |b: usize| match outside.get(b) {
                Some(x) => x,
                None => &own.iter().find(|(i, _)| *i == b).unwrap().1,
            };
            self.step(g, step, &find)?;
            own.retain(|(i, _)| !step.dropped.contains(i));
        }
        Ok(own.into_iter().map(|(_, b)| b).collect())
    }

    fn step<'a>(&self, g: &Gpu, s: &Step, find: &dyn Fn(usize) -> &'a Buffer) -> trefoil::Result<()> {
        let [rows, columns] = self.shape;
        let taken = rows / 2;
        let shape = if s.half.is_some() { [taken, columns] } else { self.shape };
        let seen = |k: usize| -> trefoil::Result<View<'a>> {
            let (b, seen) = s.from[k];
            let v = find(b).view();
            match seen {
                Seen::Whole => v.reshape(&self.shape),
                Seen::Half(at) => v.range(at * columns, taken * columns)?.reshape(&shape),
                Seen::Row => v.range(0, columns)?.broadcast_to(&self.shape),
                Seen::Column => v.range(0, rows)?.reshape(&[rows, 1])?.broadcast_to(&self.shape),
            }
        };
        let out = |k: usize| -> trefoil::Result<ViewMut<'a>> {
            let v = find(s.to[k]).alias_mut();
            match s.half {
                Some(at) => v.range(at * columns, taken * columns)?.reshape(&shape),
                None => v.reshape(&self.shape),
            }
        };
        let n = shape[0] * shape[1];
        let dense = |k: usize| -> trefoil::Result<Buffer> {
            let new = g.alloc(self.dtype, n)?;
            g.strided_copy(seen(k)?, new.alias_mut().reshape(&shape)?.into())?;
            Ok(new)
        };
        match s.node {
            Node::Unary(op) => g.unary(op, seen(0)?, out(0)?),
            Node::UnaryBwd(op) => g.unary_bwd(op, seen(0)?, seen(1)?, out(0)?.into()),
            Node::Activation(act) => g.activation(act, seen(0)?, out(0)?),
            Node::ActivationBwd(act) => {
                let x = seen(1)?;
                let reads_output = matches!(act, Activation::Relu | Activation::Sigmoid | Activation::Tanh);
                let saved = if reads_output { Saved::Output(x) } else { Saved::Input(x) };
                g.activation_bwd(act, seen(0)?, saved, out(0)?.into())
            }
            Node::Binary(op) => g.binary(op, seen(0)?, seen(1)?, out(0)?),
            Node::BinaryBwd(op) => {
                let dy = dense(0)?;
                let io = BinaryBwd::new(dy.shaped(&shape)?, seen(1)?, seen(2)?);
                g.binary_bwd(op, io.da(Some(out(0)?.into())).db(Some(out(1)?.into())))
            }
            Node::Ternary(op) => g.ternary(op, seen(0)?, seen(1)?, seen(2)?, out(0)?),
            Node::Where => {
                let mask = g.alloc(DType::U8, n)?;
                g.binary(Binary::Lt, seen(0)?, seen(1)?, mask.alias_mut().reshape(&shape)?)?;
                g.ternary(Ternary::Where, mask.shaped(&shape)?, seen(1)?, seen(2)?, out(0)?)
            }
            Node::Dropout(stream) => {
                let (x, mask) = (dense(0)?, g.alloc(DType::U8, n)?);
                let y = g.alloc(self.dtype, n)?;
                g.dropout(0.4, Rng::new(3).at(stream, 1), x.view(), y.alias_mut(), Some(mask.alias_mut()))?;
                let out = out(0)?.reshape(&[n])?;
                g.dropout_bwd(0.4, DropoutMask::Saved(mask.view()), y.view(), out.into())
            }
            Node::Rounded(to) => {
                let half = g.alloc(to, n)?;
                g.cast(seen(0)?, half.alias_mut().reshape(&shape)?)?;
                g.cast(half.shaped(&shape)?, out(0)?)
            }
            Node::Fill(value) => g.fill(value, out(0)?),
            Node::Copy => g.copy(dense(0)?.view(), out(0)?.reshape(&[n])?),
            Node::RowMeans => {
                let mean = g.alloc(self.dtype, shape[0])?;
                g.reduce(Reduce::Mean, &[1], seen(0)?, mean.alias_mut().reshape(&[shape[0], 1])?)?;
                g.strided_copy(mean.view().reshape(&[shape[0], 1])?.broadcast_to(&shape)?, out(0)?.into())
            }
        }
    }
}

fn bytes(g: &Gpu, list: &[&Buffer]) -> Vec<Vec<u8>> {
    let read = |b: &&Buffer| {
        let mut bytes = vec![0; b.len() * b.dtype().size()];
        g.read_bytes(b.view(), &mut bytes).unwrap();
        bytes
    };
    list.iter().map(read).collect()
}

/// The bits that calls and their replay in this way give after so many runs; what was recorded.
fn compare(g: &Gpu, p: &Program, mode: &str, runs: usize) -> GraphInfo {
    let (eager, replayed) = (p.start(g).unwrap(), p.start(g).unwrap());
    let mut left = vec![];
    for _ in 0..runs {
        left = p.run(g, &eager).unwrap();
    }
    g.pin_variant("capture_calls", Some(mode)).unwrap();
    let (graph, got) = g.capture(|g| p.run(g, &replayed)).unwrap();
    g.pin_variant("capture_calls", None).unwrap();
    (0..runs).for_each(|_| graph.replay().unwrap());
    let all = |a: &[Buffer], b: &[Buffer]| bytes(g, &a.iter().chain(b).collect::<Vec<_>>());
    let (want, got) = (all(&eager, &left), all(&replayed, &got));
    for (i, (want, got)) in want.iter().zip(&got).enumerate() {
        let at = want.iter().zip(got).position(|(a, b)| a != b);
        assert_eq!(at, None, "{} {mode}: byte of buffer {i} of {p:#?}\n{:#?}", g.id(), graph.info());
    }
    graph.info().clone()
}

#[test]
fn random_graphs_give_the_bits_of_their_calls() {
    for g in recording_backends() {
        let (mut fused, mut ran) = (0, 0);
        let programs = [
            (DType::F32, [12, 24], 200),
            (DType::F32, [7, 13], 100),
            (DType::F16, [12, 24], 60),
            (DType::Bf16, [7, 13], 60),
            (DType::F64, [12, 24], 60),
        ];
        for (dtype, shape, nodes) in programs {
            if dtype == DType::F64 && !g.caps().f64 {
                continue;
            }
            let p = valid(&g, 7 + shape[0] as u64, dtype, shape, nodes);
            for mode in ["plain", "fused", "parallel"] {
                let info = compare(&g, &p, mode, 2);
                let made = info.launches + info.copies;
                let GraphInfo { recorded, fused: several, unread, .. } = info;
                println!(
                    "{dtype} {shape:?} {mode}: {made} of {recorded} calls, {several} fused, {unread} unread"
                );
                (fused, ran) = (fused + several, ran + made);
                assert!(if mode == "plain" { made == recorded } else { made * 2 < recorded });
            }
        }
        println!("{}: {ran} launches, {fused} calls were fused", g.id());
        assert!(fused > 100);
    }
}

/// A random graph of so many nodes without those that the operations refuse.
fn valid(g: &Gpu, seed: u64, dtype: DType, shape: [usize; 2], nodes: usize) -> Program {
    let mut p = Program::random(seed, dtype, shape, nodes);
    let outside = p.start(g).unwrap();
    let (n, mut own) = (shape[0] * shape[1], Vec::<(usize, Buffer)>::new());
    let steps = std::mem::take(&mut p.steps);
    for step in steps {
        for b in step.to {
            if b >= OUTSIDE && own.iter().all(|(i, _)| *i != b) {
                own.push((b, g.alloc(dtype, n).unwrap()));
            }
        }
        let known = step.from.iter().all(|(b, _)| *b < OUTSIDE || own.iter().any(|(i, _)| i == b));
        let find = |b: usize| outside.get(b).unwrap_or_else(|| &own.iter().find(|(i, _)| *i == b).unwrap().1);
        if known && p.step(g, &step, &find).is_ok() {
            p.steps.push(step);
        }
    }
    p
}

/// What is recorded on the mock driver, where every kernel compiles: names of the calls, and pointers that each launch takes.
fn on_mock(mode: &str, calls: impl FnOnce(&Engine) -> trefoil::Result<()>) -> (GraphInfo, Vec<usize>) {
    let mut caps = Caps::new(DeviceId::new(BackendKind::Custom, 0), "mock", "mock");
    (caps.compute_units, caps.device_addresses) = (132, true);
    let d = Arc::new(MockDriver::new(caps));
    let e = Engine::new(d.clone()).unwrap();
    e.pin_variant("capture_calls", Some(mode)).unwrap();
    let (graph, ()) = e.capture(calls).unwrap();
    d.clear();
    graph.replay().unwrap();
    let pointers = |c: &Call| match c {
        Call::Launch { args, .. } => {
            Some(args.iter().filter(|a| matches!(a, OwnedArg::Mem(Some(_)))).count())
        }
        _ => None,
    };
    (graph.info().clone(), d.calls().iter().filter_map(pointers).collect())
}

const N: usize = 1000;

fn buffers<const K: usize>(e: &Engine) -> [Buffer; K] {
    std::array::from_fn(|_| e.alloc(DType::F32, N).unwrap())
}

#[test]
fn an_intermediate_vanishes_unless_somebody_else_wants_it() {
    let chain = |reader: bool, held: bool| {
        let mut kept = None;
        let (info, pointers) = on_mock("fused", |e| {
            let [x, z, sum] = buffers(e);
            kept = Some([x, z, sum]);
            let [x, z, sum] = kept.as_ref().unwrap();
            let y = e.alloc(DType::F32, N)?;
            e.unary(Unary::Neg, x.view(), y.alias_mut())?;
            e.unary(Unary::Sin, y.view(), z.alias_mut())?;
            if reader {
                e.reduce(Reduce::Sum, &[0], y.view(), sum.alias_mut().range(0, 1)?)?;
            }
            if held {
                std::mem::forget(y);
            }
            Ok(())
        });
        (info, pointers[0])
    };
    let block = 4096;
    let (info, pointers) = chain(false, false);
    assert_eq!((info.recorded, info.fused, info.launches, pointers), (2, 2, 1, 2));
    assert_eq!(info.calls, ["fused(unary_flat, unary_flat)"]);
    assert_eq!(info.bytes, 3 * block, "x, z and the sum alone");
    // A second reader, or a buffer that lives on: it is stored as well.
    let (info, pointers) = chain(true, false);
    assert_eq!((info.fused, pointers), (2, 3));
    assert_eq!(info.calls[0], "fused(unary_flat, unary_flat)");
    assert!(info.calls.len() > 1 && info.calls[1].starts_with("reduce"), "{:?}", info.calls);
    let (info, pointers) = chain(false, true);
    assert_eq!((info.fused, pointers), (2, 3));
}

#[test]
fn small_calls_of_several_sizes_are_one_launch() {
    let cleared = |sizes: &'static [usize]| {
        on_mock("fused", move |e| {
            for &n in sizes {
                let b = e.alloc(DType::F32, n)?;
                e.fill(0.0, b.alias_mut())?;
                e.unary(Unary::Exp, b.view(), b.alias_mut())?;
                std::mem::forget(b);
            }
            Ok(())
        })
    };
    let (info, pointers) = cleared(&[N, 10, 256, 10]);
    assert_eq!((info.recorded, info.fused, info.launches, pointers), (8, 8, 1, vec![4]));
    // Large ones share no launch with others, and a launch has four sizes at most.
    let (info, _) = cleared(&[N, 1 << 20, 10]);
    assert_eq!((info.fused, info.launches), (6, 2));
    let (info, _) = cleared(&[1, 2, 3, 4, 5, 6]);
    assert_eq!((info.fused, info.launches), (12, 2));
}

#[test]
fn calls_that_may_not_be_crossed_keep_others_apart() {
    // x is overwritten between the two.
    let (info, _) = on_mock("fused", |e| {
        let ([x, other, z], y) = (buffers(e), e.alloc(DType::F32, N)?);
        e.unary(Unary::Neg, x.view(), y.alias_mut())?;
        e.copy(other.view(), x.alias_mut())?;
        e.unary(Unary::Sin, y.view(), z.alias_mut())?;
        e.copy(z.view(), x.alias_mut())?;
        std::mem::forget([x, other, z]);
        Ok(())
    });
    assert_eq!((info.fused, info.unread, info.launches, info.copies), (0, 0, 2, 2));
    // The second call reads neighbours of what the first writes.
    let (info, _) = on_mock("fused", |e| {
        let ([x, z], y) = (buffers(e), e.alloc(DType::F32, N + 1)?);
        e.unary(Unary::Neg, x.view(), y.alias_mut().range(0, N)?)?;
        e.unary(Unary::Sin, y.view().range(1, N)?, z.alias_mut())?;
        std::mem::forget([x, z]);
        Ok(())
    });
    assert_eq!((info.fused, info.launches), (0, 2));
    // A call that finds its operands in a table reads and writes them.
    let rule = OptimRule::Sgd { wd: 0.0 };
    let (info, _) = on_mock("fused", |e| {
        let ([x, w, v], gradient) = (buffers(e), e.alloc(DType::F32, N)?);
        e.unary(Unary::Neg, x.view(), gradient.alias_mut())?;
        let slots = [ParamSlot::new(w.alias_mut(), gradient.view()), ParamSlot::new(v.alias_mut(), x.view())];
        e.optimizer_step(&rule, &OptimStep::host(0.1, 1), &mut { slots })?;
        e.unary(Unary::Sin, w.view(), gradient.alias_mut())?;
        e.copy(gradient.view(), w.alias_mut())?;
        std::mem::forget([x, w, v]);
        Ok(())
    });
    assert_eq!((info.fused, info.unread, info.launches, info.copies), (0, 0, 3, 1));
}

#[test]
fn what_nobody_reads_is_not_computed() {
    let calls = |e: &Engine| {
        let ([x, z], [y, t]) = (buffers(e), buffers(e));
        e.reduce(Reduce::Sum, &[0], x.view(), y.alias_mut().range(0, 1)?)?;
        e.unary(Unary::Neg, y.view(), t.alias_mut())?;
        e.unary(Unary::Exp, x.view(), z.alias_mut())?;
        std::mem::forget([x, z]);
        Ok(())
    };
    let (info, _) = on_mock("fused", calls);
    assert_eq!((info.unread, info.calls.as_slice()), (info.recorded - 1, &["unary_flat".to_string()][..]));
    assert_eq!(info.bytes, 2 * 4096);
    let (info, _) = on_mock("plain", calls);
    assert_eq!((info.unread, info.launches), (0, info.recorded));
    assert!(info.bytes >= 4 * 4096);
}

#[test]
fn independent_calls_run_on_streams_of_their_own() {
    let d = Arc::new(MockDriver::default());
    d.have_graphs(true);
    let e = Engine::new(d.clone()).unwrap();
    let [x, a, b, c] = buffers(&e);
    let calls = |e: &Engine| {
        e.reduce(Reduce::Sum, &[0], x.view(), a.alias_mut().range(0, 1)?)?;
        e.reduce(Reduce::Max, &[0], x.view(), b.alias_mut().range(0, 1)?)?;
        e.binary(Binary::Sub, a.view(), b.view(), c.alias_mut())
    };
    let streams = |mode: &str| {
        e.pin_variant("capture_calls", Some(mode)).unwrap();
        d.clear();
        let (graph, ()) = e.capture(calls).unwrap();
        assert_eq!(graph.info().queued_by_host, None);
        assert_eq!(d.live_handles().0, 1, "streams of the recording are gone");
        let calls = d.calls();
        let stream = |c: &Call| if let Call::Launch { stream, .. } = c { Some(*stream) } else { None };
        let launched: Vec<_> = calls.iter().filter_map(stream).collect();
        let begun = calls.iter().find_map(|c| if let Call::BeginGraph(s) = c { Some(*s) } else { None });
        assert_eq!(begun, launched.first().copied());
        // Whoever joins waits for the other.
        let waits = |s| calls.iter().filter(|c| matches!(c, Call::Wait(w, _) if *w == s)).count();
        (launched.clone(), launched.into_iter().map(waits).collect::<Vec<_>>())
    };
    let (one, waits) = streams("fused");
    assert!(one.iter().all(|s| *s == one[0]) && waits == vec![0; one.len()]);
    let (two, waits) = streams("parallel");
    assert_eq!(two.len(), one.len());
    let last = two.len() - 1;
    assert!(two.iter().any(|s| *s != two[0]), "{two:?}");
    assert!(waits[last] > 0 && (two[last] == two[0] || two[last] == two[last - 1]), "{two:?} {waits:?}");
}
