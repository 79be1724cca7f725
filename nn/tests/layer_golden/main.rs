//! Every layer against PyTorch, on every device: outputs, gradients, buffers, two steps of AdamW, learning rules, state dictionaries.
//! The suites come from `golden/generate.py`.
#![allow(missing_docs)]

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/golden.rs"]
mod golden;
#[path = "../common/golden_call.rs"]
mod golden_call;

mod entries;
mod report;
mod run;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use self::run::Run;
use common::{devices, id, slow};
use golden::suite;
use trefoil_nn::Result;

/// A check of a case.
type Check = fn(&mut Run<'_>, &Path) -> Result<()>;

/// What every case goes through.
const CHECKS: [(&str, Check); 8] = [
    ("one call", |r, _| r.gradients()),
    ("a call with views", |r, _| r.views()),
    ("steps", |r, _| r.steps().and_then(|()| r.learned())),
    ("state", |r, folder| r.round_trip(folder)),
    ("description", |r, _| r.described()),
    ("memory", |r, _| r.memory()),
    ("an empty batch", |r, _| r.empty()),
    ("checkpointing", |r, _| r.checkpointed()),
];

/// A folder for the files of a family, removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(family: &str) -> Folder {
        let name = format!("trefoil-golden-{}-{family}", std::process::id());
        let folder = Folder(std::env::temp_dir().join(name));
        std::fs::create_dir_all(&folder.0).unwrap();
        folder
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        _ = std::fs::remove_dir_all(&self.0);
    }
}

fn run(family: &str) {
    let cases = suite(family);
    let only = std::env::var("TREFOIL_GOLDEN_CASE").unwrap_or_default();
    let folder = Folder::new(family);
    let mut failures = vec![];
    let everything = std::env::var_os("TREFOIL_GOLDEN_ALL").is_some();
    for d in devices() {
        // A CPU behind a driver takes long: there, outputs and gradients of all cases, the rest of one of each layer.
        let (mut entries, mut left) = (BTreeSet::new(), 0);
        for case in cases.iter().filter(|c| c.name.contains(&only)) {
            let first = entries.insert(&case.entry);
            let checks = if first || everything || !slow(&d) { &CHECKS[..] } else { &CHECKS[..1] };
            left += CHECKS.len() - checks.len();
            failures.extend(Run::new(case, &d).checked(checks, &folder.0));
        }
        if left > 0 {
            println!(
                "skipped {left} checks of {family} on {}: a CPU behind a driver; TREFOIL_GOLDEN_ALL=1 runs all",
                id(&d)
            );
        }
    }
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
}

macro_rules! families {
    ($($name:ident: $family:literal;)*) => {
        $(#[test]
        fn $name() {
            run($family);
        })*

        /// A family without a test would go unnoticed.
        const TESTED: &[&str] = &[$($family),*];
    };
}

families! {
    core: "core";
    attention: "attention";
    recurrent: "recurrent";
    pooling: "pooling";
    normalization: "normalization";
    transformer: "transformer";
    convolutional: "convolutional";
    upsampling: "upsampling";
    utility: "utility";
    dense_like: "dense-like";
    graph: "graph";
    graph_aggregation: "graph-aggregation";
    local_learning: "local-learning";
    capsule: "capsule";
    specialized: "specialized";
    experts: "experts";
    sequence_models: "sequence-models";
    graph_attention: "graph-attention";
    mesh: "mesh";
    residual: "residual";
    state_space: "state-space";
}
