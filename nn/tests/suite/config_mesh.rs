//! Training runs on meshes, described in JSON.

use std::f64::consts::{FRAC_PI_2, FRAC_PI_4, PI, SQRT_2};
use std::path::{Path, PathBuf};
use std::slice::from_ref;

use serde_json::{Value, json};
use trefoil::DType;
use trefoil_nn::config::Config;
use trefoil_nn::data::{MeshData, MeshFile, MeshLabels, MeshOptions, mesh_files, read_mesh};
use trefoil_nn::{Layer, LayerExt, Tensor};

use crate::common::everywhere::{resident, values};
use crate::common::layers::refused;
use crate::common::runs::*;
use crate::common::{close, cpu, devices, id};

#[test]
fn the_example_of_shapes_is_learned() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut c = Config::load(root.join("examples/shapes.json")).unwrap();
    c.data.rebase(root).unwrap();
    let (d, data) = (cpu(), c.data.open().unwrap());
    assert_eq!((data.train_items(), data.test_items(), data.classes()), (36, 12, 3));
    assert_eq!(data.mapping().classes.as_deref().unwrap(), ["cube", "sphere", "torus"]);
    let sources = c.sources(&data, &d).unwrap();
    let model = c.model(&d, &sources).unwrap();
    let mut trainer = c.trainer(&model, &data, &sources, &d).unwrap();
    let report = trainer.fit(&*sources.train, sources.test.as_deref(), &mut |_| true).unwrap();
    let accuracy = report.history.last().unwrap().test_accuracy.unwrap();
    println!("shapes: {accuracy}");
    assert!(accuracy >= 0.9, "{accuracy} of the test meshes");
    // What a batch of meshes gives does not depend on the others in it, and the mesh is not examined again.
    model.eval();
    let of = |ids: &[i64]| {
        let ids = Tensor::from_slice(&d, ids, &[ids.len()]).unwrap();
        resident("shapes", &d, || model.forward(&ids).unwrap())
    };
    assert_eq!([values(&of(&[33])), values(&of(&[0]))].concat(), values(&of(&[33, 0])));
}

#[test]
fn every_device_learns_the_same() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut c = Config::load(root.join("examples/shapes.json")).unwrap();
    c.data.rebase(root).unwrap();
    c.train.epochs = 2;
    let losses: Vec<(String, f64)> = devices()
        .iter()
        .map(|d| {
            let data = c.data.open().unwrap();
            let sources = c.sources(&data, d).unwrap();
            let model = c.model(d, &sources).unwrap();
            let mut trainer = c.trainer(&model, &data, &sources, d).unwrap();
            let report = trainer.fit(&*sources.train, sources.test.as_deref(), &mut |_| true).unwrap();
            (id(d).to_string(), report.history.last().unwrap().test_loss.unwrap())
        })
        .collect();
    for (device, loss) in &losses {
        close(&[*loss], &[losses[0].1], 1e-4, device);
    }
}

/// A square of two triangles, one corner lifted on demand, and a vertex of no face.
const SQUARE: &str =
    "# a square\nv 0 0 0\nv 1 0 0 1.0\nv 1 1 0\nvn 0 0 1\nv 0 1 0\nv 5 5 5\nf 1 2 3\nf 1/7/7 -3//2 4\n";

#[test]
fn files_are_read() {
    let f = Folder::new("meshes-read");
    let read = |name: &str, text: &str| read_mesh(f.write(name, text)).unwrap();
    let want = MeshFile {
        positions: vec![[0., 0., 0.], [1., 0., 0.], [1., 1., 0.], [0., 1., 0.], [5., 5., 5.]],
        faces: vec![[0, 1, 2], [0, 2, 3]],
    };
    assert_eq!(read("a.obj", SQUARE), want);
    assert_eq!(read("b.OBJ", &SQUARE.replace('\n', "\r\n")), want);
    let off = "OFF # c\n5 2 0\n\n0 0 0\n1 0 0\n1 1 0 255 0 0\n0 1 0\n5 5 5e0\n3 0 1 2\n3 0 2 3 0.5 0.5 0.5\n";
    assert_eq!(read("c.off", off), want);
    assert_eq!(read("d.off", &off.replace("OFF # c\n", "OFF")), want);
    // Faces may stand before their vertices.
    let (vertices, faces) = SQUARE.split_at(SQUARE.find("f 1 2").unwrap());
    assert_eq!(read("e.obj", &(faces.replace("-3//2", "3") + vertices)), want);
}

#[test]
fn features_of_edges() {
    let f = Folder::new("meshes-features");
    let path = |name: &str, text: &str| PathBuf::from(f.write(name, text));
    let flat = path("flat.obj", SQUARE);
    // The face 0, 2, 3 stands upright on the diagonal.
    let bent = path("bent.obj", &SQUARE.replace("v 0 1 0\n", "v 0.5 0.5 0.70710678\n"));
    let data = MeshData::read(&[flat.clone(), bent], &MeshOptions::default()).unwrap();
    assert_eq!((data.meshes(), data.edges(), data.vertices()), (2, 10, 10));
    let inputs = data.inputs(&cpu(), DType::F32).unwrap();
    let of = |name: &str| &inputs.iter().find(|(n, _)| *n == name).unwrap().1;
    let names: Vec<&str> = inputs.iter().map(|(n, _)| *n).collect();
    assert_eq!(names, ["x", "gemm", "edges", "mesh", "positions", "edge_index", "vertex_mesh"]);

    // Edges 01, 12, 20, 23, 30 of each: at the border an edge has its one face on both sides, in a plane.
    let side = [PI, FRAC_PI_4, FRAC_PI_4, 1.0, 1.0];
    let diagonal = [PI, FRAC_PI_2, FRAC_PI_2, 0.5, 0.5];
    let upright = [FRAC_PI_2, FRAC_PI_2, FRAC_PI_2, 0.5, 0.5];
    let want = [side, side, diagonal, side, side, side, side, upright, side, side].concat();
    close(&values(of("x")), &want, 1e-5, "features");
    let gemm = [[1, 2, -1, -1], [2, 0, -1, -1], [0, 1, 3, 4], [4, 2, -1, -1], [2, 3, -1, -1]];
    let second = gemm.map(|row| row.map(|n| if n < 0 { n } else { n + 5 }));
    assert_eq!(of("gemm").to_vec::<i64>().unwrap(), [gemm, second].concat().concat());
    let ends = [[0, 1], [1, 2], [0, 2], [2, 3], [0, 3]];
    let second = ends.map(|row| row.map(|n| n + 5));
    let all = [ends, second].concat();
    assert_eq!(of("edges").to_vec::<i64>().unwrap(), all.concat());
    let both = |a: usize, b: usize| all.iter().map(move |e| e[a]).chain(all.iter().map(move |e| e[b]));
    let index: Vec<i64> = both(0, 1).chain(both(1, 0)).collect();
    assert_eq!((of("edge_index").to_vec::<i64>().unwrap(), of("edge_index").shape()), (index, &[2, 20][..]));
    for (name, n) in [("mesh", 5), ("vertex_mesh", 5)] {
        assert_eq!(of(name).to_vec::<i64>().unwrap(), [vec![0; n], vec![1; n]].concat());
    }
    close(&values(of("positions"))[24..27], &[0.5, 0.5, 0.5 * SQRT_2], 1e-6, "positions");

    // Spirals, in which a vertex of no face is alone, and a factor.
    let options = MeshOptions { spiral_length: Some(4), scale: 2.0, ..MeshOptions::default() };
    let inputs = MeshData::read(from_ref(&flat), &options).unwrap().inputs(&cpu(), DType::F32).unwrap();
    let spirals = inputs.last().unwrap();
    assert_eq!((spirals.0, spirals.1.shape()), ("spirals", &[5, 4][..]));
    assert_eq!(spirals.1.to_vec::<i64>().unwrap()[16..], [4, -1, -1, -1]);
    assert_eq!(values(&inputs[4].1)[12..], [10.0; 3]);

    // Stacked, meshes keep their own numbers.
    let options = MeshOptions { stacked: true, ..MeshOptions::default() };
    let inputs =
        MeshData::read(&[flat.clone(), flat], &options).unwrap().inputs(&cpu(), DType::Bf16).unwrap();
    let shapes: Vec<(&str, &[usize])> = inputs.iter().map(|(n, t)| (*n, t.shape())).collect();
    assert_eq!(shapes, [("x", &[2, 5, 5][..]), ("gemm", &[2, 5, 4]), ("edges", &[2, 5, 2])]);
    assert_eq!(inputs[1].1.to_vec::<i64>().unwrap(), [gemm, gemm].concat().concat());
    assert_eq!(inputs[0].1.dtype(), DType::Bf16);
}

/// A tetrahedron with its corners at other heights.
fn tetrahedron(f: &Folder, name: &str, height: f64) -> String {
    let (folder, _) = name.rsplit_once('/').unwrap();
    std::fs::create_dir_all(f.at(folder)).unwrap();
    f.write(name, format!("v 0 0 0\nv 1 0 0\nv 0 1 0\nv 0 0 {height}\nf 1 3 2\nf 1 2 4\nf 2 3 4\nf 3 1 4\n"))
}

/// Flat and tall tetrahedra in folders.
fn tetrahedra(f: &Folder) -> Vec<String> {
    let name = |i: usize| format!("m/{}/{i}.obj", if i.is_multiple_of(2) { "flat" } else { "tall" });
    (0..12)
        .map(|i| tetrahedron(f, &name(i), if i.is_multiple_of(2) { 0.2 } else { 2.0 } + 0.01 * i as f64))
        .collect()
}

fn network(layers: Value) -> Value {
    let index = |shape: Value| json!({ "shape": shape, "dtype": "i64" });
    json!({
        "inputs": { "x": [5], "gemm": index(json!([4])), "mesh": index(json!([])) },
        "layers": layers
    })
}

fn edge_network() -> Value {
    network(json!([
        { "type": "mesh_edge_conv", "name": "c", "inputs": ["x", "gemm"], "in_channels": 5, "out_channels": 4 },
        { "type": "readout", "inputs": ["c", "mesh"], "in_features": 4, "out_features": 2, "mode": "max",
          "num_graphs": 12 }
    ]))
}

fn spiral_network() -> Value {
    json!({
        "inputs": { "positions": [3], "spirals": { "shape": [3], "dtype": "i64" },
                    "vertex_mesh": { "shape": [], "dtype": "i64" } },
        "layers": [
            { "type": "spiral_conv", "name": "s", "inputs": ["positions", "spirals"], "in_channels": 3,
              "out_channels": 4, "spiral_length": 3 },
            { "type": "readout", "inputs": ["s", "vertex_mesh"], "in_features": 4, "out_features": 2, "mode": "mean",
              "num_graphs": 12 }
        ]
    })
}

#[test]
fn the_layers_of_meshes_train() {
    let f = Folder::new("meshes-train");
    let files = tetrahedra(&f);
    let folder = json!({ "meshes": f.at("m"), "test_share": 0.25 });
    for precision in ["f32", "bf16"] {
        let mut run = config(folder.clone(), edge_network());
        run["train"]["precision"] = precision.into();
        let done = train(&run).unwrap();
        assert!(done.moved > 0.0 && done.report.history.last().unwrap().test_accuracy.is_some());
    }

    // Classes in a file, of some of the meshes, others for the tests.
    let labels =
        f.write("labels.csv", "mesh,class\nflat/0.obj,f\ntall/1.obj,t\nm/flat/2.obj,f\ntall/5.obj,t\n");
    let test = f.write("test.csv", "flat/4.obj,f\ntall/3.obj,t\n");
    let list = json!({ "meshes": files, "labels": labels, "test": { "labels": test } });
    let run = config(list, edge_network());
    let data = Config::parse(&run.to_string()).unwrap().data.open().unwrap();
    assert_eq!((data.train_items(), data.test_items(), data.classes()), (4, 2, 2));
    assert_eq!(data.mapping().classes.as_deref().unwrap(), ["f", "t"]);
    assert!(train(&run).unwrap().moved > 0.0);

    // Edges that collapse, on meshes with an axis of their own.
    let index = |n: usize| json!({ "shape": [6, n], "dtype": "i64" });
    let pooled = json!({
        "inputs": { "x": [6, 5], "gemm": index(4), "edges": index(2) },
        "layers": [
            { "type": "mesh_edge_conv", "name": "c", "inputs": ["x", "gemm"], "in_channels": 5, "out_channels": 4 },
            { "type": "mesh_pool", "name": "p", "inputs": ["c", "gemm", "edges"], "target_edges": 4, "mode": "topk",
              "in_channels": 4 },
            { "type": "mesh_edge_conv", "name": "d", "inputs": ["p.0", "p.1"], "in_channels": 4, "out_channels": 3,
              "activation": "tanh" },
            { "type": "mean", "dim": 1 },
            { "type": "dense", "out_features": 2 }
        ]
    });
    let stacked = json!({ "meshes": f.at("m"), "stacked": true, "test_rows": 2 });
    assert!(train(&config(stacked, pooled)).unwrap().moved > 0.0);

    // Spirals of vertices.
    let data = json!({ "meshes": f.at("m"), "spiral_length": 3, "scale": 0.5 });
    assert!(train(&config(data, spiral_network())).unwrap().moved > 0.0);
}

#[test]
fn mistakes_in_files_are_named() {
    let f = Folder::new("meshes-errors");
    let obj = |from: &str, to: &str| SQUARE.replace(from, to);
    let off = "OFF\n4 2 0\n0 0 0\n1 0 0\n1 1 0\n0 1 0\n3 0 1 2\n3 0 2 3\n";
    let but = |from: &str, to: &str| off.replace(from, to);
    for (name, text, words) in [
        (
            "a.obj",
            obj("f 1 2 3", "f 1 2 6"),
            "a.obj: line 8: expected the vertices 1 to 5 in face 0, found 6",
        ),
        ("b.obj", obj("f 1 2 3", "f 0 2 3"), "line 8: expected the vertices 1 to 5 in face 0, found 0"),
        ("c.obj", obj("-3//2", "-6"), "line 9: expected the vertices 1 to 5 in face 1, found -6"),
        ("d.obj", obj("-3//2", "4"), "line 9: expected three different vertices in face 1, found 1, 4 and 4"),
        (
            "e.obj",
            obj("f 1 2 3", "f 1 2 3 4"),
            "line 8: expected the 3 corners of a triangle in face 0, found 4",
        ),
        ("f.obj", obj("f 1 2 3", "f 1 x/2 3"), "line 8: expected the number of a vertex, found `x`"),
        ("g.obj", obj("v 1 1 0", "v 1 1"), "line 4: expected the 3 numbers of a position, found 2"),
        ("h.obj", obj("v 1 1 0", "v 1 1 nan"), "line 4: expected a finite number, found `nan`"),
        ("h2.obj", obj("v 1 1 0", "v 1 1 -1e39"), "line 4: expected a finite number, found `-1e39`"),
        ("i.obj", "v 0 0 0\n".into(), "i.obj: the file: expected at least one face, found none"),
        ("j.obj", String::new(), "at least one face"),
        ("k.ply", SQUARE.into(), "k.ply: the file: expected a name that ends in .obj or .off"),
        (
            "l.off",
            but("3 0 1 2", "3 0 1 4"),
            "l.off: line 7: expected the vertices 0 to 3 in face 0, found 4",
        ),
        ("m.off", but("3 0 2 3", "3 0 2 -1"), "line 8: expected the vertices 0 to 3 in face 1, found -1"),
        (
            "n.off",
            but("3 0 2 3", "4 0 1 2 3"),
            "line 8: expected the 3 corners of a triangle in face 1, found `4`",
        ),
        ("o.off", but("3 0 2 3", "3 0 2"), "line 8: expected the number of a vertex, found ``"),
        ("p.off", but("OFF\n", "COFF\n"), "line 1: expected OFF in the first line, found `COFF`"),
        ("q.off", but("4 2 0", "four 2 0"), "line 2: expected the number of vertices, found `four`"),
        ("r.off", but("4 2 0", "4"), "line 2: expected the number of faces, found ``"),
        ("s.off", but("3 0 2 3\n", ""), "expected 2 faces, of which 1 are there, found the end of the file"),
        ("t.off", but("4 2 0", "4000000000000 2 0"), "4000000000000 vertices, of which 6 are there"),
        ("u.off", but("4 2 0", "4 1 0"), "line 8: expected the end of the file, found `3 0 2 3`"),
        ("v.off", String::new(), "expected OFF in the first line, found the end of the file"),
        ("w.off", "OFF\n4 9999999999999 0\n0 0 0\n".into(), "4 vertices, of which 1 are there"),
    ] {
        refused(read_mesh(f.write(name, &text)), &[words]);
    }
    refused(read_mesh(f.at("absent.obj")), &["absent.obj"]);

    let read = |name: &str, text: &str, options: &MeshOptions| {
        MeshData::read(&[PathBuf::from(f.at("a0.obj")), PathBuf::from(f.write(name, text))], options)
    };
    f.write("a0.obj", SQUARE);
    let plain = MeshOptions::default();
    let three = SQUARE.to_string() + "f 1 3 5\n";
    refused(read("x.obj", &three, &plain), &["x.obj", "at most two faces", "face 2", "vertices 0 and 2"]);
    let turned = SQUARE.to_string() + "f 1 2 5\n";
    read("y.obj", &turned, &plain).unwrap();
    let spirals = MeshOptions { spiral_length: Some(3), ..plain };
    refused(read("y.obj", &turned, &spirals), &["y.obj", "turned the same way", "face 2", "vertex 0 to 1"]);
    let stacked = MeshOptions { stacked: true, ..plain };
    refused(read("y.obj", &turned, &stacked), &["y.obj", "5 edges, as many as", "a0.obj", "found 7"]);
}

#[test]
fn mistakes_in_runs_are_named() {
    let f = Folder::new("meshes-runs");
    tetrahedra(&f);
    std::fs::create_dir_all(f.at("none")).unwrap();
    tetrahedron(&f, "n/1.obj", 1.0);
    let run = config(json!({ "meshes": f.at("m"), "test_rows": 2 }), edge_network());
    train(&run).unwrap();
    let text = |name: &str, text: &str| Value::from(f.write(name, text));
    for (place, value, words) in [
        ("/data/meshes", f.at("none").into(), ["none: the file", "files that end in .obj or .off"]),
        ("/data/meshes", f.at("absent").into(), ["absent", "read"]),
        ("/data/meshes", json!([]), ["data.meshes", "at least one file, got none"]),
        (
            "/data/labels",
            text("a.csv", "flat/0.obj,a\nflat/1.obj,b\n"),
            ["row 2, column 1", "found `flat/1.obj`"],
        ),
        (
            "/data/labels",
            text("b.csv", "flat/0.obj,a\n.obj,b\n"),
            ["row 2, column 1", "one mesh, found `.obj`"],
        ),
        ("/data/labels", text("c.csv", "flat/0.obj,a\n0.obj,b\n"), ["row 2, column 1", "each mesh once"]),
        ("/data/labels", text("d.csv", "flat/0.obj,\n"), ["row 1, column 2", "a class, found ``"]),
        ("/data/labels", text("e.csv", "flat/0.obj\n"), ["row 1, column 2", "expected 2 cells, found 1"]),
        ("/data/labels", text("g.csv", "mesh,class\n"), ["row 1", "the file has no items"]),
        ("/data/labels", text("h.csv", "0.obj,0\n1.obj,2\n2.obj,1\n"), ["the network's 2 outputs", "got 2"]),
        ("/data/target", "value".into(), ["data.meshes", "meshes with classes"]),
        ("/data/on_error", "skip".into(), ["data.meshes", "meshes with classes"]),
        ("/data/spiral_length", 0.into(), ["data.spiral_length", "0"]),
        ("/data/test", json!({ "meshes": f.at("m") }), ["data.test", "got both"]),
        ("/model/layers/1/num_graphs", 3.into(), ["index", "out of range"]),
    ] {
        let mut run = run.clone();
        let (parent, key) = place.rsplit_once('/').unwrap();
        run.pointer_mut(parent).unwrap()[key] = value.clone();
        let Err(e) = train(&run) else { panic!("accepted: {place} {value}") };
        let e = e.to_string();
        assert!(words.iter().all(|w| e.contains(w)), "{place} {value}: {e}");
    }
    let Err(e) = train(&config(json!({ "meshes": f.at("m") }), spiral_network())) else {
        panic!("spirals without a length")
    };
    let e = e.to_string();
    assert!(e.contains("model.inputs.spirals") && e.contains("x, gemm, edges, mesh, positions"), "{e}");
    let with = |data: Value| Config::parse(&config(data, edge_network()).to_string());
    let both = with(json!({ "meshes": f.at("m"), "stacked": true, "spiral_length": 3 }));
    refused(both, &["data.spiral_length", "stacked"]);
    let other = with(json!({ "meshes": f.at("m"), "test": { "meshes": f.at("n") } }));
    refused(other, &["data.test.meshes", "of the same meshes"]);
    // Classes of the tests are those of training.
    let ids = f.write("ids.csv", "0.obj,0\n1.obj,1\n");
    let names = f.write("names.csv", "2.obj,flat\n3.obj,tall\n");
    let run = |a: &str, b: &str| {
        let data = json!({ "meshes": f.at("m"), "labels": a, "test": { "labels": b } });
        with(data).unwrap().data.open()
    };
    refused(run(&ids, &names), &["data.test.labels", "ids of classes"]);
    refused(run(&names, &ids), &["row 1, column 2", "one of flat, tall, found `0`"]);
    assert_eq!(run(&ids, &ids).unwrap().mapping().classes, None);

    // Files in no folder have no class.
    refused(
        MeshLabels::of_folders(&[PathBuf::from("a.obj")]),
        &["a.obj", "a folder with the name of its class"],
    );
    let found = mesh_files(&[PathBuf::from(f.at("n")), PathBuf::from(f.at("m"))]).unwrap();
    assert_eq!(found.len(), 13);
    assert!(
        found[0].ends_with("n/1.obj")
            && found[1].ends_with("flat/0.obj")
            && found[12].ends_with("tall/9.obj")
    );
}
