//! Changes of whole batches, on the device.

use std::fmt;

use trefoil::DType;
use trefoil::ops::elementwise::{Binary, Unary};
use trefoil::ops::random::{Distribution, Rng};
use trefoil::ops::shape::PadMode;

use super::{Batch, Batches, Order, Source};
use crate::core::autograd::no_grad;
use crate::core::error::{Result, invalid};
use crate::core::host_tensor::HostTensor;
use crate::core::tensor::{Device, Tensor};

/// Random numbers of one transform and one batch. They follow from seed, epoch, position of the batch and of the transform alone.
#[derive(Debug)]
pub struct Draws {
    rng: Rng<'static>,
    host: u64,
}

/// Keeps the streams of transforms apart from those of parameters, shuffling and dropout.
const TRANSFORM: u64 = 1 << 60;

impl Draws {
    fn new(seed: u64, epoch: u64, step: u64, position: u64) -> Self {
        let rng = Rng::new(seed).at(TRANSFORM | position << 40 | epoch & ((1 << 40) - 1), step << 32);
        Draws { rng, host: seed ^ rng.stream.rotate_left(17) ^ rng.offset.rotate_left(41) }
    }

    /// A generator for `n` numbers on the device, different from all that were taken before.
    pub fn take(&mut self, n: usize) -> Rng<'static> {
        let rng = self.rng;
        self.rng.offset += n.div_ceil(4) as u64;
        rng
    }

    /// A number in (0, 1) on the host.
    pub fn uniform(&mut self) -> f64 {
        // SplitMix64 (Steele, Lea and Flood, 2014)
        self.host = self.host.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.host;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ z >> 31) >> 12) as f64 / (1u64 << 52) as f64 + 0.5 / (1u64 << 52) as f64
    }

    /// Gamma(a, 1): Marsaglia and Tsang (2000), with their step from a + 1 to a for a below 1.
    fn gamma(&mut self, a: f64) -> f64 {
        if a < 1.0 {
            return self.gamma(a + 1.0) * self.uniform().powf(1.0 / a);
        }
        let d = a - 1.0 / 3.0;
        let c = 1.0 / (9.0 * d).sqrt();
        loop {
            let (u, v) = (self.uniform(), self.uniform());
            let x = (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos();
            let t = (1.0 + c * x).powi(3);
            if t > 0.0 && self.uniform().ln() < 0.5 * x * x + d - d * t + d * t.ln() {
                return d * t;
            }
        }
    }

    /// Beta(a, a).
    fn beta(&mut self, a: f64) -> f64 {
        let (x, y) = (self.gamma(a), self.gamma(a));
        // For a near 0 both can vanish; then either end is as likely.
        if x + y > 0.0 { x / (x + y) } else { self.uniform().round() }
    }

    /// Per item: chance `p`, as u8 `[n, 1, ..]`.
    fn chance(&mut self, x: &Tensor, p: f64) -> Result<Tensor> {
        let n = x.shape()[0];
        Tensor::random(x.device(), DType::U8, &column(x), Distribution::Bernoulli { p }, self.take(n))
    }

    /// Per item: a number in [lo, hi), as f32 `[n, 1, ..]`.
    fn range(&mut self, x: &Tensor, lo: f64, hi: f64) -> Result<Tensor> {
        let n = x.shape()[0];
        Tensor::rand(x.device(), DType::F32, &column(x), lo, hi, self.take(n))
    }
}

/// `[n, 1, ..]`, of x's rank.
fn column(x: &Tensor) -> Vec<usize> {
    let mut shape = vec![1; x.rank()];
    shape[0] = x.shape()[0];
    shape
}

/// A change of a batch on the device.
pub trait Transform: Send + Sync + fmt::Debug {
    /// The changed batch.
    fn apply(&self, batch: Batch, draws: &mut Draws) -> Result<Batch>;
}

impl<T: Transform + ?Sized> Transform for Box<T> {
    fn apply(&self, batch: Batch, draws: &mut Draws) -> Result<Batch> {
        (**self).apply(batch, draws)
    }
}

/// Batches of a source, changed by transforms one after the other.
///
/// Random transforms draw from seed, epoch and the batch's position in its epoch, so that a resumed run repeats them. An epoch without an
/// [`Order`] (evaluation, training without shuffling) counts as epoch 0.
pub struct Transformed {
    source: Box<dyn Source>,
    transforms: Vec<Box<dyn Transform>>,
    seed: u64,
}

impl fmt::Debug for Transformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transformed")
            .field("transforms", &self.transforms)
            .field("seed", &self.seed)
            .finish_non_exhaustive()
    }
}

impl Transformed {
    /// Without transforms yet.
    pub fn new(source: impl Source + 'static, seed: u64) -> Self {
        Transformed { source: Box::new(source), transforms: vec![], seed }
    }

    /// Adds a transform after the others.
    pub fn then(mut self, transform: impl Transform + 'static) -> Self {
        self.transforms.push(Box::new(transform));
        self
    }
}

impl Source for Transformed {
    fn items(&self) -> usize {
        self.source.items()
    }

    fn classes(&self) -> usize {
        self.source.classes()
    }

    fn epoch(&self, order: Option<Order>, batch: usize) -> Result<Batches<'_>> {
        let epoch = order.map_or(0, |o| o.epoch);
        let batches = self.source.epoch(order, batch)?.zip(0u64..);
        Ok(Box::new(batches.map(move |(batch, step)| {
            no_grad(|| {
                self.transforms.iter().zip(0u64..).try_fold(batch?, |b, (t, position)| {
                    t.apply(b, &mut Draws::new(self.seed, epoch, step, position))
                })
            })
        })))
    }
}

/// Height and width of images `[N, C, H, W]` of a float dtype.
fn images(op: &'static str, x: &Tensor) -> Result<[usize; 4]> {
    match *x.shape() {
        [n, c, h, w] if x.dtype().is_float() => Ok([n, c, h, w]),
        _ => Err(invalid(op, "x", "floats of shape [N, C, H, W]", format!("{} {:?}", x.dtype(), x.shape()))),
    }
}

fn probability(op: &'static str, p: f64) -> Result<f64> {
    if (0.0..=1.0).contains(&p) {
        Ok(p)
    } else {
        Err(invalid(op, "p", "a probability in [0, 1]", format!("{p}")))
    }
}

/// `(x - mean) / std` per channel (axis 1), as `torchvision.transforms.Normalize`.
#[derive(Debug)]
pub struct Normalize {
    scale: Tensor,
    shift: Tensor,
}

impl Normalize {
    /// One mean and deviation per channel, or one for all, in the units of the batches: for bytes 0 to 255, unless the source scales them.
    /// Errors: lists of unequal length, a deviation that is not above 0.
    pub fn new(device: &Device, dtype: DType, mean: &[f64], std: &[f64]) -> Result<Self> {
        if mean.is_empty() || mean.len() != std.len() {
            let got = format!("{} and {}", mean.len(), std.len());
            return Err(invalid("Normalize", "std", "as many deviations as means, at least 1", got));
        }
        if let Some(bad) = std.iter().find(|s| !(**s > 0.0 && s.is_finite())) {
            return Err(invalid("Normalize", "std", "deviations above 0", format!("{bad}")));
        }
        let put = |v: Vec<f64>| HostTensor::from_slice(&v, &[v.len()])?.to_dtype(dtype)?.to_device(device);
        Ok(Normalize {
            scale: put(std.iter().map(|s| 1.0 / s).collect())?,
            shift: put(mean.iter().zip(std).map(|(m, s)| -m / s).collect())?,
        })
    }
}

impl Transform for Normalize {
    fn apply(&self, batch: Batch, _draws: &mut Draws) -> Result<Batch> {
        let (x, c) = (&batch.x, self.scale.numel());
        if x.rank() < 2 || (c != 1 && x.shape()[1] != c) {
            return Err(invalid("Normalize", "x", format!("shape [N, {c}, ..]"), format!("{:?}", x.shape())));
        }
        let mut shape = vec![1; x.rank()];
        shape[1] = c;
        let x = x.mul_add(&self.scale.reshape(&shape)?, &self.shift.reshape(&shape)?)?;
        Ok(Batch { x, ..batch })
    }
}

/// Class ids as one-hot rows `[N, classes]`, for losses that take probabilities.
#[derive(Debug, Clone, Copy)]
pub struct OneHot {
    /// Number of classes.
    pub classes: usize,
    /// Dtype of the rows: f32, f16 or bf16.
    pub dtype: DType,
}

impl Transform for OneHot {
    fn apply(&self, batch: Batch, _draws: &mut Draws) -> Result<Batch> {
        Ok(Batch { y: batch.y.one_hot(self.classes, self.dtype)?, ..batch })
    }
}

/// Mirrors each item with a probability, as `torchvision.transforms.RandomHorizontalFlip` and `RandomVerticalFlip`.
#[derive(Debug, Clone, Copy)]
pub struct RandomFlip {
    p: f64,
    axis: isize,
}

impl RandomFlip {
    /// Left and right (the last axis). Errors: `p` outside of [0, 1].
    pub fn horizontal(p: f64) -> Result<Self> {
        Ok(RandomFlip { p: probability("RandomFlip", p)?, axis: -1 })
    }

    /// Up and down (the last axis but one). Errors: `p` outside of [0, 1].
    pub fn vertical(p: f64) -> Result<Self> {
        Ok(RandomFlip { p: probability("RandomFlip", p)?, axis: -2 })
    }
}

impl Transform for RandomFlip {
    fn apply(&self, batch: Batch, draws: &mut Draws) -> Result<Batch> {
        images("RandomFlip", &batch.x)?;
        let mask = draws.chance(&batch.x, self.p)?;
        let x = batch.x.flip(&[self.axis])?.where_(&mask, &batch.x)?;
        Ok(Batch { x, ..batch })
    }
}

/// Cuts a window from a random place of each image, which may get a border of zeros first, as `torchvision.transforms.RandomCrop`.
#[derive(Debug, Clone, Copy)]
pub struct RandomCrop {
    size: (usize, usize),
    padding: usize,
}

impl RandomCrop {
    /// Windows of `size` (height, width) of images with `padding` zeros on every side. Errors: a size of 0, a padding above 2^30.
    pub fn new(size: (usize, usize), padding: usize) -> Result<Self> {
        if size.0 == 0 || size.1 == 0 {
            return Err(invalid("RandomCrop", "size", "at least 1 x 1", format!("{size:?}")));
        }
        if padding > 1 << 30 {
            return Err(invalid("RandomCrop", "padding", "at most 2^30", format!("{padding}")));
        }
        Ok(RandomCrop { size, padding })
    }
}

impl Transform for RandomCrop {
    fn apply(&self, batch: Batch, draws: &mut Draws) -> Result<Batch> {
        let [n, c, h, w] = images("RandomCrop", &batch.x)?;
        let (th, tw) = self.size;
        let p = self.padding;
        let (h, w) = (h + 2 * p, w + 2 * p);
        if th > h || tw > w {
            let got = format!("{h} x {w} with the border");
            return Err(invalid("RandomCrop", "x", format!("images of at least {th} x {tw}"), got));
        }
        let x = if p == 0 {
            batch.x.contiguous()?
        } else {
            let p = p as isize;
            batch.x.pad(PadMode::Constant(0.0), &[(0, 0), (0, 0), (p, p), (p, p)])?
        };
        let device = x.device().clone();
        // Positions of the window's elements in the flat images: a part per item and one that all items share.
        let mut place = |range: usize| {
            let ints = Distribution::Int { lo: 0, hi: range as i64 };
            Tensor::random(&device, DType::I64, &[n, 1, 1, 1], ints, draws.take(n))
        };
        let (top, left) = (place(h - th + 1)?, place(w - tw + 1)?);
        let line = |step: usize, count: usize, shape: &[usize]| {
            Tensor::arange(&device, DType::I64, 0.0, step as f64, count)?.reshape(shape)
        };
        let item =
            line(c * h * w, n, &[n, 1, 1, 1])?.add(&left)?.binary(Binary::Add { alpha: w as f64 }, &top)?;
        let window = line(w, th, &[1, 1, th, 1])?.add(&line(1, tw, &[1, 1, 1, tw])?)?;
        let at = item.add(&line(h * w, c, &[1, c, 1, 1])?)?.add(&window)?;
        let flat = x.reshape(&[n * c * h * w])?;
        let x = flat.index_select(0, &at.reshape(&[n * c * th * tw])?)?.reshape(&[n, c, th, tw])?;
        Ok(Batch { x, ..batch })
    }
}

/// Overwrites a random rectangle of each image with a probability (Zhong et al., 2020; `torchvision.transforms.RandomErasing`).
///
/// Area (as a share of the image) and the logarithm of height / width are uniform. A rectangle that is too high or too wide is cut to the
/// image, where torchvision draws again.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RandomErase {
    /// Probability per image.
    pub p: f64,
    /// Smallest and largest share of the area.
    pub area: (f64, f64),
    /// Smallest and largest height / width.
    pub ratio: (f64, f64),
    /// What is written.
    pub value: f64,
}

impl Default for RandomErase {
    fn default() -> Self {
        RandomErase { p: 0.5, area: (0.02, 0.33), ratio: (0.3, 3.3), value: 0.0 }
    }
}

impl Transform for RandomErase {
    /// Errors: a probability or area outside of [0, 1], a ratio that is not above 0, bounds in the wrong order.
    fn apply(&self, batch: Batch, draws: &mut Draws) -> Result<Batch> {
        const OP: &str = "RandomErase";
        let [_, _, h, w] = images(OP, &batch.x)?;
        let p = probability(OP, self.p)?;
        let (a0, a1) = self.area;
        let (r0, r1) = self.ratio;
        if !(0.0 <= a0 && a0 <= a1 && a1 <= 1.0) {
            return Err(invalid(
                OP,
                "area",
                "shares in [0, 1], the smaller first",
                format!("{:?}", self.area),
            ));
        }
        if !(0.0 < r0 && r0 <= r1 && r1.is_finite()) {
            return Err(invalid(
                OP,
                "ratio",
                "ratios above 0, the smaller first",
                format!("{:?}", self.ratio),
            ));
        }
        let x = &batch.x;
        let root = draws.range(x, a0, a1)?.mul_scalar((h * w) as f64)?.unary(Unary::Sqrt)?;
        let half = draws.range(x, 0.5 * r0.ln(), 0.5 * r1.ln())?.unary(Unary::Exp)?;
        let on = draws.chance(x, p)?;
        // First and last line of the rectangle, for lines of a side of `size` elements along `axis`.
        let mut side = |length: Tensor, size: usize, axis: usize| {
            let length = length.unary(Unary::Round { decimals: 0 })?.clamp(Some(1.0), Some(size as f64))?;
            let room = length.unary(Unary::RsubScalar { c: size as f64 + 1.0 })?;
            // The product can round up to the room itself; the last place is one less.
            let start = draws.range(x, 0.0, 1.0)?.mul(&room)?.unary(Unary::Floor)?;
            let start = start.binary(Binary::Minimum, &room.add_scalar(-1.0)?)?;
            let mut shape = [1; 4];
            shape[axis] = size;
            let lines = Tensor::arange(x.device(), DType::F32, 0.0, 1.0, size)?.reshape(&shape)?;
            let (after, before) =
                (lines.binary(Binary::Ge, &start)?, lines.binary(Binary::Lt, &start.add(&length)?)?);
            after.binary(Binary::LogicalAnd, &before)
        };
        let (rows, columns) = (side(root.mul(&half)?, h, 2)?, side(root.div(&half)?, w, 3)?);
        let mask = rows.binary(Binary::LogicalAnd, &columns)?.binary(Binary::LogicalAnd, &on)?;
        let value = Tensor::full(x.device(), x.dtype(), &[1, 1, 1, 1], self.value)?;
        let x = value.where_(&mask, x)?;
        Ok(Batch { x, ..batch })
    }
}

/// Blends each item and its target with another item of the batch (Zhang et al., 2018): `λ·a + (1-λ)·b`, λ ~ Beta(α, α), one λ per batch.
/// Targets must be floats: values, or classes after [`OneHot`].
#[derive(Debug, Clone, Copy)]
pub struct Mixup {
    alpha: f64,
}

impl Mixup {
    /// Errors: `alpha` not above 0.
    pub fn new(alpha: f64) -> Result<Self> {
        if alpha > 0.0 && alpha.is_finite() {
            return Ok(Mixup { alpha });
        }
        Err(invalid("Mixup", "alpha", "a number above 0", format!("{alpha}")))
    }
}

impl Transform for Mixup {
    fn apply(&self, batch: Batch, draws: &mut Draws) -> Result<Batch> {
        for (arg, t) in [("x", &batch.x), ("y", &batch.y)] {
            if !t.dtype().is_float() || t.rank() == 0 {
                let got = format!("{} {:?}", t.dtype(), t.shape());
                return Err(invalid("Mixup", arg, "floats (OneHot makes them of class ids)", got));
            }
        }
        let lambda = draws.beta(self.alpha);
        // A permutation consumes two numbers per element.
        let other = Tensor::permutation(batch.x.device(), batch.len, draws.take(2 * batch.len))?;
        let blend = |t: &Tensor| {
            let other = t.index_select(0, &other)?;
            t.mul_scalar(lambda)?.binary(Binary::Add { alpha: 1.0 - lambda }, &other)
        };
        Ok(Batch { x: blend(&batch.x)?, y: blend(&batch.y)?, ..batch })
    }
}
