//! Models of spiking neurons: a step of each.

use super::surrogate::Surrogate;
use crate::core::error::{Result, invalid};
use crate::core::tensor::Tensor;

/// A model of a neuron. The first two have no units; in the others potentials are in mV and times in ms.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum Neuron {
    /// Leaky integrate-and-fire: u_t = beta u_{t-1} + I_t, which spikes above the threshold.
    LeakyIntegrateAndFire {
        /// What is left of the potential after a step, in [0, 1].
        beta: f64,
    },
    /// The same without a leak.
    IntegrateAndFire,
    /// Izhikevich (2003), regular spiking: v' = 0.04 v^2 + 5 v + 140 - u + I, u' = 0.02 (0.2 v - u); above 30 a spike, v = -65, u += 8.
    Izhikevich,
    /// Adaptive exponential integrate-and-fire of Brette and Gerstner (2005), with their constants; above 0 a spike. Currents in pA.
    AdaptiveExponential,
    /// Hodgkin and Huxley (1952), with a resting potential of -65: a spike is a crossing of 0 from below.
    HodgkinHuxley,
}

impl Neuron {
    /// Leaky integrate-and-fire with beta = 1 - 1 / tau. Errors: a number of steps below 1.
    pub fn leaky(tau: f64) -> Result<Self> {
        if !(tau >= 1.0 && tau.is_finite()) {
            return Err(invalid("Spiking", "tau", "a finite number of at least 1", format!("{tau}")));
        }
        Ok(Neuron::LeakyIntegrateAndFire { beta: 1.0 - 1.0 / tau })
    }

    /// Whether threshold, reset and refractory steps are options, and not part of the model.
    pub(super) fn integrates(self) -> bool {
        matches!(self, Neuron::LeakyIntegrateAndFire { .. } | Neuron::IntegrateAndFire)
    }

    /// The step of time that is usual.
    pub(super) fn usual_dt(self) -> f64 {
        if self == Neuron::HodgkinHuxley { 0.01 } else { 1.0 }
    }
}

/// What a spike does to the potential of an integrate-and-fire neuron in the next step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum SpikeReset {
    /// The threshold is subtracted.
    #[default]
    Subtract,
    /// It becomes 0.
    Zero,
    /// Nothing.
    None,
}

/// A neuron with its options.
#[derive(Debug, Clone, Copy)]
pub(super) struct Dynamics {
    pub(super) neuron: Neuron,
    pub(super) threshold: f64,
    pub(super) reset: SpikeReset,
    pub(super) refractory: usize,
    pub(super) surrogate: Surrogate,
    pub(super) dt: f64,
    /// Whether gradients pass by what spikes do to the neuron itself.
    pub(super) detach_reset: bool,
}

/// What a step gives.
pub(super) struct Step {
    pub(super) spike: Tensor,
    /// The potential that was compared with the threshold.
    pub(super) membrane: Tensor,
    pub(super) state: Vec<Tensor>,
}

/// Constants of the adaptive exponential neuron: pF, nS, mV, ms, pA.
mod adaptive {
    pub(super) const C: f64 = 281.0;
    pub(super) const G_LEAK: f64 = 30.0;
    pub(super) const E_LEAK: f64 = -70.6;
    pub(super) const V_T: f64 = -50.4;
    pub(super) const DELTA: f64 = 2.0;
    pub(super) const TAU_W: f64 = 144.0;
    pub(super) const A: f64 = 4.0;
    pub(super) const B: f64 = 80.5;
}

/// Constants of Izhikevich's neuron.
mod izhikevich {
    pub(super) const A: f64 = 0.02;
    pub(super) const B: f64 = 0.2;
    pub(super) const C: f64 = -65.0;
    pub(super) const D: f64 = 8.0;
}

/// Constants of Hodgkin and Huxley: mS/cm^2, mV.
mod squid {
    pub(super) const G: [f64; 3] = [120.0, 36.0, 0.3];
    pub(super) const E: [f64; 3] = [50.0, -77.0, -54.387];
    pub(super) const REST: f64 = -65.0;
}

/// x / (1 - e^-x), 1 at 0.
fn linoid(x: &Tensor) -> Result<Tensor> {
    // The quotient stays away from 0 / 0, whose gradient would be NaN.
    let small = x.abs()?.lt_scalar(1e-4)?;
    let safe = x.masked_fill(&small, 1.0)?;
    let quotient = safe.div(&safe.neg()?.expm1()?)?.neg()?;
    x.mul_scalar(0.5)?.add_scalar(1.0)?.where_(&small, &quotient)
}

/// Opening and closing rates of the gates m, h, n at potentials v.
fn rates(v: &Tensor) -> Result<[[Tensor; 2]; 3]> {
    let scaled = |from: f64, by: f64| v.mul_scalar(by)?.add_scalar(-from * by);
    let decay = |factor: f64, by: f64| scaled(squid::REST, -1.0 / by)?.exp()?.mul_scalar(factor);
    Ok([
        [linoid(&scaled(-40.0, 0.1)?)?, decay(4.0, 18.0)?],
        [decay(0.07, 20.0)?, scaled(-35.0, 0.1)?.sigmoid()?],
        [linoid(&scaled(-55.0, 0.1)?)?.mul_scalar(0.1)?, decay(0.125, 80.0)?],
    ])
}

/// Error of a state that is not one of this neuron.
fn foreign(state: &[Tensor]) -> Result<Step> {
    Err(invalid("Spiking", "state", "the state of such a neuron", format!("{} tensors", state.len())))
}

impl Dynamics {
    /// The state at rest, `[B, O]` each, like these currents.
    pub(super) fn initial(&self, current: &Tensor) -> Result<Vec<Tensor>> {
        let constant = |value: f64| current.detach().full_like(value);
        match self.neuron {
            Neuron::LeakyIntegrateAndFire { .. } | Neuron::IntegrateAndFire => {
                (0..if self.refractory > 0 { 3 } else { 2 }).map(|_| constant(0.0)).collect()
            }
            Neuron::Izhikevich => {
                [izhikevich::C, izhikevich::B * izhikevich::C].map(constant).into_iter().collect()
            }
            Neuron::AdaptiveExponential => [adaptive::E_LEAK, 0.0].map(constant).into_iter().collect(),
            Neuron::HodgkinHuxley => {
                let v = constant(squid::REST)?;
                let steady = rates(&v)?.map(|[open, close]| open.div(&open.add(&close)?));
                std::iter::once(Ok(v)).chain(steady).collect()
            }
        }
    }

    /// One step with currents `[B, O]`.
    pub(super) fn step(&self, current: &Tensor, state: &[Tensor]) -> Result<Step> {
        match self.neuron {
            Neuron::LeakyIntegrateAndFire { beta } => self.integrate(beta, current, state),
            Neuron::IntegrateAndFire => self.integrate(1.0, current, state),
            Neuron::Izhikevich => self.izhikevich(current, state),
            Neuron::AdaptiveExponential => self.adaptive(current, state),
            Neuron::HodgkinHuxley => self.hodgkin_huxley(current, state),
        }
    }

    /// A spike as it acts on the neuron itself.
    fn acting(&self, spike: &Tensor) -> Tensor {
        if self.detach_reset { spike.detach() } else { spike.clone() }
    }

    /// State: potential, whether the last step spiked, and the refractory steps that are left, where there are any.
    fn integrate(&self, beta: f64, current: &Tensor, state: &[Tensor]) -> Result<Step> {
        let [u, spiked, waits @ ..] = state else { return foreign(state) };
        let active = waits.first().map(|left| left.rsub_scalar(1.0)?.relu()).transpose()?;
        let only_active = |t: &Tensor| active.as_ref().map_or_else(|| Ok(t.clone()), |a| t.mul(a));
        let current = only_active(current)?;
        let spiked = self.acting(spiked);
        let u = match self.reset {
            SpikeReset::Subtract => current.add_scaled(u, beta)?.add_scaled(&spiked, -self.threshold)?,
            SpikeReset::Zero => current.add_scaled(&u.mul(&spiked.rsub_scalar(1.0)?)?, beta)?,
            SpikeReset::None => current.add_scaled(u, beta)?,
        };
        let spike = only_active(&self.surrogate.spike(&u.sub_scalar(self.threshold)?)?)?;
        let mut state = vec![u.clone(), spike.clone()];
        if let Some(left) = waits.first() {
            let left = left.sub_scalar(1.0)?.relu()?;
            state.push(left.add_scaled(&spike.detach(), self.refractory as f64)?);
        }
        Ok(Step { spike, membrane: u, state })
    }

    /// State: potential and recovery.
    fn izhikevich(&self, current: &Tensor, state: &[Tensor]) -> Result<Step> {
        use izhikevich::{A, B, C, D};
        let [v, u] = state else { return foreign(state) };
        let h = 0.5 * self.dt;
        let drive = current.sub(u)?.add_scalar(140.0)?;
        let half = |v: &Tensor| {
            v.square()?.mul_scalar(0.04 * h)?.add_scaled(v, 1.0 + 5.0 * h)?.add_scaled(&drive, h)
        };
        let v = half(&half(v)?)?;
        let u = u.mul_scalar(1.0 - self.dt * A)?.add_scaled(&v, self.dt * A * B)?;
        let spike = self.surrogate.spike(&v.sub_scalar(30.0)?)?;
        let acting = self.acting(&spike);
        let state = vec![set_where(&v, &acting, C)?, u.add_scaled(&acting, D)?];
        Ok(Step { spike, membrane: v, state })
    }

    /// State: potential and adaptation.
    fn adaptive(&self, current: &Tensor, state: &[Tensor]) -> Result<Step> {
        use adaptive::{A, B, C, DELTA, E_LEAK, G_LEAK, TAU_W, V_T};
        let [v, w] = state else { return foreign(state) };
        // The exponent is bounded, since it grows without limit behind the threshold.
        let growth = v.sub_scalar(V_T)?.mul_scalar(1.0 / DELTA)?.clamp(None, Some(20.0))?.exp()?;
        let above = v.sub_scalar(E_LEAK)?;
        let slope = current.sub(w)?.add_scaled(&above, -G_LEAK)?.add_scaled(&growth, G_LEAK * DELTA)?;
        let next = v.add_scaled(&slope, self.dt / C)?;
        let w = w.add_scaled(&above.mul_scalar(A)?.sub(w)?, self.dt / TAU_W)?;
        let spike = self.surrogate.spike(&next)?;
        let acting = self.acting(&spike);
        let state = vec![set_where(&next, &acting, E_LEAK)?, w.add_scaled(&acting, B)?];
        Ok(Step { spike, membrane: next, state })
    }

    /// State: potential and the gates m, h, n.
    fn hodgkin_huxley(&self, current: &Tensor, state: &[Tensor]) -> Result<Step> {
        let [v, m, h, n] = state else { return foreign(state) };
        let open = [m.square()?.mul(m)?.mul(h)?, n.square()?.square()?];
        let [sodium, potassium, leak] = [0, 1, 2].map(|i| (squid::G[i], squid::E[i]));
        let flow = |(g, e): (f64, f64)| v.sub_scalar(e)?.mul_scalar(g);
        let out = flow(sodium)?.mul(&open[0])?.add(&flow(potassium)?.mul(&open[1])?)?.add(&flow(leak)?)?;
        let next = v.add_scaled(&current.sub(&out)?, self.dt)?;
        let gates = [m, h, n].into_iter().zip(rates(v)?).map(|(gate, [opens, closes])| {
            // opens (1 - gate) - closes gate
            gate.add_scaled(&opens.sub(&opens.add(&closes)?.mul(gate)?)?, self.dt)
        });
        let gates = gates.collect::<Result<Vec<_>>>()?;
        let below = v.detach().le_scalar(0.0)?.to_dtype(v.dtype())?;
        let spike = self.surrogate.spike(&next)?.mul(&below)?;
        Ok(Step { spike, membrane: next.clone(), state: std::iter::once(next).chain(gates).collect() })
    }
}

/// `value` where there is a spike, t elsewhere.
fn set_where(t: &Tensor, spike: &Tensor, value: f64) -> Result<Tensor> {
    t.mul(&spike.rsub_scalar(1.0)?)?.add_scaled(spike, value)
}
