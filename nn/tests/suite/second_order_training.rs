//! Training runs by optimizers of second order: networks on every device, resuming, options that they refuse.

use crate::common::{cpu, devices};
use trefoil::DType;
use trefoil::ops::activation::Activation;
use trefoil::ops::core::CoreOps;
use trefoil_nn::data::{Dataset, ResidentSource, Targets};
use trefoil_nn::layers::{Dense, Sequential};
use trefoil_nn::optim::{ClosureOptimizer, Method, Stop};
use trefoil_nn::trainer::{Clip, Objective, TrainOptions};
use trefoil_nn::{Device, InitContext, MseLoss, NnError, Result, Trainer};

/// A curve at 32 points, and a network that fits it.
fn curve(d: &Device) -> (ResidentSource, Sequential) {
    let x: Vec<f32> = (0..32).map(|i| i as f32 / 16.0 - 1.0).collect();
    let y = x.iter().map(|x| (3.0 * x).sin()).collect();
    let data = Dataset::new(x, &[1], Targets::Values { data: y, shape: vec![1] }).unwrap();
    let cx = InitContext::new(d, 5);
    let model = Sequential::new()
        .push(Dense::new(&cx, 1, 6).unwrap().activation(Activation::Tanh))
        .push(Dense::new(&cx, 6, 1).unwrap());
    (ResidentSource::new(&data, d, DType::F32).unwrap(), model)
}

fn trainer<'a>(d: &Device, m: &'a Sequential, method: Method, options: TrainOptions) -> Result<Trainer<'a>> {
    let o = ClosureOptimizer::new(m, method)?;
    let objective = Objective::Regress(MseLoss::default());
    Trainer::with_closure(m, o, Stop::iterations(10).check_closure(true), objective, d, options)
}

#[test]
fn networks_are_trained_on_every_device() {
    for d in devices() {
        let methods =
            [Method::lbfgs(), Method::NewtonCg, Method::trust_region(), Method::levenberg_marquardt()];
        for method in methods {
            let (data, m) = curve(&d);
            let options = TrainOptions { epochs: 3, batch_size: 32, ..TrainOptions::default() };
            let mut t = trainer(&d, &m, method, options).unwrap();
            let report = t.fit(&data, None, &mut |_| true).unwrap();
            let losses: Vec<f64> = report.history.iter().map(|e| e.train_loss).collect();
            println!("{} on {}: {losses:?}", method.name(), CoreOps::id(&d));
            assert!(losses[0] > 0.1 && losses[2] < 0.15 * losses[0], "{}: {losses:?}", method.name());
            assert_eq!(report.history[2].step, 3);
        }
    }
}

#[test]
fn runs_by_closures_resume_and_refuse_what_does_not_fit() {
    let d = cpu();
    let folder = std::env::temp_dir().join(format!("trefoil-closures-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    let options = |epochs| TrainOptions {
        epochs,
        batch_size: 32,
        run: Some(folder.clone()),
        ..TrainOptions::default()
    };
    let (data, m) = curve(&d);
    let mut t = trainer(&d, &m, Method::lbfgs(), options(2)).unwrap();
    let first = t.fit(&data, None, &mut |_| true).unwrap();
    drop(t);
    let (data, m) = curve(&d);
    let mut t = trainer(&d, &m, Method::bfgs(), options(3)).unwrap();
    assert!(matches!(t.resume(), Err(NnError::ResumeMismatch { .. })));
    drop(t);
    let (_, m) = curve(&d);
    let mut t = trainer(&d, &m, Method::lbfgs(), options(3)).unwrap();
    assert!(t.resume().unwrap());
    assert!(t.optimizer().clip_grad_norm(1.0, 2.0).is_err(), "that optimizer has no parameters");
    let second = t.fit(&data, None, &mut |_| true).unwrap();
    assert_eq!(second.history.len(), 3);
    assert!(second.history[2].train_loss < first.history[1].train_loss);
    drop(t);
    std::fs::remove_dir_all(&folder).unwrap();

    let (_, m) = curve(&d);
    let plain = TrainOptions { batch_size: 32, epochs: 1, ..TrainOptions::default() };
    let refused = [
        ("accumulate", TrainOptions { accumulate: 2, ..plain.clone() }),
        ("clip", TrainOptions { clip: Some(Clip::Norm(1.0)), ..plain.clone() }),
        ("anomaly", TrainOptions { anomaly: Some(1), ..plain }),
    ];
    for (what, options) in refused {
        let e = trainer(&d, &m, Method::lbfgs(), options).unwrap_err().to_string();
        assert!(e.contains(what) && e.contains("lbfgs"), "{e}");
    }
}
