//! Every tensor operation's gradient against central differences in f64.

use crate::common::{cpu, gradcheck, noise, tensor};
use trefoil::ops::activation::Activation;
use trefoil::ops::elementwise::{Binary, Ternary, Unary};
use trefoil::ops::gemm::Precision;
use trefoil::ops::loss::{CrossEntropy, Reduction};
use trefoil::ops::random::Rng;
use trefoil::ops::reduce::Reduce;
use trefoil::ops::shape::PadMode;
use trefoil_nn::{CrossEntropyLoss, MseLoss, Tensor};

fn same(x: f64) -> f64 {
    x
}

fn positive(x: f64) -> f64 {
    x.abs() + 0.5
}

#[test]
fn unary_functions() {
    use Unary::*;
    let anywhere = [
        Neg,
        Abs,
        Exp,
        Exp2,
        Expm1,
        Square,
        Sin,
        Cos,
        Tan,
        Sinh,
        Cosh,
        Asinh,
        Atan,
        Erf,
        Erfc,
        Atanh,
        Asin,
        Acos,
        Scale { c: -2.5 },
        AddScalar { c: 1.5 },
        RsubScalar { c: 0.5 },
        Clamp { lo: Some(-0.5), hi: Some(0.5) },
    ];
    for op in anywhere {
        gradcheck(&format!("{op:?}"), &[&[3, 5]], |x| 0.9 * x, |t| t[0].unary(op));
    }
    for op in [Log, Log2, Log10, Log1p, Sqrt, Rsqrt, Reciprocal, Cbrt, Lgamma, PowScalar { c: 2.5 }] {
        gradcheck(&format!("{op:?}"), &[&[3, 5]], positive, |t| t[0].unary(op));
    }
}

#[test]
fn binary_functions_with_broadcasting() {
    use Binary::*;
    let ops = [
        Add { alpha: 2.0 },
        Sub,
        Mul,
        Div,
        Pow,
        Maximum,
        Minimum,
        Atan2,
        Hypot,
        Logaddexp,
        Xlogy,
        Lerp { t: 0.3 },
        AddScaled { ca: 2.0, cb: -3.0 },
    ];
    for op in ops {
        for shapes in
            [[&[2usize, 3, 4][..], &[3, 1][..]], [&[4][..], &[2, 3, 4][..]], [&[3, 4][..], &[3, 4][..]]]
        {
            gradcheck(&format!("{op:?} {shapes:?}"), &shapes, positive, |t| t[0].binary(op, &t[1]));
        }
    }
}

#[test]
fn ternary_functions() {
    use Ternary::*;
    for op in [Lerp, Fma, Addcmul { v: 0.7 }, Addcdiv { v: 0.7 }] {
        gradcheck(&format!("{op:?}"), &[&[2, 3], &[3], &[2, 1]], positive, |t| {
            t[0].ternary(op, &t[1], &t[2])
        });
    }
    let mask = Tensor::from_slice(&cpu(), &[1u8, 0, 1, 0, 0, 1], &[2, 3]).unwrap();
    gradcheck("where", &[&[2, 3], &[3]], same, |t| t[0].where_(&mask, &t[1]));
}

#[test]
fn one_tensor_as_both_operands() {
    gradcheck("x*x", &[&[4]], same, |t| t[0].mul(&t[0]));
    gradcheck("x*x*x + x", &[&[4]], same, |t| t[0].mul(&t[0])?.mul(&t[0])?.add(&t[0]));
    gradcheck("x x", &[&[3, 3]], same, |t| t[0].matmul(&t[0]));
    gradcheck("x x^T", &[&[3, 4]], same, |t| t[0].matmul(&t[0].transpose(0, 1)?));
}

#[test]
fn activations() {
    use Activation::*;
    let acts = [
        Relu,
        LeakyRelu { slope: 0.1 },
        Sigmoid,
        Tanh,
        Gelu,
        GeluTanh,
        Swish { beta: 1.5 },
        Elu { alpha: 0.8 },
        Mish,
        Softplus { beta: 2.0, threshold: 20.0 },
        Hardswish,
        Selu,
        Hardsigmoid,
        Hardtanh { lo: -0.7, hi: 0.6 },
        Relu6,
    ];
    for act in acts {
        gradcheck(&format!("{act:?}"), &[&[3, 7]], |x| 2.0 * x, |t| t[0].activation(act));
        gradcheck(&format!("linear {act:?}"), &[&[2, 3, 4], &[5, 4], &[5]], same, |t| {
            t[0].linear(&t[1], Some(&t[2]), act, Precision::Ieee)
        });
    }
    for axis in [0, 1, -1] {
        gradcheck("softmax", &[&[2, 3, 4]], same, |t| t[0].softmax(axis));
        gradcheck("log_softmax", &[&[2, 3, 4]], same, |t| t[0].log_softmax(axis));
    }
}

#[test]
fn reductions() {
    use Reduce::*;
    let ops = [
        Sum,
        Mean,
        Prod,
        Max,
        Min,
        MaxAbs,
        MinAbs,
        Var { correction: 1.0 },
        Std { correction: 0.0 },
        Norm { p: 2.0 },
        Norm { p: 1.0 },
        Norm { p: 3.0 },
        Norm { p: f64::INFINITY },
        LogSumExp,
        SumSq,
        LogVar { correction: 0.0, eps: 1e-3 },
    ];
    for op in ops {
        for axes in [&[0isize][..], &[1, -1], &[0, 1, 2]] {
            for keep in [false, true] {
                let what = format!("{op:?} over {axes:?}, keep {keep}");
                // A product of two dozen small numbers would have gradients too small to tell.
                let map = if op == Prod { positive } else { same };
                gradcheck(&what, &[&[3, 4, 2]], map, |t| t[0].reduce(op, axes, keep));
            }
        }
    }
    gradcheck("max_with_index", &[&[3, 4]], same, |t| Ok(t[0].max_with_index(1)?.0));
    gradcheck("min_with_index", &[&[3, 4]], same, |t| Ok(t[0].min_with_index(0)?.0));
    gradcheck("dot", &[&[3, 4], &[3, 4]], same, |t| t[0].dot(&t[1]));
    gradcheck("sum_to_shape", &[&[2, 3, 4]], same, |t| t[0].sum_to_shape(&[3, 1]));
}

#[test]
fn movement() {
    gradcheck("reshape", &[&[2, 6]], same, |t| t[0].reshape(&[3, 4]));
    gradcheck("reshape of a transpose", &[&[2, 6]], same, |t| t[0].transpose(0, 1)?.reshape(&[3, 4]));
    gradcheck("permute", &[&[2, 3, 4]], same, |t| t[0].permute(&[2, 0, 1]));
    gradcheck("slice", &[&[3, 7]], same, |t| t[0].slice(1, 1, 6, 2));
    gradcheck("select", &[&[3, 4]], same, |t| t[0].select(-1, 2));
    gradcheck("diagonal", &[&[3, 4, 2]], same, |t| t[0].diagonal(1, 0, 1));
    gradcheck("expand", &[&[3, 1]], same, |t| t[0].expand(&[2, 3, 4]));
    gradcheck("unfold", &[&[2, 7]], same, |t| t[0].unfold(1, 3, 2));
    gradcheck("concat", &[&[2, 3], &[2, 1], &[2, 2]], same, |t| Tensor::concat(-1, &[&t[0], &t[1], &t[2]]));
    gradcheck("stack", &[&[2, 3], &[2, 3]], same, |t| Tensor::stack(1, &[&t[0], &t[1]]));
    gradcheck("split", &[&[5, 2]], same, |t| {
        let p = t[0].split(0, &[2, 3])?;
        p[1].narrow(0, 0, 2)?.mul(&p[0])
    });
    gradcheck("squeeze, unsqueeze", &[&[3, 1]], same, |t| t[0].squeeze(1)?.unsqueeze(0));
    gradcheck("flatten", &[&[2, 3, 4]], same, |t| t[0].flatten(1, -1));
    for mode in [PadMode::Constant(0.5), PadMode::Reflect, PadMode::Replicate, PadMode::Circular] {
        gradcheck(&format!("{mode:?}"), &[&[3, 4]], same, |t| t[0].pad(mode, &[(1, 0), (2, 1)]));
    }
    gradcheck("flip", &[&[2, 3]], same, |t| t[0].flip(&[1]));
    gradcheck("roll", &[&[4, 3]], same, |t| t[0].roll(&[1, -2], &[0, 1]));
    gradcheck("tril", &[&[4, 4]], same, |t| t[0].tril(-1));
    gradcheck("triu", &[&[4, 4]], same, |t| t[0].triu(0));
    gradcheck("repeat_interleave", &[&[2, 3]], same, |t| t[0].repeat_interleave(1, 3));
    gradcheck("copy", &[&[2, 3]], same, |t| t[0].transpose(0, 1)?.copy());
}

#[test]
fn indexing() {
    let ix = Tensor::from_slice(&cpu(), &[2i64, 0, 2, 1], &[4]).unwrap();
    gradcheck("index_select", &[&[3, 2]], same, |t| t[0].index_select(0, &ix));
    gradcheck("index_select of columns", &[&[2, 3]], same, |t| t[0].index_select(1, &ix));
    let ix = Tensor::from_slice(&cpu(), &[2i64, 0, 2, 1, 1, 1], &[2, 3]).unwrap();
    gradcheck("gather", &[&[2, 3]], same, |t| t[0].gather(1, &ix));
    let ix = Tensor::from_slice(&cpu(), &[1i64, 1, 0], &[3]).unwrap();
    gradcheck("index_add", &[&[2, 2], &[3, 2]], same, |t| t[0].index_add(0, &ix, &t[1]));
}

#[test]
fn products() {
    for (a, b) in [
        (&[2usize, 3][..], &[3usize, 4][..]),
        (&[3], &[3]),
        (&[3], &[3, 4]),
        (&[2, 3], &[3]),
        (&[2, 5, 3], &[3, 4]),
        (&[2, 5, 3], &[2, 3, 4]),
        (&[1, 2, 3], &[4, 3, 2]),
        (&[2, 1, 2, 3], &[3, 3, 2]),
    ] {
        gradcheck(&format!("matmul {a:?} {b:?}"), &[a, b], same, |t| t[0].matmul(&t[1]));
    }
    gradcheck("linear without bias", &[&[3, 4], &[5, 4]], same, |t| {
        t[0].linear(&t[1], None, Activation::Identity, Precision::Ieee)
    });
}

#[test]
fn losses() {
    for reduction in [Reduction::None, Reduction::Mean, Reduction::Sum] {
        gradcheck("mse", &[&[3, 4], &[3, 4]], same, |t| {
            MseLoss { reduction, ..MseLoss::default() }.forward(&t[0], &t[1])
        });
        let weight = Some(tensor(&cpu(), &[3, 4], 5));
        gradcheck("weighted mse", &[&[3, 4], &[3, 4]], same, |t| {
            MseLoss { reduction, weight: weight.clone(), mask: None }.forward(&t[0], &t[1])
        });
        let ids = Tensor::from_slice(&cpu(), &[2i64, 0, -100, 4], &[4]).unwrap();
        let weights: Vec<f64> = noise(3, 5).into_iter().map(|x| x.abs() + 0.1).collect();
        let weight = Tensor::from_slice(&cpu(), &weights, &[5]).unwrap();
        for (smoothing, weight) in [(0.0, None), (0.1, None), (0.1, Some(weight))] {
            let options = CrossEntropy::new().reduction(reduction).label_smoothing(smoothing);
            let loss = CrossEntropyLoss { options, weight };
            gradcheck("cross entropy", &[&[4, 5]], same, |t| loss.forward(&t[0], &ids));
        }
        let probs = tensor(&cpu(), &[4, 5], 8).softmax(1).unwrap();
        let loss = CrossEntropyLoss { options: CrossEntropy::new().reduction(reduction), weight: None };
        gradcheck("cross entropy of probabilities", &[&[4, 5]], same, |t| loss.forward(&t[0], &probs));
    }
}

#[test]
fn dropout_uses_one_mask_in_both_directions() {
    gradcheck("dropout", &[&[7, 5]], same, |t| t[0].dropout(0.4, Rng::new(3).at(1, 5)));
}

#[test]
fn gradients_of_views_of_one_tensor_add_up() {
    gradcheck("both halves", &[&[4, 3]], same, |t| {
        let (a, b) = (t[0].narrow(0, 0, 2)?, t[0].narrow(0, 2, 2)?);
        a.mul(&b)?.add(&t[0].narrow(0, 1, 2)?)
    });
}
