//! The text of the language models: its characters as batches on the device, what a table of pairs knows about it, and new text.

use trefoil::DType;
use trefoil_nn::autograd::no_grad;
use trefoil_nn::data::Sampler;
use trefoil_nn::data::text::{Characters, Encoding, ResidentText, Windows, read_text};
use trefoil_nn::{Device, Layer, LayerExt, Result, Tensor};

/// The Jargon File, cut into windows of characters.
pub(crate) struct CharText {
    /// The characters and their ids.
    pub(crate) vocabulary: Characters,
    /// Windows from random places of the first 98 %.
    pub(crate) train: ResidentText,
    /// All windows of the rest.
    pub(crate) test: ResidentText,
    /// Bits per character of the test text by a bigram model of the training text.
    pub(crate) bigram_bits: f64,
    length: usize,
}

impl CharText {
    /// Windows of `length` characters, `draws` of them in an epoch. Floats play no part: ids are integers on the device.
    pub(crate) fn load(device: &Device, length: usize, draws: usize) -> Result<Self> {
        let text = read_text(super::data("jargon.txt"))?;
        let vocabulary = Characters::of(&text);
        let ids = vocabulary.encode(&text)?;
        let (train, test) = ids.split_at(ids.len() / 100 * 98);
        let windows = |ids: &[u32]| Windows::new(ids, length, vocabulary.size());
        let bigram_bits = bigram_bits(train, test, vocabulary.size());
        println!(
            "{} characters, {} different; a bigram model needs {bigram_bits:.3} bits per character",
            ids.len(),
            vocabulary.size()
        );
        Ok(CharText {
            train: ResidentText::new(windows(train)?.step(1)?, device)?
                .sampler(Sampler::Uniform { draws })?,
            test: ResidentText::new(windows(test)?, device)?,
            vocabulary,
            bigram_bits,
            length,
        })
    }

    /// `n` characters after `prompt`, each drawn from the model's probabilities. The model gives logits `[B, V, T]`.
    pub(crate) fn sample(
        &self,
        model: &dyn Layer,
        device: &Device,
        prompt: &str,
        n: usize,
    ) -> Result<String> {
        let mut ids = self.vocabulary.encode(prompt)?;
        let mut random = 0x2545_f491_4f6c_dd1d_u64;
        model.eval();
        for _ in 0..n {
            let seen: Vec<i64> =
                ids[ids.len().saturating_sub(self.length)..].iter().map(|&i| i.into()).collect();
            let x = Tensor::from_slice(device, &seen, &[1, seen.len()])?;
            let p =
                no_grad(|| model.forward(&x)?.select(2, seen.len() - 1)?.to_dtype(DType::F32)?.softmax(-1))?;
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let mut left = (random >> 40) as f32 / (1u64 << 24) as f32;
            let p = p.to_vec::<f32>()?;
            let passed = |p: &f32| {
                left -= p;
                left < 0.0
            };
            ids.push(p.iter().position(passed).unwrap_or(0) as u32);
        }
        self.vocabulary.decode(&ids)
    }
}

/// Mean of -log2 p(b | a) over neighbours of the test text, p from counts of the training text plus a tenth.
fn bigram_bits(train: &[u32], test: &[u32], size: usize) -> f64 {
    let mut counts = vec![0.1; size * size];
    train.windows(2).for_each(|w| counts[w[0] as usize * size + w[1] as usize] += 1.0);
    let bits = |w: &[u32]| {
        let row = &counts[w[0] as usize * size..][..size];
        -(row[w[1] as usize] / row.iter().sum::<f64>()).log2()
    };
    test.windows(2).map(bits).sum::<f64>() / (test.len() - 1) as f64
}
