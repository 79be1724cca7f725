//! Steps of Adam with packed moments, and loss scales.

use half::bf16;
use trefoil::DType;

use super::random::Words;
use super::{Answer, Question, U};
use crate::compare::ulp;

/// Elements that share a scale.
const BLOCK: usize = 256;

/// A parameter and its moments after a step, each with the error of f32.
struct Step {
    w: Vec<[f64; 2]>,
    m: Vec<[f64; 2]>,
    v: Vec<[f64; 2]>,
}

/// Adam or AdamW on moments that have been decoded.
fn adam(q: &Question<'_>, w: &[f64], g: &[f64], m: &[f64], v: &[f64]) -> Result<Step, String> {
    let (lr, b1, b2, eps, wd) = (q.f("lr")?, q.f("b1")?, q.f("b2")?, q.f("eps")?, q.f("wd")?);
    let (t, decoupled) = (q.f("step")?, q.b("decoupled")?);
    let unscale = q.opt("inv_scale").map_or(1.0, |s| s.values[0]) * if q.b("maximize")? { -1.0 } else { 1.0 };
    let (c1, c2) = (1.0 - b1.powf(t), 1.0 - b2.powf(t));
    let mut out = Step { w: vec![], m: vec![], v: vec![] };
    for i in 0..w.len() {
        let gradient = g[i] * unscale;
        let g = if decoupled { gradient } else { gradient + wd * w[i] };
        // What is added up may cancel: errors are relative to the terms. Up to 8 roundings each.
        let size = (b1 * m[i]).abs()
            + (1.0 - b1) * (gradient.abs() + if decoupled { 0.0 } else { (wd * w[i]).abs() });
        let mi = b1 * m[i] + (1.0 - b1) * g;
        let vi = b2 * v[i] + (1.0 - b2) * g * g;
        let slack =
            (1.0 - b2) * 2.0 * g.abs() * (gradient.abs() + if decoupled { 0.0 } else { (wd * w[i]).abs() });
        let denominator = (vi / c2).sqrt() + eps;
        let kept = if decoupled { w[i] * (1.0 - lr * wd) } else { w[i] };
        let wi = kept - lr * mi / c1 / denominator;
        // The bias corrections may come from logarithms in f32: 1 - b^t has an error of a few roundings of 1.
        let step = lr * size / c1 / denominator * (32.0 + 4.0 / c1 + 4.0 / c2);
        out.w.push([wi, U * (4.0 * w[i].abs() + step)]);
        out.m.push([mi, 8.0 * U * size]);
        out.v.push([vi, 8.0 * U * (vi.abs() + slack)]);
    }
    Ok(out)
}

/// Where the words of the random rounding of v come from, if it is asked for.
fn rounding(q: &Question<'_>) -> Result<Option<Words>, String> {
    if q.opt_f("seed")?.is_none() {
        return Ok(None);
    }
    Ok(Some(Words { seed: q.u("seed")?, stream: q.u("stream")?, offset: q.u("offset")? }))
}

fn skipped(q: &Question<'_>) -> bool {
    q.opt("found_inf").is_some_and(|f| f.values[0] != 0.0)
}

fn split(pairs: &[[f64; 2]]) -> (Vec<f64>, Vec<f64>) {
    pairs.iter().map(|p| (p[0], p[1])).unzip()
}

/// Moments in bf16: m to nearest; v to nearest, or up where the word's upper half is below the half of the f32 pattern that is cut off.
pub(crate) fn adam_bf16(q: &Question<'_>) -> Result<Vec<Answer>, String> {
    let (w, g) = (q.x("w")?, q.x("g")?);
    let zeros = || vec![0.0; w.values.len()];
    let [m, v] = ["m", "v"].map(|n| q.opt(n).map_or_else(zeros, |t| t.values));
    if q.u("steps")? != 1 || skipped(q) {
        return Err("the definition covers one step that is taken".into());
    }
    let step = adam(q, &w.values, &g.values, &m, &v)?;
    let ((wy, we), (my, me), (vy, ve)) = (split(&step.w), split(&step.m), split(&step.v));
    let v = match rounding(q)? {
        None => Answer::rounded("v", DType::Bf16, &w.shape, &vy, ve),
        Some(words) => {
            let (mut y, mut errors) = (vec![], vec![]);
            for (i, (&v, &e)) in vy.iter().zip(&ve).enumerate() {
                let bits = (v as f32).to_bits();
                let low = f64::from(bits & 0xffff);
                let word = f64::from(words.word(i) >> 16);
                let chosen = (bits >> 16) + u32::from(word < low);
                let step = ulp(DType::Bf16, v);
                // In units of the half that is cut off: where f32's error may move it past the word, or past a number of bf16.
                let unsure = 1.0 + 65536.0 * e / step;
                let near = (word - low).abs() <= unsure || low <= unsure || low >= 65536.0 - unsure;
                y.push(if v.is_finite() { bf16::from_bits(chosen as u16).to_f64() } else { v });
                errors.push(if near { 1.01 * step } else { 0.0 });
            }
            Answer::within("v", &w.shape, &y, errors)
        }
    };
    Ok(vec![
        Answer::rounded("w", q.dtype(), &w.shape, &wy, we),
        Answer::rounded("m", DType::Bf16, &w.shape, &my, me),
        v,
    ])
}

/// Per block of 256 elements m = c / 127 times the largest |m| and v = (c / 255 times the largest sqrt(v))^2. A code is the quotient rounded to
/// nearest, so it lies within 1/2 of it; with random rounding it is the floor, or one above it where u is below the fraction.
pub(crate) fn adam_codes(q: &Question<'_>) -> Result<Vec<Answer>, String> {
    let (w, g) = (q.x("w")?, q.x("g")?);
    let n = w.values.len();
    let blocks = n.div_ceil(BLOCK);
    let zeros = |len: usize| vec![0.0; len];
    let [cm, cv] = ["m", "v"].map(|name| q.opt(name).map_or_else(|| zeros(n), |t| t.values));
    let scales = q.opt("scales").map_or_else(|| zeros(2 * blocks), |t| t.values);
    if skipped(q) {
        return Err("the definition covers steps that are taken".into());
    }
    let signed = |c: f64| if c > 127.0 { c - 256.0 } else { c };
    let m: Vec<f64> = (0..n).map(|i| signed(cm[i]) / 127.0 * scales[i / BLOCK]).collect();
    let v: Vec<f64> = (0..n).map(|i| (cv[i] / 255.0 * scales[blocks + i / BLOCK]).powi(2)).collect();
    let step = adam(q, &w.values, &g.values, &m, &v)?;
    let root: Vec<[f64; 2]> =
        step.v.iter().map(|&[v, e]| [v.sqrt(), if v > 0.0 { e / v.sqrt() } else { e.sqrt() }]).collect();
    let (mut scale, mut allowed) = (vec![], vec![]);
    for moments in [&step.m, &root] {
        for block in moments.chunks(BLOCK) {
            let largest = |k: usize| {
                block.iter().fold(
                    0.0,
                    |a: f64, p| if p[k].is_nan() || a.is_nan() { f64::NAN } else { a.max(p[k].abs()) },
                )
            };
            scale.push(largest(0));
            allowed.push(largest(1) + U * largest(0));
        }
    }
    let words = rounding(q)?;
    let codes = |name: &str, moments: &[[f64; 2]], first: usize, largest: f64, random: Option<Words>| {
        let (mut y, mut errors) = (vec![], vec![]);
        for (i, &[x, e]) in moments.iter().enumerate() {
            let (most, slack) = (scale[first + i / BLOCK], allowed[first + i / BLOCK]);
            // A scale that is 0 or not finite leaves no codes.
            if most <= 0.0 || !most.is_finite() {
                y.push(0.0);
                errors.push(0.0);
                continue;
            }
            let quotient = largest * x / most;
            let error = largest * e / most + quotient.abs() * (slack / most + 4.0 * U);
            let (code, slack) = match random {
                None => (quotient, 0.5 + error),
                Some(words) => {
                    let (low, fraction) = (quotient.floor(), quotient - quotient.floor());
                    let unsure =
                        (words.unit(i) - fraction).abs() <= error || fraction.min(1.0 - fraction) <= error;
                    (low + f64::from(u8::from(words.unit(i) < fraction)), f64::from(u8::from(unsure)))
                }
            };
            // A second moment above 0 never gets the code 0.
            let least = if first > 0 && quotient > 0.0 { 1.0 } else { -largest };
            y.push(code.clamp(least, largest));
            errors.push(slack);
        }
        Answer::within(name, &[n], &y, errors)
    };
    let (wy, we) = split(&step.w);
    let new = |name| Answer::rounded(name, q.dtype(), &w.shape, &wy, we.clone());
    Ok(vec![
        new("w"),
        new("new_w"),
        Answer::within("scales", &[2, blocks], &scale, allowed.clone()),
        codes("codes_m", &step.m, 0, 127.0, None),
        codes("codes_v", &root, blocks, 255.0, words),
    ])
}

/// Division by the scale, and whether anything was not finite.
pub(crate) fn unscale(q: &Question<'_>) -> Result<Vec<Answer>, String> {
    let scale = q.opt("scale").map(|s| s.values[0]);
    let all = q.list("g");
    let bad = all.iter().any(|g| g.values.iter().any(|v| !v.is_finite()));
    let mut out = vec![Answer::exact("found_inf", &[], &[f64::from(u8::from(bad))])];
    for (i, g) in all.iter().enumerate() {
        let name = format!("g{i}");
        let y: Vec<f64> = g.values.iter().map(|v| scale.map_or(*v, |s| v / s)).collect();
        out.push(match scale {
            None => Answer::exact(&name, &g.shape, &y),
            // The reciprocal and the product, or one division.
            Some(_) => {
                let errors = y.iter().map(|v| 2.0 * U * v.abs()).collect();
                Answer::rounded(&name, g.dtype, &g.shape, &y, errors)
            }
        });
    }
    Ok(out)
}

/// The factor of the gradients in a clipped step, and the loss scale after it.
pub(crate) fn grad_factor(q: &Question<'_>) -> Result<Vec<Answer>, String> {
    let p = if q.s("p").is_ok_and(|p| p == "inf") { f64::INFINITY } else { q.f("p")? };
    let all = q.list("g");
    let values = || all.iter().flat_map(|g| &g.values);
    let norm = match p.is_infinite() {
        // NaN is larger than all.
        true => values().fold(0.0, |m: f64, v| if v.abs() > m || v.is_nan() { v.abs() } else { m }),
        false => values().map(|v| v.abs().powf(p)).sum::<f64>().powf(1.0 / p),
    };
    let by = q.opt("inv_scale").map_or(1.0, |s| s.values[0]);
    let total = norm * by;
    let c = q.f("max_norm")? / (total + 1e-6);
    let factor = if c > 1.0 { by } else { c * by };
    // Sums of up to a few thousand terms in a tree, and chains of 32 within a thread.
    let near = |name: &str, x: f64| Answer::rounded(name, DType::F32, &[], &[x], vec![48.0 * U * x.abs()]);
    let mut out = vec![near("total", total), near("factor", factor)];
    if q.opt("scale").is_some() {
        let found = q.x("found_inf")?.values[0] != 0.0 || values().any(|v| !v.is_finite());
        out.extend(scale_after(q, found)?);
        out.push(Answer::exact("skip", &[], &[f64::from(u8::from(found))]));
        out.push(Answer::integers("count", DType::I64, &[], &[q.x("step")?.values[0] as i64]));
    }
    Ok(out)
}

/// `GradScaler.update`.
pub(crate) fn loss_scale(q: &Question<'_>) -> Result<Vec<Answer>, String> {
    scale_after(q, q.x("found_inf")?.values[0] != 0.0)
}

/// The loss scale after a step, in f32 as the state is.
fn scale_after(q: &Question<'_>, found: bool) -> Result<Vec<Answer>, String> {
    let old = q.x("scale")?.values[0] as f32;
    let run = q.x("good")?.values[0] as i64 + 1;
    let full = run >= q.i("interval")?;
    let grown = old * q.f("growth")? as f32;
    let scale = match (found, full) {
        (true, _) => (old * q.f("backoff")? as f32).max(q.f("least")? as f32),
        (false, true) if grown.is_finite() => grown,
        _ => old,
    };
    let inverse = f64::from(scale).recip();
    let mut out = vec![
        Answer::exact("scale", &[], &[f64::from(scale)]),
        Answer::integers("good", DType::I64, &[], &[if found || full { 0 } else { run }]),
        Answer::exact("found_inf", &[], &[0.0]),
        Answer::rounded("inv_scale", DType::F32, &[], &[inverse], vec![U * inverse]),
    ];
    if let Some(step) = q.opt("step") {
        let t = step.values[0] as i64 + i64::from(!found);
        out.push(Answer::integers("step", DType::I64, &[], &[t]));
    }
    Ok(out)
}
