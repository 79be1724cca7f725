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
    each_part::<f32, G, f32>(op, p, rule.states().len(), &|part, g| part.update_in_f32(g, rule, &by))
}

/// A step for parameters, gradients and states of these types.
fn step_of<W: HostElement, G: HostElement, S: HostElement>(
    op: &'static str,
    rule: &OptimRule,
    p: &ParamSlot<'_>,
    by: Factors,
) -> Result<()> {
    let count = rule.states().len();
    each_part::<W, G, S>(op, p, count, &|part, g| part.update(g, count, &|wide| wide.update(rule, &by)))
}

/// Elements of a part that are widened to f64 at a time: parameters, gradients and states.
struct Wide {
    w: [f64; WIDE],
    g: [f64; WIDE],
    states: [[f64; WIDE]; STATES],
}

impl Wide {
    /// Updates all elements. Not generic: the rules are compiled for f64 alone, and not for every type of parameters and states.
    fn update(&mut self, rule: &OptimRule, by: &Factors) {
        // The rule as a literal of its variant: the choice among all rules is made here, not for each element.
        match *rule {
            OptimRule::Sgd { wd } => self.each(&OptimRule::Sgd { wd }, by),
            OptimRule::Momentum { mu, damp, wd, nesterov } => {
                self.each(&OptimRule::Momentum { mu, damp, wd, nesterov }, by)
            }
            OptimRule::Adam { b1, b2, eps, wd } => self.each(&OptimRule::Adam { b1, b2, eps, wd }, by),
            OptimRule::AdamW { b1, b2, eps, wd } => self.each(&OptimRule::AdamW { b1, b2, eps, wd }, by),
            rule => self.each(&rule, by),
        }
    }

    #[inline(always)]
    fn each(&mut self, rule: &OptimRule, by: &Factors) {
        for i in 0..WIDE {
            let mut s = std::array::from_fn(|k| self.states[k][i]);
            self.w[i] =
                update(rule, self.w[i], by.unscale * self.g[i], &mut s, by.lr, by.t, by.ratio_and_bias);
            (0..STATES).for_each(|k| self.states[k][i] = s[k]);
        }
    }
}

/// Elements of a part that are widened to f64 at a time.
const WIDE: usize = 64;

/// Updates a part by its gradient, of which it takes as many elements as the part has.
type OfPart<'f, W, G, S> = dyn Fn(&mut Part<'_, W, S>, &[G]) + Sync + 'f;

/// Calls `f(part, gradient)` for the parts of a slot with so many states. A reference, so that this is not compiled for every rule.
fn each_part<W: HostElement, G: HostElement, S: HostElement>(
    op: &'static str,
    p: &ParamSlot<'_>,
    count: usize,
    f: &OfPart<'_, W, G, S>,
) -> Result<()> {
    let wrong = |v: &ViewMut<'_>| wrong_storage(op, v.dtype());
    let g = Values::<G>::new(op, p.g, &[])?;
    let mut guard = write(op, &p.w)?;
    let w = part_mut::<W>(&mut guard, &p.w).ok_or_else(|| wrong(&p.w))?;
    let mut guards = p.state.iter().flatten().take(count).map(|v| Ok((write(op, v)?, v))).try_vec_ok()?;
    let mut states: Vec<&mut [S]> =
        guards.iter_mut().map(|(guard, v)| part_mut(guard, v).ok_or_else(|| wrong(v))).try_vec_ok()?;
    let mut copy_guard = p.copy.as_ref().map(|c| write(op, c)).transpose()?;
    let mut copy = match (&mut copy_guard, &p.copy) {
        (Some(guard), Some(v)) => Some(Copy::of(guard, v).ok_or_else(|| wrong(v))?),
        _ => None,
    };
    let parts = parts::<W, S>(w, &mut states, &mut copy)?;
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

/// What one thread takes of a slot's tensors; states that the rule has not are empty.
struct Part<'a, W, S> {
    w: &'a mut [W],
    states: [&'a mut [S]; STATES],
    copy: Option<Copy<'a>>,
}

/// The tensors in parts of [`CHUNK`] elements.
fn parts<'a, W, S>(
    w: &'a mut [W],
    states: &mut [&'a mut [S]],
    copy: &mut Option<Copy<'a>>,
) -> Result<Vec<Part<'a, W, S>>> {
    w.chunks_mut(CHUNK)
        .map(|w| {
            let n = w.len();
            let part = |i: usize| states.get_mut(i).and_then(|s| s.split_off_mut(..n)).unwrap_or_default();
            let states = std::array::from_fn(part);
            Part { w, states, copy: copy.as_mut().map(|c| c.split_off(n)) }
        })
        .try_vec()
}

impl<W: HostElement, S: HostElement> Part<'_, W, S> {
    /// Changes the part by `f`, in f64; `count` states are stored.
    fn update<G: HostElement>(&mut self, g: &[G], count: usize, f: &dyn Fn(&mut Wide)) {
        let mut wide = Wide { w: [0.0; WIDE], g: [0.0; WIDE], states: [[0.0; WIDE]; STATES] };
        for at in (0..self.w.len()).step_by(WIDE) {
            let part = at..self.w.len().min(at + WIDE);
            let w = &mut self.w[part.clone()];
            wide.w.iter_mut().zip(&*w).for_each(|(to, x)| *to = x.to_f64());
            wide.g.iter_mut().zip(&g[part.clone()]).for_each(|(to, x)| *to = x.to_f64());
            for (to, s) in wide.states.iter_mut().zip(&self.states).take(count) {
                to.iter_mut().zip(&s[part.clone()]).for_each(|(to, x)| *to = x.to_f64());
            }
            // As if they had not been there before.
            wide.states[count..].iter_mut().for_each(|s| s.fill(0.0));
            f(&mut wide);
            w.iter_mut().zip(&wide.w).for_each(|(w, &x)| *w = W::from_f64(x));
            for (from, s) in wide.states.iter().zip(&mut self.states).take(count) {
                s[part.clone()].iter_mut().zip(from).for_each(|(s, &x)| *s = S::from_f64(x));
            }
            if let Some(copy) = &mut self.copy {
                copy.store(at, &wide.w[..part.len()]);
            }
        }
    }
}

impl Part<'_, f32, f32> {
    fn update_in_f32<G: Narrow>(&mut self, g: &[G], rule: &OptimRule, by: &Factors) {
        for at in (0..self.w.len()).step_by(ROOM) {
            let part = at..self.w.len().min(at + ROOM);
            let mut room = [0.0; ROOM];
            let states = self.states.each_mut().map(|s| s.get_mut(part.clone()).unwrap_or_default());
            let (w, g) = (&mut self.w[part.clone()], G::widened(&g[part], &mut room));
            vectorized::update(rule, by, w, g, states);
            if let Some(copy) = &mut self.copy {
                copy.store(at, w);
            }
        }
    }
}
