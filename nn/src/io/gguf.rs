//! GGUF, the format of llama.cpp, versions 2 and 3: texts of the header, and where the tensors lie.
//! Source: the specification in the ggml repository, `docs/gguf.md`.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

use safetensors::tensor::Dtype;

use crate::core::error::{At, NnError, Result};
use crate::core::host_tensor::numel;
use crate::core::limits;
use crate::io::stored::{Form, Stored};

pub(super) const MAGIC: &[u8; 4] = b"GGUF";
/// Axes of a tensor.
const AXES: u32 = 8;
/// Bytes of a text of the header.
const TEXT: u64 = 1 << 24;

/// Texts of the header by their keys.
pub(super) type Texts = BTreeMap<String, String>;

/// A tensor of the header, before the place of the data is known.
struct Info {
    name: String,
    shape: Vec<usize>,
    form: Form,
    offset: u64,
}

/// The header, read from its beginning. Every length is held against what is left of the file before it is used.
struct Header<'a> {
    path: &'a Path,
    from: BufReader<&'a File>,
    at: u64,
    size: u64,
}

impl Header<'_> {
    fn wrong<T>(&self, expected: impl Into<String>, found: impl Into<String>) -> Result<T> {
        Err(NnError::data(self.path, At::Byte(self.at), expected.into(), found.into()))
    }

    fn bytes(&mut self, n: u64) -> Result<Vec<u8>> {
        if n > self.size - self.at {
            let found = format!("{} left in the file", self.size - self.at);
            return self.wrong(format!("{n} bytes"), found);
        }
        let mut bytes = limits::zeroed(n as usize)?;
        self.from.read_exact(&mut bytes).map_err(NnError::io("read", self.path))?;
        self.at += n;
        Ok(bytes)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut out = [0; N];
        out.copy_from_slice(&self.bytes(N as u64)?);
        Ok(out)
    }

    fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// A number of things that take at least `least` bytes each.
    fn count(&mut self, least: u64) -> Result<u64> {
        let n = self.u64()?;
        match n > (self.size - self.at) / least {
            true => self.wrong(
                format!("a number of entries that {} bytes hold", self.size - self.at),
                format!("{n}"),
            ),
            false => Ok(n),
        }
    }

    fn text(&mut self) -> Result<String> {
        let n = self.u64()?;
        if n > TEXT {
            return self.wrong(format!("a text of at most {TEXT} bytes"), format!("{n}"));
        }
        let bytes = self.bytes(n)?;
        String::from_utf8(bytes).or_else(|_| self.wrong("UTF-8", "other bytes"))
    }

    /// A value as text; of an array, how long it is. Types: 0 to 7 numbers of 8, 16 and 32 bits and booleans, 8 text, 9 array, 10 to 12 numbers
    /// of 64 bits.
    fn value(&mut self, kind: u32) -> Result<String> {
        Ok(match kind {
            0 => self.array::<1>()?[0].to_string(),
            1 => i8::from_le_bytes(self.array()?).to_string(),
            2 => u16::from_le_bytes(self.array()?).to_string(),
            3 => i16::from_le_bytes(self.array()?).to_string(),
            4 => self.u32()?.to_string(),
            5 => i32::from_le_bytes(self.array()?).to_string(),
            6 => f32::from_le_bytes(self.array()?).to_string(),
            7 => (self.array::<1>()?[0] != 0).to_string(),
            8 => self.text()?,
            10 => self.u64()?.to_string(),
            11 => i64::from_le_bytes(self.array()?).to_string(),
            12 => f64::from_le_bytes(self.array()?).to_string(),
            9 => {
                let of = self.u32()?;
                let width = match of {
                    0 | 1 | 7 => 1,
                    2 | 3 => 2,
                    4..=6 => 4,
                    8 | 10..=12 => 8,
                    _ => return self.wrong("an array of numbers or texts", format!("one of type {of}")),
                };
                let n = self.count(width)?;
                match of {
                    8 => (0..n).try_for_each(|_| self.text().map(drop))?,
                    // In pieces: an array of a vocabulary's scores may be long.
                    _ => self.skip(n * width)?,
                }
                format!("{n} values")
            }
            _ => return self.wrong("a type of value from 0 to 12", format!("{kind}")),
        })
    }

    fn skip(&mut self, mut n: u64) -> Result<()> {
        while n > 0 {
            let piece = n.min(1 << 16);
            self.bytes(piece)?;
            n -= piece;
        }
        Ok(())
    }

    fn info(&mut self) -> Result<Info> {
        let name = self.text()?;
        let axes = self.u32()?;
        if axes > AXES {
            return self.wrong(format!("at most {AXES} axes of `{name}`"), format!("{axes}"));
        }
        let mut shape = vec![];
        for _ in 0..axes {
            let n = self.u64()?;
            match usize::try_from(n) {
                Ok(n) => shape.push(n),
                Err(_) => {
                    return self.wrong(format!("a size of `{name}` that the machine has"), format!("{n}"));
                }
            }
        }
        // The first size is that of neighbouring elements.
        shape.reverse();
        let form = match self.u32()? {
            0 => Form::Plain(Dtype::F32),
            1 => Form::Plain(Dtype::F16),
            2 => Form::Q4_0,
            8 => Form::Q8_0,
            24 => Form::Plain(Dtype::I8),
            25 => Form::Plain(Dtype::I16),
            26 => Form::Plain(Dtype::I32),
            27 => Form::Plain(Dtype::I64),
            28 => Form::Plain(Dtype::F64),
            30 => Form::Plain(Dtype::BF16),
            other => Form::Ggml(other),
        };
        Ok(Info { name, shape, form, offset: self.u64()? })
    }
}

/// Texts and tensors of a file, whose tensors are in shard `shard`. Errors: [`NnError::Io`]; [`NnError::Data`] for what does not fit the format, a
/// tensor that is not within the file or has rows that are no whole blocks, two of one name.
pub(super) fn read(path: &Path, file: &File, shard: usize) -> Result<(Texts, Vec<(String, Stored)>)> {
    let size = file.metadata().map_err(NnError::io("read", path))?.len();
    let mut h = Header { path, from: BufReader::new(file), at: 0, size };
    if h.array()? != *MAGIC {
        return h.wrong("a GGUF file", "another one");
    }
    let version = h.u32()?;
    if !(2..=3).contains(&version) {
        return h.wrong("version 2 or 3, little-endian", format!("{version}"));
    }
    // A tensor takes at least its name's length, axes, type and offset; a value its name's length, type and a byte.
    let (tensors, values) = (h.count(24)?, h.count(13)?);
    let mut texts = BTreeMap::new();
    for _ in 0..values {
        let name = h.text()?;
        let kind = h.u32()?;
        let value = h.value(kind)?;
        texts.insert(name, value);
    }
    let mut infos = vec![];
    for _ in 0..tensors {
        let info = h.info()?;
        limits::push(&mut infos, info)?;
    }
    let alignment = match texts.get("general.alignment").map_or(Ok(32), |t| t.parse::<u64>()) {
        Ok(n) if n.is_power_of_two() && n <= 1 << 20 => n,
        _ => return h.wrong("a power of two as general.alignment", texts["general.alignment"].clone()),
    };
    let data = h.at.next_multiple_of(alignment);
    let mut out: Vec<(String, Stored)> = vec![];
    for Info { name, shape, form, offset } in infos {
        let wrong = |expected: String, found: String| {
            Err(NnError::data(path, At::Entry(name.clone()), expected, found))
        };
        let (block, bytes) = form.block();
        if shape.last().copied().unwrap_or(1) % block != 0 {
            return wrong(format!("rows of whole blocks of {block} elements"), format!("shape {shape:?}"));
        }
        let length = numel(&shape).and_then(|n| (n / block).checked_mul(bytes));
        let start = data.checked_add(offset);
        let end = start.zip(length).and_then(|(s, n)| s.checked_add(n as u64));
        match (start, end) {
            (Some(start), Some(end)) if end <= size => {
                let stored = Stored { shard, start, form, shape, strides: None, sum: None };
                limits::push(&mut out, (name, stored))?;
            }
            _ => {
                return wrong(
                    format!("data within the file's {size} bytes"),
                    format!("shape {shape:?} at {offset}"),
                );
            }
        }
    }
    Ok((texts, out))
}
