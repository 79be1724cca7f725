//! Random inputs and arguments of the rows.

use trefoil::DType;

use crate::sampler::Dom::Any;
use crate::sampler::Sample;

pub(super) const LENGTHS: [usize; 9] = [1, 3, 17, 63, 64, 65, 100, 130, 0];
/// Lengths of several tiles, for scores without rules.
const PLAIN_LENGTHS: [usize; 4] = [64, 130, 260, 300];
pub(super) const SIZES: [usize; 8] = [1, 3, 8, 40, 64, 65, 100, 136];

/// Columns of heads that matrix cores take; those of small cases meet the kernels of both widths.
const MATRIX_SIZES: [usize; 5] = [8, 40, 64, 72, 128];
const SMALL_MATRIX_SIZES: [usize; 2] = [8, 72];

/// Columns of queries and values: those of matrix cores half of the time.
fn columns(s: &mut Sample, others: &[usize]) -> [usize; 2] {
    let matrix: &[usize] = if s.small { &SMALL_MATRIX_SIZES } else { &MATRIX_SIZES };
    let from = if s.coin() { matrix } else { others };
    [from[s.below(from.len())], from[s.below(from.len())]]
}

pub(super) struct Drawn {
    /// No rules of the scores but a factor, lengths, a causal mask and a window.
    plain: bool,
    b: usize,
    hq: usize,
    lq: usize,
    lk: usize,
}

/// Q, K and V.
pub(super) fn operands(s: &mut Sample) -> Drawn {
    let (lengths, sizes): (&[usize], &[usize]) =
        if s.small { (&[2, 3, 4], &[1, 2, 3]) } else { (&LENGTHS, &SIZES) };
    let plain = s.below(3) == 0;
    let lengths = if plain && !s.small { &PLAIN_LENGTHS } else { lengths };
    let (b, hkv, group) = (1 + s.below(2), 1 + s.below(2), 1 + s.below(3));
    let (hq, lq, lk) = (hkv * group, lengths[s.below(lengths.len())], lengths[s.below(lengths.len())]);
    let [d, dv] = columns(s, sizes);
    s.put("Q", &[b, hq, lq, d], Any);
    s.put("K", &[b, hkv, lk, d], Any);
    s.put("V", &[b, hkv, lk, dv], Any);
    Drawn { plain, b, hq, lq, lk }
}

/// One of the shapes that repeat over the scores.
pub(super) fn repeated(s: &mut Sample, x: &Drawn) -> Vec<usize> {
    let whole = [x.b, x.hq, x.lq, x.lk];
    let shape = whole.map(|n| if s.coin() { n } else { 1 });
    if s.below(4) == 0 { shape[2..].to_vec() } else { shape.to_vec() }
}

pub(super) fn bias(s: &mut Sample, x: &Drawn) {
    if s.below(3) == 0 {
        s.arg("scale", 0.25);
    }
    if x.plain {
        return;
    }
    if s.coin() {
        let shape = repeated(s, x);
        s.put("bias", &shape, Any);
    }
    if s.below(3) == 0 {
        s.arg("softcap", 2.5);
    }
    if s.below(3) == 0 {
        s.arg("dropout", 0.375);
        let (a, b, c) = (s.below(99), s.below(5), s.below(7));
        s.arg("seed", a);
        s.arg("stream", b);
        s.arg("offset", c);
    }
}

pub(super) fn dense(s: &mut Sample) {
    let x = operands(s);
    bias(s, &x);
    if !x.plain && s.below(3) == 0 {
        let shape = repeated(s, &x);
        s.mask("mask", &shape);
    }
    if s.below(3) == 0 {
        let n: Vec<i64> = (0..x.b).map(|_| s.below(x.lk + 2) as i64).collect();
        s.ints("key_lengths", DType::I32, &[x.b], &n);
    }
    match s.below(3) {
        0 => s.arg("causal", "top_left"),
        1 => s.arg("causal", "bottom_right"),
        _ => {}
    }
    if s.below(4) == 0 {
        let (l, r) = (s.below(70) as i64 - 1, s.below(70) as i64 - 1);
        s.arg("window", vec![l, r]);
    }
}

pub(super) fn cross(s: &mut Sample) {
    let x = operands(s);
    bias(s, &x);
    if !x.plain && s.coin() {
        s.mask("key_padding", &[x.b, x.lk]);
    }
}

pub(super) fn ragged(s: &mut Sample) {
    let n = 1 + s.below(4);
    let lengths: &[usize] = if s.small { &[0, 2, 3] } else { &[0, 1, 5, 64, 70, 129] };
    let offsets = |s: &mut Sample| {
        let mut all = vec![0i64];
        (0..n).for_each(|_| all.push(all[all.len() - 1] + lengths[s.below(lengths.len())] as i64));
        all
    };
    let (cq, ck) = (offsets(s), offsets(s));
    // Sometimes tokens are left behind the last sequence.
    let rest = if s.coin() { 2 } else { 0 };
    let total = |c: &[i64]| c[n] as usize + rest;
    let (hkv, group) = (1 + s.below(2), 1 + s.below(2));
    let [d, dv] = columns(s, &[1, 2, 3, 5, 8, 13, 20]);
    s.put("Q", &[total(&cq), hkv * group, d], Any);
    s.put("K", &[total(&ck), hkv, d], Any);
    s.put("V", &[total(&ck), hkv, dv], Any);
    s.ints("cu_seqlens_q", DType::I32, &[n + 1], &cq);
    s.ints("cu_seqlens_k", DType::I32, &[n + 1], &ck);
    match s.below(3) {
        0 => s.arg("causal", "top_left"),
        1 => s.arg("causal", "bottom_right"),
        _ => {}
    }
}

pub(super) fn mha_sample(s: &mut Sample) {
    let (b, h, dh) = (1 + s.below(2), 1 + s.below(3), 1 + s.below(if s.small { 2 } else { 9 }));
    let (e, l) = (h * dh, 1 + s.below(if s.small { 3 } else { 40 }));
    let own = s.coin();
    let packed = own && s.coin();
    let lk = if own { l } else { 1 + s.below(5) };
    let ein =
        if packed { [e; 3] } else { [e + 1, if own { e + 1 } else { e + 2 }, if own { e + 1 } else { 3 }] };
    s.put("Xq", &[b, l, ein[0]], Any);
    if !own {
        s.put("Xk", &[b, lk, ein[1]], Any);
        s.put("Xv", &[b, lk, ein[2]], Any);
    }
    if packed {
        s.put("W_in", &[3 * e, e], Any);
        s.put("b_in", &[3 * e], Any);
    } else {
        for (i, (w, b)) in [("Wq", "bq"), ("Wk", "bk"), ("Wv", "bv")].into_iter().enumerate() {
            s.put(w, &[e, ein[i]], Any);
            s.put(b, &[e], Any);
        }
    }
    s.put("Wo", &[e, e], Any);
    s.put("bo", &[e], Any);
    s.arg("H", h);
    if s.coin() {
        s.arg("causal", "top_left");
    }
}
