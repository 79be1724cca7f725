//! A recurrent language model on characters: an LSTM reads the Jargon File, as the transformer of `char_gpt.rs` does.
//!
//!     TREFOIL_BACKEND=cpu cargo run --release -p trefoil-nn --example char_lstm
//!
//! A bigram model, which knows how often each pair of characters occurs, is what there is to beat.

mod common;

use common::text::CharText;
use common::{Outcome, Steady, device, learned, options, show};
use trefoil_nn::data::text::Encoding;
use trefoil_nn::layers::{Dense, Embedding, Lstm};
use trefoil_nn::optim::Schedule;
use trefoil_nn::trainer::{Clip, Objective, TrainOptions};
use trefoil_nn::{CrossEntropyLoss, InitContext, Layer, LayerExt, Optimizer, Result, Tensor, Trainer};

/// A vector per character, what has been read so far, a distribution of the next character.
#[derive(Debug, Layer)]
struct CharLstm {
    embedding: Embedding,
    lstm: Lstm,
    head: Dense,
}

impl CharLstm {
    /// Ids `[B, T]` to logits `[B, V, T]`: classes on axis 1, where the cross entropy looks for them.
    fn forward(&self, ids: &Tensor) -> Result<Tensor> {
        let read = self.lstm.forward(&self.embedding.forward(ids)?)?;
        self.head.forward(&read)?.transpose(1, 2)
    }
}

fn main() -> Outcome {
    let device = device()?;
    let (length, batch, steps, epochs) = (64, 16, 50, 8);
    let text = CharText::load(&device, length, batch * steps)?;

    let (cx, vocabulary, hidden) = (InitContext::new(&device, 1), text.vocabulary.size(), 128);
    let model = CharLstm {
        embedding: Embedding::new(&cx, vocabulary, 32)?,
        lstm: Lstm::new(&cx, 32, hidden)?,
        head: Dense::new(&cx, hidden, vocabulary)?,
    };
    println!("{} parameters", model.num_parameters());

    // Recurrent networks want their gradients bounded.
    let schedule = Schedule::Cosine { total: epochs * steps as u64, min: 1e-4 };
    let options = TrainOptions { schedule, clip: Some(Clip::Norm(1.0)), ..options(epochs, batch) };
    let optimizer = Optimizer::adam(&model, 1e-2)?;
    let objective = Objective::Classify(CrossEntropyLoss::default());
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
