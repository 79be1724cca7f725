//! Every layer against PyTorch, on every device: outputs, gradients, buffers, two steps of AdamW, state dictionaries.
//! The suites come from `golden/generate.py`.
#![allow(missing_docs)]

mod common;
#[path = "common/golden.rs"]
mod golden;
#[path = "common/golden_call.rs"]
mod golden_call;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use common::{devices, id};
use golden::{Case, FAMILIES, Tolerance, differs, host, suite};
use golden_call::Made;
use serde_json::Value;
use trefoil::BackendKind;
use trefoil_nn::autograd::no_grad;
use trefoil_nn::state_file::{self, LoadOptions, SaveOptions};
use trefoil_nn::{Build, Device, LayerExt, Optimizer, Result, StateFile, Tensor, network};

const LR: f64 = 1e-3;
const WEIGHT_DECAY: f64 = 1e-2;
const STEPS: usize = 2;

/// The list of layers that this library set out with.
const ENTRIES: [&str; 61] = [
    "dense",
    "fully_connected",
    "convolutional",
    "batch_normalization",
    "layer_normalization",
    "embedding",
    "attention",
    "multi_head_attention",
    "self_attention",
    "cross_attention",
    "lstm",
    "gru",
    "conv_lstm",
    "recurrent",
    "bidirectional",
    "average_pooling",
    "max_pooling",
    "max_pool3d",
    "global_pooling",
    "adaptive_average_pooling",
    "instance_normalization",
    "group_normalization",
    "spectral_normalization",
    "rms_norm",
    "transformer_encoder",
    "transformer_decoder",
    "decoder",
    "feed_forward",
    "positional_encoding",
    "patch_embedding",
    "conv3d",
    "deconvolutional",
    "deformable_convolutional",
    "depthwise_separable_convolutional",
    "dilated_convolutional",
    "locally_connected",
    "separable_convolutional",
    "upsample3d",
    "upsampling",
    "subpixel_convolutional",
    "pixel_shuffle",
    "activation",
    "add",
    "concatenate",
    "cropping",
    "dropout",
    "flatten",
    "gaussian_noise",
    "input",
    "masking",
    "multiply",
    "padding",
    "reshape",
    "sequence_last",
    "split",
    "time_distributed",
    "mean",
    "log_variance",
    "hyperbolic_linear",
    "octonion_linear",
    "gated_linear_unit",
];

fn tolerance(d: &Device) -> Tolerance {
    match id(d).kind {
        BackendKind::Cpu => Tolerance { rtol: 1e-5, atol: 1e-6 },
        _ => Tolerance { rtol: 1e-4, atol: 1e-5 },
    }
}

/// The same numbers with the axes in reverse order in memory, or with gaps.
fn strided(t: &Tensor) -> Result<Tensor> {
    let reversed: Vec<isize> = (0..t.rank() as isize).rev().collect();
    match t.rank() {
        0 => Ok(t.clone()),
        1 => Tensor::stack(1, &[t, t])?.select(1, 1),
        _ => t.permute(&reversed)?.contiguous()?.permute(&reversed),
    }
}

/// A case on a device, and what went wrong.
struct Run<'a> {
    case: &'a Case,
    device: &'a Device,
    tolerance: Tolerance,
    inputs: Vec<Tensor>,
    upstream: BTreeMap<usize, Tensor>,
    /// What is being checked.
    stage: &'static str,
    failures: Vec<String>,
}

impl<'a> Run<'a> {
    fn new(case: &'a Case, device: &'a Device) -> Self {
        let inputs = case.inputs.iter().map(|n| case.get("in", n).unwrap().upload(device)).collect();
        let upstream = case.group("dout").map(|(n, t)| (n.parse().unwrap(), t.upload(device))).collect();
        Run { case, device, tolerance: tolerance(device), inputs, upstream, stage: "", failures: vec![] }
    }

    fn fail(&mut self, what: impl std::fmt::Display) {
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
        let made = Made::new(&Build::new(self.device, 1), self.case)?;
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
    fn gradients(&mut self) -> Result<()> {
        let leaves = self.inputs.iter().map(Tensor::with_grad).collect();
        self.one_call(leaves)
    }

    /// The same with inputs that are no contiguous tensors.
    fn views(&mut self) -> Result<()> {
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
        for (name, t) in made.layer().state_dict() {
            let group = if self.case.get("after", &name).is_some() { "after" } else { "state" };
            self.close(group, &name, &t);
        }
        Ok(())
    }

    /// Parameters after steps of AdamW. It divides by the size of the gradient: an error of that moves a parameter by
    /// as much of the learning rate, in each step, and never by more than twice the learning rate.
    fn steps(&mut self) -> Result<()> {
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

    /// The state dictionary through a file, into another layer of the same kind.
    fn round_trip(&mut self, folder: &Path) -> Result<()> {
        let made = self.made()?;
        let own: BTreeSet<String> = made.layer().state_dict().into_keys().collect();
        let theirs: BTreeSet<String> = self.case.group("state").map(|(n, _)| n.clone()).collect();
        assert_eq!(own, theirs, "loading is strict");
        made.layer().eval();
        let want: Vec<Vec<f64>> = no_grad(|| made.call(self.case, &self.inputs))?.iter().map(host).collect();

        let path = folder.join(format!("{}.safetensors", self.case.name.replace('/', "-")));
        state_file::save(&made.layer().state_dict(), &path, &SaveOptions::new())?;
        let other = Made::new(&Build::new(self.device, 2), self.case)?;
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
    fn empty(&mut self) -> Result<()> {
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
    fn described(&mut self) -> Result<()> {
        let made = Made::new(&Build::new(self.device, 3), self.case)?;
        if !matches!(made, Made::Graph(_)) {
            let json = Value::Object(self.case.config.clone());
            let described = network::layer(&Build::new(self.device, 3), &json)?;
            let (a, b) = (format!("{described:?}"), format!("{:?}", made.layer()));
            if a != b {
                self.fail(format!("the JSON describes\n  {a}\nand not\n  {b}"));
            }
        }
        Ok(())
    }

    /// What is in use, and what the driver was asked for, is after any number of steps what it is after a few.
    fn memory(&mut self) -> Result<()> {
        let made = self.made()?;
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
            drop((outputs, loss));
            let now = (self.device.memory().in_use, self.device.counters().allocations);
            match settled {
                None if step < 3 => {}
                None => settled = Some(now),
                Some(then) if then == now => {}
                Some(then) => {
                    self.fail(format!(
                        "bytes in use and allocations after step {step}: {now:?}, before {then:?}"
                    ));
                    break;
                }
            }
        }
        Ok(())
    }

    fn all(mut self, folder: &Path) -> Vec<String> {
        type Check<'a, 'b> = (&'static str, &'b dyn Fn(&mut Run<'a>) -> Result<()>);
        let checks: [Check<'a, '_>; 7] = [
            ("one call", &Run::gradients),
            ("a call with views", &Run::views),
            ("steps", &Run::steps),
            ("state", &|r| r.round_trip(folder)),
            ("description", &Run::described),
            ("memory", &Run::memory),
            ("an empty batch", &Run::empty),
        ];
        for (stage, check) in checks {
            self.stage = stage;
            if let Err(e) = check(&mut self) {
                self.fail(e);
                break;
            }
        }
        self.failures
    }
}

fn run(family: &str) {
    let cases = suite(family);
    let only = std::env::var("TREFOIL_GOLDEN_CASE").unwrap_or_default();
    let folder: PathBuf =
        std::env::temp_dir().join(format!("trefoil-golden-{}-{family}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let mut failures = vec![];
    for d in devices() {
        for case in cases.iter().filter(|c| c.name.contains(&only)) {
            failures.extend(Run::new(case, &d).all(&folder));
        }
    }
    std::fs::remove_dir_all(&folder).unwrap();
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
}

macro_rules! families {
    ($($name:ident: $family:literal;)*) => {
        $(#[test]
        fn $name() {
            run($family);
        })*

        /// A family without a test would go unnoticed.
        const TESTED: &[&str] = &[$($family),*];
    };
}

families! {
    core: "core";
    attention: "attention";
    recurrent: "recurrent";
    pooling: "pooling";
    normalization: "normalization";
    transformer: "transformer";
    convolutional: "convolutional";
    upsampling: "upsampling";
    utility: "utility";
    dense_like: "dense-like";
}

#[test]
fn every_layer_has_four_configurations() {
    assert_eq!(TESTED, FAMILIES);
    let mut count: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for c in FAMILIES.into_iter().flat_map(suite) {
        assert_eq!(c.config["type"], c.entry.as_str(), "{}", c.name);
        // Options, mode, arguments, and the inputs with their ranks.
        let ranks: Vec<_> = c.inputs.iter().map(|n| (n, c.get("in", n).unwrap().shape.len())).collect();
        let how = format!("{:?} {} {:?} {ranks:?}", c.config, c.training, c.args);
        count.entry(c.entry.clone()).or_default().insert(how);
    }
    assert_eq!(count.keys().map(String::as_str).collect::<BTreeSet<_>>(), BTreeSet::from(ENTRIES));
    for (entry, configurations) in count {
        assert!(configurations.len() >= 4, "{entry}: {configurations:?}");
    }
    let listed: BTreeSet<&str> = network::LAYERS.iter().filter(|l| l.entry > 0).map(|l| l.name).collect();
    assert_eq!(listed, BTreeSet::from(ENTRIES), "layers of the list in JSON");
}
