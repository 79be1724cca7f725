//! Names that Rust sources define.

use std::collections::BTreeMap;
use std::path::Path;

/// Text of all Rust files below a folder by path.
pub(crate) fn sources(root: &Path, out: &mut BTreeMap<String, String>) {
    for entry in std::fs::read_dir(root).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, out);
        } else if path.extension().is_some_and(|e| e == "rs") {
            out.insert(path.display().to_string(), std::fs::read_to_string(&path).unwrap());
        }
    }
}

/// The names that a line defines: those of items, and the first of a row of a macro that makes items.
fn defined(line: &str) -> Vec<&str> {
    let line = line.trim_start();
    let words: Vec<&str> = line.split(|c: char| !c.is_alphanumeric() && c != '_').collect();
    let item = ["fn", "struct", "enum", "trait", "mod", "type", "const", "static"];
    let mut names: Vec<&str> = words.windows(2).filter(|w| item.contains(&w[0])).map(|w| w[1]).collect();
    let start = line.strip_prefix("pub ").unwrap_or(line);
    let end = start.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(start.len());
    let (name, rest) = (&start[..end], start[end..].trim_start());
    // `ln => Log`, `momentum(mu) => ..`, `NllLoss { ..`, `MseLoss "mse_loss" ..`, `Lstm, RnnCell::Lstm`.
    let row = rest.starts_with("=>") || rest.starts_with(['{', '"']) || rest.starts_with(", RnnCell");
    if row || (rest.starts_with('(') && rest.contains("=>")) {
        names.push(name);
    }
    names
}

/// Names with the files that define them.
pub(crate) fn definitions(files: &BTreeMap<String, String>) -> BTreeMap<&str, Vec<&str>> {
    let mut out: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (path, text) in files {
        for name in text.lines().flat_map(defined) {
            out.entry(name).or_default().push(path);
        }
    }
    out
}
