//! Training from each source.

use std::sync::Arc;

use crate::common::devices;
use trefoil::DType;
use trefoil_nn::data::transform::{Mixup, Normalize, OneHot, RandomCrop, RandomErase, RandomFlip};
use trefoil_nn::data::{Arrays, HostSource, Loader, Order, ResidentSource, Source, Transformed};
use trefoil_nn::layers::{Dense, Flatten, Sequential};
use trefoil_nn::trainer::{Objective, TrainOptions};
use trefoil_nn::{CrossEntropyLoss, Device, HostTensor, InitContext, LayerExt, Optimizer, Trainer};

/// Classes told by the brightest quarter of an image `[1, 6, 6]`.
fn quarters(n: usize) -> Arrays {
    let noise = crate::common::noise(5, n * 36);
    let pixels: Vec<u8> = (0..n * 36)
        .map(|i| {
            let (class, h, w) = (i / 36 % 4, i / 6 % 6, i % 6);
            let lit = (h >= 3, w >= 3) == (class >= 2, class % 2 == 1);
            (100.0 + 50.0 * noise[i] + if lit { 80.0 } else { 0.0 }) as u8
        })
        .collect();
    let y: Vec<i64> = (0..n as i64).map(|i| i % 4).collect();
    let x = HostTensor::new(DType::U8, &[n, 1, 6, 6], pixels).unwrap();
    Arrays::new(x, HostTensor::from_slice(&y, &[n]).unwrap()).unwrap()
}

fn classifier(d: &Device, inputs: usize) -> Sequential {
    Sequential::new().push(Flatten::default()).push(Dense::new(&InitContext::new(d, 3), inputs, 4).unwrap())
}

/// Trains on a source; the weights' bytes and the last accuracy.
fn fit(d: &Device, s: &dyn Source, epochs: u64) -> (Vec<u8>, Option<f64>) {
    let m = classifier(d, 36);
    let o = Optimizer::adam(&m, 0.05).unwrap();
    let options = TrainOptions { epochs, batch_size: 10, seed: 4, ..TrainOptions::default() };
    let mut t = Trainer::new(&m, o, Objective::Classify(CrossEntropyLoss::default()), d, options).unwrap();
    let report = t.fit(s, None, &mut |_| true).unwrap();
    let bytes = m.state_dict().unwrap().values().flat_map(|t| t.to_bytes().unwrap()).collect();
    (bytes, report.history.last().unwrap().train_accuracy)
}

#[test]
fn a_trainer_learns_the_same_from_every_source() {
    let data = quarters(64);
    for d in devices() {
        let norm = || Normalize::new(&d, DType::F32, &[120.0], &[50.0]).unwrap();
        let resident = ResidentSource::from_items(&data, &d, DType::F32).unwrap();
        let (want, accuracy) = fit(&d, &Transformed::new(resident, 1).then(norm()), 8);
        assert!(accuracy.unwrap() > 0.95, "{accuracy:?}");
        for threads in [1, 3] {
            let loader = Loader::new(Arc::new(data.clone()), &d).threads(threads);
            assert!(fit(&d, &Transformed::new(loader, 1).then(norm()), 8).0 == want, "{threads} threads");
        }
        let host = HostSource::new(Arc::new(data.dataset(1.0).unwrap()), &d, DType::F32, 3);
        assert!(fit(&d, &Transformed::new(host, 1).then(norm()), 8).0 == want);
    }
}

#[test]
fn steps_on_transformed_resident_data_transfer_and_allocate_nothing() {
    for d in devices() {
        let resident = ResidentSource::from_items(&quarters(60), &d, DType::F32).unwrap();
        let data = Transformed::new(resident, 1)
            .then(Normalize::new(&d, DType::F32, &[120.0], &[50.0]).unwrap())
            .then(RandomCrop::new((5, 5), 1).unwrap())
            .then(RandomFlip::horizontal(0.5).unwrap())
            .then(RandomErase::default())
            .then(OneHot { classes: 4, dtype: DType::F32 })
            .then(Mixup::new(0.2).unwrap());
        let m = classifier(&d, 25);
        let o = Optimizer::adam(&m, 0.05).unwrap();
        let objective = Objective::Classify(CrossEntropyLoss::default());
        let mut t = Trainer::new(&m, o, objective, &d, TrainOptions::default()).unwrap();
        let mut warm = None;
        for (i, b) in data.epoch(Some(Order { seed: 1, epoch: 0 }), 10).unwrap().enumerate() {
            let b = b.unwrap();
            t.step(&b.x, &b.y).unwrap();
            // The third step is recorded and keeps its memory; the fourth finds other blocks for what is made beside it.
            if i == 3 {
                warm = Some(d.counters());
            }
        }
        let quiet =
            |c: trefoil::ops::core::Counters| (c.uploads, c.downloads, c.syncs, c.allocations, c.compiles);
        assert_eq!(quiet(warm.unwrap()), quiet(d.counters()), "on {}", crate::common::id(&d));
    }
}
