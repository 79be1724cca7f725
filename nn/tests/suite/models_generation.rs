//! Decoding with caches, greedy and sampled generation of language models.

use crate::common::everywhere::{resident, values};
use crate::common::layers::refused;
use crate::common::{close, cpu, devices, id, steps_on};
use trefoil_nn::layers::{KvCache, RecurrentState};
use trefoil_nn::models::*;
use trefoil_nn::{Device, Init, InitContext, Layer, LayerExt, NnError, Result, Tensor};

/// A small model with a cache.
fn llama(d: &Device) -> Llama {
    let config = LlamaConfig {
        vocab_size: 13,
        hidden_size: 16,
        intermediate_size: 20,
        num_hidden_layers: 2,
        num_attention_heads: 4,
        num_key_value_heads: 2,
        max_position_embeddings: 40,
        initializer_range: 0.4,
        ..LlamaConfig::llama2_7b()
    };
    Llama::new(&InitContext::new(d, 5), &config).unwrap()
}

fn gpt2(d: &Device) -> Gpt2 {
    let config = Gpt2Config {
        vocab_size: 13,
        n_positions: 40,
        n_embd: 16,
        n_layer: 2,
        n_head: 2,
        n_inner: 20,
        initializer_range: 0.4,
        ..Gpt2Config::small()
    };
    let model = Gpt2::new(&InitContext::new(d, 5), &config).unwrap();
    model.eval();
    model
}

fn mamba(d: &Device) -> MambaLanguageModel {
    let config = MambaConfig {
        vocab_size: 13,
        hidden_size: 16,
        state_size: 4,
        num_hidden_layers: 2,
        initializer_range: 0.5,
        ..MambaConfig::mamba_130m()
    };
    MambaLanguageModel::new(&InitContext::new(d, 5), &config).unwrap()
}

fn lstm(d: &Device, spread: f64) -> LstmLanguageModel {
    let config = LstmLanguageModelConfig {
        vocab_size: 13,
        embedding_dim: 8,
        hidden_size: 8,
        num_layers: 2,
        dropout: 0.5,
        tie_weights: false,
    };
    let cx = InitContext::new(d, 3);
    let model = LstmLanguageModel::new(&cx, &config).unwrap();
    let table = Init::Normal { mean: 0.0, std: spread };
    let decoder = model.named_parameters().into_iter().find(|(n, _)| n == "decoder.weight").unwrap().1;
    decoder.set(table.tensor(&cx, &[13, 8], 8, 13).unwrap());
    model.eval();
    model
}

fn ids(d: &Device, rows: usize, columns: usize) -> Tensor {
    let data: Vec<i64> = (0..rows * columns).map(|i| (i * i + 3 * i) as i64 % 13).collect();
    Tensor::from_slice(d, &data, &[rows, columns]).unwrap()
}

/// The likeliest token of each row, from logits of the whole text.
fn continued_without_a_cache(model: &dyn Layer, prompt: &Tensor, n: usize) -> Tensor {
    (0..n).fold(prompt.clone(), |text, _| {
        let logits = model.forward(&text).unwrap();
        let next = logits.select(1, text.shape()[1] - 1).unwrap().argmax(-1).unwrap();
        Tensor::concat(1, &[&text, &next.unsqueeze(1).unwrap()]).unwrap()
    })
}

#[test]
fn decoding_with_a_cache_is_the_same_as_without() {
    type Cached<'a> = &'a dyn Fn(&Tensor, &mut KvCache) -> Result<Tensor>;
    fn check(what: &str, d: &Device, model: &dyn Layer, cached: Cached<'_>, cache: impl Fn() -> KvCache) {
        let text = ids(d, 2, 37);
        let want = values(&model.forward(&text).unwrap());
        for sizes in [&[37][..], &[20, 1, 1, 15]] {
            let mut all = cache();
            let parts: Vec<Tensor> =
                text.split(1, sizes).unwrap().iter().map(|t| cached(t, &mut all).unwrap()).collect();
            let got = Tensor::concat(1, &parts.iter().collect::<Vec<_>>()).unwrap();
            assert!(!got.requires_grad() && all.len() == 37);
            close(&values(&got), &want, 1e-4, what);
            // No room for four more, and nothing has changed after that.
            assert!(cached(&ids(d, 2, 4), &mut all).is_err(), "{what}");
            assert_eq!(all.len(), 37);
            resident(what, d, || cached(&text.narrow(1, 0, 1).unwrap(), &mut all).map(drop)).unwrap();
        }
    }
    for d in devices() {
        let (g, l) = (gpt2(&d), llama(&d));
        check("GPT-2", &d, &g, &|t, c| g.forward_cached(t, c), || g.cache().unwrap());
        check("Llama", &d, &l, &|t, c| l.forward_cached(t, c), || l.cache().unwrap());
    }
    let model = llama(&cpu());
    let mut cache = model.cache().unwrap();
    let full = model.forward_cached(&ids(&cpu(), 1, 41), &mut cache);
    let Err(e) = full else { panic!("41 of 40 tokens") };
    assert!(matches!(e.root(), NnError::CacheFull { max_len: 40, held: 0, new: 41 }), "{e}");
    model.forward_cached(&ids(&cpu(), 2, 3), &mut cache).unwrap();
    refused(model.forward_cached(&ids(&cpu(), 1, 3), &mut cache), &["KvCache", "as before"]);
    refused(
        model.forward_cached(&ids(&cpu(), 2, 3), &mut KvCache::new(1, 9).unwrap()),
        &["KvCache", "layer"],
    );
    refused(model.forward(&ids(&cpu(), 2, 3).select(0, 0).unwrap()), &["Llama", "ids", "[B, T]"]);
    refused(gpt2(&cpu()).forward(&ids(&cpu(), 1, 41)), &["PositionalEmbedding", "40"]);
}

#[test]
fn decoding_with_a_state_is_the_same_as_without() {
    for d in devices() {
        let (model, text) = (mamba(&d), ids(&d, 2, 37));
        let want = values(&model.forward(&text).unwrap());
        for sizes in [&[37][..], &[1; 37], &[20, 1, 1, 15]] {
            let mut state = model.state().unwrap();
            let parts: Vec<Tensor> = text.split(1, sizes).unwrap();
            let parts: Vec<Tensor> =
                parts.iter().map(|t| model.forward_with_state(t, &mut state).unwrap()).collect();
            let got = Tensor::concat(1, &parts.iter().collect::<Vec<_>>()).unwrap();
            assert!(!got.requires_grad() && state.len() == 37);
            close(&values(&got), &want, 1e-4, "Mamba");
            let one = text.narrow(1, 0, 1).unwrap();
            resident("Mamba", &d, || model.forward_with_state(&one, &mut state).map(drop)).unwrap();
        }
    }
    let (model, text) = (mamba(&cpu()), ids(&cpu(), 2, 5));
    let mut state = model.state().unwrap();
    model.forward_with_state(&text, &mut state).unwrap();
    refused(model.forward_with_state(&ids(&cpu(), 1, 3), &mut state), &["RecurrentState", "batch of 2"]);
    let mut short = RecurrentState::new(1).unwrap();
    refused(model.forward_with_state(&text, &mut short), &["RecurrentState", "layer", "below 1"]);
    assert!(short.is_empty() && state.len() == 5, "as before the errors");
}

#[test]
fn greedy_generation_takes_the_likeliest_token() {
    let d = cpu();
    let prompt = ids(&d, 3, 4);
    let (gpt2, llama, lstm, mamba) = (gpt2(&d), llama(&d), lstm(&d, 0.3), mamba(&d));
    let want = [&gpt2 as &dyn Layer, &llama, &lstm, &mamba]
        .map(|m| values(&continued_without_a_cache(m, &prompt, 12)));
    let options = Generation::greedy(12);
    let got = [
        gpt2.generate(&prompt, &options),
        llama.generate(&prompt, &options),
        lstm.generate(&prompt, &options),
        mamba.generate(&prompt, &options),
    ];
    assert_eq!(got.map(|t| values(&t.unwrap())), want);

    // A row ends with its token 5; then it repeats it, until all have ended.
    let one = prompt.narrow(0, 0, 1).unwrap();
    let plain = llama.generate(&one, &options).unwrap().to_vec::<i64>().unwrap();
    let eos = plain[5];
    let end = 4 + plain[4..].iter().position(|&t| t == eos).unwrap();
    let short = llama.generate(&one, &options.clone().eos_token_id(eos)).unwrap().to_vec::<i64>().unwrap();
    assert_eq!(short, plain[..=end]);
    let all = llama.generate(&prompt, &options.clone().eos_token_id(eos)).unwrap();
    let (len, all) = (all.shape()[1], all.to_vec::<i64>().unwrap());
    let whole = llama.generate(&prompt, &options).unwrap().to_vec::<i64>().unwrap();
    for (row, free) in all.chunks(len).zip(whole.chunks(16)) {
        let end = free[4..].iter().position(|&t| t == eos).map_or(16, |i| i + 5).min(len);
        assert_eq!(row[..end], free[..end]);
        assert!(row[end..].iter().all(|&t| t == eos), "{row:?}");
    }

    refused(llama.generate(&prompt, &Generation::greedy(37)), &["max_new_tokens", "40"]);
    refused(llama.generate(&prompt.narrow(1, 0, 0).unwrap(), &options), &["prompt", "at least one token"]);
    refused(llama.generate(&prompt, &Generation::sampled(1, 1).temperature(0.0)), &["temperature"]);
    refused(llama.generate(&prompt, &Generation::sampled(1, 1).top_k(0)), &["top_k"]);
    refused(llama.generate(&prompt, &Generation::sampled(1, 1).top_p(f64::NAN)), &["top_p"]);
    refused(llama.generate(&prompt, &Generation::sampled(1, 1).min_p(1.5)), &["min_p"]);
    refused(llama.generate(&prompt, &Generation::greedy(1).repetition_penalty(0.0)), &["repetition_penalty"]);
    assert_eq!(values(&llama.generate(&prompt, &Generation::greedy(0)).unwrap()), values(&prompt));
}

/// The distribution that transformers draws from, on the host.
fn filtered(logits: &[f64], seen: &[f64], o: &Generation) -> Vec<f64> {
    let softmax = |x: &[f64]| -> Vec<f64> {
        let e: Vec<f64> = x.iter().map(|v| v.exp()).collect();
        let total: f64 = e.iter().sum();
        e.iter().map(|v| v / total).collect()
    };
    let penalty = |(i, v): (usize, &f64)| match seen.contains(&(i as f64)) {
        true if *v > 0.0 => v / o.repetition_penalty,
        true => v * o.repetition_penalty,
        false => *v,
    };
    let mut x: Vec<f64> = logits.iter().enumerate().map(|x| penalty(x) / o.temperature).collect();
    let mut order: Vec<usize> = (0..x.len()).collect();
    order.sort_by(|&a, &b| x[b].total_cmp(&x[a]));
    for &i in &order[o.top_k.unwrap_or(x.len()).min(x.len())..] {
        x[i] = f64::NEG_INFINITY;
    }
    let p = softmax(&x);
    let mut before = 0.0;
    for &i in &order {
        if before >= o.top_p {
            x[i] = f64::NEG_INFINITY;
        }
        before += p[i];
    }
    let kept = softmax(&x);
    let most = kept.iter().copied().fold(0.0, f64::max);
    x.iter_mut().zip(&kept).filter(|(_, p)| **p < o.min_p * most).for_each(|(x, _)| *x = f64::NEG_INFINITY);
    softmax(&x)
}

#[test]
fn sampled_tokens_follow_the_filtered_distribution() {
    for d in devices() {
        let rows = steps_on(&d, 4000, 200);
        let model = lstm(&d, 2.0);
        let prompt = ids(&d, 1, 3);
        let logits = values(&model.forward(&prompt).unwrap().select(1, 2).unwrap());
        let many = prompt.expand(&[rows, 3]).unwrap().contiguous().unwrap();
        let free = Generation::sampled(1, 7);
        for options in [
            free.clone(),
            free.clone().temperature(0.5),
            free.clone().top_k(3),
            free.clone().top_p(0.7),
            free.clone().temperature(2.0).top_k(6).top_p(0.8),
            free.clone().top_k(100).top_p(1e-9),
            free.clone().min_p(0.3),
            free.clone().repetition_penalty(3.0).top_k(8).min_p(0.05),
        ] {
            let want = filtered(&logits, &values(&prompt), &options);
            let tokens = model.generate(&many, &options).unwrap().select(1, 3).unwrap();
            let mut counts = [0; 13];
            values(&tokens).iter().for_each(|&t| counts[t as usize] += 1);
            for (token, (count, p)) in counts.iter().zip(&want).enumerate() {
                let got = f64::from(*count) / rows as f64;
                // Five standard deviations; what is filtered out never comes.
                let bound = 5.0 * (p * (1.0 - p) / rows as f64).sqrt();
                assert!((got - p).abs() <= bound, "{options:?} on {}: token {token}: {got} of {p}", id(&d));
            }
        }
    }
    // Equal seeds draw the same, each step anew.
    let (model, prompt) = (llama(&cpu()), ids(&cpu(), 2, 3));
    let draw = |seed: u64| values(&model.generate(&prompt, &Generation::sampled(20, seed)).unwrap());
    assert_eq!(draw(1), draw(1));
    assert_ne!(draw(1), draw(2));
}
