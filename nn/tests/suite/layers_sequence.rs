//! Layers of sequences: embedding, recurrences, and those without parameters.

use std::slice::from_ref;

use crate::common::layers::{f64s, gradcheck_layer, on_devices, param, refused, round_trip, state_names};
use crate::common::{close, cpu, devices, f32s, gradcheck, tensor};
use trefoil::DType;
use trefoil::ops::activation::Activation;
use trefoil::ops::attention::Rope;
use trefoil::ops::conv::Conv;
use trefoil::ops::embedding::EmbeddingGrad;
use trefoil::ops::language_model::LinearCrossEntropy;
use trefoil::ops::loss::Reduction;
use trefoil_nn::layers::*;
use trefoil_nn::{
    Init, InitContext, Layer, LayerExt, LinearCrossEntropyLoss, RnnState, Tensor, sequence_lengths,
};

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

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// One recurrent layer and direction on the host, from its parameters by name: outputs `[T][H]` of one row, and the final h and c.
fn recurrent_reference(
    layer: &dyn Layer,
    kind: &str,
    suffix: &str,
    x: &[Vec<f64>],
    h0: &[f64],
    c0: &[f64],
    reverse: bool,
) -> (Vec<Vec<f64>>, Vec<f64>, Vec<f64>) {
    let get = |n: &str| param(layer, &format!("{n}_{suffix}"));
    let (wi, wh, bi, bh) = (get("weight_ih"), get("weight_hh"), get("bias_ih"), get("bias_hh"));
    let n = h0.len();
    let (mut h, mut c) = (h0.to_vec(), c0.to_vec());
    let mut y = vec![vec![]; x.len()];
    let order: Vec<usize> = if reverse { (0..x.len()).rev().collect() } else { (0..x.len()).collect() };
    for t in order {
        let dot = |w: &[f64], v: &[f64], r: usize| -> f64 {
            v.iter().zip(&w[r * v.len()..]).map(|(a, b)| a * b).sum()
        };
        let a = |r: usize| dot(&wi, &x[t], r) + bi[r];
        let u = |r: usize| dot(&wh, &h, r) + bh[r];
        let next: Vec<f64> = (0..n)
            .map(|k| match kind {
                "lstm" => {
                    let z = |g: usize| a(g * n + k) + u(g * n + k);
                    c[k] = sigmoid(z(1)) * c[k] + sigmoid(z(0)) * z(2).tanh();
                    sigmoid(z(3)) * c[k].tanh()
                }
                "gru" => {
                    let r = sigmoid(a(k) + u(k));
                    let z = sigmoid(a(n + k) + u(n + k));
                    let m = (a(2 * n + k) + r * u(2 * n + k)).tanh();
                    (1.0 - z) * m + z * h[k]
                }
                "tanh" => (a(k) + u(k)).tanh(),
                _ => (a(k) + u(k)).max(0.0),
            })
            .collect();
        h = next;
        y[t] = h.clone();
    }
    (y, h, c)
}

fn rows_of(x: &Tensor, b: usize, steps: usize) -> Vec<Vec<f64>> {
    (0..steps).map(|t| host(&x.select(0, b).unwrap().select(0, t).unwrap())).collect()
}

#[test]
fn recurrent_layers_follow_the_definition() {
    let cx = f64s();
    let x = tensor(&cpu(), &[2, 4, 3], 1);
    let (h0, c0) = (tensor(&cpu(), &[2, 2], 2), tensor(&cpu(), &[2, 2], 3));
    let lstm = Lstm::new(&cx, 3, 2).unwrap();
    let gru = Gru::new(&cx, 3, 2).unwrap();
    let tanh = Recurrent::new(&cx, 3, 2).unwrap();
    let relu = Recurrent::new(&cx, 3, 2).unwrap().relu();
    let layers: [(&str, &dyn Layer); 4] = [("lstm", &lstm), ("gru", &gru), ("tanh", &tanh), ("relu", &relu)];
    for (kind, layer) in layers {
        let state = [RnnState { h: h0.clone(), c: (kind == "lstm").then(|| c0.clone()) }];
        let out = match kind {
            "lstm" => lstm.run(&x, &state, None),
            "gru" => gru.run(&x, &state, None),
            "tanh" => tanh.run(&x, &state, None),
            _ => relu.run(&x, &state, None),
        }
        .unwrap();
        assert_eq!(out.y.shape(), [2, 4, 2]);
        for b in 0..2 {
            let first = |t: &Tensor| host(&t.select(0, b).unwrap());
            let (y, h, c) =
                recurrent_reference(layer, kind, "l0", &rows_of(&x, b, 4), &first(&h0), &first(&c0), false);
            close(&host(&out.y.select(0, b).unwrap()), &y.concat(), 1e-12, kind);
            close(&first(&out.state[0].h), &h, 1e-12, kind);
            if let Some(got) = &out.state[0].c {
                close(&first(got), &c, 1e-12, kind);
            }
        }
        let bound = 1.0 / 2f64.sqrt();
        assert!(param(layer, "weight_ih_l0").iter().all(|w| w.abs() <= bound));
    }
    // Without a batch, and only the end.
    let y = lstm.forward(&x.select(0, 1).unwrap()).unwrap();
    close(&host(&y), &host(&lstm.forward(&x).unwrap().select(0, 1).unwrap()), 1e-12, "without a batch");
    let last = Lstm::new(&cx, 3, 2).unwrap().return_last();
    last.load_state_dict(&lstm.state_dict().unwrap()).unwrap();
    let all = lstm.run(&x, &[], None).unwrap();
    assert_eq!(host(&last.forward(&x).unwrap()), host(&all.state[0].h));
    assert_eq!(host(&all.y.select(1, 3).unwrap()), host(&all.state[0].h));
}

#[test]
fn bidirectional_layers_follow_the_definition() {
    let cx = f64s();
    let (x, zeros) = (tensor(&cpu(), &[2, 4, 3], 1), [0.0; 2]);
    let layer = Gru::new(&cx, 3, 2).unwrap().num_layers(2).unwrap().bidirectional().unwrap();
    let lengths = sequence_lengths(&cpu(), &[4, 2], 4).unwrap();
    let (y, states) = layer.run(&x, &[], Some(&lengths)).unwrap();
    assert_eq!((y.len(), y[0].shape(), states.len()), (1, &[2, 4, 4][..], 4));
    for (b, steps) in [(0, 4), (1, 2)] {
        let mut x = rows_of(&x, b, steps);
        for k in 0..2 {
            let (a, ha, _) = recurrent_reference(&layer, "gru", &format!("l{k}"), &x, &zeros, &zeros, false);
            let (c, hc, _) =
                recurrent_reference(&layer, "gru", &format!("l{k}_reverse"), &x, &zeros, &zeros, true);
            close(&host(&states[2 * k].h.select(0, b).unwrap()), &ha, 1e-12, "final state");
            close(&host(&states[2 * k + 1].h.select(0, b).unwrap()), &hc, 1e-12, "final state, reverse");
            x = a.into_iter().zip(c).map(|(a, c)| [a, c].concat()).collect();
        }
        let mut want = x.concat();
        want.resize(16, 0.0);
        close(&host(&y[0].select(0, b).unwrap()), &want, 1e-12, "Bidirectional");
    }
    let expected: Vec<String> = ["", "_reverse"]
        .iter()
        .flat_map(|s| {
            (0..2).flat_map(move |k| {
                ["weight_ih", "weight_hh", "bias_ih", "bias_hh"].map(|n| format!("{n}_l{k}{s}"))
            })
        })
        .collect();
    assert_eq!(state_names(&layer), expected);
    assert_ne!(param(&layer, "weight_ih_l0"), param(&layer, "weight_ih_l0_reverse"));

    // Merges, and the final states of both directions.
    let parts = Bidirectional::new(Lstm::new(&cx, 3, 2).unwrap()).unwrap().merge(Merge::None).unwrap();
    let all = parts.forward_all(from_ref(&x)).unwrap();
    assert_eq!(all.len(), 6, "two outputs, two states with cells");
    let (a, b) = (&all[0], &all[1]);
    for (merge, want) in [
        (Merge::Concat, Tensor::concat(2, &[a, b])),
        (Merge::Sum, a.add(b)),
        (Merge::Mul, a.mul(b)),
        (Merge::Average, a.add(b).and_then(|t| t.mul_scalar(0.5))),
    ] {
        let l = Bidirectional::new(Lstm::new(&cx, 3, 2).unwrap()).unwrap().merge(merge).unwrap();
        l.load_state_dict(&parts.state_dict().unwrap()).unwrap();
        close(&host(&l.forward(&x).unwrap()), &host(&want.unwrap()), 1e-12, &format!("{merge:?}"));
    }
    let ends = Bidirectional::new(Lstm::new(&cx, 3, 2).unwrap().return_last()).unwrap();
    ends.load_state_dict(&parts.state_dict().unwrap()).unwrap();
    let want = Tensor::concat(1, &[&a.select(1, 3).unwrap(), &b.select(1, 0).unwrap()]).unwrap();
    close(&host(&ends.forward(&x).unwrap()), &host(&want), 1e-12, "the ends of both directions");
    refused(parts.forward(&x), &["Bidirectional", "merge"]);
    refused(
        Bidirectional::new(Lstm::new(&cx, 3, 2).unwrap())
            .unwrap()
            .backward_inner(Gru::new(&cx, 3, 4).unwrap()),
        &["Bidirectional", "backward_inner"],
    );
    let two = Lstm::new(&cx, 3, 2).unwrap().num_layers(2).unwrap();
    refused(Bidirectional::new(two).unwrap().merge(Merge::None), &["Bidirectional", "merge"]);
}

#[test]
fn recurrent_gradients() {
    let cx = f64s();
    let x = tensor(&cpu(), &[2, 3, 2], 1);
    let (h0, c0) = (tensor(&cpu(), &[2, 2], 2), tensor(&cpu(), &[2, 2], 3));
    let lengths = sequence_lengths(&cpu(), &[1, 3], 3).unwrap();
    // Output and final states all have a part in the result.
    let joined = |y: Tensor, s: Vec<RnnState>| -> trefoil_nn::Result<Tensor> {
        let flat = |t: &Tensor| t.reshape(&[t.numel()]);
        let mut all = vec![flat(&y)?];
        for s in &s {
            all.push(flat(&s.h)?);
            all.extend(s.c.as_ref().map(flat).transpose()?);
        }
        Tensor::concat(0, &all.iter().collect::<Vec<_>>())
    };
    let lstm = Lstm::new(&cx, 2, 2).unwrap();
    gradcheck_layer("Lstm", &lstm, &[x.clone(), h0.clone(), c0.clone()], |t| {
        let s = [RnnState { h: t[1].clone(), c: Some(t[2].clone()) }];
        let o = lstm.run(&t[0], &s, Some(&lengths))?;
        joined(o.y, o.state)
    });
    let gru = Gru::new(&cx, 2, 2).unwrap();
    gradcheck_layer("Gru", &gru, &[x.clone(), h0.clone()], |t| {
        let o = gru.run(&t[0], &[RnnState { h: t[1].clone(), c: None }], Some(&lengths))?;
        joined(o.y, o.state)
    });
    for (what, l) in
        [("tanh", Recurrent::new(&cx, 2, 2).unwrap()), ("relu", Recurrent::new(&cx, 2, 2).unwrap().relu())]
    {
        gradcheck_layer(what, &l, &[x.clone(), h0.clone()], |t| {
            let o = l.run(&t[0], &[RnnState { h: t[1].clone(), c: None }], None)?;
            joined(o.y, o.state)
        });
    }
    let last = Lstm::new(&cx, 2, 2).unwrap().no_bias().return_last();
    gradcheck_layer("Lstm, last state", &last, from_ref(&x), |t| last.forward(&t[0]));
    let deep =
        Gru::new(&cx, 2, 2).unwrap().num_layers(2).unwrap().dropout(0.3).unwrap().bidirectional().unwrap();
    gradcheck_layer("deep bidirectional Gru", &deep, from_ref(&x), |t| {
        let (mut y, s) = deep.run(&t[0], &[], Some(&lengths))?;
        joined(y.remove(0), s)
    });
    on_devices(
        "Lstm",
        &[&[3, 5, 4]],
        |cx| Lstm::new(cx, 4, 6)?.num_layers(2)?.bidirectional(),
        |l, t| l.forward(&t[0]),
    );
    on_devices("Gru", &[&[3, 5, 4]], |cx| Gru::new(cx, 4, 6), |l, t| l.forward(&t[0]));
    on_devices("Recurrent", &[&[3, 5, 4]], |cx| Recurrent::new(cx, 4, 6), |l, t| l.forward(&t[0]));
}

#[test]
fn recurrent_state_dropout_and_errors() {
    let cx = f64s();
    let x = tensor(&cpu(), &[2, 4, 3], 1);
    let layer = Lstm::new(&cx, 3, 2).unwrap().stateful();
    let free = Lstm::new(&cx, 3, 2).unwrap();
    free.load_state_dict(&layer.state_dict().unwrap()).unwrap();
    let whole = host(&free.forward(&x).unwrap().narrow(1, 2, 2).unwrap());
    layer.forward(&x.narrow(1, 0, 2).unwrap()).unwrap();
    let second = layer.forward(&x.narrow(1, 2, 2).unwrap()).unwrap();
    close(&host(&second), &whole, 1e-12, "in two calls");
    // Carried states are constants; another batch size starts anew.
    second.sum().unwrap().backward().unwrap();
    assert_eq!(layer.forward(&x.narrow(0, 0, 1).unwrap()).unwrap().shape(), [1, 4, 2]);
    layer.reset_state();
    close(&host(&layer.forward(&x).unwrap()), &host(&free.forward(&x).unwrap()), 1e-12, "after reset_state");

    let deep = Gru::new(&cx, 3, 2).unwrap().num_layers(2).unwrap().dropout(0.5).unwrap();
    assert_ne!(host(&deep.forward(&x).unwrap()), host(&deep.forward(&x).unwrap()));
    assert_eq!(deep.counters().into_keys().collect::<Vec<_>>(), ["dropout.offset"]);
    deep.eval();
    assert_eq!(host(&deep.forward(&x).unwrap()), host(&deep.forward(&x).unwrap()));
    round_trip(&deep, &Gru::new(&cx, 3, 2).unwrap().num_layers(2).unwrap(), &x);
    let lazy = Recurrent::lazy(&cx, 2).unwrap();
    assert_eq!(lazy.num_parameters(), 0);
    lazy.forward(&x).unwrap();
    assert_eq!(lazy.num_parameters(), 2 * 3 + 2 * 2 + 4);

    refused(lazy.forward(&tensor(&cpu(), &[2, 4, 5], 1)), &["Recurrent", "x", "3"]);
    refused(free.forward(&x.narrow(1, 0, 0).unwrap()), &["Lstm", "step"]);
    refused(free.run(&x, &[RnnState { h: tensor(&cpu(), &[2, 2], 1), c: None }], None), &["Lstm", "initial"]);
    let wide = RnnState { h: tensor(&cpu(), &[2, 3], 1), c: None };
    refused(deep.run(&x, &[wide.clone(), wide], None), &["Gru", "initial"]);
    refused(free.run(&x, &[], Some(&ids(&[1, 1, 1], &[3]))), &["Lstm", "lengths"]);
    refused(sequence_lengths(&cpu(), &[1, 5], 4), &["lengths", "4"]);
    refused(sequence_lengths(&cpu(), &[0], 4), &["lengths"]);
    refused(Lstm::new(&cx, 3, 0), &["Lstm", "hidden_size"]);
    refused(Gru::new(&cx, 3, 2).unwrap().num_layers(0), &["Gru", "num_layers"]);
    refused(Gru::new(&cx, 3, 2).unwrap().dropout(1.5), &["Dropout"]);
    refused(free.forward(&tensor(&cpu(), &[3], 1)), &["Lstm", "[B, T, D]"]);
}

#[test]
fn conv_lstm() {
    let cx = f64s();
    let x = tensor(&cpu(), &[2, 3, 2, 2, 3], 1);
    let layer = ConvLstm::new(&cx, 2, 2, [3, 1]).unwrap().peepholes();
    layer.forward(&x).unwrap();
    let bias = param(&layer, "bias");
    assert_eq!(bias, [0., 0., 1., 1., 0., 0., 0., 0.], "the forget gates start open");
    let mut state = layer.state_dict().unwrap();
    for (i, n) in ["w_ci", "w_cf", "w_co"].into_iter().enumerate() {
        state.insert(n.into(), tensor(&cpu(), &[2, 2, 3], 7 + i as u64));
    }
    layer.load_state_dict(&state).unwrap();
    let (h0, c0) = (tensor(&cpu(), &[2, 2, 2, 3], 2), tensor(&cpu(), &[2, 2, 2, 3], 3));
    gradcheck_layer("ConvLstm", &layer, &[x.clone(), h0, c0], |t| {
        let s = RnnState { h: t[1].clone(), c: Some(t[2].clone()) };
        let (y, s) = layer.run(&t[0], Some(&s))?;
        let c = s.c.map_or_else(|| s.h.copy(), Ok)?;
        Tensor::concat(1, &[&y, &s.h.unsqueeze(1)?, &c.unsqueeze(1)?])
    });
    assert_eq!(state_names(&layer), ["weight_ih", "weight_hh", "bias", "w_ci", "w_cf", "w_co"]);
    // With a kernel and an image of one element it is an LSTM.
    let small = ConvLstm::new(&cx, 3, 2, [1, 1]).unwrap();
    let lstm = Lstm::new(&cx, 3, 2).unwrap();
    let flat = |n: &str, shape: &[usize]| Tensor::from_slice(&cpu(), &param(&small, n), shape).unwrap();
    let mut state = lstm.state_dict().unwrap();
    state.insert("weight_ih_l0".into(), flat("weight_ih", &[8, 3]));
    state.insert("weight_hh_l0".into(), flat("weight_hh", &[8, 2]));
    state.insert("bias_ih_l0".into(), flat("bias", &[8]));
    state.insert("bias_hh_l0".into(), Tensor::zeros(&cpu(), DType::F64, &[8]).unwrap());
    lstm.load_state_dict(&state).unwrap();
    let x = tensor(&cpu(), &[2, 4, 3], 4);
    let y = small.forward(&x.reshape(&[2, 4, 3, 1, 1]).unwrap()).unwrap();
    close(&host(&y), &host(&lstm.forward(&x).unwrap()), 1e-12, "ConvLstm of one pixel");
    // Any other convolution of the input: that of single frames, then one step at a time by hand.
    let strided = ConvLstm::new(&cx, 2, 2, [3, 3]).unwrap();
    let strided = strided.stride([2, 1]).unwrap().padding([1, 2]).dilation([1, 2]).unwrap();
    let x = tensor(&cpu(), &[1, 2, 2, 4, 5], 5);
    gradcheck_layer("ConvLstm with a stride", &strided, from_ref(&x), |t| strided.forward(&t[0]));
    let y = strided.forward(&x).unwrap();
    assert_eq!(y.shape(), [1, 2, 2, 2, 5]);
    let w = |n: &str, shape: &[usize]| Tensor::from_slice(&cpu(), &param(&strided, n), shape).unwrap();
    let (w_ih, w_hh) = (w("weight_ih", &[8, 2, 3, 3]), w("weight_hh", &[8, 2, 3, 3]));
    let bias = w("bias", &[8]);
    let mut h = Tensor::zeros(&cpu(), DType::F64, &[1, 2, 2, 5]).unwrap();
    let mut c = h.clone();
    for t in 0..2 {
        let frames = Conv::new().stride([2, 1]).pad([1, 2]).dilation([1, 2]);
        let a = x.select(1, t).unwrap().conv2d(&w_ih, Some(&bias), &frames).unwrap();
        let z = a.add(&h.conv2d(&w_hh, None, &Conv::new().pad(1)).unwrap()).unwrap();
        let g = z.split(1, &[2; 4]).unwrap();
        let kept = g[1].sigmoid().unwrap().mul(&c).unwrap();
        c = kept.add(&g[0].sigmoid().unwrap().mul(&g[2].tanh().unwrap()).unwrap()).unwrap();
        h = g[3].sigmoid().unwrap().mul(&c.tanh().unwrap()).unwrap();
        close(&host(&y.select(1, t).unwrap()), &host(&h), 1e-12, "ConvLstm with a stride");
    }
    let whole = ConvLstm::new(&cx, 2, 2, [3, 3]).unwrap().stride(2).unwrap();
    refused(whole.forward(&x), &["ConvLstm", "padding"]);
    refused(ConvLstm::new(&cx, 2, 2, [3, 3]).unwrap().stride(0), &["ConvLstm", "stride"]);
    refused(ConvLstm::new(&cx, 2, 2, [2, 3]), &["ConvLstm", "kernel_size"]);
    refused(small.forward(&tensor(&cpu(), &[2, 4, 3], 4)), &["ConvLstm", "[B, T, C, H, W]"]);
    refused(layer.forward(&tensor(&cpu(), &[2, 3, 2, 3, 3], 1)), &["ConvLstm", "images"]);
    refused(layer.forward(&tensor(&cpu(), &[2, 3, 1, 2, 3], 1)), &["ConvLstm", "2 channels"]);
    on_devices(
        "ConvLstm",
        &[&[2, 3, 2, 4, 3]],
        |cx| ConvLstm::new(cx, 2, 3, [3, 3]),
        |l, t| l.forward(&t[0]),
    );
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
fn input_and_masking() {
    let layer = Input::new(&[3, -1]).unwrap().dtype(DType::F64);
    let x = tensor(&cpu(), &[2, 3, 5], 1);
    assert_eq!(host(&layer.forward(&x).unwrap()), host(&x));
    refused(layer.forward(&x.transpose(1, 2).unwrap()), &["Input", "[3, -1]", "[2, 5, 3]"]);
    refused(layer.forward(&x.select(0, 0).unwrap()), &["Input"]);
    refused(layer.forward(&f32s(&cpu(), &[0.0; 6], &[1, 3, 2])), &["Input", "f64", "f32"]);
    refused(Input::new(&[]), &["Input"]);
    refused(Input::new(&[0]), &["Input"]);

    let layer = Masking::new(-1.0).unwrap();
    let v = [-1.0, -1.0, -1.0, 2.0, f64::NAN, 3.0, 4.0, 5.0];
    let x = Tensor::from_slice(&cpu(), &v, &[2, 2, 2]).unwrap().with_grad();
    let all = layer.forward_all(from_ref(&x)).unwrap();
    assert_eq!(all[1].to_vec::<u8>().unwrap(), [0, 1, 1, 1]);
    let y = host(&all[0]);
    assert!(y[4].is_nan());
    assert_eq!((&y[..4], &y[5..]), (&[0.0, 0.0, -1.0, 2.0][..], &[3.0, 4.0, 5.0][..]));
    all[0].sum().unwrap().backward().unwrap();
    assert_eq!(host(&x.grad().unwrap()), [0.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]);
    refused(layer.forward(&tensor(&cpu(), &[2, 2], 1)), &["Masking", "[B, T, ..]"]);
    refused(Masking::new(f64::NAN), &["Masking", "value"]);
}

#[test]
fn last_steps_and_parts() {
    let x = tensor(&cpu(), &[2, 3, 4], 1);
    gradcheck_layer("SequenceLast", &SequenceLast, from_ref(&x), |t| SequenceLast.forward(&t[0]));
    assert_eq!(host(&SequenceLast.forward(&x).unwrap()), host(&x.select(1, 2).unwrap()));
    assert_eq!(SequenceLast.forward(&x.select(0, 0).unwrap()).unwrap().shape(), [4]);
    let lengths = sequence_lengths(&cpu(), &[2, 3], 3).unwrap();
    gradcheck_layer("SequenceLast at lengths", &SequenceLast, from_ref(&x), |t| {
        SequenceLast.at_lengths(&t[0], &lengths)
    });
    let y = SequenceLast.forward_all(&[x.clone(), ids(&[2, 3], &[2])]).unwrap().remove(0);
    let want = [host(&x)[4..8].to_vec(), host(&x)[20..24].to_vec()].concat();
    assert_eq!((y.shape(), host(&y)), (&[2, 4][..], want));
    refused(SequenceLast.forward(&x.narrow(1, 0, 0).unwrap()), &["SequenceLast", "step"]);
    refused(SequenceLast.forward(&ids(&[1], &[1])), &["SequenceLast"]);
    refused(SequenceLast.at_lengths(&x, &ids(&[1], &[1])), &["SequenceLast", "lengths"]);

    let halves = Split::new(2, -1).unwrap();
    let parts = halves.forward_all(from_ref(&x)).unwrap();
    assert_eq!(parts.iter().map(|t| t.shape().to_vec()).collect::<Vec<_>>(), [[2, 3, 2], [2, 3, 2]]);
    assert_eq!(host(&parts[1]), host(&x.narrow(2, 2, 2).unwrap()));
    let stacked = halves.forward(&x).unwrap();
    assert_eq!(stacked.shape(), [2, 3, 2, 2]);
    assert_eq!(host(&stacked.select(2, 1).unwrap()), host(&parts[1]));
    let sizes = Split::sizes(&[1, 2], 1).unwrap();
    gradcheck(
        "Split",
        &[&[2, 3, 2]],
        |x| x,
        |t| {
            let p = sizes.split(&t[0])?;
            p[1].mul(&p[0])
        },
    );
    gradcheck_layer("Split, one part unused", &sizes, from_ref(&x), |t| Ok(sizes.split(&t[0])?.remove(1)));
    refused(Split::new(3, -1).unwrap().split(&x), &["Split", "4"]);
    refused(sizes.split(&x.narrow(1, 0, 2).unwrap()), &["Split", "sizes"]);
    refused(sizes.forward(&x), &["Split"]);
    refused(Split::new(3, 1).unwrap().forward(&x), &["Split", "last axis"]);
    refused(Split::new(0, 1), &["Split"]);
    refused(Split::sizes(&[], 1), &["Split"]);
}

#[test]
fn one_layer_for_all_steps() {
    let cx = f64s();
    let layer = TimeDistributed::new(Dense::new(&cx, 4, 2).unwrap()).activation(Activation::Tanh);
    let x = tensor(&cpu(), &[2, 3, 4], 1);
    gradcheck_layer("TimeDistributed", &layer, from_ref(&x), |t| layer.forward(&t[0]));
    assert_eq!(state_names(&layer), ["inner.weight", "inner.bias"]);
    // Batch statistics are those of all steps together.
    let norm = BatchNormalization::new(&cx, 4).unwrap().no_affine();
    let over = TimeDistributed::new(BatchNormalization::new(&cx, 4).unwrap().no_affine());
    close(
        &host(&over.forward(&x).unwrap()),
        &host(&norm.forward(&x.reshape(&[6, 4]).unwrap()).unwrap()),
        1e-12,
        "TimeDistributed of BatchNormalization",
    );
    over.eval();
    norm.eval();
    close(
        &host(&over.forward(&x).unwrap()),
        &host(&norm.forward(&x.reshape(&[6, 4]).unwrap()).unwrap()),
        1e-12,
        "in evaluation",
    );
    refused(layer.forward(&tensor(&cpu(), &[2, 4], 1)), &["TimeDistributed"]);
    refused(layer.forward(&x.narrow(1, 0, 0).unwrap()), &["TimeDistributed", "step"]);
    refused(TimeDistributed::new(Mean::new(&[0])).forward(&x), &["TimeDistributed", "6 items"]);
}

#[test]
fn means_and_log_variances() {
    let x = tensor(&cpu(), &[2, 3, 4], 1);
    for dims in [&[0isize][..], &[-1, 1], &[0, 1, 2]] {
        let (mean, var) = (Mean::new(dims), LogVariance::new(dims).eps(1e-3).unwrap().keepdim());
        gradcheck_layer("Mean", &mean, from_ref(&x), |t| mean.forward(&t[0]));
        gradcheck_layer("LogVariance", &var, from_ref(&x), |t| var.forward(&t[0]));
    }
    assert_eq!(Mean::new(&[0, 1, 2]).forward(&x).unwrap().shape(), [] as [usize; 0]);
    assert_eq!(Mean::new(&[1]).keepdim().forward(&x).unwrap().shape(), [2, 1, 4]);
    let v = host(&x);
    let mean = v.iter().sum::<f64>() / 24.0;
    close(&host(&Mean::new(&[0, 1, 2]).forward(&x).unwrap()), &[mean], 1e-12, "Mean");
    let var = v.iter().map(|a| (a - mean).powi(2)).sum::<f64>() / 24.0;
    close(
        &host(&LogVariance::new(&[0, 1, 2]).forward(&x).unwrap()),
        &[(var + 1e-8).ln()],
        1e-12,
        "LogVariance",
    );
    for d in devices() {
        // Constant rows far from 0: the logarithm of eps and no gradient.
        let x = f32s(&d, &[1e4; 8], &[2, 4]).with_grad();
        let y = LogVariance::new(&[1]).forward(&x).unwrap();
        for a in y.to_vec::<f32>().unwrap() {
            assert!((a - 1e-8f32.ln()).abs() < 1e-3, "{a}");
        }
        y.sum().unwrap().backward().unwrap();
        assert_eq!(x.grad().unwrap().to_vec::<f32>().unwrap(), [0.0; 8]);
    }
    refused(Mean::new(&[0, -3]).forward(&x), &["Mean", "distinct"]);
    refused(Mean::new(&[3]).forward(&x), &["Mean", "axis"]);
    refused(Mean::new(&[1]).forward(&x.narrow(1, 0, 0).unwrap()), &["Mean", "element"]);
    refused(LogVariance::new(&[0]).eps(0.0), &["LogVariance", "eps"]);
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
