//! Contiguous memory for parameters, their gradients and optimizer state.

use std::sync::Arc;

use trefoil::ops::{Binary, ParamSlot};
use trefoil::{BackendExt, Buffer, DType, ViewMut};

use crate::error::{NnError, Result};
use crate::layer::Param;
use crate::tensor::{Device, Storage, Tensor};

/// Every parameter starts at a multiple of this many elements, so that 16-byte accesses stay aligned. The gaps are zero and stay zero.
const ALIGN: usize = 64;

struct Entry {
    name: String,
    param: Param,
    storage: Arc<Storage>,
    start: usize,
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
    entries: Vec<Entry>,
    // Alive as long as the arena: storages remember it as their owner.
    _token: Arc<()>,
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
            entries.push(Entry { name, storage: t.storage().clone(), param, start });
        }

        let values = Arc::new(device.zeros(dtype, end)?);
        let grads = Arc::new(device.zeros(dtype, end)?);
        let states = (0..states)
            .map(|_| Ok(Arc::new(device.zeros(dtype.accumulator(), end)?)))
            .collect::<Result<_>>()?;
        for (i, e) in entries.iter().enumerate() {
            let tied = entries[..i].iter().any(|d| d.start == e.start && Arc::ptr_eq(&d.storage, &e.storage));
            let t = e.param.get();
            let grad = Tensor::over(&device, &grads, e.start, t.shape())?;
            if let (Some(g), false) = (t.grad(), tied) {
                grad.assign(&g)?;
            }
            if !tied {
                let (src, dst) = (t.operand(), values.alias_mut().range(e.start, t.numel())?);
                device.copy(src.view()?.reshape(&[t.numel()])?, dst)?;
                e.storage.claim(&token);
                e.storage.relocate(values.clone(), e.start);
            }
            if let Some(edge) = t.edge() {
                edge.node.place_grad(grad);
            }
        }
        Ok(Some(Arena {
            device,
            values,
            grads,
            states,
            masters: None,
            average: None,
            entries,
            _token: token,
        }))
    }

    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    pub(crate) fn dtype(&self) -> DType {
        self.values.dtype()
    }

    /// Moves values, gradients and states to another device, through the host; the parameters refer to them there. Errors: as
    /// [`Arena::check`], and those of the new device; nothing is changed then.
    pub(crate) fn move_to(&mut self, device: &Device) -> Result<()> {
        self.check()?;
        let moved = |old: &Arc<Buffer>| -> Result<Arc<Buffer>> {
            let mut bytes = vec![0; old.len() * old.dtype().size()];
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
        let mut leaves = vec![];
        for e in &self.entries {
            let old = e.param.get();
            let t = match placed.iter().find(|(start, _)| *start == e.start) {
                Some((_, first)) => first.relayout(*old.layout()),
                None => Tensor::over(device, &values, e.start, old.shape())?,
            };
            placed.push((e.start, t.clone()));
            leaves.push((t, Tensor::over(device, &grads, e.start, old.shape())?));
        }
        for (e, (t, grad)) in self.entries.iter_mut().zip(leaves) {
            t.storage().claim(&self._token);
            e.storage = t.storage().clone();
            e.param.set(t);
            if let Some(edge) = e.param.get().edge() {
                edge.node.place_grad(grad);
            }
        }
        (self.values, self.grads, self.states) = (values, grads, states);
        (self.masters, self.average, self.device) = (masters, average, device.clone());
        Ok(())
    }

    pub(crate) fn grads_mut(&self) -> ViewMut<'_> {
        self.grads.alias_mut()
    }

    /// Operands of an optimizer step: everything as one tensor, or each parameter as one for rules that look at a tensor's norm.
    pub(crate) fn slots(&self, per_tensor: bool) -> Result<Vec<ParamSlot<'_>>> {
        let mut ranges = vec![(0, self.values.len())];
        if per_tensor {
            ranges = self.entries.iter().map(|e| (e.start, e.storage.len())).collect();
            // Tied parameters have one range.
            ranges.sort_unstable();
            ranges.dedup();
        }
        let slot = |(start, len): (usize, usize)| {
            let mut state = [None, None, None];
            for (out, buffer) in state.iter_mut().zip(&self.states) {
                *out = Some(buffer.alias_mut().range(start, len)?);
            }
            let copy = match &self.masters {
                Some(_) => Some(self.values.alias_mut().range(start, len)?),
                None => None,
            };
            let w = self.weights().alias_mut().range(start, len)?;
            Ok(ParamSlot { w, g: self.grads.view().range(start, len)?, state, copy })
        };
        ranges.into_iter().map(slot).collect()
    }

    /// What the rule updates: the masters, or the values themselves.
    fn weights(&self) -> &Arc<Buffer> {
        self.masters.as_ref().unwrap_or(&self.values)
    }

    /// Keeps f32 originals of 16-bit values from now on; other dtypes need none.
    pub(crate) fn keep_masters(&mut self) -> Result<()> {
        if self.values.dtype().is_half() && self.masters.is_none() {
            self.masters = Some(Arc::new(self.device.zeros(DType::F32, self.values.len())?));
            self.refresh_masters()?;
        }
        Ok(())
    }

    /// Takes the masters from the values, after those were set from outside.
    pub(crate) fn refresh_masters(&self) -> Result<()> {
        match &self.masters {
            Some(m) => Ok(self.device.cast(self.values.view(), m.alias_mut())?),
            None => Ok(()),
        }
    }

    /// The weights in the average's dtype.
    fn precise(&self) -> Result<Arc<Buffer>> {
        let w = self.weights();
        let dtype = w.dtype().accumulator();
        if w.dtype() == dtype {
            return Ok(w.clone());
        }
        let copy = self.device.alloc(dtype, w.len())?;
        self.device.cast(w.view(), copy.alias_mut())?;
        Ok(Arc::new(copy))
    }

    /// Starts an average at the present weights.
    pub(crate) fn keep_average(&mut self) -> Result<()> {
        let w = self.precise()?;
        let average = self.device.alloc(w.dtype(), w.len())?;
        self.device.copy(w.view(), average.alias_mut())?;
        self.average = Some(Arc::new(average));
        Ok(())
    }

    /// average += share * (weights - average), one launch.
    pub(crate) fn update_average(&self, share: f64) -> Result<()> {
        let Some(a) = &self.average else { return Ok(()) };
        let w = self.precise()?;
        Ok(self.device.binary(Binary::Lerp { t: share }, a.view(), w.view(), a.alias_mut())?)
    }

    /// Exchanges weights and average.
    pub(crate) fn swap_average(&self) -> Result<()> {
        let (Some(a), w) = (&self.average, self.weights()) else { return Ok(()) };
        let held = self.device.alloc(a.dtype(), a.len())?;
        self.device.cast(w.view(), held.alias_mut())?;
        self.device.cast(a.view(), w.alias_mut())?;
        self.device.copy(held.view(), a.alias_mut())?;
        if let Some(m) = &self.masters {
            self.device.cast(m.view(), self.values.alias_mut())?;
        }
        self.touch();
        Ok(())
    }

    /// Clears all gradients with one launch.
    pub(crate) fn zero_grad(&self) -> Result<()> {
        Ok(self.device.fill(0.0, self.grads.alias_mut())?)
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

    /// Masters and averages of each parameter under `master.name` and `ema.name`.
    pub(crate) fn copies(&self) -> Result<Vec<(String, Tensor)>> {
        let mut all = vec![];
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
