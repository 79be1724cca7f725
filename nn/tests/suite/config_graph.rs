//! Training runs on the nodes of a graph, described in JSON.

use std::path::Path;

use serde_json::{Value, json};
use trefoil::DType;
use trefoil_nn::config::Config;
use trefoil_nn::data::{GraphData, GraphOptions, ItemSource};
use trefoil_nn::{Layer, LayerExt, Tensor};

use crate::common::cpu;
use crate::common::layers::refused;
use crate::common::runs::*;

#[test]
fn the_karate_examples_are_learned() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    for (name, least) in [("gcn", 0.88), ("gat", 0.8), ("sage", 0.88)] {
        let mut c = Config::load(root.join(format!("examples/karate_{name}.json"))).unwrap();
        c.data.rebase(root).unwrap();
        let (d, data) = (cpu(), c.data.open().unwrap());
        assert_eq!((data.train_items(), data.test_items(), data.classes()), (8, 26, 2));
        let sources = c.sources(&data, &d).unwrap();
        let model = c.model(&d, &sources).unwrap();
        let mut trainer = c.trainer(&model, &data, &sources, &d).unwrap();
        let report = trainer.fit(&*sources.train, sources.test.as_deref(), &mut |_| true).unwrap();
        let accuracy = report.history.last().unwrap().test_accuracy.unwrap();
        println!("{name}: {accuracy}");
        assert!(accuracy >= least, "{name}: {accuracy} of the test nodes");
        // What a batch of nodes gives does not depend on the others in it.
        model.eval();
        let of = |ids: &[i64]| {
            let ids = Tensor::from_slice(&d, ids, &[ids.len()]).unwrap();
            model.forward(&ids).unwrap().to_vec::<f32>().unwrap()
        };
        assert_eq!([of(&[33]), of(&[0])].concat(), of(&[33, 0]));
        refused(model.forward_all(&[]), &["ids of items"]);
    }
}

/// Five nodes in a ring, with two features each.
fn ring(f: &Folder) -> Value {
    json!({
        "graph": f.write("edges.csv", "from,to,weight\n0,1,0.5\n1,2,1\n2,3,2\n3,4,1\n4,0,1\n2,2,3\n"),
        "labels": f.write("labels.csv", "4,1\n0,0\n2,1\n"),
        "nodes": f.write("nodes.csv", "1,2\n3,4\n5,6\n7,8\n9,10\n"),
        "test": { "labels": f.write("test.csv", "1,0\n3,1\n") }
    })
}

fn network() -> Value {
    json!({
        "inputs": { "x": [2], "edge_index": { "shape": [-1], "dtype": "i64" }, "edge_weight": [] },
        "layers": [{ "type": "graph_convolutional", "inputs": ["x", "edge_index", "edge_weight"],
                     "in_features": 2, "out_features": 2 }]
    })
}

/// A value in another place of the JSON.
fn with(mut json: Value, place: &str, value: Value) -> Value {
    let (at, key) = place.rsplit_once('/').unwrap();
    json.pointer_mut(at).unwrap()[key] = value;
    json
}

#[test]
fn files_of_a_graph_are_read() {
    let f = Folder::new("graph");
    let mut data = ring(&f);
    (data["weighted"], data["scale"]) = (true.into(), 0.5.into());
    let done = train(&config(data.clone(), network())).unwrap();
    assert!(done.moved > 0.0);
    let last = done.report.history.last().unwrap();
    assert!(last.test_loss.is_some_and(f64::is_finite) && last.test_accuracy.is_some(), "{last:?}");
    // A layer that is not yet made, on half precision.
    let lazy = json!({ "inputs": { "x": [2] }, "layers": [{ "type": "dense", "out_features": 2 }] });
    let half = with(config(data, lazy), "/train/precision", "bf16".into());
    assert!(train(&half).unwrap().moved > 0.0);

    let edges = Path::new(&f.at("edges.csv")).to_path_buf();
    let options = GraphOptions { undirected: true, weighted: true, ..GraphOptions::default() };
    let g = GraphData::read_csv(&edges, None, &options).unwrap();
    // The self-loop stands once.
    assert_eq!((g.nodes(), g.edges()), (5, 11));
    let inputs = g.inputs(&cpu(), DType::F32).unwrap();
    let [("x", x), ("edge_index", ends), ("edge_weight", weights)] = &inputs[..] else {
        panic!("{inputs:?}")
    };
    assert_eq!(
        x.to_vec::<f32>().unwrap(),
        Tensor::eye(&cpu(), DType::F32, 5).unwrap().to_vec::<f32>().unwrap()
    );
    let want = [0, 1, 1, 2, 2, 3, 3, 4, 4, 0, 2, 1, 0, 2, 1, 3, 2, 4, 3, 0, 4, 2];
    assert_eq!(ends.to_vec::<i64>().unwrap(), want);
    assert_eq!(weights.to_vec::<f32>().unwrap(), [0.5, 0.5, 1., 1., 2., 2., 1., 1., 1., 1., 3.]);
    let items = g.labels(Path::new(&f.at("labels.csv")), &options).unwrap();
    assert_eq!(items.x().to_vec::<i64>().unwrap(), [4, 0, 2]);
    assert_eq!((items.y().to_vec::<i64>().unwrap(), items.classes()), (vec![1, 0, 1], 2));
}

#[test]
fn mistakes_in_graphs_are_named() {
    let f = Folder::new("graph-errors");
    let run = with(config(ring(&f), network()), "/data/weighted", true.into());
    train(&run).unwrap();
    let text = |name: &str, text: &str| Value::from(f.write(name, text));
    for (place, value, words) in [
        ("/data/graph", text("a.csv", "0,1,1\n1,5,1\n"), ["item 1", "0 to 4, found 5"]),
        ("/data/graph", text("b.csv", "0,1,1\n1,0.5,1\n"), ["item 1", "found 0.5"]),
        ("/data/graph", text("c.csv", "0,1\n1,2\n"), ["column 3", "expected 3 columns, found 2"]),
        ("/data/graph", text("d.csv", "0,1,1\n1,x,1\n"), ["column 2", "`x` is not a number"]),
        ("/data/labels", text("e.csv", "0,0\n5,1\n"), ["item 1", "0 to 4, found 5"]),
        ("/data/labels", text("g.csv", "0,0\n1,1\n0,1\n"), ["item 2", "each node once, found 0 again"]),
        ("/data/labels", text("h.csv", "0,0\n1,2\n"), ["the network's 2 outputs", "got 2"]),
        ("/data/weighted", false.into(), ["model.inputs.edge_weight", "x, edge_index"]),
        ("/data/target", "value".into(), ["data.graph", "nodes with classes"]),
        ("/data/item_shape", json!([2]), ["data.graph", "nodes with classes"]),
        ("/data/on_error", "skip".into(), ["data.graph", "nodes with classes"]),
        ("/data/transforms", json!(["normalize"]), ["data.", "normalize"]),
        ("/data/test", json!({ "graph": f.at("edges.csv") }), ["data.test.graph", "of the same graph"]),
        ("/data/test_rows", 1.into(), ["data.test", "got both"]),
        ("/model/inputs/x", json!([3]), ["model.inputs.x", "[5, 2]"]),
    ] {
        let Err(e) = train(&with(run.clone(), place, value.clone())) else {
            panic!("accepted: {place} {value}")
        };
        let e = e.to_string();
        assert!(words.iter().all(|w| e.contains(w)), "{place} {value}: {e}");
    }
}
