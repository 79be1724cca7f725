//! Auxiliary losses and learning rules of layers: who collects them, and what the trainer does with them.

use trefoil::DType;
use trefoil_nn::layers::{Checkpointed, Dense, Sequential};
use trefoil_nn::trainer::{Objective, TrainOptions};
use trefoil_nn::{
    Criterion, InitContext, Layer, LayerExt, LocalLearning, Model, MseLoss, Optimizer, Param, Result, Tensor,
    Trainer, Visitor, auxiliary,
};

use crate::common::layers::refused;
use crate::common::{close, cpu, devices, f32s, id, tensor};

/// A dense layer whose weights should be small and whose outputs should sum to 0.
#[derive(Debug)]
struct Small(Dense);

impl Layer for Small {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let y = self.0.forward(x)?;
        auxiliary::add(|| y.mean()?.square()?.mul_scalar(0.5))?;
        auxiliary::add(|| self.0.weight().unwrap().get().square()?.sum()?.mul_scalar(0.1))?;
        Ok(y)
    }
    fn visit(&self, v: &mut Visitor<'_>) {
        v.flattened(&self.0);
    }
}

fn small(cx: &InitContext) -> Small {
    Small(Dense::new(cx, 3, 2).unwrap())
}

/// Loss and gradients of two layers with terms.
fn gradients(model: &dyn Layer, x: &Tensor, y: &Tensor) -> Vec<f64> {
    let loss = model.train_batch(x, y, &MseLoss::default()).unwrap();
    let mut all = loss.to_vec::<f64>().unwrap();
    model.parameters().iter().for_each(|p| all.extend(p.get().grad().unwrap().to_vec::<f64>().unwrap()));
    all
}

#[test]
fn terms_join_the_loss_also_through_checkpoints() {
    let cx = InitContext::new(&cpu(), 3).dtype(DType::F64);
    let (x, y) = (tensor(&cpu(), &[4, 3], 1), tensor(&cpu(), &[4, 2], 2));
    let first = || Dense::new(&InitContext::new(&cpu(), 8).dtype(DType::F64), 3, 3).unwrap();
    let plain = Sequential::new().push(first()).push(small(&cx));
    let again = InitContext::new(&cpu(), 3).dtype(DType::F64);
    let checkpointed = Checkpointed::new(Sequential::new().push(first()).push(small(&again)));
    let got = gradients(&plain, &x, &y);
    assert_eq!(got, gradients(&checkpointed, &x, &y));

    // The same by hand.
    plain.zero_grad().unwrap();
    let out = plain.forward(&x).unwrap();
    assert!(!auxiliary::is_collecting());
    let w = plain.named_parameters().iter().find(|(n, _)| n == "1.weight").unwrap().1.get();
    let terms = [
        out.mean().unwrap().square().unwrap().mul_scalar(0.5).unwrap(),
        w.square().unwrap().sum().unwrap().mul_scalar(0.1).unwrap(),
    ];
    let loss = auxiliary::added_to(MseLoss::default().loss(&out, &y).unwrap(), &terms).unwrap();
    loss.backward().unwrap();
    let mut want = loss.to_vec::<f64>().unwrap();
    plain.parameters().iter().for_each(|p| want.extend(p.get().grad().unwrap().to_vec::<f64>().unwrap()));
    close(&got, &want, 1e-12, "loss and gradients with terms");
}

#[test]
fn terms_belong_to_the_pass_that_collects_them() {
    let cx = InitContext::new(&cpu(), 3);
    let (layer, x) = (small(&cx), Tensor::ones(&cpu(), DType::F32, &[2, 3]).unwrap());
    let (inner, outer) = auxiliary::collect(|| {
        layer.forward(&x)?;
        Ok(auxiliary::collect(|| layer.forward(&x))?.1)
    })
    .unwrap();
    assert_eq!((inner.len(), outer.len()), (2, 2));
    let failed = auxiliary::collect(|| layer.forward(&Tensor::ones(&cpu(), DType::F32, &[2, 4])?));
    assert!(failed.is_err() && !auxiliary::is_collecting());
    refused(auxiliary::collect(|| auxiliary::add(|| Ok(x.clone()))), &["term", "float scalar", "[2, 3]"]);
}

/// A running mean of what passes: learns without gradients.
#[derive(Debug)]
struct Mean {
    mean: Param,
    seen: std::sync::Mutex<Option<Tensor>>,
}

impl Layer for Mean {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        *self.seen.lock().unwrap() = Some(x.detach());
        Ok(x.clone())
    }
    fn visit(&self, v: &mut Visitor<'_>) {
        v.buffer("mean", &self.mean);
    }
    fn local_learning(&self) -> Option<&dyn LocalLearning> {
        Some(self)
    }
}

impl LocalLearning for Mean {
    fn learn(&self) -> Result<()> {
        match self.seen.lock().unwrap().take() {
            Some(x) => {
                let mean = self.mean.get();
                mean.assign(&mean.add(&x.mean()?)?)
            }
            None => Ok(()),
        }
    }
}

#[test]
fn the_trainer_adds_terms_and_lets_layers_learn_once_per_batch() {
    for d in devices() {
        let cx = InitContext::new(&d, 3);
        let mean = Mean { mean: Param::new(Tensor::zeros(&d, DType::F32, &[]).unwrap()), seen: None.into() };
        let model = Sequential::new().push(Checkpointed::new(small(&cx))).push(Sequential::new().push(mean));
        let x: Vec<f32> = (0..24).map(|i| i as f32 / 8.0).collect();
        let (x, y) = (f32s(&d, &x, &[8, 3]), Tensor::zeros(&d, DType::F32, &[8, 2]).unwrap());
        let optimizer = Optimizer::sgd(&model, 0.0).unwrap();
        let options = TrainOptions { epochs: 2, batch_size: 4, ..TrainOptions::default() };
        let objective = Objective::Regress(MseLoss::default());
        let mut trainer = Trainer::new(&model, optimizer, objective, &d, options).unwrap();
        let loss = trainer.step(&x, &y).unwrap().0.item::<f32>().unwrap();
        let out = model.forward(&x).unwrap();
        let w = model.named_parameters()[0].1.get();
        let want = MseLoss::default().loss(&out, &y).unwrap().item::<f32>().unwrap()
            + 0.5 * out.mean().unwrap().square().unwrap().item::<f32>().unwrap()
            + 0.1 * w.square().unwrap().sum().unwrap().item::<f32>().unwrap();
        assert!((loss - want).abs() < 1e-5 * want, "{}: {loss} {want}", id(&d));
        let learned = || {
            model.named_state().iter().find(|(n, _)| n == "1.0.mean").unwrap().1.get().item::<f32>().unwrap()
        };
        let mean = out.mean().unwrap().item::<f32>().unwrap();
        assert!((learned() - mean).abs() < 1e-5, "{}: {} {mean}", id(&d), learned());
        model.learn().unwrap();
        assert!((learned() - 2.0 * mean).abs() < 1e-5, "{}", id(&d));
        model.learn().unwrap();
        assert!((learned() - 2.0 * mean).abs() < 1e-5, "{}", id(&d));
    }
}
