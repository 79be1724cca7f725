//! Gated linear attention and the recurrent block of Griffin.

use std::slice::from_ref;

use trefoil::ops::activation::Activation;
use trefoil::ops::random::Rng;
use trefoil_nn::layers::{GatedDeltaNet, GatedLinearAttention, Mamba, RecurrentBlock, RecurrentState, Rglru};
use trefoil_nn::summary::summary;
use trefoil_nn::{DType, Device, InitContext, Layer, LayerExt, Result, Tensor};

use crate::common::everywhere::{resident, values};
use crate::common::layers::{f64s, gradcheck_layer, on_devices, param, refused, round_trip, state_names};
use crate::common::{close, cpu, devices, id, tensor};

/// Four heads of queries for two of keys and values, with convolutions.
fn grouped(cx: &InitContext) -> Result<GatedLinearAttention> {
    GatedLinearAttention::with_expansion(cx, 8, 4, [1.0, 0.5])?
        .num_kv_heads(2)?
        .gate_low_rank_dim(3)?
        .short_conv(2)
}

fn block(cx: &InitContext) -> Result<RecurrentBlock> {
    RecurrentBlock::with_width(cx, 4, 6, 3)?.conv1d_width(2)
}

#[test]
fn gradients() {
    let cx = f64s();
    let x = tensor(&cpu(), &[2, 5, 8], 1);
    let l = grouped(&cx).unwrap();
    gradcheck_layer("GatedLinearAttention in groups", &l, from_ref(&x), |t| l.forward(&t[0]));
    let l = GatedLinearAttention::new(&cx, 8, 2).unwrap().gate_low_rank_dim(2).unwrap();
    let l = l.no_output_gate().unwrap().gate_logit_normalizer(1.0).unwrap().clamp_min(-5.0).unwrap();
    gradcheck_layer("GatedLinearAttention without gate", &l, from_ref(&x), |t| l.forward(&t[0]));
    let l = Rglru::new(&cx, 8, 2).unwrap();
    gradcheck_layer("Rglru", &l, from_ref(&x), |t| l.forward(&t[0]));
    let l = Rglru::new(&cx, 8, 4).unwrap().first_as_is();
    gradcheck_layer("Rglru, first token as it is", &l, from_ref(&x), |t| l.forward(&t[0]));
    let l = block(&cx).unwrap().activation(Activation::Gelu);
    let x = tensor(&cpu(), &[2, 5, 4], 2);
    gradcheck_layer("RecurrentBlock", &l, from_ref(&x), |t| l.forward(&t[0]));
}

/// A pass over all tokens, and the same in pieces with a state.
fn in_pieces(
    what: &str,
    layer: &dyn Layer,
    x: &Tensor,
    tolerance: f64,
    step: &dyn Fn(&Tensor, &mut RecurrentState) -> Result<Tensor>,
) {
    let want = values(&layer.forward(x).unwrap());
    let steps = x.shape()[1];
    let ones = vec![1; steps];
    for sizes in [&[steps][..], &ones, &[7, 1, 0, steps - 9, 1]] {
        let mut state = RecurrentState::new(1).unwrap();
        let parts: Vec<Tensor> = x.split(1, sizes).unwrap();
        let parts: Vec<Tensor> = parts.iter().map(|t| step(t, &mut state).unwrap()).collect();
        let got = Tensor::concat(1, &parts.iter().collect::<Vec<_>>()).unwrap();
        assert!(!got.requires_grad() && state.len() == steps, "{what}");
        close(&values(&got), &want, tolerance, what);
    }
}

#[test]
fn a_state_goes_on_where_a_pass_ended() {
    for (cx, tolerance) in
        [(f64s(), 1e-11)].into_iter().chain(devices().iter().map(|d| (InitContext::new(d, 3), 2e-5)))
    {
        let x = Tensor::randn(cx.device(), cx.param_dtype(), &[2, 21, 8], Rng::new(4)).unwrap();
        let l = Mamba::new(&cx, 8).unwrap().d_state(3).unwrap();
        in_pieces("Mamba", &l, &x, tolerance, &|t, s| l.forward_with_state(t, s, 0));
        let l = Mamba::new(&cx, 8).unwrap().d_conv(1).unwrap();
        in_pieces("Mamba, one token", &l, &x, tolerance, &|t, s| l.forward_with_state(t, s, 0));
        let l = GatedDeltaNet::new(&cx, 8, 2, 3).unwrap();
        in_pieces("GatedDeltaNet", &l, &x, tolerance, &|t, s| l.forward_with_state(t, s, 0));
        let l = grouped(&cx).unwrap();
        in_pieces("GatedLinearAttention", &l, &x, tolerance, &|t, s| l.forward_with_state(t, s, 0));
        let l = GatedLinearAttention::new(&cx, 8, 2).unwrap();
        in_pieces("no convolutions", &l, &x, tolerance, &|t, s| l.forward_with_state(t, s, 0));
        let l = Rglru::new(&cx, 8, 2).unwrap().first_as_is();
        in_pieces("Rglru", &l, &x, tolerance, &|t, s| l.forward_with_state(t, s, 0));
        let l = RecurrentBlock::with_width(&cx, 8, 6, 3).unwrap();
        in_pieces("RecurrentBlock", &l, &x, tolerance, &|t, s| l.forward_with_state(t, s, 0));
    }
    for d in devices() {
        let cx = InitContext::new(&d, 3);
        let (l, x) = (Mamba::new(&cx, 8).unwrap(), Tensor::ones(&d, DType::F32, &[2, 9, 8]).unwrap());
        let mut state = RecurrentState::new(1).unwrap();
        l.forward_with_state(&x, &mut state, 0).unwrap();
        let one = x.narrow(1, 0, 1).unwrap();
        resident("one token", &d, || l.forward_with_state(&one, &mut state, 0).map(drop)).unwrap();
    }
}

#[test]
fn states_refuse_what_does_not_fit() {
    refused(RecurrentState::new(0), &["RecurrentState", "at least one layer"]);
    let cx = InitContext::new(&cpu(), 3);
    let l = Rglru::new(&cx, 8, 2).unwrap();
    let x = |batch: usize| Tensor::ones(&cpu(), DType::F32, &[batch, 3, 8]).unwrap();
    let mut state = RecurrentState::new(2).unwrap();
    l.forward_with_state(&x(2), &mut state, 1).unwrap();
    assert_eq!((state.len(), state.num_layers()), (0, 2), "layer 0 has seen nothing");
    refused(l.forward_with_state(&x(2), &mut state, 2), &["RecurrentState", "layer", "below 2"]);
    refused(l.forward_with_state(&x(1), &mut state, 1), &["RecurrentState", "batch of 2"]);
    refused(l.forward_with_state(&x(2).narrow(2, 0, 7).unwrap(), &mut state, 1), &["Rglru", "8"]);
    l.forward_with_state(&x(2), &mut state, 0).unwrap();
    // A pass that fails in its second layer leaves nothing behind.
    let failed = state.extend(|state| {
        l.forward_with_state(&x(2), state, 0)?;
        l.forward_with_state(&x(1), state, 1)
    });
    assert!(failed.is_err() && state.len() == 3);
    let after = l.forward_with_state(&x(2), &mut state.clone(), 0).unwrap();
    close(&values(&l.forward_with_state(&x(2), &mut state, 0).unwrap()), &values(&after), 1e-12, "a clone");
    state.clear();
    assert!(state.is_empty());
    l.forward_with_state(&x(1), &mut state, 1).unwrap();
}

#[test]
fn every_device_computes_the_same() {
    let x: &[usize] = &[2, 9, 8];
    on_devices("GatedLinearAttention", &[x], grouped, |l, t| l.forward(&t[0]));
    on_devices("Rglru", &[x], |cx| Rglru::new(cx, 8, 4), |l, t| l.forward(&t[0]));
    on_devices("RecurrentBlock", &[&[2, 9, 4]], block, |l, t| l.forward(&t[0]));
    for d in devices() {
        let cx = InitContext::new(&d, 3);
        let layers: [Box<dyn Layer>; 2] =
            [Box::new(grouped(&cx).unwrap()), Box::new(Rglru::new(&cx, 8, 2).unwrap().first_as_is())];
        let x = Tensor::ones(&d, DType::F32, &[2, 9, 8]).unwrap();
        for l in layers {
            resident(l.kind(), &d, || l.forward(&x).unwrap().sum().unwrap().backward().unwrap());
        }
    }
}

#[test]
fn states_have_the_names_of_their_sources() {
    let cx = f64s();
    let l = grouped(&cx).unwrap();
    let names = [
        "q_proj.weight",
        "k_proj.weight",
        "v_proj.weight",
        "g_proj.weight",
        "q_conv1d.weight",
        "k_conv1d.weight",
        "v_conv1d.weight",
        "gk_proj.0.weight",
        "gk_proj.1.weight",
        "gk_proj.1.bias",
        "o_proj.weight",
        "g_norm_swish_gate.weight",
    ];
    assert_eq!(state_names(&l), names);
    let shapes: Vec<Vec<usize>> = l.named_state().iter().map(|(_, p)| p.get().shape().to_vec()).collect();
    assert_eq!(shapes[..4], [vec![8, 8], vec![4, 8], vec![2, 8], vec![4, 8]]);
    assert_eq!(shapes[4..8], [vec![8, 1, 2], vec![4, 1, 2], vec![2, 1, 2], vec![3, 8]]);
    assert_eq!(shapes[8..], [vec![4, 3], vec![4], vec![8, 4], vec![1]]);
    let bare = GatedLinearAttention::new(&cx, 8, 2).unwrap().no_output_gate().unwrap();
    assert_eq!(state_names(&bare).last().unwrap(), "g_norm.weight");
    assert!(!state_names(&bare).iter().any(|n| n.starts_with("g_proj")));

    let names = [
        "linear_y.weight",
        "linear_y.bias",
        "linear_x.weight",
        "linear_x.bias",
        "linear_out.weight",
        "linear_out.bias",
        "conv_1d.weight",
        "conv_1d.bias",
        "rg_lru.recurrent_param",
        "rg_lru.input_gate_weight",
        "rg_lru.input_gate_bias",
        "rg_lru.recurrent_gate_weight",
        "rg_lru.recurrent_gate_bias",
    ];
    let l = block(&cx).unwrap();
    assert_eq!(state_names(&l), names);
    let shapes: Vec<Vec<usize>> = l.named_state().iter().map(|(_, p)| p.get().shape().to_vec()).collect();
    assert_eq!(
        shapes[6..],
        [vec![6, 1, 2], vec![6], vec![6], vec![3, 2, 2], vec![3, 2], vec![3, 2, 2], vec![3, 2]]
    );

    let other = InitContext::new(&cpu(), 12).dtype(DType::F64);
    let (x, y) = (tensor(&cpu(), &[2, 5, 8], 1), tensor(&cpu(), &[2, 5, 4], 1));
    round_trip(&grouped(&cx).unwrap(), &grouped(&other).unwrap(), &x);
    round_trip(&block(&cx).unwrap(), &block(&other).unwrap(), &y);
    let x = y.to_dtype(DType::F32).unwrap();
    let text = summary(&block(&InitContext::new(&cpu(), 1)).unwrap(), from_ref(&x));
    let text = text.unwrap().to_string();
    for part in ["linear_y", "linear_x", "linear_out", "conv_1d", "rg_lru", "Rglru"] {
        assert!(text.contains(part), "{part} is missing in\n{text}");
    }
}

/// exp(-8 softplus(L)) is spread over [0.9, 0.999], and finite in 16 bits.
#[test]
fn decays_begin_between_their_bounds() {
    let decays = |l: &Rglru| -> Vec<f64> {
        let softplus = |x: f64| x.exp().ln_1p();
        param_of(l, "recurrent_param").into_iter().map(|x| (-8.0 * softplus(x)).exp()).collect()
    };
    let (n, bounds) = (4000, 0.9..=0.999);
    for d in devices() {
        let all = decays(&Rglru::new(&InitContext::new(&d, 5), n, 1000).unwrap());
        assert!(all.iter().all(|a| (0.9 - 1e-5..=0.999 + 1e-5).contains(a)), "on {}", id(&d));
        let mean = all.iter().sum::<f64>() / n as f64;
        let variance = all.iter().map(|a| (a - mean).powi(2)).sum::<f64>() / n as f64;
        let width = bounds.end() - bounds.start();
        close(&[mean, variance * 12.0 / (width * width)], &[0.9495, 1.0], 0.05, "moments of the decays");
        for dtype in [DType::F16, DType::Bf16] {
            let all = decays(&Rglru::new(&InitContext::new(&d, 5).dtype(dtype), n, 1000).unwrap());
            assert!(all.iter().all(|a| (0.89..1.0).contains(a)), "{dtype} on {}", id(&d));
        }
    }
}

fn param_of(l: &dyn Layer, name: &str) -> Vec<f64> {
    let all = l.named_state();
    values(&all.iter().find(|(n, _)| n == name).unwrap().1.get())
}

/// Gates that are shut keep what was and let nothing in; their gradients are finite.
#[test]
fn shut_and_open_gates() {
    let run = |d: &Device, dtype: DType, logit: f64| {
        let l = Rglru::new(&InitContext::new(d, 2).dtype(dtype), 4, 2).unwrap();
        let filled = |name: &str, v: f64| {
            let all = l.named_state();
            let p = &all.iter().find(|(n, _)| n == name).unwrap().1;
            p.set(Tensor::full(d, dtype, p.get().shape(), v).unwrap());
        };
        for gate in ["input_gate_weight", "recurrent_gate_weight", "input_gate_bias"] {
            filled(gate, 0.0);
        }
        filled("recurrent_gate_bias", logit);
        filled("recurrent_param", 3.0);
        let x = Tensor::ones(d, dtype, &[1, 6, 4]).unwrap().with_grad();
        let y = l.forward(&x).unwrap();
        y.sum().unwrap().backward().unwrap();
        let grads = l.named_parameters().into_iter().map(|(_, p)| p.get()).chain([x]);
        let grads: Vec<f64> = grads.flat_map(|t| values(&t.grad().unwrap())).collect();
        assert!(grads.iter().all(|g| g.is_finite()), "{dtype} on {}: {grads:?}", id(d));
        values(&y)
    };
    for d in devices() {
        for dtype in [DType::F32, DType::F16, DType::Bf16] {
            // softplus(3) * 8 = 24.4: nothing is left of the token before, and half of a token comes in.
            close(&run(&d, dtype, 60.0), &[0.5; 24], 1e-6, "open");
            close(&run(&d, dtype, -200.0), &[0.0; 24], 1e-6, "shut");
        }
    }
}

/// A decay of 1 sums values up; the lower bound of a decay holds.
#[test]
fn decays_of_attention() {
    let cx = f64s();
    let make = |lowest: f64| {
        let l = GatedLinearAttention::new(&cx, 4, 1).unwrap().gate_logit_normalizer(1.0).unwrap();
        l.clamp_min(lowest).unwrap()
    };
    let (free, bound, summing) = (make(f64::NEG_INFINITY), make(-0.25), make(0.0));
    let state = free.state_dict().unwrap();
    bound.load_state_dict(&state).unwrap();
    summing.load_state_dict(&state).unwrap();
    let x = tensor(&cpu(), &[1, 6, 4], 1);
    let run = |l: &GatedLinearAttention| values(&l.forward(&x).unwrap());
    assert_ne!(run(&free), run(&bound));
    assert_ne!(run(&bound), run(&summing));
    // Logits of 0 decay by ln 2, which the bound of a quarter cuts.
    let fixed = |logit: f64| {
        let l = make(f64::NEG_INFINITY);
        let mut state = state.clone();
        for (name, value) in [("gk_proj.1.weight", 0.0), ("gk_proj.1.bias", logit)] {
            let shape = state[name].shape().to_vec();
            state.insert(name.into(), Tensor::full(&cpu(), DType::F64, &shape, value).unwrap());
        }
        l.load_state_dict(&state).unwrap();
        run(&l)
    };
    // sigmoid(x) = exp(-1/4)
    let logit = -(0.25f64.exp_m1().ln());
    let cut = make(-0.25);
    let mut low = state.clone();
    low.insert("gk_proj.1.bias".into(), Tensor::full(&cpu(), DType::F64, &[2], -9.0).unwrap());
    low.insert("gk_proj.1.weight".into(), Tensor::zeros(&cpu(), DType::F64, &[2, 16]).unwrap());
    cut.load_state_dict(&low).unwrap();
    close(&run(&cut), &fixed(logit), 1e-12, "a decay at its bound");
    close(&run(&summing), &fixed(60.0), 1e-12, "a decay of 1");
    assert_eq!(param(&cut, "gk_proj.1.bias"), [-9.0; 2]);
}

#[test]
fn what_does_not_fit_is_refused() {
    let cx = f64s();
    let gla = || GatedLinearAttention::new(&cx, 8, 2).unwrap();
    let with = |width, heads, expand| GatedLinearAttention::with_expansion(&cx, width, heads, expand);
    refused(GatedLinearAttention::new(&cx, 0, 2), &["GatedLinearAttention", "d_model", "at least 1"]);
    refused(GatedLinearAttention::new(&cx, 8, 0), &["GatedLinearAttention", "num_heads", "at least 1"]);
    refused(GatedLinearAttention::new(&cx, 8, 3), &["expand_k", "multiple of 3 heads of 8", "makes 4"]);
    refused(with(8, 2, [1.0, f64::NAN]), &["expand_v", "NaN"]);
    refused(with(8, 2, [-1.0, 1.0]), &["expand_k", "-1, which makes 0"]);
    refused(with(8, 2, [1.0, 0.1]), &["expand_v", "0.1, which makes 0"]);
    for n in [0, 3] {
        refused(gla().num_kv_heads(n), &["num_kv_heads", "divisor of num_heads, 2"]);
    }
    refused(gla().gate_low_rank_dim(0), &["gate_low_rank_dim", "at least 1"]);
    refused(gla().short_conv(0), &["conv_size", "at least 1"]);
    for n in [0.0, -1.0, f64::INFINITY, f64::NAN] {
        refused(gla().gate_logit_normalizer(n), &["gate_logit_normalizer", "finite number above 0"]);
    }
    for n in [0.5, f64::NAN] {
        refused(gla().clamp_min(n), &["clamp_min", "at most 0"]);
    }
    refused(Rglru::new(&cx, 0, 1), &["Rglru", "lru_width", "at least 1"]);
    refused(Rglru::new(&cx, 6, 0), &["Rglru", "num_heads", "at least 1"]);
    refused(Rglru::new(&cx, 6, 4), &["Rglru", "num_heads", "divisor of lru_width, 6", "4"]);
    refused(RecurrentBlock::new(&cx, 0, 1), &["RecurrentBlock", "d_model"]);
    refused(RecurrentBlock::with_width(&cx, 4, 0, 1), &["RecurrentBlock", "lru_width"]);
    refused(RecurrentBlock::new(&cx, 4, 2).unwrap().conv1d_width(0), &["RecurrentBlock", "conv1d_width"]);
    for shape in [&[5, 8][..], &[2, 5, 7], &[1, 2, 5, 8]] {
        let x = tensor(&cpu(), shape, 1);
        refused(gla().forward(&x), &["GatedLinearAttention", "[B, T, 8]"]);
        refused(Rglru::new(&cx, 8, 2).unwrap().forward(&x), &["Rglru", "[B, T, 8]"]);
        refused(RecurrentBlock::new(&cx, 8, 2).unwrap().forward(&x), &["RecurrentBlock", "[B, T, 8]"]);
    }
    let wide = with(600, 1, [0.5, 0.01]).unwrap();
    refused(wide.forward(&tensor(&cpu(), &[1, 2, 600], 1)), &["gla_scan", "256"]);
    // Without tokens, there is nothing to compute.
    let none = tensor(&cpu(), &[2, 0, 8], 1);
    for l in [Rglru::new(&cx, 8, 2).unwrap(), Rglru::new(&cx, 8, 2).unwrap().first_as_is()] {
        assert_eq!(l.forward(&none).unwrap().shape(), [2, 0, 8]);
    }
}
