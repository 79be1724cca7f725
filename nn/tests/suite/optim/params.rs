//! Parameters in an optimizer: groups, saved states, ownership, the arena that holds them.

use super::Params;
use crate::common::{close, cpu, devices, f32s, id};
use trefoil::DType;
use trefoil::ops::optimizer::OptimRule;
use trefoil_nn::layers::{Dense, Sequential};
use trefoil_nn::optim::Group;
use trefoil_nn::{InitContext, Layer, LayerExt, NnError, Optimizer, Param, Tensor};

#[test]
fn groups_have_rates_and_decays_of_their_own() {
    let d = cpu();
    let cx = InitContext::new(&d, 1);
    let m = Sequential::new().push(Dense::new(&cx, 3, 2).unwrap());
    let [matrices, others] = Group::new(&m, OptimRule::Sgd { wd: 0.5 }).decay_matrices_only();
    assert_eq!((matrices.params[0].0.as_str(), others.params[0].0.as_str()), ("0.weight", "0.bias"));
    let before: Vec<Vec<f32>> = m.named_parameters().iter().map(|(_, p)| p.get().to_vec().unwrap()).collect();
    let mut o = Optimizer::with_groups(vec![matrices, others.lr_factor(10.0)], 0.1).unwrap();
    o.zero_grad().unwrap();
    for (_, p) in m.named_parameters() {
        p.get().sum().unwrap().backward().unwrap();
    }
    o.step().unwrap();
    let after: Vec<Vec<f32>> = m.named_parameters().iter().map(|(_, p)| p.get().to_vec().unwrap()).collect();
    for (b, a) in before[0].iter().zip(&after[0]) {
        assert!((a - (b - 0.1 * (1.0 + 0.5 * b))).abs() < 1e-6);
    }
    for (b, a) in before[1].iter().zip(&after[1]) {
        assert!((a - (b - 1.0)).abs() < 1e-6);
    }
    let lamb = Group::new(
        &m,
        OptimRule::Lamb {
            b1: 0.9,
            b2: 0.999,
            eps: 1e-6,
            wd: 0.1,
            bias_correction: true,
            max_norm: 10.0,
            adapt: true,
        },
    );
    let [a, b] = lamb.layer_wise();
    assert!(matches!(a.rule, OptimRule::Lamb { wd: 0.1, adapt: true, .. }));
    assert!(matches!(b.rule, OptimRule::Lamb { wd: 0.0, adapt: false, .. }));
}

#[test]
fn saved_states_continue_with_the_same_bits() {
    use trefoil_nn::checkpoint::{Checkpoint, Progress};
    use trefoil_nn::optim::LossScale;
    let d = cpu();
    let make = |dtype: DType| {
        let m = Sequential::new().push(Dense::new(&InitContext::new(&d, 1).dtype(dtype), 3, 2).unwrap());
        let o = Optimizer::nadam(&m, 0.1).unwrap().ema(0.9).unwrap();
        let o = o.master_weights().unwrap().loss_scaling(LossScale::new().interval(3), 256.0).unwrap();
        (m, o)
    };
    for dtype in [DType::F32, DType::F16] {
        let step = |m: &Sequential, o: &mut Optimizer| {
            o.zero_grad().unwrap();
            let x = Tensor::ones(&d, dtype, &[4, 3]).unwrap();
            let y = m.forward(&x).unwrap();
            let loss =
                trefoil_nn::MseLoss::default().forward(&y, &y.detach().add_scalar(1.0).unwrap()).unwrap();
            o.backward(&loss).unwrap();
            o.step().unwrap();
        };
        let (m, mut o) = make(dtype);
        (0..4).for_each(|_| step(&m, &mut o));
        let saved = Checkpoint::capture(&m, Some(&o), Progress::default()).unwrap();
        let (n, mut p) = make(dtype);
        saved.restore(&n, Some(&mut p)).unwrap();
        (0..4).for_each(|_| step(&m, &mut o));
        (0..4).for_each(|_| step(&n, &mut p));
        let end =
            |m: &Sequential, o: &Optimizer| Checkpoint::capture(m, Some(o), Progress::default()).unwrap();
        assert_eq!(end(&m, &o), end(&n, &p), "{dtype}");
        assert_eq!(p.loss_scale().unwrap().item::<f32>().unwrap(), 1024.0);
        assert_eq!(end(&m, &o).tensors.contains_key("optimizer.master.0.weight"), dtype == DType::F16);
    }
}

#[test]
fn groups_have_their_own_rate_and_decay() {
    let d = cpu();
    let p = Params::new(&d, &[&[1.0], &[1.0]]);
    let group = |i: usize, wd: f64, lr_factor: f64| Group {
        params: vec![(format!("p{i}"), p.0[i].clone())],
        rule: OptimRule::Sgd { wd },
        lr_factor,
    };
    let mut o = Optimizer::with_groups(vec![group(0, 0.0, 1.0), group(1, 1.0, 0.5)], 0.1).unwrap();
    for q in &p.0 {
        q.get().mul_scalar(2.0).unwrap().backward().unwrap();
    }
    o.step().unwrap();
    close(&[p.values()[0][0] as f64, p.values()[1][0] as f64], &[0.8, 1.0 - 0.05 * 3.0], 1e-6, "groups");
}

#[test]
fn tensors_follow_their_parameter_into_the_arena() {
    let d = cpu();
    let p = Params::new(&d, &[&[1.0, 2.0, 3.0], &[4.0]]);
    let held = p.0[0].get();
    let part = held.detach().narrow(0, 1, 2).unwrap();
    held.sum().unwrap().backward().unwrap();
    p.0[1].get().sum().unwrap().backward().unwrap();
    let mut o = Optimizer::sgd(&p, 0.5).unwrap();
    // Values and gradients moved along.
    assert_eq!(p.values(), [vec![1.0, 2.0, 3.0], vec![4.0]]);
    assert_eq!(held.grad().unwrap().to_vec::<f32>().unwrap(), [1.0; 3]);
    o.step().unwrap();
    assert_eq!(held.to_vec::<f32>().unwrap(), [0.5, 1.5, 2.5]);
    assert_eq!(part.to_vec::<f32>().unwrap(), [1.5, 2.5]);
    o.zero_grad().unwrap();
    assert_eq!(held.grad().unwrap().to_vec::<f32>().unwrap(), [0.0; 3]);
    p.0[0].get().sum().unwrap().backward().unwrap();
    p.zero_grad().unwrap();
    assert_eq!(held.grad().unwrap().to_vec::<f32>().unwrap(), [0.0; 3]);
    // A step is one launch, clearing another, however many parameters there are.
    let count = || trefoil::ops::core::CoreOps::counters(&d).launches;
    let n = count();
    o.zero_grad().unwrap();
    assert_eq!(count() - n, 1);
    p.0.iter().for_each(|q| q.get().sum().unwrap().backward().unwrap());
    let n = count();
    o.step().unwrap();
    assert_eq!(count() - n, 1);
}

#[test]
fn a_step_invalidates_older_graphs() {
    let p = Params::new(&cpu(), &[&[1.0, 2.0]]);
    let mut o = Optimizer::sgd(&p, 0.5).unwrap();
    let y = p.0[0].get().square().unwrap().sum().unwrap();
    p.0[0].get().sum().unwrap().backward().unwrap();
    o.step().unwrap();
    assert!(matches!(y.backward(), Err(NnError::SavedModified { .. })));
}

#[test]
fn ownership_is_checked() {
    let d = cpu();
    let p = Params::new(&d, &[&[1.0]]);
    let first = Optimizer::sgd(&p, 0.1).unwrap();
    assert!(matches!(Optimizer::sgd(&p, 0.1), Err(NnError::Param { .. })));
    drop(first);
    let mut o = Optimizer::sgd(&p, 0.1).unwrap();
    p.0[0].set(f32s(&d, &[9.0], &[1]));
    let e = o.step().unwrap_err();
    assert!(matches!(&e, NnError::Param { name, .. } if name == "p0"), "{e}");
    assert_eq!(o.steps(), 0);
    // A view of a larger tensor cannot move; an empty model has nothing to move.
    let whole = f32s(&d, &[1.0, 2.0], &[2]);
    let view = Params(vec![Param::new(whole.narrow(0, 0, 1).unwrap())]);
    assert!(matches!(Optimizer::sgd(&view, 0.1), Err(NnError::Param { .. })));
    assert!(Optimizer::sgd(&Sequential::new(), 0.1).is_err());
    let p = Params::new(&d, &[&[1.0]]);
    for lr in [-1.0, f64::NAN, f64::INFINITY] {
        assert!(Optimizer::sgd(&p, lr).is_err());
    }
    assert!(Optimizer::momentum(&p, 0.1, 1.0).is_err());
    assert!(Optimizer::adamw(&p, 0.1, -1.0).is_err());
    assert!(Optimizer::sgd(&p, 0.1).unwrap().set_lr(-1.0).is_err());
}

#[test]
fn tied_parameters_move_once() {
    let d = cpu();
    let t = Param::new(f32s(&d, &[1.0, -1.0], &[2]));
    let p = Params(vec![t.clone(), t]);
    let mut o = Optimizer::sgd(&p, 0.1).unwrap();
    p.0[0].get().add(&p.0[1].get()).unwrap().sum().unwrap().backward().unwrap();
    o.step().unwrap();
    assert_eq!(p.values(), [vec![0.8, -1.2], vec![0.8, -1.2]]);
}

#[test]
fn tied_leaves_collect_in_one_place() {
    for d in devices() {
        let t = f32s(&d, &[1.0, -1.0], &[2]);
        let p = Params(vec![Param::new(t.clone()), Param::new(t)]);
        let [a, b] = [[0.5, 2.0], [4.0, -8.0]].map(|x| f32s(&d, &x, &[2]));
        let product = |i: usize, x: &Tensor| p.0[i].get().mul(x).unwrap().sum().unwrap();
        // What the second has collected before is kept.
        product(1, &a).backward().unwrap();
        let o = Optimizer::sgd(&p, 0.1).unwrap();
        let collected = || p.0[0].get().grad().unwrap().to_vec::<f32>().unwrap();
        product(0, &b).backward().unwrap();
        assert_eq!(collected(), [4.5, -6.0], "{}", id(&d));
        for _ in 0..2 {
            o.zero_grad().unwrap();
            product(0, &a).add(&product(1, &b)).unwrap().backward().unwrap();
            assert_eq!(collected(), [4.5, -6.0], "{}", id(&d));
            product(1, &a).backward().unwrap();
            assert_eq!(collected(), [5.0, -4.0], "{}", id(&d));
        }
        // One of them alone is cleared: the memory is, for both.
        p.0[1].get().zero_grad().unwrap();
        product(0, &b).backward().unwrap();
        assert_eq!(collected(), [4.0, -8.0], "{}", id(&d));
    }
}

#[test]
fn parameters_of_several_dtypes() {
    let d = cpu();
    let cx = InitContext::new(&d, 1);
    let m = Sequential::new()
        .push(Dense::new(&cx, 2, 2).unwrap())
        .push(Dense::new(&cx.clone().dtype(DType::F64), 2, 2).unwrap());
    let mut o = Optimizer::adam(&m, 0.1).unwrap();
    let before: Vec<Vec<u8>> =
        m.named_parameters().iter().map(|(_, p)| p.get().to_bytes().unwrap()).collect();
    for (_, p) in m.named_parameters() {
        p.get().sum().unwrap().backward().unwrap();
    }
    o.step().unwrap();
    for ((n, p), old) in m.named_parameters().iter().zip(before) {
        assert_ne!(p.get().to_bytes().unwrap(), old, "{n}");
    }
    assert_eq!(o.state_tensors().unwrap().len(), 8);
}
