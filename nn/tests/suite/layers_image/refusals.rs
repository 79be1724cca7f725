//! What forwards and constructors refuse.

use crate::common::cpu;
use trefoil::DType;
use trefoil::ops::resample::InterpolateMode;
use trefoil::ops::shape::PadMode;
use trefoil_nn::layers::*;
use trefoil_nn::{InitContext, Layer, LayerExt, Result, Tensor};

/// The error of a layer names it, the argument and what came.
fn refuses(layer: Result<impl Layer>, x: &[usize], parts: &[&str]) {
    let layer = layer.unwrap();
    let e = layer.forward(&Tensor::zeros(&cpu(), DType::F32, x).unwrap()).unwrap_err().to_string();
    for part in parts.iter().chain([&layer.kind()]) {
        assert!(e.contains(part), "`{part}` is not in: {e}");
    }
}

#[test]
fn forwards_refuse_what_does_not_fit() {
    let cx = InitContext::new(&cpu(), 1);
    let conv = |c| Convolutional::new(&cx, c, 4, 3);
    refuses(conv(3), &[1, 2, 5, 5], &["`x`", "3 channels", "[1, 2, 5, 5]"]);
    refuses(conv(3), &[5, 5], &["`x`", "2 spatial axes", "[5, 5]"]);
    refuses(conv(3), &[1, 3, 0, 5], &["`x`", "[1, 3, 0, 5]"]);
    refuses(conv(3), &[1, 3, 2, 5], &["windows of 1 to 2", "span 3"]);
    refuses(conv(3).map(|l| l.stride(0)), &[1, 3, 5, 5], &["`stride`"]);
    refuses(conv(3).map(|l| l.dilation(0)), &[1, 3, 5, 5], &["`dilation`"]);
    refuses(conv(3).map(|l| l.stride(2).same_padding()), &[1, 3, 5, 5], &["`stride`", "same_padding"]);
    let reflect = |p: usize| conv(3).map(|l| l.padding(p).padding_mode(PadMode::Reflect));
    refuses(reflect(5), &[1, 3, 5, 5], &["at most 4"]);
    let circular = conv(3).map(|l| l.padding(6).padding_mode(PadMode::Circular));
    refuses(circular, &[1, 3, 5, 5], &["at most 5"]);
    refuses(reflect(usize::MAX), &[1, 3, 5, 5], &["`padding`", "2^31"]);
    refuses(Conv3D::new(&cx, 1, 1, 3), &[1, 5, 5], &["3 spatial axes"]);
    refuses(DilatedConvolutional::new(&cx, 1, 1, 3, 3), &[1, 1, 6, 9], &["span 7"]);
    let deconv = || Deconvolutional::new(&cx, 2, 3, 2);
    refuses(deconv().map(|l| l.output_padding(1)), &[1, 2, 3, 3], &["`out_pad`"]);
    refuses(deconv().map(|l| l.padding(2)), &[1, 2, 3, 3], &["`pad`", "at least one element"]);
    refuses(deconv(), &[1, 3, 3, 3], &["2 channels"]);
    refuses(DeformableConvolutional::new(&cx, 2, 3, 5), &[1, 2, 2, 2], &["span 5"]);
    refuses(SeparableConvolutional::new(&cx, 2, 3, 5), &[1, 2, 4, 4], &["span 5"]);
    refuses(PatchEmbedding::new(&cx, 3, [2, 4], 5), &[1, 3, 4, 6], &["divisible by [2, 4]", "[1, 3, 4, 6]"]);
    refuses(SubpixelConvolutional::new(&cx, 3, 2, 2, 3), &[1, 2, 4, 6], &["3 channels"]);
    let local = || LocallyConnected::new(&cx, 2, 3, 2)?.input_size(4, 4);
    refuses(local(), &[1, 2, 4, 5], &["[4, 4]", "[4, 5]"]);
    refuses(local(), &[1, 3, 4, 4], &["2 channels"]);
    refuses(LocallyConnected::new(&cx, 2, 3, 5), &[1, 2, 4, 4], &["span 5"]);
    refuses(AveragePooling::new(3).map(|l| l.padding(2)), &[1, 1, 5, 5], &["`padding`", "half"]);
    refuses(AveragePooling::new(2).map(|l| l.divisor(0)), &[1, 1, 5, 5], &["`divisor`"]);
    refuses(AveragePooling::new(6), &[1, 1, 5, 5], &["fits"]);
    refuses(MaxPooling::new(2).map(|l| l.stride(0)), &[1, 1, 5, 5], &["`stride`"]);
    refuses(MaxPool3D::new(3), &[1, 1, 2, 5, 5], &["fits"]);
    refuses(AdaptiveAveragePooling::new(2), &[1, 5], &["spatial axes"]);
    refuses(Ok(GlobalPooling::avg()), &[2, 3], &["spatial"]);
    refuses(Ok(GlobalPooling::max()), &[2, 3, 0], &["at least one cell"]);
    let corners = |l: Upsampling| l.align_corners(true);
    refuses(Upsampling::scale(2.0).map(corners), &[1, 1, 2, 2], &["`align_corners`"]);
    refuses(Upsampling::scale(0.2), &[1, 1, 2, 2], &["`scale`", "0.2"]);
    let cubic = Upsampling::scale(1.3).map(|l| l.mode(InterpolateMode::Cubic));
    refuses(cubic, &[1, 1, 4, 4], &["whole numbers"]);
    refuses(PixelShuffle::new(2), &[1, 6, 2, 2], &["6 channels"]);
    refuses(PixelShuffle::new(2), &[4, 4], &["[.., C, H, W]"]);
    refuses(PixelUnshuffle::new(2), &[1, 6, 3, 2], &["divides 3 and 2"]);
    refuses(ChannelShuffle::new(4), &[1, 6, 3], &["divides the 6 channels"]);
    refuses(ChannelShuffle::new(2), &[1, 6], &["rank 3"]);
    refuses(Ok(Cropping::new(&[(1, 1)])), &[3, 2], &["a cell left", "axis 1"]);
    refuses(Ok(Cropping::new(&[(1, 1); 3])), &[3, 2], &["at most 2 pairs"]);
    refuses(Padding::new(&[(0, 0); 3]), &[3, 2], &["at most 2 pairs"]);
    let reflect = |p: &[(usize, usize)]| Padding::new(p).map(|l| l.mode(PadMode::Reflect));
    refuses(reflect(&[(3, 0)]), &[2, 3], &["at most 2"]);
    refuses(reflect(&[(0, 0); 3]), &[4, 4, 4], &["at most 2 pairs"]);
    // Another dtype and another number of channels than at first.
    let layer = Convolutional::lazy(&cx, 2, 1).unwrap();
    assert!(layer.named_parameters().is_empty());
    layer.forward(&Tensor::zeros(&cpu(), DType::F32, &[1, 3, 2, 2]).unwrap()).unwrap();
    assert!(layer.forward(&Tensor::zeros(&cpu(), DType::F64, &[1, 3, 2, 2]).unwrap()).is_err());
    assert!(layer.forward(&Tensor::zeros(&cpu(), DType::F32, &[1, 4, 2, 2]).unwrap()).is_err());
}

#[test]
fn constructors_refuse_what_makes_no_sense() {
    let cx = InitContext::new(&cpu(), 1);
    assert!(Convolutional::new(&cx, 0, 1, 1).is_err() && Convolutional::new(&cx, 1, 0, 1).is_err());
    assert!(Convolutional::new(&cx, 1, 1, [1, 0]).is_err() && Conv3D::lazy(&cx, 1, 0).is_err());
    for groups in [0, 2, 5] {
        assert!(Convolutional::new(&cx, 4, 3, 1).unwrap().groups(groups).is_err());
        assert!(Deconvolutional::new(&cx, 3, 4, 1).unwrap().groups(groups).is_err());
        assert!(DeformableConvolutional::new(&cx, 3, 1, 1).unwrap().deform_groups(groups).is_err());
    }
    assert!(DilatedConvolutional::new(&cx, 1, 1, 3, 0).is_err());
    assert!(Deconvolutional::new(&cx, 1, 1, 0).is_err() && Deconvolutional::new(&cx, 0, 1, 1).is_err());
    assert!(SeparableConvolutional::new(&cx, 1, 1, 1).unwrap().depth_multiplier(0).is_err());
    assert!(LocallyConnected::new(&cx, 0, 1, 1).is_err() && LocallyConnected::lazy(&cx, 1, 0).is_err());
    assert!(LocallyConnected::lazy(&cx, 1, 1).unwrap().input_size(3, 3).is_err());
    assert!(PatchEmbedding::new(&cx, 1, 0, 1).is_err() && PatchEmbedding::new(&cx, 1, 1, 0).is_err());
    assert!(SubpixelConvolutional::new(&cx, 1, 1, 2, 2).is_err());
    assert!(SubpixelConvolutional::new(&cx, 1, 1, 0, 3).is_err());
    assert!(AveragePooling::new(0).is_err() && MaxPool3D::new([1, 0, 1]).is_err());
    assert!(AdaptiveAveragePooling::new(0).is_err());
    for s in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        assert!(Upsampling::scale(s).is_err());
    }
    assert!(Upsampling::size(0).is_err() && PixelShuffle::new(0).is_err() && PixelUnshuffle::new(0).is_err());
    assert!(Padding::new(&[(usize::MAX, 0)]).is_err());
}
