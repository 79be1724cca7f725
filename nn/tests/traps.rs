//! Mistakes that must not go unnoticed: forgotten recursion, names used twice, handles that are mixed, parameters without gradients.
#![allow(missing_docs)]

mod common;

use common::{cpu, devices, f32s};
use trefoil_nn::checkpoint::{Checkpoint, Progress};
use trefoil_nn::layers::{BatchNormalization, Dense, Sequential};
use trefoil_nn::{Build, Layer, LayerExt, Model, NnError, Optimizer, Result, Tensor, Visitor};

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
    let norm = || BatchNormalization::new(&Build::new(&d, 1), 2).unwrap();
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
    let cx = Build::new(&d, 1);
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

        let model = Dense::new(&Build::new(&d, 1), 4, 2).unwrap();
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
