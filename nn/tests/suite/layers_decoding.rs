//! Attention with fewer heads of keys and values, and with a cache of past keys and values.

use std::slice::from_ref;

use crate::common::everywhere::{resident, values};
use crate::common::layers::{f64s, gradcheck_layer, on_devices, param, refused, state_names};
use crate::common::{close, cpu, devices, noise, tensor};
use trefoil::DType;
use trefoil::ops::attention::{Rope, RopeLayout};
use trefoil_nn::layers::*;
use trefoil_nn::{Init, InitContext, Layer, LayerExt, NnError, Result, Tensor};

fn grouped(cx: &InitContext) -> Result<MultiHeadAttention> {
    MultiHeadAttention::new(cx, 8, 4)?.num_kv_heads(2)
}

#[test]
fn groups_of_queries_share_keys_and_values() {
    let cx = f64s();
    let layer = grouped(&cx).unwrap().init(Init::Lin, Init::Lin).unwrap();
    assert_eq!(state_names(&layer), ["in_proj_weight", "in_proj_bias", "out_proj.weight", "out_proj.bias"]);
    let state = layer.state_dict().unwrap();
    assert_eq!((state["in_proj_weight"].shape(), state["in_proj_bias"].shape()), (&[16, 8][..], &[16][..]));

    // The same with each head of keys and values twice.
    let whole = MultiHeadAttention::new(&cx, 8, 4).unwrap();
    let mut wide = state.clone();
    for name in ["in_proj_weight", "in_proj_bias"] {
        let t = &state[name];
        let twice = |from: usize| t.narrow(0, from, 2).unwrap();
        let heads: Vec<Tensor> = [8, 8, 10, 10, 12, 12, 14, 14].into_iter().map(twice).collect();
        let parts: Vec<Tensor> = std::iter::once(t.narrow(0, 0, 8).unwrap()).chain(heads).collect();
        let all = Tensor::concat(0, &parts.iter().collect::<Vec<_>>()).unwrap();
        wide.insert(name.into(), all);
    }
    whole.load_state_dict(&wide).unwrap();
    let (x, y) = (tensor(&cpu(), &[2, 5, 8], 1), tensor(&cpu(), &[2, 3, 8], 2));
    for masks in [AttentionMasks::new(), AttentionMasks::new().causal()] {
        let run =
            |l: &MultiHeadAttention, a: &Tensor, b: &Tensor| values(&l.attend(a, b, b, &masks).unwrap());
        close(&run(&layer, &x, &x), &run(&whole, &x, &x), 1e-12, "of one tensor");
        close(&run(&layer, &y, &x), &run(&whole, &y, &x), 1e-12, "of two tensors");
    }
    let (_, p) = layer.attend_with_weights(&x, &x, &x, &AttentionMasks::new()).unwrap();
    let (_, q) = whole.attend_with_weights(&x, &x, &x, &AttentionMasks::new()).unwrap();
    close(&values(&p), &values(&q), 1e-12, "weights");

    let small = tensor(&cpu(), &[1, 3, 8], 3);
    gradcheck_layer("grouped queries", &layer, from_ref(&small), |t| layer.forward(&t[0]));
    let widths = MultiHeadAttention::new(&cx, 4, 2).unwrap().key_value_dims(3, 5).unwrap().num_kv_heads(1);
    let widths = widths.unwrap();
    let shapes: Vec<_> = widths.named_state().iter().map(|(_, p)| p.get().shape().to_vec()).collect();
    assert_eq!(shapes[..4], [vec![4, 4], vec![2, 3], vec![2, 5], vec![8]]);
    let inputs = [[1, 2, 4], [1, 3, 3], [1, 3, 5]].map(|s| tensor(&cpu(), &s, 4));
    gradcheck_layer("multi-query attention of other widths", &widths, &inputs, |t| {
        widths.attend(&t[0], &t[1], &t[2], &AttentionMasks::new())
    });
    for n in [0, 3, 8] {
        refused(MultiHeadAttention::new(&cx, 8, 4).unwrap().num_kv_heads(n), &["num_kv_heads", "divisor"]);
    }
    on_devices("grouped queries", &[&[2, 5, 8]], grouped, |l, t| l.forward(&t[0]));
}

const SCALING: RopeScaling = RopeScaling {
    factor: 3.0,
    low_freq_factor: 1.0,
    high_freq_factor: 4.0,
    original_max_position_embeddings: 16,
};

#[test]
fn rotary_halves_follow_the_definition() {
    let make =
        |layout| MultiHeadAttention::new(&f64s(), 8, 2).unwrap().no_bias().rotary(layout, 50.0).unwrap();
    let (half, pairs) = (make(RopeLayout::Half), make(RopeLayout::Interleaved));
    let scaled = [RopeLayout::Half, RopeLayout::Interleaved].map(|l| make(l).rope_scaling(&SCALING).unwrap());
    // Rows 0, 1, 2, 3 of a head are pairs (0, 2) and (1, 3) of one layout and (0, 1) and (2, 3) of the other.
    let mut state = half.state_dict().unwrap();
    let w = state["in_proj_weight"].reshape(&[6, 4, 8]).unwrap();
    let order = Tensor::from_slice(&cpu(), &[0i64, 2, 1, 3], &[4]).unwrap();
    let turned = w.narrow(0, 0, 4).unwrap().index_select(1, &order).unwrap();
    let all = Tensor::concat(0, &[&turned, &w.narrow(0, 4, 2).unwrap()]).unwrap();
    state.insert("in_proj_weight".into(), all.reshape(&[24, 8]).unwrap());
    pairs.load_state_dict(&state).unwrap();
    scaled[0].load_state_dict(&half.state_dict().unwrap()).unwrap();
    scaled[1].load_state_dict(&state).unwrap();
    let x = tensor(&cpu(), &[2, 6, 8], 1);
    let run = |l: &MultiHeadAttention| values(&l.forward(&x).unwrap());
    close(&run(&half), &run(&pairs), 1e-12, "halves");
    close(&run(&scaled[0]), &run(&scaled[1]), 1e-12, "scaled halves");
    assert_ne!(run(&half), run(&scaled[0]));
    // A factor of 1 changes nothing.
    let same = make(RopeLayout::Half).rope_scaling(&RopeScaling { factor: 1.0, ..SCALING }).unwrap();
    same.load_state_dict(&half.state_dict().unwrap()).unwrap();
    close(&run(&half), &run(&same), 1e-9, "a factor of 1");
    gradcheck_layer("scaled rotary", &scaled[0], &[x.narrow(0, 0, 1).unwrap()], |t| scaled[0].forward(&t[0]));
    for bad in [RopeScaling { factor: 0.0, ..SCALING }, RopeScaling { low_freq_factor: 4.0, ..SCALING }] {
        refused(make(RopeLayout::Half).rope_scaling(&bad), &["MultiHeadAttention", "rope_scaling"]);
    }
    let none = MultiHeadAttention::new(&f64s(), 8, 2).unwrap();
    refused(none.rope_scaling(&SCALING), &["MultiHeadAttention", "rope_scaling", "set before"]);
    assert_eq!(Rope::new().layout, RopeLayout::Half);
}

/// Calls with the new tokens of each piece.
fn in_pieces(x: &Tensor, sizes: &[usize], mut f: impl FnMut(&Tensor) -> Result<Tensor>) -> Tensor {
    let parts: Vec<Tensor> = x.split(1, sizes).unwrap().iter().map(|t| f(t).unwrap()).collect();
    Tensor::concat(1, &parts.iter().collect::<Vec<_>>()).unwrap()
}

#[test]
fn attention_with_a_cache_is_causal_attention() {
    let plain = |cx: &InitContext| MultiHeadAttention::new(cx, 8, 2);
    type Make = fn(&InitContext) -> Result<MultiHeadAttention>;
    let all: [(&str, Make); 6] = [
        ("plain", plain),
        ("rotary in groups", |cx| grouped(cx)?.rotary(RopeLayout::Half, 100.0)),
        ("interleaved", |cx| MultiHeadAttention::new(cx, 8, 2)?.rope(100.0)),
        ("scaled halves", |cx| grouped(cx)?.rotary(RopeLayout::Half, 9.0)?.rope_scaling(&SCALING)),
        ("scaled pairs", |cx| MultiHeadAttention::new(cx, 8, 2)?.rope(9.0)?.rope_scaling(&SCALING)),
        ("ALiBi", |cx| Ok(MultiHeadAttention::new(cx, 8, 4)?.alibi())),
    ];
    for (what, make) in all {
        let layer = make(&f64s()).unwrap().causal(true);
        let x = tensor(&cpu(), &[2, 21, 8], 1);
        let want = values(&layer.forward(&x).unwrap());
        for sizes in [&[21][..], &[1; 21], &[5, 1, 12, 3]] {
            let mut cache = KvCache::new(1, 21).unwrap();
            let got = in_pieces(&x, sizes, |t| layer.attend_cached(t, &mut cache, 0));
            close(&values(&got), &want, 1e-12, what);
            assert_eq!(cache.len(), 21);
        }
    }
    // A block, and without gradients.
    let config = TransformerConfig::new(8, 2).d_ff(12).dropout(0.0).norm_first();
    let block = TransformerEncoder::new(&f64s(), &config).unwrap().causal(true);
    let x = tensor(&cpu(), &[1, 6, 8], 2).with_grad();
    let mut cache = KvCache::new(2, 6).unwrap();
    let got = in_pieces(&x, &[2, 4], |t| block.encode_cached(t, &mut cache, 1));
    close(&values(&got), &values(&block.forward(&x).unwrap()), 1e-12, "a block");
    assert!(!block.encode_cached(&x, &mut KvCache::new(1, 6).unwrap(), 0).unwrap().requires_grad());
    assert_eq!((cache.len(), cache.num_layers()), (0, 2), "layer 0 holds nothing");
}

#[test]
fn a_cache_grows_by_doubling_on_the_device() {
    for d in devices() {
        let data: Vec<f32> = noise(3, 2 * 3 * 100 * 2).iter().map(|&v| v as f32).collect();
        let k = Tensor::from_slice(&d, &data, &[2, 3, 100, 2]).unwrap();
        let v = k.mul_scalar(2.0).unwrap().narrow(3, 0, 1).unwrap();
        let mut cache = KvCache::new(1, 100).unwrap();
        let mut last: Option<Tensor> = None;
        let mut memories = 0;
        for t in 0..100 {
            let new = |x: &Tensor| x.narrow(2, t, 1).unwrap();
            let (keys, _) = resident("append", &d, || cache.append(0, &new(&k), &new(&v)).unwrap());
            memories += u32::from(!last.is_some_and(|l| l.shares_storage(&keys)));
            last = Some(keys);
        }
        assert_eq!(memories, 4, "16, 32, 64 and 100 tokens");
        cache.truncate(60);
        let new = |x: &Tensor| x.narrow(2, 60, 40).unwrap();
        let (keys, all) = cache.append(0, &new(&k), &new(&v)).unwrap();
        assert_eq!(values(&keys), values(&k));
        assert_eq!(values(&all), values(&v));
    }
}

#[test]
fn caches_refuse_what_does_not_fit() {
    refused(KvCache::new(0, 4), &["KvCache", "at least one layer"]);
    refused(KvCache::new(2, 0), &["KvCache", "one token"]);
    let mut cache = KvCache::new(2, 4).unwrap();
    let t = |shape: &[usize]| tensor(&cpu(), shape, 1);
    let x = t(&[2, 1, 3, 2]);
    assert!(cache.is_empty());
    cache.append(0, &x, &x).unwrap();
    cache.append(1, &x, &x).unwrap();
    assert_eq!((cache.len(), cache.max_len()), (3, 4));
    assert!(matches!(cache.append(1, &x, &x), Err(NnError::CacheFull { max_len: 4, held: 3, new: 3 })));
    refused(cache.append(2, &x, &x), &["KvCache", "layer", "below 2"]);
    let one = t(&[2, 1, 1, 2]);
    refused(cache.append(0, &one, &x), &["KvCache", "values"]);
    refused(cache.append(0, &t(&[1, 2]), &one), &["KvCache", "keys", "rank 4"]);
    let batch = t(&[1, 1, 1, 2]);
    refused(cache.append(0, &batch, &batch), &["KvCache", "keys", "as before"]);
    let half = one.to_dtype(DType::F32).unwrap();
    refused(cache.append(0, &half, &half), &["KvCache", "keys", "f64"]);
    // A pass that fails in its second layer leaves nothing behind.
    let failed: Result<()> = cache.extend(|cache| {
        cache.append(0, &one, &one)?;
        cache.append(1, &batch, &batch).map(drop)
    });
    assert!(failed.is_err());
    assert_eq!(cache.len(), 3);
    cache.append(0, &one, &one).unwrap();
    cache.clear();
    cache.append(0, &batch, &batch).unwrap();
    let layer = MultiHeadAttention::new(&f64s(), 8, 2).unwrap();
    refused(layer.attend_cached(&t(&[1, 1, 7]), &mut KvCache::new(1, 2).unwrap(), 0), &["query", "8"]);
}

#[test]
fn each_dropout_of_a_block_has_its_own_probability() {
    let x = tensor(&cpu(), &[2, 4, 8], 1);
    let changed = |c: TransformerConfig| {
        let block = TransformerEncoder::new(&f64s(), &c.d_ff(16)).unwrap();
        block.train();
        let train = values(&block.forward(&x).unwrap());
        block.eval();
        train != values(&block.forward(&x).unwrap())
    };
    let none = TransformerConfig::new(8, 2).dropout(0.0);
    assert!(!changed(none.clone()));
    assert!(changed(none.clone().attention_dropout(0.5)) && changed(none.activation_dropout(0.5)));
    let some = TransformerConfig::new(8, 2).dropout(0.5).attention_dropout(0.0).activation_dropout(0.0);
    assert!(changed(some));
    let bad = TransformerConfig::new(8, 2).attention_dropout(1.0);
    refused(TransformerEncoder::new(&f64s(), &bad), &["dropout"]);
    let layer = MultiHeadAttention::new(&f64s(), 4, 2).unwrap();
    assert_eq!(param(&layer, "in_proj_weight").len(), 48);
}
