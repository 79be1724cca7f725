//! `docs/PYTORCH.md` is made from the lists under `nn/tests/pytorch` and the sources.
#![allow(missing_docs)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

#[path = "common/names.rs"]
mod names;

use names::{definitions, sources};

const HEAD: &str = "\
# PyTorch's operators

Made from PyTorch's public names (`nn/tests/pytorch/names.txt`, which `names.py` beside it writes), a table of ours (`ours.txt`) and the sources, by
the test `pytorch_page`, which fails where this page is out of date or names what does not exist; `TREFOIL_UPDATE_DOCS=1 cargo test -p trefoil-nn
--test pytorch_page` writes it.

A name stands beside what computes the same here; where arguments differ, the documentation of ours says so. Values, gradients and edge cases of those
in `nn/tests/golden/operators.py` are compared with PyTorch's. What is absent stands below each table with the reason. Layers, losses, optimizers and
everything else: [MIGRATING.md](MIGRATING.md).

Of all operators, functions whose names end in `_` (in place) and `out=` are absent: tensors are values here, and what is not needed any more
is freed at once. `Tensor::assign`, `Tensor::fill` and `Tensor::write_bytes` overwrite a tensor.

";

/// Modules in the order of the page.
const MODULES: [(&str, &str); 6] = [
    ("torch", "torch"),
    ("Tensor", "torch.Tensor, beyond torch"),
    ("F", "torch.nn.functional"),
    ("linalg", "torch.linalg"),
    ("special", "torch.special"),
    ("fft", "torch.fft"),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_path_buf()
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap().replace("\r\n", "\n")
}

/// Rows `left | right` of a file, without comments.
fn rows(text: &str) -> Vec<(&str, &str)> {
    let lines = text.lines().filter(|l| !l.is_empty() && !l.starts_with('#'));
    lines.map(|l| l.split_once(" | ").unwrap_or_else(|| panic!("no ` | ` in {l:?}"))).collect()
}

/// Whether a rule, in which `*` stands for anything, takes a name.
fn takes(rule: &str, name: &str) -> bool {
    match rule.split_once('*') {
        None => rule == name,
        Some((start, end)) => {
            name.len() >= start.len() + end.len() && name.starts_with(start) && name.ends_with(end)
        }
    }
}

/// Public methods of tensors: of `impl Tensor`, and the rows of macros that make such.
fn methods() -> BTreeSet<String> {
    let mut files = BTreeMap::new();
    for folder in ["nn/src/functional", "nn/src/core"] {
        sources(&root().join(folder), &mut files);
    }
    let mut found = BTreeSet::new();
    for text in files.values() {
        let mut of_tensors = false;
        for line in text.lines() {
            if line.starts_with("impl") || line == "}" {
                of_tensors = line.starts_with("impl Tensor {");
            }
            let line = line.trim_start();
            let name = match line.strip_prefix("pub fn ") {
                Some(name) if of_tensors => name,
                None if line.contains(" => ") && line.ends_with("\";") => line,
                _ => continue,
            };
            let end = name.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(name.len());
            found.insert(name[..end].to_string());
        }
    }
    found
}

/// What stands beside a name of PyTorch, `absent: reason` included: the first rule of the table that takes it, or the method of its name.
fn ours(name: &str, table: &[(&str, &str)], methods: &BTreeSet<String>) -> Option<String> {
    let exact = table.iter().find(|(rule, _)| *rule == name);
    if let Some((_, text)) = exact {
        return Some((*text).to_string());
    }
    let plain = name.rsplit('.').next().unwrap_or(name);
    if methods.contains(plain) {
        return Some(format!("`Tensor::{plain}`"));
    }
    table.iter().find(|(rule, _)| takes(rule, name)).map(|(_, text)| (*text).to_string())
}

/// A list of names on lines of a readable length.
fn listed(names: &[&str]) -> String {
    let (mut out, mut width) = (String::new(), 0);
    for (i, name) in names.iter().enumerate() {
        let item = format!("`{name}`{}", if i + 1 == names.len() { "\n\n" } else { "," });
        if width > 0 && width + item.len() > 140 {
            out += "\n";
            width = 0;
        } else if width > 0 {
            out += " ";
        }
        width += item.len() + 1;
        out += &item;
    }
    out
}

fn page() -> String {
    let (list, table) = (read("nn/tests/pytorch/names.txt"), read("nn/tests/pytorch/ours.txt"));
    let (table, methods) = (rows(&table), methods());
    let mut text = HEAD.to_string();
    let (mut missing, mut used) = (vec![], BTreeSet::new());
    for (module, title) in MODULES {
        let prefix = format!("{module}.");
        let mut absent: BTreeMap<String, Vec<&str>> = BTreeMap::new();
        let mut present = String::new();
        for name in list.lines().filter(|l| l.starts_with(&prefix)) {
            used.insert(name);
            let short = &name[prefix.len()..];
            match ours(name, &table, &methods) {
                None => missing.push(name),
                Some(t) => match t.strip_prefix("absent: ") {
                    Some(why) => absent.entry(why.to_string()).or_default().push(short),
                    None => present += &format!("| `{short}` | {t} |\n"),
                },
            }
        }
        text += &format!("## {title}\n\n");
        if !present.is_empty() {
            text += &format!("| PyTorch | trefoil-nn |\n|---|---|\n{present}\n");
        }
        for (why, names) in &absent {
            text += &format!("Absent, {why}:\n{}", listed(names));
        }
    }
    assert!(missing.is_empty(), "neither ours nor absent with a reason: {missing:?}");
    let stray: Vec<_> = list.lines().filter(|l| !l.starts_with('#') && !used.contains(l)).collect();
    assert!(stray.is_empty(), "in no module: {stray:?}");
    let idle: Vec<_> =
        table.iter().filter(|(rule, _)| !list.lines().any(|n| takes(rule, n))).map(|(r, _)| r).collect();
    assert!(idle.is_empty(), "rows of ours.txt for names that PyTorch does not have: {idle:?}");
    text.trim_end().to_string() + "\n"
}

#[test]
fn the_page_is_up_to_date() {
    let (path, text) = (root().join("docs/PYTORCH.md"), page());
    if std::env::var_os("TREFOIL_UPDATE_DOCS").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default().replace("\r\n", "\n");
    assert!(written == text, "docs/PYTORCH.md is out of date: TREFOIL_UPDATE_DOCS=1 writes it");
}

#[test]
fn names_on_the_page_exist() {
    let mut files = BTreeMap::new();
    ["nn/src", "src"].iter().for_each(|folder| sources(&root().join(folder), &mut files));
    let (known, methods) = (definitions(&files), methods());
    let table = read("nn/tests/pytorch/ours.txt");
    let (mut wrong, mut checked) = (vec![], 0);
    for (rule, text) in rows(&table).into_iter().filter(|(_, t)| !t.starts_with("absent: ")) {
        assert!(!rule.contains('*'), "{rule} stands for several names, which cannot all be `{text}`");
        for span in text.split('`').skip(1).step_by(2) {
            let parts: Vec<&str> = span.split("::").collect();
            checked += 1;
            let exists = match parts[..] {
                ["Tensor", method] => methods.contains(method),
                _ => parts.iter().filter(|part| **part != "trefoil").all(|part| {
                    let module = files
                        .keys()
                        .any(|p| p.contains(&format!("/{part}/")) || p.ends_with(&format!("/{part}.rs")));
                    module || known.contains_key(part)
                }),
            };
            if !exists {
                wrong.push(span);
            }
        }
    }
    assert!(wrong.is_empty(), "ours.txt names what does not exist: {wrong:?}");
    assert!(checked > 100, "only {checked} names were found");
    // The test can fail.
    assert!(!methods.contains("no_such_method") && methods.contains("ln") && methods.contains("matmul"));
    assert!(takes("torch.*_copy", "torch.view_copy") && !takes("torch.*_copy", "torch.copysign"));
    assert!(takes("fft.*", "fft.rfft") && !takes("torch.abs", "torch.absolute"));
}
