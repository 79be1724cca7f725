//! Reverse-mode differentiation of scalar expressions, for losses: each is written once, as its formula, and the gradient follows from it.
//! It shares nothing with the hand-derived gradients of the kernels.

use std::cell::RefCell;
use std::ops::{Add, Div, Mul, Neg, Sub};

use crate::cpu::scratch::*;
use crate::error::{GpuError, Result};

/// Up to two operands with the derivatives by them.
#[derive(Debug, Clone, Copy)]
struct Node {
    from: [usize; 2],
    slope: [f64; 2],
}

/// Place of a constant: it has no node.
const CONSTANT: usize = usize::MAX;

/// Records the operations of one expression.
#[derive(Debug, Default)]
pub(in crate::cpu) struct Tape {
    nodes: RefCell<Vec<Node>>,
    /// The first operation that found no memory: operators cannot return it, [`Tape::gradient`] does.
    failed: RefCell<Option<GpuError>>,
}

/// A number with its place on the tape.
#[derive(Debug, Clone, Copy)]
pub(in crate::cpu) struct Var<'t> {
    tape: &'t Tape,
    at: usize,
    /// Value.
    pub(in crate::cpu) v: f64,
}

impl Tape {
    pub(in crate::cpu) fn constant(&self, v: f64) -> Var<'_> {
        Var { tape: self, at: CONSTANT, v }
    }

    pub(in crate::cpu) fn input(&self, v: f64) -> Var<'_> {
        self.push(v, [(CONSTANT, 0.0); 2])
    }

    pub(in crate::cpu) fn inputs(&self, v: &[f64]) -> Result<Vec<Var<'_>>> {
        v.iter().map(|&v| self.input(v)).try_vec()
    }

    /// Forgets everything, to be used for the next expression.
    pub(in crate::cpu) fn clear(&mut self) {
        self.nodes.get_mut().clear();
        *self.failed.get_mut() = None;
    }

    fn push(&self, v: f64, edges: [(usize, f64); 2]) -> Var<'_> {
        let mut nodes = self.nodes.borrow_mut();
        if let Err(e) = nodes.try_push(Node { from: edges.map(|e| e.0), slope: edges.map(|e| e.1) }) {
            self.failed.borrow_mut().get_or_insert(e);
            return self.constant(v);
        }
        Var { tape: self, at: nodes.len() - 1, v }
    }

    /// A function of two numbers with its derivatives; a constant if both are.
    fn binary<'t>(&'t self, v: f64, a: (usize, f64), b: (usize, f64)) -> Var<'t> {
        if a.0 == CONSTANT && b.0 == CONSTANT { self.constant(v) } else { self.push(v, [a, b]) }
    }

    /// Derivatives of `y` by everything on the tape.
    pub(in crate::cpu) fn gradient(&self, y: Var<'_>) -> Result<Gradient> {
        if let Some(e) = &*self.failed.borrow() {
            return Err(e.clone());
        }
        let nodes = self.nodes.borrow();
        let mut d = filled(nodes.len(), 0.0)?;
        if y.at != CONSTANT {
            d[y.at] = 1.0;
        }
        for i in (0..nodes.len()).rev().filter(|i| *i <= y.at) {
            if d[i] == 0.0 {
                continue; // nothing flows through: an infinite slope there must not give NaN
            }
            for (&from, slope) in nodes[i].from.iter().zip(nodes[i].slope) {
                if from != CONSTANT {
                    d[from] += d[i] * slope;
                }
            }
        }
        Ok(Gradient(d))
    }
}

/// Derivatives by place.
#[derive(Debug)]
pub(in crate::cpu) struct Gradient(Vec<f64>);

impl Gradient {
    pub(in crate::cpu) fn of(&self, x: Var<'_>) -> f64 {
        self.0.get(x.at).copied().unwrap_or(0.0)
    }
}

macro_rules! binary_op {
    ($trait:ident, $method:ident, |$a:ident, $b:ident| $v:expr, $da:expr, $db:expr) => {
        impl<'t> $trait for Var<'t> {
            type Output = Var<'t>;
            fn $method(self, other: Var<'t>) -> Var<'t> {
                let ($a, $b) = (self.v, other.v);
                self.tape.binary($v, (self.at, $da), (other.at, $db))
            }
        }
        impl<'t> $trait<f64> for Var<'t> {
            type Output = Var<'t>;
            fn $method(self, other: f64) -> Var<'t> {
                self.$method(self.tape.constant(other))
            }
        }
        impl<'t> $trait<Var<'t>> for f64 {
            type Output = Var<'t>;
            fn $method(self, other: Var<'t>) -> Var<'t> {
                other.tape.constant(self).$method(other)
            }
        }
    };
}
binary_op!(Add, add, |a, b| a + b, 1.0, 1.0);
binary_op!(Sub, sub, |a, b| a - b, 1.0, -1.0);
binary_op!(Mul, mul, |a, b| a * b, b, a);
binary_op!(Div, div, |a, b| a / b, 1.0 / b, -a / (b * b));

impl<'t> Neg for Var<'t> {
    type Output = Var<'t>;
    fn neg(self) -> Var<'t> {
        self.unary(-self.v, -1.0)
    }
}

impl<'t> Var<'t> {
    /// A function of this number: value and derivative.
    pub(in crate::cpu) fn unary(self, v: f64, slope: f64) -> Var<'t> {
        self.tape.binary(v, (self.at, slope), (CONSTANT, 0.0))
    }

    /// The value, without derivative.
    pub(in crate::cpu) fn detach(self) -> Var<'t> {
        self.tape.constant(self.v)
    }

    pub(in crate::cpu) fn sq(self) -> Var<'t> {
        self * self
    }

    pub(in crate::cpu) fn exp(self) -> Var<'t> {
        self.unary(self.v.exp(), self.v.exp())
    }

    pub(in crate::cpu) fn expm1(self) -> Var<'t> {
        self.unary(self.v.exp_m1(), self.v.exp())
    }

    pub(in crate::cpu) fn ln(self) -> Var<'t> {
        self.unary(self.v.ln(), 1.0 / self.v)
    }

    /// Derivative 0 at 0.
    pub(in crate::cpu) fn sqrt(self) -> Var<'t> {
        let r = self.v.sqrt();
        self.unary(r, if r == 0.0 { 0.0 } else { 0.5 / r })
    }

    /// x^p; derivative 0 where x = 0.
    pub(in crate::cpu) fn powf(self, p: f64) -> Var<'t> {
        self.unary(self.v.powf(p), if self.v == 0.0 { 0.0 } else { p * self.v.powf(p - 1.0) })
    }

    /// |x| with derivative 0 at 0.
    pub(in crate::cpu) fn abs(self) -> Var<'t> {
        let sign = if self.v == 0.0 { 0.0 } else { 1f64.copysign(self.v) };
        self.unary(self.v.abs(), sign)
    }

    pub(in crate::cpu) fn cos(self) -> Var<'t> {
        self.unary(self.v.cos(), -self.v.sin())
    }

    pub(in crate::cpu) fn acos(self) -> Var<'t> {
        self.unary(self.v.acos(), -1.0 / (1.0 - self.v * self.v).sqrt())
    }

    pub(in crate::cpu) fn atan(self) -> Var<'t> {
        self.unary(self.v.atan(), 1.0 / (1.0 + self.v * self.v))
    }

    pub(in crate::cpu) fn sigmoid(self) -> Var<'t> {
        let y = 1.0 / (1.0 + (-self.v).exp());
        self.unary(y, y * (1.0 - y))
    }

    /// ln(1 + e^x)
    pub(in crate::cpu) fn softplus(self) -> Var<'t> {
        self.unary(
            if self.v > 0.0 { self.v } else { 0.0 } + (-self.v.abs()).exp().ln_1p(),
            1.0 / (1.0 + (-self.v).exp()),
        )
    }

    /// max(x, 0), derivative 0 at 0; NaN stays.
    pub(in crate::cpu) fn relu(self) -> Var<'t> {
        if self.v <= 0.0 { self.unary(0.0, 0.0) } else { self }
    }

    /// The larger number; NaN stays, ties go to `self`.
    pub(in crate::cpu) fn max(self, other: Var<'t>) -> Var<'t> {
        if self.v >= other.v || self.v.is_nan() { self } else { other }
    }

    /// The smaller number; NaN stays, ties go to `self`.
    pub(in crate::cpu) fn min(self, other: Var<'t>) -> Var<'t> {
        if self.v <= other.v || self.v.is_nan() { self } else { other }
    }

    /// max(x, bound) for a constant bound.
    pub(in crate::cpu) fn at_least(self, bound: f64) -> Var<'t> {
        self.max(self.tape.constant(bound))
    }
}

/// Sum of terms.
pub(in crate::cpu) fn sum<'t>(tape: &'t Tape, terms: impl IntoIterator<Item = Var<'t>>) -> Var<'t> {
    terms.into_iter().fold(tape.constant(0.0), |a, b| a + b)
}

/// Inner product.
pub(in crate::cpu) fn dot<'t>(a: &[Var<'t>], b: &[Var<'t>], tape: &'t Tape) -> Var<'t> {
    sum(tape, a.iter().zip(b).map(|(&a, &b)| a * b))
}

/// ln sum e^x; -infinity for nothing; NaN stays.
pub(in crate::cpu) fn lse<'t>(tape: &'t Tape, x: &[Var<'t>]) -> Var<'t> {
    if x.iter().any(|x| x.v.is_nan()) {
        return tape.constant(f64::NAN);
    }
    let m = x.iter().fold(f64::NEG_INFINITY, |m, x| m.max(x.v));
    if m == f64::NEG_INFINITY {
        return tape.constant(m);
    }
    sum(tape, x.iter().map(|&x| (x - m).exp())).ln() + m
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gradients_of_a_composition() {
        let tape = Tape::default();
        let (x, y) = (tape.input(0.7), tape.input(-1.3));
        let f = |x: f64, y: f64| ((x * y).exp() + x / y).atan() * (x * x + 1.0).sqrt();
        let z = ((x * y).exp() + x / y).atan() * (x.sq() + 1.0).sqrt();
        let g = tape.gradient(z).unwrap();
        let h = 1e-6;
        assert!((z.v - f(0.7, -1.3)).abs() < 1e-15);
        assert!((g.of(x) - (f(0.7 + h, -1.3) - f(0.7 - h, -1.3)) / (2.0 * h)).abs() < 1e-8);
        assert!((g.of(y) - (f(0.7, -1.3 + h) - f(0.7, -1.3 - h)) / (2.0 * h)).abs() < 1e-8);
    }
}
