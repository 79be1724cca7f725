//! IDX files, the format of MNIST and its relatives, plain or packed with gzip.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use trefoil::DType;

use super::Arrays;
use super::npy::{elements_of, take};
use crate::core::error::{At, NnError, Result};
use crate::core::host_tensor::{HostTensor, numel};

/// Reads an IDX file: u8, i32, f32 and f64 as they are, i8 and i16 as i32. Whether it is packed shows in its first bytes, not in its name.
/// Errors: [`NnError::Io`]; [`NnError::Data`] with the offset for a foreign, truncated or overlong file.
pub fn read_idx(path: impl AsRef<Path>) -> Result<HostTensor> {
    let path = path.as_ref();
    let file = File::open(path).map_err(NnError::io("open", path))?;
    let size = file.metadata().map_err(NnError::io("read", path))?.len();
    let mut file = BufReader::new(file);
    let packed = file.fill_buf().map_err(NnError::io("read", path))?.starts_with(&[0x1f, 0x8b]);
    if !packed {
        return read(&mut file, path, size);
    }
    unpack(file, path, size)
}

/// Reads an array out of `size` bytes of gzip data.
#[cfg(feature = "archives")]
fn unpack(file: impl BufRead, path: &Path, size: u64) -> Result<HostTensor> {
    let most = size.saturating_mul(crate::core::limits::INFLATED);
    read(&mut flate2::bufread::MultiGzDecoder::new(file), path, most).map_err(|e| match e {
        NnError::Io { source, .. } => NnError::data(path, At::File, "intact gzip data", source.to_string()),
        e => e,
    })
}

#[cfg(not(feature = "archives"))]
fn unpack(_file: impl BufRead, path: &Path, _size: u64) -> Result<HostTensor> {
    Err(NnError::data(
        path,
        At::File,
        "an unpacked file (this build lacks the feature `archives`)",
        "gzip data",
    ))
}

/// Reads an array of at most `most` bytes.
fn read(from: &mut dyn Read, path: &Path, most: u64) -> Result<HostTensor> {
    let fail = |byte: u64, expected: String, found: String| {
        Err(NnError::data(path, At::Byte(byte), expected, found))
    };
    let io = || NnError::io("read", path);
    let Some(magic) = take(from, 4).map_err(io())?.filter(|m| m[..2] == [0, 0]) else {
        return fail(0, "two zero bytes, a type and a rank".into(), "something else".into());
    };
    let (dtype, size) = match magic[2] {
        0x08 => (DType::U8, 1),
        0x09 => (DType::I32, 1),
        0x0b => (DType::I32, 2),
        0x0c => (DType::I32, 4),
        0x0d => (DType::F32, 4),
        0x0e => (DType::F64, 8),
        other => return fail(2, "an element type from 0x08 to 0x0e".into(), format!("{other:#04x}")),
    };
    let rank = usize::from(magic[3]);
    let Some(sizes) = take(from, 4 * rank).map_err(io())? else {
        return fail(4, format!("{rank} sizes"), "the end".into());
    };
    let shape: Vec<usize> =
        sizes.chunks_exact(4).map(|c| u32::from_be_bytes([c[0], c[1], c[2], c[3]]) as usize).collect();
    let Some(len) = numel(&shape).and_then(|n| n.checked_mul(size)) else {
        return fail(4, "a shape that fits in memory".into(), format!("{shape:?}"));
    };
    let mut raw = match elements_of(from, len, most, io())? {
        Ok(raw) => raw,
        Err(found) => {
            return fail(4 + 4 * rank as u64, format!("{len} bytes of elements for shape {shape:?}"), found);
        }
    };
    let bytes = match magic[2] {
        0x09 => raw.iter().flat_map(|&b| i32::from(b as i8).to_le_bytes()).collect(),
        0x0b => raw
            .chunks_exact(2)
            .flat_map(|c| i32::from(i16::from_be_bytes([c[0], c[1]])).to_le_bytes())
            .collect(),
        _ => {
            raw.chunks_exact_mut(size).for_each(<[u8]>::reverse);
            raw
        }
    };
    HostTensor::new(dtype, &shape, bytes)
}

/// Reads features and class ids from two IDX files, such as MNIST's images `[n, 28, 28]` and labels `[n]`. Errors: as [`read_idx`];
/// [`NnError::Data`] for labels that are not one id per item.
pub fn read_idx_pair(features: impl AsRef<Path>, labels: impl AsRef<Path>) -> Result<Arrays> {
    let (x, y) = (read_idx(features)?, read_idx(&labels)?);
    let n = x.shape.first().copied().unwrap_or(0);
    if y.shape != [n] || y.dtype.is_float() {
        let expected = format!("class ids of shape [{n}], one per item");
        return Err(NnError::data(labels, At::File, expected, format!("{} {:?}", y.dtype, y.shape)));
    }
    Arrays::new(x, y)
}
