//! State files of the Volta crate.
//!
//! Volta writes its state dictionary with bincode 2 in the standard configuration: a map from names to f32 values and their shape, all
//! integers in bincode's variable-length form, little-endian. Its `Linear` keeps weights as `[in, out]`; [`StateMap`](crate::StateMap)
//! transposes them for [`Dense`](crate::layers::Dense):
//!
//! ```no_run
//! # use trefoil_nn::{Device, Layer, LayerExt, StateMap, volta};
//! # fn f(model: &dyn Layer, device: &Device) -> trefoil_nn::Result<()> {
//! let state = volta::read_state("xor.bin", device)?;
//! model.load_state_dict(&StateMap::new().transpose_matching("*.weight").apply(&state)?)?;
//! # Ok(()) }
//! ```

use std::path::Path;

use crate::core::error::{At, NnError, Result};
use crate::core::host_tensor::numel;
use crate::core::tensor::{Device, Tensor};
use crate::module::StateDict;

/// Bytes that are read from the front to the back.
struct Reader<'a> {
    path: &'a Path,
    all: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn error(&self, expected: impl Into<String>, found: impl Into<String>) -> NnError {
        NnError::data(self.path, At::Byte(self.at as u64), expected, found)
    }

    fn take(&mut self, n: usize, what: &str) -> Result<&'a [u8]> {
        let rest = &self.all[self.at..];
        let Some(bytes) = rest.get(..n) else {
            return Err(self.error(format!("{n} bytes of {what}"), format!("{} to the end", rest.len())));
        };
        self.at += n;
        Ok(bytes)
    }

    /// A number in one byte, or behind a byte that says in how many.
    fn number(&mut self, what: &str) -> Result<usize> {
        let first = self.take(1, what)?[0];
        let width = match first {
            0..=250 => return Ok(first.into()),
            251 => 2,
            252 => 4,
            253 => 8,
            _ => {
                return Err(
                    self.error(format!("{what}, a number of at most 8 bytes"), format!("tag {first}"))
                );
            }
        };
        let mut bytes = [0; 8];
        bytes[..width].copy_from_slice(self.take(width, what)?);
        let n = u64::from_le_bytes(bytes);
        usize::try_from(n).map_err(|_| self.error(what, format!("{n}")))
    }
}

/// Reads a state file onto a device; f32 tensors under Volta's names. Errors: [`NnError::Io`], [`NnError::Data`] with the byte at which the file
/// is not what Volta writes; those of the device.
pub fn read_state(path: impl AsRef<Path>, device: &Device) -> Result<StateDict> {
    let path = path.as_ref();
    let all = std::fs::read(path).map_err(NnError::io("read", path))?;
    let mut r = Reader { path, all: &all, at: 0 };
    let mut state = StateDict::new();
    for _ in 0..r.number("the number of tensors")? {
        let n = r.number("the length of a name")?;
        let bytes = r.take(n, "a name")?;
        let Ok(name) = std::str::from_utf8(bytes) else {
            return Err(r.error("a name in UTF-8", "other bytes"));
        };
        let n = r.number("the number of values")?;
        let Some(size) = n.checked_mul(4) else { return Err(r.error("values that fit", format!("{n}"))) };
        let values: Vec<f32> =
            r.take(size, "values")?.chunks_exact(4).map(bytemuck::pod_read_unaligned).collect();
        let rank = r.number("the number of axes")?;
        // Not collected by count alone: a corrupt count must not make room for itself.
        let mut shape = vec![];
        for _ in 0..rank {
            shape.push(r.number("a size")?);
        }
        if numel(&shape) != Some(n) {
            return Err(r.error(format!("a shape of {n} values for `{name}`"), format!("{shape:?}")));
        }
        if state.insert(name.to_string(), Tensor::from_slice(device, &values, &shape)?).is_some() {
            return Err(r.error("names that differ", format!("`{name}` twice")));
        }
    }
    if r.at != all.len() {
        return Err(r.error("the end of the file", format!("{} more bytes", all.len() - r.at)));
    }
    Ok(state)
}
