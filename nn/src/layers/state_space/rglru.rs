//! The real-gated linear recurrent unit.

use trefoil::ops::random::{Distribution, Rng};

use super::sequences;
use super::state::{Carry, RecurrentState};
use crate::core::error::{Result, invalid};
use crate::core::tensor::{Tensor, same_dtype};
use crate::layers::spatial::positive;
use crate::module::{Init, InitContext, Layer, Param, Visitor};

const OP: &str = "Rglru";

/// How many times the decay of a gate that is fully open is taken.
const C: f64 = 8.0;

/// 1 - a^2 at least, so that the gradient of its root is finite.
const LEAST: f64 = 1e-30;

/// The real-gated linear recurrent unit (De et al., 2024), `[B, T, W] -> [B, T, W]`: gates r = sigmoid(x A + b) and i = sigmoid(x E + f), whose
/// matrices have H blocks on their diagonals; decay a = exp(-8 softplus(L) r); `h = a h + sqrt(1 - a^2) i x`, elementwise. Source
/// `RecurrentGemmaRglru` of transformers, which takes the first token of a sequence without the root: [`Rglru::first_as_is`]. In 16 bits the
/// recurrence runs in f32.
///
/// State, with blocks of w = W / H: `recurrent_param [W]` = L, with which exp(-8 softplus(L)) is uniform in [0.9, 0.999],
/// `input_gate_weight [H, w, w]` and `recurrent_gate_weight [H, w, w]` from N(0, 1 / w), `input_gate_bias [H, w]` = 0,
/// `recurrent_gate_bias [H, w]` = 0.
///
/// Errors of `forward`: another shape than `[B, T, W]`, another dtype than that of the parameters.
#[derive(Debug)]
pub struct Rglru {
    width: usize,
    blocks: usize,
    recurrent_param: Param,
    input: Gate,
    recurrent: Gate,
    first_as_is: bool,
}

/// The logits of a gate: a product by blocks, and a bias.
#[derive(Debug)]
struct Gate {
    weight: Param,
    bias: Param,
}

impl Gate {
    fn new(cx: &InitContext, blocks: usize, width: usize) -> Result<Self> {
        let normal = Init::Normal { mean: 0.0, std: 1.0 / (width as f64).sqrt() };
        Ok(Gate {
            weight: normal.param(cx, &[blocks, width, width], width, width)?,
            bias: Init::Zeros.param(cx, &[blocks, width], 1, 1)?,
        })
    }

    /// Of rows by block, `[H, N, w]`.
    fn forward(&self, rows: &Tensor) -> Result<Tensor> {
        rows.matmul(&self.weight.get())?.add(&self.bias.get().unsqueeze(1)?)
    }
}

/// L for decays from U(0.9, 0.999). Drawn in the arithmetic of the recurrence: in 16 bits, the greatest would be 1, and L minus infinity.
fn decays(cx: &InitContext, width: usize) -> Result<Param> {
    let uniform = Distribution::Uniform { lo: 0.9, hi: 0.999 };
    let rng = Rng::new(cx.seed()).at(cx.next_stream(), 0);
    let dtype = cx.param_dtype();
    let rates = Tensor::random(cx.device(), dtype.accumulator(), &[width], uniform, rng)?;
    let rates = rates.ln()?.div_scalar(-C)?;
    // The inverse of softplus: ln(e^x - 1) = x + ln(1 - e^-x).
    let inverse = rates.add(&rates.neg()?.expm1()?.neg()?.ln()?)?;
    Ok(Param::new(inverse.to_dtype(dtype)?.detach()))
}

impl Rglru {
    /// Of `width` channels, gates of `blocks` blocks. Errors: 0, a width that is no multiple of the blocks.
    pub fn new(cx: &InitContext, width: usize, blocks: usize) -> Result<Self> {
        positive(OP, "lru_width", &[width])?;
        positive(OP, "num_heads", &[blocks])?;
        if !width.is_multiple_of(blocks) {
            let want = format!("a divisor of lru_width, {width}");
            return Err(invalid(OP, "num_heads", want, format!("{blocks}")));
        }
        Ok(Rglru {
            width,
            blocks,
            recurrent_param: decays(cx, width)?,
            input: Gate::new(cx, blocks, width / blocks)?,
            recurrent: Gate::new(cx, blocks, width / blocks)?,
            first_as_is: false,
        })
    }

    /// Takes the first token of every sequence times its input gate alone, as RecurrentGemma does.
    pub fn first_as_is(mut self) -> Self {
        self.first_as_is = true;
        self
    }

    /// sqrt(1 - a^2) of the logarithm of a; `start`: the first token of a sequence is the first of these.
    fn share(&self, log: &Tensor, start: bool) -> Result<Tensor> {
        let share = log.mul_scalar(2.0)?.expm1()?.neg()?.clamp(Some(LEAST), None)?.sqrt()?;
        let (b, steps) = (log.shape()[0], log.shape()[1]);
        if !self.first_as_is || !start || steps == 0 {
            return Ok(share);
        }
        let first = Tensor::ones(log.device(), log.dtype(), &[b, 1, self.width])?;
        Tensor::concat(1, &[&first, &share.narrow(1, 1, steps - 1)?])
    }

    /// [`Layer::forward`] for tokens `[B, T, W]` behind those that `state` has seen at `layer`, which goes on to the last of them: equal to the
    /// rows of a pass over all tokens, to rounding. Records no gradients. After an error the state is as before. Errors: those of `forward`,
    /// `Invalid` for a layer that the state has not, or another batch than before.
    pub fn forward_with_state(&self, x: &Tensor, state: &mut RecurrentState, layer: usize) -> Result<Tensor> {
        sequences(OP, x, self.width)?;
        state.carry(layer, x, |carry| self.run(x, Some(carry)))
    }

    pub(super) fn run(&self, x: &Tensor, carry: Option<&mut Carry>) -> Result<Tensor> {
        let [batch, steps] = sequences(OP, x, self.width)?;
        same_dtype(OP, x, &self.recurrent_param.get())?;
        let (blocks, whole) = (self.blocks, x.dtype().accumulator());
        let rows = x.reshape(&[batch * steps, blocks, self.width / blocks])?.transpose(0, 1)?.contiguous()?;
        let gate = |g: &Gate| {
            let open = g.forward(&rows)?.to_dtype(whole)?.sigmoid()?;
            open.transpose(0, 1)?.reshape(&[batch, steps, self.width])
        };
        let rates = self.recurrent_param.get().to_dtype(whole)?.softplus()?.mul_scalar(-C)?;
        let log = gate(&self.recurrent)?.mul(&rates)?;
        let start = carry.as_ref().is_none_or(|c| c.is_start());
        let input = gate(&self.input)?.mul(&x.to_dtype(whole)?)?.mul(&self.share(&log, start)?)?;
        let decay = log.exp()?;
        let y = match carry {
            Some(carry) if steps > 0 => carry.through(|before| behind(&decay, &input, before))?,
            _ => decay.associative_scan(&input, false)?,
        };
        y.to_dtype(x.dtype())
    }
}

/// The recurrence `h = decay h + input` from the state before, and its last state `[B, 1, W]`.
fn behind(decay: &Tensor, input: &Tensor, before: Option<&Tensor>) -> Result<(Tensor, Tensor)> {
    let steps = input.shape()[1];
    let mut input = input.clone();
    if let Some(h) = before {
        let first = input.narrow(1, 0, 1)?.add(&decay.narrow(1, 0, 1)?.mul(h)?)?;
        input = Tensor::concat(1, &[&first, &input.narrow(1, 1, steps - 1)?])?;
    }
    let y = decay.associative_scan(&input, false)?;
    let last = y.narrow(1, steps - 1, 1)?.contiguous()?;
    Ok((y, last))
}

impl Layer for Rglru {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.run(x, None)
    }

    fn visit(&self, v: &mut Visitor<'_>) {
        v.param("recurrent_param", &self.recurrent_param);
        v.param("input_gate_weight", &self.input.weight);
        v.param("input_gate_bias", &self.input.bias);
        v.param("recurrent_gate_weight", &self.recurrent.weight);
        v.param("recurrent_gate_bias", &self.recurrent.bias);
    }
}
