//! Sequences of different lengths: a bidirectional GRU learns to tell whether brackets match.
//!
//!     TREFOIL_BACKEND=cpu cargo run --release -p trefoil-nn --example sequence_gru
//!
//! Every sequence is made here. Half of them match, `([]())[]`; in the other half two brackets of a matching one changed places so that it
//! does not match any more, `([](]))[`. Counting does not tell them apart. The training loop is written out: it is what a `Trainer` does.

mod common;

use common::{Outcome, Steady, device, learned};
use trefoil::ops::random::Rng;
use trefoil_nn::layers::{Bidirectional, Dense, Embedding, Gru};
use trefoil_nn::metrics::Totals;
use trefoil_nn::{
    CrossEntropyLoss, Device, InitContext, Layer, LayerExt, Optimizer, Result, Tensor, autograd,
    sequence_lengths,
};

const LONGEST: usize = 20;
const BATCH: usize = 64;

/// Sequences as ids `[N, LONGEST]` (0 behind the end), their lengths `[N]` and classes `[N]`, all on the device.
struct Brackets {
    ids: Tensor,
    lengths: Tensor,
    classes: Tensor,
}

impl Brackets {
    fn make(device: &Device, n: usize, seed: u64) -> Result<Self> {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut below = |n: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 33) as usize % n
        };
        let (mut ids, mut lengths, mut classes) = (vec![], vec![], vec![]);
        for i in 0..n {
            let pairs = 2 + below(LONGEST / 2 - 1);
            let (mut text, mut open, mut left) = (vec![], vec![], pairs);
            while text.len() < 2 * pairs {
                if left > 0 && (open.is_empty() || below(2) == 0) {
                    // 1 and 2 open, 3 and 4 close.
                    let kind = 1 + below(2) as i32;
                    open.push(kind + 2);
                    text.push(kind);
                    left -= 1;
                } else {
                    text.extend(open.pop());
                }
            }
            let wanted = i % 2 == 0;
            while matches(&text) != wanted {
                let (a, b) = (below(text.len()), below(text.len()));
                text.swap(a, b);
            }
            lengths.push(text.len());
            classes.push(i64::from(wanted));
            text.resize(LONGEST, 0);
            ids.extend(text);
        }
        Ok(Brackets {
            ids: Tensor::from_slice(device, &ids, &[n, LONGEST])?,
            lengths: sequence_lengths(device, &lengths, LONGEST)?,
            classes: Tensor::from_slice(device, &classes, &[n])?,
        })
    }

    /// The rows of a batch.
    fn rows(&self, at: &Tensor) -> Result<Brackets> {
        let pick = |t: &Tensor| t.index_select(0, at);
        Ok(Brackets { ids: pick(&self.ids)?, lengths: pick(&self.lengths)?, classes: pick(&self.classes)? })
    }
}

/// The answer, by a stack of open brackets.
fn matches(text: &[i32]) -> bool {
    let mut open = vec![];
    let fits = text.iter().all(|&b| match b {
        1 | 2 => {
            open.push(b + 2);
            true
        }
        _ => open.pop() == Some(b),
    });
    fits && open.is_empty()
}

/// Reads a sequence in both directions; the two final states decide.
#[derive(Debug, Layer)]
struct Matcher {
    embedding: Embedding,
    gru: Bidirectional,
    head: Dense,
}

impl Matcher {
    /// What lies behind a row's length is not read: the second direction starts at its last bracket.
    fn logits(&self, b: &Brackets) -> Result<Tensor> {
        let x = self.embedding.forward(&b.ids)?;
        let (_, states) = self.gru.run(&x, &[], Some(&b.lengths))?;
        let both: Vec<&Tensor> = states.iter().map(|s| &s.h).collect();
        self.head.forward(&Tensor::concat(1, &both)?)
    }

    /// Sequences that all have the full length.
    fn forward(&self, ids: &Tensor) -> Result<Tensor> {
        let n = ids.shape()[0];
        let (lengths, classes) = (sequence_lengths(ids.device(), &vec![LONGEST; n], LONGEST)?, ids.detach());
        self.logits(&Brackets { ids: ids.clone(), lengths, classes })
    }
}

fn main() -> Outcome {
    let device = device()?;
    let (n, epochs) = (4096, 20);
    let (train, test) = (Brackets::make(&device, n, 1)?, Brackets::make(&device, 1024, 2)?);
    let cx = InitContext::new(&device, 1);
    let model = Matcher {
        embedding: Embedding::new(&cx, 5, 8)?,
        gru: Gru::new(&cx, 8, 32)?.bidirectional()?,
        head: Dense::new(&cx, 64, 2)?,
    };
    println!("{} parameters", model.num_parameters());
    let mut optimizer = Optimizer::adam(&model, 1e-2)?;
    let steady = Steady::new(&device, (n / BATCH) as u64 + 1);
    let mut totals = Totals::new(&device)?;
    let mut accuracy = 0.0;
    for epoch in 0..epochs {
        // The learning rate falls in a straight line; the order is a permutation drawn on the device.
        optimizer.set_lr(1e-2 * (1.0 - epoch as f64 / epochs as f64))?;
        let order = Tensor::permutation(&device, n, Rng::new(1).at(epoch, 0))?;
        totals.reset()?;
        for step in 0..n / BATCH {
            let b = train.rows(&order.narrow(0, step * BATCH, BATCH)?)?;
            optimizer.zero_grad()?;
            let logits = model.logits(&b)?;
            let loss = CrossEntropyLoss::default().forward(&logits, &b.classes)?;
            loss.backward()?;
            optimizer.clip_grad_norm(1.0, 2.0)?;
            optimizer.step()?;
            totals.add(&loss, BATCH, Some((&logits, &b.classes)))?;
            steady.step();
        }
        let trained = totals.read()?;
        totals.reset()?;
        autograd::no_grad(|| {
            let logits = model.logits(&test)?;
            let loss = CrossEntropyLoss::default().forward(&logits, &test.classes)?;
            totals.add(&loss, 1024, Some((&logits, &test.classes)))
        })?;
        accuracy = totals.read()?.accuracy.unwrap_or(0.0);
        println!("epoch {:>2}  loss {:.4}  test accuracy {accuracy:.4}", epoch + 1, trained.loss);
        steady.pause();
    }
    steady.finish();
    learned(format!("test accuracy {accuracy:.4}, at least 0.95 wanted"), accuracy >= 0.95)
}
