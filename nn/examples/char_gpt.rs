//! A language model on characters: a small decoder-only transformer reads the Jargon File.
//!
//!     TREFOIL_BACKEND=cpu cargo run --release -p trefoil-nn --example char_gpt
//!
//! A bigram model, which knows how often each pair of characters occurs, is what there is to beat: the network sees the same first
//! character and up to 63 more. With `-- bf16` or `-- f16` behind the command, parameters and activations have 16 bits.

mod common;

use common::text::CharText;
use common::{Outcome, Steady, device, dtype, learned, mixed, options, show};
use trefoil::ops::activation::Activation;
use trefoil_nn::data::text::Encoding;
use trefoil_nn::layers::{
    AttentionMasks, Dense, Embedding, LayerNormalization, PositionalEncoding, TransformerConfig,
    TransformerEncoder,
};
use trefoil_nn::optim::Schedule;
use trefoil_nn::trainer::{Clip, Objective, TrainOptions};
use trefoil_nn::{CrossEntropyLoss, Init, InitContext, Layer, LayerExt, Optimizer, Result, Tensor, Trainer};

/// Token and position, blocks of causal attention and a feed-forward network, a distribution of the next character at each place.
#[derive(Debug, Layer)]
struct Gpt {
    tokens: Embedding,
    positions: PositionalEncoding,
    blocks: Vec<TransformerEncoder>,
    norm: LayerNormalization,
    head: Dense,
}

impl Gpt {
    fn new(cx: &InitContext, vocabulary: usize, width: usize, length: usize) -> Result<Self> {
        let block = TransformerConfig::new(width, 4)
            .d_ff(4 * width)
            .dropout(0.0)
            .activation(Activation::GeluTanh)
            .norm_first();
        Ok(Gpt {
            tokens: Embedding::new(cx, vocabulary, width)?.init(cx, Init::Normal { mean: 0.0, std: 0.5 })?,
            positions: PositionalEncoding::new(cx, width, length)?,
            blocks: (0..2).map(|_| TransformerEncoder::new(cx, &block)).collect::<Result<_>>()?,
            norm: LayerNormalization::new(cx, &[width])?,
            head: Dense::new(cx, width, vocabulary)?,
        })
    }

    /// Ids `[B, T]` to logits `[B, V, T]`: classes on axis 1, where the cross entropy looks for them.
    fn forward(&self, ids: &Tensor) -> Result<Tensor> {
        let causal = AttentionMasks::new().causal();
        let x = self.positions.forward(&self.tokens.forward(ids)?)?;
        let x = self.blocks.iter().try_fold(x, |x, block| block.encode(&x, &causal))?;
        self.head.forward(&self.norm.forward(&x)?)?.transpose(1, 2)
    }
}

fn main() -> Outcome {
    let (device, dtype) = (device()?, dtype()?);
    let (length, batch, steps, epochs) = (64, 16, 50, 8);
    let text = CharText::load(&device, length, batch * steps)?;
    let model = Gpt::new(&InitContext::new(&device, 1).dtype(dtype), text.vocabulary.size(), 64, length)?;
    println!("{} parameters", model.num_parameters());

    let total = epochs * steps as u64;
    let cosine = Schedule::Cosine { total: total - 20, min: 1e-4 };
    let schedule = Schedule::Warmup { steps: 20, start: 0.05, then: Box::new(cosine) };
    let optimizer = mixed(Optimizer::adamw(&model, 4e-3, 0.1)?, dtype)?;
    let objective = Objective::Classify(CrossEntropyLoss::default());
    let options = TrainOptions { schedule, clip: Some(Clip::Norm(1.0)), ..options(epochs, batch) };
    let steady = Steady::new(&device, steps as u64 + 1);
    let mut trainer = Trainer::new(&model, optimizer, objective, &device, options)?.callback(&steady);
    let report = trainer.fit(&text.train, Some(&text.test), &mut show)?;
    steady.finish();

    println!("\n{}\n", text.sample(&model, &device, "hacker: n.\n\n    ", 300)?);
    let nats = report.history.last().and_then(|s| s.test_loss).ok_or("no epochs")?;
    let bits = nats / std::f64::consts::LN_2;
    let wanted = text.bigram_bits;
    learned(format!("{bits:.3} bits per character, a bigram model has {wanted:.3}"), bits < wanted)
}
