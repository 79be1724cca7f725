//! The second half of the parity table of `volta.rs`: modules, optimizers, losses, data, files.
//!
//! Rows that do not apply: Muon (the library has no such rule); the algorithms of convolutions (chosen by the library, tested there). Rows
//! tested elsewhere as well: safetensors of all dtypes (`files.rs`), readers, transforms and prefetching (`data.rs`), further cases of every
//! layer (`layers*.rs`), loss (`losses.rs`) and optimizer (`optim.rs`), example programs (`examples/`).

use std::sync::Arc;

use crate::common::everywhere::{everywhere, resident, transfers, values};
use crate::common::layers::{f64s, gradcheck_layer, param, refused, state_names};
use crate::common::{close, cpu, devices, f32s, id, noise, tensor};
use trefoil::ops::activation::Activation;
use trefoil::ops::attention::{Attention, Causal};
use trefoil::ops::conv::Conv;
use trefoil::ops::optimizer::OptimRule;
use trefoil::ops::pool::Window;
use trefoil::{DType, Registry, Selector};
use trefoil_nn::data::{Dataset, Order, ResidentSource, Source, Targets};
use trefoil_nn::layers::*;
use trefoil_nn::losses::{BceLoss, BceWithLogitsLoss, GaussianKlLoss, NllLoss, Reduction};
use trefoil_nn::{
    CrossEntropyLoss, Device, HostTensor, InitContext, Layer, LayerExt, MseLoss, NnError, Optimizer, Param,
    Result, RnnState, ScaledDotProductAttention, StateDict, StateMap, Tensor, Visitor, volta,
};

fn each(f: impl Fn(&Device)) {
    devices().iter().for_each(f);
}

fn same(x: f64) -> f64 {
    x
}

fn host(t: &Tensor) -> Vec<f32> {
    t.to_vec().unwrap()
}

/// A tensor of noise on any device.
fn random(d: &Device, shape: &[usize], seed: u64) -> Tensor {
    f32s(d, &noise(seed, shape.iter().product()).iter().map(|&x| x as f32).collect::<Vec<_>>(), shape)
}

/// A state file as bincode writes it: numbers below 251 in one byte, else behind a tag.
fn volta_file(tensors: &[(&str, &[usize], &[f32])]) -> Vec<u8> {
    fn number(out: &mut Vec<u8>, n: usize) {
        match n {
            0..=250 => out.push(n as u8),
            251..=0xffff => out.extend([&[251u8][..], &(n as u16).to_le_bytes()].concat()),
            _ => out.extend([&[252u8][..], &(n as u32).to_le_bytes()].concat()),
        }
    }
    let mut out = vec![];
    number(&mut out, tensors.len());
    for (name, shape, data) in tensors {
        number(&mut out, name.len());
        out.extend(name.as_bytes());
        number(&mut out, data.len());
        data.iter().for_each(|x| out.extend(x.to_le_bytes()));
        number(&mut out, shape.len());
        shape.iter().for_each(|&s| number(&mut out, s));
    }
    out
}

fn temporary(name: &str, bytes: &[u8]) -> std::path::PathBuf {
    let path = std::env::temp_dir().join(format!("trefoil-{}-{name}", std::process::id()));
    std::fs::write(&path, bytes).unwrap();
    path
}

#[test]
fn linear_from_a_state_file() {
    // y = x W + b with W [in, out], as Volta keeps it; one row is long enough for a tagged length.
    let (w, b) = ([1f32, 2., 3., 4., 5., 6.], [0.5f32, -0.5, 0.0]);
    let wide = vec![0.25f32; 300];
    let file = volta_file(&[("0.bias", &[3], &b), ("0.weight", &[2, 3], &w), ("1.weight", &[3, 100], &wide)]);
    let path = temporary("linear.bin", &file);
    each(|d| {
        let state = volta::read_state(&path, d).unwrap();
        assert_eq!((state["1.weight"].shape(), host(&state["1.weight"])), (&[3, 100][..], wide.clone()));
        let ours = StateMap::new().exclude("1.*").transpose_matching("*.weight").apply(&state).unwrap();
        let model = Sequential::new().push(Dense::new(&InitContext::new(d, 1), 2, 3).unwrap());
        model.load_state_dict(&ours).unwrap();
        for shape in [&[2][..], &[2, 2], &[3, 2, 2]] {
            let x = random(d, shape, 1).with_grad();
            let y = resident("Dense", d, || {
                let y = model.forward(&x).unwrap();
                y.backward_with(&y.ones_like().unwrap()).unwrap();
                y
            });
            let rows = host(&x);
            let want: Vec<f64> = rows
                .chunks(2)
                .flat_map(|r| {
                    (0..3).map(|o| f64::from(r[0] * w[o] + r[1] * w[3 + o] + b[o])).collect::<Vec<_>>()
                })
                .collect();
            close(&values(&y), &want, 1e-6, &format!("{shape:?} on {}", id(d)));
        }
    });
    let cut = temporary("cut.bin", &file[..20]);
    let broken = [&file[..], b"x"].concat();
    let long = temporary("long.bin", &broken);
    let mut shape = volta_file(&[("a", &[2], &[1.0])]);
    let wrong = temporary("wrong.bin", &shape);
    shape[1] = 255;
    let tag = temporary("tag.bin", &shape);
    for (path, words) in [(&cut, "to the end"), (&long, "1 more bytes"), (&wrong, "[2]"), (&tag, "tag 255")] {
        let e = volta::read_state(path, &cpu()).unwrap_err();
        assert!(matches!(e, NnError::Data { .. }) && e.to_string().contains(words), "{e}");
    }
    assert!(matches!(volta::read_state("/nowhere/at.all", &cpu()), Err(NnError::Io { .. })));
    for p in [path, cut, long, wrong, tag] {
        std::fs::remove_file(p).unwrap();
    }
}

#[test]
fn parameters_are_made_on_the_device() {
    each(|d| {
        let before = transfers(d);
        let cx = InitContext::new(d, 1);
        let parts = (Dense::new(&cx, 64, 32).unwrap(), Convolutional::new(&cx, 3, 8, 3).unwrap());
        assert_eq!(transfers(d), before, "{}", id(d));
        assert!(parts.0.num_parameters() == 64 * 32 + 32 && parts.1.num_parameters() == 8 * 27 + 8);
    });
}

/// Cross-correlation by its definition.
fn correlate(x: &[f64], w: &[f64], [h, k, s, p]: [usize; 4]) -> Vec<f64> {
    let (c, o, out) = (2, 3, (h + 2 * p - k) / s + 1);
    let mut y = vec![];
    for f in 0..o {
        for (i, j) in (0..out).flat_map(|i| (0..out).map(move |j| (i, j))) {
            let mut sum = 0.0;
            for (ch, a, b) in (0..c).flat_map(|ch| (0..k * k).map(move |t| (ch, t / k, t % k))) {
                let (r, q) = ((i * s + a).wrapping_sub(p), (j * s + b).wrapping_sub(p));
                if r < h && q < h {
                    sum += x[(ch * h + r) * h + q] * w[((f * c + ch) * k + a) * k + b];
                }
            }
            y.push(sum);
        }
    }
    y
}

#[test]
fn convolution() {
    let h = 8;
    let x = noise(1, 2 * h * h);
    let single = |v: &[f64]| v.iter().map(|&x| x as f32).collect::<Vec<f32>>();
    each(|d| {
        for (k, s, p) in (1..=7).flat_map(|k| (1..=3).flat_map(move |s| (0..=3).map(move |p| (k, s, p)))) {
            let w = noise(k as u64, 3 * 2 * k * k);
            let how = Conv::new().stride(s).pad(p);
            let xs = f32s(d, &single(&x), &[1, 2, h, h]);
            let y = xs.conv2d(&f32s(d, &single(&w), &[3, 2, k, k]), None, &how).unwrap();
            close(
                &values(&y),
                &correlate(&x, &w, [h, k, s, p]),
                1e-4,
                &format!("k {k} s {s} p {p} on {}", id(d)),
            );
        }
    });
    let how = Conv::new().stride(2).pad(1);
    everywhere("conv2d", &[&[1, 2, 5, 5], &[3, 2, 3, 3], &[3]], &[], same, |t, _| {
        t[0].conv2d(&t[1], Some(&t[2]), &how)
    });
    everywhere("conv_transpose", &[&[1, 3, 3, 3], &[3, 2, 3, 3]], &[], same, |t, _| {
        t[0].conv_transpose(&t[1], None, &how)
    });
    // <conv(x), y> = <x, transposed conv(y)>; the size is (H - 1) s + k - 2 p.
    each(|d| {
        let (x, w, y) =
            (random(d, &[1, 2, 5, 5], 1), random(d, &[3, 2, 3, 3], 2), random(d, &[1, 3, 3, 3], 3));
        let back = y.conv_transpose(&w, None, &how).unwrap();
        assert_eq!(back.shape(), [1, 2, 5, 5]);
        let inner =
            |a: &Tensor, b: &Tensor| f64::from(a.mul(b).unwrap().sum().unwrap().item::<f32>().unwrap());
        let [left, right] = [inner(&x.conv2d(&w, None, &how).unwrap(), &y), inner(&x, &back)];
        assert!((left - right).abs() < 1e-4, "{left} {right}");
    });
}

#[test]
fn pooling_and_shapes() {
    let window = Window::new(&[2, 2]).padding(&[1, 1]);
    everywhere("max_pool", &[&[1, 2, 4, 4]], &[], same, |t, _| t[0].max_pool(&window));
    everywhere("pixel_shuffle", &[&[1, 4, 2, 3]], &[], same, |t, _| t[0].pixel_shuffle(2)?.exp());
    everywhere("flatten", &[&[2, 3, 2]], &[], same, |t, _| t[0].flatten(1, -1)?.exp());
    each(|d| {
        // Padding is -inf and never wins, unlike zeros.
        let y = Tensor::full(d, DType::F32, &[1, 1, 2, 2], -3.0).unwrap().max_pool(&window).unwrap();
        assert_eq!(host(&y), vec![-3.0; y.numel()], "{}", id(d));
        let x = Tensor::ones(d, DType::F32, &[1, 1, 2, 2]).unwrap();
        let (_, at) = x.max_pool_with_index(&Window::new(&[2, 2])).unwrap();
        assert_eq!(at.to_vec::<i32>().unwrap(), [0], "the first of equal values");
        let x = random(d, &[2, 8, 3, 2], 1);
        let y = x.pixel_shuffle(2).unwrap();
        assert_eq!((y.shape(), host(&y.pixel_unshuffle(2).unwrap())), (&[2, 2, 6, 4][..], host(&x)));
        assert_eq!(Flatten::default().forward(&x).unwrap().shape(), [2, 48]);
    });
}

#[test]
fn batch_normalization() {
    each(|d| {
        let layer = BatchNormalization::new(&InitContext::new(d, 1), 3).unwrap();
        let (mut mean, mut var) = ([0.0; 3], [1.0; 3]);
        for step in 0..3 {
            let data = noise(step, 4 * 3 * 2 * 2);
            let x = f32s(d, &data.iter().map(|&v| v as f32).collect::<Vec<_>>(), &[4, 3, 2, 2]);
            let y = values(&resident("BatchNormalization", d, || layer.forward(&x).unwrap()));
            for c in 0..3 {
                let channel = |v: &[f64]| -> Vec<f64> {
                    (0..4).flat_map(|n| v[(n * 3 + c) * 4..(n * 3 + c + 1) * 4].to_vec()).collect()
                };
                let (v, n) = (channel(&data), 16.0);
                let m = v.iter().sum::<f64>() / n;
                let biased = v.iter().map(|x| (x - m).powi(2)).sum::<f64>() / n;
                mean[c] += 0.1 * (m - mean[c]);
                var[c] += 0.1 * (biased * n / (n - 1.0) - var[c]);
                let want: Vec<f64> = v.iter().map(|x| (x - m) / (biased + 1e-5).sqrt()).collect();
                close(&channel(&y), &want, 1e-5, "normalised by the biased variance");
            }
        }
        let state = layer.state_dict().unwrap();
        close(&values(&state["running_mean"]), &mean, 1e-5, "running mean");
        close(&values(&state["running_var"]), &var, 1e-5, "running variance, unbiased");
        layer.eval();
        let x = random(d, &[2, 3], 9);
        let want: Vec<f64> = values(&x)
            .iter()
            .enumerate()
            .map(|(i, v)| (v - mean[i % 3]) / (var[i % 3] + 1e-5).sqrt())
            .collect();
        close(&values(&layer.forward(&x).unwrap()), &want, 1e-5, "evaluation");
        layer.to_device(&cpu()).unwrap();
        assert!(
            layer.state_dict().unwrap().values().all(|t| id(t.device()) == id(&cpu())),
            "buffers move too"
        );
    });
}

#[test]
fn layer_normalization_dropout_embedding() {
    for dims in 1..=4 {
        let shape = [2usize, 3, 2, 2, 3];
        let layer = LayerNormalization::new(&f64s(), &shape[5 - dims..]).unwrap();
        let x = [tensor(&cpu(), &shape, dims as u64)];
        gradcheck_layer(&format!("LayerNormalization over {dims}"), &layer, &x, |t| layer.forward(&t[0]));
    }
    each(|d| {
        let cx = InitContext::new(d, 4);
        let flat = Tensor::full(d, DType::F32, &[2, 3], 5.0).unwrap();
        let y = LayerNormalization::new(&cx, &[3]).unwrap().forward(&flat).unwrap();
        assert_eq!(host(&y), [0.0; 6], "variance 0");
        let layer = Dropout::new(&cx, 0.25).unwrap();
        let ones = Tensor::ones(d, DType::F32, &[40_000]).unwrap();
        let y = values(&layer.forward(&ones).unwrap());
        assert!(y.iter().all(|&v| v == 0.0 || (v - 4.0 / 3.0).abs() < 1e-6));
        assert!((y.iter().sum::<f64>() / 4e4 - 1.0).abs() < 0.02, "the expectation stays");
        let again = Dropout::new(&InitContext::new(d, 4), 0.25).unwrap();
        let _ = LayerNormalization::new(&cx, &[3]).unwrap();
        let first = [&layer, &again].map(|l| l.counters());
        assert_ne!(first[0], first[1]);
        layer.eval();
        assert_eq!(host(&layer.forward(&ones).unwrap()), vec![1.0; 40_000]);
        // The same seed draws the same mask.
        let masks = [1, 2].map(|_| {
            host(
                &Dropout::new(&InitContext::new(d, 8), 0.5)
                    .unwrap()
                    .forward(&ones.narrow(0, 0, 99).unwrap())
                    .unwrap(),
            )
        });
        assert_eq!(masks[0], masks[1]);
        let table = Embedding::new(&cx, 4, 2).unwrap();
        let ids = Tensor::from_slice(d, &[1i64, 3, 1], &[3]).unwrap();
        table.forward(&ids).unwrap().sum().unwrap().backward().unwrap();
        assert_eq!(host(&table.weight().get().grad().unwrap()), [0., 0., 2., 2., 0., 0., 1., 1.]);
        let past = Tensor::from_slice(d, &[4i64], &[1]).unwrap();
        assert!(table.forward(&past).and_then(|y| y.to_vec::<f32>()).is_err(), "a row that is not there");
    });
}

#[test]
fn recurrent_cells() {
    fn sigmoid(x: f64) -> f64 {
        1.0 / (1.0 + (-x).exp())
    }
    let cell = LstmCell::new(&f64s(), 2, 3).unwrap();
    assert_eq!(state_names(&cell), ["weight_ih", "weight_hh", "bias_ih", "bias_hh"]);
    let [wi, wh, bi, bh] = ["weight_ih", "weight_hh", "bias_ih", "bias_hh"].map(|n| param(&cell, n));
    let x: Vec<Tensor> = (0..5).map(|s| tensor(&cpu(), &[1, 2], 40 + s)).collect();
    let (mut h, mut c) = ([0.0; 3], [0.0; 3]);
    let mut state: Option<RnnState> = None;
    for x in &x {
        let v = x.to_vec::<f64>().unwrap();
        let gate = |r: usize| {
            let input: f64 = (0..2).map(|i| wi[r * 2 + i] * v[i]).sum();
            input + (0..3).map(|i| wh[r * 3 + i] * h[i]).sum::<f64>() + bi[r] + bh[r]
        };
        let z: Vec<f64> = (0..12).map(gate).collect();
        for k in 0..3 {
            c[k] = sigmoid(z[3 + k]) * c[k] + sigmoid(z[k]) * z[6 + k].tanh();
            h[k] = sigmoid(z[9 + k]) * c[k].tanh();
        }
        let s = cell.step(x, state.as_ref()).unwrap();
        close(&values(&s.h), &h, 1e-12, "h");
        close(&values(s.c.as_ref().unwrap()), &c, 1e-12, "c");
        state = Some(s);
    }
    let steps = |t: &[Tensor], f: &dyn Fn(&Tensor, Option<&RnnState>) -> Result<RnnState>| {
        let mut s = Some(RnnState { h: t[1].clone(), c: t.get(2).cloned() });
        for _ in 0..2 {
            s = Some(f(&t[0], s.as_ref())?);
        }
        let s = s.unwrap();
        match s.c {
            Some(c) => s.h.add(&c),
            None => Ok(s.h),
        }
    };
    let [a, b, c] = [[4, 2], [4, 3], [4, 3]].map(|s| tensor(&cpu(), &s, s[1] as u64));
    gradcheck_layer("LstmCell", &cell, &[a.clone(), b.clone(), c], |t| steps(t, &|x, s| cell.step(x, s)));
    let gru = GruCell::new(&f64s(), 2, 3).unwrap();
    gradcheck_layer("GruCell", &gru, &[a.clone(), b.clone()], |t| steps(t, &|x, s| gru.step(x, s)));
    let plain = RecurrentCell::new(&f64s(), 2, 3).unwrap();
    gradcheck_layer("RecurrentCell", &plain, &[a.clone(), b.clone()], |t| steps(t, &|x, s| plain.step(x, s)));
    crate::common::layers::on_devices(
        "LstmCell",
        &[&[4, 2]],
        |cx| LstmCell::new(cx, 2, 3),
        |l, t| {
            let s = l.step(&t[0], None)?;
            Ok(l.step(&t[0], Some(&s))?.h)
        },
    );
    let y = gru.forward_all(&[a.select(0, 0).unwrap(), b.select(0, 0).unwrap()]).unwrap();
    assert_eq!((y.len(), y[0].shape()), (1, &[3][..]), "without the batch axis");
    let relu = RecurrentCell::lazy(&f64s(), 3).unwrap().no_bias().relu();
    assert!(values(&relu.forward(&a).unwrap()).iter().all(|&v| v >= 0.0));
    assert_eq!(state_names(&relu), ["weight_ih", "weight_hh"]);
    refused(cell.step(&tensor(&cpu(), &[1, 5], 1), None), &["LstmCell", "x"]);
    refused(cell.step(&a, Some(&RnnState { h: b.clone(), c: None })), &["LstmCell", "cell state"]);
    refused(cell.step(&tensor(&cpu(), &[1, 1, 2], 1), None), &["LstmCell", "[B, I]"]);
    refused(gru.forward_all(&[a.clone(), b.clone(), b]), &["GruCell", "inputs"]);
    refused(LstmCell::new(&f64s(), 0, 3), &["LstmCell", "input"]);
    refused(LstmCell::lazy(&f64s(), 0), &["LstmCell", "hidden_size"]);
}

/// softmax(Q K^T / sqrt D + mask) V of matrices, by primitives.
fn attention(q: &Tensor, k: &Tensor, v: &Tensor, mask: Option<&Tensor>) -> Result<Tensor> {
    let scores = q.matmul(&k.t()?)?.mul_scalar(1.0 / (q.shape()[q.rank() - 1] as f64).sqrt())?;
    let scores = match mask {
        Some(m) => scores.add(m)?,
        None => scores,
    };
    scores.softmax(-1)?.matmul(v)
}

#[test]
fn attention_and_transformers() {
    each(|d| {
        let inf = f32::NEG_INFINITY;
        let mask = Tensor::causal_mask(d, DType::F32, 3).unwrap();
        assert_eq!(host(&mask), [0., inf, inf, 0., 0., inf, 0., 0., 0.], "{}", id(d));
        let [q, k, v] = [1, 2, 3].map(|s| random(d, &[2, 2, 3, 4], s));
        let want = values(&attention(&q, &k, &v, Some(&mask)).unwrap());
        let causal = ScaledDotProductAttention::with(Attention::new().causal(Causal::TopLeft));
        close(&values(&causal.forward(&q, &k, &v).unwrap()), &want, 1e-5, "causal");
        let additive = ScaledDotProductAttention { bias: Some(mask), ..Default::default() };
        close(&values(&additive.forward(&q, &k, &v).unwrap()), &want, 1e-5, "additive mask");
        // A query that sees nothing gives zeros.
        let none = Tensor::zeros(d, DType::U8, &[3, 3]).unwrap();
        let blind = ScaledDotProductAttention { mask: Some(none), ..Default::default() };
        assert_eq!(host(&blind.forward(&q, &k, &v).unwrap()), vec![0.0; q.numel()]);
    });
    let shape: &[usize] = &[1, 2, 3, 4];
    everywhere("attention", &[shape, shape, shape], &[], same, |t, _| {
        ScaledDotProductAttention::new().forward(&t[0], &t[1], &t[2])
    });

    // Volta's weights are [in, out] for each of q, k, v, and the residual is part of its module.
    let layer = MultiHeadAttention::new(&f64s(), 4, 2).unwrap();
    let [wq, wk, wv, wo] = [1, 2, 3, 4].map(|s| tensor(&cpu(), &[4, 4], s));
    let x = tensor(&cpu(), &[2, 3, 4], 9);
    let t = |w: &Tensor| w.t().unwrap();
    let packed = Tensor::concat(0, &[&t(&wq), &t(&wk), &t(&wv)]).unwrap();
    let state: StateDict = [
        ("in_proj_weight", packed),
        ("in_proj_bias", Tensor::zeros(&cpu(), DType::F64, &[12]).unwrap()),
        ("out_proj.weight", t(&wo).contiguous().unwrap()),
        ("out_proj.bias", tensor(&cpu(), &[4], 5)),
    ]
    .map(|(n, t)| (n.to_string(), t))
    .into();
    layer.load_state_dict(&state).unwrap();
    let heads = |w: &Tensor| x.matmul(w).unwrap().reshape(&[2, 3, 2, 2]).unwrap().transpose(1, 2).unwrap();
    let y = attention(&heads(&wq), &heads(&wk), &heads(&wv), None).unwrap();
    let y = y.transpose(1, 2).unwrap().reshape(&[2, 3, 4]).unwrap().matmul(&wo).unwrap();
    let y = y.add(&state["out_proj.bias"]).unwrap().add(&x).unwrap();
    let ours = layer.attend(&x, &x, &x, &AttentionMasks::new()).unwrap().add(&x).unwrap();
    close(&values(&ours), &values(&y), 1e-10, "MultiHeadAttention with a residual");

    let x = [tensor(&cpu(), &[2, 3, 4], 6)];
    let ff = FeedForward::new(&f64s(), 4, 16).unwrap().activation(Activation::Gelu);
    gradcheck_layer("FeedForward", &ff, &x, |t| ff.forward(&t[0]));
    let block = TransformerConfig::new(4, 2).d_ff(8).dropout(0.0).activation(Activation::Gelu).norm_first();
    let block = TransformerEncoder::new(&f64s(), &block).unwrap();
    gradcheck_layer("TransformerEncoder", &block, &x, |t| block.forward(&t[0]));

    let table = PositionalEncoding::new(&f64s(), 4, 8).unwrap();
    let pe = values(&table.forward(&Tensor::zeros(&cpu(), DType::F64, &[8, 4]).unwrap()).unwrap());
    let want: Vec<f64> = (0..8)
        .flat_map(|t| {
            [
                f64::from(t).sin(),
                f64::from(t).cos(),
                (f64::from(t) / 100.0).sin(),
                (f64::from(t) / 100.0).cos(),
            ]
        })
        .collect();
    close(&pe, &want, 1e-12, "sines and cosines");
    let learned = PositionalEmbedding::new(&f64s(), 4, 8).unwrap();
    let part = |t: &[Tensor]| learned.forward_at(&t[0], 2);
    gradcheck_layer("PositionalEmbedding", &learned, &x, part);
    refused(learned.forward_at(&x[0], 6), &["PositionalEmbedding", "8 positions"]);
    refused(learned.forward_at(&x[0], usize::MAX), &["PositionalEmbedding"]);
    refused(PositionalEmbedding::new(&f64s(), 0, 8), &["PositionalEmbedding", "d_model"]);
}

#[test]
fn sequential_state_and_modes() {
    let cx = f64s();
    let inner = Sequential::new().named("drop", Dropout::new(&cx, 0.5).unwrap());
    let model = Sequential::new()
        .named("first", Dense::new(&cx, 2, 3).unwrap())
        .push(BatchNormalization::new(&cx, 3).unwrap())
        .named("block", inner.push(Dense::new(&cx, 3, 1).unwrap()));
    let names = state_names(&model);
    assert_eq!(names[..2], ["first.weight", "first.bias"]);
    assert!(
        names.contains(&"1.running_mean".into()) && names.contains(&"block.1.weight".into()),
        "{names:?}"
    );
    assert_eq!(model.by_name("first").map(|l| l.kind()), Some("Dense"));
    assert_eq!(model.get(1).map(|l| l.kind()), Some("BatchNormalization"));
    assert!(model.get(3).is_none() && model.by_name("none").is_none());
    // Nested dropout and statistics follow the mode.
    let x = tensor(&cpu(), &[4, 2], 1);
    model.eval();
    let count = || model.state_dict().unwrap()["1.num_batches_tracked"].item::<i64>().unwrap();
    assert_eq!(values(&model.forward(&x).unwrap()), values(&model.forward(&x).unwrap()));
    assert_eq!(count(), 0);
    model.train();
    assert_ne!(values(&model.forward(&x).unwrap()), values(&model.forward(&x).unwrap()));
    assert_eq!(count(), 2);
    // Shared layers count once.
    let tied = Arc::new(Dense::new(&cx, 3, 3).unwrap());
    let model = Sequential::new().push(tied.clone()).push(tied.clone());
    assert_eq!(
        (model.named_parameters().len(), model.parameters().len(), model.num_parameters()),
        (4, 2, 12)
    );
    model.forward(&tensor(&cpu(), &[1, 3], 1)).unwrap().sum().unwrap().backward().unwrap();
    assert!(model.parameters().iter().all(|p| p.get().grad().is_some()));
    model.zero_grad().unwrap();
    assert!(model.parameters().iter().all(|p| p.get().grad().is_none()));
}

#[test]
fn state_dictionaries() {
    each(|d| {
        let make = |seed| Dense::new(&InitContext::new(d, seed), 2, 3).unwrap();
        let (a, b) = (make(1), make(2));
        b.load_state_dict(&a.state_dict().unwrap()).unwrap();
        assert_eq!(host(&b.weight().unwrap().get()), host(&a.weight().unwrap().get()));
        assert!(b.state_dict().unwrap().values().all(|t| id(t.device()) == id(d)));
        let c = make(3);
        let old = host(&c.weight().unwrap().get());
        let mut state = a.state_dict().unwrap();
        assert!(c.state_diff(&state).is_complete());
        state.insert("extra".into(), f32s(d, &[0.0], &[1]));
        state.insert("weight".into(), f32s(d, &[0.0; 6], &[2, 3]));
        assert!(matches!(c.load_state_dict(&state), Err(NnError::StateNames { .. })));
        let diff = c.state_diff(&state);
        assert_eq!(
            (diff.loaded.as_slice(), diff.unexpected.as_slice()),
            (&["bias".to_string()][..], &["extra".to_string()][..])
        );
        assert_eq!(
            (diff.mismatched[0].name.as_str(), diff.mismatched[0].found.as_slice()),
            ("weight", &[2usize, 3][..])
        );
        assert!(diff.missing.is_empty() && !diff.is_complete());
        state.remove("extra");
        assert!(matches!(c.load_state_dict(&state), Err(NnError::StateShape { .. })));
        assert_eq!(host(&c.weight().unwrap().get()), old, "nothing was replaced");
        let report = c.load_matching(&state).unwrap();
        assert_eq!(report, c.state_diff(&state));
        assert_eq!(host(&c.bias().unwrap().get()), host(&a.bias().unwrap().get()));
        assert_eq!(host(&c.weight().unwrap().get()), old);
        state.remove("bias");
        assert_eq!(c.state_diff(&state).missing, ["bias"]);
    });
}

#[test]
fn state_maps() {
    let t = |v: f32| f32s(&cpu(), &[v, 1., 2., 3., 4., 5.], &[2, 3]);
    let state: StateDict =
        [("m.fc.weight", t(7.0)), ("m.fc.bias", f32s(&cpu(), &[1.], &[1])), ("head", t(8.0))]
            .map(|(n, t)| (n.to_string(), t))
            .into();
    let keys = |m: StateMap| m.apply(&state).unwrap().into_keys().collect::<Vec<_>>();
    let new = StateMap::new;
    assert_eq!(keys(new()), ["head", "m.fc.bias", "m.fc.weight"]);
    assert_eq!(
        keys(new().rename("head", "tail").rename("absent", "x")),
        ["m.fc.bias", "m.fc.weight", "tail"]
    );
    assert_eq!(keys(new().rename_prefix("m.", "n.")), ["head", "n.fc.bias", "n.fc.weight"]);
    assert_eq!(keys(new().strip_prefix("m.fc.")), ["bias", "head", "weight"]);
    assert_eq!(keys(new().add_prefix("a.")), ["a.head", "a.m.fc.bias", "a.m.fc.weight"]);
    assert_eq!(keys(new().select("m.*")), ["m.fc.bias", "m.fc.weight"]);
    assert_eq!(keys(new().exclude("*.bias").exclude("head")), ["m.fc.weight"]);
    assert_eq!(
        keys(new().strip_prefix("m.").select("fc.*").add_prefix("z.")),
        ["z.fc.bias", "z.fc.weight"],
        "in order"
    );
    let turned = new().transpose("head").apply(&state).unwrap();
    assert_eq!((turned["head"].shape(), host(&turned["head"])), (&[3, 2][..], vec![8., 3., 1., 4., 2., 5.]));
    let turned = new().transpose_matching("m.*").apply(&state).unwrap();
    assert_eq!(turned["m.fc.weight"].shape(), [3, 2]);
    assert_eq!((turned["m.fc.bias"].shape(), turned["head"].shape()), (&[1][..], &[2, 3][..]));
    let doubled = new().transform("*.bias", |_, t| t.mul_scalar(2.0)).apply(&state).unwrap();
    assert_eq!(host(&doubled["m.fc.bias"]), [2.0]);
    refused(new().rename("head", "m.fc.bias").apply(&state), &["StateMap", "m.fc.bias"]);
    refused(new().transpose("m.fc.bias").apply(&state), &["StateMap", "matrix"]);
    assert!(format!("{:?}", new().select("a")).contains("select"));
}

#[test]
fn models_move_with_everything() {
    each(|d| {
        // Onto the device and back, in the middle of training: the same as staying.
        let run = |moving: bool| {
            let cx = InitContext::new(&cpu(), 3);
            let model = Sequential::new()
                .push(Dense::new(&cx, 2, 4).unwrap().no_bias()) // whose gradient would be noise
                .push(BatchNormalization::new(&cx, 4).unwrap())
                .push(Dense::new(&cx, 4, 1).unwrap());
            let mut opt = Optimizer::adam(&model, 0.1).unwrap().ema(0.9).unwrap();
            let home = |model: &Sequential| model.parameters()[0].get().device().clone();
            let data = |d: &Device| (random(d, &[6, 2], 1), random(d, &[6, 1], 2));
            for step in 0..4 {
                if moving && step % 2 == 1 {
                    let to = if step == 1 { d.clone() } else { cpu() };
                    let grads = model.parameters().iter().filter(|p| p.get().grad().is_some()).count();
                    opt.to_device(&to).unwrap();
                    model.to_device(&to).unwrap();
                    assert_eq!(model.parameters().iter().filter(|p| p.get().grad().is_some()).count(), grads);
                    assert!(model.state_dict().unwrap().values().all(|t| id(t.device()) == id(&to)));
                    assert!(opt.state_tensors().unwrap().iter().all(|(_, t)| id(t.device()) == id(&to)));
                }
                let (x, y) = data(&home(&model));
                opt.zero_grad().unwrap();
                MseLoss::default().forward(&model.forward(&x).unwrap(), &y).unwrap().backward().unwrap();
                opt.step().unwrap();
            }
            let mut all = model.state_dict().unwrap().values().flat_map(values).collect::<Vec<_>>();
            all.extend(opt.state_tensors().unwrap().iter().flat_map(|(_, t)| values(t)));
            all
        };
        close(&run(true), &run(false), 1e-4, &format!("to {} and back", id(d)));
        // Gradients without an optimizer move as well, and what was shared stays shared.
        let shared = Param::new(random(&cpu(), &[3], 1));
        let other = Param::new(shared.get().detach());
        #[derive(Debug)]
        struct Pair(Param, Param);
        impl Layer for Pair {
            fn forward(&self, x: &Tensor) -> Result<Tensor> {
                x.mul(&self.0.get())?.add(&self.1.get())
            }
            fn visit(&self, v: &mut Visitor<'_>) {
                v.param("a", &self.0);
                v.param("b", &self.1);
            }
        }
        let pair = Pair(shared, other);
        pair.forward(&random(&cpu(), &[3], 2)).unwrap().sum().unwrap().backward().unwrap();
        let before = pair.0.get().grad().unwrap();
        pair.to_device(d).unwrap();
        assert_eq!(host(&pair.0.get().grad().unwrap()), host(&before));
        assert!(pair.0.get().shares_storage(&pair.1.get()));
    });
}

/// One trainable number.
#[derive(Debug)]
struct Scalar(Param);

impl Layer for Scalar {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.0.get().mul(x)
    }
    fn visit(&self, v: &mut Visitor<'_>) {
        v.param("p", &self.0);
    }
}

#[test]
fn optimizers() {
    each(|d| {
        let run = |rule: OptimRule, steps: usize| -> Vec<f64> {
            let model = Scalar(Param::new(f32s(d, &[1.0], &[1])));
            let mut opt = Optimizer::new(&model, rule, 0.1).unwrap();
            let mut path = vec![];
            for _ in 0..steps {
                opt.zero_grad().unwrap();
                model.0.get().square().unwrap().sum().unwrap().backward().unwrap();
                opt.step().unwrap();
                path.push(values(&model.0.get())[0]);
            }
            path
        };
        let sgd = OptimRule::Momentum { mu: 0.9, damp: 0.0, wd: 0.01, nesterov: false };
        close(&run(sgd, 3), &[0.799, 0.457501, 0.0581942], 1e-6, "SGD");
        let adam = OptimRule::Adam { b1: 0.9, b2: 0.999, eps: 1e-8, wd: 0.01 };
        close(&run(adam, 3), &[0.9, 0.8004125, 0.7015873], 1e-6, "Adam");
        let (mut p, mut m, mut v) = (1.0f64, 0.0, 0.0);
        for t in 1..=200 {
            let g = 2.0 * p + 0.01 * p;
            (m, v) = (0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g);
            let (mh, vh) = (m / (1.0 - 0.9f64.powi(t)), v / (1.0 - 0.999f64.powi(t)));
            p -= 0.1 * mh / (vh.sqrt() + 1e-8);
        }
        assert!((run(adam, 200)[199] - p).abs() < 1e-4, "{}", id(d));
    });
}

#[test]
fn losses() {
    let p = |x: f64| 0.5 + 0.4 * x;
    let target = || vec![HostTensor::from_slice(&[0f32, 1.0, 0.5, 1.0], &[4]).unwrap()];
    everywhere("mse", &[&[4]], &target(), same, |t, e| {
        MseLoss::default().forward(&t[0], &e[0].to_dtype(t[0].dtype())?)
    });
    let soft = HostTensor::from_slice(&[0.25f32, 0.25, 0.5, 0.0, 1.0, 0.0], &[2, 3]).unwrap();
    everywhere("cross entropy of soft targets", &[&[2, 3]], &[soft], same, |t, e| {
        CrossEntropyLoss::default().forward(&t[0], &e[0].to_dtype(t[0].dtype())?)
    });
    let classes = HostTensor::from_slice(&[2i64, 0], &[2]).unwrap();
    everywhere("nll", &[&[2, 3]], &[classes], same, |t, e| {
        NllLoss::default().forward(&t[0].log_softmax(-1)?, &e[0])
    });
    everywhere("bce", &[&[4]], &target(), p, |t, e| {
        BceLoss::default().forward(&t[0], &e[0].to_dtype(t[0].dtype())?)
    });
    everywhere("bce with logits", &[&[4]], &target(), same, |t, e| {
        BceWithLogitsLoss::default().forward(&t[0], &e[0].to_dtype(t[0].dtype())?)
    });
    let kl = GaussianKlLoss { reduction: Reduction::Sum };
    everywhere("kl to the unit normal", &[&[2, 3], &[2, 3]], &[], same, |t, _| kl.forward(&t[0], &t[1]));
    each(|d| {
        let x = f32s(d, &[1e4, -1e4, 100., -100.], &[4]);
        let y = f32s(d, &[0., 1., 1., 0.], &[4]);
        let l = BceWithLogitsLoss::default().forward(&x, &y).unwrap().item::<f32>().unwrap();
        assert!((l - 5e3).abs() < 1.0, "{l}");
        let c = Tensor::from_slice(d, &[0i64], &[1]).unwrap();
        let far = f32s(d, &[-1e4, 1e4], &[1, 2]);
        let l = CrossEntropyLoss::default().forward(&far, &c).unwrap().item::<f32>().unwrap();
        assert!((l - 2e4).abs() < 1.0, "{l}");
        let (mu, log_var) = (f32s(d, &[1.0, 0.0], &[1, 2]), f32s(d, &[0.0, 1.0], &[1, 2]));
        let want = 0.5 * (1.0 + (1f32.exp() - 2.0));
        assert!((kl.forward(&mu, &log_var).unwrap().item::<f32>().unwrap() - want).abs() < 1e-6);
    });
}

#[test]
fn batches() {
    let n = 10;
    let features: Vec<f32> = (0..n).map(|i| i as f32).collect();
    let targets = Targets::Values { data: features.iter().map(|x| 10.0 * x).collect(), shape: vec![1] };
    let data = Dataset::new(features.clone(), &[1], targets).unwrap();
    each(|d| {
        let source = ResidentSource::new(&data, d, DType::F32).unwrap();
        let epoch = |order: Option<Order>| -> Vec<Vec<f32>> {
            let all = source.epoch(order, 4).unwrap().map(|b| b.unwrap());
            all.map(|b| {
                assert_eq!(host(&b.y), host(&b.x).iter().map(|x| 10.0 * x).collect::<Vec<_>>());
                assert_eq!(id(b.x.device()), id(d));
                host(&b.x)
            })
            .collect()
        };
        let plain = epoch(None);
        assert_eq!(plain.iter().map(Vec::len).collect::<Vec<_>>(), [4, 4, 2], "the short last batch stays");
        assert_eq!(plain.concat(), features);
        let shuffled = epoch(Some(Order { seed: 1, epoch: 0 }));
        assert_eq!(shuffled, epoch(Some(Order { seed: 1, epoch: 0 })), "seeded");
        assert_ne!(shuffled, epoch(Some(Order { seed: 1, epoch: 1 })), "other epochs, other orders");
        let mut sorted = shuffled.concat();
        assert_ne!(sorted, features);
        sorted.sort_by(f32::total_cmp);
        assert_eq!(sorted, features, "a permutation");
    });
}

#[test]
fn absent_devices_are_errors() {
    for name in ["cuda:77", "opencl:77", "hip:77"] {
        let e = Registry::default().open(&name.parse::<Selector>().unwrap());
        assert!(e.is_err(), "{name}");
    }
    assert!("abacus".parse::<Selector>().is_err());
}
