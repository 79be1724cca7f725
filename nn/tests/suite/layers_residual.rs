//! Blocks around skip connections: gradients, state, initial values, refusals, auxiliary losses, and what each of them has of its own.

use trefoil::ops::activation::Activation;
use trefoil_nn::layers::*;
use trefoil_nn::{DType, InitContext, Layer, LayerExt, NnError, Result, Tensor, auxiliary};

use crate::common::everywhere::resident;
use crate::common::layers::{f64s, gradcheck_layer, param, refused, state_names};
use crate::common::{close, cpu, tensor};

/// Layers with an input and the shape of their output.
type Blocks = Vec<(Box<dyn Layer>, &'static [usize], &'static [usize])>;

fn blocks(cx: &InitContext) -> Result<Blocks> {
    let generator =
        RrdbNetConfig { num_feat: 2, num_grow_ch: 1, num_block: 1, scale: 2, ..RrdbNetConfig::default() };
    let wide = generator.upsampler(RrdbUpsampler::PixelShuffle).scale(8).in_channels(1).out_channels(2);
    Ok(vec![
        (Box::new(Highway::new(cx, 4)?), &[3, 4], &[3, 4]),
        (Box::new(DenseBlockLayer::with_bn_size(cx, 3, 2, 2)?.drop_rate(0.3)?), &[2, 3, 3, 4], &[2, 2, 3, 4]),
        (Box::new(DenseBlock::with_bn_size(cx, 2, 2, 3, 1)?.drop_rate(0.2)?), &[2, 2, 3, 4], &[2, 8, 3, 4]),
        (Box::new(Transition::new(cx, 5)?), &[2, 5, 4, 5], &[2, 2, 2, 2]),
        (Box::new(BasicBlock::new(cx, 3, 3, 1)?), &[2, 3, 3, 4], &[2, 3, 3, 4]),
        (Box::new(BasicBlock::new(cx, 2, 3, 2)?), &[2, 2, 5, 4], &[2, 3, 3, 2]),
        (Box::new(BottleneckBlock::new(cx, 8, 2, 1)?), &[2, 8, 3, 3], &[2, 8, 3, 3]),
        (Box::new(BottleneckBlock::with_groups(cx, 3, 1, 2, 2, 64)?), &[2, 3, 5, 4], &[2, 4, 3, 2]),
        (
            Box::new(SqueezeAndExcitation::new(cx, 4, 2)?.activation(Activation::Gelu)),
            &[2, 4, 3, 3],
            &[2, 4, 3, 3],
        ),
        (Box::new(SqueezeAndExcitation::new(cx, 4, 1)?.channels_last(true)), &[2, 3, 2, 4], &[2, 3, 2, 4]),
        (Box::new(InvertedResidualBlock::new(cx, 2, 2, 1, 2)?), &[2, 2, 3, 4], &[2, 2, 3, 4]),
        (
            Box::new(InvertedResidualBlock::new(cx, 3, 2, 2, 1)?.squeeze_and_excitation(1)?),
            &[2, 3, 5, 4],
            &[2, 2, 3, 2],
        ),
        (Box::new(ResidualDenseBlock::new(cx, 2, 2)?), &[1, 2, 3, 3], &[1, 2, 3, 3]),
        (Box::new(Rrdb::new(cx, 2, 1)?.residual_scale(1.0)?), &[1, 2, 3, 3], &[1, 2, 3, 3]),
        (Box::new(RrdbNetGenerator::new(cx, &generator)?), &[1, 3, 2, 2], &[1, 3, 4, 4]),
        (Box::new(RrdbNetGenerator::new(cx, &wide)?), &[1, 1, 1, 2], &[1, 2, 8, 16]),
        (Box::new(UNetConvBlock::new(cx, 2, 3, true)?), &[1, 2, 5, 4], &[1, 3, 3, 2]),
        (Box::new(UNetDiscriminator::plain(cx, 2, 1, 2)?), &[1, 2, 4, 8], &[1, 1, 4, 8]),
        (Box::new(Pooling::max(2, 1)?), &[2, 2, 3, 4], &[2, 2, 2, 3]),
        (Box::new(Pooling::average([2, 3], 2)?), &[2, 2, 5, 5], &[2, 2, 2, 2]),
    ])
}

#[test]
fn gradients_and_shapes() {
    for (l, shape, out) in blocks(&f64s()).unwrap() {
        let x = tensor(&cpu(), shape, 3);
        assert_eq!(l.forward(&x).unwrap().shape(), out, "{}", l.kind());
        gradcheck_layer(l.kind(), &*l, std::slice::from_ref(&x), |t| l.forward(&t[0]));
        let wrong = x.narrow(if l.kind() == "Highway" { -1 } else { 1 }, 0, 1).unwrap();
        if !matches!(l.kind(), "Pooling" | "SqueezeAndExcitation") && shape[1] > 1 {
            refused(l.forward(&wrong), &[l.kind(), "`x`"]);
        }
        if shape.len() == 4 {
            refused(l.forward(&x.unsqueeze(0).unwrap()), &[l.kind(), "`x`"]);
            if l.kind() != "SqueezeAndExcitation" {
                // One image is a batch of one.
                l.eval();
                let one = l.forward(&x.select(0, 0).unwrap()).unwrap();
                let first = l.forward(&x.narrow(0, 0, 1).unwrap()).unwrap();
                assert_eq!(one.shape(), &first.shape()[1..], "{}", l.kind());
                assert_eq!(one.to_vec::<f64>().unwrap(), first.to_vec::<f64>().unwrap(), "{}", l.kind());
            }
        }
    }
    // In training the estimates of spectral norms change with each forward.
    let l = UNetDiscriminator::real_esrgan(&f64s(), 1, 1).unwrap();
    l.eval();
    gradcheck_layer("spectral", &l, &[tensor(&cpu(), &[1, 1, 8, 8], 3)], |t| l.forward(&t[0]));
    let up = UNetUpBlock::new(&f64s(), 2, 3, 2).unwrap();
    let inputs = [tensor(&cpu(), &[2, 2, 2, 3], 1), tensor(&cpu(), &[2, 3, 4, 6], 2)];
    gradcheck_layer("up", &up, &inputs, |t| up.join(&t[0], &t[1]));
}

#[test]
fn nothing_crosses_to_the_host_and_16_bits_do() {
    let build = |dtype| blocks(&InitContext::new(&cpu(), 1).dtype(dtype)).unwrap();
    // One step: the output, and the gradients of input and parameters.
    let step = |l: &dyn Layer, x: &Tensor| {
        let x = x.with_grad();
        let y = l.forward(&x).unwrap();
        y.square().unwrap().mean().unwrap().backward().unwrap();
        let gradients = l.named_parameters().into_iter().map(|(_, p)| p.get().grad().unwrap());
        [y, x.grad().unwrap()].into_iter().chain(gradients).map(|t| t.detach()).collect::<Vec<_>>()
    };
    for dtype in [DType::F16, DType::Bf16] {
        for ((l, shape, _), (half, ..)) in build(DType::F32).into_iter().zip(build(dtype)) {
            let x = tensor(&cpu(), shape, 3).to_dtype(dtype).unwrap();
            let wide = x.to_dtype(DType::F32).unwrap();
            let state = half.state_dict().unwrap().into_iter().map(|(n, t)| match t.dtype() {
                d if d == dtype => (n, t.to_dtype(DType::F32).unwrap()),
                _ => (n, t.copy().unwrap()),
            });
            l.load_state_dict(&state.collect()).unwrap();
            let (want, got) = (step(&*l, &wide), step(&*half, &x));
            for (i, (w, g)) in want.iter().zip(&got).enumerate() {
                assert_eq!(g.dtype(), dtype);
                let (w, g) =
                    (w.to_vec::<f32>().unwrap(), g.to_dtype(DType::F32).unwrap().to_vec::<f32>().unwrap());
                let largest = w.iter().fold(0.1f32, |m, v| m.max(v.abs()));
                let error = w.iter().zip(&g).fold(0f32, |m, (w, g)| m.max((w - g).abs()));
                assert!(error <= 0.05 * largest, "{} in {dtype}, {i}: off by {error} of {largest}", l.kind());
            }
            resident(l.kind(), &cpu(), || step(&*l, &wide));
        }
    }
}

#[test]
fn names_and_initial_values() {
    let cx = f64s();
    let highway = Highway::new(&cx, 12).unwrap();
    assert_eq!(state_names(&highway), ["transform.weight", "transform.bias", "gate.weight", "gate.bias"]);
    assert_eq!(
        (param(&highway, "transform.bias"), param(&highway, "gate.bias")),
        (vec![0.0; 12], vec![-1.0; 12])
    );
    let largest = param(&highway, "gate.weight").iter().fold(0.0f64, |m, w| m.max(w.abs()));
    assert!((0.4..0.5).contains(&largest), "{largest}");
    assert_eq!(param(&highway.gate_bias_init(-3.0).unwrap(), "gate.bias"), [-3.0; 12]);

    // Standard deviations: fan_in for DenseNet, fan_out for ResNet and MobileNetV2, a tenth for ESRGAN.
    let std = |l: &dyn Layer, name: &str, fan: f64, times: f64| {
        let w = param(l, name);
        let got = (w.iter().map(|w| w * w).sum::<f64>() / w.len() as f64).sqrt();
        let want = times * (2.0 / fan).sqrt();
        assert!((got / want - 1.0).abs() < 0.12, "{} {name}: {got}, expected {want}", l.kind());
    };
    let layer = DenseBlockLayer::new(&cx, 32, 8).unwrap();
    std(&layer, "conv1.weight", 32.0, 1.0);
    std(&layer, "conv2.weight", 32.0 * 9.0, 1.0);
    let block = BasicBlock::new(&cx, 8, 16, 2).unwrap();
    std(&block, "conv1.weight", 16.0 * 9.0, 1.0);
    std(&block, "downsample.0.weight", 16.0, 1.0);
    std(&InvertedResidualBlock::new(&cx, 16, 8, 1, 4).unwrap(), "conv.1.0.weight", 64.0 * 9.0, 1.0);
    let dense = ResidualDenseBlock::new(&cx, 16, 8).unwrap();
    std(&dense, "conv2.weight", 24.0 * 9.0, 0.1);
    assert_eq!(param(&dense, "conv5.bias"), [0.0; 16]);

    let net = UNetDiscriminator::plain(&InitContext::new(&cpu(), 1), 3, 1, 4).unwrap();
    let shape = |name: &str| net.state_dict().unwrap()[name].shape().to_vec();
    assert_eq!(shape("down.2.conv1.weight"), [8, 4, 3, 3]);
    assert_eq!(shape("down.3.conv1.weight"), [8, 8, 3, 3], "at most 8 times num_feat");
    assert_eq!(shape("up.3.conv1.weight"), [4, 16, 3, 3]);
    let two = RrdbNetConfig::default().num_feat(2).num_grow_ch(1).num_block(2);
    let names = state_names(&RrdbNetGenerator::new(&cx, &two).unwrap());
    assert_eq!(names[..3], ["conv_first.weight", "conv_first.bias", "body.0.rdb1.conv1.weight"]);
    assert_eq!(names.iter().filter(|n| n.starts_with("body.1.")).count(), 30);
}

#[test]
fn sizes_and_options_are_refused() {
    let cx = &f64s();
    refused(Highway::new(cx, 0), &["Highway", "dim"]);
    let highway = || Highway::new(cx, 2).unwrap();
    refused(highway().gate_bias_init(f64::NAN), &["Highway", "gate_bias_init"]);
    refused(highway().aux_weight(-0.1), &["Highway", "aux_weight", "at least 0"]);
    refused(DenseBlockLayer::new(cx, 2, 0), &["DenseBlockLayer", "growth_rate"]);
    refused(DenseBlock::new(cx, 0, 2, 2), &["DenseBlock", "num_layers"]);
    refused(DenseBlock::new(cx, 1, 2, 0), &["DenseBlock", "growth_rate"]);
    refused(DenseBlock::with_bn_size(cx, 1, 2, 2, 0), &["DenseBlock", "bn_size"]);
    refused(DenseBlock::new(cx, 1, 2, 2).unwrap().drop_rate(1.5), &["DenseBlock", "drop_rate", "[0, 1]"]);
    refused(Transition::new(cx, 1), &["Transition", "compression", "0.5 of 1"]);
    for compression in [0.0, 1.1, f64::NAN] {
        refused(Transition::with_compression(cx, 4, compression), &["Transition", "compression"]);
    }
    let flat = tensor(&cpu(), &[1, 4, 1, 5], 1);
    refused(Transition::new(cx, 4).unwrap().forward(&flat), &["Transition", "at least 2x2", "[1, 4, 1, 5]"]);
    refused(BasicBlock::new(cx, 2, 2, 0), &["BasicBlock", "stride"]);
    let bottleneck = |groups, width| BottleneckBlock::with_groups(cx, 2, 2, 1, groups, width);
    refused(bottleneck(0, 64), &["BottleneckBlock", "groups"]);
    refused(bottleneck(1, 31), &["BottleneckBlock", "base_width", "31 with 2"]);
    refused(SqueezeAndExcitation::new(cx, 4, 0), &["SqueezeAndExcitation", "reduction"]);
    refused(SqueezeAndExcitation::with_squeeze(cx, 4, 0), &["SqueezeAndExcitation", "squeeze"]);
    let excite = SqueezeAndExcitation::new(cx, 4, 2).unwrap();
    refused(
        excite.forward(&tensor(&cpu(), &[4, 3, 3], 1)),
        &["SqueezeAndExcitation", "[B, 4, H, W] or [B, 4]"],
    );
    refused(InvertedResidualBlock::new(cx, 2, 2, 3, 6), &["InvertedResidualBlock", "stride", "1 or 2"]);
    let inverted = InvertedResidualBlock::new(cx, 2, 2, 1, 1).unwrap();
    refused(inverted.squeeze_and_excitation(0), &["InvertedResidualBlock", "se_ratio"]);
    refused(Rrdb::new(cx, 2, 2).unwrap().residual_scale(1.5), &["Rrdb", "residual_scale"]);
    let slope = ResidualDenseBlock::new(cx, 2, 2).unwrap().negative_slope(f64::INFINITY);
    refused(slope, &["ResidualDenseBlock", "negative_slope"]);
    let generator = RrdbNetConfig::default().num_feat(1).num_block(1);
    refused(RrdbNetGenerator::new(cx, &generator.scale(3)), &["RrdbNetGenerator", "scale", "2, 4 or 8"]);
    refused(RrdbNetGenerator::new(cx, &generator.num_block(0)), &["RrdbNetGenerator", "num_block"]);
    refused(UNetDiscriminator::plain(cx, 3, 1, 17), &["UNetDiscriminator", "num_blocks", "at most 16"]);
    let net = UNetDiscriminator::plain(cx, 1, 1, 2).unwrap();
    refused(net.forward(&tensor(&cpu(), &[1, 1, 4, 6], 1)), &["UNetDiscriminator", "multiples of 4", "6]"]);
    let net = UNetDiscriminator::real_esrgan(cx, 1, 1).unwrap();
    refused(net.forward(&tensor(&cpu(), &[1, 1, 8, 4], 1)), &["UNetDiscriminator", "multiples of 8"]);
    refused(Pooling::max(0, 1), &["Pooling", "pool_size"]);
    refused(Pooling::average(1, [1, 0]), &["Pooling", "stride"]);
    refused(Pooling::max(4, 1).unwrap().forward(&tensor(&cpu(), &[1, 3, 5], 1)), &["Pooling"]);

    let up = UNetUpBlock::new(cx, 2, 3, 2).unwrap();
    let (x, skip) = (tensor(&cpu(), &[1, 2, 2, 3], 1), tensor(&cpu(), &[1, 3, 4, 6], 2));
    refused(up.forward(&x), &["UNetUpBlock", "forward_all"]);
    refused(up.forward_all(std::slice::from_ref(&x)), &["UNetUpBlock", "1 tensors"]);
    refused(up.join(&skip, &skip), &["UNetUpBlock", "`x`", "2 channels"]);
    for wrong in [skip.narrow(3, 0, 5).unwrap(), skip.narrow(1, 0, 2).unwrap()] {
        refused(up.join(&x, &wrong), &["UNetUpBlock", "`skip`", "[1, 3, 4, 6]"]);
    }
}

#[test]
fn residuals_without_layers_are_their_activation() {
    let x = tensor(&cpu(), &[3, 4], 1);
    let values = |t: &Tensor| t.to_vec::<f64>().unwrap();
    let empty = Residual::new(Sequential::new()).activation(Activation::Tanh);
    assert_eq!(values(&empty.forward(&x).unwrap()), values(&x.tanh().unwrap()));
    let dense = Dense::new(&f64s(), 4, 2).unwrap();
    let want = values(&dense.forward(&x).unwrap());
    let projected = Residual::new(Sequential::new()).shortcut(Sequential::new().push(dense));
    assert_eq!(values(&projected.forward(&x).unwrap()), want);
    let other = Residual::new(Sequential::new().push(Dense::new(&f64s(), 4, 3).unwrap()));
    refused(other.forward(&x), &["Residual", "[3, 4]", "[3, 3]"]);
}

#[test]
fn blocks_can_begin_as_their_shortcuts() {
    let cx = f64s();
    let x = tensor(&cpu(), &[2, 4, 3, 3], 1);
    let blocks: [Box<dyn Layer>; 2] = [
        Box::new(BasicBlock::new(&cx, 4, 4, 1).unwrap().zero_init_residual().unwrap()),
        Box::new(BottleneckBlock::new(&cx, 4, 1, 1).unwrap().zero_init_residual().unwrap()),
    ];
    for l in blocks {
        let y = l.forward(&x).unwrap().to_vec::<f64>().unwrap();
        assert_eq!(y, x.relu().unwrap().to_vec::<f64>().unwrap(), "{}", l.kind());
    }
}

#[test]
fn auxiliary_losses() {
    let cx = f64s();
    let x = tensor(&cpu(), &[3, 4], 1);
    let plain = Highway::new(&cx, 4).unwrap();
    assert!(auxiliary::collect(|| plain.forward(&x)).unwrap().1.is_empty());
    let highway = plain.aux_weight(0.5).unwrap();
    let term = |l: &dyn Layer, x: &Tensor| {
        let (y, terms) = auxiliary::collect(|| l.forward(x))?;
        let [term] = &terms[..] else { panic!("{} terms", terms.len()) };
        Ok::<_, NnError>((y, term.clone()))
    };
    let (_, got) = term(&highway, &x).unwrap();
    let state = highway.state_dict().unwrap();
    let logits = x.matmul(&state["gate.weight"].t().unwrap()).unwrap().add(&state["gate.bias"]).unwrap();
    let mean = logits.sigmoid().unwrap().mean().unwrap().item::<f64>().unwrap();
    close(&[got.item::<f64>().unwrap()], &[0.5 * (mean - 0.5).powi(2)], 1e-12, "highway");
    gradcheck_layer("highway with its term", &highway, std::slice::from_ref(&x), |t| {
        let (y, term) = term(&highway, &t[0])?;
        y.add(&term)
    });

    let excite = SqueezeAndExcitation::new(&cx, 4, 2).unwrap().aux_weight(0.3).unwrap();
    let (y, got) = term(&excite, &x).unwrap();
    let square = y.div(&x).unwrap().square().unwrap().mean().unwrap().item::<f64>().unwrap();
    close(&[got.item::<f64>().unwrap()], &[0.3 * square], 1e-12, "squeeze and excitation");
}

#[test]
fn checkpointed_generators_learn_alike() {
    let make = |checkpoint: bool| {
        let config = RrdbNetConfig::default().in_channels(2).num_feat(2).num_grow_ch(1).num_block(2).scale(2);
        let cx = InitContext::new(&cpu(), 4).dtype(DType::F64);
        RrdbNetGenerator::new(&cx, &config.checkpoint(checkpoint)).unwrap()
    };
    let run = |l: RrdbNetGenerator| {
        let x = tensor(&cpu(), &[1, 2, 3, 3], 1).with_grad();
        let y = l.forward(&x).unwrap();
        y.square().unwrap().sum().unwrap().backward().unwrap();
        let grads = l.named_parameters().into_iter().map(|(_, p)| p.get().grad().unwrap());
        let all: Vec<Tensor> = [y, x.grad().unwrap()].into_iter().chain(grads).collect();
        all.iter().flat_map(|t| t.detach().to_vec::<f64>().unwrap()).collect::<Vec<_>>()
    };
    close(&run(make(false)), &run(make(true)), 1e-12, "output and gradients");
}
