//! A family has one name everywhere.

use std::collections::BTreeSet;
use std::path::Path;

/// Names of the files and folders of a directory, without `.rs` and without what is no family.
fn names(dir: &str, others: &[&str]) -> BTreeSet<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(dir);
    let entries = std::fs::read_dir(&path).unwrap_or_else(|e| panic!("{dir}: {e}"));
    let names = entries.map(|e| e.unwrap().file_name().to_string_lossy().into_owned());
    let names = names.map(|n| n.strip_suffix(".rs").map(String::from).unwrap_or(n));
    names.filter(|n| !others.contains(&n.as_str())).collect()
}

/// Every family, by its name in `trefoil::ops`.
fn families() -> BTreeSet<String> {
    trefoil::ops::all_ops().map(|o| o.family.name().to_string()).collect()
}

/// Names that are in one set and not in the other.
fn strays(found: &BTreeSet<String>, known: &BTreeSet<String>) -> Vec<String> {
    found.difference(known).cloned().collect()
}

#[test]
fn folders_are_named_by_family() {
    let known = families();
    for (dir, others) in [
        ("kernels/common", &["prelude"][..]),
        ("src/ops", &["mod", "check", "io_struct", "operand"]),
        ("src/engine/ops", &["mod"]),
        ("src/cpu", &["matmul", "mod", "scratch", "special", "tape", "values", "vector"]),
        ("src/spec/kernels", &["mod"]),
        ("src/spec", &["mod", "kernels", "prototype", "user"]),
        ("parity-tests/src/cases", &["mod", "golden_absent", "pending"]),
        ("parity-tests/tests/bad_input", &["main"]),
        ("nn/src/functional", &["mod", "operand", "derivatives", "operators", "einsum", "position", "audio"]),
    ] {
        let found = names(dir, others);
        assert!(!found.is_empty(), "{dir} is empty");
        assert_eq!(strays(&found, &known), [] as [String; 0], "{dir} has names that are no family's");
    }
}

#[test]
fn every_family_is_served_everywhere() {
    let known = families();
    for (dir, without) in [
        ("src/ops", &[][..]),
        ("src/engine/ops", &[]),
        ("src/cpu", &[]),
        ("kernels/common", &["core"]),
        ("parity-tests/src/cases", &[]),
        ("benches/problems", &[]),
    ] {
        let missing: Vec<_> =
            strays(&known, &names(dir, &[])).into_iter().filter(|n| !without.contains(&n.as_str())).collect();
        assert_eq!(missing, [] as [String; 0], "{dir} lacks these families");
    }
}

#[test]
fn a_stray_is_found() {
    let known: BTreeSet<String> = ["norm".to_string()].into();
    let found: BTreeSet<String> = ["norm".to_string(), "norm_more".to_string()].into();
    assert_eq!(strays(&found, &known), ["norm_more"]);
}
