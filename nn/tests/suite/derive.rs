//! `#[derive(Layer)]`: names, modes, generators, buffers, parts and what is left out.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::common::{cpu, tensor};
use trefoil::ops::activation::Activation;
use trefoil_nn::layers::{BatchNormalization, Dense, Dropout};
use trefoil_nn::{InitContext, Layer, LayerExt, LocalLearning, Param, Result, Tensor};

#[derive(Debug, Layer)]
#[layer(kind = "Block", own(reset_state, no_gradient, local_learning, forward_all))]
struct Everything<L: Layer> {
    first: L,
    blocks: Vec<Dense>,
    pair: [Option<Box<dyn Layer>>; 2],
    #[layer(rename = "self")]
    own_scale: Param,
    shift: Option<Param>,
    #[layer(buffer)]
    running: Param,
    #[layer(buffer, rename = "more.stats")]
    statistics: Vec<Param>,
    draws: AtomicU64,
    training: AtomicBool,
    #[layer(flatten)]
    wrapped: Dense,
    #[layer(skip)]
    mask: Tensor,
    act: Activation,
    sizes: Vec<usize>,
    resets: Counter,
}

/// Something of the program's own: without state, which an empty implementation says.
#[derive(Debug, Default)]
struct Counter(AtomicU64);

impl trefoil_nn::LayerField for Counter {
    fn visit_field(&self, _: &str, _: &mut trefoil_nn::Visitor<'_>) {}
}

impl<L: Layer> Everything<L> {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.first.forward(x)? * self.own_scale.get() + &self.mask
    }
    fn forward_all(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        inputs.iter().map(|x| self.forward(x)).collect()
    }
    fn reset_state(&self) {
        self.resets.0.fetch_add(1, Ordering::Relaxed);
    }
    fn no_gradient(&self) -> Option<String> {
        Some("a test".into())
    }
    fn local_learning(&self) -> Option<&dyn LocalLearning> {
        None
    }
}

#[derive(Debug, Layer)]
struct Pair(Dense, Dropout);

impl Pair {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.1.forward(&self.0.forward(x)?)
    }
}

#[test]
fn fields_show_themselves_under_their_names() {
    let cx = InitContext::new(&cpu(), 1);
    let ones = |n: usize| Tensor::ones(cx.device(), cx.param_dtype(), &[n]).unwrap();
    let dense = |n: usize| Dense::new(&cx, n, 2).unwrap();
    let norm: Box<dyn Layer> = Box::new(BatchNormalization::new(&cx, 2).unwrap());
    let layer = Everything {
        first: Pair(dense(3), Dropout::new(&cx, 0.5).unwrap()),
        blocks: vec![dense(1), dense(2)],
        pair: [None, Some(norm)],
        own_scale: Param::new(ones(2)),
        shift: None,
        running: Param::buffer(ones(2)),
        statistics: vec![Param::buffer(ones(1)), Param::buffer(ones(1))],
        draws: AtomicU64::new(7),
        training: AtomicBool::new(true),
        wrapped: dense(4),
        mask: ones(2),
        act: Activation::Relu,
        sizes: vec![3],
        resets: Counter::default(),
    };
    let names = |list: Vec<(String, Param)>| list.into_iter().map(|(n, _)| n).collect::<Vec<_>>();
    let parameters = [
        "first.0.weight",
        "first.0.bias",
        "blocks.0.weight",
        "blocks.0.bias",
        "blocks.1.weight",
        "blocks.1.bias",
        "pair.1.weight",
        "pair.1.bias",
        "self",
        "weight",
        "bias",
    ];
    assert_eq!(names(layer.named_parameters()), parameters);
    let buffers: Vec<String> =
        names(layer.named_state()).into_iter().filter(|n| !parameters.contains(&n.as_str())).collect();
    assert_eq!(buffers[..2], ["pair.1.running_mean", "pair.1.running_var"]);
    assert_eq!(buffers[buffers.len() - 3..], ["running", "more.stats.0", "more.stats.1"]);
    assert_eq!(layer.counters().get("draws"), Some(&7));

    // The struct's own methods, by the trait.
    let (of, x): (&dyn Layer, Tensor) = (&layer, ones(3).reshape(&[1, 3]).unwrap());
    assert_eq!((of.kind(), of.no_gradient().as_deref()), ("Block", Some("a test")));
    assert_eq!(of.forward_all(&[x.clone(), x.clone()]).unwrap().len(), 2);
    of.reset_state();
    assert_eq!(layer.resets.0.load(Ordering::Relaxed), 1);
    of.set_training(false);
    assert!(!layer.training.load(Ordering::Relaxed) && layer.act == Activation::Relu && layer.sizes == [3]);
    // Without dropout, twice the same; the mask is no state.
    let y = of.forward(&x).unwrap().to_vec::<f32>().unwrap();
    assert_eq!(y, of.forward(&x).unwrap().to_vec::<f32>().unwrap());
}

#[test]
fn a_state_dictionary_goes_around() {
    let (a, b) = (InitContext::new(&cpu(), 1), InitContext::new(&cpu(), 2));
    let make = |cx: &InitContext| Pair(Dense::new(cx, 3, 2).unwrap(), Dropout::new(cx, 0.0).unwrap());
    let (from, to) = (make(&a), make(&b));
    let x = tensor(&cpu(), &[4, 3], 3).to_dtype(trefoil_nn::DType::F32).unwrap();
    let out = |m: &Pair| m.forward(&x).unwrap().to_vec::<f32>().unwrap();
    assert_ne!(out(&from), out(&to));
    to.load_state_dict(&from.state_dict().unwrap()).unwrap();
    assert_eq!(out(&from), out(&to));
    assert_eq!(Layer::kind(&from), "Pair");
}
