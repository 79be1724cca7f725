//! Recorded training steps: a small network, and optimizers whose numbers lie on the device.

use std::sync::Arc;

use crate::common::backends;
use trefoil::ops::activation::Activation;
use trefoil::ops::elementwise::Binary;
use trefoil::ops::gemm::{Gemm, GemmIo};
use trefoil::ops::optimizer::{AdaptiveRule, ClipNorm, OptimRule, ParamSlot, STEP_NUMBERS, Scalar, Step};
use trefoil::ops::random::{Distribution, Rng};
use trefoil::ops::softmax::Softmax;
use trefoil::prelude::*;
use trefoil::{BackendExt, Buffer, DType, GpuError, IGpuBackend};

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
    pub(super) fn new(g: &Arc<dyn IGpuBackend>) -> trefoil::Result<Net> {
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

    pub(super) fn bytes(&self, g: &Arc<dyn IGpuBackend>) -> Vec<Vec<u8>> {
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
