//! Every Rust name in the tables of `docs/MIGRATING.md` exists.
#![allow(missing_docs)]

use std::collections::BTreeMap;
use std::path::Path;

/// Text of all Rust files below a folder by path.
fn sources(root: &Path, out: &mut BTreeMap<String, String>) {
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
fn definitions(files: &BTreeMap<String, String>) -> BTreeMap<&str, Vec<&str>> {
    let mut out: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (path, text) in files {
        for name in text.lines().flat_map(defined) {
            out.entry(name).or_default().push(path);
        }
    }
    out
}

#[test]
fn names_in_the_tables_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let text = std::fs::read_to_string(root.join("docs/MIGRATING.md")).unwrap();
    let (mut ours, mut library) = (BTreeMap::new(), BTreeMap::new());
    sources(&root.join("nn/src"), &mut ours);
    sources(&root.join("src"), &mut library);
    let names = [definitions(&ours), definitions(&library)];
    let known = |name: &str, library_only: bool, in_tensor: bool| {
        let place =
            |path: &&str| !in_tensor || ["/functional/", "/core/"].iter().any(|folder| path.contains(folder));
        names[usize::from(library_only)].get(name).is_some_and(|paths| paths.iter().any(place))
    };

    let (mut checked, mut missing) = (0, vec![]);
    for line in text.lines().filter(|l| l.starts_with("| ") && !l.starts_with("|---")) {
        // Columns are parted by " | ", which no name contains.
        let right = line.trim_end_matches('|').rsplit(" | ").next().unwrap();
        for span in right.split('`').skip(1).step_by(2) {
            // Shapes stand in the tables too.
            if span.starts_with('[') {
                continue;
            }
            let library_only = span.starts_with("trefoil::");
            let mut parts: Vec<&str> = span.split("::").filter(|p| *p != "trefoil").collect();
            // State names of layers, written beside them.
            parts.retain(|p| !["weight", "bias"].contains(p));
            for (i, part) in parts.iter().enumerate() {
                checked += 1;
                let in_tensor = i > 0 && parts[i - 1] == "Tensor";
                let folder = |all: &BTreeMap<String, String>| {
                    all.keys()
                        .any(|p| p.contains(&format!("/{part}/")) || p.ends_with(&format!("/{part}.rs")))
                };
                let module = i + 1 < parts.len() && folder(if library_only { &library } else { &ours });
                if !module && !known(part, library_only, in_tensor) {
                    missing.push(span);
                }
            }
        }
    }
    assert!(missing.is_empty(), "docs/MIGRATING.md names what does not exist: {missing:?}");
    assert!(checked > 400, "only {checked} names were found in the tables");
    // The test can fail.
    assert!(
        !known("no_such_name", false, false) && !known("Trainer", false, true) && known("ln", false, true)
    );
}
