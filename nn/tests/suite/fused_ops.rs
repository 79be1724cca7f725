//! Operations that do in one pass what others do in several: causal convolution, bias with dropout and residual, cells. Products with quantized
//! and sparse operands, and suppression of boxes.

use trefoil::ops::activation::Activation;
use trefoil::ops::conv::Conv;
use trefoil::ops::quantized::{Fp8, QuantFormat};
use trefoil::ops::random::Rng;
use trefoil::ops::resample::RoiAlign;
use trefoil_nn::{DType, QuantGranularity, QuantizedWeight, Result, Tensor};

use crate::common::everywhere::{everywhere, values};
use crate::common::{close, cpu, devices, f32s, id, noise, tensor};

fn same(x: f64) -> f64 {
    x
}

fn agree(what: &str, got: &Tensor, want: &Tensor) {
    assert_eq!(got.shape(), want.shape(), "{what}");
    close(&values(got), &values(want), 1e-12, what);
}

#[test]
fn causal_convolution() {
    let (x, w, b) = (tensor(&cpu(), &[2, 3, 6], 1), tensor(&cpu(), &[3, 4], 2), tensor(&cpu(), &[3], 3));
    for act in [Activation::Identity, Activation::Swish { beta: 1.0 }, Activation::Mish] {
        let padded = x.conv1d(&w.unsqueeze(1).unwrap(), Some(&b), &Conv::new().groups(3).pad(3)).unwrap();
        let want = padded.narrow(2, 0, 6).unwrap().activation(act).unwrap();
        agree("causal_conv1d", &x.causal_conv1d(&w, Some(&b), act).unwrap(), &want);
        // In parts, each with the state of the one before.
        let mut state = None;
        let mut parts = vec![];
        for (start, len) in [(0, 1), (1, 3), (4, 2)] {
            let part = x.narrow(2, start, len).unwrap();
            let (y, next) = part.causal_conv1d_with_state(&w, Some(&b), act, state.as_ref()).unwrap();
            parts.push(y);
            state = Some(next);
        }
        agree("in parts", &Tensor::concat(2, &parts.iter().collect::<Vec<_>>()).unwrap(), &want);
        agree("state", &state.unwrap(), &x.narrow(2, 3, 3).unwrap());
        everywhere(&format!("causal_conv1d {act:?}"), &[&[2, 3, 6], &[3, 4], &[3]], &[], same, |t, _| {
            t[0].causal_conv1d(&t[1], Some(&t[2]), act)
        });
    }
    everywhere("after a state", &[&[1, 2, 3], &[2, 3]], &[], same, |t, _| {
        let state = Tensor::ones(t[0].device(), t[0].dtype(), &[1, 2, 2])?;
        Ok(t[0].causal_conv1d_with_state(&t[1], None, Activation::Tanh, Some(&state))?.0)
    });
    let e = x.causal_conv1d(&w.narrow(0, 0, 2).unwrap(), None, Activation::Identity).unwrap_err().to_string();
    assert!(e.contains("`w`") && e.contains("[3, K]"), "{e}");
    assert!(x.causal_conv1d(&b, None, Activation::Identity).is_err());
}

#[test]
fn bias_dropout_residual() {
    let rng = Rng::new(5).at(2, 3);
    let (x, b, r) = (tensor(&cpu(), &[4, 5], 1), tensor(&cpu(), &[5], 2), tensor(&cpu(), &[4, 5], 3));
    for p in [0.0, 0.4, 1.0] {
        let want = x.add(&b).unwrap().dropout(p, rng).unwrap().add(&r).unwrap();
        agree("bias_dropout", &x.bias_dropout(&b, Some(&r), p, rng).unwrap(), &want);
    }
    everywhere("bias_dropout", &[&[4, 5], &[5], &[4, 5]], &[], same, |t, _| {
        t[0].bias_dropout(&t[1], Some(&t[2]), 0.4, rng)
    });
    everywhere("without residual", &[&[2, 3, 5], &[5]], &[], same, |t, _| {
        t[0].bias_dropout(&t[1], None, 0.3, rng)
    });
    assert!(x.bias_dropout(&b, None, 1.5, rng).is_err() && x.bias_dropout(&r, None, 0.5, rng).is_err());
}

#[test]
fn cells() {
    let lstm = |t: &[Tensor]| -> Result<Tensor> {
        let (h, c) = t[0].lstm_cell(&t[1])?;
        Tensor::concat(1, &[&h, &c])
    };
    let lstm_by_parts = |t: &[Tensor]| -> Result<Tensor> {
        let [i, f, g, o] = [0, 1, 2, 3].map(|k| t[0].narrow(1, 2 * k, 2).unwrap());
        let c = f.sigmoid()?.mul(&t[1])?.add(&i.sigmoid()?.mul(&g.tanh()?)?)?;
        Tensor::concat(1, &[&o.sigmoid()?.mul(&c.tanh()?)?, &c])
    };
    let t = [tensor(&cpu(), &[3, 8], 1), tensor(&cpu(), &[3, 2], 2)];
    agree("lstm_cell", &lstm(&t).unwrap(), &lstm_by_parts(&t).unwrap());
    everywhere("lstm_cell", &[&[3, 8], &[3, 2]], &[], same, |t, _| lstm(t));
    everywhere("its hidden state alone", &[&[3, 8], &[3, 2]], &[], same, |t, _| Ok(t[0].lstm_cell(&t[1])?.0));
    everywhere("its cell state alone", &[&[3, 2]], &[], same, |t, _| {
        let z = Tensor::arange(t[0].device(), t[0].dtype(), -1.0, 0.1, 24)?.reshape(&[3, 8])?;
        Ok(z.lstm_cell(&t[0])?.1)
    });

    let gru_by_parts = |a: &Tensor, u: &Tensor, h: &Tensor| -> Result<Tensor> {
        let part = |t: &Tensor, k: usize| t.narrow(1, 2 * k, 2);
        let r = part(a, 0)?.add(&part(u, 0)?)?.sigmoid()?;
        let z = part(a, 1)?.add(&part(u, 1)?)?.sigmoid()?;
        let n = part(a, 2)?.add(&r.mul(&part(u, 2)?)?)?.tanh()?;
        n.add(&z.mul(&h.sub(&n)?)?)
    };
    let (a, u, h) = (tensor(&cpu(), &[3, 6], 1), tensor(&cpu(), &[3, 6], 2), tensor(&cpu(), &[3, 2], 3));
    agree("gru_cell", &a.gru_cell(&u, &h).unwrap(), &gru_by_parts(&a, &u, &h).unwrap());
    everywhere("gru_cell", &[&[3, 6], &[3, 6], &[3, 2]], &[], same, |t, _| t[0].gru_cell(&t[1], &t[2]));
    everywhere("its state alone", &[&[3, 2]], &[], same, |t, _| {
        let gates = Tensor::arange(t[0].device(), t[0].dtype(), -1.0, 0.1, 18)?.reshape(&[3, 6])?;
        gates.gru_cell(&gates, &t[0])
    });
    assert!(a.lstm_cell(&h).is_err() && a.gru_cell(&h, &h).is_err());
}

#[test]
fn quantized_weights() {
    for d in devices() {
        let x: Vec<f32> = noise(1, 6 * 8).iter().map(|&v| v as f32).collect();
        let xs = f32s(&d, &x, &[6, 8]);
        let codes: Vec<u8> = (0..24).map(|i| (i * 37 % 251) as u8).collect();
        let scale = [0.5f32, 0.25, 2.0];
        let product = |w: &dyn Fn(usize, usize) -> f32| -> Vec<f64> {
            let at = |m: usize, n: usize| (0..8).map(|k| f64::from(x[8 * m + k]) * f64::from(w(n, k))).sum();
            (0..18).map(|i| at(i / 3, i % 3)).collect()
        };
        let q = Tensor::from_slice(&d, &codes, &[3, 8]).unwrap();
        let w = QuantizedWeight::Int8 { q: q.clone(), scale: f32s(&d, &scale, &[3]) };
        let want = product(&|n, k| scale[n] * f32::from(codes[8 * n + k] as i8));
        close(&values(&xs.linear_quantized(&w).unwrap()), &want, 1e-5, &format!("int8 on {}", id(&d)));

        let (groups, zeros) = ([0.5f32, 1.0, 0.25, 2.0, 1.5, 0.75], [3.0f32, 7., 8., 0., 15., 9.]);
        let w4 = |zero: bool| QuantizedWeight::Int4 {
            q: q.reshape(&[6, 4]).unwrap().narrow(0, 0, 3).unwrap(),
            scale: f32s(&d, &groups, &[3, 2]),
            zero: zero.then(|| f32s(&d, &zeros, &[3, 2])),
        };
        for zero in [false, true] {
            let want = product(&|n, k| {
                let byte = codes[4 * n + k / 2];
                let code = if k % 2 == 0 { byte & 15 } else { byte >> 4 };
                let z = if zero { zeros[2 * n + k / 4] } else { 8.0 };
                groups[2 * n + k / 4] * (f32::from(code) - z)
            });
            close(
                &values(&xs.linear_quantized(&w4(zero)).unwrap()),
                &want,
                1e-5,
                &format!("int4 on {}", id(&d)),
            );
        }
        let (xq, x_scale) =
            (Tensor::from_slice(&d, &codes[..16], &[2, 8]).unwrap(), f32s(&d, &[0.1, 0.3], &[2]));
        let y = xq.linear_w8a8(&x_scale, &q, &f32s(&d, &scale, &[3])).unwrap();
        let signed = |i: usize| f64::from(codes[i] as i8);
        let want: Vec<f64> = (0..6)
            .map(|i| {
                let sum: f64 = (0..8).map(|k| signed(8 * (i / 3) + k) * signed(8 * (i % 3) + k)).sum();
                f64::from([0.1f32, 0.3][i / 3]) * f64::from(scale[i % 3]) * sum
            })
            .collect();
        close(&values(&y), &want, 1e-5, "w8a8");
        // 0x38 is 1 in E4M3, 0x40 is 2 in both formats, 0xbc is -1 in E5M2.
        let a = Tensor::from_slice(&d, &[0x38u8, 0x40], &[1, 2]).unwrap();
        let b = Tensor::from_slice(&d, &[0xbcu8, 0x40], &[1, 2]).unwrap();
        let y = a.scaled_mm_fp8(
            &f32s(&d, &[0.5], &[1]),
            &b,
            &f32s(&d, &[4.0], &[1]),
            (Fp8::E4m3, Fp8::E5m2),
            None,
        );
        assert_eq!(y.unwrap().to_vec::<f32>().unwrap(), [6.0]);
        let e = xs.narrow(1, 0, 6).unwrap().linear_quantized(&w).unwrap_err().to_string();
        assert!(e.contains("6 products"), "{e}");
        assert!(!xs.with_grad().linear_quantized(&w).unwrap().requires_grad());
    }
}

#[test]
fn semi_sparse_matrices() {
    for d in devices() {
        let x = f32s(&d, &[1., -4., 3., 2., 0., 0., 5., -5., 7., 7., 7., 1., -2., 0., 1., 3.], &[2, 8]);
        let s = x.sparse_compress().unwrap();
        let want = [0., -4., 3., 0., 0., 0., 5., -5., 7., 7., 0., 0., -2., 0., 0., 3.];
        assert_eq!(s.to_dense().unwrap().to_vec::<f32>().unwrap(), want, "on {}", id(&d));
        assert_eq!((s.values().shape(), s.index().shape()), (&[2, 4][..], &[2, 2][..]));
        let b = f32s(&d, &noise(2, 24).iter().map(|&v| v as f32).collect::<Vec<_>>(), &[8, 3]);
        let want = values(&s.to_dense().unwrap().matmul(&b).unwrap());
        close(&values(&s.matmul(&b).unwrap()), &want, 1e-6, "product");
        assert!(x.narrow(1, 0, 6).unwrap().sparse_compress().is_err() && s.matmul(&x).is_err());
    }
}

#[test]
fn regions_of_images() {
    for d in devices() {
        // One channel of x + 10 y: the mean of a region is the value at its centre.
        let plane: Vec<f32> = (0..48).map(|i| (i % 8) as f32 + 10.0 * (i / 8) as f32).collect();
        let x = f32s(&d, &[plane.clone(), plane.iter().map(|v| -v).collect()].concat(), &[2, 1, 6, 8])
            .with_grad();
        let boxes = f32s(&d, &[2., 2., 10., 6., 4., 4., 12., 8.], &[2, 4]);
        let images = Tensor::from_slice(&d, &[0i32, 1], &[2]).unwrap();
        let p = RoiAlign::new().spatial_scale(0.5);
        let y = x.roi_align(&boxes, &images, [1, 2], p).unwrap();
        assert_eq!(y.to_vec::<f32>().unwrap(), [22., 24., -33., -35.], "on {}", id(&d));
        y.sum().unwrap().backward().unwrap();
        let dx = values(&x.grad().unwrap());
        close(&[dx[..48].iter().sum(), dx[48..].iter().sum()], &[2.0, 2.0], 1e-6, "sums of the gradient");
        let far = Tensor::from_slice(&d, &[0i32, 2], &[2]).unwrap();
        let lost = x.roi_align(&boxes, &far, [1, 2], p).and_then(|y| y.to_vec::<f32>());
        assert!(lost.unwrap_err().to_string().contains("roi_align"), "on {}", id(&d));
        assert!(x.roi_align(&boxes, &images, [0, 2], p).is_err());
        assert!(x.roi_align(&images, &images, [1, 2], p).is_err());
    }
}

#[test]
fn suppression_of_boxes() {
    for d in devices() {
        let boxes = f32s(&d, &[0., 0., 2., 2., 0., 0., 2., 1.8, 5., 5., 6., 6., 0.1, 0., 2., 2.], &[4, 4]);
        let scores = f32s(&d, &[0.5, 0.9, 0.1, 0.7], &[4]);
        let keep = |t: Option<&Tensor>, iou| boxes.nms(&scores, t, iou).unwrap().to_vec::<i64>().unwrap();
        assert_eq!(keep(None, 0.5), [1, 2], "on {}", id(&d));
        assert_eq!(keep(None, 0.99), [1, 3, 0, 2]);
        let groups = Tensor::from_slice(&d, &[0i64, 1, 0, 0], &[4]).unwrap();
        assert_eq!(keep(Some(&groups), 0.5), [1, 3, 2]);
        let none = boxes.narrow(0, 0, 0).unwrap();
        assert_eq!(none.nms(&scores.narrow(0, 0, 0).unwrap(), None, 0.5).unwrap().shape(), [0]);
        assert!(boxes.nms(&scores.narrow(0, 0, 3).unwrap(), None, 0.5).is_err());
        assert!(boxes.nms(&scores, None, f64::NAN).is_err());
    }
}

#[test]
fn quantization_is_within_half_a_step_and_passes_gradients() {
    let formats =
        [QuantFormat::Int8, QuantFormat::Int4, QuantFormat::Fp8(Fp8::E4m3), QuantFormat::Fp8(Fp8::E5m2)];
    let granularities = [QuantGranularity::Tensor, QuantGranularity::Row, QuantGranularity::Group(4)];
    let data: Vec<f32> = (0..48).map(|i| ((i * 37 % 101) as f32 - 50.0) * 0.031).collect();
    for d in devices() {
        for (format, per) in formats.into_iter().flat_map(|f| granularities.map(|p| (f, p))) {
            let what = format!("{format:?} {per:?} on {}", id(&d));
            let x = f32s(&d, &data, &[3, 16]).with_grad();
            let (q, scale) = x.quantize(format, per).unwrap();
            let y = q.dequantize(format, &scale, DType::F32).unwrap();
            let scales = values(&scale);
            let group = data.len() / scales.len();
            for (i, (x, y)) in data.iter().zip(values(&y)).enumerate() {
                // Half a step: of integers half a scale, of floats half of their last place.
                let last = match format {
                    QuantFormat::Fp8(Fp8::E4m3) => f64::from(x.abs()) / 16.0 + scales[i / group] / 1024.0,
                    QuantFormat::Fp8(_) => f64::from(x.abs()) / 8.0 + scales[i / group] / 65536.0,
                    _ => scales[i / group] / 2.0,
                };
                assert!((f64::from(*x) - y).abs() <= last * (1.0 + 1e-5), "{what}: {x} became {y}");
            }
            let fake = x.fake_quantize(format, per).unwrap();
            assert_eq!(values(&fake), values(&y), "{what}");
            fake.mul(&fake).unwrap().sum().unwrap().backward().unwrap();
            let want: Vec<f64> = values(&y).iter().map(|y| 2.0 * y).collect();
            close(&values(&x.grad().unwrap()), &want, 1e-6, &what);
        }
        let error = f32s(&d, &data, &[3, 16]).quantize(QuantFormat::Int8, QuantGranularity::Group(5));
        assert!(error.unwrap_err().to_string().contains("a divisor of 16"));
    }
}
