//! Optimizer steps in place: each tensor is read and written once, in parts on several threads.

use std::sync::{Mutex, PoisonError};

use crate::buffer::ViewMut;
use crate::cpu::optimizer::{update, vectorized};
use crate::cpu::scratch::*;
use crate::cpu::values::{CHUNK, Values, each_index};
use crate::cpu::vector::{Narrow, ROOM};
use crate::cpu::{HostElement, write, wrong_storage};
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::optimizer::*;

/// What an element's update needs beside its own numbers.
#[derive(Clone, Copy)]
pub(super) struct Factors {
    pub(super) lr: f64,
    pub(super) t: f64,
    pub(super) unscale: f64,
    /// The tensor's trust ratio, and what [`bias`](super::bias) gives.
    pub(super) ratio_and_bias: (f64, [f64; 2]),
}

/// Updates a tensor and its states in place, in f32 where `in_f32` holds. `false`, and nothing is done, where tensors of the slot share a block: a
/// block is locked once.
pub(super) fn in_place(
    op: &'static str,
    rule: &OptimRule,
    p: &ParamSlot<'_>,
    by: Factors,
    in_f32: bool,
) -> Result<bool> {
    let blocks = [Some(&p.w), p.copy.as_ref()].into_iter().chain(p.state.iter().map(Option::as_ref));
    let mut ids: Vec<u64> = blocks.flatten().map(|v| v.block().id()).chain([p.g.block().id()]).try_vec()?;
    let count = ids.len();
    ids.sort_unstable();
    ids.dedup();
    if ids.len() < count {
        return Ok(false);
    }
    match (p.w.dtype(), p.g.dtype()) {
        (DType::F32, DType::F32) if in_f32 => step_in_f32::<f32>(op, rule, p, by)?,
        (DType::F32, DType::F16) if in_f32 => step_in_f32::<half::f16>(op, rule, p, by)?,
        (DType::F32, DType::Bf16) if in_f32 => step_in_f32::<half::bf16>(op, rule, p, by)?,
        (DType::F32, DType::F32) => step_of::<f32, f32, f32>(op, rule, p, by)?,
        (DType::F32, DType::F16) => step_of::<f32, half::f16, f32>(op, rule, p, by)?,
        (DType::F32, DType::Bf16) => step_of::<f32, half::bf16, f32>(op, rule, p, by)?,
        (DType::F16, _) => step_of::<half::f16, half::f16, f32>(op, rule, p, by)?,
        (DType::Bf16, _) => step_of::<half::bf16, half::bf16, f32>(op, rule, p, by)?,
        _ => step_of::<f64, f64, f64>(op, rule, p, by)?,
    }
    Ok(true)
}

/// A step in f32 of f32 parameters and states; for the rules that [`vectorized`] serves.
fn step_in_f32<G: Narrow>(op: &'static str, rule: &OptimRule, p: &ParamSlot<'_>, by: Factors) -> Result<()> {
    macro_rules! parts {
        ($states:literal) => {
            each_part::<f32, G, f32, $states>(op, p, &|part, g| part.update_in_f32(g, rule, &by))
        };
    }
    match rule.states().len() {
        0 => parts!(0),
        1 => parts!(1),
        _ => parts!(2),
    }
}

/// A step for parameters, gradients and states of these types.
fn step_of<W: HostElement, G: HostElement, S: HostElement>(
    op: &'static str,
    rule: &OptimRule,
    p: &ParamSlot<'_>,
    by: Factors,
) -> Result<()> {
    let Factors { lr, t, unscale, ratio_and_bias } = by;
    // The rule as a literal of its variant: the choice among all rules is made here, not for each element.
    macro_rules! elements {
        ($states:literal, $rule:expr) => {
            each_part::<W, G, S, $states>(op, p, &|part, g| {
                part.update(g, |w, g, s| update(&$rule, w, unscale * g, s, lr, t, ratio_and_bias))
            })
        };
    }
    match *rule {
        OptimRule::Sgd { wd } => elements!(0, OptimRule::Sgd { wd }),
        OptimRule::Momentum { mu, damp, wd, nesterov } => {
            elements!(1, OptimRule::Momentum { mu, damp, wd, nesterov })
        }
        OptimRule::Adam { b1, b2, eps, wd } => elements!(2, OptimRule::Adam { b1, b2, eps, wd }),
        OptimRule::AdamW { b1, b2, eps, wd } => elements!(2, OptimRule::AdamW { b1, b2, eps, wd }),
        rule => match rule.states().len() {
            0 => elements!(0, rule),
            1 => elements!(1, rule),
            2 => elements!(2, rule),
            3 => elements!(3, rule),
            _ => elements!(4, rule),
        },
    }
}

/// Elements of a part that are widened to f64 at a time.
const WIDE: usize = 64;

/// Updates a part by its gradient, of which it takes as many elements as the part has.
type OfPart<'f, W, G, S, const N: usize> = dyn Fn(&mut Part<'_, W, S, N>, &[G]) + Sync + 'f;

/// Calls `f(part, gradient)` for the parts of a slot with N states. A reference, so that this is not compiled for every rule.
fn each_part<W: HostElement, G: HostElement, S: HostElement, const N: usize>(
    op: &'static str,
    p: &ParamSlot<'_>,
    f: &OfPart<'_, W, G, S, N>,
) -> Result<()> {
    let wrong = |v: &ViewMut<'_>| wrong_storage(op, v.dtype());
    let g = Values::<G>::new(op, p.g, &[])?;
    let mut guard = write(op, &p.w)?;
    let w = part_mut::<W>(&mut guard, &p.w).ok_or_else(|| wrong(&p.w))?;
    let mut guards = p.state.iter().flatten().take(N).map(|v| Ok((write(op, v)?, v))).try_vec_ok()?;
    let mut states: Vec<&mut [S]> =
        guards.iter_mut().map(|(guard, v)| part_mut(guard, v).ok_or_else(|| wrong(v))).try_vec_ok()?;
    let mut copy_guard = p.copy.as_ref().map(|c| write(op, c)).transpose()?;
    let mut copy = match (&mut copy_guard, &p.copy) {
        (Some(guard), Some(v)) => Some(Copy::of(guard, v).ok_or_else(|| wrong(v))?),
        _ => None,
    };
    let parts = parts::<W, S, N>(w, &mut states, &mut copy)?;
    // Each is locked once, by the thread that updates it.
    let parts: Vec<_> = parts.into_iter().map(Mutex::new).try_vec()?;
    each_index(parts.len(), &|i| {
        f(&mut parts[i].lock().unwrap_or_else(PoisonError::into_inner), &g[i * CHUNK..])
    });
    Ok(())
}

/// The elements of a contiguous view.
fn part_mut<'a, T: HostElement>(
    data: &'a mut crate::buffer::HostData,
    v: &ViewMut<'_>,
) -> Option<&'a mut [T]> {
    let l = v.layout();
    T::slice_mut(data)?.get_mut(l.offset()..l.offset() + l.numel())
}

/// The 16-bit copy of a parameter.
enum Copy<'a> {
    F16(&'a mut [half::f16]),
    Bf16(&'a mut [half::bf16]),
}

impl<'a> Copy<'a> {
    fn of(data: &'a mut crate::buffer::HostData, v: &ViewMut<'_>) -> Option<Self> {
        match v.dtype() {
            DType::F16 => part_mut(data, v).map(Copy::F16),
            _ => part_mut(data, v).map(Copy::Bf16),
        }
    }

    /// Takes the first `n` elements away.
    fn split_off(&mut self, n: usize) -> Copy<'a> {
        fn first<'a, T>(all: &mut &'a mut [T], n: usize) -> &'a mut [T] {
            all.split_off_mut(..n).unwrap_or_default()
        }
        match self {
            Copy::F16(all) => Copy::F16(first(all, n)),
            Copy::Bf16(all) => Copy::Bf16(first(all, n)),
        }
    }

    fn store<F: HostElement>(&mut self, at: usize, values: &[F]) {
        fn each<T: HostElement>(to: &mut [T], values: &[impl HostElement]) {
            to.iter_mut().zip(values).for_each(|(y, &x)| *y = T::from_f64(x.to_f64()));
        }
        match self {
            Copy::F16(all) => each(&mut all[at..], values),
            Copy::Bf16(all) => each(&mut all[at..], values),
        }
    }
}

/// What one thread takes of a slot's tensors.
struct Part<'a, W, S, const N: usize> {
    w: &'a mut [W],
    states: [&'a mut [S]; N],
    copy: Option<Copy<'a>>,
}

/// The tensors in parts of [`CHUNK`] elements.
fn parts<'a, W, S, const N: usize>(
    w: &'a mut [W],
    states: &mut [&'a mut [S]],
    copy: &mut Option<Copy<'a>>,
) -> Result<Vec<Part<'a, W, S, N>>> {
    w.chunks_mut(CHUNK)
        .map(|w| {
            let n = w.len();
            let states = std::array::from_fn(|i| states[i].split_off_mut(..n).unwrap_or_default());
            Part { w, states, copy: copy.as_mut().map(|c| c.split_off(n)) }
        })
        .try_vec()
}

impl<W: HostElement, S: HostElement, const N: usize> Part<'_, W, S, N> {
    fn update<G: HostElement>(&mut self, g: &[G], f: impl Fn(f64, f64, &mut [f64; STATES]) -> f64) {
        for at in (0..self.w.len()).step_by(WIDE) {
            let n = WIDE.min(self.w.len() - at);
            let mut new = [0.0; WIDE];
            for i in 0..n {
                let mut s = [0.0; STATES];
                (0..N).for_each(|k| s[k] = self.states[k][at + i].to_f64());
                new[i] = f(self.w[at + i].to_f64(), g[at + i].to_f64(), &mut s);
                (0..N).for_each(|k| self.states[k][at + i] = S::from_f64(s[k]));
            }
            self.w[at..at + n].iter_mut().zip(&new).for_each(|(w, &x)| *w = W::from_f64(x));
            if let Some(copy) = &mut self.copy {
                copy.store(at, &new[..n]);
            }
        }
    }
}

impl<const N: usize> Part<'_, f32, f32, N> {
    fn update_in_f32<G: Narrow>(&mut self, g: &[G], rule: &OptimRule, by: &Factors) {
        for at in (0..self.w.len()).step_by(ROOM) {
            let part = at..self.w.len().min(at + ROOM);
            let mut room = [0.0; ROOM];
            let states = self.states.each_mut().map(|s| &mut s[part.clone()]);
            let (w, g) = (&mut self.w[part.clone()], G::widened(&g[part], &mut room));
            vectorized::update(rule, by, w, g, states);
            if let Some(copy) = &mut self.copy {
                copy.store(at, w);
            }
        }
    }
}
