//! Losses of rows, of batches, of sequences, and lists of losses.

use trefoil::ops::*;
use trefoil::{Buffer, DType, GradMut, Result, View};

use super::{Bed, F32, F32_BF16, Problem, Row, bytes, flops, row};

/// A buffer and the shape that it is used with.
struct Shaped {
    data: Buffer,
    shape: Vec<usize>,
}

impl Shaped {
    fn normal(b: &Bed<'_>, dtype: DType, shape: &[usize]) -> Result<Self> {
        Ok(Shaped { data: b.normal(dtype, shape.iter().product())?, shape: shape.to_vec() })
    }

    fn positive(b: &Bed<'_>, dtype: DType, shape: &[usize]) -> Result<Self> {
        Ok(Shaped { data: b.positive(dtype, shape.iter().product())?, shape: shape.to_vec() })
    }

    fn ids(b: &Bed<'_>, below: usize, shape: &[usize]) -> Result<Self> {
        Ok(Shaped { data: b.ids(shape.iter().product(), below)?, shape: shape.to_vec() })
    }

    fn view(&self) -> Result<View<'_>> {
        self.data.shaped(&self.shape)
    }

    fn bytes(&self) -> usize {
        self.data.len() * self.data.dtype().size()
    }
}

type Operands<const N: usize> = [Option<Shaped>; N];
type Buffers<const N: usize> = [Option<Buffer>; N];

fn views<const N: usize>(x: &Operands<N>) -> Result<[Option<View<'_>>; N]> {
    let mut out = [None; N];
    for (o, v) in out.iter_mut().zip(x) {
        *o = v.as_ref().map(Shaped::view).transpose()?;
    }
    Ok(out)
}

/// Buffers for the gradients of the operands whose places are listed.
fn gradients<const N: usize>(b: &Bed<'_>, x: &Operands<N>, places: &[usize]) -> Result<Buffers<N>> {
    let mut out = [const { None }; N];
    for &i in places {
        out[i] = x[i].as_ref().map(|v| b.empty(v.data.dtype(), v.data.len())).transpose()?;
    }
    Ok(out)
}

fn gradient_views<'a, const N: usize>(
    x: &Operands<N>,
    dx: &'a mut Buffers<N>,
) -> Result<[Option<GradMut<'a>>; N]> {
    let mut out = [const { None }; N];
    for ((o, x), d) in out.iter_mut().zip(x).zip(dx) {
        if let (Some(x), Some(d)) = (x, d) {
            *o = Some(d.shaped_mut(&x.shape)?.into());
        }
    }
    Ok(out)
}

fn traffic<const N: usize>(x: &Operands<N>, dx: &Buffers<N>) -> usize {
    let inputs: usize = x.iter().flatten().map(Shaped::bytes).sum();
    inputs + dx.iter().flatten().map(|d| d.len() * d.dtype().size()).sum::<usize>()
}

/// A row loss with its operands.
struct RowCase {
    kind: RowLoss,
    /// Operands, and the places of those whose gradients are taken.
    x: Operands<4>,
    grads: &'static [usize],
    ids: Option<Shaped>,
    mask: Option<Shaped>,
}

impl RowCase {
    fn new(kind: RowLoss, x: Operands<4>, grads: &'static [usize]) -> Self {
        RowCase { kind, x, grads, ids: None, mask: None }
    }

    fn extra(&self) -> usize {
        self.ids.iter().chain(&self.mask).map(Shaped::bytes).sum()
    }
}

fn row_fwd(b: &Bed<'_>, dtype: DType, c: RowCase) -> Result<Problem> {
    let mut loss = b.empty(dtype.accumulator(), 1)?;
    bytes(traffic(&c.x, &[const { None }; 4]) + c.extra(), move |g| {
        let (ids, mask) =
            (c.ids.as_ref().map(Shaped::view).transpose()?, c.mask.as_ref().map(Shaped::view).transpose()?);
        let io = RowLossFwd { x: views(&c.x)?, ids, mask, loss: loss.view_mut() };
        g.row_loss(c.kind, Reduction::Mean, io)
    })
}

/// One item per row in memory.
fn row_each(b: &Bed<'_>, dtype: DType, c: RowCase, items: &[usize]) -> Result<Problem> {
    let mut loss = b.empty(dtype, items.iter().product())?;
    let items = items.to_vec();
    bytes(traffic(&c.x, &[const { None }; 4]) + c.extra() + loss.len() * dtype.size(), move |g| {
        let (ids, mask) =
            (c.ids.as_ref().map(Shaped::view).transpose()?, c.mask.as_ref().map(Shaped::view).transpose()?);
        let io = RowLossFwd { x: views(&c.x)?, ids, mask, loss: loss.shaped_mut(&items)? };
        g.row_loss(c.kind, Reduction::None, io)
    })
}

fn row_bwd(b: &Bed<'_>, dtype: DType, c: RowCase) -> Result<Problem> {
    let gy = b.positive(dtype.accumulator(), 1)?;
    let mut dx = gradients(b, &c.x, c.grads)?;
    bytes(traffic(&c.x, &dx) + c.extra(), move |g| {
        let (ids, mask) =
            (c.ids.as_ref().map(Shaped::view).transpose()?, c.mask.as_ref().map(Shaped::view).transpose()?);
        let dx = gradient_views(&c.x, &mut dx)?;
        g.row_loss_bwd(c.kind, Reduction::Mean, RowLossBwd { gy: gy.view(), x: views(&c.x)?, ids, mask, dx })
    })
}

fn triplet(b: &Bed<'_>, dt: DType) -> Result<RowCase> {
    let s = b.rows();
    let x = [
        Some(Shaped::normal(b, dt, &s)?),
        Some(Shaped::normal(b, dt, &s)?),
        Some(Shaped::positive(b, dt, &s)?),
        None,
    ];
    let kind = RowLoss::Triplet { margin: 1.0, p: 2.0, eps: 1e-6, swap: false, squared: false };
    Ok(RowCase::new(kind, x, &[0, 1, 2]))
}

fn kl(b: &Bed<'_>, dt: DType) -> Result<RowCase> {
    let s = b.classes();
    let x = [Some(Shaped::normal(b, dt, &s)?), Some(Shaped::positive(b, dt, &s)?), None, None];
    Ok(RowCase::new(RowLoss::Kl { log_input: true, log_target: false }, x, &[0]))
}

fn nll(b: &Bed<'_>, dt: DType) -> Result<RowCase> {
    let [n, c] = b.classes();
    let x = [Some(Shaped::normal(b, dt, &[n, c])?), Some(Shaped::positive(b, dt, &[c])?), None, None];
    let mut case = RowCase::new(RowLoss::Nll { floor: None, ignore_index: -100 }, x, &[0]);
    case.ids = Some(Shaped::ids(b, c, &[n])?);
    Ok(case)
}

fn focal(b: &Bed<'_>, dt: DType) -> Result<RowCase> {
    let [n, c] = b.classes();
    let x = [Some(Shaped::normal(b, dt, &[n, c])?), None, None, None];
    let mut case = RowCase::new(RowLoss::MulticlassFocal { gamma: 2.0 }, x, &[0]);
    case.ids = Some(Shaped::ids(b, c, &[n])?);
    Ok(case)
}

fn circle(b: &Bed<'_>, dt: DType) -> Result<RowCase> {
    let [n, c] = b.classes();
    let x = [Some(Shaped::normal(b, dt, &[n, c])?), None, None, None];
    let mut case = RowCase::new(RowLoss::Circle { scale: 8.0, margin: 0.25, detach: true }, x, &[0]);
    case.ids = Some(Shaped::ids(b, c, &[n])?);
    Ok(case)
}

fn kto(b: &Bed<'_>, dt: DType) -> Result<RowCase> {
    let s = [b.n()];
    let x = [
        Some(Shaped::normal(b, dt, &s)?),
        Some(Shaped::normal(b, dt, &s)?),
        Some(Shaped::positive(b, dt, &s)?),
        None,
    ];
    Ok(RowCase::new(RowLoss::Kto { beta: 0.1, desirable: 1.0, undesirable: 1.0 }, x, &[0]))
}

fn distillation(b: &Bed<'_>, dt: DType) -> Result<RowCase> {
    let s = b.classes();
    let x = [Some(Shaped::normal(b, dt, &s)?), Some(Shaped::normal(b, dt, &s)?), None, None];
    let mut case = RowCase::new(RowLoss::Distillation { temperature: 2.0, alpha: 0.5 }, x, &[0]);
    case.ids = Some(Shaped::ids(b, s[1], &s[..1])?);
    Ok(case)
}

/// Thresholds that all rows share.
fn ordinal(b: &Bed<'_>, dt: DType) -> Result<RowCase> {
    let (n, levels) = (b.n() / 16, 8);
    let x = [None, Some(Shaped::normal(b, dt, &[n])?), Some(Shaped::normal(b, dt, &[levels])?), None];
    let mut case = RowCase::new(RowLoss::Ordinal, x, &[1, 2]);
    case.ids = Some(Shaped::ids(b, levels + 1, &[n])?);
    Ok(case)
}

/// A few long rows.
fn dice(b: &Bed<'_>, dt: DType) -> Result<RowCase> {
    let s = [4, b.n() / 4];
    let x = [Some(Shaped::normal(b, dt, &s)?), Some(Shaped::positive(b, dt, &s)?), None, None];
    let kind = RowLoss::Dice { smooth: 1.0, squared: false, from_logits: true, per_channel: false };
    Ok(RowCase::new(kind, x, &[0]))
}

fn boxes(b: &Bed<'_>, dt: DType) -> Result<RowCase> {
    let s = [b.n() / 4, 4];
    let x = [Some(Shaped::positive(b, dt, &s)?), Some(Shaped::normal(b, dt, &s)?), None, None];
    Ok(RowCase::new(RowLoss::Boxes { overlap: BoxOverlap::Ciou, eps: 1e-7 }, x, &[0]))
}

fn patches(b: &Bed<'_>, dt: DType) -> Result<RowCase> {
    let [n, e] = b.rows();
    let s = [4, n / 4, e];
    let x = [Some(Shaped::normal(b, dt, &s)?), Some(Shaped::positive(b, dt, &s)?), None, None];
    let mut case = RowCase::new(RowLoss::Patches { normalize: true }, x, &[0]);
    case.mask = Some(Shaped { data: b.mask(s[0] * s[1])?, shape: s[..2].to_vec() });
    Ok(case)
}

/// An item per element.
fn gaussian_nll(b: &Bed<'_>, dt: DType) -> Result<RowCase> {
    let s = [b.n()];
    let x = [
        Some(Shaped::normal(b, dt, &s)?),
        Some(Shaped::normal(b, dt, &s)?),
        Some(Shaped::positive(b, dt, &s)?),
        None,
    ];
    Ok(RowCase::new(RowLoss::GaussianNll { full: false, eps: 1e-6 }, x, &[0, 2]))
}

/// How a batch loss is measured.
enum Cost {
    /// By the bytes of its operands.
    Traffic,
    /// By the operations (or comparisons) of the forward; the backward has thrice as many.
    Work(usize),
}

/// A batch loss with its operands.
struct BatchCase {
    kind: BatchLoss,
    x: Operands<3>,
    grads: &'static [usize],
    ids: Option<Shaped>,
    cost: Cost,
}

fn batch_fwd(b: &Bed<'_>, dtype: DType, c: BatchCase) -> Result<Problem> {
    let mut loss = b.empty(dtype.accumulator(), 1)?;
    let moved = traffic(&c.x, &[const { None }; 3]) + c.ids.as_ref().map_or(0, Shaped::bytes);
    let cost = match c.cost {
        Cost::Traffic => None,
        Cost::Work(n) => Some(n),
    };
    let run = move |g: &dyn trefoil::IGpuBackend| {
        let ids = c.ids.as_ref().map(Shaped::view).transpose()?;
        g.batch_loss(c.kind, BatchLossFwd { x: views(&c.x)?, ids, loss: loss.view_mut() })
    };
    match cost {
        None => bytes(moved, run),
        Some(n) => flops(n, run),
    }
}

fn batch_bwd(b: &Bed<'_>, dtype: DType, c: BatchCase) -> Result<Problem> {
    let gy = b.positive(dtype.accumulator(), 1)?;
    let mut dx = gradients(b, &c.x, c.grads)?;
    let moved = traffic(&c.x, &dx) + c.ids.as_ref().map_or(0, Shaped::bytes);
    let cost = match c.cost {
        Cost::Traffic => None,
        Cost::Work(n) => Some(3 * n),
    };
    let run = move |g: &dyn trefoil::IGpuBackend| {
        let ids = c.ids.as_ref().map(Shaped::view).transpose()?;
        let dx = gradient_views(&c.x, &mut dx)?;
        g.batch_loss_bwd(c.kind, BatchLossBwd { gy: gy.view(), x: views(&c.x)?, ids, dx })
    };
    match cost {
        None => bytes(moved, run),
        Some(n) => flops(n, run),
    }
}

/// Samples of a batch and width of their embeddings.
fn embeddings(b: &Bed<'_>) -> [usize; 2] {
    [b.pick(16, 64, 1_024), b.pick(32, 64, 512)]
}

fn nt_xent(b: &Bed<'_>, dt: DType) -> Result<BatchCase> {
    let s = embeddings(b);
    let x = [Some(Shaped::normal(b, dt, &s)?), Some(Shaped::positive(b, dt, &s)?), None];
    let cost = Cost::Work(2 * (2 * s[0]) * (2 * s[0]) * s[1]);
    Ok(BatchCase { kind: BatchLoss::NtXent { tau: 0.5 }, x, grads: &[0, 1], ids: None, cost })
}

/// With a queue of negatives as long as the batch.
fn info_nce(b: &Bed<'_>, dt: DType) -> Result<BatchCase> {
    let s = embeddings(b);
    let x = [
        Some(Shaped::normal(b, dt, &s)?),
        Some(Shaped::positive(b, dt, &s)?),
        Some(Shaped::normal(b, dt, &s)?),
    ];
    let cost = Cost::Work(2 * s[0] * (s[0] + 1) * s[1]);
    Ok(BatchCase { kind: BatchLoss::InfoNce { tau: 0.5 }, x, grads: &[0, 1, 2], ids: None, cost })
}

fn sup_con(b: &Bed<'_>, dt: DType) -> Result<BatchCase> {
    let s = embeddings(b);
    let x = [Some(Shaped::normal(b, dt, &s)?), None, None];
    let ids = Some(Shaped::ids(b, 4, &s[..1])?);
    let cost = Cost::Work(2 * s[0] * s[0] * s[1]);
    Ok(BatchCase { kind: BatchLoss::SupCon { tau: 0.5 }, x, grads: &[0], ids, cost })
}

fn barlow(b: &Bed<'_>, dt: DType) -> Result<BatchCase> {
    let s = embeddings(b);
    let x = [Some(Shaped::normal(b, dt, &s)?), Some(Shaped::positive(b, dt, &s)?), None];
    let cost = Cost::Work(2 * s[0] * s[1] * s[1]);
    Ok(BatchCase { kind: BatchLoss::Barlow { lambda: 0.005 }, x, grads: &[0, 1], ids: None, cost })
}

fn ranking(b: &Bed<'_>, dt: DType) -> Result<BatchCase> {
    let s = [b.pick(64, 512, 16_384)];
    let x = [Some(Shaped::normal(b, dt, &s)?), Some(Shaped::positive(b, dt, &s)?), None];
    let cost = Cost::Work(s[0] * s[0]);
    Ok(BatchCase { kind: BatchLoss::PairwiseRanking, x, grads: &[0], ids: None, cost })
}

fn balance(b: &Bed<'_>, dt: DType) -> Result<BatchCase> {
    let [n, experts, chosen] = [b.pick(64, 1_024, 65_536), b.pick(8, 16, 64), 2];
    let x = [Some(Shaped::positive(b, dt, &[n, experts])?), None, None];
    let ids = Some(Shaped::ids(b, experts, &[n, chosen])?);
    Ok(BatchCase { kind: BatchLoss::MoeBalance, x, grads: &[0], ids, cost: Cost::Traffic })
}

fn lovasz(b: &Bed<'_>, dt: DType) -> Result<BatchCase> {
    let [n, c] = [b.pick(64, 256, 8_192), b.pick(4, 8, 19)];
    let x = [Some(Shaped::positive(b, dt, &[n, c])?), None, None];
    let ids = Some(Shaped::ids(b, c, &[n])?);
    Ok(BatchCase { kind: BatchLoss::Lovasz, x, grads: &[0], ids, cost: Cost::Work(n * n * c) })
}

/// A sequence loss with its operands; all samples have full length.
struct SeqCase {
    kind: SeqLoss,
    x: Shaped,
    targets: Shaped,
    steps: Buffer,
    labels: Buffer,
}

fn lengths(b: &Bed<'_>, samples: usize, length: usize) -> Result<Buffer> {
    let mut v = b.empty(DType::I64, samples)?;
    b.gpu.fill(length as f64, v.view_mut())?;
    Ok(v)
}

/// The last class is the blank, so that no label is one.
fn ctc(b: &Bed<'_>, dt: DType) -> Result<SeqCase> {
    let [t, n, c, s] = [b.pick(16, 64, 512), b.pick(2, 8, 64), b.pick(20, 64, 512), b.pick(4, 16, 64)];
    Ok(SeqCase {
        kind: SeqLoss::Ctc { blank: c - 1, zero_infinity: false, batch_first: false },
        x: Shaped::normal(b, dt, &[t, n, c])?,
        targets: Shaped::ids(b, c - 1, &[n, s])?,
        steps: lengths(b, n, t)?,
        labels: lengths(b, n, s)?,
    })
}

fn transducer(b: &Bed<'_>, dt: DType) -> Result<SeqCase> {
    let [n, t, s, c] = [b.pick(2, 4, 16), b.pick(8, 32, 256), b.pick(3, 7, 63), b.pick(16, 64, 512)];
    Ok(SeqCase {
        kind: SeqLoss::Rnnt { blank: c - 1 },
        x: Shaped::normal(b, dt, &[n, t, s + 1, c])?,
        targets: Shaped::ids(b, c - 1, &[n, s])?,
        steps: lengths(b, n, t)?,
        labels: lengths(b, n, s)?,
    })
}

fn seq_fwd(b: &Bed<'_>, dtype: DType, c: SeqCase) -> Result<Problem> {
    let mut loss = b.empty(dtype.accumulator(), 1)?;
    bytes(c.x.bytes(), move |g| {
        let io = SeqLossFwd {
            x: c.x.view()?,
            targets: c.targets.view()?,
            input_lengths: c.steps.view(),
            target_lengths: c.labels.view(),
            loss: loss.view_mut(),
        };
        g.seq_loss(c.kind, Reduction::Mean, io)
    })
}

fn seq_bwd(b: &Bed<'_>, dtype: DType, c: SeqCase) -> Result<Problem> {
    let (gy, mut dx) = (b.positive(dtype.accumulator(), 1)?, b.empty(dtype, c.x.data.len())?);
    bytes(2 * c.x.bytes(), move |g| {
        let io = SeqLossBwd {
            gy: gy.view(),
            x: c.x.view()?,
            targets: c.targets.view()?,
            input_lengths: c.steps.view(),
            target_lengths: c.labels.view(),
            dx: dx.shaped_mut(&c.x.shape)?.into(),
        };
        g.seq_loss_bwd(c.kind, Reduction::Mean, io)
    })
}

/// Signals of a second at 24 kHz, and the operations of their transforms (two spectra in one, 5 n log2 n each).
fn signals(b: &Bed<'_>, dt: DType) -> Result<(Shaped, Shaped, usize)> {
    let shape = [b.pick(1, 2, 16), b.pick(1_100, 4_800, 24_000)];
    let work = |r: &StftResolution| 5 * shape[0] * r.frames(shape[1]) * r.fft * r.fft.ilog2() as usize;
    let work = StftResolution::PARALLEL_WAVEGAN.iter().map(work).sum();
    Ok((Shaped::normal(b, dt, &shape)?, Shaped::normal(b, dt, &shape)?, work))
}

/// Feature maps of falling size, as a perceptual loss compares them.
fn maps(b: &Bed<'_>, dtype: DType) -> Result<Vec<[Buffer; 2]>> {
    (1..5).map(|i| b.n() >> i).map(|n| Ok([b.normal(dtype, n)?, b.positive(dtype, n)?])).collect()
}

fn terms(maps: &[[Buffer; 2]]) -> Vec<LossTerm<'_>> {
    maps.iter().map(|[p, t]| LossTerm { p: p.view(), t: Some(t.view()), weight: 0.25 }).collect()
}

pub(super) const ROWS: &[Row] = &[
    row("loss_list", "mse", F32_BF16, |b, dt| {
        let (maps, mut loss) = (maps(b, dt)?, b.empty(dt.accumulator(), 1)?);
        let n: usize = maps.iter().map(|[p, _]| p.len()).sum();
        bytes(2 * n * dt.size(), move |g| g.loss_list(Loss::Mse, &terms(&maps), loss.view_mut()))
    }),
    row("loss_list_bwd", "mse", F32_BF16, |b, dt| {
        let (maps, gy) = (maps(b, dt)?, b.positive(dt.accumulator(), 1)?);
        let n: usize = maps.iter().map(|[p, _]| p.len()).sum();
        let mut dp: Vec<Buffer> = maps.iter().map(|[p, _]| b.empty(dt, p.len())).collect::<Result<_>>()?;
        bytes(3 * n * dt.size(), move |g| {
            let mut dp: Vec<GradMut<'_>> = dp.iter_mut().map(|d| d.view_mut().into()).collect();
            g.loss_list_bwd(Loss::Mse, gy.view(), &terms(&maps), &mut dp)
        })
    }),
    row("row_loss", "triplet", F32_BF16, |b, dt| row_fwd(b, dt, triplet(b, dt)?)),
    row("row_loss", "kl", F32_BF16, |b, dt| row_fwd(b, dt, kl(b, dt)?)),
    row("row_loss", "nll_weighted", F32, |b, dt| row_fwd(b, dt, nll(b, dt)?)),
    row("row_loss", "multiclass_focal", F32, |b, dt| row_fwd(b, dt, focal(b, dt)?)),
    row("row_loss", "distillation", F32, |b, dt| row_fwd(b, dt, distillation(b, dt)?)),
    row("row_loss", "ordinal_thresholds", F32, |b, dt| row_fwd(b, dt, ordinal(b, dt)?)),
    row("row_loss", "dice_long_rows", F32_BF16, |b, dt| row_fwd(b, dt, dice(b, dt)?)),
    row("row_loss", "boxes_ciou", F32, |b, dt| row_fwd(b, dt, boxes(b, dt)?)),
    row("row_loss", "patches_masked", F32, |b, dt| row_fwd(b, dt, patches(b, dt)?)),
    row("row_loss", "gaussian_nll", F32, |b, dt| row_fwd(b, dt, gaussian_nll(b, dt)?)),
    row("row_loss", "gaussian_nll_none", F32, |b, dt| row_each(b, dt, gaussian_nll(b, dt)?, &[b.n()])),
    row("row_loss", "circle", F32_BF16, |b, dt| row_fwd(b, dt, circle(b, dt)?)),
    row("row_loss", "kto", F32, |b, dt| row_fwd(b, dt, kto(b, dt)?)),
    row("row_loss_bwd", "circle", F32_BF16, |b, dt| row_bwd(b, dt, circle(b, dt)?)),
    row("row_loss_bwd", "kto", F32, |b, dt| row_bwd(b, dt, kto(b, dt)?)),
    row("row_loss_bwd", "triplet", F32_BF16, |b, dt| row_bwd(b, dt, triplet(b, dt)?)),
    row("row_loss_bwd", "kl", F32_BF16, |b, dt| row_bwd(b, dt, kl(b, dt)?)),
    row("row_loss_bwd", "nll_weighted", F32, |b, dt| row_bwd(b, dt, nll(b, dt)?)),
    row("row_loss_bwd", "multiclass_focal", F32, |b, dt| row_bwd(b, dt, focal(b, dt)?)),
    row("row_loss_bwd", "distillation", F32, |b, dt| row_bwd(b, dt, distillation(b, dt)?)),
    row("row_loss_bwd", "ordinal_thresholds", F32, |b, dt| row_bwd(b, dt, ordinal(b, dt)?)),
    row("row_loss_bwd", "dice_long_rows", F32_BF16, |b, dt| row_bwd(b, dt, dice(b, dt)?)),
    row("row_loss_bwd", "boxes_ciou", F32, |b, dt| row_bwd(b, dt, boxes(b, dt)?)),
    row("row_loss_bwd", "patches_masked", F32, |b, dt| row_bwd(b, dt, patches(b, dt)?)),
    row("row_loss_bwd", "gaussian_nll", F32, |b, dt| row_bwd(b, dt, gaussian_nll(b, dt)?)),
    row("batch_loss", "nt_xent", F32_BF16, |b, dt| batch_fwd(b, dt, nt_xent(b, dt)?)),
    row("batch_loss", "info_nce", F32, |b, dt| batch_fwd(b, dt, info_nce(b, dt)?)),
    row("batch_loss", "sup_con", F32, |b, dt| batch_fwd(b, dt, sup_con(b, dt)?)),
    row("batch_loss", "barlow", F32, |b, dt| batch_fwd(b, dt, barlow(b, dt)?)),
    row("batch_loss", "pairwise_ranking", F32, |b, dt| batch_fwd(b, dt, ranking(b, dt)?)),
    row("batch_loss", "moe_balance", F32, |b, dt| batch_fwd(b, dt, balance(b, dt)?)),
    row("batch_loss", "lovasz", F32, |b, dt| batch_fwd(b, dt, lovasz(b, dt)?)),
    row("batch_loss_bwd", "nt_xent", F32_BF16, |b, dt| batch_bwd(b, dt, nt_xent(b, dt)?)),
    row("batch_loss_bwd", "info_nce", F32, |b, dt| batch_bwd(b, dt, info_nce(b, dt)?)),
    row("batch_loss_bwd", "sup_con", F32, |b, dt| batch_bwd(b, dt, sup_con(b, dt)?)),
    row("batch_loss_bwd", "barlow", F32, |b, dt| batch_bwd(b, dt, barlow(b, dt)?)),
    row("batch_loss_bwd", "pairwise_ranking", F32, |b, dt| batch_bwd(b, dt, ranking(b, dt)?)),
    row("batch_loss_bwd", "moe_balance", F32, |b, dt| batch_bwd(b, dt, balance(b, dt)?)),
    row("batch_loss_bwd", "lovasz", F32, |b, dt| batch_bwd(b, dt, lovasz(b, dt)?)),
    row("seq_loss", "ctc", F32, |b, dt| seq_fwd(b, dt, ctc(b, dt)?)),
    row("seq_loss", "transducer", F32, |b, dt| seq_fwd(b, dt, transducer(b, dt)?)),
    row("seq_loss_bwd", "ctc", F32, |b, dt| seq_bwd(b, dt, ctc(b, dt)?)),
    row("seq_loss_bwd", "transducer", F32, |b, dt| seq_bwd(b, dt, transducer(b, dt)?)),
    row("stft_loss", "three_resolutions", F32_BF16, |b, dt| {
        let ((p, t, work), mut loss) = (signals(b, dt)?, b.empty(dt.accumulator(), 1)?);
        flops(work, move |g| {
            let io = StftLossFwd { p: p.view()?, t: t.view()?, loss: loss.view_mut() };
            g.stft_loss(&StftResolution::PARALLEL_WAVEGAN, io)
        })
    }),
    row("stft_loss_bwd", "three_resolutions", F32_BF16, |b, dt| {
        let ((p, t, work), gy) = (signals(b, dt)?, b.positive(dt.accumulator(), 1)?);
        let mut dp = b.empty(dt, p.data.len())?;
        flops(3 * work, move |g| {
            let dp = dp.shaped_mut(&p.shape)?.into();
            let io = StftLossBwd { gy: gy.view(), p: p.view()?, t: t.view()?, dp };
            g.stft_loss_bwd(&StftResolution::PARALLEL_WAVEGAN, io)
        })
    }),
];
