//! Special functions in f64 that neither the standard library nor libm has.

mod airy;
mod gamma;

pub(in crate::cpu) use self::airy::airy_ai;
pub(in crate::cpu) use self::gamma::{igamma, igamma_slope, igammac};
use std::f64::consts::{FRAC_1_SQRT_2, PI};

/// Inverse of erf: Newton's method on erfc, whose tail keeps its digits, from a start that is exact enough everywhere.
pub(in crate::cpu) fn erfinv(x: f64) -> f64 {
    let a = x.abs();
    if a >= 1.0 || x.is_nan() {
        return if a == 1.0 { x * f64::INFINITY } else { f64::NAN };
    }
    if a < 1e-8 {
        return x * PI.sqrt() / 2.0;
    }
    // Winitzki (2008).
    let l = ((1.0 - a) * (1.0 + a)).ln();
    let h = 2.0 / (PI * 0.147) + l / 2.0;
    let mut y = ((h * h - l / 0.147).sqrt() - h).sqrt();
    for _ in 0..6 {
        let miss = if a < 0.5 { libm::erf(y) - a } else { (1.0 - a) - libm::erfc(y) };
        y -= miss * PI.sqrt() / 2.0 * (y * y).exp();
    }
    y.copysign(x)
}

/// Bernoulli numbers B_2, B_4, ...
const BERNOULLI: [f64; 12] = [
    1.0 / 6.0,
    -1.0 / 30.0,
    1.0 / 42.0,
    -1.0 / 30.0,
    5.0 / 66.0,
    -691.0 / 2730.0,
    7.0 / 6.0,
    -3617.0 / 510.0,
    43867.0 / 798.0,
    -174611.0 / 330.0,
    854513.0 / 138.0,
    -236364091.0 / 2730.0,
];

/// Derivative of ln Gamma; poles give NaN, except 0, which gives an infinity.
pub(in crate::cpu) fn digamma(x: f64) -> f64 {
    if x == 0.0 {
        return f64::INFINITY.copysign(-x);
    }
    if x < 0.0 {
        return if x == x.floor() { f64::NAN } else { digamma(1.0 - x) - PI / (PI * (x - x.round())).tan() };
    }
    let steps = (16.0 - x).ceil().max(0.0) as u32;
    let below: f64 = (0..steps).map(|k| 1.0 / (x + f64::from(k))).sum();
    let z = x + f64::from(steps);
    let tail: f64 =
        BERNOULLI.iter().zip(1..).map(|(b, k)| b / (2.0 * f64::from(k) * z.powi(2 * k))).take(8).sum();
    z.ln() - 0.5 / z - tail - below
}

/// Hurwitz zeta by the formula of Euler and Maclaurin.
pub(in crate::cpu) fn zeta(s: f64, q: f64) -> f64 {
    if s == 1.0 {
        return f64::INFINITY;
    }
    if s.is_nan() || s < 1.0 || q.is_nan() {
        return f64::NAN;
    }
    if q <= 0.0 {
        if q == q.floor() {
            return f64::INFINITY;
        }
        if s != s.floor() {
            return f64::NAN;
        }
    }
    if q == f64::INFINITY {
        return 0.0;
    }
    // As torch.special.zeta: the sum's first terms, whose tail is not a number.
    if s == f64::INFINITY {
        return match q {
            ..1.0 => f64::INFINITY,
            1.0 => 1.0,
            _ => f64::NAN,
        };
    }
    let steps = (16.0 - q).ceil().clamp(0.0, 65536.0) as u32;
    let head: f64 = (0..steps).map(|k| (q + f64::from(k)).powf(-s)).sum();
    let z = q + f64::from(steps);
    let mut tail = z.powf(1.0 - s) / (s - 1.0) + 0.5 * z.powf(-s);
    // B_2k / (2k)! * s (s+1) ... (s+2k-2) / z^(s+2k-1)
    let mut term = s / 2.0 * z.powf(-s - 1.0);
    for (b, k) in BERNOULLI.iter().zip(1..) {
        tail += b * term;
        let n = f64::from(2 * k);
        term *= (s + n - 1.0) * (s + n) / ((n + 1.0) * (n + 2.0) * z * z);
    }
    head + tail
}

/// n-th derivative of digamma.
pub(in crate::cpu) fn polygamma(n: i32, x: f64) -> f64 {
    if n == 0 {
        return digamma(x);
    }
    let factorial: f64 = (2..=n).map(f64::from).product();
    let sign = if n % 2 == 1 { 1.0 } else { -1.0 };
    sign * factorial * zeta(f64::from(n) + 1.0, x)
}

/// e^-|x| I_order(x): the power series for small, Hankel's asymptotic series for large arguments.
pub(in crate::cpu) fn bessel_i_scaled(order: u32, x: f64) -> f64 {
    let (a, nu) = (x.abs(), f64::from(order));
    let y = if a <= 30.0 {
        let (mut term, mut sum) = ((a / 2.0).powf(nu), 0.0);
        for k in 1..200 {
            sum += term;
            term *= a * a / 4.0 / (f64::from(k) * (f64::from(k) + nu));
        }
        sum * (-a).exp()
    } else if a.is_finite() {
        let (mut term, mut sum) = (1.0, 0.0);
        for k in 1..30 {
            sum += term;
            let odd = f64::from(2 * k - 1);
            term *= -(4.0 * nu * nu - odd * odd) / (f64::from(k) * 8.0 * a);
        }
        sum / (2.0 * PI * a).sqrt()
    } else {
        // 0 for infinities, NaN for NaN
        1.0 / a
    };
    if order % 2 == 1 { y.copysign(x) } else { y }
}

/// I_order(x).
pub(in crate::cpu) fn bessel_i(order: u32, x: f64) -> f64 {
    if x.is_infinite() {
        return if order % 2 == 1 { x } else { f64::INFINITY };
    }
    // e^|x| in two halves: it overflows before the product does.
    let half = (x.abs() / 2.0).exp();
    half * bessel_i_scaled(order, x) * half
}

/// e^(x^2) erfc(x): a continued fraction where erfc underflows.
pub(in crate::cpu) fn erfcx(x: f64) -> f64 {
    if x < 3.0 {
        return (x * x).exp() * libm::erfc(x);
    }
    if x.is_infinite() {
        return 0.0;
    }
    let tail = (1..=100).rev().fold(x, |t, k| x + f64::from(k) / 2.0 / t);
    1.0 / (PI.sqrt() * tail)
}

/// Derivative of [`erfcx`]; of the two terms, which are nearly equal for large x, the difference of the continued fractions.
pub(in crate::cpu) fn erfcx_slope(x: f64) -> f64 {
    if x < 3.0 {
        return 2.0 * x * erfcx(x) - 2.0 / PI.sqrt();
    }
    // 2 x / (sqrt(pi) (x + r)) - 2 / sqrt(pi) = -2 r / (sqrt(pi) (x + r)), r = (1/2) / (x + 1 / (x + ..)).
    let tail = (2..=100).rev().fold(x, |t, k| x + f64::from(k) / 2.0 / t);
    let r = 0.5 / tail;
    if x.is_infinite() { 0.0 } else { -2.0 * r / (PI.sqrt() * (x + r)) }
}

/// Logarithm of the distribution function of the standard normal distribution.
pub(in crate::cpu) fn log_ndtr(x: f64) -> f64 {
    let z = x * FRAC_1_SQRT_2;
    if x < -1.0 { (0.5 * erfcx(-z)).ln() - z * z } else { (-0.5 * libm::erfc(z)).ln_1p() }
}

/// Derivative of [`log_ndtr`].
pub(in crate::cpu) fn log_ndtr_slope(x: f64) -> f64 {
    (2.0 / PI).sqrt() / erfcx(-x * FRAC_1_SQRT_2)
}

/// Quantiles of the standard normal distribution: Newton's method on [`log_ndtr`], which is concave, from the left.
pub(in crate::cpu) fn ndtri(p: f64) -> f64 {
    if p.is_nan() || !(0.0..=1.0).contains(&p) {
        return f64::NAN;
    }
    if p > 0.5 {
        return -ndtri(1.0 - p);
    }
    if p == 0.0 {
        return f64::NEG_INFINITY;
    }
    let target = p.ln();
    (0..12).fold(-(-2.0 * target).sqrt(), |x, _| x - (log_ndtr(x) - target) / log_ndtr_slope(x))
}

/// e^x K_order(x): the integral of exp(-x (cosh t - 1)) cosh(order t) over t > 0 by the trapezoidal rule, whose error falls exponentially.
pub(in crate::cpu) fn bessel_k_scaled(order: u32, x: f64) -> f64 {
    if x == 0.0 {
        return f64::INFINITY;
    }
    if x < 0.0 || x.is_nan() {
        return f64::NAN;
    }
    if x.is_infinite() {
        return 0.0;
    }
    let step = f64::min(0.2, 0.7 / x.sqrt());
    // cosh t - 1 is 2 sinh(t / 2)^2, without a difference.
    let term = |i: u32| {
        let t = f64::from(i) * step;
        (-2.0 * x * (t / 2.0).sinh().powi(2)).exp() * (f64::from(order) * t).cosh()
    };
    let steps = ((1.0 + 750.0 / x).acosh() / step).ceil() as u32;
    step * (0.5 * term(0) + (1..=steps).map(term).sum::<f64>())
}

/// A function that has a limit at 0.
pub(in crate::cpu) fn at_zero(x: f64, limit: f64, f: impl FnOnce() -> f64) -> f64 {
    if x == 0.0 { limit } else { f() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(got: f64, want: f64) {
        assert!((got - want).abs() <= 1e-13 * want.abs().max(1.0), "{got} for {want}");
    }

    #[test]
    fn known_values() {
        for x in [1e-12, 0.3, 0.49, 0.51, 0.9, 0.999_999, 1.0 - 1e-14] {
            let y = erfinv(x);
            close(libm::erfc(y) / (1.0 - x), 1.0 + (libm::erfc(y) - (1.0 - x)) / (1.0 - x));
            close(libm::erf(y), x);
            assert_eq!(erfinv(-x), -y);
        }
        let euler = 0.577_215_664_901_532_9;
        close(digamma(1.0), -euler);
        close(digamma(0.5), -euler - 2.0 * 2f64.ln());
        close(digamma(-0.5), digamma(1.5) - PI / (-PI / 2.0).tan());
        close(zeta(2.0, 1.0), PI * PI / 6.0);
        close(zeta(4.0, 1.0), PI.powi(4) / 90.0);
        close(polygamma(1, 0.5), PI * PI / 2.0);
        close(polygamma(2, 1.0), -2.0 * 1.202_056_903_159_594_2);
        close(bessel_i(0, 1.0), 1.266_065_877_752_008_4);
        close(bessel_i(1, -1.0), -0.565_159_103_992_485);
        // The two series meet.
        for order in [0, 1] {
            let (below, above) = (bessel_i_scaled(order, 30.0), bessel_i_scaled(order, 30.0 + 1e-9));
            assert!((below - above).abs() < 1e-11, "{order}: {below} {above}");
        }
    }
}
