//! Spectral normalization, hyperbolic and octonion linear layers, the single-head decoder block.

use crate::common::layers::{f64s, gradcheck_layer, on_devices, param, refused, round_trip, state_names};
use crate::common::{close, cpu, devices, f32s, noise, tensor};
use trefoil::DType;
use trefoil::ops::activation::Activation as Act;
use trefoil_nn::layers::*;
use trefoil_nn::{Device, Init, InitContext, Layer, LayerExt, Optimizer, Result, Tensor};

fn host(t: &Tensor) -> Vec<f64> {
    t.to_vec::<f64>().unwrap()
}

/// Replaces a layer's parameters by numbers without pattern.
fn shuffle(layer: &dyn Layer, seed: u64) {
    for (i, (_, p)) in layer.named_parameters().into_iter().enumerate() {
        let t = p.get().detach();
        t.assign(&tensor(&cpu(), t.shape(), seed + i as u64)).unwrap();
    }
}

// Plain vectors and matrices in rows.

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(x, y)| x * y).sum()
}

fn times(m: &[f64], v: &[f64]) -> Vec<f64> {
    m.chunks(v.len()).map(|row| dot(row, v)).collect()
}

fn transposed(m: &[f64], columns: usize) -> Vec<f64> {
    (0..columns).flat_map(|c| m.chunks(columns).map(move |row| row[c])).collect()
}

fn unit(v: Vec<f64>) -> Vec<f64> {
    let norm = dot(&v, &v).sqrt();
    v.iter().map(|x| x / norm).collect()
}

fn scaled(v: &[f64], f: f64) -> Vec<f64> {
    v.iter().map(|x| x * f).collect()
}

const RAW: &str = "parametrizations.weight.original";
const U: &str = "parametrizations.weight.0._u";
const V: &str = "parametrizations.weight.0._v";

/// One step of the power iteration from a layer's buffers: u, v and sigma.
fn step(layer: &dyn Layer) -> (Vec<f64>, Vec<f64>, f64) {
    let (w, v) = (param(layer, RAW), param(layer, V));
    let u = unit(times(&w, &v));
    let v = unit(times(&transposed(&w, v.len()), &u));
    let sigma = dot(&u, &times(&w, &v));
    (u, v, sigma)
}

#[test]
fn spectral_normalization_follows_the_definition() {
    let cx = f64s();
    let layer = SpectralNormalization::new(&cx, Dense::new(&cx, 3, 4).unwrap()).unwrap();
    assert_eq!(state_names(&layer), [RAW, "bias", U, V]);
    assert_eq!(layer.named_parameters().len(), 2);
    shuffle(&layer, 3);
    let (w, b) = (param(&layer, RAW), param(&layer, "bias"));
    let x = tensor(&cpu(), &[2, 3], 1);
    // Training takes a step from the buffers before the weight is divided.
    let (u, v, sigma) = step(&layer);
    let want: Vec<f64> = host(&x)
        .chunks(3)
        .flat_map(|x| {
            times(&scaled(&w, 1.0 / sigma), x).iter().zip(&b).map(|(y, b)| y + b).collect::<Vec<_>>()
        })
        .collect();
    close(&host(&layer.forward(&x).unwrap()), &want, 1e-12, "in training");
    close(&param(&layer, U), &u, 1e-12, "u");
    close(&param(&layer, V), &v, 1e-12, "v");
    assert_eq!(param(&layer, RAW), w, "the raw weight stays");
    // Evaluation uses the same vectors and leaves them alone.
    layer.eval();
    close(&host(&layer.forward(&x).unwrap()), &want, 1e-12, "in evaluation");
    close(&param(&layer, U), &u, 1e-12, "u in evaluation");
    gradcheck_layer("SpectralNormalization", &layer, std::slice::from_ref(&x), |t| layer.forward(&t[0]));
    layer.train();
    // The estimate converges: the largest factor by which the weight stretches becomes 1.
    for _ in 0..200 {
        layer.forward(&x).unwrap();
    }
    let (_, v, sigma) = step(&layer);
    let stretched = times(&scaled(&w, 1.0 / sigma), &v);
    assert!((dot(&stretched, &stretched) - 1.0).abs() < 1e-9);

    // Several iterations in one forward are those of as many forwards.
    let make = |n: usize| {
        let l = SpectralNormalization::new(&cx, Dense::new(&cx, 3, 4).unwrap()).unwrap();
        l.load_state_dict(&layer.state_dict().unwrap()).unwrap();
        shuffle(&l, 8);
        l.power_iterations(n).unwrap()
    };
    let (once, thrice) = (make(1), make(3));
    for _ in 0..2 {
        once.forward(&x).unwrap();
    }
    let (y, want) = (thrice.forward(&x).unwrap(), once.forward(&x).unwrap());
    close(&host(&y), &host(&want), 1e-12, "three iterations");
}

#[test]
fn spectral_normalization_may_run_twice_before_a_backward() {
    let cx = f64s();
    let layer = SpectralNormalization::new(&cx, Dense::new(&cx, 3, 4).unwrap().no_bias()).unwrap();
    shuffle(&layer, 3);
    let w = param(&layer, RAW);
    let run = |seed: u64| {
        let x = tensor(&cpu(), &[2, 3], seed);
        let (u, v, sigma) = step(&layer);
        let y = layer.forward(&x).unwrap();
        // G = gradient of W / sigma for a sum of the outputs with weights g.
        let g = tensor(&cpu(), &[2, 4], seed + 10);
        let (xs, gs) = (host(&x), host(&g));
        let big: Vec<f64> =
            (0..12).map(|i| (0..2).map(|n| gs[n * 4 + i / 3] * xs[n * 3 + i % 3]).sum()).collect();
        let inner = dot(&big, &w) / sigma;
        let dw: Vec<f64> = (0..12).map(|i| (big[i] - inner * u[i / 3] * v[i % 3]) / sigma).collect();
        (y.mul(&g).unwrap().sum().unwrap(), dw)
    };
    let ((first, a), (second, b)) = (run(1), run(2));
    first.add(&second).unwrap().backward().unwrap();
    let grad = layer.named_parameters()[0].1.get().grad().unwrap();
    let want: Vec<f64> = a.iter().zip(&b).map(|(a, b)| a + b).collect();
    close(&host(&grad), &want, 1e-12, "gradient of the raw weight");
    // Also a forward in evaluation whose buffers a forward in training overwrites.
    layer.eval();
    let y = layer.forward(&tensor(&cpu(), &[2, 3], 1)).unwrap();
    layer.train();
    layer.forward(&tensor(&cpu(), &[2, 3], 1)).unwrap();
    y.sum().unwrap().backward().unwrap();
}

#[test]
fn spectral_normalization_of_any_layer() {
    let cx = f64s();
    // Transposed convolutions have the outputs on axis 1.
    let deconv = SpectralNormalization::new(&cx, Deconvolutional::new(&cx, 2, 3, 2).unwrap()).unwrap();
    assert_eq!(deconv.state_dict().unwrap()[U].shape(), [3]);
    assert_eq!(deconv.state_dict().unwrap()[V].shape(), [8]);
    let conv = SpectralNormalization::new(&cx, Convolutional::new(&cx, 2, 3, 2).unwrap()).unwrap();
    assert_eq!(conv.state_dict().unwrap()[U].shape(), [3]);
    assert_eq!(conv.dim(-1).unwrap().state_dict().unwrap()[U].shape(), [2]);
    let x = tensor(&cpu(), &[1, 2, 4, 4], 1);
    deconv.eval();
    gradcheck_layer("SpectralNormalization", &deconv, std::slice::from_ref(&x), |t| deconv.forward(&t[0]));
    // Any parameter of any part, by its name.
    let parts = Sequential::new().push(Dense::new(&cx, 3, 4).unwrap()).push(Dense::new(&cx, 4, 2).unwrap());
    let nested = SpectralNormalization::of(&cx, parts, "1.weight").unwrap();
    let names = state_names(&nested);
    assert!(names.contains(&"1.parametrizations.weight.original".into()), "{names:?}");
    assert!(names.contains(&"1.parametrizations.weight.0._u".into()) && names.contains(&"0.weight".into()));
    nested.eval();
    gradcheck_layer("a nested weight", &nested, &[tensor(&cpu(), &[2, 3], 1)], |t| nested.forward(&t[0]));
    let lstm = SpectralNormalization::of(&cx, Lstm::new(&cx, 3, 2).unwrap(), "weight_hh_l0").unwrap();
    lstm.eval();
    gradcheck_layer("of an Lstm", &lstm, &[tensor(&cpu(), &[2, 3, 3], 1)], |t| lstm.forward(&t[0]));
    // A vector is divided by its norm.
    let norm = SpectralNormalization::new(&cx, LayerNormalization::new(&cx, &[4]).unwrap()).unwrap();
    assert_eq!(state_names(&norm), [RAW, "bias"]);
    shuffle(&norm, 5);
    gradcheck_layer("of a vector", &norm, &[tensor(&cpu(), &[2, 4], 1)], |t| norm.forward(&t[0]));
    let plain = LayerNormalization::new(&cx, &[4]).unwrap();
    let w = unit(param(&norm, RAW));
    let mut state = plain.state_dict().unwrap();
    state.insert("weight".into(), Tensor::from_slice(&cpu(), &w, &[4]).unwrap());
    state.insert("bias".into(), norm.state_dict().unwrap()["bias"].clone());
    plain.load_state_dict(&state).unwrap();
    let x = tensor(&cpu(), &[2, 4], 1);
    close(&host(&norm.forward(&x).unwrap()), &host(&plain.forward(&x).unwrap()), 1e-12, "of a vector");
    // The parameters of a lazy layer come with the first forward, which takes one step and no more.
    let lazy = SpectralNormalization::new(&cx, Dense::lazy(&cx, 3).unwrap()).unwrap();
    assert!(state_names(&lazy).is_empty());
    lazy.forward(&x).unwrap();
    assert_eq!(state_names(&lazy), [RAW, "bias", U, V]);
    // Inside and around a checkpointed layer.
    let dense =
        || Dense::new(&InitContext::new(&cpu(), 4).dtype(DType::F64), 4, 3).unwrap().activation(Act::Tanh);
    let cx = || InitContext::new(&cpu(), 5).dtype(DType::F64);
    let wanted = SpectralNormalization::new(&cx(), dense()).unwrap();
    let around = SpectralNormalization::new(&cx(), Checkpointed::new(dense())).unwrap();
    let within = Checkpointed::new(SpectralNormalization::new(&cx(), dense()).unwrap());
    let run = |l: &dyn Layer| {
        let x = x.with_grad();
        let y = l.forward(&x).unwrap();
        y.square().unwrap().sum().unwrap().backward().unwrap();
        let mut all = vec![host(&y), host(&x.grad().unwrap())];
        all.extend(l.named_parameters().iter().map(|(_, p)| host(&p.get().grad().unwrap())));
        all.extend(l.named_state().iter().map(|(_, p)| host(&p.get())));
        all
    };
    let want = run(&wanted);
    assert_eq!(run(&around), want);
    assert_eq!(run(&within), want);
}

#[test]
fn spectral_normalization_errors_round_trip_and_devices() {
    let cx = f64s();
    let dense = || Dense::new(&cx, 3, 4).unwrap();
    refused(
        SpectralNormalization::of(&cx, dense(), "kernel"),
        &["SpectralNormalization", "`kernel`", "weight, bias"],
    );
    refused(
        SpectralNormalization::new(&cx, Dropout::new(&cx, 0.1).unwrap()).unwrap().forward(&tensor(
            &cpu(),
            &[2],
            1,
        )),
        &["SpectralNormalization", "name"],
    );
    let layer = || SpectralNormalization::new(&cx, dense()).unwrap();
    refused(layer().power_iterations(0), &["SpectralNormalization", "n_power_iterations"]);
    refused(layer().dim(2), &["SpectralNormalization", "axis"]);
    refused(layer().dim(-3), &["SpectralNormalization", "axis"]);
    refused(layer().eps(0.0), &["SpectralNormalization", "eps"]);
    refused(layer().forward(&tensor(&cpu(), &[2, 4], 1)), &["Dense"]);
    round_trip(&layer(), &layer(), &tensor(&cpu(), &[2, 3], 1));
    on_devices(
        "SpectralNormalization",
        &[&[2, 3, 5, 5]],
        |cx| SpectralNormalization::new(cx, Convolutional::new(cx, 3, 4, 3)?),
        |l, t| l.forward(&t[0]),
    );
}

/// Sixteen-bit runs, and steps that neither transfer nor allocate.
fn trains_quietly(what: &str, shape: &[usize], make: impl Fn(&InitContext) -> Result<Box<dyn Layer>>) {
    let quiet = |d: &Device| {
        let c = d.counters();
        (c.uploads, c.downloads, c.syncs, c.allocations, c.compiles)
    };
    for d in devices() {
        let cx = InitContext::new(&d, 3);
        let layer = make(&cx).unwrap();
        let data: Vec<f32> = noise(4, shape.iter().product()).iter().map(|&v| 0.3 * v as f32).collect();
        let x = f32s(&d, &data, shape);
        let mut optimizer = Optimizer::adam(&*layer, 0.01).unwrap();
        let mut losses = vec![];
        let mut warm = None;
        for i in 0..30 {
            optimizer.zero_grad().unwrap();
            let y = layer.forward(&x).unwrap();
            // Towards the constant 1/4.
            let loss = y.add_scalar(-0.25).unwrap().square().unwrap().mean().unwrap();
            loss.backward().unwrap();
            optimizer.step().unwrap();
            losses.push(loss.detach());
            if i == 3 {
                warm = Some(quiet(&d));
            }
        }
        // The losses that are kept need memory; nothing else does.
        let (now, then) = (quiet(&d), warm.unwrap());
        assert_eq!(
            (now.0, now.1, now.2, now.4),
            (then.0, then.1, then.2, then.4),
            "{what} on {}",
            crate::common::id(&d)
        );
        let (first, last) = (losses[0].item::<f32>().unwrap(), losses[29].item::<f32>().unwrap());
        assert!(last < 0.8 * first, "{what} on {}: {first} to {last}", crate::common::id(&d));
        let half = make(&InitContext::new(&d, 3).dtype(DType::F16)).unwrap();
        let y = half.forward(&x.to_dtype(DType::F16).unwrap()).unwrap();
        assert_eq!(y.dtype(), DType::F16);
        let y = y.to_dtype(DType::F32).unwrap().to_vec::<f32>().unwrap();
        let fresh = make(&InitContext::new(&d, 3)).unwrap();
        let state = half
            .state_dict()
            .unwrap()
            .into_iter()
            .map(|(n, t)| (n, t.to_dtype(DType::F32).unwrap()))
            .collect();
        fresh.load_state_dict(&state).unwrap();
        half.eval();
        fresh.eval();
        let y16 = half.forward(&x.to_dtype(DType::F16).unwrap()).unwrap().to_dtype(DType::F32).unwrap();
        let y32 = fresh.forward(&x).unwrap().to_vec::<f32>().unwrap();
        for (a, b) in y16.to_vec::<f32>().unwrap().iter().zip(&y32) {
            assert!((a - b).abs() < 2e-2, "{what} in f16: {a} and {b}");
        }
        assert!(y.iter().all(|v| v.is_finite()));
    }
}

#[test]
fn training_stays_on_the_device() {
    trains_quietly("SpectralNormalization", &[8, 6], |cx| {
        Ok(Box::new(SpectralNormalization::new(cx, Dense::new(cx, 6, 4)?)?))
    });
    trains_quietly("HyperbolicLinear", &[8, 6], |cx| Ok(Box::new(HyperbolicLinear::new(cx, 6, 3)?)));
    trains_quietly("OctonionLinear", &[4, 16], |cx| Ok(Box::new(OctonionLinear::new(cx, 2, 1)?)));
}

// The Poincare ball, point by point.

#[derive(Clone, Copy)]
struct Ball(f64);

impl Ball {
    fn project(self, y: &[f64]) -> Vec<f64> {
        let (norm, r) = (dot(y, y).sqrt(), (1.0 - 1e-5) / self.0.sqrt());
        if norm > r { scaled(y, r / norm) } else { y.to_vec() }
    }
    fn exp0(self, v: &[f64]) -> Vec<f64> {
        let r = (self.0 * dot(v, v)).sqrt();
        if r == 0.0 { v.to_vec() } else { scaled(v, r.tanh() / r) }
    }
    fn log0(self, y: &[f64]) -> Vec<f64> {
        let r = (self.0 * dot(y, y)).sqrt();
        if r == 0.0 { y.to_vec() } else { scaled(y, r.atanh() / r) }
    }
    fn add(self, x: &[f64], y: &[f64]) -> Vec<f64> {
        let (c, xy, xx, yy) = (self.0, dot(x, y), dot(x, x), dot(y, y));
        let (a, b, d) = (1.0 + 2.0 * c * xy + c * yy, 1.0 - c * xx, 1.0 + 2.0 * c * xy + c * c * xx * yy);
        x.iter().zip(y).map(|(x, y)| (a * x + b * y) / d).collect()
    }
    /// exp0(W log0 x), which is what the layer computes in another way.
    fn linear(self, w: &[f64], b: Option<&[f64]>, x: &[f64]) -> Vec<f64> {
        let h = self.project(&self.exp0(&times(w, &self.log0(&self.project(x)))));
        match b {
            Some(b) => self.project(&self.add(&h, &self.project(&self.exp0(b)))),
            None => h,
        }
    }
}

#[test]
fn hyperbolic_linear_follows_the_definition() {
    let cx = f64s();
    for c in [1.0, 0.3, 2.5] {
        let ball = Ball(c);
        let make = || HyperbolicLinear::new(&cx, 3, 2).unwrap().c(c).unwrap();
        // The origin, a point near it, points inside and points outside of the ball.
        let mut data = vec![0.0; 3];
        data.extend(noise(2, 3).iter().map(|v| 1e-5 * v));
        data.extend(noise(3, 6).iter().map(|v| 0.4 * v));
        data.extend(noise(4, 6).iter().map(|v| 3.0 * v));
        let x = Tensor::from_slice(&cpu(), &data, &[2, 3, 3]).unwrap();
        let rows = |f: &dyn Fn(&[f64]) -> Vec<f64>| -> Vec<f64> { data.chunks(3).flat_map(f).collect() };
        let tanh = |v: Vec<f64>| -> Vec<f64> { v.iter().map(|x| x.tanh()).collect() };
        let layer = make();
        shuffle(&layer, 6);
        let (w, b) = (param(&layer, "weight"), param(&layer, "bias"));
        let with = |l: HyperbolicLinear| {
            let state = layer
                .state_dict()
                .unwrap()
                .into_iter()
                .filter(|(n, _)| l.state_dict().unwrap().contains_key(n))
                .collect();
            l.load_state_dict(&state).unwrap();
            let y = l.forward(&x).unwrap();
            assert_eq!(y.shape(), [2, 3, 2]);
            host(&y)
        };
        let point = |x: &[f64]| ball.linear(&w, Some(&b), x);
        close(&with(make()), &rows(&point), 1e-12, "points");
        close(&with(make().no_bias()), &rows(&|x| ball.linear(&w, None, x)), 1e-12, "without bias");
        close(&with(make().tangent_input()), &rows(&|x| point(&ball.exp0(x))), 1e-12, "tangent input");
        close(&with(make().tangent_output()), &rows(&|x| ball.log0(&point(x))), 1e-9, "tangent output");
        let bent = |x: &[f64]| ball.exp0(&tanh(ball.log0(&point(x))));
        close(&with(make().nonlinearity(Act::Tanh)), &rows(&bent), 1e-10, "nonlinearity");
        let both = |x: &[f64]| tanh(ball.log0(&point(x)));
        close(&with(make().nonlinearity(Act::Tanh).tangent_output()), &rows(&both), 1e-10, "both");
        // The kinks of the projection are left out of the difference quotients.
        for l in [make(), make().tangent_input().nonlinearity(Act::Tanh), make().tangent_output()] {
            shuffle(&l, 6);
            gradcheck_layer("HyperbolicLinear", &l, std::slice::from_ref(&x), |t| l.forward(&t[0]));
        }
    }
    // With a bias of 0 the gradients at the origin are those of the linear map.
    let layer = HyperbolicLinear::new(&cx, 3, 2).unwrap();
    assert_eq!(param(&layer, "bias"), [0.0, 0.0]);
    let x = Tensor::zeros(&cpu(), DType::F64, &[3]).unwrap().with_grad();
    layer.forward(&x).unwrap().sum().unwrap().backward().unwrap();
    let w = param(&layer, "weight");
    close(&host(&x.grad().unwrap()), &[w[0] + w[3], w[1] + w[4], w[2] + w[5]], 1e-12, "at the origin");
    assert!(w.iter().all(|v| v.abs() <= (6f64 / 5.0).sqrt()) && w.iter().any(|v| *v != 0.0));
}

#[test]
fn hyperbolic_linear_errors_round_trip_and_devices() {
    let cx = f64s();
    refused(HyperbolicLinear::new(&cx, 0, 2), &["HyperbolicLinear", "in_features"]);
    refused(HyperbolicLinear::new(&cx, 2, 0), &["HyperbolicLinear", "out_features"]);
    for c in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        refused(HyperbolicLinear::new(&cx, 2, 2).unwrap().c(c), &["HyperbolicLinear", "c"]);
    }
    let make = || HyperbolicLinear::new(&cx, 3, 2).unwrap();
    refused(make().forward(&tensor(&cpu(), &[2, 4], 1)), &["HyperbolicLinear", "[.., 3]", "[2, 4]"]);
    refused(
        make().forward(&Tensor::zeros(&cpu(), DType::F64, &[]).unwrap()),
        &["HyperbolicLinear", "[.., 3]"],
    );
    assert_eq!(state_names(&make()), ["weight", "bias"]);
    assert_eq!(state_names(&make().no_bias()), ["weight"]);
    round_trip(&make(), &make(), &tensor(&cpu(), &[2, 3], 1).mul_scalar(0.4).unwrap());
    let ones = make().init(Init::Constant(1.0), Init::Constant(0.5)).unwrap();
    assert_eq!((param(&ones, "weight"), param(&ones, "bias")), (vec![1.0; 6], vec![0.5; 2]));
    assert_eq!(make().forward(&Tensor::zeros(&cpu(), DType::F64, &[0, 3]).unwrap()).unwrap().shape(), [0, 2]);
    on_devices(
        "HyperbolicLinear",
        &[&[4, 5]],
        |cx| HyperbolicLinear::new(cx, 5, 3)?.c(0.05)?.init(Init::Glorot, Init::Glorot),
        |l, t| l.forward(&t[0]),
    );
}

/// Cayley-Dickson product of numbers of 2^n components.
fn product(a: &[f64], b: &[f64]) -> Vec<f64> {
    if a.len() == 1 {
        return vec![a[0] * b[0]];
    }
    let conjugate =
        |x: &[f64]| -> Vec<f64> { x.iter().enumerate().map(|(i, v)| if i == 0 { *v } else { -v }).collect() };
    let ((p, q), (r, s)) = (a.split_at(a.len() / 2), b.split_at(b.len() / 2));
    let first = product(p, r).into_iter().zip(product(&conjugate(s), q)).map(|(x, y)| x - y);
    let second = product(s, p).into_iter().zip(product(q, &conjugate(r))).map(|(x, y)| x + y);
    first.chain(second).collect()
}

#[test]
fn octonion_linear_follows_the_definition() {
    let cx = f64s();
    let layer = OctonionLinear::new(&cx, 2, 3).unwrap();
    assert_eq!(state_names(&layer), ["weight", "bias"]);
    assert_eq!(layer.weight().get().shape(), [3, 2, 8]);
    assert_eq!(param(&layer, "bias"), [0.0; 24]);
    let bound = (6f64 / 40.0).sqrt();
    let w = param(&layer, "weight");
    assert!(w.iter().all(|v| v.abs() <= bound) && w.iter().any(|v| v.abs() > 0.8 * bound));
    shuffle(&layer, 3);
    let (w, b) = (param(&layer, "weight"), param(&layer, "bias"));
    let x = tensor(&cpu(), &[2, 16], 1);
    let mut want = vec![];
    for row in host(&x).chunks(16) {
        for o in 0..3 {
            let mut y = b[o * 8..o * 8 + 8].to_vec();
            for i in 0..2 {
                let p = product(&w[(o * 2 + i) * 8..(o * 2 + i) * 8 + 8], &row[i * 8..i * 8 + 8]);
                y.iter_mut().zip(p).for_each(|(y, p)| *y += p);
            }
            want.extend(y);
        }
    }
    let y = layer.forward(&x).unwrap();
    assert_eq!(y.shape(), [2, 24]);
    close(&host(&y), &want, 1e-12, "OctonionLinear");
    gradcheck_layer("OctonionLinear", &layer, std::slice::from_ref(&x), |t| layer.forward(&t[0]));
    // |w x| = |w| |x|.
    let single = OctonionLinear::new(&cx, 1, 1).unwrap().no_bias();
    let (a, b) = (tensor(&cpu(), &[8], 5), param(&single, "weight"));
    let y = host(&single.forward(&a).unwrap());
    let norm = |v: &[f64]| dot(v, v).sqrt();
    assert!((norm(&y) - norm(&b) * norm(&host(&a))).abs() < 1e-12);
    let bent = OctonionLinear::new(&cx, 2, 1).unwrap().activation(Act::Gelu);
    gradcheck_layer("OctonionLinear, gelu", &bent, &[tensor(&cpu(), &[2, 3, 16], 1)], |t| {
        bent.forward(&t[0])
    });
}

#[test]
fn octonion_linear_errors_round_trip_and_devices() {
    let cx = f64s();
    refused(OctonionLinear::new(&cx, 0, 1), &["OctonionLinear", "in_features"]);
    refused(OctonionLinear::new(&cx, 1, 0), &["OctonionLinear", "out_features"]);
    let make = || OctonionLinear::new(&cx, 2, 1).unwrap();
    refused(make().forward(&tensor(&cpu(), &[2, 8], 1)), &["OctonionLinear", "[.., 16]", "[2, 8]"]);
    round_trip(&make(), &make(), &tensor(&cpu(), &[2, 16], 1));
    let ones = make().init(Init::Constant(1.0), Init::Constant(2.0)).unwrap();
    assert_eq!((param(&ones, "weight"), param(&ones, "bias")), (vec![1.0; 16], vec![2.0; 8]));
    on_devices("OctonionLinear", &[&[3, 24]], |cx| OctonionLinear::new(cx, 3, 2), |l, t| l.forward(&t[0]));
    // A layer moves with its constants.
    for d in devices() {
        let layer = OctonionLinear::new(&InitContext::new(&cpu(), 1), 1, 1).unwrap();
        let x: Vec<f32> = noise(1, 8).iter().map(|&v| v as f32).collect();
        let want = layer.forward(&f32s(&cpu(), &x, &[8])).unwrap().to_vec::<f32>().unwrap();
        layer.to_device(&d).unwrap();
        let got = layer.forward(&f32s(&d, &x, &[8])).unwrap().to_vec::<f32>().unwrap();
        assert!(got.iter().zip(&want).all(|(a, b)| (a - b).abs() < 1e-5));
    }
}

#[test]
fn single_head_decoder() {
    let cx = f64s();
    let (x, memory) = (tensor(&cpu(), &[2, 3, 4], 1), tensor(&cpu(), &[2, 5, 4], 2));
    let (causal, none) = (AttentionMasks::new().causal(), AttentionMasks::new());
    for norm_first in [false, true] {
        let layer = Decoder::new(&cx, 4, 3, 5).unwrap().activation(Act::Gelu).unwrap();
        let layer = if norm_first { layer.norm_first().unwrap() } else { layer };
        shuffle(&layer, 20);
        let all = layer.state_dict().unwrap();
        fn part<L: Layer>(all: &trefoil_nn::StateDict, name: &str, l: L) -> L {
            let own = l
                .state_dict()
                .unwrap()
                .into_keys()
                .map(|k| (k.clone(), all[&format!("{name}.{k}")].clone()))
                .collect();
            l.load_state_dict(&own).unwrap();
            l
        }
        let attention = |n: &str| part(&all, n, Attention::new(&cx, 4, 3).unwrap());
        let (own, cross) = (attention("self_attn"), attention("cross_attn"));
        let first = part(&all, "linear1", Dense::new(&cx, 4, 5).unwrap().activation(Act::Gelu));
        let second = part(&all, "linear2", Dense::new(&cx, 5, 4).unwrap());
        let itself = |t: &Tensor| own.attend(t, None, &causal).unwrap();
        let look = |t: &Tensor| cross.attend(t, Some(&memory), &none).unwrap();
        let network = |t: &Tensor| second.forward(&first.forward(t).unwrap()).unwrap();
        let mut want = x.clone();
        for (i, f) in [&itself as &dyn Fn(&Tensor) -> Tensor, &look, &network].into_iter().enumerate() {
            let n = part(&all, &format!("norm{}", i + 1), LayerNormalization::new(&cx, &[4]).unwrap());
            want = match norm_first {
                true => want.add(&f(&n.forward(&want).unwrap())).unwrap(),
                false => n.forward(&want.add(&f(&want)).unwrap()).unwrap(),
            };
        }
        let got = layer.decode(&x, &memory, &causal, &none).unwrap();
        close(&host(&got), &host(&want), 1e-11, "Decoder");
        let y = layer.forward_all(&[x.clone(), memory.clone()]).unwrap();
        assert_eq!(host(&y[0]), host(&got));
        gradcheck_layer("Decoder", &layer, &[x.clone(), memory.clone()], |t| {
            layer.decode(&t[0], &t[1], &causal, &none)
        });
        let one =
            layer.decode(&x.select(0, 1).unwrap(), &memory.select(0, 1).unwrap(), &causal, &none).unwrap();
        close(&host(&one), &host(&got.select(0, 1).unwrap()), 1e-12, "without a batch");
    }
    let lazy = Decoder::lazy(&cx, 3, 5).unwrap().dropout(0.2).unwrap().eps(1e-6).unwrap();
    assert!(state_names(&lazy).is_empty());
    gradcheck_layer("a lazy Decoder", &lazy, &[x.clone(), memory.clone()], |t| {
        lazy.decode(&t[0], &t[1], &none, &none)
    });
    assert_eq!(lazy.counters().len(), 6, "places of dropout");
    let mut names: Vec<String> = vec![];
    for a in ["self_attn", "cross_attn"] {
        names.extend(["q_proj", "k_proj", "v_proj", "out_proj"].map(|p| format!("{a}.{p}.weight")));
    }
    for p in ["linear1", "linear2", "norm1", "norm2", "norm3"] {
        names.extend(["weight", "bias"].map(|n| format!("{p}.{n}")));
    }
    assert_eq!(state_names(&lazy), names);
    refused(Decoder::new(&cx, 0, 1, 1), &["Decoder", "d_model"]);
    refused(Decoder::lazy(&cx, 0, 1), &["Decoder", "attention_size"]);
    refused(Decoder::lazy(&cx, 1, 1).unwrap().dropout(1.0), &["Decoder", "dropout"]);
    refused(Decoder::lazy(&cx, 1, 1).unwrap().eps(0.0), &["Decoder", "eps"]);
    refused(lazy.forward(&x), &["Decoder", "memory"]);
    refused(lazy.forward_all(std::slice::from_ref(&x)), &["Decoder", "memory"]);
    let narrow = tensor(&cpu(), &[2, 3, 3], 1);
    refused(lazy.decode(&narrow, &memory, &none, &none), &["Decoder", "tgt"]);
    refused(lazy.decode(&x, &narrow, &none, &none), &["Decoder", "memory"]);
    refused(lazy.decode(&x, &memory.select(0, 0).unwrap(), &none, &none), &["Decoder", "memory", "rank"]);
    refused(lazy.decode(&tensor(&cpu(), &[4], 1), &memory, &none, &none), &["Decoder", "tgt"]);
    on_devices(
        "Decoder",
        &[&[2, 4, 8], &[2, 3, 8]],
        |cx| Decoder::new(cx, 8, 4, 12),
        |l, t| l.decode(&t[0], &t[1], &AttentionMasks::new().causal(), &AttentionMasks::new()),
    );
}
