//! Softmax and its relatives.

use std::sync::Mutex;

use trefoil::DType;
use trefoil::ops::random::Distribution;

use crate::core::error::{Result, invalid};
use crate::core::tensor::{Device, Tensor, same_handle};
use crate::layers::regularization::noise::RandomStream;
use crate::layers::spatial::positive;
use crate::module::{InitContext, Layer, Visitor};

const OP: &str = "SoftmaxVariant";

/// Which probabilities a [`SoftmaxVariant`] makes of the n numbers of a row.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum SoftmaxKind {
    /// softmax(x / temperature).
    Standard {
        /// Above 0; small is sharp.
        temperature: f64,
    },
    /// A softmax of each of `rows` groups of `cols` neighbours.
    Grid {
        /// Groups.
        rows: usize,
        /// Size of a group; rows * cols = n.
        cols: usize,
        /// Above 0.
        temperature: f64,
    },
    /// The leaves of a tree whose nodes have `levels[d]` children at depth d; the product of the levels is n.
    Hierarchical {
        /// Children per depth.
        levels: Vec<usize>,
        /// Above 0.
        temperature: f64,
        /// One distribution over all leaves: the product of the softmaxes on the way to a leaf, where the score of a node is the mean over
        /// its leaves. Otherwise a distribution over each group of siblings (Loom's reading).
        tree: bool,
    },
    /// softmax((x + Gumbel noise) / temperature), with noise drawn anew in every call (Jang et al., 2017).
    Gumbel {
        /// Above 0.
        temperature: f64,
        /// The forward gives a one-hot row of the largest, the backward that of the soft one (straight-through).
        hard: bool,
    },
    /// Softmax over the places where the mask is true, 0 elsewhere. A mask without a true place gives equal probabilities to all.
    Masked {
        /// n values.
        mask: Vec<bool>,
        /// Above 0.
        temperature: f64,
    },
    /// The nearest distribution, with exact zeros: [`Tensor::sparsemax`].
    Sparse,
    /// Between softmax (alpha 1) and sparsemax (alpha 2): [`Tensor::entmax`].
    Entmax {
        /// At least 1.
        alpha: f64,
    },
    /// Classes in clusters, in the structure of Grave et al. (2017): those of the first cluster compete with one entry for each other
    /// cluster, whose score is the mean over its classes and whose probability is shared by a softmax within it.
    Adaptive {
        /// Each of 0..n once.
        clusters: Vec<Vec<usize>>,
    },
    /// A mixture of softmaxes (Yang et al., 2018): n = K m numbers are K rows of logits for m classes, the result `[.., m]` is the sum
    /// of their softmaxes with these weights.
    Mixture {
        /// K numbers of at least 0 with a sum above 0, which they are divided by.
        weights: Vec<f64>,
    },
}

/// The ten softmaxes of Loom, along the last axis, all with true gradients and on the device. Leading axes are rows of their own.
///
/// | Loom | kind |
/// |---|---|
/// | standard, temperature | [`Standard`](SoftmaxKind::Standard) |
/// | grid, hierarchical, gumbel, masked, sparse, adaptive, mixture, entmax | of the same name |
#[derive(Debug)]
pub struct SoftmaxVariant {
    kind: SoftmaxKind,
    rng: RandomStream,
    /// Mask or order of classes, on the device where it was used last.
    constant: Mutex<Option<Tensor>>,
}

fn check_temperature(t: f64) -> Result<()> {
    if t > 0.0 && t.is_finite() {
        return Ok(());
    }
    Err(invalid(OP, "temperature", "a finite number above 0", format!("{t}")))
}

fn check(kind: &SoftmaxKind) -> Result<()> {
    use SoftmaxKind::*;
    match kind {
        Standard { temperature } | Gumbel { temperature, .. } => check_temperature(*temperature),
        Grid { rows, cols, temperature } => {
            positive(OP, "rows", &[*rows])?;
            positive(OP, "cols", &[*cols])?;
            check_temperature(*temperature)
        }
        Hierarchical { levels, temperature, .. } => {
            if levels.is_empty() || levels.contains(&0) {
                return Err(invalid(OP, "levels", "sizes of at least 1", format!("{levels:?}")));
            }
            check_temperature(*temperature)
        }
        Masked { mask, temperature } => {
            if mask.is_empty() {
                return Err(invalid(OP, "mask", "at least 1 value", "none"));
            }
            check_temperature(*temperature)
        }
        Entmax { alpha } if !(*alpha >= 1.0 && alpha.is_finite()) => {
            Err(invalid(OP, "alpha", "a finite number of at least 1", format!("{alpha}")))
        }
        Adaptive { clusters } => {
            let mut all: Vec<usize> = clusters.iter().flatten().copied().collect();
            all.sort_unstable();
            let each = !all.is_empty() && all.iter().copied().eq(0..all.len());
            if each && clusters.iter().all(|c| !c.is_empty()) {
                return Ok(());
            }
            Err(invalid(OP, "clusters", "clusters that hold each of 0..n once", format!("{clusters:?}")))
        }
        Mixture { weights } => {
            if weights.iter().all(|w| *w >= 0.0 && w.is_finite()) && weights.iter().sum::<f64>() > 0.0 {
                return Ok(());
            }
            Err(invalid(OP, "weights", "numbers of at least 0 with a sum above 0", format!("{weights:?}")))
        }
        Sparse | Entmax { .. } => Ok(()),
    }
}

impl SoftmaxVariant {
    /// Of this kind. Errors: values that its kind does not allow.
    pub fn new(cx: &InitContext, kind: SoftmaxKind) -> Result<Self> {
        check(&kind)?;
        Ok(SoftmaxVariant { kind, rng: RandomStream::new(cx), constant: Mutex::default() })
    }

    /// Its kind.
    pub fn kind(&self) -> &SoftmaxKind {
        &self.kind
    }

    /// Size of the last axis, where the kind fixes it.
    pub fn inputs(&self) -> Option<usize> {
        match &self.kind {
            SoftmaxKind::Grid { rows, cols, .. } => Some(rows.saturating_mul(*cols)),
            SoftmaxKind::Hierarchical { levels, .. } => {
                Some(levels.iter().fold(1, |n: usize, &l| n.saturating_mul(l)))
            }
            SoftmaxKind::Masked { mask, .. } => Some(mask.len()),
            SoftmaxKind::Adaptive { clusters } => Some(clusters.iter().map(Vec::len).sum()),
            _ => None,
        }
    }

    /// Made once per device; steps of a training run find it there.
    fn constant(&self, device: &Device, make: impl FnOnce() -> Result<Tensor>) -> Result<Tensor> {
        let mut held = self.constant.lock().unwrap_or_else(|p| p.into_inner());
        if let Some(t) = held.as_ref().filter(|t| same_handle(t.device(), device)) {
            return Ok(t.clone());
        }
        let t = make()?;
        *held = Some(t.clone());
        Ok(t)
    }

    fn gumbel(&self, x: &Tensor, temperature: f64, hard: bool) -> Result<Tensor> {
        let noise =
            Tensor::random(x.device(), x.dtype(), x.shape(), Distribution::Gumbel, self.rng.take(x.numel()))?;
        let y = cooled(&x.add(&noise)?, temperature)?.softmax(-1)?;
        if !hard {
            return Ok(y);
        }
        let n = x.shape()[x.rank() - 1];
        let dtype = x.dtype().accumulator();
        let one_hot = match dtype {
            // One-hot rows exist in narrower dtypes.
            DType::F64 => y.detach().argmax(-1)?.one_hot(n, DType::F32)?.to_dtype(DType::F64)?,
            _ => y.detach().argmax(-1)?.one_hot(n, y.dtype())?,
        };
        // Value one_hot, gradient that of y.
        y.sub(&y.detach())?.add(&one_hot)
    }

    fn adaptive(&self, x: &Tensor, clusters: &[Vec<usize>]) -> Result<Tensor> {
        let n = x.shape()[x.rank() - 1];
        // Both directions in one tensor: classes by cluster, and where each class went.
        let order = self.constant(x.device(), || {
            let by_cluster: Vec<i64> = clusters.iter().flatten().map(|&i| i as i64).collect();
            let mut back = vec![0i64; n];
            for (at, &class) in by_cluster.iter().enumerate() {
                back[class as usize] = at as i64;
            }
            Tensor::from_slice(x.device(), &[by_cluster, back].concat(), &[2, n])
        })?;
        let sizes: Vec<usize> = clusters.iter().map(Vec::len).collect();
        let parts = x.index_select(-1, &order.select(0, 0)?)?.split(-1, &sizes)?;
        let Some((short, tails)) = parts.split_first() else { return x.softmax(-1) };
        let scores = tails.iter().map(|t| t.mean_axes(&[-1], true)).collect::<Result<Vec<_>>>()?;
        let head: Vec<&Tensor> = std::iter::once(short).chain(&scores).collect();
        let head = Tensor::concat(-1, &head)?.softmax(-1)?;
        let mut all = vec![head.narrow(-1, 0, sizes[0])?];
        for (k, tail) in tails.iter().enumerate() {
            all.push(tail.softmax(-1)?.mul(&head.narrow(-1, sizes[0] + k, 1)?)?);
        }
        let joined = Tensor::concat(-1, &all.iter().collect::<Vec<_>>())?;
        joined.index_select(-1, &order.select(0, 1)?)
    }
}

/// x / temperature.
fn cooled(x: &Tensor, temperature: f64) -> Result<Tensor> {
    if temperature == 1.0 { Ok(x.clone()) } else { x.mul_scalar(1.0 / temperature) }
}

/// Softmax of each group of the last axis, which `sizes` divide.
fn grouped(x: &Tensor, sizes: [usize; 2], temperature: f64) -> Result<Tensor> {
    let wide = [&x.shape()[..x.rank() - 1], &sizes].concat();
    cooled(x, temperature)?.reshape(&wide)?.softmax(-1)?.reshape(x.shape())
}

fn tree(x: &Tensor, levels: &[usize], temperature: f64) -> Result<Tensor> {
    let lead = x.rank() - 1;
    let scores = cooled(x, temperature)?.reshape(&[&x.shape()[..lead], levels].concat())?;
    let mut product: Option<Tensor> = None;
    for depth in 0..levels.len() {
        let below: Vec<isize> = (lead + depth + 1..lead + levels.len()).map(|a| a as isize).collect();
        let nodes = if below.is_empty() { scores.clone() } else { scores.mean_axes(&below, true)? };
        let p = nodes.softmax((lead + depth) as isize)?;
        product = Some(match product {
            Some(above) => above.mul(&p)?,
            None => p,
        });
    }
    product.unwrap_or(scores).reshape(x.shape())
}

impl Layer for SoftmaxVariant {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let Some(&n) = x.shape().last() else {
            return Err(invalid(OP, "x", "shape [.., n]", "a scalar"));
        };
        if self.inputs().is_some_and(|want| want != n) {
            let want = format!("shape [.., {}]", self.inputs().unwrap_or(0));
            return Err(invalid(OP, "x", want, format!("{:?}", x.shape())));
        }
        match &self.kind {
            SoftmaxKind::Standard { temperature } => cooled(x, *temperature)?.softmax(-1),
            SoftmaxKind::Grid { rows, cols, temperature } => grouped(x, [*rows, *cols], *temperature),
            SoftmaxKind::Hierarchical { levels, temperature, tree: true } => tree(x, levels, *temperature),
            SoftmaxKind::Hierarchical { levels, temperature, .. } => {
                let last = levels.last().copied().unwrap_or(1);
                grouped(x, [n / last, last], *temperature)
            }
            SoftmaxKind::Gumbel { temperature, hard } => self.gumbel(x, *temperature, *hard),
            SoftmaxKind::Masked { mask, temperature } => {
                let mask = self.constant(x.device(), || {
                    let bytes: Vec<u8> = mask.iter().map(|&m| m.into()).collect();
                    Tensor::from_slice(x.device(), &bytes, &[n])
                })?;
                // Finite, also after the division by the temperature, so that rows masked as a whole have no NaN.
                let low = (x.dtype().largest() * temperature.min(1.0)).min(1e9) * -0.5;
                let low = Tensor::full(x.device(), x.dtype(), &[], low)?;
                cooled(&x.where_(&mask, &low)?, *temperature)?.softmax(-1)
            }
            SoftmaxKind::Sparse => x.sparsemax(-1),
            SoftmaxKind::Entmax { alpha } => x.entmax(*alpha, -1),
            SoftmaxKind::Adaptive { clusters } => self.adaptive(x, clusters),
            SoftmaxKind::Mixture { weights } => {
                let k = weights.len();
                if !n.is_multiple_of(k) {
                    return Err(invalid(OP, "x", format!("a width that {k} divides"), format!("{n}")));
                }
                let total: f64 = weights.iter().sum();
                let blocks = x.split(-1, &vec![n / k; k])?;
                let mut sum: Option<Tensor> = None;
                for (block, w) in blocks.iter().zip(weights) {
                    let p = block.softmax(-1)?.mul_scalar(w / total)?;
                    sum = Some(match sum {
                        Some(s) => s.add(&p)?,
                        None => p,
                    });
                }
                sum.ok_or_else(|| invalid(OP, "weights", "at least one", "none"))
            }
        }
    }

    fn visit(&self, v: &mut Visitor<'_>) {
        if matches!(self.kind, SoftmaxKind::Gumbel { .. }) {
            self.rng.visit(v);
        }
    }
}
