//! Labels and ids out of range: the error names the row, and the device goes on.

use crate::common::{cpu, devices, f32s, id, noise};
use trefoil::DType;
use trefoil_nn::data::{Dataset, ResidentSource, Targets};
use trefoil_nn::layers::{Dense, Embedding, Sequential, TransformerConfig, TransformerEncoder};
use trefoil_nn::losses::{MulticlassFocalLoss, NllLoss};
use trefoil_nn::trainer::{Objective, TrainOptions};
use trefoil_nn::{
    CrossEntropyLoss, InitContext, Layer, LayerExt, LinearCrossEntropyLoss, NnError, Optimizer, Result,
    Tensor, Trainer,
};

fn found(r: Result<f32>) -> (&'static str, String, i64, usize) {
    match r {
        Err(NnError::OutOfRange { op, place, index, limit }) => (op, place, index, limit),
        other => panic!("{other:?}"),
    }
}

#[test]
fn losses_and_tables_name_the_row() {
    for d in devices() {
        let ids = |v: &[i64], shape: &[usize]| Tensor::from_slice(&d, v, shape).unwrap();
        let x = f32s(&d, &[0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2], &[4, 3]).with_grad();
        let entropy = CrossEntropyLoss::default();
        let labels = ids(&[0, -100, 5, 7], &[4]);
        let loss = entropy.forward(&x, &labels).unwrap();
        assert_eq!(found(loss.item::<f32>()), ("cross_entropy", "row 2".into(), 5, 3), "on {}", id(&d));
        let text = entropy.forward(&x, &labels).unwrap().item::<f32>().unwrap_err().to_string();
        assert!(text.contains("index 5 in row 2") && text.contains("0..3"), "{text}");
        // The report is made once; then everything works.
        let good = ids(&[0, 1, 2, -100], &[4]);
        entropy.forward(&x, &good).unwrap().item::<f32>().unwrap();

        let wide = x.reshape(&[2, 3, 2]).unwrap();
        let labels = ids(&[0, 1, 2, -1], &[2, 2]);
        let loss = entropy.forward(&wide, &labels).unwrap();
        assert_eq!(found(loss.item()), ("cross_entropy", "row 1, position 1".into(), -1, 3));
        let labels = ids(&[0, 1, 3, 1], &[4]);
        let loss = NllLoss::default().forward(&x, &labels).unwrap();
        assert_eq!(found(loss.item()), ("nll_loss", "row 2".into(), 3, 3));
        let loss = MulticlassFocalLoss::default().forward(&x, &labels).unwrap();
        assert_eq!(found(loss.item()), ("multiclass_focal_loss", "row 2".into(), 3, 3));
        let loss = LinearCrossEntropyLoss::default().forward(
            &x,
            &x.detach().narrow(0, 0, 3).unwrap(),
            None,
            &labels,
        );
        assert_eq!(found(loss.unwrap().item()), ("linear_cross_entropy", "row 2".into(), 3, 3));
        let table = Embedding::new(&InitContext::new(&d, 1), 3, 2).unwrap();
        let tokens = ids(&[0, 1, 2, 1, 9, 0], &[2, 3]);
        let y = table.forward(&tokens).unwrap().sum().unwrap();
        assert_eq!(found(y.item()), ("embedding", "row 1, position 1".into(), 9, 3));
        let y = table.forward(&tokens).unwrap().sum().unwrap();
        let text = y.item::<f32>().unwrap_err().to_string();
        assert_eq!(text, "embedding: id 9 in row 1, position 1 is out of range: num_embeddings is 3");
        // Indices that are gone cannot be named; the report stays.
        drop((labels, tokens));
        let loss = entropy.forward(&x.detach(), &ids(&[0, 1, 2, 4], &[4])).unwrap();
        match loss.item::<f32>() {
            Err(NnError::Gpu(trefoil::GpuError::IndexOutOfRange { .. })) => {}
            other => panic!("{other:?}"),
        }
    }
}

/// 30 rows, of which row 23 has a label that no class has.
fn mislabelled() -> Dataset {
    let x: Vec<f32> = noise(5, 60).iter().map(|&v| v as f32).collect();
    let y = (0..30).map(|i| if i == 23 { 7 } else { i % 3 }).collect();
    Dataset::new(x, &[2], Targets::Classes(y)).unwrap()
}

#[test]
fn trainers_name_the_row_of_the_data() {
    for d in devices() {
        let data = ResidentSource::new(&mislabelled(), &d, DType::F32).unwrap();
        let clean = Dataset::new(vec![0.1; 6], &[2], Targets::Classes(vec![0, 1, 2])).unwrap();
        let clean = ResidentSource::new(&clean, &d, DType::F32).unwrap();
        let objectives = || {
            [Objective::Classify(CrossEntropyLoss::default()), Objective::custom(CrossEntropyLoss::default())]
        };
        for objective in objectives() {
            let m = Sequential::new().push(Dense::new(&InitContext::new(&d, 3), 2, 3).unwrap());
            let options = || TrainOptions { batch_size: 8, epochs: 1, shuffle: true, ..Default::default() };
            let o = Optimizer::adam(&m, 0.01).unwrap();
            let mut t = Trainer::new(&m, o, objective.clone(), &d, options()).unwrap();
            let e = t.fit(&data, None, &mut |_| true).unwrap_err().to_string();
            assert!(e.contains("index 7 in row 23 of the labels of the training data"), "on {}: {e}", id(&d));
            let e = t.evaluate(&data).unwrap_err().to_string();
            assert!(e.contains("index 7 in row 23 of the labels of the test data"), "on {}: {e}", id(&d));
            drop(t);
            let o = Optimizer::adam(&m, 0.01).unwrap();
            let mut t = Trainer::new(&m, o, objective, &d, options()).unwrap();
            t.fit(&clean, None, &mut |_| true).unwrap();
        }
    }
}

#[test]
fn anomalies_name_the_part_of_a_block() {
    let d = cpu();
    let cx = InitContext::new(&d, 3);
    let config = TransformerConfig::new(4, 2).d_ff(8).dropout(0.0);
    let m = Sequential::new()
        .push(trefoil_nn::layers::Reshape::new(&[1, 4]).unwrap())
        .named("block", TransformerEncoder::new(&cx, &config).unwrap())
        .push(trefoil_nn::layers::Flatten::default())
        .push(Dense::new(&cx, 4, 3).unwrap());
    let (_, bias) = m.named_parameters().into_iter().find(|(n, _)| n == "block.linear2.bias").unwrap();
    bias.get().detach().fill(f64::INFINITY).unwrap();
    let x: Vec<f32> = noise(5, 32).iter().map(|&v| v as f32).collect();
    let data = Dataset::new(x, &[4], Targets::Classes(vec![0, 1, 2, 0, 1, 2, 0, 1])).unwrap();
    let data = ResidentSource::new(&data, &d, DType::F32).unwrap();
    let options = TrainOptions { batch_size: 4, anomaly: Some(1), ..Default::default() };
    let o = Optimizer::adam(&m, 0.01).unwrap();
    let objective = Objective::Classify(CrossEntropyLoss::default());
    let mut t = Trainer::new(&m, o, objective, &d, options).unwrap();
    match t.fit(&data, None, &mut |_| true).unwrap_err() {
        NnError::Anomaly { step: 1, origin, .. } => {
            assert_eq!(origin, "layer `block.linear2`, operation `linear`");
        }
        other => panic!("{other:?}"),
    }
}
