//! Contiguous memory for parameters, their gradients and optimizer state.

pub(super) mod active;
mod copies;
pub(super) mod packed;

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use trefoil::{BackendExt, Buffer, DType, GpuError, ViewMut};

use self::packed::Packed;
use crate::core::error::{NnError, Result};
use crate::core::limits;
use crate::core::tensor::{Device, Storage, Tensor, contiguous};
use crate::module::Param;
use crate::train::optim::collected::{collect_in, grad_memory};
use crate::train::optim::numbers::StepNumbers;
use crate::train::optim::recorded::Missed;

/// Every parameter starts at a multiple of this many elements, so that 16-byte accesses stay aligned. The gaps are zero and stay zero.
const ALIGN: usize = 64;

struct Entry {
    name: String,
    param: Param,
    storage: Arc<Storage>,
    start: usize,
    /// Steps of the optimizer in which it got no gradient.
    missed: Missed,
}

impl Entry {
    /// Start and length.
    fn range(&self) -> (usize, usize) {
        (self.start, self.storage.len())
    }

    fn missed(&self) -> u64 {
        self.missed.load(Ordering::Relaxed)
    }
}

/// Parameters of one device and dtype, moved into one buffer, with gradients and states in buffers of the same arrangement. One launch
/// then updates, clips or clears all of them.
pub(crate) struct Arena {
    device: Device,
    values: Arc<Buffer>,
    grads: Arc<Buffer>,
    states: Vec<Arc<Buffer>>,
    /// f32 originals of 16-bit values.
    masters: Option<Arc<Buffer>>,
    /// Exponential moving average of the values, in the accumulator's dtype.
    average: Option<Arc<Buffer>>,
    /// Numbers of a rule that keeps some between steps.
    memory: Option<Arc<Buffer>>,
    /// Moments in fewer bits, in place of `states`.
    packed: Option<Packed>,
    /// Numbers of recorded steps.
    numbers: Option<StepNumbers>,
    /// What the weights were before those for evaluation took their place.
    held: Mutex<Option<Buffer>>,
    entries: Vec<Entry>,
    // Alive as long as the arena: storages remember it as their owner.
    _token: Arc<()>,
}

/// The parameters among these whose memory is the same.
fn tied_to<'e>(others: &'e [Entry], e: &Entry) -> impl Iterator<Item = &'e Param> {
    let start = e.start;
    others.iter().filter(move |d| d.start == start).map(|d| &d.param)
}

impl Arena {
    /// Moves parameters of one device and dtype. Existing tensors and gradients keep their contents. Parameters that share memory move
    /// once. Errors: a parameter that is a view, is frozen, or belongs to another living optimizer; nothing is moved then.
    pub(crate) fn new(params: Vec<(String, Param)>, states: usize) -> Result<Option<Arena>> {
        let Some((_, first)) = params.first() else { return Ok(None) };
        let (device, dtype) = (first.get().device().clone(), first.get().dtype());
        let token = Arc::new(());
        let fail = |name: &str, what: &str| NnError::Param { name: name.into(), what: what.into() };

        let mut entries: Vec<Entry> = vec![];
        let mut end = 0;
        for (name, param) in params {
            let t = param.get();
            if !t.requires_grad() {
                return Err(fail(&name, "does not require a gradient"));
            }
            if !t.is_contiguous() || t.storage().len() != t.numel() {
                return Err(fail(
                    &name,
                    "is a view of a larger tensor; give the optimizer a tensor of its own",
                ));
            }
            let tied = entries.iter().find(|e| Arc::ptr_eq(&e.storage, t.storage())).map(|e| e.start);
            if tied.is_none() && t.storage().is_claimed() {
                return Err(fail(&name, "belongs to another optimizer; drop that one first"));
            }
            let start = tied.unwrap_or(end);
            if tied.is_none() {
                end += t.numel().next_multiple_of(ALIGN);
            }
            entries.push(Entry {
                name,
                storage: t.storage().clone(),
                param,
                start,
                missed: Missed::default(),
            });
        }

        let values = Arc::new(device.zeros(dtype, end)?);
        let grads = Arc::new(device.zeros(dtype, end)?);
        let states = (0..states)
            .map(|_| Ok(Arc::new(device.zeros(dtype.accumulator(), end)?)))
            .collect::<Result<_>>()?;
        for (i, e) in entries.iter().enumerate() {
            let tied = entries[..i].iter().any(|d| d.start == e.start && Arc::ptr_eq(&d.storage, &e.storage));
            if !tied {
                let t = e.param.get();
                let (src, dst) = (t.operand(), values.alias_mut().range(e.start, t.numel())?);
                device.copy(src.view()?.reshape(&[t.numel()])?, dst)?;
                e.storage.claim(&token);
                e.storage.relocate(values.clone(), e.start);
            }
            collect_in(&device, &grads, e.start, &e.param, tied_to(&entries[..i], e))?;
        }
        Ok(Some(Arena {
            device,
            values,
            grads,
            states,
            masters: None,
            average: None,
            memory: None,
            packed: None,
            numbers: None,
            held: Mutex::new(None),
            entries,
            _token: token,
        }))
    }

    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    /// Values and gradients as vectors, with the zeros between parameters.
    pub(crate) fn flat(&self) -> Result<(Tensor, Tensor)> {
        let whole = |b: &Arc<Buffer>| Tensor::over(&self.device, b, 0, &[b.len()]);
        Ok((whole(&self.values)?, whole(&self.grads)?))
    }

    /// Where each parameter starts in them.
    pub(crate) fn starts(&self) -> impl Iterator<Item = usize> {
        self.entries.iter().map(|e| e.start)
    }

    pub(crate) fn dtype(&self) -> DType {
        self.values.dtype()
    }

    /// Moves values, gradients and states to another device, through the host; the parameters refer to them there. Errors: as
    /// [`Arena::check`], and those of the new device; nothing is changed then.
    pub(crate) fn move_to(&mut self, device: &Device) -> Result<()> {
        self.check()?;
        let moved = |old: &Arc<Buffer>| -> Result<Arc<Buffer>> {
            let mut bytes = limits::zeroed(limits::tensor_bytes(old.dtype(), old.len())?)?;
            self.device.read_bytes(old.view(), &mut bytes)?;
            let new = device.alloc(old.dtype(), old.len())?;
            device.write_bytes(new.alias_mut(), &bytes)?;
            Ok(Arc::new(new))
        };
        let (values, grads) = (moved(&self.values)?, moved(&self.grads)?);
        let states = self.states.iter().map(&moved).collect::<Result<_>>()?;
        let [masters, average] = [&self.masters, &self.average].map(|b| b.as_ref().map(&moved).transpose());
        let (masters, average) = (masters?, average?);
        let mut placed: Vec<(usize, Tensor)> = vec![];
        let mut leaves: Vec<(Tensor, Tensor)> = vec![];
        for e in &self.entries {
            let old = e.param.get();
            let t = match placed.iter().find(|(start, _)| *start == e.start) {
                Some((_, first)) => first.relayout(*old.layout()),
                None => Tensor::over(device, &values, e.start, old.shape())?,
            };
            let grad = match leaves.iter().zip(&self.entries).find(|(_, d)| d.start == e.start) {
                Some(((_, first), _)) => first.relayout(contiguous("arena", old.shape())?),
                None => Tensor::over(device, &grads, e.start, old.shape())?,
            };
            placed.push((e.start, t.clone()));
            leaves.push((t, grad));
        }
        for (e, (t, grad)) in self.entries.iter_mut().zip(leaves) {
            let filled = e.param.get().edge().is_some_and(|edge| edge.node.has_grad());
            t.storage().claim(&self._token);
            e.storage = t.storage().clone();
            e.param.set(t);
            if let Some(edge) = e.param.get().edge() {
                edge.node.place_grad(grad, filled);
            }
        }
        (self.values, self.grads, self.states) = (values, grads, states);
        (self.masters, self.average, self.device) = (masters, average, device.clone());
        self.numbers = None;
        Ok(())
    }

    pub(crate) fn grads_mut(&self) -> ViewMut<'_> {
        self.grads.alias_mut()
    }

    /// Makes room for the numbers of recorded steps.
    pub(crate) fn keep_numbers(&mut self) -> Result<()> {
        if self.numbers.is_none() {
            self.numbers = Some(StepNumbers::new(&self.device, self.values.dtype().accumulator())?);
        }
        Ok(())
    }

    /// The numbers of recorded steps. Errors: a step that was never made as a plain call.
    pub(crate) fn numbers(&self) -> Result<&StepNumbers> {
        let why = "it was never made as a plain call before";
        Ok(self.numbers.as_ref().ok_or(GpuError::Capture { op: "Optimizer::step", why })?)
    }

    /// Makes room for the numbers that a rule keeps.
    pub(crate) fn keep_memory(&mut self, len: usize) -> Result<()> {
        if len > 0 {
            self.memory = Some(Arc::new(self.device.zeros(self.values.dtype().accumulator(), len)?));
        }
        Ok(())
    }

    pub(crate) fn memory_mut(&self) -> Option<ViewMut<'_>> {
        self.memory.as_ref().map(|m| m.alias_mut())
    }

    /// Clears all gradients with one launch.
    pub(crate) fn zero_grad(&self) -> Result<()> {
        self.device.fill(0.0, self.grads.alias_mut())?;
        for e in &self.entries {
            let t = e.param.get();
            let Some(edge) = t.edge() else { continue };
            match edge.node.is_filled() {
                Some(_) => edge.node.note_cleared(),
                // Trained again after it was frozen: what it has collected elsewhere is cleared too.
                None => {
                    let (grad, _) =
                        grad_memory(&self.device, &self.grads, e.start, &e.param, tied_to(&self.entries, e))?;
                    edge.node.place_grad(grad, false);
                }
            }
        }
        Ok(())
    }

    /// Error if a parameter was replaced since (by `to_device`, say), so that this arena no longer holds it.
    pub(crate) fn check(&self) -> Result<()> {
        match self.entries.iter().find(|e| !Arc::ptr_eq(e.param.get().storage(), &e.storage)) {
            None => Ok(()),
            Some(e) => Err(NnError::Param {
                name: e.name.clone(),
                what: "was replaced after the optimizer was built; build the optimizer last".into(),
            }),
        }
    }

    /// Notes that all values changed in place.
    pub(crate) fn touch(&self) {
        self.entries.iter().for_each(|e| e.storage.touch());
    }

    /// State buffer `i` of each parameter, by the parameter's name.
    pub(crate) fn state_tensors(&self, i: usize) -> Result<Vec<(String, Tensor)>> {
        self.parts(self.states.get(i))
    }

    /// Masters, averages and memory under `master.name`, `ema.name` and `memory.name` (of the first parameter).
    pub(crate) fn copies(&self) -> Result<Vec<(String, Tensor)>> {
        let mut all = vec![];
        if let (Some(m), Some(e)) = (&self.memory, self.entries.first()) {
            all.push((format!("memory.{}", e.name), Tensor::over(&self.device, m, 0, &[m.len()])?));
        }
        for (kind, buffer) in [("master", &self.masters), ("ema", &self.average)] {
            let parts = self.parts(buffer.as_ref())?;
            all.extend(parts.into_iter().map(|(name, t)| (format!("{kind}.{name}"), t)));
        }
        Ok(all)
    }

    fn parts(&self, buffer: Option<&Arc<Buffer>>) -> Result<Vec<(String, Tensor)>> {
        let Some(buffer) = buffer else { return Ok(vec![]) };
        let part = |e: &Entry| {
            Ok((e.name.clone(), Tensor::over(&self.device, buffer, e.start, e.param.get().shape())?))
        };
        self.entries.iter().map(part).collect()
    }
}
