//! How far a result of a random case may be from the reference. `docs/NUMERICS.md` derives it.

use trefoil::DType;

use crate::cases::{Bound, Kernel, Oracle};
use crate::compare::{elements, square_error, ulp};
use crate::oracle::{Answer, Question, U};
use crate::reference::{on_cpu, reference, widened};
use crate::sampler::Draw;
use crate::suite::{Case, HostTensor, Named};

/// Roundings of f32 that a result may have, relative to itself and to the size of its terms; one more for every level of the tree that adds its
/// terms up. The size is a standard deviation, hence twice as many.
const ROUNDINGS: [f64; 2] = [16.0, 32.0];
/// Roundings of f32 relative to the root mean square of the output: of constants that the text has and the inputs do not, like the 1 of p - 1.
const CONSTANTS: f64 = 16.0;
/// Root mean square of the errors, as a share of that of the bounds.
const MEAN: f64 = 0.5;

/// One rounding of a 16-bit type, relative.
pub(crate) fn half_rounding(dtype: DType) -> f64 {
    match dtype {
        DType::Bf16 => 1.0 / 256.0,
        DType::F16 => 1.0 / 2048.0,
        _ => 0.0,
    }
}

/// The reference of the same case on magnitudes: a bound for the sum of the absolute values of all terms.
fn magnitudes(kernel: &Kernel, case: &Case) -> Result<Vec<Vec<f64>>, String> {
    let mut abs = case.clone();
    for (_, t) in &mut abs.inputs {
        if t.dtype.is_float() {
            let v: Vec<f64> = t.to_f64().into_iter().map(f64::abs).collect();
            *t = HostTensor::from_f64(t.dtype, &t.shape, &v);
        }
    }
    for name in ["alpha", "beta", "ca", "cb"] {
        if let Some(v) = abs.args.get_mut(name)
            && let Some(x) = v.as_f64()
        {
            *v = x.abs().into();
        }
    }
    let all = reference(kernel, &abs)?;
    Ok(all.iter().map(|(_, t)| t.to_f64().iter().map(|m| m.abs()).collect()).collect())
}

/// Draws of signs from which [`sensitivity`] is estimated.
const DRAWS: u64 = 16;

/// The size of the terms of each result y: the root of the sum of (x dy/dx)^2 over all elements x of the floating inputs, from runs of the
/// reference in which every x is changed by 2^-22 of itself, four roundings of f32, up or down at random.
///
/// A result that is the difference of larger numbers has a size of theirs, even where the difference is 0. Rounding every x once moves y by
/// about this times a rounding, so no arithmetic in the storage type can promise less. Where y jumps, like a sign near 0, it is large if f32's
/// roundings of x may lead to either side, and only then.
pub(crate) fn sensitivity(kernel: &Kernel, case: &Case, want: &Named) -> Result<Vec<Vec<f64>>, String> {
    let step = 2f64.powi(-22);
    let wide = widened(kernel, case);
    let mut sums: Vec<Vec<f64>> = want.iter().map(|(_, t)| vec![0.0; t.numel()]).collect();
    let mut draw = Draw(0x5eed);
    for _ in 0..DRAWS {
        let mut moved = wide.clone();
        for (_, t) in moved.inputs.iter_mut().filter(|(_, t)| t.dtype == DType::F64 && !labels(t)) {
            let sign = |bit: bool| if bit { 1.0 + step } else { 1.0 - step };
            let v: Vec<f64> = t.to_f64().into_iter().map(|x| x * sign(draw.next() >> 63 == 1)).collect();
            *t = HostTensor::from_f64(DType::F64, &t.shape, &v);
        }
        for ((sum, (_, y)), (_, y0)) in sums.iter_mut().zip(on_cpu(kernel, &moved)?).zip(want) {
            for ((s, y), y0) in sum.iter_mut().zip(y.to_f64()).zip(y0.to_f64()) {
                let d = (y - y0) / step;
                *s += if d.is_finite() { d * d } else { 0.0 };
            }
        }
    }
    Ok(sums.into_iter().map(|v| v.into_iter().map(|s| (s / DRAWS as f64).sqrt()).collect()).collect())
}

/// Whether a tensor holds signs or a mask, which no rounding changes.
fn labels(t: &HostTensor) -> bool {
    t.numel() > 1 && t.to_f64().iter().all(|v| [-1.0, 0.0, 1.0].contains(v))
}

/// Holds the results of a device against the reference.
pub fn compare(kernel: &Kernel, case: &Case, got: &[(String, HostTensor)]) -> Result<(), String> {
    if let Oracle::Definition(define) = kernel.oracle {
        return defined(&define(&Question::new(kernel, case))?, got);
    }
    let want = reference(kernel, case)?;
    if got.len() != want.len() {
        return Err(format!("{} outputs instead of {}", got.len(), want.len()));
    }
    let scale = match kernel.bound {
        Bound::Sum | Bound::Product => Some(magnitudes(kernel, case)?),
        Bound::Derived | Bound::Stored => {
            // Estimating the size of the terms takes many runs, and only raises the bound: results that are within it without are within it.
            let narrow = held(kernel, case, got, &want, None);
            if narrow.is_ok() {
                return narrow;
            }
            Some(sensitivity(kernel, case, &want)?)
        }
        _ => None,
    };
    held(kernel, case, got, &want, scale.as_deref())
}

/// [`compare`] for results by definition.
fn defined(want: &[Answer], got: &[(String, HostTensor)]) -> Result<(), String> {
    for (name, got) in got {
        let want = want.iter().find(|a| a.name == *name).ok_or(format!("output {name} has no definition"))?;
        if got.shape != want.value.shape {
            return Err(format!("output {name}: shape {:?} instead of {:?}", got.shape, want.value.shape));
        }
        let rounded = want.value.to_dtype(got.dtype).to_f64();
        let Some(allowed) = &want.allowed else {
            elements(&got.to_f64(), &rounded, |_, _| None).map_err(|m| format!("output {name}: {m}"))?;
            continue;
        };
        let target: Vec<f64> = rounded
            .iter()
            .zip(want.value.to_f64())
            .map(|(&r, e)| if r.is_finite() { e } else { r })
            .collect();
        elements(&got.to_f64(), &target, |j, _| Some(allowed[j]))
            .map_err(|m| format!("output {name}: {m}"))?;
    }
    Ok(())
}

/// Root mean square of the finite elements.
fn root_mean_square(v: &[f64]) -> f64 {
    let (sum, n) = v.iter().filter(|x| x.is_finite()).fold((0.0, 0.0), |(s, n), x| (s + x * x, n + 1.0));
    if n > 0.0 { f64::sqrt(sum / n) } else { 0.0 }
}

/// How far each element of an output may be from `exact`, with the sizes of its terms where they are known; `None` for equality.
fn limits(
    kernel: &Kernel,
    case: &Case,
    storage: DType,
    exact: &[f64],
    sizes: Option<&[f64]>,
) -> Option<Vec<f64>> {
    if !storage.is_float() || kernel.bound == Bound::Exact {
        return None;
    }
    let most = case.inputs.iter().map(|(_, t)| t.numel()).max().unwrap_or(1).max(1) as f64;
    let longest =
        case.inputs.iter().flat_map(|(_, t)| t.shape.iter().copied()).max().unwrap_or(1).max(1) as f64;
    let levels = (most / exact.len().max(1) as f64).max(1.0).log2();
    let typical = root_mean_square(exact);
    let limit = |j: usize| {
        let (w, size) = (exact[j].abs(), sizes.map_or(0.0, |s| s[j]));
        let chain = || {
            let parts = [(ROUNDINGS[0], w), (ROUNDINGS[1], size), (CONSTANTS, typical)];
            U * parts.iter().map(|(roundings, of)| (roundings + levels) * of).sum::<f64>()
        };
        let arithmetic = match kernel.bound {
            Bound::Exact => 0.0,
            Bound::Function { ulps, units } => U * (2.0 * ulps * w + units),
            Bound::Sum => U * (2.0 * w + (8.0 + most.log2()) * size),
            Bound::Product => U * (2.0 * w + (8.0 + longest.sqrt()) * size),
            Bound::Derived => chain(),
            Bound::Stored => chain() + half_rounding(storage) * 4.0 * (w + size),
        };
        // What lies below the normal numbers is off by up to a step.
        let stored = if storage.is_half() { 2.0 * ulp(storage, w) } else { 1.5e-45 };
        arithmetic + U * kernel.units.0 + stored
    };
    Some((0..exact.len()).map(limit).collect())
}

/// How far each element of each output of an f32 case may be from the reference `want`: zero for exact outputs.
pub(crate) fn all_limits(kernel: &Kernel, case: &Case, want: &Named) -> Result<Vec<Vec<f64>>, String> {
    if let Oracle::Definition(define) = kernel.oracle {
        let answers = define(&Question::new(kernel, case))?;
        let of = |name: &str| answers.iter().find(|a| a.name == name).and_then(|a| a.allowed.clone());
        return Ok(want.iter().map(|(n, t)| of(n).unwrap_or_else(|| vec![0.0; t.numel()])).collect());
    }
    let sizes = match kernel.bound {
        Bound::Sum | Bound::Product => Some(magnitudes(kernel, case)?),
        Bound::Derived | Bound::Stored => Some(sensitivity(kernel, case, want)?),
        _ => None,
    };
    let each = want.iter().enumerate().map(|(i, (_, t))| {
        let storage = if t.dtype == DType::F64 { case.dtype } else { t.dtype };
        let limits = limits(kernel, case, storage, &t.to_f64(), sizes.as_ref().map(|s| &s[i][..]));
        limits.unwrap_or_else(|| vec![0.0; t.numel()])
    });
    Ok(each.collect())
}

/// [`compare`] with the size of the terms of each result.
fn held(
    kernel: &Kernel,
    case: &Case,
    got: &[(String, HostTensor)],
    want: &Named,
    scale: Option<&[Vec<f64>]>,
) -> Result<(), String> {
    for (i, ((name, got), (_, want))) in got.iter().zip(want).enumerate() {
        if got.shape != want.shape {
            return Err(format!("output {name}: shape {:?} instead of {:?}", got.shape, want.shape));
        }
        let rounded = want.to_dtype(got.dtype).to_f64();
        let exact = want.to_f64();
        let Some(limits) = limits(kernel, case, got.dtype, &exact, scale.map(|s| &s[i][..])) else {
            elements(&got.to_f64(), &rounded, |_, _| None).map_err(|m| format!("output {name}: {m}"))?;
            continue;
        };
        // NaN and infinities are looked for where the rounded reference has them; finite values are held against the exact one.
        let finite = |(&r, &e): (&f64, &f64)| if r.is_finite() { e } else { r };
        let target: Vec<f64> = rounded.iter().zip(&exact).map(finite).collect();
        let got = got.to_f64();
        elements(&got, &target, |j, _| Some(limits[j])).map_err(|m| format!("output {name}: {m}"))?;
        directed(&got, &target, &limits).map_err(|m| format!("output {name}: {m}"))?;
    }
    Ok(())
}

/// Errors that all point one way, or are all as large as one may be, are no rounding.
fn directed(got: &[f64], target: &[f64], limits: &[f64]) -> Result<(), String> {
    let (error, _) = square_error(got, target);
    let finite = (0..got.len()).filter(|&j| got[j].is_finite() && target[j].is_finite());
    let allowed: f64 = finite.map(|j| limits[j] * limits[j]).sum();
    if got.len() < 16 || error <= MEAN * MEAN * allowed {
        return Ok(());
    }
    let (error, allowed) = (error.sqrt(), MEAN * allowed.sqrt());
    Err(format!("root of the sum of square errors {error:e}, allowed {allowed:e}"))
}

#[cfg(test)]
mod tests;
