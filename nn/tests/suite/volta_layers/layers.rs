//! Layers without a state that runs on.

use super::{each, host, random, same, temporary, volta_file};
use crate::common::everywhere::{everywhere, resident, transfers, values};
use crate::common::layers::{f64s, gradcheck_layer};
use crate::common::{close, cpu, f32s, id, noise, tensor};
use trefoil::DType;
use trefoil::ops::conv::Conv;
use trefoil::ops::pool::Window;
use trefoil_nn::layers::*;
use trefoil_nn::{InitContext, Layer, LayerExt, NnError, StateMap, Tensor, volta};

#[test]
fn linear_from_a_state_file() {
    // y = x W + b with W [in, out], as Volta keeps it; one row is long enough for a tagged length.
    let (w, b) = ([1f32, 2., 3., 4., 5., 6.], [0.5f32, -0.5, 0.0]);
    let wide = vec![0.25f32; 300];
    let file = volta_file(&[("0.bias", &[3], &b), ("0.weight", &[2, 3], &w), ("1.weight", &[3, 100], &wide)]);
    let path = temporary("linear.bin", &file);
    each(|d| {
        let state = volta::read_state(&path, d).unwrap();
        assert_eq!((state["1.weight"].shape(), host(&state["1.weight"])), (&[3, 100][..], wide.clone()));
        let ours = StateMap::new().exclude("1.*").transpose_matching("*.weight").apply(&state).unwrap();
        let model = Sequential::new().push(Dense::new(&InitContext::new(d, 1), 2, 3).unwrap());
        model.load_state_dict(&ours).unwrap();
        for shape in [&[2][..], &[2, 2], &[3, 2, 2]] {
            let x = random(d, shape, 1).with_grad();
            let y = resident("Dense", d, || {
                let y = model.forward(&x).unwrap();
                y.backward_with(&y.ones_like().unwrap()).unwrap();
                y
            });
            let rows = host(&x);
            let want: Vec<f64> = rows
                .chunks(2)
                .flat_map(|r| {
                    (0..3).map(|o| f64::from(r[0] * w[o] + r[1] * w[3 + o] + b[o])).collect::<Vec<_>>()
                })
                .collect();
            close(&values(&y), &want, 1e-6, &format!("{shape:?} on {}", id(d)));
        }
    });
    let cut = temporary("cut.bin", &file[..20]);
    let broken = [&file[..], b"x"].concat();
    let long = temporary("long.bin", &broken);
    let mut shape = volta_file(&[("a", &[2], &[1.0])]);
    let wrong = temporary("wrong.bin", &shape);
    shape[1] = 255;
    let tag = temporary("tag.bin", &shape);
    for (path, words) in [(&cut, "to the end"), (&long, "1 more bytes"), (&wrong, "[2]"), (&tag, "tag 255")] {
        let e = volta::read_state(path, &cpu()).unwrap_err();
        assert!(matches!(e, NnError::Data { .. }) && e.to_string().contains(words), "{e}");
    }
    assert!(matches!(volta::read_state("/nowhere/at.all", &cpu()), Err(NnError::Io { .. })));
    for p in [path, cut, long, wrong, tag] {
        std::fs::remove_file(p).unwrap();
    }
}

#[test]
fn parameters_are_made_on_the_device() {
    each(|d| {
        let before = transfers(d);
        let cx = InitContext::new(d, 1);
        let parts = (Dense::new(&cx, 64, 32).unwrap(), Convolutional::new(&cx, 3, 8, 3).unwrap());
        assert_eq!(transfers(d), before, "{}", id(d));
        assert!(parts.0.num_parameters() == 64 * 32 + 32 && parts.1.num_parameters() == 8 * 27 + 8);
    });
}

/// Cross-correlation by its definition.
fn correlate(x: &[f64], w: &[f64], [h, k, s, p]: [usize; 4]) -> Vec<f64> {
    let (c, o, out) = (2, 3, (h + 2 * p - k) / s + 1);
    let mut y = vec![];
    for f in 0..o {
        for (i, j) in (0..out).flat_map(|i| (0..out).map(move |j| (i, j))) {
            let mut sum = 0.0;
            for (ch, a, b) in (0..c).flat_map(|ch| (0..k * k).map(move |t| (ch, t / k, t % k))) {
                let (r, q) = ((i * s + a).wrapping_sub(p), (j * s + b).wrapping_sub(p));
                if r < h && q < h {
                    sum += x[(ch * h + r) * h + q] * w[((f * c + ch) * k + a) * k + b];
                }
            }
            y.push(sum);
        }
    }
    y
}

#[test]
fn convolution() {
    let h = 8;
    let x = noise(1, 2 * h * h);
    let single = |v: &[f64]| v.iter().map(|&x| x as f32).collect::<Vec<f32>>();
    each(|d| {
        for (k, s, p) in (1..=7).flat_map(|k| (1..=3).flat_map(move |s| (0..=3).map(move |p| (k, s, p)))) {
            let w = noise(k as u64, 3 * 2 * k * k);
            let how = Conv::new().stride(s).pad(p);
            let xs = f32s(d, &single(&x), &[1, 2, h, h]);
            let y = xs.conv2d(&f32s(d, &single(&w), &[3, 2, k, k]), None, &how).unwrap();
            close(
                &values(&y),
                &correlate(&x, &w, [h, k, s, p]),
                1e-4,
                &format!("k {k} s {s} p {p} on {}", id(d)),
            );
        }
    });
    let how = Conv::new().stride(2).pad(1);
    everywhere("conv2d", &[&[1, 2, 5, 5], &[3, 2, 3, 3], &[3]], &[], same, |t, _| {
        t[0].conv2d(&t[1], Some(&t[2]), &how)
    });
    everywhere("conv_transpose", &[&[1, 3, 3, 3], &[3, 2, 3, 3]], &[], same, |t, _| {
        t[0].conv_transpose(&t[1], None, &how)
    });
    // <conv(x), y> = <x, transposed conv(y)>; the size is (H - 1) s + k - 2 p.
    each(|d| {
        let (x, w, y) =
            (random(d, &[1, 2, 5, 5], 1), random(d, &[3, 2, 3, 3], 2), random(d, &[1, 3, 3, 3], 3));
        let back = y.conv_transpose(&w, None, &how).unwrap();
        assert_eq!(back.shape(), [1, 2, 5, 5]);
        let inner =
            |a: &Tensor, b: &Tensor| f64::from(a.mul(b).unwrap().sum().unwrap().item::<f32>().unwrap());
        let [left, right] = [inner(&x.conv2d(&w, None, &how).unwrap(), &y), inner(&x, &back)];
        assert!((left - right).abs() < 1e-4, "{left} {right}");
    });
}

#[test]
fn pooling_and_shapes() {
    let window = Window::new(&[2, 2]).padding(&[1, 1]);
    everywhere("max_pool", &[&[1, 2, 4, 4]], &[], same, |t, _| t[0].max_pool(&window));
    everywhere("pixel_shuffle", &[&[1, 4, 2, 3]], &[], same, |t, _| t[0].pixel_shuffle(2)?.exp());
    everywhere("flatten", &[&[2, 3, 2]], &[], same, |t, _| t[0].flatten(1, -1)?.exp());
    each(|d| {
        // Padding is -inf and never wins, unlike zeros.
        let y = Tensor::full(d, DType::F32, &[1, 1, 2, 2], -3.0).unwrap().max_pool(&window).unwrap();
        assert_eq!(host(&y), vec![-3.0; y.numel()], "{}", id(d));
        let x = Tensor::ones(d, DType::F32, &[1, 1, 2, 2]).unwrap();
        let (_, at) = x.max_pool_with_index(&Window::new(&[2, 2])).unwrap();
        assert_eq!(at.to_vec::<i32>().unwrap(), [0], "the first of equal values");
        let x = random(d, &[2, 8, 3, 2], 1);
        let y = x.pixel_shuffle(2).unwrap();
        assert_eq!((y.shape(), host(&y.pixel_unshuffle(2).unwrap())), (&[2, 2, 6, 4][..], host(&x)));
        assert_eq!(Flatten::default().forward(&x).unwrap().shape(), [2, 48]);
    });
}

#[test]
fn batch_normalization() {
    each(|d| {
        let layer = BatchNormalization::new(&InitContext::new(d, 1), 3).unwrap();
        let (mut mean, mut var) = ([0.0; 3], [1.0; 3]);
        for step in 0..3 {
            let data = noise(step, 4 * 3 * 2 * 2);
            let x = f32s(d, &data.iter().map(|&v| v as f32).collect::<Vec<_>>(), &[4, 3, 2, 2]);
            let y = values(&resident("BatchNormalization", d, || layer.forward(&x).unwrap()));
            for c in 0..3 {
                let channel = |v: &[f64]| -> Vec<f64> {
                    (0..4).flat_map(|n| v[(n * 3 + c) * 4..(n * 3 + c + 1) * 4].to_vec()).collect()
                };
                let (v, n) = (channel(&data), 16.0);
                let m = v.iter().sum::<f64>() / n;
                let biased = v.iter().map(|x| (x - m).powi(2)).sum::<f64>() / n;
                mean[c] += 0.1 * (m - mean[c]);
                var[c] += 0.1 * (biased * n / (n - 1.0) - var[c]);
                let want: Vec<f64> = v.iter().map(|x| (x - m) / (biased + 1e-5).sqrt()).collect();
                close(&channel(&y), &want, 1e-5, "normalised by the biased variance");
            }
        }
        let state = layer.state_dict().unwrap();
        close(&values(&state["running_mean"]), &mean, 1e-5, "running mean");
        close(&values(&state["running_var"]), &var, 1e-5, "running variance, unbiased");
        layer.eval();
        let x = random(d, &[2, 3], 9);
        let want: Vec<f64> = values(&x)
            .iter()
            .enumerate()
            .map(|(i, v)| (v - mean[i % 3]) / (var[i % 3] + 1e-5).sqrt())
            .collect();
        close(&values(&layer.forward(&x).unwrap()), &want, 1e-5, "evaluation");
        layer.to_device(&cpu()).unwrap();
        assert!(
            layer.state_dict().unwrap().values().all(|t| id(t.device()) == id(&cpu())),
            "buffers move too"
        );
    });
}

#[test]
fn layer_normalization_dropout_embedding() {
    for dims in 1..=4 {
        let shape = [2usize, 3, 2, 2, 3];
        let layer = LayerNormalization::new(&f64s(), &shape[5 - dims..]).unwrap();
        let x = [tensor(&cpu(), &shape, dims as u64)];
        gradcheck_layer(&format!("LayerNormalization over {dims}"), &layer, &x, |t| layer.forward(&t[0]));
    }
    each(|d| {
        let cx = InitContext::new(d, 4);
        let flat = Tensor::full(d, DType::F32, &[2, 3], 5.0).unwrap();
        let y = LayerNormalization::new(&cx, &[3]).unwrap().forward(&flat).unwrap();
        assert_eq!(host(&y), [0.0; 6], "variance 0");
        let layer = Dropout::new(&cx, 0.25).unwrap();
        let ones = Tensor::ones(d, DType::F32, &[40_000]).unwrap();
        let y = values(&layer.forward(&ones).unwrap());
        assert!(y.iter().all(|&v| v == 0.0 || (v - 4.0 / 3.0).abs() < 1e-6));
        assert!((y.iter().sum::<f64>() / 4e4 - 1.0).abs() < 0.02, "the expectation stays");
        let again = Dropout::new(&InitContext::new(d, 4), 0.25).unwrap();
        let _ = LayerNormalization::new(&cx, &[3]).unwrap();
        let first = [&layer, &again].map(|l| l.counters());
        assert_ne!(first[0], first[1]);
        layer.eval();
        assert_eq!(host(&layer.forward(&ones).unwrap()), vec![1.0; 40_000]);
        // The same seed draws the same mask.
        let masks = [1, 2].map(|_| {
            host(
                &Dropout::new(&InitContext::new(d, 8), 0.5)
                    .unwrap()
                    .forward(&ones.narrow(0, 0, 99).unwrap())
                    .unwrap(),
            )
        });
        assert_eq!(masks[0], masks[1]);
        let table = Embedding::new(&cx, 4, 2).unwrap();
        let ids = Tensor::from_slice(d, &[1i64, 3, 1], &[3]).unwrap();
        table.forward(&ids).unwrap().sum().unwrap().backward().unwrap();
        assert_eq!(host(&table.weight().get().grad().unwrap()), [0., 0., 2., 2., 0., 0., 1., 1.]);
        let past = Tensor::from_slice(d, &[4i64], &[1]).unwrap();
        assert!(table.forward(&past).and_then(|y| y.to_vec::<f32>()).is_err(), "a row that is not there");
    });
}
