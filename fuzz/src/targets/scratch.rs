//! Folders for the files of an input.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// A target that is set up again has another folder than before.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// A folder of this process, removed with it.
#[derive(Debug)]
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    /// An empty folder. Errors: of the file system.
    pub(crate) fn new(name: &str) -> Result<Self, String> {
        let (process, n) = (std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        // In memory where that can be: files on disk take ten times as long as what is done with them.
        let memory = Path::new("/dev/shm");
        let base = if memory.is_dir() { memory.to_path_buf() } else { std::env::temp_dir() };
        let path = base.join(format!("trefoil-fuzz-{name}-{process}-{n}"));
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
