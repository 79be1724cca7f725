//! Rules of state maps that make one tensor of several, or several of one.

use crate::common::layers::refused;
use crate::common::{cpu, f32s};
use trefoil_nn::{StateDict, StateMap, Tensor};

fn rows(of: f32, n: usize) -> Tensor {
    f32s(&cpu(), &vec![of; 2 * n], &[n, 2])
}

fn state(all: &[(&str, Tensor)]) -> StateDict {
    all.iter().map(|(n, t)| (n.to_string(), t.clone())).collect()
}

fn names(s: &StateDict) -> Vec<&str> {
    s.keys().map(String::as_str).collect()
}

#[test]
fn patterns_rename_with_what_they_capture() {
    let s =
        state(&[("h.0.ln_1.bias", rows(1.0, 1)), ("h.12.ln_2.weight", rows(2.0, 1)), ("wte", rows(3.0, 1))]);
    let map = StateMap::new().rename_matching("h.*.ln_*.*", "blocks.*.norm*.*");
    let renamed = map.apply(&s).unwrap();
    assert_eq!(names(&renamed), ["blocks.0.norm1.bias", "blocks.12.norm2.weight", "wte"]);
    assert!(renamed["wte"].shares_storage(&s["wte"]));
    for to in ["blocks.*", "a.*.*.*.*"] {
        refused(StateMap::new().rename_matching("h.*.ln_*.*", to).apply(&s), &["StateMap", "names", to]);
    }
    // Both get the name `x.1`.
    let s = state(&[("a.1", rows(1.0, 1)), ("b.1", rows(2.0, 1))]);
    let map = StateMap::new().rename_matching("a.*", "x.*").rename_matching("b.*", "x.*");
    refused(map.apply(&s), &["StateMap", "names", "x.1"]);
}

#[test]
fn projections_join_and_split() {
    let parts = ["q", "k", "v"].map(|n| format!("layers.*.{n}_proj.weight"));
    let joined = "layers.*.in_proj_weight";
    let mut theirs = StateDict::new();
    for layer in 0..11 {
        let of = 10.0 * layer as f32;
        for (i, (n, size)) in [("q", 4), ("k", 2), ("v", 2)].into_iter().enumerate() {
            theirs.insert(format!("layers.{layer}.{n}_proj.weight"), rows(of + i as f32, size));
        }
        theirs.insert(format!("layers.{layer}.norm"), rows(of, 1));
    }
    let ours = StateMap::new().join(&parts, joined).apply(&theirs).unwrap();
    assert_eq!((ours.len(), ours["layers.10.in_proj_weight"].shape()), (22, &[8, 2][..]));
    let data: Vec<f32> = ours["layers.10.in_proj_weight"].to_vec().unwrap();
    let want = [(100.0, 8), (101.0, 4), (102.0, 4)].map(|(x, n)| vec![x; n]).concat();
    assert_eq!(data, want);

    let back = StateMap::new().split(joined, parts.iter().zip([2, 1, 1])).apply(&ours).unwrap();
    assert_eq!(names(&back), names(&theirs));
    for (name, t) in &theirs {
        assert_eq!(back[name].shape(), t.shape(), "{name}");
        assert_eq!(back[name].to_vec::<f32>().unwrap(), t.to_vec::<f32>().unwrap(), "{name}");
    }

    // Nothing to join is no error, a part of it is.
    let mut few = theirs.clone();
    few.retain(|n, _| n.ends_with("norm"));
    assert_eq!(names(&StateMap::new().join(&parts, joined).apply(&few).unwrap()), names(&few));
    theirs.remove("layers.3.k_proj.weight");
    refused(
        StateMap::new().join(&parts, joined).apply(&theirs),
        &["StateMap", "join", "2 of 3", "layers.3.in_proj_weight"],
    );
    theirs.insert("layers.3.k_proj.weight".into(), f32s(&cpu(), &[1.0; 3], &[1, 3]));
    assert!(StateMap::new().join(&parts, joined).apply(&theirs).is_err(), "other widths");
    refused(
        StateMap::new().split(joined, parts.iter().zip([3, 1, 1])).apply(&ours),
        &["StateMap", "split", "5 shares", "in_proj_weight"],
    );
    let clash = StateMap::new().split(joined, [("layers.*.norm", 1), ("layers.*.x", 1)]);
    refused(clash.apply(&ours), &["StateMap", "names", "norm"]);
    refused(
        StateMap::new()
            .join(["a.?", "b"], "c")
            .apply(&state(&[("a.1", rows(1.0, 1)), ("a.2", rows(1.0, 1))])),
        &["StateMap", "join", "one tensor for each part"],
    );
    assert!(format!("{:?}", StateMap::new().join(&parts, joined)).contains("in_proj_weight"));
}
