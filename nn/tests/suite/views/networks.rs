//! Operations of networks.

use super::Arg::*;
use super::{IMAGE, M, Row, same_bits};
use trefoil::DType;
use trefoil::ops::activation::Activation;
use trefoil::ops::attention::Rope;
use trefoil::ops::conv::Conv;
use trefoil::ops::norm::{BatchNorm, GroupNorm, InstanceNorm, RowNorm};
use trefoil::ops::pool::Window;
use trefoil::ops::quantized::{Fp8, QuantFormat};
use trefoil::ops::resample::{GridSample, Interpolate, InterpolateMode, RoiAlign, SampleMode};
use trefoil::ops::rnn::{Recurrence, RnnCell};
use trefoil_nn::{
    BatchNormStats, ConvLstmParams, FftNorm, QuantGranularity, QuantizedWeight, RnnParams, RnnState,
    ScaledDotProductAttention, Stft, Tensor,
};

pub(super) fn networks() -> Vec<Row> {
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

#[test]
fn operations_of_networks() {
    same_bits(&networks());
}
