//! The tensor half of a parity table with Volta, a Rust autograd library in PyTorch's style: what it offers, with the numbers that PyTorch
//! gives, on every device, and resident there. `volta_layers` has modules, optimizers, losses, data and files.
//!
//! Where both differ PyTorch's rule stands: ties of `maximum`, `max` and `amax` share the gradient (Volta: the first argument, the last
//! maximum, the first maximum; [`Tensor::max_with_index`] gives it to the first here), masks are u8 instead of floats, dot products and
//! full reductions are scalars instead of vectors of one, gradients of tensors with several elements start from a given one.
//!
//! Rows tested elsewhere: the choice among convolution algorithms and their agreement, pool, synchronisation, device faults (the library's
//! own suites); 1e9 elements (needs a large device; 17 million, where Volta stops, are here).

use crate::common::everywhere::{everywhere, resident, values};
use crate::common::{close, cpu, devices, f32s, gradcheck, id, noise};
use trefoil::DType;
use trefoil::ops::random::Rng;
use trefoil::ops::shape::PadMode;
use trefoil_nn::{Device, HostTensor, Result, Tensor};

fn same(x: f64) -> f64 {
    x
}

fn host(t: &Tensor) -> Vec<f32> {
    t.to_vec().unwrap()
}

fn each(f: impl Fn(&Device)) {
    devices().iter().for_each(f);
}

/// Mean and variance.
fn moments(v: &[f64]) -> (f64, f64) {
    let mean = v.iter().sum::<f64>() / v.len() as f64;
    (mean, v.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / v.len() as f64)
}

#[test]
fn creation() {
    each(|d| {
        assert!(Tensor::from_slice(d, &[1f32, 2.0], &[3]).is_err(), "length and shape disagree");
        let x = f32s(d, &[1., 2., 3., 4., 5., 6.], &[2, 3]);
        assert_eq!((x.shape(), host(&x)), (&[2, 3][..], vec![1., 2., 3., 4., 5., 6.]));
        for shape in [&[][..], &[0], &[2, 0, 3], &[2, 2]] {
            let n: usize = shape.iter().product();
            assert_eq!(host(&Tensor::zeros(d, DType::F32, shape).unwrap()), vec![0.0; n]);
            assert_eq!(host(&Tensor::ones(d, DType::F32, shape).unwrap()), vec![1.0; n]);
            assert_eq!(host(&Tensor::full(d, DType::F32, shape, 7.5).unwrap()), vec![7.5; n]);
            assert_eq!(Tensor::empty(d, DType::F32, shape).unwrap().numel(), n);
        }
        assert_eq!(Tensor::arange(d, DType::I64, 1.0, 2.0, 3).unwrap().to_vec::<i64>().unwrap(), [1, 3, 5]);
        assert_eq!(host(&Tensor::linspace(d, DType::F32, 0.0, 1.0, 3).unwrap()), [0.0, 0.5, 1.0]);
    });
}

#[test]
fn random_numbers() {
    let bits = |d: &Device, seed: u64| -> [Vec<u32>; 2] {
        let raw = |t: Tensor| host(&t).iter().map(|x| x.to_bits()).collect();
        let like = Tensor::zeros(d, DType::F32, &[1001]).unwrap();
        [raw(like.rand_like(Rng::new(seed)).unwrap()), raw(like.randn_like(Rng::new(seed).at(1, 0)).unwrap())]
    };
    let want = bits(&cpu(), 5);
    assert_ne!(bits(&cpu(), 6), want);
    each(|d| {
        assert_eq!(bits(d, 5)[0], want[0], "uniform on {}", id(d));
        assert_eq!(bits(d, 5), bits(d, 5), "the same seed twice on {}", id(d));
        let n = 1 << 18;
        let u = values(&Tensor::rand(d, DType::F32, &[n], 0.0, 1.0, Rng::new(1)).unwrap());
        assert!(u.iter().all(|x| (0.0..1.0).contains(x)));
        let (mean, var) = moments(&u);
        assert!((mean - 0.5).abs() < 3e-3 && (var - 1.0 / 12.0).abs() < 1e-3, "uniform {mean} {var}");
        let (mean, var) = moments(&values(&Tensor::randn(d, DType::F32, &[n], Rng::new(2)).unwrap()));
        assert!(mean.abs() < 1e-2 && (var - 1.0).abs() < 2e-2, "normal {mean} {var}");
    });
}

#[test]
fn initial_weights() {
    each(|d| {
        for (shape, fan_in, fan_out) in
            [(&[4096][..], 4096.0, 4096.0), (&[64, 96], 96.0, 64.0), (&[32, 16, 3, 3], 144.0, 288.0)]
        {
            let x = values(&Tensor::xavier_uniform(d, DType::F32, shape, Rng::new(3)).unwrap());
            let a = (6.0f64 / (fan_in + fan_out)).sqrt();
            let (mean, var) = moments(&x);
            assert!(x.iter().all(|v| v.abs() <= a * (1.0 + 1e-6)), "{shape:?}");
            assert!(
                mean.abs() < 0.06 * a && (var / (a * a / 3.0) - 1.0).abs() < 0.06,
                "{shape:?}: {mean} {var}"
            );
            let (mean, var) =
                moments(&values(&Tensor::he_normal(d, DType::F32, shape, Rng::new(4)).unwrap()));
            let want = 2.0 / fan_in;
            assert!(
                mean.abs() < 0.06 * want.sqrt() && (var / want - 1.0).abs() < 0.1,
                "{shape:?}: {mean} {var}"
            );
        }
    });
}

#[test]
fn unary_functions() {
    type F = fn(&Tensor) -> Result<Tensor>;
    let anywhere: [(&str, F); 8] = [
        ("neg", Tensor::neg),
        ("exp", Tensor::exp),
        ("exp2", Tensor::exp2),
        ("tanh", Tensor::tanh),
        ("sigmoid", Tensor::sigmoid),
        ("relu", Tensor::relu),
        ("erf", Tensor::erf),
        ("gelu", Tensor::gelu),
    ];
    for (name, f) in anywhere {
        everywhere(name, &[&[3, 5]], &[], |x| 2.0 * x, |t, _| f(&t[0]));
    }
    for (name, f) in [("sin", Tensor::sin as F), ("cos", Tensor::cos)] {
        everywhere(name, &[&[3, 5]], &[], |x| 10.0 * x, |t, _| f(&t[0]));
    }
    let positive: [(&str, F); 4] =
        [("recip", Tensor::recip), ("sqrt", Tensor::sqrt), ("log2", Tensor::log2), ("ln", Tensor::ln)];
    for (name, f) in positive {
        everywhere(name, &[&[3, 5]], &[], |x| 2.0 + 1.8 * x, |t, _| f(&t[0]));
    }
}

#[test]
fn edges_of_unary_functions() {
    each(|d| {
        let x = |v: &[f32]| f32s(d, v, &[v.len()]);
        let inf = f32::INFINITY;
        assert_eq!(host(&x(&[0.0]).recip().unwrap()), [inf]);
        assert!(host(&x(&[-1.0]).sqrt().unwrap())[0].is_nan());
        assert_eq!(host(&x(&[1e3]).exp().unwrap()), [inf]);
        assert_eq!(host(&x(&[1e3]).exp2().unwrap()), [inf]);
        assert_eq!(host(&x(&[0.0]).ln().unwrap()), [-inf]);
        close(&values(&x(&[100., -100.]).tanh().unwrap()), &[1., -1.], 1e-6, "tanh far out");
        let s = host(&x(&[100., -100.]).sigmoid().unwrap());
        assert!(s[0] == 1.0 && (0.0..1e-30).contains(&s[1]), "{s:?}");
        let z = x(&[0.0, -0.0, 1.0]).with_grad();
        z.relu().unwrap().sum().unwrap().backward().unwrap();
        assert_eq!(host(&z.grad().unwrap()), [0., 0., 1.], "relu at 0");
        let angles: Vec<f32> = (0..200).map(|i| i as f32 * 50.0 + 0.25).collect();
        let (sin, cos) = (values(&x(&angles).sin().unwrap()), values(&x(&angles).cos().unwrap()));
        for (i, &a) in angles.iter().enumerate() {
            let a = f64::from(a);
            assert!((sin[i] - a.sin()).abs() < 1e-5 && (cos[i] - a.cos()).abs() < 1e-5, "{a} on {}", id(d));
        }
        let grid: Vec<f32> = (-500..=500).map(|i| i as f32 / 100.0).collect();
        let exact: Vec<f64> = grid.iter().map(|&g| f64::from(g)).collect();
        let exact = Tensor::from_slice(&cpu(), &exact, &[grid.len()]).unwrap();
        let worst = |got: Vec<f64>, want: Vec<f64>| {
            got.iter().zip(&want).map(|(g, w)| (g - w).abs()).fold(0.0, f64::max)
        };
        let e = worst(values(&x(&grid).erf().unwrap()), values(&exact.erf().unwrap()));
        assert!(e < 2e-7, "erf: {e} on {}", id(d));
        let e = worst(values(&x(&grid).gelu().unwrap()), values(&exact.gelu().unwrap()));
        assert!(e < 1e-6, "gelu: {e} on {}", id(d));
    });
}

#[test]
fn arithmetic_broadcasts() {
    type F = fn(&Tensor, &Tensor) -> Result<Tensor>;
    let ops: [(&str, F); 4] =
        [("add", Tensor::add), ("sub", Tensor::sub), ("mul", Tensor::mul), ("div", Tensor::div)];
    let pairs: [[&[usize]; 2]; 9] = [
        [&[], &[]],
        [&[3], &[]],
        [&[3], &[1]],
        [&[2, 3], &[3]],
        [&[2, 1], &[1, 3]],
        [&[2, 3, 4], &[3, 1]],
        [&[1, 3, 1], &[2, 1, 4]],
        [&[2, 3, 2, 2], &[3, 1, 2]],
        [&[2, 1, 2, 1, 2], &[1, 3, 1, 2, 1]],
    ];
    for (i, shapes) in pairs.iter().enumerate() {
        // Every pair with two operations, both orders of every operation somewhere.
        for (name, f) in [ops[i % 4], ops[(i + 1) % 4]] {
            everywhere(&format!("{name} {shapes:?}"), shapes, &[], |x| 1.5 + x, |t, _| f(&t[0], &t[1]));
            everywhere(
                &format!("{name} {shapes:?}, turned"),
                shapes,
                &[],
                |x| 1.5 + x,
                |t, _| f(&t[1], &t[0]),
            );
        }
    }
    let e = f32s(&cpu(), &[0.; 6], &[2, 3]).add(&f32s(&cpu(), &[0.; 8], &[2, 4])).unwrap_err().to_string();
    assert!(e.contains("axis 0") && e.contains("[2, 3]") && e.contains("[2, 4]"), "{e}");
}

#[test]
fn comparison_and_selection() {
    everywhere("maximum", &[&[3, 4], &[4]], &[], same, |t, _| t[0].maximum(&t[1]));
    everywhere("mul_add", &[&[3, 4], &[3, 4], &[3, 4]], &[], same, |t, _| t[0].mul_add(&t[1], &t[2]));
    let m = [HostTensor::from_slice(&[1u8, 0, 7], &[3, 1]).unwrap()];
    everywhere("where", &[&[3, 4], &[4]], &m, same, |t, e| t[0].where_(&e[0], &t[1]));
    each(|d| {
        let (a, b) = (f32s(d, &[1., 2., 3.], &[3]).with_grad(), f32s(d, &[1., 3., 2.], &[3]).with_grad());
        a.maximum(&b).unwrap().sum().unwrap().backward().unwrap();
        assert_eq!([host(&a.grad().unwrap()), host(&b.grad().unwrap())], [[0.5, 0., 1.], [0.5, 1., 0.]]);
        let n = f32::NAN;
        let (x, y) = (f32s(d, &[3.5, -3.5, 3.5, -3.5, 1.0], &[5]), f32s(d, &[2., 2., -2., -2., 0.0], &[5]));
        let r = host(&x.fmod(&y).unwrap());
        assert_eq!(r[..4], [1.5, -1.5, 1.5, -1.5], "truncated remainder");
        assert!(r[4].is_nan(), "x mod 0");
        let (x, y) = (f32s(d, &[1., 2., 2., n, 1.], &[5]), f32s(d, &[2., 1., 2., 1., n], &[5]));
        assert_eq!(x.lt(&y).unwrap().to_vec::<u8>().unwrap(), [1, 0, 0, 0, 0]);
        assert!(!x.with_grad().lt(&y).unwrap().requires_grad());
        // One rounding: (1 + e)(1 - e) - 1 is -e^2, which two roundings lose.
        let e = f32::EPSILON;
        let fma =
            f32s(d, &[1.0 + e], &[1]).mul_add(&f32s(d, &[1.0 - e], &[1]), &f32s(d, &[-1.0], &[1])).unwrap();
        assert_eq!(host(&fma), [-e * e], "{}", id(d));
    });
}

#[test]
fn reductions() {
    everywhere("sum", &[&[3, 4, 2]], &[], same, |t, _| t[0].sum());
    everywhere("mean", &[&[3, 4, 2]], &[], same, |t, _| t[0].mean());
    everywhere("max", &[&[3, 4, 2]], &[], same, |t, _| t[0].max());
    let shape = [2usize, 3, 2, 2, 3];
    for rank in [1, 2, 3, 5] {
        for at in 0..rank {
            let s = &shape[..rank];
            let a = at as isize;
            let keep = at % 2 == 0;
            everywhere(&format!("sum {at} of {s:?}"), &[s], &[], same, |t, _| t[0].sum_axes(&[a], keep));
            everywhere(&format!("max {at} of {s:?}"), &[s], &[], same, |t, _| Ok(t[0].max_with_index(a)?.0));
        }
    }
    everywhere("mean of an axis", &[&[3, 4, 2]], &[], same, |t, _| t[0].mean_axes(&[1], false));
    each(|d| {
        let n = 10_000_000;
        let x = Tensor::full(d, DType::F32, &[n], 0.1).unwrap();
        let s = x.sum().unwrap();
        assert_eq!(s.shape(), [0usize; 0]);
        let want = f64::from(0.1f32) * n as f64;
        assert!((f64::from(s.item::<f32>().unwrap()) / want - 1.0).abs() < 1e-5, "{}", id(d));
        let low = |v: &[f32]| f32s(d, v, &[v.len()]).max().unwrap().item::<f32>().unwrap();
        assert_eq!(low(&[-3e9, -2e9]), -2e9);
        assert_eq!(low(&[f32::NEG_INFINITY; 2]), f32::NEG_INFINITY);
        let x = f32s(d, &[1., 5., 5., 2.], &[1, 4]).with_grad();
        let (v, i) = x.max_with_index(1).unwrap();
        assert_eq!((host(&v), i.to_vec::<i64>().unwrap()), (vec![5.0], vec![1]));
        v.sum().unwrap().backward().unwrap();
        assert_eq!(host(&x.grad().unwrap()), [0., 1., 0., 0.], "the first maximum");
        x.zero_grad().unwrap();
        x.max().unwrap().backward().unwrap();
        assert_eq!(host(&x.grad().unwrap()), [0., 0.5, 0.5, 0.], "all maxima");
    });
}

#[test]
fn softmax() {
    for at in [0, 1, -1] {
        everywhere("softmax", &[&[2, 3, 4]], &[], |x| 3.0 * x, |t, _| t[0].softmax(at));
        everywhere("log_softmax", &[&[2, 3, 4]], &[], |x| 3.0 * x, |t, _| t[0].log_softmax(at));
    }
    each(|d| {
        let x = f32s(d, &[1e4, -1e4, 0., 1e4, 1., 2.], &[2, 3]);
        let y = values(&x.softmax(1).unwrap());
        close(&y[..3], &[1., 0., 0.], 1e-6, "far apart");
        assert!((y[3..].iter().sum::<f64>() - 1.0).abs() < 1e-6);
        assert!(host(&x.log_softmax(1).unwrap()).iter().all(|v| v.is_finite()));
    });
}

#[test]
fn movement() {
    everywhere("reshape", &[&[2, 6]], &[], same, |t, _| t[0].reshape(&[3, 4])?.square());
    everywhere("permute", &[&[2, 1, 3, 2, 1, 2]], &[], same, |t, _| t[0].permute(&[5, 3, 0, 2, 1, 4])?.exp());
    everywhere("expand", &[&[2, 1, 3]], &[], same, |t, _| t[0].expand(&[2, 4, 3])?.sin());
    let zero = PadMode::Constant(0.0);
    everywhere("pad", &[&[2, 3]], &[], same, |t, _| {
        t[0].pad(zero, &[(1, 0), (0, 2)])?.add_scalar(1.0)?.exp()
    });
    everywhere("shrink", &[&[4, 5]], &[], same, |t, _| t[0].shrink(&[1..3, 0..4])?.exp());
    everywhere("subsample", &[&[5, 4]], &[], same, |t, _| t[0].subsample(&[2, 9])?.exp());
    each(|d| {
        let x = f32s(d, &(0..24).map(|i| i as f32).collect::<Vec<_>>(), &[2, 3, 4]);
        assert!(x.reshape(&[4, 6]).unwrap().shares_storage(&x), "no copy");
        assert!(x.contiguous().unwrap().shares_storage(&x), "dense already");
        let t = x.permute(&[2, 0, 1]).unwrap();
        assert!(t.shares_storage(&x) && !t.is_contiguous());
        let dense = t.contiguous().unwrap();
        assert!(dense.is_contiguous() && !dense.shares_storage(&x));
        assert_eq!(host(&dense), host(&t));
        assert_eq!(host(&t.permute(&[1, 2, 0]).unwrap()), host(&x), "there and back");
        assert_eq!(x.subsample(&[1, 1, 3]).unwrap().shape(), [2, 3, 2]);
        assert_eq!(host(&x.shrink(&[0..1, 2..3, 1..3]).unwrap()), [9., 10.]);
        assert!(x.shrink(&[0..3, 0..1]).is_err(), "beyond the axis");
        assert!(x.shrink(&[0..1, 0..1, 0..1, 0..1]).is_err(), "more ranges than axes");
        #[expect(clippy::reversed_empty_ranges, reason = "what must be refused")]
        let reversed = x.shrink(&[2..1, 0..3]);
        assert!(reversed.is_err());
        assert!(x.subsample(&[0]).is_err());
        // The source of a moved leaf gets the gradient too.
        let leaf = f32s(&cpu(), &[1., 2.], &[2]).with_grad();
        let moved = leaf.to_device(d).unwrap();
        moved.retain_grad().unwrap();
        moved.square().unwrap().sum().unwrap().backward().unwrap();
        assert_eq!(host(&leaf.grad().unwrap()), [2., 4.]);
        assert_eq!(host(&moved.grad().unwrap()), [2., 4.]);
    });
}

#[test]
fn matrix_products() {
    let shapes: [[&[usize]; 2]; 9] = [
        [&[2, 3], &[3, 4]],
        [&[2, 3], &[3]],
        [&[3], &[3, 2]],
        [&[3], &[3]],
        [&[1, 2, 3], &[4, 3, 5]],
        [&[2, 1, 2, 3], &[3, 3, 2]],
        [&[2, 2, 3], &[3, 4]],
        [&[2, 3], &[4, 3, 2]],
        [&[2, 3, 4], &[4]],
    ];
    let results: [&[usize]; 9] =
        [&[2, 4], &[2], &[2], &[], &[4, 2, 5], &[2, 3, 2, 2], &[2, 2, 4], &[4, 2, 2], &[2, 3]];
    for (s, want) in shapes.iter().zip(results) {
        everywhere(&format!("matmul {s:?}"), s, &[], same, |t, _| {
            let y = t[0].matmul(&t[1])?;
            assert_eq!(y.shape(), want, "{s:?}");
            Ok(y)
        });
    }
    each(|d| {
        for n in [1usize, 7, 16, 17, 127, 128] {
            let [a, b] = [1, 2].map(|s| noise(s, n * n).iter().map(|&x| x as f32).collect::<Vec<f32>>());
            let wide = |v: &[f32]| {
                let v: Vec<f64> = v.iter().map(|&x| x.into()).collect();
                Tensor::from_slice(&cpu(), &v, &[n, n]).unwrap()
            };
            let want = wide(&a).matmul(&wide(&b)).unwrap().to_vec::<f64>().unwrap();
            let got = f32s(d, &a, &[n, n]).matmul(&f32s(d, &b, &[n, n])).unwrap();
            close(&values(&got), &want, 1e-4, &format!("matmul of {n} on {}", id(d)));
        }
        let (x, y) = (f32s(d, &[0.; 6], &[2, 3]), f32s(d, &[0.; 8], &[4, 2]));
        assert!(x.matmul(&y).unwrap_err().to_string().contains("3 rows"));
        assert!(x.matmul(&f32s(d, &[1.], &[])).is_err());
        // Rank 3 times rank 2 is the product of the rows.
        let a = f32s(d, &noise(1, 24).iter().map(|&x| x as f32).collect::<Vec<_>>(), &[2, 3, 4]);
        let b = f32s(d, &noise(2, 8).iter().map(|&x| x as f32).collect::<Vec<_>>(), &[4, 2]);
        let flat = a.reshape(&[6, 4]).unwrap().matmul(&b).unwrap();
        assert_eq!(host(&a.matmul(&b).unwrap()), host(&flat));
    });
}

#[test]
fn autograd() {
    each(|d| {
        let x = f32s(d, &[1., 2., 3.], &[3]).with_grad();
        let y = x.square().unwrap();
        assert!(y.backward().is_err(), "several elements need a gradient");
        y.backward_with(&y.ones_like().unwrap()).unwrap();
        let seeded = host(&x.grad().unwrap());
        x.zero_grad().unwrap();
        x.square().unwrap().sum().unwrap().backward().unwrap();
        assert_eq!(host(&x.grad().unwrap()), seeded);
        // Accumulates until cleared.
        let z = x.square().unwrap().sum().unwrap();
        x.zero_grad().unwrap();
        z.backward_retain().unwrap();
        z.backward().unwrap();
        assert_eq!(host(&x.grad().unwrap()), [4., 8., 12.]);
        x.zero_grad().unwrap();
        assert!(x.grad().is_none());
        // x x + x x.
        let q = x.mul(&x).unwrap();
        q.add(&q).unwrap().sum().unwrap().backward().unwrap();
        assert_eq!(host(&x.grad().unwrap()), [4., 8., 12.]);
    });
    let x = f32s(&cpu(), &[1.], &[1]).with_grad();
    let mut y = x.clone();
    for _ in 0..10_000 {
        y = y.add_scalar(1e-3).unwrap();
    }
    y.backward().unwrap();
    assert_eq!(host(&x.grad().unwrap()), [1.0]);
}

#[test]
#[should_panic(expected = "gradient of input 0")]
fn the_gradient_checker_finds_a_planted_error() {
    // The factor 1.01 is hidden from the gradient.
    gradcheck("planted", &[&[3]], same, |t| t[0].square()?.add(&t[0].detach().mul_scalar(0.01)?));
}

/// 17 million elements, more work-groups than one dimension of some devices has.
#[test]
fn large_tensors() {
    each(|d| {
        let n = 17_000_000;
        let x = Tensor::full(d, DType::F32, &[n], 2.0).unwrap();
        let y = resident("large", d, || x.mul(&x).unwrap().add_scalar(1.0).unwrap());
        assert_eq!(host(&y.narrow(0, n - 2, 2).unwrap()), [5., 5.], "{}", id(d));
        assert_eq!(y.min().unwrap().item::<f32>().unwrap(), 5.0);
    });
}
