//! Discrete Fourier transforms on the CPU, in f64: by the factors of the length, long prime lengths as convolutions with a chirp.

use std::f64::consts::PI;
use std::ops::{Add, Mul, Sub};

use crate::buffer::{GradMut, View};
use crate::cpu::scratch::*;
use crate::cpu::values::collected;
use crate::cpu::{Kernels, gather_f64, store_grad};
use crate::error::Result;
use crate::ops::fourier::*;

#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Complex {
    re: f64,
    im: f64,
}

impl Complex {
    /// exp(2 pi i k / n), the angle taken from the nearest quarter of the circle.
    fn root(k: usize, n: usize) -> Self {
        let (k, n) = ((k % n) as u128, n as u128);
        let quarter = (4 * k + n / 2) / n;
        let rest = (4 * k) as f64 - (quarter * n) as f64;
        let (sin, cos) = (rest / n as f64 * (PI / 2.0)).sin_cos();
        let [re, im] = [[cos, sin], [-sin, cos], [-cos, -sin], [sin, -cos]][(quarter % 4) as usize];
        Complex { re, im }
    }

    fn conj(self) -> Self {
        Complex { re: self.re, im: -self.im }
    }

    fn scaled(self, by: f64) -> Self {
        Complex { re: self.re * by, im: self.im * by }
    }
}

impl Add for Complex {
    type Output = Self;
    fn add(self, o: Self) -> Self {
        Complex { re: self.re + o.re, im: self.im + o.im }
    }
}

impl Sub for Complex {
    type Output = Self;
    fn sub(self, o: Self) -> Self {
        Complex { re: self.re - o.re, im: self.im - o.im }
    }
}

impl Mul for Complex {
    type Output = Self;
    fn mul(self, o: Self) -> Self {
        Complex { re: self.re * o.re - self.im * o.im, im: self.re * o.im + self.im * o.re }
    }
}

/// Longest prime that is transformed by its definition.
const PRIME: usize = 61;

fn smallest_factor(n: usize) -> usize {
    (2..).take_while(|f| f * f <= n).find(|f| n.is_multiple_of(*f)).unwrap_or(n)
}

/// The forward transform, y_k = sum_j x_j exp(-2 pi i j k / n): of the parts whose numbers leave the same rest by the smallest factor.
fn forward(x: &[Complex]) -> Result<Vec<Complex>> {
    let n = x.len();
    if n <= 1 {
        return x.try_to_vec();
    }
    let f = smallest_factor(n);
    if f == n && n > PRIME {
        return chirp(x);
    }
    let m = n / f;
    let part = |r: usize| -> Result<Vec<Complex>> {
        let every: Vec<Complex> = x.iter().skip(r).step_by(f).copied().try_vec()?;
        forward(&every)
    };
    let parts: Vec<Vec<Complex>> = (0..f).map(part).try_vec_ok()?;
    let sum = |k: usize| {
        let terms = parts.iter().enumerate().map(|(r, part)| part[k % m] * Complex::root(r * k, n).conj());
        terms.fold(Complex::default(), Add::add)
    };
    (0..n).map(sum).try_vec()
}

/// The forward transform of a prime length as a convolution (Bluestein 1970): j k = (j^2 + k^2 - (k - j)^2) / 2.
fn chirp(x: &[Complex]) -> Result<Vec<Complex>> {
    let n = x.len();
    let m = (2 * n - 1).next_power_of_two();
    // exp(-pi i j^2 / n)
    let w = |j: usize| Complex::root((j * j) % (2 * n), 2 * n).conj();
    let a: Vec<Complex> = (0..m).map(|j| x.get(j).map_or_else(Complex::default, |x| *x * w(j))).try_vec()?;
    let filter = |j: usize| if j < n { w(j).conj() } else { Complex::default() };
    let b: Vec<Complex> = (0..m).map(|j| filter(j.min(m - j))).try_vec()?;
    let (a, b) = (forward(&a)?, forward(&b)?);
    // The inverse transform by the conjugates.
    let product: Vec<Complex> = a.iter().zip(&b).map(|(a, b)| (*a * *b).conj()).try_vec()?;
    let c = forward(&product)?;
    (0..n).map(|k| (c[k].conj() * w(k)).scaled(1.0 / m as f64)).try_vec()
}

/// One sequence of `data`, whose elements lie `step` apart from `at` on (real numbers, or pairs).
fn sequence(t: &Transforms, data: &[f64], at: usize) -> Result<Vec<Complex>> {
    let pair = |i: usize| Complex { re: data[2 * i], im: data[2 * i + 1] };
    let element = |j: usize| match t.from {
        Side::Real => Complex { re: data[at + j * t.inner], im: 0.0 },
        Side::Complex => pair(at + j * t.inner),
        Side::Half => {
            let k = j.min(t.n - j);
            let v = pair(at + k);
            match k == 0 || 2 * k == t.n {
                true => Complex { re: v.re, im: 0.0 },
                false => (if j > k { v.conj() } else { v }).scaled(t.p.inner),
            }
        }
    };
    (0..t.n).map(element).try_vec()
}

/// Transforms every sequence of `x`.
fn transform(t: &Transforms, x: &[f64], len: usize) -> Result<Vec<f64>> {
    let (from, to) = (t.from.len(t.n), t.to.len(t.n));
    let one = |i: usize| -> Result<Vec<Complex>> {
        let mut s = sequence(t, x, i / t.inner * from * t.inner + i % t.inner)?;
        // The inverse transform is the conjugate of the forward one of the conjugates.
        if t.p.inverse {
            s.iter_mut().for_each(|v| *v = v.conj());
        }
        let mut y = forward(&s)?;
        if t.p.inverse {
            y.iter_mut().for_each(|v| *v = v.conj());
        }
        Ok(y)
    };
    let all: Vec<_> = collected(t.outer * t.inner, 1, &one)?;
    let mut y = filled(len, 0.0)?;
    for (i, s) in all.into_iter().enumerate() {
        let at = i / t.inner * to * t.inner + i % t.inner;
        for (k, v) in s?.into_iter().take(to).enumerate() {
            let doubled = t.to == Side::Half && k != 0 && 2 * k != t.n;
            let v = v.scaled(t.p.scale * if doubled { t.p.inner } else { 1.0 });
            match t.to {
                Side::Real => y[at + k * t.inner] = v.re,
                _ => [y[2 * (at + k * t.inner)], y[2 * (at + k * t.inner) + 1]] = [v.re, v.im],
            }
        }
    }
    Ok(y)
}

impl Kernels {
    fn transforms(&self, op: &'static str, t: &Transforms, x: View<'_>, y: GradMut<'_>) -> Result<()> {
        let _timed = self.count(op);
        let all = match y.out.numel() {
            0 => Vec::new(),
            len => transform(t, &gather_f64(op, x)?, len)?,
        };
        store_grad(op, &y, &all)
    }
}

impl FourierOps for Kernels {
    fn fft(&self, p: &Fft, axis: usize, x: View<'_>, y: GradMut<'_>) -> Result<()> {
        self.transforms("fft", &check_fft(p, axis, &x, &y)?, x, y)
    }

    fn rfft(&self, p: &Fft, x: View<'_>, y: GradMut<'_>) -> Result<()> {
        self.transforms("rfft", &check_rfft(p, &x, &y)?, x, y)
    }

    fn irfft(&self, p: &Fft, x: View<'_>, y: GradMut<'_>) -> Result<()> {
        self.transforms("irfft", &check_irfft(p, &x, &y)?, x, y)
    }
}
