//! Linear layers with few weights.

use std::collections::BTreeSet;

use trefoil::DType;
use trefoil::ops::activation::Activation;
use trefoil_nn::layers::SparseLinear;
use trefoil_nn::{Layer, LayerExt, Tensor};

use crate::common::everywhere::resident;
use crate::common::layers::{f64s, gradcheck_layer, refused, round_trip, state_names};
use crate::common::{close, cpu, tensor};

fn positions(l: &SparseLinear) -> Vec<(i64, i64)> {
    let t = l.state_dict().unwrap()["indices"].clone();
    let at = |row| t.select(0, row).unwrap().to_vec::<i64>().unwrap();
    at(0).into_iter().zip(at(1)).collect()
}

#[test]
fn gradients_at_stored_positions() {
    let (d, cx) = (cpu(), f64s());
    // Rows without weights begin at the edge of a relu.
    let new = |sparsity| SparseLinear::new(&cx, 5, 4, sparsity).unwrap().activation(Activation::Tanh);
    for l in [new(0.5), new(0.0).no_bias(), new(0.9)] {
        for shape in [&[5usize][..], &[3, 5], &[2, 3, 5]] {
            gradcheck_layer("sparse", &l, &[tensor(&d, shape, 1)], |t| l.forward(&t[0]));
        }
        let x = tensor(&d, &[3, 5], 2).with_grad();
        let step = || l.forward(&x).unwrap().sum().unwrap().backward().unwrap();
        step();
        resident("sparse", &d, step);
    }
    assert_eq!(new(0.5).forward(&tensor(&d, &[0, 5], 1)).unwrap().shape(), [0, 4]);
}

#[test]
fn few_weights_are_multiplied_by_their_indices() {
    let (d, cx) = (cpu(), f64s());
    let l = SparseLinear::new(&cx, 12, 10, 0.96).unwrap().activation(Activation::Tanh);
    let at = positions(&l);
    assert_eq!(at.len(), 4);
    let x = tensor(&d, &[3, 12], 1);
    gradcheck_layer("few weights", &l, std::slice::from_ref(&x), |t| l.forward(&t[0]));
    // The same as with the whole matrix.
    let state = l.state_dict().unwrap();
    let (values, mut w) = (state["values"].to_vec::<f64>().unwrap(), vec![0.0; 120]);
    at.iter().zip(values).for_each(|(&(r, c), v)| w[(12 * r + c) as usize] = v);
    let w = Tensor::from_slice(&d, &w, &[10, 12]).unwrap();
    let want = x.matmul(&w.t().unwrap()).unwrap().add(&state["bias"]).unwrap();
    let want = want.activation(Activation::Tanh).unwrap().to_vec::<f64>().unwrap();
    close(&l.forward(&x).unwrap().to_vec::<f64>().unwrap(), &want, 1e-12, "few weights");
}

#[test]
fn positions_are_different_and_those_of_the_seed() {
    let cx = f64s();
    let new = |sparsity| SparseLinear::new(&cx, 10, 20, sparsity).unwrap();
    for (sparsity, count) in [(0.9, 20), (0.75, 50), (0.0, 200), (0.999, 1)] {
        let at = positions(&new(sparsity));
        assert_eq!(at.len(), count, "{sparsity}");
        assert_eq!(at.iter().collect::<BTreeSet<_>>().len(), count, "{sparsity}");
        assert!(at.iter().all(|&(row, column)| (0..20).contains(&row) && (0..10).contains(&column)));
        assert!(at.is_sorted(), "row by row");
    }
    assert_eq!(positions(&new(0.9)), positions(&new(0.9)));
    let seeded = |seed| SparseLinear::with_seed(&cx, 10, 20, 0.9, seed).unwrap();
    assert_eq!(positions(&new(0.9)), positions(&seeded(42)));
    assert_ne!(positions(&new(0.9)), positions(&seeded(43)));
    let l = new(0.9);
    assert_eq!(state_names(&l), ["values", "indices", "bias"]);
    let trained: Vec<String> = l.named_parameters().into_iter().map(|(n, _)| n).collect();
    assert_eq!(trained, ["values", "bias"]);
    // Glorot and Bengio, by the sizes of the dense matrix.
    let values = l.state_dict().unwrap()["values"].to_vec::<f64>().unwrap();
    assert!(values.iter().all(|v| v.abs() <= 0.2f64.sqrt()) && values.iter().any(|v| v.abs() > 0.15));
    // A file brings its positions along.
    round_trip(&l, &seeded(7), &tensor(&cpu(), &[3, 10], 1));
}

#[test]
fn refusals() {
    let (d, cx) = (cpu(), f64s());
    for sparsity in [1.0, -0.1, f64::NAN] {
        refused(SparseLinear::new(&cx, 5, 4, sparsity), &["SparseLinear", "sparsity", "[0, 1)"]);
    }
    refused(SparseLinear::new(&cx, 0, 4, 0.5), &["SparseLinear", "in_features"]);
    refused(SparseLinear::new(&cx, usize::MAX, 4, 0.5), &["SparseLinear", "out_features"]);
    let l = SparseLinear::new(&cx, 5, 4, 0.8).unwrap();
    let x = tensor(&d, &[3, 5], 1);
    refused(l.forward(&tensor(&d, &[3, 4], 1)), &["SparseLinear", "`x`", "a last axis of 5"]);
    let mut state = l.state_dict().unwrap();
    let mut load = |at: [i64; 8]| {
        state.insert("indices".into(), Tensor::from_slice(&d, &at, &[2, 4]).unwrap());
        l.load_state_dict(&state).unwrap();
        l.forward(&x)
    };
    refused(load([0, 1, 0, 2, 3, 3, 3, 1]), &["SparseLinear", "indices", "(0, 3) twice"]);
    refused(load([0, 1, 4, 2, 3, 3, 3, 1]), &["4", "target"]);
    refused(load([0, 1, 3, 2, 3, 3, -1, 1]), &["-1", "source"]);
    assert_eq!(load([3, 1, 0, 2, 3, 3, 3, 1]).unwrap().dtype(), DType::F64);
}
