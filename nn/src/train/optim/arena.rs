//! Contiguous memory for parameters, their gradients and optimizer state.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use trefoil::ops::elementwise::{Binary, Ternary};
use trefoil::ops::optimizer::{OptimRule, PACKED_BLOCK, PackedSlot, ParamSlot, STATES, Step};
use trefoil::ops::random::Rng;
use trefoil::{BackendExt, Buffer, DType, GpuError, ViewMut};

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
    fn missed(&self) -> u64 {
        self.missed.load(Ordering::Relaxed)
    }
}

/// Tensors that a step updates, as ranges of the arena, with how many steps they missed before.
pub(crate) struct Active {
    pub(crate) missed: u64,
    ranges: Vec<(usize, usize)>,
}

/// Ranges that follow each other as one; gaps between tensors belong to the one before.
fn merged(ranges: &[(usize, usize)]) -> Vec<(usize, usize)> {
    let mut out: Vec<(usize, usize)> = vec![];
    for &(start, len) in ranges {
        let len = len.next_multiple_of(ALIGN);
        match out.last_mut() {
            Some((s, n)) if *s + *n == start => *n += len,
            _ => out.push((start, len)),
        }
    }
    out
}

/// How moments are stored in fewer bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Packing {
    Bf16,
    Codes,
}

/// Moments in fewer bits. Tensors too small for codes keep f32.
struct Packed {
    form: Packing,
    /// m and v of the whole arena, bf16 or codes.
    moments: [Arc<Buffer>; 2],
    /// Scales of the codes of all tensors, one tensor after the other.
    scales: Arc<Buffer>,
    /// m and v of the small tensors.
    small: [Arc<Buffer>; 2],
    parts: Vec<Part>,
}

/// A tensor of a packed arena: its range, and where its scales (or its f32 moments) start.
#[derive(Clone, Copy)]
struct Part {
    start: usize,
    len: usize,
    small: bool,
    at: usize,
}

/// Tensors below this keep moments in f32 when others get codes.
const LEAST_CODED: usize = 4096;

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

    /// Ranges of the tensors; tied parameters have one.
    fn ranges(&self) -> Vec<(usize, usize)> {
        let mut ranges: Vec<_> = self.entries.iter().map(|e| (e.start, e.storage.len())).collect();
        ranges.sort_unstable();
        ranges.dedup();
        ranges
    }

    /// Whether a parameter got a gradient since the last clearing. One that was frozen and is trained again collects in the arena from now on.
    fn is_filled(&self, e: &Entry) -> Result<bool> {
        let t = e.param.get();
        let Some(edge) = t.edge() else { return Ok(false) };
        match edge.node.is_filled() {
            Some(filled) => Ok(filled),
            None => collect_in(&self.device, &self.grads, e.start, &e.param, tied_to(&self.entries, e)),
        }
    }

    /// Values and gradients of the tensors that got some, tied parameters once.
    pub(crate) fn filled(&self) -> Result<Vec<[Tensor; 2]>> {
        let mut all: Vec<(usize, [Tensor; 2])> = vec![];
        for e in &self.entries {
            if self.is_filled(e)? && !all.iter().any(|(start, _)| *start == e.start) {
                let values = e.param.get().detach();
                let grad = Tensor::over(&self.device, &self.grads, e.start, values.shape())?;
                all.push((e.start, [values, grad]));
            }
        }
        Ok(all.into_iter().map(|(_, pair)| pair).collect())
    }

    /// The tensors that got gradients, by how many steps they missed before.
    pub(crate) fn active(&self) -> Result<Vec<Active>> {
        let mut groups: BTreeMap<u64, Vec<(usize, usize)>> = BTreeMap::new();
        for e in &self.entries {
            if self.is_filled(e)? {
                groups.entry(e.missed()).or_default().push((e.start, e.storage.len()));
            }
        }
        let group = |(missed, mut ranges): (u64, Vec<_>)| {
            ranges.sort_unstable();
            ranges.dedup();
            Active { missed, ranges }
        };
        Ok(groups.into_iter().map(group).collect())
    }

    /// Counts a step for the tensors that took no part in it, and notes that the others changed in place.
    pub(crate) fn stepped(&mut self, active: &[Active]) {
        for e in &mut self.entries {
            let took_part = |a: &Active| a.ranges.iter().any(|(start, _)| *start == e.start);
            match active.iter().any(took_part) {
                true => e.storage.touch(),
                false => drop(e.missed.fetch_add(1, Ordering::Relaxed)),
            }
        }
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

    /// How many steps the parameters of some tensors missed, shared with them; those of all others.
    pub(crate) fn missed_of(&self, active: &[Active]) -> [Vec<Missed>; 2] {
        let takes_part =
            |e: &&Entry| active.iter().any(|a| a.ranges.iter().any(|(start, _)| *start == e.start));
        let (part, rest): (Vec<&Entry>, Vec<&Entry>) = self.entries.iter().partition(takes_part);
        [part, rest].map(|list| list.into_iter().map(|e| e.missed.clone()).collect())
    }

    /// Steps that each parameter missed, where it missed any.
    pub(crate) fn missed(&self) -> impl Iterator<Item = (&str, u64)> {
        self.entries.iter().map(|e| (e.name.as_str(), e.missed())).filter(|(_, missed)| *missed > 0)
    }

    /// Sets the steps that each parameter missed.
    pub(crate) fn set_missed(&mut self, missed: impl Fn(&str) -> u64) {
        self.entries.iter().for_each(|e| e.missed.store(missed(&e.name), Ordering::Relaxed));
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

    /// Stores the moments of Adam in fewer bits from now on; they start at zero.
    pub(crate) fn pack(&mut self, form: Packing) -> Result<()> {
        let (mut parts, mut coded, mut plain) = (vec![], 0, 0);
        let whole = vec![(0, self.values.len())];
        for (start, len) in if form == Packing::Bf16 { whole } else { self.ranges() } {
            let small = form == Packing::Codes && len < LEAST_CODED;
            let at = if small { &mut plain } else { &mut coded };
            parts.push(Part { start, len, small, at: *at });
            *at += if small { len.next_multiple_of(ALIGN) } else { 2 * len.div_ceil(PACKED_BLOCK) };
        }
        let dtype = if form == Packing::Bf16 { DType::Bf16 } else { DType::U8 };
        let zeros = |dtype, n: usize| Ok::<_, NnError>(Arc::new(self.device.zeros(dtype, n.max(1))?));
        let end = self.values.len();
        self.packed = Some(Packed {
            form,
            moments: [zeros(dtype, end)?, zeros(dtype, end)?],
            scales: zeros(DType::F32, coded)?,
            small: [zeros(DType::F32, plain)?, zeros(DType::F32, plain)?],
            parts,
        });
        self.states.clear();
        Ok(())
    }

    /// A step of some tensors with packed moments; false if they are not packed.
    pub(crate) fn step_packed(
        &self,
        active: &Active,
        rule: &OptimRule,
        step: &Step<'_>,
        rng: Option<Rng<'_>>,
    ) -> Result<bool> {
        let Some(p) = &self.packed else { return Ok(false) };
        let (mut slots, mut small) = (vec![], vec![]);
        let whole = |(start, len)| Part { start, len, small: false, at: 0 };
        let parts: Vec<Part> = match p.form {
            Packing::Bf16 => merged(&active.ranges).into_iter().map(whole).collect(),
            Packing::Codes => {
                let takes = |part: &&Part| active.ranges.iter().any(|(start, _)| *start == part.start);
                p.parts.iter().filter(takes).copied().collect()
            }
        };
        for Part { start, len, small: plain, at } in parts {
            let w = self.weights().alias_mut().range(start, len)?;
            let g = self.grads.view().range(start, len)?;
            let copy =
                self.masters.as_ref().map(|_| self.values.alias_mut().range(start, len)).transpose()?;
            if plain {
                let [m, v] = p.small.each_ref().map(|b| b.alias_mut().range(at, len));
                small.push(ParamSlot::new(w, g).state([Some(m?), Some(v?), None, None]).copy(copy));
                continue;
            }
            let [m, v] = p.moments.each_ref().map(|b| b.alias_mut().range(start, len));
            let blocks = len.div_ceil(PACKED_BLOCK);
            let scales = match p.form {
                Packing::Codes => Some(p.scales.alias_mut().range(at, 2 * blocks)?.reshape(&[2, blocks])?),
                Packing::Bf16 => None,
            };
            slots.push(PackedSlot::new(w, g, m?, v?).scales(scales).copy(copy));
        }
        self.device.optimizer_step_packed(rule, step, rng, &mut slots)?;
        self.device.optimizer_step(rule, step, &mut small)?;
        Ok(true)
    }

    /// Exchanges the weights y and the point x = y + (1 - 1/b)*(z - y) at which a schedule-free rule is evaluated, z being the first state,
    /// which tensors have that took part in one of `steps` steps.
    pub(crate) fn swap_evaluation(&self, b: f64, steps: u64) -> Result<()> {
        let Some(z) = self.states.first() else { return Ok(()) };
        let w = self.weights();
        let mut held = self.held.lock().unwrap_or_else(|p| p.into_inner());
        match held.take() {
            Some(y) => self.device.copy(y.view(), w.alias_mut())?,
            None => {
                let y = self.device.alloc(w.dtype(), w.len())?;
                self.device.copy(w.view(), y.alias_mut())?;
                let (from, x) = (self.precise()?, self.device.alloc(z.dtype(), z.len())?);
                let t = 1.0 - 1.0 / b;
                let stepped = self.entries.iter().filter(|e| e.missed() < steps);
                let mut ranges: Vec<_> = stepped.map(|e| (e.start, e.storage.len())).collect();
                ranges.sort_unstable();
                ranges.dedup();
                for (start, len) in merged(&ranges) {
                    let (from, z) = (from.view().range(start, len)?, z.view().range(start, len)?);
                    self.device.binary(Binary::Lerp { t }, from, z, x.alias_mut().range(start, len)?)?;
                    self.device.cast(x.view().range(start, len)?, w.alias_mut().range(start, len)?)?;
                }
                *held = Some(y);
            }
        }
        if let Some(m) = &self.masters {
            self.device.cast(m.view(), self.values.alias_mut())?;
        }
        self.touch();
        Ok(())
    }

    /// Operands of a step of some tensors: what lies together as one, or each parameter as one for rules that look at a tensor's norm.
    pub(crate) fn slots(&self, active: &[Active], per_tensor: bool) -> Result<Vec<ParamSlot<'_>>> {
        let mut ranges: Vec<_> = active.iter().flat_map(|a| a.ranges.iter().copied()).collect();
        ranges.sort_unstable();
        let ranges = if per_tensor { ranges } else { merged(&ranges) };
        let slot = |(start, len): (usize, usize)| {
            let mut state = [const { None }; STATES];
            for (out, buffer) in state.iter_mut().zip(&self.states) {
                *out = Some(buffer.alias_mut().range(start, len)?);
            }
            let copy = match &self.masters {
                Some(_) => Some(self.values.alias_mut().range(start, len)?),
                None => None,
            };
            let w = self.weights().alias_mut().range(start, len)?;
            Ok(ParamSlot::new(w, self.grads.view().range(start, len)?).state(state).copy(copy))
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
        // As it lies in device memory for recorded steps.
        let share = if a.dtype() == DType::F64 { share } else { f64::from(share as f32) };
        Ok(self.device.binary(Binary::Lerp { t: share }, a.view(), w.view(), a.alias_mut())?)
    }

    /// [`update_average`](Arena::update_average) with the share among the present numbers.
    pub(crate) fn update_average_recorded(&self) -> Result<()> {
        let Some(a) = &self.average else { return Ok(()) };
        let (w, share) = (self.precise()?, self.numbers()?.average_share()?.operand());
        Ok(self.device.ternary(Ternary::Lerp, a.view(), w.view(), share.view()?, a.alias_mut())?)
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

    /// Packed moments of each parameter, by their names and the parameter's; scales of codes under `scales.name`.
    pub(crate) fn packed_tensors(&self) -> Result<Vec<(String, Tensor)>> {
        let mut all = vec![];
        let Some(p) = &self.packed else { return Ok(all) };
        for e in &self.entries {
            let t = e.param.get();
            let part = p.parts.iter().find(|part| part.start == e.start);
            let codes = part.filter(|_| p.form == Packing::Codes);
            let (from, at) = match codes {
                Some(part) if part.small => (&p.small, part.at),
                _ => (&p.moments, e.start),
            };
            for (name, buffer) in ["m", "v"].into_iter().zip(from) {
                all.push((format!("{name}.{}", e.name), Tensor::over(&self.device, buffer, at, t.shape())?));
            }
            if let Some(part) = codes.filter(|part| !part.small) {
                let shape = [2, part.len.div_ceil(PACKED_BLOCK)];
                let scales = Tensor::over(&self.device, &p.scales, part.at, &shape)?;
                all.push((format!("scales.{}", e.name), scales));
            }
        }
        Ok(all)
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
