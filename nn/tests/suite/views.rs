//! Operations and losses of views (other strides, gaps) give the same bits as of the copies in row-major order.

use std::collections::BTreeSet;

use crate::common::{devices, id, noise};
use trefoil::DType;
use trefoil::ops::activation::Activation;
use trefoil::ops::attention::Rope;
use trefoil::ops::conv::Conv;
use trefoil::ops::elementwise::{Binary, Ternary, Unary};
use trefoil::ops::embedding::EmbeddingGrad;
use trefoil::ops::gemm::Precision;
use trefoil::ops::language_model::LogitProcessors;
use trefoil::ops::linalg::Triangular;
use trefoil::ops::norm::{BatchNorm, GroupNorm, InstanceNorm, RowNorm};
use trefoil::ops::pool::Window;
use trefoil::ops::quantized::{Fp8, QuantFormat};
use trefoil::ops::random::Rng;
use trefoil::ops::reduce::Reduce;
use trefoil::ops::resample::{GridSample, Interpolate, InterpolateMode, RoiAlign, SampleMode};
use trefoil::ops::rnn::{Recurrence, RnnCell};
use trefoil::ops::shape::PadMode;
use trefoil_nn::losses::{self as l, Reduction};
use trefoil_nn::{
    BatchNormStats, ConvLstmParams, CrossEntropyLoss, Device, FftNorm, LinearCrossEntropyLoss, MseLoss,
    PagedCache, QuantGranularity, QuantizedWeight, Result, RnnParams, RnnState, ScaledDotProductAttention,
    SelectiveScanOptions, Stft, Tensor,
};

/// An operand.
#[derive(Clone, Copy)]
enum Arg {
    /// f32 in (0.05, 0.95).
    F(&'static [usize]),
    /// -1 and 1.
    Sign(&'static [usize]),
    /// i64 below a limit.
    Ids(&'static [usize], i64),
    /// i32 below a limit, from 1.
    Count(&'static [usize], i32),
    /// i32, all equal.
    Equal(&'static [usize], i32),
    /// u8, 0 and 1.
    Mask(&'static [usize]),
}
use Arg::*;

impl Arg {
    fn dense(self, d: &Device, seed: u64) -> Tensor {
        let (F(shape) | Sign(shape) | Ids(shape, _) | Count(shape, _) | Equal(shape, _) | Mask(shape)) = self;
        let v = noise(seed, shape.iter().product());
        let unit = |x: f64| 0.5 + 0.5 * x;
        match self {
            F(_) => {
                let v: Vec<f32> = v.iter().map(|&x| (0.5 + 0.45 * x) as f32).collect();
                Tensor::from_slice(d, &v, shape)
            }
            Sign(_) => {
                let v: Vec<f32> = v.iter().map(|&x| x.signum() as f32).collect();
                Tensor::from_slice(d, &v, shape)
            }
            Ids(_, n) => {
                let v: Vec<i64> = v.iter().map(|&x| (unit(x) * n as f64) as i64).collect();
                Tensor::from_slice(d, &v, shape)
            }
            Count(_, n) => {
                let v: Vec<i32> = v.iter().map(|&x| 1 + (unit(x) * (n - 1) as f64) as i32).collect();
                Tensor::from_slice(d, &v, shape)
            }
            Equal(_, n) => Tensor::from_slice(d, &vec![n; v.len()], shape),
            Mask(_) => {
                let v: Vec<u8> = v.iter().map(|&x| u8::from(x > -0.3)).collect();
                Tensor::from_slice(d, &v, shape)
            }
        }
        .unwrap()
    }
}

/// The same elements in the order of the columns.
fn transposed(t: &Tensor) -> Tensor {
    match t.rank() {
        0 | 1 => gaps(t),
        _ => t.transpose(0, -1).unwrap().contiguous().unwrap().transpose(0, -1).unwrap(),
    }
}

/// The same elements, every second one of a tensor twice as wide.
fn gaps(t: &Tensor) -> Tensor {
    if t.rank() == 0 {
        return t.clone();
    }
    let wide = Tensor::stack(-1, &[t, t]).unwrap().flatten(-2, -1).unwrap();
    let n = wide.shape()[t.rank() - 1];
    wide.slice(-1, 1, n, 2).unwrap()
}

type Run = Box<dyn Fn(&[Tensor]) -> Result<Vec<Tensor>>>;

struct Row {
    name: &'static str,
    args: Vec<Arg>,
    run: Run,
}

macro_rules! rows {
    ($($name:literal [$($arg:expr),*] |$t:ident| $body:expr;)*) => {
        vec![$(Row { name: $name, args: vec![$($arg),*], run: Box::new(|$t: &[Tensor]| Ok(Vec::from($body))) }),*]
    };
}

/// Name, shape and bytes of a result.
type Bits = (String, Vec<usize>, Vec<u8>);

/// Outputs, and the gradients of each for all floating operands.
fn results(row: &Row, inputs: &[Tensor]) -> Result<Vec<Bits>> {
    let leaves: Vec<Tensor> = inputs.iter().map(Tensor::with_grad).collect();
    let mut all = vec![];
    for (i, y) in (row.run)(&leaves)?.iter().enumerate() {
        all.push((format!("output {i}"), y.shape().to_vec(), y.to_bytes()?));
        if !y.requires_grad() {
            continue;
        }
        let w: Vec<f32> = noise(70 + i as u64, y.numel()).iter().map(|&v| v as f32).collect();
        let w = Tensor::from_slice(y.device(), &w, y.shape())?.to_dtype(y.dtype())?;
        y.mul(&w)?.sum()?.backward_retain()?;
        for (k, t) in leaves.iter().enumerate() {
            if let Some(g) = t.grad() {
                all.push((format!("gradient {k} of output {i}"), g.shape().to_vec(), g.to_bytes()?));
                t.zero_grad()?;
            }
        }
    }
    Ok(all)
}

/// Products of matrices and sums take other layouts as they are, without a copy, and some devices then add in another order: equal up to
/// rounding.
const SUMMED: &[&str] = &[
    "matmul",
    "linear",
    "dot",
    "einsum",
    "expand",
    "reduce",
    "sum",
    "mean",
    "sum_axes",
    "mean_axes",
    "var",
    "mean_var",
    "norm",
    "logsumexp",
    "sum_to_shape",
    "squash",
];

fn equal(name: &str, a: &Bits, b: &Bits) -> bool {
    let float = |b: &[u8]| f32::from_le_bytes([b[0], b[1], b[2], b[3]]);
    let near = |a: &[u8], b: &[u8]| (float(a) - float(b)).abs() <= 1e-6 * (1.0 + float(b).abs());
    a.1 == b.1
        && match SUMMED.contains(&name) {
            true => a.2.len() == b.2.len() && a.2.chunks(4).zip(b.2.chunks(4)).all(|(a, b)| near(a, b)),
            false => a.2 == b.2,
        }
}

fn same_bits(rows: &[Row]) {
    let mut wrong = vec![];
    for d in devices() {
        for row in rows {
            let dense: Vec<Tensor> =
                row.args.iter().enumerate().map(|(i, a)| a.dense(&d, 5 + i as u64)).collect();
            let want = results(row, &dense).unwrap_or_else(|e| panic!("{}: {e}", row.name));
            for (how, view) in [("transposed", transposed as fn(&Tensor) -> Tensor), ("with gaps", gaps)] {
                let place = |what: &str| format!("{} of views {how} on {}: {what}", row.name, id(&d));
                let views: Vec<Tensor> = dense.iter().map(view).collect();
                assert!(views.iter().all(|v| !v.is_contiguous() || v.numel() < 2), "{}", place("no views"));
                match results(row, &views) {
                    Err(e) => wrong.push(place(&e.to_string())),
                    Ok(got) if got.len() != want.len() => wrong.push(place("another number of results")),
                    Ok(got) => {
                        let pairs = got.iter().zip(&want).filter(|(g, w)| !equal(row.name, g, w));
                        wrong.extend(pairs.map(|(g, _)| place(&format!("other numbers in {}", g.0))));
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

const M: &[usize] = &[4, 6];
const IMAGE: &[usize] = &[2, 4, 6, 6];

fn elementwise() -> Vec<Row> {
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

fn shapes_and_sums() -> Vec<Row> {
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

fn networks() -> Vec<Row> {
    rows! {
        "matmul" [F(&[3, 4, 5]), F(&[3, 5, 6])] |t| [t[0].matmul(&t[1])?];
        "conv" [F(IMAGE), F(&[6, 4, 3, 3]), F(&[6])] |t|
            [t[0].conv(&t[1], Some(&t[2]), &Conv::new().pad(1).act(Activation::Swish { beta: 1.0 }))?];
        "conv1d" [F(&[2, 4, 7]), F(&[6, 4, 3])] |t| [t[0].conv1d(&t[1], None, &Conv::new())?];
        "conv2d" [F(IMAGE), F(&[6, 2, 3, 3])] |t| [t[0].conv2d(&t[1], None, &Conv::new().groups(2))?];
        "conv3d" [F(&[2, 2, 4, 4, 4]), F(&[3, 2, 2, 2, 2])] |t| [t[0].conv3d(&t[1], None, &Conv::new())?];
        "conv_transpose" [F(IMAGE), F(&[4, 3, 2, 2])] |t|
            [t[0].conv_transpose(&t[1], None, &Conv::new().stride(2))?];
        "deform_conv" [F(IMAGE), F(&[3, 4, 2, 2]), F(&[2, 8, 5, 5]), F(&[2, 4, 5, 5])] |t|
            [t[0].deform_conv(&t[1], &t[2], Some(&t[3]), None, &Conv::new())?];
        "im2col" [F(IMAGE)] |t| [t[0].im2col(&[3, 3], &Conv::new())?];
        "col2im" [F(&[2, 16, 9])] |t| [t[0].col2im(&[4, 4], &[2, 2], &Conv::new())?];
        "max_pool" [F(IMAGE)] |t| [t[0].max_pool(&Window::new(&[2, 2]))?];
        "max_pool_with_index" [F(IMAGE)] |t| <[Tensor; 2]>::from(t[0].max_pool_with_index(&Window::new(&[2, 2]))?);
        "adaptive_max_pool" [F(IMAGE)] |t| [t[0].adaptive_max_pool(&[2, 3])?];
        "adaptive_max_pool_with_index" [F(IMAGE)] |t|
            <[Tensor; 2]>::from(t[0].adaptive_max_pool_with_index(&[2, 3])?);
        "avg_pool" [F(IMAGE)] |t| [t[0].avg_pool(&Window::new(&[2, 2]))?];
        "adaptive_avg_pool" [F(IMAGE)] |t| [t[0].adaptive_avg_pool(&[4, 5])?];
        "global_avg_pool" [F(IMAGE)] |t| [t[0].global_avg_pool()?];
        "global_max_pool" [F(IMAGE)] |t| [t[0].global_max_pool()?];
        "interpolate" [F(IMAGE)] |t| [t[0].interpolate(&[9, 5], Interpolate::new(InterpolateMode::Linear))?];
        "interpolate_by" [F(IMAGE)] |t| [t[0].interpolate_by(&[1.5, 2.0], Interpolate::new(InterpolateMode::Nearest))?];
        "affine_grid" [F(&[2, 2, 3])] |t| [t[0].affine_grid(&[4, 5], false)?];
        "grid_sample" [F(IMAGE), F(&[2, 3, 5, 2])] |t| [t[0].grid_sample(&t[1], GridSample::new(SampleMode::Linear))?];
        "roi_align" [F(IMAGE), F(&[5, 4]), Ids(&[5], 2)] |t| {
            let corners = t[1].add(&Tensor::from_slice(t[0].device(), &[0f32, 0.0, 2.0, 3.0], &[4])?)?;
            [t[0].roi_align(&corners, &t[2], [2, 3], RoiAlign::new().aligned(true))?]
        };
        "pixel_shuffle" [F(IMAGE)] |t| [t[0].pixel_shuffle(2)?];
        "pixel_unshuffle" [F(IMAGE)] |t| [t[0].pixel_unshuffle(2)?];
        "row_norm" [F(M), F(&[6]), F(&[6])] |t| [t[0].row_norm(&RowNorm::layer(), Some(&t[1]), Some(&t[2]))?];
        "add_row_norm" [F(M), F(M), F(&[6])] |t|
            <[Tensor; 2]>::from(t[0].add_row_norm(&t[1], &RowNorm::rms(), Some(&t[2]), None)?);
        "group_norm" [F(IMAGE), F(&[4]), F(&[4])] |t| [t[0].group_norm(&GroupNorm::new(2), Some(&t[1]), Some(&t[2]))?];
        "instance_norm" [F(IMAGE), F(&[4])] |t| [t[0].instance_norm(&InstanceNorm::new(), Some(&t[1]), None, None)?];
        "batch_norm_add" [F(IMAGE), F(IMAGE), F(&[4]), F(&[4])] |t| {
            let p = BatchNorm::new();
            [t[0].batch_norm_add(Some(&t[1]), &p, Some(&t[2]), Some(&t[3]), BatchNormStats::Batch(None))?]
        };
        "forward_packed" [F(&[2, 3, 12])] |t| [ScaledDotProductAttention::new().forward_packed(&t[0], 2)?];
        "batch_norm" [F(IMAGE), F(&[4]), F(&[4])] |t|
            [t[0].batch_norm(&BatchNorm::new(), Some(&t[1]), Some(&t[2]), BatchNormStats::Batch(None))?];
        "conv_lstm" [F(&[3, 2, 2, 4, 4]), F(&[8, 2, 3, 3]), F(&[8, 2, 3, 3]), F(&[8])] |t| {
            let [w_ih, w_hh, bias] = [1, 2, 3].map(|i: usize| t[i].clone());
            let weights = ConvLstmParams { w_ih, w_hh, bias: Some(bias), peephole: None };
            let (y, state) = t[0].conv_lstm(&weights, None)?;
            [y, state.h, state.c.unwrap()]
        };
        "batch_norm" [F(IMAGE), F(&[4]), F(&[4])] |t|
            [t[0].batch_norm(&BatchNorm::new(), None, None, BatchNormStats::Given(&t[1].detach(), &t[2].detach()))?];
        "nms" [F(&[6, 4]), F(&[6]), Ids(&[6], 2)] |t| {
            let corners = t[0].add(&Tensor::from_slice(t[0].device(), &[0f32, 0.0, 1.0, 1.0], &[4])?)?;
            [t[0].nms(&t[1], None, 0.5)?, corners.t()?.contiguous()?.t()?.nms(&t[1], Some(&t[2]), 0.5)?]
        };
        "linear_assignment" [F(&[2, 3, 5]), F(&[7, 4])] |t|
            [t[0].linear_assignment(None)?, t[1].linear_assignment(None)?];
        "linear_quantized" [F(M), Mask(&[3, 6]), F(&[3]), F(&[3, 2])] |t| {
            let int8 = QuantizedWeight::Int8 { q: t[1].clone(), scale: t[2].clone() };
            let q = t[1].narrow(1, 0, 3)?;
            let int4 = QuantizedWeight::Int4 { q, scale: t[3].clone(), zero: Some(t[3].clone()) };
            [t[0].linear_quantized(&int8)?, t[0].linear_quantized(&int4)?]
        };
        "fft" [F(&[4, 6, 2])] |t| [t[0].fft(0, FftNorm::Backward)?];
        "ifft" [F(&[4, 6, 2])] |t| [t[0].ifft(1, FftNorm::Ortho)?];
        "fftn" [F(&[4, 6, 2])] |t| [t[0].fftn(&[0, 1], FftNorm::Backward)?];
        "ifftn" [F(&[4, 6, 2])] |t| [t[0].ifftn(&[0, 1], FftNorm::Backward)?];
        "rfft" [F(M)] |t| [t[0].rfft(0, FftNorm::Backward)?];
        "rfftn" [F(M)] |t| [t[0].rfftn(&[0, 1], FftNorm::Backward)?];
        "irfft" [F(&[4, 6, 2])] |t| [t[0].irfft(7, 0, FftNorm::Backward)?];
        "irfftn" [F(&[4, 6, 2])] |t| [t[0].irfftn(11, &[0, 1], FftNorm::Backward)?];
        "fftshift" [F(M)] |t| [t[0].fftshift(&[0, 1])?];
        "ifftshift" [F(M)] |t| [t[0].ifftshift(&[1])?];
        "complex_mul" [F(&[4, 6, 2]), F(&[6, 2])] |t| [t[0].complex_mul(&t[1])?];
        "stft" [F(&[2, 12]), F(&[4])] |t| [t[0].stft(&t[1], &Stft::new(6).hop(2))?];
        "istft" [F(&[2, 4, 5, 2])] |t| [t[0].istft(&Tensor::ones(t[0].device(), t[0].dtype(), &[6])?, &Stft::new(6).hop(2), None)?];
        "quantize" [F(M)] |t| {
            let (q, scale) = t[0].quantize(QuantFormat::Int8, QuantGranularity::Row)?;
            [q, scale]
        };
        "dequantize" [Mask(M), F(&[4])] |t| [t[0].dequantize(QuantFormat::Int8, &t[1], DType::F32)?];
        "fake_quantize" [F(M)] |t| [t[0].fake_quantize(QuantFormat::Int4, QuantGranularity::Tensor)?];
        "linear_w8a8" [Mask(M), F(&[4]), Mask(&[3, 6]), F(&[3])] |t| [t[0].linear_w8a8(&t[1], &t[2], &t[3])?];
        "scaled_mm_fp8" [Mask(M), F(&[4]), Mask(&[3, 6]), F(&[3])] |t|
            [t[0].scaled_mm_fp8(&t[1], &t[2], &t[3], (Fp8::E4m3, Fp8::E5m2), None)?];
        "sparse_compress" [F(&[3, 8]), F(&[8, 2])] |t| {
            let s = t[0].sparse_compress()?;
            [s.values().clone(), s.index().clone(), s.to_dense()?, s.matmul(&t[1])?]
        };
        "rope" [F(&[2, 3, 2, 4])] |t| [t[0].rope(&Rope::new(), None)?];
        "split_heads" [F(&[2, 3, 8])] |t| t[0].split_heads(2, 2)?;
        "split_head_groups" [F(&[2, 3, 8])] |t| t[0].split_head_groups(&[2, 1, 1])?;
        "merge_heads" [F(&[2, 2, 3, 4])] |t| [t[0].merge_heads()?];
        "forward" [F(&[2, 2, 3, 4]), F(&[2, 2, 5, 4]), F(&[2, 2, 5, 4]), F(&[2, 2, 3, 5]), Mask(&[2, 2, 3, 5])] |t| {
            let plain = ScaledDotProductAttention::new();
            let op = ScaledDotProductAttention { bias: Some(t[3].clone()), mask: Some(t[4].clone()), ..plain };
            [op.forward(&t[0], &t[1], &t[2])?]
        };
        "forward_with_weights" [F(&[2, 2, 3, 4]), F(&[2, 2, 5, 4]), F(&[2, 2, 5, 4])] |t|
            <[Tensor; 2]>::from(ScaledDotProductAttention::new().forward_with_weights(&t[0], &t[1], &t[2])?);
        "rnn" [F(&[2, 3, 4]), F(&[8, 4]), F(&[8, 2]), F(&[8]), F(&[8]), F(&[2, 2]), F(&[2, 2]), Count(&[2], 3)] |t| {
            let [w_ih, w_hh, b_ih, b_hh] = [1, 2, 3, 4].map(|i: usize| t[i].clone());
            let weights = RnnParams { w_ih, w_hh, b_ih: Some(b_ih), b_hh: Some(b_hh) };
            let start = RnnState { h: t[5].clone(), c: Some(t[6].clone()) };
            let how = Recurrence::new().batch_first(true);
            let (y, state) = t[0].rnn(RnnCell::Lstm, &how, &weights, Some(&start), Some(&t[7]))?;
            [y, state.h, state.c.unwrap()]
        };
    }
}

/// A symmetric positive definite matrix of any square one.
fn definite(a: &Tensor) -> Result<Tensor> {
    let n = a.shape()[a.rank() - 1];
    a.matmul(&a.transpose(-2, -1)?)?.add(&Tensor::eye(a.device(), a.dtype(), n)?)
}

/// Matrices that are factored, scans of states, attention of decoding steps and choice of tokens.
fn matrices_and_sequences() -> Vec<Row> {
    const A: &[usize] = &[2, 4, 4];
    const S: &[usize] = &[2, 5, 2, 3];
    rows! {
        "cholesky" [F(A)] |t| [definite(&t[0])?.cholesky(false)?];
        "cholesky_ex" [F(A)] |t| <[Tensor; 2]>::from(definite(&t[0])?.cholesky_ex(true)?);
        "solve_triangular" [F(A), F(&[2, 4, 3])] |t| [t[0].solve_triangular(&t[1], Triangular::lower())?];
        "lu_factor" [F(A)] |t| {
            let f = t[0].lu_factor()?;
            [f.lu, f.pivots, f.info]
        };
        "ldl_factor" [F(A)] |t| {
            let f = t[0].ldl_factor()?;
            [f.ld, f.pivots, f.info]
        };
        "solve" [F(A), F(&[2, 4, 3])] |t| [definite(&t[0])?.solve(&t[1])?];
        "solve_ex" [F(A), F(&[2, 4, 3])] |t| <[Tensor; 2]>::from(definite(&t[0])?.solve_ex(&t[1])?);
        "inv" [F(A)] |t| [definite(&t[0])?.inv()?];
        "inv_ex" [F(A)] |t| <[Tensor; 2]>::from(definite(&t[0])?.inv_ex()?);
        "det" [F(A)] |t| [definite(&t[0])?.det()?];
        "slogdet" [F(A)] |t| <[Tensor; 2]>::from(definite(&t[0])?.slogdet()?);
        "qr" [F(&[2, 5, 3])] |t| <[Tensor; 2]>::from(t[0].qr()?);
        "lstsq" [F(&[2, 5, 3]), F(&[2, 5, 2])] |t| [t[0].lstsq(&t[1])?];
        "eigh" [F(A)] |t| <[Tensor; 2]>::from(definite(&t[0])?.eigh(false)?);
        "eigh_ex" [F(A)] |t| <[Tensor; 3]>::from(definite(&t[0])?.eigh_ex(true)?);
        "eigvalsh" [F(A)] |t| [definite(&t[0])?.eigvalsh(false)?];
        "svd_ex" [F(&[2, 3, 5])] |t| <[Tensor; 4]>::from(t[0].svd_ex()?);
        "svdvals_ex" [F(A)] |t| <[Tensor; 2]>::from(t[0].svdvals_ex()?);
        "matrix_exp" [F(A)] |t| [t[0].matrix_exp()?];
        "newton_schulz" [F(&[4, 6])] |t| [t[0].newton_schulz(5)?];
        "einsum" [F(A), F(&[2, 4, 3])] |t| [Tensor::einsum("bij,bjk->ik", &[&t[0], &t[1]])?];
        "associative_scan" [F(&[2, 5, 3]), F(&[2, 5, 3])] |t| [t[0].associative_scan(&t[1], false)?];
        "gla_scan" [F(S), F(S), F(&[2, 5, 2, 4]), F(&[2, 5, 2]), F(&[2, 2, 4, 3])] |t|
            <[Tensor; 2]>::from(t[0].gla_scan(&t[1], &t[2], &t[3], Some(&t[4].detach()))?);
        "gated_delta_scan" [F(S), F(S), F(S), F(&[2, 5, 2]), F(&[2, 5, 2]), F(&[2, 2, 3, 3])] |t|
            <[Tensor; 2]>::from(t[0].gated_delta_scan(&t[1], &t[2], &t[3], &t[4], Some(&t[5].detach()))?);
        "selective_scan" [F(&[2, 5, 3]), F(&[2, 5, 3]), F(&[3, 4]), F(&[2, 5, 4]), F(&[2, 5, 4]), F(&[3]), F(&[2, 5, 3])] |t| {
            let options = SelectiveScanOptions { d: Some(&t[5]), z: Some(&t[6]), ..Default::default() };
            <[Tensor; 2]>::from(t[0].selective_scan(&t[1], &t[2], &t[3], &t[4], &options)?)
        };
        "ssd_scan" [F(S), F(&[2, 5, 2]), F(&[2]), F(&[2, 5, 1, 4]), F(&[2, 5, 1, 4]), F(&[2])] |t|
            <[Tensor; 2]>::from(t[0].ssd_scan(&t[1], &t[2], &t[3], &t[4], Some(&t[5]), None)?);
        "flash_decode" [F(&[2, 4, 2, 4]), F(&[2, 2, 5, 4]), F(&[2, 2, 5, 4]), Count(&[2], 5)] |t| {
            let one = t[0].narrow(2, 0, 1)?;
            [one.flash_decode(&t[1], &t[2], Some(&t[3]), None)?, t[0].flash_decode(&t[1], &t[2], None, Some(0.3))?]
        };
        "append" [F(&[4, 2, 3]), F(&[4, 2, 3]), Count(&[4], 8)] |t| {
            // In place, so into tensors of its own, which are whole.
            let zeros = || Tensor::zeros(t[0].device(), t[0].dtype(), &[3, 4, 2, 3]);
            let (keys, values, none) = (zeros()?, zeros()?, &t[2]);
            PagedCache { keys: &keys, values: &values, block_table: none, seq_lens: none }.append(&t[0], &t[1], &t[2])?;
            [keys, values]
        };
        "paged_attention" [F(&[2, 4, 3]), F(&[6, 4, 2, 3]), F(&[6, 4, 2, 3]), Ids(&[2, 3], 6), Count(&[2], 12)] |t| {
            let cache = PagedCache {
                keys: &t[1], values: &t[2], block_table: &t[3].to_dtype(DType::I32)?, seq_lens: &t[4],
            };
            [t[0].paged_attention(&cache, None, None)?]
        };
        "process_logits" [F(M), Count(&[4, 2], 6)] |t|
            [t[0].process_logits(&LogitProcessors::new().repetition_penalty(1.3).top_k(3), Some(&t[1]))?];
        "sample_tokens" [F(M), Count(&[4, 2], 6)] |t|
            [t[0].sample_tokens(&LogitProcessors::new().top_p(0.9), Rng::new(3).at(1, 0), Some(&t[1]))?];
    }
}

fn losses() -> Vec<Row> {
    let mut all = rows! {
        "CrossEntropyLoss" [F(&[4, 5]), Ids(&[4], 5), F(&[5])] |t| {
            let (weight, plain) = (Some(t[2].detach()), CrossEntropyLoss::default());
            [CrossEntropyLoss { weight, ..plain.clone() }.forward(&t[0], &t[1])?, plain.forward(&t[0], &t[0].detach())?]
        };
        "LinearCrossEntropyLoss" [F(&[4, 3]), F(&[5, 3]), F(&[5]), Ids(&[4], 5)] |t|
            [LinearCrossEntropyLoss::default().forward(&t[0], &t[1], Some(&t[2]), &t[3])?];
        "MseLoss" [F(M), F(M), F(M), Mask(M)] |t| {
            let weighted = MseLoss { weight: Some(t[2].detach()), mask: Some(t[3].clone()), ..Default::default() };
            [weighted.forward(&t[0], &t[1])?, MseLoss { reduction: Reduction::None, ..Default::default() }.forward(&t[0], &t[1])?]
        };
        "BceWithLogitsLoss" [F(M), F(M), F(M), F(&[6])] |t| {
            let loss = l::BceWithLogitsLoss {
                weight: Some(t[2].detach()), pos_weight: Some(t[3].detach()), ..Default::default()
            };
            [loss.forward(&t[0], &t[1])?]
        };
        "InfoNceLoss" [F(M), F(M), F(M)] |t| [l::InfoNceLoss::default().forward(&t[0], &t[1], Some(&t[2]))?];
        "SupConLoss" [F(M), Ids(&[4], 2)] |t| [l::SupConLoss::default().forward(&t[0], &t[1])?];
        "PairwiseRankingLoss" [F(&[5]), F(&[5])] |t| [l::PairwiseRankingLoss::default().forward(&t[0], &t[1])?];
        "MoeBalanceLoss" [F(M), Ids(&[4, 2], 6)] |t| [l::MoeBalanceLoss::default().forward(&t[0], &t[1])?];
        "RotationPredictionLoss" [F(&[3, 4, 4])] |t| [l::RotationPredictionLoss::default().forward(&t[0])?];
        "LovaszLoss" [F(M), Ids(&[4], 6)] |t| [l::LovaszLoss::default().forward(&t[0], &t[1])?];
        "NllLoss" [F(M), Ids(&[4], 6), F(&[6])] |t|
            [l::NllLoss { weight: Some(t[2].clone()), ..Default::default() }.forward(&t[0], &t[1])?];
        "MulticlassFocalLoss" [F(M), Ids(&[4], 6)] |t| [l::MulticlassFocalLoss::default().forward(&t[0], &t[1])?];
        "ArcFaceLoss" [F(M), Ids(&[4], 6)] |t| [l::ArcFaceLoss::default().forward(&t[0], &t[1])?];
        "CircleLoss" [F(M), Ids(&[4], 6)] |t| [l::CircleLoss { scale: 4.0, ..Default::default() }.forward(&t[0], &t[1])?];
        "KtoLoss" [F(&[5]), F(&[5]), Mask(&[5])] |t|
            [l::KtoLoss::default().forward(&t[0], &t[1], &t[2].to_dtype(t[0].dtype())?, None)?];
        "MultiMarginLoss" [F(M), Ids(&[4], 6)] |t| [l::MultiMarginLoss::default().forward(&t[0], &t[1])?];
        "MultiLabelMarginLoss" [F(M), Ids(M, 6)] |t| [l::MultiLabelMarginLoss::default().forward(&t[0], &t[1])?];
        "TripletMarginLoss" [F(M), F(M), F(M)] |t| [l::TripletMarginLoss::default().forward(&t[0], &t[1], &t[2])?];
        "ContrastiveLoss" [F(M), F(M), F(&[4])] |t| [l::ContrastiveLoss::default().forward(&t[0], &t[1], &t[2])?];
        "CosineEmbeddingLoss" [F(M), F(M), Sign(&[4])] |t|
            [l::CosineEmbeddingLoss::default().forward(&t[0], &t[1], &t[2])?];
        "MarginRankingLoss" [F(M), F(M), Sign(M)] |t| [l::MarginRankingLoss::default().forward(&t[0], &t[1], &t[2])?];
        "GaussianNllLoss" [F(M), F(M), F(M)] |t| [l::GaussianNllLoss::default().forward(&t[0], &t[1], &t[2])?];
        "BoxIouLoss" [F(&[5, 4]), F(&[5, 4])] |t| {
            // Corners in order.
            let far = |t: &Tensor| -> Result<Tensor> {
                let (a, b) = (t.narrow(1, 0, 2)?, t.narrow(1, 2, 2)?);
                Tensor::concat(1, &[&a, &b.add_scalar(1.0)?])
            };
            let spread = |t: &Tensor| -> Result<Tensor> { far(t)?.transpose(0, 1)?.contiguous()?.transpose(0, 1) };
            [l::BoxIouLoss::default().forward(&spread(&t[0])?, &spread(&t[1])?)?]
        };
        "QuantumFidelityLoss" [F(&[3, 4, 2]), F(&[3, 4, 2])] |t|
            [l::QuantumFidelityLoss::default().forward(&t[0], &t[1])?];
        "MaskedPatchLoss" [F(&[2, 3, 4]), F(&[2, 3, 4]), Mask(&[2, 3])] |t|
            [l::MaskedPatchLoss::default().forward(&t[0], &t[1], &t[2])?];
        "QuantilesLoss" [F(&[4, 3]), F(&[4]), F(&[3])] |t| [l::QuantilesLoss::default().forward(&t[0], &t[1], &t[2])?];
        "DistillationLoss" [F(M), F(M), Ids(&[4], 6)] |t|
            [l::DistillationLoss::default().forward(&t[0], &t[1], Some(&t[2]))?];
        "DinoLoss" [F(M), F(M), F(&[6])] |t| [l::DinoLoss::default().forward(&t[0], &t[1], &t[2])?];
        "AdversarialLoss" [F(&[4]), F(&[4])] |t| [l::AdversarialLoss::default().forward(&t[0], Some(&t[1]))?];
        "CtcLoss" [F(&[5, 2, 4]), Count(&[2, 2], 4), Equal(&[2], 5), Count(&[2], 2)] |t|
            [l::CtcLoss { zero_infinity: true, ..Default::default() }.forward(&t[0], &t[1], &t[2], &t[3])?];
        "RnntLoss" [F(&[2, 4, 3, 5]), Count(&[2, 2], 5), Count(&[2], 4), Count(&[2], 2)] |t|
            [l::RnntLoss::default().forward(&t[0], &t[1], &t[2], &t[3])?];
        "ZLoss" [F(M)] |t| [l::ZLoss::default().forward(&t[0])?];
        "LossList" [F(M), F(M)] |t| {
            let term = |p: &Tensor, t: &Tensor| l::Term { prediction: p.clone(), target: Some(t.clone()), weight: 0.7 };
            [l::LossList::default().forward(&[term(&t[0], &t[1]), term(&t[1], &t[0])])?]
        };
        "NceLoss" [F(&[4]), F(M), F(&[4]), F(M)] |t|
            [l::NceLoss::default().forward(&t[0], &t[1], Some((&t[2], &t[3])))?];
        "OrdinalLoss" [F(&[4, 3]), Ids(&[4], 4)] |t| [l::OrdinalLoss::default().forward(&t[0], None, &t[1])?];
    };
    macro_rules! pairs {
        ($first:expr; $second:expr; $($name:ident)*) => {
            $(all.push(Row {
                name: stringify!($name),
                args: vec![$first, $second],
                run: Box::new(|t| Ok(vec![l::$name::default().forward(&t[0], &t[1])?])),
            });)*
        };
    }
    pairs!(F(M); F(M); L1Loss SmoothL1Loss HuberLoss LogCoshLoss QuantileLoss CharbonnierLoss MeanBiasLoss HingeLoss
        SquaredHingeLoss ModifiedHuberLoss ExponentialLoss SoftMarginLoss WassersteinLoss PoissonNllLoss
        BornMseLoss BceLoss SigmoidFocalLoss BinaryFocalLoss KlDivLoss NtXentLoss BarlowTwinsLoss
        MultiLabelSoftMarginLoss CategoricalCrossEntropyLoss CapsuleLoss CosineLoss GaussianKlLoss
        RmseLoss ElasticNetLoss SimPoLoss OrpoLoss);
    pairs!(F(M); Sign(M); HingeEmbeddingLoss);
    pairs!(F(&[2, 3, 8]); F(&[2, 3, 8]); DiceLoss TverskyLoss JaccardLoss ScaleInvariantDepthLoss);
    for (name, ipo) in [("DpoLoss", false), ("IpoLoss", true)] {
        all.push(Row {
            name,
            args: vec![F(&[5]); 4],
            run: Box::new(move |t| {
                Ok(vec![match ipo {
                    false => l::DpoLoss::default().forward(&t[0], &t[1], &t[2], &t[3])?,
                    true => l::IpoLoss::default().forward(&t[0], &t[1], &t[2], &t[3])?,
                }])
            }),
        });
    }
    all.push(Row {
        name: "StftLoss",
        args: vec![F(&[2, 64]), F(&[2, 64])],
        run: Box::new(|t| {
            let mut r = l::StftResolution::PARALLEL_WAVEGAN[0];
            (r.fft, r.hop, r.window) = (16, 4, 12);
            Ok(vec![l::StftLoss { resolutions: vec![r] }.forward(&t[0], &t[1])?])
        }),
    });
    all
}

#[test]
fn elementwise_operations() {
    same_bits(&elementwise());
}

#[test]
fn movements_and_reductions() {
    same_bits(&shapes_and_sums());
}

#[test]
fn operations_of_networks() {
    same_bits(&networks());
}

#[test]
fn operations_of_matrices_and_sequences() {
    same_bits(&matrices_and_sequences());
}

#[test]
fn losses_of_views() {
    same_bits(&losses());
}

/// The gradient of a repeated view as an operand has all its elements; the repetition sums them up.
#[test]
fn gradients_of_repeated_operands() {
    for d in devices() {
        let w: Vec<f32> = noise(9, 72).iter().map(|&v| v as f32).collect();
        let full = Tensor::from_slice(&d, &w, &[3, 4, 6]).unwrap();
        for shape in [&[4usize, 6][..], &[6], &[]] {
            let x = Tensor::full(&d, DType::F32, shape, 0.5).unwrap().with_grad();
            let n = x.numel();
            let want: Vec<f32> = (0..n).map(|i| w.iter().skip(i).step_by(n).sum()).collect();
            for swapped in [false, true] {
                x.zero_grad().unwrap();
                let wide = x.expand(&[3, 4, 6]).unwrap();
                wide.retain_grad().unwrap();
                let y = if swapped { full.mul(&wide) } else { wide.mul(&full) };
                y.unwrap().sum().unwrap().backward().unwrap();
                let place = format!("{shape:?}, {swapped} on {}", id(&d));
                assert_eq!(wide.grad().unwrap().to_vec::<f32>().unwrap(), w, "{place}");
                let got = x.grad().unwrap().to_vec::<f32>().unwrap();
                assert!(got.iter().zip(&want).all(|(g, w)| (g - w).abs() < 1e-4), "{place}: {got:?}");
            }
        }
    }
}

/// The files of a folder and of those in it.
fn texts(folder: &std::path::Path) -> Vec<String> {
    let paths = std::fs::read_dir(folder).unwrap().map(|f| f.unwrap().path());
    paths
        .flat_map(|p| if p.is_dir() { texts(&p) } else { vec![std::fs::read_to_string(p).unwrap()] })
        .collect()
}

/// Names of public functions of the operations, and of losses, in the source.
fn public_names() -> BTreeSet<String> {
    let source = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let read = |folder: &str| texts(&source.join(folder));
    let word = |s: &str| -> String { s.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect() };
    let mut all = BTreeSet::new();
    for text in read("functional") {
        all.extend(text.split("pub fn ").skip(1).map(word));
    }
    for text in read("train/losses") {
        for line in text.lines() {
            let name = word(line.trim_start());
            // `Name {`, `Name {}` or `Name "name" {` in the macros that define losses.
            let rest = line.trim_start()[name.len()..].trim();
            let defined = ["{", "{}"].contains(&rest) || (rest.starts_with('"') && rest.contains(" {"));
            if name.ends_with("Loss") && defined {
                all.insert(name);
            }
        }
    }
    all.remove("");
    all
}

#[test]
fn no_operation_is_left_out() {
    // Without operands, constructors and queries; methods that macros make, and this one, are `unary` and `binary` by name.
    let others = "forward train centroids encode decode tables random rand randn causal_mask permutation sequence_lengths new with detach polygamma size by_src by_dst";
    let mut known: BTreeSet<String> = others.split(' ').map(String::from).collect();
    for rows in [elementwise(), shapes_and_sums(), networks(), matrices_and_sequences(), losses()] {
        known.extend(rows.into_iter().map(|r| r.name.to_string()));
    }
    // Operations that other tests run on views.
    for file in [
        "audio.rs",
        "tensor_ops.rs",
        "volta.rs",
        "distance.rs",
        "experts.rs",
        "field.rs",
        "fused_ops.rs",
        "graph.rs",
        "mesh.rs",
        "pytorch_operators.rs",
        "operator_properties.rs",
    ] {
        let file = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/suite").join(file);
        let text = std::fs::read_to_string(file).unwrap_or_default();
        known.extend(text.split(|c: char| !c.is_alphanumeric() && c != '_').map(String::from));
    }
    let missing: Vec<String> = public_names().into_iter().filter(|n| !known.contains(n)).collect();
    assert!(missing.is_empty(), "no row for {missing:?}");
}
