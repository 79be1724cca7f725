//! `optimizer`: the update rule and its groups of parameters.

use serde::Deserialize;
use serde_json::Value;
use trefoil::ops::optimizer::{AdaptiveRule, OptimRule, Prox};

use super::closure::{self, METHODS};
use super::kind::{Row, kind, names, row};
use crate::core::error::{NnError, Result};
use crate::core::glob::fits;
use crate::core::options::{
    BELOW_ONE, BETWEEN, FINITE, Limit, NOT_NEGATIVE, POSITIVE, join, known, read, within,
};
use crate::module::{Layer, LayerExt, Param};
use crate::train::optim::{Group, Method, Optimizer, with_weight_decay};

/// An optimizer, chosen by its `type` (see [`OptimizerConfig::names`]), with options under PyTorch's names. The default is AdamW.
#[derive(Debug, Clone)]
pub struct OptimizerConfig {
    name: &'static str,
    rule: OptimRule,
    /// A method that evaluates the loss itself, in place of the rule, and its iterations per batch.
    closure: Option<closure::Made>,
    /// Learning rate.
    pub lr: f64,
    /// Ascends instead of descending.
    pub maximize: bool,
    /// Groups of parameters; a parameter belongs to the first that takes it, the others stay together.
    pub groups: Vec<GroupConfig>,
}

/// Parameters with settings of their own.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct GroupConfig {
    /// Patterns of names, of which one must fit: `*` stands for any characters, `?` for one.
    pub names: Option<Vec<String>>,
    /// Largest number of axes: 1 takes biases and the parameters of normalisations.
    pub max_rank: Option<usize>,
    /// Weight decay, instead of the rule's.
    pub weight_decay: Option<f64>,
    /// Factor of the learning rate.
    pub lr_factor: Option<f64>,
    /// Whether LARS and LAMB adapt the rate to the tensor.
    pub layer_wise: Option<bool>,
}

/// Rule and learning rate.
type Made = (OptimRule, f64);

pub(super) static RULES: &[Row<Made>] = &[
    row!("sgd" { lr: f64, POSITIVE; weight_decay: f64 = 0.0, NOT_NEGATIVE; } |_path| {
        (OptimRule::Sgd { wd: weight_decay }, lr)
    }),
    row!("momentum" {
        lr: f64, POSITIVE;
        momentum: f64 = 0.9, BELOW_ONE;
        dampening: f64 = 0.0, FINITE;
        nesterov: bool = false;
        weight_decay: f64 = 0.0, NOT_NEGATIVE;
    } |_path| (OptimRule::Momentum { mu: momentum, damp: dampening, wd: weight_decay, nesterov }, lr)),
    row!("adam" {
        lr: f64 = 1e-3, POSITIVE;
        betas: [f64; 2] = [0.9, 0.999], BELOW_ONE;
        eps: f64 = 1e-8, NOT_NEGATIVE;
        weight_decay: f64 = 0.0, NOT_NEGATIVE;
    } |_path| (OptimRule::Adam { b1: betas[0], b2: betas[1], eps, wd: weight_decay }, lr)),
    row!("adamw" {
        lr: f64 = 1e-3, POSITIVE;
        betas: [f64; 2] = [0.9, 0.999], BELOW_ONE;
        eps: f64 = 1e-8, NOT_NEGATIVE;
        weight_decay: f64 = 1e-2, NOT_NEGATIVE;
    } |_path| (OptimRule::AdamW { b1: betas[0], b2: betas[1], eps, wd: weight_decay }, lr)),
    row!("amsgrad" {
        lr: f64 = 1e-3, POSITIVE;
        betas: [f64; 2] = [0.9, 0.999], BELOW_ONE;
        eps: f64 = 1e-8, NOT_NEGATIVE;
        weight_decay: f64 = 0.0, NOT_NEGATIVE;
        decoupled_weight_decay: bool = false;
    } |_path| {
        let (b1, b2) = (betas[0], betas[1]);
        (OptimRule::AmsGrad { b1, b2, eps, wd: weight_decay, decoupled: decoupled_weight_decay }, lr)
    }),
    row!("rmsprop" {
        lr: f64 = 1e-2, POSITIVE;
        alpha: f64 = 0.99, BELOW_ONE;
        eps: f64 = 1e-8, NOT_NEGATIVE;
        weight_decay: f64 = 0.0, NOT_NEGATIVE;
        momentum: f64 = 0.0, NOT_NEGATIVE;
        centered: bool = false;
    } |_path| (OptimRule::RmsProp { a: alpha, eps, wd: weight_decay, mu: momentum, centered }, lr)),
    row!("adagrad" {
        lr: f64 = 1e-2, POSITIVE;
        lr_decay: f64 = 0.0, NOT_NEGATIVE;
        eps: f64 = 1e-10, NOT_NEGATIVE;
        weight_decay: f64 = 0.0, NOT_NEGATIVE;
    } |_path| (OptimRule::Adagrad { lr_decay, eps, wd: weight_decay }, lr)),
    row!("adadelta" {
        lr: f64 = 1.0, POSITIVE;
        rho: f64 = 0.9, BELOW_ONE;
        eps: f64 = 1e-6, NOT_NEGATIVE;
        weight_decay: f64 = 0.0, NOT_NEGATIVE;
    } |_path| (OptimRule::Adadelta { rho, eps, wd: weight_decay }, lr)),
    row!("adamax" {
        lr: f64 = 2e-3, POSITIVE;
        betas: [f64; 2] = [0.9, 0.999], BELOW_ONE;
        eps: f64 = 1e-8, NOT_NEGATIVE;
        weight_decay: f64 = 0.0, NOT_NEGATIVE;
    } |_path| (OptimRule::AdaMax { b1: betas[0], b2: betas[1], eps, wd: weight_decay }, lr)),
    row!("nadam" {
        lr: f64 = 2e-3, POSITIVE;
        betas: [f64; 2] = [0.9, 0.999], BELOW_ONE;
        eps: f64 = 1e-8, NOT_NEGATIVE;
        weight_decay: f64 = 0.0, NOT_NEGATIVE;
        momentum_decay: f64 = 4e-3, NOT_NEGATIVE;
        decoupled_weight_decay: bool = false;
    } |_path| {
        let (b1, b2, psi) = (betas[0], betas[1], Some(momentum_decay));
        (OptimRule::Nadam { b1, b2, eps, wd: weight_decay, psi, decoupled: decoupled_weight_decay }, lr)
    }),
    row!("radam" {
        lr: f64 = 1e-3, POSITIVE;
        betas: [f64; 2] = [0.9, 0.999], BELOW_ONE;
        eps: f64 = 1e-8, NOT_NEGATIVE;
        weight_decay: f64 = 0.0, NOT_NEGATIVE;
        decoupled_weight_decay: bool = false;
    } |_path| {
        let (b1, b2) = (betas[0], betas[1]);
        (OptimRule::RAdam { b1, b2, eps, wd: weight_decay, decoupled: decoupled_weight_decay }, lr)
    }),
    row!("asgd" {
        lr: f64 = 1e-2, POSITIVE;
        lambd: f64 = 1e-4, NOT_NEGATIVE;
        alpha: f64 = 0.75, FINITE;
        t0: f64 = 1e6, NOT_NEGATIVE;
        weight_decay: f64 = 0.0, NOT_NEGATIVE;
    } |_path| (OptimRule::Asgd { lambd, alpha, t0, wd: weight_decay }, lr)),
    row!("rprop" {
        lr: f64 = 1e-2, POSITIVE;
        etas: [f64; 2] = [0.5, 1.2];
        step_sizes: [f64; 2] = [1e-6, 50.0], POSITIVE;
    } |path| {
        within(path, "etas[0]", &etas[0], &BETWEEN)?;
        let up = Limit { ok: |x| x > 1.0 && x.is_finite(), says: "a value above 1" };
        within(path, "etas[1]", &etas[1], &up)?;
        (OptimRule::Rprop { up: etas[1], down: etas[0], least: step_sizes[0], most: step_sizes[1] }, lr)
    }),
    row!("lion" {
        lr: f64 = 1e-4, POSITIVE;
        betas: [f64; 2] = [0.9, 0.99], BELOW_ONE;
        weight_decay: f64 = 0.0, NOT_NEGATIVE;
    } |_path| (OptimRule::Lion { b1: betas[0], b2: betas[1], wd: weight_decay }, lr)),
    row!("ftrl" {
        lr: f64, POSITIVE;
        beta: f64 = 1.0, NOT_NEGATIVE;
        l1: f64 = 0.0, NOT_NEGATIVE;
        l2: f64 = 0.0, NOT_NEGATIVE;
    } |_path| (OptimRule::Ftrl { beta, l1, l2, from_w: true }, lr)),
    row!("lars" {
        lr: f64, POSITIVE;
        momentum: f64 = 0.9, BELOW_ONE;
        weight_decay: f64 = 0.0, NOT_NEGATIVE;
        trust_coefficient: f64 = 1e-3, POSITIVE;
        eps: f64 = 1e-8, NOT_NEGATIVE;
        nesterov: bool = false;
    } |_path| {
        let eta = trust_coefficient;
        (OptimRule::Lars { mu: momentum, wd: weight_decay, eta, eps, nesterov, adapt: true }, lr)
    }),
    row!("lamb" {
        lr: f64 = 1e-3, POSITIVE;
        betas: [f64; 2] = [0.9, 0.999], BELOW_ONE;
        eps: f64 = 1e-6, NOT_NEGATIVE;
        weight_decay: f64 = 0.0, NOT_NEGATIVE;
        bias_correction: bool = true;
        max_norm: f64 = 10.0, POSITIVE;
    } |_path| {
        let (b1, b2) = (betas[0], betas[1]);
        (OptimRule::Lamb { b1, b2, eps, wd: weight_decay, bias_correction, max_norm, adapt: true }, lr)
    }),
    row!("adan" {
        lr: f64 = 1e-3, POSITIVE;
        betas: [f64; 3] = [0.98, 0.92, 0.99], BELOW_ONE;
        eps: f64 = 1e-8, NOT_NEGATIVE;
        weight_decay: f64 = 0.0, NOT_NEGATIVE;
    } |_path| (OptimRule::Adan { b1: betas[0], b2: betas[1], b3: betas[2], eps, wd: weight_decay }, lr)),
    row!("hypergradient" { lr: f64, POSITIVE; rate: f64 = 1e-4, NOT_NEGATIVE; } |_path| {
        (OptimRule::Adaptive(AdaptiveRule::HypergradientSgd { rate }), lr)
    }),
    row!("dadapt_sgd" {
        lr: f64 = 1.0, POSITIVE;
        d0: f64 = 1e-6, POSITIVE;
        momentum: f64 = 0.0, BELOW_ONE;
        weight_decay: f64 = 0.0, NOT_NEGATIVE;
        growth_rate: Option<f64> = null, POSITIVE;
    } |_path| {
        let growth = growth_rate.unwrap_or(f64::INFINITY);
        (OptimRule::Adaptive(AdaptiveRule::DAdaptSgd { d0, mu: momentum, wd: weight_decay, growth }), lr)
    }),
    row!("dadapt_adam" {
        lr: f64 = 1.0, POSITIVE;
        betas: [f64; 2] = [0.9, 0.999], BELOW_ONE;
        eps: f64 = 1e-8, NOT_NEGATIVE;
        weight_decay: f64 = 0.0, NOT_NEGATIVE;
        d0: f64 = 1e-6, POSITIVE;
        growth_rate: Option<f64> = null, POSITIVE;
    } |_path| {
        let (b1, b2, growth) = (betas[0], betas[1], growth_rate.unwrap_or(f64::INFINITY));
        (OptimRule::Adaptive(AdaptiveRule::DAdaptAdam { b1, b2, eps, wd: weight_decay, d0, growth }), lr)
    }),
    row!("prodigy" {
        lr: f64 = 1.0, POSITIVE;
        betas: [f64; 2] = [0.9, 0.999], BELOW_ONE;
        eps: f64 = 1e-8, NOT_NEGATIVE;
        weight_decay: f64 = 0.0, NOT_NEGATIVE;
        d0: f64 = 1e-6, POSITIVE;
        d_coef: f64 = 1.0, POSITIVE;
        growth_rate: Option<f64> = null, POSITIVE;
    } |_path| {
        let (b1, b2, growth) = (betas[0], betas[1], growth_rate.unwrap_or(f64::INFINITY));
        let rule = AdaptiveRule::Prodigy { b1, b2, eps, wd: weight_decay, d0, coef: d_coef, growth };
        (OptimRule::Adaptive(rule), lr)
    }),
    row!("proximal" {
        lr: f64, POSITIVE;
        l1: f64 = 0.0, NOT_NEGATIVE;
        l2: f64 = 0.0, NOT_NEGATIVE;
    } |_path| (OptimRule::Proximal(Prox::ElasticNet { l1, l2 }), lr)),
    row!("projected" {
        lr: f64, POSITIVE;
        lo: Option<f64> = null;
        hi: Option<f64> = null;
    } |path| {
        let (lo, hi) = (lo.unwrap_or(f64::NEG_INFINITY), hi.unwrap_or(f64::INFINITY));
        if lo > hi {
            return Err(NnError::config(join(path, "lo"), format!("expected at most hi = {hi}, got {lo}")));
        }
        (OptimRule::Proximal(Prox::Box { lo, hi }), lr)
    }),
];

impl Default for OptimizerConfig {
    fn default() -> Self {
        let rule = OptimRule::AdamW { b1: 0.9, b2: 0.999, eps: 1e-8, wd: 1e-2 };
        OptimizerConfig { name: "adamw", rule, closure: None, lr: 1e-3, maximize: false, groups: vec![] }
    }
}

impl GroupConfig {
    fn check(&self, path: &str) -> Result<()> {
        if self.names.is_none() && self.max_rank.is_none() {
            return Err(NnError::config(path, "expected `names` or `max_rank`, got neither"));
        }
        within(path, "weight_decay", &self.weight_decay, &NOT_NEGATIVE)?;
        within(path, "lr_factor", &self.lr_factor, &NOT_NEGATIVE)
    }

    fn takes(&self, name: &str, param: &Param) -> bool {
        self.names.as_ref().is_none_or(|all| all.iter().any(|p| fits(p, name)))
            && self.max_rank.is_none_or(|r| param.get().rank() <= r)
    }

    fn rule(&self, rule: OptimRule) -> OptimRule {
        let mut rule = self.weight_decay.map_or(rule, |wd| with_weight_decay(rule, wd));
        if let (OptimRule::Lars { adapt, .. } | OptimRule::Lamb { adapt, .. }, Some(on)) =
            (&mut rule, self.layer_wise)
        {
            *adapt = on;
        }
        rule
    }
}

impl OptimizerConfig {
    pub(super) fn read(path: &str, json: Value) -> Result<Self> {
        let mut groups: Vec<GroupConfig> = vec![];
        let mut maximize = false;
        let json = match json {
            Value::Object(mut keys) => {
                if let Some(v) = keys.remove("groups") {
                    groups = read(&join(path, "groups"), v)?;
                }
                if let Some(v) = keys.remove("maximize") {
                    maximize = read(&join(path, "maximize"), v)?;
                }
                Value::Object(keys)
            }
            json => json,
        };
        for (i, g) in groups.iter().enumerate() {
            g.check(&format!("{path}.groups[{i}]"))?;
        }
        let said = match &json {
            Value::String(name) => Some(name.as_str()),
            other => other.get("type").and_then(Value::as_str),
        };
        if let Some(said) = said.filter(|&said| names(METHODS).contains(&said)) {
            if maximize || !groups.is_empty() {
                let key = join(path, if maximize { "maximize" } else { "groups" });
                return Err(NnError::config(
                    key,
                    format!("`{said}` minimizes over all parameters as one vector"),
                ));
            }
            let (name, made) = kind(path, "an optimizer", json, METHODS)?;
            return Ok(OptimizerConfig { name, closure: Some(made), lr: 1.0, ..OptimizerConfig::default() });
        }
        if let Some(said) = said.filter(|&said| !Self::names().contains(&said)) {
            let what = format!("expected an optimizer, got `{said}`; {}", known(said, Self::names()));
            return Err(NnError::config(join(path, "type"), what));
        }
        let (name, (rule, lr)) = kind(path, "an optimizer", json, RULES)?;
        Ok(OptimizerConfig { name, rule, closure: None, lr, maximize, groups })
    }

    /// Names of all optimizers.
    pub fn names() -> Vec<&'static str> {
        [names(RULES), names(METHODS)].concat()
    }

    /// The method, where it is one that evaluates the loss itself.
    pub fn method(&self) -> Option<Method> {
        self.closure.map(|(method, _)| method)
    }

    /// Iterations of such a method on each batch.
    pub fn max_iterations(&self) -> u64 {
        self.closure.map_or(1, |(_, n)| n)
    }

    /// The `type`.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// The rule of parameters that no group takes; of no meaning where there is a [method](OptimizerConfig::method).
    pub fn rule(&self) -> OptimRule {
        self.rule
    }

    /// The optimizer of a model. Errors: a group that takes no parameter; those of [`Optimizer::with_groups`].
    pub(super) fn build(&self, model: &dyn Layer) -> Result<Optimizer> {
        if self.closure.is_some() {
            let what = format!("`{}` evaluates the loss itself and takes no single steps", self.name);
            return Err(NnError::config("optimizer.type", what));
        }
        let mut rest = model.named_parameters();
        let known: Vec<String> = rest.iter().map(|(name, _)| name.clone()).collect();
        let mut groups = vec![];
        for (i, g) in self.groups.iter().enumerate() {
            let (taken, others): (Vec<_>, Vec<_>) = rest.into_iter().partition(|(n, p)| g.takes(n, p));
            rest = others;
            if taken.is_empty() {
                let shown: Vec<&str> = known.iter().take(8).map(String::as_str).collect();
                let more = if known.len() > shown.len() { ", ..." } else { "" };
                let what = format!(
                    "expected a group with parameters, got one that takes none of those that earlier groups left; \
                     the model has {}{more}",
                    shown.join(", ")
                );
                return Err(NnError::config(format!("optimizer.groups[{i}]"), what));
            }
            let lr_factor = g.lr_factor.unwrap_or(1.0);
            groups.push(Group { params: taken, rule: g.rule(self.rule), lr_factor });
        }
        groups.push(Group { params: rest, rule: self.rule, lr_factor: 1.0 });
        Ok(Optimizer::with_groups(groups, self.lr)?.maximize(self.maximize))
    }
}
