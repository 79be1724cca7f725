//! Every gradient of the table on the CPU in f64 against central differences of its forward.

use parity_tests::cases::{KERNELS, Kernel, fields, find};
use parity_tests::gradient::{FROZEN, target, upstream};
use parity_tests::reference::run_wide;
use parity_tests::sampler::draw;
use parity_tests::suite::{Case, HostTensor};
use trefoil::DType;

const STEP: f64 = 1e-6;

/// sum dy * (y(x + h) - y(x - h)) / 2h for one element of one input, over all outputs with an upstream gradient.
fn difference(
    forward: &Kernel,
    case: &Case,
    dy: &[(usize, Vec<f64>)],
    name: &str,
    at: usize,
) -> Result<f64, String> {
    let eval = |h: f64| {
        let mut moved = case.clone();
        let t = moved
            .inputs
            .iter_mut()
            .find(|(n, _)| n == name)
            .map(|(_, t)| t)
            .ok_or(format!("no input {name}"))?;
        let mut v = t.to_f64();
        v[at] += h;
        *t = HostTensor::from_f64(DType::F64, &t.shape, &v);
        let out = run_wide(forward, &moved)?;
        Ok::<_, String>(dy.iter().map(|(i, _)| out[*i].1.to_f64()).collect::<Vec<_>>())
    };
    let (up, down) = (eval(STEP)?, eval(-STEP)?);
    // A compaction gives as many values as there are upstream gradients.
    let each = dy.iter().zip(up.iter().zip(&down));
    Ok(each
        .flat_map(|((_, g), (u, d))| u.iter().zip(d).zip(g).map(|((u, d), g)| g * (u - d) / (2.0 * STEP)))
        .sum())
}

fn check(kernel: &Kernel, index: usize) -> Result<usize, String> {
    let forward = kernel.forward.and_then(find).ok_or("no forward")?;
    let (case, drawn) = draw(kernel, DType::F64, index, 7, true)?;
    let drawn = drawn.ok_or("no forward case")?.case;
    let values = run_wide(forward, &drawn)?;
    if values.iter().any(|(_, y)| y.to_f64().iter().any(|v| v.is_nan())) {
        return Ok(0); // the mean over no row, for one, has no difference
    }
    let dy = upstream(&case, &values);
    let mut checked = 0;
    for (output, grad) in run_wide(kernel, &case)? {
        if !fields(kernel.outputs).iter().any(|f| f.matches(&output)) {
            return Err(format!("output {output} is not in the table"));
        }
        let name = target(kernel, &output);
        let grad = grad.to_f64();
        let n = drawn.input(name).ok_or(format!("{output} belongs to no input"))?.numel();
        if n != grad.len() {
            return Err(format!("{output} has {} elements, {name} has {n}", grad.len()));
        }
        for (at, &g) in grad.iter().enumerate() {
            let d = difference(forward, &drawn, &dy, name, at)?;
            let allowed = 2e-6 * d.abs().max(g.abs()) + 2e-7;
            let agrees = (g - d).abs() <= allowed; // NaN does not
            if !agrees {
                return Err(format!(
                    "{output}[{at}] = {g:e}, central difference {d:e} ({})",
                    serde_json::Value::Object(case.args)
                ));
            }
            checked += 1;
        }
    }
    Ok(checked)
}

#[test]
fn gradients_agree_with_central_differences() {
    let mut failures = Vec::new();
    let (mut kernels, mut elements) = (0, 0);
    for kernel in KERNELS.iter().filter(|k| k.forward.is_some() && !FROZEN.contains(&k.name)) {
        kernels += 1;
        let before = elements;
        for index in 0..5 {
            match check(kernel, index) {
                Ok(n) => elements += n,
                Err(e) => {
                    failures.push(format!("{} #{index}: {e}", kernel.name));
                    break;
                }
            }
        }
        if elements == before && failures.last().is_none_or(|f| !f.starts_with(kernel.name)) {
            failures.push(format!("{}: every case has NaN", kernel.name));
        }
    }
    println!("{kernels} gradients, {elements} elements");
    assert!(failures.is_empty(), "{} of {kernels} gradients:\n{}", failures.len(), failures.join("\n"));
    assert!(kernels > 100 && elements > 5000);
}
