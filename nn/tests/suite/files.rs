//! Files of other programs: safetensors of PyTorch, NumPy arrays, IDX, images, tokenizers. `files/gen.py` writes the fixtures.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::common::{close, cpu, devices};
use trefoil::ops::activation::Activation;
use trefoil_nn::checkpoint::{Checkpoint, Progress};
use trefoil_nn::data::{CifarLabels, ItemSource, read_cifar, read_idx, read_idx_pair, read_npy, read_npz};
use trefoil_nn::layers::{Activate, Dense, Sequential};
use trefoil_nn::state_file::{self, LoadOptions, NameMap, SaveOptions};
use trefoil_nn::{
    At, DType, Device, HostTensor, InitContext, Layer, LayerExt, NnError, Param, Result, StateDict,
    StateFile, Tensor, Visitor,
};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/files").join(name)
}

/// A folder of its own for a test, removed afterwards.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("trefoil-files-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn mlp(d: &Device, seed: u64) -> Sequential {
    let cx = InitContext::new(d, seed);
    Sequential::new()
        .push(Dense::new(&cx, 3, 5).unwrap())
        .push(Activate(Activation::Tanh))
        .push(Dense::new(&cx, 5, 2).unwrap())
}

fn values(t: &HostTensor) -> Vec<f64> {
    t.to_dtype(DType::F64).unwrap().to_vec().unwrap()
}

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

/// Every prefix of a file, and every byte of its head changed: `open` gives a value or an error.
fn damage(path: &Path, name: &str, head: usize, open: &dyn Fn(&Path) -> Result<()>) {
    let folder = Folder::new(name);
    let bytes = std::fs::read(path).unwrap();
    let at = folder.at(path.file_name().unwrap().to_str().unwrap());
    for len in 0..bytes.len() {
        std::fs::write(&at, &bytes[..len]).unwrap();
        match open(&at) {
            Err(NnError::Data { path, .. }) => assert_eq!(path, at),
            other => panic!("{name} cut to {len} bytes: {other:?}"),
        }
    }
    let mut refused = 0;
    for i in 0..head.min(bytes.len()) {
        for flip in [0x01, 0x80] {
            let mut b = bytes.clone();
            b[i] ^= flip;
            std::fs::write(&at, &b).unwrap();
            match open(&at) {
                Err(NnError::Data { .. }) => refused += 1,
                Ok(()) => {}
                other => panic!("{name} with byte {i} changed: {other:?}"),
            }
        }
    }
    assert!(refused > 0);
    std::fs::write(&at, [bytes.as_slice(), &[0]].concat()).unwrap();
    if name != "zip" {
        assert!(matches!(open(&at), Err(NnError::Data { .. })), "{name} with a byte more");
    }
}

#[test]
fn damaged_files_are_refused_with_their_name() {
    damage(&fixture("mlp.safetensors"), "st", 200, &|p| {
        let f = StateFile::open(p)?;
        f.names().try_for_each(|n| f.read(n).map(drop))
    });
    damage(&fixture("fortran.npy"), "npy", 128, &|p| read_npy(p).map(drop));
    damage(&fixture("images.idx"), "idx", 16, &|p| read_idx(p).map(drop));
    damage(&fixture("labels.idx.gz"), "gz", 42, &|p| read_idx(p).map(drop));
    damage(&fixture("stored.npz"), "zip", 600, &|p| read_npz(p, Some(&["x", "y"])).map(drop));
    assert!(matches!(StateFile::open("/no/such/file.safetensors"), Err(NnError::Io { .. })));
    assert!(matches!(read_npy("/no/such/file.npy"), Err(NnError::Io { .. })));

    // A length that no memory holds is refused before anything of that size is allocated.
    let folder = Folder::new("huge");
    let head = "{'descr': '<f8', 'fortran_order': False, 'shape': (1000000, 1000000, 1000), }\n";
    let npy = [b"\x93NUMPY\x01\x00", &(head.len() as u16).to_le_bytes()[..], head.as_bytes()].concat();
    std::fs::write(folder.at("a.npy"), npy).unwrap();
    assert!(matches!(read_npy(folder.at("a.npy")), Err(NnError::Data { at: At::Byte(_), .. })));
}

#[test]
fn other_formats_are_named_with_the_way_to_safetensors() {
    let folder = Folder::new("foreign");
    let torch = "safetensors.torch.save_file(model.state_dict(), \"model.safetensors\")";
    for (path, format, way) in [
        (fixture("weights_pickled.pt"), "a pickle", torch),
        (fixture("stored.npz"), "a NumPy archive", "safetensors.numpy.save_file(dict("),
        (fixture("fortran.npy"), "a NumPy array", "safetensors.numpy.save_file({"),
    ] {
        match StateFile::open(&path) {
            Err(NnError::Format { expected, found, path: named }) => {
                assert_eq!((expected, &named), ("a safetensors file", &path));
                assert!(found.starts_with(format) && found.contains(way), "{}: {found}", path.display());
            }
            other => panic!("{}: {other:?}", path.display()),
        }
    }
    // What only begins like a zip file, or like none of them.
    for (bytes, words) in
        [(&b"PK\x03\x04????"[..], "an intact zip archive"), (&b"????????"[..], "a safetensors header")]
    {
        let at = folder.at("short");
        std::fs::write(&at, bytes).unwrap();
        let e = StateFile::open(&at).unwrap_err().to_string();
        assert!(e.contains(words), "{e}");
    }
}

#[test]
fn an_index_must_match_its_shards() {
    let folder = Folder::new("index");
    for i in 1..=2 {
        let name = format!("model-0000{i}-of-00002.safetensors");
        std::fs::copy(fixture("sharded").join(&name), folder.at(&name)).unwrap();
    }
    let at = folder.at("model.safetensors.index.json");
    let good = std::fs::read_to_string(fixture("sharded/model.safetensors.index.json")).unwrap();
    let open = |text: &str| {
        std::fs::write(&at, text).unwrap();
        StateFile::open(&folder.0)
    };
    assert!(open(&good).is_ok());
    // A tensor that its shard has not, a file elsewhere, no JSON.
    for bad in [
        good.replace("model.0.bias", "model.0.other"),
        good.replace("model-00001", "../model-00001"),
        "{".into(),
    ] {
        assert!(matches!(open(&bad), Err(NnError::Data { .. })), "{bad}");
    }
    assert!(matches!(open(&good.replace("00001-of", "00003-of")), Err(NnError::Io { .. })));
}

#[test]
fn arrays_of_numpy() {
    let all = read_npz(fixture("arrays.npz"), None);
    match all {
        Err(NnError::Data { found, .. }) => {
            assert!(found.contains("<u8") || found.contains("<U1"), "{found}")
        }
        other => panic!("{other:?}"),
    }
    let names =
        ["f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "bool", "big", "big_int", "fortran"];
    let arrays = read_npz(fixture("arrays.npz"), Some(&names)).unwrap();
    for (name, dtype) in names.iter().zip([
        DType::F16,
        DType::F32,
        DType::F64,
        DType::I32,
        DType::I32,
        DType::I32,
        DType::I64,
        DType::U8,
        DType::I32,
        DType::I64,
        DType::U8,
        DType::F32,
        DType::I64,
        DType::F32,
    ]) {
        let t = &arrays[*name];
        assert_eq!((t.dtype, t.shape.as_slice()), (dtype, &[2, 3][..]), "{name}");
        let want: Vec<f64> = match *name {
            "bool" => vec![0.0, 1.0, 1.0, 1.0, 1.0, 1.0],
            n if n.starts_with('u') => (0..6).map(f64::from).collect(),
            n if n.starts_with("big") => (0..6).map(f64::from).collect(),
            _ => (-2..4).map(f64::from).collect(),
        };
        assert_eq!(values(t), want, "{name}");
    }
    let scalar = &read_npz(fixture("arrays.npz"), Some(&["scalar"])).unwrap()["scalar"];
    assert_eq!((scalar.shape.len(), scalar.to_vec::<f64>().unwrap()), (0, vec![7.5]));
    match read_npz(fixture("arrays.npz"), Some(&["other"])) {
        Err(NnError::Data { at: At::Entry(name), .. }) => assert_eq!(name, "other"),
        other => panic!("{other:?}"),
    }
    let t = read_npy(fixture("fortran.npy")).unwrap();
    assert_eq!(t.to_vec::<f32>().unwrap(), [-2.0, -1.0, 0.0, 1.0, 2.0, 3.0]);
    let stored = read_npz(fixture("stored.npz"), None).unwrap();
    assert_eq!(stored["y"].to_vec::<i64>().unwrap(), [1, 0]);
}

#[test]
fn idx_files_plain_and_packed() {
    let data = read_idx_pair(fixture("images.idx"), fixture("labels.idx.gz")).unwrap();
    assert_eq!((data.len(), data.classes(), data.x().dtype), (3, 3, DType::U8));
    let item = data.item(1).unwrap();
    assert_eq!((item.x.shape.as_slice(), item.x.bytes.as_slice()), (&[2, 2][..], &[4, 5, 6, 7][..]));
    assert_eq!((item.y.shape.len(), item.y.to_vec::<i64>().unwrap()), (0, vec![0]));
    let set = data.dataset(0.5).unwrap();
    assert_eq!((set.item_shape(), set.classes(), set.features()[11]), (&[2, 2][..], 3, 5.5));
    let floats = read_idx(fixture("floats.idx")).unwrap();
    assert_eq!((floats.shape.as_slice(), values(&floats)[5]), (&[2, 3][..], 2.5));
    assert!(matches!(read_idx_pair(fixture("images.idx"), fixture("images.idx")), Err(NnError::Data { .. })));
    assert!(data.item(3).is_err());
}

#[test]
fn cifar_files_of_10_and_100_classes() {
    let folder = Folder::new("cifar");
    let record = |labels: &[u8], first: u8| {
        [labels.to_vec(), (0..3072).map(|i| first.wrapping_add((i / 1024) as u8)).collect()].concat()
    };
    let (a, b) = (folder.at("data_batch_1.bin"), folder.at("data_batch_2.bin"));
    std::fs::write(&a, [record(&[9], 10), record(&[0], 20)].concat()).unwrap();
    std::fs::write(&b, record(&[3], 30)).unwrap();
    let set = read_cifar(&[&a, &b], CifarLabels::Cifar10).unwrap();
    assert_eq!((set.len(), set.x().shape.as_slice()), (3, &[3, 3, 32, 32][..]));
    let item = set.item(1).unwrap();
    assert_eq!([item.x.bytes[0], item.x.bytes[1024], item.x.bytes[3071]], [20, 21, 22]);
    assert_eq!(set.y().to_vec::<i64>().unwrap(), [9, 0, 3]);

    let wide = folder.at("train.bin");
    std::fs::write(&wide, [record(&[19, 99], 1), record(&[4, 20], 2)].concat()).unwrap();
    let ids = |labels| read_cifar(&[&wide], labels).unwrap().y().to_vec::<i64>().unwrap();
    assert_eq!((ids(CifarLabels::Cifar100), ids(CifarLabels::Cifar100Coarse)), (vec![99, 20], vec![19, 4]));

    let refused = |files: &[&Path], labels| read_cifar(files, labels).unwrap_err().to_string();
    let text = refused(&[&a, &wide], CifarLabels::Cifar10);
    assert!(text.contains("train.bin") && text.contains("3073") && text.contains("6148 bytes"), "{text}");
    std::fs::write(&b, [record(&[3], 30), record(&[10], 30)].concat()).unwrap();
    let text = refused(&[&b], CifarLabels::Cifar10);
    assert!(
        text.contains("data_batch_2.bin") && text.contains("3073") && text.contains("a class below 10"),
        "{text}"
    );
    std::fs::write(&b, []).unwrap();
    assert!(refused(&[&b], CifarLabels::Cifar10).contains("0 bytes"));
    assert!(read_cifar::<&Path>(&[], CifarLabels::Cifar10).is_err());
}

#[test]
fn host_tensors_convert_as_devices_do() {
    let edge = [
        0.0,
        -0.0,
        1.5,
        -1.5,
        255.0,
        256.0,
        65504.0,
        65520.0,
        1e-8,
        3.3,
        1e10,
        -1e30,
        f64::INFINITY,
        f64::NAN,
    ];
    let ints = [0i64, -1, 255, 256, 1 << 31, -(1 << 40), 16_777_217, i64::MAX];
    for t in [HostTensor::from_slice(&edge, &[14]).unwrap(), HostTensor::from_slice(&ints, &[8]).unwrap()] {
        let on_device = t.to_device(&cpu()).unwrap();
        for dtype in DType::ALL {
            let host = t.to_dtype(dtype).unwrap();
            assert_eq!(host.dtype, dtype);
            let want = on_device.to_dtype(dtype).unwrap().to_bytes().unwrap();
            assert_eq!(host.bytes, want, "{} to {dtype}", t.dtype);
        }
    }
    assert!(HostTensor::new(DType::F32, &[2], vec![0; 7]).is_err());
    assert!(HostTensor::from_slice(&[1f32], &[2]).is_err());
    let t = HostTensor::from_slice(&[1f32, 2.0, 3.0, 4.0], &[2, 2]).unwrap();
    assert!(t.to_vec::<f64>().is_err() && t.rows(&[2]).is_err());
    assert_eq!(t.rows(&[1, 1, 0]).unwrap().to_vec::<f32>().unwrap(), [3.0, 4.0, 3.0, 4.0, 1.0, 2.0]);
    let wrong = HostTensor { dtype: DType::F32, shape: vec![3, usize::MAX], bytes: vec![0; 4] };
    assert!(wrong.rows(&[2]).is_err() && wrong.to_device(&cpu()).is_err());
    assert!(HostTensor::stack(&[]).is_err());
    assert!(HostTensor::stack(&[&t, &t.rows(&[0]).unwrap()]).is_err());
    assert_eq!(HostTensor::stack(&[&t, &t]).unwrap().shape, [2, 2, 2]);
}

#[cfg(feature = "images")]
mod images {
    use super::*;
    use image::{ImageBuffer, Luma, Rgb};
    use std::sync::Arc;
    use trefoil_nn::data::{Channels, ImageFolder, Loader, Source};

    /// Two classes: `cat` with a red PNG, a gray PNG of another size and a broken file, `dog` with a blue JPEG.
    fn folder(name: &str) -> Folder {
        let f = Folder::new(name);
        std::fs::create_dir_all(f.at("dog")).unwrap();
        std::fs::create_dir_all(f.at("cat")).unwrap();
        let red = ImageBuffer::from_fn(3, 2, |x, y| Rgb([200 + x as u8, y as u8, 7]));
        red.save(f.at("cat/a.png")).unwrap();
        ImageBuffer::from_pixel(6, 4, Luma([100u8])).save(f.at("cat/b.png")).unwrap();
        std::fs::write(f.at("cat/c.png"), b"\x89PNG\r\n\x1a\nnot more").unwrap();
        std::fs::write(f.at("cat/readme.txt"), b"text").unwrap();
        ImageBuffer::from_pixel(3, 2, Rgb([0u8, 0, 255])).save(f.at("dog/d.jpeg")).unwrap();
        f
    }

    #[test]
    fn folders_of_images() {
        let f = folder("images");
        let data = ImageFolder::open(&f.0).unwrap();
        assert_eq!(
            (data.len(), data.classes(), data.class_names()),
            (4, 2, &["cat".to_string(), "dog".into()][..])
        );
        let item = data.item(0).unwrap();
        assert_eq!((item.x.dtype, item.x.shape.as_slice()), (DType::U8, &[3, 2, 3][..]));
        assert_eq!(item.x.bytes, [200, 201, 202, 200, 201, 202, 0, 0, 0, 1, 1, 1, 7, 7, 7, 7, 7, 7]);
        let dog = data.item(3).unwrap();
        assert_eq!(dog.y.to_vec::<i64>().unwrap(), [1]);
        assert!(dog.x.bytes[12..].iter().all(|&b| b > 240) && dog.x.bytes[..6].iter().all(|&r| r < 15));
        match data.item(2) {
            Err(NnError::Data { path, .. }) => assert_eq!(path, f.at("cat/c.png")),
            other => panic!("{other:?}"),
        }
        let small = data.clone().channels(Channels::Gray).resize(2, 2).unwrap();
        assert_eq!(small.item(1).unwrap().x.bytes, [100; 4]);
        assert!(data.item(4).is_err() && data.clone().resize(0, 1).is_err());
        assert!(matches!(ImageFolder::open(f.at("cat")), Err(NnError::Data { .. })));
    }

    #[test]
    fn broken_images_are_fatal_or_counted() {
        let f = folder("broken");
        let data = Arc::new(ImageFolder::open(&f.0).unwrap().resize(2, 2).unwrap());
        for threads in [1, 3] {
            let loader = Loader::new(data.clone(), &cpu()).threads(threads);
            let all: Vec<_> = loader.epoch(None, 2).unwrap().collect();
            assert!(matches!(all.last(), Some(Err(NnError::Data { .. }))));
            let loader = loader.skip_malformed();
            let batches: Vec<_> = loader.epoch(None, 1).unwrap().map(Result::unwrap).collect();
            assert_eq!((batches.len(), loader.skipped()), (3, 1));
            let batches: Vec<_> = loader.epoch(None, 2).unwrap().map(Result::unwrap).collect();
            assert_eq!((batches[0].len, batches[1].len, loader.skipped()), (2, 1, 2));
            assert_eq!((batches[1].x.shape(), batches[1].x.dtype()), (&[1, 3, 2, 2][..], DType::F32));
            assert_eq!(batches[1].y.to_vec::<i64>().unwrap(), [1]);
        }
        // Images of unequal size without a common one are no malformed items.
        let loader = Loader::new(Arc::new(ImageFolder::open(&f.0).unwrap()), &cpu()).skip_malformed();
        assert!(loader.epoch(None, 4).unwrap().next().unwrap().is_err());
    }
}

#[cfg(feature = "tokenizers")]
#[test]
fn tokenizers_of_hugging_face() {
    use trefoil_nn::data::text::{Encoding, Tokenizer};
    let folder = Folder::new("tokenizer");
    let path = folder.at("tokenizer.json");
    let text = r#"{"version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": {"type": "Lowercase"},
        "pre_tokenizer": {"type": "Whitespace"}, "post_processor": null, "decoder": null,
        "model": {"type": "WordLevel", "vocab": {"[UNK]": 0, "hello": 1, "world": 2}, "unk_token": "[UNK]"}}"#;
    std::fs::write(&path, text).unwrap();
    let t = Tokenizer::open(&path).unwrap();
    assert_eq!((t.encode("Hello big world").unwrap(), t.size()), (vec![1, 0, 2], 3));
    assert_eq!(t.decode(&[1, 2]).unwrap(), "hello world");
    std::fs::write(&path, "{}").unwrap();
    assert!(matches!(Tokenizer::open(&path), Err(NnError::Data { .. })));
}
