//! Files that are there as a whole or not at all, after a power failure too: what is written is flushed to the disk, and so is the folder
//! that names it. Every failure says which operation it was, on which path.

use std::fs::File;
use std::io::{ErrorKind, Write};
use std::path::Path;

use crate::core::error::{NnError, Result};

/// What temporary files have behind the name of the file that they are to replace; the number of the process follows.
pub(crate) const TEMPORARY: &str = ".tmp";

/// Writes a file so that it is there as a whole or not at all: a temporary file next to it is written, flushed to the disk and renamed, and
/// the folder is flushed. Errors: [`NnError::Io`]; an older file is intact then (or, if only the folder's flush failed, replaced).
pub fn write_atomic(path: &Path, bytes: &[u8]) -> Result<()> {
    write_atomic_with(path, |f| f.write_all(bytes).map_err(NnError::io("write", path)))
}

/// As [`write_atomic`], for contents that are made piece by piece.
pub(crate) fn write_atomic_with(path: &Path, fill: impl FnOnce(&mut File) -> Result<()>) -> Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(format!("{TEMPORARY}{}", std::process::id()));
    let temp = path.with_file_name(name);
    let write = || {
        let mut f = File::create(&temp).map_err(NnError::io("create", &temp))?;
        fill(&mut f)?;
        f.sync_all().map_err(NnError::io("flush", &temp))?;
        std::fs::rename(&temp, path).map_err(NnError::io("replace", path))
    };
    let done = write();
    if done.is_err() {
        // The error is what matters; a temporary file that cannot be removed does no harm.
        let _ = std::fs::remove_file(&temp);
    }
    done?;
    sync_parent(path)
}

/// Makes a folder with its parents. Errors: [`NnError::Io`].
pub(crate) fn create_folder(path: &Path) -> Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    std::fs::create_dir_all(path).map_err(NnError::io("create", path))?;
    sync_parent(path)
}

/// Whether there is something at a path. Errors: [`NnError::Io`]; a disk that does not answer is not an absent file.
pub(crate) fn exists(path: &Path) -> Result<bool> {
    path.try_exists().map_err(NnError::io("look for", path))
}

/// Renames a file or folder within its folder. Errors: [`NnError::Io`].
pub(crate) fn rename(from: &Path, to: &Path) -> Result<()> {
    std::fs::rename(from, to).map_err(NnError::io("rename", from))?;
    sync_parent(to)
}

/// Flushes the folder that a path is in, so that its name survives a power failure. Errors: [`NnError::Io`].
pub(crate) fn sync_parent(path: &Path) -> Result<()> {
    match path.parent() {
        Some(folder) if folder.as_os_str().is_empty() => sync_folder(Path::new(".")),
        Some(folder) => sync_folder(folder),
        None => Ok(()),
    }
}

fn sync_folder(folder: &Path) -> Result<()> {
    // Elsewhere folders cannot be opened, and the system keeps their order by itself.
    if !cfg!(unix) {
        return Ok(());
    }
    match File::open(folder).and_then(|f| f.sync_all()) {
        // A file system whose folders need no flush says so.
        Err(e) if matches!(e.kind(), ErrorKind::InvalidInput | ErrorKind::Unsupported) => Ok(()),
        done => done.map_err(NnError::io("flush", folder)),
    }
}
