//! Spans in sequences of words: a conditional random field beside a softmax for each word, both with the same scores of words.
//!
//!     TREFOIL_BACKEND=cpu cargo run --release -p trefoil-nn --example crf_tagger
//!
//! Every sequence is made here. Spans are of two kinds, which the word at their beginning tells; the words inside look alike for both kinds,
//! and some words are any. A softmax sees one word at a time and can only guess inside a span. The field learns which tag follows which,
//! and decoding finds the best tags of a whole sequence under the rules of the scheme B-I-O.

mod common;

use common::{Outcome, Steady, device, learned};
use trefoil::DType;
use trefoil_nn::layers::{ConditionalRandomField, Embedding, TagScheme};
use trefoil_nn::{
    CrossEntropyLoss, Device, InitContext, Layer, LayerExt, Optimizer, Result, Tensor, autograd,
};

const TAGS: [&str; 5] = ["O", "B-x", "I-x", "B-y", "I-y"];
const WORDS: usize = 20;
const LONGEST: usize = 16;
/// The tag behind the end of a sequence, which the loss of the softmax leaves out; the field has a mask.
const NONE: i64 = -100;

/// Words and tags `[N, LONGEST]`, and which of them count.
struct Sentences {
    words: Tensor,
    tags: Tensor,
    mask: Tensor,
}

impl Sentences {
    fn make(device: &Device, n: usize, seed: u64) -> Result<Self> {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut below = |n: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 33) as usize % n
        };
        let (mut words, mut tags, mut mask) = (vec![], vec![], vec![]);
        for _ in 0..n {
            let (length, mut sentence) = (6 + below(LONGEST - 5), vec![]);
            while sentence.len() < length {
                if below(2) == 0 {
                    sentence.push(0);
                } else {
                    let kind = 2 * below(2) as i64;
                    sentence.push(1 + kind);
                    sentence.extend(vec![2 + kind; 1 + below(3)]);
                }
            }
            sentence.truncate(length);
            for tag in &sentence {
                // Five words begin a span of each kind, five are inside of both, five outside.
                let group = [0, 1, 2, 3, 2][*tag as usize];
                let any = below(10) == 0;
                words.push(if any { below(WORDS) } else { 5 * group + below(5) } as i64);
            }
            sentence.resize(LONGEST, NONE);
            words.resize(words.len() + LONGEST - length, 0);
            mask.extend((0..LONGEST).map(|t| u8::from(t < length)));
            tags.extend(sentence);
        }
        let shape = [n, LONGEST];
        Ok(Sentences {
            words: Tensor::from_slice(device, &words, &shape)?,
            tags: Tensor::from_slice(device, &tags, &shape)?,
            mask: Tensor::from_slice(device, &mask, &shape)?,
        })
    }

    fn batch(&self, start: usize, n: usize) -> Result<Sentences> {
        let pick = |t: &Tensor| t.narrow(0, start, n)?.contiguous();
        Ok(Sentences { words: pick(&self.words)?, tags: pick(&self.tags)?, mask: pick(&self.mask)? })
    }

    /// The share of words with the right tag.
    fn accuracy(&self, found: &Tensor) -> Result<f64> {
        let right = found.eq(&self.tags)?.logical_and(&self.mask)?.to_dtype(DType::F32)?.sum()?;
        Ok(f64::from(right.div(&self.mask.to_dtype(DType::F32)?.sum()?)?.item::<f32>()?))
    }
}

/// Scores of tags for each word, and with a field those of transitions.
#[derive(Debug, Layer)]
struct Tagger {
    scores: Embedding,
    field: Option<ConditionalRandomField>,
}

impl Tagger {
    fn loss(&self, s: &Sentences) -> Result<Tensor> {
        let emissions = self.scores.forward(&s.words)?;
        match &self.field {
            Some(field) => field.neg_log_likelihood(&emissions, &s.tags, Some(&s.mask)),
            None => {
                let rows = s.tags.numel();
                let (emissions, tags) = (emissions.reshape(&[rows, TAGS.len()])?, s.tags.reshape(&[rows])?);
                CrossEntropyLoss::default().forward(&emissions, &tags)
            }
        }
    }

    fn tags(&self, s: &Sentences) -> Result<Tensor> {
        let emissions = self.scores.forward(&s.words)?;
        match &self.field {
            Some(field) => field.decode(&emissions, Some(&s.mask)),
            None => emissions.argmax(-1),
        }
    }

    fn forward(&self, words: &Tensor) -> Result<Tensor> {
        self.scores.forward(words)
    }
}

fn main() -> Outcome {
    let device = device()?;
    let (batch, steps) = (64, 32);
    let train = Sentences::make(&device, batch * steps, 1)?;
    let test = Sentences::make(&device, 512, 2)?;
    let cx = InitContext::new(&device, 1);
    let mut accuracies = vec![];
    for with_field in [false, true] {
        let field = match with_field {
            true => Some(ConditionalRandomField::new(&cx, TAGS.len())?.constraints(TagScheme::Bio, &TAGS)?),
            false => None,
        };
        let model = Tagger { scores: Embedding::new(&cx, WORDS, TAGS.len())?, field };
        println!("{}, {} parameters", if with_field { "field" } else { "softmax" }, model.num_parameters());
        let mut optimizer = Optimizer::adam(&model, 5e-2)?;
        let steady = Steady::new(&device, 3);
        for epoch in 1..=6 {
            let mut loss = 0.0;
            for step in 0..steps {
                optimizer.zero_grad()?;
                let value = model.loss(&train.batch(step * batch, batch)?)?;
                value.backward()?;
                optimizer.step()?;
                steady.step();
                if step + 1 == steps {
                    loss = value.item::<f32>()?;
                }
            }
            println!("epoch {epoch}  loss {loss:.4}");
            steady.pause();
        }
        steady.finish();
        accuracies.push(autograd::no_grad(|| test.accuracy(&model.tags(&test)?))?);
    }
    let [softmax, field] = [accuracies[0], accuracies[1]];
    let figure = format!("words with the right tag: softmax {softmax:.4}, field {field:.4}, 0.1 more wanted");
    learned(figure, field >= softmax + 0.1)
}
