//! Layers for images: state, gradients in f64, devices against the CPU, definitions, errors.

use crate::common::{close, cpu, devices, noise, tensor};
use trefoil::DType;
use trefoil::ops::activation::Activation;
use trefoil::ops::resample::InterpolateMode;
use trefoil::ops::shape::PadMode;
use trefoil_nn::layers::*;
use trefoil_nn::{Device, Init, InitContext, Layer, LayerExt, Result, Tensor};

type State = &'static [(&'static str, &'static [usize])];

/// A layer, an input's shape and the expected state.
struct Case {
    name: &'static str,
    make: fn(&InitContext) -> Result<Box<dyn Layer>>,
    x: &'static [usize],
    y: &'static [usize],
    state: State,
}

macro_rules! case {
    ($name:literal, $x:expr => $y:expr, [$($state:tt)*], |$cx:ident| $layer:expr) => {
        Case { name: $name, make: |$cx| Ok(Box::new($layer)), x: &$x, y: &$y, state: &[$($state)*] }
    };
}

fn cases() -> Vec<Case> {
    vec![
        case!("conv", [2, 3, 5, 4] => [2, 4, 3, 3], [("weight", &[4, 3, 3, 2]), ("bias", &[4])], |cx| {
            Convolutional::new(cx, 3, 4, [3, 2])?
        }),
        case!("conv grouped", [2, 4, 7, 6] => [2, 6, 4, 4], [("weight", &[6, 2, 3, 2]), ("bias", &[6])], |cx| {
            let layer = Convolutional::new(cx, 4, 6, [3, 2])?.stride([2, 1]).padding([1, 0]).dilation([1, 2]);
            layer.groups(2)?.activation(Activation::Tanh)
        }),
        case!("conv gelu, no bias", [1, 2, 4, 4] => [1, 3, 4, 4], [("weight", &[3, 2, 3, 3])], |cx| {
            Convolutional::new(cx, 2, 3, 3)?.padding(1).activation(Activation::Gelu).no_bias()
        }),
        case!("conv mish", [1, 2, 4, 4] => [1, 3, 2, 2], [("weight", &[3, 2, 3, 3]), ("bias", &[3])], |cx| {
            Convolutional::new(cx, 2, 3, 3)?.activation(Activation::Mish)
        }),
        case!("conv same", [2, 2, 5, 4] => [2, 2, 5, 4], [("weight", &[2, 2, 2, 4]), ("bias", &[2])], |cx| {
            Convolutional::lazy(cx, 2, [2, 4])?.same_padding()
        }),
        case!("conv reflect", [1, 2, 4, 5] => [1, 2, 4, 6], [("weight", &[2, 2, 3, 4]), ("bias", &[2])], |cx| {
            Convolutional::new(cx, 2, 2, [3, 4])?.padding([1, 2]).padding_mode(PadMode::Reflect)
        }),
        case!("conv circular, same", [1, 2, 4, 5] => [1, 2, 4, 5], [("weight", &[2, 2, 2, 3]), ("bias", &[2])], |cx| {
            Convolutional::new(cx, 2, 2, [2, 3])?.same_padding().padding_mode(PadMode::Circular)
        }),
        case!("conv replicate", [1, 1, 3, 3] => [1, 2, 7, 7], [("weight", &[2, 1, 1, 1]), ("bias", &[2])], |cx| {
            Convolutional::new(cx, 1, 2, 1)?.padding(2).padding_mode(PadMode::Replicate)
        }),
        case!("conv 1d", [2, 2, 6] => [2, 3, 3], [("weight", &[3, 2, 2]), ("bias", &[3])], |cx| {
            ConvNd::<1>::new(cx, 2, 3, 2)?.stride(2)
        }),
        case!("conv 3d", [1, 2, 3, 4, 3] => [1, 2, 2, 4, 1], [("weight", &[2, 1, 2, 3, 3]), ("bias", &[2])], |cx| {
            Conv3D::new(cx, 2, 2, [2, 3, 3])?.padding([0, 1, 0]).groups(2)?.activation(Activation::Sigmoid)
        }),
        case!("dilated", [1, 2, 6, 6] => [1, 3, 6, 6], [("weight", &[3, 2, 3, 3]), ("bias", &[3])], |cx| {
            DilatedConvolutional::new(cx, 2, 3, 3, 2)?.same_padding()
        }),
        case!("deconv", [2, 4, 3, 2] => [2, 2, 6, 4], [("weight", &[4, 1, 3, 2]), ("bias", &[2])], |cx| {
            let layer = Deconvolutional::new(cx, 4, 2, [3, 2])?.stride(2).padding([1, 0]).output_padding([1, 0]);
            layer.groups(2)?.activation(Activation::Relu)
        }),
        case!("deconv dilated", [1, 2, 3, 3] => [1, 3, 5, 7], [("weight", &[2, 3, 3, 3])], |cx| {
            Deconvolutional::lazy(cx, 3, 3)?.dilation([1, 2]).activation(Activation::Gelu).no_bias()
        }),
        case!(
            "deformable", [1, 4, 4, 5] => [1, 2, 4, 5],
            [
                ("weight", &[2, 2, 3, 3]), ("bias", &[2]),
                ("offset_conv.weight", &[36, 4, 3, 3]), ("offset_conv.bias", &[36]),
                ("mask_conv.weight", &[18, 4, 3, 3]), ("mask_conv.bias", &[18]),
            ],
            |cx| DeformableConvolutional::new(cx, 4, 2, 3)?.groups(2)?.deform_groups(2)?
        ),
        case!(
            "deformable v1", [1, 2, 5, 4] => [1, 3, 2, 2],
            [("weight", &[3, 2, 2, 2]), ("offset_conv.weight", &[8, 2, 2, 2]), ("offset_conv.bias", &[8])],
            |cx| DeformableConvolutional::lazy(cx, 3, 2)?.stride(2).padding(0).modulation(false)?.no_bias()
        ),
        case!(
            "depthwise separable", [2, 2, 5, 5] => [2, 3, 3, 3],
            [("depthwise.weight", &[4, 1, 3, 2]), ("pointwise.weight", &[3, 4, 1, 1]), ("pointwise.bias", &[3])],
            |cx| {
                let layer = DepthwiseSeparableConvolutional::new(cx, 2, 3, [3, 2])?.stride(2).padding([1, 1]);
                layer.depth_multiplier(2)?.mid_activation(Activation::Gelu).activation(Activation::Sigmoid)
            }
        ),
        case!(
            "separable", [1, 3, 5, 5] => [1, 2, 1, 1],
            [("depthwise.weight", &[3, 1, 3, 3]), ("pointwise.weight", &[2, 3, 1, 1])],
            |cx| SeparableConvolutional::lazy(cx, 2, 3)?.dilation(2).no_bias()
        ),
        case!(
            "locally connected", [2, 2, 5, 4] => [2, 3, 2, 2],
            [("weight", &[2, 2, 3, 2, 3, 2]), ("bias", &[3, 2, 2])],
            |cx| LocallyConnected::new(cx, 2, 3, [3, 2])?.stride(2).activation(Activation::Tanh).input_size(5, 4)?
        ),
        case!(
            "patches", [2, 3, 4, 6] => [2, 6, 5],
            [("proj.weight", &[5, 3, 2, 2]), ("proj.bias", &[5])],
            |cx| PatchEmbedding::new(cx, 3, 2, 5)?
        ),
        case!("patches as image", [1, 1, 4, 6] => [1, 2, 2, 2], [("proj.weight", &[2, 1, 2, 3])], |cx| {
            PatchEmbedding::lazy(cx, [2, 3], 2)?.flatten(false).no_bias()
        }),
        case!("subpixel", [1, 2, 3, 2] => [1, 2, 6, 4], [("weight", &[8, 2, 3, 3]), ("bias", &[8])], |cx| {
            SubpixelConvolutional::new(cx, 2, 2, 2, 3)?.activation(Activation::Tanh)
        }),
        case!("average", [2, 2, 5, 6] => [2, 2, 3, 4], [], |_cx| {
            AveragePooling::new([3, 2])?.stride([2, 2]).padding([1, 1]).count_include_pad(false)
        }),
        case!("average, ceil", [1, 2, 5, 5] => [1, 2, 3, 3], [], |_cx| {
            AveragePooling::new(2)?.ceil_mode(true).divisor(3)
        }),
        case!("max", [2, 2, 6, 5] => [2, 2, 3, 4], [], |_cx| {
            MaxPooling::new([3, 2])?.stride([2, 1]).padding([1, 0])
        }),
        case!("max dilated", [1, 2, 6, 6] => [1, 2, 2, 2], [], |_cx| MaxPooling::new(2)?.dilation(3)),
        case!("max 3d", [1, 2, 4, 4, 5] => [1, 2, 2, 2, 3], [], |_cx| MaxPool3D::new(2)?.ceil_mode(true)),
        case!("adaptive", [2, 2, 5, 4] => [2, 2, 3, 4], [], |_cx| {
            AdaptiveAveragePooling::keeping([Some(3), None])?
        }),
        case!("adaptive, more", [1, 1, 2, 3] => [1, 1, 4, 5], [], |_cx| AdaptiveAveragePooling::new([4, 5])?),
        case!("global average", [2, 3, 4, 5] => [2, 3, 1, 1], [], |_cx| {
            GlobalPooling::avg().activation(Activation::Sigmoid)
        }),
        case!("global maximum", [2, 3, 4, 5] => [2, 3], [], |_cx| GlobalPooling::max().keepdim(false)),
        case!("nearest", [1, 2, 2, 3] => [1, 2, 4, 6], [], |_cx| Upsampling::scale(2.0)?),
        case!("nearest, 1.6", [1, 2, 4, 3] => [1, 2, 6, 4], [], |_cx| Upsampling::scale(1.6)?),
        case!("bilinear", [1, 2, 3, 4] => [1, 2, 5, 7], [], |_cx| {
            Upsampling::size([5, 7])?.mode(InterpolateMode::Linear)
        }),
        case!("bilinear, 1.7 and 0.6", [1, 2, 3, 5] => [1, 2, 5, 3], [], |_cx| {
            Upsampling::scale([1.7, 0.6])?.mode(InterpolateMode::Linear)
        }),
        case!("bicubic, corners", [1, 1, 4, 4] => [1, 1, 6, 6], [], |_cx| {
            Upsampling::scale(1.5)?.mode(InterpolateMode::Cubic).align_corners(true)
        }),
        case!("trilinear", [1, 1, 2, 3, 2] => [1, 1, 4, 6, 4], [], |_cx| {
            Upsample3D::scale(2.0)?.mode(InterpolateMode::Linear).align_corners(true)
        }),
        case!("nearest 3d", [1, 1, 2, 3, 2] => [1, 1, 3, 3, 5], [], |_cx| Upsample3D::size([3, 3, 5])?),
        case!("shuffle", [2, 8, 2, 3] => [2, 2, 4, 6], [], |_cx| PixelShuffle::new(2)?),
        case!("unshuffle", [2, 2, 4, 6] => [2, 8, 2, 3], [], |_cx| PixelUnshuffle::new(2)?),
        case!("channels", [2, 6, 2, 3] => [2, 6, 2, 3], [], |_cx| ChannelShuffle::new(3)?),
        case!("crop", [2, 2, 4, 5] => [2, 2, 3, 2], [], |_cx| Cropping::new(&[(1, 0), (1, 2)])),
        case!("pad", [1, 2, 2, 3] => [1, 2, 3, 6], [], |_cx| {
            Padding::new(&[(1, 0), (1, 2)])?.mode(PadMode::Constant(0.5))
        }),
        case!("pad reflect", [1, 2, 3, 4] => [1, 2, 6, 6], [], |_cx| {
            Padding::new(&[(2, 1), (0, 2)])?.mode(PadMode::Reflect)
        }),
    ]
}

/// Parameters away from special values (zeros of offset maps).
fn randomise(layer: &dyn Layer) {
    for (i, (_, p)) in layer.named_parameters().iter().enumerate() {
        let t = p.get();
        let v: Vec<f64> = noise(40 + i as u64, t.numel()).iter().map(|v| 0.4 * v).collect();
        let v = Tensor::from_slice(t.device(), &v, t.shape()).unwrap();
        t.detach().assign(&v.to_dtype(t.dtype()).unwrap()).unwrap();
    }
}

/// Sum of the output times fixed weights.
fn loss(layer: &dyn Layer, x: &Tensor) -> Tensor {
    let y = layer.forward(x).unwrap();
    let w = tensor(y.device(), y.shape(), 99).to_dtype(y.dtype()).unwrap();
    y.mul(&w).unwrap().sum().unwrap()
}

fn values(t: &Tensor) -> Vec<f64> {
    t.to_dtype(DType::F64).unwrap().to_vec::<f64>().unwrap()
}

/// The gradient by moving each element of `t` in place.
fn differences(t: &Tensor, f: impl Fn() -> f64) -> Vec<f64> {
    let (t, h) = (t.detach(), 1e-5);
    let v = t.to_vec::<f64>().unwrap();
    let at = |i: usize, d: f64| {
        let mut moved = v.clone();
        moved[i] += d;
        t.assign(&Tensor::from_slice(t.device(), &moved, t.shape()).unwrap()).unwrap();
        f()
    };
    let all = (0..v.len()).map(|i| (at(i, h) - at(i, -h)) / (2.0 * h)).collect();
    t.assign(&Tensor::from_slice(t.device(), &v, t.shape()).unwrap()).unwrap();
    all
}

#[test]
fn shapes_and_states_are_those_of_pytorch() {
    let d = cpu();
    for c in cases() {
        let layer = (c.make)(&InitContext::new(&d, 3)).unwrap_or_else(|e| panic!("{}: {e}", c.name));
        let y = layer.forward(&tensor(&d, c.x, 1).to_dtype(DType::F32).unwrap());
        let y = y.unwrap_or_else(|e| panic!("{}: {e}", c.name));
        assert_eq!(y.shape(), c.y, "{}", c.name);
        let state: Vec<(String, Vec<usize>)> =
            layer.named_parameters().into_iter().map(|(n, p)| (n, p.get().shape().to_vec())).collect();
        let want: Vec<(String, Vec<usize>)> =
            c.state.iter().map(|(n, s)| (n.to_string(), s.to_vec())).collect();
        assert_eq!(state, want, "{}", c.name);
        // The state of one layer makes another one equal.
        let other = (c.make)(&InitContext::new(&d, 4)).unwrap();
        let x = tensor(&d, c.x, 1).to_dtype(DType::F32).unwrap();
        other.forward(&x).unwrap();
        other.load_state_dict(&layer.state_dict().unwrap()).unwrap();
        assert_eq!(values(&other.forward(&x).unwrap()), values(&y), "{}", c.name);
        layer.eval();
        assert_eq!(values(&layer.forward(&x).unwrap()), values(&y), "{}: evaluation", c.name);
    }
}

#[test]
fn gradients_agree_with_differences() {
    let d = cpu();
    for c in cases() {
        let layer = (c.make)(&InitContext::new(&d, 3).dtype(DType::F64)).unwrap();
        let x = tensor(&d, c.x, 1).with_grad();
        layer.forward(&x).unwrap();
        randomise(&*layer);
        loss(&*layer, &x).backward().unwrap_or_else(|e| panic!("{}: {e}", c.name));
        let value = || loss(&*layer, &x.detach()).item::<f64>().unwrap();
        let mut leaves = vec![("x".to_string(), x.clone())];
        leaves.extend(layer.named_parameters().into_iter().map(|(n, p)| (n, p.get())));
        for (name, leaf) in leaves {
            let what = format!("{}, gradient of {name}", c.name);
            let grad = leaf.grad().unwrap_or_else(|| panic!("{what}: none"));
            assert_eq!(grad.shape(), leaf.shape(), "{what}");
            let want = differences(&leaf, value);
            close(&grad.to_vec::<f64>().unwrap(), &want, 5e-7, &what);
            assert!(want.iter().any(|w| w.abs() > 1e-6), "{what}: no influence");
        }
    }
}

/// Named numbers.
type Named = Vec<(String, Vec<f64>)>;

/// Output and gradients of x and all parameters in f32, from the parameters of `state`.
fn run(d: &Device, c: &Case, x: &Tensor, state: Option<&dyn Layer>) -> (Box<dyn Layer>, Named) {
    let layer = (c.make)(&InitContext::new(d, 3)).unwrap();
    let x = x.to_device(d).unwrap().with_grad();
    layer.forward(&x).unwrap_or_else(|e| panic!("{}: {e}", c.name));
    match state {
        Some(s) => layer.load_state_dict(&s.state_dict().unwrap()).unwrap(),
        None => randomise(&*layer),
    }
    let y = layer.forward(&x).unwrap();
    loss(&*layer, &x).backward().unwrap();
    let mut out = vec![("y".to_string(), values(&y)), ("x".to_string(), values(&x.grad().unwrap()))];
    out.extend(layer.named_parameters().iter().map(|(n, p)| (n.clone(), values(&p.get().grad().unwrap()))));
    (layer, out)
}

#[test]
fn devices_agree_with_the_cpu() {
    let all = devices();
    for c in cases() {
        let x = tensor(&all[0], c.x, 1).to_dtype(DType::F32).unwrap();
        let (layer, want) = run(&all[0], &c, &x, None);
        for d in &all[1..] {
            let (_, got) = run(d, &c, &x, Some(&*layer));
            for ((name, g), (_, w)) in got.iter().zip(&want) {
                close(g, w, 1e-4, &format!("{} on {}: {name}", c.name, crate::common::id(d)));
            }
        }
    }
}

#[test]
fn strided_inputs_give_the_same() {
    for d in devices() {
        for c in cases() {
            let x = tensor(&cpu(), c.x, 1).to_dtype(DType::F32).unwrap().to_device(&d).unwrap();
            let (layer, want) = run(&d, &c, &x, None);
            // The same numbers in a layout with the last two axes exchanged.
            let strided = x.transpose(-1, -2).unwrap().contiguous().unwrap().transpose(-1, -2).unwrap();
            assert!(!strided.is_contiguous(), "{}", c.name);
            let (_, got) = run(&d, &c, &strided, Some(&*layer));
            assert_eq!(got, want, "{} on {}", c.name, crate::common::id(&d));
        }
    }
}

#[test]
fn a_missing_batch_axis_is_inserted() {
    let d = cpu();
    // A channel shuffle takes any number of axes behind the channels, so that none is known to be missing.
    for c in cases().iter().filter(|c| !c.name.starts_with("global") && c.name != "channels") {
        let layer = (c.make)(&InitContext::new(&d, 3)).unwrap();
        let x = tensor(&d, c.x, 1).to_dtype(DType::F32).unwrap();
        let y = layer.forward(&x).unwrap().select(0, 0).unwrap();
        let one = layer.forward(&x.select(0, 0).unwrap()).unwrap_or_else(|e| panic!("{}: {e}", c.name));
        assert_eq!(one.shape(), y.shape(), "{}", c.name);
        close(&values(&one), &values(&y), 1e-6, c.name);
    }
}

#[test]
fn empty_batches_pass_and_give_zero_gradients() {
    for d in devices() {
        for c in cases() {
            let layer = (c.make)(&InitContext::new(&d, 3)).unwrap();
            let shape = [&[0], &c.x[1..]].concat();
            let x = Tensor::zeros(&d, DType::F32, &shape).unwrap().with_grad();
            let y =
                layer.forward(&x).unwrap_or_else(|e| panic!("{} on {}: {e}", c.name, crate::common::id(&d)));
            assert_eq!(y.shape(), [&[0], &c.y[1..]].concat(), "{}", c.name);
            y.sum().unwrap().backward().unwrap_or_else(|e| panic!("{}: {e}", c.name));
            for (name, p) in layer.named_parameters() {
                let g = values(&p.get().grad().unwrap());
                assert!(g.iter().all(|&v| v == 0.0), "{} on {}: {name}", c.name, crate::common::id(&d));
            }
        }
    }
}

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

#[test]
fn initial_values_have_pytorchs_bounds() {
    let d = cpu();
    let cx = InitContext::new(&d, 2);
    let largest = |t: Tensor| values(&t).iter().fold(0.0f64, |m, v| m.max(v.abs()));
    let check = |what: &str, t: Tensor, fan: f64| {
        let (bound, m) = (fan.powf(-0.5), largest(t));
        assert!(m <= bound * 1.000001 && m > 0.9 * bound, "{what}: {m} of {bound}");
    };
    let conv = Convolutional::new(&cx, 8, 64, 3).unwrap().groups(2).unwrap();
    check("conv", conv.weight().unwrap().get(), 36.0);
    check("conv bias", conv.bias().unwrap().get(), 36.0);
    let deconv = Deconvolutional::new(&cx, 8, 64, 3).unwrap();
    check("deconv", deconv.weight().unwrap().get(), 576.0);
    let separable = SeparableConvolutional::new(&cx, 64, 32, 3).unwrap();
    check("depthwise", separable.depthwise_weight().unwrap().get(), 9.0);
    check("pointwise", separable.pointwise_weight().unwrap().get(), 64.0);
    let local = LocallyConnected::new(&cx, 4, 8, 2).unwrap().input_size(5, 5).unwrap();
    check("locally connected", local.weight().unwrap().get(), 16.0);
    let deform = DeformableConvolutional::new(&cx, 8, 16, 3).unwrap();
    check("deformable", deform.weight().unwrap().get(), 72.0);
    assert_eq!(deform.named_parameters()[2..].iter().map(|(_, p)| largest(p.get())).sum::<f64>(), 0.0);
    let custom = conv.init(Init::Constant(0.5), Init::Zeros).unwrap();
    assert_eq!(values(&custom.weight().unwrap().get()), [0.5; 64 * 36]);
    assert_eq!(largest(custom.bias().unwrap().get()), 0.0);
    // Equal filters make an enlargement of equal cells.
    let subpixel = SubpixelConvolutional::new(&cx, 2, 2, 2, 3).unwrap().no_bias().icnr(true).unwrap();
    let w = values(&subpixel.weight().unwrap().get());
    assert!((0..18).all(|i| (1..4).all(|f| w[i] == w[f * 18 + i])) && w[0] != w[4 * 18]);
    let y = subpixel.forward(&tensor(&d, &[1, 2, 2, 2], 1).to_dtype(DType::F32).unwrap()).unwrap();
    let v = values(&y.select(1, 0).unwrap());
    assert!(v[0] == v[1] && v[0] == v[4] && v[0] == v[5] && v[0] != v[2], "{v:?}");
}

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

#[test]
fn kinds_are_the_names_of_the_types() {
    let cx = InitContext::new(&cpu(), 1);
    let kinds = [
        Convolutional::lazy(&cx, 1, 1).unwrap().kind(),
        DilatedConvolutional::lazy(&cx, 1, 1, 2).unwrap().kind(),
        DepthwiseSeparableConvolutional::lazy(&cx, 1, 1).unwrap().kind(),
        AveragePooling::new(1).unwrap().kind(),
        AdaptiveAveragePooling::default().kind(),
        Upsample3D::size(1).unwrap().kind(),
        LocallyConnected::lazy(&cx, 1, 1).unwrap().kind(),
    ];
    assert_eq!(
        kinds,
        [
            "Convolutional",
            "DilatedConvolutional",
            "DepthwiseSeparableConvolutional",
            "AveragePooling",
            "AdaptiveAveragePooling",
            "Upsample3D",
            "LocallyConnected"
        ]
    );
}

#[test]
fn half_precision_is_close() {
    for d in devices() {
        for c in cases() {
            let x = tensor(&cpu(), c.x, 1).to_dtype(DType::F32).unwrap();
            let (layer, want) = run(&cpu(), &c, &x, None);
            let half = (c.make)(&InitContext::new(&d, 3).dtype(DType::F16)).unwrap();
            let x = x.to_dtype(DType::F16).unwrap().to_device(&d).unwrap();
            half.forward(&x).unwrap_or_else(|e| panic!("{}: {e}", c.name));
            for ((_, p), (_, q)) in half.named_parameters().iter().zip(layer.named_parameters()) {
                let q = q.get().detach().to_dtype(DType::F16).unwrap().to_device(&d).unwrap();
                p.get().detach().assign(&q).unwrap();
            }
            let x = x.with_grad();
            let y = half.forward(&x).unwrap();
            close(&values(&y), &want[0].1, 1e-2, &format!("{} on {}", c.name, crate::common::id(&d)));
            y.sum().unwrap().backward().unwrap();
            assert!(x.grad().is_some());
        }
    }
}
