//! Optimizers.

use std::fmt;

use trefoil::DType;
use trefoil::ops::{ClipNorm, OptimRule, Step};

use super::arena::Arena;
use crate::error::{NnError, Result, invalid};
use crate::layer::{Layer, LayerExt, Param};
use crate::tensor::Tensor;

/// Parameters that share a rule and a factor of the learning rate.
#[derive(Debug, Clone)]
pub struct Group {
    /// Parameters with their names.
    pub params: Vec<(String, Param)>,
    /// Update rule; all groups of an optimizer use the same kind.
    pub rule: OptimRule,
    /// Factor of the learning rate.
    pub lr_factor: f64,
}

struct Member {
    rule: OptimRule,
    lr_factor: f64,
    arena: Arena,
}

/// Updates parameters from their gradients.
///
/// At construction the parameters move into one contiguous buffer per group, device and dtype, next to buffers for gradients and
/// optimizer state; tensors that refer to them follow. A step, a clearing of the gradients or a clipping is then one launch on every
/// backend. A parameter that got no gradient in a step counts as one with gradient 0.
pub struct Optimizer {
    members: Vec<Member>,
    lr: f64,
    step: u64,
    maximize: bool,
}

impl fmt::Debug for Optimizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rules: Vec<_> = self.members.iter().map(|m| m.rule).collect();
        f.debug_struct("Optimizer")
            .field("lr", &self.lr)
            .field("step", &self.step)
            .field("rules", &rules)
            .finish()
    }
}

fn check_lr(lr: f64) -> Result<()> {
    if lr.is_finite() && lr >= 0.0 {
        return Ok(());
    }
    Err(invalid("Optimizer", "lr", "a finite learning rate of at least 0", format!("{lr}")))
}

fn check_rule(rule: &OptimRule) -> Result<()> {
    let unit = |arg: &'static str, x: f64| match (0.0..1.0).contains(&x) {
        true => Ok(()),
        false => Err(invalid("Optimizer", arg, "a value in [0, 1)", format!("{x}"))),
    };
    let positive = |arg: &'static str, x: f64| match x >= 0.0 && x.is_finite() {
        true => Ok(()),
        false => Err(invalid("Optimizer", arg, "a finite value of at least 0", format!("{x}"))),
    };
    match *rule {
        OptimRule::Sgd { wd } => positive("wd", wd),
        OptimRule::Momentum { mu, wd, .. } => unit("mu", mu).and(positive("wd", wd)),
        OptimRule::Adam { b1, b2, eps, wd } | OptimRule::AdamW { b1, b2, eps, wd } => {
            unit("b1", b1).and(unit("b2", b2)).and(positive("eps", eps)).and(positive("wd", wd))
        }
        _ => Ok(()),
    }
}

impl Optimizer {
    /// An optimizer of all parameters of a model. Errors: constants out of range; a model without parameters; a parameter of another
    /// living optimizer.
    pub fn new(model: &dyn Layer, rule: OptimRule, lr: f64) -> Result<Self> {
        Optimizer::with_groups(vec![Group { params: model.named_parameters(), rule, lr_factor: 1.0 }], lr)
    }

    /// An optimizer of parameter groups.
    pub fn with_groups(groups: Vec<Group>, lr: f64) -> Result<Self> {
        check_lr(lr)?;
        let mut members = vec![];
        for Group { mut params, rule, lr_factor } in groups {
            check_rule(&rule)?;
            while let Some((_, first)) = params.first() {
                let key = |p: &Param| (p.get().device().id(), p.get().dtype());
                let wanted = key(first);
                let (alike, rest) = params.into_iter().partition(|(_, p)| key(p) == wanted);
                params = rest;
                if let Some(arena) = Arena::new(alike, rule.states().len())? {
                    members.push(Member { rule, lr_factor, arena });
                }
            }
        }
        if members.is_empty() {
            return Err(invalid(
                "Optimizer",
                "params",
                "at least one parameter",
                "none (a lazy layer before its first forward?)",
            ));
        }
        Ok(Optimizer { members, lr, step: 0, maximize: false })
    }

    /// Gradient descent, `torch.optim.SGD`.
    pub fn sgd(model: &dyn Layer, lr: f64) -> Result<Self> {
        Optimizer::new(model, OptimRule::Sgd { wd: 0.0 }, lr)
    }

    /// Gradient descent with momentum, `torch.optim.SGD(momentum=mu)`.
    pub fn momentum(model: &dyn Layer, lr: f64, mu: f64) -> Result<Self> {
        Optimizer::new(model, OptimRule::Momentum { mu, damp: 0.0, wd: 0.0, nesterov: false }, lr)
    }

    /// Adam with PyTorch's constants.
    pub fn adam(model: &dyn Layer, lr: f64) -> Result<Self> {
        Optimizer::new(model, OptimRule::Adam { b1: 0.9, b2: 0.999, eps: 1e-8, wd: 0.0 }, lr)
    }

    /// AdamW with PyTorch's constants.
    pub fn adamw(model: &dyn Layer, lr: f64, wd: f64) -> Result<Self> {
        Optimizer::new(model, OptimRule::AdamW { b1: 0.9, b2: 0.999, eps: 1e-8, wd }, lr)
    }

    /// Ascends instead of descending.
    pub fn maximize(mut self, on: bool) -> Self {
        self.maximize = on;
        self
    }

    /// The learning rate.
    pub fn lr(&self) -> f64 {
        self.lr
    }

    /// Sets the learning rate of the following steps. Errors: negative or not finite.
    pub fn set_lr(&mut self, lr: f64) -> Result<()> {
        check_lr(lr)?;
        self.lr = lr;
        Ok(())
    }

    /// Number of steps done.
    pub fn steps(&self) -> u64 {
        self.step
    }

    /// Clears all gradients: one fill per arena.
    pub fn zero_grad(&self) -> Result<()> {
        self.members.iter().try_for_each(|m| m.arena.zero_grad())
    }

    /// One update of all parameters. Errors: a parameter was replaced after construction; nothing is changed then.
    pub fn step(&mut self) -> Result<()> {
        self.members.iter().try_for_each(|m| m.arena.check())?;
        let t = self.step + 1;
        for m in &self.members {
            let mut step = Step::host(self.lr * m.lr_factor, t);
            step.maximize = self.maximize;
            let a = &m.arena;
            let per_tensor = matches!(m.rule, OptimRule::Lars { .. } | OptimRule::Lamb { .. });
            let mut slots = a.slots(per_tensor)?;
            a.device().optimizer_step(&m.rule, &step, &mut slots)?;
            a.touch();
        }
        self.step = t;
        Ok(())
    }

    /// Scales all gradients so that their norm of degree `p` is at most `max_norm`; returns the norm before, an f32 scalar on the device.
    /// Oracle `torch.nn.utils.clip_grad_norm_`. Errors: a bound that is not positive; parameters on several devices.
    pub fn clip_grad_norm(&self, max_norm: f64, p: f64) -> Result<Tensor> {
        if max_norm.is_nan() || max_norm <= 0.0 {
            return Err(invalid("clip_grad_norm", "max_norm", "a value above 0", format!("{max_norm}")));
        }
        let first = &self.members[0].arena;
        for m in &self.members {
            let (a, b) = (first.device().id(), m.arena.device().id());
            if a != b {
                return Err(NnError::DeviceMismatch { op: "clip_grad_norm", a, b });
            }
        }
        let total = Tensor::empty(first.device(), DType::F32, &[])?;
        let mut grads: Vec<_> = self.members.iter().map(|m| m.arena.grads_mut()).collect();
        let clip = ClipNorm::new(max_norm).degree(p);
        first.device().clip_grad_norm(&clip, &mut grads, total.operand().view_mut()?)?;
        Ok(total)
    }

    /// Limits every gradient to [-c, c]. Oracle `torch.nn.utils.clip_grad_value_`. Errors: a bound that is not positive.
    pub fn clip_grad_value(&self, c: f64) -> Result<()> {
        if c.is_nan() || c <= 0.0 {
            return Err(invalid("clip_grad_value", "c", "a value above 0", format!("{c}")));
        }
        for m in &self.members {
            m.arena.device().clip_grad_value(c, &mut [m.arena.grads_mut()])?;
        }
        Ok(())
    }

    /// State tensors under `state.parameter` (`m.0.weight`); they share memory with the optimizer.
    pub fn state_tensors(&self) -> Result<Vec<(String, Tensor)>> {
        let mut out = vec![];
        for m in &self.members {
            for (i, state) in m.rule.states().iter().enumerate() {
                let tensors = m.arena.state_tensors(i)?;
                out.extend(tensors.into_iter().map(|(name, t)| (format!("{state}.{name}"), t)));
            }
        }
        Ok(out)
    }

    /// Sets the number of steps done, after its state tensors were restored.
    pub fn set_steps(&mut self, steps: u64) {
        self.step = steps;
    }
}
