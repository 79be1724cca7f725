//! What layers with a state of fixed size carry from token to token.

use std::vec::IntoIter;

use crate::core::autograd::no_grad;
use crate::core::error::{Result, invalid};
use crate::core::limits;
use crate::core::tensor::Tensor;

const OP: &str = "RecurrentState";

/// What one layer has after `len` tokens: the last inputs of its convolutions and the states of its recurrences.
#[derive(Debug, Clone)]
struct Stored {
    parts: Vec<Tensor>,
    batch: usize,
    len: usize,
}

/// What the layers of a decoder that carry a state of fixed size keep of the tokens they have seen, so that each new token costs the same, however
/// many there were: [`Mamba`](crate::layers::Mamba), [`GatedDeltaNet`](crate::layers::GatedDeltaNet),
/// [`GatedLinearAttention`](crate::layers::GatedLinearAttention), [`Rglru`](crate::layers::Rglru) and
/// [`RecurrentBlock`](crate::layers::RecurrentBlock) by their `forward_with_state`. Layers of attention have a [`KvCache`](crate::layers::KvCache).
///
/// States replace each other, so tokens cannot be taken back; a clone of the state stands where it was taken. Everything stays on the device.
#[derive(Debug, Clone)]
pub struct RecurrentState {
    layers: Vec<Option<Stored>>,
}

impl RecurrentState {
    /// The state before the first token, for so many layers. Errors: no layers, `OutOfMemory`.
    pub fn new(num_layers: usize) -> Result<Self> {
        if num_layers == 0 {
            return Err(invalid(OP, "num_layers", "at least one layer", "0"));
        }
        let mut layers = vec![];
        limits::reserve(&mut layers, num_layers)?;
        layers.resize_with(num_layers, || None);
        Ok(RecurrentState { layers })
    }

    /// Number of layers.
    pub fn num_layers(&self) -> usize {
        self.layers.len()
    }

    /// Tokens that all layers have seen.
    pub fn len(&self) -> usize {
        self.layers.iter().map(|s| s.as_ref().map_or(0, |s| s.len)).min().unwrap_or(0)
    }

    /// True before the first token.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Forgets all tokens, so that a batch of another size may follow.
    pub fn clear(&mut self) {
        self.layers.fill_with(|| None);
    }

    /// Runs a pass of new tokens through all layers. If it fails, the state is as it was before.
    pub fn extend<T>(&mut self, pass: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        let before = self.layers.clone();
        pass(self).inspect_err(|_| self.layers = before)
    }

    /// Runs a layer on new tokens `[B, T, ..]`, from what it has of those before to what it has behind them. Records no gradients.
    pub(super) fn carry(
        &mut self,
        layer: usize,
        x: &Tensor,
        run: impl FnOnce(&mut Carry) -> Result<Tensor>,
    ) -> Result<Tensor> {
        let count = self.layers.len();
        let Some(slot) = self.layers.get_mut(layer) else {
            return Err(invalid(OP, "layer", format!("below {count}"), format!("{layer}")));
        };
        let &[batch, new, ..] = x.shape() else {
            return Err(invalid(OP, "x", "tokens [B, T, ..]", format!("shape {:?}", x.shape())));
        };
        if let Some(s) = slot.as_ref().filter(|s| s.batch != batch) {
            return Err(invalid(OP, "x", format!("a batch of {} as before", s.batch), format!("{batch}")));
        }
        let old = slot.as_ref().map(|s| s.parts.clone().into_iter());
        let mut carry = Carry { old, new: vec![] };
        let y = no_grad(|| run(&mut carry))?;
        // No tokens leave everything as it is.
        if new > 0 {
            let held = slot.as_ref().map_or(0, |s| s.len);
            *slot = Some(Stored { parts: carry.new, batch, len: held.saturating_add(new) });
        }
        Ok(y)
    }
}

/// What the parts of a layer take up from the tokens before, in the order in which they ask, and what they leave for those behind.
pub(super) struct Carry {
    old: Option<IntoIter<Tensor>>,
    new: Vec<Tensor>,
}

impl Carry {
    /// Whether no token was before.
    pub(super) fn is_start(&self) -> bool {
        self.old.is_none()
    }

    /// Runs a part from its state before, and keeps the one behind.
    pub(super) fn through(
        &mut self,
        part: impl FnOnce(Option<&Tensor>) -> Result<(Tensor, Tensor)>,
    ) -> Result<Tensor> {
        let old = self.old.as_mut().and_then(Iterator::next);
        let (y, new) = part(old.as_ref())?;
        limits::reserve(&mut self.new, 1)?;
        self.new.push(new);
        Ok(y)
    }
}

/// The result of a recurrence that gives its last state too: from what a layer carries, or from nothing.
pub(super) fn recur(
    carry: Option<&mut Carry>,
    part: impl FnOnce(Option<&Tensor>) -> Result<(Tensor, Tensor)>,
) -> Result<Tensor> {
    match carry {
        Some(carry) => carry.through(part),
        None => Ok(part(None)?.0),
    }
}
