//! Sequence losses.

use trefoil::ops::loss::{Reduction, SeqLoss, SeqLossBwd, SeqLossFwd};

use super::basic::{draw_reduction, reduction};
use crate::cases::{Kernel, pair};
use crate::device::{Cx, R};
use crate::sampler::Dom::Any;
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
fn lengths(s: &mut Sample, name: &str, n: usize, least: usize, most: usize) {
    let values: Vec<i64> = (0..n).map(|_| (most - s.below(most - least + 1)) as i64).collect();
    s.ints(name, trefoil::DType::I64, &[n], &values);
}

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
    .grad_units(340.0, "exponents are sums of logarithms over the steps, rounded at their size")
    .sample(|s| {
        let (b, c, n) = (1 + s.below(4), 3 + s.below(4), if s.small { 2 } else { 1 + s.below(20) });
        let t = 2 * n + s.below(if s.small { 2 } else { 40 });
        let first = s.coin();
        s.put("x", &if first { [b, t, c] } else { [t, b, c] }, Any);
        s.ids("targets", &[b, n], c - 1);
        lengths(s, "input_lengths", b, 2 * n, t);
        lengths(s, "target_lengths", b, 0, n);
        s.arg("blank", c - 1);
        s.arg("batch_first", first);
        draw_reduction(s);
    }),
    &pair!(
        "rnnt_loss",
        "L76",
        "x, targets:idx, input_lengths:idx, target_lengths:idx",
        "blank=-1, reduction=\"mean\"",
        "dx",
        ["seq_loss"],
        |cx| run(cx, rnnt_kind(cx)?)
    )
    .sample(|s| {
        let (b, c, u) = (1 + s.below(3), 3 + s.below(4), if s.small { 2 } else { s.below(12) });
        let t = 1 + s.below(if s.small { 3 } else { 20 });
        s.put("x", &[b, t, u + 1, c], Any);
        s.ids("targets", &[b, u], c - 1);
        lengths(s, "input_lengths", b, 1, t);
        lengths(s, "target_lengths", b, 0, u);
        draw_reduction(s);
    }),
];
