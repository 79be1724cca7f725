//! State files: names, dtypes, partial loading, shards.

use std::collections::BTreeMap;
use std::path::Path;

use super::{Folder, fixture, mlp, values};
use crate::common::{close, cpu, devices};
use trefoil::ops::activation::Activation;
use trefoil_nn::checkpoint::{Checkpoint, Progress};
use trefoil_nn::layers::{Activate, Dense, Sequential};
use trefoil_nn::state_file::{self, LoadOptions, NameMap, SaveOptions};
use trefoil_nn::{
    At, DType, InitContext, Layer, LayerExt, NnError, Param, Result, StateDict, StateFile, Tensor, Visitor,
};

#[test]
fn state_dictionaries_of_pytorch_keep_names_shapes_and_values() {
    let file = StateFile::open(fixture("layers.safetensors")).unwrap();
    assert_eq!(file.metadata()["format"], "pt");
    type Shapes = (&'static str, &'static [(&'static str, &'static [usize])]);
    let want: [Shapes; 6] = [
        ("linear", &[("bias", &[2]), ("weight", &[2, 3])]),
        ("conv", &[("bias", &[3]), ("weight", &[3, 2, 3, 3])]),
        (
            "bn",
            &[
                ("bias", &[3]),
                ("num_batches_tracked", &[]),
                ("running_mean", &[3]),
                ("running_var", &[3]),
                ("weight", &[3]),
            ],
        ),
        ("ln", &[("bias", &[4]), ("weight", &[4])]),
        (
            "lstm",
            &[
                ("bias_hh_l0", &[8]),
                ("bias_ih_l0", &[8]),
                ("weight_hh_l0", &[8, 2]),
                ("weight_ih_l0", &[8, 3]),
            ],
        ),
        (
            "mha",
            &[
                ("in_proj_bias", &[12]),
                ("in_proj_weight", &[12, 4]),
                ("out_proj.bias", &[4]),
                ("out_proj.weight", &[4, 4]),
            ],
        ),
    ];
    let mut all: Vec<(String, &[usize])> =
        want.iter().flat_map(|(l, ts)| ts.iter().map(move |(t, s)| (format!("{l}.{t}"), *s))).collect();
    all.sort();
    assert_eq!(file.names().collect::<Vec<_>>(), all.iter().map(|(n, _)| n.as_str()).collect::<Vec<_>>());
    for (k, (name, shape)) in all.iter().enumerate() {
        let t = file.read(name).unwrap();
        assert_eq!((t.shape.as_slice(), file.shape(name).unwrap()), (*shape, *shape), "{name}");
        if name.ends_with("num_batches_tracked") {
            assert_eq!(t.to_vec::<i64>().unwrap(), [k as i64 + 1]);
        } else {
            let want: Vec<f32> = (0..t.numel()).map(|i| k as f32 + i as f32 / 8.0).collect();
            assert_eq!(t.to_vec::<f32>().unwrap(), want, "{name}");
        }
    }
    // The same on every device.
    for d in devices() {
        let state = file.state_dict(&d).unwrap();
        assert_eq!(state.len(), all.len());
        for (name, t) in state {
            assert_eq!(t.to_bytes().unwrap(), file.read(&name).unwrap().bytes, "{name}");
        }
    }
}

#[test]
fn dtypes_are_read_as_they_are_or_wider() {
    use DType::*;
    let file = StateFile::open(fixture("dtypes.safetensors")).unwrap();
    for (name, dtype) in [
        ("u8", U8),
        ("i8", I32),
        ("i16", I32),
        ("u16", I32),
        ("i32", I32),
        ("u32", I64),
        ("i64", I64),
        ("f16", F16),
        ("bf16", Bf16),
        ("f32", F32),
        ("f64", F64),
    ] {
        let t = file.read(name).unwrap();
        assert_eq!((t.dtype, file.dtype(name)), (dtype, Some(dtype)), "{name}");
        assert_eq!(values(&t), [0.0, 1.0, 2.0, 100.0], "{name}");
    }
    assert_eq!(file.read("bool").unwrap().to_vec::<u8>().unwrap(), [0, 1, 1, 1]);
    assert_eq!(file.read("negative").unwrap().to_vec::<i32>().unwrap(), [-3]);
    for name in ["u64", "f8"] {
        assert_eq!(file.dtype(name), None);
        match file.read(name) {
            Err(NnError::Data { at: At::Entry(at), .. }) => assert_eq!(at, name),
            other => panic!("{name}: {other:?}"),
        }
    }
    assert!(matches!(file.read("nothing"), Err(NnError::Data { .. })));
}

#[test]
fn a_model_of_pytorch_gives_pytorchs_output() {
    let io = StateFile::open(fixture("mlp_io.safetensors")).unwrap();
    let want = values(&io.read("y").unwrap());
    for d in devices() {
        let x = io.read("x").unwrap().to_device(&d).unwrap();
        for (file, names) in [
            ("mlp.safetensors", NameMap::new()),
            ("sharded", NameMap::new().prefix("model.", "")),
            ("sharded/model.safetensors.index.json", NameMap::new().prefix("model.", "")),
        ] {
            let model = mlp(&d, 9);
            let file = StateFile::open(fixture(file)).unwrap();
            let report = file.load(&model, &LoadOptions::new().names(names)).unwrap();
            assert_eq!(report.loaded, ["0.weight", "0.bias", "2.weight", "2.bias"]);
            assert!(
                report.missing.is_empty() && report.unexpected.is_empty() && report.mismatched.is_empty()
            );
            let y: Vec<f64> =
                model.forward(&x).unwrap().to_vec::<f32>().unwrap().iter().map(|&v| v.into()).collect();
            close(&y, &want, 1e-6, "output");
        }
    }
}

#[test]
fn partial_loading_reports_what_it_left() {
    let d = cpu();
    let file = StateFile::open(fixture("layers.safetensors")).unwrap();
    let cx = InitContext::new(&d, 4);
    // `linear.weight` fits, `linear.bias` is of another shape under the name `ln.bias`, `2` is not in the file.
    let model = || {
        Sequential::new()
            .push(Dense::new(&cx, 3, 2).unwrap())
            .push(Activate(Activation::Relu))
            .push(Dense::new(&cx, 2, 2).unwrap().no_bias())
    };
    let names = NameMap::new()
        .drop("bn.")
        .drop("lstm.")
        .drop("mha.")
        .drop("conv.")
        .rename("linear.weight", "0.weight")
        .rename("ln.bias", "0.bias");
    let m = model();
    let before = m.state_dict().unwrap()["0.bias"].to_vec::<f32>().unwrap();
    let report = file.load(&m, &LoadOptions::new().partial().names(names.clone())).unwrap();
    assert_eq!(report.loaded, ["0.weight"]);
    assert_eq!(report.missing, ["2.weight"]);
    assert_eq!(report.unexpected, ["linear.bias", "ln.weight"]);
    let bad = &report.mismatched[0];
    assert_eq!((bad.name.as_str(), &bad.expected[..], &bad.found[..]), ("0.bias", &[2][..], &[4][..]));
    assert_eq!(bad.found_dtype, Some(DType::F32));
    assert_eq!(
        m.state_dict().unwrap()["0.weight"].to_bytes().unwrap(),
        file.read("linear.weight").unwrap().bytes
    );
    assert_eq!(m.state_dict().unwrap()["0.bias"].to_vec::<f32>().unwrap(), before);

    // Strict loading refuses and writes nothing.
    let m = model();
    let before = m.state_dict().unwrap()["0.weight"].to_vec::<f32>().unwrap();
    match file.load(&m, &LoadOptions::new().names(names)) {
        Err(NnError::StateNames { missing, unexpected }) => {
            assert_eq!((missing, unexpected), (report.missing, report.unexpected));
        }
        other => panic!("{other:?}"),
    }
    let one = Sequential::new().push(Dense::new(&cx, 3, 2).unwrap().no_bias());
    let only = |from: &str| {
        let all = ["bn.", "conv.", "ln.", "lstm.", "mha.", "linear."].map(String::from);
        let mut map = NameMap::new().rename(from, "0.weight");
        for p in all {
            map = map.drop(p);
        }
        map
    };
    match file.load(&one, &LoadOptions::new().names(only("ln.weight"))) {
        Err(NnError::StateShape { name, expected, found, .. }) => {
            assert_eq!((name.as_str(), &expected[..], &found[..]), ("0.weight", &[2, 3][..], &[4][..]));
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(m.state_dict().unwrap()["0.weight"].to_vec::<f32>().unwrap(), before);
    // Two names that become one.
    let clash = NameMap::new().rename("ln.weight", "ln.bias");
    assert!(file.load(&one, &LoadOptions::new().partial().names(clash)).is_err());
}

#[test]
fn dtypes_are_converted_on_request() {
    for d in devices() {
        let model = |dtype| {
            let cx = InitContext::new(&d, 1).dtype(dtype);
            Sequential::new()
                .push(Dense::new(&cx, 3, 5).unwrap())
                .push(Activate(Activation::Tanh))
                .push(Dense::new(&cx, 5, 2).unwrap())
        };
        let file = StateFile::open(fixture("mlp.safetensors")).unwrap();
        for dtype in [DType::F16, DType::Bf16] {
            let m = model(dtype);
            assert!(matches!(file.load(&m, &LoadOptions::new()), Err(NnError::StateShape { .. })));
            let report = file.load(&m, &LoadOptions::new().partial()).unwrap();
            assert_eq!((report.loaded.len(), report.mismatched.len()), (0, 4));
            file.load(&m, &LoadOptions::new().convert()).unwrap();
            for (name, t) in m.state_dict().unwrap() {
                // The host's conversion is the device's.
                let want = file.read(&name).unwrap().to_device(&d).unwrap().to_dtype(dtype).unwrap();
                assert_eq!(t.to_bytes().unwrap(), want.to_bytes().unwrap(), "{name} as {dtype}");
            }
        }
    }
}

/// Two names for one parameter.
#[derive(Debug)]
struct Tied(Param);

impl Layer for Tied {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        x.mul(&self.0.get())
    }
    fn visit(&self, v: &mut Visitor<'_>) {
        v.param("embedding.weight", &self.0);
        v.param("head.weight", &self.0);
    }
}

#[test]
fn tied_parameters_need_one_of_their_names() {
    let folder = Folder::new("tied");
    let (d, path) = (cpu(), folder.at("tied.safetensors"));
    let state =
        StateDict::from([("embedding.weight".to_string(), crate::common::f32s(&d, &[1.0, 2.0], &[2]))]);
    state_file::save(&state, &path, &SaveOptions::new()).unwrap();
    let m = Tied(Param::new(Tensor::zeros(&d, DType::F32, &[2]).unwrap()));
    let report = StateFile::open(&path).unwrap().load(&m, &LoadOptions::new()).unwrap();
    assert_eq!((report.loaded.as_slice(), report.missing.len()), (&["embedding.weight".to_string()][..], 0));
    assert_eq!(m.0.get().to_vec::<f32>().unwrap(), [1.0, 2.0]);
}

#[test]
fn files_are_written_whole_and_in_shards() {
    let folder = Folder::new("save");
    for d in devices() {
        let model = mlp(&d, 3);
        let mut state = model.state_dict().unwrap();
        // A view, a scalar, an empty tensor, other dtypes.
        let grid = Tensor::arange(&d, DType::I64, 0.0, 1.0, 6).unwrap().reshape(&[2, 3]).unwrap();
        state.insert("view".into(), grid.transpose(0, 1).unwrap());
        state.insert("count".into(), Tensor::from_slice(&d, &[7i32], &[]).unwrap());
        state.insert("half".into(), Tensor::ones(&d, DType::F16, &[3]).unwrap());
        let bytes: BTreeMap<String, Vec<u8>> =
            state.iter().map(|(n, t)| (n.clone(), t.to_bytes().unwrap())).collect();
        let same = |path: &Path| {
            let file = StateFile::open(path).unwrap();
            assert_eq!(
                file.names().collect::<Vec<_>>(),
                bytes.keys().map(String::as_str).collect::<Vec<_>>()
            );
            for (name, want) in &bytes {
                let t = file.read(name).unwrap();
                assert_eq!((&t.bytes, t.shape.as_slice()), (want, state[name].shape()), "{name}");
            }
            file
        };
        let path = folder.at("whole.safetensors");
        let options = SaveOptions::new().metadata("note", "a test");
        assert_eq!(state_file::save(&state, &path, &options).unwrap(), std::slice::from_ref(&path));
        let file = same(&path);
        assert_eq!((file.metadata()["format"].as_str(), file.metadata()["note"].as_str()), ("pt", "a test"));
        // A whole that fits makes no index.
        let options = SaveOptions::new().shard_bytes(1 << 20);
        assert_eq!(state_file::save(&state, &path, &options).unwrap().len(), 1);

        let path = folder.at("model.safetensors");
        let files = state_file::save(&state, &path, &SaveOptions::new().shard_bytes(60)).unwrap();
        let names: Vec<_> = files.iter().map(|f| f.file_name().unwrap().to_str().unwrap()).collect();
        assert!(names.len() > 3, "{names:?}");
        assert_eq!(names[0], format!("model-00001-of-{:05}.safetensors", names.len() - 1));
        assert_eq!(*names.last().unwrap(), "model.safetensors.index.json");
        same(files.last().unwrap());
        same(&folder.0);

        // Renamed on the way out and back.
        let names = NameMap::new().prefix("", "model.");
        state_file::save(&model.state_dict().unwrap(), &path, &SaveOptions::new().names(names)).unwrap();
        let other = mlp(&d, 8);
        let back = LoadOptions::new().names(NameMap::new().prefix("model.", ""));
        StateFile::open(&path).unwrap().load(&other, &back).unwrap();
        for (name, t) in other.state_dict().unwrap() {
            assert_eq!(t.to_bytes().unwrap(), bytes[&name]);
        }
    }
}

#[test]
fn large_tensors_travel_in_pieces() {
    // Above 16 MiB, and no multiple of anything.
    let n = (16 << 20) / 4 + 1_003;
    let numbers: Vec<f32> = (0..n).map(|i| (i % 1021) as f32).collect();
    let folder = Folder::new("pieces");
    let path = folder.at("large.safetensors");
    for d in devices() {
        let state = StateDict::from([("large".to_string(), crate::common::f32s(&d, &numbers, &[n]))]);
        state_file::save(&state, &path, &SaveOptions::new()).unwrap();
        let file = StateFile::open(&path).unwrap();
        assert!(file.read("large").unwrap().to_vec::<f32>().unwrap() == numbers);
        assert!(file.state_dict(&d).unwrap()["large"].to_vec::<f32>().unwrap() == numbers);
        let half = Tied(Param::new(Tensor::zeros(&d, DType::F16, &[n]).unwrap()));
        let names = NameMap::new().rename("large", "head.weight");
        file.load(&half, &LoadOptions::new().convert().names(names)).unwrap();
        assert!(half.0.get().to_dtype(DType::F32).unwrap().to_vec::<f32>().unwrap() == numbers);
    }
}

#[test]
fn checkpoints_and_state_files_read_each_other() {
    let folder = Folder::new("checkpoint");
    let (a, b) = (mlp(&cpu(), 1), mlp(&cpu(), 2));
    let path = folder.at("c.safetensors");
    Checkpoint::capture(&a, None, Progress::default()).unwrap().save(&path).unwrap();
    StateFile::open(&path).unwrap().load(&b, &LoadOptions::new()).unwrap();
    let x = crate::common::f32s(&cpu(), &[0.1, 0.2, 0.3], &[1, 3]);
    assert_eq!(a.forward(&x).unwrap().to_bytes().unwrap(), b.forward(&x).unwrap().to_bytes().unwrap());
    let c = mlp(&cpu(), 3);
    state_file::save(&a.state_dict().unwrap(), &path, &SaveOptions::new()).unwrap();
    Checkpoint::load(&path).unwrap().restore(&c, None).unwrap();
    assert_eq!(a.forward(&x).unwrap().to_bytes().unwrap(), c.forward(&x).unwrap().to_bytes().unwrap());
}
