//! Sequence losses.

use trefoil::ops::loss::{Reduction, SeqLoss, SeqLossBwd, SeqLossFwd};

use super::basic::{draw_reduction, reduction};
use crate::cases::{Kernel, pair};
use crate::device::{Cx, R};
use crate::sampler::Dom::{Any, Range};
use crate::sampler::Sample;

fn ctc_kind(cx: &Cx<'_>) -> R<SeqLoss> {
    Ok(SeqLoss::Ctc {
        blank: cx.n("blank")?,
        zero_infinity: cx.b("zero_infinity")?,
        batch_first: cx.b("batch_first")?,
    })
}

fn rnnt_kind(cx: &Cx<'_>) -> R<SeqLoss> {
    let classes = cx.x("x")?.shape().last().copied().unwrap_or(1);
    Ok(SeqLoss::Rnnt { blank: cx.i("blank")?.rem_euclid(classes as i64) as usize })
}

fn run(cx: &Cx<'_>, kind: SeqLoss) -> R {
    if cx.is_gradient() {
        return gradient(cx, kind);
    }
    let (x, input_lengths) = (cx.x("x")?, cx.x("input_lengths")?);
    let how = reduction(cx)?;
    let loss = match how {
        Reduction::None => cx.out("loss", x.dtype(), input_lengths.shape())?,
        _ => cx.out("loss", x.dtype().accumulator(), &[])?,
    };
    let io = SeqLossFwd::new(x, cx.x("targets")?, input_lengths, cx.x("target_lengths")?, loss.m());
    Ok(cx.gpu.seq_loss(kind, how, io)?)
}

fn gradient(cx: &Cx<'_>, kind: SeqLoss) -> R {
    let x = cx.x("x")?;
    let dx = cx.like("dx", &x)?;
    let io = SeqLossBwd::new(
        cx.x("gy")?,
        x,
        cx.x("targets")?,
        cx.x("input_lengths")?,
        cx.x("target_lengths")?,
        dx.g(),
    );
    Ok(cx.gpu.seq_loss_bwd(kind, reduction(cx)?, io)?)
}

/// Lengths per sample: `most` or less, at least `least`.
fn lengths(s: &mut Sample, name: &str, n: usize, least: usize, most: usize) -> Vec<i64> {
    let values: Vec<i64> = (0..n).map(|_| (most - s.below(most - least + 1)) as i64).collect();
    s.ints(name, trefoil::DType::I64, &[n], &values);
    values
}

/// Labels of samples that are too long for a block's threads, or for its local memory. Their probabilities add up to exponents whose rounding shows
/// in 32 bits.
fn long(s: &Sample) -> Option<usize> {
    match s.aligned().filter(|_| s.dtype.size() == 2) {
        Some(1) => Some(300),
        Some(2) => Some(1030),
        _ => None,
    }
}

/// Classes: a few; where operands are aligned rows of 16-byte items, enough for several threads; or many in other rows.
fn classes(s: &mut Sample) -> usize {
    match s.aligned() {
        Some(k) if k % 2 == 0 => 8 * (8 + s.below(40)),
        _ if !s.small && s.below(4) == 0 => 20 + s.below(100),
        _ => 3 + s.below(4),
    }
}

fn draw_ctc(s: &mut Sample) {
    let (mut b, mut c) = (1 + s.below(4), classes(s));
    // Fewer steps where most results are 0: bounds go by their size.
    let (labels, steps) = if c < 20 { (20, 40) } else { (8, 16) };
    let mut n = if s.small { 2 } else { 1 + s.below(labels) };
    let mut t = 2 * n + s.below(if s.small { 2 } else { steps });
    // Impossible samples, and empty ones.
    let mut least = if !s.small && s.below(4) == 0 { 0 } else { 2 * n };
    let long = long(s);
    if let Some(labels) = long {
        (b, c, n) = (1 + s.below(2), 33, labels / 2);
        (t, least) = (n + n / 6, n + n / 6);
    }
    let first = s.coin();
    // Scores that grow as the number of ways falls leave the sums small.
    let dom = if long.is_some() { Range(-1.2, -0.1) } else { Any };
    s.put("x", &if first { [b, t, c] } else { [t, b, c] }, dom);
    lengths(s, "input_lengths", b, least, t);
    let labels = lengths(s, "target_lengths", b, if long.is_some() { n } else { 0 }, n);
    // A label may be the blank, which is a class like others then.
    let blank = if s.small || s.coin() { c - 1 } else { s.below(c) };
    let of = if blank == c - 1 { c - 1 } else { c };
    // Padded, or one after the other.
    let all = labels.iter().sum::<i64>() as usize;
    let shape = if s.coin() { vec![b, n] } else { vec![all] };
    s.ids("targets", &shape, of);
    s.arg("blank", blank);
    let zero_infinity = s.coin();
    s.arg("zero_infinity", zero_infinity);
    s.arg("batch_first", first);
    draw_reduction(s);
}

fn draw_rnnt(s: &mut Sample) {
    let (mut b, mut c) = (1 + s.below(3), classes(s));
    // Fewer steps where each costs more, which keeps the sums small.
    let (labels, steps) = if c < 20 { (12, 20) } else { (6, 6) };
    let mut u = if s.small { 2 } else { s.below(labels) };
    let mut t = 1 + s.below(if s.small { 3 } else { steps });
    if let Some(labels) = long(s) {
        (b, c, u, t) = (1 + s.below(2), 2, labels, 1 + s.below(4));
        // Logits of labels that are likely leave the sums small.
        let n = b * t * (u + 1) * c;
        let values = s
            .normals(n)
            .iter()
            .enumerate()
            .map(|(i, v)| 0.5 * v + 4.0 * f64::from(i % 2 == 0))
            .collect::<Vec<_>>();
        s.values("x", &[b, t, u + 1, c], &values);
    } else {
        s.put("x", &[b, t, u + 1, c], Any);
    }
    s.ids("targets", &[b, u], c - 1);
    lengths(s, "input_lengths", b, 1, t);
    lengths(s, "target_lengths", b, if u < 100 { 0 } else { u - 5 }, u);
    draw_reduction(s);
}

const ROUNDED: &str = "exponents are sums of logarithms over the steps, rounded at their size";

pub(super) const ROWS: &[&[Kernel]] = &[
    &pair!(
        "ctc_loss",
        "L28",
        "x, targets:idx, input_lengths:idx, target_lengths:idx",
        "blank=0, zero_infinity=false, batch_first=false, reduction=\"mean\"",
        "dx",
        ["seq_loss"],
        |cx| run(cx, ctc_kind(cx)?)
    )
    .grad_units(340.0, ROUNDED)
    .sample(draw_ctc),
    &pair!(
        "rnnt_loss",
        "L76",
        "x, targets:idx, input_lengths:idx, target_lengths:idx",
        "blank=-1, reduction=\"mean\"",
        "dx",
        ["seq_loss"],
        |cx| run(cx, rnnt_kind(cx)?)
    )
    .grad_units(340.0, ROUNDED)
    .sample(draw_rnnt),
];
