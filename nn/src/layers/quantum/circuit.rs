//! A circuit of rotations, simulated.

use std::f64::consts::TAU;

use trefoil::ops::shape::PadMode;

use crate::core::autograd::{BackwardCtx, CustomOp, apply};
use crate::core::error::{Result, invalid};
use crate::core::tensor::{Tensor, same_dtype};
use crate::layers::spatial::{named, positive};
use crate::module::{Init, InitContext, Layer, Param, Visitor};

const OP: &str = "Quantum";
/// A state has 2^n amplitudes.
const MOST_QUBITS: usize = 20;

/// A parameterised circuit on n simulated qubits, `[.., d] -> [.., 2^n]` with d up to 2^n. x / |x|, padded with zeros, are the amplitudes of
/// the first state; qubit q is bit q of an amplitude's index. Each layer turns every qubit q by RX(theta_q) = exp(-i theta_q X / 2) and may
/// [entangle](Quantum::ring) them. The result is the probability of each of the 2^n basis states, or [`expval_z`](Quantum::expval_z).
///
/// State: `theta [layers, n]` from U(0, 2 pi), which training does not wrap. The backward pass runs the circuit back from its last state, so
/// that no other is stored.
///
/// Errors of `forward`: a last axis that is empty or above 2^n. A row of zeros is no state: its results are NaN.
#[derive(Debug)]
pub struct Quantum {
    cx: InitContext,
    circuit: Circuit,
    theta: Param,
    expval: bool,
}

impl Quantum {
    /// `num_qubits` qubits, one layer, no entanglement, probabilities. Errors: a number of qubits outside of 1 to 20.
    pub fn new(cx: &InitContext, num_qubits: usize) -> Result<Self> {
        if !(1..=MOST_QUBITS).contains(&num_qubits) {
            return Err(invalid(OP, "num_qubits", format!("1 to {MOST_QUBITS}"), format!("{num_qubits}")));
        }
        let circuit = Circuit { qubits: num_qubits, ring: false };
        Ok(Quantum { cx: cx.clone(), circuit, theta: angles(cx, 1, num_qubits)?, expval: false })
    }

    /// Sets the number of layers and draws the angles anew. Errors: 0.
    pub fn num_layers(mut self, n: usize) -> Result<Self> {
        positive(OP, "num_layers", &[n])?;
        self.theta = angles(&self.cx, n, self.circuit.qubits)?;
        Ok(self)
    }

    /// Ends each layer with a controlled not from every qubit to the next, the last one's target being the first qubit.
    pub fn ring(mut self) -> Self {
        self.circuit.ring = true;
        self
    }

    /// Gives the expectations of Z of the qubits, `[.., n]`: the probability that a qubit is 0 less that it is 1.
    pub fn expval_z(mut self) -> Self {
        self.expval = true;
        self
    }
}

fn angles(cx: &InitContext, layers: usize, qubits: usize) -> Result<Param> {
    Init::Uniform { lo: 0.0, hi: TAU }.param(cx, &[layers, qubits], qubits, qubits)
}

impl Layer for Quantum {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let size = 1 << self.circuit.qubits;
        let (lead, d) = match x.shape() {
            [lead @ .., d] if (1..=size).contains(d) => (lead, *d),
            other => {
                let expected = format!("shape [.., d] with d from 1 to {size}");
                return Err(invalid(OP, "x", expected, format!("shape {other:?}")));
            }
        };
        same_dtype(OP, x, &self.theta.get())?;
        let rows = x.reshape(&[x.numel() / d, d])?;
        let unit = rows.div(&rows.norm_axes(2.0, &[-1], true)?)?;
        let unit = unit.pad(PadMode::Constant(0.0), &[(0, 0), (0, (size - d) as isize)])?;
        let states = named(OP, apply(self.circuit, &[unit, self.theta.get()]))?;
        let mut y = states[0].square()?.sum_axes(&[0], false)?;
        if self.expval {
            y = y.matmul(&self.circuit.signs(&y)?)?;
        }
        y.reshape(&[lead, &y.shape()[1..]].concat())
    }

    fn visit(&self, v: &mut Visitor<'_>) {
        v.param("theta", &self.theta);
    }
}

/// The layers of rotations. States are `[2, B, 2^n]`: real parts, then imaginary parts.
#[derive(Debug, Clone, Copy)]
struct Circuit {
    qubits: usize,
    ring: bool,
}

/// 1 and -1, made on the device.
fn sign(like: &Tensor) -> Result<Tensor> {
    Tensor::linspace(like.device(), like.dtype(), 1.0, -1.0, 2)
}

/// X psi of a qubit with real and imaginary parts exchanged: -i X psi but for the sign of the imaginary parts.
fn exchanged(psi: &Tensor, qubit: usize) -> Result<Tensor> {
    let (b, n) = (psi.shape()[1], psi.shape()[2]);
    psi.reshape(&[2, b, n >> (qubit + 1), 2, 1 << qubit])?.flip(&[0, 3])?.reshape(&[2, b, n])
}

/// Controlled not, which is its own inverse.
fn cnot(psi: &Tensor, control: usize, target: usize) -> Result<Tensor> {
    let (b, n) = (psi.shape()[1], psi.shape()[2]);
    let (high, low) = (control.max(target), control.min(target));
    let bits = psi.reshape(&[2, b, n >> (high + 1), 2, 1 << (high - low - 1), 2, 1 << low])?;
    let (c, t) = if control == high { (3, 5) } else { (5, 3) };
    let on = bits.narrow(c, 1, 1)?.flip(&[t])?;
    Tensor::concat(c, &[&bits.narrow(c, 0, 1)?, &on])?.reshape(&[2, b, n])
}

impl Circuit {
    /// The rotations of a layer by angles whose cosines and sines `[n]` are given, in the direction of `sign [2, 1, 1]`.
    fn rotate(self, mut psi: Tensor, cos: &Tensor, sin: &Tensor, sign: &Tensor) -> Result<Tensor> {
        for q in 0..self.qubits {
            let turned = exchanged(&psi, q)?.mul(&sin.select(0, q)?.mul(sign)?)?;
            psi = psi.mul(&cos.select(0, q)?)?.add(&turned)?;
        }
        Ok(psi)
    }

    /// The ring of controlled nots, or its inverse.
    fn entangle(self, mut psi: Tensor, inverse: bool) -> Result<Tensor> {
        let n = self.qubits;
        if self.ring && n > 1 {
            for i in 0..n {
                let q = if inverse { n - 1 - i } else { i };
                psi = cnot(&psi, q, (q + 1) % n)?;
            }
        }
        Ok(psi)
    }

    /// The sign of Z of each qubit in each basis state, `[2^n, n]`.
    fn signs(self, like: &Tensor) -> Result<Tensor> {
        let pair = sign(like)?.reshape(&[1, 2, 1])?;
        let of = |q: usize| {
            let shape = [1 << (self.qubits - q - 1), 2, 1 << q];
            pair.expand(&shape)?.reshape(&[1 << self.qubits])
        };
        let columns = (0..self.qubits).map(of).collect::<Result<Vec<_>>>()?;
        Tensor::stack(1, &columns.iter().collect::<Vec<_>>())
    }
}

/// Inputs: amplitudes `[B, 2^n]` and angles `[layers, n]`; output: the last state.
impl CustomOp for Circuit {
    fn name(&self) -> &'static str {
        "rotations"
    }

    fn forward(&self, inputs: &[Tensor], save: &mut Vec<Tensor>) -> Result<Vec<Tensor>> {
        let (re, theta) = (&inputs[0], &inputs[1]);
        let half = theta.mul_scalar(0.5)?;
        let (cos, sin, sign) = (half.cos()?, half.sin()?, sign(re)?.reshape(&[2, 1, 1])?);
        let mut psi = Tensor::stack(0, &[re, &re.zeros_like()?])?;
        for l in 0..theta.shape()[0] {
            psi = self.rotate(psi, &cos.select(0, l)?, &sin.select(0, l)?, &sign)?;
            psi = self.entangle(psi, false)?;
        }
        save.extend([psi.clone(), theta.clone()]);
        Ok(vec![psi])
    }

    /// The adjoint method: state and gradient go back through the gates together. The derivative of a rotated state by its angle is -i X / 2
    /// of it, and as the rotations of a layer commute, all of them may be taken of the state behind the layer.
    fn backward(&self, cx: &mut BackwardCtx<'_>, saved: &[Tensor]) -> Result<()> {
        let (psi, theta) = (&saved[0], &saved[1]);
        let half = theta.mul_scalar(0.5)?;
        let (cos, sin, sign) = (half.cos()?, half.sin()?, sign(psi)?.reshape(&[2, 1, 1])?);
        let back = sign.neg()?;
        let b = psi.shape()[1];
        let mut both = Tensor::concat(1, &[psi, &cx.dy()?])?;
        let mut rows = vec![];
        for l in (0..theta.shape()[0]).rev() {
            both = self.entangle(both, true)?;
            let (psi, dpsi) = (both.narrow(1, 0, b)?, both.narrow(1, b, b)?.mul(&sign)?);
            let of = |q: usize| exchanged(&psi, q)?.mul(&dpsi)?.sum();
            let row = (0..self.qubits).map(of).collect::<Result<Vec<_>>>()?;
            rows.push(Tensor::stack(0, &row.iter().collect::<Vec<_>>())?);
            both = self.rotate(both, &cos.select(0, l)?, &sin.select(0, l)?, &back)?;
        }
        rows.reverse();
        cx.give(0, both.narrow(1, b, b)?.select(0, 0)?)?;
        cx.give(1, Tensor::stack(0, &rows.iter().collect::<Vec<_>>())?.mul_scalar(0.5)?)
    }
}
