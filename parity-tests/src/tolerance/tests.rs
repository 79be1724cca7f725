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
    let want = reference(kernel, &case).unwrap();
    let got = &sensitivity(kernel, &case, &want).unwrap()[0];
    // Of 16 draws of two signs.
    for (got, size) in got.iter().zip([18f64.sqrt(), 5.0, 5.0, 3.0]) {
        assert!((got / size - 1.0).abs() < 0.4, "{got} for {size}");
    }
}

#[test]
fn errors_in_one_direction_are_found() {
    let tiny = 2f64.powi(-20);
    let (kernel, case) = case("mul", DType::F16, &[tiny; 64], &[0.7; 64]);
    let off = |by: f64| {
        let mut y = reference(kernel, &case).unwrap();
        let moved: Vec<f64> = y[0].1.to_f64().iter().map(|v| v + by * 2f64.powi(-24)).collect();
        y[0].1 = HostTensor::from_f64(DType::F16, &[64], &moved);
        compare(kernel, &case, &y)
    };
    assert!(off(0.0).is_ok());
    assert!(off(2.0).is_err());
}

/// An error of this share of the result, or of the size of its terms where that is larger, is found in a single element of f32 (beyond what the row
/// has in roundings of 1).
const FOUND: f64 = 1e-5;

/// The results of the reference in the types that a device stores.
fn stored(kernel: &Kernel, case: &Case) -> (Named, Named) {
    let want = reference(kernel, case).unwrap();
    let store = |t: &HostTensor| if t.dtype == DType::F64 { t.to_dtype(case.dtype) } else { t.clone() };
    let got = want.iter().map(|(n, t)| (n.clone(), store(t))).collect();
    (want, got)
}

#[test]
fn every_planted_error_is_found() {
    let (mut missed, mut planted) = (vec![], 0);
    for kernel in KERNELS.iter().filter(|k| matches!(k.oracle, Oracle::F64) && k.dtypes.contains(&DType::F32))
    {
        for index in [0, 2, 4, 5, 6] {
            let (case, _) = draw(kernel, DType::F32, index, 1, true).unwrap();
            let (want, good) = stored(kernel, &case);
            assert_eq!(compare(kernel, &case, &good), Ok(()), "{} #{index}", kernel.name);
            let terms = match kernel.bound {
                Bound::Sum | Bound::Product => magnitudes(kernel, &case).unwrap(),
                Bound::Derived | Bound::Stored => sensitivity(kernel, &case, &want).unwrap(),
                _ => want.iter().map(|(_, t)| vec![0.0; t.numel()]).collect(),
            };
            for (i, (name, t)) in want.iter().enumerate().filter(|(_, (_, t))| t.dtype == DType::F64) {
                let y = t.to_f64();
                let typical = root_mean_square(&y);
                let size = |j: usize| y[j].abs().max(terms[i][j]).max(typical);
                let finite =
                    (0..y.len()).filter(|&j| y[j].is_finite() && size(j).is_finite() && size(j) > 1e-30);
                let Some(at) = finite.max_by(|&a, &b| size(a).total_cmp(&size(b))) else { continue };
                let mut wrong = good.clone();
                let mut v = wrong[i].1.to_f64();
                v[at] += FOUND * size(at) + 2.0 * U * kernel.units.0;
                wrong[i].1 = HostTensor::from_f64(DType::F32, &t.shape, &v);
                planted += 1;
                if compare(kernel, &case, &wrong).is_ok() {
                    missed.push(format!(
                        "{} #{index} {name}[{at}] = {:e} of size {:e}",
                        kernel.name,
                        y[at],
                        size(at)
                    ));
                }
            }
        }
    }
    assert!(missed.is_empty(), "{} of {planted} errors were not found:\n{}", missed.len(), missed.join("\n"));
    assert!(planted > 2000);
}

#[test]
fn half_types_are_held_to_three_of_their_steps() {
    for dtype in [DType::F16, DType::Bf16] {
        let (kernel, case) = case("mul", dtype, &[1.5; 4], &[1.0; 4]);
        let mut y = stored(kernel, &case).1;
        let step = ulp(dtype, 1.5);
        for (steps, found) in [(1.0, false), (3.0, true)] {
            y[0].1 = HostTensor::from_f64(dtype, &[4], &[1.5, 1.5, 1.5 + steps * step, 1.5]);
            assert_eq!(compare(kernel, &case, &y).is_err(), found, "{dtype} off by {steps} steps");
        }
    }
}
