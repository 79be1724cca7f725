//! Recurrent cells, attention and transformers.

use super::{each, host, random, same};
use crate::common::everywhere::{everywhere, values};
use crate::common::layers::{f64s, gradcheck_layer, param, refused, state_names};
use crate::common::{close, cpu, id, tensor};
use trefoil::DType;
use trefoil::ops::activation::Activation;
use trefoil::ops::attention::{Attention, Causal};
use trefoil_nn::layers::*;
use trefoil_nn::{Layer, LayerExt, Result, RnnState, ScaledDotProductAttention, StateDict, Tensor};

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
