//! Random numbers and dropout.

use crate::buffer::{GradMut, View, ViewMut};
use crate::cpu::scratch::*;
use crate::cpu::values::{CHUNK, Share, Values, change, each_chunk};
use crate::cpu::{HostElement, Kernels, gather, gather_f64, store, store_f64, store_grad, with_dtype};
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::random::*;

/// Philox4x32-10 (Salmon et al., 2011).
pub(crate) fn philox(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    let ([mut c0, mut c1, mut c2, mut c3], [mut k0, mut k1]) = (counter, key);
    for _ in 0..10 {
        let a = 0xD251_1F53u64 * c0 as u64;
        let b = 0xCD9E_8D57u64 * c2 as u64;
        (c0, c1, c2, c3) = ((b >> 32) as u32 ^ c1 ^ k0, b as u32, (a >> 32) as u32 ^ c3 ^ k1, a as u32);
        k0 = k0.wrapping_add(0x9E37_79B9);
        k1 = k1.wrapping_add(0xBB67_AE85);
    }
    [c0, c1, c2, c3]
}

/// The words of a call, by position.
#[derive(Debug, Clone)]
pub(in crate::cpu) struct Words {
    seed: u64,
    stream: u64,
    first: u64,
    block: u64,
    words: [u32; 4],
}

impl Words {
    pub(in crate::cpu) fn new(op: &'static str, rng: &Rng<'_>) -> Result<Self> {
        let more = match rng.device_offset {
            Some(v) => gather::<i64>(op, v)?[0] as u64,
            None => 0,
        };
        let mut w = Words {
            seed: rng.seed,
            stream: rng.stream,
            first: rng.offset.wrapping_add(more),
            block: 0,
            words: [0; 4],
        };
        w.load(0);
        Ok(w)
    }

    fn load(&mut self, block: u64) {
        let b = self.first.wrapping_add(block);
        let counter = [b as u32, (b >> 32) as u32, self.stream as u32, (self.stream >> 32) as u32];
        self.words = philox(counter, [self.seed as u32, (self.seed >> 32) as u32]);
        self.block = block;
    }

    /// Word number `i` of the call.
    pub(in crate::cpu) fn word(&mut self, i: usize) -> u32 {
        let block = (i / 4) as u64;
        if block != self.block {
            self.load(block);
        }
        self.words[i % 4]
    }

    /// [0, 1) for element i.
    pub(in crate::cpu) fn unit(&mut self, dtype: DType, i: usize) -> f64 {
        if dtype == DType::F64 {
            let (a, b) = (self.word(2 * i) >> 5, self.word(2 * i + 1) >> 6);
            return (a as f64 * 67_108_864.0 + b as f64) * 2f64.powi(-53);
        }
        (self.word(i) >> 8) as f64 * 2f64.powi(-24)
    }

    /// (0, 1] for element i.
    fn unit_open(&mut self, dtype: DType, i: usize) -> f64 {
        self.unit(dtype, i) + if dtype == DType::F64 { 2f64.powi(-53) } else { 2f64.powi(-24) }
    }

    fn gumbel(&mut self, dtype: DType, i: usize) -> f64 {
        let u = self.unit_open(dtype, i);
        let l = if u >= 1.0 { 2f64.powi(-25) } else { -u.ln() };
        -l.ln()
    }
}

/// Rounds to the arithmetic type, in which bounds and probabilities are compared.
fn arithmetic(dtype: DType, x: f64) -> f64 {
    if dtype == DType::F64 { x } else { x as f32 as f64 }
}

impl RandomOps for Kernels {
    fn random(&self, dist: Distribution, rng: Rng<'_>, y: ViewMut<'_>) -> Result<()> {
        const OP: &str = "random";
        check_random(dist, &rng, &y)?;
        let _timed = self.count("random");
        let (n, dt) = (y.numel(), y.dtype());
        let mut w = Words::new(OP, &rng)?;
        match dist {
            Distribution::Bits => store(OP, &y, &(0..n).map(|i| w.word(i) as i32).try_vec()?),
            Distribution::Int { lo, hi } => {
                let range = hi.wrapping_sub(lo) as u64;
                let draw = |i| lo + ((w.word(i) as u64 * range) >> 32) as i64;
                let v: Vec<i64> = (0..n).map(draw).try_vec()?;
                match dt {
                    DType::I64 => store(OP, &y, &v),
                    _ => store(OP, &y, &v.iter().map(|&x| x as i32).try_vec()?),
                }
            }
            Distribution::Bernoulli { p } => {
                let p = p as f32 as f64;
                store(OP, &y, &(0..n).map(|i| (w.unit(DType::F32, i) < p) as u8).try_vec()?)
            }
            Distribution::Uniform { lo, hi } => {
                let (lo, hi) = (arithmetic(dt, lo), arithmetic(dt, hi));
                let draw = |i| {
                    let v = arithmetic(dt, lo + (hi - lo) * w.unit(dt, i));
                    if v < hi { v } else { below(dt, hi).max(lo) }
                };
                store_f64(OP, &y, &(0..n).map(draw).try_vec()?)
            }
            Distribution::Normal { mean, std } => {
                let draw = |i: usize| {
                    let radius = (-2.0 * w.unit_open(dt, i & !1).ln()).sqrt();
                    let angle = std::f64::consts::TAU * w.unit(dt, i | 1);
                    mean + std * radius * if i.is_multiple_of(2) { angle.cos() } else { angle.sin() }
                };
                store_f64(OP, &y, &(0..n).map(draw).try_vec()?)
            }
            Distribution::Exponential { rate } => {
                store_f64(OP, &y, &(0..n).map(|i| -w.unit_open(dt, i).ln() / rate).try_vec()?)
            }
            Distribution::Gumbel => store_f64(OP, &y, &(0..n).map(|i| w.gumbel(dt, i)).try_vec()?),
        }
    }

    fn bernoulli(&self, p: View<'_>, rng: Rng<'_>, y: ViewMut<'_>) -> Result<()> {
        const OP: &str = "bernoulli";
        check_bernoulli(&p, &rng, &y)?;
        let _timed = self.count("bernoulli");
        let mut w = Words::new(OP, &rng)?;
        let p = gather_f64(OP, p)?;
        let keep: Vec<u8> =
            p.iter().enumerate().map(|(i, &p)| (w.unit(DType::F32, i) < p) as u8).try_vec()?;
        store(OP, &y, &keep)
    }

    fn permutation(&self, rng: Rng<'_>, y: ViewMut<'_>) -> Result<()> {
        const OP: &str = "permutation";
        check_permutation(&rng, &y)?;
        let _timed = self.count("permutation");
        let mut w = Words::new(OP, &rng)?;
        let mut keyed: Vec<_> =
            (0..y.numel()).map(|i| (w.word(2 * i), w.word(2 * i + 1), i as i64)).try_vec()?;
        keyed.sort_unstable();
        match y.dtype() {
            DType::I64 => store(OP, &y, &keyed.iter().map(|k| k.2).try_vec()?),
            _ => store(OP, &y, &keyed.iter().map(|k| k.2 as i32).try_vec()?),
        }
    }

    fn categorical(&self, weights: Weights<'_>, rng: Rng<'_>, y: ViewMut<'_>) -> Result<()> {
        const OP: &str = "categorical";
        let [rows, k, count] = check_categorical(&weights, &rng, &y)?;
        let _timed = self.count("categorical");
        let mut w = Words::new(OP, &rng)?;
        let mut picks = with_capacity(rows * count)?;
        match weights {
            Weights::Probs(p) => {
                let p = gather_f64(OP, p)?;
                for row in 0..rows {
                    let mut sum = 0f32;
                    let add = |x: &f64| {
                        sum += *x as f32;
                        sum
                    };
                    let cum: Vec<f32> = p[row * k..(row + 1) * k].iter().map(add).try_vec()?;
                    if cum[k - 1].is_nan() || cum[k - 1] <= 0.0 {
                        self.flag_index_error(OP);
                    }
                    for j in 0..count {
                        let target = w.unit(DType::F32, row * count + j) as f32 * cum[k - 1];
                        picks.try_push(cum[..k - 1].iter().filter(|&&c| c <= target).count() as i64)?;
                    }
                }
            }
            Weights::Logits(l) => {
                let dt = l.dtype();
                let l = gather_f64(OP, l)?;
                for row in 0..rows {
                    let mut best = (f64::NEG_INFINITY, 0);
                    for j in 0..k {
                        let x = l[row * k + j] + w.gumbel(dt, row * k + j);
                        if x > best.0 {
                            best = (x, j as i64);
                        }
                    }
                    picks.try_push(best.1)?;
                }
            }
        }
        match y.dtype() {
            DType::I64 => store(OP, &y, &picks),
            _ => store(OP, &y, &picks.iter().map(|&x| x as i32).try_vec()?),
        }
    }

    fn dropout(
        &self,
        p: f64,
        rng: Rng<'_>,
        x: View<'_>,
        y: ViewMut<'_>,
        mask: Option<ViewMut<'_>>,
    ) -> Result<()> {
        const OP: &str = "dropout";
        check_dropout(p, &rng, &x, &y, mask.as_ref())?;
        let _timed = self.count("dropout");
        let keep = keep_mask(OP, p, &rng, x.numel())?;
        if let Some(m) = &mask {
            store(OP, m, &keep)?;
        }
        put_masked(OP, p, &keep, x, &y.into())
    }

    fn dropout_bwd(&self, p: f64, mask: DropoutMask<'_>, dy: View<'_>, dx: GradMut<'_>) -> Result<()> {
        const OP: &str = "dropout_bwd";
        check_dropout_bwd(p, &mask, &dy, &dx)?;
        let _timed = self.count("dropout_bwd");
        let keep = match mask {
            DropoutMask::Saved(m) => gather::<u8>(OP, m)?,
            DropoutMask::Regenerate(rng) => keep_mask(OP, p, &rng, dy.numel())?,
        };
        put_masked(OP, p, &keep, dy, &dx)
    }

    fn bias_dropout(&self, p: f64, rng: Rng<'_>, io: BiasDropout<'_>) -> Result<()> {
        const OP: &str = "bias_dropout";
        check_bias_dropout(p, &rng, &io)?;
        let _timed = self.count("bias_dropout");
        let keep = keep_mask(OP, p, &rng, io.x.numel())?;
        let bias = gather_f64(OP, io.bias)?;
        let mut x = gather_f64(OP, io.x)?;
        x.iter_mut().enumerate().for_each(|(i, x)| *x += bias[i % bias.len()]);
        let mut y = masked(p, &keep, &x)?;
        if let Some(r) = io.residual {
            y.iter_mut().zip(gather_f64(OP, r)?).for_each(|(y, r)| *y += r);
        }
        if let Some(m) = &io.mask {
            store(OP, m, &keep)?;
        }
        store_f64(OP, &io.y, &y)
    }

    fn bias_dropout_bwd(
        &self,
        p: f64,
        mask: DropoutMask<'_>,
        dy: View<'_>,
        dx: Option<GradMut<'_>>,
        dbias: Option<GradMut<'_>>,
    ) -> Result<()> {
        const OP: &str = "bias_dropout_bwd";
        check_bias_dropout_bwd(p, &mask, &dy, dx.as_ref(), dbias.as_ref())?;
        let _timed = self.count("bias_dropout_bwd");
        let keep = match mask {
            DropoutMask::Saved(m) => gather::<u8>(OP, m)?,
            DropoutMask::Regenerate(rng) => keep_mask(OP, p, &rng, dy.numel())?,
        };
        let d = masked(p, &keep, &gather_f64(OP, dy)?)?;
        dx.iter().try_for_each(|g| store_grad(OP, g, &d))?;
        let Some(g) = dbias else { return Ok(()) };
        let mut sums = filled(g.out.numel(), 0.0)?;
        let n = sums.len();
        d.iter().enumerate().for_each(|(i, d)| sums[i % n] += d);
        store_grad(OP, &g, &sums)
    }
}

fn keep_mask(op: &'static str, p: f64, rng: &Rng<'_>, n: usize) -> Result<Vec<u8>> {
    let w = Words::new(op, rng)?;
    let keep = (1.0 - p) as f32 as f64;
    let mut mask = filled(n, 0)?;
    // Parts end where blocks of four words do.
    each_chunk(&mut mask, CHUNK, Share::ANY, &|part, mask| {
        let mut w = w.clone();
        let of = |i| (w.unit(DType::F32, part * CHUNK + i) < keep) as u8;
        mask.iter_mut().zip((0..).map(of)).for_each(|(m, kept)| *m = kept);
    });
    Ok(mask)
}

fn masked(p: f64, keep: &[u8], x: &[f64]) -> Result<Vec<f64>> {
    keep.iter().zip(x).map(|(&k, &x)| kept(p, k, x)).try_vec()
}

/// An element after dropout.
fn kept(p: f64, keep: u8, x: f64) -> f64 {
    if keep != 0 && p < 1.0 { x / (1.0 - p) } else { 0.0 }
}

/// out = x after dropout, or out += it, on several threads.
fn put_masked(op: &'static str, p: f64, keep: &[u8], x: View<'_>, out: &GradMut<'_>) -> Result<()> {
    with_dtype!(x.dtype(), T => {
        let x = Values::<T>::new(op, x, &[out.out.block().id()])?;
        change::<T>(op, &out.out, |at, y| {
            let values = x[at..].iter().zip(&keep[at..]).map(|(&x, &k)| kept(p, k, HostElement::to_f64(x)));
            match out.accumulate {
                false => y.iter_mut().zip(values).for_each(|(y, v)| *y = HostElement::from_f64(v)),
                true => y.iter_mut().zip(values).for_each(|(y, v)| *y = HostElement::from_f64(HostElement::to_f64(*y) + v)),
            }
        })
    })
}

/// The number of the arithmetic type right below x.
fn below(dtype: DType, x: f64) -> f64 {
    if dtype == DType::F64 { x.next_down() } else { (x as f32).next_down() as f64 }
}

#[cfg(test)]
mod tests {
    use super::philox;

    #[test]
    fn philox_known_answers() {
        assert_eq!(philox([0; 4], [0; 2]), [0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8]);
        assert_eq!(philox([u32::MAX; 4], [u32::MAX; 2]), [0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd]);
        let counter = [0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344];
        assert_eq!(
            philox(counter, [0xa4093822, 0x299f31d0]),
            [0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1]
        );
    }
}
