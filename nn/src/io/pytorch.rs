//! Files of `torch.save` (PyTorch 1.6 and newer): a zip archive of a pickle and of the storages that it refers to. Tensors are read where they
//! lie in the archive; see [`pickle`](crate::io::pickle) for what of the pickle is understood.

use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use rawzip::{CompressionMethod, RECOMMENDED_BUFFER_SIZE, ZipArchive};

use crate::core::error::{At, NnError, Result};
use crate::core::limits;
use crate::io::pickle;
use crate::io::stored::{Form, Stored, row_major};

/// Bytes of a pickle.
const PICKLE: u64 = 100_000_000;

/// An entry of the archive: where its bytes are.
struct Entry {
    start: u64,
    end: u64,
    stored: bool,
}

/// The entries by name. Errors: [`NnError::Data`] for a damaged archive.
fn entries(path: &Path, file: &File, size: u64) -> Result<HashMap<String, Entry>> {
    let damaged = |what: String| NnError::data(path, At::File, "an intact zip archive", what);
    let mut buffer = limits::zeroed(RECOMMENDED_BUFFER_SIZE)?;
    let archive = file.try_clone().map_err(NnError::io("open", path))?;
    let archive = ZipArchive::from_file(archive, &mut buffer).map_err(|e| damaged(e.to_string()))?;
    let mut all = archive.entries(&mut buffer);
    let mut out = HashMap::new();
    while let Some(record) = all.next_entry().map_err(|e| damaged(e.to_string()))? {
        let name = record.file_path();
        let name = std::str::from_utf8(name.as_bytes()).map_err(|e| damaged(e.to_string()))?.to_string();
        let entry = archive.get_entry(record.wayfinder()).map_err(|e| damaged(e.to_string()))?;
        let (start, end) = entry.compressed_data_range();
        if start > end || end > size {
            return Err(damaged(format!("`{name}` at {start}..{end} of {size} bytes")));
        }
        let stored = record.compression_method() == CompressionMethod::STORE;
        out.insert(name, Entry { start, end, stored });
    }
    Ok(out)
}

/// The bytes of an entry.
fn bytes(path: &Path, file: &File, entry: &Entry, most: u64) -> Result<Vec<u8>> {
    use std::io::{Seek, SeekFrom};
    let n = entry.end - entry.start;
    if n > most {
        return Err(NnError::data(
            path,
            At::Byte(entry.start),
            format!("at most {most} bytes"),
            format!("{n}"),
        ));
    }
    let mut out = limits::zeroed(n as usize)?;
    let mut file = file;
    file.seek(SeekFrom::Start(entry.start))
        .and_then(|_| file.read_exact(&mut out))
        .map_err(NnError::io("read", path))?;
    Ok(out)
}

/// The tensors of a file, which are in shard `shard`. `None`: a zip archive of something else. Errors: [`NnError::Io`]; [`NnError::Data`] for a
/// damaged archive or pickle, a tensor that is not within its storage, compressed or big-endian storages.
pub(super) fn read(path: &Path, file: &File, shard: usize) -> Result<Option<Vec<(String, Stored)>>> {
    let size = file.metadata().map_err(NnError::io("read", path))?.len();
    let entries = entries(path, file, size)?;
    let Some(folder) = entries.keys().find_map(|name| name.strip_suffix("data.pkl")) else { return Ok(None) };
    let wrong = |entry: &str, expected: &str, found: String| {
        NnError::data(path, At::Entry(entry.to_string()), expected, found)
    };
    let entry = |name: &str| -> Result<&Entry> {
        let name = format!("{folder}{name}");
        match entries.get(&name) {
            Some(e) if e.stored => Ok(e),
            Some(_) => Err(wrong(
                &name,
                "an entry that is not compressed, as torch.save writes",
                "a compressed one".into(),
            )),
            None => Err(wrong(&name, "an entry of that name", "none".into())),
        }
    };
    if entries.contains_key(&format!("{folder}byteorder")) {
        let order = bytes(path, file, entry("byteorder")?, 16)?;
        if order != b"little" {
            let found = String::from_utf8_lossy(&order).into_owned();
            return Err(wrong("byteorder", "little-endian storages", found));
        }
    }
    let pickled = bytes(path, file, entry("data.pkl")?, PICKLE)?;
    let found = pickle::tensors(&pickled).map_err(|(at, what)| {
        wrong(&format!("{folder}data.pkl"), "a pickle of tensors", format!("at byte {at}: {what}"))
    })?;
    let mut out = vec![];
    for (name, t) in found {
        let width = t.dtype.bitsize() / 8;
        let storage = entry(&format!("data/{}", t.key))?;
        if t.len.checked_mul(width).is_none_or(|n| n as u64 > storage.end - storage.start) {
            let found = format!("{} bytes", storage.end - storage.start);
            return Err(wrong(&name, &format!("a storage of {} elements of {width} bytes", t.len), found));
        }
        let strides = (t.strides != row_major(&t.shape) && !t.shape.contains(&0)).then_some(t.strides);
        let start = storage.start + (t.offset * width) as u64;
        let stored = Stored { shard, start, form: Form::Plain(t.dtype), shape: t.shape, strides, sum: None };
        limits::push(&mut out, (name, stored))?;
    }
    Ok(Some(out))
}
