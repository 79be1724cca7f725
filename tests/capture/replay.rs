//! Replays: what they take and keep, indices out of range, several threads, operands that alias.

use std::sync::Arc;
use std::time::Duration;

use crate::common::backends;
use crate::{bytes, is_cpu};
use trefoil::ops::core::Graph;
use trefoil::ops::elementwise::{Binary, Unary};
use trefoil::ops::rnn::{Recurrence, RnnCell, RnnFwd, RnnWeights};
use trefoil::ops::softmax::Softmax;
use trefoil::prelude::*;
use trefoil::{BackendExt, Buffer, DType, GpuError, IGpuBackend, Layout};

/// A graph of a few small launches on buffers that it keeps.
pub(super) fn small(g: &Arc<dyn IGpuBackend>) -> (Graph, Buffer, Buffer) {
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

/// Both directions of an LSTM over 5 steps, 40 rows and 64 columns: on CUDA from sm_90 on one kernel each, whose blocks wait for each other.
struct BothDirections {
    x: Buffer,
    w: Buffer,
    y: [Buffer; 2],
}

impl BothDirections {
    fn new(g: &dyn IGpuBackend) -> Self {
        let mut draw = Draw(3);
        let mut upload = |n: usize| {
            let numbers: Vec<f32> = (0..n).map(|_| draw.below(1000) as f32 / 4000.0 - 0.125).collect();
            g.upload(&numbers).unwrap()
        };
        let y = [(); 2].map(|()| g.alloc(DType::F32, 5 * 40 * 64).unwrap());
        BothDirections { x: upload(5 * 40 * 64), w: upload(256 * 64), y }
    }

    fn run(&self, g: &dyn IGpuBackend) -> trefoil::Result<()> {
        for (y, reverse) in self.y.iter().zip([false, true]) {
            let weights = RnnWeights::new(self.w.shaped(&[256, 64])?, self.w.shaped(&[256, 64])?);
            let io = RnnFwd::new(self.x.shaped(&[5, 40, 64])?, weights, y.alias_mut().reshape(&[5, 40, 64])?);
            g.rnn(RnnCell::Lstm, &Recurrence::new().reverse(reverse), io)?;
        }
        Ok(())
    }

    fn values(&self, g: &dyn IGpuBackend) -> [Vec<f32>; 2] {
        [0, 1].map(|i| g.download::<f32>(self.y[i].view()).unwrap())
    }
}

#[test]
fn kernels_whose_blocks_wait_for_each_other_run_beside_others() {
    for g in backends() {
        let (eager, captured) = (BothDirections::new(&*g), BothDirections::new(&*g));
        eager.run(&*g).unwrap();
        let want = eager.values(&*g);
        assert!(want[0] != want[1] && want.iter().flatten().all(|v| v.is_finite()), "{}", g.id());
        let (graph, ()) = g.capture(|g| captured.run(&**g)).unwrap();
        std::thread::scope(|s| {
            s.spawn(|| {
                let other = g.fork_stream().unwrap();
                let beside = BothDirections::new(&*other);
                (0..20).for_each(|_| beside.run(&*other).unwrap());
                assert_eq!(beside.values(&*other), want, "{}", g.id());
            });
            (0..20).for_each(|_| graph.replay().unwrap());
        });
        assert_eq!(captured.values(&*g), want, "{}", g.id());
    }
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
