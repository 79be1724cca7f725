//! A network trained elsewhere: weights that PyTorch saved, loaded without renaming anything.
//!
//!     TREFOIL_BACKEND=cpu cargo run --release -p trefoil-nn --example pytorch_weights
//!
//! `data/pytorch_weights.py` wrote the file: the state of a small network, an input, PyTorch's output for it, and the losses of ten steps
//! of AdamW from there. Here the same network gives the same output and, trained on, the same losses.

mod common;

use common::{Outcome, Steady, device, learned};
use trefoil::DType;
use trefoil_nn::layers::{
    BatchNormalization, Bidirectional, Convolutional, Dense, Gru, LayerNormalization, MultiHeadAttention,
};
use trefoil_nn::state_file::{LoadOptions, NameMap};
use trefoil_nn::{CrossEntropyLoss, InitContext, Layer, LayerExt, Optimizer, Result, StateFile, Tensor};

/// Convolution, the rows of the image as a sequence for a bidirectional GRU, attention among them, a mean, a decision.
#[derive(Debug, Layer)]
struct Net {
    conv: Convolutional,
    norm: BatchNormalization,
    gru: Bidirectional,
    attention: MultiHeadAttention,
    scale: LayerNormalization,
    head: Dense,
}

impl Net {
    fn new(cx: &InitContext) -> Result<Self> {
        Ok(Net {
            conv: Convolutional::new(cx, 1, 4, 3)?.padding(1),
            norm: BatchNormalization::new(cx, 4)?,
            gru: Gru::new(cx, 32, 12)?.bidirectional()?,
            attention: MultiHeadAttention::new(cx, 24, 4)?,
            scale: LayerNormalization::new(cx, &[24])?,
            head: Dense::new(cx, 24, 10)?,
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let x = self.norm.forward(&self.conv.forward(x)?)?.relu()?;
        let x = self.gru.forward(&x.transpose(1, 2)?.flatten(2, 3)?)?;
        let x = self.scale.forward(&self.attention.forward(&x)?.add(&x)?)?;
        self.head.forward(&x.mean_axes(&[1], false)?)
    }
}

/// Largest distance between two lists of numbers.
fn distance(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

fn main() -> Outcome {
    let device = device()?;
    let file =
        StateFile::open(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/data/pytorch_weights.safetensors"))?;
    println!("{} tensors of PyTorch {}", file.names().count(), file.metadata()["pytorch"]);

    // Strict: every tensor of the model, none beside it, in its shape and dtype. The example's own tensors are left out by their prefix.
    let model = Net::new(&InitContext::new(&device, 1))?;
    let report = file.load(&model, &LoadOptions::new().names(NameMap::new().drop("example.")))?;
    println!("loaded {}, {} parameters", report.loaded.len(), model.num_parameters());

    let x = file.read("example.input")?.to_device(&device)?;
    let classes = file.read("example.classes")?.to_device(&device)?;
    let (output, losses) = (file.read("example.output")?, file.read("example.losses")?.to_vec::<f32>()?);
    model.eval();
    let apart = distance(&model.forward(&x)?.to_vec::<f32>()?, &output.to_vec::<f32>()?);
    println!("the output differs by {apart:.1e} from PyTorch's");
    assert!(apart < 1e-4);

    // Trained on from there; the losses stay on the device until the end. Whatever comes after the ten known steps only has to be quiet.
    model.train();
    let mut optimizer = Optimizer::adamw(&model, 1e-2, 0.01)?;
    let steady = Steady::new(&device, 3);
    let own = Tensor::zeros(&device, DType::F32, &[30])?;
    for step in 0..30 {
        optimizer.zero_grad()?;
        let loss = CrossEntropyLoss::default().forward(&model.forward(&x)?, &classes)?;
        loss.backward()?;
        optimizer.step()?;
        own.select(0, step)?.assign(&loss.detach())?;
        steady.step();
    }
    steady.finish();
    let own = own.to_vec::<f32>()?;
    for (step, (a, b)) in own.iter().zip(&losses).enumerate() {
        println!("step {:>2}  loss {a:.6}, in PyTorch {b:.6}", step + 1);
    }
    let apart = distance(&own[..losses.len()], &losses);
    let (first, last) = (own[0], own[29]);
    assert!(last < 0.2 * first, "from {first} to {last}");
    learned(format!("ten losses differ by at most {apart:.1e} from PyTorch's, 1e-3 allowed"), apart < 1e-3)
}
