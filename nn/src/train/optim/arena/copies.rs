//! Copies of the weights: masters in f32, averages, and those for evaluation.

use std::sync::Arc;

use trefoil::ops::elementwise::{Binary, Ternary};
use trefoil::{BackendExt, Buffer, DType};

use super::active::{distinct, merged};
use super::{Arena, Entry};
use crate::core::error::Result;

impl Arena {
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
                for (start, len) in merged(&distinct(stepped.map(Entry::range).collect())) {
                    let (from, z) = (from.view().range(start, len)?, z.view().range(start, len)?);
                    self.device.binary(Binary::Lerp { t }, from, z, x.alias_mut().range(start, len)?)?;
                    self.device.cast(x.view().range(start, len)?, w.alias_mut().range(start, len)?)?;
                }
                *held = Some(y);
            }
        }
        self.take_masters()
    }

    /// What the rule updates: the masters, or the values themselves.
    pub(super) fn weights(&self) -> &Arc<Buffer> {
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

    /// Takes the values from the masters, where there are any, after what the rule updates was exchanged.
    fn take_masters(&self) -> Result<()> {
        if let Some(m) = &self.masters {
            self.device.cast(m.view(), self.values.alias_mut())?;
        }
        self.touch();
        Ok(())
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
        self.take_masters()
    }
}
