//! Mistakes that must not go unnoticed: forgotten recursion, names used twice, handles that are mixed, parameters without gradients.

use std::collections::BTreeMap;

use crate::common::{cpu, devices, f32s};
use trefoil_nn::checkpoint::{Checkpoint, Progress};
use trefoil_nn::layers::{BatchNormalization, Dense, Sequential};
use trefoil_nn::optim::{LossScale, OptimRule};
use trefoil_nn::{
    Device, InitContext, Layer, LayerExt, Model, NnError, Optimizer, Param, Result, Tensor, Visitor,
};

/// A wrapper as users write it: its parts are listed in `visit` and nowhere else.
#[derive(Debug)]
struct Wrapper<L>(L);

impl<L: Layer> Layer for Wrapper<L> {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.0.forward(x)
    }
    fn visit(&self, v: &mut Visitor<'_>) {
        v.child("inner", &self.0);
    }
}

/// A wrapper that shows the state of its part as its own.
#[derive(Debug)]
struct Newtype<L>(L);

impl<L: Layer> Layer for Newtype<L> {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.0.forward(x)
    }
    fn visit(&self, v: &mut Visitor<'_>) {
        self.0.visit(v);
    }
}

#[test]
fn wrappers_that_only_list_their_parts_switch_them() {
    let d = cpu();
    let x = f32s(&d, &[1.0, 2.0, 3.0, 6.0], &[2, 2]);
    let norm = || BatchNormalization::new(&InitContext::new(&d, 1), 2).unwrap();
    let wrapped: [Box<dyn Layer>; 3] =
        [Box::new(Wrapper(norm())), Box::new(Newtype(norm())), Box::new(Wrapper(Newtype(Wrapper(norm()))))];
    for layer in &wrapped {
        layer.eval();
        // The running statistics are still mean 0 and variance 1, so that evaluation changes next to nothing.
        let y = layer.forward(&x).unwrap().to_vec::<f32>().unwrap();
        assert!((y[3] - 6.0).abs() < 1e-3, "{layer:?} evaluates with the batch's statistics: {y:?}");
        layer.train();
        let y = layer.forward(&x).unwrap().to_vec::<f32>().unwrap();
        assert!((y[3] - 1.0).abs() < 1e-3, "{layer:?} trains with running statistics: {y:?}");
    }
}

/// Two parts of one name.
#[derive(Debug)]
struct Twins(Dense, Dense);

impl Layer for Twins {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.1.forward(&self.0.forward(x)?)
    }
    fn visit(&self, v: &mut Visitor<'_>) {
        v.child("fc", &self.0);
        v.child("fc", &self.1);
    }
}

#[test]
fn a_name_used_twice_is_an_error_at_once() {
    let d = cpu();
    let cx = InitContext::new(&d, 1);
    let twins = || Twins(Dense::new(&cx, 2, 2).unwrap(), Dense::new(&cx, 2, 2).unwrap());
    let model = Sequential::new().named("block", twins());
    let refused = |what: &str, e: NnError| {
        let NnError::DuplicateName { name } = &e else { panic!("{what}: {e}") };
        assert_eq!(name, "block.fc.weight", "{what}");
    };
    refused("state_dict", model.state_dict().unwrap_err());
    refused("load_state_dict", model.load_state_dict(&Default::default()).unwrap_err());
    refused("load_matching", model.load_matching(&Default::default()).unwrap_err());
    refused("download_state", model.download_state().unwrap_err());
    refused("upload_state", model.upload_state(&Default::default()).unwrap_err());
    refused("capture", Checkpoint::capture(&model, None, Progress::default()).unwrap_err());
    refused("restore", Checkpoint::default().restore(&model, None).unwrap_err());
    refused("Optimizer", Optimizer::adam(&model, 0.1).unwrap_err());
    // Containers of the library make the same mistake possible.
    let dense = || Dense::new(&cx, 2, 2).unwrap();
    let twice = Sequential::new().named("a", dense()).named("a", dense());
    assert!(matches!(twice.state_dict(), Err(NnError::DuplicateName { name }) if name == "a.weight"));
}

#[test]
fn handles_of_one_device_are_told_apart() {
    for d in devices().into_iter().skip(1) {
        let other = d.fork_stream().unwrap();
        let x = f32s(&d, &[1.0, -2.0, 0.5, 3.0], &[1, 4]);
        let e = x.add(&x.to_device(&other).unwrap()).unwrap_err();
        assert!(matches!(e, NnError::HandleMismatch { op: "binary", .. }), "{e}");
        assert!(e.to_string().contains("to_device"), "{e}");

        let model = Dense::new(&InitContext::new(&d, 1), 4, 2).unwrap();
        let here = model.forward(&x).unwrap().to_vec::<f32>().unwrap();
        let before = d.counters();
        model.to_device(&other).unwrap();
        assert_eq!(d.counters().downloads, before.downloads, "a move within the device stays there");
        let e = model.forward(&x).unwrap_err();
        assert!(matches!(e.root(), NnError::HandleMismatch { .. }), "{e}");
        let leaf = x.with_grad();
        let y = model.forward(&leaf.to_device(&other).unwrap()).unwrap();
        assert_eq!(y.to_vec::<f32>().unwrap(), here);
        y.sum().unwrap().backward().unwrap();
        assert_eq!(leaf.grad().unwrap().to_vec::<f32>().unwrap().len(), 4);
        leaf.grad().unwrap().add(&x).unwrap();

        // An optimizer brings its parameters along.
        let mut optimizer = Optimizer::adam(&model, 0.1).unwrap();
        optimizer.to_device(&d).unwrap();
        model.to_device(&d).unwrap();
        assert_eq!(model.forward(&x).unwrap().to_vec::<f32>().unwrap(), here);
    }
}

/// A model of parameters alone.
#[derive(Debug)]
struct Params(Vec<Param>);

impl Params {
    fn new(d: &Device) -> Self {
        Params((0..3).map(|i| Param::new(f32s(d, &[1.0 + i as f32, -2.0], &[2]))).collect())
    }
    fn value(&self, i: usize) -> Vec<f32> {
        self.0[i].get().to_vec().unwrap()
    }
}

impl Layer for Params {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        Ok(x.clone())
    }
    fn visit(&self, v: &mut Visitor<'_>) {
        for (i, p) in self.0.iter().enumerate() {
            v.param(&format!("p{i}"), p);
        }
    }
}

/// One step in which only the chosen parameters get gradients, those of a sum of squares.
fn step(model: &Params, optimizer: &mut Optimizer, chosen: &[usize]) {
    optimizer.zero_grad().unwrap();
    for &i in chosen {
        let w = model.0[i].get();
        optimizer.backward(&w.mul(&w).unwrap().sum().unwrap()).unwrap();
    }
    optimizer.step().unwrap();
}

const ADAMW: OptimRule = OptimRule::AdamW { b1: 0.9, b2: 0.999, eps: 1e-8, wd: 0.5 };
const RULES: [OptimRule; 4] = [
    ADAMW,
    OptimRule::Momentum { mu: 0.9, damp: 0.5, wd: 0.1, nesterov: false },
    OptimRule::Lamb {
        b1: 0.9,
        b2: 0.999,
        eps: 1e-6,
        wd: 0.1,
        bias_correction: true,
        max_norm: 10.0,
        adapt: true,
    },
    OptimRule::Adagrad { lr_decay: 0.1, eps: 1e-10, wd: 0.1 },
];

#[test]
fn a_parameter_without_gradient_takes_no_part_in_a_step() {
    for d in devices() {
        for rule in RULES {
            let model = Params::new(&d);
            let mut optimizer = Optimizer::new(&model, rule, 0.1).unwrap();
            // The middle one misses steps before and between those in which it takes part.
            for chosen in [&[0, 2][..], &[0, 1, 2], &[0], &[0, 1, 2]] {
                let before = model.value(1);
                step(&model, &mut optimizer, chosen);
                assert_eq!(model.value(1) == before, !chosen.contains(&1), "{rule:?} {chosen:?}");
            }
            // To it, the run was one of two steps.
            let alone = Params::new(&d);
            let mut other = Optimizer::new(&alone, rule, 0.1).unwrap();
            (0..2).for_each(|_| step(&alone, &mut other, &[0, 1, 2]));
            assert_eq!(model.value(1), alone.value(1), "{rule:?}");
        }
    }
}

#[test]
fn packed_moments_and_scaled_losses_leave_it_out_too() {
    for d in devices() {
        type Dress = fn(Optimizer) -> Result<Optimizer>;
        let forms: [Dress; 3] = [
            |o| o.moments_in_bf16(None),
            |o| o.moments_in_8_bits(None),
            |o| o.loss_scaling(LossScale::new(), 8.0),
        ];
        for dress in forms {
            let make = |model: &Params| dress(Optimizer::new(model, ADAMW, 0.1).unwrap()).unwrap();
            let (model, alone) = (Params::new(&d), Params::new(&d));
            let (mut optimizer, mut other) = (make(&model), make(&alone));
            for chosen in [&[0, 2][..], &[0, 1, 2], &[0], &[0, 1, 2]] {
                step(&model, &mut optimizer, chosen);
            }
            (0..2).for_each(|_| step(&alone, &mut other, &[0, 1, 2]));
            assert_eq!(model.value(1), alone.value(1));
        }
    }
}

#[test]
fn missed_steps_return_with_a_checkpoint() {
    let d = cpu();
    let (a, b) = (Params::new(&d), Params::new(&d));
    let mut left = Optimizer::new(&a, ADAMW, 0.1).unwrap();
    for chosen in [&[0][..], &[0, 1]] {
        step(&a, &mut left, chosen);
    }
    let saved = Checkpoint::capture(&a, Some(&left), Progress::default()).unwrap();
    let mut right = Optimizer::new(&b, ADAMW, 0.1).unwrap();
    saved.restore(&b, Some(&mut right)).unwrap();
    step(&a, &mut left, &[0, 1, 2]);
    step(&b, &mut right, &[0, 1, 2]);
    for i in 0..3 {
        assert_eq!(a.value(i), b.value(i), "parameter {i}");
    }
}

#[test]
fn frozen_parameters_stay_as_they_are() {
    for d in devices() {
        let cx = InitContext::new(&d, 1);
        let model = Sequential::new()
            .named("encoder", Sequential::new().push(Dense::new(&cx, 2, 4).unwrap()))
            .named("head", Dense::new(&cx, 4, 1).unwrap());
        assert_eq!(model.freeze("encoder").unwrap(), 2);
        assert_eq!(model.freeze("*.bias").unwrap(), 2);
        let e = model.freeze("decoder").unwrap_err();
        assert!(e.to_string().contains("`decoder`"), "{e}");
        let state = || {
            let all = model.state_dict().unwrap();
            all.iter().map(|(n, t)| (n.clone(), t.to_vec::<f32>().unwrap())).collect::<BTreeMap<_, _>>()
        };
        let before = state();
        assert_eq!(before.len(), 4, "frozen parameters stay in the state dictionary");

        let mut optimizer = Optimizer::adamw(&model, 0.1, 0.5).unwrap();
        let names: Vec<String> = optimizer.state_tensors().unwrap().into_iter().map(|(n, _)| n).collect();
        assert_eq!(names, ["m.head.weight", "v.head.weight"]);
        let x = f32s(&d, &[1.0, 2.0], &[1, 2]);
        let train = |optimizer: &mut Optimizer| {
            optimizer.zero_grad().unwrap();
            optimizer.backward(&model.forward(&x).unwrap().sum().unwrap()).unwrap();
            optimizer.step().unwrap();
        };
        train(&mut optimizer);
        let after = state();
        let changed: Vec<_> = before.keys().filter(|n| before[*n] != after[*n]).collect();
        assert_eq!(changed, ["head.weight"]);
        assert!(model.named_gradients().iter().all(|(n, g)| g.is_some() == (n == "head.weight")));

        // Frozen and unfrozen under a living optimizer.
        model.freeze("head.weight").unwrap();
        model.unfreeze("encoder").unwrap();
        train(&mut optimizer);
        assert_eq!(state(), after);
        model.unfreeze("head.weight").unwrap();
        train(&mut optimizer);
        assert_ne!(state()["head.weight"], after["head.weight"]);
    }
}
