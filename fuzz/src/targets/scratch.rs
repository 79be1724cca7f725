//! Folders for the files of an input.

use std::path::{Path, PathBuf};

/// A folder of this process, removed with it.
#[derive(Debug)]
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    /// An empty folder. Errors: of the file system.
    pub(crate) fn new(name: &str) -> Result<Self, String> {
        let path = std::env::temp_dir().join(format!("trefoil-fuzz-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        Ok(Scratch(path))
    }

    /// Its path.
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Writes a file into it.
    pub(crate) fn write(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, bytes).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // A folder in the temporary directory that stays does no harm.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
