//! Text as token ids, and windows of a token stream for language models.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use trefoil::DType;
use trefoil::ops::elementwise::Binary;

use super::source::{check, device_rows};
use super::{Batch, Batches, Item, ItemSource, Order, Sampler, Source};
use crate::core::autograd::no_grad;
#[cfg(feature = "tokenizers")]
use crate::core::error::{At, NnError};
use crate::core::error::{Result, invalid};
use crate::core::host_tensor::HostTensor;
use crate::core::limits;
use crate::core::tensor::{Device, Tensor};

/// A way to write text as ids from 0 to [`size`](Encoding::size) - 1.
pub trait Encoding: Send + Sync {
    /// Ids of a text. Errors: text that the encoding cannot express.
    fn encode(&self, text: &str) -> Result<Vec<u32>>;
    /// The text of ids. Errors: ids that it does not have, or that give no text.
    fn decode(&self, ids: &[u32]) -> Result<String>;
    /// Number of ids.
    fn size(&self) -> usize;
    /// The characters by id, where ids are characters; none for other encodings.
    fn vocabulary(&self) -> Option<String> {
        None
    }
}

/// The bytes of UTF-8: 256 ids, any text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Bytes;

impl Encoding for Bytes {
    fn encode(&self, text: &str) -> Result<Vec<u32>> {
        Ok(text.bytes().map(u32::from).collect())
    }

    /// What is not UTF-8, as at the edges of a window, becomes replacement characters.
    fn decode(&self, ids: &[u32]) -> Result<String> {
        let bytes: Option<Vec<u8>> = ids.iter().map(|&i| u8::try_from(i).ok()).collect();
        let bytes = bytes.ok_or_else(|| invalid("Bytes", "ids", "ids below 256", "others"))?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    fn size(&self) -> usize {
        256
    }
}

/// A vocabulary of characters, numbered in the order of their code points.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Characters {
    chars: Vec<char>,
    ids: HashMap<char, u32>,
}

impl Characters {
    /// The characters that a text has.
    pub fn of(text: &str) -> Self {
        let mut chars: Vec<char> = text.chars().collect();
        chars.sort_unstable();
        chars.dedup();
        let ids = chars.iter().zip(0..).map(|(&c, i)| (c, i)).collect();
        Characters { chars, ids }
    }

    /// The characters, by id. [`Characters::of`] makes the same vocabulary from their string.
    pub fn chars(&self) -> &[char] {
        &self.chars
    }
}

impl Encoding for Characters {
    fn encode(&self, text: &str) -> Result<Vec<u32>> {
        let id = |(at, c): (usize, char)| {
            self.ids.get(&c).copied().ok_or_else(|| {
                invalid("Characters", "text", "characters of the vocabulary", format!("{c:?} at byte {at}"))
            })
        };
        text.char_indices().map(id).collect()
    }

    fn decode(&self, ids: &[u32]) -> Result<String> {
        let char = |&i: &u32| {
            self.chars.get(i as usize).copied().ok_or_else(|| {
                invalid("Characters", "ids", format!("ids below {}", self.chars.len()), format!("{i}"))
            })
        };
        ids.iter().map(char).collect()
    }

    fn size(&self) -> usize {
        self.chars.len()
    }

    fn vocabulary(&self) -> Option<String> {
        Some(self.chars.iter().collect())
    }
}

/// A tokenizer of Hugging Face, from its `tokenizer.json`.
#[cfg(feature = "tokenizers")]
#[derive(Debug, Clone)]
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    special: bool,
}

/// Largest length to which a file may have texts padded, or of which it may be the multiple.
#[cfg(feature = "tokenizers")]
const MAX_PADDING: u64 = 1 << 20;

/// What the tokenizers crate panics about instead of returning an error: text that is no JSON, and merges of which the second part is shorter
/// than the prefix that is cut off it. And what it does whatever it takes: padding.
#[cfg(feature = "tokenizers")]
fn check_file(bytes: &[u8]) -> std::result::Result<(), String> {
    let file: serde_json::Value = serde_json::from_slice(bytes).map_err(|e| e.to_string())?;
    let padding = &file["padding"];
    for n in
        [&padding["pad_to_multiple_of"], &padding["strategy"]["Fixed"]].into_iter().filter_map(|n| n.as_u64())
    {
        if n > MAX_PADDING {
            return Err(format!("padding to {n} tokens, where {MAX_PADDING} is the most"));
        }
    }
    let model = &file["model"];
    let prefix = model["continuing_subword_prefix"].as_str().unwrap_or_default();
    for merge in model["merges"].as_array().into_iter().flatten() {
        let second = merge[1].as_str().or_else(|| merge.as_str().and_then(|m| m.split(' ').nth(1)));
        if second.is_some_and(|s| !s.is_char_boundary(prefix.len())) {
            return Err(format!("the merge {merge}, which is shorter than the prefix {prefix:?}"));
        }
    }
    Ok(())
}

#[cfg(feature = "tokenizers")]
impl Tokenizer {
    /// Reads `tokenizer.json`. Errors: [`NnError::Io`](crate::NnError::Io); [`NnError::Data`](crate::NnError::Data) for a file that describes no tokenizer.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let bytes = limits::read_file(path, limits::MODEL_TEXT_BYTES)?;
        let fail = |found: String| NnError::data(path, At::File, "a tokenizer in JSON", found);
        check_file(&bytes).map_err(fail)?;
        let inner = tokenizers::Tokenizer::from_bytes(bytes).map_err(|e| fail(e.to_string()))?;
        let added =
            inner.get_post_processor().map_or(0, |p| tokenizers::PostProcessor::added_tokens(p, false));
        if let Some(t) = inner.get_truncation()
            && t.stride.saturating_add(added) >= t.max_length
        {
            let found = format!(
                "truncation to {} tokens with a stride of {} and {added} special ones",
                t.max_length, t.stride
            );
            return Err(fail(found));
        }
        Ok(Tokenizer { inner, special: false })
    }

    /// Adds the tokens that the tokenizer's template puts around a text, and keeps special tokens when decoding.
    pub fn special_tokens(mut self) -> Self {
        self.special = true;
        self
    }
}

#[cfg(feature = "tokenizers")]
impl Encoding for Tokenizer {
    fn encode(&self, text: &str) -> Result<Vec<u32>> {
        let done = self.inner.encode(text, self.special);
        Ok(done
            .map_err(|e| invalid("Tokenizer", "text", "text that the tokenizer takes", e.to_string()))?
            .get_ids()
            .to_vec())
    }

    fn decode(&self, ids: &[u32]) -> Result<String> {
        let special = self.inner.get_added_vocabulary();
        let written = |token: String| self.special || !special.is_special_token(&token);
        // Some decoders take a token for granted.
        if !ids.iter().any(|&id| self.inner.id_to_token(id).is_some_and(written)) {
            return Ok(String::new());
        }
        let done = self.inner.decode(ids, !self.special);
        done.map_err(|e| invalid("Tokenizer", "ids", "ids of the tokenizer", e.to_string()))
    }

    fn size(&self) -> usize {
        self.inner.get_vocab_size(true)
    }
}

/// Reads a text file. Errors: [`NnError::Io`](crate::NnError::Io); [`NnError::Data`](crate::NnError::Data) with the offset of what is not UTF-8.
pub fn read_text(path: impl AsRef<Path>) -> Result<String> {
    limits::read_text(path.as_ref(), limits::TEXT_BYTES)
}

/// Windows of one long token stream: an item's input is `length` tokens (i64), its target the same stream one token later.
///
/// Consecutive windows do not overlap. [`step`](Windows::step)`(1)` gives every window; with
/// [`Sampler::Uniform`] an epoch is then a number of windows from random places.
#[derive(Debug, Clone)]
pub struct Windows {
    tokens: Arc<[u32]>,
    length: usize,
    step: usize,
    vocabulary: usize,
}

impl Windows {
    /// Consecutive windows over ids below `vocabulary`; tokens after the last full window are not used. Errors: a length of 0, fewer than
    /// `length` + 1 tokens, an id out of range.
    pub fn new(tokens: impl Into<Arc<[u32]>>, length: usize, vocabulary: usize) -> Result<Self> {
        let tokens = tokens.into();
        if length == 0 || tokens.len() <= length {
            let got = format!("{} tokens for windows of {length}", tokens.len());
            return Err(invalid("Windows", "tokens", "more tokens than a window of at least 1 has", got));
        }
        if let Some(at) = tokens.iter().position(|&t| t as usize >= vocabulary) {
            let got = format!("{} at position {at}", tokens[at]);
            return Err(invalid("Windows", "tokens", format!("ids below {vocabulary}"), got));
        }
        Ok(Windows { tokens, length, step: length, vocabulary })
    }

    /// Tokens between the starts of neighbouring windows. Errors: 0.
    pub fn step(mut self, step: usize) -> Result<Self> {
        if step == 0 {
            return Err(invalid("Windows", "step", "at least 1", "0"));
        }
        self.step = step;
        Ok(self)
    }

    /// Tokens per window.
    pub fn length(&self) -> usize {
        self.length
    }
}

impl ItemSource for Windows {
    fn len(&self) -> usize {
        (self.tokens.len() - self.length - 1) / self.step + 1
    }

    fn classes(&self) -> usize {
        self.vocabulary
    }

    fn item(&self, i: usize) -> Result<Item> {
        let start = i.saturating_mul(self.step);
        let Some(part) = self.tokens.get(start..start.saturating_add(self.length + 1)) else {
            let expected = format!("a window below {}", self.len());
            return Err(invalid("Windows", "i", expected, format!("{i}")));
        };
        let ids: Vec<i64> = part.iter().map(|&t| t.into()).collect();
        let shape = [self.length];
        Ok(Item {
            x: HostTensor::from_slice(&ids[..self.length], &shape)?,
            y: HostTensor::from_slice(&ids[1..], &shape)?,
        })
    }
}

/// [`Windows`] of a token stream that lies on the device: batches `x`, `y` `[len, length]` (i64) are cut out there, so that training
/// transfers nothing.
#[derive(Debug)]
pub struct ResidentText {
    tokens: Tensor,
    windows: Windows,
    sampler: Sampler,
}

impl ResidentText {
    /// Uploads the stream (4 bytes per token). Errors: `OutOfMemory`; ids that i32 does not hold.
    pub fn new(windows: Windows, device: &Device) -> Result<Self> {
        let ids: Option<Vec<i32>> = windows.tokens.iter().map(|&t| t.try_into().ok()).collect();
        let ids = ids.ok_or_else(|| invalid("ResidentText", "tokens", "ids below 2^31", "a larger one"))?;
        let tokens = Tensor::from_slice(device, &ids, &[ids.len()])?;
        Ok(ResidentText { tokens, windows, sampler: Sampler::All })
    }

    /// Which windows an epoch serves. Errors: a sampler that does not fit.
    pub fn sampler(mut self, sampler: Sampler) -> Result<Self> {
        sampler.check(self.windows.len())?;
        self.sampler = sampler;
        Ok(self)
    }

    /// The windows `rows` (i64 `[len, 1]`), `shift` tokens later.
    fn cut(&self, rows: &Tensor, shift: f64) -> Result<Tensor> {
        let (len, t) = (rows.shape()[0], self.windows.length);
        let within = Tensor::arange(rows.device(), DType::I64, shift, 1.0, t)?.reshape(&[1, t])?;
        let at = within.binary(Binary::Add { alpha: self.windows.step as f64 }, rows)?;
        self.tokens.index_select(0, &at.reshape(&[len * t])?)?.reshape(&[len, t])?.to_dtype(DType::I64)
    }
}

impl Source for ResidentText {
    fn items(&self) -> usize {
        self.sampler.count(self.windows.len())
    }

    fn classes(&self) -> usize {
        self.windows.vocabulary
    }

    fn epoch(&self, order: Option<Order>, batch: usize) -> Result<Batches<'_>> {
        check(batch)?;
        let (device, n) = (self.tokens.device(), self.items());
        let rows = match device_rows(device, &self.sampler, self.windows.len(), order)? {
            Some(rows) => rows,
            None => Tensor::arange(device, DType::I64, 0.0, 1.0, n)?,
        };
        Ok(Box::new((0..n.div_ceil(batch)).map(move |i| {
            let start = i * batch;
            let len = batch.min(n - start);
            no_grad(|| {
                let rows = rows.narrow(0, start, len)?.reshape(&[len, 1])?;
                Ok(Batch { x: self.cut(&rows, 0.0)?, y: self.cut(&rows, 1.0)?, len })
            })
        })))
    }
}
