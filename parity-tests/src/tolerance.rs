//! How far a result of a random case may be from the reference.

use trefoil::DType;

use crate::cases::{Bound, Kernel, Oracle, ULP32};
use crate::compare::{elements, square_error, ulp};
use crate::reference::{on_cpu, reference, widened};
use crate::sampler::Draw;
use crate::suite::{Case, HostTensor, Named};

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
    let all = reference(kernel, &abs, Oracle::F64)?;
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
fn sensitivity(kernel: &Kernel, case: &Case, want: &Named) -> Result<Vec<Vec<f64>>, String> {
    let step = 2f64.powi(-22);
    let wide = widened(kernel, case);
    let mut sums: Vec<Vec<f64>> = want.iter().map(|(_, t)| vec![0.0; t.numel()]).collect();
    let mut draw = Draw(0x5eed);
    for _ in 0..DRAWS {
        let mut moved = wide.clone();
        for (_, t) in moved.inputs.iter_mut().filter(|(_, t)| t.dtype == DType::F64) {
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

/// How far results that cancel may be off for the size of their terms, and no further than the row's bound for their own: 32 roundings of f32 in
/// one element, 16 in the root of the mean square.
const ROUNDINGS: f64 = 32.0 * ULP32 / 2.0;
const MEAN_ROUNDINGS: f64 = 16.0 * ULP32 / 2.0;

/// Holds the results of a device against the reference.
pub fn compare(kernel: &Kernel, case: &Case, got: &[(String, HostTensor)]) -> Result<(), String> {
    let want = reference(kernel, case, kernel.oracle)?;
    if got.len() != want.len() {
        return Err(format!("{} outputs instead of {}", got.len(), want.len()));
    }
    if kernel.cancels {
        // The size of the terms takes many runs, and is only needed where the results are small beside it.
        return held(kernel, case, got, &want, None)
            .or_else(|_| held(kernel, case, got, &want, Some(&sensitivity(kernel, case, &want)?)));
    }
    let scale = match kernel.bound {
        Bound::Sum | Bound::Product => Some(magnitudes(kernel, case)?),
        Bound::Stored(..) if case.dtype.is_half() => Some(magnitudes(kernel, case)?),
        _ => None,
    };
    held(kernel, case, got, &want, scale.as_deref())
}

/// [`compare`] with the size of the terms of each result.
fn held(
    kernel: &Kernel,
    case: &Case,
    got: &[(String, HostTensor)],
    want: &Named,
    scale: Option<&[Vec<f64>]>,
) -> Result<(), String> {
    let terms = case.inputs.iter().map(|(_, t)| t.numel()).max().unwrap_or(1).max(1) as f64;
    let longest =
        case.inputs.iter().flat_map(|(_, t)| t.shape.iter().copied()).max().unwrap_or(1).max(1) as f64;
    for (i, ((name, got), (_, want))) in got.iter().zip(want).enumerate() {
        if got.shape != want.shape {
            return Err(format!("output {name}: shape {:?} instead of {:?}", got.shape, want.shape));
        }
        let storage = got.dtype;
        let rounded = want.to_dtype(storage).to_f64();
        let exact = want.to_f64();
        let (got, half) = (got.to_f64(), storage.is_half());
        let size = |j: usize| scale.map_or(0.0, |m| m[i][j]);
        let slack = |j: usize, w: f64| -> Option<f64> {
            if !storage.is_float() {
                return None;
            }
            let f32_bound = match kernel.bound {
                Bound::Exact => return None,
                Bound::Close(rtol, atol) => atol + rtol * w.abs() + rtol.min(ROUNDINGS) * size(j),
                Bound::Stored(rtol, atol) => {
                    let rounding = match storage {
                        DType::Bf16 => 1.0 / 256.0,
                        DType::F16 => 1.0 / 2048.0,
                        _ => 0.0,
                    };
                    let size = if size(j).is_finite() { size(j) } else { 0.0 };
                    // A sum of magnitudes is a bound; the root of a sum of squares is a standard deviation, of which the worst of many
                    // results is several away.
                    let (own, stored) = if kernel.cancels { (size, 4.0 * size) } else { (0.0, size) };
                    atol + rtol * w.abs() + rtol.min(ROUNDINGS) * own + rounding * stored
                }
                Bound::Sum => ULP32 * w.abs() + (8.0 + terms.log2()) * 6e-8 * size(j) + 1.5e-45,
                Bound::Product => ULP32 * w.abs() + (8.0 + longest.sqrt()) * 6e-8 * size(j) + 1.5e-45,
            };
            Some(if half { f32_bound + 2.0 * ulp(storage, w) } else { f32_bound })
        };
        // NaN and infinities are looked for where the rounded reference has them; finite values are held against the exact one.
        let target: Vec<f64> = rounded
            .iter()
            .zip(&exact)
            .map(|(&r, &e)| if r.is_finite() && kernel.bound != Bound::Exact { e } else { r })
            .collect();
        elements(&got, &target, slack).map_err(|m| format!("output {name}: {m}"))?;
        // Sums may cancel, so their mean square error says nothing.
        if let Bound::Close(_, atol) = kernel.bound
            && storage.is_float()
            && got.len() >= 16
        {
            let (error, squares) = square_error(&got, &target);
            // Zeros whatever the inputs, like the loss of one class: the reference holds f64's own rounding, and the absolute bound stands alone.
            if squares <= got.len() as f64 * (1e-6 * atol).powi(2) {
                continue;
            }
            let gate = match storage {
                DType::Bf16 => 1e-4,
                DType::F16 => 1e-5,
                _ => 1e-8,
            };
            let sizes: f64 = (0..got.len()).map(|j| size(j) * size(j)).filter(|s| s.is_finite()).sum();
            // What is below the smallest step of the storage type is off by up to half of it.
            let steps = got.len() as f64 * (0.5 * ulp(storage, 0.0)).powi(2);
            let allowed = gate * squares + MEAN_ROUNDINGS.powi(2) * sizes + steps;
            if error > allowed {
                return Err(format!("output {name}: sum of square errors {error:e}, allowed {allowed:e}"));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cases::{KERNELS, find};
    use crate::sampler::draw;

    /// `name` on these operands a and b, in this type.
    fn case(name: &str, dtype: DType, a: &[f64], b: &[f64]) -> (&'static Kernel, Case) {
        let kernel = find(name).expect("a kernel of the table");
        let (mut case, _) = draw(kernel, dtype, 0, 1, true).expect("a case");
        let operand = |v: &[f64]| HostTensor::from_f64(dtype, &[v.len()], v);
        case.inputs = vec![("a".into(), operand(a)), ("b".into(), operand(b))];
        (kernel, case)
    }

    #[test]
    fn the_size_of_terms_survives_their_cancellation() {
        let (kernel, case) = case("sub", DType::F32, &[3.0, 3.0, 0.0, 3.0], &[3.0, -4.0, 5.0, 0.0]);
        let want = reference(kernel, &case, Oracle::F64).unwrap();
        let got = &sensitivity(kernel, &case, &want).unwrap()[0];
        // Of 16 draws of two signs.
        for (got, size) in got.iter().zip([18f64.sqrt(), 5.0, 5.0, 3.0]) {
            assert!((got / size - 1.0).abs() < 0.4, "{got} for {size}");
        }
    }

    #[test]
    fn the_mean_square_error_knows_the_smallest_step() {
        let tiny = 2f64.powi(-20);
        let (kernel, case) = case("mul", DType::F16, &[tiny; 64], &[0.7; 64]);
        let off = |by: f64| {
            let mut y = reference(kernel, &case, Oracle::F64).unwrap();
            let moved: Vec<f64> = y[0].1.to_f64().iter().map(|v| v + by * 2f64.powi(-24)).collect();
            y[0].1 = HostTensor::from_f64(DType::F16, &[64], &moved);
            compare(kernel, &case, &y)
        };
        assert!(off(0.0).is_ok());
        assert!(off(1.0).is_err());
    }

    #[test]
    fn wrong_results_that_cancel_are_found() {
        let mut seen = 0;
        for kernel in KERNELS.iter().filter(|k| k.cancels) {
            let mut refused = 0;
            for index in [0, 2, 4, 5, 6] {
                let (case, _) = draw(kernel, DType::F32, index, 1, false).unwrap();
                let mut y = reference(kernel, &case, Oracle::F64).unwrap();
                let storage =
                    |t: &HostTensor| if t.dtype.is_float() { t.to_dtype(DType::F32) } else { t.clone() };
                y.iter_mut().for_each(|(_, t)| *t = storage(t));
                assert_eq!(compare(kernel, &case, &y), Ok(()), "{}", kernel.name);
                let wrong = |t: &HostTensor| {
                    let v: Vec<f64> = t.to_f64().iter().map(|v| 1.002 * v).collect();
                    HostTensor::from_f64(t.dtype, &t.shape, &v)
                };
                y.iter_mut().for_each(|(_, t)| *t = wrong(t));
                refused += usize::from(compare(kernel, &case, &y).is_err());
            }
            // Some are 0 by construction, and stay so.
            assert!(refused >= 2, "{}: only {refused} of 5 were refused", kernel.name);
            seen += 1;
        }
        assert!(seen >= 5);
    }
}
