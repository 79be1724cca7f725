//! Layers and state dictionaries.

use std::sync::Arc;

use crate::common::{cpu, devices, f32s, gradcheck, tensor};
use trefoil::DType;
use trefoil::ops::activation::Activation;
use trefoil_nn::layers::{Activate, Dense, Dropout, Flatten, LogSoftmax, Reshape, Sequential, Softmax};
use trefoil_nn::{Init, InitContext, Layer, LayerExt, NnError, Param};

#[test]
fn dense_follows_the_definition() {
    for d in devices() {
        let cx = InitContext::new(&d, 1);
        let layer = Dense::new(&cx, 3, 2).unwrap().activation(Activation::Relu);
        layer.weight().unwrap().get().assign(&f32s(&d, &[1., 2., 3., -1., 0., 1.], &[2, 3])).unwrap();
        layer.bias().unwrap().get().assign(&f32s(&d, &[0.5, -10.0], &[2])).unwrap();
        let y = layer.forward(&f32s(&d, &[1., 1., 1., 2., 0., 1.], &[2, 3])).unwrap();
        assert_eq!(y.to_vec::<f32>().unwrap(), [6.5, 0.0, 5.5, 0.0]);
        // Any number of leading axes, none included.
        assert_eq!(layer.forward(&f32s(&d, &[1.; 3], &[3])).unwrap().shape(), [2]);
        assert_eq!(layer.forward(&f32s(&d, &[1.; 12], &[2, 2, 3])).unwrap().shape(), [2, 2, 2]);
        let empty = layer.forward(&f32s(&d, &[], &[0, 3])).unwrap();
        assert_eq!(empty.shape(), [0, 2]);
        empty.sum().unwrap().backward().unwrap();
        let g = layer.weight().unwrap().get().grad().unwrap();
        assert_eq!(g.to_vec::<f32>().unwrap(), [0.0; 6]);
    }
}

#[test]
fn layers_pass_the_gradient_check() {
    let d = cpu();
    let cx = InitContext::new(&d, 5).dtype(DType::F64);
    let dense = Dense::new(&cx, 4, 3).unwrap().activation(Activation::Gelu);
    gradcheck("Dense, input", &[&[2, 4]], |x| x, |t| dense.forward(&t[0]));
    let weights = (dense.weight().unwrap(), dense.bias().unwrap());
    let x = tensor(&d, &[5, 4], 2);
    gradcheck(
        "Dense, parameters",
        &[&[3, 4], &[3]],
        |x| x,
        |t| x.linear(&t[0], Some(&t[1]), Activation::Gelu, Default::default()),
    );
    assert_eq!(weights.0.get().shape(), [3, 4]);
    let model = Sequential::new()
        .push(Flatten::default())
        .push(Dense::new(&cx, 6, 5).unwrap())
        .push(Activate(Activation::Mish))
        .push(Reshape::new(&[5, -1]).unwrap())
        .push(LogSoftmax(1))
        .push(Softmax(-2));
    gradcheck("Sequential", &[&[2, 2, 3]], |x| x, |t| model.forward(&t[0]));
}

#[test]
fn lazy_sizes_are_fixed_by_the_first_forward() {
    let d = cpu();
    let cx = InitContext::new(&d, 1);
    let layer = Dense::lazy(&cx, 2).unwrap();
    assert_eq!(layer.num_parameters(), 0);
    layer.forward(&f32s(&d, &[1.; 3], &[1, 3])).unwrap();
    assert_eq!(layer.num_parameters(), 8);
    let e = layer.forward(&f32s(&d, &[1.; 4], &[1, 4])).unwrap_err().to_string();
    assert!(e.contains("Dense") && e.contains("[.., 3]") && e.contains("[1, 4]"), "{e}");
}

#[test]
fn constructors_refuse_what_makes_no_sense() {
    let cx = InitContext::new(&cpu(), 1);
    assert!(Dense::new(&cx, 0, 3).is_err() && Dense::new(&cx, 3, 0).is_err());
    for p in [-0.1, 1.1, f64::NAN] {
        assert!(Dropout::new(&cx, p).is_err());
    }
    assert!(Reshape::new(&[-1, -1]).is_err() && Reshape::new(&[-2]).is_err());
    let x = f32s(&cpu(), &[0.; 6], &[1, 6]);
    assert!(Reshape::new(&[4, -1]).unwrap().forward(&x).is_err());
    assert!(Reshape::new(&[5]).unwrap().forward(&x).is_err());
    assert!(Flatten::default().forward(&f32s(&cpu(), &[0.; 6], &[6])).is_err());
    assert!(Softmax(1).forward(&f32s(&cpu(), &[0.; 6], &[6])).is_err());
}

#[test]
fn dropout_masks_scales_and_advances() {
    for d in devices() {
        let cx = InitContext::new(&d, 9);
        let layer = Dropout::new(&cx, 0.25).unwrap();
        let x = f32s(&d, &[1.0; 4000], &[40, 100]).with_grad();
        let y = layer.forward(&x).unwrap();
        let v = y.to_vec::<f32>().unwrap();
        let kept = v.iter().filter(|&&a| a != 0.0).count();
        assert!(v.iter().all(|&a| a == 0.0 || (a - 1.0 / 0.75).abs() < 1e-6));
        assert!((2850..3150).contains(&kept), "{kept} of 4000 kept");
        y.sum().unwrap().backward().unwrap();
        assert_eq!(x.grad().unwrap().to_vec::<f32>().unwrap(), v);
        assert_ne!(layer.forward(&x).unwrap().to_vec::<f32>().unwrap(), v);
        // Setting the position back repeats the mask.
        let at = layer.counters();
        layer.set_counters(&at.keys().map(|k| (k.clone(), 0)).collect()).unwrap();
        assert_eq!(layer.forward(&x).unwrap().to_vec::<f32>().unwrap(), v);
        layer.eval();
        assert_eq!(layer.forward(&x).unwrap().to_vec::<f32>().unwrap(), [1.0; 4000]);
        layer.train();
        let all = Dropout::new(&cx, 1.0).unwrap();
        assert_eq!(all.forward(&x).unwrap().to_vec::<f32>().unwrap(), [0.0; 4000]);
        // Layers draw from streams of their own.
        let (a, b) = (Dropout::new(&cx, 0.5).unwrap(), Dropout::new(&cx, 0.5).unwrap());
        assert_ne!(
            a.forward(&x).unwrap().to_vec::<f32>().unwrap(),
            b.forward(&x).unwrap().to_vec::<f32>().unwrap()
        );
    }
}

#[test]
fn initial_values_are_bounded_spread_and_repeatable() {
    let d = cpu();
    let values = |init: Init, seed: u64| {
        let cx = InitContext::new(&d, seed);
        init.tensor(&cx, &[50, 80], 80, 50).unwrap().to_vec::<f32>().unwrap()
    };
    for (init, bound) in [
        (Init::Lin, (1.0f32 / 80.0).sqrt()),
        (Init::Glorot, (6.0f32 / 130.0).sqrt()),
        (Init::He, (6.0f32 / 80.0).sqrt()),
        (Init::LeCun, (3.0f32 / 80.0).sqrt()),
    ] {
        let v = values(init, 3);
        let largest = v.iter().fold(0.0f32, |m, x| m.max(x.abs()));
        assert!(largest <= bound && largest > 0.98 * bound, "{init:?}: {largest} of {bound}");
        let std = (v.iter().map(|x| x * x).sum::<f32>() / v.len() as f32).sqrt();
        assert!((std - bound / 3f32.sqrt()).abs() < 0.03 * bound, "{init:?}: {std}");
        assert_eq!(v, values(init, 3));
        assert_ne!(v, values(init, 4));
    }
    assert_eq!(values(Init::Zeros, 1), vec![0.0; 4000]);
    assert_eq!(values(Init::Constant(2.5), 1), vec![2.5; 4000]);
    let v = values(Init::Normal { mean: 1.0, std: 0.5 }, 1);
    let mean = v.iter().sum::<f32>() / 4000.0;
    assert!((mean - 1.0).abs() < 0.04, "{mean}");
    let cx = InitContext::new(&d, 1);
    assert!(Init::Lin.tensor(&cx, &[3], 0, 3).is_err());
    // Two layers of one build differ, and two equal builds agree.
    let layers = || {
        let cx = InitContext::new(&d, 7);
        [Dense::new(&cx, 4, 4).unwrap(), Dense::new(&cx, 4, 4).unwrap()]
            .map(|l| l.weight().unwrap().get().to_vec::<f32>().unwrap())
    };
    assert_ne!(layers()[0], layers()[1]);
    assert_eq!(layers(), layers());
}

fn mlp(cx: &InitContext) -> Sequential {
    Sequential::new()
        .push(Dense::new(cx, 4, 3).unwrap())
        .named("drop", Dropout::new(cx, 0.5).unwrap())
        .named("head", Dense::new(cx, 3, 2).unwrap().no_bias())
}

#[test]
fn state_names_follow_pytorch() {
    let m = mlp(&InitContext::new(&cpu(), 1));
    let names: Vec<String> = m.named_parameters().into_iter().map(|(n, _)| n).collect();
    assert_eq!(names, ["0.weight", "0.bias", "head.weight"]);
    assert_eq!(m.counters().into_keys().collect::<Vec<_>>(), ["drop.offset"]);
    assert_eq!(m.num_parameters(), 12 + 3 + 6);
    assert!(m.by_name("head").is_some() && m.get(3).is_none() && m.len() == 3);
}

#[test]
fn state_dictionaries_are_checked_before_anything_is_written() {
    let d = cpu();
    let (a, b) = (mlp(&InitContext::new(&d, 1)), mlp(&InitContext::new(&d, 2)));
    let values = |m: &Sequential| -> Vec<Vec<f32>> {
        m.named_parameters().iter().map(|(_, p)| p.get().to_vec().unwrap()).collect()
    };
    let mut state = a.state_dict().unwrap();
    let before = values(&b);
    state.insert("head.weight".into(), f32s(&d, &[0.0; 6], &[3, 2]));
    match b.load_state_dict(&state) {
        Err(NnError::StateShape { name, expected, found, .. }) => {
            assert_eq!((name.as_str(), &expected[..], &found[..]), ("head.weight", &[2, 3][..], &[3, 2][..]));
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(values(&b), before);
    let mut state = a.state_dict().unwrap();
    state.remove("0.bias");
    state.insert("extra".into(), f32s(&d, &[0.0], &[1]));
    match b.load_state_dict(&state) {
        Err(NnError::StateNames { missing, unexpected }) => {
            assert_eq!((missing, unexpected), (vec!["0.bias".to_string()], vec!["extra".to_string()]));
        }
        other => panic!("{other:?}"),
    }
    b.load_state_dict(&a.state_dict().unwrap()).unwrap();
    assert_eq!(values(&a), values(&b));
    assert_ne!(values(&a), before);
}

#[test]
fn layers_can_be_shared() {
    let d = cpu();
    let cx = InitContext::new(&d, 1);
    let shared = Arc::new(Dense::new(&cx, 3, 3).unwrap());
    let m = Sequential::new().push(shared.clone()).push(shared.clone());
    let x = f32s(&d, &[1.0, 2.0, 3.0], &[1, 3]);
    m.forward(&x).unwrap().sum().unwrap().backward().unwrap();
    let both = shared.weight().unwrap().get().grad().unwrap().to_vec::<f32>().unwrap();
    m.zero_grad().unwrap();
    assert!(shared.weight().unwrap().get().grad().is_none());
    let h = shared.forward(&x).unwrap().detach();
    shared.forward(&h).unwrap().sum().unwrap().backward().unwrap();
    assert_ne!(both, shared.weight().unwrap().get().grad().unwrap().to_vec::<f32>().unwrap());
}

#[test]
fn models_move_between_devices() {
    let all = devices();
    let Some(other) = all.get(1) else {
        println!("skipped: only one device here");
        return;
    };
    let m = mlp(&InitContext::new(&cpu(), 1));
    m.eval();
    let x = f32s(&cpu(), &[1.0, -2.0, 0.5, 3.0], &[1, 4]);
    let here = m.forward(&x).unwrap().to_vec::<f32>().unwrap();
    m.to_device(other).unwrap();
    let e = m.forward(&x).unwrap_err();
    assert!(matches!(e.root(), NnError::DeviceMismatch { .. }), "{e}");
    let leaf = x.with_grad();
    let y = m.forward(&leaf.to_device(other).unwrap()).unwrap();
    let there = y.to_vec::<f32>().unwrap();
    for (a, b) in here.iter().zip(&there) {
        assert!((a - b).abs() < 1e-5, "{a} and {b}");
    }
    y.sum().unwrap().backward().unwrap();
    let g = leaf.grad().unwrap();
    assert_eq!(crate::common::id(g.device()), crate::common::id(&cpu()));
}

#[test]
fn parameters_keep_what_they_are() {
    let p = Param::new(f32s(&cpu(), &[1.0], &[1]));
    p.set(f32s(&cpu(), &[2.0], &[1]));
    assert!(p.get().requires_grad());
    let b = Param::buffer(f32s(&cpu(), &[1.0], &[1]).with_grad());
    assert!(!b.get().requires_grad() && !b.same(&p) && p.same(&p.clone()));
}
