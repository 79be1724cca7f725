//! Functions of f32 without branches, which loops over slices turn into vector instructions. Range reduction and polynomials as in Moshier's Cephes
//! library (single precision); errors are in the tests, in units of the last place of f32.
//!
//! NaN stays NaN, and infinities give the limits.
#![allow(
    clippy::excessive_precision,
    clippy::approx_constant,
    reason = "coefficients of polynomials, some near known constants"
)]

/// `x` where `c` holds, else `y`.
#[inline(always)]
fn select(c: bool, x: f32, y: f32) -> f32 {
    if c { x } else { y }
}

/// The polynomial with these coefficients, the highest power's first.
#[inline(always)]
fn poly<const N: usize>(x: f32, c: [f32; N]) -> f32 {
    c.into_iter().fold(0.0, |sum, c| sum * x + c)
}

/// 2^n for n in [-126, 127].
#[inline(always)]
fn power_of_two(n: i32) -> f32 {
    f32::from_bits(((n + 127) << 23) as u32)
}

/// e^x
#[inline(always)]
pub(in crate::cpu) fn exp(x: f32) -> f32 {
    // 1.5 * 2^23: added, it leaves the nearest integer in the last bits.
    const ROUND: f32 = 12_582_912.0;
    const LN_2: [f32; 2] = [0.693_359_4, -2.121_944_4e-4];
    // Where the result is 0 it is not computed: numbers below the smallest normal one take the processor a hundred cycles.
    let zero = x < -104.0;
    let x = select(zero, 0.0, select(x > 89.0, 89.0, x));
    let shifted = x * std::f32::consts::LOG2_E + ROUND;
    let n = (shifted.to_bits() as i32).wrapping_sub(ROUND.to_bits() as i32);
    let whole = shifted - ROUND;
    let r = x - whole * LN_2[0] - whole * LN_2[1];
    let p = poly(r, [1.987_569_1e-4, 1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 5e-1]);
    let y = p * r * r + r + 1.0;
    // In two factors, which reach below the smallest normal number and beyond the largest.
    let half = n >> 1;
    select(zero, 0.0, y * power_of_two(half) * power_of_two(n.wrapping_sub(half)))
}

/// ln(x)
#[inline(always)]
pub(in crate::cpu) fn ln(x: f32) -> f32 {
    const SCALE: f32 = 8_388_608.0;
    let small = x < f32::MIN_POSITIVE;
    let bits = select(small, x * SCALE, x).to_bits() as i32;
    // The mantissa in [sqrt(1/2), sqrt(2)).
    let e = bits.wrapping_sub(0x3f35_04f3) >> 23;
    let m = f32::from_bits(bits.wrapping_sub(e << 23) as u32) - 1.0;
    let e = e as f32 - select(small, 23.0, 0.0);
    let z = m * m;
    let p = poly(
        m,
        [
            7.037_683_6e-2,
            -1.151_461e-1,
            1.167_699_87e-1,
            -1.242_014_1e-1,
            1.424_932_3e-1,
            -1.666_805_8e-1,
            2.000_071_5e-1,
            -2.499_999_4e-1,
            3.333_333_1e-1,
        ],
    );
    let y = m * z * p + e * -2.121_944_4e-4 - 0.5 * z;
    let y = m + y + e * 0.693_359_4;
    let y = select(x == 0.0, f32::NEG_INFINITY, y);
    let y = select(x < 0.0, f32::NAN, y);
    select(x == f32::INFINITY || x.is_nan(), x, y)
}

/// ln(1 + x) for x in [0, 1].
#[inline(always)]
fn ln_1p_unit(x: f32) -> f32 {
    // What 1 + x loses of x is made good to first order.
    let y = 1.0 + x;
    ln(y) + (x - (y - 1.0)) / y
}

/// tanh(x)
#[inline(always)]
pub(in crate::cpu) fn tanh(x: f32) -> f32 {
    let z = x * x;
    let c = [-5.704_988_7e-3, 2.063_908_9e-2, -5.373_971_6e-2, 1.333_144_2e-1, -3.333_328_2e-1];
    let near = poly(z, c) * z * x + x;
    let far = 1.0 - 2.0 / (exp(2.0 * x.abs()) + 1.0);
    select(x.abs() < 0.625, near, far).copysign(x)
}

/// 1 / (1 + e^-x)
#[inline(always)]
pub(in crate::cpu) fn sigmoid(x: f32) -> f32 {
    let e = exp(-x.abs());
    select(x < 0.0, e, 1.0) / (1.0 + e)
}

/// [`sigmoid`] and its derivative, which keeps its digits where the function is near 1.
#[inline(always)]
pub(in crate::cpu) fn sigmoid_and_slope(x: f32) -> (f32, f32) {
    let e = exp(-x.abs());
    let q = 1.0 / (1.0 + e);
    (select(x < 0.0, e, 1.0) * q, e * q * q)
}

/// ln(1 + e^x)
#[inline(always)]
pub(in crate::cpu) fn softplus(x: f32) -> f32 {
    select(x > 0.0, x, 0.0) + select(x.is_nan(), x, ln_1p_unit(exp(-x.abs())))
}

/// Standard normal distribution function: half of erfc(-x / sqrt 2).
#[inline(always)]
pub(in crate::cpu) fn normal_cdf(x: f32) -> f32 {
    let t = x * std::f32::consts::FRAC_1_SQRT_2;
    let (a, z) = (t.abs(), t * t);
    let near = [
        7.853_861_4e-5,
        -8.010_193_6e-4,
        5.188_327_7e-3,
        -2.685_381_2e-2,
        1.128_358_5e-1,
        -3.761_262_6e-1,
        1.128_379_2,
    ];
    // erfc(a) a e^(a^2), as polynomials of 1 / a^2.
    let middle = [
        2.326_82e-2,
        -1.387_039_4e-1,
        3.687_424_7e-1,
        -5.824_733e-1,
        6.210_004_6e-1,
        -4.944_515_3e-1,
        3.404_88e-1,
        -2.741_127e-1,
        5.638_259_4e-1,
    ];
    let far = [
        -1.047_766_4e1,
        1.297_72e1,
        -7.495_517_7,
        2.921_019,
        -1.015_265_3,
        4.218_463_4e-1,
        -2.820_767_4e-1,
        5.641_895e-1,
    ];
    let q = 1.0 / a;
    let r = q * q;
    let tail = 0.5 * exp(-0.5 * x * x) * q * select(a < 2.0, poly(r, middle), poly(r, far));
    let inner = 0.5 + 0.5 * t * poly(z, near);
    let outer = select(x > 0.0, 1.0 - tail, tail);
    let y = select(a < 1.0, inner, outer);
    // Beyond this the tail is 0 or its polynomial infinite.
    let y = select(x < -14.0, 0.0, y);
    select(x > 14.0, 1.0, y)
}

/// Density of the standard normal distribution.
#[inline(always)]
pub(in crate::cpu) fn normal_pdf(x: f32) -> f32 {
    exp(-0.5 * x * x) * 0.398_942_28
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, clippy::disallowed_macros)]
mod tests {
    use super::*;

    /// Values of every exponent and both signs, and what lies at the edges.
    fn numbers() -> impl Iterator<Item = f32> {
        let edges = [
            0.0,
            -0.0,
            f32::INFINITY,
            f32::NEG_INFINITY,
            f32::MIN_POSITIVE,
            1e-45,
            f32::MAX,
            88.72,
            -87.4,
            -103.9,
        ];
        (0..1u32 << 20).map(|i| f32::from_bits(i << 12 | (i.wrapping_mul(0x9e37_79b9) >> 20))).chain(edges)
    }

    /// The largest error of `f` in units of the last place of the result, or of `floor` for smaller results.
    fn error(f: fn(f32) -> f32, exact: impl Fn(f64) -> f64, within: std::ops::Range<f32>, floor: f64) -> f64 {
        let mut worst = 0.0f64;
        for x in numbers().filter(|x| within.contains(x)) {
            let (got, want) = (f(x), exact(f64::from(x)));
            if f64::from(got) == want || (got.is_infinite() && (want as f32) == got) {
                continue;
            }
            let ulp = f64::from(f32::EPSILON) / 2.0 * want.abs().max(floor).log2().floor().exp2() * 2.0;
            worst = worst.max((f64::from(got) - want).abs() / ulp);
            assert!(got.is_finite(), "{x}: {got} for {want}");
        }
        worst
    }

    #[test]
    fn errors_are_of_a_few_units() {
        let all = f32::NEG_INFINITY..f32::INFINITY;
        let smallest = f64::from(f32::MIN_POSITIVE);
        let worst = [
            ("exp", error(exp, f64::exp, all.clone(), smallest), 2.0),
            ("ln", error(ln, f64::ln, 1e-45..f32::INFINITY, smallest), 2.0),
            ("tanh", error(tanh, f64::tanh, all.clone(), smallest), 3.0),
            ("sigmoid", error(sigmoid, |x| 1.0 / (1.0 + (-x).exp()), all.clone(), smallest), 4.0),
            (
                "softplus",
                error(softplus, |x| x.max(0.0) + (-x.abs()).exp().ln_1p(), all.clone(), smallest),
                4.0,
            ),
            (
                "normal_cdf",
                error(normal_cdf, |x| 0.5 * libm::erfc(-x / 2f64.sqrt()), all.clone(), 1e-7),
                16.0,
            ),
            (
                "normal_pdf",
                error(normal_pdf, |x| (-0.5 * x * x).exp() / (2.0 * std::f64::consts::PI).sqrt(), all, 1e-7),
                16.0,
            ),
        ];
        println!("{worst:?}");
        for (name, got, most) in worst {
            assert!(got <= most, "{name}: {got} units of the last place, expected at most {most}");
        }
    }

    #[test]
    fn limits_are_those_of_the_functions() {
        for f in [exp, ln, tanh, sigmoid, softplus, normal_cdf, normal_pdf] {
            assert!(f(f32::NAN).is_nan());
        }
        assert_eq!((exp(f32::INFINITY), exp(f32::NEG_INFINITY), exp(0.0)), (f32::INFINITY, 0.0, 1.0));
        assert_eq!((ln(0.0), ln(f32::INFINITY), ln(1.0)), (f32::NEG_INFINITY, f32::INFINITY, 0.0));
        assert!(ln(-1.0).is_nan());
        assert_eq!((tanh(f32::INFINITY), tanh(f32::NEG_INFINITY)), (1.0, -1.0));
        assert_eq!((tanh(-0.0).to_bits(), tanh(-40.0)), ((-0.0f32).to_bits(), -1.0));
        assert_eq!((sigmoid(f32::INFINITY), sigmoid(f32::NEG_INFINITY)), (1.0, 0.0));
        assert_eq!((softplus(f32::INFINITY), softplus(f32::NEG_INFINITY)), (f32::INFINITY, 0.0));
        assert_eq!((normal_cdf(f32::INFINITY), normal_cdf(f32::NEG_INFINITY)), (1.0, 0.0));
    }
}
