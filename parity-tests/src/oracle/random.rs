//! Random numbers from the definition in `docs/NUMERICS.md`: Philox4x32-10 and the maps from its words.

use std::f64::consts::TAU;

use trefoil::DType;

use super::{Answer, Question, U};

/// One block of Philox4x32-10 (Salmon et al., 2011): ten rounds of two 32 by 32 bit products, with Weyl keys.
fn philox(block: u64, stream: u64, seed: u64) -> [u32; 4] {
    let mut counter = [block as u32, (block >> 32) as u32, stream as u32, (stream >> 32) as u32];
    for round in 0..10u32 {
        let key = [
            (seed as u32).wrapping_add(round.wrapping_mul(0x9E37_79B9)),
            ((seed >> 32) as u32).wrapping_add(round.wrapping_mul(0xBB67_AE85)),
        ];
        let first = u64::from(counter[0]) * 0xD251_1F53;
        let second = u64::from(counter[2]) * 0xCD9E_8D57;
        counter = [
            (second >> 32) as u32 ^ counter[1] ^ key[0],
            second as u32,
            (first >> 32) as u32 ^ counter[3] ^ key[1],
            first as u32,
        ];
    }
    counter
}

/// Words of a sequence.
#[derive(Debug, Clone, Copy)]
pub(super) struct Words {
    pub(super) seed: u64,
    pub(super) stream: u64,
    pub(super) offset: u64,
}

impl Words {
    fn of(q: &Question<'_>) -> Result<Self, String> {
        Ok(Words { seed: q.u("seed")?, stream: q.u("stream")?, offset: q.u("offset")? })
    }

    pub(super) fn word(&self, i: usize) -> u32 {
        philox(self.offset.wrapping_add(i as u64 / 4), self.stream, self.seed)[i % 4]
    }

    /// Uniform in [0, 1).
    pub(super) fn unit(&self, i: usize) -> f64 {
        f64::from(self.word(i) >> 8) * U
    }

    /// Uniform in (0, 1].
    fn positive(&self, i: usize) -> f64 {
        self.unit(i) + U
    }

    /// -ln(-ln u), with its error: the inner logarithm has 4 ULP, which the outer one turns into an absolute error, and has 4 ULP itself.
    fn gumbel(&self, i: usize) -> (f64, f64) {
        let u = self.positive(i);
        let inner = if u >= 1.0 { 0.5 * U } else { -u.ln() };
        let g = -inner.ln();
        (g, 8.0 * U * (1.0 + g.abs()))
    }
}

fn count(shape: &[usize]) -> usize {
    shape.iter().product()
}

/// Floats of the case's type from a function of the element's number that gives value and error.
fn draws(q: &Question<'_>, f: impl Fn(usize) -> (f64, f64)) -> Result<Vec<Answer>, String> {
    let shape = q.dims("shape")?;
    let (y, errors): (Vec<f64>, Vec<f64>) = (0..count(&shape)).map(f).unzip();
    Ok(vec![Answer::rounded("y", q.dtype(), &shape, &y, errors)])
}

/// The words as i32.
pub(crate) fn words(q: &Question<'_>) -> Result<Vec<Answer>, String> {
    let (w, n) = (Words::of(q)?, q.u("n")? as usize);
    let y: Vec<i64> = (0..n).map(|i| i64::from(w.word(i) as i32)).collect();
    Ok(vec![Answer::integers("y", DType::I32, &[n], &y)])
}

/// lo + (hi - lo) u; where f32 would reach hi, the number below it. Two roundings in f32.
pub(crate) fn uniform(q: &Question<'_>) -> Result<Vec<Answer>, String> {
    let (w, lo, hi) = (Words::of(q)?, q.f("lo")? as f32, q.f("hi")? as f32);
    let below = f64::from(hi.next_down());
    let (lo, hi) = (f64::from(lo), f64::from(hi));
    draws(q, |i| ((lo + (hi - lo) * w.unit(i)).min(below), 2.0 * U * lo.abs().max(hi.abs())))
}

/// Box and Muller on pairs. The radius has a logarithm and a root (8 roundings); the angle is rounded at up to 2 pi before its sine.
pub(crate) fn normal(q: &Question<'_>) -> Result<Vec<Answer>, String> {
    let (w, mean, std) = (Words::of(q)?, q.f("mean")?, q.f("std")?);
    draws(q, |i| {
        let radius = (-2.0 * w.positive(i & !1).ln()).sqrt();
        let angle = TAU * w.unit(i | 1);
        let z = if i.is_multiple_of(2) { angle.cos() } else { angle.sin() };
        let error = U * std.abs() * radius * (TAU + 8.0 * z.abs()) + U * mean.abs();
        (mean + std * radius * z, error)
    })
}

/// -ln(u) / rate: 4 ULP of the logarithm, a division, and at u next to 1 the rounding of 1.
pub(crate) fn exponential(q: &Question<'_>) -> Result<Vec<Answer>, String> {
    let (w, rate) = (Words::of(q)?, q.f("rate")?);
    draws(q, |i| {
        let y = -w.positive(i).ln() / rate;
        (y, 10.0 * U * y + U / rate)
    })
}

/// Standard Gumbel numbers.
pub(crate) fn gumbel(q: &Question<'_>) -> Result<Vec<Answer>, String> {
    let w = Words::of(q)?;
    draws(q, |i| w.gumbel(i))
}

/// u < p, both in f32.
pub(crate) fn bernoulli(q: &Question<'_>) -> Result<Vec<Answer>, String> {
    let (w, shape, p) = (Words::of(q)?, q.dims("shape")?, q.opt("p"));
    let single = f64::from(q.opt_f("p")?.unwrap_or(0.0) as f32);
    let p = |i: usize| p.as_ref().map_or(single, |p| p.values[i]);
    let y: Vec<i64> = (0..count(&shape)).map(|i| i64::from(w.unit(i) < p(i))).collect();
    Ok(vec![Answer::integers("y", DType::U8, &shape, &y)])
}

/// lo + the upper half of w (hi - lo).
pub(crate) fn integers(q: &Question<'_>) -> Result<Vec<Answer>, String> {
    let (w, shape, lo) = (Words::of(q)?, q.dims("shape")?, q.i("lo")?);
    let range = q.i("hi")?.abs_diff(lo);
    let y: Vec<i64> =
        (0..count(&shape)).map(|i| lo + ((u128::from(w.word(i)) * u128::from(range)) >> 32) as i64).collect();
    let dtype = DType::from_name(q.s("index")?).ok_or("index is no dtype")?;
    Ok(vec![Answer::integers("y", dtype, &shape, &y)])
}

/// The elements in the order of their keys (w[2i], w[2i + 1], i).
pub(crate) fn permutation(q: &Question<'_>) -> Result<Vec<Answer>, String> {
    let (w, n) = (Words::of(q)?, q.u("n")? as usize);
    let mut y: Vec<i64> = (0..n as i64).collect();
    y.sort_by_key(|&i| (w.word(2 * i as usize), w.word(2 * i as usize + 1), i));
    Ok(vec![Answer::integers("y", DType::I64, &[n], &y)])
}

/// Probabilities: the number of k whose running f32 sum is not above u times the whole. Logits: the largest logit + Gumbel number, where a
/// second one that f32 cannot tell apart will do as well.
pub(crate) fn categorical(q: &Question<'_>) -> Result<Vec<Answer>, String> {
    let (w, n) = (Words::of(q)?, q.u("n")? as usize);
    let (mut y, mut allowed) = (vec![], vec![]);
    let rows;
    if let Some(p) = q.opt("p") {
        rows = p.shape[0];
        for (row, p) in p.values.chunks(p.shape[1].max(1)).enumerate() {
            let running: Vec<f32> = p
                .iter()
                .scan(0f32, |sum, &x| {
                    *sum += x as f32;
                    Some(*sum)
                })
                .collect();
            let (total, before) = running.split_last().ok_or("a row without weights")?;
            for j in 0..n {
                let target = w.unit(row * n + j) as f32 * total;
                y.push(before.iter().filter(|&&c| c <= target).count() as f64);
                allowed.push(0.0);
            }
        }
    } else {
        let logits = q.x("logits")?;
        rows = logits.shape[0];
        let width = logits.shape[1];
        for (row, l) in logits.values.chunks(width.max(1)).enumerate() {
            let mut keys: Vec<(f64, f64, f64)> = (0..width)
                .map(|k| {
                    let (g, error) = w.gumbel(row * width + k);
                    (l[k] + g, error + U * l[k].abs(), k as f64)
                })
                .collect();
            keys.sort_by(|a, b| b.0.total_cmp(&a.0));
            y.push(keys[0].2);
            let tie = keys.get(1).filter(|second| keys[0].0 - second.0 <= keys[0].1 + second.1);
            allowed.push(tie.map_or(0.0, |second| (second.2 - keys[0].2).abs()));
        }
    }
    Ok(vec![Answer::within("y", &[rows, n], &y, allowed)])
}

/// Which elements dropout keeps: u < 1 - p, both in f32.
fn kept(q: &Question<'_>, n: usize) -> Result<Vec<bool>, String> {
    if let Some(mask) = q.opt("mask") {
        return Ok(mask.values.iter().map(|&m| m != 0.0).collect());
    }
    let (w, keep) = (Words::of(q)?, f64::from((1.0 - q.f("p")?) as f32));
    Ok((0..n).map(|i| w.unit(i) < keep).collect())
}

/// What is kept, divided by 1 - p: its reciprocal and the product are rounded.
fn scaled(q: &Question<'_>, x: &[f64], keep: &[bool]) -> Result<Vec<f64>, String> {
    let p = q.f("p")?;
    let one = |(&x, &k): (&f64, &bool)| if k && p < 1.0 { x / (1.0 - p) } else { 0.0 };
    Ok(x.iter().zip(keep).map(one).collect())
}

fn mask(keep: &[bool], shape: &[usize]) -> Answer {
    let bytes: Vec<i64> = keep.iter().map(|&k| i64::from(k)).collect();
    Answer::integers("mask", DType::U8, shape, &bytes)
}

/// y = keep ? x / (1 - p) : 0.
pub(crate) fn dropout(q: &Question<'_>) -> Result<Vec<Answer>, String> {
    let x = q.x("x")?;
    let keep = kept(q, x.values.len())?;
    let y = scaled(q, &x.values, &keep)?;
    let errors = y.iter().map(|y| 2.0 * U * y.abs()).collect();
    Ok(vec![Answer::rounded("y", q.dtype(), &x.shape, &y, errors), mask(&keep, &x.shape)])
}

/// dx = keep ? dy / (1 - p) : 0.
pub(crate) fn dropout_backward(q: &Question<'_>) -> Result<Vec<Answer>, String> {
    let dy = q.x("dy")?;
    let dx = scaled(q, &dy.values, &kept(q, dy.values.len())?)?;
    let errors = dx.iter().map(|d| 2.0 * U * d.abs()).collect();
    Ok(vec![Answer::rounded("dx", q.dtype(), &dy.shape, &dx, errors)])
}

/// y = r + dropout(x + bias): three roundings, each of something no larger than the terms together.
pub(crate) fn bias_dropout(q: &Question<'_>) -> Result<Vec<Answer>, String> {
    let (x, bias, r) = (q.x("x")?, q.x("bias")?, q.opt("r"));
    let n = bias.values.len().max(1);
    let keep = kept(q, x.values.len())?;
    let sum: Vec<f64> = x.values.iter().enumerate().map(|(i, x)| x + bias.values[i % n]).collect();
    let mut y = scaled(q, &sum, &keep)?;
    let mut errors: Vec<f64> = y.iter().map(|y| 4.0 * U * y.abs()).collect();
    if let Some(r) = &r {
        for ((y, e), r) in y.iter_mut().zip(&mut errors).zip(&r.values) {
            *y += r;
            *e += U * y.abs();
        }
    }
    Ok(vec![Answer::rounded("y", q.dtype(), &x.shape, &y, errors), mask(&keep, &x.shape)])
}

/// dx as in dropout, dbias the sum of dx as stored over the rows.
pub(crate) fn bias_dropout_backward(q: &Question<'_>) -> Result<Vec<Answer>, String> {
    let dy = q.x("dy")?;
    let n = *dy.shape.last().unwrap_or(&1);
    let dx = scaled(q, &dy.values, &kept(q, dy.values.len())?)?;
    let rows = dx.len() / n.max(1);
    let (mut sums, mut sizes) = (vec![0.0; n], vec![0.0; n]);
    for (i, d) in dx.iter().enumerate() {
        sums[i % n] += d;
        sizes[i % n] += d.abs();
    }
    // Each term is rounded on its way (in f32 and in storage), the tree of the sum has log2 levels and a few more for its blocks.
    let store = if q.dtype().is_half() { crate::tolerance::half_rounding(q.dtype()) } else { 0.0 };
    let levels = 8.0 + (rows.max(1) as f64).log2();
    let wide = sizes.iter().map(|s| (levels * U + store) * s).collect();
    let errors = dx.iter().map(|d| 2.0 * U * d.abs()).collect();
    Ok(vec![
        Answer::rounded("dx", q.dtype(), &dy.shape, &dx, errors),
        Answer::rounded("dbias", q.dtype(), &[n], &sums, wide),
    ])
}

#[cfg(test)]
mod tests {
    use super::philox;

    #[test]
    fn philox_known_answers() {
        assert_eq!(philox(0, 0, 0), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        let (all, pi) = (u64::MAX, [0x85a3_08d3_243f_6a88, 0x0370_7344_1319_8a2e, 0x299f_31d0_a409_3822]);
        assert_eq!(philox(all, all, all), [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
        assert_eq!(philox(pi[0], pi[1], pi[2]), [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]);
    }
}
