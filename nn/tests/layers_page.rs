//! `docs/LAYERS.md` is made from the table of layers and the results of the golden suites.
#![allow(missing_docs)]

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;
use trefoil_nn::network::{LAYERS, LayerInfo};

/// What the golden suites' report wrote for a backend.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Results {
    device: String,
    date: String,
    /// Device and date of layers that ran apart from the others.
    #[serde(default)]
    apart: BTreeMap<String, String>,
    /// Layer, check, cases passed of cases.
    layers: BTreeMap<String, BTreeMap<String, [u32; 2]>>,
}

const HEAD: &str = "\
# Layers

Made from the table of layers (`trefoil_nn::network::LAYERS`) and the results under `nn/tests/results` by the test `layers_page`, which
fails where this page is out of date; `TREFOIL_UPDATE_DOCS=1 cargo test -p trefoil-nn --test layers_page` writes it. The results are those
of `TREFOIL_DATE=.. cargo test -p trefoil-nn --test layer_golden report -- --ignored`: every case is a configuration of the layer with
outputs and gradients from PyTorch (`nn/tests/golden/generate.py`).

A number is that of the cases that pass on every backend that the last column names, `3/4` where one fails somewhere, `-` where none ran. The
last column has the backends that ran all cases of today; what others ran before some cases came is left out.

* **forward, backward**: outputs, gradients of inputs and of all parameters, buffers, also for inputs that are views
* **update**: parameters after two steps of AdamW are PyTorch's
* **resident**: further steps transfer nothing between host and device and allocate nothing there
* **state**: a file of PyTorch's names loads and gives the same bits
* **f16, bf16**: outputs and gradients in 16 bits against f32 from the same numbers, within 5 % of the largest
* **checkpointing**: recomputing the layer in the backward pass gives the same bits

";

/// Cells of a row: heading, checks that must all have passed.
const COLUMNS: [(&str, &[&str]); 7] = [
    ("forward, backward", &["one call", "a call with views"]),
    ("update", &["steps"]),
    ("resident", &["memory"]),
    ("state", &["state"]),
    ("f16", &["f16"]),
    ("bf16", &["bf16"]),
    ("checkpointing", &["checkpointing"]),
];

/// The results of a layer on the backends that ran the most cases of it, by backend.
fn current<'a>(
    l: &LayerInfo,
    all: &'a [(String, Results)],
) -> Vec<(&'a str, &'a BTreeMap<String, [u32; 2]>)> {
    let ran = |checks: &BTreeMap<String, [u32; 2]>| checks.values().map(|c| c[1]).sum::<u32>();
    let rows: Vec<_> = all.iter().filter_map(|(b, r)| Some((b.as_str(), r.layers.get(l.name)?))).collect();
    let most = rows.iter().map(|(_, checks)| ran(checks)).max();
    rows.into_iter().filter(|(_, checks)| Some(ran(checks)) == most).collect()
}

fn cell(rows: &[(&str, &BTreeMap<String, [u32; 2]>)], checks: &[&str]) -> String {
    let counts = rows.iter().flat_map(|(_, row)| checks.iter().filter_map(|c| row.get(*c)));
    let [passed, of] = counts.fold([u32::MAX, 0], |[p, n], [passed, of]| [p.min(*passed), n.max(*of)]);
    match (passed, of) {
        (_, 0) => "-".into(),
        (p, n) if p == n => n.to_string(),
        (p, n) => format!("{p}/{n}"),
    }
}

fn page(all: &[(String, Results)]) -> String {
    let mut text = HEAD.to_string();
    for (backend, r) in all {
        let passed = r.layers.values().flat_map(BTreeMap::values).map(|c| c[0]).sum::<u32>();
        let of = r.layers.values().flat_map(BTreeMap::values).map(|c| c[1]).sum::<u32>();
        text += &format!("Backend `{backend}`: {}, {}: {passed} of {of} checks passed", r.device, r.date);
        let mut apart: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        r.apart.iter().for_each(|(layer, ran)| apart.entry(ran).or_default().push(format!("`{layer}`")));
        apart.iter().for_each(|(ran, layers)| text += &format!(";\n{} on {ran}", in_lines(layers)));
        text += ".\n\n";
    }
    text += "| layer | `type` | PyTorch |";
    COLUMNS.iter().for_each(|(name, _)| text += &format!(" {name} |"));
    text += &format!(" backends |\n|{}\n", "---|".repeat(4 + COLUMNS.len()));
    let mut layers: Vec<&LayerInfo> = LAYERS.iter().filter(|l| l.entry > 0).collect();
    layers.sort_by_key(|l| l.entry);
    for l in layers {
        text += &format!("| {} | `{}` | {} |", l.kind, l.name, l.torch);
        let rows = current(l, all);
        COLUMNS.iter().for_each(|(_, checks)| text += &format!(" {} |", cell(&rows, checks)));
        let backends: Vec<&str> = rows.iter().map(|(b, _)| *b).collect();
        text += &format!(" {} |\n", backends.join(", "));
    }
    let others: Vec<String> =
        LAYERS.iter().filter(|l| l.entry == 0).map(|l| format!("`{}`", l.name)).collect();
    text + &format!("\nFurther types, tested without suites of their own: {}.\n", in_lines(&others))
}

/// Names with commas, four in a line.
fn in_lines(names: &[String]) -> String {
    names.chunks(4).map(|line| line.join(", ")).collect::<Vec<_>>().join(",\n")
}

#[test]
fn the_page_is_made_of_the_results() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut all = vec![];
    for backend in ["cpu", "pocl", "cuda", "hip", "opencl"] {
        let path = root.join(format!("tests/results/layers-{backend}.json"));
        if let Ok(text) = std::fs::read_to_string(path) {
            let results: Results = serde_json::from_str(&text).unwrap();
            for (layer, checks) in &results.layers {
                let needed = COLUMNS.iter().flat_map(|(_, checks)| *checks);
                needed.for_each(|c| {
                    assert!(checks.contains_key(*c), "{layer} on {backend}: no results of `{c}`")
                });
            }
            all.push((backend.to_string(), results));
        }
    }
    assert!(!all.is_empty(), "no results");
    let (path, wanted) = (root.join("../docs/LAYERS.md"), page(&all));
    if std::env::var_os("TREFOIL_UPDATE_DOCS").is_some() {
        std::fs::write(&path, &wanted).unwrap();
    }
    let text = std::fs::read_to_string(&path).unwrap_or_default().replace("\r\n", "\n");
    assert!(text == wanted, "docs/LAYERS.md is out of date: run this test with TREFOIL_UPDATE_DOCS=1");
}
