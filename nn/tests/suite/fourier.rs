//! Fourier transforms against their definition, their inverses, and finite differences.

use std::f64::consts::PI;

use trefoil_nn::{DType, FftNorm, Result, Stft, Tensor};

use crate::common::everywhere::values;
use crate::common::{close, cpu, devices, id, noise, tensor};

/// sum_j x_j exp(-2 pi i j k / n) of one row of pairs.
fn definition(x: &[f64]) -> Vec<f64> {
    let n = x.len() / 2;
    let term = |j: usize, k: usize| {
        let (s, c) = (-2.0 * PI * (j * k % n) as f64 / n as f64).sin_cos();
        [x[2 * j] * c - x[2 * j + 1] * s, x[2 * j] * s + x[2 * j + 1] * c]
    };
    (0..n)
        .flat_map(|k| (0..n).map(|j| term(j, k)).fold([0.0; 2], |a, t| [a[0] + t[0], a[1] + t[1]]))
        .collect()
}

#[test]
fn transforms_of_any_length_are_those_of_the_definition() {
    for d in devices() {
        // Small factors, a prime, a prime that takes a chirp, more than local memory holds.
        for (n, tolerance) in [(1, 1e-6), (12, 2e-6), (13, 2e-6), (101, 1e-5), (4620, 3e-4)] {
            let data = noise(7, 2 * n);
            let x = Tensor::from_slice(&d, &data.iter().map(|x| *x as f32).collect::<Vec<_>>(), &[1, n, 2])
                .unwrap();
            let exact: Vec<f64> = values(&x);
            let y = x.fft(-1, FftNorm::Backward).unwrap();
            close(&values(&y), &definition(&exact), tolerance, &format!("fft of {n} on {}", id(&d)));
            let back = y.ifft(1, FftNorm::Backward).unwrap();
            close(&values(&back), &exact, 1e-5, &format!("ifft of {n} on {}", id(&d)));
            let real = x.select(-1, 0).unwrap();
            let bins = real.rfft(-1, FftNorm::Ortho).unwrap();
            assert_eq!(bins.shape(), [1, n / 2 + 1, 2]);
            close(&values(&bins.irfft(n, -1, FftNorm::Ortho).unwrap()), &values(&real), 1e-5, "irfft");
        }
    }
}

#[test]
fn transforms_along_several_axes_commute_with_others() {
    let x = tensor(&cpu(), &[3, 4, 5, 2], 1);
    let all = x.fftn(&[0, 2], FftNorm::Forward).unwrap();
    let one = x.fft(2, FftNorm::Forward).unwrap().fft(0, FftNorm::Forward).unwrap();
    close(&values(&all), &values(&one), 1e-12, "fftn");
    let real = tensor(&cpu(), &[3, 6, 5], 2);
    let bins = real.rfftn(&[2, 1], FftNorm::Backward).unwrap();
    assert_eq!(bins.shape(), [3, 4, 5, 2]);
    let pairs = Tensor::stack(-1, &[&real, &real.zeros_like().unwrap()]).unwrap();
    let whole = pairs.fftn(&[1, 2], FftNorm::Backward).unwrap().narrow(1, 0, 4).unwrap();
    close(&values(&bins), &values(&whole), 1e-12, "rfftn");
    close(&values(&bins.irfftn(6, &[2, 1], FftNorm::Backward).unwrap()), &values(&real), 1e-12, "irfftn");
    let line = Tensor::from_slice(&cpu(), &[0.0f64, 1.0, 2.0, 3.0, 4.0], &[5]).unwrap();
    let shifted = line.fftshift(&[0]).unwrap();
    assert_eq!(values(&shifted), [3.0, 4.0, 0.0, 1.0, 2.0]);
    assert_eq!(values(&shifted.ifftshift(&[-1]).unwrap()), values(&line));
    // A product of transforms is a circular convolution.
    let (a, b) = (tensor(&cpu(), &[1, 7], 3), tensor(&cpu(), &[1, 7], 4));
    let product = |n| {
        let [fa, fb] = [&a, &b].map(|t| t.rfft(-1, FftNorm::Backward).unwrap());
        fa.complex_mul(&fb).unwrap().irfft(n, -1, FftNorm::Backward).unwrap()
    };
    let (va, vb) = (values(&a), values(&b));
    let want: Vec<f64> = (0..7).map(|i| (0..7).map(|j| va[j] * vb[(i + 7 - j) % 7]).sum()).collect();
    close(&values(&product(7)), &want, 1e-12, "convolution");
}

/// Holds the gradient of sum(weights * f(x)) against central differences, and the gradient of its square once more.
fn differences(what: &str, x: &Tensor, f: impl Fn(&Tensor) -> Result<Tensor>) {
    let x = x.with_grad();
    let y = f(&x).unwrap();
    let w = tensor(&cpu(), y.shape(), 9);
    let loss = |x: &Tensor| f(x).and_then(|y| y.square()?.mul(&w)?.sum()).unwrap();
    loss(&x).backward().unwrap();
    let (data, gradient) = (values(&x), values(&x.grad().unwrap()));
    for at in [0, data.len() / 2, data.len() - 1] {
        let shifted = |by: f64| {
            let mut v = data.clone();
            v[at] += by;
            values(&loss(&Tensor::from_slice(&cpu(), &v, x.shape()).unwrap()))[0]
        };
        let slope = (shifted(1e-5) - shifted(-1e-5)) / 2e-5;
        assert!(
            (slope - gradient[at]).abs() < 1e-6 * (1.0 + slope.abs()),
            "{what}: {} for {slope}",
            gradient[at]
        );
    }
}

#[test]
fn gradients_agree_with_differences() {
    let (pairs, real) = (tensor(&cpu(), &[2, 6, 3, 2], 5), tensor(&cpu(), &[2, 9], 6));
    differences("fftn", &pairs, |x| x.fftn(&[0, 1], FftNorm::Ortho));
    differences("ifft", &pairs, |x| x.ifft(1, FftNorm::Backward));
    differences("rfft", &real, |x| x.rfft(-1, FftNorm::Backward));
    differences("irfft", &pairs, |x| x.irfft(11, 1, FftNorm::Forward));
    let window = tensor(&cpu(), &[4], 7).square().unwrap();
    let p = Stft::new(6).hop(2);
    differences("stft", &real, |x| x.stft(&window, &p.normalized(true)));
    differences("stft, all bins", &real, |x| x.stft(&window, &p.onesided(false)));
    let window = tensor(&cpu(), &[6], 8).square().unwrap();
    differences("istft", &real, |x| x.stft(&window, &p).and_then(|y| y.istft(&window, &p, Some(9))));
}

#[test]
fn short_time_transforms_are_those_of_their_frames_and_invert() {
    for d in devices() {
        let x = tensor(&d, &[2, 50], 3).to_dtype(DType::F32).unwrap();
        let hann: Vec<f32> =
            (0..16).map(|i| (0.55 - 0.45 * (2.0 * PI * i as f64 / 16.0).cos()) as f32).collect();
        let window = Tensor::from_slice(&d, &hann, &[16]).unwrap();
        for onesided in [true, false] {
            let p = Stft::new(16).hop(5).center(false).onesided(onesided);
            let y = x.stft(&window, &p).unwrap();
            let bins = if onesided { 9 } else { 16 };
            assert_eq!(y.shape(), [2, bins, 7, 2]);
            let frame: Vec<f64> = values(&x)[50 + 15..][..16].to_vec();
            let pairs: Vec<f64> =
                frame.iter().zip(&hann).flat_map(|(x, w)| [x * f64::from(*w), 0.0]).collect();
            let got = values(&y.select(0, 1).unwrap().select(1, 3).unwrap().contiguous().unwrap());
            close(&got, &definition(&pairs)[..2 * bins], 1e-5, &format!("stft on {}", id(&d)));
            let p = p.center(true).normalized(true);
            let back = x.stft(&window, &p).unwrap().istft(&window, &p, Some(50)).unwrap();
            close(&values(&back), &values(&x), 1e-5, &format!("istft on {}", id(&d)));
        }
        // Frames with gaps between them cannot be put together.
        let p = Stft::new(4).hop(6).center(false);
        let window = Tensor::from_slice(&d, &hann[2..6], &[4]).unwrap();
        let error = x.stft(&window, &p).unwrap().istft(&window, &p, None).unwrap_err();
        assert!(error.to_string().contains("add up to more than 1e-11"), "{error}");
    }
}

#[test]
fn sizes_that_do_not_fit_are_refused() {
    let x = tensor(&cpu(), &[3, 4, 2], 1);
    let refused = |r: Result<Tensor>, why: &str| {
        let error = r.unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    };
    refused(x.fft(2, FftNorm::Backward), "an axis of a tensor of rank 2");
    refused(x.narrow(2, 0, 1).unwrap().fft(0, FftNorm::Backward), "pairs (real, imaginary)");
    refused(x.irfft(9, 1, FftNorm::Backward), "expected shape [3, 5, 2]");
    refused(x.rfftn(&[], FftNorm::Backward), "at least one axis");
    let window = tensor(&cpu(), &[9], 1);
    refused(x.select(-1, 0).unwrap().stft(&window, &Stft::new(8)), "1 to 8 elements");
}
