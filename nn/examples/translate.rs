//! Translation by a transformer: from a small piece of English to an invented language, learned from pairs of sentences alone.
//!
//!     TREFOIL_BACKEND=cpu cargo run --release -p trefoil-nn --example translate
//!
//! The invented language puts the verb last and adjectives behind their nouns; articles and adjectives agree with the noun in gender and
//! number, the verb with its subject. There are some 115,000 such sentences; the network sees 3,000 of them and is tested on others, where
//! only a translation without any error counts.

mod common;

use common::{Outcome, Steady, device, learned};
use std::collections::{BTreeSet, HashSet};
use trefoil::DType;
use trefoil::ops::activation::Activation;
use trefoil::ops::loss::CrossEntropy;
use trefoil::ops::random::Rng;
use trefoil_nn::layers::{
    AttentionMasks, Dense, Embedding, PositionalEncoding, TransformerConfig, TransformerDecoder,
    TransformerEncoder,
};
use trefoil_nn::{
    CrossEntropyLoss, Device, Init, InitContext, Layer, LayerExt, Optimizer, Result, Tensor, autograd,
};

/// Nothing: fills up short sentences. Words have ids from 3 on.
const PAD: i64 = 0;
/// Stands before a translation.
const BEGIN: i64 = 1;
/// Stands behind a sentence.
const END: i64 = 2;
/// Words of the longest sentences, end included.
const LENGTH: usize = 10;

/// A noun phrase in both languages, and whether it is plural.
fn phrase(below: &mut impl FnMut(usize) -> usize) -> (String, String, bool) {
    // English, invented, and whether it is feminine.
    let nouns = [("cat", "mirko", 0), ("dog", "tuvo", 0), ("bird", "pela", 1), ("fox", "zora", 1)];
    let nouns = [&nouns[..], &[("girl", "lin", 1), ("king", "rast", 0)]].concat();
    let adjectives = [("", ""), ("big", "gran"), ("small", "pet"), ("old", "vel"), ("red", "ruv")];
    let ((noun, own, feminine), adjective) = (nouns[below(6)], adjectives[below(5)]);
    let (plural, definite) = (below(2) == 1, below(2) == 1);
    let s = if plural { "s" } else { "" };
    let ending = format!("{}{s}", ["o", "a"][feminine]);
    let article = if definite { "the" } else { ["a", "some"][usize::from(plural)] };
    let own_article = format!("{}{ending}", if definite { "l" } else { "un" });
    let (before, after) = match adjective {
        ("", _) => (String::new(), String::new()),
        (word, stem) => (format!("{word} "), format!(" {stem}{ending}")),
    };
    (format!("{article} {before}{noun}{s}"), format!("{own_article} {own}{s}{after}"), plural)
}

/// A sentence in both languages.
fn sentence(below: &mut impl FnMut(usize) -> usize) -> (String, String) {
    let (verb, stem) = [("see", "vid"), ("hear", "aud"), ("follow", "seg"), ("like", "gust")][below(4)];
    let ((subject, own_subject, plural), (object, own_object, _)) = (phrase(below), phrase(below));
    let ending = if plural { "ent" } else { "et" };
    let (verb, not) = match (below(2) == 1, plural) {
        (true, false) => (format!("does not {verb}"), "no "),
        (true, true) => (format!("do not {verb}"), "no "),
        (false, false) => (format!("{verb}s"), ""),
        (false, true) => (verb.to_string(), ""),
    };
    (format!("{subject} {verb} {object}"), format!("{own_subject} {own_object} {not}{stem}{ending}"))
}

/// The words of a language; a word's id is its position plus 3.
struct Words(Vec<String>);

impl Words {
    fn of<'a>(sentences: impl Iterator<Item = &'a String>) -> Self {
        let all: BTreeSet<&str> = sentences.flat_map(|s| s.split(' ')).collect();
        Words(all.into_iter().map(String::from).collect())
    }

    fn size(&self) -> usize {
        self.0.len() + 3
    }

    /// Ids `[N, LENGTH]`: the words, the end, nothing.
    fn encode(&self, device: &Device, sentences: &[String]) -> Result<Tensor> {
        let row = |s: &String| -> Vec<i64> {
            let id = |w: &str| self.0.binary_search_by(|v| v.as_str().cmp(w)).map_or(PAD, |i| i as i64 + 3);
            s.split(' ').map(id).chain([END]).chain(std::iter::repeat(PAD)).take(LENGTH).collect()
        };
        let ids: Vec<i64> = sentences.iter().flat_map(row).collect();
        Tensor::from_slice(device, &ids, &[sentences.len(), LENGTH])
    }

    fn decode(&self, ids: &[i64]) -> String {
        let words = ids.iter().take_while(|&&i| i != END);
        let word = |&i: &i64| self.0.get((i - 3) as usize).map_or("?", String::as_str);
        words.map(word).collect::<Vec<_>>().join(" ")
    }
}

/// An encoder block over the source, a decoder block over what is translated so far.
#[derive(Debug, Layer)]
struct Translator {
    source: Embedding,
    target: Embedding,
    positions: PositionalEncoding,
    encoder: TransformerEncoder,
    decoder: TransformerDecoder,
    head: Dense,
    #[layer(skip)]
    pad: Tensor,
}

impl Translator {
    fn new(cx: &InitContext, width: usize, source: usize, target: usize) -> Result<Self> {
        let config = TransformerConfig::new(width, 4)
            .d_ff(2 * width)
            .dropout(0.0)
            .activation(Activation::Relu)
            .norm_first();
        let small = Init::Normal { mean: 0.0, std: 0.5 };
        Ok(Translator {
            source: Embedding::new(cx, source, width)?.init(cx, small)?,
            target: Embedding::new(cx, target, width)?.init(cx, small)?,
            positions: PositionalEncoding::new(cx, width, LENGTH)?,
            encoder: TransformerEncoder::new(cx, &config)?,
            decoder: TransformerDecoder::new(cx, &config)?,
            head: Dense::new(cx, width, target)?,
            pad: Tensor::full(cx.device(), DType::I64, &[1], PAD as f64)?,
        })
    }

    /// The source as the decoder reads it, with the mask of its empty places.
    fn encode(&self, source: &Tensor) -> Result<(Tensor, AttentionMasks)> {
        let masks = AttentionMasks::new().key_padding_mask(source.eq(&self.pad)?);
        let x = self.positions.forward(&self.source.forward(source)?)?;
        Ok((self.encoder.encode(&x, &masks)?, masks))
    }

    /// Logits `[B, V, T]` of the word after each of `target` `[B, T]`.
    fn decode(&self, target: &Tensor, (memory, masks): &(Tensor, AttentionMasks)) -> Result<Tensor> {
        let x = self.positions.forward(&self.target.forward(target)?)?;
        let x = self.decoder.decode(&x, memory, &AttentionMasks::new().causal(), masks)?;
        self.head.forward(&x)?.transpose(1, 2)
    }

    /// Translations: the likeliest word at every step, all sentences at once, `[B, LENGTH]`.
    fn forward(&self, source: &Tensor) -> Result<Tensor> {
        let n = source.shape()[0];
        let memory = self.encode(source)?;
        let mut words = Tensor::full(source.device(), DType::I64, &[n, 1], BEGIN as f64)?;
        for t in 0..LENGTH {
            let next = self.decode(&words, &memory)?.select(2, t)?.argmax(1)?;
            words = Tensor::concat(1, &[&words, &next.reshape(&[n, 1])?])?;
        }
        words.narrow(1, 1, LENGTH)
    }
}

fn main() -> Outcome {
    let device = device()?;
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut below = |n: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 33) as usize % n
    };
    let (n, tests, batch, epochs) = (3000, 300, 60, 8);
    // All different: no test sentence is one of those learned from.
    let mut seen = HashSet::new();
    let pairs = std::iter::repeat_with(|| sentence(&mut below)).filter(|p| seen.insert(p.0.clone()));
    let (english, own): (Vec<String>, Vec<String>) = pairs.take(n + tests).unzip();
    let (from, to) = (Words::of(english.iter()), Words::of(own.iter()));
    let (sources, targets) = (from.encode(&device, &english)?, to.encode(&device, &own)?);

    let model = Translator::new(&InitContext::new(&device, 1), 64, from.size(), to.size())?;
    println!("{} and {} words, {} parameters", from.size(), to.size(), model.num_parameters());
    let mut optimizer = Optimizer::adamw(&model, 0.0, 0.01)?;
    let loss = CrossEntropyLoss { options: CrossEntropy::new().ignore_index(PAD), weight: None };
    let (steps, started) = (n / batch, std::time::Instant::now());
    let steady = Steady::new(&device, steps as u64 + 1);
    for epoch in 0..epochs {
        let order = Tensor::permutation(&device, n, Rng::new(1).at(epoch, 0))?;
        let mut last = None;
        for step in 0..steps {
            // The learning rate rises for the first 40 steps and falls from there on.
            let t = optimizer.steps() as f64 / (epochs as f64 * steps as f64);
            optimizer.set_lr(4e-3 * (1.0 - t) * (optimizer.steps() as f64 / 40.0).min(1.0))?;
            let at = order.narrow(0, step * batch, batch)?;
            let (x, y) = (sources.index_select(0, &at)?, targets.index_select(0, &at)?);
            // The decoder reads the right words up to each place: the target, one place later, behind the beginning.
            let begin = Tensor::full(&device, DType::I64, &[batch, 1], BEGIN as f64)?;
            let before = Tensor::concat(1, &[&begin, &y.narrow(1, 0, LENGTH - 1)?])?;
            optimizer.zero_grad()?;
            let l = loss.forward(&model.decode(&before, &model.encode(&x)?)?, &y)?;
            l.backward()?;
            optimizer.clip_grad_norm(1.0, 2.0)?;
            optimizer.step()?;
            last = Some(l.detach());
            steady.step();
        }
        let seconds = started.elapsed().as_secs_f64();
        let value = last.map_or(Ok(f32::NAN), |l| l.item::<f32>())?;
        println!("epoch {:>2}  {seconds:5.1} s  loss {value:.4}", epoch + 1);
        steady.pause();
    }
    steady.finish();

    let answers = autograd::no_grad(|| model.forward(&sources.narrow(0, n, tests)?))?.to_vec::<i64>()?;
    let answers: Vec<String> = answers.chunks(LENGTH).map(|ids| to.decode(ids)).collect();
    for i in 0..3 {
        println!("{}\n    {}", english[n + i], answers[i]);
    }
    let right = answers.iter().zip(&own[n..]).filter(|(a, b)| a == b).count() as f64 / tests as f64;
    learned(format!("{:.1} % translated without an error, at least 90 % wanted", 100.0 * right), right >= 0.9)
}
