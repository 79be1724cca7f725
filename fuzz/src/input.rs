//! Inputs: the seeds of a target, and what becomes of them.

use std::path::{Path, PathBuf};

use crate::json;
use crate::rng::Rng;
use crate::targets::{Generate, Target};

/// One input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Input {
    /// Ending of its file, which says what it is.
    pub(crate) kind: String,
    pub(crate) bytes: Vec<u8>,
}

impl Input {
    /// Reads a file. Errors: of the file.
    pub(crate) fn load(path: &Path) -> Result<Self, String> {
        let bytes = std::fs::read(path).map_err(|e| format!("{}: {e}", path.display()))?;
        let kind = path.extension().unwrap_or_default().to_string_lossy().into_owned();
        Ok(Input { kind, bytes })
    }

    /// True for one in `n` inputs, always the same ones: for what takes too long to be done with all of them.
    pub(crate) fn one_in(&self, n: usize) -> bool {
        self.bytes.iter().map(|&b| usize::from(b)).sum::<usize>().is_multiple_of(n)
    }
}

/// The seeds of a target: the files of `seeds/TARGET`, in alphabetical order; of a `.jsonl` file every line is one.
#[derive(Debug)]
pub(crate) struct Seeds {
    pub(crate) inputs: Vec<Input>,
    words: json::Words,
}

/// Folder of the seeds of a target.
pub(crate) fn folder(target: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds").join(target)
}

impl Seeds {
    /// Reads them. Errors: of the files.
    pub(crate) fn load(target: &str) -> Result<Self, String> {
        let mut files: Vec<PathBuf> = match std::fs::read_dir(folder(target)) {
            Ok(list) => list.filter_map(|e| e.ok().map(|e| e.path())).filter(|p| p.is_file()).collect(),
            Err(_) => vec![],
        };
        files.sort_unstable();
        let mut inputs = vec![];
        for file in files {
            let input = Input::load(&file)?;
            match input.kind.as_str() {
                "jsonl" => inputs.extend(
                    input
                        .bytes
                        .split(|&b| b == b'\n')
                        .filter(|line| !line.is_empty())
                        .map(|line| Input { kind: "json".into(), bytes: line.to_vec() }),
                ),
                _ => inputs.push(input),
            }
        }
        let words = json::Words::of(inputs.iter().filter(|i| i.kind == "json").map(|i| i.bytes.as_slice()));
        Ok(Seeds { inputs, words })
    }

    /// Input number `index`: first the seeds as they are, then what the target's generator makes.
    pub(crate) fn input(&self, target: &Target, seed: u64, index: u64) -> Input {
        if let Some(input) = usize::try_from(index).ok().and_then(|i| self.inputs.get(i)) {
            return input.clone();
        }
        let mut rng = Rng::new(target.name, seed, index);
        match (target.generate, rng.pick(&self.inputs)) {
            (Generate::Mutations, Some(seed)) => self.mutated(seed, &mut rng),
            (Generate::Mutations, None) => Input { kind: "bin".into(), bytes: vec![] },
            (Generate::Random { most }, _) => {
                let n = 16 + rng.below(most);
                Input { kind: "bin".into(), bytes: rng.bytes(n) }
            }
        }
    }

    fn mutated(&self, seed: &Input, rng: &mut Rng) -> Input {
        if seed.kind == "json"
            && !rng.one_in(8)
            && let Some(bytes) = self.words.mutate(&seed.bytes, rng)
        {
            return Input { kind: seed.kind.clone(), bytes };
        }
        let mut bytes = seed.bytes.clone();
        for _ in 0..1 + rng.below(4) {
            let others: Vec<&Input> = self.inputs.iter().filter(|i| i.kind == seed.kind).collect();
            let other = rng.pick(&others).map_or(&seed.bytes, |i| &i.bytes);
            change(&mut bytes, other, rng);
        }
        Input { kind: seed.kind.clone(), bytes }
    }
}

/// A range of at most `most` positions of `n`.
fn range(n: usize, most: usize, rng: &mut Rng) -> std::ops::Range<usize> {
    let start = rng.below(n + 1);
    start..(start + rng.below(most)).min(n)
}

/// One small change.
fn change(bytes: &mut Vec<u8>, other: &[u8], rng: &mut Rng) {
    let n = bytes.len();
    // Headers stand in front: every second change is among the first bytes.
    let near = if rng.one_in(2) { n.min(64) } else { n };
    let at = rng.below(near);
    match rng.below(9) {
        0 if n > 0 => bytes[at] ^= 1 << rng.below(8),
        1 if n > 0 => bytes[at] = rng.next() as u8,
        2 => bytes.truncate(at),
        3 => drop(bytes.drain(range(n, 32, rng))),
        4 => {
            let copy = bytes[range(n, 32, rng)].to_vec();
            bytes.splice(at..at, copy);
        }
        5 => {
            let part = &other[range(other.len(), 64, rng)];
            let end = (at + part.len()).min(n);
            bytes.splice(at..end, part.iter().copied());
        }
        6 => {
            let width = [1, 2, 4, 8][rng.below(4)];
            let mut number = rng.hostile().to_le_bytes()[..width].to_vec();
            if rng.one_in(2) {
                number.reverse();
            }
            bytes.splice(at..(at + width).min(n), number);
        }
        7 => number_in_text(bytes, rng),
        _ => {
            let more = rng.below(16);
            bytes.extend(rng.bytes(more));
        }
    }
}

/// Replaces one decimal number of a text.
fn number_in_text(bytes: &mut Vec<u8>, rng: &mut Rng) {
    let digit = |i: usize| bytes.get(i).is_some_and(u8::is_ascii_digit);
    let starts: Vec<usize> = (0..bytes.len()).filter(|&i| digit(i) && (i == 0 || !digit(i - 1))).collect();
    let Some(&start) = rng.pick(&starts) else { return };
    let end = (start..).find(|&i| !digit(i)).unwrap_or(start);
    let text = match rng.below(6) {
        0 => format!("-{}", rng.hostile()),
        1 => ["1e308", "1e-320", "nan", "inf", "-0.0", "0x10", "1_000", ""][rng.below(8)].to_string(),
        _ => rng.hostile().to_string(),
    };
    bytes.splice(start..end, text.into_bytes());
}
