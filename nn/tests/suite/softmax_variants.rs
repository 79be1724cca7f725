//! Softmax and its relatives.

use crate::common::layers::{f64s, gradcheck_layer, on_devices, refused};
use crate::common::{close, cpu, devices, f32s, gradcheck, id, noise, tensor};
use trefoil::DType;
use trefoil_nn::layers::{SoftmaxKind, SoftmaxVariant};
use trefoil_nn::{InitContext, Layer, LayerExt, Tensor};

fn host(t: &Tensor) -> Vec<f64> {
    t.to_vec::<f64>().unwrap()
}

/// One of every kind, for rows of 6.
fn kinds() -> Vec<SoftmaxKind> {
    use SoftmaxKind::*;
    vec![
        Standard { temperature: 1.0 },
        Standard { temperature: 0.5 },
        Grid { rows: 2, cols: 3, temperature: 0.7 },
        Hierarchical { levels: vec![3, 2], temperature: 1.5, tree: false },
        Hierarchical { levels: vec![3, 2], temperature: 1.5, tree: true },
        Gumbel { temperature: 0.8, hard: false },
        Masked { mask: vec![true, false, true, true, false, true], temperature: 2.0 },
        Sparse,
        Entmax { alpha: 1.0 },
        Entmax { alpha: 1.2 },
        Entmax { alpha: 1.5 },
        Entmax { alpha: 2.0 },
        Entmax { alpha: 3.0 },
        Adaptive { clusters: vec![vec![4, 0], vec![1], vec![5, 3, 2]] },
        Mixture { weights: vec![3.0, 1.0] },
    ]
}

fn softmax(x: &[f64]) -> Vec<f64> {
    let m = x.iter().cloned().fold(f64::MIN, f64::max);
    let e: Vec<f64> = x.iter().map(|v| (v - m).exp()).collect();
    let s: f64 = e.iter().sum();
    e.iter().map(|v| v / s).collect()
}

/// The definition of each kind for one row, on the host.
fn reference(kind: &SoftmaxKind, x: &[f64]) -> Vec<f64> {
    let cool = |t: f64| x.iter().map(|v| v / t).collect::<Vec<_>>();
    match kind {
        SoftmaxKind::Standard { temperature } => softmax(&cool(*temperature)),
        SoftmaxKind::Grid { cols, temperature, .. } => {
            cool(*temperature).chunks(*cols).flat_map(softmax).collect()
        }
        SoftmaxKind::Hierarchical { levels, temperature, tree: false } => {
            cool(*temperature).chunks(*levels.last().unwrap()).flat_map(softmax).collect()
        }
        SoftmaxKind::Hierarchical { temperature, .. } => {
            let x = cool(*temperature);
            let top = softmax(&x.chunks(2).map(|c| (c[0] + c[1]) / 2.0).collect::<Vec<_>>());
            x.chunks(2).zip(&top).flat_map(|(c, p)| softmax(c).into_iter().map(move |q| p * q)).collect()
        }
        SoftmaxKind::Masked { mask, temperature } => {
            let x: Vec<f64> = cool(*temperature);
            softmax(&x.iter().zip(mask).map(|(v, m)| if *m { *v } else { -1e300 }).collect::<Vec<_>>())
        }
        SoftmaxKind::Entmax { alpha: 1.0 } => softmax(x),
        SoftmaxKind::Sparse => reference(&SoftmaxKind::Entmax { alpha: 2.0 }, x),
        SoftmaxKind::Entmax { alpha } => {
            let p = |tau: f64| -> Vec<f64> {
                x.iter().map(|v| ((alpha - 1.0) * v - tau).max(0.0).powf(1.0 / (alpha - 1.0))).collect()
            };
            let (mut lo, mut hi) = (-100.0, 100.0);
            for _ in 0..200 {
                let mid = (lo + hi) / 2.0;
                if p(mid).iter().sum::<f64>() >= 1.0 { lo = mid } else { hi = mid }
            }
            p(lo)
        }
        SoftmaxKind::Adaptive { clusters } => {
            let mean = |c: &Vec<usize>| c.iter().map(|&i| x[i]).sum::<f64>() / c.len() as f64;
            let head: Vec<f64> =
                clusters[0].iter().map(|&i| x[i]).chain(clusters[1..].iter().map(mean)).collect();
            let head = softmax(&head);
            let mut y = vec![0.0; x.len()];
            for (at, &i) in clusters[0].iter().enumerate() {
                y[i] = head[at];
            }
            for (k, c) in clusters[1..].iter().enumerate() {
                let inner = softmax(&c.iter().map(|&i| x[i]).collect::<Vec<_>>());
                for (&i, p) in c.iter().zip(inner) {
                    y[i] = p * head[clusters[0].len() + k];
                }
            }
            y
        }
        SoftmaxKind::Mixture { weights } => {
            let total: f64 = weights.iter().sum();
            let m = x.len() / weights.len();
            let mut y = vec![0.0; m];
            for (block, w) in x.chunks(m).zip(weights) {
                softmax(block).iter().zip(&mut y).for_each(|(p, y)| *y += w / total * p);
            }
            y
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn values_and_gradients() {
    let data: Vec<f64> = noise(5, 24).iter().map(|v| 1.7 * v).collect();
    for kind in kinds() {
        let what = format!("{kind:?}");
        let layer = SoftmaxVariant::new(&f64s(), kind.clone()).unwrap();
        let x = Tensor::from_slice(&cpu(), &data, &[2, 2, 6]).unwrap();
        if !matches!(kind, SoftmaxKind::Gumbel { .. }) {
            let want: Vec<f64> = data.chunks(6).flat_map(|r| reference(&kind, r)).collect();
            close(&host(&layer.forward(&x).unwrap()), &want, 1e-13, &what);
        }
        gradcheck_layer(&what, &layer, &[x], |t| layer.forward(&t[0]));
    }
    // Along another axis.
    gradcheck("sparsemax", &[&[2, 5, 3]], |v| v, |t| t[0].sparsemax(1));
    gradcheck("entmax", &[&[5, 2]], |v| 2.0 * v, |t| t[0].entmax(1.3, 0));
}

#[test]
fn devices_agree_with_the_cpu() {
    for kind in kinds() {
        let what = format!("{kind:?}");
        // Numbers of the generator are rounded to another dtype, so the noise differs a little.
        if matches!(kind, SoftmaxKind::Gumbel { .. }) {
            continue;
        }
        let make = |cx: &InitContext| SoftmaxVariant::new(cx, kind.clone());
        on_devices(&what, &[&[33, 6]], make, |l, t| l.forward(&t[0]));
    }
}

#[test]
fn gumbel_draws_and_can_be_repeated() {
    for d in devices() {
        let cx = InitContext::new(&d, 3);
        let kind = SoftmaxKind::Gumbel { temperature: 0.5, hard: false };
        let layer = SoftmaxVariant::new(&cx, kind).unwrap();
        let x = f32s(&d, &[0.5, 1.0, -1.0, 0.0], &[1, 4]).expand(&[2000, 4]).unwrap().contiguous().unwrap();
        let first = layer.forward(&x).unwrap().to_vec::<f32>().unwrap();
        assert_ne!(layer.forward(&x).unwrap().to_vec::<f32>().unwrap(), first, "new noise");
        layer.set_counters(&[("offset".to_string(), 0)].into()).unwrap();
        assert_eq!(layer.forward(&x).unwrap().to_vec::<f32>().unwrap(), first, "the same noise");
        assert!(first.chunks(4).all(|r| (r.iter().sum::<f32>() - 1.0).abs() < 1e-5));

        // The largest of a row is distributed as the softmax says.
        let hard = SoftmaxKind::Gumbel { temperature: 0.5, hard: true };
        let layer = SoftmaxVariant::new(&cx, hard).unwrap();
        let leaf = x.with_grad();
        let y = layer.forward(&leaf).unwrap();
        let rows = y.to_vec::<f32>().unwrap();
        assert!(rows.iter().all(|&v| v.abs() < 1e-6 || (v - 1.0).abs() < 1e-6), "one-hot rows");
        let want = softmax(&[0.5, 1.0, -1.0, 0.0]);
        for (c, w) in want.iter().enumerate() {
            let share = rows.chunks(4).map(|r| f64::from(r[c])).sum::<f64>() / 2000.0;
            assert!((share - w).abs() < 0.05, "{share} of class {c}, expected {w} on {}", id(&d));
        }
        y.mul(&tensor(&d, &[4], 3).to_dtype(DType::F32).unwrap()).unwrap().sum().unwrap().backward().unwrap();
        assert!(leaf.grad().unwrap().to_vec::<f32>().unwrap().iter().any(|g| g.abs() > 1e-3));
    }
}

#[test]
fn extremes() {
    for d in devices() {
        // Logits far apart and large in size, ties, one element, a mask without a true place.
        let x = f32s(&d, &[1e4, -1e4, 1e4, 0.0, 0.0, 0.0], &[2, 3]);
        for alpha in [1.2, 1.5, 2.0] {
            let y = x.entmax(alpha, -1).unwrap().to_vec::<f32>().unwrap();
            let want = [0.5, 0.0, 0.5, 1. / 3., 1. / 3., 1. / 3.];
            close(&y.iter().map(|&v| v.into()).collect::<Vec<_>>(), &want, 1e-6, &format!("alpha {alpha}"));
        }
        assert_eq!(f32s(&d, &[-7.0], &[1, 1]).entmax(1.5, -1).unwrap().to_vec::<f32>().unwrap(), [1.0]);
        let none = SoftmaxKind::Masked { mask: vec![false; 4], temperature: 0.1 };
        let none = SoftmaxVariant::new(&InitContext::new(&d, 1), none).unwrap();
        let y = none.forward(&f32s(&d, &[1., 2., 3., 4.], &[4])).unwrap();
        close(
            &y.to_dtype(DType::F32)
                .unwrap()
                .to_vec::<f32>()
                .unwrap()
                .iter()
                .map(|&v| v.into())
                .collect::<Vec<_>>(),
            &[0.25; 4],
            1e-6,
            "nothing visible",
        );
        for dtype in [DType::F16, DType::Bf16] {
            let x = f32s(&d, &[0.5, 1.0, -1.0, 0.25], &[1, 4]);
            let narrow = x.to_dtype(dtype).unwrap().with_grad();
            let y = narrow.entmax(1.5, -1).unwrap();
            y.mul(&narrow).unwrap().sum().unwrap().backward().unwrap();
            let back = |t: &Tensor| t.to_dtype(DType::F32).unwrap().to_vec::<f32>().unwrap();
            let want = x.entmax(1.5, -1).unwrap().to_vec::<f32>().unwrap();
            assert!(back(&y.detach()).iter().zip(&want).all(|(a, b)| (a - b).abs() < 4e-3));
            assert!(back(&narrow.grad().unwrap()).iter().all(|g| g.is_finite()));
        }
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let cx = f64s();
    use SoftmaxKind::*;
    let bad: [(SoftmaxKind, &str); 9] = [
        (Standard { temperature: 0.0 }, "temperature"),
        (Gumbel { temperature: f64::NAN, hard: true }, "temperature"),
        (Grid { rows: 0, cols: 3, temperature: 1.0 }, "rows"),
        (Hierarchical { levels: vec![], temperature: 1.0, tree: true }, "levels"),
        (Masked { mask: vec![], temperature: 1.0 }, "mask"),
        (Entmax { alpha: 0.5 }, "alpha"),
        (Adaptive { clusters: vec![vec![0, 2]] }, "clusters"),
        (Adaptive { clusters: vec![vec![0, 1], vec![]] }, "clusters"),
        (Mixture { weights: vec![0.0, 0.0] }, "weights"),
    ];
    for (kind, word) in bad {
        refused(SoftmaxVariant::new(&cx, kind), &["SoftmaxVariant", word]);
    }
    let x = tensor(&cpu(), &[2, 5], 1);
    for kind in kinds() {
        let layer = SoftmaxVariant::new(&cx, kind.clone()).unwrap();
        if layer.inputs().is_some() || matches!(kind, Mixture { .. }) {
            refused(layer.forward(&x), &["SoftmaxVariant", "5"]);
        }
    }
    refused(x.entmax(0.9, -1), &["entmax", "alpha"]);
    refused(x.sparsemax(2), &["sparsemax", "axis"]);
    refused(Tensor::zeros(&cpu(), DType::F64, &[2, 0]).unwrap().entmax(1.5, 1), &["entmax"]);
}
