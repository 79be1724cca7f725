//! Steps on the rows that a batch used, and clipping by the norms of the weights.

use trefoil::DType;
use trefoil_nn::autograd::no_grad;
use trefoil_nn::layers::{Dense, Embedding};
use trefoil_nn::optim::{ClipAdaptive, OptimRule, SparseOptimizer};
use trefoil_nn::{Init, InitContext, Layer, LayerExt, Optimizer, Param, Tensor, Visitor};

use crate::common::everywhere::resident;
use crate::common::layers::refused;
use crate::common::{close, cpu, devices, f32s, id, noise};

/// A model of one table.
#[derive(Debug)]
struct Table(Param);

impl Layer for Table {
    fn forward(&self, x: &Tensor) -> trefoil_nn::Result<Tensor> {
        self.0.get().index_select(0, x)
    }
    fn visit(&self, v: &mut Visitor<'_>) {
        v.param("table", &self.0);
    }
}

fn wide(t: &Tensor) -> Vec<f64> {
    t.to_vec::<f32>().unwrap().into_iter().map(f64::from).collect()
}

#[test]
fn rows_that_were_used_step_as_in_a_dense_step() {
    for d in devices() {
        for rule in [
            OptimRule::Sgd { wd: 0.1 },
            OptimRule::Adam { b1: 0.9, b2: 0.99, eps: 1e-8, wd: 0.0 },
            OptimRule::AdamW { b1: 0.9, b2: 0.99, eps: 1e-8, wd: 0.1 },
        ] {
            let data: Vec<f32> = noise(1, 15).iter().map(|&v| v as f32).collect();
            let (dense, sparse) = (f32s(&d, &data, &[5, 3]), Param::buffer(f32s(&d, &data, &[5, 3])));
            let model = Table(Param::new(dense));
            let mut whole = Optimizer::new(&model, rule, 0.1).unwrap();
            let mut rows = SparseOptimizer::new(&sparse, rule, 0.1).unwrap();
            // Every row is used in every step, rows 1 and 4 twice: then both are the same.
            let ids = Tensor::from_slice(&d, &[4i64, 1, 0, 2, 1, 3, 4], &[7]).unwrap();
            for step in 0..3 {
                let weights =
                    f32s(&d, &noise(2 + step, 21).iter().map(|&v| v as f32).collect::<Vec<_>>(), &[7, 3]);
                whole.zero_grad().unwrap();
                model.forward(&ids).unwrap().mul(&weights).unwrap().sum().unwrap().backward().unwrap();
                whole.step().unwrap();
                rows.step(&ids, &weights).unwrap();
            }
            let (got, want) = (wide(&sparse.get()), wide(&model.0.get()));
            close(&got, &want, 1e-5, &format!("{rule:?} on {}", id(&d)));
            assert_eq!((rows.steps(), rows.state_tensors().len()), (3, rule.states().len()));
        }
    }
}

#[test]
fn other_rows_stay() {
    for d in devices() {
        let table = Param::buffer(Tensor::ones(&d, DType::F32, &[4, 2]).unwrap());
        let rule = OptimRule::AdamW { b1: 0.9, b2: 0.99, eps: 1e-8, wd: 0.5 };
        let mut o = SparseOptimizer::new(&table, rule, 0.1).unwrap();
        let ids = Tensor::from_slice(&d, &[2i32], &[1]).unwrap();
        o.step(&ids, &f32s(&d, &[1., -1.], &[1, 2])).unwrap();
        let w = table.get().to_vec::<f32>().unwrap();
        assert_eq!((&w[..4], &w[6..]), (&[1.0; 4][..], &[1.0; 2][..]), "on {}", id(&d));
        assert!(w[4] < 0.9 && w[5] > 1.0, "{w:?}");
        assert_eq!(o.state_tensors()[0].1.to_vec::<f32>().unwrap()[..4], [0.0; 4]);
        // What does not fit changes nothing and counts no step.
        assert!(o.step(&ids, &f32s(&d, &[1., 1., 1.], &[1, 3])).is_err());
        assert_eq!((o.steps(), table.get().to_vec::<f32>().unwrap()), (1, w));
        // An id out of range is reported and changes no row.
        let bad = Tensor::from_slice(&d, &[9i32], &[1]).unwrap();
        o.step(&bad, &f32s(&d, &[1., 1.], &[1, 2])).unwrap();
        assert!(table.get().to_vec::<f32>().is_err(), "on {}", id(&d));
        assert!(SparseOptimizer::new(&table, rule, -1.0).is_err());
        assert!(SparseOptimizer::new(&Param::buffer(ids), rule, 0.1).is_err());
        let whole = OptimRule::Sophia { b1: 0.9, gamma: 0.1, eps: 1e-6, wd: 0.0 };
        let fresh = Param::buffer(Tensor::ones(&d, DType::F32, &[4, 2]).unwrap());
        let one = Tensor::from_slice(&d, &[0i32], &[1]).unwrap();
        let e = SparseOptimizer::new(&fresh, whole, 0.1).unwrap().step(&one, &f32s(&d, &[1., 1.], &[1, 2]));
        assert!(e.unwrap_err().to_string().contains("sparse form"));
    }
}

#[test]
fn gradients_are_clipped_by_the_norms_of_their_weights() {
    for d in devices() {
        let model = Dense::new(&InitContext::new(&d, 1), 3, 2).unwrap();
        let model = model.init(Init::Constant(0.5), Init::Constant(0.25)).unwrap();
        let o = Optimizer::adam(&model, 0.1).unwrap();
        let x = f32s(&d, &[3., 4., 0.], &[1, 3]);
        let y = model.forward(&x).unwrap();
        y.mul(&f32s(&d, &[1., 0.001], &[1, 2])).unwrap().sum().unwrap().backward().unwrap();
        o.clip_grad_adaptive(&ClipAdaptive::new(0.1)).unwrap();
        let (w, b) =
            (model.weight().unwrap().get().grad().unwrap(), model.bias().unwrap().get().grad().unwrap());
        // The first row's norm of 5 becomes a tenth of that of its weights; the second's is small enough.
        let unit = 0.1 * (3.0f64 * 0.25).sqrt() / 5.0;
        close(
            &wide(&w),
            &[3. * unit, 4. * unit, 0., 0.003, 0.004, 0.],
            1e-6,
            &format!("weight on {}", id(&d)),
        );
        let bias = 0.1 * 0.125f64.sqrt() / 1.000001f64.sqrt();
        close(&wide(&b), &[bias, 0.001 * bias], 1e-6, "a vector is one unit");
        assert!(o.clip_grad_adaptive(&ClipAdaptive::new(-1.0)).is_err());
    }
}

#[test]
fn an_embedding_hands_over_the_gradients_of_its_rows() {
    for d in devices() {
        let cx = || InitContext::new(&d, 4);
        let dense = Embedding::new(&cx(), 6, 3).unwrap().padding_idx(-1).unwrap().scale_by_sqrt_dim();
        let sparse =
            Embedding::new(&cx(), 6, 3).unwrap().padding_idx(-1).unwrap().scale_by_sqrt_dim().sparse();
        assert_eq!((sparse.num_parameters(), sparse.parameters()[0].requires_grad()), (18, false));
        let rule = OptimRule::Adam { b1: 0.9, b2: 0.99, eps: 1e-8, wd: 0.0 };
        let mut whole = Optimizer::new(&dense, rule, 0.1).unwrap();
        let mut rows = SparseOptimizer::new(sparse.weight(), rule, 0.1).unwrap();
        // Two lookups a step that name all rows between them, some twice, and padding, which is row 5.
        let first = Tensor::from_slice(&d, &[4i64, 1, 0, 5, 1, 3], &[2, 3]).unwrap();
        let second = Tensor::from_slice(&d, &[2i32, 4], &[2]).unwrap();
        let weights = [6, 2].map(|n| {
            let data: Vec<f32> = noise(n, 3 * n as usize).iter().map(|&v| v as f32).collect();
            f32s(&d, &data, if n == 6 { &[2, 3, 3] } else { &[2, 3] })
        });
        let backward = |l: &Embedding| {
            for (ids, w) in [&first, &second].into_iter().zip(&weights) {
                l.forward(ids).unwrap().square().unwrap().mul(w).unwrap().sum().unwrap().backward().unwrap();
            }
        };
        for step in 0..3 {
            whole.zero_grad().unwrap();
            backward(&dense);
            whole.step().unwrap();
            // Without recording nothing is kept.
            no_grad(|| sparse.forward(&first)).unwrap();
            let mut one = || {
                backward(&sparse);
                let (ids, grads) = sparse.take_sparse_grad().unwrap().unwrap();
                assert_eq!((ids.shape(), grads.shape()), (&[8][..], &[8, 3][..]));
                rows.step(&ids, &grads).unwrap();
            };
            if step == 0 { one() } else { resident("a sparse step", &d, one) }
        }
        let (got, want) = (wide(&sparse.weight().get()), wide(&dense.weight().get()));
        close(&got, &want, 1e-5, &format!("tables on {}", id(&d)));
        assert_eq!(got[15..], [0.0; 3], "padding");
        assert!(sparse.take_sparse_grad().unwrap().is_none() && dense.take_sparse_grad().unwrap().is_none());
    }
    let odd = Embedding::new(&InitContext::new(&cpu(), 4), 6, 3).unwrap().scale_grad_by_freq().sparse();
    let ids = Tensor::from_slice(&cpu(), &[4i64], &[1]).unwrap();
    refused(odd.forward(&ids), &["Embedding", "scale_grad_by_freq", "sparse"]);
}
