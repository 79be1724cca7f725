//! One operation on every device: forward and gradients against central differences and against the CPU in f64, from dense operands and
//! from views, without a transfer.
#![allow(dead_code, missing_docs)]

use trefoil::ops::core::CoreOps;
use trefoil_nn::{Device, HostTensor, Result, Tensor};

use super::{close, cpu, devices, gradcheck, id, noise};

/// Copies between host and device so far.
pub(crate) fn transfers(d: &Device) -> [u64; 2] {
    let c = d.counters();
    [c.uploads, c.downloads]
}

/// Runs `f` and expects that nothing crosses between host and device.
pub(crate) fn resident<T>(what: &str, d: &Device, f: impl FnOnce() -> T) -> T {
    let before = transfers(d);
    let y = f();
    assert_eq!(transfers(d), before, "{what} on {}: uploads and downloads", id(d));
    y
}

pub(crate) fn values(t: &Tensor) -> Vec<f64> {
    t.to_dtype(trefoil::DType::F64).and_then(|t| t.to_vec()).unwrap_or_else(|_| {
        // A device without f64.
        t.to_dtype(trefoil::DType::F32).unwrap().to_vec::<f32>().unwrap().into_iter().map(f64::from).collect()
    })
}

/// A tensor of these elements whose memory lies in another order, as far as the shape allows.
pub(crate) fn as_view(d: &Device, data: &[f32], shape: &[usize]) -> Tensor {
    if shape.len() < 2 {
        // Every second element of a vector twice as long.
        let wide: Vec<f32> = data.iter().flat_map(|&x| [x, f32::NAN]).collect();
        let t = Tensor::from_slice(d, &wide, &[wide.len()]).unwrap();
        return t.slice(0, 0, wide.len(), 2).unwrap().reshape(shape).unwrap();
    }
    let t = Tensor::from_slice(d, data, shape).unwrap();
    t.t().unwrap().contiguous().unwrap().t().unwrap()
}

pub(crate) fn everywhere(
    what: &str,
    shapes: &[&[usize]],
    extras: &[HostTensor],
    map: impl Fn(f64) -> f64,
    f: impl Fn(&[Tensor], &[Tensor]) -> Result<Tensor>,
) {
    let put = |d: &Device| -> Vec<Tensor> { extras.iter().map(|e| e.to_device(d).unwrap()).collect() };
    everywhere_with(what, shapes, put, map, |t, extras| f(t, extras));
}

/// As [`everywhere`], with what `prepare` makes on each device (and may wait for).
pub(crate) fn everywhere_with<C>(
    what: &str,
    shapes: &[&[usize]],
    prepare: impl Fn(&Device) -> C,
    map: impl Fn(f64) -> f64,
    f: impl Fn(&[Tensor], &C) -> Result<Tensor>,
) {
    let on_cpu = prepare(&cpu());
    gradcheck(what, shapes, &map, |t| f(t, &on_cpu));

    let data: Vec<Vec<f32>> = shapes
        .iter()
        .enumerate()
        .map(|(i, s)| noise(17 + i as u64, s.iter().product()).into_iter().map(|x| map(x) as f32).collect())
        .collect();
    let wide: Vec<Tensor> = data
        .iter()
        .zip(shapes)
        .map(|(v, s)| {
            let v: Vec<f64> = v.iter().map(|&x| x.into()).collect();
            Tensor::from_slice(&cpu(), &v, s).unwrap().with_grad()
        })
        .collect();
    let run = |leaves: &[Tensor], extras: &C, weights: &Tensor| {
        let y = f(leaves, extras).unwrap_or_else(|e| panic!("{what}: {e}"));
        y.mul(weights).unwrap().sum().unwrap().backward().unwrap();
        y
    };
    let like = f(&wide, &on_cpu).unwrap();
    let contraction: Vec<f32> = noise(99, like.numel()).into_iter().map(|x| x as f32).collect();
    let contraction64: Vec<f64> = contraction.iter().map(|&x| x.into()).collect();
    let want = run(&wide, &on_cpu, &Tensor::from_slice(&cpu(), &contraction64, like.shape()).unwrap());
    let want_grads: Vec<Vec<f64>> = wide.iter().map(|t| values(&t.grad().unwrap())).collect();

    for d in devices() {
        let (extras, weights) = (prepare(&d), Tensor::from_slice(&d, &contraction, like.shape()).unwrap());
        for views in [false, true] {
            let leaf = |(v, s): (&Vec<f32>, &&[usize])| match views {
                false => Tensor::from_slice(&d, v, s).unwrap().with_grad(),
                true => as_view(&d, v, s).with_grad(),
            };
            let leaves: Vec<Tensor> = data.iter().zip(shapes).map(leaf).collect();
            let y = resident(what, &d, || run(&leaves, &extras, &weights));
            let place = format!("{what} on {}{}", id(&d), if views { " from views" } else { "" });
            close(&values(&y), &values(&want), 2e-5, &place);
            for (i, (t, w)) in leaves.iter().zip(&want_grads).enumerate() {
                close(&values(&t.grad().unwrap()), w, 1e-4, &format!("{place}, gradient of input {i}"));
            }
        }
    }
}
