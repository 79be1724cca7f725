//! The results of which docs/LAYERS.md is made.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::path::Path;

use crate::common::{devices, id, slow};
use crate::golden::{FAMILIES, suite};
use crate::run::Run;
use crate::{CHECKS, Check, Folder};
use serde_json::{Value, json};
use trefoil_nn::{DType, Device};

/// What the table of layers tells beside that.
const MORE: [(&str, Check); 2] =
    [("f16", |r, _| r.halves(DType::F16)), ("bf16", |r, _| r.halves(DType::Bf16))];

/// What ran on a device: its name, and per layer and check how many cases passed of how many.
struct Counts {
    device: String,
    layers: BTreeMap<String, BTreeMap<&'static str, [u32; 2]>>,
}

/// All checks of all cases of a family on devices of its own, by the names of their backends.
fn counted(family: &str) -> Vec<(String, Counts)> {
    let folder = Folder::new(family);
    let on = |d: Device| {
        let mut counts = Counts { device: d.caps().name.clone(), layers: BTreeMap::new() };
        for case in suite(family) {
            let layer = counts.layers.entry(case.entry.clone()).or_default();
            for (stage, check) in CHECKS.into_iter().chain(MORE) {
                let mut run = Run { stage, ..Run::new(&case, &d) };
                check(&mut run, &folder.0).unwrap_or_else(|e| run.fail(e));
                let [passed, of] = layer.entry(stage).or_default();
                *of += 1;
                *passed += u32::from(run.failures.is_empty());
                run.failures.iter().for_each(|f| println!("{f}"));
            }
        }
        // OpenCL on a CPU does not stand for a GPU's.
        let backend = if slow(&d) { "pocl".to_string() } else { id(&d).kind.to_string() };
        (backend, counts)
    };
    devices().into_iter().map(on).collect()
}

/// The results in a file with those of some layers in place of theirs, which ran apart from the others; not apart if all have run on this device and day.
fn merged(
    path: &Path,
    layers: BTreeMap<String, BTreeMap<&'static str, [u32; 2]>>,
    [device, date]: [&str; 2],
) -> Value {
    let text = std::fs::read_to_string(path).expect("results of all layers");
    let mut json: Value = serde_json::from_str(&text).unwrap();
    let ran: Value = format!("{device}, {date}").into();
    for (layer, checks) in layers {
        json["apart"][&layer] = ran.clone();
        json["layers"][&layer] = json!(checks);
    }
    let all = json["layers"].as_object().unwrap();
    if all.keys().all(|layer| json["apart"][layer] == ran) {
        json = json!({ "device": device, "date": date, "layers": all });
    }
    json
}

/// Writes `tests/results/layers-BACKEND.json` for every backend that is there. Families run side by side: most of the time goes into compiling.
/// With `TREFOIL_LAYERS=FAMILY,..` only the layers of these families run, and the file says of each on which device and day it ran apart.
#[test]
#[ignore = "writes the results of which docs/LAYERS.md is made"]
fn report() {
    let wanted = std::env::var("TREFOIL_LAYERS").ok();
    let named = wanted.iter().flat_map(|w| w.split(','));
    named
        .for_each(|f| assert!(FAMILIES.contains(&f), "TREFOIL_LAYERS: no family `{f}`; known: {FAMILIES:?}"));
    let chosen = |family: &str| wanted.as_ref().is_none_or(|w| w.split(',').any(|f| f == family));
    let all = std::thread::scope(|s| {
        let families = FAMILIES.iter().filter(|family| chosen(family));
        let running: Vec<_> = families.map(|family| s.spawn(|| counted(family))).collect();
        running.into_iter().flat_map(|family| family.join().unwrap()).collect::<Vec<_>>()
    });
    let mut backends: BTreeMap<String, Counts> = BTreeMap::new();
    for (backend, counts) in all {
        match backends.entry(backend) {
            Entry::Vacant(e) => _ = e.insert(counts),
            // Each layer belongs to one family.
            Entry::Occupied(e) => e.into_mut().layers.extend(counts.layers),
        }
    }
    let results = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/results");
    std::fs::create_dir_all(&results).unwrap();
    let date = std::env::var("TREFOIL_DATE").unwrap_or_default();
    for (backend, Counts { device, layers }) in backends {
        let path = results.join(format!("layers-{backend}.json"));
        let json = match &wanted {
            None => json!({ "device": device, "date": date, "layers": layers }),
            Some(_) => merged(&path, layers, [&device, &date]),
        };
        std::fs::write(&path, serde_json::to_string_pretty(&json).unwrap() + "\n").unwrap();
        println!("{}", path.display());
    }
}
