//! Layers against their definitions.

use super::values;
use crate::common::{close, cpu, devices, tensor};
use trefoil::DType;
use trefoil::ops::resample::InterpolateMode;
use trefoil::ops::shape::PadMode;
use trefoil_nn::layers::*;
use trefoil_nn::{Init, InitContext, Layer, LayerExt, Tensor};

/// Convolution of an image by its definition: x [C, H, W], w [O, C/g, kh, kw]; pads (top, left) and an output of h x w cells.
struct Definition {
    c: usize,
    hw: [usize; 2],
    o: usize,
    k: [usize; 2],
    stride: usize,
    dilation: usize,
    groups: usize,
    before: [isize; 2],
    out: [usize; 2],
}

impl Definition {
    fn run(
        &self,
        x: &[f64],
        w: &[f64],
        b: &[f64],
        outside: impl Fn(isize, usize) -> Option<usize>,
    ) -> Vec<f64> {
        let ([h, wd], [kh, kw], cg) = (self.hw, self.k, self.c / self.groups);
        let mut y = vec![];
        for o in 0..self.o {
            let first = o / (self.o / self.groups) * cg;
            for i in 0..self.out[0] {
                for j in 0..self.out[1] {
                    let mut s = b[o];
                    for c in 0..cg {
                        for u in 0..kh {
                            for v in 0..kw {
                                let r = (i * self.stride + u * self.dilation) as isize - self.before[0];
                                let q = (j * self.stride + v * self.dilation) as isize - self.before[1];
                                if let (Some(r), Some(q)) = (outside(r, h), outside(q, wd)) {
                                    s += w[((o * cg + c) * kh + u) * kw + v]
                                        * x[((first + c) * h + r) * wd + q];
                                }
                            }
                        }
                    }
                    y.push(s);
                }
            }
        }
        y
    }
}

fn zeros(i: isize, n: usize) -> Option<usize> {
    usize::try_from(i).ok().filter(|&i| i < n)
}

fn reflect(i: isize, n: usize) -> Option<usize> {
    let last = n as isize - 1;
    zeros(
        if i < 0 {
            -i
        } else if i > last {
            2 * last - i
        } else {
            i
        },
        n,
    )
}

fn circular(i: isize, n: usize) -> Option<usize> {
    Some(i.rem_euclid(n as isize) as usize)
}

fn parts(layer: &dyn Layer) -> Vec<Vec<f64>> {
    layer.named_parameters().iter().map(|(_, p)| values(&p.get())).collect()
}

#[test]
fn convolution_follows_its_definition() {
    let d = cpu();
    let cx = InitContext::new(&d, 1).dtype(DType::F64);
    let x = tensor(&d, &[1, 4, 7, 6], 5);
    let base = Definition {
        c: 4,
        hw: [7, 6],
        o: 6,
        k: [3, 2],
        stride: 2,
        dilation: 2,
        groups: 2,
        before: [1, 1],
        out: [3, 3],
    };
    let make = || Convolutional::new(&cx, 4, 6, [3, 2]).unwrap().dilation(2).groups(2).unwrap();
    let check =
        |what: &str, layer: Convolutional, def: Definition, outside: fn(isize, usize) -> Option<usize>| {
            let y = layer.forward(&x).unwrap();
            assert_eq!(&y.shape()[2..], def.out, "{what}");
            let p = parts(&layer);
            close(&values(&y), &def.run(&values(&x), &p[0], &p[1], outside), 1e-12, what);
        };
    let strided = make().stride(2).padding(1);
    check("zeros", strided, Definition { ..base }, zeros);
    // Spans 5 and 3: 4 and 2 cells, of which 2 and 1 stand before.
    let same = Definition { stride: 1, before: [2, 1], out: [7, 6], ..base };
    check("same", make().same_padding(), Definition { ..same }, zeros);
    check("reflect", make().same_padding().padding_mode(PadMode::Reflect), Definition { ..same }, reflect);
    check("circular", make().same_padding().padding_mode(PadMode::Circular), Definition { ..same }, circular);
    // One cell in all goes behind the axis.
    let odd = Convolutional::new(&cx, 4, 6, 2).unwrap().same_padding();
    let def =
        Definition { k: [2, 2], stride: 1, dilation: 1, groups: 1, before: [0, 0], out: [7, 6], ..base };
    check("same, even kernel", odd, def, zeros);
}

#[test]
fn deconvolution_is_the_adjoint_of_convolution() {
    let d = cpu();
    let cx = InitContext::new(&d, 1).dtype(DType::F64);
    let conv = Convolutional::new(&cx, 2, 4, 3).unwrap().stride(2).padding(1).no_bias();
    let deconv =
        Deconvolutional::new(&cx, 4, 2, 3).unwrap().stride(2).padding(1).output_padding([0, 1]).no_bias();
    deconv.load_state_dict(&conv.state_dict().unwrap()).unwrap();
    let (x, z) = (tensor(&d, &[1, 2, 5, 6], 2), tensor(&d, &[1, 4, 3, 3], 3));
    let inner = |a: &Tensor, b: &Tensor| a.mul(b).unwrap().sum().unwrap().item::<f64>().unwrap();
    let a = inner(&conv.forward(&x).unwrap(), &z);
    let b = inner(&deconv.forward(&z).unwrap(), &x);
    assert!((a - b).abs() < 1e-12 && a.abs() > 1e-3, "{a} and {b}");
    // The bias is added once per output cell.
    let plain = Deconvolutional::new(&cx, 1, 1, 2).unwrap().init(Init::Zeros, Init::Constant(1.5)).unwrap();
    assert_eq!(values(&plain.forward(&tensor(&d, &[1, 1, 2, 2], 1)).unwrap()), [1.5; 9]);
}

#[test]
fn deformable_starts_as_half_a_convolution_and_moves_by_offsets() {
    let d = cpu();
    let cx = InitContext::new(&d, 1).dtype(DType::F64);
    let layer = DeformableConvolutional::new(&cx, 2, 3, 3).unwrap();
    let conv = Convolutional::new(&cx, 2, 3, 3).unwrap().padding(1).no_bias();
    let p = layer.weight().unwrap().get();
    conv.weight().unwrap().get().detach().assign(&p).unwrap();
    let x = tensor(&d, &[1, 2, 5, 5], 7);
    let bias = layer.bias().unwrap().get().reshape(&[3, 1, 1]).unwrap();
    let want = conv.forward(&x).unwrap().mul_scalar(0.5).unwrap().add(&bias).unwrap();
    close(&values(&layer.forward(&x).unwrap()), &values(&want), 1e-12, "initial state");
    // All taps one column to the right: the convolution of the image shifted to the left.
    let layer = layer.modulation(false).unwrap();
    layer.weight().unwrap().get().detach().assign(&p).unwrap();
    let offsets: Vec<f64> = (0..18).map(|i| f64::from(i % 2)).collect();
    let bias = layer.named_parameters().into_iter().find(|(n, _)| n == "offset_conv.bias").unwrap().1;
    bias.get().detach().assign(&Tensor::from_slice(&d, &offsets, &[18]).unwrap()).unwrap();
    let bias = layer.bias().unwrap().get().reshape(&[3, 1, 1]).unwrap();
    let shifted = x.pad(PadMode::Constant(0.0), &[(0, 0), (0, 0), (1, 1), (0, 2)]).unwrap();
    let conv = conv.padding(0);
    let want = conv.forward(&shifted).unwrap().add(&bias).unwrap();
    let got = layer.forward(&x).unwrap();
    assert_eq!(got.shape(), [1, 3, 5, 5]);
    close(&values(&got), &values(&want), 1e-12, "shifted");
}

#[test]
fn separable_and_local_convolutions_follow_their_definitions() {
    let d = cpu();
    let cx = InitContext::new(&d, 1).dtype(DType::F64);
    let x = tensor(&d, &[1, 2, 5, 5], 4);
    let layer = SeparableConvolutional::new(&cx, 2, 3, 3).unwrap().depth_multiplier(2).unwrap();
    let p = parts(&layer);
    let depthwise = Definition {
        c: 2,
        hw: [5, 5],
        o: 4,
        k: [3, 3],
        stride: 1,
        dilation: 1,
        groups: 2,
        before: [0, 0],
        out: [3, 3],
    };
    let u = depthwise.run(&values(&x), &p[0], &[0.0; 4], zeros);
    let pointwise = Definition { c: 4, hw: [3, 3], o: 3, k: [1, 1], groups: 1, ..depthwise };
    let want = pointwise.run(&u, &p[1], &p[2], zeros);
    close(&values(&layer.forward(&x).unwrap()), &want, 1e-12, "separable");

    let layer = LocallyConnected::new(&cx, 2, 3, [3, 2]).unwrap().stride([2, 1]);
    let y = layer.forward(&x).unwrap();
    let (p, v) = (parts(&layer), values(&x));
    assert_eq!(y.shape(), [1, 3, 2, 4]);
    let mut want = vec![];
    for o in 0..3 {
        for (i, j) in (0..2).flat_map(|i| (0..4).map(move |j| (i, j))) {
            let mut s = p[1][(o * 2 + i) * 4 + j];
            for (c, (a, b)) in (0..2).flat_map(|c| (0..3).flat_map(move |a| (0..2).map(move |b| (c, (a, b)))))
            {
                let w = p[0][((((i * 4 + j) * 3 + o) * 2 + c) * 3 + a) * 2 + b];
                s += w * v[(c * 5 + 2 * i + a) * 5 + j + b];
            }
            want.push(s);
        }
    }
    close(&values(&y), &want, 1e-12, "locally connected");
}

#[test]
fn patches_are_projected_in_row_major_order() {
    let d = cpu();
    let cx = InitContext::new(&d, 1).dtype(DType::F64);
    let layer = PatchEmbedding::new(&cx, 2, [2, 3], 4).unwrap();
    let x = tensor(&d, &[1, 2, 4, 6], 4);
    let y = layer.forward(&x).unwrap();
    let (w, b) = (layer.weight().unwrap().get(), layer.bias().unwrap().get());
    for (n, (i, j)) in [(0, 0), (0, 1), (1, 0), (1, 1)].into_iter().enumerate() {
        let patch = x.narrow(2, 2 * i, 2).unwrap().narrow(3, 3 * j, 3).unwrap().reshape(&[12]).unwrap();
        let want = w.reshape(&[4, 12]).unwrap().matmul(&patch).unwrap().add(&b).unwrap();
        close(&values(&y.select(1, n).unwrap()), &values(&want), 1e-12, "token");
    }
}

#[test]
fn pools_follow_their_definitions() {
    for d in devices() {
        let x = Tensor::arange(&d, DType::F32, 0.0, 1.0, 16).unwrap().reshape(&[1, 1, 4, 4]).unwrap();
        let v = |l: &dyn Layer| values(&l.forward(&x).unwrap());
        assert_eq!(v(&AveragePooling::new(2).unwrap()), [2.5, 4.5, 10.5, 12.5]);
        assert_eq!(v(&AveragePooling::new(2).unwrap().divisor(2)), [5.0, 9.0, 21.0, 25.0]);
        let padded = AveragePooling::new(2).unwrap().padding(1).stride(3);
        assert_eq!(v(&padded), [0.0, 1.25, 5.0, 12.5]);
        assert_eq!(v(&padded.count_include_pad(false)), [0.0, 2.5, 10.0, 12.5]);
        assert_eq!(v(&MaxPooling::new(2).unwrap()), [5.0, 7.0, 13.0, 15.0]);
        assert_eq!(v(&MaxPooling::new(3).unwrap().ceil_mode(true)), [10.0, 11.0, 14.0, 15.0]);
        assert_eq!(v(&GlobalPooling::avg()), [7.5]);
        assert_eq!(v(&GlobalPooling::max()), [15.0]);
        assert_eq!(v(&AdaptiveAveragePooling::default()), [7.5]);
        assert_eq!(
            v(&AdaptiveAveragePooling::new([1, 3]).unwrap()),
            [6.5, 7.5, 8.5],
            "windows of two cells that overlap"
        );
        let (y, index) = MaxPooling::new(2).unwrap().forward_with_indices(&x).unwrap();
        assert_eq!((values(&y).len(), index.to_vec::<i32>().unwrap()), (4, vec![5, 7, 13, 15]));
        let pool = MaxPool3D::new(2).unwrap().return_indices(true);
        let cube = Tensor::arange(&d, DType::F32, 0.0, 1.0, 8).unwrap().reshape(&[1, 2, 2, 2]).unwrap();
        let both = pool.forward_all(std::slice::from_ref(&cube)).unwrap();
        assert_eq!((both.len(), both[1].to_vec::<i32>().unwrap()), (2, vec![7]));
        assert_eq!(both[1].shape(), [1, 1, 1, 1]);
        assert!(pool.forward_all(&[cube.clone(), cube]).is_err());
        // Ties go to the first; NaN wins.
        for pool in [&MaxPooling::new(2).unwrap() as &dyn Layer, &GlobalPooling::max()] {
            let x = Tensor::from_slice(&d, &[1f32, 3.0, 3.0, 3.0], &[1, 1, 2, 2]).unwrap().with_grad();
            pool.forward(&x).unwrap().sum().unwrap().backward().unwrap();
            assert_eq!(values(&x.grad().unwrap()), [0.0, 1.0, 0.0, 0.0]);
            let x = Tensor::from_slice(&d, &[1f32, f32::NAN, 3.0, 3.0], &[1, 1, 2, 2]).unwrap();
            assert!(values(&pool.forward(&x).unwrap())[0].is_nan());
        }
    }
}

#[test]
fn upsampling_follows_its_definition() {
    for d in devices() {
        let x = Tensor::from_slice(&d, &[1f32, 2.0, 3.0, 4.0], &[1, 1, 2, 2]).unwrap();
        let y = Upsampling::scale(2.0).unwrap().forward(&x).unwrap();
        assert_eq!(values(&y), [1., 1., 2., 2., 1., 1., 2., 2., 3., 3., 4., 4., 3., 3., 4., 4.]);
        let y = Upsampling::size([2, 4]).unwrap().mode(InterpolateMode::Linear).forward(&x).unwrap();
        assert_eq!(values(&y), [1.0, 1.25, 1.75, 2.0, 3.0, 3.25, 3.75, 4.0]);
        let y = Upsampling::size([2, 3]).unwrap().mode(InterpolateMode::Linear).align_corners(true);
        assert_eq!(values(&y.forward(&x).unwrap()), [1.0, 1.5, 2.0, 3.0, 3.5, 4.0]);
        // 5 cells by 1.5 are 7, at positions 2/3 apart although 5/7 would fill them.
        let row = Tensor::arange(&d, DType::F32, 0.0, 1.0, 5).unwrap().reshape(&[1, 1, 5]).unwrap();
        let scale = |mode| values(&UpsampleNd::<1>::scale(1.5).unwrap().mode(mode).forward(&row).unwrap());
        let nearest: Vec<f64> = (0..7).map(|i| (f64::from(i) / 1.5).floor()).collect();
        assert_eq!(scale(InterpolateMode::Nearest), nearest);
        let exact: Vec<f64> = (0..7).map(|i| ((f64::from(i) + 0.5) / 1.5).floor()).collect();
        assert_eq!(scale(InterpolateMode::NearestExact), exact);
        let linear: Vec<f64> = (0..7).map(|i| ((f64::from(i) + 0.5) / 1.5 - 0.5).clamp(0.0, 4.0)).collect();
        close(&scale(InterpolateMode::Linear), &linear, 1e-6, "linear by 1.5");
    }
}

#[test]
fn shuffles_crops_and_pads_move_cells() {
    for d in devices() {
        let x = Tensor::arange(&d, DType::F32, 0.0, 1.0, 16).unwrap().reshape(&[1, 4, 2, 2]).unwrap();
        let y = PixelShuffle::new(2).unwrap().forward(&x).unwrap();
        assert_eq!(y.shape(), [1, 1, 4, 4]);
        assert_eq!(values(&y), [0., 4., 1., 5., 8., 12., 9., 13., 2., 6., 3., 7., 10., 14., 11., 15.]);
        assert_eq!(values(&PixelUnshuffle::new(2).unwrap().forward(&y).unwrap()), values(&x));
        let x = Tensor::arange(&d, DType::F32, 0.0, 1.0, 6).unwrap().reshape(&[1, 6, 1]).unwrap();
        assert_eq!(values(&ChannelShuffle::new(3).unwrap().forward(&x).unwrap()), [0., 2., 4., 1., 3., 5.]);
        let x = Tensor::arange(&d, DType::F32, 1.0, 1.0, 6).unwrap().reshape(&[1, 1, 2, 3]).unwrap();
        assert_eq!(values(&Cropping::new(&[(1, 0), (0, 1)]).forward(&x).unwrap()), [4.0, 5.0]);
        let pad = |mode| {
            let layer = Padding::new(&[(0, 0), (2, 1)]).unwrap().mode(mode);
            values(&layer.forward(&x.narrow(2, 0, 1).unwrap()).unwrap())
        };
        assert_eq!(pad(PadMode::Constant(9.0)), [9., 9., 1., 2., 3., 9.]);
        assert_eq!(pad(PadMode::Reflect), [3., 2., 1., 2., 3., 2.]);
        assert_eq!(pad(PadMode::Replicate), [1., 1., 1., 2., 3., 3.]);
        assert_eq!(pad(PadMode::Circular), [2., 3., 1., 2., 3., 1.]);
    }
}
