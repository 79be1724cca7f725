//! Checks that every layer passes.
#![allow(dead_code, missing_docs)]

use trefoil::DType;
use trefoil_nn::autograd::no_grad;
use trefoil_nn::{Device, InitContext, Layer, LayerExt, Result, Tensor};

use super::{close, cpu, devices, noise};

/// A f64 builder on the CPU.
pub(crate) fn f64s() -> InitContext {
    InitContext::new(&cpu(), 11).dtype(DType::F64)
}

/// Random layers start over, so that two runs draw the same.
fn rewind(layer: &dyn Layer) {
    let zeros = layer.counters().into_keys().map(|k| (k, 0)).collect();
    layer.set_counters(&zeros).unwrap();
}

/// Gradients of all floating inputs and all parameters of a f64 layer against central differences. The outputs are contracted with fixed
/// weights. Every parameter must have an influence.
pub(crate) fn gradcheck_layer(
    what: &str,
    layer: &dyn Layer,
    inputs: &[Tensor],
    f: impl Fn(&[Tensor]) -> Result<Tensor>,
) {
    rewind(layer);
    let y = no_grad(|| f(inputs)).unwrap_or_else(|e| panic!("{what}: {e}"));
    let weights = Tensor::from_slice(&cpu(), &noise(77, y.numel()), y.shape()).unwrap();
    let contracted = |x: &[Tensor]| {
        rewind(layer);
        f(x).unwrap().mul(&weights).unwrap().sum().unwrap()
    };
    let params = layer.named_parameters();
    layer.zero_grad().unwrap();
    let leaves: Vec<Tensor> = inputs.iter().map(Tensor::with_grad).collect();
    contracted(&leaves).backward().unwrap_or_else(|e| panic!("{what}: {e}"));

    let named = params.iter().map(|(n, p)| (n.clone(), p.get()));
    let floats = leaves.iter().enumerate().filter(|(_, t)| t.dtype().is_float());
    let checked: Vec<(String, Tensor)> =
        floats.map(|(i, t)| (format!("input {i}"), t.clone())).chain(named).collect();
    let h = 1e-5;
    for (name, t) in &checked {
        let grad = t.grad().unwrap_or_else(|| panic!("{what}: {name} has no gradient"));
        assert_eq!(grad.shape(), t.shape(), "{what}: shape of the gradient of {name}");
        let grad = grad.to_vec::<f64>().unwrap();
        let data = t.to_vec::<f64>().unwrap();
        // Large parameters are sampled.
        let step = data.len().div_ceil(40);
        let (mut got, mut want) = (vec![], vec![]);
        for j in (0..data.len()).step_by(step) {
            let value = |by: f64| {
                let mut moved = data.clone();
                moved[j] += by;
                let place = t.detach();
                place.assign(&Tensor::from_slice(&cpu(), &moved, t.shape()).unwrap()).unwrap();
                no_grad(|| contracted(inputs)).item::<f64>().unwrap()
            };
            want.push((value(h) - value(-h)) / (2.0 * h));
            value(0.0);
            got.push(grad[j]);
        }
        close(&got, &want, 1e-6, &format!("{what}, gradient of {name}"));
        // A bias of all keys (of all nodes of a graph) moves the scores of a row alike, which the softmax does not see.
        let seen = want.iter().any(|w| w.abs() > 1e-7) || name == "k_proj.bias" || name == "gate_nn.bias";
        assert!(seen, "{what}: {name} has no influence");
    }
}

/// One layer with equal parameters on every device: outputs and gradients in f32 against the CPU in f64.
pub(crate) fn on_devices<L: Layer>(
    what: &str,
    shapes: &[&[usize]],
    make: impl Fn(&InitContext) -> Result<L>,
    run: impl Fn(&L, &[Tensor]) -> Result<Tensor>,
) {
    let model = make(&InitContext::new(&cpu(), 5)).unwrap().state_dict().unwrap();
    let values = |d: &Device, dtype: DType| -> Vec<(String, Vec<f64>)> {
        let layer = make(&InitContext::new(d, 6).dtype(dtype)).unwrap();
        let own = layer.state_dict().unwrap();
        let state = model.iter().map(|(n, t)| (n.clone(), t.to_dtype(own[n].dtype()).unwrap())).collect();
        layer.load_state_dict(&state).unwrap();
        let upload = |seed: u64, shape: &[usize]| {
            let data: Vec<f32> = noise(seed, shape.iter().product()).iter().map(|&v| v as f32).collect();
            Tensor::from_slice(d, &data, shape).unwrap().to_dtype(dtype).unwrap()
        };
        let inputs: Vec<Tensor> =
            shapes.iter().enumerate().map(|(i, s)| upload(31 + i as u64, s).with_grad()).collect();
        let y = run(&layer, &inputs).unwrap_or_else(|e| panic!("{what}: {e}"));
        y.mul(&upload(78, y.shape())).unwrap().sum().unwrap().backward().unwrap();
        let host = |t: &Tensor| match t.dtype() {
            DType::F64 => t.to_vec::<f64>().unwrap(),
            DType::I64 => t.to_vec::<i64>().unwrap().into_iter().map(|v| v as f64).collect(),
            _ => t.to_vec::<f32>().unwrap().into_iter().map(f64::from).collect(),
        };
        let mut all = vec![("output".to_string(), host(&y))];
        for (i, t) in inputs.iter().enumerate() {
            all.push((format!("gradient of input {i}"), host(&t.grad().unwrap())));
        }
        for (n, p) in layer.named_parameters() {
            all.push((format!("gradient of {n}"), host(&p.get().grad().unwrap())));
        }
        all.extend(layer.state_dict().unwrap().iter().map(|(n, t)| (n.clone(), host(t))));
        all
    };
    let want = values(&cpu(), DType::F64);
    for d in devices() {
        let got = values(&d, DType::F32);
        assert_eq!(got.len(), want.len(), "{what}");
        for ((name, g), (_, w)) in got.iter().zip(&want) {
            close(g, w, 2e-4, &format!("{what} on {}, {name}", super::id(&d)));
        }
    }
}

/// Names of parameters and buffers.
pub(crate) fn state_names(layer: &dyn Layer) -> Vec<String> {
    layer.named_state().into_iter().map(|(n, _)| n).collect()
}

/// A parameter's values.
pub(crate) fn param(layer: &dyn Layer, name: &str) -> Vec<f64> {
    let all = layer.named_state();
    let (_, p) = all.iter().find(|(n, _)| n == name).unwrap_or_else(|| panic!("no {name}"));
    p.get().to_vec::<f64>().unwrap()
}

/// The error's text, which names the layer and the argument.
pub(crate) fn refused<T>(r: Result<T>, words: &[&str]) {
    let Err(e) = r else { panic!("accepted, expected a refusal with {words:?}") };
    let text = e.to_string();
    assert!(words.iter().all(|w| text.contains(w)), "`{text}` lacks one of {words:?}");
}

/// Fills another instance's state with this one's and expects equal outputs.
pub(crate) fn round_trip(a: &dyn Layer, b: &dyn Layer, x: &Tensor) {
    a.eval();
    b.eval();
    let want = a.forward(x).unwrap().to_vec::<f64>().unwrap();
    assert_ne!(b.forward(x).unwrap().to_vec::<f64>().unwrap(), want, "instances differ at first");
    b.load_state_dict(&a.state_dict().unwrap()).unwrap();
    assert_eq!(b.forward(x).unwrap().to_vec::<f64>().unwrap(), want);
    a.train();
    b.train();
}
