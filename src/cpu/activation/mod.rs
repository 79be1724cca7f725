//! Activations in f64; the softmax family stands in `softmax.rs`.

pub(super) mod gated;

use crate::buffer::{GradMut, View, ViewMut};
use crate::cpu::Kernels;
use crate::cpu::scratch::*;
use crate::cpu::values::{map1, map2};
use crate::cpu::vector;
use crate::cpu::{gather_f64, store_f64, store_grad};
use crate::error::Result;
use crate::ops::activation::*;

/// Scale and slope of selu, of Klambauer et al. (2017).
const SELU_SCALE: f64 = 1.050_700_987_355_480_5;
const SELU_ALPHA: f64 = 1.673_263_242_354_377_2;
/// sqrt(2 / pi)
const GELU_C: f64 = 0.797_884_560_802_865_4;

/// Standard normal distribution function.
fn normal_cdf(x: f64) -> f64 {
    0.5 * libm::erfc(-x * std::f64::consts::FRAC_1_SQRT_2)
}

fn normal_pdf(x: f64) -> f64 {
    (-0.5 * x * x).exp() / (2.0 * std::f64::consts::PI).sqrt()
}

pub(in crate::cpu) fn sigmoid(x: f64) -> f64 {
    if x >= 0.0 {
        1.0 / (1.0 + (-x).exp())
    } else {
        let e = x.exp();
        e / (1.0 + e)
    }
}

fn softplus(x: f64) -> f64 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

/// x * gate, 0 where the gate is closed, even for an infinite x.
fn gated(x: f64, gate: f64) -> f64 {
    if gate == 0.0 && !x.is_nan() { 0.0 } else { x * gate }
}

/// max(lo, min(x, hi)) with NaN kept, and a bound that is NaN winning.
fn clamp(x: f64, lo: f64, hi: f64) -> f64 {
    crate::cpu::elementwise::minimum(crate::cpu::elementwise::maximum(x, lo), hi)
}

/// act(x)
#[inline]
pub(crate) fn value(act: Activation, x: f64) -> f64 {
    match act {
        Activation::Identity => x,
        Activation::Relu => {
            if x <= 0.0 {
                0.0
            } else {
                x
            }
        }
        Activation::LeakyRelu { slope } => {
            if x > 0.0 || x.is_nan() {
                x
            } else {
                slope * x
            }
        }
        Activation::Sigmoid => sigmoid(x),
        Activation::Tanh => x.tanh(),
        Activation::Gelu => gated(x, normal_cdf(x)),
        Activation::GeluTanh => gated(x, sigmoid(2.0 * GELU_C * (x + 0.044715 * x * x * x))),
        Activation::Swish { beta } => gated(x, sigmoid(beta * x)),
        Activation::Elu { alpha } => {
            if x > 0.0 {
                x
            } else {
                alpha * x.exp_m1()
            }
        }
        Activation::Mish if x.is_nan() => x,
        Activation::Mish => gated(x, softplus(x).tanh()),
        Activation::Softplus { beta, threshold } => {
            if beta * x > threshold || x.is_nan() {
                x
            } else {
                softplus(beta * x) / beta
            }
        }
        Activation::Hardswish => {
            if x <= -3.0 {
                0.0
            } else if x >= 3.0 {
                x
            } else {
                x * (x + 3.0) / 6.0
            }
        }
        Activation::Selu => SELU_SCALE * if x > 0.0 { x } else { SELU_ALPHA * x.exp_m1() },
        Activation::Hardsigmoid => clamp(x / 6.0 + 0.5, 0.0, 1.0),
        Activation::Hardtanh { lo, hi } => clamp(x, lo, hi),
        Activation::Relu6 => clamp(x, 0.0, 6.0),
    }
}

/// dy * act'(x), selecting rather than multiplying where the slope is 0 or 1.
#[inline]
pub(crate) fn gradient(act: Activation, dy: f64, x: f64) -> f64 {
    let select = |open: bool| if open { dy } else { 0.0 };
    match act {
        Activation::Identity => dy,
        Activation::Relu => select(x > 0.0 || x.is_nan()),
        Activation::LeakyRelu { slope } => {
            if x > 0.0 {
                dy
            } else {
                slope * dy
            }
        }
        Activation::Sigmoid => from_output(act, dy, sigmoid(x)),
        Activation::Tanh => from_output(act, dy, x.tanh()),
        Activation::Gelu => dy * (normal_cdf(x) + gated(x, normal_pdf(x))),
        Activation::GeluTanh => {
            let g = sigmoid(2.0 * GELU_C * (x + 0.044715 * x * x * x));
            dy * (g + gated(x * 2.0 * GELU_C * (1.0 + 3.0 * 0.044715 * x * x), g * (1.0 - g)))
        }
        Activation::Swish { beta } => {
            let s = sigmoid(beta * x);
            dy * (s + gated(beta * x, s * (1.0 - s)))
        }
        Activation::Elu { alpha } => {
            if x > 0.0 {
                dy
            } else {
                dy * alpha * x.exp()
            }
        }
        Activation::Mish if x > 20.0 => dy,
        Activation::Mish if x.is_nan() => x,
        Activation::Mish => {
            let t = softplus(x).tanh();
            dy * (t + gated(x, sigmoid(x) * (1.0 - t * t)))
        }
        Activation::Softplus { beta, threshold } => {
            if beta * x > threshold {
                dy
            } else {
                dy * sigmoid(beta * x)
            }
        }
        Activation::Hardswish => {
            if x <= -3.0 {
                0.0
            } else if x < 3.0 || x.is_nan() {
                dy * (x / 3.0 + 0.5)
            } else {
                dy
            }
        }
        Activation::Selu => dy * SELU_SCALE * if x > 0.0 { 1.0 } else { SELU_ALPHA * x.exp() },
        Activation::Hardsigmoid => select(-3.0 < x && x < 3.0) / 6.0,
        Activation::Hardtanh { lo, hi } => select(lo < x && x < hi),
        Activation::Relu6 => select(0.0 < x && x < 6.0),
    }
}

/// The same from y = act(x), for the functions that allow it.
pub(in crate::cpu) fn from_output(act: Activation, dy: f64, y: f64) -> f64 {
    match act {
        Activation::Sigmoid => dy * y * (1.0 - y),
        Activation::Tanh => dy * (1.0 - y * y),
        Activation::Elu { alpha } => {
            if y > 0.0 {
                dy
            } else {
                dy * (y + alpha)
            }
        }
        _ => gradient(act, dy, y),
    }
}

impl ActivationOps for Kernels {
    fn activation(&self, act: Activation, x: View<'_>, y: ViewMut<'_>) -> Result<()> {
        check_activation(&x, &y)?;
        let _timed = self.count("activation");
        let y = y.grad(false);
        if self.in_f32("activation", x.dtype(), None)? {
            return vector::map1("activation", x, &y, |x, y| {
                y.copy_from_slice(x);
                vector::activation::activate(act, y);
            });
        }
        match act {
            // Known to the compiler, the loop has no branches.
            Activation::Relu => map1("activation", x, &y, |x| value(Activation::Relu, x)),
            _ => map1("activation", x, &y, |x| value(act, x)),
        }
    }

    fn activation_bwd(&self, act: Activation, dy: View<'_>, saved: Saved<'_>, dx: GradMut<'_>) -> Result<()> {
        const OP: &str = "activation_bwd";
        check_activation_bwd(OP, act, &dy, &saved, &dx.out)?;
        let _timed = self.count("activation_bwd");
        if self.in_f32(OP, dy.dtype(), None)? {
            let (v, from_output) = match saved {
                Saved::Input(v) => (v, false),
                Saved::Output(v) => (v, true),
            };
            return vector::map2(OP, [dy, v], &dx, |dy, v, d| {
                d.copy_from_slice(dy);
                match from_output {
                    false => vector::activation::differentiate(act, d, v),
                    true => vector::activation::differentiate_from_output(act, d, v),
                }
            });
        }
        match (act, saved) {
            (Activation::Relu, Saved::Input(v) | Saved::Output(v)) => {
                map2(OP, [dy, v], &dx, |dy, v| gradient(Activation::Relu, dy, v))
            }
            (_, Saved::Input(x)) => map2(OP, [dy, x], &dx, |dy, x| gradient(act, dy, x)),
            (_, Saved::Output(y)) => map2(OP, [dy, y], &dx, |dy, y| from_output(act, dy, y)),
        }
    }

    fn activation_bias_bwd(&self, act: Activation, io: ActivationBiasBwd<'_>) -> Result<()> {
        const OP: &str = "activation_bias_bwd";
        let [rows, n, groups] = check_activation_bias_bwd(act, &io)?;
        let dx = io.dx.as_view();
        self.activation_bwd(act, io.dy, io.saved, io.dx.into())?;
        let _timed = self.count(OP);
        let bounds = match io.offsets {
            Some(offsets) => self.row_groups(OP, offsets, rows)?,
            None => [0, rows].into_iter().try_vec()?,
        };
        let values = gather_f64(OP, dx)?;
        let mut sums = filled(groups * n, 0.0)?;
        for (sums, of) in sums.chunks_mut(n.max(1)).zip(bounds.windows(2)) {
            for row in values[of[0] * n..of[1] * n].chunks(n.max(1)) {
                sums.iter_mut().zip(row).for_each(|(s, x)| *s += x);
            }
        }
        store_grad(OP, &io.dbias, &sums)
    }

    fn prelu(&self, x: View<'_>, a: View<'_>, y: ViewMut<'_>) -> Result<()> {
        const OP: &str = "prelu";
        let [_, slopes, cols] = check_prelu(&x, &a, &y)?;
        let _timed = self.count("prelu");
        let (mut v, a) = (gather_f64(OP, x)?, gather_f64(OP, a)?);
        for (i, x) in v.iter_mut().enumerate() {
            *x *= if *x > 0.0 { 1.0 } else { a[i / cols % slopes] };
        }
        store_f64(OP, &y, &v)
    }

    fn prelu_bwd(
        &self,
        dy: View<'_>,
        x: View<'_>,
        a: View<'_>,
        dx: Option<GradMut<'_>>,
        da: Option<GradMut<'_>>,
    ) -> Result<()> {
        const OP: &str = "prelu_bwd";
        let [_, slopes, cols] = check_prelu_bwd(&dy, &x, &a, dx.as_ref(), da.as_ref())?;
        let _timed = self.count("prelu_bwd");
        let (mut g, x, a) = (gather_f64(OP, dy)?, gather_f64(OP, x)?, gather_f64(OP, a)?);
        let mut sums = filled(slopes, 0.0)?;
        for (i, (g, &x)) in g.iter_mut().zip(&x).enumerate() {
            let c = i / cols % slopes;
            let on = x > 0.0;
            if !on {
                sums[c] += *g * x;
                *g *= a[c];
            }
        }
        dx.iter().try_for_each(|o| store_grad(OP, o, &g))?;
        da.iter().try_for_each(|o| store_grad(OP, o, &sums))
    }
}
