//! Compiled images on disk. Never a reason to fail: whatever is wrong with the cache, the unit is compiled.

use std::path::{Path, PathBuf};

const MAGIC: &[u8; 8] = b"trefoil1";

/// A directory of images named by the hash of everything that went into them.
#[derive(Debug, Clone, Default)]
pub(crate) struct DiskCache {
    dir: Option<PathBuf>,
}

impl DiskCache {
    /// `TREFOIL_CACHE_DIR`, else the user's cache directory; off with `TREFOIL_CACHE=off` or where the directory is not private to the user.
    pub(crate) fn from_env() -> Self {
        if std::env::var("TREFOIL_CACHE").is_ok_and(|v| v == "off" || v == "0") {
            return DiskCache::default();
        }
        let dir = std::env::var_os("TREFOIL_CACHE_DIR").map(PathBuf::from).or_else(user_cache_dir);
        DiskCache::at(dir)
    }

    /// A cache in `dir`, made if need be; off if that fails.
    pub(crate) fn at(dir: Option<PathBuf>) -> Self {
        let dir = dir.filter(|d| match prepare(d) {
            Ok(()) => true,
            Err(e) => {
                log::warn!("kernel cache {} is not used: {e}", d.display());
                false
            }
        });
        DiskCache { dir }
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

    /// The image, if it is there and unharmed.
    pub(crate) fn read(&self, key: &str) -> Option<Vec<u8>> {
        let bytes = std::fs::read(self.dir.as_ref()?.join(key)).ok()?;
        let image = check(&bytes);
        if image.is_none() {
            log::warn!("kernel cache entry {key} is damaged and is rebuilt");
        }
        image.map(<[u8]>::to_vec)
    }

    /// Stores an image: written beside its place, then renamed, so that readers and other writers never see half of it.
    pub(crate) fn write(&self, key: &str, image: &[u8]) {
        let Some(dir) = &self.dir else { return };
        let temp = dir.join(format!(".{key}.{}.{:?}", std::process::id(), std::thread::current().id()));
        let mut bytes = Vec::with_capacity(image.len() + 40);
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(blake3::hash(image).as_bytes());
        bytes.extend_from_slice(image);
        let done = std::fs::write(&temp, &bytes).and_then(|()| std::fs::rename(&temp, dir.join(key)));
        if let Err(e) = done {
            log::warn!("kernel cache entry {key} cannot be written: {e}");
            let _ = std::fs::remove_file(&temp);
        }
    }
}

fn check(bytes: &[u8]) -> Option<&[u8]> {
    let rest = bytes.strip_prefix(MAGIC)?;
    let (sum, image) = rest.split_at_checked(32)?;
    (blake3::hash(image).as_bytes() == sum).then_some(image)
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
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
        let meta = std::fs::metadata(dir)?;
        let me = std::fs::metadata("/proc/self").map(|m| m.uid()).unwrap_or(meta.uid());
        if meta.uid() != me {
            return Err(std::io::Error::other("it belongs to another user"));
        }
        if meta.permissions().mode() & 0o022 != 0 {
            return Err(std::io::Error::other("others can write to it (chmod 700 it)"));
        }
        Ok(())
    }
    #[cfg(not(unix))]
    std::fs::create_dir_all(dir)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damaged_entries_are_not_served() {
        let dir = std::env::temp_dir().join(format!("trefoil-cache-test-{}", std::process::id()));
        let cache = DiskCache::at(Some(dir.clone()));
        let key = DiskCache::key(&["a", "b"]);
        assert_ne!(key, DiskCache::key(&["ab", ""]));
        assert_eq!(cache.read(&key), None);
        cache.write(&key, b"image");
        assert_eq!(cache.read(&key).as_deref(), Some(&b"image"[..]));
        let mut bytes = std::fs::read(dir.join(&key)).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        std::fs::write(dir.join(&key), &bytes).unwrap();
        assert_eq!(cache.read(&key), None);
        std::fs::write(dir.join(&key), &bytes[..20]).unwrap();
        assert_eq!(cache.read(&key), None);
        assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 1);
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
