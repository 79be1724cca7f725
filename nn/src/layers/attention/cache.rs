//! Keys and values of past tokens, for decoding token by token.

use crate::core::error::{NnError, Result, invalid};
use crate::core::limits;
use crate::core::tensor::{Tensor, same_device};

/// Capacity that a cache starts with.
const FIRST: usize = 16;
const OP: &str = "KvCache";

/// Keys and values of one attention layer in memory `[B, H, capacity, D]`, of which `len` tokens are there.
#[derive(Debug, Clone)]
struct Stored {
    memory: [Tensor; 2],
    len: usize,
}

/// Keys and values that the attention layers of a decoder keep of the tokens they have seen, so that each new token costs one row of
/// projections and scores; see [`MultiHeadAttention::attend_cached`](crate::layers::MultiHeadAttention::attend_cached).
///
/// New tokens are written behind the old ones in place. Where the memory ends it is doubled, up to `max_len`, so that in all fewer than two
/// tokens are copied for each that is appended. Everything stays on the device.
#[derive(Debug)]
pub struct KvCache {
    max_len: usize,
    layers: Vec<Option<Stored>>,
}

impl KvCache {
    /// An empty cache for so many attention layers and tokens. Errors: no layers, no tokens, `OutOfMemory`.
    pub fn new(num_layers: usize, max_len: usize) -> Result<Self> {
        if num_layers == 0 || max_len == 0 {
            let got = format!("{num_layers} layers, {max_len} tokens");
            return Err(invalid(OP, "max_len", "at least one layer and one token", got));
        }
        let mut layers = vec![];
        limits::reserve(&mut layers, num_layers)?;
        layers.resize_with(num_layers, || None);
        Ok(KvCache { max_len, layers })
    }

    /// The most tokens that it holds.
    pub fn max_len(&self) -> usize {
        self.max_len
    }

    /// Number of attention layers.
    pub fn num_layers(&self) -> usize {
        self.layers.len()
    }

    /// Tokens that all layers hold.
    pub fn len(&self) -> usize {
        (0..self.layers.len()).map(|i| self.len_of(i)).min().unwrap_or(0)
    }

    /// True without tokens.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Tokens that one layer holds: in the middle of a pass the first layers are ahead.
    pub(crate) fn len_of(&self, layer: usize) -> usize {
        self.layers.get(layer).and_then(Option::as_ref).map_or(0, |s| s.len)
    }

    /// Forgets all tokens but the first `len`. The memory stays.
    pub fn truncate(&mut self, len: usize) {
        self.layers.iter_mut().flatten().for_each(|s| s.len = s.len.min(len));
    }

    /// Forgets all tokens and gives the memory back, so that a batch of another size may follow.
    pub fn clear(&mut self) {
        self.layers.fill_with(|| None);
    }

    /// Runs a pass that appends tokens to all layers. If it fails, the cache is as it was before.
    pub fn extend<T>(&mut self, pass: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        let before = self.len();
        pass(self).inspect_err(|_| self.truncate(before))
    }

    /// Appends keys `[B, H, T, D]` and values `[B, H, T, Dv]` of new tokens to a layer and gives those of all tokens, as views without
    /// gradients. They are valid until the cache is truncated. Errors: [`NnError::CacheFull`]; `Invalid` for a layer that it has not,
    /// other ranks, and batches, heads, widths or dtypes other than at first.
    pub fn append(&mut self, layer: usize, keys: &Tensor, values: &Tensor) -> Result<(Tensor, Tensor)> {
        let new = check(keys, values)?;
        let held = self.len_of(layer);
        let count = self.layers.len();
        let Some(slot) = self.layers.get_mut(layer) else {
            return Err(invalid(OP, "layer", format!("below {count}"), format!("{layer}")));
        };
        let Some(len) = held.checked_add(new).filter(|&n| n <= self.max_len) else {
            return Err(NnError::CacheFull { max_len: self.max_len, held, new });
        };
        if let Some(s) = &*slot {
            fits("keys", &s.memory[0], keys)?;
            fits("values", &s.memory[1], values)?;
        }
        let capacity = slot.as_ref().map_or(0, |s| s.memory[0].shape()[2]);
        let [k, v] = match slot.as_ref() {
            Some(s) if len <= capacity => s.memory.clone(),
            old => {
                let room = len.max(FIRST).max(capacity.saturating_mul(2)).min(self.max_len);
                let old = |i: usize| old.map(|s| &s.memory[i]);
                [grown(keys, old(0), held, room)?, grown(values, old(1), held, room)?]
            }
        };
        k.narrow(2, held, new)?.assign(keys)?;
        v.narrow(2, held, new)?.assign(values)?;
        let all = (k.narrow(2, 0, len)?, v.narrow(2, 0, len)?);
        *slot = Some(Stored { memory: [k, v], len });
        Ok(all)
    }
}

/// The number of new tokens.
fn check(keys: &Tensor, values: &Tensor) -> Result<usize> {
    let (&[bk, hk, t, _], &[bv, hv, tv, _]) = (keys.shape(), values.shape()) else {
        let got = format!("shapes {:?} and {:?}", keys.shape(), values.shape());
        return Err(invalid(OP, "keys", "rank 4: [B, H, T, D]", got));
    };
    if [bk, hk, t] != [bv, hv, tv] || keys.dtype() != values.dtype() {
        let want = format!("{} [{bk}, {hk}, {t}, ..] like the keys", keys.dtype());
        return Err(invalid(OP, "values", want, format!("{} {:?}", values.dtype(), values.shape())));
    }
    Ok(t)
}

/// Error unless new tokens can stand behind those in memory.
fn fits(arg: &'static str, memory: &Tensor, new: &Tensor) -> Result<()> {
    same_device(OP, memory, new)?;
    let sizes = |t: &Tensor| [t.shape()[0], t.shape()[1], t.shape()[3]];
    if sizes(memory) == sizes(new) && memory.dtype() == new.dtype() {
        return Ok(());
    }
    let [b, h, d] = sizes(memory);
    let want = format!("{} [{b}, {h}, T, {d}] as before", memory.dtype());
    Err(invalid(OP, arg, want, format!("{} {:?}", new.dtype(), new.shape())))
}

/// Memory for `room` tokens like the new ones, which begins with the `held` tokens of the old one.
fn grown(new: &Tensor, old: Option<&Tensor>, held: usize, room: usize) -> Result<Tensor> {
    let mut shape = new.shape().to_vec();
    shape[2] = room;
    let memory = new.like(&shape)?;
    if let Some(old) = old {
        memory.narrow(2, 0, held)?.assign(&old.narrow(2, 0, held)?)?;
    }
    Ok(memory)
}
