//! Archives of NumPy: `.npz`, zip files of `.npy` arrays.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::BufReader;
use std::path::Path;

use super::npy::read;
use crate::core::error::{At, NnError, Result};
use crate::core::host_tensor::HostTensor;
use crate::core::limits;

/// Reads the arrays of a `.npz` file, compressed or not, by name. `names`: only these. Errors: as [`read_npy`](super::read_npy);
/// [`NnError::Data`] for a damaged archive and for a name that is not in it.
pub fn read_npz(path: impl AsRef<Path>, names: Option<&[&str]>) -> Result<BTreeMap<String, HostTensor>> {
    let path = path.as_ref();
    let file = File::open(path).map_err(NnError::io("open", path))?;
    let damaged =
        |at: At, e: zip::result::ZipError| NnError::data(path, at, "an intact zip archive", e.to_string());
    let mut archive = zip::ZipArchive::new(BufReader::new(file)).map_err(|e| damaged(At::File, e))?;
    let mut out = BTreeMap::new();
    for i in 0..archive.len() {
        let mut entry = archive.by_index(i).map_err(|e| damaged(At::File, e))?;
        let name = entry.name().map_err(|e| damaged(At::File, e))?.into_owned();
        let Some(name) = name.strip_suffix(".npy").map(str::to_string) else { continue };
        if names.is_none_or(|n| n.contains(&name.as_str())) {
            let most = entry.compressed_size().saturating_mul(limits::INFLATED);
            let array = read(&mut entry, path, Some(&name), most).map_err(|e| match e {
                // A wrong checksum or a broken stream is the archive's content, not the disk.
                NnError::Io { source, .. } => {
                    NnError::data(path, At::Entry(name.clone()), "intact compressed data", source.to_string())
                }
                e => e,
            })?;
            out.insert(name, array);
        }
    }
    match names.iter().flat_map(|n| n.iter()).find(|n| !out.contains_key(**n)) {
        Some(missing) => {
            Err(NnError::data(path, At::Entry(missing.to_string()), "an array of that name", "none"))
        }
        None => Ok(out),
    }
}
