//! Layers that pick, join or repeat steps.

use std::slice::from_ref;

use super::{host, ids};
use crate::common::layers::{f64s, gradcheck_layer, refused, state_names};
use crate::common::{close, cpu, devices, f32s, gradcheck, tensor};
use trefoil::DType;
use trefoil::ops::activation::Activation;
use trefoil_nn::layers::*;
use trefoil_nn::{Layer, LayerExt, Tensor, sequence_lengths};

#[test]
fn input_and_masking() {
    let layer = Input::new(&[3, -1]).unwrap().dtype(DType::F64);
    let x = tensor(&cpu(), &[2, 3, 5], 1);
    assert_eq!(host(&layer.forward(&x).unwrap()), host(&x));
    refused(layer.forward(&x.transpose(1, 2).unwrap()), &["Input", "[3, -1]", "[2, 5, 3]"]);
    refused(layer.forward(&x.select(0, 0).unwrap()), &["Input"]);
    refused(layer.forward(&f32s(&cpu(), &[0.0; 6], &[1, 3, 2])), &["Input", "f64", "f32"]);
    refused(Input::new(&[]), &["Input"]);
    refused(Input::new(&[0]), &["Input"]);

    let layer = Masking::new(-1.0).unwrap();
    let v = [-1.0, -1.0, -1.0, 2.0, f64::NAN, 3.0, 4.0, 5.0];
    let x = Tensor::from_slice(&cpu(), &v, &[2, 2, 2]).unwrap().with_grad();
    let all = layer.forward_all(from_ref(&x)).unwrap();
    assert_eq!(all[1].to_vec::<u8>().unwrap(), [0, 1, 1, 1]);
    let y = host(&all[0]);
    assert!(y[4].is_nan());
    assert_eq!((&y[..4], &y[5..]), (&[0.0, 0.0, -1.0, 2.0][..], &[3.0, 4.0, 5.0][..]));
    all[0].sum().unwrap().backward().unwrap();
    assert_eq!(host(&x.grad().unwrap()), [0.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]);
    refused(layer.forward(&tensor(&cpu(), &[2, 2], 1)), &["Masking", "[B, T, ..]"]);
    refused(Masking::new(f64::NAN), &["Masking", "value"]);
}

#[test]
fn last_steps_and_parts() {
    let x = tensor(&cpu(), &[2, 3, 4], 1);
    gradcheck_layer("SequenceLast", &SequenceLast, from_ref(&x), |t| SequenceLast.forward(&t[0]));
    assert_eq!(host(&SequenceLast.forward(&x).unwrap()), host(&x.select(1, 2).unwrap()));
    assert_eq!(SequenceLast.forward(&x.select(0, 0).unwrap()).unwrap().shape(), [4]);
    let lengths = sequence_lengths(&cpu(), &[2, 3], 3).unwrap();
    gradcheck_layer("SequenceLast at lengths", &SequenceLast, from_ref(&x), |t| {
        SequenceLast.at_lengths(&t[0], &lengths)
    });
    let y = SequenceLast.forward_all(&[x.clone(), ids(&[2, 3], &[2])]).unwrap().remove(0);
    let want = [host(&x)[4..8].to_vec(), host(&x)[20..24].to_vec()].concat();
    assert_eq!((y.shape(), host(&y)), (&[2, 4][..], want));
    refused(SequenceLast.forward(&x.narrow(1, 0, 0).unwrap()), &["SequenceLast", "step"]);
    refused(SequenceLast.forward(&ids(&[1], &[1])), &["SequenceLast"]);
    refused(SequenceLast.at_lengths(&x, &ids(&[1], &[1])), &["SequenceLast", "lengths"]);

    let halves = Split::new(2, -1).unwrap();
    let parts = halves.forward_all(from_ref(&x)).unwrap();
    assert_eq!(parts.iter().map(|t| t.shape().to_vec()).collect::<Vec<_>>(), [[2, 3, 2], [2, 3, 2]]);
    assert_eq!(host(&parts[1]), host(&x.narrow(2, 2, 2).unwrap()));
    let stacked = halves.forward(&x).unwrap();
    assert_eq!(stacked.shape(), [2, 3, 2, 2]);
    assert_eq!(host(&stacked.select(2, 1).unwrap()), host(&parts[1]));
    let sizes = Split::sizes(&[1, 2], 1).unwrap();
    gradcheck(
        "Split",
        &[&[2, 3, 2]],
        |x| x,
        |t| {
            let p = sizes.split(&t[0])?;
            p[1].mul(&p[0])
        },
    );
    gradcheck_layer("Split, one part unused", &sizes, from_ref(&x), |t| Ok(sizes.split(&t[0])?.remove(1)));
    refused(Split::new(3, -1).unwrap().split(&x), &["Split", "4"]);
    refused(sizes.split(&x.narrow(1, 0, 2).unwrap()), &["Split", "sizes"]);
    refused(sizes.forward(&x), &["Split"]);
    refused(Split::new(3, 1).unwrap().forward(&x), &["Split", "last axis"]);
    refused(Split::new(0, 1), &["Split"]);
    refused(Split::sizes(&[], 1), &["Split"]);
}

#[test]
fn one_layer_for_all_steps() {
    let cx = f64s();
    let layer = TimeDistributed::new(Dense::new(&cx, 4, 2).unwrap()).activation(Activation::Tanh);
    let x = tensor(&cpu(), &[2, 3, 4], 1);
    gradcheck_layer("TimeDistributed", &layer, from_ref(&x), |t| layer.forward(&t[0]));
    assert_eq!(state_names(&layer), ["inner.weight", "inner.bias"]);
    // Batch statistics are those of all steps together.
    let norm = BatchNormalization::new(&cx, 4).unwrap().no_affine();
    let over = TimeDistributed::new(BatchNormalization::new(&cx, 4).unwrap().no_affine());
    close(
        &host(&over.forward(&x).unwrap()),
        &host(&norm.forward(&x.reshape(&[6, 4]).unwrap()).unwrap()),
        1e-12,
        "TimeDistributed of BatchNormalization",
    );
    over.eval();
    norm.eval();
    close(
        &host(&over.forward(&x).unwrap()),
        &host(&norm.forward(&x.reshape(&[6, 4]).unwrap()).unwrap()),
        1e-12,
        "in evaluation",
    );
    refused(layer.forward(&tensor(&cpu(), &[2, 4], 1)), &["TimeDistributed"]);
    refused(layer.forward(&x.narrow(1, 0, 0).unwrap()), &["TimeDistributed", "step"]);
    refused(TimeDistributed::new(Mean::new(&[0])).forward(&x), &["TimeDistributed", "6 items"]);
}

#[test]
fn means_and_log_variances() {
    let x = tensor(&cpu(), &[2, 3, 4], 1);
    for dims in [&[0isize][..], &[-1, 1], &[0, 1, 2]] {
        let (mean, var) = (Mean::new(dims), LogVariance::new(dims).eps(1e-3).unwrap().keepdim());
        gradcheck_layer("Mean", &mean, from_ref(&x), |t| mean.forward(&t[0]));
        gradcheck_layer("LogVariance", &var, from_ref(&x), |t| var.forward(&t[0]));
    }
    assert_eq!(Mean::new(&[0, 1, 2]).forward(&x).unwrap().shape(), [] as [usize; 0]);
    assert_eq!(Mean::new(&[1]).keepdim().forward(&x).unwrap().shape(), [2, 1, 4]);
    let v = host(&x);
    let mean = v.iter().sum::<f64>() / 24.0;
    close(&host(&Mean::new(&[0, 1, 2]).forward(&x).unwrap()), &[mean], 1e-12, "Mean");
    let var = v.iter().map(|a| (a - mean).powi(2)).sum::<f64>() / 24.0;
    close(
        &host(&LogVariance::new(&[0, 1, 2]).forward(&x).unwrap()),
        &[(var + 1e-8).ln()],
        1e-12,
        "LogVariance",
    );
    for d in devices() {
        // Constant rows far from 0: the logarithm of eps and no gradient.
        let x = f32s(&d, &[1e4; 8], &[2, 4]).with_grad();
        let y = LogVariance::new(&[1]).forward(&x).unwrap();
        for a in y.to_vec::<f32>().unwrap() {
            assert!((a - 1e-8f32.ln()).abs() < 1e-3, "{a}");
        }
        y.sum().unwrap().backward().unwrap();
        assert_eq!(x.grad().unwrap().to_vec::<f32>().unwrap(), [0.0; 8]);
    }
    refused(Mean::new(&[0, -3]).forward(&x), &["Mean", "distinct"]);
    refused(Mean::new(&[3]).forward(&x), &["Mean", "axis"]);
    refused(Mean::new(&[1]).forward(&x.narrow(1, 0, 0).unwrap()), &["Mean", "element"]);
    refused(LogVariance::new(&[0]).eps(0.0), &["LogVariance", "eps"]);
}
