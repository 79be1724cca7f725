//! Compiled images on disk, and what was measured of a device. Never a reason to fail: whatever is wrong with the cache, the unit is compiled.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

const MAGIC: &[u8; 8] = b"trefoil2";
/// Bytes before the image: the magic and the checksum.
const HEAD: usize = MAGIC.len() + blake3::OUT_LEN;
/// Largest image that is kept: the largest units have some MiB.
const MAX_IMAGE: u64 = 1 << 28;
/// Bytes that a cache may hold unless `TREFOIL_CACHE_SIZE` says otherwise.
const DEFAULT_SIZE: u64 = 1 << 30;

/// A directory of images named by the hash of everything that went into them. When it outgrows its size, those that were not used for longest
/// are removed.
#[derive(Debug, Clone, Default)]
pub(crate) struct DiskCache {
    dir: Option<PathBuf>,
    /// Bytes that the files may have in all.
    size: u64,
}

impl DiskCache {
    /// `TREFOIL_CACHE_DIR`, else the user's cache directory; off with `TREFOIL_CACHE=off` or where the directory is not private to the user.
    /// `TREFOIL_CACHE_SIZE` is its size in MiB.
    pub(crate) fn from_env() -> Self {
        if std::env::var("TREFOIL_CACHE").is_ok_and(|v| v == "off" || v == "0") {
            return DiskCache::default();
        }
        let size = std::env::var("TREFOIL_CACHE_SIZE").ok().and_then(|v| match v.parse::<u64>() {
            Ok(mib) => Some(mib.saturating_mul(1 << 20)),
            Err(e) => {
                log::warn!("TREFOIL_CACHE_SIZE={v} is no number of MiB: {e}");
                None
            }
        });
        let dir = std::env::var_os("TREFOIL_CACHE_DIR").map(PathBuf::from).or_else(user_cache_dir);
        DiskCache::at(dir, size.unwrap_or(DEFAULT_SIZE))
    }

    /// A cache of at most `size` bytes in `dir`, made if need be; off if that fails.
    pub(crate) fn at(dir: Option<PathBuf>, size: u64) -> Self {
        let dir = dir.filter(|d| match prepare(d) {
            Ok(()) => true,
            Err(e) => {
                log::warn!("kernel cache {} is not used: {e}", d.display());
                false
            }
        });
        DiskCache { dir, size }
    }

    /// Name of the image that these parts determine.
    pub(crate) fn key(parts: &[&str]) -> String {
        let mut h = blake3::Hasher::new();
        h.update(MAGIC);
        for p in parts {
            h.update(&(p.len() as u64).to_le_bytes());
            h.update(p.as_bytes());
        }
        h.finalize().to_hex().to_string()
    }

    /// The image that was written under `key`, if it is there and unharmed.
    pub(crate) fn read(&self, key: &str) -> Option<Vec<u8>> {
        let path = self.dir.as_ref()?.join(key);
        let meta = fs::symlink_metadata(&path).ok()?;
        let image = open(&path, &meta).and_then(|file| {
            let mut bytes = Vec::new();
            (&file).take(HEAD as u64 + MAX_IMAGE).read_to_end(&mut bytes).ok()?;
            let image = check(key, &bytes)?.to_vec();
            // The time of the last use decides what is removed first.
            let _ = file.set_modified(SystemTime::now());
            Some(image)
        });
        if image.is_none() {
            log::warn!("kernel cache entry {key} is damaged and is rebuilt");
        }
        image
    }

    /// Stores an image: written beside its place, then renamed, so that readers and other writers never see half of it. Whether it is stored.
    pub(crate) fn write(&self, key: &str, image: &[u8]) -> bool {
        let Some(dir) = &self.dir else { return false };
        let bytes = (HEAD + image.len()) as u64;
        if bytes > self.size || image.len() as u64 > MAX_IMAGE {
            return false;
        }
        self.make_room(dir, bytes);
        let temp = dir.join(format!(".{key}.{}.{:?}", std::process::id(), std::thread::current().id()));
        // What a process of the same number left behind is replaced, not followed.
        let _ = fs::remove_file(&temp);
        let done = OpenOptions::new().write(true).create_new(true).open(&temp).and_then(|mut file| {
            file.write_all(MAGIC)?;
            file.write_all(checksum(key, image).as_bytes())?;
            file.write_all(image)?;
            fs::rename(&temp, dir.join(key))
        });
        if let Err(e) = &done {
            log::warn!("kernel cache entry {key} cannot be written: {e}");
            let _ = fs::remove_file(&temp);
        }
        done.is_ok()
    }

    /// Removes the files that were not used for longest until `bytes` more fit.
    fn make_room(&self, dir: &Path, bytes: u64) {
        let Ok(entries) = fs::read_dir(dir) else { return };
        let mut files: Vec<(SystemTime, u64, PathBuf)> = entries
            .filter_map(|e| {
                let e = e.ok()?;
                let meta = e.metadata().ok().filter(fs::Metadata::is_file)?;
                Some((meta.modified().unwrap_or(SystemTime::UNIX_EPOCH), meta.len(), e.path()))
            })
            .collect();
        let mut held: u64 = files.iter().map(|(_, len, _)| len).sum();
        files.sort_unstable();
        for (_, len, path) in files {
            if held.saturating_add(bytes) <= self.size {
                break;
            }
            if fs::remove_file(&path).is_ok() {
                held -= len;
            }
        }
    }
}

/// The file at `path`, if it is an ordinary one: opening a FIFO would wait, and a link leads elsewhere.
fn open(path: &Path, meta: &fs::Metadata) -> Option<File> {
    let sane = |m: &fs::Metadata| m.is_file() && m.len() <= HEAD as u64 + MAX_IMAGE;
    if !sane(meta) {
        return None;
    }
    let file = File::open(path).ok()?;
    file.metadata().is_ok_and(|m| sane(&m)).then_some(file)
}

/// Of key and image, so that an image under another one's name is found out.
fn checksum(key: &str, image: &[u8]) -> blake3::Hash {
    let mut h = blake3::Hasher::new();
    h.update(MAGIC);
    h.update(&(key.len() as u64).to_le_bytes());
    h.update(key.as_bytes());
    h.update(image);
    h.finalize()
}

/// The image in a file's contents.
fn check<'a>(key: &str, bytes: &'a [u8]) -> Option<&'a [u8]> {
    let (sum, image) = bytes.strip_prefix(MAGIC)?.split_at_checked(blake3::OUT_LEN)?;
    (checksum(key, image).as_bytes() == sum).then_some(image)
}

fn user_cache_dir() -> Option<PathBuf> {
    let base = if cfg!(windows) {
        std::env::var_os("LOCALAPPDATA").map(PathBuf::from)
    } else if cfg!(target_os = "macos") {
        std::env::var_os("HOME").map(|h| Path::new(&h).join("Library/Caches"))
    } else {
        std::env::var_os("XDG_CACHE_HOME")
            .map(PathBuf::from)
            .filter(|p| p.is_absolute())
            .or_else(|| std::env::var_os("HOME").map(|h| Path::new(&h).join(".cache")))
    };
    base.map(|b| b.join("trefoil"))
}

/// Makes the directory, private to the user. Images are executed on the device, so a directory that others can write is refused.
fn prepare(dir: &Path) -> std::io::Result<()> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
        fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
        let meta = fs::metadata(dir)?;
        let me = fs::metadata("/proc/self").map(|m| m.uid()).unwrap_or(meta.uid());
        if meta.uid() != me {
            return Err(std::io::Error::other("it belongs to another user"));
        }
        if meta.permissions().mode() & 0o022 != 0 {
            return Err(std::io::Error::other("others can write to it (chmod 700 it)"));
        }
        Ok(())
    }
    #[cfg(not(unix))]
    fs::create_dir_all(dir)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A cache of `size` bytes in a new folder.
    fn cache(name: &str, size: u64) -> (PathBuf, DiskCache) {
        let dir = std::env::temp_dir().join(format!("trefoil-cache-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        (dir.clone(), DiskCache::at(Some(dir), size))
    }

    #[test]
    fn damaged_entries_are_not_served() {
        let (dir, cache) = cache("damaged", 1 << 20);
        let key = DiskCache::key(&["a", "b"]);
        assert_ne!(key, DiskCache::key(&["ab", ""]));
        assert_eq!(cache.read(&key), None);
        cache.write(&key, b"image");
        assert_eq!(cache.read(&key).as_deref(), Some(&b"image"[..]));
        let mut bytes = fs::read(dir.join(&key)).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        fs::write(dir.join(&key), &bytes).unwrap();
        assert_eq!(cache.read(&key), None);
        fs::write(dir.join(&key), &bytes[..20]).unwrap();
        assert_eq!(cache.read(&key), None);
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 1);
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn an_entry_under_another_ones_name_is_not_served() {
        let (dir, cache) = cache("swapped", 1 << 20);
        let (mul, div) = (DiskCache::key(&["mul"]), DiskCache::key(&["div"]));
        cache.write(&mul, b"multiplies");
        cache.write(&div, b"divides");
        fs::rename(dir.join(&mul), dir.join("third")).unwrap();
        fs::rename(dir.join(&div), dir.join(&mul)).unwrap();
        fs::rename(dir.join("third"), dir.join(&div)).unwrap();
        assert_eq!((cache.read(&mul), cache.read(&div)), (None, None));
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn what_was_not_used_for_longest_makes_room() {
        let (dir, cache) = cache("room", 3 * (HEAD as u64 + 100));
        let age = |key: &str, seconds| {
            let at = SystemTime::now() - std::time::Duration::from_secs(seconds);
            File::options().write(true).open(dir.join(key)).unwrap().set_modified(at).unwrap();
        };
        for (key, seconds) in [("a", 30), ("b", 20), ("c", 10)] {
            cache.write(key, &[7; 100]);
            age(key, seconds);
        }
        assert!(cache.read("a").is_some(), "a use renews an entry");
        cache.write("d", &[7; 100]);
        let held = ["a", "b", "c", "d"].map(|k| cache.read(k).is_some());
        assert_eq!(held, [true, false, true, true]);
        cache.write("large", &[7; 1000]);
        assert!(cache.read("large").is_none(), "larger than the cache");
        fs::remove_dir_all(&dir).unwrap();
    }

    #[cfg(unix)]
    #[test]
    fn only_ordinary_files_are_read() {
        let (dir, cache) = cache("kinds", 1 << 20);
        cache.write("real", b"image");
        std::os::unix::fs::symlink(dir.join("real"), dir.join("link")).unwrap();
        std::os::unix::fs::symlink("/dev/zero", dir.join("zeros")).unwrap();
        fs::create_dir(dir.join("folder")).unwrap();
        let fifo = std::process::Command::new("mkfifo").arg(dir.join("fifo")).status();
        assert!(fifo.is_ok_and(|s| s.success()), "mkfifo is part of every Unix");
        for key in ["link", "zeros", "folder", "fifo"] {
            assert_eq!(cache.read(key), None, "{key}");
        }
        cache.write("fifo", b"image");
        assert_eq!(cache.read("fifo").as_deref(), Some(&b"image"[..]), "a new entry takes the place");
        fs::remove_dir_all(&dir).unwrap();
    }
}
