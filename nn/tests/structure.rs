//! The layout of the sources: no cycle among the folders of `src`, nor among the modules of a folder whose modules build on each other; files of
//! a readable size with names by content.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Folders whose modules must not depend on each other in a cycle.
const LAYERED: &[&str] = &["core", "functional", "module", "io", "train", "report", "interop"];
/// Lines of a file.
const LONGEST: usize = 650;

/// Which names refer to which.
type Graph = BTreeMap<String, BTreeSet<String>>;

fn sources(folder: &Path, out: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => sources(&path, out),
            false => out.push(path),
        }
    }
}

/// The module path of every file, and its text without comments and unit tests.
fn modules() -> Vec<(Vec<String>, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = vec![];
    sources(&root, &mut files);
    let module = |path: PathBuf| {
        let mut names: Vec<String> = path
            .strip_prefix(&root)
            .unwrap()
            .with_extension("")
            .iter()
            .map(|name| name.to_str().unwrap().to_string())
            .collect();
        names.retain(|name| name != "mod");
        let code = |line: &str| line.split("//").next().unwrap_or_default().to_string();
        let text = fs::read_to_string(path).unwrap();
        let text = text.lines().take_while(|line| *line != "#[cfg(test)]").map(code);
        (names, text.collect::<Vec<_>>().join("\n"))
    };
    files.into_iter().map(module).filter(|(names, _)| names[0] != "lib").collect()
}

/// The names of the longest path at the start of `text`, and what follows.
fn path_at(mut text: &str) -> (Vec<String>, &str) {
    let mut names = vec![];
    loop {
        let end = text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
        if end == 0 {
            return (names, text);
        }
        names.push(text[..end].to_string());
        match text[end..].strip_prefix("::") {
            Some(rest) => text = rest,
            None => return (names, &text[end..]),
        }
    }
}

/// The paths at the start of `text`: one, or those of a list in braces, each behind `before`.
fn expand(before: &[String], text: &str, out: &mut Vec<Vec<String>>) {
    let (names, rest) = path_at(text);
    let path = [before, &names].concat();
    let Some(list) = rest.strip_prefix('{') else { return out.push(path) };
    let (mut depth, mut start) = (0, 0);
    for (at, c) in list.char_indices() {
        if depth == 0 && (c == ',' || c == '}') {
            let item = list[start..at].trim();
            if !item.is_empty() {
                expand(&path, item, out);
            }
            start = at + 1;
        }
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => return,
            '}' => depth -= 1,
            _ => {}
        }
    }
}

/// The paths from the root of the crate that a module names.
fn references(module: &[String], text: &str) -> Vec<Vec<String>> {
    let mut out = vec![];
    for (at, _) in text.match_indices("crate::") {
        expand(&[], &text[at + "crate::".len()..], &mut out);
    }
    for (at, _) in text.match_indices("super::") {
        expand(&module[..module.len() - 1], &text[at + "super::".len()..], &mut out);
    }
    out
}

/// A path in the graph that comes back to where it started.
fn cycle(graph: &Graph) -> Option<Vec<String>> {
    fn visit(at: &str, graph: &Graph, done: &mut BTreeSet<String>, path: &mut Vec<String>) -> bool {
        if let Some(start) = path.iter().position(|name| name == at) {
            path.drain(..start);
            return true;
        }
        if done.contains(at) {
            return false;
        }
        path.push(at.to_string());
        let found = graph.get(at).is_some_and(|next| next.iter().any(|n| visit(n, graph, done, path)));
        if !found {
            path.pop();
            done.insert(at.to_string());
        }
        found
    }
    let (mut done, mut path) = (BTreeSet::new(), vec![]);
    graph.keys().any(|at| visit(at, graph, &mut done, &mut path)).then_some(path)
}

fn add(graph: &mut Graph, from: &str, to: &str) {
    let next = graph.entry(from.to_string()).or_default();
    if from != to {
        next.insert(to.to_string());
    }
}

#[test]
fn folders_depend_in_one_direction() {
    let mut graph = Graph::new();
    let all = modules();
    let folders: BTreeSet<&str> = all.iter().map(|(names, _)| names[0].as_str()).collect();
    for (module, text) in &all {
        for path in references(module, text) {
            assert!(folders.contains(path[0].as_str()), "{module:?} names {path:?} by its public path");
            add(&mut graph, &module[0], &path[0]);
        }
    }
    assert_eq!(cycle(&graph), None);
    assert!(graph["train"].contains("core") && graph["core"].is_empty());
}

#[test]
fn modules_of_a_folder_depend_in_one_direction() {
    let all = modules();
    for &folder in LAYERED {
        let mut graph = Graph::new();
        let inside: Vec<_> = all.iter().filter(|(names, _)| names[0] == folder && names.len() > 1).collect();
        let names: BTreeSet<&str> = inside.iter().map(|(names, _)| names[1].as_str()).collect();
        assert!(names.len() > 1, "{folder}");
        for (module, text) in &inside {
            for path in references(module, text).iter().filter(|path| path[0] == folder) {
                let named = path.get(1).is_some_and(|name| names.contains(name.as_str()));
                assert!(named, "{module:?} names {path:?} through its own folder");
                add(&mut graph, &module[1], &path[1]);
            }
        }
        assert_eq!(cycle(&graph), None, "{folder}");
    }
}

#[test]
fn files_have_a_readable_size_and_names_by_content() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = vec![];
    for folder in ["src", "tests", "examples", "benches"] {
        sources(&root.join(folder), &mut files);
    }
    for path in files {
        let name = path.file_stem().unwrap().to_str().unwrap();
        assert!(
            !name.ends_with("_more") && !name.ends_with("_forms"),
            "{} is named by nothing",
            path.display()
        );
        if path.starts_with(root.join("src")) {
            let lines = fs::read_to_string(&path).unwrap().lines().count();
            assert!(lines <= LONGEST, "{}: {lines} lines", path.display());
        }
    }
}

/// Operations of the backend that this crate does not call, and why.
const NOT_CALLED: &[(&str, &str)] = &[
    ("fork_stream", DEVICE),
    ("record", DEVICE),
    ("wait", DEVICE),
    ("trim", DEVICE),
    ("warmup", DEVICE),
    ("explain", DEVICE),
    ("compile_raw", DEVICE),
    ("launch_raw", DEVICE),
    ("import", DEVICE),
    ("export", DEVICE),
    ("raw_stream", DEVICE),
    ("adopt_stream", DEVICE),
    ("pin_variant", DEVICE),
    ("explain_calls", DEVICE),
    ("tune_calls", DEVICE),
    ("fill_bytes", "it sets raw bits; `Tensor::full` and `Tensor::write_bytes` set elements"),
    ("rnn_gates", "two `Tensor::linear` compute it with gradients"),
];
const DEVICE: &str = "it is about the device, not about tensors: users call it on `Tensor::device`";

/// Whether a text without white space calls a method on what is named as devices are here.
fn calls(text: &str, method: &str) -> bool {
    text.match_indices(&format!(".{method}(")).any(|(at, _)| {
        let before = &text[..at];
        let word = before.rsplit(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default();
        before.ends_with("device()") || matches!(word, "device" | "d" | "gpu")
    })
}

#[test]
fn every_operation_is_called_or_excluded_with_a_reason() {
    let text: String =
        modules().into_iter().map(|(_, t)| t.split_whitespace().collect::<String>() + "\n").collect();
    let mut wrong = vec![];
    for op in trefoil::ops::all_ops() {
        let excluded = NOT_CALLED.iter().find(|(name, _)| *name == op.name);
        match (calls(&text, op.name), excluded) {
            (false, None) => wrong.push(format!("{} is neither called nor excluded", op.name)),
            (true, Some((_, why))) => wrong.push(format!("{} is called, but excluded: {why}", op.name)),
            _ => {}
        }
    }
    for (name, why) in NOT_CALLED {
        if !trefoil::ops::all_ops().any(|op| op.name == *name) || why.len() < 10 {
            wrong.push(format!("{name} is no operation, or excluded without a reason"));
        }
    }
    assert_eq!(wrong, Vec::<String>::new());
}

#[test]
fn the_checks_see_what_they_refuse() {
    assert!(
        calls("x.device().gat(1)", "gat") && calls("{d.gat(1)", "gat") && calls("self.device.gat(1)", "gat")
    );
    assert!(
        !calls("graph.gat(1)", "gat")
            && !calls("x.device().gat_bwd(1)", "gat")
            && !calls("add.gat(1)", "gat")
    );

    let text = "use crate::core::{error::Result, tensor::{Device, Tensor}};\nlet x = super::b::f();";
    let module = ["train".to_string(), "a".to_string()];
    let paths: Vec<String> = references(&module, text).iter().map(|p| p.join("::")).collect();
    assert_eq!(paths, ["core::error::Result", "core::tensor::Device", "core::tensor::Tensor", "train::b::f"]);

    let mut graph = Graph::new();
    for (from, to) in [("a", "b"), ("b", "c"), ("b", "d")] {
        add(&mut graph, from, to);
    }
    assert_eq!(cycle(&graph), None);
    add(&mut graph, "d", "b");
    assert_eq!(cycle(&graph), Some(vec!["b".to_string(), "d".to_string()]));
}
