//! Tensor operations on images: gradients against central differences in f64, devices against the CPU, errors.

use crate::common::{close, cpu, devices, f32s, gradcheck, id, noise, tensor};
use trefoil::DType;
use trefoil::ops::activation::Activation;
use trefoil::ops::conv::Conv;
use trefoil::ops::pool::Window;
use trefoil::ops::resample::{GridSample, Interpolate, InterpolateMode, SampleMode, SamplePadding};
use trefoil_nn::{Result, Tensor};

type Op = Box<dyn Fn(&[Tensor]) -> Result<Tensor>>;

/// An operation and the shapes of its inputs.
struct Case {
    name: String,
    shapes: Vec<Vec<usize>>,
    op: Op,
}

fn case(
    name: impl Into<String>,
    shapes: &[&[usize]],
    op: impl Fn(&[Tensor]) -> Result<Tensor> + 'static,
) -> Case {
    Case { name: name.into(), shapes: shapes.iter().map(|s| s.to_vec()).collect(), op: Box::new(op) }
}

fn cases() -> Vec<Case> {
    use Activation::{Gelu, Hardswish, Identity, Mish, Relu, Sigmoid, Swish, Tanh};
    let mut all = vec![
        case("conv1d", &[&[2, 2, 7], &[3, 2, 3], &[3]], |t| {
            t[0].conv1d(&t[1], Some(&t[2]), &Conv::new().stride(2).pad(1))
        }),
        case("conv3d", &[&[1, 2, 3, 3, 4], &[2, 1, 2, 2, 2]], |t| {
            t[0].conv3d(&t[1], None, &Conv::new().groups(2).pad([0, 1, 0]).pad_end([1, 0, 0]))
        }),
        case("depthwise", &[&[1, 3, 4, 4], &[6, 1, 3, 3], &[6]], |t| {
            t[0].conv2d(&t[1], Some(&t[2]), &Conv::new().groups(3).pad(1).act(Relu))
        }),
        case("conv of a transposed weight", &[&[1, 2, 4, 4], &[2, 3, 2, 2]], |t| {
            t[0].conv(&t[1].transpose(0, 1)?, None, &Conv::new())
        }),
        case("one tensor as input and weight", &[&[2, 2, 3, 3]], |t| {
            t[0].conv(&t[0], None, &Conv::new().pad(1))
        }),
        case("conv_transpose1d", &[&[2, 2, 4], &[2, 3, 3], &[3]], |t| {
            let p = Conv::new().stride(3).pad(1).out_pad(2).act(Swish { beta: 1.3 });
            t[0].conv_transpose(&t[1], Some(&t[2]), &p)
        }),
        case("conv_transpose3d", &[&[1, 2, 2, 2, 2], &[2, 2, 2, 1, 2]], |t| {
            t[0].conv_transpose(&t[1], None, &Conv::new().stride([1, 2, 2]).act(Mish))
        }),
        case("deform_conv", &[&[1, 2, 4, 4], &[3, 2, 2, 2], &[1, 8, 3, 3], &[1, 4, 3, 3], &[3]], |t| {
            t[0].deform_conv(&t[1], &t[2], Some(&t[3]), Some(&t[4]), &Conv::new())
        }),
        case("deform_conv without mask", &[&[2, 2, 4, 4], &[2, 1, 2, 2], &[2, 16, 2, 2], &[2]], |t| {
            t[0].deform_conv(&t[1], &t[2], None, Some(&t[3]), &Conv::new().stride(2).groups(2))
        }),
        case("im2col", &[&[2, 2, 4, 5]], |t| t[0].im2col(&[2, 3], &Conv::new().stride([2, 1]).pad(1))),
        case("im2col of rows", &[&[2, 2, 6]], |t| t[0].im2col(&[3], &Conv::new().dilation(2))),
        case("col2im", &[&[1, 8, 12]], |t| t[0].col2im(&[4, 5], &[2, 2], &Conv::new())),
        case("max_pool 1d", &[&[2, 2, 7]], |t| t[0].max_pool(&Window::new(&[3]).stride(&[2]))),
        case("max_pool_with_index", &[&[1, 2, 4, 4]], |t| {
            Ok(t[0].max_pool_with_index(&Window::new(&[2, 3]).stride(&[1, 1]))?.0)
        }),
        case("avg_pool 3d", &[&[1, 2, 3, 4, 4]], |t| t[0].avg_pool(&Window::new(&[2]).stride(&[1]))),
        case("adaptive_max_pool", &[&[1, 2, 5, 4]], |t| t[0].adaptive_max_pool(&[3, 3])),
        case("adaptive_max_pool_with_index", &[&[1, 2, 5]], |t| {
            Ok(t[0].adaptive_max_pool_with_index(&[2])?.0)
        }),
        case("adaptive_avg_pool 3d", &[&[1, 1, 3, 4, 2]], |t| t[0].adaptive_avg_pool(&[2, 3, 1])),
        case("global_avg_pool", &[&[2, 3, 4]], |t| t[0].global_avg_pool()),
        case("global_max_pool", &[&[2, 2, 3, 2, 2]], |t| t[0].global_max_pool()),
        case("affine_grid", &[&[2, 2, 3]], |t| t[0].affine_grid(&[3, 2], false)),
        case("affine_grid of volumes", &[&[1, 3, 4]], |t| t[0].affine_grid(&[2, 3, 2], true)),
        case("spatial transformer", &[&[1, 2, 4, 4], &[1, 2, 3]], |t| {
            let p = GridSample::new(SampleMode::Linear).padding(SamplePadding::Border);
            t[0].grid_sample(&t[1].affine_grid(&[3, 3], false)?, p)
        }),
        case("pixel_shuffle", &[&[2, 4, 2, 3]], |t| t[0].pixel_shuffle(2)),
        case("pixel_shuffle of more axes", &[&[2, 2, 9, 1, 2]], |t| t[0].pixel_shuffle(3)),
        case("pixel_unshuffle", &[&[3, 4, 6]], |t| t[0].pixel_unshuffle(2)),
    ];
    for act in [Identity, Relu, Sigmoid, Tanh, Gelu, Hardswish, Mish, Swish { beta: 0.7 }] {
        for bias in [false, true] {
            all.push(case(
                format!("conv {act:?}, bias {bias}"),
                if bias { &[&[1, 2, 4, 3], &[2, 2, 2, 2], &[2]] } else { &[&[1, 2, 4, 3], &[2, 2, 2, 2]] },
                move |t| t[0].conv(&t[1], t.get(2), &Conv::new().act(act)),
            ));
        }
    }
    use InterpolateMode::{Area, Cubic, Linear, Nearest, NearestExact};
    let smooth = |mode| {
        let p = Interpolate::new(mode);
        [p, p.align_corners(true), p.antialias(true)]
    };
    let modes = [Nearest, NearestExact, Area].map(Interpolate::new);
    for p in modes.into_iter().chain(smooth(Linear)).chain(smooth(Cubic)) {
        for size in [[7, 3], [2, 5]] {
            all.push(case(format!("{p:?} to {size:?}"), &[&[1, 2, 4, 4]], move |t| {
                t[0].interpolate(&size, p)
            }));
        }
    }
    for mode in [Nearest, NearestExact, Linear] {
        all.push(case(format!("{mode:?} by 1.3 and 0.7"), &[&[2, 1, 5, 5]], move |t| {
            t[0].interpolate_by(&[1.3, 0.7], Interpolate::new(mode))
        }));
    }
    for mode in [SampleMode::Linear, SampleMode::Cubic] {
        for padding in [SamplePadding::Zeros, SamplePadding::Border, SamplePadding::Reflection] {
            let p = GridSample::new(mode).padding(padding).align_corners(padding != SamplePadding::Zeros);
            all.push(case(format!("{p:?}"), &[&[1, 2, 4, 5], &[1, 3, 2, 2]], move |t| {
                t[0].grid_sample(&t[1].mul_scalar(1.3)?, p)
            }));
        }
    }
    let p = GridSample::new(SampleMode::Linear);
    all.push(case("grid_sample of volumes", &[&[1, 1, 3, 3, 3], &[1, 2, 2, 1, 3]], move |t| {
        t[0].grid_sample(&t[1], p)
    }));
    all
}

#[test]
fn gradients_agree_with_differences() {
    for c in cases() {
        let shapes: Vec<&[usize]> = c.shapes.iter().map(Vec::as_slice).collect();
        gradcheck(&c.name, &shapes, |x| x, &c.op);
    }
    // The nearest cell does not depend on the position.
    gradcheck(
        "grid_sample, nearest",
        &[&[1, 2, 4, 4]],
        |x| x,
        |t| t[0].grid_sample(&tensor(&cpu(), &[1, 3, 3, 2], 4), GridSample::new(SampleMode::Nearest)),
    );
}

#[test]
fn devices_agree_with_the_cpu() {
    let all = devices();
    for c in cases() {
        let run = |d: &trefoil_nn::Device| -> Vec<Vec<f32>> {
            let make = |(i, s): (usize, &Vec<usize>)| {
                let v: Vec<f32> =
                    noise(17 + i as u64, s.iter().product()).into_iter().map(|v| v as f32).collect();
                Tensor::from_slice(d, &v, s).unwrap().with_grad()
            };
            let inputs: Vec<Tensor> = c.shapes.iter().enumerate().map(make).collect();
            let y = (c.op)(&inputs).unwrap_or_else(|e| panic!("{} on {}: {e}", c.name, crate::common::id(d)));
            let w = tensor(&cpu(), y.shape(), 99).to_dtype(DType::F32).unwrap().to_device(d).unwrap();
            y.mul(&w).unwrap().sum().unwrap().backward().unwrap();
            let grads = inputs.iter().map(|x| x.grad().unwrap().to_vec().unwrap());
            std::iter::once(y.to_vec().unwrap()).chain(grads).collect()
        };
        let want = run(&all[0]);
        for d in &all[1..] {
            for (g, w) in run(d).iter().zip(&want) {
                let wide = |v: &[f32]| v.iter().map(|&v| f64::from(v)).collect::<Vec<_>>();
                close(&wide(g), &wide(w), 1e-4, &format!("{} on {}", c.name, crate::common::id(d)));
            }
        }
    }
}

#[test]
fn maxima_and_their_positions_belong_together() {
    for d in devices() {
        let v: Vec<f32> = noise(3, 40).into_iter().map(|v| v as f32).collect();
        let x = Tensor::from_slice(&d, &v, &[1, 2, 4, 5]).unwrap();
        let pools = [
            x.max_pool_with_index(&Window::new(&[2, 3]).padding(&[1, 1]).stride(&[2, 1])).unwrap(),
            x.adaptive_max_pool_with_index(&[3, 2]).unwrap(),
        ];
        for (y, index) in pools {
            assert_eq!((index.dtype(), index.shape()), (DType::I32, y.shape()));
            let per_plane = y.numel() / 2;
            for (i, (y, at)) in
                y.to_vec::<f32>().unwrap().iter().zip(index.to_vec::<i32>().unwrap()).enumerate()
            {
                assert_eq!(*y, v[i / per_plane * 20 + at as usize]);
            }
        }
    }
}

#[test]
fn columns_and_convolution_agree() {
    for d in devices() {
        let f32s = |shape: &[usize], seed| {
            tensor(&cpu(), shape, seed).to_dtype(DType::F32).unwrap().to_device(&d).unwrap()
        };
        let (x, w) = (f32s(&[2, 3, 5, 4], 1), f32s(&[4, 3, 2, 2], 2));
        let p = Conv::new().stride([2, 1]).pad(1);
        let y = x.conv2d(&w, None, &p).unwrap();
        let columns = x.im2col(&[2, 2], &p).unwrap();
        let product = w.reshape(&[4, 12]).unwrap().matmul(&columns).unwrap();
        let (a, b) = (y.to_vec::<f32>().unwrap(), product.to_vec::<f32>().unwrap());
        assert!(a.iter().zip(&b).all(|(a, b)| (a - b).abs() < 1e-5));
        // Each cell as often as windows read it.
        let ones = Tensor::ones(&d, DType::F32, &[1, 1, 3]).unwrap();
        let p = Conv::new();
        let back = ones.im2col(&[2], &p).unwrap().col2im(&[3], &[2], &p).unwrap();
        assert_eq!(back.to_vec::<f32>().unwrap(), [1.0, 2.0, 1.0]);
    }
}

#[test]
fn arguments_that_do_not_fit_are_refused() {
    let d = cpu();
    let t = |shape: &[usize]| Tensor::zeros(&d, DType::F32, shape).unwrap();
    let p = Conv::new();
    let refused = |r: Result<Tensor>, what: &str| {
        let e = r.unwrap_err().to_string();
        assert!(e.contains(what), "`{what}` is not in: {e}");
    };
    refused(t(&[1, 2, 4]).conv2d(&t(&[1, 2, 2, 2]), None, &p), "conv2d");
    refused(t(&[1, 2]).conv(&t(&[1, 2]), None, &p), "spatial axes");
    refused(t(&[1, 2, 4]).conv(&t(&[1, 2, 2, 2]), None, &p), "rank 3");
    refused(t(&[1, 2, 4]).conv(&t(&[1, 3, 2]), None, &p), "channels");
    refused(t(&[1, 2, 4]).conv(&t(&[1, 2, 2]), Some(&t(&[2])), &p), "bias");
    refused(t(&[1, 2, 4]).conv(&t(&[1, 2, 5]), None, &p), "span 5");
    refused(t(&[1, 2, 4]).conv(&t(&[1, 2, 0]), None, &p), "windows");
    refused(t(&[1, 2, 4]).conv(&t(&[1, 2, 2]), None, &p.groups(0)), "groups");
    refused(t(&[1, 2, 4]).conv(&t(&[1, 2, 2]), None, &p.stride([1, 1])), "stride");
    refused(t(&[1, 2, 4]).conv_transpose(&t(&[3, 2, 2]), None, &p), "2 channels");
    refused(t(&[1, 2, 4]).conv_transpose(&t(&[2, 2, 2]), None, &p.out_pad(1)), "out_pad");
    refused(t(&[1, 2, 4, 4]).deform_conv(&t(&[1, 2, 2, 2]), &t(&[1, 7, 3, 3]), None, None, &p), "offset");
    refused(t(&[1, 2, 4]).im2col(&[2, 2], &p), "spatial axes");
    refused(t(&[1, 7, 3]).col2im(&[4], &[2], &p), "multiple of the 2");
    refused(t(&[1, 6, 4]).col2im(&[4], &[2], &p), "col");
    refused(t(&[6, 4]).col2im(&[4], &[2], &p), "[N, C*K, P]");
    refused(t(&[1, 2]).max_pool(&Window::new(&[2])), "spatial");
    refused(t(&[1, 2, 4]).max_pool(&Window::new(&[2, 2])), "kernel");
    refused(t(&[1, 2, 4]).avg_pool(&Window::new(&[2]).dilation(&[2])), "dilation");
    refused(t(&[1, 2, 4]).adaptive_avg_pool(&[1, 1]), "one per axis");
    refused(t(&[1, 2, 4]).adaptive_max_pool(&[0]), "above 0");
    refused(t(&[1, 2, 0]).global_avg_pool(), "one cell");
    refused(t(&[1, 2, 4]).interpolate(&[1, 1], Interpolate::new(InterpolateMode::Nearest)), "2 spatial");
    refused(t(&[1, 2, 4]).interpolate(&[0], Interpolate::new(InterpolateMode::Nearest)), "sizes");
    refused(t(&[1, 2, 4]).interpolate_by(&[f64::NAN], Interpolate::new(InterpolateMode::Nearest)), "scale");
    refused(t(&[1, 2, 4]).interpolate_by(&[1e12], Interpolate::new(InterpolateMode::Nearest)), "scale");
    refused(t(&[1, 2, 2]).affine_grid(&[3, 3], true), "theta");
    refused(t(&[1, 2, 4, 4]).grid_sample(&t(&[1, 4, 2]), GridSample::new(SampleMode::Linear)), "grid");
    refused(t(&[1, 2, 4, 4]).grid_sample(&t(&[2, 4, 4, 2]), GridSample::new(SampleMode::Linear)), "grid");
    refused(t(&[3, 2, 2]).pixel_shuffle(2), "3 channels");
    refused(t(&[4, 2, 2]).pixel_shuffle(0), "`r`");
    refused(t(&[4, 2, 2]).pixel_shuffle(usize::MAX), "`r`");
    refused(t(&[4, 3, 2]).pixel_unshuffle(2), "divides");
    refused(t(&[2, 2]).pixel_unshuffle(2), "[.., C, H, W]");
}

/// Values of `F.max_pool2d`, `F.avg_pool2d` and their 1-D forms in PyTorch 2.15.
#[test]
fn rounding_up_admits_a_window_that_reaches_behind_the_padding() {
    let x: Vec<f32> = (0..12).map(|v| v as f32).collect();
    for d in devices() {
        let x = f32s(&d, &x, &[1, 2, 2, 3]);
        let ceil =
            |k: usize, s: usize, p: usize| Window::new(&[k]).stride(&[s]).padding(&[p]).ceil_mode(true);
        let values = |t: Result<Tensor>| {
            t.unwrap().to_vec::<f32>().unwrap().into_iter().map(f64::from).collect::<Vec<_>>()
        };
        let what = format!("on {}", id(&d));
        let (y, index) = x.max_pool_with_index(&ceil(3, 2, 0)).unwrap();
        assert_eq!((y.shape(), y.to_vec::<f32>().unwrap()), (&[1, 2, 1, 1][..], vec![5., 11.]), "{what}");
        assert_eq!(index.to_vec::<i32>().unwrap(), [5, 5]);
        close(&values(x.avg_pool(&ceil(3, 2, 0))), &[2.5, 8.5], 1e-6, &what);
        let padded = [0.8889, 1.3333, 1.1667, 1.5, 3.5556, 4.0, 3.1667, 3.5];
        close(&values(x.avg_pool(&ceil(3, 2, 1))), &padded, 1e-4, &what);
        let inside = [2., 3., 3.5, 4.5, 8., 9., 9.5, 10.5];
        close(&values(x.avg_pool(&ceil(3, 2, 1).count_include_pad(false))), &inside, 1e-6, &what);
        let row = f32s(&d, &[1., 2.], &[1, 1, 2]);
        assert_eq!(values(row.max_pool(&ceil(4, 3, 0))), [2.0]);
        assert_eq!(values(row.avg_pool(&ceil(4, 3, 0))), [1.5]);
        assert_eq!(values(row.max_pool(&ceil(2, 3, 0).dilation(&[3]))), [1.0]);
        // PyTorch: output size is too small.
        let e = x.max_pool(&ceil(4, 2, 0)).unwrap_err().to_string();
        assert!(e.contains("fits into the padded input"), "{e}");
        assert!(x.max_pool(&ceil(3, 2, 0).ceil_mode(false)).is_err());
    }
    let w = Window::new(&[3]).stride(&[2]).ceil_mode(true);
    gradcheck("max of one window", &[&[1, 2, 2, 3]], |x| x, |t| t[0].max_pool(&w));
    gradcheck("mean of one window", &[&[1, 2, 2, 3]], |x| x, |t| t[0].avg_pool(&w));
}

/// Values of `F.interpolate(x, scale_factor=..)` in PyTorch 2.15 on the CPU.
#[test]
fn factors_that_keep_or_double_a_size() {
    for d in devices() {
        let row = f32s(&d, &[1., 2., 4., 8.], &[1, 1, 4]);
        let image = f32s(&d, &[0., 1., 2., 3., 4., 5.], &[1, 1, 2, 3]);
        let volume = image.unsqueeze(2).unwrap();
        let by = |x: &Tensor, s: &[f64], mode| -> Vec<f64> {
            let y = x.interpolate_by(s, Interpolate::new(mode)).unwrap();
            y.to_vec::<f32>().unwrap().into_iter().map(f64::from).collect()
        };
        use InterpolateMode::{Linear, Nearest, NearestExact};
        let what = format!("on {}", id(&d));
        let doubled = [0., 1., 2., 0., 1., 2., 3., 4., 5., 3., 4., 5.];
        assert_eq!(by(&image, &[2.4, 1.1], Nearest), doubled, "{what}");
        // Of rows and volumes the factor counts.
        assert_eq!(by(&row, &[1.1], Nearest), [1., 1., 2., 4.], "{what}");
        assert_eq!(by(&row, &[2.1], Nearest), [1., 1., 1., 2., 2., 4., 4., 8.], "{what}");
        let slow = [0., 0., 1., 0., 0., 1., 0., 0., 1., 3., 3., 4.];
        assert_eq!(by(&volume, &[1.1, 2.4, 1.1], Nearest), slow, "{what}");
        assert_eq!(by(&row, &[1.2], NearestExact), [1., 2., 4., 4.], "{what}");
        assert_eq!(by(&row, &[1.1], Linear), [1., 2., 4., 8.], "{what}");
        let blended = [0., 0.5, 7. / 6., 11. / 6., 3., 3.5, 25. / 6., 29. / 6.];
        close(&by(&image, &[1.4, 1.5], Linear), &blended, 1e-6, &what);
        let wide = [1., 1.2142857, 1.6904762, 2.3333333, 3.2857143, 4.4761905, 6.3809524, 8.];
        close(&by(&row, &[2.1], Linear), &wide, 1e-5, &what);
    }
}
