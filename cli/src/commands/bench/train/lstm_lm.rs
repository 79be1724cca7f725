//! A language model with an LSTM.

use trefoil_bench::Case;
use trefoil_nn::layers::{Dense, Embedding, Lstm};
use trefoil_nn::{Device, InitContext, Layer, Result, Tensor, Visitor};

use super::{ADAM, Training, sequences};
use crate::error::Result as CliResult;

/// Embedding, LSTM, distribution of the next token.
#[derive(Debug)]
pub(super) struct LstmLm {
    table: Embedding,
    lstm: Lstm,
    head: Dense,
}

impl Layer for LstmLm {
    /// Ids `[B, T]` to logits `[B T, V]`.
    fn forward(&self, ids: &Tensor) -> Result<Tensor> {
        let h = self.lstm.forward(&self.table.forward(ids)?)?;
        let width = h.shape().last().copied().unwrap_or(0);
        self.head.forward(&h.reshape(&[ids.numel(), width])?)
    }

    fn visit(&self, v: &mut Visitor<'_>) {
        v.child("e", &self.table);
        v.child("r", &self.lstm);
        v.child("o", &self.head);
    }
}

pub(super) fn lstm_lm(c: &Case, d: &Device) -> CliResult<Training<LstmLm>> {
    let (vocab, width, layers, b, t) =
        (c.size("vocab")?, c.size("d")?, c.size("layers")?, c.size("b")?, c.size("t")?);
    let cx = InitContext::new(d, 1).dtype(c.dtype()?);
    let model = LstmLm {
        table: Embedding::new(&cx, vocab, width)?,
        lstm: Lstm::new(&cx, width, width)?.num_layers(layers)?.precision(c.precision()),
        head: Dense::new(&cx, width, vocab)?.precision(c.precision()),
    };
    let flops = 6.0 * (b * t) as f64 * (layers * 8 * width * width + vocab * width) as f64;
    Training::new(c, model, ADAM, 1e-3, sequences(d, b, t, vocab)?, flops)
}
