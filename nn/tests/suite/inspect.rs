//! Activations and gradients by the names of their layers.

use crate::common::everywhere::resident;
use crate::common::{devices, f32s, id};
use trefoil::DType;
use trefoil::ops::activation::Activation;
use trefoil_nn::inspect::{self, Inspection, Inspector, Quantity, Stats, Table};
use trefoil_nn::layers::*;
use trefoil_nn::trainer::{Objective, TrainOptions};
use trefoil_nn::{Device, InitContext, Layer, LayerExt, MseLoss, Optimizer, Tensor, Trainer};

fn model(d: &Device) -> Sequential {
    let cx = InitContext::new(d, 1);
    let block = Sequential::new()
        .named("fc", Dense::new(&cx, 2, 3).unwrap().activation(Activation::Relu))
        .named("drop", Dropout::new(&cx, 0.0).unwrap());
    Sequential::new().named("block", block).named("head", Dense::new(&cx, 3, 1).unwrap())
}

fn names(list: &[Inspection]) -> Vec<(&str, Quantity)> {
    list.iter().map(|i| (i.name.as_str(), i.quantity)).collect()
}

#[test]
fn statistics() {
    for d in devices() {
        let x = f32s(&d, &[1., 0., -3., 0., 2., 6.], &[2, 3]);
        for t in [x.clone(), x.t().unwrap(), x.to_dtype(DType::F16).unwrap()] {
            let s = Stats::of(&t).unwrap();
            assert!((s.mean - 1.0).abs() < 1e-6 && (s.std - (44.0f64 / 6.0).sqrt()).abs() < 1e-5, "{s:?}");
            assert_eq!((s.min, s.max), (-3.0, 6.0));
            assert!((s.zeros - 1.0 / 3.0).abs() < 1e-6 && s.nan == 0.0 && s.infinite == 0.0);
        }
        let bad = Stats::of(&f32s(&d, &[f32::NAN, 1.0, f32::INFINITY, 0.0], &[4])).unwrap();
        assert!(bad.mean.is_nan() && bad.min.is_nan() && bad.max.is_nan());
        assert_eq!((bad.zeros, bad.nan, bad.infinite), (0.25, 0.25, 0.25));
        let ints = Stats::of(&Tensor::from_slice(&d, &[1i64, 3], &[2]).unwrap()).unwrap();
        assert_eq!((ints.mean, ints.std, ints.max), (2.0, 1.0, 3.0));
        assert!(Stats::of(&Tensor::zeros(&d, DType::F32, &[0]).unwrap()).unwrap().mean.is_nan());
    }
}

#[test]
fn activations_and_gradients_by_layer() {
    for d in devices() {
        let model = model(&d);
        let x = f32s(&d, &[1., -2., 0.5, 3.], &[2, 2]);
        let inspector = Inspector::new();
        let y = resident("watching", &d, || {
            let y = inspector.forward(&model, &x).unwrap();
            y.sum().unwrap().backward().unwrap();
            y
        });
        let seen = inspector.read().unwrap();
        use Quantity::{Activation as A, ActivationGradient as G};
        let want = [
            ("block.fc", A),
            ("block.fc", G),
            ("block.drop", A),
            ("block.drop", G),
            ("block", A),
            ("block", G),
            ("head", A),
            ("head", G),
            ("", A),
            ("", G),
        ];
        assert_eq!(names(&seen), want, "{}", id(&d));
        assert_eq!((seen[0].kind.as_str(), seen[0].shape.as_slice()), ("Dense", &[2usize, 3][..]));
        // The statistics are those of the tensors.
        let out: Vec<f32> = y.to_vec().unwrap();
        let mean = f64::from(out[0] + out[1]) / 2.0;
        assert!((seen[8].stats.mean - mean).abs() < 1e-6, "{:?}", seen[8]);
        assert_eq!((seen[9].stats.min, seen[9].stats.max), (1.0, 1.0), "the gradient of a sum");
        let hidden = model.get(0).unwrap().forward(&x).unwrap();
        assert_eq!(seen[0].stats, Stats::of(&hidden).unwrap());
        let w = model.named_parameters().into_iter().find(|(n, _)| n == "head.weight").unwrap().1;
        let g = Stats::of(&w.get()).unwrap();
        assert!((seen[5].stats.mean - g.mean).abs() < 1e-6, "the gradient of the head's input is its weight");

        let params = inspect::parameters(&model).unwrap();
        use Quantity::{Parameter as P, ParameterGradient as Q};
        assert_eq!(
            names(&params)[..4],
            [("block.fc.weight", P), ("block.fc.weight", Q), ("block.fc.bias", P), ("block.fc.bias", Q)]
        );
        assert_eq!(params.last().map(|i| i.stats.mean), Some(2.0), "the head's bias sees two rows");
        model.zero_grad().unwrap();
        assert_eq!(inspect::parameters(&model).unwrap().len(), 4);

        let table = Table(&seen).to_string();
        assert!(table.contains("block.fc (Dense)") && table.contains("gradient of activation"), "{table}");
        assert_eq!(table.lines().count(), 1 + seen.len());
        // Without a backward there are no gradients; the last pass counts; a filter chooses; and all can be forgotten.
        inspector.forward(&model, &x).unwrap();
        assert_eq!(inspector.read().unwrap().len(), 5);
        let only = Inspector::new().only(|name| name.starts_with("block."));
        only.forward(&model, &x).unwrap();
        assert_eq!(names(&only.read().unwrap()), [("block.fc", A), ("block.drop", A)]);
        only.clear();
        assert!(only.read().unwrap().is_empty());
        // Outside of a watch nothing is seen.
        model.forward(&x).unwrap();
        assert!(only.read().unwrap().is_empty());
    }
}

#[test]
fn a_training_step_under_watch() {
    for d in devices() {
        let model = model(&d);
        let optimizer = Optimizer::sgd(&model, 0.1).unwrap();
        // Beside the trainer's own observer of anomalies.
        let options = TrainOptions { anomaly: Some(1), ..TrainOptions::default() };
        let mut trainer =
            Trainer::new(&model, optimizer, Objective::custom(MseLoss::default()), &d, options).unwrap();
        let (x, y) = (f32s(&d, &[1., -2.], &[1, 2]), f32s(&d, &[1.0], &[1, 1]));
        let inspector = Inspector::new();
        inspector.watch(|| trainer.step(&x, &y)).unwrap();
        let seen = inspector.read().unwrap();
        assert!(names(&seen).contains(&("head", Quantity::ActivationGradient)), "{:?}", names(&seen));
        assert!(seen.iter().all(|i| i.stats.nan == 0.0));
        // A value that is not finite shows where it appears first.
        let inf = f32s(&d, &[f32::INFINITY, 0.0], &[1, 2]);
        assert!(inspector.watch(|| trainer.step(&inf, &y)).is_err());
        let bad = inspector.read().unwrap();
        let first = bad.iter().find(|i| i.stats.nan + i.stats.infinite > 0.0).unwrap();
        assert_eq!(first.name, "block.fc");
    }
}
