//! Attention: the operation and its layers.

use std::slice::from_ref;

use crate::common::layers::{f64s, gradcheck_layer, on_devices, param, refused, round_trip, state_names};
use crate::common::{close, cpu, devices, gradcheck, id, noise, tensor};
use trefoil::ops::attention::{Attention as Options, Causal, Rope, RopeLayout};
use trefoil::ops::random::Rng;
use trefoil_nn::layers::*;
use trefoil_nn::{DType, InitContext, Layer, LayerExt, Result, ScaledDotProductAttention, Tensor};

fn ids(v: &[i64], shape: &[usize]) -> Tensor {
    Tensor::from_slice(&cpu(), v, shape).unwrap()
}

fn mask(v: &[u8], shape: &[usize]) -> Tensor {
    Tensor::from_slice(&cpu(), v, shape).unwrap()
}

fn host(t: &Tensor) -> Vec<f64> {
    t.to_vec::<f64>().unwrap()
}

/// softmax(scale Q K^T + bias) V on the host, for `[B, H, L, D]` and keys with fewer heads.
fn attention_reference(
    [b, h, kv, lq, lk, d]: [usize; 6],
    q: &[f64],
    k: &[f64],
    v: &[f64],
    visible: impl Fn(usize, usize, usize, usize) -> bool,
    bias: impl Fn(usize, usize, usize, usize) -> f64,
) -> Vec<f64> {
    let mut o = vec![];
    for (n, a) in (0..b).flat_map(|n| (0..h).map(move |a| (n, a))) {
        let from = (n * kv + a / (h / kv)) * lk * d;
        for i in 0..lq {
            let row = &q[((n * h + a) * lq + i) * d..][..d];
            let e: Vec<f64> = (0..lk)
                .map(|j| {
                    let s: f64 = row.iter().zip(&k[from + j * d..]).map(|(x, y)| x * y).sum();
                    let s = s / (d as f64).sqrt() + bias(n, a, i, j);
                    if visible(n, a, i, j) { s.exp() } else { 0.0 }
                })
                .collect();
            let total: f64 = e.iter().sum();
            for c in 0..d {
                let sum: f64 = (0..lk).map(|j| e[j] * v[from + j * d + c]).sum();
                o.push(if total > 0.0 { sum / total } else { 0.0 });
            }
        }
    }
    o
}

#[test]
fn attention_follows_the_definition() {
    let (b, h, kv, lq, lk, d) = (2, 4, 2, 3, 5, 4);
    let (q, k, v) = (noise(1, b * h * lq * d), noise(2, b * kv * lk * d), noise(3, b * kv * lk * d));
    let bias = noise(4, h * lq * lk);
    let seen: Vec<u8> = (0..b * lk).map(|i| u8::from(i % 5 != 3)).collect();
    let want = attention_reference(
        [b, h, kv, lq, lk, d],
        &q,
        &k,
        &v,
        |n, _, i, j| j <= i && seen[n * lk + j] != 0,
        |_, a, i, j| bias[(a * lq + i) * lk + j],
    );
    let t = |v: &[f64], shape: &[usize]| Tensor::from_slice(&cpu(), v, shape).unwrap();
    let op = ScaledDotProductAttention {
        bias: Some(t(&bias, &[h, lq, lk])),
        mask: Some(mask(&seen, &[b, 1, 1, lk])),
        ..ScaledDotProductAttention::with(Options::new().causal(Causal::TopLeft))
    };
    let (q, k, v) = (t(&q, &[b, h, lq, d]), t(&k, &[b, kv, lk, d]), t(&v, &[b, kv, lk, d]));
    close(&host(&op.forward(&q, &k, &v).unwrap()), &want, 1e-12, "attention");
    // Other layouts hold the same numbers.
    let turned = |x: &Tensor| x.transpose(1, 2).unwrap().contiguous().unwrap().transpose(1, 2).unwrap();
    let o = op.forward(&turned(&q), &turned(&k), &turned(&v)).unwrap();
    close(&host(&o), &want, 1e-12, "attention of [B, L, H, D]");
    assert!(o.transpose(1, 2).unwrap().is_contiguous(), "heads merge without a copy");
    let (_, p) = op.forward_with_weights(&q, &k, &v).unwrap();
    close(&host(&p.sum_axes(&[3], false).unwrap()), &vec![1.0; b * h * lq], 1e-12, "sums of the weights");

    let shapes: [&[usize]; 4] = [&[b, h, lq, d], &[b, kv, lk, d], &[b, kv, lk, d], &[h, lq, lk]];
    gradcheck(
        "attention",
        &shapes,
        |x| x,
        |t| ScaledDotProductAttention { bias: Some(t[3].clone()), ..op.clone() }.forward(&t[0], &t[1], &t[2]),
    );
    gradcheck(
        "attention of one tensor",
        &[&[1, 2, 3, 4]],
        |x| x,
        |t| ScaledDotProductAttention::new().forward(&t[0], &t[0], &t[0]),
    );
    gradcheck(
        "attention over a repeated context",
        &[&[2, 2, 3, 2], &[1, 2, 4, 2]],
        |x| x,
        |t| {
            let c = t[1].expand(&[2, 2, 4, 2])?;
            ScaledDotProductAttention::new().forward(&t[0], &c, &c)
        },
    );
    gradcheck(
        "attention with dropout",
        &[&[1, 2, 3, 4], &[1, 2, 3, 4]],
        |x| x,
        |t| {
            let op = ScaledDotProductAttention::with(Options::new().dropout(0.3, Rng::new(3).at(1, 2)));
            op.forward(&t[0], &t[1], &t[1])
        },
    );
    let lengths = Tensor::from_slice(&cpu(), &[2i32, 4], &[2]).unwrap();
    let short = ScaledDotProductAttention { key_lengths: Some(lengths), ..Default::default() };
    gradcheck(
        "attention with lengths",
        &[&[2, 2, 3, 2], &[2, 2, 5, 2]],
        |x| x,
        |t| short.forward(&t[0], &t[1].narrow(2, 0, 4)?, &t[1].narrow(2, 1, 4)?),
    );
    // Packed sequences of 2 and 3 tokens attend within themselves.
    let at = Tensor::from_slice(&cpu(), &[0i32, 2, 5], &[3]).unwrap();
    let packed = ScaledDotProductAttention { sequences: Some([at.clone(), at]), ..Default::default() };
    // Queries, keys and values side by side in one tensor, with a bias, added to by a second use.
    gradcheck(
        "attention of a packed tensor",
        &[&[2, 3, 12], &[3, 3]],
        |x| x,
        |t| {
            let x = t[0].mul_scalar(1.5)?;
            let op =
                ScaledDotProductAttention { bias: Some(t[1].clone()), ..ScaledDotProductAttention::new() };
            x.mean_axes(&[2], true)?.add(&op.forward_packed(&x, 2)?.merge_heads()?)
        },
    );
    gradcheck("packed attention", &[&[1, 2, 5, 4]], |x| x, |t| packed.forward(&t[0], &t[0], &t[0]));
    let x = tensor(&cpu(), &[1, 2, 5, 4], 6);
    let part = |from, n| {
        let p = x.narrow(2, from, n).unwrap();
        ScaledDotProductAttention::new().forward(&p, &p, &p).unwrap()
    };
    let want = Tensor::concat(2, &[&part(0, 2), &part(2, 3)]).unwrap();
    close(&host(&packed.forward(&x, &x, &x).unwrap()), &host(&want), 1e-12, "packed attention");
    refused(op.forward(&q, &q.narrow(3, 0, 2).unwrap(), &v), &["attention"]);
}

#[test]
fn a_packed_tensor_is_the_same_as_its_parts() {
    for options in [Options::new(), Options::new().causal(Causal::TopLeft)] {
        let x = tensor(&cpu(), &[2, 5, 24], 4);
        let op = ScaledDotProductAttention::with(options);
        let (one, apart) = (x.with_grad(), x.with_grad());
        let parts = apart.split_heads(3, 2).unwrap();
        let want = op.forward(&parts[0], &parts[1], &parts[2]).unwrap();
        let got = op.forward_packed(&one, 2).unwrap();
        assert_eq!(host(&got), host(&want));
        let weights = tensor(&cpu(), got.shape(), 5);
        got.backward_with(&weights).unwrap();
        want.backward_with(&weights).unwrap();
        assert_eq!(host(&one.grad().unwrap()), host(&apart.grad().unwrap()));
    }
    let op = ScaledDotProductAttention::new();
    refused(op.forward_packed(&tensor(&cpu(), &[2, 5, 8], 1), 2), &["split_heads", "6 divides"]);
    refused(op.forward_packed(&tensor(&cpu(), &[5, 12], 1), 2), &["split_heads", "[B, L, n H D]"]);
}

#[test]
fn attention_layer() {
    let cx = f64s();
    let layer = Attention::with_bias(&cx, 4, 3, 5).unwrap();
    let (q, c) = (tensor(&cpu(), &[2, 3, 4], 1), tensor(&cpu(), &[2, 2, 5], 2));
    let blocked = mask(&[0, 1, 0, 0, 1, 0], &[3, 2]);
    let masks = AttentionMasks::new().attn_mask(blocked.clone());
    gradcheck_layer("Attention", &layer, &[q.clone(), c.clone()], |t| {
        layer.attend(&t[0], Some(&t[1]), &masks)
    });
    let itself = Attention::new(&cx, 4, 3).unwrap();
    gradcheck_layer("Attention to itself", &itself, from_ref(&q), |t| itself.forward(&t[0]));
    // By hand.
    let head = |n: &str, x: &Tensor| {
        let w = Tensor::from_slice(&cpu(), &param(&itself, n), &[3, 4]).unwrap();
        x.matmul(&w.transpose(0, 1).unwrap()).unwrap()
    };
    let (a, b, v) = (head("q_proj.weight", &q), head("k_proj.weight", &q), head("v_proj.weight", &q));
    let p = a
        .matmul(&b.transpose(1, 2).unwrap())
        .unwrap()
        .mul_scalar(1.0 / 3f64.sqrt())
        .unwrap()
        .softmax(-1)
        .unwrap();
    let w = Tensor::from_slice(&cpu(), &param(&itself, "out_proj.weight"), &[4, 3]).unwrap();
    let want = p.matmul(&v).unwrap().matmul(&w.transpose(0, 1).unwrap()).unwrap();
    close(&host(&itself.forward(&q).unwrap()), &host(&want), 1e-12, "Attention");
    let one = itself.forward(&q.select(0, 1).unwrap()).unwrap();
    close(&host(&one), &host(&want.select(0, 1).unwrap()), 1e-12, "without a batch");
    assert_eq!(state_names(&itself), ["q_proj.weight", "k_proj.weight", "v_proj.weight", "out_proj.weight"]);
    refused(layer.forward(&q), &["Attention", "context", "5"]);
    refused(layer.attend(&q, Some(&c.narrow(0, 0, 1).unwrap()), &masks), &["Attention", "batch"]);
    refused(itself.attend(&q, None, &masks), &["Attention", "attn_mask"]);
    refused(
        itself.attend(&q, Some(&q.narrow(1, 0, 0).unwrap()), &AttentionMasks::new()),
        &["Attention", "step"],
    );
    refused(Attention::new(&cx, 4, 0), &["Attention"]);
    refused(Attention::new(&cx, 4, 3).unwrap().dropout(1.0), &["Attention", "dropout"]);
    round_trip(&itself, &Attention::new(&cx, 4, 3).unwrap(), &q);
    on_devices("Attention", &[&[2, 3, 4]], |cx| Attention::new(cx, 4, 3), |l, t| l.forward(&t[0]));
}

/// Multi-head attention from its parameters, on the host.
fn mha_reference(
    layer: &dyn Layer,
    [b, e, h]: [usize; 3],
    [q, k, v]: [&Tensor; 3],
    visible: impl Fn(usize, usize, usize, usize) -> bool,
    bias: impl Fn(usize, usize, usize, usize) -> f64,
) -> Vec<f64> {
    let (w, c) = (param(layer, "in_proj_weight"), param(layer, "in_proj_bias"));
    let d = e / h;
    let project = |x: &Tensor, part: usize| -> Vec<f64> {
        let (l, x) = (x.shape()[1], host(x));
        let mut out = vec![0.0; b * e * l];
        for (n, t, o) in (0..b).flat_map(|n| (0..l).flat_map(move |t| (0..e).map(move |o| (n, t, o)))) {
            let row = part * e + o;
            let sum: f64 = (0..e).map(|i| x[(n * l + t) * e + i] * w[row * e + i]).sum();
            out[((n * h + o / d) * l + t) * d + o % d] = sum + c[row];
        }
        out
    };
    let (lq, lk) = (q.shape()[1], k.shape()[1]);
    let o = attention_reference(
        [b, h, h, lq, lk, d],
        &project(q, 0),
        &project(k, 1),
        &project(v, 2),
        visible,
        bias,
    );
    let (w, c) = (param(layer, "out_proj.weight"), param(layer, "out_proj.bias"));
    let mut y = vec![];
    for (n, t, r) in (0..b).flat_map(|n| (0..lq).flat_map(move |t| (0..e).map(move |r| (n, t, r)))) {
        let at = |i: usize| o[((n * h + i / d) * lq + t) * d + i % d];
        y.push((0..e).map(|i| at(i) * w[r * e + i]).sum::<f64>() + c[r]);
    }
    y
}

#[test]
fn multi_head_attention_follows_the_definition() {
    let cx = f64s();
    let layer = MultiHeadAttention::new(&cx, 6, 2).unwrap();
    // Biases start as zeros, which would hide a mistake.
    for n in ["in_proj_bias", "out_proj.bias"] {
        assert!(param(&layer, n).iter().all(|&x| x == 0.0));
    }
    let mut state = layer.state_dict().unwrap();
    state.insert("in_proj_bias".into(), tensor(&cpu(), &[18], 5));
    state.insert("out_proj.bias".into(), tensor(&cpu(), &[6], 6));
    layer.load_state_dict(&state).unwrap();

    let (q, k, v) =
        (tensor(&cpu(), &[2, 3, 6], 1), tensor(&cpu(), &[2, 4, 6], 2), tensor(&cpu(), &[2, 4, 6], 3));
    let pad = [0u8, 0, 0, 1, 0, 1, 0, 0];
    let float = noise(9, 12);
    let masks = AttentionMasks::new()
        .causal()
        .key_padding_mask(mask(&pad, &[2, 4]))
        .attn_mask(Tensor::from_slice(&cpu(), &float, &[3, 4]).unwrap());
    let want = mha_reference(
        &layer,
        [2, 6, 2],
        [&q, &k, &v],
        |n, _, i, j| j <= i && pad[n * 4 + j] == 0,
        |_, _, i, j| float[i * 4 + j],
    );
    close(&host(&layer.attend(&q, &k, &v, &masks).unwrap()), &want, 1e-12, "MultiHeadAttention");
    let none = AttentionMasks::new();
    let want = mha_reference(&layer, [2, 6, 2], [&q, &q, &q], |_, _, _, _| true, |_, _, _, _| 0.0);
    close(&host(&layer.forward(&q).unwrap()), &want, 1e-12, "of one tensor");
    let want = mha_reference(&layer, [2, 6, 2], [&q, &k, &k], |_, _, _, _| true, |_, _, _, _| 0.0);
    close(&host(&layer.attend(&q, &k, &k, &none).unwrap()), &want, 1e-12, "of two tensors");
    let all = layer.forward_all(&[q.clone(), k.clone()]).unwrap();
    close(&host(&all[0]), &want, 1e-12, "as a graph's node");
    // A row that sees nothing gives the output bias.
    let blind = AttentionMasks::new().attn_mask(mask(&[1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0], &[3, 4]));
    let y = layer.attend(&q, &k, &v, &blind).unwrap().select(1, 0).unwrap();
    close(&host(&y.select(0, 1).unwrap()), &param(&layer, "out_proj.bias"), 1e-12, "a blind row");
    let (_, p) = layer.attend_with_weights(&q, &k, &v, &masks).unwrap();
    assert_eq!(p.shape(), [2, 3, 4]);
    close(&host(&p.sum_axes(&[2], false).unwrap())[..3], &[1.0; 3], 1e-12, "weights");
    let one = layer.forward(&q.select(0, 1).unwrap()).unwrap();
    close(&host(&one), &host(&layer.forward(&q).unwrap().select(0, 1).unwrap()), 1e-12, "without a batch");

    // Slopes of ALiBi: 2^-4, 2^-8 for two heads.
    let alibi = MultiHeadAttention::new(&cx, 6, 2).unwrap().alibi();
    let want = mha_reference(
        &alibi,
        [2, 6, 2],
        [&q, &k, &k],
        |_, _, _, _| true,
        |_, a, i, j| -2f64.powi(-4 * (a as i32 + 1)) * (i as f64 - j as f64).abs(),
    );
    close(&host(&alibi.attend(&q, &k, &k, &none).unwrap()), &want, 1e-12, "ALiBi");
    // For three heads: those of two, then the first of four, 2^-2.
    let alibi = MultiHeadAttention::new(&cx, 6, 3).unwrap().alibi();
    let slopes = [2f64.powi(-4), 2f64.powi(-8), 2f64.powi(-2)];
    let want = mha_reference(
        &alibi,
        [2, 6, 3],
        [&q, &k, &k],
        |_, _, _, _| true,
        |_, a, i, j| -slopes[a] * (i as f64 - j as f64).abs(),
    );
    close(&host(&alibi.attend(&q, &k, &k, &none).unwrap()), &want, 1e-12, "ALiBi of three heads");
}

#[test]
fn multi_head_attention_gradients_names_and_errors() {
    let cx = f64s();
    let (q, k, v) =
        (tensor(&cpu(), &[2, 3, 4], 1), tensor(&cpu(), &[2, 2, 4], 2), tensor(&cpu(), &[2, 2, 4], 3));
    let none = AttentionMasks::new();
    let layer = MultiHeadAttention::new(&cx, 4, 2).unwrap().dropout(0.2).unwrap();
    gradcheck_layer("MHA of one tensor", &layer, from_ref(&q), |t| layer.forward(&t[0]));
    gradcheck_layer("MHA of two", &layer, &[q.clone(), k.clone()], |t| {
        layer.attend(&t[0], &t[1], &t[1], &none)
    });
    gradcheck_layer("MHA of three", &layer, &[q.clone(), k.clone(), v.clone()], |t| {
        layer.attend(&t[0], &t[1], &t[2], &none)
    });
    let add = tensor(&cpu(), &[3, 2], 4);
    gradcheck_layer("MHA with a float mask", &layer, &[q.clone(), k.clone(), add], |t| {
        layer.attend(&t[0], &t[1], &t[1], &AttentionMasks::new().attn_mask(t[2].clone()))
    });
    let turned = MultiHeadAttention::new(&cx, 4, 2).unwrap().rope(10_000.0).unwrap().alibi().no_bias();
    gradcheck_layer("MHA with rotary positions", &turned, from_ref(&q), |t| turned.forward(&t[0]));
    let wide = MultiHeadAttention::new(&cx, 4, 2).unwrap().key_value_dims(3, 5).unwrap();
    let (k3, v5) = (tensor(&cpu(), &[2, 2, 3], 5), tensor(&cpu(), &[2, 2, 5], 6));
    gradcheck_layer("MHA of other widths", &wide, &[q.clone(), k3.clone(), v5.clone()], |t| {
        wide.attend(&t[0], &t[1], &t[2], &none)
    });

    assert_eq!(state_names(&layer), ["in_proj_weight", "in_proj_bias", "out_proj.weight", "out_proj.bias"]);
    assert_eq!(
        state_names(&wide),
        [
            "q_proj_weight",
            "k_proj_weight",
            "v_proj_weight",
            "in_proj_bias",
            "out_proj.weight",
            "out_proj.bias"
        ]
    );
    assert_eq!(state_names(&turned), ["in_proj_weight", "out_proj.weight"]);
    let bound = (6.0f64 / 16.0).sqrt();
    let w = param(&layer, "in_proj_weight");
    assert!(w.iter().all(|x| x.abs() <= bound) && w.iter().any(|x| x.abs() > 0.8 * bound));
    assert!(param(&layer, "out_proj.weight").iter().all(|x| x.abs() <= 0.5));

    // Dropout only in training.
    assert_ne!(host(&layer.forward(&q).unwrap()), host(&layer.forward(&q).unwrap()));
    layer.eval();
    assert_eq!(host(&layer.forward(&q).unwrap()), host(&layer.forward(&q).unwrap()));
    round_trip(
        &turned,
        &MultiHeadAttention::new(&cx, 4, 2).unwrap().rope(10_000.0).unwrap().alibi().no_bias(),
        &q,
    );

    refused(MultiHeadAttention::new(&cx, 6, 4), &["MultiHeadAttention", "num_heads"]);
    refused(MultiHeadAttention::new(&cx, 6, 2).unwrap().rope(1e4), &["MultiHeadAttention", "rope", "3"]);
    refused(MultiHeadAttention::new(&cx, 6, 2).unwrap().dropout(-0.1), &["MultiHeadAttention", "dropout"]);
    refused(layer.forward(&k3), &["MultiHeadAttention", "query", "4"]);
    refused(layer.attend(&q, &k, &v.narrow(1, 0, 1).unwrap(), &none), &["MultiHeadAttention", "value"]);
    let bad = AttentionMasks::new().key_padding_mask(mask(&[0; 6], &[2, 3]));
    refused(layer.attend(&q, &k, &v, &bad), &["MultiHeadAttention", "key_padding_mask"]);
    let bad = AttentionMasks::new().attn_mask(ids(&[0; 6], &[3, 2]));
    refused(layer.attend(&q, &k, &v, &bad), &["MultiHeadAttention", "attn_mask", "i64"]);
    on_devices(
        "MultiHeadAttention",
        &[&[2, 5, 8], &[2, 3, 8]],
        |cx| MultiHeadAttention::new(cx, 8, 2)?.rope(10_000.0).map(|l| l.alibi()),
        |l, t| l.attend(&t[0], &t[1], &t[1], &AttentionMasks::new().causal()),
    );
}

#[test]
fn rotary_positions_follow_the_definition() {
    let p = Rope::new().layout(RopeLayout::Interleaved).base(100.0);
    let x = tensor(&cpu(), &[1, 3, 1, 4], 1);
    let v = host(&x);
    let want: Vec<f64> = (0..6)
        .flat_map(|k| {
            let angle = (k / 2) as f64 * 100f64.powf(-((k % 2) as f64) / 2.0);
            let (a, b) = (v[2 * k], v[2 * k + 1]);
            [a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()]
        })
        .collect();
    close(&host(&x.rope(&p, None).unwrap()), &want, 1e-12, "rope");

    let layer = MultiHeadAttention::new(&f64s(), 4, 1).unwrap().rope(100.0).unwrap();
    let x = x.reshape(&[1, 3, 4]).unwrap();
    let w = Tensor::from_slice(&cpu(), &param(&layer, "in_proj_weight"), &[12, 4]).unwrap();
    let z = x.matmul(&w.transpose(0, 1).unwrap()).unwrap().split(2, &[4; 3]).unwrap();
    let turned = |t: &Tensor| t.unsqueeze(2).unwrap().rope(&p, None).unwrap().squeeze(2).unwrap();
    let scores = turned(&z[0]).matmul(&turned(&z[1]).transpose(1, 2).unwrap()).unwrap();
    let o = scores.mul_scalar(0.5).unwrap().softmax(-1).unwrap().matmul(&z[2]).unwrap();
    let w = Tensor::from_slice(&cpu(), &param(&layer, "out_proj.weight"), &[4, 4]).unwrap();
    let want = o.matmul(&w.transpose(0, 1).unwrap()).unwrap();
    close(&host(&layer.forward(&x).unwrap()), &host(&want), 1e-12, "rotary attention");
}

#[test]
fn self_and_cross_attention() {
    let cx = f64s();
    let x = tensor(&cpu(), &[2, 3, 4], 1);
    let bare = SelfAttention::new(&cx, 4, 2).unwrap().no_out_proj().unwrap();
    gradcheck_layer("SelfAttention", &bare, from_ref(&x), |t| {
        bare.attend(&t[0], &AttentionMasks::new().causal())
    });
    assert_eq!(state_names(&bare), ["in_proj_weight", "in_proj_bias", "out_proj.bias"]);
    let whole = SelfAttention::new(&cx, 4, 2).unwrap();
    let mha = MultiHeadAttention::new(&cx, 4, 2).unwrap();
    mha.load_state_dict(&whole.state_dict().unwrap()).unwrap();
    assert_eq!(host(&whole.forward(&x).unwrap()), host(&mha.forward(&x).unwrap()));
    refused(whole.forward(&x.narrow(1, 0, 0).unwrap()), &["MultiHeadAttention", "step"]);

    let layer = CrossAttention::new(&cx, 4, 5, 2).unwrap();
    let c = tensor(&cpu(), &[2, 2, 5], 2);
    let none = AttentionMasks::new();
    gradcheck_layer("CrossAttention", &layer, &[x.clone(), c.clone()], |t| {
        layer.attend(&t[0], Some(&t[1]), &none)
    });
    let one = tensor(&cpu(), &[1, 2, 5], 3);
    gradcheck_layer("CrossAttention over one context", &layer, &[x.clone(), one.clone()], |t| {
        layer.attend(&t[0], Some(&t[1]), &none)
    });
    let map = tensor(&cpu(), &[2, 4, 2, 3], 4);
    gradcheck_layer("CrossAttention of a map", &layer, &[map.clone(), c.clone()], |t| {
        layer.attend(&t[0], Some(&t[1]), &none)
    });
    let tokens = map.flatten(2, 3).unwrap().transpose(1, 2).unwrap();
    let want = layer.attend(&tokens, Some(&c), &none).unwrap().transpose(1, 2).unwrap();
    let got = layer.attend(&map, Some(&c), &none).unwrap();
    assert_eq!(got.shape(), [2, 4, 2, 3]);
    close(&host(&got), &host(&want), 1e-12, "a map's pixels are tokens");
    // With its weights, multi-head attention gives the same.
    let mha = MultiHeadAttention::new(&cx, 4, 2).unwrap().key_value_dims(5, 5).unwrap();
    let mut state = mha.state_dict().unwrap();
    for (a, b) in [
        ("to_q", "q_proj_weight"),
        ("to_k", "k_proj_weight"),
        ("to_v", "v_proj_weight"),
        ("to_out", "out_proj.weight"),
    ] {
        state.insert(b.into(), layer.state_dict().unwrap()[&format!("{a}.weight")].clone());
    }
    state.insert("out_proj.bias".into(), layer.state_dict().unwrap()["to_out.bias"].clone());
    mha.load_state_dict(&state).unwrap();
    close(
        &host(&layer.attend(&x, Some(&c), &none).unwrap()),
        &host(&mha.attend(&x, &c, &c, &none).unwrap()),
        1e-12,
        "CrossAttention and MultiHeadAttention",
    );
    assert_eq!(
        state_names(&layer),
        ["to_q.weight", "to_k.weight", "to_v.weight", "to_out.weight", "to_out.bias"]
    );
    let zero = CrossAttention::new(&cx, 4, 4, 2).unwrap().zero_init_out().unwrap();
    assert!(host(&zero.forward(&x).unwrap()).iter().all(|&v| v == 0.0));
    refused(layer.forward(&x), &["CrossAttention", "context"]);
    refused(CrossAttention::new(&cx, 4, 5, 3), &["CrossAttention", "num_heads"]);
    refused(layer.attend(&x, Some(&tensor(&cpu(), &[3, 2, 5], 1)), &none), &["CrossAttention", "batch"]);
    refused(
        layer.attend(&tensor(&cpu(), &[2, 5, 2, 3], 1), Some(&c), &none),
        &["CrossAttention", "4 channels"],
    );
    on_devices(
        "CrossAttention",
        &[&[2, 4, 2, 3], &[1, 5, 6]],
        |cx| CrossAttention::new(cx, 4, 6, 2),
        |l, t| l.attend(&t[0], Some(&t[1]), &AttentionMasks::new()),
    );
}

/// Equal scores and the unit matrix as values: an output is 1 / (keys (1 - p)) where its weight is kept, 0 where it is dropped.
#[test]
fn dropped_weights_are_a_share_p_and_those_of_the_gradient() {
    let (p, keys) = (0.3, 32usize);
    for d in devices() {
        let zeros = Tensor::zeros(&d, DType::F32, &[4, 2, keys, keys]).unwrap();
        let values = Tensor::eye(&d, DType::F32, keys).unwrap().expand(&[4, 2, keys, keys]).unwrap();
        let values = values.contiguous().unwrap().with_grad();
        let op = ScaledDotProductAttention::with(Options::new().dropout(p, Rng::new(5).at(1, 7)));
        let y = op.forward(&zeros, &zeros, &values).unwrap();
        let kept = 1.0 / (keys as f32 * (1.0 - p as f32));
        let mask = y.to_vec::<f32>().unwrap();
        assert!(mask.iter().all(|&w| w == 0.0 || (w - kept).abs() < 1e-6 * kept), "{}", id(&d));
        let dropped = mask.iter().filter(|&&w| w == 0.0).count() as f64 / mask.len() as f64;
        let deviation = (p * (1.0 - p) / mask.len() as f64).sqrt();
        assert!((dropped - p).abs() < 4.0 * deviation, "{}: {dropped} dropped", id(&d));
        // The gradient of value j is the sum of the weights that saw it.
        y.sum().unwrap().backward().unwrap();
        let got = values.grad().unwrap().to_vec::<f32>().unwrap();
        let want = y.sum_axes(&[2], false).unwrap().to_vec::<f32>().unwrap();
        let each = want.iter().flat_map(|w| std::iter::repeat_n(f64::from(*w), keys)).collect::<Vec<_>>();
        close(&got.iter().map(|g| f64::from(*g)).collect::<Vec<_>>(), &each, 1e-5, "gradient of the values");
    }
}

/// Outputs are linear in the weights of which dropout leaves a share, so that their mean over many draws is the output without dropout. A pass
/// backward, and one that computes everything again, has the weights of its forward.
#[test]
fn layers_drop_weights_in_training_and_keep_their_draws() {
    let cx = f64s();
    let x = tensor(&cpu(), &[2, 5, 8], 1);
    type Make = fn(&InitContext) -> Result<Box<dyn Layer>>;
    let all: [(&str, Make); 4] = [
        ("Attention", |cx| Ok(Box::new(Attention::new(cx, 8, 6)?.dropout(0.3)?))),
        ("MultiHeadAttention", |cx| Ok(Box::new(MultiHeadAttention::new(cx, 8, 2)?.dropout(0.3)?))),
        ("SelfAttention", |cx| Ok(Box::new(SelfAttention::new(cx, 8, 2)?.dropout(0.3)?))),
        ("CrossAttention", |cx| Ok(Box::new(CrossAttention::new(cx, 8, 8, 2)?.dropout(0.3)?))),
    ];
    for (what, make) in all {
        let l = make(&cx).unwrap();
        let small = x.narrow(1, 0, 3).unwrap();
        gradcheck_layer(what, &*l, from_ref(&small), |t| l.forward(&t[0]));

        l.eval();
        let want = host(&l.forward(&x).unwrap());
        assert_eq!(host(&l.forward(&x).unwrap()), want, "{what}: no dropout outside of training");
        l.train();
        let start = l.counters();
        let first = host(&l.forward(&x).unwrap());
        assert_ne!(host(&l.forward(&x).unwrap()), first, "{what}: the next draws are others");
        l.set_counters(&start).unwrap();
        assert_eq!(host(&l.forward(&x).unwrap()), first, "{what}: the draws of the same counters");

        let draws = 400;
        let (mut sum, mut squares) = (vec![0.0; want.len()], vec![0.0; want.len()]);
        for _ in 0..draws {
            for (i, y) in host(&l.forward(&x).unwrap()).into_iter().enumerate() {
                (sum[i], squares[i]) = (sum[i] + y, squares[i] + y * y);
            }
        }
        let n = f64::from(draws);
        for (i, want) in want.iter().enumerate() {
            let mean = sum[i] / n;
            let deviation = ((squares[i] / n - mean * mean) / n).sqrt();
            assert!((mean - want).abs() < 5.0 * deviation, "{what}: element {i} is {mean}, without {want}");
        }

        // Checkpointed, both passes forward draw the same.
        let gradients = |l: &dyn Layer| {
            l.set_counters(&start).unwrap();
            l.zero_grad().unwrap();
            let leaf = x.with_grad();
            l.forward(&leaf).unwrap().square().unwrap().sum().unwrap().backward().unwrap();
            let own = l.named_parameters().into_iter().map(|(_, p)| p.get().grad().unwrap());
            own.chain([leaf.grad().unwrap()]).map(|g| host(&g)).collect::<Vec<_>>()
        };
        let want = gradients(&*l);
        assert_eq!(gradients(&Checkpointed::new(l)), want, "{what}: checkpointed");
    }
}
