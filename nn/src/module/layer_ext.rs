//! What every layer can do, derived from the state that it shows.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use crate::core::autograd::no_grad;
use crate::core::error::{Result, invalid};
use crate::core::glob::fits_within;
use crate::core::tensor::{Device, Tensor, same_handle};
use crate::module::layer::{Entry, Layer, Visitor, learning_rules};
use crate::module::param::Param;
use crate::module::state::{LoadReport, Mismatch, StateDict, check_fit, check_names, check_unique};

/// What every layer can do, derived from [`Layer::visit`].
pub trait LayerExt: Layer {
    /// Parameters by name, in the order of the model, frozen ones too.
    fn named_parameters(&self) -> Vec<(String, Param)>;
    /// Parameters and buffers by name, in the order of the model.
    fn named_state(&self) -> Vec<(String, Param)>;
    /// Positions of the random number generators by name.
    fn counters(&self) -> BTreeMap<String, u64>;
    /// Sets positions of random number generators. Errors: [`NnError::StateNames`](crate::NnError::StateNames) for names that differ from
    /// the model's, [`NnError::DuplicateName`](crate::NnError::DuplicateName).
    fn set_counters(&self, values: &BTreeMap<String, u64>) -> Result<()>;
    /// Parameters in the order of the model, frozen ones too, shared ones once.
    fn parameters(&self) -> Vec<Param> {
        let mut out: Vec<Param> = vec![];
        for (_, p) in self.named_parameters() {
            if !out.iter().any(|q| q.same(&p)) {
                out.push(p);
            }
        }
        out
    }
    /// Number of scalars of the parameters, frozen ones too, shared ones once.
    fn num_parameters(&self) -> usize {
        self.parameters().iter().map(|p| p.get().numel()).sum()
    }
    /// Parameters and buffers; the tensors share memory with the model. Errors: [`NnError::DuplicateName`](crate::NnError::DuplicateName).
    fn state_dict(&self) -> Result<StateDict> {
        Ok(self.unique_state()?.into_iter().map(|(n, p)| (n, p.get().detach())).collect())
    }
    /// [`named_state`](LayerExt::named_state), each name once. Errors: [`NnError::DuplicateName`](crate::NnError::DuplicateName), also for
    /// two generators of one name.
    fn unique_state(&self) -> Result<Vec<(String, Param)>>;
    /// Copies tensors into the model (from any device). Names, shapes and dtypes are checked before the first is written. Errors:
    /// [`NnError::StateNames`](crate::NnError::StateNames), [`NnError::StateShape`](crate::NnError::StateShape),
    /// [`NnError::DuplicateName`](crate::NnError::DuplicateName).
    fn load_state_dict(&self, state: &StateDict) -> Result<()> {
        let own = self.unique_state()?;
        check_names(own.iter().map(|(n, _)| n), state.keys())?;
        for (name, p) in &own {
            check_fit(name, &p.get(), state[name].dtype(), state[name].shape())?;
        }
        for (name, p) in &own {
            let dst = p.get().detach();
            dst.assign(&state[name].detach().to_device(dst.device())?)?;
        }
        Ok(())
    }
    /// How a state dictionary differs from the model's: what [`load_matching`](LayerExt::load_matching) would load, names that are missing or
    /// unexpected, tensors of other shapes or dtypes. Nothing is changed.
    fn state_diff(&self, state: &StateDict) -> LoadReport {
        let mut report = LoadReport::default();
        let own = self.named_state();
        for (name, p) in &own {
            let t = p.get();
            match state.get(name) {
                None => report.missing.push(name.clone()),
                Some(s) if s.shape() == t.shape() && s.dtype() == t.dtype() => {
                    report.loaded.push(name.clone())
                }
                Some(s) => report.mismatched.push(Mismatch {
                    name: name.clone(),
                    expected: t.shape().to_vec(),
                    expected_dtype: t.dtype(),
                    found: s.shape().to_vec(),
                    found_dtype: Some(s.dtype()),
                }),
            }
        }
        report.unexpected = state.keys().filter(|&n| own.iter().all(|(m, _)| m != n)).cloned().collect();
        report
    }
    /// Copies the tensors that fit into the model (from any device) and reports what was left: PyTorch's `strict=False`, with shapes checked.
    /// Errors: [`NnError::DuplicateName`](crate::NnError::DuplicateName).
    fn load_matching(&self, state: &StateDict) -> Result<LoadReport> {
        let own = self.unique_state()?;
        let report = self.state_diff(state);
        for (name, p) in own {
            if let (Some(s), true) = (state.get(&name), report.loaded.contains(&name)) {
                let dst = p.get().detach();
                dst.assign(&s.detach().to_device(dst.device())?)?;
            }
        }
        Ok(report)
    }
    /// [Freezes](Param::set_requires_grad) the parameters that a pattern fits and returns how many they are. The pattern is the name of a
    /// parameter or layer, in which `*` stands for any characters and `?` for one: `encoder`, `*.bias`. Errors: a pattern that fits none.
    fn freeze(&self, pattern: &str) -> Result<usize> {
        set_requires_grad(self.named_parameters(), pattern, false)
    }
    /// Undoes [`freeze`](LayerExt::freeze).
    fn unfreeze(&self, pattern: &str) -> Result<usize> {
        set_requires_grad(self.named_parameters(), pattern, true)
    }
    /// Clears all gradients.
    fn zero_grad(&self) -> Result<()> {
        self.named_parameters().iter().try_for_each(|(_, p)| p.get().zero_grad())
    }
    /// Moves parameters with their gradients, and buffers, to another device; tensors that shared memory still do. An optimizer holds its
    /// parameters in memory of its own: move it first, with [`Optimizer::to_device`](crate::Optimizer::to_device), or build it afterwards.
    fn to_device(&self, device: &Device) -> Result<()> {
        let mut moved: Vec<(Tensor, Tensor)> = vec![];
        for (_, p) in self.named_state() {
            let old = p.get();
            if same_handle(old.device(), device) {
                continue;
            }
            let shared = moved.iter().find(|(o, _)| o.shares_storage(&old) && o.layout() == old.layout());
            let new = match shared {
                Some((_, n)) => n.clone(),
                None => old.detach().to_device(device)?,
            };
            p.set(new.clone());
            if let (Some(g), Some(edge)) = (old.grad(), p.get().edge()) {
                edge.node.put_grad(g.detach().to_device(device)?);
            }
            moved.push((old, new));
        }
        Ok(())
    }
    /// One step of every [local learning rule](Layer::local_learning) of the layer and its parts.
    fn learn(&self) -> Result<()>;
    /// Training mode.
    fn train(&self) {
        self.set_training(true);
    }
    /// Evaluation mode.
    fn eval(&self) {
        self.set_training(false);
    }
}

impl<L: Layer + ?Sized> LayerExt for L {
    fn learn(&self) -> Result<()> {
        no_grad(|| learning_rules(self, &mut |rule| rule.learn()))
    }

    fn named_parameters(&self) -> Vec<(String, Param)> {
        let mut out = vec![];
        self.visit(&mut Visitor::new(&mut |name, e| {
            if let Entry::Param(p) = e {
                out.push((name.to_string(), p.clone()));
            }
        }));
        out
    }

    fn named_state(&self) -> Vec<(String, Param)> {
        let mut out = vec![];
        self.visit(&mut Visitor::new(&mut |name, e| {
            if let Entry::Param(p) | Entry::Buffer(p) = e {
                out.push((name.to_string(), p.clone()));
            }
        }));
        out
    }

    fn unique_state(&self) -> Result<Vec<(String, Param)>> {
        let (mut out, mut generators) = (vec![], vec![]);
        self.visit(&mut Visitor::new(&mut |name, e| match e {
            Entry::Param(p) | Entry::Buffer(p) => out.push((name.to_string(), p.clone())),
            Entry::Counter(_) => generators.push(name.to_string()),
            Entry::Training(_) => {}
        }));
        check_unique(out.iter().map(|(name, _)| name))?;
        check_unique(generators.iter())?;
        Ok(out)
    }

    fn counters(&self) -> BTreeMap<String, u64> {
        let mut out = BTreeMap::new();
        self.visit(&mut Visitor::new(&mut |name, e| {
            if let Entry::Counter(c) = e {
                out.insert(name.to_string(), c.load(Ordering::Relaxed));
            }
        }));
        out
    }

    fn set_counters(&self, values: &BTreeMap<String, u64>) -> Result<()> {
        self.unique_state()?;
        check_names(LayerExt::counters(self).keys(), values.keys())?;
        self.visit(&mut Visitor::new(&mut |name, e| {
            if let (Entry::Counter(c), Some(&v)) = (e, values.get(name)) {
                c.store(v, Ordering::Relaxed);
            }
        }));
        Ok(())
    }
}

fn set_requires_grad(params: Vec<(String, Param)>, pattern: &str, on: bool) -> Result<usize> {
    let chosen: Vec<_> = params.into_iter().filter(|(name, _)| fits_within(pattern, name)).collect();
    if chosen.is_empty() {
        let expected = "a pattern that fits a parameter or a layer with parameters";
        return Err(invalid("freeze", "pattern", expected, format!("`{pattern}`")));
    }
    chosen.iter().for_each(|(_, p)| p.set_requires_grad(on));
    Ok(chosen.len())
}
