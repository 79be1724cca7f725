//! The list of kernel files that have compiled, `parity-tests/results/compiled.txt`: `compile-check --known` leaves out those whose text it has.
//!
//! What counts is the text after includes and defines, without comments, of one function in every storage type; the functions of a file differ in
//! defines alone. A change of a header therefore has all files that include it compiled again.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use parity_tests::units::hash;
use trefoil::spec::all_units;

const HEAD: &str = "\
# Kernel files of which every storage type has compiled: compiler, dialect, architecture, file, hash of the text, day, version.
# Written by `cargo xtask compile-check --record FILE`, which drops lines of texts that are no longer there.
";

/// Compiler, dialect and architecture.
pub(crate) type Key = (String, String, String);

/// Hashes of today's texts, found when they are asked for: dialect to file to hash.
#[derive(Debug, Default)]
pub(crate) struct Texts(RefCell<BTreeMap<String, BTreeMap<&'static str, String>>>);

impl Texts {
    /// The hash of every file in a dialect.
    fn of(&self, dialect: &str) -> Result<BTreeMap<&'static str, String>, String> {
        if let Some(found) = self.0.borrow().get(dialect) {
            return Ok(found.clone());
        }
        let mut files = BTreeMap::<_, String>::new();
        let mut seen = std::collections::BTreeSet::new();
        for unit in all_units() {
            if seen.insert((unit.file, unit.dtype)) {
                *files.entry(unit.file).or_default() += &format!("{} {} ", unit.dtype, hash(&unit, dialect)?);
            }
        }
        files.values_mut().for_each(|all| *all = blake3::hash(all.as_bytes()).to_hex()[..16].into());
        self.0.borrow_mut().insert(dialect.into(), files.clone());
        Ok(files)
    }
}

/// The list: for each key and file the hash of the text, and when and by which version it was compiled.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Compiled(BTreeMap<(Key, String), (String, String)>);

impl Compiled {
    /// Reads a list.
    pub(crate) fn read(path: &Path) -> Result<Self, String> {
        let text = std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
        Self::parse(&text).map_err(|line| format!("{}: not a line of such a list: {line}", path.display()))
    }

    fn parse(text: &str) -> Result<Self, String> {
        let mut all = BTreeMap::new();
        for line in text.lines().filter(|l| !l.starts_with('#')) {
            let fields: Vec<&str> = line.splitn(6, ' ').collect();
            let [compiler, dialect, arch, file, hash, how] = fields[..] else { return Err(line.into()) };
            let key = (compiler.into(), dialect.into(), arch.into());
            all.insert((key, file.into()), (hash.into(), how.into()));
        }
        Ok(Compiled(all))
    }

    /// Files that have compiled with today's text.
    pub(crate) fn files(&self, key: &Key, texts: &Texts) -> Result<Vec<String>, String> {
        let today = texts.of(&key.1)?;
        let own = self.0.iter().filter(|((k, file), (hash, _))| k == key && today.get(&**file) == Some(hash));
        Ok(own.map(|((_, file), _)| file.clone()).collect())
    }

    /// Adds files that have compiled.
    pub(crate) fn add<'a>(
        &mut self,
        key: Key,
        files: impl IntoIterator<Item = &'a &'static str>,
        how: &str,
        texts: &Texts,
    ) -> Result<(), String> {
        let today = texts.of(&key.1)?;
        for &file in files {
            let hash = today.get(file).cloned().unwrap_or_default();
            self.0.insert((key.clone(), file.into()), (hash, how.into()));
        }
        Ok(())
    }

    /// Writes the lines of today's texts.
    pub(crate) fn write(&self, path: &Path, texts: &Texts) -> Result<(), String> {
        let mut out = HEAD.to_string();
        for ((key, file), (hash, how)) in &self.0 {
            if texts.of(&key.1)?.get(&**file) == Some(hash) {
                let _ = writeln!(out, "{} {} {} {file} {hash} {how}", key.0, key.1, key.2);
            }
        }
        std::fs::write(path, out).map_err(|e| format!("{}: {e}", path.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_known_by_its_text_compiler_and_architecture() {
        let (texts, file) = (Texts::default(), "random/random.c");
        let key = |arch: &str| ("nvrtc".to_string(), "cuda".to_string(), arch.to_string());
        let mut list = Compiled::default();
        list.add(key("sm_90"), &[file], "2026-01-31 NVRTC 13.0", &texts).unwrap();
        assert_eq!(list.files(&key("sm_90"), &texts).unwrap(), [file]);
        assert!(list.files(&key("sm_80"), &texts).unwrap().is_empty());
        let path = std::env::temp_dir().join(format!("trefoil-compiled-{}.txt", std::process::id()));
        list.write(&path, &texts).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(Compiled::parse(&text).unwrap(), list);
        // Another text: not known, and not written again.
        let hash = texts.of("cuda").unwrap()[file].clone();
        let old = Compiled::parse(&text.replace(&hash, "0123456789abcdef")).unwrap();
        assert!(old.files(&key("sm_90"), &texts).unwrap().is_empty());
        old.write(&path, &texts).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), HEAD);
        std::fs::remove_file(&path).unwrap();
        assert!(Compiled::parse("nvrtc cuda").is_err());
    }
}
