//! State files of PyTorch and llama.cpp: equal to the same tensors in safetensors, and harmless whatever their bytes are. `files/gen.py` writes the
//! fixtures.

use std::path::{Path, PathBuf};

use crate::common::{cpu, devices};
use trefoil::ops::activation::Activation;
use trefoil_nn::layers::{Activate, Dense, Sequential};
use trefoil_nn::state_file::{LoadOptions, NameMap};
use trefoil_nn::{DType, InitContext, Layer, NnError, StateFile};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/files").join(name)
}

/// Both files have the same tensors, but for `without`.
fn same(file: &str, wanted: &str, without: &[&str]) {
    let (file, wanted) = (StateFile::open(fixture(file)).unwrap(), StateFile::open(fixture(wanted)).unwrap());
    let names: Vec<&str> = file.names().filter(|n| !without.contains(n)).collect();
    assert_eq!(names, wanted.names().filter(|n| !without.contains(n)).collect::<Vec<_>>());
    for name in names {
        assert_eq!(file.read(name).unwrap(), wanted.read(name).unwrap(), "{name}");
    }
}

#[test]
fn files_of_torch_save_hold_the_tensors_of_their_dictionaries() {
    same("nested.pt", "nested.safetensors", &[]);
    same("nested_protocol4.pt", "nested.safetensors", &[]);
    let file = StateFile::open(fixture("nested.pt")).unwrap();
    assert_eq!(file.shape("views.transposed"), Some(&[6, 4][..]));
    assert_eq!(file.dtype("types.bf16"), Some(DType::Bf16));
    // Into a model: the same as from safetensors, on every device.
    let names =
        NameMap::new().prefix("model.", "").drop("views.").drop("types.").drop("list.").drop("parameter");
    for d in devices() {
        let cx = InitContext::new(&d, 1);
        let model = Sequential::new()
            .push(Dense::new(&cx, 3, 5).unwrap())
            .push(Activate(Activation::Tanh))
            .push(Dense::new(&cx, 5, 2).unwrap());
        let report = file.load(&model, &LoadOptions::new().names(names.clone())).unwrap();
        assert!(report.is_complete(), "{report:?}");
        let x = StateFile::open(fixture("mlp_io.safetensors")).unwrap();
        let y = model.forward(&x.read("x").unwrap().to_device(&d).unwrap()).unwrap().to_vec::<f32>().unwrap();
        let want = x.read("y").unwrap().to_vec::<f32>().unwrap();
        assert!(y.iter().zip(&want).all(|(a, b)| (a - b).abs() < 1e-5), "{y:?} {want:?}");
        let views = file.state_dict(&d).unwrap();
        assert_eq!(views["views.transposed"].shape(), [6, 4]);
    }
}

#[test]
fn no_code_of_a_pickle_runs() {
    let file = StateFile::open(fixture("malicious.pt")).unwrap();
    assert_eq!(file.names().collect::<Vec<_>>(), ["weight"]);
    assert!(!Path::new("malicious_was_here").exists());
    let text = StateFile::open(fixture("module.pt")).unwrap_err().to_string();
    assert!(
        text.contains("torch.nn.modules.container Sequential") && text.contains("state_dict()"),
        "{text}"
    );
}

#[test]
fn gguf_weights_are_dequantized_as_llama_cpp_does() {
    same("weights.gguf", "weights_gguf.safetensors", &["BF16", "Q5_0"]);
    let file = StateFile::open(fixture("weights.gguf")).unwrap();
    assert_eq!(file.metadata()["general.name"], "a test");
    assert_eq!(file.metadata()["tokenizer.ggml.tokens"], "2 values");
    assert_eq!((file.dtype("Q4_0"), file.shape("Q4_0")), (Some(DType::F32), Some(&[3, 64][..])));
    // The package hands out f32 where the file holds bf16.
    let wanted = StateFile::open(fixture("weights_gguf.safetensors")).unwrap();
    let bf16 = file.read("BF16").unwrap();
    assert_eq!(bf16.dtype, DType::Bf16);
    assert_eq!(bf16.to_dtype(DType::F32).unwrap(), wanted.read("BF16").unwrap());
    assert_eq!(file.dtype("Q5_0"), None);
    let text = file.read("Q5_0").unwrap_err().to_string();
    assert!(text.contains("Q8_0 or Q4_0") && text.contains("Ggml(6)"), "{text}");
    let state = {
        let only = StateFile::open(fixture("weights.gguf")).unwrap();
        ["f32", "f16", "Q8_0"].map(|n| only.read(n).unwrap().to_device(&cpu()).unwrap())
    };
    assert_eq!(state[2].shape(), [3, 64]);
}

/// Bytes that are cut off or changed give an error or other tensors, within the time and memory that the file's size explains.
#[test]
fn damaged_files_are_refused() {
    let path = std::env::temp_dir().join(format!("trefoil-foreign-{}", std::process::id()));
    let read = |bytes: &[u8]| -> Result<(), NnError> {
        std::fs::write(&path, bytes).unwrap();
        let file = StateFile::open(&path)?;
        file.names().map(str::to_string).collect::<Vec<_>>().iter().for_each(|n| drop(file.read(n)));
        Ok(())
    };
    let mut refused = 0;
    for name in ["nested_protocol4.pt", "weights.gguf"] {
        let whole = std::fs::read(fixture(name)).unwrap();
        // The end of a file is padding, or a tensor of a type whose size is not known.
        for cut in (0..whole.len() - 256).step_by(97) {
            let e = read(&whole[..cut]).expect_err(name);
            assert!(e.to_string().contains("trefoil-foreign"), "{e}");
        }
        for at in (0..whole.len()).step_by(11) {
            for new in [whole[at] ^ 0x80, 0xff] {
                let mut bytes = whole.clone();
                bytes[at] = new;
                refused += usize::from(read(&bytes).is_err());
            }
        }
    }
    assert!(refused > 200, "{refused}");
    let _ = std::fs::remove_file(&path);
}
