//! Limits on what files and configurations may ask for.
//!
//! A description is checked before anything is made of it, so that a check takes time in the size of the file and not of its numbers. The
//! limits leave room for every network that a device could hold; a number beyond them is a mistake or an attack.

use std::fs::File;
use std::io::Read;
use std::path::Path;

#[cfg(feature = "json")]
use serde_json::Value;
use trefoil::{DType, GpuError};

use crate::core::error::{At, NnError, Result};

/// Whole numbers of a configuration that have no limit of their own: those that JSON readers keep exactly.
pub const NUMBER: u64 = 1 << 53;
/// Layers of a network, those of stacks (`num_layers`, `num_block`) and of containers included.
pub const LAYERS: u64 = 10_000;
/// Elements of a parameter, of a batch of two inputs, or of what a layer makes of them; and of all parameters together.
pub const ELEMENTS: usize = 1 << 48;
/// Steps of a recurrent layer.
pub const STEPS: usize = 1 << 24;
/// Pixels of an image after resizing.
pub const PIXELS: u64 = 1 << 26;
/// Nesting of lists and objects in JSON; the parser's own.
pub const JSON_DEPTH: usize = 128;
/// Bytes of a configuration.
pub const CONFIG_BYTES: u64 = 16 << 20;
/// Bytes of a Loom file, whose weights stand in the text, and of a tokenizer.
pub const MODEL_TEXT_BYTES: u64 = 4 << 30;
/// Bytes of a text, which is read as a whole.
pub const TEXT_BYTES: u64 = 64 << 30;
/// Bytes of the header of a NumPy array.
pub const NPY_HEADER: usize = 1 << 20;
/// Bytes that a byte of compressed data can stand for: that is the most that DEFLATE gives.
pub const INFLATED: u64 = 1032;

/// Limits by the key of a number, wherever it stands.
const KEYS: &[(&str, u64)] = &[
    ("num_layers", 1024),
    ("num_block", 128),
    ("num_splits", 4096),
    ("pre_layers", 1024),
    ("post_layers", 1024),
    ("max_len", 1 << 24),
    ("num_heads", 1 << 16),
    ("nhead", 1 << 16),
    ("kernel_size", 1 << 16),
    ("stride", 1 << 16),
    ("dilation", 1 << 16),
    ("groups", 1 << 20),
    ("num_groups", 1 << 20),
    ("deform_groups", 1 << 20),
    ("depth_multiplier", 1 << 20),
    ("n_power_iterations", 1000),
    ("routing_iterations", 1000),
    ("draws", 1 << 32),
    ("epochs", 1_000_000_000),
    ("batch_size", 1 << 24),
    ("accumulate", 1 << 20),
    ("seed", u64::MAX),
    // Values of elements.
    ("value", u64::MAX),
    ("mask_value", u64::MAX),
];

/// The limit of the whole numbers under a key.
pub fn of(key: &str) -> u64 {
    KEYS.iter().find(|(k, _)| *k == key).map_or(NUMBER, |(_, limit)| *limit)
}

/// Error unless all whole numbers in a value, which stands under `key` at `path`, are within their limits.
#[cfg(feature = "json")]
pub(crate) fn check_numbers(path: &str, key: &str, value: &Value) -> Result<()> {
    match value {
        Value::Number(n) => {
            let size = n.as_u64().or(n.as_i64().map(i64::unsigned_abs));
            match size {
                Some(size) if size > of(key) => {
                    Err(NnError::config(path, format!("expected at most {}, got {n}", of(key))))
                }
                _ => Ok(()),
            }
        }
        Value::Array(all) => {
            all.iter().enumerate().try_for_each(|(i, v)| check_numbers(&format!("{path}[{i}]"), key, v))
        }
        Value::Object(all) => all.iter().try_for_each(|(k, v)| {
            let dot = if path.is_empty() { "" } else { "." };
            check_numbers(&format!("{path}{dot}{k}"), k, v)
        }),
        _ => Ok(()),
    }
}

/// Layers that a description makes: one for each object with a `type`, and `num_layers` or `num_block` for a stack.
#[cfg(feature = "json")]
fn layers(value: &Value) -> u64 {
    match value {
        Value::Array(all) => all.iter().map(layers).sum(),
        Value::Object(all) => {
            let own = u64::from(all.get("type").is_some_and(Value::is_string));
            let stack = ["num_layers", "num_block"].iter().find_map(|k| all.get(*k)?.as_u64()).unwrap_or(own);
            all.values().map(layers).sum::<u64>().saturating_add(stack.max(own))
        }
        _ => 0,
    }
}

/// Error unless the layers of a list at `path` are within the limits on their numbers and on how many they are.
#[cfg(feature = "json")]
pub(crate) fn check_layers(path: &str, list: &[Value]) -> Result<()> {
    let mut count = 0u64;
    for (i, json) in list.iter().enumerate() {
        let at = format!("{path}[{i}]");
        check_numbers(&at, "", json)?;
        count = count.saturating_add(layers(json));
        if count > LAYERS {
            let what = format!("expected at most {LAYERS} layers in a network, got {count} up to here");
            return Err(NnError::config(at, what));
        }
    }
    Ok(())
}

/// Room for `n` more elements. Errors: `OutOfMemory` with the bytes.
pub(crate) fn reserve<T>(v: &mut Vec<T>, n: usize) -> Result<()> {
    v.try_reserve_exact(n).map_err(|_| {
        let requested = n.saturating_mul(size_of::<T>());
        NnError::Gpu(GpuError::OutOfMemory { requested, in_use: v.len() * size_of::<T>(), cached: 0 })
    })
}

/// Appends an element, as `push` does. Errors: `OutOfMemory` with the bytes.
pub(crate) fn push<T>(v: &mut Vec<T>, x: T) -> Result<()> {
    if v.len() == v.capacity() {
        // Twice as much each time, so that many pushes cost as much as one copy.
        reserve(v, v.len().max(4))?;
    }
    v.push(x);
    Ok(())
}

/// The elements of an iterator that knows how many there are. Errors: `OutOfMemory` with the bytes.
pub(crate) fn collect<T>(items: impl ExactSizeIterator<Item = T>) -> Result<Vec<T>> {
    let mut v = vec![];
    reserve(&mut v, items.len())?;
    v.extend(items);
    Ok(v)
}

/// A copy. Errors: `OutOfMemory` with the bytes.
pub(crate) fn copy<T: Copy>(from: &[T]) -> Result<Vec<T>> {
    collect(from.iter().copied())
}

/// Bytes of a tensor. Errors: `OutOfMemory` where they have no number.
pub(crate) fn tensor_bytes(dtype: DType, numel: usize) -> Result<usize> {
    let none = GpuError::OutOfMemory { requested: usize::MAX, in_use: 0, cached: 0 };
    numel.checked_mul(dtype.size()).ok_or(NnError::Gpu(none))
}

/// Zeroed bytes. Errors: `OutOfMemory`.
pub(crate) fn zeroed(n: usize) -> Result<Vec<u8>> {
    let mut bytes = vec![];
    reserve(&mut bytes, n)?;
    bytes.resize(n, 0);
    Ok(bytes)
}

/// A whole file of at most `limit` bytes. Errors: [`NnError::Io`]; [`NnError::Data`] for a larger one; `OutOfMemory`.
pub(crate) fn read_file(path: &Path, limit: u64) -> Result<Vec<u8>> {
    let file = File::open(path).map_err(NnError::io("read", path))?;
    let size = file.metadata().map_err(NnError::io("read", path))?.len();
    let mut bytes = vec![];
    reserve(&mut bytes, usize::try_from(size.min(limit)).unwrap_or(usize::MAX))?;
    file.take(limit.saturating_add(1)).read_to_end(&mut bytes).map_err(NnError::io("read", path))?;
    if bytes.len() as u64 > limit {
        let found = if size > limit { format!("{size}") } else { "more".into() };
        return Err(NnError::data(path, At::File, format!("at most {limit} bytes"), found));
    }
    Ok(bytes)
}

/// The text of a file of at most `limit` bytes. Errors: as [`read_file`]; [`NnError::Data`] with the offset of what is not UTF-8.
pub(crate) fn read_text(path: &Path, limit: u64) -> Result<String> {
    String::from_utf8(read_file(path, limit)?).map_err(|e| {
        let at = e.utf8_error().valid_up_to();
        NnError::data(path, At::Byte(at as u64), "UTF-8", format!("the byte {:#04x}", e.as_bytes()[at]))
    })
}

/// The text of a configuration. Errors: [`NnError::Io`]; [`NnError::Data`] for a file above [`CONFIG_BYTES`] or not in UTF-8.
pub fn read_config(path: impl AsRef<Path>) -> Result<String> {
    read_text(path.as_ref(), CONFIG_BYTES)
}
