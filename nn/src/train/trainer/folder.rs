//! The run folder: its lock, and the file of metrics.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use super::report::{curves, history_text, parse_metrics};
use super::{BEST, CHECKPOINT, CURVES, EpochStats, METRICS};
use crate::core::error::{NOTICE, NnError, Result, invalid};
use crate::io::durable::{self, TEMPORARY, write_atomic};

/// The file that is locked while a trainer uses the folder. It is never removed: a lock on a file that another process may remove does not
/// exclude that process.
const LOCK: &str = "run.lock";

/// A run folder that no other trainer uses.
#[derive(Debug)]
pub(super) struct RunFolder {
    path: PathBuf,
    /// Held until it is dropped, or the process ends in any way.
    lock: Option<Lock>,
    /// Whether what the folder holds is this run's, so that it may be replaced.
    ours: bool,
    /// Epochs in the file of metrics, and the bytes that they take.
    lines: usize,
    len: u64,
    /// Further files, which are written with the first of this run.
    files: BTreeMap<String, String>,
}

impl RunFolder {
    /// Makes and locks the folder; nothing of an earlier run in it changes. Errors: [`NnError::Locked`], [`NnError::Io`].
    pub(super) fn open(path: &Path, files: BTreeMap<String, String>) -> Result<Self> {
        let own = [LOCK, CHECKPOINT, BEST, METRICS, CURVES];
        if let Some(name) = files
            .keys()
            .find(|n| own.contains(&n.as_str()) || Path::new(n).file_name().is_none_or(|f| f != n.as_str()))
        {
            return Err(invalid(
                "Trainer",
                "files",
                "names of files that the run folder does not have already",
                format!("`{name}`"),
            ));
        }
        durable::create_folder(path)?;
        let lock = lock(path)?;
        remove_temporary(path, &files);
        Ok(RunFolder { path: path.into(), lock: Some(lock), ours: false, lines: 0, len: 0, files })
    }

    /// Writes the further files, as far as they are not there already.
    fn write_files(&self) -> Result<()> {
        self.files.iter().try_for_each(|(name, text)| {
            let path = self.at(name);
            match std::fs::read(&path) {
                Ok(found) if found == text.as_bytes() => Ok(()),
                _ => write_atomic(&path, text.as_bytes()),
            }
        })
    }

    /// A file of the run.
    pub(super) fn at(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    fn holds_run(&self) -> Result<bool> {
        [CHECKPOINT, BEST, METRICS]
            .iter()
            .try_fold(false, |any, name| Ok(any || durable::exists(&self.at(name))?))
    }

    /// Before the first file of this run is written: moves the folder of an earlier one aside. Errors: [`NnError::Io`],
    /// [`NnError::Locked`].
    pub(super) fn begin(&mut self) -> Result<()> {
        while !self.ours {
            if self.lock.is_none() {
                durable::create_folder(&self.path)?;
                self.lock = Some(lock(&self.path)?);
            }
            if self.holds_run()? {
                // The lock goes with the old folder.
                let old = self.lock.take();
                self.move_aside()?;
                drop(old);
            } else {
                self.write_files()?;
                self.ours = true;
            }
        }
        Ok(())
    }

    fn move_aside(&mut self) -> Result<()> {
        let whole = self.path.canonicalize().map_err(NnError::io("find", &self.path))?;
        let inside = std::env::current_dir().is_ok_and(|d| d.starts_with(&whole));
        let (Some(name), false) = (whole.file_name(), inside) else {
            let got = format!("{} with an earlier run in it", whole.display());
            return Err(invalid("Trainer", "run", "a folder that does not hold the current folder", got));
        };
        let aside = |n: u64| {
            let mut name = name.to_os_string();
            name.push(format!(".{n}"));
            whole.with_file_name(name)
        };
        let free = (1..).map(aside).find(|p| p.symlink_metadata().is_err());
        let Some(free) = free else { return Ok(()) };
        durable::rename(&whole, &free)?;
        log::warn!(target: NOTICE, "the run that was in {} is now in {}", self.path.display(), free.display());
        // A link leads to the folder that it led to.
        self.path = whole;
        Ok(())
    }

    /// Appends the epochs that the file of metrics does not have yet, and flushes it. Errors: [`NnError::Io`]; what a write that failed
    /// left in the file goes with the next one.
    pub(super) fn append(&mut self, history: &[EpochStats]) -> Result<()> {
        let path = self.at(METRICS);
        let text = history_text(&history[self.lines.min(history.len())..])?;
        let mut f = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(NnError::io("open", &path))?;
        f.set_len(self.len).map_err(NnError::io("shorten", &path))?;
        f.seek(SeekFrom::Start(self.len)).map_err(NnError::io("write", &path))?;
        f.write_all(text.as_bytes()).map_err(NnError::io("write", &path))?;
        f.sync_all().map_err(NnError::io("flush", &path))?;
        if self.len == 0 {
            durable::sync_parent(&path)?;
        }
        (self.lines, self.len) = (history.len(), self.len + text.len() as u64);
        Ok(())
    }

    /// Draws the curves of a run. Errors: [`NnError::Io`].
    pub(super) fn write_curves(&self, history: &[EpochStats]) -> Result<()> {
        write_atomic(&self.at(CURVES), curves(history).as_bytes())
    }

    /// Goes on with the run that is in the folder: its metrics up to `epochs`, the number of epochs in the checkpoint. Later lines and
    /// lines that were cut off are removed from the file, which a warning says. Errors: [`NnError::Io`].
    pub(super) fn take_over(&mut self, epochs: u64) -> Result<Vec<EpochStats>> {
        let path = self.at(METRICS);
        let found = match std::fs::read(&path) {
            Ok(bytes) => bytes,
            Err(e) if e.kind() == io::ErrorKind::NotFound => vec![],
            Err(e) => return Err(NnError::io("read", &path)(e)),
        };
        let (mut history, torn) = parse_metrics(&found);
        let all = history.len();
        history.retain(|s| s.epoch <= epochs);
        let text = history_text(&history)?;
        if !torn.is_empty() {
            let lines: Vec<String> = torn.iter().map(usize::to_string).collect();
            let at = lines.join(", ");
            log::warn!(target: NOTICE, "{}: line {at} was cut off or damaged and is removed", path.display());
        }
        if history.len() < all {
            let more = all - history.len();
            log::warn!(
                target: NOTICE,
                "{}: {more} of its epochs came after the checkpoint (epoch {epochs}); they are removed and run again",
                path.display()
            );
        }
        if (history.len() as u64) < epochs {
            let have = history.len();
            log::warn!(target: NOTICE, "{} has {have} of the checkpoint's {epochs} epochs", path.display());
        }
        if text.as_bytes() != found {
            write_atomic(&path, text.as_bytes())?;
        }
        (self.ours, self.lines, self.len) = (true, history.len(), text.len() as u64);
        self.write_files()?;
        Ok(history)
    }
}

/// The lock of a folder, unlocked explicitly when it is dropped: a child process that another thread forks shares the open file until it calls exec, and
/// closing the file here would leave the folder locked until then.
#[derive(Debug)]
struct Lock(File);

impl Drop for Lock {
    fn drop(&mut self) {
        // Closing the file gives the lock up as well, if later.
        let _ = self.0.unlock();
    }
}

/// Locks a folder for this process. Errors: [`NnError::Locked`] with the process that has it; [`NnError::Io`].
fn lock(folder: &Path) -> Result<Lock> {
    let path = folder.join(LOCK);
    let open = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
    let mut file = open.map_err(NnError::io("open", &path))?;
    let taken = |holder: String| NnError::Locked { path: folder.into(), holder };
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Err(taken(holder(&path))),
        Err(TryLockError::Error(e)) => return Err(NnError::io("lock", &path)(e)),
    }
    if !is_at(&file, &path).map_err(NnError::io("look at", &path))? {
        return Err(taken("another process, which has just moved it".into()));
    }
    let program = std::env::current_exe().ok().and_then(|p| p.file_name().map(|n| n.to_owned()));
    let name = program.unwrap_or_default();
    let text = format!("process {} ({})\n", std::process::id(), name.to_string_lossy());
    file.set_len(0).and_then(|()| file.write_all(text.as_bytes())).map_err(NnError::io("write", &path))?;
    Ok(Lock(file))
}

/// What the process that holds a lock has written about itself.
fn holder(path: &Path) -> String {
    let mut text = String::new();
    let read = File::open(path).and_then(|f| f.take(200).read_to_string(&mut text));
    match (read, text.trim()) {
        (Ok(_), text) if !text.is_empty() => text.into(),
        _ => "another process".into(),
    }
}

/// Whether a path still names this file: its folder may have been moved between opening and locking.
#[cfg(unix)]
fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    use std::os::unix::fs::MetadataExt;
    let here = file.metadata()?;
    match path.metadata() {
        Ok(there) => Ok((here.dev(), here.ino()) == (there.dev(), there.ino())),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(e) => Err(e),
    }
}

/// Open files cannot be moved here.
#[cfg(not(unix))]
fn is_at(_file: &File, _path: &Path) -> io::Result<bool> {
    Ok(true)
}

/// Removes the temporary files of a process that was killed while it wrote; only the holder of the lock writes.
fn remove_temporary(folder: &Path, files: &BTreeMap<String, String>) {
    let ours = |name: &str| {
        [CHECKPOINT, BEST, METRICS, CURVES]
            .into_iter()
            .chain(files.keys().map(String::as_str))
            .any(|f| name.strip_prefix(f).is_some_and(|rest| rest.starts_with(TEMPORARY)))
    };
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_name().to_str().is_some_and(ours) {
            // One that stays does no harm.
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_free_at_once_though_another_process_has_its_lock_open() {
        let folder = std::env::temp_dir().join(format!("trefoil-lock-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let held = lock(&folder).unwrap();
        // What a process has that was started meanwhile: the same open file.
        let inherited = held.0.try_clone().unwrap();
        assert!(matches!(lock(&folder), Err(NnError::Locked { .. })));
        drop(held);
        drop(lock(&folder).unwrap());
        drop(inherited);
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
