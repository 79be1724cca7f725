//! Optimizers, arenas, clipping, schedules.

mod clip;
mod params;
mod rules;

use std::sync::Arc;

use crate::common::{close, cpu, devices, f32s};
use trefoil::ops::activation::Activation;
use trefoil::testing::MockDriver;
use trefoil::{BackendKind, Caps, DType, DeviceId, Engine};
use trefoil_nn::layers::{Dense, Sequential};
use trefoil_nn::optim::{LossScale, Plateau, Schedule};
use trefoil_nn::{Device, InitContext, Layer, Optimizer, Param, Tensor, Visitor};

/// A model that is a list of parameters.
#[derive(Debug)]
struct Params(Vec<Param>);

impl Params {
    fn new(d: &Device, values: &[&[f32]]) -> Self {
        Params(values.iter().map(|v| Param::new(f32s(d, v, &[v.len()]))).collect())
    }
    fn values(&self) -> Vec<Vec<f32>> {
        self.0.iter().map(|p| p.get().to_vec().unwrap()).collect()
    }
}

impl Layer for Params {
    fn forward(&self, x: &Tensor) -> trefoil_nn::Result<Tensor> {
        Ok(x.clone())
    }
    fn visit(&self, v: &mut Visitor<'_>) {
        for (i, p) in self.0.iter().enumerate() {
            v.param(&format!("p{i}"), p);
        }
    }
}

#[test]
fn schedules() {
    let at = |s: &Schedule, ts: &[u64]| -> Vec<f64> { ts.iter().map(|&t| s.lr(0.1, t)).collect() };
    let check = |s: &Schedule, ts: &[u64], want: &[f64]| close(&at(s, ts), want, 1e-12, &format!("{s:?}"));
    check(&Schedule::Constant, &[0, 100], &[0.1, 0.1]);
    check(&Schedule::Step { every: 3, gamma: 0.5 }, &[0, 2, 3, 6], &[0.1, 0.1, 0.05, 0.025]);
    check(&Schedule::Exponential { gamma: 0.9 }, &[0, 1, 2], &[0.1, 0.09, 0.081]);
    check(&Schedule::Cosine { total: 10, min: 0.02 }, &[0, 5, 10, 11], &[0.1, 0.06, 0.02, 0.02]);
    check(&Schedule::Polynomial { total: 4, power: 2.0, end: 0.0 }, &[0, 2, 4, 9], &[0.1, 0.025, 0.0, 0.0]);
    let steps = Schedule::MultiStep { milestones: vec![2, 5], gamma: 0.1 };
    check(&steps, &[0, 1, 2, 4, 5, 9], &[0.1, 0.1, 0.01, 0.01, 0.001, 0.001]);
    check(&Schedule::Linear { total: 4, start: 0.5, end: 1.0 }, &[0, 2, 4, 9], &[0.05, 0.075, 0.1, 0.1]);
    // Periods of 2, 4 and 8 steps.
    let again = Schedule::CosineRestarts { first: 2, factor: 2, min: 0.0 };
    check(&again, &[0, 1, 2, 4, 6, 10], &[0.1, 0.05, 0.1, 0.05, 0.1, 0.05]);
    check(
        &Schedule::CosineRestarts { first: 4, factor: 1, min: 0.02 },
        &[0, 2, 4, 6],
        &[0.1, 0.06, 0.1, 0.06],
    );
    let warm =
        Schedule::Warmup { steps: 4, start: 0.25, then: Box::new(Schedule::Step { every: 1, gamma: 0.5 }) };
    check(&warm, &[0, 2, 4, 5], &[0.025, 0.0625, 0.1, 0.05]);
    // The values of torch.optim.lr_scheduler.OneCycleLR(max_lr=0.1, total_steps=10) at the ends and the peak.
    let one = Schedule::OneCycle { total: 10, rise: 0.3, div: 25.0, final_div: 1e4 };
    check(&one, &[0, 2, 9, 50], &[0.004, 0.1, 4e-7, 4e-7]);
    check(&one, &[1], &[0.052]);
    let mut p = Plateau::new(0.5, 1);
    for v in [1.0, 0.9, 0.9, f64::NAN, 0.9] {
        p.observe(v);
    }
    assert_eq!((p.lr(0.1), p.waited), (0.05, 1));
    p.observe(0.5);
    assert_eq!((p.scale, p.waited), (0.5, 0));
    // After a reduction two observations do not count.
    let mut p = Plateau { cooldown: 2, ..Plateau::new(0.5, 0) };
    let scales: Vec<f64> = [1.0, 1.0, 1.0, 1.0, 1.0].iter().map(|&v| (p.observe(v), p.scale).1).collect();
    assert_eq!(scales, [1.0, 0.5, 0.5, 0.5, 0.25]);
}

#[test]
fn a_small_problem_is_learned_everywhere() {
    for d in devices() {
        let cx = InitContext::new(&d, 3);
        let m = Sequential::new()
            .push(Dense::new(&cx, 2, 16).unwrap().activation(Activation::Tanh))
            .push(Dense::new(&cx, 16, 1).unwrap());
        let mut o = Optimizer::adam(&m, 0.05).unwrap();
        let x = f32s(&d, &[0., 0., 0., 1., 1., 0., 1., 1.], &[4, 2]);
        let y = f32s(&d, &[0., 1., 1., 0.], &[4, 1]);
        let mut last = f32::NAN;
        for i in 0..200 {
            o.zero_grad().unwrap();
            let loss = trefoil_nn::MseLoss::default().forward(&m.forward(&x).unwrap(), &y).unwrap();
            loss.backward().unwrap();
            o.step().unwrap();
            if i % 50 == 49 {
                last = loss.item().unwrap();
            }
        }
        assert!(last < 1e-2, "loss {last} on {}", crate::common::id(&d));
    }
}

/// Steps start from one tensor, which a user may see as the loss's gradient and overwrite.
#[test]
fn every_backward_starts_from_its_weight() {
    let d = cpu();
    let x = f32s(&d, &[1.0, 2.0], &[2]);
    let model = Dense::new(&InitContext::new(&d, 1), 2, 1).unwrap();
    let o = Optimizer::sgd(&model, 0.1).unwrap();
    for weight in [1.0, 1.0, 0.25, 0.25, 1.0] {
        o.zero_grad().unwrap();
        let loss = model.forward(&x).unwrap().sum().unwrap();
        loss.retain_grad().unwrap();
        o.backward_weighted(&loss, weight).unwrap();
        let g = model.weight().unwrap().get().grad().unwrap();
        let w = weight as f32;
        assert_eq!(g.to_vec::<f32>().unwrap(), [w, 2.0 * w]);
        loss.grad().unwrap().fill(7.0).unwrap();
    }
}

#[test]
fn a_step_over_many_parameters_is_a_few_launches() {
    let mut caps = Caps::new(DeviceId::new(BackendKind::Custom, 0), "mock", "mock");
    caps.device_addresses = true;
    let driver = Arc::new(MockDriver::new(caps));
    let d: Device = Arc::new(Engine::new(driver.clone()).unwrap());
    let launches = |dtype: DType, scaled: bool| {
        let values = [1.0f32; 70];
        let params = Params::new(&d, &[&values[..]; 50]);
        params.0.iter().for_each(|p| p.set(p.get().to_dtype(dtype).unwrap()));
        let mut o = Optimizer::adamw(&params, 0.01, 0.01).and_then(Optimizer::master_weights).unwrap();
        o = o.ema(0.9).unwrap();
        if scaled {
            o = o.loss_scaling(LossScale::new(), 1024.0).unwrap();
        }
        let mut counts = vec![];
        // The first of each kind makes what the others keep.
        for clip in [false, false, true, true] {
            params.0.iter().for_each(|p| o.backward(&p.get().sum().unwrap()).unwrap());
            driver.clear();
            match clip {
                true => drop(o.step_clipped(1.0, 2.0).unwrap()),
                false => o.step().unwrap(),
            }
            counts.push(driver.launches());
        }
        (counts.remove(1), counts.remove(2))
    };
    for dtype in [DType::F32, DType::F16] {
        // The update with the 16-bit copies, and the moving average.
        let update = ["optimizer_step", "binary_flat"];
        let norm = ["gradient_norm_partial", "gradient_factor"];
        let (plain, clipped) = launches(dtype, false);
        assert_eq!(plain, update, "{dtype}");
        assert_eq!(clipped, [norm, update].concat(), "{dtype}");
        // Loss scaling looks at the gradients and adapts within the two launches of the norm.
        let (plain, scaled) = launches(dtype, true);
        assert_eq!(scaled, clipped, "{dtype}");
        assert_eq!(plain.len(), 4, "{dtype}: {plain:?}");
    }
}
