//! Helpers of the tests.
#![allow(dead_code, missing_docs)]

pub(crate) mod calls;
pub(crate) mod everywhere;
pub(crate) mod layers;
pub(crate) mod runs;

use std::sync::{Arc, Mutex, Weak};

use trefoil::{CpuBackend, DeviceId, GpuError, IGpuBackend, Registry, Selector};
use trefoil_nn::{Device, Result, Tensor};

pub(crate) fn cpu() -> Device {
    Arc::new(CpuBackend::new())
}

/// A device that was opened, and the handle of the test that uses it.
struct Opened {
    name: &'static str,
    device: Device,
    lent: Weak<dyn IGpuBackend>,
}

/// A handle to a device that no other test uses at the time, with a stream of its own. It is opened where there is none: a device keeps its
/// programs, which a driver without binaries (PoCL) reads and checks again whenever one is opened, and most tests use several.
fn open(name: &'static str) -> std::result::Result<Device, GpuError> {
    static ALL: Mutex<Vec<Opened>> = Mutex::new(vec![]);
    let mut all = ALL.lock().unwrap_or_else(|e| e.into_inner());
    // One that a test has left in an error is not used again.
    for o in all.iter_mut().filter(|o| o.name == name && o.lent.strong_count() == 0) {
        if let Ok(handle) = o.device.synchronize().and_then(|()| o.device.fork_stream()) {
            o.lent = Arc::downgrade(&handle);
            return Ok(handle);
        }
    }
    let device = Registry::default().open(&name.parse::<Selector>()?)?;
    let handle = device.fork_stream()?;
    all.push(Opened { name, device, lent: Arc::downgrade(&handle) });
    Ok(handle)
}

/// Every device that the tests can use here: the CPU, and each backend that opens. Absence is printed, and fails where `TREFOIL_REQUIRE`
/// names the backend.
pub(crate) fn devices() -> Vec<Device> {
    let mut all = vec![cpu()];
    for name in ["cuda", "hip", "opencl"] {
        match open(name) {
            Ok(d) => all.push(d),
            Err(e) if trefoil::is_required(name) => panic!("{name} is required: {e}"),
            Err(e) => println!("skipped on {name}: {e}"),
        }
    }
    all
}

pub(crate) fn id(d: &Device) -> DeviceId {
    trefoil::ops::core::CoreOps::id(d)
}

/// Whether a device is a CPU behind a driver, where a step of training takes far longer than on the CPU backend. Tests shorten their runs
/// there and print what they leave out.
pub(crate) fn slow(d: &Device) -> bool {
    d.caps().is_cpu && id(d) != id(&cpu())
}

/// As many steps (or items) as asked for, or `few` on a slow device, which is printed.
pub(crate) fn steps_on(d: &Device, steps: usize, few: usize) -> usize {
    if !slow(d) {
        return steps;
    }
    println!("skipped {} of {steps} steps or items on {}: a CPU behind a driver", steps - few, id(d));
    few
}

/// Numbers without pattern, in (-1, 1).
pub(crate) fn noise(seed: u64, n: usize) -> Vec<f64> {
    let mut s = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..n)
        .map(|_| {
            s ^= s << 13;
            s ^= s >> 7;
            s ^= s << 17;
            (s >> 11) as f64 / (1u64 << 52) as f64 - 1.0
        })
        .collect()
}

pub(crate) fn tensor(d: &Device, shape: &[usize], seed: u64) -> Tensor {
    Tensor::from_slice(d, &noise(seed, shape.iter().product()), shape).unwrap()
}

pub(crate) fn f32s(d: &Device, data: &[f32], shape: &[usize]) -> Tensor {
    Tensor::from_slice(d, data, shape).unwrap()
}

pub(crate) fn close(got: &[f64], want: &[f64], rtol: f64, what: &str) {
    assert_eq!(got.len(), want.len(), "{what}: lengths");
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        assert!((g - w).abs() <= rtol * (1.0 + w.abs()), "{what}: element {i} is {g}, expected {w}");
    }
}

/// Compares the gradients of `f` with central differences, in f64 on the CPU. The output is contracted with fixed weights, so that every
/// element of every gradient matters.
pub(crate) fn gradcheck(
    what: &str,
    shapes: &[&[usize]],
    map: impl Fn(f64) -> f64,
    f: impl Fn(&[Tensor]) -> Result<Tensor>,
) {
    let d = cpu();
    let data: Vec<Vec<f64>> = shapes
        .iter()
        .enumerate()
        .map(|(i, s)| noise(17 + i as u64, s.iter().product()).into_iter().map(&map).collect())
        .collect();
    let make = |data: &[Vec<f64>]| -> Vec<Tensor> {
        data.iter().zip(shapes).map(|(v, s)| Tensor::from_slice(&d, v, s).unwrap()).collect()
    };
    let weights = {
        let y = f(&make(&data)).unwrap_or_else(|e| panic!("{what}: {e}"));
        Tensor::from_slice(&d, &noise(99, y.numel()), y.shape()).unwrap()
    };
    let value = |data: &[Vec<f64>]| -> f64 {
        let y = f(&make(data)).unwrap();
        y.mul(&weights).unwrap().sum().unwrap().item::<f64>().unwrap()
    };
    let leaves: Vec<Tensor> = make(&data).iter().map(Tensor::with_grad).collect();
    let y = f(&leaves).unwrap();
    y.mul(&weights).unwrap().sum().unwrap().backward().unwrap_or_else(|e| panic!("{what}: {e}"));

    let h = 1e-5;
    for (i, leaf) in leaves.iter().enumerate() {
        let grad = leaf.grad().unwrap_or_else(|| panic!("{what}: input {i} has no gradient"));
        assert_eq!(grad.shape(), leaf.shape(), "{what}: shape of gradient {i}");
        let want: Vec<f64> = (0..data[i].len())
            .map(|j| {
                let mut moved = data.clone();
                moved[i][j] += h;
                let up = value(&moved);
                moved[i][j] -= 2.0 * h;
                (up - value(&moved)) / (2.0 * h)
            })
            .collect();
        close(&grad.to_vec::<f64>().unwrap(), &want, 2e-7, &format!("{what}, gradient of input {i}"));
        // The gradient must not vanish by accident of the test's data.
        assert!(want.iter().any(|w| w.abs() > 1e-6), "{what}: input {i} has no influence");
    }
}
