//! No operation is left out of these tables.

use std::collections::BTreeSet;

use super::elementwise::{elementwise, shapes_and_sums};
use super::losses::losses;
use super::matrices::matrices_and_sequences;
use super::networks::networks;

/// The files of a folder and of those in it.
fn texts(folder: &std::path::Path) -> Vec<String> {
    let paths = std::fs::read_dir(folder).unwrap().map(|f| f.unwrap().path());
    paths
        .flat_map(|p| if p.is_dir() { texts(&p) } else { vec![std::fs::read_to_string(p).unwrap()] })
        .collect()
}

/// Names of public functions of the operations, and of losses, in the source.
fn public_names() -> BTreeSet<String> {
    let source = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let read = |folder: &str| texts(&source.join(folder));
    let word = |s: &str| -> String { s.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect() };
    let mut all = BTreeSet::new();
    for text in read("functional") {
        all.extend(text.split("pub fn ").skip(1).map(word));
    }
    for text in read("train/losses") {
        for line in text.lines() {
            let name = word(line.trim_start());
            // `Name {`, `Name {}` or `Name "name" {` in the macros that define losses.
            let rest = line.trim_start()[name.len()..].trim();
            let defined = ["{", "{}"].contains(&rest) || (rest.starts_with('"') && rest.contains(" {"));
            if name.ends_with("Loss") && defined {
                all.insert(name);
            }
        }
    }
    all.remove("");
    all
}

#[test]
fn no_operation_is_left_out() {
    // Without operands, constructors and queries; methods that macros make, and this one, are `unary` and `binary` by name.
    let others = "forward train centroids encode decode tables random rand randn causal_mask permutation sequence_lengths new with detach polygamma size by_src by_dst";
    let mut known: BTreeSet<String> = others.split(' ').map(String::from).collect();
    for rows in [elementwise(), shapes_and_sums(), networks(), matrices_and_sequences(), losses()] {
        known.extend(rows.into_iter().map(|r| r.name.to_string()));
    }
    // Operations that other tests run on views.
    for file in [
        "audio.rs",
        "tensor_ops.rs",
        "volta.rs",
        "distance.rs",
        "experts.rs",
        "field.rs",
        "fused_ops.rs",
        "graph.rs",
        "mesh.rs",
        "pytorch_operators.rs",
        "operator_properties.rs",
    ] {
        let file = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/suite").join(file);
        let text = std::fs::read_to_string(file).unwrap();
        known.extend(text.split(|c: char| !c.is_alphanumeric() && c != '_').map(String::from));
    }
    let missing: Vec<String> = public_names().into_iter().filter(|n| !known.contains(n)).collect();
    assert!(missing.is_empty(), "no row for {missing:?}");
}
