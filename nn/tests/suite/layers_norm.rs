//! Normalization layers and the blocks of the Transformer.

use std::slice::from_ref;

use crate::common::layers::{f64s, gradcheck_layer, on_devices, param, refused, round_trip, state_names};
use crate::common::{close, cpu, devices, f32s, gradcheck, tensor};
use trefoil::DType;
use trefoil::ops::activation::Activation;
use trefoil::ops::norm::{BatchNorm, GroupNorm, RowNorm};
use trefoil_nn::layers::*;
use trefoil_nn::{BatchNormStats, InitContext, Layer, LayerExt, Tensor};

fn host(t: &Tensor) -> Vec<f64> {
    t.to_vec::<f64>().unwrap()
}

/// Replaces a layer's parameters by numbers without pattern: ones and zeros would hide mistakes.
fn shuffle(layer: &dyn Layer) {
    for (i, (_, p)) in layer.named_parameters().into_iter().enumerate() {
        let t = p.get().detach();
        t.assign(&tensor(&cpu(), t.shape(), 50 + i as u64)).unwrap();
    }
}

/// (x - mean) / sqrt(var + eps) of every group of numbers that `group` tells apart, and the groups' means and variances (by the count).
fn normalized(
    x: &[f64],
    eps: f64,
    groups: usize,
    group: impl Fn(usize) -> usize,
) -> (Vec<f64>, Vec<f64>, Vec<f64>) {
    let (mut n, mut mean, mut var) = (vec![0.0; groups], vec![0.0; groups], vec![0.0; groups]);
    for (i, v) in x.iter().enumerate() {
        n[group(i)] += 1.0;
        mean[group(i)] += v;
    }
    mean.iter_mut().zip(&n).for_each(|(m, n)| *m /= n);
    for (i, v) in x.iter().enumerate() {
        var[group(i)] += (v - mean[group(i)]).powi(2) / n[group(i)];
    }
    let y = x.iter().enumerate().map(|(i, v)| (v - mean[group(i)]) / (var[group(i)] + eps).sqrt());
    (y.collect(), mean, var)
}

#[test]
fn gradients_of_the_operations() {
    let same = |x: f64| x;
    for act in [Activation::Identity, Activation::Relu, Activation::Gelu, Activation::Tanh] {
        for p in [RowNorm::layer().axes(2).act(act), RowNorm::rms().axes(2).gamma_offset(1.0).act(act)] {
            gradcheck("row_norm", &[&[2, 3, 2], &[3, 2], &[3, 2]], same, |t| {
                t[0].row_norm(&p, Some(&t[1]), Some(&t[2]))
            });
        }
        let p = GroupNorm::new(2).act(act);
        gradcheck("group_norm", &[&[2, 4, 3], &[4], &[4]], same, |t| {
            t[0].group_norm(&p, Some(&t[1]), Some(&t[2]))
        });
        let p = BatchNorm::new().act(act);
        let b = BatchNorm::new().act(act);
        gradcheck("batch_norm of a sum", &[&[3, 2, 2], &[3, 2, 2], &[2], &[2]], same, |t| {
            let x = t[0].mul_scalar(2.0)?;
            x.batch_norm_add(Some(&t[1]), &b, Some(&t[2]), Some(&t[3]), BatchNormStats::Batch(None))?.add(&x)
        });
        gradcheck("batch_norm", &[&[3, 2, 2], &[2], &[2]], same, |t| {
            t[0].batch_norm(&p, Some(&t[1]), Some(&t[2]), BatchNormStats::Batch(None))
        });
    }
    // Result and sum both have a part, then each alone; the residual alone too.
    let p = RowNorm::layer();
    gradcheck("add_row_norm", &[&[2, 3], &[2, 3], &[3], &[3]], same, |t| {
        let (y, sum) = t[0].add_row_norm(&t[1], &p, Some(&t[2]), Some(&t[3]))?;
        y.mul(&sum)
    });
    gradcheck("add_row_norm, result", &[&[2, 3], &[2, 3]], same, |t| {
        Ok(t[0].add_row_norm(&t[1], &p, None, None)?.0)
    });
    gradcheck("add_row_norm, sum", &[&[2, 3], &[2, 3]], same, |t| {
        Ok(t[0].add_row_norm(&t[1], &p, None, None)?.1)
    });
    let fixed = tensor(&cpu(), &[2, 3], 9);
    gradcheck("add_row_norm, residual", &[&[2, 3]], same, |t| {
        let (y, sum) = fixed.add_row_norm(&t[0], &p, None, None)?;
        y.mul(&sum)
    });
    gradcheck("add_row_norm of one tensor twice", &[&[2, 3]], same, |t| {
        Ok(t[0].add_row_norm(&t[0], &p, None, None)?.0)
    });
    gradcheck("row_norm of a view", &[&[3, 2]], same, |t| t[0].transpose(0, 1)?.row_norm(&p, None, None));
}

#[test]
fn batch_normalization() {
    let cx = f64s();
    let layer = BatchNormalization::new(&cx, 3).unwrap();
    shuffle(&layer);
    let x = tensor(&cpu(), &[4, 3, 2], 1);
    let (xhat, mean, var) = normalized(&host(&x), 1e-5, 3, |i| i / 2 % 3);
    let (w, b) = (param(&layer, "weight"), param(&layer, "bias"));
    let want: Vec<f64> = xhat.iter().enumerate().map(|(i, v)| v * w[i / 2 % 3] + b[i / 2 % 3]).collect();
    close(&host(&layer.forward(&x).unwrap()), &want, 1e-12, "BatchNormalization");
    // N = 8 values per channel; the running variance is the unbiased one.
    let running: Vec<f64> = mean.iter().map(|m| 0.1 * m).collect();
    close(&param(&layer, "running_mean"), &running, 1e-12, "running mean");
    let unbiased: Vec<f64> = var.iter().map(|v| v * 8.0 / 7.0).collect();
    let running: Vec<f64> = unbiased.iter().map(|v| 0.9 + 0.1 * v).collect();
    close(&param(&layer, "running_var"), &running, 1e-12, "running variance");
    let count = |l: &dyn Layer| l.state_dict().unwrap()["num_batches_tracked"].item::<i64>().unwrap();
    assert_eq!(count(&layer), 1);
    layer.forward(&x).unwrap();
    assert_eq!(count(&layer), 2);

    layer.eval();
    let (m, v) = (param(&layer, "running_mean"), param(&layer, "running_var"));
    let y = layer.forward(&x).unwrap();
    let given = |i: usize, x: f64| {
        let c = i / 2 % 3;
        (x - m[c]) / (v[c] + 1e-5).sqrt() * w[c] + b[c]
    };
    let want: Vec<f64> = host(&x).iter().enumerate().map(|(i, &x)| given(i, x)).collect();
    close(&host(&y), &want, 1e-12, "in evaluation");
    gradcheck_layer("BatchNormalization in evaluation", &layer, from_ref(&x), |t| layer.forward(&t[0]));
    assert_eq!((count(&layer), param(&layer, "running_mean")), (2, m), "evaluation changes nothing");
    layer.train();
    for shape in [&[4usize, 3][..], &[2, 3, 2], &[2, 3, 2, 2], &[1, 3, 2, 1, 2]] {
        gradcheck_layer("BatchNormalization", &layer, &[tensor(&cpu(), shape, 3)], |t| layer.forward(&t[0]));
    }

    // A residual block's end is the same as its parts.
    let ends = BatchNormalization::new(&cx, 3).unwrap().activation(Activation::Relu);
    let r = tensor(&cpu(), x.shape(), 7);
    let plain = BatchNormalization::new(&cx, 3).unwrap();
    let want = plain.forward(&x).unwrap().add(&r).unwrap().relu().unwrap();
    close(&host(&ends.add_forward(&x, &r).unwrap()), &host(&want), 1e-12, "norm, sum and relu");
    assert_eq!(count(&ends), 1);
    let inputs = [x.clone(), r.clone()];
    gradcheck_layer("BatchNormalization of a sum", &ends, &inputs, |t| ends.add_forward(&t[0], &t[1]));
    refused(ends.add_forward(&x, &tensor(&cpu(), &[3], 1)), &["BatchNormalization", "residual"]);

    // Without a momentum all batches count alike.
    let average = BatchNormalization::new(&cx, 3).unwrap().momentum(None).unwrap();
    average.forward(&x).unwrap();
    close(&param(&average, "running_mean"), &mean, 1e-12, "the first batch");
    close(&param(&average, "running_var"), &unbiased, 1e-12, "the first batch");
    average.forward(&x.mul_scalar(3.0).unwrap()).unwrap();
    let twice: Vec<f64> = mean.iter().map(|m| 2.0 * m).collect();
    close(&param(&average, "running_mean"), &twice, 1e-12, "the mean of two batches");
    assert_eq!(count(&average), 2);

    let names = ["weight", "bias", "running_mean", "running_var", "num_batches_tracked"];
    assert_eq!(state_names(&layer), names);
    assert_eq!(layer.named_parameters().len(), 2);
    round_trip(&layer, &BatchNormalization::new(&cx, 3).unwrap(), &x);
    let bare = BatchNormalization::new(&cx, 3).unwrap().no_affine().no_running_stats();
    assert!(state_names(&bare).is_empty());
    let train = host(&bare.forward(&x).unwrap());
    bare.eval();
    assert_eq!(host(&bare.forward(&x).unwrap()), train, "no running statistics to use");

    refused(layer.forward(&tensor(&cpu(), &[4, 2], 1)), &["BatchNormalization", "3 channels"]);
    refused(layer.forward(&tensor(&cpu(), &[3], 1)), &["BatchNormalization", "rank"]);
    refused(layer.forward(&tensor(&cpu(), &[1, 3], 1)), &["BatchNormalization", "2 values"]);
    refused(layer.forward(&tensor(&cpu(), &[0, 3], 1)), &["BatchNormalization", "2 values"]);
    refused(BatchNormalization::new(&cx, 0), &["BatchNormalization", "num_features"]);
    refused(BatchNormalization::new(&cx, 1).unwrap().eps(-1.0), &["BatchNormalization", "eps"]);
    refused(
        BatchNormalization::new(&cx, 1).unwrap().momentum(Some(f64::NAN)),
        &["BatchNormalization", "momentum"],
    );
    layer.eval();
    assert_eq!(layer.forward(&tensor(&cpu(), &[1, 3], 1)).unwrap().shape(), [1, 3]);
    on_devices(
        "BatchNormalization",
        &[&[4, 3, 5, 2]],
        |cx| BatchNormalization::new(cx, 3),
        |l, t| l.forward(&t[0]),
    );
}

#[test]
fn layer_and_rms_normalization() {
    let cx = f64s();
    let x = tensor(&cpu(), &[2, 3, 4], 1);
    for shape in [&[4usize][..], &[3, 4], &[2, 3, 4]] {
        let row: usize = shape.iter().product();
        let layer = LayerNormalization::new(&cx, shape).unwrap().eps(1e-3).unwrap();
        shuffle(&layer);
        let (w, b) = (param(&layer, "weight"), param(&layer, "bias"));
        let (xhat, ..) = normalized(&host(&x), 1e-3, 24 / row, |i| i / row);
        let want: Vec<f64> = xhat.iter().enumerate().map(|(i, v)| v * w[i % row] + b[i % row]).collect();
        close(&host(&layer.forward(&x).unwrap()), &want, 1e-12, "LayerNormalization");
        gradcheck_layer("LayerNormalization", &layer, from_ref(&x), |t| layer.forward(&t[0]));
        let (y, sum) = layer.add_forward(&x, &x).unwrap();
        let double = x.mul_scalar(2.0).unwrap();
        close(&host(&sum), &host(&double), 1e-12, "the sum");
        close(&host(&y), &host(&layer.forward(&double).unwrap()), 1e-12, "of the sum");

        let rms = RmsNorm::new(&cx, shape).unwrap();
        shuffle(&rms);
        let w = param(&rms, "weight");
        let v = host(&x);
        let want: Vec<f64> = (0..24)
            .map(|i| {
                let part = &v[i / row * row..][..row];
                let mean = part.iter().map(|a| a * a).sum::<f64>() / row as f64;
                v[i] / (mean + 1e-6).sqrt() * w[i % row]
            })
            .collect();
        close(&host(&rms.forward(&x).unwrap()), &want, 1e-12, "RmsNorm");
        gradcheck_layer("RmsNorm", &rms, from_ref(&x), |t| rms.forward(&t[0]));
    }
    let layer = LayerNormalization::new(&cx, &[4]).unwrap();
    assert_eq!(state_names(&layer), ["weight", "bias"]);
    assert_eq!(state_names(&LayerNormalization::new(&cx, &[4]).unwrap().no_bias()), ["weight"]);
    let bare = LayerNormalization::new(&cx, &[4]).unwrap().no_affine();
    close(&host(&bare.forward(&x).unwrap()), &host(&layer.forward(&x).unwrap()), 1e-12, "ones and zeros");
    let rms = RmsNorm::new(&cx, &[4]).unwrap();
    assert_eq!(state_names(&rms), ["weight"]);
    shuffle(&layer);
    round_trip(&layer, &LayerNormalization::new(&cx, &[4]).unwrap(), &x);
    // Without an eps: that of the arithmetic, which alone stands against zeros.
    let tiny = RmsNorm::new(&cx, &[2]).unwrap().machine_eps().no_affine();
    let y = tiny.forward(&Tensor::from_slice(&cpu(), &[1e-8, 1e-8], &[2]).unwrap()).unwrap();
    let want = 1e-8 / (1e-16 + f64::EPSILON).sqrt();
    close(&host(&y), &[want, want], 1e-12, "machine epsilon");
    refused(layer.forward(&tensor(&cpu(), &[2, 3], 1)), &["LayerNormalization", "[4]"]);
    refused(rms.forward(&tensor(&cpu(), &[2, 3], 1)), &["RmsNorm", "[4]"]);
    refused(LayerNormalization::new(&cx, &[]), &["LayerNormalization", "normalized_shape"]);
    refused(RmsNorm::new(&cx, &[0]), &["RmsNorm", "normalized_shape"]);
    refused(RmsNorm::new(&cx, &[2]).unwrap().eps(0.0), &["RmsNorm", "eps"]);
    refused(layer.add_forward(&x, &x.narrow(0, 0, 1).unwrap()), &["LayerNormalization", "residual"]);
    on_devices(
        "LayerNormalization",
        &[&[3, 5, 7]],
        |cx| LayerNormalization::new(cx, &[5, 7]),
        |l, t| l.forward(&t[0]),
    );
    on_devices("RmsNorm", &[&[3, 5, 7]], |cx| RmsNorm::new(cx, &[7]), |l, t| l.forward(&t[0]));
    on_devices(
        "LayerNormalization of a sum",
        &[&[3, 7], &[3, 7]],
        |cx| LayerNormalization::new(cx, &[7]),
        |l, t| {
            let (y, sum) = l.add_forward(&t[0], &t[1])?;
            y.mul(&sum)
        },
    );
}

#[test]
fn instance_and_group_normalization() {
    let cx = f64s();
    let x = tensor(&cpu(), &[2, 4, 3], 1);
    let layer = InstanceNormalization::new(4).unwrap().affine(&cx).unwrap();
    shuffle(&layer);
    let (w, b) = (param(&layer, "weight"), param(&layer, "bias"));
    let affine = |xhat: &[f64]| -> Vec<f64> {
        xhat.iter().enumerate().map(|(i, v)| v * w[i / 3 % 4] + b[i / 3 % 4]).collect()
    };
    let (xhat, mean, var) = normalized(&host(&x), 1e-5, 8, |i| i / 3);
    close(&host(&layer.forward(&x).unwrap()), &affine(&xhat), 1e-12, "InstanceNormalization");
    for shape in [&[2usize, 4, 3][..], &[1, 4, 2, 2], &[1, 4, 2, 1, 2]] {
        gradcheck_layer("InstanceNormalization", &layer, &[tensor(&cpu(), shape, 2)], |t| {
            layer.forward(&t[0])
        });
    }
    let plain = InstanceNormalization::new(4).unwrap();
    assert!(state_names(&plain).is_empty());
    gradcheck_layer("InstanceNormalization, plain", &plain, from_ref(&x), |t| plain.forward(&t[0]));

    let tracking = InstanceNormalization::new(4).unwrap().running_stats(&cx, Some(0.1)).unwrap();
    close(&host(&tracking.forward(&x).unwrap()), &xhat, 1e-12, "in training");
    let over = |v: &[f64], f: f64| -> Vec<f64> { (0..4).map(|c| f * (v[c] + v[4 + c]) / 2.0).collect() };
    close(&param(&tracking, "running_mean"), &over(&mean, 0.1), 1e-12, "running mean");
    let want: Vec<f64> = over(&var, 0.1 * 3.0 / 2.0).iter().map(|v| 0.9 + v).collect();
    close(&param(&tracking, "running_var"), &want, 1e-12, "running variance");
    assert_eq!(state_names(&tracking), ["running_mean", "running_var", "num_batches_tracked"]);
    assert_eq!(
        tracking.state_dict().unwrap()["num_batches_tracked"].item::<i64>().unwrap(),
        0,
        "as in PyTorch"
    );
    tracking.eval();
    let (m, v) = (param(&tracking, "running_mean"), param(&tracking, "running_var"));
    let given: Vec<f64> =
        host(&x).iter().enumerate().map(|(i, x)| (x - m[i / 3 % 4]) / (v[i / 3 % 4] + 1e-5).sqrt()).collect();
    close(&host(&tracking.forward(&x).unwrap()), &given, 1e-12, "in evaluation");
    // Without a momentum the factor is 0, unlike that of batch normalization.
    let still = InstanceNormalization::new(4).unwrap().running_stats(&cx, None).unwrap();
    close(&host(&still.forward(&x).unwrap()), &xhat, 1e-12, "in training without momentum");
    assert_eq!((param(&still, "running_mean"), param(&still, "running_var")), (vec![0.0; 4], vec![1.0; 4]));
    assert_eq!(still.state_dict().unwrap()["num_batches_tracked"].item::<i64>().unwrap(), 0);
    refused(plain.forward(&tensor(&cpu(), &[2, 4], 1)), &["InstanceNormalization", "rank"]);
    refused(plain.forward(&tensor(&cpu(), &[2, 3, 3], 1)), &["InstanceNormalization", "4 channels"]);
    refused(plain.forward(&tensor(&cpu(), &[2, 4, 1], 1)), &["InstanceNormalization", "2 values"]);
    refused(InstanceNormalization::new(0), &["InstanceNormalization"]);

    let layer = GroupNormalization::new(&cx, 2, 4).unwrap();
    let mut state = layer.state_dict().unwrap();
    for (n, v) in [("weight", &w), ("bias", &b)] {
        state.insert(n.into(), Tensor::from_slice(&cpu(), v, &[4]).unwrap());
    }
    layer.load_state_dict(&state).unwrap();
    let (xhat, ..) = normalized(&host(&x), 1e-5, 4, |i| i / 6);
    close(&host(&layer.forward(&x).unwrap()), &affine(&xhat), 1e-12, "GroupNormalization");
    for shape in [&[2usize, 4][..], &[2, 4, 3], &[1, 4, 2, 2]] {
        gradcheck_layer("GroupNormalization", &layer, &[tensor(&cpu(), shape, 2)], |t| layer.forward(&t[0]));
    }
    assert_eq!(state_names(&layer), ["weight", "bias"]);
    round_trip(&layer, &GroupNormalization::new(&cx, 2, 4).unwrap(), &x);
    // Groups of one value: only the shift remains.
    let single = GroupNormalization::new(&cx, 4, 4).unwrap();
    assert_eq!(host(&single.forward(&tensor(&cpu(), &[2, 4], 1)).unwrap()), [0.0; 8]);
    refused(layer.forward(&tensor(&cpu(), &[2, 3, 4], 1)), &["GroupNormalization", "4 channels"]);
    refused(GroupNormalization::new(&cx, 3, 4), &["GroupNormalization", "groups"]);
    on_devices(
        "GroupNormalization",
        &[&[2, 6, 5]],
        |cx| GroupNormalization::new(cx, 3, 6),
        |l, t| l.forward(&t[0]),
    );
    on_devices(
        "InstanceNormalization",
        &[&[2, 6, 5]],
        |cx| InstanceNormalization::new(6)?.affine(cx)?.running_stats(cx, Some(0.1)),
        |l, t| l.forward(&t[0]),
    );
}

fn config() -> TransformerConfig {
    TransformerConfig::new(4, 2).d_ff(5).dropout(0.0).activation(Activation::Gelu)
}

/// A part of a block as a layer of its own, with the block's parameters.
fn part<L: Layer>(block: &dyn Layer, name: &str, layer: L) -> L {
    let all = block.state_dict().unwrap();
    let own = layer
        .state_dict()
        .unwrap()
        .into_keys()
        .map(|k| (k.clone(), all[&format!("{name}.{k}")].clone()))
        .collect();
    layer.load_state_dict(&own).unwrap();
    layer
}

#[test]
fn transformer_blocks_follow_the_definition() {
    let cx = f64s();
    let (x, memory) = (tensor(&cpu(), &[2, 3, 4], 1), tensor(&cpu(), &[2, 5, 4], 2));
    let (causal, none) = (AttentionMasks::new().causal(), AttentionMasks::new());
    for norm_first in [false, true] {
        let p = if norm_first { config().norm_first() } else { config() };
        let encoder = TransformerEncoder::new(&cx, &p).unwrap();
        let decoder = TransformerDecoder::new(&cx, &p).unwrap();
        shuffle(&encoder);
        shuffle(&decoder);
        for block in [&encoder as &dyn Layer, &decoder] {
            let norm = |n: &str| part(block, n, LayerNormalization::new(&cx, &[4]).unwrap());
            let heads = |n: &str| part(block, n, MultiHeadAttention::new(&cx, 4, 2).unwrap());
            let first = part(block, "linear1", Dense::new(&cx, 4, 5).unwrap());
            let second = part(block, "linear2", Dense::new(&cx, 5, 4).unwrap());
            let network = |t: &Tensor| second.forward(&first.forward(t).unwrap().gelu().unwrap()).unwrap();
            let attention = heads("self_attn");
            let itself = |t: &Tensor| attention.attend(t, t, t, &causal).unwrap();
            let is_decoder = state_names(block).contains(&"norm3.weight".to_string());
            let cross = is_decoder.then(|| heads("multihead_attn"));
            let look = |t: &Tensor| cross.as_ref().unwrap().attend(t, &memory, &memory, &none).unwrap();
            let mut parts: Vec<&dyn Fn(&Tensor) -> Tensor> = vec![&itself];
            if is_decoder {
                parts.push(&look);
            }
            parts.push(&network);
            let mut want = x.clone();
            for (i, f) in parts.into_iter().enumerate() {
                let n = norm(&format!("norm{}", i + 1));
                want = match norm_first {
                    true => want.add(&f(&n.forward(&want).unwrap())).unwrap(),
                    false => n.forward(&want.add(&f(&want)).unwrap()).unwrap(),
                };
            }
            let got = match is_decoder {
                true => decoder.decode(&x, &memory, &causal, &none).unwrap(),
                false => encoder.encode(&x, &causal).unwrap(),
            };
            close(&host(&got), &host(&want), 1e-11, "a block");
        }
        gradcheck_layer("TransformerEncoder", &encoder, from_ref(&x), |t| encoder.encode(&t[0], &causal));
        gradcheck_layer("TransformerDecoder", &decoder, &[x.clone(), memory.clone()], |t| {
            decoder.decode(&t[0], &t[1], &causal, &none)
        });
        let all = decoder.forward_all(&[x.clone(), memory.clone()]).unwrap();
        assert_eq!(host(&all[0]), host(&decoder.decode(&x, &memory, &causal, &none).unwrap()));
        let one = encoder.forward(&x.select(0, 1).unwrap()).unwrap();
        close(
            &host(&one),
            &host(&encoder.forward(&x).unwrap().select(0, 1).unwrap()),
            1e-12,
            "without a batch",
        );
    }
}

#[test]
fn transformer_names_modes_and_errors() {
    let cx = f64s();
    let x = tensor(&cpu(), &[2, 3, 4], 1);
    let names = |prefixes: &[&str]| -> Vec<String> {
        let mut all: Vec<String> = vec![];
        for p in prefixes {
            let own: &[&str] = match p.contains("attn") {
                true => &["in_proj_weight", "in_proj_bias", "out_proj.weight", "out_proj.bias"],
                false => &["weight", "bias"],
            };
            all.extend(own.iter().map(|n| format!("{p}.{n}")));
        }
        all
    };
    let encoder = TransformerEncoder::new(&cx, &config()).unwrap();
    assert_eq!(state_names(&encoder), names(&["self_attn", "linear1", "linear2", "norm1", "norm2"]));
    let decoder = TransformerDecoder::new(&cx, &config()).unwrap();
    let expected = names(&["self_attn", "multihead_attn", "linear1", "linear2", "norm1", "norm2", "norm3"]);
    assert_eq!(state_names(&decoder), expected);
    let bare = TransformerEncoder::new(&cx, &config().no_bias()).unwrap();
    assert!(state_names(&bare).iter().all(|n| !n.contains("bias")));

    let dropped = TransformerEncoder::new(&cx, &config().dropout(0.3)).unwrap();
    gradcheck_layer("TransformerEncoder with dropout", &dropped, from_ref(&x), |t| dropped.forward(&t[0]));
    assert_ne!(host(&dropped.forward(&x).unwrap()), host(&dropped.forward(&x).unwrap()));
    assert_eq!(dropped.counters().len(), 4, "four places of dropout");
    dropped.eval();
    assert_eq!(host(&dropped.forward(&x).unwrap()), host(&dropped.forward(&x).unwrap()));
    round_trip(&dropped, &TransformerEncoder::new(&cx, &config()).unwrap(), &x);

    refused(decoder.forward(&x), &["TransformerDecoder", "memory"]);
    refused(decoder.forward_all(from_ref(&x)), &["TransformerDecoder", "memory"]);
    let none = AttentionMasks::new();
    let narrow = tensor(&cpu(), &[2, 3, 3], 1);
    refused(decoder.decode(&x, &narrow, &none, &none), &["MultiHeadAttention", "key"]);
    refused(decoder.decode(&x, &x.narrow(0, 0, 1).unwrap(), &none, &none), &["MultiHeadAttention", "batch"]);
    refused(encoder.forward(&narrow), &["MultiHeadAttention", "query"]);
    refused(TransformerEncoder::new(&cx, &TransformerConfig::new(4, 3)), &["MultiHeadAttention", "nhead"]);
    refused(TransformerEncoder::new(&cx, &config().dropout(2.0)), &["dropout"]);
    for norm_first in [false, true] {
        let p = TransformerConfig::new(8, 2).d_ff(12).dropout(0.0);
        let p = if norm_first { p.norm_first() } else { p };
        on_devices(
            "TransformerDecoder",
            &[&[2, 4, 8], &[2, 3, 8]],
            |cx| TransformerDecoder::new(cx, &p),
            |l, t| l.decode(&t[0], &t[1], &AttentionMasks::new().causal(), &AttentionMasks::new()),
        );
    }
}

#[test]
fn sixteen_bit_data_has_statistics_in_f32() {
    for d in devices() {
        let cx = InitContext::new(&d, 1).dtype(DType::F16);
        let layer = BatchNormalization::new(&cx, 2).unwrap();
        let x = f32s(&d, &[1., 10., 2., 20., 3., 30., 6., 40.], &[4, 2]).to_dtype(DType::F16).unwrap();
        let y = layer.forward(&x).unwrap();
        assert_eq!(y.dtype(), DType::F16);
        let mean = layer.state_dict().unwrap()["running_mean"].to_vec::<f32>().unwrap();
        assert!((mean[0] - 0.3).abs() < 1e-6 && (mean[1] - 2.5).abs() < 1e-6, "{mean:?}");
        let y = y.to_dtype(DType::F32).unwrap().to_vec::<f32>().unwrap();
        let want = [-2.0f32, -15.0, -1.0, -5.0, 0.0, 5.0, 3.0, 15.0];
        for (i, (y, w)) in y.iter().zip(want).enumerate() {
            let std = if i % 2 == 0 { 3.5f32.sqrt() } else { 125f32.sqrt() };
            assert!((y - w / std).abs() < 2e-3, "{y} and {}", w / std);
        }
    }
}
