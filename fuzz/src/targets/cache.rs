//! The kernel cache on disk.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arbitrary::{Result, Unstructured};
use trefoil::ops::core::CoreOps;
use trefoil::ops::elementwise::{Binary, ElementwiseOps};
use trefoil::ops::reduce::{Reduce, ReduceOps};
use trefoil::ops::shape::ShapeOps;
use trefoil::testing::{Call, MockDriver};
use trefoil::{DType, Engine};

use super::scratch::Scratch;
use super::{Generate, Run, Target, Verdict};
use crate::input::Input;

pub(crate) const TARGET: Target = Target {
    name: "cache",
    about: "damaged, exchanged and replaced files of the kernel cache: served exactly where they are what was written, else rebuilt",
    generate: Generate::Random { most: 48 },
    open: || {
        let mut site = Site::new()?;
        Ok(Box::new(move |input: &Input| site.run(&input.bytes).unwrap_or_else(Verdict::Wrong)) as Run)
    },
};

struct Site {
    scratch: Scratch,
    /// The cache as an undisturbed process leaves it: one image per unit.
    good: BTreeMap<String, Vec<u8>>,
}

/// Three kernels of three units.
fn work(driver: &Arc<MockDriver>) -> trefoil::Result<()> {
    let gpu = Engine::new(driver.clone())?;
    let [x, y] = [gpu.alloc(DType::F32, 8)?, gpu.alloc(DType::F32, 8)?];
    gpu.fill(1.0, x.alias_mut())?;
    gpu.binary(Binary::Mul, x.view(), x.view(), y.alias_mut())?;
    gpu.reduce(Reduce::Max, &[0], x.view(), y.alias_mut().range(0, 1)?.reshape(&[])?)
}

/// Units that a driver was asked to compile.
fn compiled(driver: &MockDriver) -> usize {
    driver.calls().iter().filter(|c| matches!(c, Call::Compile(_))).count()
}

impl Site {
    fn new() -> std::result::Result<Self, String> {
        let scratch = Scratch::new("cache")?;
        let dir = scratch.path().join("kernels");
        // SAFETY: a worker has one thread when its target is set up.
        unsafe { std::env::set_var("TREFOIL_CACHE_DIR", &dir) };
        let driver = Arc::new(MockDriver::default());
        work(&driver).map_err(|e| e.to_string())?;
        let mut good = BTreeMap::new();
        for entry in fs::read_dir(&dir).map_err(|e| e.to_string())? {
            let path = entry.map_err(|e| e.to_string())?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            good.insert(name, fs::read(path).map_err(|e| e.to_string())?);
        }
        if good.is_empty() || good.len() != compiled(&driver) {
            return Err(format!("{} images of {} units", good.len(), compiled(&driver)));
        }
        let fifo = scratch.path().join("fifo");
        // Without one, that change leaves the place empty.
        let _ = std::process::Command::new("mkfifo").arg(fifo).status();
        Ok(Site { scratch, good })
    }

    fn place(&self, name: &str) -> PathBuf {
        self.scratch.path().join("kernels").join(name)
    }

    fn run(&mut self, bytes: &[u8]) -> std::result::Result<Verdict, String> {
        for (name, image) in &self.good {
            clear(&self.place(name));
            fs::write(self.place(name), image).map_err(|e| e.to_string())?;
        }
        let mut u = Unstructured::new(bytes);
        while !u.is_empty() {
            if self.change(&mut u).is_err() {
                break;
            }
        }
        let intact = self.good.iter().filter(|(name, image)| is_file_of(&self.place(name), image)).count();
        let driver = Arc::new(MockDriver::default());
        work(&driver).map_err(|e| format!("a cache made an operation fail: {e}"))?;
        let rebuilt = compiled(&driver);
        if rebuilt != self.good.len() - intact {
            return Err(format!(
                "{rebuilt} units were compiled where {intact} of {} images are intact",
                self.good.len()
            ));
        }
        Ok(if rebuilt == 0 { Verdict::Accepted } else { Verdict::Rejected })
    }

    /// One change of one file.
    fn change(&self, u: &mut Unstructured<'_>) -> Result<()> {
        let names: Vec<&String> = self.good.keys().collect();
        let (one, other) = (self.place(u.choose(&names)?), self.place(u.choose(&names)?));
        let mut bytes = if is_plain(&one) { fs::read(&one).unwrap_or_default() } else { vec![] };
        let kind = u.int_in_range(0..=9u8)?;
        // Headers stand in front.
        let at = if u.arbitrary()? { u.int_in_range(0..=48)? } else { u.arbitrary::<u32>()? as usize }
            .min(bytes.len());
        match kind {
            0 | 1 if at < bytes.len() => bytes[at] ^= u.int_in_range(1..=255u8)?,
            2 => bytes.truncate(at),
            3 => bytes.extend_from_slice(u.bytes(8)?),
            4 if is_plain(&other) => bytes = fs::read(&other).unwrap_or_default(),
            _ => {}
        }
        // What the file system refuses is no change.
        let _ = match kind {
            0..=4 => {
                clear(&one);
                fs::write(&one, bytes)
            }
            5 => {
                let aside = self.scratch.path().join("aside");
                fs::rename(&one, &aside)
                    .and_then(|()| fs::rename(&other, &one))
                    .and_then(|()| fs::rename(&aside, &other))
            }
            6 => {
                clear(&one);
                fs::create_dir(&one)
            }
            7 => {
                clear(&one);
                symlink(&other, &one)
            }
            8 => {
                clear(&one);
                fs::hard_link(self.scratch.path().join("fifo"), &one)
            }
            _ => {
                clear(&one);
                Ok(())
            }
        };
        Ok(())
    }
}

#[cfg(unix)]
fn symlink(to: &Path, from: &Path) -> std::io::Result<()> {
    std::os::unix::fs::symlink(to, from)
}

#[cfg(not(unix))]
fn symlink(_: &Path, _: &Path) -> std::io::Result<()> {
    Ok(())
}

/// A file that is neither a link nor anything else.
fn is_plain(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|m| m.is_file())
}

fn is_file_of(path: &Path, image: &[u8]) -> bool {
    is_plain(path) && fs::read(path).is_ok_and(|b| b == image)
}

/// Removes whatever is there.
fn clear(path: &Path) {
    let _ = fs::remove_file(path).or_else(|_| fs::remove_dir(path));
}
