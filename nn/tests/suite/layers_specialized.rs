//! Layers of one purpose: diffusion times, samples of autoencoders, warped images, radial basis functions, gated networks, functions.

use std::slice::from_ref;

use trefoil::ops::activation::Activation;
use trefoil::ops::resample::SamplePadding;
use trefoil_nn::layers::{
    BilinearGlu, Convolutional, Dense, GeGlu, Lambda, Rbf, ReGlu, RepParameterization, SpatialTransformer,
    SpyNet, SwiGlu, TimeEmbedding,
};
use trefoil_nn::network::layer;
use trefoil_nn::{DType, Device, Init, InitContext, Layer, LayerExt, Tensor, auxiliary};

use crate::common::everywhere::resident;
use crate::common::layers::{f64s, gradcheck_layer, param, refused, state_names};
use crate::common::{close, cpu, devices, id, tensor};

fn host(t: &Tensor) -> Vec<f64> {
    t.to_dtype(DType::F64).unwrap().to_vec().unwrap()
}

#[test]
fn times() {
    let cx = f64s();
    let make = || TimeEmbedding::new(&cx, 6, 4).unwrap();
    let t = Tensor::from_slice(&cpu(), &[0.0, 3.5, 999.0], &[3]).unwrap();
    let l = make();
    gradcheck_layer("TimeEmbedding", &l, from_ref(&t), |t| l.forward(&t[0]));
    let names = ["linear_1.weight", "linear_1.bias", "linear_2.weight", "linear_2.bias"];
    assert_eq!(state_names(&l), names);
    // Whole numbers and a column of them are the same times.
    let column = Tensor::from_slice(&cpu(), &[0i64, 7, 999], &[3, 1]).unwrap();
    let floats = Tensor::from_slice(&cpu(), &[0.0, 7.0, 999.0], &[3]).unwrap();
    assert_eq!(host(&l.forward(&column).unwrap()), host(&l.forward(&floats).unwrap()));

    refused(TimeEmbedding::new(&cx, 1, 4), &["TimeEmbedding", "embedding_dim", "at least 2"]);
    refused(TimeEmbedding::new(&cx, 6, 0), &["TimeEmbedding", "output_dim"]);
    refused(make().downscale_freq_shift(3.0), &["TimeEmbedding", "downscale_freq_shift", "below 3"]);
    refused(make().max_period(0.0), &["TimeEmbedding", "max_period", "above 0"]);
    for shape in [&[][..], &[3usize, 2], &[3, 1, 1]] {
        refused(l.forward(&tensor(&cpu(), shape, 1)), &["TimeEmbedding", "`t`", "[B] or [B, 1]"]);
    }
}

/// bf16 does not hold 999 and 1000 apart, nor f16 the sine of either to a digit; angles of integers are exact enough in both.
#[test]
fn times_keep_apart_in_16_bits_and_after_a_move() {
    let times = |d: &Device| Tensor::from_slice(d, &[999i32, 1000], &[2]).unwrap();
    let make = |d: &Device, dtype| TimeEmbedding::new(&InitContext::new(d, 4).dtype(dtype), 8, 8).unwrap();
    let want = host(&make(&cpu(), DType::F32).forward(&times(&cpu())).unwrap());
    for d in devices() {
        for dtype in [DType::F16, DType::Bf16] {
            let got = host(&make(&d, dtype).forward(&times(&d)).unwrap());
            close(&got, &want, 0.02, &format!("{dtype} on {}", id(&d)));
        }
        let l = make(&cpu(), DType::F32);
        l.to_device(&d).unwrap();
        let t = times(&d);
        close(&host(&l.forward(&t).unwrap()), &want, 1e-4, &format!("moved to {}", id(&d)));
        resident("TimeEmbedding", &d, || l.forward(&t).unwrap().sum().unwrap().backward().unwrap());
    }
}

#[test]
fn samples_of_the_latent_variables() {
    let l = RepParameterization::new(&f64s());
    let x = tensor(&cpu(), &[2, 3, 4], 1);
    gradcheck_layer("RepParameterization", &l, from_ref(&x), |t| l.forward(&t[0]));
    let rewound = |x: &Tensor| {
        l.set_counters(&[("offset".to_string(), 0)].into()).unwrap();
        host(&l.forward(x).unwrap())
    };
    // With mean 0 and variance 1 the draws themselves come out.
    let eps = rewound(&Tensor::zeros(&cpu(), DType::F64, &[2, 3, 4]).unwrap());
    let (mean, logvar) = (host(&x.narrow(2, 0, 2).unwrap()), host(&x.narrow(2, 2, 2).unwrap()));
    let want: Vec<f64> =
        mean.iter().zip(&logvar).zip(&eps).map(|((m, v), e)| m + (v / 2.0).exp() * e).collect();
    close(&rewound(&x), &want, 1e-12, "mean + deviation * draw");
    assert_ne!(host(&l.forward(&x).unwrap()), want, "the next draws are others");

    // Standard normal: mean 0, variance 1, fourth moment 3.
    let n = 20_000;
    let eps = rewound(&Tensor::zeros(&cpu(), DType::F64, &[n, 2]).unwrap());
    let moment = |k: i32| eps.iter().map(|e| e.powi(k)).sum::<f64>() / n as f64;
    let (first, second, fourth) = (moment(1), moment(2), moment(4));
    assert!(first.abs() < 0.03 && (second - 1.0).abs() < 0.05 && (fourth - 3.0).abs() < 0.3);

    l.eval();
    assert_eq!(host(&l.forward(&x).unwrap()), mean);
    for shape in [&[2usize, 3][..], &[2, 0], &[]] {
        let x = Tensor::zeros(&cpu(), DType::F64, shape).unwrap();
        refused(l.forward(&x), &["RepParameterization", "`x`", "[.., 2 Z]"]);
    }
}

#[test]
fn images_are_moved() {
    let cx = f64s();
    let x = tensor(&cpu(), &[2, 2, 4, 5], 1);
    let same = SpatialTransformer::new(&cx, 2, [4, 5], [4, 5]).unwrap();
    close(&host(&same.forward(&x).unwrap()), &host(&x), 1e-12, "the identity at first");
    let names =
        ["localization.2.weight", "localization.2.bias", "localization.3.weight", "localization.3.bias"];
    assert_eq!(state_names(&same), names);
    assert_eq!(param(&same, "localization.3.bias"), [1.0, 0.0, 0.0, 0.0, 1.0, 0.0]);

    // A network of its own, near the identity but not on the edges of cells.
    let own = |identity_reg: f64| {
        let net = layer(
            &cx,
            &serde_json::json!({"type": "sequential", "layers": [
                {"type": "flatten"}, {"type": "dense", "in_features": 40, "out_features": 6}]}),
        );
        let l = SpatialTransformer::new(&cx, 2, [4, 5], [3, 3]).unwrap().localization(net.unwrap());
        l.identity_reg(identity_reg).unwrap()
    };
    let l = own(0.0);
    gradcheck_layer("SpatialTransformer", &l, from_ref(&x), |t| l.forward(&t[0]));
    assert!(auxiliary::collect(|| l.forward(&x)).unwrap().1.is_empty());
    let l = own(0.25);
    let term = |x: &Tensor| Ok(auxiliary::collect(|| l.forward(x))?.1.remove(0));
    gradcheck_layer("distance from the identity", &l, from_ref(&x), |t| term(&t[0]));
    let (w, b) = (param(&l, "localization.1.weight"), param(&l, "localization.1.bias"));
    let unit = [1.0, 0.0, 0.0, 0.0, 1.0, 0.0];
    let square = |(row, n): (&[f64], usize)| {
        let theta = row.iter().zip(&w[40 * n..]).map(|(x, w)| x * w).sum::<f64>() + b[n];
        (theta - unit[n]).powi(2)
    };
    let pixels = host(&x);
    let each = pixels.chunks(40).flat_map(|row| (0..6).map(move |n| (row, n)));
    close(&host(&term(&x).unwrap()), &[0.25 * each.map(square).sum::<f64>() / 2.0], 1e-12, "the term");

    for shape in [&[2usize, 2, 5, 4][..], &[2, 4, 5], &[2, 3, 4, 5]] {
        refused(l.forward(&tensor(&cpu(), shape, 1)), &["SpatialTransformer", "`x`", "[B, 2, 4, 5]"]);
    }
    let narrow = own(0.0).localization(Dense::new(&cx, 5, 6).unwrap());
    refused(narrow.forward(&x), &["SpatialTransformer", "localization", "[2, 6]", "[2, 2, 4, 6]"]);
    refused(SpatialTransformer::new(&cx, 2, [4, 0], 3), &["SpatialTransformer", "in_width"]);
    refused(own(0.0).identity_reg(-1.0), &["SpatialTransformer", "identity_reg"]);
    refused(own(0.0).hidden(0), &["SpatialTransformer", "hidden"]);
    let json = serde_json::json!({"type": "spatial_transformer", "out_height": 3, "out_width": 3, "in_channels": 2,
        "in_height": 4, "in_width": 5, "hidden": 8, "localization": {"type": "flatten"}});
    refused(layer(&cx, &json), &["hidden", "localization"]);
}

#[test]
fn maps_that_are_no_numbers_do_not_pass_for_images() {
    for d in devices() {
        let l = SpatialTransformer::new(&InitContext::new(&d, 1), 1, 3, 3).unwrap();
        let x = Tensor::full(&d, DType::F32, &[1, 1, 3, 3], f64::NAN).unwrap();
        let y = l.forward(&x).unwrap();
        assert!(host(&y).iter().all(|v| v.is_nan()), "{}", id(&d));
        for padding in [SamplePadding::Zeros, SamplePadding::Border, SamplePadding::Reflection] {
            let map = Lambda::new(|x| x.full_like(f64::NAN)?.flatten(1, -1)?.narrow(1, 0, 6));
            let cx = InitContext::new(&d, 1);
            let l = SpatialTransformer::new(&cx, 1, 3, 3).unwrap().padding(padding).localization(map);
            let y = l.forward(&Tensor::ones(&d, DType::F32, &[1, 1, 3, 3]).unwrap()).unwrap();
            assert!(host(&y).iter().all(|v| v.is_nan()), "{padding:?} on {}: {:?}", id(&d), host(&y));
        }
    }
}

#[test]
fn flow_of_a_pyramid() {
    let cx = f64s();
    let x = tensor(&cpu(), &[1, 2, 6, 7], 1);
    let l = SpyNet::single_conv(&cx, 1, 2).unwrap();
    gradcheck_layer("SpyNet", &l, from_ref(&x), |t| l.forward(&t[0]));
    let frames = x.chunk(1, 2).unwrap();
    assert_eq!(host(&l.forward_all(&frames).unwrap()[0]), host(&l.forward(&x).unwrap()));

    // Levels that add a constant: it is doubled from level to level.
    let l = SpyNet::single_conv(&cx, 1, 3).unwrap();
    for (name, p) in l.named_parameters() {
        let values = if name.ends_with("bias") { vec![0.5, -0.25] } else { vec![0.0; p.get().numel()] };
        let t = Tensor::from_slice(&cpu(), &values, p.get().shape()).unwrap();
        p.get().detach().assign(&t).unwrap();
    }
    let flow = l.forward(&tensor(&cpu(), &[1, 2, 4, 8], 1)).unwrap();
    let want: Vec<f64> = [7.0 * 0.5, -7.0 * 0.25].into_iter().flat_map(|v| [v; 32]).collect();
    close(&host(&flow), &want, 1e-12, "a constant flow");
    // Frames of 5 by 6 pixels are enlarged to 8 by 8; the flow shrinks with them.
    let flow = l.forward(&tensor(&cpu(), &[1, 2, 5, 6], 1)).unwrap();
    let (across, down) = (7.0 * 0.5 * 6.0 / 8.0, -7.0 * 0.25 * 5.0 / 8.0);
    let want: Vec<f64> = [across, down].into_iter().flat_map(|v| [v; 30]).collect();
    close(&host(&flow), &want, 1e-12, "a flow in the frames' own pixels");
}

#[test]
fn levels_of_five_convolutions() {
    let cx = f64s();
    let l = SpyNet::with_levels(&cx, 1, 1).unwrap();
    let state = l.state_dict().unwrap();
    let x = tensor(&cpu(), &[1, 2, 3, 4], 1);
    let mut y = Tensor::concat(1, &[&x, &x.zeros_like().unwrap()]).unwrap();
    let channels = [4, 32, 64, 32, 16, 2];
    for (i, c) in channels.windows(2).enumerate() {
        let conv = Convolutional::new(&cx, c[0], c[1], 7).unwrap().padding(3);
        let part =
            |n: &str| (n.to_string(), state[&format!("basic_module.0.basic_module.{}.{n}", 2 * i)].clone());
        conv.load_state_dict(&[part("weight"), part("bias")].into()).unwrap();
        y = conv.forward(&y).unwrap();
        if i < 4 {
            y = y.relu().unwrap();
        }
    }
    close(&host(&l.forward(&x).unwrap()), &host(&y), 1e-12, "relu between convolutions");

    let colors = SpyNet::single_conv(&cx, 3, 1).unwrap().normalize_imagenet().unwrap();
    assert_eq!(state_names(&colors)[2..], ["mean", "std"]);
    refused(SpyNet::new(&cx, 0), &["SpyNet", "in_channels"]);
    for n in [0, 17] {
        refused(SpyNet::with_levels(&cx, 1, n), &["SpyNet", "num_levels", "1 to 16"]);
    }
    refused(l.forward(&tensor(&cpu(), &[1, 3, 3, 4], 1)), &["SpyNet", "`x`", "twice 1 channels"]);
    refused(l.forward(&tensor(&cpu(), &[2, 3, 4], 1)), &["SpyNet", "`x`", "[2, 3, 4]"]);
    let (a, b) = (tensor(&cpu(), &[1, 1, 3, 4], 1), tensor(&cpu(), &[1, 1, 4, 4], 1));
    refused(l.flow(&a, &b), &["SpyNet", "support", "[1, 1, 3, 4]", "[1, 1, 4, 4]"]);
    refused(l.normalize_imagenet(), &["SpyNet", "normalize_imagenet", "3 channels"]);
}

#[test]
fn radial_basis_functions() {
    let cx = f64s();
    let make = || Rbf::new(&cx, 3, 4).unwrap();
    let l = make();
    let x = tensor(&cpu(), &[2, 2, 3], 1);
    gradcheck_layer("Rbf", &l, from_ref(&x), |t| l.forward(&t[0]));
    assert_eq!(state_names(&l), ["centers", "widths"]);
    assert_eq!(param(&make().widths(2.5, 0.0).unwrap(), "widths"), [2.5; 4]);
    // At its center a function is 1, whatever its width.
    let data = tensor(&cpu(), &[6, 3], 2);
    let l = make().widths(0.0, 1e-3).unwrap().init_from(&data).unwrap();
    let y = host(&l.forward(&data).unwrap());
    assert_eq!(y.iter().filter(|v| **v == 1.0).count(), 4, "{y:?}");
    assert!((0..6).all(|i| y[4 * i..][..4].iter().sum::<f64>() <= 1.0), "a row is the center of one: {y:?}");

    refused(Rbf::new(&cx, 0, 4), &["Rbf", "in_features"]);
    refused(make().widths(0.0, 0.0), &["Rbf", "width_init", "not 0 without a floor"]);
    refused(make().widths(1.0, -1.0), &["Rbf", "width_floor"]);
    refused(make().init_from(&tensor(&cpu(), &[3, 3], 1)), &["Rbf", "data", "at least 4 rows"]);
    refused(make().init_from(&tensor(&cpu(), &[6, 2], 1)), &["Rbf", "data", "[N, 3]"]);
    refused(l.forward(&tensor(&cpu(), &[3, 4], 1)), &["Rbf", "`x`", "[.., 3]", "[3, 4]"]);
}

#[test]
fn gated_networks() {
    let cx = f64s();
    let x = tensor(&cpu(), &[2, 4], 1);
    let (silu, gelu) = (SwiGlu::new(&cx, 4, 5).unwrap(), GeGlu::lazy(&cx, 5).unwrap());
    let gelu = gelu.with_bias().unwrap().init(Init::Glorot, Init::Constant(0.5)).unwrap();
    gelu.forward(&x).unwrap();
    let relu = ReGlu::new(&cx, 4, 5).unwrap().out_features(3).unwrap();
    let bilinear = BilinearGlu::new(&cx, 4, 5).unwrap().no_down_proj().unwrap();
    let layers: [(&dyn Layer, &str, usize); 4] =
        [(&silu, "SwiGlu", 4), (&gelu, "GeGlu", 4), (&relu, "ReGlu", 3), (&bilinear, "BilinearGlu", 5)];
    for (l, kind, width) in layers {
        assert_eq!(l.kind(), kind);
        assert_eq!(l.forward(&x).unwrap().shape(), [2, width]);
        gradcheck_layer(kind, l, from_ref(&x), |t| l.forward(&t[0]));
        refused(l.forward(&tensor(&cpu(), &[2, 3], 1)), &["gate_proj", "Dense", "x", "4"]);
    }
    assert_eq!(state_names(&bilinear), ["gate_proj.weight", "up_proj.weight"]);
    assert_eq!(param(&gelu, "down_proj.bias"), [0.5; 4]);
    refused(ReGlu::new(&cx, 0, 5), &["ReGlu", "d_model"]);
    refused(GeGlu::lazy(&cx, 0), &["GeGlu", "d_ff"]);
    refused(silu.out_features(0), &["SwiGlu", "out_features"]);
    let json = serde_json::json!({"type": "geglu", "d_ff": 3, "out_features": 2, "down_proj": false});
    refused(layer(&cx, &json), &["out_features", "down_proj"]);
}

#[test]
fn functions() {
    let x = tensor(&cpu(), &[2, 3], 1);
    let cube = Lambda::new(|x| x.mul(&x.square()?)).activation(Activation::Tanh);
    gradcheck_layer("Lambda", &cube, from_ref(&x), |t| cube.forward(&t[0]));
    let by_hand = cube.clone().backward(|x, g| x.square()?.mul_scalar(3.0)?.mul(g));
    gradcheck_layer("Lambda with a gradient", &by_hand, from_ref(&x), |t| by_hand.forward(&t[0]));
    assert!(state_names(&cube).is_empty());
    assert!(format!("{cube:?}").contains("Lambda"));

    // A function that loses the graph: its own gradient counts, and without one the backward pass is refused.
    let lost = Lambda::new(|x| x.detach().mul_scalar(2.0));
    let leaf = x.with_grad();
    let y = lost.forward(&leaf).unwrap().sum().unwrap();
    refused(y.backward(), &["Lambda", "backward", "a gradient"]);
    let straight = lost.backward(|_, g| Ok(g.clone()));
    straight.forward(&leaf).unwrap().sum().unwrap().backward().unwrap();
    assert_eq!(host(&leaf.grad().unwrap()), [1.0; 6]);
    let wrong = Lambda::new(|x| x.square()).backward(|_, g| g.sum());
    let y = wrong.forward(&leaf).unwrap().sum().unwrap();
    refused(y.backward(), &["Lambda", "[2, 3]"]);

    let declared = cube.output_shape(&[-1]).unwrap();
    assert_eq!(declared.forward(&x).unwrap().shape(), [2, 3]);
    let other = declared.output_shape(&[4]).unwrap();
    refused(other.forward(&x), &["Lambda", "[4]", "[2, 3]"]);
    refused(other.output_shape(&[0]), &["Lambda", "output_shape"]);
}

/// One step with what the layer adds to the loss.
fn step(l: &dyn Layer, x: &Tensor) {
    let (y, terms) = auxiliary::collect(|| l.forward(x)).unwrap();
    auxiliary::added_to(y.sum().unwrap(), &terms).unwrap().backward().unwrap();
}

#[test]
fn draws_and_terms_stay_on_the_device() {
    for d in devices() {
        let cx = InitContext::new(&d, 1);
        let x = Tensor::ones(&d, DType::F32, &[2, 1, 4, 4]).unwrap().with_grad();
        let moved = SpatialTransformer::new(&cx, 1, 4, 3).unwrap().identity_reg(0.1).unwrap();
        let layers: [&dyn Layer; 2] = [&RepParameterization::new(&cx), &moved];
        for l in layers {
            step(l, &x);
            resident(l.kind(), &d, || step(l, &x));
        }
    }
}
