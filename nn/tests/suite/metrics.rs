//! Metrics against plain code, and their traffic.

use crate::common::{close, cpu, devices, f32s, noise};
use trefoil::DType;
use trefoil::ops::core::CoreOps;
use trefoil_nn::metrics::*;
use trefoil_nn::{Device, Tensor};

const N: usize = 40;
const C: usize = 4;

/// Logits and class ids, in batches of several sizes.
fn batches(d: &Device) -> Vec<(Tensor, Tensor)> {
    let (z, t) = data();
    [0..7, 7..8, 8..N]
        .map(|r| {
            let x: Vec<f32> = z[r.start * C..r.end * C].iter().map(|&v| v as f32).collect();
            let y = Tensor::from_slice(d, &t[r.clone()], &[r.len()]).unwrap();
            (f32s(d, &x, &[r.len(), C]), y)
        })
        .to_vec()
}

/// Class 3 never occurs.
fn data() -> (Vec<f64>, Vec<i64>) {
    let t = noise(2, N)
        .iter()
        .map(|v| {
            if *v < -0.3 {
                0
            } else if *v < 0.4 {
                1
            } else {
                2
            }
        })
        .collect();
    (noise(1, N * C), t)
}

/// Classes of a row from the largest logit down.
fn order(row: &[f64]) -> Vec<usize> {
    let mut at: Vec<usize> = (0..C).collect();
    at.sort_by(|&a, &b| row[b].total_cmp(&row[a]));
    at
}

fn run(m: &mut dyn Metric, d: &Device) -> f64 {
    m.update(&f32s(d, &[9.0, 0.0, 0.0, 0.0], &[1, C]), &Tensor::from_slice(d, &[1i64], &[1]).unwrap())
        .unwrap();
    m.reset().unwrap();
    for (x, y) in batches(d) {
        m.update(&x, &y).unwrap();
    }
    m.read().unwrap()
}

#[test]
fn class_metrics_count_right() {
    let (z, t) = data();
    let ranks: Vec<usize> = z
        .chunks(C)
        .zip(&t)
        .map(|(row, &t)| order(row).iter().position(|&c| c as i64 == t).unwrap())
        .collect();
    let share = |k: usize| ranks.iter().filter(|&&r| r < k).count() as f64 / N as f64;
    let mut cells = vec![vec![0i64; C]; C];
    for (row, &t) in z.chunks(C).zip(&t) {
        cells[t as usize][order(row)[0]] += 1;
    }
    let cell = |a: usize, b: usize| cells[a][b] as f64;
    let said = |c: usize| (0..C).map(|a| cell(a, c)).sum::<f64>();
    let is = |c: usize| (0..C).map(|b| cell(c, b)).sum::<f64>();
    let over = |a: f64, b: f64| if b == 0.0 { 0.0 } else { a / b };
    let f1 = |c: usize| over(2.0 * cell(c, c), said(c) + is(c));
    for d in devices() {
        assert_eq!(run(&mut Accuracy::new(&d).unwrap(), &d), share(1));
        assert_eq!(run(&mut TopK::new(&d, 2).unwrap(), &d), share(2));
        let mut m = ConfusionMatrix::new(&d, C).unwrap();
        assert_eq!(run(&mut m, &d), share(1));
        let counts = m.counts().unwrap();
        assert_eq!(counts.rows(), cells);
        let got = [
            counts.precision(Average::Macro),
            counts.recall(Average::Class(1)),
            counts.f1(Average::Macro),
            counts.f1(Average::Weighted),
            counts.precision(Average::Micro),
            counts.recall(Average::Class(3)),
        ];
        let mean = |f: &dyn Fn(usize) -> f64| (0..C).map(f).sum::<f64>() / C as f64;
        let want = [
            mean(&|c| over(cell(c, c), said(c))),
            over(cell(1, 1), is(1)),
            mean(&f1),
            (0..C).map(|c| f1(c) * is(c)).sum::<f64>() / N as f64,
            share(1),
            0.0,
        ];
        close(&got, &want, 1e-12, "scores");
        let mut m = Classification::new(&d, C, Score::F1, Average::Macro).unwrap();
        assert_eq!((run(&mut m, &d), m.name().as_str()), (got[2], "f1"));
        assert!(TopK::new(&d, 9).unwrap().update(&batches(&d)[0].0, &batches(&d)[0].1).is_err());
        assert!(ConfusionMatrix::new(&d, 3).unwrap().update(&batches(&d)[0].0, &batches(&d)[0].1).is_err());
    }
    assert!(counts_of_nothing().is_nan());
}

fn counts_of_nothing() -> f64 {
    ConfusionMatrix::new(&cpu(), 2).unwrap().counts().unwrap().f1(Average::Macro)
}

#[test]
fn the_area_under_the_curve_counts_pairs() {
    // Coarse scores, so that there are ties.
    let scores: Vec<f32> = noise(3, 50).iter().map(|v| (v * 5.0).round() as f32).collect();
    let labels: Vec<i64> = noise(4, 50).iter().map(|&v| i64::from(v > 0.2)).collect();
    let (mut wins, mut pairs) = (0.0, 0.0);
    for (i, a) in scores.iter().enumerate().filter(|(i, _)| labels[*i] == 1) {
        assert_eq!(labels[i], 1);
        for b in scores.iter().zip(&labels).filter(|x| *x.1 == 0).map(|x| x.0) {
            pairs += 1.0;
            wins += if a > b {
                1.0
            } else if a == b {
                0.5
            } else {
                0.0
            };
        }
    }
    for d in devices() {
        let mut m = Auc::new(&d, 50).unwrap();
        assert!(m.read().unwrap().is_nan());
        for r in [0..20, 20..50] {
            let y = Tensor::from_slice(&d, &labels[r.clone()], &[r.len()]).unwrap();
            m.update(&f32s(&d, &scores[r.clone()], &[r.len(), 1]), &y).unwrap();
        }
        close(&[m.read().unwrap()], &[wins / pairs], 1e-12, "auc");
        let one = Tensor::from_slice(&d, &[1i64], &[1]).unwrap();
        assert!(m.update(&f32s(&d, &[1.0], &[1]), &one).is_err());
        m.reset().unwrap();
        // Two logits per item: their difference is the score.
        let y = Tensor::from_slice(&d, &[0i64, 1, 1], &[3]).unwrap();
        m.update(&f32s(&d, &[1.0, 3.0, 0.0, 5.0, 2.0, 3.0], &[3, 2]), &y).unwrap();
        assert_eq!(m.read().unwrap(), 0.5);
    }
}

#[test]
fn metrics_of_values_and_likelihoods() {
    let (p, t): (Vec<f64>, Vec<f64>) = (noise(5, 30), noise(6, 30).iter().map(|v| v + 100.0).collect());
    let n = 30.0;
    let e: Vec<f64> = p.iter().zip(&t).map(|(a, b)| (a + 100.0) - b).collect();
    let mean = t.iter().sum::<f64>() / n;
    let squares = e.iter().map(|v| v * v).sum::<f64>();
    let spread = t.iter().map(|v| (v - mean).powi(2)).sum::<f64>();
    for d in devices() {
        let mut all: [Box<dyn Metric>; 3] = [
            Box::new(MeanAbsoluteError::new(&d).unwrap()),
            Box::new(RootMeanSquaredError::new(&d).unwrap()),
            Box::new(R2Score::new(&d).unwrap()),
        ];
        let want = [e.iter().map(|v| v.abs()).sum::<f64>() / n, (squares / n).sqrt(), 1.0 - squares / spread];
        for (m, want) in all.iter_mut().zip(want) {
            assert!(m.read().unwrap().is_nan());
            for round in 0..2 {
                m.reset().unwrap();
                for r in [0..11, 11..30] {
                    let x: Vec<f32> = p[r.clone()].iter().map(|v| (v + 100.0) as f32).collect();
                    let y: Vec<f32> = t[r.clone()].iter().map(|&v| v as f32).collect();
                    m.update(&f32s(&d, &x, &[r.len(), 1]), &f32s(&d, &y, &[r.len()])).unwrap();
                }
                close(&[m.read().unwrap()], &[want], 1e-4, &format!("{} round {round}", m.name()));
            }
        }
        assert!(all[0].update(&f32s(&d, &[1.0], &[1]), &f32s(&d, &[1.0, 2.0], &[2])).is_err());

        let (z, mut t) = data();
        let mut m = Perplexity::new(&d).unwrap().ignore_index(2);
        t.iter_mut().for_each(|t| *t = (*t).min(2));
        let logp: Vec<f64> = z
            .chunks(C)
            .zip(&t)
            .filter(|(_, t)| **t != 2)
            .map(|(row, &t)| row[t as usize] - row.iter().map(|v| v.exp()).sum::<f64>().ln())
            .collect();
        let want = (-logp.iter().sum::<f64>() / logp.len() as f64).exp();
        close(&[run(&mut m, &d)], &[want], 1e-5, "perplexity");
    }
}

#[test]
fn updates_transfer_and_allocate_nothing() {
    for d in devices() {
        let mut all: Vec<Box<dyn Metric>> = vec![
            Box::new(Accuracy::new(&d).unwrap()),
            Box::new(TopK::new(&d, 2).unwrap()),
            Box::new(Classification::new(&d, 2, Score::F1, Average::Macro).unwrap()),
            Box::new(Auc::new(&d, 100).unwrap()),
            Box::new(Perplexity::new(&d).unwrap()),
        ];
        let x = f32s(&d, &[1.0, 2.0, 0.5, 0.0, 3.0, 1.0], &[3, 2]);
        let y = Tensor::from_slice(&d, &[1i64, 0, 1], &[3]).unwrap();
        let mut values: Vec<Box<dyn Metric>> = vec![
            Box::new(MeanAbsoluteError::new(&d).unwrap()),
            Box::new(RootMeanSquaredError::new(&d).unwrap()),
            Box::new(R2Score::new(&d).unwrap()),
        ];
        let target = x.to_dtype(DType::F32).unwrap().mul_scalar(0.5).unwrap();
        let mut update = || {
            all.iter_mut().for_each(|m| m.update(&x, &y).unwrap());
            values.iter_mut().for_each(|m| m.update(&x, &target).unwrap());
        };
        (0..3).for_each(|_| update());
        let quiet =
            |c: trefoil::ops::core::Counters| (c.uploads, c.downloads, c.syncs, c.allocations, c.compiles);
        let before = d.counters();
        (0..3).for_each(|_| update());
        assert_eq!(quiet(before), quiet(d.counters()), "on {}", crate::common::id(&d));
        assert!(d.counters().launches > before.launches);
    }
}
