//! Clipping of gradients.

use super::Params;
use crate::common::{close, devices, f32s, id, noise};
use trefoil::DType;
use trefoil_nn::optim::LossScale;
use trefoil_nn::{Optimizer, Param};

#[test]
fn clipping() {
    for d in devices() {
        let p = Params::new(&d, &[&[0.0], &[0.0, 0.0]]);
        let o = Optimizer::sgd(&p, 0.1).unwrap();
        let fill = |a: f32, b: f32| {
            o.zero_grad().unwrap();
            p.0[0].get().mul(&f32s(&d, &[a], &[1])).unwrap().sum().unwrap().backward().unwrap();
            p.0[1].get().mul(&f32s(&d, &[b, 0.0], &[2])).unwrap().sum().unwrap().backward().unwrap();
        };
        let grads = || -> Vec<f32> {
            p.0.iter().flat_map(|q| q.get().grad().unwrap().to_vec::<f32>().unwrap()).collect()
        };
        fill(3.0, 4.0);
        assert_eq!(o.clip_grad_norm(10.0, 2.0).unwrap().item::<f32>().unwrap(), 5.0);
        assert_eq!(grads(), [3.0, 4.0, 0.0]);
        assert_eq!(o.clip_grad_norm(1.0, 2.0).unwrap().item::<f32>().unwrap(), 5.0);
        let g = grads();
        assert!((g[0] - 0.6).abs() < 1e-5 && (g[1] - 0.8).abs() < 1e-5, "{g:?}");
        fill(1e30, 1e30);
        o.clip_grad_norm(1.0, 2.0).unwrap();
        assert!((grads()[0] - 0.5f32.sqrt()).abs() < 1e-5);
        fill(3.0, -4.0);
        o.clip_grad_value(2.0).unwrap();
        assert_eq!(grads(), [2.0, -2.0, 0.0]);
        assert!(o.clip_grad_norm(0.0, 2.0).is_err() && o.clip_grad_value(f64::NAN).is_err());
    }
}

#[test]
fn clipping_over_two_dtypes() {
    for d in devices() {
        let p = Params(vec![
            Param::new(f32s(&d, &[0.0], &[1])),
            Param::new(f32s(&d, &[0.0], &[1]).to_dtype(DType::F16).unwrap()),
        ]);
        let o = Optimizer::sgd(&p, 0.1).unwrap();
        for (degree, norm) in [(2.0, 5.0f32), (f64::INFINITY, 4.0)] {
            for bound in [100.0, 1.0] {
                o.zero_grad().unwrap();
                p.0[0].get().mul_scalar(3.0).unwrap().sum().unwrap().backward().unwrap();
                p.0[1].get().mul_scalar(4.0).unwrap().sum().unwrap().backward().unwrap();
                assert_eq!(o.clip_grad_norm(bound, degree).unwrap().item::<f32>().unwrap(), norm);
                let g = |i: usize| {
                    let g = p.0[i].get().grad().unwrap().to_dtype(DType::F32).unwrap();
                    f64::from(g.item::<f32>().unwrap())
                };
                let f = (bound / f64::from(norm)).min(1.0);
                close(&[g(0), g(1)], &[3.0 * f, 4.0 * f], 1e-3, "gradients");
            }
        }
    }
}

#[test]
fn a_clipped_step_is_clipping_and_a_step() {
    for d in devices() {
        let run = |together: bool| {
            let params = Params::new(&d, &[&[1.0, -2.0, 3.0], &[0.5; 100]]);
            let mut o = Optimizer::adamw(&params, 0.05, 0.01).unwrap();
            o = o.loss_scaling(LossScale::new().interval(3), 1024.0).unwrap();
            let mut seen = vec![];
            for i in 0..9 {
                o.zero_grad().unwrap();
                for (k, p) in params.0.iter().enumerate() {
                    let n = p.get().numel();
                    let mut factors: Vec<f32> =
                        noise(7 * i + k as u64, n).iter().map(|&v| v as f32).collect();
                    if i == 4 && k == 1 {
                        factors[n - 1] = f32::INFINITY;
                    }
                    let loss = p.get().mul(&f32s(&d, &factors, &[n])).unwrap().sum().unwrap();
                    o.backward(&loss).unwrap();
                }
                let norm = match together {
                    true => o.step_clipped(0.7, 2.0).unwrap(),
                    false => {
                        let norm = o.clip_grad_norm(0.7, 2.0).unwrap();
                        o.step().unwrap();
                        norm
                    }
                };
                let scale = o.loss_scale().unwrap().item::<f32>().unwrap();
                seen.push((scale, norm.item::<f32>().unwrap(), params.values()));
            }
            let state = o.state_tensors().unwrap();
            let count =
                state.iter().find(|(name, _)| name == "scaler.step").unwrap().1.item::<i64>().unwrap();
            (seen, count)
        };
        let ((apart, a), (together, b)) = (run(false), run(true));
        assert_eq!((a, b), (9, 9), "{}: eight steps were made", id(&d));
        for (i, (x, y)) in apart.iter().zip(&together).enumerate() {
            assert_eq!(x.0, y.0, "{}: scale after step {i}", id(&d));
            assert!(x.1 == y.1 || (x.1 - y.1).abs() <= 1e-6 * x.1, "{}: norm {} and {}", id(&d), x.1, y.1);
            let near = |(x, y): (&f32, &f32)| (x - y).abs() <= 1e-6 * (1.0 + x.abs());
            assert!(x.2.iter().flatten().zip(y.2.iter().flatten()).all(near), "{}: step {i}", id(&d));
        }
        assert_eq!(together[3].2, together[4].2, "{}: an infinite gradient changes nothing", id(&d));
        assert_ne!(together[4].2, together[5].2);
    }
}
