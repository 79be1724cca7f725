//! Choosing the next token: signatures and checks.

use crate::buffer::{View, ViewMut};
use crate::dtype::DType;
use crate::error::{GpuError, Result};
use crate::ops::check;
use crate::ops::random::{Rng, check_rng};

/// Entries of a row of logits at most: they are counted exactly in f32.
const MAX_VOCABULARY: usize = 1 << 24;

/// What happens to logits before a token is drawn, in the order of the fields of [`LogitProcessors`] from the last to the first: the penalty, the
/// temperature, the k largest, of those the shortest run by falling probability that reaches `top_p`, of those what reaches `min_p`.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct LogitProcessors {
    /// Removes what has less than this share of the largest probability; in [0, 1], 0 removes nothing (min-p).
    pub min_p: f64,
    /// Keeps the likeliest tokens that together have at least this probability, at least one; in (0, 1], 1 keeps all (nucleus sampling,
    /// Holtzman et al., 2020).
    pub top_p: f64,
    /// Keeps so many of the largest logits, of equal ones those with lower ids; 0 keeps all (Fan et al., 2018).
    pub top_k: usize,
    /// Divides the logits. 0, which only [`SamplingOps::sample_tokens`] takes, is the likeliest token.
    pub temperature: f64,
    /// Divides positive logits of tokens that occurred and multiplies negative ones; above 0, 1 for none (Keskar et al., 2019).
    pub repetition_penalty: f64,
}

impl LogitProcessors {
    /// Nothing: temperature and penalty 1, all tokens kept.
    pub const fn new() -> Self {
        LogitProcessors { min_p: 0.0, top_p: 1.0, top_k: 0, temperature: 1.0, repetition_penalty: 1.0 }
    }

    /// Sets the share of the largest probability.
    pub const fn min_p(mut self, p: f64) -> Self {
        self.min_p = p;
        self
    }

    /// Sets the probability of what is kept.
    pub const fn top_p(mut self, p: f64) -> Self {
        self.top_p = p;
        self
    }

    /// Sets the number of logits that are kept.
    pub const fn top_k(mut self, k: usize) -> Self {
        self.top_k = k;
        self
    }

    /// Sets the temperature.
    pub const fn temperature(mut self, temperature: f64) -> Self {
        self.temperature = temperature;
        self
    }

    /// Sets the penalty.
    pub const fn repetition_penalty(mut self, penalty: f64) -> Self {
        self.repetition_penalty = penalty;
        self
    }

    /// Whether logits of tokens that occurred change.
    pub(crate) fn penalises(&self) -> bool {
        self.repetition_penalty != 1.0
    }

    fn check(&self, op: &'static str, greedy: bool) -> Result<()> {
        let bad = |arg, want: &str, got: f64| Err(GpuError::invalid(op, arg, want, format!("{got}")));
        let t = self.temperature;
        if !(t.is_finite() && (t > 0.0 || (greedy && t == 0.0))) {
            let want = if greedy { "a finite number not below 0" } else { "a finite number above 0" };
            return bad("temperature", want, t);
        }
        if !(self.top_p > 0.0 && self.top_p <= 1.0) {
            return bad("top_p", "a probability in (0, 1]", self.top_p);
        }
        if !(0.0..=1.0).contains(&self.min_p) {
            return bad("min_p", "a share in [0, 1]", self.min_p);
        }
        if !(self.repetition_penalty > 0.0 && self.repetition_penalty.is_finite()) {
            return bad("repetition_penalty", "a finite number above 0", self.repetition_penalty);
        }
        Ok(())
    }
}

impl Default for LogitProcessors {
    fn default() -> Self {
        LogitProcessors::new()
    }
}

op_family! {
    /// Choosing tokens. Logits are f32, f16, bf16 or f64 [rows, V], contiguous, V at most 2^24; a NaN counts as -inf. `prev` are the ids that a row has
    /// seen, i32 [rows, n], -1 for none; an id that is below -1 or not below V is `IndexOutOfRange`. Errors: `Invalid` for shapes, dtypes, layout,
    /// overlap and parameters out of range.
    pub trait SamplingOps : LanguageModel => SAMPLING_OPS {
        /// y = processed logits, of the logits' shape and dtype; -inf where removed. Oracle: NumPy, transformers' logits processors.
        fn logit_processors(&self, p: &LogitProcessors, logits: View<'_>, prev: Option<View<'_>>, y: ViewMut<'_>) -> Result<()>;
        /// One token per row, ids i64 `[rows]`: the first maximum for temperature 0, else the first id whose cumulative probability, in the order of
        /// ids, is above u, the number of word `row` of `rng` in [0, 1). Consumes ceil(rows / 4) blocks.
        fn sample_tokens(&self, p: &LogitProcessors, rng: Rng<'_>, logits: View<'_>, prev: Option<View<'_>>, ids: ViewMut<'_>) -> Result<()>;
    }
}

type Named<'a> = (&'static str, View<'a>);

/// Checks what both have in common; rows and vocabulary.
fn check_logits<'a>(
    op: &'static str,
    logits: &View<'a>,
    prev: Option<&View<'a>>,
) -> Result<([usize; 2], Vec<Named<'a>>)> {
    check::float(op, "logits", logits)?;
    let [rows, vocab] = check::matrix(op, "logits", logits)?;
    if vocab == 0 || vocab > MAX_VOCABULARY {
        return Err(GpuError::invalid(op, "logits", "1 to 2^24 logits per row", format!("{vocab}")));
    }
    let mut seen = vec![("logits", *logits)];
    if let Some(prev) = prev {
        check::dtype(op, "prev", prev, DType::I32)?;
        let [n, _] = check::matrix(op, "prev", prev)?;
        if n != rows {
            return Err(GpuError::invalid(op, "prev", format!("{rows} rows"), format!("{n}")));
        }
        seen.push(("prev", *prev));
    }
    Ok(([rows, vocab], seen))
}

/// Checks of [`SamplingOps::logit_processors`]; rows and vocabulary.
pub(crate) fn check_logit_processors<'a>(
    p: &LogitProcessors,
    logits: &View<'a>,
    prev: Option<&View<'a>>,
    y: &ViewMut<'a>,
) -> Result<[usize; 2]> {
    const OP: &str = "logit_processors";
    let (size, mut seen) = check_logits(OP, logits, prev)?;
    p.check(OP, false)?;
    check::exact_output(OP, "y", y, logits.shape(), logits.dtype(), &mut seen)?;
    Ok(size)
}

/// Checks of [`SamplingOps::sample_tokens`]; rows and vocabulary.
pub(crate) fn check_sample_tokens<'a>(
    p: &LogitProcessors,
    rng: &Rng<'a>,
    logits: &View<'a>,
    prev: Option<&View<'a>>,
    ids: &ViewMut<'a>,
) -> Result<[usize; 2]> {
    const OP: &str = "sample_tokens";
    let (size, mut seen) = check_logits(OP, logits, prev)?;
    p.check(OP, true)?;
    check_rng(OP, rng)?;
    seen.extend(rng.device_offset.map(|v| ("rng.device_offset", v)));
    check::exact_output(OP, "ids", ids, &size[..1], DType::I64, &mut seen)?;
    Ok(size)
}
