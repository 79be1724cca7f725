//! Reference models against torchvision and a U-Net in PyTorch: `golden/torchvision_models.py` wrote what they compute, and the modules of
//! the full sizes.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use serde_json::Value;
use trefoil::{DType, Engine};
use trefoil_nn::models::*;
use trefoil_nn::{Device, InitContext, Layer, LayerExt, Result, StateDict, Tensor};

use crate::common::layers::{f64s, refused};
use crate::common::{close, cpu, noise, tensor};

fn golden() -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/models-torchvision.json");
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn numbers(v: &Value) -> Vec<f64> {
    v.as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect()
}

fn boxed<L: Layer + 'static>(model: Result<L>) -> Box<dyn Layer> {
    Box::new(model.unwrap())
}

/// The models that the script calls by these names.
fn small(name: &str, cx: &InitContext) -> Box<dyn Layer> {
    let resnet = |c: ResNetConfig| boxed(ResNet::new(cx, &c.width(4)));
    let mobilenet = MobileNetV2Config::new(3).width_mult(0.25).dropout(0.0);
    let densenet = |blocks| DenseNetConfig::new(blocks, 3).growth_rate(4);
    match name {
        "resnet_basic" => resnet(ResNetConfig::basic([1, 2, 1, 1], 3)),
        "resnet_bottleneck_small_images" => {
            resnet(ResNetConfig::bottleneck([1, 1, 1, 2], 3).in_channels(1).small_images())
        }
        "mobilenet_v2_quarter" => boxed(MobileNetV2::new(cx, &mobilenet)),
        "mobilenet_v2_small_images" => boxed(MobileNetV2::new(cx, &mobilenet.in_channels(2).small_images())),
        "densenet" => boxed(DenseNet::new(cx, &densenet([1, 2, 1, 2]))),
        "densenet_small_images" => {
            boxed(DenseNet::new(cx, &densenet([2, 1, 2, 1]).in_channels(1).small_images()))
        }
        "unet" => boxed(UNet::new(cx, &UNetConfig::new(3, 3).width(2))),
        "unet_bilinear" => boxed(UNet::new(cx, &UNetConfig::new(1, 3).width(2).bilinear())),
        other => panic!("{other}"),
    }
}

/// What an entry of the state holds, as in the script.
fn value(name: &str, t: &Tensor, seed: u64) -> Tensor {
    if t.dtype() == DType::I64 {
        return Tensor::from_slice(&cpu(), &[3i64], &[]).unwrap();
    }
    let scale = (3.0 * t.shape()[0] as f64 / t.numel() as f64).sqrt();
    let f = |v: f64| match name.rsplit('.').next() {
        _ if t.rank() > 1 => v * scale,
        Some("running_var") => 1.0 + 0.5 * v,
        Some("weight") => 1.0 + 0.25 * v,
        _ => 0.25 * v,
    };
    let values: Vec<f64> = noise(seed, t.numel()).into_iter().map(f).collect();
    Tensor::from_slice(&cpu(), &values, t.shape()).unwrap()
}

/// The norm, and the product with noise.
fn digest(t: &Tensor, seed: u64) -> [f64; 2] {
    let v = t.detach().to_vec::<f64>().unwrap();
    let product = v.iter().zip(noise(seed, v.len())).map(|(a, b)| a * b).sum();
    [v.iter().map(|a| a * a).sum::<f64>().sqrt(), product]
}

/// Compares digests by name. Products cancel, so that what they are exact to is the norm's.
fn same(what: &str, got: &BTreeMap<String, [f64; 2]>, want: &Value) {
    let want = want.as_object().unwrap();
    assert!(got.keys().eq(want.keys()), "{what}: {:?} and {:?}", got.keys(), want.keys());
    for (name, [norm, product]) in got {
        let w = numbers(&want[name]);
        let error = (norm - w[0]).abs().max((product - w[1]).abs());
        assert!(error <= 1e-8 * (w[0] + 1e-3), "{what}, {name}: {norm} and {product}, expected {w:?}");
    }
}

#[test]
fn small_models_compute_what_pytorch_does() {
    let golden = golden();
    for (what, case) in golden["small"].as_object().unwrap() {
        let model = small(what, &f64s());
        let names: BTreeMap<String, Tensor> = model.state_dict().unwrap().into_iter().collect();
        let state: StateDict =
            names.iter().zip(1..).map(|((n, t), seed)| (n.clone(), value(n, t, seed))).collect();
        model.load_state_dict(&state).unwrap();

        let shape: Vec<usize> = numbers(&case["shape"]).iter().map(|&n| n as usize).collect();
        let x = tensor(&cpu(), &shape, 1000).with_grad();
        model.eval();
        let y = model.forward(&x).unwrap();
        assert_eq!(y.shape()[..2], [2, 3], "{what}");
        close(&y.to_vec::<f64>().unwrap(), &numbers(&case["eval"]), 1e-8, &format!("{what}, evaluation"));
        model.train();
        let y = model.forward(&x).unwrap();
        close(&y.to_vec::<f64>().unwrap(), &numbers(&case["train"]), 1e-8, &format!("{what}, training"));
        y.mul(&tensor(&cpu(), y.shape(), 1001)).unwrap().sum().unwrap().backward().unwrap();

        let parameters: BTreeMap<_, _> = model.named_parameters().into_iter().collect();
        let mut gradients: BTreeMap<String, [f64; 2]> = (parameters.into_iter().zip(2000..))
            .map(|((n, p), seed)| (n, digest(&p.get().grad().unwrap(), seed)))
            .collect();
        gradients.insert("x".into(), digest(&x.grad().unwrap(), 1002));
        same(what, &gradients, &case["gradients"]);
        let state = model.state_dict().unwrap();
        let statistics = state.iter().filter(|(n, _)| n.ends_with("mean") || n.ends_with("var"));
        let statistics = statistics.map(|(n, t)| (n.clone(), digest(t, 3000))).collect();
        same(what, &statistics, &case["statistics"]);
    }
}

/// Names and shapes of the state of a module in the list.
fn entries(module: &str) -> Vec<(String, Vec<usize>)> {
    let [name, kind, shape] = module.splitn(3, ' ').collect::<Vec<_>>()[..] else { panic!("{module}") };
    let shape: Vec<usize> = serde_json::from_str(shape).unwrap();
    let channels = vec![shape[0]];
    let own = match kind {
        "conv" => vec![("weight", shape)],
        "linear" => vec![("weight", shape), ("bias", channels)],
        _ => vec![
            ("weight", shape),
            ("bias", channels.clone()),
            ("running_mean", channels.clone()),
            ("running_var", channels),
            ("num_batches_tracked", vec![]),
        ],
    };
    own.into_iter().map(|(n, shape)| (format!("{name}.{n}"), shape)).collect()
}

#[test]
fn full_sizes_have_the_state_of_torchvision() {
    // A device that computes nothing.
    let device: Device = Arc::new(Engine::shapes());
    let cx = InitContext::new(&device, 1);
    let models = [
        ("resnet18", boxed(resnet18(&cx, 1000)), 11_689_512),
        ("resnet34", boxed(resnet34(&cx, 1000)), 21_797_672),
        ("resnet50", boxed(resnet50(&cx, 1000)), 25_557_032),
        ("mobilenet_v2", boxed(mobilenet_v2(&cx, 1000)), 3_504_872),
        ("densenet121", boxed(densenet121(&cx, 1000)), 7_978_856),
    ];
    let golden = golden();
    for (name, model, parameters) in models {
        let modules = golden["modules"][name].as_array().unwrap();
        let want: Vec<_> = modules.iter().flat_map(|m| entries(m.as_str().unwrap())).collect();
        let state = model.named_state();
        let got: Vec<_> = state.into_iter().map(|(n, p)| (n, p.get().shape().to_vec())).collect();
        assert_eq!(got, want, "{name}");
        assert_eq!(model.num_parameters(), parameters, "{name}");
        let x = Tensor::zeros(&device, DType::F32, &[2, 3, 224, 224]).unwrap();
        assert_eq!(model.forward(&x).unwrap().shape(), [2, 1000], "{name}");
    }
}

#[test]
fn sizes_are_refused_by_the_part_that_has_them() {
    let cx = &f64s();
    refused(ResNet::new(cx, &ResNetConfig::basic([1; 4], 0).width(1)), &["Dense", "out_features"]);
    refused(ResNet::new(cx, &ResNetConfig::resnet18(2).in_channels(0)), &["Convolutional", "in_channels"]);
    let mobilenet = MobileNetV2Config::new(2).width_mult(0.1);
    refused(MobileNetV2::new(cx, &mobilenet.dropout(1.5)), &["Dropout", "[0, 1]"]);
    refused(DenseNet::new(cx, &DenseNetConfig::new([0; 4], 2).growth_rate(2)), &["DenseBlock", "num_layers"]);
    let zero = ResNetConfig::basic([1; 4], 2).width(2).zero_init_residual();
    let state = ResNet::new(cx, &zero).unwrap().state_dict().unwrap();
    assert_eq!(state["layer2.0.bn2.weight"].to_vec::<f64>().unwrap(), [0.0; 4]);
    assert_eq!(state["layer2.0.bn1.weight"].to_vec::<f64>().unwrap(), [1.0; 4]);
    let dropped = DenseNetConfig::new([1; 4], 2).growth_rate(2).in_channels(1).small_images().drop_rate(0.5);
    let model = DenseNet::new(cx, &dropped).unwrap();
    let x = tensor(&cpu(), &[2, 1, 16, 16], 1);
    let run = || model.forward(&x).unwrap().to_vec::<f64>().unwrap();
    assert_ne!(run(), run());
    model.eval();
    assert_eq!(run(), run());
}

#[test]
fn unet_has_the_sizes_of_pytorch_unet_and_refuses_what_it_cannot_halve() {
    let device: Device = Arc::new(Engine::shapes());
    let shapes = InitContext::new(&device, 1);
    let x = Tensor::zeros(&device, DType::F32, &[1, 3, 572, 570]).unwrap();
    // `sum(p.numel() for p in UNet(3, 2).parameters())` there, and with bilinear=True.
    for (config, parameters) in
        [(UNetConfig::new(3, 2), 31_037_698), (UNetConfig::new(3, 2).bilinear(), 17_263_042)]
    {
        let model = UNet::new(&shapes, &config).unwrap();
        assert_eq!(model.num_parameters(), parameters);
        assert_eq!(model.forward(&x).unwrap().shape(), [1, 2, 572, 570]);
    }
    let cx = &f64s();
    refused(UNet::new(cx, &UNetConfig::new(0, 2).width(2)), &["Convolutional", "in_channels"]);
    refused(UNet::new(cx, &UNetConfig::new(1, 0).width(2)), &["Convolutional", "out_channels"]);
    refused(UNet::new(cx, &UNetConfig::new(1, 2).width(0)), &["Convolutional", "out_channels"]);
    let model = UNet::new(cx, &UNetConfig::new(2, 2).width(1)).unwrap();
    refused(model.forward(&tensor(&cpu(), &[1, 2, 15, 16], 1)), &["down4.maxpool_conv.0", "MaxPooling"]);
    refused(model.forward(&tensor(&cpu(), &[1, 3, 16, 16], 1)), &["inc.double_conv.0", "channels"]);
    refused(model.forward(&tensor(&cpu(), &[2, 16, 16], 1)), &["UNet", "[B, C, H, W]", "[2, 16, 16]"]);
}
