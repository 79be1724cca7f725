//! Moments in fewer bits.

use std::sync::Arc;

use trefoil::ops::optimizer::{OptimRule, PACKED_BLOCK, PackedSlot, ParamSlot, Step};
use trefoil::ops::random::Rng;
use trefoil::{BackendExt, Buffer, DType};

use super::active::{Active, merged};
use super::{ALIGN, Arena};
use crate::core::error::{NnError, Result};
use crate::core::tensor::Tensor;

/// How moments are stored in fewer bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Packing {
    Bf16,
    Codes,
}

/// Moments in fewer bits. Tensors too small for codes keep f32.
pub(super) struct Packed {
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

impl Arena {
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
}
