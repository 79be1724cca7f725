//! Archives of NumPy: `.npz`, zip files of `.npy` arrays.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use flate2::read::DeflateDecoder;
use rawzip::{CompressionMethod, RECOMMENDED_BUFFER_SIZE, ZipArchive};

use super::npy::read;
use crate::core::error::{At, NnError, Result};
use crate::core::host_tensor::HostTensor;
use crate::core::limits;

/// Reads the arrays of a `.npz` file, compressed or not, by name. `names`: only these. Errors: as [`read_npy`](super::read_npy);
/// [`NnError::Data`] for a damaged archive and for a name that is not in it.
pub fn read_npz(path: impl AsRef<Path>, names: Option<&[&str]>) -> Result<BTreeMap<String, HostTensor>> {
    let path = path.as_ref();
    let file = File::open(path).map_err(NnError::io("open", path))?;
    let size = file.metadata().map_err(NnError::io("read", path))?.len();
    let damaged = |what: String| NnError::data(path, At::File, "an intact zip archive", what);
    let mut buffer = vec![0; RECOMMENDED_BUFFER_SIZE];
    let archive = ZipArchive::from_file(file, &mut buffer).map_err(|e| damaged(e.to_string()))?;
    let mut entries = archive.entries(&mut buffer);
    let mut out = BTreeMap::new();
    while let Some(record) = entries.next_entry().map_err(|e| damaged(e.to_string()))? {
        let file_path = record.file_path();
        let name = std::str::from_utf8(file_path.as_bytes()).map_err(|e| damaged(e.to_string()))?;
        let Some(name) = name.strip_suffix(".npy").map(str::to_string) else { continue };
        if names.is_some_and(|n| !n.contains(&name.as_str())) {
            continue;
        }
        let entry = archive.get_entry(record.wayfinder()).map_err(|e| damaged(e.to_string()))?;
        let packed = entry.reader();
        let mut unpacked: Box<dyn Read> = match record.compression_method() {
            CompressionMethod::STORE => Box::new(entry.verifying_reader(packed)),
            CompressionMethod::DEFLATE => Box::new(entry.verifying_reader(DeflateDecoder::new(packed))),
            other => {
                let found = format!("{other:?}");
                return Err(NnError::data(path, At::Entry(name), "stored or deflated data", found));
            }
        };
        // What the archive says of its sizes is not trusted beyond those of the file.
        let most = record.compressed_size_hint().min(size).saturating_mul(limits::INFLATED);
        let array = read(&mut unpacked, path, Some(&name), most).map_err(|e| match e {
            // A wrong checksum or a broken stream is the archive's content, not the disk.
            NnError::Io { source, .. } => {
                NnError::data(path, At::Entry(name.clone()), "intact compressed data", source.to_string())
            }
            e => e,
        })?;
        out.insert(name, array);
    }
    match names.iter().flat_map(|n| n.iter()).find(|n| !out.contains_key(**n)) {
        Some(missing) => {
            Err(NnError::data(path, At::Entry(missing.to_string()), "an array of that name", "none"))
        }
        None => Ok(out),
    }
}
