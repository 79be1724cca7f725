//! Continuing a text token by token.

use trefoil::DType;
use trefoil::ops::language_model::LogitProcessors;
use trefoil::ops::random::Rng;

use crate::core::autograd::no_grad;
use crate::core::error::{Result, invalid};
use crate::core::tensor::Tensor;
use crate::module::Layer;

/// How a language model continues a text: with the likeliest token each time, or with tokens drawn from its distribution. The choices are
/// those of transformers' `generate` with `do_sample`, `temperature`, `top_k` and `top_p`, applied in this order.
///
/// Tokens are chosen on the device. With an `eos_token_id` the host reads after each token whether all rows have ended.
#[derive(Debug, Clone, PartialEq)]
pub struct Generation {
    /// How many tokens are appended, at most.
    pub max_new_tokens: usize,
    /// Seed of the draws; `None` takes the likeliest token.
    pub seed: Option<u64>,
    /// Divides the logits before a draw.
    pub temperature: f64,
    /// Draws among so many likeliest tokens.
    pub top_k: Option<usize>,
    /// Draws among the likeliest tokens that together have at least this probability (nucleus sampling, Holtzman et al., 2020).
    pub top_p: f64,
    /// Draws among the tokens with at least this share of the largest probability, 0 for all (min-p).
    pub min_p: f64,
    /// Divides positive logits of tokens that the row has, prompt included, and multiplies negative ones; 1 changes nothing (Keskar et al., 2019).
    pub repetition_penalty: f64,
    /// Ends a row, which from there on repeats it. When all rows have ended, nothing more is appended.
    pub eos_token_id: Option<i64>,
}

const OP: &str = "generate";

impl Generation {
    /// The likeliest token each time.
    pub fn greedy(max_new_tokens: usize) -> Self {
        Generation {
            max_new_tokens,
            seed: None,
            temperature: 1.0,
            top_k: None,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            eos_token_id: None,
        }
    }

    /// Draws from the whole distribution. Equal seeds give equal tokens.
    pub fn sampled(max_new_tokens: usize, seed: u64) -> Self {
        Generation { seed: Some(seed), ..Self::greedy(max_new_tokens) }
    }

    /// Sets the temperature.
    pub fn temperature(mut self, temperature: f64) -> Self {
        self.temperature = temperature;
        self
    }

    /// Draws among so many tokens.
    pub fn top_k(mut self, k: usize) -> Self {
        self.top_k = Some(k);
        self
    }

    /// Draws among the tokens that together have this probability.
    pub fn top_p(mut self, p: f64) -> Self {
        self.top_p = p;
        self
    }

    /// Draws among the tokens with this share of the largest probability.
    pub fn min_p(mut self, p: f64) -> Self {
        self.min_p = p;
        self
    }

    /// Sets the penalty of tokens that a row has.
    pub fn repetition_penalty(mut self, penalty: f64) -> Self {
        self.repetition_penalty = penalty;
        self
    }

    /// Sets the token that ends a row.
    pub fn eos_token_id(mut self, id: i64) -> Self {
        self.eos_token_id = Some(id);
        self
    }

    fn check(&self, prompt: &Tensor, max_len: usize) -> Result<()> {
        if !(self.temperature > 0.0 && self.temperature.is_finite()) {
            let got = format!("{}", self.temperature);
            return Err(invalid(OP, "temperature", "a finite number above 0", got));
        }
        if self.top_k == Some(0) {
            return Err(invalid(OP, "top_k", "at least 1", "0"));
        }
        if !(self.top_p > 0.0 && self.top_p <= 1.0) {
            return Err(invalid(OP, "top_p", "a probability in (0, 1]", format!("{}", self.top_p)));
        }
        if !(0.0..=1.0).contains(&self.min_p) {
            return Err(invalid(OP, "min_p", "a share in [0, 1]", format!("{}", self.min_p)));
        }
        if !(self.repetition_penalty > 0.0 && self.repetition_penalty.is_finite()) {
            let got = format!("{}", self.repetition_penalty);
            return Err(invalid(OP, "repetition_penalty", "a finite number above 0", got));
        }
        check_ids(OP, "prompt", prompt)?;
        let len = prompt.shape()[1];
        if len.checked_add(self.max_new_tokens).is_none_or(|n| n > max_len) {
            let got = format!("{} behind {len}", self.max_new_tokens);
            return Err(invalid(OP, "max_new_tokens", format!("at most {max_len} tokens in all"), got));
        }
        Ok(())
    }

    /// The prompt `[B, T]` and its continuation, i64, by any network that gives logits `[B, T, V]` for ids `[B, T]`. The network sees the last
    /// `context` tokens at each step, from the beginning: what it carries from call to call is forgotten before each. Call
    /// [`eval`](crate::LayerExt::eval) before, so that nothing is dropped. Errors: options out of range, a context of 0, outputs of another
    /// shape.
    pub fn continued(&self, model: &dyn Layer, prompt: &Tensor, context: usize) -> Result<Tensor> {
        if context == 0 {
            return Err(invalid(OP, "context", "at least 1 token", "0"));
        }
        let mut seen: Option<Tensor> = None;
        self.run(prompt, isize::MAX as usize, |new| {
            let mut all = match &seen {
                Some(seen) => Tensor::concat(1, &[seen, new])?,
                None => new.clone(),
            };
            let held = all.shape()[1];
            if held > context {
                all = all.narrow(1, held - context, context)?;
            }
            seen = Some(all.clone());
            model.reset_state();
            let logits = model.forward(&all)?;
            match *logits.shape() {
                [b, t, _] if b == all.shape()[0] && t == all.shape()[1] => last(&logits),
                _ => {
                    let expected = format!("logits [B, T, V] for ids {:?}", all.shape());
                    Err(invalid(OP, "model", expected, format!("{:?}", logits.shape())))
                }
            }
        })
    }

    /// The prompt `[B, T]` (integers) and the tokens after it, i64. `step` takes the tokens that it has not seen yet and gives the logits
    /// `[B, V]` of the next one.
    pub(crate) fn run(
        &self,
        prompt: &Tensor,
        max_len: usize,
        mut step: impl FnMut(&Tensor) -> Result<Tensor>,
    ) -> Result<Tensor> {
        self.check(prompt, max_len)?;
        no_grad(|| {
            let mut all = vec![prompt.to_dtype(DType::I64)?];
            let mut ended: Option<Tensor> = None;
            for i in 0..self.max_new_tokens {
                let mut next = self.choose(&step(&all[i])?, &all, i)?;
                if let Some(eos) = self.eos_token_id {
                    if let Some(ended) = &ended {
                        next = next.full_like(eos as f64)?.where_(ended, &next)?;
                    }
                    ended = Some(next.eq_scalar(eos as f64)?);
                }
                all.push(next);
                if ended.as_ref().map(every).transpose()? == Some(true) {
                    break;
                }
            }
            Tensor::concat(1, &all.iter().collect::<Vec<_>>())
        })
    }

    /// The tokens `[B, 1]` of step `i`, behind those of `before`.
    fn choose(&self, logits: &Tensor, before: &[Tensor], i: usize) -> Result<Tensor> {
        let penalised = self.repetition_penalty != 1.0;
        let Some(seed) = self.seed.or(penalised.then_some(0)) else { return logits.argmax(-1)?.unsqueeze(1) };
        let mut seen = None;
        if penalised {
            seen = Some(Tensor::concat(1, &before.iter().collect::<Vec<_>>())?.to_dtype(DType::I32)?);
        }
        let processors = LogitProcessors::new()
            .min_p(self.min_p)
            .top_p(self.top_p)
            .top_k(self.top_k.unwrap_or(0).min(logits.shape()[1]))
            // The likeliest token at 0.
            .temperature(if self.seed.is_some() { self.temperature } else { 0.0 })
            .repetition_penalty(self.repetition_penalty);
        logits.sample_tokens(&processors, Rng::new(seed).at(i as u64, 0), seen.as_ref())?.unsqueeze(1)
    }
}

/// Whether all elements of a mask are set. Waits for the device.
fn every(mask: &Tensor) -> Result<bool> {
    Ok(mask.all(&[0, 1], false)?.item::<u8>()? != 0)
}

/// Error unless these are ids `[B, T]` of at least one token.
pub(crate) fn check_ids(op: &'static str, arg: &'static str, ids: &Tensor) -> Result<()> {
    match ids.shape() {
        [_, t] if *t > 0 && ids.dtype().is_index() => Ok(()),
        shape => {
            let got = format!("{} {shape:?}", ids.dtype());
            Err(invalid(op, arg, "i32 or i64 [B, T] with at least one token", got))
        }
    }
}

/// The last step of `[B, T, D]`, `[B, D]`.
pub(crate) fn last(x: &Tensor) -> Result<Tensor> {
    x.select(1, x.shape()[1].saturating_sub(1))
}
