//! Numbers with their derivatives by a few variables.

use std::array::from_fn;
use std::ops::{Add, Mul, Sub};

/// A number and its derivatives by N variables.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Dual<const N: usize> {
    pub(super) value: f64,
    pub(super) slope: [f64; N],
}

impl<const N: usize> Dual<N> {
    pub(super) fn constant(value: f64) -> Self {
        Dual { value, slope: [0.0; N] }
    }

    /// The variable of this number.
    pub(super) fn variable(value: f64, at: usize) -> Self {
        Dual { value, slope: from_fn(|a| if a == at { 1.0 } else { 0.0 }) }
    }

    /// Its power.
    pub(super) fn power(self, p: f64) -> Self {
        let slope = p * self.value.powf(p - 1.0);
        Dual { value: self.value.powf(p), slope: self.slope.map(|s| s * slope) }
    }
}

impl<const N: usize> Add for Dual<N> {
    type Output = Self;
    fn add(self, o: Self) -> Self {
        Dual { value: self.value + o.value, slope: from_fn(|a| self.slope[a] + o.slope[a]) }
    }
}

impl<const N: usize> Sub for Dual<N> {
    type Output = Self;
    fn sub(self, o: Self) -> Self {
        self + o * -1.0
    }
}

impl<const N: usize> Mul for Dual<N> {
    type Output = Self;
    #[allow(clippy::suspicious_arithmetic_impl, reason = "the product rule is a sum")]
    fn mul(self, o: Self) -> Self {
        let slope = from_fn(|a| self.slope[a] * o.value + self.value * o.slope[a]);
        Dual { value: self.value * o.value, slope }
    }
}

impl<const N: usize> Mul<f64> for Dual<N> {
    type Output = Self;
    fn mul(self, by: f64) -> Self {
        Dual { value: self.value * by, slope: self.slope.map(|s| s * by) }
    }
}
