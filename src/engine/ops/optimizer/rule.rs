//! The numbers of an update rule: its function and coefficients, bias corrections, what the step count decides, trust ratios.

use super::adaptive::corrections;
use super::list::List;
use crate::buffer::{Buffer, ViewMut};
use crate::driver::Ptr;
use crate::dtype::DType;
use crate::engine::Engine;
use crate::engine::launch::Grid;
use crate::error::Result;
use crate::ops::optimizer::*;
use crate::spec::kernels::optimizer::*;

/// C function of a rule, and its numbers.
pub(super) struct Rule {
    pub(super) name: &'static str,
    pub(super) p: [f64; 6],
    pub(super) flag: bool,
    /// Bases of the bias corrections 1 - b^t (0 for none).
    pub(super) decays: (f64, f64),
}

/// `None` for rules of `kernels/common/optimizer/adaptive.c`.
pub(super) fn rule_function(rule: &OptimRule) -> Option<Rule> {
    let plain = |name, p, flag| Rule { name, p, flag, decays: (0.0, 0.0) };
    let adam = |name, b1: f64, b2: f64, eps, wd, flag| Rule {
        name,
        p: [b1, b2, eps, wd, 1.0 - b1, 1.0 - b2],
        flag,
        decays: (b1, b2),
    };
    Some(match *rule {
        OptimRule::Sgd { wd } => plain("gk_rule_sgd", [wd, 0.0, 0.0, 0.0, 0.0, 0.0], false),
        OptimRule::Momentum { mu, damp, wd, nesterov } => {
            plain("gk_rule_momentum", [mu, 1.0 - damp, wd, 0.0, 0.0, 0.0], nesterov)
        }
        OptimRule::Adam { b1, b2, eps, wd } => adam("gk_rule_adam", b1, b2, eps, wd, false),
        OptimRule::AdamW { b1, b2, eps, wd } => adam("gk_rule_adamw", b1, b2, eps, wd, false),
        OptimRule::AmsGrad { b1, b2, eps, wd, decoupled } => {
            adam("gk_rule_amsgrad", b1, b2, eps, wd, decoupled)
        }
        OptimRule::Nadam { b1, b2, eps, wd, decoupled, .. } => {
            adam("gk_rule_nadam", b1, b2, eps, wd, decoupled)
        }
        OptimRule::RAdam { b1, b2, eps, wd, decoupled } => adam("gk_rule_radam", b1, b2, eps, wd, decoupled),
        OptimRule::Asgd { lambd, alpha, t0, wd } => {
            plain("gk_rule_asgd", [lambd, alpha, t0, wd, 0.0, 0.0], false)
        }
        OptimRule::Rprop { up, down, least, most } => {
            plain("gk_rule_rprop", [up, down, least, most, 0.0, 0.0], false)
        }
        OptimRule::AdaMax { b1, b2, eps, wd } => adam("gk_rule_adamax", b1, b2, eps, wd, false),
        OptimRule::Lion { b1, b2, wd } => adam("gk_rule_lion", b1, b2, 0.0, wd, false),
        OptimRule::Lamb { b1, b2, eps, wd, bias_correction, adapt, .. } => {
            let mut k = adam("gk_rule_lamb", b1, b2, eps, if adapt { wd } else { 0.0 }, false);
            if !bias_correction {
                k.decays = (0.0, 0.0);
            }
            k
        }
        OptimRule::Lars { mu, wd, nesterov, adapt, .. } => {
            plain("gk_rule_lars", [mu, if adapt { wd } else { 0.0 }, 0.0, 0.0, 0.0, 0.0], nesterov)
        }
        OptimRule::RmsProp { a, eps, wd, mu, centered } => {
            let name = match (centered, mu > 0.0) {
                (false, false) => "gk_rule_rmsprop",
                (false, true) => "gk_rule_rmsprop_momentum",
                (true, false) => "gk_rule_rmsprop_centered",
                (true, true) => "gk_rule_rmsprop_centered_momentum",
            };
            plain(name, [a, 1.0 - a, eps, wd, 1.0 - mu, 0.0], false)
        }
        OptimRule::Adagrad { lr_decay, eps, wd } => {
            plain("gk_rule_adagrad", [lr_decay, eps, wd, 0.0, 0.0, 0.0], false)
        }
        OptimRule::Adadelta { rho, eps, wd } => {
            plain("gk_rule_adadelta", [rho, 1.0 - rho, eps, wd, 0.0, 0.0], false)
        }
        OptimRule::Ftrl { beta, l1, l2, from_w } => {
            plain("gk_rule_ftrl", [beta, l1, l2, 0.0, 0.0, 0.0], from_w)
        }
        OptimRule::Proximal(Prox::ElasticNet { l1, l2 }) => {
            plain("gk_rule_prox_elastic", [l1, l2, 0.0, 0.0, 0.0, 0.0], false)
        }
        OptimRule::Proximal(Prox::Box { lo, hi }) => {
            plain("gk_rule_prox_box", [lo, hi, 0.0, 0.0, 0.0, 0.0], false)
        }
        OptimRule::Adan { .. }
        | OptimRule::Sophia { .. }
        | OptimRule::SophiaCurvature { .. }
        | OptimRule::Adaptive(_) => return None,
    })
}

/// Numbers of a step that its kernels share.
pub(super) struct StepArgs<'s> {
    pub(super) dt: DType,
    pub(super) master: i32,
    pub(super) step: Ptr,
    pub(super) numbers: Ptr,
    pub(super) inv_scale: Ptr,
    pub(super) maximize: i32,
    pub(super) bias: Bias,
    pub(super) p: [f64; 6],
    pub(super) rule: &'s OptimRule,
}

/// Bias corrections of a step whose count is on the host, and logarithms of the decays for one whose count is on the device.
#[derive(Clone, Copy)]
pub(super) struct Bias {
    pub(super) c1: f64,
    pub(super) c2: f64,
    pub(super) log1: f64,
    pub(super) log2: f64,
}

impl Bias {
    /// At step `t`, for the decays `b1` and `b2`.
    pub(super) fn new((b1, b2): (f64, f64), t: f64) -> Self {
        Bias { c1: 1.0 - b1.powf(t), c2: (1.0 - b2.powf(t)).max(0.0).sqrt(), log1: b1.ln(), log2: b2.ln() }
    }
}

impl Engine {
    /// Trust ratio of every tensor of a list, for rules that have one.
    pub(super) fn trust_ratios(
        &self,
        list: &List,
        table: Ptr,
        step: &StepArgs<'_>,
    ) -> Result<Option<Buffer>> {
        let (lamb, eta, wd, eps, bound) = match *step.rule {
            OptimRule::Lars { eta, wd, eps, adapt: true, .. } => (false, eta, wd, eps, 0.0),
            OptimRule::Lamb { max_norm, adapt: true, .. } => (true, 0.0, 0.0, 0.0, max_norm),
            _ => return Ok(None),
        };
        let dt = step.dt;
        let partial = self.scratch(dt.accumulator(), 6 * list.chunks)?;
        let ratio = self.scratch(dt.accumulator(), list.tensors)?;
        let tensors = list.tensors as i32;
        let [w, g, s0, s1, ..] = list.bases;
        let Bias { c1, c2, log1, log2 } = step.bias;
        let [p0, p1, p2, p3, p4, p5] = step.p;
        let args = TrustPartialArgs {
            table,
            tensors,
            w,
            g,
            s0,
            s1,
            master: step.master,
            step: step.step,
            numbers: step.numbers,
            inv_scale: step.inv_scale,
            maximize: step.maximize,
            lamb: i32::from(lamb),
            c1,
            c2,
            log1,
            log2,
            p0,
            p1,
            p2,
            p3,
            p4,
            p5,
            partial: self.arg_in(&partial.view()),
        };
        self.launch(&TRUST_PARTIAL, dt, "", list.grid(), &args)?;
        let args = TrustFinishArgs {
            table,
            tensors,
            partial: self.arg_in(&partial.view()),
            lamb: i32::from(lamb),
            eta,
            wd,
            eps,
            bound,
            ratio: self.arg_in(&ratio.view()),
        };
        let blocks = list.tensors.min(1 << 16);
        self.launch(&TRUST_FINISH, dt, "", Grid::Blocks([blocks, 1, 1]), &args)?;
        Ok(Some(ratio))
    }
}

/// [`OptimRule::step_numbers`].
pub(crate) fn step_numbers(rule: &OptimRule, lr: f64, t: f64) -> [f64; STEP_NUMBERS] {
    let [c1, c2, c3] = match rule_function(rule) {
        Some(known) => {
            let Bias { c1, c2, .. } = Bias::new(known.decays, t);
            [c1, c2, 1.0]
        }
        None => corrections(rule, t),
    };
    let (q0, q1) = host_factors(rule, t);
    [lr, t, c1, c2, c3, q0, q1, 0.0]
}

/// q0 and q1 of a rule at step t.
fn host_factors(rule: &OptimRule, t: f64) -> (f64, f64) {
    match *rule {
        OptimRule::Nadam { b1, psi, .. } => nadam_factors(b1, psi, t),
        OptimRule::RAdam { b2, .. } => (radam_factor(b2, t).unwrap_or(0.0), 0.0),
        _ => (1.0, 0.0),
    }
}

/// The value of a number on the host; 0 for one on the device.
pub(super) fn host(s: &Scalar<'_>) -> f64 {
    if let Scalar::Host(x) = s { *x } else { 0.0 }
}

/// Whether parameters of dtype `w` with gradients of dtype `g` are stored in the arithmetic type.
pub(super) fn master(w: DType, g: DType) -> i32 {
    i32::from(w != g || g.accumulator() == w)
}

/// Kind of the 16-bit copy: 0 for none, 1 for f16, 2 for bf16.
pub(super) fn copy_kind(copy: Option<&ViewMut<'_>>) -> i32 {
    match copy.map(ViewMut::dtype) {
        None => 0,
        Some(DType::F16) => 1,
        Some(_) => 2,
    }
}

impl Engine {
    /// Pointer argument of a number on the device; null for one on the host.
    pub(super) fn arg_scalar(&self, s: &Scalar<'_>) -> Ptr {
        match s {
            Scalar::Device(v) => self.arg_in(v),
            Scalar::Host(_) => Ptr::NULL,
        }
    }

    /// [`Engine::check_owner`] for what a step holds.
    pub(super) fn own_step(&self, op: &'static str, step: &Step<'_>) -> Result<()> {
        for (arg, s) in [("lr", &step.lr), ("step", &step.step)] {
            if let Scalar::Device(v) = s {
                self.check_owner(op, arg, v)?;
            }
        }
        let others =
            [("inv_scale", step.inv_scale), ("found_inf", step.found_inf), ("numbers", step.numbers)];
        self.check_owner_all(op, &others)
    }

    /// q0 and q1 of a rule: from the host, or in device memory where the step count is there.
    pub(super) fn step_factors(
        &self,
        rule: &OptimRule,
        step: &Step<'_>,
        dt: DType,
    ) -> Result<((f64, f64), Option<Buffer>)> {
        let device = matches!(step.step, Scalar::Device(_));
        let (t, count) = (host(&step.step), self.arg_scalar(&step.step));
        match *rule {
            OptimRule::Nadam { b1, psi, .. } if device => {
                let out = self.scratch(dt.accumulator(), 2)?;
                let args = NadamScalarsArgs {
                    step: count,
                    b1,
                    psi: psi.unwrap_or(-1.0),
                    factors: self.arg_in(&out.view()),
                };
                self.launch(&NADAM_SCALARS, dt, "", Grid::Blocks([1, 1, 1]), &args)?;
                Ok(((1.0, 0.0), Some(out)))
            }
            OptimRule::RAdam { b2, .. } if device => {
                let out = self.scratch(dt.accumulator(), 2)?;
                let (lambda, most) = (-b2.ln(), 2.0 / (1.0 - b2) - 1.0);
                let args = RadamScalarsArgs {
                    step: count,
                    lambda,
                    most,
                    rest: most - 2.0 / lambda,
                    factor: self.arg_in(&out.view()),
                };
                self.launch(&RADAM_SCALARS, dt, "", Grid::Blocks([1, 1, 1]), &args)?;
                Ok(((1.0, 0.0), Some(out)))
            }
            _ => Ok((host_factors(rule, t), None)),
        }
    }
}
