//! Arrays of NumPy: `.npy`, format versions 1 to 3.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

use trefoil::DType;

use crate::core::error::{At, NnError, Result};
use crate::core::host_tensor::{HostTensor, numel};
use crate::core::limits;

/// How elements lie in a file.
struct Elements {
    /// `f`, `i`, `u` or `b`.
    kind: char,
    size: usize,
    big_endian: bool,
}

impl Elements {
    /// The dtype that elements of this kind get: their own, or one that holds all of their values.
    fn dtype(&self) -> Option<DType> {
        Some(match (self.kind, self.size) {
            ('f', 2) => DType::F16,
            ('f', 4) => DType::F32,
            ('f', 8) => DType::F64,
            ('u' | 'b', 1) => DType::U8,
            ('i', 1 | 2 | 4) | ('u', 2) => DType::I32,
            ('i', 8) | ('u', 4) => DType::I64,
            _ => return None,
        })
    }

    /// Little-endian elements of [`Elements::dtype`].
    fn decode(&self, raw: &[u8]) -> Vec<u8> {
        let wide = self.dtype().map_or(self.size, DType::size);
        let mut out = Vec::with_capacity(raw.len() / self.size * wide);
        for element in raw.chunks_exact(self.size) {
            let mut le = [0; 8];
            le[..self.size].copy_from_slice(element);
            if self.big_endian {
                le[..self.size].reverse();
            }
            let negative = self.kind == 'i' && le[self.size - 1] & 0x80 != 0;
            if negative {
                le[self.size..].fill(0xff);
            }
            out.extend_from_slice(&le[..wide]);
        }
        out
    }
}

/// Reads exactly `len` bytes without trusting `len` for the allocation. `None` if there are fewer.
pub(super) fn take(from: &mut dyn Read, len: usize) -> std::io::Result<Option<Vec<u8>>> {
    let mut bytes = vec![];
    from.take(len as u64).read_to_end(&mut bytes)?;
    Ok((bytes.len() == len).then_some(bytes))
}

/// Reads the `len` bytes that a header claims and that are all that is left, of which the file can hold at most `most`. `None` where it
/// holds another number, with what was found. Errors: `OutOfMemory`.
pub(super) fn elements_of(
    from: &mut dyn Read,
    len: usize,
    most: u64,
    io: impl FnOnce(std::io::Error) -> NnError,
) -> Result<std::result::Result<Vec<u8>, String>> {
    if len as u64 > most {
        return Ok(Err(format!("at most {most}")));
    }
    let mut raw = vec![];
    limits::reserve(&mut raw, len)?;
    from.take((len as u64).saturating_add(1)).read_to_end(&mut raw).map_err(io)?;
    Ok(match raw.len() {
        n if n == len => Ok(raw),
        n if n > len => Err("more".into()),
        n => Err(format!("{n}")),
    })
}

/// The text after `'key':` in the header's dictionary.
fn field<'a>(header: &'a str, key: &str) -> Option<&'a str> {
    let (_, rest) = header.split_once(&format!("'{key}'"))?;
    Some(rest.trim_start().strip_prefix(':')?.trim_start())
}

fn parse(header: &str) -> Option<(String, bool, Vec<usize>)> {
    let descr = field(header, "descr")?.strip_prefix('\'')?.split('\'').next()?.to_string();
    let fortran = field(header, "fortran_order")?.starts_with("True");
    let (shape, _) = field(header, "shape")?.strip_prefix('(')?.split_once(')')?;
    let shape = shape.split(',').map(str::trim).filter(|s| !s.is_empty()).map(|s| s.parse().ok());
    Some((descr, fortran, shape.collect::<Option<_>>()?))
}

fn elements(descr: &str) -> Option<Elements> {
    let mut chars = descr.chars();
    let (order, kind) = (chars.next()?, chars.next()?);
    let e = Elements { kind, size: chars.as_str().parse().ok()?, big_endian: order == '>' };
    (matches!(order, '<' | '>' | '|' | '=') && e.dtype().is_some()).then_some(e)
}

/// Column-major elements in row-major order.
fn row_major(bytes: &[u8], shape: &[usize], size: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len());
    // Distance in the file between neighbours along each axis.
    let mut strides = vec![1; shape.len()];
    for d in 1..shape.len() {
        strides[d] = strides[d - 1] * shape[d - 1];
    }
    let mut index = vec![0; shape.len()];
    for _ in 0..bytes.len() / size {
        let at: usize = index.iter().zip(&strides).map(|(i, s)| i * s).sum();
        out.extend_from_slice(&bytes[at * size..(at + 1) * size]);
        for d in (0..shape.len()).rev() {
            index[d] += 1;
            if index[d] < shape[d] {
                break;
            }
            index[d] = 0;
        }
    }
    out
}

/// Reads one array of at most `most` bytes. Only the array `name` of an archive is named in errors.
pub(super) fn read(from: &mut dyn Read, path: &Path, name: Option<&str>, most: u64) -> Result<HostTensor> {
    let fail = |byte: usize, expected: &str, found: String| {
        let expected = name.map_or(expected.into(), |n| format!("{expected} (in `{n}`)"));
        Err(NnError::data(path, At::Byte(byte as u64), expected, found))
    };
    let io = || NnError::io("read", path);
    let Some(magic) = take(from, 8).map_err(io())?.filter(|m| m.starts_with(b"\x93NUMPY")) else {
        return fail(0, "the signature of a NumPy array", "something else".into());
    };
    let width = match magic[6] {
        1 => 2,
        2 | 3 => 4,
        v => return fail(6, "format version 1, 2 or 3", format!("{v}")),
    };
    let Some(len) = take(from, width).map_err(io())? else {
        return fail(8, "the length of the header", "the end".into());
    };
    let len = len.iter().rev().fold(0, |n, &b| n << 8 | usize::from(b));
    let start = 8 + width;
    if len > limits::NPY_HEADER {
        return fail(8, &format!("a header of at most {} bytes", limits::NPY_HEADER), format!("{len}"));
    }
    let Some(header) = take(from, len).map_err(io())? else {
        return fail(start, &format!("a header of {len} bytes"), "the end".into());
    };
    let header = String::from_utf8_lossy(&header);
    let Some((descr, fortran, shape)) = parse(&header) else {
        return fail(
            start,
            "a header with a simple `descr`, `fortran_order` and `shape`",
            header.trim().into(),
        );
    };
    let Some((e, dtype)) = elements(&descr).and_then(|e| e.dtype().map(|d| (e, d))) else {
        let expected = "floats of 16 to 64 bits, integers, bytes or booleans (no u64, text or objects)";
        return fail(start, expected, format!("`{descr}`"));
    };
    let Some(len) = numel(&shape).and_then(|n| n.checked_mul(e.size)) else {
        return fail(start, "a shape that fits in memory", format!("{shape:?}"));
    };
    let data = start + header.len();
    let raw = match elements_of(from, len, most, io())? {
        Ok(raw) => raw,
        Err(found) => {
            return fail(data, &format!("{len} bytes of elements for shape {shape:?}"), found);
        }
    };
    let raw = if fortran { row_major(&raw, &shape, e.size) } else { raw };
    HostTensor::new(dtype, &shape, e.decode(&raw))
}

/// Reads a `.npy` file: f16, f32, f64, i32, i64 and u8 as they are, booleans as u8, other integers of at most 32 bits as the next wider of
/// these; either byte order, C and Fortran order (the result is row-major). Errors: [`NnError::Io`]; [`NnError::Data`] with the offset
/// for other dtypes, a malformed header, or fewer or more elements than the shape has.
pub fn read_npy(path: impl AsRef<Path>) -> Result<HostTensor> {
    let path = path.as_ref();
    let file = File::open(path).map_err(NnError::io("open", path))?;
    let most = file.metadata().map_err(NnError::io("read", path))?.len();
    read(&mut BufReader::new(file), path, None, most)
}
