//! Every Rust name in the tables of `docs/MIGRATING.md` exists.
#![allow(missing_docs)]

use std::collections::BTreeMap;
use std::path::Path;

#[path = "common/names.rs"]
mod names;

use names::{definitions, sources};

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
