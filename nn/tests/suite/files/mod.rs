//! Files of other programs: safetensors of PyTorch, NumPy arrays, IDX, images, tokenizers. `files/gen.py` writes the fixtures.

mod arrays;
mod damage;
#[cfg(feature = "images")]
mod images;
mod state;
#[cfg(feature = "tokenizers")]
mod tokenizers;

use std::path::{Path, PathBuf};

use trefoil::ops::activation::Activation;
use trefoil_nn::layers::{Activate, Dense, Sequential};
use trefoil_nn::{DType, Device, HostTensor, InitContext};

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
