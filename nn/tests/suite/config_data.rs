//! Data of training runs described in JSON: every kind of file, transform and sampler.

use crate::common::runs::*;
use crate::common::{cpu, noise};
use serde_json::{Value, json};
use trefoil::DType;
use trefoil_nn::NnError;
use trefoil_nn::config::{Config, SamplerConfig, TargetKind, TransformConfig};

/// The items of one epoch, features and targets as f32.
fn served(config: &Value, train: bool) -> Vec<(Vec<f32>, Vec<f32>)> {
    let c = Config::parse(&config.to_string()).unwrap();
    let data = c.data.open().unwrap();
    let s = c.sources(&data, &cpu()).unwrap();
    let from = if train { s.train } else { s.test.unwrap() };
    let order = Some(trefoil_nn::data::Order { seed: 1, epoch: 0 });
    let order = if c.train.shuffle { order } else { None };
    let batches = from.epoch(order, 1).unwrap().map(|b| b.unwrap());
    let f32s =
        |t: &trefoil_nn::Tensor| t.to_dtype(DType::F32).unwrap().contiguous().unwrap().to_vec().unwrap();
    batches.map(|b| (f32s(&b.x), f32s(&b.y))).collect()
}

fn in_order(data: Value) -> Value {
    let mut c = config(data, dense(3, json!([])));
    c["train"]["shuffle"] = false.into();
    c
}

#[test]
fn arrays_are_read_divided_and_scaled() {
    let f = Folder::new("arrays");
    let x = f.npy("bytes.npy", "|u1", &[4, 2, 2], (0..16).map(|i| i * 10).collect());
    let y = f.ids("ids.npy", &[4], &[0, 1, 2, 1]);
    let base = json!({ "npy": x, "targets": y, "scale": 0.1, "test_rows": 1 });
    for resident in [1 << 20, 0] {
        let mut data = base.clone();
        data["resident_bytes"] = resident.into();
        let train = served(&in_order(data.clone()), true);
        assert_eq!(train.len(), 3);
        let (values, class) = &train[1];
        assert!(values.iter().zip([4.0, 5.0, 6.0, 7.0]).all(|(a, b)| (a - b).abs() < 1e-5), "{values:?}");
        assert_eq!(class, &[1.0]);
        assert_eq!(served(&in_order(data), false).len(), 1);
    }
    // Other targets: values, the features, token ids; another shape; a fixed choice for the test.
    let with = |more: Value| {
        let mut data = base.clone();
        data.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        data
    };
    let c = Config::parse(&in_order(with(json!({ "target": "value" }))).to_string()).unwrap();
    assert_eq!((c.data.open().unwrap().target(), c.data.open().unwrap().classes()), (TargetKind::Value, 0));
    let same = served(&in_order(with(json!({ "target": "input" }))), true);
    assert!(same.iter().all(|(x, y)| x == y));
    let choice =
        served(&in_order(with(json!({ "split": "random", "test_rows": 0, "test_share": 0.5 }))), true);
    assert_eq!(choice.len(), 2);
    let done = train(&config(with(json!({ "item_shape": [4] })), dense(3, json!([])))).unwrap();
    assert!(done.moved > 0.0);
    // Other files for the test.
    let other = f.npy("other.npy", "|u1", &[2, 2, 2], vec![1; 8]);
    let others = f.ids("other_ids.npy", &[2], &[0, 1]);
    let data = with(json!({ "test": { "npy": other, "targets": others }, "test_rows": 0 }));
    assert_eq!((served(&in_order(data.clone()), true).len(), served(&in_order(data), false).len()), (4, 2));

    // IDX with gzip is covered by its reader; here the two files of a set.
    let mut idx = vec![0, 0, 8, 2, 0, 0, 0, 4, 0, 0, 0, 3];
    idx.extend(0..12u8);
    let labels = f.write("labels.idx", [&[0u8, 0, 8, 1, 0, 0, 0, 4][..], &[0, 1, 2, 0]].concat());
    let data = json!({ "idx": f.write("images.idx", idx), "targets": labels });
    assert_eq!(served(&in_order(data.clone()), true)[2], (vec![6.0, 7.0, 8.0], vec![2.0]));
    assert!(train(&config(data, dense(3, json!([])))).unwrap().moved > 0.0);

    let record = |label: u8| [vec![label], vec![label; 3072]].concat();
    let batches = [f.write("a.bin", record(2)), f.write("b.bin", [record(0), record(1)].concat())];
    let data = json!({ "cifar": batches });
    assert_eq!(served(&in_order(data.clone()), true)[2], (vec![1.0; 3072], vec![1.0]));
    let flat = json!({ "layers": [{ "type": "flatten" }, { "type": "dense", "out_features": 3 }] });
    assert!(train(&config(data.clone(), flat)).unwrap().moved > 0.0);
    let mut one = data;
    one["cifar"] = batches[1].clone().into();
    assert_eq!(served(&in_order(one), true).len(), 2);

    // An archive without compression, as `numpy.savez` writes it.
    let arrays = [
        ("a", npy("<f4", &[4, 2], (0..8).flat_map(|i| (i as f32).to_le_bytes()).collect())),
        ("b", npy("<i8", &[4], [0i64, 1, 0, 1].iter().flat_map(|v| v.to_le_bytes()).collect())),
    ];
    let data = json!({ "npz": f.write("d.npz", zip(&arrays)), "x": "a", "y": "b" });
    assert_eq!(served(&in_order(data.clone()), true)[3], (vec![6.0, 7.0], vec![1.0]));
    assert!(train(&config(data.clone(), dense(2, json!([])))).unwrap().moved > 0.0);
    let mut alone = data;
    alone["target"] = "input".into();
    assert!(train(&config(alone, dense(2, json!([])))).unwrap().moved > 0.0);
}

/// A zip archive of stored `.npy` files.
fn zip(files: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let crc = |data: &[u8]| {
        !data.iter().fold(!0u32, |c, &b| {
            (0..8).fold(c ^ u32::from(b), |c, _| if c & 1 == 1 { c >> 1 ^ 0xedb8_8320 } else { c >> 1 })
        })
    };
    let (mut out, mut directory) = (vec![], vec![]);
    for (name, data) in files {
        let name = format!("{name}.npy");
        let mut head = vec![20, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        head.extend(crc(data).to_le_bytes());
        head.extend((data.len() as u32).to_le_bytes());
        head.extend((data.len() as u32).to_le_bytes());
        head.extend((name.len() as u16).to_le_bytes());
        head.extend([0, 0]);
        directory.extend(b"PK\x01\x02\x14\x00");
        directory.extend(&head);
        directory.extend([0; 10]);
        directory.extend((out.len() as u32).to_le_bytes());
        directory.extend(name.as_bytes());
        out.extend(b"PK\x03\x04");
        out.extend(head);
        out.extend(name.as_bytes());
        out.extend(data);
    }
    let (start, n) = (out.len() as u32, files.len() as u16);
    out.extend(&directory);
    out.extend(b"PK\x05\x06\x00\x00\x00\x00");
    out.extend(n.to_le_bytes());
    out.extend(n.to_le_bytes());
    out.extend((directory.len() as u32).to_le_bytes());
    out.extend(start.to_le_bytes());
    out.extend([0, 0]);
    out
}

#[test]
fn malformed_rows_end_the_run_or_are_left_out_by_name() {
    let f = Folder::new("rows");
    let good = "0.5,1.5,0\n1.5,0.5,1\n".repeat(6);
    let data = json!({ "csv": f.write("bad.csv", format!("{good}oops,1,0\n1,2\n{good}")) });
    match train(&config(data.clone(), dense(2, json!([])))) {
        Err(NnError::Table { row: 13, column: 1, .. }) => {}
        other => panic!("{:?}", other.map(|d| d.report)),
    }
    let mut data = data;
    data["on_error"] = "skip".into();
    let done = train(&config(data, dense(2, json!([])))).unwrap();
    assert_eq!(done.skipped.len(), 2);
    assert!(
        done.skipped[0].contains("row 13, column 1") && done.skipped[1].contains("row 14"),
        "{:?}",
        done.skipped
    );
    assert_eq!(done.report.history[0].step, 4);
}

#[cfg(feature = "images")]
#[test]
fn corrupt_images_end_the_run_or_are_left_out_by_name() {
    let f = Folder::new("images");
    for class in ["a", "b"] {
        std::fs::create_dir_all(f.0.join(class)).unwrap();
        for i in 0..6u8 {
            let pixels = image::GrayImage::from_fn(5, 4, |x, y| image::Luma([(x + y) as u8 * 20 + i]));
            pixels.save(f.0.join(class).join(format!("{i}.png"))).unwrap();
        }
    }
    let flat = json!({ "layers": [{ "type": "flatten" }, { "type": "dense", "out_features": 2 }] });
    let data = json!({ "images": f.0, "channels": "gray", "size": [4, 4], "scale": 0.004, "test_share": 0.25,
        "sampler": "weighted", "transforms": [{ "type": "random_crop", "size": [3, 3], "padding": 1 }, "random_flip"] });
    let mut square = data.clone();
    square["transforms"] = json!([]);
    let done = train(&config(square.clone(), flat.clone())).unwrap();
    assert!(done.moved > 0.0 && done.skipped.is_empty());
    assert!(served(&in_order(square.clone()), false).iter().any(|(_, y)| y[0] == 1.0));
    f.write("a/2.png", b"\x89PNG\r\n\x1a\nnot really");
    for resident in [1 << 30, 0] {
        square["resident_bytes"] = resident.into();
        square["on_error"] = "fail".into();
        let e = train(&config(square.clone(), flat.clone())).err().unwrap();
        assert!(matches!(e, NnError::Data { .. }) && e.to_string().contains("2.png"), "{e}");
        square["on_error"] = "skip".into();
        let done = train(&config(square.clone(), flat.clone())).unwrap();
        assert_eq!(done.skipped.len(), 1, "{:?}", done.skipped);
        assert!(done.skipped[0].contains("2.png") && done.moved > 0.0);
    }
}

#[test]
fn texts_are_windows_with_the_next_token_as_target() {
    let f = Folder::new("text");
    let text = f.write("t.txt", "abcd".repeat(20));
    let data = json!({ "text": text, "length": 8, "test_share": 0.25 });
    let items = served(&in_order(data.clone()), true);
    assert_eq!(items[0].0, [0., 1., 2., 3., 0., 1., 2., 3.]);
    assert_eq!(items[0].1, [1., 2., 3., 0., 1., 2., 3., 0.]);
    assert_eq!((items.len(), served(&in_order(data.clone()), false).len()), (7, 2));
    let more = |key: &str, v: Value| {
        let mut d = data.clone();
        d[key] = v;
        d
    };
    assert_eq!(served(&in_order(more("step", 1.into())), true).len(), 52);
    assert_eq!(served(&in_order(more("encoding", "bytes".into())), true)[0].0[0], 97.0);
    let uniform = json!({ "type": "uniform", "draws": 5 });
    let mut c = in_order(more("sampler", uniform));
    c["train"]["shuffle"] = true.into();
    assert_eq!(served(&c, true).len(), 5);
    let c = Config::parse(&in_order(data.clone()).to_string()).unwrap();
    let opened = c.data.open().unwrap();
    assert_eq!((opened.classes(), opened.encoding().unwrap().decode(&[3, 0]).unwrap()), (4, "da".into()));
    // A test of its own is written in the alphabet of the training text.
    let mut own = data;
    own.as_object_mut().unwrap().remove("test_share");
    own["test"] = json!({ "text": f.write("test.txt", "dcba".repeat(5)) });
    assert_eq!(served(&in_order(own.clone()), false)[0].0[0], 3.0);
    own["test"] = json!({ "text": f.write("strange.txt", "xyz".repeat(5)) });
    let c = Config::parse(&in_order(own).to_string()).unwrap();
    assert!(c.data.open().unwrap_err().to_string().contains("vocabulary"));
}

#[test]
fn every_transform_and_sampler_serves() {
    let f = Folder::new("transforms");
    let x = f.floats("x.npy", &[N, 2, 4, 4], &noise(3, N * 32));
    let y = f.ids("y.npy", &[N], &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2]);
    let data =
        |transforms: Value| json!({ "npy": x, "targets": y, "test_rows": 3, "transforms": transforms });
    let plain = served(&in_order(data(json!([]))), true);
    let mut missing = TransformConfig::names();
    for (t, on_test) in [
        (json!({ "type": "normalize", "mean": [0.5, 0.25], "std": [0.5, 2.0] }), true),
        (json!({ "type": "normalize", "mean": 0.5, "std": 0.5 }), true),
        (json!("one_hot"), true),
        (json!({ "type": "random_flip", "p": 1.0, "side": "vertical" }), false),
        (json!({ "type": "random_flip", "p": 1.0, "on": "both" }), true),
        (json!({ "type": "random_crop", "size": [3, 3], "padding": 1 }), false),
        (json!({ "type": "random_erase", "p": 1.0, "area": [0.2, 0.3], "value": 7.0 }), false),
    ] {
        let c = in_order(data(json!([t])));
        assert_ne!(served(&c, true), plain, "{t}");
        let test = served(&in_order(data(json!([]))), false);
        assert_eq!(served(&c, false) != test, on_test, "{t}");
        missing.retain(|n| t != *n && t["type"] != *n);
    }
    assert_eq!(missing, ["mixup"]);
    let mixed = json!([{ "type": "one_hot", "on": "train" }, { "type": "mixup", "alpha": 0.5 }]);
    let flat = json!({ "layers": [{ "type": "flatten" }, { "type": "dense", "out_features": 3 }] });
    let done = train(&config(data(mixed), flat)).unwrap();
    assert!(done.moved > 0.0 && done.report.history[0].test_accuracy.is_some());

    let sampled = |sampler: Value| {
        let mut d = data(json!([]));
        d["sampler"] = sampler;
        d["test_rows"] = 0.into();
        served(&config(d, dense(3, json!([]))), true)
    };
    assert_eq!(sampled(json!("all")).len(), N);
    assert_eq!(sampled(json!({ "type": "uniform", "draws": 30 })).len(), 30);
    // Ten of twelve items are of class 0, but a third of what is drawn.
    let even = sampled(json!({ "type": "weighted", "draws": 300 }));
    let zeros = even.iter().filter(|(_, y)| y[0] == 0.0).count();
    assert!((70..130).contains(&zeros), "{zeros}");
    let weights: Vec<f64> = (0..N).map(|i| f64::from(u8::from(i == 11))).collect();
    let one = sampled(json!({ "type": "weighted", "weights": weights }));
    assert!(one.len() == N && one.iter().all(|(_, y)| y[0] == 2.0));
    assert_eq!(sampled(json!({ "type": "distributed", "rank": 1, "world": 5 })).len(), 3);
    assert_eq!(SamplerConfig::names().len(), 4);
}

#[test]
fn mistakes_in_the_files_have_their_place_too() {
    let f = Folder::new("files");
    let x = features(&f);
    let y = f.ids("y.npy", &[N], &[0; N]);
    let fail = |data: Value| train(&config(data, dense(3, json!([])))).err().unwrap().to_string();
    for (data, words) in [
        (json!({ "npy": x }), "`data.target`: expected \"input\""),
        (json!({ "npy": x, "targets": y, "features": "ids" }), "`data.features`"),
        (
            json!({ "npy": x, "targets": y, "item_shape": [5] }),
            "`data.item_shape`: expected a shape of 4 elements",
        ),
        (
            json!({ "npy": x, "targets": y, "test_rows": 12 }),
            "`data.test_rows`: expected fewer than the file's 12",
        ),
        (
            json!({ "npy": x, "targets": y, "test_rows": 4, "train_rows": 9 }),
            "`data.train_rows`: expected at most 8",
        ),
        (
            json!({ "npy": x, "targets": y, "sampler": { "type": "weighted", "weights": [1.0] } }),
            "`data.sampler.weights`: expected 12 weights",
        ),
        (json!({ "npy": x, "targets": x, "sampler": "weighted" }), "without one class per item"),
        (json!({ "npy": x, "targets": x, "transforms": ["one_hot"] }), "`data.transforms[0].classes`"),
        (
            json!({ "npy": x, "targets": f.ids("wide.npy", &[N], &[0, 1, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0]) }),
            "the network's 3 outputs, got 7 for item 2",
        ),
        (json!({ "csv": f.at("none.csv") }), "cannot open"),
        (json!({ "text": f.write("short.txt", "abc"), "length": 8 }), "3 tokens for windows of 8"),
        #[cfg(not(feature = "images"))]
        (json!({ "images": f.0 }), "--features images"),
    ] {
        let e = fail(data.clone());
        assert!(e.contains(words), "{data}: {e}");
    }
}
