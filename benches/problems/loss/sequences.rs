//! Losses of sequences and of signals.

use trefoil::ops::loss::{
    Reduction, SeqLoss, SeqLossBwd, SeqLossFwd, StftLossBwd, StftLossFwd, StftResolution,
};
use trefoil::{Buffer, DType, Result};

use super::operands::Shaped;
use crate::{Context, F32, F32_BF16, Prepared, Problem, bytes, flops, problem};

/// A sequence loss with its operands; all samples have full length.
struct SeqCase {
    kind: SeqLoss,
    x: Shaped,
    targets: Shaped,
    steps: Buffer,
    labels: Buffer,
}

fn lengths(cx: &Context<'_>, samples: usize, length: usize) -> Result<Buffer> {
    let mut v = cx.empty(DType::I64, samples)?;
    cx.gpu.fill(length as f64, v.view_mut())?;
    Ok(v)
}

/// The last class is the blank, so that no label is one.
fn ctc(cx: &Context<'_>, dt: DType) -> Result<SeqCase> {
    let [t, n, c, s] = [cx.pick(16, 64, 512), cx.pick(2, 8, 64), cx.pick(20, 64, 512), cx.pick(4, 16, 64)];
    Ok(SeqCase {
        kind: SeqLoss::Ctc { blank: c - 1, zero_infinity: false, batch_first: false },
        x: Shaped::normal(cx, dt, &[t, n, c])?,
        targets: Shaped::ids(cx, c - 1, &[n, s])?,
        steps: lengths(cx, n, t)?,
        labels: lengths(cx, n, s)?,
    })
}

fn transducer(cx: &Context<'_>, dt: DType) -> Result<SeqCase> {
    let [n, t, s, c] = [cx.pick(2, 4, 16), cx.pick(8, 32, 256), cx.pick(3, 7, 63), cx.pick(16, 64, 512)];
    Ok(SeqCase {
        kind: SeqLoss::Rnnt { blank: c - 1 },
        x: Shaped::normal(cx, dt, &[n, t, s + 1, c])?,
        targets: Shaped::ids(cx, c - 1, &[n, s])?,
        steps: lengths(cx, n, t)?,
        labels: lengths(cx, n, s)?,
    })
}

fn seq_fwd(cx: &Context<'_>, dtype: DType, c: SeqCase) -> Result<Prepared> {
    let mut loss = cx.empty(dtype.accumulator(), 1)?;
    bytes(c.x.bytes(), move |g| {
        let io =
            SeqLossFwd::new(c.x.view()?, c.targets.view()?, c.steps.view(), c.labels.view(), loss.view_mut());
        g.seq_loss(c.kind, Reduction::Mean, io)
    })
}

fn seq_bwd(cx: &Context<'_>, dtype: DType, c: SeqCase) -> Result<Prepared> {
    let (gy, mut dx) = (cx.positive(dtype.accumulator(), 1)?, cx.empty(dtype, c.x.data.len())?);
    bytes(2 * c.x.bytes(), move |g| {
        let io = SeqLossBwd::new(
            gy.view(),
            c.x.view()?,
            c.targets.view()?,
            c.steps.view(),
            c.labels.view(),
            dx.shaped_mut(&c.x.shape)?.into(),
        );
        g.seq_loss_bwd(c.kind, Reduction::Mean, io)
    })
}

/// Signals of a second at 24 kHz, and the operations of their transforms (two spectra in one, 5 n log2 n each).
fn signals(cx: &Context<'_>, dt: DType) -> Result<(Shaped, Shaped, usize)> {
    let shape = [cx.pick(1, 2, 16), cx.pick(1_100, 4_800, 24_000)];
    let work = |r: &StftResolution| 5 * shape[0] * r.frames(shape[1]) * r.fft * r.fft.ilog2() as usize;
    let work = StftResolution::PARALLEL_WAVEGAN.iter().map(work).sum();
    Ok((Shaped::normal(cx, dt, &shape)?, Shaped::normal(cx, dt, &shape)?, work))
}

pub(crate) const SEQUENCES: &[Problem] = &[
    problem("seq_loss", "ctc", F32, |cx, dt| seq_fwd(cx, dt, ctc(cx, dt)?)),
    problem("seq_loss", "transducer", F32, |cx, dt| seq_fwd(cx, dt, transducer(cx, dt)?)),
    problem("seq_loss_bwd", "ctc", F32, |cx, dt| seq_bwd(cx, dt, ctc(cx, dt)?)),
    problem("seq_loss_bwd", "transducer", F32, |cx, dt| seq_bwd(cx, dt, transducer(cx, dt)?)),
    problem("stft_loss", "three_resolutions", F32_BF16, |cx, dt| {
        let ((p, t, work), mut loss) = (signals(cx, dt)?, cx.empty(dt.accumulator(), 1)?);
        flops(work, move |g| {
            let io = StftLossFwd::new(p.view()?, t.view()?, loss.view_mut());
            g.stft_loss(&StftResolution::PARALLEL_WAVEGAN, io)
        })
    }),
    problem("stft_loss_bwd", "three_resolutions", F32_BF16, |cx, dt| {
        let ((p, t, work), gy) = (signals(cx, dt)?, cx.positive(dt.accumulator(), 1)?);
        let mut dp = cx.empty(dt, p.data.len())?;
        flops(3 * work, move |g| {
            let dp = dp.shaped_mut(&p.shape)?.into();
            let io = StftLossBwd::new(gy.view(), p.view()?, t.view()?, dp);
            g.stft_loss_bwd(&StftResolution::PARALLEL_WAVEGAN, io)
        })
    }),
];
