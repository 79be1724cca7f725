//! Gradients of gradients: every operation that offers them against central differences of its first gradient in f64, and those that do not.

use crate::common::{close, cpu, gradcheck, noise, tensor};
use trefoil::DType;
use trefoil::ops::activation::Activation;
use trefoil::ops::attention::{Attention, Causal};
use trefoil::ops::conv::Conv;
use trefoil::ops::elementwise::{Binary, Ternary, Unary};
use trefoil::ops::gemm::Precision;
use trefoil::ops::index::ScatterReduce;
use trefoil::ops::norm::{BatchNorm, GroupNorm, RowNorm};
use trefoil::ops::pool::Window;
use trefoil::ops::random::Rng;
use trefoil::ops::reduce::Reduce;
use trefoil::ops::shape::PadMode;
use trefoil_nn::autograd::{GradOptions, grad, hvp, jacobian, jvp, vjp};
use trefoil_nn::layers::{Checkpointed, Dense};
use trefoil_nn::losses::{
    BceLoss, BceWithLogitsLoss, CharbonnierLoss, CrossEntropy, HuberLoss, KlDivLoss, LogCoshLoss, NllLoss,
    PoissonNllLoss, Reduction, SmoothL1Loss, SoftMarginLoss,
};
use trefoil_nn::{
    BatchNormStats, CrossEntropyLoss, InitContext, Layer, LayerExt, MseLoss, NnError, Result,
    ScaledDotProductAttention, Tensor,
};

fn same(x: f64) -> f64 {
    x
}

fn positive(x: f64) -> f64 {
    x.abs() + 0.5
}

/// Compares second derivatives with central differences of first ones: of a sum of cubes and squares of the results with weights, so that linear
/// operations have some too. Where differences are taken the first gradient comes from the kernels, elsewhere from the graph.
fn check(what: &str, shapes: &[&[usize]], map: impl Fn(f64) -> f64, f: impl Fn(&[Tensor]) -> Result<Tensor>) {
    gradcheck(what, shapes, map, |t| {
        let create_graph = t[0].requires_grad();
        let x: Vec<Tensor> = t.iter().map(|t| if create_graph { t.clone() } else { t.with_grad() }).collect();
        let y = f(&x)?;
        let weights = Tensor::from_slice(&cpu(), &noise(5, y.numel()), y.shape())?;
        let loss = y.square()?.mul(&y.add_scalar(1.0)?)?.mul(&weights)?.sum()?;
        let options = GradOptions { create_graph, ..GradOptions::default() };
        let grads = grad(&[(&loss, None)], &x.iter().collect::<Vec<_>>(), options)?;
        let flat = grads.iter().flatten().map(|g| g.reshape(&[g.numel()])).collect::<Result<Vec<_>>>()?;
        Tensor::concat(0, &flat.iter().collect::<Vec<_>>())
    });
}

#[test]
fn products_by_groups_of_rows() {
    let offsets = Tensor::from_slice(&cpu(), &[1i32, 3, 3, 6], &[4]).unwrap();
    for act in [Activation::Identity, Activation::Gelu] {
        check(&format!("linear_ragged {act:?}"), &[&[7, 4], &[3, 2, 4], &[3, 2]], same, |t| {
            t[0].linear_ragged(&t[1], Some(&t[2]), &offsets, act)
        });
    }
    check("gemm_ragged", &[&[7, 4], &[3, 4, 2]], same, |t| t[0].gemm_ragged(&t[1], &offsets, false));
    check("gemm_ragged_sum", &[&[7, 4], &[7, 3]], same, |t| t[0].gemm_ragged_sum(&t[1], &offsets));
}

#[test]
fn unary_functions() {
    use Unary::*;
    let anywhere = [
        Neg,
        Abs,
        Exp,
        Exp2,
        Exp10,
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
        Erfinv,
        Atanh,
        Asin,
        Acos,
        Frac,
        Scale { c: -2.5 },
        AddScalar { c: 1.5 },
        RsubScalar { c: 0.5 },
        Clamp { lo: Some(-0.5), hi: Some(0.5) },
    ];
    for op in anywhere {
        check(&format!("{op:?}"), &[&[2, 3]], |x| 0.8 * x, |t| t[0].unary(op));
    }
    for op in [
        Log,
        Log2,
        Log10,
        Log1p,
        Sqrt,
        Rsqrt,
        Reciprocal,
        Cbrt,
        Lgamma,
        Digamma,
        PowScalar { c: 2.5 },
        NanToNum { nan: 0.0, posinf: None, neginf: None },
    ] {
        check(&format!("{op:?}"), &[&[2, 3]], positive, |t| t[0].unary(op));
    }
    check("Acosh", &[&[2, 3]], |x| x.abs() + 1.5, |t| t[0].acosh());
}

#[test]
fn binary_functions_with_broadcasting() {
    use Binary::*;
    let ops = [
        Add { alpha: 2.0 },
        Sub,
        Mul,
        Div,
        Maximum,
        Minimum,
        ClampMin,
        ClampMax,
        Atan2,
        Hypot,
        Logaddexp,
        Pow,
        Xlogy,
        Lerp { t: 0.3 },
        AddScaled { ca: 2.0, cb: -0.5 },
        AddRelu,
        AddSigmoid,
    ];
    for op in ops {
        check(&format!("{op:?}"), &[&[2, 3], &[3]], positive, |t| t[0].binary(op, &t[1]));
    }
    check("the same operand twice", &[&[3]], same, |t| t[0].mul(&t[0]));
    let mask = Tensor::from_slice(&cpu(), &[1u8, 0, 1], &[3]).unwrap();
    check("where", &[&[2, 3], &[3]], same, |t| t[0].where_(&mask, &t[1]));
    let ops = [Ternary::Lerp, Ternary::Fma, Ternary::Addcmul { v: 0.7 }, Ternary::Addcdiv { v: 0.7 }];
    for op in ops {
        check(&format!("{op:?}"), &[&[2, 3], &[3], &[2, 1]], positive, |t| t[0].ternary(op, &t[1], &t[2]));
    }
}

#[test]
fn activations() {
    use Activation::*;
    let all = [
        Relu,
        LeakyRelu { slope: 0.1 },
        Sigmoid,
        Tanh,
        Gelu,
        GeluTanh,
        Swish { beta: 1.5 },
        Elu { alpha: 0.7 },
        Mish,
        Softplus { beta: 2.0, threshold: 20.0 },
        Hardswish,
        Selu,
        Hardsigmoid,
        Hardtanh { lo: -0.5, hi: 0.5 },
        Relu6,
    ];
    for act in all {
        check(&format!("{act:?}"), &[&[2, 3]], same, |t| t[0].activation(act));
        check(&format!("linear with {act:?}"), &[&[2, 3], &[2, 3], &[2]], same, |t| {
            t[0].linear(&t[1], Some(&t[2]), act, Precision::Ieee)
        });
    }
    check("prelu", &[&[2, 3], &[3]], same, |t| t[0].prelu(&t[1]));
    check("glu", &[&[2, 4]], same, |t| t[0].glu(Sigmoid, 1));
    check("gated_by", &[&[2, 3], &[2, 3]], same, |t| t[0].gated_by(&t[1], Swish { beta: 1.0 }));
    check("squash", &[&[2, 3]], same, |t| t[0].squash(1));
}

#[test]
fn reductions() {
    let ops = [
        Reduce::Sum,
        Reduce::Mean,
        Reduce::Max,
        Reduce::Min,
        Reduce::Var { correction: 1.0 },
        Reduce::Std { correction: 0.0 },
        Reduce::Norm { p: 1.0 },
        Reduce::Norm { p: 2.0 },
        Reduce::LogSumExp,
        Reduce::SumSq,
        Reduce::LogVar { correction: 0.0, eps: 0.1 },
    ];
    for op in ops {
        check(&format!("{op:?}"), &[&[2, 3, 4]], same, |t| t[0].reduce(op, &[1], false));
        check(&format!("{op:?} of all"), &[&[2, 4]], same, |t| t[0].reduce(op, &[0, 1], true));
    }
    check("max_with_index", &[&[2, 4]], same, |t| Ok(t[0].max_with_index(1)?.0));
    check("l2_normalize", &[&[2, 3]], same, |t| t[0].l2_normalize(1, 1e-9));
    check("dot", &[&[2, 3], &[2, 3]], same, |t| t[0].dot(&t[1]));
    check("softmax", &[&[2, 3, 2]], same, |t| t[0].softmax(1));
    check("log_softmax", &[&[2, 3, 2]], same, |t| t[0].log_softmax(1));
    check("masked_softmax", &[&[2, 3]], same, |t| t[0].masked_softmax(0.7, None));
    check("cumsum", &[&[2, 4]], same, |t| t[0].cumsum(1));
    check("sort", &[&[2, 4]], same, |t| Ok(t[0].sort(1, false)?.0));
}

#[test]
fn movement() {
    check("reshape", &[&[2, 3]], same, |t| t[0].reshape(&[3, 2]));
    check("permute", &[&[2, 3]], same, |t| t[0].permute(&[1, 0]));
    check("contiguous", &[&[2, 3]], same, |t| t[0].t()?.contiguous());
    check("slice", &[&[2, 5]], same, |t| t[0].slice(1, 1, 5, 2));
    check("select", &[&[2, 5]], same, |t| t[0].select(1, 3)?.exp());
    check("slice of a slice", &[&[2, 5]], same, |t| t[0].narrow(1, 1, 3)?.mul(&t[0].narrow(1, 0, 3)?));
    check("diagonal", &[&[3, 3]], same, |t| t[0].diagonal(1, 0, 1));
    check("slice_scatter", &[&[2, 5], &[2, 2]], same, |t| t[0].slice_scatter(&t[1], 1, 1, 5, 2));
    check("expand", &[&[3]], same, |t| t[0].expand(&[2, 3]));
    check("sum_to_shape", &[&[2, 3]], same, |t| t[0].sum_to_shape(&[1, 3]));
    check("concat", &[&[2, 1], &[2, 2]], same, |t| Tensor::concat(1, &[&t[0], &t[1]]));
    check("unfold", &[&[2, 5]], same, |t| t[0].unfold(1, 3, 1));
    check("flip", &[&[2, 3]], same, |t| t[0].flip(&[1]));
    check("roll", &[&[2, 3]], same, |t| t[0].roll(&[1], &[1]));
    check("tril", &[&[3, 3]], same, |t| t[0].tril(0));
    check("repeat_interleave", &[&[2, 3]], same, |t| t[0].repeat_interleave(1, 2));
    for mode in [PadMode::Constant(0.3), PadMode::Reflect, PadMode::Replicate, PadMode::Circular] {
        check(&format!("pad {mode:?}"), &[&[2, 4]], same, |t| t[0].pad(mode, &[(0, 0), (1, 2)]));
    }
    check("split_heads", &[&[1, 2, 8]], same, |t| t[0].split_heads(2, 2)?[1].merge_heads());
    check("to_dtype", &[&[2, 3]], same, |t| t[0].exp()?.to_dtype(DType::F64));
}

#[test]
fn elements_by_index() {
    let d = cpu();
    let rows = Tensor::from_slice(&d, &[2i64, 0, 2], &[3]).unwrap();
    let grid = Tensor::from_slice(&d, &[2i64, 0, 2, 1, 1, 0], &[2, 3]).unwrap();
    check("index_select", &[&[3, 2]], same, |t| t[0].index_select(0, &rows));
    check("gather", &[&[2, 3]], same, |t| t[0].gather(1, &grid));
    check("index_add", &[&[3, 2], &[3, 2]], same, |t| t[0].index_add(0, &rows, &t[1]));
    check("index_copy", &[&[3, 2], &[2, 2]], same, |t| t[0].index_copy(0, &rows.narrow(0, 0, 2)?, &t[1]));
    check("index_fill", &[&[3, 2]], same, |t| t[0].index_fill(0, &rows.narrow(0, 0, 1)?, 0.5));
    check("scatter", &[&[2, 3], &[2, 3]], same, |t| t[0].scatter(1, &grid, &t[1]));
    check("scatter_add", &[&[2, 3], &[2, 3]], same, |t| t[0].scatter_add(1, &grid, &t[1]));
    check("embedding", &[&[4, 2]], same, |t| t[0].embedding(&rows, &Default::default()));
    check("index_put", &[&[3, 2], &[3, 2]], same, |t| t[0].index_put(&[&rows], &t[1], true));
    let apart = rows.narrow(0, 0, 2).unwrap();
    check("index_put in place", &[&[3, 2], &[2, 2]], same, |t| t[0].index_put(&[&apart], &t[1], false));
    let mask = Tensor::from_slice(&d, &[1u8, 0, 0, 1, 1, 0], &[3, 2]).unwrap();
    check("masked_fill", &[&[3, 2]], same, |t| t[0].masked_fill(&mask, 0.5));
    check("index", &[&[3, 2]], same, |t| t[0].index(&[&rows]));
    check("dropout", &[&[3, 4]], same, |t| t[0].dropout(0.3, Rng::new(7)));
    check("bias_dropout", &[&[2, 3], &[3], &[2, 3]], same, |t| {
        t[0].bias_dropout(&t[1], Some(&t[2]), 0.3, Rng::new(7))
    });
}

#[test]
fn products_and_convolutions() {
    check("matmul", &[&[2, 3], &[3, 2]], same, |t| t[0].matmul(&t[1]));
    check("batched matmul", &[&[2, 2, 3], &[3, 2]], same, |t| t[0].matmul(&t[1]));
    check("broadcast matmul", &[&[2, 2, 3], &[1, 3, 2]], same, |t| t[0].matmul(&t[1]));
    let p = Conv::new().stride(2).pad(1);
    check("conv1d", &[&[2, 2, 5], &[3, 2, 3], &[3]], same, |t| t[0].conv1d(&t[1], Some(&t[2]), &p));
    check("conv2d", &[&[1, 2, 4, 3], &[2, 1, 2, 2]], same, |t| {
        t[0].conv2d(&t[1], None, &Conv::new().groups(2).act(Activation::Tanh))
    });
    check("conv_transpose", &[&[1, 2, 3], &[2, 1, 3], &[1]], same, |t| {
        t[0].conv_transpose(&t[1], Some(&t[2]), &p)
    });
    check("im2col", &[&[1, 2, 4]], same, |t| t[0].im2col(&[2], &Conv::new()));
    check("avg_pool", &[&[1, 2, 4, 4]], same, |t| t[0].avg_pool(&Window::new(&[2, 2])));
    check("adaptive_avg_pool", &[&[1, 2, 5]], same, |t| t[0].adaptive_avg_pool(&[2]));
    check("max_pool", &[&[1, 2, 4, 4]], same, |t| t[0].max_pool(&Window::new(&[2, 2]).stride(&[1, 1])));
}

#[test]
fn normalizations() {
    for rms in [false, true] {
        let mut p = if rms { RowNorm::rms() } else { RowNorm::layer() };
        p.act = Activation::Tanh;
        check(&format!("row_norm, rms {rms}"), &[&[2, 4], &[4], &[4]], same, |t| {
            t[0].row_norm(&p, Some(&t[1]), if rms { None } else { Some(&t[2]) })?.add(&t[2])
        });
        check(&format!("add_row_norm, rms {rms}"), &[&[2, 4], &[2, 4]], same, |t| {
            let (y, sum) = t[0].add_row_norm(&t[1], &p, None, None)?;
            y.mul(&sum)
        });
    }
    check("group_norm", &[&[2, 4, 3], &[4], &[4]], same, |t| {
        t[0].group_norm(&GroupNorm::new(2), Some(&t[1]), Some(&t[2]))
    });
    check("batch_norm", &[&[3, 2, 2], &[2], &[2]], same, |t| {
        t[0].batch_norm(&BatchNorm::new(), Some(&t[1]), Some(&t[2]), BatchNormStats::Batch(None))
    });
    let (mean, var) =
        (tensor(&cpu(), &[2], 3), tensor(&cpu(), &[2], 4).square().unwrap().add_scalar(0.5).unwrap());
    check("batch_norm with given statistics", &[&[3, 2, 2], &[3, 2, 2], &[2]], same, |t| {
        let stats = BatchNormStats::Given(&mean, &var);
        t[0].batch_norm_add(Some(&t[1]), &BatchNorm::new().act(Activation::Sigmoid), Some(&t[2]), None, stats)
    });
}

#[test]
fn attention() {
    let shapes: &[&[usize]] = &[&[1, 2, 3, 2], &[1, 1, 3, 2], &[1, 1, 3, 2]];
    let run = |what: &str, a: &ScaledDotProductAttention| {
        check(what, shapes, same, |t| a.forward(&t[0], &t[1], &t[2]));
    };
    run("attention", &ScaledDotProductAttention::new());
    run("causal attention", &ScaledDotProductAttention::with(Attention::new().causal(Causal::TopLeft)));
    let mut capped = Attention::new();
    (capped.softcap, capped.window) = (2.0, [Some(1), None]);
    run("attention with softcap and window", &ScaledDotProductAttention::with(capped));
    let mask = Tensor::from_slice(&cpu(), &[1u8, 0, 1, 0, 0, 0, 1, 1, 1], &[3, 3]).unwrap();
    run("masked attention", &ScaledDotProductAttention { mask: Some(mask), ..Default::default() });
    check("packed attention", &[&[1, 3, 12]], same, |t| {
        ScaledDotProductAttention::new().forward_packed(&t[0], 2)
    });
}

#[test]
fn losses() {
    let d = cpu();
    let target = tensor(&d, &[2, 3], 42);
    let labels = target.sign().unwrap();
    let unit = target.abs().unwrap();
    let two: &[&[usize]] = &[&[2, 3]];
    check("mse", &[&[2, 3], &[2, 3]], same, |t| MseLoss::default().forward(&t[0], &t[1]));
    for reduction in [Reduction::None, Reduction::Sum] {
        check("mse", two, same, |t| MseLoss { reduction, ..Default::default() }.forward(&t[0], &target));
    }
    let weight = Some(unit.clone());
    check("weighted mse", two, same, |t| {
        MseLoss { weight: weight.clone(), ..Default::default() }.forward(&t[0], &target)
    });
    let mask = Some(Tensor::from_slice(&d, &[1u8, 0, 1, 1, 1, 0], &[2, 3]).unwrap());
    check("masked mse", two, same, |t| {
        MseLoss { mask: mask.clone(), ..Default::default() }.forward(&t[0], &target)
    });
    check("smooth l1", two, same, |t| {
        SmoothL1Loss { beta: 0.7, ..Default::default() }.forward(&t[0], &target)
    });
    check("huber", two, same, |t| HuberLoss { delta: 0.7, ..Default::default() }.forward(&t[0], &target));
    check("log cosh", two, same, |t| LogCoshLoss::default().forward(&t[0], &target));
    check("charbonnier", two, same, |t| {
        CharbonnierLoss { eps: 0.5, ..Default::default() }.forward(&t[0], &target)
    });
    check("soft margin", two, same, |t| SoftMarginLoss::default().forward(&t[0], &labels));
    check("poisson", two, same, |t| PoissonNllLoss::default().forward(&t[0], &unit));
    check("bce with logits", two, same, |t| BceWithLogitsLoss::default().forward(&t[0], &unit));
    check("bce", two, |x| 0.4 * x + 0.5, |t| BceLoss::default().forward(&t[0], &unit));
    check("kl", two, same, |t| KlDivLoss { batch_mean: true, ..Default::default() }.forward(&t[0], &unit));
}

#[test]
fn cross_entropies() {
    let d = cpu();
    let ids = Tensor::from_slice(&d, &[2i64, -100, 0], &[3]).unwrap();
    let weight = tensor(&d, &[4], 9).abs().unwrap();
    let shape: &[&[usize]] = &[&[3, 4]];
    check("nll", shape, same, |t| NllLoss::default().forward(&t[0], &ids));
    for (weight, smoothing) in [(None, 0.0), (Some(weight.clone()), 0.0), (Some(weight), 0.2)] {
        let mut options = CrossEntropy::default();
        options.label_smoothing = smoothing;
        let loss = CrossEntropyLoss { options, weight };
        check("cross entropy of ids", shape, same, |t| loss.forward(&t[0], &ids));
        let p = tensor(&d, &[3, 4], 11).abs().unwrap();
        check("cross entropy of probabilities", shape, same, |t| loss.forward(&t[0], &p));
    }
    let planes = Tensor::from_slice(&d, &[2i64, 1, 0, 3], &[2, 2]).unwrap();
    check("cross entropy of planes", &[&[2, 4, 2]], same, |t| {
        CrossEntropyLoss::default().forward(&t[0], &planes)
    });
}

#[test]
fn derivatives_of_any_order() {
    let x = Tensor::from_slice(&cpu(), &[0.3f64], &[1]).unwrap().with_grad();
    let mut y = x.sin().unwrap().exp().unwrap();
    let mut values = vec![];
    for _ in 0..4 {
        let g = grad(&[(&y, None)], &[&x], GradOptions::create_graph()).unwrap();
        y = g[0].clone().unwrap();
        values.push(y.item::<f64>().unwrap());
    }
    let (s, c) = 0.3f64.sin_cos();
    let e = s.exp();
    let want = [
        e * c,
        e * (c * c - s),
        e * (c * c * c - 3.0 * s * c - c),
        e * (c.powi(4) - 6.0 * s * c * c - 4.0 * c * c + 3.0 * s * s + s),
    ];
    close(&values, &want, 1e-12, "derivatives of e^sin x");
}

#[test]
fn products_with_jacobians_and_hessians() {
    let d = cpu();
    let (a, x, v) = (tensor(&d, &[3, 3], 1), tensor(&d, &[3], 2), tensor(&d, &[3], 3));
    let f = |t: &[Tensor]| a.matmul(&t[0])?.tanh();
    let j = jacobian(f, &[&x]).unwrap();
    assert_eq!(j[0].shape(), [3, 3]);
    let (_, forward) = jvp(f, &[&x], &[&v]).unwrap();
    let want = j[0].matmul(&v).unwrap();
    close(&forward.to_vec::<f64>().unwrap(), &want.to_vec::<f64>().unwrap(), 1e-13, "jvp");
    let (y, back) = vjp(f, &[&x], &v).unwrap();
    let want = j[0].t().unwrap().matmul(&v).unwrap();
    close(&back[0].to_vec::<f64>().unwrap(), &want.to_vec::<f64>().unwrap(), 1e-13, "vjp");
    close(
        &y.to_vec::<f64>().unwrap(),
        &f(std::slice::from_ref(&x)).unwrap().to_vec::<f64>().unwrap(),
        0.0,
        "value",
    );

    // The Hessian of the quadratic form x^T A x / 2 + sum x^4 is (A + A^T) / 2 + 12 x^2.
    let g = |t: &[Tensor]| {
        let q = t[0].mul(&a.matmul(&t[0])?)?.sum()?.mul_scalar(0.5)?;
        q.add(&t[0].pow_scalar(4.0)?.sum()?)
    };
    let (_, hv) = hvp(g, &[&x], &[&v]).unwrap();
    let both = a.add(&a.t().unwrap()).unwrap().mul_scalar(0.5).unwrap().matmul(&v).unwrap();
    let want = both.add(&x.square().unwrap().mul_scalar(12.0).unwrap().mul(&v).unwrap()).unwrap();
    close(&hv[0].to_vec::<f64>().unwrap(), &want.to_vec::<f64>().unwrap(), 1e-13, "hvp");
}

#[test]
fn grad_returns_gradients_and_collects_none() {
    let d = cpu();
    let (x, w) = (tensor(&d, &[2], 1).with_grad(), tensor(&d, &[2], 2).with_grad());
    let h = x.mul(&w).unwrap();
    let y = h.square().unwrap().sum().unwrap();
    let g = grad(&[(&y, None)], &[&h, &x], GradOptions { retain_graph: Some(true), ..Default::default() })
        .unwrap();
    let want = h.detach().mul_scalar(2.0).unwrap();
    close(
        &g[0].as_ref().unwrap().to_vec::<f64>().unwrap(),
        &want.to_vec::<f64>().unwrap(),
        1e-15,
        "of an intermediate tensor",
    );
    assert!(x.grad().is_none() && w.grad().is_none(), "leaves collect nothing");
    assert!(!g[1].as_ref().unwrap().requires_grad());
    // Freed unless it is retained, and only what was visited.
    grad(&[(&y, None)], &[&x], GradOptions::default()).unwrap();
    assert!(matches!(grad(&[(&y, None)], &[&x], GradOptions::default()), Err(NnError::GraphFreed { .. })));

    let other = tensor(&d, &[2], 3).with_grad();
    let y = x.square().unwrap().sum().unwrap();
    let e =
        grad(&[(&y, None)], &[&x, &other], GradOptions { retain_graph: Some(true), ..Default::default() })
            .unwrap_err();
    assert!(matches!(e, NnError::UnusedInput { index: 1 }), "{e}");
    let found =
        grad(&[(&y, None)], &[&x, &other], GradOptions { allow_unused: true, ..Default::default() }).unwrap();
    assert!(found[0].is_some() && found[1].is_none());
    assert!(matches!(grad(&[(&y, None)], &[&x.detach()], GradOptions::default()), Err(NnError::NoGraph)));
    let wide = x.square().unwrap();
    assert!(matches!(grad(&[(&wide, None)], &[&x], GradOptions::default()), Err(NnError::NotScalar { .. })));
}

#[test]
fn what_cannot_be_differentiated_twice_says_so() {
    let d = cpu();
    let x = tensor(&d, &[2, 3], 1).with_grad();
    let refused = |what: &str, y: Tensor| {
        let y = y.sum().unwrap();
        let e = grad(&[(&y, None)], &[&x], GradOptions::create_graph()).unwrap_err();
        assert!(matches!(e, NnError::NotTwiceDifferentiable { .. }), "{what}: {e}");
        assert!(e.to_string().contains(what), "{e}");
        // The first derivative is there all the same.
        grad(&[(&y, None)], &[&x], GradOptions::default()).unwrap();
    };
    refused("sparsemax", x.sparsemax(1).unwrap());
    refused("cdist", x.cdist(&x.square().unwrap(), 2.0).unwrap());
    let mut dropping = Attention::new();
    dropping.dropout = 0.5;
    let q = x.reshape(&[1, 1, 2, 3]).unwrap();
    refused("attention", ScaledDotProductAttention::with(dropping).forward(&q, &q, &q).unwrap());
    refused("scatter_reduce", {
        let index = Tensor::from_slice(&d, &[0i64, 1, 1, 0, 0, 2], &[2, 3]).unwrap();
        x.scatter_reduce(ScatterReduce::Prod, 1, &index, &x, true).unwrap()
    });
}

#[test]
fn gradients_through_a_checkpointed_segment_are_returned_too() {
    let d = cpu();
    let cx = InitContext::new(&d, 3);
    let dense = Dense::new(&cx, 3, 2).unwrap().activation(Activation::Tanh);
    let params: Vec<Tensor> = dense.parameters().iter().map(|p| p.get()).collect();
    let x = tensor(&d, &[4, 3], 1).to_dtype(DType::F32).unwrap().with_grad();
    let all: Vec<&Tensor> = std::iter::once(&x).chain(&params).collect();
    let plain = dense.forward(&x).unwrap().square().unwrap().sum().unwrap();
    let want = grad(&[(&plain, None)], &all, GradOptions::default()).unwrap();
    let segment = Checkpointed::new(dense);
    let y = segment.forward(&x).unwrap().square().unwrap().sum().unwrap();
    let e = grad(&[(&y, None)], &all, GradOptions::create_graph()).unwrap_err();
    assert!(matches!(e, NnError::NotTwiceDifferentiable { op: "checkpointed" }), "{e}");
    let got = grad(&[(&y, None)], &all, GradOptions::default()).unwrap();
    for (got, want) in got.iter().zip(&want) {
        let [got, want] = [got, want].map(|t| t.as_ref().unwrap().to_vec::<f32>().unwrap());
        assert_eq!(got, want);
    }
    assert!(all.iter().all(|t| t.grad().is_none()), "leaves collect nothing");
    segment.forward(&x).unwrap().square().unwrap().sum().unwrap().backward().unwrap();
    assert!(all.iter().all(|t| t.grad().is_some()));
}
