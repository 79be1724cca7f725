//! Layers of sequences: embedding, recurrences, and those without parameters.

mod recurrent;
mod steps;

use std::slice::from_ref;

use crate::common::layers::{f64s, gradcheck_layer, on_devices, param, refused, round_trip, state_names};
use crate::common::{close, cpu, devices, f32s, gradcheck, tensor};
use trefoil::DType;
use trefoil::ops::activation::Activation;
use trefoil::ops::attention::Rope;
use trefoil::ops::embedding::EmbeddingGrad;
use trefoil::ops::language_model::LinearCrossEntropy;
use trefoil::ops::loss::Reduction;
use trefoil_nn::layers::*;
use trefoil_nn::{Init, InitContext, Layer, LayerExt, LinearCrossEntropyLoss, Tensor};

fn ids(v: &[i64], shape: &[usize]) -> Tensor {
    Tensor::from_slice(&cpu(), v, shape).unwrap()
}

fn host(t: &Tensor) -> Vec<f64> {
    t.to_vec::<f64>().unwrap()
}

#[test]
fn gradients_of_the_operations() {
    let same = |x: f64| x;
    let at = ids(&[2, 0, 2, 3, 1, 2], &[2, 3]);
    gradcheck("embedding", &[&[4, 3]], same, |t| t[0].embedding(&at, &EmbeddingGrad::new()));
    let mean = EmbeddingGrad::new().scale_grad_by_freq(true);
    let table = tensor(&cpu(), &[4, 2], 1).with_grad();
    table.embedding(&at, &mean).unwrap().sum().unwrap().backward().unwrap();
    close(&host(&table.grad().unwrap()), &[1.0; 8], 1e-12, "gradients divided by the frequency");

    gradcheck("rope", &[&[2, 3, 2, 4]], same, |t| t[0].rope(&Rope::new().offset(2), None));
    gradcheck("rope of a view", &[&[2, 2, 3, 4]], same, |t| t[0].transpose(1, 2)?.rope(&Rope::new(), None));
    for act in [Activation::Sigmoid, Activation::Gelu, Activation::Swish { beta: 1.0 }, Activation::Identity]
    {
        gradcheck("glu", &[&[2, 6, 3]], same, |t| t[0].glu(act, 1));
        gradcheck("gated_by", &[&[2, 3], &[2, 3]], same, |t| t[0].gated_by(&t[1], act));
    }
    gradcheck("split_heads", &[&[2, 3, 12]], same, |t| {
        let p = t[0].split_heads(3, 2)?;
        p[0].mul(&p[1])?.add(&p[2])?.merge_heads()
    });
    // A part that nothing uses has a gradient of zeros.
    gradcheck("split_heads, one part", &[&[2, 3, 8]], same, |t| Ok(t[0].split_heads(2, 2)?.remove(1)));

    let classes = ids(&[1, 4, -100, 0], &[2, 2]);
    for reduction in [Reduction::None, Reduction::Mean, Reduction::Sum] {
        let loss = LinearCrossEntropyLoss {
            options: LinearCrossEntropy::new().reduction(reduction).label_smoothing(0.1),
        };
        gradcheck("linear cross entropy", &[&[2, 2, 3], &[5, 3], &[5]], same, |t| {
            loss.forward(&t[0], &t[1], Some(&t[2]), &classes)
        });
    }
}

#[test]
fn embedding() {
    let cx = f64s();
    let layer = Embedding::new(&cx, 5, 3).unwrap().padding_idx(-4).unwrap().scale_by_sqrt_dim();
    let at = ids(&[4, 1, 0, 4], &[2, 2]);
    let y = layer.forward(&at).unwrap();
    let w = param(&layer, "weight");
    assert_eq!(w[3..6], [0.0; 3], "the padding row");
    let rows: Vec<f64> =
        [4, 1, 0, 4].iter().flat_map(|&r| w[r * 3..r * 3 + 3].iter().map(|x| x * 3f64.sqrt())).collect();
    close(&host(&y), &rows, 1e-12, "Embedding");
    assert_eq!(layer.forward(&ids(&[3], &[])).unwrap().shape(), [3]);
    assert_eq!(layer.forward(&ids(&[3], &[1, 1])).unwrap().shape(), [1, 1, 3]);
    y.sum().unwrap().backward().unwrap();
    let g = host(&layer.weight().get().grad().unwrap());
    let s = 3f64.sqrt();
    close(&g, &[s, s, s, 0., 0., 0., 0., 0., 0., 0., 0., 0., 2. * s, 2. * s, 2. * s], 1e-12, "gradient");
    assert_eq!(state_names(&layer), ["weight"]);
    let plain = Embedding::new(&cx, 4, 2).unwrap();
    gradcheck_layer("Embedding", &plain, &[ids(&[3, 0, 3, 1], &[4])], |t| plain.forward(&t[0]));

    let bound = Embedding::new(&cx, 3, 4).unwrap().init(&cx, Init::Constant(2.0)).unwrap();
    let bound = bound.max_norm(1.0, 2.0).unwrap();
    bound.forward(&ids(&[0, 2, 2], &[3])).unwrap();
    let w = param(&bound, "weight");
    close(&w[..4], &[0.5; 4], 1e-6, "a scaled row");
    assert_eq!(w[4..8], [2.0; 4], "a row that no id names");

    refused(layer.forward(&tensor(&cpu(), &[2], 1)), &["Embedding", "ids", "f64"]);
    refused(Embedding::new(&cx, 0, 3), &["Embedding"]);
    refused(Embedding::new(&cx, 3, 2).unwrap().padding_idx(3), &["padding_idx", "3"]);
    refused(Embedding::new(&cx, 3, 2).unwrap().max_norm(f64::NAN, 2.0), &["max_norm"]);
    assert!(layer.forward(&ids(&[5], &[1])).and_then(|y| y.to_vec::<f64>()).is_err(), "an id out of range");
    round_trip(&plain, &Embedding::new(&cx, 4, 2).unwrap(), &ids(&[0, 1, 2, 3], &[4]));
    for d in devices() {
        let cx = InitContext::new(&d, 3);
        let layer = Embedding::new(&cx, 6, 5).unwrap();
        let at = Tensor::from_slice(&d, &[5i32, 0, 5, 2], &[4]).unwrap();
        let y = layer.forward(&at).unwrap();
        y.mul(&y).unwrap().sum().unwrap().backward().unwrap();
        let w: Vec<f32> = layer.weight().get().to_vec().unwrap();
        let g: Vec<f32> = layer.weight().get().grad().unwrap().to_vec().unwrap();
        for (r, times) in [1.0, 0.0, 1.0, 0.0, 0.0, 2.0].into_iter().enumerate() {
            for c in 0..5 {
                assert!((g[r * 5 + c] - 2.0 * times * w[r * 5 + c]).abs() < 1e-5);
            }
        }
    }
}

#[test]
fn feed_forward_and_gated_units() {
    let cx = f64s();
    let x = tensor(&cpu(), &[2, 3, 4], 1);
    let layer = FeedForward::new(&cx, 4, 5).unwrap().activation(Activation::Gelu).dropout(0.3).unwrap();
    gradcheck_layer("FeedForward", &layer, from_ref(&x), |t| layer.forward(&t[0]));
    assert_eq!(state_names(&layer), ["linear1.weight", "linear1.bias", "linear2.weight", "linear2.bias"]);
    layer.eval();
    let t = |n: &str, s: &[usize]| Tensor::from_slice(&cpu(), &param(&layer, n), s).unwrap();
    let linear = |x: &Tensor, n: &str, s: [usize; 2]| {
        let w = t(&format!("{n}.weight"), &s).transpose(0, 1).unwrap();
        x.matmul(&w).unwrap().add(&t(&format!("{n}.bias"), &s[..1])).unwrap()
    };
    let want = linear(&linear(&x, "linear1", [5, 4]).gelu().unwrap(), "linear2", [4, 5]);
    close(&host(&layer.forward(&x).unwrap()), &host(&want), 1e-12, "FeedForward");
    round_trip(&layer, &FeedForward::new(&cx, 4, 5).unwrap().activation(Activation::Gelu), &x);
    let lazy = FeedForward::lazy(&cx, 5).unwrap().no_bias();
    lazy.forward(&x).unwrap();
    assert_eq!(state_names(&lazy), ["linear1.weight", "linear2.weight"]);
    refused(lazy.forward(&tensor(&cpu(), &[2, 3], 1)), &["FeedForward", "x", "4"]);
    refused(FeedForward::new(&cx, 4, 0), &["FeedForward", "d_ff"]);

    let swiglu = SwiGlu::new(&cx, 4, 5).unwrap();
    gradcheck_layer("SwiGlu", &swiglu, from_ref(&x), |t| swiglu.forward(&t[0]));
    assert_eq!(state_names(&swiglu), ["gate_proj.weight", "up_proj.weight", "down_proj.weight"]);
    let project = |x: &Tensor, n: &str, s: [usize; 2]| {
        let w = Tensor::from_slice(&cpu(), &param(&swiglu, &format!("{n}_proj.weight")), &s).unwrap();
        x.matmul(&w.transpose(0, 1).unwrap()).unwrap()
    };
    let gate = project(&x, "gate", [5, 4]).silu().unwrap();
    let want = project(&gate.mul(&project(&x, "up", [5, 4])).unwrap(), "down", [4, 5]);
    close(&host(&swiglu.forward(&x).unwrap()), &host(&want), 1e-12, "SwiGlu");
    round_trip(&swiglu, &SwiGlu::new(&cx, 4, 5).unwrap(), &x);
    let biased = SwiGlu::lazy(&cx, 5).unwrap().with_bias().unwrap();
    biased.forward(&x).unwrap();
    assert_eq!(biased.num_parameters(), 3 * 20 + 5 + 5 + 4);
    refused(biased.forward(&tensor(&cpu(), &[2, 3], 1)), &["Dense", "x", "4"]);
    refused(SwiGlu::new(&cx, 4, 0), &["SwiGlu", "d_ff"]);

    type Act = fn(&Tensor) -> trefoil_nn::Result<Tensor>;
    for act in [Activation::Mish, Activation::Swish { beta: 2.0 }, Activation::LeakyRelu { slope: 0.1 }] {
        refused(GatedLinearUnit::new(&cx, 4, 3).unwrap().gate(act), &["GatedLinearUnit", "gate_activation"]);
    }
    let json =
        serde_json::json!({ "type": "gated_linear_unit", "out_features": 2, "gate_activation": "mish" });
    refused(trefoil_nn::network::layer(&cx, &json), &["`gate_activation`", "GatedLinearUnit", "Mish"]);
    let units: [(&str, GatedLinearUnit, Act); 4] = [
        ("GLU", GatedLinearUnit::new(&cx, 4, 3).unwrap(), Tensor::sigmoid),
        ("SwiGLU", GatedLinearUnit::swiglu(&cx, 4, 3).unwrap(), Tensor::silu),
        ("GeGLU", GatedLinearUnit::geglu(&cx, 4, 3).unwrap(), Tensor::gelu),
        ("ReGLU", GatedLinearUnit::reglu(&cx, 4, 3).unwrap(), Tensor::relu),
    ];
    for (what, unit, act) in &units {
        gradcheck_layer(what, unit, from_ref(&x), |t| unit.forward(&t[0]));
        let w = Tensor::from_slice(&cpu(), &param(unit, "weight"), &[6, 4]).unwrap().transpose(0, 1).unwrap();
        let z = x.matmul(&w).unwrap();
        let z = z.add(&Tensor::from_slice(&cpu(), &param(unit, "bias"), &[6]).unwrap()).unwrap();
        let want = z.narrow(2, 0, 3).unwrap().mul(&act(&z.narrow(2, 3, 3).unwrap()).unwrap()).unwrap();
        close(&host(&unit.forward(&x).unwrap()), &host(&want), 1e-12, what);
    }
    assert_eq!(state_names(&units[0].1), ["weight", "bias"]);
    refused(units[0].1.forward(&tensor(&cpu(), &[2, 3], 1)), &["GatedLinearUnit", "x", "4"]);
    refused(GatedLinearUnit::new(&cx, 4, 0), &["GatedLinearUnit", "out_features"]);
    on_devices("FeedForward", &[&[2, 3, 4]], |cx| FeedForward::new(cx, 4, 6), |l, t| l.forward(&t[0]));
    on_devices("SwiGLU", &[&[2, 3, 4]], |cx| GatedLinearUnit::swiglu(cx, 4, 6), |l, t| l.forward(&t[0]));
}

#[test]
fn positional_encoding() {
    let cx = f64s();
    let layer = PositionalEncoding::new(&cx, 3, 6).unwrap();
    let x = tensor(&cpu(), &[2, 4, 3], 1);
    let second = 10_000f64.powf(-2.0 / 3.0);
    let table: Vec<f64> =
        (0..6).map(f64::from).flat_map(|t| [t.sin(), t.cos(), (t * second).sin()]).collect();
    close(&param(&layer, "pe"), &table, 1e-12, "the table");
    let want: Vec<f64> = host(&x).iter().enumerate().map(|(i, v)| v + table[6 + i % 12]).collect();
    close(&host(&layer.forward_at(&x, 2).unwrap()), &want, 1e-12, "from position 2");
    gradcheck_layer("PositionalEncoding", &layer, from_ref(&x), |t| layer.forward(&t[0]));
    assert_eq!((layer.num_parameters(), state_names(&layer)), (0, vec!["pe".to_string()]));
    assert_eq!(layer.forward(&x.select(0, 0).unwrap()).unwrap().shape(), [4, 3]);
    refused(layer.forward_at(&x, 3), &["PositionalEncoding", "max_len 6"]);
    refused(layer.forward(&tensor(&cpu(), &[2, 4, 4], 1)), &["PositionalEncoding", "3"]);
    refused(PositionalEncoding::with_base(&cx, 3, 6, 0.0), &["PositionalEncoding", "base"]);
    let dropped = PositionalEncoding::new(&cx, 3, 6).unwrap().dropout(0.5).unwrap();
    assert!(host(&dropped.forward(&x).unwrap()).contains(&0.0));
    dropped.eval();
    close(&host(&dropped.forward(&x).unwrap()), &host(&layer.forward(&x).unwrap()), 1e-12, "in evaluation");
    on_devices(
        "PositionalEncoding",
        &[&[2, 4, 6]],
        |cx| PositionalEncoding::new(cx, 6, 9),
        |l, t| l.forward(&t[0]),
    );
}

#[test]
fn layers_of_several_inputs() {
    let t = |seed| tensor(&cpu(), &[2, 3], seed);
    let (a, b, c) = (t(1), t(2), t(3));
    let sum = Add::new().activation(Activation::Tanh);
    let product = Multiply::new();
    let joined = Concatenate::new(-1).activation(Activation::Sigmoid);
    let inputs = [a.clone(), b.clone(), c.clone()];
    gradcheck_layer("Add", &sum, &inputs, |t| sum.merge(t));
    gradcheck_layer("Multiply", &product, &inputs, |t| product.merge(t));
    gradcheck_layer("Concatenate", &joined, &inputs, |t| joined.merge(t));
    gradcheck("Add of one tensor twice", &[&[4]], |x| x, |t| Add::new().merge(&[t[0].clone(), t[0].clone()]));
    let want: Vec<f64> =
        host(&a).iter().zip(host(&b)).zip(host(&c)).map(|((a, b), c)| (a + b + c).tanh()).collect();
    close(&host(&sum.forward_all(&inputs).unwrap()[0]), &want, 1e-12, "Add");
    // A factor of 0 leaves the others' gradients alone.
    let zero = Tensor::from_slice(&cpu(), &[0.0, 2.0], &[2]).unwrap().with_grad();
    let other = Tensor::from_slice(&cpu(), &[3.0, 0.0], &[2]).unwrap().with_grad();
    product.merge(&[zero.clone(), other.clone()]).unwrap().sum().unwrap().backward().unwrap();
    assert_eq!(host(&zero.grad().unwrap()), [3.0, 0.0]);
    assert_eq!(host(&other.grad().unwrap()), [0.0, 2.0]);
    assert_eq!(joined.merge(&[a.clone(), a.narrow(1, 0, 0).unwrap()]).unwrap().shape(), [2, 3]);
    refused(sum.forward(&a), &["Add", "2 tensors"]);
    refused(product.merge(&[]), &["Multiply", "2 tensors"]);
    refused(sum.merge(&[a.clone(), a.narrow(0, 0, 1).unwrap()]), &["Add", "[2, 3]", "[1, 3]"]);
    refused(joined.merge(&[a.clone(), a.narrow(0, 0, 1).unwrap()]), &["Concatenate", "[1, 3]"]);
    refused(joined.merge(&[]), &["Concatenate"]);
    refused(Concatenate::new(2).merge(&[a]), &["Concatenate", "axis"]);
}

#[test]
fn gaussian_noise() {
    for d in devices() {
        let cx = InitContext::new(&d, 4);
        let layer = GaussianNoise::new(&cx, 0.5).unwrap().mean(2.0).unwrap();
        let x = f32s(&d, &[1.0; 10_000], &[100, 100]).with_grad();
        let y = layer.forward(&x).unwrap();
        let v = y.to_vec::<f32>().unwrap();
        let mean = v.iter().sum::<f32>() / 1e4;
        let std = (v.iter().map(|a| (a - mean).powi(2)).sum::<f32>() / 1e4).sqrt();
        assert!((mean - 3.0).abs() < 0.02 && (std - 0.5).abs() < 0.02, "{mean} {std}");
        y.sum().unwrap().backward().unwrap();
        assert_eq!(x.grad().unwrap().to_vec::<f32>().unwrap(), [1.0; 10_000]);
        assert_ne!(layer.forward(&x).unwrap().to_vec::<f32>().unwrap(), v);
        layer.set_counters(&layer.counters().into_keys().map(|k| (k, 0)).collect()).unwrap();
        assert_eq!(layer.forward(&x).unwrap().to_vec::<f32>().unwrap(), v);
        layer.eval();
        assert_eq!(layer.forward(&x).unwrap().to_vec::<f32>().unwrap(), [1.0; 10_000]);
        refused(GaussianNoise::new(&cx, -1.0), &["GaussianNoise", "stddev"]);
        refused(GaussianNoise::new(&cx, f64::NAN), &["GaussianNoise", "stddev"]);
    }
}

#[test]
fn empty_batches_give_empty_results() {
    let cx = f64s();
    let empty = Tensor::zeros(&cpu(), DType::F64, &[0, 3, 4]).unwrap();
    let layers: Vec<(&str, Box<dyn Layer>)> = vec![
        ("Attention", Box::new(Attention::new(&cx, 4, 2).unwrap())),
        ("MultiHeadAttention", Box::new(MultiHeadAttention::new(&cx, 4, 2).unwrap())),
        ("CrossAttention", Box::new(CrossAttention::new(&cx, 4, 4, 2).unwrap())),
        ("Lstm", Box::new(Lstm::new(&cx, 4, 2).unwrap())),
        ("Gru", Box::new(Gru::new(&cx, 4, 2).unwrap())),
        ("FeedForward", Box::new(FeedForward::new(&cx, 4, 2).unwrap())),
        ("GatedLinearUnit", Box::new(GatedLinearUnit::new(&cx, 4, 2).unwrap())),
        ("LayerNormalization", Box::new(LayerNormalization::new(&cx, &[4]).unwrap())),
    ];
    for (what, layer) in layers {
        let y = layer.forward(&empty).unwrap_or_else(|e| panic!("{what}: {e}"));
        assert_eq!((y.shape()[0], y.numel()), (0, 0), "{what}");
        y.sum().unwrap().backward().unwrap_or_else(|e| panic!("{what}: {e}"));
        for (n, p) in layer.named_parameters() {
            assert!(p.get().grad().is_none_or(|g| host(&g).iter().all(|&v| v == 0.0)), "{what}: {n}");
        }
    }
}
