//! Elementwise functions, movements and reductions.

use super::Arg::*;
use super::{M, Row, same_bits};
use trefoil::DType;
use trefoil::ops::activation::Activation;
use trefoil::ops::elementwise::{Binary, Ternary, Unary};
use trefoil::ops::embedding::EmbeddingGrad;
use trefoil::ops::gemm::Precision;
use trefoil::ops::random::Rng;
use trefoil::ops::reduce::Reduce;
use trefoil::ops::shape::PadMode;
use trefoil_nn::Tensor;

pub(super) fn elementwise() -> Vec<Row> {
    let mut all = rows! {
        "unary" [F(M)] |t| [t[0].unary(Unary::Cosh)?];
        "binary" [F(M), F(M)] |t| [t[0].binary(Binary::Hypot, &t[1])?];
        "ternary" [F(M), F(M), F(M)] |t| [t[0].ternary(Ternary::Fma, &t[1], &t[2])?];
        "to_dtype" [F(M)] |t| [t[0].to_dtype(DType::F16)?];
        "to_device" [F(M)] |t| [t[0].to_device(&crate::common::cpu())?];
        "where_" [F(M), Mask(M), F(M)] |t| [t[0].where_(&t[1], &t[2])?];
        "clamp" [F(M)] |t| [t[0].clamp(Some(0.3), Some(0.6))?];
        "mul_scalar" [F(M)] |t| [t[0].mul_scalar(1.7)?];
        "rdiv_scalar" [F(M)] |t| [t[0].rdiv_scalar(1.7)?];
        "add_scalar" [F(M)] |t| [t[0].add_scalar(1.7)?];
        "pow_scalar" [F(M)] |t| [t[0].pow_scalar(1.7)?];
        "mul_add" [F(M), F(M), F(M)] |t| [t[0].mul_add(&t[1], &t[2])?];
        "activation" [F(M)] |t| [t[0].activation(Activation::Mish)?];
        "relu" [F(M)] |t| [t[0].relu()?];
        "sigmoid" [F(M)] |t| [t[0].sigmoid()?];
        "tanh" [F(M)] |t| [t[0].tanh()?];
        "gelu" [F(M)] |t| [t[0].gelu()?];
        "silu" [F(M)] |t| [t[0].silu()?];
        "softmax" [F(M)] |t| [t[0].softmax(0)?, t[0].softmax(1)?];
        "log_softmax" [F(M)] |t| [t[0].log_softmax(0)?, t[0].log_softmax(1)?];
        "prelu" [F(M), F(&[6])] |t| [t[0].prelu(&t[1])?];
        "sparsemax" [F(M)] |t| [t[0].sparsemax(0)?, t[0].sparsemax(1)?];
        "entmax" [F(M)] |t| [t[0].entmax(1.5, 0)?, t[0].entmax(1.3, 1)?];
        "squash" [F(M)] |t| [t[0].squash(0)?, t[0].squash(1)?];
        "glu" [F(M)] |t| [t[0].glu(Activation::Sigmoid, 0)?, t[0].glu(Activation::Gelu, 1)?];
        "gated_by" [F(M), F(M)] |t| [t[0].gated_by(&t[1], Activation::Relu)?];
        "dropout" [F(M)] |t| [t[0].dropout(0.4, Rng::new(3).at(1, 0))?];
    };
    macro_rules! each {
        ($($name:ident)*; $($two:ident)*) => {
            $(all.push(Row { name: stringify!($name), args: vec![F(M)], run: Box::new(|t| Ok(vec![t[0].$name()?])) });)*
            $(all.push(Row { name: stringify!($two), args: vec![F(M), F(M)], run: Box::new(|t| Ok(vec![t[0].$two(&t[1])?])) });)*
        };
    }
    each!(neg abs sign exp exp2 expm1 ln log2 log1p sqrt rsqrt square recip sin cos tan erf floor ceil is_nan is_finite;
          add sub mul div pow maximum minimum fmod remainder atan2 eq ne lt le gt ge);
    all.push(Row {
        name: "logical_not",
        args: vec![Mask(M)],
        run: Box::new(|t| Ok(vec![t[0].logical_not()?])),
    });
    all
}

pub(super) fn shapes_and_sums() -> Vec<Row> {
    rows! {
        "contiguous" [F(M)] |t| [t[0].contiguous()?];
        "copy" [F(M)] |t| [t[0].copy()?];
        "reshape" [F(M)] |t| [t[0].reshape(&[3, 8])?];
        "flatten" [F(M)] |t| [t[0].flatten(0, 1)?];
        "permute" [F(M)] |t| [t[0].permute(&[1, 0])?];
        "transpose" [F(M)] |t| [t[0].transpose(0, 1)?];
        "slice" [F(M)] |t| [t[0].slice(1, 1, 6, 2)?];
        "narrow" [F(M)] |t| [t[0].narrow(0, 1, 2)?];
        "select" [F(M)] |t| [t[0].select(1, 3)?];
        "diagonal" [F(M)] |t| [t[0].diagonal(1, 0, 1)?];
        "split" [F(M)] |t| t[0].split(1, &[2, 4])?;
        "unsqueeze" [F(M)] |t| [t[0].unsqueeze(1)?];
        "squeeze" [F(&[4, 1, 6])] |t| [t[0].squeeze(1)?];
        "expand" [F(M)] |t| [t[0].expand(&[3, 4, 6])?];
        "channel_shuffle" [F(&[2, 6, 3])] |t| [t[0].channel_shuffle(3)?];
        "unfold" [F(M)] |t| [t[0].unfold(1, 3, 2)?];
        "concat" [F(M), F(M)] |t| [Tensor::concat(1, &[&t[0], &t[1]])?];
        "stack" [F(M), F(M)] |t| [Tensor::stack(1, &[&t[0], &t[1]])?];
        "pad" [F(M)] |t| [t[0].pad(PadMode::Reflect, &[(1, 2), (0, 3)])?];
        "flip" [F(M)] |t| [t[0].flip(&[1])?];
        "roll" [F(M)] |t| [t[0].roll(&[2], &[0])?];
        "tril" [F(M)] |t| [t[0].tril(1)?];
        "triu" [F(M)] |t| [t[0].triu(-1)?];
        "repeat_interleave" [F(M)] |t| [t[0].repeat_interleave(1, 2)?];
        "reduce" [F(M)] |t| [t[0].reduce(Reduce::SumSq, &[0], false)?, t[0].reduce(Reduce::Prod, &[1], true)?];
        "sum" [F(M)] |t| [t[0].sum()?];
        "mean" [F(M)] |t| [t[0].mean()?];
        "sum_axes" [F(M)] |t| [t[0].sum_axes(&[0], true)?, t[0].sum_axes(&[1], false)?];
        "mean_axes" [F(M)] |t| [t[0].mean_axes(&[0], true)?, t[0].mean_axes(&[1], false)?];
        "amax" [F(M)] |t| [t[0].amax(&[0], true)?, t[0].amax(&[1], false)?];
        "amin" [F(M)] |t| [t[0].amin(&[0], true)?, t[0].amin(&[1], false)?];
        "var" [F(M)] |t| [t[0].var(&[0], 1.0, true)?, t[0].var(&[1], 0.0, false)?];
        "norm" [F(M)] |t| [t[0].norm(2.0)?, t[0].norm(3.0)?];
        "logsumexp" [F(M)] |t| [t[0].logsumexp(&[0], true)?, t[0].logsumexp(&[1], false)?];
        "argmax" [F(M)] |t| [t[0].argmax(0)?, t[0].argmax(1)?];
        "argmin" [F(M)] |t| [t[0].argmin(0)?, t[0].argmin(1)?];
        "max_with_index" [F(M)] |t| <[Tensor; 2]>::from(t[0].max_with_index(1)?);
        "min_with_index" [F(M)] |t| <[Tensor; 2]>::from(t[0].min_with_index(0)?);
        "mean_var" [F(M)] |t| {
            let (a, b) = t[0].mean_var(&[0], 1.0, false)?;
            let (c, e) = t[0].detach().mean_var(&[1], 1.0, false)?;
            [a, b, c, e]
        };
        "dot" [F(M), F(M)] |t| [t[0].dot(&t[1])?];
        "sum_to_shape" [F(M)] |t| [t[0].sum_to_shape(&[1, 6])?];
        "index_select" [F(M), Ids(&[5], 4)] |t| [t[0].index_select(0, &t[1])?];
        "gather" [F(M), Ids(&[3, 6], 4)] |t| [t[0].gather(0, &t[1])?];
        "index_add" [F(M), Ids(&[3], 4), F(&[3, 6])] |t| [t[0].index_add(0, &t[1], &t[2])?];
        "one_hot" [Ids(M, 5)] |t| [t[0].one_hot(5, DType::F32)?];
        "embedding" [F(&[7, 4]), Ids(&[2, 3], 7)] |t| [t[0].embedding(&t[1], &EmbeddingGrad::new())?];
        "embedding_renorm" [F(&[7, 4]), Ids(&[2, 3], 7)] |t| {
            // In place, so on a table of its own.
            let table = t[0].detach().copy()?;
            table.embedding_renorm(&t[1], 0.5, 2.0)?;
            [table]
        };
        "matmul" [F(&[4, 5]), F(&[5, 6])] |t| [t[0].matmul(&t[1])?];
        "linear" [F(&[4, 5]), F(&[6, 5]), F(&[6])] |t|
            [t[0].linear(&t[1], Some(&t[2]), Activation::Gelu, Precision::Ieee)?];
        "dropout" [F(M)] |t| [t[0].dropout(0.4, Rng::new(3).at(1, 0))?];
    }
}

#[test]
fn elementwise_operations() {
    same_bits(&elementwise());
}

#[test]
fn movements_and_reductions() {
    same_bits(&shapes_and_sums());
}
