//! The Airy function Ai.

use std::f64::consts::PI;

/// Ai(0) and Ai'(0).
const AT_ZERO: [f64; 2] = [0.355_028_053_887_817_2, -0.258_819_403_792_806_8];
/// Steps of the differential equation are at most this long.
const STEP: f64 = 0.5;
/// Below this the asymptotic series has every digit.
const FAR: f64 = -25.0;

/// y and y' at `from + h` from those at `from`, by the Taylor series of y'' = x y.
fn step([y, slope]: [f64; 2], from: f64, h: f64) -> [f64; 2] {
    // c[k] h^k of the last three terms: (k + 2) (k + 1) c[k + 2] = from c[k] + c[k - 1].
    let (mut before, mut last, mut now) = (0.0, y, slope * h);
    let (mut value, mut derivative) = (y + now, slope);
    for k in 2..40 {
        let k = f64::from(k);
        let next = (from * last + h * before) * h * h / (k * (k - 1.0));
        value += next;
        derivative += k * next / h;
        (before, last, now) = (last, now, next);
    }
    [value, derivative]
}

/// Ai by the integral of exp(-z cosh t) cosh(t / 3) over t > 0, z = 2/3 x^(3/2), which is K of order 1/3, by the trapezoidal rule.
fn by_integral(x: f64) -> f64 {
    let z = 2.0 / 3.0 * x * x.sqrt();
    let width = f64::min(0.2, 0.7 / z.sqrt());
    // cosh t - 1 is 2 sinh(t / 2)^2, without a difference.
    let term = |i: u32| {
        let t = f64::from(i) * width;
        (-2.0 * z * (t / 2.0).sinh().powi(2)).exp() * (t / 3.0).cosh()
    };
    let steps = ((1.0 + 750.0 / z).acosh() / width).ceil() as u32;
    let sum = 0.5 * term(0) + (1..=steps).map(term).sum::<f64>();
    (-z).exp() * (x / 3.0).sqrt() / PI * width * sum
}

/// Ai(-a) for large a by Poincaré's series in 1 / z, z = 2/3 a^(3/2).
fn by_waves(a: f64) -> f64 {
    if a.is_infinite() {
        return 0.0;
    }
    let z = 2.0 / 3.0 * a * a.sqrt();
    let (mut term, mut sums) = (1.0, [0.0; 2]);
    for k in 0..12 {
        // Signs by twos: + + - - ..
        let sign = if k / 2 % 2 == 0 { 1.0 } else { -1.0 };
        sums[k % 2] += sign * term;
        let k = k as f64;
        term *= (6.0 * k + 1.0) * (6.0 * k + 5.0) / (72.0 * (k + 1.0) * z);
    }
    let angle = z - PI / 4.0;
    (sums[0] * angle.cos() + sums[1] * angle.sin()) / (PI.sqrt() * a.sqrt().sqrt())
}

/// Ai(x).
pub(in crate::cpu) fn airy_ai(x: f64) -> f64 {
    if x.is_nan() {
        return x;
    }
    if x > 1.0 {
        return if x.is_infinite() { 0.0 } else { by_integral(x) };
    }
    if x < FAR {
        return by_waves(-x);
    }
    let steps = (x.abs() / STEP).ceil().max(1.0);
    let h = x / steps;
    if h == 0.0 {
        return AT_ZERO[0];
    }
    (0..steps as u32).fold(AT_ZERO, |y, i| step(y, f64::from(i) * h, h))[0]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_values() {
        // By mpmath, with 30 digits.
        let known = [
            (0.5, 0.231_693_606_480_833_48),
            (1.0, 0.135_292_416_312_881_41),
            (1.5, 0.071_749_497_008_105_41),
            (10.0, 1.104_753_255_289_868_6e-10),
            (-1.0, 0.535_560_883_292_352_1),
            (-2.5, -0.112_325_067_692_966_09),
            (-10.0, 0.040_241_238_486_443_19),
            (-30.0, -0.087_968_188_456_842_16),
        ];
        for (x, want) in known {
            let got = airy_ai(x);
            assert!((got - want).abs() <= 4e-14 * want.abs(), "{x}: {got} for {want}");
        }
        // The ways meet.
        for x in [1.0, FAR] {
            let (below, above) = (airy_ai(x - 1e-9), airy_ai(x + 1e-9));
            assert!((below - above).abs() < 1e-8, "{x}: {below} {above}");
        }
    }
}
