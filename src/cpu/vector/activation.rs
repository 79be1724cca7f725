//! Activations and their derivatives in f32, in place on slices. Those that training rarely meets are computed element by element in f64.

use super::math::{exp, normal_cdf, normal_pdf, sigmoid, sigmoid_and_slope, softplus, tanh};
use super::simd_widest;
use crate::cpu::activation as reference;
use crate::ops::activation::Activation;

/// sqrt(2 / pi)
const GELU_C: f32 = 0.797_884_6;
const GELU_CUBIC: f32 = 0.044_715;

/// x * gate, 0 where the gate is closed, even for an infinite x.
#[inline(always)]
fn gated(x: f32, gate: f32) -> f32 {
    if gate == 0.0 && !x.is_nan() { 0.0 } else { x * gate }
}

/// y = f(y)
fn each(y: &mut [f32], f: impl Fn(f32) -> f32) {
    simd_widest!(y.iter_mut().for_each(|y| *y = f(*y)));
}

/// d = f(d, s)
fn each_pair(d: &mut [f32], s: &[f32], f: impl Fn(f32, f32) -> f32) {
    simd_widest!(d.iter_mut().zip(s).for_each(|(d, s)| *d = f(*d, *s)));
}

/// y = act(y)
pub(in crate::cpu) fn activate(act: Activation, y: &mut [f32]) {
    match act {
        Activation::Identity => {}
        Activation::Relu => each(y, |x| if x <= 0.0 { 0.0 } else { x }),
        Activation::LeakyRelu { slope } => {
            let slope = slope as f32;
            each(y, |x| if x < 0.0 { slope * x } else { x });
        }
        Activation::Sigmoid => each(y, sigmoid),
        Activation::Tanh => each(y, tanh),
        Activation::Gelu => each(y, |x| gated(x, normal_cdf(x))),
        Activation::GeluTanh => each(y, |x| gated(x, sigmoid(2.0 * GELU_C * (x + GELU_CUBIC * x * x * x)))),
        Activation::Swish { beta } => {
            let beta = beta as f32;
            each(y, |x| gated(x, sigmoid(beta * x)));
        }
        Activation::Mish => each(y, |x| gated(x, tanh(softplus(x)))),
        _ => y.iter_mut().for_each(|y| *y = reference::value(act, f64::from(*y)) as f32),
    }
}

/// d = d * act'(x), x being what the activation read.
pub(in crate::cpu) fn differentiate(act: Activation, d: &mut [f32], x: &[f32]) {
    match act {
        Activation::Identity => {}
        Activation::Relu => each_pair(d, x, |d, x| if x <= 0.0 { 0.0 } else { d }),
        Activation::LeakyRelu { slope } => {
            let slope = slope as f32;
            each_pair(d, x, |d, x| if x > 0.0 { d } else { slope * d });
        }
        Activation::Sigmoid => each_pair(d, x, |d, x| d * sigmoid_and_slope(x).1),
        // tanh x = 2 sigmoid(2 x) - 1
        Activation::Tanh => each_pair(d, x, |d, x| d * 4.0 * sigmoid_and_slope(2.0 * x).1),
        Activation::Gelu => each_pair(d, x, |d, x| d * (normal_cdf(x) + gated(x, normal_pdf(x)))),
        Activation::GeluTanh => each_pair(d, x, |d, x| {
            let (g, slope) = sigmoid_and_slope(2.0 * GELU_C * (x + GELU_CUBIC * x * x * x));
            let inner = x * 2.0 * GELU_C * (1.0 + 3.0 * GELU_CUBIC * x * x);
            d * (g + gated(inner, slope))
        }),
        Activation::Swish { beta } => {
            let beta = beta as f32;
            each_pair(d, x, |d, x| {
                let (s, slope) = sigmoid_and_slope(beta * x);
                d * (s + gated(beta * x, slope))
            });
        }
        Activation::Elu { alpha } => {
            let alpha = alpha as f32;
            each_pair(d, x, |d, x| if x > 0.0 { d } else { d * alpha * exp(x) });
        }
        _ => {
            let slope = |d: f32, x: f32| reference::gradient(act, f64::from(d), f64::from(x)) as f32;
            d.iter_mut().zip(x).for_each(|(d, x)| *d = slope(*d, *x));
        }
    }
}

/// d = d * act'(x) from y = act(x), for the activations that allow it; others read x.
pub(in crate::cpu) fn differentiate_from_output(act: Activation, d: &mut [f32], y: &[f32]) {
    match act {
        Activation::Sigmoid => each_pair(d, y, |d, y| d * y * (1.0 - y)),
        Activation::Tanh => each_pair(d, y, |d, y| d * (1.0 - y * y)),
        Activation::Elu { alpha } => {
            let alpha = alpha as f32;
            each_pair(d, y, |d, y| if y > 0.0 { d } else { d * (y + alpha) });
        }
        _ => differentiate(act, d, y),
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, clippy::disallowed_macros)]
mod tests {
    use super::*;

    const ALL: [Activation; 10] = [
        Activation::Identity,
        Activation::Relu,
        Activation::LeakyRelu { slope: 0.1 },
        Activation::Sigmoid,
        Activation::Tanh,
        Activation::Gelu,
        Activation::GeluTanh,
        Activation::Swish { beta: 1.5 },
        Activation::Elu { alpha: 0.7 },
        Activation::Mish,
    ];

    fn numbers() -> Vec<f32> {
        let edges = [0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 1e-40, 1e30, -1e30, 88.0, -88.0];
        (-4000..4000).map(|i| i as f32 * 0.005).chain(edges).collect()
    }

    fn near(what: &str, x: f32, got: f32, want: f64) {
        let same = got.is_nan() && want.is_nan() || f64::from(got) == want || got == want as f32;
        assert!(
            same || (f64::from(got) - want).abs() <= 1e-6 * (1e-1 + want.abs()),
            "{what} of {x}: {got}, {want}"
        );
    }

    #[test]
    fn values_and_slopes_are_those_of_the_reference() {
        for act in ALL {
            let x = numbers();
            let mut y = x.clone();
            activate(act, &mut y);
            let mut d = vec![1.5f32; x.len()];
            differentiate(act, &mut d, &x);
            for ((&x, &y), &d) in x.iter().zip(&y).zip(&d) {
                near(&format!("{act:?}"), x, y, reference::value(act, f64::from(x)));
                near(&format!("slope of {act:?}"), x, d, reference::gradient(act, 1.5, f64::from(x)));
            }
            if act.reads_output() {
                let finite: Vec<f32> = y.iter().copied().filter(|y| y.is_finite()).collect();
                let mut d = vec![1.5f32; finite.len()];
                differentiate_from_output(act, &mut d, &finite);
                for (&y, &d) in finite.iter().zip(&d) {
                    near(
                        &format!("slope of {act:?} from its value"),
                        y,
                        d,
                        reference::from_output(act, 1.5, f64::from(y)),
                    );
                }
            }
        }
    }
}
