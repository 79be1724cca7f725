//! Recurrent layers against their definitions.

use std::slice::from_ref;

use super::{host, ids};
use crate::common::layers::{f64s, gradcheck_layer, on_devices, param, refused, round_trip, state_names};
use crate::common::{close, cpu, tensor};
use trefoil::DType;
use trefoil::ops::conv::Conv;
use trefoil_nn::layers::*;
use trefoil_nn::{Layer, LayerExt, RnnState, Tensor, sequence_lengths};

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
