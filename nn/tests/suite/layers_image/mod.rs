//! Layers for images: state, gradients in f64, devices against the CPU.

mod cases;
mod definitions;
mod refusals;

use self::cases::{Case, cases};
use crate::common::{close, cpu, devices, noise, tensor};
use trefoil::DType;
use trefoil_nn::layers::*;
use trefoil_nn::{Device, Init, InitContext, Layer, LayerExt, Tensor};

/// Parameters away from special values (zeros of offset maps).
fn randomise(layer: &dyn Layer) {
    for (i, (_, p)) in layer.named_parameters().iter().enumerate() {
        let t = p.get();
        let v: Vec<f64> = noise(40 + i as u64, t.numel()).iter().map(|v| 0.4 * v).collect();
        let v = Tensor::from_slice(t.device(), &v, t.shape()).unwrap();
        t.detach().assign(&v.to_dtype(t.dtype()).unwrap()).unwrap();
    }
}

/// Sum of the output times fixed weights.
fn loss(layer: &dyn Layer, x: &Tensor) -> Tensor {
    let y = layer.forward(x).unwrap();
    let w = tensor(y.device(), y.shape(), 99).to_dtype(y.dtype()).unwrap();
    y.mul(&w).unwrap().sum().unwrap()
}

fn values(t: &Tensor) -> Vec<f64> {
    t.to_dtype(DType::F64).unwrap().to_vec::<f64>().unwrap()
}

/// The gradient by moving each element of `t` in place.
fn differences(t: &Tensor, f: impl Fn() -> f64) -> Vec<f64> {
    let (t, h) = (t.detach(), 1e-5);
    let v = t.to_vec::<f64>().unwrap();
    let at = |i: usize, d: f64| {
        let mut moved = v.clone();
        moved[i] += d;
        t.assign(&Tensor::from_slice(t.device(), &moved, t.shape()).unwrap()).unwrap();
        f()
    };
    let all = (0..v.len()).map(|i| (at(i, h) - at(i, -h)) / (2.0 * h)).collect();
    t.assign(&Tensor::from_slice(t.device(), &v, t.shape()).unwrap()).unwrap();
    all
}

#[test]
fn shapes_and_states_are_those_of_pytorch() {
    let d = cpu();
    for c in cases() {
        let layer = (c.make)(&InitContext::new(&d, 3)).unwrap_or_else(|e| panic!("{}: {e}", c.name));
        let y = layer.forward(&tensor(&d, c.x, 1).to_dtype(DType::F32).unwrap());
        let y = y.unwrap_or_else(|e| panic!("{}: {e}", c.name));
        assert_eq!(y.shape(), c.y, "{}", c.name);
        let state: Vec<(String, Vec<usize>)> =
            layer.named_parameters().into_iter().map(|(n, p)| (n, p.get().shape().to_vec())).collect();
        let want: Vec<(String, Vec<usize>)> =
            c.state.iter().map(|(n, s)| (n.to_string(), s.to_vec())).collect();
        assert_eq!(state, want, "{}", c.name);
        // The state of one layer makes another one equal.
        let other = (c.make)(&InitContext::new(&d, 4)).unwrap();
        let x = tensor(&d, c.x, 1).to_dtype(DType::F32).unwrap();
        other.forward(&x).unwrap();
        other.load_state_dict(&layer.state_dict().unwrap()).unwrap();
        assert_eq!(values(&other.forward(&x).unwrap()), values(&y), "{}", c.name);
        layer.eval();
        assert_eq!(values(&layer.forward(&x).unwrap()), values(&y), "{}: evaluation", c.name);
    }
}

#[test]
fn gradients_agree_with_differences() {
    let d = cpu();
    for c in cases() {
        let layer = (c.make)(&InitContext::new(&d, 3).dtype(DType::F64)).unwrap();
        let x = tensor(&d, c.x, 1).with_grad();
        layer.forward(&x).unwrap();
        randomise(&*layer);
        loss(&*layer, &x).backward().unwrap_or_else(|e| panic!("{}: {e}", c.name));
        let value = || loss(&*layer, &x.detach()).item::<f64>().unwrap();
        let mut leaves = vec![("x".to_string(), x.clone())];
        leaves.extend(layer.named_parameters().into_iter().map(|(n, p)| (n, p.get())));
        for (name, leaf) in leaves {
            let what = format!("{}, gradient of {name}", c.name);
            let grad = leaf.grad().unwrap_or_else(|| panic!("{what}: none"));
            assert_eq!(grad.shape(), leaf.shape(), "{what}");
            let want = differences(&leaf, value);
            close(&grad.to_vec::<f64>().unwrap(), &want, 5e-7, &what);
            assert!(want.iter().any(|w| w.abs() > 1e-6), "{what}: no influence");
        }
    }
}

/// Named numbers.
type Named = Vec<(String, Vec<f64>)>;

/// Output and gradients of x and all parameters in f32, from the parameters of `state`.
fn run(d: &Device, c: &Case, x: &Tensor, state: Option<&dyn Layer>) -> (Box<dyn Layer>, Named) {
    let layer = (c.make)(&InitContext::new(d, 3)).unwrap();
    let x = x.to_device(d).unwrap().with_grad();
    layer.forward(&x).unwrap_or_else(|e| panic!("{}: {e}", c.name));
    match state {
        Some(s) => layer.load_state_dict(&s.state_dict().unwrap()).unwrap(),
        None => randomise(&*layer),
    }
    let y = layer.forward(&x).unwrap();
    loss(&*layer, &x).backward().unwrap();
    let mut out = vec![("y".to_string(), values(&y)), ("x".to_string(), values(&x.grad().unwrap()))];
    out.extend(layer.named_parameters().iter().map(|(n, p)| (n.clone(), values(&p.get().grad().unwrap()))));
    (layer, out)
}

#[test]
fn devices_agree_with_the_cpu() {
    let all = devices();
    for c in cases() {
        let x = tensor(&all[0], c.x, 1).to_dtype(DType::F32).unwrap();
        let (layer, want) = run(&all[0], &c, &x, None);
        for d in &all[1..] {
            let (_, got) = run(d, &c, &x, Some(&*layer));
            for ((name, g), (_, w)) in got.iter().zip(&want) {
                close(g, w, 1e-4, &format!("{} on {}: {name}", c.name, crate::common::id(d)));
            }
        }
    }
}

#[test]
fn strided_inputs_give_the_same() {
    for d in devices() {
        for c in cases() {
            let x = tensor(&cpu(), c.x, 1).to_dtype(DType::F32).unwrap().to_device(&d).unwrap();
            let (layer, want) = run(&d, &c, &x, None);
            // The same numbers in a layout with the last two axes exchanged.
            let strided = x.transpose(-1, -2).unwrap().contiguous().unwrap().transpose(-1, -2).unwrap();
            assert!(!strided.is_contiguous(), "{}", c.name);
            let (_, got) = run(&d, &c, &strided, Some(&*layer));
            assert_eq!(got, want, "{} on {}", c.name, crate::common::id(&d));
        }
    }
}

#[test]
fn a_missing_batch_axis_is_inserted() {
    let d = cpu();
    // A channel shuffle takes any number of axes behind the channels, so that none is known to be missing.
    for c in cases().iter().filter(|c| !c.name.starts_with("global") && c.name != "channels") {
        let layer = (c.make)(&InitContext::new(&d, 3)).unwrap();
        let x = tensor(&d, c.x, 1).to_dtype(DType::F32).unwrap();
        let y = layer.forward(&x).unwrap().select(0, 0).unwrap();
        let one = layer.forward(&x.select(0, 0).unwrap()).unwrap_or_else(|e| panic!("{}: {e}", c.name));
        assert_eq!(one.shape(), y.shape(), "{}", c.name);
        close(&values(&one), &values(&y), 1e-6, c.name);
    }
}

#[test]
fn empty_batches_pass_and_give_zero_gradients() {
    for d in devices() {
        for c in cases() {
            let layer = (c.make)(&InitContext::new(&d, 3)).unwrap();
            let shape = [&[0], &c.x[1..]].concat();
            let x = Tensor::zeros(&d, DType::F32, &shape).unwrap().with_grad();
            let y =
                layer.forward(&x).unwrap_or_else(|e| panic!("{} on {}: {e}", c.name, crate::common::id(&d)));
            assert_eq!(y.shape(), [&[0], &c.y[1..]].concat(), "{}", c.name);
            y.sum().unwrap().backward().unwrap_or_else(|e| panic!("{}: {e}", c.name));
            for (name, p) in layer.named_parameters() {
                let g = values(&p.get().grad().unwrap());
                assert!(g.iter().all(|&v| v == 0.0), "{} on {}: {name}", c.name, crate::common::id(&d));
            }
        }
    }
}

#[test]
fn initial_values_have_pytorchs_bounds() {
    let d = cpu();
    let cx = InitContext::new(&d, 2);
    let largest = |t: Tensor| values(&t).iter().fold(0.0f64, |m, v| m.max(v.abs()));
    let check = |what: &str, t: Tensor, fan: f64| {
        let (bound, m) = (fan.powf(-0.5), largest(t));
        assert!(m <= bound * 1.000001 && m > 0.9 * bound, "{what}: {m} of {bound}");
    };
    let conv = Convolutional::new(&cx, 8, 64, 3).unwrap().groups(2).unwrap();
    check("conv", conv.weight().unwrap().get(), 36.0);
    check("conv bias", conv.bias().unwrap().get(), 36.0);
    let deconv = Deconvolutional::new(&cx, 8, 64, 3).unwrap();
    check("deconv", deconv.weight().unwrap().get(), 576.0);
    let separable = SeparableConvolutional::new(&cx, 64, 32, 3).unwrap();
    check("depthwise", separable.depthwise_weight().unwrap().get(), 9.0);
    check("pointwise", separable.pointwise_weight().unwrap().get(), 64.0);
    let local = LocallyConnected::new(&cx, 4, 8, 2).unwrap().input_size(5, 5).unwrap();
    check("locally connected", local.weight().unwrap().get(), 16.0);
    let deform = DeformableConvolutional::new(&cx, 8, 16, 3).unwrap();
    check("deformable", deform.weight().unwrap().get(), 72.0);
    assert_eq!(deform.named_parameters()[2..].iter().map(|(_, p)| largest(p.get())).sum::<f64>(), 0.0);
    let custom = conv.init(Init::Constant(0.5), Init::Zeros).unwrap();
    assert_eq!(values(&custom.weight().unwrap().get()), [0.5; 64 * 36]);
    assert_eq!(largest(custom.bias().unwrap().get()), 0.0);
    // Equal filters make an enlargement of equal cells.
    let subpixel = SubpixelConvolutional::new(&cx, 2, 2, 2, 3).unwrap().no_bias().icnr(true).unwrap();
    let w = values(&subpixel.weight().unwrap().get());
    assert!((0..18).all(|i| (1..4).all(|f| w[i] == w[f * 18 + i])) && w[0] != w[4 * 18]);
    let y = subpixel.forward(&tensor(&d, &[1, 2, 2, 2], 1).to_dtype(DType::F32).unwrap()).unwrap();
    let v = values(&y.select(1, 0).unwrap());
    assert!(v[0] == v[1] && v[0] == v[4] && v[0] == v[5] && v[0] != v[2], "{v:?}");
}

#[test]
fn kinds_are_the_names_of_the_types() {
    let cx = InitContext::new(&cpu(), 1);
    let kinds = [
        Convolutional::lazy(&cx, 1, 1).unwrap().kind(),
        DilatedConvolutional::lazy(&cx, 1, 1, 2).unwrap().kind(),
        DepthwiseSeparableConvolutional::lazy(&cx, 1, 1).unwrap().kind(),
        AveragePooling::new(1).unwrap().kind(),
        AdaptiveAveragePooling::default().kind(),
        Upsample3D::size(1).unwrap().kind(),
        LocallyConnected::lazy(&cx, 1, 1).unwrap().kind(),
    ];
    assert_eq!(
        kinds,
        [
            "Convolutional",
            "DilatedConvolutional",
            "DepthwiseSeparableConvolutional",
            "AveragePooling",
            "AdaptiveAveragePooling",
            "Upsample3D",
            "LocallyConnected"
        ]
    );
}

#[test]
fn half_precision_is_close() {
    for d in devices() {
        for c in cases() {
            let x = tensor(&cpu(), c.x, 1).to_dtype(DType::F32).unwrap();
            let (layer, want) = run(&cpu(), &c, &x, None);
            let half = (c.make)(&InitContext::new(&d, 3).dtype(DType::F16)).unwrap();
            let x = x.to_dtype(DType::F16).unwrap().to_device(&d).unwrap();
            half.forward(&x).unwrap_or_else(|e| panic!("{}: {e}", c.name));
            for ((_, p), (_, q)) in half.named_parameters().iter().zip(layer.named_parameters()) {
                let q = q.get().detach().to_dtype(DType::F16).unwrap().to_device(&d).unwrap();
                p.get().detach().assign(&q).unwrap();
            }
            let x = x.with_grad();
            let y = half.forward(&x).unwrap();
            close(&values(&y), &want[0].1, 1e-2, &format!("{} on {}", c.name, crate::common::id(&d)));
            y.sum().unwrap().backward().unwrap();
            assert!(x.grad().is_some());
        }
    }
}
