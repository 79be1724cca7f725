//! Files of weights: safetensors, PyTorch, GGUF, checkpoints, shards with their index, and Volta's state.

use std::path::PathBuf;
use std::sync::Arc;

use trefoil::CpuBackend;
use trefoil::ops::activation::Activation;
use trefoil_nn::checkpoint::Checkpoint;
use trefoil_nn::layers::{Dense, Sequential};
use trefoil_nn::state_file::{LoadOptions, NameMap, StateFile};
use trefoil_nn::{Device, InitContext, LayerExt, Optimizer, Result, volta};

use super::scratch::Scratch;
use super::{Generate, Run, Target, Verdict};
use crate::input::{self, Input};

pub(crate) const TARGET: Target = Target {
    name: "state",
    about: "safetensors, files of PyTorch and GGUF, checkpoints, shards and Volta's state: read, and put into a model and its optimizer",
    generate: Generate::Mutations,
    open: || {
        let site = Site::new()?;
        Ok(Box::new(move |input: &Input| Verdict::of(site.run(input))) as Run)
    },
};

struct Site {
    scratch: Scratch,
    device: Device,
}

impl Site {
    fn new() -> Result<Self, String> {
        let scratch = Scratch::new("state")?;
        let shards =
            std::fs::read_dir(input::folder(TARGET.name).join("shards")).map_err(|e| e.to_string())?;
        for shard in shards {
            let shard = shard.map_err(|e| e.to_string())?;
            std::fs::copy(shard.path(), scratch.path().join(shard.file_name())).map_err(|e| e.to_string())?;
        }
        Ok(Site { scratch, device: Arc::new(CpuBackend::new()) })
    }

    fn run(&self, input: &Input) -> Result<()> {
        match input.kind.as_str() {
            "json" => self.state(self.scratch.write("model.safetensors.index.json", &input.bytes)),
            "safetensors" => {
                let path = self.scratch.write("input.safetensors", &input.bytes);
                let checkpoint = self.checkpoint(&path);
                self.state(path).and(checkpoint)
            }
            // What the first bytes are decides, not the name.
            "pt" | "gguf" => self.state(self.scratch.write("input.pt", &input.bytes)),
            _ => volta::read_state(self.scratch.write("input.bin", &input.bytes), &self.device).map(drop),
        }
    }

    fn model(&self) -> Result<Sequential> {
        let cx = InitContext::new(&self.device, 1);
        Ok(Sequential::new()
            .push(Dense::new(&cx, 3, 5)?.activation(Activation::Relu))
            .push(Dense::new(&cx, 5, 2)?))
    }

    /// Reads every tensor and puts what fits into a model.
    fn state(&self, path: PathBuf) -> Result<()> {
        let file = StateFile::open(path)?;
        for name in file.names() {
            // A type that the library does not have is an error of this tensor alone.
            if let Ok(t) = file.read(name) {
                assert_eq!(t.bytes.len(), t.numel() * t.dtype.size(), "`{name}` has the bytes of its shape");
            }
        }
        drop(file.state_dict(&self.device));
        let names =
            NameMap::new().prefix("model.", "").rename("2.weight", "1.weight").rename("2.bias", "1.bias");
        file.load(&self.model()?, &LoadOptions::new().partial().convert().names(names)).map(drop)
    }

    /// Reads a checkpoint and restores a model and its optimizer; an error leaves both as they were.
    fn checkpoint(&self, path: &std::path::Path) -> Result<()> {
        let checkpoint = Checkpoint::load(path)?;
        let model = self.model()?;
        let mut optimizer = Optimizer::adam(&model, 0.01)?;
        let before = weights(&model)?;
        let done = checkpoint.restore(&model, Some(&mut optimizer));
        if done.is_err() {
            assert!(before == weights(&model)?, "a refused checkpoint leaves the model alone");
        }
        done
    }
}

fn weights(model: &Sequential) -> Result<Vec<Vec<u8>>> {
    model.named_state().iter().map(|(_, p)| p.get().to_bytes()).collect()
}
