//! A case on a device, and its checks.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::Check;
use crate::common::id;
use crate::golden::{Case, Tolerance, differs, host};
use crate::golden_call::Made;
use serde_json::Value;
use trefoil::BackendKind;
use trefoil_nn::autograd::{self, no_grad};
use trefoil_nn::layers::Checkpointed;
use trefoil_nn::state_file::{self, LoadOptions, SaveOptions};
use trefoil_nn::{
    DType, Device, InitContext, Layer, LayerExt, Optimizer, Result, StateFile, Tensor, Visitor, network,
};

const LR: f64 = 1e-3;
const WEIGHT_DECAY: f64 = 1e-2;
const STEPS: usize = 2;

/// Layers that work on the host in part, and so copy in every step.
const ON_HOST: [&str; 2] = ["mesh_pool", "temporal_memory"];

fn tolerance(d: &Device) -> Tolerance {
    match id(d).kind {
        BackendKind::Cpu => Tolerance { rtol: 1e-5, atol: 1e-6 },
        _ => Tolerance { rtol: 1e-4, atol: 1e-5 },
    }
}

/// The same numbers behind others in memory, with the axes in reverse order or with gaps.
fn strided(t: &Tensor) -> Result<Tensor> {
    let reversed: Vec<isize> = (0..t.rank() as isize).rev().collect();
    match t.rank() {
        0 => Tensor::stack(0, &[t, t])?.select(0, 1),
        1 => Tensor::stack(1, &[t, t])?.select(1, 1),
        _ => {
            let turned = t.permute(&reversed)?;
            Tensor::concat(0, &[&turned, &turned])?
                .narrow(0, turned.shape()[0], turned.shape()[0])?
                .permute(&reversed)
        }
    }
}

/// A layer that is called as its case calls it.
#[derive(Debug)]
struct Called {
    made: Made,
    case: Case,
}

impl Layer for Called {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        Ok(self.forward_all(std::slice::from_ref(x))?.remove(0))
    }

    fn forward_all(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        self.made.call(&self.case, inputs)
    }

    fn visit(&self, v: &mut Visitor<'_>) {
        v.flattened(self.made.layer());
    }
}

/// A case on a device, and what went wrong.
pub(super) struct Run<'a> {
    pub(super) case: &'a Case,
    pub(super) device: &'a Device,
    pub(super) tolerance: Tolerance,
    pub(super) inputs: Vec<Tensor>,
    pub(super) upstream: BTreeMap<usize, Tensor>,
    /// What is being checked.
    pub(super) stage: &'static str,
    pub(super) failures: Vec<String>,
}

impl<'a> Run<'a> {
    pub(super) fn new(case: &'a Case, device: &'a Device) -> Self {
        let inputs = case.inputs.iter().map(|n| case.get("in", n).unwrap().upload(device)).collect();
        let upstream = case.group("dout").map(|(n, t)| (n.parse().unwrap(), t.upload(device))).collect();
        Run { case, device, tolerance: tolerance(device), inputs, upstream, stage: "", failures: vec![] }
    }

    pub(super) fn fail(&mut self, what: impl std::fmt::Display) {
        self.failures.push(format!("{} on {}, {}: {what}", self.case.name, id(self.device), self.stage));
    }

    /// Compares a tensor of a group; `allowed` is the tolerance of an element among all.
    fn compare(&mut self, group: &str, name: &str, got: &Tensor, allowed: impl Fn(&[f64], usize) -> f64) {
        let Some(want) = self.case.get(group, name) else {
            return self.fail(format!("{group} {name} is not expected"));
        };
        if let Some(what) = differs(got, want, allowed) {
            self.fail(format!("{group} {name}: {what}"));
        }
    }

    fn close(&mut self, group: &str, name: &str, got: &Tensor) {
        let t = self.tolerance;
        self.compare(group, name, got, |all, i| t.of(all, all[i]));
    }

    /// The layer with the case's parameters. A lazy one is called once before.
    fn made(&self) -> Result<Made> {
        let made = Made::new(&InitContext::new(self.device, 1), self.case)?;
        if self.case.lazy {
            no_grad(|| made.call(self.case, &self.inputs))?;
        }
        made.layer().load_state_dict(&self.case.state(self.device))?;
        made.layer().set_training(self.case.training);
        Ok(made)
    }

    /// Outputs, and the sum of all of them times their upstream gradients.
    fn forward(&self, made: &Made, inputs: &[Tensor]) -> Result<(Vec<Tensor>, Tensor)> {
        let outputs = made.call(self.case, inputs)?;
        let mut total: Option<Tensor> = None;
        for (i, w) in &self.upstream {
            let part = outputs[*i].mul(w)?.sum()?;
            total = Some(match total {
                Some(t) => t.add(&part)?,
                None => part,
            });
        }
        Ok((outputs, total.expect("an output with a gradient")))
    }

    /// Outputs, gradients and buffers of one call.
    pub(super) fn gradients(&mut self) -> Result<()> {
        let leaves = self.inputs.iter().map(Tensor::with_grad).collect();
        self.one_call(leaves)
    }

    /// The same with inputs that are no contiguous tensors.
    pub(super) fn views(&mut self) -> Result<()> {
        let leaves = self.inputs.iter().map(|t| Ok(strided(t)?.with_grad())).collect::<Result<_>>()?;
        self.one_call(leaves)
    }

    fn one_call(&mut self, leaves: Vec<Tensor>) -> Result<()> {
        let made = self.made()?;
        let (outputs, loss) = self.forward(&made, &leaves)?;
        if outputs.len() != self.case.outputs {
            let want = self.case.outputs;
            self.fail(format!("{} outputs, expected {want}", outputs.len()));
        }
        for (i, y) in outputs.iter().enumerate() {
            self.close("out", &i.to_string(), y);
        }
        if loss.requires_grad() {
            loss.backward()?;
        }
        let inputs = self.case.inputs.iter().cloned().zip(leaves);
        let parameters = made.layer().named_parameters().into_iter().map(|(n, p)| (n, p.get()));
        let floats = inputs.filter(|(_, t)| t.dtype().is_float()).map(|(n, t)| ("din", n, t));
        let checked: Vec<_> = floats.chain(parameters.map(|(n, t)| ("grad", n, t))).collect();
        let expected = self.case.group("din").count() + self.case.group("grad").count();
        if checked.len() != expected {
            self.fail(format!("{} gradients, expected {expected}", checked.len()));
        }
        for (group, name, t) in checked {
            match t.grad() {
                Some(g) => self.close(group, &name, &g),
                // What has no influence need not have a gradient.
                None if self.case.silent.contains(&name) => {}
                None => self.fail(format!("{name} has no gradient")),
            }
        }
        for (name, t) in made.layer().state_dict().unwrap() {
            let group = if self.case.get("after", &name).is_some() { "after" } else { "state" };
            self.close(group, &name, &t);
        }
        Ok(())
    }

    /// Parameters after steps of AdamW. It divides by the size of the gradient: an error of that moves a parameter by
    /// as much of the learning rate, in each step, and never by more than twice the learning rate.
    pub(super) fn steps(&mut self) -> Result<()> {
        let made = self.made()?;
        if made.layer().named_parameters().is_empty() {
            return Ok(());
        }
        let mut optimizer = Optimizer::adamw(made.layer(), LR, WEIGHT_DECAY)?;
        for _ in 0..STEPS {
            optimizer.zero_grad()?;
            self.forward(&made, &self.inputs)?.1.backward()?;
            optimizer.step()?;
        }
        let t = self.tolerance;
        for (name, p) in made.layer().named_parameters() {
            let Some(grad) = self.case.get("grad", &name).map(|g| g.values()) else { continue };
            let bound = |all: &[f64], i: usize| {
                let error = t.of(&grad, grad[i]) / grad[i].abs().max(1e-30);
                t.of(all, all[i]) + STEPS as f64 * LR * (2.0 * error).min(2.0)
            };
            self.compare("adamw", &name, &p.get(), bound);
        }
        Ok(())
    }

    /// The state after steps of the layer's own rule. In each, the inputs are rolled by one place more.
    pub(super) fn learned(&mut self) -> Result<()> {
        let made = self.made()?;
        for step in 0..self.case.learn {
            let roll = |t: &Tensor| Ok(t.roll(&[step as isize], &[-1])?.with_grad());
            let inputs: Vec<Tensor> = self.inputs.iter().map(roll).collect::<Result<_>>()?;
            let (_, loss) = self.forward(&made, &inputs)?;
            if loss.requires_grad() {
                loss.backward()?;
            }
            made.layer().learn()?;
        }
        for (name, t) in made.layer().state_dict().unwrap().into_iter().filter(|_| self.case.learn > 0) {
            let group = if self.case.get("learn", &name).is_some() { "learn" } else { "state" };
            self.close(group, &name, &t);
        }
        Ok(())
    }

    /// The state dictionary through a file, into another layer of the same kind.
    pub(super) fn round_trip(&mut self, folder: &Path) -> Result<()> {
        let made = self.made()?;
        let own: BTreeSet<String> = made.layer().state_dict().unwrap().into_keys().collect();
        let theirs: BTreeSet<String> = self.case.group("state").map(|(n, _)| n.clone()).collect();
        assert_eq!(own, theirs, "loading is strict");
        let path = folder.join(format!("{}.safetensors", self.case.name.replace('/', "-")));
        state_file::save(&made.layer().state_dict().unwrap(), &path, &SaveOptions::new())?;
        made.layer().eval();
        let want: Vec<Vec<f64>> = no_grad(|| made.call(self.case, &self.inputs))?.iter().map(host).collect();
        let other = Made::new(&InitContext::new(self.device, 2), self.case)?;
        if self.case.lazy {
            no_grad(|| other.call(self.case, &self.inputs))?;
        }
        StateFile::open(&path)?.load(other.layer(), &LoadOptions::new())?;
        other.layer().eval();
        let got: Vec<Vec<f64>> = no_grad(|| other.call(self.case, &self.inputs))?.iter().map(host).collect();
        if got != want {
            self.fail("another layer with the saved state gives other outputs");
        }
        Ok(())
    }

    /// An empty batch gives an empty result, and gradients of 0.
    pub(super) fn empty(&mut self) -> Result<()> {
        let untracked = self.case.config.get("track_running_stats") == Some(&Value::Bool(false));
        let statistics = self.case.entry == "batch_normalization" && untracked;
        if self.case.batch.is_empty() || statistics {
            return Ok(());
        }
        let made = self.made()?;
        made.layer().eval();
        let want: Vec<Vec<usize>> = no_grad(|| made.call(self.case, &self.inputs))?
            .iter()
            .map(|y| [&[0], &y.shape()[1..]].concat())
            .collect();
        let names = self.case.inputs.iter().zip(&self.inputs);
        let inputs: Vec<Tensor> = names
            .map(|(n, t)| {
                Ok(if self.case.batch.contains(n) { t.narrow(0, 0, 0)? } else { t.clone() }.with_grad())
            })
            .collect::<Result<_>>()?;
        let outputs = made.call(self.case, &inputs)?;
        let got: Vec<Vec<usize>> = outputs.iter().map(|y| y.shape().to_vec()).collect();
        if got != want {
            self.fail(format!("shapes {got:?}, expected {want:?}"));
        }
        for y in outputs.iter().filter(|y| y.requires_grad()) {
            y.sum()?.backward_retain()?;
        }
        for (name, p) in made.layer().named_parameters() {
            match p.get().grad() {
                Some(g) if host(&g).iter().all(|&v| v == 0.0) => {}
                Some(g) => self.fail(format!("{name} has the gradient {:?}", host(&g))),
                None => self.fail(format!("{name} has no gradient")),
            }
        }
        Ok(())
    }

    /// The JSON describes the same layer as the constructor that the case was called by.
    pub(super) fn described(&mut self) -> Result<()> {
        let made = Made::new(&InitContext::new(self.device, 3), self.case)?;
        if !matches!(made, Made::Graph(_)) {
            let json = Value::Object(self.case.config.clone());
            let described = network::layer(&InitContext::new(self.device, 3), &json)?;
            let (a, b) = (format!("{described:?}"), format!("{:?}", made.layer()));
            if a != b {
                self.fail(format!("the JSON describes\n  {a}\nand not\n  {b}"));
            }
        }
        Ok(())
    }

    /// What is in use, what the driver was asked for and what travelled is after any number of steps what it is after a few.
    pub(super) fn memory(&mut self) -> Result<()> {
        let made = self.made()?;
        let on_host = ON_HOST.contains(&self.case.entry.as_str());
        let mut optimizer = match made.layer().named_parameters().is_empty() {
            true => None,
            false => Some(Optimizer::adamw(made.layer(), LR, WEIGHT_DECAY)?),
        };
        let leaves: Vec<Tensor> = self.inputs.iter().map(Tensor::with_grad).collect();
        let steps = std::env::var("TREFOIL_MEMORY_STEPS").map_or(5, |s| s.parse().unwrap());
        let mut settled = None;
        for step in 1..=steps {
            leaves.iter().try_for_each(Tensor::zero_grad)?;
            if let Some(o) = &optimizer {
                o.zero_grad()?;
            }
            let (outputs, loss) = self.forward(&made, &leaves)?;
            if loss.requires_grad() {
                loss.backward()?;
            }
            if let Some(o) = &mut optimizer {
                o.step()?;
            }
            if self.case.learn > 0 {
                made.layer().learn()?;
            }
            drop((outputs, loss));
            let c = self.device.counters();
            let [uploads, downloads] = if on_host { [0; 2] } else { [c.uploads, c.downloads] };
            let now = [self.device.memory().in_use as u64, c.allocations, uploads, downloads];
            match settled {
                None if step < 3 => {}
                None => settled = Some(now),
                Some(then) if then == now => {}
                Some(then) => {
                    self.fail(format!(
                        "bytes in use, allocations, uploads, downloads after step {step}: {now:?}, before {then:?}"
                    ));
                    break;
                }
            }
        }
        Ok(())
    }

    /// The case's layer in a dtype, called with the masks, lengths and states that the case has.
    fn layer(&self, dtype: DType) -> Result<Called> {
        let made = Made::new(&InitContext::new(self.device, 1).dtype(dtype), self.case)?;
        let called = Called { made, case: self.case.clone() };
        if self.case.lazy {
            no_grad(|| called.forward_all(&self.cast_inputs(dtype)?))?;
        }
        Ok(called)
    }

    fn cast_inputs(&self, dtype: DType) -> Result<Vec<Tensor>> {
        let cast = |t: &Tensor| if t.dtype().is_float() { t.to_dtype(dtype) } else { Ok(t.clone()) };
        self.inputs.iter().map(cast).collect()
    }

    /// Outputs and all gradients of one call in a dtype, as f32. Parameters and inputs are `rounded` before.
    fn call(&self, layer: &dyn Layer, dtype: DType, rounded: DType) -> Result<Vec<Vec<f64>>> {
        let mut state = self.case.state(self.device);
        for (name, own) in layer.state_dict().unwrap() {
            if let Some(t) = state.get_mut(&name) {
                let float = t.dtype().is_float();
                *t = if float {
                    t.to_dtype(rounded)?.to_dtype(own.dtype())?
                } else {
                    t.to_dtype(own.dtype())?
                };
            }
        }
        layer.load_state_dict(&state)?;
        layer.set_training(self.case.training);
        let leaf =
            |t: &Tensor| Ok(if t.dtype().is_float() { t.to_dtype(dtype)? } else { t.clone() }.with_grad());
        let leaves: Vec<Tensor> = self.cast_inputs(rounded)?.iter().map(leaf).collect::<Result<_>>()?;
        let outputs = layer.forward_all(&leaves)?;
        let upstream: Vec<(&Tensor, Tensor)> = (self.upstream.iter())
            .filter_map(|(i, w)| outputs.get(*i).filter(|y| y.requires_grad()).map(|y| (y, w)))
            .map(|(y, w)| Ok((y, w.to_dtype(y.dtype())?)))
            .collect::<Result<_>>()?;
        let roots: Vec<_> = upstream.iter().map(|(y, dy)| (*y, Some(dy))).collect();
        autograd::backward(&roots, false)?;
        let grads = leaves.iter().cloned().chain(layer.named_parameters().into_iter().map(|(_, p)| p.get()));
        let grads = grads.filter_map(|t| t.grad());
        let floats = outputs.iter().cloned().chain(grads).filter(|t| t.dtype().is_float());
        floats.map(|t| Ok(host(&t.detach().to_dtype(DType::F32)?))).collect()
    }

    /// Recomputing what is between its input and its output leaves every bit as it was.
    pub(super) fn checkpointed(&mut self) -> Result<()> {
        let plain = self.call(&self.layer(DType::F32)?, DType::F32, DType::F32)?;
        if plain != self.call(&Checkpointed::new(self.layer(DType::F32)?), DType::F32, DType::F32)? {
            self.fail("a checkpointed layer has other outputs or gradients");
        }
        Ok(())
    }

    /// Outputs and gradients in 16 bits are those of f32 from the same numbers, to what 16 bits resolve.
    pub(super) fn halves(&mut self, dtype: DType) -> Result<()> {
        let want = self.call(&self.layer(DType::F32)?, DType::F32, dtype)?;
        let got = self.call(&self.layer(dtype)?, dtype, dtype)?;
        for (i, (want, got)) in want.iter().zip(&got).enumerate() {
            let largest = want.iter().fold(0.1f64, |m, v| m.max(v.abs()));
            let within = |e: f64| e <= 0.05 * largest;
            // NaN is never within.
            if let Some(e) = want.iter().zip(got).map(|(a, b)| (a - b).abs()).find(|&e| !within(e)) {
                self.fail(format!("result {i} in {dtype} is off by {e:.2e} of {largest:.2e}"));
            }
        }
        if want.len() != got.len() {
            self.fail(format!("{} results in {dtype}, {} in f32", got.len(), want.len()));
        }
        Ok(())
    }

    pub(super) fn checked(mut self, checks: &[(&'static str, Check)], folder: &Path) -> Vec<String> {
        for &(stage, check) in checks {
            self.stage = stage;
            if let Err(e) = check(&mut self, folder) {
                self.fail(e);
                break;
            }
        }
        self.failures
    }
}
