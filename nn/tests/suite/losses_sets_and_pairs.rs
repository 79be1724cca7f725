//! Circle loss, KTO, set prediction, and a loss with its gradient.

use crate::common::{close, devices, f32s, noise};
use trefoil_nn::losses::*;
use trefoil_nn::{Device, Tensor};

fn ids(d: &Device, v: &[i64], shape: &[usize]) -> Tensor {
    Tensor::from_slice(d, v, shape).unwrap()
}

fn values(t: &Tensor) -> Vec<f64> {
    t.to_vec::<f32>().unwrap().into_iter().map(f64::from).collect()
}

fn softplus(x: f64) -> f64 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

#[test]
fn circle_takes_ids_or_pairs() {
    let (scale, m) = (8.0, 0.25);
    let x = [0.9f32, 0.2, -0.3, 0.1, 0.7, 0.4];
    for d in devices() {
        let t = f32s(&d, &x, &[2, 3]).with_grad();
        let loss = CircleLoss { scale, margin: m, ..Default::default() };
        let by_id = loss.forward(&t, &ids(&d, &[0, 1], &[2])).unwrap();
        let pairs = f32s(&d, &[1.0, 0.0, 0.0, 0.0, 1.0, 0.0], &[2, 3]);
        let by_pair = loss.forward(&t, &pairs).unwrap();
        let row = |s: [f64; 3], at: usize| {
            let mut far = 0.0;
            for (_, s) in s.into_iter().enumerate().filter(|(j, _)| *j != at) {
                far += (scale * (s + m).max(0.0) * (s - m)).exp();
            }
            softplus(far.ln() - scale * (1.0 + m - s[at]).max(0.0) * (s[at] - 1.0 + m))
        };
        let x = x.map(f64::from);
        let want = (row([x[0], x[1], x[2]], 0) + row([x[3], x[4], x[5]], 1)) / 2.0;
        close(&values(&by_id), &[want], 1e-5, "by id");
        close(&values(&by_pair), &[want], 1e-5, "by pair");
        by_id.backward().unwrap();
        let g = values(&t.grad().unwrap());
        assert!(g[0] < 0.0 && g[4] < 0.0 && g[1] > 0.0 && g[5] > 0.0, "{g:?}");
    }
}

#[test]
fn kto_weighs_good_and_bad_answers() {
    for d in devices() {
        let (w, r) = (f32s(&d, &[-1.0, -2.0], &[2]).with_grad(), f32s(&d, &[-1.5, -1.0], &[2]));
        let (y, kl) = (f32s(&d, &[1.0, 0.0], &[2]), f32s(&d, &[0.25], &[1]));
        let loss = KtoLoss { beta: 2.0, undesirable: 1.5, ..Default::default() };
        let l = loss.forward(&w, &r, &y, Some(&kl)).unwrap();
        let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
        let (a, b) = (sigmoid(-2.0 * (0.5 - 0.25)), 1.5 * sigmoid(-2.0 * (0.25 + 1.0)));
        close(&values(&l), &[(a + b) / 2.0], 1e-6, "kto");
        l.backward().unwrap();
        let q = b / 1.5;
        let want = [-2.0 * a * (1.0 - a) / 2.0, 1.5 * 2.0 * q * (1.0 - q) / 2.0];
        close(&values(&w.grad().unwrap()), &want, 1e-5, "gradient of kto");
    }
}

#[test]
fn a_loss_with_its_gradient_is_forward_and_backward() {
    for d in devices() {
        let (p, t) = (f32s(&d, &[1.0, 2.0, -3.0], &[3]).with_grad(), f32s(&d, &[0.5, 2.5, 0.0], &[3]));
        let (loss, grad) = loss_and_grad(&MseLoss::default(), &p, &t).unwrap();
        assert!(p.grad().is_none());
        let l = MseLoss::default().forward(&p, &t).unwrap();
        l.backward().unwrap();
        assert_eq!((values(&loss), values(&grad)), (values(&l), values(&p.grad().unwrap())));
    }
}

/// The least cost by trying everything.
fn least(cost: &[f64], columns: usize, rows: usize, used: &mut Vec<usize>) -> f64 {
    if used.len() == rows {
        return 0.0;
    }
    let row = used.len();
    let mut best = f64::INFINITY;
    for c in 0..columns {
        if !used.contains(&c) {
            used.push(c);
            best = best.min(cost[row * columns + c] + least(cost, columns, rows, used));
            used.pop();
        }
    }
    best
}

#[test]
fn assignments_are_the_best_there_are() {
    for d in devices() {
        for (k, (rows, columns)) in [(1, 1), (3, 3), (4, 6), (5, 5), (2, 7), (0, 3)].into_iter().enumerate() {
            let cost: Vec<f32> = noise(k as u64 + 1, rows * columns).iter().map(|&x| x as f32).collect();
            let exact: Vec<f64> = cost.iter().map(|&x| f64::from(x)).collect();
            let cost = f32s(&d, &cost, &[rows, columns]);
            let found = cost.linear_assignment(None).unwrap().to_vec::<i64>().unwrap();
            let sum: f64 = found.iter().enumerate().map(|(r, &c)| exact[r * columns + c as usize]).sum();
            assert!((sum - least(&exact, columns, rows, &mut vec![])).abs() < 1e-12, "{rows} x {columns}");
            // The other way round the same pairs are found.
            let back = cost.t().unwrap().linear_assignment(None).unwrap().to_vec::<i64>().unwrap();
            for (r, &c) in found.iter().enumerate() {
                assert_eq!(back[c as usize], r as i64);
            }
            assert_eq!(back.iter().filter(|r| **r >= 0).count(), rows);
        }
        let forbidden = f32s(&d, &[f32::NAN, 5.0, f32::INFINITY, 1.0], &[2, 2]);
        assert_eq!(forbidden.linear_assignment(None).unwrap().to_vec::<i64>().unwrap(), [1, -1]);
        let counts = ids(&d, &[1], &[1]);
        let first = f32s(&d, &[3.0, 1.0, 1.0, 5.0], &[1, 2, 2]).linear_assignment(Some(&counts)).unwrap();
        assert_eq!(first.to_vec::<i64>().unwrap(), [1, -1]);
        assert!(f32s(&d, &[1.0], &[1]).linear_assignment(None).is_err());
    }
}

fn detr(d: &Device) -> (Tensor, Tensor, Vec<ImageTargets>) {
    let logits: Vec<f32> = noise(4, 2 * 3 * 4).iter().map(|&x| x as f32).collect();
    let boxes: Vec<f32> =
        noise(5, 2 * 3 * 4).iter().map(|&x| 0.4 + 0.1 * x.clamp(-2.0, 2.0) as f32).collect();
    let targets = vec![
        ImageTargets { labels: vec![2, 0], boxes: vec![[0.5, 0.4, 0.3, 0.2], [0.3, 0.6, 0.2, 0.4]] },
        ImageTargets::default(),
    ];
    (f32s(d, &logits, &[2, 3, 4]).with_grad(), f32s(d, &boxes, &[2, 3, 4]).with_grad(), targets)
}

/// The queries of the two objects of the first image, by trying all pairs of them.
fn best_pairs(loss: &DetrLoss, logits: &Tensor, boxes: &Tensor, t: &ImageTargets) -> Vec<usize> {
    let (x, b) = (values(logits), values(boxes));
    let corners = |v: [f64; 4]| [v[0] - v[2] / 2.0, v[1] - v[3] / 2.0, v[0] + v[2] / 2.0, v[1] + v[3] / 2.0];
    let cost = |i: usize, q: usize| {
        let row = &x[4 * q..4 * q + 4];
        let chance = row[t.labels[i]].exp() / row.iter().map(|x| x.exp()).sum::<f64>();
        let (p, o): ([f64; 4], _) = (std::array::from_fn(|k| b[4 * q + k]), t.boxes[i].map(f64::from));
        let l1: f64 = (0..4).map(|k| (p[k] - o[k]).abs()).sum();
        let (p, o) = (corners(p), corners(o));
        let side = |k: usize| (p[k + 2].min(o[k + 2]) - p[k].max(o[k])).max(0.0);
        let hull: f64 = (0..2).map(|k| p[k + 2].max(o[k + 2]) - p[k].min(o[k])).product();
        let area = |c: [f64; 4]| (c[2] - c[0]) * (c[3] - c[1]);
        let inter = side(0) * side(1);
        let union = area(p) + area(o) - inter;
        let giou = inter / union - (hull - union) / hull;
        loss.l1 * l1 + loss.giou * (1.0 - giou) - loss.class * chance
    };
    let pairs = (0..3).flat_map(|p| (0..3).map(move |q| (p, q))).filter(|(p, q)| p != q);
    let sum = |&(p, q): &(usize, usize)| cost(0, p) + cost(1, q);
    let best = pairs.min_by(|a, b| sum(a).total_cmp(&sum(b))).unwrap();
    vec![best.0, best.1]
}

#[test]
fn sets_are_matched_and_compared() {
    for d in devices() {
        let (logits, boxes, targets) = detr(&d);
        let loss = DetrLoss::default();
        let on_device = DetrTargets::new(&d, 3, &targets).unwrap();
        let matches = loss.matching(&logits, &boxes, &on_device).unwrap();
        assert_eq!(matches.shape(), [2, 2]);
        let matches: Vec<usize> = matches.to_vec::<i64>().unwrap()[..2].iter().map(|&q| q as usize).collect();
        assert_eq!(matches, best_pairs(&loss, &logits, &boxes, &targets[0]));
        let terms = loss.terms(&logits, &boxes, &targets).unwrap();
        // From the definitions.
        let (x, b) = (values(&logits), values(&boxes));
        let mut classes = [3usize; 6];
        let mut l1 = 0.0;
        for (i, &q) in matches.iter().enumerate() {
            classes[q] = targets[0].labels[i];
            l1 += (0..4).map(|k| (b[4 * q + k] - f64::from(targets[0].boxes[i][k])).abs()).sum::<f64>();
        }
        let (mut sum, mut weights) = (0.0, 0.0);
        for (q, &c) in classes.iter().enumerate() {
            let row = &x[4 * q..4 * q + 4];
            let lse = row.iter().map(|x| x.exp()).sum::<f64>().ln();
            let w = if c == 3 { 0.1 } else { 1.0 };
            sum += w * (lse - row[c]);
            weights += w;
        }
        close(&values(&terms.class), &[sum / weights], 1e-5, "class");
        close(&values(&terms.l1), &[l1 / 2.0], 1e-5, "l1");
        let total = loss.forward(&logits, &boxes, &targets).unwrap();
        let want = values(&terms.class)[0] + 5.0 * values(&terms.l1)[0] + 2.0 * values(&terms.giou)[0];
        close(&values(&total), &[want], 1e-5, "total");
        // Boxes without an object get no gradient, those with one do.
        total.backward().unwrap();
        let g = values(&boxes.grad().unwrap());
        for q in 0..6 {
            let matched = q < 3 && matches.contains(&q);
            assert_eq!(g[4 * q..4 * q + 4].iter().any(|&x| x != 0.0), matched, "query {q}: {g:?}");
        }
        assert!(values(&logits.grad().unwrap()).iter().all(|x| *x != 0.0));
        // The objects once on the device, nothing travels.
        let before = d.counters();
        loss.terms_of(&logits, &boxes, &on_device).unwrap().giou.backward().unwrap();
        let after = d.counters();
        assert_eq!((after.uploads, after.downloads), (before.uploads, before.downloads));
        // Images without objects cost the class alone.
        let empty = [ImageTargets::default(), ImageTargets::default()];
        let terms = loss.terms(&logits.detach(), &boxes.detach(), &empty).unwrap();
        assert_eq!((values(&terms.l1)[0], values(&terms.giou)[0]), (0.0, 0.0));
        let more = DetrTargets::new(&d, 3, &empty[..1]).unwrap();
        assert!(loss.terms_of(&logits, &boxes, &more).is_err());
        let bad = [ImageTargets { labels: vec![3], boxes: vec![[0.5; 4]] }, ImageTargets::default()];
        assert!(loss.terms(&logits, &boxes, &bad).is_err());
    }
}
