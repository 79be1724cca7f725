//! Products with Hessians beside PyTorch's (tests/golden/second_order.py), by `hvp` and by `jvp` of the gradient.

use crate::common::{close, cpu};
use trefoil::DType;
use trefoil::ops::activation::Activation;
use trefoil::ops::attention::{Attention, Causal};
use trefoil::ops::conv::Conv;
use trefoil::ops::gemm::Precision;
use trefoil::ops::norm::{BatchNorm, RowNorm};
use trefoil::ops::pool::Window;
use trefoil_nn::autograd::{GradOptions, grad, hvp, jvp};
use trefoil_nn::losses::BceWithLogitsLoss;
use trefoil_nn::{BatchNormStats, CrossEntropyLoss, MseLoss, Result, ScaledDotProductAttention, Tensor};

/// A list of tensors of the golden file.
fn tensors(list: &serde_json::Value) -> Vec<Tensor> {
    let numbers = |v: &serde_json::Value| serde_json::from_value::<Vec<f64>>(v.clone()).unwrap();
    let one = |t: &serde_json::Value| {
        let shape: Vec<usize> = serde_json::from_value(t["shape"].clone()).unwrap();
        Tensor::from_slice(&cpu(), &numbers(&t["data"]), &shape).unwrap()
    };
    list.as_array().unwrap().iter().map(one).collect()
}

/// The functions of tests/golden/second_order.py.
fn golden_function(name: &str, t: &[Tensor]) -> Result<Tensor> {
    let d = cpu();
    let ids = |v: &[i64], shape: &[usize]| Tensor::from_slice(&d, v, shape);
    match name {
        "mlp" => {
            let h = t[0].linear(&t[1], Some(&t[2]), Activation::Gelu, Precision::Ieee)?;
            let logits = h.linear(&t[3], None, Activation::Identity, Precision::Ieee)?;
            CrossEntropyLoss::default().forward(&logits, &ids(&[1, 0, 2], &[3])?)
        }
        "layer_norm" => {
            let mut p = RowNorm::layer();
            p.act = Activation::Swish { beta: 1.0 };
            let y = t[0].row_norm(&p, Some(&t[1]), Some(&t[2]))?;
            MseLoss::default()
                .forward(&y, &Tensor::linspace(&d, DType::F64, -1.0, 1.0, 12)?.reshape(&[3, 4])?)
        }
        "images" => {
            let y = t[0].conv2d(&t[1], Some(&t[2]), &Conv::new().pad(1).act(Activation::Tanh))?;
            y.avg_pool(&Window::new(&[2, 2]))?.square()?.sum()
        }
        "attention" => {
            let a = ScaledDotProductAttention::with(Attention::new().causal(Causal::TopLeft));
            let y = a.forward(&t[0], &t[1], &t[2])?.contiguous()?;
            let weights = Tensor::linspace(&d, DType::F64, 0.0, 1.0, y.numel())?.reshape(y.shape())?;
            y.mul(&weights)?.exp()?.sum()
        }
        "batch_norm" => {
            let y =
                t[0].batch_norm(&BatchNorm::new(), Some(&t[1]), Some(&t[2]), BatchNormStats::Batch(None))?;
            BceWithLogitsLoss::default().forward(&y, &y.full_like(0.3)?)
        }
        "indices" => {
            let rows = t[0].embedding(&ids(&[2, 0, 2], &[3])?, &Default::default())?;
            let picked = t[1].gather(1, &ids(&[1, 0, 2], &[3, 1])?)?;
            let first = rows.sum_axes(&[1], true)?.mul(&picked)?.logsumexp(&[0], false)?.sum()?;
            // The product of two columns.
            let soft = rows.softplus()?;
            first.add(&soft.select(1, 0)?.mul(&soft.select(1, 1)?)?.sum()?)
        }
        "transposed" => {
            let y = t[0].conv_transpose(&t[1], None, &Conv::new().stride(2))?;
            y.cos()?.sum()?.add(&t[0].log_softmax(1)?.pow_scalar(3.0)?.mean()?)
        }
        other => panic!("no case {other}"),
    }
}

#[test]
fn products_with_hessians_are_those_of_pytorch() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/second-order.json");
    let golden: serde_json::Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    let cases = golden["hvp"].as_array().unwrap();
    assert_eq!(cases.len(), 7);
    for case in cases {
        let name = case["name"].as_str().unwrap();
        let [x, v, want] = ["inputs", "vectors", "products"].map(|key| tensors(&case[key]));
        let refs: [Vec<&Tensor>; 2] = [x.iter().collect(), v.iter().collect()];
        let (y, got) = hvp(|t| golden_function(name, t), &refs[0], &refs[1]).unwrap();
        close(&[y.item::<f64>().unwrap()], &[case["value"].as_f64().unwrap()], 1e-12, name);
        for (i, (got, want)) in got.iter().zip(&want).enumerate() {
            let what = format!("{name}, input {i}");
            close(
                &got.contiguous().unwrap().to_vec::<f64>().unwrap(),
                &want.to_vec::<f64>().unwrap(),
                1e-10,
                &what,
            );
        }
        // The product of the Hessian's transpose is the same: forward over backward.
        let gradient = |t: &[Tensor]| {
            let y = golden_function(name, t)?;
            let g = grad(&[(&y, None)], &t.iter().collect::<Vec<_>>(), GradOptions::create_graph())?;
            let flat = g.iter().flatten().map(|g| g.reshape(&[g.numel()])).collect::<Result<Vec<_>>>()?;
            Tensor::concat(0, &flat.iter().collect::<Vec<_>>())
        };
        let (_, along) = jvp(gradient, &refs[0], &refs[1]).unwrap();
        let flat: Vec<f64> = want.iter().flat_map(|t| t.to_vec::<f64>().unwrap()).collect();
        close(&along.to_vec::<f64>().unwrap(), &flat, 1e-10, name);
    }
}
